"""Transaction-scoped advisory locks for SQLAlchemy."""

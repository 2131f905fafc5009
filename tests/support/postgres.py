"""The throw-away PostgreSQL of the tests, which is also the demonstration's."""

from build.common.postgres import Postgres, free_port
from build.common.programs import BIN, SERVER_USER

__all__ = ["BIN", "SERVER_USER", "Postgres", "free_port"]

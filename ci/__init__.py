"""What `ci/test` is made of. Only the standard library: it runs before anything is installed."""

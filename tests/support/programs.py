"""PostgreSQL's programs and the account that may run them, as the throw-away server has them."""

from build.common.programs import BIN, SERVER_USER, account, identity, runnable, scratch, system_programs

__all__ = ["BIN", "SERVER_USER", "account", "identity", "runnable", "scratch", "system_programs"]

"""The contract is tested on the program as pip installs it; see ``tests/support/contract.py`` for other commands."""

from __future__ import annotations

from tests.support.contract import bare, dislock, dislock_command, lease, on_this_host, shares_host

__all__ = ["bare", "dislock", "dislock_command", "lease", "on_this_host", "shares_host"]

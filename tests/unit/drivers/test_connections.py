"""How a connection is opened."""

from __future__ import annotations

from dislock.drivers.connections import options


def test_connections_leave_nothing_open_and_nothing_prepared() -> None:
    opened = options({"host": "h"}, 3.5)
    assert opened["autocommit"] is True
    assert opened["prepare_threshold"] is None
    # libpq counts whole seconds, and does not do what it says below two.
    assert opened["connect_timeout"] == "4"
    assert options({}, 0.1)["connect_timeout"] == "2"
    assert options({"connect_timeout": "9"}, 0.1)["connect_timeout"] == "9"

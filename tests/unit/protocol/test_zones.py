"""What a zone's name may be."""

from __future__ import annotations

import pytest

from dislock.errors import ConfigurationError
from dislock.protocol.zones import find_zone


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("UTC", "UTC"),
        ("utc", "UTC"),
        ("Etc/UTC", "Etc/UTC"),
        ("GMT", "GMT"),
        ("europe/berlin", "Europe/Berlin"),
        (" America/Argentina/Buenos_Aires ", "America/Argentina/Buenos_Aires"),
        ("america/port-au-prince", "America/Port-au-Prince"),
        ("EST5EDT", "EST5EDT"),
        ("US/Eastern", "US/Eastern"),
        ("Etc/GMT+5", "Etc/GMT+5"),
    ],
)
def test_iana_names_in_any_case(name: str, key: str) -> None:
    assert find_zone(name).key == key


@pytest.mark.parametrize(
    "name",
    ["", "/", "Europe", "Europe/", "Mars/Olympus", "../UTC", "/etc/localtime", "Europe/Berlin\0", "UTC\n0",
     "<+03>-03", "FOO5BAR", "UTC+3", "+03:00", "posixrules", "posix/UTC", "right/UTC", "RIGHT/Europe/Berlin",
     "localtime", "Factory", "leapseconds", "zone.tab", "tzdata.zi", "\ud800", "\u0415urope/Berlin", "A" * 5000],
)  # fmt: skip
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown time zone"):
        find_zone(name)

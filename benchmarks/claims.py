"""The product's own statements in the notations of psql and pgbench: what no wrapper can be faster than."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dislock.drivers.sql import compose
from dislock.protocol.statements import ClaimLease, ClaimSlot, MoveExpiry, Statement

DAY = 86_400_000_000


def written(statement: type[Statement], values: Mapping[str, str]) -> str:
    """The statement's text, each placeholder replaced by the text for its name."""
    blank: Any = [None] * len(statement._fields)
    text = compose(statement(*blank), ["key_value"]).as_string(None)
    return re.sub(r"%\((\w+)\)s", lambda found: values[found[1]], text).replace("%%", "%")


def _values(key: str, **more: str) -> dict[str, str]:
    return {"key": f"'{key}'", "owner": "'bench:1'", "lock_timeout": "'1500ms'", "ttl": "60000000", **more}


def shell_slot(psql: str, url: str) -> list[str]:
    """A shell that takes a slot and runs `true`, as somebody writes it who needs nothing else."""
    now = time.time_ns() // 1000
    claim = written(ClaimSlot, _values(f"psql:{uuid.uuid4().hex}", tick=str(now), expires=str(now + DAY)))
    return ["/bin/sh", "-c", '"$0" -qAtX -d "$1" -c "$2" >/dev/null && exec true', psql, url, claim]


def shell_herd(psql: str, url: str) -> list[str]:
    """The same for many at once: whoever got a row runs the command that follows."""
    now = time.time_ns() // 1000
    claim = written(ClaimSlot, _values(f"psql:{uuid.uuid4().hex}", tick=str(now), expires=str(now + DAY)))
    script = 'row=$("$0" -qAtX -d "$1" -c "$2") || exit 1; [ -z "$row" ] && exit 0; shift 2; exec "$@"'
    return ["/bin/sh", "-c", script, psql, url, claim]


def shell_lease(psql: str, url: str) -> list[str]:
    """The same with a lease, which is freed at the end and renewed by nobody."""
    key = f"psql:{uuid.uuid4().hex}"
    claim = written(ClaimLease, _values(key))
    free = f"UPDATE key_value SET expire_at = clock_timestamp() WHERE key = '{key}' AND value = 'bench:1'"
    script = '"$0" -qAtX -d "$1" -c "$2" >/dev/null && true; code=$?; "$0" -qAtX -d "$1" -c "$3"; exit "$code"'
    return ["/bin/sh", "-c", script, psql, url, claim, free]


def pgbench_lease(folder: Path) -> Path:
    """A script that claims a lease and frees it, for as many clients as there are."""
    # pgbench replaces variables inside quotes, too. \gset names a variable like the column it comes from.
    values = _values("pgbench-:client_id", known="ARRAY[:case]", expires=":int8")
    path = folder / "lease.pgbench"
    path.write_text(f"{_line(ClaimLease, values)} \\gset\n{_line(MoveExpiry, values)};\n")
    return path


def pgbench_slot(folder: Path) -> Path:
    """A script that claims a slot: one tick of one host, each for a job of its own."""
    values = _values("slot-:client_id-:number", tick="0", expires=str(time.time_ns() // 1000 + DAY))
    path = folder / "slot.pgbench"
    path.write_text(f"\\set number random(1, 1000000000)\n{_line(ClaimSlot, values)};\n")
    return path


def pgbench_renewal(folder: Path, leases: int, ends: int) -> Path:
    """A script that renews one of many leases, all of which end at ``ends`` or a microsecond later, ever again."""
    path = folder / "renewal.pgbench"
    values = _values("lease-:number", known=f"ARRAY[{ends}, {ends + 1}]", expires=f"({ends} + :next)")
    chosen = f"\\set number random(1, {leases})\n\\set next random(0, 1)\n"
    path.write_text(f"{chosen}{_line(MoveExpiry, values)};\n")
    return path


def _line(statement: type[Statement], values: Mapping[str, str]) -> str:
    return " ".join(written(statement, values).split())

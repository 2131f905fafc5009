"""Type-checks the README's Python, and the typed use of the library, with mypy and with pyright.

mypy reads ``tests/support/typed_api.py`` with everything else; pyright does so here. In both an ignored line without an
error is an error, so each also shows that a slip is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

from ci.environments import ROOT

FOLDER = ROOT / ".cache" / "snippets"
#: What the README leaves to its readers.
AROUND = """
from __future__ import annotations

from sqlalchemy.orm import Session

session = Session()
order_id = 7


def batches() -> list[int]: ...


def write(batch: int, token: int) -> None: ...


def pay(order: int) -> None: ...
"""
PYRIGHT = {
    "include": ["readme_*.py", "../../tests/support/typed_api.py"],
    "pythonVersion": "3.10",
    "typeCheckingMode": "standard",
    "reportUnnecessaryTypeIgnoreComment": "error",
    "extraPaths": ["../.."],
}


def main() -> int:
    """Returns the exit code: 0 where both accept all of it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    snippets = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text())
    paths = [FOLDER / f"readme_{number}.py" for number in range(len(snippets))]
    for path, snippet in zip(paths, snippets, strict=True):
        around = re.sub(r"(?m)^session = .*\n", "", AROUND) if " as session:" in snippet else AROUND
        path.write_text(f'"""From the README."""\n{around}\n\n{snippet}')
    (FOLDER / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    checks = (
        ["mypy", "--strict", "--allow-empty-bodies", *map(str, paths)],
        ["pyright", "--pythonpath", sys.executable, "-p", str(FOLDER)],
    )
    return max(subprocess.run([sys.executable, "-m", *check], cwd=ROOT, check=False).returncode for check in checks)


if __name__ == "__main__":
    sys.exit(main())

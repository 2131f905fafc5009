"""What is noticed when the package is imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pg_advisory_lock


def test_another_distribution_with_this_package_is_noticed_at_import(tmp_path: Path) -> None:
    shutil.copytree(Path(pg_advisory_lock.__file__).parent, tmp_path / "pg_advisory_lock")

    def said(program: str) -> str:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr

    assert said("import pg_advisory_lock.keys") == ""
    (tmp_path / "pg_advisory_lock-0.1.0.dist-info").mkdir()
    assert "PgAdvisoryLockWarning: pg_advisory_lock-0.1.0 is installed in the same folder" in said(
        "import pg_advisory_lock.keys"
    )
    # The other one's, which says nothing.
    (tmp_path / "pg_advisory_lock" / "__init__.py").write_text("")
    assert "PgAdvisoryLockWarning" in said("import pg_advisory_lock.aio")

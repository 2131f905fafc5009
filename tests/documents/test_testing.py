"""The documents' example of tests that need no database runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "docs" / "library.md"


@pytest.mark.skipif(not LIBRARY.exists(), reason="the documents are not installed with the package")
def test_the_example_in_the_documents_runs(tmp_path: Path) -> None:
    section = LIBRARY.read_text().partition("## Testing without a database")[2]
    conftest, example = re.findall("```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    # Other people's plugins are not what is tested, and slow to load.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "3 passed" in done.stdout

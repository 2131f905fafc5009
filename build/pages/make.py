"""Makes the site with MkDocs at pinned versions, from the documents in the repository."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from . import generated

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache"
LOCK = HERE / "pages.lock"
SITE = ROOT / "dist" / "docs"
#: What the site is made from, at the same paths as in the repository, so that links between the files stay valid.
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "examples")
API = "docs/api.md"
_ASKED_OF_OTHERS = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)=[\"']?(?:https?:)?//")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    if sys.argv[1:] == ["--refresh"]:
        for file in generated.refresh():
            print(file.relative_to(ROOT))
        return
    if sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} [--refresh]")
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".site-lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        python = tools()
        _gather(CACHE / "site-source")
        config = CACHE / "site.yml"
        # JSON is valid YAML.
        places = {"docs_dir": str(CACHE / "site-source"), "site_dir": str(SITE), "nav": navigation()}
        added = "".join(f"{key}: {json.dumps(value)}\n" for key, value in places.items())
        config.write_text((HERE / "mkdocs.yml").read_text() + added)
        # The documented packages are read from the checkout; no setting of this account's Python counts.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # Material's notice about MkDocs 2 does not concern these documents.
        environment |= {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        # Not --quiet: for --strict, only printed warnings count.
        command = [str(python), "-m", "mkdocs", "build", "--strict", "--clean", "--config-file", str(config)]
        done = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        news = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join(news))
    elsewhere = [page for page in SITE.rglob("*.html") if _ASKED_OF_OTHERS.search(page.read_text())]
    if elsewhere:
        sys.exit(f"opening {elsewhere[0]} asks another host")
    print(f"{SITE.relative_to(ROOT)}/index.html")


def tools() -> Path:
    """The Python of an environment with the tools. Makes it if the lock file has changed."""
    stamp = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    folder = CACHE / "site-tools"
    python = folder / "bin" / "python"
    if not (folder / ".stamp").is_file() or (folder / ".stamp").read_text() != stamp:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        _run([*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(LOCK)])
        (folder / ".stamp").write_text(stamp)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _gather(folder: Path) -> None:
    """Copies the documents. A link to a file that is not among them becomes plain text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    (folder / API).write_text(api())
    shutil.copy2(HERE / "extra.css", folder / "docs" / "extra.css")
    for document in folder.rglob("*.md"):
        document.write_text(_LINK.sub(partial(_kept, document), document.read_text()))


def _kept(document: Path, link: re.Match[str]) -> str:
    """The link; only its text, if the site does not have its target."""
    target = link[2].partition("#")[0]
    here = not target or "://" in target or target.startswith("mailto:") or (document.parent / target).is_file()
    return link[0] if here else link[1]


def navigation() -> list[dict[str, list[dict[str, str]]]]:
    """The pages in the order and under the headings of the README's list."""
    listed = (ROOT / "README.md").read_text().partition("## All pages\n")[2]
    found: list[dict[str, list[dict[str, str]]]] = [{"Overview": [{"README": "README.md"}]}]
    for title, links in re.findall(r"^- \*\*(.+?)\*\*: (.*?)(?=\n- |\n\n)", listed, re.MULTILINE | re.DOTALL):
        pages = [{text[0].upper() + text[1:]: target} for text, target in _LINK.findall(links)]
        found.append({title: [*pages, {"Names and docstrings": API}] if title == "Reference" else pages})
    return found


def api() -> str:
    """A page with every public name, which mkdocstrings fills from the docstrings."""
    lines = ["# Names and docstrings"]
    for package in ("dislock", "pg_advisory_lock"):
        homes = _homes(ROOT / package / "__init__.py")
        lines += ["", f"## {package}"]
        lines += [f"\n::: {homes[name]}.{name}" for name in sorted(homes, key=str.lower)]
        lines += ["", f"## {package}.aio"]
        lines += [f"\n::: {package}.aio.{name}" for name in sorted(_public(ROOT / package / "aio.py"), key=str.lower)]
    return "\n".join(lines) + "\n"


def _homes(module: Path) -> dict[str, str]:
    """The module that each public name of a package comes from."""
    public = _public(module)
    return {
        name.name: node.module
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
        if name.name in public and name.name != "__version__"
    }


def _public(module: Path) -> list[str]:
    """The names in ``__all__``; the public classes of a module without it."""
    body = ast.parse(module.read_text()).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]

"""`dislock.pyz --python SCRIPT`: runs the user's script, which can import both packages."""

from __future__ import annotations

import os
import runpy
import sys

from _bootstrap import start


def run() -> None:
    """Runs SCRIPT, `-m MODULE` or `-c CODE`, with the host's site-packages after this file's own.

    Unlike python, `-m` and `-c` import nothing from the working directory.
    """
    arguments = sys.argv[2:]
    if sys.flags.no_site:
        import site

        site.main()
    match arguments:
        case ["-m", module, *rest]:
            sys.argv[:] = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv[:] = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
        case [script, *rest] if not script.startswith("-"):
            sys.argv[:] = [script, *rest]
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
            try:
                runpy.run_path(script, run_name="__main__")
            except FileNotFoundError as reason:
                if reason.filename != script:
                    raise
                start.fail(f"--python: {script}: no such file")
        case _:
            start.fail("usage: dislock.pyz --python SCRIPT [ARGUMENT ...]   (or -m MODULE, or -c CODE)")

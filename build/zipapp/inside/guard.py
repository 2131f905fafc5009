# Any Python from 2.7 on can parse this, so that it can report what it lacks. The launcher runs it as the first part of
# `text`, which continues with place.py and start.py. For `python3 dislock.pyz` it is the archive's __main__.
import os
import sys


def lack(named):  # type: (object) -> str | None
    """Why this Python is not suitable; None: it is. A free-threaded one has no natives, so it must be named."""
    if sys.version_info < (3, 10):
        return "is Python %d.%d, and CPython 3.10 or newer is needed" % sys.version_info[:2]
    if sys.implementation.name != "cpython":
        return "is %s, and CPython is needed" % sys.implementation.name
    from _frozen_importlib_external import PathFinder

    needed = "@NEEDED@"
    absent = [n for n in needed.split() if n not in sys.builtin_module_names and not PathFinder.find_spec(n)]
    if absent:
        return "lacks %s of Python's own modules" % ", ".join(absent)
    return None if named or "t" not in sys.abiflags else "is free-threaded"


launched = "text" in globals()
# With this variable the launcher has looked for another Python already.
found = lack(not launched or "_dislock_lacks" in os.environ or os.environ.get("DISLOCK_PYTHON"))
if found:
    found = "%s %s" % (sys.executable, found)
    if launched and not os.environ.get("DISLOCK_PYTHON") and "_dislock_lacks" not in os.environ:
        os.environ["_dislock_lacks"] = found
        os.execv("/bin/sh", ["/bin/sh"] + sys.argv[1:])
    sys.stderr.write("dislock: %s\n" % found)
    sys.exit(2)

if launched:
    text = globals()["text"]  # the launcher's
    start = len(text) - int("@START@")
    try:
        # -c put the working directory first.
        del sys.path[0], sys.argv[0]
        place = sys.modules["_bootstrap.place"] = type(sys)("_bootstrap.place")
        exec(compile(text[start - int("@PLACE@") : start], "dislock.pyz/place.py", "exec"), place.__dict__)
        exec(place.compiled() or compile(text[start:], "dislock.pyz/start.py", "exec"))
    except KeyboardInterrupt:
        sys.exit(130)
    globals()["main"](launched=True)
else:
    try:
        from _bootstrap.start import main
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError:
        raise
    except Exception as reason:  # noqa: BLE001 - a changed archive fails in many ways
        sys.exit("dislock: %s is damaged (%s): copy it anew" % (sys.argv[0], reason))

    main(launched=False)

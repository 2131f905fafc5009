# Any Python from 2.7 on can parse this, to say what it lacks. The launcher runs it with `file` open behind it, where
# place.py and start.py follow; for `python3 dislock.pyz` it is the archive's __main__.
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - older ones are what this is for
    found = (sys.executable,) + sys.version_info[:2]  # noqa: RUF005 - Python 2.7
    sys.stderr.write("dislock: CPython 3.10 or newer is needed, and %s is %d.%d\n" % found)  # noqa: UP031 - Python 2.7
    sys.exit(2)

if "file" in globals():
    file = globals()["file"]  # the launcher's
    # -c put the working directory first.
    del sys.path[0], sys.argv[0]
    place = sys.modules["_bootstrap.place"] = type(sys)("_bootstrap.place")
    exec(compile(file.read(int("@PLACE@")), "dislock.pyz/place.py", "exec"), place.__dict__)
    code = place.compiled() or compile(file.read(int("@START@")), "dislock.pyz/start.py", "exec")
    file.close()
    exec(code)
else:
    from _bootstrap.start import main

    main(launched=False)

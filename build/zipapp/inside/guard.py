# Any Python from 2.7 on can parse this, to say what it lacks. The launcher runs it as the first part of `text`, whose
# rest is place.py and start.py; for `python3 dislock.pyz` it is the archive's __main__.
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - older ones are what this is for
    found = (sys.executable,) + sys.version_info[:2]  # noqa: RUF005 - Python 2.7
    sys.stderr.write("dislock: CPython 3.10 or newer is needed, and %s is %d.%d\n" % found)  # noqa: UP031 - Python 2.7
    sys.exit(2)

if "text" in globals():
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
    except Exception as reason:  # noqa: BLE001 - each way in which a changed archive cannot be read
        sys.exit("dislock: %s is damaged (%s): copy it anew" % (sys.argv[0], reason))  # noqa: UP031 - Python 2.7

    main(launched=False)

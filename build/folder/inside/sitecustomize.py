"""Read by <folder>/bin/python3 at its start: distributions' interpreters look elsewhere than in site-packages."""

# os.path is loaded already; pathlib would cost every start of python3.
# ruff: noqa: PTH100, PTH118, PTH120
import os
import sys

packages = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
# SQLAlchemy, which the command line never needs, stays in a zip, where it takes a third of the room.
sys.path += [path for path in (packages, os.path.join(packages, "sqlalchemy.zip")) if path not in sys.path]

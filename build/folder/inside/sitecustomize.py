"""Read by <folder>/bin/python3 at its start, because interpreters of distributions do not look in site-packages."""

# os.path is loaded already; pathlib would slow down every start of python3.
# ruff: noqa: PTH100, PTH118, PTH120
import os
import sys

packages = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages")
# The command line never needs SQLAlchemy, so it stays in a zip, which takes a third of the space.
sys.path += [path for path in (packages, os.path.join(packages, "sqlalchemy.zip")) if path not in sys.path]

"""Many wrappers on several hosts want one lease while everything around them breaks; a checker reads what they left.

``python -m tests.faults.ledger --seconds 60 --seed 1``. Three kinds of files hold all that the checker may know:
``command-*`` (written by each command: its start, a mark now and then, its end, with its fencing token),
``wrappers`` (one line for each wrapper: when it ran, how it ended, what was done to it) and ``faults``.
"""

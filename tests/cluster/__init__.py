"""Failovers of a real cluster: etcd and two nodes of Patroni, with wrappers at work.

DISLOCK_TEST_CLUSTER names a folder that describes the cluster. It holds, for the nodes 1 and 2, ``nodeN.yml`` (the
configuration of Patroni), ``nodeN.pid`` (the number of its process) and ``dataN`` (the server's data). Both are up,
everything listens on 127.0.0.1, and everybody is let in without a password. The tests stop, kill and start what they
find there. Without the variable they are skipped. ``python -m tests.cluster --help`` is for longer runs.
"""

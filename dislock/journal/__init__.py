"""Reads the record of runs: pure functions from rows to what an operator wants to know. Called by ``cli`` only."""

"""The record of runs, read: pure functions from rows to what an operator wants to know. Called by ``cli`` only."""

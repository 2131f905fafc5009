"""Starts dislock from its one file; packed into the archive as `_bootstrap`."""

"""What starts dislock out of its one file; packed into the archive as `_bootstrap`."""

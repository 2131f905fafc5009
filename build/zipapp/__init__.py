"""Makes dist/dislock.pyz. Its own files, apart from the packages, are in `inside`, at their paths in the archive."""

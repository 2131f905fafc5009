"""Makes dist/dislock.pyz. What is put into it beside the packages lies in `inside`, as it lies in the archive."""

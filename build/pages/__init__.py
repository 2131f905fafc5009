"""Makes the site, the man page, and the parts of the documents that come from the code."""

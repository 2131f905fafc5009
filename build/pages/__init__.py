"""The documents as a site, the man page, and the parts of the documents that are made from the code."""

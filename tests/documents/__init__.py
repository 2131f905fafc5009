"""The documents: what they say is so, and they say it in short sentences."""

"""Makes the folder with its own Python, and the image around it. Files that go into the folder are in `inside`."""

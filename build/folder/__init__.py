"""Makes the folder that brings its own Python, and the image around it. What is put into it lies in `inside`."""

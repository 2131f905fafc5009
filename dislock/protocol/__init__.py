"""Every rule of the locks, as pure steps: no I/O, no thread, no event loop, no clock of its own."""

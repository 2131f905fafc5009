"""Makes the artifacts. The commands are in this folder; their code is in `zipapp`, `folder`, `pages` and `common`."""

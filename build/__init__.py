"""What makes the artifacts: the commands lie at the door, what they do in `zipapp`, `folder` and `common` behind it."""

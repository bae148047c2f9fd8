"""A directory in which files appear, as a live stream."""

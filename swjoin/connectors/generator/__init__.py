"""Streams drawn by the b-model while they are read."""

"""Tests of `swjoin.runtime`."""

"""Tests of `swjoin.state`."""

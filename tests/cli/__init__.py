"""Tests of `swjoin.cli`."""

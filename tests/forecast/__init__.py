"""Tests of `swjoin.forecast`."""

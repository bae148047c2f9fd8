"""Tests of `swjoin.monitor`."""

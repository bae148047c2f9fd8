"""Tests of `swjoin.cluster`."""

"""Tests of `swjoin.operators`."""

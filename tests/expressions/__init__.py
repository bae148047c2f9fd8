"""Tests of `swjoin.expressions`."""

"""Tests of `swjoin.core`."""

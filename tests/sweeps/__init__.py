"""Tests of `swjoin.sweeps`."""

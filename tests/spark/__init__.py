"""Tests of `swjoin.spark`."""

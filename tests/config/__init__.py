"""Tests of `swjoin.config`."""

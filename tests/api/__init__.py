"""Tests of `swjoin.api`."""

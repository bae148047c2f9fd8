"""Tests of `swjoin.checkpoint`."""

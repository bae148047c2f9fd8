"""Tests of `swjoin.connectors`."""

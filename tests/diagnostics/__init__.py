"""Tests of `swjoin.diagnostics`."""

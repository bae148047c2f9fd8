"""Pure decisions: distribution epochs, reorganization, declustering, placement.

A policy suggests; the role that owns the state enacts. Stays out: state, clocks, generators of random numbers.
"""

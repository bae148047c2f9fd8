"""Foundations: batches, identifiers, hashing, units, errors, join semantics, row and key codecs, durable files.

All other rooms use this one. Stays out: decisions, streams, configurations.
"""

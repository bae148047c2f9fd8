"""Predicates over pairs: text to a tree (`parser`), tree to a program (`compiler`), program over arrays (`vm`).

Stays out: which rows a predicate is asked about.
"""

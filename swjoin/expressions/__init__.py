"""Predicates over pairs: text to a tree (`parser`), tree to a program (`compiler`), program over arrays (`vm`).

Stays out: the choice of rows to evaluate.
"""

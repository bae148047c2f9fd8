"""Experiments: points of a design, runs of each, searches, results and their tables.

Stays out: figures (`plots`).
"""

"""Routing of tuples to partition-groups and slaves.

Stays out: the owner of a partition-group (`policy`).
"""

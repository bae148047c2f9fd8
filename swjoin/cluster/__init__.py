"""The roles (master, slave, collector) without I/O and without a clock, their messages and the wire format.

Stays out: performing effects (`runtime`).
"""

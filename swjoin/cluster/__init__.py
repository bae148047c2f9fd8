"""The roles of the first paper's machine, without I/O and without a clock, their messages and the wire format.

Stays out: performing what the roles ask for (`runtime`).
"""

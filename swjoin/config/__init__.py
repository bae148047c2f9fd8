"""A run as one validated value (`run`, `sections`, `connectors`), how a file spells it (`loader`), and a job (`job`).

Stays out: opening or running anything.
"""

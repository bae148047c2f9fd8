"""Which partition-group and which slave a tuple goes to.

Stays out: deciding where partition-groups live (`policy`).
"""

"""The record of a stored tuple: fields, width, and the flags beside its payload reference.

What: constants of the 32-byte record.
Why: window state, compiled predicates and wire formats agree on one layout.
Stays out: the arrays that hold records (`state.arrays`).
"""

from __future__ import annotations

# a tuple's record: key, time, id (the bits of a uint64), payload reference
KEY, TS, ID, REF = 0, 1, 2, 3
ROW = 4

# beside a payload reference: the tuple has matched; nothing more of it comes out
MATCHED, SETTLED = 1 << 62, 1 << 61
FLAGS = MATCHED | SETTLED
FLAG_BITS = 61  # from here on

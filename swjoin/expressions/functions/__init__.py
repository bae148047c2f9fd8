"""Functions of expressions: what exists, on which types, and how Arrow computes it.

Stays out: text and names (`expressions.binder`), rows (`expressions.evaluator`).
"""

from swjoin.expressions.functions import casts, conditions, numbers, texts, times
from swjoin.expressions.functions.catalogue import FUNCTIONS, call

__all__ = ["FUNCTIONS", "call", "casts", "conditions", "numbers", "texts", "times"]

"""Routings by their names: how rows of joins find their partners.

What: `named`, the `Places` of a name with numbers, a `Matrix` or a `Biclique`; `kind_of`, `is_placed`, `is_routing`; `WORDS`.
Why: options, configurations and plans read one spelling.
Stays out: what the places are (`routing.matrix`, `routing.biclique`), which joins have an equality or a band
(`frontends.sql.conditions`).
"""

from __future__ import annotations

import re
from typing import TypeAlias

from swjoin.routing.biclique import Biclique
from swjoin.routing.matrix import MOST_LINES, Matrix

Places: TypeAlias = Matrix | Biclique
SPREAD = ("matrix", "broadcast", "random", "contrand")  # to places, whatever the condition
WORDS = (
    "auto, hash, skew, range, broadcast, matrix or matrix:M,N, random or random:M,N, or contrand:M,N,D,E; "
    f"M and N of 1 to {MOST_LINES}, D of 1 to M, E of 1 to N"
)
_KINDS = ("auto", "hash", "skew", "range", "broadcast", "matrix", "random")
_TEXT = re.compile(r"(matrix|random|contrand):([1-9][0-9]?),([1-9][0-9]?)(?:,([1-9][0-9]?),([1-9][0-9]?))?")


def named(routing: object) -> Places | None:
    """Of matrix:M,N, random:M,N and contrand:M,N,D,E; None for words that leave numbers open, and for what is no routing."""
    found = _TEXT.fullmatch(routing) if isinstance(routing, str) else None
    if found is None or (found[4] is not None) != (found[1] == "contrand"):
        return None
    left, right, *subgroups = (int(number) for number in found.groups()[1:] if number is not None)
    if max(left, right) > MOST_LINES or any(each > of for each, of in zip(subgroups, (left, right), strict=False)):
        return None
    return Matrix(left, right) if found[1] == "matrix" else Biclique(left, right, *subgroups)


def kind_of(routing: str) -> str:
    """The word before the numbers."""
    return routing.partition(":")[0]


def is_placed(routing: str | None) -> bool:
    """Whether it is another one than by the hash of join columns."""
    return routing not in (None, "auto", "hash")


def is_routing(routing: str) -> bool:
    return routing in _KINDS or named(routing) is not None

"""Routings by their names: where rows of a join without an equality and a band go.

What: `Places`, a `Matrix` or a `Biclique`; `named`, `form_of`; `WORDS`, for messages.
Why: options, configurations and plans read one spelling.
Stays out: what the places are (`routing.matrix`, `routing.biclique`).
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from swjoin.routing.biclique import Biclique
from swjoin.routing.matrix import MOST_LINES, Matrix

Places: TypeAlias = Matrix | Biclique
WORDS = f"auto, matrix or random, matrix:M,N of 1 to {MOST_LINES} rows and columns, or random:M,N of as many units"


_TEXT = re.compile(r"(matrix|random):([1-9][0-9]?),([1-9][0-9]?)")


def named(routing: object) -> Places | None:
    """Of matrix:M,N and random:M,N; None for words that leave the numbers open, and for what is no routing."""
    found = _TEXT.fullmatch(routing) if isinstance(routing, str) else None
    if found is None or max(int(found[2]), int(found[3])) > MOST_LINES:
        return None
    return (Matrix if found[1] == "matrix" else Biclique)(int(found[2]), int(found[3]))


def form_of(routing: str) -> Literal["matrix", "random"]:
    return "random" if routing.startswith("random") else "matrix"


def is_routing(routing: str) -> bool:
    return routing in ("auto", "matrix", "random") or named(routing) is not None

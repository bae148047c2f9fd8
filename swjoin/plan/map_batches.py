"""Functions of users over whole batches, as nodes of logical plans.

What: `MapBatches`; `mapped_columns`, the columns of its rows.
Why: what SQL has no expression for, such as a model's predictions, is computed by a function of the user; the plan says what it
is called and which columns it gives, so rows, times, ids and stages stay those of any projection.
Stays out: other nodes (`plan.logical`), calling the function and checking what it gives (`expressions.batch_map`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swjoin.core.columns import type_named
from swjoin.core.errors import UserError

_IMPORTABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class MapBatches:
    """The rows of a node with the columns that a function computes from all columns of a batch of them, row by row.

    function: "package.module:function", which every rank imports, or the name of one that this process was given. columns:
    names and Arrow types of what it gives. A column with the name and type of the rows' time must be as it was.
    """

    name: str
    input: str
    function: str
    columns: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)

    @property
    def description(self) -> str:
        return f"map_batches {self.function}"


def is_importable(function: str) -> bool:
    """Whether a function's name has the form "package.module:function"."""
    return _IMPORTABLE.fullmatch(function) is not None


def keeps_time(node: MapBatches, columns: Sequence[tuple[str, str]], time: str | None) -> bool:
    """Whether the function gives the column of the rows' time. columns: those of its input, with their types."""
    return time is not None and (time, dict(columns).get(time)) in node.columns


def mapped_columns(node: MapBatches, columns: Sequence[tuple[str, str]], time: str | None) -> tuple[tuple[str, str], ...]:
    """Names and types of the columns of its rows. UserError for columns that it cannot give. columns, time: of its input."""
    names = [name for name, _ in node.columns]
    twice = [name for name in names if names.count(name) > 1]
    if not names or twice:
        problem = f"two columns are named {twice[0]}" if twice else "its schema has no columns"
        raise UserError(problem, subject=node.name, remedy="name each column once, and one at least")
    for name, kind in node.columns:
        try:
            type_named(kind)
        except UserError as error:
            raise error.prefixed(f"{node.name}: column {name}") from None
        mine = dict(columns).get(name)
        if name == time and mine not in (None, kind):
            remedy = f"declare it as {mine}, or give the column another name"
            raise UserError(f"the rows' time {time} is {mine}, in the schema {kind}", subject=node.name, remedy=remedy)
    return node.columns

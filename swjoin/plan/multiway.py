"""Multiway joins: joins in a row with one key, as one stage of many inputs.

What: `with_multiway_joins(plan)` marks the joins that others take in; `multiway_of(plan, join)`, the `MultiwayJoin` of such a
row; `Part`, the last step on the way to it.
Why: where all inputs share a key no row is copied, no pair travels and none is kept (CQELS Cloud, section 3; specs/cqels.md,
3.1). The logical plan keeps its joins, so what a query means, and how it is verified, does not depend on this.
Stays out: columns (`plan.multiway_columns`), the search (`operators.multiway_join`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from swjoin.core.errors import UserError
from swjoin.core.multiway_bounds import MOST_PARTS, Bounds
from swjoin.plan.bound import bound, is_column
from swjoin.plan.logical import (
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    Project,
    Spread,
    Within,
    join_columns,
)

_FAR_US = 1 << 61  # bounds beyond all times
_MOST_BOUND_US = 1 << 56  # the sum of those of eight inputs is a time, too
_ROUNDED_US = 4  # times are whole microseconds, columns and intervals may be finer


class Side(NamedTuple):
    """A side of one of the joins. part: the input that it is; None: the join before, `join`, behind the nodes `steps`."""

    part: int | None
    join: int = 0
    steps: tuple[Filter | Project, ...] = ()


class Limit(NamedTuple):
    """least_us: of the time of a row of input `second` - that of a row of input `first`."""

    first: int
    second: int
    least_us: int


@dataclass(frozen=True)
class MultiwayJoin:
    """joins: inner ones first; the last one's rows come out. sides: of each. inputs: nodes, from left to right. input_keys: key
    columns of each, the i-th compared with the i-th. limits: what filters between and behind the joins say of the times of two
    inputs."""

    joins: tuple[IntervalJoin, ...]
    sides: tuple[tuple[Side, Side], ...]
    inputs: tuple[str, ...]
    input_keys: tuple[tuple[str, ...], ...]
    limits: tuple[Limit, ...] = ()

    @property
    def name(self) -> str:
        return self.joins[-1].name

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns, as all inputs' rows have them."""
        return tuple(f"key {i}" for i in range(len(self.input_keys[0])))

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """By port."""
        return self.key, ()

    @cached_property
    def bounds(self) -> Bounds:
        return _bounds_of(self)

    @property
    def reach_us(self) -> int:
        """How much later than a row its last partner may come."""
        return int(self.bounds.reach_us.max())

    @property
    def description(self) -> str:
        keys = " = ".join(", ".join(key) for key in self.input_keys)
        conditions = "; ".join(f"{join.name}: {join.semantics.description}" for join in self.joins)
        return f"multiway join of {len(self.inputs)} inputs, keys {keys}; {conditions}"


@dataclass(frozen=True)
class Part:
    """What a sender of rows to a multiway join does last: it puts an input's columns in the places that all inputs share."""

    node: MultiwayJoin
    number: int

    @property
    def description(self) -> str:
        return f"as input {self.number} of {len(self.node.inputs)}"


# ---------------------------------------------------------------- times that filters compare


def _limits(plan: LogicalPlan, node: MultiwayJoin) -> Iterator[Limit]:
    """Filters between the joins, and behind the last one where nothing else reads it."""
    for number, sides in enumerate(node.sides):
        for side in sides:
            if side.part is None:
                yield from _of_filters(plan, node, side.join, side.steps)
        if number == len(node.sides) - 1:
            behind: list[Filter | Project] = []
            readers = plan.readers[node.name]
            while len(readers) == 1 and isinstance(readers[0], Filter | Project):
                behind.append(readers[0])
                readers = plan.readers[readers[0].name]
            yield from _of_filters(plan, node, number, behind)


def _of_filters(plan: LogicalPlan, node: MultiwayJoin, join: int, steps: Sequence[Filter | Project]) -> Iterator[Limit]:
    from swjoin.expressions.time_differences import time_differences

    for i, step in enumerate(steps):
        if not isinstance(step, Filter):
            continue
        condition = bound(step.condition, plan.schema(step.input).columns, step.name)
        for column, other, least_us in time_differences(condition):
            first, second = (_part_of_time(plan, node, join, steps[:i], name) for name in (other, column))
            if first is not None and second is not None and first != second:
                yield Limit(first, second, least_us - _ROUNDED_US)


def _part_of_time(
    plan: LogicalPlan, node: MultiwayJoin, join: int, steps: Sequence[Filter | Project], column: str
) -> int | None:
    """The input whose time a column is, behind some steps from the rows of a join; None: of none."""
    for step in reversed(steps):
        if isinstance(step, Project):
            columns = plan.schema(step.input).columns
            text = dict(step.columns)[column]
            found = next((name for name, _ in columns if is_column(text, columns, name)), None)
            if found is None:
                return None
            column = found
    this = node.joins[join]
    for name, _, side, origin in join_columns(this, plan.schema(this.left), plan.schema(this.right)):
        if name == column:
            below = node.sides[join][side]
            if below.part is None:
                return _part_of_time(plan, node, below.join, below.steps, origin)
            return below.part if plan.schema(node.inputs[below.part]).time == origin else None
    return None


# ---------------------------------------------------------------- which joins are one


def multiway_of(plan: LogicalPlan, join: IntervalJoin) -> MultiwayJoin | None:
    """The joins that are one with this one, which is not taken in itself; None if there are none."""
    made = _Made([], [], [], [])
    _add(plan, join, None, made)
    if len(made.joins) == 1:
        return None
    found = MultiwayJoin(tuple(made.joins), tuple(made.sides), tuple(made.inputs), tuple(made.keys))
    return replace(found, limits=tuple(_limits(plan, found)))


class _Made(NamedTuple):
    joins: list[IntervalJoin]
    sides: list[tuple[Side, Side]]
    inputs: list[str]
    keys: list[tuple[str, ...]]


def _add(plan: LogicalPlan, join: IntervalJoin, order: Sequence[int] | None, made: _Made) -> int:
    """Add a join and those that it takes in; returns its number. order: of its key's columns; None: as they are."""
    sides = []
    for name, key in zip(join.inputs, join.keys, strict=True):
        ordered = tuple(key[i] for i in order or range(len(key)))
        below, steps = _behind(plan, name)
        if below is not None and below.nested:
            came = _renamed(plan, below, steps, ordered)
            assert came is not None, f"{join.name} takes in {below.name}, which has another key"
            inner = [below.left_key.index(column) for column in came]
            sides.append(Side(None, _add(plan, below, inner, made), steps))
        else:
            sides.append(Side(len(made.inputs)))
            made.inputs.append(name)
            made.keys.append(ordered)
    made.joins.append(join)
    made.sides.append((sides[0], sides[1]))
    return len(made.joins) - 1


def _behind(plan: LogicalPlan, name: str) -> tuple[IntervalJoin | None, tuple[Filter | Project, ...]]:
    """The join whose rows a node has, and what is done to them on the way, first things first; None if there is none."""
    steps: list[Filter | Project] = []
    node = plan.node(name)
    while isinstance(node, Filter | Project):
        steps.append(node)
        node = plan.node(node.input)
    return (node if isinstance(node, IntervalJoin) else None), tuple(reversed(steps))


def _renamed(
    plan: LogicalPlan, join: IntervalJoin, steps: Sequence[Filter | Project], names: Sequence[str]
) -> tuple[str, ...] | None:
    """Columns of a join's left key that have these names behind some steps; None if one is no such column."""
    found = list(names)
    for step in reversed(steps):
        if isinstance(step, Project):
            texts, below = dict(step.columns), plan.schema(step.input)
            came = [next((c for c in below.types if is_column(texts[name], below.columns, c)), None) for name in found]
            if None in came:
                return None
            found = [name for name in came if name is not None]
    schemas = plan.schema(join.left), plan.schema(join.right)
    origin = {column.name: column.origin for column in join_columns(join, *schemas) if column.side == 0}
    found = [origin.get(name, "") for name in found]
    return tuple(found) if set(found) == set(join.left_key) and len(found) == len(join.left_key) else None


def with_multiway_joins(plan: LogicalPlan) -> LogicalPlan:
    """The plan in which joins in a row by one key are marked to be one. A join that more than the next one reads stays apart,
    made once for all its readers."""
    nested: set[str] = set()
    sizes = {node.name: 2 for node in plan.nodes if isinstance(node, IntervalJoin)}  # inputs of the row that ends here
    for node in plan.ordered:
        if not isinstance(node, IntervalJoin) or not _may_be_one(plan, node):
            continue
        for name, key in zip(node.inputs, node.keys, strict=True):
            below, steps = _behind(plan, name)
            if below is None or not _may_be_one(plan, below) or not _alone(plan, below, steps):
                continue
            size = sizes[node.name] + sizes[below.name] - 1
            if size <= MOST_PARTS and _renamed(plan, below, steps, key) is not None and _same_types(plan, node, below):
                sizes[node.name] = size
                nested.add(below.name)
    if not nested:
        return plan
    return LogicalPlan(tuple(_marked(node) if node.name in nested else node for node in plan.nodes))


def _marked(node: Node) -> Node:
    return replace(node, nested=True) if isinstance(node, IntervalJoin) else node


def _may_be_one(plan: LogicalPlan, join: IntervalJoin) -> bool:
    """Whether a join of two may be one with others: an inner one by a key, within bounds of time."""
    query = join.semantics
    plain = query.how == "inner" and query.match == "all" and not query.bounds.count_windows and not query.unbounded
    plain = plain and max(abs(query.bounds.lower_us), abs(query.bounds.upper_us)) < _MOST_BOUND_US
    below = [plan.node(name) for name in join.inputs]
    shared = any(isinstance(reader, Within) for reader in plan.readers[join.name])
    return plain and join.band is None and not shared and not any(isinstance(node, Spread | Copies) for node in below)


def _alone(plan: LogicalPlan, join: IntervalJoin, steps: Sequence[Filter | Project]) -> bool:
    """Whether nothing else reads a join's rows, or what some steps make of them."""
    return all(len(plan.readers[node.name]) == 1 for node in (join, *steps))


def _same_types(plan: LogicalPlan, *joins: IntervalJoin) -> bool:
    """Whether the key columns that are compared with each other have the same types: they are compared as they are."""
    for join in joins:
        left, right = (plan.schema(name).types for name in join.inputs)
        if any(_plain(left[one]) != _plain(right[other]) for one, other in zip(*join.keys, strict=True)):
            return False
    return True


def _plain(kind: str) -> str:
    """A type as it is stored: a dictionary's values."""
    return kind.removeprefix("dictionary<values=").split(",")[0] if kind.startswith("dictionary<") else kind


def check_nested(plan: LogicalPlan) -> None:
    """UserError for a join that is marked to be one with those that read it, and cannot be."""
    for node in plan.nodes:
        if isinstance(node, IntervalJoin) and node.nested and not all(_takes_in(plan, node, r) for r in _readers(plan, node)):
            remedy = "leave out `nested`"
            raise UserError("it is nested, and what reads it cannot take it in", subject=node.name, remedy=remedy)


def _readers(plan: LogicalPlan, join: IntervalJoin) -> Iterator[Node]:
    """What reads a join's rows, behind filters and projections."""
    waiting: list[Node] = [join]
    while waiting:
        for reader in plan.readers[waiting.pop().name]:
            if isinstance(reader, Filter | Project):
                waiting.append(reader)
            else:
                yield reader


def _takes_in(plan: LogicalPlan, join: IntervalJoin, reader: Node) -> bool:
    if not isinstance(reader, IntervalJoin) or not _may_be_one(plan, reader) or not _may_be_one(plan, join):
        return False
    for name, key in zip(reader.inputs, reader.keys, strict=True):
        below, steps = _behind(plan, name)
        if below == join and _renamed(plan, below, steps, key) is None:
            return False
    return _same_types(plan, reader, join)


# ---------------------------------------------------------------- times


def _bounds_of(node: MultiwayJoin) -> Bounds:
    """Bounds of the times of each two inputs, which all matches are within. Where the time of a join's rows is that of its left
    row, matches are all that is within them; otherwise the joins' own bounds are narrower."""
    parts = len(node.inputs)
    lower, upper = np.full((parts, parts), -_FAR_US), np.full((parts, parts), _FAR_US)
    np.fill_diagonal(lower, 0)
    np.fill_diagonal(upper, 0)
    after: list[dict[int, tuple[int, int]]] = []  # by join, of each input in it, time of a row of the join - the input's
    for join, sides in zip(node.joins, node.sides, strict=True):
        left, right = ({side.part: (0, 0)} if side.part is not None else after[side.join] for side in sides)
        first, last = join.semantics.bounds.lower_us, join.semantics.bounds.upper_us
        for i, (least, most) in left.items():
            for j, (least_right, most_right) in right.items():
                lower[i, j] = max(lower[i, j], first - most_right + least)
                upper[i, j] = min(upper[i, j], last - least_right + most)
                lower[j, i], upper[j, i] = -upper[i, j], -lower[i, j]
        of_left, of_right = {"left": ((0, 0), (-last, -first))}.get(join.output_time, ((0, 0), (0, 0)))
        if join.output_time == "max":
            of_left, of_right = (max(0, first), max(0, last)), (max(0, -last), max(0, -first))
        elif join.output_time == "min":
            of_left, of_right = (min(0, first), min(0, last)), (min(0, -last), min(0, -first))
        found = {i: (a + of_left[0], b + of_left[1]) for i, (a, b) in left.items()}
        after.append(found | {j: (a + of_right[0], b + of_right[1]) for j, (a, b) in right.items()})
    for i, j, least_us in node.limits:
        lower[i, j] = max(lower[i, j], least_us)
        upper[j, i] = -lower[i, j]
    for k in range(parts):  # what is within bounds of a third is within their sums
        lower = np.maximum(lower, np.maximum(lower[:, k, None] + lower[None, k, :], -_FAR_US))
        upper = np.minimum(upper, np.minimum(upper[:, k, None] + upper[None, k, :], _FAR_US))
    return Bounds(lower, upper)

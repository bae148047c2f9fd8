"""The columns of a multiway join: which columns of each input are stored, and what makes the rows that come out.

What: `multiway_columns_of(plan, node, wanted, bind)`.
Why: the joins that a match stands for read, pass on and test columns, whose way leads back to the inputs.
Stays out: columns of other stages (`plan.columns`), making rows (`core.multiway_columns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.columns import type_named
from swjoin.core.errors import UserError
from swjoin.core.multiway_columns import Condition, MultiwayColumns, PartOrigins, PartsJoin, PartsSide, RowStep
from swjoin.core.row_codec import storage
from swjoin.expressions.compiler import resolve
from swjoin.expressions.parser import columns_of as columns_read
from swjoin.expressions.parser import parse_where
from swjoin.plan.logical import Filter, IntervalJoin, LogicalPlan, Project, join_columns
from swjoin.plan.multiway import MultiwayJoin

Bind = Callable[[Sequence[Filter | Project], set[str]], tuple[tuple[RowStep, ...], set[str]]]


def multiway_columns_of(plan: LogicalPlan, node: MultiwayJoin, wanted: set[str], bind: Bind) -> MultiwayColumns:
    """wanted: columns of its rows that a later node needs. bind: steps that compute some columns, and those that they read.
    UserError for a column whose type cannot travel, and for a condition that means nothing."""
    inputs = [plan.schema(name).types for name in node.inputs]
    keys = tuple((name, _stored(node, inputs[0][column])) for name, column in zip(node.key, node.input_keys[0], strict=True))
    of_joins, of_inputs = [set(wanted) for _ in node.joins], [set[str]() for _ in node.inputs]
    joins: list[PartsJoin] = []
    for number in reversed(range(len(node.joins))):
        join = node.joins[number]
        condition, read = _condition(plan, join)
        shown = tuple((c.name, c.side, c.origin) for c in _columns(plan, join) if c.name in of_joins[number])
        sides = []
        for i, side in enumerate(node.sides[number]):
            mine = {*read[i], *(column for _, of, column in shown if of == i)}
            if side.part is not None:
                of_inputs[side.part] |= mine
                sides.append(PartsSide(side.part))
            else:
                steps, of_joins[side.join] = bind(side.steps, mine)
                sides.append(PartsSide(None, side.join, steps))
        bounds = join.semantics.bounds
        both, within = (sides[LEFT], sides[RIGHT]), (bounds.lower_us, bounds.upper_us)
        joins.append(PartsJoin(join.name, both, *within, join.output_time, condition, read, shown))
    parts, slots = [], dict[str, Any]()
    for part, (types, read_of) in enumerate(zip(inputs, of_inputs, strict=True)):
        time = plan.schema(node.inputs[part]).time
        kind = _stored(node, types[time]) if time in types else None
        of_time = (time, kind) if time is not None and kind is not None and _is_own_time(kind) else None
        of_key = {column: number for number, column in enumerate(node.input_keys[part])}
        numbers, places = Counter[str](), dict[str, str]()
        for column in types:
            if column in read_of and column not in of_key and (of_time is None or column != of_time[0]):
                kind = _stored(node, types[column])
                slot = f"{kind} {numbers[str(kind)]}"
                numbers[str(kind)] += 1
                places[column], slots[slot] = slot, kind
        parts.append(PartOrigins(places, of_key, of_time))
    return MultiwayColumns(node.name, keys, tuple(slots.items()), tuple(parts), tuple(reversed(joins)))


def _is_own_time(kind: Any) -> bool:
    """Whether a column of this type that is the time of its rows is the time that rows carry."""
    return str(kind).startswith("timestamp[us")


def _columns(plan: LogicalPlan, join: IntervalJoin) -> Any:
    return join_columns(join, plan.schema(join.left), plan.schema(join.right))


def _stored(node: MultiwayJoin, type_name: str) -> Any:
    try:
        return storage(type_named(type_name))
    except UserError as error:
        raise error.prefixed(node.name) from None


def _condition(plan: LogicalPlan, join: IntervalJoin) -> tuple[Condition | None, tuple[tuple[str, ...], tuple[str, ...]]]:
    """A join's residual predicate, and by side the columns that it reads."""
    from swjoin.expressions.pair_condition import PairCondition

    where = join.semantics.where
    if where is None:
        return None, ((), ())
    types = [plan.schema(name).types for name in join.inputs]
    tree, read = parse_where(where), (dict[str, None](), dict[str, None]())
    try:
        for name in columns_read(tree):
            side, column = resolve(name, (list(types[LEFT]), list(types[RIGHT])), join.keys)
            read[side][column] = None
        kinds = [{name: type_named(kind) for name, kind in of.items()} for of in types]
        condition = PairCondition.of(tree, kinds, join.keys, [tuple(of) for of in read])
    except UserError as error:
        raise error.prefixed(join.name) from None
    return condition, (tuple(read[LEFT]), tuple(read[RIGHT]))

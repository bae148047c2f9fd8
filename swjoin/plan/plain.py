"""Logical plans as plain values, ready for JSON.

What: `plan_to_plain`, `plan_from_plain`.
Why: a plan travels in the job file to all ranks of a run; values from outside are untrusted, and checked.
Stays out: the dataclasses' values (`config.loader`), what a plan must fulfil (`plan.logical`), job files (`config.job`).
"""

from __future__ import annotations

import difflib
import marshal
from collections import deque
from collections.abc import Sequence
from typing import Any

from swjoin.config.loader import shown, value_from_plain, word
from swjoin.config.run import to_plain
from swjoin.core.errors import UserError
from swjoin.plan.aggregates import Aggregate
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import AlignedWindows, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import (
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    Period,
    Project,
    Result,
    Source,
    Spread,
    Union,
    Within,
)
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches

_KINDS: dict[str, type[Node]] = {
    "source": Source,
    "filter": Filter,
    "project": Project,
    "map_batches": MapBatches,
    "interval_join": IntervalJoin,
    "aggregate": Aggregate,
    "ranked": Ranked,
    "sessions": Sessions,
    "tuple_windows": TupleWindows,
    "aligned_windows": AlignedWindows,
    "views": Views,
    "live_groups": LiveGroups,
    "counted_join": CountedJoin,
    "lookup": Lookup,
    "spread": Spread,
    "copies": Copies,
    "within": Within,
    "period": Period,
    "union": Union,
    "result": Result,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_LAST: deque[tuple[tuple[bytes, ...], LogicalPlan]] = deque(maxlen=4)  # the nodes' plain values as bytes, and the plan
_NO_REFERENCES = 2  # the version of marshal's format in which equal values have equal bytes


def plan_to_plain(plan: LogicalPlan) -> dict[str, Any]:
    """`{"nodes": [{"kind": ..., and the node's fields}, ...]}` with strings, numbers, lists and None as values."""
    nodes = [{"kind": _NAMES[type(node)], **to_plain(node)} for node in plan.nodes]
    if (packed := _packed(nodes)) is not None:
        _LAST.appendleft((packed, plan))
    return {"nodes": nodes}


def plan_from_plain(plain: dict[str, Any], *, keeps: bool = True) -> LogicalPlan:
    """The plan of which `plan_to_plain` made this. UserError names the node and the key of what is wrong. keeps: it may
    be asked for again.

    Every role asks for the run's plan, and a change of queries for one that has nearly the same nodes: the nodes of the last
    plans are kept.
    """
    if not isinstance(plain, dict) or plain.keys() != {"nodes"} or not isinstance(plain["nodes"], (list, tuple)):
        raise UserError(f"expected a mapping with a list of nodes, got {shown(plain)}", subject="plan")
    packed = _packed(plain["nodes"])
    if packed is None:  # `_node` says what is wrong
        return LogicalPlan(tuple(_node(node, index) for index, node in enumerate(plain["nodes"])))
    known: dict[bytes, Node] = {}
    for before, plan in tuple(_LAST):  # other threads may add to it
        if before == packed:
            return plan
        known.update(zip(before, plan.nodes, strict=True))
    nodes = (known[item] if item in known else _node(plain["nodes"][i], i) for i, item in enumerate(packed))
    plan = LogicalPlan(tuple(nodes))
    if keeps:
        _LAST.appendleft((packed, plan))
    return plan


def _packed(nodes: Sequence[Any]) -> tuple[bytes, ...] | None:
    """Of plain values; None for anything else."""
    try:
        return tuple(marshal.dumps(node, _NO_REFERENCES) for node in nodes)
    except ValueError:
        return None


def _node(plain: object, index: int) -> Node:
    where = f"plan: node {index} (counting from 0)"
    if not isinstance(plain, dict):
        raise UserError(f"expected a mapping, got {shown(plain)}", subject=where)
    fields = dict(plain)
    if isinstance(fields.get("name"), str):
        where = f"plan: {word(fields['name'])}"
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, 1) if isinstance(kind, str) else []
        remedy = f"did you mean {near[0]}?" if near else f"one of: {', '.join(_KINDS)}"
        raise UserError(f"{shown(kind)} is no kind of node", subject=f"{where}.kind", remedy=remedy)
    return value_from_plain(_KINDS[kind], fields, where)

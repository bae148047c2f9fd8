"""Neighbouring stages that partition alike: rows of the one need no exchange on their way to the other.

What: `aligned(stages)`: the same stages, with edges that route rows by the keys of an earlier stage.
Why: after a join on one column rows may be grouped by that and another where they are, if they are routed by the first alone;
with equal owners of partition-groups on the same ranks, no row leaves its rank.
Stays out: ranks (`plan.subclusters`), hashes (`cluster.exchange`).

Two stages partition alike when the columns by which rows come to the first one, renamed through the projections between, are a
non-empty subset of the second one's key. Equal keys of the second have equal values there, so they still meet at one instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swjoin.core.batch import LEFT
from swjoin.core.errors import UserError
from swjoin.plan.logical import Project, Schema, UnionInput, join_columns, key_family
from swjoin.plan.stages import Edge, Stage, StagePlan, Step

_FAMILIES = ("integer", "string")  # whose hashes are those of the values, at every kind of stage


def aligned(stages: StagePlan) -> StagePlan:
    """With `Edge.origin` and the key of the edges into stages that partition as one before them does."""
    edges = list(stages.edges)
    for stage in stages.stages:
        mine = [edge for edge in edges if edge.receiver == stage]
        for edge in mine:
            alone = sum(other.port == edge.port for other in mine) == 1
            routes = _routes(edge, edges) if alone and not stage.gathers else None
            if routes is not None:
                assert isinstance(edge.sender, Stage), "sources have no keys"
                first = next(other for other in edges if other.receiver == edge.sender)
                origin = edge.sender.id if first.origin is None else first.origin
                for other in mine:
                    edges[other.id] = replace(other, key=routes[other.port], origin=origin)
                break
    return replace(stages, edges=tuple(edges))


def _routes(edge: Edge, edges: Sequence[Edge]) -> tuple[tuple[str, ...], ...] | None:
    """By port of an edge's receiver, the columns that are those by which rows came to its sender; None if there are none."""
    sender, receiver = edge.sender, edge.receiver
    if not isinstance(sender, Stage) or not isinstance(receiver, Stage) or sender.gathers:
        return None
    came = next(other.key for other in edges if other.receiver == sender and other.port == LEFT)
    names = _after(edge.steps, _shown(sender, came))
    keys = receiver.keys
    if not names or not set(names) <= set(keys[edge.port]):
        return None
    places = [keys[edge.port].index(name) for name in names]
    routes = tuple(tuple(key[i] for i in places) if key else () for key in keys)
    same = _families(sender.schemas[LEFT], came)
    alike = all(_families(schema, route) == same for schema, route in zip(receiver.schemas, routes, strict=True) if route)
    return routes if alike and all(family in _FAMILIES for family in same) else None


def _shown(stage: Stage, columns: Sequence[str]) -> list[str]:
    """The names that columns of a stage's left port have in its rows; empty if one is not among them."""
    if not stage.joins:
        return list(columns) if set(columns) <= set(stage.schema.types) else []
    shown = {c.origin: c.name for c in join_columns(stage.join, *stage.schemas) if c.side == LEFT}
    return [shown[name] for name in columns] if set(columns) <= set(shown) else []


def _after(steps: Sequence[Step], names: list[str]) -> list[str]:
    """The names of columns behind the steps of an edge; empty if one is not passed on as it is."""
    for step in steps:
        if isinstance(step, UnionInput):
            return []
        if isinstance(step, Project):
            renamed = {text.strip('"') if text.startswith('"') else text: name for name, text in reversed(step.columns)}
            names = [renamed[name] for name in names] if set(names) <= set(renamed) else []
    return names


def _families(schema: Schema, names: Sequence[str]) -> list[str]:
    """Of the types of columns; a type that cannot be a join's key has none."""
    found = []
    for name in names:
        try:
            found.append(key_family(name, schema.types[name]))
        except UserError:
            found.append("")
    return found

"""Families: results of one stage that are the same, or differ in windows or in limits alone, which nest.

What: `Family`, `families_of(plan, stages)`; `Ranking`, the step of its rows that says which of the results have a row.
Why: a row of the narrowest windows is in the results of all wider ones, too, so one rank says in which: k queries cost a search
per row and k sums at the end of an epoch (CQELS Cloud, router of the shared multiple join), not k conditions per row. The same
holds for conditions that are limits of the same columns, as `age <= 3` and `age <= 5` are.
Stays out: sharing the join (`plan.sharing`), sending the rows (`cluster.slave.stage`), sums (`cluster.collector`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from swjoin.core.batch import I64, TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.row_codec import storage
from swjoin.plan.bound import bound
from swjoin.plan.logical import Filter, LogicalPlan, Project, Result, Within
from swjoin.plan.lookups import Lookup
from swjoin.plan.stages import Edge, Stage, StageId, StagePlan, Step

if TYPE_CHECKING:
    from swjoin.expressions.comparison_index import Limits

_TEXT, _LIMIT = re.compile(r"'[^']*'"), re.compile("[<>]|BETWEEN", re.IGNORECASE)
_MOST_CHAINS = 16  # in which limits of several columns are tried
_RowWise: TypeAlias = Filter | Project | Lookup


@dataclass(frozen=True, eq=False)
class Ranking:
    """From what a row's rank follows: columns with limits, or without them the key, a join's right time - left time.

    least, most: by result, bounds of these values, both inclusive, from the narrowest to the widest; int64 (results, values).
    """

    limits: Limits | None
    least: I64
    most: I64

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.limits is None else tuple(column.name for column in self.limits.columns)

    def ranks(self, values: I64) -> I64:
        """values: int64 (n, values). The narrowest bounds that each row is within, (n,); their number: it is within none."""
        count = len(self.least)
        found = np.zeros(len(values), np.int64)
        for i in range(values.shape[1]):
            beyond = count - np.searchsorted(self.least[::-1, i], values[:, i], side="right")
            found = np.maximum(found, np.maximum(beyond, np.searchsorted(self.most[:, i], values[:, i], side="left")))
        return found

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """The rows that are in some result; keys become ranks."""
        if self.limits is None:
            ranks = self.ranks(rows.key[:, None])
        else:
            assert rows.columns is not None, "limits of columns"
            values, valid = self.limits.values(rows.columns.batch)
            ranks = np.where(valid, self.ranks(values), len(self.least))
        within, rows = np.flatnonzero(ranks < len(self.least)), replace(rows, key=ranks)
        return rows if len(within) == len(rows) else rows.take(within)


@dataclass(frozen=True, eq=False)
class Family:
    """edges: to the results, from the narrowest to the widest. steps: that the rows of all pass; one is a `Ranking`, and keys
    are ranks behind it."""

    edges: tuple[Edge, ...]
    steps: tuple[Step | Ranking, ...]

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def ranking(self) -> Ranking:
        return next(step for step in self.steps if isinstance(step, Ranking))


class _Member(NamedTuple):
    """A result. box: bounds of the values by which its rows differ from others'. before, after: steps around them."""

    edge: Edge
    limits: Limits | None
    box: tuple[tuple[int, int], ...]
    before: tuple[Step, ...]
    after: tuple[Step, ...]


def families_of(plan: LogicalPlan, stages: StagePlan) -> tuple[Family, ...]:
    """Of two results or more each; a result is in one at most."""
    share_windows = {edge.sender.id for edge in stages.edges if isinstance(edge.sender, Stage) and _windows(edge) is not None}
    alike: dict[object, list[_Member]] = {}
    for edge in stages.edges:
        if isinstance(edge.receiver, Result) and edge.receiver.named and isinstance(edge.sender, Stage):
            member = _member(plan, edge, share_windows)
            steps = _contents(member.before), _contents(member.after)
            if None not in steps:  # others, as functions of batches, may look at more than a row
                columns = None if member.limits is None else member.limits.columns
                fixed = None if columns is None else tuple((i, of) for i, of in enumerate(member.box) if of[0] == of[1])
                key = (edge.sender.id, edge.receiver.of_values, edge.receiver.order, columns, fixed, steps)
                alike.setdefault(key, []).append(member)
    return tuple(family for members in alike.values() for family in _nested(members))


def _windows(edge: Edge) -> Within | None:
    return first if edge.steps and isinstance(first := edge.steps[0], Within) else None


def _member(plan: LogicalPlan, edge: Edge, share_windows: set[StageId]) -> _Member:
    """A result, with the windows that it has of a shared join, or its last limits; those that have neither have all rows."""
    assert isinstance(edge.sender, Stage), "rows of a stage"
    all_rows = (BEGIN_OF_TIME_US, END_OF_TIME_US)
    if edge.sender.id in share_windows:
        windows = _windows(edge)
        bounds = all_rows if windows is None else (windows.lower_us, windows.upper_us)
        return _Member(edge, None, (bounds,), (), edge.steps if windows is None else edge.steps[1:])
    for i in range(len(edge.steps) - 1, -1, -1):
        step = edge.steps[i]
        if isinstance(step, Filter) and (limits := _limits(plan, step)) is not None:
            box = tuple(zip(limits.least, limits.most, strict=True))
            return _Member(edge, limits, box, edge.steps[:i], edge.steps[i + 1 :])
    return _Member(edge, None, (all_rows,), (), edge.steps)


def _limits(plan: LogicalPlan, step: Filter) -> Limits | None:
    from swjoin.expressions.comparison_index import limits_of

    if _LIMIT.search(_TEXT.sub("", step.condition)) is None:  # where there are thousands, most compare with one value each
        return None
    return limits_of(bound(step.condition, plan.schema(step.input).columns, step.name, storage))


def _contents(steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """What steps do to a row; None where one may look at more than a row."""
    found = tuple(replace(step, name="", input="") for step in steps if isinstance(step, _RowWise))
    return found if len(found) == len(steps) else None


def _nested(members: list[_Member]) -> Iterator[Family]:
    for chain in _chains(members):
        if len(chain) > 1:
            chain.reverse()
            bounds = np.array([of.box for of in chain], np.int64)
            ranking = Ranking(chain[0].limits, bounds[:, :, 0].copy(), bounds[:, :, 1].copy())
            yield Family(tuple(of.edge for of in chain), (*chain[0].before, ranking, *chain[0].after))


def _chains(members: list[_Member]) -> list[list[_Member]]:
    """Of members each within the one before it. Of one value the fewest chains: in the order of the least values each goes to
    the chain whose last one has the lowest most value that is not below its own."""
    chains: list[list[_Member]] = []
    if len(members[0].box) > 1:
        for member in sorted(members, key=lambda of: sum(low - high for low, high in of.box)):
            chain = next((chain for chain in chains[-_MOST_CHAINS:] if _is_within(member, chain[-1])), None)
            if chain is None:
                chains.append([member])
            else:
                chain.append(member)
        return chains
    ends: list[int] = []  # most values of the last ones, ascending, of the chains
    for member in sorted(members, key=lambda of: (of.box[0][0], -of.box[0][1])):
        most = member.box[0][1]
        at = bisect_left(ends, most)
        if at == len(ends):
            ends.append(most)
            chains.append([member])
        else:
            ends[at] = most
            chains[at].append(member)
    return chains


def _is_within(member: _Member, other: _Member) -> bool:
    return all(low <= mine and of <= high for (mine, of), (low, high) in zip(member.box, other.box, strict=True))

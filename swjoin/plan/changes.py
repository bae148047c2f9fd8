"""Queries that are added to a run, or dropped from it, while it goes on.

What: `with_queries(plan, queries, from_us)`, `without_queries(plan, names, until_us)`; `periods(plan)`, when each query began
and ended; `latest_change_us(plan)`.
Why: an added query is one over the rows from a time on, and a dropped one ends at a time, so each has an answer that does not
depend on the other queries, on epochs or on the moment (CQELS Cloud, section 3; its "future work" is that of the join
cluster's paper, too). Stages that are there stay as they are, with their state.
Stays out: when that is (`runtime.query_changes`), checkpoints (`checkpoint.changed_plan`), queries' text (`frontends`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from swjoin.core.errors import UserError
from swjoin.core.ids import LAST_TIME_US
from swjoin.plan.kept_rows import Keyed
from swjoin.plan.logical import LogicalPlan, Node, Period, Result, Source, nodes_below
from swjoin.plan.sharing import check_query_name, free_name, reading, shared

AFTER_ALL_US: Final = LAST_TIME_US + 1  # later than any row


def with_queries(plan: LogicalPlan, queries: Mapping[str, LogicalPlan], from_us: int) -> LogicalPlan:
    """The plan with these queries, each alone with one result, over rows with times from `from_us` on. Among themselves they
    share what is equal. UserError for the name of another query or of an input, and for an input that the plan does not
    read."""
    known = {node.name: node for node in plan.nodes}
    if not queries:
        return plan
    for name, query in queries.items():
        check_query_name(name, "queries", [node.name for node in plan.nodes if isinstance(node, Result)])
        for node in query.nodes:
            if isinstance(node, Source) and known.get(node.name) != node:
                problem = f"it reads {node.name}, which no query of the run reads"
                raise UserError(problem, subject=f"query {name}", remedy="start a run of it")
        if isinstance(known.get(name), Source):
            raise UserError("an input has this name, too", subject=f"query {name}", remedy="name the query otherwise")
    numbers, taken, names = Counter[str](), set(known) | set(queries), dict[str, str]()
    made = list[Node]()
    for node in shared(queries).ordered:
        if isinstance(node, Source):
            names[node.name] = node.name
            if node.time is not None:
                period = Period(free_name(f"{node.name} from {len(made)}", taken, numbers), node.name, from_us, ends=False)
                names[node.name] = period.name
                taken.add(period.name)
                made.append(period)
            continue
        name = node.name if isinstance(node, Result) else free_name(node.name, taken, numbers)
        taken.add(name)
        made.append(replace(reading(node, names), name=name))
        names[node.name] = name
    return LogicalPlan((*plan.nodes, *made))


def without_queries(
    plan: LogicalPlan, names: Collection[str], until_us: int, ended_sources: Collection[str] = ()
) -> LogicalPlan:
    """The plan in which these queries have the rows with times before `until_us` alone. Windows over sources that have ended
    have come out, also those that would end later, so a query with such windows keeps all rows. UserError for a query that
    there is not, or that has been dropped before."""
    numbers, taken, ended = Counter[str](), {node.name for node in plan.nodes}, periods(plan)
    for number, name in enumerate(names):
        if name in list(names)[:number]:
            raise UserError(f"query {name} is given twice", remedy="name each once")
        if name not in ended:
            raise UserError(f"no query is named {name[:100]!r}", remedy=f"queries are {', '.join(ended)[:300] or 'none'}")
        if ended[name][1] is not None:
            raise UserError(f"query {name} was dropped before", remedy="leave it out")
    if not names:
        return plan

    def changed() -> Iterator[Node]:
        for node in plan.nodes:
            if isinstance(node, Result) and node.name in names:
                at_us = AFTER_ALL_US if _has_ended_windows(plan, node.name, ended_sources) else until_us
                period = Period(free_name(f"{node.name} until 0", taken, numbers), node.input, at_us, ends=True)
                taken.add(period.name)
                yield period
                yield replace(node, input=period.name)
            else:
                yield node

    return LogicalPlan(tuple(changed()))


def latest_change_us(plan: LogicalPlan) -> int | None:
    """The latest time at which queries were added or dropped: what changes next does so at this time, or later."""
    times_us = [node.at_us for node in plan.nodes if isinstance(node, Period) and node.at_us != AFTER_ALL_US]
    return max(times_us, default=None)


def _has_ended_windows(plan: LogicalPlan, query: str, ended_sources: Collection[str]) -> bool:
    nodes = {node.name: node for node in plan.nodes}
    for name in nodes_below(nodes, query):
        if isinstance(nodes[name], Keyed):
            below = (nodes[other] for other in nodes_below(nodes, name))
            streams = {node.name for node in below if isinstance(node, Source) and node.time is not None}
            if streams.issubset(ended_sources):
                return True
    return False


def periods(plan: LogicalPlan) -> dict[str, tuple[int | None, int | None]]:
    """By named query, the time from which on it has rows, and the one before which; None: from its beginning, to its end."""
    nodes = {node.name: node for node in plan.nodes}
    found = {}
    for result in plan.nodes:
        if isinstance(result, Result) and result.named:
            below = [node for name in nodes_below(nodes, result.name) if isinstance(node := nodes[name], Period)]
            begins, ends = ([node.at_us for node in below if node.ends == end] for end in (False, True))
            found[result.name] = begins[0] if begins else None, ends[0] if ends else None
    return found

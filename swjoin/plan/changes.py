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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.plan.kept_rows import Keyed
from swjoin.plan.logical import Copies, IntervalJoin, LogicalPlan, Node, Period, Result, Source, Spread, nodes_below
from swjoin.plan.sharing import check_query_name, free_name, reading, shared
from swjoin.plan.watermarks import watermark_out

_TRIES = 64  # at most so many windows after each other
AFTER_ALL_US: Final = END_OF_TIME_US  # later than any row, also those of windows that the end alone has ended


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

    return _with_late_rows_left_out(LogicalPlan(tuple(changed())))


def _with_late_rows_left_out(plan: LogicalPlan) -> LogicalPlan:
    """The plan in which stages that dropped queries alone need take no rows of sources that are too late for these queries, so
    that they cost nothing once their windows are empty."""
    nodes = {node.name: node for node in plan.nodes}
    ended, going_on = dict[str, int](), set[str]()
    for result in plan.nodes:
        if isinstance(result, Result):
            until_us = _until_us(nodes, result)
            if until_us is None or until_us == AFTER_ALL_US:
                going_on |= nodes_below(nodes, result.name)
            else:
                ended[result.name] = until_us
    sources = {node.name for node in plan.nodes if isinstance(node, Source)}
    stays = going_on.union(sources, *(_unkept(nodes, name) for name in ended))
    needed_us = dict[str, int]()  # by node of dropped queries alone: rows of sources from this time on change no result
    order = {node.name: i for i, node in enumerate(plan.ordered)}
    for name, until_us in ended.items():
        needed = nodes_below(nodes, name)
        if needed <= stays:
            continue
        limit_us = _limit_us([nodes[below] for below in sorted(needed, key=order.__getitem__)], until_us)
        for below in needed - stays:
            needed_us[below] = max(needed_us.get(below, limit_us), limit_us)
    numbers, taken, made = Counter[str](), set(nodes), dict[tuple[str, int], Period]()

    def changed() -> Iterator[Node]:
        for node in plan.nodes:
            limit_us, names = needed_us.get(node.name, AFTER_ALL_US), {name: name for name in node.inputs}
            limited = limit_us == AFTER_ALL_US or (isinstance(node, Period) and node.ends)
            for name in () if limited else node.inputs:
                if name not in needed_us and _of_sources(plan, nodes[name]):
                    if (name, limit_us) not in made:
                        made[name, limit_us] = Period(free_name(f"{name} until 0", taken, numbers), name, limit_us, ends=True)
                        taken.add(made[name, limit_us].name)
                        yield made[name, limit_us]
                    names[name] = made[name, limit_us].name
            yield reading(node, names) if names else node

    return LogicalPlan(tuple(changed()))


def _of_sources(plan: LogicalPlan, node: Node) -> bool:
    """Whether a node's rows are those of streams, whatever filters or projections have made of them. Not what only a join
    reads."""
    if isinstance(node, Source):
        return node.time is not None
    stateless = not isinstance(node, IntervalJoin | Keyed | Spread | Copies) and plan.schema(node.name).time is not None
    return stateless and any(_of_sources(plan, plan.node(name)) for name in node.inputs)


def _until_us(nodes: Mapping[str, Node], result: Result) -> int | None:
    """When a query ends; None: with its inputs."""
    last = nodes[result.input]
    return last.at_us if result.named and isinstance(last, Period) and last.ends else None


def _unkept(nodes: Mapping[str, Node], result: str) -> set[str]:
    """The nodes of a result behind the last ones that have state: their rows are gathered, by whoever needs them."""
    found, waiting = set[str](), [result]
    while waiting:
        name = waiting.pop()
        if not isinstance(nodes[name], IntervalJoin | Keyed):
            found.add(name)
            waiting += nodes[name].inputs
    return found


def _limit_us(nodes: Sequence[Node], until_us: int) -> int:
    """A time from which on no row of a source changes the rows of a result before `until_us`: with this watermark of all
    sources, that of the result has reached it. AFTER_ALL_US: there is none. nodes: of the result, each after its inputs."""
    streams = [node for node in nodes if not (isinstance(node, Source) and node.time is None)]
    result = nodes[-1].name
    limit_us = until_us
    for _ in range(_TRIES):
        found = dict[str, int]()
        for node in streams:
            inputs = [found[name] for name in node.inputs if name in found]
            found[node.name] = watermark_out(node, inputs or [limit_us])
        if found[result] >= until_us:
            return limit_us
        if found[result] == BEGIN_OF_TIME_US:
            break
        limit_us += until_us - found[result]
    return AFTER_ALL_US


def latest_change_us(plan: LogicalPlan) -> int | None:
    """The latest time at which queries were added or dropped: what changes next does so at this time, or later."""
    times_us = (time_us for period in periods(plan).values() for time_us in period if time_us is not None)
    return max((time_us for time_us in times_us if time_us != AFTER_ALL_US), default=None)


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
            begins = [node.at_us for node in below if not node.ends]
            found[result.name] = begins[0] if begins else None, _until_us(nodes, result)
    return found

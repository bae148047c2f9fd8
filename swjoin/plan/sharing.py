"""Many queries as one plan: what is equal in them is read, joined and aggregated once.

What: `shared(plans) -> LogicalPlan`, with a result for every query; `alone(plan, result)`, the plan of one of them;
`check_query_name`, `check_query_names`.
Why: a run of many queries costs what is different in them. A node that two queries have has the same rows, times and ids in
both, so a query's count and digest are those of a run of its own.
Joins that are equal but for their windows are one, too (CQELS Cloud, shared multiple join).
Stays out: stages (`plan.stages`); queries' text (`frontends`); rows of many windows at once (`cluster.slave.stage`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from swjoin.core.errors import UserError
from swjoin.plan.logical import (
    QUERY_NAME,
    IntervalJoin,
    LogicalPlan,
    Node,
    Result,
    Source,
    Union,
    Within,
    can_share_windows,
    nodes_below,
)
from swjoin.plan.lookups import Lookup

_NUMBER = re.compile(r" \d+$")


def check_query_name(name: object, where: str, others: Iterable[str]) -> None:
    """UserError, which begins with where, unless this can be the name of a query, and so of a folder, beside the others."""
    if not isinstance(name, str) or not QUERY_NAME.fullmatch(name):
        problem = f"{where}: {str(name)[:60]!r} is no name of a query"
        raise UserError(problem, remedy="write letters, digits, _, - and dots, 100 at most, and no dot or - in front")
    if name.casefold() in map(str.casefold, others):
        raise UserError(f"{where}: {name} is the name of another query", remedy="name each once, in upper or lower case")


def check_query_names(names: Iterable[tuple[object, str]]) -> None:
    """As `check_query_name`, of (name, where) of each, beside those before it."""
    known: dict[str, str] = {}
    for name, where in names:
        check_query_name(name, where, ())
        folded = str(name).casefold()
        check_query_name(name, where, [known[folded]] if folded in known else ())
        known[folded] = str(name)


def shared(plans: Mapping[str, LogicalPlan]) -> LogicalPlan:
    """plans: by the names of their queries, each with one result, which has its query's name in the plan; sources that have the
    same name are the same. UserError for a query with the name of a source. The results are named."""
    sources = {node.name for plan in plans.values() for node in plan.nodes if isinstance(node, Source)}
    for name in plans:
        if name in sources:
            raise UserError("an input has this name, too", subject=f"query {name}", remedy="name the query otherwise")
    nodes: dict[Node, str] = {}  # by content
    taken, numbers = sources | set(plans), Counter[str]()
    results = []
    for query, plan in plans.items():
        names: dict[str, str] = {}
        for node in plan.ordered:
            if isinstance(node, Result):
                results.append(replace(node, name=query, input=names[node.input], named=True))
                continue
            if isinstance(node, Source):
                names[node.name] = nodes.setdefault(node, node.name)
                continue
            content = replace(reading(node, names), name="")
            if content not in nodes:
                nodes[content] = free_name(node.name, taken, numbers)
                taken.add(nodes[content])
            names[node.name] = nodes[content]
    named = [replace(node, name=name) for node, name in nodes.items()]
    return LogicalPlan((*_with_common_windows(named), *results))


def _with_common_windows(nodes: Sequence[Node]) -> Iterator[Node]:
    """With one join, that of the longest windows, for all that are equal but for windows that nest. Windows that cross stay
    apart: a join of both would have pairs that nobody wants."""
    alike: dict[Node, list[IntervalJoin]] = {}
    for node in nodes:
        if isinstance(node, IntervalJoin) and can_share_windows(node):
            plain = replace(node.semantics, lower_us=0, upper_us=0, exclusive=())
            alike.setdefault(replace(node, name="", query=plain), []).append(node)
    narrower: dict[str, Within] = {}
    for joins in alike.values():
        chains: list[list[IntervalJoin]] = []  # of which each is within the one before it
        for join in sorted(joins, key=_width_us, reverse=True):
            chain = next((chain for chain in chains if _is_within(join, chain[-1])), None)
            if chain is None:
                chains.append([join])
                continue
            bounds = join.semantics.bounds
            narrower[join.name] = Within(join.name, chain[0].name, bounds.lower_us, bounds.upper_us)
            chain.append(join)
    return (narrower.get(node.name, node) for node in nodes)


def _width_us(join: IntervalJoin) -> int:
    return join.semantics.bounds.upper_us - join.semantics.bounds.lower_us


def _is_within(join: IntervalJoin, other: IntervalJoin) -> bool:
    mine, theirs = join.semantics.bounds, other.semantics.bounds
    return theirs.lower_us <= mine.lower_us and mine.upper_us <= theirs.upper_us


def alone(plan: LogicalPlan, result: str) -> LogicalPlan:
    """The nodes that this result needs, in their order, with the windows of its own joins."""
    found = {node.name: node for node in plan.nodes}
    for node in plan.nodes:
        if isinstance(node, Within):
            join = plan.node(node.input)
            assert isinstance(join, IntervalJoin), "windows of no join"
            query = replace(join.semantics, lower_us=node.lower_us, upper_us=node.upper_us, exclusive=())
            found[node.name] = replace(join, name=node.name, query=query)
    needed = nodes_below(found, result)
    return LogicalPlan(tuple(found[node.name] for node in plan.nodes if node.name in needed))


def reading(node: Node, names: Mapping[str, str]) -> Node:
    """The node over inputs of these names."""
    if isinstance(node, IntervalJoin):
        return replace(node, left=names[node.left], right=names[node.right])
    if isinstance(node, Union):
        return replace(node, inputs=tuple(names[name] for name in node.inputs))
    if isinstance(node, Lookup):
        return replace(node, input=names[node.input], table=names[node.table])
    assert not isinstance(node, Source), "a source reads nothing"
    return replace(node, input=names[node.input])


def free_name(name: str, taken: set[str], numbers: Counter[str]) -> str:
    """This name, or with another number at its end. numbers: the last one, by what is before it."""
    base = _NUMBER.sub("", name)
    while name in taken:
        numbers[base] += 1
        name = f"{base} {numbers[base]}"
    return name

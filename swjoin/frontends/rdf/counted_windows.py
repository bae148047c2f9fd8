"""Plans of RDF queries over inputs of a run in which windows of TRIPLES are joined.

What: `CountedPart`, the mappings of one pattern as such a join takes them; `with_counted(rest, table, parts)`, a plan with the
rows of the join in the place of a source.
Why: which mappings are alive at once follows from one order of all of a query's, which SQL cannot say; what is done with the
rows of the join, such as lookups in static graphs and filters, is SQL as elsewhere.
Stays out: patterns (`frontends.rdf.live_planner`), the join (`plan.counted_joins`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from swjoin.core.lives import Window
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.logical import LogicalPlan, Node, Result, Source, Union
from swjoin.plan.sharing import free_name, reading, shared

PART = "part"  # the column of the number of a row's part
FOR_EVER_US = 1 << 59  # longer than between any two times


class CountedPart(NamedTuple):
    """plan: of the rows of all columns that any part has; those of other parts are null. columns: its own. stream: its number
    in the order of the query. window: of TRIPLES, RANGE or ALL."""

    plan: LogicalPlan
    columns: tuple[str, ...]
    stream: int
    window: Window


def with_counted(rest: LogicalPlan, table: str, parts: Sequence[CountedPart]) -> LogicalPlan:
    """rest: a plan over a source of this name, which the rows of the join replace."""
    sources = {node.name for plan in (rest, *(part.plan for part in parts)) for node in plan.nodes if isinstance(node, Source)}
    taken, numbers = sources | {node.name for node in rest.nodes if isinstance(node, Result)}, Counter[str]()

    def free(name: str) -> str:
        found = free_name(name, taken, numbers)
        taken.add(found)
        return found

    common = shared({free(f"part_{number}"): part.plan for number, part in enumerate(parts)})
    made: list[Node] = [node for node in common.nodes if not isinstance(node, Result)]
    taken |= {node.name for node in made}
    union = Union(free("union 1"), tuple(node.input for node in common.nodes if isinstance(node, Result)), keeps_ids=True)
    join = CountedJoin(
        free("counted join 1"),
        union.name,
        PART,
        tuple(part.columns for part in parts),
        tuple(part.stream for part in parts),
        tuple(part.window.count for part in parts),
        tuple(FOR_EVER_US if part.window.kind == "all" else part.window.width_us for part in parts),
    )
    made += [union, join]
    names = {table: join.name}
    for node in rest.ordered:
        if isinstance(node, Source):
            if node.name != table:
                names[node.name] = node.name
                made += [] if node in made else [node]
            continue
        names[node.name] = node.name if isinstance(node, Result) else free(node.name)
        made.append(replace(reading(node, names), name=names[node.name]))
    return LogicalPlan(tuple(made))

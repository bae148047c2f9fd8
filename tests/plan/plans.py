"""Plans that tests share: builders for short plans, and random plans with random rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from swjoin.config.sections import QueryConfig
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.kept_columns import OrderKey
from swjoin.core.time_windows import TimeWindows
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.kept_rows import AlignedWindows, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import Column, IntervalJoin, LogicalPlan, Node, OutputTime, Project, Result, Schema, Source, Union
from tests.tools.plan_expressions import born_at, dead_at
from tests.tools.plan_oracle import Row

COLUMNS = (Column("k", "int64"), Column("v", "int64"), Column("ts", "timestamp[us]"))
OUTPUT_TIMES: tuple[OutputTime, ...] = ("max", "min", "left")


def source(name: str, columns: tuple[Column, ...] = COLUMNS) -> Source:
    return Source(name, columns, "ts")


def join(
    name: str, left: str, right: str, within: tuple[int, int] = (-2, 2), how: How = "inner", time: OutputTime = "max"
) -> IntervalJoin:
    """A join on the columns `k`, which every node of these plans has."""
    return IntervalJoin(name, left, right, ("k",), ("k",), QueryConfig(*within, how=how), time)


PLANS: dict[str, tuple[Node, ...]] = {
    "one join": (source("a"), source("b"), join("j", "a", "b"), Result("out", "j")),
    "two joins in a row": (
        *(source(name) for name in "abc"),
        join("j", "a", "b", (-1, 2)),
        join("i", "j", "c", (-3, 0)),
        Result("out", "i"),
    ),
    "union then join": (
        *(source(name) for name in "abc"),
        Union("u", ("a", "b")),
        join("j", "u", "c"),
        Result("out", "j"),
    ),
    "diamond": (
        *(source(name) for name in "abc"),
        join("j", "a", "b"),
        join("i", "a", "c", how="left"),
        join("top", "j", "i"),
        Result("out", "top"),
    ),
    "stage that feeds two": (
        *(source(name) for name in "abc"),
        join("j", "a", "b"),
        join("i", "j", "c", how="semi"),
        join("top", "j", "i"),
        Result("out", "top"),
        Result("first", "j"),
    ),
    "self-join": (source("a"), join("j", "a", "a"), Result("out", "j")),
    "unions of unions": (
        *(source(name) for name in "abc"),
        Union("u", ("a", "b", "a")),
        Union("w", ("c", "u")),
        Result("out", "w"),
    ),
}


def plan(name: str) -> LogicalPlan:
    return LogicalPlan(PLANS[name])


@st.composite
def random_plans(draw: Callable[..., Any], within: st.SearchStrategy[tuple[int, int]] | None = None) -> LogicalPlan:
    """Plans of 1 to 3 sources and 1 to 3 joins, unions, aggregates, top-n, sessions, windows of tuples or aligned to data,
    views, and groups of rows that are alive; all that no node reads is a result."""
    bounds = within or st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(lambda b: (min(b), max(b)))
    nodes: list[Node] = [source(f"s{i}") for i in range(draw(st.integers(1, 3)))]
    schemas: dict[str, Schema] = {node.name: Schema(COLUMNS, "ts") for node in nodes}
    for i in range(draw(st.integers(1, 3))):
        name, names = f"n{i}", sorted(schemas)
        left = draw(st.sampled_from(names))
        choice = draw(st.integers(0, 13))
        if choice == 5:
            time_of = draw(st.sampled_from(("last", "end")))
            node: Node = Sessions(name, left, ("k",), draw(st.integers(1, 4)), f"start{i}", f"end{i}", time_of)
        elif choice == 10:
            size, slide, partial = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
            node = TupleWindows(name, left, ("k",), size, slide, partial, f"start{i}", f"end{i}", f"w{i}", f"r{i}")
        elif choice == 11:
            size, slide, time_of = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from(("end", "start")))
            node = AlignedWindows(name, left, ("k",), size, slide, f"start{i}", f"end{i}", time_of)
        elif choice == 12 and left.startswith("s"):
            node = Views(name, left, ("k",), draw(st.integers(1, 3)), f"as_of{i}")
        elif choice == 13 and left.startswith("s"):
            unit, later, life = draw(st.integers(1, 3)), draw(st.integers(0, 2)), draw(st.integers(0, 4))
            dies = draw(st.sampled_from((born_at, dead_at)))
            lives = ("born", born_at("ts", later, unit)), ("dead", dies("ts", later + life, unit))
            nodes.append(Project(f"p{i}", left, (*((c.name, f'"{c.name}"') for c in COLUMNS), *lives)))
            longest = later + life + unit if dies is born_at and draw(st.booleans()) else 0
            mode = draw(st.sampled_from(("changes", "boundaries", "births")))
            calls = () if mode == "births" else (AggregateCall("v", "count"),)
            node = LiveGroups(name, f"p{i}", ("k",), "born", "dead", calls, f"as_of{i}", unit, mode, longest)
        elif choice == 6:
            windows = TimeWindows(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 2)))
            time_of, most = draw(st.sampled_from(("last", "start", "end"))), draw(st.integers(1, 2))
            order = (OrderKey(draw(st.sampled_from(list(schemas[left].types))), draw(st.booleans()), draw(st.booleans())),)
            names_of = f"rank{i}", f"start{i}", f"end{i}"
            node = Ranked(name, left, ("k",), order, most, windows, *names_of, time_of)
        elif choice == 1:
            windows = TimeWindows(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 2)))
            time_of, running = draw(st.sampled_from(("last", "start", "end"))), windows.size_us == windows.slide_us
            names_of = f"start{i}", f"end{i}"
            running = running and draw(st.booleans())
            node = Aggregate(name, left, ("k",), windows, (AggregateCall("v", "count"),), *names_of, time_of, running=running)
        elif choice == 0:
            alike = [other for other in names if schemas[other] == schemas[left]]
            node = Union(name, (left, draw(st.sampled_from(alike))))
        else:
            how, time = draw(st.sampled_from(sorted(JOIN_KINDS))), draw(st.sampled_from(OUTPUT_TIMES))
            node = join(name, left, draw(st.sampled_from(names)), draw(bounds), how, time)
        nodes.append(node)
        read = {input_name for n in nodes for input_name in n.inputs}
        results = [Result(f"r_{n.name}", n.name) for n in nodes if n.name not in read]
        schemas[name] = LogicalPlan((*nodes, *results)).schema(name)
    return LogicalPlan((*nodes, *results))


@st.composite
def random_rows(draw: Callable[..., Any], plan: LogicalPlan) -> dict[str, list[Row]]:
    """Up to 5 rows of each source, in an order of arrival that is no order of time."""
    found = {}
    for at, node in enumerate(n for n in plan.nodes if isinstance(n, Source)):
        times = draw(st.lists(st.integers(0, 8), max_size=5))
        keys = [draw(st.sampled_from([0, 0, 1, None])) for _ in times]
        found[node.name] = [Row(1 + i + 10 * at, ts, (k, i, ts)) for i, (ts, k) in enumerate(zip(times, keys, strict=True))]
    return found


def watermark_after(rows: list[Row], count: int) -> int:
    """The greatest watermark that a source can have after this many of its rows."""
    return min((row.ts for row in rows[count:]), default=END_OF_TIME_US)

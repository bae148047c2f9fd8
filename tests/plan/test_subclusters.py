"""Subclusters: which ranks play which stage by strategy, what this costs, and the stages of the strategy operator."""

from __future__ import annotations

import pytest

from swjoin.config.options import Strategy
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.core.time_windows import TimeWindows
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.logical import Column, Filter, IntervalJoin, LogicalPlan, Node, Project, Result, Source, Union
from swjoin.plan.stages import StagePlan, cut, describe_edge, describe_stage
from swjoin.plan.subclusters import Communication, Subclusters, estimated_work

COLUMNS = (Column("k", "int64"), Column("v", "int64"), Column("ts", "timestamp[us]"))
# The example of seed 004: map, filter, join, filter, aggregate, map
EXAMPLE = LogicalPlan(
    (
        Source("a", COLUMNS, "ts"),
        Source("b", COLUMNS, "ts"),
        Project("map", "a", (("k", "k"), ("v", "v + 1"), ("ts", "ts"))),
        Filter("filter", "map", "v > 3"),
        IntervalJoin("join", "filter", "b", ("k",), ("k",), QueryConfig(0, 10)),
        Filter("again", "join", "left_v < 9"),
        Aggregate(
            "count", "again", ("left_v",), TimeWindows(10, 10, 0), (AggregateCall("n", "count"),), "start", "end", "last"
        ),
        Project("last", "count", (("n", "n * 2"),)),
        Result("out", "last"),
    )
)


@pytest.mark.parametrize(
    ("strategy", "width", "gateways", "counts", "expected"),
    [
        ("query", 90, 90, (90, 90), (2, 16_200, 180)),  # every node has its part of the prefix
        ("operator", 90, 1, (15,) * 6, (5, 1_125, 15)),
        ("subquery", 60, 30, (30, 30), (2, 1_800, 30)),  # 30 gateways are the subcluster of the prefix
    ],
)
def test_the_numbers_of_the_paper(
    strategy: Strategy, width: int, gateways: int, counts: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    stages = cut(EXAMPLE, strategy)
    of = Subclusters.of(stages, width, strategy, (1,) * len(counts))
    assert of.counts == counts
    costs = Communication.of(stages, of, gateways, strategy)
    assert (costs.steps, costs.channels, costs.most_out) == expected
    assert costs.of_inputs == (30 if strategy == "operator" else 0)  # one gateway to the map, and to the join


@pytest.mark.parametrize("strategy", ["query", "subquery", "operator"])
@pytest.mark.parametrize("width", range(1, 10))
def test_every_slave_has_a_rank_and_a_stage(strategy: Strategy, width: int) -> None:
    stages = cut(EXAMPLE, strategy)
    of = Subclusters.of(stages, width, strategy)
    count = len(stages.stages)
    assert count == (6 if strategy == "operator" else 2)
    assert of.apart == (strategy != "query" and width >= count)
    assert sum(map(len, map(of.slaves_on, range(width)))) == of.slave_count == (width if of.apart else width * count)
    for rank in range(width):
        for slave in of.slaves_on(rank):
            assert of.places[slave] == rank
            assert slave in of.slaves_of(of.stage_of(slave))
            assert rank == of.ranks[of.stage_of(slave)][of.index_of(slave)]


def test_shares_of_the_ranks() -> None:
    stages = cut(EXAMPLE, "subquery")
    assert Subclusters.of(stages, 4, "subquery", (3, 1)).counts == (3, 1)
    assert Subclusters.of(stages, 3, "subquery", (3, 1)).counts == (2, 1)  # one has died
    assert Subclusters.of(stages, 6, "subquery").counts == (3, 3)
    assert Subclusters.of(stages, 1, "subquery", (3, 1)).counts == (1, 1)
    assert estimated_work(stages) == (16.0, 16.0)
    with pytest.raises(UserError, match=r"3 numbers for 2 stages \(join, count\)"):
        Subclusters.of(stages, 4, "subquery", (1, 1, 1))


def test_every_operator_is_a_stage() -> None:
    stages = cut(EXAMPLE, "operator")
    assert [describe_edge(edge).split(": ", 1)[1] for edge in stages.edges] == [
        "source a -> stage 0, in runs",
        "stage 0, projection map -> stage 1, in runs",
        "stage 1, filter v > 3 -> stage 2 left, hash of k",
        "source b -> stage 2 right, hash of k",
        "stage 2 -> stage 3, in runs",
        "stage 3, filter left_v < 9 -> stage 4, hash of left_v",
        "stage 4 -> stage 5, in runs",
        "stage 5, projection last -> result out, any sink",
    ]
    assert describe_stage(stages.stages[1]) == (
        "stage 1 filter: a filter, as the rows go on, at any instance; watermark: the least of its inputs"
    )


def test_a_union_is_a_stage() -> None:
    nodes = (Source("a", COLUMNS, "ts"), Filter("f", "a", "v > 3"), Union("u", ("a", "f")), Result("out", "u"))
    plan = LogicalPlan(nodes)
    assert len(cut(plan).stages) == 1
    assert [describe_edge(edge).split(": ", 1)[1] for edge in cut(plan, "operator").edges] == [
        "source a -> stage 0, in runs",
        "source a, union input 0 -> stage 1, in runs",
        "stage 0, filter v > 3, union input 1 -> stage 1, in runs",
        "stage 1 -> result out, any sink",
    ]


def _alike(*nodes: Node) -> StagePlan:
    return cut(LogicalPlan((Source("a", COLUMNS, "ts"), Source("b", COLUMNS, "ts"), *nodes)), "subquery")


JOIN = IntervalJoin("join", "a", "b", ("k",), ("k",), QueryConfig(0, 10))
WINDOWS, CALLS = TimeWindows(10, 10, 0), (AggregateCall("n", "count"),)


def test_groups_within_the_keys_of_a_join_need_no_exchange() -> None:
    renamed = Project("p", "join", (("g", "k"), ("v", "left_v"), ("k", "left_v + 1")))
    stages = _alike(JOIN, renamed, Aggregate("count", "p", ("v", "g"), WINDOWS, CALLS), Result("out", "count"))
    edge = stages.edges[2]
    assert (edge.key, edge.origin, stages.subqueries) == (("g",), 0, (0, 0))
    assert describe_edge(edge) == "edge 2: stage 0, projection p -> stage 1, hash of g, as stage 0"
    of = Subclusters.of(stages, 3, "subquery")
    assert (of.counts, of.apart, of.places) == ((3, 3), False, (0, 1, 2, 0, 1, 2))


def test_a_chain_is_routed_as_its_first_stage() -> None:
    """The other input of the last join comes by the columns that its left side has instead."""
    count = Aggregate("count", "join", ("k", "left_v"), WINDOWS, CALLS)
    last = IntervalJoin("last", "count", "b", ("left_v", "k"), ("v", "k"), QueryConfig(0, 10))
    other = IntervalJoin("other", "last", "a", ("left_v",), ("v",), QueryConfig(0, 10))
    stages = _alike(JOIN, count, last, other, Result("out", "other"))
    found = {(edge.sender.name, edge.receiver.name, edge.port): (edge.key, edge.origin) for edge in stages.edges}
    assert found["join", "count", 0] == (("k",), 0)
    assert found["count", "last", 0] == found["b", "last", 1] == (("k",), 0)
    assert found["last", "other", 0] == (("left_v",), None)
    assert stages.subqueries == (0, 0, 0, 3)
    of = Subclusters.of(stages, 4, "subquery", (1, 1, 1, 1))
    assert of.ranks == (range(3), range(3), range(3), range(3, 4))
    assert [of.slaves_on(rank) for rank in range(4)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8], [9]]


@pytest.mark.parametrize(
    "between",
    [
        Project("p", "join", (("k", "k + 0"), ("v", "left_v"))),  # another value
        Union("p", ("join", "join")),  # several ways
        Project("p", "join", (("v", "k"), ("k", "left_v"))),  # the names are exchanged
    ],
)
def test_stages_that_do_not_partition_alike(between: Node) -> None:
    stages = _alike(JOIN, between, Aggregate("count", "p", ("k",), WINDOWS, CALLS), Result("out", "count"))
    assert stages.subqueries == (0, 1)
    assert not any(edge.origin is not None for edge in stages.edges)

"""Stages: a plan that is cut gives the oracle's rows on any number of instances; allocation; the lines of `explain`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swjoin.config.sections import QueryConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError
from swjoin.plan.aggregates import Aggregate, AggregateCall, PreAggregate
from swjoin.plan.kept_rows import AlignedWindows, Keyed, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import Column, IntervalJoin, LogicalPlan, Project, Result, Schema, UnionInput
from swjoin.plan.stages import Edge, Stage, StageId, StagePlan, allocate, cut, describe_edge, describe_stage
from tests.plan.plans import COLUMNS, PLANS, plan, random_plans, random_rows, source
from tests.tools.plan_oracle import (
    Answer,
    Row,
    aggregated_rows,
    aligned_window_rows,
    evaluate,
    join_rows,
    live_rows,
    projected_rows,
    ranked_rows,
    session_rows,
    tuple_window_rows,
    union_rows,
    view_rows,
)


def run(stages: StagePlan, sources: Mapping[str, Sequence[Row]], instance_count: int) -> dict[str, list[Row]]:
    """Rows of every result: every stage by so many instances, to which its edges send rows by the hash of their keys."""
    made: dict[str, list[Row]] = {name: list(rows) for name, rows in sources.items()}

    def brought(edge: Edge) -> list[Row]:
        rows = made[edge.sender.name]
        for step in edge.steps:
            if isinstance(step, PreAggregate):
                continue  # groups are as good as their rows
            if isinstance(step, Project):  # of a source
                rows = projected_rows(step, Schema(COLUMNS, "ts"), rows)
                continue
            assert isinstance(step, UnionInput)
            rows = union_rows(step.index, rows)
        return rows

    for stage in stages.stages:
        ports: list[list[list[Row]]] = [[[] for _ in range(instance_count)] for _ in (LEFT, RIGHT)]
        for port in (LEFT, RIGHT):
            names = list(stage.schemas[port].types)
            for edge in stages.edges_to(stage, port):
                for row in brought(edge):
                    key = tuple(row.values[names.index(name)] for name in edge.key)
                    ports[port][hash(key) % instance_count].append(row)
        instances = zip(*ports, strict=True)
        made[stage.name] = [row for left, right in instances for row in played(stage, left, right)]
    return {result.name: [row for edge in stages.edges_to(result) for row in brought(edge)] for result in stages.results}


def played(stage: Stage, left: list[Row], right: list[Row]) -> list[Row]:
    """The rows that an instance brings forth."""
    assert stage.joins or not right
    if isinstance(stage.node, Aggregate):
        return aggregated_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, Ranked):
        return ranked_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, Sessions):
        return session_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, TupleWindows):
        return tuple_window_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, AlignedWindows):
        return aligned_window_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, Views):
        return view_rows(stage.node, stage.schemas[LEFT], left)
    if isinstance(stage.node, LiveGroups):
        return live_rows(stage.node, stage.schemas[LEFT], left)
    return left if stage.gathers else join_rows(stage.join, stage.schemas, left, right)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 3))
def test_stages_give_the_rows_of_the_plan(data: st.DataObject, instance_count: int) -> None:
    logical = data.draw(st.one_of(random_plans(), st.sampled_from(sorted(PLANS)).map(plan)))
    sources = data.draw(random_rows(logical))
    expected = evaluate(logical, sources)
    stages = cut(logical)
    found = run(stages, sources, instance_count)
    for name, rows in found.items():
        assert Answer.of(rows) == Answer.of(expected[name])
        assert sorted(map(repr, ((r.id, r.ts, r.values) for r in rows))) == sorted(
            map(repr, ((r.id, r.ts, r.values) for r in expected[name]))
        )
    assert set(found) == {node.name for node in logical.nodes if isinstance(node, Result)}
    check_order(stages)


def check_order(stages: StagePlan) -> None:
    """Ids count from 0; what an edge carries is made by an earlier stage than the one that it goes to."""
    assert [stage.id for stage in stages.stages] == list(range(len(stages.stages)))
    assert [edge.id for edge in stages.edges] == list(range(len(stages.edges)))
    for edge in stages.edges:
        if isinstance(edge.sender, Stage) and isinstance(edge.receiver, Stage):
            assert edge.sender.id < edge.receiver.id
    for stage in stages.stages:
        assert stages.edges_from(stage)
        ports = (LEFT, RIGHT) if stage.joins else (LEFT,)
        for port in ports:
            assert {edge.key for edge in stages.edges_to(stage, port)} == {stage.keys[port]}
        assert stage.gathers or isinstance(stage.node, IntervalJoin | Keyed)


def lines_of_edges(name: str) -> list[str]:
    return [describe_edge(edge).split(": ", 1)[1] for edge in cut(plan(name)).edges]


def test_edges() -> None:
    assert lines_of_edges("self-join") == [
        "source a -> stage 0 left, hash of k",
        "source a -> stage 0 right, hash of k",
        "stage 0 -> result out, any sink",
    ]
    assert lines_of_edges("union then join") == [
        "source a, union input 0 -> stage 0 left, hash of k",
        "source b, union input 1 -> stage 0 left, hash of k",
        "source c -> stage 0 right, hash of k",
        "stage 0 -> result out, any sink",
    ]
    assert lines_of_edges("unions of unions") == [
        "source c, union input 0 -> stage 0, in runs",
        "source a, union input 0, union input 1 -> stage 0, in runs",
        "source b, union input 1, union input 1 -> stage 0, in runs",
        "source a, union input 2, union input 1 -> stage 0, in runs",
        "stage 0 -> result out, any sink",
    ]
    diamond = cut(plan("diamond"))
    assert [stage.name for stage in diamond.stages] == ["j", "i", "top"]
    assert len(diamond.edges_from(diamond.sources[0])) == 2
    assert [edge.sender for edge in diamond.edges_to(diamond.stages[2], RIGHT)] == [diamond.stages[1]]


def test_description() -> None:
    stages = cut(plan("two joins in a row"))
    assert [describe_stage(stage) for stage in stages.stages] == [
        "stage 0 j: inner join, -1e-06 s <= right - left <= 2e-06 s; keys k = k; time of a row: the greater of both; "
        "watermark: min(left, right)",
        "stage 1 i: inner join, -3e-06 s <= right - left <= 0 s; keys k = k; time of a row: the greater of both; "
        "watermark: min(left, right)",
    ]
    assert [describe_edge(edge) for edge in stages.edges] == [
        "edge 0: source a -> stage 0 left, hash of k",
        "edge 1: source b -> stage 0 right, hash of k",
        "edge 2: stage 0 -> stage 1 left, hash of k",
        "edge 3: source c -> stage 1 right, hash of k",
        "edge 4: stage 1 -> result out, any sink",
    ]
    queries = {
        "full": (QueryConfig(-5_000_000, 7_000_000, how="full"), "min(left - 5s, right - 7s)", "alone, its own"),
        "semi": (QueryConfig(2_000_000, 7_000_000, how="semi"), "min(left, right - 7s)", "time of a row: its own;"),
        "apart": (QueryConfig(2_000_000, 7_000_000), "min(left + 2s, right)", "the greater of both;"),
        "last": (QueryConfig(0, 0, last=(2, 3)), "none before the end of both inputs", "the greater of both;"),
    }
    for query, watermark, time in queries.values():
        node = IntervalJoin("j", "a", "b", ("k",), ("v",), query)
        (stage,) = cut(LogicalPlan((source("a"), source("b"), node, Result("out", "j")))).stages
        line = describe_stage(stage)
        assert "; keys k = v; " in line
        assert line.endswith(f"watermark: {watermark}")
        assert time in line


def test_description_of_groups_that_live() -> None:
    columns = (Column("k", "int64"), Column("b", "int64"), Column("d", "int64"), Column("ts", "timestamp[us]"))
    calls = (AggregateCall("n", "count"), AggregateCall("m", "count", "b", distinct=True))
    head = "stage 0 g: count, count distinct of rows that are alive by k, "
    tail = "; time of a row: the instant; watermark: that of its input"
    node = LiveGroups("g", "a", ("k",), "b", "d", calls)
    for found, line in (
        (node, f"{head}at births and deaths{tail}"),
        (replace(node, mode="boundaries", every_us=5_000_000, longest_us=9), f"{head}every 5s{tail}"),
        (
            replace(node, mode="boundaries", every_us=5_000_000),
            f"{head}every 5s; time of a row: the instant; watermark: none before the end of its input",
        ),
        (
            replace(node, key=(), calls=(), mode="births"),
            f"stage 0 g: groups of rows that are alive by instant, as the first row is born{tail}",
        ),
    ):
        (stage,) = cut(LogicalPlan((source("a", columns), found, Result("out", "g")))).stages
        assert describe_stage(stage) == line


# ---------------------------------------------------------------- instances


@given(st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=4), st.integers(0, 6))
def test_allocation_is_the_best(work: list[float], more: int) -> None:
    """No other division among the stages has a lower bottleneck."""
    count = len(work) + more
    found = allocate({StageId(i): amount for i, amount in enumerate(work)}, count)
    assert sum(found.values()) == count
    assert min(found.values()) >= 1
    divisions = [d for d in itertools.product(range(1, more + 2), repeat=len(work)) if sum(d) == count]
    best = min(max(w / n for w, n in zip(work, division, strict=True)) for division in divisions)
    assert max(w / found[StageId(i)] for i, w in enumerate(work)) == best


def test_allocation() -> None:
    assert allocate({StageId(0): 1.0, StageId(1): 3.0}, 8) == {0: 2, 1: 6}
    assert allocate({StageId(0): 0.0, StageId(1): 0.0}, 3) == {0: 2, 1: 1}
    assert allocate({}, 4) == {}
    with pytest.raises(UserError, match="plan: 1 instances for 2 stages; give every stage an instance"):
        allocate({StageId(0): 1.0, StageId(1): 3.0}, 1)
    for amount in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="stage 0: work is"):
            allocate({StageId(0): amount}, 2)

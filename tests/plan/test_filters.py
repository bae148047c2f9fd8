"""Filters and projections in plans: schemas, the steps and columns of edges, what runs of plans refuse."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from swjoin.cluster.instances import Instances
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed, UserError
from swjoin.plan.columns import columns_of
from swjoin.plan.logical import Column, Filter, LogicalPlan, Node, Project, Result, Source, Union
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.stages import cut, describe_edge
from swjoin.runtime.open import plan_output
from tests.plan.plans import join

COLUMNS = (Column("k", "int64"), Column("v", "int32"), Column("s", "string"), Column("ts", "timestamp[us]"))
A, B = Source("a", COLUMNS, "ts"), Source("b", COLUMNS, "ts")
NODES: tuple[Node, ...] = (
    A,
    B,
    Filter("positive", "a", "v > 0"),
    Project("short", "positive", (("k", "k"), ("w", "v * 2"), ("unused", "upper(s)"), ("at", "ts"))),
    Filter("even", "short", "w % 4 = 0"),
    join("j", "even", "b"),
    Project("shown", "j", (("k", "k"), ("sum", "w + v"))),
    Filter("large", "shown", "sum > 10"),
    Result("out", "large"),
)


def test_a_projection_has_the_columns_that_it_computes() -> None:
    plan = LogicalPlan(NODES)
    assert plan.schema("positive") == plan.schema("a")
    short = plan.schema("short")
    assert dict(short.columns) == {"k": "int64", "w": "int64", "unused": "string", "at": "timestamp[us]"}
    assert short.time == "at"
    assert plan.schema("out").columns == (Column("k", "int64"), Column("sum", "int64"))
    kept = Project("kept", "a", (("v", "v"), ("k", '"k"')))
    assert LogicalPlan((A, kept, Result("out", "kept"))).schema("kept").columns == (Column("v", "int32"), Column("k", "int64"))
    assert LogicalPlan((A, kept, Result("out", "kept"))).schema("kept").time == "ts"  # no column has it
    assert plan_from_plain(plan_to_plain(plan)) == plan


def test_the_sender_of_an_edge_does_the_steps_on_the_way() -> None:
    assert [describe_edge(edge) for edge in cut(LogicalPlan(NODES)).edges] == [
        "edge 0: source a, filter v > 0, projection short, filter w % 4 = 0 -> stage 0 left, hash of k",
        "edge 1: source b -> stage 0 right, hash of k",
        "edge 2: stage 0, projection shown, filter sum > 10 -> result out, any sink",
    ]
    twice = (A, B, Filter("f", "a", "v = 1"), Union("u", ("f", "b")), join("j", "u", "b"), Result("out", "j"))
    assert [describe_edge(edge).split(": ")[1] for edge in cut(LogicalPlan(twice)).edges][:2] == [
        "source a, filter v = 1, union input 0 -> stage 0 left, hash of k",
        "source b, union input 1 -> stage 0 left, hash of k",
    ]


def test_only_the_time_has_the_name_of_the_time() -> None:
    def time_of(*columns: tuple[str, str]) -> str | None:
        return LogicalPlan((A, Project("p", "a", columns), Result("out", "p"))).schema("p").time

    assert time_of(("k", "k"), ("ts", "ts + interval '1' hour")) == "ts_"
    assert time_of(("ts", "k"), ("at", "(TS)")) == "at"
    assert time_of(("ts", "ts"), ("other", "k")) == "ts"


@pytest.mark.parametrize("rows", [True, False])
def test_only_columns_that_are_needed_are_read_and_computed(rows: bool) -> None:
    plan = LogicalPlan(NODES)
    stages = cut(plan)
    columns = columns_of(plan, stages, rows=rows)
    assert columns.read == {"a": ("k", "v"), "b": ("k", "v")}
    assert columns.travels[stages.edges[0].id] == ("w",)
    assert columns.travels[stages.edges[2].id] == (("k", "sum") if rows else ())
    _, projection, _ = columns.steps[stages.edges[0].id]
    assert [name for name, _, _ in projection.columns] == ["k", "w"]  # type: ignore[attr-defined]


def test_steps_keep_ids_and_times() -> None:
    plan = LogicalPlan(NODES)
    stages = cut(plan)
    rows = TupleBatch(np.zeros(4, np.int64), np.arange(4), np.arange(4, dtype=np.uint64) + 7, np.zeros(4, np.int64))
    batch = pa.record_batch({"k": [1, 2, 3, 4], "v": pa.array([2, -2, None, 4], pa.int32())})
    rows = TupleBatch(rows.key, rows.ts, rows.id, rows.arrival_us, None, Columns(batch))
    for step in columns_of(plan, stages, rows=True).steps[stages.edges[0].id]:
        rows = step(rows)
    assert rows.id.tolist() == [7, 10]
    assert rows.ts.tolist() == [0, 3]
    assert rows.columns is not None
    assert rows.columns.batch.to_pydict() == {"k": [1, 4], "w": [4, 8]}


def test_a_row_without_a_value_is_named() -> None:
    plan = LogicalPlan((A, B, Filter("f", "a", "10 // v > 1"), join("j", "f", "b"), Result("out", "j")))
    stages = cut(plan)
    columns = Columns(pa.record_batch({"k": [1, 2], "v": pa.array([1, 0], pa.int32())}))
    ids = np.array([70, 71], np.uint64)
    rows = TupleBatch(np.zeros(2, np.int64), np.zeros(2, np.int64), ids, np.zeros(2, np.int64), None, columns)
    (step,) = columns_of(plan, stages, rows=False).steps[stages.edges[0].id]
    with pytest.raises(RunFailed, match=r"^f, row 71: 10 // v: division by zero, with v = 0$"):
        step(rows)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ((Filter("f", "a", "v"), Result("out", "f")), "f: its condition is int32; use a comparison"),
        ((Filter("f", "a", "vv > 1"), Result("out", "f")), "f: column vv is missing; did you mean v?"),
        ((Filter("f", "a", "v >"), Result("out", "f")), "f: syntax error: an operand is missing at line 1, column 3, near '>'"),
        ((Project("p", "a", ()), Result("out", "p")), "p: it has no columns; name one or more"),
        (
            (Project("p", "a", (("x", "v"), ("x", "k"))), Result("out", "p")),
            "p: two columns are named x; name each once",
        ),
        (
            (Project("p", "a", (("x", "lower(v)"),)), Result("out", "p")),
            "p: column x: LOWER(v): lower of an integer; cast",
        ),
        ((Project("p", "a", (("x", "null"),)), Result("out", "p")), "p: column x is null for every row; cast it to a type"),
    ],
)
def test_wrong_expressions_are_refused_with_their_node(nodes: tuple[Node, ...], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        LogicalPlan((A, *nodes))
    assert str(caught.value).startswith(problem)


def test_runs_of_plans_refuse_what_they_do_not_have() -> None:
    config = config_from_plain({"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": "parquet"}})
    named = Project("p", "j", (("row_id", "k"),))
    instances = Instances.of(LogicalPlan((A, B, join("j", "a", "b"), named, Result("out", "p"))), config, 1)
    with pytest.raises(UserError, match="out: its column row_id has the name that rows' ids have in files; name it otherwise"):
        plan_output(instances)

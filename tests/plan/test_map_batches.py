"""Functions of batches in plans: columns, times, stages and edges; what verification says; planted bugs in random plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import read_config
from swjoin.config.sections import QueryConfig
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import UserError
from swjoin.core.time_windows import TimeWindows
from swjoin.expressions.batch_map import BatchMap, function_named, functions_of_process, name_of
from swjoin.plan import stages
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.columns import columns_of
from swjoin.plan.logical import Filter, IntervalJoin, LogicalPlan, Project, Result, Source
from swjoin.plan.map_batches import MapBatches, is_importable
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.stages import cut, describe_edge
from swjoin.runtime.in_process import run_local
from tests.plan.plans import COLUMNS
from tests.support.planted import texts
from tests.tools.plan_expressions import merged_values
from tests.tools.random_plans import PlanScenario, simulate

A, B = Source("a", COLUMNS, "ts"), Source("b", COLUMNS, "ts")
SAME = tuple((column.name, column.type) for column in COLUMNS)
MERGED = "tests.tools.plan_expressions:merged_values"


def _schema(columns: tuple[tuple[str, str], ...], below: Any = A) -> Any:
    return LogicalPlan(
        (A, *([] if below == A else [below]), MapBatches("m", below.name, MERGED, columns), Result("out", "m"))
    ).schema("m")


def test_columns_and_time() -> None:
    kind = dict(SAME)["ts"]
    assert _schema(SAME).time == "ts"
    assert _schema((("x", "double"), ("ts", kind))).time == "ts"
    assert _schema((("x", "double"),)).time == "ts"  # rows only carry it
    lost = Project("p", "a", (("k", "k"),))
    assert _schema((("ts", "string"),), lost).time == "ts_"  # another column has the name


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ((), "m: its schema has no columns; name each column once"),
        ((("x", "int64"), ("x", "int64")), "m: two columns are named x; name each column once"),
        ((("x", "list<item: int64>"),), "m: column x: type list<item: int64> cannot travel"),
        ((("ts", "string"),), "m: the rows' time ts is "),
    ],
)
def test_one_line_for_columns_that_cannot_be(columns: Any, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        _schema(columns)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


def test_plain_values() -> None:
    plan = LogicalPlan((A, MapBatches("m", "a", MERGED, SAME), Result("out", "m")))
    assert plan_from_plain(plan_to_plain(plan)) == plan


def test_stages_after_a_function_have_an_exchange() -> None:
    """Rows that were joined by a key are elsewhere than those with the same value after a function."""
    columns = tuple((name, kind) for name, kind in SAME if name != "ts")
    call = AggregateCall("n", "count")

    def origins(way: MapBatches | Project) -> list[int | None]:
        join = IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(0, 5), "left")
        group = Aggregate("g", way.name, ("k",), TimeWindows(10, 10), (call,), "s", "e")
        found = cut(LogicalPlan((A, B, join, way, group, Result("out", "g"))), "subquery")
        return [edge.origin for edge in found.edges if isinstance(edge.receiver, stages.Stage)]

    types = LogicalPlan((A, B, IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(0, 5), "left"), Result("out", "j")))
    columns = tuple((column.name, column.type) for column in types.schema("j").columns)
    assert origins(Project("p", "j", tuple((name, f'"{name}"') for name, _ in columns))) == [None, None, 0]
    assert origins(MapBatches("m", "j", MERGED, columns)) == [None, None, None]


def test_functions_are_the_instances_work() -> None:
    plan = LogicalPlan((A, MapBatches("m", "a", MERGED, SAME), Result("out", "m")))
    assert [describe_edge(edge) for edge in cut(plan).edges] == [
        "edge 0: source a -> stage 0, in runs",
        f"edge 1: stage 0, map_batches {MERGED} -> result out, any sink",
    ]


def test_names_of_functions() -> None:
    assert name_of(merged_values) == MERGED
    assert function_named(MERGED) is merged_values
    local = lambda batch: batch  # noqa: E731
    assert name_of(local) is name_of(print.__self__) is None  # type: ignore[attr-defined]
    with functions_of_process({"local": local}):
        assert function_named("local") is local
    with pytest.raises(UserError, match=r"local was a function of another process; give an importable one"):
        function_named("local")
    assert is_importable("a.b_1:C.d")
    assert not any(map(is_importable, ("a", "a:", ":a", "a:b:c", "a b:c", "a:<lambda>", "a:b\n", "1:a")))


def test_rows_stay_themselves() -> None:
    rows = _rows(5)
    step = BatchMap("m", MERGED, (("v", pa.int64()),), (("v", pa.int64()),), None, ("v",))
    made = step(rows)
    assert made.columns is not None
    assert made.columns.column("v").to_pylist() == [0, 0, 1, 1, 2]
    assert made.id is rows.id
    assert made.ts is rows.ts
    assert step(rows.slice(0, 0)).columns.names == ["v"]  # type: ignore[union-attr]


def _rows(count: int) -> TupleBatch:
    import numpy as np

    numbers = np.arange(count)
    columns = Columns(pa.record_batch({"v": numbers}))
    return TupleBatch(numbers, numbers, numbers.astype(np.uint64), numbers, None, columns)


# ---------------------------------------------------------------- planted bugs


def _drawn() -> Iterator[PlanScenario]:
    """Plans with functions that merge values, in batches, whose results have rows."""
    for seed in itertools.count(1_000):
        scenario = PlanScenario.draw(seed, calm=True)
        functions = [node for node in scenario.plan.nodes if isinstance(node, MapBatches) and node.function == MERGED]
        if functions and scenario.batch_rows > 1 and scenario.config.pace == "asap" and len(scenario.evaluated()["out"]) >= 5:
            yield scenario


@cache
def _plans() -> tuple[PlanScenario, ...]:
    return tuple(itertools.islice(_drawn(), 3))


def test_plans_with_functions_are_right() -> None:
    for scenario in _plans():
        simulate(scenario, scenario.evaluated()["out"])


def _reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of the rows in another order than their ids and times."""
    call = BatchMap.__call__

    def wrong(self: BatchMap, rows: TupleBatch) -> TupleBatch:
        made = call(self, rows)
        assert made.columns is not None
        order = made.id.argsort(kind="stable")[::-1]
        return replace(made, columns=made.columns.take(order))

    monkeypatch.setattr(BatchMap, "__call__", wrong)


def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns pass as they are, where all of the same names are there."""
    monkeypatch.setattr(BatchMap, "__call__", lambda self, rows: rows)


@pytest.mark.parametrize("plant", [_reversed, _forgotten])
def test_planted_bugs_are_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert next(texts(_plans(), lambda scenario: simulate(scenario, scenario.evaluated()["out"])), None) is not None


# ---------------------------------------------------------------- once for several edges


def _asked(*conditions: str) -> LogicalPlan:
    """Queries over what one function makes of the rows of a, each joined with b, and one over the rows as they are."""
    nodes = [A, B, Project("p", "a", (("k", "k"), ("v", "v"), ("ts", "ts"))), MapBatches("m", "p", MERGED, SAME)]
    for i, condition in enumerate(conditions):
        within = QueryConfig(-i, i + 1)
        shown = Project(f"s{i}", f"j{i}", (("k", "k"), ("w", "left_v")) if i else (("k", "k"),))
        filtered = Filter(f"f{i}", "m", condition)
        nodes += [filtered, IntervalJoin(f"j{i}", f"f{i}", "b", ("k",), ("k",), within), shown]
        nodes += [Result(f"q{i}", f"s{i}", of_values=True, named=True)]
    plain = [IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(0, 1)), Project("s", "j", (("v", "right_v"),))]
    return LogicalPlan((*nodes, *plain, Result("q", "s", of_values=True, named=True)))


def test_steps_that_edges_have_in_common_are_bound_once() -> None:
    plan = _asked("k > 0", "k < 0", "k < 0 AND v > 0")
    parts = cut(plan)
    columns = columns_of(plan, parts, rows=True)
    several = [edge for edge in parts.edges if edge.sender == A and any(isinstance(s, MapBatches) for s in edge.steps)]
    assert len(several) == 3
    assert set(columns.heads) == {edge.id for edge in several}
    (head,) = {columns.heads[edge.id] for edge in several}
    assert [part.length for part in head] == [2]
    assert len({tuple(map(id, columns.steps[edge.id][:2])) for edge in several}) == 1, "each is an object of its own"
    first, second = columns.steps[several[0].id][:2]
    assert (type(first).__name__, type(second).__name__) == ("Projection", "BatchMap")
    assert second.shown == ("k", "v"), "what any of the edges needs"  # type: ignore[attr-defined]
    alone = _asked("k > 0")
    assert columns_of(alone, cut(alone), rows=True).heads == {}


def test_more_steps_are_in_common_for_some_edges() -> None:
    """Two of three edges call a second function."""
    nodes = list(_asked("k > 0", "k < 0", "k < 0").nodes)
    second = MapBatches("n", "m", MERGED, SAME)
    for i, node in enumerate(nodes):
        if isinstance(node, Filter) and node.name in ("f1", "f2"):
            nodes[i] = Filter(node.name, "n", node.condition)
    plan = LogicalPlan((*nodes[:4], second, *nodes[4:]))
    parts = cut(plan)
    heads = columns_of(plan, parts, rows=True).heads
    assert sorted(len(head) for head in heads.values()) == [1, 2, 2]
    assert len({head[0].number for head in heads.values()}) == 1
    assert len({head[1].number for head in heads.values() if len(head) > 1}) == 1


@pytest.mark.parametrize("strategy", ["query", "operator"])
def test_a_function_is_called_once_for_all_edges(strategy: Any, tmp_path: Path) -> None:
    """The queries' counts and digests are those of runs of each alone."""
    rows, random = 3_000, np.random.default_rng(5)
    for name in "ab":
        times = pa.array(np.sort(random.integers(0, 3_000, rows)), pa.timestamp("us"))
        table = {"k": random.integers(-9, 9, rows), "v": random.choice([-3, -1, 2, 5], rows), "ts": times}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    called: list[int] = []

    def noting(batch: Any) -> Any:
        called.append(len(batch))
        assert 0 not in batch.column("v").to_pylist(), "rows that are none of the run's"
        return merged_values(batch)

    def found(*conditions: str) -> tuple[dict[str, tuple[int, str]], int]:
        called.clear()
        inputs = [{"path": str(tmp_path / f"{name}.parquet"), "time": "ts", "columns": ["k", "v"]} for name in "ab"]
        plain = {"inputs": inputs, "join": {"lower": 0, "upper": 0}, "sink": {"kind": "count"}}
        config = read_config(plain | {"cluster": {"strategy": strategy, "epoch_tuples": 100}}, [], "test")
        job = Job(config, None, False, None, None, "test", plan=plan_to_plain(_asked(*conditions)))
        with functions_of_process({MERGED: noting}):
            report = run_local(job, False, 2)
        assert report["ledger"]["balanced"]
        return {query["name"]: (query["count"], query["digest"]) for query in report["queries"]}, sum(called)

    conditions = ("k > 0", "k < 0", "k < 0 AND v > 0")
    together, rows_given = found(*conditions)
    assert min(count for count, _ in together.values()) > 0
    alone, once = found(conditions[0])
    assert rows <= rows_given <= 2 * rows, "the first batch is given again, in halves"
    assert rows <= once <= 2 * rows
    assert together["q0"] == alone["q0"]
    assert together["q"] == alone["q"]

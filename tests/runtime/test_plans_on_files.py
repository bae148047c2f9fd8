"""Runs of plans with several joins over files, in this process and on MPI ranks: rows are DuckDB's, or there is one clear line.

What: rows and ledgers of plans of every shape; refusals; checkpoints, kills and resumed runs; pages of such runs.
Why: files, threads, ranks and signals are not in the simulator, where random plans run (`tests.tools.random_plans`).
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cluster.exchange import PART_ROWS
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import SwjoinError
from swjoin.core.join_semantics import How
from swjoin.plan.logical import Filter, IntervalJoin, Node, Project, Result, Union
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.stages import cut
from swjoin.plan.subclusters import Subclusters
from swjoin.runtime import in_process
from swjoin.runtime.in_process import run_local
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.plan_runs import duckdb_rows, plan_job, report_of, rows_of, write_streams
from tests.support.ranks import run_jobs
from tests.tools.processes import LaunchedRun

K = ("k",)
Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A plan, and the same in SQL. text: keys are strings."""

    nodes: tuple[Node, ...]
    sql: str
    text: bool = False


def _within(left: str, right: str, lower_ms: int, upper_ms: int) -> str:
    """The condition of an interval join in SQL."""
    return f"epoch_us({right}) - epoch_us({left}) between {lower_ms}000 and {upper_ms}000"


def _query(lower_ms: int, upper_ms: int, **more: Any) -> QueryConfig:
    return QueryConfig(lower_ms * 1000, upper_ms * 1000, **more)


_TAG = "case when x in ('x1', 'x2') then 'low' else upper(x) end"
PAIR = "a.k, a.v, a.x, a.ts, {0}.v as rv, {0}.x as rx, {0}.ts as rts"
CASES = {
    "two joins": Case(
        (
            IntervalJoin("j", "a", "b", K, K, _query(-30, 40, where="left_x <= right_x"), "max"),
            IntervalJoin("i", "j", "c", K, K, _query(-20, 25, how="left", where="x <> left_x"), "left"),
            Result("out", "i"),
        ),
        f"""with j as (
                select {PAIR.format("b")}, greatest(a.ts, b.ts) as t from a join b
                on a.k = b.k and {_within("a.ts", "b.ts", -30, 40)} and a.x <= b.x)
            select j.* exclude t, c.v, c.x, c.ts
            from j left join c on j.k = c.k and {_within("t", "c.ts", -20, 25)} and c.x <> j.x""",
        text=True,
    ),
    "union into a join": Case(
        (
            Union("u", ("a", "b")),
            IntervalJoin("j", "u", "c", K, K, _query(-15, 20), "min"),
            IntervalJoin("i", "j", "a", K, K, _query(-10, 30, where="left_v <> v"), "max"),
            Result("out", "i"),
        ),
        f"""with u as (from a union all from b), j as (
                select u.k, u.v, u.x, u.ts, c.v as cv, c.x as cx, c.ts as cts, least(u.ts, c.ts) as t from u join c
                on u.k = c.k and {_within("u.ts", "c.ts", -15, 20)})
            select j.* exclude t, a.v, a.x, a.ts
            from j join a on j.k = a.k and {_within("t", "a.ts", -10, 30)} and j.v <> a.v""",
    ),
    "diamond": Case(
        (
            IntervalJoin("j", "a", "b", K, K, _query(-20, 20), "max"),
            IntervalJoin("i", "a", "c", K, K, _query(0, 30, how="left"), "left"),
            IntervalJoin("top", "j", "i", K, K, _query(-10, 10, where="left_right_x = right_left_x"), "min"),
            Result("out", "top"),
        ),
        f"""with j as (
                select {PAIR.format("b")}, greatest(a.ts, b.ts) as t from a join b
                on a.k = b.k and {_within("a.ts", "b.ts", -20, 20)}), i as (
                select {PAIR.format("c")}, a.ts as t from a left join c on a.k = c.k and {_within("a.ts", "c.ts", 0, 30)})
            select j.* exclude t, i.* exclude (k, t)
            from j join i on j.k = i.k and {_within("j.t", "i.t", -10, 10)} and j.rx = i.x""",
        text=True,
    ),
    "self-join": Case(
        (
            IntervalJoin("s", "a", "a", ("k", "x"), ("k", "x"), _query(0, 300, where="left_v <> right_v"), "left"),
            IntervalJoin("i", "s", "b", ("k", "x"), ("k", "x"), _query(-100, 100, how="left"), "left"),
            Result("out", "i"),
        ),
        f"""with s as (
                select l.k, l.x, l.v, l.ts, r.v as rv, r.ts as rts from a l join a r
                on l.k = r.k and l.x = r.x and {_within("l.ts", "r.ts", 0, 300)} and l.v <> r.v)
            select s.*, b.v, b.ts from s left join b on s.k = b.k and s.x = b.x and {_within("s.ts", "b.ts", -100, 100)}""",
    ),
    "outer joins": Case(
        (
            IntervalJoin("l", "a", "b", K, K, _query(-10, 10, how="left"), "max"),
            IntervalJoin("f", "l", "c", K, K, _query(-8, 12, how="full"), "max"),
            Result("out", "f"),
        ),
        f"""with l as (
                select {PAIR.format("b")}, greatest(a.ts, b.ts) as t, row_number() over () as id from a left join b
                on a.k = b.k and {_within("a.ts", "b.ts", -10, 10)}), f as (
                select l.*, c.v as cv, c.x as cx, c.ts as cts
                from l left join c on l.k = c.k and {_within("l.t", "c.ts", -8, 12)})
            select f.* exclude (t, id) from f
            union all select c.k, null, null, null, null, null, null, c.v, c.x, c.ts
            from c where c.v not in (select cv from f where cv is not null)""",
        text=True,
    ),
    "filters and projections": Case(
        (
            Filter("fa", "a", "v % 3 <> 1 and x like 'x%'"),
            Project("pa", "fa", (("n", "v * 2 + 1"), ("k", "k"), ("tag", _TAG), ("at", "ts"))),
            Filter("fb", "b", "v // 7 % 2 = 0 or x = 'x3'"),
            IntervalJoin("j", "pa", "fb", K, K, _query(-40, 60, where="n <> v")),
            Filter("fj", "j", "n > v + 100 or tag = 'low'"),
            Project("pj", "fj", (("k", "k"), ("sum", "n + v"), ("tag", "tag || '-' || x"))),
            IntervalJoin("i", "pj", "c", K, K, _query(-20, 25, how="left"), "left"),
            Result("out", "i"),
        ),
        f"""with pa as (select v * 2 + 1 as n, k, {_TAG} as tag, ts as at from a where v % 3 <> 1 and x like 'x%'), j as (
                select pa.*, b.v, b.x, greatest(pa.at, b.ts) as t
                from pa join (select * from b where v // 7 % 2 = 0 or x = 'x3') b
                on pa.k = b.k and {_within("pa.at", "b.ts", -40, 60)} and n <> b.v), pj as (
                select k, n + v as sum, tag || '-' || x as tag, t from j where n > v + 100 or tag = 'low')
            select pj.* exclude t, c.v, c.x, c.ts
            from pj left join c on pj.k = c.k and {_within("t", "c.ts", -20, 25)}""",
        text=True,
    ),
    "a filter at the end": Case(
        (
            IntervalJoin("j", "a", "b", K, K, _query(-30, 40, how="left"), "max"),
            Project(
                "pj", "j", (("k", "k"), ("total", "left_v + right_v"), ("x", "coalesce(right_x, 'none')"), ("at", "left_ts"))
            ),
            Filter("fj", "pj", "total % 5 <> 2 or x = 'none'"),
            Result("out", "fj"),
        ),
        f"""select * from (
                select a.k, a.v + b.v as total, coalesce(b.x, 'none') as x, a.ts as at
                from a left join b on a.k = b.k and {_within("a.ts", "b.ts", -30, 40)})
            where total % 5 <> 2 or x = 'none'""",
        text=True,
    ),
    "one source alone": Case(
        (
            Filter("f", "a", "v % 3 <> 1 and k is not null"),
            Project("p", "f", (("k", "k"), ("w", "v * 2 + 1"), ("tag", _TAG), ("at", "ts"))),
            Result("out", "p"),
        ),
        f"select k, v * 2 + 1, {_TAG}, ts from a where v % 3 <> 1 and k is not null",
    ),
    "a union of a join, its rows and a source": Case(
        (
            IntervalJoin("j", "a", "b", K, K, _query(-30, 40, how="left"), "max"),
            Project("pj", "j", (("k", "k"), ("v", "left_v"), ("w", "right_v"))),
            Filter("fj", "pj", "v % 2 = 0 or w is null"),
            Project("pc", "c", (("k", "k"), ("v", "v"), ("w", "v + 1"))),
            Union("u", ("pj", "fj", "pc")),
            Filter("fu", "u", "v % 7 <> 3"),
            Result("out", "fu"),
        ),
        f"""with j as (select a.k, a.v, b.v as w from a left join b on a.k = b.k and {_within("a.ts", "b.ts", -30, 40)})
            select * from (
                select * from j union all select * from j where v % 2 = 0 or w is null
                union all select k, v, v + 1 from c)
            where v % 7 <> 3""",
        text=True,
    ),
}
_MERGED = "tests.tools.plan_expressions:merged_values"  # ranks import it
_TYPES = {"v": "int64", "x": "string", "ts": "timestamp[us]"}
_SIDES = tuple((f"{side}_{name}", kind) for side in ("left", "right") for name, kind in _TYPES.items())
FUNCTIONS = Case(
    (
        MapBatches("m", "a", _MERGED, (("k", "int64"), *_TYPES.items())),
        IntervalJoin("j", "m", "b", K, K, _query(-20, 20), "left"),
        MapBatches("n", "j", _MERGED, (("k", "int64"), *_SIDES)),
        IntervalJoin("i", "n", "c", K, K, _query(0, 10), "left"),
        Result("out", "i"),
    ),
    f"""with m as (select k >> 1 as k, v >> 1 as v, replace(x, '1', '0') as x, ts from a), n as (
            select m.k >> 1 as k, m.v >> 1 as v, replace(m.x, '1', '0') as x, m.ts,
                   b.v >> 1 as rv, replace(b.x, '1', '0') as rx, b.ts as rts
            from m join b on m.k = b.k and {_within("m.ts", "b.ts", -20, 20)})
        select n.*, c.v, c.x, c.ts from n join c on n.k = c.k and {_within("n.ts", "c.ts", 0, 10)}""",
)
CASES_HERE = CASES | {"functions": FUNCTIONS}
SECTIONS: dict[str, Any] = {"cluster": {"epoch_tuples": 700, "partition_count": 7}}


@dataclass(frozen=True)
class Streams:
    """Inputs of the cases: with integer keys, and with strings."""

    integers: dict[str, StreamConfig]
    texts: dict[str, StreamConfig]

    def of(self, case: Case) -> dict[str, StreamConfig]:
        """The inputs that its plan reads."""
        inputs = self.texts if case.text else self.integers
        read = {name for node in case.nodes for name in node.inputs}
        return {name: config for name, config in inputs.items() if name in read}

    def job(self, case: Case, folder: Path, sink: str = "parquet", /, **sections: Any) -> Job:
        return plan_job(case.nodes, self.of(case), folder, sink, **(SECTIONS | sections))

    def expected(self, case: Case) -> Rows:
        return duckdb_rows(self.of(case), case.sql)


def _streams(folder: Path, rows: int, seed: int, keys: int = 20) -> Streams:
    found = []
    for text in (False, True):
        below = folder / f"text {text}"
        below.mkdir()
        found.append(write_streams(below, "abc", rows, seed, keys=keys, text=text, null_share=0.05))
    return Streams(*found)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return _streams(tmp_path_factory.mktemp("streams"), 3000, 1)


def _launch(job: Job, ranks: int, folder: Path) -> LaunchedRun:
    """The job on ranks of a launcher of its own."""
    file = folder / "job.json"
    file.write_text(job.to_json())
    return LaunchedRun([str(file), str(ranks)], folder / "log", module=("tests.support.plan_runs",))


def _check(report: dict[str, Any], expected: Rows) -> None:
    """The counts of a run that has ended."""
    assert report["complete"]
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert report["results"]["count"] == report["results"]["produced"] == sum(expected.values())
    produced = {stage["join"]: stage["produced"] for stage in report["stages"]}
    assert report["stages"][-1]["produced"] - report["stages"][-1]["filtered"] == sum(expected.values())
    given = produced | {name: side["tuples"] - report["late"][name] for name, side in report["input"].items()}
    arrived: Counter[tuple[str, str]] = Counter()
    for edge in report["edges"]:
        assert edge["sent"] == edge["received"]
        assert edge["sent"]["rows"] + edge["null_key"] + edge["filtered"] == given[edge["from"]]
        arrived[edge["to"], edge["port"]] += edge["received"]["rows"]
    for stage in report["stages"]:
        for port in ("left", "right"):
            came = stage["joined"][port] + stage["null_key"][port]
            assert came == stage["received"][port] == arrived[stage["join"], port]


def _check_all(job: Job, expected: Rows) -> dict[str, Any]:
    """Rows and counts of a run with result files; run.json."""
    assert expected
    assert rows_of(job) == expected
    report = report_of(job)
    _check(report, expected)
    return report


# ---------------------------------------------------------------- in this process


def _by(strategy: str, **cluster: Any) -> dict[str, Any]:
    """The section `cluster` with this strategy."""
    return {"cluster": {**SECTIONS["cluster"], "strategy": strategy, **cluster}}


@pytest.mark.parametrize(("slaves", "strategy"), [(2, "query"), (3, "query"), (4, "subquery"), (9, "operator")])
@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_plan_are_those_of_duckdb(name: str, slaves: int, strategy: str, streams: Streams, tmp_path: Path) -> None:
    case = CASES[name]
    expected = streams.expected(case)
    job = streams.job(case, tmp_path / "run", **_by(strategy))
    assert run_local(job, False, slaves)["results"] == report_of(job)["results"]
    counted = streams.job(case, tmp_path / "counted", "count")
    report = _check_all(job, expected)
    counts = [len(stage["slaves"]) for stage in report["stages"]]
    assert {"query": counts[0], "subquery": max(slaves, *counts), "operator": sum(counts)}[strategy] == slaves
    found = run_local(counted, False, slaves)
    _check(found, expected)
    assert found["results"]["digest"] == report["results"]["digest"]


@pytest.mark.parametrize("sink", ["count", "parquet", "csv"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_end_that_needs_no_column_of_the_join(sink: str, how: How, streams: Streams, tmp_path: Path) -> None:
    joined = IntervalJoin("j", "a", "b", K, K, _query(-30, 40, how=how), "max")
    inputs = {name: streams.integers[name] for name in "ab"}
    plain = joined, Result("out", "j")
    ends = Filter("t", "j", "true or 1 // 0 = 1"), Project("p", "t", (("one", "1"), ("w", "'x' || 2"))), Result("out", "p")
    rows = run_local(plan_job(plain, inputs, tmp_path / "plain", "count"), False, 2)["results"]["count"]
    report = run_local(plan_job((joined, *ends), inputs, tmp_path / "ends", sink), False, 2)
    assert report["results"]["count"] == rows > 100
    assert report["ledger"]["balanced"]
    none = (joined, Filter("t", "j", "1 = 2"), Result("out", "t"))
    report = run_local(plan_job(none, inputs, tmp_path / "none", sink), False, 2)
    assert (report["results"]["count"], report["stages"][-1]["filtered"]) == (0, rows)


def test_resting_instances_of_every_stage_are_activated(streams: Streams, tmp_path: Path) -> None:
    """Each stage begins with one active instance; the other slaves were started with the run, and rest."""
    case = CASES["diamond"]
    reorganization = {"policy": "random", "declustering": "adaptive", "active_slaves": 1, "epoch": "100ms", "random_moves": 2}
    sections = _by("query", distribution_epoch="50ms", gateways=2, sinks=2)
    job = streams.job(case, tmp_path / "run", **sections, reorganization=reorganization)
    run_local(job, False, 3)
    stages = _check_all(job, streams.expected(case))["stages"]
    assert len(stages) == 3
    for stage in stages:
        active = [entry["active_slaves"] for entry in stage["declustering"]]
        assert active[0] == 1
        assert max(active) > 1
        assert stage["moves"] > 0


@pytest.mark.parametrize("output_time", ["max", "min", "left"])
def test_the_time_of_a_pair_is_the_one_that_was_asked_for(output_time: Any, streams: Streams, tmp_path: Path) -> None:
    time = {"max": "greatest(a.ts, b.ts)", "min": "least(a.ts, b.ts)", "left": "a.ts"}[output_time]
    case = Case(
        (
            IntervalJoin("j", "a", "b", K, K, _query(-40, 10), output_time),
            IntervalJoin("i", "c", "j", K, K, _query(-20, 15), "max"),
            Result("out", "i"),
        ),
        f"""with j as (
                select {PAIR.format("b")}, {time} as t from a join b on a.k = b.k and {_within("a.ts", "b.ts", -40, 10)})
            select c.*, j.* exclude (k, t) from c join j on j.k = c.k and {_within("c.ts", "j.t", -20, 15)}""",
    )
    job = streams.job(case, tmp_path / "run")
    run_local(job, False, 2)
    _check_all(job, streams.expected(case))


def _shuffle(streams: Streams) -> None:
    """The inputs with string keys are in no order."""
    random = np.random.default_rng(1)
    for name in "abc":
        _changed(streams, name, lambda table: table.take(random.permutation(len(table))))


def test_inputs_in_no_order_are_sorted(own_streams: Streams, tmp_path: Path) -> None:
    case = CASES["two joins"]
    _shuffle(own_streams)
    job = own_streams.job(case, tmp_path / "run", time={"sort": True})
    assert run_local(job, False, 2)["late"] == {"a": 0, "b": 0, "c": 0}
    _check_all(job, own_streams.expected(case))


# ---------------------------------------------------------------- on MPI ranks


@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(
    "names",
    [("two joins", "diamond"), pytest.param(tuple(CASES), marks=pytest.mark.drawn)],
    ids=["two", "all"],
)
def test_ranks_give_the_rows_of_duckdb(names: tuple[str, ...], streams: Streams, tmp_path: Path) -> None:
    jobs = {name: streams.job(CASES[name], tmp_path / name, **_by("query")) for name in names}
    paced = _streams(tmp_path, 1000, 2)
    sections = {"pace": "realtime", "cluster": {"distribution_epoch": "20ms"}}
    realtime = paced.job(CASES["two joins"], tmp_path / "realtime", **sections)
    run_jobs(5, [*jobs.values(), realtime], tmp_path)
    for name, job in jobs.items():
        assert len(_check_all(job, streams.expected(CASES[name]))["stages"][0]["slaves"]) == 3
    assert _check_all(realtime, paced.expected(CASES["two joins"]))["epochs"] > 1


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_ranks_give_the_same_rows_by_any_strategy(streams: Streams, tmp_path: Path) -> None:
    """Three slave ranks: with more operators stages share ranks, as stages that partition alike do. The last run moves
    partition-groups."""
    counts = {
        ("subquery", "two joins"): [3, 3],
        ("subquery", "diamond"): [2, 1, 2],
        ("operator", "one source alone"): [2, 1],
        ("operator", "filters and projections"): [3] * 7,
    }
    jobs = {how: streams.job(CASES[how[1]], tmp_path / " ".join(how), **_by(how[0])) for how in counts}
    reorganization = {"policy": "random", "epoch": "100ms", "random_moves": 2}
    sections = _by("operator", distribution_epoch="50ms", instances=[2, 1]) | {"reorganization": reorganization}
    moving = streams.job(CASES["two joins"], tmp_path / "moving", **sections)
    run_jobs(5, [*jobs.values(), moving], tmp_path)
    for how, job in jobs.items():
        stages = _check_all(job, streams.expected(CASES[how[1]]))["stages"]
        assert [len(stage["slaves"]) for stage in stages] == counts[how]
    moved, unmoved = _check_all(moving, streams.expected(CASES["two joins"]))["stages"]
    assert (moved["slaves"], unmoved["slaves"]) == ([0, 1], [2])
    assert moved["moves"] > 0 == unmoved["moves"]


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_an_epoch_in_several_parts_on_one_slave(tmp_path: Path) -> None:
    large = _streams(tmp_path, 36_000, 3, keys=25)
    case = CASES["two joins"]
    job = large.job(case, tmp_path / "large", cluster={"epoch_tuples": 90_000})
    run_jobs(3, [job], tmp_path)
    report = _check_all(job, large.expected(case))
    assert min(edge["sent"]["rows"] for edge in report["edges"]) / report["epochs"] > PART_ROWS


# ---------------------------------------------------------------- bad input


def _changed(streams: Streams, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write an input of the plans with string keys anew."""
    path = streams.texts[name].path
    pq.write_table(change(pq.read_table(path)), path)


def _with_late_rows(table: pa.Table) -> pa.Table:
    """Rows 400 and 401 have the time 0, row 500 has none."""
    times = table["ts"].cast(pa.int64()).to_pylist()
    times[400] = times[401] = 0
    times[500] = None
    return table.set_column(3, "ts", pa.array(times, pa.timestamp("us")))


def _without_late_rows(table: pa.Table) -> pa.Table:
    return table.take([i for i in range(len(table)) if i not in (400, 401, 500)])


@pytest.fixture
def own_streams(tmp_path: Path) -> Streams:
    """Streams that a test may change."""
    return _streams(tmp_path, 800, 4)


@pytest.mark.parametrize("policy", ["error", "drop", "side"])
def test_late_rows_of_a_source(policy: str, own_streams: Streams, tmp_path: Path) -> None:
    """The third source is neither left nor right."""
    case = CASES["two joins"]
    _changed(own_streams, "c", _with_late_rows)
    job = own_streams.job(case, tmp_path / "run", time={"late": policy})
    if policy == "error":
        with pytest.raises(
            SwjoinError, match=r"^c: .*c\.parquet, row 400 \(counting from 0\): its time is .* behind"
        ) as refused:
            run_local(job, False, 2)
        assert "\n" not in str(refused.value)
        return
    report = run_local(job, False, 2)
    assert report["late"] == {"a": 0, "b": 0, "c": 3}
    late = tmp_path / "run" / "late.parquet"
    assert late.exists() == (policy == "side")
    if policy == "side":
        found = {(row["stream"], row["row_id"], row["ts"], row["reason"]) for row in pq.read_table(late).to_pylist()}
        assert found == {("c", 400, 0, "late"), ("c", 401, 0, "late"), ("c", 500, None, "null time")}
    _changed(own_streams, "c", _without_late_rows)
    _check_all(job, own_streams.expected(case))


def _gone(streams: Streams) -> None:
    Path(str(streams.texts["c"].path)).unlink()


def _column_gone(streams: Streams) -> None:
    _changed(streams, "c", lambda table: table.drop_columns(["x"]))


def _other_type(streams: Streams) -> None:
    _changed(streams, "c", lambda table: table.set_column(1, "v", table["v"].cast(pa.string())))


def _no_rows_left(streams: Streams) -> None:
    path = Path(str(streams.texts["c"].path))
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_gone, r"c\.parquet: no such file or directory$"),
        (_column_gone, r"^c .*c\.parquet: column x is missing; its columns are k, v, ts$"),
        (_other_type, r"^c .*c\.parquet: column v is string, the plan has int64$"),
        (_no_rows_left, r"c\.parquet: cannot be read as Parquet: "),
    ],
)
def test_an_input_that_has_changed_since_the_plan_was_made(
    spoil: Callable[[Streams], None], line: str, own_streams: Streams, tmp_path: Path
) -> None:
    job = own_streams.job(CASES["two joins"], tmp_path / "run")
    spoil(own_streams)
    with pytest.raises(SwjoinError, match=line) as refused:
        run_local(job, False, 2)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "run").iterdir())


def test_times_that_cannot_be_compared(own_streams: Streams, tmp_path: Path) -> None:
    """The sources a and c do not meet in one join: rows of a come to the second one."""
    _changed(own_streams, "c", lambda table: table.set_column(3, "ts", table["ts"].cast(pa.timestamp("us", tz="UTC"))))
    with pytest.raises(
        SwjoinError, match=r"^a .*a\.parquet: time column ts has no time zone .* c .*so they cannot be compared"
    ):
        run_local(own_streams.job(CASES["two joins"], tmp_path / "run"), False, 2)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("left_q = 3", "^j: where: column left_q is missing; did you mean "),
        ("left_v < right_x", "^j: where: a number and text cannot be compared with <$"),
    ],
)
def test_predicates_that_do_not_fit_name_their_join(where: str, line: str, streams: Streams, tmp_path: Path) -> None:
    nodes = IntervalJoin("j", "a", "b", K, K, _query(0, 1, where=where)), Result("out", "j")
    with pytest.raises(SwjoinError, match=line):
        run_local(streams.job(Case(nodes, ""), tmp_path / "run"), False, 2)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("cluster.sub_group_count", {"cluster": {"sub_group_count": 2}}),
        ("cluster.communication: synchronous", {"cluster": {"communication": "synchronous"}}),
        ("measure.prefill", {"pace": "realtime", "measure": {"prefill": "1s"}}),
        ("on_overload.victims: least_matching", {"pace": "realtime", "on_overload": {"victims": "least_matching"}}),
        ("time.model: arrival", {"pace": "realtime", "time": {"model": "arrival"}}),
    ],
)
def test_settings_that_runs_of_plans_refuse(name: str, sections: dict[str, Any], streams: Streams, tmp_path: Path) -> None:
    with pytest.raises(SwjoinError, match=rf"^{name}: runs of plans do not have this yet; leave it out$"):
        run_local(streams.job(CASES["two joins"], tmp_path / "run", **sections), False, 2)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_ranks_print_one_line_about_bad_input(own_streams: Streams, tmp_path: Path) -> None:
    nodes = IntervalJoin("j", "a", "b", K, K, _query(0, 1, where="left_v < right_x")), Result("out", "j")
    _changed(own_streams, "c", _with_late_rows)
    lines = {
        "j: where: a number and text cannot be compared with <": own_streams.job(Case(nodes, ""), tmp_path / "where"),
        r"c: .*c\.parquet, row 400 \(counting from 0\): its time is .*": own_streams.job(CASES["two joins"], tmp_path / "late"),
    }
    for line, job in lines.items():
        run = _launch(job, 5, tmp_path)
        assert run.end(PROCESS_S) == 2
        assert re.fullmatch(f"{line}\n", (tmp_path / "log").read_text())


# ---------------------------------------------------------------- checkpoints

SLOWED: dict[str, Any] = {  # a file's rows are read at once: only in realtime pace they come in many epochs
    "pace": "realtime",
    "checkpoint": {"epochs": 2},
    "cluster": {"distribution_epoch": "50ms", "partition_count": 7},
}


def _newest(job: Job) -> int:
    """Generation of the newest checkpoint; -1 before the first one."""
    assert job.checkpoints is not None
    return max((int(path.stem.rpartition("-")[2]) for path in job.checkpoints.glob("checkpoint-*.json")), default=-1)


class _Saved(threading.Event):
    """A request to stop that comes with the first checkpoint after those that exist."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self._before = job, _newest(job)

    def is_set(self) -> bool:
        return _newest(self._job) > self._before


def _stop_when_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "stop_signals", lambda job: contextlib.nullcontext(_Saved(job)))


def _no_row_is_left_over(job: Job) -> None:
    assert job.target is not None
    assert job.run_dir is not None
    assert not (job.run_dir / "checkpoints").exists()
    assert [path.name for path in job.target.iterdir() if not path.name.startswith("part-")] == []


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("two joins", "outer joins", "functions") else pytest.param(name, marks=pytest.mark.long)
        for name in CASES_HERE
    ],
)
def test_a_stopped_run_goes_on_with_another_number_of_slaves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, streams = CASES_HERE[name], _streams(tmp_path, 2000, 9)
    job = streams.job(case, tmp_path / "run", **SLOWED)
    with monkeypatch.context() as patched:
        _stop_when_saved(patched)
        report = run_local(job, False, 2)
        assert (report["complete"], report["resumable"]) == (False, True)
        run_local(replace(job, resumes=True), False, 3)
    if not report_of(job)["complete"]:  # as it would be if few epochs had room for the checkpoints of a slow machine
        run_local(replace(job, resumes=True), False, 1)
    assert _check_all(job, streams.expected(case))["checkpoints"]["resumed_from"] is not None
    _no_row_is_left_over(job)


@pytest.mark.long
def test_sorted_inputs_go_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, streams = CASES["two joins"], _streams(tmp_path, 2000, 9)
    _shuffle(streams)
    job = streams.job(case, tmp_path / "run", **SLOWED, time={"sort": True})
    with monkeypatch.context() as patched:
        _stop_when_saved(patched)
        assert not run_local(job, False, 2)["complete"]
    run_local(replace(job, resumes=True), False, 3)
    _check_all(job, streams.expected(case))


def test_rows_set_aside_survive_a_stop(own_streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["two joins"]
    _changed(own_streams, "c", _with_late_rows)
    job = own_streams.job(case, tmp_path / "run", **SLOWED, time={"late": "side"})
    with monkeypatch.context() as patched:
        _stop_when_saved(patched)
        assert not run_local(job, False, 2)["complete"]
    assert run_local(replace(job, resumes=True), False, 3)["late"] == {"a": 0, "b": 0, "c": 3}
    assert Counter(pq.read_table(tmp_path / "run" / "late.parquet")["row_id"].to_pylist()) == Counter([400, 401, 500])
    _changed(own_streams, "c", _without_late_rows)
    _check_all(job, own_streams.expected(case))


def _launched(job: Job, ranks: int, folder: Path) -> LaunchedRun:
    """The job on ranks of a launcher of its own, once it has made its second checkpoint."""
    run = _launch(job, ranks, folder)
    deadline = time.monotonic() + PROCESS_S
    while _newest(job) < 1:
        assert run.process.poll() is None, run.said()
        assert time.monotonic() < deadline, "no second checkpoint"
        time.sleep(0.01)
    return run


def _resumed(job: Job, ranks: int, folder: Path) -> None:
    run = LaunchedRun(["--resume", str(job.run_dir), "-n", str(ranks)], folder / "again")
    assert run.end(PROCESS_S) == 0, run.said()


def _dies_and_recovers(name: str, folder: Path, seed: int, ranks: list[int], strategy: str = "query") -> dict[str, Any]:
    case, streams = CASES_HERE[name], _streams(folder, 3000, seed)
    job = streams.job(case, folder / "run", **(SLOWED | {"cluster": {**SLOWED["cluster"], "strategy": strategy}}))
    run = _launched(job, 5, folder)
    run.kill(ranks)
    assert run.end(PROCESS_S) == 0, run.said()
    report = _check_all(job, streams.expected(case))
    assert report["checkpoints"]["recoveries"]
    assert strategy != "query" or len(report["stages"][0]["slaves"]) == 3 - len(ranks)
    _no_row_is_left_over(job)
    return report


def _instances(report: dict[str, Any]) -> list[int]:
    return [len(stage["slaves"]) for stage in report["stages"]]


def _instances_of(job: Job, width: int) -> list[int]:
    """Of each stage on so many slave ranks."""
    strategy = job.config.cluster.strategy
    return list(Subclusters.of(cut(plan_from_plain(job.plan), strategy), width, strategy).counts)


def _dies_and_is_resumed(name: str, folder: Path, seed: int, again: int, number: int = signal.SIGKILL) -> None:
    case, streams = CASES[name], _streams(folder, 3000, seed)
    job = streams.job(case, folder / "run", **SLOWED)
    run = _launched(job, 5, folder)
    if number == signal.SIGKILL:
        run.kill_all()
        run.process.wait()
    else:
        run.process.send_signal(number)
        assert run.end(PROCESS_S) == 0, run.said()
        if report_of(job)["complete"]:  # on a busy machine the signal may come when all is read
            _check_all(job, streams.expected(case))
            return
        assert report_of(job)["resumable"]
    _resumed(job, again, folder)
    report = _check_all(job, streams.expected(case))
    assert report["checkpoints"]["resumed_from"] is not None
    assert _instances(report) == _instances_of(job, again - 2)
    _no_row_is_left_over(job)


@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_a_slave_dies_and_the_others_go_on(tmp_path: Path) -> None:
    _dies_and_recovers("two joins", tmp_path, 5, [3])


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.timeout(LONG_S)
def test_a_slave_with_functions_dies(tmp_path: Path) -> None:
    _dies_and_recovers("functions", tmp_path, 5, [3])


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_all_ranks_die_and_others_go_on(tmp_path: Path) -> None:
    _dies_and_is_resumed("outer joins", tmp_path, 6, 4)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("ranks", [[2], [4], [2, 3], [1], [1, 3]])
@pytest.mark.parametrize("name", CASES)
def test_slaves_and_the_collector_of_every_plan_die(name: str, ranks: list[int], tmp_path: Path) -> None:
    _dies_and_recovers(name, tmp_path, 7, ranks)


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_a_subcluster_loses_a_rank(tmp_path: Path) -> None:
    """The first and the last stage partition alike, on two ranks, then on one."""
    stages = _dies_and_recovers("diamond", tmp_path, 10, [3], "subquery")["stages"]
    assert [stage["slaves"] for stage in stages] == [[0], [1], [2]]


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("again", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_all_ranks_of_every_plan_end(name: str, again: int, number: int, tmp_path: Path) -> None:
    _dies_and_is_resumed(name, tmp_path, 8, again, number)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("gap_s", [0.0, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("name", ["two joins", "diamond"])
def test_a_slave_dies_while_others_recover(name: str, gap_s: float, tmp_path: Path) -> None:
    case, streams = CASES[name], _streams(tmp_path, 3000, 10)
    job = streams.job(case, tmp_path / "run", **SLOWED)
    run = _launched(job, 6, tmp_path)
    run.kill([4])
    time.sleep(gap_s)
    run.kill([2])
    assert run.end(PROCESS_S) == 0, run.said()
    report = _check_all(job, streams.expected(case))
    assert _instances(report) == _instances_of(job, 2)
    _no_row_is_left_over(job)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("recovering", [False, True])
@pytest.mark.parametrize("name", ["outer joins", "diamond"])
def test_a_death_of_the_master_ends_the_run(name: str, recovering: bool, tmp_path: Path) -> None:
    """In one line, from which it can be resumed. recovering: from the death of a slave."""
    case, streams = CASES[name], _streams(tmp_path, 3000, 11)
    job = streams.job(case, tmp_path / "run", **SLOWED)
    run = _launched(job, 5, tmp_path)
    if recovering:
        run.kill([3])
        time.sleep(0.05)
    run.kill([0])
    assert run.end(PROCESS_S) != 0
    said = (tmp_path / "log").read_text().splitlines()
    assert [line for line in said if f"swjoin run --resume {job.run_dir}" in line] == said
    assert len(said) == 1
    _resumed(job, 4, tmp_path)
    _check_all(job, streams.expected(case))
    _no_row_is_left_over(job)


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize("sink", ["parquet", "count"])
def test_commands_on_the_run_of_a_plan(sink: str, streams: Streams, swjoin: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    strategy, joins = {"parquet": ("query", ("j", "j", "i", "i", "top", "top")), "count": ("subquery", ("j", "i", "top"))}[sink]
    run_local(streams.job(CASES["diamond"], folder, sink, **_by(strategy)), False, 2)
    done = swjoin("report", folder)
    assert (done.code, done.err) == (0, [])
    page = (folder / "report.html").read_text()
    assert all(f"slave {slave}, {join}<" in page for slave, join in enumerate(joins))
    assert "Complete, and the ledger balances" in page
    assert "edge 6: stage 2 -&gt; result out, any sink" in page
    assert f"Not verified: swjoin verify {folder} recomputes the result" in page
    for edge in json.loads((folder / "run.json").read_text())["edges"]:
        assert f"{edge['from']} to {edge['to']}, {edge['port']}" in page
    assert swjoin("verify", folder).code == 0
    assert swjoin("report", folder).code == 0
    assert "Verified: DuckDB finds the same" in (folder / "report.html").read_text()

"""Windows without bounds: partners any time apart, nothing expires; commands that read such a join; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import swjoin as api
from swjoin.config.loader import config_from_plain
from swjoin.core.errors import RunFailed, UserError

YEARS_US = 40 * 365 * 86_400_000_000
TIMES: dict[str, Any] = {"left_time": "ts", "right_time": "at", "within": "unbounded"}
KINDS = {how: f"{how.upper()} JOIN" for how in ("inner", "left", "right", "full", "semi", "anti")}


def table_of(seed: int, time: str, rows: int = 600) -> pa.Table:
    """Rows of four decades, some with a null key."""
    random = np.random.default_rng(seed)
    key = pa.array(random.integers(0, 400, rows), mask=random.random(rows) < 0.05)
    ts = np.sort(random.integers(0, YEARS_US, rows))
    columns = {"k": key, "v": random.integers(0, 2_000, rows), "n": np.arange(rows)}
    return pa.table(columns | {time: pa.array(ts, pa.timestamp("us"))})


@pytest.fixture(scope="module")
def tables() -> tuple[pa.Table, pa.Table]:
    return table_of(1, "ts"), table_of(2, "at")


def expected(tables: tuple[pa.Table, pa.Table], how: str, condition: str) -> list[Any]:
    """Numbers of the rows that DuckDB joins."""
    shown = "l.n" if how in ("semi", "anti") else "l.n, r.n"
    with duckdb.connect() as db:
        for name, table in zip("lr", tables, strict=True):
            db.register(name, table)
        return sorted(db.execute(f"SELECT {shown} FROM l {KINDS[how]} r ON {condition}").fetchall(), key=repr)


def numbers(table: pa.Table, how: str) -> list[Any]:
    names = ["n"] if how in ("semi", "anti") else ["left_n", "right_n"]
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


@pytest.mark.parametrize("how", list(KINDS))
def test_partners_may_lie_any_time_apart(how: Any, tables: tuple[pa.Table, pa.Table]) -> None:
    found = api.join(*tables, on="k", how=how, **TIMES)
    assert numbers(found, how) == expected(tables, how, "l.k = r.k")
    assert api.proof(found).ledger.balanced
    counted = api.count(*tables, on="k", how=how, **TIMES)
    assert (counted.count, counted.digest) == (len(found), api.proof(found).digest)


@pytest.mark.parametrize("routing", ["auto", "random:3,2"])
@pytest.mark.parametrize("where", ["abs(left_v - right_v) <= 1", "left_v > right_v + 1900"])
def test_by_a_condition_alone(where: str, routing: str, tables: tuple[pa.Table, pa.Table]) -> None:
    found = api.join(*tables, where=where, routing=routing, **TIMES)
    assert numbers(found, "inner") == expected(tables, "inner", where.replace("left_", "l.").replace("right_", "r."))


def test_calls(tables: tuple[pa.Table, pa.Table]) -> None:
    left, right = (api.stream(table, time=time) for table, time in zip(tables, ("ts", "at"), strict=True))
    joined = left.join(right, on="k", within="unbounded").collect()
    pairs = sorted(zip(joined["n"].to_pylist(), joined["n_right"].to_pylist(), strict=True), key=repr)
    assert pairs == expected(tables, "inner", "l.k = r.k")


def test_times_that_may_lie_further_apart_than_any_bound_are_refused() -> None:
    """They would lose partners."""

    def count(left_us: int, right_us: int, **options: Any) -> int:
        left, right = pa.table({"k": [1], "ts": [left_us]}), pa.table({"k": [1], "at": [right_us]})
        return api.count(left, right, time_unit="us", **TIMES | {"on": "k"} | options).count

    for options in ({}, {"routing": "random:2,2"}, {"how": "left"}):
        assert count(-(1 << 59), 1 << 59, **options) == 1
        for times in ((0, (1 << 59) + 1), (-(1 << 59) - 1, 0)):
            with pytest.raises(RunFailed, match="a window without bounds joins times within 576460752303423488 us of 1970"):
                count(*times, **options)


@pytest.fixture(scope="module")
def run(tables: tuple[pa.Table, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both files and run.yaml."""
    folder = tmp_path_factory.mktemp("history")
    for table, name in zip(tables, ("left", "right"), strict=True):
        pq.write_table(table, folder / f"{name}.parquet")
    plain = {
        "left": {"path": str(folder / "left.parquet"), "on": "k", "time": "ts"},
        "right": {"path": str(folder / "right.parquet"), "on": "k", "time": "at"},
        "within": "unbounded",
        "cluster": {"epoch_tuples": 100},
        "checkpoint": {"epochs": 3},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    return folder


@pytest.mark.drawn
def test_commands(run: Path, tables: tuple[pa.Table, pa.Table], swjoin: Any) -> None:
    done = swjoin("run", run / "run.yaml", "--out", run / "out", "--threads", 2)
    assert done.code == 0, done.err
    report = json.loads((run / "out" / "run.json").read_text())
    assert report["results"]["count"] == len(expected(tables, "inner", "l.k = r.k"))
    kept = sum(slave["window"]["peak"] for slave in report["memory"]["slaves"])
    assert kept >= 64 * sum(len(table) - table["k"].null_count for table in tables), "nothing expires"
    assert swjoin("verify", run / "out").code == 0
    explained = " ".join(swjoin("explain", run / "run.yaml").out.split())
    assert "equal keys, at any times; nothing expires" in explained
    planned = swjoin("plan", run / "run.yaml", "--threads", 2, "--json")
    assert planned.code == 0, planned.err
    notes = json.loads(planned.out)["notes"]
    assert "delay and saturation are not estimated: windows without bounds are never in steady state" in notes
    long = swjoin("plan", run / "run.yaml", "--threads", 2, "--set", "within=20000d")
    assert long.code == 0, long.err
    assert "windows are 8,640,000,000 distribution epochs long; a longer cluster.distribution_epoch makes" in " ".join(
        long.out.split()
    )
    generated = ("--set", "workload.rate=2000", "--set", "workload.duration=2s", "--set", "module.window=64MB")
    simulated = swjoin("simulate", "mpi_configs/local.yaml", "--slaves", 2, "--set", "within=unbounded", *generated)
    assert simulated.code == 0, simulated.err


@pytest.mark.mpi
@pytest.mark.drawn
def test_ranks(run: Path, tables: tuple[pa.Table, pa.Table], swjoin: Any) -> None:
    files, report = (run / "left.parquet", run / "right.parquet"), run / "ranks.json"
    words = ("--left-time", "ts", "--right-time", "at", "--within", "unbounded", "-n", 4, "--gateways", 2, "-o", "count")
    done = swjoin("join", *files, "--on", "k", *words, "--report", report)
    assert done.code == 0, done.err
    assert json.loads(report.read_text())["results"]["count"] == len(expected(tables, "inner", "l.k = r.k"))


def test_what_is_refused(run: Path, swjoin: Any) -> None:
    for words, problem in (
        (("--exclusive", "lower"), "--within: unbounded has no bounds that could be exclusive"),
        (("--lower", "1s"), "give --within, or --lower and --upper, not both"),
    ):
        options = ("--on", "k", "--left-time", "ts", "--right-time", "at", "--within", "unbounded", "-o", "count", *words)
        done = swjoin("join", run / "left.parquet", run / "right.parquet", *options)
        assert done.err == [f"swjoin: {problem}"]
    done = swjoin("plan", run / "run.yaml", "--threads", 2, "--rate", "100")
    assert done.code == 2
    assert done.err[0].startswith("swjoin: --rate with a window without bounds: it grows without end")
    stream = {"flight": {}, "schema": "k: int64, ts: timestamp[us]", "on": "k", "time": "ts"}
    live = {"left": stream, "right": stream, "serve": {"listen": "127.0.0.1:0"}, "time": {"late": "drop"}}
    with pytest.raises(UserError, match="a window without bounds keeps all that comes: limit it with"):
        config_from_plain(live | {"join": {"within": "unbounded"}})
    assert config_from_plain(live | {"join": {"within": "unbounded"}, "module": {"window": "1GB"}}).query.unbounded

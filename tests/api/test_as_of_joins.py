"""As-of joins as users ask for them: Python, SQL, the command line, configurations, ranks, pushed rows; against pandas, polars
and DuckDB, which have their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import Bounds
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.tools.oracle import as_of
from tests.tools.processes import ranks_of

Match = Literal["last", "first", "nearest"]
MATCHES: list[Match] = ["last", "first", "nearest"]
DIRECTIONS: dict[str, Any] = {"last": "backward", "first": "forward", "nearest": "nearest"}
TIMES: dict[str, Any] = {"left_time": "t", "right_time": "u", "time_unit": "us"}


def frames(seed: int, rows: int = 2_000, keys: int = 40, span: int = 20_000) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sorted by time; many equal times."""
    rng, found = np.random.default_rng(seed), []
    for column, value in (("t", "a"), ("u", "b")):
        ts = np.sort(rng.integers(0, span, rows))
        found.append(pd.DataFrame({"k": rng.integers(0, keys, rows), column: ts, value: np.arange(rows)}))
    return found[0], found[1]


def rows_of(table: Any) -> list[tuple[int, int | None]]:
    """Of each left row its number, and its match's."""
    plain = table.to_pydict()
    return sorted(zip(plain["a"], plain["b"], strict=True))


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("seed", range(3))
def test_pandas_has_the_same_rows(seed: int, match: Match) -> None:
    left, right = frames(seed)
    theirs = pd.merge_asof(left, right, left_on="t", right_on="u", by="k", tolerance=300, direction=DIRECTIONS[match])
    wanted = [(a, None if pd.isna(b) else int(b)) for a, b in zip(theirs["a"].tolist(), theirs["b"].tolist(), strict=True)]
    shuffled = (frame.sample(frac=1, random_state=seed) for frame in (left, right)) if match != "last" else (left, right)
    found = api.join(left, right, on="k", within="300us", match=match, how="left", **TIMES)
    assert rows_of(found) == sorted(wanted)
    assert api.proof(found).ledger.balanced
    inner = api.join(left, right, on="k", within="300us", match=match, **TIMES)
    assert rows_of(inner) == [row for row in rows_of(found) if row[1] is not None]
    counted = api.count(left, right, on="k", within="300us", match=match, how="left", **TIMES)
    assert (counted.count, counted.digest) == (len(found), api.proof(found).digest)
    in_any_order = api.join(*shuffled, on="k", within="300us", match=match, how="left", **TIMES)
    assert len(in_any_order) == len(left)


@pytest.mark.parametrize("match", ["last", "first"])
def test_polars_and_duckdb_have_the_same_rows(match: Match) -> None:
    """Without equal times, of which they choose any."""
    rng = np.random.default_rng(5)
    one, two = np.split(rng.permutation(40_000)[:4_000], 2)
    left = pa.table({"k": rng.integers(0, 30, 2_000), "t": np.sort(one), "a": np.arange(2_000)})
    right = pa.table({"k": rng.integers(0, 30, 2_000), "u": np.sort(two), "b": np.arange(2_000)})
    found = rows_of(api.join(left, right, on="k", within="700us", match=match, how="left", **TIMES))
    sides = (pl.DataFrame(pl.from_arrow(table)) for table in (left, right))
    options: dict[str, Any] = {"strategy": DIRECTIONS[match], "tolerance": 700, "check_sortedness": False}
    theirs = next(sides).join_asof(next(sides), left_on="t", right_on="u", by="k", **options)
    assert found == sorted(zip(theirs["a"].to_list(), theirs["b"].to_list(), strict=True))
    sign, tested = (">=", "l.t - r.u") if match == "last" else ("<=", "r.u - l.t")
    with duckdb.connect() as db:
        db.register("l", left)
        db.register("r", right)
        joined = f"SELECT a, CASE WHEN {tested} <= 700 THEN b END FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.t {sign} r.u"
        assert found == sorted(db.execute(joined).fetchall())


@pytest.mark.parametrize("match", MATCHES)
def test_any_order_null_keys_and_a_condition(match: Match) -> None:
    """Against the definition."""
    rng = np.random.default_rng(7)
    tables, tuples = [], []
    for column, number in (("t", "a"), ("u", "b")):
        key, ts, v = rng.integers(0, 12, 400), rng.integers(0, 3_000, 400), rng.integers(0, 9, 400)
        null = rng.random(400) < 0.1
        tables.append(pa.table({"k": pa.array(key, mask=null), column: ts, "v": v, number: np.arange(400)}))
        keep = np.flatnonzero(~null)
        tuples.append((TupleBatch(key[keep], ts[keep], keep.astype(np.uint64), ts[keep]), v[keep]))
    (left, of_left), (right, of_right) = tuples
    bounds = Bounds(-200, 150)
    found = api.join(
        *tables, on="k", lower="-200us", upper="150us", match=match, how="left", where="left_v <= right_v", **TIMES
    )
    chosen = as_of(left, right, bounds, match, lambda i, j: bool(of_left[i] <= of_right[j]))
    wanted = dict.fromkeys(range(400))
    wanted |= {int(left.id[i]): None if j is None else int(right.id[j]) for i, j in enumerate(chosen)}
    assert dict(rows_of(found)) == wanted


@pytest.mark.parametrize("match", MATCHES)
def test_ids_that_columns_name_decide_ties(match: Match) -> None:
    """Whatever the order of the rows, and in every call."""
    rng = np.random.default_rng(17)
    sides = []
    for column, number in (("t", "a"), ("u", "b")):
        sides.append(
            pa.table({"k": rng.integers(0, 4, 300), column: rng.integers(0, 40, 300), number: rng.permutation(9_000)[:300]})
        )
    options: dict[str, Any] = {"on": "k", "within": "5us", "match": match, "how": "left", **TIMES}
    options |= {"left_id": "a", "right_id": "b"}
    left, right = (
        TupleBatch(np.array(side["k"]), np.array(side[c]), np.array(side[n]).astype(np.uint64), np.zeros(300, np.int64))
        for side, c, n in ((sides[0], "t", "a"), (sides[1], "u", "b"))
    )
    chosen = as_of(left, right, Bounds(-5, 5), match)
    wanted = sorted((int(left.id[i]), None if j is None else int(right.id[j])) for i, j in enumerate(chosen))
    found = api.join(*sides, ids=True, **options)
    plain = found.to_pydict()
    assert sorted(zip(plain["left_id"], plain["right_id"], strict=True)) == wanted
    assert api.proof(found).digest == api.count(*sides, **options).digest
    pushed = api.WindowJoin(ids=True, max_out_of_order="1s", **options)
    rows = [
        row
        for table in (*pushed.push(left=sides[0]), *pushed.push(right=sides[1]), *pushed.close())
        for row in table.to_pylist()
    ]
    assert sorted((row["left_id"], row["right_id"]) for row in rows) == wanted


@pytest.mark.parametrize("match", MATCHES)
def test_without_join_columns(match: Match) -> None:
    left, right = (frame.drop(columns="k") for frame in frames(9, 300))
    theirs = pd.merge_asof(left, right, left_on="t", right_on="u", tolerance=40, direction=DIRECTIONS[match])
    wanted = [(a, None if pd.isna(b) else int(b)) for a, b in zip(theirs["a"].tolist(), theirs["b"].tolist(), strict=True)]
    assert rows_of(api.join(left, right, within="40us", match=match, how="left", **TIMES)) == sorted(wanted)


# ---------------------------------------------------------------- rows that are pushed


def test_a_pushed_row_comes_out_when_nothing_can_be_better() -> None:
    options: dict[str, Any] = {"on": "k", "within": "10us", "how": "left", **TIMES}

    def pushed(match: Match) -> list[list[tuple[int, int | None]]]:
        join = api.WindowJoin(match=match, **options)
        steps: list[Any] = [
            ("left", {"k": [1], "t": [100], "a": [0]}),
            ("right", {"k": [1, 2], "u": [97, 100], "b": [0, 1]}),
            ("left", {"k": [1], "t": [101], "a": [1]}),
            ("right", {"k": [1], "u": [102], "b": [2]}),
            ("left", {"k": [2], "t": [103], "a": [2]}),
            ("right", {"k": [3], "u": [120], "b": [3]}),
            ("left", {"k": [3], "t": [130], "a": [3]}),
        ]
        out = []
        for side, columns in steps:
            got = join.push(left=pa.table(columns)) if side == "left" else join.push(right=pa.table(columns))
            out.append([row for table in got for row in rows_of(table)])
        out.append([row for table in join.close() for row in rows_of(table)])
        assert join.ledger.balanced
        return out

    # of key 1: left 100 and 101, right 97 and 102; of key 2: left 103, right 100; of key 3: left 130, right 120
    last, first, nearest = (pushed(match) for match in MATCHES)
    assert sorted(list(chain(*last))) == [(0, 0), (1, 0), (2, 1), (3, 3)]
    assert sorted(list(chain(*first))) == [(0, 2), (1, 2), (2, None), (3, None)]
    assert sorted(list(chain(*nearest))) == [(0, 2), (1, 2), (2, 1), (3, 3)]
    assert (0, 0) in list(chain(*last[:4])), "right time has passed left's"
    assert (0, 2) in list(chain(*first[:6])), "its match has come"


def test_frames_come_back() -> None:
    left, right = frames(3, 50)
    found = api.join(left, right, on="k", within="1s", match="nearest", returns="pandas", **TIMES)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == ["k", "t", "a", "u", "b"]


# ---------------------------------------------------------------- SQL, streams, commands, ranks


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("as-of")
    for name, frame in zip(("left", "right"), frames(11, 4_000), strict=True):
        pq.write_table(pa.Table.from_pandas(frame), folder / f"{name}.parquet", row_group_size=500)
    return folder


def test_sql_streams_and_python_have_the_same_rows(files: Path) -> None:
    left, right = (pq.read_table(files / f"{name}.parquet") for name in ("left", "right"))
    tables: dict[str, Any] = {"l": left, "r": right, "time": {"l": "t", "r": "u"}, "time_unit": "us"}
    between = {
        "last": "l.t - INTERVAL 300 MICROSECOND AND l.t",
        "first": "l.t AND l.t + INTERVAL 300 MICROSECOND",
        "nearest": "l.t - INTERVAL 300 MICROSECOND AND l.t + INTERVAL 300 MICROSECOND",
    }
    one, two = api.stream(left, time="t", time_unit="us"), api.stream(right, time="u", time_unit="us")
    for match in MATCHES:
        wanted = rows_of(api.join(left, right, on="k", within="300us", match=match, how="left", **TIMES))
        query = f"SELECT l.a, r.b FROM l ASOF LEFT JOIN r ON l.k = r.k AND r.u BETWEEN {between[match]}"
        assert rows_of(api.sql(query, **tables)) == wanted
        assert rows_of(one.join_asof(two, on="k", within="300us", match=match).collect()) == wanted
        inner = one.join_asof(two, on="k", within="300us", match=match, how="inner").collect()
        assert rows_of(inner) == [row for row in wanted if row[1] is not None]


def test_an_as_of_join_is_joined_aggregated_and_restricted_afterwards(files: Path) -> None:
    """A condition of WHERE is on the match, and chooses no other one."""
    left, right = (pq.read_table(files / f"{name}.parquet") for name in ("left", "right"))
    tables: dict[str, Any] = {"l": left, "r": right, "time": {"l": "t", "r": "u"}, "time_unit": "us"}
    on = "l.k = r.k AND r.u BETWEEN l.t - INTERVAL 300 MICROSECOND AND l.t"
    pairs = [(a, b) for a, b in rows_of(api.sql(f"SELECT l.a, r.b FROM l ASOF JOIN r ON {on}", **tables)) if b is not None]
    odd = api.sql(f"SELECT l.a, r.b FROM l ASOF JOIN r ON {on} WHERE r.b % 2 = 1", **tables)
    assert rows_of(odd) == [(a, b) for a, b in pairs if b % 2 == 1]
    restricted = api.sql(f"SELECT l.a, r.b FROM l ASOF JOIN r ON {on} AND r.b % 2 = 1", **tables)
    assert len(restricted) >= len(odd)
    windows = f"TUMBLE((SELECT l.t FROM l ASOF JOIN r ON {on}), t, INTERVAL '1' MILLISECOND)"
    sums = api.sql(f"SELECT window_start, count(*) AS n FROM {windows} GROUP BY window_start", **tables)
    assert sum(sums["n"].to_pylist()) == len(pairs)


@pytest.mark.drawn
@pytest.mark.parametrize("match", MATCHES)
def test_commands(match: Match, files: Path, tmp_path: Path, swjoin: Any) -> None:
    """The command, a configuration with several gateways, its verification by DuckDB, and what explains and plans it."""
    tables = [pq.read_table(files / f"{name}.parquet") for name in ("left", "right")]
    wanted = api.join(*tables, on="k", within="300us", match=match, how="left", **TIMES)
    arguments = [
        "--on",
        "k",
        "--left-time",
        "t",
        "--right-time",
        "u",
        "--time-unit",
        "us",
        "--within",
        "300us",
        "--match",
        match,
    ]
    paths = [files / "left.parquet", files / "right.parquet"]
    outcome = swjoin("join", *paths, *arguments, "--how", "left", "-o", tmp_path / "out.parquet")
    assert outcome.code == 0, outcome.err
    assert rows_of(pq.read_table(tmp_path / "out.parquet")) == rows_of(wanted)
    plain = {
        "join": {"on": "k", "within": "300us", "match": match, "how": "left"},
        "left": {"path": str(paths[0]), "time": "t", "time_unit": "us"},
        "right": {"path": str(paths[1]), "time": "u", "time_unit": "us"},
        "cluster": {"epoch_tuples": 500, "distribution_epoch": "0us", "gateways": 2, "partition_count": 9},
        "sink": {"kind": "parquet", "ids": True},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(plain))
    outcome = swjoin("run", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["results"]["count"] == len(wanted)
    assert report["results"]["digest"] == api.proof(wanted).digest
    assert report["results"]["matches"] == sum(b is not None for _, b in rows_of(wanted))
    assert report["ledger"]["balanced"]
    outcome = swjoin("verify", tmp_path / "run")
    assert outcome.code == 0, outcome.out
    for command in ("explain", "plan"):
        outcome = swjoin(command, tmp_path / "c.yaml")
        assert outcome.code == 0, outcome.err
        said = " ".join(outcome.out.split())
        assert {"explain": "A left tuple joins the", "plan": "an as-of join gives at most one row"}[command] in said


@pytest.mark.drawn
@pytest.mark.spark
def test_spark_has_and_verifies_the_same_rows(files: Path, tmp_path: Path, swjoin: Any, spark: Any) -> None:
    from swjoin.spark import window_join

    tables = [pq.read_table(files / f"{name}.parquet") for name in ("left", "right")]
    sides = [spark.read.parquet(str(files / f"{name}.parquet")) for name in ("left", "right")]
    for match in MATCHES:
        wanted = rows_of(api.join(*tables, on="k", within="300us", match=match, how="left", **TIMES))
        rows = window_join(*sides, on="k", within="300us", match=match, how="left", partitions=3, **TIMES).select("a", "b")
        assert sorted(map(tuple, rows.collect())) == wanted
    arguments = ["--on", "k", "--left-time", "t", "--right-time", "u", "--time-unit", "us", "--within", "300us"]
    paths = [files / "left.parquet", files / "right.parquet"]
    for match in MATCHES:
        report = tmp_path / f"{match}.json"
        outcome = swjoin("join", *paths, *arguments, "--match", match, "-o", tmp_path / f"{match}.parquet", "--report", report)
        assert outcome.code == 0, outcome.err


@pytest.mark.mpi
@pytest.mark.drawn
def test_ranks(files: Path) -> None:
    tables = [pq.read_table(files / f"{name}.parquet") for name in ("left", "right")]
    for match in MATCHES[1:]:
        options: dict[str, Any] = {"on": "k", "within": "300us", "match": match, "how": "left", **TIMES}
        here, there = api.join(*tables, **options), api.join(*tables, ranks=4, **options)
        assert rows_of(here) == rows_of(there)
        assert api.proof(here).digest == api.proof(there).digest


# ---------------------------------------------------------------- what is refused


def _refused(**options: Any) -> str:
    left, right = frames(1, 5)
    given: dict[str, Any] = {"on": "k", "within": "1s", "match": "last", **TIMES} | options
    with pytest.raises(UserError) as raised:
        api.join(left, right, **given)
    return str(raised.value)


def test_what_can_only_be_a_mistake_is_refused() -> None:
    assert "did you mean 'last'" in _refused(match="lsat")
    assert "a right join has no match last" in _refused(how="right")
    assert "a semi join has no match last" in _refused(how="semi")
    assert "no right time at or before a left one" in _refused(within=None, lower="1s", upper="2s")
    assert "no right time at or after a left one" in _refused(within=None, lower="-2s", upper="-1s", match="first")
    assert "the window is missing" in _refused(within=None)
    assert "leave last out" in _refused(within=None, last=3)
    assert "an as-of join goes by hash" in _refused(routing="matrix:2,2")
    assert "an as-of join goes by hash" in _refused(routing="skew")


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ("ASOF JOIN r ON l.k = r.k AND r.u <= l.t", "no lower bound of r.u"),
        ("ASOF JOIN r ON l.k = r.k AND r.u >= l.t", "no upper bound of r.u"),
        ("ASOF JOIN r ON l.k = r.k", "no time condition"),
        ("ASOF JOIN r USING (k)", "USING bounds no time"),
        ("ASOF RIGHT JOIN r ON l.k = r.k AND r.u = l.t", "ASOF RIGHT JOIN is not supported"),
        ("ASOF FULL JOIN r ON l.k = r.k AND r.u = l.t", "ASOF FULL JOIN is not supported"),
        ("POSITIONAL JOIN r", "not supported"),
    ],
)
def test_sql_that_is_refused(join: str, message: str) -> None:
    left, right = (pa.Table.from_pandas(frame) for frame in frames(1, 5))
    with pytest.raises(UserError, match=message):
        api.sql(f"SELECT l.a FROM l {join}", l=left, r=right, time={"l": "t", "r": "u"}, time_unit="us")


def test_bounds_of_one_time() -> None:
    """Strict comparisons count; where bounds alone would be taken for another match, it is refused."""
    left = pa.table({"k": [1], "t": [10], "a": [0]})
    right = pa.table({"k": [1, 1], "u": [10, 10], "b": [0, 1]})
    tables: dict[str, Any] = {"l": left, "r": right, "time": {"l": "t", "r": "u"}, "time_unit": "us"}
    join = "SELECT l.a, r.b FROM l ASOF JOIN r ON l.k = r.k AND"
    after = "r.u <= l.t + INTERVAL 5 MICROSECOND"
    for lower, b in (("r.u >= l.t", 0), ("r.u > l.t - INTERVAL 1 MICROSECOND", 0), ("r.u > l.t - INTERVAL 2 MICROSECOND", 1)):
        assert api.sql(f"{join} {lower} AND {after}", **tables)["b"].to_pylist() == [b]
    one, two = api.stream(left, time="t", time_unit="us"), api.stream(right, time="u", time_unit="us")
    assert one.join_asof(two, on="k", within="0us").collect()["b"].to_pylist() == [1]
    assert one.join_asof(two, on="k", within="1us", match="first").collect()["b"].to_pylist() == [0]
    with pytest.raises(UserError, match="match 'first' does not fit bounds from 0 us to 0 us"):
        one.join_asof(two, on="k", within="0us", match="first")
    with pytest.raises(UserError, match="match 'nearest' does not fit bounds from 0 us to 5 us"):
        one.join_asof(two, on="k", lower="0us", upper="5us", match="nearest")


def test_a_static_table_has_no_times() -> None:
    left, right = (pa.Table.from_pandas(frame) for frame in frames(1, 5))
    query = "SELECT l.a FROM l ASOF JOIN r ON l.k = r.k"
    with pytest.raises(UserError, match="ASOF JOIN of static table r"):
        api.sql(query, l=left, tables={"r": right}, time={"l": "t"}, time_unit="us")


def test_runs_that_cannot_be_as_of_joins() -> None:
    plain = {"join": {"within": "1s", "match": "first"}, "pace": "realtime", "cluster": {"distribution_epoch": "1s"}}
    with pytest.raises(UserError, match="shed drops tuples"):
        config_from_plain({**plain, "on_overload": {"policy": "shed"}})
    with pytest.raises(UserError, match="match first cannot be measured after a prefill"):
        config_from_plain({**plain, "measure": {"prefill": "1s"}})
    far = pa.table({"k": [1], "t": [3 << 58]}), pa.table({"k": [1], "u": [-(3 << 58)]})
    with pytest.raises(RunFailed, match=r"within \d+ us of 1970"):
        api.count(*far, on="k", within="unbounded", match="last", **TIMES)


@pytest.mark.parametrize("match", MATCHES)
def test_views_of_matches(match: Match, tmp_path: Path, swjoin: Any) -> None:
    """`swjoin join --agg`: each second, of all matches whose later tuple has come."""
    left, right = frames(17, span=20_000_000)
    for name, frame in (("left", left), ("right", right)):
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / f"{name}.parquet")
    files = [tmp_path / "left.parquet", tmp_path / "right.parquet", "--on", "k", "--left-time", "t", "--right-time", "u"]
    agg = ["--agg", "count(*) AS n, sum(right.b) AS s", "--group-by", "k", "--every", "1s", "-o", tmp_path / "views.parquet"]
    done = swjoin("join", *files, "--time-unit", "us", "--within", "300ms", "--match", match, *agg)
    assert done.code == 0, done.err
    views = pq.read_table(tmp_path / "views.parquet").to_pydict()
    pairs = pd.merge_asof(
        left, right, left_on="t", right_on="u", by="k", tolerance=300_000, direction=DIRECTIONS[match]
    ).dropna()
    pairs["at"] = np.maximum(pairs["t"], pairs["u"])
    wanted, ends = {}, sorted({-(-int(at) // 1_000_000) for at in pairs["at"]})
    for end in range(ends[0], ends[-1] + 1):
        groups = pairs[pairs["at"] <= end * 1_000_000].groupby("k")["b"].agg(["count", "sum"])
        wanted |= {(end, int(k)): (int(row["count"]), int(row["sum"])) for k, row in groups.iterrows()}
    seconds = pa.array(views["as_of"]).cast(pa.int64()).to_numpy() // 1_000_000
    found = dict(zip(zip(seconds.tolist(), views["k"], strict=True), zip(views["n"], views["s"], strict=True), strict=True))
    assert found == wanted
    assert len(found) > 100


@pytest.mark.mpi
@pytest.mark.parametrize(
    "match",
    [
        pytest.param("last", marks=pytest.mark.drawn),
        pytest.param("first", marks=pytest.mark.long),
        pytest.param("nearest", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_goes_on(match: Match, tmp_path: Path, swjoin: Any) -> None:
    """A rank is killed, and the others go on; or all are, and the run is resumed on fewer. Two gateways."""
    for name, frame in zip(("left", "right"), frames(13, 200_000, 2_000, 200_000_000), strict=True):
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / f"{name}.parquet", row_group_size=10_000)
    options: dict[str, Any] = {"on": "k", "within": "2s", "match": match, "how": "left", **TIMES}
    wanted = api.count(*(tmp_path / f"{name}.parquet" for name in ("left", "right")), **options)
    plain = {
        "join": {"on": "k", "within": "2s", "match": match, "how": "left"},
        "left": {"path": str(tmp_path / "left.parquet"), "time": "t", "time_unit": "us"},
        "right": {"path": str(tmp_path / "right.parquet"), "time": "u", "time_unit": "us"},
        "cluster": {"epoch_tuples": 1_000, "distribution_epoch": "0us", "gateways": 2, "partition_count": 20},
        "checkpoint": {"epochs": 2},
        "sink": {"kind": "parquet", "ids": True},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(plain))
    for whole in (False, True):
        run = tmp_path / f"run-{whole}"
        command = [sys.executable, "-m", "swjoin", "run", tmp_path / "c.yaml", "--out", run, "-n", "5"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        until_s = time.monotonic() + PROCESS_S
        while process.poll() is None and len(list((run / "checkpoints").glob("checkpoint-*"))) == 0:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        ranks = ranks_of(process.pid)
        for rank in ranks.values() if whole else [ranks[max(ranks)]] if ranks else []:  # the last one is a slave's
            with contextlib.suppress(ProcessLookupError):  # the run has ended
                os.kill(rank, signal.SIGKILL)
        said, _ = process.communicate(timeout=PROCESS_S)
        if not (run / "run.json").exists() or not json.loads((run / "run.json").read_text())["complete"]:
            outcome = swjoin("run", "--resume", run, "-n", "4")
            assert outcome.code == 0, f"{said}{outcome.err}"
        report = json.loads((run / "run.json").read_text())
        assert (report["results"]["count"], report["results"]["digest"]) == (wanted.count, wanted.digest)
        assert report["ledger"]["balanced"]

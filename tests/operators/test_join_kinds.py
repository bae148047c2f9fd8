"""Outer, semi and anti joins: every known case, random workloads against DuckDB row by row, restored and moved marks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.config.run import QueryConfig
from swjoin.core.batch import TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How
from swjoin.operators.unmatched_rows import Unmatched
from swjoin.operators.window_join import WindowJoinOperator
from tests.support.cases import CASES, Case, moving
from tests.support.in_process import answer as found
from tests.support.in_process import run
from tests.support.planted import complaints
from tests.tools.oracle import answer, brute_force
from tests.tools.random_runs import Scenario

OTHERS: list[How] = ["left", "right", "full", "semi", "anti"]


def test_the_definition_by_hand() -> None:
    def batch(keys: list[int], times: list[int]) -> TupleBatch:
        ts = np.array(times, np.int64)
        return TupleBatch(np.array(keys, np.int64), ts, np.arange(len(keys), dtype=np.uint64), ts)

    left, right, none = batch([1, 2, 1], [0, 0, 50]), batch([1, 3, 1], [5, 0, 6]), 2**64 - 1
    nulls = np.array([9], np.uint64), np.array([], np.uint64)
    rows = {
        how: sorted(zip(*(ids.tolist() for ids in answer(left, right, Bounds(-10, 10), how, nulls)), strict=True))
        for how in JOIN_KINDS
    }
    pairs = [(0, 0), (0, 2)]
    assert rows == {
        "inner": pairs,
        "left": [*pairs, (1, none), (2, none), (9, none)],
        "right": [*pairs, (none, 1)],
        "full": [*pairs, (1, none), (2, none), (9, none), (none, 1)],
        "semi": [(0, none)],
        "anti": [(1, none), (2, none), (9, none)],
    }


def _matrix() -> list[Any]:
    """Every case with every kind; a third of them in every run of the suite."""
    both = [(case, how) for case in CASES for how in OTHERS]
    marks = [() if i % 3 == 0 else (pytest.mark.long,) for i in range(len(both))]
    return [pytest.param(*pair, marks=m, id=f"{pair[0].name}, {pair[1]}") for pair, m in zip(both, marks, strict=True)]


def _blocks(count: int, often: int) -> list[Any]:
    return [pytest.param(block, marks=() if block < often else (pytest.mark.drawn,)) for block in range(count)]


@pytest.mark.parametrize(("case", "how"), _matrix())
def test_known_cases(case: Case, how: How, tmp_path: Path) -> None:
    """On one slave or on four, standing still or while partition-groups and slaves come and go."""
    number = CASES.index(case) + OTHERS.index(how)
    sections: dict[str, Any] = moving(case) if number % 2 else {}
    report = run(case.write(tmp_path, join={"how": how}, **sections), tmp_path, 4 if number % 2 else 1)
    assert found(report) == case.answer(how)
    assert report["ledger"]["balanced"]
    assert pq.read_table(tmp_path / "run" / "results").num_rows == report["results"]["count"]


def _table(random: np.random.Generator, n: int, span: int, side: int, strings: bool) -> pa.Table:
    keys = random.integers(0, int(random.choice([1, 5, 40, 400])), n)
    missing = random.random(n) < random.choice([0, 0.1])
    key = pa.array([None if gone else f"k{k}" if strings else int(k) for k, gone in zip(keys, missing, strict=True)])
    types = (pa.large_string(), pa.string()) if strings else (pa.int64(), pa.int32())
    key = key.cast(types[side])
    ts = np.sort(random.integers(0, span, n))
    value = pa.array([None if random.random() < 0.1 else int(v) for v in random.integers(0, 1000, n)], pa.int16())
    text = pa.array([None if random.random() < 0.1 else "x" * int(v) for v in random.integers(0, 9, n)], pa.string())
    return pa.table({"key": key, "ts": pa.array(ts, pa.int64()), "value": value, f"text{side}": text})


_SQL = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "SEMI", "anti": "ANTI"}


def _by_duckdb(left: pa.Table, right: pa.Table, how: How, lower: int, upper: int, more: str = "true") -> list[tuple[Any, ...]]:
    left = left.append_column("id", pa.array(range(len(left)), pa.int64()))
    right = right.append_column("id", pa.array(range(len(right)), pa.int64()))
    mine = "l.id, l.ts, l.key, l.ts, l.value, l.text0"
    both = "l.id, r.id, l.ts, r.ts, coalesce(l.key, r.key), l.ts, l.value, l.text0, r.ts, r.value, r.text1"
    columns = mine if how in ("semi", "anti") else both
    where = f"l.key = r.key AND r.ts - l.ts BETWEEN {lower} AND {upper} AND {more}"
    connection = duckdb.connect()
    connection.register("lefts", left)
    connection.register("rights", right)
    return connection.execute(f"SELECT {columns} FROM lefts l {_SQL[how]} JOIN rights r ON {where}").fetchall()


@pytest.mark.parametrize("block", _blocks(8, 1))
def test_random_workloads_row_by_row(block: int, tmp_path: Path) -> None:
    """25 workloads each: any kind, bounds, skew, keys of any type, with nulls; one slave or three, moves on or off."""
    for seed in range(25 * block, 25 * block + 25):
        random = np.random.default_rng([seed, 77])
        how: How = list(JOIN_KINDS)[seed % 6]
        span = int(random.choice([100, 5_000]))
        strings = bool(random.random() < 0.4)
        left, right = (_table(random, int(random.choice([0, 1, 60, 300])), span, side, strings) for side in (0, 1))
        w = max(1, span // int(random.choice([3, 20, 100])))
        lower, upper = [(-w, w), (-w, 3 * w), (0, w), (w // 2, 2 * w), (-2 * w, -w // 2), (0, 0)][random.integers(6)]
        exclusive = [name for name in ("lower", "upper") if random.random() < 0.2]
        folder = tmp_path / str(seed)
        folder.mkdir()
        pq.write_table(left, folder / "left.parquet")
        pq.write_table(right, folder / "right.parquet")
        plain: dict[str, Any] = {
            "join": {"lower_us": lower, "upper_us": upper, "exclusive": exclusive, "how": how},
            "cluster": {"partition_count": 7, "distribution_epoch_us": int(random.choice([span // 30 + 1, span]))},
            "module": {"block_bytes": 256, "theta_bytes": int(random.choice([0, 1024])), "window": "16MB"},
            **{name: {"path": str(folder / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")},
        }
        if random.random() < 0.5:
            t_d = plain["cluster"]["distribution_epoch_us"]
            plain["reorganization"] = {"policy": "random", "random_moves": 3, "epoch_us": t_d, "declustering": "adaptive"}
        config = folder / "config.yaml"
        config.write_text(json.dumps(plain))
        report = run(config, folder, int(random.choice([1, 3])))
        lower, upper = lower + ("lower" in exclusive), upper - ("upper" in exclusive)
        expected = _by_duckdb(left, right, how, lower, upper)
        assert report["results"]["count"] == len(expected), f"seed {seed}, {how}"
        rows = pq.read_table(folder / "run" / "results").to_pylist()
        order = lambda row: tuple((value is None, str(value)) for value in row)  # noqa: E731
        assert sorted((tuple(row.values()) for row in rows), key=order) == sorted(expected, key=order), f"seed {seed}, {how}"


def test_a_row_comes_out_as_soon_as_its_window_has_passed_although_the_other_stream_is_silent(tmp_path: Path) -> None:
    """Kafka Streams held left rows back until the right stream spoke again; here a delivery's punctuations are enough."""
    from swjoin.core.data_messages import Route
    from tests.support.join_module import delivery, drive, make, stream

    join = make(Bounds(-10, 10), block_tuples=64, theta_tuples=512, kind=JOIN_KINDS["left"])
    lefts, empty = stream([1, 2, 3], [0, 5, 9], None), TupleBatch.empty()
    both = (Route.BOTH, Route.BOTH)
    came = []
    for times in ((10, 0), (10, 10), (10, 11), (10, 16), (10, 16), (40, 40)):
        pairs, _, _ = drive(join, delivery(0, empty if came else lefts, empty, times, 1, both))
        came.append([int(i) for part in pairs for i in part.left_id])
    assert came == [[], [], [0], [1], [], [2]]


def test_a_tuple_whose_window_has_passed_when_it_arrives_comes_out_once() -> None:
    """Spark dropped such rows with old state (SPARK-26154)."""
    from swjoin.core.data_messages import Route
    from tests.support.join_module import delivery, drive, make, stream

    join = make(Bounds(-10, 10), result_tuples=2, kind=JOIN_KINDS["full"])
    empty, both = TupleBatch.empty(), (Route.BOTH, Route.BOTH)
    drive(join, delivery(0, empty, stream([7] * 9, [1000] * 9, None), (0, 1000), 1, both))
    pairs, count, _ = drive(join, delivery(1, stream([1] * 9, list(range(9)), None), empty, (9, 1000), 1, both))
    assert count == 9
    assert sorted(int(i) for part in pairs for i in part.left_id) == list(range(9))
    pairs, count, _ = drive(join, delivery(2, empty, empty, (1011, 1011), 1, both))
    assert [part.side for part in pairs] == [1] * len(pairs)
    assert count == 9


def test_brute_force_agrees_with_itself() -> None:
    random = np.random.default_rng(3)
    ts = np.sort(random.integers(0, 500, 200))
    left = TupleBatch(random.integers(0, 9, 200), ts, np.arange(200, dtype=np.uint64), ts)
    i, _ = brute_force(left, left, Bounds(1, 5))
    semi, anti = (answer(left, left, Bounds(1, 5), how)[0] for how in ("semi", "anti"))
    assert sorted(set(i.tolist())) == sorted(semi.tolist())
    assert sorted([*semi.tolist(), *anti.tolist()]) == list(range(200))


# ---------------------------------------------------------------- from Python


def _sorted(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=lambda row: tuple((value is None, str(value)) for value in row))


def _api_case(seed: int) -> tuple[pa.Table, pa.Table, How, dict[str, Any], list[tuple[Any, ...]]]:
    random = np.random.default_rng([seed, 78])
    how: How = list(JOIN_KINDS)[seed % 6]
    strings = bool(random.random() < 0.4)
    left, right = (_table(random, int(random.choice([0, 1, 60, 200])), 2000, side, strings) for side in (0, 1))
    where = random.random() < 0.5
    arguments: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "ids": True, "how": how}
    arguments |= {"lower": "-100us", "upper": "300us"}
    if where:
        arguments["where"] = "left_value <= right_value or text0 = text1"
    more = "(l.value <= r.value or l.text0 = r.text1)" if where else "true"
    return left, right, how, arguments, _sorted(_by_duckdb(left, right, how, -100, 300, more))


@pytest.mark.parametrize("block", _blocks(3, 1))
def test_tables_joined_from_python(block: int) -> None:
    """In any row order, on one thread or two; and pushed batch by batch, in time order."""
    import swjoin

    for seed in range(20 * block, 20 * block + 20):
        left, right, how, arguments, expected = _api_case(seed)
        random = np.random.default_rng([seed, 79])
        table = swjoin.join(left, right, threads=int(random.integers(1, 3)), **arguments)
        assert _sorted(row.values() for row in table.to_pylist()) == expected, (seed, how)
        found = swjoin.proof(table)
        assert found.ledger.balanced
        assert found.count == len(expected)
        count = swjoin.count(left, right, **{k: v for k, v in arguments.items() if k != "ids"})
        assert (count.count, count.digest) == (found.count, found.digest)
        order = random.permutation(len(left))  # ids are positions, whatever the order
        again = swjoin.join(left.take(order), right, **arguments)
        assert again.num_rows == table.num_rows
        rows = []
        with swjoin.WindowJoin(**arguments, left_schema=left.schema, right_schema=right.schema) as pushed:
            parts = [
                (float(batch["ts"][0].as_py()), side, batch)
                for side, whole in (("left", left), ("right", right))
                for batch in whole.to_batches(max_chunksize=int(random.choice([1, 7, 50])))
                if len(batch)
            ]
            for _, side, batch in sorted(parts, key=lambda part: part[0]):
                for out in pushed.push(**{side: batch}):
                    rows += out.to_pylist()
            for out in pushed.close():
                rows += out.to_pylist()
            assert _sorted(row.values() for row in rows) == expected, (seed, how)
            assert pushed.ledger.balanced
            assert pushed.digest == found.digest


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.drawn) for n in (3, 10, 11))])
def test_tables_joined_on_ranks(seed: int) -> None:
    """With and without a predicate, strings and numbers as keys."""
    import swjoin

    left, right, how, arguments, expected = _api_case(seed)
    table = swjoin.join(left, right, ranks=4, **arguments)
    assert _sorted(row.values() for row in table.to_pylist()) == expected, how


def test_a_row_is_certain_when_time_has_passed_its_window() -> None:
    import swjoin

    def batch(*times: int) -> pa.RecordBatch:
        return pa.record_batch({"k": pa.array([1] * len(times), pa.int64()), "t": pa.array(times, pa.int64())})

    with swjoin.WindowJoin(
        on="k", left_time="t", right_time="t", time_unit="us", within="10us", how="anti", right_schema=batch().schema
    ) as join:
        assert [out.num_rows for out in join.push(left=batch(0, 5))] == []
        assert [out["t"].to_pylist() for out in join.advance(11)] == [[0]]
        assert [out.num_rows for out in join.push(right=batch(12))] == []
        assert [out["t"].to_pylist() for out in join.close()] == []


# ---------------------------------------------------------------- planted bugs must be caught


def _flags_stay_behind(patch: pytest.MonkeyPatch) -> None:
    """A partition-group moves, and who of it has matched is forgotten."""
    original = StateChunk.__init__

    def forgetful(self: StateChunk, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        if self.flags is not None:
            object.__setattr__(self, "flags", np.zeros_like(self.flags))

    patch.setattr(StateChunk, "__init__", forgetful)


def _not_joined_again(patch: pytest.MonkeyPatch) -> None:
    """After a crash windows are stored, and nobody has matched."""
    original = WindowJoinOperator.restore

    def forgetful(self: WindowJoinOperator, delivery: Any) -> None:
        mode, self._mode = self._mode, 0
        original(self, delivery)
        self._mode = mode
        self._candidates.mode[0] = mode

    patch.setattr(WindowJoinOperator, "restore", forgetful)


def _come_out_again(patch: pytest.MonkeyPatch) -> None:
    """After a crash nobody knows until when rows had come out."""
    patch.setattr(WindowJoinOperator, "restored", lambda self, times_us: None)
    patch.setattr(WindowJoinOperator, "restored_until", lambda self, times_us: None)


def _partners_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """The log keeps what is alive, and not what that may have matched."""
    patch.setattr(QueryConfig, "needed_below", lambda self, times_us: self.bounds.dead_below(times_us))


def _old_tuples_go_with_their_block(patch: pytest.MonkeyPatch) -> None:
    """Blocks are dropped by time alone, and so are tuples whose partition-group leaves."""
    patch.setattr(Unmatched, "limits", lambda self, dead_us: dead_us)
    patch.setattr(Unmatched, "settles", lambda self, stream: False)


def _null_keys_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamIntake, "_keep_null_keys", lambda self, *args: None)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (_flags_stay_behind, 88),
        (_not_joined_again, 54),
        (_come_out_again, 54),
        (_partners_are_dropped, 594),
        (_old_tuples_go_with_their_block, 180),
        (_null_keys_are_lost, 1),
    ],
)
def test_planted_bugs_are_caught(plant: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """first: a seed that tells; when what is drawn has changed, another one does."""
    plant(monkeypatch)
    seeds = (seed for seed in range(2000) if Scenario.draw(seed).config.query.how != "inner")
    assert complaints(itertools.chain([first], seeds), 1) == 1


# ---------------------------------------------------------------- what a second reading found


def test_streams_of_null_keys_alone_do_not_stop_the_run(tmp_path: Path) -> None:
    """They fill the mini-buffers, and nothing else could empty these."""
    n = 2000
    table = pa.table(
        {"key": pa.nulls(n, pa.int64()), "ts": pa.array(range(n), pa.int64()), "value": pa.array(range(n), pa.int64())}
    )
    for side in ("left", "right"):
        pq.write_table(table, tmp_path / f"{side}.parquet", row_group_size=100)
    plain: dict[str, Any] = {
        "join": {"within": "10us", "how": "full"},
        "cluster": {"distribution_epoch": "5us", "mini_buffer": "1KB"},
        "module": {"window": "16MB"},
        **{name: {"path": str(tmp_path / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    report = run(tmp_path / "config.yaml", tmp_path)
    assert report["results"]["count"] == 2 * n
    assert report["null_key"] == {"left": n, "right": n}
    rows = pq.read_table(tmp_path / "run" / "results").to_pylist()
    assert sorted(row["left_value"] for row in rows if row["left_id"] is not None) == list(range(n))
    assert {row["key"] for row in rows} == {None}


def test_arrival_times_of_null_keys_are_on_the_runs_axis(tmp_path: Path) -> None:
    ts = pa.array([10**9, None, 10**9 + 50_000], pa.int64())
    pq.write_table(pa.table({"key": pa.array([None, 1, None], pa.int64()), "ts": ts}), tmp_path / "left.parquet")
    pq.write_table(pa.table({"key": pa.array([5], pa.int64()), "ts": pa.array([10**9 + 1000])}), tmp_path / "right.parquet")
    plain: dict[str, Any] = {
        "join": {"within": "10us", "how": "left"},
        "pace": "realtime",
        "time": {"model": "arrival"},
        "cluster": {"distribution_epoch": "20ms"},
        "module": {"window": "16MB"},
        **{name: {"path": str(tmp_path / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    run(tmp_path / "config.yaml", tmp_path)
    rows = pq.read_table(tmp_path / "run" / "results").to_pylist()
    assert sorted((row["left_id"], row["left_ts"]) for row in rows) == [(0, 0), (1, 0), (2, 50_000)]


def test_an_empty_side_with_views() -> None:
    import swjoin

    left = pa.table({"k": pa.array([1, 2]), "t": pa.array([0, 0])})
    right = pa.table({"k": pa.array([], pa.int64()), "t": pa.array([], pa.int64()), "s": pa.array([], pa.string_view())})
    table = swjoin.join(left, right, on="k", left_time="t", right_time="t", time_unit="us", within="1us", how="full")
    assert table["s"].to_pylist() == [None, None]

"""Payload of tuples that move: every row against DuckDB, in threads and on ranks; freed payload is never read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import LEFT, RIGHT, PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Directory, Route
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import GroupId, QueryId, SlaveId
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How
from swjoin.core.key_encoder import Dictionary
from swjoin.core.row_codec import RowCodec
from swjoin.operators.join_operator import MoveId
from swjoin.runtime.in_process import run_local
from swjoin.state.payload_store import PAGE_ROWS, PayloadStore
from swjoin.state.window_state import WindowState
from tests.support.join_module import delivery, drive, make, payload, stream
from tests.support.ranks import run_jobs

_SPAN_US, _WITHIN_US = 4_000_000, 4_000
_SQL = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "SEMI", "anti": "ANTI"}
_WHERE = "left_value < right_value"


def _table(random: np.random.Generator, n: int, texts: bool) -> pa.Table:
    """Payload follows from the row's number."""
    value = np.arange(n) * 7919 % 1009
    table = pa.table({"key": random.integers(0, 3 * n, n) // 2, "ts": np.sort(random.integers(0, _SPAN_US, n)), "value": value})
    return table.append_column("text", pa.array([f"row {i}" * (i % 4) for i in range(n)])) if texts else table


class Moving:
    """Two streams whose windows are much shorter than a distribution epoch; partition-groups move in every one."""

    def __init__(self, folder: Path, seed: int, how: How, *, texts: bool, where: bool = False, **sections: Any) -> None:
        folder.mkdir(exist_ok=True)
        random = np.random.default_rng([seed, 15])
        self.how, self.where, self.texts = how, where, texts
        self.tables = _table(random, 1500, texts), _table(random, 1500, texts)
        plain: dict[str, Any] = {
            "seed": seed,
            "join": {"lower_us": -_WITHIN_US, "upper_us": _WITHIN_US, "how": how, **({"where": _WHERE} if where else {})},
            "cluster": {"partition_count": 30, "distribution_epoch_us": 100_000},
            "module": {"block_bytes": 1024, "theta_bytes": 4096, "window": "64MB"},
            "reorganization": {"policy": "random", "random_moves": 3, "epoch_us": 100_000},
            "sink": {"kind": "parquet"},
        }
        for name, section in sections.items():
            plain[name] = {**plain.get(name, {}), **section} if isinstance(section, dict) else section
        for name, table in zip(("left", "right"), self.tables, strict=True):
            pq.write_table(table, folder / f"{name}.parquet")
            plain[name] = {"path": str(folder / f"{name}.parquet"), "time_unit": "us"}
        self.out = folder / "run"
        self.job = Job(config_from_plain(plain), self.out / "results", True, self.out, None, "test")

    def moves(self) -> int:
        """How many have ended."""
        kinds = Counter(pq.read_table(self.out / "metrics" / "events.parquet")["kind"].to_pylist())
        return kinds["released"]

    def check(self) -> None:
        """Every row and all of its payload."""
        report = json.loads((self.out / "run.json").read_text())
        rows = [tuple(row.values()) for row in pq.read_table(self.out / "results").to_pylist()]
        assert report["ledger"]["balanced"]
        assert Counter(rows) == Counter(self._expected())

    def _expected(self) -> list[tuple[Any, ...]]:
        connection = duckdb.connect()
        for name, table in zip(("l", "r"), self.tables, strict=True):
            connection.register(name, table.append_column("id", pa.array(range(len(table)), pa.int64())))
        left, right = (", ".join(f"{s}.{c}" for c in ("ts", "value", *(["text"] if self.texts else []))) for s in "lr")
        alone = self.how in ("semi", "anti")
        columns = f"l.id, l.ts, l.key, {left}" if alone else f"l.id, r.id, l.ts, r.ts, coalesce(l.key, r.key), {left}, {right}"
        where = f"l.key = r.key AND r.ts - l.ts BETWEEN {-_WITHIN_US} AND {_WITHIN_US}"
        where += " AND l.value < r.value" if self.where else ""
        return connection.execute(f"SELECT {columns} FROM l {_SQL[self.how]} JOIN r ON {where}").fetchall()


def _matrix() -> list[Any]:
    """Every kind with every policy and both sorts of payload; a part of them in every run of the suite."""
    out = []
    for how in JOIN_KINDS:
        for policy in ("random", "paper", "balanced"):
            for texts in (True, False):
                for seed in range(5):
                    often = seed == 0 and (policy == "random" or (texts and how in ("full", "anti")))
                    marks = () if often and (texts or how in ("left", "inner")) else (pytest.mark.long,)
                    name = f"{how}, {policy}, {'text' if texts else 'fixed'}, {seed}"
                    out.append(pytest.param(how, policy, texts, seed, marks=marks, id=name))
    return out


@pytest.mark.drawn
@pytest.mark.parametrize(("how", "policy", "texts", "seed"), _matrix())
def test_slaves_as_threads(how: How, policy: str, texts: bool, seed: int, tmp_path: Path) -> None:
    """The thresholds of the paper's policy are such that whoever has anything to do is a supplier."""
    eager = {"supplier_threshold": 1e-6, "consumer_threshold": 1e-7} if policy == "paper" else {}
    moving = Moving(tmp_path, seed, how, texts=texts, where=seed == 1, reorganization={"policy": policy, **eager})
    run_local(moving.job, False, 3)
    moving.check()
    assert policy != "random" or moving.moves() > 20


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(150)
@pytest.mark.parametrize("kinds", [("left", "anti"), pytest.param(("full", "right", "inner"), marks=pytest.mark.long)])
def test_slaves_as_ranks(kinds: tuple[How, ...], tmp_path: Path) -> None:
    """In realtime pace, few at a time, so that moves end within a distribution epoch: while one is on its way nothing is
    freed at its slaves."""
    few: dict[str, Any] = {"cluster": {"partition_count": 6}, "reorganization": {"random_moves": 1}}
    runs = [Moving(tmp_path / how, 3, how, texts=True, pace="realtime", **few) for how in kinds]
    run_jobs(5, [moving.job for moving in runs], tmp_path)
    for moving in runs:
        moving.check()
        assert moving.moves() > 3


# ---------------------------------------------------------------- punctuations that go back


_LAYOUT = RowLayout(5, True)


def test_a_group_leaves_after_punctuations_that_went_back() -> None:
    """A stream's end is promised in one delivery, and less in the next one, to a slave that is behind. What the first one freed
    must not leave."""
    join = make(Bounds(-10, 10), left_layout=_LAYOUT, right_layout=_LAYOUT, block_tuples=64)
    both, nothing = (Route.BOTH, Route.BOTH), TupleBatch.empty(_LAYOUT)
    early, late = stream([1] * 4, [0, 1, 2, 3], _LAYOUT), stream([1] * 4, [100, 101, 102, 103], _LAYOUT)
    drive(join, delivery(0, early, nothing, (4, 4), 1, both))
    drive(join, delivery(1, late, nothing, (104, 110), 1, both))
    drive(join, delivery(2, nothing, nothing, (104, 5), 1, both))
    join.validate()
    assert join.payload[LEFT].live_from == 4  # type: ignore[union-attr]
    departure = join.export_group(MoveId(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1)), (nothing, nothing), 1 << 16)
    left = []
    while not departure.done:
        chunk = departure.next_chunk()
        left += chunk.tuples.ts.tolist()
    assert left == [100, 101, 102, 103]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_group_leaves_before_the_first_delivery_after_a_crash(how: How) -> None:
    join = make(Bounds(-10, 10), left_layout=_LAYOUT, right_layout=_LAYOUT, block_tuples=64, kind=JOIN_KINDS[how])
    both, nothing = (Route.BOTH, Route.BOTH), TupleBatch.empty(_LAYOUT)
    join.restore(delivery(0, stream([1] * 4, [0, 1, 2, 3], _LAYOUT), nothing, (4, 4), 1, both))
    join.restored_until((4, 4))
    join.restore(delivery(1, stream([1] * 2, [100, 101], _LAYOUT), nothing, (110, 110), 1, both))
    join.restored_until((110, 110))
    join.restored(np.array([[110, 110]]))
    join.validate()
    departure = join.export_group(MoveId(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1)), (nothing, nothing), 1 << 16)
    left = []
    while not departure.done:
        chunk = departure.next_chunk()
        left += chunk.tuples.ts.tolist()
    assert left == [100, 101]


# ---------------------------------------------------------------- kernels that copy by what comes from elsewhere


def _rows(n: int) -> PayloadRows:
    rows = payload(np.arange(n, dtype=np.uint64), _LAYOUT)
    assert rows is not None
    return rows


def test_freed_payload_is_not_gathered() -> None:
    for layout in (_LAYOUT, RowLayout(5)):
        store = PayloadStore(layout, 1 << 20)
        for time_us in (10, 20):
            rows = payload(np.arange(100, dtype=np.uint64), layout)
            assert rows is not None
            store.append(rows, time_us)
        store.expire(15)
        assert len(store.gather(np.array([100, 199]))) == 2
        for wrong in (99, 200, -1, PAGE_ROWS, 1 << 40):
            with pytest.raises(RunFailed, match=r"gathering payload: rows .* are asked for, there are 100 to 199"):
                store.gather(np.array([100, wrong, 199]))
        store.validate()


def test_rows_that_are_not_there_are_not_taken() -> None:
    """Index -1 meant the last offset and the one after it the first: a negative length, and writing past the end."""
    rows = _rows(8)
    for wrong in (-1, 8, -9):
        with pytest.raises(RunFailed, match=r"taking payload rows: rows .* there are 0 to 7"):
            rows.take(np.array([7, wrong, 3]))
    assert rows.var is not None
    assert rows.var_offsets is not None
    offsets = rows.var_offsets.copy()
    offsets[3] = 1 << 40
    for wrong_rows in (PayloadRows(rows.fixed, offsets, rows.var), PayloadRows(rows.fixed, rows.var_offsets, rows.var[:2])):
        with pytest.raises(RunFailed, match="tails do not lie within"):
            wrong_rows.take(np.arange(8))
        with pytest.raises(RunFailed, match="storing payload: offsets"):
            PayloadStore(_LAYOUT, 1 << 20).append(wrong_rows, 0)
    with pytest.raises(RunFailed, match="storing payload: rows of"):
        PayloadStore(RowLayout(6, True), 1 << 20).append(rows, 0)


def test_offsets_that_do_not_fit_are_neither_packed_nor_unpacked() -> None:
    codec = RowCodec(pa.schema([("text", pa.large_string())]))
    good = codec.encode(pa.record_batch({"text": pa.array(["abc", "de", ""], pa.large_string())}))
    assert good.var is not None
    with pytest.raises(RunFailed, match="corrupt payload: offsets"):
        codec.decode(PayloadRows(good.fixed, good.var_offsets, good.var[:3]))
    offsets = pa.py_buffer(np.array([0, 9, 2, 5]))
    damaged = pa.Array.from_buffers(pa.large_string(), 3, [None, offsets, pa.py_buffer(b"abcde")])
    with pytest.raises(UserError, match="column text: offsets"):
        codec.encode(pa.record_batch({"text": damaged}))
    with pytest.raises(UserError, match="keys: offsets"):
        Dictionary().encode(np.zeros(5, np.uint8), np.array([0, 9, 2, 5]), None)


def test_runs_that_do_not_fit_are_not_appended() -> None:
    state = WindowState(4, 0, 1 << 20)
    hidden = state.expect_group(GroupId(3), Directory(0, np.zeros(1, np.int64), np.zeros(1, np.int64)))
    n = np.arange(5, dtype=np.int64)
    columns = (n, n, n.astype(np.uint64))
    one, wrong = np.zeros(1, np.int64), "runs and marks do not fit 5 tuples"
    for which, counts, flags, text in (
        (one, np.array([6]), None, wrong),
        (one, np.array([-5]), None, wrong),
        (one, np.array([5]), np.zeros(4, np.uint8), wrong),
        (np.array([1]), np.array([5]), None, "partition-group 3 arrives: rows 1 to 1"),
        (np.array([-1]), np.array([5]), None, "partition-group 3 arrives: rows -1 to -1"),
    ):
        with pytest.raises(RunFailed, match=text):
            state.append_runs(hidden, RIGHT, which, counts, columns, flags, 0)
    state.append_runs(hidden, RIGHT, one, np.array([5]), columns, None, 0)
    state.validate()

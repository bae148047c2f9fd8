"""What producers push: accepted rows outlive any process, in the order in which they were read, each once."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swjoin.config.loader import config_from_plain, stream_from_plain
from swjoin.connectors.flight import spool as flight_spool
from swjoin.connectors.flight.shared_spool import SharedSpool
from swjoin.connectors.flight.source import FlightSource
from swjoin.connectors.flight.spool import Spool
from swjoin.connectors.open import open_live_input, open_live_sources
from swjoin.core.batch import LEFT
from swjoin.core.errors import RunFailed, UserError
from tests.support.limits import PROCESS_S
from tests.support.spools import SmallFiles, run_long

STREAM = {
    "flight": {},
    "schema": "key: string, ts: int64, id: int64",
    "key": ["key"],
    "time": "ts",
    "time_unit": "us",
    "id": "id",
}
CONFIG = {
    "join": {"within": "1ms"},
    "left": STREAM,
    "right": STREAM,
    "time": {"late": "side"},
    "serve": {"listen": "127.0.0.1:0"},
}
NAMES = ("a", "b", "c")


def _source(folder: Path | None) -> FlightSource:
    source = open_live_sources(config_from_plain(CONFIG), folder)[LEFT]
    assert isinstance(source, FlightSource)
    source.merge._linger_s = 0.0
    return source


def _batch(ids: list[int], times: list[int]) -> pa.RecordBatch:
    keys = [f"key {i % 3}" for i in ids]
    return pa.record_batch(
        [pa.array(keys, pa.string()), pa.array(times, pa.int64()), pa.array(ids, pa.int64())], ["key", "ts", "id"]
    )


def _push(source: FlightSource, name: str, ids: list[int], times: list[int], row: int | None = None) -> None:
    batch = source.chosen(_batch(ids, times))
    source.merge.push(name, batch, *source.times_of(batch), row=row)


class _Machine(RuleBasedStateMachine):
    """canon: ids in the order in which they have been read for the first time, which every later reading must repeat. sent: of
    each producer, ids and times, whether received or not."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.source = _source(self.folder)
        self.canon: list[int] = []
        self.read = 0
        self.sent: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in NAMES}
        self.settled_passing: set[int] = set()
        self.passing: dict[str, list[int]] = {}
        self.checkpoints: list[tuple[int, dict[str, Any]]] = []
        self.next_id = 0
        self.passed = 0
        self.over: set[str] = set()  # producers that have ended, and know it

    @initialize()
    def begin(self) -> None:
        self.source.seek(0)

    # ------------------------------------------------------------ producers

    def _rows(self, n: int, after: int, step: int) -> tuple[list[int], list[int]]:
        ids = list(range(self.next_id, self.next_id + n))
        self.next_id += n
        return ids, [after + step * (i + 1) for i in range(n)]

    @rule(name=st.sampled_from(NAMES), n=st.integers(0, 6), step=st.integers(0, 9), again=st.integers(0, 9))
    def push(self, name: str, n: int, step: int, again: int) -> None:
        """More rows, and some before them again."""
        if name in self.over:
            return
        received = self.source.merge.open(name)
        ids, times = self.sent[name]
        new = self._rows(n, times[-1] if times else 0, step)
        ids += new[0]
        times += new[1]
        row = max(0, received - again)
        _push(self.source, name, ids[row:], times[row:], row)
        assert self.source.merge.received(name) == len(ids)

    @rule(n=st.integers(0, 4))
    def push_passing(self, n: int) -> None:
        """A producer without a name comes, pushes, and goes."""
        self.passed += 1
        name = f"~{self.passed}"
        self.source.merge.open(name, anonymous=True)
        ids, times = self._rows(n, 10 * self.passed, 1)
        _push(self.source, name, ids, times)
        self.source.merge.leave(name)
        self.passing[name] = ids

    @rule(name=st.sampled_from(NAMES), far=st.integers(0, 200))
    def advance(self, name: str, far: int) -> None:
        """A promise that the producer keeps."""
        if name not in self.over and self.source.merge.received(name) == len(self.sent[name][0]) > 0:
            self.source.merge.advance(name, self.sent[name][1][-1])

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        if name not in self.over and self.source.merge.received(name) == len(self.sent[name][0]):
            self.source.merge.open(name)
            self.source.merge.end(name)
            if self.source.settled(name):
                self.over.add(name)

    # ------------------------------------------------------------ the master

    @rule(most=st.integers(1, 4))
    def reads(self, most: int) -> None:
        for _ in range(most):
            if not self.source.ready(0.0) or (self.source.ended and self.source._next is None):
                return
            batch = self.source.read()
            assert batch is not None
            ids = batch.id.tolist()
            assert self.source.rows == self.read + len(ids)
            known = self.canon[self.read : self.read + len(ids)]
            assert ids[: len(known)] == known, "other rows than were read before"
            self.canon += ids[len(known) :]
            self.read += len(ids)

    @rule()
    def looks(self) -> None:
        self.source.ready(0.0)

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints = [*self.checkpoints, (self.read, json.loads(json.dumps(self.source.position())))][-2:]
        self.source.forget(self.checkpoints[0][0])

    def _go_on(self) -> None:
        self.read, position = self.checkpoints[-1] if self.checkpoints else (0, {})
        if self.checkpoints:
            self.source.resume_at(self.read, position)
        else:
            self.source.seek(0)

    @rule()
    def recover(self) -> None:
        self._go_on()

    @rule(torn=st.integers(0, 300))
    def die(self, torn: int) -> None:
        """The process is killed, perhaps while it writes; another one goes on."""
        for name, ids in list(self.passing.items()):
            if self.source.settled(name):
                self.settled_passing.update(ids)
        self.passing.clear()
        accepted = dict(self.source.accepted)
        files = sorted((self.folder / "intake").glob("left-*.spool")) if (self.folder / "intake").is_dir() else []
        if files and torn:
            whole = files[-1].read_bytes()
            files[-1].write_bytes(whole + whole[:torn][: max(0, len(whole) - 1)])
        self.source = _source(self.folder)
        self._go_on()
        lanes = self.source.merge.position()["lanes"]
        for name in NAMES:
            assert self.source.merge.received(name) == accepted.get(name, 0), "producers are told to go on elsewhere"
            assert name not in self.over or lanes[name][2], f"{name} has ended, and is waited for"

    @invariant()
    def told_no_more_than_kept(self) -> None:
        self.source.merge.validate()

    def teardown(self) -> None:
        try:
            for name in set(NAMES) - self.over:
                self.push(name, 0, 0, 0)
            self.source.finish()
            self.reads(10_000)
            assert self.source.ended
            assert len(set(self.canon)) == len(self.canon), "a row twice"
            for name in NAMES:
                own = set(self.sent[name][0])
                assert [i for i in self.canon if i in own] == self.sent[name][0], f"rows of {name} are missing, or out of order"
            assert self.settled_passing <= set(self.canon), "accepted rows without a producer's name are missing"
            self.source.done()
            assert not (self.folder / "intake").exists()
        finally:
            shutil.rmtree(self.folder)


class _SmallFiles(SmallFiles, _Machine):
    pass


TestFlightSource = _Machine.TestCase
TestFlightSource.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestSmallFiles = _SmallFiles.TestCase
TestSmallFiles.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.long
@pytest.mark.parametrize("machine", [_Machine, _SmallFiles])
def test_for_long(machine: type[_Machine]) -> None:
    run_long(machine)


# ---------------------------------------------------------------- what is told to producers, and what is refused


def test_nothing_is_settled_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer without a name is let go when its rows have been taken, but not between that and their being kept."""
    source = _source(tmp_path)
    source.seek(0)
    source.merge.open("~1", anonymous=True)
    _push(source, "~1", [1, 2], [5, 6])
    source.merge.leave("~1")
    told: list[bool] = []
    append = Spool.append

    def slow(self: Spool, *args: Any) -> None:
        asks = threading.Thread(target=lambda: told.append(source.settled("~1")))
        asks.start()
        asks.join(0.1)
        assert not told, "rows are said to be accepted, and are nowhere but in memory"
        append(self, *args)
        asking.append(asks)

    asking: list[threading.Thread] = []
    assert not source.settled("~1")
    monkeypatch.setattr(Spool, "append", slow)
    assert source.ready(0.0)
    asking[0].join(PROCESS_S)
    assert told == [True]


def test_rows_that_could_not_be_kept_are_never_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _source(tmp_path)
    source.seek(0)
    source.merge.open("~1", anonymous=True)
    _push(source, "~1", [1], [5])
    source.merge.leave("~1")

    def full(self: Spool, *args: Any) -> None:
        raise RunFailed("no room")

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(RunFailed, match="no room"):
        source.ready(0.0)
    assert not source.settled("~1")


@pytest.mark.parametrize("how", ["end", "finish"])
@pytest.mark.parametrize("spool", [Spool, SharedSpool])
def test_an_end_that_could_not_be_kept_ends_the_run(
    spool: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written in a thread of the endpoint, which alone would know; other producers would wait for ever."""
    source = _source(tmp_path)
    if spool is SharedSpool:
        source.take_share(0, 2, {})
    source.seek(0)
    source.connect("a", anonymous=False)
    _push(source, "a", [1], [5], 0)
    source.connect("b", anonymous=False)
    source.merge.advance("b", 100)
    assert source.ready(0.0)
    assert source.read() is not None

    def full(self: Any, *args: Any) -> None:
        raise RunFailed("no room")

    with monkeypatch.context() as patch:
        patch.setattr(spool, "append", full)
        source.merge.end("a")
        with pytest.raises(RunFailed, match="no room"):
            source.finish() if how == "finish" else source.settled("a")
    assert not source.settled("a")
    with pytest.raises(RunFailed, match="no room"):
        source.ready(0.0)


@pytest.mark.parametrize("how", ["end", "finish"])
def test_an_end_that_was_told_is_not_forgotten(how: str, tmp_path: Path) -> None:
    source = _source(tmp_path)
    source.seek(0)
    source.merge.open("a")
    _push(source, "a", [1], [5])
    assert source.ready(0.0)
    if how == "end":
        source.merge.end("a")
        assert source.settled("a")
    else:
        source.finish()
    source = _source(tmp_path)
    source.seek(0)
    assert source.ready(0.0)
    assert source.read() is not None
    position = source.merge.position()
    assert position["lanes"]["a"][2]
    assert position["finished"] is (how == "finish")
    assert source.read() is None if how == "finish" else not source.ready(0.0)


def test_a_stream_that_has_ended_takes_no_more_rows(tmp_path: Path) -> None:
    """Whoever pushes into it would wait for ever for what nobody reads."""
    source = _source(tmp_path)
    source.seek(0)
    source.merge.open("a")
    _push(source, "a", [1], [5], 0)
    source.finish()
    batch = source.read()
    assert batch is not None
    assert source.read() is None
    assert source.merge.open("a") == 1
    _push(source, "a", [1], [5], 0)  # it is there already
    with pytest.raises(UserError, match="the stream has ended"):
        _push(source, "a", [1, 2], [5, 6], 0)
    with pytest.raises(UserError, match="no producer can join"):
        source.merge.open("b")
    assert source.read() is None


def test_rows_that_are_gone_are_no_silent_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_spool, "_FILE_BYTES", 1)
    source = _source(tmp_path)
    source.seek(0)
    source.merge.open("a")
    for i in range(3):
        _push(source, "a", [i], [i])
        assert source.read() is not None
    (tmp_path / "intake" / "left-000000000000001.spool").unlink()
    with pytest.raises(RunFailed, match="goes on at row 2, no batch begins with row 1"):
        _source(tmp_path).seek(0)
    files = [p.name for p in sorted((tmp_path / "intake").iterdir())]
    source.forget(2)
    assert files == ["left-000000000000000.spool", "left-000000000000002.spool"]
    assert [p.name for p in (tmp_path / "intake").iterdir()] == files[1:]


def test_without_checkpoints_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = _source(None)
    source.seek(0)
    source.merge.open("a")
    _push(source, "a", [1], [5])
    batch = source.read()
    assert batch is not None
    assert np.array_equal(batch.id, [1])
    assert source.settled("a")
    assert source.accepted == {"a": 1}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reads", [["k"], ["v", "k"], []])
def test_accepted_rows_have_columns_that_another_query_reads_later(reads: list[str], tmp_path: Path) -> None:
    """A query is added: rows that were accepted before, and are read again, have the column that none had read."""
    stream = stream_from_plain({"flight": {}, "schema": "k: int64, v: int64, ts: timestamp[us]", "time": "ts"}, "inputs.a")
    columns = (("k", "int64"), ("v", "int64"), ("ts", "timestamp[us]"))
    rows = pa.table({"k": [1, 2], "v": [10, 20], "ts": pa.array([0, 1000], pa.timestamp("us"))}).to_batches()[0]
    for wanted, count in ((reads, 0), (["k", "v"], 2)):
        source = open_live_input(config_from_plain(CONFIG), stream, "a", columns, wanted, tmp_path, whole=True)
        assert isinstance(source, FlightSource)
        source.seek(0)
        if not count:
            source.connect("one", anonymous=False)
            chosen = source.chosen(rows)
            source.merge.push("one", chosen, *source.times_of(chosen), row=0)
            source.merge.end("one")
            source.merge.finish()
        found = source.read()
        read = {} if found.columns is None else found.columns.batch.to_pydict()
        assert read == {name: rows.column(name).to_pylist() for name in wanted}
        assert len(found) == 2
        source.close()

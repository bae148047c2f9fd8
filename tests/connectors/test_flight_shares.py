"""What producers push to several gateways: accepted rows outlive any process and any number of gateways, each once."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swjoin.config.loader import config_from_plain
from swjoin.connectors.flight.source import FlightSource
from swjoin.connectors.open import open_live_sources
from swjoin.core.batch import LEFT
from swjoin.core.errors import RunFailed, UserError
from tests.support.spools import SmallFiles, run_long

STREAM = {"flight": {"producers": 9}, "schema": "key: int64, ts: int64", "key": ["key"], "time": "ts", "time_unit": "us"}
CONFIG = {
    "join": {"within": "1ms"},
    "left": {**STREAM, "flight": {}},
    "right": {**STREAM, "flight": {}},
    "time": {"late": "side"},
    "serve": {"listen": "127.0.0.1:0"},
}
NAMES = ("a", "b", "c", "d")


def _source(folder: Path, share: tuple[int, int] | None) -> FlightSource:
    source = open_live_sources(config_from_plain(CONFIG), folder)[LEFT]
    assert isinstance(source, FlightSource)
    source.merge._linger_s = 0.0
    if share is not None:
        source.take_share(*share, {})
    return source


class _Machine(RuleBasedStateMachine):
    """Sources of all gateways in one folder. Keys are unique. joined: those read, back to the checkpoint after a recovery.
    sent: of each producer, keys and times, whether received or not. at: the gateway that a producer is connected to. ids: key
    of every row id that was read."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sources: list[FlightSource] = []
        self.joined: list[int] = []
        self.sent: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in NAMES}
        self.at: dict[str, int] = {}
        self.checkpoints: list[tuple[list[int], list[int], list[dict[str, Any]]]] = []
        self.ids: dict[int, int] = {}
        self.next_key = self.passed = 0
        self.passing: dict[str, tuple[int, list[int]]] = {}
        self.settled_passing: set[int] = set()
        self.over: set[str] = set()

    @initialize(gateways=st.integers(0, 3))
    def begin(self, gateways: int) -> None:
        """0: the run begins with one gateway, as runs with one do."""
        self._open([None] if gateways == 0 else [(g, gateways) for g in range(gateways)])
        for source in self.sources:
            source.seek(0)

    def _open(self, shares: list[tuple[int, int] | None]) -> None:
        self.sources = [_source(self.folder, share) for share in shares]

    # ------------------------------------------------------------ producers

    def _gateway(self, name: str, wanted: int) -> int:
        """Where its rows are, or where it connects."""
        if name not in self.at:
            known = self.sources[0].known.get(name)
            self.at[name] = (wanted if known is None else known) % len(self.sources)
        return self.at[name]

    def _rows(self, n: int, after: int, step: int) -> tuple[list[int], list[int]]:
        keys = list(range(self.next_key, self.next_key + n))
        self.next_key += n
        return keys, [after + step * (i + 1) for i in range(n)]

    def _push(self, source: FlightSource, name: str, keys: list[int], times: list[int], row: int | None = None) -> None:
        batch = source.chosen(pa.record_batch([pa.array(keys, pa.int64()), pa.array(times, pa.int64())], ["key", "ts"]))
        source.merge.push(name, batch, *source.times_of(batch), row=row)

    @rule(
        name=st.sampled_from(NAMES), n=st.integers(0, 6), step=st.integers(0, 9), again=st.integers(0, 9), to=st.integers(0, 2)
    )
    def push(self, name: str, n: int, step: int, again: int, to: int) -> None:
        """More rows, and some before them again."""
        if name in self.over:
            return
        source = self.sources[self._gateway(name, to)]
        received = source.connect(name, anonymous=False)
        keys, times = self.sent[name]
        new = self._rows(n, times[-1] if times else 0, step)
        keys += new[0]
        times += new[1]
        row = max(0, received - again)
        self._push(source, name, keys[row:], times[row:], row)
        assert source.merge.received(name) == len(keys)

    @rule(n=st.integers(0, 4), to=st.integers(0, 2), stays=st.booleans())
    def push_passing(self, n: int, to: int, stays: bool) -> None:
        """A producer without a name comes, pushes, and may go."""
        self.passed += 1
        name, gateway = f"~{self.passed}", to % len(self.sources)
        self.sources[gateway].connect(name, anonymous=True)
        keys, times = self._rows(n, 10 * self.passed, 1)
        self._push(self.sources[gateway], name, keys, times)
        self.passing[name] = gateway, keys
        if not stays:
            self.sources[gateway].merge.leave(name)

    @rule(name=st.sampled_from(NAMES))
    def end(self, name: str) -> None:
        if name in self.over or name not in self.at:
            return
        source = self.sources[self.at[name]]
        if source.merge.received(name) == len(self.sent[name][0]):
            source.connect(name, anonymous=False)
            source.merge.end(name)
            if source.settled(name):
                self.over.add(name)

    # ------------------------------------------------------------ gateways

    @rule(most=st.integers(1, 4), gateway=st.integers(0, 2))
    def reads(self, most: int, gateway: int) -> None:
        source = self.sources[gateway % len(self.sources)]
        for _ in range(most):
            if not source.ready(0.0) or (source.ended and source._next is None):
                return
            batch = source.read()
            assert batch is not None
            keys = batch.key.tolist()
            for row_id, key in zip(batch.id.tolist(), keys, strict=True):
                assert self.ids.setdefault(row_id, key) == key, f"row id {row_id} was that of another row"
            if batch.high_us is not None:
                assert (np.diff(batch.high_us) >= 0).all(), "merge times out of order"
            self.joined += keys

    @rule()
    def looks(self) -> None:
        for source in self.sources:
            source.ready(0.0)

    @rule()
    def checkpoint(self) -> None:
        positions = [json.loads(json.dumps(source.position())) for source in self.sources]
        rows = [source.rows for source in self.sources]
        self.checkpoints = [*self.checkpoints, (list(self.joined), rows, positions)][-2:]
        for source in self.sources:
            if source.shared:
                source.forget_shared(self.checkpoints[0][2])
            else:
                source.forget(self.checkpoints[0][1][0])

    def _go_on(self) -> None:
        self.joined, rows, positions = self.checkpoints[-1] if self.checkpoints else ([], [], [])
        self.joined = list(self.joined)
        for number, source in enumerate(self.sources):
            if not self.checkpoints:
                source.seek(0)
            elif source.shared:
                source.resume_at(0, source.taken_over(positions))
            else:
                source.resume_at(rows[number], positions[number])

    def _before(self) -> dict[str, int]:
        """What all producers have been told before processes die."""
        for name, (gateway, keys) in list(self.passing.items()):
            if self.sources[gateway].settled(name):
                self.settled_passing.update(keys)
        return {name: rows for source in self.sources for name, rows in source.accepted.items()}

    def _after(self, accepted: dict[str, int], died: set[int]) -> None:
        for name in NAMES:
            known, source = self.at.get(name), None
            if known in died:
                self.at.pop(name)
                source = self.sources[self._gateway(name, 0)]
            if source is not None:
                assert source.merge.received(name) == accepted.get(name, 0), "producers are told to go on elsewhere"
                ended = source.merge.position()["lanes"].get(name, [0, 0, True])[2] or source.merge._lanes[name].ended
                assert name not in self.over or ended, f"{name} has ended, and is waited for"
        self.passing = {name: of for name, of in self.passing.items() if of[0] not in died}

    @rule()
    def recover(self) -> None:
        """After a death elsewhere."""
        self._go_on()

    @rule(gateway=st.integers(0, 2), torn=st.integers(0, 300))
    def gateway_dies(self, gateway: int, torn: int) -> None:
        """Its rank is killed, perhaps while it writes; another one plays it, in the same job."""
        number = gateway % len(self.sources)
        if not self.sources[0].shared or number == 0:
            return
        accepted = self._before()
        self._tear(torn, f"left-*-{number:04d}-*.spool")
        self.sources[number] = _source(self.folder, (number, len(self.sources)))
        self._go_on()
        self._after(accepted, {number})

    @rule(gateways=st.integers(1, 3), torn=st.integers(0, 300))
    def all_die(self, gateways: int, torn: int) -> None:
        """All processes are killed, and another number of gateways goes on."""
        accepted = self._before()
        died = set(range(len(self.sources)))
        self._tear(torn, "left-*.spool")
        if gateways == 1 and not (self.checkpoints and "share" in self.checkpoints[-1][2][0]):
            self._open([None])
            if list((self.folder / "intake").glob("left-*-*-*.spool")):
                with pytest.raises(UserError, match="resume the run with two gateways or more"):
                    self._go_on()
                gateways = 2
        if gateways > 1 or (self.checkpoints and "share" in self.checkpoints[-1][2][0]):
            self._open([(g, gateways) for g in range(gateways)])
        self._go_on()
        self._after(accepted, died)
        if not self.sources[0].shared:
            self.at = dict.fromkeys(self.at, 0)

    def _tear(self, torn: int, pattern: str) -> None:
        files = sorted((self.folder / "intake").glob(pattern)) if (self.folder / "intake").is_dir() else []
        if files and torn:
            whole = files[-1].read_bytes()
            files[-1].write_bytes(whole + whole[:torn][: max(0, len(whole) - 1)])

    @invariant()
    def valid(self) -> None:
        for source in self.sources:
            source.merge.validate()

    def teardown(self) -> None:
        try:
            for name in set(NAMES) - self.over:
                self.push(name, 0, 0, 0, 0)
            for name, (gateway, _) in self.passing.items():
                self.sources[gateway].merge.leave(name)
            for source in self.sources:
                source.finish()
            for number, source in enumerate(self.sources):
                self.reads(10_000, number)
                assert source.ended
            assert len(set(self.joined)) == len(self.joined), "a row twice"
            for name in NAMES:
                own = set(self.sent[name][0])
                found = [key for key in self.joined if key in own]
                assert sorted(found) == self.sent[name][0], f"rows of {name} are missing"
            assert self.settled_passing <= set(self.joined), "accepted rows without a producer's name are missing"
            self.sources[0].done()
            assert not (self.folder / "intake").exists()
        finally:
            shutil.rmtree(self.folder)


class _SmallFiles(SmallFiles, _Machine):
    pass


TestFlightShares = _Machine.TestCase
TestFlightShares.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestSmallFiles = _SmallFiles.TestCase
TestSmallFiles.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.long
@pytest.mark.parametrize("machine", [_Machine, _SmallFiles])
def test_for_long(machine: type[_Machine]) -> None:
    run_long(machine)


def test_a_process_that_was_replaced_accepts_nothing(tmp_path: Path) -> None:
    """A rank that was taken for dead wakes up, and takes rows: its successor has not read them."""
    machine = _Machine()
    old = _source(tmp_path, (1, 2))
    old.seek(0)
    old.connect("a", anonymous=False)
    machine._push(old, "a", [1], [5], 0)
    old.merge.end("a")
    new = _source(tmp_path, (1, 2))
    new.seek(0)
    with pytest.raises(RunFailed, match="another process is gateway 1 now"):
        old.ready(0.0)
    assert not old.settled("a")
    assert new.merge.received("a") == 0


def test_a_spool_that_is_gone_is_told(tmp_path: Path) -> None:
    source = _source(tmp_path, (1, 2))
    source.seek(0)
    source.connect("a", anonymous=False)
    _Machine()._push(source, "a", [1], [5], 0)
    source.merge.end("a")
    shutil.rmtree(tmp_path / "intake")
    with pytest.raises(RunFailed, match=r"left-0001.owner: is missing; accepted rows may be lost with it"):
        source.ready(0.0)


def test_what_a_replaced_process_has_written_is_not_read(tmp_path: Path) -> None:
    """It had opened its file before; its successor gives the same number to another producer."""
    machine, (old, new, last) = _Machine(), (_source(tmp_path, (1, 2)) for _ in range(3))
    for source, name, key in ((old, "a", 1), (old, "b", 2), (new, "c", 3)):
        if source.merge.lanes == 0:
            source.seek(0)
        source.connect(name, anonymous=False)
        machine._push(source, name, [key], [5], 0)
        source.merge.end(name)
        if key != 2:
            assert source.ready(0.0)
            source.read()
    with pytest.raises(RunFailed, match="another process is gateway 1 now"):
        old.ready(0.0)
    last.seek(0)
    assert last.merge.splits == new.merge.splits == {"a": 1, "c": 3}
    assert [last.merge.received(name) for name in ("a", "c")] == [1, 1]


def _send(source: FlightSource, name: str, keys: list[int]) -> None:
    """All rows of a producer."""
    source.connect(name, anonymous=False)
    _Machine()._push(source, name, keys, keys, 0)
    source.merge.end(name)


def _accept(source: FlightSource, name: str, keys: list[int]) -> None:
    _send(source, name, keys)
    assert source.ready(0.0)
    source.read()


def test_a_file_that_a_replaced_process_begins_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped after it has seen that it may begin one; its successor gives the same number to another producer."""
    old, new, last = (_source(tmp_path, (1, 2)) for _ in range(3))
    old.seek(0)
    _send(old, "a", [1])
    spool = old._splits.spool
    assert spool is not None

    def stopped(name: str) -> None:
        new.seek(0)
        _accept(new, "c", [3])
        monkeypatch.undo()
        spool._begin(name)

    monkeypatch.setattr(spool, "_begin", stopped)
    with pytest.raises(RunFailed, match="another process is gateway 1 now"):
        old.ready(0.0)
    last.seek(0)
    assert last.merge.splits == new.merge.splits == {"c": 1}
    assert last.merge.received("c") == 1


def test_rows_accepted_after_all_files_were_deleted(tmp_path: Path) -> None:
    """The owner's file has the lengths of those of before; a new file is another one."""
    first, second, third = (_source(tmp_path, (1, 2)) for _ in range(3))
    first.seek(0)
    _accept(first, "a", [1])
    positions = [json.loads(json.dumps(first.position()))]
    second.resume_at(0, second.taken_over(positions))
    second.forget_shared(positions)
    assert not list((tmp_path / "intake").glob("*.spool"))
    _accept(second, "b", [2, 3, 4])
    third.resume_at(0, third.taken_over(positions))
    assert [third.merge.received(name) for name in ("a", "b")] == [1, 3]


@pytest.mark.parametrize("after", [("b", 0), ("visitor", 1)], ids=["another producer", "another gateway"])
def test_a_producer_that_left_without_rows_is_forgotten(after: tuple[str, int], tmp_path: Path) -> None:
    """Its number, or its name, has been used again when all processes die."""
    machine, sources = _Machine(), [_source(tmp_path, (gateway, 2)) for gateway in range(2)]
    for source in sources:
        source.seek(0)
    sources[0].connect("visitor", anonymous=False)
    sources[0].merge.advance("visitor", 100)
    for name, gateway, key in (("a", 0, 1), (*after, 2)):
        sources[gateway].connect(name, anonymous=False)
        machine._push(sources[gateway], name, [key], [5 * key], 0)
        sources[gateway].merge.end(name)
        assert sources[gateway].ready(0.0)
        sources[gateway].read()
        sources[0].merge.leave("visitor")
    for gateways in (2, 3):
        found = [_source(tmp_path, (gateway, gateways)) for gateway in range(gateways)]
        for source in found:
            source.seek(0)
        assert {name: 1 for name in ("a", after[0])} == {
            name: source.merge.received(name) for source in found for name in source.merge.splits
        }

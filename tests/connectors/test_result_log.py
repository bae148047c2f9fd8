"""Rows that consumers take as they come: whatever happens to run and consumer, each row once; bounded memory and patience."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swjoin.connectors.flight import result_log
from swjoin.connectors.flight.result_log import (
    ConsumerCutOffError,
    ConsumerOffset,
    Eras,
    Part,
    Reader,
    ResultLog,
    SinkWriter,
    Taken,
    drain,
)
from swjoin.connectors.flight.result_stream import TeeSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.connectors.sink import CountSink
from swjoin.core.arrow_views import retained_bytes, without_surplus
from swjoin.core.errors import RunFailed, SwjoinError, UserError
from tests.support.limits import PROCESS_S

SCHEMA = pa.schema([("row", pa.int64())])
LIMIT_BYTES = 400
_CONSUMERS = st.integers(0, 3)


def _batch(rows: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.int64())], schema=SCHEMA)


@dataclass
class Consumer:
    """got: rows by generation and sink, as far as they count. skipped: those before it came. began: first generation that it
    wants."""

    began: int
    skipped: dict[Part, int]
    reader: Reader | None = None
    files: Iterator[Taken] | None = None
    place: ConsumerOffset | None = None  # after the last event
    got: dict[Part, list[int]] = field(default_factory=lambda: defaultdict(list))
    failed: bool = False

    def take(self, taken: Taken, truth: dict[Part, list[int]]) -> None:
        assert self.reader is not None
        g, part = taken.generation, (taken.generation, taken.sink)
        if taken.kind == "void":
            self.got = defaultdict(list, {k: rows for k, rows in self.got.items() if k[0] < g})
            self.skipped = {k: n for k, n in self.skipped.items() if k[0] < g}
            self.began = min(self.began, g)
        elif taken.kind == "complete":
            for of in [of for of in truth if of[0] == g]:
                assert self.got[of] == truth[of][self.skipped.get(of, 0) :], f"generation {g} is complete, and is not whole"
        else:
            assert taken.batch is not None
            rows = taken.batch.column(0).to_pylist()
            at = self.skipped.get(part, 0) + len(self.got[part])
            assert rows == truth[part][at : at + len(rows)], f"{part}: other rows than those after {at}"
            self.got[part] += rows
        self.place = ConsumerOffset.from_plain(self.reader.offset.to_plain())


class _Machine(RuleBasedStateMachine):
    """A run whose results are logged; what is right is known from `truth`, rows by generation and sink.

    complete: checkpoints; a sink may be behind with what is final. sinks: at most. joined: sinks that have said, since a
    recovery, what they have.
    """

    in_files, most_sinks = True, 1

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.truth: dict[Part, list[int]] = defaultdict(list)
        self.files: dict[Part, list[Path]] = {}
        self.complete = self.next_row = 0
        self.consumers: dict[int, Consumer] = {}
        self.evicted = False
        self.sinks = self.most_sinks
        self._open_log()

    def _open_log(self) -> None:
        eras, in_files = self.folder / ".eras", self.in_files
        self.log = ResultLog(SCHEMA, LIMIT_BYTES, 0.0, in_files=in_files, eras=Eras(eras), sinks=self.sinks)
        self.writers = [SinkWriter(self.log, sink) for sink in range(self.sinks)]
        self.published: list[int] = []

    @initialize()
    def begin(self) -> None:
        self._restore()
        self._join_all()

    # ------------------------------------------------------------ the run

    def _restore(self) -> None:
        """The first sink; others follow."""
        for part in [part for part in self.truth if part[0] >= self.complete]:
            del self.truth[part]
        self.published = []
        self.join()

    @rule()
    def join(self) -> None:
        sink = len(self.published)
        if sink < self.sinks:
            mine = {part: paths for part, paths in self.files.items() if part[1] % self.sinks == sink}
            self.writers[sink].restore(self.complete, mine)
            self.published.append(self.complete)

    def _join_all(self) -> None:
        while len(self.published) < self.sinks:
            self.join()

    @rule(later=st.booleans(), rows=st.integers(1, 25), sink=st.integers(0, 2))
    def write(self, later: bool, rows: int, sink: int) -> None:
        sink %= len(self.published)  # one that has joined
        generation = self.complete + later
        values = list(range(self.next_row, self.next_row + rows))
        self.next_row += rows
        before = self.log._buffer.first
        self.writers[sink].write(_batch(values), generation)
        self.evicted |= self.log._buffer.first > before
        self.truth[generation, sink] += values

    @rule(cut=st.integers(0, 30), behind=st.integers(0, 3))
    def checkpoint(self, cut: int, behind: int) -> None:
        """Each sink's rows in two files, in one, or without rows in none. behind: a sink that publishes later."""
        self._join_all()
        self.publish()
        for sink in range(self.sinks):
            part, paths = (self.complete, sink), []
            rows = self.truth.get(part, [])
            for number, values in enumerate((rows[:cut], rows[cut:])):
                if values:
                    paths.append(self.folder / f"part-s{sink}-{self.complete:06d}-{number:05d}.parquet")
                    pq.write_table(pa.Table.from_batches([_batch(values)]), paths[-1], row_group_size=7)
            if self.in_files:
                self.files[part] = paths
        self.complete += 1
        self.publish(behind if self.sinks > 1 else -1)

    @rule()
    def publish(self, but: int = -1) -> None:
        """All sinks but one make final what checkpoints hold."""
        for sink, before in enumerate(self.published):
            if sink != but:
                for generation in range(before, self.complete):
                    self.writers[sink].publish(generation, self.files.get((generation, sink), []))
                self.published[sink] = self.complete

    @rule()
    def recover(self) -> None:
        old = [SinkWriter(self.log, sink) for sink in range(self.sinks)]
        self._restore()
        with pytest.raises(RunFailed, match="an attempt that a recovery has ended"):
            old[-1].write(_batch([-1]), self.complete)

    @rule(sinks=st.integers(1, 3))
    def die_and_resume(self, sinks: int) -> None:
        """Every process has died; consumers come back when they like."""
        for consumer in self.consumers.values():
            consumer.reader = consumer.files = None
            consumer.failed |= not self.in_files  # results without files are gone with their process
        self.evicted |= not self.in_files
        self.sinks = min(sinks, self.most_sinks)
        self._open_log()
        self._restore()

    # ------------------------------------------------------------ consumers

    @rule(name=_CONSUMERS, final=st.booleans(), now=st.booleans())
    def come(self, name: int, final: bool, now: bool) -> None:
        """For the first time, or back where it was."""
        consumer = self.consumers.get(name)
        if consumer is not None and (consumer.failed or consumer.reader is not None):
            return
        if consumer is None:
            now |= not self.in_files and self.evicted
            self._join_all()  # a consumer waits for that
            reader = self.log.open(None if now else ConsumerOffset(), final=final and self.in_files)
            consumer = self.consumers[name] = Consumer(reader.offset.below, dict(reader.offset.rows), reader)
        else:
            self._join_all()
            place = consumer.place if consumer.place is not None else ConsumerOffset(0, consumer.began, consumer.skipped)
            consumer.reader = self.log.open(place, final=final and self.in_files)
        consumer.place = ConsumerOffset.from_plain(consumer.reader.offset.to_plain())

    @rule(name=_CONSUMERS)
    def leave(self, name: int) -> None:
        consumer = self.consumers.get(name)
        if consumer is not None and consumer.reader is not None:
            consumer.reader.leave()
            consumer.reader = consumer.files = None

    @rule(name=_CONSUMERS, most=st.integers(1, 10))
    def take(self, name: int, most: int) -> None:
        consumer = self.consumers.get(name)
        if consumer is not None:
            for _ in range(most):
                if not self._step(consumer):
                    break

    def _step(self, consumer: Consumer) -> bool:
        """One event, as `Reader.__iter__` gives it, without waiting. False when there is none."""
        reader = consumer.reader
        if reader is None or consumer.failed:
            return False
        if consumer.files is not None:
            taken = next(consumer.files, None)
            if taken is not None:
                consumer.take(taken, self.truth)
                return True
            consumer.files = None
        try:
            with self.log._changed:
                if reader.cut:
                    raise ConsumerCutOffError("cut")
                step = reader._step()
        except SwjoinError:
            assert not self.in_files, "rows in files may not be gone"
            assert self.evicted, "only rows that memory had no room for may be gone"
            consumer.failed = True
            reader.leave()
            return False
        if isinstance(step, tuple):
            consumer.files = reader._whole_generation(*step)
            return True
        if step is not None:
            consumer.take(step, self.truth)
        return step is not None

    # ------------------------------------------------------------ what must hold

    @invariant()
    def bounded(self) -> None:
        self.log.validate()

    def teardown(self) -> None:
        try:
            for _ in range(2):
                self.checkpoint(3, -1)
            for writer in reversed(self.writers):
                assert not self.log._closed, "closed before all sinks have ended"
                writer.close()
            for consumer in self.consumers.values():
                if consumer.reader is None and not consumer.failed:
                    consumer.reader = self.log.open(consumer.place, final=False)
                while self._step(consumer):
                    pass
                if consumer.failed:
                    continue
                expected = {p: self.truth[p][consumer.skipped.get(p, 0) :] for p in self.truth if p[0] >= consumer.began}
                assert {p: rows for p, rows in consumer.got.items() if rows} == {p: r for p, r in expected.items() if r}
        finally:
            shutil.rmtree(self.folder)


class _WithoutFiles(_Machine):
    in_files = False


class _ThreeSinks(_Machine):
    most_sinks = 3


class _ThreeSinksWithoutFiles(_WithoutFiles):
    most_sinks = 3


TestWithFiles = _Machine.TestCase
TestWithFiles.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestWithoutFiles = _WithoutFiles.TestCase
TestWithoutFiles.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

TestThreeSinks = _ThreeSinks.TestCase
TestThreeSinks.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestThreeSinksWithoutFiles = _ThreeSinksWithoutFiles.TestCase
TestThreeSinksWithoutFiles.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.long
@pytest.mark.parametrize("machine", [_Machine, _WithoutFiles, _ThreeSinks, _ThreeSinksWithoutFiles])
def test_for_long(machine: type[_Machine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))


# ---------------------------------------------------------------- memory without files, and what waits


def test_final_rows_in_memory_outlive_a_recovery(tmp_path: Path) -> None:
    """Without files nobody produces them again: a slow consumer takes them after the recovery, and no open ones."""
    log = ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(tmp_path / ".eras"))
    log.restore(0, {})
    reader = log.open(ConsumerOffset(), final=False)
    log.write(_batch([1, 2]), 0)
    log.write(_batch([7]), 1)
    log.publish(0, [])
    log.restore(1, {})
    log.write(_batch([8]), 1)
    log.close()
    taken = [(t.kind, t.generation, t.batch.column(0).to_pylist() if t.batch else None) for t in reader]
    assert taken == [("rows", 0, [1, 2]), ("complete", 0, None), ("rows", 1, [8])]


def test_a_generation_is_final_once_all_sinks_say_so(tmp_path: Path) -> None:
    """Also after a recovery: the files of a sink that has not come back yet are missing until then."""
    log = ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(tmp_path / ".eras"), sinks=2)
    sinks = [SinkWriter(log, sink) for sink in range(2)]
    for sink in sinks:
        sink.restore(0, {})
    files: dict[Part, list[Path]] = {}
    for number, sink in enumerate(sinks):
        sink.write(_batch([number]), 0)
        files[0, number] = [tmp_path / f"part-s{number}-000000-00000.parquet"]
        pq.write_table(pa.Table.from_batches([_batch([number])]), files[0, number][0])
    readers = [log.open(ConsumerOffset(), final=True) for _ in range(2)]
    sinks[0].publish(0, files[0, 0])
    assert [reader._step() for reader in readers] == [None, None]
    sinks[1].publish(0, files[0, 1])
    of_sinks = {sink: paths for (_, sink), paths in files.items()}
    assert readers[0]._step() == (0, of_sinks)
    sinks[0].restore(1, {(0, 0): files[0, 0]})
    assert [reader._step() for reader in readers] == [None, None]
    sinks[1].restore(1, {(0, 1): files[0, 1]})
    assert readers[1]._step() == (0, of_sinks)
    taken = list(readers[1]._whole_generation(0, of_sinks))
    assert [(item.kind, item.sink) for item in taken] == [("rows", 0), ("rows", 1), ("complete", 0)]


class _Counted(int):
    """A number that counts how often any of them is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return int.__eq__(self, other)  # type: ignore[operator, no-any-return]


def test_a_generation_is_found_among_many() -> None:
    """Sinks wait meanwhile."""
    log, sinks = ResultLog(SCHEMA, LIMIT_BYTES, 1.0, in_files=True, sinks=2), range(2)
    for sink in sinks:
        SinkWriter(log, sink).restore(1000, {(_Counted(generation), sink): [] for generation in range(1000)})
    _Counted.compared = 0
    assert next(iter(log.open(ConsumerOffset(), final=True))).kind == "complete"
    assert _Counted.compared < 10


def test_recoveries_before_the_first_rows_take_nothing_away(tmp_path: Path) -> None:
    log = ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(tmp_path / ".eras"))
    log.restore(0, {})
    log.publish(0, [])
    log.restore(1, {})
    log.write(_batch([1]), 1)
    log.close()
    assert [t.batch.column(0).to_pylist() for t in log.open(ConsumerOffset(), final=False) if t.kind == "rows"] == [[1]]


def test_eras_survive_a_death_while_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place must never be of a later era than the run knows of: its consumer could not go on."""
    ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(tmp_path / ".eras")).restore(0, {})
    log = ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(tmp_path / ".eras"))

    def dies(self: Path, *args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", dies)
    monkeypatch.setattr(Path, "write_text", lambda self, text: dies(self) if self.open("w").close() is None else None)
    with pytest.raises(KeyboardInterrupt):
        log.restore(3, {})
    monkeypatch.undo()
    assert ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(tmp_path / ".eras")).era == 1


class _Taker(threading.Thread):
    """A consumer in a thread of its own. pause_s: after each event."""

    def __init__(self, reader: Reader, pause_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._reader, self.pause_s = reader, pause_s
        self.rows: list[int] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for taken in self._reader:
                if taken.batch is not None:
                    self.rows += taken.batch.column(0).to_pylist()
                time.sleep(self.pause_s)
        except SwjoinError as error:
            self.error = error


def test_writing_waits_for_slow_readers_and_no_longer_than_its_patience() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, 2.0)
    stuck = log.open(None, final=False)  # takes nothing
    fast = _Taker(log.open(None, final=False))
    longest_s = 0.0
    for row in range(0, 200, 10):
        before = time.monotonic()
        log.write(_batch(list(range(row, row + 10))))
        longest_s = max(longest_s, time.monotonic() - before)
        log.validate()
    log.close()
    fast.join(PROCESS_S)
    assert fast.rows == list(range(200))
    assert fast.error is None
    assert longest_s > 1.9
    assert log.held_up_s > 1.9
    assert log.cuts == 1
    with pytest.raises(ConsumerCutOffError, match=r"cut: results were not taken for 2 s while 400 bytes"):
        next(iter(stuck))


def test_a_reader_that_is_slow_but_not_too_slow_loses_nothing() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, PROCESS_S)
    slow = _Taker(log.open(None, final=False), 0.002)
    for row in range(0, 2000, 10):
        log.write(_batch(list(range(row, row + 10))))
    log.close()
    assert log.drained(PROCESS_S)
    slow.join(PROCESS_S)
    assert slow.rows == list(range(2000))
    assert slow.error is None
    assert log.held_up_s > 0


def test_a_reader_that_goes_on_is_not_cut_because_another_sink_gets_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a batch every 0.6 s, and the patience is 1 s."""
    log, now_s = ResultLog(SCHEMA, LIMIT_BYTES, 1.0, sinks=2), [0.0]
    for row in range(5):
        log.write(_batch([row] * 10), sink=1)
    taking, others = iter(log.open(ConsumerOffset(), final=False)), iter(range(5, 8))

    def wait(at_most_s: float) -> None:
        now_s[0] += 0.6
        next(taking)
        for row in others:
            return log.write(_batch([row] * 10), sink=1)

    monkeypatch.setattr(result_log, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(log._changed, "wait", wait)
    log.write(_batch([9] * 10), sink=0)
    assert log.cuts == 0
    assert now_s[0] == pytest.approx(4 * 0.6)
    assert [item.batch.column(0)[0].as_py() for item, _ in zip(taking, range(4), strict=False) if item.batch] == [4, 5, 6, 7]


def test_rows_that_a_sink_could_not_pass_on_come_from_its_files(tmp_path: Path) -> None:
    """A checkpoint has them; its connection was broken before them, and then a rank died."""
    log = ResultLog(SCHEMA, 1 << 20, 60.0, in_files=True, sinks=2)
    sinks = [SinkWriter(log, number) for number in range(2)]
    for sink in sinks:
        sink.restore(0, {})
    sinks[1].write(_batch(list(range(60))), 0)
    reading = iter(log.open(ConsumerOffset(), final=False))
    taken = [next(reading)]
    pq.write_table(pa.Table.from_batches([_batch(list(range(100)))]), tmp_path / "file.parquet")
    for sink, files in zip(sinks, ({}, {(0, 1): [tmp_path / "file.parquet"]}), strict=True):
        sink.restore(1, files)
    for sink in sinks:
        sink.close()
    taken += reading
    assert [row for item in taken if item.batch for row in item.batch.column(0).to_pylist()] == list(range(100))


def test_a_lossy_log_skips_and_never_repeats_nor_waits() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, 60.0, lossy=True)
    reader = log.open(None, final=False)
    steps = iter(reader)
    log.write(_batch([0, 1]))
    first = next(steps)
    assert first.batch is not None
    rows = first.batch.column(0).to_pylist()
    for row in range(2, 500, 3):
        log.write(_batch([row, row + 1, row + 2]))
        log.validate()
    assert log.held_up_s == 0
    log.close()
    for taken in steps:
        assert taken.batch is not None
        rows += taken.batch.column(0).to_pylist()
    assert rows[:2] == [0, 1]
    assert rows[-1] == 499
    assert rows == sorted(set(rows))
    assert len(rows) + reader.skipped == 500
    assert reader.skipped > 400


def test_readers_hear_how_the_run_ended() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, 1.0)
    reader = log.open(None, final=False)
    log.write(_batch([1]))
    log.close(UserError("the run ended before the streams did"))
    steps = iter(reader)
    assert next(steps).kind == "rows"
    with pytest.raises(UserError, match="before the streams did"):
        next(steps)
    assert log.readers == 0


def test_a_consumer_that_has_gone_is_not_waited_for() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, 60.0)
    gone = threading.Event()
    taker = _Taker(log.open(None, final=False, given_up=gone.is_set))
    gone.set()
    taker.join(PROCESS_S)
    assert not taker.is_alive()
    assert log.readers == 0
    assert log.drained(0.0)


@pytest.mark.parametrize(
    "plain",
    [None, 7, {}, {"era": 0}, {"era": 0, "below": -1, "rows": {}}, {"era": 0, "below": 0, "rows": {"x": 1}}, "start"],
)
def test_what_is_no_place_is_refused(plain: Any) -> None:
    with pytest.raises(UserError, match="from: not a place"):
        ConsumerOffset.from_plain(plain)


def test_a_place_of_another_run_and_final_rows_without_files_are_refused() -> None:
    log = ResultLog(SCHEMA, LIMIT_BYTES, 1.0)
    with pytest.raises(UserError, match="another run"):
        log.open(ConsumerOffset(era=3), final=False)
    with pytest.raises(UserError, match="final results come with checkpoints"):
        log.open(None, final=True)


def test_all_runs_count_alike_and_their_places_are_told_apart(tmp_path: Path) -> None:
    """The other run has come as far, or farther: without the identity its rows would be left out without a word."""
    logs = [ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(tmp_path / name)) for name in ("one", "two")]
    for log in logs:
        log.restore(0, {})
        log.publish(0, [])
        log.publish(1, [])
    place = ConsumerOffset.from_plain(json.loads(json.dumps(logs[0].open(None, final=True).offset.to_plain())))
    assert place.below == 2
    logs[0].open(place, final=True)
    for other in (place, ConsumerOffset(1, 2), ConsumerOffset(1, 0, {(0, 0): 1}), ConsumerOffset(1, 2, {}, "x")):
        with pytest.raises(UserError, match="from: a place in the results of another run or query"):
            logs[1].open(other, final=True)
    with pytest.raises(UserError, match="another run"):
        logs[0].open(ConsumerOffset(1, 3, {}, logs[0].run), final=True)  # farther than the run
    assert logs[1].open(ConsumerOffset(), final=True).offset == ConsumerOffset(0, 0, {}, logs[1].run)


def test_a_resumed_run_is_the_same_and_a_new_one_in_its_folder_is_not(tmp_path: Path) -> None:
    eras = tmp_path / ".eras"
    log = ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(eras))
    log.restore(0, {})
    log.restore(1, {})
    resumed = ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(eras))
    assert (resumed.run, resumed.era) == (log.run, 2)
    fresh = ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(eras, fresh=True))
    assert fresh.run != log.run
    assert ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(eras)).run == log.run  # a run that is refused leaves everything as it was
    fresh.restore(0, {})
    assert ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(eras)).run == fresh.run
    eras.write_text("0\n1\n")  # of an older version
    assert ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(eras)).era == 2
    eras.write_text("zero\n")
    with pytest.raises(RunFailed, match=r"\.?eras: corrupt"):
        ResultLog(SCHEMA, 1 << 20, 0.0, eras=Eras(eras))


def test_a_place_with_more_rows_than_a_file_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-000000-00000.parquet"
    pq.write_table(pa.Table.from_batches([_batch([1, 2])]), path)
    log = ResultLog(SCHEMA, 1 << 20, 0.0, in_files=True, eras=Eras(tmp_path / ".eras"))
    log.restore(1, {(0, 0): [path]})
    log.close()
    with pytest.raises(UserError, match="another run"):
        list(log.open(ConsumerOffset(0, 0, {(0, 0): 3}, log.run), final=True))
    assert [t.kind for t in log.open(ConsumerOffset(0, 0, {(0, 0): 1}, log.run), final=True)] == ["rows", "complete"]


def test_logs_of_several_queries_share_eras_and_no_places(tmp_path: Path) -> None:
    """Each begins an era when it is restored, with the first one's generation; the file is written once for all."""
    eras = Eras(tmp_path / ".eras")
    one, two = (ResultLog(SCHEMA, 1 << 20, 0.0, eras=eras, query=query) for query in ("/one", "/two"))
    for log in (one, two):
        log.restore(0, {})
        log.write(_batch([1, 2]), 0)
    reader = two.open(ConsumerOffset(), final=False)
    steps = iter(reader)
    assert next(steps).kind == "rows"
    one.restore(0, {})
    assert (one.era, two.era, eras.count) == (2, 1, 2)
    two.write(_batch([3]), 0)  # of before: its own recovery is still to come
    assert next(steps).kind == "rows"
    two.restore(0, {})
    assert (next(steps).kind, two.era, eras.count) == ("void", 2, 2)
    assert (tmp_path / ".eras").read_text().split()[1:] == ["0", "0"]
    again = Eras(tmp_path / ".eras")
    resumed = [ResultLog(SCHEMA, 1 << 20, 0.0, eras=again, query=query) for query in ("/one", "/two", "")]
    assert [log.era for log in resumed] == [2, 2, 2]
    assert [log.run for log in resumed[:2]] == [one.run, two.run]
    assert len({log.run for log in resumed}) == 3
    with pytest.raises(UserError, match="another run or query"):
        one.open(reader.offset, final=False)


def test_parts_of_large_batches_do_not_keep_them(tmp_path: Path) -> None:
    """Of queries that share rows each has some of them."""
    whole = pa.record_batch([pa.array(range(100_000), pa.int64())], schema=SCHEMA)
    log = ResultLog(SCHEMA, 1 << 20, 0.0, query="/one")
    log.restore(0, {})
    columns = RowColumns(tuple((field.name, field.type) for field in SCHEMA), ids=False)
    TeeSink(CountSink(), columns, SinkWriter(log, 0), None).write_rows(whole.slice(500, 3), 0)
    (entry,) = log._buffer._entries
    assert entry.batch.equals(whole.slice(500, 3))
    assert retained_bytes(entry.batch) < 1000
    assert without_surplus(whole) is whole


def test_logs_wait_for_all_sinks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one log after another."""
    monkeypatch.setattr(result_log, "_CLOSING_S", 0.5)
    waited, until = ResultLog._await_end, list[float]()

    def noted(log: ResultLog, until_s: float) -> None:
        until.append(until_s)
        waited(log, until_s)

    monkeypatch.setattr(ResultLog, "_await_end", noted)
    logs = [ResultLog(SCHEMA, 1 << 20, 0.0, sinks=2) for _ in range(3)]
    for log in logs:
        log.restore(0, {})
        log.close()
    assert drain(logs, 0.0)
    assert len(until) == 3
    assert len(set(until)) == 1
    with pytest.raises(RunFailed, match="results of sink 1 have not come to their end"):
        list(logs[2].open(None, final=False))

"""Rows of further sinks reach the log at the first sink, over its endpoint: each once, in bounded memory, from sinks of this
attempt alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from swjoin.config.run import ServeConfig
from swjoin.connectors.flight import sink_rows
from swjoin.connectors.flight.client import connect
from swjoin.connectors.flight.result_log import ConsumerOffset, Eras, ResultLog, SinkWriter, Taken
from swjoin.connectors.flight.server import Endpoint
from swjoin.connectors.flight.sink_rows import RemoteWriter, SinkRows, new_secret
from swjoin.core.errors import RunFailed
from tests.support.limits import PROCESS_S

SCHEMA = pa.schema([("row", pa.int64())])
SERVE = ServeConfig(listen="127.0.0.1:0", patience_us=60_000_000)


def _batch(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=SCHEMA)


class _FirstSink:
    """The first of three sinks, with the endpoint of its rank."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 20, *, in_files: bool = False, clients: int = 64) -> None:
        self.log = ResultLog(SCHEMA, limit_bytes, 60.0, in_files=in_files, eras=Eras(folder / ".eras"), sinks=3)
        self.writer = SinkWriter(self.log, 0)
        self.endpoint = Endpoint(replace(SERVE, clients=clients), 0)
        self.rows = SinkRows(self.endpoint, self.log, "results")
        self.endpoint.open()

    def start(self, generation: int, others: list[RemoteWriter]) -> None:
        """All sinks begin, or go on, at this generation, without files."""
        for sink in (self.writer, *others):
            sink.restore(generation, {})
        self.rows.offer(secret := new_secret())
        for other in others:
            other.connect(self.endpoint.location, secret)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[_FirstSink]:
    made = _FirstSink(tmp_path)
    yield made
    made.endpoint.close()


def _others(ahead_bytes: int = sink_rows.AHEAD_BYTES) -> list[RemoteWriter]:
    return [RemoteWriter(number, SCHEMA, SERVE, "results", ahead_bytes) for number in (1, 2)]


def _numbers(taken: list[Taken]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for item in taken:
        if item.batch is not None:
            found.setdefault((item.generation, item.sink), []).extend(item.batch.column(0).to_pylist())
    return found


def test_all_sinks_fill_one_log(first: _FirstSink) -> None:
    """Also across a recovery, after which a sink's rows of final generations are there: nothing else has them."""
    others = _others()
    first.start(0, others)
    for number, sink in enumerate((first.writer, *others)):
        for row in range(0, 40, 10):
            sink.write(_batch(100 * number + row, 10), 0)
        sink.write(_batch(999, 1), 1)  # void after the recovery
        sink.flush()  # the checkpoint
    first.start(1, others)
    for number, sink in enumerate((first.writer, *others)):
        sink.write(_batch(100 * number + 40, 5), 1)
        sink.publish(1, [])
    ends = [threading.Thread(target=sink.close) for sink in (first.writer, *others)]
    for end in ends:
        end.start()
    taken = list(first.log.open(ConsumerOffset(), final=False))
    for end in ends:
        end.join(PROCESS_S)
    rows = {(0, n): list(range(100 * n, 100 * n + 40)) for n in range(3)}
    assert _numbers(taken) == rows | {(1, n): list(range(100 * n + 40, 100 * n + 45)) for n in range(3)}
    assert [item.generation for item in taken if item.kind == "complete"] == [0, 1]
    assert first.log.drained(0.0)


def test_final_rows_come_from_the_files_of_all_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a sink had at its start included, in several messages. Consumers wait for sinks that have not come."""
    monkeypatch.setattr(sink_rows, "_FILES", 3)
    first, others = _FirstSink(tmp_path, in_files=True), _others()
    files: dict[tuple[int, int], list[Path]] = {}
    for generation in range(4):
        for sink in range(3):
            path = tmp_path / f"part-s{sink}-{generation:06d}-00000.parquet"
            pq.write_table(pa.Table.from_batches([_batch(10 * generation + sink, 1)]), path)
            files[generation, sink] = [path]
    for number, sink in enumerate((first.writer, *others)):
        sink.restore(3, {part: paths for part, paths in files.items() if part[1] == number and part[0] < 3})
    taken: list[Taken] = []
    thread = threading.Thread(target=lambda: taken.extend(first.log.open(ConsumerOffset(), final=True)))
    thread.start()
    first.rows.offer(secret := new_secret())
    for other in others:
        assert taken == []
        other.connect(first.endpoint.location, secret)
    for number, sink in enumerate((first.writer, *others)):
        sink.publish(3, files[3, number])
        sink.flush()
    for sink in (*others, first.writer):
        sink.close()
    thread.join(PROCESS_S)
    first.endpoint.close()
    assert _numbers(taken) == {part: [10 * part[0] + part[1]] for part in files}
    assert [item.generation for item in taken if item.kind == "complete"] == list(range(4))


def test_the_names_of_many_files_fit_messages(first: _FirstSink) -> None:
    """Paths of the greatest length that Linux has, of letters that take most bytes."""
    files = [Path("/" + "/".join(["東" * 80] * 17)) / f"part-s1-000000-{i:05d}.parquet" for i in range(250)]
    sink = _others()[0]
    first.writer.restore(1, {})
    sink.restore(1, {(0, 1): files})
    first.rows.offer(secret := new_secret())
    sink.connect(first.endpoint.location, secret)
    sink.close()
    assert first.log._sinks.of(0) == {1: files}


def test_a_slow_consumer_holds_up_every_sink(tmp_path: Path) -> None:
    first, others = _FirstSink(tmp_path, 800), _others(800)
    first.start(0, others)
    reader = first.log.open(ConsumerOffset(), final=False)
    written = [0, 0]

    def write(sink: int) -> None:
        for row in range(0, 1000, 10):
            others[sink].write(_batch(row, 10), 0)
            written[sink] += 10
        others[sink].close()

    threads = [threading.Thread(target=write, args=(sink,)) for sink in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.5)
    assert max(written) <= 310, "100 rows in the log, as many on the way, and a batch in hand"
    first.writer.close()
    taken = list(reader)
    for thread in threads:
        thread.join(PROCESS_S)
    first.endpoint.close()
    assert _numbers(taken) == {(0, sink): list(range(1000)) for sink in (1, 2)}


def test_a_sink_waits_as_long_as_consumers_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a checkpoint the log has to have taken everything. Each batch takes it almost as long as it may."""
    first, others = _FirstSink(tmp_path, 800), _others()
    first.start(0, others)
    monkeypatch.setattr(others[0], "_patience_s", 1.0)
    monkeypatch.setattr(sink_rows, "time", SimpleNamespace(monotonic=lambda: 0.9 * first.log.rows / 10))
    reader = first.log.open(ConsumerOffset(), final=False)
    for row in range(0, 400, 10):
        others[0].write(_batch(row, 10), 0)

    def take() -> Iterator[Taken]:
        for item in reader:
            yield item
            time.sleep(0.02)

    taken: list[Taken] = []
    thread = threading.Thread(target=lambda: taken.extend(take()))
    thread.start()
    others[0].flush()
    for sink in (*others, first.writer):
        sink.close()
    thread.join(PROCESS_S)
    first.endpoint.close()
    assert _numbers(taken) == {(0, 1): list(range(400))}


def test_sinks_are_no_clients(tmp_path: Path) -> None:
    """Connections of an earlier attempt, whose ranks may be stopped, and a consumer have taken all places."""
    first, stopped, others = _FirstSink(tmp_path, clients=1), _others(), _others()
    first.start(0, stopped)
    with first.endpoint._slot():
        first.start(0, others)
        for sink in (*others, first.writer):
            sink.write(_batch(0, 1), 0)
        for sink in (*others, first.writer):
            sink.close()
    first.endpoint.close()
    assert _numbers(list(first.log.open(ConsumerOffset(), final=False))) == {(0, sink): [0] for sink in range(3)}


def test_nobody_else_writes_results(first: _FirstSink) -> None:
    """Neither clients nor a sink of an earlier attempt, on an old connection or a new one."""
    old, others = RemoteWriter(1, SCHEMA, SERVE, "results"), _others()
    first.start(0, [old])
    old_secret = first.rows._offered
    assert old_secret is not None
    old.write(_batch(0, 1), 0)
    old.flush()
    first.start(0, others)
    old.write(_batch(1, 1), 0)
    with pytest.raises(RunFailed, match=r"an attempt that a recovery has ended|only sinks of the run send results"):
        old.close()  # on its old connection, or where that took long on a new one
    late = RemoteWriter(1, SCHEMA, SERVE, "results")
    late.connect(first.endpoint.location, old_secret[0])
    with pytest.raises(RunFailed, match=r"sink 1: its results cannot be passed on .*: only sinks of the run send results"):
        late.close()
    secret = first.rows._offered  # not a new one: the other sinks may not have come with theirs yet
    assert secret is not None
    for request, said in (
        ({}, "only sinks of the run"),
        ({"secret": 1}, "only sinks of the run"),
        ({"secret": secret[0], "sink": 3}, "there is no further sink 3"),
    ):
        with connect(first.endpoint.location) as client:
            command = flight.FlightDescriptor.for_command(json.dumps({"stream": "rows of sinks: results", **request}))
            writer, _ = client._client.do_put(command, SCHEMA, client._options)
            with pytest.raises(flight.FlightError, match=said):
                writer.close()
    for sink in (*others, first.writer):
        sink.close()
    assert _numbers(list(first.log.open(ConsumerOffset(), final=False))) == {}


def test_a_sink_goes_on_without_the_first_one_until_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sink's rank has died, and another one takes over. Without one, the run ends with a line."""
    first, others = _FirstSink(tmp_path), _others()
    first.start(0, others)
    others[0].write(_batch(0, 1), 0)
    others[0].flush()
    first.log._sinks.attempt += 1  # its connections break
    for row in range(1, 50):
        others[0].write(_batch(row, 1), 0)
        others[0].flush()
    others[0].publish(0, [])
    again = _FirstSink(tmp_path)
    again.start(0, others)
    others[0].write(_batch(0, 1), 0)
    others[0].flush()
    again.log._sinks.attempt += 1
    others[0].write(_batch(1, 1), 0)
    others[0].flush()
    monkeypatch.setattr(sink_rows, "_BROKEN_S", 0.0)
    with pytest.raises(RunFailed, match="sink 1: its results cannot be passed on to consumers at sink 0: "):
        others[0].write(_batch(2, 1), 0)
    (entry,) = again.log._buffer._entries
    assert (entry.part, entry.batch.column(0).to_pylist()) == ((0, 1), [0])
    for one in (first, again):
        one.endpoint.close()

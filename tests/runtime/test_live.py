"""Live runs end to end: producers that push, consumers that take, and what becomes of them when somebody dies."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.workloads.live_session import Session, run_session
from swjoin.cli import serve as live_commands
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.read_scheduler import ReadScheduler
from swjoin.cluster.role import BatchRead, Read, SourceIdle, SourceResumed
from swjoin.config.loader import config_from_plain
from swjoin.config.run import TimeConfig
from swjoin.connectors.flight import client as live_client
from swjoin.connectors.flight import result_log
from swjoin.connectors.flight.client import connect
from swjoin.connectors.flight.ingest import FlightIngest
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import format_digest, pair_digest
from swjoin.runtime.hosts import GatewayHost
from swjoin.runtime.idle_sources import PATIENCE_S
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.live_runs import config, digest_of, digest_of_folder, expected, in_thread, live, rows, tuples
from tests.tools.oracle import answer


def _pieces(table: pa.Table, n: int) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=n)


def _push(
    address: str,
    stream: str,
    table: pa.Table,
    *,
    name: str | None,
    piece: int = 50,
    pause_s: float = 0.0,
    together: threading.Barrier | None = None,
) -> None:
    """One producer: connect, push at its own speed, end. together: all are connected before the first pushes."""
    with connect(address) as client, client.producer(stream, name) as producer:
        if together is not None:
            together.wait(PROCESS_S)
        for batch in _pieces(table, piece):
            producer.push(batch)
            time.sleep(pause_s)
        producer.end()


# ---------------------------------------------------------------- in one process


@pytest.mark.parametrize("sinks", [1, 3])
def test_many_producers_and_consumers(sinks: int, tmp_path: Path) -> None:
    """Three producers a stream, at different speeds, one without a name; consumers that take as it comes, and what is final."""
    left = [rows(i, 700, first_id=1000 * i) for i in range(3)]
    right = [rows(10 + i, 600, first_id=1000 * i) for i in range(3)]
    taken: list[pa.RecordBatch] = []
    final: list[pa.RecordBatch] = []
    metrics: list[pa.RecordBatch] = []
    settings = config(cluster={"sinks": sinks}, module={"result_buffer": "4KB"})
    with live(settings, tmp_path / "run") as (run, client):

        def take(into: list[pa.RecordBatch], what: str) -> None:
            with connect(run.address) as other:
                into += list(other.metrics() if what == "metrics" else other.results("start", final=what == "final"))

        takers = [in_thread(take, into, what) for into, what in ((taken, "live"), (final, "final"), (metrics, "metrics"))]
        waits = [client.producer(stream, f"producer {i}") for stream in ("left", "right") for i in range(2)]
        with client.producer("left", "known but away"):
            pass
        together = threading.Barrier(6)  # or rows of those without a name, for whom no row waits, might be late
        producers = [
            in_thread(
                _push,
                run.address,
                stream,
                table,
                name=None if i == 2 else f"producer {i}",
                pause_s=0.004 * i,
                together=together,
            )
            for stream, tables in (("left", left), ("right", right))
            for i, table in enumerate(tables)
        ]
        time.sleep(0.3)
        client.push("left", pa.table({"key": [1], "ts": [2_000_000], "id": [9999]}), producer="known but away", end=True)
        for thread in producers:
            thread.join(PROCESS_S)
        assert client.received("left", "producer 0") == 700
        assert client.received("right", "nobody") == 0
        for connection in waits:
            connection.close()
        for stream in ("left", "right"):
            client.end(stream)
        found = run.result()
        for thread in takers:
            thread.join(PROCESS_S)
    last = pa.table({"key": [1], "ts": [2_000_000], "id": [9999]})
    assert found == expected(tuples(*left, last), tuples(*right))
    assert found[0] > 500
    assert digest_of(pa.Table.from_batches(taken)) == found
    assert digest_of(pa.Table.from_batches(final)) == found
    assert digest_of_folder(tmp_path / "run" / "results") == found
    assert len(run.report["sinks"]) == sinks
    assert min(sink["count"] for sink in run.report["sinks"]) > found[0] // (4 * sinks)
    assert run.report["late"] == {"left": 0, "right": 0}
    assert sum(batch["pairs"].to_numpy().sum() for batch in metrics) > 0
    assert not (tmp_path / "run" / "checkpoints").exists(), "what a run has kept for its resumption goes with its end"


def test_rows_wait_for_each_producer_that_has_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the endpoint takes notice of the connection, and without a name, by which it would be known."""
    name_of = FlightIngest._name_of

    def slowly(ingest: FlightIngest, request: dict[str, Any]) -> tuple[str, bool]:
        name, anonymous = name_of(ingest, request)
        time.sleep(0.5 * anonymous)
        return name, anonymous

    monkeypatch.setattr(FlightIngest, "_name_of", slowly)
    early, later = rows(1, 20, keys=2), rows(2, 20, keys=2, first_id=100, begin_us=900_000)
    with live(config(), tmp_path / "run") as (run, client):
        client.push("right", later, producer="right", end=True)
        client.end("right")
        with client.producer("left") as nameless:
            ahead = in_thread(client.push, "left", later, producer="ahead", end=True)
            time.sleep(0.3)  # its rows would be joined by now
            nameless.push(early)
            nameless.end()
            ahead.join(PROCESS_S)
        client.end("left")
        found = run.result()
    assert run.report["late"] == {"left": 0, "right": 0}
    assert found == expected(tuples(early, later), tuples(later))


def _until(done: Callable[[], Any]) -> None:
    """Wait, as long as a loaded machine may take."""
    end_s = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end_s, "it does not come"
        time.sleep(0.02)


def test_a_push_behind_silent_producers_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose rows are missing, since when and from where; producers that are away, nameless or only on the other stream, too."""
    monkeypatch.setattr(live_client, "_NOTICE_S", 0.1)
    monkeypatch.setattr(live_client, "_NOTICE_AGAIN_S", 0.1)
    said: list[str] = []
    rows_of = partial(rows, keys=5, span_us=50_000)
    with live(config(), tmp_path / "run") as (_run, client):
        client.push("left", rows_of(1, 3), producer="away")
        nameless, quiet = client.producer("left"), client.producer("left", "sensor-7")
        for connection in (nameless, quiet):
            connection.advance(60_000)
        thread = in_thread(
            client.push, "left", rows_of(3, 50, begin_us=900_000), producer="busy", end=True, on_wait=said.append
        )
        _until(lambda: said and "without a name" in said[-1] and "sensor-7" in said[-1])
        assert thread.is_alive()
        line = said[-1]
        assert line.startswith("rows of left wait for ")
        assert "producer away (not connected, silent for " in line
        assert re.search(r"producer sensor-7 \(from \S*127\.0\.0\.1\S*, silent for \d+ s\)", line), line
        assert re.search(r"a producer without a name \(from \S*127\.0\.0\.1\S*, silent for \d+ s\)", line), line
        assert "busy" not in line
        assert line.endswith("let them send rows, advance or end, or set time.idle_timeout in the run's configuration")
        for connection in (nameless, quiet):
            connection.end()
            in_thread(connection.close)
        client.push("left", rows_of(1, 0), producer="away", end=True)
        _until(lambda: not thread.is_alive())


def test_a_push_that_waits_for_the_other_stream_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_client, "_NOTICE_S", 0.1)

    def far_ahead(client: Any) -> None:
        for second in range(0, 60, 5):
            client.push("left", rows(second, 50, begin_us=second * 1_000_000))

    with live(config(), tmp_path / "run") as (_run, client), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread = in_thread(far_ahead, client)
        said: Callable[[], list[str]] = lambda: [str(w.message) for w in warned if w.category is RuntimeWarning]  # noqa: E731
        _until(said)
        assert thread.is_alive()
        assert "rows of left wait for stream right: a producer, none has come; let them send" in said()[0]
        client.end("right")
        _until(lambda: not thread.is_alive())


def test_a_push_names_the_producers_that_have_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swjoin: Any) -> None:
    """From the command line, on its error output."""
    monkeypatch.setattr(live_client, "_NOTICE_S", 0.1)
    told = threading.Event()
    say = live_commands._say
    monkeypatch.setattr(live_commands, "_say", lambda text: (say(text), told.set()))
    pq.write_table(rows(1, 30), tmp_path / "one.parquet")
    plain = config(left={"flight": {"producers": 3}})
    with live(plain, tmp_path / "run") as (run, _client):

        def others() -> None:
            told.wait(120)
            with connect(run.address) as client:
                for name in ("two", "three"):
                    client.push("left", rows(2, 0), producer=name, end=True)
                client.end("right")

        in_thread(others)
        done = swjoin("push", run.address, "left", tmp_path / "one.parquet")
    assert done.code == 0
    assert "left: 30 rows pushed and accepted" in done.out
    assert "rows of left wait for 2 of its producers, which have not come; let them send rows" in "".join(done.err)


def test_a_push_of_a_directory_tells_what_is_not_read(swjoin: Any, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    pq.write_table(rows(1, 30), folder / "one.parquet")
    (folder / "a.txt").write_text("")
    with live(config(), tmp_path / "run") as (run, client):
        done = swjoin("push", run.address, "left", folder)
        client.end("right")
    assert done.code == 0
    assert done.err == [f"swjoin: {folder}: 1 file is not read: a.txt; name files of one format, or give their folder"]


def test_a_push_returns_how_many_rows_are_accepted(tmp_path: Path) -> None:
    with live(config(), tmp_path / "run") as (_run, client):
        table = rows(1, 70)
        assert client.push("left", table) == 70  # without a name: these
        assert client.push("left", table.slice(0, 0)) == 0
        assert client.push("left", table.slice(30), end=True) == 40
        assert client.push("right", table, producer="a") == 70
        assert client.push("right", table.slice(50), producer="a", end=True) == 90  # under a name: all of them


def test_late_rows_are_taken_and_kept(tmp_path: Path) -> None:
    """Late is a row that comes after a later one of its own producer, past the bound; never one that another has overtaken."""
    late: list[pa.RecordBatch] = []
    with live(config(time={"late": "side", "max_out_of_order": "100us"}), tmp_path / "run") as (run, client):
        taking = client.late()
        thread = in_thread(lambda: late.extend(taking))
        time.sleep(0.2)
        left = pa.table({"key": [1, 1, 1, 1], "ts": [1000, 2000, 1950, 1500], "id": [0, 1, 2, 3]})
        client.push("left", left, producer="a", end=True)
        client.push("left", pa.table({"key": [1, 1], "ts": [900, 2500], "id": [10, 11]}), producer="b", end=True)
        client.push("right", pa.table({"key": [1], "ts": [1960], "id": [0]}), producer="c", end=True)
        client.end("left")
        client.end("right")
        report = run.end()
        thread.join(PROCESS_S)
    table = pq.read_table(tmp_path / "run" / "late.parquet")
    lates = {row["row_id"] for row in table.to_pylist()}
    assert 3 in lates
    assert 1 not in lates
    assert report["late"]["left"] == len(lates) == table.num_rows
    assert report["ledger"]["balanced"]
    assert report["results"]["count"] == 6 - len(lates)
    told = pa.Table.from_batches(late)
    assert set(told["row_id"].to_pylist()) == lates
    assert set(told["reason"].to_pylist()) == {"late"}


def test_an_idle_producer_and_an_idle_stream_hold_nobody_up(tmp_path: Path) -> None:
    """After the timeout time goes on without them; what they bring then is late, and set aside.

    Rows go on coming until the first result: where the machine stops a producer for longer than the timeout, its rows are late
    as well, and only the rest is joined.
    """
    plain = config(time={"late": "side", "idle_timeout": "1s"})
    pushed: dict[str, list[pa.Table]] = {"left": [], "right": []}
    with live(plain, tmp_path / "run") as (run, client):
        silent = client.producer("left", "silent")
        results = client.results("start")
        firsts: list[pa.RecordBatch] = []
        first = in_thread(lambda: firsts.append(next(iter(results))))
        deadline = time.monotonic() + PROCESS_S
        with client.producer("left", "a") as left, client.producer("right", "b") as right:
            for n in itertools.count():
                for seed, (stream, producer) in enumerate((("left", left), ("right", right))):
                    pushed[stream].append(rows(2 * n + seed, 40, first_id=40 * n, begin_us=300_000 * n, span_us=300_000))
                    producer.push(pushed[stream][-1])
                first.join(0.1)
                if not first.is_alive():
                    break
                assert time.monotonic() < deadline, "somebody waits for a silent producer"
            left.end()
            right.end()
        assert firsts[0].num_rows > 0
        silent.push(pa.table({"key": [1], "ts": [5], "id": [10**9]}))
        silent.close()
        results.cancel()
        for stream in ("left", "right"):
            client.end(stream)
        found = run.result()
    late = pq.read_table(tmp_path / "run" / "late.parquet")
    taken = {}
    for stream, tables in pushed.items():
        ids = late.filter(pc.equal(late["stream"], stream))["row_id"]
        assert run.report["late"][stream] == len(ids)
        taken[stream] = [t.filter(pc.invert(pc.is_in(t["id"], ids.combine_chunks()))) for t in tables]
    assert found == expected(tuples(*taken["left"]), tuples(*taken["right"]))


def test_a_stream_that_resumes_alone_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other stream has ended and nothing else wakes the master: it waits no longer than between two polls."""
    waits_us: list[int] = []
    patience = GatewayHost.patience_us

    def watched(host: GatewayHost) -> int:
        patience_us = patience(host)
        if host._reads.wanted is not None:
            waits_us.append(patience_us)
        return patience_us

    monkeypatch.setattr(GatewayHost, "patience_us", watched)
    plain = config(pace="asap", time={"idle_timeout": "50ms"})
    with live(plain, tmp_path / "run") as (run, client):
        client.push("left", rows(1, 50))
        client.end("left")
        for first in range(0, 60, 20):
            time.sleep(0.3)
            client.push("right", rows(2, 20, first_id=first, begin_us=900_000 + 1000 * first, span_us=10_000))
        client.end("right")
        found = run.result()
    assert run.report["late"] == {"left": 0, "right": 0}
    right = [rows(2, 20, first_id=first, begin_us=900_000 + 1000 * first, span_us=10_000) for first in range(0, 60, 20)]
    assert found == expected(tuples(rows(1, 50)), tuples(*right))
    assert waits_us, "no idle stream has resumed while the master waited"
    assert max(waits_us) <= PATIENCE_S * 1e6


def test_arrival_times(tmp_path: Path) -> None:
    """The clock says when a row has come: times that it brings count for nothing; nobody waits for a silent producer."""
    plain = config(time={"model": "arrival"}, join={"within": "60s"})
    del plain["time"]["late"]
    with live(plain, tmp_path / "run") as (run, client):
        silent = [client.producer(stream, "silent") for stream in ("left", "right")]
        results = iter(client.results("start"))
        client.push("left", pa.table({"key": [1, 2], "ts": [7_000_000_000, 5], "id": [0, 1]}), producer="a")
        client.push("right", pa.table({"key": [2, 2, 3], "ts": [10**12, 3, 4], "id": [0, 1, 2]}), producer="b")
        assert next(results).num_rows >= 1
        for connection in silent:
            connection.close()
        for stream in ("left", "right"):
            client.end(stream)
        assert run.result() == (2, format_digest(pair_digest(np.array([1, 1], np.uint64), np.array([0, 1], np.uint64))))


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("flight", {"sink": {"kind": "flight"}}),
        ("count", {"sink": {"kind": "count"}}),
        ("without checkpoints", {"checkpoint": {}}),
        ("asap", {"pace": "asap"}),
        ("asap by count", {"pace": "asap", "cluster": {"distribution_epoch": "0ms", "epoch_tuples": 64}}),
        ("sub-groups", {"cluster": {"sub_group_count": 2}}),
        ("moves", {"reorganization": {"policy": "random", "random_moves": 3, "epoch": "40ms", "declustering": "adaptive"}}),
        ("spill", {"on_overload": {"policy": "spill"}, "cluster": {"mini_buffer": "16KB"}}),
        ("full outer", {"join": {"how": "full"}}),
        ("anti", {"join": {"how": "anti"}}),
    ],
)
def test_kinds_of_runs(name: str, sections: dict[str, Any], tmp_path: Path) -> None:
    plain = config(**{k: v for k, v in sections.items() if k != "join"})
    if name == "without checkpoints":
        plain["checkpoint"] = {}
    plain["join"] |= sections.get("join", {})
    left, right = rows(3, 1500), rows(4, 1500)
    with live(plain, tmp_path / "run") as (run, client):
        results = client.results("start") if name == "flight" else None
        taken: list[pa.RecordBatch] = []
        taker = None if results is None else in_thread(lambda: taken.extend(results))
        other = in_thread(_push, run.address, "left", left, name="a", piece=100, pause_s=0.01)
        _push(run.address, "right", right, name=None, piece=70, pause_s=0.005)
        other.join(PROCESS_S)
        for stream in ("left", "right"):
            client.end(stream)
        found = run.result()
        if taker is not None:
            taker.join(PROCESS_S)
            assert digest_of(pa.Table.from_batches(taken)) == found
    assert found == expected(tuples(left), tuples(right), how=plain["join"].get("how", "inner"))


def test_count_windows(tmp_path: Path) -> None:
    left, right = rows(5, 800), rows(6, 800, begin_us=1)
    plain = config()
    plain["join"] = {"last": 40}
    with live(plain, tmp_path / "run") as (run, client):
        other = in_thread(_push, run.address, "left", left, name="a", pause_s=0.003)
        _push(run.address, "right", right, name="b")
        other.join(PROCESS_S)
        for stream in ("left", "right"):
            client.end(stream)
        found = run.result()
    query = config_from_plain(plain).query
    ids = answer(tuples(left), tuples(right), query.bounds, "inner")
    assert found == (len(ids[0]), format_digest(pair_digest(*ids)))


def test_shedding_is_counted_and_written_down(tmp_path: Path) -> None:
    """Producers that are faster than slow slaves: memory stays bounded, the ledger balances."""
    plain = config(on_overload={"policy": "shed"}, cluster={"mini_buffer": "64KB"}, module={"stream_buffer": "32KB"})
    plain |= {"nodes": {"node_speed": 0.01}, "sink": {"kind": "count"}}
    left, right = rows(7, 20_000, keys=3), rows(8, 20_000, keys=3)
    with live(plain, tmp_path / "run") as (run, client):
        other = in_thread(_push, run.address, "left", left, name="a", piece=500, pause_s=0.02)
        _push(run.address, "right", right, name="b", piece=500, pause_s=0.02)
        other.join(PROCESS_S)
        for stream in ("left", "right"):
            client.end(stream)
        report = run.end()
    shed = sum(report["shed"].values())
    assert report["ledger"]["balanced"]
    assert shed > 0
    assert report["peak_buffer_bytes"]["master"] < 20_000 * 64
    assert pq.read_table(tmp_path / "run" / "late.parquet").num_rows == shed


def test_how_many_producers_is_said(tmp_path: Path) -> None:
    """The stream begins when all are there, and ends when all have ended; one more is refused, and one without a name."""
    plain = config()
    for side in ("left", "right"):
        plain[side] = {**plain[side], "flight": {"producers": 2}}
    left, right = [rows(i, 300, first_id=1000 * i) for i in (0, 1)], [rows(i, 300, first_id=1000 * i) for i in (2, 3)]
    with live(plain, tmp_path / "run") as (run, client):
        _push_all = [in_thread(_push, run.address, "right", table, name=f"r{i}") for i, table in enumerate(right)]
        first = in_thread(_push, run.address, "left", left[0], name="l0")
        time.sleep(0.3)
        with pytest.raises((RunFailed, UserError), match="say which one you are"):
            client.push("left", left[1])
        _push(run.address, "left", left[1], name="l1")
        with pytest.raises((RunFailed, UserError), match=r"ended|producers already|not there|refused|failed to connect"):
            client.push("left", left[1], producer="l2")
        found = run.result()
        for thread in (first, *_push_all):
            thread.join(PROCESS_S)
    assert found == expected(tuples(*left), tuples(*right))


# ---------------------------------------------------------------- the roles


def _source_rows(times: list[int], first: int = 0) -> SourceBatch:
    ts = np.array(times, np.int64)
    return SourceBatch(np.zeros(len(ts), np.int64), ts, np.arange(first, first + len(ts), dtype=np.uint64))


def _master(**sections: Any) -> Gateway:
    master = Gateway(config_from_plain(config(**sections)), 1, (None, None))
    assert master.start(0)[-1] == Read(0, (1,))
    return master


def test_what_has_been_read_before_a_stream_falls_idle_keeps_its_order() -> None:
    """It arrives with the slot; a promise made before that, in the middle of the slot, would come too early."""
    master = _master(time={"late": "side", "max_out_of_order": "10us", "idle_timeout": "1s"})
    left = master.streams[0]
    master.handle(BatchRead(0, _source_rows([100, 95])), 1)
    left.arrive_until(0)  # as when a slot ends
    assert left.watermark_us == 90
    master.handle(BatchRead(0, _source_rows([92], 2)), 2)
    master.handle(BatchRead(1, _source_rows([200])), 3)
    master.handle(SourceIdle(0), 4)
    assert left.watermark_us == 90, "promised before what has been read has arrived"
    left.arrive_until(5)
    master.streams[1].arrive_until(5)
    master.reading.carry()
    assert left.watermark_us == 190
    assert np.concatenate([batch.ts for batch in left.take_released()]).tolist() == [92, 95, 100]


def test_time_goes_no_further_than_what_has_arrived() -> None:
    """Rows that have been read count from the end of the slot on: a promise must not pass those before them."""
    intake = StreamIntake(0, TimeConfig(late="side"), live=True)
    intake.read(_source_rows([10]), 0)
    intake.arrive_until(1)
    intake.read(_source_rows([50]), 2)
    assert intake.watermark_us == 10
    intake.arrive_until(10**9)
    assert intake.watermark_us == 50, "the run's clock carries no live stream"


def test_a_stream_that_speaks_again_may_be_read_at_once() -> None:
    """While the master waits for the other one, too."""
    master = _master(time={"late": "side", "idle_timeout": "1s"})
    master.handle(BatchRead(0, _source_rows([5])), 1)
    commands = master.handle(SourceIdle(1), 2)
    assert Read(0) in commands, "an idle stream is not read instead"
    assert Read(1, (0,)) in master.handle(SourceResumed(1), 3)


def test_of_many_streams_those_are_read_instead_that_are_not_far_ahead() -> None:
    """That of the lowest time first, while another one is silent; one that has ended or is idle is not."""
    config = config_from_plain({"join": {"within": "2s"}})
    streams = tuple(StreamIntake(i, TimeConfig(late="side"), live=True, name=f"stream {i}") for i in range(5))
    nothing: Any = None
    reading = ReadScheduler(config, streams, nothing, nothing, nothing, nothing)
    for i, ts in enumerate((1_000_000, 3_000_000, 2_000_000, 3_000_001)):
        streams[i].read(_source_rows([ts]), 0)
    assert reading.instead_of(0) == (4, 2, 1)
    streams[4].end()
    streams[2].become_idle()
    assert reading.instead_of(0) == (1,)
    assert reading.instead_of(3) == (0, 1)


def test_reading_stops_when_slots_do_not_end() -> None:
    """Policy shed counts what has arrived; what is still to arrive must not fill the memory when no slave reports."""
    master = _master(on_overload={"policy": "shed"}, cluster={"mini_buffer": "64KB"})
    reads = 0
    wanted = [Read(0, (1,))]
    while wanted and reads < 100:
        times = np.arange(1000 * reads, 1000 * reads + 1000)
        commands = master.handle(BatchRead(reads % 2, _source_rows(times.tolist())), reads)
        wanted = [command for command in commands if isinstance(command, Read)]
        reads += 1
    assert not wanted
    assert master.slots.waiting_bytes < 5 * (64 << 10)


def test_with_arrival_times_no_stream_is_ahead() -> None:
    plain = config(time={"model": "arrival"})
    del plain["time"]["late"]
    master = Gateway(config_from_plain(plain), 1, (None, None))
    master.start(0)
    master.handle(BatchRead(1, _source_rows([5])), 1)
    assert Read(0, (1,)) in master.handle(BatchRead(1, _source_rows([10**12])), 2)


# ---------------------------------------------------------------- processes that die


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _push_whatever_happens(address: str, stream: str, table: pa.Table, pause_s: float) -> None:
    """A producer that goes on where it was, as long as somebody comes back."""
    deadline = time.monotonic() + PROCESS_S
    while time.monotonic() < deadline:
        try:
            with connect(address) as client, client.producer(stream, "p") as producer:
                for batch in _pieces(table.slice(producer.row), 25):
                    producer.push(batch)
                    time.sleep(pause_s)
                producer.end()
            return
        except RunFailed:
            time.sleep(0.05)
    raise AssertionError("nobody came back")


def _string_keys(plain: dict[str, Any], *tables: pa.Table) -> list[pa.Table]:
    for side in ("left", "right"):
        plain[side] = {**plain[side], "schema": "key: string, ts: int64, id: int64"}
    return [t.set_column(0, "key", pa.array([f"user {k}" for k in t["key"].to_pylist()])) for t in tables]


@pytest.mark.parametrize(
    ("ranks", "sinks"),
    [
        (0, (1, 1)),
        (0, (2, 3)),
        pytest.param(4, (1, 1), marks=[pytest.mark.mpi, pytest.mark.long]),
        pytest.param(4, (3, 2), marks=[pytest.mark.mpi, pytest.mark.long]),
        pytest.param(5, (2, 1), marks=[pytest.mark.mpi, pytest.mark.long]),
    ],
)
def test_stopped_and_resumed(ranks: int, sinks: tuple[int, int], start: Any, tmp_path: Path) -> None:
    """SIGTERM, and `--resume`: producers and a consumer, killed once itself, go on. Keys are strings."""
    left, right = rows(21, 3000), rows(22, 3000)
    port = _free_port()
    plain = config(serve={"listen": f"127.0.0.1:{port}"})
    strings = _string_keys(plain, left, right)
    (tmp_path / "live.yaml").write_text(json.dumps(plain))
    address, more = f"grpc://127.0.0.1:{port}", ["-n", ranks] if ranks else []
    run = start("run", "serve", tmp_path / "live.yaml", "--out", tmp_path / "run", "--sinks", sinks[0], *more)
    run.said("listening")
    tail = start("tail", "tail", address, "-o", tmp_path / "taken", "--retry", "60s")
    producers = [
        in_thread(_push_whatever_happens, address, stream, table, 0.015)
        for stream, table in zip(("left", "right"), strings, strict=True)
    ]
    time.sleep(1.0)
    tail.signal(signal.SIGKILL)
    tail = start("tail", "tail", address, "-o", tmp_path / "taken", "--retry", "60s")
    run.process.send_signal(signal.SIGTERM)
    run.ended()
    run = start("resumed", "serve", "--resume", tmp_path / "run", "--sinks", sinks[1], *more)
    for thread in producers:
        thread.join(PROCESS_S)
    with connect(address) as client:
        assert client.received("left", "p") == 3000
        for stream in ("left", "right"):
            client.end(stream)
    run.ended()
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    found = report["results"]["count"], report["results"]["digest"]
    assert found == expected(tuples(left), tuples(right))
    assert report["ledger"]["balanced"]
    tail.ended()
    assert digest_of_folder(tmp_path / "taken") == found


@pytest.mark.parametrize("ranks", [0, pytest.param(4, marks=[pytest.mark.mpi, pytest.mark.long])])
@pytest.mark.parametrize("interval", ["1h", pytest.param("100ms", marks=pytest.mark.long)])
def test_everybody_killed(ranks: int, interval: str, start: Any, tmp_path: Path) -> None:
    """Producers that have been told that their rows are accepted do not come back, whether there is a checkpoint or not."""
    left, right = rows(23, 1500), rows(24, 1500)
    plain = config(checkpoint={"interval": interval})
    (tmp_path / "live.yaml").write_text(json.dumps(plain))
    more = ["-n", ranks] if ranks else []
    run = start("run", "serve", tmp_path / "live.yaml", "--out", tmp_path / "run", *more)
    run.said("listening")
    address = next(line.split()[-1] for line in (tmp_path / "run.log").read_text().splitlines() if "listening" in line)
    with connect(address) as client:
        assert client.push("left", left, producer="a") == 1500
        client.push("right", right, producer="b", end=True)
        client.push("right", rows(25, 10, first_id=5000, begin_us=2_000_000))
        time.sleep(0.5)
        run.signal(signal.SIGKILL)
    if interval == "1h":
        again = start("again", "serve", tmp_path / "live.yaml", "--out", tmp_path / "run", *more)
        assert again.process.wait(PROCESS_S) == 2
        assert "holds rows that a run has accepted" in (tmp_path / "again.log").read_text()
    run = start("resumed", "serve", "--resume", tmp_path / "run", *more)
    run.said("listening")
    address = (tmp_path / "resumed.log").read_text().split("listening at ")[1].split()[0]
    with connect(address) as client:
        assert client.received("left", "a") == 1500
        assert client.received("right", "b") == 1500
        for stream in ("left", "right"):
            client.end(stream)
    run.ended()
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    last = rows(25, 10, first_id=5000, begin_us=2_000_000)
    assert (report["results"]["count"], report["results"]["digest"]) == expected(tuples(left), tuples(right, last))
    assert report["ledger"]["balanced"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_killed_push_goes_on(start: Any, tmp_path: Path) -> None:
    """`swjoin push FILE`, killed in the middle and started again: no row is missing or there twice."""
    left, right = rows(26, 4000), rows(27, 2000)
    pq.write_table(left, tmp_path / "left.parquet", row_group_size=300)
    pq.write_table(right, tmp_path / "right.parquet")
    with live(config(), tmp_path / "run") as (run, client):
        words = ["push", run.address, "left", tmp_path / "left.parquet", "--batch", 40]
        push = start("push", *words, "--rate", 3000)
        while client.received("left", "left.parquet") < 800:
            time.sleep(0.02)
        push.signal(signal.SIGKILL)
        there = client.received("left", "left.parquet")
        assert 800 <= there < 4000
        again, other = start("again", *words), start("other", "push", run.address, "right", tmp_path / "right.parquet")
        again.ended()
        other.ended()
        assert f"{4000 - there:,} rows pushed and accepted" in (tmp_path / "again.log").read_text()
        start("twice", *words).ended()
        for stream in ("left", "right"):
            client.end(stream)
        assert run.result() == expected(tuples(left), tuples(right))


def test_tail_prints_lines(start: Any, tmp_path: Path) -> None:
    with live(config(), tmp_path / "run") as (run, client):
        tails = [
            start("json", "tail", run.address, "--from", "start", "--count", 2),
            start("csv", "tail", run.address, "--from", "start", "--format", "csv", "--final"),
        ]
        for stream in ("left", "right"):
            table = pa.table({"key": [1, 2, 1], "ts": [5, 6, 7], "id": [0, 1, 2]})
            client.push(stream, table, producer="a")
        tails[0].ended()
        tails[1].said("left_id")
        for stream in ("left", "right"):
            client.end(stream)
        assert run.result()[0] == 5
        for tail in tails:
            tail.ended()
    lines = [json.loads(line) for line in (tmp_path / "json.log").read_text().splitlines()]
    assert len(lines) == 2
    assert {"left_id", "right_id"} <= set(lines[0])
    assert len((tmp_path / "csv.log").read_text().splitlines()) == 6


@pytest.mark.parametrize("resumed", [False, True])
def test_a_tail_goes_on_in_its_own_run_alone(resumed: bool, start: Any, swjoin: Any, tmp_path: Path) -> None:
    """A folder of another run, which has come as far, is refused by name; so is a second tail in the same folder."""
    taken, places = tmp_path / "taken", []
    table = pa.table({"key": [1, 2, 1], "ts": [5, 6, 7], "id": [0, 1, 2]})
    for out in ("one", "one" if resumed else "two"):
        with live(config(), tmp_path / out) as (run, client):
            for stream in ("left", "right"):
                client.push(stream, table, producer="a")
            if places:
                done = swjoin("tail", run.address, "-o", taken)
                assert (done.code, done.err) == (
                    2,
                    [f"swjoin: -o {taken}: a place in the results of another run or query; name an empty folder"],
                )
                with pytest.raises(RunFailed, match="from: a place in the results of another run or query"):
                    list(client.results(places[0], final=True))
                continue
            with client.results("start", final=True) as taking:
                places.append(next(event.place for event in taking.events() if event.kind == "complete"))
            tail = start("tail", "tail", run.address, "-o", taken)
            while not (taken / ".place.json").exists():
                time.sleep(0.02)
            second = swjoin("tail", run.address, "-o", taken)
            assert (second.code, second.err) == (
                2,
                [f"swjoin: -o {taken}: another swjoin tail writes there; name another folder"],
            )
            for stream in ("left", "right"):
                client.end(stream)
            found = run.result()
            tail.ended()
            assert digest_of_folder(taken) == found
        if resumed:  # the folder of the run, for a new run
            shutil.rmtree(tmp_path / out / "results")
            shutil.rmtree(tmp_path / out / "metrics")
            (tmp_path / out / "late.parquet").unlink(missing_ok=True)
            (tmp_path / out / "run.json").unlink()


def test_folders_in_which_no_tail_can_go_on(swjoin: Any, tmp_path: Path) -> None:
    nobody = f"grpc://127.0.0.1:{_free_port()}"
    folder = tmp_path / "taken"
    damaged = "damaged; no tail can resume there; name an empty folder"
    contents = {"": damaged, "[": damaged, "{}": damaged, "[]": damaged, '{"era": 1e999}': damaged, "\udcff": damaged}
    contents['{"era": 1, "below": 2, "rows": {}}'] = "does not say of which run (an older version of swjoin wrote it)"
    for content, said in contents.items():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / ".place.json").write_bytes(content.encode(errors="surrogateescape"))
        done = swjoin("tail", nobody, "-o", folder)
        assert (done.code, len(done.err)) == (2, 1), content
        assert done.err[0].startswith(f"swjoin: {folder}/.place.json: {said}"), content
    (folder / ".place.json").unlink()
    (folder / ".place.json").mkdir()
    done = swjoin("tail", nobody, "-o", folder)
    assert (done.code, done.err) == (
        2,
        [f"swjoin: {folder}/.place.json: cannot be read (Is a directory); name an empty folder"],
    )
    (folder / ".place.json").rmdir()
    (folder / "part-000000.parquet").touch()
    assert "holds files of something else" in swjoin("tail", nobody, "-o", folder).err[0]
    assert swjoin("tail", nobody, "-o", folder / "part-000000.parquet").code == 2
    (folder / "part-000000.parquet").unlink()
    assert swjoin("tail", nobody, "-o", folder).code == 1  # nothing listens there; the folder would do


def test_void_generations_leave_a_tails_folder(tmp_path: Path) -> None:
    """A checkpoint was removed by hand: what had been final comes again, perhaps in fewer generations."""
    batch = pa.record_batch({"x": [1]})
    taking = live_commands._Generations(tmp_path / "taken")
    for generation in range(3):
        place = result_log.ConsumerOffset(1, generation + 1, {}, "r")
        for kind in ("rows", "complete"):
            taking.take(live_client.Event(kind, batch, generation, place))
    taking.take(live_client.Event("rows", batch, 3, place))
    taking.take(live_client.Event("void", batch, 1, result_log.ConsumerOffset(2, 1, {}, "r")))
    taking.close()
    assert sorted(p.name for p in (tmp_path / "taken").iterdir()) == [".lock", ".place.json", "part-000000.parquet"]
    taking = live_commands._Generations(tmp_path / "taken")
    assert taking.place == result_log.ConsumerOffset(2, 1, {}, "r")
    taking.close()


# ---------------------------------------------------------------- a whole session


@pytest.mark.drawn
@pytest.mark.mpi
def test_a_session_with_kills(tmp_path: Path) -> None:
    """Four ranks; a producer, the consumer of final rows and a slave are killed; DuckDB knows the answer."""
    kills = (("consumer", 0.1), ("right", 0.35), ("slave", 0.6))  # the consumer has to be back before the run's end
    session = Session(20_000, 7_000_000, ranks=4, kills=kills, checkpoint_us=1_000_000)
    played = run_session(session, tmp_path)
    assert played.complaints() == []
    assert played.recoveries == 1


@pytest.mark.drawn
@pytest.mark.mpi
def test_a_further_sink_dies(tmp_path: Path) -> None:
    """Two sinks on ranks of their own; the second one is killed. Both consumers go on: they are connected to the first."""
    session = Session(3_000, 8_000_000, kills=(("sink", 0.5),), checkpoint_us=1_000_000, settings=("cluster.sinks=2",))
    played = run_session(session, tmp_path)
    assert played.complaints() == []
    assert played.recoveries == 1
    assert len(played.report["sinks"]) == 2


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("sinks", [1, 2])
def test_consumers_follow_the_results_to_another_rank(sinks: int, tmp_path: Path) -> None:
    """The collector is killed, twice: both consumers go on from their places at the rank that has the results then."""
    kills, settings = (("collector", 0.3), ("collector", 0.6)), (f"cluster.sinks={sinks}",)
    session = Session(5_000, 12_000_000, ranks=4 + sinks, kills=kills, checkpoint_us=1_000_000, settings=settings)
    played = run_session(session, tmp_path)
    assert played.complaints() == []
    assert played.recoveries == 2


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.quiet
@pytest.mark.timeout(LONG_S)
def test_a_long_session(tmp_path: Path) -> None:
    """100,000 tuples/s per stream for a minute; `benchmarks.live` measures the delays."""
    kills = (("left", 0.2), ("right", 0.35), ("consumer", 0.5), ("slave", 0.65))
    played = run_session(Session(100_000, 60_000_000, ranks=5, kills=kills), tmp_path)
    assert played.complaints() == []
    assert played.recoveries == 1

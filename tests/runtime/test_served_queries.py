"""Consumers of several queries of one run over Arrow Flight: each has its query's rows, also where queries come and go."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from swjoin.checkpoint.store import CheckpointStore
from swjoin.config.job import Job
from swjoin.connectors.flight.client import ServerGoneError, Start, connect
from swjoin.connectors.flight.ingest import FlightIngest
from swjoin.core.errors import RunFailed
from swjoin.frontends.configured import job_to_run
from swjoin.runtime.in_process import run_local
from swjoin.runtime.query_requests import request_change
from tests.runtime.test_query_changes import (
    ALSO_BIG,
    BIG,
    NEAR,
    SUMS,
    WIDE,
    Running,
    Streams,
    lone,
    rows_of,
    started,
    streams,
    wait_until,
)
from tests.support.commands import command
from tests.support.limits import PROCESS_S
from tests.support.live_runs import in_thread

__all__ = ["streams"]  # a fixture
IDS = ("left_id", "right_id", "row_id", "row_ts")


class Consumer(threading.Thread):
    """Takes a query's rows to the end of the run, and comes again where it was when the run is gone for a while."""

    def __init__(self, address: str, query: str, *, final: bool = False) -> None:
        super().__init__(daemon=True)
        self._address, self._query, self._final = address, query, final
        self._place: Start = "start"
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self.began = threading.Event()
        self.connections = 0
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        until_s = time.monotonic() + PROCESS_S
        while True:
            try:
                self._take()
                return
            except ServerGoneError as error:
                self.failure = error
                if time.monotonic() > until_s:
                    return
                time.sleep(0.05)
            except BaseException as error:
                self.failure = error
                self.began.set()
                return

    def _take(self) -> None:
        with connect(self._address) as client, client.results(self._place, final=self._final, query=self._query) as taking:
            assert taking.schema == client.schema(f"results/{self._query}")
            self.connections += 1
            self.began.set()
            for event in taking.events():
                self._place = event.place
                if event.kind == "rows":
                    self._batches.append((event.generation, event.batch))
                elif event.kind == "void":
                    self._batches = [(g, batch) for g, batch in self._batches if g < event.generation]
        self.failure = None

    def rows(self) -> Counter[tuple[Any, ...]]:
        self.join(PROCESS_S)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        batches = [batch for _, batch in self._batches]
        if not batches:
            return Counter()
        table = pa.Table.from_batches(batches)
        table = table.drop_columns([name for name in IDS if name in table.column_names])
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(("kind", "sinks"), [("parquet", 1), ("flight", 2)])
def test_queries_that_come_and_go(streams: Streams, monkeypatch: pytest.MonkeyPatch, kind: str, sinks: int) -> None:
    """In one process. The endpoint keeps the port that it was given."""
    locations: list[str] = []
    opened = FlightIngest.open

    def noted(ingest: FlightIngest) -> None:
        opened(ingest)
        locations.append(ingest.location)

    monkeypatch.setattr(FlightIngest, "open", noted)
    settings = ["serve.listen=127.0.0.1:0", f"sink.kind={kind}", "serve.patience=30s", f"cluster.sinks={sinks}"]
    run = Running(streams, settings)
    run.dir_when_open()
    while not locations:
        time.sleep(0.02)
    address, files = locations[0], kind == "parquet"
    consumers = {"near": Consumer(address, "near", final=files), "big": Consumer(address, "big")}
    for consumer in consumers.values():
        assert consumer.began.wait(PROCESS_S)
    streams.write()
    run.reached(500_000)
    from_us = request_change(run.dir, {"wide": WIDE, "sums": SUMS}, (), PROCESS_S)
    consumers |= {"wide": Consumer(address, "wide"), "sums": Consumer(address, "sums", final=files)}
    for consumer in consumers.values():
        assert consumer.began.wait(PROCESS_S)
    streams.write()
    run.reached(1_500_000)
    also_us = request_change(run.dir, {"also": ALSO_BIG}, ["big"], PROCESS_S)
    consumers["also"] = Consumer(address, "also")
    assert consumers["also"].began.wait(PROCESS_S)
    streams.write()
    streams.end()
    report = run.end()
    assert len(set(locations)) == 1
    assert len(locations) == 3
    found = {name: consumer.rows() for name, consumer in consumers.items()}
    assert found["near"] == lone(streams, NEAR)
    assert found["wide"] == lone(streams, WIDE, from_us)
    assert found["sums"] == lone(streams, SUMS, from_us)
    assert found["also"] == lone(streams, ALSO_BIG, also_us)
    assert found["big"] < lone(streams, BIG)
    assert {query["name"]: query["count"] for query in report["queries"]} == {name: f.total() for name, f in found.items()}
    assert consumers["near"].connections == 3
    if files:
        assert all(rows_of(run.dir, name) == rows for name, rows in found.items())


def test_what_is_refused(streams: Streams) -> None:
    streams.write()
    address = free_address()
    run = Running(streams, [f"serve.listen={address}"])
    run.reached(500_000)
    with connect(address) as client:
        with client.results("start", query="near") as taking:
            next(iter(taking))
            place = taking.place
        with pytest.raises(RunFailed, match="from: a place in the results of another run or query"):
            list(client.results(place, query="big"))
        for query, name in ((None, "results"), ("far", "results/far")):
            with pytest.raises(RunFailed, match=rf"there is no '{name}'; known: .*results/big, results/near"):
                client.results("start", query=query)
    done = command("tail", address, "metrics", "--query", "near")
    assert (done.returncode, done.stderr) == (2, "swjoin: --query: is for results; metrics come as they are; leave it out\n")
    tail = command("tail", address, "--query", "big", "--from", "start", "--count", "3")
    assert tail.returncode == 0, tail.stderr
    assert [sorted(json.loads(line)) for line in tail.stdout.splitlines()] == [["k", "row_id", "row_ts", "v"]] * 3
    streams.end()
    assert run.end()["complete"]


def test_the_port_of_a_run_that_has_changed_is_not_saved(streams: Streams) -> None:
    """Another process may have taken it when the run is resumed."""
    streams.write()
    run = Running(streams, ["serve.listen=127.0.0.1:0"])
    run.reached(500_000)
    request_change(run.dir, {"sums": SUMS}, (), PROCESS_S)
    streams.write()
    run.reached(1_500_000)
    manifest = CheckpointStore(run.dir / "checkpoints", {}).newest()
    assert manifest is not None
    assert manifest.plain["config"]["serve"]["listen"] == "127.0.0.1:0"
    streams.end()
    assert run.end()["complete"]


def pushed_job(address: str) -> Job:
    """Of a query over two streams of producers, in the folder `run`."""
    sources = {name: {"flight": {}, "schema": "k: int64, ts: timestamp[us], v: int64", "time": "ts"} for name in "ab"}
    sql = "SELECT a.k FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MILLISECOND"
    plain = {
        "queries": [{"name": "near", "sql": sql}],
        "inputs": sources,
        "cluster": {"distribution_epoch": "20ms", "partition_count": 7},
        "checkpoint": {"epochs": 2},
        "serve": {"listen": address},
    }
    Path("run").mkdir()
    Path("run.yaml").write_text(json.dumps(plain))
    return replace(job_to_run(Path("run.yaml"), [], "test"), target=Path("run/results"), directory=True, run_dir=Path("run"))


def test_producers_and_other_consumers_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer with a name loses no row, and has none twice. Rows that had been accepted and not read before the change have
    the column that only the new query reads."""
    monkeypatch.chdir(tmp_path)
    address = free_address()
    job = pushed_job(address)
    failures: list[BaseException] = []

    def guarded(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = in_thread(guarded, lambda: run_local(job, False, 2))
    rows, pushed = 4000, {"a": 0, "b": 0}
    ts = pa.array(np.arange(rows) * 1000, pa.timestamp("us"))
    table = pa.table({"k": np.arange(rows) % 50, "ts": ts, "v": np.arange(rows) % 50})
    while not Path("run/queries/open.json").exists():
        time.sleep(0.02)
    errors: list[str] = []

    def push(stream: str) -> None:
        while True:
            try:
                with connect(address) as client:
                    with client.producer(stream, "one") as producer:
                        while producer.row < rows:
                            producer.push(table.slice(producer.row, 100))
                            pushed[stream] = producer.row
                            time.sleep(0.02)
                    client.end(stream)
                return
            except ServerGoneError as error:
                errors.append(str(error))
                time.sleep(0.05)

    metrics: list[str] = []

    def measure() -> None:
        with connect(address) as client:
            try:
                list(client.metrics())
            except ServerGoneError as error:
                metrics.append(str(error))

    threads = [in_thread(guarded, action) for action in (partial(push, "a"), partial(push, "b"), measure)]
    while min(pushed.values()) < rows // 4:
        assert not failures
        time.sleep(0.02)
    from_us = request_change(Path("run"), {"few": "SELECT k FROM a WHERE v < 3"}, (), PROCESS_S)
    for each in (*threads, thread):
        each.join(PROCESS_S)
        assert not each.is_alive()
    assert not failures
    assert all("queries are added or dropped" in error or "listens" in error for error in errors), errors
    assert any("queries are added or dropped" in error for error in errors)
    assert "queries are added or dropped" in metrics[0]
    times = np.arange(rows) * 1000
    counts = {name: rows_of(Path("run"), name).total() for name in ("near", "few")}
    assert counts == {"near": rows, "few": int(((times >= from_us) & (np.arange(rows) % 50 < 3)).sum())}


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize("sinks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_on_ranks(streams: Streams, sinks: int) -> None:
    """Rows of further sinks pass the first one. A slave dies."""
    address = free_address()
    words = [str(streams.config()), "--out", "run", "-n", "6", "--sinks", str(sinks), "--set", f"serve.listen={address}"]
    with started(streams, *words) as run:
        consumers = {name: Consumer(address, name, final=name == "near") for name in ("near", "big")}
        for consumer in consumers.values():
            assert consumer.began.wait(PROCESS_S)
        streams.write()
        wait_until(Path("run"), 500_000)
        from_us = request_change(Path("run"), {"sums": SUMS}, (), PROCESS_S)
        consumers["sums"] = Consumer(address, "sums")
        streams.write()
        wait_until(Path("run"), 1_500_000)
        run.kill([4])
        streams.write()
        wait_until(Path("run"), 2_500_000)
        streams.end()
        assert run.end(PROCESS_S) == 0, (streams.folder / "log").read_text()
    wanted = {"near": lone(streams, NEAR), "big": lone(streams, BIG), "sums": lone(streams, SUMS, from_us)}
    assert {name: consumer.rows() for name, consumer in consumers.items()} == wanted

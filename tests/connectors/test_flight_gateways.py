"""Several gateways read producers over Arrow Flight: the answer of brute force, whoever reads which of them, across stops and
deaths; ids and late rows of every producer by itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from swjoin.config.loader import config_from_plain
from swjoin.connectors.flight.client import Client, ServerGoneError, connect
from swjoin.connectors.flight.source import FlightSource
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.runtime import in_process
from tests.support.commands import command
from tests.support.limits import PROCESS_S
from tests.support.live_runs import WIDTH_US, Live, config, digest_of, expected, in_thread, live, rows, tuples
from tests.tools.oracle import brute_force

DISORDER_US = 500
SIDES = ("left", "right")


class Rows:
    """One stream: rows of each producer in the order in which it sends them, late ones included. late: those that are more than
    the bound behind an earlier row of their own producer. sent: as they are pushed, their keys perhaps as text."""

    def __init__(self, seed: int, producers: int, count: int, key: str = "int64") -> None:
        rng = np.random.default_rng(seed)
        self.tables, self.sent, self.late = [], [], []
        for number in range(producers):
            ts = np.arange(count) * 150 + number * 37 + rng.integers(0, DISORDER_US, count)
            ts -= (rng.random(count) < 0.05) * rng.integers(0, 40_000, count)
            ids = np.arange(count) + 100_000 * number
            self.tables.append(pa.table({"key": rng.integers(0, 40, count), "ts": ts, "id": ids}))
            self.sent.append(self.tables[-1].set_column(0, "key", self.tables[-1]["key"].cast(key)))
            self.late.append(ts < np.maximum.accumulate(ts) - DISORDER_US)

    @property
    def good(self) -> TupleBatch:
        return tuples(*(table.filter(pa.array(~late)) for table, late in zip(self.tables, self.late, strict=True)))

    @property
    def late_ids(self) -> list[int]:
        found = [table["id"].to_numpy()[late] for table, late in zip(self.tables, self.late, strict=True)]
        return sorted(np.concatenate(found).tolist())


def _config(producers: int, gateways: int, **sections: Any) -> dict[str, Any]:
    plain = config(
        time={"late": "side", "max_out_of_order": f"{DISORDER_US}us"},
        cluster={"gateways": gateways},
        **sections,
    )
    for side in SIDES:
        plain[side] = {**plain[side], "flight": {"producers": producers}}
    return plain


def _push(address: str, side: str, name: str, table: pa.Table, piece: int = 60) -> None:
    with connect(address) as client, client.producer(side, name) as producer:
        for batch in table.to_batches(max_chunksize=piece):
            producer.push(batch)
        producer.end()


def _push_all(address: str, sides: tuple[Rows, Rows]) -> list[threading.Thread]:
    return [
        in_thread(_push, address, side, f"p{number}", table, 40 + 13 * number)
        for side, of in zip(SIDES, sides, strict=True)
        for number, table in enumerate(of.sent)
    ]


def _check(report: dict[str, Any], out: Path, sides: tuple[Rows, Rows]) -> None:
    left, right = (side.good for side in sides)
    i, j = brute_force(left, right, Bounds.of(-WIDTH_US, WIDTH_US))
    assert report["ledger"]["balanced"]
    assert report["late"] == {name: len(side.late_ids) for name, side in zip(SIDES, sides, strict=True)}
    found = report["results"]["count"], report["results"]["digest"]
    assert found == (len(i), format_digest(pair_digest(left.id[i], right.id[j])))
    late = pq.read_table(out / "late.parquet")
    for name, side in zip(SIDES, sides, strict=True):
        ids = [
            row for stream, row in zip(late["stream"].to_pylist(), late["row_id"].to_pylist(), strict=True) if stream == name
        ]
        assert sorted(ids) == side.late_ids


@pytest.mark.parametrize("gateways", [2, 3])
@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_producers_are_shared_in_one_process(gateways: int, pace: str, tmp_path: Path) -> None:
    sides = Rows(1, 4, 1500), Rows(2, 4, 1500)
    with live(_config(4, gateways, pace=pace), tmp_path / "run") as (run, client):
        assert len(client.status()["endpoints"]) == gateways
        for thread in _push_all(run.address, sides):
            thread.join(PROCESS_S)
        run.end()
    _check(run.report, tmp_path / "run", sides)
    read = [gateway["tuples"] for gateway in run.report["gateways"]]
    share = [len(range(number, 4, gateways)) * 1500 for number in range(gateways)]
    assert [list(of.values()) for of in read] == [[count, count] for count in share]


# ---------------------------------------------------------------- stops, deaths, other numbers


def _push_whatever_happens(
    port: int,
    name: tuple[str, str],
    table: pa.Table,
    pause_s: float,
    lost: list[str],
    expects: type[RunFailed],
    upto: list[int],
) -> None:
    """A producer that goes on where it was, as long as somebody comes back. name: side and producer. lost: takes both after an
    error. upto: its only entry is the row before which this producer waits; the caller raises it."""
    until_s = time.monotonic() + PROCESS_S
    while time.monotonic() < until_s:
        try:
            address = f"grpc://127.0.0.1:{port}"
            with connect(address) as client, client.producer(*name) as producer:
                for batch in table.slice(producer.row).to_batches(max_chunksize=25):
                    _until(lambda: producer.row < upto[0])
                    producer.push(batch)
                    time.sleep(pause_s)
                producer.end()
            return
        except expects:
            lost.append(" ".join(name))
            time.sleep(0.05)
    raise AssertionError("nobody came back")


def _keep_pushing(
    port: int,
    sides: tuple[Rows, Rows],
    pause_s: float,
    lost: list[str],
    expects: type[RunFailed] = RunFailed,
    upto: list[int] | None = None,
) -> list[threading.Thread]:
    limit = upto or [2**62]
    return [
        in_thread(_push_whatever_happens, port, (side, f"p{number}"), table, pause_s, lost, expects, limit)
        for side, of in zip(SIDES, sides, strict=True)
        for number, table in enumerate(of.sent)
    ]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(done: Any) -> None:
    until_s = time.monotonic() + PROCESS_S
    while not done():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("gateways", "key"),
    [
        ([2, 1], "string"),
        ([2, 1], "int64"),
        *(
            pytest.param(*more, marks=pytest.mark.drawn)
            for more in (([1, 2, 3, 1], "int64"), ([1, 2, 3, 1], "string"), ([3, 1, 2, 2], "int64"))
        ),
    ],
)
def test_resumptions_take_any_numbers_of_gateways(
    gateways: list[int], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """Producers change their gateway while they send. No row is missing, or there twice; what is late does not depend on it."""
    sides, out = (Rows(3, 5, 1200, key), Rows(4, 5, 1200, key)), tmp_path / "run"
    upto = [0]  # rows are left for every run, however slow the machine is
    threads = _keep_pushing(free_port, sides, 0.04, [], upto=upto)
    for number, count in enumerate(gateways):
        upto[0] = 1200 * (number + 1) // len(gateways)
        stop = threading.Event()
        monkeypatch.setattr(in_process, "stop_signals", lambda job, stop=stop: nullcontext(stop))
        plain = _config(5, count, serve={"listen": f"127.0.0.1:{free_port}"}, checkpoint={"interval": "100ms"})
        for side in SIDES:
            plain[side]["schema"] = f"key: {key}, ts: int64, id: int64"
        run = Live(plain, out, 1 + number % 3, number > 0)
        if number < len(gateways) - 1:
            with connect(run.address) as client:
                before = sum(client.received(side, f"p{n}") for side in SIDES for n in range(5))
                _until(lambda: sum(client.received(side, f"p{n}") for side in SIDES for n in range(5)) > before + 1000)  # noqa: B023
            stop.set()
        assert run.end()["complete"] == (number == len(gateways) - 1)
    for thread in threads:
        thread.join(PROCESS_S)
    _check(run.report, out, sides)
    assert not (out / "checkpoints").exists()


def _ended(threads: list[threading.Thread], out: Path, sides: tuple[Rows, Rows]) -> dict[str, Any]:
    """run.json of a run on ranks, whose answer is right, once all producers have ended."""
    for thread in threads:
        thread.join(PROCESS_S)
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    _check(report, out, sides)
    return report


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize("dies", ["gateway", pytest.param("slave", marks=pytest.mark.long)])
def test_a_rank_dies_while_producers_send(dies: str, tmp_path: Path, free_port: int) -> None:
    """Another rank plays its gateway; producers of the others do not notice."""
    sides, out, lost = (Rows(5, 4, 3000), Rows(6, 4, 3000)), tmp_path / "run", list[str]()
    plain = _config(4, 2, serve={"listen": f"127.0.0.1:{free_port}"}, checkpoint={"interval": "200ms"})
    (tmp_path / "live.yaml").write_text(json.dumps(plain))
    arguments = [executable, "-m", "swjoin", "serve", str(tmp_path / "live.yaml"), "-n", "6", "--out", str(out), "-v"]
    with Popen(arguments, stderr=PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            pid = next(int(line.split("process ")[1]) for line in run.stderr if f", {dies} 1" in line or f"({dies} 1" in line)
            _until(lambda: _listens(free_port))
            threads = _keep_pushing(free_port, sides, 0.02, lost, ServerGoneError)  # as `push --retry`
            _until(lambda: list((out / "checkpoints").glob("checkpoint-*.json")) or run.poll() is not None)
            assert run.poll() is None, run.stderr.read()
            os.kill(pid, signal.SIGKILL)
            text = run.stderr.read()
            assert run.wait(PROCESS_S) == 0, text
        finally:
            run.kill()
    report = _ended(threads, out, sides)
    assert len(report["checkpoints"]["recoveries"]) == 1
    read = [sum(gateway["tuples"].values()) for gateway in report["gateways"]]
    assert read == [12_000, 12_000]
    assert len(set(lost)) <= 4 if dies == "gateway" else not lost, "producers of gateways that live have lost their connections"


@pytest.mark.mpi
@pytest.mark.long
def test_stopped_ranks_are_resumed_with_other_numbers(tmp_path: Path, free_port: int) -> None:
    sides, out = (Rows(7, 4, 1500), Rows(8, 4, 1500)), tmp_path / "run"
    plain = _config(4, 2, serve={"listen": f"127.0.0.1:{free_port}"}, checkpoint={"interval": "200ms"})
    (tmp_path / "live.yaml").write_text(json.dumps(plain))
    words: list[list[str]] = [["-n", "5", str(tmp_path / "live.yaml"), "--out", str(out)]]
    words.append(["-n", "6", "--resume", str(out), "--gateways", "3"])
    threads = _keep_pushing(free_port, sides, 0.05, [])
    for number, arguments in enumerate(words):
        with Popen([executable, "-m", "swjoin", "serve", *arguments], stderr=PIPE, text=True) as run:
            try:
                if number == 0:
                    _until(lambda: list((out / "checkpoints").glob("checkpoint-*.json")))
                    run.send_signal(signal.SIGTERM)
                assert run.stderr is not None
                text = run.stderr.read()
                assert run.wait(PROCESS_S) == 0, text
            finally:
                run.kill()
    report = _ended(threads, out, sides)
    assert len(report["gateways"]) == 3


# ---------------------------------------------------------------- clients


@contextmanager
def _two(tmp_path: Path, **sections: Any) -> Iterator[tuple[Live, Client, Client]]:
    """A run with two gateways and any number of producers; clients of both endpoints."""
    plain = config(cluster={"gateways": 2}, time={"late": "side", "idle_timeout": "300ms"}, **sections)
    with live(plain, tmp_path / "run") as (run, first), connect(first.status()["endpoints"][1]) as second:
        yield run, first, second


def test_any_endpoint_serves_clients(tmp_path: Path) -> None:
    """Producers with and without names, consumers, questions and ends, at the endpoint of the other gateway."""
    left = [rows(i, 400, first_id=1000 * i) for i in range(3)]
    right = [rows(10 + i, 400, first_id=1000 * i) for i in range(2)]
    taken: list[pa.RecordBatch] = []
    with _two(tmp_path) as (run, first, second):
        assert second.schema("left") == first.schema("left")
        taker = in_thread(lambda: taken.extend(second.results("start")))
        connections = [first.producer("left", "a"), second.producer("left", "b"), second.producer("right", None)]
        connections.append(first.producer("right", "c"))
        for connection, table in zip(connections, [*left[:2], *right], strict=True):
            connection.push(table)
        for connection in connections:
            connection.close()
        assert [client.received("left", name) for client in (first, second) for name in ("a", "b", "d")] == [400, 400, 0] * 2
        assert first.push("left", left[2].slice(0, 100), producer="a2") == 100
        assert second.push("left", left[2], producer="a2", end=True) == 100 + 400, "as rows that follow"
        assert second.status()["endpoints"] == first.status()["endpoints"]
        with pytest.raises(RunFailed, match="there is no 'middle'"):
            second.push("middle", left[0])
        for side in SIDES:
            second.end(side)
        found = run.result()
        taker.join(PROCESS_S)
    read = [gateway["tuples"] for gateway in run.report["gateways"]]
    assert all(sum(of.values()) for of in read), "one gateway has read nothing"
    assert digest_of(pa.Table.from_batches(taken)) == found


def test_plain_clients_are_sent_to_the_right_gateway(tmp_path: Path) -> None:
    """FlightInfo has the endpoint of a producer; whoever connects elsewhere gets one line."""
    table = rows(1, 50)
    with _two(tmp_path) as (run, first, _):
        first.push("left", table, producer="a")
        ends = [flight.FlightClient(location) for location in first.status()["endpoints"]]
        infos = [end.get_flight_info(flight.FlightDescriptor.for_path("left", "a")) for end in ends]
        (location,) = {info.endpoints[0].locations[0].uri.decode() for info in infos}
        other = next(end for end, at in zip(ends, first.status()["endpoints"], strict=True) if at != location)
        writer, _reader = other.do_put(flight.FlightDescriptor.for_path("left", "a"), table.schema)
        with pytest.raises(flight.FlightError, match=f"producer a of left is read at {location}; connect to that endpoint"):
            writer.close()
        consumer = ends[1].get_flight_info(flight.FlightDescriptor.for_path("results"))
        assert [at.uri.decode() for at in consumer.endpoints[0].locations] == [run.address]
        for end in ends:
            end.close()
        for side in SIDES:
            first.end(side)
        run.end()


def test_a_producer_that_was_refused_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, connect_to = rows(1, 50), FlightSource.connect

    def refuse(source: FlightSource, name: str, *, anonymous: bool) -> int:
        if source.share[0] == 1:
            raise UserError("not now")
        return connect_to(source, name, anonymous=anonymous)

    def push(location: str) -> None:
        with flight.FlightClient(location) as client:
            writer, _ = client.do_put(flight.FlightDescriptor.for_path("left", "a"), table.schema)
            writer.write_table(table)
            writer.close()

    with _two(tmp_path) as (run, first, _):
        here, other = first.status()["endpoints"]
        with monkeypatch.context() as patch:
            patch.setattr(FlightSource, "connect", refuse)
            with pytest.raises(pa.ArrowException, match="not now"):
                push(other)
        with pytest.raises(RunFailed, match="there is no gateway -1"):
            first._act("claim", {"stream": "left", "producer": "a", "gateway": -1})
        push(here)
        assert first.received("left", "a") == 50
        for side in SIDES:
            first.end(side)
        run.end()


def test_a_name_that_left_without_rows_takes_no_place(tmp_path: Path) -> None:
    with live(_config(2, 2), tmp_path / "run") as (run, client):
        for _ in range(3):
            with client.producer("left", "mistyped"):
                pass
        table = rows(1, 300)
        threads = [in_thread(_push, run.address, side, name, table) for side in SIDES for name in ("a", "b")]
        for thread in threads:
            thread.join(PROCESS_S)
        with pytest.raises(RunFailed, match="has its 2 producers already"):
            client.producer("left", "c")
        run.end()
    double = tuples(table, table)
    assert run.report["results"]["count"] == expected(double, double)[0]


def test_a_push_names_producers_of_other_gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose rows all gateways wait for."""
    from swjoin.connectors.flight import client as live_client

    monkeypatch.setattr(live_client, "_NOTICE_S", 1.5)
    said: list[str] = []
    plain = _config(2, 2, serve={"listen": "127.0.0.1:0", "producer_buffer": "64KB"}, module={"stream_buffer": "64KB"})
    plain["cluster"]["mini_buffer"] = "64KB"
    table = rows(1, 60_000, span_us=60_000_000)
    with live(plain, tmp_path / "run") as (run, client):
        quiet = [client.producer(side, "quiet") for side in SIDES]
        for producer in quiet:
            producer.push(table.slice(0, 1))
        pushing = in_thread(client.push, "left", table, producer="busy", end=True, on_wait=said.append)
        _until(lambda: said)
        assert "producer quiet" in said[0]
        for producer in quiet:
            producer.end()
            producer.close()
        client.push("right", table.slice(0, 10), producer="other", end=True)
        pushing.join(PROCESS_S)
        run.end()


def test_row_ids_are_split_and_offset(tmp_path: Path) -> None:
    """Without an id column."""
    plain = _config(3, 2)
    for side in SIDES:
        del plain[side]["id"]
    table = rows(7, 200)
    with live(plain, tmp_path / "run") as (run, _):
        for thread in [in_thread(_push, run.address, side, name, table) for side in SIDES for name in "abc"]:
            thread.join(PROCESS_S)
        run.end()
    found = pq.read_table(tmp_path / "run" / "results", columns=["left_id"])
    ids = set(found["left_id"].to_pylist())
    assert {row >> 52 for row in ids} == {1, 2, 3}
    assert max(row & (1 << 52) - 1 for row in ids) < 200


# ---------------------------------------------------------------- what is told, and what is refused


def test_more_gateways_than_producers_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = rows(1, 100)
    with live(_config(2, 5), tmp_path / "run") as (run, _):
        for thread in [in_thread(_push, run.address, side, name, table) for side in SIDES for name in "ab"]:
            thread.join(PROCESS_S)
        assert len(run.end()["gateways"]) == 2
    assert "5 gateways: the inputs have 2 producers at most, so as many are used" in caplog.text


def test_explain_says_who_reads_producers(tmp_path: Path) -> None:
    plain = _config(2, 2)
    del plain["left"]["id"]
    (tmp_path / "live.yaml").write_text(json.dumps(plain))
    done = command("explain", tmp_path / "live.yaml")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Each of 2 gateways has an endpoint, and reads the producers that are sent to it." in text
    assert "clients send record batches to the gateways" in text
    assert "row ids are split and offset" in text


def test_runs_without_checkpoints_have_no_spool(tmp_path: Path) -> None:
    sides, plain = (Rows(9, 3, 300), Rows(10, 3, 300)), _config(3, 2)
    del plain["checkpoint"]
    with live(plain, tmp_path / "run") as (run, _):
        for thread in _push_all(run.address, sides):
            thread.join(PROCESS_S)
        run.end()
    _check(run.report, tmp_path / "run", sides)


def test_any_number_of_producers_needs_an_idle_timeout() -> None:
    with pytest.raises(UserError, match=r"gateways above 1 needs flight: .producers: N. or time.idle_timeout"):
        config_from_plain(config(cluster={"gateways": 2}))

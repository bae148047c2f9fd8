"""Clients that do wrong: each gets one clear line, the run and the others go on, and the answer stays right."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swjoin.connectors.flight.client import ServerGoneError, connect
from swjoin.connectors.flight.ingest import plain_text
from swjoin.connectors.flight.server import more_files
from swjoin.core.errors import RunFailed, UserError
from tests.conftest import ROOT, Outcome
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.live_stage import LEFT, Stage

LONGEST = 600  # characters of a line
BUSY = "push or take already (serve.clients); try again later"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what docs/security.md says how to make."""
    folder = tmp_path_factory.mktemp("secrets")
    recipe = re.search(r"```sh\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
    assert recipe is not None
    subprocess.run(["bash", "-ec", recipe[1]], cwd=folder, check=True, capture_output=True, timeout=PROCESS_S)
    return folder


@pytest.fixture(scope="module")
def token(secrets: Path) -> str:
    return (secrets / "token").read_text().strip()


@contextmanager
def staged(*args: Any, **secret: Any) -> Iterator[Stage]:
    stage = Stage(*args, **secret)
    try:
        yield stage
    finally:
        stage.kill()


@pytest.fixture(scope="module")
def cluster(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three ranks, TLS, a token, checkpoints, files."""
    serve = {
        "certificate": str(secrets / "cert.pem"),
        "private_key": str(secrets / "key.pem"),
        "token_file": str(secrets / "token"),
        "message": "1MB",
        "clients": 24,
    }
    more = {"checkpoint": {"interval": "1s"}, "sink": {"kind": "parquet"}}
    folder = tmp_path_factory.mktemp("cluster") / "stage"
    with staged(folder, serve, ["-n", "3"], more, root_certificate=secrets / "cert.pem", token_file=secrets / "token") as stage:
        yield stage


@pytest.fixture(scope="module")
def alone(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One process, without TLS, checkpoints and files; consumers are cut soon."""
    serve = {"token_file": str(secrets / "token"), "result_buffer": "64KB", "patience": "3s", "clients": 12}
    folder = tmp_path_factory.mktemp("alone") / "stage"
    with staged(folder, serve, [], {}, token_file=secrets / "token") as stage:
        yield stage


# ---------------------------------------------------------------- what attackers do


def line_of(call: Callable[[], Any]) -> str:
    """The one line that an attacker gets."""
    with pytest.raises((pa.ArrowException, flight.FlightError, OSError, UserError, RunFailed)) as caught:
        call()
    text = plain_text(caught.value)
    assert 0 < len(text) <= LONGEST, text
    assert text.isprintable(), text
    assert "Traceback" not in str(caught.value)
    assert "internal error" not in text, text
    return text


class Attacker:
    """A Flight client of its own, with whatever headers."""

    def __init__(self, stage: Stage, authorization: bytes | None) -> None:
        root = stage.secrets.get("root_certificate")
        self.client = flight.FlightClient(stage.address, **({} if root is None else {"tls_root_certs": root.read_bytes()}))
        headers = [] if authorization is None else [(b"authorization", authorization)]
        self.options = flight.FlightCallOptions(headers=headers, timeout=PROCESS_S)
        self.compressed = flight.FlightCallOptions(
            headers=headers, timeout=PROCESS_S, write_options=pa.ipc.IpcWriteOptions(compression="zstd")
        )

    def act(self, action: str, body: bytes) -> list[bytes]:
        return [result.body.to_pybytes() for result in self.client.do_action(flight.Action(action, body), self.options)]

    def take(self, ticket: bytes) -> Any:
        return self.client.do_get(flight.Ticket(ticket), self.options).read_chunk()

    def put(self, batch: pa.RecordBatch, said: bytes = b"", where: Any = "evil", compressed: bool = False) -> list[Any]:
        """Push one batch; what is answered."""
        to = where if isinstance(where, flight.FlightDescriptor) else flight.FlightDescriptor.for_path("left", where)
        writer, replies = self.client.do_put(to, batch.schema, self.compressed if compressed else self.options)
        answers = []
        try:
            with suppress(pa.ArrowException, flight.FlightError, OSError):  # a write that fails does not say why
                writer.write_with_metadata(batch, said)
                writer.done_writing()
            while (reply := replies.read()) is not None:
                answers.append(json.loads(reply.to_pybytes()))
        finally:
            writer.close()
        return answers


@pytest.fixture(params=["cluster", "alone"])
def stage(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def insider(stage: Stage, token: str) -> Iterator[Attacker]:
    """Somebody who has the token."""
    attacker = Attacker(stage, b"Bearer " + token.encode())
    yield attacker
    attacker.client.close()


def rows(n: int = 2, time_us: int | None = 0, **columns: Any) -> pa.RecordBatch:
    """Rows of the left stream that match nothing."""
    values: dict[str, Any] = {"key": [-1] * n, "ts": [time_us] * n, "a": [0.0] * n, "name": ["x"] * n, "lid": [10**15] * n}
    values |= columns
    arrays = [v if isinstance(v := values[f.name], pa.Array) else pa.array(v, f.type) for f in LEFT]
    return pa.record_batch(arrays, names=LEFT.names)


# ---------------------------------------------------------------- who may come in


def test_without_the_right_token_nothing_is_answered(stage: Stage, token: str) -> None:
    wrong = {
        "no token": [None],
        "wrong token": [
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearer " + token[:-1].encode(),
            b"Bearer " + token.encode() + b"x",
            b"Bearer " + token[::-1].encode(),
            b"Basic " + token.encode(),
            token.encode(),
            b"Bearer x " + token.encode(),
            b"Bearer " + b"x" * 7000,
        ],
    }
    for line, headers in wrong.items():
        for header in headers:
            outsider = Attacker(stage, header)
            calls: list[Callable[[], Any]] = [lambda o=outsider: o.act("status", b"{}")]
            if header in (None, b"Basic " + token.encode()):
                calls += [
                    lambda o=outsider: o.act("end", b'{"stream": "left"}'),
                    lambda o=outsider: o.take(b"results"),
                    lambda o=outsider: o.put(rows()),
                    lambda o=outsider: o.client.get_flight_info(flight.FlightDescriptor.for_path("left"), o.options),
                    lambda o=outsider: list(o.client.list_flights(b"", o.options)),
                    lambda o=outsider: list(o.client.list_actions(o.options)),
                    lambda o=outsider: o.client.do_exchange(flight.FlightDescriptor.for_path("left"), o.options)[
                        1
                    ].read_chunk(),
                ]
            for call in calls:
                said = line_of(call)
                assert said.startswith(line), (header, said)
                assert token not in said
            outsider.client.close()
    stage.check()


def test_the_clients_of_swjoin_say_what_is_wrong(stage: Stage, token: str, tmp_path: Path, swjoin: Any) -> None:
    secret = {**stage.secrets}
    secret.pop("token_file")
    for bad, line in (
        ("x" * 20, "wrong token"),
        (None, "no token"),
        (token + "\nx", "token: one line"),
        ("é" * 20, "token: one"),
    ):
        for call in (lambda c: c.status(), lambda c: c.producer("left", "evil"), lambda c: next(c.results().events())):
            with pytest.raises(UserError, match=f"^{line}"):
                call(connect(stage.address, **secret, token=bad))
    (tmp_path / "token").write_text("y" * 20)
    (tmp_path / "rows.parquet").write_bytes(b"")
    root = [] if "root_certificate" not in secret else ["--root-certificate", secret["root_certificate"]]
    for words in (["push", stage.address, "left", tmp_path / "rows.parquet"], ["tail", stage.address]):
        done: Outcome = swjoin(*words, "--token-file", tmp_path / "token", *root)
        assert (done.code, done.err) == (2, ["swjoin: wrong token"]), words
    stage.check()


def test_tls_on_one_side_alone(
    cluster: Stage, alone: Stage, secrets: Path, token: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(address: str, **options: Any) -> UserError | RunFailed:
        with pytest.raises((UserError, RunFailed)) as caught, connect(address, token=token, **options) as client:
            client.status()
        return caught.value

    plain = said(cluster.address.replace("grpc+tls", "grpc"))
    assert isinstance(plain, ServerGoneError)
    assert "if the run speaks TLS, write grpc+tls://" in str(plain)
    there = {"root_certificate": secrets / "cert.pem"}
    assert "does the run speak TLS" in str(said(alone.address.replace("grpc://", "grpc+tls://"), **there))
    other = tmp_path / "other.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(tmp_path / "k"), "-out", str(other)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True, timeout=PROCESS_S)
    for options in ({"root_certificate": other}, {}):
        assert "certificate verify failed" in str(said(cluster.address, **options))
    assert isinstance(said(cluster.address, root_certificate=tmp_path / "k"), RunFailed)  # no certificate at all
    assert capfd.readouterr().err == "", "gRPC's own lines"
    cluster.check()
    alone.check()


def raw(stage: Stage, data: bytes, patience_s: float = PROCESS_S) -> bytes:
    """What comes back until the connection is closed."""
    host, port = stage.address.split("/")[-1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), patience_s) as connection:
        connection.sendall(data)
        out = b""
        with suppress(ConnectionError):
            while got := connection.recv(65536):
                out += got
    return out


def test_other_protocols_and_noise_are_hung_up_on(stage: Stage) -> None:
    noise = random.Random(1).randbytes
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise(1000),
        noise(100_000),
        b"\x16\x03\x01\xff\xff" + b"x" * 65535,
    ):
        assert len(raw(stage, data)) < 1000
    stage.check()


# ---------------------------------------------------------------- what a holder of the token may send


def test_requests_that_make_no_sense(insider: Attacker, stage: Stage) -> None:
    malformed = [b"\xff\x00{", b"[" * 500_000, b'{"a":' * 100_000, b'{"stream": 1' + b"0" * 10_000 + b"}", b"[]", b"7", b"null"]
    for body in malformed:
        assert line_of(lambda b=body: insider.act("status", b)).startswith("malformed request")
        if body.startswith((b"{", b"\xff")):
            assert line_of(lambda b=body: insider.take(b)).startswith("malformed request")
    for body in (
        b'{"stream": NaN, "producer": Infinity}',
        b"{}",
        b'{"stream": "left", "producer": [1]}',
        b'{"stream": "late"}',
    ):
        assert line_of(lambda b=body: insider.act("received", b)).startswith("received: name a stream")
    assert line_of(lambda: insider.act("end", b'{"stream": ["left"]}')).startswith("end: name a stream")
    assert line_of(lambda: insider.act("no\x1b[31m\n" + "x" * 9000, b"{}")).startswith("there is no action")
    assert line_of(lambda: insider.take(b"")).startswith("there is no '' to take")
    assert line_of(lambda: insider.take(b"\xf0" * 1_000_000)).startswith("malformed request")
    assert line_of(lambda: insider.take(b"x" * 1_000_000)).startswith("there is no 'xxx")
    assert line_of(lambda: insider.take(b"x" * 2_000_000)) == "a request of 2000000 bytes; 1048576 are the most"
    assert line_of(lambda: insider.act("status", b"x" * 2_000_000)) == "a request of 2000000 bytes; 1048576 are the most"
    assert line_of(lambda: insider.take(b'{"take": "results", "final": 1}')) == "final: write true or false"
    for descriptor in (
        flight.FlightDescriptor.for_path("none"),
        flight.FlightDescriptor.for_path(),
        flight.FlightDescriptor.for_command(b"{"),
    ):
        assert re.match(
            "malformed request|there is no", line_of(lambda d=descriptor: insider.client.get_flight_info(d, insider.options))
        )
    said = line_of(
        lambda: insider.client.do_exchange(flight.FlightDescriptor.for_path("left"), insider.options)[1].read_chunk()
    )
    assert said.startswith("nothing is exchanged here")
    stage.check()


def test_places_that_nobody_can_have_come_to(insider: Attacker, stage: Stage) -> None:
    def take(place: str) -> str:
        return line_of(lambda: insider.take(b'{"take": "results", "from": %s}' % place.encode()))

    no_place = "[]", '"x"', "null", "5", "{}", '{"era": 1e400, "below": 0, "rows": {}}', '{"era": NaN, "below": 0, "rows": {}}'
    for place in (*no_place, '{"era": 0, "below": 0, "rows": []}', '{"era": 0, "below": 0, "rows": {"x": 1}}'):
        assert take(place).startswith("from: not a place")
    for place in ('{"era": -1, "below": 0, "rows": {}}', '{"era": 0, "below": 0, "rows": {"0": -5}}'):
        assert take(place) == "from: not a place; it holds negative numbers"
    era = connect(stage.address, **stage.secrets)
    with era.results("now") as taking:
        next(taking.events())
        now = taking.place.era
    era.close()
    others = [
        (99, 0, {}),
        (now, 10**30, {}),
        (now, 10**6, {}),
        (now, 0, {"99999": 5}),
        (now, 0, {"0": 10**40}),
        (10**40, 0, {}),
    ]
    for number, below, rows_ in others:
        plain = json.dumps({"era": number, "below": below, "rows": rows_})
        assert take(plain) == "from: a place in the results of another run or query", plain
    stage.check()


def test_descriptors(insider: Attacker, stage: Stage) -> None:
    path, command = flight.FlightDescriptor.for_path, flight.FlightDescriptor.for_command
    name = "producer: a name of 1 to 200 printable characters"
    wanted = [
        (path(), "malformed request: the descriptor's path"),
        (path("left", "a", "b"), "malformed request: the descriptor's path"),
        (path("none"), "nothing can be pushed into 'none'; known: left, right"),
        (path("x" * 100_000), "nothing can be pushed into 'xxx"),
        (path("results"), "nothing can be pushed into 'results'"),
        (path("left", "x" * 10_000), name),
        (path("left", ""), name),
        (path("left", "~000001"), name),
        (path("left", "a\nb"), name),
        (command(b""), "nothing can be pushed into ''"),
        (command(b"\xff"), "malformed request"),
        (command(b'{"stream": 5}'), "malformed request: stream is missing"),
        (command(b'{"stream": "left", "producer": []}'), name),
        (command(b'{"stream": "left", "producer": "%s"}' % (b"x" * 2_000_000)), "a request of 2000"),
    ]
    for descriptor, line in wanted:
        assert line_of(lambda d=descriptor: insider.put(rows(), where=d)).startswith(line)
    stage.check()


def from_buffers(kind: pa.DataType, n: int, *buffers: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, n, [None if b is None else pa.py_buffer(b) for b in buffers])


def offsets(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def test_batches_that_are_none(insider: Attacker, stage: Stage) -> None:
    good = rows()
    text, big = pa.string(), pa.struct([(f"f{i}" * 9, pa.int64()) for i in range(20_000)])
    wanted = [
        (good.select(["key", "ts"]), "wrong schema: column lid is missing; expected key: int64"),
        (good.rename_columns(["k", *LEFT.names[1:]]), "wrong schema: column key is missing"),
        (rows(key=pa.array([1.0, 2.0])), "wrong schema: column key is double, expected int64"),
        (rows(name=pa.array(["x", "y"]).dictionary_encode()), "wrong schema: column name is dictionary"),
        (rows(key=pa.nulls(2, big)), "wrong schema: column key is struct<"),
        (
            pa.record_batch([*good.columns, good.column(0)], names=[*LEFT.names, "key"]),
            "wrong schema: column key is there 2 times",
        ),
        (rows(name=from_buffers(text, 2, None, offsets(0, 1 << 30, 5), b"abcdefgh")), "malformed: In column"),
        (rows(name=from_buffers(text, 2, None, offsets(0, -5, 3), b"abcdefgh")), "malformed: In column"),
        (rows(name=from_buffers(text, 2, None, offsets(0, 2, 4), b"\xff\xfe\xfd\xfc")), "malformed: In column"),
        (rows(time_us=1 << 61), "row 0 of the batch (counting from 0): time column ts is out of range"),
        (rows(time_us=-(1 << 63)), "row 0 of the batch (counting from 0): time column ts is out of range"),
        (rows(time_us=(1 << 63) - 1), "row 0 of the batch (counting from 0): time column ts is out of range"),
        (rows(lid=[1, None]), "row 1 of the batch (counting from 0): id column lid is null"),
        (rows(40_000), "a batch of 1"),
    ]
    if "root_certificate" not in stage.secrets:  # its limit is the 16 MB that it is by default
        wanted[-1] = (rows(600_000), "a batch of 2")
    for number, (batch, line) in enumerate(wanted):
        assert line_of(lambda b=batch: insider.put(b)).startswith(line), number
    stage.check()


def test_what_comes_with_a_batch(insider: Attacker, stage: Stage) -> None:
    whole = "malformed: row is no whole number"
    wanted = [
        (b"\xff\xfe", "malformed: what comes with a batch is no JSON"),
        (b"[]", "malformed: what comes with a batch is no JSON object"),
        (b"[" * 200_000, "malformed: what comes with a batch is no JSON"),
        (b'{"x": "%s"}' % (b"y" * 2_000_000), "a request of 2000009 bytes"),
        *((b'{"row": %s}' % row, whole) for row in (b"1.5", b'"0"', b"true", b"1e400", b"NaN", b"1" + b"0" * 30, b"[]")),
        (b'{"row": -1}', "malformed: row -1; rows are counted from 0"),
        (b'{"row": 100}', "row 100 comes after 0 rows; 100 rows are missing"),
        *(
            (b'{"until_us": %s}' % t, "malformed: until_us")
            for t in (b'"x"', b"1e999", b"null", b"%d" % (1 << 61), b"-%d" % (1 << 61))
        ),
    ]
    for number, (said, line) in enumerate(wanted):
        batch = rows(0 if b"until" in said else 2)
        assert line_of(lambda b=batch, s=said: insider.put(b, s)).startswith(line), number
    stage.check()


def test_a_small_message_that_becomes_a_large_one(insider: Attacker, stage: Stage) -> None:
    zeros = pa.array(np.zeros(2_000_000, np.int64))
    batch = rows(2_000_000, key=zeros, ts=zeros, lid=zeros, a=pa.array(np.zeros(2_000_000)), name=pa.array([""]).take(zeros))
    assert line_of(lambda: insider.put(batch, compressed=True)).startswith("a batch of 72000")
    stage.check()


def test_null_keys_and_times_are_no_error(insider: Attacker, stage: Stage) -> None:
    for batch in (rows(key=[None, None], time_us=stage.now_us), rows(time_us=None)):
        answer = insider.put(batch, where=flight.FlightDescriptor.for_path("left"))[-1]
        assert answer["done"] is True
    stage.check()


def test_a_column_that_nobody_wants_does_not_stay_in_memory(insider: Attacker, stage: Stage) -> None:
    """Rows of which a message's smallest part is kept do not keep the message."""
    from swjoin.core.arrow_views import retained_bytes

    wide = pa.record_batch([*rows(1).columns, pa.array(["x" * 900_000])], names=[*LEFT.names, "more"])
    assert insider.put(wide, where=flight.FlightDescriptor.for_path("left"))[-1]["done"]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wide.schema) as writer:
        writer.write_batch(wide)
    read = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    narrow = read.select(LEFT.names)
    assert narrow.nbytes < 100 < 900_000 < retained_bytes(narrow)
    assert retained_bytes(narrow.take(pa.array([0]))) < 1000
    stage.check()


# ---------------------------------------------------------------- too much, too many, too slow


def memory_bytes(pid: int) -> int:
    """Resident, of a process and all that it has started."""
    process = psutil.Process(pid)
    return sum(found.memory_info().rss for found in (process, *process.children(recursive=True)))


@pytest.mark.long
def test_batches_of_200_mb(stage: Stage, insider: Attacker) -> None:
    outsider = Attacker(stage, None)
    wide = rows(1, name=pa.array(["x" * 200_000_000]))
    assert line_of(lambda: insider.put(wide)).startswith("a batch of 20000")
    assert line_of(lambda: outsider.put(wide)).startswith("no token")
    assert line_of(lambda: insider.put(wide.select(["name"]))).startswith("wrong schema")
    stage.check()


def test_thousands_of_producers(alone: Stage, token: str) -> None:
    """Names that were only tried are forgotten; those that have brought rows are too many some day."""
    insider = Attacker(alone, b"Bearer " + token.encode())
    lines = set()
    for number in range(60):
        lines.add(line_of(lambda n=number: insider.put(rows(lid=[None, None]), where=f"tried {n}")))
    assert len(lines) == 1
    assert alone.connect().received("left", "tried 0") == 0
    alone.check()


def test_more_idle_connections_than_anybody_needs(stage: Stage) -> None:
    more_files()
    host, port = stage.address.split("/")[-1].rsplit(":", 1)
    with ExitStack() as held:
        for _ in range(1000):
            held.enter_context(socket.create_connection((host, int(port)), 5))
        stage.check()
        with connect(stage.address, **stage.secrets) as client:
            assert client.received("left", "good") > 0
    stage.check()


@pytest.mark.long
def test_idle_flight_channels(cluster: Stage) -> None:
    stage = cluster
    with ExitStack() as held:
        for _ in range(200):
            held.enter_context(connect(stage.address, **stage.secrets)).status()
        stage.check()


def test_connections_that_dribble(stage: Stage) -> None:
    host, port = stage.address.split("/")[-1].rsplit(":", 1)
    hello = b"\x16\x03\x01\x02\x00\x01" if "tls" in stage.address else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with ExitStack() as held:
        slow = [held.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(50)]
        for at in range(6):
            for connection in slow:
                connection.sendall(hello[at : at + 1])
            time.sleep(0.02)
        stage.check()


def test_more_clients_than_are_let_in(stage: Stage, insider: Attacker) -> None:
    # two producers and, in one process, a consumer are there; a cluster's consumer has gone on to the collector
    most, there = (24, 2) if "root_certificate" in stage.secrets else (12, 3)
    with ExitStack() as held, connect(stage.address, **stage.secrets) as client:
        takings = []
        for _ in range(most - there):
            taking = held.enter_context(client.late())
            taking._reader.read_chunk()  # it is in
            takings.append(taking)
        for _ in range(3):
            assert line_of(lambda: insider.take(b"late")) == f"{most} clients {BUSY}"
        with pytest.raises(ServerGoneError, match=re.escape(f"{most} clients {BUSY}")):
            client.push("left", rows(time_us=stage.now_us))
        assert client.received("left", "good") > 0, "who only asks is answered"
        stage.check()
    deadline = time.monotonic() + PROCESS_S
    with connect(stage.address, **stage.secrets) as client:
        while True:  # their places are free again
            try:
                assert client.push("left", rows(time_us=stage.now_us)) >= 0
                return
            except ServerGoneError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_a_port_that_is_taken(alone: Stage, tmp_path: Path, swjoin: Any) -> None:
    port = alone.address.rsplit(":", 1)[1]
    done = swjoin("serve", config_of(tmp_path, listen=f"127.0.0.1:{port}"), "--out", tmp_path / "out")
    assert done.code == 2
    (line,) = done.err
    assert f"serve.listen 127.0.0.1:{port}: cannot listen there (" in line


def test_consumers_that_never_read_do_not_hold_the_run_up(alone: Stage, token: str) -> None:
    """They are cut; at the end the run waits for nobody for longer than `serve.patience`. Last test of this run."""
    clients = [Attacker(alone, b"Bearer " + token.encode()) for _ in range(3)]
    endless = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
    held = [c.client.do_get(flight.Ticket(b'{"take": "results", "from": "start"}'), endless) for c in clients]
    acks = flight.FlightDescriptor.for_command(b'{"stream": "left", "acks": true}')
    deaf, _ = clients[0].client.do_put(acks, LEFT, endless)
    deaf.write_with_metadata(rows(time_us=alone.now_us), b'{"end": true}')  # it does not hang up
    time.sleep(3)
    alone.check()
    alone.finish(PROCESS_S)
    del held


def test_after_all_that_the_whole_answer_is_right(cluster: Stage, token: str) -> None:
    """Last test of the cluster."""
    cluster.finish(PROCESS_S)
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), f"{path.name} holds the token"
    assert "Traceback" not in cluster.log


# ---------------------------------------------------------------- runs that do not start


def config_of(folder: Path, **serve: Any) -> Path:
    schema = "key: int64, ts: int64"
    stream = {"flight": {}, "schema": schema, "key": ["key"], "time": "ts", "time_unit": "us"}
    path = folder / "run.yaml"
    path.write_text(json.dumps({"join": {"within": "1s"}, "left": stream, "right": stream, "serve": serve}))
    return path


def test_runs_that_would_be_open_to_anybody_do_not_start(secrets: Path, tmp_path: Path, swjoin: Any) -> None:
    tls = {"certificate": str(secrets / "cert.pem"), "private_key": str(secrets / "key.pem")}
    tokens = {"token_file": str(secrets / "token")}
    for host in ("0.0.0.0", "192.0.2.1", "[::]", "example.org"):
        for given in ({}, tls, tokens):
            done = swjoin("serve", config_of(tmp_path, listen=f"{host}:0", **given), "--out", tmp_path / "out")
            assert done.code == 2
            (line,) = done.err
            assert "is not the loopback: give certificate, private_key and token_file" in line


@pytest.mark.long
def test_with_certificate_and_token_a_run_listens_everywhere(secrets: Path, tmp_path: Path) -> None:
    given = {"certificate": "cert.pem", "private_key": "key.pem", "token_file": "token"}
    path = config_of(tmp_path, listen="0.0.0.0:0", **{key: str(secrets / name) for key, name in given.items()})
    command = [sys.executable, "-m", "swjoin", "serve", str(path), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip().rsplit(":", 1)[1]
            address, there = f"grpc+tls://localhost:{port}", {"root_certificate": secrets / "cert.pem"}
            with pytest.raises(UserError, match=r"^no token"):
                connect(address, **there).received("left", "p")
            with connect(address, **there, token_file=secrets / "token") as client:
                row = pa.record_batch({"key": [1], "ts": [5]})
                taking = client.results("start")
                for side in ("left", "right"):
                    assert client.push(side, row, producer="p", end=True) == 1
                    client.end(side)
                assert [batch.num_rows for batch in taking] == [1]
            assert process.wait(PROCESS_S) == 0
        finally:
            process.kill()


def test_secrets_that_cannot_be_used(secrets: Path, tmp_path: Path, swjoin: Any) -> None:
    def written(name: str, text: str, mode: int = 0o600) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    tls = {"certificate": str(secrets / "cert.pem"), "private_key": str(secrets / "key.pem")}
    noise = written("noise.pem", "-----BEGIN CERTIFICATE-----\nnoise\n-----END CERTIFICATE-----\n")
    wanted = [
        ({"token_file": written("open", "x" * 32, 0o644)}, "others may read it; chmod 600 it"),
        ({"token_file": written("group", "x" * 32, 0o640)}, "others may read it; chmod 600 it"),
        ({"token_file": str(tmp_path / "none")}, "cannot be read (No such file or directory)"),
        ({"token_file": str(tmp_path)}, "cannot be read (Is a directory)"),
        ({"token_file": written("short", "x" * 15)}, "needs one line of 16 ASCII characters or more"),
        ({"token_file": written("two", "x" * 20 + "\n" + "y" * 20)}, "needs one line of 16 ASCII characters or more"),
        ({"token_file": written("accents", "é" * 20)}, "needs one line of 16 ASCII characters or more"),
        ({**tls, "certificate": str(tmp_path / "none")}, "serve.certificate"),
        ({**tls, "certificate": written("text", "no certificate")}, "is no PEM file"),
        ({**tls, "certificate": noise}, "does not go with serve.private_key"),
        ({**tls, "private_key": noise}, "does not go with serve.private_key"),
        ({"certificate": tls["certificate"]}, "give certificate and private_key, or neither"),
    ]
    for given, text in wanted:
        done = swjoin("serve", config_of(tmp_path, listen="127.0.0.1:0", **given), "--out", tmp_path / "out")
        assert done.code == 2, text
        (line,) = done.err
        assert text in line
        assert "xxxxx" not in line, "a token is shown"


# ---------------------------------------------------------------- more of the same


@pytest.fixture(scope="module")
def spare(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One process, whose silent producers are waited for only shortly."""
    more = {"time": {"idle_timeout": "10s"}}
    folder = tmp_path_factory.mktemp("spare") / "stage"
    with staged(folder, {"token_file": str(secrets / "token")}, [], more, token_file=secrets / "token") as stage:
        yield stage


PUSHER = """
import sys, time
import pyarrow as pa
from swjoin import connect
secrets = {k: v or None for k, v in zip(("token_file", "root_certificate"), sys.argv[2:])}
schema = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("a", pa.float64()), ("name", pa.string()), ("lid", pa.int64())])
row = pa.record_batch([pa.array([v], f.type) for v, f in zip((-7, int(sys.argv[4]), 0.0, "x", 10**16), schema)], schema=schema)
with connect(sys.argv[1], **secrets).producer("left", "stopped") as producer:
    while True:
        producer.push(row)
        print(producer.row, flush=True)
        time.sleep(0.01)
"""


@pytest.mark.long
def test_a_producer_that_stops_in_the_middle(spare: Stage) -> None:
    """Others wait for it as long as `time.idle_timeout` says, not longer; what it has brought is there."""
    words = [spare.address, str(spare.secrets["token_file"]), "", str(spare.now_us)]
    with subprocess.Popen([sys.executable, "-c", PUSHER, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            for _ in range(5):
                assert process.stdout.readline()
            os.kill(process.pid, signal.SIGSTOP)
            spare.check()
            spare.check()  # it takes more than the timeout until nobody waits for it any more
            assert spare.connect().received("left", "stopped") >= 5
        finally:
            process.kill()
    spare.check()


class Flipping:
    """A relay that damages one byte of what the client sends."""

    def __init__(self, stage: Stage, at: int, mask: int) -> None:
        host, port = stage.address.split("/")[-1].rsplit(":", 1)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc://127.0.0.1:{self._server.getsockname()[1]}"
        self._at, self._mask = at, mask
        threading.Thread(target=self._run, args=((host, int(port)),), daemon=True).start()

    def _run(self, to: tuple[str, int]) -> None:
        client, _ = self._server.accept()
        with client, socket.create_connection(to, 5) as server:
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            sent = 0
            with suppress(OSError):
                while data := bytearray(client.recv(65536)):
                    if sent <= self._at < sent + len(data):
                        data[self._at - sent] ^= self._mask
                    sent += len(data)
                    server.sendall(data)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.mark.long
def test_a_consumer_that_does_not_read_is_cut(secrets: Path, tmp_path: Path, token: str) -> None:
    """Once what gRPC itself holds for it is full, which takes some megabytes."""
    serve = {"token_file": str(secrets / "token"), "result_buffer": "64KB", "patience": "3s"}
    with staged(tmp_path / "stage", serve, [], {}, token_file=secrets / "token") as stage:
        deaf = Attacker(stage, b"Bearer " + token.encode())
        taking = deaf.client.do_get(
            flight.Ticket(b"results"),
            flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())], timeout=PROCESS_S),
        )
        time.sleep(30)
        stage.check()
        said = line_of(lambda: [taking.read_chunk() for _ in range(1_000_000)])
        assert said.startswith("cut: results were not taken for 3 s while 65536 bytes of them waited"), said
        stage.check()


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_damaged_bytes(spare: Stage, token: str) -> None:
    """Whatever is damaged on the way: an error for that client, or rows that match nothing."""
    text = pa.array([None, None], pa.int64())  # without times no damage can make one of the far future
    rng, lines = random.Random(7), []
    for _ in range(300):
        relay = Flipping(spare, rng.randrange(100, 2500), 1 << rng.randrange(8))
        stage = type("At", (), {"address": relay.address, "secrets": {}})
        attacker = Attacker(stage, b"Bearer " + token.encode())
        attacker.options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())], timeout=1.0)
        try:
            attacker.put(rows(ts=text), b'{"row": 0}', where=flight.FlightDescriptor.for_path("left"))
            lines.append("taken")
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            lines.append(plain_text(error))
        attacker.client.close()
        relay.close()
    spare.check()
    assert "Traceback" not in spare.log
    assert not [line for line in lines if "internal error" in line or "Traceback" in line]
    assert any(line.startswith("malformed") for line in lines), "no damage came as far as the batch"


@pytest.mark.long
def test_requests_of_200_mb_leave_nothing(spare: Stage, token: str) -> None:
    """Nobody can refuse them before they are in memory; afterwards it is free again."""
    insider, outsider = (Attacker(spare, header) for header in (b"Bearer " + token.encode(), None))
    after = []
    for _ in range(3):
        assert line_of(lambda: outsider.act("status", b"x" * 200_000_000)).startswith("no token")
        assert line_of(lambda: insider.act("status", b"x" * 200_000_000)).startswith("a request of 200000000 bytes")
        assert line_of(lambda: insider.put(rows(1, name=pa.array(["x" * 200_000_000])))).startswith("a batch of 20000")
        spare.check()
        after.append(memory_bytes(spare.process.pid))
    until_s = time.monotonic() + PROCESS_S  # threads that are held up free theirs late
    while after[-1] - after[0] >= 300_000_000 and time.monotonic() < until_s:
        time.sleep(0.2)
        after.append(memory_bytes(spare.process.pid))
    assert after[-1] - after[0] < 300_000_000, after


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_a_thousand_producers_with_rows(secrets: Path, tmp_path: Path, token: str) -> None:
    """Names with rows are remembered, so their number has a bound."""
    from swjoin.connectors.producer_merge import MOST_LANES

    more = {"time": {"idle_timeout": "20s"}}
    with staged(tmp_path / "stage", {"token_file": str(secrets / "token")}, [], more, token_file=secrets / "token") as stage:
        insider = Attacker(stage, b"Bearer " + token.encode())
        for number in range(MOST_LANES - 1):  # the good one is there
            insider.put(rows(time_us=None), b'{"end": true}', where=f"many {number}")
        assert line_of(lambda: insider.put(rows(), where="one more")).startswith(
            f"the stream has {MOST_LANES} producers already"
        )
        assert insider.put(rows(time_us=None), b'{"row": 0}', where="many 7")[-1]["received"] == 2
        stage.check()

"""The master's side of a live run: what producers push, what consumers take, and who asks how it goes.

What: `FlightIngest`: an endpoint whose puts fill the sources, whose gets give late rows, and pass results and metrics on from
the collector.
Why: clients talk to one address, whichever process holds what they want.
Stays out: merging and keeping rows (`connectors.producer_merge`, `connectors.flight.source`), the results' log
(`connectors.flight.result_stream`).

A batch may say which row of its producer's stream it begins with: rows that are there already are not taken twice, so a
producer that has lost its connection sends again whatever it is not sure of.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from swjoin.config.run import ServeConfig
from swjoin.connectors.flight.result_log import ResultLog
from swjoin.connectors.flight.result_stream import serve_log
from swjoin.connectors.flight.server import Endpoint, FlightStream, Metadata, check_length, read_pem, read_token
from swjoin.connectors.flight.source import FlightSource
from swjoin.connectors.producer_merge import MergeClosedError
from swjoin.connectors.schema import check_schema
from swjoin.core.batch import STREAM_NAMES, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.units import MAX_SPAN_US

_LATE_BYTES = 4 << 20
_PREFIX = re.compile(r"^Flight (error: |returned [\w ]+ error, with message: )")
_ACK_S = 0.1
_SILENT_S = 1.0  # a stream that has brought nothing for so long may be what the other one waits for
_MOST_SHOWN = 5
_LONGEST_NAME = 200
_SMALL_BYTES = 1 << 10  # of a message, besides its rows
LATE_SCHEMA = pa.schema([("stream", pa.string()), ("row_id", pa.uint64()), ("ts", pa.int64()), ("reason", pa.string())])


@dataclass
class _Session:
    """One connection of a producer. A later one of the same name replaces it."""

    name: str
    peer: str
    passing: bool
    rows: int = 0  # taken, of those that came over this connection
    replaced: bool = False


class FlightIngest:
    """sources: both streams; those that are pushed take part. status: what `status` answers; the runtime sets it."""

    def __init__(self, config: ServeConfig, sources: tuple[Any, Any]) -> None:
        self._config = config
        self._sources = {STREAM_NAMES[s]: source for s, source in enumerate(sources) if isinstance(source, FlightSource)}
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self.status: Callable[[], Metadata] = dict
        self.late = ResultLog(LATE_SCHEMA, _LATE_BYTES, 0.0, lossy=True)
        endpoint = self.endpoint = Endpoint(config)
        for name, source in self._sources.items():
            endpoint.puts[name] = self._put
            endpoint.schemas[name] = partial(_same, (source.schema, self.location))
        serve_log(endpoint, "late", self.late)
        endpoint.acts |= {"status": self._status, "received": self._received, "waits": self._waits, "end": self._end}

    def open(self) -> None:
        """Let clients in, and tell where, if that has not been done yet."""
        if self.endpoint.is_open:
            return
        self.endpoint.open()
        print(f"listening at {self.location}", flush=True)

    @property
    def location(self) -> str:
        return str(self.endpoint.location)

    # ------------------------------------------------------------ taken by consumers

    def aside(self, stream: int, batch: SourceBatch, reason: str) -> None:
        """Rows that are left out of the join."""
        known = None if batch.ts_valid is None else ~batch.ts_valid
        n = len(batch)
        columns = [
            pa.array([STREAM_NAMES[stream]] * n, pa.string()),
            pa.array(batch.id, pa.uint64()),
            pa.array(batch.ts, pa.int64(), mask=known),
            pa.array([reason] * n, pa.string()),
        ]
        self.late.write(pa.record_batch(columns, schema=LATE_SCHEMA))

    def pass_on(self, location: str) -> None:
        """Results and metrics are at the collector's endpoint: pass on what is asked for here."""
        client = flight.FlightClient(location, **client_tls(self._config))
        options = flight.FlightCallOptions(headers=_headers(self._config))
        for info in client.list_flights(options=options):
            name = info.descriptor.path[0].decode()
            self.endpoint.schemas[name] = partial(_same, (info.schema, location))
            self.endpoint.gets[name] = partial(_relay, client, options, info.schema)

    # ------------------------------------------------------------ brought by producers

    def _put(self, request: Metadata, context: Any, reader: Any, writer: Any) -> None:
        source: FlightSource = self._sources[request["stream"]]
        check_schema(reader.schema, source.schema)
        name, passing = self._name_of(request)
        if passing and source.config.flight is not None and source.config.flight.producers:
            raise UserError(
                "this stream waits for a number of producers: say which one you are (descriptor path: stream, producer)"
            )
        received = source.merge.open(name, passing=passing)
        session = _Session(name, context.peer(), passing)
        with self._lock:
            older = self._sessions.get((request["stream"], name))
            self._sessions[request["stream"], name] = session
        if older is not None:
            older.replaced = True
        acks = bool(request.get("acks", False))
        ended = False
        try:
            if acks:
                _tell(writer, {"received": received, "accepted": self._accepted(source, name)})
            ended = self._take_all(source, session, context, reader, writer if acks else None)
        finally:
            with self._lock:
                if self._sessions.get((request["stream"], name)) is session:
                    del self._sessions[request["stream"], name]
                    if not ended:
                        source.merge.leave(name)
        self._wait_accepted(source, session, context)
        done = {"received": source.merge.received(name), "accepted": self._accepted(source, name)}
        if passing:  # the merge forgets who cannot come back
            done = {"received": session.rows, "accepted": session.rows}
        _tell(writer, {**done, "done": True})

    def _name_of(self, request: Metadata) -> tuple[str, bool]:
        name = request.get("producer")
        if name is None:
            return f"~{next(self._numbers):06d}", True
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name.startswith("~"):
            raise UserError(f"producer: a name of 1 to {_LONGEST_NAME} printable characters, not beginning with ~")
        return name, False

    def _take_all(self, source: FlightSource, session: _Session, context: Any, reader: Any, acks: Any) -> bool:
        """All batches of a connection; whether the producer has said that it has no more rows."""
        ended, told_s = False, time.monotonic()
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return ended
            said = parse_metadata(chunk.app_metadata)
            if chunk.data is not None and chunk.data.num_rows:
                self._take(source, session, context, chunk.data, said.get("row"))
            if "until_us" in said:
                until_us = whole(said, "until_us")
                if abs(until_us) >= MAX_SPAN_US:
                    raise UserError(f"malformed: until_us {until_us} is out of range; it is in microseconds")
                source.merge.carry(session.name, until_us)
            if said.get("end") is True and not ended:
                ended = True
                source.merge.end(session.name)
            if acks is not None and time.monotonic() - told_s >= _ACK_S:
                told_s = time.monotonic()
                _tell(acks, {"received": source.merge.received(session.name), "accepted": self._accepted(source, session.name)})

    def _take(self, source: FlightSource, session: _Session, context: Any, batch: pa.RecordBatch, row: Any) -> None:
        limit, nbytes = self._config.message_bytes, held_bytes(batch)
        if nbytes > limit:
            raise UserError(f"a batch of {nbytes} bytes; this run takes {limit} at most (serve.message): send smaller ones")
        batch = source.chosen(batch)
        batch.validate(full=True)  # before anything looks into it, be it to count its bytes
        if row is not None:
            row = whole({"row": row}, "row")
            if row < 0:
                raise UserError(f"malformed: row {row}; rows are counted from 0")

        def given_up() -> bool:
            return session.replaced or self._closed or context.is_cancelled()

        times, valid = source.times_of(batch)
        if row is not None:  # rows that are there already must not keep the memory of the others
            known = min(max(0, source.merge.received(session.name) - row), batch.num_rows)
            batch, row, times, valid = batch.slice(known), row + known, times[known:], None if valid is None else valid[known:]
        if nbytes > 2 * batch.nbytes + _SMALL_BYTES:
            batch = batch.take(pa.array(range(batch.num_rows), pa.int64()))
        try:
            source.merge.push(session.name, batch, times, valid, row=row, given_up=given_up)
        except MergeClosedError:
            why = "this producer has connected anew" if session.replaced else "the run has ended"
            raise RunFailed(f"{why}; rows that were not accepted are not joined") from None
        session.rows += batch.num_rows
        if session.replaced:
            raise RunFailed("this producer has connected anew; rows that were not accepted are not joined")

    @staticmethod
    def _accepted(source: FlightSource, name: str) -> int:
        return source.accepted.get(name, 0)

    def _wait_accepted(self, source: FlightSource, session: _Session, context: Any) -> None:
        """A producer that has sent all is let go when all is accepted."""
        while not self._closed and not context.is_cancelled() and not session.replaced:
            if source.settled(session.name):
                return
            source.merge.wait(_ACK_S)
        if self._closed:
            raise RunFailed("the run has ended; rows that were not accepted are not joined")

    # ------------------------------------------------------------ asked

    def _status(self, request: Metadata) -> Metadata:
        """How the run goes, as the dashboard shows it."""
        return self.status()

    def _received(self, request: Metadata) -> Metadata:
        """How many rows of a producer there are: {stream, producer} -> {received, accepted}."""
        source = self._sources.get(str(request.get("stream")))
        name = request.get("producer")
        if source is None or not isinstance(name, str):
            raise UserError(f"received: name a stream ({', '.join(self._sources) or 'none is pushed here'}) and a producer")
        return {"received": source.merge.received(name), "accepted": self._accepted(source, name)}

    def _waits(self, request: Metadata) -> Metadata:
        """Whom the rows of a stream wait for: {stream} -> {producers: [{stream, producer, from, silent_s}], text}."""
        name = str(request.get("stream"))
        source = self._sources.get(name)
        if source is None:
            raise UserError(f"waits: name a stream ({', '.join(self._sources) or 'none is pushed here'})")
        held, of = source.merge.holding_back(), name
        if not held and source.merge.waiting_rows:  # nobody within: the join may wait for the other stream
            for of, other in self._sources.items():
                if of != name and not other.merge.ended and not other.merge.waiting_rows and other.merge.silent_s >= _SILENT_S:
                    held = other.merge.open_lanes()
                    held += [("", other.merge.silent_s)] if other.merge.missing or not held else []
                    break
        if not held:
            return {"producers": [], "text": ""}
        shown = []
        with self._lock:
            for producer, silent_s in sorted(held):
                session = self._sessions.get((of, producer))
                peer = None if session is None else session.peer
                shown.append({"stream": of, "producer": producer or None, "from": peer, "silent_s": round(silent_s, 1)})
        return {"producers": shown, "text": _waiting_for(name, shown, self._sources[of])}

    def _end(self, request: Metadata) -> Metadata:
        """A stream ends: {stream}. Rows that have been received are joined, later ones refused."""
        source = self._sources.get(str(request.get("stream")))
        if source is None:
            raise UserError(f"end: name a stream ({', '.join(self._sources) or 'none is pushed here'})")
        source.finish()
        return {"ended": request["stream"]}

    def close(self) -> None:
        self._closed = True
        self.late.close()
        self.endpoint.close()


def _waiting_for(stream: str, producers: list[Metadata], source: FlightSource) -> str:
    """A line: for whom the rows of a stream wait, and what to do."""
    said = []
    for one in producers[:_MOST_SHOWN]:
        name, peer, since = one["producer"], one["from"], f"silent for {one['silent_s']:.0f} s"
        if name is None:
            missing = source.merge.missing
            said.append(f"{missing} of its producers, which have not come" if missing else "a producer, none has come")
        elif name.startswith("~"):
            said.append(f"a producer without a name (from {peer}, {since})")
        else:
            said.append(f"producer {name} ({f'from {peer}' if peer else 'not connected'}, {since})")
    if len(producers) > _MOST_SHOWN:
        said.append(f"{len(producers) - _MOST_SHOWN} more")
    idle_s, of = source.merge.idle_s, producers[0]["stream"]
    remedy = (
        f"after {idle_s:g} s (time.idle_timeout) the run goes on without them"
        if idle_s >= 1e-3  # with arrival times lanes have a shorter one, which is nobody's setting
        else "let them send rows, advance or end, or set time.idle_timeout in the run's configuration"
    )
    return f"rows of {stream} wait for {'' if of == stream else f'stream {of}: '}{', '.join(said)}; {remedy}"


def parse_metadata(data: Any) -> Metadata:
    """What comes with a batch: nothing, or a JSON object. UserError otherwise."""
    if data is None or data.size == 0:
        return {}
    check_length(data.size)
    try:
        plain = json.loads(data.to_pybytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"malformed: what comes with a batch is no JSON ({error})") from None
    if not isinstance(plain, dict):
        raise UserError("malformed: what comes with a batch is no JSON object")
    return plain


def held_bytes(batch: pa.RecordBatch) -> int:
    """What a batch keeps in memory: all of the messages that its columns are parts of. Looks at no value."""
    roots: dict[int, int] = {}
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                while buffer.parent is not None:
                    buffer = buffer.parent
                roots[buffer.address] = max(buffer.size, roots.get(buffer.address, 0))
    return sum(roots.values())


def whole(said: Metadata, key: str) -> int:
    """A whole number that a client has said. UserError when it is none."""
    value = said[key]
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 62) < value < 1 << 62:
        raise UserError(f"malformed: {key} is no whole number")
    return value


def _tell(writer: Any, plain: Metadata) -> None:
    writer.write(pa.py_buffer(json.dumps(plain).encode()))


def client_tls(config: ServeConfig) -> Metadata:
    """Options of a client of our own endpoint."""
    if config.certificate is None:
        return {}
    path = config.root_certificate or config.certificate
    return {"tls_root_certs": read_pem(path, "root_certificate")}


def _headers(config: ServeConfig) -> list[tuple[bytes, bytes]]:
    return [] if config.token_file is None else [(b"authorization", b"Bearer " + read_token(config.token_file))]


def _same(value: tuple[pa.Schema, str]) -> tuple[pa.Schema, str]:
    return value


def _relay(client: Any, options: Any, schema: pa.Schema, request: Metadata, context: Any) -> FlightStream:
    return schema, _relayed(client, options, request, context)


def _relayed(client: Any, options: Any, request: Metadata, context: Any) -> Iterator[tuple[pa.RecordBatch, Metadata]]:
    """What the collector gives, batch by batch: a consumer that is slow here is slow there."""
    reader = client.do_get(flight.Ticket(json.dumps(request).encode()), options)
    try:
        while not context.is_cancelled():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())
    except flight.FlightError as error:
        raise RunFailed(plain_text(error)) from None
    finally:
        reader.cancel()


def plain_text(error: BaseException) -> str:
    """A Flight error's message, without what gRPC adds."""
    text = " ".join(str(error).split())
    for noise in (". Detail:", ". gRPC client debug context", " gRPC client debug context"):
        text = text.partition(noise)[0]
    return _PREFIX.sub("", text)

"""Flight ingest: the endpoint of a gateway of a live run.

What: `FlightIngest`: puts fill the sources, gets return late rows and relay results and metrics from the collector, actions
return the status.
Why: clients use one address, whichever process has the rows. With several gateways each has an endpoint; the first one knows
where each producer is read, the others send consumers there.
Stays out: merging and storing rows (`connectors.producer_merge`, `connectors.flight.source`), the log of results
(`connectors.flight.result_stream`).

A batch may have the number of its first row among its producer's rows. Rows that have been received are dropped, so a producer
that has lost its connection can send rows again when it does not know whether they arrived.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.flight as flight

from swjoin.config.run import ServeConfig
from swjoin.connectors.files.late_rows import late_schema
from swjoin.connectors.flight.producer_places import Peers, ProducerPlaces
from swjoin.connectors.flight.result_log import ResultLog
from swjoin.connectors.flight.result_stream import serve_log
from swjoin.connectors.flight.server import (
    PATIENCE_S,
    Endpoint,
    FlightStream,
    Metadata,
    check_length,
    client_headers,
    client_tls,
    queries_change,
)
from swjoin.connectors.flight.source import FlightSource
from swjoin.connectors.producer_merge import MergeClosedError
from swjoin.connectors.schema import check_schema
from swjoin.core.arrow_views import retained_bytes, without_surplus
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.units import MAX_SPAN_US

_LOG = logging.getLogger(__name__)
_LATE_BYTES = 4 << 20
_PREFIX = re.compile(r"^Flight (error: |returned [\w ]+ error, with message: )")
_ACK_S = 0.1
_MOMENT_S = 0.5  # for calls that do not end when queries change, while all streams stand
_AWAY = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError, OSError)
_SILENT_S = 1.0  # a stream that is idle for so long may block the other one
_MOST_SHOWN = 5
_LONGEST_NAME = 200


@dataclass
class _Session:
    """One connection of a producer. A later one of the same name replaces it."""

    name: str
    peer: str
    anonymous: bool
    rows: int = 0  # taken from this connection
    replaced: bool = False


class FlightIngest:
    """sources, names: of the run; pushed ones are served. gateway: the number of theirs. first: location of the first gateway's
    endpoint, unless this is it. status: returns the state of the run; the runtime sets it. places: of producers, at the first
    gateway."""

    def __init__(
        self, config: ServeConfig, sources: Sequence[Any], names: Sequence[str], gateway: int = 0, first: str = ""
    ) -> None:
        self._config, self._gateway = config, gateway
        self._names = names
        self._sources = {n: source for n, source in zip(names, sources, strict=True) if isinstance(source, FlightSource)}
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._numbers = itertools.count(1)
        self._lock, self._joining = threading.Lock(), threading.Lock()
        self._closed: Literal["", "ended", "changes"] = ""
        self._relayed = ""  # the collector's endpoint
        self._peers = Peers(config, first)
        self.status: Callable[[], Metadata] = dict
        self.late = ResultLog(late_schema(), _LATE_BYTES, 0.0, lossy=True)
        endpoint = self.endpoint = Endpoint(config, 0 if gateway else None)
        for name, source in self._sources.items():
            endpoint.puts[name] = self._put
            endpoint.schemas[name] = partial(_same, (source.schema, self.location))
        endpoint.acts |= {"status": self._status, "received": self._received, "waits": self._waits, "end": self._end}
        endpoint.place = self._place
        self.places = ProducerPlaces(self._sources)
        self.places.locations[gateway] = self.location
        if gateway:
            endpoint.find_more = partial(self.relay_from, first)
        else:
            endpoint.acts |= {"place": self._best_place, "claim": self._claimed, "release": self._released}
            serve_log(endpoint, "late", self.late)

    def open(self) -> None:
        """Accept clients and log the address, if that has not been done yet."""
        if self.endpoint.is_open:
            return
        self.endpoint.open()
        _LOG.info("%s at %s", f"gateway {self._gateway} listens" if self._gateway else "listening", self.location)

    @property
    def location(self) -> str:
        return str(self.endpoint.location)

    # ------------------------------------------------------------ rows to consumers

    def set_aside(self, stream: int, batch: SourceBatch, reason: str) -> None:
        """Offer rows that are not joined."""
        known = None if batch.ts_valid is None else ~batch.ts_valid
        n = len(batch)
        columns = [
            pa.array([self._names[stream]] * n, pa.string()),
            pa.array(batch.id, pa.uint64()),
            pa.array(batch.ts, pa.int64(), mask=known),
            pa.array([reason] * n, pa.string()),
        ]
        self.late.write(pa.record_batch(columns, schema=self.late.schema))

    def relay_from(self, location: str) -> None:
        """Relay results and metrics from the collector's endpoint, which is elsewhere after the death of its rank; or all that
        is taken from the endpoint of the first gateway."""
        if location == self._relayed:
            return
        client = flight.FlightClient(location, **client_tls(self._config))
        options = flight.FlightCallOptions(headers=client_headers(self._config))
        for info in client.list_flights(options=options):
            name = info.descriptor.path[0].decode()
            if name in self._sources:
                continue
            self.endpoint.schemas[name] = partial(_same, (info.schema, location))
            self.endpoint.gets[name] = partial(_relay, client, options, info.schema)
        self._relayed = location  # not earlier: another call would miss the names

    # ------------------------------------------------------------ rows from producers

    def _put(self, request: Metadata, context: Any, reader: Any, writer: Any) -> None:
        source: FlightSource = self._sources[request["stream"]]
        check_schema(reader.schema, source.schema)
        name, anonymous = self._name_of(request)
        if anonymous and source.config.flight is not None and source.config.flight.producers:
            raise UserError(
                "this stream waits for a number of producers: say which one you are (descriptor path: stream, producer)"
            )
        session = _Session(name, context.peer(), anonymous)
        with self._joining:  # so that an older connection does not take the lane along when it ends
            received = self._join(source, request["stream"], name, anonymous=anonymous)
            with self._lock:
                older = self._sessions.get((request["stream"], name))
                self._sessions[request["stream"], name] = session
        if older is not None:
            older.replaced = True
        acks = bool(request.get("acks", False))
        ended = False
        try:
            if acks or request.get("confirm"):
                _reply(writer, {"received": received, "accepted": self._accepted(source, name)})
            ended = self._take_all(source, session, context, reader, writer if acks else None)
        finally:
            with self._joining, self._lock:
                if self._sessions.get((request["stream"], name)) is session:
                    del self._sessions[request["stream"], name]
                    if not ended and source.merge.leave(name):
                        self._forget(source, request["stream"], name)
        self._wait_accepted(source, session, context)
        done = {"received": source.merge.received(name), "accepted": self._accepted(source, name)}
        if anonymous:  # the merge has removed its lane
            done = {"received": session.rows, "accepted": session.rows}
        _reply(writer, {**done, "done": True})

    def _join(self, source: FlightSource, stream: str, name: str, *, anonymous: bool) -> int:
        """Open the lane of a producer, whom no other gateway reads; returns the number of rows received from it."""
        is_new = source.share[1] > 1 and not anonymous and name not in source.merge.splits
        if is_new:
            body = {"stream": stream, "producer": name, "gateway": self._gateway}
            if self._gateway:
                self._ask(self._peers.first, "claim", body)
            else:
                self._claimed(body)
        try:
            return source.connect(name, anonymous=anonymous)
        except UserError:
            if is_new:
                self._forget(source, stream, name)
            raise

    def _forget(self, source: FlightSource, stream: str, name: str) -> None:
        """A producer has left without rows."""
        if source.share[1] > 1:
            with suppress(flight.FlightError, RunFailed):
                body = {"stream": stream, "producer": name}
                self._ask(self._peers.first, "release", body) if self._gateway else self._released(body)

    def _ask(self, location: str, action: str, body: Metadata) -> Metadata:
        """The answer of another endpoint of the run."""
        try:
            return self._peers.ask(location, action, body)
        except _AWAY as error:  # a client may try again
            raise flight.FlightUnavailableError(plain_text(error)) from None
        except flight.FlightError as error:
            raise RunFailed(plain_text(error)) from None

    def _name_of(self, request: Metadata) -> tuple[str, bool]:
        name = request.get("producer")
        if name is None:
            return f"~{next(self._numbers):06d}", True
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name.startswith("~"):
            raise UserError(f"producer: a name of 1 to {_LONGEST_NAME} printable characters, not beginning with ~")
        return name, False

    def _take_all(self, source: FlightSource, session: _Session, context: Any, reader: Any, acks: Any) -> bool:
        """Take all batches of a connection; returns whether the producer has ended."""
        ended, replied_s = False, time.monotonic()
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return ended
            metadata = parse_metadata(chunk.app_metadata)
            if chunk.data is not None and chunk.data.num_rows:
                self._take(source, session, context, chunk.data, metadata.get("row"))
            if "until_us" in metadata:
                until_us = whole(metadata, "until_us")
                if abs(until_us) >= MAX_SPAN_US:
                    raise UserError(f"malformed: until_us {until_us} is out of range; it is in microseconds")
                source.merge.advance(session.name, until_us)
            if metadata.get("end") is True and not ended:
                ended = True
                source.merge.end(session.name)
            if acks is not None and time.monotonic() - replied_s >= _ACK_S:
                replied_s = time.monotonic()
                _reply(
                    acks, {"received": source.merge.received(session.name), "accepted": self._accepted(source, session.name)}
                )

    def _take(self, source: FlightSource, session: _Session, context: Any, batch: pa.RecordBatch, row: Any) -> None:
        limit, nbytes = self._config.message_bytes, retained_bytes(batch)
        if nbytes > limit:
            raise UserError(f"a batch of {nbytes} bytes; this run takes {limit} at most (serve.message): send smaller ones")
        batch = source.chosen(batch)
        batch.validate(full=True)  # before its content is used, even to count bytes
        if row is not None:
            row = whole({"row": row}, "row")
            if row < 0:
                raise UserError(f"malformed: row {row}; rows are counted from 0")

        def given_up() -> bool:
            return session.replaced or bool(self._closed) or context.is_cancelled()

        times, valid = source.times_of(batch)
        if row is not None:  # received rows must not keep the batch's memory
            known = min(max(0, source.merge.received(session.name) - row), batch.num_rows)
            batch, row, times, valid = batch.slice(known), row + known, times[known:], None if valid is None else valid[known:]
        batch = without_surplus(batch)
        try:
            source.merge.push(session.name, batch, times, valid, row=row, given_up=given_up)
        except MergeClosedError:
            self._check_same_queries()
            why = "this producer has connected anew" if session.replaced else "the run has ended"
            raise RunFailed(f"{why}; rows that were not accepted are not joined") from None
        session.rows += batch.num_rows
        if session.replaced:
            raise RunFailed("this producer has connected anew; rows that were not accepted are not joined")

    @staticmethod
    def _accepted(source: FlightSource, name: str) -> int:
        return source.accepted.get(name, 0)

    def _wait_accepted(self, source: FlightSource, session: _Session, context: Any) -> None:
        """Keep the connection until all rows are accepted."""
        while not self._closed and not context.is_cancelled() and not session.replaced:
            if source.settled(session.name):
                return
            source.merge.wait(_ACK_S)
        if self._closed:
            self._check_same_queries()
            raise RunFailed("the run has ended; rows that were not accepted are not joined")

    def _check_same_queries(self) -> None:
        if self._closed == "changes":
            raise queries_change()

    # ------------------------------------------------------------ actions

    def _status(self, request: Metadata) -> Metadata:
        """State of the run, as the dashboard shows it."""
        if self._gateway:
            return self._ask(self._peers.first, "status", request)
        return {**self.status(), "endpoints": [self.places.locations[number] for number in sorted(self.places.locations)]}

    def _source_of(self, request: Metadata, action: str, producer: str = "") -> FlightSource:
        source = self._sources.get(str(request.get("stream")))
        if source is None or (producer and not isinstance(request.get("producer"), str)):
            raise UserError(f"{action}: name a stream ({', '.join(self._sources) or 'none is pushed here'}){producer}")
        return source

    def _received(self, request: Metadata) -> Metadata:
        """Number of rows of a producer: {stream, producer} -> {received, accepted}."""
        source = self._source_of(request, "received", " and a producer")
        stream, name = request["stream"], request["producer"]
        if source.share[1] > 1 and not request.get("asked") and name not in source.merge.splits:
            if self._gateway:
                return self._ask(self._peers.first, "received", request)
            gateway = self.places.of(stream, name)
            if gateway:
                return self._ask(self.places.locations[gateway], "received", {**request, "asked": True})
        return {"received": source.merge.received(name), "accepted": self._accepted(source, name)}

    def _place(self, request: Metadata) -> str | None:
        """Where a producer is to connect; None: there is one gateway."""
        if self._sources[request["stream"]].share[1] == 1:
            return None
        body = {"stream": request["stream"], "producer": request.get("producer")}
        answer = self._ask(self._peers.first, "place", body) if self._gateway else self._best_place(body)
        return str(answer["location"])

    def _best_place(self, request: Metadata) -> Metadata:
        """Of the run's own endpoints: where a producer is read."""
        self._source_of(request, "place")
        name = request.get("producer")
        return {"location": self.places.best(request["stream"], name if isinstance(name, str) else None)}

    def _claimed(self, request: Metadata) -> Metadata:
        """Of the run's own endpoints: a producer has connected."""
        gateway = whole(request, "gateway")
        if not 0 <= gateway < self._source_of(request, "claim", " and a producer").share[1]:
            raise UserError(f"claim: there is no gateway {gateway}")
        self.places.claim(request["stream"], request["producer"], gateway)
        return {}

    def _released(self, request: Metadata) -> Metadata:
        """Of the run's own endpoints: a producer has left without rows."""
        self._source_of(request, "release", " and a producer")
        self.places.release(request["stream"], request["producer"])
        return {}

    def _others(self, source: FlightSource) -> list[str]:
        """At the first gateway: endpoints of the others that read a stream."""
        return [self.places.locations[number] for number in range(1, source.share[1])]

    def _waits(self, request: Metadata) -> Metadata:
        """Producers that block a stream: {stream} -> {producers: [{stream, producer, from, silent_s}], text}."""
        source = self._source_of(request, "waits")
        found = self._waits_here(str(request["stream"]), source, asked=bool(request.get("asked")))
        if found["text"] or source.share[1] == 1 or request.get("asked"):
            return found
        if self._gateway:
            return self._ask(self._peers.first, "waits", request)
        for asked, location in ((False, self.location), *((True, other) for other in self._others(source))):
            body = {**request, "asked": True}
            found = self._ask(location, "waits", body) if asked else self._waits_here(request["stream"], source, asked=True)
            if found["text"]:
                break
        return found

    def _waits_here(self, name: str, source: FlightSource, *, asked: bool) -> Metadata:
        """Of the producers of this gateway. asked: by another one, whose rows wait."""
        blocking, of = source.merge.blocking_lanes(), name
        if not blocking and (asked or source.merge.waiting_rows):  # the join may wait for the other stream
            for of, other in self._sources.items():
                idle = not other.merge.ended and not other.merge.waiting_rows and other.merge.silent_s >= _SILENT_S
                if (asked or of != name) and idle:
                    blocking = other.merge.open_lanes()
                    blocking += [("", other.merge.silent_s)] if other.merge.missing or not blocking else []
                    break
        if not blocking:
            return {"producers": [], "text": ""}
        shown = []
        with self._lock:
            for producer, silent_s in sorted(blocking):
                session = self._sessions.get((of, producer))
                peer = None if session is None else session.peer
                shown.append({"stream": of, "producer": producer or None, "from": peer, "silent_s": round(silent_s, 1)})
        return {"producers": shown, "text": _waiting_for(name, shown, self._sources[of])}

    def _end(self, request: Metadata) -> Metadata:
        """End a stream: {stream}. Received rows are joined, later ones are refused."""
        source = self._source_of(request, "end")
        if source.share[1] > 1 and not request.get("asked"):
            if self._gateway:
                return self._ask(self._peers.first, "end", request)
            for location in self._others(source):
                self._ask(location, "end", {**request, "asked": True})
        source.finish()
        return {"ended": request["stream"]}

    def close(self, *, changes: bool = False) -> None:
        """changes: the run goes on in a moment with other queries, and producers come again."""
        self._closed = "changes" if changes else "ended"
        self.late.close(queries_change() if changes else None)
        self.endpoint.close(_MOMENT_S if changes else PATIENCE_S)
        self._peers.close()


def _waiting_for(stream: str, producers: list[Metadata], source: FlightSource) -> str:
    """One line: the producers that block a stream, and the remedy."""
    parts = []
    for one in producers[:_MOST_SHOWN]:
        name, peer, since = one["producer"], one["from"], f"silent for {one['silent_s']:.0f} s"
        if name is None:
            missing = source.merge.missing
            parts.append(f"{missing} of its producers, which have not come" if missing else "a producer, none has come")
        elif name.startswith("~"):
            parts.append(f"a producer without a name (from {peer}, {since})")
        else:
            parts.append(f"producer {name} ({f'from {peer}' if peer else 'not connected'}, {since})")
    if len(producers) > _MOST_SHOWN:
        parts.append(f"{len(producers) - _MOST_SHOWN} more")
    idle_s, of = source.merge.idle_s, producers[0]["stream"]
    remedy = (
        f"after {idle_s:g} s (time.idle_timeout) the run goes on without them"
        if idle_s >= 1e-3  # with arrival times lanes have a shorter timeout, which is not a setting
        else "let them send rows, advance or end, or set time.idle_timeout in the run's configuration"
    )
    return f"rows of {stream} wait for {'' if of == stream else f'stream {of}: '}{', '.join(parts)}; {remedy}"


def parse_metadata(data: Any) -> Metadata:
    """Metadata of a batch: nothing, or a JSON object. UserError otherwise."""
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


def whole(metadata: Metadata, key: str) -> int:
    """An integer of a client's metadata. UserError for anything else."""
    value = metadata[key]
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 62) < value < 1 << 62:
        raise UserError(f"malformed: {key} is no whole number")
    return value


def _reply(writer: Any, plain: Metadata) -> None:
    writer.write(pa.py_buffer(json.dumps(plain).encode()))


def _same(value: tuple[pa.Schema, str]) -> tuple[pa.Schema, str]:
    return value


def _relay(client: Any, options: Any, schema: pa.Schema, request: Metadata, context: Any) -> FlightStream:
    return schema, _relayed(client, options, request, context)


def _relayed(client: Any, options: Any, request: Metadata, context: Any) -> Iterator[tuple[pa.RecordBatch, Metadata]]:
    """Batches from the collector. Reading one at a time passes back-pressure on to the collector."""
    reader = None
    try:
        reader = client.do_get(flight.Ticket(json.dumps(request).encode()), options)
        while not context.is_cancelled():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())
    except flight.FlightUnavailableError as error:  # its rank has died, and another one takes over
        raise flight.FlightUnavailableError(plain_text(error)) from None
    except flight.FlightError as error:
        raise RunFailed(plain_text(error)) from None
    finally:
        if reader is not None:
            reader.cancel()


def plain_text(error: BaseException) -> str:
    """A Flight error's message, without gRPC's additions."""
    text = " ".join(str(error).split())
    for noise in (". Detail:", ". gRPC client debug context", " gRPC client debug context"):
        text = text.partition(noise)[0]
    return _PREFIX.sub("", text)

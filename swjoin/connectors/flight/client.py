"""Client of a live run: `swjoin.connect`.

What: `Client`: `push` and `producer` send rows and report producers that block them; `results`, `late` and `metrics` return
rows; `status` returns the state of the run; `end` ends a stream.
Why: a run can be used with five lines of Python; an error of the server is one clear line.
Stays out: the command line (`cli.serve`). Any Arrow Flight client can do the same: docs/live.md documents the protocol.
"""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as flight

from swjoin.connectors.fitting import fitted
from swjoin.connectors.flight.ingest import plain_text
from swjoin.connectors.flight.result_log import ConsumerOffset
from swjoin.connectors.frames import Streamable, to_batches
from swjoin.core.errors import RunFailed, SwjoinError, UserError

BATCH_ROWS = 16_384
_NOTICE_S, _NOTICE_AGAIN_S, _POLL_S = 4.0, 30.0, 0.5  # until a waiting push reports it; until the next report
_REACH_S = 3.0  # for the collector's endpoint to answer
Start = Literal["start", "now"] | ConsumerOffset
# A resumed run is reachable again within seconds; gRPC's own backoff grows to two minutes. The middle value is the time limit
# of an attempt.
_BACKOFF = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_HOST_PORT = re.compile(r"(\[[^\[\]/]+\]|[^:/\[\]\s]+):\d+/?", re.ASCII)  # HOST:PORT
_ADDRESSES = "write grpc://HOST:PORT or grpc+tls://HOST:PORT"
_ERRORS = (pa.ArrowException, flight.FlightError, OSError)  # some calls of Flight raise the last


class ServerGoneError(RunFailed):
    """The server does not answer, or the connection was lost; a retry may help."""


def _as_error(error: BaseException) -> UserError | RunFailed:
    """The error of the server."""
    text = plain_text(error) or type(error).__name__
    if "handshake failed" in text:
        return UserError(f"{text}; does the run speak TLS (grpc+tls://, else grpc://), and is this its root certificate?")
    if "failed to connect" in text and "Socket closed" in text:  # a run that has just died gives the same error
        return ServerGoneError(f"{text}; if the run speaks TLS, write grpc+tls://")
    refused = re.search(r"ipv[46]:(\S+): .*Connection refused", text)
    if refused is not None:
        return ServerGoneError(f"nothing listens at {unquote(refused[1])}; is swjoin serve running?")
    gone = isinstance(error, OSError) and "unavailable" in text
    if gone or isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightTimedOutError):
        return ServerGoneError(text)
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return UserError(text)
    return RunFailed(text)


@dataclass(frozen=True)
class Event:
    """One event of a result stream. kind: `rows`, with their batch; `complete`: all rows of this generation have been received
    and are final; `void`: received rows of this generation and later ones are not valid and will be sent again. place: the
    consumer's offset after the event."""

    kind: str
    batch: pa.RecordBatch
    generation: int
    place: ConsumerOffset


class ResultIterator:
    """Rows of a run. Iterate over it for batches, by `for` or `async for`, or over `events`; all end with the run.

    place: the consumer's offset after the last batch or event; `results(start=...)` resumes there, in any process.
    """

    def __init__(self, reader: Any, place: ConsumerOffset) -> None:
        self._reader, self.place = reader, place

    @property
    def schema(self) -> pa.Schema:
        try:
            return self._reader.schema
        except _ERRORS as error:
            raise _as_error(error) from None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """RunFailed when a recovery voids rows that have been returned; use `events`, or final rows."""
        for event in self.events():
            if event.kind == "void":
                raise RunFailed(
                    f"the run has recovered: results from generation {event.generation} on come again; "
                    f"iterate over events(), or take final=True"
                )
            if event.kind == "rows":
                yield event.batch

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch]:
        """The same in an event loop, which waits in a thread. When the task is cancelled or the loop left, the stream is
        cancelled."""
        from asyncio import CancelledError

        from swjoin.core.worker_thread import WorkerThread

        worker, batches = WorkerThread("swjoin-results", self.cancel), iter(self)
        try:
            while (batch := await worker.call(next, batches, None)) is not None:
                yield batch
        except (GeneratorExit, CancelledError):
            self.cancel()
            raise
        finally:
            worker.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """For DuckDB, polars and others; it ends with the run."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def events(self) -> Iterator[Event]:
        """Rows, and their later status."""
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            except _ERRORS as error:
                raise _as_error(error) from None
            metadata = json.loads(chunk.app_metadata.to_pybytes())
            self.place = ConsumerOffset.from_plain(metadata["place"])
            if metadata["kind"] != "began":
                yield Event(metadata["kind"], chunk.data, metadata["generation"], self.place)

    def cancel(self) -> None:
        self._reader.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()


class _Waiting:
    """Context of calls that may wait; reports the cause after some seconds. ask: returns a line, or "". report: receives it, in
    another thread."""

    def __init__(self, ask: Callable[[], str], report: Callable[[str], object]) -> None:
        self._ask, self._report = ask, report
        self._since_s: float | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._since_s = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="swjoin-waiting", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._since_s = None

    def _watch(self) -> None:
        reported_s = None
        while not self._over.wait(_POLL_S):
            since_s, now_s = self._since_s, time.monotonic()
            if (
                since_s is None
                or now_s - since_s < _NOTICE_S
                or (reported_s is not None and now_s - reported_s < _NOTICE_AGAIN_S)
            ):
                reported_s = None if since_s is None else reported_s
                continue
            try:
                text = self._ask()
            except SwjoinError:
                return  # the waiting call raises it
            if text and not self._over.is_set():
                reported_s = now_s
                self._report(text)

    def close(self) -> None:
        self._over.set()


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class Producer:
    """A connection that pushes one producer's rows, in time order up to the run's bound. All rows are accepted when its `with`
    block ends. row: number of the producer's next row; a named producer resumes after the rows received before."""

    def __init__(self, writer: Any, replies: Any, schema: pa.Schema, row: int, waiting: _Waiting, *, numbered: bool) -> None:
        self._writer, self._replies, self._schema, self._waiting = writer, replies, schema, waiting
        weakref.finalize(self, waiting.close)
        self.row = row
        self.accepted = row
        self._numbered = numbered

    def push(self, rows: Streamable) -> None:
        """Send the rows of a table, record batch, reader, data frame or anything else with `__arrow_c_stream__`, which has the
        stream's columns at least. Waits while the run cannot take them. UserError if they do not fit."""
        for whole in to_batches(rows, "push", self._schema.names)[1]:
            batch = fitted(whole, self._schema, _in_push)
            for at in range(0, max(1, batch.num_rows), BATCH_ROWS):
                piece = batch.slice(at, BATCH_ROWS)
                self._write(piece, {"row": self.row} if self._numbered else {})
                self.row += piece.num_rows

    def advance(self, to_us: int) -> None:
        """A promise: later rows are not before this time, in microseconds."""
        self._write(None, {"until_us": to_us})

    def end(self) -> None:
        """This producer has no more rows, now or later."""
        self._write(None, {"end": True})

    def _write(self, batch: pa.RecordBatch | None, metadata: dict[str, Any]) -> None:
        data = json.dumps(metadata).encode()
        try:
            with self._waiting:
                if batch is None:
                    self._writer.write_metadata(data)
                else:
                    self._writer.write_with_metadata(batch, data)
        except (*_ERRORS, StopIteration) as error:
            raise _why(self._writer, error) from None

    def close(self) -> None:
        """Wait until all rows are accepted."""
        try:
            with self._waiting:
                self._writer.done_writing()
                while (reply := self._replies.read()) is not None:
                    self.accepted = json.loads(reply.to_pybytes())["accepted"]
                self._writer.close()
        except _ERRORS as error:
            raise _as_error(error) from None
        finally:
            self._waiting.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self._waiting.close()
        with suppress(*_ERRORS):  # the first error counts
            self._writer.close()


def _why(writer: Any, error: BaseException) -> UserError | RunFailed:
    """The server's error; that of a failed write, or of a reply that does not come, has no reason."""
    try:
        writer.close()
    except _ERRORS as reason:
        return _as_error(reason)
    return _as_error(error)


class Client:
    """A connection to a live run. address: grpc://HOST:PORT, or grpc+tls:// with the root certificate's file. token, or the
    path of its file: the run's secret.

    RunFailed when the run refuses, or cannot be reached; UserError for a wrong token or address.
    """

    def __init__(
        self,
        address: str = "grpc://127.0.0.1:8815",
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        root_certificate: str | Path | None = None,
    ) -> None:
        if not isinstance(address, str):
            raise UserError(f"address: a {type(address).__name__} is no address; {_ADDRESSES}")
        if "://" not in address:
            address = f"grpc://{address}"
        scheme, _, target = address.partition("://")
        if scheme != "grpc+unix" and not _HOST_PORT.fullmatch(target):
            raise UserError(f"{address}: is no address of a run; {_ADDRESSES}")
        options: dict[str, Any] = {"generic_options": list(_BACKOFF)}
        if root_certificate is not None:
            options["tls_root_certs"] = _read(root_certificate, "root certificate")
        if token_file is not None:
            token = _read(token_file, "token file").decode(errors="replace").strip()
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise UserError("token: one line of printable ASCII characters is one")
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self.address = address
        self._options = flight.FlightCallOptions(headers=headers)
        self._headers = headers
        self._tls = options
        self._clients: dict[str, Any] = {}
        self._reached: dict[str, Any] = {}  # other endpoints of the run, by location
        try:
            self._client = flight.FlightClient(address, **options)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{address}: is no address of a run ({plain_text(error)})") from None

    def schema(self, name: str) -> pa.Schema:
        """Columns of a stream (left, right, or an input of a query), or of results (results/NAME of the query of this name),
        late or metrics."""
        try:
            return self._client.get_flight_info(flight.FlightDescriptor.for_path(name), self._options).schema
        except _ERRORS as error:
            raise _as_error(error) from None

    # ------------------------------------------------------------ in

    def producer(
        self,
        stream: str,
        name: str | None = None,
        schema: pa.Schema | None = None,
        *,
        on_wait: Callable[[str], object] | None = None,
    ) -> Producer:
        """Open a connection to push rows; from its return on the run's rows wait for this producer's. stream: left or right, or
        the name of a query's input. name: lets the producer resume later. schema: of the rows; None: the stream's own.

        on_wait: called, in another thread, with a line that names the idle producers for which a push has waited for some
        seconds; None: a RuntimeWarning.
        """
        client, own = self._found([stream] if name is None else [stream, name])
        schema = own if schema is None else schema
        request = {"stream": stream, "confirm": True, **({} if name is None else {"producer": name})}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        try:
            writer, replies = client.do_put(descriptor, schema, self._options)
            reply = replies.read()  # a call returns before the server has taken notice of it
        except _ERRORS as error:
            raise _as_error(error) from None
        if reply is None:
            raise _why(writer, RunFailed("the run has closed the connection"))
        row = 0 if name is None else json.loads(reply.to_pybytes())["received"]
        waiting = _Waiting(lambda: str(self._act("waits", {"stream": stream})["text"]), on_wait or _warn)
        return Producer(writer, replies, schema, row, waiting, numbered=name is not None)

    def push(
        self,
        stream: str,
        rows: Streamable | Iterable[Streamable],
        *,
        producer: str | None = None,
        end: bool = False,
        on_wait: Callable[[str], object] | None = None,
    ) -> int:
        """Push these rows and wait until they are accepted; returns the number of accepted rows: with a name, of all that were
        pushed under it. rows: what `Producer.push` takes, or several of these. end: the producer has no more rows. on_wait: see
        `producer`."""
        frames: Iterable[Any] = [rows]
        if isinstance(rows, Iterable) and not isinstance(rows, (Streamable, str, Mapping)):
            frames = rows
        with self.producer(stream, producer, on_wait=on_wait) as connection:
            for frame in frames:
                connection.push(frame)
            if end:
                connection.end()
        return connection.accepted

    def received(self, stream: str, producer: str) -> int:
        """Number of rows received from a producer, which is the number of its next row."""
        return int(self._act("received", {"stream": stream, "producer": producer})["received"])

    def end(self, stream: str) -> None:
        """End the stream; the run ends with all of its streams."""
        self._act("end", {"stream": stream})

    # ------------------------------------------------------------ out

    def results(self, start: Start = "now", *, final: bool = False, query: str | None = None) -> ResultIterator:
        """Result rows from the start of the run, from now on, or from an offset. final: only rows that no crash can void.
        query: of a run whose queries have names, whose rows."""
        return self._take("results" if query is None else f"results/{query}", start, final)

    def late(self) -> ResultIterator:
        """Rows that are not joined, from now on: stream, row_id, ts (microseconds), reason."""
        return self._take("late", "now", False)

    def metrics(self) -> ResultIterator:
        """A row per slave and distribution epoch, from now on."""
        return self._take("metrics", "now", False)

    def _take(self, what: str, start: Start, final: bool) -> ResultIterator:
        plain = start.to_plain() if isinstance(start, ConsumerOffset) else start
        ticket = flight.Ticket(json.dumps({"take": what, "from": plain, "final": final}).encode())
        try:
            reader = self._client_of(what).do_get(ticket, self._options)
        except _ERRORS as error:
            self._clients.pop(what, None)  # the collector may have died, and go on elsewhere
            self._reached.clear()
            raise _as_error(error) from None
        return ResultIterator(reader, start if isinstance(start, ConsumerOffset) else ConsumerOffset())

    def _client_of(self, what: str) -> Any:
        """A client of the rank that has the rows: the collector if it is reachable, which takes load off the master."""
        if what not in self._clients:
            self._clients[what], _ = self._found([what])
        return self._clients[what]

    def _found(self, path: list[str]) -> tuple[Any, pa.Schema]:
        """A client of the endpoint that has a stream, or reads a producer, and the stream's columns; of the run's own address
        where that endpoint cannot be reached."""
        descriptor = flight.FlightDescriptor.for_path(*path)
        try:
            info = self._client.get_flight_info(descriptor, self._options)
        except _ERRORS as error:
            raise _as_error(error) from None
        locations = [location.uri.decode() for endpoint in info.endpoints for location in endpoint.locations]
        if not locations or locations[0] == self.address:
            return self._client, info.schema
        if locations[0] not in self._reached:
            other = flight.FlightClient(locations[0], **self._tls)
            try:
                other.list_actions(flight.FlightCallOptions(timeout=_REACH_S, headers=self._headers))
            except _ERRORS:
                other.close()  # behind a tunnel, or its name is not in the certificate
                return self._client, info.schema
            self._reached[locations[0]] = other
        return self._reached[locations[0]], info.schema

    # ------------------------------------------------------------ actions

    def status(self) -> dict[str, Any]:
        """State of the run, as the dashboard shows it."""
        return self._act("status", {})

    def _act(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        options = flight.FlightCallOptions(timeout=30.0, headers=self._headers)
        try:
            (result,) = self._client.do_action(flight.Action(action, json.dumps(body).encode()), options)
        except _ERRORS as error:
            raise _as_error(error) from None
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def close(self) -> None:
        for client in {id(c): c for c in (*self._clients.values(), *self._reached.values(), self._client)}.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _in_push(row: int) -> str:
    return "push" if row < 0 else f"push, row {row} of the batch (counting from 0)"


def connect(
    address: str = "grpc://127.0.0.1:8815",
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    root_certificate: str | Path | None = None,
) -> Client:
    """A connection to a live run (`swjoin serve`); see `Client`."""
    return Client(address, token=token, token_file=token_file, root_certificate=root_certificate)


def _read(path: str | Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{what} {path}: cannot be read ({error.strerror or error})") from None

"""Rows of further sinks on their way to the log of results, which is at the first one.

What: `RemoteWriter`, the side of a further sink in a process of its own; `SinkRows`, that of the first one: a handler of its
endpoint; `new_secret`.
Why: consumers see one log of all results, bounded as that of one sink, whichever rank has joined and written them.
Stays out: the log (`connectors.flight.result_log`), what consumers read (`connectors.flight.result_stream`).

A sink keeps one connection. It says which files it has, then sends rows, and what becomes final, in this order; the first sink
answers when the log has taken an item, so that back-pressure of consumers reaches every sink. A connection needs a secret that
ranks tell each other at a start and at a recovery: clients cannot write results, nor can sinks of an earlier attempt.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from swjoin.config.run import ServeConfig
from swjoin.connectors.flight.ingest import parse_metadata, plain_text, whole
from swjoin.connectors.flight.result_log import Part, ResultLog, SinkWriter
from swjoin.connectors.flight.server import Endpoint, Metadata, client_headers, client_tls
from swjoin.connectors.schema import check_schema
from swjoin.core.errors import RunFailed, UserError

_LOG = logging.getLogger(__name__)
AHEAD_BYTES = 8 << 20  # that a sink has sent and the logs have not taken
_WAKE_S = 0.1
_PATIENCE_S = 30.0  # beyond that of the log with consumers; then the first sink is out of reach
_BROKEN_S = 60.0  # how long a sink goes on when the first one is out of reach: the run may be about to recover from its death
_FILES = 100  # of a message, which may have 1 MB; a path has 4 KB at most, that JSON may double
Item = tuple["pa.RecordBatch | None", Metadata]


def new_secret() -> str:
    """Of an attempt."""
    return secrets.token_hex(16)


class _Connection(threading.Thread):
    """One connection, until it ends or breaks. failure: why the first sink is out of reach."""

    def __init__(self, open_put: Any, nothing: pa.RecordBatch) -> None:
        super().__init__(daemon=True, name="results")
        self.failure: str | None = None
        self.failed_s = 0.0
        self.nbytes = 0  # of the items
        self.taken = 0  # items that the first sink has taken
        self.changed = threading.Condition()
        self._open_put, self._nothing = open_put, nothing
        self._items: deque[Item] = deque()
        self._ended = False

    def put(self, item: Item) -> None:
        with self.changed:
            self._items.append(item)
            self.nbytes += 0 if item[0] is None else item[0].nbytes
            self.changed.notify_all()

    @property
    def idle(self) -> bool:
        return not self._items

    def end(self) -> None:
        with self.changed:
            self._ended = True
            self.changed.notify_all()

    def fail(self, why: str) -> None:
        """The items are lost; the first failure counts."""
        with self.changed:
            if self.failure is None:
                self.failure, self.failed_s = why, time.monotonic()
            self._items.clear()
            self.nbytes, self._ended = 0, True
            self.changed.notify_all()

    def _next(self) -> Item | None:
        with self.changed:
            while not (self._items or self._ended):
                self.changed.wait()
            return self._items[0] if self._items else None

    def run(self) -> None:
        client = None
        try:
            client, writer, replies = self._open_put()
            while (item := self._next()) is not None:
                batch, metadata = item
                writer.write_with_metadata(self._nothing if batch is None else batch, json.dumps(metadata).encode())
                if replies.read() is None:
                    writer.close()  # raises what the first sink said
                    raise RunFailed("the connection was ended")
                with self.changed:
                    self.taken += 1
                    if self._items:  # unless it has failed in another thread
                        self._items.popleft()
                        self.nbytes -= 0 if batch is None else batch.nbytes
                    self.changed.notify_all()
            writer.close()
        except (pa.ArrowException, OSError, RunFailed) as error:
            self.fail(plain_text(error))
        finally:
            if client is not None:
                client.close()


def _name_of(stream: str) -> str:
    """Under which sinks send the rows of a stream."""
    return f"rows of sinks: {stream}"


class RemoteWriter:
    """number: of the sink. schema: of the rows. stream: that consumers take them from. ahead_bytes: that may be sent and not
    taken.

    Where the first sink is out of reach rows are dropped for a while, since it may have died, and a recovery produces them
    again; then, and at the end, RunFailed.
    """

    def __init__(
        self, number: int, schema: pa.Schema, config: ServeConfig, stream: str, ahead_bytes: int = AHEAD_BYTES
    ) -> None:
        self._number, self._schema, self._config, self._stream = number, schema, config, stream
        self._ahead_bytes = ahead_bytes
        self._nothing = pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)
        self._patience_s = config.patience_us / 1e6 + _PATIENCE_S
        self._connection: _Connection | None = None
        self._restored: tuple[int, Mapping[Part, Sequence[Path]]] = 0, {}

    def restore(self, generation: int, files: Mapping[Part, Sequence[Path]]) -> None:
        self._drop()
        self._restored = generation, files

    def connect(self, location: str, secret: str) -> None:
        """Begin anew at the first sink, with what this one has restored."""
        self._drop()
        request = {"stream": _name_of(self._stream), "sink": self._number, "secret": secret}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())

        def open_put() -> tuple[Any, Any, Any]:
            client = flight.FlightClient(location, **client_tls(self._config))
            options = flight.FlightCallOptions(headers=client_headers(self._config))
            return client, *client.do_put(descriptor, self._schema, options)

        self._connection = _Connection(open_put, self._nothing)
        generation, files = self._restored
        names = [[*part, str(path)] for part, paths in files.items() for path in paths]
        for start in range(0, len(names), _FILES):
            self._connection.put((None, {"files": names[start : start + _FILES]}))
        self._connection.put((None, {"restored": generation}))
        self._connection.start()

    def write(self, batch: pa.RecordBatch, generation: int) -> None:
        self._put((batch, {"generation": generation}))

    def publish(self, generation: int, files: Sequence[Path]) -> None:
        self._put((None, {"final": generation, "files": [str(path) for path in files]}))

    def _put(self, item: Item) -> None:
        connection = self._connection
        assert connection is not None, "rows before the first sink has been found"
        self._wait(connection, lambda: connection.nbytes < self._ahead_bytes)
        if connection.failure is None:
            connection.put(item)
        elif time.monotonic() - connection.failed_s > _BROKEN_S:
            raise self._out_of_reach(connection)

    def _wait(self, connection: _Connection, done: Callable[[], bool]) -> None:
        """Wait while the first sink takes items, in short pieces: a thread that gets the processor is seen to be alive."""
        taken, until_s = -1, 0.0
        with connection.changed:
            while not done() and connection.failure is None:
                if connection.taken != taken:
                    taken, until_s = connection.taken, time.monotonic() + self._patience_s
                elif time.monotonic() > until_s:
                    connection.fail(f"it has taken nothing for {self._patience_s:g} s")
                connection.changed.wait(_WAKE_S)

    def _out_of_reach(self, connection: _Connection) -> RunFailed:
        return RunFailed(f"sink {self._number}: its results cannot be passed on to consumers at sink 0: {connection.failure}")

    def flush(self) -> None:
        if self._connection is not None:
            connection = self._connection
            self._wait(connection, lambda: connection.idle)

    def close(self, error: BaseException | None = None) -> None:
        connection = self._connection
        if connection is None:
            return
        if error is None:
            self._put((None, {"ended": True}))
            self.flush()
        self._drop()
        if error is None and connection.failure is not None:
            raise self._out_of_reach(connection)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()


class SinkRows:
    """Takes rows of further sinks into the log of a stream. endpoint: of the first sink."""

    def __init__(self, endpoint: Endpoint, log: ResultLog, stream: str) -> None:
        self._log = log
        self._offered: tuple[str, int] | None = None  # secret, attempt
        name = _name_of(stream)
        endpoint.puts[name] = self._put
        endpoint.unlimited.add(name)  # that of a rank that is stopped stays open until the rank is killed

    def offer(self, secret: str) -> None:
        """Begin an attempt. secret: sinks show by it that they belong to it."""
        self._offered = secret, self._log.attempt

    def _put(self, request: Metadata, context: Any, reader: Any, writer: Any) -> None:
        offered = self._offered
        if offered is None or not hmac.compare_digest(str(request.get("secret")).encode(), offered[0].encode()):
            raise UserError("only sinks of the run send results")
        sink, attempt = whole(request, "sink"), offered[1]
        if not 0 < sink < self._log.sinks:
            raise UserError(f"malformed: there is no further sink {sink}")
        check_schema(reader.schema, self._log.schema)
        rows, files = SinkWriter(self._log, sink, attempt), dict[Part, list[Path]]()
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            metadata = parse_metadata(chunk.app_metadata)
            if "generation" in metadata:
                rows.write(chunk.data, metadata["generation"])
            elif "final" in metadata:
                rows.publish(metadata["final"], [Path(name) for name in metadata["files"]])
            elif "restored" in metadata:
                rows.join(metadata["restored"], files, attempt)
            elif "files" in metadata:
                for generation, of_sink, name in metadata["files"]:
                    files.setdefault((generation, of_sink), []).append(Path(name))
            else:
                rows.close()
            writer.write(pa.py_buffer(b"taken"))

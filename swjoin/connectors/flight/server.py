"""Arrow Flight endpoint: access control, limits and errors.

What: `Endpoint`, a Flight server that dispatches calls to handlers by name; tokens, TLS, limits; `FlightStream`, a stream of
batches; `queries_change`.
Why: a client that sends garbage, nothing, or too much gets one clear error, without effect on the run and other clients.
Stays out: the handlers (`connectors.flight.ingest`, `connectors.flight.result_stream`). docs/security.md has the trust model.
"""

from __future__ import annotations

import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from swjoin.config.run import ServeConfig
from swjoin.core.errors import SwjoinError, UserError, one_line

_SHORTEST_TOKEN = 16
_FILES = 8192  # open files, where the system allows it: every idle connection is one
PATIENCE_S = 2.0  # with calls that do not end
_POLL_S = 0.01
_STARTING_S = 120.0  # kernels may have to be compiled
_LONGEST_LINE = 500
LONGEST_REQUEST = 1 << 20  # bytes of a ticket, a command, an action, or what comes with a batch

Metadata = dict[str, Any]
FlightStream = tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, Metadata]]]
Get = Callable[[Metadata, Any], FlightStream]  # request, call context -> schema, batches
Put = Callable[[Metadata, Any, Any, Any], None]  # request, call context, reader, writer
Act = Callable[[Metadata], Metadata]


def read_token(path: str) -> bytes:
    """The clients' token. UserError when the file cannot be read, is readable by others, or holds too little."""
    try:
        token = Path(path).read_text().strip().encode()
        mode = Path(path).stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"serve.token_file {path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if mode & 0o077:
        raise UserError(f"serve.token_file {path}: others may read it; chmod 600 it")
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or any(byte <= 32 for byte in token):
        raise UserError(
            f"serve.token_file {path}: needs one line of {_SHORTEST_TOKEN} ASCII characters or more, without blanks"
        )
    return token


def read_pem(path: str, key: str) -> bytes:
    """A certificate or a key. UserError when it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"serve.{key} {path}: cannot be read ({error.strerror or error})") from None
    if b"-----BEGIN" not in data:
        raise UserError(f"serve.{key} {path}: is no PEM file")
    return data


def client_tls(config: ServeConfig) -> Metadata:
    """TLS options of a client of the run's own endpoints."""
    if config.certificate is None:
        return {}
    path = config.root_certificate or config.certificate
    return {"tls_root_certs": read_pem(path, "root_certificate")}


def client_headers(config: ServeConfig) -> list[tuple[bytes, bytes]]:
    """Headers of such a client, with the token."""
    return [] if config.token_file is None else [(b"authorization", b"Bearer " + read_token(config.token_file))]


def _check_pair(certificate: str, private_key: str) -> None:
    """UserError when the certificate is invalid or does not match the key; gRPC would report only that it has not started."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
        raise UserError(f"serve.certificate {certificate}: does not go with serve.private_key {private_key} ({why})") from None


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks the token of every call."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:
        found = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
        if not found:
            raise flight.FlightUnauthenticatedError("no token: this run wants 'authorization: Bearer TOKEN'")
        value = found[0] if isinstance(found[0], bytes) else str(found[0]).encode()
        scheme, _, token = value.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise flight.FlightUnauthenticatedError("wrong token")


@contextmanager
def as_flight_errors() -> Iterator[None]:
    """Turns every error into one clear line for the client."""
    try:
        yield
    except flight.FlightError:
        raise
    except SwjoinError as error:
        raise flight.FlightServerError(_printable_line(error)) from None
    except MemoryError as error:
        raise flight.FlightServerError(f"no memory for this: {_printable_line(error)}") from None
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise flight.FlightServerError(f"malformed: {_printable_line(error)}") from None
    except Exception as error:  # Flight would send the traceback
        arrow = isinstance(error, OSError) and error.errno is None  # an unreadable Arrow message
        what = "malformed" if arrow else f"internal error, {type(error).__name__}"
        raise flight.FlightServerError(f"{what}: {_printable_line(error)}") from None


def _printable_line(error: BaseException) -> str:
    """A printable message that fits gRPC: a header of more than 8 KB breaks the call."""
    text = " ".join(str(error)[: 4 * _LONGEST_LINE].split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def check_length(nbytes: int) -> None:
    """UserError when a request is too long."""
    if nbytes > LONGEST_REQUEST:
        raise UserError(f"a request of {nbytes} bytes; {LONGEST_REQUEST} are the most")


def parse_request(data: bytes, word_key: str) -> Metadata:
    """A JSON object, or a bare word as short form of {word_key: word}. UserError otherwise."""
    check_length(len(data))
    try:
        text = data.decode()
        plain = json.loads(text) if text.lstrip().startswith("{") else {word_key: text.strip()}
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UserError(f"malformed request: neither a word nor a JSON object ({error})") from None
    if not isinstance(plain, dict) or not isinstance(plain.get(word_key), str):
        raise UserError(f"malformed request: {word_key} is missing")
    return plain


def _bind_error(config: ServeConfig, error: BaseException) -> UserError:
    return UserError(f"serve.listen {config.listen}: cannot listen there ({one_line(error, 200)})")


def queries_change() -> flight.FlightUnavailableError:
    """The run goes on in a moment with other queries, and clients come again."""
    return flight.FlightUnavailableError("queries are added or dropped; try again, and go on from the last place")


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server. UserError when it cannot listen, or its certificate or token cannot be used.

    port: replaces the configured one, for a rank besides the master. gets, puts, acts: handlers by name, set before `open`.
    place: location for a producer, of whom it takes the request; None: here. find_more: may add handlers of other names.
    unlimited: names of puts that are not counted as clients.
    """

    def __init__(self, config: ServeConfig, port: int | None = None) -> None:
        host, configured = config.address
        wanted = configured if port is None else port
        if port is not None and not config.loopback:
            host = "0.0.0.0"  # another host does not have the configured address
        tls, self._host = config.certificate is not None, host
        self._check_free(config, host, wanted)
        certificates = None
        if config.certificate is not None and config.private_key is not None:
            certificates = [(read_pem(config.certificate, "certificate"), read_pem(config.private_key, "private_key"))]
            _check_pair(config.certificate, config.private_key)
        middleware = {} if config.token_file is None else {"token": _TokenCheck(read_token(config.token_file))}
        more_files()
        shown = f"[{host}]" if ":" in host else host
        try:
            super().__init__(
                f"{'grpc+tls' if tls else 'grpc'}://{shown}:{wanted}", tls_certificates=certificates, middleware=middleware
            )
        except (pa.ArrowException, OSError) as error:
            raise _bind_error(config, error) from None
        reached = socket.getfqdn() if host in ("0.0.0.0", "::") else shown
        self.location = f"{'grpc+tls' if tls else 'grpc'}://{reached}:{self.port}"
        self.gets: dict[str, Get] = {}
        self.puts: dict[str, Put] = {}
        self.acts: dict[str, Act] = {}
        self.unlimited: set[str] = set()
        self.schemas: dict[str, Callable[[], tuple[pa.Schema, str]]] = {}  # by name: schema, location
        self.place: Callable[[Metadata], str | None] = lambda request: None
        self.find_more: Callable[[], None] = lambda: None
        self._calls = threading.BoundedSemaphore(config.clients)
        self._most = config.clients
        self._open = threading.Event()

    @staticmethod
    def _check_free(config: ServeConfig, host: str, port: int) -> None:
        """UserError when the port is taken; gRPC would share it with a server that allows that."""
        try:
            if port != 0:
                _probe(host, port)
        except OSError as error:
            raise _bind_error(config, error) from None

    def open(self) -> None:
        """Accept clients, and those that wait; the handlers are set."""
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def _wait_open(self) -> None:
        if not self._open.wait(_STARTING_S):
            raise flight.FlightUnavailableError("the run has not started yet; try again later")

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._calls.acquire(blocking=False):
            raise flight.FlightUnavailableError(f"{self._most} clients push or take already (serve.clients); try again later")
        try:
            yield
        finally:
            self._calls.release()

    # ------------------------------------------------------------ Flight

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._wait_open()
        with as_flight_errors():
            request = _put_request(descriptor)
            with nullcontext() if request["stream"] in self.unlimited else self._slot():
                handler = self.puts.get(request["stream"])
                if handler is None:
                    raise UserError(f"nothing can be pushed into {request['stream'][:100]!r}; {_known(self.puts)}")
                handler(request, context, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._wait_open()
        with as_flight_errors():
            request = parse_request(ticket.ticket, "take")
            if request["take"] not in self.gets:
                self.find_more()
            handler = self.gets.get(request["take"])
            if handler is None:
                raise UserError(f"there is no {request['take'][:100]!r} to take; {_known(self.gets)}")
            schema, batches = handler(request, context)
            return flight.GeneratorStream(schema, self._encoded(batches))

    def _encoded(self, batches: Iterator[tuple[pa.RecordBatch, Metadata]]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        with as_flight_errors(), self._slot():
            for batch, metadata in batches:
                yield batch, json.dumps(metadata).encode()

    def do_action(self, context: Any, action: Any) -> Any:
        self._wait_open()
        with as_flight_errors():
            handler = self.acts.get(action.type)
            if handler is None:
                raise UserError(f"there is no action {str(action.type)[:100]!r}; {_known(self.acts)}")
            check_length(0 if action.body is None else action.body.size)
            body = b"{}" if action.body is None or action.body.size == 0 else action.body.to_pybytes()
            try:
                request = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise UserError(f"malformed request: no JSON ({error})") from None
            if not isinstance(request, dict):
                raise UserError("malformed request: no JSON object")
            return [flight.Result(json.dumps(handler(request)).encode())]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        raise flight.FlightServerError("nothing is exchanged here: push rows (DoPut), take results (DoGet)")

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(name, (handler.__doc__ or "").split("\n")[0]) for name, handler in sorted(self.acts.items())]

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        self._wait_open()
        with as_flight_errors():
            self.find_more()
        for name in sorted(self.schemas):
            yield self._info({"stream": name})

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        self._wait_open()
        with as_flight_errors():
            request = _put_request(descriptor)
            name = request["stream"]
            if name not in self.schemas:
                self.find_more()
            if name not in self.schemas:
                raise UserError(f"there is no {name[:100]!r}; {_known(self.schemas)}")
            return self._info(request)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def _info(self, request: Metadata) -> Any:
        name = request["stream"]
        schema, of_rows = self.schemas[name]()
        location = of_rows if name in self.gets else self.place(request) if name in self.puts else None
        endpoints = [] if location is None else [flight.FlightEndpoint(flight.Ticket(name.encode()), [location])]
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_path(name), endpoints, -1, -1)

    # ------------------------------------------------------------ the end

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """End all calls. False when a client keeps one open for so long; its port can be used by another then, too."""
        thread = threading.Thread(target=self._shut_down, daemon=True, name="endpoint-close")
        thread.start()
        thread.join(patience_s)
        if not thread.is_alive():
            return True
        _closing[:] = [pair for pair in _closing if pair[1].is_alive()]
        _closing.append((self, thread))
        for handlers in (self.gets, self.puts, self.acts):  # and what these have of the run
            handlers.clear()
        until_s = time.monotonic() + PATIENCE_S
        while not _is_free(self._host, self.port) and time.monotonic() < until_s:
            thread.join(_POLL_S)
        return False

    def _shut_down(self) -> None:
        with suppress(Exception):
            self.shutdown()


def _probe(host: str, port: int) -> None:
    """OSError when another socket listens there."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _is_free(host: str, port: int) -> bool:
    try:
        _probe(host, port)
    except OSError:
        return False
    return True


_closing: list[tuple[Endpoint, threading.Thread]] = []  # the interpreter would wait for their clients at exit


def any_stuck() -> bool:
    """Whether an endpoint of this process has a client that keeps a call open."""
    return any(thread.is_alive() for _, thread in _closing)


def _known(names: Any) -> str:
    return f"known: {', '.join(sorted(names))}" if names else "nothing is offered here"


def _put_request(descriptor: Any) -> Metadata:
    """Request of a descriptor: a path (stream, producer), or a command with the same as JSON."""
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return parse_request(descriptor.command or b"", "stream")
    path = [part.decode(errors="replace") for part in descriptor.path or []]
    if not 1 <= len(path) <= 2:
        raise UserError("malformed request: the descriptor's path names a stream, and perhaps a producer")
    return {"stream": path[0], **({"producer": path[1]} if len(path) == 2 else {})}


def more_files() -> None:
    """Raise the limit of open connections, as far as the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

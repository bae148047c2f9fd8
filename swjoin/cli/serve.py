"""The commands of live runs: `serve`, `push`, `tail`.

What: `run_serve`, `run_push`, `run_tail`.
Why: a file, a pipe or a terminal is enough to feed a run and to follow its results.
Stays out: parsing (`cli.main`), what goes over the wire (`connectors.flight.client`).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from swjoin.cli.common_args import duration_of
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.resources import find_resource
from swjoin.core.storage import locked, sync_file, write_whole, writing
from swjoin.core.units import check_time_zone

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.files.inputs import File
    from swjoin.connectors.flight.client import Client, Event
    from swjoin.connectors.flight.result_log import ConsumerOffset

_LOG = logging.getLogger(__name__)
_AGAIN_S = 0.5
_REFUSED = "from: "  # how a run begins its complaint about a place


def run_serve(args: argparse.Namespace) -> int:
    from swjoin.cli.run import start_run, typed_command
    from swjoin.frontends.configured import job_to_run

    job = None
    if args.resume is None and args.config is not None:
        listen = [] if args.listen is None else [f"serve.listen={json.dumps(args.listen)}"]
        job = job_to_run(find_resource(args.config), [*args.overrides, *listen], typed_command(), served=True)
    return start_run(args, job)


# ---------------------------------------------------------------- clients


def _client(args: argparse.Namespace) -> Client:
    from swjoin.connectors.flight.client import connect

    return connect(args.address, token_file=args.token_file, root_certificate=args.root_certificate)


def _patiently(args: argparse.Namespace, attempt: Callable[[], int]) -> int:
    """Try again while the run does not answer, until this long after its last answer."""
    from swjoin.connectors.flight.client import ServerGoneError

    patience_s = duration_of(args.retry, "--retry") / 1e6
    if patience_s < 0:
        raise UserError(f"--retry {args.retry}: must not be negative (0s: not at all)")
    gone_s: float | None = None
    while True:
        began_s = time.monotonic()
        try:
            return attempt()
        except ServerGoneError as error:
            if time.monotonic() - began_s > _AGAIN_S or gone_s is None:
                gone_s = time.monotonic()
            if time.monotonic() - gone_s >= patience_s:
                raise
            _LOG.info("%s: %s; trying again", args.address, error)
            time.sleep(_AGAIN_S)


def run_push(args: argparse.Namespace) -> int:
    if args.batch < 1:
        raise UserError("--batch: must be at least 1")
    from swjoin.connectors.files.inputs import find_files, split_paths

    if args.file != "-" and (text := find_files(split_paths(args.file)).unread) is not None:
        _say(text)
    return _patiently(args, lambda: _push(args))


def _push(args: argparse.Namespace) -> int:
    with _client(args) as client:
        wanted = client.schema(args.stream)
        name = args.producer or (None if args.file == "-" else Path(args.file).name)
        row = 0 if name is None else client.received(args.stream, name)
        if row:
            print(f"{name}: {row:,} rows are there already")
        began_s, sent = time.monotonic(), 0
        with client.producer(args.stream, name, wanted, on_wait=_say) as producer:
            for batch in _batches(args, wanted, row):
                producer.push(batch)
                sent += batch.num_rows
                if args.rate is not None:
                    time.sleep(max(0.0, began_s + sent / args.rate - time.monotonic()))
            if not args.keep_open:
                producer.end()
        print(f"{args.stream}: {sent:,} rows pushed and accepted in {time.monotonic() - began_s:.1f} s")
    return 0


def _say(text: str) -> None:
    _LOG.info("%s", text)


def _batches(args: argparse.Namespace, wanted: pa.Schema, skip: int) -> Iterator[pa.RecordBatch]:
    """Rows of a file, a directory or standard input, with the columns and types that the stream wants."""
    for batch in _read(args.file, wanted, args.assume_timezone):
        start = min(skip, batch.num_rows)
        skip -= start
        for at in range(start, batch.num_rows, args.batch):
            yield batch.slice(at, args.batch)


def _read(name: str, wanted: pa.Schema, zone: str | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from swjoin.connectors.files.formats import read_batches, read_schema
    from swjoin.connectors.files.inputs import file_format, list_files, refusing, split_paths
    from swjoin.connectors.fitting import fitted

    if name == "-":
        try:
            with pa.ipc.open_stream(sys.stdin.buffer) as reader:
                _check_zone(zone, reader.schema, wanted, "standard input")
                first = 0
                for batch in reader:
                    yield fitted(batch, wanted, _row_names(None, first), zone)
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())[:200]
            raise UserError(f"standard input: cannot be read as an Arrow IPC stream ({text})") from None
        return
    for path in list_files(split_paths(name)):
        schema = read_schema(path)
        for column in wanted.names:
            if schema.names.count(column) != 1:
                raise UserError(f"{path}: column {column} is missing; the stream wants {', '.join(wanted.names)}")
        _check_zone(zone, schema, wanted, str(path))
        if file_format(path) == "CSV":
            schema = _as_wanted(schema, wanted)
        with refusing(path):
            first = 0
            for batch in read_batches(path, schema, wanted.names, 65_536, 0):
                yield fitted(batch, wanted, _row_names(path, first), zone)
                first += batch.num_rows


def _as_wanted(schema: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The types to read a CSV file's columns with: the stream's where the file's text may mean several, as 007 and 0.1 do.
    Times and whole numbers are recognized first, so that errors say what they are."""
    import pyarrow as pa
    import pyarrow.types as t

    for field in wanted:
        index = schema.names.index(field.name)
        own, kind = schema.field(index).type, field.type
        if t.is_string(kind) or t.is_large_string(kind):
            schema = schema.set(index, field.with_type(pa.string()))
        elif t.is_string(own) or t.is_boolean(kind) or t.is_floating(kind) or t.is_decimal(kind):
            schema = schema.set(index, field)
    return schema


def _row_names(path: File | None, first: int) -> Callable[[int], str]:
    """Where a row of a batch is in its file, or on standard input (None); the file itself for rows below 0."""
    from swjoin.connectors.files.formats import describe_row

    if path is None:
        return lambda row: "standard input" if row < 0 else f"standard input, row {first + row} (counting from 0)"
    return lambda row: str(path) if row < 0 else describe_row(path, first + row)


def _check_zone(zone: str | None, schema: pa.Schema, wanted: pa.Schema, where: str) -> None:
    """UserError where --assume-timezone is given and is for no column, or is the name of no zone."""
    from swjoin.connectors.times import zoned

    if zone is None:
        return
    check_time_zone(zone)
    both = [(schema.field(f.name).type, f.type) for f in wanted if schema.names.count(f.name) == 1]
    if not any(zoned(mine) is False and zoned(theirs) for mine, theirs in both):
        raise UserError(f"{where}: --assume-timezone has no effect: no column without a zone is pushed into one with a zone")


def run_tail(args: argparse.Namespace) -> int:
    out = None if args.out is None else Path(args.out)
    if out is not None and (args.what != "results" or args.format is not None):
        raise UserError("-o: Parquet files of final results; leave --format and other things than results out")
    if out is not None and (args.start is not None or args.count is not None):
        option = "--count" if args.start is None else "--from"
        raise UserError(
            f"{option}: not with -o, which keeps all rows from the start or from where the folder ends; leave it out"
        )
    given = {"--from": args.start is not None, "--final": args.final, "--query": args.query is not None}
    if args.what != "results" and any(given.values()):
        option = next(name for name, wanted in given.items() if wanted)
        raise UserError(f"{option}: is for results; {args.what} come as they are; leave it out")
    if args.count is not None and args.count < 1:
        raise UserError(f"--count {args.count}: must be at least 1")
    with nullcontext() if out is None else closing(_Generations(out)) as generations:
        return _patiently(args, _Tail(args, generations).follow)


class _Tail:
    """Follows a run; resumes where it was after a loss of the connection."""

    def __init__(self, args: argparse.Namespace, out: _Generations | None) -> None:
        from swjoin.connectors.flight.client import Start

        self._args = args
        self._out = out
        self._rows = 0
        self._start: Start = (args.start or "now") if out is None else out.place or "start"

    def follow(self) -> int:
        """Until the run ends, or all that was asked for has come."""
        try:
            return self._follow()
        except RunFailed as error:
            if self._out is None or not str(error).startswith(_REFUSED):
                raise
            raise UserError(f"-o {self._out.folder}: {str(error).removeprefix(_REFUSED)}; name an empty folder") from None

    def _follow(self) -> int:
        args = self._args
        with _client(args) as client:
            if args.what == "results":
                taking = client.results(self._start, final=args.final or self._out is not None, query=args.query)
            else:
                taking = client.late() if args.what == "late" else client.metrics()
            with taking:
                for event in taking.events():
                    if args.what == "results":
                        self._start = event.place
                    if self._take(event):
                        return 0
        return 0

    def _take(self, event: Event) -> bool:
        """Whether that was all that was asked for."""
        if self._out is not None:
            self._out.take(event)
        elif event.kind == "void":
            _LOG.info("the run has recovered: rows from generation %d on come again", event.generation)
        elif event.kind == "rows":
            limit = self._args.count
            batch = event.batch if limit is None else event.batch.slice(0, limit - self._rows)
            print_rows(batch, self._args.format or "json", sys.stdout, header=self._rows == 0)
            self._rows += batch.num_rows
            return limit is not None and self._rows >= limit
        return False


def print_rows(batch: pa.RecordBatch, form: str, out: TextIO, *, header: bool) -> None:
    """Rows as lines of JSON, or as CSV."""
    if form == "csv":
        import pyarrow as pa
        import pyarrow.csv as csv

        sink = pa.BufferOutputStream()
        csv.write_csv(batch, sink, csv.WriteOptions(include_header=header))
        out.write(sink.getvalue().to_pybytes().decode())
    else:
        out.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())
    out.flush()


class _Generations:
    """A folder with a Parquet file for every generation that is complete; a killed tail resumes with the first that is
    not. One process at a time; `close` lets the next one in. place: after the newest file; None: in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offset_file = folder / ".place.json"
        self._writer: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(folder / ".lock", f"-o {folder}: another swjoin tail writes there; name another folder")
        except OSError as error:
            raise UserError(f"-o {folder}: cannot be made or written ({error.strerror or error})") from None
        try:
            self.place = self._read_offset()
        except UserError:
            self._lock.close()
            raise

    def _read_offset(self) -> ConsumerOffset | None:
        """Where the folder's tail stopped. UserError when no tail can resume in this folder."""
        from swjoin.connectors.flight.result_log import ConsumerOffset

        try:
            place = ConsumerOffset.from_plain(json.loads(self._offset_file.read_text()))
        except FileNotFoundError:
            if any(self.folder.glob("part-*.parquet")):
                raise UserError(f"-o {self.folder}: holds files of something else; name an empty folder") from None
            return None
        except OSError as error:
            raise UserError(f"{self._offset_file}: cannot be read ({error.strerror or error}); name an empty folder") from None
        except (ValueError, RecursionError, UserError):
            raise UserError(f"{self._offset_file}: damaged; no tail can resume there; name an empty folder") from None
        if place.started and not place.run:
            raise UserError(
                f"{self._offset_file}: does not say of which run (an older version of swjoin wrote it); name an empty folder"
            )
        return place

    def take(self, event: Event) -> None:
        import pyarrow.parquet as pq

        path = self._path(event.generation)
        temporary = path.with_name(f".{path.name}.tmp")
        with writing(path):
            if event.kind == "rows":
                if self._writer is None:
                    self._writer = pq.ParquetWriter(temporary, event.batch.schema)
                self._writer.write_batch(event.batch)
                return
            if event.kind == "void":  # a checkpoint was removed
                self._void(event.generation)
            elif self._writer is not None:
                self._writer.close()
                self._writer = None
                sync_file(temporary)
                temporary.replace(path)
        write_whole(self._offset_file, json.dumps(event.place.to_plain()).encode())

    def _path(self, generation: int) -> Path:
        return self.folder / f"part-{generation:06d}.parquet"

    def _void(self, generation: int) -> None:
        """Rows from this generation on come again."""
        self._drop_writer()
        for path in self.folder.glob("part-*.parquet"):
            if int(path.stem.split("-")[1]) >= generation:
                path.unlink()

    def _drop_writer(self) -> None:
        """Forget the file of a generation that is not whole."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for path in self.folder.glob(".part-*.parquet.tmp"):
            path.unlink()

    def close(self) -> None:
        with suppress(OSError):
            self._drop_writer()
        self._lock.close()

"""File sink: Parquet and CSV, complete or absent.

What: `FileSink`: rows go to a temporary name beside the target; `close` syncs and renames, `abort` renames to `.incomplete`.
Why: a reader must never take an incomplete result for a complete one.
Stays out: columns of a row (`connectors.output_columns`), the proof in a file (`connectors.files.proofs`).

Parquet is written without dictionaries, as result rows are wide and values rarely repeat, and speed matters. Columns whose
first rows LZ4 makes smaller are written with it; others, such as payload of digests or ciphers, as they are. Least and greatest
values of opaque bytes are left out: swjoin does not use them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.connectors.files.proofs import Claim, sampled_hash
from swjoin.connectors.output_columns import ResultColumns
from swjoin.core.arrow_views import without_surplus
from swjoin.core.batch import Pairs, ResultRows
from swjoin.core.errors import NotWritten, RunFailed, UserError
from swjoin.core.hashing import digest_results
from swjoin.core.join_semantics import format_digest
from swjoin.core.kept_columns import sorted_rows
from swjoin.core.pair_columns import as_type
from swjoin.core.storage import not_written, refuse_special, resolved, special, sync_file, sync_folder, writing

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = 131_072
GROUP_BYTES = 256 << 20  # of rows that wait for a full row group
FILE_BYTES = 256 << 20
_SAMPLE_ROWS = 4096
_FEWEST_APART = 16_384  # rows that another thread writes
_SMALLER = 0.9  # of the bytes as they are, at most, for LZ4 to pay
_of_thread = threading.local()
_PART_NAME = re.compile(r"\.?part-(?:s(?P<sink>\d+)-)?\d")


class _OpenFile:
    """One open file. ids: names of its id columns."""

    def __init__(self, kind: str, target: Path, schema: pa.Schema, ids: list[str], temporary: Path) -> None:
        """ArrowException for a schema that the format does not have."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.target = target
        self.temporary = temporary
        compression = "gzip" if target.name.endswith(".gz") else None
        self._parquet, self._schema = kind == "parquet", schema
        self._ids = ids
        if self._parquet:
            pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
        self._stream: Any = pa.output_stream(str(self.temporary), compression=compression)
        self._opened: Any = None  # once the first rows are known
        self._writing: Future[None] | None = None
        self._finished = self._failed = False  # failed: the footer is missing, so Parquet is unreadable
        self.bytes = self._rows = self._digest = 0

    def _writer(self, first: pa.Table | None = None) -> Any:
        """first: rows that are written first; None: there are none, or there have been some."""
        import pyarrow as pa
        import pyarrow.csv as csv
        import pyarrow.parquet as pq

        if self._opened is None and self._parquet:
            rows = pa.Table.from_batches([], self._schema) if first is None else first
            options = _options(rows.slice(0, _SAMPLE_ROWS))
            self._opened = pq.ParquetWriter(self._stream, self._schema, use_dictionary=False, **options)
        elif self._opened is None:
            self._opened = csv.CSVWriter(self._stream, self._schema)
        return self._opened

    def write(self, table: pa.Table, digest: int) -> None:
        """Many rows are written by another thread, while more are made; what fails there is raised by a later call for this
        file."""
        self._settle()
        if table.num_rows < _FEWEST_APART:
            self._write(table)
        else:
            self._writing = _submitted(self._write, table)
        self.bytes += table.nbytes
        self._rows += table.num_rows
        self._digest += digest

    def _write(self, table: pa.Table) -> None:
        if self._parquet:
            self._writer(table).write_table(table, row_group_size=GROUP_ROWS)
        else:
            self._writer(table).write_table(table)

    def _settle(self) -> None:
        """Wait until all rows are written. A signal may end the waiting, and the rows are waited for again later."""
        if self._writing is not None:
            try:
                self._writing.result()
            finally:
                if self._writing.done():
                    self._writing = None

    def finish(self, run_id: str | None, whole: dict[str, Any] | None = None) -> None:
        """Complete the file. run_id: id of the run. whole: count, digest and ledger of the whole result, if known."""
        if self._finished:
            return
        try:
            self._settle()
            if self._parquet:
                writer = self._writer()
                written = None if self._ids else self._written()
                claim = Claim(self._rows, format_digest(self._digest), self._ids, written, whole, run_id)
                writer.add_key_value_metadata(claim.to_metadata())
        except Exception:
            self._finished = self._failed = True
            self._stream.close()
            raise
        self._end()

    def _written(self) -> tuple[int, int]:
        """Number of bytes before the footer, and their sampled hash."""
        self._stream.flush()
        size = self._stream.tell()
        return size, sampled_hash(self.temporary, size)

    def _end(self) -> None:
        if not self._finished:
            self._finished = self._failed = True
            try:
                self._settle()
                self._writer().close()
            finally:
                if self._writing is not None:
                    wait([self._writing])  # it writes to the stream
                self._stream.close()
            self._failed = False

    def publish(self) -> None:
        """Make the finished file durable and give it its name."""
        kind = special(self.target)
        if kind is not None:  # since the start
            raise NotWritten(f"{self.target}: cannot be replaced: is {kind}")
        sync_file(self.temporary)
        self.temporary.replace(self.target)
        sync_folder(self.target.parent)

    def abort(self) -> None:
        try:
            self._end()
            if not self._failed:
                self.temporary.replace(self.target.with_name(self.target.name + ".incomplete"))
        except Exception:  # also of Arrow: it has been raised before, by what failed first
            self._failed = True
        if self._failed:
            self.temporary.unlink(missing_ok=True)

    def drop(self) -> None:
        """Delete the file."""
        with contextlib.suppress(Exception):
            self._end()
        self.temporary.unlink(missing_ok=True)


def _submitted(write: Callable[[pa.Table], None], table: pa.Table) -> Future[None]:
    """Call `write` in another thread, once the calling thread's last such call, for whatever file, has ended. A row group takes
    so long that starting a thread for it costs nothing, and none is left behind."""
    last: Future[None] | None = getattr(_of_thread, "last", None)
    if last is not None:
        wait([last])
    found: Future[None] = Future()
    threading.Thread(target=_run, args=(found, write, table), name="files").start()
    _of_thread.last = found  # only now: of a thread that could not be started nobody would wait to the end
    return found


def _run(found: Future[None], write: Callable[[pa.Table], None], table: pa.Table) -> None:
    try:
        write(table)
    except BaseException as error:  # for the thread that waits
        found.set_exception(error)
    else:
        found.set_result(None)


def _options(sample: pa.Table) -> dict[str, Any]:
    """How columns are compressed, and which have statistics, as `ParquetWriter` takes it. sample: of the rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = pa.BufferOutputStream()
    pq.write_table(sample, written, compression="lz4", use_dictionary=False)
    found = pq.read_metadata(pa.BufferReader(written.getvalue()))
    compression, statistics = {}, []
    for index in range(found.num_columns):
        column = found.schema.column(index)
        sizes = found.row_group(0).column(index) if found.num_row_groups else None
        pays = sizes is None or sizes.total_compressed_size <= _SMALLER * sizes.total_uncompressed_size
        compression[column.path] = "lz4" if pays else "none"
        if "BYTE_ARRAY" not in column.physical_type or column.logical_type.type != "NONE":
            statistics.append(column.path)
    return {"compression": compression, "write_statistics": statistics}


class _Part:
    """The files of one generation, the last one open, and rows that wait for a full row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = self.bytes = self.digest = 0
        self.files: list[_OpenFile] = []


def refuse_results(target: Path, *, staged: bool, resumes: bool) -> None:
    """UserError when this directory cannot be the directory of results."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target}: cannot be made (File exists)")
    left_behind = set(target.glob(".part-*.tmp")) if staged else set()  # of a run that ended before its first checkpoint
    if not resumes and any(path not in left_behind for path in target.iterdir()):
        raise UserError(f"{target}: is not empty; choose another folder or remove it")
    if not os.access(target, os.W_OK):
        raise UserError(f"{target}: cannot be written (Permission denied)")


def _storable(schema: pa.Schema, *, text: bool) -> pa.Schema:
    """Types that Arrow writes: it writes no dictionaries of views, as polars has them, and as text (CSV) no views at all."""
    import pyarrow as pa

    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for i, field in enumerate(schema):
        kind = field.type
        if pa.types.is_dictionary(kind) and kind.value_type in plain:
            schema = schema.set(i, field.with_type(pa.dictionary(kind.index_type, plain[kind.value_type], kind.ordered)))
        elif text and kind in plain:
            schema = schema.set(i, field.with_type(plain[kind]))
    return schema


def only_hidden(folder: Path, start: str, end: str, writer: str) -> Path:
    """The hidden file of results whose name starts and ends so: this writer's, or that of the one before it. A writer marks its
    files, so that a process that the others have excluded from the run cannot touch those of its successor. RunFailed without
    the file, and when it is not clear which one it is."""
    found = list(folder.glob(f"{start}{end}"))
    mine = [path for path in found if writer in path.name]
    if len(mine or found) != 1:
        problem = "are in several files" if found else "are gone"
        raise RunFailed(f"{folder / start.removeprefix('.')}: results that a checkpoint holds {problem}")
    return (mine or found)[0]


def sink_of_file(name: str) -> int:
    """The number of the sink that has written a file of results, published or not."""
    found = _PART_NAME.match(name)
    return int(found["sink"] or 0) if found is not None else 0


class FileSink:
    """Writes one file, or a directory of files rolled at about 256 MB. UserError at once when the target cannot be written.

    staged: files are named part-GENERATION-NUMBER, and `publish` gives them their names. run_id: id of the run for the proofs.
    share: number of this sink, and how many write into the directory; None: a single file. Of several, each names its files
    part-sSINK-...
    """

    def __init__(
        self,
        kind: str,
        target: Path,
        plan: ResultColumns,
        *,
        staged: bool = False,
        resumes: bool = False,
        run_id: str | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        self._share = share or (0, 1)
        self._kind = kind
        self._target = target
        self._plan = plan
        self._schema = _storable(plan.schema, text=kind == "csv")
        self._ids = [name for name, _, _ in plan.id_columns if name.endswith("_id")]
        self._directory = share is not None
        self._staged = staged
        self._resumes = resumes
        self._run_id = run_id
        self._writer = secrets.token_hex(4)
        self._parts: dict[int, _Part] = {}
        self._created: list[Path] = []  # new folders, the innermost first
        self._prepare()
        try:
            if not staged:
                self._open_next(self._parts.setdefault(0, _Part()), 0)
        except OSError as error:
            raise UserError(str(not_written(target, error))) from None

    def _prepare(self) -> None:
        if self._directory:
            if not self._share[0]:  # the first sink is opened first
                refuse_results(self._target, staged=self._staged, resumes=self._resumes)
            self._created = [path for path in (self._target, *self._target.parents) if not path.exists()]
            try:
                self._target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{self._target}: cannot be made ({error.strerror})") from None
            if self._staged and not self._resumes:
                for path in self._mine(".part-*.tmp"):
                    path.unlink()
            return
        refuse_special(self._target, "-o")

    def _mine(self, pattern: str) -> list[Path]:
        """Files of this sink in the directory, and those that it takes over where a run goes on with fewer sinks."""
        mine, sinks = self._share
        return [path for path in self._target.glob(pattern) if sink_of_file(path.name) % sinks == mine]

    def _open_next(self, part: _Part, generation: int) -> None:
        if self._directory:
            number = f"{generation:06d}-{len(part.files):05d}" if self._staged else f"{len(part.files):05d}"
            mine, sinks = self._share
            sink = f"s{mine}-" if sinks > 1 else ""
            target = self._target / f"part-{sink}{number}.{'parquet' if self._kind == 'parquet' else 'csv'}"
        else:
            target = resolved(self._target)
        mark = f".{self._writer}" if self._staged else f".{os.getpid()}"
        part.files.append(_OpenFile(self._kind, target, self._schema, self._ids, target.with_name(f".{target.name}{mark}.tmp")))

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None:
        self.write_rows(self._plan.decode(pairs), generation, digest_results(pairs))

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None:
        """Write rows of decoded pairs. digest: of their ids."""
        part, rows = self._parts.setdefault(generation, _Part()), without_surplus(rows)  # a few of many queries' rows
        part.batches.append(rows)
        part.rows += rows.num_rows
        part.digest += digest
        part.bytes += rows.nbytes
        if not self._plan.order and (part.rows >= GROUP_ROWS or part.bytes >= GROUP_BYTES):  # sorted rows wait for the last one
            self._flush(part, generation)

    def _flush(self, part: _Part, generation: int) -> None:
        import pyarrow as pa

        if not part.batches:
            return
        table = pa.Table.from_batches(part.batches)
        for i, field in enumerate(self._schema):
            if table.schema.field(i).type != field.type:
                chunks = [as_type(chunk, field.type) for chunk in table.column(i).chunks]
                table = table.set_column(i, field, pa.chunked_array(chunks, field.type))
        if self._plan.order:
            table = sorted_rows(table, self._plan.order)
        digest, part.batches, part.rows, part.bytes, part.digest = part.digest, [], 0, 0, 0
        try:
            if not part.files or (self._directory and part.files[-1].bytes >= FILE_BYTES):
                if part.files:
                    part.files[-1].finish(self._run_id)
                self._open_next(part, generation)
            part.files[-1].write(table, digest)
        except OSError as error:
            raise not_written(part.files[-1].target if part.files else self._target, error) from None

    # ------------------------------------------------------------ with checkpoints

    def seal(self, generation: int) -> list[Path]:
        part = self._parts.pop(generation, _Part())
        try:
            self._flush(part, generation)
            self._finish(part)
        except BaseException:
            for file in part.files:
                file.drop()
            raise
        return [file.temporary for file in part.files]

    def _finish(self, part: _Part, whole: dict[str, Any] | None = None) -> None:
        for file in part.files:
            with writing(file.target):
                file.finish(self._run_id, whole)

    def sync(self, files: Sequence[Path]) -> None:
        for path in files:
            sync_file(path)
        if files:
            sync_folder(self._target)

    def name_of(self, file: Path) -> str:
        return file.name.removeprefix(".").removesuffix(f".{self._writer}.tmp")

    def publish(self, names: Sequence[str], generation: int) -> None:
        for name in names:
            shown = self._target / name
            if not shown.exists():
                only_hidden(self._target, f".{name}", ".*tmp", self._writer).replace(shown)
        if names:
            sync_folder(self._target)

    def restore(self, names: Sequence[str], generation: int) -> None:
        for part in self._parts.values():
            for file in part.files:
                file.drop()
        self._parts.clear()
        self.publish(names, generation)
        for path in self._mine("part-*"):
            if path.name not in names:
                path.unlink()
        for path in self._mine(".part-*.tmp"):
            path.unlink()

    # ------------------------------------------------------------ the end

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        if self._staged and not self._parts and not self._mine("part-*"):
            self._open_next(self._parts.setdefault(0, _Part()), 0)  # no results: an empty file with the columns
        for generation, part in sorted(self._parts.items()):
            self._flush(part, generation)
            self._finish(part, whole)

    def close(self, whole: dict[str, Any] | None = None) -> None:
        self.finish(whole)
        for _, part in sorted(self._parts.items()):
            for file in part.files:
                with writing(file.target):
                    file.publish()
        for path in self._mine(".part-*.tmp") if self._staged else ():
            path.unlink()  # of a rank that had been excluded from the run

    def abort(self, *, started: bool = True) -> None:
        """Keep the rows under `.incomplete` names; with checkpoints, keep the files of the last one."""
        for generation, part in self._parts.items():
            if self._staged:
                continue  # a resumed run produces these rows again
            try:
                self._flush(part, generation)
            except RunFailed:
                part.batches = []
            for file in part.files:
                if started:
                    file.abort()
                else:
                    file.drop()
        if not started:
            with contextlib.suppress(OSError):  # not empty
                for folder in self._created:
                    folder.rmdir()

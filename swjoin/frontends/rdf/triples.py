"""Files of triples as batches of codes.

What: `read_triples`, for streams and static graphs; `TripleBatch`; `MalformedTriples`, the policy for what is no triple, its
count and the first few.
Why: a query reads all forms of RDF by one call, with any size of file and a bounded memory.
Stays out: the grammar of lines and terms (`frontends.rdf.ntriples`), the windows of a stream.

By extension: `.parquet` and `.csv` (RFC 4180) with columns ts, s, p and o, in any order and beside others; `.txt`, lines
`ts s p o .`; of static graphs also `.nt`, `.nq`, `.ttl` and `.trig`; each also with `.gz` behind it. Times are integers,
microseconds; static graphs need none.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from swjoin.connectors.files.inputs import open_stream, split_paths
from swjoin.connectors.files.rdf_format import TERMS, is_anonymous
from swjoin.connectors.files.rdf_lines import whole_lines
from swjoin.core.arrow_views import booleans_of, integers_of
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError, how_to_install, one_line, setting
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.ntriples import (
    NO_TIMES,
    REASONS,
    TIMES,
    TIMES_OR_NOT,
    LineParser,
    Malformed,
    TermReader,
    scope_prefix,
    times_of_texts,
)

if TYPE_CHECKING:
    import pyarrow as pa

MalformedPolicy: TypeAlias = Literal["error", "drop", "side"]
_STREAM_FORMS = (".parquet", ".csv", ".txt")
_STATIC_FORMS = (*_STREAM_FORMS, ".nt", ".nq", ".ttl", ".trig")
_CSV_BYTES = 4 << 20  # also the longest row
_TURTLE_ROWS = 1 << 14
_SAMPLE_ROWS = 1 << 12
_FIRST = 5  # malformed triples that are kept for messages
_NO_TIME = 3  # index of REASONS


@dataclass(frozen=True)
class TripleBatch:
    """Triples. ts: int64 (n,), microseconds, None of a static graph. s, p, o: codes, int64 (n,)."""

    ts: I64 | None
    s: I64
    p: I64
    o: I64

    def __len__(self) -> int:
        return len(self.s)

    def slices(self, rows: int) -> Iterator[TripleBatch]:
        """This batch, in parts of at most so many rows."""
        if len(self) <= rows:
            yield from [self] * (len(self) > 0)
            return
        for at in range(0, len(self), rows):
            part = slice(at, at + rows)
            ts = None if self.ts is None else self.ts[part]
            yield TripleBatch(ts, self.s[part], self.p[part], self.o[part])


@dataclass(frozen=True)
class MalformedTriple:
    """What is no triple. place: such as `line 7`. text: as it stands in the file; empty in Turtle and TriG."""

    file: str
    place: str
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.reason}"


@dataclass
class MalformedTriples:
    """Malformed triples: count of all, the first few, and by the policy `side` those that `take_side` has not taken yet."""

    policy: MalformedPolicy = "drop"
    count: int = 0
    first: list[MalformedTriple] = field(default_factory=list)
    side: list[MalformedTriple] = field(default_factory=list)

    def add(self, found: Iterable[MalformedTriple]) -> None:
        """Count these. UserError for the first by the policy `error`."""
        for triple in found:
            if self.policy == "error":
                remedy = ("mend it, or leave such triples out by ", setting("malformed", None, "drop", "side"))
                raise UserError(triple.reason, subject=f"{triple.file}, {triple.place}", remedy=remedy)
            self.count += 1
            if len(self.first) < _FIRST:
                self.first.append(triple)
            if self.policy == "side":
                self.side.append(triple)

    def take_side(self) -> list[MalformedTriple]:
        """Those of the side output that have come since the last call."""
        taken, self.side = self.side, []
        return taken


def read_triples(
    path: str | Sequence[str],
    dictionary: TermDictionary,
    *,
    times: bool,
    malformed: MalformedTriples,
    scope: int = 0,
    batch_rows: int = 1 << 16,
) -> Iterator[TripleBatch]:
    """The triples of a file, or of several, one after the other.

    path: one, or several with commas between them. times: a stream; otherwise a static graph. malformed: collects what is no
    triple. scope: a number; a label of a blank node means the same node in all files of a scope. batch_rows: most rows of a
    batch. UserError for files that cannot be read, lack a column or have another extension.
    """
    given = split_paths(path) if isinstance(path, str) else path
    paths = [given] if isinstance(given, str) else list(given)
    forms = [_form(one, times) for one in paths]
    numbers: dict[str, str] = {}
    for one, form in zip(paths, forms, strict=True):
        with _refusing(one):
            if form in (".txt", ".nt", ".nq"):
                batches = _of_lines(one, form, dictionary, times, malformed, scope)
            elif form in (".ttl", ".trig"):
                batches = _of_turtle(one, form, dictionary, malformed, scope, numbers)
            else:
                source = _parquet_columns(one, times) if form == ".parquet" else _csv_columns(one, times)
                batches = _of_columns(one, source, TermReader(dictionary, scope=scope), times, malformed)
            for batch in batches:
                yield from batch.slices(batch_rows)


def _form(path: str, times: bool) -> str:
    """The extension that says how a file is read. UserError for others, and for a missing file."""
    name = os.path.basename(path).lower().removesuffix(".gz")
    form = os.path.splitext(name)[1]
    known = _STREAM_FORMS if times else _STATIC_FORMS
    if form not in known:
        if form in _STATIC_FORMS:
            raise UserError(f"a stream needs times, which {form} does not have", subject=path, remedy=f"use {_listed(known)}")
        raise UserError("unknown extension", subject=path, remedy=f"known are {_listed(known)}, each also with .gz")
    if not os.path.isfile(path):
        raise UserError("no such file", subject=path)
    return form


def _listed(forms: Sequence[str]) -> str:
    return f"{', '.join(forms[:-1])} and {forms[-1]}"


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Turns errors of libraries into UserError with the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise UserError(f"cannot be read: {one_line(error) or type(error).__name__}", subject=path) from None


# ---------------------------------------------------------------- lines


def _of_lines(
    path: str, form: str, dictionary: TermDictionary, times: bool, malformed: MalformedTriples, scope: int
) -> Iterator[TripleBatch]:
    mode = NO_TIMES if form != ".txt" else TIMES if times else TIMES_OR_NOT
    parser = LineParser(dictionary, times=mode, graphs=form == ".nq", scope=scope)
    line = 1
    with open_stream(Path(path)) as file:
        for data in whole_lines(file):
            if line == 1 and bytes(data[: len(codecs.BOM_UTF8)]) == codecs.BOM_UTF8:
                data = data[len(codecs.BOM_UTF8) :]
            parsed = parser.parse(data, line)
            line += parsed.line_count
            malformed.add(_placed(path, parsed.malformed))
            yield TripleBatch(parsed.ts, parsed.s, parsed.p, parsed.o)


def _placed(path: str, found: list[Malformed]) -> list[MalformedTriple]:
    return [MalformedTriple(path, f"line {one.line}", one.reason, one.text) for one in found]


# ---------------------------------------------------------------- columns


@dataclass(frozen=True)
class _Rows:
    """Rows of a file with columns. columns: by name. numbers: of the rows in the file, int64 (n,), from 0. place: where rows
    stand, by number, which ascends from call to call. ragged: rows without these columns, as number, reason and text."""

    columns: dict[str, pa.Array]
    numbers: I64
    place: Callable[[int], str]
    ragged: list[tuple[int, str, str]] = field(default_factory=list)


def _of_columns(
    path: str, source: Iterator[_Rows], reader: TermReader, times: bool, malformed: MalformedTriples
) -> Iterator[TripleBatch]:
    for rows in source:
        codes = []
        for role, name in enumerate(TERMS):
            try:
                codes.append(reader.read(rows.columns[name], role))
            except TypeError as error:
                raise UserError(f"column {name}: {error}", subject=path) from None
        ts, good = _times(rows.columns["ts"], path) if times else (None, np.ones(len(codes[0]), np.bool_))
        reasons = np.where(good, 0, -_NO_TIME)
        for column in codes:
            reasons = np.where((reasons == 0) & (column < 0), column, reasons)
        kept = reasons == 0
        if kept.all() and not rows.ragged:
            yield TripleBatch(ts, *codes)
            continue
        bad = ((int(rows.numbers[i]), REASONS[-int(reasons[i])], _csv_text(rows, int(i), times)) for i in np.flatnonzero(~kept))
        found = merge(bad, rows.ragged)
        malformed.add(MalformedTriple(path, rows.place(number), reason, text) for number, reason, text in found)
        yield TripleBatch(None if ts is None else ts[kept], *(column[kept] for column in codes))


def _csv_text(rows: _Rows, row: int, times: bool) -> str:
    """A row as a line of CSV."""
    values = [rows.columns[name][row].as_py() for name in (("ts",) if times else ()) + TERMS]
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([v.decode(errors="replace") if isinstance(v, bytes) else v for v in values])
    return out.getvalue()


def _times(column: pa.Array, path: str) -> tuple[I64, Bool]:
    """Microseconds, and which rows have them. UserError for a column that has no numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz), safe=False).view(pa.int64())
    elif pa.types.is_floating(kind):
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**63))
        column = pc.if_else(whole, column, None).cast(pa.int64(), safe=False)
    elif not pa.types.is_integer(kind):
        try:
            return times_of_texts(column)
        except TypeError:
            raise UserError(f"column ts is {kind}", subject=path, remedy="give integers, microseconds") from None
    good = booleans_of(column.is_valid())
    ts = integers_of(column)
    if ts.dtype == np.uint64:
        good = good & (ts < np.uint64(1 << 63))
    return ts.astype(np.int64, copy=False), good


def _refuse_missing(path: str, names: Sequence[str], times: bool) -> list[str]:
    """The columns to read. UserError when one is missing, or there twice."""
    wanted = [*(("ts",) if times else ()), *TERMS]
    for name in wanted:
        if names.count(name) != 1:
            problem = f"has no column {name}" if name not in names else f"has several columns {name}"
            raise UserError(problem, subject=path, remedy=f"its columns are {', '.join(names)[:300] or 'none'}")
    return wanted


def _parquet_columns(path: str, times: bool) -> Iterator[_Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source: Any = path
    if path.lower().endswith(".gz"):
        with open_stream(Path(path)) as packed:
            source = pa.BufferReader(packed.read())
    with pq.ParquetFile(source) as file:
        wanted = _refuse_missing(path, file.schema_arrow.names, times)
        repeated = _repeated(file)
    with pq.ParquetFile(source, read_dictionary=repeated) as file:
        at = 0
        for batch in file.iter_batches(columns=wanted):
            numbers = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
            yield _Rows({name: batch.column(name) for name in wanted}, numbers, "row {} (counting from 0)".format)


def _repeated(file: Any) -> list[str]:
    """Columns that are read as dictionaries: of the others most terms differ, as the first rows show."""
    first = next(file.iter_batches(_SAMPLE_ROWS, columns=list(TERMS)), None)
    if first is None:
        return list(TERMS)
    return [name for name in TERMS if 2 * len(first.column(name).unique()) <= max(2, len(first))]


def _csv_columns(path: str, times: bool) -> Iterator[_Rows]:
    """Rows of a CSV file, all columns as bytes; rows with too few or too many fields are ragged."""
    import pyarrow as pa

    ragged: list[tuple[int, str, str]] = []
    place = _CsvLines(path)

    def refuse(row: Any) -> str:
        reason = f"it has {row.actual_columns} fields, the header {row.expected_columns}"
        ragged.append((int(row.number) - 2, reason, row.text))  # the header is row 1
        return "skip"

    wanted = _refuse_missing(path, _csv_header(path), times)
    at = passed = 0
    try:
        reader = _open_csv(path, wanted, refuse)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):  # its header has no end
            return
        raise
    with reader:
        while (batch := next(reader, None)) is not None:
            numbers = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
            before = np.array([number for number, _, _ in ragged], np.int64) - np.arange(len(ragged))  # good rows before each
            numbers += np.searchsorted(before, numbers, side="right")
            reached = int(np.searchsorted(before, at, side="left"))
            columns = {name: batch.column(name) for name in wanted}
            yield _Rows(columns, numbers, place, ragged[passed:reached])
            passed = reached
        yield _Rows({name: pa.array([], pa.large_binary()) for name in wanted}, np.arange(0), place, ragged[passed:])


def _csv_header(path: str) -> list[str]:
    with open_stream(Path(path)) as file, io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
        return next(csv.reader(text), [])


def _open_csv(path: str, wanted: list[str], refuse: Any) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options = {
        "read_options": pacsv.ReadOptions(block_size=_CSV_BYTES, use_threads=False),
        "parse_options": pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
        "convert_options": pacsv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.large_binary()), include_columns=wanted, strings_can_be_null=False
        ),
    }
    return pacsv.open_csv(open_stream(Path(path)), **options)


class _CsvLines:
    """The line on which a row of a CSV file starts: fields may hold line breaks, and empty lines are no rows. One pass through
    the file serves the first few rows that are asked for, in ascending order; later ones are named by their number."""

    def __init__(self, path: str) -> None:
        self._path, self._asked = path, 0
        self._lines: Iterator[tuple[int, int]] | None = None
        self._last = (-1, 0)

    def __call__(self, row: int) -> str:
        self._asked += 1
        if self._asked <= _FIRST:
            self._lines = self._lines or self._scan()
            try:
                while self._last[0] < row:
                    self._last = next(self._lines)
            except (StopIteration, csv.Error, OSError, ValueError):
                self._asked = _FIRST
            if self._last[0] == row:
                return f"line {self._last[1]}"
        return f"row {row} (counting from 0)"

    def _scan(self) -> Iterator[tuple[int, int]]:
        row, line = -1, 1  # the header is no row
        with open_stream(Path(self._path)) as file, io.TextIOWrapper(file, errors="replace", newline="") as text:
            reader = csv.reader(text)
            for fields in reader:
                if fields and row >= 0:
                    yield row, line
                row, line = row + bool(fields), reader.line_num + 1


# ---------------------------------------------------------------- Turtle and TriG


def _of_turtle(
    path: str, form: str, dictionary: TermDictionary, malformed: MalformedTriples, scope: int, numbers: dict[str, str]
) -> Iterator[TripleBatch]:
    """numbers: for labels that the parser made, others that are the same in every run."""
    import pyarrow as pa

    prefix = scope_prefix(scope)

    def text(term: Any) -> str:
        spelled = str(term)
        if not spelled.startswith("_:"):
            return spelled
        label = spelled[2:]
        if not is_anonymous(label):
            return prefix + label
        if label not in numbers:
            numbers[label] = f"_:b{scope}n{dictionary.new_blank_number()}"
        return numbers[label]

    columns: tuple[list[str], ...] = ([], [], [])

    def batch() -> TripleBatch:
        codes = [dictionary.encode(pa.array(column, pa.large_string())) for column in columns]
        for column in columns:
            column.clear()
        return TripleBatch(None, *codes)

    for quad in _quads(path, form, malformed):
        for column, term in zip(columns, (quad.subject, quad.predicate, quad.object), strict=True):
            column.append(text(term))
        if len(columns[0]) >= _TURTLE_ROWS:
            yield batch()
    yield batch()


def _quads(path: str, form: str, malformed: MalformedTriples) -> Iterator[Any]:
    """What pyoxigraph reads; after a statement that it cannot, it goes on with the next."""
    try:
        import pyoxigraph
    except ModuleNotFoundError:
        problem = f"{form} needs pyoxigraph, which is missing"
        raise UserError(problem, subject=path, remedy=how_to_install("rdf")) from None
    kind = pyoxigraph.RdfFormat.TURTLE if form == ".ttl" else pyoxigraph.RdfFormat.TRIG
    with open_stream(Path(path)) as file:
        quads = pyoxigraph.parse(file, kind)
        while True:
            try:
                quad = next(quads)
            except StopIteration:
                return
            except SyntaxError as error:
                malformed.add([MalformedTriple(path, f"line {error.lineno}", one_line(error.msg), "")])
                continue
            newer = isinstance(quad.object, pyoxigraph.Triple) or getattr(quad.object, "direction", None) is not None
            if newer:
                reason = "terms of RDF 1.2 are not read"
                malformed.add([MalformedTriple(path, "a triple", f"{reason}: {one_line(quad.object)}", "")])
            else:
                yield quad

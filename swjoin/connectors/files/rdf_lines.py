"""Lines of timed triples as Arrow batches: a row per line `ts s p o .`, terms as text in N-Triples syntax.

What: `lines_schema`, `lines_batches`; `whole_lines`, a file in parts that end with lines.
Why: `swjoin rdf` reads streams of this form, and a run reads what it reads.
Stays out: whether terms are terms (`frontends.rdf`), graphs without times (`connectors.files.rdf_format`), the other formats
(`connectors.files.formats`).

Lines are as in N-Triples, with a time in front: they end with a line feed, a carriage return or both; empty lines and comments
are no rows. What is no triple behind a time is a row with the rest of the line as subject, and nothing else, so that whoever
reads terms counts it. A line without a time has no place in a stream, and is an error.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from swjoin.connectors.files.inputs import File, open_stream
from swjoin.connectors.files.rdf_format import TERMS
from swjoin.core.arrow_views import scalar_of, texts_of
from swjoin.core.errors import UserError, one_line

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES = 2 << 20  # of lines that are cut at once
_SHOWN = 60  # characters of a line in a message
_NODE = r'<[^>]*>|_:[^ \t<>"]*[^ \t<>".]'
_LITERAL = r'"(?:[^"\\]|\\.)*"(?:@[A-Za-z0-9-]+|\^\^<[^>]*>)?'
_TRIPLE = rf"(?P<s>{_NODE})[ \t]*(?P<p><[^>]*>)[ \t]*(?P<o>{_NODE}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?"
_LINE = rf"^[ \t]*(?P<ts>[+-]?[0-9]+)(?:[ \t]*{_TRIPLE}|[ \t]+(?P<rest>.*)|(?P<joined>[<_].*))$"
_NO_ROW = r"^[ \t]*(#.*)?$"


def lines_schema() -> pa.Schema:
    """The columns of every file. ts: microseconds."""
    import pyarrow as pa

    return pa.schema([("ts", pa.int64()), *((name, pa.string()) for name in TERMS)])


def lines_batches(path: File, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of a file with these columns. UserError, with the line, where no time of 64 bits begins it."""
    first = 1
    with open_stream(path) as file:
        for data in whole_lines(file):
            text = bytes(data)
            if first == 1:
                text = text.removeprefix(codecs.BOM_UTF8)
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            batch = _batch(text.removesuffix(b"\n"), f"{path}, line ", first)
            if batch.num_rows:
                yield batch.select(columns)
            first += text.count(b"\n")


def _batch(text: bytes, place: str, first: int) -> pa.RecordBatch:
    """Lines with all columns. place: what stands in front of a line's number in messages. first: number of the first line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = np.array([0, len(text)], np.int32)
    whole = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])
    lines = pc.split_pattern(whole, "\n").flatten()
    found = pc.extract_regex(lines, _LINE)
    if found.null_count and pc.any(pc.and_(found.is_null(), pc.invert(pc.match_substring_regex(lines, _NO_ROW)))).as_py():
        _refuse(lines, place, first)
    rows = found.drop_null()
    try:
        times = pc.utf8_ltrim(rows.field("ts").cast(pa.string()), "+").cast(pa.int64())
    except pa.ArrowInvalid:
        _refuse(lines, place, first)
    is_triple = pc.binary_length(rows.field("s")).cast(pa.bool_())
    missing, no_bytes = scalar_of(None, pa.binary()), texts_of([""]).cast(pa.binary())[0]
    otherwise = pc.binary_join_element_wise(rows.field("rest"), rows.field("joined"), no_bytes), missing, missing
    terms = [pc.if_else(is_triple, rows.field(name), other) for name, other in zip(TERMS, otherwise, strict=True)]
    return pa.RecordBatch.from_arrays([times, *_texts(terms)], schema=lines_schema())


def _refuse(lines: pa.Array, place: str, first: int) -> NoReturn:
    """UserError with the first line that has no time, of some."""
    line, number = next((text, number) for number, text in enumerate(lines.to_pylist(), first) if not _is_read(text))
    problem = (
        f"{place}{number}: {one_line(line.decode(errors='replace'), _SHOWN)!r} does not begin with a time of 64 bits and a term"
    )
    raise UserError(
        problem, remedy="write `ts s p o .` with ts in microseconds, or name a file of another form by its extension"
    )


def _is_read(line: bytes) -> bool:
    """Whether a line begins with a time, or is no row."""
    found = re.match(_LINE.encode(), line)
    return re.match(_NO_ROW.encode(), line) is not None if found is None else -(1 << 63) <= int(found["ts"]) < 1 << 63


def _texts(terms: list[pa.Array]) -> list[pa.Array]:
    """Columns of bytes as text. A row with bytes that are no UTF-8 is no triple: all it has is a subject that is no term."""
    import pyarrow as pa

    try:
        return [column.cast(pa.string()) for column in terms]
    except pa.ArrowInvalid:
        columns: list[list[str | None]] = [[], [], []]
        for row in zip(*(column.to_pylist() for column in terms), strict=True):
            texts = [None if term is None else term.decode(errors="replace") for term in row]
            if any(term is not None and text != term.decode(errors="ignore") for term, text in zip(row, texts, strict=True)):
                texts = [" ".join(text for text in texts if text is not None), None, None]
            for column, text in zip(columns, texts, strict=True):
                column.append(text)
        return [texts_of(column) for column in columns]


def whole_lines(file: Any, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[memoryview]:
    """The bytes of a file, cut behind ends of lines; each view is valid until the next."""
    held = bytearray(2 * chunk_bytes)
    filled = 0
    while count := file.readinto(memoryview(held)[filled:]):
        filled += count
        end = held.rfind(b"\n", 0, filled) + 1 or held.rfind(b"\r", 0, filled - 1) + 1  # a line feed may follow the last byte
        if end:
            yield memoryview(held)[:end]
            held[: filled - end] = held[end:filled]
            filled -= end
        if 2 * filled > len(held):
            held = held + bytes(len(held))
    if filled:
        yield memoryview(held)[:filled]

"""Lines of timed triples as tables: their triples are those that `swjoin rdf` finds, also of mutated lines."""

from __future__ import annotations

import bz2
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import swjoin
from swjoin.connectors.files import rdf_lines
from swjoin.connectors.files.formats import read_batches, read_schema
from swjoin.connectors.files.rdf_lines import lines_batches, whole_lines
from swjoin.core.errors import UserError
from swjoin.frontends.rdf.batch_functions import triples
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.ntriples import TIMES, LineParser

_PIECES = [
    b"+", b"-",
    b"5", b"-7", b"+9", b"12.5", b"9223372036854775807", b" ", b"\t", b"\n", b"\r", b"\r\n", b".", b"#", b"# a comment",
    b"<http://e/a>", b"<http://e/b>", b"<a>", b"<http://e/a", b"_:b1", b"_:b.2", b"_:", b"_:b.", b'"x"',
    b'"q\\"\\\\"', b'"\\u00e9"',
    b'"x"@EN-us', b'"x"@', b'"1"^^<http://www.w3.org/2001/XMLSchema#integer>', b'"x"^^<b', b'"', b"\xff", "é".encode(), b"\x00",
]  # fmt: skip
_LINE = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda ts: str(ts).encode()),
    *(st.sampled_from(terms) for terms in ([b"<http://e/a>", b"_:s"], [b"<http://e/p>"], [b'"x \\" y"@en', b"_:o", b"<http://e/o>"])),
).map(lambda parts: b" ".join(parts) + b" .\n")  # fmt: skip
_FILES = st.lists(st.one_of(_LINE, st.lists(st.sampled_from(_PIECES), max_size=12).map(b"".join)), max_size=6).map(b"".join)


class _File(io.BytesIO):
    name = "a.txt"

    def __str__(self) -> str:
        return self.name


def _read(monkeypatch: pytest.MonkeyPatch, data: bytes, chunk: int) -> list[tuple[Any, ...]]:
    """Times and terms of the rows that are triples, in the spelling of RDF streams."""
    monkeypatch.setattr(rdf_lines, "open_stream", lambda file: file)
    monkeypatch.setattr(rdf_lines, "whole_lines", lambda file: whole_lines(file, chunk))
    found: list[tuple[Any, ...]] = []
    for batch in lines_batches(_File(data), ["ts", "s", "p", "o"]):  # type: ignore[arg-type]
        read = triples(batch.rename_columns(["ts", "s:7:drop", "p", "o"]))
        found += [tuple(row.values()) for row in read.to_pylist() if row["s"] is not None]
    return found


@given(data=_FILES, chunk=st.sampled_from([1, 7, 1 << 20]))
@example(data=b"\xef\xbb\xbf1 <http://e/a> <http://e/p> _:o.", chunk=1)
@example(data=b'1<http://e/a><http://e/p>"\xff\xfe".\r2 <http://e/a> <http://e/p> "\xc3\xa9" .# c', chunk=7)
@example(data=b"1 <http://e/a> <http://e/p> <http://e/o>\n2\t\n\n3 . \n4_:a <http://e/p> <http://e/o> . <http://e/g>", chunk=7)
def test_triples_are_those_of_the_line_parser(data: bytes, chunk: int) -> None:
    """A line without a time ends reading; the other malformed lines are rows without a triple, and no row is missing."""
    dictionary = TermDictionary()
    parsed = LineParser(dictionary, times=TIMES, scope=7).parse(memoryview(data.removeprefix(b"\xef\xbb\xbf")), 1)
    untimed = [one.line for one in parsed.malformed if "the time" in one.reason]
    with pytest.MonkeyPatch.context() as patch:
        if untimed:
            with pytest.raises(UserError, match=f"a.txt, line {untimed[0]}: .* does not begin with a time"):
                _read(patch, data, chunk)
            return
        found = _read(patch, data, chunk)
        rows = sum(batch.num_rows for batch in lines_batches(_File(data), ["ts"]))  # type: ignore[arg-type]
    wanted = zip(
        parsed.ts.tolist(), *(dictionary.decode(codes).to_pylist() for codes in (parsed.s, parsed.p, parsed.o)), strict=True
    )
    assert found == list(wanted)
    assert rows == len(found) + len(parsed.malformed)


def test_columns_and_compression(tmp_path: Path) -> None:
    data = b'7 <http://e/a> <http://e/p> "x" .\n-2 _:b <http://e/p> _:c .\n'
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(data))
    for name in ("a.txt", "b.txt.bz2"):
        schema = read_schema(tmp_path / name)
        assert [str(field.type) for field in schema] == ["int64", "string", "string", "string"]
        (batch,) = read_batches(tmp_path / name, schema, ["o", "ts"], 10)
        assert batch.to_pydict() == {"o": ['"x"', "_:c"], "ts": [7, -2]}
    (tmp_path / "empty.txt").write_bytes(b"")
    assert list(read_batches(tmp_path / "empty.txt", schema, ["ts"], 10)) == []


def test_notes_beside_data_are_not_read(tmp_path: Path) -> None:
    """In a directory or a pattern; a directory of such files alone is read."""
    table = pa.table({"k": [1], "t": [1]})
    for folder in ("left", "right"):
        (tmp_path / folder).mkdir()
        pq.write_table(table, tmp_path / folder / "a.parquet")
        (tmp_path / folder / "README.txt").write_text("rows of 2013")
    for left in (tmp_path / "left", tmp_path / "left" / "*"):
        with pytest.warns(UserWarning, match=r"1 file is not read: README.txt"):
            done = swjoin.join(left, tmp_path / "right", on="k", within="1s", left_time="t", right_time="t", time_unit="s")
        assert done.num_rows == 1
    (tmp_path / "left" / "a.parquet").unlink()
    with pytest.raises(UserError, match=re.escape("README.txt, line 1: 'rows of 2013' does not begin with a time")):
        swjoin.join(tmp_path / "left", tmp_path / "right", on="k", within="1s", left_time="t", right_time="t", time_unit="s")

"""Files of triples: all forms give the same triples; what is malformed is counted with its place; blank nodes have scopes."""

from __future__ import annotations

import csv
import gzip
import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.connectors.files.rdf_lines import whole_lines
from swjoin.core.errors import UserError
from swjoin.frontends.rdf.dictionary import XSD, TermDictionary
from swjoin.frontends.rdf.triples import MalformedTriples, TripleBatch, read_triples
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

Row = tuple[Any, str, str, str]
OBJECTS = [
    "<http://example.org/o>",
    "_:node",
    '"plain"',
    '"quoted \\"text\\", with a comma"@en',
    f'"01"^^<{XSD}integer>',
    '"two\\nlines"',
    '"é\U0001f600"',
]
ROWS: list[Row] = [
    (t, (f"<http://example.org/s{t % 5}>") if t % 3 else "_:s", "<urn:p>", OBJECTS[t % len(OBJECTS)]) for t in range(-3, 40)
]
TURTLE = "".join(f"{s} {p} {o} .\n" for _, s, p, o in ROWS)


def write(path: Path, rows: list[Row], **extra: Any) -> Path:
    """Rows in the form that the extension says, packed if it says so."""
    form = path.name.removesuffix(".gz").rsplit(".", 1)[1]
    out = io.BytesIO()
    if form == "parquet":
        columns = {name: [row[i] for row in rows] for i, name in enumerate(("ts", "s", "p", "o"))}
        columns = {"o": columns["o"], "more": [1] * len(rows), "ts": columns["ts"], "s": columns["s"], "p": columns["p"]}
        pq.write_table(pa.table(columns), out, row_group_size=10, **extra)
    elif form == "csv":
        text = io.TextIOWrapper(out, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(["more", "o", "p", "s", "ts"])
        writer.writerows([["a\nb", o, p, s, ts] for ts, s, p, o in rows])
        text.flush()
    else:
        timed = form == "txt" and rows[0][0] is not None
        graph = " <urn:graph>" if form == "nq" else ""
        lines = [f"{ts} {s} {p} {o}{graph} ." if timed else f"{s} {p} {o}{graph} ." for ts, s, p, o in rows]
        text_of = "\r\n".join(["# a comment", "", *lines])  # the last line has no end
        out.write((f"<urn:graph> {{ {text_of}\n}}" if form == "trig" else text_of).encode())
    data = out.getvalue()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def read(
    path: str | Path,
    dictionary: TermDictionary | None = None,
    *,
    times: bool = True,
    bad: MalformedTriples | None = None,
    **options: Any,
) -> list[Row]:
    dictionary = TermDictionary() if dictionary is None else dictionary
    rows: list[Row] = []
    for batch in read_triples(str(path), dictionary, times=times, malformed=bad or MalformedTriples("error"), **options):
        assert isinstance(batch, TripleBatch)
        assert len(batch) > 0
        assert (batch.ts is not None) == times
        ts = [None] * len(batch) if batch.ts is None else batch.ts.tolist()
        rows += zip(ts, *(dictionary.decode(codes).to_pylist() for codes in (batch.s, batch.p, batch.o)), strict=True)
    return rows


def scoped(rows: list[Row], scope: int, times: bool = True) -> list[Row]:
    def term(text: str) -> str:
        return text.replace("_:", f"_:b{scope}x") if text.startswith("_:") else text

    return [(ts if times else None, term(s), p, term(o)) for ts, s, p, o in rows]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("form", ["parquet", "csv", "txt", "nt", "nq", "ttl", "trig"])
def test_all_forms_give_the_same_triples(tmp_path: Path, form: str, packed: str) -> None:
    path = write(tmp_path / f"a.{form}{packed}", ROWS)
    if form in ("parquet", "csv", "txt"):
        assert read(path, scope=2) == scoped(ROWS, 2)
    else:
        with pytest.raises(
            UserError, match=rf"a.{form}{packed}: a stream needs times, which .{form} does not have; use .parquet"
        ):
            read(path)
    assert read(path, times=False, scope=7) == scoped(ROWS, 7, times=False)


def test_lines_of_a_static_graph_need_no_times(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", [(None, *row[1:]) for row in ROWS])
    assert read(path, times=False) == scoped(ROWS, 0, times=False)
    bad = MalformedTriples()
    assert read(path, bad=bad) == []
    assert bad.count == len(ROWS)


def test_batches_have_at_most_so_many_rows(tmp_path: Path) -> None:
    for name in ("a.txt", "a.csv", "a.parquet"):
        path = write(tmp_path / name, ROWS)
        batches = list(read_triples(str(path), TermDictionary(), times=True, malformed=MalformedTriples(), batch_rows=4))
        assert max(map(len, batches)) == 4
        assert np.concatenate([batch.ts for batch in batches if batch.ts is not None]).tolist() == [row[0] for row in ROWS]


@pytest.mark.parametrize("name", ["a.txt", "a.nt", "a.nq", "a.ttl", "a.trig"])
def test_an_empty_file_has_no_triples(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for text in ("", "\n", "# only a comment"):
        path.write_text(text)
        assert read(path, times=False) == []


def test_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text in ("ts,s,p,o", "ts,s,p,o\n", "\ufeffts,s,p,o\r\n", '"ts","s","p","o"\n\n'):
        path.write_text(text)
        assert read(path) == []
    path.write_text("")
    with pytest.raises(UserError, match=r"a.csv: has no column ts; its columns are none"):
        read(path)
    assert read(write(tmp_path / "a.parquet", [(0, "<a:s>", "<a:p>", "<a:o>")][:0] or ROWS[:1])) == scoped(ROWS[:1], 0)


def test_several_files_share_a_scope(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.txt", ROWS[:9]), write(tmp_path / "b.csv", ROWS[9:])
    dictionary = TermDictionary()
    assert read(f"{one},{two}", dictionary, scope=1) == scoped(ROWS, 1)
    before = len(dictionary)
    assert read(two, dictionary, scope=1) == scoped(ROWS[9:], 1)
    assert len(dictionary) == before
    read(two, dictionary, scope=2)
    assert len(dictionary) == before + 2  # _:s and _:node once more


def test_labels_of_scopes_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.nt"
    path.write_text("_:a <a:p> _:b1xa .\n_:b0xa <a:p> _:x .\n")
    dictionary = TermDictionary()
    found = [
        term for scope in (0, 1, 11) for row in read(path, dictionary, times=False, scope=scope) for term in (row[1], row[3])
    ]
    assert len(set(found)) == 12


MIXED = [
    ("1", "<a:s>", "<a:p>", "<a:o>", None),
    ("x", "<a:s>", "<a:p>", "<a:o>", "the time is no integer of 64 bits"),
    ("2", '"s"', "<a:p>", "<a:o>", "the subject is neither an IRI nor a blank node"),
    ("3", "<a:s>", "<a:p>", '"o"', None),
    ("4", "<a:s>", "_:p", "<a:o>", "the predicate is no IRI"),
    ("5", "<a:s>", "<a:p>", "<o>", "an IRI has no scheme"),
    ("6", "<a:s>", "<a:p>", "_:o", None),
]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("form", ["csv", "parquet", "txt"])
@pytest.mark.parametrize("policy", ["drop", "side", "error"])
def test_malformed_triples(tmp_path: Path, form: str, policy: Any, packed: str) -> None:
    path = write(tmp_path / f"a.{form}{packed}", [row[:4] for row in MIXED])
    bad = MalformedTriples(policy)
    where = [i for i, row in enumerate(MIXED) if row[4]]
    # In the text two lines precede; in CSV a row takes two, behind the header.
    place = {"csv": "line {0}", "parquet": "row {0} (counting from 0)", "txt": "line {0}"}[form]
    at = [{"csv": 2 + 2 * i, "parquet": i, "txt": 3 + i}[form] for i in where]
    if policy == "error":
        with pytest.raises(UserError) as caught:
            read(path, bad=bad)
        text = f"{path}, {place.format(at[0])}: {MIXED[1][4]}; mend it, or leave such triples out by --malformed drop|side"
        assert str(caught.value) == text
        return
    assert read(path, bad=bad) == scoped([(int(ts), s, p, o) for ts, s, p, o, reason in MIXED if not reason], 0)
    assert bad.count == len(where)
    assert [str(one) for one in bad.first] == [
        f"{path}, {place.format(n)}: {MIXED[i][4]}" for n, i in zip(at, where, strict=True)
    ]
    side = bad.take_side()
    assert bad.take_side() == []
    assert len(side) == (len(where) if policy == "side" else 0)
    for one, i in zip(side, where, strict=False):
        ts, s, p, o, _ = MIXED[i]
        want = f"{ts} {s} {p} {o} ." if form == "txt" else next(csv.reader([",".join([ts, s, p, o])]))
        assert (one.text if form == "txt" else next(csv.reader([one.text]))) == want or '"' in s


def test_times_of_tables(tmp_path: Path) -> None:
    rest = {name: ["<a:x>"] * 4 for name in ("s", "p", "o")}
    cases = {
        "int8": (pa.array([1, None, -3, 4], pa.int8()), [1, -3, 4]),
        "uint64": (pa.array([1, 1 << 63, 3, None], pa.uint64()), [1, 3]),
        "double": (pa.array([1.0, 1.5, float("nan"), None]), [1]),
        "timestamp": (pa.array([1, None, -3, 4], pa.timestamp("ms")), [1000, -3000, 4000]),
        "string": (pa.array(["1", None, "+3", "4.0"]), [1, 3]),
        "dictionary": (pa.array(["1", None, "x", "1"]).dictionary_encode(), [1, 1]),
    }
    for name, (column, want) in cases.items():
        path, bad = tmp_path / f"{name}.parquet", MalformedTriples()
        pq.write_table(pa.table({"ts": column, **rest}), path)
        assert [row[0] for row in read(path, bad=bad)] == want, name
        assert bad.count == 4 - len(want)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ts": [True] * 4, **rest}), path)
    with pytest.raises(UserError, match=r"a.parquet: column ts is bool; give integers, microseconds"):
        read(path)
    pq.write_table(pa.table({**rest, "ts": [1] * 4, "o": [1] * 4}), path)
    with pytest.raises(UserError, match=r"a.parquet: column o: terms are strings, not int64"):
        read(path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_missing_columns(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a.{form}"
    table = pa.table({name: ["<a:x>"] for name in ("s", "o")})
    if form == "csv":
        path.write_text("s,o\n<a:x>,<a:x>\n")
    else:
        pq.write_table(table, path)
    with pytest.raises(UserError, match=rf"a.{form}: has no column p; its columns are s, o"):
        read(path, times=False)
    with pytest.raises(UserError, match=rf"a.{form}: has no column ts"):
        read(path)


def test_rows_of_csv_that_are_too_short_or_too_long(tmp_path: Path) -> None:
    path, bad = tmp_path / "a.csv", MalformedTriples("side")
    rows = [
        "1,<a:s>,<a:p>,<a:o>",
        "2,<a:s>",
        "",
        '3,<a:s>,<a:p>,"""multi\nline"""',
        "4,<a:s>,<a:p>,<a:o>,5",
        "5,<a:s>,<a:p>,<a:o>",
        "6,,,",
        "7",
    ]
    path.write_text("\n".join(["ts,s,p,o", *rows]))
    assert [row[0] for row in read(path, bad=bad)] == [1, 5]
    assert [(one.place, one.reason) for one in bad.first] == [
        ("line 3", "it has 2 fields, the header 4"),
        ("line 5", "a string is not closed by a quote"),
        ("line 7", "it has 5 fields, the header 4"),
        ("line 9", "the term is missing"),
        ("line 10", "it has 1 fields, the header 4"),
    ]
    assert [one.text for one in bad.side][:3] == [rows[1], rows[3], rows[4]]


def test_many_malformed_rows_of_csv(tmp_path: Path) -> None:
    """Places in a file of several blocks, with ragged rows before and behind."""
    rng, path, bad = random.Random(1), tmp_path / "a.csv", MalformedTriples()
    lines, want = ["ts,s,p,o"], []
    for i in range(60_000):
        kind = 0 if rng.random() < 0.9999 else rng.randrange(1, 3)
        lines.append(f"{i},<a:s>" if kind == 1 else f"{i},<a:s>,<a:p>,{'<o>' if kind == 2 else '<a:o' + 'o' * 100 + '>'}")
        if kind:
            want.append(f"line {i + 2}")
    path.write_text("\n".join(lines))
    rows = read(path, bad=bad)
    assert len(rows) == 60_000 - len(want)
    assert bad.count == len(want)
    assert [one.place for one in bad.first] == want[:5]


def test_turtle_goes_on_after_an_error(tmp_path: Path) -> None:
    path, bad = tmp_path / "a.ttl", MalformedTriples("side")
    path.write_text('@prefix a: <a:> .\na:s a:p 1 .\na:s a:p <rel> .\na:s a:p , .\na:s a:p 2 .\na:s a:p "x"@en--ltr .\n')
    rows = read(path, times=False, bad=bad)
    assert [row[3] for row in rows] == [f'"1"^^<{XSD}integer>', f'"2"^^<{XSD}integer>']
    assert [one.place for one in bad.first] == ["line 3", "line 4", "a triple"]
    assert "No scheme found" in bad.first[0].reason
    with pytest.raises(UserError, match=r"a.ttl, line 3: .*No scheme found.*; mend it"):
        read(path, times=False)


def test_nodes_without_labels_are_the_same_in_every_run(tmp_path: Path) -> None:
    path = tmp_path / "a.ttl"
    path.write_text("@prefix a: <a:> . a:s a:p [ a:q ( 1 2 ) ], _:x . [] a:p _:x .")
    found = [read(path, times=False, scope=4) for _ in range(2)]
    assert found[0] == found[1]
    labels = {term for row in found[0] for term in row[1:] if term.startswith("_:")}
    assert labels == {"_:b4n0", "_:b4n1", "_:b4n2", "_:b4n3", "_:b4xx"}
    dictionary = TermDictionary()
    both = [read(path, dictionary, times=False, scope=scope) for scope in (4, 4)]
    assert {row[1] for row in both[0]} & {row[1] for row in both[1]} == {"<a:s>"}


def test_wrong_files(tmp_path: Path) -> None:
    for name in ("a.json", "a", "a.txt.bz2"):
        (tmp_path / name).write_text("")
        with pytest.raises(UserError, match=r"unknown extension; known are .parquet, .csv and .txt, each also with .gz"):
            read(tmp_path / name)
    with pytest.raises(UserError, match=r"known are .parquet, .csv, .txt, .nt, .nq, .ttl and .trig"):
        read(tmp_path / "a.json", times=False)
    with pytest.raises(UserError, match=r"missing.nt: no such file"):
        read(tmp_path / "missing.nt", times=False)
    for name in ("a.parquet", "a.nt.gz", "a.csv.gz", "b.parquet.gz", "a.ttl.gz"):
        (tmp_path / name).write_bytes(b"this is neither")
        with pytest.raises(UserError, match=f"{name}: cannot be read"):
            read(tmp_path / name, times=False)


def test_lines_longer_than_a_chunk() -> None:
    rng = random.Random(2)
    for ends in ("\n", "\r\n", "\r"):
        text = "".join("x" * rng.choice([0, 1, 5, 40, 200]) + ends for _ in range(200)) + rng.choice(["", "last"])
        data = text.encode()
        for chunk in (1, 2, 3, 16, 1 << 20):
            parts = [bytes(part) for part in whole_lines(io.BytesIO(data), chunk)]
            assert b"".join(parts) == data
            assert all(part.endswith(b"\n" if "\n" in ends else b"\r") for part in parts[:-1])
            assert not any(other.startswith(b"\n") for other in parts[1:]) or ends == "\n"


def test_without_pyoxigraph(tmp_path: Path) -> None:
    (tmp_path / "a.ttl").write_text(TURTLE)
    (tmp_path / "a.nt").write_text(TURTLE)
    code = f"""
import sys
sys.modules["pyoxigraph"] = None
from swjoin.core.errors import UserError
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.triples import MalformedTriples, read_triples
for name in ("a.nt", "a.ttl"):
    try:
        print(sum(map(len, read_triples(rf"{tmp_path}/" + name, TermDictionary(), times=False, malformed=MalformedTriples()))))
    except UserError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert lines[0] == str(len(ROWS))
    assert "a.ttl: .ttl needs pyoxigraph, which is missing; install swjoin with its rdf extra: pip install '.[rdf]'" in lines[1]

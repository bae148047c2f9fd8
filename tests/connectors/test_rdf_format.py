"""RDF files as tables: all forms, blank nodes, and what is no RDF."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import swjoin
from swjoin.connectors.files.formats import read_batches, read_schema
from swjoin.core.errors import UserError

TURTLE = """@prefix e: <http://e/> .
e:a e:knows e:b, _:x ; e:says "hé \\"q\\""@EN, 7 .
_:x e:at [ e:in e:c ] .
"""
LINES = r"""<http://e/a> <http://e/knows> <http://e/b> .
<http://e/a> <http://e/knows> _:x .
# a comment
<http://e/a> <http://e/says> "h\u00e9 \"q\""@EN .
<http://e/a> <http://e/says> "7"^^<http://www.w3.org/2001/XMLSchema#integer> .
_:x <http://e/at> _:n .
_:n <http://e/in> <http://e/c> .
"""
FILES = {
    "g.nt": LINES,
    "g.nq": LINES.replace("> .\n", "> <http://e/graph> .\n"),
    "g.ttl": TURTLE,
    "g.trig": TURTLE.replace("e:a e:knows", "GRAPH e:graph { e:a e:knows").replace("e:c ] .", "e:c ] . }"),
}
QUERY = """SELECT k.v, g.s, h.o AS said FROM k JOIN g ON k.t = g.o
JOIN (SELECT s, o FROM g WHERE p = '<http://e/says>') h ON g.s = h.s"""


def rows(path: Path, size: int = 1000) -> list[tuple[str, ...]]:
    schema = read_schema(path)
    found = [batch for batch in read_batches(path, schema, ["s", "p", "o"], size)]
    assert all(batch.num_rows <= size for batch in found)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def plain(found: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(re.sub(r"anonymous\w{8}", "anonymous", term) for term in row) for row in found]


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("name", FILES)
def test_all_forms_have_the_same_triples(name: str, size: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(FILES[name])
    found = rows(tmp_path / name, size)
    assert found == rows(tmp_path / name)
    assert plain(found) == plain(rows(tmp_path / f"{name}.gz", size))
    assert Counter(tuple("_:n" if "anonymous" in term else term for term in row) for row in found) == Counter(
        [
            ("<http://e/a>", "<http://e/knows>", "<http://e/b>"),
            ("<http://e/a>", "<http://e/knows>", "_:x"),
            ("<http://e/a>", "<http://e/says>", '"hé \\"q\\""@en'),
            ("<http://e/a>", "<http://e/says>", '"7"^^<http://www.w3.org/2001/XMLSchema#integer>'),
            ("_:x", "<http://e/at>", "_:n"),
            ("_:n", "<http://e/in>", "<http://e/c>"),
        ]
    )


def test_a_graph_is_a_static_table(tmp_path: Path) -> None:
    (tmp_path / "g.ttl").write_text(TURTLE)
    stream = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "t": ["<http://e/b>", "_:x"], "v": [10, 20]})
    found = swjoin.sql(QUERY, k=stream, g=str(tmp_path / "g.ttl"), time={"k": "ts"}).to_pylist()
    assert sorted(row["v"] for row in found) == [10, 10, 20, 20]
    assert {row["s"] for row in found} == {"<http://e/a>"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<http://e/a> <http://e/b> .\n", r"g.nt, line 1: .*"),
        ("<http://e/a> <http://e/b> <http://e/c> .\n<http://e/a> <b> <http://e/c> .\n", r"g.nt, line 2: .*"),
        (
            "<http://e/a> <http://e/b> <<( <http://e/a> <http://e/b> <http://e/c> )>> .\n",
            r"g.nt: terms of RDF 1.2 are not read: .*",
        ),
    ],
)
def test_what_is_no_graph(text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.nt").write_text(text)
    with pytest.raises(UserError, match=line) as caught:
        rows(Path("g.nt"))
    assert "\n" not in str(caught.value)


def test_labels_are_of_all_files_and_nodes_without_labels_of_one(tmp_path: Path) -> None:
    """A written label of many digits, as dumps have, stays what it is; a name may have several endings."""
    label = "_:" + "1f" * 16
    node = f"<http://e/a> <http://e/p> {label} .\n"
    (tmp_path / "a.nt").write_text(node)
    (tmp_path / "b.ttl.nt").write_text(node)
    assert rows(tmp_path / "a.nt") == rows(tmp_path / "b.ttl.nt") == [("<http://e/a>", "<http://e/p>", label)]
    for name in ("a.ttl", "b.nt.ttl"):
        (tmp_path / name).write_text("<http://e/a> <http://e/p> [ <http://e/q> _:anonymous0 ], [] .\n")
    found = [rows(tmp_path / name) for name in ("a.ttl", "b.nt.ttl")]
    nodes = [{term for row in of for term in row if term.startswith("_:")} for of in found]
    assert nodes[0] & nodes[1] == {"_:anonymous0"}
    assert [len(of) for of in nodes] == [3, 3]
    assert found[0] == rows(tmp_path / "a.ttl")

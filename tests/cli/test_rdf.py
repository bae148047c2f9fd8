"""`swjoin rdf`: the example of docs/rdf.md, forms of results, ranks, malformed lines, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as api
from tests.cli.test_help import FILES
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

PAGE = (ROOT / "docs" / "rdf.md").read_text()
BLOCKS = re.findall(r"(?s)```(\w+)\n(.*?)```", PAGE)
NAMES = {"likes.rq": 0, "posts.txt": 1, "likes.txt": 2, "people.ttl": 3}
STREAMS = ("--stream", "http://example.org/posts=posts.txt", "--stream", "http://example.org/likes=likes.txt")
GRAPH = ("--static", "http://example.org/people=people.ttl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, in the current folder."""
    for name, at in NAMES.items():
        (tmp_path / name).write_text(BLOCKS[at][1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_of(path: Path) -> list[dict[str, Any]]:
    table: pa.Table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    return sorted(table.to_pylist(), key=str)


def test_the_files_of_the_help_are_those_of_the_page() -> None:
    assert all(FILES[name] == BLOCKS[at][1] for name, at in NAMES.items())


def test_the_example_of_the_page(swjoin: Any, folder: Path) -> None:
    (command,) = (text for kind, text in BLOCKS if kind == "sh")
    done = swjoin(*shlex.split(command.replace("\\\n", " "))[1:])
    assert done.code == 0, done.err
    (wanted,) = (text for kind, text in BLOCKS if kind == "text" and text.startswith('"author"'))
    assert sorted((folder / "likes.csv").read_text().splitlines()) == sorted(wanted.splitlines())


def test_forms_of_results_agree(swjoin: Any, folder: Path) -> None:
    digests = set()
    for out in ("a.parquet", "a.csv", "a.csv.gz", "count"):
        done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", out, "--report", "r.json")
        assert done.code == 0, done.err
        report = json.loads((folder / "r.json").read_text())
        digests.add((report["results"]["count"], report["results"]["digest"], report["ledger"]["balanced"]))
    assert len(digests) == 1
    assert digests.pop()[0] == 2
    assert report["results"]["columns"] == ["author", "fan", "post", "born"]
    assert report["rdf"]["streams"]["http://example.org/likes"] == {"triples": 3, "malformed": 0}
    assert [found["mappings"] for found in report["rdf"]["inputs"].values()] == [2, 3, 2]
    table = pq.read_table("a.parquet")
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "string", "int64"]
    assert rows_of(folder / "a.parquet") == rows_of(folder / "a.csv")
    printed = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "-")
    assert sorted(printed.out.splitlines()) == sorted((folder / "a.csv").read_text().splitlines())


@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_give_the_same_and_python_too(swjoin: Any, folder: Path) -> None:
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "a.parquet", "--report", "a.json")
    assert done.code == 0, done.err
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-n", "4", "-o", "b.parquet", "--report", "b.json")
    assert done.code == 0, done.err
    a, b = (json.loads((folder / f"{name}.json").read_text()) for name in "ab")
    assert rows_of(folder / "a.parquet") == rows_of(folder / "b.parquet")
    assert a["results"]["digest"] == b["results"]["digest"]
    assert b["ledger"]["balanced"]
    streams = {"http://example.org/posts": "posts.txt", "http://example.org/likes": Path("likes.txt")}
    graph = {"http://example.org/people": "people.ttl"}
    proof = api.rdf((folder / "likes.rq").read_text(), streams, static=graph, out="c.csv")
    assert (proof.count, proof.digest) == (2, a["results"]["digest"])
    assert rows_of(folder / "c.csv") == rows_of(folder / "a.parquet")


def test_malformed_lines(swjoin: Any, folder: Path) -> None:
    with (folder / "likes.txt").open("a") as file:
        file.write("no triple\n9000001 <http://example.org/cid> likes <http://example.org/post1> .\n")
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "a.csv", "--report", "r.json")
    assert done.code == 0
    assert done.err[0].startswith("swjoin: warning: likes.txt, line 4: ")
    assert done.err[2] == "swjoin: warning: <http://example.org/likes>: 2 malformed lines left out"
    assert json.loads((folder / "r.json").read_text())["rdf"]["streams"]["http://example.org/likes"]["malformed"] == 2
    assert not list(folder.glob("*.malformed.parquet"))
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "b.csv", "--malformed", "side")
    assert done.code == 0
    side = pq.read_table("b.csv.malformed.parquet").to_pylist()
    assert [(row["place"], row["text"]) for row in side][:1] == [("line 4", "no triple")]
    assert len(side) == 2
    assert rows_of(folder / "b.csv") == rows_of(folder / "a.csv")
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "b.csv", "--malformed", "side")
    assert done.code == 0, "that of an earlier run is replaced"
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "c.csv", "--malformed", "error")
    assert done.code == 2
    assert re.fullmatch(r"swjoin: likes\.rq: likes\.txt, line 4: .*--malformed drop\|side", done.err[0])
    assert not (folder / "c.csv").exists()
    (folder / "d.csv.malformed.parquet").write_text("mine")
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "d.csv", "--malformed", "side")
    assert (done.code, (folder / "d.csv.malformed.parquet").read_text()) == (2, "mine")
    done = swjoin("rdf", "likes.rq", *STREAMS, *GRAPH, "-o", "count", "--malformed", "side")
    assert (done.code, "needs a place" in done.err[0]) == (2, True)


QUERY = "SELECT ?a { STREAM <http://example.org/posts> [RANGE 1s] { ?a ?b ?c } %s }"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["likes.rq", *STREAMS[:2], *GRAPH, "-o", "a.csv"], r"STREAM <http://example.org/likes>: no such --stream; given are"),
        (["likes.rq", *STREAMS, "-o", "a.csv"], r"no static graph; give --static IRI=PATH"),
        ([QUERY % "GRAPH <http://x/g> { ?a ?b ?d }", *STREAMS, *GRAPH, "-o", "a.csv"], r"GRAPH <http://x/g>: no such --static"),
        ([QUERY % "OPTIONAL { ?a ?b ?d }", *STREAMS, *GRAPH, "-o", "a.csv", "-n", "3"], r"OPTIONAL is not supported"),
        (["none.rq", *STREAMS, "-o", "a.csv"], r"none.rq: cannot be read \(No such file or directory\)"),
        (["likes.rq", "-o", "a.csv"], r"no streams: give --stream IRI=PATH"),
        (["likes.rq", "--stream", "posts.txt", "-o", "a.csv"], r"--stream posts.txt: write IRI=PATH"),
        (["likes.rq", *STREAMS, *STREAMS, *GRAPH, "-o", "a.csv"], r"<http://example.org/posts> is given twice"),
        (["likes.rq", *STREAMS, *GRAPH, "-o", "a.txt"], r"-o a.txt: end it in .parquet, .csv or .csv.gz"),
        (["likes.rq", *STREAMS, *GRAPH, "-o", "a.csv", "--sinks", "2", "-n", "5"], r"--sinks 2: the answer is one file"),
        ([(QUERY % "").replace("RANGE 1s", "ALL"), *STREAMS, "-o", "a.csv"], r"\[ALL\] keeps all mappings.*give --memory"),
        (["likes.rq", *STREAMS[:3], "http://example.org/likes=x.nt", *GRAPH, "-o", "a.csv"], r"x.nt: a stream needs times"),
        (["likes.rq", *STREAMS[:3], "http://example.org/likes=x.txt", *GRAPH, "-o", "a.csv"], r"x.txt: no such file"),
    ],
)
def test_what_is_refused(swjoin: Any, folder: Path, argv: list[str], message: str) -> None:
    done = swjoin("rdf", *argv)
    assert done.code == 2
    lines = [line for line in done.err if "warning" not in line]
    assert len(lines) == 1, done.err
    assert re.search(message, lines[0]), lines[0]
    assert not (folder / "a.csv").exists()


def test_an_input_is_not_overwritten(swjoin: Any, folder: Path) -> None:
    pq.write_table(pa.table({"ts": [0], "s": ["<a:a>"], "p": ["<a:p>"], "o": ["<a:b>"]}), "s.parquet")
    done = swjoin("rdf", "SELECT ?a { STREAM <x:s> [NOW] { ?a ?b ?c } }", "--stream", "x:s=s.parquet", "-o", "s.parquet")
    assert done.code == 2
    assert pq.read_table("s.parquet").num_rows == 1


def test_patterns_of_files_and_folders(swjoin: Any, folder: Path) -> None:
    query = "SELECT ?a { STREAM <x:s> [NOW] { ?a ?b ?c } }"
    (folder / "more.txt").write_text((folder / "posts.txt").read_text())
    done = swjoin("rdf", query, "--stream", "x:s=[mp]o*.txt", "-o", "count", "-q")
    assert (done.code, done.out) == (0, "4\n"), done.err
    done = swjoin("rdf", query, "--stream", "x:s=none*.txt", "-o", "count")
    assert (done.code, done.err) == (2, ["swjoin: --stream x:s=none*.txt: no file is named so"])
    done = swjoin("rdf", query, "--stream", f"x:s={folder}", "-o", "count")
    assert (done.code, "a folder; name its files" in done.err[0]) == (2, True)


def test_an_iri_with_an_equals_sign_and_brackets(swjoin: Any, folder: Path) -> None:
    query = "SELECT ?a { STREAM <http://x/q?a=b> [NOW] { ?a ?b ?c } }"
    for given in ("http://x/q?a=b=posts.txt", "<http://x/q?a=b>=posts.txt"):
        done = swjoin("rdf", query, "--stream", given, "-o", "count", "-q")
        assert (done.code, done.out) == (0, "2\n"), done.err


# ---------------------------------------------------------------- several queries


def of_author(name: str) -> str:
    return (
        "PREFIX ex: <http://example.org/>\n"
        f"SELECT ?fan ?post {{ STREAM ex:posts [RANGE 1m] {{ ex:{name} ex:wrote ?post }} "
        "STREAM ex:likes [RANGE 10s] { ?fan ex:likes ?post } }"
    )


def test_several_queries_are_one_run(swjoin: Any, folder: Path) -> None:
    for name in ("ann", "ben", "zoe"):
        (folder / f"{name}.rq").write_text(of_author(name))
    done = swjoin("rdf", "ann.rq", "[bz]*.rq", "likes.rq", *STREAMS, *GRAPH, "-o", "rows.parquet", "--report", "all.json")
    assert done.code == 0, done.err
    report = json.loads((folder / "all.json").read_text())
    assert [family["queries"] for family in report["rdf"]["families"]] == [3, 1]
    assert report["ledger"]["balanced"]
    for query in report["queries"]:
        name = query["name"]
        done = swjoin("rdf", f"{name}.rq", *STREAMS, *GRAPH, "-o", "one.parquet", "--report", "one.json")
        assert done.code == 0, done.err
        alone = json.loads((folder / "one.json").read_text())["results"]
        assert (query["count"], query["digest"]) == (alone["count"], alone["digest"])
        (written,) = (folder / "rows.parquet" / name).iterdir()
        assert written.name == "part-00000.parquet"
        assert rows_of(written) == rows_of(folder / "one.parquet")
    assert [query["count"] for query in report["queries"]] == [2, 1, 0, 2]
    assert report["results"]["count"] == 5
    again = swjoin("rdf", "ann.rq", "likes.rq", *STREAMS, *GRAPH, "-o", "rows.parquet")
    assert (again.code, "holds something else" in again.err[0]) == (2, True)
    counted = swjoin("rdf", "ann.rq", "zoe.rq", *STREAMS, "-o", "count")
    assert re.search(r"zoe +0, digest", "\n".join(counted.out.splitlines()))
    texts = {query["name"]: (folder / f"{query['name']}.rq").read_text() for query in report["queries"]}
    streams = {text.split("=")[0]: str(folder / text.split("=")[1]) for text in STREAMS[1::2]}
    found = api.rdf(texts, streams, static={"http://example.org/people": str(folder / "people.ttl")}, out=folder / "p.csv")
    assert [(name, proof.count, proof.digest) for name, proof in found.items()] == [
        (query["name"], query["count"], query["digest"]) for query in report["queries"]
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["likes.rq", "SELECT ?x { }"], "one of 2 queries; write each into a file"),
        (["likes.rq", "likes.rq"], "likes is the name of another query"),
        (["likes.rq", "none*.rq"], "none*.rq: no file is named so"),
        (["likes.rq", "bad.rq"], "bad.rq: line 1, column 8"),
        (["likes.rq", "all.rq"], "all.rq: STREAM <http://example.org/likes> [ALL] keeps all mappings"),
    ],
)
def test_several_that_cannot_run(swjoin: Any, folder: Path, argv: list[str], message: str) -> None:
    (folder / "bad.rq").write_text("SELECT ! { }")
    (folder / "all.rq").write_text("SELECT ?x { STREAM <http://example.org/likes> [ALL] { ?x ?y ?z } }")
    done = swjoin("rdf", *argv, *STREAMS, *GRAPH, "-o", "rows.parquet")
    assert done.code == 2
    assert len(done.err) == 1
    assert message in done.err[0]
    assert not (folder / "rows.parquet").exists()


def test_queries_and_malformed_lines_are_not_overwritten(swjoin: Any, folder: Path) -> None:
    (folder / "ann.rq").write_text(of_author("ann"))
    for report in ("ann.rq", "rows.parquet.malformed.parquet"):
        options = ("-o", "rows.parquet", "--malformed", "side", "--report", report)
        for queries in (["ann.rq", "likes.rq"], ["ann.rq"]):
            done = swjoin("rdf", *queries, *STREAMS, *GRAPH, *options)
            assert (done.code, len(done.err), "--report" in done.err[0]) == (2, 1, True)
    assert (folder / "ann.rq").read_text() == of_author("ann")


def test_several_results_have_no_standard_output(swjoin: Any, folder: Path) -> None:
    (folder / "ann.rq").write_text(of_author("ann"))
    done = swjoin("rdf", "likes.rq", "ann.rq", *STREAMS, *GRAPH, "-o", "-")
    assert (done.code, "2 queries have as many results" in done.err[0]) == (2, True)


def test_the_configuration_of_the_page(swjoin: Any, folder: Path) -> None:
    """Its rows are those of the page's example."""
    (text,) = (text for kind, text in BLOCKS if kind == "yaml")
    (folder / "run.yaml").write_text(text)
    done = swjoin("run", "run.yaml", "--out", "run")
    assert done.code == 0, done.err
    found = pq.read_table(folder / "run" / "results" / "fans").drop_columns(["row_id", "row_ts"])
    (wanted,) = (text for kind, text in BLOCKS if kind == "text" and text.startswith('"author"'))
    (folder / "wanted.csv").write_text(wanted)
    assert sorted(found.to_pylist(), key=str) == rows_of(folder / "wanted.csv")
    assert swjoin("verify", "run").code == 0
    explained = swjoin("explain", "run.yaml")
    assert "posts.txt ─" in explained.out
    assert "The RDF stream <http://example.org/likes>." in " ".join(explained.out.split())
    assert "The RDF graph <http://example.org/people>, a static table" in " ".join(explained.out.split())

"""Queries over RDF streams as a run has them, with terms as text: whole bags of rows against brute force."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.frontends.configured import job_of_query
from swjoin.plan.families import families_of
from swjoin.plan.logical import Filter, IntervalJoin
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.stages import cut
from swjoin.runtime.in_process import run_local
from tests.frontends.rdf.test_random_queries import KINDS, table_of
from tests.support.limits import LONG_S
from tests.tools.random_rdf import Case, Knobs, random_case
from tests.tools.rdf_oracle import expected, same_rows

_WINDOWS = ("range", "now", "slide", "tumbling", "all")
_REFUSED = (  # by what is known to be refused, as regular expressions
    r"is bound nowhere",
    r"(SUM|AVG)\(DISTINCT \?\w+\): live terms such as 1 and 1.0 are different terms of one value",
    r"(SUM|AVG|MIN|MAX)(\(DISTINCT)? of a computed value\)? is not supported",
    r"triples outside of STREAM, and the run has [0-9]+ static graphs",
    r"CONSTRUCT of blank nodes is not supported in a run",
    r"CONCAT of literals with a language is not supported",
    r"STR of a computed (number|truth|ordered) is not supported",
    r"IF and COALESCE of [a-z]+ and [a-z]+ are not supported",
)


def plain_of(case: Case, folder: Path, **sections: Any) -> dict[str, Any]:
    """A configuration of the query, whose name is q."""
    inputs: dict[str, Any] = {}
    for number, (iri, rows) in enumerate([*case.streams.items(), *case.static.items()]):
        timed = iri in case.streams
        path = folder / f"input{number}.parquet"
        pq.write_table(table_of(rows, times=timed), path)
        inputs[f"input{number}"] = {"path": str(path), "iri": iri, **({"time": "ts", "time_unit": "us"} if timed else {})}
    return {
        "queries": [{"name": "q", "sparql": case.query}],
        "inputs": inputs,
        "time": {"sort": True},
        "cluster": {"epoch_tuples": 7},
        **sections,
    }


def run(plain: dict[str, Any], folder: Path, slaves: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of q without those columns that a file has beside them, and the report."""
    job = replace(job_of_query(plain, "case", "test"), target=folder / "results", directory=True, run_dir=folder)
    folder.mkdir()
    report = run_local(job, False, slaves)
    return rows_of(folder, "q"), report


def rows_of(folder: Path, query: str) -> list[dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted((folder / "results" / query).glob("*.parquet"))]
    return [row for table in tables for row in table.drop_columns(["row_id", "row_ts"]).to_pylist()]


def check(seeds: range, knobs: Knobs, folder: Path) -> None:
    answered = rows = 0
    for seed in seeds:
        case = random_case(np.random.default_rng(seed), knobs)
        if "MIN(" in case.query or "MAX(" in case.query:  # those of terms are of numbers here
            continue
        of_seed = folder / str(seed)
        of_seed.mkdir()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
                found, report = run(plain_of(case, of_seed), of_seed / "run", 1 + seed % 3)
        except swjoin.UserError as error:
            if not any(re.search(text, str(error)) for text in _REFUSED):
                raise AssertionError(f"seed {seed}: {error}\n{case.query}") from error
            continue
        wanted = expected(case.query, case.streams, case.static)
        difference = same_rows(found, wanted)
        assert difference is None, f"seed {seed}: {difference}\n{case.query}"
        assert report["ledger"]["balanced"]
        answered, rows = answered + 1, rows + len(wanted)
    share = 0.5 if len(seeds) < 24 else 1  # of few, more may be refused
    assert answered >= len(seeds) * 0.5 * share, "too many cases are refused, or have MIN and MAX"
    assert rows >= len(seeds) * share, "answers are nearly all empty"


LIVE = {
    kind: replace(knobs, windows=tuple(window for window in knobs.windows if window in _WINDOWS))
    for kind, knobs in KINDS.items()
    if kind != "counted"
}
LIVE["counted"] = Knobs(windows=("triples", "triples", "range", "now", "all"), groups=0, distinct=0, construct=0.1)


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        *((kind, range(24 if kind == "any" else 10)) for kind in LIVE),
        *(pytest.param(kind, range(24), marks=pytest.mark.drawn) for kind in LIVE if kind != "any"),
    ],
    ids=str,
)
def test_rows_are_those_of_brute_force(kind: str, seeds: range, tmp_path: Path) -> None:
    check(seeds, LIVE[kind], tmp_path)


# ---------------------------------------------------------------- queries that differ in windows alone

RANGES = replace(
    KINDS["any"],
    windows=("range", "now"),
    shapes=("star", "chain", "any"),
    max_patterns=5,
    results=3000,
    groups=0,
    distinct=0.1,
)


ALIVE = replace(RANGES, max_patterns=3, filters=0.2, static=0.2, groups=0.5, distinct=0.6)  # what depends on deaths


MIXED = replace(ALIVE, windows=("range", "slide", "all"))


def case_of(random: np.random.Generator, knobs: Knobs) -> Case:
    """A case of several windows that depends on deaths, and other windows than RANGE if there may be such."""
    while True:
        case = random_case(random, knobs)
        windows = re.findall(r"\[[^]]*\]", case.query)
        plain = [window for window in windows if re.fullmatch(r"\[(NOW|RANGE \S+)\]", window)]
        alive = "DISTINCT" in case.query or "GROUP BY" in case.query
        of_terms = "MIN(" in case.query or "MAX(" in case.query  # of numbers here
        if knobs is RANGES or (alive and not of_terms and plain and len(windows) > 1 and (knobs is ALIVE or plain != windows)):
            return case


def widened(case: Case, random: np.random.Generator, count: int) -> dict[str, str]:
    """The query with other windows, some of which nest."""
    found = {"q": case.query}
    for number in range(count):
        by = int(random.integers(1, 25))
        widths = iter(random.permutation([by] * 3 + [int(random.integers(0, 25))]).tolist() * 3)
        found[f"q{number}"] = re.sub(r"\[(NOW|RANGE \S+)\]", lambda _, w=widths: f"[RANGE {next(w)}0ms]", case.query)  # type: ignore[misc]
    return found


def check_windows(seeds: range, knobs: Knobs, folder: Path, count: int) -> None:
    """Rows of every query are those of brute force, whether it shares its plan or not."""
    shared = rows = 0
    for seed in seeds:
        random = np.random.default_rng(seed)
        case = case_of(random, knobs)
        of_seed = folder / str(seed)
        of_seed.mkdir()
        texts = widened(case, random, count)
        plain = plain_of(case, of_seed) | {"queries": [{"name": name, "sparql": text} for name, text in texts.items()]}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
                _, report = run(plain, of_seed / "run", 1 + seed % 3)
        except swjoin.UserError as error:
            if not any(re.search(text, str(error)) for text in _REFUSED):
                raise AssertionError(f"seed {seed}: {error}\n{case.query}") from error
            continue
        for query in report["queries"]:
            text = texts[query["name"]]
            wanted, found = expected(text, case.streams, case.static), rows_of(of_seed / "run", query["name"])
            difference = same_rows(found, wanted)
            assert difference is None, f"seed {seed}, {query['name']}: {difference}\n{text}"
            assert query["count"] == len(wanted)
            rows += len(wanted)
        plan = plan_from_plain(job_of_query(plain, "case", "test").plan or {})
        if knobs is not RANGES:
            read = [node.input for node in plan.nodes if isinstance(node, Filter) and node.name.startswith("rdf windows")]
            shared += len(read) > len(set(read))
        else:
            shared += any(family.ranking.columns for family in families_of(plan, cut(plan)))
        assert report["ledger"]["balanced"]
    assert shared * 10 >= len(seeds), "hardly any case has queries that share a plan"
    assert rows >= len(seeds) * count, "answers are nearly all empty"


BLOCKS = "STREAM e:s [RANGE {0}] {{ ?x e:p ?y }} STREAM e:t [RANGE {0}] {{ ?y e:q ?z }} "
THIRD = "STREAM e:t [RANGE {0}] {{ ?z e:r ?w }} "
HEADS = {"rows": "SELECT ?x ?z {{ {} }}", "groups": "SELECT ?x (COUNT(?z) AS ?n) {{ {} }} GROUP BY ?x"}
HEADS["distinct"] = "SELECT DISTINCT ?x {{ {} }}"


@pytest.mark.parametrize(
    ("asked", "body", "joins"),
    [
        ("rows 5s, groups 5s, distinct 5s", BLOCKS, 1),
        ("rows 5s, groups 5s, groups 2s, distinct 2s", BLOCKS, 1),
        ("groups 5s, groups 2s, groups 1s", BLOCKS + THIRD, 2),
        ("rows 5s, groups 5s", BLOCKS + THIRD, 2),
    ],
)
def test_queries_of_all_kinds_have_their_joins_in_common(asked: str, body: str, joins: int, tmp_path: Path) -> None:
    inputs = {}
    for name in "st":
        (tmp_path / f"{name}.csv").write_text("ts,s,p,o\n1,<http://e/a>,<http://e/p>,<http://e/b>\n")
        path = str(tmp_path / f"{name}.csv")
        inputs[name] = {"path": path, "iri": f"http://e/{name}", "time": "ts", "time_unit": "us"}
    queries = []
    for i, (head, width) in enumerate(part.split() for part in asked.split(", ")):
        text = "PREFIX e: <http://e/> " + HEADS[head].format(body.format(width))
        queries.append({"name": f"q{i}", "sparql": text})
    plan = plan_from_plain(job_of_query({"queries": queries, "inputs": inputs}, "case", "test").plan or {})
    assert sum(isinstance(node, IntervalJoin) for node in plan.nodes) == joins


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("knobs", [RANGES, ALIVE, MIXED], ids=["rows", "alive", "mixed"])
def test_queries_that_differ_in_windows(knobs: Knobs, tmp_path: Path) -> None:
    check_windows(range(12), knobs, tmp_path, 5)


@pytest.mark.long
@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("knobs", [RANGES, ALIVE, MIXED], ids=["rows", "alive", "mixed"])
def test_more_queries_that_differ_in_windows(knobs: Knobs, tmp_path: Path) -> None:
    check_windows(range(100, 200), knobs, tmp_path, 9)

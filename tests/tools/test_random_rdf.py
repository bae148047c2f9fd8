"""The oracle of RDF stream queries against Oxigraph and rdflib on snapshots, and what its generator draws."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyoxigraph
import pytest
import rdflib

from tests.tools.random_rdf import Case, Knobs, random_case
from tests.tools.rdf_expressions import literal, to_text
from tests.tools.rdf_oracle import (
    Query,
    Solution,
    alive_at,
    expected,
    group_row,
    groups_of,
    projected,
    read_window,
    same_rows,
    solutions,
)

pytestmark = pytest.mark.filterwarnings("ignore:Dataset.default_context:DeprecationWarning")  # rdflib's own use
SETS = Knobs(windows=("range", "now", "slide", "tumbling", "all"), construct=0, switches=frozenset(("blank_nodes",)))
_STREAM = re.compile(r"STREAM <([^>]*)> \[([^\]]*)\]")
Spo = tuple[str, str, str]
Graphs = dict[str | None, list[Spo]]


def scoped(scope: str, spo: Sequence[Any]) -> Spo:
    s, p, o = (f"_:{scope}.{term[2:]}" if term.startswith("_:") else term for term in spo)
    return s, p, o


def is_in(window: str, ts: int, now: int) -> bool:
    """Whether a window's contents at an instant, all of it included, have a triple: written without lives."""
    kind, size, slide = read_window(window)
    if kind == "slide":
        boundary = now // slide * slide
        return boundary - size < ts <= boundary
    return ts <= now and (kind == "all" or now - ts <= size)


def snapshot(case: Case, now: int) -> tuple[str, Graphs]:
    """A query of plain SPARQL, and the graphs that it reads at an instant; None: the default graph."""
    blocks = _STREAM.findall(case.query)
    graphs: Graphs = {iri: [scoped(f"g{at}", t) for t in triples] for at, (iri, triples) in enumerate(case.static.items())}
    graphs[None] = [triple for graph in graphs.values() for triple in graph]
    scopes = {iri: f"s{at}" for at, iri in enumerate(case.streams)}
    for at, (iri, window) in enumerate(blocks):
        held = [spo for ts, *spo in case.streams[iri] if is_in(window, ts, now)]
        graphs[f"urn:snapshot:{at}"] = [scoped(scopes[iri], spo) for spo in held]
    numbers = iter(range(len(blocks)))
    return _STREAM.sub(lambda _: f"GRAPH <urn:snapshot:{next(numbers)}>", case.query), graphs


def parsed(graphs: Graphs) -> list[Any]:
    lines = (
        f"{s} {p} {o} {'' if name is None else f'<{name}>'} .\n" for name, triples in graphs.items() for s, p, o in triples
    )
    return list(pyoxigraph.parse("".join(lines), pyoxigraph.RdfFormat.N_QUADS))


def by_oxigraph(query: str, graphs: Graphs) -> list[dict[str, str | None]]:
    """Sees one form of each value."""
    store = pyoxigraph.Store()
    store.extend(parsed(graphs))
    found: Any = store.query(query)
    names = [variable.value for variable in found.variables]
    return [{name: None if row[name] is None else str(row[name]) for name in names} for row in found]


def by_rdflib(query: str, graphs: Graphs) -> list[dict[str, str | None]]:
    """Keeps forms; its conditions are not those of SPARQL."""
    data = rdflib.Dataset()
    for quad in parsed(graphs):
        name = quad.graph_name
        graph = data.graph(rdflib.URIRef(name.value)) if isinstance(name, pyoxigraph.NamedNode) else data.default_graph
        graph.add((node(quad.subject), node(quad.predicate), node(quad.object)))
    found = data.query(query)
    return [{str(name): None if row[name] is None else _text(row[name]) for name in found.vars or []} for row in found]


def _text(term: Any) -> str:
    """N-Triples syntax, as which rdflib writes some literals otherwise, with a line feed in them."""
    if not isinstance(term, rdflib.Literal):
        return str(term.n3())
    return to_text(literal(str(term), str(term.datatype or ""), str(term.language or "")))


def node(term: Any) -> Any:
    if isinstance(term, pyoxigraph.Literal):
        named = None if term.language or term.datatype.value.endswith("#string") else term.datatype.value
        return rdflib.Literal(term.value, term.language, named)
    return rdflib.URIRef(term.value) if isinstance(term, pyoxigraph.NamedNode) else rdflib.BNode(term.value)


def alive_rows(query: Query, found: Sequence[Solution], now: int) -> list[dict[str, Any]]:
    """What the oracle has alive at an instant, without times; groups that are not empty."""
    if query.keys is not None:
        held = [(bound, alive_at(now, members)) for bound, members in groups_of(query, found)]
        return [row for bound, alive in held if alive and (row := group_row(query, bound, alive)) is not None]
    rows = [projected(query, solution) for solution in found if solution.born_us <= now < solution.dead_us]
    plain = [{name: cell for name, cell in row.items() if name != "born"} for row in rows]
    return list({tuple(row.values()): row for row in plain}.values()) if query.is_distinct else plain


def instants(case: Case, found: Sequence[Solution], count: int) -> list[int]:
    """Times at which something may be born or die, and a moment before and after; half of them when a result is born."""
    lengths = [n for _, window in _STREAM.findall(case.query) for n in read_window(window)[1:]]
    times = {ts + n for rows in case.streams.values() for ts, *_ in rows for n in (0, 1, -1, *lengths)}
    times |= {ts // n * n for rows in case.streams.values() for ts, *_ in rows for n in lengths if n}
    births = {int(solution.born_us) for solution in found}
    random = np.random.default_rng(len(times))
    return [int(now) for drawn in (times, births) for now in random.permutation(sorted(drawn))[: count // 2]]


def compared(case: Case, engine: Any, count: int) -> int:
    """Compares some snapshots; how many rows there were."""
    query, rows = Query.of(case.query), 0
    found = solutions(query, case.streams, case.static)
    for now in instants(case, found, count):
        mine = alive_rows(query, found, now)
        if not mine and query.keys == []:
            continue  # one group without keys: SPARQL has a row for none
        difference = same_rows(engine(*snapshot(case, now)), mine)
        assert difference is None, f"{case}\nat {now}: {difference}"
        rows += len(mine)
    return rows


def case_of(stream: int, seed: int, knobs: Knobs) -> Case:
    return random_case(np.random.default_rng([stream, seed]), knobs)


def test_snapshots_agree_with_oxigraph() -> None:
    assert sum(compared(case_of(7, seed, SETS), by_oxigraph, 8) for seed in range(40)) > 150


@pytest.mark.drawn
@pytest.mark.parametrize("part", range(40))
def test_more_snapshots_agree_with_oxigraph(part: int) -> None:
    for seed in range(1000 + part * 25, 1025 + part * 25):
        compared(case_of(7, seed, SETS), by_oxigraph, 8)


def compared_by_rdflib(seed: int) -> int:
    knobs = replace(SETS, filters=0, binds=0, groups=0, max_patterns=3, switches=frozenset(("blank_nodes", "forms")))
    case = case_of(8, seed, knobs)
    if "(" in case.query or '"@EN' in f"{case.query}{case.streams}{case.static}":  # rdflib joins en and EN
        return 0
    return compared(case, by_rdflib, 4)


def test_snapshots_with_all_forms_of_literals_agree_with_rdflib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdflib, "NORMALIZE_LITERALS", False)
    assert sum(compared_by_rdflib(seed) for seed in range(40)) > 500


@pytest.mark.drawn
@pytest.mark.parametrize("part", range(10))
def test_more_snapshots_agree_with_rdflib(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdflib, "NORMALIZE_LITERALS", False)
    assert sum(compared_by_rdflib(seed) for seed in range(1000 + part * 40, 1000 + part * 40 + 40)) > 100


def test_cases_have_every_construct_and_most_have_rows() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        case = case_of(9, seed, Knobs())
        words = re.findall(r"\[(ALL|NOW|TRIPLES|RANGE \w+ SLIDE|RANGE \w+ TUMBLING|RANGE \w+)\b", case.query)
        seen.update({re.sub(r" \w+ms", "", word) for word in words})
        wanted = "FILTER BIND GRAPH DISTINCT GROUP HAVING CONSTRUCT COUNT SUM AVG MIN MAX COUNT(* REGEX LANG DATATYPE BOUND IN"
        seen.update(word for word in wanted.split() if word in case.query)
        if seed % 3 == 0:
            seen["rows"] += bool(expected(case.query, case.streams, case.static))
        seen["below zero"] += any(ts < 0 for rows in case.streams.values() for ts, *_ in rows)
        assert all(len(rows) <= 40 for rows in case.streams.values())
    kinds = ["ALL", "NOW", "TRIPLES", "RANGE", "RANGE SLIDE", "RANGE TUMBLING"]
    assert all(seen[word] >= 8 for word in [*wanted.split(), *kinds, "below zero"]), seen
    assert seen["rows"] >= 45, seen


def test_a_case_hangs_on_its_seed_alone() -> None:
    assert case_of(3, 5, Knobs()) == case_of(3, 5, Knobs())
    assert case_of(3, 5, Knobs()) != case_of(3, 6, Knobs())


def test_knobs_ask_for_classes_of_cases() -> None:
    plain = Knobs(windows=("range",), aligned=0, static=0, filters=0, binds=0, distinct=0, groups=0, construct=0)
    for seed in range(50):
        query = case_of(4, seed, plain).query
        assert not re.search("SLIDE|TUMBLING|TRIPLES|ALL|NOW|GRAPH|FILTER|BIND|DISTINCT|GROUP|CONSTRUCT", query)
        assert "GROUP BY" in query or "AS ?n0" in case_of(4, seed, replace(plain, groups=1)).query
        assert "DISTINCT" in case_of(4, seed, replace(plain, distinct=1)).query
        counted = case_of(4, seed, replace(plain, windows=("triples", "slide", "range"))).query
        assert not ("TRIPLES" in counted and "SLIDE" in counted and re.search(r"RANGE \w+\]", counted))

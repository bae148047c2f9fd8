"""Many queries over RDF streams in one run: which are one plan with a table of constants, and that each answer is that of a
run of its own."""

from __future__ import annotations

import contextlib
import re
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import swjoin
from swjoin.core.batch import I64
from swjoin.frontends.rdf import query_texts
from swjoin.frontends.rdf.algebra import Const, Pattern, RdfQuery, Var, parse_query
from swjoin.frontends.rdf.families import Family, Parameters, by_widest, parse_queries
from swjoin.frontends.rdf.prepared import Given, prepared
from swjoin.frontends.rdf.query_texts import blocks_of
from swjoin.plan.logical import IntervalJoin
from swjoin.plan.plain import plan_from_plain
from tests.frontends.rdf.test_random_queries import KINDS, answer, table_of
from tests.support.limits import LONG_S
from tests.tools.random_rdf import Case, random_case
from tests.tools.rdf_oracle import expected, same_rows

Monkey = pytest.MonkeyPatch
E = "PREFIX e: <http://e/>\n"
BLOCK = "STREAM e:s [RANGE 1s]"


def asked(family: Family, name: str) -> RdfQuery:
    """What a query asks: its family's, with its constants in the places of variables."""
    member = family.members[name]
    values = dict(zip(family.variables, family.constants[0 if family.widths else member], strict=True))
    widths = family.widths[member] if family.widths else tuple(block.window.width_us for block in blocks_of(family.query))
    windows = {
        block.number: replace(block.window, width_us=width)
        for block, width in zip(blocks_of(family.query), widths, strict=True)
    }

    def of_triple(triple: tuple[Var | Const, Var | Const, Var | Const]) -> tuple[Var | Const, Var | Const, Var | Const]:
        s, p, o = (Const(values[t.name]) if isinstance(t, Var) and t.name in values else t for t in triple)
        return s, p, o

    query = family.query
    template = None if query.template is None else [of_triple(triple) for triple in query.template]
    patterns = []
    for pattern in query.patterns:
        block = pattern.block and pattern.block._replace(window=windows[pattern.block.number])
        patterns.append(Pattern(of_triple(pattern.terms), block, pattern.graph))
    return replace(query, patterns=patterns, template=template)


def check(texts: list[str]) -> list[Family]:
    """The families of queries; what each asks is what it says."""
    named = {f"q{i}": text for i, text in enumerate(texts)}
    found = parse_queries(named, {})
    assert sorted(name for family in found for name in family.members) == sorted(named)
    for family in found:
        for name in family.members:
            assert asked(family, name) == parse_query(named[name]), named[name]
    return found


def test_queries_that_differ_in_constants_are_one_family() -> None:
    (family,) = check([f"{E}SELECT ?x {{ {BLOCK} {{ ?x e:likes e:post{i} }} }}" for i in range(5)])
    assert family.variables == (":0",)
    assert family.constants == tuple((f"<http://e/post{i}>",) for i in range(5))
    assert [str(term.name) for term in family.query.patterns[0].terms if isinstance(term, Var)] == ["x", ":0"]


def test_equal_queries_are_one_member_without_parameters() -> None:
    text = f"{E}SELECT ?x {{ {BLOCK} {{ ?x e:p e:a }} }}"
    (family,) = check([text, text.replace("e:a", "<http://e/a>"), f"# again\n{text}"])
    assert (family.variables, family.constants, set(family.members.values())) == ((), ((),), {0})


def test_a_constant_in_two_places_is_one_variable() -> None:
    (family,) = check([f"{E}SELECT ?x {{ {BLOCK} {{ ?x e:p e:a{i} }} STREAM e:t [NOW] {{ ?x ?y e:a{i} }} }}" for i in range(3)])
    assert family.variables == (":0",)


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([f"SELECT ?x {{ {BLOCK} {{ ?x e:p ?y }} FILTER(?y = e:a{i}) }}" for i in range(2)], id="filters"),
        pytest.param([f"SELECT ?x {{ STREAM e:s [TRIPLES 3] {{ ?x e:p e:a{i} }} }}" for i in range(2)], id="counted windows"),
        pytest.param(
            [f"SELECT DISTINCT ?x {{ STREAM e:s [RANGE {i + 1}s] {{ ?x e:p e:a }} }}" for i in range(2)], id="distinct"
        ),
        pytest.param([f"SELECT ?x {{ STREAM e:s [RANGE {w}] {{ ?x e:p e:a }} }}" for w in ("2s", "2s SLIDE 1s")], id="slides"),
        pytest.param([f"SELECT ?x {{ STREAM e:s{i} [RANGE 1s] {{ ?x e:p e:a }} }}" for i in range(2)], id="streams"),
        pytest.param([f"SELECT ?x {{ {BLOCK} {{ ?x e:p e:a }} GRAPH e:g{i} {{ ?x e:k ?z }} }}" for i in range(2)], id="graphs"),
        pytest.param([f"SELECT ?{name} {{ {BLOCK} {{ ?{name} e:p e:a }} }}" for name in "xy"], id="variables"),
        pytest.param([f'SELECT ?x {{ {BLOCK} {{ ?x e:p "1"^^e:t{i} }} FILTER(?x != "e:b") }}' for i in range(2)], id="typed"),
    ],
)
def test_others_are_not(texts: list[str]) -> None:
    found = check([E + text for text in texts])
    assert len(found) == (1 if '"1"^^' in texts[0] else 2)


def windows(*widths: tuple[str, str]) -> list[str]:
    return [f"{E}SELECT ?x {{ STREAM e:s [{a}] {{ ?x e:p ?y }} STREAM e:t [{b}] {{ ?y e:q ?z }} }}" for a, b in widths]


def test_windows_that_nest_are_one_family() -> None:
    (family,) = check(windows(("RANGE 3s", "RANGE 2s"), ("NOW", "RANGE 1s"), ("RANGE 1s", "RANGE 1s")))
    assert family.widths == ((0, 1_000_000), (1_000_000, 1_000_000), (3_000_000, 2_000_000))
    assert family.members == {"q0": 2, "q1": 0, "q2": 1}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12), st.randoms())
@settings(max_examples=60, deadline=None)
def test_lists_begin_with_the_widest(widths: list[tuple[int, int]], random: Random) -> None:
    found = by_widest(widths, tuple)
    assert sorted(pair for some in found for pair in some) == sorted(widths)
    assert all(a <= some[0][0] and b <= some[0][1] for some in found for a, b in some)
    random.shuffle(widths)
    assert by_widest(widths, tuple) == found


def test_windows_that_cross_are_apart() -> None:
    found = check(
        windows(("RANGE 1s", "RANGE 4s"), ("RANGE 2s", "RANGE 3s"), ("RANGE 3s", "RANGE 5s"), ("RANGE 2s", "RANGE 4s"))
    )
    assert sorted(len(family.members) for family in found) == [1, 3]


def test_groups_have_the_joins_of_the_widest_windows(tmp_path: Path) -> None:
    given = [
        text.replace("?x {", "?x (COUNT(?z) AS ?n) {") + " GROUP BY ?x"
        for text in windows(("RANGE 3s", "RANGE 2s"), ("RANGE 1s", "RANGE 4s"), ("NOW", "RANGE 2s"), ("RANGE 1s", "RANGE 1s"))
    ]
    found = {name: family for family in check(given) for name in family.members}
    assert found["q0"].widest is found["q2"].widest is found["q3"].widest is found["q0"].query
    assert found["q1"].widest is None
    assert list(found) == ["q0", "q1", "q2", "q3"]
    for name in ("s", "t"):
        rows = [f"{ts},<http://e/a>,<http://e/{p}>,<http://e/a>\n" for ts in (0, 10_000_000) for p in "pq"]
        (tmp_path / f"{name}.csv").write_text("ts,s,p,o\n" + "".join(rows))
    streams = {f"http://e/{name}": str(tmp_path / f"{name}.csv") for name in ("s", "t")}
    plan = prepared({f"q{i}": text for i, text in enumerate(given)}, Given(streams, {}), tmp_path).plan
    joins = [node for node in plan_from_plain(plan).nodes if isinstance(node, IntervalJoin)]
    bounds = sorted((join.semantics.bounds.lower_us, join.semantics.bounds.upper_us) for join in joins)
    assert bounds == [(-4_000_000, 1_000_000), (-2_000_000, 3_000_000)]


def test_texts_that_are_alike_are_parsed_once(monkeypatch: Monkey) -> None:
    parsed: list[str] = []

    def noting(text: str) -> RdfQuery:
        parsed.append(text)
        return parse_query(text)

    monkeypatch.setattr(query_texts, "parse_query", noting)
    texts = {f"q{i}": f"{E}SELECT ?x {{ {BLOCK} {{ ?x e:likes e:post{i} ; e:of <http://e/g{i}> . }} }}" for i in range(50)}
    (family,) = parse_queries(texts, {})
    assert (len(parsed), len(family.constants)) == (1, 50)
    text = f"{E}SELECT ?x {{ STREAM e:s [WINDOW] {{ ?x e:likes ?y }} STREAM e:t [RANGE 1s SLIDE 1s] {{ ?y e:p ?z }} }}"
    spellings = ["NOW", "RANGE 1s", "RANGE 2 s", "range 1.5s", *(f"RANGE {i}ms" for i in range(20))]
    parsed.clear()
    check([text.replace("WINDOW", spelling) for spelling in spellings])
    assert len(parsed) == 1


WORDS = [
    "e:a",
    "e:b",
    "f:a",
    "<http://e/a>",
    "<http://e/b#c>",
    "<rel>",
    "?y",
    '"e:a"',
    '"x"@en',
    '"1"^^e:a',
    "5",
    "1.5",
    "_:b",
    "a",
]
PREFIXES = ["PREFIX e: <http://e/>", "PREFIX e: <http://f/>", "PREFIX e:<http://e/>", "PREFIX e: <http://e/> # e:a <x>"]
MORE = ["", ".", " .", " ; e:q e:b", ", e:b", " FILTER(?x != e:a)", " FILTER(e:f(?x))", " BIND(e:a AS ?z)"]
HEADS = ["SELECT ?x", "SELECT *", "CONSTRUCT { ?x e:of e:a }", "CONSTRUCT { ?x e:of e:b }"]
WINDOWS = ["RANGE 1s", "RANGE 2 s", "NOW", "range 1.5s", "RANGE 2s SLIDE 1s", "TRIPLES 2", "RANGE", "RANGE # ]\n 1s"]
PREDICATES = ["e:p", "e:q", "<http://e/p>", "f:p", "?p", "a"]


@settings(max_examples=10)
@given(st.lists(st.tuples(*map(st.sampled_from, (PREFIXES, PREDICATES, WORDS, MORE, HEADS, WINDOWS))), min_size=1, max_size=8))
def test_texts_ask_what_they_say(drawn: list[tuple[str, str, str, str, str, str]]) -> None:
    """Also those that are not parsed, as one before is alike; a text is refused with others as it is alone."""
    texts = []
    for prefix, p, o, rest, head, window in drawn:
        inner, outer = (rest, "") if "(" not in rest else ("", rest)
        text = f"{prefix}\nPREFIX f: <http://e/f/>\n{head} WHERE {{ STREAM e:s [{window}] {{ ?x {p} {o}{inner} }}{outer} }}"
        problem = refusal(text)
        if problem is None:
            texts.append(text)
        else:
            with pytest.raises(swjoin.UserError) as refused:
                parse_queries({**{f"q{i}": t for i, t in enumerate(texts)}, "bad": text}, {"bad": "bad.rq"})
            assert str(refused.value) == f"bad.rq: {problem}"
    check(texts)


def refusal(text: str) -> str | None:
    try:
        parse_query(text)
    except swjoin.UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("SELECT * { STREAM e:s [NOW] { ?1<http://e/p> ?o } }", "SELECT * { STREAM e:s [NOW] { ?1e:p ?o } }"),
        ("SELECT * { STREAM e:s [NOW] { ?s <http://e/p>-5 } }", "SELECT * { STREAM e:s [NOW] { ?s e:p-5 } }"),
        ("SELECT * { STREAM e:s [NOW] { ?s <http://e/p> ?o } }", "SELECT * { STREAM e:s <http://e/p> { ?s [NOW] ?o } }"),
        ("SELECT * { STREAM e:s [NOW] { ?s e:p ?o } }", "SELECT * { STREAM e:s [NOW # ] { ?s e:p ?o } }"),
    ],
)
def test_texts_that_only_look_alike(first: str, second: str) -> None:
    prefixes = f"{E}PREFIX : <http://d/>\n"
    problem = refusal(prefixes + second)
    if problem is None:
        assert len(check([prefixes + first, prefixes + second])) == 2
    else:
        with pytest.raises(swjoin.UserError) as refused:
            parse_queries({"a": prefixes + first, "b": prefixes + second}, {})
        assert str(refused.value) == problem


# ---------------------------------------------------------------- parameters


@given(st.data())
def test_members_are_found_by_their_constants(data: st.DataObject) -> None:
    """Against each row and each member."""
    width, count, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6)), data.draw(st.integers(0, 12))
    codes = st.integers(0, 3)

    def columns(length: int) -> list[I64]:
        drawn = data.draw(st.lists(st.lists(codes, min_size=length, max_size=length), min_size=width, max_size=width))
        return [np.array(column, np.int64) for column in drawn]

    names = [f":{i}" for i in range(width)]
    theirs, rows = columns(count), columns(n)
    parameters = Parameters(dict(zip(names, theirs, strict=True)))
    at, classes = parameters.asked(names, rows)
    places, members = parameters.members(names, classes)
    found = list(zip(at[places].tolist(), members.tolist(), strict=True))
    wanted = [(i, m) for i in range(n) for m in range(count) if all(r[i] == t[m] for r, t in zip(rows, theirs, strict=True))]
    assert sorted(found) == wanted
    assert at.tolist() == sorted({i for i, _ in wanted})
    assert (np.diff(at[places]) >= 0).all()


# ---------------------------------------------------------------- answers


def variants(case: Case, random: np.random.Generator, count: int, terms: float = 0.6) -> list[Case]:
    """The query with other windows, and by this chance other predicates and constants in its patterns; those that are
    understood."""
    predicates = ["e:i", "e:n", "e:t", "e:k", "e:m"]

    def changed(found: re.Match[str]) -> str:
        text = re.sub(r" e:[intkm] ", lambda m: f" {random.choice(predicates)} " if random.random() < 0.6 else m[0], found[0])
        return re.sub(
            r"(?<= )\?\w+(?= [.}])", lambda m: f"e:{random.choice(list('abc'))}" if random.random() < 0.3 else m[0], text
        )

    def wider(found: re.Match[str]) -> str:
        return f"[RANGE {random.integers(0, 20)}0ms]" if random.random() < 0.5 else found[0]

    found, seen = [case], {case.query}
    for _ in range(4 * count):
        query = re.sub(r"\{ [^{}]* \}", changed, case.query) if random.random() < terms else case.query
        other = replace(case, query=re.sub(r"\[(NOW|RANGE \S+)\]", wider, query))
        if other.query not in seen and len(found) < count:
            seen.add(other.query)
            found.append(other)
    return found


def check_answers(seeds: range, kind: str, count: int, terms: float = 0.6, **options: int) -> None:
    """Rows of every query are those of a run of its own, and of brute force. options: of the run of all."""
    rows = shared = 0
    for seed in seeds:
        random = np.random.default_rng(seed)
        case = random_case(random, KINDS[kind])
        wanted = {}
        for i, other in enumerate(variants(case, random, count, terms)):
            try:
                alone = answer(other, threads=1 + seed % 2)
            except swjoin.UserError:
                continue
            wanted[f"q{i}"] = other, alone
        if not wanted:
            continue
        texts = {name: other.query for name, (other, _) in wanted.items()}
        shared += sum(family.count > 1 or family.widest is not None for family in parse_queries(texts, {}))
        found = answered(case, texts, **options)
        for name, (other, alone) in wanted.items():
            text = f"seed {seed}: {other.query}"
            assert found[name].schema == alone.schema, text
            proof = swjoin.proof(found[name])
            assert (proof.count, proof.ledger.balanced) == (alone.num_rows, True), text
            if "_:" not in str(alone.to_pylist()):
                assert proof.digest == swjoin.proof(alone).digest, text
            difference = same_rows(found[name].to_pylist(), expected(other.query, other.streams, other.static))
            assert difference is None, f"{difference}\n{text}"
            rows += alone.num_rows
    assert shared, "no queries share a plan"
    assert rows >= len(seeds), "answers are nearly all empty"


def answered(case: Case, texts: dict[str, str], **options: int) -> dict[str, pa.Table]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
        found: dict[str, pa.Table] = swjoin.rdf(
            texts,
            {iri: table_of(rows, times=True) for iri, rows in case.streams.items()},
            static={iri: table_of(rows, times=False) for iri, rows in case.static.items()},
            memory="1GB",
            **options,
        )
    return found


@pytest.mark.drawn
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_lone_runs(kind: str) -> None:
    check_answers(range(2), kind, 4)


@pytest.mark.long
@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_more_answers_are_those_of_lone_runs(kind: str) -> None:
    check_answers(range(100, 125), kind, 8)


ALIVE = ("changes", "distinct")  # kinds whose answers depend on when rows die


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("kind", ALIVE)
def test_groups_and_distinct_of_several_windows(kind: str) -> None:
    check_answers(range(200, 205), kind, 4, terms=0)


@pytest.mark.long
@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("kind", ALIVE)
def test_more_groups_and_distinct_of_several_windows(kind: str) -> None:
    check_answers(range(300, 400), kind, 8, terms=0)


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_on_ranks_they_are_the_same(kind: str) -> None:
    check_answers(range(2), kind, 6, ranks=4)


# ---------------------------------------------------------------- what members have in common

INTEGER, DOUBLE = "http://www.w3.org/2001/XMLSchema#integer", "http://www.w3.org/2001/XMLSchema#double"
VALUES = {
    "y": [f'"9007199254740991"^^<{INTEGER}>', f'"2"^^<{INTEGER}>', f'"9007199254740995"^^<{INTEGER}>'],
    "z": [f'"0.5"^^<{DOUBLE}>'],
    "w": [f'"2"^^<{INTEGER}>', f'"02"^^<{INTEGER}>', f'"3"^^<{INTEGER}>'],
    "v": [f'"2"^^<{INTEGER}>', '"text"', "<http://e/a>"],
    "u": [],
}


@pytest.mark.drawn
@pytest.mark.parametrize(
    "head",
    [
        "SELECT (SUM(?o) AS ?x) {{ {} }}",
        "SELECT (?o * 3 AS ?x) {{ {} }}",
        "SELECT ?o {{ {} FILTER(?o > 1) }}",
        "SELECT ?o {{ {} FILTER(?o = 9007199254740992) }}",
        "SELECT (SUM(DISTINCT ?o) AS ?x) {{ {} }}",
        "SELECT (MAX(?o) + 1 AS ?x) {{ {} }}",
        "SELECT DISTINCT (STR(?o) AS ?x) {{ {} }}",
    ],
)
def test_terms_of_one_member_change_no_other(head: str) -> None:
    """Also where the terms of all together would be of several kinds."""
    rows = [(i, f"<http://e/{s}>", "<http://e/p>", o) for i, (s, o) in enumerate((s, o) for s in VALUES for o in VALUES[s])]
    case = Case("", {"http://e/s": rows}, {})
    texts = {s: E + head.format(f"STREAM e:s [RANGE 1s] {{ e:{s} e:p ?o }}") for s in VALUES}
    alone = {}
    for name, text in texts.items():
        with contextlib.suppress(swjoin.UserError):
            alone[name] = answer(replace(case, query=text))
    assert len(alone) > 1
    found = answered(case, {name: texts[name] for name in alone})
    assert {name: swjoin.proof(rows).digest for name, rows in found.items()} == {
        name: swjoin.proof(rows).digest for name, rows in alone.items()
    }


@pytest.mark.parametrize(
    "where",
    [
        "STREAM e:s [RANGE 1s] { ?x e:p ?y } STREAM e:s [RANGE 2s] { ?x e:p ?y }",
        "STREAM e:s [NOW] { ?x e:p ?y . ?x e:p ?y }",
        "STREAM e:s [NOW] { ?x e:p ?y } GRAPH e:g { ?y e:k ?z . ?y e:k ?z }",
    ],
)
def test_a_pattern_that_is_there_twice(where: str) -> None:
    ys = [f"<http://e/{i % 3}>" for i in range(9)]
    rows = [(100_000 * i, f"<http://e/{i % 2}>", "<http://e/p>", y) for i, y in enumerate(ys)]
    case = Case(f"{E}SELECT * {{ {where} }}", {"http://e/s": rows}, {"http://e/g": [(y, "<http://e/k>", y) for y in set(ys)]})
    alone = answer(case)
    assert alone.num_rows
    found = answered(case, {"a": case.query, "b": case.query, "c": f"{E}SELECT ?x {{ STREAM e:s [NOW] {{ ?x e:p ?y }} }}"})
    assert {swjoin.proof(found[name]).digest for name in "ab"} == {swjoin.proof(alone).digest}


def test_names_that_are_none() -> None:
    text = f"{E}SELECT ?x {{ STREAM e:s [NOW] {{ ?x e:p ?y }} }}"
    for names, message in ((("5", 5), "5 is no name|'5' is no name"), (("a", "A"), "A is the name of another query")):
        with pytest.raises(swjoin.UserError, match=message):
            swjoin.rdf(dict.fromkeys(names, text), {"http://e/s": table_of([], times=True)})  # type: ignore[arg-type]


def test_errors_name_the_query() -> None:
    texts = {name: f"{E}SELECT ?x {{ STREAM e:{name} [NOW] {{ ?x e:p ?y }} }}" for name in "st"}
    with pytest.raises(swjoin.UserError, match=r"^query t: STREAM <http://e/t>: no such"):
        swjoin.rdf(texts, {"http://e/s": table_of([], times=True)})

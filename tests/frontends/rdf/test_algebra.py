"""What a query asks, and what is refused, each by one line."""

from __future__ import annotations

import pytest

from swjoin.core.errors import UserError
from swjoin.core.lives import Window, window_named
from swjoin.frontends.rdf.algebra import AggregateOf, Call, Const, Var, parse_query

PREFIXES = "PREFIX e: <http://e/>\nPREFIX xsd: <http://www.w3.org/2001/XMLSchema#>\n"
BLOCK = "STREAM e:s [RANGE 10s] { ?a e:p ?b }"
INTEGER = "http://www.w3.org/2001/XMLSchema#integer"


def asked(text: str) -> str:
    with pytest.raises(UserError) as refused:
        parse_query(PREFIXES + text)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_patterns_windows_and_graphs_in_the_order_of_the_text() -> None:
    query = parse_query(
        PREFIXES
        + """SELECT ?a ?c WHERE { # STREAM <x> is a comment
          STREAM e:s [ range 1m SLIDE 5s ] { ?a e:p ?b ; e:q "STREAM <x> {" }
          stream <http://e/t> [TRIPLES 3] { ?b e:r 01, "x"@EN-gb, "a\\nb" }
          GRAPH e:g { ?b e:k ?c } ?c e:k [] . FILTER(?a != ?c)
        }"""
    )
    assert query.streams == ["http://e/s", "http://e/t"]
    assert [p.block and p.block.window for p in query.patterns] == [
        *[Window("slide", 60_000_000, 5_000_000)] * 2,
        *[Window("triples", count=3)] * 3,
        None,
        None,
    ]
    assert [p.graph for p in query.patterns] == [None] * 5 + ["http://e/g", None]
    objects = [p.terms[2] for p in query.patterns]
    assert objects[:3] == [Var("b"), Const('"STREAM <x> {"'), Const(f'"01"^^<{INTEGER}>')]
    assert objects[4] == Const('"a\\nb"')
    assert query.filters == [Call("!=", (Var("a"), Var("c")))]
    assert query.shown == ["a", "c"]


def test_select_star_has_the_variables_in_the_order_of_the_text() -> None:
    query = parse_query(PREFIXES + "SELECT * { STREAM e:s [NOW] { ?z e:p ?a . ?m e:q ?z . [] e:r ?b } BIND(?b + 1 AS ?c) }")
    assert query.shown == ["z", "a", "m", "b", "c"]


def test_groups() -> None:
    query = parse_query(
        PREFIXES + f"SELECT ?a (COUNT(DISTINCT ?b) AS ?n) (SUM(?b) / 2 AS ?h) {{ {BLOCK} }} GROUP BY ?a HAVING (COUNT(*) > 1)"
    )
    assert query.grouped
    assert query.keys == ["a"]
    assert [(c.function, c.of, c.distinct) for c in query.aggregates] == [
        ("COUNT", Var("b"), True),
        ("SUM", Var("b"), False),
        ("COUNT", None, False),
    ]
    assert all(isinstance(call, AggregateOf) for call in query.aggregates)
    assert [name for name, _ in query.outputs] == ["n", "h"]
    assert query.shown == ["a", "n", "h"]


def test_construct() -> None:
    query = parse_query(PREFIXES + f"CONSTRUCT {{ ?b e:of ?a }} WHERE {{ {BLOCK} }}")
    assert query.template == [(Var("b"), Const("<http://e/of>"), Var("a"))]


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("RANGE 100ms", Window("range", 100_000)),
        ("range 1m", Window("range", 60_000_000)),
        ("RANGE 1.5s", Window("range", 1_500_000)),
        ("RANGE 1h SLIDE 10m", Window("slide", 3_600_000_000, 600_000_000)),
        ("RANGE 60s TUMBLING", Window("slide", 60_000_000, 60_000_000)),
        ("NOW", Window("range")),
        ("ALL", Window("all")),
        ("TRIPLES 40", Window("triples", count=40)),
        ("ROWS 2", Window("triples", count=2)),
    ],
)
def test_windows(text: str, window: Window) -> None:
    assert window_named(text) == window


@pytest.mark.parametrize(
    "text",
    [
        *("", "RANGE", "RANGE 10", "RANGE 5s SLIDE", "RANGE 5s SLIDE 0s", "RANGE -1s", "RANGE 0s TUMBLING", "RANGE 5 parsecs"),
        *("RANGE 5s TUMBLING 5s", "SLIDE 5s", "TRIPLES", "TRIPLES 0", "TRIPLES x", "TRIPLES 99999999999", "NOW 1s", "ALL 5"),
    ],
)
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(UserError, match="window \\["):
        window_named(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"SELECT ?a {{ {BLOCK} OPTIONAL {{ ?a e:q ?c }} }}", "OPTIONAL"),
        (f"SELECT ?a {{ {BLOCK} {{ ?a e:q ?c }} UNION {{ ?a e:r ?c }} }}", "UNION"),
        (f"SELECT ?a {{ {BLOCK} MINUS {{ ?a e:q ?c }} }}", "MINUS"),
        (f"SELECT ?a {{ {BLOCK} VALUES ?a {{ e:x }} }}", "VALUES"),
        (f"SELECT ?a {{ {BLOCK} }} VALUES ?a {{ e:x }}", "VALUES"),
        (f"SELECT ?a {{ {BLOCK} {{ SELECT ?a {{ ?a e:q ?c }} }} }}", "subquery"),
        (f"SELECT ?a {{ {BLOCK} ?a e:q/e:r ?c }}", "path"),
        (f"SELECT ?a {{ {BLOCK} ?a e:q* ?c }}", "path"),
        (f"SELECT ?a {{ {BLOCK} FILTER EXISTS {{ ?a e:q ?c }} }}", "EXISTS"),
        (f"SELECT ?a {{ {BLOCK} SERVICE e:x {{ ?a e:q ?c }} }}", "SERVICE"),
        (f"SELECT ?a {{ {BLOCK} GRAPH ?g {{ ?a e:q ?c }} }}", r"GRAPH \?g"),
        (f"SELECT ?a {{ {BLOCK} }} ORDER BY ?a", "ORDER BY"),
        (f"SELECT ?a {{ {BLOCK} }} LIMIT 3", "LIMIT"),
        (f"SELECT DISTINCT ?a {{ {BLOCK} }} OFFSET 3", "OFFSET"),
        (f"SELECT REDUCED ?a {{ {BLOCK} }}", "REDUCED"),
        (f"SELECT ?a FROM e:g {{ {BLOCK} }}", "FROM"),
        (f"ASK {{ {BLOCK} }}", "ASK"),
        (f"DESCRIBE ?a {{ {BLOCK} }}", "DESCRIBE"),
        (f"SELECT (GROUP_CONCAT(?a) AS ?c) {{ {BLOCK} }}", "CONCAT"),
        (f"SELECT (SAMPLE(?a + 1) AS ?c) {{ {BLOCK} }}", "SAMPLE"),
        (f"SELECT ?b {{ {BLOCK} }} GROUP BY ?a", r"\?b is not in GROUP BY"),
        (f"SELECT ?c {{ {BLOCK} }}", r"\?c is bound nowhere"),
        (f"SELECT ?a {{ {BLOCK} FILTER(?c > 1) }}", r"\?c is bound nowhere"),
        ("SELECT ?a { STREAM e:s [NOW] { ?a e:p ?b FILTER(?c > 1) } ?a e:q ?c }", r"\?c is bound nowhere in its group"),
        (f"SELECT ?a {{ {BLOCK} }} GROUP BY ?a ?c", r"\?c is bound nowhere"),
        (f"SELECT ?a {{ {BLOCK} BIND(?c AS ?d) }}", r"BIND: \?c"),
        (f"SELECT ?a {{ BIND(1 AS ?b) {BLOCK} }}", r"\?b is a variable of a pattern"),
        ("SELECT ?a { ?a e:p ?b }", "reads no stream"),
        ("SELECT ?a { STREAM e:s { ?a e:p ?b } }", "no window"),
        ("SELECT ?a { STREAM ?s [NOW] { ?a e:p ?b } }", "a variable"),
        ("SELECT ?a { STREAM e:s [NOW { ?a e:p ?b } }", "no end"),
        ("SELECT ?a { STREAM e:s [NOW] { } }", "no pattern"),
        ("SELECT ?a { STREAM x:s [NOW] { ?a e:p ?b } }", "unknown prefix x:"),
        ("SELECT ?a { STREAM e:s [NOW] { ?a x:p ?b } }", "unknown prefix x:"),
        ("SELECT ?a { GRAPH e:g { STREAM e:s [NOW] { ?a e:p ?b } } }", "inside another"),
        ("SELECT ?born { STREAM e:s [NOW] { ?born e:p ?b } }", r"\?born: the answer has a column of this name"),
        (f"SELECT (?b + 1 AS ?x) (?x + 1 AS ?x) {{ {BLOCK} }}", r"\?x is computed twice"),
        (f"SELECT ?a {{ {BLOCK} FILTER(COUNT(?b) > 1) }}", "COUNT inside an aggregate or a FILTER"),
        ("SELECT ?a { STREAM e:s [RANGE 13400000d] { ?a e:p ?b } }", "longer than 2.58 us"),
        ("INSERT DATA { e:a e:b e:c }", "syntax error"),
        ("", "syntax error at the end"),
    ],
)
def test_what_is_refused_is_named(text: str, named: str) -> None:
    import re

    assert re.search(named, asked(text)), asked(text)


def test_a_syntax_error_has_its_line_and_column() -> None:
    with pytest.raises(UserError, match="line 3, column 3: syntax error at 'FOO"):
        parse_query("SELECT ?a {\n  STREAM <http://e/s> [RANGE 10s SLIDE 5s] { ?a ?b ?c }\n  FOO ?a }")
    with pytest.raises(UserError, match=r"line 2, column 3: window \[RANGE 10\]"):
        parse_query("SELECT ?a {\n  STREAM <http://e/s> [RANGE 10] { ?a ?b ?c } }")


def test_prefixes_of_one_iri_and_a_variable_that_is_selected_twice() -> None:
    query = parse_query(
        "PREFIX : <http://e/> PREFIX e: <http://e/> PREFIX x: <http://e/>\n"
        "SELECT ?a ?a { STREAM x:s [NOW] { ?a :p ?b ; e:q x:c } }"
    )
    assert [p.terms[1] for p in query.patterns] == [Const("<http://e/p>"), Const("<http://e/q>")]
    assert query.patterns[1].terms[2] == Const("<http://e/c>")
    assert query.streams == ["http://e/s"]
    assert query.shown == ["a"]


def test_rdflib_is_as_it_was_afterwards() -> None:
    import rdflib
    from rdflib.plugins.sparql import algebra

    before = rdflib.NORMALIZE_LITERALS, algebra.reorderTriples
    parse_query(PREFIXES + f"SELECT ?a {{ {BLOCK} }}")
    asked("SELECT")
    assert (rdflib.NORMALIZE_LITERALS, algebra.reorderTriples) == before

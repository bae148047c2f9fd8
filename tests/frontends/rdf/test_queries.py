"""Queries whose answers were once wrong, and edges that random queries do not have."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import swjoin

XSD = "http://www.w3.org/2001/XMLSchema#"
PREFIXES = f"PREFIX e: <http://e/> PREFIX : <http://e/> PREFIX xsd: <{XSD}> "
BLOCK = "STREAM <http://e/s> [RANGE 1s] { ?s :p ?o }"
MOST_US = 1 << 58


def answer(query: str, objects: list[str], times: list[int] | None = None) -> list[tuple[object, ...]]:
    """The rows of a query over a stream of one subject each, without `born`."""
    n = len(objects)
    subjects = [f"<http://e/{chr(97 + i)}>" for i in range(n)]
    stream = pa.table({"ts": times or list(range(n)), "s": subjects, "p": ["<http://e/p>"] * n, "o": objects})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
        found = swjoin.rdf(PREFIXES + query, {"http://e/s": stream}, memory="1GB").drop_columns(["born"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


def integer(value: int) -> str:
    return f'"{value}"^^<{XSD}integer>'


@pytest.mark.drawn
@pytest.mark.parametrize("constant", ["false", "0", '""', "0.0", "0e0", '"false"^^xsd:boolean'])
def test_a_filter_of_a_false_constant_lets_nothing_through(constant: str) -> None:
    for query in (f"SELECT ?s {{ {BLOCK} FILTER({constant}) }}", BLOCK.replace("}", f"FILTER({constant}) }}")):
        text = query if query.startswith("SELECT") else f"SELECT ?s {{ {query} }}"
        assert answer(text, [integer(1)]) == []
    assert len(answer(f"SELECT ?s {{ {BLOCK} FILTER(!({constant})) }}", [integer(1)])) == 1


def test_a_filter_between_joins_does_not_lengthen_lives() -> None:
    """a and b meet; c comes while b lives, when a is dead."""
    stream = pa.table(
        {
            "ts": [0, 1_000_000, 2_000_000],
            "s": ["<http://e/x>"] * 3,
            "p": ["<http://e/a>", "<http://e/b>", "<http://e/c>"],
            "o": [integer(1), integer(2), integer(3)],
        }
    )
    for condition in ("", "FILTER(?a < ?b)"):
        body = f"STREAM :s [RANGE 1s] {{ ?s :a ?a . ?s :b ?b {condition} }} STREAM :s [RANGE 1s] {{ ?s :c ?c }}"
        assert swjoin.rdf(f"{PREFIXES} SELECT ?s {{ {body} }}", {"http://e/s": stream}).num_rows == 0


def test_truth_of_text_with_a_language() -> None:
    assert len(answer(f"SELECT ?s {{ {BLOCK} FILTER(?o) }}", ['"a"@en', '""@en', '"b"'])) == 2


def test_tags_of_languages_compare_in_lower_case() -> None:
    query = f"SELECT ?o {{ {BLOCK} STREAM <http://e/s> [RANGE 1s] {{ ?t :p ?o }} FILTER(LANG(?o) = 'en') }}"
    assert answer(query, ['"a"@EN', '"a"@en']) == [('"a"@en',)] * 4


def test_computed_values_beside_constants() -> None:
    values = [integer(1), f'"2.5"^^<{XSD}double>', '"x"']
    assert answer(f"SELECT (COALESCE(?o + 1, 0) AS ?z) {{ {BLOCK} }}", values) == [
        (integer(0),),
        (integer(2),),
        (f'"3.5E0"^^<{XSD}double>',),
    ]
    assert answer(f"SELECT (SUBSTR(STR(?s), 10, 3) AS ?z) {{ {BLOCK} }}", values[:1]) == [('"a"',)]
    query = "SELECT (COUNT(*) AS ?n) (?n + 1 AS ?m) { STREAM :s [RANGE 1s TUMBLING] { ?s :p ?o } }"
    assert answer(query, values, [1, 2, 3]) == [(integer(3), integer(4))]


def test_a_number_that_is_not_finite_is_no_integer() -> None:
    values = [f'"{text}"^^<{XSD}double>' for text in ("INF", "NaN", "7.9")]
    query = f"SELECT (BOUND(?z) AS ?b) ?z {{ {BLOCK} BIND(xsd:integer(?o) AS ?z) }}"
    false, true = (f'"{text}"^^<{XSD}boolean>' for text in ("false", "true"))
    assert answer(query, values) == [(false, None), (false, None), (true, integer(7))]
    assert answer(f"SELECT (xsd:float(?o) AS ?z) {{ {BLOCK} }}", [f'"1e308"^^<{XSD}double>']) == [(f'"INF"^^<{XSD}float>',)]


@pytest.mark.parametrize("window", ["RANGE 1s", "RANGE 1s SLIDE 300ms", "TRIPLES 2", "ALL", "NOW"])
def test_times_at_their_bounds(window: str) -> None:
    block = f"STREAM :s [{window}] {{ ?s :p ?o }}"
    for first in (-MOST_US, MOST_US - 2):
        times = [first, first + 1, first + 2]
        assert len(answer(f"SELECT ?s {{ {block} }}", [integer(1)] * 3, times)) == 3
        assert len(answer(f"SELECT DISTINCT ?s {{ {block} }}", [integer(1)] * 3, times)) == 3
    for beyond in (-MOST_US - 1, MOST_US + 1):
        with pytest.raises(swjoin.UserError, match=f"<http://e/s>: a triple of time {beyond} us"):
            answer(f"SELECT ?s {{ {block} }}", [integer(1)], [beyond])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f'SELECT ?s {{ {BLOCK} FILTER(REGEX(STR(?s), "[")) }}', "REGEX: Invalid regular expression"),
        (f"SELECT (COUNT(DISTINCT UCASE(?o)) AS ?n) {{ {BLOCK} }}", "COUNT.DISTINCT of a computed text. is not supported"),
        (f"SELECT ?s {{ {BLOCK} FILTER(?o > 1) }}", "99999999999999999999.* has more digits than expressions keep"),
    ],
)
def test_what_the_data_do_not_allow_is_refused(query: str, message: str) -> None:
    with pytest.raises(swjoin.UserError, match=message):
        answer(query, ['"a"@en', integer(99999999999999999999)])


def test_constants_that_their_types_do_not_have_are_told_by_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(answer(f'SELECT ?s {{ {BLOCK} FILTER(?s != "x"^^xsd:integer) }}', [integer(1)])) == 1
    assert caplog.records == []


def test_a_query_with_a_byte_order_mark_and_files_of_a_pattern(tmp_path: Path) -> None:
    for name in ("b1.txt", "b2.txt"):
        (tmp_path / name).write_text(f"\ufeff1 <http://e/{name[:2]}> <http://e/p> <http://e/o> .\n")
    paths = [tmp_path / "b1.txt", tmp_path / "b2.txt"]
    found = swjoin.rdf(f"\ufeff{PREFIXES} SELECT ?s {{ {BLOCK} }}", {"http://e/s": paths})
    assert sorted(found["s"].to_pylist()) == ["<http://e/b1>", "<http://e/b2>"]
    with pytest.raises(swjoin.UserError, match="streams: http://e/s has no file"):
        swjoin.rdf(f"{PREFIXES} SELECT ?s {{ {BLOCK} }}", {"http://e/s": []})


def test_a_tab_in_a_text_is_itself() -> None:
    for text in ('"a\tb"', '"a\\tb"', '"""a\tb"""'):
        query = f"SELECT ?s {{\tSTREAM <http://e/s> [NOW] {{ ?s <http://e/p> {text} }} }}"
        stream = pa.table(
            {"ts": [1, 2], "s": ["<http://e/1>", "<http://e/2>"], "p": ["<http://e/p>"] * 2, "o": ['"a\tb"', '"a b"']}
        )
        assert swjoin.rdf(query, {"http://e/s": stream})["s"].to_pylist() == ["<http://e/1>"]

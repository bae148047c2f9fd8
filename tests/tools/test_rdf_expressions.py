"""The oracle's operators of SPARQL against Oxigraph, on all pairs of literals, and where the two differ for a reason."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pyoxigraph
import pytest

from tests.tools.rdf_expressions import (
    Call,
    ExpressionError,
    NotUnderstood,
    Term,
    condition_holds,
    evaluate,
    literal,
    parse_term,
    to_text,
    value_or_none,
)
from tests.tools.rdf_oracle import Bind, Query
from tests.tools.rdf_rows import Computed, same_cell

XSD = "http://www.w3.org/2001/XMLSchema#"
PREFIX = f"PREFIX xsd: <{XSD}> "
NUMBERS = ["1", "01", "+1", '"1"^^xsd:int', "1.0", "1.5", "-2.25", "1e0", "2.5E1", '"1"^^xsd:float', "0", '"INF"^^xsd:double']
TEXTS = ['"a"', '"a"^^xsd:string', '"b"', '""', '"1"']
MARKED = ['"a"@en', '"b"@en', '"a"@EN', '"a"@de']
TIMES = ['"2020-01-01T00:00:00Z"^^xsd:dateTime', '"2020-01-01T01:00:00+01:00"^^xsd:dateTime']
TIMES += ['"2021-01-01T00:00:00.5Z"^^xsd:dateTime', '"2020-01-01"^^xsd:date']
OTHERS = ["true", "false", '"abc"^^xsd:integer', "<http://e/a>", "<http://e/b>", '"x"^^<http://e/t>', '"y"^^<http://e/t>']
TERMS = [*NUMBERS, *TEXTS, *MARKED, *TIMES, *OTHERS]
NAN = '"NaN"^^xsd:double'
STORE = pyoxigraph.Store()


def ours(text: str) -> Term | None:
    query = Query.of(f"{PREFIX} SELECT ?r {{ STREAM <http://e/s> [NOW] {{ ?s ?p ?o }} BIND({text} AS ?r) }}")
    return next(value_or_none(element.expression, {}) for element in query.where.elements if isinstance(element, Bind))


def theirs(text: str) -> str | None:
    found: Any = STORE.query(f"{PREFIX} SELECT ?r {{ BIND({text} AS ?r) }}")
    term = next(iter(found))["r"]
    return None if term is None else to_text(parse_term(str(term)))


@functools.cache
def operand(text: str) -> Term:
    found = ours(text)
    assert found is not None
    return found


def of_pair(a: str, op: str, b: str) -> Term | None:
    """An operator's call without the parser, which is slow."""
    if op in "+-*/":
        name = "AdditiveExpression" if op in "+-" else "MultiplicativeExpression"
        return value_or_none(Call(name, {"expr": operand(a), "op": [op], "other": [operand(b)]}), {})
    return value_or_none(Call("RelationalExpression", {"expr": operand(a), "op": op, "other": operand(b)}), {})


def differing(operators: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Expressions on pairs that Oxigraph computes otherwise."""
    made = [(a, op, b) for op, (a, b) in itertools.product(operators, pairs)]
    return [f"{a} {op} {b}" for a, op, b in made if not same(of_pair(a, op, b), theirs(f"{a} {op} {b}"))]


def same(mine: Term | None, other: str | None) -> bool:
    return mine is None and other is None if mine is None or other is None else same_cell(other, Computed(to_text(mine)))


def test_equality_of_all_pairs() -> None:
    assert differing(("=", "!="), itertools.product([*TERMS, NAN], [*TERMS, NAN])) == []


def test_order_of_all_pairs() -> None:
    """Oxigraph alone orders texts of one language, and lets a term be no less than itself whatever it is."""
    pairs = [(a, b) for a, b in itertools.product(TERMS, repeat=2) if a != b and not {a, b} <= {*MARKED}]
    pairs = [(a, b) for a, b in pairs if {a, b} != {"true", "false"}]
    assert differing(("<", ">", "<=", ">="), pairs) == []
    assert ours("false < true") == literal("true", f"{XSD}boolean")
    assert ours('"a"@en < "b"@en') is None
    assert ours(f"{NAN} < 1") == ours(f"{NAN} >= 1") == ours(f"{NAN} = {NAN}") == literal("false", f"{XSD}boolean")


def test_arithmetic_of_all_pairs() -> None:
    """Without zero: Oxigraph has no quotient of 0 and a decimal."""
    operands = [*(number for number in NUMBERS if number != "0"), NAN, '"a"', '"abc"^^xsd:integer', "true", "<http://e/a>"]
    assert to_text(ours("0 / 1.5") or parse_term("<none>")) == f'"0"^^<{XSD}decimal>'
    assert ours("1 / 0") is ours("1.5 / 0.0") is None
    assert to_text(ours("1e0 / 0") or parse_term("<none>")) == f'"INF"^^<{XSD}double>'
    assert differing("+-*/", itertools.product(operands, operands)) == []


@pytest.mark.parametrize(
    "text",
    [
        *('1 IN (1.0)', '1 IN (1/0, 2)', '1 IN (1/0, 1)', '1 NOT IN (2, 3)', '1 IN ()', '"a"@en IN ("a", "a"@EN)'),
        *('1/0 = 1 || true', '1/0 = 1 && false', '1/0 = 1 || false', '!(1/0 = 1)', '!""', '!0', '!"a"', '!<http://e/a>'),
        *('-(1)', '-1.5', '-"a"', '+1e0', '1 + 2 * 3 - 4 / 2', '2 - 1 - 1', '8 / 2 / 2'),
        *('STRSTARTS("abc", "ab")', 'STRSTARTS("abc"@en, "ab")', 'STRSTARTS("abc", "ab"@en)', 'STRSTARTS(1, "1")'),
        *('STRENDS("abc", "bc")', 'CONTAINS("abc", "b")', 'CONTAINS("abc"@en, "b"@en)', 'CONTAINS("abc"@en, "b"@de)'),
        *('REGEX("abc", "B", "i")', 'REGEX("abc"@en, "^b")', 'REGEX(<http://e/a>, "a")', 'REGEX("a\\nb", "a.b", "s")'),
        *('LANG("a"@en)', 'LANG("a")', 'LANG(1)', 'LANG(<http://e/a>)', 'LANGMATCHES(LANG("a"@en-GB), "en")'),
        *('LANGMATCHES("", "*")', 'DATATYPE("a"@en)', 'DATATYPE("a")', 'DATATYPE(1)', 'DATATYPE(<http://e/a>)'),
        *('STRLEN("äb"@de)', 'STRLEN(1)', 'UCASE("ab"@en)', 'LCASE("AB")', 'SUBSTR("abc", 2)', 'SUBSTR("abc"@en, 2, 1)'),
        *('SUBSTR("abc", 0, 2)', 'CONCAT("a"@en, "b"@en)', 'CONCAT("a"@en, "b")', 'CONCAT("a", 1)', 'CONCAT("a", "b", "c")'),
        *('ABS(-1)', 'ABS(-1.5)', 'ABS("a")', 'FLOOR(-1.5)', 'CEIL(1.5)', 'ROUND(2.5)', 'ROUND(-2.5)', 'ROUND(1.5e0)'),
        *('CEIL("INF"^^xsd:double)', 'ABS("-INF"^^xsd:double)', 'FLOOR(2)', 'isNUMERIC("1"^^xsd:int)', 'isNUMERIC("1")'),
        *('isNUMERIC("abc"^^xsd:integer)', 'isIRI(<http://e/a>)', 'isURI("a")', 'isBLANK(1)', 'isLITERAL(1)', 'BOUND(?x)'),
        *('IF(1 = 1, 2, 1/0)', 'IF(1/0 = 1, 2, 3)', 'COALESCE(1/0, ?x, 2)', 'COALESCE(?x)', 'STR(<http://e/a>)', 'STR("a"@en)'),
        *('sameTerm("a", "a"@en)', 'xsd:integer("01")', 'xsd:integer(1.9)', 'xsd:integer("a")', 'xsd:double("1")'),
        *('xsd:decimal("1.50")', 'xsd:string(1.5)', 'xsd:boolean(0)', 'xsd:boolean("true")', 'xsd:integer("INF"^^xsd:double)'),
        *('xsd:integer(<http://e/a>)', 'xsd:decimal(2.5e0)', '?x', '?x = ?x'),
    ],
)  # fmt: skip
def test_functions(text: str) -> None:
    assert same(ours(text), theirs(text)), (ours(text), theirs(text))


def test_forms_are_kept() -> None:
    """An Oxigraph store merges forms."""
    assert ours("STR(01)") == literal("01")
    assert ours('LANG("a"@EN)') == literal("en")
    assert ours("sameTerm(1, 01)") == literal("false", f"{XSD}boolean")
    assert ours("01") == literal("01", f"{XSD}integer")


def test_a_condition_with_an_error_does_not_hold() -> None:
    node = Query.of("SELECT * { STREAM <http://e/s> [NOW] { ?s ?p ?o } FILTER(?o > 1) }").where.elements[-1].expression
    assert condition_holds(node, {"o": literal("2", f"{XSD}integer")})
    assert not condition_holds(node, {"o": literal("2")})
    assert not condition_holds(node, {})
    with pytest.raises(ExpressionError):
        evaluate(node, {})


@pytest.mark.parametrize("text", ["NOW()", "<http://e/f>(1)", "EXISTS { ?s ?p ?o }"])
def test_other_functions_are_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        ours(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('"a"^^<http://www.w3.org/2001/XMLSchema#string>', '"a"'),
        ('"\\u0061\\t\\n\\"\\\\"@en-US', '"a\t\\n\\"\\\\"@en-us'),
        ("<http://e/\\U00000061>", "<http://e/a>"),
        ("_:b.1", "_:b.1"),
        ('"01"^^<http://www.w3.org/2001/XMLSchema#integer>', '"01"^^<http://www.w3.org/2001/XMLSchema#integer>'),
    ],
)
def test_terms_are_read_and_written(text: str, canonical: str) -> None:
    assert to_text(parse_term(text)) == canonical
    assert parse_term(canonical) == parse_term(text)


@pytest.mark.parametrize("text", ["a", '"a', '"a"^^x', "<a", ""])
def test_what_is_no_term_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no term"):
        parse_term(text)

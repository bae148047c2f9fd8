"""Values of terms against rdflib's; the order of terms."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import rdflib
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.row_digests import value_hashes
from swjoin.frontends.rdf.dictionary import RDF, XSD, TermDictionary, split_term
from swjoin.frontends.rdf.term_values import BLANK, BOOLEAN, IRI, NUMERIC, OTHER, SIMPLE, TAGGED, TIME, TermValues
from swjoin.frontends.rdf.written_terms import _different, written_terms

FORMS = {
    "integer": [
        "0",
        "1",
        "01",
        "+1",
        "-1",
        "-0",
        "007",
        "9223372036854775807",
        "9223372036854775808",
        "9" * 400,
        "1" * 5000,
        "abc",
        "",
        "1.0",
        "1e3",
        " 1",
        "--1",
        "+",
        "0x1",
        "१",
    ],
    "int": ["2147483647", "2147483648", "-2147483649", "5"],
    "long": ["9223372036854775807", "9223372036854775808", "-9223372036854775808"],
    "short": ["32768", "-32768"],
    "byte": ["127", "128", "-129", "300"],
    "nonNegativeInteger": ["0", "-0", "-1", "7"],
    "positiveInteger": ["0", "1"],
    "nonPositiveInteger": ["0", "1", "-3"],
    "negativeInteger": ["0", "-1"],
    "unsignedLong": ["18446744073709551615", "18446744073709551616", "-1"],
    "unsignedInt": ["4294967295", "4294967296"],
    "unsignedShort": ["65535", "65536"],
    "unsignedByte": ["255", "256"],
    "decimal": ["1", "1.0", "01.50", "+.5", "5.", "-0.0", "0.1", "1e3", "INF", ".", "", "123456789012345678901234567890.5"],
    "double": [
        "1",
        "1.0E0",
        "1e400",
        "-1e400",
        "1e-400",
        "INF",
        "-INF",
        "+INF",
        "NaN",
        "-0.0",
        "inf",
        "nan",
        "Infinity",
        "1_0",
        "e1",
    ],
    "float": ["0.1", "INF", "NaN", "3.4E38", "abc"],
    "boolean": ["true", "false", "1", "0", "TRUE", "yes", ""],
    "dateTime": [
        "2020-02-29T12:30:45",
        "2020-02-29T12:30:45Z",
        "2020-02-29T12:30:45.5+01:00",
        "1969-12-31T23:59:59.999999-14:00",
        "2021-02-29T00:00:00",
        "2020-13-01T00:00:00",
        "2020-01-01",
        "2020-01-01T24:00:00Z",
        "2020-01-01T24:00:01Z",
        "2020-01-01T00:00:60Z",
        "2020-1-1T00:00:00",
        "2020-01-01 00:00:00",
        "2020-01-01T00:00:00+14:01",
        "-0001-01-01T00:00:00Z",
        "12020-01-01T00:00:00Z",
        "02020-01-01T00:00:00Z",
        "292277-01-09T04:00:54Z",
        "400000-01-01T00:00:00Z",
        "2020-01-01T00:00:00.Z",
        "2020-01-01T00:00:00z",
        "2020-01-01T00:00:00.1234567Z",
        "0001-01-01T00:00:00Z",
        "",
    ],
    "dateTimeStamp": ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00"],
    "date": ["2020-01-01"],
    "string": ["x"],
}
TERMS = [f'"{form}"^^<{XSD}{kind}>' for kind, forms in FORMS.items() if kind != "string" for form in forms]
TERMS += ["<http://x/a>", "<urn:b>", "_:b0", "_:a", '"x"', '""', '"a\\"b\\\\c\\n"', '"x"@en', '"x"@de-at', '"y"^^<urn:type>']
RANKS = {"decimal": 1, "float": 2, "double": 3}


def values_of(terms: list[str]) -> TermValues:
    dictionary = TermDictionary()
    dictionary.encode(pa.array(terms))
    assert len(dictionary) == len(terms)
    return TermValues(dictionary)


# rdflib takes what Python's converters take: spaces, underscores, other digits, `inf`, zones in lower case.
LENIENT = {("integer", " 1"), ("integer", "१"), ("double", "inf"), ("double", "nan"), ("double", "Infinity"), ("double", "1_0")}
LENIENT |= {("decimal", "1e3"), ("decimal", "INF"), ("dateTime", "2020-01-01T00:00:00z"), ("dateTime", "2020-01-01 00:00:00")}
LENIENT |= {("dateTime", "2020-01-01"), *(("dateTime", f"2020-01-01T00:00:00{end}") for end in ("+14:01", ".Z"))}


@pytest.mark.filterwarnings("ignore:Parsing weird boolean")
@pytest.mark.parametrize("kind", [kind for kind in FORMS if kind != "string"])
def test_values_are_those_of_rdflib(kind: str) -> None:
    forms = FORMS[kind]
    values = values_of([f'"{form}"^^<{XSD}{kind}>' for form in forms])
    for code, form in enumerate(forms):
        theirs = rdflib.Literal(form, datatype=rdflib.URIRef(XSD + kind), normalize=False)
        mine, value = int(values.kind[code]), theirs.value
        assert values.text[code].as_py() == form
        assert values.datatype[code].as_py() == XSD + kind
        if mine == NUMERIC:
            assert values.rank[code] == RANKS.get(kind, 0)
            assert values.is_number[code]
            want = float(form)
            assert values.number[code] == want or (math.isnan(want) and math.isnan(values.number[code]))
            if len(form) < 4000:
                assert value is not None
                assert not theirs.ill_typed
                whole = value == value and abs(value) != math.inf and value == int(value)
                fits = whole and -(1 << 63) <= value < 1 << 63 and (kind not in ("float", "double") or abs(value) < 1 << 53)
                assert values.is_integer[code] == fits
                assert values.integer[code] == (int(value) if fits else 0)
        elif mine == BOOLEAN:
            assert values.truth[code] == value
        elif mine == TIME:
            assert values.is_time[code]
            if isinstance(value, datetime):
                known = value if value.tzinfo else value.replace(tzinfo=UTC)
                seconds = (known - datetime(1970, 1, 1, tzinfo=UTC)) // (known.resolution)
                assert values.time_us[code] == seconds
        else:
            assert mine == OTHER
            assert not values.is_number[code]
            assert not values.is_time[code]
            assert not values.is_integer[code]
            assert (
                theirs.ill_typed
                or value is None
                or (kind, form) in LENIENT
                or kind == "date"
                or form == "TRUE"
                or _ranged(kind)
            )


def _ranged(kind: str) -> bool:
    """Types of whose bounds rdflib knows some only."""
    return kind in FORMS and kind not in ("decimal", "double", "float", "boolean", "dateTime", "integer", "string")


def test_which_literals_are_ill_typed() -> None:
    good = {
        "integer": 11,
        "int": ["2147483647", "5"],
        "long": ["9223372036854775807", "-9223372036854775808"],
        "short": ["-32768"],
        "byte": ["127"],
        "nonNegativeInteger": ["0", "-0", "7"],
        "positiveInteger": ["1"],
        "nonPositiveInteger": ["0", "-3"],
        "negativeInteger": ["-1"],
        "unsignedLong": ["18446744073709551615"],
        "unsignedInt": ["4294967295"],
        "unsignedShort": ["65535"],
        "unsignedByte": ["255"],
        "decimal": ["1", "1.0", "01.50", "+.5", "5.", "-0.0", "0.1", "123456789012345678901234567890.5"],
        "double": 10,
        "float": ["0.1", "INF", "NaN", "3.4E38"],
        "boolean": ["true", "false", "1", "0"],
        "dateTime": [
            *FORMS["dateTime"][:4],
            "2020-01-01T24:00:00Z",
            "-0001-01-01T00:00:00Z",
            "12020-01-01T00:00:00Z",
            "292277-01-09T04:00:54Z",
            "2020-01-01T00:00:00.1234567Z",
            "0001-01-01T00:00:00Z",
        ],
        "dateTimeStamp": ["2020-01-01T00:00:00Z"],
        "date": [],
    }
    for kind, wanted in good.items():
        forms = FORMS[kind]
        values = values_of([f'"{form}"^^<{XSD}{kind}>' for form in forms])
        found = [form for form, one in zip(forms, values.kind, strict=True) if one != OTHER]
        assert found == (forms[:wanted] if isinstance(wanted, int) else wanted), kind


def test_times() -> None:
    cases = {
        "1970-01-01T00:00:00Z": 0,
        "1970-01-01T00:00:00.000001": 1,
        "1970-01-01T00:00:00.1234567Z": 123456,
        "1969-12-31T24:00:00Z": 0,
        "1970-01-01T01:30:00+01:30": 0,
        "0000-03-01T00:00:00Z": -719_468 * 86_400_000_000,
        "-0001-12-31T00:00:00Z": (-719_528 - 1) * 86_400_000_000,
        "12020-01-01T00:00:00Z": (18_262 + 25 * 146_097) * 86_400_000_000,
    }
    values = values_of([f'"{form}"^^<{XSD}dateTime>' for form in cases])
    assert dict(zip(cases, values.time_us.tolist(), strict=True)) == cases
    assert values.is_time.all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.datetimes(), min_size=1, max_size=20, unique=True))
def test_random_times(times: list[datetime]) -> None:
    values = values_of([f'"{time.isoformat()}"^^<{XSD}dateTime>' for time in times])
    want = [(time - datetime(1970, 1, 1)) // time.resolution for time in times]
    assert values.time_us.tolist() == want


def test_kinds_and_texts() -> None:
    terms = [
        "<http://x/a>",
        "_:b",
        '"a\\"b\\\\c\\n\\u0001é"',
        '"x"@en',
        f'"1"^^<{XSD}byte>',
        f'"1"^^<{XSD}boolean>',
        '"y"^^<urn:type>',
    ]
    values = values_of([*terms, f'"2020-01-01T00:00:00Z"^^<{XSD}dateTime>'])
    assert values.kind.tolist() == [IRI, BLANK, SIMPLE, TAGGED, NUMERIC, BOOLEAN, OTHER, TIME]
    assert values.text.to_pylist()[:7] == ["http://x/a", None, 'a"b\\c\n\x01é', "x", "1", "1", "y"]
    assert values.language.to_pylist() == [None, None, None, "en", None, None, None, None]
    types = [None, None, XSD + "string", RDF + "langString", XSD + "byte", XSD + "boolean", "urn:type", XSD + "dateTime"]
    assert values.datatype.to_pylist() == types
    assert len(values_of([])) == 0


def sort_key(term: str) -> tuple[object, ...]:
    """The order, from the parts of the term, by Python's own types."""
    parts, last = split_term(term), term.encode()
    if parts.kind != "literal":
        return (0 if parts.kind == "blank" else 1, last)
    short = (parts.datatype or "").removeprefix(XSD)
    values = values_of([term])
    if values.kind[0] == NUMERIC:
        if math.isnan(values.number[0]):
            return (2, 1, last)
        exact = Decimal(parts.text.replace("INF", "Infinity"))
        value = exact if short not in ("double", "float") else Decimal(float(exact))
        return (
            2,
            0,
            float(value),
            value if 1 << 53 < abs(float(value)) < math.inf and values.rank[0] < 2 else Decimal(float(value)),
            last,
        )
    if values.kind[0] == BOOLEAN:
        return (3, bool(values.truth[0]), last)
    if values.kind[0] == TIME:
        return (4, int(values.time_us[0]), last)
    if values.kind[0] in (SIMPLE, TAGGED):
        return (5, parts.text.encode(), parts.language is not None, last)
    return (6, last)


def test_order() -> None:
    terms = [term for term in TERMS if len(term) < 1000]
    terms += [
        '"é"',
        '"z"',
        '"Z"',
        '"\U0001f600"',
        '"\ufb01"',
        f'"9007199254740993"^^<{XSD}integer>',
        f'"9007199254740992"^^<{XSD}long>',
    ]
    wanted = sorted(terms, key=sort_key)
    for seed in range(5):
        given_terms = list(terms)
        random.Random(seed).shuffle(given_terms)
        values = values_of(given_terms)
        assert [given_terms[code] for code in values.of_order] == wanted
        assert (values.of_order[values.order] == np.arange(len(terms))).all()


def test_numbers_too_large_to_convert() -> None:
    digits = "7" * 5000
    forms = [digits, "-" + digits, "0" * 5000, "-" + "0" * 4999 + "1"]
    values = values_of([f'"{form}"^^<{XSD}integer>' for form in forms])
    assert values.number.tolist() == [math.inf, -math.inf, 0.0, -1.0]
    assert values.is_integer.tolist() == [False, False, True, True]
    assert values_of([f'"{digits}"^^<{XSD}byte>']).kind.tolist() == [OTHER]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 9), st.integers(0, 2)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_different_numbers_are_found(pairs: list[tuple[int, int]]) -> None:
    words = np.array([word for word, _ in pairs], np.int64)
    for kinds in (np.array([kind for _, kind in pairs], np.int8), np.zeros(len(pairs), np.int8)):
        first, place = _different(words, kinds)
        assert (words[first][place] == words).all()
        assert (kinds[first][place] == kinds).all()
        assert len(first) == len(set(zip(words.tolist(), kinds.tolist(), strict=True)))


def test_numbers_have_the_hashes_of_their_texts() -> None:
    numbers = pa.array([1.5, None, float("nan"), -0.0, 7.0, float("inf"), 1.5])
    ranks = pa.array([1, 1, 2, 2, None, 0, 2], pa.int64())
    terms = written_terms("number", [numbers, ranks])
    plain = pa.array(terms.to_pylist(), pa.string())
    assert value_hashes(terms).tolist() == value_hashes(plain).tolist()
    assert plain.to_pylist()[1] is plain.to_pylist()[4] is plain.to_pylist()[5] is None

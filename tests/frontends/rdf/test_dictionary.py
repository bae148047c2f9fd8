"""Codes of terms, as properties; the parts of terms; terms of computed values against rdflib and Python."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyoxigraph
import pytest
import rdflib
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.errors import RunFailed
from swjoin.frontends.rdf import dictionary
from swjoin.frontends.rdf.dictionary import (
    DECIMAL,
    DOUBLE,
    FLOAT,
    INTEGER,
    LANG_STRING,
    STRING,
    XSD,
    Term,
    TermDictionary,
    boolean_texts,
    join_term,
    number_texts,
    split_term,
    string_texts,
)

texts = st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)), max_size=60)
KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(KINDS), st.integers(0, 3))
def test_codes_are_given_in_order_of_appearance(batches: list[list[str | None]], kind: pa.DataType, skipped: int) -> None:
    dictionary, want = TermDictionary(), dict[str, int]()
    for batch in batches:
        for text in batch[skipped:]:
            if text is not None:
                want.setdefault(text, len(want))
        column = pa.array(batch, pa.string())[skipped:]
        column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
        codes = dictionary.encode(column)
        assert codes.tolist() == [-1 if text is None else want[text] for text in batch[skipped:]]
        assert dictionary.decode(codes).to_pylist() == batch[skipped:]
    assert dictionary.texts().to_pylist() == list(want)
    assert len(dictionary) == len(want)
    for text, code in want.items():
        assert dictionary.code_of(text) == dictionary.add(text) == code
        assert dictionary.text_of(code) == text
    assert dictionary.code_of("no such term") is None


def test_a_single_term_is_looked_up_with_bytes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read terms in blocks; what is behind the last one may be no memory of this process."""
    find, seen = dictionary._find_one, []

    def checked(data: Any, size: int, *more: Any) -> int:
        seen.append(len(data) - size)
        return int(find(data, size, *more))

    monkeypatch.setattr(dictionary, "_find_one", checked)
    terms = TermDictionary()
    for text in ("", "<x:a>", "x" * 1000):
        assert terms.code_of(text) is None
        assert terms.add(text) == terms.code_of(text)
    assert min(seen) >= dictionary.BLOCK_BYTES
    assert len(seen) == 6


def test_terms_that_differ_little() -> None:
    """All lengths, and pairs that differ in one byte anywhere: the hash and the comparison read every byte."""
    terms = ["a" * size for size in range(70)]
    terms += [f"{'a' * at}b{'a' * (size - at - 1)}" for size in (1, 7, 8, 9, 15, 16, 17, 31, 40) for at in range(size)]
    dictionary = TermDictionary()
    assert dictionary.encode(pa.array(terms)).tolist() == list(range(len(terms)))
    assert dictionary.encode(pa.array(terms[::-1])).tolist() == list(range(len(terms)))[::-1]


def test_many_terms_and_the_limit() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1 << 17, 300_000)
    column = pa.array([f"<http://example.org/{n}>" for n in numbers.tolist()])
    dictionary = TermDictionary()
    codes = dictionary.encode(pa.chunked_array([column[:100], column[100:]]))
    first = {int(n): i for i, n in reversed(list(enumerate(numbers)))}
    order = {n: rank for rank, n in enumerate(sorted(first, key=first.__getitem__))}
    assert codes.tolist() == [order[int(n)] for n in numbers]
    assert dictionary.nbytes > sum(len(f"<http://example.org/{n}>") for n in first)
    with pytest.raises(RunFailed, match=r"distinct RDF terms in .* bytes, above its limit"):
        TermDictionary(limit_bytes=1 << 18).encode(column)
    with pytest.raises(TypeError, match="terms are strings, not int64"):
        dictionary.encode(pa.array([1]))


def test_parts_of_terms() -> None:
    cases = {
        "<http://x/é>": Term("iri", "http://x/é"),
        "_:a.b": Term("blank", "a.b"),
        '""': Term("literal", "", None, STRING),
        '"a\\"b\\\\\\n\\u0001\\U0001F600"': Term("literal", 'a"b\\\n\x01\U0001f600', None, STRING),
        '"a"@en-GB': Term("literal", "a", "en-gb", LANG_STRING),
        f'"01"^^<{XSD}integer>': Term("literal", "01", None, f"{XSD}integer"),
    }
    for text, term in cases.items():
        assert split_term(text) == term
        assert split_term(join_term(term)) == term
    for text in ("", "x", '"', '"a"x', "a:b", '"a"^^a'):
        with pytest.raises(ValueError, match="no RDF term"):
            split_term(text)


def lexical(text: str | None) -> str:
    assert text is not None
    return split_term(text).text


@settings(max_examples=300, deadline=None)
@given(st.floats(), st.sampled_from([FLOAT, DOUBLE]))
def test_doubles_are_written_as_xsd_says(number: float, rank: int) -> None:
    if rank == FLOAT:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    [text] = number_texts(np.array([number]), np.array([rank], np.int8)).to_pylist()
    form = lexical(text)
    if math.isfinite(number):
        assert (float(form) if rank == DOUBLE else np.float32(form)) == number
        assert math.copysign(1, float(form)) == math.copysign(1, number)
        mantissa, exponent = form.split("E")
        whole, fraction = mantissa.lstrip("-").split(".")
        assert len(whole) == 1
        assert whole != "0" or number == 0
        assert fraction == "0" or not fraction.endswith("0")
        assert exponent == str(int(exponent))
    else:
        assert form == ("NaN" if math.isnan(number) else "INF" if number > 0 else "-INF")
    value = rdflib.Literal(form, datatype=rdflib.XSD.double).value
    assert value == number or math.isnan(number) or rank == FLOAT


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(1 << 63), (1 << 63) - 1))
def test_decimals_and_integers(number: float, integer: int) -> None:
    ranks = np.array([DECIMAL, INTEGER], np.int8)
    texts = number_texts(np.array([number, float(integer)]), ranks, np.array([0, integer])).to_pylist()
    assert texts[1] == f'"{integer}"^^<{XSD}integer>'
    form = lexical(texts[0])
    assert "E" not in form.upper()
    assert Decimal(form) == Decimal(f"{number:.15g}")
    assert "." not in form or not form.endswith(("0", "."))
    assert form.lstrip("-") == "0" or form.lstrip("-0.") or number == 0


def test_texts_of_values() -> None:
    numbers = np.array([7.0, 3.5, 7.0, 7.5, np.inf, -np.inf, np.nan, 1e21, -0.0, np.inf])
    ranks = np.array([INTEGER, DECIMAL, DECIMAL, DOUBLE, DOUBLE, FLOAT, DOUBLE, DECIMAL, DECIMAL, DECIMAL], np.int8)
    forms = [None if text is None else lexical(text) for text in number_texts(numbers, ranks).to_pylist()]
    assert forms == ["7", "3.5", "7", "7.5E0", "INF", "-INF", "NaN", "1" + "0" * 21, "0", None]
    assert boolean_texts(np.array([True, False])).to_pylist() == [f'"{word}"^^<{XSD}boolean>' for word in ("true", "false")]
    values = ['a"b\\\n\r\t\x00\x7f', "é\u2028\ufffe", None, ""]
    got = string_texts(pa.array(values), pa.array(["en", None, None, None])).to_pylist()
    want = [pyoxigraph.Literal(values[0], language="en"), pyoxigraph.Literal(values[1]), None, pyoxigraph.Literal("")]
    assert got == [None if term is None else str(term) for term in want]
    assert string_texts(pa.array(["x"])).to_pylist() == ['"x"']

"""The parser of lines against pyoxigraph's, on right lines, mutated ones and random terms; batches that are cut anywhere."""

from __future__ import annotations

import random
import re

import numpy as np
import pyarrow as pa
import pyoxigraph
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.frontends.rdf.dictionary import TermDictionary, join_term, split_term
from swjoin.frontends.rdf.ntriples import OBJECT, PREDICATE, REASONS, SUBJECT, TIMES, LineParser, TermReader

XSD = "http://www.w3.org/2001/XMLSchema#"
LINES = [
    "<http://example.org/s> <http://example.org/p> <http://example.org/o> .",
    "<a:s><a:p><a:o>.",
    "\t <a:s>\t<a:p>  _:b0 . # comment",
    '_:a.b <a:p> "text, \\"quoted\\" \\u00e9 \\U0001F600 \\t\\n\\r\\b\\f\\\\ \\\'" .',
    '_:a-b.<a:p> "plain"@en-GB .',
    f'<a:s> <a:p> "1"^^<{XSD}integer> .',
    f'<a:s> <a:p> "x" ^^ <{XSD}string> .',
    '<a:s> <a:p> "\tcontrol \x01\x7f\x00"@de.',
    "<http://u:p@host:80/a/b;c?d=e&f=g#h> <urn:x:y> <http://é.org/ü?\ue000#ß> .",
    '<http://[::1]:8080/> <a:%41> "é\u20ac\U0001f600\ufffe" .',
    "<mailto:a@b.c> <tag:x,2020:y> <http://x/\\u0062\\U000000e9> .",
    '<a:s> <a:p> "" .',
    '<a:s> <a:p> "x"@de-Latn-1996 .',
    "_:é·1 <a:p> _:1 .",
    "<a:s> <a:p> <a:o> <a:graph> .",
    "<a:s> <a:p> <a:o> _:graph.",
    "# a comment",
    "",
    "   ",
]
ALPHABET = [
    *'<>"\\_:.@^#%/?[]{}|`~ -+\t',
    "a",
    "Z",
    "9",
    "é",
    "·",
    "\ue000",
    "\ufdd0",
    "\x7f",
    "\x80",
    "\xa0",
    "\ud7ff",
    "\U000e0001",
]
PIECES = [
    "\\u0041",
    "\\uD800",
    "\\U00110000",
    "\\u00",
    "\\n",
    "%41",
    "%4",
    "://",
    "@en",
    "^^",
    f"^^<{XSD}string>",
    "_:",
    " .",
    "\r",
    "<<( ",
]


def oxigraph(line: bytes, quads: bool) -> list[tuple[str, ...]] | None:
    """Terms of a line's triples; None when there is something that is none."""
    form = pyoxigraph.RdfFormat.N_QUADS if quads else pyoxigraph.RdfFormat.N_TRIPLES
    try:
        return [tuple(str(t) for t in (q.subject, q.predicate, q.object)) for q in pyoxigraph.parse(line, form)]
    except SyntaxError:
        return None


def as_oxigraph_has_it(term: str) -> str:
    """It has labels without scopes."""
    return re.sub("^_:b0x", "_:", term)


def ours(line: bytes, quads: bool, dictionary: TermDictionary | None = None) -> list[tuple[str, ...]] | None:
    dictionary = dictionary or TermDictionary()
    parsed = LineParser(dictionary, graphs=quads).parse(line)
    if parsed.malformed:
        return None
    terms = [dictionary.decode(codes).to_pylist() for codes in (parsed.s, parsed.p, parsed.o)]
    return [tuple(map(as_oxigraph_has_it, row)) for row in zip(*terms, strict=True)]


def intended(line: bytes, quads: bool) -> bool:
    """Whether we are to differ on a line: by what RDF 1.2 added (terms that are triples, directions of text), by an address of
    IPv6 whose characters are right, or by a language tag that N-Triples allows and BCP 47 does not: then not with another."""
    if b"<<" in line or re.search(rb"@[a-zA-Z0-9-]+--", line) or re.search(rb"//[^/?#>]*\[", line):
        return True
    tame = re.sub(rb"@[a-zA-Z]+(-[a-zA-Z0-9]+)*", b"@en", line)
    return tame != line and ours(tame, quads) == oxigraph(tame, quads)


def test_right_lines_have_the_terms_of_oxigraph() -> None:
    for line in LINES:
        for quads in (False, True):
            for end in ("", "\n", "\r\n", "\n\n"):
                data = (line + end).encode()
                assert ours(data, quads) == oxigraph(data, quads), data
    assert [ours(line.encode(), False) is None for line in LINES].count(True) == 3  # two have a graph, one a label before a dot


def mutated(rng: random.Random) -> bytes:
    text = list(rng.choice(LINES))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(text) + 1)
        how = rng.randrange(5)
        if how == 0:
            text[at:at] = rng.choice(ALPHABET)
        elif how == 1:
            text[at:at] = rng.choice(PIECES)
        elif how == 2:
            del text[at : at + rng.choice([1, 1, 2, 5])]
        elif how == 3:
            text[at : at + 1] = rng.choice(ALPHABET)
        else:
            other = rng.choice(LINES)
            text[at:] = other[rng.randrange(len(other) + 1) :]
    data = bytearray("".join(text).encode(errors="surrogatepass"))
    if rng.random() < 0.1 and data:
        data[rng.randrange(len(data))] = rng.choice([0, 1, 10, 13, 0x7F, 0x80, 0xC0, 0xC3, 0xE2, 0xED, 0xF4, 0xFF])
    return bytes(data)


def outcome(line: bytes, quads: bool) -> tuple[object, object]:
    """What ours and pyoxigraph make of a line; where only one of them reads all of it, whether the other does at all."""
    return ours(line, quads), oxigraph(line, quads)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_lines(seed: int) -> None:
    rng = random.Random(seed)
    accepted = differing = 0
    for _ in range(3000):
        line, quads = mutated(rng), rng.random() < 0.3
        mine, theirs = outcome(line, quads)
        if mine == theirs:
            accepted += mine is not None
        else:
            assert intended(line, quads), (line, mine, theirs)
            assert mine is None or theirs is None
            differing += 1
    assert 500 < accepted < 2900
    assert differing < 150


characters = st.characters(exclude_categories=["Cs"])
iris = st.builds(
    lambda scheme, rest: f"<{scheme}:{rest}>",
    st.sampled_from(["http", "urn", "a+b-c.1", "1x", ""]),
    st.text(st.one_of(st.sampled_from("/?#:@%[]ab1-._~!$&'()*+,;="), characters), max_size=12),
)
literals = st.builds(
    lambda text, suffix: join_term(split_term('"x"')._replace(text=text)) + suffix,
    st.text(characters, max_size=12),
    st.sampled_from(["", "@en", "@DE-at", f"^^<{XSD}integer>", f"^^<{XSD}string>", "^^<a>"]),
)
blanks = st.text(st.one_of(st.sampled_from("ab1-._:"), characters), min_size=1, max_size=6).map("_:{}".format)


@settings(max_examples=500, deadline=None)
@given(st.one_of(iris, blanks), iris, st.one_of(iris, literals, blanks))
def test_random_terms(s: str, p: str, o: str) -> None:
    line = f"{s} {p} {o} .".encode()
    mine, theirs = outcome(line, False)
    assert mine == theirs or ((mine is None) != (theirs is None) and "[" in s + p + o)


@settings(max_examples=300, deadline=None)
@given(st.text(characters, max_size=30))
def test_texts_survive(text: str) -> None:
    term = join_term(split_term('"x"')._replace(text=text))
    assert term == str(pyoxigraph.Literal(text))
    assert split_term(term).text == text
    assert ours(f"<a:s> <a:p> {term} .".encode(), False) == [("<a:s>", "<a:p>", term)]


def test_one_term_has_one_spelling() -> None:
    dictionary = TermDictionary()
    groups = [
        ['"ab"', '"a\\u0062"', '"\\U00000061b"', f'"ab"^^<{XSD}string>', f'"ab" ^^ <{XSD[:-1]}\\u0023string>'],
        ['"ab"@en-gb', '"ab"@EN-GB', '"ab" @en-GB', '"a\\u0062"@en-gb'],
        ["<http://x/é>", "<http://x/\\u00E9>", "<http://x/\\u00e9>"],
        ['"\t"', '"\\t"', '"\\u0009"'],
        *([f'"{form}"^^<{XSD}integer>'] for form in ("1", "01", "+1", "1.0")),
        ["<http://x/%C3%A9>"],
        ["<HTTP://x/é>"],
        ['"AB"@en-gb'],
        ['"ab"@en'],
    ]
    text = "".join(f"<a:s> <a:p> {term} .\n" for group in groups for term in group)
    parsed = LineParser(dictionary).parse(text.encode())
    assert not parsed.malformed
    codes = iter(parsed.o.tolist())
    found = [{next(codes) for _ in group} for group in groups]
    assert all(len(group) == 1 for group in found)
    assert len(set.union(*found)) == len(groups)


def triples_of(parts: list[bytes], times: int) -> tuple[list[tuple[object, ...]], list[tuple[int, str, str]]]:
    dictionary = TermDictionary()
    parser, line = LineParser(dictionary, times=times), 1
    rows: list[tuple[object, ...]] = []
    bad = []
    for part in parts:
        parsed = parser.parse(part, line)
        line += parsed.line_count
        ts = parsed.ts.tolist() if parsed.ts is not None else [None] * len(parsed.s)
        terms = [dictionary.decode(codes).to_pylist() for codes in (parsed.s, parsed.p, parsed.o)]
        rows += zip(ts, *terms, strict=True)
        bad += [(m.line, m.reason, m.text) for m in parsed.malformed]
    return rows, bad


def test_lines_cut_anywhere_give_the_same() -> None:
    rng = random.Random(7)
    lines = [line for line in LINES for _ in range(3)] + ["x <a:p> .", "<a:s> <a:p> <a:" + "o" * 5000 + "> ."] * 40
    rng.shuffle(lines)
    ends = [rng.choice(["\n", "\r\n", "\r"]) for _ in lines]
    whole = [(f"{rng.randrange(-9, 9)} {line}" if line.strip() and line[0] != "#" else line) for line in lines]
    pieces = [(line + end).encode() for line, end in zip(whole, ends, strict=True)]
    want = triples_of([b"".join(pieces)], TIMES)
    assert len(want[0]) > 70
    assert len(want[1]) > 40
    for _ in range(20):
        parts, part = [], b""
        for i, piece in enumerate(pieces):
            part += piece
            follows = pieces[i + 1][:1] if i + 1 < len(pieces) else b""
            if rng.random() < 0.2 and not (part.endswith(b"\r") and follows == b"\n"):
                parts.append(part)
                part = b""
        assert triples_of([*parts, part], TIMES) == want


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x <a:s> <a:p> <a:o> .", "the time is no integer of 64 bits"),
        ("1.5 <a:s> <a:p> <a:o> .", "the time is no integer of 64 bits"),
        ("9223372036854775808 <a:s> <a:p> <a:o> .", "the time is no integer of 64 bits"),
        ("-9223372036854775809 <a:s> <a:p> <a:o> .", "the time is no integer of 64 bits"),
        ('1 "s" <a:p> <a:o> .', "the subject is neither an IRI nor a blank node"),
        ("1 <a:s> _:p <a:o> .", "the predicate is no IRI"),
        ("1 <a:s> <a:p> o .", "the object is no IRI, no blank node and no literal"),
        ("1 <a:s> <a:p> <a:o>", "no dot ends the triple"),
        ("1 <a:s> <a:p> <a:o> <a:g> .", "no dot ends the triple"),
        ("1 <a:s> <a:p> <a:o> . .", "text follows the dot"),
        ("1 <a:s> <a:p> <a:o .", "an IRI is not closed by >"),
        ('1 <a:s> <a:p> "o .', "a string is not closed by a quote"),
        ("1 <a:s> <a:p> <o> .", "an IRI has no scheme"),
        ("1 <a:s> <a:p> <a: o> .", "an IRI has a character that is not allowed"),
        ("1 <a:s> <a:p> <a:%4> .", "an IRI has a percent sign without two hexadecimal digits"),
        ('1 <a:s> <a:p> "\\q" .', "a backslash starts no escape of a character"),
        ('1 <a:s> <a:p> "\\uD800" .', "a backslash starts no escape of a character"),
        ('1 <a:s> <a:p> "x"@1 .', "a language tag is malformed"),
        ('1 <a:s> <a:p> "x"^^a .', "a datatype is no IRI"),
        ("1 _: <a:p> <a:o> .", "a blank node has no label, or one with a character that is not allowed"),
        (
            '1 <a:s> <a:p> "x"^^<http://www.w3.org/1999/02/22-rdf-syntax-ns#langString> .',
            "a literal of the type rdf:langString has no language",
        ),
    ],
)
def test_reasons(line: str, reason: str) -> None:
    good = "-5 <a:s> <a:p> <a:o> .\n"
    rows, bad = triples_of([f"{good}# comment\n\n{line}\n{good}".encode()], TIMES)
    assert bad == [(4, reason, line)]
    assert [row[0] for row in rows] == [-5, -5]


def test_times() -> None:
    texts = ["-9223372036854775808", "9223372036854775807", "+007", "0", "-0"]
    rows, bad = triples_of(["".join(f"{text}\t<a:s> <a:p> <a:o>.\n" for text in texts).encode()], TIMES)
    assert bad == []
    assert [row[0] for row in rows] == [int(text) for text in texts]


def test_bytes_that_are_no_text() -> None:
    for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        for term in (b'"' + data + b'"', b"<a:" + data + b">", b"_:x" + data):
            line = b"<a:s> <a:p> " + term + b" ."
            parsed = LineParser(TermDictionary()).parse(line)
            assert [m.reason for m in parsed.malformed] == ["bytes that are no UTF-8"]
            assert oxigraph(line, False) is None


def test_columns_agree_with_lines() -> None:
    rng = random.Random(3)
    texts = []
    for line in LINES[:14]:
        rows = ours(line.encode(), False) or []
        texts += [term for row in rows for term in row]
    texts += [
        "",
        " <a:b>",
        "<a:b> ",
        "<a:b>x",
        '"x"@en',
        "@de",
        '"x"',
        "^^<a:b>",
        "_:a.",
        "12",
        '"x"^^',
        "<a:b",
        '"',
        "_",
        "\\",
    ]
    rng.shuffle(texts)
    for role, form in ((SUBJECT, "{} <a:p> <a:o> ."), (PREDICATE, "<a:s> {} <a:o> ."), (OBJECT, "<a:s> <a:p> {} .")):
        by_lines, by_column = TermDictionary(), TermDictionary()
        for column in (
            pa.array(texts),
            pa.array(texts, pa.large_string()).dictionary_encode(),
            pa.array(texts).cast(pa.binary()),
        ):
            codes = TermReader(by_column).read(column, role)
            for text, code in zip(texts, codes.tolist(), strict=True):
                parsed = LineParser(by_lines).parse(form.format(text).encode())
                spaced = text != text.strip()  # around a term in a line, not in a column
                assert (code >= 0) == (not parsed.malformed and not spaced), (text, code, parsed)
                if code >= 0:
                    whole = (parsed.s, parsed.p, parsed.o)[role][0]
                    assert by_column.text_of(code) == by_lines.text_of(int(whole))
                else:
                    assert REASONS[-code]


def test_a_dictionary_that_grows_gives_the_same_codes() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, 30_000, 60_000).tolist()
    text = "".join(f'<http://x/{n}> <a:p> "{n}\\u0041{"y" * (n % 50)}"@EN .\n' for n in numbers).encode()
    dictionary = TermDictionary()
    parsed = LineParser(dictionary).parse(text)
    want: dict[str, int] = {}
    for n in numbers:
        for term in (f"<http://x/{n}>", "<a:p>", f'"{n}A{"y" * (n % 50)}"@en'):
            want.setdefault(term, len(want))
    assert dictionary.texts().to_pylist() == list(want)
    assert parsed.s.tolist() == [want[f"<http://x/{n}>"] for n in numbers]
    assert not parsed.malformed

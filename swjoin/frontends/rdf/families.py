"""Many queries that differ in constants alone, as one query with a table of their constants.

What: `parse_queries(texts) -> list[Family]`; `Family`, what queries of one shape ask, with a variable for each constant of a
pattern or a template in which they differ; `Parameters`, the constants' codes, and which triples some query asks for.
Why: thousands of people ask one stream for different things. As rows of a table their constants are looked up by code, at once
for all of them, and the plan is that of one query (expression signatures of NiagaraCQ; CQELS Cloud, section 4).
Stays out: plans (`frontends.rdf.planner`), matching one query's constants (`frontends.rdf.inputs`).

Constants of filters and aggregates are part of the shape, and so are those of queries with windows of TRIPLES, which count what
each query matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.errors import UserError
from swjoin.core.lives import Window
from swjoin.frontends.rdf.algebra import Block, Const, Pattern, RdfQuery, Term, Var, parse_query, tokens_of
from swjoin.frontends.rdf.dictionary import TermDictionary

MEMBER = ":query"  # a variable that no query can have: the number of the query in its family
_SENTINEL = "<urn:swjoin:parameter:{}>"
_IRI = re.compile(r"<[A-Za-z][A-Za-z0-9+.-]*:[^\\<>]*>")
_LOCAL = re.compile(r"[A-Za-z0-9_]*")
_PIECE = re.compile(r"""(<[^<>"{}|^`\\\x00-\x20]*>|[A-Za-z][\w-]*:\w+)""", re.ASCII)
_NAMES = ("STREAM", "GRAPH", "PREFIX", "BASE", "FROM", "NAMED", "SERVICE", "LOAD")  # an IRI behind them is no constant
_Key: TypeAlias = tuple[str, ...]


class Parsed(NamedTuple):
    """A query with variables in the places of its constants, and these, in the order of the text."""

    shape: RdfQuery
    constants: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """query: what all of them ask; of several that differ, with variables for constants, or with the widest windows. variables:
    these. constants: of each member, by variable. members: for each query that was given, by name, the member that it is.
    widths: of members that differ in their windows, microseconds of each block (`blocks_of`), ascending."""

    query: RdfQuery
    variables: tuple[str, ...]
    constants: tuple[tuple[str, ...], ...]
    members: dict[str, int]
    widths: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        """Of members."""
        return max(len(self.constants), len(self.widths))

    def parameters(self, dictionary: TermDictionary) -> Parameters | None:
        """None of a family with one member. Terms that the dictionary lacks are added."""
        import pyarrow as pa

        if not self.variables:
            return None
        codes = {name: dictionary.encode(pa.array(texts, pa.large_string())) for name, texts in self._columns()}
        return Parameters(codes)

    def _columns(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return zip(self.variables, zip(*self.constants, strict=True), strict=True)


@dataclass(frozen=True)
class Parameters:
    """codes: by variable, int64 (members,)."""

    codes: dict[str, I64]

    @property
    def count(self) -> int:
        return len(next(iter(self.codes.values())))

    def of(self, names: Iterable[str]) -> list[str]:
        """Those of the variables that are parameters."""
        return [name for name in dict.fromkeys(names) if name in self.codes]

    def asked(self, names: Sequence[str], codes: Sequence[I64]) -> tuple[I64, I64]:
        """names: of parameters. codes: a column of rows for each. The rows for which some member asks, ascending, and for each
        the number of the class of members that do, as `classes` has it."""
        first, *others = names
        values, _ = self._values(first)
        found = _places(values, codes[0])
        rows = np.flatnonzero(found >= 0)
        place = found[rows]
        for i, name in enumerate(others, 1):
            values, _ = self._values(name)
            pairs, _ = self._pairs(names[: i + 1])
            found = _places(values, codes[i][rows])
            wanted = place * len(values) + found
            at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            fits = np.flatnonzero((found >= 0) & (pairs[at] == wanted))
            rows, place = rows[fits], at[fits]
        return rows, place

    def classes(self, names: Sequence[str]) -> I64:
        """Members that agree in these parameters are a class: the number of each member's."""
        return self._pairs(names)[1] if len(names) > 1 else self._values(names[0])[1]

    def _values(self, name: str) -> tuple[I64, I64]:
        """The values of a parameter, and the place of each member's among them."""
        values, places = np.unique(self.codes[name], return_inverse=True)
        return values, places

    def _pairs(self, names: Sequence[str]) -> tuple[I64, I64]:
        """As `_values`, of the pairs of a class in all parameters but the last and a place among the values of that one."""
        values, places = self._values(names[-1])
        pairs, numbers = np.unique(self.classes(names[:-1]) * len(values) + places, return_inverse=True)
        return pairs, numbers

    def members(self, names: Sequence[str], classes: I64) -> tuple[I64, I64]:
        """For rows of these classes, a row for each member of the class: positions of rows, members."""
        numbers = self.classes(names)
        by = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers)
        if len(counts) == self.count:  # each is a class of its own
            return np.arange(len(classes)), by[classes]
        begins = np.cumsum(counts) - counts
        of_row = counts[classes]
        rows = np.repeat(np.arange(len(classes)), of_row)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
        return rows, by[begins[classes[rows]] + within]


def _places(values: I64, codes: I64) -> I64:
    """Of codes among ascending values; -1 for others. Codes are places in a dictionary, so the index is an array."""
    index = np.full(int(values[-1]) + 2, -1, np.int32)
    index[values] = np.arange(len(values), dtype=np.int32)
    return index[np.minimum(codes, len(index) - 1)].astype(np.int64)


# ---------------------------------------------------------------- families


def parse_queries(texts: Mapping[str, str], subjects: Mapping[str, str]) -> list[Family]:
    """Queries by name. Each is in one family. subjects: with which errors begin, by name. UserError, one line, for a query that
    is not understood."""
    known = _Known()
    of_shape: dict[str, tuple[RdfQuery, dict[tuple[str, ...], int], dict[str, int]]] = {}
    spelled: dict[int, str] = {}  # shapes of many texts
    for name, text in texts.items():
        try:
            parsed = known.parsed(text)
        except UserError as error:
            raise (error.prefixed(subjects[name]) if name in subjects else error) from None
        key = spelled.get(id(parsed.shape))
        if key is None:
            key = repr(parsed.shape)
            if known.keeps(parsed.shape):
                spelled[id(parsed.shape)] = key
        _, vectors, members = of_shape.setdefault(key, (parsed.shape, {}, {}))
        members[name] = vectors.setdefault(parsed.constants, len(vectors))
    return list(_with_widths(_family(shape, list(vectors), members) for shape, vectors, members in of_shape.values()))


def _family(shape: RdfQuery, vectors: list[tuple[str, ...]], members: dict[str, int]) -> Family:
    """Constants that are the same for all members go back into the query; columns that are equal are one variable."""
    columns = list(zip(*vectors, strict=True))
    variables: dict[tuple[str, ...], str] = {}
    terms: list[Term] = []
    for column in columns:
        if len(set(column)) == 1:
            terms.append(Const(column[0]))
        else:
            terms.append(Var(variables.setdefault(column, f":{len(variables)}")))
    query = _with_terms(shape, lambda number: terms[number])
    constants = tuple(zip(*variables, strict=True)) if variables else ((),)
    return Family(query, tuple(variables.values()), constants, members)


def _shape(query: RdfQuery) -> Parsed:
    if any(p.block is not None and p.block.window.kind == "triples" for p in query.patterns):
        return Parsed(query, ())
    constants: list[str] = []
    template = None if query.grouped else query.template  # what groups do not have cannot be in their triples

    def taken(term: Term) -> Term:
        if isinstance(term, Var):
            return term
        constants.append(term.text)
        return Var(f":{len(constants) - 1}")

    shape = _mapped(replace(query, template=template), taken)
    return Parsed(shape if template is query.template else replace(shape, template=query.template), tuple(constants))


def _with_terms(shape: RdfQuery, of_number: Callable[[int], Term]) -> RdfQuery:
    return _mapped(shape, lambda t: of_number(int(t.name[1:])) if isinstance(t, Var) and t.name.startswith(":") else t)


def _mapped(query: RdfQuery, change: Callable[[Term], Term]) -> RdfQuery:
    """With other terms in patterns and templates."""

    def each(triple: tuple[Term, Term, Term]) -> tuple[Term, Term, Term]:
        s, p, o = triple
        return change(s), change(p), change(o)

    patterns = [Pattern(each(p.terms), p.block, p.graph) for p in query.patterns]
    template = None if query.template is None else [each(triple) for triple in query.template]
    return replace(query, patterns=patterns, template=template)


# ---------------------------------------------------------------- windows


def blocks_of(query: RdfQuery) -> list[Block]:
    """The STREAM blocks that have patterns, in the order of the text."""
    found = {pattern.block.number: pattern.block for pattern in query.patterns if pattern.block is not None}
    return [found[number] for number in sorted(found)]


def _with_widths(families: Iterable[Family]) -> Iterator[Family]:
    """With one family for all that differ in windows of RANGE alone, if these nest. Groups and DISTINCT are each query's own:
    they depend on when rows die."""
    alike: dict[str, list[Family]] = {}
    for family in families:
        query = family.query
        blanks = query.template is not None and "_:" in repr(query.template)
        ranges = all(block.window.kind == "range" for block in blocks_of(query))
        if family.variables or not ranges or query.grouped or query.distinct or blanks:
            yield family
        else:
            alike.setdefault(repr(_without_widths(query)), []).append(family)
    for several in alike.values():
        chains: list[list[Family]] = []
        for family in sorted(several, key=_widths):
            chain = next((c for c in chains if all(a <= b for a, b in zip(_widths(c[-1]), _widths(family), strict=True))), None)
            if chain is None:
                chains.append([family])
            else:
                chain.append(family)
        yield from (chain[0] if len(chain) == 1 else _nested(chain) for chain in chains)


def _widths(family: Family) -> tuple[int, ...]:
    return tuple(block.window.width_us for block in blocks_of(family.query))


def _nested(chain: Sequence[Family]) -> Family:
    members = {name: number for number, family in enumerate(chain) for name in family.members}
    return Family(chain[-1].query, (), ((),), members, tuple(map(_widths, chain)))


def _without_widths(query: RdfQuery) -> RdfQuery:
    """With [NOW] for each window."""
    patterns = []
    for pattern in query.patterns:
        block = pattern.block
        if block is not None:
            block = block._replace(window=Window("range"))
        patterns.append(pattern._replace(block=block))
    return replace(query, patterns=patterns)


# ---------------------------------------------------------------- texts that are alike


@dataclass(frozen=True)
class _Skeleton:
    """shape: of the texts. parts: their constants: the number of one that the text has, or one that all have."""

    shape: RdfQuery
    parts: tuple[int | str, ...]

    def parsed(self, constants: Sequence[str]) -> Parsed:
        return Parsed(self.shape, tuple(part if isinstance(part, str) else constants[part] for part in self.parts))


class _Spelled(NamedTuple):
    """A text. spelling: with a sentinel for each IRI that may be a constant. constants: these IRIs. spans: where they stand.
    prefixes: of the text, with colons."""

    spelling: str
    constants: list[str]
    spans: list[tuple[int, int]]
    prefixes: dict[str, str]


class _Known:
    """Texts so far. A text that differs from one before in IRIs of patterns alone is not parsed again: first its pieces are
    compared, IRIs and what is between them; what is new is read token by token, and parsed where the tokens are new, too."""

    def __init__(self) -> None:
        self._skeletons: dict[str, _Skeleton | None] = {}
        self._kept: set[int] = set()
        self._places: dict[tuple[str, ...], list[int]] = {}  # of constants among the IRIs, by what is between these
        self._alike: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[_Skeleton, dict[str, str]]] = {}

    def keeps(self, shape: RdfQuery) -> bool:
        """Whether other texts may have this very object."""
        return id(shape) in self._kept

    def parsed(self, text: str) -> Parsed:
        """UserError for a text that is no query."""
        pieces = _PIECE.split(text)
        between, iris = tuple(pieces[::2]), pieces[1::2]
        places = self._places.get(between)
        if places is not None:
            alike = self._alike.get((between, _others(iris, places)))
            if alike is not None:
                skeleton, prefixes = alike
                constants = [_constant("iri" if iris[i][0] == "<" else "name", iris[i], prefixes)[0] for i in places]
                if None not in constants:
                    return skeleton.parsed([constant for constant in constants if constant is not None])
        spelled = _spelled(text)
        if spelled is None:
            return _shape(parse_query(text))
        if spelled.spelling not in self._skeletons:
            self._skeletons[spelled.spelling] = _understood(spelled)
        found = self._skeletons[spelled.spelling]
        if found is None:
            return _shape(parse_query(text))
        self._kept.add(id(found.shape))
        self._remember(between, iris, spelled, found)
        return found.parsed(spelled.constants)

    def _remember(self, between: tuple[str, ...], iris: list[str], spelled: _Spelled, skeleton: _Skeleton) -> None:
        at, spans = 0, {}
        for i, (before, iri) in enumerate(zip(between, iris, strict=False)):
            at += len(before)
            spans[at, at + len(iri)] = i
            at += len(iri)
        places = [spans.get(span, -1) for span in spelled.spans]
        if -1 not in places and self._places.setdefault(between, places) == places:
            self._alike[between, _others(iris, places)] = skeleton, spelled.prefixes


def _others(iris: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(iri for i, iri in enumerate(iris) if i not in places)


def _spelled(text: str) -> _Spelled | None:
    """None: the text has to be parsed as it is."""
    prefixes: dict[str, str] = {}
    out: list[str] = []
    constants: list[str] = []
    spans: list[tuple[int, int]] = []
    tokens = [found for found in tokens_of(text) if found[0] != "comment"]
    places = [i for i, (_, token, _) in enumerate(tokens) if token.strip()]
    following = dict(zip(places, (tokens[i][1] for i in places[1:]), strict=False))
    before = two_before = ""
    for i, (kind, token, at) in enumerate(tokens):
        iri, rest = None, ""
        if token == "\\" or token.upper() == "BASE":
            return None
        if two_before.upper() == "PREFIX" and kind == "iri":
            if before in prefixes or _IRI.fullmatch(token) is None:
                return None
            prefixes[before] = token[1:-1]
        elif kind in ("iri", "name") and before.upper() not in _NAMES and before != "^" and following.get(i) != "(":
            iri, rest = _constant(kind, token, prefixes)
        if iri is not None:
            out.append(_SENTINEL.format(len(constants)) + rest)
            constants.append(iri)
            spans.append((at, at + len(token) - len(rest)))
        else:
            out.append(token)
        if token.strip():
            two_before, before = before, token
    return _Spelled("".join(out), constants, spans, prefixes)


def _constant(kind: str, token: str, prefixes: Mapping[str, str]) -> tuple[str | None, str]:
    """The IRI of a token, in angle brackets, and what of the token is behind it; None for one that is none."""
    if kind == "iri":
        return (token if _IRI.fullmatch(token) else None), ""
    prefix, colon, local = token.partition(":")
    whole = local.rstrip(".")
    if not colon or f"{prefix}:" not in prefixes or _LOCAL.fullmatch(whole) is None:
        return None, ""
    return f"<{prefixes[f'{prefix}:']}{whole}>", local[len(whole) :]


def _understood(spelled: _Spelled) -> _Skeleton | None:
    """None where a sentinel is elsewhere than in a pattern or a template, and where the text is no query."""
    try:
        parsed = _shape(parse_query(spelled.spelling))
    except UserError:
        return None
    count = len(spelled.constants)
    numbers = {_SENTINEL.format(number): number for number in range(count)}
    parts = tuple(numbers.get(text, text) for text in parsed.constants)
    found = {part for part in parts if isinstance(part, int)}
    elsewhere = "urn:swjoin:parameter:" in repr(parsed.shape)
    return None if elsewhere or len(found) < count else _Skeleton(parsed.shape, parts)

"""Queries' texts, of which many are alike: what each asks, as a shape, its constants and its windows.

What: `Texts.parsed(text) -> Parsed`; `with_terms`, `with_windows`, which put constants and windows into a shape again;
`blocks_of`.
Why: of 100,000 queries from one program nearly all differ in IRIs and windows alone, and rdflib takes milliseconds for each. So
a text is compared with those before, and parsed only if it is another one.
Stays out: the language (`frontends.rdf.algebra`), which queries are one plan (`frontends.rdf.families`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from swjoin.core.errors import UserError
from swjoin.core.lives import Window
from swjoin.frontends.rdf.algebra import Block, Pattern, RdfQuery, Term, Var, parse_query, tokens_of, window_of

Windows: TypeAlias = tuple[Window | None, ...]
_SENTINEL = "<urn:swjoin:parameter:{}>"
_IRI = re.compile(r"<[A-Za-z][A-Za-z0-9+.-]*:[^\\<>]*>")
_LOCAL = re.compile(r"[A-Za-z0-9_]*")
_PIECE = re.compile(r"""(<[^<>"{}|^`\\\x00-\x20]*>|[A-Za-z][\w-]*:\w+|\[[^][]*\])""", re.ASCII)
_NAMES = ("STREAM", "GRAPH", "PREFIX", "BASE", "FROM", "NAMED", "SERVICE", "LOAD")  # an IRI behind them is no constant


class Parsed(NamedTuple):
    """shape: the query with variables `:0`, `:1`, .. in the places of its constants, and the numbers of blocks for widths in
    windows of RANGE. constants: in the order of the text. windows: of the blocks (`blocks_of`), None for others than RANGE."""

    shape: RdfQuery
    constants: tuple[str, ...]
    windows: Windows


def blocks_of(query: RdfQuery) -> list[Block]:
    """The STREAM blocks that have patterns, in the order of the text."""
    found = {pattern.block.number: pattern.block for pattern in query.patterns if pattern.block is not None}
    return [found[number] for number in sorted(found)]


def shape_of(query: RdfQuery) -> Parsed:
    """Windows of TRIPLES count what a query matches, so its constants stay where they are."""
    if any(block.window.kind == "triples" for block in blocks_of(query)):
        return Parsed(query, (), (None,) * len(blocks_of(query)))
    constants: list[str] = []
    template = None if query.grouped else query.template  # what groups do not have cannot be in their triples

    def taken(term: Term) -> Term:
        if isinstance(term, Var):
            return term
        constants.append(term.text)
        return Var(f":{len(constants) - 1}")

    shape = _mapped(replace(query, template=template), taken)
    shape = normal_windows(shape if template is query.template else replace(shape, template=query.template))
    windows = tuple(block.window if block.window.kind == "range" else None for block in blocks_of(query))
    return Parsed(shape, tuple(constants), windows)


def with_terms(shape: RdfQuery, of_number: Callable[[int], Term]) -> RdfQuery:
    """With these constants, by number."""
    return _mapped(shape, lambda t: of_number(int(t.name[1:])) if isinstance(t, Var) and t.name.startswith(":") else t)


def _mapped(query: RdfQuery, change: Callable[[Term], Term]) -> RdfQuery:
    """With other terms in patterns and templates."""

    def each(triple: tuple[Term, Term, Term]) -> tuple[Term, Term, Term]:
        s, p, o = triple
        return change(s), change(p), change(o)

    patterns = [Pattern(each(p.terms), p.block, p.graph) for p in query.patterns]
    template = None if query.template is None else [each(triple) for triple in query.template]
    return replace(query, patterns=patterns, template=template)


def with_windows(shape: RdfQuery, windows: Windows) -> RdfQuery:
    """windows: of the blocks; None: the one that is there."""
    known = {block.number: window for block, window in zip(blocks_of(shape), windows, strict=True)}
    return _with_windows(shape, lambda block: known[block.number] or block.window)


def normal_windows(query: RdfQuery) -> RdfQuery:
    """With a width that is its number for each window of RANGE."""
    return _with_windows(query, lambda block: _numbered(block.number) if block.window.kind == "range" else block.window)


def _numbered(number: int) -> Window:
    return Window("range", number + 1)


def _with_windows(query: RdfQuery, change: Callable[[Block], Window]) -> RdfQuery:
    patterns = []
    for pattern in query.patterns:
        block = pattern.block
        patterns.append(pattern if block is None else pattern._replace(block=block._replace(window=change(block))))
    return replace(query, patterns=patterns)


@dataclass(frozen=True)
class _Skeleton:
    """shape: of the texts. parts: their constants: the number of one that the text has, or one that all have. blocks: numbers
    of those that have patterns."""

    shape: RdfQuery
    parts: tuple[int | str, ...]
    blocks: tuple[int, ...]

    def parsed(self, constants: Sequence[str], windows: Windows) -> Parsed:
        """windows: of all blocks, also those without patterns."""
        texts = tuple(part if isinstance(part, str) else constants[part] for part in self.parts)
        return Parsed(self.shape, texts, tuple(windows[number] for number in self.blocks))


class _Spelled(NamedTuple):
    """A text. spelling: with a sentinel for each IRI that may be a constant and each window of RANGE. constants: these IRIs.
    windows: of all blocks, None for others than RANGE. spans: where constants and windows of RANGE stand. prefixes: of the
    text, with colons."""

    spelling: str
    constants: list[str]
    windows: list[Window | None]
    spans: list[tuple[int, int]]
    prefixes: dict[str, str]


class _Alike(NamedTuple):
    """skeleton: of texts whose pieces are alike. kinds: the first characters of the pieces that may differ, letters as one: a
    name instead of an IRI would end elsewhere. prefixes, windows: of one of the texts, as `_Spelled` has them."""

    skeleton: _Skeleton
    kinds: str
    prefixes: dict[str, str]
    windows: Windows


class Texts:
    """Texts so far. A text that differs from one before in IRIs of patterns and widths of windows alone is not parsed again:
    first its pieces are compared, IRIs, windows and what is between them; what is new is read token by token, and parsed where
    the tokens are new, too."""

    def __init__(self) -> None:
        self._skeletons: dict[str, _Skeleton | None] = {}
        self._kept: set[int] = set()
        self._places: dict[tuple[str, ...], list[int]] = {}  # of constants and windows, by what is between pieces
        self._alike: dict[tuple[tuple[str, ...], tuple[str, ...]], _Alike] = {}
        self._windows: dict[str, Window | None] = {}

    def keeps(self, shape: RdfQuery) -> bool:
        """Whether other texts may have this very object."""
        return id(shape) in self._kept

    def parsed(self, text: str) -> Parsed:
        """UserError for a text that is no query."""
        pieces = _PIECE.split(text)
        between, inner = tuple(pieces[::2]), pieces[1::2]
        places = self._places.get(between)
        if places is not None:
            alike = self._alike.get((between, _others(inner, places)))
            found = None if alike is None else self._like(alike, [inner[i] for i in places])
            if found is not None:
                return found
        spelled = _spelled(text)
        if spelled is None:
            return shape_of(parse_query(text))
        if spelled.spelling not in self._skeletons:
            self._skeletons[spelled.spelling] = _understood(spelled)
        skeleton = self._skeletons[spelled.spelling]
        if skeleton is None:
            return shape_of(parse_query(text))
        self._kept.add(id(skeleton.shape))
        self._remember(between, inner, spelled, skeleton)
        return skeleton.parsed(spelled.constants, tuple(spelled.windows))

    def _like(self, alike: _Alike, pieces: Sequence[str]) -> Parsed | None:
        """What a text says that has these constants and windows; None where one of them is of another kind."""
        constants: list[str] = []
        ranges: list[Window] = []
        if _kinds(pieces) != alike.kinds:
            return None
        for piece in pieces:
            if piece[0] == "[":
                if piece not in self._windows:
                    self._windows[piece] = _range_of(piece)
                if (window := self._windows[piece]) is None:
                    return None
                ranges.append(window)
            else:
                iri, _ = _constant("iri" if piece[0] == "<" else "name", piece, alike.prefixes)
                if iri is None:
                    return None
                constants.append(iri)
        own = iter(ranges)
        return alike.skeleton.parsed(constants, tuple(None if window is None else next(own) for window in alike.windows))

    def _remember(self, between: tuple[str, ...], inner: list[str], spelled: _Spelled, skeleton: _Skeleton) -> None:
        at, spans = 0, {}
        for i, (before, piece) in enumerate(zip(between, inner, strict=False)):
            at += len(before)
            spans[at, at + len(piece)] = i
            at += len(piece)
        places = [spans.get(span, -1) for span in spelled.spans]
        if -1 not in places and self._places.setdefault(between, places) == places:
            kinds = _kinds([inner[i] for i in places])
            alike = _Alike(skeleton, kinds, spelled.prefixes, tuple(spelled.windows))
            self._alike[between, _others(inner, places)] = alike


def _kinds(pieces: Sequence[str]) -> str:
    return "".join(piece[0] if piece[0] in "<[" else "n" for piece in pieces)


def _others(pieces: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(piece for i, piece in enumerate(pieces) if i not in places)


def _spelled(text: str) -> _Spelled | None:
    """None: the text has to be parsed as it is."""
    prefixes: dict[str, str] = {}
    out: list[str] = []
    constants: list[str] = []
    windows: list[Window | None] = []
    spans: list[tuple[int, int]] = []
    tokens = [found for found in tokens_of(text) if found[0] != "comment"]
    places = [i for i, (_, token, _) in enumerate(tokens) if token.strip()]
    following = dict(zip(places, (tokens[i][1] for i in places[1:]), strict=False))
    before = two_before = ""
    until = 0  # in the text: the end of the window that is passed
    for i, (kind, token, at) in enumerate(tokens):
        if at < until:
            continue
        iri, rest = None, ""
        if token == "[" and two_before.upper() == "STREAM":
            end = text.find("]", at) + 1
            windows.append(_range_of(text[at:end]))
            if windows[-1] is not None:
                out.append(f"[RANGE {len(windows)}us]")
                spans.append((at, end))
                until = end
                two_before, before = before, "]"
                continue
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
    return _Spelled("".join(out), constants, windows, spans, prefixes)


def _range_of(piece: str) -> Window | None:
    """A window of RANGE in brackets; None for others, and where a comment may hide the end."""
    if "#" in piece:
        return None
    try:
        window = window_of(piece[1:-1])
    except UserError:
        return None
    return window if window.kind == "range" else None


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
        query = parse_query(spelled.spelling)
    except UserError:
        return None
    parsed = shape_of(query)
    for block in blocks_of(query):
        known = block.number < len(spelled.windows) and spelled.windows[block.number] is not None
        if known != (block.window.kind == "range") or (known and block.window != _numbered(block.number)):
            return None
    count = len(spelled.constants)
    numbers = {_SENTINEL.format(number): number for number in range(count)}
    parts = tuple(numbers.get(text, text) for text in parsed.constants)
    found = {part for part in parts if isinstance(part, int)}
    elsewhere = "urn:swjoin:parameter:" in repr(parsed.shape)
    blocks = tuple(block.number for block in blocks_of(query))
    return None if elsewhere or len(found) < count else _Skeleton(parsed.shape, parts, blocks)

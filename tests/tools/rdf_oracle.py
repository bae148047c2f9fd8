"""The oracle of RDF stream queries: every combination of mappings, joined and windowed as the specification says.

What: `expected(query, streams, static)`, the rows that `swjoin rdf` has to write; `same_rows`, which compares bags of rows;
`Query`, `solutions` and their parts for tests that look inside.
Why: written from `specs/rdf.md` and `specs/cqels.md` alone, so that it shares no line with what it checks: no codes, no
hashing, no epochs, no retraction; aggregates are computed anew for each instant.
Stays out: `swjoin`; operators on terms (`tests.tools.rdf_expressions`); speed.

A life is an interval of time, [born, dead) in microseconds, and one of places in the common order of arrival: (ts, 1,
(stream, row, input)) for a mapping, (t, 0, ()) before everything at t, (t, 2, ()) for a birth at the boundary t, after
everything at t. Two mappings of which one is counted (`[TRIPLES n]`) overlap by places, others by time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import urljoin

from tests.tools.rdf_expressions import (
    NUMBERS,
    Call,
    ComputedTerm,
    ExpressionError,
    NotUnderstood,
    Term,
    Variable,
    as_kind,
    condition_holds,
    less,
    number_term,
    parse_term,
    plain,
    to_text,
    value_of,
    value_or_none,
)
from tests.tools.rdf_rows import AnyOf, Cell, Computed, Row, same_rows

__all__ = ["AnyOf", "Cell", "Computed", "NotUnderstood", "Query", "Row", "expected", "same_rows", "solutions"]

StreamTriple = tuple[int, str, str, str]
StaticTriple = tuple[str, str, str]
Place = tuple[float, int, tuple[int, ...]]
NEVER: Place = (math.inf, 0, ())
ALWAYS: Place = (-math.inf, 0, ())
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_IRI = r'<[^<>"{}|^`\\\s]*>'
_STREAM = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|'
    r"'''(?:[^\\]|\\.)*?'''|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'(?:[^'\\\n]|\\.)*'|"
    rf"(?<![\w?$:-])STREAM\s*(?P<iri>{_IRI}|[\w.-]*:[\w.-]*)\s*\[(?P<window>[^\]]*)\]|"
    rf"{_IRI}|#[^\n]*",
    re.IGNORECASE | re.DOTALL,
)


class Window(NamedTuple):
    """kind: "range", "slide", "triples" or "all". size, slide: us; of triples: a count."""

    kind: str
    size: int = 0
    slide: int = 0


class Life(NamedTuple):
    """born_us, dead_us: time; born, dead: places."""

    born_us: float
    dead_us: float
    born: Place
    dead: Place
    is_counted: bool = False


ENDLESS = Life(-math.inf, math.inf, ALWAYS, NEVER)


class Source(NamedTuple):
    """window: None of static data. iri: None of the union of all static graphs. stream_index: in order of first appearance."""

    iri: str | None
    window: Window | None = None
    stream_index: int = -1


class Pattern(NamedTuple):
    """An input: terms has three terms or variables, input_index is its place in the text of the query."""

    terms: tuple[Term | Variable, ...]
    source: Source
    input_index: int


class Bind(NamedTuple):
    expression: Any
    name: str


class Condition(NamedTuple):
    expression: Any


class Block(NamedTuple):
    """A group: patterns, binds, conditions and blocks in the order of the text."""

    elements: tuple[Any, ...]


class Solution(NamedTuple):
    """A mapping of variables (unbound ones lack), and the lives of the parts that it is made of."""

    mu: Mapping[str, Term]
    lives: tuple[Life, ...]

    @property
    def born_us(self) -> float:
        return max(life.born_us for life in self.lives)

    @property
    def dead_us(self) -> float:
        return min(life.dead_us for life in self.lives)


class Key(NamedTuple):
    """A condition of GROUP BY. name: the variable that it binds, if any."""

    expression: Any
    name: str | None


@dataclass
class Query:
    """A query that was read. projected: name -> expression; template: triples of CONSTRUCT; keys: None without grouping."""

    where: Block
    patterns: list[Pattern]
    projected: dict[str, Any] = field(default_factory=dict)
    template: list[tuple[Term | Variable, ...]] | None = None
    keys: list[Key] | None = None
    having: list[Any] = field(default_factory=list)
    is_distinct: bool = False

    @staticmethod
    def of(text: str) -> Query:
        return _Reader(text).query()


def _duration_us(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]+)", text.lower())
    if found is None or found[2] not in _UNITS:
        raise NotUnderstood(f"duration {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def read_window(text: str) -> Window:
    """A window as CQELS spells it, without its brackets."""
    words = text.split()
    kind = words[0].upper() if words else ""
    if kind in ("ALL", "NOW") and len(words) == 1:
        return Window("all") if kind == "ALL" else Window("range", 0)
    if kind == "TRIPLES" and len(words) == 2:
        return Window("triples", int(words[1]))
    if kind == "RANGE" and len(words) == 2:
        return Window("range", _duration_us(words[1]))
    if kind == "RANGE" and len(words) == 3 and words[2].upper() == "TUMBLING":
        return Window("slide", _duration_us(words[1]), _duration_us(words[1]))
    if kind == "RANGE" and len(words) == 4 and words[2].upper() == "SLIDE":
        return Window("slide", _duration_us(words[1]), _duration_us(words[3]))
    raise NotUnderstood(f"window [{text}]")


class _Reader:
    """Reads a query: STREAM becomes GRAPH of a made-up IRI, which rdflib parses; from there the tree is ours."""

    def __init__(self, text: str) -> None:
        import rdflib
        from rdflib.plugins.sparql.algebra import translatePrologue
        from rdflib.plugins.sparql.parser import parseQuery

        self.sources: list[tuple[str, Window]] = []
        self.patterns: list[Pattern] = []
        self.text = text
        rewritten = _STREAM.sub(self._as_graph, text)
        before, rdflib.NORMALIZE_LITERALS = rdflib.NORMALIZE_LITERALS, False
        try:
            tree = parseQuery(rewritten)
            self.tree: Call = plain(tree[1], translatePrologue(tree[0], ""))
        finally:
            rdflib.NORMALIZE_LITERALS = before
        streams = list(dict.fromkeys(iri for iri, _ in self.sources))
        self.index_of = {iri: index for index, iri in enumerate(streams)}

    def _as_graph(self, found: re.Match[str]) -> str:
        if found["iri"] is None:
            return found[0]
        self.sources.append((self._absolute(found["iri"]), read_window(found["window"])))
        return f"GRAPH <urn:oracle:stream:{len(self.sources) - 1}>"

    def _absolute(self, iri: str) -> str:
        base = re.search(rf"\bBASE\s*({_IRI})", self.text, re.IGNORECASE)
        if not iri.startswith("<"):
            prefix, _, name = iri.partition(":")
            declared = re.search(rf"\bPREFIX\s+{re.escape(prefix)}:\s*({_IRI})", self.text, re.IGNORECASE)
            if declared is None:
                raise NotUnderstood(f"prefix {prefix}:")
            iri = f"{declared[1][:-1]}{name}>"
        return urljoin(base[1][1:-1], iri[1:-1]) if base else iri[1:-1]

    def query(self) -> Query:
        parts = self.tree.parts
        if self.tree.name not in ("SelectQuery", "ConstructQuery") or not parts.get("where"):
            raise NotUnderstood(self.tree.name)
        if unknown := [key for key in ("orderby", "limitoffset", "valuesClause", "datasetClause") if parts.get(key)]:
            raise NotUnderstood(f"{unknown}")
        where = self._block(parts["where"], Source(None))
        made = Query(where, self.patterns)
        if self.tree.name == "ConstructQuery":
            made.template = list(_triples(parts.get("template", [])))
            return made
        if parts.get("modifier", "DISTINCT") != "DISTINCT":
            raise NotUnderstood(parts["modifier"])
        made.is_distinct = "modifier" in parts
        for item in parts.get("projection", []):
            if "evar" in item.parts:
                made.projected[item.parts["evar"].name] = item.parts["expr"]
            else:
                made.projected[item.parts["var"].name] = item.parts["var"]
        self._group(made, parts)
        made.projected = made.projected or {name: Variable(name) for name in sorted(_names(where)) if not name.startswith("_:")}
        return made

    def _group(self, made: Query, parts: Mapping[str, Any]) -> None:
        made.having = _as_list(parts["having"].parts["condition"]) if parts.get("having") else []
        grouped = _as_list(parts["groupby"].parts["condition"]) if parts.get("groupby") else []
        if grouped or any(_has_aggregate(node) for node in [*made.projected.values(), *made.having]):
            made.keys = [_key(condition) for condition in grouped]
            if not made.projected or made.is_distinct:
                raise NotUnderstood("SELECT * or DISTINCT of groups")
            names = {key.name for key in made.keys}
            for node in [*made.projected.values(), *made.having]:
                if outside := _variables(node) - names:
                    raise NotUnderstood(f"variables that are no key: {outside}")
        elif made.having:
            raise NotUnderstood("HAVING without groups")

    def _block(self, node: Call, source: Source) -> Block:
        if node.name != "GroupGraphPatternSub":
            raise NotUnderstood(node.name)
        elements: list[Any] = []
        for part in _as_list(node.parts.get("part", [])):
            if part.name == "TriplesBlock":
                for terms in _triples(part.parts["triples"]):
                    elements.append(Pattern(terms, source, len(self.patterns)))
                    self.patterns.append(elements[-1])
            elif part.name == "Filter":
                elements.append(Condition(part.parts["expr"]))
            elif part.name == "Bind":
                elements.append(Bind(part.parts["expr"], part.parts["var"].name))
            elif part.name == "GraphGraphPattern" and source == Source(None):
                elements.append(self._block(part.parts["graph"], self._source(part.parts["term"])))
            else:
                raise NotUnderstood(part.name)
        return Block(tuple(elements))

    def _source(self, name: Term | Variable) -> Source:
        if isinstance(name, Variable):
            raise NotUnderstood("GRAPH of a variable")
        if not name.text.startswith("urn:oracle:stream:"):
            return Source(name.text)
        iri, window = self.sources[int(name.text.rpartition(":")[2])]
        return Source(iri, window, self.index_of[iri])


def _as_list(node: Any) -> list[Any]:
    return node if isinstance(node, list) else [node]


def _triples(blocks: Sequence[Sequence[Any]]) -> Iterator[tuple[Term | Variable, ...]]:
    for block in blocks:
        for i in range(0, len(block), 3):
            if not all(isinstance(term, Term | Variable) for term in block[i : i + 3]):
                raise NotUnderstood("a path")
            yield tuple(block[i : i + 3])


def _key(condition: Any) -> Key:
    if isinstance(condition, Call) and condition.name == "GroupAs":
        name = condition.parts.get("var")
        return Key(condition.parts["expr"], name.name if name else None)
    return Key(condition, condition.name if isinstance(condition, Variable) else None)


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    if isinstance(node, Call):
        for part in node.parts.values():
            yield from _nodes(part)
    elif isinstance(node, list):
        for part in node:
            yield from _nodes(part)


def _has_aggregate(node: Any) -> bool:
    return any(isinstance(part, Call) and part.name.startswith("Aggregate_") for part in _nodes(node))


def _variables(node: Any) -> set[str]:
    """Variables outside of aggregates."""
    if isinstance(node, Variable):
        return {node.name}
    if isinstance(node, Call) and not node.name.startswith("Aggregate_"):
        return set().union(*(_variables(part) for part in node.parts.values()))
    return set().union(*map(_variables, node)) if isinstance(node, list) else set()


def _names(element: Any) -> set[str]:
    """Variables in scope of a block, blank nodes with `_:` included."""
    if isinstance(element, Block):
        return set().union(*map(_names, element.elements))
    if isinstance(element, Pattern):
        return {term.name for term in element.terms if isinstance(term, Variable)}
    return {element.name} if isinstance(element, Bind) else set()


def first_boundary(at_us: int, slide_us: int) -> int:
    """The first multiple of the slide that is not before a time."""
    return -(-at_us // slide_us) * slide_us


class Data:
    """Streams and static graphs as terms: labels of blank nodes carry their source; a graph is a set, the default graph the
    union of all.

    streams: iri -> (ts, row, triple) in order. graphs: iri -> triples."""

    def __init__(self, streams: Mapping[str, Sequence[StreamTriple]], static: Mapping[str, Sequence[StaticTriple]]) -> None:
        self.streams = {
            iri: sorted((ts, row, self._triple(f"s{at}", spo)) for row, (ts, *spo) in enumerate(triples))
            for at, (iri, triples) in enumerate(streams.items())
        }
        self.graphs: dict[str | None, list[tuple[Term, ...]]] = {
            iri: list(dict.fromkeys(self._triple(f"g{at}", spo) for spo in triples))
            for at, (iri, triples) in enumerate(static.items())
        }
        self.graphs[None] = list(dict.fromkeys(triple for graph in self.graphs.values() for triple in graph))

    @staticmethod
    def _triple(scope: str, spo: Sequence[str]) -> tuple[Term, ...]:
        terms = map(parse_term, spo)
        return tuple(Term("blank", f"{scope}.{term.text}") if term.kind == "blank" else term for term in terms)


def fits(pattern: Pattern, triple: Sequence[Term]) -> dict[str, Term] | None:
    """The mapping of a triple, None when it does not match."""
    mu: dict[str, Term] = {}
    for wanted, term in zip(pattern.terms, triple, strict=True):
        if (mu.setdefault(wanted.name, term) if isinstance(wanted, Variable) else wanted) != term:
            return None
    return mu


def mappings(pattern: Pattern, data: Data) -> list[Solution]:
    """The mappings of an input with their lives; those that never appear are left out."""
    source, window = pattern.source, pattern.source.window
    if window is None:
        found = (fits(pattern, triple) for triple in data.graphs.get(source.iri, []))
        return [Solution(mu, (ENDLESS,)) for mu in found if mu is not None]
    assert source.iri is not None
    matched = [(ts, row, mu) for ts, row, triple in data.streams[source.iri] if (mu := fits(pattern, triple)) is not None]
    places: list[Place] = [(ts, 1, (source.stream_index, row, pattern.input_index)) for ts, row, _ in matched]
    made = []
    for at, (ts, _, mu) in enumerate(matched):
        life = Life(ts, math.inf, places[at], NEVER)
        if window.kind == "range":
            life = life._replace(dead_us=ts + window.size + 1, dead=(ts + window.size + 1, 0, ()))
        elif window.kind == "slide":
            born, dead = (first_boundary(t, window.slide) for t in (ts, ts + window.size))
            life = Life(born, dead, (born, 2, ()), (dead, 0, ()))
        elif window.kind == "triples":
            successor = places[at + window.size] if at + window.size < len(places) else NEVER
            life = life._replace(dead_us=successor[0], dead=successor, is_counted=True)
        if life.born < life.dead:
            made.append(Solution(mu, (life,)))
    return made


def overlap(a: Life, b: Life) -> bool:
    if a.is_counted or b.is_counted:
        return max(a.born, b.born) < min(a.dead, b.dead)
    return max(a.born_us, b.born_us) < min(a.dead_us, b.dead_us)


def joined(left: Sequence[Solution], right: Sequence[Solution]) -> list[Solution]:
    """All compatible pairs of which every part overlaps with every other."""
    return [
        Solution({**a.mu, **b.mu}, a.lives + b.lives)
        for a in left
        for b in right
        if all(a.mu[name] == b.mu[name] for name in a.mu.keys() & b.mu.keys())
        and all(overlap(x, y) for x in a.lives for y in b.lives)
    ]


def with_variable(solution: Solution, name: str, expression: Any) -> Solution:
    if name in solution.mu:
        raise NotUnderstood(f"BIND of a variable that is bound: {name}")
    term = value_or_none(expression, solution.mu)
    return solution if term is None else solution._replace(mu={**solution.mu, name: term})


def solved(block: Block, data: Data) -> list[Solution]:
    """The solutions of a group: its elements joined in order, its conditions at its end."""
    found = [Solution({}, ())]
    for element in block.elements:
        if isinstance(element, Bind):
            found = [with_variable(solution, element.name, element.expression) for solution in found]
        elif isinstance(element, Block):
            found = joined(found, solved(element, data))
        elif isinstance(element, Pattern):
            found = joined(found, mappings(element, data))
    conditions = [element.expression for element in block.elements if isinstance(element, Condition)]
    return [solution for solution in found if all(condition_holds(node, solution.mu) for node in conditions)]


def solutions(
    query: Query, streams: Mapping[str, Sequence[StreamTriple]], static: Mapping[str, Sequence[StaticTriple]]
) -> list[Solution]:
    """The bag of results of a query's patterns and conditions, in order of birth."""
    if not any(pattern.source.window for pattern in query.patterns):
        raise NotUnderstood("a query without a stream")
    found = solved(query.where, Data(streams, static))
    return sorted(found, key=lambda solution: (solution.born_us, -solution.dead_us))


def expected(
    query: str, streams: Mapping[str, Sequence[StreamTriple]], static: Mapping[str, Sequence[StaticTriple]]
) -> list[Row]:
    """The bag of rows of a query: projected variable -> term in N-Triples syntax or None, "born" -> us. CONSTRUCT: s, p, o.

    streams: (ts in us, s, p, o) in the order of the file; static: (s, p, o). Raises `NotUnderstood`."""
    read = Query.of(query)
    found = solutions(read, streams, static)
    if read.template is not None:
        return [row for at, solution in enumerate(found) for row in constructed(read.template, solution, at)]
    if read.keys is not None:
        return list(group_rows(read, found))
    rows = [projected(read, solution) for solution in found]
    if not read.is_distinct:
        return rows
    alive_until: dict[Hashable, float] = {}
    kept = []
    for row, solution in zip(rows, found, strict=True):
        key = tuple(cell for name, cell in row.items() if name != "born")
        if alive_until.get(key, -math.inf) <= solution.born_us:
            kept.append(row)
        alive_until[key] = max(alive_until.get(key, -math.inf), solution.dead_us)
    return kept


def _text(term: Term) -> str:
    return Computed(to_text(term)) if isinstance(term, ComputedTerm) else to_text(term)


def _cell(term: Term | None) -> Cell:
    return None if term is None else _text(term)


def projected(query: Query, solution: Solution) -> Row:
    mu = dict(solution.mu)
    for name, expression in query.projected.items():
        found = value_or_none(expression, mu)
        if found is not None:
            mu[name] = found
    return {**{name: _cell(mu.get(name)) for name in query.projected}, "born": int(solution.born_us)}


def constructed(template: Sequence[tuple[Term | Variable, ...]], solution: Solution, at: int) -> Iterator[Row]:
    """The triples of a template that are triples; its blank nodes are new in each result. at: the result's number."""
    for triple in template:
        terms: list[Term | None] = []
        for part in triple:
            if isinstance(part, Variable) and part.name.startswith("_:"):
                terms.append(Term("blank", f"t{at}.{part.name[2:]}"))
            else:
                terms.append(solution.mu.get(part.name) if isinstance(part, Variable) else part)
        s, p, o = terms
        if s and p and o and s.kind != "literal" and p.kind == "iri":
            yield {"s": _cell(s), "p": _cell(p), "o": _cell(o), "born": int(solution.born_us)}


def groups_of(query: Query, found: Sequence[Solution]) -> list[tuple[dict[str, Term], list[Solution]]]:
    """The variables that the keys of each group bind, and its results."""
    keys = query.keys or []
    groups: dict[tuple[Term | None, ...], list[Solution]] = defaultdict(list)
    for solution in found:
        mu = dict(solution.mu)
        values: list[Term | None] = []
        for key in keys:
            values.append(value := value_or_none(key.expression, mu))
            if key.name is not None and value is not None:
                mu[key.name] = value
        groups[tuple(values)].append(Solution(mu, solution.lives))
    names = [key.name for key in keys]
    return [
        ({name: term for name, term in zip(names, terms, strict=True) if name is not None and term is not None}, members)
        for terms, members in groups.items()
    ]


def group_rows(query: Query, found: Sequence[Solution]) -> Iterator[Row]:
    """Rows of GROUP BY: per boundary and non-empty group where all windows have one slide, else per change of a group."""
    windows = {pattern.source.window for pattern in query.patterns if pattern.source.window}
    slides = {window.slide for window in windows} if all(window.kind == "slide" for window in windows) else set()
    for bound, members in groups_of(query, found):
        instants: set[float] = set()
        for member in members:
            if member.born_us >= member.dead_us:
                continue  # it dies as it is born: in no group
            if len(slides) == 1:
                instants |= set(range(int(member.born_us), int(member.dead_us), next(iter(slides))))
            else:
                instants |= {member.born_us, member.dead_us} - {math.inf}
        for instant in sorted(instants):
            row = group_row(query, bound, alive_at(instant, members))
            if row is not None:
                yield {**row, "born": int(instant)}


def alive_at(instant: float, members: Sequence[Solution]) -> list[Mapping[str, Term]]:
    return [member.mu for member in members if member.born_us <= instant < member.dead_us]


def group_row(query: Query, bound: Mapping[str, Term], alive: Sequence[Mapping[str, Term]]) -> Row | None:
    """The cells of a group whose members are given; None when HAVING drops it."""

    def aggregate(call: Call) -> Term:
        return aggregated(call, alive)[0]

    if not all(condition_holds(node, bound, aggregate) for node in query.having):
        return None
    mu, row = dict(bound), {}
    for name, node in query.projected.items():
        found = value_or_none(node, mu, aggregate)
        row[name] = _cell(found)
        if found is not None:
            mu[name] = found
            if isinstance(node, Call) and node.name in ("Aggregate_Min", "Aggregate_Max"):
                row[name] = AnyOf([_text(term) for term in aggregated(node, alive)])
    return row


def aggregated(call: Call, alive: Sequence[Mapping[str, Term]]) -> list[Term]:
    """The value of an aggregate; of MIN and MAX, all that may be reported. Raises `ExpressionError` where it is unbound."""
    name, operand = call.name.removeprefix("Aggregate_"), call.parts["vars"]
    is_distinct = bool(call.parts.get("distinct"))
    if operand == "*":
        if name != "Count":
            raise NotUnderstood(f"{name}(*)")
        visible = [frozenset((key, term) for key, term in mu.items() if not key.startswith("_:")) for mu in alive]
        return [number_term("integer", len(set(visible) if is_distinct else visible))]
    found = [value_or_none(operand, mu) for mu in alive]
    terms = [term for term in found if term is not None]
    terms = list(dict.fromkeys(terms)) if is_distinct else terms
    if name == "Count":
        return [number_term("integer", len(terms))]
    if name in ("Min", "Max"):
        return extremes(terms, name == "Max")
    if name in ("Sum", "Avg"):
        if None in found:
            raise ExpressionError("an operand is unbound")
        return [total(terms, name == "Avg")]
    raise NotUnderstood(name)


def total(terms: Sequence[Term], is_mean: bool) -> Term:
    """SUM or AVG: exact, rounded once; the type is the highest of the operands, AVG of integers is a decimal."""
    values = [value_of(term) for term in terms]
    if not values or any(kind not in NUMBERS for kind, _ in values):
        raise ExpressionError("no numbers")
    kind = max((kind for kind, _ in values), key=NUMBERS.index)
    numbers = [as_kind(value, kind) for _, value in values]
    count = len(numbers) if is_mean else 1
    if kind in ("float", "double") and not all(map(math.isfinite, numbers)):
        return number_term(kind, sum(numbers))
    exact = sum(map(Fraction, numbers), Fraction(0)) / count
    if kind in ("float", "double"):
        try:
            return number_term(kind, as_kind(float(exact), kind))
        except OverflowError:
            return number_term(kind, math.copysign(math.inf, exact))
    return number_term("decimal", exact) if is_mean or kind == "decimal" else number_term("integer", int(exact))


def before(a: Term, b: Term) -> bool:
    """Whether a comes before b for ORDER BY: blank nodes, IRIs, literals; False where SPARQL leaves the order open."""
    rank = ("blank", "iri", "literal")
    if a.kind != b.kind:
        return rank.index(a.kind) < rank.index(b.kind)
    if a.kind == "iri":
        return a.text < b.text
    try:
        return a.kind == "literal" and less(a, b)
    except ExpressionError:
        return False


def extremes(terms: Sequence[Term], is_max: bool) -> list[Term]:
    """The terms beyond which there is none: equal numbers of several forms, or literals without an order, are several."""
    different = list(dict.fromkeys(terms))
    ends = [a for a in different if not any(before(a, b) if is_max else before(b, a) for b in different)]
    if not ends:
        raise ExpressionError("nothing is bound")
    return ends

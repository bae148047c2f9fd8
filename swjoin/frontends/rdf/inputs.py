"""The inputs of a query over RDF streams: triples are read, encoded and matched; what goes on are mappings of codes.

What: `Graphs`, the triples of streams and static graphs, by codes; `Input`, the mappings of one pattern; `read_graphs`,
`matched`; `table_of`, an input as an Arrow table.
Why: all patterns of a stream are matched where its triples come in, so slaves never see text, and a mapping is a row of
integers (CQELS Cloud, section 4).
Stays out: reading files (`frontends.rdf.triples`), terms (`frontends.rdf.dictionary`), joins (`frontends.rdf.planner`).

With windows of TRIPLES lives are compared by places in the common order, (time, stream, row, input), in which the deaths of
other windows have places, too: a birth at a boundary comes after all triples of its time, a death at a time before them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError
from swjoin.core.ids import LAST_TIME_US
from swjoin.core.lives import Lives, Window
from swjoin.frontends.rdf.algebra import Block, Const, Pattern, RdfQuery, Var
from swjoin.frontends.rdf.dictionary import TermDictionary
from swjoin.frontends.rdf.expressions import NAIVE, Variable
from swjoin.frontends.rdf.families import MEMBER, Parameters
from swjoin.frontends.rdf.term_values import BOOLEAN, IRI, NUMERIC, SIMPLE, TAGGED, TIME, TermValues
from swjoin.frontends.rdf.triples import MalformedPolicy, MalformedTriples, TripleBatch, read_triples

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
Paths: TypeAlias = str | tuple[str, ...]
_ZONE = r"(Z|[+-]\d\d:\d\d)$"
MOST_US = 1 << 58  # lives of windows up to this end before all times
EXACT = 1 << 53  # integers up to here are doubles


@dataclass(frozen=True)
class Triples:
    """int64 (n,) each; ts in order, microseconds; empty of a static graph."""

    ts: I64
    terms: tuple[I64, I64, I64]


class Mappings(NamedTuple):
    """Of a pattern. rows: places of the triples that fit; ts: their times, empty of a static pattern; codes: by variable."""

    rows: I64
    ts: I64
    codes: dict[str, I64]


@dataclass
class Graphs:
    """streams, static: triples by IRI. counts: triples that were read, by IRI. malformed: lines that were not, likewise.
    values: of all terms, once all have codes; many queries need none. found, tables: mappings of patterns and their tables,
    which queries share."""

    dictionary: TermDictionary
    streams: dict[str, Triples] = field(default_factory=dict)
    static: dict[str, Triples] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    malformed: dict[str, MalformedTriples] = field(default_factory=dict)
    found: dict[Pattern, Mappings] = field(default_factory=dict)
    tables: dict[Any, pa.Table] = field(default_factory=dict)

    @cached_property
    def values(self) -> TermValues:
        return TermValues(self.dictionary)

    @cached_property
    def union(self) -> Triples:
        """Of all static graphs."""
        parts = list(self.static.values())
        s, p, o = (np.concatenate([part.terms[i] for part in parts]) for i in range(3))
        return _distinct(Triples(np.empty(0, np.int64), (s, p, o)))


@dataclass
class Input:
    """The mappings of a pattern. name: of its table. codes: by variable, int64 (n,). ts: of the triples; lives: as times;
    None: of a static pattern. places: the same lives as places, where some window needs them. reach_us: the longest time from
    a mapping's to a partner's."""

    name: str
    pattern: Pattern
    codes: dict[str, I64]
    count: int
    ts: I64 | None = None
    lives: Lives | None = None
    places: Lives | None = None
    reach_us: int = 0

    @property
    def life_us(self) -> int | None:
        """Of each mapping, which is as long as the others', from its time on; None where lives differ."""
        block = self.pattern.block
        return None if block is None or self.places is not None or block.window.kind != "range" else block.window.width_us + 1

    @property
    def content(self) -> Pattern | None:
        """The pattern without its window, where that is all that the table depends on; None elsewhere."""
        if any(name.startswith(":") for name in self.codes) or not (self.static or self.life_us is not None):
            return None
        return _without_window(self.pattern)

    @property
    def static(self) -> bool:
        return self.ts is None

    @property
    def description(self) -> str:
        return "constants of queries" if Var(MEMBER) in self.pattern.terms else self.pattern.description


# ---------------------------------------------------------------- reading


def read_graphs(
    queries: Sequence[RdfQuery], streams: Mapping[str, Paths], static: Mapping[str, Paths], policy: MalformedPolicy
) -> Graphs:
    """The triples of the streams and graphs that the queries, which `check_inputs` knows, read. UserError for files that cannot
    be read."""
    graphs = Graphs(TermDictionary())
    patterns = [pattern for query in queries for pattern in query.patterns]
    read = dict.fromkeys(p.block.iri for p in patterns if p.block is not None)
    named = {p.graph for p in patterns if p.block is None and p.graph is not None}
    everywhere = any(p.block is None and p.graph is None for p in patterns)
    no_query = "no query names it" if len(queries) > 1 else "the query does not name it"
    for number, iri in enumerate(streams):  # labels of blank nodes have the number, so it is that of what is given
        if iri in read:
            graphs.streams[iri] = _in_order(_read(graphs, iri, streams[iri], policy, number, times=True))
        else:
            _LOG.warning("--stream %s: %s", iri, no_query)
    for number, iri in enumerate(static, len(streams)):
        if everywhere or iri in named:
            graphs.static[iri] = _distinct(_read(graphs, iri, static[iri], policy, number, times=False))
        else:
            _LOG.warning("--static %s: %s", iri, no_query)
    return graphs


def check_inputs(query: RdfQuery, streams: Mapping[str, Paths], static: Mapping[str, Paths]) -> None:
    """UserError for a stream or graph that a query reads and that is not given."""
    named = {p.graph for p in query.patterns if p.block is None and p.graph is not None}
    _check_known("stream", "STREAM", query.streams, streams)
    _check_known("static", "GRAPH", sorted(named), static)
    if not static and any(p.block is None and p.graph is None for p in query.patterns):
        raise UserError("the query has triples outside of STREAM, and no static graph", remedy="give --static IRI=PATH")


def _check_known(option: str, clause: str, wanted: Sequence[str], given: Mapping[str, Paths]) -> None:
    for iri in wanted:
        if iri not in given:
            known = f"; given are {', '.join(given)}" if given else ""
            raise UserError(f"{clause} <{iri}>: no such --{option}{known}", remedy=f"give --{option} {iri}=PATH")


def _read(graphs: Graphs, iri: str, paths: Paths, policy: MalformedPolicy, scope: int, *, times: bool) -> Triples:
    graphs.malformed[iri] = malformed = MalformedTriples(policy)
    found = read_triples(paths, graphs.dictionary, times=times, malformed=malformed, scope=scope)
    batches: list[TripleBatch] = list(found)
    columns = [np.concatenate([np.empty(0, np.int64), *(getattr(b, name) for b in batches)]) for name in ("s", "p", "o")]
    ts = np.concatenate([np.empty(0, np.int64), *(b.ts for b in batches if b.ts is not None)])
    beyond = np.flatnonzero((ts < -MOST_US) | (ts > MOST_US))
    if len(beyond):
        problem = f"<{iri}>: a triple of time {ts[beyond[0]]} us; times are from -2^58 to 2^58"
        raise UserError(problem, remedy="give microseconds")
    graphs.counts[iri] = len(columns[0])
    return Triples(ts, (columns[0], columns[1], columns[2]))


def _in_order(triples: Triples) -> Triples:
    if len(triples.ts) < 2 or (triples.ts[1:] >= triples.ts[:-1]).all():
        return triples
    by = np.argsort(triples.ts, kind="stable")
    s, p, o = (codes[by] for codes in triples.terms)
    return Triples(triples.ts[by], (s, p, o))


def _distinct(triples: Triples) -> Triples:
    """A graph is a set."""
    s, p, o = triples.terms
    by = np.lexsort((o, p, s))
    first = np.ones(len(by), np.bool_)
    first[1:] = np.logical_or.reduce([codes[by[1:]] != codes[by[:-1]] for codes in triples.terms])
    kept = np.sort(by[first])
    return Triples(triples.ts, (s[kept], p[kept], o[kept]))


# ---------------------------------------------------------------- matching


def matched(query: RdfQuery, graphs: Graphs, parameters: Parameters | None = None) -> list[Input]:
    """The mappings of every pattern, in the order of the text; those that never live are left out. With parameters, those for
    which some member of the family asks; one pattern with all of them says for which, or else a last input does."""
    whole = None
    inputs = []
    rows_of: list[I64] = []
    for number, pattern in enumerate(query.patterns):
        rows, ts, codes = _mappings(pattern, graphs)
        found = Input(f"input{number}", pattern, dict(codes), len(rows))
        found.ts = None if pattern.block is None else ts
        if parameters is not None:
            _ask(found, parameters, parameters.of(query.bound) if whole is None else [])
            whole = found if MEMBER in found.codes else whole
        if pattern.block is not None and found.ts is not None:
            found.lives = pattern.block.window.lives(found.ts)
            if pattern.block.window.kind == "triples":
                found.lives = Lives(found.ts, _counted_deaths(found.ts, pattern.block.window.count))
        inputs.append(found)
        rows_of.append(rows)
    if any(p.block is not None and p.block.window.kind == "triples" for p in query.patterns):
        _place(inputs, rows_of, query.streams)
    for found in inputs:
        _keep_alive(found)
    _reach(inputs)
    if parameters is not None and whole is None:
        inputs.append(_asking(parameters, len(inputs)))
    return inputs


def _without_window(pattern: Pattern) -> Pattern:
    return pattern if pattern.block is None else pattern._replace(block=Block(0, pattern.block.iri, Window("all")))


def _mappings(pattern: Pattern, graphs: Graphs) -> Mappings:
    """Found once for all queries and windows."""
    key = _without_window(pattern)
    if key not in graphs.found:
        if pattern.block is not None:
            triples = graphs.streams[pattern.block.iri]
        else:
            triples = graphs.union if pattern.graph is None else graphs.static[pattern.graph]
        rows = _rows(pattern, triples, graphs.dictionary)
        codes = {t.name: c[rows] for t, c in zip(pattern.terms, triples.terms, strict=True) if isinstance(t, Var)}
        graphs.found[key] = Mappings(rows, triples.ts[rows] if len(triples.ts) else triples.ts, codes)
    return graphs.found[key]


def _ask(found: Input, parameters: Parameters, every: Sequence[str]) -> None:
    """Keep the mappings for which some member asks; those of a pattern that has every parameter say for which."""
    names = parameters.of(found.pattern.variables)
    if names:
        rows, classes = parameters.asked(names, [found.codes[name] for name in names])
        if set(names) == set(every):
            at, members = parameters.members(names, classes)
            rows = rows[at]
            _take(found, rows)
            found.codes[MEMBER] = members
            found.codes |= {name: codes[members] for name, codes in parameters.codes.items() if name not in names}
        else:
            _take(found, rows)


def _take(found: Input, rows: I64) -> None:
    """Keep these rows alone."""
    found.count = len(rows)
    if found.ts is not None:
        found.ts = found.ts[rows]
    if found.lives is not None:
        found.lives = Lives(found.lives.born[rows], found.lives.dead[rows])
    if found.places is not None:
        found.places = Lives(found.places.born[rows], found.places.dead[rows])
    found.codes = {name: codes[rows] for name, codes in found.codes.items()}


def _asking(parameters: Parameters, number: int) -> Input:
    """The constants of a family's members, as a static input."""
    member = Var(MEMBER)
    codes = {MEMBER: np.arange(parameters.count), **parameters.codes}
    return Input(f"input{number}", Pattern((member, member, member), None, None), codes, parameters.count)


def _rows(pattern: Pattern, triples: Triples, dictionary: TermDictionary) -> I64:
    """Positions of the triples that fit."""
    fits: Bool | None = None
    seen: dict[str, I64] = {}
    for term, codes in zip(pattern.terms, triples.terms, strict=True):
        if isinstance(term, Const):
            code = dictionary.code_of(term.text)
            test = codes == (-1 if code is None else code)
        elif term.name in seen:
            test = codes == seen[term.name]
        else:
            seen[term.name] = codes
            continue
        fits = test if fits is None else fits & test
    return np.arange(len(triples.terms[0])) if fits is None else np.flatnonzero(fits)


def _counted_deaths(ts: I64, count: int) -> I64:
    """The time of the mapping that so many come before."""
    dead = np.full(len(ts), LAST_TIME_US, np.int64)
    dead[: max(0, len(ts) - count)] = ts[count:]
    return dead


def _place(inputs: Sequence[Input], rows_of: Sequence[I64], streams: Sequence[str]) -> None:
    """Lives as places in the common order. A point is (time, 0 before, 1 at, 2 after the triples of that time, stream, row,
    input)."""
    points: list[I64] = []
    for number, (found, rows) in enumerate(zip(inputs, rows_of, strict=True)):
        if found.ts is None or found.lives is None or found.pattern.block is None:
            continue
        window, n = found.pattern.block.window, len(rows)
        own = np.stack([found.ts, np.ones(n, np.int64), np.full(n, streams.index(found.pattern.block.iri)), rows])
        own = np.concatenate([own, np.full((1, n), number)])
        ends = np.zeros((5, n), np.int64)
        ends[0] = found.lives.dead
        if window.kind == "slide":
            own = np.zeros((5, n), np.int64)
            own[0], own[1] = found.lives.born, 2
        elif window.kind == "triples":
            ends[:, : max(0, n - window.count)] = own[:, window.count :]
        points += [own, ends]
    every = np.concatenate(points, axis=1)
    by = np.lexsort(every[::-1])
    ordered = every[:, by]
    new = np.zeros(len(by), np.int64)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    places = np.empty(len(by), np.int64)
    places[by] = np.cumsum(new)
    at = 0
    for found in inputs:
        if not found.static:
            n = found.count
            found.places = Lives(places[at : at + n], places[at + n : at + 2 * n])
            at += 2 * n


def _keep_alive(found: Input) -> None:
    """Without the mappings that never live."""
    lives = found.lives if found.places is None else found.places
    if found.ts is None or found.lives is None or lives is None:
        return
    alive = np.flatnonzero(lives.born < lives.dead)
    if len(alive) < found.count:
        _take(found, alive)


def _reach(inputs: Sequence[Input]) -> None:
    """No partners lie further apart than all triples."""
    timed = [found for found in inputs if found.ts is not None and found.count]
    if not timed:
        return
    firsts, lasts = ([int(found.ts[at]) for found in timed if found.ts is not None] for at in (0, -1))
    span = max(lasts) - min(firsts)
    for found in timed:
        assert found.ts is not None
        assert found.lives is not None
        exclusive = 0 if found.places is not None else 1
        longest = int(np.minimum(found.lives.dead - found.ts, span + 1).max())
        found.reach_us = max(0, min(span, longest - exclusive))


# ---------------------------------------------------------------- tables


def variable_of(name: str, column: str, found: Input, values: TermValues) -> Variable:
    """What is known of a variable from its mappings."""
    there = np.zeros(len(values), np.bool_)
    there[found.codes[name]] = True
    codes = np.flatnonzero(there)
    kinds = values.kind[codes]
    numbers = codes[kinds == NUMERIC]
    clash = ""
    if len(numbers):
        by = numbers[np.argsort(values.number[numbers], kind="stable")]
        same = np.flatnonzero(values.number[by[1:]] == values.number[by[:-1]])
        if len(same):
            clash = " and ".join(values.dictionary.text_of(int(code)) for code in by[same[0] : same[0] + 2])
    found_kinds = set(kinds.tolist())
    if TIME in found_kinds:
        found_kinds |= {NAIVE}
    integers = bool(len(numbers)) and bool(values.is_integer[numbers].all() and (values.rank[numbers] == 0).all())
    return Variable(column, frozenset(found_kinds), integers, clash)


def table_of(found: Input, columns: Mapping[str, str], facets: Mapping[str, Sequence[str]], graphs: Graphs) -> pa.Table:
    """An input as a table: `ts`, `born`, `dead` where lives differ, `place` and `until` where it has them, codes, facets.
    columns: of its variables, by name. facets: that are read of each."""
    import pyarrow as pa

    key = None if found.content is None else (found.content, tuple(columns[name] for name in found.codes), repr(facets))
    if key in graphs.tables:
        return graphs.tables[key]
    made: dict[str, pa.Array] = {}
    if found.ts is not None and found.lives is not None:
        made["ts"] = pa.array(found.ts).view(pa.timestamp("us"))
        made["born"] = pa.array(found.lives.born)
        if found.life_us is None:
            made["dead"] = pa.array(found.lives.dead)
    if found.places is not None:
        made["place"], made["until"] = pa.array(found.places.born), pa.array(found.places.dead)
    for name, codes in found.codes.items():
        made[columns[name]] = pa.array(codes)
        for facet in facets.get(name, ()):
            made[f"{columns[name]}_{facet}"] = facet_of(facet, codes, graphs.values, name)
    if not made:
        made["one"] = pa.array(np.zeros(found.count, np.int64))
    table = pa.table(made)
    if key is not None:
        graphs.tables[key] = table
    return table


def facet_of(facet: str, codes: I64, values: TermValues, name: str) -> pa.Array:
    """A facet of terms (`frontends.rdf.expressions`). name: of the variable, for messages."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = values.kind[codes]
    if facet == "kind":
        naive = (kinds == TIME) & _naive(codes, values)
        return pa.array(np.where(naive, NAIVE, kinds).astype(np.int64))
    if facet == "num":
        return _numbers(codes, values, name)
    if facet == "rank":
        return pa.array(values.rank[codes].astype(np.int64), mask=kinds != NUMERIC)
    if facet == "truth":
        return pa.array(values.truth[codes], mask=kinds != BOOLEAN)
    if facet in ("time", "naive"):
        wanted = (kinds == TIME) & (_naive(codes, values) == (facet == "naive"))
        return pa.array(values.time_us[codes], mask=~wanted)
    if facet == "ord":
        return pa.array(values.order[codes])
    at = pa.array(codes)
    if facet == "lang":
        return values.language.take(at).cast(pa.string())
    if facet == "datatype":
        return values.datatype.take(at).cast(pa.string())
    texts = values.text.take(at).cast(pa.string())
    if facet == "str":
        return texts
    if facet == "tagged":
        tags = values.language.take(at).cast(pa.string())
        both = pc.binary_join_element_wise(texts, tags, "@")
        return pc.if_else(pa.array(kinds == TAGGED), both, pa.scalar(None, pa.string()))
    mine = {"simple": kinds == SIMPLE, "string": (kinds == SIMPLE) | (kinds == TAGGED), "iri": kinds == IRI}[facet]
    return pc.if_else(pa.array(mine), texts, pa.scalar(None, pa.string()))


def _naive(codes: I64, values: TermValues) -> Bool:
    """Which dateTimes have no zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.text.take(pa.array(codes))
    found: Bool = pc.invert(pc.match_substring_regex(texts, _ZONE)).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def coarse(codes: I64, values: TermValues) -> Bool:
    """Which numbers have more digits than a double keeps: integers, and decimals without a fraction."""
    number, integer = values.number[codes], values.integer[codes]
    whole = values.is_integer[codes] & (values.rank[codes] == 0)
    decimal = (values.rank[codes] < 2) & ~whole & (np.abs(number) >= EXACT) & (number == np.floor(number))
    found: Bool = decimal | (whole & ((integer > EXACT) | (integer < -EXACT)))
    return found


def is_uniform(name: str, found: Input, values: TermValues) -> bool:
    """Whether what expressions make of a variable is the same for any part of its mappings: all terms are of one kind, and
    numbers all integers or none, no two of one value, none with more digits than are kept."""
    known = variable_of(name, "", found, values)
    if len(known.kinds) < 2 and NUMERIC not in known.kinds:
        return True
    codes = found.codes[name]
    integers = values.is_integer[codes] & (values.rank[codes] == 0)
    alike = bool(integers.all()) or not bool((integers | coarse(codes, values)).any())
    return len(known.kinds) == 1 and not known.clash and alike


def _numbers(codes: I64, values: TermValues, name: str) -> pa.Array:
    """int64 where all numbers are integers, otherwise doubles. UserError for an integer among doubles that is none."""
    import pyarrow as pa

    numeric = values.kind[codes] == NUMERIC
    whole = values.is_integer[codes] & (values.rank[codes] == 0)
    if numeric.any() and whole[numeric].all():
        return pa.array(np.where(numeric, values.integer[codes], 0), mask=~numeric)
    numbers = values.number[codes]
    beyond = codes[numeric & coarse(codes, values)]
    if len(beyond):
        text = values.dictionary.text_of(int(beyond[0]))
        problem = f"{text} has more digits than expressions keep: integers of 64 bits, beside decimals and doubles 53"
        raise UserError(problem, remedy="leave such values out of the variables that expressions read")
    return pa.array(np.where(numeric, numbers, 0.0), mask=~numeric)

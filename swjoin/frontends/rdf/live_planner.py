"""From a query over RDF streams to a logical plan over inputs of a run, whose columns are terms.

What: `LivePlans(streams).plans(texts)`, a `LogicalPlan` of each; `RdfStream`, `streams_of`; `is_sparql`.
Why: a run's inputs may be live, have several gateways and queries that come and go, and none of these knows a dictionary. With
terms as text, patterns are filters of the input and the plan is one of any query: equal parts of queries are shared, constants
are searched together, checkpoints and moves are those of any rows.
Stays out: the joins and groups, which are those over tables of codes (`frontends.rdf.planner`), what is done with terms
(`frontends.rdf.batch_functions`).

Kinds of terms are not known before they come, so numbers in expressions are doubles.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from swjoin.config.connectors import StreamConfig
from swjoin.connectors.files.rdf_format import TERMS
from swjoin.core.errors import UserError
from swjoin.core.ids import LAST_TIME_US
from swjoin.frontends.rdf.algebra import Const, Pattern, RdfQuery, Term, Var, tokens_of
from swjoin.frontends.rdf.counted_windows import FOR_EVER_US, PART, CountedPart, with_counted
from swjoin.frontends.rdf.dictionary import TermDictionary, split_term
from swjoin.frontends.rdf.expressions import NAIVE, Value, Variable, sql_text
from swjoin.frontends.rdf.families import by_widest
from swjoin.frontends.rdf.inputs import EXACT, Graphs, Input
from swjoin.frontends.rdf.planner import Last, Planner, Relation, add_constants, narrowed
from swjoin.frontends.rdf.query_texts import Parsed, Texts, Windows, with_terms, with_windows
from swjoin.frontends.rdf.term_values import BLANK, IRI
from swjoin.frontends.sql.functions import Function
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.frontends.sql.relations import quoted
from swjoin.plan.logical import Filter, LogicalPlan, Node, Project, Union
from swjoin.plan.map_batches import MapBatches

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_MODULE = "swjoin.frontends.rdf.batch_functions"
_TYPES = {"num": "double", "rank": "int64", "kind": "int64", "truth": "bool", "time": "int64", "naive": "int64"}  # others: text
_TEXT = ("string", "large_string", "dictionary<values=string", "dictionary<values=large_string")  # as types begin
_MOST_DIGITS = 20  # of an integer that may be exact, with its sign
_SQL_TYPES = {"string": "VARCHAR", "double": "DOUBLE", "int64": "BIGINT", "bool": "BOOLEAN"}
_CLASH = "live terms such as 1 and 1.0"


class RdfStream(NamedTuple):
    """An input that is an RDF stream, or without a time a static graph. name: of the input. scope: a number, within which a
    label of a blank node means one node; it follows from the IRI, so that it is the same for all queries. malformed: as of
    `StreamConfig`."""

    name: str
    table: Table
    scope: int
    malformed: str = "drop"


def is_sparql(text: str) -> bool:
    """Whether a query is in the language of RDF streams: it has STREAM, and braces behind it."""
    words = [token.upper() for kind, token, _ in tokens_of(text) if kind in ("name", "other")]
    return "STREAM" in words and "{" in words[words.index("STREAM") :]


def streams_of(inputs: Mapping[str, StreamConfig], tables: Mapping[str, Table]) -> dict[str, RdfStream]:
    """The inputs that are RDF streams or static graphs, by IRI."""
    found: dict[str, RdfStream] = {}
    for name, stream in inputs.items():
        if stream.iri is not None:
            scope = int.from_bytes(hashlib.blake2b(stream.iri.encode(), digest_size=7).digest())
            found[stream.iri] = RdfStream(name, tables[name], scope, stream.malformed)
    return found


class LivePlans:
    """Plans of queries over the same streams. Those that differ in constants of patterns and templates alone are planned once:
    these are in texts of filters and projections, and nowhere else. Those that differ in windows of RANGE alone have the plan
    of one whose windows contain theirs, up to a filter for each, and groups."""

    def __init__(self, streams: Mapping[str, RdfStream], *, goes_on: bool = False) -> None:
        """streams: by IRI. goes_on: of a run that goes on, which knows the inputs alone that its queries read."""
        self._streams, self._goes_on, self._texts = streams, goes_on, Texts()
        self._plans: dict[tuple[str, Windows, bool], LogicalPlan] = {}
        self._sentinel = f"<urn:swjoin:{secrets.token_hex(16)}:"  # in no query
        self._quoted = re.compile(f"'{self._sentinel}([0-9]+)>'")

    def plans(self, texts: Mapping[str, str], subjects: Mapping[str, str] = MappingProxyType({})) -> dict[str, LogicalPlan]:
        """By the names of queries. subjects: with which errors begin, by name; its name, of one that has none. UserError for
        what a query cannot mean, or what is not supported."""
        parsed = {name: self._named(name, subjects, self._texts.parsed, text) for name, text in texts.items()}
        widest = _widest(parsed)
        return {name: self._named(name, subjects, self._planned, query, widest.get(name)) for name, query in parsed.items()}

    def of_malformed(self) -> dict[str, LogicalPlan]:
        """Queries of malformed triples, by the name of each input that keeps its own: times, triples as they came, and why they
        are none."""
        found = {}
        for iri, stream in self._streams.items():
            if stream.malformed == "side":
                _check_columns(iri, stream)
                functions: dict[str, Function] = {}
                part = _triples_of(stream, "triples", functions)
                text = f'WITH {part} SELECT "ts", "triple", "reason" FROM triples WHERE "reason" IS NOT NULL'
                plan = plan_query(text, {each.name: each.table for each in self._streams.values()}, functions).plan
                found[stream.name] = plan
        return found

    def _named(self, name: str, subjects: Mapping[str, str], function: Callable[..., _T], *args: object) -> _T:
        """The function's value; its errors begin with what the query is called."""
        try:
            return function(*args)
        except UserError as error:
            raise error.prefixed(subjects.get(name, name)) from None

    def _planned(self, parsed: Parsed, widest: Windows | None) -> LogicalPlan:
        """widest: windows of the queries that have one plan; None: it is this query's own."""
        windows, routed = widest or parsed.windows, widest is not None
        key = repr(parsed.shape), windows, routed
        if key not in self._plans:
            shape = with_windows(parsed.shape, windows)
            query = with_terms(shape, lambda number: Const(f"{self._sentinel}{number}>"))
            if self._goes_on:
                _check_inputs_of_run(query, self._streams)
            self._plans[key] = _planned(query, self._streams, routed=routed)
        plan = self._with_constants(self._plans[key], parsed.constants)
        return plan if widest is None else narrowed(plan.nodes, _widths(parsed.windows))

    def _with_constants(self, plan: LogicalPlan, constants: Sequence[str]) -> LogicalPlan:
        """With these in the places of sentinels, by number."""

        def of(text: str) -> str:
            return self._quoted.sub(lambda found: sql_text(constants[int(found[1])]), text)

        nodes: list[Node] = []
        for node in plan.nodes:
            if isinstance(node, Filter):
                nodes.append(replace(node, condition=of(node.condition)))
            elif isinstance(node, Project):
                nodes.append(replace(node, columns=tuple((name, of(text)) for name, text in node.columns)))
            else:
                nodes.append(node)
        return LogicalPlan(tuple(nodes))


def _widest(parsed: Mapping[str, Parsed]) -> dict[str, Windows]:
    """Of queries whose joins are those of another one with wider windows of RANGE, these windows. Where two patterns of streams
    are joined and nothing depends on deaths, the plan shares the join by itself (`plan.sharing`)."""
    alike: dict[tuple[str, tuple[str, ...]], dict[Windows, list[str]]] = {}
    for name, query in parsed.items():
        patterns = sum(pattern.block is not None for pattern in query.shape.patterns)
        if any(query.windows) and not _counts(query.shape) and patterns > (1 if _is_alive(query) else 2):
            alike.setdefault((repr(query.shape), query.constants), {}).setdefault(query.windows, []).append(name)
    found: dict[str, Windows] = {}
    for named in alike.values():
        for widest, *others in by_widest(named, lambda windows: tuple(_widths(windows).values())):
            for windows in (widest, *others) if others else ():
                found |= dict.fromkeys(named[windows], widest)
    return found


def _counts(query: RdfQuery) -> bool:
    """Whether some window is one of TRIPLES."""
    return any(pattern.block is not None and pattern.block.window.kind == "triples" for pattern in query.patterns)


def _is_alive(query: Parsed) -> bool:
    """Whether its answer depends on when rows die."""
    return query.shape.grouped or query.shape.distinct


def _widths(windows: Windows) -> dict[int, int]:
    """Of the windows of RANGE, by block."""
    return {block: window.width_us for block, window in enumerate(windows) if window is not None}


def _planned(query: RdfQuery, streams: Mapping[str, RdfStream], *, routed: bool = False) -> LogicalPlan:
    graphs = Graphs(TermDictionary())
    add_constants(query, graphs)
    for iri, stream in streams.items():
        _check_columns(iri, stream)
    _check_zones(query, streams)
    _check_counted(query)
    inputs = [_input(pattern, number, streams) for number, pattern in enumerate(query.patterns)]
    if query.template is not None and any(_is_blank(term) for triple in query.template for term in triple):
        raise UserError("CONSTRUCT of blank nodes is not supported in a run", remedy="make IRIs, or leave them out")
    return _LivePlanner(query, graphs, inputs, routed, streams=streams).planned().plan


def _check_counted(query: RdfQuery) -> None:
    """UserError for what would need to know when mappings of windows of TRIPLES die, before they do."""
    if not _counts(query):
        return
    blocks = [pattern.block for pattern in query.patterns if pattern.block is not None]
    window = next(block.window.description for block in blocks if block.window.kind == "triples")
    if query.grouped or query.distinct:
        what = "groups" if query.grouped else "DISTINCT"
        problem = f"{what} over a window [{window}]: not supported in a run"
        raise UserError(problem, remedy="use RANGE, or `swjoin rdf` over files")
    slides = next((block.window.description for block in blocks if block.window.kind == "slide"), None)
    if slides is not None and len(blocks) > 1:
        problem = f"windows [{window}] and [{slides}] in one query: not supported in a run"
        raise UserError(problem, remedy="use RANGE, NOW or ALL beside TRIPLES, or `swjoin rdf` over files")


def _check_inputs_of_run(query: RdfQuery, streams: Mapping[str, RdfStream]) -> None:
    """UserError for what inputs would tell that no query of the run reads."""
    if not streams:
        raise UserError("no query of the run reads an RDF stream", remedy="write iri: under inputs of its configuration")
    for pattern in query.patterns:
        iri = pattern.graph if pattern.block is None else pattern.block.iri
        if iri is None:
            problem = "triples outside of STREAM, in a query that is added to a run"
            raise UserError(problem, remedy="name their graph by GRAPH <iri> {...}; the run may have others than are read")
        if iri not in streams:
            known = ", ".join(f"<{name}>" for name in streams)
            remedy = "read it by a query of the configuration, too, or start a run of its own"
            raise UserError(f"<{iri}>: no query of the run reads it; read are {known}", remedy=remedy)


def _is_blank(term: Term) -> bool:
    return isinstance(term, Var) and term.name.startswith("_:")


def _check_columns(iri: str, stream: RdfStream) -> None:
    """UserError for an input that has no triples."""
    types, time, unit_us = dict(stream.table.columns), stream.table.time, stream.table.unit_us
    for name in TERMS:
        if not types.get(name, "").startswith(_TEXT):
            found = f"is {types[name]}" if name in types else "is missing"
            problem = f"input {stream.name}, <{iri}>: column {name} {found}"
            raise UserError(problem, remedy="give columns s, p and o, terms as text in N-Triples syntax")
    if time is not None and (types[time].startswith("timestamp[ns") or (unit_us or 1) < 1):
        problem = f"input {stream.name}, <{iri}>: times of nanoseconds"
        raise UserError(problem, remedy="give microseconds, in which windows are")


def _check_zones(query: RdfQuery, streams: Mapping[str, RdfStream]) -> None:
    """UserError for streams that have times with a zone and without one."""
    zones: dict[bool, str] = {}
    for iri in query.streams:
        if iri in streams and (time := streams[iri].table.time) is not None:
            zones["tz=" in dict(streams[iri].table.columns)[time]] = streams[iri].name
    if len(zones) > 1:
        problem = f"input {zones[True]} has times with a zone, input {zones[False]} times without"
        raise UserError(problem, remedy="give both one kind")


def _input(pattern: Pattern, number: int, streams: Mapping[str, RdfStream]) -> Input:
    """A pattern as an input without rows. UserError for what no run has."""
    codes = {name: np.empty(0, np.int64) for name in pattern.variables}
    found = Input(f"input{number}", pattern, codes, 0)
    if pattern.block is None:
        _stream_of(pattern, streams)
        return found
    iri, window = pattern.block.iri, pattern.block.window
    if iri not in streams or streams[iri].table.time is None:
        known = ", ".join(f"<{name}>" for name, stream in streams.items() if stream.table.time is not None)
        problem = f"STREAM <{iri}>: no input of the run has this IRI{f'; those of streams are {known}' if known else ''}"
        raise UserError(problem, remedy="write iri: under an input that has a time")
    found.ts = np.empty(0, np.int64)
    found.reach_us = FOR_EVER_US if window.kind == "all" else window.width_us + window.slide_us
    return found


def _stream_of(pattern: Pattern, streams: Mapping[str, RdfStream]) -> RdfStream:
    """What a pattern is matched with. UserError for no static graph, and for several."""
    if pattern.block is not None:
        return streams[pattern.block.iri]
    static = {iri: stream for iri, stream in streams.items() if stream.table.time is None}
    if not static:
        problem = "the query has triples outside of STREAM, and the run no static graph"
        raise UserError(problem, remedy="write iri: under an input without a time")
    if pattern.graph is not None:
        if pattern.graph in static:
            return static[pattern.graph]
        problem = f"GRAPH <{pattern.graph}>: no static graph of the run has this IRI"
        raise UserError(problem, remedy=f"those that have one are {', '.join(f'<{iri}>' for iri in static)}")
    if len(static) > 1:
        problem = f"triples outside of STREAM, and the run has {len(static)} static graphs"
        raise UserError(problem, remedy="name one by GRAPH <iri> {...}")
    return next(iter(static.values()))


@dataclass
class _LivePlanner(Planner):
    """streams: by IRI."""

    streams: Mapping[str, RdfStream] = field(default_factory=dict)
    _functions: dict[str, Function] = field(default_factory=dict)
    _triples: dict[str, str] = field(default_factory=dict)  # by input: the name of its triples in the SQL text
    _counted: list[CountedPart] = field(default_factory=list)  # what is joined where windows of TRIPLES are
    _table: tuple[str, Table] | None = None  # their name and columns in the SQL text

    def variable(self, name: str, column: str, found: Input) -> Variable:
        """Literals are objects alone."""
        place = [isinstance(term, Var) and term.name == name for term in found.pattern.terms].index(True)
        kinds = frozenset((IRI,) if place == 1 else (IRI, BLANK) if place == 0 else range(NAIVE + 1))
        return Variable(column, kinds, clash=_CLASH, ordered=False)

    def constant(self, text: str) -> Value:
        """Its text takes the place of a code."""
        known = super().constant(text)
        digits = split_term(text).text if known.integers else "0"
        if len(digits) > _MOST_DIGITS or abs(int(digits)) > EXACT:
            problem = f"{text[:80]}: an integer beyond 2^53, up to which numbers are exact in expressions of a run"
            raise UserError(problem, remedy="leave it out, or use `swjoin rdf` over files")
        return replace(known, facet=lambda which: None if which == "ord" else known.facet(which), code=sql_text(text))

    def partners(self, home: Mapping[str, Input], found: Input) -> float:
        """A guess, as nothing is counted yet: a subject has fewer triples than an object, and an object fewer than a predicate
        (Stocker et al., SPARQL Basic Graph Pattern Optimization Using Selectivity Estimation, 2008)."""
        bound = [isinstance(term, Const) or term.name in home for term in found.pattern.terms]
        return sum(weight for weight, known in zip((4, 1, 2), bound, strict=True) if not known)

    def made_tables(self) -> dict[str, pa.Table]:
        """There are none before rows come."""
        return {}

    def longest_us(self) -> int:
        longest = max(found.reach_us for found in self.inputs)
        return longest + 1 if longest < FOR_EVER_US else 0

    @property
    def narrows(self) -> bool:
        return True

    def plan_of(self, text: str, time: str | None) -> LogicalPlan:
        """The rows' time is always the latest of their triples', before which a query that is dropped has all rows."""
        tables = self._tables
        if self._table is None:
            return plan_query(text, tables, self._functions, time="ts").plan
        name, table = self._table
        return with_counted(plan_query(text, tables | {name: table}, self._functions, time="ts").plan, name, self._counted)

    @property
    def _tables(self) -> dict[str, Table]:
        return {stream.name: stream.table for stream in self.streams.values()}

    # ------------------------------------------------------------ windows of TRIPLES

    def first_relation(self, parts: list[str]) -> tuple[Relation, list[Input]]:
        """All streams at once where windows of TRIPLES are joined."""
        streams = [found for found in self.inputs if not found.static]
        if len(streams) < 2 or not _counts(self.query):
            return super().first_relation(parts)
        mine = [self._columns_of(found) for found in streams]
        types = {name: kind for columns in mine for name, kind in columns.items()}
        for number, (found, columns) in enumerate(zip(streams, mine, strict=True)):
            assert found.pattern.block is not None, "a stream without a window"
            of = _stream_of(found.pattern, self.streams)
            before = [_triples_of(of, self._triples[of.name], self._functions)]
            name = self.relation(found, before)
            shown = [f'"{c}"' if c in columns else f'CAST(NULL AS {_SQL_TYPES[kind]}) AS "{c}"' for c, kind in types.items()]
            items = ", ".join([f'CAST({number} AS BIGINT) AS "{PART}"', *shown])
            text = f"WITH {', '.join(before)} SELECT {items} FROM {name}"
            plan = plan_query(text, self._tables, self._functions).plan
            stream, window = self.query.streams.index(found.pattern.block.iri), found.pattern.block.window
            self._counted.append(CountedPart(plan, tuple(columns), stream, window))
        name = self._free_name("counted")
        self._table = name, Table((*types.items(), ("ts", "timestamp[us]"), ("born", "int64")), "ts")
        variables = {variable for found in streams for variable in found.codes}
        relation = Relation(name, variables, set(types), 0, plain=True, static=False)
        return relation, [found for found in self.order if found.static]

    def _columns_of(self, found: Input) -> dict[str, str]:
        """The columns of an input's mappings, and their types."""
        types = {}
        for name in found.codes:
            column = self.column(name)
            types[column] = "string"
            if self.home[name] is found:
                facets = sorted(self.compiler.needed.get(name, ()))
                types |= {f"{column}_{facet}": _TYPES.get(facet, "string") for facet in facets}
        return types

    # ------------------------------------------------------------ inputs

    def first_parts(self) -> list[str]:
        """The triples of each input: other parts may have the names of inputs."""
        parts: list[str] = []
        for found in self.inputs:
            self._add_triples(_stream_of(found.pattern, self.streams), parts)
        return parts

    def relation(self, found: Input, parts: list[str]) -> str:
        pattern = found.pattern
        stream = _stream_of(pattern, self.streams)
        rows, columns = self._triples[stream.name], dict(stream.table.columns)
        items, types = [], []
        if pattern.block is not None:
            window = pattern.block.window
            slides = f":{window.slide_us}:{window.width_us}" if window.kind == "slide" else ""
            items += ['"ts"', f'"born" AS "born{slides}"', *([f'{LAST_TIME_US} AS "dead"'] if window.kind == "all" else [])]
            types += [("ts", columns[stream.table.time or ""]), ("born", "int64")]
            types += [("dead", "int64")] if window.kind in ("slide", "all") else []
        tests, places = list[str](), dict[str, str]()
        for place, term in sorted(zip(TERMS, pattern.terms, strict=True), key=lambda of: of[0] == "p"):
            if isinstance(term, Const):  # a predicate last: by the first one rows are searched, where there are many queries
                tests.append(f'"{place}" = {sql_text(term.text)}')
            elif term.name in places:
                tests.append(f'"{place}" = "{places[term.name]}"')
            else:
                places[term.name] = place
        tests = tests or ['"s" IS NOT NULL']  # terms are null together
        for name, place in places.items():
            column = self.compiler.variables[name].column
            facets = sorted(self.compiler.needed.get(name, ())) if self.home[name] is found else []
            items.append(f'"{place}" AS "{":".join([column, *facets])}"')
            types += [(column, "string"), *((f"{column}_{facet}", _TYPES.get(facet, "string")) for facet in facets)]
        if not items:
            items, types = ['"s" AS "one"'], [("one", "string")]
        text = f"SELECT {', '.join(items)} FROM {rows} WHERE {' AND '.join(tests)}"
        if len(types) > len(items):
            self._functions[found.name] = Function(f"{_MODULE}:mappings", tuple(types))
            alive = ' WHERE "born" < "dead"' if pattern.block is not None and pattern.block.window.kind == "slide" else ""
            text = f"SELECT * FROM MAP_BATCHES(({text}), '{found.name}'){alive}"
        parts.append(f"{found.name} AS ({text})")
        return found.name

    def _add_triples(self, stream: RdfStream, parts: list[str]) -> None:
        """The triples of an input in one spelling."""
        if stream.name in self._triples:
            return
        name = self._triples[stream.name] = self._free_name(f"triples{len(self._triples)}")
        parts.append(_triples_of(stream, name, self._functions))

    def _free_name(self, name: str) -> str:
        """That no input has."""
        taken = {each.name.casefold() for each in self.streams.values()}
        while name in taken:
            name += "_"
        return name

    # ------------------------------------------------------------ the answer

    def answer(self, below: str, last: Last, columns: tuple[tuple[str, str], ...]) -> list[Node]:
        texts = dict(columns)
        named, types, forms = [], [], set()
        for number, shown in enumerate(last.shown):
            name = shown.name if last.template is None else f"t{number}"
            forms.add(shown.form)
            types.append((name, "string"))
            for column in shown.columns:
                suffix = "" if shown.form == "term" else f":{shown.form}:{column}"
                named.append((f"{name}{suffix}", texts[column]))
        named.append(("born", texts["born"]))
        nodes: list[Node] = [Project("rdf terms" if forms - {"term"} else "rdf answer", below, tuple(named))]
        if forms - {"term"}:
            nodes.append(MapBatches("rdf answer", "rdf terms", f"{_MODULE}:written", (*types, ("born", "int64"))))
        return nodes if last.template is None else [*nodes, *_constructed(last.template)]


def _triples_of(stream: RdfStream, name: str, functions: dict[str, Function]) -> str:
    """The triples of an input in one spelling, as a part of a SQL text. The function in it is added to functions."""
    time, items, types = stream.table.time, [], []
    if time is not None:
        items += [f'{quoted(time)} AS "ts"', f'{quoted(time)} AS "us:{int(stream.table.unit_us or 1)}"']
        types += [("ts", dict(stream.table.columns)[time]), ("born", "int64")]
    items += [f'"s" AS "s:{stream.scope}:{stream.malformed}"', '"p"', '"o"']
    types += [(term, "string") for term in (*TERMS, *(("triple", "reason") if stream.malformed == "side" else ()))]
    functions[name] = Function(f"{_MODULE}:{'graph' if time is None else 'triples'}", tuple(types))
    whole = f"SELECT {', '.join(items)} FROM {quoted(stream.name)}"
    return f"{name} AS (SELECT * FROM MAP_BATCHES(({whole}), '{name}'))"


def _constructed(template: tuple[tuple[int | str, int | str, int | str], ...]) -> list[Node]:
    """A row per solution and triple of the template; what is no triple, as its subject is a literal, is left out."""
    nodes: list[Node] = []
    for number, triple in enumerate(template):
        parts = [
            (name, f'"t{part}"' if isinstance(part, int) else sql_text(part)) for name, part in zip(TERMS, triple, strict=True)
        ]
        made = Project(f"rdf triple {number}", "rdf answer", (*parts, ("born", '"born"')))
        fits = """NOT starts_with("s", '"') AND starts_with("p", '<') AND "o" IS NOT NULL"""
        nodes += [made, Filter(f"rdf fits {number}", made.name, fits)]
    if len(template) > 1:
        nodes.append(Union("rdf constructed", tuple(f"rdf fits {number}" for number in range(len(template)))))
    return nodes

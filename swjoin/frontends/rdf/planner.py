"""From a query over RDF streams and its mappings to a logical plan.

What: `plan_rdf(query, graphs) -> Planned`: tables of mappings, a plan over them, and how its columns become terms.
Why: a mapping is a row of codes with a life, so a pattern is a table, compatible mappings are equal codes, and lives that
overlap are bounds of time and a comparison. The rest is what any query has: joins, lookups, filters.
Stays out: matching (`frontends.rdf.inputs`), expressions (`frontends.rdf.expressions`), running the plan, answers
(`frontends.rdf.answers`).

Patterns are joined two at a time, those that share a variable with what is joined first, and of these the one that has the
fewest partners for a row. The rows of a join are
born at the later birth and die at the earlier death of both; their time is the later one of the triples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from swjoin.core.errors import UserError
from swjoin.core.ids import LAST_TIME_US
from swjoin.frontends.rdf.algebra import AggregateOf, Call, Const, Expr, RdfQuery, Term, Var, variables_of
from swjoin.frontends.rdf.expressions import Compiler, Form, Value, Variable, number, sql_text
from swjoin.frontends.rdf.families import MEMBER, Parameters
from swjoin.frontends.rdf.inputs import Graphs, Input, facet_of, is_uniform, matched, table_of, variable_of
from swjoin.frontends.rdf.query_texts import blocks_of
from swjoin.frontends.rdf.term_values import NUMERIC
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.plan.aggregates import AggregateCall
from swjoin.plan.live_groups import LifeMode, LiveGroups
from swjoin.plan.logical import Filter, LogicalPlan, Node, Project, Result

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMN = re.compile(r"""'(?:[^']|'')*'|"(v\d+(?:_\w+)?)\"""")  # a text, which may have any name in it, or a column
_BORN, _MEMBER = "born", "member"
_WINDOWS, _LIVES = "rdf windows", "rdf lives"  # nodes that differ in queries that differ in windows alone


class Shown(NamedTuple):
    """A column of the answer. form: of its value. columns: of the plan's rows: codes; numbers and ranks; texts and languages;
    truth values; IRIs; places in the order of terms."""

    name: str
    form: Form
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """inputs: the mappings of every pattern. tables: of these, by the names of the plan's sources. shown: the answer's columns,
    beside `born` and, of a family of queries, `member`. template: of CONSTRUCT, of positions in shown and constants; None: rows
    are solutions."""

    plan: LogicalPlan
    inputs: tuple[Input, ...]
    tables: dict[str, pa.Table]
    shown: tuple[Shown, ...]
    template: tuple[tuple[int | str, int | str, int | str], ...] | None


class _Join(NamedTuple):
    """mortal: whether its rows need their deaths."""

    name: str
    mortal: bool


@dataclass
class Relation:
    """What is joined so far. name: in the SQL text. variables: that it has. columns: of its rows, beside times and lives.
    reach_us: longest time to a partner. plain: whether bounds of time alone say that lives overlap: those of one input, each
    as long as the other. static: of no stream. life_us: of each row, from its birth on; 0: `dead` says until when. own: of an
    input, which of `Planner.firsts` its births are."""

    name: str
    variables: set[str]
    columns: set[str]
    reach_us: int
    plain: bool
    static: bool
    life_us: int = 0
    own: str | None = None

    def column(self, name: str, table: str = "") -> str:
        """A column of a row, as SQL. table: that it is in, with a dot."""
        return f'{table}"born"' if name == self.own else f'{table}"{name}"'

    def dead(self, table: str = "") -> str:
        """The death of a row, as SQL. table: that it is in, with a dot."""
        return f'({table}"born" + {self.life_us})' if self.life_us else f'{table}"dead"'


def plan_rdf(query: RdfQuery, graphs: Graphs, parameters: Parameters | None = None, *, routed: bool = False) -> Planned:
    """parameters: of a family of queries. routed: of one that differs in windows of RANGE, of which these are the widest: rows
    have their ages (`age_column`). All constants are in the dictionary of the graphs (`add_constants`). UserError for what is
    not supported."""
    return Planner(query, graphs, matched(query, graphs, parameters), routed).planned()


def age_column(block: int) -> str:
    """Of rows that are routed by windows: microseconds from the birth of their first part in a block, counted as `blocks_of`
    does, to their own."""
    return f"age{block}"


def narrowed(nodes: Iterable[Node], widths: Mapping[int, int]) -> LogicalPlan:
    """The plan of the widest windows with those of one query. widths: microseconds, by block with a window of RANGE."""
    limits = " AND ".join(f'"{age_column(block)}" <= {width}' for block, width in widths.items())
    left = [f'"from" + ({width + 1} - "{age_column(block)}")' for block, width in widths.items()]
    made: list[Node] = []
    for node in nodes:
        if isinstance(node, Filter) and node.name == _WINDOWS:
            node = replace(node, condition=limits)
        elif isinstance(node, Project) and node.name == _LIVES:
            columns = dict(node.columns)
            ends = [*(['"dead"'] if '"dead"' in columns["dead"] else []), *left]
            columns["dead"] = f"LEAST({', '.join(ends)})" if len(ends) > 1 else ends[0]
            node = replace(node, columns=tuple(columns.items()))
        made.append(node)
    return LogicalPlan(tuple(made))


def is_one_plan(query: RdfQuery, graphs: Graphs, parameters: Parameters | None) -> bool:
    """Whether expressions make of the terms of all members of a family what they make of those of each."""
    read = _read_by_expressions(query)
    if parameters is None or not read:
        return True
    inputs = matched(query, graphs, parameters)
    return all(is_uniform(name, found, graphs.values) for found in inputs for name in found.codes if name in read)


def add_constants(query: RdfQuery, graphs: Graphs) -> None:
    """To the dictionary, so that all have codes before the first query is planned."""
    for text in _constants(query):
        graphs.dictionary.add(text)


def _constants(query: RdfQuery) -> list[str]:
    found: list[str] = []

    def walk(expr: Expr) -> None:
        if isinstance(expr, Const):
            found.append(expr.text)
        elif isinstance(expr, Call):
            for arg in expr.args:
                walk(arg)

    for expr in (*query.filters, *(e for _, e in query.binds), *query.having, *(e for _, e in query.outputs)):
        walk(expr)
    for call in query.aggregates:
        walk(call.of or Var("*"))
    for triple in query.template or []:
        for term in triple:
            walk(term)
    return found


@dataclass
class Planner:
    """Over tables of codes; `frontends.rdf.live_planner` has the other one, over columns of text."""

    query: RdfQuery
    graphs: Graphs
    inputs: list[Input]
    routed: bool
    order: list[Input] = field(default_factory=list)
    home: dict[str, Input] = field(default_factory=dict)  # of each variable: the first input that has it
    tables: dict[str, pa.Table] = field(default_factory=dict)

    def planned(self) -> Planned:
        self.order = _ordered(self.inputs, self.partners)
        for found in self.order:
            for name in found.codes:
                self.home.setdefault(name, found)
        variables = {name: self.variable(name, f"v{i}", found) for i, (name, found) in enumerate(self.home.items())}
        self.compiler = Compiler(variables, self.constant)
        for name, expr in self.query.binds:
            self.compiler.computed[name] = self.compiler.value(expr)
        filters = [self.compiler.condition(expr) for expr in self.query.filters]
        last = self._last()
        text = self._joins(filters, last.columns | set(self.firsts.values()), mortal=self._mortal(last))
        self.tables = self.made_tables()
        plan = self._plan(text, last)
        return Planned(plan, tuple(self.inputs), self.tables, tuple(last.shown), last.template)

    @cached_property
    def firsts(self) -> dict[int, str]:
        """By block with a window of RANGE, the column with the birth of the first of a row's parts in it; none of a query that
        is routed by no windows."""
        ranges = [i for i, block in enumerate(blocks_of(self.query)) if block.window.kind == "range"]
        return {block: f"t{block}" for block in ranges if self.routed}

    def _mortal(self, last: Last) -> bool:
        """Whether the rows of joins need their deaths. Ages tell those of windows of RANGE."""
        return last.alive and len(self.firsts) < len(blocks_of(self.query))

    @property
    def _placed(self) -> bool:
        """Whether lives are compared by places."""
        return any(found.places is not None for found in self.inputs)

    def variable(self, name: str, column: str, found: Input) -> Variable:
        """What is known of a variable that an input binds."""
        if name in self._read and found.count:
            return variable_of(name, column, found, self.graphs.values)
        return Variable(column)

    def partners(self, home: Mapping[str, Input], found: Input) -> float:
        """How many mappings of an input a row has on average, of all times, by the variable that leaves the fewest. home: the
        input that binds a variable."""
        fewest = math.inf
        for name in home.keys() & found.codes.keys():
            mine, theirs = home[name].codes[name], found.codes[name]
            if not len(mine) or not len(theirs):
                return 0
            counts = np.bincount(theirs, minlength=int(mine.max()) + 1)
            fewest = min(fewest, float(counts[mine].mean()))
        return fewest

    @cached_property
    def _read(self) -> set[str]:
        return _read_by_expressions(self.query)

    def constant(self, text: str) -> Value:
        """A constant as columns would have it."""
        code = self.graphs.dictionary.code_of(text)
        assert code is not None, "constants have codes"
        codes = np.array([code])

        def facet(which: str) -> str | None:
            found = facet_of(which, codes, self.graphs.values, text)[0].as_py()
            if found is None:
                return None
            if isinstance(found, bool):
                return "TRUE" if found else "FALSE"
            if isinstance(found, str):
                return sql_text(found)
            if isinstance(found, float):
                return f"CAST('{found!r}' AS DOUBLE)"
            return f"CAST({found} AS BIGINT)"

        kind = facet_of("kind", codes, self.graphs.values, text)[0].as_py()
        rank = facet_of("rank", codes, self.graphs.values, text)[0].as_py()
        return Value("term", facet, str(code), frozenset({kind}), integers=kind == NUMERIC and rank == 0)

    def made_tables(self) -> dict[str, pa.Table]:
        """Of the inputs, with what the query reads of them."""
        names = {name: known.column for name, known in self.compiler.variables.items()}
        needed = {name: sorted(facets) for name, facets in self.compiler.needed.items()}
        made = {}
        for found in self.inputs:
            mine = {name: facets for name, facets in needed.items() if self.home[name] is found}
            made[found.name] = table_of(found, names, mine, self.graphs)
        return made

    # ------------------------------------------------------------ joins, as SQL

    def _joins(self, filters: Sequence[str], wanted: Iterable[str], *, mortal: bool) -> str:
        """Joins and filters. wanted: columns that are needed behind them. mortal: deaths are needed, too. Where they are not,
        queries that differ in their windows have one join (`plan.sharing`)."""
        waiting = [(text, _columns_in(text)) for text in filters]
        needed_later = set(wanted)
        parts = self.first_parts()
        relation, rest = self.first_relation(parts)
        relation = self._filtered(relation, waiting, parts)
        for i, found in enumerate(rest, 1):
            right = self._filtered(self._input(found, parts), waiting, parts)
            later = {self.column(name) for other in rest[i:] for name in other.codes}
            keep = needed_later | later | {name for _, reads in waiting for name in reads}
            dies = mortal or any(not other.static for other in rest[i:])
            relation = self._joined(relation, right, keep, _Join(f"j{i}", dies), parts)
            relation = self._filtered(relation, waiting, parts)
        assert not waiting, "a filter of a variable that no pattern binds"
        placed = ["place", "until"] if self._placed else []
        columns = [f'{relation.column(name)} AS "{name}"' for name in sorted(needed_later)]
        names = ", ".join(['"ts"', '"born"', *(f'"{name}"' for name in placed), *columns])
        names += f', {relation.dead()} AS "dead"' if mortal else ""
        return f"{'WITH ' if parts else ''}{', '.join(parts)} SELECT {names} FROM {relation.name}".strip()

    def column(self, name: str) -> str:
        """Of a variable, in the SQL text."""
        return self.compiler.variables[name].column

    def _input(self, found: Input, parts: list[str]) -> Relation:
        columns = {self.column(name) for name in found.codes}
        for name in found.codes:
            if self.home[name] is found:
                columns |= {f"{self.column(name)}_{facet}" for facet in self.compiler.needed.get(name, ())}
        block = found.pattern.block
        plain = found.places is None and block is not None and block.window.kind in ("range", "all")
        name = self.relation(found, parts)
        own = None if block is None else self.firsts.get(blocks_of(self.query).index(block))
        columns |= set() if own is None else {own}
        is_plain = plain or found.static
        return Relation(name, set(found.codes), columns, found.reach_us, is_plain, found.static, found.life_us or 0, own)

    def first_parts(self) -> list[str]:
        """Of the SQL text, before all others."""
        return []

    def first_relation(self, parts: list[str]) -> tuple[Relation, list[Input]]:
        """What the other inputs are joined with, and these, in order. parts: of the SQL text before."""
        return self._input(self.order[0], parts), self.order[1:]

    def relation(self, found: Input, parts: list[str]) -> str:
        """The name, in the SQL text, of an input's mappings. parts: of the text before."""
        return found.name

    def _filtered(self, relation: Relation, waiting: list[tuple[str, set[str]]], parts: list[str]) -> Relation:
        """With the filters whose columns are there."""
        mine = [text for text, reads in waiting if reads <= relation.columns and (reads or not relation.static)]
        if not mine:
            return relation
        waiting[:] = [(text, reads) for text, reads in waiting if text not in mine]
        name = f"f{len(parts)}"
        condition = " AND ".join(f"({text})" for text in mine)
        parts.append(f"{name} AS (SELECT * FROM {relation.name} WHERE {condition})")
        return replace(relation, name=name)

    def _joined(self, left: Relation, right: Relation, keep: set[str], join: _Join, parts: list[str]) -> Relation:
        shared = sorted(self.column(v) for v in left.variables & right.variables)
        tests = [f'a."{column}" = b."{column}"' for column in shared]
        columns = (left.columns | right.columns) & keep
        firsts = self.firsts.values()
        items = [f'{_from(column, left, right, firsts)} AS "{column}"' for column in sorted(columns)]
        placed = self._placed
        plain = True
        life_us = 0
        if right.static:
            times = [f'a."{column}" AS "{column}"' for column in ("ts", "born", *(["place", "until"] if placed else []))]
            times += [] if left.life_us or not join.mortal else ['a."dead" AS "dead"']
            plain, life_us = left.plain, left.life_us
        else:
            low, high = (f"INTERVAL '{us}' MICROSECOND" for us in (right.reach_us, left.reach_us))
            tests.append(f'b."ts" BETWEEN a."ts" - {low} AND a."ts" + {high}')
            if placed:
                tests += ['a."place" < b."until"', 'b."place" < a."until"']
            elif not (left.plain and right.plain):
                tests += [f'a."born" < {right.dead("b.")}', f'b."born" < {left.dead("a.")}']
            times = [f'GREATEST(a."{column}", b."{column}") AS "{column}"' for column in ("ts", "born")]
            times += [f'LEAST({left.dead("a.")}, {right.dead("b.")}) AS "dead"'] if join.mortal else []
            times += ['GREATEST(a."place", b."place") AS "place"', 'LEAST(a."until", b."until") AS "until"'] if placed else []
            plain = False  # the life of a row is as long as its parts let it
        how = f"JOIN {right.name} b ON {' AND '.join(tests)}" if tests else f"CROSS JOIN {right.name} b"
        parts.append(f"{join.name} AS (SELECT {', '.join([*times, *items])} FROM {left.name} a {how})")
        reach = left.reach_us if right.static else max(left.reach_us, right.reach_us)
        return Relation(join.name, left.variables | right.variables, columns, reach, plain, False, life_us)

    # ------------------------------------------------------------ the answer

    def _last(self) -> Last:
        query = self.query
        if query.grouped:
            return _Groups(self).last()
        names = query.shown
        template = None
        if query.template is not None:
            names = _template_variables(query.template)
            template = tuple(_template(triple, names) for triple in query.template)
        last = Last(template=template)
        for i, name in enumerate(names):
            self._show(last, name, self.compiler.value(Var(name)), i)
        last.distinct = query.distinct
        if self.member is not None:
            last.computed.append((_MEMBER, self.member))
            last.columns.add(self.column(MEMBER))
        return last

    @property
    def narrows(self) -> bool:
        """Whether the plan leaves the rows of one query's windows, and not those of the widest, to be told apart by age."""
        return False

    @property
    def member(self) -> str | None:
        """The number of the member, of a family; as SQL."""
        return f'"{self.column(MEMBER)}"' if MEMBER in self.home else None

    def _show(self, last: Last, name: str, value: Value, number_of: int) -> None:
        """A column of the answer. The columns of its value are computed behind the joins."""
        texts = columns_of(value)
        columns = []
        for suffix, text in texts:
            column = f"o{number_of}_{suffix}"
            last.computed.append((column, text))
            last.columns |= _columns_in(text)
            columns.append(column)
        last.shown.append(Shown(name, value.form, tuple(columns)))

    def _plan(self, text: str, last: Last) -> LogicalPlan:
        alive, ages = last.alive, [(age_column(block), f'("born" - "{first}")') for block, first in self.firsts.items()]
        plan = self.plan_of(text, "ts" if alive else None)
        nodes: list[Node] = [node for node in plan.nodes if not isinstance(node, Result)]
        result = next(node for node in plan.nodes if isinstance(node, Result))
        top = result.input

        def add(node: Node) -> None:
            nonlocal top
            nodes.append(node)
            top = node.name

        dead = [("dead", self._dead(last))] if self._mortal(last) else []
        add(Project("rdf values", top, (("ts", '"ts"'), ("from", '"born"'), *dead, *last.computed, *ages)))
        if ages and (alive or self.narrows):
            add(Filter(_WINDOWS, top, ""))
        if ages and alive:
            kept = ((name, f'"{name}"') for name, _ in last.computed)
            add(Project(_LIVES, top, (("ts", '"ts"'), ("from", '"from"'), ("dead", '"dead"' if dead else ""), *kept)))
        if last.calls is None and last.distinct:
            key = tuple(column for column, _ in last.computed)
            longest = self.longest_us()
            add(
                LiveGroups(
                    "rdf distinct", top, key, "from", "dead", as_of=_BORN, mode="births", longest_us=longest and longest + 1
                )
            )
        elif last.calls is not None:
            add(self._groups(top, last))
            if last.having:
                add(Filter("rdf having", top, " AND ".join(f"({text})" for text in last.having)))
        born = _BORN if alive else "from"
        names = [(column, f'"{column}"') for shown in last.shown for column in shown.columns]
        names += [(_MEMBER, f'"{_MEMBER}"')] if self.member is not None and last.calls is None else []
        names += [(name, f'"{name}"') for name, _ in ages if not alive]
        answer = self.answer(top, last, (*(last.outputs or names), (_BORN, f'"{born}"')))
        name = "result"
        while any(node.name == name for node in nodes):  # of an input
            name += "_"
        widths = {block: blocks_of(self.query)[block].window.width_us for block in self.firsts}
        return narrowed((*nodes, *answer, Result(name, answer[-1].name, True)), widths)

    def plan_of(self, text: str, time: str | None) -> LogicalPlan:
        """Of the joins, as SQL. time: the column that is to be the rows' time; groups wait for no later one."""
        return plan_query(text, {found.name: self._described(found) for found in self.inputs}, time=time).plan

    def answer(self, below: str, last: Last, columns: tuple[tuple[str, str], ...]) -> list[Node]:
        """The last nodes of the plan. below: the node that they read. columns: of the answer's values, as SQL, and `born`."""
        return [Project("rdf answer", below, columns)]

    def _described(self, found: Input) -> Table:
        schema = self.tables[found.name].schema
        return Table(tuple((f.name, str(f.type)) for f in schema), None if found.static else "ts")

    def longest_us(self) -> int:
        """Of the lives of results; 0 if one may live for ever."""
        longest = 0
        for found in self.inputs:
            if found.lives is None or found.ts is None or not found.count:
                continue
            if int(found.lives.dead.max()) >= LAST_TIME_US:
                return 0
            longest = max(longest, int((found.lives.dead - found.ts).max()))
        return longest

    def _dead(self, last: Last) -> str:
        """Deaths of results. One that dies at its birth, as places tell, has been there, so it is a row of DISTINCT."""
        placed = self._placed
        return 'GREATEST("dead", "born" + 1)' if placed and last.distinct else '"dead"'

    def _groups(self, below: str, last: Last) -> LiveGroups:
        slides = {f.pattern.block.window.slide_us for f in self.inputs if f.pattern.block is not None}
        every = slides.pop() if len(slides) == 1 else 0
        calls = tuple(last.calls or ())
        kind: LifeMode = "boundaries" if every else "changes"
        return LiveGroups(
            "rdf groups", below, tuple(last.keys), "from", "dead", calls, _BORN, every, kind, longest_us=self.longest_us()
        )


@dataclass
class Last:
    """What is behind the joins. columns: of their rows that are read. computed: columns of each row, as SQL. keys, calls: of
    groups; None: rows are no groups. having, outputs: over their columns. shown: columns of the answer."""

    columns: set[str] = field(default_factory=set)
    computed: list[tuple[str, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    calls: list[AggregateCall] | None = None
    having: list[str] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    template: tuple[tuple[int | str, int | str, int | str], ...] | None = None
    distinct: bool = False

    @property
    def alive(self) -> bool:
        """Whether the answer depends on when rows die."""
        return self.distinct or self.calls is not None


def _from(column: str, left: Relation, right: Relation, firsts: Collection[str]) -> str:
    """A column of the rows of a join, as SQL: that of the left row, if it has it. firsts: those with the least of both."""
    sides = [
        relation.column(column, f"{table}.") for table, relation in (("a", left), ("b", right)) if column in relation.columns
    ]
    return f"LEAST({', '.join(sides)})" if column in firsts and len(sides) > 1 else sides[0]


def _columns_in(text: str) -> set[str]:
    """The columns of mappings that a SQL text reads."""
    return {name for name in _COLUMN.findall(text) if name}


def _read_by_expressions(query: RdfQuery) -> set[str]:
    """Variables of which more is read than codes."""
    exprs = [*query.filters, *(e for _, e in query.binds), *query.having, *(e for _, e in query.outputs)]
    exprs += [call.of for call in query.aggregates if call.of is not None]
    return {name for expr in exprs for name in variables_of(expr)}


def columns_of(value: Value) -> list[tuple[str, str]]:
    """The columns that a value has in the answer, with their SQL texts."""
    if value.form == "term":
        return [("code", value.code or "")]
    if value.form == "number":
        return [("num", value.facet("num") or ""), ("rank", f"CAST({value.facet('rank')} AS BIGINT)")]
    if value.form == "text":
        lang = value.facet("lang")
        return [("text", value.facet("string") or ""), *([] if lang is None else [("lang", lang)])]
    facet = {"truth": "truth", "iri": "iri", "ordered": "ord"}[value.form]
    return [(facet, value.facet(facet) or "")]


def _ordered(inputs: Sequence[Input], partners: Callable[[Mapping[str, Input], Input], float]) -> list[Input]:
    """The order of joins: from the first stream on, each that shares a variable with those before, streams first, and of these
    the one that has the fewest partners for a row. In a family the first stream is one in whose mappings its members differ,
    and these are told apart as soon as can be."""
    waiting = list(inputs)
    order = [min((f for f in waiting if not f.static), key=lambda f: not any(name.startswith(":") for name in f.codes))]
    waiting.remove(order[0])
    home = dict.fromkeys(order[0].codes, order[0])
    while waiting:
        ranked = [(not home.keys() & f.codes.keys(), MEMBER not in f.codes, f.static) for f in waiting]
        best = [f for f, rank in zip(waiting, ranked, strict=True) if rank == min(ranked)]
        found = best[0] if len(best) == 1 else min(best, key=lambda f: partners(home, f))
        waiting.remove(found)
        order.append(found)
        home |= {name: found for name in found.codes if name not in home}
    return order


def _template_variables(template: Sequence[tuple[Term, Term, Term]]) -> list[str]:
    names = [term.name for triple in template for term in triple if isinstance(term, Var) and not term.name.startswith("_:")]
    return list(dict.fromkeys(names))


def _template(triple: tuple[Term, Term, Term], names: Sequence[str]) -> tuple[int | str, int | str, int | str]:
    def part(term: Term) -> int | str:
        if isinstance(term, Var):
            return term.name if term.name.startswith("_:") else names.index(term.name)
        return term.text

    return part(triple[0]), part(triple[1]), part(triple[2])


class _Groups:
    """The columns of groups."""

    def __init__(self, planner: Planner) -> None:
        self._planner, self._query = planner, planner.query
        self._last = Last(calls=[])
        self._values: dict[str, Value] = {}  # of keys and aggregates, over the columns of groups

    def last(self) -> Last:
        last, query = self._last, self._query
        if self._planner.member is not None:
            last.keys.append(self._computed(_MEMBER, self._planner.member))
            last.outputs.append((_MEMBER, f'"{_MEMBER}"'))
        for i, name in enumerate(query.keys):
            value = self._planner.compiler.value(Var(name))
            columns = [self._computed(f"k{i}_{suffix}", text) for suffix, text in columns_of(value)]
            last.keys += columns
            self._values[name] = self._key(name, value, columns)
        for i, call in enumerate(query.aggregates):
            self._values[call.name] = self._aggregate(call, i)
        compiler = Compiler(self._planner.compiler.variables, self._planner.constant, dict(self._values))
        for name, expr in query.outputs:
            compiler.computed[name] = compiler.value(expr)
        last.having = [compiler.condition(expr) for expr in query.having]
        if query.distinct and not set(query.keys) <= set(query.shown):
            raise UserError("DISTINCT of groups is not supported", remedy="select all variables of GROUP BY, or leave it out")
        names = query.shown
        if query.template is not None:
            names = _template_variables(query.template)
            last.template = tuple(_template(triple, names) for triple in query.template)
        for i, name in enumerate(names):
            value = compiler.value(Var(name))
            columns = []
            for suffix, text in columns_of(value):
                last.outputs.append((f"o{i}_{suffix}", text))
                columns.append(f"o{i}_{suffix}")
            last.shown.append(Shown(name, value.form, tuple(columns)))
        return last

    def _computed(self, column: str, text: str) -> str:
        """A column of the rows that are grouped."""
        self._last.computed.append((column, text))
        self._last.columns |= _columns_in(text)
        return column

    def _key(self, name: str, value: Value, columns: Sequence[str]) -> Value:
        """A key as groups have it; facets of a term are keys, too, as they are the same in a group."""
        quoted = [f'"{column}"' for column in columns]
        if value.form == "number":
            return number(quoted[0], quoted[1], integers=value.integers)
        if value.form != "term":
            facet = {"truth": "truth", "iri": "iri", "text": "simple"}[value.form]
            if value.facet("lang") is not None:
                raise UserError(f"GROUP BY ?{name}: text with a language is not supported", remedy="group by STR of it")
            texts = {facet: quoted[0], **({"string": quoted[0], "str": quoted[0]} if value.form == "text" else {})}
            return Value(value.form, texts.get, None, value.kinds, quoted[0])

        def facet_of_key(which: str) -> str | None:
            text = value.facet(which)
            if text is None:
                return None
            column = f"{columns[0]}_{which}"
            if column not in self._last.keys:
                self._computed(column, text)
                self._last.keys.append(column)
            return f'"{column}"'

        return Value("term", facet_of_key, quoted[0], value.kinds, value.null, value.integers)

    # ------------------------------------------------------------ aggregates

    def _call(self, name: str, function: str, column: str | None, *, distinct: bool = False) -> str:
        """A call; the SQL text of its result."""
        assert self._last.calls is not None
        self._last.calls.append(AggregateCall(name, function, column, distinct=distinct))
        return f'"{name}"'

    def _aggregate(self, call: AggregateOf, i: int) -> Value:
        name = f"a{i}"
        if call.of is None:
            if call.distinct:
                raise UserError("COUNT(DISTINCT *) is not supported", remedy="count a variable")
            return number(self._call(name, "count", None), "0", integers=True)
        value = self._planner.compiler.value(call.of)
        if call.function == "COUNT":
            column = self._computed(f"{name}_of", columns_of(value)[0][1])
            if call.distinct and (value.form == "number" or (value.form == "text" and value.facet("lang") is not None)):
                raise UserError(f"COUNT(DISTINCT of a computed {value.form}) is not supported", remedy="count a variable")
            return number(self._call(name, "count", column, distinct=call.distinct), "0", integers=True)
        if call.function in ("MIN", "MAX"):
            return self._extreme(call, value, name)
        return self._total(call, value, name)

    def _total(self, call: AggregateOf, value: Value, name: str) -> Value:
        """SUM and AVG: unbound where a value is no number."""
        if call.distinct:
            self._check_distinct(call, value)
        num, rank = self._planner.compiler.num(value)
        numbers = self._computed(f"{name}_num", num)
        ranks = self._computed(f"{name}_rank", f"CAST({rank} AS BIGINT)")
        total = self._call(f"{name}_sum", "sum", numbers, distinct=call.distinct)
        known = self._call(f"{name}_count", "count", numbers)
        widest = self._call(f"{name}_widest", "max", ranks)
        rows = self._call(f"{name}_rows", "count", None)
        result, whole, rank = total, value.integers, widest
        if call.function == "AVG":
            divisor = known if not call.distinct else self._call(f"{name}_values", "count", numbers, distinct=True)
            result, whole, rank = f"({total} / {divisor})", False, f"GREATEST(1, {widest})"
        return number(f"(CASE WHEN {known} = {rows} THEN {result} END)", rank, integers=whole)

    def _check_distinct(self, call: AggregateOf, value: Value) -> None:
        known = self._planner.compiler.variables.get(call.of.name) if isinstance(call.of, Var) else None
        if known is None or value.form != "term":
            raise UserError(f"{call.function}(DISTINCT of a computed value) is not supported", remedy="take a variable")
        if known.clash:
            raise UserError(
                f"{call.function}(DISTINCT ?{call.of.name}): {known.clash} are different terms of one value",  # type: ignore[union-attr]
                remedy="leave DISTINCT out, or write them alike",
            )

    def _extreme_number(self, call: AggregateOf, value: Value, name: str) -> Value:
        """MIN and MAX where terms have no places in an order: unbound where a value is no number."""
        num, rank = self._planner.compiler.num(value)
        numbers = self._computed(f"{name}_num", num)
        found = self._call(name, call.function.lower(), numbers)
        widest = self._call(f"{name}_widest", "max", self._computed(f"{name}_rank", f"CAST({rank} AS BIGINT)"))
        known, rows = self._call(f"{name}_count", "count", numbers), self._call(f"{name}_rows", "count", None)
        return number(f"(CASE WHEN {known} = {rows} THEN {found} END)", widest)

    def _extreme(self, call: AggregateOf, value: Value, name: str) -> Value:
        function = call.function.lower()
        if value.form != "term":
            raise UserError(f"{call.function} of a computed value is not supported", remedy="take a variable")
        if value.facet("ord") is None:
            return self._extreme_number(call, value, name)
        place = self._call(name, function, self._computed(f"{name}_ord", value.facet("ord") or ""))

        def facet(which: str) -> str | None:
            if which == "ord":
                return place
            if value.kinds != {NUMERIC} or (which == "rank" and not value.integers):
                problem = f"{call.function} in an expression, of values that are not all numbers of one type"
                raise UserError(problem, remedy="select it by itself")
            if which == "rank":
                return f"(CASE WHEN {place} IS NULL THEN NULL ELSE 0 END)"
            if which != "num":
                return None
            found = f"{name}_num_{function}"
            known = any(c.name == found for c in self._last.calls or [])
            return (
                f'"{found}"' if known else self._call(found, function, self._computed(f"{name}_num", value.facet("num") or ""))
            )

        return Value("ordered", facet, None, value.kinds, place, value.integers)

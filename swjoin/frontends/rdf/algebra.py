"""From the text of a query over RDF streams to a description of what it asks.

What: `parse_query(text) -> RdfQuery`: patterns with their windows and graphs, filters, computed variables, groups, the answer.
Why: the language is SPARQL 1.1 and `STREAM <iri> [window] {..}`; rdflib parses the former once the latter is written as
`GRAPH <..>`, so there is no parser of ours. What is not understood is refused by name, nothing is passed over.
Stays out: what expressions mean (`frontends.rdf.expressions`), plans (`frontends.rdf.planner`). rdflib's objects end here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urljoin

from swjoin.core.errors import UserError, one_line
from swjoin.core.lives import Window, window_named
from swjoin.frontends.rdf.dictionary import Term as Parts
from swjoin.frontends.rdf.dictionary import join_term

_BLOCK = "urn:swjoin:stream:"
_AGGREGATES = {"Count": "COUNT", "Sum": "SUM", "Avg": "AVG", "Min": "MIN", "Max": "MAX"}
_REFUSED = {
    "LeftJoin": "OPTIONAL",
    "Union": "UNION",
    "Minus": "MINUS",
    "ServiceGraphPattern": "SERVICE",
    "OrderBy": "ORDER BY",
    "Slice": "LIMIT or OFFSET",
    "Reduced": "REDUCED",
    "values": "VALUES",
    "AskQuery": "ASK",
    "DescribeQuery": "DESCRIBE",
}
_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<text>\"\"\"(?:[^"\\]|\\.|"{1,2}(?!"))*\"\"\"|'''(?:[^'\\]|\\.|'{1,2}(?!'))*'''
               |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<iri><[^<>"{}|^`\\\x00-\x20]*>)
      | (?P<name>[?$]?[^\W\d][\w.-]*:[\w.%:-]*|:[\w.%:-]*|[?$]?\w+)
      | (?P<other>\s+|.)""",
    re.VERBOSE | re.DOTALL,
)


class Var(NamedTuple):
    """A variable, or a blank node of the query, which is one without a name that users see."""

    name: str


class Const(NamedTuple):
    """A term in N-Triples syntax."""

    text: str


class Call(NamedTuple):
    """op: an operator as SPARQL spells it, or a function's name in capitals."""

    op: str
    args: tuple[Any, ...]  # of `Expr`


Expr: TypeAlias = Var | Const | Call
Term: TypeAlias = Var | Const


class Block(NamedTuple):
    """A `STREAM` block. number: in the order of the text."""

    number: int
    iri: str
    window: Window


class Pattern(NamedTuple):
    """A triple pattern. block: of a stream; None: it is static. graph: the IRI of its static graph, None for all of them."""

    terms: tuple[Term, Term, Term]
    block: Block | None
    graph: str | None

    @property
    def variables(self) -> list[str]:
        return list(dict.fromkeys(term.name for term in self.terms if isinstance(term, Var)))

    @property
    def description(self) -> str:
        terms = " ".join(f"?{term.name}" if isinstance(term, Var) else term.text for term in self.terms)
        if self.block is not None:
            return f"STREAM <{self.block.iri}> [{self.block.window.description}] {{ {terms} }}"
        return terms if self.graph is None else f"GRAPH <{self.graph}> {{ {terms} }}"


class AggregateOf(NamedTuple):
    """name: of the variable that has its value. function: COUNT, SUM, AVG, MIN or MAX. of: None for `*`."""

    name: str
    function: str
    of: Expr | None
    distinct: bool


@dataclass
class RdfQuery:
    """patterns: in the order of the text. filters, binds: of the joined patterns; a bind is (variable, expression), in order.
    grouped: whether rows are groups. keys: variables that group. having, outputs: filters and computed variables of groups.
    shown: the variables of the answer. template: of CONSTRUCT."""

    patterns: list[Pattern] = field(default_factory=list)
    filters: list[Expr] = field(default_factory=list)
    binds: list[tuple[str, Expr]] = field(default_factory=list)
    grouped: bool = False
    keys: list[str] = field(default_factory=list)
    aggregates: list[AggregateOf] = field(default_factory=list)
    having: list[Expr] = field(default_factory=list)
    outputs: list[tuple[str, Expr]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    distinct: bool = False
    template: list[tuple[Term, Term, Term]] | None = None

    @property
    def streams(self) -> list[str]:
        """IRIs of the streams, in the order of the text."""
        return list(dict.fromkeys(p.block.iri for p in self.patterns if p.block is not None))

    @property
    def bound(self) -> set[str]:
        """Variables that patterns bind."""
        return {name for pattern in self.patterns for name in pattern.variables}


# ---------------------------------------------------------------- STREAM blocks


class _Rewritten(NamedTuple):
    """moved: (position in the new text, position in the old one), ascending."""

    text: str
    blocks: list[Block]
    moved: list[tuple[int, int]]

    def place(self, at: int) -> int:
        """Where a position of the new text is in the old one."""
        new, old = max((pair for pair in self.moved if pair[0] <= at), default=(0, 0))
        return old + at - new


def _rewritten(text: str) -> _Rewritten:
    """The query with a `GRAPH` for every `STREAM`. UserError for a stream without an IRI or a window."""
    prefixes: dict[str, str] = {}
    renamed: dict[str, str] = {}  # prefixes of an IRI that another one has: rdflib knows the last of them alone
    blocks: list[Block] = []
    out: list[str] = []
    moved, base, length, tokens = [(0, 0)], "", 0, list(tokens_of(text))

    def put(piece: str) -> None:
        nonlocal length
        out.append(piece)
        length += len(piece)

    i = 0
    while i < len(tokens):
        kind, token, _ = tokens[i]
        word = token.upper() if kind == "name" else ""
        if word in ("PREFIX", "BASE"):
            following = [t for t in tokens[i + 1 : i + 6] if t[0] in ("name", "iri")]
            if word == "BASE" and following and following[0][0] == "iri":
                base = urljoin(base, following[0][1][1:-1])
            elif word == "PREFIX" and len(following) > 1 and following[1][0] == "iri":
                prefixes[following[0][1]] = urljoin(base, following[1][1][1:-1]) if base else following[1][1][1:-1]
        if word == "PREFIX" and (found := _same_iri(tokens, i, prefixes)) is not None:
            i, renamed[found[0]] = found[1], found[2]
            moved.append((length, tokens[i][2] if i < len(tokens) else len(text)))
            continue
        prefix = f"{token.partition(':')[0]}:" if kind == "name" and ":" in token else ""
        if prefix in renamed:
            put(renamed[prefix] + token.partition(":")[2])
            moved.append((length, tokens[i][2] + len(token)))
            i += 1
            continue
        if word != "STREAM":
            put(token.replace("\t", "\\t") if kind == "text" else token)  # the parser makes spaces of tabs
            if kind == "text" and "\t" in token:
                moved.append((length, tokens[i][2] + len(token)))
            i += 1
            continue
        iri, window, i = _head(text, tokens, i, prefixes, base)
        blocks.append(Block(len(blocks), iri, window))
        put(f"GRAPH <{_BLOCK}{len(blocks) - 1}> ")
        moved.append((length, tokens[i][2] if i < len(tokens) else len(text)))
    return _Rewritten("".join(out), blocks, moved)


def _same_iri(tokens: Sequence[tuple[str, str, int]], at: int, prefixes: dict[str, str]) -> tuple[str, int, str] | None:
    """Of a declaration whose IRI an earlier prefix has: its prefix, the token behind it, the earlier prefix."""
    found = [i for i in range(at + 1, min(at + 6, len(tokens))) if tokens[i][0] in ("name", "iri")][:2]
    if len(found) < 2 or tokens[found[1]][0] != "iri":
        return None
    name = tokens[found[0]][1]
    other = next((p for p, iri in prefixes.items() if p != name and iri == prefixes.get(name)), None)
    return None if other is None else (name, found[1] + 1, other)


def tokens_of(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and position of each token; together they are the text."""
    for found in _TOKEN.finditer(text):
        yield str(found.lastgroup), found.group(), found.start()


def _head(
    text: str, tokens: Sequence[tuple[str, str, int]], at: int, prefixes: dict[str, str], base: str
) -> tuple[str, Window, int]:
    """IRI and window of the block that begins at this token, and the number of the first token behind them."""
    where = _position(text, tokens[at][2])
    rest = [i for i in range(at + 1, len(tokens)) if tokens[i][0] != "comment" and tokens[i][1].strip()]
    if not rest:
        raise UserError("STREAM at the end", subject=where, remedy="write STREAM <iri> [RANGE 10s] { ?s ?p ?o }")
    kind, token, _ = tokens[rest[0]]
    if kind == "iri":
        iri = urljoin(base, token[1:-1]) if base else token[1:-1]
    elif kind == "name" and token[:1] in "?$":
        raise UserError(f"STREAM {token}: a variable", subject=where, remedy="name the stream by its IRI")
    elif kind == "name" and ":" in token:
        prefix, _, local = token.partition(":")
        if f"{prefix}:" not in prefixes:
            raise UserError(f"unknown prefix {prefix}:", subject=where, remedy=f"declare it: PREFIX {prefix}: <...>")
        iri = prefixes[f"{prefix}:"] + local
    else:
        raise UserError(f"STREAM {token}: no IRI", subject=where, remedy="write STREAM <iri> [RANGE 10s] { ?s ?p ?o }")
    if len(rest) < 2 or tokens[rest[1]][1] != "[":
        raise UserError(f"STREAM <{iri}>: no window", subject=where, remedy="write one behind it, such as [RANGE 10s]")
    end = next((i for i in rest[2:] if tokens[i][1] == "]"), None)
    if end is None:
        raise UserError(f"STREAM <{iri}>: its window has no end", subject=where, remedy="write ] behind it")
    try:
        window = window_of("".join(f"{tokens[i][1]} " for i in rest[2:] if i < end))
    except UserError as error:
        raise error.prefixed(where) from None
    return iri, window, end + 1


def window_of(text: str) -> Window:
    """Of the text between brackets, as queries spell it. UserError for what is none."""
    words = " ".join(token for kind, token, _ in tokens_of(text) if kind != "comment" and token.strip())
    return window_named(re.sub(r"\s*\.\s*", ".", words))


def _position(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - (text.rfind(chr(10), 0, at) + 1) + 1}"


# ---------------------------------------------------------------- rdflib's tree


def parse_query(text: str) -> RdfQuery:
    """What a query asks. UserError, one line, with line and column of a syntax error."""
    try:
        import rdflib
        from pyparsing import ParseBaseException
        from rdflib.plugins.sparql import algebra
        from rdflib.plugins.sparql.parser import parseQuery
    except ImportError:
        raise UserError("queries over RDF streams need rdflib", remedy="pip install 'swjoin[rdf]'") from None
    text = text.removeprefix("\ufeff")
    rewritten = _rewritten(text)
    rdflib_log = logging.getLogger("rdflib.term")  # it logs literals that their types do not have
    normal, reordered, silent = rdflib.NORMALIZE_LITERALS, algebra.reorderTriples, rdflib_log.disabled
    rdflib_log.disabled = True
    rdflib.NORMALIZE_LITERALS = False  # "01" is not "1"
    algebra.reorderTriples = list  # inputs are numbered in the order of the text
    try:
        parsed = parseQuery(rewritten.text)
        _check_prologue(parsed)
        _keep_constants(parsed[1])
        tree = algebra.translateQuery(parsed).algebra
    except ParseBaseException as error:
        where = _position(text, rewritten.place(error.loc))
        shown = one_line(text[rewritten.place(error.loc) :], 40)
        problem = f"syntax error at {shown!r}" if shown else "syntax error at the end"
        raise UserError(f"{where}: {problem}", remedy="SPARQL 1.1 with STREAM <iri> [window] {...}") from None
    except RecursionError:
        raise UserError("the query is too deeply nested") from None
    except UserError:
        raise
    except Exception as error:  # rdflib raises whatever its steps raise
        if (unknown := re.match(r"Unknown namespace prefix : (.*)", str(error))) is not None:
            prefix = unknown[1].strip() or ""
            raise UserError(f"unknown prefix {prefix}:", remedy=f"declare it: PREFIX {prefix}: <...>") from None
        raise UserError(one_line(error, 300)) from None
    finally:
        rdflib.NORMALIZE_LITERALS, algebra.reorderTriples, rdflib_log.disabled = normal, reordered, silent
    query = _Reader(rewritten.blocks).query(tree)
    if tree.name == "SelectQuery" and not parsed[1].projection:  # SELECT *, whose variables come in no order
        known = [*(name for p in query.patterns for name in p.variables), *(name for name, _ in query.binds)]
        query.shown = [name for name in dict.fromkeys(known) if not name.startswith("_:")]
    _check(query)
    return query


def _keep_constants(node: Any) -> None:
    """A FILTER of a constant that is false is no filter for rdflib: it becomes the negation of its negation."""
    from rdflib import Literal
    from rdflib.plugins.sparql.parserutils import CompValue

    if isinstance(node, CompValue):
        inner = node.expr if node.name == "Filter" else None
        while isinstance(inner, CompValue) and inner.expr is not None and not inner.op and not inner.other:
            inner = None if inner.name.startswith("Unary") else inner.expr
        if isinstance(inner, Literal) or (isinstance(inner, CompValue) and inner.name == "literal"):
            node["expr"] = CompValue("UnaryNot", expr=CompValue("UnaryNot", expr=inner))
        for part in node.values():
            _keep_constants(part)
    elif isinstance(node, list | tuple) or type(node).__name__ in ("plist", "ParseResults"):
        for part in node:
            _keep_constants(part)


def _check_prologue(parsed: Any) -> None:
    body = parsed[1]
    if body.name in _REFUSED:
        raise UserError(f"{_REFUSED[body.name]} is not supported", remedy="write SELECT or CONSTRUCT")
    if body.datasetClause:
        raise UserError("FROM is not supported", remedy="give graphs by --static IRI=PATH")
    if body.valuesClause:
        raise UserError("VALUES is not supported", remedy="write a FILTER")
    if body.modifier == "REDUCED":
        raise UserError("REDUCED is not supported", remedy="write DISTINCT, or leave it out")


class _Reader:
    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks, self._query = blocks, RdfQuery()

    def query(self, tree: Any) -> RdfQuery:
        query = self._query
        if tree.name not in ("SelectQuery", "ConstructQuery"):
            raise UserError(f"{_REFUSED.get(tree.name, tree.name)} is not supported", remedy="write SELECT or CONSTRUCT")
        node = tree.p
        while node.name in ("Slice", "OrderBy", "Reduced"):
            raise UserError(f"{_REFUSED[node.name]} is not supported", remedy="rows come as they are born; leave it out")
        if node.name == "Distinct":
            query.distinct, node = True, node.p
            if node.name == "Slice":
                raise UserError("LIMIT or OFFSET is not supported", remedy="rows come as they are born; leave it out")
        shown = [str(name) for name in node.PV]
        node = node.p
        if node.name == "OrderBy":
            raise UserError("ORDER BY is not supported", remedy="rows come as they are born; leave it out")
        node = self._outputs(node)
        if query.grouped:
            self._groups(node)
        else:
            self._group(node, None, None)
        if tree.name == "ConstructQuery":
            found = tree.template if tree.template is not None else self._templated()
            query.template = [(self._term(s), self._term(p), self._term(o)) for s, p, o in found]
        query.shown = list(dict.fromkeys(shown))
        return query

    def _templated(self) -> list[Any]:
        raise UserError("CONSTRUCT WHERE is not supported", remedy="write the template: CONSTRUCT { ... } WHERE { ... }")

    def _outputs(self, node: Any) -> Any:
        """What SELECT computes, and HAVING; the node below."""
        found: list[tuple[str, Expr]] = []
        having: list[Expr] = []
        below = node
        while below.name in ("Extend", "Filter") or below.name == "AggregateJoin":
            if below.name == "AggregateJoin":
                self._query.grouped = True
                self._query.outputs = found[::-1]
                self._query.having = having[::-1]
                return below
            if below.name == "Extend":
                found.append((str(below.var), self._expr(below.expr)))
            else:
                having.append(self._expr(below.expr))
            below = below.p
        return node

    def _groups(self, node: Any) -> None:
        query, group = self._query, node.p
        for key in group.expr or []:
            name = _name(key)
            if name is None:
                raise UserError("GROUP BY an expression without a name", remedy="write GROUP BY (expression AS ?name)")
            query.keys.append(name)
        named: dict[str, str] = {}  # a variable of the groups, under the name that the algebra gives it
        for call in node.A:
            function = call.name.removeprefix("Aggregate_")
            if function == "Sample" and _name(call.vars) is not None:
                named[str(call.res)] = str(_name(call.vars))
                continue
            if function not in _AGGREGATES:
                raise UserError(f"{function.upper()} is not supported", remedy="use COUNT, SUM, AVG, MIN or MAX")
            of = None if call.vars == "*" else self._expr(call.vars)
            query.aggregates.append(AggregateOf(str(call.res), _AGGREGATES[function], of, bool(call.distinct)))
        query.having = [_renamed(expr, named) for expr in query.having]
        outputs = []
        for name, expr in query.outputs:
            found = _renamed(expr, named)
            if found != Var(name):
                outputs.append((name, found))
        query.outputs = outputs
        outputs_before = {name for name, _ in query.outputs}
        ungrouped = [name for name in named.values() if name not in query.keys and name not in outputs_before]
        if ungrouped:
            raise UserError(
                f"?{ungrouped[0]} is not in GROUP BY", remedy="group by it, or take an aggregate of it, such as MIN"
            )
        self._group(group.p, None, None)

    # ------------------------------------------------------------ patterns

    def _group(self, node: Any, block: Block | None, graph: str | None) -> set[str]:
        """Read a group of patterns; the variables that it binds."""
        name, query = node.name, self._query
        if name == "Join":
            return self._group(node.p1, block, graph) | self._group(node.p2, block, graph)
        if name == "BGP":
            bound: set[str] = set()
            for triple in node.triples or []:
                terms = tuple(map(self._term, triple))
                pattern = Pattern((terms[0], terms[1], terms[2]), block, graph)
                query.patterns.append(pattern)
                bound |= set(pattern.variables)
            return bound
        if name == "Graph":
            return self._graph(node, block, graph)
        if name == "Filter":
            bound = self._group(node.p, block, graph)
            expr = self._expr(node.expr)
            for missing in variables_of(expr):
                if missing not in bound:
                    raise UserError(
                        f"FILTER: ?{missing} is bound nowhere in its group", remedy="move the FILTER to where it is bound"
                    )
            query.filters.append(expr)
            return bound
        if name == "Extend":
            bound = self._group(node.p, block, graph)
            expr = self._expr(node.expr)
            for missing in variables_of(expr):
                if missing not in bound:
                    raise UserError(f"BIND: ?{missing} is bound nowhere before", remedy="move the BIND behind its pattern")
            query.binds.append((str(node.var), expr))
            return bound | {str(node.var)}
        if name == "ToMultiSet":
            values = node.p.name == "values"
            what, remedy = ("VALUES", "write a FILTER") if values else ("a subquery", "write one query")
            raise UserError(f"{what} is not supported", remedy=remedy)
        raise UserError(f"{_REFUSED.get(name, name)} is not supported", remedy="patterns, FILTER and BIND are")

    def _graph(self, node: Any, block: Block | None, graph: str | None) -> set[str]:
        text = str(node.term)
        if _name(node.term) is not None:
            raise UserError(f"GRAPH ?{node.term}: a variable", remedy="name the graph by its IRI")
        if block is not None or graph is not None:
            raise UserError("a STREAM or GRAPH inside another", remedy="write them side by side")
        if text.startswith(_BLOCK):
            found = self._blocks[int(text.removeprefix(_BLOCK))]
            before = len(self._query.patterns)
            bound = self._group(node.p, found, None)
            if len(self._query.patterns) == before:
                raise UserError(f"STREAM <{found.iri}>: no pattern inside", remedy="write one, such as { ?s ?p ?o }")
            return bound
        return self._group(node.p, None, text)

    # ------------------------------------------------------------ terms and expressions

    def _term(self, term: Any) -> Term:
        from rdflib import BNode, Literal, URIRef, Variable

        if isinstance(term, Variable):
            return Var(str(term))
        if isinstance(term, BNode):
            return Var(f"_:{term}")
        if isinstance(term, URIRef):
            return Const(f"<{term}>")
        if isinstance(term, Literal):
            datatype = None if term.datatype is None else str(term.datatype)
            return Const(join_term(Parts("literal", str(term), term.language, datatype)))
        raise UserError("property paths are not supported", remedy="write one pattern per step")

    def _expr(self, node: Any) -> Expr:
        from rdflib.plugins.sparql.parserutils import CompValue
        from rdflib.term import Identifier

        if isinstance(node, Identifier):
            return self._term(node)
        if not isinstance(node, CompValue):
            raise UserError(f"{one_line(node, 60)} is not supported in an expression")
        name = node.name
        if name == "RelationalExpression":
            if node.op is None:
                return self._expr(node.expr)
            others = node.other if isinstance(node.other, list) else [node.other]
            return Call(str(node.op).upper(), (self._expr(node.expr), *map(self._expr, others)))
        if name in ("ConditionalAndExpression", "ConditionalOrExpression"):
            op = "&&" if "And" in name else "||"
            return Call(op, (self._expr(node.expr), *map(self._expr, node.other or [])))
        if name in ("AdditiveExpression", "MultiplicativeExpression"):
            found = self._expr(node.expr)
            for op, other in zip(node.op or [], node.other or [], strict=True):
                found = Call(str(op), (found, self._expr(other)))
            return found
        if name in ("UnaryNot", "UnaryMinus", "UnaryPlus"):
            return Call({"UnaryNot": "!", "UnaryMinus": "NEG", "UnaryPlus": "POS"}[name], (self._expr(node.expr),))
        if name in ("Builtin_EXISTS", "Builtin_NOTEXISTS"):
            raise UserError("EXISTS is not supported", remedy="write the pattern beside the others")
        if name.startswith("Builtin_"):
            given = [
                getattr(node, key) for key in ("arg", "arg1", "arg2", "arg3", "text", "start", "length", "pattern", "flags")
            ]
            args = [part for each in given if each is not None for part in (each if isinstance(each, list) else [each])]
            return Call(name.removeprefix("Builtin_").upper(), tuple(map(self._expr, args)))
        if name == "Function":
            return Call(f"<{node.iri}>", tuple(map(self._expr, node.expr or [])))
        if name.startswith("Aggregate_"):
            raise UserError(f"{name[10:].upper()} inside an aggregate or a FILTER", remedy="filter groups by HAVING")
        raise UserError(f"{name} is not supported in an expression")


def _name(term: Any) -> str | None:
    """Of a variable of rdflib's."""
    from rdflib import Variable

    return str(term) if isinstance(term, Variable) else None


def _renamed(expr: Expr, names: dict[str, str]) -> Expr:
    if isinstance(expr, Var):
        return Var(names.get(expr.name, expr.name))
    return Call(expr.op, tuple(_renamed(arg, names) for arg in expr.args)) if isinstance(expr, Call) else expr


def variables_of(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Var):
        yield expr.name
    elif isinstance(expr, Call):
        for arg in expr.args:
            yield from variables_of(arg)


# ---------------------------------------------------------------- what can only be a mistake


def _check(query: RdfQuery) -> None:
    if not query.streams:
        raise UserError("the query reads no stream", remedy="write STREAM <iri> [RANGE 10s] { ?s ?p ?o }")
    computed = [name for name, _ in query.binds]
    for name in [*computed, *(name for name, _ in query.outputs)]:
        if (computed + [name for name, _ in query.outputs]).count(name) > 1:
            raise UserError(f"?{name} is computed twice", remedy="give one another name")
    if "born" in query.shown and query.template is None:
        raise UserError("?born: the answer has a column of this name, the time of the row", remedy="give it another name")
    for name in computed:
        if name in query.bound:
            raise UserError(f"BIND: ?{name} is a variable of a pattern, too", remedy="give it another name")
    known = query.bound | set(computed)
    if query.grouped:
        for name in query.keys:
            if name not in known:
                raise UserError(f"GROUP BY: ?{name} is bound nowhere", remedy="use it in a pattern")
        for call in query.aggregates:
            for name in () if call.of is None else variables_of(call.of):
                if name not in known:
                    raise UserError(f"{call.function}: ?{name} is bound nowhere", remedy="use it in a pattern")
        known = {*query.keys, *(call.name for call in query.aggregates), *(name for name, _ in query.outputs)}
    terms = [term for triple in query.template or [] for term in triple]
    named = [term.name for term in terms if isinstance(term, Var) and not term.name.startswith("_:")]
    for name in query.shown if query.template is None else named:
        if name not in known:
            raise UserError(f"?{name} is bound nowhere", remedy="use it in a pattern, or leave it out")
    if not query.shown and query.template is None:
        raise UserError("the query has no variable to select", remedy="use one in a pattern")

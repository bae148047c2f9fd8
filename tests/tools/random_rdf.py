"""Random RDF stream queries with their data, from what `swjoin rdf` takes.

What: `random_case(random, knobs) -> Case`; `Knobs`, which ask for classes of cases.
Why: windows, joins, conditions and groups break each other where no example combines them; `tests.tools.rdf_oracle` has the
answer to each case.
Stays out: running and comparing (tests); what SPARQL leaves open, such as `<` of texts with languages or times without zones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

StreamTriple = tuple[int, str, str, str]
StaticTriple = tuple[str, str, str]
TICK_US = 10_000
XSD = "http://www.w3.org/2001/XMLSchema#"
_PREFIXES = f"PREFIX e: <http://e/>\nPREFIX xsd: <{XSD}>\n"


@dataclass(frozen=True)
class Knobs:
    """What a case may have. Shares are probabilities, `static` to `construct`.

    windows: of "range", "now", "slide", "tumbling", "triples", "all". shapes: of "star", "chain", "cross", "any".
    results: bound of the combinations of a query. aligned: share of queries whose windows all have one slide.
    switches: "duplicates" of triples in a stream; "blank_nodes" in data; "forms" of literals that are not canonical;
    "escapes", several spellings of one term; "is_sorted", rows of a stream in order of time; "mixed_counted", TRIPLES beside
    SLIDE beside another window; "distinct_counted", DISTINCT over TRIPLES; "early_binds", BIND before a later block."""

    windows: tuple[str, ...] = ("range", "now", "slide", "tumbling", "triples", "all")
    shapes: tuple[str, ...] = ("star", "chain", "cross", "any")
    max_patterns: int = 4
    max_triples: int = 40
    results: int = 10_000
    aligned: float = 0.3
    static: float = 0.5
    filters: float = 0.5
    binds: float = 0.3
    distinct: float = 0.2
    groups: float = 0.3
    construct: float = 0.1
    switches: frozenset[str] = field(
        default_factory=lambda: frozenset(("duplicates", "blank_nodes", "forms", "escapes", "is_sorted"))
    )

    def has(self, switch: str) -> bool:
        return switch in self.switches


@dataclass(frozen=True)
class Case:
    """streams: iri -> (ts in us, s, p, o) in the order of the file; static: iri -> (s, p, o); terms in N-Triples syntax."""

    query: str
    streams: dict[str, list[StreamTriple]]
    static: dict[str, list[StaticTriple]]


def _typed(text: str, name: str) -> str:
    return f'"{text}"^^<{XSD}{name}>'


def _iri(name: str) -> str:
    return f"<http://e/{name}>"


_RESOURCES = [_iri(name) for name in "abc"]
_BLANKS = ["_:b0", "_:b1"]
_PREDICATES = {"e:i": "int", "e:n": "number", "e:t": "text", "e:k": "resource", "e:m": "mixed"}
_CANONICAL: dict[str, list[str]] = {
    "int": [_typed(text, "integer") for text in ("0", "1", "2", "3", "-3", "7")],
    "number": [_typed("1", "integer"), _typed("2", "integer"), _typed("1.5", "decimal"), _typed("-0.25", "decimal")],
    "text": ['"a"', '"ab"', '"b"', '""', '"a"@en', '"b"@de', '"a b"'],
    "resource": _RESOURCES,
    "mixed": ['"a"', '"1"', _typed("1", "integer"), _typed("true", "boolean"), _iri("a"), '"a"@en', '"x"^^<http://e/d>'],
}
_CANONICAL["mixed"] += [_typed("false", "boolean"), *(_typed(f"2020-01-0{day}T00:00:00Z", "dateTime") for day in (1, 2))]
_FORMS: dict[str, list[str]] = {
    "int": [_typed(text, "integer") for text in ("01", "+1", "002", "-0")],
    "number": [_typed(text, "decimal") for text in ("1.0", "1.50", ".5", "+2.0")]
    + [_typed(text, "double") for text in ("1e0", "1.0E0", "2.5e1", "-1E-1")]
    + [_typed("1.5", "float"), _typed("3", "int"), _typed("INF", "double"), _typed("NaN", "double")],
    "text": ['"a"@EN', '"q\\"\\\\\\n"', '"é\\t😀"'],
    "resource": ["<http://e/ä>", "<http://e/x#%41>"],
    "mixed": [_typed("abc", "integer"), _typed("1", "boolean"), _typed("2020-01-01T01:00:00.0+01:00", "dateTime")],
}
# Other spellings of a term that the canonical ones have too.
_ESCAPED = {"text": ['"\\u0061"', f'"a"^^<{XSD}string>', '"\\U00000062"@de'], "resource": ["<http://e/\\u0061>"]}


@dataclass
class _Draw:
    """Draws of one case. predicates: those of its data and, mostly, of its patterns. kinds: variable -> kind of what it may
    hold. held: kind -> terms in the data, which make most constants."""

    random: np.random.Generator
    knobs: Knobs
    predicates: list[str]
    kinds: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)

    def of(self, choices: Sequence[str]) -> str:
        return choices[int(self.random.integers(len(choices)))]

    def count(self, low: int, high: int) -> int:
        """Between low and high, both included."""
        return int(self.random.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def term(self, kind: str) -> str:
        """A term of the data."""
        if kind == "resource" and self.knobs.has("blank_nodes") and self.chance(0.15):
            found = self.of(_BLANKS)
        else:
            found = self.of(_FORMS[kind] if self.knobs.has("forms") and self.chance(0.3) else _CANONICAL[kind])
            if kind in _ESCAPED and self.knobs.has("escapes") and self.chance(0.1):
                found = self.of(_ESCAPED[kind])
        self.held.setdefault(kind, []).append(found)
        return found

    def constant(self, kind: str) -> str:
        """A term of the query, which is no blank node."""
        held = [term for term in self.held.get(kind, []) if not term.startswith("_:")]
        return self.of(held if held and self.chance(0.9) else _CANONICAL[kind])

    def variables(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind in kinds]


def _triple(draw: _Draw) -> StaticTriple:
    predicate = draw.of(draw.predicates)
    return draw.term("resource"), f"<http://e/{predicate[2:]}>", draw.term(_PREDICATES[predicate])


def _stream(draw: _Draw) -> list[StreamTriple]:
    """Few times, equal ones, a microsecond beside a multiple of the tick; below zero too."""
    size = draw.count(draw.knobs.max_triples // 3, draw.knobs.max_triples) if draw.chance(0.95) else draw.count(0, 2)
    spread = draw.count(2, 25)
    start = draw.count(-12, 5)
    rows: list[StreamTriple] = []
    for _ in range(size):
        ts = (start + draw.count(0, spread)) * TICK_US + int(draw.random.choice([0, 0, 0, 0, 1, -1]))
        rows.append((ts, *_triple(draw)))
        if draw.knobs.has("duplicates") and draw.chance(0.1):
            ts, *spo = rows[draw.count(0, len(rows) - 1)]
            rows.append((ts + TICK_US * draw.count(0, 1), spo[0], spo[1], spo[2]))
    if not draw.knobs.has("duplicates"):
        rows = list({row[1:]: row for row in rows}.values())
    rows = rows[: draw.knobs.max_triples]
    return sorted(rows, key=lambda row: row[0]) if draw.knobs.has("is_sorted") else rows


_Pattern = tuple[str, str, str]


def _patterns(draw: _Draw) -> list[_Pattern]:
    """Triple patterns, and the kinds of their variables."""
    shape = draw.of(draw.knobs.shapes)
    made: list[_Pattern] = []
    for at in range(min(draw.count(1, draw.knobs.max_patterns), draw.count(1, draw.knobs.max_patterns + 1))):
        subject, value = {"star": ("?s", f"?o{at}"), "chain": (f"?x{at}", f"?x{at + 1}")}.get(shape, (f"?s{at}", f"?o{at}"))
        predicate = "e:k" if shape == "chain" and draw.chance(0.9) else draw.of(draw.predicates)
        if shape == "any":
            subject = draw.of(["?s0", "?s1"])
            value = draw.of([f"?{_PREDICATES[predicate]}", "?s0", "?s1", f"?o{at}"][:: 1 if predicate == "e:k" else 3])
        special = draw.random.random()
        if special < 0.05:
            value = subject  # ?x p ?x
            predicate = "e:k" if draw.chance(0.9) else predicate
        elif special < 0.1:
            predicate = draw.of(["?p", "?p", f"?p{at}"])
        elif special < 0.2:
            value = draw.constant(_PREDICATES[predicate])
        elif special < 0.25:
            subject = draw.constant("resource")
        elif special < 0.28:
            subject, value = draw.constant("resource"), draw.constant(_PREDICATES[predicate])
        elif special < 0.31:
            value = draw.of(["[]", "_:q"]) if at == 0 else "[]"
        held = {subject: "resource", predicate: "resource", value: _PREDICATES.get(predicate, "mixed")}
        for name, kind in held.items():
            if name.startswith("?"):
                draw.kinds[name] = kind if draw.kinds.get(name, kind) == kind else "mixed"
        made.append((subject, predicate, value))
    return made


def _window(draw: _Draw, allowed: Sequence[str], slide: int | None) -> str:
    """slide: in ticks, of all windows of the query."""
    ticks = max(draw.count(1, 14), draw.count(1, 14))
    if slide is not None:
        return (
            f"RANGE {_duration(slide)} TUMBLING" if draw.chance(0.3) else f"RANGE {_duration(ticks)} SLIDE {_duration(slide)}"
        )
    kind = draw.of(allowed)
    return {
        "range": f"RANGE {_duration(ticks)}",
        "now": "NOW",
        "slide": f"RANGE {_duration(ticks)} SLIDE {_duration(draw.count(1, 6))}",
        "tumbling": f"RANGE {_duration(ticks)} TUMBLING",
        "triples": f"TRIPLES {draw.count(1, 6)}",
        "all": "ALL",
    }[kind]


def _duration(ticks: int) -> str:
    return f"{ticks * TICK_US // 1000}ms"


def _allowed(draw: _Draw) -> list[str]:
    """The kinds of windows of one query, which may not mix all of counted, sliding and others unless the knob says so."""
    kinds = list(draw.knobs.windows)
    if draw.knobs.has("mixed_counted") or "triples" not in kinds:
        return kinds
    without = draw.of(["count", "slide", "time"])
    left_out = {"count": {"triples"}, "slide": {"slide", "tumbling"}, "time": {"range", "now", "all"}}[without]
    return [kind for kind in kinds if kind not in left_out] or kinds[:1]


def _number(draw: _Draw) -> str:
    """An expression that may be a number."""
    names = draw.variables("int", "number") or draw.variables("mixed") or ["1"]
    name = draw.of(names)
    made = [name, name, f"({name} + {draw.count(1, 3)})", f"{name} * 2", f"(-{name})"]
    if numbers := draw.variables("int", "number"):  # engines take times from times
        made.append(f"({draw.of(numbers)} - {draw.of(numbers)})")
    if texts := draw.variables("text"):
        made.append(f"STRLEN({draw.of(texts)})")
    return draw.of(made)


def _condition(draw: _Draw, depth: int = 2) -> str:
    names = list(draw.kinds)
    if not names:
        return draw.of(["true", "1 < 2", "BOUND(?nobody)"])
    if depth and draw.chance(0.35):
        a, b = _condition(draw, depth - 1), _condition(draw, depth - 1)
        return draw.of([f"({a} && {b})", f"({a} || {b})", f"!({a})"])
    name, other = draw.of(names), draw.of(names)
    numbers = ["1", "1.5", "2e0", *([_number(draw)] if draw.variables("int", "number") else [])]  # texts may have no order
    constant = draw.constant(draw.kinds[other])
    made = [
        f"{_number(draw)} {draw.of(['<', '<=', '>', '>=', '=', '!='])} {draw.of(numbers)}",
        f"{name} {draw.of(['=', '!='])} {draw.of([other, constant])}",
        f"{other} {draw.of(['IN', 'NOT IN'])} ({constant}, {draw.constant(draw.kinds[name])}, 1)",
        draw.of([f"BOUND({name})", "!BOUND(?nobody)", f"isIRI({name})", f"isLiteral({name})", f"isBlank({name})"]),
        f"isNumeric({name})",
        f"{draw.of(['', '!'])}sameTerm({name}, {draw.of([other, constant])})",
    ]
    if literals := [name for name in names if draw.kinds[name] != "resource"]:
        datatypes = ["xsd:integer", "xsd:string", "xsd:decimal", "xsd:boolean"]
        made += [f"DATATYPE({draw.of(literals)}) {draw.of(['=', '!='])} {draw.of(datatypes)}", f"1.0 / {_number(draw)} < 1"]
    if texts := draw.variables("text", "mixed"):
        text = draw.of(texts)
        made += [
            f'STRSTARTS({text}, "a")',
            f'REGEX({text}, "{draw.of(["A", "^a", "b$", "."])}", "i")',
            f'CONTAINS({text}, "b")',
        ]
        made += [
            f'LANG({text}) {draw.of(["=", "!="])} "en"',
            f'STR({text}) {draw.of(["<", ">=", "="])} "a"',
            f'LANGMATCHES(LANG({text}), "de")',
        ]
    return draw.of(made)


def _expression(draw: _Draw) -> tuple[str, str]:
    """An expression for BIND and SELECT, and the kind of its value."""
    name = draw.of(list(draw.kinds)) if draw.kinds else "1"
    ints = draw.variables("int")
    made = [(f"STR({name})", "text"), (f"COALESCE({name}, 1)", draw.kinds.get(name, "int")), (f"DATATYPE({name})", "resource")]
    made += [
        (_number(draw), "number" if draw.variables("int", "number") else "mixed"),
        (f"IF({_condition(draw, 0)}, 1, 2)", "int"),
        (f"isIRI({name})", "mixed"),
    ]
    if ints:
        made += [(f"({draw.of(ints)} + 1)", "int"), (f"ABS({draw.of(ints)})", "int")]
    if texts := draw.variables("text"):
        text = draw.of(texts)
        made += [(f"UCASE({text})", "text"), (f'CONCAT({text}, "!")', "text"), (f"SUBSTR({text}, 2)", "text")]
    return made[draw.count(0, len(made) - 1)]


def _aggregate(draw: _Draw) -> str:
    names = list(draw.kinds) or ["1"]
    name = draw.of(draw.variables("int", "number") or names) if draw.chance(0.8) else draw.of(names)
    distinct = "DISTINCT " if draw.chance(0.25) else ""
    made = ["COUNT(*)", "COUNT(*)", f"COUNT({distinct}{draw.of(names)})", f"COUNT(DISTINCT {draw.of(names)})"]
    made += [f"{function}({distinct}{name})" for function in ("SUM", "AVG", "MIN", "MAX")]
    return draw.of(made)


def _grouped(draw: _Draw) -> tuple[str, str]:
    """What stands after SELECT, and after the pattern."""
    keys = [name for name in dict.fromkeys(draw.of(list(draw.kinds)) for _ in range(draw.count(0, 2)))] if draw.kinds else []
    items, conditions = [key for key in keys if draw.chance(0.9)], list(keys)
    if draw.chance(0.1) and draw.variables("int"):
        conditions.append(f"({draw.of(draw.variables('int'))} + 1 AS ?g)")
        items.append("?g")
    items += [f"({_aggregate(draw)} AS ?n{at})" for at in range(draw.count(1, 3))]
    if draw.chance(0.15):
        items.append("(COUNT(*) + 1 AS ?more)")
    after = f"\nGROUP BY {' '.join(conditions)}" if conditions else ""
    if draw.chance(0.3):
        number = draw.of(draw.variables("int", "number")) if draw.variables("int", "number") else "1"
        conditions = ["COUNT(*) > 1", "COUNT(*) != 2", f"SUM({number}) >= 2", f"MIN({number}) < 3", f"AVG({number}) < 2"]
        after += f"\nHAVING ({draw.of(conditions)})"
    return " ".join(items), after


def _block(draw: _Draw, patterns: Sequence[_Pattern], head: str) -> str:
    """Patterns in STREAM or GRAPH, or bare. A condition inside sees the block's variables alone, hence all but always them."""
    inner = " . ".join(" ".join(pattern) for pattern in patterns)
    if not head:
        return f"{inner} ."
    if draw.chance(draw.knobs.filters * 0.3):
        held = {name for pattern in patterns for name in pattern if name.startswith("?")}
        seen = replace(draw, kinds={name: kind for name, kind in draw.kinds.items() if name in held})
        inner += f" FILTER({_condition(seen if draw.chance(0.9) else draw, 1)})"
    return f"{head} {{ {inner} }}"


def _where(draw: _Draw, patterns: list[_Pattern], streams: Sequence[str]) -> tuple[str, bool]:
    """The group, and whether a window is counted."""
    allowed = _allowed(draw)
    slide = draw.count(1, 6) if draw.chance(draw.knobs.aligned) else None
    cuts = sorted({draw.count(1, len(patterns)) for _ in range(draw.count(0, 2))} - {len(patterns)})
    blocks: list[str] = []
    stream_at = draw.count(0, len(cuts))
    for at, (low, high) in enumerate(zip([0, *cuts], [*cuts, len(patterns)], strict=True)):
        head = f"STREAM {_iri(draw.of(streams))} [{_window(draw, allowed, slide)}]"
        if at != stream_at and draw.chance(draw.knobs.static * 0.6):
            head = draw.of(["", f"GRAPH {_iri('g0')}", f"GRAPH {_iri('g1')}"])
        blocks.append(_block(draw, patterns[low:high], head))
    if draw.knobs.has("early_binds") and len(blocks) > 1:
        blocks.insert(1, f"BIND({_expression(draw)[0]} AS ?early)")
        draw.kinds["?early"] = "mixed"
    conditions = [_condition(draw) for _ in range(draw.count(1, 2)) if draw.chance(draw.knobs.filters)]
    conditions = [f"FILTER({f'{text} || {_condition(draw)}' if draw.chance(0.4) else text})" for text in conditions]
    for text in conditions:
        if not any(block.endswith(" .") for block in blocks) or draw.chance(0.5):
            blocks.insert(draw.count(0, len(blocks)), text)
        else:
            blocks.append(text)
    for at in range(draw.count(1, 2)):
        if draw.chance(draw.knobs.binds):
            text, kind = _expression(draw)
            blocks.append(f"BIND({text} AS ?b{at})")
            draw.kinds[f"?b{at}"] = kind
    counted = any("TRIPLES" in block for block in blocks)
    return "{\n  " + "\n  ".join(blocks) + "\n}", counted


def _template(draw: _Draw) -> str:
    names = list(draw.kinds) or [_iri("a")]
    triples = [f"{draw.of([*names, _iri('a'), '_:n'])} {draw.of(['e:made', 'e:k', '?p'])} {draw.of([*names, '_:n', '1'])}"]
    triples += [f"{draw.of(names)} e:second {draw.of(names)}"] if draw.chance(0.5) else []
    return " . ".join(triples)


def _query(draw: _Draw, patterns: list[_Pattern], streams: Sequence[str]) -> str:
    where, is_counted = _where(draw, patterns, streams)
    computed = {name for name in draw.kinds if name.startswith(("?b", "?early"))}
    if draw.chance(draw.knobs.construct):
        return f"{_PREFIXES}CONSTRUCT {{ {_template(draw)} }} WHERE {where}"
    if draw.chance(draw.knobs.groups):
        # Equality of computed decimals and doubles hangs on their spelling: they are no keys.
        draw.kinds = {name: kind for name, kind in draw.kinds.items() if name not in computed or kind in ("int", "text")}
        items, after = _grouped(draw)
        return f"{_PREFIXES}SELECT {items} WHERE {where}{after}"
    names = [name for name in draw.kinds if draw.chance(0.7)]
    distinct = draw.chance(draw.knobs.distinct) and (draw.knobs.has("distinct_counted") or not is_counted)
    if distinct:
        names = [name for name in names if name not in computed or draw.kinds[name] in ("int", "text")]
        names = names or [name for name in draw.kinds if name not in computed][:1]
    items = " ".join(names)
    if not distinct and draw.chance(0.15):
        items += f" ({_expression(draw)[0]} AS ?item)"
    elif not items or (draw.chance(0.25) and draw.kinds and not distinct):
        items = "*" if draw.kinds else "(1 AS ?one)"
    return f"{_PREFIXES}SELECT {'DISTINCT ' if distinct else ''}{items} WHERE {where}"


def _matching(patterns: Sequence[_Pattern], rows: Sequence[Sequence[str | int]]) -> float:
    """A bound of the combinations: patterns times the rows that have their predicate."""
    names = [str(row[-2]) for row in rows]
    counts = [names.count(f"<http://e/{p[2:]}>") if p.startswith("e:") else len(names) for _, p, _ in patterns]
    return math.prod(max(count, 1) for count in counts)


def random_case(random: np.random.Generator, knobs: Knobs | None = None) -> Case:
    """A query with its data: at most `Knobs.max_triples` triples a stream, few terms, many equal times."""
    draw = _Draw(random, knobs or Knobs(), ["e:k"])
    draw.predicates += [draw.of(list(_PREDICATES)) for _ in range(draw.count(1, 2))]
    streams = {f"http://e/s{at}": _stream(draw) for at in range(draw.count(1, 3))}
    static = {f"http://e/g{at}": [_triple(draw) for _ in range(draw.count(0, 20))] for at in range(2)}
    patterns = _patterns(draw)
    query = _query(draw, patterns, [iri.removeprefix("http://e/") for iri in streams])
    tables: list[list[StreamTriple] | list[StaticTriple]] = [*streams.values(), *static.values()]
    while _matching(patterns, [row for rows in tables for row in rows]) > draw.knobs.results:
        longest = max(tables, key=len)
        if len(longest) < 3:
            break
        del longest[len(longest) * 3 // 4 :]
    return Case(query, streams, static)

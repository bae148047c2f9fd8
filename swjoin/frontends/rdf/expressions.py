"""What SPARQL's expressions mean, as SQL over columns of codes and typed values.

What: `Variable`, what is known of a variable; `Value`, a compiled expression; `Compiler`.
Why: a mapping is a row of codes; an expression needs more of a term: its number, its text, its kind. These are columns beside
the code, one per *facet*, made for the variables and facets that a query reads. An error of SPARQL is a null of SQL, whose
logic of three values is SPARQL's; so expressions are evaluated where all others are.
Stays out: making the columns (`frontends.rdf.inputs`), writing terms (`frontends.rdf.answers`), rdflib's tree
(`frontends.rdf.algebra`).

A facet is null where a term has none: `num`, number; `rank`, 0 to 3 for integers, decimals, floats, doubles; `truth`; `time`
and `naive`, microseconds of dateTimes with and without a zone; `simple`, text of literals without a language; `tagged`, text
and language of others; `string`, text of both; `lang`; `iri`; `str`, the text of all but blank nodes; `datatype`; `kind`;
`ord`, the place in the order of MIN and MAX. Literals of other types (kind 7) equal themselves alone; compared with others
they are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from swjoin.core.errors import UserError, one_line
from swjoin.frontends.rdf.algebra import Call, Const, Expr, Var, variables_of
from swjoin.frontends.rdf.dictionary import DECIMAL, DOUBLE, FLOAT, INTEGER, XSD
from swjoin.frontends.rdf.term_values import BLANK, BOOLEAN, IRI, NUMERIC, OTHER, SIMPLE, TAGGED, TIME

NAIVE: Final = OTHER + 1  # a kind besides those of terms: of dateTimes without a zone
_KINDS_OF = {
    "num": {NUMERIC},
    "rank": {NUMERIC},
    "truth": {BOOLEAN},
    "time": {TIME},
    "naive": {NAIVE},
    "simple": {SIMPLE},
    "tagged": {TAGGED},
    "string": {SIMPLE, TAGGED},
    "lang": {TAGGED},
    "iri": {IRI},
}
_EQUAL = ("num", "truth", "time", "naive", "simple", "tagged", "iri")
_ORDERED = ("num", "simple", "truth", "time", "naive")
_CASTS = {"integer": INTEGER, "decimal": DECIMAL, "float": FLOAT, "double": DOUBLE}
_TESTS = {"ISIRI": {IRI}, "ISURI": {IRI}, "ISBLANK": {BLANK}, "ISNUMERIC": {NUMERIC}, "ISLITERAL": set(range(2, 9))}
_TEXTS = {"CONTAINS": "contains", "STRSTARTS": "starts_with", "STRENDS": "ends_with"}

Form: TypeAlias = Literal["term", "number", "text", "truth", "iri", "ordered"]
Facets: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True)
class Variable:
    """A variable that a pattern binds. column: of its codes; those of facets add an underscore and the facet.
    kinds: of the terms that it has. integers: all of its numbers are integers of 64 bits. clash: two of its numbers are equal,
    and written differently. ordered: terms have places in the order of MIN and MAX."""

    column: str
    kinds: frozenset[int] = frozenset(range(9))
    integers: bool = False
    clash: str = ""
    ordered: bool = True


@dataclass(frozen=True)
class Value:
    """form: what it is, whatever the row. facet: the SQL text of a facet; None: it has none. code: of a term. kinds: that a
    term may have. null: SQL text that is null where the value is an error; None: it never is. integers: its numbers are
    BIGINT."""

    form: Form
    facet: Facets
    code: str | None = None
    kinds: frozenset[int] = frozenset()
    null: str | None = None
    integers: bool = False


def _only(**facets: str) -> Facets:
    return facets.get


def number(num: str, rank: str, *, integers: bool = False) -> Value:
    return Value("number", _only(num=num, rank=rank), kinds=frozenset({NUMERIC}), null=num, integers=integers)


def _text(text: str, lang: str | None = None) -> Value:
    if lang is None:
        return Value("text", _only(simple=text, string=text, str=text), kinds=frozenset({SIMPLE}), null=text)
    simple, tagged = f"CASE WHEN {lang} IS NULL THEN {text} END", f"{text} || '@' || {lang}"
    return Value(
        "text",
        _only(simple=f"({simple})", tagged=f"({tagged})", string=text, str=text, lang=lang),
        kinds=frozenset({SIMPLE, TAGGED}),
        null=text,
    )


def truth(text: str) -> Value:
    return Value("truth", _only(truth=text), kinds=frozenset({BOOLEAN}), null=text)


@dataclass
class Compiler:
    """variables: that patterns bind. computed: others, by their names, already compiled. term: of a constant, as columns would
    have it. needed: facets that have been read, by variable."""

    variables: Mapping[str, Variable]
    term: Callable[[str], Value]
    computed: dict[str, Value] = field(default_factory=dict)
    needed: dict[str, set[str]] = field(default_factory=dict)

    # ------------------------------------------------------------ leaves

    def value(self, expr: Expr) -> Value:
        """UserError for what is not supported."""
        if isinstance(expr, Const):
            return self.term(expr.text)
        if isinstance(expr, Var):
            return self.computed[expr.name] if expr.name in self.computed else self.variable(expr.name)
        return self._call(expr)

    def variable(self, name: str) -> Value:
        known = self.variables[name]

        def facet(which: str) -> str | None:
            if not known.kinds & _KINDS_OF.get(which, known.kinds) or (which == "ord" and not known.ordered):
                return None
            self.needed.setdefault(name, set()).add(which)
            return f'"{known.column}_{which}"'

        return Value("term", facet, f'"{known.column}"', known.kinds, integers=known.integers)

    def condition(self, expr: Expr) -> str:
        """The effective boolean value, as SQL."""
        return self.holds(self.value(expr))

    def holds(self, value: Value) -> str:
        tests = []
        for which, test in (("truth", "{}"), ("num", "({0} <> 0 AND {0} = {0})"), ("string", "{} <> ''")):
            if (text := value.facet(which)) is not None:
                tests.append(test.format(text))
        if not tests:
            return "CAST(NULL AS BOOLEAN)"
        return tests[0] if len(tests) == 1 else f"COALESCE({', '.join(tests)})"

    # ------------------------------------------------------------ calls

    def _call(self, call: Call) -> Value:
        op, args = call.op, call.args
        if op in ("&&", "||"):
            joined = (" AND " if op == "&&" else " OR ").join(f"({self.condition(arg)})" for arg in args)
            return truth(f"({joined})")
        if op == "!":
            return truth(f"(NOT ({self.condition(args[0])}))")
        if op in ("=", "!=", "<", ">", "<=", ">="):
            return truth(self.compared(op, self.value(args[0]), self.value(args[1])))
        if op in ("IN", "NOT IN"):
            first = self.value(args[0])
            tests = " OR ".join(f"({self.compared('=', first, self.value(arg))})" for arg in args[1:]) or "FALSE"
            return truth(f"({tests})" if op == "IN" else f"(NOT ({tests}))")
        if op in ("+", "-", "*", "/"):
            return self._arithmetic(op, *map(self.value, args))
        if op in ("NEG", "POS"):
            return self._signed(op, self.value(args[0]))
        if op.startswith("<"):
            return self._cast(op, args)
        found = getattr(self, f"_{op.lower()}", None) if op.isalpha() else None
        if op in _TESTS and len(args) == 1:
            return truth(self._kind_in(self.value(args[0]), _TESTS[op]))
        if op in _TEXTS and len(args) == 2:
            return truth(self._two_texts(op, *map(self.value, args)))
        if op in ("ABS", "CEIL", "FLOOR", "ROUND") and len(args) == 1:
            return self._rounded(op, self.value(args[0]))
        if op in _FUNCTIONS and found is not None:
            least, most = _FUNCTIONS[op]
            if least <= len(args) <= most:
                value: Value = found(*args)
                return value
        remedy = "use comparisons, arithmetic, IN, IF, COALESCE, BOUND, tests of kinds, and functions of text"
        raise UserError(f"{op} is not supported", remedy=remedy)

    def _guarded(self, text: str, *values: Value) -> str:
        """Null where a value is an error."""
        nulls = [f"{value.null} IS NULL" for value in values if value.null is not None]
        return f"(CASE WHEN {' OR '.join(nulls)} THEN NULL ELSE {text} END)" if nulls else text

    def compared(self, op: str, one: Value, two: Value) -> str:
        if op in ("=", "!="):
            equal = self._guarded(self._equal(one, two), one, two)
            return equal if op == "=" else f"(NOT {equal})"
        tests = []
        for which in _ORDERED:
            sides = one.facet(which), two.facet(which)
            if None not in sides:
                tests.append(f"{sides[0]} {op} {sides[1]}")
        if not tests:
            return "CAST(NULL AS BOOLEAN)"
        return f"({tests[0]})" if len(tests) == 1 else f"COALESCE({', '.join(tests)})"

    def _equal(self, one: Value, two: Value) -> str:
        """Numbers by value, others as terms; null for a literal of another type and one that is not the same."""
        by_code = one.code is not None and two.code is not None
        common = one.kinds & two.kinds
        whole = by_code and not common & {NUMERIC, BOOLEAN, TIME, NAIVE, TAGGED}
        tests = []
        for which in () if whole else _EQUAL:
            if by_code and which in ("simple", "iri"):
                continue  # one of the codes says it
            if (_KINDS_OF[which] & common) and None not in (sides := (one.facet(which), two.facet(which))):
                tests.append(f"{sides[0]} = {sides[1]}")
        unknown = self._unknown(one, two)
        same = f"{one.code} = {two.code}" if by_code else None
        if unknown is None:
            tests.append(same or "FALSE")
        else:
            first = f"WHEN {same} THEN TRUE " if same else ""
            tests.append(f"(CASE {first}WHEN {unknown} THEN NULL ELSE FALSE END)")
        return tests[0] if len(tests) == 1 else f"COALESCE({', '.join(tests)})"

    def _unknown(self, one: Value, two: Value) -> str | None:
        """Where two literals are, of which one is of an unknown type; None: nowhere."""
        tests = []
        for a, b in ((one, two), (two, one)):
            others = b.kinds - {IRI, BLANK, TAGGED}
            if OTHER in a.kinds and others:
                tests.append(f"({self._kind_in(a, {OTHER})} AND {self._kind_in(b, others)})")
        return " OR ".join(dict.fromkeys(tests)) or None

    def _kind_in(self, value: Value, kinds: set[int] | frozenset[int]) -> str:
        """Whether a value is of these kinds."""
        if value.kinds <= kinds or not value.kinds & kinds:
            known = "TRUE" if value.kinds <= kinds else "FALSE"
            return known if value.null is None else f"(CASE WHEN {value.null} IS NULL THEN NULL ELSE {known} END)"
        if value.form == "text":
            return f"({value.facet('lang')} IS {'NOT NULL' if TAGGED in kinds else 'NULL'})"
        numbers = ", ".join(map(str, sorted(value.kinds & kinds)))
        return f"({value.facet('kind')} IN ({numbers}))"

    # ------------------------------------------------------------ numbers

    def num(self, value: Value) -> tuple[str, str]:
        """Number and rank; null for what is no number."""
        found = value.facet("num"), value.facet("rank")
        if found[0] is None or found[1] is None:
            return "CAST(NULL AS DOUBLE)", "CAST(NULL AS BIGINT)"
        return found[0], found[1]

    def _arithmetic(self, op: str, one: Value, two: Value) -> Value:
        (a, rank_a), (b, rank_b) = self.num(one), self.num(two)
        rank = rank_a if rank_a == rank_b else f"GREATEST({rank_a}, {rank_b})"
        if op != "/":
            return number(f"({a} {op} {b})", rank, integers=one.integers and two.integers)
        rank = f"GREATEST(1, {rank})"
        return number(f"(CASE WHEN {b} = 0 AND {rank} < 2 THEN NULL ELSE {a} / {b} END)", rank)

    def _signed(self, op: str, value: Value) -> Value:
        num, rank = self.num(value)
        return number(num if op == "POS" else f"(-{num})", rank, integers=value.integers)

    def _rounded(self, op: str, value: Value) -> Value:
        num, rank = self.num(value)
        if op == "ABS":
            return number(f"ABS({num})", rank, integers=value.integers)
        if value.integers:
            return number(num, rank, integers=True)
        whole = {"CEIL": f"CEIL({num})", "FLOOR": f"FLOOR({num})", "ROUND": f"FLOOR({num} + 0.5)"}[op]
        return number(whole, rank)

    def _cast(self, op: str, args: tuple[Expr, ...]) -> Value:
        name = op[1:-1].removeprefix(XSD)
        if name == "string" and len(args) == 1:
            return self._str(args[0])
        if name not in _CASTS or len(args) != 1:
            raise UserError(
                f"function {op} is not supported", remedy="casts to xsd:integer, decimal, float, double, string are"
            )
        value = self.value(args[0])
        if value.kinds - {NUMERIC, IRI, BLANK}:
            raise UserError(f"a cast to xsd:{name} of what is no number is not supported", remedy="cast numbers")
        num, _ = self.num(value)
        if name == "integer" and not value.integers:
            num = f"(CASE WHEN {num} < 0 THEN CEIL({num}) ELSE FLOOR({num}) END)"
        if _CASTS[name] < FLOAT and not value.integers:
            num = f"(CASE WHEN {num} - {num} = 0 THEN {num} END)"  # neither infinite nor NaN
        rank = f"(CASE WHEN {num} IS NULL THEN NULL ELSE {_CASTS[name]} END)"
        return number(num, rank, integers=value.integers)

    # ------------------------------------------------------------ terms

    def _bound(self, arg: Expr) -> Value:
        if not isinstance(arg, Var):
            raise UserError("BOUND of an expression", remedy="give it a variable")
        null = self.value(arg).null
        return truth("TRUE" if null is None else f"({null} IS NOT NULL)")

    def _sameterm(self, one: Expr, two: Expr) -> Value:
        codes = self.value(one).code, self.value(two).code
        if None in codes:
            raise UserError("sameTerm of a computed value is not supported", remedy="write =")
        return truth(f"({codes[0]} = {codes[1]})")

    def _str(self, arg: Expr) -> Value:
        value = self.value(arg)
        if value.form in ("number", "truth", "ordered"):
            raise UserError(f"STR of a computed {value.form} is not supported", remedy="leave STR out")
        return _text(value.facet("str") or "CAST(NULL AS VARCHAR)")

    def _lang(self, arg: Expr) -> Value:
        value = self.value(arg)
        lang = value.facet("lang")
        known = "''" if lang is None else f"COALESCE({lang}, '')"
        literal = self._kind_in(value, _TESTS["ISLITERAL"])
        return _text(f"(CASE WHEN {literal} THEN {known} END)")

    def _datatype(self, arg: Expr) -> Value:
        value = self.value(arg)
        if value.form != "term":
            raise UserError(f"DATATYPE of a computed {value.form} is not supported", remedy="take that of a variable")
        text = value.facet("datatype") or "CAST(NULL AS VARCHAR)"
        return Value("iri", _only(iri=text, str=text), kinds=frozenset({IRI}), null=text)

    def _if(self, test: Expr, one: Expr, two: Expr) -> Value:
        return self._chosen([(self.condition(test), self.value(one)), (f"NOT ({self.condition(test)})", self.value(two))])

    def _coalesce(self, *args: Expr) -> Value:
        values = [self.value(arg) for arg in args]
        return self._chosen([("TRUE" if v.null is None else f"{v.null} IS NOT NULL", v) for v in values])

    def _chosen(self, cases: list[tuple[str, Value]]) -> Value:
        """The first value whose condition holds. All are terms, or computed alike."""
        forms = {value.form for _, value in cases}
        if len(forms) == 2 and "term" in forms:
            other = next(form for form in forms if form != "term")
            cases = [(test, _as_computed(value, other)) for test, value in cases]
            forms = {value.form for _, value in cases}
        if len(forms) > 1 or "ordered" in forms:
            raise UserError(f"IF and COALESCE of {' and '.join(sorted(forms))} are not supported", remedy="give values alike")

        def of(texts: list[str | None]) -> str | None:
            whens = [f"WHEN {test} THEN {text}" for (test, _), text in zip(cases, texts, strict=True) if text is not None]
            blocked = [f"WHEN {test} THEN NULL" for (test, _), text in zip(cases, texts, strict=True) if text is None]
            return f"(CASE {' '.join([*blocked, *whens])} END)" if whens else None

        def facet(which: str) -> str | None:
            texts = [value.facet(which) for _, value in cases]
            if any(t is None for t in texts) and any(t is not None for t in texts):
                ordered = [f"WHEN {test} THEN {text or 'NULL'}" for (test, _), text in zip(cases, texts, strict=True)]
                return f"(CASE {' '.join(ordered)} END)"
            return of(texts)

        first = cases[0][1]
        code = of([value.code for _, value in cases]) if first.form == "term" else None
        main = {"term": code, "number": facet("num"), "text": facet("string"), "truth": facet("truth"), "iri": facet("iri")}
        kinds = frozenset(kind for _, value in cases for kind in value.kinds)
        whole = all(value.integers for _, value in cases)
        return Value(first.form, facet, code, kinds, main[first.form], integers=whole)

    # ------------------------------------------------------------ text

    def _string(self, value: Value) -> tuple[str, str | None]:
        """Text and language of a literal that is text; null for others."""
        return value.facet("string") or "CAST(NULL AS VARCHAR)", value.facet("lang")

    def _like(self, text: str, value: Value) -> Value:
        """A text with the language that a value has."""
        return _text(text, self._string(value)[1])

    def _two_texts(self, op: str, one: Value, two: Value) -> str:
        """A test of two texts; an error if the second one has a language that is not the first's."""
        (a, lang_a), (b, lang_b) = self._string(one), self._string(two)
        test = f"{_TEXTS[op]}({a}, {b})"
        if lang_b is None:
            return test
        other = f"COALESCE({lang_a}, '')" if lang_a is not None else "''"
        return f"(CASE WHEN {lang_b} IS NULL OR {lang_b} = {other} THEN {test} END)"

    def _strlen(self, arg: Expr) -> Value:
        text = self._string(self.value(arg))[0]
        return number(f"LENGTH({text})", f"(CASE WHEN {text} IS NULL THEN NULL ELSE 0 END)", integers=True)

    def _ucase(self, arg: Expr) -> Value:
        value = self.value(arg)
        return self._like(f"UPPER({self._string(value)[0]})", value)

    def _lcase(self, arg: Expr) -> Value:
        value = self.value(arg)
        return self._like(f"LOWER({self._string(value)[0]})", value)

    def _substr(self, arg: Expr, start: Expr, length: Expr | None = None) -> Value:
        value = self.value(arg)
        numbers = [_whole(part) for part in (start, length) if part is not None]
        if numbers[0] < 1 or (len(numbers) > 1 and numbers[1] < 0):
            raise UserError("SUBSTR from before the first character is not supported", remedy="count from 1 on")
        return self._like(f"SUBSTR({self._string(value)[0]}, {', '.join(map(str, numbers))})", value)

    def _concat(self, *args: Expr) -> Value:
        values = [self.value(arg) for arg in args]
        if any(TAGGED in value.kinds for value in values):
            raise UserError("CONCAT of literals with a language is not supported", remedy="take STR(...) of them")
        return _text(f"({' || '.join(self._string(value)[0] for value in values)})")

    def _regex(self, arg: Expr, pattern: Expr, flags: Expr | None = None) -> Value:
        texts = [_literal(part, "REGEX") for part in (pattern, flags) if part is not None]
        given = texts[1] if len(texts) > 1 else ""
        if set(given) - set("ism"):
            raise UserError(f"REGEX: flags {given!r} are not supported", remedy="use i, s and m")
        whole = f"(?{given}){texts[0]}" if given else texts[0]
        _check_pattern(whole)
        return truth(f"regexp_matches({self._string(self.value(arg))[0]}, {sql_text(whole)})")

    def _langmatches(self, tag: Expr, given: Expr) -> Value:
        wanted, text = _literal(given, "LANGMATCHES").lower(), self._string(self.value(tag))[0]
        if wanted == "*":
            return truth(f"({text} <> '')")
        return truth(f"(LOWER({text}) = {sql_text(wanted)} OR starts_with(LOWER({text}), {sql_text(wanted + '-')}))")


def _as_computed(value: Value, form: Form) -> Value:
    """A term whose kind is known as a computed value; others as they are."""
    num, rank, text, holds = (value.facet(which) for which in ("num", "rank", "simple", "truth"))
    if form == "number" and value.kinds == {NUMERIC} and num is not None and rank is not None:
        return number(num, rank, integers=value.integers)
    if form == "text" and value.kinds == {SIMPLE} and text is not None:
        return _text(text)
    return truth(holds) if form == "truth" and value.kinds == {BOOLEAN} and holds is not None else value


_FUNCTIONS = {
    "BOUND": (1, 1),
    "SAMETERM": (2, 2),
    "STR": (1, 1),
    "LANG": (1, 1),
    "DATATYPE": (1, 1),
    "IF": (3, 3),
    "COALESCE": (1, 99),
    "STRLEN": (1, 1),
    "UCASE": (1, 1),
    "LCASE": (1, 1),
    "SUBSTR": (2, 3),
    "CONCAT": (1, 99),
    "REGEX": (2, 3),
    "LANGMATCHES": (2, 2),
}


def _check_pattern(pattern: str) -> None:
    """UserError for what RE2 does not take."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise UserError(f"REGEX: {one_line(error, 100)}", remedy="patterns are RE2's, without references to groups") from None


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'{}'".format(text.replace("'", "''"))


def _literal(expr: Expr, where: str) -> str:
    """The text of a constant literal without a language."""
    from swjoin.frontends.rdf.dictionary import split_term

    if isinstance(expr, Const) and expr.text.startswith('"'):
        return split_term(expr.text).text
    names = ", ".join(f"?{name}" for name in variables_of(expr))
    raise UserError(f"{where}: {names or 'an expression'} where a text is expected", remedy="write the text itself")


def _whole(expr: Expr) -> int:
    from swjoin.frontends.rdf.dictionary import split_term

    negative = isinstance(expr, Call) and expr.op == "NEG"
    inner = expr.args[0] if isinstance(expr, Call) and negative else expr
    if isinstance(inner, Const) and inner.text.startswith('"'):
        text = split_term(inner.text).text
        if text.lstrip("+-").isdigit():
            return -int(text) if negative else int(text)
    raise UserError("SUBSTR: its numbers are to be constants", remedy="write them as integers")

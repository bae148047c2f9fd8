"""RDF terms, and the expressions of SPARQL on one solution, for the oracle of RDF stream queries.

What: `Term`, `parse_term`, `to_text`, `plain` (the parse tree of rdflib as `Call` and terms), `evaluate`, `condition_holds`,
`value_of`, `equal`, `less`, `number_term`.
Why: the evaluator of rdflib orders literals of all kinds, compares IN by term, and makes decimals of doubles; an oracle
needs the operators of SPARQL 1.1, on terms whose lexical forms are kept.
Stays out: patterns, windows and aggregates (`tests.tools.rdf_oracle`); `=` of literals that no engine agrees on is an error.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

XSD = "http://www.w3.org/2001/XMLSchema#"
LANG_STRING = "http://www.w3.org/1999/02/22-rdf-syntax-ns#langString"
NUMBERS = ("integer", "decimal", "float", "double")  # in the order of promotion
_SMALL = ("int", "long", "short", "byte", "unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte")
_INTEGERS = ("integer", "nonNegativeInteger", "positiveInteger", "negativeInteger", "nonPositiveInteger", *_SMALL)
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}
_TERM = re.compile(r'<([^<>]*)>|_:(\S+)|"((?:[^"\\]|\\.)*)"(?:@([A-Za-z0-9-]+)|\^\^<([^<>]*)>)?', re.DOTALL)
_DATE_TIME = re.compile(r"(-?\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)?")


class ExpressionError(Exception):
    """An error of SPARQL: a condition with it does not hold, a variable that it computes stays unbound."""


class NotUnderstood(ValueError):
    """A construct that the oracle does not know."""


class Term(NamedTuple):
    """kind: "iri", "blank" or "literal". datatype: an IRI, empty of strings and of text with a language. Equal: one term."""

    kind: str
    text: str
    datatype: str = ""
    language: str = ""


class ComputedTerm(Term):
    """A term that an expression made: the spelling of its number is free."""


class Variable(NamedTuple):
    """name: without `?`; of a blank node of a query with `_:` before it."""

    name: str


@dataclass(frozen=True)
class Call:
    """A node of a parse tree. parts: terms, variables, calls, text, or lists of them."""

    name: str
    parts: Mapping[str, Any]


Mu = Mapping[str, Term]
Aggregates = Callable[[Call], Term]


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        return chr(int(found[1] or found[2], 16)) if found[1] or found[2] else _ESCAPES[found[3]]

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", character, text)


def literal(text: str, datatype: str = "", language: str = "") -> Term:
    return Term("literal", text, "" if datatype in (f"{XSD}string", LANG_STRING) else datatype, language.lower())


def parse_term(text: str) -> Term:
    """The term of its N-Triples syntax."""
    found = _TERM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no term: {text!r}")
    if found[1] is not None:
        return Term("iri", _unescaped(found[1]))
    if found[2] is not None:
        return Term("blank", found[2])
    return literal(_unescaped(found[3]), _unescaped(found[5] or ""), found[4] or "")


def to_text(term: Term) -> str:
    """N-Triples syntax, with the escapes that it demands and no other."""
    if term.kind == "iri":
        return f"<{term.text}>"
    if term.kind == "blank":
        return f"_:{term.text}"
    text = term.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"' + (f"@{term.language}" if term.language else f"^^<{term.datatype}>" if term.datatype else "")


def plain(node: Any, prologue: Any) -> Any:
    """A parse tree of rdflib (made without normalised literals) as calls, terms, variables and text; a call that passes its
    only operand through is left out."""
    from rdflib.plugins.sparql.parserutils import CompValue
    from rdflib.term import BNode, Literal, URIRef
    from rdflib.term import Variable as Named

    if isinstance(node, CompValue):
        if node.name == "pname":
            return Term("iri", str(prologue.absolutize(node)))
        parts = {key: plain(dict.__getitem__(node, key), prologue) for key in node}
        if node.name == "literal":
            datatype = parts.get("datatype")
            return literal(parts["string"].text, datatype.text if datatype else "", parts.get("lang", ""))
        single = parts.get("part")
        if node.name in ("PathAlternative", "PathSequence") and isinstance(single, list) and len(single) == 1:
            return single[0]
        if node.name == "PathElt" and set(parts) == {"part"}:
            return single
        passes = node.name.startswith(("Conditional", "Relational", "Additive", "Multiplicative")) and not parts.get("other")
        return parts["expr"] if passes and "op" not in parts else Call(node.name, parts)
    if isinstance(node, Literal):
        return literal(str(node), str(node.datatype or ""), node.language or "")
    if isinstance(node, Named):
        return Variable(str(node))
    if isinstance(node, BNode):
        return Variable(f"_:{node}")
    if isinstance(node, URIRef):
        return Term("iri", str(prologue.absolutize(node)))
    return node if isinstance(node, str) else [plain(part, prologue) for part in node]


@functools.lru_cache(maxsize=1 << 16)
def value_of(term: Term) -> tuple[str, Any]:
    """The kind of a literal's value, and the value: a number's kind of `NUMBERS`; string, language, boolean, dateTime, date;
    ("unknown", None) of other datatypes and of forms that are none of their datatype's. ("iri" or "blank", text) of others."""
    if term.kind != "literal":
        return term.kind, term.text
    if term.language or not term.datatype:
        return ("language", (term.text, term.language.lower())) if term.language else ("string", term.text)
    name, text = term.datatype.removeprefix(XSD), term.text
    if not term.datatype.startswith(XSD):
        return "unknown", None
    if name in _INTEGERS:
        return ("integer", int(text)) if re.fullmatch(r"[+-]?\d+", text) else ("unknown", None)
    if name == "decimal":
        return (name, Fraction(text)) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text) else ("unknown", None)
    if name in ("float", "double"):
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?INF|NaN", text):
            return "unknown", None
        value = float(text.replace("INF", "inf"))
        return name, value if name == "double" else float(np.float32(value))
    if name == "boolean":
        return (name, text in ("true", "1")) if text in ("true", "false", "1", "0") else ("unknown", None)
    if name == "dateTime" and (found := _DATE_TIME.fullmatch(text)):
        return name, _date_time(found)
    if name == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return name, date.fromisoformat(text)
    return "unknown", None


def _date_time(found: re.Match[str]) -> datetime:
    fields = [int(part) for part in found.groups()[:6]] + [int((found[7] or "0").ljust(6, "0"))]
    made, zone = datetime(*fields), found[8]  # type: ignore[arg-type]
    if zone is None:
        return made
    away = timedelta() if zone == "Z" else timedelta(hours=int(zone[:3]), minutes=int(zone[0] + zone[4:]))
    return made.replace(tzinfo=UTC) - away


def _promoted(a: Term, b: Term) -> tuple[str, Any, Any]:
    (kind_a, x), (kind_b, y) = value_of(a), value_of(b)
    if kind_a not in NUMBERS or kind_b not in NUMBERS:
        raise ExpressionError(f"no numbers: {a} {b}")
    kind = max(kind_a, kind_b, key=NUMBERS.index)
    return kind, as_kind(x, kind), as_kind(y, kind)


def as_kind(value: Any, kind: str) -> Any:
    """A number's value as one of a kind that is not lower: int, Fraction, or float (of a float: rounded to 32 bits)."""
    if kind in ("float", "double"):
        with np.errstate(over="ignore"):
            return float(value) if kind == "double" else float(np.float32(float(value)))
    return Fraction(value) if kind == "decimal" else value


def number_term(kind: str, value: Any) -> ComputedTerm:
    """The literal of a number: canonical for integers and decimals that end, else 40 digits."""
    if kind == "integer":
        text = str(value)
    elif kind == "decimal":
        whole, rest = divmod(abs(value), 1)
        digits = str(int(rest * 10**40)).rjust(40, "0").rstrip("0")
        text = ("-" if value < 0 else "") + str(int(whole)) + (f".{digits}" if digits else "")
    else:
        text = "NaN" if math.isnan(value) else ("INF" if value > 0 else "-INF") if math.isinf(value) else f"{value!r}"
        text = text if "e" in text or text[-1] in "NF" else f"{text}E0"
    return ComputedTerm("literal", text, XSD + kind)


def equal(a: Term, b: Term) -> bool:
    """`=` of SPARQL. Literals of known kinds that differ in kind are unequal, as rdflib and Oxigraph have it; other literals
    are an error unless they are the same term."""
    (kind_a, x), (kind_b, y) = value_of(a), value_of(b)
    if kind_a in NUMBERS and kind_b in NUMBERS:
        _, x, y = _promoted(a, b)
        return bool(x == y)
    if a == b:
        return True
    if "literal" not in (a.kind, b.kind) or a.kind != b.kind or "language" in (kind_a, kind_b):
        return kind_a == kind_b == "language" and bool(x == y)
    if "unknown" in (kind_a, kind_b):
        raise ExpressionError(f"not comparable: {a} {b}")
    if kind_a == kind_b == "dateTime" and (x.tzinfo is None) != (y.tzinfo is None):
        raise ExpressionError(f"a time without a zone: {a} {b}")
    return kind_a == kind_b and bool(x == y)


def less(a: Term, b: Term) -> bool:
    """`<` of SPARQL: numbers, strings, booleans, times."""
    (kind_a, x), (kind_b, y) = value_of(a), value_of(b)
    if kind_a in NUMBERS and kind_b in NUMBERS:
        _, x, y = _promoted(a, b)
    elif kind_a != kind_b or kind_a not in ("string", "boolean", "dateTime", "date"):
        raise ExpressionError(f"no order: {a} {b}")
    elif kind_a == "dateTime" and (x.tzinfo is None) != (y.tzinfo is None):
        raise ExpressionError(f"a time without a zone: {a} {b}")
    return bool(x < y)


def _compared(op: str, a: Term, b: Term) -> bool:
    if op in ("=", "!="):
        return equal(a, b) == (op == "=")
    if op in ("<", ">"):
        return less(a, b) if op == "<" else less(b, a)
    below = less(a, b) if op == "<=" else less(b, a)
    return below or equal(a, b)


def truth(value: bool) -> ComputedTerm:
    return ComputedTerm("literal", "true" if value else "false", f"{XSD}boolean")


def effective(term: Term) -> bool:
    """The effective boolean value."""
    kind, value = value_of(term)
    if kind in NUMBERS:
        return not (value == 0 or value != value)
    if kind in ("boolean", "string"):
        return bool(value)
    if kind == "language":
        return bool(term.text)
    if kind == "unknown" and (term.datatype == f"{XSD}boolean" or term.datatype.removeprefix(XSD) in (*NUMBERS, *_INTEGERS)):
        return False
    raise ExpressionError(f"no truth value: {term}")


def _arithmetic(op: str, a: Term, b: Term) -> Term:
    kind, x, y = _promoted(a, b)
    if op == "/" and kind == "integer":
        kind, x, y = "decimal", Fraction(x), Fraction(y)
    if op == "/" and y == 0:
        if kind == "decimal":
            raise ExpressionError("division by zero")
        return number_term(kind, math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1, y))
    found = x + y if op == "+" else x - y if op == "-" else x * y if op == "*" else x / y
    return number_term(kind, as_kind(found, kind))


def _string(term: Term) -> str:
    if term.kind != "literal" or term.datatype:
        raise ExpressionError(f"no string: {term}")
    return term.text


def _pair(a: Term, b: Term) -> tuple[str, str]:
    """The texts of compatible arguments: the second is simple or of the language of the first."""
    texts = _string(a), _string(b)
    if b.language and a.language.lower() != b.language.lower():
        raise ExpressionError(f"languages differ: {a} {b}")
    return texts


def _same_language(term: Term, text: str) -> Term:
    _string(term)
    return ComputedTerm("literal", text, "", term.language)


def _substring(term: Term, start: Term, length: Term | None = None) -> Term:
    first = int(value_of(start)[1])
    last = len(term.text) + 1 if length is None else first + int(value_of(length)[1])
    return _same_language(term, term.text[max(first, 1) - 1 : max(last, 1) - 1])


def _concatenated(terms: Sequence[Term]) -> Term:
    text = "".join(_string(term) for term in terms)
    languages = {term.language for term in terms}
    return ComputedTerm("literal", text, "", languages.pop() if len(languages) == 1 else "")


def _language(term: Term) -> Term:
    if term.kind != "literal":
        raise ExpressionError(f"no literal: {term}")
    return literal(term.language)


def _datatype(term: Term) -> Term:
    if term.kind != "literal":
        raise ExpressionError(f"no literal: {term}")
    return Term("iri", LANG_STRING if term.language else term.datatype or f"{XSD}string")


def _matches(text: Term, pattern: Term, flags: Term | None = None) -> Term:
    if pattern.language or (flags and flags.language):
        raise ExpressionError("a pattern with a language")
    marks = {"i": re.IGNORECASE, "s": re.DOTALL, "m": re.MULTILINE, "x": re.VERBOSE}
    wanted = functools.reduce(lambda a, b: a | marks[b], _string(flags) if flags else "", 0)
    return truth(re.search(_string(pattern), _string(text), wanted) is not None)


def _language_matches(tag: Term, wanted: Term) -> Term:
    found, range_ = _string(tag).lower(), _string(wanted).lower()
    return truth(bool(found) if range_ == "*" else found == range_ or found.startswith(f"{range_}-"))


def _rounded(term: Term, function: Callable[[Any], Any]) -> Term:
    kind, value = value_of(term)
    if kind not in NUMBERS:
        raise ExpressionError(f"no number: {term}")
    if kind in ("float", "double"):
        try:
            return number_term(kind, float(function(value)))
        except (OverflowError, ValueError):  # of INF and NaN there is no ceiling
            return number_term(kind, value)
    return number_term(kind, as_kind(function(value), kind))


def _text_of(term: Term) -> Term:
    if term.kind == "blank":
        raise ExpressionError("a blank node has no text")
    return literal(term.text)


def _cast(name: str, term: Term) -> Term:
    kind, value = value_of(term)
    if name == "string":
        return ComputedTerm(*_text_of(term))
    if name not in ("integer", "decimal", "double", "float", "boolean") or kind not in (*NUMBERS, "string", "boolean"):
        raise ExpressionError(f"no cast: {name}")
    if kind == "string":
        kind, value = value_of(literal(term.text, XSD + name))
        if kind == "unknown":
            raise ExpressionError(f"no {name}: {term}")
    if name == "boolean":
        return truth(not (value == 0 or value != value))
    if isinstance(value, float) and not math.isfinite(value) and name in ("integer", "decimal"):
        raise ExpressionError(f"no {name}: {term}")
    return number_term(name, math.trunc(value) if name == "integer" else as_kind(value, name))


_FUNCTIONS: dict[str, Callable[..., Term]] = {
    "STR": _text_of,
    "LANG": _language,
    "DATATYPE": _datatype,
    "isIRI": lambda a: truth(a.kind == "iri"),
    "isURI": lambda a: truth(a.kind == "iri"),
    "isBLANK": lambda a: truth(a.kind == "blank"),
    "isLITERAL": lambda a: truth(a.kind == "literal"),
    "isNUMERIC": lambda a: truth(value_of(a)[0] in NUMBERS),
    "sameTerm": lambda a, b: truth(a == b),
    "STRSTARTS": lambda a, b: truth(str.startswith(*_pair(a, b))),
    "STRENDS": lambda a, b: truth(str.endswith(*_pair(a, b))),
    "CONTAINS": lambda a, b: truth(str.__contains__(*_pair(a, b))),
    "STRLEN": lambda a: number_term("integer", len(_string(a))),
    "UCASE": lambda a: _same_language(a, _string(a).upper()),
    "LCASE": lambda a: _same_language(a, _string(a).lower()),
    "LANGMATCHES": _language_matches,
    "ABS": lambda a: _rounded(a, abs),
    "CEIL": lambda a: _rounded(a, math.ceil),
    "FLOOR": lambda a: _rounded(a, math.floor),
    "ROUND": lambda a: _rounded(a, lambda x: math.floor(x + Fraction(1, 2) if not isinstance(x, float) else x + 0.5)),
}
_BY_NAME = {name.upper(): function for name, function in _FUNCTIONS.items()}


def evaluate(node: Any, mu: Mu, aggregates: Aggregates | None = None) -> Term:
    """The term of an expression on a solution. aggregates: computes calls named `Aggregate_...`. Raises `ExpressionError`."""
    if isinstance(node, Term):
        return node
    if isinstance(node, Variable):
        if node.name not in mu:
            raise ExpressionError(f"unbound: {node.name}")
        return mu[node.name]
    if node.name.startswith("Aggregate_"):
        if aggregates is None:
            raise NotUnderstood("an aggregate where none may stand")
        return aggregates(node)
    found = functools.partial(evaluate, mu=mu, aggregates=aggregates)
    parts = node.parts
    if node.name in ("ConditionalOrExpression", "ConditionalAndExpression"):
        return _logical([parts["expr"], *parts["other"]], node.name == "ConditionalOrExpression", found)
    if node.name == "RelationalExpression":
        return _relational(parts, found)
    if node.name in ("AdditiveExpression", "MultiplicativeExpression"):
        result = found(parts["expr"])
        for op, other in zip(parts["op"], parts["other"], strict=True):
            result = _arithmetic(op, result, found(other))
        return result
    if node.name in ("UnaryMinus", "UnaryPlus"):
        operand = found(parts["expr"])
        return _rounded(operand, lambda x: -x if node.name == "UnaryMinus" else x)
    if node.name == "UnaryNot":
        return truth(not effective(found(parts["expr"])))
    if node.name == "Function":
        arguments = parts["expr"] if isinstance(parts["expr"], list) else [parts["expr"]]
        if not parts["iri"].text.startswith(XSD) or len(arguments) != 1:
            raise NotUnderstood(f"function {parts['iri'].text}")
        return _cast(parts["iri"].text.removeprefix(XSD), found(arguments[0]))
    return _built_in(node.name.removeprefix("Builtin_"), parts, mu, found)


def _logical(operands: Sequence[Any], either: bool, found: Callable[[Any], Term]) -> Term:
    """|| and &&: an operand that decides wins over errors."""
    error: ExpressionError | None = None
    for operand in operands:
        try:
            if effective(found(operand)) == either:
                return truth(either)
        except ExpressionError as failed:
            error = failed
    if error:
        raise error
    return truth(not either)


def _relational(parts: Mapping[str, Any], found: Callable[[Any], Term]) -> Term:
    op, left = parts["op"], found(parts["expr"])
    if op not in ("IN", "NOT IN"):
        return truth(_compared(op, left, found(parts["other"])))
    others = parts["other"] if isinstance(parts["other"], list) else []  # `()` is rdf:nil
    error: ExpressionError | None = None
    for other in others:
        try:
            if equal(left, found(other)):
                return truth(op == "IN")
        except ExpressionError as failed:
            error = failed
    if error:
        raise error
    return truth(op == "NOT IN")


def _built_in(name: str, parts: Mapping[str, Any], mu: Mu, found: Callable[[Any], Term]) -> Term:
    if name == "BOUND":
        return truth(parts["arg"].name in mu)
    if name == "IF":
        return found(parts["arg2"] if effective(found(parts["arg1"])) else parts["arg3"])
    if name == "COALESCE":
        for operand in parts["arg"]:
            try:
                return found(operand)
            except ExpressionError:
                continue
        raise ExpressionError("nothing in COALESCE is bound")
    if name == "CONCAT":
        return _concatenated([found(operand) for operand in parts["arg"]])
    if name == "REGEX":
        return _matches(*(found(parts[key]) for key in ("text", "pattern", "flags") if key in parts))
    if name == "SUBSTR":
        return _substring(*(found(parts[key]) for key in ("arg", "start", "length") if key in parts))
    if name.upper() not in _BY_NAME:
        raise NotUnderstood(f"function {name}")
    return _BY_NAME[name.upper()](*(found(parts[key]) for key in ("arg", "arg1", "arg2") if key in parts))


def condition_holds(node: Any, mu: Mu, aggregates: Aggregates | None = None) -> bool:
    """Whether a FILTER or HAVING keeps a solution: an error is false."""
    try:
        return effective(evaluate(node, mu, aggregates))
    except ExpressionError:
        return False


def value_or_none(node: Any, mu: Mu, aggregates: Aggregates | None = None) -> Term | None:
    """The term of an expression, None for an error."""
    try:
        return evaluate(node, mu, aggregates)
    except ExpressionError:
        return None

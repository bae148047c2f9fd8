"""SQL expressions as sqlglot parses them, bound to the columns of a scope: names resolved, types checked.

What: `parse_expression`, `parsed`, `Scope`, `bind`.
Why: sqlglot's tree is what SQL text and the fluent API have in common, and what prints as other engines' SQL; a bound tree has
the types and functions that are evaluated. What has no meaning here is refused by name.
Stays out: clauses of queries, aggregate functions, evaluation (`expressions.evaluator`).

Text is parsed as DuckDB's. Names match as written, or, where only one column fits, in any case.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import errors, exp, parse_one

from swjoin.core.errors import UserError, one_line
from swjoin.core.units import is_utf8
from swjoin.expressions.functions.casts import cast
from swjoin.expressions.functions.catalogue import call
from swjoin.expressions.functions.times import PARTS
from swjoin.expressions.tree import Expr, Literal
from swjoin.expressions.types import BOOL, DATE, DOUBLE, INT, INTERVAL, NULL, TEXT, TIMESTAMP, family

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what it warns of is refused here, or right
Tree = TypeVar("Tree")
_MOST_CHARACTERS = 100_000
_MOST_INTEGER = (1 << 63) - 1


def parse_expression(text: str) -> exp.Expr:
    """The tree of an expression. UserError with line and column of a syntax error."""
    return parsed(text, "expression", lambda: parse_one(text, read="duckdb"))


def parsed(text: str, what: str, parse: Callable[[], Tree]) -> Tree:
    """What sqlglot makes of a text. what: it is. UserError with line and column of a syntax error."""
    if len(text) > _MOST_CHARACTERS:
        raise UserError(f"{len(text)} characters are too many, {_MOST_CHARACTERS} at most")
    if not is_utf8(text):
        raise UserError(f"{text[:60]!a} is not UTF-8")
    if not text.strip():
        raise UserError(f"the {what} is empty")
    try:
        return parse()
    except errors.ParseError as error:
        raise _syntax_error(error.errors[0] if error.errors else {}) from None
    except errors.TokenError as error:
        raise UserError(f"syntax error: {one_line(error, 100)}") from None
    except RecursionError:
        raise UserError(f"the {what} is too deeply nested") from None


def _syntax_error(details: dict[str, Any]) -> UserError:
    description = str(details.get("description") or "it is not understood")
    if "Required keyword" in description:
        description = "an operand is missing"
    near = one_line(details.get("highlight") or details.get("start_context") or "", 40)
    where = f"line {details.get('line')}, column {details.get('col')}, near {near!r}"
    return UserError(f"syntax error: {description[0].lower()}{description[1:]} at {where}")


@dataclass(frozen=True)
class Scope:
    """The columns that an expression may name. columns: (table, name) -> the expression that reads it; the table may be ""."""

    columns: dict[tuple[str, str], Expr]

    def column(self, table: str, name: str) -> Expr:
        """UserError for an unknown or an ambiguous name."""
        shown = f"{table}.{name}" if table else name
        for spelled in (str, str.casefold):
            wanted = spelled(table), spelled(name)
            found = [key for key in self.columns if wanted in ((spelled(key[0]), spelled(key[1])), ("", spelled(key[1])))]
            if len(found) == 1:
                return self.columns[found[0]]
            if found:
                raise UserError(f"column {shown} is ambiguous", remedy=f"write {' or '.join(map(_spelled, found))}")
        known = [_spelled(key) for key in self.columns]
        near = difflib.get_close_matches(shown, [*known, *(name for _, name in self.columns)], 1, 0.5)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)[:300]}"
        raise UserError(f"column {shown} is missing", remedy=remedy)


def _spelled(key: tuple[str, str]) -> str:
    return ".".join(filter(None, key))


def bind(node: exp.Expr, scope: Scope) -> Expr:
    """The typed expression. UserError, with the text of the part that is wrong, if it has none."""
    try:
        return _Binder(scope).bound(node)
    except RecursionError:
        raise UserError("the expression is too deeply nested") from None


def _shown(node: exp.Expr) -> str:
    """As the user may have written it."""
    try:
        return one_line(node.sql("duckdb"), 200)
    except (errors.SqlglotError, AttributeError):  # of a node without operands
        return type(node).__name__.upper()


@dataclass(frozen=True)
class _Shown:
    """The text of a node, made when a message needs it."""

    node: exp.Expr

    def __str__(self) -> str:
        return _shown(self.node)


# sqlglot's node -> function, whose arguments are the node's operands
_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.Pow: "power",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeNEQ: "is distinct from",
    exp.DPipe: "||",
}
_UNARY: dict[type[exp.Expr], str] = {
    exp.Not: "not",
    exp.Abs: "abs",
    exp.Floor: "floor",
    exp.Ceil: "ceil",
    exp.Sqrt: "sqrt",
    exp.Exp: "exp",
    exp.Ln: "ln",
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Reverse: "reverse",
}
_CONSTANT_PATTERN: dict[type[exp.Expr], str] = {
    exp.Contains: "contains",
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
}
_PART_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Week: "week",
    exp.Day: "day",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
    exp.TimeToUnix: "epoch",
}
_INTERVAL_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_TYPES: dict[Any, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: BOOL,
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: INT,
    exp.DataType.Type.UBIGINT: pa.uint64(),
    exp.DataType.Type.DOUBLE: DOUBLE,
    exp.DataType.Type.TEXT: TEXT,
    exp.DataType.Type.VARCHAR: TEXT,
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMP_S: pa.timestamp("s"),
    exp.DataType.Type.TIMESTAMP_MS: pa.timestamp("ms"),
    exp.DataType.Type.TIMESTAMP_NS: pa.timestamp("ns"),
    exp.DataType.Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.DATE: DATE,
}


def _parts(required: str, optional: str = "") -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(required.split()), frozenset(optional.split())


# what is read of sqlglot's nodes, and must be there, and what may be; a node that says more is refused
_READ: dict[type[exp.Expr], tuple[frozenset[str], frozenset[str]]] = {
    exp.Column: _parts("this", "table"),
    exp.Literal: _parts("this", "is_string"),
    exp.Interval: _parts("this", "unit"),
    exp.Between: _parts("this low high", "negate"),
    exp.In: _parts("this", "expressions negate"),
    exp.Like: _parts("this expression", "negate"),
    exp.ILike: _parts("this expression", "negate"),
    exp.Case: _parts("ifs", "this default"),
    exp.If: _parts("this true", "false"),
    exp.Cast: _parts("this to"),
    exp.Trim: _parts("this", "expression position"),
    exp.Substring: _parts("this start", "length"),
    exp.SplitPart: _parts("this delimiter part_index"),
    exp.Replace: _parts("this expression replacement"),
    exp.RegexpLike: _parts("this expression", "flag"),
    exp.RegexpReplace: _parts("this expression replacement", "modifiers single_replace"),
    exp.RegexpExtract: _parts("this expression", "group"),
    exp.Round: _parts("this", "decimals"),
    exp.TimestampTrunc: _parts("this unit"),
    exp.DateTrunc: _parts("this unit"),
    exp.TimeToStr: _parts("this format"),
    exp.UnixToTime: _parts("this scale"),
    exp.Coalesce: _parts("this", "expressions"),
    exp.Greatest: _parts("this", "expressions"),
    exp.Least: _parts("this", "expressions"),
    exp.Concat: _parts("", "expressions"),
    exp.Anonymous: _parts("this", "expressions"),
}


def _operands(node: exp.Expr) -> frozenset[str]:
    """Of other nodes: what they need of one or two operands."""
    return frozenset(name for name, needed in node.arg_types.items() if needed and name in ("this", "expression"))


# said of every such node in DuckDB's dialect
_IMPLIED = frozenset({"typed", "safe", "coalesce", "ignore_nulls", "null_if_pos_overflow"})


def sql_type(node: exp.DataType) -> pa.DataType:
    """The Arrow type of an SQL type. UserError for types that do not exist here."""
    if node.this == exp.DataType.Type.DECIMAL and all(part.name.isdigit() for part in node.expressions):
        digits = [int(part.name) for part in node.expressions] or [18, 3]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise UserError(f"{_shown(node)} is no type", remedy="a decimal has 1 to 38 digits")
        return pa.decimal128(precision, scale)
    found = _TYPES.get(node.this)
    if found is None or {name for name, value in node.args.items() if value} - {"this"}:
        names = "BOOLEAN, INTEGER, BIGINT, DOUBLE, DECIMAL(p, s), VARCHAR, TIMESTAMP, TIMESTAMPTZ, DATE"
        raise UserError(f"type {_shown(node)} is not supported", remedy=f"use one of {names}")
    return found


class _Binder:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def bound(self, node: exp.Expr) -> Expr:
        kind = type(node)
        required, optional = _READ.get(kind) or (_operands(node), frozenset())
        if {name for name, value in node.args.items() if value} - required - optional - _IMPLIED:
            raise self._unsupported(node)
        if any(node.args.get(name) is None for name in required):
            raise UserError(f"an argument is missing in {_shown(node)}")
        if kind in _BINARY:
            return self._call(node, _BINARY[kind], (node.this, node.expression))
        if kind in _UNARY:
            return self._call(node, _UNARY[kind], (node.this,))
        if kind in _CONSTANT_PATTERN:
            return self._call(node, _CONSTANT_PATTERN[kind], (node.this,), (self._constant(node, node.expression, str),))
        if kind in _PART_FUNCTIONS:
            return self._call(node, "extract", (node.this,), (_PART_FUNCTIONS[kind],))
        binder = _BINDERS.get(kind)
        if binder is None:
            raise self._unsupported(node)
        found = binder(self, node)
        return call("not", (found,), text=_Shown(node)) if node.args.get("negate") else found

    def _unsupported(self, node: exp.Expr) -> UserError:
        if isinstance(node, exp.AggFunc):
            return UserError(f"{_shown(node)}: an aggregate function cannot stand here", remedy="use it in SELECT or HAVING")
        if isinstance(node, exp.Anonymous):
            return UserError(f"function {node.name} is not supported, in {_shown(node)}")
        return UserError(f"{_shown(node)} is not supported")

    def _call(self, node: exp.Expr, function: str, operands: Sequence[exp.Expr], options: tuple[Any, ...] = ()) -> Expr:
        return self._made(node, function, [self.bound(operand) for operand in operands], options)

    def _made(self, node: exp.Expr, function: str, args: Sequence[Expr], options: tuple[Any, ...] = ()) -> Expr:
        try:
            return call(function, args, options, _Shown(node))
        except UserError as error:
            raise error if error.subject else error.prefixed(_shown(node)) from None

    def _constant(self, node: exp.Expr, value: exp.Expr, kind: type[Any]) -> Any:
        """The value of an operand that must be a constant."""
        found = self.bound(value)
        if not isinstance(found, Literal) or not isinstance(found.value, kind) or isinstance(found.value, bool):
            what = "text" if kind is str else "an integer"
            raise UserError(f"{_shown(value)} must be a constant, {what}", subject=_shown(node))
        if kind is int and abs(found.value) >= 1 << 31:
            raise UserError(f"{_shown(value)} is beyond 32 bits", subject=_shown(node))
        return found.value

    # ------------------------------------------------------------ leaves

    def paren(self, node: exp.Paren) -> Expr:
        return self.bound(node.this)

    def column(self, node: exp.Column) -> Expr:
        if not isinstance(node.this, exp.Identifier):
            raise self._unsupported(node)
        return self._scope.column(node.table, node.name)

    def literal(self, node: exp.Literal) -> Expr:
        if node.is_string:
            return Literal.of(node.this, TEXT)
        if not node.this.isdigit():
            try:
                return Literal.of(float(node.this), DOUBLE)
            except ValueError:
                raise UserError(f"{node.this[:60]} is no number") from None
        if len(node.this.lstrip("0")) > 19 or int(node.this) > _MOST_INTEGER:
            raise UserError(f"{node.this[:60]} is beyond 64 bits")
        return Literal.of(int(node.this), INT)

    def negative(self, node: exp.Neg) -> Expr:
        if isinstance(node.this, exp.Literal) and node.this.this == str(_MOST_INTEGER + 1):
            return Literal.of(-_MOST_INTEGER - 1, INT)
        return self._call(node, "negative", (node.this,))

    def boolean(self, node: exp.Boolean) -> Expr:
        return Literal.of(bool(node.this), BOOL)

    def null(self, node: exp.Null) -> Expr:
        return Literal.of(None, NULL)

    def interval(self, node: exp.Interval) -> Expr:
        unit = node.unit.name.lower().removesuffix("s") if isinstance(node.unit, exp.Var) else ""
        if unit not in _INTERVAL_US:
            what = "months and years have no fixed length" if unit in ("month", "year", "quarter") else f"unit {unit or '?'}"
            raise UserError(what, subject=_shown(node), remedy=f"use one of {', '.join(_INTERVAL_US)}")
        text = node.this.name if isinstance(node.this, exp.Literal) else None
        if isinstance(node.this, exp.Neg) and isinstance(node.this.this, exp.Literal):
            text = f"-{node.this.this.name}"
        try:
            number = float(text or "")
        except ValueError:
            raise UserError("its length must be a constant", subject=_shown(node)) from None
        length_us = number * _INTERVAL_US[unit]
        if not math.isfinite(length_us) or length_us != round(length_us) or abs(length_us) >= 1 << 62:
            raise UserError("its length is no number of microseconds of 62 bits", subject=_shown(node))
        return Literal.of(round(length_us), INTERVAL)

    # ------------------------------------------------------------ conditions

    def connective(self, node: exp.And | exp.Or) -> Expr:
        parts = [self.bound(part) for part in node.flatten()]
        return self._made(node, "and" if isinstance(node, exp.And) else "or", parts)

    def null_safe_equal(self, node: exp.NullSafeEQ) -> Expr:
        differ = self._call(node, "is distinct from", (node.this, node.expression))
        return self._made(node, "not", (differ,))

    def is_(self, node: exp.Is) -> Expr:
        value = self.bound(node.this)
        if isinstance(node.expression, exp.Null):
            return self._made(node, "is null", (value,))
        if isinstance(node.expression, exp.Boolean):
            wanted = Literal.of(bool(node.expression.this), BOOL)
            differ = self._made(node, "is distinct from", (self._made(node, "and", (value,)), wanted))
            return self._made(node, "not", (differ,))
        raise self._unsupported(node)

    def in_(self, node: exp.In) -> Expr:
        value, *others = (self.bound(part) for part in (node.this, *node.expressions))
        if all(isinstance(other, Literal) for other in others):
            return self._made(node, "in", (value, *others))
        return self._made(node, "or", [self._made(node, "=", (value, other)) for other in others])

    def between(self, node: exp.Between) -> Expr:
        value = self.bound(node.this)
        low = self._made(node, ">=", (value, self.bound(node.args["low"])))
        return self._made(node, "and", (low, self._made(node, "<=", (value, self.bound(node.args["high"])))))

    def case(self, node: exp.Case) -> Expr:
        subject = None if node.this is None else self.bound(node.this)
        args: list[Expr] = []
        for branch in node.args["ifs"]:
            when = self.bound(branch.this)
            args.append(when if subject is None else self._made(branch, "=", (subject, when)))
            args.append(self.bound(branch.args["true"]))
        default = node.args.get("default")
        return self._made(node, "case", (*args, Literal.of(None, NULL) if default is None else self.bound(default)))

    def if_(self, node: exp.If) -> Expr:
        otherwise = node.args.get("false")
        args = (self.bound(node.this), self.bound(node.args["true"]))
        return self._made(node, "case", (*args, Literal.of(None, NULL) if otherwise is None else self.bound(otherwise)))

    def of_many(self, node: exp.Coalesce | exp.Greatest | exp.Least) -> Expr:
        return self._call(node, node.key, (node.this, *node.expressions))

    def nullif(self, node: exp.Nullif) -> Expr:
        value = self.bound(node.this)
        equal = self._made(node, "=", (value, self.bound(node.expression)))
        return self._made(node, "case", (equal, Literal.of(None, value.type), value))

    # ------------------------------------------------------------ casts, text

    def cast(self, node: exp.Cast) -> Expr:
        kind = sql_type(node.args["to"])
        value = self.bound(node.this)
        if kind == TEXT and family(value.type) == "text":
            return value
        return cast(value, kind, _Shown(node))

    def like(self, node: exp.Like | exp.ILike) -> Expr:
        return self._like(node, node, None)

    def escape(self, node: exp.Escape) -> Expr:
        character = self._constant(node, node.expression, str)
        if not isinstance(node.this, exp.Like | exp.ILike) or len(character) != 1:
            raise UserError("ESCAPE needs one character", subject=_shown(node))
        found = self._like(node, node.this, character)
        return self._made(node, "not", (found,)) if node.this.args.get("negate") else found

    def _like(self, node: exp.Expr, like: exp.Expr, escape: str | None) -> Expr:
        pattern = self._constant(node, like.expression, str)
        return self._call(node, "like", (like.this,), (pattern, escape, isinstance(like, exp.ILike)))

    def concat(self, node: exp.Concat) -> Expr:
        return self._call(node, "concat", node.expressions)

    def trim(self, node: exp.Trim) -> Expr:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
        characters = None if node.expression is None else self._constant(node, node.expression, str)
        return self._call(node, name, (node.this,), (characters,))

    def substring(self, node: exp.Substring) -> Expr:
        start = self._constant(node, node.args["start"], int)
        length = node.args.get("length")
        count = None if length is None else self._constant(node, length, int)
        if count is not None and count < 0:
            raise UserError("a negative length is not supported", subject=_shown(node))
        first = start - 1 if start > 0 else start
        stop = None if count is None else first + count
        if start == 0:  # the place before the first character
            first, stop = 0, None if count is None else max(count - 1, 0)
        elif start < 0 and stop is not None and stop >= 0:
            stop = None
        return self._call(node, "slice", (node.this,), (first, stop))

    def left(self, node: exp.Left) -> Expr:
        return self._call(node, "slice", (node.this,), (0, self._constant(node, node.expression, int)))

    def right(self, node: exp.Right) -> Expr:
        count = self._constant(node, node.expression, int)
        return self._call(node, "slice", (node.this,), (-count, None) if count else (0, 0))

    def split_part(self, node: exp.SplitPart) -> Expr:
        separator = self._constant(node, node.args["delimiter"], str)
        part = self._constant(node, node.args["part_index"], int)
        if not separator or part < 1:
            raise UserError("it needs a separator and the number of a part, from 1 on", subject=_shown(node))
        return self._call(node, "split_part", (node.this,), (separator, part))

    def replace(self, node: exp.Replace) -> Expr:
        old = self._constant(node, node.expression, str)
        new = self._constant(node, node.args["replacement"], str)
        if not old:
            raise UserError("the text to replace is empty", subject=_shown(node))
        return self._call(node, "replace", (node.this,), (old, new))

    def regexp_like(self, node: exp.RegexpLike) -> Expr:
        pattern = self._constant(node, node.expression, str)
        return self._call(node, "regexp_matches", (node.this,), (pattern, self._flags(node, "flag", "i") == "i"))

    def regexp_replace(self, node: exp.RegexpReplace) -> Expr:
        pattern = self._constant(node, node.expression, str)
        new = self._constant(node, node.args["replacement"], str)
        most = None if self._flags(node, "modifiers", "g") == "g" else 1
        return self._call(node, "regexp_replace", (node.this,), (pattern, new, most))

    def regexp_extract(self, node: exp.RegexpExtract) -> Expr:
        pattern = self._constant(node, node.expression, str)
        group = node.args.get("group")
        number = 0 if group is None else self._constant(node, group, int)
        return self._call(node, "regexp_extract", (node.this,), (pattern, number))

    def _flags(self, node: exp.Expr, name: str, known: str) -> str:
        given = node.args.get(name)
        flags = "" if given is None else str(self._constant(node, given, str))
        if flags not in ("", known):
            raise UserError(f"flags {flags!r} are not supported", subject=_shown(node), remedy=f"use {known!r} or none")
        return flags

    # ------------------------------------------------------------ numbers, times

    def round(self, node: exp.Round) -> Expr:
        digits = node.args.get("decimals")
        return self._call(node, "round", (node.this,), (0 if digits is None else self._constant(node, digits, int),))

    def extract(self, node: exp.Extract) -> Expr:
        return self._call(node, "extract", (node.expression,), (_part_name(node.name),))

    def trunc(self, node: exp.TimestampTrunc | exp.DateTrunc) -> Expr:
        unit = node.args["unit"]
        return self._call(node, "date_trunc", (node.this,), (_part_name(unit.name),))

    def from_integer(self, node: exp.UnixToTime) -> Expr:
        unit = {"3": "ms", "6": "us"}.get(node.args["scale"].name)
        if unit is None:
            raise self._unsupported(node)
        return self._call(node, "make_timestamp", (node.this,), (unit,))

    def strftime(self, node: exp.TimeToStr) -> Expr:
        return self._call(node, "strftime", (node.this,), (self._constant(node, node.args["format"], str),))

    def named(self, node: exp.Anonymous) -> Expr:
        """Functions that sqlglot does not know."""
        match node.name.lower(), node.expressions:
            case ("make_timestamp_ns", [value]):
                return self._call(node, "make_timestamp", (value,), ("ns",))
            case ("epoch_us", [value]):
                return self._call(node, "epoch_us", (value,))
            case ("suffix", [value, pattern]):
                return self._call(node, "ends_with", (value,), (self._constant(node, pattern, str),))
            case ("date_part", [part, value]):
                return self._call(node, "extract", (value,), (_part_name(self._constant(node, part, str)),))
            case _:
                raise self._unsupported(node)


_PART_NAMES = {"dayofweek": "dow", "dayofyear": "doy", "weekday": "dow", "decade": "decade"}


def _part_name(name: str) -> str:
    plain = _PART_NAMES.get(name.lower(), name.lower())
    return plain if plain in PARTS else plain.removesuffix("s")


_BINDERS: dict[type[exp.Expr], Callable[[_Binder, Any], Expr]] = {
    exp.Paren: _Binder.paren,
    exp.Column: _Binder.column,
    exp.Literal: _Binder.literal,
    exp.Neg: _Binder.negative,
    exp.Boolean: _Binder.boolean,
    exp.Null: _Binder.null,
    exp.Interval: _Binder.interval,
    exp.And: _Binder.connective,
    exp.Or: _Binder.connective,
    exp.NullSafeEQ: _Binder.null_safe_equal,
    exp.Is: _Binder.is_,
    exp.In: _Binder.in_,
    exp.Between: _Binder.between,
    exp.Case: _Binder.case,
    exp.If: _Binder.if_,
    exp.Coalesce: _Binder.of_many,
    exp.Greatest: _Binder.of_many,
    exp.Least: _Binder.of_many,
    exp.Nullif: _Binder.nullif,
    exp.Cast: _Binder.cast,
    exp.Like: _Binder.like,
    exp.ILike: _Binder.like,
    exp.Escape: _Binder.escape,
    exp.Concat: _Binder.concat,
    exp.Trim: _Binder.trim,
    exp.Substring: _Binder.substring,
    exp.Left: _Binder.left,
    exp.Right: _Binder.right,
    exp.SplitPart: _Binder.split_part,
    exp.Replace: _Binder.replace,
    exp.RegexpLike: _Binder.regexp_like,
    exp.RegexpReplace: _Binder.regexp_replace,
    exp.RegexpExtract: _Binder.regexp_extract,
    exp.Round: _Binder.round,
    exp.Extract: _Binder.extract,
    exp.TimestampTrunc: _Binder.trunc,
    exp.DateTrunc: _Binder.trunc,
    exp.TimeToStr: _Binder.strftime,
    exp.UnixToTime: _Binder.from_integer,
    exp.Anonymous: _Binder.named,
}

"""Joins by the difference of two values: the keys by which their rows find each other.

What: `Band`, of the conditions of a join; `band_of`, the first one; `Cells`, its expressions of either side; `number_of`, the
value of a constant.
Why: rows find their instance by a hash, and partners of a band are near each other. Values lie in cells, so that the partners
of a value lie in one cell or in two neighbours: a row of one side is in one cell, a row of the other in one or two, and each
pair meets in one. Within a cell keys tell partners (`core.band_keys`). Floats are rounded to units, a span 16 to 32 of them.
Where that is too coarse (floats of 32 bits, bounds that dwarf the span) the key is the cell itself, twice as wide as the band.
The conditions themselves are tested unless keys are exact, so a span may be too wide, and never too narrow.
Stays out: what else joins are made of (`frontends.sql.conditions`); conditions with one bound, whose joins spread rows over the
cells of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from swjoin.core.band_keys import GREATEST_VALUE, LEAST_VALUE, WIDEST, BandKeys
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError, one_line
from swjoin.expressions.binder import Scope, bind
from swjoin.expressions.tree import Expr, Literal, can_fail

Meaning: TypeAlias = Callable[[exp.Expr], "tuple[int | None, Expr]"]  # the side that an expression reads, and what it means
FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_CELL = 2  # times the width of the band: half of the rows of one side are in two cells
_MOST_UNITS = 2.0**47  # on either side of 0; up to there the error of a sum is half a unit
_DOUBLE, _FLOAT = (2.0**-50, 2.0**46), (2.0**-21, 2.0**17)  # error of a sum of a few terms; most cells on either side of 0


@dataclass(frozen=True)
class Cells:
    """left: expression over the left side's columns. right: likewise, the least and the greatest key of a row's partners. keys:
    what they mean; None: cells."""

    left: str
    right: tuple[str, str]
    keys: BandKeys | None = None


@dataclass(frozen=True)
class Band:
    """lower <= right - left <= upper of two numbers, nearly if they are no integers; of two times in microseconds. sums: of
    absolute values of the constants in its conditions, which say how inexact sums of floats may be. alone: whether the join has
    no other conditions, and no sum overflows. exact: whether it is one of integers, or of whole microseconds."""

    left: exp.Expr
    right: exp.Expr
    lower: Fraction
    upper: Fraction
    sums: Fraction
    types: tuple[pa.DataType, pa.DataType]
    alone: bool
    exact: bool

    def cells(self, left: str, right: str) -> Cells | None:
        """None for bounds that its numbers can hardly hold. left, right: texts of its expressions."""
        if all(map(_is_time, self.types)):
            return self._of_integers(f"EPOCH_US({left})", f"EPOCH_US({right})")
        return self._of_integers(left, right) if self.exact else self._of_floats(left, right)

    def _of_integers(self, left: str, right: str) -> Cells | None:
        error = 0 if self.exact else 1  # times of nanoseconds lie between
        lower, upper = math.ceil(self.lower) - error, math.floor(self.upper) + error
        if max(abs(lower), abs(upper), upper - lower) > WIDEST:
            return None
        texts = [f"CAST(({text}) AS BIGINT)" for text in (left, right)]

        def less(bound: int) -> str:
            """right - bound, or the end of the integers behind which it would be."""
            if bound > 0:
                return f"(GREATEST({texts[RIGHT]}, {_LEAST + bound}) - {bound})"
            return f"(LEAST({texts[RIGHT]}, {_GREATEST + bound}) + {-bound})"

        def key(side: int, text: str, more: int = 0) -> str:
            within = f"GREATEST(LEAST({text}, {GREATEST_VALUE}), {LEAST_VALUE})"
            return f"CASE WHEN {texts[side]} IS NOT NULL THEN 2 * {within} + {more} END"

        keys = BandKeys.of_width(upper - lower, RIGHT, exact=self.exact and self.alone)
        return Cells(key(LEFT, texts[LEFT]), (key(RIGHT, less(upper)), key(RIGHT, less(lower), 1)), keys)

    def _of_floats(self, left: str, right: str) -> Cells | None:
        error, most = _FLOAT if any(map(_is_short, self.types)) else _DOUBLE
        if max(self.sums, abs(self.lower), abs(self.upper)) > 1e300:
            return None
        slack = 4 * error * float(self.sums + abs(self.lower) + abs(self.upper))
        lower, upper = float(self.lower) - slack, float(self.upper) + slack
        unit = 2.0 ** (math.floor(math.log2(max(upper - lower, 2.0**-20))) - 4)
        near = error == _DOUBLE[0] and max(abs(lower), abs(upper)) < 2.0**40 * unit
        width, most = (unit, _MOST_UNITS) if near else (max(_CELL * (upper - lower), 2.0**-20), most)
        value = f"CAST(({right}) AS DOUBLE)"

        def cell(text: str, of: str) -> str:
            within = f"CAST(FLOOR(GREATEST(LEAST(({text}) / {_double(width)}, {_double(most)}), {_double(-most)})) AS BIGINT)"
            return f"(CASE WHEN {of} <= {_double(math.inf)} THEN {within} END)"  # no key for a null or a NaN

        beyond = f"ABS({value}) * {_double(4 * error)}"
        ends = f"{value} - {_double(upper)} - {beyond}", f"{value} - {_double(lower)} + {beyond}"
        of_left = f"CAST(({left}) AS DOUBLE)"
        one, *both = cell(of_left, of_left), cell(ends[0], value), cell(ends[1], value)
        if not near:
            return Cells(one, (both[0], both[1]))
        keys = BandKeys.of_width(math.ceil((upper - lower) / unit) + 3, RIGHT, exact=False)
        return Cells(f"2 * {one}", (f"2 * {both[0]}", f"2 * {both[1]} + 1"), keys)


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) and not pa.types.is_uint64(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _of_microseconds(kinds: Sequence[pa.DataType]) -> bool:
    """Whether times are whole microseconds."""
    return not any(pa.types.is_timestamp(kind) and kind.unit == "ns" for kind in kinds)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_short(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) and not pa.types.is_float64(kind)


def _double(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"


@dataclass(frozen=True)
class _Half:
    """A bound of right - left."""

    left: exp.Expr
    right: exp.Expr
    lower: bool
    bound: Fraction
    exclusive: bool
    sums: Fraction
    types: tuple[pa.DataType, pa.DataType]
    doubles: bool  # whether its constants make its sums doubles


def band_of(conditions: Sequence[exp.Expr], meaning: Meaning) -> Band | None:
    """The first difference of two numbers or times that conditions bound from below and from above; None if there is none.
    UserError for bounds that no values satisfy."""
    found = [tuple(_halves(condition, meaning)) for condition in conditions]
    halves = [half for halves in found for half in halves]
    for left, right in dict.fromkeys((half.left, half.right) for half in halves):
        mine = [half for half in halves if (half.left, half.right) == (left, right)]
        types, sums = mine[0].types, max(half.sums for half in mine)
        exact = all(map(_is_whole, types)) and not any(half.doubles for half in mine)
        exact = exact or (all(map(_is_time, types)) and _of_microseconds(types))
        alone = len(mine) == len(halves) and all(found) and sums < GREATEST_VALUE  # so that no sum overflows
        lower = max((_inner(half, exact) for half in mine if half.lower), default=None)
        upper = min((_inner(half, exact) for half in mine if not half.lower), default=None)
        if lower is None or upper is None:
            continue
        if lower > upper:
            names = " and ".join(one_line(node.sql("duckdb"), 40) for node in (left, right))
            raise UserError(f"no values of {names} satisfy the conditions of the join", remedy="exchange its bounds")
        return Band(left, right, lower, upper, sums, types, alone, exact)
    return None


def _inner(half: _Half, exact: bool) -> Fraction:
    """The bound; of integers the least or greatest that satisfies it."""
    if not exact:
        return half.bound
    if half.lower:
        return Fraction(math.floor(half.bound) + 1 if half.exclusive else math.ceil(half.bound))
    return Fraction(math.ceil(half.bound) - 1 if half.exclusive else math.floor(half.bound))


def _halves(condition: exp.Expr, meaning: Meaning) -> Iterator[_Half]:
    kind = type(condition)
    if kind is exp.EQ:
        yield from _half(exp.LTE, condition.this, condition.expression, meaning)
        yield from _half(exp.GTE, condition.this, condition.expression, meaning)
    if kind not in FLIPPED:
        return
    one, two = condition.this.unnest(), condition.expression.unnest()
    if isinstance(two, exp.Abs):
        one, two, kind = two, one, FLIPPED[kind]
    if isinstance(one, exp.Abs):  # |x| <= c: x <= c, and x >= -c
        if kind in (exp.LT, exp.LTE):
            yield from _half(kind, one.this, two, meaning)
            yield from _half(FLIPPED[kind], one.this, exp.Neg(this=two.copy()), meaning)
    else:
        yield from _half(kind, one, two, meaning)


def _half(kind: type[exp.Expr], one: exp.Expr, two: exp.Expr, meaning: Meaning) -> Iterator[_Half]:
    """one KIND two, if it says how a number or time of the right side differs from one of the left."""
    terms = [*_terms(one, 1), *_terms(two, -1)]
    constants = [sign * value for sign, term in terms if (value := number_of(term)) is not None]
    others = [(sign, term, *meaning(term)) for sign, term in terms if number_of(term) is None]
    sides = {side: (sign, term, expr) for sign, term, side, expr in others if side is not None}
    if len(others) != 2 or set(sides) != {LEFT, RIGHT} or sides[LEFT][0] == sides[RIGHT][0]:
        return
    types = sides[LEFT][2].type, sides[RIGHT][2].type
    spans = {isinstance(term, exp.Interval) for _, term in terms if number_of(term) is not None}
    alike = (all(map(_is_time, types)) and False not in spans) or (all(map(_is_number, types)) and True not in spans)
    if not alike or any(can_fail(sides[side][2]) for side in (LEFT, RIGHT)):
        return
    bound = -sum(constants, Fraction(0))  # sign * (right - left) KIND bound
    if sides[RIGHT][0] < 0:
        bound, kind = -bound, FLIPPED[kind]
    sums = sum(map(abs, constants), Fraction(0))
    doubles = any(_is_double(term) for _, term in terms)
    yield _Half(
        sides[LEFT][1], sides[RIGHT][1], kind in (exp.GT, exp.GTE), bound, kind in (exp.LT, exp.GT), sums, types, doubles
    )


def _terms(node: exp.Expr, sign: int) -> Iterator[tuple[int, exp.Expr]]:
    """The terms of a sum, with their signs."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        yield from _terms(node.this, -sign)
    elif isinstance(node, exp.Add | exp.Sub):
        yield from _terms(node.this, sign)
        yield from _terms(node.expression, sign if isinstance(node, exp.Add) else -sign)
    else:
        yield sign, node


def _is_double(node: exp.Expr) -> bool:
    """Whether it is a constant with a point or an exponent."""
    return isinstance(node, exp.Literal) and not node.is_string and not node.is_int


def number_of(node: exp.Expr) -> Fraction | None:
    """A finite constant; an interval in microseconds."""
    if not isinstance(node, exp.Interval | exp.Literal) or node.is_string:
        return None
    constant = bind(node, Scope({}))
    if not isinstance(constant, Literal):
        return None
    value = (constant.scalar.cast(pa.int64()) if isinstance(node, exp.Interval) else constant.scalar).as_py()
    return Fraction(value) if math.isfinite(value) else None

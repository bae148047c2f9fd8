"""Comparisons and conditions.

Why: conditions are three-valued, as in SQL. Floats compare as IEEE 754 says: a NaN equals nothing; `greatest` and `least` take
a NaN for the greatest, as in DuckDB. Text compares by bytes.
Stays out: evaluation of `and`, `or`, `case` and `coalesce`, which need not evaluate every argument (`expressions.evaluator`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import scalar_of
from swjoin.core.errors import UserError
from swjoin.expressions.functions.casts import aligned, cast, condition
from swjoin.expressions.functions.catalogue import FUNCTIONS, Function, Options, Rule, Signature, Value, function, plain
from swjoin.expressions.tree import Expr
from swjoin.expressions.types import BOOL, DOUBLE, INT, NULL, described, family

_COMPARISONS: dict[str, Callable[..., Value]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _compared(sign: str) -> Rule:
    def rule(args: Sequence[Expr], options: Options) -> Signature:
        both, kind = aligned(sign, args)
        return Signature(tuple(cast(arg, BOOL) for arg in both) if kind == NULL else both, BOOL)

    return rule


for _sign, _compute in _COMPARISONS.items():
    function(_sign, _compared(_sign))(plain(_compute))


@function("is distinct from", _compared("is distinct from"))
def _distinct(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    one, two = args
    differ = pc.coalesce(pc.not_equal(one, two), scalar_of(True, BOOL))
    return pc.if_else(pc.and_(pc.is_null(one), pc.is_null(two)), scalar_of(False, BOOL), differ)


def _any(args: Sequence[Expr], options: Options) -> Signature:
    family(args[0].type)
    return Signature(tuple(args), BOOL)


function("is null", _any)(plain(pc.is_null))


def _not_rule(args: Sequence[Expr], options: Options) -> Signature:
    return Signature((condition("not", args[0]),), BOOL)


function("not", _not_rule)(plain(pc.invert))


def _in_rule(args: Sequence[Expr], options: Options) -> Signature:
    """The value, and constants of one type."""
    return Signature(aligned("in", args)[0], BOOL)


@function("in", _in_rule)
def _in(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """Whether the value is one of the others; null if not, and one of them, or the value, is null."""
    value, *others = args
    known = [other for other in others if other.is_valid]
    if value.type == DOUBLE:
        found: Value = scalar_of(False, BOOL)
        for other in known:
            found = pc.or_kleene(found, pc.equal(value, other))
    else:
        found = pc.is_in(value, value_set=pa.array(known, value.type), skip_nulls=True)
    missing = scalar_of(None if len(known) < len(others) else False, BOOL)
    found = pc.if_else(found, scalar_of(True, BOOL), missing)
    return pc.if_else(pc.is_null(value), scalar_of(None, BOOL), found)


def _extreme(name: str) -> Rule:
    def rule(args: Sequence[Expr], options: Options) -> Signature:
        every, kind = aligned(name, args)
        if kind == NULL:
            every, kind = tuple(cast(arg, INT) for arg in every), INT
        if family(kind) == "bool":
            raise UserError(f"{name} of {described(kind)}", remedy="use and or or")
        return Signature(every, kind)

    return rule


@function("greatest", _extreme("greatest"))
def _greatest(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    found = _element_wise(pc.max_element_wise, args, kind)
    if kind != DOUBLE:
        return found
    for arg in args:
        found = pc.if_else(pc.fill_null(pc.is_nan(arg), False), scalar_of(float("nan"), DOUBLE), found)
    return found


@function("least", _extreme("least"))
def _least(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return _element_wise(pc.min_element_wise, args, kind)


def _element_wise(compute: Callable[..., Value], args: Sequence[Value], kind: pa.DataType) -> Value:
    if family(kind) != "timestamptz":
        return compute(*args, skip_nulls=True)
    return compute(*(arg.cast(pa.timestamp(kind.unit)) for arg in args), skip_nulls=True).cast(kind)


# ---------------------------------------------------------------- not all of whose arguments are evaluated for all rows


def _connective(name: str) -> Rule:
    return lambda args, options: Signature(tuple(condition(name, arg) for arg in args), BOOL)


def _coalesce_rule(args: Sequence[Expr], options: Options) -> Signature:
    return Signature(*aligned("coalesce", args))


def _case_rule(args: Sequence[Expr], options: Options) -> Signature:
    """condition, value, condition, value, ..., value where none holds."""
    whens = [condition("case", arg) for arg in args[:-1:2]]
    values, kind = aligned("case", [*args[1:-1:2], args[-1]])
    pairs = [arg for pair in zip(whens, values[:-1], strict=True) for arg in pair]
    return Signature((*pairs, values[-1]), kind)


FUNCTIONS["and"] = Function(_connective("and"), None)
FUNCTIONS["or"] = Function(_connective("or"), None)
FUNCTIONS["coalesce"] = Function(_coalesce_rule, None)
FUNCTIONS["case"] = Function(_case_rule, None)

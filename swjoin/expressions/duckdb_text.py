"""Expressions as DuckDB's SQL, with the meaning that they have here.

What: `duckdb_text`.
Why: DuckDB verifies runs. It is another engine, but of the same language, in which few things differ: a literal with a point is
a decimal there, a NaN equals itself and is the greatest number, integers may have fewer than 64 bits.
Stays out: other engines.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from swjoin.expressions.binder import Scope, bind, parse_expression
from swjoin.expressions.tree import Column, Literal
from swjoin.expressions.types import family

_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.Neg)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_WIDE = {"int": "BIGINT", "float": "DOUBLE"}


def duckdb_text(text: str, scope: Scope, columns: Mapping[str, str]) -> str:
    """The expression in DuckDB's SQL. columns: names there of the columns that the scope reads, by their names in rows."""
    return _Translation(scope, columns).of(_all_plainer(parse_expression(text))).sql("duckdb")


def _all_plainer(whole: exp.Expr) -> exp.Expr:
    for node in reversed(list(whole.find_all(exp.Between, exp.Nullif, exp.Case, bfs=True))):  # the innermost first
        made = _plainer(node)
        if node is whole:
            whole = made
        elif made is not node:
            node.replace(made)
    return whole


def _plainer(node: exp.Expr) -> exp.Expr:
    """The same with comparisons in place of what compares tacitly."""
    if isinstance(node, exp.Between):
        low = exp.GTE(this=exp.paren(node.this.copy()), expression=exp.paren(node.args["low"]))
        high = exp.LTE(this=exp.paren(node.this.copy()), expression=exp.paren(node.args["high"]))
        both = exp.paren(exp.and_(low, high))
        return exp.Not(this=both) if node.args.get("negate") else both
    if isinstance(node, exp.Nullif):
        equal = exp.EQ(this=exp.paren(node.this.copy()), expression=exp.paren(node.expression))
        return exp.Case().when(equal, exp.Null()).else_(node.this.copy())
    if isinstance(node, exp.Case) and node.this is not None:
        for branch in node.args["ifs"]:
            branch.set("this", exp.EQ(this=exp.paren(node.this.copy()), expression=exp.paren(branch.this)))
        node.set("this", None)
    return node


class _Translation:
    def __init__(self, scope: Scope, columns: Mapping[str, str]) -> None:
        self._scope, self._columns = scope, columns

    def of(self, node: exp.Expr) -> exp.Expr:
        return node.copy().transform(self._changed)

    def _changed(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            read = bind(node, self._scope)
            assert isinstance(read, Column), "a scope of columns"
            column = exp.Column(this=exp.Identifier(this=self._columns[read.name], quoted=True))
            return self._cast(column, node)
        if isinstance(node, exp.Interval):  # DuckDB cuts fractions of hours and days off
            length = bind(node, self._scope)
            assert isinstance(length, Literal), "intervals are constants"
            length_us = length.scalar.cast(pa.int64())
            return exp.Interval(this=exp.Literal.string(str(length_us)), unit=exp.var("MICROSECOND"))
        number = isinstance(node, exp.Literal) and not node.is_string
        if number and (not node.this.isdigit() or isinstance(node.parent, _ARITHMETIC)):
            return self._cast(node.copy(), node)
        if isinstance(node, _COMPARISONS):
            sides = node.this, node.expression
            if "float" in {family(bind(side, self._scope).type) for side in sides}:
                return _ieee(node, *(exp.cast(self.of(side), "DOUBLE") for side in sides))
        return node

    def _cast(self, made: exp.Expr, node: exp.Expr) -> exp.Expr:
        wide = _WIDE.get(family(bind(node, self._scope).type))
        return made if wide is None else exp.cast(made, wide)


def _ieee(node: exp.Expr, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """A comparison of doubles in which a NaN equals nothing."""
    nulls = [exp.Is(this=side.copy(), expression=exp.Null()) for side in (left, right)]
    nan = exp.or_(*(exp.func("isnan", side.copy()) for side in (left, right)))
    null_safe = isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ)
    differ = isinstance(node, exp.NEQ | exp.NullSafeNEQ)
    found = exp.Case()
    if null_safe:
        found = found.when(exp.and_(*nulls), exp.Boolean(this=not differ))
    found = found.when(exp.or_(*(null.copy() for null in nulls)), exp.Boolean(this=differ) if null_safe else exp.Null())
    return exp.paren(found.when(nan, exp.Boolean(this=differ)).else_(type(node)(this=left, expression=right)))

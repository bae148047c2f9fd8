"""Expressions of a plan's nodes, bound to the columns of their inputs.

What: `bound`, `scope_of`, `type_of`, `is_column`, `columns_read_by`, `compared_times`.
Why: a plan is text, as it travels between ranks; what its expressions mean depends on the columns that they read.
Stays out: the nodes (`plan.logical`); evaluation (`expressions.evaluator`). sqlglot and Arrow are imported where a plan has
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from swjoin.core.columns import type_named
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    from swjoin.expressions.binder import Scope
    from swjoin.expressions.tree import Expr


def bound(text: str, columns: Sequence[tuple[str, str]], subject: str, stored: Callable[[Any], Any] | None = None) -> Expr:
    """The expression over columns of (name, Arrow type). stored: Arrow type of a column -> the type in which it comes.
    UserError, which names the subject, for text without a meaning."""
    try:
        return _bound(text, tuple(columns), stored)
    except UserError as error:
        raise error.prefixed(subject) from None


@lru_cache(1024)
def _bound(text: str, columns: tuple[tuple[str, str], ...], stored: Callable[[Any], Any] | None) -> Expr:
    from swjoin.expressions.binder import bind, parse_expression
    from swjoin.expressions.tree import Column
    from swjoin.expressions.types import read_as

    alone = _alone(text, columns)
    if alone is not None:
        kind = type_named(alone[1])
        return Column(alone[0], read_as(kind if stored is None else stored(kind)))
    return bind(parse_expression(text), scope_of(columns, stored))


def _alone(text: str, columns: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The column of which a text is the quoted name; None for other texts. Most expressions of queries are such."""
    if len(text) < 3 or text[0] != '"' or text[-1] != '"' or '"' in text[1:-1].replace('""', ""):
        return None
    name = text[1:-1].replace('""', '"')
    return next((column for column in columns if column[0] == name), None)


def scope_of(columns: Sequence[tuple[str, str]], stored: Callable[[Any], Any] | None = None) -> Scope:
    """The columns that an expression may name, see `bound`."""
    from swjoin.expressions.binder import Scope
    from swjoin.expressions.tree import Column
    from swjoin.expressions.types import read_as

    known: dict[tuple[str, str], Expr] = {}
    for name, type_name in columns:
        try:
            kind = type_named(type_name)
            known["", name] = Column(name, read_as(kind if stored is None else stored(kind)))
        except UserError:
            continue  # of a type that no expression reads
    return Scope(known)


def type_of(text: str, columns: Sequence[tuple[str, str]], subject: str) -> str:
    """The Arrow type of an expression; a column alone keeps its own."""
    from sqlglot import exp

    from swjoin.expressions.binder import parse_expression
    from swjoin.expressions.tree import Column

    expr = bound(text, columns, subject)
    if (alone := _alone(text, columns)) is not None:
        return alone[1]
    if isinstance(expr, Column) and isinstance(parse_expression(text).unnest(), exp.Column):
        return dict(columns)[expr.name]
    return str(expr.type)  # also of a cast to the type in which expressions read a column


def is_column(text: str, columns: Sequence[tuple[str, str]], name: str) -> bool:
    """Whether an expression is this column alone."""
    from swjoin.expressions.tree import Column

    expr = bound(text, columns, "")
    return isinstance(expr, Column) and expr.name == name


def columns_read_by(text: str, columns: Sequence[tuple[str, str]], subject: str) -> list[str]:
    """Names of the columns that an expression reads."""
    from swjoin.expressions.tree import columns_read

    return columns_read(bound(text, columns, subject))


def compared_times(text: str, columns: Sequence[tuple[str, str]], subject: str) -> Iterator[tuple[str, str, int]]:
    """(one, other, least): what a condition says of two columns of timestamps, one - other >= least, microseconds."""
    from swjoin.expressions.tree import Call

    waiting = [bound(text, columns, subject)]
    while waiting:
        expr = waiting.pop()
        if not isinstance(expr, Call):
            continue
        if expr.function == "and":
            waiting += expr.args
        elif expr.function in (">=", ">", "<=", "<"):
            sides = [_shifted_time(arg) for arg in (expr.args if expr.function[0] == ">" else expr.args[::-1])]
            if sides[0] is not None and sides[1] is not None:
                (one, by_us), (other, other_us) = sides[0], sides[1]
                yield one, other, other_us - by_us


def _shifted_time(expr: Expr) -> tuple[str, int] | None:
    """The column of timestamps that an expression is, and what is added to it, microseconds rounded down."""
    import pyarrow as pa

    from swjoin.expressions.tree import Call, Column, Literal

    if isinstance(expr, Column):
        return (expr.name, 0) if pa.types.is_timestamp(expr.type) else None
    if isinstance(expr, Call) and expr.function in ("+", "-") and len(expr.args) == 2 and isinstance(expr.args[1], Literal):
        below, by = _shifted_time(expr.args[0]), expr.args[1].scalar
        if below is not None and pa.types.is_duration(by.type) and by.is_valid:
            us = by.value * {"s": 1_000_000, "ms": 1_000, "us": 1}.get(by.type.unit, 0) or by.value // 1_000
            return below[0], below[1] + (us if expr.function == "+" else -us)
    return None

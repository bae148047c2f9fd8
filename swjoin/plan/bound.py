"""Expressions of a plan's nodes, bound to the columns of their inputs.

What: `bound`, `scope_of`, `type_of`, `is_column`, `columns_read_by`.
Why: a plan is text, as it travels between ranks; what its expressions mean depends on the columns that they read.
Stays out: the nodes (`plan.logical`); evaluation (`expressions.evaluator`). sqlglot and Arrow are imported where a plan has
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

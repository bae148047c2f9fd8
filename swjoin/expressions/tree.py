"""Typed expressions over the columns of rows: a tree that binders make and evaluators read.

What: `Column`, `Literal`, `Call`; `walk`, `columns_read`, `can_fail`.
Why: SQL text, the fluent API and residual predicates have one meaning, whatever evaluates them.
Stays out: which functions exist and what they take (`expressions.functions`), text (`expressions.binder`), evaluation
(`expressions.evaluator`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from swjoin.core.arrow_views import scalar_of


@dataclass(frozen=True)
class Column:
    """A column of the rows. type: in expressions, which may be wider than the stored one (`expressions.types.read_as`)."""

    name: str
    type: pa.DataType

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Literal:
    """A constant, which may be null. Two are equal if they print alike: 0.0 is not -0.0."""

    scalar: pa.Scalar[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[pa.DataType, bool, str]:
        return self.scalar.type, self.scalar.is_valid, str(self.scalar)

    @classmethod
    def of(cls, value: Any, kind: pa.DataType) -> Literal:
        """value: as `pyarrow.scalar` takes it; None is null."""
        return cls(scalar_of(value, kind))

    @property
    def type(self) -> pa.DataType:
        return self.scalar.type

    @property
    def value(self) -> Any:
        return self.scalar.as_py()

    @property
    def text(self) -> str:
        return str(self.scalar) if self.scalar.is_valid else "null"


@dataclass(frozen=True)
class Call:
    """A function of `expressions.functions` applied to arguments. options: constants that are no expressions, such as a
    pattern. can_fail: for some values the function, or one in its arguments, raises. text: what `str` makes the expression as
    written of, for messages."""

    function: str
    args: tuple[Expr, ...]
    type: pa.DataType
    options: tuple[Any, ...] = ()
    can_fail: bool = False
    text: object = field(default="", compare=False)
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Trees share parts, and are looked up for every batch: the hash is computed once."""
        object.__setattr__(self, "_hash", hash((self.function, self.args, self.type, self.options)))

    def __hash__(self) -> int:
        return self._hash


Expr: TypeAlias = Column | Literal | Call


def can_fail(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.can_fail


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all below it, each part once, parents first."""
    waiting, seen = [expr], set()
    while waiting:
        expr = waiting.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        yield expr
        if isinstance(expr, Call):
            waiting.extend(reversed(expr.args))


def columns_read(expr: Expr) -> list[str]:
    """Names of the columns that it reads, once each, in the order in which they occur."""
    return list(dict.fromkeys(part.name for part in walk(expr) if isinstance(part, Column)))

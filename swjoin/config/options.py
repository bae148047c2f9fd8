"""The options of joins from Python: their types, defaults and signatures.

What: `MatchOptions` (of every join), `CountOptions`, `JoinOptions`; `takes_options`, `complete`.
Why: `swjoin.join`, `swjoin.count`, `swjoin.WindowJoin` and `swjoin.spark.window_join` share options, listed here once. Type
checkers read the typed dictionaries; `help`, completion and `inspect.signature` read the signature made from them.
Stays out: what the options mean (`config.arguments`).
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from swjoin.config.window_bounds import Bound
from swjoin.core.join_semantics import How, Match

if TYPE_CHECKING:
    import numpy

Duration: TypeAlias = "str | timedelta | numpy.timedelta64"
Columns: TypeAlias = str | Sequence[str]
Last: TypeAlias = int | tuple[int, int]
Late: TypeAlias = Literal["error", "drop", "side"]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
Strategy: TypeAlias = Literal["query", "subquery", "operator"]
Returns: TypeAlias = Literal["arrow", "reader", "same", "pandas", "polars"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Of options that may be left out and are not None then.
_DEFAULTS = {
    "exclusive": (),
    "how": "inner",
    "match": "all",
    "late": "error",
    "malformed": "drop",
    "ids": False,
    "returns": "arrow",
    "window_memory": "4GB",
}


class TimeColumns(TypedDict):
    """The options that must be given."""

    left_time: str
    right_time: str


class MatchOptions(TimeColumns, total=False):
    """Which rows match, as every join from Python takes it."""

    on: Columns | None
    left_on: Columns | None
    right_on: Columns | None
    within: Duration | None
    lower: Duration | None
    upper: Duration | None
    exclusive: Bound | Sequence[Bound]
    time_unit: TimeUnit | None
    left_time_unit: TimeUnit | None
    right_time_unit: TimeUnit | None
    how: How
    match: Match
    where: str | None


class EngineOptions(MatchOptions, total=False):
    """What the engine takes besides, for tables and for streams."""

    last: Last | None
    assume_timezone: str | None
    left_id: str | None
    right_id: str | None
    max_out_of_order: Duration | None
    late: Late
    memory: str | None


class CountOptions(EngineOptions, total=False):
    """Options of `swjoin.count`."""

    csv: Mapping[str, Any] | None
    left_csv: Mapping[str, Any] | None
    right_csv: Mapping[str, Any] | None
    threads: int | None
    ranks: int | None
    routing: str | None
    units: int | None
    progress: bool | None


class JoinOptions(CountOptions, total=False):
    """Options of `swjoin.join`."""

    columns: Columns | None
    ids: bool
    returns: Returns
    out: str | os.PathLike[str] | None


class TimesOfTables(TypedDict):
    """The options of a query that must be given."""

    time: str | Mapping[str, str]


class SqlOptions(TimesOfTables, total=False):
    """Options of `swjoin.sql`, besides its tables."""

    time_unit: TimeUnit | Mapping[str, TimeUnit] | None
    tables: Mapping[str, Any] | None
    max_out_of_order: Duration | None
    late: Literal["error", "drop"]
    memory: str | None
    threads: int | None
    ranks: int | None
    strategy: Strategy | None
    routing: str | None
    units: int | None
    progress: bool | None
    returns: Literal["arrow", "same", "pandas", "polars"]
    out: str | os.PathLike[str] | None


class RdfOptions(TypedDict, total=False):
    """Options of `swjoin.rdf`, besides its query and streams."""

    static: Mapping[str, Any] | None
    malformed: Literal["error", "drop"]
    memory: str | None
    threads: int | None
    ranks: int | None
    strategy: Strategy | None
    progress: bool | None
    returns: Literal["arrow", "same", "pandas", "polars"]
    out: str | os.PathLike[str] | None


def takes_options(options: type, *, named: str | None = None) -> Callable[[_Function], _Function]:
    """Gives a function with `**kwargs: Unpack[options]` a signature in which each option is a parameter with its default.
    named: what other names stand for; None: there are none."""

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        required: frozenset[str] = options.__required_keys__  # type: ignore[attr-defined]
        for name, kind in options.__annotations__.items():
            default = inspect.Parameter.empty if name in required else _DEFAULTS.get(name)
            text = getattr(kind, "__forward_arg__", kind)
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text))
        if named is not None:
            parameters.append(inspect.Parameter(named, inspect.Parameter.VAR_KEYWORD, annotation=Any))
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate


@functools.cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}


def complete(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a function that `takes_options`, with their defaults. TypeError for an unknown option, which names the
    nearest one, and for one that is missing."""
    known = _defaults(function)
    called = f"{function.__qualname__}()"
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the options are {', '.join(known)}"
            raise TypeError(f"{called} got an unexpected keyword argument {name!r}{hint}")
    options = {**known, **given}
    missing = [repr(name) for name, value in options.items() if value is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{called} needs {' and '.join(missing)}, which must be given by name")
    return options

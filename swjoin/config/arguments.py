"""What a call of the API says, as a configuration; and complaints in Python's words.

What: `Request` (the arguments that all joins share) and its `config`; `python_wording`.
Why: there is one place where `how`, bounds, keys and lateness become a `QueryConfig` and a `RunConfig`, so that a join means
the same from Python as from the command line.
Stays out: data (`api.inputs`), joining (`api.embedded_join`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast, get_args

from swjoin.config.run import ClusterConfig, ModuleConfig, QueryConfig, RunConfig, SinkConfig, StreamConfig, TimeConfig
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.join_semantics import How
from swjoin.core.units import parse_duration_us, parse_size_bytes

JOIN_THETA_BYTES = 32 << 10  # 512 tuples of both streams, near the optimum of benchmarks/join_module.py
JOIN_PARTITIONS, CLUSTER_PARTITIONS = 16, 60  # in-process; on MPI there must be many more than slaves

Duration: TypeAlias = str | timedelta
Columns: TypeAlias = str | Sequence[str]
Last: TypeAlias = int | tuple[int, int]
Late: TypeAlias = Literal["error", "drop", "side"]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
Bound: TypeAlias = Literal["lower", "upper"]


@contextmanager
def python_wording() -> Iterator[None]:
    """Complaints that name options of the command line (`--time-unit s`) or keys of a configuration name arguments instead."""
    try:
        yield
    except SwjoinError as error:
        text = re.sub(r"--([a-z][a-z-]*)(?: ([\w|]+))?", _argument, str(error))
        text = text.replace("use more slaves (swjoin plan tells how many), raise module.window", "raise memory")
        text = text.replace("module.window", "memory")
        text = re.sub(r" \((?:left|right)\.\w+ in a configuration\)", "", text)
        if text != str(error):
            error.args = (text, *error.args[1:])
        raise


_QUOTED = ("time_unit", "max_out_of_order", "late", "assume_timezone")


def _argument(option: re.Match[str]) -> str:
    name, value = option[1].replace("-", "_"), option[2]
    if name.removeprefix("left_").removeprefix("right_") in _QUOTED and value:
        return f"{name}={' or '.join(map(repr, value.split('|')))}"
    return name if value is None else f"{name} {value}"


def duration_us(value: object, name: str) -> int:
    """A duration as whole microseconds. UserError for numbers without a unit, 0 excepted, and for finer durations."""
    if isinstance(value, timedelta):
        if getattr(value, "nanoseconds", 0):  # of pandas' kind, which the fields of a timedelta leave out
            raise UserError(f"{name}: {value!r} is finer than one microsecond; round it")
        return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if value == 0 and isinstance(value, int) and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        raise UserError(f"{name}: {value!r} has no unit; write a string such as '250ms', '6h' or '-10us', or a timedelta")
    try:
        return parse_duration_us(value)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def size_bytes(value: str, name: str) -> int:
    """A size as bytes. UserError, which names the argument, for numbers without a unit."""
    try:
        return parse_size_bytes(value)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def one_of(value: object, options: tuple[str, ...], name: str) -> None:
    """UserError, with the nearest option, unless it is one of them."""
    if value not in options:
        near = difflib.get_close_matches(str(value), options, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{name}: {value!r} is not one of {', '.join(map(repr, options))}{hint}")


def names(value: object, argument: str) -> tuple[str, ...]:
    """One column name or several. UserError for anything else."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or isinstance(items, bytes) or not all(isinstance(i, str) and i for i in items):
        raise UserError(f"{argument}: {value!r} is not a column name or a list of column names")
    return tuple(items)


def counts(last: object) -> tuple[int, int]:
    """Of the left and of the right stream. UserError unless these are one whole number or two."""
    both = last if isinstance(last, (tuple, list)) else (last, last)
    if len(both) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) for n in both):
        raise UserError(f"last: {last!r} is neither a number of tuples nor two: of the left and of the right stream")
    return both[0], both[1]


def side_units(both: TimeUnit | None, left: TimeUnit | None, right: TimeUnit | None) -> tuple[TimeUnit | None, TimeUnit | None]:
    """The time unit of either side. UserError when nothing is left for the common one."""
    if both is not None and left is not None and right is not None:
        raise UserError("give --time-unit, or --left-time-unit, --right-time-unit: not all three")
    return left or both, right or both


def check_workers(threads: int | None, ranks: int | None) -> None:
    """UserError unless slaves in this process, or MPI ranks, can be that many."""
    for value, name, least in ((threads, "threads", 1), (ranks, "ranks", 3)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            why = "a cluster needs a master, a collector and one slave" if name == "ranks" else "one join module at least"
            raise UserError(f"{name}: {value!r}: must be {least} or more ({why})")
    if threads is not None and ranks is not None:
        raise UserError("threads: on MPI every slave is a rank of its own; give ranks alone")


@dataclass(frozen=True)
class Request:
    """The arguments of `swjoin.join`, checked as far as they can be without data."""

    on: Columns | None
    left_time: str
    right_time: str
    within: Duration | None
    lower: Duration | None
    upper: Duration | None
    exclusive: Bound | Sequence[Bound]
    time_unit: TimeUnit | None
    how: How
    where: str | None
    left_on: Columns | None
    right_on: Columns | None
    left_id: str | None
    right_id: str | None
    columns: Columns | None
    max_out_of_order: Duration | None
    late: Late
    memory: str | None
    ids: bool
    last: Last | None = None
    left_time_unit: TimeUnit | None = None
    right_time_unit: TimeUnit | None = None
    assume_timezone: str | None = None

    def query(self) -> QueryConfig:
        """Bounds and kind of the join: the one place where they reach the engine."""
        one_of(self.how, get_args(How), "how")
        if self.where is not None and not isinstance(self.where, str):
            raise UserError(f"where: {self.where!r} is no condition; write text such as 'left_price < right_price'")
        exclusive = names(self.exclusive, "exclusive")
        for name in exclusive:
            one_of(name, get_args(Bound), "exclusive")
        if self.last is not None:
            if exclusive or not (self.within is self.lower is self.upper is None):
                raise UserError("give last, or bounds of time, not both")
            return QueryConfig(0, 0, how=self.how, where=self.where, last=counts(self.last))
        if self.within is not None:
            if self.lower is not None or self.upper is not None:
                raise UserError("give within, or lower and upper, not both")
            window_us = duration_us(self.within, "within")
            if window_us < 0:
                raise UserError(f"within: {self.within!r}: a window cannot be negative")
            lower_us, upper_us = -window_us, window_us
        elif self.lower is None or self.upper is None:
            raise UserError("the window is missing: give within, or lower and upper, or last")
        else:
            lower_us, upper_us = duration_us(self.lower, "lower"), duration_us(self.upper, "upper")
        return QueryConfig(lower_us, upper_us, cast("tuple[Bound, ...]", exclusive), how=self.how, where=self.where)

    def stream(self, side: int) -> StreamConfig:
        """One side's columns."""
        own = self.left_on if side == LEFT else self.right_on
        key = self.on if own is None else own
        if key is None:
            raise UserError("the join columns are missing: give on, or left_on and right_on")
        if self.on is not None and (self.left_on is not None or self.right_on is not None):
            raise UserError("give on, or left_on and right_on, not both")
        time, row_id = (self.left_time, self.left_id) if side == LEFT else (self.right_time, self.right_id)
        for value, name in ((time, "time"), (row_id, "id")):
            if not isinstance(value, str) and (value is not None or name == "time"):
                raise UserError(f"{STREAM_NAMES[side]}_{name}: {value!r} is not a column name")
        for unit, name in ((self.time_unit, ""), (self.left_time_unit, "left_"), (self.right_time_unit, "right_")):
            if unit is not None:
                one_of(unit, get_args(TimeUnit), f"{name}time_unit")
        time_unit = side_units(self.time_unit, self.left_time_unit, self.right_time_unit)[side]
        argument = "on" if own is None else f"{STREAM_NAMES[side]}_on"
        columns = None if self.columns is None else names(self.columns, "columns")
        return StreamConfig(None, names(key, argument), time, time_unit, row_id, columns, assume_timezone=self.assume_timezone)

    def config(self, *, default_bound_us: int = 0, materialise: bool = True, partitions: int | None = None) -> RunConfig:
        """The whole configuration, with settings for speed rather than the paper's, as `swjoin join` has them."""
        one_of(self.late, get_args(Late), "late")
        if not isinstance(self.ids, bool):
            raise UserError(f"ids: {self.ids!r} is neither True nor False")
        bound = self.max_out_of_order
        bound_us = default_bound_us if bound is None else duration_us(bound, "max_out_of_order")
        if bound_us < 0:
            raise UserError(f"max_out_of_order: {bound!r} must not be negative")
        module: dict[str, Any] = {"theta_bytes": JOIN_THETA_BYTES}
        if self.memory is not None:
            module["window_bytes"] = size_bytes(self.memory, "memory")
        return RunConfig(
            queries=(self.query(),),
            left=self.stream(LEFT),
            right=self.stream(1 - LEFT),
            time=TimeConfig("event", bound_us, self.late),
            cluster=ClusterConfig(partition_count=partitions or JOIN_PARTITIONS, distribution_epoch_us=0),
            module=ModuleConfig(**module),
            sink=SinkConfig("parquet" if materialise else "count", ids=self.ids),
        )

"""Options of a join from Python as a configuration.

What: `Request`, made of the options that all joins share, and its `config`; parsers of single arguments.
Why: `how`, bounds, keys and lateness become a `QueryConfig` and a `RunConfig` here alone, so that a join means the same from
Python as from the command line.
Stays out: which options there are (`config.options`), data (`connectors.frames`), joining (`api.embedded_join`).
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from swjoin.config.loader import text_from_plain
from swjoin.config.options import Late, TimeUnit
from swjoin.config.run import ClusterConfig, ModuleConfig, QueryConfig, RunConfig, SinkConfig, StreamConfig, TimeConfig
from swjoin.config.window_bounds import Bound, parse_window
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError, setting
from swjoin.core.join_semantics import How, Match
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.routing.named import is_placed

JOIN_PARTITIONS, CLUSTER_PARTITIONS = 16, 60  # in-process; on MPI there must be many more than slaves


def duration_us(value: object, name: str) -> int:
    """A duration (`parse_duration_us`) as whole microseconds. UserError, which names the argument."""
    try:
        return parse_duration_us(value)
    except UserError as error:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = f"{value!r} has no unit; write a string such as '250ms', '6h' or '-10us', or a timedelta"
            raise UserError(f"{name}: {text}") from None
        raise UserError(f"{name}: {error}") from None


def size_bytes(value: str, name: str) -> int:
    """A size as bytes. UserError, which names the argument, for numbers without a unit."""
    try:
        return parse_size_bytes(value)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def one_of(value: object, options: tuple[str, ...], name: str) -> None:
    """UserError, with the nearest option, unless it is one of them."""
    if not isinstance(value, str) or value not in options:
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
        one, *sides = (setting(f"{side}time_unit") for side in ("", "left_", "right_"))
        raise UserError(("give ", one, ", or ", sides[0], ", ", sides[1], ": not all three"))
    return left or both, right or both


def check_workers(threads: int | None, ranks: int | None) -> None:
    """UserError unless slaves in this process, or MPI ranks, can be that many."""
    for value, name, least in ((threads, "threads", 1), (ranks, "ranks", 3)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            why = "a cluster needs a master, a collector and one slave" if name == "ranks" else "one join module at least"
            raise UserError(f"{name}: {value!r}: must be {least} or more ({why})")
    if threads is not None and ranks is not None:
        raise UserError("threads: on MPI every slave is a rank of its own; give ranks alone")


def window_fields(options: Mapping[str, Any], *, count_windows: bool = True) -> dict[str, Any]:
    """The fields of a `QueryConfig` that options of a join mean: its bounds and its kind."""
    one_of(options["how"], get_args(How), "how")
    one_of(options["match"], get_args(Match), "match")
    if options["where"] is not None and not isinstance(options["where"], str):
        raise UserError(f"where: {options['where']!r} is no condition; write text such as 'left_price < right_price'")
    exclusive = (options["exclusive"],) if isinstance(options["exclusive"], str) else options["exclusive"]
    if not isinstance(exclusive, Sequence) or isinstance(exclusive, bytes):
        raise UserError(f"exclusive: {exclusive!r} is neither 'lower' nor 'upper' nor a list of them")
    exclusive = tuple(exclusive)
    for name in exclusive:
        one_of(name, get_args(Bound), "exclusive")
    given = {name: options[name] for name in ("within", "lower", "upper", "last") if options.get(name) is not None}
    window = parse_window(given, cast("tuple[Bound, ...]", exclusive), duration_us, counts if count_windows else None)
    return {**window._asdict(), **{name: options[name] for name in ("how", "match", "where")}}


def names_no_keys(options: Mapping[str, Any]) -> bool:
    """Whether a condition, or time alone, decides which rows match."""
    without = options["where"] is not None or options["match"] != "all"
    return without and options["on"] is options["left_on"] is options["right_on"] is None


def runs_as_plan(options: Mapping[str, Any]) -> bool:
    """Whether a join is run as a plan: without join columns, or with another routing than by their hash, or with units."""
    return names_no_keys(options) or is_placed(options["routing"]) or options["units"] is not None


def key_columns(options: Mapping[str, Any], side: int) -> tuple[str, ...]:
    """One side's join columns."""
    argument = f"{STREAM_NAMES[side]}_on"
    on, own = options["on"], options[argument]
    if on is None and own is None:
        raise UserError("the join columns are missing: give on, or left_on and right_on")
    if on is not None and not (options["left_on"] is options["right_on"] is None):
        raise UserError("give on, or left_on and right_on, not both")
    return names(on, "on") if own is None else names(own, argument)


def units_of(options: Mapping[str, Any]) -> tuple[TimeUnit | None, TimeUnit | None]:
    """The time unit of either side."""
    units = [options[name] for name in ("time_unit", "left_time_unit", "right_time_unit")]
    for unit, side in zip(units, ("", "left_", "right_"), strict=True):
        if unit is not None:
            one_of(unit, get_args(TimeUnit), f"{side}time_unit")
    return side_units(*units)


def _stream(options: Mapping[str, Any], side: int, *, keyed: bool) -> StreamConfig:
    """One side's columns."""
    name, key = STREAM_NAMES[side], key_columns(options, side) if keyed else ()
    time, row_id = options[f"{name}_time"], options[f"{name}_id"]
    if not isinstance(time, str):
        raise UserError(f"{name}_time: {time!r} is not a column name")
    if not (row_id is None or isinstance(row_id, str)):
        raise UserError(f"{name}_id: {row_id!r} is not a column name")
    columns = None if options["columns"] is None else names(options["columns"], "columns")
    unit = units_of(options)[side]
    zone, text = options["assume_timezone"], None
    given = {n: options[n] for n in ("csv", f"{name}_csv") if options.get(n) is not None}
    if len(given) > 1:
        raise UserError(f"give csv, or {name}_csv, not both")
    for argument, value in given.items():
        text = text_from_plain(value, argument)
    return StreamConfig(None, key, time, unit, row_id, columns, assume_timezone=zone, csv=text)


@dataclass(frozen=True)
class Request:
    """A join from Python, checked as far as it can be without data.

    streams: left and right. max_out_of_order_us: None: rows of tables are sorted, rows of streams come in order. window_bytes:
    None: the engine's default. ids: results have row ids and times.
    """

    query: QueryConfig
    streams: tuple[StreamConfig, StreamConfig]
    late: Late
    max_out_of_order_us: int | None
    window_bytes: int | None
    ids: bool

    @staticmethod
    def from_options(options: Mapping[str, Any], *, keyed: bool = True) -> Request:
        """Of all options (`config.options.complete`); `columns` and `ids` may be missing. keyed: with join columns."""
        options = {"columns": None, "ids": False, **options}
        one_of(options["late"], get_args(Late), "late")
        if not isinstance(options["ids"], bool):
            raise UserError(f"ids: {options['ids']!r} is neither True nor False")
        bound, memory = options["max_out_of_order"], options["memory"]
        bound_us = None if bound is None else duration_us(bound, "max_out_of_order")
        if bound_us is not None and bound_us < 0:
            raise UserError(f"max_out_of_order: {bound!r} must not be negative")
        window_bytes = None if memory is None else size_bytes(memory, "memory")
        query = QueryConfig(**window_fields(options))
        streams = _stream(options, LEFT, keyed=keyed), _stream(options, RIGHT, keyed=keyed)
        return Request(query, streams, options["late"], bound_us, window_bytes, options["ids"])

    @functools.lru_cache(64)  # noqa: B019 - small values, of the joins that a program repeats
    def config(self, *, materialise: bool = True, partitions: int = JOIN_PARTITIONS) -> RunConfig:
        """The whole configuration, as `swjoin join` has it."""
        module: dict[str, Any] = {} if self.window_bytes is None else {"window_bytes": self.window_bytes}
        return RunConfig(
            queries=(self.query,),
            left=self.streams[LEFT],
            right=self.streams[RIGHT],
            time=TimeConfig("event", self.max_out_of_order_us or 0, self.late),
            cluster=ClusterConfig(partition_count=partitions),
            module=ModuleConfig(**module),
            sink=SinkConfig("parquet" if materialise else "count", ids=self.ids),
        )

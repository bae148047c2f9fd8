"""The tables that a query may name, of its inputs.

What: `described(config) -> Table`; `with_time`, of columns that are known.
Why: the command, configurations and the Python API take tables alike.
Stays out: reading rows (`connectors.files`), the query (`frontends.sql.planner`).
"""

from __future__ import annotations

from swjoin.config.connectors import StreamConfig
from swjoin.config.options import TimeUnit
from swjoin.connectors.files.source import describe_columns
from swjoin.connectors.generator.input import GENERATED
from swjoin.connectors.open import live_columns
from swjoin.core.errors import Text, UserError
from swjoin.frontends.sql.planner import Table

_UNIT_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def described(config: StreamConfig, unit_remedy: Text) -> Table:
    """The columns of an input. unit_remedy: how its unit is given. UserError when it cannot be read, or has no such time
    column, or one of numbers without a unit."""
    if config.generate is not None:
        columns = GENERATED[config.generate]
    else:
        columns = live_columns(config, "stream") if config.live else describe_columns(config)
    return with_time(columns, config.time, config.time_unit, unit_remedy)


def with_time(columns: tuple[tuple[str, str], ...], time: str, unit: TimeUnit | None, unit_remedy: Text) -> Table:
    """A table of these columns, names and Arrow types. time: "" for none. As `described`."""
    kinds = dict(columns)
    if not time:
        return Table(columns, None)
    if time not in kinds:
        raise UserError(f"no column {time}; columns are {', '.join(kinds)[:300]}")
    if not kinds[time].startswith(("timestamp", "date", "int", "uint", "null")):
        raise UserError(f"time column {time} is {kinds[time]}", remedy="it must be a timestamp, a date or an integer")
    if "int" not in kinds[time]:
        if unit is not None:
            raise UserError(f"{time} is {kinds[time]}, which has a unit", remedy="leave the unit out")
        return Table(columns, time)
    if unit is None:
        raise UserError(f"{time} is a number without a unit", remedy=unit_remedy)
    return Table(columns, time, _UNIT_US[unit])

"""The tables that a query may name, of inputs in files.

What: `described(config) -> Table`.
Why: the command and the Python API take tables alike.
Stays out: reading rows (`connectors.files`), the query (`frontends.sql.planner`).
"""

from __future__ import annotations

from swjoin.config.connectors import StreamConfig
from swjoin.connectors.files.source import describe_columns
from swjoin.core.errors import UserError
from swjoin.frontends.sql.planner import Table

_UNIT_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def described(config: StreamConfig, unit_remedy: str) -> Table:
    """The columns of an input. unit_remedy: how its unit is given. UserError when it cannot be read, or has no such time
    column, or one of numbers without a unit."""
    columns = describe_columns(config)
    kinds = dict(columns)
    if not config.time:
        return Table(columns, None)
    if config.time not in kinds:
        raise UserError(f"no column {config.time}; columns are {', '.join(kinds)[:300]}")
    if "int" not in kinds[config.time]:
        if config.time_unit is not None:
            raise UserError(f"{config.time} is {kinds[config.time]}, which has a unit", remedy="leave the unit out")
        return Table(columns, config.time)
    if config.time_unit is None:
        raise UserError(f"{config.time} is a number without a unit", remedy=unit_remedy)
    return Table(columns, config.time, _UNIT_US[config.time_unit])

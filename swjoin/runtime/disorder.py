"""Advice for files that are further out of order than was declared.

What: `advised(error, config)`.
Why: the first row that lies too far behind says nothing of those after it; whoever raises the bound by it is refused again.
Stays out: which rows are late (`cluster.gateway.intake`).
"""

from __future__ import annotations

import contextlib

import numpy as np

from swjoin.cluster.gateway.intake import LEAVE_OUT, LateRowError
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import Spelled, SwjoinError, setting
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.units import format_duration
from swjoin.runtime.plausibility import FileRows

_SORT = Spelled(
    options="sort the rows with --sort",
    arguments="sort the rows, for which max_out_of_order is left out",
    keys="sort the rows with time.sort: true",
)
_COARSE_US = ((3_600_000_000, 60_000_000), (60_000_000, 1_000_000), (1_000_000, 1_000))  # from so much on, round up to this


def advised(error: LateRowError, config: RunConfig) -> LateRowError:
    """The error of a run on files, with the bound that both inputs need, for which their times are read to the end. Rows that
    cannot be read leave the error as it is."""
    if error.no_time or config.left.path is None:
        return error
    with contextlib.suppress(SwjoinError):
        lags = [_largest_lag_us(config, stream) for stream in (LEFT, RIGHT)]
        each = ", ".join(
            f"{name} up to {format_duration(lag)} behind" if lag else f"{name} in order"
            for name, lag in zip(STREAM_NAMES, lags, strict=True)
        )
        declared = setting("max_out_of_order", "time.max_out_of_order", format_duration(_rounded_up(max(lags))))
        error.remedy = (f"of all rows: {each}; declare ", declared, ", ", _SORT, ", or choose ", *LEAVE_OUT)
    return error


def _largest_lag_us(config: RunConfig, stream: int) -> int:
    """How far a row's time lies below the highest time before it, at most."""
    high, lag = BEGIN_OF_TIME_US, 0
    for batch in FileRows(config).batches(stream):
        ts = batch.ts if batch.ts_valid is None else batch.ts[batch.ts_valid]
        if len(ts):
            highest = np.maximum.accumulate(np.maximum(ts, high))
            lag, high = max(lag, int((highest - ts).max())), int(highest[-1])
    return lag


def _rounded_up(us: int) -> int:
    step = next((step for least, step in _COARSE_US if us >= least), 1)
    return -(-us // step) * step

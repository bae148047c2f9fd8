"""Metrics of a slave per distribution epoch: the columns of DIR/metrics/slaves.parquet.

What: `COLUMNS`, their order in the float64 vector of a final `ResultChunk`; `INTEGER_COLUMNS`, those stored as int64;
`metrics_schema`, `metrics_batch`.
Why: slaves, the collector, tables and plots share one definition.
Stays out: aggregation (`sweeps.run_tables`), plotting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swjoin.core.arrow_views import array_of

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: tuple[str, ...] = (
    "slave",  # SlaveId
    "epoch",  # EpochIndex
    "epoch_end_us",  # run clock when the slave had completed the epoch
    "left_tuples",  # delivered in this epoch
    "right_tuples",
    "delivered_bytes",
    "pairs",
    "comparisons",
    "process_us",  # wall time inside the join module
    "cpu_us",  # CPU time of the rank since the epoch before
    "communication_us",  # inside sends and receives
    "exchange_us",  # from the slave's report to the arrival of this delivery: its turn in the fixed order, and the transfer
    "idle_us",  # waiting for the master
    "occupancy_ratio",  # stream buffer: buffered bytes / capacity when the delivery had arrived
    "delay_mean_us",  # production delay of this epoch's pairs; 0 when there are none
    "delay_p99_us",
    "delay_max_us",
    "window_tuples",  # both streams, when the epoch was complete
    "window_bytes",
    "mini_group_count",
    "block_count",
)
INTEGER_COLUMNS = frozenset(COLUMNS) - {"occupancy_ratio", "delay_mean_us", "delay_p99_us", "delay_max_us"}


def metrics_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.int64() if name in INTEGER_COLUMNS else pa.float64()) for name in COLUMNS])


def metrics_batch(rows: NDArray[np.float64]) -> pa.RecordBatch:
    """Rows of metrics, float64 (n, columns), with the columns' types."""
    import pyarrow as pa

    columns = [rows[:, i].astype(np.int64) if name in INTEGER_COLUMNS else rows[:, i].copy() for i, name in enumerate(COLUMNS)]
    return pa.record_batch([array_of(column) for column in columns], schema=metrics_schema())

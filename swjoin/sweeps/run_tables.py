"""Tables of a run, by DuckDB or Spark: one row per distribution epoch, per slave, per move.

What: `check_run`, `write_run`: DIR/tables/epochs.parquet and .csv, slaves.parquet and .csv, and, of a run with events,
moves.parquet and .csv.
Why: plots and papers want minimum, mean and maximum over slaves, not raw rows.
Stays out: the tables of sweeps, and several directories at once (`sweeps.aggregate`), drawing (`plots`), measuring
(`core.metric_columns`).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from swjoin.connectors.files.run_folder import read_events, read_metrics
from swjoin.core.errors import UserError
from swjoin.core.metric_columns import INTEGER_COLUMNS
from swjoin.sweeps.engines import Tables
from swjoin.sweeps.table_files import write_table

_SPREAD = (
    "cpu_us",
    "communication_us",
    "exchange_us",  # not in runs of before
    "idle_us",
    "process_us",
    "occupancy_ratio",
    "window_tuples",
    "window_bytes",
    "mini_group_count",
    "block_count",
)
_SUMS = ("left_tuples", "right_tuples", "pairs", "comparisons", "delivered_bytes")
_TIMES = ("cpu_us", "communication_us", "exchange_us", "idle_us", "process_us")


def _sum(column: str) -> str:
    """A sum with the type of its column: engines sum integers to wider types."""
    return f"CAST(sum({column}) AS {'BIGINT' if column in INTEGER_COLUMNS else 'DOUBLE'}) AS {column}"


def _epochs(columns: Collection[str]) -> str:
    """One row per distribution epoch: sums, delay weighted by pairs, and the spread over slaves."""
    how = (("min", "min"), ("mean", "avg"), ("max", "max"))
    spread = [f"{sql}({c}) AS {c}_{name}" for c in _SPREAD if c in columns for name, sql in how]
    wanted = [
        "max(epoch_end_us) AS epoch_end_us",
        *map(_sum, _SUMS),
        "sum(delay_mean_us * pairs) / nullif(sum(pairs), 0) AS delay_mean_us",
        "max(delay_max_us) AS delay_max_us",
        *spread,
    ]
    return f"SELECT epoch, {', '.join(wanted)} FROM metrics GROUP BY epoch ORDER BY epoch"


def _slaves(columns: Collection[str]) -> str:
    """One row per slave over the whole run."""
    wanted = [
        "count(*) AS epochs",
        *(_sum(c) for c in (*_SUMS, *_TIMES) if c in columns),
        "avg(occupancy_ratio) AS occupancy_ratio_mean",
        "max(window_bytes) AS window_bytes_max",
    ]
    return f"SELECT slave, {', '.join(wanted)} FROM metrics GROUP BY slave ORDER BY slave"


def _moves() -> str:
    """One row per move, also of those that did not come to an end (nulls from there on). Times are on the run's clock.

    tuples, state_bytes: what travelled. MB_per_s: over the time that the supplier took to let it go. hold_back_s: from held to
    released.
    """

    def of(kind: str, column: str) -> str:
        return f"max(CASE WHEN kind = '{kind}' THEN {column} END)"  # a move has one event of each kind

    wanted = [
        "max(moved_group) AS moved_group",
        f"{of('decided', 'slave')} AS supplier",
        f"{of('decided', 'peer')} AS consumer",
        *(f"{of(kind, 'time_us')} / 1e6 AS {kind}_s" for kind in ("decided", "held", "released")),
        f"{of('left', 'tuples')} AS tuples",
        f"{of('left', 'state_bytes')} AS state_bytes",
        f"{of('left', 'state_bytes')} / nullif({of('left', 'duration_us')}, 0) AS MB_per_s",
        f"{of('released', 'duration_us')} / 1e6 AS hold_back_s",
    ]
    chosen = "SELECT *, CAST(amount AS BIGINT) AS number FROM events WHERE kind IN ('decided', 'held', 'left', 'released')"
    return f"SELECT number, {', '.join(wanted)} FROM ({chosen}) AS chosen GROUP BY number ORDER BY number"


def check_run(run_dir: Path) -> None:
    """UserError when the metrics or events of a run are missing or damaged, or its tables cannot be written."""
    columns = read_metrics(run_dir)
    for name in (*_SUMS, "delay_max_us", "window_bytes"):
        if name not in columns:
            raise UserError(f"{run_dir / 'metrics' / 'slaves.parquet'}: column {name} is missing; is it the metrics of a run?")
    if (run_dir / "metrics" / "events.parquet").exists():
        read_events(run_dir)
    if (run_dir / "tables").exists() and not (run_dir / "tables").is_dir():
        raise UserError(f"{run_dir / 'tables'}: is a file; the tables go into a directory of this name")


def _group_renamed(table: pa.Table, old: str, new: str) -> pa.Table:
    """The table with another name of its column of partition-groups: `group` is a word of SQL."""
    return table.rename_columns([new if name == old else name for name in table.column_names])


def write_run(tables: Tables, run_dir: Path) -> list[Path]:
    """Write the tables of a run as Parquet and CSV; returns their paths. UserError when they cannot be written."""
    columns = tables.add_files("metrics", [run_dir / "metrics" / "slaves.parquet"])
    found = [("epochs", tables.query(_epochs(columns))), ("slaves", tables.query(_slaves(columns)))]
    log = run_dir / "metrics" / "events.parquet"
    if log.is_file() and pq.read_metadata(log).num_rows:
        with pq.ParquetFile(log) as file:
            tables.add_table("events", _group_renamed(file.read(), "group", "moved_group"))
        found.append(("moves", _group_renamed(tables.query(_moves()), "moved_group", "group")))
    folder = run_dir / "tables"  # made when all tables are computed
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from None
    return [path for name, table in found for path in write_table(folder / name, table.to_pydict(), table.schema)]

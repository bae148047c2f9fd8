"""The metrics of many runs, by DuckDB or Spark: the queries behind `sweeps.metrics`.

What: `measured(tables, runs)`, metrics of each run from its metrics/slaves.parquet; `statistics(tables, values)` over repeats.
Why: the definitions of `sweeps.metrics` as SQL, once for both engines.
Stays out: metrics of run.json, tables of a sweep (`sweeps.aggregate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from swjoin.sweeps.engines import Tables
from swjoin.sweeps.metrics import METRICS, RUN, t_quantile
from swjoin.sweeps.results import Run

_INPUT = (
    *("slave", "epoch", "epoch_end_us", "left_tuples", "right_tuples", "delivered_bytes", "pairs", "comparisons", "process_us"),
    *("cpu_us", "communication_us", "exchange_us", "idle_us", "occupancy_ratio", "delay_mean_us", "delay_p99_us"),
    *("delay_max_us", "window_tuples", "window_bytes", "mini_group_count", "block_count"),
)
_SHARE = "sum({}) / 1e6 / max(measured_s)"
_PER_SLAVE = {
    "busy_ratio": _SHARE.format("process_us"),
    "cpu_s": _SHARE.format("process_us") + " * 60",
    "work_s": _SHARE.format("cpu_us") + " * 60",
    "idle_ratio": _SHARE.format("idle_us"),
    "communication_s": _SHARE.format("exchange_us") + " * 60",
    "transfer_s": _SHARE.format("communication_us") + " * 60",
    "occupancy_mean": "avg(occupancy_ratio)",
    "occupancy_max": "max(occupancy_ratio)",
    "window_bytes": "max(window_bytes)",
    "window_tuples": "max(window_tuples)",
    "delivered_bytes_per_s": "sum(delivered_bytes) / max(measured_s)",
    "comparisons_per_s": "sum(comparisons) / max(measured_s)",
}
_CAUSES = {"operator_ratio": "process_us", "exchange_ratio": "communication_us", "waiting_ratio": "idle_us"}
_HOW = {"min": "min", "mean": "avg", "max": "max", "sum": "sum"}


def column_name(metric: str, over: str) -> str:
    """Column of a metric: its name, and its aggregate over slaves, if any."""
    return metric if over == "run" else f"{metric}_{over}"


def _rows(columns: Sequence[str]) -> str:
    """The rows of the measured phases of all runs, with the length of the phase, the time x_s in it, x_s less its mean over
    all pairs (off_s), and the pairs up to a row in the order of delays."""
    present = [f"CAST({c if c in columns else 'NULL'} AS DOUBLE) AS {c}" for c in _INPUT]
    point = "regexp_extract(file, '([^/]+)/metrics/slaves[.]parquet$', 1)"
    return f"""
        WITH typed AS (SELECT {point} AS point, {", ".join(present)} FROM metrics),
        joined AS (
            SELECT typed.*, phases.from_us, phases.rank_count,
                coalesce(phases.to_us, max(typed.epoch_end_us) OVER (PARTITION BY typed.point)) AS to_us
            FROM typed JOIN phases ON typed.point = phases.point
        ),
        phase AS (
            SELECT *, (to_us - from_us) / 1e6 AS measured_s, (epoch_end_us - from_us) / 1e6 AS x_s
            FROM joined WHERE epoch_end_us > from_us AND epoch_end_us <= to_us
        )
        SELECT *,
            x_s - sum(x_s * pairs) OVER (PARTITION BY point) / nullif(sum(pairs) OVER (PARTITION BY point), 0) AS off_s,
            sum(pairs) OVER (PARTITION BY point) AS all_pairs,
            sum(pairs) OVER (PARTITION BY point ORDER BY delay_mean_us NULLS FIRST) AS up_to_mean,
            sum(pairs) OVER (PARTITION BY point ORDER BY delay_p99_us NULLS FIRST) AS up_to_p99
        FROM phase"""


def _by_slave() -> str:
    """One row per run and slave: the slave's metrics."""
    own = ", ".join(f"{sql} AS {name}" for name, sql in _PER_SLAVE.items())
    return f"SELECT point, slave, {own} FROM measured_rows GROUP BY point, slave"


def _by_run() -> str:
    """One row per run, over all its rows."""

    def percentile(delay: str, q: int) -> str:
        reached = f"up_to_{delay} * 100 >= all_pairs * {q} AND pairs > 0"
        return f"min(CASE WHEN {reached} THEN delay_{delay}_us END) / 1e6"

    def last(value: str) -> str:
        return f"sum(CASE WHEN x_s > measured_s * 2 / 3 THEN {value} END)"

    delays, with_pairs = "delay_mean_us / 1e6 * pairs", "CASE WHEN pairs > 0 THEN {} END"
    first_s, last_s = (f"{end}({with_pairs.format('x_s')})" for end in ("min", "max"))
    growth = f"sum(off_s * {delays}) / nullif(sum(off_s * off_s * pairs), 0)"
    wanted = {
        "delay_mean_s": f"sum({delays}) / nullif(sum(pairs), 0)",
        "delay_p50_s": percentile("mean", 50),
        "delay_p95_s": percentile("mean", 95),
        "delay_p99_s": percentile("p99", 99),
        "delay_max_s": f"max({with_pairs.format('delay_max_us / 1e6')})",
        "delay_growth": f"CASE WHEN {last_s} > {first_s} THEN {growth} END",
        "delay_last_third_s": f"{last(delays)} / nullif({last('pairs')}, 0)",
        "pairs_per_s": "sum(pairs) / max(measured_s)",
        "joined_tuples_per_s": "sum(left_tuples + right_tuples) / max(measured_s)",
        **{name: f"sum({column}) / 1e6 / max(measured_s) / nullif(max(rank_count), 0)" for name, column in _CAUSES.items()},
        "mini_group_count_sum": "sum(mini_group_count) / count(DISTINCT epoch)",
        "block_count_sum": "sum(block_count) / count(DISTINCT epoch)",
    }
    return f"SELECT point, {', '.join(f'{sql} AS {name}' for name, sql in wanted.items())} FROM measured_rows GROUP BY point"


def measured(tables: Tables, runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """Point -> column -> number, of the runs that have rows in their measured phases."""
    files = [run.metrics for run in runs if run.metrics is not None]
    if not files:
        return {}
    columns = tables.add_files("metrics", files)
    to_us = [None if run.phase_s[1] is None else run.phase_s[1] * 1e6 for run in runs]
    phases = {
        "point": pa.array([run.name for run in runs], pa.string()),
        "from_us": pa.array([run.phase_s[0] * 1e6 for run in runs], pa.float64()),
        "to_us": pa.array(to_us, pa.float64()),
        "rank_count": pa.array([run.query_ranks for run in runs], pa.float64()),
    }
    tables.add_table("phases", pa.table(phases))
    tables.add_table("measured_rows", tables.query(_rows(columns)))
    tables.add_table("slaves", tables.query(_by_slave()))
    spread = [
        f"{_HOW[over]}({name}) AS {column_name(name, over)}"
        for name, metric in METRICS.items()
        if metric.over != RUN and name in _PER_SLAVE
        for over in metric.over
    ]
    over_slaves = f"SELECT point, {', '.join(spread)} FROM slaves GROUP BY point"
    found: dict[str, dict[str, float | None]] = {}
    for sql in (over_slaves, _by_run()):
        for row in tables.query(sql).to_pylist():
            found.setdefault(row.pop("point"), {}).update(row)
    return found


def statistics(tables: Tables, values: Sequence[tuple[int, str, float | None]]) -> dict[tuple[int, str], dict[str, Any]]:
    """(group, column) -> over the repeats: runs, mean, sd, ci_low, ci_high (95 %), min, max. values: (group, column, value)."""
    groups, columns, numbers = zip(*values, strict=True) if values else ((), (), ())
    kinds = {"point_group": pa.int64(), "metric": pa.string(), "number": pa.float64()}
    arrays = [pa.array(part, kind) for part, kind in zip((groups, columns, numbers), kinds.values(), strict=True)]
    tables.add_table("repeats", pa.table(arrays, names=list(kinds)))
    wanted = "count(number) AS runs, avg(number) AS mean, stddev_samp(number) AS sd, min(number) AS min, max(number) AS max"
    found = tables.query(f"SELECT point_group, metric, {wanted} FROM repeats GROUP BY point_group, metric").to_pylist()
    return {(row.pop("point_group"), row.pop("metric")): _with_interval(row) for row in found}


def _with_interval(row: dict[str, Any]) -> dict[str, Any]:
    """The statistics with the confidence interval of the mean."""
    half = None if row["sd"] is None else t_quantile(row["runs"] - 1) * row["sd"] / math.sqrt(row["runs"])
    return {
        **row,
        "ci_low": None if half is None else row["mean"] - half,
        "ci_high": None if half is None else row["mean"] + half,
    }

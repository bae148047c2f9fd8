"""Aggregates sweeps: all of a sweep's runs in one tidy table.

What: `aggregate(directories, engine, spark_master) -> paths`, of runs, too, and `write_sweep` with an open engine: DIR/table,
one row per point of the axes, metric and `over`; DIR/runs, one row per run; both as Parquet and CSV.
Why: figures and verdicts need means over repeats with confidence intervals, not hundreds of files.
Stays out: metrics (`sweeps.metrics`, `sweeps.run_metrics`), one run over its epochs (`sweeps.run_tables`), drawing (`plots/`).

Failed and invalid runs (the machine was overloaded) are left out of the means; the table has their numbers. Probes of a search
are in DIR/runs only; in the table a search is one value, `sustainable_<axis key>`, per point and repeat. Column `censored` is
"below" or "at least" when some repeat's search found only that bound ("below" when both occur), otherwise "": with a bound, the
deviation and the confidence interval of the mean are unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from swjoin.core.errors import UserError
from swjoin.sweeps.engines import Engine, Tables, open_tables
from swjoin.sweeps.experiment import KEYS
from swjoin.sweeps.metrics import AT_LEAST, BELOW, METRICS, SPREAD, SUSTAINABLE
from swjoin.sweeps.results import Axes, Run, Sweep, is_sweep, read_sweep
from swjoin.sweeps.run_metrics import column_name, measured, statistics
from swjoin.sweeps.run_tables import check_run, write_run
from swjoin.sweeps.table_files import write_table

_STATISTICS = ("mean", "sd", "ci_low", "ci_high", "min", "max")
_UNKNOWN_OF_BOUNDS = ("sd", "ci_low", "ci_high")
_SIMULATED = ("utilisation_", "saturation_")
_CAUSES = {"operator_ratio": "operators", "exchange_ratio": "communication", "waiting_ratio": "idle"}


@dataclass
class _Group:
    """One point of the axes: its statistics, runs left out, and whether values are bounds."""

    invalid: int = 0
    failed: int = 0
    censored: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)  # by column


# ---------------------------------------------------------------- metrics of run.json


def _mean_active(run: Run) -> float | None:
    """Mean degree of declustering over the measured phase, which ends with the run where run.json has no end."""
    changes = run.report.get("declustering") or []
    if not changes:
        return None
    from_s, to_s = run.phase_s
    to_s = float(run.report["join_s"]) if to_s is None else to_s
    times = [-float("inf"), *(float(c["time_s"]) for c in changes[1:]), float("inf")]
    slave_s = 0.0
    for change, begin, end in zip(changes, times[:-1], times[1:], strict=True):
        slave_s += float(change["active_slaves"]) * max(0.0, min(end, to_s) - max(begin, from_s))
    return slave_s / (to_s - from_s) if to_s > from_s else None


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _dig(report: Mapping[str, Any], *path: str) -> Any:
    """The value at the end of the path; None when a part of the path is missing."""
    value: Any = report
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _reported(run: Run) -> dict[str, float | None]:
    """Columns of the metrics that run.json has."""
    report = run.report
    values = {
        "active_slaves": _mean_active(run),
        "moves": report.get("moves"),
        "input_tuples_per_s": report.get("input_tuples_per_s"),
        "join_s": report.get("join_s"),
        "peak_rss_bytes_max": max((report.get("peak_rss_bytes") or {}).values(), default=None),
        "results_count": _dig(report, "results", "count"),
        **{f"utilisation_slaves_{over}": _dig(report, "utilisation", "slaves", over) for over in SPREAD},
        "utilisation_master": _dig(report, "utilisation", "master"),
        "utilisation_collector": _dig(report, "utilisation", "collector"),
        "saturation_tuples_per_s": (saturation := report.get("saturation_tuples_per_s")),
        "saturation_per_node": None if saturation is None else saturation / run.done["slaves"],
        "gateway_count": len(report["gateways"]) if report.get("gateways") else None,
        **{column: _dig(report, "causes", cause) for column, cause in _CAUSES.items()},
        "late_s_master_p99": _dig(report, "machine", "late_s", "master", "p99"),
    }
    return {name: float(value) if run.ended_well and value is not None else None for name, value in values.items()}


COLUMNS = {column_name(name, over): (name, over) for name, metric in METRICS.items() for over in metric.over}
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "unit", "over", "point", "status", "reasons", "failure", "censored")),
        *((name, pa.int64()) for name in ("runs", "invalid", "failed", "repeat")),
        *((name, pa.float64()) for name in (*_STATISTICS, "searched", "wall_s", *COLUMNS)),
    ]
)

# ---------------------------------------------------------------- writing


def write_sweep(tables: Tables, sweep: Sweep) -> list[Path]:
    """Compute and write all tables of a sweep."""
    order = sweep.order()
    index = {axes: i for i, axes in enumerate(order)}
    measurements = measured(tables, sweep.runs)
    by_run = {
        run.name: {**dict.fromkeys(COLUMNS), **_reported(run), **_known(measurements.get(run.name, {}))} for run in sweep.runs
    }
    if sweep.searched is None:
        counted = [run for run in sweep.runs if run.counts and not run.is_probe and run.axes in index]
        values = [(index[run.axes], column, by_run[run.name][column]) for run in counted for column in COLUMNS]
    else:
        name = SUSTAINABLE + sweep.searched
        values = [(index[one.axes], name, one.value) for one in sweep.found]
    found = statistics(tables, values)
    groups = [_Group() for _ in order]
    for (group_index, column), row in found.items():
        groups[group_index].statistics[column] = row
    for axes, group in zip(order, groups, strict=True):
        if sweep.searched is None:
            own = [run for run in sweep.runs if not run.is_probe and run.axes == axes]
            group.failed = sum(not run.ended_well for run in own)
            group.invalid = sum(run.ended_well and not run.counts for run in own)
        else:
            searches = [one for one in sweep.found if one.axes == axes]
            group.invalid = sum(one.invalid for one in searches)
            group.failed = sum(one.value is None and not one.invalid for one in searches)
            marks = {one.censored for one in searches}
            group.censored = next((mark for mark in (BELOW, AT_LEAST) if mark in marks), "")
    return [
        *write_table(sweep.directory / "table", _table(sweep, order, groups), _SCHEMA),
        *write_table(sweep.directory / "runs", _run_table(sweep, by_run), _SCHEMA),
    ]


def _kinds(sweep: Sweep, groups: Iterable[_Group]) -> list[tuple[str, str, str, str]]:
    """(column, metric, over, unit) of a point's rows; metrics that no run measured are left out."""
    if sweep.searched is not None:
        unit = "" if sweep.searched == "slaves" else KEYS.get(sweep.searched, "")
        return [(SUSTAINABLE + sweep.searched, SUSTAINABLE + sweep.searched, "run", unit)]
    measured = {column for group in groups for column, row in group.statistics.items() if row["runs"]}
    measured = measured or {column for column in COLUMNS if not column.startswith(_SIMULATED)}
    return [(column, name, over, METRICS[name].unit) for column, (name, over) in COLUMNS.items() if column in measured]


def _table(sweep: Sweep, order: Sequence[Axes], groups: Sequence[_Group]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {
        name: [] for name in (*sweep.axes, "metric", "unit", "over", "runs", *_STATISTICS, "invalid", "failed", "censored")
    }
    kinds = _kinds(sweep, groups)
    for axes, group in zip(order, groups, strict=True):
        for column, metric, over, unit in kinds:
            row = group.statistics.get(column)
            unknown = _UNKNOWN_OF_BOUNDS if group.censored else ()
            statistics = [None if row is None or name in unknown else row[name] for name in _STATISTICS]
            runs, left_out = 0 if row is None else row["runs"], (group.invalid, group.failed)
            line = (*axes, metric, unit, over, runs, *statistics, *left_out, group.censored)
            for values, value in zip(out.values(), line, strict=True):
                values.append(value)
    return out


def _run_table(sweep: Sweep, by_run: Mapping[str, Any]) -> dict[str, list[Any]]:
    """All runs, also failed ones, by axes and repeat."""
    positions = {axes: i for i, axes in enumerate(sweep.order())}
    runs = sorted(
        sweep.runs, key=lambda run: (positions.get(run.axes, -1), run.done["repeat"], run.done.get("searched") or 0.0, run.name)
    )
    out: dict[str, list[Any]] = {"point": [run.name for run in runs]}
    out |= {axis: [run.axes[i] for run in runs] for i, axis in enumerate(sweep.axes)}
    about = {
        "slaves": [run.done["slaves"] for run in runs],
        "repeat": [run.done["repeat"] for run in runs],
        "searched": [run.done.get("searched") for run in runs],
        "status": [run.done["status"] for run in runs],
        "valid": [bool(run.done["valid"]) for run in runs],
        "reasons": ["; ".join(run.done.get("reasons") or []) for run in runs],
        "failure": [run.done.get("failure") for run in runs],
        "wall_s": [run.done.get("wall_s") for run in runs],
        **{column: [by_run[run.name][column] for run in runs] for column in COLUMNS},
    }
    return out | {name: values for name, values in about.items() if name not in out}


def aggregate(directories: Sequence[Path], engine: Engine = "duckdb", spark_master: str | None = None) -> list[Path]:
    """Write the tables of all these runs and sweeps as Parquet and CSV; returns their paths.

    The directories must have the same paths for this process and for all of a Spark cluster (a shared file system): small
    files are read here, metrics by the engine. URLs such as hdfs:// and s3a:// are not understood.

    UserError, before anything is written, when one of the directories is neither, or has nothing to aggregate.
    """
    directories = list(dict.fromkeys(directories))
    sweeps = {directory: read_sweep(directory) for directory in directories if is_sweep(directory)}
    for directory in directories:
        source = directory / "metrics" / "slaves.parquet"
        if directory not in sweeps and not os.path.isfile(source):
            raise UserError(f"{source}: no such file; is {directory} the directory of a run or of a sweep?")
        if directory not in sweeps:
            check_run(directory)
    written = []
    with open_tables(engine, spark_master) as tables:
        for directory in directories:
            written += write_sweep(tables, sweeps[directory]) if directory in sweeps else write_run(tables, directory)
    return written

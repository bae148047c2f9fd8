"""Runs of plans over files: in this process and on MPI ranks, and the same join by DuckDB.

What: `write_streams`, `plan_job`, `rows_of`, `duckdb_rows`; `python -m tests.support.plan_runs JOB RANKS` starts a
job's ranks.
Why: plans have no command yet, so tests make their jobs in Python.
Stays out: random plans in the simulator (`tests.tools.random_plans`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.duckdb_text import in_duckdb
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.connectors.files.source import describe_columns
from swjoin.plan.logical import Column, LogicalPlan, Node, Source
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.launch import launch


def write_streams(
    folder: Path, names: str, rows: int, seed: int, *, keys: int = 50, text: bool = False, null_share: float = 0.0
) -> dict[str, StreamConfig]:
    """Parquet files with columns k, v, x, ts in order of time, 1 ms apart on average; the configurations of their inputs.

    Keys, null in part, and the texts x are shared by all streams; v is unique.
    """
    random = np.random.default_rng(seed)
    inputs = {}
    for index, name in enumerate(names):
        ts = np.sort(random.integers(0, rows * 1000, rows))
        numbers = random.integers(0, keys, rows)
        values: list[Any] = [f"key {n}" for n in numbers] if text else numbers.tolist()
        nulls = random.random(rows) < null_share
        k = pa.array([None if null else value for null, value in zip(nulls, values, strict=True)])
        table = pa.table(
            {
                "k": k,
                "v": np.arange(rows) + index * rows,
                "x": [f"x{i % 7}" for i in range(rows)],
                "ts": pa.array(ts, pa.timestamp("us")),
            }
        )
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=max(1, rows // 20))
        inputs[name] = StreamConfig(path=str(path), time="ts", key=())
    return inputs


def sources_of(inputs: dict[str, StreamConfig]) -> list[Node]:
    """A source node of each input."""
    return [Source(name, tuple(Column(*c) for c in describe_columns(config)), "ts") for name, config in inputs.items()]


def plan_job(
    nodes: tuple[Node, ...], inputs: dict[str, StreamConfig], run_dir: Path, sink: str = "parquet", /, **sections: Any
) -> Job:
    """A run of these nodes and the sources of the inputs. sections: of the configuration."""
    plan = LogicalPlan((*sources_of(inputs), *nodes))
    given = {"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": sink, "ids": False}}
    config = config_from_plain(given | {"inputs": [to_plain(config) for config in inputs.values()]} | sections)
    run_dir.mkdir(parents=True, exist_ok=True)
    target = None if sink == "count" else run_dir / "results"
    return Job(config, target, True, run_dir, None, "plan", plan=plan_to_plain(plan))


def report_of(job: Job) -> dict[str, Any]:
    assert job.run_dir is not None
    report: dict[str, Any] = json.loads((job.run_dir / "run.json").read_text())
    return report


def rows_of(job: Job) -> Counter[tuple[Any, ...]]:
    """The rows of the result files."""
    assert job.target is not None
    table = pa.concat_tables(pq.read_table(path) for path in sorted(job.target.glob("*.parquet")))
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def duckdb_rows(inputs: dict[str, StreamConfig], query: str) -> Counter[tuple[Any, ...]]:
    """The rows of a query over tables with the names of the inputs."""
    with duckdb.connect() as connection:
        for name, config in inputs.items():
            connection.execute(f"create view {name} as select * from read_parquet('{config.path}')")
        return Counter(connection.execute(in_duckdb(query)).fetchall())


if __name__ == "__main__":
    sys.exit(launch(Job.from_json(Path(sys.argv[1]).read_text()), int(sys.argv[2]), debug=False))

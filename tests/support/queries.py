"""Queries over files, as a job and in process.

What: `query_job`, `run_query`.
Why: tests run many queries, and a command's start takes longer than a small query.
Stays out: inputs and oracles (`tests.support.plan_runs`), the command (`tests.frontends`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.frontends.sql.planner import plan_query
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import rows_of


def query_job(text: str, inputs: Mapping[str, StreamConfig], folder: Path, sink: str = "parquet", /, **sections: Any) -> Job:
    """A run of a query in a folder of its own. sections: of the configuration."""
    query = plan_query(text, {name: described(config, "") for name, config in inputs.items()})
    plain = {"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": sink, "ids": False}}
    plain |= {"cluster": {"epoch_tuples": 150, "partition_count": 7}}
    folder.mkdir(parents=True, exist_ok=True)
    target = None if sink == "count" else folder / "results"
    config = config_from_plain(plain | {"inputs": [to_plain(inputs[name]) for name in query.tables]} | sections)
    return Job(config, target, True, folder, None, "query", plan=plan_to_plain(query.plan))


def run_query(
    text: str, inputs: Mapping[str, StreamConfig], folder: Path, /, **sections: Any
) -> tuple[Counter[tuple[Any, ...]], dict[str, Any]]:
    """The rows of a query, and run.json."""
    job = query_job(text, inputs, folder, **sections)
    report = run_local(job, False, 2)
    return rows_of(job), report

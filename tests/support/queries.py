"""Queries over files, as a job and in process.

What: `query_job`, `run_query`; `checked_query`, `check_on_ranks`, against DuckDB.
Why: tests run many queries, and a command's start takes longer than a small query.
Stays out: inputs and oracles (`tests.support.plan_runs`), the command (`tests.frontends`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.duckdb.verify import verify
from swjoin.frontends.sql.planner import QueryText, plan_queries
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.ranks import run_jobs


def query_job(text: str, inputs: Mapping[str, StreamConfig], folder: Path, sink: str = "parquet", /, **sections: Any) -> Job:
    """A run of a query in a folder of its own. sections: of the configuration."""
    routing = sections.get("cluster", {}).get("routing", "auto")
    tables = {name: described(config, "") for name, config in inputs.items()}
    query = plan_queries({"": QueryText(text, {})}, tables, routing)
    plain = {"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": sink, "ids": False}}
    plain |= {"cluster": {"epoch_tuples": 150, "partition_count": 7}}
    folder.mkdir(parents=True, exist_ok=True)
    target = None if sink == "count" else folder / "results"
    config = config_from_plain(plain | {"inputs": [to_plain(inputs[name]) for name in query.tables]} | sections)
    return Job(config, target, True, folder, None, "query", plan=plan_to_plain(query.plan))


def checked_query(text: str, inputs: Mapping[str, StreamConfig], folder: Path) -> Counter[tuple[Any, ...]]:
    """The rows of a query, which are DuckDB's, of its text and of its plan."""
    rows, report = run_query(text, inputs, folder)
    assert rows == duckdb_rows(dict(inputs), text), text
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert verify(folder).equal
    return rows


def check_on_ranks(texts: Sequence[str], inputs: Mapping[str, StreamConfig], folder: Path, ranks: int) -> None:
    """That the rows of queries are DuckDB's on so many ranks, with two gateways and small epochs."""
    cluster = {"epoch_tuples": 40, "gateways": 2, "partition_count": 13}
    jobs = [query_job(text, inputs, folder / str(i), cluster=cluster) for i, text in enumerate(texts)]
    run_jobs(ranks, jobs, folder)
    for text, job in zip(texts, jobs, strict=True):
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(dict(inputs), text), text


def run_query(
    text: str, inputs: Mapping[str, StreamConfig], folder: Path, /, **sections: Any
) -> tuple[Counter[tuple[Any, ...]], dict[str, Any]]:
    """The rows of a query, and run.json."""
    job = query_job(text, inputs, folder, **sections)
    report = run_local(job, False, 2)
    return rows_of(job), report

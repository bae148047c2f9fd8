"""Nexmark's queries: rows and digests against DuckDB, in process and on ranks; the generator makes any part by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.workloads import nexmark
from swjoin.config.connectors import StreamConfig
from swjoin.connectors.generator import nexmark as generator
from swjoin.duckdb.verify import verify
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.queries import query_job, run_query
from tests.support.ranks import run_jobs

EVENTS = 30_000
Inputs = dict[str, StreamConfig]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generator, "GAP_US", 3_000)  # a minute and a half: nine windows of 10 seconds
        paths = nexmark.write(tmp_path_factory.mktemp("nexmark"), EVENTS, part=7_000)
    return {name: StreamConfig(str(path), (), nexmark.TIMES[name]) for name, path in paths.items()}


@pytest.mark.parametrize("name", nexmark.QUERIES)
def test_rows_are_those_of_duckdb(name: str, inputs: Inputs, tmp_path: Path) -> None:
    text = nexmark.QUERIES[name].read_text()
    rows, report = run_query(text, inputs, tmp_path, cluster={"epoch_tuples": 5_000})
    assert rows == duckdb_rows(inputs, text.replace("0.908", "0.908::DOUBLE"))  # there a literal with a point is a decimal
    assert len(rows) > (name != "q15") * 2
    assert report["ledger"] == {"balanced": True, "complaints": []}
    if name in ("q5", "q6", "q7", "q13", "q17"):
        assert verify(tmp_path).equal


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_the_same_digests(inputs: Inputs, tmp_path: Path) -> None:
    texts = {name: nexmark.QUERIES[name].read_text() for name in ("q3", "q5", "q7", "q8", "q13", "q17", "q20")}
    cluster = {"epoch_tuples": 5_000, "gateways": 2, "sinks": 2}
    jobs = {name: query_job(text, inputs, tmp_path / name, cluster=cluster) for name, text in texts.items()}
    run_jobs(5, list(jobs.values()), tmp_path)
    for name, job in jobs.items():
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(inputs, texts[name])


def test_any_part_is_made_by_itself() -> None:
    whole = generator.tables(0, 3_000)
    for name, table in whole.items():
        parts = [generator.tables(first, min(700, 3_000 - first))[name] for first in range(0, 3_000, 700)]
        assert pa.concat_tables(parts).combine_chunks() == table.combine_chunks()
        assert table.num_rows == {"person": 60, "auction": 180, "bid": 2_760}[name]
    assert generator.tables(0, 100, seed=2)["bid"] != generator.tables(0, 100)["bid"]
    bids = generator.tables(0, 100_000)["bid"]["auction"].to_pylist()
    hot = sum(count for auction, count in Counter(bids).items() if (auction - generator.FIRST_ID) % 100 == 0)
    assert 0.98 < hot / len(bids) < 1.0

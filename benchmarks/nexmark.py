"""Nexmark: the queries of `examples/nexmark`, from Parquet to a count and a digest, beside DuckDB over the whole input.

What: a line per query: rows in and out, million events/s of both (median, range, turn by turn), and their ratio; then the
geometric mean. Every answer is compared, row by row hashed, with DuckDB's. And on one core: million rows/s of a filter and a
projection, and of the operator of aggregates alone, for a tumbling count and for sliding ones.
Why: joins are one operator; a query has filters, windows and several stages.
Stays out: the input (`benchmarks.workloads.nexmark`), engines of streams (`benchmarks.peers.nexmark`, which `--peers` runs).

Usage: python -m benchmarks.nexmark [--events N] [--repeat N] [--only Q ...] [--slaves N] [--peers flink ...] [--tiny]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp, parse_one

from benchmarks import parse
from benchmarks.duckdb_text import in_duckdb
from benchmarks.run import turns
from benchmarks.workloads import nexmark
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.join_semantics import format_digest
from swjoin.core.row_digests import row_hashes
from swjoin.core.time_windows import TimeWindows
from swjoin.expressions.chain import Projection, Selection
from swjoin.frontends.sql.planner import plan_query
from swjoin.frontends.sql.tables import described
from swjoin.frontends.sql.windows import Dialect, plain_arguments
from swjoin.monitor.process_settings import join_settings
from swjoin.operators.aggregation import Aggregation
from swjoin.operators.keyed_operator import Limits
from swjoin.plan.aggregates import Aggregate, AggregateCall, aggregate_columns_of, aggregate_types
from swjoin.plan.bound import bound
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.in_process import run_local

PART = 16_384  # rows of a delivery to the operator
PEERS = ("flink", "spark", "bytewax", "pathway")
RATE_US = 10  # between two rows of the operator's input


def connected(paths: dict[str, Path]) -> Any:
    db = duckdb.connect()
    for name, path in paths.items():
        db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
    return db


def _theirs(db: Any, text: str) -> float:
    """Seconds for the count and the sum of the rows' hashes, DuckDB's own."""
    started = time.perf_counter()
    db.execute(f"SELECT count(*), sum(hash(q)) FROM ({in_duckdb(text)}) q").fetchall()
    return time.perf_counter() - started


def _integers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sums of integers, which DuckDB has as decimals, as integers."""
    for at, column in enumerate(batch.columns):
        if pa.types.is_decimal(column.type):
            batch = batch.set_column(at, batch.schema.names[at], column.cast(pa.int64()))
    return batch


def answer_of(batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """Count and digest of rows."""
    count, digest = 0, 0
    for batch in batches:
        count += batch.num_rows
        digest += int(np.add.reduce(row_hashes(batch), dtype=np.uint64))
    return count, format_digest(digest & (1 << 64) - 1)


def duckdb_answer(db: Any, text: str) -> tuple[tuple[int, str], pa.Schema]:
    """Count and digest of DuckDB's rows; their columns."""
    reader = db.sql(in_duckdb(text)).to_arrow_reader(1 << 20)
    columns = _integers(pa.RecordBatch.from_pylist([], reader.schema)).schema
    return answer_of(map(_integers, reader)), columns


def swjoin_run(text: str, paths: dict[str, Path], folder: Path, slaves: int) -> tuple[float, tuple[int, str]]:
    """Seconds of a whole run in this process, and its count and digest. RunFailed when its ledger does not balance."""
    inputs = {name: StreamConfig(str(path), (), nexmark.TIMES[name]) for name, path in paths.items()}
    query = plan_query(text, {name: described(config, "") for name, config in inputs.items()})
    streams = [to_plain(inputs[name]) for name in query.tables]
    config = config_from_plain({"join": {"lower_us": 0, "upper_us": 0}, "inputs": streams, "sink": {"kind": "count"}})
    job = Job(config, None, True, folder, None, "bench", plan=plan_to_plain(query.plan))
    started = time.perf_counter()
    report = run_local(job, False, slaves)
    seconds = time.perf_counter() - started
    return seconds, (report["results"]["count"], report["results"]["digest"])


def input_rows(text: str, counts: dict[str, int]) -> int:
    """Rows of the tables that a query names."""
    tree = parse_one(text, read=Dialect)
    windows = [plain_arguments(table.this)[0] for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Anonymous)]
    named = {table.name for table in tree.find_all(exp.Table)} | {source.name for source in windows}
    return sum(count for name, count in counts.items() if name in named)


def ranged(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def queries(folder: Path, events: int, repeats: int, only: list[str], slaves: int) -> None:
    paths = nexmark.write(folder, events)
    db = connected(paths)
    counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in paths}
    print(f"\n## Nexmark, {events:,} events, {slaves} slaves in one process, DuckDB with as many threads\n")
    db.execute(f"SET threads = {slaves}")
    print("| query | rows in | rows out | million rows/s | DuckDB | over DuckDB |\n|---|---|---|---|---|---|")
    ratios = []
    for name in only or list(nexmark.QUERIES):
        text = nexmark.QUERIES[name].read_text()
        (wanted, _), came = duckdb_answer(db, text), input_rows(text, counts)
        mine: list[float] = []
        theirs: list[float] = []
        for turn in range(repeats + 1):  # the first one warms caches and compiles kernels
            seconds, found = swjoin_run(text, paths, folder / f"{name} {turn}", slaves)
            if found != wanted:
                raise SystemExit(f"{name}: wrong answer: {found}, DuckDB has {wanted}")
            other = _theirs(db, text)
            if turn:
                mine.append(came / seconds / 1e6)
                theirs.append(came / other / 1e6)
        each = [a / b for a, b in zip(mine, theirs, strict=True)]
        ratios.append(statistics.median(each))
        cells = ranged(mine), ranged(theirs), ranged(each)
        print(f"| {name} | {came:,} | {wanted[0]:,} | {' | '.join(cells)} |", flush=True)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\ngeometric mean over DuckDB: {mean:.3f} (floor 0.5, goal 1.0); worst: {min(ratios):.3f}")


# ---------------------------------------------------------------- the operators alone


def _steps(rows: int) -> Callable[[], float]:
    """Million rows/s of a filter that half of the rows pass, and a projection after it."""
    value = np.random.default_rng(1).integers(0, 1_000, rows)
    types = [("k", "int64"), ("v", "int64")]
    nodes = bound("v >= 500", types, "filter"), bound("0.5 * v", types, "projection")
    keep = Selection("filter", nodes[0])
    compute = Projection("projection", (("k", bound("k", types, ""), pa.int64()), ("half", nodes[1], pa.float64())))
    batches = []
    for at in range(0, rows, BATCH_ROWS):
        part = value[at : at + BATCH_ROWS]
        index, zeros = np.arange(at, at + len(part)), np.zeros(len(part), np.int64)
        columns = Columns(pa.record_batch({"k": index, "v": part}))
        batches.append(TupleBatch(zeros, index, index.astype(np.uint64), zeros, None, columns))

    def measure() -> float:
        started = time.perf_counter()
        out = [compute(keep(batch)) for batch in batches]
        seconds = time.perf_counter() - started
        found = sum(pa.compute.sum(batch.columns.column("half")).as_py() for batch in out if batch.columns is not None)
        if 2 * found != value[value >= 500].sum():
            raise SystemExit(f"the projection adds up to {found}")
        return rows / seconds / 1e6

    return measure


def _operator(keys: int, windows: TimeWindows, rows: int) -> Callable[[], float]:
    """Million rows/s of a count by an integer key."""
    random = np.random.default_rng(1)
    key, ts = random.integers(0, keys, rows), np.arange(rows) * RATE_US
    node = Aggregate("count", "rows", ("k",), windows, (AggregateCall("n", "count"),))
    types = {"k": "int64", "ts": "timestamp[us]"}
    columns = aggregate_columns_of(node, types, dict(aggregate_types(node, types, "ts")))
    group, nothing = np.zeros(1, np.int64), TupleBatch.empty()
    deliveries = []
    for number, at in enumerate(range(0, rows, PART)):
        part = slice(at, at + PART)
        n = len(ts[part])
        batch = pa.record_batch({"k": key[part]})
        ids, zeros = np.arange(at, at + n).astype(np.uint64), np.zeros(n, np.int64)
        tuples = TupleBatch(key[part], ts[part], ids, zeros, None, Columns(batch))
        last = at + PART >= rows
        times = (END_OF_TIME_US if last else int(ts[part][-1]), END_OF_TIME_US)
        labels = (0, SlaveId(0), EpochIndex(number), *times)
        deliveries.append(Delivery(*labels, group, np.array([n]), group, tuples, nothing, last))

    def measure() -> float:
        operator = Aggregation(windows, columns, columns.new_keys(), Limits(1 << 20, 8 << 30), "bench")
        counted = 0
        started = time.perf_counter()
        for delivery in deliveries:
            work = operator.open(delivery)
            while not (step := operator.step(work, 0, PART)).done:
                if step.pairs is not None and step.pairs.columns is not None:
                    counted += pa.compute.sum(step.pairs.columns.column("n")).as_py()
        seconds = time.perf_counter() - started
        per_row = windows.size_us // windows.slide_us
        if counted != rows * per_row:  # each row is in so many windows
            raise SystemExit(f"counts add up to {counted}, not to {rows * per_row}")
        return rows / seconds / 1e6

    return measure


def operator(repeats: int, rows: int) -> None:
    second = 1_000_000
    cases = {
        "filter and projection (floor 40)": _steps(rows),
        "tumbling count, 10^4 keys (floor 60, goal 120)": _operator(10_000, TimeWindows(10 * second, 10 * second), rows),
        "tumbling count, 10^6 keys (floor 20, goal 50)": _operator(1_000_000, TimeWindows(10 * second, 10 * second), rows),
        "tumbling count, 10^3 keys": _operator(1_000, TimeWindows(10 * second, 10 * second), rows),
        "sliding, 10^3 keys, 5 windows a row (floor 0.7 of tumbling)": _operator(
            1_000, TimeWindows(10 * second, 2 * second), rows
        ),
        "sliding, 10^3 keys, 600 windows a row (floor 0.5 of tumbling)": _operator(
            1_000, TimeWindows(6 * second, second // 100), rows
        ),
    }
    with join_settings():  # as every run has them
        figures = turns(cases, repeats)
    print(f"\n## Operators alone, one core, {rows:,} rows, {1_000_000 // RATE_US:,} a second of event time\n")
    print("| what | million rows/s |\n|---|---|")
    for name, values in figures.items():
        print(f"| {name} | {ranged(values, 1)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, help="5,000,000; beside peers 500,000")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(nexmark.QUERIES), default=[])
    parser.add_argument("--slaves", type=int, default=2)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[], help="beside these, and nothing else is measured")
    args = parse(parser, events=30_000, repeat=1)
    with tempfile.TemporaryDirectory() as folder:
        if args.peers:
            from benchmarks.peers.nexmark import compare  # which needs this module

            heap = "1g" if args.tiny else "6g"
            compare(Path(folder), args.events or 500_000, args.repeat, args.only, args.slaves, args.peers, heap)
            return
        queries(Path(folder), args.events or 5_000_000, args.repeat, args.only, args.slaves)
    operator(args.repeat, 100_000 if args.tiny else 4_000_000)


if __name__ == "__main__":
    main()

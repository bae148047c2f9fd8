"""BiStream's claims about memory, bandwidth, windows and speed of its partitionings, on TPC-H data.

What: `memory`, rows that all units hold, by the number of units; `bandwidth`, bytes to units; `windows`, rows held over time,
by the length of the window; `resident`, memory of processes over that of rows; `speed`, rates of runs on slaves that are
slowed down. Each prints a table, and a verdict by a rule that is its docstring, written before it was measured.
Why: the paper's evaluation (SIGMOD 2015, section 5) is about ratios between partitionings, which do not depend on its machines.
Stays out: scaling while a run goes on (`benchmarks.adaptation`, units), aggregates of pairs (`benchmarks.query_costs`, views),
hot keys (`benchmarks.routings`).

Names are the paper's: JMp is a matrix of sqrt(p) x sqrt(p) cells, JBp a biclique of p/2 + p/2 units at random, JBp-CRy the
same with y subgroups of each relation. Q5 and Q7 are (region x nation x supplier) x lineitem and (supplier x nation) x
lineitem by suppkey, the small side repeated until both have as many rows, and so, as keys, times and ids alone are stored,
bytes; Band is lineitem with itself, |L1.orderkey - L2.orderkey| <= 1, of L1 by truck with a quantity above 48, and L2 without
instructions for shipping. Tables are dbgen's (`tpchgen-cli`, in an environment of its own). Runs are in this process, on 4
slaves; all answers of a query must be alike, and have as many pairs as DuckDB finds.

Usage: python -m benchmarks.bistream [memory | bandwidth | windows | resident | speed] [--rows N] [--repeat N] [--tiny]
rows: of lineitem that are read.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT, parse
from benchmarks.bands import expected
from benchmarks.nexmark import ranged
from benchmarks.peers.run import environment
from benchmarks.run import turns
from benchmarks.workloads import from_columns
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.frontends.sql.planner import plan_query
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.in_process import run_local

SLAVES, UNITS = 4, (4, 16, 36, 64)
LINES_OF_SCALE = 6_000_000  # of lineitem, about, at scale factor 1
SPAN_S, EPOCH_ROWS = 40, 32_768  # of the times of the rows; of an epoch where speed is measured
HOLDS, SHAPE, FAILS = "holds", "holds in shape", "does not hold"
LINE = "l_orderkey AS o, l_extendedprice::DOUBLE AS price, l_discount::DOUBLE AS discount"
SIDES = {  # of a query: left rows, which are repeated, and right ones
    "Q5": (
        "SELECT s_suppkey AS k, n_name, r_name FROM supplier JOIN nation ON n_nationkey = s_nationkey "
        "JOIN region ON r_regionkey = n_regionkey",
        f"SELECT l_suppkey AS k, {LINE} FROM lineitem",
    ),
    "Q7": (
        "SELECT s_suppkey AS k, n_name FROM supplier JOIN nation ON n_nationkey = s_nationkey",
        f"SELECT l_suppkey AS k, {LINE}, l_shipdate FROM lineitem",
    ),
    "Band": (
        "SELECT l_orderkey AS o, l_quantity::DOUBLE AS quantity FROM lineitem WHERE l_shipmode = 'TRUCK' AND l_quantity > 48",
        "SELECT l_orderkey AS o, l_partkey AS part FROM lineitem WHERE l_shipinstruct = 'NONE'",
    ),
}
CONDITIONS = {"Q5": "a.k = b.k", "Q7": "a.k = b.k", "Band": "b.o BETWEEN a.o - 1 AND a.o + 1"}


def partitioning(name: str) -> str:
    """The routing of a partitioning by its name in the paper."""
    kind, _, subgroups = name.partition("-CR")
    units = int(kind[2:])
    if kind.startswith("JM"):
        return f"matrix:{math.isqrt(units)},{math.isqrt(units)}"
    half = units // 2
    return f"contrand:{half},{half},{subgroups},{subgroups}" if subgroups else f"random:{half},{half}"


@dataclass
class Input:
    """A query's streams. rows: of both. answers: count and digest of the rows that came out, by window."""

    query: str
    streams: dict[str, StreamConfig]
    rows: int
    answers: dict[int, tuple[int, str]] = field(default_factory=dict)


def tables(folder: Path, rows: int) -> duckdb.DuckDBPyConnection:
    """TPC-H with about so many rows of lineitem."""
    program = environment("tpch", ROOT / "runs" / "peers").parent / "tpchgen-cli"
    words = ["parquet", "-s", str(max(0.001, rows / LINES_OF_SCALE)), "--tables=region,nation,supplier,lineitem"]
    subprocess.run([str(program), *words, f"--output-dir={folder}"], check=True, stdout=subprocess.DEVNULL)
    database = duckdb.connect()
    for name in ("region", "nation", "supplier", "lineitem"):
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{folder}/{name}.parquet')")
    return database


def streams(database: duckdb.DuckDBPyConnection, query: str, folder: Path) -> Input:
    """Both streams, over the same time and with as many rows; those on the left are repeated, or left out."""
    left, right = (database.sql(text).to_arrow_table() for text in SIDES[query])
    repeated = left.take(pa.array(np.random.default_rng(1).permutation(np.arange(len(right)) % len(left))))
    found = {}
    for name, table in (("a", repeated), ("b", right)):
        times = np.linspace(0, SPAN_S * 1e6, len(table), endpoint=False).astype(np.int64)
        path = folder / f"{query}-{name}.parquet"
        pq.write_table(table.append_column("ts", pa.array(times, pa.timestamp("us"))), path)
        found[name] = StreamConfig(str(path), (), "ts")
    return Input(query, found, len(repeated) + len(right))


def run(
    of: Input, routing: str, window_ms: int, folder: Path, epochs: int = 64, **settings: Any
) -> tuple[dict[str, Any], Path]:
    """The report of a run, and its folder. SystemExit when its answer is not that of the runs before."""
    window = f"INTERVAL '{window_ms}' MILLISECOND"
    text = f"SELECT a.ts FROM a JOIN b ON {CONDITIONS[of.query]} AND b.ts BETWEEN a.ts - {window} AND a.ts + {window}"
    query = plan_query(text, {name: described(stream, "") for name, stream in of.streams.items()}, None, routing)
    plain: dict[str, Any] = {"join": {"lower_us": 0, "upper_us": 0}, "inputs": [to_plain(of.streams[n]) for n in query.tables]}
    plain |= {"sink": {"kind": "count", "ids": False}, **settings}
    epoch_us = SPAN_S * 1_000_000 // epochs
    plain["cluster"] = {"partition_count": max(UNITS), "routing": routing, "distribution_epoch_us": epoch_us}
    where = Path(tempfile.mkdtemp(dir=folder)) / "run"
    report = run_local(
        Job(config_from_plain(plain), None, True, where, None, "bench", plan=plan_to_plain(query.plan)), False, SLAVES
    )
    answer = report["results"]["count"], report["results"]["digest"]
    if window_ms not in of.answers and answer[0] != (wanted := pairs_of(of, window_ms)):
        raise SystemExit(f"{of.query} by {routing}: {answer[0]:,} pairs, not {wanted:,}")
    if of.answers.setdefault(window_ms, answer) != answer or not report["ledger"]["balanced"]:
        raise SystemExit(f"{of.query} by {routing}: {answer}, not {of.answers[window_ms]}")
    return report, where


def pairs_of(of: Input, window_ms: int) -> int:
    """How many pairs there are, by DuckDB, for which a band is an equality with one of three values."""
    a, b = (f"read_parquet('{of.streams[name].path}')" for name in "ab")
    near = f"b.ts BETWEEN a.ts - INTERVAL '{window_ms}' MILLISECOND AND a.ts + INTERVAL '{window_ms}' MILLISECOND"
    condition = CONDITIONS[of.query]
    if of.query == "Band":
        a, condition = f"(SELECT *, unnest([o - 1, o, o + 1]) AS near FROM {a})", "a.near = b.o"
    (count,) = duckdb.execute(f"SELECT count(*) FROM {a} a JOIN {b} b ON {condition} AND {near}").fetchone() or (0,)
    return int(count)


def verdict(claims: str, found: str, *, holds: bool, shape: bool) -> None:
    print(f"\nclaims {claims}: {HOLDS if holds else SHAPE if shape else FAILS}; {found}")


# ---------------------------------------------------------------- memory


def memory(inputs: list[Input], folder: Path) -> None:
    """Claims 1-3, 19-22, 32. Nothing expires. Largest volume, relative: units / (rows that are held / rows read), where the
    fullest slave counts. Holds: for each query and number of units p JB over JM is sqrt(p) within 10 %, and the volume of JB
    grows as p within 10 %; in shape: JB is above JM for each p, and their ratio grows with p. Likewise for subgroups."""
    print("\n### Memory: largest volume by units, relative to JB4 of the same query\n")
    print("| query | units | JM | JB | JB-CR2 | JB over JM | sqrt(p) |\n|---|---|---|---|---|---|---|")
    off, growth, ratios = [], [], []
    for of in inputs:
        base, by_units = 0.0, []
        for units in UNITS:
            names = (f"JM{units}", f"JB{units}", f"JB{units}-CR2")
            volumes = []
            for name in names:
                report, _ = run(of, partitioning(name), 2_000 * SPAN_S, folder)
                volumes.append(units * of.rows / (SLAVES * max(report["stages"][0]["peak_window_tuples"])))
            base = base or volumes[1]
            ratio = volumes[1] / volumes[0]
            by_units.append(ratio)
            off += [ratio / math.sqrt(units) - 1, volumes[2] / volumes[0] / math.sqrt(units) - 1]
            growth.append(volumes[1] / base / (units / UNITS[0]) - 1)
            shown = " | ".join(f"{volume / base:.2f}" for volume in volumes)
            print(f"| {of.query} | {units} | {shown} | {ratio:.2f} | {math.sqrt(units):.0f} |", flush=True)
        ratios.append(by_units)
    most = max(map(abs, off))
    verdict(
        "1-3, 19-22, 32",
        f"JB over JM is within {most:.0%} of sqrt(p), the volume of JB within {max(map(abs, growth)):.0%} of linear",
        holds=most <= 0.1 and max(map(abs, growth)) <= 0.1,
        shape=all(of[0] > 1 and of == sorted(of) for of in ratios),
    )


# ---------------------------------------------------------------- bandwidth


def bandwidth(inputs: list[Input], folder: Path) -> None:
    """Claims 23-26. Bytes that gateways send to units, headers among them, per row read; 4 partitions of each relation. Holds:
    JB8 : JM16 : CR2 : CR4 is 5 : 4 : 3 : 2 within 5 % for each query; in shape: the order is this one."""
    names, wanted = ("JB8", "JM16", "JB8-CR2", "JB8-CR4"), (5, 4, 3, 2)
    print(f"\n### Bandwidth: bytes per row read\n\n| query | {' | '.join(names)} | ratio |\n|---|---|---|---|---|---|")
    off, ordered = [], []
    for of in inputs:
        found = []
        for name in names:
            report, _ = run(of, partitioning(name), 2_000, folder, 8)
            found.append(sum(edge["bytes"] for edge in report["edges"] if edge["to"] != "sink") / of.rows)
        unit = sum(found) / sum(wanted)
        off += [each / unit / of_wanted - 1 for each, of_wanted in zip(found, wanted, strict=True)]
        ordered.append(found == sorted(found, reverse=True))
        ratio = " : ".join(f"{each / unit:.2f}" for each in found)
        print(f"| {of.query} | {' | '.join(f'{each:.0f}' for each in found)} | {ratio} |", flush=True)
    most = max(map(abs, off))
    verdict("23-26", f"within {most:.1%} of 5 : 4 : 3 : 2", holds=most <= 0.05, shape=all(ordered))


# ---------------------------------------------------------------- windows


def windows(inputs: list[Input], folder: Path) -> None:
    """Claims 4-6. JB16, Q5; windows of 3, 5 and 8 of 40 s, for the paper's minutes. Holds: once the window is full, the rows
    held vary by at most 25 % about their mean, and their means are as 3 : 5 : 8 within 10 %; in shape: the second half of that
    time has no more than 1.25 times the rows of the first, and a longer window has more."""
    of = inputs[0]
    print(f"\n### Windows: rows held by JB16, {of.query}\n\n| window (s) | mean | least | most |\n|---|---|---|---|")
    means, ripples, bounded = [], [], []
    for window_s in (3, 5, 8):
        _, where = run(of, partitioning("JB16"), 1_000 * window_s, folder, 10 * SPAN_S)
        rows = pq.read_table(where / "metrics" / "slaves.parquet").to_pydict()
        held: dict[int, int] = {}
        for epoch, tuples in zip(rows["epoch"], rows["window_tuples"], strict=True):
            held[epoch] = held.get(epoch, 0) + tuples
        full = [held[epoch] for epoch in sorted(held)][round(len(held) * (window_s + 2) / SPAN_S) : -1]  # the last one ends all
        means.append(float(np.mean(full)))
        ripples.append(max(max(full) / means[-1] - 1, 1 - min(full) / means[-1]))
        half = len(full) // 2
        bounded.append(max(full[half:]) <= 1.25 * max(full[:half]))
        print(f"| {window_s} | {means[-1]:,.0f} | {min(full):,} | {max(full):,} |", flush=True)
    off = max(abs(mean / means[0] / (window_s / 3) - 1) for mean, window_s in zip(means, (3, 5, 8), strict=True))
    verdict(
        "4-6",
        f"bounded, {max(ripples):.0%} about the mean; means within {off:.0%} of 3 : 5 : 8",
        holds=max(ripples) <= 0.25 and off <= 0.1,
        shape=all(bounded) and means == sorted(means),
    )


# ---------------------------------------------------------------- resident memory


def resident(folder: Path, rows: int) -> None:
    """No claim of the paper: resident bytes of a slave's process over those of the rows that it stores, 64 each, of so many
    rows of each stream; |a.v - b.v| <= 5 of values below 10^7, payload stored, nothing expires. Ranks of MPI: 2 slaves."""
    inputs = {}
    for seed, name in enumerate("ab"):
        random = np.random.default_rng(seed)
        times = np.linspace(0, SPAN_S * 1e6, rows, endpoint=False).astype(np.int64)
        table = {"v": random.integers(0, 10_000_000, rows), "ts": pa.array(times, pa.timestamp("us"))}
        path = folder / f"resident-{name}.parquet"
        pq.write_table(pa.table({**table, "more": pa.array([b"0123456789abcdef" * 2] * rows, pa.binary(32))}), path)
        inputs[name] = {"path": str(path), "time": "ts"}
    sql = "SELECT a.v, a.more, b.more AS rest FROM a JOIN b ON abs(a.v - b.v) <= 5 AND b.ts BETWEEN a.ts - {0} AND a.ts + {0}"
    sql = sql.format(f"INTERVAL '{2 * SPAN_S}' SECOND")
    plain = {
        "queries": [{"sql": sql}],
        "inputs": inputs,
        "cluster": {"routing": "random:2,2", "distribution_epoch": "250ms"},
        "sink": {"kind": "count"},
    }
    (folder / "resident.yaml").write_text(json.dumps(plain))
    out = folder / "resident"
    command = [sys.executable, "-m", "swjoin", "run", str(folder / "resident.yaml"), "-n", "4", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200, cwd=ROOT)
    report = json.loads((out / "run.json").read_text())
    sides = [pq.read_table(inputs[name]["path"]) for name in "ab"]
    one, other = (from_columns(side["v"].to_numpy(), side["ts"].cast(pa.int64()).to_numpy()) for side in sides)
    wanted, _ = expected(one, other, 5, 2_000_000 * SPAN_S)
    if report["results"]["count"] != wanted or not report["ledger"]["balanced"]:
        raise SystemExit(f"resident: {report['results']['count']:,} pairs, not {wanted:,}")
    held = report["stages"][0]["peak_window_tuples"]
    found = [report["peak_rss_bytes"][rank] for rank, of in report["ranks"].items() if of["role"].startswith("slave")]
    ratio = max(nbytes / (64 * tuples) for nbytes, tuples in zip(found, held, strict=True))
    print(f"\n### Resident memory over stored rows of 64 bytes: {max(held):,} rows at a slave, {max(found) / 1e6:,.0f} MB\n")
    print(
        f"{ratio:.2f} (floor 1.8, goal 1.4); windows of the run: {max(report['stages'][0]['peak_window_bytes']) / 1e6:,.0f} MB"
    )


# ---------------------------------------------------------------- speed

SETTINGS = ("JM16", "JB8", "JB16", "JB16-CR4", "JB16-CR8")


def speed(inputs: list[Input], folder: Path, repeat: int) -> None:
    """Claims 7-14 as far as everything is in memory. Whole runs on 4 slaves at a tenth of a core, window 2 s, turn by turn,
    medians. Holds: for each query CR8 is the fastest, CR8 > CR4 > JB16, and JB16 < JM16 <= CR8; in shape: CR8 is the fastest of
    all for each query."""
    print(f"\n### Speed: rows/s, {SLAVES} slaves at a tenth of a core\n")
    print(f"| query | {' | '.join(SETTINGS)} |\n|---|---|---|---|---|---|")
    holds, shape = [], []
    for of in inputs:

        def once(name: str, of: Input) -> float:
            epochs = max(1, of.rows // EPOCH_ROWS)  # so that rows count, and not epochs times units
            report, _ = run(of, partitioning(name), 2_000, folder, epochs, nodes={"node_speed": 0.1})
            return float(of.rows / report["join_s"])

        found = turns({name: partial(once, name, of) for name in SETTINGS}, repeat)
        middle = {name: float(np.median(found[name])) for name in SETTINGS}
        fastest = max(middle, key=lambda name: middle[name])
        matrix, _, random, four, eight = (middle[name] for name in SETTINGS)
        holds.append(eight > four > random and random < matrix <= eight and fastest == "JB16-CR8")
        shape.append(fastest == "JB16-CR8")
        print(f"| {of.query} | {' | '.join(ranged(found[name], 0) for name in SETTINGS)} |", flush=True)
    verdict("7-14", f"CR8 is the fastest for {sum(shape)} of {len(shape)} queries", holds=all(holds), shape=all(shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["memory", "bandwidth", "windows", "resident", "speed"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parse(parser, rows=8_000, repeat=1)
    with tempfile.TemporaryDirectory(prefix="swjoin-bench-") as name:
        folder = Path(name)
        database = tables(folder, args.rows)
        inputs = [streams(database, query, folder) for query in SIDES]
        for of in inputs:
            print(f"{of.query}: {of.rows:,} rows")
        for part, measure in (("memory", memory), ("bandwidth", bandwidth), ("windows", windows)):
            if args.part in (None, part):
                measure(inputs, folder)
        if args.part in (None, "resident"):
            resident(folder, 120 * args.rows)
        if args.part in (None, "speed"):
            speed(inputs, folder, args.repeat)


if __name__ == "__main__":
    main()

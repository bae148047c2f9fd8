"""Many queries in one run: windows or constants that differ, beside one query, and beside runs of their own.

Usage: python -m benchmarks.many [windows] [memory] [rows] [constants] [limits] [added] [--repeat 3] [--tiny]
Two streams of 10,000 rows/s each for five minutes, 24 bytes a row, 20,000 keys, a join within up to a second, about one partner
a row; two threads, from Parquet, with a count and a digest of rows' values for every query.
windows: 10,000 queries that differ in windows only, counted, beside the widest alone. memory: 1,000 of them, counted, beside
the widest alone: bytes of windows, and resident memory of a process of its own. rows: 100 of them, of one minute, whose rows
are written, beside 100 runs. constants: 1,000 queries of one stream that ask for a key each, counted, beside one query that has
all their rows. limits: as many that ask for the keys below a limit each, beside the one with the highest. added: 1,000 of
windows in realtime pace over 30 s, with checkpoints; in every second run a query is added half-way; production delay of the
others' pairs with and without.
Turn by turn, the first turn not counted; count and digest of queries are compared with those of their own runs. Planning, which
is printed apart, is not part of a run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks import parse_parts
from swjoin.api.runs import Run
from swjoin.cli.events import read_events
from swjoin.config.job import Job
from swjoin.config.run import SinkConfig
from swjoin.frontends.configured import job_of_query
from swjoin.runtime.in_process import run_local

PARTS = ("windows", "memory", "rows", "constants", "limits", "added")
_WIDEST_US = 1_000_000


class Size(NamedTuple):
    seconds: int
    seconds_of_rows: int
    rate: int
    keys: int
    windows: int
    written: int
    in_memory: int
    seconds_of_added: int


SIZES = {False: Size(300, 60, 10_000, 20_000, 10_000, 100, 1_000, 30), True: Size(3, 3, 500, 50, 40, 4, 10, 5)}
_ADDED = "SELECT a.k, a.v * b.v AS p FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 500 MILLISECOND"


def write_streams(folder: Path, size: Size, seconds: int) -> None:
    rng, rows = np.random.default_rng(1), seconds * size.rate
    for name in "ab":
        ts = pa.array(np.sort(rng.integers(0, seconds * 1_000_000, rows)), pa.timestamp("us"))
        table = pa.table({"k": rng.integers(0, size.keys, rows), "v": rng.integers(0, 1_000, rows), "ts": ts})
        pq.write_table(table, folder / f"{name}.parquet")


def configured(folder: Path, widths_us: Sequence[int]) -> dict[str, Any]:
    """A configuration with a query for each width of the windows."""
    queries = []
    for us in widths_us:
        within = f"b.ts BETWEEN a.ts - INTERVAL {us} MICROSECOND AND a.ts + INTERVAL {us} MICROSECOND"
        sql = f"SELECT a.k, a.v + b.v AS s FROM a JOIN b ON a.k = b.k AND {within}"
        queries.append({"name": f"within_{us}", "sql": sql})
    inputs = {name: {"path": str(folder / f"{name}.parquet"), "time": "ts"} for name in "ab"}
    return {"queries": queries, "inputs": inputs, "sink": {"kind": "count"}}


def widths_of(count: int) -> list[int]:
    """So many, up to the widest."""
    return [_WIDEST_US * (i + 1) // count for i in range(count)]


def planned(folder: Path, widths_us: Sequence[int]) -> Job:
    return job_of_query(configured(folder, widths_us), "here", "bench many")


def ran(job: Job, kind: Literal["count", "parquet"]) -> dict[str, Any]:
    """The report of a run; rows go to a folder that is removed."""
    with tempfile.TemporaryDirectory() as name:
        target = None if kind == "count" else Path(name) / "rows"
        config = replace(job.config, sink=SinkConfig(kind, ids=False))
        return run_local(replace(job, config=config, target=target, directory=target is not None), False, 2)


def answers(report: dict[str, Any]) -> dict[str, tuple[int, str]]:
    return {query["name"]: (query["count"], query["digest"]) for query in report["queries"]}


def check(of_all: dict[str, tuple[int, str]], alone: Sequence[dict[str, Any]]) -> None:
    """SystemExit unless the queries of these runs have the same answers there."""
    for report in alone:
        for name, answer in answers(report).items():
            if of_all[name] != answer:
                raise SystemExit(f"{name}: {of_all[name]} with the others, {answer} alone")


def of_windows(folder: Path, size: Size, repeat: int) -> None:
    widths, start = widths_of(size.windows), time.perf_counter()
    many, planning_s = planned(folder, widths), 0.0
    planning_s = time.perf_counter() - start
    one, ratios = planned(folder, widths[-1:]), []
    for turn in range(repeat + 1):
        of_all, alone = ran(many, "count"), ran(one, "count")
        if turn == 0:
            some = [planned(folder, [widths[i]]) for i in (0, len(widths) // 3)]
            check(answers(of_all), [alone, *(ran(job, "count") for job in some)])
            continue
        ratios.append(alone["join_s"] / of_all["join_s"])
    shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    count = answers(of_all)[f"within_{widths[-1]}"][0]
    print(f"windows: {size.windows:,} queries run at {shown} of the speed of the widest, {count:,} rows of it", flush=True)
    print(f"windows: planned in {planning_s:.1f} s, {1e3 * planning_s / size.windows:.1f} ms a query", flush=True)


def of_rows(folder: Path, size: Size, repeat: int) -> None:
    widths = widths_of(size.written)
    many, each, ratios = planned(folder, widths), [planned(folder, [us]) for us in widths], []
    for turn in range(repeat + 1):
        of_all, alone = ran(many, "parquet"), [ran(job, "parquet") for job in each]
        check(answers(of_all), alone)
        if turn:
            ratios.append(sum(report["wall_s"] for report in alone) / of_all["wall_s"])
    shown = f"{statistics.median(ratios):.1f} x ({min(ratios):.1f} to {max(ratios):.1f})"
    print(f"rows: {size.written} queries in one run, rows written: {shown} the speed of {size.written} runs", flush=True)


def of_memory(folder: Path, size: Size) -> None:
    found = []
    for widths in (widths_of(size.in_memory), [_WIDEST_US]):
        (folder / "run.yaml").write_text(yaml.safe_dump(configured(folder, widths)))
        out = folder / f"of-{len(widths)}"
        words = ["-m", "swjoin", "run", str(folder / "run.yaml"), "--out", str(out), "--threads", "2", "-q"]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        report = json.loads((out / "run.json").read_text())
        windows = sum(sum(stage["peak_window_bytes"]) for stage in report["stages"])
        found.append((windows, sum(report["peak_rss_bytes"].values()), answers(report)[f"within_{_WIDEST_US}"]))
    (windows, resident, answer), (windows_of_one, resident_of_one, answer_of_one) = found
    if answer != answer_of_one:
        raise SystemExit(f"different answers: {answer}, {answer_of_one}")
    ratios = f"{windows / windows_of_one:.2f} x the windows ({windows_of_one / 2**20:.1f} MiB)"
    resident_text = f"{resident / resident_of_one:.2f} x the resident memory ({resident_of_one / 2**20:.0f} MiB)"
    print(f"memory: {size.in_memory:,} queries have {ratios} and {resident_text} of the widest alone", flush=True)


def of_constants(folder: Path, size: Size, repeat: int) -> None:
    """Digests are of values, so that those of the queries add up to that of the one."""
    plain, ratios = configured(folder, ()), []
    each = [{"name": f"of_{key}", "sql": f"SELECT k, v FROM a WHERE k = {key}"} for key in range(size.in_memory)]
    all_of_them = [{"name": "all", "sql": f"SELECT k, v FROM a WHERE k < {size.in_memory}"}]
    many, one = (job_of_query(plain | {"queries": queries}, "here", "bench many") for queries in (each, all_of_them))
    for turn in range(repeat + 1):
        of_each, of_all = ran(many, "count"), ran(one, "count")
        if any(of_each["results"][name] != of_all["results"][name] for name in ("count", "digest")):
            raise SystemExit(f"different rows: {of_each['results']}, {of_all['results']}")
        if turn:
            ratios.append(of_all["join_s"] / of_each["join_s"])
    shown, count = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", of_all["results"]["count"]
    print(f"constants: {size.in_memory:,} queries of a key each run at {shown} of the speed of one, {count:,} rows", flush=True)


def of_limits(folder: Path, size: Size, repeat: int) -> None:
    """Some of the queries have the counts and digests of runs of their own."""
    plain, ratios, step = configured(folder, ()), [], max(1, size.keys // size.in_memory)
    each = [{"name": f"below_{i}", "sql": f"SELECT k, v FROM a WHERE k < {step * i}"} for i in range(1, size.in_memory + 1)]
    many, one = (job_of_query(plain | {"queries": queries}, "here", "bench many") for queries in (each, each[-1:]))
    lone = [
        answers(ran(job_of_query(plain | {"queries": [query]}, "here", "bench many"), "count"))
        for query in each[:: len(each) // 3]
    ]
    for turn in range(repeat + 1):
        of_each, of_last = ran(many, "count"), ran(one, "count")
        found = answers(of_each)
        if any(found[name] != of for alone in (*lone, answers(of_last)) for name, of in alone.items()):
            raise SystemExit("a query has other rows than in a run of its own")
        if turn:
            ratios.append(of_last["join_s"] / of_each["join_s"])
    shown, count = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", of_each["results"]["count"]
    print(
        f"limits: {size.in_memory:,} queries of keys below one run at {shown} of the speed of one, {count:,} rows", flush=True
    )


def of_added(folder: Path, size: Size, repeat: int) -> None:
    """The answers of those that are there are the same, and that of the added one is that of a run over the later rows."""
    plain = configured(folder, widths_of(size.in_memory)) | {"pace": "realtime", "checkpoint": {"interval": "5s"}}
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    of_p99, of_most, pauses, expected = list[float](), list[float](), list[float](), dict[str, tuple[int, str]]()
    for turn in range(repeat):
        delays = []
        for adds in (False, True):
            out = folder / f"added-{turn}-{adds}"
            words = ["-m", "swjoin", "run", str(folder / "run.yaml"), "--out", str(out), "--threads", "2", "-q"]
            with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as run:
                if adds:
                    _wait_for(out / "queries" / "open.json")
                    time.sleep(size.seconds_of_added / 2)
                    from_us = Run(out).query(_ADDED, "added", timeout=None)
                if run.wait():
                    raise SystemExit(f"the run failed: {out}")
            report = json.loads((out / "run.json").read_text())
            delays.append(report["delay_s"])
            if adds:
                _check_added(folder, report, from_us)
                pauses.append(_pause_s(out))
            found = {name: answer for name, answer in answers(report).items() if name != "added"}
            if found != (expected := expected or found):
                raise SystemExit("the queries that were there have other answers")
        quiet, busy = delays
        of_p99.append(busy["p99"] / quiet["p99"])
        of_most.append(busy["max"] / quiet["max"])
    shown = "; ".join(
        f"{name} {statistics.median(found):.2f}{unit} ({min(found):.2f} to {max(found):.2f})"
        for name, unit, found in (("p99", " x", of_p99), ("longest", " x", of_most), ("pause", " s", pauses))
    )
    print(f"added: to {size.in_memory:,} queries, delay of the others over that without: {shown}", flush=True)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def _pause_s(run_dir: Path) -> float:
    (event,) = (event for event in read_events(run_dir) if event.kind == "query_added")
    return event.duration_us / 1e6


def _check_added(folder: Path, report: dict[str, Any], from_us: int) -> None:
    since = f"TIMESTAMP '{datetime(1970, 1, 1) + timedelta(microseconds=from_us)}'"
    text = f"{_ADDED} WHERE a.ts >= {since} AND b.ts >= {since}"
    alone = configured(folder, ()) | {"queries": [{"name": "added", "sql": text}]}
    check(answers(report), [ran(job_of_query(alone, "here", "bench many"), "count")])


def main() -> None:
    args = parse_parts(__doc__, PARTS, repeat=1)
    size, parts = SIZES[args.tiny], args.parts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_streams(folder, size, size.seconds)
        if "windows" in parts:
            of_windows(folder, size, args.repeat)
        if "memory" in parts:
            of_memory(folder, size)
        if "constants" in parts:
            of_constants(folder, size, args.repeat)
        if "limits" in parts:
            of_limits(folder, size, args.repeat)
        if "rows" in parts:
            write_streams(folder, size, size.seconds_of_rows)
            of_rows(folder, size, args.repeat)
        if "added" in parts:
            write_streams(folder, size, size.seconds_of_added)
            of_added(folder, size, args.repeat)


if __name__ == "__main__":
    main()

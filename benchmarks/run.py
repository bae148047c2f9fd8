"""Speed on the reference workload, with the answer checked in every run: `./run.sh bench`.

Measures, five times each and in turn (so that a drifting machine hits all alike): the join module alone, the in-process join
from Parquet to count, and MPI with one slave and with two. Prints a Markdown table of medians with their spread.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import join_module as module
import pyarrow as pa
import pyarrow.parquet as pq

from swjoin.sources.bmodel import payload_bytes

REPEATS = 5
THETA_BYTES = 32 << 10
JOIN = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "--within", "10s", "-o", "count"]
JOIN += ["--partitions", "16"]  # the same on one process and on MPI


def write_streams(folder: Path) -> tuple[list[Path], tuple[int, str], list[Any], int]:
    """The reference streams as Parquet with their 48-byte payload; also as deliveries for the module, and the right answer."""
    workload, window_us = module.WORKLOADS["reference"]
    batches = [module.stream(workload, side) for side in range(2)]
    paths = []
    for side, batch in enumerate(batches):
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(48), len(batch), [None, pa.py_buffer(payload_bytes(batch.id, 1, side, 48).reshape(-1))]
        )
        path = folder / f"{side}.parquet"
        pq.write_table(pa.table({"ts": batch.ts, "key": batch.key, "payload": payload}), path, compression="lz4")
        paths.append(path)
    answer = module.expected(*batches, window_us)
    return paths, answer, module.deliveries(*batches, 650_000, 16), len(batches[0]) + len(batches[1])


def time_module(deliveries: list[Any], answer: tuple[int, str], tuples: int) -> float:
    seconds, _, count, _, digest, _ = module.run(deliveries, 10_000_000, THETA_BYTES)
    check("join module", (count, digest), answer)
    return tuples / seconds


def time_join(paths: list[Path], answer: tuple[int, str], report: Path, more: list[str], one_core: bool) -> float:
    command = [sys.executable, "-m", "swjoin", "join", *map(str, paths), *JOIN, "--report", str(report), *more]
    pin = (lambda: os.sched_setaffinity(0, {0})) if one_core else None
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=pin)
    found = json.loads(report.read_text())
    check(" ".join(more) or "in-process", (found["results"]["count"], found["results"]["digest"]), answer)
    return float(found["input_tuples_per_s"])


def check(name: str, found: tuple[int, str], answer: tuple[int, str]) -> None:
    if found != answer:
        raise SystemExit(f"{name}: wrong answer {found}, expected {answer}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="swjoin-bench-") as name:
        folder = Path(name)
        paths, answer, deliveries, tuples = write_streams(folder)
        report = folder / "report.json"
        cases = {
            "join module alone, one core, count + digest": lambda: time_module(deliveries, answer, tuples),
            "in-process join, Parquet to count, pinned to one core": lambda: time_join(paths, answer, report, [], True),
            "in-process join, Parquet to count, 2 cores": lambda: time_join(paths, answer, report, [], False),
            "MPI, 1 slave (3 ranks), Parquet to count, 2 cores": lambda: time_join(paths, answer, report, ["-n", "3"], False),
            "MPI, 2 slaves (4 ranks), Parquet to count, 2 cores": lambda: time_join(paths, answer, report, ["-n", "4"], False),
        }
        figures: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(REPEATS + 1):
            for label, measure in cases.items():
                value = measure()
                if turn:  # the first turn warms caches
                    figures[label].append(value / 1e6)
        print(f"Reference workload: {tuples:,} tuples of 64 bytes (a count does not read the payload), b = 0.7, W = 10 s,")
        what = f"{answer[0]:,} pairs, digest {answer[1]}, theta {THETA_BYTES >> 10} KB, {os.cpu_count()} cores"
        print(f"30 s of event time, {what}.")
        print("The answer was checked in every run.\n")
        print("| what | M tuples/s, median | lowest to highest |\n|---|---|---|")
        for label, values in figures.items():
            print(f"| {label} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")


if __name__ == "__main__":
    main()

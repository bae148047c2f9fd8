"""Cost of monitoring: the same asap run without a dashboard, with one, and with a client that polls it.

What: the reference workload as Parquet, joined to a count by `swjoin run` in one process (or on -n ranks), in turns: `off`,
`--dashboard`, and `--dashboard` while /status.json is polled twice a second, as the page does. Wall time of the join, CPU
time of all its processes, and the ratios to `off` turn by turn; every answer is checked. Then the CPU time of the watchers
alone.
Why: monitoring must not slow a run down.
Stays out: the speed of the join (`run.py`).

Usage: python -m benchmarks.observing [-n RANKS] [--repeat N] [--seconds S] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import parse
from benchmarks.run import row, say, turns
from benchmarks.workloads import WORKLOADS, expected, sized, stream
from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.config.run import WorkloadConfig
from swjoin.monitor.role_watchers import ADDRESS_FILE, CollectorWatcher, MasterWatcher
from swjoin.runtime.in_process import run_local

MODES = ("off", "dashboard", "dashboard, asked twice a second")


def write(folder: Path, seconds: int, tiny: bool) -> tuple[Path, tuple[int, str], int]:
    """Write the input; returns the configuration, the expected answer, and the tuples of both streams."""
    reference, window_us = WORKLOADS["reference"]
    workload = WorkloadConfig(reference.rate_per_s, seconds * 1_000_000, reference.bias)
    streams = [stream(sized(workload, tiny), side) for side in range(2)]
    plain: dict[str, Any] = {"join": {"within": f"{window_us}us"}, "sink": {"kind": "count"}}
    plain |= {"cluster": {"distribution_epoch": 0}, "module": {"theta": "32KB", "window": "2GB"}}
    for name, batch in zip(("left", "right"), streams, strict=True):
        pq.write_table(pa.table({"key": batch.key, "ts": batch.ts}), folder / f"{name}.parquet", row_group_size=65_536)
        plain[name] = {"path": str(folder / f"{name}.parquet"), "time_unit": "us"}
    config = folder / "config.yaml"
    config.write_text(json.dumps(plain))
    return config, expected(streams[0], streams[1], window_us), sum(map(len, streams))


def run(config: Path, more: list[str], mode: str, answer: tuple[int, str], cpu_s: dict[str, list[float]]) -> float:
    """Seconds of the join; CPU seconds of all its processes go to `cpu_s`."""
    out = config.parent / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "swjoin", "run", str(config), "--out", str(out), *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command + ["--dashboard"] * (mode != "off"), stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.5)
        address = out / ADDRESS_FILE
        if mode == MODES[2] and address.exists():
            try:
                urllib.request.urlopen(f"{address.read_text().strip()}status.json", timeout=5).read()
            except OSError:
                continue  # it has just ended
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads((out / "run.json").read_text())
    found = report["results"]["count"], report["results"]["digest"]
    if process.returncode or found != answer:
        raise SystemExit(f"{mode}: wrong answer {found}, expected {answer}")
    cpu_s[mode].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return float(report["join_s"])


def watchers_cpu_s(config: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds of the watchers in one run in this process, and of all of it."""
    spent = threading.Lock(), [0]

    def timed(kind: type, name: str) -> None:
        inner: Callable[..., Any] = getattr(kind, name)

        def outer(*arguments: Any, **named: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return inner(*arguments, **named)
            finally:
                with spent[0]:
                    spent[1][0] += time.thread_time_ns() - start

        setattr(kind, name, outer)

    for name in ("read", "reported", "delivered", "on_log_event", "sample"):
        timed(MasterWatcher, name)
    for name in ("on_results", "view"):
        timed(CollectorWatcher, name)
    start = time.process_time()
    run_local(Job(load_config(config, ["observe.board=true"]), None, True, folder / "inside", None, "benchmark"), False)
    return spent[1][0] / 1e9, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", dest="ranks", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=300, help="length of the streams, 200,000 tuples each second")
    arguments = parse(parser, repeat=1, seconds=20)
    more = [] if arguments.ranks is None else ["-n", str(arguments.ranks)]
    with tempfile.TemporaryDirectory() as name:
        config, answer, tuples = write(Path(name), arguments.seconds, arguments.tiny)
        cpu_s: dict[str, list[float]] = {mode: [] for mode in MODES}

        def case(mode: str) -> Callable[[], float]:
            return lambda: run(config, more, mode, answer, cpu_s)

        join_s = turns({mode: case(mode) for mode in MODES}, arguments.repeat)
        where = "in one process" if arguments.ranks is None else f"on {arguments.ranks} ranks"
        say(f"\n## Monitored while it runs, {where}, {tuples:,} tuples, {answer[0]:,} pairs\n")
        say("| what | median | lowest to highest | floor | goal |\n|---|---|---|---|---|")
        for what, seconds in (("wall", join_s), ("CPU", {mode: found[1:] for mode, found in cpu_s.items()})):
            for mode in MODES:
                row(f"{what}, {mode}", seconds[mode], "s")
            for mode in MODES[1:]:
                ratios = [a / b for a, b in zip(seconds[mode], seconds["off"], strict=True)]
                row(f"{what}, {mode} / off", ratios, "", goal="1.02" if what == "CPU" else "")
        mine, whole = watchers_cpu_s(config, Path(name))
        cost = f"{mine:.3f} s of {whole:.2f} s, {mine / tuples * 1e9:.2f} ns a tuple"
        say(f"| CPU of the watchers, in one process | {cost} | | | |")


if __name__ == "__main__":
    main()

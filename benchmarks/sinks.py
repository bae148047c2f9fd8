"""Result rows per second over the number of sinks, where sinks are the bottleneck.

What: `python -m benchmarks.sinks`: a join on MPI ranks that writes Parquet with 1, 2 and 4 sinks, each a rank of its own, held
to a sixteenth of a core by the kernel's CPU quota; the numbers in turns, count and digest checked in every run.
Why: one sink writes 120 ns a row whatever the number of slaves; several shall write as many times as much.
Stays out: sinks that are not held: on the 2 threads of this machine more sinks are no faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import parse
from benchmarks.cpu_quota import held
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import sink_role
from tests.tools.processes import LaunchedRun

SLAVES = 2
_LIMIT_S = 600.0


def config_of(sinks: int, seconds: int, rate: int) -> dict[str, Any]:
    return {
        "join": {"within": "1s"},
        "workload": {"rate": rate, "duration": f"{seconds}s", "bias": 0.5, "domain": 10_000, "payload": "16B"},
        "cluster": {"distribution_epoch": "50ms", "sinks": sinks},
        "module": {"window": "1GB"},
        "sink": {"kind": "parquet"},
    }


def run(sinks: int, seconds: int, rate: int, share: int, folder: Path) -> tuple[float, int, str]:
    """Rows per second, count and digest. share: of a core that each sink has, the inverse."""
    out = folder / f"run{time.monotonic_ns()}"
    path = folder / "config.yaml"
    path.write_text(json.dumps(config_of(sinks, seconds, rate)))
    ranks = RankMap.of_width(SLAVES, 1).size + sinks - 1  # the further sinks have ranks of their own
    roles = RankMap(ranks, sinks)
    launched = LaunchedRun([str(path), "-n", str(ranks), "--out", str(out)], folder / "log")
    deadline = time.monotonic() + _LIMIT_S
    while not (out / "results").is_dir() and launched.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    pids = launched.ranks()
    with held([pids[roles.rank_of(sink_role(sink))] for sink in range(sinks)], share):
        code = launched.end(_LIMIT_S)
    if code:
        raise SystemExit(f"{sinks} sinks: exit code {code}: {launched.said()}")
    report = json.loads((out / "run.json").read_text())
    results = report["results"]
    return results["count"] / report["join_s"], results["count"], results["digest"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20, help="length of the streams")
    parser.add_argument("--rate", type=int, default=40_000, help="tuples per second of each stream")
    parser.add_argument("--sinks", type=int, nargs="+", default=[1, 2, 4], help="their numbers, the first one 1")
    parser.add_argument("--share", type=int, default=16, help="of a core that a sink has: the inverse")
    args = parse(parser, repeat=1, seconds=2, rate=5_000, sinks=[1, 2], share=2)
    speeds: dict[int, list[float]] = {sinks: [] for sinks in args.sinks}
    answers = set()
    with TemporaryDirectory(prefix="swjoin-bench-") as folder:
        for _ in range(args.repeat):
            for sinks, found in speeds.items():
                speed, count, digest = run(sinks, args.seconds, args.rate, args.share, Path(folder))
                found.append(speed)
                answers.add((count, digest))
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    print(f"{next(iter(answers))[0]:,} rows of Parquet, {SLAVES} slaves; every sink held to 1/{args.share} of a core")
    print("| sinks | M rows/s | over one | range |\n|---|---|---|---|")
    for sinks, found in speeds.items():
        ratios = [speed / one for speed, one in zip(found, speeds[1], strict=True)]
        median, ratio = statistics.median(found) / 1e6, statistics.median(ratios)
        print(f"| {sinks} | {median:.2f} | {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


if __name__ == "__main__":
    main()

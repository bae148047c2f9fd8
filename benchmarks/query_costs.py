"""What a query pays for being exact, and for having stages: merging, ledgers, digests; views; delays on ranks; recovery.

What: `overheads`: Nexmark's queries as they are over the same without ledgers of edges, without digests of rows, and with
best-effort merging, whole runs in this process, turn by turn. `views`: aggregates of a join's pairs, a view each second, over
the pairs alone, and over the same where pairs travel to the aggregate; the bytes that travel over those of pairs. `delay`:
three joins in a row on MPI ranks in realtime pace, from a row's arrival to the sink, with standing partition-groups and with
one move a second. `recovery`: five stages on ranks with checkpoints, of which a rank is killed.
Why: each figure is the price of one promise. Answers are checked, where they can be right: best-effort merging loses rows.
Stays out: throughput (`benchmarks.nexmark`, `benchmarks.stages`), first use (`benchmarks.small`).

Usage: python -m benchmarks.query_costs [overheads | views | delay | recovery] [--events N] [--rate N] [--seconds N]
[--repeat N] [--tiny]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks import ROOT, parse
from benchmarks.baselines.best_effort_merger import BestEffortMerger
from benchmarks.nexmark import connected, duckdb_answer, swjoin_run
from benchmarks.run import turns
from benchmarks.workloads import nexmark
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import gateway_role, slave_role
from swjoin.config.loader import config_from_plain
from tests.tools.processes import LaunchedRun

SLAVES = 2
MEASURED = ("q1", "q5", "q20")  # every row comes out; two aggregates in a row; a join of wide rows
PLAYED = ("overheads", "views", "delay", "recovery")


# ---------------------------------------------------------------- promises, with and without


@contextmanager
def without_ledgers() -> Iterator[None]:
    """No rows are counted on edges."""
    nothing = mock.Mock(return_value=None)
    names = ("cluster.exchange.count", "cluster.slave.stage.count", "runtime.in_process.check_ledger")
    with contextlib.ExitStack() as patches:
        for name in names:
            patches.enter_context(mock.patch(f"swjoin.{name}", nothing))
        yield


@contextmanager
def without_digests() -> Iterator[None]:
    """No row is hashed by its values."""

    def zeros(batch: pa.RecordBatch) -> Any:
        return np.zeros(batch.num_rows, np.uint64)

    with mock.patch("swjoin.cluster.slave.stage.row_hashes", zeros):
        yield


@contextmanager
def without_merging() -> Iterator[None]:
    with mock.patch("swjoin.cluster.slave.stage.Merger", BestEffortMerger):
        yield


WITHOUT = {
    "ledgers of edges (floor 0.98, goal 0.99)": (without_ledgers, MEASURED),
    "digests of rows (floor 0.9, goal 0.95)": (without_digests, MEASURED),
    "merging (floor 0.95, goal 0.98)": (without_merging, ("q1", "q20")),  # aggregates end such runs: rows come too late
}


def overheads(folder: Path, events: int, repeats: int) -> None:
    paths = nexmark.write(folder, events)
    right: dict[str, tuple[int, str]] = {}
    lost: list[str] = []

    def measured(name: str, variant: Callable[[], Any]) -> Callable[[], float]:
        def measure() -> float:
            text = nexmark.QUERIES[name].read_text()
            with variant(), tempfile.TemporaryDirectory(dir=folder) as out:
                took_s, found = swjoin_run(text, paths, Path(out) / "run", SLAVES)
            wanted = right.setdefault(name, found)  # the first one is as it is
            if variant is without_merging:
                lost.extend([name] if found != wanted else [])
            elif found[0] != wanted[0] or (found[1] != wanted[1] and variant is not without_digests):
                raise SystemExit(f"{name}, {variant.__name__}: {found[0]} rows with digest {found[1]}, before {wanted}")
            return took_s

        return measure

    print(f"\n## Throughput over that without, {events:,} events of Nexmark, {SLAVES} slaves in one process\n")
    print("| without | query | ratio | range |\n|---|---|---|---|")
    for what, (variant, names) in WITHOUT.items():
        for name in names:
            cases = {"as it is": measured(name, contextlib.nullcontext), "without": measured(name, variant)}
            found = turns(cases, repeats)
            each = [b / a for a, b in zip(found["as it is"], found["without"], strict=True)]
            print(f"| {what} | {name} | {statistics.median(each):.3f} | {min(each):.3f} to {max(each):.3f} |", flush=True)
    print(f"\nRuns with best-effort merging whose answer was wrong: {len(lost)} of {2 * (repeats + 1)}")


# ---------------------------------------------------------------- views


@contextmanager
def without_groups() -> Iterator[None]:
    """Rows travel to aggregates, as they are."""
    with contextlib.ExitStack() as patches:
        for room in ("aggregates", "stages"):
            patches.enter_context(mock.patch(f"swjoin.plan.{room}.is_pre_aggregated", return_value=False))
        yield


PAIRS = """SELECT A.category, B.price, greatest(A.date_time, B.date_time) AS ts FROM auction A JOIN bid B
  ON A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.date_time + INTERVAL '10' SECOND"""
VIEWS = f"""SELECT as_of, category, count(*) AS n, sum(price) AS total, min(price) AS least, max(price) AS most
  FROM CUMULATE(({PAIRS}), ts, INTERVAL '1' SECOND) GROUP BY as_of, category"""


def views(folder: Path, events: int, repeats: int) -> None:
    paths = nexmark.write(folder, events)
    pairs = f"SELECT category, price FROM ({PAIRS}) q"
    db = connected(paths)
    expected = {"off": duckdb_answer(db, pairs)[0], "on": duckdb_answer(db, VIEWS)[0]}
    bytes_of: dict[str, dict[str, int]] = {}

    def measured(name: str, text: str, variant: Callable[[], Any] = contextlib.nullcontext) -> Callable[[], float]:
        def measure() -> float:
            with variant(), tempfile.TemporaryDirectory(dir=folder) as out:
                took_s, found = swjoin_run(text, paths, Path(out) / "run", SLAVES)
                report = json.loads((Path(out) / "run" / "run.json").read_text())
            wanted = expected["off" if name == "off" else "on"]
            if found != wanted:
                raise SystemExit(f"{name}: {found[0]} rows with digest {found[1]}, DuckDB has {wanted}")
            bytes_of[name] = {edge["from"].split()[0]: edge["bytes"] for edge in report["edges"] if edge["from"] not in paths}
            return took_s

        return measure

    cases = {"off": measured("off", pairs), "on": measured("on", VIEWS), "pairs": measured("pairs", VIEWS, without_groups)}
    found = turns(cases, repeats)
    print(f"\n## Views of a join's pairs each second, {events:,} events of Nexmark, {SLAVES} slaves in one process\n")
    print("| what | value | range |\n|---|---|---|")
    print(f"| pairs; rows of views | {expected['off'][0]:,}; {expected['on'][0]:,} | |")
    for name, what in (("off", "pairs alone (floor 0.9, goal 0.97)"), ("pairs", "views of pairs that travel")):
        each = [other / on for other, on in zip(found[name], found["on"], strict=True)]
        ratio = f"{statistics.median(each):.3f} | {min(each):.3f} to {max(each):.3f}"
        print(f"| throughput with views over {what} | {ratio} |")
    travel, of_pairs = sum(bytes_of["on"].values()), max(bytes_of["pairs"].values())
    print(f"| bytes of groups and views over bytes of pairs (floor 1/50, goal 1/500) | 1/{of_pairs / travel:.0f} | |")


# ---------------------------------------------------------------- on ranks


def joined(left: str, right: str, window: str) -> str:
    """The left rows' keys with the right rows' times."""
    bounds = f"b.ts BETWEEN a.ts - {window} AND a.ts + {window}"
    return f"SELECT a.key AS key, b.ts AS ts FROM {left} a JOIN {right} b ON a.key = b.key AND {bounds}"


def three_joins(window: str) -> str:
    parts = f"one AS ({joined('l', 'r', window)}), two AS ({joined('one', 'l', window)})"
    return f"WITH {parts} {joined('two', 'r', window)}"


def five_stages(window: str) -> str:
    """Three joins, and two aggregates after them."""
    return f"""WITH three AS ({three_joins(window)}),
      counted AS (SELECT key, window_end, count(*) AS n FROM TUMBLE(three, ts, {window}) GROUP BY key, window_end)
      SELECT key % 100 AS part, window_end, sum(n) AS n
      FROM TUMBLE((SELECT key, window_end AS ts, n FROM counted), ts, {window}) GROUP BY key % 100, window_end"""


def plain_config(text: str, rate: float, seconds: float, epoch: str, **more: Any) -> dict[str, Any]:
    """rate: rows/s of both inputs together. Half of the keys of a window have a partner."""
    return {
        "queries": [{"sql": text}],
        "inputs": {"l": {"generate": "left"}, "r": {"generate": "right"}},
        "workload": {"rate": rate / 2, "duration": f"{int(seconds * 1000)}ms", "bias": 0.5, "domain": int(max(100, 2 * rate))},
        "cluster": {"distribution_epoch": epoch},
        "sink": {"kind": "count"},
        **more,
    }


def launched(plain: dict[str, Any], ranks: int, folder: Path) -> LaunchedRun:
    config = folder / "config.yaml"
    config.write_text(json.dumps(plain))
    arguments = [str(config), "-n", str(ranks), "--out", str(folder / "run")]
    return LaunchedRun(arguments, folder / "log", {"PYTHONPATH": str(ROOT)})


def verified(folder: Path) -> dict[str, Any]:
    """The report of a run, whose answer `swjoin verify` has confirmed."""
    command = [sys.executable, "-m", "swjoin", "verify", str(folder / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"verify: {done.stderr.strip() or done.stdout.strip()}")
    report: dict[str, Any] = json.loads((folder / "run" / "run.json").read_text())
    return report


def delay(folder: Path, rate: float, seconds: float, repeats: int, ranks: int, epoch: str) -> None:
    moving = {"reorganization": {"policy": "random", "random_moves": 1, "epoch": "1s"}}
    cases: dict[str, dict[str, Any]] = {"standing": {}, "one move a second": moving}
    p99: dict[str, list[float]] = {name: [] for name in cases}
    print(f"\n## Arrival to sink, three joins in a row, {rate:,.0f} rows/s, t_d = {epoch}, {ranks} ranks\n")
    print("| partition-groups | rows out | moves | p50 (ms) | p99 (ms) | machine |\n|---|---|---|---|---|---|")
    for turn in range(repeats):
        for name, more in cases.items():
            place = folder / f"{name} {turn}"
            place.mkdir()
            warm = {"measure": {"warm_up": f"{int(seconds * 200)}ms"}}
            plain = plain_config(three_joins("INTERVAL '1' SECOND"), rate, seconds, epoch, pace="realtime", **warm, **more)
            run = launched(plain, ranks, place)
            if run.end(10 * seconds + 120):
                raise SystemExit(f"a run failed: {run.said()}")
            report = verified(place)
            took, load = report["delay_s"], "; ".join((report["machine"] or {}).get("reasons") or ["idle"])
            p99[name].append(took["p99"])
            cells = f"{report['results']['count']:,} | {report['moves']} | {took['p50'] * 1e3:.0f} | {took['p99'] * 1e3:.0f}"
            print(f"| {name} | {cells} | {load} |", flush=True)
    ratios = [b / a for a, b in zip(*p99.values(), strict=True)]
    print(f"\np99 with moves over that without, turn by turn: {statistics.median(ratios):.2f} (floor 1.2, goal 1.05)")


def recovery(folder: Path, rate: float, seconds: float, ranks: int, pace: str) -> None:
    """rate: of the streams' own time. A window is a quarter of the inputs, which are half read when the rank dies."""
    print("\n## Recovery, five stages, a rank killed\n")
    print(
        "| killed | goes on after (s) | tuples replayed | windows of all slaves (MB, peak) | rows out |\n|---|---|---|---|---|"
    )
    for victim in ("slave", "gateway"):
        place = folder / victim
        place.mkdir()
        cluster = {"cluster": {"distribution_epoch": "200ms", "gateways": 2}}
        text = five_stages(f"INTERVAL '{max(1, int(seconds / 4))}' SECOND")
        interval = {"interval": f"{int(min(2.0, seconds / 10) * 1000)}ms"}
        plain = {**plain_config(text, rate, seconds, "200ms", pace=pace, checkpoint=interval), **cluster}
        run = launched(plain, ranks, place)
        try:
            while run.process.poll() is None and rows_read(place / "run" / "checkpoints") < rate * seconds / 2:
                time.sleep(0.02)
            roles = RankMap.of(config_from_plain({"join": {"lower_us": 0, "upper_us": 0}, **cluster}), ranks)
            role = slave_role(roles.slave_ranks - 1) if victim == "slave" else gateway_role(1)
            run.kill([roles.rank_of(role)])
            if run.end(20 * seconds + 300):
                raise SystemExit(f"the run with a death failed: {run.said()}")
        finally:
            if run.process.poll() is None:
                run.kill_all()
        report = verified(place)
        (found_one,) = report["checkpoints"]["recoveries"]
        held = sum(slave["window"]["peak"] for slave in report["memory"]["slaves"])
        count = report["results"]["count"]
        print(f"| {victim} | {found_one['s']:.2f} | {found_one['tuples']:,} | {held / 1e6:.0f} | {count:,} |", flush=True)


def rows_read(checkpoints: Path) -> int:
    """Rows that all gateways had read by the newest checkpoint."""
    newest = max(checkpoints.glob("checkpoint-*.json"), default=None)
    if newest is None:
        return 0
    gateways = json.loads(newest.read_text())["gateways"]
    return sum(stream["counts"]["tuples"] for gateway in gateways for stream in gateway["state"]["streams"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PLAYED, nargs="?")
    parser.add_argument("--events", type=int, default=1_000_000, help="of Nexmark (overheads, views)")
    parser.add_argument("--rate", type=float, default=200_000, help="rows per second of both inputs (delay, recovery)")
    parser.add_argument("--seconds", type=float, default=20, help="of the inputs (delay, recovery)")
    parser.add_argument("--epoch", default="20ms", help="distribution epoch (delay)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pace", choices=["asap", "realtime"], default="asap", help="of the inputs (recovery)")
    args = parse(parser, events=20_000, rate=2_000, seconds=4, repeat=1, epoch="100ms", pace="realtime")
    with tempfile.TemporaryDirectory() as folder:
        if args.part in (None, "overheads"):
            overheads(Path(folder), args.events, args.repeat)
        if args.part in (None, "views"):
            views(Path(folder), args.events, args.repeat)
        if args.part in (None, "delay"):
            delay(Path(folder), args.rate, args.seconds, args.repeat, args.ranks, args.epoch)
        if args.part in (None, "recovery"):
            recovery(Path(folder), args.rate, args.seconds, max(5, args.ranks), args.pace)


if __name__ == "__main__":
    main()

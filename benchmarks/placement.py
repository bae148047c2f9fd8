"""Placement by measured traffic: what counting costs, what it is worth where links are slow, and how it follows a drift.

Usage: python -m benchmarks.placement [graphs] [counting] [cpu] [network] [fragments] [drift] [--repeat 3] [--tiny]
graphs: the published task graphs of KATTS that are at hand, 12 machines, tuples over the network in percent: by id modulo 12,
by the paper's partitions, and by ours; by a slice's own counts, and by those of one, two and three slices before; the fullest
machine; milliseconds a placement. Claims hold by these rules: (abs) 40 to 99 % fewer than by id, on every slice; (F3-1)
SRBench: at most 1 % by own counts and by one slice before, with the bound 1.06; (F3-2) OpenGov: by id at least twice as many;
(F3-3) two and three slices before are no better than one; (F4) the received load, placed by one slice before, varies more
(standard deviation over mean, K - 1) than by id.
Two joins by different keys, a join and an aggregate by another key, or two joins and an aggregate by the first key: 80
keys, of which one follows from the other, 40 bytes a row between stages, 60 partition-groups, count and digest compared in
every turn.
counting: the run in one process, two threads, over the same without counts between partition-groups.
cpu: the same, placed by an earlier run's traffic, and by policy `network`, over partition-groups by number: nothing is gained
where a rank is a thread.
network: six ranks on four hosts, network namespaces (as root) that send at most 4 Mbit/s each: partition-groups by number,
placed by that run's traffic, and by policy `network`. The criterion: throughput over that by number, as a share of the ratio
of bytes between hosts by interface counters: floor 0.8, goal 0.9. What run.json says of bytes is printed beside the counters.
fragments: on the same hosts, observations of weather stations, of which a subject has two triples: the least speed of a station
in three hours, from fragments of a subject that are whole, one row, and from single triples, which meet in a join by subject.
KATTS' claim D2 holds if whole fragments send fewer bytes between hosts and have at least the throughput of single triples.
drift: every ten reorganization epochs one key in eight follows from its other in another way: regret of policy `network` over
the best placement by a thorough search, the mean of all times, criterion: floor 3 points, goal 1; and the same at the streams'
own pace: p99 of the production delay over that without moves, criterion: floor 1.2, goal 1.1.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT, parse_parts
from examples import katts
from swjoin.cluster.master import network_placement
from swjoin.cluster.traffic import Traffic
from swjoin.config.job import Job
from swjoin.config.sections import PlacementConfig
from swjoin.connectors.files.run_folder import read_events
from swjoin.core.batch import I64
from swjoin.frontends.configured import job_of_query
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.policy.placement import BEFORE_A_RUN, place
from swjoin.policy.task_graph import Machines, TaskGraph, cost
from swjoin.runtime.in_process import run_local
from tests.support.namespaces import Hosts, why_not
from tests.support.task_graphs import KATTS, read_katts

KEYS, HOSTS = 80, 4
_LIMIT_S = 900.0
_JOIN = "FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '{w}' SECOND AND a.ts + INTERVAL '{w}' SECOND"
_TWO = _JOIN + " JOIN c ON a.v = c.v AND c.ts BETWEEN a.ts - INTERVAL '0.001' SECOND AND a.ts + INTERVAL '0.001' SECOND"
QUERIES = {
    "two joins": "SELECT a.k AS k, c.v AS v " + _TWO,
    "join, aggregate": "SELECT v, count(*) AS n, max(w) AS most FROM TUMBLE((SELECT a.ts AS ts, a.v AS v, b.v + a.k AS w "
    + _JOIN
    + "), ts, INTERVAL '1' SECOND) GROUP BY v, window_start, window_end",
    "two joins, aggregate": "SELECT k, count(*) AS n, max(w) AS most FROM TUMBLE((SELECT a.ts AS ts, a.k AS k, b.v + c.k AS w "
    + _TWO
    + "), ts, INTERVAL '1' SECOND) GROUP BY k, window_start, window_end",
}


class Size(NamedTuple):
    """Rates in rows per second of each stream. within_s: of the first join, on both sides. mbit: of each host."""

    seconds: int
    rate: int
    within_s: float
    network_seconds: int
    network_rate: int
    network_within_s: float
    mbit: int
    live_seconds: int
    stations: int


SIZES = {False: Size(240, 4_000, 0.2, 60, 400, 20.0, 4, 60, 2_000), True: Size(8, 400, 0.5, 6, 200, 1.0, 200, 4, 20)}


def write_streams(folder: Path, seconds: int, rate: int, drift_s: int = 0) -> None:
    """drift_s: after so long `v` follows from `k` in another way, for one key in eight."""
    rng, rows = np.random.default_rng(1), seconds * rate
    ways = np.tile(rng.permutation(1_000)[:KEYS], (1 + (seconds // drift_s if drift_s else 0), 1))
    for change in range(1, len(ways)):
        unused = rng.permutation(np.setdiff1d(np.arange(1_000), ways[change - 1]))
        ways[change:, rng.permutation(KEYS)[: KEYS // 8]] = unused[: KEYS // 8]
    for name in "abc":
        k, ts = rng.integers(0, KEYS, rows), np.sort(rng.integers(0, seconds * 1_000_000, rows))
        block = ts // (drift_s * 1_000_000) if drift_s else np.zeros(rows, np.int64)
        pq.write_table(
            pa.table({"k": k, "v": ways[block, k], "ts": pa.array(ts, pa.timestamp("us"))}), folder / f"{name}.parquet"
        )


def configured(folder: Path, sql: str, epoch: str = "500ms") -> dict[str, Any]:
    names = "abc" if "JOIN c" in sql else "ab"
    return {
        "inputs": {name: {"path": str(folder / f"{name}.parquet"), "time": "ts"} for name in names},
        "queries": [{"name": "q", "sql": sql}],
        "cluster": {"strategy": "query", "distribution_epoch": epoch},
        "sink": {"kind": "count"},
    }


NETWORK = {"reorganization": {"policy": "network", "epoch": "5s"}}


def job_of(plain: dict[str, Any], out: Path | None = None) -> Job:
    return replace(job_of_query(plain, "here", "bench placement"), run_dir=out)


def answer(report: dict[str, Any]) -> tuple[int, str]:
    return report["results"]["count"], report["results"]["digest"]


def local_share(report: dict[str, Any]) -> float:
    """Of the bytes between stages, those within ranks."""
    ways = [edge["traffic"] for edge in report["edges"] if edge["from"].startswith("join")]
    local, total = sum(way["local"]["bytes"] for way in ways), sum(sums["bytes"] for way in ways for sums in way.values())
    return float(local / total)


def shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Nothing is counted between partition-groups, and no join says where its rows come from."""
    kept = Traffic.rows_from, Traffic.sorted_rows, WindowJoinOperator.keep_origins
    Traffic.rows_from = Traffic.sorted_rows = WindowJoinOperator.keep_origins = lambda *_: None  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Traffic.rows_from, Traffic.sorted_rows, WindowJoinOperator.keep_origins = kept  # type: ignore[method-assign]


@contextlib.contextmanager
def thorough() -> Iterator[None]:
    """Regret is over the best placement that is found with all seeds and steps; moves are sought as ever."""
    names = vars(network_placement)
    kept, names["IN_A_RUN"] = names["IN_A_RUN"], BEFORE_A_RUN
    try:
        yield
    finally:
        names["IN_A_RUN"] = kept


def same(reports: Sequence[dict[str, Any]]) -> None:
    answers = {answer(report) for report in reports}
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")


def counting(folder: Path, size: Size, repeat: int) -> None:
    write_streams(folder, size.seconds, size.rate)
    for name, sql in QUERIES.items():
        job, ratios = job_of(configured(folder, sql.format(w=size.within_s))), []
        for turn in range(repeat + 1):
            with uncounted():
                without = run_local(job, False, 2)
            counted = run_local(job, False, 2)
            same([without, counted])
            if turn:
                ratios.append(without["join_s"] / counted["join_s"])
        rows = sum(edge["sent"]["rows"] for edge in counted["edges"])
        print(f"counting: {name}, {rows:,} rows over edges: {shown(ratios)} of the throughput without counts", flush=True)


def cpu(folder: Path, size: Size, repeat: int) -> None:
    write_streams(folder, size.seconds, size.rate)
    for name, sql in QUERIES.items():
        plain, earlier = configured(folder, sql.format(w=size.within_s)), folder / f"earlier {len(name)}"
        earlier.mkdir()
        run_local(job_of(plain, earlier), False, 2)
        jobs = [job_of(plain | more) for more in ({}, {"placement": {"statistics": str(earlier)}}, NETWORK)]
        ratios: list[list[float]] = [[], []]
        for turn in range(repeat + 1):
            reports = [run_local(job, False, 2) for job in jobs]
            same(reports)
            if turn:
                for found, report in zip(ratios, reports[1:], strict=True):
                    found.append(reports[0]["join_s"] / report["join_s"])
        for how, found, report in zip(("by statistics", "policy network"), ratios, reports[1:], strict=True):
            print(
                f"cpu: {name}, {how}: {shown(found)} of the throughput by number, {100 * local_share(report):.0f} % of the "
                f"bytes within ranks ({100 * local_share(reports[0]):.0f} % by number)",
                flush=True,
            )


def sent_bytes(hosts: Hosts) -> int:
    """By all hosts so far, by the counters of their interfaces."""
    total = 0
    for name in hosts.names:
        line = ["ip", "-n", name, "-s", "-j", "link", "show", "eth0"]
        found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
        total += int(found[0]["stats64"]["tx"]["bytes"])
    return total


def on_hosts(hosts: Hosts, plain: dict[str, Any], folder: Path) -> tuple[dict[str, Any], int, Path]:
    """run.json, bytes that the hosts have sent, and the directory of the run."""
    out, path = folder / f"run{time.monotonic_ns()}", folder / "config.yaml"
    path.write_text(json.dumps(plain))
    before = sent_bytes(hosts)
    line = [sys.executable, "-m", "swjoin", "run", path, "-n", HOSTS + 2, "--hostfile", hosts.hostfile, "--out", out]
    code, said, err = hosts.run(line, ROOT, _LIMIT_S)
    if code:
        raise SystemExit(f"exit code {code}: {said}{err}")
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report, sent_bytes(hosts) - before, out


@contextlib.contextmanager
def slow_hosts(folder: Path, mbit: int) -> Iterator[Hosts]:
    hosts = Hosts(folder, HOSTS)
    try:
        hosts.hostfile.write_text("".join(f"10.213.7.{i + 1} slots={1 if i else 3}\n" for i in range(HOSTS)))
        for host in range(HOSTS):
            hosts.shape(host, "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "200ms")
        yield hosts
    finally:
        hosts.close()


def network(folder: Path, size: Size, repeat: int) -> None:
    if reason := why_not():
        print(f"network: not measured, {reason}")
        return
    write_streams(folder, size.network_seconds, size.network_rate)
    with slow_hosts(folder, size.mbit) as hosts:
        for name, sql in QUERIES.items():
            _of_query(hosts, folder, name, configured(folder, sql.format(w=size.network_within_s)), repeat)


_LEAST = (
    "SELECT station, window_end, min(speed) AS least, count(*) AS n FROM HOP({}, ts, INTERVAL '1' HOUR, INTERVAL '3' HOUR) "
    "GROUP BY station, window_start, window_end"
)
FRAGMENTS = {
    "whole": _LEAST.format("observations"),
    "single": _LEAST.format(
        "(SELECT a.ts AS ts, a.o AS station, b.o AS speed FROM triples a JOIN triples b ON a.s = b.s "
        "AND b.ts BETWEEN a.ts AND a.ts WHERE a.p = 1 AND b.p = 2)"
    ),
}


def write_observations(folder: Path, stations: int) -> int:
    """Of `examples.katts`, by time, with whole speeds: one row a subject, and the same as triples. Returns their number."""
    size = katts.Size(stations=stations, days=10)
    parts = [katts.observations(first, size) for first in range(0, stations, 500)]
    ts, station, speed = (np.concatenate([part[name] for part in parts]) for name in ("ts", "station", "speed"))
    order = np.argsort(ts, kind="stable")
    ts, station, speed = ts[order], station[order], np.rint(speed[order]).astype(np.int64)
    subject, twice = np.arange(len(ts)), np.repeat(np.arange(len(ts)), 2)
    predicate = np.tile([1, 2], len(ts))
    at = pa.array(ts, pa.timestamp("us"))
    whole = {"s": subject, "station": station, "speed": speed, "ts": at}
    objects = np.where(predicate == 1, station[twice], speed[twice])
    single = {"s": subject[twice], "p": predicate, "o": objects, "ts": at.take(pa.array(twice))}
    for name, columns in (("observations", whole), ("triples", single)):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return len(ts)


def fragments(folder: Path, size: Size, repeat: int) -> None:
    if reason := why_not():
        print(f"fragments: not measured, {reason}")
        return
    count = write_observations(folder, size.stations)
    plains = []
    for name, sql in zip(("observations", "triples"), FRAGMENTS.values(), strict=True):
        plain = configured(folder, sql, "10min")  # of times of a day
        plains.append({**plain, "inputs": {name: {"path": str(folder / f"{name}.parquet"), "time": "ts"}}})
    speeds, savings = [], []
    with slow_hosts(folder, size.mbit) as hosts:
        for _ in range(repeat):
            (whole, few, _), (single, many, _) = (on_hosts(hosts, plain, folder) for plain in plains)
            same([whole, single])
            speeds.append(single["join_s"] / whole["join_s"])
            savings.append(many / few)
    holds = statistics.median(savings) > 1 and statistics.median(speeds) >= 1
    print(
        f"fragments: {count:,} observations, whole: {shown(speeds)} x the throughput of single triples, "
        f"{shown(savings)} x fewer bytes between hosts: D2 {'holds' if holds else 'does not hold'}",
        flush=True,
    )


def _of_query(hosts: Hosts, folder: Path, name: str, plain: dict[str, Any], repeat: int) -> None:
    speeds: dict[str, list[float]] = {"by statistics": [], "policy network": []}
    savings: dict[str, list[float]] = {how: [] for how in speeds}
    for _ in range(repeat):
        by_number, sent, out = on_hosts(hosts, plain, folder)
        between = sum(edge["traffic"]["between_hosts"]["bytes"] for edge in by_number["edges"])
        for how, more in (("by statistics", {"placement": {"statistics": str(out)}}), ("policy network", NETWORK)):
            report, fewer, _ = on_hosts(hosts, plain | more, folder)
            same([by_number, report])
            speeds[how].append(by_number["join_s"] / report["join_s"])
            savings[how].append(sent / fewer)
    for how, found in speeds.items():
        of_ratio = [speed / saving for speed, saving in zip(found, savings[how], strict=True)]
        print(
            f"network: {name}, {how}: {shown(found)} x the throughput by number, {shown(savings[how])} x fewer bytes, "
            f"{shown(of_ratio)} of that",
            flush=True,
        )
    print(f"network: {name}, by number: {between:,} bytes between hosts by run.json, {sent:,} by counters", flush=True)


def _drifting(folder: Path, size: Size, seconds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two joins of streams that change four times: without moves, and with ten reorganization epochs a change."""
    write_streams(folder, seconds, size.rate, drift_s=max(1, seconds // 4))
    still = configured(folder, QUERIES["two joins"].format(w=size.within_s), "100ms")
    epoch_ms = 100 * max(1, seconds // 4)
    return still, still | {"reorganization": {"policy": "network", "epoch": f"{epoch_ms}ms"}}


def drift(folder: Path, size: Size, repeat: int) -> None:
    still, moving = _drifting(folder, size, size.seconds)
    for _ in range(repeat):
        out = folder / f"drift{time.monotonic_ns()}"
        out.mkdir()
        with thorough():
            report = run_local(job_of(moving, out), False, 4)
        same([report, run_local(job_of(still), False, 4)])
        placed = [event for event in read_events(out) if event.kind == "regret"]
        if not placed:
            raise SystemExit("drift: nothing was placed")
        regrets, lengths = [event.amount for event in placed], np.diff([0, *(event.epoch for event in placed)])
        print(
            f"drift: regret {statistics.mean(regrets):.1f} points on average of {len(regrets)} times, "
            f"{np.average(regrets, weights=lengths):.1f} over time, {statistics.median(regrets):.1f} in the median; "
            f"{regrets[0]:.1f} at first, by number, for {lengths[0]} distribution epochs; {report['moves']:,} moves, "
            f"{100 * local_share(report):.0f} % of the bytes within ranks",
            flush=True,
        )
    plains, ratios = _drifting(folder, size, size.live_seconds), []
    for _ in range(repeat):
        quiet, moved = (run_local(job_of(plain | {"pace": "realtime"}), False, 2) for plain in plains)
        same([quiet, moved])
        ratios.append(moved["delay_s"]["p99"] / quiet["delay_s"]["p99"])
    print(
        f"drift: at the streams' own pace, {size.rate:,} rows/s each, p99 delay {shown(ratios)} of that without moves, "
        f"{quiet['delay_s']['p99']:.3f} s; {moved['moves']:,} moves",
        flush=True,
    )


# ---------------------------------------------------------------- the published graphs

_SLICES = {
    "OpenGov": [f"opengov-2001-{month:02}" for month in range(1, 7)],
    "SRBench days": [f"srbench-day-{day:02}" for day in (8, 9, 10)],
    "SRBench hours": [f"srbench-hour-{hour:02}" for hour in range(12)],
}
_MACHINES, _BACK = Machines.alike(12), 3


class Found(NamedTuple):
    """Percent of the tuples that cross, work of the fullest machine over the mean, variation of the load."""

    network: float
    fullest: float
    rsd: float


def _figures(graph: TaskGraph, machine_of: I64) -> Found:
    of = cost(graph, machine_of, _MACHINES)
    rsd = 100 * float(of.load.std(ddof=1) / of.load.mean())
    return Found(100 * of.network_tuples / of.total_tuples, of.fullest_ratio, rsd)


def _summed(graphs: Sequence[TaskGraph]) -> TaskGraph:
    """Slices of one query have the same tasks."""
    work = np.sum([graph.work_ns for graph in graphs], axis=0)
    ends = [np.concatenate([getattr(graph, name) for graph in graphs]) for name in ("source", "target", "tuples", "nbytes")]
    return replace(graphs[0], work_ns=work, source=ends[0], target=ends[1], tuples=ends[2], nbytes=ends[3])


def _paper(graph: TaskGraph, names: Sequence[str]) -> I64 | None:
    """The published partition by these slices."""
    partitions = json.loads((KATTS / "partitions.json").read_text())
    key = names[0] if len(names) == 1 else f"{names[0]}-{names[-1].rpartition('-')[2]}"
    found = partitions.get(key, {}).get("assignment")
    return None if found is None else np.array([found.get(str(task), 0) for task in graph.tasks], np.int64)


def _by(how: str, graph: TaskGraph, names: Sequence[str]) -> I64 | None:
    """A placement by the counts of these slices. how: `id`, `paper`, or the bound of ours."""
    if how == "id":
        return np.array([int(task) % 12 for task in graph.tasks], np.int64)
    if how == "paper":
        return _paper(graph, names)
    settings = PlacementConfig(objective="tuples", imbalance=float(how))
    return place(_summed([read_katts(name) for name in names]), _MACHINES, settings)


def graphs(_folder: Path, _size: Size, _repeat: int) -> None:
    heads = (
        "graphs",
        "placed by",
        "own counts",
        "1 before",
        "2 before",
        "3 before",
        "fullest",
        "load varies, 1 before",
        "ms",
    )
    print("| " + " | ".join(heads) + " |")
    print("|---|---|---|---|---|---|---|---|---|")
    means: dict[tuple[str, str], list[float]] = {}
    lines: dict[tuple[str, str], list[list[Found]]] = {}
    for kind, names in _SLICES.items():
        for how in ("id", "paper", "1.03", "1.06"):
            columns: list[list[Found]] = [[] for _ in range(1 + _BACK)]
            spent, calls = 0.0, 0
            for at in range(len(names)):
                graph = read_katts(names[at])
                for back in range(1 + _BACK):
                    given = names[at - back : at] if back else [names[at]]
                    if at >= back and (how != "id" or not back):
                        start = time.perf_counter()
                        machine_of = _by(how, graph, given)
                        spent, calls = spent + time.perf_counter() - start, calls + 1
                        if machine_of is not None:
                            columns[back].append(_figures(graph, machine_of))
            shares = [statistics.mean(f.network for f in column) if column else float("nan") for column in columns]
            means[kind, how], lines[kind, how] = shares, columns
            texts = [f"{share:.1f}" if share == share else "-" for share in shares]
            varies = statistics.mean(f.rsd for f in columns[1] or columns[0])
            fullest = max(f.fullest for f in columns[0])
            name = {"id": "id modulo 12", "paper": "the paper"}.get(how, f"ours, bound {how}")
            print(
                f"| {kind} | {name} | {' | '.join(texts)} | {fullest:.2f} | {varies:.1f} % | {1e3 * spent / calls:.0f} |",
                flush=True,
            )
    _judge(means, lines)


def _judge(means: dict[tuple[str, str], list[float]], lines: dict[tuple[str, str], list[list[Found]]]) -> None:
    """By the rules at the top of this module, of the paper's partitions and of ours."""
    for how, name in (("paper", "the paper's"), ("1.03", "ours")):
        open_gov, by_id = means["OpenGov", how], means["OpenGov", "id"][0]
        whole = "1.06" if how != "paper" else how
        both = [(f, u) for kind in _SLICES for f, u in zip(lines[kind, how][0], lines[kind, "id"][0], strict=True)]
        saved = [100 * (1 - f.network / u.network) for f, u in both]
        days, hours = (max(means[kind, whole][:2]) for kind in ("SRBench days", "SRBench hours"))
        of, by = lines["OpenGov", how][1], lines["OpenGov", "id"][0][1:]
        varies = statistics.mean(f.rsd for f in of), statistics.mean(f.rsd for f in by)
        verdicts = {
            f"abs ({min(saved):.0f} to {max(saved):.0f} % fewer)": min(saved) >= 40,
            f"F3-1 days ({days:.2f} % at most)": days <= 1,
            f"F3-1 hours ({hours:.2f} % at most)": hours <= 1,
            f"F3-2 ({by_id / open_gov[0]:.1f} times)": by_id >= 2 * open_gov[0],
            f"F3-3 ({', '.join(f'{share:.1f}' for share in open_gov[1:])} %)": min(open_gov[2:]) >= open_gov[1],
            f"F4 ({varies[0]:.1f} and {varies[1]:.1f} %)": varies[0] > varies[1],
        }
        shown_ = ", ".join(f"{claim} {'holds' if holds else 'does not hold'}" for claim, holds in verdicts.items())
        print(f"graphs: {name} partitions: {shown_}", flush=True)


PARTS: dict[str, Callable[[Path, Size, int], None]] = {
    "graphs": graphs,
    "counting": counting,
    "cpu": cpu,
    "network": network,
    "fragments": fragments,
    "drift": drift,
}


def main() -> None:
    args = parse_parts(__doc__, PARTS, repeat=1)
    for part, measure in PARTS.items():
        if part in args.parts:
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder), SIZES[args.tiny], args.repeat)


if __name__ == "__main__":
    main()

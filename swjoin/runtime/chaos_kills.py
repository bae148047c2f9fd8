"""Random deaths of real processes: runs on MPI ranks that are killed, resumed, stopped, and must be right in the end.

What: `Ordeal.draw(seed)`, one workload, one cluster and what befalls it; `run_ordeal(seed, folder)`.
Why: the promise is about processes, signals and files as they are; the simulator only knows of them what we believed.
Stays out: random workloads of every other kind (`runtime.chaos`), crashes in virtual time (`runtime.simulator`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.batch import I64, LEFT, RIGHT, TupleBatch
from swjoin.loading import config_from_plain
from swjoin.oracle import brute_force, format_digest, pair_digest
from swjoin.runtime.simulation_result import SimulationError
from swjoin.sources.bmodel import slot_count, slot_tuples

KINDS = ("slave", "slaves", "everybody", "stop", "master", "collector", "recovering")
_FIRST_SLAVE = 2
_LIMIT_S = 90.0


@dataclass(frozen=True)
class Ordeal:
    """kind: who dies: one slave, two slaves, everybody (SIGKILL to all ranks and the launcher), nobody (a request to stop),
    the master, the collector, or a slave while the death of another one is being dealt with. at_s: after so much of the run.
    gap_s: between two deaths. again: ranks of the resumed run.
    """

    seed: int
    kind: str
    plain: dict[str, Any]
    ranks: int
    at_s: float
    gap_s: float
    again: int

    @staticmethod
    def draw(seed: int, kinds: tuple[str, ...] = KINDS) -> Ordeal:
        """Everything about a run from one seed."""
        random = np.random.default_rng([seed, 4])
        kind = str(random.choice(kinds))
        duration_s = float(random.uniform(3, 5))
        epoch_ms = int(random.choice([50, 100, 200]))
        policy = str(random.choice(["none", "random", "balanced"]))
        ranks = int(random.integers(4, 8))
        slaves = ranks - _FIRST_SLAVE
        plain: dict[str, Any] = {
            "join": {"within": f"{int(random.choice([200, 1000, 3000]))}ms"},
            "seed": int(seed),
            "pace": "realtime",
            "workload": {
                "rate_per_s": float(random.choice([500, 2000, 3000])),
                "duration": f"{int(duration_s * 1000)}ms",
                "bias": float(random.choice([0.5, 0.7, 0.9])),
                "domain": int(random.choice([50, 10_000])),
                "payload": "16B",
            },
            "cluster": {
                "partition_count": int(random.choice([1, 8, 60])),
                "distribution_epoch": f"{epoch_ms}ms",
                "sub_group_count": int(random.integers(1, 3)),
            },
            "module": {"theta": str(random.choice(["0B", "4KB", "32KB"])), "window": "64MB"},
            "reorganization": {
                "policy": policy,
                "epoch": f"{2 * epoch_ms}ms",
                "declustering": "adaptive" if policy == "random" and random.random() < 0.5 else "fixed",
                "active_slaves": int(random.choice([0, slaves - 1])),
            },
            "checkpoint": {"epochs": int(random.choice([1, 3, 10]))},
            "sink": {"kind": str(random.choice(["parquet", "parquet", "count"]))},
        }
        at_s = float(random.uniform(0, 1.1 * duration_s))
        return Ordeal(seed, kind, plain, ranks, at_s, float(random.choice([0, 0.02, 0.5])), int(random.integers(3, 8)))

    def expected(self) -> tuple[int, str]:
        """Count and digest by comparing every left tuple with all right ones."""
        config = config_from_plain(self.plain)
        streams = []
        for stream in (LEFT, RIGHT):
            slots = [slot_tuples(config.workload, config.seed, stream, s) for s in range(slot_count(config.workload))]
            ts, key = (np.concatenate([slot[i] for slot in slots]) for i in (0, 1))
            streams.append(TupleBatch(key, ts, np.arange(len(ts), dtype=np.uint64), ts))
        i, j = brute_force(streams[0], streams[1], config.query.bounds)
        return len(i), format_digest(pair_digest(streams[0].id[i], streams[1].id[j]))


def ranks_of(launcher: int) -> dict[int, int]:
    """MPI rank -> pid of the processes below a launcher's."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found: dict[int, int] = {}
    for pid in parents:
        above, depth = pid, 0
        while above not in (launcher, 0, 1) and depth < 10:
            above, depth = parents.get(above, 0), depth + 1
        if above != launcher:
            continue
        try:
            rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
        except OSError:
            continue
        if rank is not None:
            found[int(rank[1])] = pid
    return found


class _Cluster:
    """One `swjoin run`, its processes, and what it said."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("w") as out:
            command = [sys.executable, "-m", "swjoin", "run", *arguments]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def kill(self, ranks: list[int], number: int = signal.SIGKILL) -> None:
        """By pid; ranks that have ended already are left out."""
        pids = ranks_of(self.process.pid)
        for rank in ranks:
            if rank in pids:
                _kill(pids[rank], number)

    def kill_all(self) -> None:
        """The launcher, mpirun and every rank."""
        pids = list(ranks_of(self.process.pid).values())
        above = [p for p in (_parent(pid) for pid in pids) if p not in (0, 1, os.getpid())]
        for pid in {*pids, *above, self.process.pid}:
            _kill(pid, signal.SIGKILL)

    def end(self) -> int:
        """Its exit code. SimulationError when it does not end."""
        try:
            return self.process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise SimulationError(f"the run did not end within {_LIMIT_S:.0f} s: {self.said()}") from None

    def said(self) -> str:
        return " ".join(self._log.read_text().split())[-400:]


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _wait_for_start(cluster: _Cluster, out: Path, ranks: int) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline and cluster.process.poll() is None:
        if (out / "checkpoints").is_dir() and len(ranks_of(cluster.process.pid)) == ranks:
            return
        time.sleep(0.02)


def _befall(ordeal: Ordeal, cluster: _Cluster) -> None:
    """What the kind says."""
    random = np.random.default_rng([ordeal.seed, 5])
    slaves = random.permutation(np.arange(_FIRST_SLAVE, ordeal.ranks)).tolist()
    if ordeal.kind == "everybody":
        cluster.kill_all()
    elif ordeal.kind == "stop":
        _kill(cluster.process.pid, int(random.choice([signal.SIGTERM, signal.SIGINT])))
    elif ordeal.kind in ("master", "collector"):
        cluster.kill([0 if ordeal.kind == "master" else 1])
    else:
        cluster.kill(slaves[:1])
        if ordeal.kind != "slave" and len(slaves) > 2:
            time.sleep(ordeal.gap_s if ordeal.kind == "slaves" else float(random.uniform(0, 0.08)))
            cluster.kill(slaves[1:2])


def run_ordeal(seed: int, folder: Path, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """One run, and what befalls it; returns its run.json and what was seen on the way. SimulationError says what is wrong."""
    ordeal = Ordeal.draw(seed, kinds)
    config, out = folder / "config.yaml", folder / "run"
    config.write_text(json.dumps(ordeal.plain))  # JSON is YAML
    cluster = _Cluster([str(config), "-n", str(ordeal.ranks), "--out", str(out)], folder / "log")
    _wait_for_start(cluster, out, ordeal.ranks)
    time.sleep(ordeal.at_s)
    struck = time.monotonic()
    _befall(ordeal, cluster)
    code = cluster.end()
    ended_s = time.monotonic() - struck
    seen: dict[str, Any] = {"kind": ordeal.kind, "ended_s": ended_s, "code": code, "resumed": False}
    report = _report(out)
    if code == 2:
        raise SimulationError(f"refused: {cluster.said()}")
    survivable = ordeal.kind in ("slave", "slaves", "recovering")
    if survivable and (code or not report.get("complete")):
        raise SimulationError(f"{ordeal.kind}: exit code {code}: {cluster.said()}")
    if ordeal.kind == "stop" and code:
        raise SimulationError(f"stop: exit code {code}: {cluster.said()}")
    if not report.get("complete"):
        shown = sorted(p.name for p in (out / "results").glob("part-*")) if (out / "results").is_dir() else []
        again = _Cluster(["--resume", str(out), "-n", str(ordeal.again)], folder / "again")
        code = again.end()
        report, seen["resumed"] = _report(out), True
        if code and "holds no checkpoint" in again.said():
            seen["kind"] += ", before the first checkpoint"
            return {**report, "ordeal": seen}
        if code or not report.get("complete"):
            raise SimulationError(f"{ordeal.kind}, resumed: exit code {code}: {again.said()}")
        gone = [name for name in shown if not (out / "results" / name).exists()]
        if gone:
            raise SimulationError(f"results {gone} could be seen before, and are gone")
    _check(ordeal, report, out)
    return {**report, "ordeal": seen}


def _report(out: Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads((out / "run.json").read_text())
        return plain
    except OSError:
        return {}


def _check(ordeal: Ordeal, report: dict[str, Any], out: Path) -> None:
    count, digest = ordeal.expected()
    if (report["results"]["count"], report["results"]["digest"]) != (count, digest):
        raise SimulationError(f"{report['results']}, the oracle has {count} pairs with digest {digest}")
    if not report["ledger"]["balanced"]:
        raise SimulationError(f"ledger: {report['ledger']['complaints']}")
    if ordeal.plain["sink"]["kind"] == "count":
        return
    left, right = _ids(out / "results")
    found = (len(left), format_digest(pair_digest(left.astype(np.uint64), right.astype(np.uint64))))
    if found != (count, digest):
        raise SimulationError(f"the result files hold {found[0]} pairs with digest {found[1]}, not {count} with {digest}")
    rest = [p.name for p in (out / "results").iterdir() if not p.name.startswith("part-")]
    if rest or (out / "checkpoints").exists():
        raise SimulationError(f"left behind: {rest}, checkpoints {(out / 'checkpoints').exists()}")


def _ids(folder: Path) -> tuple[I64, I64]:
    """Ids of all pairs in the result files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(folder.glob("part-*"))
    table = pa.concat_tables([pq.read_table(path, columns=["left_id", "right_id"]) for path in files])
    return table["left_id"].to_numpy(), table["right_id"].to_numpy()

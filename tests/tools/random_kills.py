"""Random deaths of real processes: runs on MPI ranks that are killed, resumed, stopped, and must be right in the end.

What: `FaultScenario.draw(seed)`, one workload, one cluster and what befalls it; `run_ordeal(seed, folder)`.
Why: the promise is about processes, signals and files as they are; the simulator only knows of them what we believed.
Stays out: random workloads of every other kind (`tests.tools.random_runs`), crashes in virtual time
(`runtime.simulator.simulator`), finding and killing processes (`tests.tools.processes`).
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads.expected_results import digest_of_files
from swjoin.config.loader import config_from_plain
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.join_semantics import JOIN_KINDS, format_digest, pair_digest
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.oracle import answer
from tests.tools.processes import LaunchedRun, kill

KINDS = ("slave", "slaves", "everybody", "stop", "master", "collector", "recovering")
_FIRST_SLAVE = 2
_LIMIT_S = 90.0


@dataclass(frozen=True)
class FaultScenario:
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
    def draw(seed: int, kinds: tuple[str, ...] = KINDS) -> FaultScenario:
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
        random_kind = np.random.default_rng([seed, 7])  # of its own: all else stays as it was
        if random_kind.random() < 0.5:
            plain["join"]["how"] = str(random_kind.choice(list(JOIN_KINDS)))
        random_last = np.random.default_rng([seed, 8])
        if random_last.random() < 0.25:
            del plain["join"]["within"]
            plain["join"]["last"] = random_last.choice([20, 300, 3000], 2).tolist()
        return FaultScenario(seed, kind, plain, ranks, at_s, float(random.choice([0, 0.02, 0.5])), int(random.integers(3, 8)))

    def expected(self) -> tuple[int, str]:
        """Count and digest by comparing every left tuple with all right ones."""
        config = config_from_plain(self.plain)
        streams = []
        for stream in (LEFT, RIGHT):
            slots = [slot_tuples(config.workload, config.seed, stream, s) for s in range(slot_count(config.workload))]
            ts, key = (np.concatenate([slot[i] for slot in slots]) for i in (0, 1))
            streams.append(TupleBatch(key, ts, np.arange(len(ts), dtype=np.uint64), ts))
        left, right = answer(streams[0], streams[1], config.query.bounds, config.query.how)
        return len(left), format_digest(pair_digest(left, right))


def _befall(ordeal: FaultScenario, cluster: LaunchedRun) -> None:
    """What the kind says."""
    random = np.random.default_rng([ordeal.seed, 5])
    slaves = random.permutation(np.arange(_FIRST_SLAVE, ordeal.ranks)).tolist()
    if ordeal.kind == "everybody":
        cluster.kill_all()
    elif ordeal.kind == "stop":
        kill(cluster.process.pid, int(random.choice([signal.SIGTERM, signal.SIGINT])))
    elif ordeal.kind in ("master", "collector"):
        cluster.kill([0 if ordeal.kind == "master" else 1])
    else:
        cluster.kill(slaves[:1])
        if ordeal.kind != "slave" and len(slaves) > 2:
            time.sleep(ordeal.gap_s if ordeal.kind == "slaves" else float(random.uniform(0, 0.08)))
            cluster.kill(slaves[1:2])


def run_ordeal(seed: int, folder: Path, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """One run, and what befalls it; returns its run.json and what was seen on the way. SimulationError says what is wrong."""
    ordeal = FaultScenario.draw(seed, kinds)
    config, out = folder / "config.yaml", folder / "run"
    config.write_text(json.dumps(ordeal.plain))  # JSON is YAML
    cluster = LaunchedRun([str(config), "-n", str(ordeal.ranks), "--out", str(out)], folder / "log")
    cluster.wait_for_start(out, ordeal.ranks, _LIMIT_S)
    time.sleep(ordeal.at_s)
    struck = time.monotonic()
    _befall(ordeal, cluster)
    code = cluster.end(_LIMIT_S)
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
        again = LaunchedRun(["--resume", str(out), "-n", str(ordeal.again)], folder / "again")
        code = again.end(_LIMIT_S)
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


def _check(ordeal: FaultScenario, report: dict[str, Any], out: Path) -> None:
    count, digest = ordeal.expected()
    if (report["results"]["count"], report["results"]["digest"]) != (count, digest):
        raise SimulationError(f"{report['results']}, the oracle has {count} pairs with digest {digest}")
    if not report["ledger"]["balanced"]:
        raise SimulationError(f"ledger: {report['ledger']['complaints']}")
    if ordeal.plain["sink"]["kind"] == "count":
        return
    found = digest_of_files(out / "results")
    if found != (count, digest):
        raise SimulationError(f"the result files hold {found[0]} pairs with digest {found[1]}, not {count} with {digest}")
    rest = [p.name for p in (out / "results").iterdir() if not p.name.startswith("part-")]
    if rest or (out / "checkpoints").exists():
        raise SimulationError(f"left behind: {rest}, checkpoints {(out / 'checkpoints').exists()}")

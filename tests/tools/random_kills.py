"""Random deaths of real processes: runs on MPI ranks that are killed, resumed or stopped, with their results checked.

What: `FaultScenario.draw(seed)`, a workload, a cluster and a fault; `run_with_faults(seed, folder)`.
Why: fault tolerance is a promise about real processes, signals and files; the simulator has only a model of these.
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
from swjoin.cluster.ranks import COLLECTOR_RANK, RankMap
from swjoin.config.loader import config_from_plain
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.join_semantics import JOIN_KINDS, format_digest, pair_digest
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.oracle import answer
from tests.tools.processes import FIRST_SLAVE, LaunchedRun, kill

KINDS = ("slave", "slaves", "everybody", "stop", "master", "collector", "both", "recovering", "gateway", "frozen", "paused")
_ENDING = ("everybody", "stop", "master")  # kinds after which the run has to be resumed
_FAILURE_TIMEOUT_S = 4.0
_LIMIT_S = 90.0


@dataclass(frozen=True)
class FaultScenario:
    """A run and its fault.

    kind: `slave`, `slaves` (two), `everybody` (SIGKILL to all ranks and the launcher), `stop` (a request to stop), `master`,
    `collector`, `both` (the collector and a slave), `recovering` (a slave during the recovery from another one's death),
    `gateway` (a rank with a further gateway or a further sink, where the run has one), `frozen` (a rank but the master's is
    stopped for good) or `paused` (for a while, perhaps too long).
    at_s: time of the fault in the run. gap_s: between two deaths. again: ranks of the resumed run.
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
        """A scenario from a seed."""
        random = np.random.default_rng([seed, 4])
        kind = str(random.choice(kinds))
        duration_s = float(random.uniform(3, 5))
        epoch_ms = int(random.choice([50, 100, 200]))
        policy = str(random.choice(["none", "random", "balanced"]))
        ranks = int(random.integers(4, 8))
        slaves = ranks - FIRST_SLAVE
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
        random_kind = np.random.default_rng([seed, 7])  # a generator of its own leaves the draws of other settings as they were
        if random_kind.random() < 0.5:
            plain["join"]["how"] = str(random_kind.choice(list(JOIN_KINDS)))
        random_last = np.random.default_rng([seed, 8])
        if random_last.random() < 0.25:
            del plain["join"]["within"]
            plain["join"]["last"] = random_last.choice([20, 300, 3000], 2).tolist()
        sinks = int(np.random.default_rng([seed, 9]).choice([1, 1, 2, 3]))
        plain["cluster"]["sinks"] = sinks if plain["sink"]["kind"] != "count" else 1
        gateways = int(np.random.default_rng([seed, 10]).choice([2, 3] if kind == "gateway" else [1, 2, 3]))
        plain["cluster"]["gateways"] = 1 if "last" in plain["join"] else gateways
        if kind in ("frozen", "paused"):
            plain["cluster"]["failure_timeout"] = f"{_FAILURE_TIMEOUT_S:g}s"
        if plain["reorganization"]["active_slaves"]:  # a gateway or a sink may have a rank of its own
            width = RankMap(ranks, plain["cluster"]["sinks"], plain["cluster"]["gateways"]).slave_ranks
            plain["reorganization"]["active_slaves"] = min(plain["reorganization"]["active_slaves"], width)
        return FaultScenario(seed, kind, plain, ranks, at_s, float(random.choice([0, 0.02, 0.5])), int(random.integers(3, 8)))

    def ranks_beside_slaves(self) -> list[int]:
        """Ranks with further gateways or sinks."""
        roles = RankMap(self.ranks, self.plain["cluster"]["sinks"], self.plain["cluster"]["gateways"])
        return [rank for rank in range(FIRST_SLAVE, self.ranks) if roles.gateways_of(rank) or roles.sinks_of(rank)]

    def expected(self) -> tuple[int, str]:
        """Count and digest by the oracle."""
        config = config_from_plain(self.plain)
        streams = []
        for stream in (LEFT, RIGHT):
            slots = [slot_tuples(config.workload, config.seed, stream, s) for s in range(slot_count(config.workload))]
            ts, key = (np.concatenate([slot[i] for slot in slots]) for i in (0, 1))
            streams.append(TupleBatch(key, ts, np.arange(len(ts), dtype=np.uint64), ts))
        left, right = answer(streams[0], streams[1], config.query.bounds, config.query.how)
        return len(left), format_digest(pair_digest(left, right))


def _inject(scenario: FaultScenario, cluster: LaunchedRun) -> None:
    """Inject the scenario's fault."""
    random = np.random.default_rng([scenario.seed, 5])
    slaves = random.permutation(np.arange(FIRST_SLAVE, scenario.ranks)).tolist()
    if scenario.kind == "everybody":
        cluster.kill_all()
    elif scenario.kind == "stop":
        kill(cluster.process.pid, int(random.choice([signal.SIGTERM, signal.SIGINT])))
    elif scenario.kind == "master":
        cluster.kill([0])
    elif scenario.kind in ("frozen", "paused"):
        victim = [int(random.integers(COLLECTOR_RANK, scenario.ranks))]
        cluster.kill(victim, signal.SIGSTOP)
        if scenario.kind == "paused":
            time.sleep(float(random.uniform(0.05, 2)) * _FAILURE_TIMEOUT_S)
            cluster.kill(victim, signal.SIGCONT)
    else:
        if scenario.kind == "gateway":
            slaves = scenario.ranks_beside_slaves() or slaves
        victims = [COLLECTOR_RANK, *slaves] if scenario.kind in ("collector", "both") else slaves
        cluster.kill(victims[:1])
        if scenario.kind in ("slaves", "both", "recovering") and len(slaves) > 2:
            time.sleep(float(random.uniform(0, 0.08)) if scenario.kind == "recovering" else scenario.gap_s)
            cluster.kill(victims[1:2])


def run_with_faults(seed: int, folder: Path, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Run a scenario with its fault, and check it; returns run.json with observations under `faults`. SimulationError when
    something is wrong."""
    scenario = FaultScenario.draw(seed, kinds)
    config, out = folder / "config.yaml", folder / "run"
    config.write_text(json.dumps(scenario.plain))  # JSON is YAML
    cluster = LaunchedRun([str(config), "-n", str(scenario.ranks), "--out", str(out)], folder / "log")
    cluster.wait_for_start(out, scenario.ranks, _LIMIT_S)
    time.sleep(scenario.at_s)
    fault_s = time.monotonic()
    _inject(scenario, cluster)
    code = cluster.end(_LIMIT_S)
    ended_s = time.monotonic() - fault_s
    seen: dict[str, Any] = {"kind": scenario.kind, "ended_s": ended_s, "code": code, "resumed": False}
    report = _report(out)
    if code == 2:
        raise SimulationError(f"refused: {cluster.said()}")
    if scenario.kind not in _ENDING and (code or not report.get("complete")):
        raise SimulationError(f"{scenario.kind}: exit code {code}: {cluster.said()}")
    if scenario.kind == "stop" and code:
        raise SimulationError(f"stop: exit code {code}: {cluster.said()}")
    if not report.get("complete"):
        shown = sorted(p.name for p in (out / "results").glob("part-*")) if (out / "results").is_dir() else []
        again = LaunchedRun(["--resume", str(out), "-n", str(scenario.again)], folder / "again")
        code = again.end(_LIMIT_S)
        report, seen["resumed"] = _report(out), True
        if code and "holds no checkpoint" in again.said():
            seen["kind"] += ", before the first checkpoint"
            return {**report, "faults": seen}
        if code or not report.get("complete"):
            raise SimulationError(f"{scenario.kind}, resumed: exit code {code}: {again.said()}")
        missing = [name for name in shown if not (out / "results" / name).exists()]
        if missing:
            raise SimulationError(f"results {missing} were visible before, and are missing")
    _check(scenario, report, out)
    return {**report, "faults": seen}


def _report(out: Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads((out / "run.json").read_text())
        return plain
    except OSError:
        return {}


def _check(scenario: FaultScenario, report: dict[str, Any], out: Path) -> None:
    count, digest = scenario.expected()
    if (report["results"]["count"], report["results"]["digest"]) != (count, digest):
        raise SimulationError(f"{report['results']}, the oracle has {count} pairs with digest {digest}")
    if not report["ledger"]["balanced"]:
        raise SimulationError(f"ledger: {report['ledger']['complaints']}")
    if scenario.plain["sink"]["kind"] == "count":
        return
    found = digest_of_files(out / "results")
    if found != (count, digest):
        raise SimulationError(f"the result files hold {found[0]} pairs with digest {found[1]}, not {count} with {digest}")
    rest = [p.name for p in (out / "results").iterdir() if not p.name.startswith("part-")]
    if rest or (out / "checkpoints").exists():
        raise SimulationError(f"left behind: {rest}, checkpoints {(out / 'checkpoints').exists()}")

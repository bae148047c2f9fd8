"""The traffic of a run of a plan: what its edges sent within ranks, within hosts and between hosts, and between which
partition-groups.

What: `Places`, the rank and the host of every role; `edge_traffic`, of each edge; `write_traffic`, the graph of all
partition-groups; `earlier_owners`, where they should be by the graph of an earlier run, and `expected_crossing`, what goes
between ranks then.
Why: what a run really sent says how the next one should be placed, by `swjoin place` or `placement.statistics`.
Stays out: counting (`cluster.traffic`), the ledger (`runtime.plan_counts`), choosing places (`policy.placement`).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import FIRST_SLAVE, RankMap
from swjoin.cluster.role import RoleId, gateway_role, is_slave, slave_role
from swjoin.cluster.traffic import MOST_GROUPS
from swjoin.core.batch import I64
from swjoin.core.errors import UserError
from swjoin.core.storage import write_whole
from swjoin.plan.logical import Source
from swjoin.plan.stages import Stage
from swjoin.policy.placement import BEFORE_A_RUN, FILLED, place
from swjoin.policy.task_graph import Machines, TaskGraph
from swjoin.runtime.task_graph_file import Counts, json_of

_Plain = dict[str, Any]
TRAFFIC_FILE = "traffic.json.gz"  # in the directory of a run
WAYS = ("local", "in_host", "between_hosts")


@dataclass(frozen=True)
class Places:
    """ranks: of every role. hosts: of every rank; none: all have the same. threads: of one process, in which each gateway has
    one of its own."""

    ranks: RankMap
    hosts: tuple[str, ...] = ()
    threads: bool = False

    @staticmethod
    def of(instances: Instances, ranks: Sequence[_Plain]) -> Places:
        """ranks: as in `runtime.run_report.RunOutcome`; of one process only one."""
        config, apart = instances.config, instances.subclusters.places
        played = RankMap(len(ranks), config.sink_count, config.gateway_count, apart)
        if played.slave_ranks != instances.width:
            return Places(RankMap(FIRST_SLAVE + instances.width, places=apart), threads=True)
        return Places(played, tuple(str(rank["host"]) for rank in sorted(ranks, key=lambda rank: int(rank["rank"]))))

    def way(self, sender: RoleId, receiver: RoleId) -> str:
        """One of `WAYS`. In one process a rank is a thread."""
        if self.threads and not is_slave(sender):
            return "in_host"
        one, other = self.ranks.rank_of(sender), self.ranks.rank_of(receiver)
        if one == other:
            return "local"
        return "in_host" if not self.hosts or self.hosts[one] == self.hosts[other] else "between_hosts"


def edge_traffic(places: Places, gateways: Sequence[_Plain], slaves: Sequence[_Plain]) -> dict[int, dict[str, dict[str, int]]]:
    """By edge and way, rows and bytes that were sent since the run was started or restored. gateways, slaves: summaries."""
    found: dict[int, dict[str, dict[str, int]]] = defaultdict(lambda: {way: {"rows": 0, "bytes": 0} for way in WAYS})
    senders = [(gateway_role(int(g["gateway"])), g) for g in gateways] + [(slave_role(int(s["slave"])), s) for s in slaves]
    for sender, summary in senders:
        for edge, slave, rows, nbytes in summary["traffic"]["to_slaves"]:
            sums = found[edge][places.way(sender, slave_role(slave))]
            sums["rows"] += rows
            sums["bytes"] += nbytes
    return found


def traffic_graph(instances: Instances, gateways: Sequence[_Plain], slaves: Sequence[_Plain]) -> _Plain:
    """A graph as `swjoin place` reads it. Tasks are gateways, and the partition-groups of stages, named STAGE.GROUP, with the
    nominal work (ns) and the most state of each. Edges have what was sent since the run was started or restored; what comes
    from no partition-group that is known is left out."""
    ends = {edge.id: edge for edge in instances.stages.edges}
    groups = range(instances.config.cluster.partition_count)
    work = np.zeros((len(instances.stages.stages), len(groups)), np.int64)
    state = np.zeros_like(work)
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, summary in [("gateway", g) for g in gateways] + [("slave", s) for s in slaves]:
        if name == "slave":
            work[summary["stage"]] += np.array(summary["traffic"]["work_ns"], np.int64)
            np.maximum(state[summary["stage"]], summary["traffic"]["state_bytes"], out=state[summary["stage"]])
        for edge, origin, target, tuples, nbytes in summary["traffic"]["groups"]:
            sender, receiver = ends[edge].sender, ends[edge].receiver
            assert isinstance(receiver, Stage), "results have no partition-groups"
            if isinstance(sender, Source):
                source = f"gateway {summary['gateway']}"
            elif origin < 0:
                continue
            else:
                source = f"{sender.id}.{origin}"
            entry = sums[source, f"{receiver.id}.{target}"]
            entry[0] += tuples
            entry[1] += nbytes
    tasks = [{"id": f"gateway {g['gateway']}", "operator": "gateway", "work": 0} for g in gateways]
    for stage in instances.stages.stages:
        for g, counts in enumerate(zip(work[stage.id].tolist(), state[stage.id].tolist(), strict=True)):
            of_group = dict(zip(("work", "state_bytes"), counts, strict=True))
            tasks.append({"id": f"{stage.id}.{g}", "operator": stage.name, **of_group})
    edges = [[*pair, *counts] for pair, counts in sorted(sums.items())]
    return {"stages": _stages(instances), "tasks": tasks, "edges": edges}


def _stages(instances: Instances) -> list[list[Any]]:
    """What tells plans apart whose partition-groups have nothing in common."""
    return [[stage.name, *map(list, stage.keys)] for stage in instances.stages.stages]


def write_traffic(
    run_dir: Path | None, instances: Instances | None, gateways: Sequence[_Plain], slaves: Sequence[_Plain]
) -> None:
    """The graph of a run of a plan, into its directory."""
    if run_dir is None or instances is None or instances.config.cluster.partition_count > MOST_GROUPS:
        return
    graph = traffic_graph(instances, gateways, slaves)
    write_whole(run_dir / TRAFFIC_FILE, gzip.compress(json.dumps(graph).encode(), mtime=0))


def _earlier(instances: Instances, folder: str) -> tuple[TaskGraph, I64]:
    """The graph of an earlier run, and of each partition-group, stage by stage, its index there. UserError when it is not of
    this query."""
    groups = instances.config.cluster.partition_count
    if groups > MOST_GROUPS:
        problem = f"traffic is not counted by partition-group where there are more than {MOST_GROUPS}, and here are {groups}"
        raise UserError(problem, subject="placement: statistics", remedy="leave it out")
    path = Path(folder) / TRAFFIC_FILE
    again = "name the directory of a complete run of the same query"
    if not path.exists():
        raise UserError(f"{path} does not exist", subject="placement: statistics", remedy=again)
    plain = json_of(path)
    counts = Counts.parsed(path, plain, None)
    if plain.get("stages") != _stages(instances):
        raise UserError(f"{folder} is a run of another query", subject="placement: statistics", remedy=again)
    wanted = [f"{stage.id}.{group}" for stage in instances.stages.stages for group in range(groups)]
    at = np.array([counts.index.get(name, -1) for name in wanted], np.int64)
    if (at < 0).any() or len(counts.ids) - len(at) != sum(str(task).startswith("gateway") for task in counts.ids):
        problem = f"{folder} has other partition-groups than the {groups} of this run"
        raise UserError(problem, subject="placement: statistics", remedy="set cluster.partition_count as there")
    graph = counts.graph()
    if not graph.tuples[np.isin(graph.source, at)].any():
        problem = f"{folder} has counted no rows between stages (a resumed run counts from its checkpoint on)"
        raise UserError(problem, subject="placement: statistics", remedy=again)
    return replace(graph, pinned=np.full(len(graph.tasks), -1, np.int64)), at  # pinned to machines of another placement


def earlier_owners(instances: Instances) -> list[list[int]]:
    """Owners of the partition-groups of every stage by `placement.statistics`; none where there are none. UserError when they
    are not of this query."""
    settings = instances.config.reorganization.placement
    if settings.statistics is None or settings.policy == "round_robin":
        return []
    graph, at = _earlier(instances, settings.statistics)
    if not instances.teams.teams:
        problem = "no two stages share slave ranks, so there is nothing to place by traffic"
        raise UserError(problem, subject="placement: statistics", remedy="set cluster.strategy: query, or leave it out")
    return _placed(instances, graph, at)


def _placed(instances: Instances, graph: TaskGraph, at: I64) -> list[list[int]]:
    """Owners by what a graph has; of stages that share ranks with none, by number. graph, at: as of `_earlier`."""
    settings, groups = instances.config.reorganization.placement, instances.config.cluster.partition_count
    owners = [group_map.owner.tolist() for group_map in instances.group_maps]
    limit = int(FILLED * instances.config.module.window_bytes)
    for team in instances.teams.teams:
        tasks = np.concatenate([at[stage * groups : (stage + 1) * groups] for stage in team])
        count = instances.subclusters.counts[team[0]]
        memory = np.full(count, min(limit * len(team), 1 << 60), np.int64)
        machines = Machines(np.ones(count), instances.teams.host_of(team), memory)
        machine_of = place(graph.part(tasks), machines, settings, instances.config.seed, effort=BEFORE_A_RUN)
        for i, stage in enumerate(team):
            owners[stage] = machine_of[i * groups : (i + 1) * groups].tolist()
    return owners


def expected_crossing(instances: Instances, folder: str) -> dict[tuple[int, int], tuple[int, int, int]]:
    """By sending and receiving stage: bytes that a run in this directory had between them, those of them that would go between
    ranks with partition-groups by number, and those placed by that traffic. UserError when it is not of this query."""
    graph, at = _earlier(instances, folder)
    owners = _placed(instances, graph, at)
    groups, position = instances.config.cluster.partition_count, np.full(len(graph.tasks), -1, np.int64)
    position[at] = np.arange(len(at))
    ends = np.stack([position[graph.source], position[graph.target]])
    kept = (ends >= 0).all(axis=0)
    ends, nbytes = ends[:, kept], graph.nbytes[kept]
    first = np.repeat([ranks.start for ranks in instances.subclusters.ranks], groups)
    by_number = np.concatenate([group_map.owner for group_map in instances.group_maps])
    crosses = []
    for of_group in (by_number, np.concatenate([np.array(mine, np.int64) for mine in owners])):
        rank = first + of_group
        crosses.append(rank[ends[0]] != rank[ends[1]])
    sender, receiver = ends // groups
    found = {}
    for pair in sorted(set(zip(sender.tolist(), receiver.tolist(), strict=True))):
        mine = (sender == pair[0]) & (receiver == pair[1])
        total, before, after = (int(nbytes[mine & crossed].sum()) for crossed in (True, *crosses))
        found[pair] = total, before, after
    return found

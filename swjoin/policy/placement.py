"""Placement: the machine of every task of a graph, and the owner of every partition-group at the start of a run.

What: `place`, by the policies of `PLACEMENTS`; `PlacementConfig`; `decisive`, what a placement is decided by; `round_robin`, of
partition-groups, as in the paper. Pure.
Why: placement is a decision of a policy; what owns the tasks enacts it.
Stays out: moves during the run, partitioning (`policy.partitioning`), what a placement costs (`policy.task_graph`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from swjoin.core.batch import I64
from swjoin.policy.partitioning import Csr, Parts, attached, best_partition, least_full, scaled
from swjoin.policy.task_graph import Machines, TaskGraph

Objective: TypeAlias = Literal["bytes", "tuples"]
_ROUNDS = 8  # of merges at no loss


@dataclass(frozen=True)
class PlacementConfig:
    """policy: of `PLACEMENTS`. objective: which counts the cut is of. imbalance: how full the fullest machine may be, over its
    share of the work, at least 1; where no placement is so even, the most even ones count."""

    policy: str = "network"
    objective: Objective = "bytes"
    imbalance: float = 1.03


def round_robin(partition_count: int, slave_count: int) -> I64:
    """Owner of every partition-group: int64 (partition_count,) of slave ids; the counts of slaves differ by at most one."""
    return np.arange(partition_count, dtype=np.int64) % slave_count


def place(graph: TaskGraph, machines: Machines, settings: PlacementConfig, seed: int = 0, now: I64 | None = None) -> I64:
    """The machine of each task, int64 (t,): pinned tasks at theirs. now: int64 (t,), where the tasks are: the answer is no
    worse, and machines are named such that little state moves."""
    return PLACEMENTS[settings.policy](graph, machines, settings, seed, now)


def decisive(graph: TaskGraph) -> TaskGraph:
    """The graph with the work that decides: where no task has any, the tuples that it receives, or else 1."""
    if graph.work_ns.any() or not graph.tasks:
        return graph
    received = np.zeros(len(graph.tasks), np.int64)
    np.add.at(received, graph.target, scaled(graph.tuples, 1 << 52))
    return replace(graph, work_ns=received if received.any() else np.ones_like(received))


def _by_id(graph: TaskGraph, machines: Machines, _settings: PlacementConfig, _seed: int, _now: I64 | None) -> I64:
    """The paper's uniform: id modulo machines, of ids that are texts the index. Pinned tasks stay."""
    count = len(machines.speed)
    found = [(task if isinstance(task, int) else i) % count for i, task in enumerate(graph.tasks)]
    return np.where(graph.pinned >= 0, graph.pinned, np.array(found, np.int64))


def _by_traffic(graph: TaskGraph, machines: Machines, settings: PlacementConfig, seed: int, now: I64 | None) -> I64:
    """The least cut of real counts among the placements within the bound. Tasks are taken by id, not as they are listed."""
    graph, count = decisive(graph), len(machines.speed)
    known = [_by_id(graph, machines, settings, seed, None), np.arange(len(graph.tasks), dtype=np.int64) % count]
    known = [np.where(graph.pinned >= 0, graph.pinned, k) for k in (known if now is None else [*known, now])]
    order = np.array(sorted(range(len(graph.tasks)), key=lambda i: (isinstance(graph.tasks[i], str), graph.tasks[i])), np.int64)
    reduced = _reduced(graph, order, settings.objective)
    used = _machines_used(reduced, machines)
    parts, even = reduced.parts(machines, used, settings.imbalance)
    starts = [_renamed(k[order][reduced.root], used, count) for k in known]
    found = best_partition(parts, seed, [even, *starts])
    if now is not None and parts.rank(starts[-1])[:2] <= parts.rank(found)[:2]:
        return known[-1]
    machine_of = np.empty(len(order), np.int64)
    machine_of[order] = _completed(reduced, used[found], machines)
    return machine_of if now is None else _named_as(machine_of, now, graph, machines)


class _Reduced(NamedTuple):
    """A graph without what need not be decided: pinned tasks of a machine are one vertex, tasks without work are one with the
    neighbour that they are best placed beside, and what has neither work nor edges is left out.

    vertex: int64 (t,), of each task by id, below n, or beyond for what is left out. root: int64 (n,), a task whose machine is
    the vertex's. work, fixed: as in `Parts`.
    """

    vertex: I64
    root: I64
    graph: Csr
    work: I64
    fixed: I64

    def parts(self, machines: Machines, used: I64, imbalance: float) -> tuple[Parts, I64]:
        """The problem, with the room that machines have within the bound, or within the least that can be reached; and a
        partition within that room."""
        alike = np.unique(machines.speed[used], return_inverse=True)[1].astype(np.int64)
        taken = np.isin(used, self.fixed)
        alike[taken] = len(used) + np.arange(int(taken.sum()))
        fixed = np.where(self.fixed >= 0, np.searchsorted(used, self.fixed), -1)
        shares = machines.shares[used]
        asked = Fraction(str(imbalance)) * int(self.work.sum()) / len(machines.speed)
        room = np.array([int(asked * Fraction(share)) for share in shares.tolist()], np.int64)
        parts = Parts(self.graph, self.work, fixed, room, alike)
        even = least_full(parts, shares)
        load = np.bincount(even, self.work, len(used)).astype(np.int64)
        if (load > room).any():
            room = np.maximum(load, ((load / shares).max() * shares).astype(np.int64))
        return replace(parts, room=room), even


def _reduced(graph: TaskGraph, order: I64, objective: Objective) -> _Reduced:
    """order: int64 (t,), the tasks by id."""
    counts, others = (graph.nbytes, graph.tuples) if objective == "bytes" else (graph.tuples, graph.nbytes)
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    csr = Csr.build(len(order), at[graph.source], at[graph.target], counts if counts.any() else others)
    parts = Parts(csr, graph.work_ns[order], graph.pinned[order], order[:0], order[:0])
    pinned = np.flatnonzero(parts.fixed >= 0)
    _, first, which = np.unique(parts.fixed[pinned], return_index=True, return_inverse=True)
    onto = np.arange(len(order))
    onto[pinned] = pinned[first][which]
    root = vertex = np.arange(len(order))
    for _ in range(_ROUNDS):
        kept, cluster = np.unique(onto, return_inverse=True)
        root, vertex = root[kept], cluster[vertex]
        parts = parts.contracted(cluster, len(kept))
        onto = attached(*parts.graph, parts.work, parts.fixed)
        if (onto == np.arange(len(onto))).all():
            break
    idle = (parts.work == 0) & (parts.fixed < 0) & (np.diff(parts.graph.starts) == 0)
    name = np.empty(len(idle), np.int64)
    name[np.argsort(idle, kind="stable")] = np.arange(len(idle))
    parts = parts.contracted(name, len(idle))
    count = int((~idle).sum())
    starts = parts.graph.starts[: count + 1]
    csr = Csr(starts, parts.graph.neighbours, parts.graph.weights)
    return _Reduced(name[vertex], root[~idle], csr, parts.work[:count], parts.fixed[:count])


def _machines_used(reduced: _Reduced, machines: Machines) -> I64:
    """Those with pinned tasks, and of the others, fastest first, as many as there are vertices: int64 (m,), ascending."""
    taken = np.unique(reduced.fixed[reduced.fixed >= 0])
    others = np.setdiff1d(np.arange(len(machines.speed)), taken)
    others = others[np.argsort(-machines.speed[others], kind="stable")]
    most = int((reduced.fixed < 0).sum())
    return np.sort(np.concatenate((taken, others[: max(most, 1 - len(taken))])))


def _renamed(machine_of: I64, used: I64, count: int) -> I64:
    """Indexes among the machines used; a machine that is not used is one that no vertex is at."""
    index = np.full(count, -1, np.int64)
    index[used] = np.arange(len(used))
    strange = np.unique(machine_of[index[machine_of] < 0])
    index[strange] = np.setdiff1d(np.arange(len(used)), index[machine_of])[: len(strange)]
    return index[machine_of]


def _completed(reduced: _Reduced, machine_of: I64, machines: Machines) -> I64:
    """The machine of every task by id. What has neither work nor edges goes where there are the fewest tasks."""
    idle = int(reduced.vertex.max(initial=-1)) + 1 - len(machine_of)
    counts = np.bincount(machine_of[reduced.vertex[reduced.vertex < len(machine_of)]], minlength=len(machines.speed))
    heap = [(int(n), m) for m, n in enumerate(counts.tolist())]
    heapq.heapify(heap)
    spread = []
    for _ in range(idle):
        n, m = heap[0]
        spread.append(m)
        heapq.heapreplace(heap, (n + 1, m))
    return np.concatenate((machine_of, np.array(spread, np.int64)))[reduced.vertex]


def _named_as(machine_of: I64, now: I64, graph: TaskGraph, machines: Machines) -> I64:
    """The same parts at machines of the same speed, those first that have most of a part's state already."""
    count = len(machines.speed)
    pairs, which = np.unique(machine_of * count + now, return_inverse=True)
    state = np.zeros(len(pairs), np.int64)
    np.add.at(state, which, graph.state_bytes + 1)
    name = np.full(count, -1, np.int64)
    name[graph.pinned[graph.pinned >= 0]] = graph.pinned[graph.pinned >= 0]
    taken = name >= 0
    for pair in pairs[np.argsort(-state, kind="stable")].tolist():
        part, machine = divmod(pair, count)
        if name[part] < 0 and not taken[machine] and machines.speed[part] == machines.speed[machine]:
            name[part], taken[machine] = machine, True
    for speed in np.unique(machines.speed):
        alike = machines.speed == speed
        name[alike & (name < 0)] = np.flatnonzero(alike & ~taken)
    return name[machine_of]


PLACEMENTS: dict[str, Callable[[TaskGraph, Machines, PlacementConfig, int, I64 | None], I64]] = {
    "network": _by_traffic,
    "round_robin": _by_id,
}

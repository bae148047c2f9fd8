"""Placement: the machine of every task of a graph, and the owner of every partition-group at the start of a run.

What: `place`; `suggest`, moves that are worth their state, and `is_worth`, whether some of these are; `decisive`, what a
placement is decided by; `round_robin`, of partition-groups, as in the paper. Pure.
Why: placement is a decision of a policy; what owns the tasks enacts it.
Stays out: partitioning (`policy.partitioning`), what a placement costs (`policy.task_graph`), counting and enacting
(`cluster.master.network_placement`).
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from swjoin.config.sections import PlacementConfig
from swjoin.core.batch import I64
from swjoin.policy.partitioning import THOROUGH, Csr, Effort, Parts, attached, best_partition, least_full, scaled
from swjoin.policy.task_graph import Cost, Machines, Objective, TaskGraph, cost

_ROUNDS = 8  # of merges at no loss
FILLED = 0.5  # of the limit of an instance's windows, up to which a placement may fill it
_HYSTERESIS = 0.2  # by which savings have to exceed the state that moves, so that equal placements do not alternate
IN_A_RUN = Effort(1, with_metis=False, steps=500)  # the master does nothing else then; the next epoch tries again
BEFORE_A_RUN = Effort(with_metis=False)
_IN_HOST = 0.1  # cost of a byte within a host, over that of one between hosts
_MOVE_BYTES = 1 << 16  # that a move counts for besides its state: orders, acknowledgements, rows that wait
_RELIEF = 0.9  # of what a machine holds beyond its memory, to which moves have to bring it
_OVERFULL = 1.2  # work of the fullest machine over its share, above which it is relieved whatever the traffic


def round_robin(partition_count: int, slave_count: int) -> I64:
    """Owner of every partition-group: int64 (partition_count,) of slave ids; the counts of slaves differ by at most one."""
    return np.arange(partition_count, dtype=np.int64) % slave_count


def place(
    graph: TaskGraph,
    machines: Machines,
    settings: PlacementConfig,
    seed: int = 0,
    now: I64 | None = None,
    effort: Effort = THOROUGH,
) -> I64:
    """The machine of each task, int64 (t,): pinned tasks at theirs. now: int64 (t,), where the tasks are: the answer is no
    worse, and machines are named such that little state moves."""
    if settings.policy == "round_robin":
        return _by_id(graph, machines)
    by = _by_hosts if machines.several_hosts else _by_traffic
    counted: tuple[Objective, ...] = (settings.objective, "bytes", "tuples", "deliveries")
    settings = replace(settings, objective=next((of for of in counted if graph.weights(of).any()), settings.objective))
    return by(*_in_units(decisive(graph), machines), settings, (seed, effort), now)


def _in_units(graph: TaskGraph, machines: Machines) -> tuple[TaskGraph, Machines]:
    """State and memory in units in which all state is below 2^60, and no machine has more memory than that."""
    total = sum(graph.state_bytes.tolist())
    unit = 1 << max(0, total.bit_length() - 60)
    if machines.memory_bytes is not None:
        machines = replace(machines, memory_bytes=np.minimum(-(-machines.memory_bytes // unit), 1 << 60))
    return replace(graph, state_bytes=-(-graph.state_bytes // unit)), machines


def suggest(graph: TaskGraph, machines: Machines, settings: PlacementConfig, seed: int, now: I64, *, busy: bool) -> I64:
    """The tasks that are worth moving, each to its machine in the answer: int64 (t,), otherwise `now`, where the tasks are.

    graph: counts of one reorganization epoch. Tasks that have to change together, because heavy edges join them, move together.
    A move is made if the bytes that it saves in `settings.horizon` epochs exceed its state (spec KATTS 3.7). busy: whether a
    machine that has far more work than its share is to be relieved in any case, as one that holds more than its memory is.
    """
    graph = decisive(graph)
    target = place(graph, machines, settings, seed, now, IN_A_RUN)
    if (target == now).all():
        return now
    before, after = (cost(graph, each, machines) for each in (now, target))
    full, held = before.fullest_ratio, before.memory_ratio
    most, most_held = max(settings.imbalance, full), max(1.0, held)
    all_of_them = _moved_bytes(graph, np.flatnonzero(now != target))
    if _relieves(before, after, settings, busy=busy) or (
        after.memory_ratio <= most_held and _pays(before, after, all_of_them, settings)
    ):
        return target
    chains = []
    for tasks in _chains(graph, now, target):
        alone = cost(graph, _moved(now, target, tasks), machines)
        saved, state = _network(before, settings) - _network(alone, settings), _moved_bytes(graph, tasks)
        chains.append((-saved / state, int(tasks[0]), tasks, state))
    found, of = now, before
    for _, _, tasks, state in sorted(chains, key=lambda chain: chain[:2]):
        moved = _moved(found, target, tasks)
        then = cost(graph, moved, machines)
        even = then.fullest_ratio <= most and then.memory_ratio <= most_held
        if even and _pays(of, then, state, settings):
            found, of = moved, then
    return found


def is_worth(graph: TaskGraph, machines: Machines, settings: PlacementConfig, now: I64, then: I64, *, busy: bool) -> bool:
    """Whether the moves from `now` to `then`, a part of those that `suggest` gives, are still worth their state."""
    graph = decisive(graph)
    before, after = (cost(graph, each, machines) for each in (now, then))
    full, held = before.fullest_ratio, before.memory_ratio
    if after.fullest_ratio > max(_tolerated(settings), full) or after.memory_ratio > max(1.0, held):
        return False
    moved = _moved_bytes(graph, np.flatnonzero(now != then))
    return _relieves(before, after, settings, busy=busy) or _pays(before, after, moved, settings)


def _relieves(before: Cost, after: Cost, settings: PlacementConfig, *, busy: bool) -> bool:
    """Whether a machine that is overfull, of work or of memory, has less. busy: as of `suggest`."""
    full, held = before.fullest_ratio, before.memory_ratio
    of_work = busy and full > max(_OVERFULL, settings.imbalance) and after.fullest_ratio < full
    return of_work or (held > 1 and after.memory_ratio < _RELIEF * held)


def _moved(now: I64, target: I64, tasks: I64) -> I64:
    found = now.copy()
    found[tasks] = target[tasks]
    return found


def _network(of: Cost, settings: PlacementConfig) -> float:
    """What a placement costs; between machines that have a host each, all of what goes between them."""
    apart, between = of.crossing(settings.objective)
    return apart + _IN_HOST * (between - apart)


def _pays(before: Cost, after: Cost, state: int, settings: PlacementConfig) -> bool:
    """Whether what is saved exceeds the state that moves. Tuples are compared with tuples: of state, as many as its bytes would
    be of those that travel. state: as of `_moved_bytes`."""
    saved = _network(before, settings) - _network(after, settings)
    unit = 1.0 if settings.objective != "tuples" else before.total_tuples / max(1, before.total_bytes)
    return saved > 0 and saved * settings.horizon > state * unit * (1 + _HYSTERESIS)


def _moved_bytes(graph: TaskGraph, tasks: I64) -> int:
    return int(graph.state_bytes[tasks].sum()) + _MOVE_BYTES * len(tasks)


def _chains(graph: TaskGraph, now: I64, target: I64) -> list[I64]:
    """The tasks that move, each with the task that it exchanges most with, if that one moves alike."""
    count = len(now)
    csr = Csr.build(count, graph.source, graph.target, graph.nbytes if graph.nbytes.any() else graph.tuples)
    moves, root = np.flatnonzero(now != target), np.arange(count)
    for task in moves.tolist():
        edges = slice(int(csr.starts[task]), int(csr.starts[task + 1]))
        if edges.start == edges.stop:
            continue
        other = int(csr.neighbours[edges][csr.weights[edges].argmax()])
        if now[other] != target[other] and (now[other], target[other]) == (now[task], target[task]):
            one, two = root[task], root[other]
            root[root == max(one, two)] = min(one, two)
    return [moves[root[moves] == r] for r in np.unique(root[moves])]


def decisive(graph: TaskGraph) -> TaskGraph:
    """The graph with the work that decides: where no task has any, the tuples that it receives, or else 1."""
    if graph.work_ns.any() or not graph.tasks:
        return graph
    received = np.zeros(len(graph.tasks), np.int64)
    np.add.at(received, graph.target, scaled(graph.tuples, 1 << 52))
    return replace(graph, work_ns=received if received.any() else np.ones_like(received))


def _by_id(graph: TaskGraph, machines: Machines) -> I64:
    """The paper's uniform: id modulo machines, of ids that are texts the index. Pinned tasks stay."""
    count = len(machines.speed)
    found = [(task if isinstance(task, int) else i) % count for i, task in enumerate(graph.tasks)]
    return np.where(graph.pinned >= 0, graph.pinned, np.array(found, np.int64))


def _by_traffic(
    graph: TaskGraph, machines: Machines, settings: PlacementConfig, search: tuple[int, Effort], now: I64 | None
) -> I64:
    """The least cut of real counts among the placements within the bound. Tasks are taken by id, not as they are listed."""
    count, (seed, effort) = len(machines.speed), search
    known = [_by_id(graph, machines), np.arange(len(graph.tasks), dtype=np.int64) % count]
    known = [np.where(graph.pinned >= 0, graph.pinned, k) for k in (known if now is None else [*known, now])]
    order = np.array(sorted(range(len(graph.tasks)), key=lambda i: (isinstance(graph.tasks[i], str), graph.tasks[i])), np.int64)
    reduced = _reduced(graph, order, machines, settings)
    used = _machines_used(reduced, machines)
    parts, even = reduced.parts(machines, used, settings.imbalance)
    starts = [_renamed(k[order][reduced.root], used, count) for k in known]
    found = best_partition(parts, seed, [even, *starts], effort)
    machine_of = np.empty(len(order), np.int64)
    machine_of[order] = _completed(reduced, used[found], machines)
    if now is None:
        return machine_of
    machine_of = _named_as(machine_of, now, graph, machines)
    better = _rank(graph, machine_of, machines, settings) < _rank(graph, known[-1], machines, settings)
    return machine_of if better else known[-1]


def _by_hosts(
    graph: TaskGraph, machines: Machines, settings: PlacementConfig, search: tuple[int, Effort], now: I64 | None
) -> I64:
    """On hosts first, by what goes between them, and then on the machines of each (spec KATTS 3.4)."""
    assert machines.host is not None, "machines without hosts"
    _, host_of = np.unique(machines.host, return_inverse=True)
    memory = machines.memory_bytes
    of_hosts = None
    if memory is not None:
        of_hosts = np.array([min(1 << 60, sum(memory[host_of == host].tolist())) for host in range(host_of.max() + 1)])
    hosts = Machines(np.bincount(host_of, machines.speed).astype(np.float64), memory_bytes=of_hosts)
    outer = replace(graph, pinned=np.where(graph.pinned >= 0, host_of[graph.pinned], -1))
    at = _by_traffic(outer, hosts, settings, search, None if now is None else host_of[now])
    found, total = np.empty(len(at), np.int64), int(graph.work_ns.sum())
    for host in range(len(hosts.speed)):
        tasks, mine = np.flatnonzero(at == host), np.flatnonzero(host_of == host)
        if not len(tasks):
            continue
        index = np.full(len(host_of), -1, np.int64)
        index[mine] = np.arange(len(mine))
        part = graph.part(tasks)
        part = replace(part, pinned=np.where(part.pinned >= 0, index[part.pinned], -1))
        here = None
        if now is not None:  # those that come are anywhere
            here = np.where(index[now[tasks]] >= 0, index[now[tasks]], np.arange(len(tasks)) % len(mine))
        share = hosts.shares[host] * total / len(hosts.speed)
        room = max(1.0, settings.imbalance * share / max(1, int(part.work_ns.sum())))
        inner = replace(settings, imbalance=min(room, 1e9))
        of_host = Machines(machines.speed[mine], memory_bytes=None if memory is None else memory[mine])
        found[tasks] = mine[_by_traffic(part, of_host, inner, search, here)]
    candidates = [found, _by_id(graph, machines)]
    of = cost(graph, found, machines)
    if of.memory_ratio > 1 or of.fullest_ratio > _tolerated(settings):  # what a host has in all may not be where it is needed
        flat = _by_traffic(graph, machines, settings, search, now)
        candidates += [flat, _on_hosts(graph, flat, machines, settings, search)]
    candidates = candidates if now is None else [now, *candidates]
    return min(candidates, key=lambda machine_of: _rank(graph, machine_of, machines, settings))


def _on_hosts(
    graph: TaskGraph, machine_of: I64, machines: Machines, settings: PlacementConfig, search: tuple[int, Effort]
) -> I64:
    """The same parts at other machines, by what goes between hosts; as they are, where machines differ."""
    assert machines.host is not None, "machines without hosts"
    if machines.kinds.any():
        return machine_of
    _, host_of = np.unique(machines.host, return_inverse=True)
    room, count, free = np.bincount(host_of), len(host_of), np.full(len(host_of), -1, np.int64)
    holds = np.isin(np.arange(count), graph.pinned)  # a part with pinned tasks is at their machine
    ends, ones = (machine_of[graph.source], machine_of[graph.target]), np.ones(count, np.int64)
    pinned = np.where(holds, host_of, free)
    counts = graph.tuples, graph.nbytes, graph.deliveries
    parts = TaskGraph(tuple(range(count)), ones, np.zeros_like(ones), pinned, *ends, *counts)
    at = _by_traffic(parts, Machines(room.astype(np.float64)), replace(settings, imbalance=1.0), search, None)
    if (np.bincount(at, minlength=len(room)) != room).any():
        return machine_of
    name = np.where(holds, np.arange(count), free)
    for host in range(len(room)):
        name[(at == host) & ~holds] = np.flatnonzero((host_of == host) & ~holds)
    return name[machine_of]


def _rank(graph: TaskGraph, machine_of: I64, machines: Machines, settings: PlacementConfig) -> tuple[float, float, int, int]:
    """Smaller is better: state beyond the memory, work beyond the bound, what goes between hosts, and between machines."""
    of = cost(graph, machine_of, machines)
    full = of.fullest_ratio if of.fullest_ratio > _tolerated(settings) else settings.imbalance
    return max(of.memory_ratio, 1.0), full, *of.crossing(settings.objective)


def _tolerated(settings: PlacementConfig) -> float:
    """The bound, and what rounding may add to a machine that is just as full."""
    return settings.imbalance * (1 + 1e-12)


class _Reduced(NamedTuple):
    """A graph without what need not be decided: pinned tasks of a machine are one vertex, tasks without work or state are one
    with the neighbour that they are best placed beside, and what has no edges either is left out.

    vertex: int64 (t,), of each task by id, below n, or beyond for what is left out. root: int64 (n,), a task whose machine is
    the vertex's. work, state, fixed: as in `Parts`; no state where memory is not limited.
    """

    vertex: I64
    root: I64
    graph: Csr
    work: I64
    state: I64
    fixed: I64

    def parts(self, machines: Machines, used: I64, imbalance: float) -> tuple[Parts, I64]:
        """The problem, with the room that machines have within the bound, or within the least that can be reached, and their
        memory, or what is needed at least; and a partition within these."""
        memory, alike = np.zeros(len(used), np.int64), machines.kinds[used]
        if machines.memory_bytes is not None:
            memory = np.minimum(machines.memory_bytes[used], self.state.sum())
        taken = np.isin(used, self.fixed)
        alike[taken] = len(machines.speed) + np.arange(int(taken.sum()))
        fixed = np.where(self.fixed >= 0, np.searchsorted(used, self.fixed), -1)
        shares, speeds = machines.shares[used], [Fraction(speed) for speed in machines.speed.tolist()]
        asked = Fraction(str(imbalance)) * int(self.work.sum()) / sum(speeds)  # of a machine of speed 1
        room = np.array([int(asked * speeds[machine]) for machine in used.tolist()], np.int64)
        parts = Parts(self.graph, self.work, self.state, fixed, room, memory, alike)
        even = least_full(parts, shares)
        load = np.bincount(even, self.work, len(used)).astype(np.int64)
        if (load > room).any():
            room = np.maximum(load, ((load / shares).max() * shares).astype(np.int64))
        return replace(parts, room=room, memory=np.maximum(memory, parts.held(even))), even


def _reduced(graph: TaskGraph, order: I64, machines: Machines, settings: PlacementConfig) -> _Reduced:
    """order: int64 (t,), the tasks by id."""
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    csr = Csr.build(len(order), at[graph.source], at[graph.target], graph.weights(settings.objective))
    state = graph.state_bytes[order] if machines.memory_bytes is not None else np.zeros(len(order), np.int64)
    parts = Parts(csr, graph.work_ns[order], state, graph.pinned[order], *3 * (order[:0],))
    pinned = np.flatnonzero(parts.fixed >= 0)
    _, first, which = np.unique(parts.fixed[pinned], return_index=True, return_inverse=True)
    onto = np.arange(len(order))
    onto[pinned] = pinned[first][which]
    root = vertex = np.arange(len(order))
    for _ in range(_ROUNDS):
        kept, cluster = np.unique(onto, return_inverse=True)
        root, vertex = root[kept], cluster[vertex]
        parts = parts.contracted(cluster, len(kept))
        onto = attached(*parts.graph, parts.work | parts.state, parts.fixed)
        if (onto == np.arange(len(onto))).all():
            break
    idle = (parts.work | parts.state == 0) & (parts.fixed < 0) & (np.diff(parts.graph.starts) == 0)
    name = np.empty(len(idle), np.int64)
    name[np.argsort(idle, kind="stable")] = np.arange(len(idle))
    parts = parts.contracted(name, len(idle))
    count = int((~idle).sum())
    starts = parts.graph.starts[: count + 1]
    csr = Csr(starts, parts.graph.neighbours, parts.graph.weights)
    return _Reduced(name[vertex], root[~idle], csr, parts.work[:count], parts.state[:count], parts.fixed[:count])


def _machines_used(reduced: _Reduced, machines: Machines) -> I64:
    """Those with pinned tasks, and of the others, fastest first, as many as there are vertices; where memory is limited, of
    each kind. int64 (m,), ascending."""
    taken = np.unique(reduced.fixed[reduced.fixed >= 0])
    others = np.setdiff1d(np.arange(len(machines.speed)), taken)
    others = others[np.argsort(-machines.speed[others], kind="stable")]
    most = max(int((reduced.fixed < 0).sum()), 1 - len(taken))
    if machines.memory_bytes is None:
        return np.sort(np.concatenate((taken, others[:most])))
    kinds = machines.kinds[others]
    first = [np.flatnonzero(kinds == kind)[:most] for kind in np.unique(kinds)]
    return np.sort(np.concatenate((taken, others[np.concatenate((others[:0], *first))])))


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
    """The same parts at machines of the same speed and memory, those first that have most of a part's state already."""
    count = len(machines.speed)
    kind = machines.kinds
    pairs, which = np.unique(machine_of * count + now, return_inverse=True)
    state = np.zeros(len(pairs), np.int64)
    np.add.at(state, which, graph.state_bytes + 1)
    name = np.full(count, -1, np.int64)
    name[graph.pinned[graph.pinned >= 0]] = graph.pinned[graph.pinned >= 0]
    taken = name >= 0
    for pair in pairs[np.argsort(-state, kind="stable")].tolist():
        part, machine = divmod(pair, count)
        if name[part] < 0 and not taken[machine] and kind[part] == kind[machine]:
            name[part], taken[machine] = machine, True
    for each in np.unique(kind):
        alike = kind == each
        name[alike & (name < 0)] = np.flatnonzero(alike & ~taken)
    return name[machine_of]

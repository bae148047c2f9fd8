"""Graphs of tasks that exchange messages, machines, and what a placement of the tasks costs.

What: `TaskGraph`, `Machines`, `Cost`; `cost`, of one placement.
Why: a tuple between machines costs ten to a hundred times one within a machine, so a placement is measured by what it sends
over the network, and by the work of the machine that has most.
Stays out: finding a placement (`policy.placement`, `policy.partitioning`), files of graphs (`cli.place`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, Bool

F64 = NDArray[np.float64]
Objective = Literal["bytes", "tuples", "deliveries"]
DELIVERY_BYTES = 1 << 16  # that take a link of 10 Gbit/s as long as a rank works for a message (`forecast.costs`)
TaskId: TypeAlias = int | str
_LOW = np.int64(0xFFFFFFFF)


@dataclass(frozen=True)
class TaskGraph:
    """Tasks, and directed edges between them with what was counted on each.

    tasks: ids, all different. work_ns: int64 (t,), measured work, in ns or any other unit, in all below 2^53. state_bytes:
    int64 (t,). pinned: int64 (t,), machine of a task that cannot move, or -1. source, target: int64 (e,), indexes of tasks; an
    edge may be there twice, or be a loop. tuples, nbytes, deliveries: int64 (e,), counts of one stretch of time.
    """

    tasks: tuple[TaskId, ...]
    work_ns: I64
    state_bytes: I64
    pinned: I64
    source: I64
    target: I64
    tuples: I64
    nbytes: I64
    deliveries: I64

    def weights(self, objective: Objective) -> I64:
        """What each edge counts, int64 (e,): with `deliveries` its bytes, and `DELIVERY_BYTES` for each message."""
        if objective != "deliveries":
            return self.nbytes if objective == "bytes" else self.tuples
        most = np.iinfo(np.int64).max
        of_messages = np.minimum(self.deliveries, most // DELIVERY_BYTES) * DELIVERY_BYTES
        found: I64 = self.nbytes + np.minimum(of_messages, most - self.nbytes)
        return found

    def part(self, tasks: I64) -> TaskGraph:
        """These tasks, numbered from 0, and the edges between them. tasks: int64 (n,), indexes."""
        index = np.full(len(self.tasks), -1, np.int64)
        index[tasks] = np.arange(len(tasks))
        source, target = index[self.source], index[self.target]
        kept = (source >= 0) & (target >= 0)
        return TaskGraph(
            tuple(range(len(tasks))),
            self.work_ns[tasks],
            self.state_bytes[tasks],
            self.pinned[tasks],
            source[kept],
            target[kept],
            self.tuples[kept],
            self.nbytes[kept],
            self.deliveries[kept],
        )


@dataclass(frozen=True)
class Machines:
    """speed: float64 (m,), positive; work is to be shared in proportion to it. host: int64 (m,), a number for each host, where
    several machines share some; None: all are equally far from each other. memory_bytes: int64 (m,), state that each may hold;
    None: any."""

    speed: F64
    host: I64 | None = None
    memory_bytes: I64 | None = None

    @classmethod
    def alike(cls, count: int, host: I64 | None = None) -> Machines:
        return cls(np.ones(count), host)

    @property
    def several_hosts(self) -> bool:
        """Whether some machines are nearer to each other than others."""
        return self.host is not None and 1 < len(np.unique(self.host)) < len(self.speed)

    @property
    def kinds(self) -> I64:
        """A number for each, the same for those of the same speed and memory: int64 (m,)."""
        memory = np.zeros(len(self.speed)) if self.memory_bytes is None else self.memory_bytes.astype(np.float64)
        found = np.unique(np.stack([self.speed, memory], axis=1), axis=0, return_inverse=True)[1]
        return found.reshape(-1).astype(np.int64)

    @property
    def shares(self) -> F64:
        """Share of all work that each is to have, over that of machines of the mean speed: float64 (m,)."""
        shares: F64 = self.speed / self.speed.mean()
        return shares


@dataclass(frozen=True)
class Cost:
    """What a placement costs by the counts of a graph.

    network_tuples, network_bytes, network_deliveries: between machines. host_tuples, host_bytes, host_deliveries: of these,
    between hosts. total_tuples, total_bytes, total_deliveries: of all edges, loops among them. load: float64 (m,), work of each
    machine. fullest_ratio: work of the fullest over its share of all, 1 where there is no work. rsd: standard deviation of load
    over share, relative to the mean, of all machines. memory_ratio: state of the machine with the least memory left, over its
    memory; 0 where any is enough.
    """

    network_tuples: int
    total_tuples: int
    network_bytes: int
    total_bytes: int
    load: F64
    fullest_ratio: float
    rsd: float
    host_tuples: int
    host_bytes: int
    memory_ratio: float
    network_deliveries: int
    total_deliveries: int
    host_deliveries: int

    def crossing(self, objective: Objective) -> tuple[int, int]:
        """What goes between hosts, and what goes between machines, in the counts of `TaskGraph.weights`."""
        if objective == "tuples":
            return self.host_tuples, self.network_tuples
        each = DELIVERY_BYTES if objective == "deliveries" else 0
        return self.host_bytes + each * self.host_deliveries, self.network_bytes + each * self.network_deliveries


def cost(graph: TaskGraph, machine_of: I64, machines: Machines) -> Cost:
    """machine_of: int64 (t,)."""
    crosses = apart = machine_of[graph.source] != machine_of[graph.target]
    if machines.host is not None:
        apart = machines.host[machine_of][graph.source] != machines.host[machine_of][graph.target]
    load = np.bincount(machine_of, graph.work_ns, len(machines.speed)).astype(np.float64)
    # load * m / total is 1.03 where it is 103 of 100; load / (total / m) might be a little more
    total = float(load.sum())
    ratio = load * len(load) / total / machines.shares if total else np.ones(len(load))
    held = 0.0
    if machines.memory_bytes is not None:
        of_machine = np.bincount(machine_of, graph.state_bytes, len(machines.speed))
        held = float((of_machine / np.maximum(machines.memory_bytes, 0.5)).max())  # a byte is too much where there is none
    return Cost(
        _sum(graph.tuples, crosses),
        _sum(graph.tuples),
        _sum(graph.nbytes, crosses),
        _sum(graph.nbytes),
        load,
        float(ratio.max()),
        float(ratio.std()),
        _sum(graph.tuples, apart),
        _sum(graph.nbytes, apart),
        held,
        _sum(graph.deliveries, crosses),
        _sum(graph.deliveries),
        _sum(graph.deliveries, apart),
    )


def _sum(counts: I64, chosen: Bool | None = None) -> int:
    """Exactly: counts up to 2^63 - 1, whose sum is more than 64 bits hold."""
    counts = counts if chosen is None else counts[chosen]
    return (int((counts >> 32).sum()) << 32) + int((counts & _LOW).sum())

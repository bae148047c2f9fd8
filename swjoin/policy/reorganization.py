"""The choice of moves at the end of a reorganization epoch (paper section IV-C): pure functions of loads.

What: `classify` (supplier, consumer, neutral), `empty_slaves`, and the policies `paper`, `balanced`, `random`, by name in
`POLICIES`.
Why: a policy suggests, the master enacts; so policies can be compared, tested on a table of numbers, and replaced.
Stays out: the number of active slaves (`policy.declustering`), enacting (`cluster.master.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from swjoin.config.run import ReorganizationConfig
from swjoin.core.batch import I64
from swjoin.core.ids import GroupId, SlaveId


class Kind(StrEnum):
    """The role of a slave in this reorganization epoch."""

    SUPPLIER = "supplier"
    CONSUMER = "consumer"
    NEUTRAL = "neutral"


@dataclass(frozen=True)
class SlaveLoad:
    """An active slave at the end of a reorganization epoch.

    occupancy_ratio: average over its distribution epochs. groups: movable partition-groups, int64 (g,), ascending. busy_ratio:
    share of time in the join module, in all stages that its rank plays. cost_ns, state_bytes: nominal work and window bytes of
    each partition-group, int64 (g,); zeros when not reported. speed: nominal work per time, 1 on an idle node of full speed.
    emptying: about to become inactive. coming_cost_ns: work of incoming partition-groups. moving: a move from or to it is in
    flight. backlog_ratio: unjoined bytes over bytes delivered since the last reorganization epoch.
    """

    slave: SlaveId
    occupancy_ratio: float
    groups: I64
    busy_ratio: float
    cost_ns: I64
    state_bytes: I64
    speed: float = 1.0
    emptying: bool = False
    coming_cost_ns: int = 0
    moving: bool = False
    backlog_ratio: float = 0.0


@dataclass(frozen=True)
class Suggestion:
    """A suggested move of a partition-group, with its reason."""

    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    reason: str


def classify(load: SlaveLoad, config: ReorganizationConfig) -> Kind:
    """Supplier above Th_sup, consumer below Th_con, neutral between; a slave that is being emptied is neutral."""
    if load.emptying:
        return Kind.NEUTRAL
    if load.occupancy_ratio > config.supplier_threshold:
        return Kind.SUPPLIER
    return Kind.CONSUMER if load.occupancy_ratio < config.consumer_threshold else Kind.NEUTRAL


def empty_slaves(loads: Sequence[SlaveLoad], config: ReorganizationConfig) -> list[Suggestion]:
    """Move partition-groups of slaves that are being emptied to the others in turn, the least occupied first."""
    others = sorted((x for x in loads if not x.emptying), key=lambda x: (x.occupancy_ratio, x.slave))
    out: list[Suggestion] = []
    for load in (x for x in loads if x.emptying and others):
        for group in load.groups[: config.emptied_groups].tolist():
            to = others[len(out) % len(others)].slave
            out.append(Suggestion(GroupId(group), load.slave, to, f"slave {load.slave} is about to rest"))
    return out


def paper(loads: Sequence[SlaveLoad], config: ReorganizationConfig, random: np.random.Generator) -> list[Suggestion]:
    """One scan pairs each consumer with a supplier; each supplier of a pair yields one partition-group, chosen at random."""
    kinds = [classify(load, config) for load in loads]
    suppliers = [x for x, kind in zip(loads, kinds, strict=True) if kind == Kind.SUPPLIER and len(x.groups)]
    consumers = [x for x, kind in zip(loads, kinds, strict=True) if kind == Kind.CONSUMER]
    out = []
    for supplier, consumer in zip(suppliers, consumers, strict=False):
        group = int(supplier.groups[random.integers(len(supplier.groups))])
        reason = f"occupancy {supplier.occupancy_ratio:.3f} > {config.supplier_threshold:g} yields to "
        reason += f"{consumer.occupancy_ratio:.3f} < {config.consumer_threshold:g}"
        out.append(Suggestion(GroupId(group), supplier.slave, consumer.slave, reason))
    return out


BUSY = 0.75  # busy ratio up to which no slave needs relief
_TOLERANCE = 0.2  # slaves within this of the mean are left alone: a move would cost more than it gains


def balanced(loads: Sequence[SlaveLoad], config: ReorganizationConfig, random: np.random.Generator) -> list[Suggestion]:
    """Move partition-groups until every slave's time is near the mean.

    A slave's time is the nominal work of its partition-groups, backlog included, over its speed: a slow node receives less.
    Each move goes from the slave with the most time to the one with the least: the partition-group that lowers the larger of
    both times most, or one within 10 % of that gain and with less state. The policy ends when no move gains 1 % of the mean.
    Slaves with moves in flight are left alone, as their loads after the move are not known yet.
    """
    slaves = [x for x in loads if not x.emptying]
    if len(slaves) < 2 or max(x.busy_ratio for x in slaves) < BUSY:
        return []
    settled = np.array([not x.moving for x in slaves])
    free = {i: dict(zip(x.groups.tolist(), range(len(x.groups)), strict=True)) for i, x in enumerate(slaves)}
    costs = [x.cost_ns * (1 + x.backlog_ratio) for x in slaves]  # work done, and work due
    work = np.array([c.sum() + x.coming_cost_ns for c, x in zip(costs, slaves, strict=True)])
    speed = np.array([x.speed for x in slaves])
    time, mean = work / speed, float(work.sum() / speed.sum())
    out: list[Suggestion] = []
    while mean > 0:
        high, low = int(np.where(settled, time, -1.0).argmax()), int(np.where(settled, time, np.inf).argmin())
        candidates = np.array(list(free[high].values()), np.int64)
        if time[high] <= (1 + _TOLERANCE) * mean or len(candidates) == 0 or not settled[[high, low]].all():
            break
        supplier, consumer = slaves[high], slaves[low]
        cost = costs[high][candidates]
        after = np.maximum(time[high] - cost / supplier.speed, time[low] + cost / consumer.speed)
        gain = time[high] - after
        if gain.max() < 0.01 * mean:
            break
        good = np.flatnonzero(gain >= 0.9 * gain.max())
        best = int(good[supplier.state_bytes[candidates[good]].argmin()])
        index = int(candidates[best])
        group = int(supplier.groups[index])
        share = (time[high] / mean, time[low] / mean)
        time[high] -= cost[best] / supplier.speed
        time[low] += cost[best] / consumer.speed
        del free[high][group]
        shares = (*share, time[high] / mean, time[low] / mean)
        reason = "work of {:.2f} and {:.2f} of the mean; after it {:.2f} and {:.2f}".format(*shares)
        out.append(Suggestion(GroupId(group), supplier.slave, consumer.slave, reason))
    return out


def at_random(loads: Sequence[SlaveLoad], config: ReorganizationConfig, random: np.random.Generator) -> list[Suggestion]:
    """Move `random_moves` random partition-groups to random slaves, whatever the loads."""
    owners = [(int(group), x.slave) for x in loads if not x.emptying for group in x.groups]
    slaves = [x.slave for x in loads if not x.emptying]
    out = []
    for index in random.permutation(len(owners))[: config.random_moves].tolist():
        group, supplier = owners[index]
        others = [s for s in slaves if s != supplier]
        if others:
            out.append(Suggestion(GroupId(group), supplier, others[int(random.integers(len(others)))], "at random"))
    return out


Policy = Callable[[Sequence[SlaveLoad], ReorganizationConfig, np.random.Generator], list[Suggestion]]
POLICIES: dict[str, Policy] = {"paper": paper, "balanced": balanced, "random": at_random}

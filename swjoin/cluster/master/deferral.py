"""Slaves without room: their tuples wait apart at the master, and they hold nobody up (realtime pace).

What: `defer_full_slaves`, before the slot of some slaves is drained.
Why: a full slave must neither stop the others nor be sent what it cannot keep; nobody gets more than a stream buffer at once.
Stays out: the shelves themselves (`cluster.master.mini_buffers`), who is served when (`cluster.master.master`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swjoin.cluster.master.arrival_sequence import ArrivalSequence
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.mini_buffers import MiniBuffers
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.ids import BEGIN_OF_TIME_US, SlaveId

Times = tuple[int, int]
_NOTHING = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


def defer_full_slaves(
    buffers: MiniBuffers,
    controller: Controller,
    slaves: Sequence[SlaveId],
    occupancies: Mapping[SlaveId, float],
    promised: Mapping[SlaveId, Times],
    limit_bytes: int,
    rebase_us: int,
    order: ArrivalSequence | None = None,
) -> dict[SlaveId, Times]:
    """Park the tuples of full slaves, and let those of others go, about `limit_bytes` each.

    A partition-group that is ordered to leave gets all of its tuples along. Returns what may be promised to slaves for which
    tuples stay here; `rebase_us` is subtracted from times of the streams' axis. order: promises are places, not times.
    """
    full = {s for s in slaves if occupancies.get(s, 0.0) >= 1}
    for slave in full:  # first: what is let go below must not be put away again
        buffers.park(slave)
    behind: dict[SlaveId, Times] = {}
    for slave in slaves:
        below_us = None if slave in full else buffers.unpark_some(slave, limit_bytes)
        if slave in full:
            behind[slave] = promised.get(slave, _NOTHING)
        elif below_us is not None:
            below = (below_us - rebase_us,) * 2 if order is None else order.promised_below(below_us)
            behind[slave] = (max(promised[slave][LEFT], below[LEFT]), max(promised[slave][RIGHT], below[RIGHT]))
        for group in controller.movement.groups_ordered_out(slave):
            buffers.unpark_group(slave, group)
    return behind

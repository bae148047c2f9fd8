"""Deferral: tuples for slaves with full stream buffers wait at the master in separate queues (realtime pace).

What: `defer_full_slaves`, called before the slot of some slaves is drained.
Why: back-pressure per slave: a full slave neither stops the others nor receives more than one stream buffer at once.
Stays out: the queues (`cluster.gateway.mini_buffers`), the order of deliveries (`cluster.master.master`).
"""

from __future__ import annotations

from collections.abc import Sequence

from swjoin.cluster.gateway.arrival_sequence import ArrivalSequence
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.gateway.outbox import Outbox, Times
from swjoin.cluster.gateway.run_state import MovingGroups
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.ids import BEGIN_OF_TIME_US, SlaveId

_NOTHING = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


def defer_full_slaves(
    buffers: MiniBuffers,
    moving: MovingGroups,
    slaves: Sequence[SlaveId],
    outbox: Outbox,
    limit_bytes: int,
    rebase_us: int,
    order: ArrivalSequence | None = None,
) -> dict[SlaveId, Times]:
    """Park the tuples of full slaves, and release those of the other slaves, about `limit_bytes` each.

    A partition-group that is ordered to leave takes all of its tuples along. Returns the watermarks for slaves whose tuples
    partly stay here; `rebase_us` is subtracted from times of the streams' axis. order: watermarks are sequence numbers.
    """
    full = {s for s in slaves if outbox.occupancies.get(s, 0.0) >= 1}
    for slave in full:  # first, or tuples released below would be parked again
        buffers.park(slave)
    behind: dict[SlaveId, Times] = {}
    for slave in slaves:
        below_us = None if slave in full else buffers.unpark_some(slave, limit_bytes)
        if slave in full:
            behind[slave] = outbox.promised.get(slave, _NOTHING)
        elif below_us is not None:
            below = (below_us - rebase_us,) * 2 if order is None else order.promised_below(below_us)
            behind[slave] = (max(outbox.promised[slave][LEFT], below[LEFT]), max(outbox.promised[slave][RIGHT], below[RIGHT]))
        for group in moving.groups_ordered_out(slave):
            buffers.unpark_group(slave, group)
    return behind

"""What the master must remember across a crash, and how a new master takes it up.

What: `snapshot(master) -> Snapshot`, `restore(master, plain, tuples)`.
Why: between two distribution epochs a master is: what it has read and not delivered, where its streams stand, and a few
counters. Everything else follows from the configuration.
Stays out: window state, which is the log of what was delivered (`checkpoint.delivery_log`), bytes and files, when a snapshot
is taken (`cluster.master.checkpoint_coordinator`).

A restored master may have another number of slaves. Partition-groups are placed anew then; with as many slaves as before, every
partition-group goes to the slave of the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swjoin.cluster.messages import Snapshot
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, StoredBatch, TupleBatch, in_memory

if TYPE_CHECKING:
    from swjoin.cluster.master.master import Master


def snapshot(master: Master) -> Snapshot:
    """Everything but what has been delivered; between two distribution epochs, with no partition-group on its way."""
    assert not master.controller.moves, "a snapshot in the middle of a state movement"
    plain: dict[str, Any] = {
        "master": master.plain_state(),
        "controller": master.controller.plain_state(),
        "overload": master.overload.plain_state(),
        "streams": [stream.plain_state() for stream in master.streams],
    }
    tuples: dict[str, Sequence[TupleBatch | StoredBatch]] = {}
    for stream in (LEFT, RIGHT):
        name = STREAM_NAMES[stream]
        tuples[f"{name} buffered"] = master.buffers.pending(stream)
        tuples |= {f"{name} {what}": batches for what, batches in master.streams[stream].tuples_kept().items()}
    return Snapshot(plain, tuples)


def restore(
    master: Master, plain: dict[str, Any], tuples: Mapping[str, Sequence[TupleBatch | StoredBatch]], now_us: int
) -> None:
    """A new master goes on where the snapshot was taken. tuples: as in the snapshot."""
    master.controller.restore(plain["controller"], now_us)
    master.buffers.reroute(master.controller.router)
    for stream in (LEFT, RIGHT):
        name = STREAM_NAMES[stream]
        kept: dict[str, list[TupleBatch]] = {
            what.removeprefix(f"{name} "): [in_memory(batch) for batch in batches]
            for what, batches in tuples.items()
            if what.startswith(f"{name} ")
        }
        master.buffers.put_back(stream, kept.pop("buffered"))
        master.streams[stream].restore(plain["streams"][stream], kept)
    master.overload.restore(plain["overload"])
    master.restore_state(plain["master"], now_us)

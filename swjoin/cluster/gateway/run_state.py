"""What the master has told a gateway: the phase of the run, the checkpoint under way, the partition-groups that move.

What: `RunState`; `MovingGroups`, the moves from the orders in deliveries to the acknowledgement of both slaves.
Why: a gateway closes slots, reads and holds tuples back by these facts, and the master alone decides them.
Stays out: decisions (`cluster.master`), the held tuples themselves (`cluster.gateway.mini_buffers`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from swjoin.cluster.messages import EpochPlan
from swjoin.core.batch import I64
from swjoin.core.data_messages import no_moves
from swjoin.core.errors import RunFailed
from swjoin.core.ids import GroupId, SlaveId


@dataclass
class Moving:
    """times_us: the supplier's watermarks with its last tuples, delivered at held_us. state_bytes, released: of an ended move,
    and the count of tuples that were held back."""

    number: int
    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    times_us: tuple[int, int] | None = None
    consumer_ordered: bool = False
    held_us: int = 0
    state_bytes: int = 0
    released: int = 0


def _rows(moves: Sequence[tuple[int, int, int]]) -> I64:
    return np.array(moves, np.int64) if moves else no_moves()


class MovingGroups:
    """Partition-groups on their way to another slave. finished: hold-back (us) and state (bytes) of each finished move, the
    consumer's wait in a plan."""

    def __init__(self) -> None:
        self._moves: dict[int, Moving] = {}
        self._ended: list[Moving] = []  # their held-back tuples are in no delivery yet
        self.finished: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._moves)

    def begin(self, plan: EpochPlan) -> None:
        """Take the moves that start with this distribution epoch."""
        for number, group, supplier, consumer in plan.moves:
            self._moves[number] = Moving(number, GroupId(group), SlaveId(supplier), SlaveId(consumer))

    def end(self, number: int) -> Moving:
        """Both slaves have acknowledged. RunFailed on an unknown move."""
        move = self._moves.pop(number, None)
        if move is None or move.times_us is None:
            raise RunFailed(f"gateway: move {number} has ended, which had not started")
        self._ended.append(move)
        return move

    def deliver(self, consumers: Collection[SlaveId], now_us: int) -> list[Moving]:
        """The ended moves to these consumers, whose deliveries have the held-back tuples: they are finished."""
        moves = [m for m in self._ended if m.consumer in consumers]
        self._ended = [m for m in self._ended if m.consumer not in consumers]
        self.finished += [(now_us - m.held_us, m.state_bytes) for m in moves]
        return moves

    @property
    def consumers(self) -> set[SlaveId]:
        return {m.consumer for m in self._moves.values()}

    # ------------------------------------------------------------ orders travel with deliveries

    def groups_ordered_out(self, slave: SlaveId) -> list[GroupId]:
        """Partition-groups that a slave's next delivery orders it to supply."""
        return [m.group for m in self._moves.values() if m.supplier == slave and m.times_us is None]

    @property
    def has_orders(self) -> bool:
        """Whether some move waits for the delivery of its orders."""
        return any(m.times_us is None or not m.consumer_ordered for m in self._moves.values())

    def orders(self, slave: SlaveId) -> tuple[I64, I64]:
        """Orders for a slave's next delivery, as in `Delivery.moves_out` and `Delivery.moves_in`."""
        moves = self._moves.values()
        out = [(m.number, m.group, m.consumer) for m in moves if m.supplier == slave and m.times_us is None]
        new = [m for m in moves if m.consumer == slave and not m.consumer_ordered]
        for move in new:
            move.consumer_ordered = True
        return _rows(out), _rows([(m.number, m.group, m.supplier) for m in new])

    def hold(self, number: int, times_us: tuple[int, int], now_us: int) -> Moving:
        """The supplier's delivery has the order and its last tuples, up to these watermarks."""
        move = self._moves[number]
        move.times_us, move.held_us = times_us, now_us
        return move

    def limit_times(self, slave: SlaveId, times_us: tuple[int, int]) -> tuple[int, int]:
        """The watermarks for a slave, limited by incoming moves: held-back tuples start at the watermarks of the hold-back."""
        limits = [m.times_us for m in self._moves.values() if m.consumer == slave and m.times_us is not None]
        left, right = (min([t, *(limit[i] for limit in limits)]) for i, t in enumerate(times_us))
        return left, right


@dataclass
class RunState:
    """in_prefill: measuring has not started. stopping: nothing more is to be read. checkpoint_under_way: one was started and
    is not durable. closed: the last distribution epoch is closed, or the run stops with the checkpoint under way. gateway: its
    number. fixed: as of `Share`. due_epoch: the last one that another gateway wanted. others_read: in the last distribution
    epoch not all gateways had read everything."""

    in_prefill: bool = False
    stopping: bool = False
    checkpoint_under_way: bool = False
    closed: bool = False
    gateway: int = 0
    fixed: bool = False
    due_epoch: int = -1
    others_read: bool = False
    moving: MovingGroups = field(default_factory=MovingGroups)

    @property
    def waits(self) -> bool:
        """Whether a move or a checkpoint is to end before the run can."""
        return bool(self.moving) or self.checkpoint_under_way

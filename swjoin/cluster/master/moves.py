"""State movements: the states of a move, and the moves of one run.

What: `Move`, whose `enter` takes the next step of `TRANSITIONS`; `Moves`: those in flight, the orders that travel with
deliveries, and what the finished ones cost.
Why: a moving partition-group belongs to two slaves; the next legal step depends on which of the two has acknowledged.
Stays out: choice of partition-groups (`policy`), ownership (`cluster.master.controller`), window state
(`cluster.slave.state_mover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.data_messages import MoveEnd, no_moves
from swjoin.core.errors import RunFailed
from swjoin.core.ids import GroupId, SlaveId


class MoveState(StrEnum):
    DECIDED = "decided"  # orders wait for their deliveries
    HELD = "held"  # the supplier has its order
    LEFT = "left"  # the supplier has acknowledged
    INSTALLED = "installed"  # the consumer has acknowledged, its message was faster
    DONE = "done"


TRANSITIONS: dict[tuple[MoveState, MoveState], str] = {
    (MoveState.DECIDED, MoveState.HELD): "the order to the supplier is part of a delivery",
    (MoveState.HELD, MoveState.LEFT): "the supplier acknowledges first",
    (MoveState.HELD, MoveState.INSTALLED): "the consumer acknowledges first",
    (MoveState.LEFT, MoveState.DONE): "the consumer acknowledges",
    (MoveState.INSTALLED, MoveState.DONE): "the supplier acknowledges",
}


@dataclass
class Move:
    """One moving partition-group. times_us: the supplier's watermarks with its last tuples, once these are delivered."""

    number: int
    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    state: MoveState = MoveState.DECIDED
    held_us: int = 0
    times_us: tuple[int, int] | None = None
    state_bytes: int = 0
    consumer_ordered: bool = False

    def enter(self, state: MoveState) -> None:
        """Take the next step. On an illegal step raises RunFailed and changes nothing."""
        if (self.state, state) not in TRANSITIONS:
            raise RunFailed(f"move {self.number} of partition-group {self.group}: {state} after {self.state}")
        self.state = state


def _rows(moves: Sequence[tuple[int, int, int]]) -> I64:
    return np.array(moves, np.int64) if moves else no_moves()


class Moves:
    """in_flight: moves by number. finished: hold-back (us) and state (bytes) of each finished move."""

    def __init__(self) -> None:
        self.in_flight: dict[int, Move] = {}
        self.finished: list[tuple[int, int]] = []
        self.next_number = 0

    def add(self, group: GroupId, supplier: SlaveId, consumer: SlaveId) -> Move:
        move = Move(self.next_number, group, supplier, consumer)
        self.in_flight[move.number] = move
        self.next_number += 1
        return move

    def acknowledge(self, end: MoveEnd) -> Move:
        """Take one side's acknowledgement. RunFailed when this move was not ordered."""
        move = self.in_flight.get(end.move)
        if move is None:
            raise RunFailed(f"master: slave {end.slave} acknowledged move {end.move}, which was not ordered")
        first, second = (MoveState.LEFT, MoveState.INSTALLED) if end.installed else (MoveState.INSTALLED, MoveState.LEFT)
        if move.state == first:  # the other side has acknowledged before
            move.enter(MoveState.DONE)
            del self.in_flight[move.number]
        else:
            move.enter(second)
        move.state_bytes = end.state_bytes
        return move

    def has(self, group: int) -> bool:
        """Whether this partition-group is moving."""
        return any(m.group == group for m in self.in_flight.values())

    @property
    def groups(self) -> I64:
        return np.array([m.group for m in self.in_flight.values()], np.int64)

    @property
    def slaves(self) -> set[SlaveId]:
        """Suppliers and consumers."""
        return {s for m in self.in_flight.values() for s in (m.supplier, m.consumer)}

    def to(self, consumer: SlaveId) -> list[Move]:
        return [m for m in self.in_flight.values() if m.consumer == consumer]

    # ------------------------------------------------------------ orders travel with deliveries

    def groups_ordered_out(self, slave: SlaveId) -> list[GroupId]:
        """Partition-groups that a slave's next delivery orders it to supply."""
        return [m.group for m in self.in_flight.values() if m.supplier == slave and m.state == MoveState.DECIDED]

    @property
    def has_orders(self) -> bool:
        """Whether some move waits for the delivery of its orders."""
        return any(m.state == MoveState.DECIDED or not m.consumer_ordered for m in self.in_flight.values())

    def orders(self, slave: SlaveId) -> tuple[I64, I64]:
        """Orders for a slave's next delivery, as in `Delivery.moves_out` and `Delivery.moves_in`."""
        moves = self.in_flight.values()
        out = [(m.number, m.group, m.consumer) for m in moves if m.supplier == slave and m.state == MoveState.DECIDED]
        new = [m for m in self.to(slave) if not m.consumer_ordered]
        for move in new:
            move.consumer_ordered = True
        return _rows(out), _rows([(m.number, m.group, m.supplier) for m in new])

    def hold(self, number: int, times_us: tuple[int, int], now_us: int) -> Move:
        """Mark a move held: the supplier's delivery has the order and its last tuples, up to these watermarks."""
        move = self.in_flight[number]
        move.enter(MoveState.HELD)
        move.times_us, move.held_us = times_us, now_us
        return move

    def limit_times(self, slave: SlaveId, times_us: tuple[int, int]) -> tuple[int, int]:
        """The watermarks for a slave, limited by incoming moves: held-back tuples start at the watermarks of the hold-back."""
        limits = [m.times_us for m in self.to(slave) if m.times_us is not None]
        left, right = (min([t, *(limit[i] for limit in limits)]) for i, t in enumerate(times_us))
        return left, right

    # ------------------------------------------------------------ after the run

    def summary(self) -> dict[str, Any]:
        """For run.json: count of moves, their bytes, and quantiles of the hold-back."""
        hold_backs_s = np.array([h for h, _ in self.finished], np.float64) / 1e6
        quantiles = {f"p{q}": float(np.quantile(hold_backs_s, q / 100)) if len(hold_backs_s) else None for q in (50, 99)}
        return {
            "moves": len(self.finished),
            "movement": {
                "state_bytes": sum(b for _, b in self.finished),
                "hold_back_s": {**quantiles, "max": float(hold_backs_s.max()) if len(hold_backs_s) else None},
            },
        }

    def validate(self, owner: I64, active: Sequence[SlaveId]) -> None:
        """owner: of every partition-group."""
        groups = self.groups
        assert len(groups) == len(np.unique(groups)), "a partition-group is moved twice at once"
        for move in self.in_flight.values():
            assert owner[move.group] == move.supplier, f"move {move.number}: the supplier does not own the partition-group"
            assert {move.supplier, move.consumer} <= set(active), f"move {move.number}: an inactive slave takes part"

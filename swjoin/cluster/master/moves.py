"""State movements: the states of a move, and the moves of one run.

What: `Move`, whose `enter` takes the next step of `TRANSITIONS`; `Moves`: those in flight.
Why: a moving partition-group belongs to two slaves; the next legal step depends on which of the two has acknowledged.
Stays out: choice of partition-groups (`policy`), ownership (`cluster.master.controller`), orders and held-back tuples
(`cluster.gateway.run_state`), window state (`cluster.slave.state_mover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.data_messages import MoveEnd
from swjoin.core.errors import RunFailed
from swjoin.core.ids import GroupId, SlaveId


class MoveState(StrEnum):
    DECIDED = "decided"  # gateways send the orders with their deliveries
    LEFT = "left"  # the supplier has acknowledged
    INSTALLED = "installed"  # the consumer has acknowledged, its message was faster
    DONE = "done"


TRANSITIONS: dict[tuple[MoveState, MoveState], str] = {
    (MoveState.DECIDED, MoveState.LEFT): "the supplier acknowledges first",
    (MoveState.DECIDED, MoveState.INSTALLED): "the consumer acknowledges first",
    (MoveState.LEFT, MoveState.DONE): "the consumer acknowledges",
    (MoveState.INSTALLED, MoveState.DONE): "the supplier acknowledges",
}


@dataclass
class Move:
    """One moving partition-group. state_bytes: of its tuples, once a slave has acknowledged. waited_us: from the order
    until the consumer had the state, once it has acknowledged. planned: its epoch has a plan."""

    number: int
    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    state: MoveState = MoveState.DECIDED
    state_bytes: int = 0
    waited_us: int = 0
    planned: bool = False

    def enter(self, state: MoveState) -> None:
        """Take the next step. On an illegal step raises RunFailed and changes nothing."""
        if (self.state, state) not in TRANSITIONS:
            raise RunFailed(f"move {self.number} of partition-group {self.group}: {state} after {self.state}")
        self.state = state


class Moves:
    """The moves of one stage. first, step: their numbers, unique in a run. in_flight: moves by number."""

    def __init__(self, first: int = 0, step: int = 1) -> None:
        self.in_flight: dict[int, Move] = {}
        self.next_number = first
        self._first, self._step = first, step

    @property
    def finished_count(self) -> int:
        """Moves that have ended."""
        return (self.next_number - self._first) // self._step - len(self.in_flight)

    def add(self, group: GroupId, supplier: SlaveId, consumer: SlaveId) -> Move:
        move = Move(self.next_number, group, supplier, consumer)
        self.in_flight[move.number] = move
        self.next_number += self._step
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
        move.waited_us = end.ended_us - end.started_us if end.installed else move.waited_us
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

    def take_new(self) -> list[Move]:
        """Moves that are in no epoch's plan yet; they are from now on."""
        new = [m for m in self.in_flight.values() if not m.planned]
        for move in new:
            move.planned = True
        return new

    def validate(self, owner: I64, active: Sequence[SlaveId]) -> None:
        """owner: of every partition-group."""
        groups = self.groups
        assert len(groups) == len(np.unique(groups)), "a partition-group is moved twice at once"
        for move in self.in_flight.values():
            assert owner[move.group] == move.supplier, f"move {move.number}: the supplier does not own the partition-group"
            assert {move.supplier, move.consumer} <= set(active), f"move {move.number}: an inactive slave takes part"

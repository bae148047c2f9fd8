"""The master's controller: ownership of partition-groups, the active slaves, and changes of both during the run.

What: `Controller` collects the slaves' loads, asks the policies at the end of a reorganization epoch, turns their suggestions
into moves, and follows every move to its end.
Why: policies are pure and the master handles tuples; only enacted decisions change state here, and each is logged.
Stays out: choosing (`policy`), tuples and deliveries (`cluster.gateway`), window state (`cluster.slave.state_mover`).

Kinds of log events and their fields: `occupancy` (amount: ratio; duration_us: time in the join module; text: kind of slave),
`decided` (a move; text: reason), `left` and `installed` (acknowledged by supplier and consumer; tuples, state_bytes,
duration_us at that slave), `activated`, `emptying`, `kept` (emptying revoked), `rested` (amount: active slaves from then on),
`placed` (policy network: amount: share of the bytes between stages that is expected between ranks, in percent), `regret`
(amount: since the last such event, that share less the least possible one, in points), `checkpoint` (duration_us: from
its start until durable; amount: generation), `recovered` (amount: slaves from then on; tuples: read again; text: cause).
Gateways log `held` (a move's order is delivered, tuples are held back from now on), `released`
(tuples: count of held-back tuples; duration_us: since `held`), `idle` and `speaks` (a stream without rows, and with rows
again; text: stream), `shed` and `spilled` (see `cluster.gateway.overload`). In a plan no gateway holds tuples back: the
controller logs `released` when both have acknowledged (duration_us: how long the consumer has waited for the state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from swjoin.cluster.master.load_statistics import LoadStatistics
from swjoin.cluster.master.moves import Move, Moves, MoveState
from swjoin.config.run import RunConfig
from swjoin.core.data_messages import MoveEnd, RunEvent
from swjoin.core.errors import RunFailed
from swjoin.core.ids import SlaveId
from swjoin.policy.declustering import Confirmation, next_to_rest, wanted_by_work, wanted_change
from swjoin.policy.placement import round_robin
from swjoin.policy.reorganization import POLICIES, SlaveLoad, Suggestion, classify, empty_slaves
from swjoin.routing.hash_partition import GroupMap


class Schedule:
    """Ends of reorganization epochs. first_epoch: the distribution epoch from which they are counted."""

    def __init__(self, interval: int | None) -> None:
        """interval: distribution epochs in a reorganization epoch; None: no reorganization."""
        self.first_epoch = 0
        self._interval = interval
        self._overdue = False

    def due(self, epoch: int, *, possible: bool) -> bool:
        """Whether a reorganization is due before this distribution epoch; it stays due until it is possible."""
        age = epoch - self.first_epoch
        self._overdue |= self._interval is not None and age > 0 and age % self._interval == 0
        due = self._overdue and possible
        self._overdue &= not due
        return due


class Controller:
    """Placement, activity and moves of one run, or of one stage of a plan. slave_count: all slaves, active or not."""

    def __init__(self, config: RunConfig, slave_count: int, stage: int = 0, stage_count: int = 1) -> None:
        self.config = config.reorganization
        self.slave_count = slave_count
        self.active = [SlaveId(s) for s in range(min(self.config.active_slaves, slave_count) or slave_count)]
        self.map = GroupMap(round_robin(config.cluster.partition_count, len(self.active)))
        self.movement = Moves(stage, stage_count)
        self.resize_log: list[dict[str, Any]] = [{"epoch": 0, "time_s": 0.0, "active_slaves": len(self.active)}]
        self.loads = LoadStatistics(slave_count, config.cluster.partition_count, config.module.stream_buffer_bytes)
        self._random = np.random.default_rng([config.seed & (2**64 - 1), 0x6D6F7665, *([stage] if stage else [])])
        self._policy = POLICIES.get(self.config.policy)  # None for `network`, which is for all stages at once
        self._confirmation = Confirmation(self.config.confirmations)
        t_d = config.cluster.distribution_epoch_us
        interval = self.config.epoch_us // t_d if t_d else 0
        self._schedule = Schedule(None if self.config.policy == "none" else interval)
        self._emptying: set[SlaveId] = set()
        self._events: list[RunEvent] = []
        self._epoch = 0

    @property
    def moves(self) -> Mapping[int, Move]:
        """Moves in flight, by number."""
        return self.movement.in_flight

    def acknowledge(self, end: MoveEnd, now_us: int) -> Move | None:
        """Take one side's acknowledgement; returns the move once both have acknowledged. RunFailed on an unordered move."""
        move = self.movement.acknowledge(end)
        self._log(
            now_us,
            str(MoveState.INSTALLED if end.installed else MoveState.LEFT),
            slave=end.slave,
            peer=move.supplier if end.installed else move.consumer,
            group=end.group,
            tuples=end.tuples,
            state_bytes=end.state_bytes,
            duration_us=end.ended_us - end.started_us,
            amount=float(move.number),
        )
        if move.state is not MoveState.DONE:
            return None
        self.map = self.map.moved(move.group, move.consumer)
        return move

    # ------------------------------------------------------------ a distribution epoch starts

    def begin_measuring(self, epoch: int, clock_us: int) -> None:
        """Start measuring after the prefill: `epoch` is the first measured one, and the clock shows `clock_us`."""
        self._schedule.first_epoch, self.loads.since_us = epoch, clock_us
        self.resize_log[0] |= {"epoch": epoch, "time_s": clock_us / 1e6}

    def begin_epoch(self, epoch: int, now_us: int, *, ending: bool, still: bool = False) -> list[SlaveId]:
        """Before the first slot of a distribution epoch: deactivate emptied slaves, and reorganize when due.

        ending: the input has ended; no move is started. still: a checkpoint allows no moves; a due reorganization waits for it.
        Returns the slaves that are inactive from now on; their next delivery says so.
        """
        self._epoch = epoch
        resting = [s for s in sorted(self._emptying) if self._is_empty(s)]
        for slave in resting:
            self._emptying.remove(slave)
            self.active.remove(slave)
            self._note_activity("rested", slave, now_us)
        if self._schedule.due(epoch, possible=not ending and not still):
            self._reorganize(now_us)
        return [s for s in resting if s not in self.active]  # one may have been reactivated at once

    def _is_empty(self, slave: SlaveId) -> bool:
        return not (self.map.owner == slave).any() and slave not in self.movement.slaves

    def _reorganize(self, now_us: int) -> None:
        self.loads.measure_speeds()
        loads = self._loads(now_us)
        for load in loads:
            kind = "emptying" if load.emptying else str(classify(load, self.config))
            busy_us = self.loads.busy_us(load.slave)
            self._log(now_us, "occupancy", slave=load.slave, amount=load.occupancy_ratio, duration_us=busy_us, text=kind)
        if self.config.declustering != "fixed" and self._resize(loads, now_us):
            loads = self._loads(now_us)
        suggested = [] if self._policy is None else self._policy(loads, self.config, self._random)
        self.enact([*empty_slaves(loads, self.config), *suggested], now_us)
        self.loads.restart(now_us)

    def enact(self, suggestions: Iterable[Suggestion], now_us: int) -> None:
        """Turn suggestions into moves. RunFailed when one contradicts the current state."""
        for suggestion in suggestions:
            self._decide(suggestion, now_us)

    def _loads(self, now_us: int) -> list[SlaveLoad]:
        """Every active slave's load, without partition-groups in flight."""
        owned, emptying = self.map.groups_of, self._emptying
        return [self.loads.load(s, owned(s), self.movement, now_us, emptying=s in emptying) for s in self.active]

    def _resize(self, loads: list[SlaveLoad], now_us: int) -> bool:
        """Change the degree of declustering if the rule wants it. Returns whether it changed."""
        steady = [x for x in loads if not x.emptying]
        resting = self.slave_count - len(steady)
        if self.config.policy == "random":
            wish = int(self._random.integers(-1, 2))
            wish = 0 if (wish < 0 and len(steady) < 2) or (wish > 0 and resting == 0) else wish
        elif self.config.declustering == "measured":
            wish = wanted_by_work(steady, resting)
        else:
            wish = wanted_change([classify(x, self.config) for x in steady], self.config.beta, resting)
        change = self._confirmation.confirm(wish)
        if change > 0 and self._emptying:
            slave = min(self._emptying)
            self._emptying.remove(slave)
            self._note_activity("kept", slave, now_us)
        elif change > 0:
            slave = next(SlaveId(s) for s in range(self.slave_count) if s not in self.active)
            self.active = sorted([*self.active, slave])
            self._note_activity("activated", slave, now_us)
        elif change < 0 and not self._emptying:
            slave = next_to_rest(steady).slave
            self._emptying.add(slave)
            self._note_activity("emptying", slave, now_us)
        else:
            return False
        return True

    def _decide(self, suggestion: Suggestion, now_us: int) -> None:
        s = suggestion
        possible = self.map.owner[s.group] == s.supplier and s.consumer in self.active and s.supplier != s.consumer
        if not possible or self.movement.has(s.group):
            raise RunFailed(
                f"policy {self.config.policy}: partition-group {s.group} cannot go from {s.supplier} to {s.consumer}"
            )
        move = self.movement.add(s.group, s.supplier, s.consumer)
        self._log_move(now_us, "decided", move, state_bytes=self.loads.state_bytes(s.group), text=s.reason)

    @property
    def emptying(self) -> frozenset[SlaveId]:
        """Active slaves that yield all partition-groups and become inactive afterwards."""
        return frozenset(self._emptying)

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON; no move is in flight."""
        return {
            "slaves": self.slave_count,
            "active": [int(s) for s in self.active],
            "emptying": sorted(int(s) for s in self._emptying),
            "owner": self.map.owner.tolist(),
            "random": self._random.bit_generator.state,
            "next_number": self.movement.next_number,
            "first_epoch": self._schedule.first_epoch,
            "history": [dict(entry) for entry in self.resize_log],  # a copy: the checkpoint is written while the run continues
        }

    def restore(self, plain: dict[str, Any], now_us: int) -> None:
        """Take over another controller's state. With another number of slaves: as many active as before, or all if all were."""
        self._random.bit_generator.state = plain["random"]
        self._schedule.first_epoch, self.loads.since_us = plain["first_epoch"], now_us
        self.movement.next_number = plain["next_number"]
        self.resize_log = plain["history"]
        if plain["slaves"] == self.slave_count:
            self.active = [SlaveId(s) for s in plain["active"]]
            self._emptying = {SlaveId(s) for s in plain["emptying"]}
            self.map = GroupMap(np.array(plain["owner"], np.int64))
            return
        all_active = len(plain["active"]) == plain["slaves"]
        count = self.slave_count if all_active else min(len(plain["active"]), self.slave_count)
        self.active = [SlaveId(s) for s in range(count)]
        self.map = GroupMap(round_robin(len(self.map.owner), count))

    # ------------------------------------------------------------ the log

    def note(self, now_us: int, kind: str, **fields: Any) -> None:
        """Log an event of the whole run."""
        self._log(now_us, kind, **fields)

    def _note_activity(self, kind: str, slave: SlaveId, now_us: int) -> None:
        count = len(self.active)
        self._log(now_us, kind, slave=slave, amount=float(count))
        if count != self.resize_log[-1]["active_slaves"]:
            self.resize_log.append({"epoch": self._epoch, "time_s": now_us / 1e6, "active_slaves": count})

    def _log(self, now_us: int, kind: str, **fields: Any) -> None:
        self._events.append(RunEvent(now_us, self._epoch, kind, **fields))

    def log_released(self, move: Move, now_us: int) -> None:
        """Log the end of a move of a plan."""
        self._log_move(now_us, "released", move, state_bytes=move.state_bytes, duration_us=move.waited_us)

    def _log_move(self, now_us: int, kind: str, move: Move, **fields: Any) -> None:
        self._log(now_us, kind, slave=move.supplier, peer=move.consumer, group=move.group, amount=float(move.number), **fields)

    def take_events(self) -> list[RunEvent]:
        """Remove and return the events logged since the last call."""
        events, self._events = self._events, []
        return events

    def validate(self) -> None:
        self.map.validate(self.slave_count)
        assert self.active, "no slave is active"
        owners = set(self.map.owner.tolist())
        assert owners <= set(self.active), f"partition-groups belong to resting slaves: {owners - set(self.active)}"
        self.movement.validate(self.map.owner, self.active)
        self.loads.validate()

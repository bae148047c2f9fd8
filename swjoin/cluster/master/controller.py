"""The master's controller: who owns which partition-group, who is active, and how that changes while running.

What: `Controller` collects the slaves' loads, asks the policies at the end of a reorganization epoch, turns their suggestions
into orders that travel with deliveries, and follows every move to its end.
Why: policies are pure and the master is about tuples; what is enacted, and only that, changes state here, and is logged.
Stays out: choosing (`policy`), tuples and deliveries (`cluster.master.master`, `cluster.master.mini_buffers`), window state
(`cluster.slave.state_mover`).

Kinds of events, and what their fields mean: `occupancy` (amount: ratio; duration_us: time in the join module; text: what the
slave is), `decided` (a move; text: why), `held` (the supplier has its order, tuples are held back from now on), `left`
and `installed` (acknowledged by supplier and consumer: tuples, state_bytes, duration_us at that slave), `released` (tuples: how
many had been held back; duration_us: since `held`), `activated`, `emptying`, `kept` (emptying revoked), `rested` (amount:
active slaves from then on), `checkpoint` (duration_us: from the cut until it was durable; amount: which), `recovered` (amount:
slaves from then on; tuples: read once more; text: what had happened).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from swjoin.config.run import RunConfig
from swjoin.core.batch import I64
from swjoin.core.data_messages import GroupLoads, MoveEnd, RunEvent, no_moves
from swjoin.core.errors import RunFailed
from swjoin.core.ids import GroupId, SlaveId
from swjoin.policy.declustering import Confirmation, next_to_rest, wanted_by_work, wanted_change
from swjoin.policy.placement import round_robin
from swjoin.policy.reorganization import POLICIES, SlaveLoad, Suggestion, classify, empty_slaves
from swjoin.routing.hash_partition import GroupMap, HashPartition


class Phase(StrEnum):
    """Where a move stands."""

    DECIDED = "decided"  # orders wait for their deliveries
    HELD = "held"  # the supplier has its order
    LEFT = "left"  # the supplier has acknowledged
    INSTALLED = "installed"  # the consumer has acknowledged, its message was faster
    DONE = "done"


_LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.DECIDED: frozenset({Phase.HELD}),
    Phase.HELD: frozenset({Phase.LEFT, Phase.INSTALLED}),
    Phase.LEFT: frozenset({Phase.DONE}),
    Phase.INSTALLED: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}


@dataclass
class Move:
    """One partition-group on its way. times_us: what the supplier was promised with its last tuples, once it is held."""

    number: int
    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    phase: Phase = Phase.DECIDED
    held_us: int = 0
    times_us: tuple[int, int] | None = None
    state_bytes: int = 0
    consumer_ordered: bool = False

    def enter(self, phase: Phase) -> None:
        """RunFailed on a step that the protocol does not have; nothing has changed then."""
        if phase not in _LEGAL[self.phase]:
            raise RunFailed(f"move {self.number} of partition-group {self.group}: {phase} after {self.phase}")
        self.phase = phase


def _rows(moves: Sequence[tuple[int, int, int]]) -> I64:
    return np.array(moves, np.int64) if moves else no_moves()


class Controller:
    """Placement, activity and moves of one run. slave_count: all slaves, active or not."""

    def __init__(self, config: RunConfig, slave_count: int) -> None:
        self.config = config.reorganization
        self.slave_count = slave_count
        self.active = [SlaveId(s) for s in range(self.config.active_slaves or slave_count)]
        self.map = GroupMap(round_robin(config.cluster.partition_count, len(self.active)))
        self.router = HashPartition(self.map, slave_count)
        self.moves: dict[int, Move] = {}  # in flight, by number
        self.history: list[dict[str, Any]] = [{"epoch": 0, "time_s": 0.0, "active_slaves": len(self.active)}]
        self.parked_bytes: dict[SlaveId, int] = {}  # at the master, for slaves without room; the master keeps it
        self.finished_moves: list[tuple[int, int]] = []  # (hold-back us, state bytes)
        self._random = np.random.default_rng([config.seed & (2**64 - 1), 0x6D6F7665])
        self._policy = POLICIES.get(self.config.policy)
        self._confirmation = Confirmation(self.config.confirmations)
        t_d = config.cluster.distribution_epoch_us
        self._interval = self.config.epoch_us // t_d if t_d else 0  # distribution epochs in a reorganization epoch
        self._emptying: set[SlaveId] = set()
        self._events: list[RunEvent] = []
        self._epoch = 0
        self._next_number = 0
        self._overdue = False  # reorganization
        self._since_us = 0
        self._first_epoch = 0  # the distribution epoch from which reorganization epochs are counted
        self._occupancies: list[list[float]] = [[] for _ in range(slave_count)]
        self._busy_us = np.zeros(slave_count, np.int64)
        self._cost_ns = np.zeros(config.cluster.partition_count, np.int64)
        self._state_bytes = np.zeros(config.cluster.partition_count, np.int64)
        self._worked_ns = np.zeros(slave_count, np.int64)
        self._delivered_bytes = np.zeros(slave_count, np.int64)
        self._capacity_bytes = config.module.stream_buffer_bytes
        self._speed = np.zeros(slave_count)  # 0: not known yet

    # ------------------------------------------------------------ what slaves report

    def sample(self, slave: SlaveId, occupancy_ratio: float, loads: GroupLoads | None) -> None:
        """A slave's report at the end of a distribution epoch."""
        self._occupancies[slave].append(occupancy_ratio)
        if loads is None:
            return
        self._busy_us[slave] += loads.busy_us
        np.add.at(self._cost_ns, loads.groups, loads.cost_ns)
        self._state_bytes[loads.groups] = loads.state_bytes
        self._worked_ns[slave] += int(loads.cost_ns.sum())

    def delivered(self, slave: SlaveId, nbytes: int) -> None:
        """This much was sent to a slave."""
        self._delivered_bytes[slave] += nbytes

    def acknowledge(self, end: MoveEnd, now_us: int) -> Move | None:
        """One side of a move is done; the move itself when both are: it is to be released. RunFailed when nobody ordered it."""
        move = self.moves.get(end.move)
        if move is None:
            raise RunFailed(f"master: slave {end.slave} acknowledged move {end.move}, which nobody ordered")
        other = Phase.LEFT if end.installed else Phase.INSTALLED
        phase = Phase.INSTALLED if end.installed else Phase.LEFT
        peer = move.supplier if end.installed else move.consumer
        self._log(
            now_us,
            str(phase),
            slave=end.slave,
            peer=peer,
            group=end.group,
            tuples=end.tuples,
            state_bytes=end.state_bytes,
            duration_us=end.ended_us - end.begun_us,
            amount=float(move.number),
        )
        move.state_bytes = end.state_bytes
        if move.phase != other:
            move.enter(phase)
            return None
        move.enter(Phase.DONE)
        del self.moves[move.number]
        self._reroute(self.map.moved(move.group, move.consumer))
        return move

    def released(self, move: Move, tuples: int, now_us: int) -> None:
        """The tuples held back for a finished move go on."""
        held_us = now_us - move.held_us
        self.finished_moves.append((held_us, move.state_bytes))
        self._log_move(now_us, "released", move, tuples=tuples, state_bytes=move.state_bytes, duration_us=held_us)

    # ------------------------------------------------------------ a distribution epoch begins

    def begin_measuring(self, epoch: int, clock_us: int) -> None:
        """History is joined; `epoch` is the first that counts, and the clock shows `clock_us`. Nothing before matters."""
        self._first_epoch, self._since_us = epoch, clock_us
        self.history[0] |= {"epoch": epoch, "time_s": clock_us / 1e6}

    def begin_epoch(self, epoch: int, now_us: int, *, ending: bool, still: bool = False) -> list[SlaveId]:
        """Before the first slot of a distribution epoch: rest emptied slaves, and reorganize when it is time.

        ending: the input has ended; nothing new is begun. still: a checkpoint wants everything in its place; what is due now is
        done as soon as it does not. Returns the slaves that rest from now on, each told by a delivery.
        """
        self._epoch = epoch
        resting = [s for s in sorted(self._emptying) if self._is_empty(s)]
        for slave in resting:
            self._emptying.remove(slave)
            self.active.remove(slave)
            self._note_activity("rested", slave, now_us)
        age = epoch - self._first_epoch
        self._overdue |= self._policy is not None and age > 0 and age % self._interval == 0
        if self._overdue and not ending and not still:
            self._overdue = False
            self._reorganize(now_us)
        return [s for s in resting if s not in self.active]  # it may have been woken at once

    def _is_empty(self, slave: SlaveId) -> bool:
        return not (self.map.owner == slave).any() and not any(slave in (m.supplier, m.consumer) for m in self.moves.values())

    def _measure_speeds(self) -> None:
        """Nominal work per time of every slave; half of it from before, as a single reorganization epoch is noisy."""
        for slave in np.flatnonzero((self._busy_us > 0) & (self._worked_ns > 0)).tolist():
            now = float(self._worked_ns[slave]) / (1000 * float(self._busy_us[slave]))
            self._speed[slave] = now if self._speed[slave] == 0 else (self._speed[slave] + now) / 2
        self._worked_ns[:] = 0

    def _reorganize(self, now_us: int) -> None:
        self._measure_speeds()
        loads = self._loads(now_us)
        for load in loads:
            kind = "emptying" if load.emptying else str(classify(load, self.config))
            busy_us = int(self._busy_us[load.slave])
            self._log(now_us, "occupancy", slave=load.slave, amount=load.occupancy_ratio, duration_us=busy_us, text=kind)
        if self.config.declustering != "fixed" and self._resize(loads, now_us):
            loads = self._loads(now_us)
        assert self._policy is not None
        for suggestion in [*empty_slaves(loads, self.config), *self._policy(loads, self.config, self._random)]:
            self._decide(suggestion, now_us)
        for samples in self._occupancies:
            samples.clear()
        self._busy_us[:] = 0
        self._cost_ns[:] = 0
        self._delivered_bytes[:] = 0
        self._since_us = now_us

    def _loads(self, now_us: int) -> list[SlaveLoad]:
        """Every active slave's load; partition-groups in flight belong to nobody's choice."""
        flying = np.array([m.group for m in self.moves.values()], np.int64)
        moving = {s for m in self.moves.values() for s in (m.supplier, m.consumer)}
        known = self._speed[self._speed > 0]
        usual = float(known.mean()) if len(known) else 1.0
        elapsed_us = max(1, now_us - self._since_us)
        loads = []
        for slave in self.active:
            groups = np.setdiff1d(self.map.groups_of(slave), flying)
            samples = self._occupancies[slave]
            loads.append(
                SlaveLoad(
                    slave,
                    sum(samples) / len(samples) if samples else 0.0,
                    groups,
                    int(self._busy_us[slave]) / elapsed_us,
                    self._cost_ns[groups],
                    self._state_bytes[groups],
                    float(self._speed[slave]) or usual,
                    slave in self._emptying,
                    sum(int(self._cost_ns[m.group]) for m in self.moves.values() if m.consumer == slave),
                    slave in moving,
                    self._backlog_bytes(slave) / max(1, int(self._delivered_bytes[slave])),
                )
            )
        return loads

    def _backlog_bytes(self, slave: SlaveId) -> float:
        """What a slave had not joined when it reported last, and what waits for it here."""
        samples = self._occupancies[slave]
        return (samples[-1] if samples else 0.0) * self._capacity_bytes + self.parked_bytes.get(slave, 0)

    def _resize(self, loads: list[SlaveLoad], now_us: int) -> bool:
        """Change the degree of declustering if the rule says so. True when it did."""
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
        """A policy's suggestion becomes a move, unless it contradicts what is."""
        s = suggestion
        possible = self.map.owner[s.group] == s.supplier and s.consumer in self.active and s.supplier != s.consumer
        if not possible or any(m.group == s.group for m in self.moves.values()):
            raise RunFailed(
                f"policy {self.config.policy}: partition-group {s.group} cannot go from {s.supplier} to {s.consumer}"
            )
        move = Move(self._next_number, s.group, s.supplier, s.consumer)
        self.moves[move.number] = move
        self._next_number += 1
        state_bytes = int(self._state_bytes[s.group])
        self._log_move(now_us, "decided", move, state_bytes=state_bytes, text=s.reason)

    # ------------------------------------------------------------ orders travel with deliveries

    def groups_ordered_out(self, slave: SlaveId) -> list[GroupId]:
        """Partition-groups that a slave's next delivery orders it to yield."""
        return [m.group for m in self.moves.values() if m.supplier == slave and m.phase == Phase.DECIDED]

    @property
    def has_orders(self) -> bool:
        """Some move waits for a delivery to tell of it."""
        return any(m.phase == Phase.DECIDED or not m.consumer_ordered for m in self.moves.values())

    def orders(self, slave: SlaveId) -> tuple[I64, I64]:
        """Orders for a slave's next delivery, as in `Delivery.moves_out` and `Delivery.moves_in`."""
        out = [(m.number, m.group, m.consumer) for m in self.moves.values() if m.supplier == slave and m.phase == Phase.DECIDED]
        come = [m for m in self.moves.values() if m.consumer == slave and not m.consumer_ordered]
        for move in come:
            move.consumer_ordered = True
        into = [(m.number, m.group, m.supplier) for m in come]
        return _rows(out), _rows(into)

    def hold(self, number: int, times_us: tuple[int, int], now_us: int) -> Move:
        """The supplier's order is in its delivery, together with its last tuples, up to these punctuations."""
        move = self.moves[number]
        move.enter(Phase.HELD)
        move.times_us, move.held_us = times_us, now_us
        self._log_move(now_us, "held", move)
        return move

    @property
    def emptying(self) -> frozenset[SlaveId]:
        """Active slaves that yield everything and are to rest then."""
        return frozenset(self._emptying)

    def owners(self) -> set[SlaveId]:
        """Slaves that have partition-groups, or get some."""
        return {SlaveId(s) for s in np.unique(self.map.owner).tolist()} | {m.consumer for m in self.moves.values()}

    def limit_times(self, slave: SlaveId, times_us: tuple[int, int]) -> tuple[int, int]:
        """What may be promised to a slave: a partition-group on its way to it still has tuples of the time it was held at."""
        held = [m.times_us for m in self.moves.values() if m.consumer == slave and m.times_us is not None]
        left, right = (min([t, *(h[i] for h in held)]) for i, t in enumerate(times_us))
        return left, right

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON; no move is in flight."""
        return {
            "slaves": self.slave_count,
            "active": [int(s) for s in self.active],
            "emptying": sorted(int(s) for s in self._emptying),
            "owner": self.map.owner.tolist(),
            "random": self._random.bit_generator.state,
            "next_number": self._next_number,
            "first_epoch": self._first_epoch,
            "finished_moves": list(self.finished_moves),  # copies: this is written while the run goes on
            "history": [dict(entry) for entry in self.history],
        }

    def restore(self, plain: dict[str, Any], now_us: int) -> None:
        """Go on where another controller was. With another number of slaves: as many active as before, or all if all were."""
        self._random.bit_generator.state = plain["random"]
        self._next_number, self._first_epoch, self._since_us = plain["next_number"], plain["first_epoch"], now_us
        self.finished_moves = [(held, size) for held, size in plain["finished_moves"]]
        self.history = plain["history"]
        if plain["slaves"] == self.slave_count:
            self.active = [SlaveId(s) for s in plain["active"]]
            self._emptying = {SlaveId(s) for s in plain["emptying"]}
            self._reroute(GroupMap(np.array(plain["owner"], np.int64)))
            return
        everyone = len(plain["active"]) == plain["slaves"]
        count = self.slave_count if everyone else min(len(plain["active"]), self.slave_count)
        self.active = [SlaveId(s) for s in range(count)]
        self._reroute(GroupMap(round_robin(len(self.map.owner), count)))

    # ------------------------------------------------------------ the log

    def note(self, now_us: int, kind: str, **fields: Any) -> None:
        """Log what happened to the run as a whole."""
        self._log(now_us, kind, **fields)

    def _reroute(self, group_map: GroupMap) -> None:
        self.map = group_map
        self.router = HashPartition(group_map, self.slave_count)

    def _note_activity(self, kind: str, slave: SlaveId, now_us: int) -> None:
        count = len(self.active)
        self._log(now_us, kind, slave=slave, amount=float(count))
        if count != self.history[-1]["active_slaves"]:
            self.history.append({"epoch": self._epoch, "time_s": now_us / 1e6, "active_slaves": count})

    def _log(self, now_us: int, kind: str, **fields: Any) -> None:
        self._events.append(RunEvent(now_us, self._epoch, kind, **fields))

    def _log_move(self, now_us: int, kind: str, move: Move, **fields: Any) -> None:
        self._log(now_us, kind, slave=move.supplier, peer=move.consumer, group=move.group, amount=float(move.number), **fields)

    def take_events(self) -> list[RunEvent]:
        """Hand over what has been logged since the last call."""
        events, self._events = self._events, []
        return events

    def summary(self) -> dict[str, Any]:
        """The controller's share of run.json: moves, their hold-back and bytes, the degree of declustering."""
        held = np.array([h for h, _ in self.finished_moves], np.float64) / 1e6
        quantiles = {f"p{q}": float(np.quantile(held, q / 100)) if len(held) else None for q in (50, 99)}
        return {
            "moves": len(self.finished_moves),
            "movement": {
                "state_bytes": sum(b for _, b in self.finished_moves),
                "hold_back_s": {**quantiles, "max": float(held.max()) if len(held) else None},
            },
            "declustering": self.history,
        }

    def validate(self) -> None:
        self.map.validate(self.slave_count)
        assert self.active, "no slave is active"
        owners = set(self.map.owner.tolist())
        assert owners <= set(self.active), f"partition-groups belong to resting slaves: {owners - set(self.active)}"
        groups = [m.group for m in self.moves.values()]
        assert len(groups) == len(set(groups)), "a partition-group is moved twice at once"
        for move in self.moves.values():
            assert self.map.owner[move.group] == move.supplier, f"move {move.number}: the supplier owns it no more"
            assert {move.supplier, move.consumer} <= set(self.active), f"move {move.number}: a resting slave takes part"

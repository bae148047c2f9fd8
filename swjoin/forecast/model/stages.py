"""A run of a plan of several stages in virtual time: the exchange's rule over counts, epoch by epoch.

What: `PlanSimulation`: `run`, then end, busy times, the production delay of every distribution epoch, and the metrics of every
instance and epoch, as a run has them.
Why: credit, shared ranks and shared cores decide throughput and delay together; loads alone tell only what saturates.
Stays out: rates and costs (`forecast.stages`), the report (`forecast.summary`), tuples.

An instance works on epoch e when the final deliveries of e have come from all senders and its rows of e - 1 have been sent.
Rows of epoch e are sent when every receiver has ended e - `EPOCHS_AHEAD`. A rank plays the instances of its stages and does
one thing at a time, the oldest epoch first. Parts of an open epoch are not modelled, so that delays are those of whole epochs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.exchange import EPOCHS_AHEAD
from swjoin.cluster.ranks import FIRST_SLAVE
from swjoin.cluster.role import gateway_role, sink_role
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.model.discrete_event import Cores, Timeline
from swjoin.forecast.stages import Capacity
from swjoin.plan.stages import Stage


@dataclass
class Rank:
    """A rank, or a thread. ready: (epoch, order of the team, index, role) of the work that it can begin. free_us: when it ended
    its last piece."""

    ready: list[tuple[int, int, int, Role]] = field(default_factory=list)
    running: bool = False
    busy_us: float = 0.0
    free_us: float = 0.0


@dataclass
class Role:
    """A gateway, an instance of a stage, or a sink. worked, sent: how many epochs it has worked on, and has sent.
    queued: epochs that it has begun or can begin. operator_us: of its work, inside its operator. of_epoch: of an instance, what
    its metrics tell of every epoch alike. waited_us: idle time of its rank before the piece of work at hand. waiting: epochs
    that had come when it began this piece."""

    rank: Rank
    work_us: float
    operator_us: float = 0.0
    of_epoch: Mapping[str, float] = field(default_factory=dict)
    waited_us: float = 0.0
    waiting: int = 0
    queued: int = 0
    worked: int = 0
    sent: int = 0
    busy_us: float = 0.0


@dataclass
class Team:
    """All gateways, all instances of a stage, or all sinks. order: of teams in a rank, at equal epochs. arrived: epochs of
    which all final deliveries have come. working, sending: by epoch, roles that have not worked on it, have not sent it. ended,
    complete: epochs without such roles."""

    order: int
    roles: list[Role] = field(default_factory=list)
    senders: list[Team] = field(default_factory=list)
    receivers: list[Team] = field(default_factory=list)
    working: list[int] = field(default_factory=list)
    sending: list[int] = field(default_factory=list)
    arrived: int = 0
    ended: int = 0
    complete: int = 0

    @property
    def granted(self) -> int:
        """Epochs that its receivers take. Sinks always take results."""
        return min((team.ended + EPOCHS_AHEAD for team in self.receivers if team.receivers), default=1 << 62)


class PlanSimulation:
    """teams: gateways, stages, sinks. roles: which rank plays which of them. ended_us, delays_us: by epoch, its end at the
    gateways, and from then until the sinks have its last row. metrics: a row of `COLUMNS` per instance and epoch."""

    def __init__(self, capacity: Capacity, epochs: int, rates: Mapping[str, float] | None = None) -> None:
        """rates: of the sources; None: those of the measured run."""
        rates = capacity.profile.rates if rates is None else rates
        plan, work, costs = capacity.profile.plan, capacity.work(rates), capacity.costs
        self.epochs = epochs
        self.time = Timeline()
        self.cores = Cores(self.time, capacity.host_cores, costs.shared_capacity)
        self.ended_us: list[float] = []
        self.delays_us: list[float] = []
        self.metrics: list[NDArray[np.float64]] = []
        self._latency_us = costs.link_latency_us
        epoch_s = capacity.profile.epoch_s(capacity.config, rates)
        self._slot_us = 1e6 * epoch_s if capacity.config.pace == "realtime" else 0.0  # epoch e ends e + 1 slots after the start
        roles = self.roles = capacity.rank_map
        self.ranks = [Rank() for _ in range(roles.size)]
        count = len(plan.stages)
        gateways = [self.ranks[roles.rank_of(gateway_role(number))] for number in range(roles.gateways)]
        sinks = [self.ranks[roles.rank_of(sink_role(number))] for number in range(roles.sinks)]
        self.gateway = Team(count + 1, [Role(rank, 1e6 * work.gateway_s, 1e6 * work.gateway_operator_s) for rank in gateways])
        self.collector = Team(0, [Role(rank, 1e6 * work.collector_s) for rank in sinks])
        self.stages = [Team(count - s) for s in range(count)]  # a later stage first, so that epochs come to their end
        for s, team in enumerate(self.stages):
            team.roles = self._instances(s, capacity, rates)
        self.teams = [self.gateway, *self.stages, self.collector]
        for edge in plan.edges:
            sender = self.stages[edge.sender.id] if isinstance(edge.sender, Stage) else self.gateway
            receiver = self.stages[edge.receiver.id] if isinstance(edge.receiver, Stage) else self.collector
            if sender not in receiver.senders:
                receiver.senders.append(sender)
                sender.receivers.append(receiver)
        for team in self.teams:
            team.working, team.sending = [len(team.roles)] * epochs, [len(team.roles)] * epochs

    def _instances(self, s: int, capacity: Capacity, rates: Mapping[str, float]) -> list[Role]:
        """Of a stage, those that have rows."""
        work, flow, subclusters = capacity.work(rates).stages[s], capacity.flow(rates), capacity.subclusters
        epoch_s, buffer_bytes = capacity.profile.epoch_s(capacity.config, rates), capacity.config.module.stream_buffer_bytes
        edges = [e.edge.id for e in capacity.profile.edges if e.edge.receiver == capacity.profile.plan.stages[s]]
        nbytes, kept_bytes = epoch_s * sum(flow.edge_bytes[i] for i in edges), capacity.window_bytes(flow)[s]
        found = []
        for index, (number, share) in enumerate(zip(subclusters.ranks[s], work.shares, strict=True)):
            if share <= 0:
                continue
            whole = {
                "slave": float(subclusters.first[s] + index),
                "left_tuples": share * epoch_s * flow.came[s][LEFT],
                "right_tuples": share * epoch_s * flow.came[s][RIGHT],
                "delivered_bytes": share * nbytes,
                "pairs": share * epoch_s * flow.out[s],
                "occupancy_ratio": share * nbytes / buffer_bytes,  # of an epoch that waits
                "window_bytes": kept_bytes * share / max(work.shares),
            }
            rank = self.ranks[FIRST_SLAVE + number]
            found.append(Role(rank, 1e6 * work.of(index), 1e6 * work.operator_s(index), whole))
        return found

    def run(self, check: Callable[[], None] | None = None) -> None:
        """Simulate all epochs. check: called after every step (tests)."""
        for epoch in range(self.epochs):
            self.time.at((epoch + 1) * self._slot_us, lambda: self._arrive(self.gateway))
        while self.time.step():
            if check is not None:
                check()
        assert len(self.delays_us) == self.epochs, f"{len(self.delays_us)} of {self.epochs} epochs have come to the collector"

    def _arrive(self, team: Team) -> None:
        team.arrived += 1
        for index, role in enumerate(team.roles):
            self._advance(team, index, role)

    def _advance(self, team: Team, index: int, role: Role) -> None:
        """Send what the role has worked on, if there is credit, and let it begin its next epoch."""
        if role.worked > role.sent and role.worked <= team.granted:
            role.sent = role.worked
            team.sending[role.sent - 1] -= 1
            if team.sending[role.sent - 1] == 0:
                self._sent(team)
        if role.queued == role.sent < team.arrived:
            heapq.heappush(role.rank.ready, (role.queued, team.order, index, role))
            role.queued += 1
            self._begin(role.rank)

    def _sent(self, team: Team) -> None:
        team.complete += 1
        if team is self.gateway:
            self.ended_us.append(team.complete * self._slot_us if self._slot_us else self.time.now_us)
        for receiver in team.receivers:
            if min(sender.complete for sender in receiver.senders) == team.complete:
                self.time.after(self._latency_us, lambda team=receiver: self._arrive(team))  # type: ignore[misc]

    def _begin(self, rank: Rank) -> None:
        """Let an idle rank do its next piece of work."""
        if rank.running or not rank.ready:
            return
        _, order, index, role = heapq.heappop(rank.ready)
        rank.running = True
        role.waited_us = self.time.now_us - rank.free_us
        role.waiting = self._team(order).arrived - role.worked
        rank.busy_us += role.work_us
        role.busy_us += role.work_us
        self.cores.run(role.work_us, lambda: self._end(self._team(order), index, role))

    def _team(self, order: int) -> Team:
        return self.teams[len(self.stages) + 1 - order]

    def _end(self, team: Team, index: int, role: Role) -> None:
        role.worked += 1
        team.working[role.worked - 1] -= 1
        role.rank.running = False
        role.rank.free_us = self.time.now_us
        if role.of_epoch:
            self._measure(team, role)
        self._advance(team, index, role)
        if team.working[role.worked - 1] == 0:
            team.ended += 1
            if team is self.collector:
                self.delays_us.append(self.time.now_us - self.ended_us[team.ended - 1])
            for sender in team.senders:
                for i, other in enumerate(sender.roles):
                    self._advance(sender, i, other)
        self._begin(role.rank)

    def _measure(self, team: Team, role: Role) -> None:
        """Metrics of an instance's epoch. Rows for the next stages have no production delay."""
        epoch, now_us = role.worked - 1, self.time.now_us
        delay_us = now_us - self.ended_us[epoch] if self.collector in team.receivers else 0.0
        values = dict(role.of_epoch) | {
            "epoch": epoch,
            "epoch_end_us": now_us,
            "process_us": role.operator_us,
            "cpu_us": role.work_us,
            "communication_us": role.work_us - role.operator_us,
            "idle_us": role.waited_us,
            "occupancy_ratio": role.waiting * role.of_epoch["occupancy_ratio"],
            **dict.fromkeys(("delay_mean_us", "delay_p99_us", "delay_max_us"), delay_us),
        }
        self.metrics.append(np.array([values.get(name, 0.0) for name in COLUMNS], np.float64))

    def validate(self) -> None:
        """Raise AssertionError when a sender is farther ahead than its receivers' credit, or a rank idles with work."""
        for team in self.teams:
            for role in team.roles:
                assert role.sent <= role.worked <= role.queued <= min(team.arrived, role.sent + 1), f"epochs of {role}"
                assert role.sent <= team.granted, f"{role.sent} epochs sent, {team.granted} granted"
        assert all(rank.running or not rank.ready for rank in self.ranks), "a rank idles with work"

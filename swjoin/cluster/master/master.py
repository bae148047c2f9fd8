"""The master: distribution epochs, placement and moves of partition-groups, activity, checkpoints. No tuple passes it.

What: `Master.handle(event, now_us) -> [effect]`. It plans every distribution epoch once all gateways want it (`EpochPlan`),
follows moves and checkpoints to their end, and starts the measured time after the prefill.
Why: gateways, slaves and collector exchange data among themselves, and one role decides what holds in an epoch. The same
object runs under MPI, in one process and in the simulator.
Stays out: rows and deliveries (`cluster.gateway`), window state, files, messages on the wire, ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from swjoin.cluster.instances import Instances
from swjoin.cluster.master.checkpoint_coordinator import Checkpoints
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.key_spreading import KeySpreading, SkewedJoin
from swjoin.cluster.master.network_placement import NetworkPlacement, Teams
from swjoin.cluster.master.phases import Phase, Phases
from swjoin.cluster.master.split_dealer import SplitDealer
from swjoin.cluster.master.unit_scaling import ScaledJoin, UnitScaling
from swjoin.cluster.messages import (
    EpochClosed,
    EpochDue,
    EpochPlan,
    EpochWanted,
    EventNoted,
    GroupMoved,
    LoadReport,
    MeasuringStarted,
    Message,
    PartSaved,
    PrefillJoined,
    SplitWanted,
    StopReading,
)
from swjoin.cluster.role import (
    CheckpointCompleted,
    Effect,
    Event,
    Finish,
    Log,
    Received,
    RestartClock,
    RoleId,
    SavePart,
    Send,
    Snapshot,
    StopRequested,
    UnexpectedEventError,
    gateway_role,
    sink_role,
    slave_of,
    slave_role,
)
from swjoin.config.run import RunConfig
from swjoin.core.data_messages import MoveEnd, RunEvent
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.plan.subclusters import Subclusters


class Master:
    """One master for one run. `start` first, then `handle` every event; `finished` once it has returned `Finish`.

    Raises UserError when the configuration needs more slaves than the run has.
    """

    def __init__(
        self,
        config: RunConfig,
        slave_count: int,
        subclusters: Subclusters | None = None,
        dealer: SplitDealer | None = None,
        skewed: Sequence[SkewedJoin] = (),
        scaled: Sequence[ScaledJoin] = (),
        teams: Teams | None = None,
    ) -> None:
        """slave_count: of all stages together. subclusters: of a plan, whose instances all take part in every epoch. dealer: of
        splits, where gateways read what they are dealt. skewed: joins whose hot keys are spread. scaled: those whose units
        are scaled. teams: stages that are placed by their traffic, with policy `network`."""
        config.check_slaves(slave_count)
        self.config = config
        self.slave_count = slave_count
        self._of_plan = subclusters is not None
        of = self.subclusters = subclusters or Subclusters.alone(slave_count)
        self.controllers = [Controller(config, count, stage, len(of.counts)) for stage, count in enumerate(of.counts)]
        self.checkpoints = Checkpoints(config.checkpoint, slave_count, config.sink_count, config.gateway_count)
        self.dealer = dealer
        self.spreading = KeySpreading(skewed) if skewed else None
        self.scaling = UnitScaling(scaled, config.reorganization.scaling) if scaled else None
        self.network = None
        if config.reorganization.policy == "network" and teams is not None:
            self.network = NetworkPlacement.of(teams, config)
        self.epoch = EpochIndex(-1)
        self.phases = Phases(prefill=config.measure.prefill_us > 0)
        self._wanted: dict[RoleId, EpochWanted] = {}  # by gateways that are ready for the next epoch
        self._closed: dict[RoleId, tuple[int, int]] = {}  # by gateways that have closed this epoch: times that they need
        self._prefilled: set[RoleId] = set()  # gateways whose prefill is joined

    @cached_property
    def _gateways(self) -> tuple[RoleId, ...]:
        return tuple(gateway_role(number) for number in range(self.config.gateway_count))

    @staticmethod
    def of_plan(instances: Instances, dealer: SplitDealer | None = None) -> Master:
        """The master of a run of a plan, whose partition-groups are where `instances` has them."""
        config, of = instances.config_of_gateway, instances.subclusters
        tables = instances.skewed_joins, instances.scaled_joins, instances.teams
        master = Master(config, instances.slave_count, of, dealer, *tables)
        for controller, owners in zip(master.controllers, instances.group_maps, strict=True):
            controller.map = owners
        return master

    @property
    def controller(self) -> Controller:
        """Of the first stage, the only one if two streams are joined."""
        return self.controllers[0]

    @property
    def _moves(self) -> bool:
        """Whether moves are in flight."""
        return any(controller.moves for controller in self.controllers)

    @property
    def finished(self) -> bool:
        """Whether the run has ended for the master."""
        return self.phases.ended

    def start(self, now_us: int = 0) -> list[Effect]:
        """No effects before a gateway wants the first epoch."""
        return []

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event at `now_us` on the run's clock; the effects are to be performed in order."""
        match event:
            case Received(sender, message):
                effects = self._receive(sender, message, now_us)
            case PartSaved():
                effects = self.checkpoints.saved(event)
            case CheckpointCompleted():
                effects = self._checkpoint_completed(event, now_us)
            case StopRequested():
                self.checkpoints.stopping = True
                effects = [Send(gateway, StopReading()) for gateway in self._gateways]
            case _:
                raise UnexpectedEventError("master", event)
        return effects + [Log(event) for event in self._taken_events()]

    def _taken_events(self) -> list[RunEvent]:
        """Events of all stages; controllers number the slaves of their stage."""
        if not self._of_plan:
            return self.controller.take_events()
        events = []
        for stage, controller in enumerate(self.controllers):
            first = self.subclusters.first[stage]
            for e in controller.take_events():
                slave, peer = (number + first if number >= 0 else number for number in (e.slave, e.peer))
                events.append(replace(e, slave=slave, peer=peer, stage=stage if slave >= 0 else e.stage))
        return events

    def _stage_of(self, slave: SlaveId) -> tuple[Controller, SlaveId]:
        """The controller of a slave's stage, and the slave's number there."""
        return self.controllers[self.subclusters.stage_of(slave)], SlaveId(self.subclusters.index_of(slave))

    def _receive(self, sender: RoleId, message: Message, now_us: int) -> list[Effect]:
        match message:
            case LoadReport():
                if not self.phases.in_prefill:
                    self._take_load(slave_of(sender), message, now_us)
                return []
            case EpochWanted():
                return self._want(sender, message, now_us)
            case EpochClosed():
                return self._close(sender, message)
            case EventNoted():
                return [Log(RunEvent(*message.values))]
            case SplitWanted() if self.dealer is not None:
                return self.dealer.wanted(sender, message)
            case MoveEnd():
                controller, slave = self._stage_of(message.slave)
                move = controller.acknowledge(replace(message, slave=slave), now_us)
                if move is not None and self._of_plan:
                    controller.log_released(move, now_us)
                return [] if move is None else self._to_gateways(GroupMoved(move.number, move.state_bytes, move.waited_us))
            case PartSaved():
                return self.checkpoints.saved(message)
            case PrefillJoined():
                self._prefilled.add(sender)
                return self._start_measuring() if len(self._prefilled) == len(self._gateways) else []
            case _:
                raise UnexpectedEventError("master", Received(sender, message))

    def _take_load(self, of: SlaveId, report: LoadReport, now_us: int) -> None:
        controller, slave = self._stage_of(of)
        stage, loads = self.controllers.index(controller), report.loads
        if self.config.reorganization.policy != "none":
            controller.loads.sample(slave, report.occupancy_ratio, loads)
        if loads is None:
            return
        if self.network is not None:
            self.network.reported(stage, slave, loads)
            self.network.seek(self.controllers, now_us)
        if self.scaling is not None:
            owned = [group for group in controller.map.groups_of(slave).tolist() if not controller.movement.has(group)]
            self.scaling.reported(stage, owned, loads)
        ranks = self.subclusters.ranks
        for other, of_other in zip(self.controllers, ranks, strict=True):
            if other is not controller and of_other == ranks[stage]:
                other.loads.worked_elsewhere(slave, loads.busy_us)

    def _to_gateways(self, message: Message) -> list[Effect]:
        return [Send(gateway, message) for gateway in self._gateways]

    # ------------------------------------------------------------ distribution epochs

    def _want(self, gateway: RoleId, wanted: EpochWanted, now_us: int) -> list[Effect]:
        """Plan the epoch once every gateway wants it."""
        assert wanted.epoch == self.epoch + 1, f"master: epoch {wanted.epoch} is wanted after epoch {self.epoch}"
        self._wanted[gateway] = wanted
        loads = self.controller.loads
        for slave, fed_bytes in enumerate(wanted.fed_bytes[: self.controller.slave_count]):
            loads.delivered(SlaveId(slave), fed_bytes)
        effects = [] if self.dealer is None else self.dealer.reached(gateway, wanted.times_us)
        if len(self._wanted) < len(self._gateways):
            others = self._gateways if len(self._wanted) == 1 else ()
            return [*effects, *(Send(other, EpochDue(wanted.epoch)) for other in others if other != gateway)]
        parked = [w.parked_bytes for w in self._wanted.values()]
        loads.parked_bytes = {SlaveId(s): sum(column) for s, column in enumerate(zip(*parked, strict=True)) if any(column)}
        exhausted = all(w.exhausted for w in self._wanted.values())
        everything = all(w.everything for w in self._wanted.values()) and not self._moves
        times_us = idle_times_us(list(self._wanted.values()))
        self._wanted.clear()
        plan = self._plan_epoch(now_us, exhausted=exhausted, everything=everything)
        return [*effects, *self._to_gateways(replace(self._with_tables(plan, now_us), times_us=times_us))]

    def _with_tables(self, plan: EpochPlan, now_us: int) -> EpochPlan:
        """The plan with what changes in how rows are routed."""
        if self.spreading is not None:
            active, maps = [c.active for c in self.controllers], [c.map for c in self.controllers]
            plan = replace(plan, hot_keys=self.spreading.planned(active, maps))
            for kind, group, hot in self.spreading.take_notes():
                self.controllers[hot.stage].note(now_us, kind, group=group, text=f"key {hot.key}", stage=hot.stage)
        if self.scaling is not None:
            plan = replace(plan, units=self.scaling.planned(self.epoch))
            for kind, stage, unit, text in self.scaling.take_notes():
                self.controllers[stage].note(now_us, kind, group=unit, text=text, stage=stage)
        return plan

    def _plan_epoch(self, now_us: int, *, exhausted: bool, everything: bool) -> EpochPlan:
        """The next distribution epoch, its phase and its plan."""
        self.epoch = EpochIndex(self.epoch + 1)
        prefill = self.phases.in_prefill
        last = everything and self.checkpoints.run_may_end
        due = not prefill and not last and self.checkpoints.due(self.epoch, now_us, everything=everything)
        checkpoint = due and not self._moves
        still = due or self.checkpoints.being_joined
        ending = exhausted or prefill
        resting = [c.begin_epoch(self.epoch, now_us, ending=ending, still=still) for c in self.controllers]
        if ending or not still:
            self._move_by_traffic(now_us, ending=ending)
        inactive = [] if self._of_plan else resting[0]
        generation = self.checkpoints.generation
        if last:
            self.phases.enter(Phase.LAST_EPOCH)
        elif checkpoint:
            self.phases.enter(Phase.CHECKPOINTING)
            if self.dealer is not None:
                self.dealer.held = True  # gateways save what they had been dealt before this plan
            self.checkpoints.begin(self.epoch, now_us, everything=everything)
        else:
            moves = tuple(
                (m.number, m.group, m.supplier + first, m.consumer + first)
                for first, controller in zip(self.subclusters.first, self.controllers, strict=False)
                for m in controller.movement.take_new()
            )
            if self._of_plan:
                return EpochPlan(self.epoch, tuple(range(self.slave_count)), generation=generation, moves=moves)
            served = tuple(sorted([*self.controller.active, *inactive]))
            return EpochPlan(self.epoch, served, tuple(inactive), generation=generation, moves=moves)
        slaves = tuple(range(self.slave_count))  # inactive ones too, to end them or to get their part
        return EpochPlan(
            self.epoch,
            slaves,
            tuple(s for s in slaves if checkpoint and not self._of_plan and s not in self.controller.active),
            everything=everything,
            last=last,
            generation=generation,
            checkpoint=checkpoint,
            halt=checkpoint and self.checkpoints.is_last,
        )

    def _move_by_traffic(self, now_us: int, *, ending: bool) -> None:
        """Order the moves of policy `network` that were found since the last plan. ending: they are not worth it any more."""
        if self.network is None:
            return
        if ending:
            self.network.drop_moves()
        for stage, suggestion in self.network.take_moves():
            self.controllers[stage].enact([suggestion], now_us)
        for kind, amount, text in self.network.take_notes():
            self.controller.note(now_us, kind, amount=amount, text=text)

    def _close(self, gateway: RoleId, closed: EpochClosed) -> list[Effect]:
        """A gateway has closed its share of the epoch. With the last one a checkpoint's cut is made, or the run ends."""
        assert closed.epoch == self.epoch, f"master: epoch {closed.epoch} is closed, the current one is {self.epoch}"
        self._closed[gateway] = closed.needed_us
        if self.spreading is not None:
            self.spreading.closed(closed.key_loads)
        if self.scaling is not None:
            self.scaling.closed(closed.unit_loads)
        if len(self._closed) < len(self._gateways):
            return []
        needed_us = min(n[0] for n in self._closed.values()), min(n[1] for n in self._closed.values())
        self._closed.clear()
        if self.phases.phase is Phase.LAST_EPOCH:
            self.phases.enter(Phase.FINISHED)
            return [Finish()]
        if self.phases.phase is not Phase.CHECKPOINTING:
            return []
        generation = self.checkpoints.cut(needed_us)
        self.phases.enter(Phase.HALTED if self.checkpoints.is_last else Phase.RUNNING)
        effects: list[Effect] = [SavePart(generation, self.snapshot())]
        if self.dealer is not None:
            self.dealer.held = False
            effects += self.dealer.deal()
        return effects

    def _checkpoint_completed(self, event: CheckpointCompleted, now_us: int) -> list[Effect]:
        effects = self.checkpoints.complete(event, now_us)
        duration_us = self.checkpoints.durations_us[-1]
        self.controller.note(now_us, "checkpoint", duration_us=duration_us, amount=float(event.generation))
        if self.checkpoints.stopped:
            self.phases.enter(Phase.STOPPED)
            effects.append(Finish())
        return effects

    def _start_measuring(self) -> list[Effect]:
        """All have joined the prefill: the clock starts."""
        self.phases.enter(Phase.RUNNING)
        clock_us = self.config.measure.prefill_us
        self.controller.begin_measuring(self.epoch + 1, clock_us)
        sinks = map(sink_role, range(self.config.sink_count))
        others = [*self._gateways, *sinks, *(slave_role(s) for s in range(self.slave_count))]
        return [RestartClock(clock_us), *(Send(other, MeasuringStarted(clock_us)) for other in others)]

    # ------------------------------------------------------------ across a crash

    def snapshot(self) -> Snapshot:
        """The master's state between two distribution epochs, with no move in flight."""
        assert not self._moves, "a snapshot in the middle of a state movement"
        master = {
            "epoch": int(self.epoch),
            "generation": self.checkpoints.generation,
            "completed": self.checkpoints.completed,
            "all_held": self.checkpoints.covers_run,
        }
        first, *more = [controller.plain_state() for controller in self.controllers]
        stages = {"more_stages": more} if more else {}
        splits = {} if self.dealer is None else {"splits": self.dealer.plain_state()}
        hot_keys = {} if self.spreading is None else {"hot_keys": self.spreading.plain_state()}
        units = {} if self.scaling is None else {"units": self.scaling.plain_state()}
        traffic = {} if self.network is None else {"traffic": self.network.plain_state()}
        return Snapshot({"master": master, "controller": first, **stages, **splits, **hot_keys, **units, **traffic})

    def restore(
        self,
        plain: dict[str, Any],
        now_us: int,
        splits: Sequence[dict[str, Any]] = (),
        open_splits: Sequence[Sequence[Sequence[int]]] = (),
    ) -> None:
        """Continue a run from a snapshot, in a new master. splits, open_splits: as of `SplitDealer.restore`.

        With as many slaves as before, every partition-group goes to the slave of the same number; with another number of
        slaves, partition-groups are placed again: of a plan, where its instances have them.
        """
        placed = [controller.map for controller in self.controllers]
        for controller, state in zip(self.controllers, [plain["controller"], *plain.get("more_stages", [])], strict=True):
            controller.restore(state, now_us)
        if self.network is not None:
            self.network.restore(plain.get("traffic", {}), now_us)
            for controller, owners in zip(self.controllers, placed, strict=True):
                controller.map = owners
        master = plain["master"]
        self.epoch = EpochIndex(master["epoch"])
        self.checkpoints.restore(master["generation"], master["epoch"], now_us, master["completed"] + 1)
        self.checkpoints.covers_run = master["all_held"]
        if self.dealer is not None:
            self.dealer.restore(splits, open_splits)
        if (self.spreading is not None) != ("hot_keys" in plain):
            asked, has = self.config.cluster.routing, "skew" if "hot_keys" in plain else "no hot keys"
            raise UserError(f"routing {asked}: the run has {has}, which it keeps", remedy="leave it out")
        if self.spreading is not None:
            self.spreading.restore(plain["hot_keys"])
        if (self.scaling is not None) != ("units" in plain):
            has = "a number of units that follows their load" if "units" in plain else "all its units in use"
            raise UserError(
                f"reorganization: scaling.units {self.config.reorganization.scaling.units}: the run has {has}",
                remedy="leave it as it was",
            )
        if self.scaling is not None:
            self.scaling.restore(plain["units"])

    # ------------------------------------------------------------ after the run

    def summary(self) -> dict[str, Any]:
        """The master's part of run.json: epochs, checkpoints, the degree of declustering; of each stage, this and its moves."""
        return {
            "epochs": self.epoch + 1,
            "checkpoints": self.checkpoints.summary(),
            "declustering": self.controller.resize_log,
            "stages": [
                {"moves": c.movement.finished_count, "declustering": c.resize_log}
                | ({} if self.spreading is None else self.spreading.summary(stage))
                | ({} if self.scaling is None else self.scaling.summary(stage))
                for stage, c in enumerate(self.controllers)
            ],
        }

    def validate(self) -> None:
        for controller in self.controllers:
            controller.validate()
        self.checkpoints.validate()
        if self.dealer is not None:
            self.dealer.validate()


def idle_times_us(wanted: Sequence[EpochWanted]) -> tuple[int, ...]:
    """See `EpochPlan.times_us`. wanted: of all gateways."""
    going_on = [w for w in wanted if not w.exhausted]
    busy = [w for w in going_on if not w.idle]
    streams = list(zip(*(w.times_us for w in busy or going_on), strict=True))
    known = [[time_us for time_us in times if time_us < END_OF_TIME_US] for times in streams]
    found = [(min if busy else max)(times) for times in known if times]
    most_us = max(found, default=BEGIN_OF_TIME_US)  # as that of a stream which is idle, or has ended, wherever others go on
    return tuple(min(times) if busy and times else most_us for times in known)

"""The master's table of units in use: when units of one stream begin to store rows, stop, and are no longer probed.

What: `ScaledJoin`, a join by units whose number follows its load; `UnitScaling`: it hears what gateways have sent in an epoch
and what units hold, and says what holds from the next epoch on.
Why: a decision of one role, which all gateways follow from the same distribution epoch on (`EpochPlan.units`). Nothing is moved
and nothing waits: rows of later epochs are stored elsewhere, and those in the windows expire where they are (BiStream, 3.4).
Stays out: where a row goes (`routing.biclique`), how many units there should be (`policy.scaling`), rows.

A unit that stores no more is probed until no later row can have a partner in it: until the watermark of the other stream, at
all gateways, has passed the last partner of its newest row. That is a condition on times of rows that were sent, so disorder,
delays and several gateways do not matter; and as all units join the epochs in one order, a pair meets once in spite of changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from swjoin.cluster.messages import UnitLoad
from swjoin.config.sections import ScalingConfig
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.data_messages import GroupLoads
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.policy.scaling import Limits, SubgroupScaling
from swjoin.routing.biclique import Biclique, UnitTable

_SHARES = 16  # of units that keep their rows for good: so finely their room is told


@dataclass(frozen=True)
class ScaledJoin:
    """stage: its number. lower_us, upper_us: bounds of right time - left time. unbounded: rows are kept for good. units: all
    there may be. capacity_bytes: memory of one."""

    stage: int
    lower_us: int
    upper_us: int
    unbounded: bool
    units: Biclique
    capacity_bytes: int

    def last_partner_us(self, port: int, time_us: int) -> int:
        """Greatest time of the partners of a port's rows of this time, or before it."""
        return time_us + (self.upper_us if port == LEFT else -self.lower_us)


@dataclass(frozen=True)
class _Subgroup:
    """Units that share the rows of one port, or of some of its keys. name: for people."""

    port: int
    units: range
    scaling: SubgroupScaling
    name: str


class _Join:
    """A join's units. stores: those in use. newest_us: of rows in a unit. stored_bytes: as units have reported them."""

    def __init__(self, join: ScaledJoin, config: ScalingConfig) -> None:
        self.join, self.config = join, config
        count = join.units.count
        self.stores, self.newest_us, self.stored_bytes = [False] * count, [BEGIN_OF_TIME_US] * count, [0] * count
        self.passed_us: dict[int, int] = {}  # no later row of a port is below, as told at the end of the last epoch
        self.began_us: int | None = None  # newest time of the rows of the first epoch that has some
        self.reached_us = BEGIN_OF_TIME_US  # of all rows so far
        self.checked: int | None = None  # number of the interval of the last check
        self.changes: list[dict[str, Any]] = []
        self.limits = Limits(config.low, config.target, config.high, join.capacity_bytes)
        self.subgroups: list[_Subgroup] = []
        for port, name in enumerate(STREAM_NAMES):
            found = join.units.subgroups_of(port)
            for number, units in enumerate(found):
                rule = SubgroupScaling(self.limits, len(units), config.confirmations, shrinks=not join.unbounded)
                self.subgroups.append(_Subgroup(port, units, rule, f"{name} {number}" if len(found) > 1 else name))
                for unit in units[: config.units]:
                    self.stores[unit] = True

    def storing(self, subgroup: _Subgroup) -> int:
        """Units of a subgroup that store."""
        return sum(self.stores[unit] for unit in subgroup.units)

    def probed(self, unit: int) -> bool:
        return self.stores[unit] or self.newest_us[unit] > BEGIN_OF_TIME_US

    @property
    def table(self) -> UnitTable:
        weights = [weight for subgroup in self.subgroups for weight in self._weights(subgroup)]
        return UnitTable(self.join.stage, tuple(weights), tuple(int(self.probed(unit)) for unit in range(len(weights))))

    def _weights(self, subgroup: _Subgroup) -> list[int]:
        """As of `UnitsInUse`: where rows expire, the same for all; otherwise by the room that a unit has below `high`."""
        equal = [int(self.stores[unit]) for unit in subgroup.units]
        if not self.join.unbounded:
            return equal
        most = self.config.high * self.join.capacity_bytes
        room = [max(0.0, 1 - self.stored_bytes[unit] / most) for unit in subgroup.units]
        by_room = [stores * round(_SHARES * part) for stores, part in zip(equal, room, strict=True)]
        return by_room if any(by_room) else equal


class UnitScaling:
    """joins: those of a plan whose units are scaled."""

    def __init__(self, joins: Sequence[ScaledJoin], config: ScalingConfig) -> None:
        self._joins = {join.stage: _Join(join, config) for join in joins}
        self._sent: tuple[UnitTable, ...] = ()
        self._notes: list[tuple[str, int, int, str]] = []  # what happened, in which stage, to which unit, why

    def closed(self, loads: Iterable[UnitLoad]) -> None:
        """A gateway has sent its share of an epoch."""
        for stage, port, watermark_us, newest_us in loads:
            of = self._joins[stage]
            of.passed_us[port] = min(of.passed_us.get(port, END_OF_TIME_US), watermark_us)
            for unit, time_us in zip(of.join.units.units_of(port), newest_us, strict=True):
                of.newest_us[unit] = max(of.newest_us[unit], time_us)
            of.reached_us = max(of.reached_us, *newest_us)

    def reported(self, stage: int, owned: Iterable[int], loads: GroupLoads) -> None:
        """What units of a slave hold. owned: its partition-groups that do not move; those without loads hold nothing."""
        of = self._joins.get(stage)
        if of is not None:
            found = dict.fromkeys(owned, 0) | dict(zip(loads.groups.tolist(), loads.state_bytes.tolist(), strict=True))
            for unit, nbytes in found.items():
                if unit < len(of.stored_bytes):
                    of.stored_bytes[unit] = nbytes

    def planned(self, epoch: int) -> tuple[tuple[UnitTable, ...], ...]:
        """The tables for this epoch, once all gateways have closed the one before; nothing if they are as they were."""
        for of in self._joins.values():
            self._drain(of)
            if of.reached_us > BEGIN_OF_TIME_US:
                of.began_us = of.reached_us if of.began_us is None else of.began_us
                number = of.reached_us // of.config.every_us if of.config.every_us else epoch
                if number != of.checked:
                    self._check(of, epoch)
                of.checked = number
            of.passed_us.clear()
        tables = tuple(of.table for of in self._joins.values())
        changed, self._sent = tables != self._sent, tables
        return (tables,) if changed else ()

    def _drain(self, of: _Join) -> None:
        """Forget the rows of units that no later row can meet."""
        if of.join.unbounded:
            return
        for subgroup in of.subgroups:
            passed_us = of.passed_us.get(1 - subgroup.port, BEGIN_OF_TIME_US)
            for unit in subgroup.units:
                newest_us = of.newest_us[unit]
                if newest_us == BEGIN_OF_TIME_US or passed_us <= of.join.last_partner_us(subgroup.port, newest_us):
                    continue
                of.newest_us[unit] = BEGIN_OF_TIME_US
                if not of.stores[unit]:
                    self._notes.append(("unit_closed", of.join.stage, unit, subgroup.name))

    def _check(self, of: _Join, epoch: int) -> None:
        assert of.began_us is not None, "a check before there are rows"
        filling = of.reached_us - of.began_us < max(of.join.upper_us, -of.join.lower_us)
        for subgroup in of.subgroups:
            stored, units = sum(of.stored_bytes[unit] for unit in subgroup.units), of.storing(subgroup)
            draining = any(not of.stores[unit] and of.probed(unit) for unit in subgroup.units)
            wanted = subgroup.scaling.wanted_units(stored, units, draining=draining, filling=filling)
            load = of.limits.load(stored, units)
            for i, unit in enumerate(subgroup.units):
                stores, stored_before = i < wanted, of.stores[unit]
                of.stores[unit] = stores
                if stores != stored_before:
                    kind = "unit_opened" if stores else "unit_closing"
                    text = f"{subgroup.name}, {units} to {wanted} units at {load:.2f} of their memory"
                    self._notes.append((kind, of.join.stage, unit, text))
            if wanted != units:
                of_what = {"side": STREAM_NAMES[subgroup.port], "first_unit": subgroup.units[0]}
                change = {"from": units, "to": wanted, "load": round(load, 4)}
                of.changes.append({"epoch": epoch, "reached_us": of.reached_us, **of_what, **change})

    def take_notes(self) -> list[tuple[str, int, int, str]]:
        """For the log: what has happened since the last call: kind of event, stage, unit, text."""
        notes, self._notes = self._notes, []
        return notes

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> list[dict[str, Any]]:
        """Ready for JSON."""
        return [
            {
                "stage": stage,
                "stores": list(of.stores),
                "newest_us": list(of.newest_us),
                "stored_bytes": list(of.stored_bytes),
                "began_us": of.began_us,
                "reached_us": of.reached_us,
                "checked": of.checked,
                "rules": [subgroup.scaling.plain_state() for subgroup in of.subgroups],
                "changes": list(of.changes),
            }
            for stage, of in self._joins.items()
        ]

    def restore(self, plain: Sequence[dict[str, Any]]) -> None:
        """The tables go with the first plan."""
        for state in plain:
            of = self._joins[state["stage"]]
            of.stores, of.newest_us, of.stored_bytes = state["stores"], state["newest_us"], state["stored_bytes"]
            of.began_us, of.reached_us, of.checked = state["began_us"], state["reached_us"], state["checked"]
            of.changes = state["changes"]
            for subgroup, rule in zip(of.subgroups, state["rules"], strict=True):
                subgroup.scaling.restore(rule)

    def summary(self, stage: int) -> dict[str, Any]:
        """For run.json: how many units of each subgroup store at the end, and when that changed; of a stage that is scaled."""
        of = self._joins.get(stage)
        if of is None:
            return {}
        counts: dict[str, list[int]] = {name: [] for name in STREAM_NAMES}
        for subgroup in of.subgroups:
            counts[STREAM_NAMES[subgroup.port]].append(of.storing(subgroup))
        return {"units": {**counts, "capacity_bytes": of.join.capacity_bytes, "changes": of.changes}}

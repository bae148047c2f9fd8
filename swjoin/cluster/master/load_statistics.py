"""The slaves' reported loads, summed over a reorganization epoch.

What: `LoadStatistics`: `sample` and `delivered` collect, `load` gives a slave's `SlaveLoad`, `restart` starts the next
reorganization epoch.
Why: the policies decide by occupancy, work, speed and backlog of a whole reorganization epoch.
Stays out: ownership and activity (`cluster.master.controller`), decisions (`policy`).
"""

from __future__ import annotations

import numpy as np

from swjoin.cluster.master.moves import Moves
from swjoin.core.batch import I64
from swjoin.core.data_messages import GroupLoads
from swjoin.core.ids import SlaveId
from swjoin.policy.reorganization import SlaveLoad


class LoadStatistics:
    """since_us: the start of the reorganization epoch, on the run's clock. parked_bytes: at the master, for slaves whose
    stream buffers are full."""

    def __init__(self, slave_count: int, partition_count: int, capacity_bytes: int) -> None:
        """capacity_bytes: of a slave's stream buffer."""
        self.since_us = 0
        self.parked_bytes: dict[SlaveId, int] = {}
        self._capacity_bytes = capacity_bytes
        self._occupancies: list[list[float]] = [[] for _ in range(slave_count)]
        self._busy_us = np.zeros(slave_count, np.int64)
        self._busy_elsewhere_us = np.zeros(slave_count, np.int64)
        self._worked_ns = np.zeros(slave_count, np.int64)
        self._delivered_bytes = np.zeros(slave_count, np.int64)
        self._cost_ns = np.zeros(partition_count, np.int64)
        self._state_bytes = np.zeros(partition_count, np.int64)
        self._speed = np.zeros(slave_count)  # 0: unknown

    def sample(self, slave: SlaveId, occupancy_ratio: float, loads: GroupLoads | None) -> None:
        """A slave's report at the end of a distribution epoch."""
        self._occupancies[slave].append(occupancy_ratio)
        if loads is None:
            return
        self._busy_us[slave] += loads.busy_us
        np.add.at(self._cost_ns, loads.groups, loads.cost_ns)
        self._state_bytes[loads.groups] = loads.state_bytes
        self._worked_ns[slave] += int(loads.cost_ns.sum())

    def worked_elsewhere(self, slave: SlaveId, busy_us: int) -> None:
        """The rank of this slave was busy in another stage of the plan."""
        self._busy_elsewhere_us[slave] += busy_us

    def delivered(self, slave: SlaveId, nbytes: int) -> None:
        self._delivered_bytes[slave] += nbytes

    def busy_us(self, slave: SlaveId) -> int:
        return int(self._busy_us[slave])

    def state_bytes(self, group: int) -> int:
        return int(self._state_bytes[group])

    def measure_speeds(self) -> None:
        """Update every slave's nominal work per time; the mean with its last value, as one reorganization epoch is noisy."""
        for slave in np.flatnonzero((self._busy_us > 0) & (self._worked_ns > 0)).tolist():
            now = float(self._worked_ns[slave]) / (1000 * float(self._busy_us[slave]))
            self._speed[slave] = now if self._speed[slave] == 0 else (self._speed[slave] + now) / 2
        self._worked_ns[:] = 0

    def load(self, slave: SlaveId, owned: I64, moves: Moves, now_us: int, *, emptying: bool) -> SlaveLoad:
        """owned: the slave's partition-groups; those in flight are left out. emptying: the slave is to become inactive."""
        groups = np.setdiff1d(owned, moves.groups)
        samples = self._occupancies[slave]
        known = self._speed[self._speed > 0]
        usual = float(known.mean()) if len(known) else 1.0
        return SlaveLoad(
            slave,
            sum(samples) / len(samples) if samples else 0.0,
            groups,
            (self.busy_us(slave) + int(self._busy_elsewhere_us[slave])) / max(1, now_us - self.since_us),
            self._cost_ns[groups],
            self._state_bytes[groups],
            float(self._speed[slave]) or usual,
            emptying,
            sum(int(self._cost_ns[m.group]) for m in moves.to(slave)),
            slave in moves.slaves,
            self._backlog_bytes(slave) / max(1, int(self._delivered_bytes[slave])),
        )

    def _backlog_bytes(self, slave: SlaveId) -> float:
        """Bytes not joined at the slave's last report, and bytes parked for it at the master."""
        samples = self._occupancies[slave]
        return (samples[-1] if samples else 0.0) * self._capacity_bytes + self.parked_bytes.get(slave, 0)

    def restart(self, now_us: int) -> None:
        """The next reorganization epoch starts; state sizes and speeds stay known."""
        for samples in self._occupancies:
            samples.clear()
        for sums in (self._busy_us, self._busy_elsewhere_us, self._cost_ns, self._delivered_bytes):
            sums[:] = 0
        self.since_us = now_us

    def validate(self) -> None:
        for sums in (self._busy_us, self._worked_ns, self._delivered_bytes, self._cost_ns, self._state_bytes, self._speed):
            assert (sums >= 0).all(), "a sum of loads below zero"
        assert all(size >= 0 for size in self.parked_bytes.values()), "parked bytes below zero"

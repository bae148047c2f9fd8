"""The host of a role: performs the effects of any role and delivers its events.

What: `Host` (a role, its clock, its timers and the performers of its effects), `Transport` (which a runtime provides),
`Timers`, `WorkMeter`, `perform`.
Why: runtimes differ only in the transport of messages, in waiting and in the clock. An effect without a performer is an error.
Stays out: sources, sinks and checkpoints (`runtime.hosts`), the loop of a slave (`runtime.slave_host`), transports themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from swjoin.cluster.messages import Message
from swjoin.cluster.role import (
    Effect,
    Event,
    Finish,
    RestartClock,
    Role,
    RoleId,
    Send,
    SetTimer,
    TimerFired,
    TimesMeasured,
    UnknownEffectError,
)
from swjoin.monitor.host_load import RankMeter

LONGEST_WAIT_US = 1_000_000

Performers = dict[type, Callable[[Any], None]]


def perform(effects: Iterable[Effect], performers: Performers) -> None:
    """Perform effects in order. UnknownEffectError when one has no performer."""
    for effect in effects:
        performer = performers.get(type(effect))
        if performer is None:
            raise UnknownEffectError(effect)
        performer(effect)


def nothing(_effect: Effect) -> None:
    """The performer of an effect that needs no action in a runtime."""


@dataclass
class WorkMeter:
    """Where a role's time went since the last `take`, microseconds. read_cpu_us: CPU time of its thread or process."""

    read_cpu_us: Callable[[], int]
    communication_us: int = 0
    idle_us: int = 0
    process_us: int = 0
    cpu_at_us: int = 0

    def take(self) -> TimesMeasured:
        cpu = self.read_cpu_us()
        out = TimesMeasured(cpu - self.cpu_at_us, self.communication_us, self.idle_us, self.process_us)
        self.communication_us = self.idle_us = self.process_us = 0
        self.cpu_at_us = cpu
        return out


class Clock(Protocol):
    """The run's clock."""

    def now_us(self) -> int: ...


class Transport(Protocol):
    """The transport of one role, which a runtime provides."""

    meter: WorkMeter

    @property
    def closed(self) -> bool:
        """For the master: no other role of this process runs."""
        ...

    @property
    def eager_us(self) -> int | None:
        """Interval at which a role that expects a message polls; None: the message ends its wait."""
        ...

    def send(self, to: RoleId, message: Message) -> None:
        """Send a message; may wait until the receiver has room."""
        ...

    def poll(self) -> Event | None:
        """The next event: a message, or the report of a background thread. Raises an exception that another role raised."""
        ...

    def wait(self, at_most_us: int) -> Event | None:
        """As `poll`, but waits for an event, at most this long; may return None earlier."""
        ...

    def check(self) -> None:
        """Called in every round of a loop; raises when the run has failed elsewhere."""
        ...

    def restart_clock(self, clock_us: int) -> None:
        """Set the run's clock to `clock_us`; for this role at the latest before its next event."""
        ...


class Timers:
    """Timers of one role by name."""

    def __init__(self) -> None:
        self._at_us: dict[str, int] = {}

    def set(self, effect: SetTimer) -> None:
        self._at_us[effect.timer] = effect.at_us

    def clear(self) -> None:
        self._at_us.clear()

    @property
    def next_us(self) -> int | None:
        """The time at which the next timer is due."""
        return min(self._at_us.values()) if self._at_us else None

    def remove(self, effect: SetTimer) -> bool:
        """Remove this timer; False when another one has replaced it."""
        if self._at_us.get(effect.timer) != effect.at_us:
            return False
        del self._at_us[effect.timer]
        return True

    def take(self, now_us: int) -> tuple[str, int] | None:
        """Remove the first timer that is due; returns its name and the time at which it was due."""
        if not self._at_us:
            return None
        timer = min(self._at_us, key=self._at_us.__getitem__)
        return (timer, self._at_us.pop(timer)) if self._at_us[timer] <= now_us else None


class Host:
    """One role. transport, role, clock: set before `start`, anew after a recovery.

    meter: of the rank, where the lateness of timers is measured; None where it is not.
    """

    role: Role
    clock: Clock
    transport: Transport

    def __init__(self, performers: Performers | None = None) -> None:
        """performers: for further effects, or instead of those of this class."""
        self.timers = Timers()
        self.meter: RankMeter | None = None
        self.performers: Performers = {
            Send: self._send,
            SetTimer: self.timers.set,
            RestartClock: self._restart_clock,
            Finish: nothing,
            **(performers or {}),
        }

    def start(self) -> None:
        """Start the role, now."""
        self.timers.clear()
        self.perform(self.role.start(self.clock.now_us()))

    def deliver(self, event: Event) -> None:
        self.perform(self.role.handle(event, self.clock.now_us()))

    def perform(self, effects: Iterable[Effect]) -> None:
        perform(effects, self.performers)

    def fire(self) -> bool:
        """Deliver a timer that is due. False when no timer is due."""
        if self.timers.next_us is None:
            return False
        now_us = self.clock.now_us()
        timer = self.timers.take(now_us)
        if timer is None:
            return False
        if self.meter is not None:
            self.meter.lateness.add(now_us - timer[1])
        self.deliver(TimerFired(timer[0]))
        return True

    def until_timer_us(self) -> int | None:
        """Time until the next timer; None without a timer."""
        next_us = self.timers.next_us
        return None if next_us is None else next_us - self.clock.now_us()

    def _send(self, effect: Send) -> None:
        self.transport.send(effect.to, effect.message)

    def _restart_clock(self, effect: RestartClock) -> None:
        self.transport.restart_clock(effect.clock_us)

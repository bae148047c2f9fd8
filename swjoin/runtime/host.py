"""The hosts of the roles that one rank plays: perform their effects and deliver their events.

What: `Host` (a role, its clock, its timers and the performers of its effects), `HostedRoles` (all hosts of a rank, and their
loop), `Transport` (which a runtime provides), `Timers`, `WorkMeter`, `perform`, `settled`.
Why: runtimes differ only in the transport of messages, in waiting and in the clock. An effect without a performer is an error.
A rank plays any number of roles; messages between two of them need no transport.
Stays out: sources, sinks and checkpoints (`runtime.hosts`), the work of a slave (`runtime.slave_host`), transports themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swjoin.cluster.messages import Message
from swjoin.cluster.role import (
    Effect,
    Event,
    Finish,
    Received,
    RestartClock,
    Role,
    RoleId,
    Send,
    SetTimer,
    TimerFired,
    TimesMeasured,
    UnknownEffectError,
)
from swjoin.core.collecting import release, settle
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
    """Where a rank's time went since the last `take`, microseconds. read_cpu_us: CPU time of its thread or process."""

    read_cpu_us: Callable[[], int]
    communication_us: int = 0
    idle_us: int = 0
    cpu_at_us: int = 0

    def take(self) -> TimesMeasured:
        cpu = self.read_cpu_us()
        out = TimesMeasured(cpu - self.cpu_at_us, self.communication_us, self.idle_us)
        self.communication_us = self.idle_us = 0
        self.cpu_at_us = cpu
        return out


class Clock(Protocol):
    """The run's clock."""

    def now_us(self) -> int: ...


Addressed = tuple[RoleId, Event]  # an event, and the role that it is for


class Transport(Protocol):
    """The transport of one rank, which a runtime provides."""

    meter: WorkMeter

    @property
    def closed(self) -> bool:
        """For the rank of the master: no other rank of this process runs."""
        ...

    @property
    def eager_us(self) -> int | None:
        """Interval at which a role that expects a message polls; None: the message ends its wait."""
        ...

    def send(self, sender: RoleId, to: RoleId, message: Message) -> None:
        """Send a message to a role of another rank; may wait until the receiver has room."""
        ...

    def poll(self) -> Addressed | None:
        """The next event: a message, or the report of a background thread. Raises an exception that another rank raised."""
        ...

    def wait(self, at_most_us: int) -> Addressed | None:
        """As `poll`, but waits for an event, at most this long; may return None earlier."""
        ...

    def check(self) -> None:
        """Called in every round of a loop; raises when the run has failed elsewhere."""
        ...

    def restart_clock(self, clock_us: int) -> None:
        """Set the run's clock to `clock_us`; for this rank at the latest before the next event that is polled."""
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
    """One role. name: of the role. role, clock, rank: set before `start`, anew after a recovery.

    meter: of the rank, where the lateness of timers is measured; None where it is not.
    """

    role: Role
    clock: Clock
    rank: HostedRoles

    def __init__(self, name: RoleId, performers: Performers | None = None) -> None:
        """performers: for further effects, or instead of those of this class."""
        self.name = name
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

    @property
    def ended(self) -> bool:
        """Whether the role needs no further event."""
        return self.role.finished

    def work(self) -> bool:
        """Do one bounded piece of work that is no event, if there is some."""
        return False

    def observe(self) -> None:
        """Called in every round of the rank's loop."""

    def patience_us(self) -> int:
        """How long the rank may wait for an event: at most until the next timer."""
        until_us = self.until_timer_us()
        return LONGEST_WAIT_US if until_us is None else min(until_us, LONGEST_WAIT_US)

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
        self.rank.send(self.name, effect.to, effect.message)

    def _restart_clock(self, effect: RestartClock) -> None:
        self.rank.transport.restart_clock(effect.clock_us)


def settled(roles: Mapping[RoleId, Role], sender: RoleId, effects: Iterable[Effect], now_us: int) -> list[Effect]:
    """The effects of one of these roles, with what follows in them in place of the messages that they send each other."""
    out: list[Effect] = []
    left = deque((sender, effect) for effect in effects)
    while left:
        sender, effect = left.popleft()
        if isinstance(effect, Send) and effect.to in roles:
            left.extend((effect.to, e) for e in roles[effect.to].handle(Received(sender, effect.message), now_us))
        else:
            out.append(effect)
    return out


class HostedRoles:
    """The hosts of all roles of one rank."""

    def __init__(self, hosts: Sequence[Host], transport: Transport) -> None:
        self.transport = transport
        self._hosts = {host.name: host for host in hosts}
        self._turns = deque(hosts)  # whose turn it is to work
        self._mail: deque[Addressed] = deque()  # between roles of this rank
        for host in hosts:
            host.rank = self

    def send(self, sender: RoleId, to: RoleId, message: Message) -> None:
        """Send a message: over the transport, or to a role of this rank once the effects at hand are performed."""
        if to in self._hosts:
            self._mail.append((to, Received(sender, message)))
        else:
            self.transport.send(sender, to, message)

    def deliver(self, to: RoleId, event: Event) -> None:
        """Deliver an event, and the messages among roles of this rank that follow from it."""
        self._hosts[to].deliver(event)
        self._deliver_mail()

    def _deliver_mail(self) -> None:
        while self._mail:
            to, event = self._mail.popleft()
            self._hosts[to].deliver(event)

    def run(self) -> None:
        """Run all roles of this rank until each has ended, and for the master's rank until the other ranks have."""
        settle()
        try:
            self._run()
        finally:
            release()

    def _run(self) -> None:
        transport, hosts = self.transport, list(self._hosts.values())
        for host in hosts:
            host.start()
        self._deliver_mail()
        while not self._over:
            transport.check()
            for host in hosts:
                host.observe()
            found = transport.poll()
            if found is None and not self._fire_or_work() and not self._over:  # polling may have found the end of a thread
                patience_us = min(host.patience_us() for host in hosts)  # a source that has rows again may have sent mail
                found = None if self._mail else transport.wait(patience_us)
                self._deliver_mail()
            if found is not None:
                self.deliver(*found)
        for host in hosts:
            host.observe()

    @property
    def _over(self) -> bool:
        return self.transport.closed and all(host.ended for host in self._hosts.values())

    def _fire_or_work(self) -> bool:
        """Let one timer fire, or one role work."""
        if not any(host.fire() for host in self._hosts.values()):
            for _ in range(len(self._turns)):
                self._turns.rotate(-1)
                if self._turns[-1].work():
                    break
            else:
                return False
        self._deliver_mail()
        return True

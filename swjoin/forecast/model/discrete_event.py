"""Virtual time: an event heap, cores that busy ranks share, and ranks that work, wait and send.

What: `Timeline` (what happens next), `Cores` (work takes time, longer when more ranks are busy than there are cores), `World`
(both, with the costs), `Actor` (a rank).
Why: predictions for a test machine must know that its ranks share two cores; those for a cluster that they do not.
Stays out: roles and what they say (`forecast.model.ranks`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swjoin.config.run import RunConfig
from swjoin.forecast.costs import CostModel

Action = Callable[[], None]
_FIRST_POLL_US = 20.0


class Timeline:
    """Events in the order of their times, microseconds; those of the same time in the order in which they were set."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._sequence = 0

    def at(self, time_us: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_us, self.now_us), self._sequence, action))

    def after(self, delay_us: float, action: Action) -> None:
        self.at(self.now_us + delay_us, action)

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._heap:
            return False
        self.now_us, _, action = heapq.heappop(self._heap)
        self.steps += 1
        action()
        return True


class Task:
    """Work under way. left_us: on a core of its own, as of the last look."""

    __slots__ = ("end_us", "left_us", "then")

    def __init__(self, left_us: float, end_us: float, then: Action) -> None:
        self.left_us, self.end_us, self.then = left_us, end_us, then


class Cores:
    """Where ranks work. count 0: a core for every rank. Otherwise all tasks share `count` cores evenly, and together they do
    1 core's work when one is busy, count * capacity when all are (processor sharing)."""

    def __init__(self, timeline: Timeline, count: int, capacity: float) -> None:
        self._timeline, self._count, self._capacity = timeline, count, capacity
        self._tasks: list[Task] = []
        self._looked_us = 0.0
        self._alarm = 0
        self.busy_us = 0.0  # work done, of all

    def _total(self, busy: int) -> float:
        if busy <= 1 or self._count == 1:
            return 1.0
        share = (min(busy, self._count) - 1) / (self._count - 1)
        return 1.0 + share * (max(1.0, self._count * self._capacity) - 1.0)

    @property
    def shared(self) -> bool:
        return self._count > 0

    @property
    def slowdown(self) -> float:
        """How much longer a task takes now than alone."""
        busy = max(1, len(self._tasks))
        return busy / self._total(busy) if self._count else 1.0

    @property
    def most(self) -> float:
        """Cores' worth of work that all cores do together; 0 where every rank has its own."""
        return self._total(self._count) if self._count else 0.0

    def run(self, work_us: float, then: Action) -> Task:
        """Begin a task of so much work; `then` happens when it is done."""
        now = self._timeline.now_us
        task = Task(work_us, now + work_us, then)
        self.busy_us += work_us
        if not self._count:
            self._timeline.at(task.end_us, lambda: self._end(task))
            return task
        self._look()
        self._tasks.append(task)
        self._set_alarm()
        return task

    def extend(self, task: Task, work_us: float) -> None:
        """More work for a task under way."""
        self.busy_us += work_us
        task.end_us += work_us
        if self._count:
            self._look()
            task.left_us += work_us
            self._set_alarm()

    def spin(self) -> Task | None:
        """A rank waits inside a send: it computes nothing, but keeps a shared core busy until `stop`."""
        if not self._count:
            return None
        self._look()
        task = Task(float("inf"), float("inf"), lambda: None)
        self._tasks.append(task)
        self._set_alarm()
        return task

    def stop(self, task: Task | None) -> None:
        """End of a wait."""
        if task is not None:
            self._look()
            self._tasks.remove(task)
            self._set_alarm()

    def _end(self, task: Task) -> None:
        if self._timeline.now_us < task.end_us - 1e-9:  # it was extended
            self._timeline.at(task.end_us, lambda: self._end(task))
        else:
            task.then()

    def _look(self) -> None:
        """Account for the time since the last look."""
        now = self._timeline.now_us
        if self._tasks:
            each = (now - self._looked_us) * self._total(len(self._tasks)) / len(self._tasks)
            for task in self._tasks:
                task.left_us -= each
        self._looked_us = now

    def _set_alarm(self) -> None:
        self._alarm += 1
        alarm = self._alarm
        left = max(0.0, min((task.left_us for task in self._tasks), default=float("inf")))
        if left < float("inf"):
            self._timeline.after(left * self.slowdown, lambda: self._ring(alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._look()
        done = [task for task in self._tasks if task.left_us <= 1e-3]
        self._tasks = [task for task in self._tasks if task.left_us > 1e-3]
        self._set_alarm()
        for task in done:
            task.then()


@dataclass
class Usage:
    """Where an actor's time went, microseconds: CPU, on the link, waiting for a receiver, and what a slower node adds."""

    cpu_us: float = 0.0
    link_us: float = 0.0
    waiting_us: float = 0.0
    slowed_us: float = 0.0

    def clear(self) -> None:
        """History does not count."""
        self.cpu_us = self.link_us = self.waiting_us = self.slowed_us = 0.0


class World:
    """What all actors share."""

    def __init__(self, config: RunConfig, costs: CostModel, host_cores: int) -> None:
        self.config, self.costs = config, costs
        self.time = Timeline()
        self.cores = Cores(self.time, host_cores, costs.shared_capacity)
        self.realtime = config.pace == "realtime"
        self.ahead_us = 0.0  # of the run's clock, once history has been joined

    @property
    def now_us(self) -> int:
        """What the run's clock shows."""
        return int(self.time.now_us + self.ahead_us + 1e-3)  # a boundary that was waited for has been reached

    def at_clock(self, clock_us: float, action: Action) -> None:
        """When the run's clock shows this."""
        self.time.at(clock_us - self.ahead_us, action)

    def transfer_us(self, nbytes: float) -> float:
        return self.costs.link_latency_us + nbytes / self.costs.link_bytes_per_s * 1e6


class Actor:
    """A rank: idle, working, or blocked while it sends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.usage = Usage()
        self.task: Task | None = None
        self.busy = False
        self.blocked = False
        self.polls_us = 0.0  # half of what a piece of work takes that is not interrupted
        self._idle_since_us = 0.0
        self._waking = False
        self._callers: deque[Action] = deque()

    def loop(self) -> None:
        """Do the next thing, or be idle."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Idle no more; on a shared host the looks for messages have taken CPU time from the others."""
        if not self.busy and self.world.cores.shared:
            looks_us = self._looks()[0] * self.world.costs.look_ns / 1000
            if looks_us:
                self.world.cores.run(looks_us, lambda: None)
        self.busy = True

    def work(self, work_us: float, then: Action) -> None:
        self._begin()
        self.usage.cpu_us += work_us

        def done() -> None:
            self.task = None
            then()

        self.task = self.world.cores.run(work_us, done)

    def rest(self) -> None:
        self.busy = False
        self._idle_since_us = self.world.time.now_us

    def attention_us(self) -> float:
        """How long a message waits until it is noticed: half the interval between two looks."""
        return self.polls_us if self.busy else self._looks()[1] / 2

    def _looks(self) -> tuple[int, float]:
        """How often an idle rank has looked for messages, and the interval to the next look (see `runtime.mpi.main`)."""
        costs = self.world.costs
        if not costs.poll_longest_us:
            return 0, 0.0
        left = self.world.time.now_us - self._idle_since_us
        count, interval = 0, _FIRST_POLL_US
        while interval < costs.poll_longest_us and left > interval + costs.sleep_extra_us:
            left -= interval + costs.sleep_extra_us
            interval = min(1.5 * interval, costs.poll_longest_us)
            count += 1
        whole = max(0.0, left) / (interval + costs.sleep_extra_us)
        return count + int(whole), interval + costs.sleep_extra_us

    def wake(self) -> None:
        """Something has come."""
        if self.busy or self._waking:
            return
        self._waking = True
        self.world.time.after(self.attention_us(), self._awake)

    def _awake(self) -> None:
        self._waking = False
        if not self.busy:
            self.loop()

    def when_attentive(self, caller: Action) -> None:
        """Call back once this rank takes a large message."""
        if self.blocked:
            self._callers.append(caller)
        else:
            self.world.time.after(self.attention_us(), caller)

    def send(self, nbytes: float, receiver: Actor, arrive: Action, then: Action) -> None:
        """A message: a small one goes by itself, a large one waits for its receiver and takes both ranks' time."""
        costs, time = self.world.costs, self.world.time
        transfer_us = self.world.transfer_us(nbytes)
        if nbytes <= costs.eager_bytes:
            time.after(transfer_us, arrive)
            then()
            return
        self._begin()
        self.blocked = True
        begun_us = time.now_us
        spinning = self.world.cores.spin()

        def begin() -> None:
            self.world.cores.stop(spinning)
            self.usage.waiting_us += time.now_us - begun_us
            self.usage.link_us += transfer_us
            receiver.usage.link_us += transfer_us
            if receiver.task is not None:
                self.world.cores.extend(receiver.task, transfer_us)
            self.world.cores.run(transfer_us, end)

        def end() -> None:
            self.blocked = False
            arrive()
            while self._callers:
                self._callers.popleft()()
            then()

        receiver.when_attentive(begin)

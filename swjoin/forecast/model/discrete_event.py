"""The discrete-event kernel of the model: virtual time, shared cores, and ranks that work, wait and send.

What: `Timeline` (an event heap), `Cores` (work takes longer when more ranks are busy than there are cores), `World` (both, with
the costs), `Actor` (a rank).
Why: ranks of a test machine share two cores, ranks of a cluster do not; forecasts must distinguish these.
Stays out: roles and their messages (`forecast.model.ranks`).
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
    """Events in the order of their times, microseconds; events of the same time in the order in which they were added."""

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
        """Run the next event; False when there is none."""
        if not self._heap:
            return False
        self.now_us, _, action = heapq.heappop(self._heap)
        self.steps += 1
        action()
        return True


class Task:
    """Work under way. left_us: remaining time on a core of its own, at the last update."""

    __slots__ = ("end_us", "left_us", "then")

    def __init__(self, left_us: float, end_us: float, then: Action) -> None:
        self.left_us, self.end_us, self.then = left_us, end_us, then


class Cores:
    """The cores of a host. count 0: a core for every rank. Otherwise all tasks share `count` cores evenly (processor sharing),
    which do the work of 1 core when one is busy, and of count * capacity cores when all are."""

    def __init__(self, timeline: Timeline, count: int, capacity: float) -> None:
        self._timeline, self._count, self._capacity = timeline, count, capacity
        self._tasks: list[Task] = []
        self._updated_us = 0.0
        self._alarm = 0
        self.busy_us = 0.0  # total work

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
        """Present duration of a task / its duration alone."""
        busy = max(1, len(self._tasks))
        return busy / self._total(busy) if self._count else 1.0

    @property
    def most(self) -> float:
        """Work of all cores together, in cores; 0 where every rank has its own."""
        return self._total(self._count) if self._count else 0.0

    def run(self, work_us: float, then: Action) -> Task:
        """Start a task; `then` is called at its end."""
        now = self._timeline.now_us
        task = Task(work_us, now + work_us, then)
        self.busy_us += work_us
        if not self._count:
            self._timeline.at(task.end_us, lambda: self._end(task))
            return task
        self._update()
        self._tasks.append(task)
        self._set_alarm()
        return task

    def extend(self, task: Task, work_us: float) -> None:
        """Add work to a task."""
        self.busy_us += work_us
        task.end_us += work_us
        if self._count:
            self._update()
            task.left_us += work_us
            self._set_alarm()

    def spin(self) -> Task | None:
        """A rank waits inside a send: it keeps a shared core busy until `stop`."""
        if not self._count:
            return None
        self._update()
        task = Task(float("inf"), float("inf"), lambda: None)
        self._tasks.append(task)
        self._set_alarm()
        return task

    def stop(self, task: Task | None) -> None:
        """End of `spin`."""
        if task is not None:
            self._update()
            self._tasks.remove(task)
            self._set_alarm()

    def _end(self, task: Task) -> None:
        if self._timeline.now_us < task.end_us - 1e-9:  # it was extended
            self._timeline.at(task.end_us, lambda: self._end(task))
        else:
            task.then()

    def _update(self) -> None:
        """Account for the time since the last update."""
        now = self._timeline.now_us
        if self._tasks:
            each = (now - self._updated_us) * self._total(len(self._tasks)) / len(self._tasks)
            for task in self._tasks:
                task.left_us -= each
        self._updated_us = now

    def _set_alarm(self) -> None:
        self._alarm += 1
        alarm = self._alarm
        left = max(0.0, min((task.left_us for task in self._tasks), default=float("inf")))
        if left < float("inf"):
            self._timeline.after(left * self.slowdown, lambda: self._ring(alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._update()
        done = [task for task in self._tasks if task.left_us <= 1e-3]
        self._tasks = [task for task in self._tasks if task.left_us > 1e-3]
        self._set_alarm()
        for task in done:
            task.then()


@dataclass
class Usage:
    """Time of an actor, microseconds: CPU, link, waiting for a receiver, and the extra time of a slower node."""

    cpu_us: float = 0.0
    link_us: float = 0.0
    waiting_us: float = 0.0
    slowed_us: float = 0.0

    def clear(self) -> None:
        """Forget the time of prefill."""
        self.cpu_us = self.link_us = self.waiting_us = self.slowed_us = 0.0


class World:
    """The state that all actors share."""

    def __init__(self, config: RunConfig, costs: CostModel, host_cores: int) -> None:
        self.config, self.costs = config, costs
        self.time = Timeline()
        self.cores = Cores(self.time, host_cores, costs.shared_capacity)
        self.realtime = config.pace == "realtime"
        self.ahead_us = 0.0  # run's clock minus virtual time, after prefill

    @property
    def now_us(self) -> int:
        """The run's clock."""
        return int(self.time.now_us + self.ahead_us + 1e-3)  # a boundary that an actor waited for is reached

    def at_clock(self, clock_us: float, action: Action) -> None:
        """Run `action` when the run's clock shows `clock_us`."""
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
        self.polls_us = 0.0  # half the duration of an uninterrupted piece of work
        self._idle_since_us = 0.0
        self._waking = False
        self._callers: deque[Action] = deque()

    def loop(self) -> None:
        """Do the next piece of work, or `rest`."""
        raise NotImplementedError

    def _begin(self) -> None:
        """End idling; on a shared host the polls meanwhile took CPU time from other ranks."""
        if not self.busy and self.world.cores.shared:
            polls_us = self._polls()[0] * self.world.costs.look_ns / 1000
            if polls_us:
                self.world.cores.run(polls_us, lambda: None)
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
        """Mean time until a message is noticed: half the interval between two polls."""
        return self.polls_us if self.busy else self._polls()[1] / 2

    def _polls(self) -> tuple[int, float]:
        """Polls of an idle rank so far, and the interval to the next poll (see `runtime.mpi.main`)."""
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
        """A message has arrived."""
        if self.busy or self._waking:
            return
        self._waking = True
        self.world.time.after(self.attention_us(), self._awake)

    def _awake(self) -> None:
        self._waking = False
        if not self.busy:
            self.loop()

    def when_attentive(self, caller: Action) -> None:
        """Call `caller` once this rank receives large messages."""
        if self.blocked:
            self._callers.append(caller)
        else:
            self.world.time.after(self.attention_us(), caller)

    def send(self, nbytes: float, receiver: Actor, arrive: Action, then: Action) -> None:
        """Send a message: a small one takes no time of the ranks, a large one waits for its receiver and takes both ranks'
        time."""
        costs, time = self.world.costs, self.world.time
        transfer_us = self.world.transfer_us(nbytes)
        if nbytes <= costs.eager_bytes:
            time.after(transfer_us, arrive)
            then()
            return
        self._begin()
        self.blocked = True
        start_us = time.now_us
        spinning = self.world.cores.spin()

        def transfer() -> None:
            self.world.cores.stop(spinning)
            self.usage.waiting_us += time.now_us - start_us
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

        receiver.when_attentive(transfer)

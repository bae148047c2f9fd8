"""The discrete-event kernel of the model: virtual time, shared cores, and ranks that work, wait and send.

What: `Timeline` (an event heap), `Cores` (work takes longer when more ranks are busy than there are cores), `World` (both, with
the costs), `Actor` (a rank with its link), `Usage` (of one of its roles).
Why: ranks of a test machine share two cores, ranks of a cluster do not; forecasts must distinguish these.
Stays out: roles and their messages (`forecast.model.ranks`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

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
    """Time of a role, microseconds: CPU, link (its own, and waiting for that of a receiver), waiting for a receiver to take
    notice, and the extra time of a slower node."""

    cpu_us: float = 0.0
    link_us: float = 0.0
    waiting_us: float = 0.0
    slowed_us: float = 0.0

    @property
    def busy_us(self) -> float:
        return self.cpu_us + self.link_us + self.slowed_us

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

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

    def wire_us(self, nbytes: float) -> float:
        """Time that a message takes on a link, without its latency."""
        return nbytes / self.costs.link_bytes_per_s * 1e6


@dataclass
class Message:
    """A message between two ranks. arrive: called when it is there. sender, receiver: usage of the roles at both ends. then:
    the sending rank waits for the end of a large message, and continues with this; None: it goes on at once. since_us: when it
    was sent. spinning: the waiting rank, on a shared core. behind: the receiver takes another message first."""

    nbytes: float
    arrive: Action
    sender: Usage
    receiver: Usage
    then: Action | None = None
    since_us: float = 0.0
    spinning: Task | None = None
    behind: bool = False


class Actor:
    """A rank: idle, working, or blocked while it sends. Its link carries one message in each direction at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.task: Task | None = None
        self.busy = False
        self.blocked = False
        self.polls_us = 0.0  # half the duration of an uninterrupted piece of work
        self._idle_since_us = 0.0
        self._waking = False
        self._queues: dict[Actor, deque[Message]] = {}  # by receiver, from the first large message on
        self._sent_until_us = 0.0  # when the last small message has left
        self._sending = False  # a large message
        self._transfers: deque[Actor] = deque()  # receivers that wait until another large message has left
        self._receiving = False
        self._callers: deque[Action] = deque()  # large messages of other ranks that wait for this one

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

    def work(self, used: Usage, work_us: float, then: Action) -> None:
        """A piece of work of the role with this usage."""
        self._begin()
        used.cpu_us += work_us

        def done() -> None:
            self.task = None
            then()

        self.task = self.world.cores.run(work_us, done)

    def rest(self) -> None:
        self.busy = False
        self._idle_since_us = self.world.time.now_us

    # ------------------------------------------------------------ waiting for messages

    def longest_poll_us(self) -> float:
        """Longest interval between two polls of an idle rank; 0: a message wakes it."""
        return self.world.costs.poll_longest_us

    def attention_us(self) -> float:
        """Mean time until a message is noticed: half the interval between two polls."""
        return self.polls_us if self.busy else self._polls()[1] / 2

    def _polls(self) -> tuple[int, float]:
        """Polls of an idle rank so far, and the interval to the next poll (see `runtime.mpi.channel`)."""
        longest_us, extra_us = self.longest_poll_us(), self.world.costs.sleep_extra_us
        if not longest_us:
            return 0, 0.0
        left = self.world.time.now_us - self._idle_since_us
        count, interval = 0, _FIRST_POLL_US
        while interval < longest_us and left > interval + extra_us:
            left -= interval + extra_us
            interval = min(1.5 * interval, longest_us)
            count += 1
        whole = max(0.0, left) / (interval + extra_us)
        return count + int(whole), interval + extra_us

    def wake(self) -> None:
        """A message has arrived."""
        if self.busy or self._waking:
            return
        self._waking = True
        self.world.time.after(self.attention_us(), self._awake)

    def _awake(self) -> None:
        self._waking = False
        self.go_on()

    def go_on(self) -> None:
        """Do the next piece of work, if the rank is idle."""
        if not (self.busy or self._receiving):
            self.loop()

    # ------------------------------------------------------------ messages

    def send(self, to: Actor, message: Message) -> None:
        """Send a message; those to one rank arrive in order. A small one takes time of the link alone. A large one waits for
        its receiver and takes time of both ranks."""
        world = self.world
        queue = self._queues.get(to)
        if message.nbytes <= world.costs.eager_bytes and not queue:
            self._send_small(to, message)
            if message.then is not None:
                message.then()
            return
        message.since_us = world.time.now_us
        if message.then is not None:
            self._begin()
            self.blocked = True
            message.spinning = world.cores.spin()
        if queue is None:
            queue = self._queues[to] = deque()
        queue.append(message)
        if len(queue) == 1:
            message.behind = to._receiving
            to.call(partial(self._transfer, to))

    def _send_small(self, to: Actor, message: Message) -> None:
        world = self.world
        wire_us = world.wire_us(message.nbytes)
        message.sender.link_us += wire_us
        message.receiver.link_us += wire_us
        self._sent_until_us = max(self._sent_until_us, world.time.now_us) + wire_us

        def arrive() -> None:
            message.arrive()
            to.wake()

        world.time.at(self._sent_until_us + world.costs.link_latency_us, arrive)

    def call(self, caller: Action) -> None:
        """Call `caller` once this rank receives a large message, one after the other."""
        self._callers.append(caller)
        if not (self._receiving or self.blocked):
            self._receiving = True
            self.world.time.after(self.attention_us(), self._callers.popleft())

    def _receive_next(self) -> None:
        """A rank takes all messages that wait before it goes on with its work."""
        if self._callers and not (self._receiving or self.blocked):
            self._receiving = True
            self._callers.popleft()()

    def _transfer(self, to: Actor) -> None:
        """Send the oldest message to this rank, which receives."""
        if self._sending:
            self._transfers.append(to)
            return
        self._sending = True
        world, message = self.world, self._queues[to][0]
        transfer_us = world.costs.link_latency_us + world.wire_us(message.nbytes)
        if message.then is not None:
            world.cores.stop(message.spinning)
            waited_us = world.time.now_us - message.since_us
            message.sender.link_us += waited_us if message.behind else 0.0
            message.sender.waiting_us += 0.0 if message.behind else waited_us
        message.sender.link_us += transfer_us
        message.receiver.link_us += transfer_us
        for actor in (self, to):
            if actor.task is not None:
                world.cores.extend(actor.task, transfer_us)
        world.cores.run(transfer_us, partial(self._transferred, to))

    def _transferred(self, to: Actor) -> None:
        self._sending = to._receiving = False
        queue = self._queues[to]
        message = queue.popleft()
        if message.then is not None:
            self.blocked = False
        message.arrive()
        if queue:
            to.call(partial(self._transfer, to))
        to._receive_next()
        to.go_on()
        if self._transfers:
            self._transfer(self._transfers.popleft())
        if message.then is not None:
            self._receive_next()
            message.then()

"""Virtual time: an event heap, and cores that busy ranks share.

What: `Timeline` (what happens next), `Cores` (work takes time, longer when more ranks are busy than there are cores).
Why: predictions for a test machine must know that its ranks share two cores; those for a cluster that they do not.
Stays out: roles and messages (`runtime.planner`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


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
        if self._tasks:
            left = max(0.0, min(task.left_us for task in self._tasks))
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

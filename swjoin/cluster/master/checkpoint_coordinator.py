"""The master's side of checkpoints: when the next one is due, and what of it is durable already.

What: `Checkpoints`: a checkpoint falls due, begins with a distribution epoch that serves every slave, is joined, becomes
durable part by part, and is completed.
Why: distribution epochs are synchronous, so "all deliveries up to this epoch" is a consistent cut without markers between
slaves; what has to hold for it is in one place.
Stays out: what the parts hold (`cluster.master.master`, `checkpoint.store`), writing, restoring.

A cut is clean only while no partition-group is on its way: what a supplier had not joined travels, and its results would come
from both sides of the cut. So a checkpoint waits until the moves in flight have ended, and no new ones are decided until every
slave has joined all that was delivered before it.
"""

from __future__ import annotations

from typing import Any

from swjoin.cluster.messages import PartSaved, PublishResults
from swjoin.cluster.role import COLLECTOR, CheckpointCompleted, CompleteCheckpoint, Effect, ReleaseInput, Send, slave_role
from swjoin.config.run import CheckpointConfig
from swjoin.core.ids import EpochIndex


class Checkpoints:
    """Of one run. generation: how many have begun; deliveries, results and files carry it."""

    def __init__(self, config: CheckpointConfig, slave_count: int) -> None:
        self.generation = 0
        self.completed = 0
        self.stopping = False  # the run is to stop with a checkpoint
        self.is_last = False  # the one under way has been begun for that
        self.stopped = False  # and it is there
        self.all_held = not config.enabled  # the last one begun, or rather no one that is needed, holds the whole run
        self.durations_us: list[int] = []
        self.nbytes = 0
        self._config = config
        self._parts_wanted = {"master", "collector", *(f"slave {s}" for s in range(slave_count))}
        self._parts: dict[str, dict[str, Any]] | None = None  # None: none is under way
        self._ending = -1  # the generation that ends with it
        self._began_us = 0
        self._began_epoch = -1
        self._alive_us = (0, 0)

    @property
    def under_way(self) -> bool:
        return self._parts is not None

    @property
    def began_us(self) -> int:
        """When the last one began, or the one that was restored; on the run's clock."""
        return self._began_us

    @property
    def being_joined(self) -> bool:
        """Some slave may not have joined yet what was delivered before the cut."""
        return self._parts is not None and any(p.startswith("slave") for p in self._parts_wanted - self._parts.keys())

    @property
    def run_may_end(self) -> bool:
        """What has been delivered by the run's end can never be taken back: a checkpoint holds it."""
        return self.all_held and not self.under_way

    def due(self, epoch: int, now_us: int, *, everything: bool = False) -> bool:
        """Whether the distribution epoch `epoch`, which begins now, should end with a checkpoint.

        everything: with this distribution epoch all is delivered. Then it should, so that the results, once they can be seen,
        are never taken back.
        """
        if self.under_way or self.stopped:
            return False
        config = self._config
        by_time = config.interval_us > 0 and now_us - self._began_us >= config.interval_us
        by_epochs = config.epochs > 0 and epoch - self._began_epoch >= config.epochs
        return by_time or by_epochs or self.stopping or (everything and not self.all_held)

    def begin(self, epoch: EpochIndex, now_us: int, *, everything: bool = False) -> None:
        """The distribution epoch that ends with it begins; slaves that are served early may have their part before others."""
        assert self._parts is None, "a checkpoint is under way already"
        self._parts, self._ending = {}, self.generation
        self.all_held = everything
        self.is_last = self.stopping  # one begun before the request would not hold what was delivered since
        self._began_us, self._began_epoch = now_us, int(epoch)

    def cut(self, alive_us: tuple[int, int]) -> int:
        """All deliveries of this epoch have been made; returns the generation that ends here."""
        self._alive_us = alive_us
        self.generation += 1
        return self._ending

    def saved(self, part: PartSaved) -> list[Effect]:
        """A part is durable; with the last one the checkpoint can be completed."""
        if self._parts is None or part.generation != self._ending or part.part not in self._parts_wanted:
            raise AssertionError(f"{part.part} saved its part of generation {part.generation}, which nobody wanted")
        self._parts[part.part] = part.content
        if self._parts.keys() != self._parts_wanted:
            return []
        epoch = EpochIndex(self._began_epoch)
        return [CompleteCheckpoint(part.generation, epoch, self._began_us, self._alive_us, self._parts)]

    def complete(self, event: CheckpointCompleted, now_us: int) -> list[Effect]:
        """It is durable as a whole."""
        self._parts = None
        self.completed += 1
        self.stopped = self.is_last
        self.durations_us.append(now_us - self._began_us)
        self.nbytes = event.nbytes
        published = PublishResults(event.generation, self.stopped)
        slaves = range(len(self._parts_wanted) - 2) if self.stopped else ()
        return [*(Send(to, published) for to in (COLLECTOR, *map(slave_role, slaves))), ReleaseInput()]

    # ------------------------------------------------------------ after a recovery

    def restore(self, generation: int, epoch: int, now_us: int, completed: int) -> None:
        """The checkpoint that ended the generation before this one has been restored, at `now_us`."""
        self.generation, self._began_epoch, self._began_us, self.completed = generation, epoch, now_us, completed

    def summary(self) -> dict[str, Any]:
        """For run.json: how many, and how long the last and the longest took from the cut until all was durable."""
        durations = self.durations_us
        return {
            "completed": self.completed,
            "last_s": durations[-1] / 1e6 if durations else None,
            "longest_s": max(durations) / 1e6 if durations else None,
            "bytes": self.nbytes,
        }

    def validate(self) -> None:
        assert self._parts is None or self._parts.keys() <= self._parts_wanted, "a part that nobody wanted"
        assert self.completed <= self.generation, "more checkpoints completed than begun"

"""The master's side of checkpoints: when the next one is due, and which of its parts are durable.

What: `Checkpoints`: a checkpoint is due, starts with a distribution epoch that serves every slave, is joined, becomes durable
part by part, and is completed.
Why: distribution epochs are synchronous, so "all deliveries up to this epoch" is a consistent cut without markers between
slaves; its conditions are in one module.
Stays out: content of the parts (`cluster.master.master`, `checkpoint.store`), writing, restoring.

A cut is clean only while no partition-group moves: tuples that the supplier has not joined travel with it, and their results
would belong to both sides of the cut. So a checkpoint waits for the moves in flight, and no move is decided until every slave
has joined all deliveries before the cut.
"""

from __future__ import annotations

from typing import Any

from swjoin.cluster.messages import CheckpointDurable, PartSaved
from swjoin.cluster.role import (
    MASTER,
    CheckpointCompleted,
    CompleteCheckpoint,
    Effect,
    Send,
    gateway_role,
    is_slave,
    sink_role,
    slave_role,
)
from swjoin.config.run import CheckpointConfig
from swjoin.core.ids import EpochIndex


class Checkpoints:
    """The checkpoints of one run. generation: count of cuts so far; a label of deliveries, results and files."""

    def __init__(self, config: CheckpointConfig, slave_count: int, sink_count: int = 1, gateway_count: int = 1) -> None:
        self.generation = 0
        self.completed = 0
        self.stopping = False  # the run shall stop with a checkpoint
        self.is_last = False  # the one under way started after that request
        self.stopped = False  # that one is durable
        self.covers_run = not config.enabled  # the last one started covers the whole run, or none is needed
        self.durations_us: list[int] = []
        self.nbytes = 0
        self._config = config
        self._expected_parts = {"master": MASTER}
        self._expected_parts |= {f"gateway {g}": gateway_role(g) for g in range(gateway_count)}
        self._expected_parts |= {f"sink {s}": sink_role(s) for s in range(sink_count)}
        self._expected_parts |= {f"slave {s}": slave_role(s) for s in range(slave_count)}
        self._parts: dict[str, dict[str, Any]] | None = None  # None: none is under way
        self._ending = -1  # the generation that ends with the one under way
        self._started_us = 0
        self._start_epoch = -1
        self._alive_us = (0, 0)

    @property
    def under_way(self) -> bool:
        return self._parts is not None

    @property
    def began_us(self) -> int:
        """Start of the last checkpoint, or time of the restore; on the run's clock."""
        return self._started_us

    @property
    def being_joined(self) -> bool:
        """Whether some slave may not have joined all deliveries before the cut."""
        return self._parts is not None and any(p.startswith("slave") for p in self._expected_parts.keys() - self._parts.keys())

    @property
    def run_may_end(self) -> bool:
        """Whether a complete checkpoint covers all deliveries, so that no result can be revoked after the end."""
        return self.covers_run and not self.under_way

    def due(self, epoch: int, now_us: int, *, everything: bool = False) -> bool:
        """Whether the distribution epoch `epoch`, which starts now, should end with a checkpoint.

        everything: this distribution epoch delivers all tuples. It then ends with a checkpoint, so that published results are
        never revoked.
        """
        if self.under_way or self.stopped:
            return False
        config = self._config
        by_time = config.interval_us > 0 and now_us - self._started_us >= config.interval_us
        by_epochs = config.epochs > 0 and epoch - self._start_epoch >= config.epochs
        return by_time or by_epochs or self.stopping or (everything and not self.covers_run)

    def begin(self, epoch: EpochIndex, now_us: int, *, everything: bool = False) -> None:
        """Start the distribution epoch that ends with a checkpoint. Slaves served early may save their part first."""
        assert self._parts is None, "a checkpoint is under way already"
        self._parts, self._ending = {}, self.generation
        self.covers_run = everything
        self.is_last = self.stopping  # one started before the request would lack later deliveries
        self._started_us, self._start_epoch = now_us, int(epoch)

    def cut(self, alive_us: tuple[int, int]) -> int:
        """Mark the cut, after all deliveries of this epoch; returns the generation that ends here."""
        self._alive_us = alive_us
        self.generation += 1
        return self._ending

    def saved(self, part: PartSaved) -> list[Effect]:
        """Take a durable part; the last one completes the checkpoint."""
        if self._parts is None or part.generation != self._ending or part.part not in self._expected_parts:
            raise AssertionError(f"{part.part} saved its part of generation {part.generation}, which is not expected")
        self._parts[part.part] = part.content
        if self._parts.keys() != self._expected_parts.keys():
            return []
        epoch = EpochIndex(self._start_epoch)
        return [CompleteCheckpoint(part.generation, epoch, self._started_us, self._alive_us, self._parts)]

    def complete(self, event: CheckpointCompleted, now_us: int) -> list[Effect]:
        """The whole checkpoint is durable: its results may be published, and the input before it released."""
        self._parts = None
        self.completed += 1
        self.stopped = self.is_last
        self.durations_us.append(now_us - self._started_us)
        self.nbytes = event.nbytes
        durable = CheckpointDurable(event.generation, self.stopped)
        roles = self._expected_parts.values()
        return [Send(to, durable) for to in roles if to != MASTER and (self.stopped or not is_slave(to))]

    # ------------------------------------------------------------ after a recovery

    def restore(self, generation: int, epoch: int, now_us: int, completed: int) -> None:
        """Continue after a restored checkpoint: `generation` is the one that follows its cut."""
        self.generation, self._start_epoch, self._started_us, self.completed = generation, epoch, now_us, completed

    def summary(self) -> dict[str, Any]:
        """For run.json: count, bytes, and the seconds of the last and the longest, from start to durable."""
        durations = self.durations_us
        return {
            "completed": self.completed,
            "last_s": durations[-1] / 1e6 if durations else None,
            "longest_s": max(durations) / 1e6 if durations else None,
            "bytes": self.nbytes,
        }

    def validate(self) -> None:
        assert self._parts is None or self._parts.keys() <= self._expected_parts.keys(), "an unexpected part"
        assert self.completed <= self.generation, "more checkpoints completed than started"

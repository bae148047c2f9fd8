"""The phases of a master's run, and the value that describes one distribution epoch.

What: `Phases`: the phase, and `enter`, which takes the next step of `TRANSITIONS`; `EpochPlan`.
Why: whether slots are closed and whether the run ends depends on the phase alone, and a step that the table does not have is a
bug that must not pass unnoticed. docs/mechanisms/master-phases.md shows the table.
Stays out: what happens in a phase (`cluster.master.master`), states of a move (`cluster.master.controller`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from swjoin.core.errors import RunFailed
from swjoin.core.ids import SlaveId


class Phase(StrEnum):
    PREFILL = "prefill"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    LAST_EPOCH = "last_epoch"
    DRAINING = "draining"
    HALTED = "halted"
    STOPPED = "stopped"
    FINISHED = "finished"


TRANSITIONS: dict[tuple[Phase, Phase], str] = {
    (Phase.PREFILL, Phase.RUNNING): "every active slave has joined the prefill",
    (Phase.RUNNING, Phase.CHECKPOINTING): "a distribution epoch starts that ends with a checkpoint",
    (Phase.CHECKPOINTING, Phase.RUNNING): "the cut is made, and the run goes on",
    (Phase.CHECKPOINTING, Phase.HALTED): "the cut is made, and the run is to stop",
    (Phase.HALTED, Phase.STOPPED): "the checkpoint is durable",
    (Phase.RUNNING, Phase.LAST_EPOCH): "a distribution epoch starts that delivers everything, and a checkpoint may hold it",
    (Phase.LAST_EPOCH, Phase.DRAINING): "the last slot is closed",
    (Phase.DRAINING, Phase.FINISHED): "every slave has its last delivery",
}
_OPEN = frozenset({Phase.PREFILL, Phase.RUNNING, Phase.CHECKPOINTING, Phase.LAST_EPOCH})


class Phases:
    """The phase of one run. `past`: the phases before it, oldest first."""

    def __init__(self, *, prefill: bool) -> None:
        self.phase = Phase.PREFILL if prefill else Phase.RUNNING
        self.past: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        """RunFailed on a step that the table does not have; nothing has changed then."""
        if (self.phase, phase) not in TRANSITIONS:
            story = ", ".join([*self.past[-8:], self.phase])
            raise RunFailed(f"master: phase {phase} cannot follow {self.phase} (phases so far: {story})")
        self.past.append(self.phase)
        self.phase = phase

    @property
    def in_prefill(self) -> bool:
        return self.phase is Phase.PREFILL

    @property
    def closes_slots(self) -> bool:
        """Deliveries may still be made."""
        return self.phase in _OPEN

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.STOPPED)


@dataclass(frozen=True)
class EpochPlan:
    """What one distribution epoch does.

    served: slaves with a delivery, ascending. inactive: those of them that get none afterwards until they are activated.
    everything: all tuples are delivered with it.
    """

    served: Sequence[SlaveId] = ()
    inactive: Sequence[SlaveId] = ()
    everything: bool = False

"""The phases of a master's run.

What: `Phases`: the phase, and `enter`, which takes the next step of `TRANSITIONS`.
Why: the phase alone decides whether the run ends; a step outside the table is a bug and raises.
docs/mechanisms/master-phases.md shows the table.
Stays out: the work of a phase (`cluster.master.master`), states of a move (`cluster.master.moves`).
"""

from __future__ import annotations

from enum import StrEnum

from swjoin.core.errors import RunFailed


class Phase(StrEnum):
    PREFILL = "prefill"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    LAST_EPOCH = "last_epoch"
    HALTED = "halted"
    STOPPED = "stopped"
    FINISHED = "finished"


TRANSITIONS: dict[tuple[Phase, Phase], str] = {
    (Phase.PREFILL, Phase.RUNNING): "every active slave has joined the prefill",
    (Phase.RUNNING, Phase.CHECKPOINTING): "a distribution epoch starts that ends with a checkpoint",
    (Phase.CHECKPOINTING, Phase.RUNNING): "every gateway has closed it, and the run goes on",
    (Phase.CHECKPOINTING, Phase.HALTED): "every gateway has closed it, and the run is to stop",
    (Phase.HALTED, Phase.STOPPED): "the checkpoint is durable",
    (Phase.RUNNING, Phase.LAST_EPOCH): "a distribution epoch starts that delivers everything, and a checkpoint may hold it",
    (Phase.LAST_EPOCH, Phase.FINISHED): "every gateway has closed it",
}


class Phases:
    """The phase of one run. `past`: the phases before it, oldest first."""

    def __init__(self, *, prefill: bool) -> None:
        self.phase = Phase.PREFILL if prefill else Phase.RUNNING
        self.past: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        """Take the next step. On a step outside the table raises RunFailed and changes nothing."""
        if (self.phase, phase) not in TRANSITIONS:
            past = ", ".join([*self.past[-8:], self.phase])
            raise RunFailed(f"master: phase {phase} cannot follow {self.phase} (phases so far: {past})")
        self.past.append(self.phase)
        self.phase = phase

    @property
    def in_prefill(self) -> bool:
        return self.phase is Phase.PREFILL

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.STOPPED)

"""What stands at the master's door: both streams' intake, and the mini-buffers behind it.

What: `Ingress`, `ingress_of`.
Why: the master, the engine of the API and the planner begin with the same two things, and only the planner's are others.
Stays out: what happens at the door (`cluster.master.intake`), who reads when (`cluster.master.read_scheduler`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swjoin.cluster.master.intake import StreamIntake
from swjoin.cluster.master.mini_buffers import MiniBuffers
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, RowLayout
from swjoin.routing.hash_partition import HashPartition


@dataclass(frozen=True)
class Ingress:
    """buffers: makes the mini-buffers, for partition-groups that are owned so."""

    streams: tuple[StreamIntake, StreamIntake]
    buffers: Callable[[HashPartition], MiniBuffers]


def ingress_of(config: RunConfig, layouts: tuple[RowLayout | None, RowLayout | None]) -> Ingress:
    """For tuples with payload rows of these layouts."""
    keeps, counted = config.query.kind.unmatched, config.query.bounds.count_windows
    groups = config.cluster.sub_group_count
    return Ingress(
        (
            StreamIntake(LEFT, config.time, keeps[LEFT], live=config.live),
            StreamIntake(RIGHT, config.time, keeps[RIGHT], live=config.live),
        ),
        lambda router: MiniBuffers(layouts, router, groups, count_windows=counted),
    )

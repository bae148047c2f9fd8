"""A gateway's ingress: one intake per stream and the mini-buffers they feed.

What: `Ingress`, `ingress_of`.
Why: the ingress is injected into the master and the API's engine, so that the forecast can substitute its model.
Stays out: admission of rows (`cluster.gateway.intake`), the order of reads (`cluster.gateway.read_scheduler`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, RowLayout
from swjoin.routing.hash_partition import HashPartition


@dataclass(frozen=True)
class Ingress:
    """buffers: factory of the mini-buffers for a given ownership of partition-groups."""

    streams: tuple[StreamIntake, ...]
    buffers: Callable[[HashPartition], MiniBuffers]


def ingress_of(config: RunConfig, layouts: tuple[RowLayout | None, RowLayout | None]) -> Ingress:
    """layouts: payload rows of both streams, None without payload."""
    keeps, count_windows = config.query.kind.unmatched, config.query.bounds.count_windows
    groups = config.cluster.sub_group_count
    return Ingress(
        (
            StreamIntake(LEFT, config.time, keeps[LEFT], live=config.live),
            StreamIntake(RIGHT, config.time, keeps[RIGHT], live=config.live),
        ),
        lambda router: MiniBuffers(layouts, router, groups, count_windows=count_windows),
    )

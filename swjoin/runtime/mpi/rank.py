"""The common part of all MPI ranks: tags, agreement on the set-up, the clock, events of background threads.

What: `Rank`, `agree`, `identity`, `open_heartbeats`, the tags of messages.
Why: `run` can be called again: after the death of a rank the remaining ranks meet on a new channel, and every role is made anew
from the newest checkpoint, while sources, files and the clock stay open.
Stays out: the rank of each role (`runtime.mpi.master_rank`, `worker_rank`).

Data travels as frames in upper-case buffer calls; set-up and summaries are JSON bytes. Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.ranks import ROOT, RankMap
from swjoin.cluster.role import RoleId
from swjoin.config.job import Job
from swjoin.core.errors import SwjoinError
from swjoin.monitor.host_load import RankMeter
from swjoin.monitor.process_memory import peak_rss_bytes, rss_bytes
from swjoin.runtime.clock import RunClock
from swjoin.runtime.mpi.channel import Channel, PeerFailedError
from swjoin.runtime.mpi.heartbeats import Heartbeats, Rules
from swjoin.runtime.open import places_of

SUMMARY, VERDICT, FAILURE, BYE, STATUS, ENDPOINT = 22, 23, 24, 25, 26, 27  # tags beside those of `cluster.wire.FORMATS`


class EndedEarlyError(SwjoinError):
    """Set-up failed on some rank; every rank ends with its exit code, and one of them prints the reason."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def parse(data: NDArray[np.uint8]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(bytes(data))
    return value


def agree(channel: Channel, root: int, attempt: Callable[[], dict[str, Any]] | None) -> dict[str, Any]:
    """`root` makes an attempt that may fail with an error of the user; all ranks receive the outcome and continue or end."""
    answer: dict[str, Any] | None = None
    if attempt is not None:
        try:
            answer = attempt()
        except SwjoinError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
    outcome: dict[str, Any] = json.loads(channel.broadcast(None if answer is None else json.dumps(answer), root))
    if "error" in outcome:
        raise EndedEarlyError(outcome["error"] if channel.rank == ROOT else "", outcome["exit_code"])
    return outcome


def open_heartbeats(channel: Channel, job: Job, *, survives: bool) -> None:
    """Begin with heartbeats between all ranks, unless the job wants none. survives: the others go on without a dead rank."""
    timeout_us = job.config.cluster.failure_timeout_us
    if not timeout_us:
        return
    mend = partial(job.next_step, channel.size)
    rules = Rules(timeout_us / 1e6, survives, mend, lambda size, rank: RankMap.of(job.config, size).name_of(rank))
    one_host = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(channel.size)
    heartbeats = Heartbeats(channel.rank, rules, loopback=one_host)
    shared: str | None = None
    if channel.rank == ROOT:
        others = [parse(channel.wait(rank, ENDPOINT)) for rank in range(1, channel.size)]
        shared = json.dumps({"key": secrets.token_hex(16), "endpoints": [heartbeats.endpoint, *others]})
    else:
        channel.send_json(heartbeats.endpoint, ROOT, ENDPOINT)
    agreed = json.loads(channel.broadcast(shared, ROOT))
    heartbeats.start(bytes.fromhex(agreed["key"]), agreed["endpoints"])
    channel.heartbeats = heartbeats


def identity(rank: int, role: str, meter: RankMeter, start_rss_bytes: int) -> dict[str, Any]:
    """The rank in run.json. start_rss_bytes: memory before the first tuple."""
    memory = {"start_rss_bytes": start_rss_bytes, "peak_rss_bytes": peak_rss_bytes()}
    return {"rank": rank, "host": platform.node(), "role": role, **memory, "machine": meter.summary()}


class Rank:
    """The common part of both kinds of ranks: the clock, and its start. roles: who plays what, since `take_roles`.

    saved: events of this rank's background threads, such as `PartSaved`, or their exceptions, with the roles they are for.
    save: takes one.
    """

    saved: deque[Any]
    save: Callable[[RoleId, Any], None]

    def __init__(self, job: Job, place: list[str]) -> None:
        self.job = job
        self.place = place
        self.where = place[0]
        self.changed = False  # the run goes on with other queries
        self.clock: RunClock | None = None
        self.meter = RankMeter()
        self.start_rss_bytes = 0
        self.begin_attempt()
        self.stop_wanted: Callable[[], bool] = lambda: False  # read by the master alone

    def take_roles(self, channel: Channel) -> RankMap:
        """At the start, and after a death: the roles of the ranks that are left."""
        roles = RankMap.of(self.job.config, channel.size)
        self.roles = replace(roles, places=places_of(self.job, roles.slave_ranks))
        self.where = self.place[0] = f"rank {channel.rank} ({self.roles.name_of(channel.rank)}) on {platform.node()}"
        return self.roles

    def slave_machines(self, channel: Channel) -> list[str]:
        """With all other ranks: the names of the machines of the ranks with instances. After `take_roles`."""
        mine, shared = platform.node(), None
        if channel.rank == ROOT:
            names = [mine, *(parse(channel.wait(rank, ENDPOINT))["machine"] for rank in range(1, channel.size))]
            shared = json.dumps({"machines": names})
        else:
            channel.send_json({"machine": mine}, ROOT, ENDPOINT)
        names = json.loads(channel.broadcast(shared, ROOT))["machines"]
        return [names[rank] for rank in range(channel.size) if self.roles.slave_of(rank) is not None]

    def take_gateways(self, channel: Channel, count: int) -> RankMap:
        """The roles of all ranks with so many gateways, which may be fewer than configured."""
        self.job = replace(self.job, config=self.job.config.with_gateways(count))
        return self.take_roles(channel)

    def begin_attempt(self) -> None:
        """At the start, and after a death: threads of before, which may still be writing, are heard no more."""
        saved = self.saved = deque()

        def save(role: RoleId, item: Any) -> None:
            saved.append((role, item))

        self.save = save

    def start_clock(self, channel: Channel, resumed_us: int | None) -> RunClock:
        """Start the clock on all ranks at once; a recovery leaves it running."""
        channel.barrier()
        if self.clock is None:
            self.clock = RunClock()
            self.start_rss_bytes = rss_bytes()
            self.meter = RankMeter()
            if resumed_us is not None:
                self.clock.restart(resumed_us)
        return self.clock

    def start_measuring(self, channel: Channel, clock_us: int) -> None:
        """Start the measured phase on all ranks at once."""
        assert self.clock is not None
        channel.barrier()
        self.clock.restart(clock_us)
        channel.meter.take()
        self.meter.start()


def check_peers(channel: Channel) -> None:
    """Raise PeerFailedError when another rank has reported its failure."""
    if channel.probe(channel.any, FAILURE):
        failure = parse(channel.receive())
        raise PeerFailedError(failure["text"], failure["exit_code"])

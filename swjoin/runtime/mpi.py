"""The MPI runtime: rank 0 master, rank 1 collector, ranks 2.. slaves.

What: `run_rank(job, progress)`, called on every rank of an mpirun.
Why: a real cluster. The master serves the slaves in a fixed order, each after it has reported, so that both sides of every
large message are present when it is sent (paper section IV: no any-time, any-to-any messages). When a slave dies and the MPI
library can tell, the others go on from the newest checkpoint without it.
Stays out: what a rank does while the run goes on (`runtime.master_rank`, `collector_rank`, `slave_rank`).

A waiting rank sleeps between probes instead of spinning in MPI, so that more ranks than cores do not starve each other, and so
that a signal or another rank's failure is seen within milliseconds.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from typing import Any

import numpy as np

from swjoin.errors import RunFailed, SwjoinError, UserError
from swjoin.runtime.channel import Channel, PeerLostError
from swjoin.runtime.collector_rank import CollectorRank
from swjoin.runtime.job import Job
from swjoin.runtime.master_rank import MasterRank
from swjoin.runtime.memory import keep_freed_memory
from swjoin.runtime.rank import COLLECTOR, FAILURE, FIRST_SLAVE, MASTER, EndedEarlyError, PeerFailed
from swjoin.runtime.slave_rank import SlaveRank

_FLUSH_S = 3.0  # how long a failing rank leaves the collector to mark its results incomplete
_ROLES = ("master", "collector")


def run_rank(job: Job, progress: bool, debug: bool = False) -> dict[str, Any] | None:
    """Play this rank's role to the end. Rank 0 returns the content of run.json, the others None.

    Bad input found before the run starts raises UserError on rank 0 and ends the other ranks quietly with the same exit code.
    A failure during the run prints one line with rank, role, host and epoch, and ends the whole job.
    """
    import mpi4py

    keep_freed_memory()
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank = comm.rank
    if comm.size < 3:
        raise UserError(f"{comm.size} MPI ranks given; a cluster needs at least 3: master, collector and one slave (-n 3)")
    name = _ROLES[rank] if rank < FIRST_SLAVE else f"slave {rank - FIRST_SLAVE}"
    place = [f"rank {rank} ({name}) on {platform.node()}"]
    role: MasterRank | CollectorRank | SlaveRank
    role = (
        MasterRank(job, place, progress)
        if rank == MASTER
        else CollectorRank(job, place)
        if rank == COLLECTOR
        else SlaveRank(job, place)
    )
    channels = [Channel(comm)]
    error: BaseException | None = None
    try:
        role.set_up(channels[0])
        report = _play(role, job, channels, rank)
    except EndedEarlyError as early:
        error = early
        raise
    except BaseException as failure:
        error = failure
        if rank == COLLECTOR:
            role.close(failure)  # before the end of all: what was collected is kept, and marked
        _end_job(channels[-1], failure, ", ".join(place), debug)
        raise
    finally:
        role.close(error)
    if isinstance(role, MasterRank) and report is not None:
        role.finish(report)
    return report


def _play(role: MasterRank | CollectorRank | SlaveRank, job: Job, channels: list[Channel], rank: int) -> dict[str, Any] | None:
    """Play, and after a death once more, on a channel between those who are left."""
    while True:
        try:
            return role.play(channels[-1])
        except PeerLostError as lost:
            if job.checkpoints is None or not job.config.checkpoint.recover:
                raise
            role.lost(str(lost))
        channel, ranks = channels[-1].without_the_dead(min(rank, FIRST_SLAVE))
        channels.append(channel)
        gone = [name for number, name in enumerate(_ROLES) if number not in ranks]
        if FIRST_SLAVE not in ranks:
            gone.append("all slaves")
        if gone:
            raise RunFailed(
                f"{' and '.join(gone)} died; go on from the last checkpoint with: swjoin run --resume {job.run_dir}"
            )


def _end_job(channel: Channel, error: BaseException, place: str, debug: bool) -> None:
    """Say why, let the collector mark its results incomplete, and end every rank. Does not return."""
    code = error.exit_code if isinstance(error, SwjoinError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    if debug:
        traceback.print_exc()
    text = str(error) if isinstance(error, UserError | PeerFailed) else f"{place}: {str(error) or type(error).__name__}"
    if not isinstance(error, SwjoinError):
        text = f"{place}: {type(error).__name__}: {error}"
    if not isinstance(error, PeerFailed):
        print(f"swjoin: {' '.join(text.split())}", file=sys.stderr, flush=True)
    if channel.comm.rank != COLLECTOR and not isinstance(error, PeerLostError):
        data = np.frombuffer(json.dumps({"text": text, "exit_code": code}).encode(), np.uint8)
        try:
            channel.comm.Isend([data, channel.mpi.BYTE], dest=COLLECTOR, tag=FAILURE)
            deadline = time.monotonic() + _FLUSH_S
            while time.monotonic() < deadline:  # probing makes the message move; the collector's Abort ends this loop
                channel.comm.Iprobe(source=COLLECTOR, tag=FAILURE)
                time.sleep(0.01)
        except channel.mpi.Exception:
            pass  # the collector is gone
    channel.comm.Abort(code)

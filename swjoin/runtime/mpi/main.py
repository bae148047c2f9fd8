"""The MPI runtime: rank 0 master and gateway, rank 1 collector, ranks 2.. slaves and further sinks.

What: `run_rank(job, progress)`, called on every rank of an mpirun.
Why: a real cluster. The master serves the slaves in a fixed order, each after it has reported, so that both sides of every
large message are present when it is sent (paper section IV: no any-time, any-to-any messages). When a rank other than
the first dies and the MPI library reports it, the others continue from the newest checkpoint without it.
Stays out: the work of each rank (`runtime.mpi.master_rank`, `worker_rank`).

A waiting rank sleeps between probes instead of spinning in MPI, so that more ranks than cores do not starve each other, and so
that it detects a signal or the failure of another rank within milliseconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.gateway.intake import LateRowError
from swjoin.cluster.ranks import COLLECTOR_RANK, ROOT, RankMap
from swjoin.config.job import Job
from swjoin.core.errors import NotWritten, SwjoinError, UserError, spelled
from swjoin.core.stdio import wait_until_read
from swjoin.monitor.process_settings import keep_freed_memory
from swjoin.runtime.disorder import advised
from swjoin.runtime.flight_serving import Ports
from swjoin.runtime.mpi.channel import Channel, PeerFailedError, PeerLostError
from swjoin.runtime.mpi.master_rank import MasterRank
from swjoin.runtime.mpi.rank import FAILURE, EndedEarlyError, open_heartbeats
from swjoin.runtime.mpi.resilient_channel import ResilientChannel, library_survives
from swjoin.runtime.mpi.worker_rank import WorkerRank
from swjoin.runtime.new_folder import forget_worthless
from swjoin.runtime.open import sized
from swjoin.runtime.progress import Wanted
from swjoin.runtime.query_changes import QueryChanges
from swjoin.runtime.run_report import CompleteReport
from swjoin.runtime.signals import stop_signals

if TYPE_CHECKING:
    from mpi4py import MPI

_LOG = logging.getLogger(__name__)
_FLUSH_S = 10.0  # time for the collector to mark its results incomplete after the failure of a rank; it ends the job earlier
_LEAVING_S = 1.0  # for messages to leave a rank that ends


def run_rank(
    job: Job,
    progress: Wanted,
    debug: bool = False,
    on_report: Callable[[dict[str, Any]], None] | None = None,
    complete_report: CompleteReport | None = None,
    comm: MPI.Comm | None = None,
) -> None:
    """Run the role of this rank to its end. With fault tolerance it ends the process instead of returning.

    on_report: gets the content of run.json, on rank 0; complete_report adds to it. comm: one of its own for each further run.

    Bad input found before the run starts raises UserError on rank 0 and ends the other ranks quietly with the same exit code.
    A failure during the run logs one line with rank, role, host and epoch, and ends the whole job.
    """
    import mpi4py

    keep_freed_memory()
    if debug:
        faulthandler.register(signal.SIGUSR2)  # prints the stack of a rank that hangs
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    rank = (comm := MPI.COMM_WORLD if comm is None else comm).rank
    if comm.size < 3:
        raise UserError(f"{comm.size} MPI ranks given; a cluster needs at least 3: master, collector and one slave (-n 3)")
    job = sized(job, RankMap.of(job.config, comm.size).slave_ranks)
    label = [f"rank {rank} ({RankMap.of(job.config, comm.size).name_of(rank)}) on {platform.node()}"]
    _LOG.debug("%s of %d, process %d", label[0], comm.size, os.getpid())
    rounds = _Rounds(job, label, progress, complete_report, comm)
    survives = job.checkpoints is not None and job.config.checkpoint.recover and library_survives()
    mend = f"go on from the last checkpoint with: {job.resume_command} -n {comm.size}"
    channel = ResilientChannel(comm, mend) if survives else Channel(comm)
    error: BaseException | None = None
    try:
        with stop_signals(job) as wanted, spelled(job.spelling), rounds.changes or contextlib.nullcontext():
            open_heartbeats(channel, job, survives=survives)
            report = rounds.run(channel, wanted.is_set)
    except EndedEarlyError as early:
        error = early
        if isinstance(channel, ResilientChannel):
            if str(early):
                _LOG.error("%s", early)
            leave(channel, early.exit_code)
        raise
    except BaseException as failure:
        error = failure
        if isinstance(rounds.role, WorkerRank) and rounds.role.writes:
            rounds.role.close(failure)  # before all ranks end: the collected results are kept, and marked
        _end_job(channel, job, _with_remedy(failure, job, comm.size), ", ".join(label), debug)
        raise
    finally:
        rounds.role.close(error)
    try:
        if isinstance(rounds.role, MasterRank) and report is not None:
            rounds.role.finish(report)
            if on_report is not None:
                on_report(report)
    except BaseException as failure:
        if not isinstance(channel, ResilientChannel):
            raise
        _LOG.error("%s: %s", label[0], " ".join(str(failure).split()) or type(failure).__name__)
        leave(channel, 1)
    if isinstance(channel, ResilientChannel):
        leave(channel, 0)
    if channel.heartbeats is not None:
        channel.heartbeats.leave(0)


def leave(channel: Channel, code: int) -> None:
    """End this process at once, its output flushed: after deaths MPI_Finalize may wait for the dead."""
    if channel.heartbeats is not None:
        channel.heartbeats.leave(code)
    if code:
        forget_worthless()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Rounds:
    """A rank's part of a run, in as many rounds as the run's queries change, and one more. role: of the present one. changes:
    that the master takes."""

    def __init__(
        self, job: Job, label: list[str], progress: Wanted, complete_report: CompleteReport | None, comm: MPI.Comm
    ) -> None:
        self._job, self._label, self._takes = job, label, job.takes_changes
        self.changes: QueryChanges | None = None
        if self._takes and comm.rank == ROOT:
            self.changes = QueryChanges(job, RankMap.of(job.config, comm.size).slave_ranks)
        self._report = progress, complete_report, self.changes, time.monotonic()
        self._root = comm.rank == ROOT
        self.role = self._made()

    def _made(self) -> MasterRank | WorkerRank:
        """The role of the next round. Only the master's knows its job."""
        if self._root:
            return MasterRank(self._job, self._label, *self._report)
        return WorkerRank(self._job, self._label, takes_changes=self._takes)

    def run(self, channel: Channel, stop_wanted: Callable[[], bool]) -> dict[str, Any] | None:
        """All rounds; returns the content of run.json, on rank 0."""
        self.role.stop_wanted = stop_wanted
        self.role.set_up(channel)
        report = _run_role(self.role, channel)
        while self.role.changed:
            ports = self.role.ports if isinstance(self.role, MasterRank) else Ports()
            self.role.close(None)
            if self.changes is not None:
                self._job = self.changes.apply(ports)
            self._set_up_next(channel)
            report = _run_role(self.role, channel)
        return report

    def _set_up_next(self, channel: Channel) -> None:
        """Set up the next round; after a death once more, with the remaining ranks."""
        while True:
            before, self.role = self.role, self._made()
            self.role.stop_wanted = before.stop_wanted
            if isinstance(self.role, MasterRank) and isinstance(before, MasterRank):
                self.role.recoveries = before.recoveries
            try:
                self.role.set_up(channel)
                return
            except PeerLostError as lost:
                self.role.close(lost)
                assert isinstance(channel, ResilientChannel), "only a resilient channel raises PeerLostError"
                _start_next_attempt(channel)


def _run_role(role: MasterRank | WorkerRank, channel: Channel) -> dict[str, Any] | None:
    """Run the role; after a death again, with the remaining ranks."""
    while True:
        try:
            return role.run(channel)
        except PeerLostError as lost:
            assert isinstance(channel, ResilientChannel), "only a resilient channel raises PeerLostError"
            role.lost(str(lost))
            _start_next_attempt(channel)


def _start_next_attempt(channel: ResilientChannel) -> None:
    while True:
        try:
            channel.next_attempt()
            return
        except PeerLostError:
            continue  # another rank has died meanwhile


def _with_remedy(failure: BaseException, job: Job, ranks: int) -> BaseException:
    if isinstance(failure, LateRowError):
        return advised(failure, job.config)
    return failure.mended_by(job.next_step(ranks)) if isinstance(failure, NotWritten) else failure


def _end_other_sinks(channel: Channel, job: Job, text: str, code: int) -> None:
    """On the first sink's rank: give those of other sinks time to mark their results incomplete; each answers."""
    roles = RankMap.of(job.config, channel.size)
    left = {rank for rank in range(channel.size) if roles.sinks_of(rank)} - {COLLECTOR_RANK}
    data = np.frombuffer(json.dumps({"text": text, "exit_code": code}).encode(), np.uint8)
    sending = [channel.comm.Isend([data, channel.mpi.BYTE], dest=rank, tag=FAILURE) for rank in left]
    deadline = time.monotonic() + _FLUSH_S / 2
    while left and sending and time.monotonic() < deadline:
        if channel.probe(channel.any, FAILURE):
            left.discard(channel.source)
            channel.receive()
        else:
            time.sleep(0.01)


def _end_job(channel: Channel, job: Job, error: BaseException, place: str, debug: bool) -> None:
    """Log the reason, let the collector mark its results incomplete, and end every rank. Does not return."""
    code = error.exit_code if isinstance(error, SwjoinError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    text = str(error) if isinstance(error, UserError | PeerFailedError) else f"{place}: {str(error) or type(error).__name__}"
    if not isinstance(error, SwjoinError):
        text = f"{place}: {type(error).__name__}: {error}"
    if not isinstance(error, PeerFailedError):
        _LOG.error("%s", " ".join(text.split()), exc_info=error if debug else None)
        wait_until_read()  # of a rank that aborts mpirun drops what it has not read yet
    if isinstance(channel, ResilientChannel):
        if not isinstance(error, PeerFailedError):
            channel.end_all(text, code)
            deadline = time.monotonic() + _LEAVING_S
            while time.monotonic() < deadline:  # until the messages have left
                with contextlib.suppress(SwjoinError):
                    channel.probe(channel.any, FAILURE)
                time.sleep(0.01)
        leave(channel, code)
    if channel.comm.rank == COLLECTOR_RANK:
        _end_other_sinks(channel, job, text, code)
    else:
        data = np.frombuffer(json.dumps({"text": text, "exit_code": code}).encode(), np.uint8)
        try:
            channel.comm.Isend([data, channel.mpi.BYTE], dest=COLLECTOR_RANK, tag=FAILURE)
            deadline = time.monotonic() + _FLUSH_S
            while time.monotonic() < deadline:  # probing makes the message move; the collector's Abort ends this loop
                channel.comm.Iprobe(source=COLLECTOR_RANK, tag=FAILURE)
                time.sleep(0.01)
        except channel.mpi.Exception:
            pass  # the collector is gone
    channel.comm.Abort(code)

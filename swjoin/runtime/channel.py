"""One rank's messages: whole byte buffers to and from other ranks, and where the time for them went.

What: `Channel` sends, receives, probes and waits, and imitates slower links; `Meter` adds up communication, idle and work.
Why: a waiting rank sleeps between probes instead of spinning in MPI, so that more ranks than cores do not starve each other.
Stays out: what the bytes mean (`runtime.wire`), which rank plays which role (`runtime.mpi`).
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.errors import RunFailed
from swjoin.messages import TimesMeasured
from swjoin.runtime.report import cpu_us

if TYPE_CHECKING:
    from mpi4py import MPI

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 1e-3


@dataclass
class Meter:
    """Where a rank's time went since it was last asked, microseconds."""

    communication_us: int = 0
    idle_us: int = 0
    process_us: int = 0
    cpu_at_us: int = 0

    def take(self) -> TimesMeasured:
        cpu = cpu_us()
        out = TimesMeasured(cpu - self.cpu_at_us, self.communication_us, self.idle_us, self.process_us)
        self.communication_us = self.idle_us = self.process_us = 0
        self.cpu_at_us = cpu
        return out


class PeerLostError(RunFailed):
    """Another rank has died, or has found that one did. Without fault tolerance of the MPI library everything ends instead."""


class Channel:
    """Sends and receives whole byte messages, and waits without spinning. Any call may raise PeerLostError."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = comm
        self.status = MPI.Status()
        self.meter = Meter(cpu_at_us=cpu_us())
        self._sleep_s = _SHORTEST_SLEEP_S
        self._outgoing: list[tuple[Any, NDArray[np.uint8]]] = []

    def send(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        start = time.monotonic_ns()
        try:
            self.comm.Send([data, self.mpi.BYTE], dest=rank, tag=tag)
        except self.mpi.Exception as error:
            raise self._lost(error) from None
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def send_if_alive(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        """Send what only matters to a rank that is still there."""
        with contextlib.suppress(PeerLostError):
            self.send(data, rank, tag)

    def send_later(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        """Begin to send; whoever sends may itself be waited for by the receiver. `data` is kept until it has gone."""
        start = time.monotonic_ns()
        try:
            self._outgoing.append((self.comm.Isend([data, self.mpi.BYTE], dest=rank, tag=tag), data))
            self._outgoing = [(request, kept) for request, kept in self._outgoing if not request.Test()]
        except self.mpi.Exception as error:
            raise self._lost(error) from None
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def probe(self, rank: int, tag: int) -> bool:
        """Whether a message waits; `receive` then takes it."""
        try:
            found = bool(self.comm.Iprobe(source=rank, tag=tag, status=self.status))
        except self.mpi.Exception as error:
            raise self._lost(error) from None
        if found:
            self._sleep_s = _SHORTEST_SLEEP_S
        return found

    def receive(self) -> NDArray[np.uint8]:
        """The message found by the last successful probe."""
        start = time.monotonic_ns()
        data = np.empty(self.status.Get_count(self.mpi.BYTE), np.uint8)
        try:
            self.comm.Recv([data, self.mpi.BYTE], source=self.status.Get_source(), tag=self.status.Get_tag())
        except self.mpi.Exception as error:
            raise self._lost(error) from None
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000
        return data

    def imitate_transfer(self, nbytes: int, bytes_per_s: float) -> None:
        """Take as long as a slower link would have: both sides do, from the moment in which the message has passed."""
        if bytes_per_s <= 0:
            return
        start = time.monotonic_ns()
        time.sleep(nbytes / bytes_per_s)
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def sleep(self, at_most_us: int = 1_000_000) -> None:
        """Give the core away for a moment; longer each time until a probe succeeds."""
        start = time.monotonic_ns()
        time.sleep(max(0.0, min(self._sleep_s, at_most_us / 1e6)))
        self._sleep_s = min(self._sleep_s * 1.5, _LONGEST_SLEEP_S)
        self.meter.idle_us += (time.monotonic_ns() - start) // 1000

    def wait(self, rank: int, tag: int) -> NDArray[np.uint8]:
        while not self.probe(rank, tag):
            self.sleep()
        return self.receive()

    def broadcast(self, text: str | None, root: int) -> str:
        """JSON text from one rank to all."""
        size = np.zeros(1, np.int64)
        data = np.frombuffer((text or "").encode(), np.uint8).copy()
        size[0] = len(data)
        try:
            self.comm.Bcast([size, self.mpi.INT64_T], root=root)
            if self.comm.rank != root:
                data = np.empty(int(size[0]), np.uint8)
            self.comm.Bcast([data, self.mpi.BYTE], root=root)
        except self.mpi.Exception as error:
            raise self._lost(error) from None
        return bytes(data).decode()

    def barrier(self) -> None:
        try:
            self.comm.Barrier()
        except self.mpi.Exception as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> Exception:
        """What an error of the MPI library means: a death, or just that error."""
        kinds = (self.mpi.ERR_PROC_FAILED, self.mpi.ERR_PROC_FAILED_PENDING, self.mpi.ERR_REVOKED)
        died = isinstance(error, self.mpi.Exception) and error.Get_error_class() in kinds
        return PeerLostError("another rank has died") if died else error

    def without_the_dead(self, mine: int) -> tuple[Channel, list[int]]:
        """A channel between the ranks that are left, in their old order, and the number that each of them gives (`mine`).

        What was on its way is lost; nothing of it can be taken for a new message.
        """
        comm = self.comm
        while True:
            try:
                if not comm.Is_revoked():
                    comm.Revoke()
                comm = comm.Shrink()
                numbers = np.zeros(comm.size, np.int64)
                comm.Allgather([np.array([mine]), self.mpi.INT64_T], [numbers, self.mpi.INT64_T])
                return Channel(comm), numbers.tolist()
            except self.mpi.Exception as error:
                lost = self._lost(error)
                if not isinstance(lost, PeerLostError):
                    raise

    def send_json(self, value: dict[str, Any], rank: int, tag: int) -> None:
        self.send(np.frombuffer(json.dumps(value).encode(), np.uint8), rank, tag)

"""The channel of one rank: whole byte messages to and from other ranks, with metered times.

What: `Channel` sends, receives, probes and waits, meters communication and idle time, and emulates slower links.
Why: a waiting rank sleeps between probes instead of spinning in MPI, so that more ranks than cores do not starve each other.
Stays out: encoding (`cluster.wire`), the assignment of roles to ranks (`runtime.mpi.main`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.errors import RunFailed
from swjoin.monitor.process_memory import FreedMemory, cpu_us
from swjoin.runtime.host import WorkMeter

if TYPE_CHECKING:
    from mpi4py import MPI

    from swjoin.runtime.mpi.heartbeats import Heartbeats

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 1e-3
_LONGEST_TRANSFER_S = 0.2  # of one sleep for a slower link


class PeerLostError(RunFailed):
    """A rank has died; the others continue without it."""


class PeerFailedError(RunFailed):
    """Another rank has failed and sent its error."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Channel:
    """Sends and receives whole byte messages, and waits without spinning.

    rank, size: among the participating ranks. source: sender of the message found last. heartbeats: of this rank, once they
    have begun.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.any = int(MPI.ANY_SOURCE)
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.meter = WorkMeter(cpu_us, cpu_at_us=cpu_us())
        self._status = MPI.Status()
        self._sleep_s = _SHORTEST_SLEEP_S
        self._freed = FreedMemory()
        self._outgoing: list[tuple[Any, NDArray[np.uint8]]] = []
        self.heartbeats: Heartbeats | None = None

    @property
    def source(self) -> int:
        return int(self._status.Get_source())

    def send(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        start = time.monotonic_ns()
        self._send(data, rank, tag)
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def _send(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        self.comm.Send([data, self.mpi.BYTE], dest=rank, tag=tag)

    def send_later(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        """Start a send without waiting, as the receiver may be waiting for the sender. `data` is kept until it has left."""
        start = time.monotonic_ns()
        self._send_later(data, rank, tag)
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def _send_later(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        self._outgoing.append((self.comm.Isend([data, self.mpi.BYTE], dest=rank, tag=tag), data))
        self._outgoing = [(request, kept) for request, kept in self._outgoing if not request.Test()]

    def probe(self, rank: int, tag: int) -> bool:
        """Whether a message waits; `receive` then takes it."""
        found = self._probe(rank, tag)
        if found:
            self._sleep_s = _SHORTEST_SLEEP_S
        return found

    def _probe(self, rank: int, tag: int) -> bool:
        return bool(self.comm.Iprobe(source=rank, tag=tag, status=self._status))

    def receive(self) -> NDArray[np.uint8]:
        """The message found by the last successful probe."""
        start = time.monotonic_ns()
        data = np.empty(self._status.Get_count(self.mpi.BYTE), np.uint8)
        self._receive(data)
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000
        return data

    def _receive(self, data: NDArray[np.uint8]) -> None:
        self.comm.Recv([data, self.mpi.BYTE], source=self._status.Get_source(), tag=self._status.Get_tag())

    def imitate_transfer(self, nbytes: int, bytes_per_s: float) -> None:
        """Sleep for the transfer time of a slower link; both sides do so once the message has been transferred."""
        if bytes_per_s <= 0:
            return
        start = time.monotonic_ns()
        left_s = nbytes / bytes_per_s
        while left_s > 0:  # in pieces: who does nothing for long counts as dead
            time.sleep(min(left_s, _LONGEST_TRANSFER_S))
            left_s = nbytes / bytes_per_s - (time.monotonic_ns() - start) / 1e9
        self.meter.communication_us += (time.monotonic_ns() - start) // 1000

    def sleep(self, at_most_us: int = 1_000_000) -> None:
        """Yield the core for a moment; longer each time until a probe succeeds."""
        start = time.monotonic_ns()
        self._freed.trim_if_due()
        time.sleep(max(0.0, min(self._sleep_s, at_most_us / 1e6)))
        self._sleep_s = min(self._sleep_s * 1.5, _LONGEST_SLEEP_S)
        self.meter.idle_us += (time.monotonic_ns() - start) // 1000

    def wait(self, rank: int, tag: int) -> NDArray[np.uint8]:
        while not self.probe(rank, tag):
            self.check()
            self.sleep()
        return self.receive()

    def check(self) -> None:
        """Called in every round of a loop. PeerLostError: the run continues without a rank. PeerFailedError: the run ends."""
        failure = "" if self.heartbeats is None else self.heartbeats.check()
        if failure:
            raise PeerFailedError(failure, RunFailed.exit_code)

    def need_only(self, ranks: Collection[int]) -> None:
        """Rank 0 needs no further message but from these ranks: deaths of others are ignored from now on."""

    def farewell(self, tag: int) -> None:
        """End the run: the other ranks wait for rank 0's message before they leave."""
        nothing = np.empty(0, np.uint8)
        if self.rank != 0:
            self.wait(0, tag)
            self.release_heartbeats()
            return
        self.release_heartbeats()
        for rank in range(1, self.size):
            self.send(nothing, rank, tag)

    def release_heartbeats(self) -> None:
        """The run has ended for this rank: it declares nobody dead any more."""
        if self.heartbeats is not None:
            self.heartbeats.release()

    def broadcast(self, text: str | None, root: int) -> str:
        """JSON text from one rank to all."""
        size = np.zeros(1, np.int64)
        data = np.frombuffer((text or "").encode(), np.uint8).copy()
        size[0] = len(data)
        self.comm.Bcast([size, self.mpi.INT64_T], root=root)
        if self.rank != root:
            data = np.empty(int(size[0]), np.uint8)
        self.comm.Bcast([data, self.mpi.BYTE], root=root)
        return bytes(data).decode()

    def barrier(self) -> None:
        self.comm.Barrier()

    def send_json(self, value: dict[str, Any], rank: int, tag: int) -> None:
        self.send(np.frombuffer(json.dumps(value).encode(), np.uint8), rank, tag)

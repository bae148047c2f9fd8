"""A channel that survives the death of ranks.

What: `ResilientChannel`, whose calls raise `PeerLostError` after the death of any rank but the first; `next_attempt` starts a
new attempt with the surviving ranks; `library_survives`.
Why: with User Level Failure Mitigation, surviving ranks can still exchange messages, so no process has to restart. Rank 0
detects a death, informs the survivors, and continues when all have answered.
Stays out: the work of an attempt (`runtime.mpi.rank`), the library's own way of shrinking a communicator.

A message carries the number of its attempt in its tag, so stale messages are recognised; they are received and dropped.
`MPI_Comm_shrink` would make that unnecessary, but its agreement hangs in Open MPI 5.0 when two ranks die within a few hundred
milliseconds (2 of 12 trials); collective operations therefore consist of single messages here. No rank calls MPI_Finalize or
MPI_Abort, which may wait for dead ranks (observed for both).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.ranks import LEAST_RANKS, ROOT
from swjoin.core.errors import RunFailed
from swjoin.runtime.mpi.channel import Channel, PeerFailedError, PeerLostError

if TYPE_CHECKING:
    from mpi4py import MPI

_LOG = logging.getLogger(__name__)
_TAGS = 32  # tags of one attempt
_RECOVER, _END, _READY, _ARRIVED, _GO, _TEXT = 0, 1, 28, 29, 30, 31  # the first two are independent of attempts
_SPIN_NS = 50_000  # time for which an unfinished send is polled without a pause
_PAUSE_S = 50e-6
_FAREWELL_S = 5.0
_LOST = "a rank has died"
_NOTHING = np.empty(0, np.uint8)


def library_survives() -> bool:
    """Whether the ranks were started with fault tolerance (mpirun --with-ft ulfm)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - the library spells it so


class ResilientChannel(Channel):
    """A channel whose ranks are renumbered in every attempt: rank 0 stays, the others keep their order.

    Raises RunFailed when rank 0 has died, or too few ranks are left: then the run cannot continue.
    """

    def __init__(self, comm: MPI.Comm, mend: str) -> None:
        """mend: remedy for the error when the run cannot continue."""
        super().__init__(comm)
        self._mend = mend
        self.attempt = 0
        self._world = list(range(comm.size))  # MPI ranks of the participants
        self._me = comm.rank
        self._death_detected = False  # rank 0: a rank has died since this attempt started
        self._excluded: dict[int, str] = {}  # rank 0: MPI ranks that count as dead although they live, perhaps; and why
        self._needed: set[int] | None = None  # rank 0, at the end of a run: MPI ranks whose death matters still
        self._order = self.mpi.Status()
        self._stale: list[tuple[Any, NDArray[np.uint8]]] = []  # messages of earlier attempts; kept until complete

    # ------------------------------------------------------------ messages

    @property
    def source(self) -> int:
        return self._world.index(int(self._status.Get_source()))

    def _tag(self, tag: int) -> int:
        return tag + _TAGS * (1 + self.attempt)

    def _send(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        """Send, and wait until the message has left or a rank has died."""
        try:
            self._complete(self.comm.Isend([data, self.mpi.BYTE], dest=self._world[rank], tag=self._tag(tag)), data)
        except self.mpi.Exception as error:
            self._note_death(error)
            self._await_rescue()

    def _complete(self, request: Any, data: NDArray[np.uint8]) -> None:
        """Wait for a send or a receive, which the other rank may never complete."""
        start = time.monotonic_ns()
        while not request.Test():
            if time.monotonic_ns() - start > _SPIN_NS:
                try:
                    self.check()
                except BaseException:
                    self._stale.append((request, data))
                    raise
                time.sleep(_PAUSE_S)

    def _send_later(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        try:
            self._outgoing.append((self.comm.Isend([data, self.mpi.BYTE], dest=self._world[rank], tag=self._tag(tag)), data))
            self._outgoing = [(request, kept) for request, kept in self._outgoing if not request.Test()]
        except self.mpi.Exception as error:
            self._note_death(error)
            self._await_rescue()

    def _probe(self, rank: int, tag: int) -> bool:
        world = rank if rank == self.any else self._world[rank]
        try:
            return bool(self.comm.Iprobe(source=world, tag=self._tag(tag), status=self._status))
        except self.mpi.Exception as error:
            self._note_death(error)
            return False

    def _receive(self, data: NDArray[np.uint8]) -> None:
        source, tag = self._status.Get_source(), self._status.Get_tag()
        try:
            self._complete(self.comm.Irecv([data, self.mpi.BYTE], source=source, tag=tag), data)
        except self.mpi.Exception as error:  # its sender died while sending it
            self._note_death(error)
            self._await_rescue()

    def broadcast(self, text: str | None, root: int) -> str:
        if self.rank != root:
            return bytes(self.wait(root, _TEXT)).decode()
        data = np.frombuffer((text or "").encode(), np.uint8)
        for rank in range(self.size):
            if rank != root:
                self.send(data, rank, _TEXT)
        return text or ""

    def barrier(self) -> None:
        if self.rank != ROOT:
            self.send(_NOTHING, ROOT, _ARRIVED)
            self.wait(ROOT, _GO)
            return
        for rank in range(1, self.size):
            self.wait(rank, _ARRIVED)
        for rank in range(1, self.size):
            self.send(_NOTHING, rank, _GO)

    def need_only(self, ranks: Collection[int]) -> None:
        self._needed = {self._world[rank] for rank in ranks}

    def farewell(self, tag: int) -> None:
        """End the run: ranks that leave look dead, so deaths are ignored from now on; rank 0 leaves last."""
        if self._me != ROOT:
            while True:  # others may still be joining, and may die meanwhile
                super().check()
                try:
                    if self.comm.Iprobe(source=ROOT, tag=self._tag(tag)):
                        self.release_heartbeats()
                        return
                    if self.comm.Iprobe(source=ROOT, tag=_RECOVER):
                        raise PeerLostError(_LOST)
                except self.mpi.Exception:
                    return  # rank 0 has left
                self.sleep()
        self.release_heartbeats()
        deadline = time.monotonic() + _FAREWELL_S
        others = set(self._world) - {ROOT}
        for rank in others - self._failed():
            with contextlib.suppress(self.mpi.Exception):
                self._stale.append((self.comm.Isend([_NOTHING, self.mpi.BYTE], dest=rank, tag=self._tag(tag)), _NOTHING))
        while time.monotonic() < deadline and others - self._failed():
            try:
                self.comm.Iprobe(source=self.any, tag=self._tag(tag))
            except self.mpi.Exception:
                self.comm.Ack_failed(self.comm.size)
            time.sleep(_PAUSE_S)
        if self.heartbeats is not None:
            for rank in others - self._failed():
                self.heartbeats.kill(rank)  # stopped since nobody needed it any more; mpirun would wait for it

    # ------------------------------------------------------------ deaths

    def _note_death(self, error: BaseException) -> None:
        """Note a death; re-raise any other error of the library."""
        kinds = (self.mpi.ERR_PROC_FAILED, self.mpi.ERR_PROC_FAILED_PENDING)
        if not isinstance(error, self.mpi.Exception) or error.Get_error_class() not in kinds:
            raise error
        self.comm.Ack_failed(self.comm.size)  # otherwise no message from any rank could be received
        gone = self._failed()
        if ROOT in gone:
            raise RunFailed(f"the master died; {self._mend}")
        self._death_detected |= bool(gone & (set(self._world) if self._needed is None else self._needed))

    def _failed(self) -> set[int]:
        """MPI ranks that have died."""
        group, everyone = self.comm.Get_failed(), self.comm.Get_group()
        return {int(rank) for rank in group.Translate_ranks(None, everyone)}

    def check(self) -> None:
        """PeerLostError when rank 0 has detected a death: every rank then calls `next_attempt`."""
        super().check()
        if self._me == ROOT:
            self._exclude_suspects()
            if self._death_detected:
                raise PeerLostError("; ".join(self._newly_excluded()) or _LOST)
        try:
            if self._me != ROOT and self.comm.Iprobe(source=ROOT, tag=_RECOVER):
                raise PeerLostError(_LOST)
        except self.mpi.Exception as error:
            self._note_death(error)
        try:
            if self.comm.Iprobe(source=self.any, tag=_END, status=self._order):
                data = np.empty(self._order.Get_count(self.mpi.BYTE), np.uint8)
                self.comm.Recv([data, self.mpi.BYTE], source=self._order.Get_source(), tag=_END)
                plain = json.loads(bytes(data))
                if self._order.Get_source() not in self._world:  # it was excluded, and has woken up
                    return
                raise PeerFailedError(plain["text"], plain["exit_code"])
        except self.mpi.Exception as error:
            self._note_death(error)
        if self.attempt:
            self._drop_stale()

    def _exclude_suspects(self) -> None:
        """On rank 0: go on without ranks that count as dead. They are ended where that is possible; otherwise they end
        themselves once they learn that the others have begun an attempt without them."""
        if self.heartbeats is None:
            return
        for rank, reason in self.heartbeats.suspects.items():
            if rank in self._world and rank not in self._excluded:
                self._excluded[rank] = self.heartbeats.described(rank, reason)
                self.heartbeats.kill(rank)
                self._death_detected |= self._needed is None or rank in self._needed

    def _newly_excluded(self) -> list[str]:
        """Descriptions of excluded ranks that still take part in this attempt."""
        return [self._excluded[rank] for rank in self._world if rank in self._excluded]

    def end_all(self, text: str, exit_code: int) -> None:
        """Send every other surviving rank the order to end, and the reason; does not wait."""
        data = np.frombuffer(json.dumps({"text": text, "exit_code": exit_code}).encode(), np.uint8)
        gone = self._failed()
        for rank in self._world:
            if rank != self._me and rank not in gone:
                try:
                    self._stale.append((self.comm.Isend([data, self.mpi.BYTE], dest=rank, tag=_END), data))
                except self.mpi.Exception:
                    continue

    def _await_rescue(self) -> None:
        """After a failed send or receive: wait until `check` reports the death. RunFailed after 30 s."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.check()
            time.sleep(_PAUSE_S)
        raise RunFailed("a message failed, and no death was detected within 30 s")

    def _drop_stale(self) -> None:
        """Receive and drop messages of earlier attempts, so that their senders can release them. Senders that are stopped may
        never complete them."""
        status = self.mpi.Status()
        try:
            while self.comm.Iprobe(source=self.any, tag=self.mpi.ANY_TAG, status=status):
                if status.Get_tag() in (_RECOVER, _END) or status.Get_tag() >= self._tag(0):
                    return
                data = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
                request = self.comm.Irecv([data, self.mpi.BYTE], source=status.Get_source(), tag=status.Get_tag())
                self._stale.append((request, data))
        except self.mpi.Exception as error:
            self._note_death(error)

    def _completed(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self.mpi.Exception:  # its other end has died
            return True

    def next_attempt(self) -> None:
        """Start the next attempt, with new ranks for all survivors. RunFailed when the run cannot continue."""
        self._stale = [pending for pending in self._stale if not self._completed(pending[0])] + self._outgoing
        self._outgoing, self._needed = [], None
        if self._me == ROOT:
            self._lead()
        else:
            self._follow()
        self.rank, self.size = self._world.index(self._me), len(self._world)

    def _lead(self) -> None:
        while True:
            self._death_detected = False
            self._exclude_suspects()
            why = self._newly_excluded()
            gone = self._failed() | set(self._excluded)
            self._world = [rank for rank in range(self.comm.size) if rank not in gone]
            if len(self._world) < LEAST_RANKS:
                few = f"too few ranks are left ({len(self._world)} of at least {LEAST_RANKS})"
                raise RunFailed("; ".join([*why, few, self._mend]))
            for text in why:
                _LOG.warning("%s; the others go on without it", text)
            self.attempt += 1
            if self.heartbeats is not None:
                self.heartbeats.follow(self.attempt, self._world)
            message = np.frombuffer(json.dumps({"attempt": self.attempt, "ranks": self._world}).encode(), np.uint8)
            for rank in self._world[1:]:
                try:
                    self._stale.append((self.comm.Isend([message, self.mpi.BYTE], dest=rank, tag=_RECOVER), message))
                except self.mpi.Exception as error:
                    self._note_death(error)
            waiting = set(self._world[1:])
            while waiting and not self._death_detected:
                for rank in list(waiting):
                    if self._probe(self._world.index(rank), _READY):
                        self.receive()
                        waiting.remove(rank)
                self._drop_stale()
                self._exclude_suspects()
                super().check()
                time.sleep(_PAUSE_S)
            if not waiting:
                return

    def _follow(self) -> None:
        while True:
            self._take_orders()
            if self.heartbeats is not None:
                self.heartbeats.follow(self.attempt, self._world)
            self._drop_stale()
            try:
                self._send(_NOTHING, ROOT, _READY)
                return
            except PeerLostError:
                continue  # another rank has died meanwhile

    def _take_orders(self) -> None:
        """Wait for rank 0's list of survivors; the newest message counts."""
        status = self.mpi.Status()
        received = False
        while True:
            super().check()
            try:
                if self.comm.Iprobe(source=ROOT, tag=_RECOVER, status=status):
                    data = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
                    self.comm.Recv([data, self.mpi.BYTE], source=ROOT, tag=_RECOVER)
                    plain = json.loads(bytes(data))
                    self.attempt, self._world, received = plain["attempt"], plain["ranks"], True
                elif received:
                    return
                else:
                    time.sleep(_PAUSE_S)
            except self.mpi.Exception as error:
                self._note_death(error)

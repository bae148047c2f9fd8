"""A channel that outlives the death of ranks.

What: `ResilientChannel`, whose calls raise `PeerLostError` when a slave has died, and `next_attempt`, which leads all that are
left to a new attempt; `library_survives`.
Why: with User Level Failure Mitigation messages between living ranks keep passing when another one dies, so nobody has to start
anew. Rank 0 notices, tells everybody who is left, and goes on when all have answered.
Stays out: what is done anew (`runtime.mpi.rank`), the library's own way of shrinking a communicator.

Messages carry the number of their attempt in their tags, so nothing that was on its way can be taken for something new; it is
received and dropped. `MPI_Comm_shrink` would do without that, but its agreement hangs in Open MPI 5.0 when two ranks die within
a few hundred milliseconds (2 of 12 trials); collective operations are therefore sums of single messages here. Nobody calls
MPI_Finalize or MPI_Abort, which may wait for the dead (both were seen to).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.errors import RunFailed
from swjoin.runtime.mpi.channel import Channel, PeerFailedError, PeerLostError

if TYPE_CHECKING:
    from mpi4py import MPI

ROOT = 0
_COLLECTOR = 1
_TAGS = 32  # tags of one attempt
_RECOVER, _END, _READY, _ARRIVED, _GO, _TEXT = 0, 1, 28, 29, 30, 31  # the first two belong to no attempt
_SPIN_NS = 50_000  # how long an unfinished send is polled without a pause
_PAUSE_S = 50e-6
_FAREWELL_S = 5.0
_NOTHING = np.empty(0, np.uint8)


def library_survives() -> bool:
    """Whether the ranks were started with fault tolerance (mpirun --with-ft ulfm)."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - the library spells it so


class ResilientChannel(Channel):
    """Ranks are renumbered in every attempt: 0 and 1 stay, slaves keep their order.

    RunFailed, when rank 0 or rank 1 or the last slave has died: nobody can go on then.
    """

    def __init__(self, comm: MPI.Comm, mend: str) -> None:
        """mend: how to go on when nobody can."""
        super().__init__(comm)
        self._mend = mend
        self.attempt = 0
        self._world = list(range(comm.size))  # MPI ranks of those who take part
        self._me = comm.rank
        self._noticed = False  # rank 0: somebody has died since this attempt began
        self._closing = False
        self._order = self.mpi.Status()
        self._stale: list[tuple[Any, NDArray[np.uint8]]] = []  # begun in earlier attempts; kept until they have gone

    # ------------------------------------------------------------ messages

    @property
    def source(self) -> int:
        return self._world.index(int(self._status.Get_source()))

    def _tag(self, tag: int) -> int:
        return tag + _TAGS * (1 + self.attempt)

    def _send(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        """Waits until it has gone, or somebody has died."""
        try:
            request = self.comm.Isend([data, self.mpi.BYTE], dest=self._world[rank], tag=self._tag(tag))
            start = time.monotonic_ns()
            while not request.Test():
                if time.monotonic_ns() - start > _SPIN_NS:
                    self._stale.append((request, data))  # in case that we leave it
                    self.check()
                    self._stale.pop()
                    time.sleep(_PAUSE_S)
        except self.mpi.Exception as error:
            self._mind(error)
            self._await_rescue()

    def _send_later(self, data: NDArray[np.uint8], rank: int, tag: int) -> None:
        try:
            self._outgoing.append((self.comm.Isend([data, self.mpi.BYTE], dest=self._world[rank], tag=self._tag(tag)), data))
            self._outgoing = [(request, kept) for request, kept in self._outgoing if not request.Test()]
        except self.mpi.Exception as error:
            self._mind(error)
            self._await_rescue()

    def _probe(self, rank: int, tag: int) -> bool:
        world = rank if rank == self.any else self._world[rank]
        try:
            return bool(self.comm.Iprobe(source=world, tag=self._tag(tag), status=self._status))
        except self.mpi.Exception as error:
            self._mind(error)
            return False

    def _receive(self, data: NDArray[np.uint8]) -> None:
        try:
            super()._receive(data)
        except self.mpi.Exception as error:  # its sender died while sending it
            self._mind(error)
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

    def slaves_are_done(self) -> None:
        self._closing = True

    def farewell(self, tag: int) -> None:
        """Whoever leaves looks like one that has died, so nobody minds that any more; rank 0 leaves last."""
        if self._me != ROOT:
            while True:  # others may be joining for long yet, and may die meanwhile
                try:
                    if self.comm.Iprobe(source=ROOT, tag=self._tag(tag)):
                        return
                    if self.comm.Iprobe(source=ROOT, tag=_RECOVER):
                        raise PeerLostError("a slave has died")
                except self.mpi.Exception:
                    return  # rank 0 has left
                self.sleep()
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

    # ------------------------------------------------------------ deaths

    def _mind(self, error: BaseException) -> None:
        """Take note of a death; any other error of the library is raised as it is."""
        kinds = (self.mpi.ERR_PROC_FAILED, self.mpi.ERR_PROC_FAILED_PENDING)
        if not isinstance(error, self.mpi.Exception) or error.Get_error_class() not in kinds:
            raise error
        self.comm.Ack_failed(self.comm.size)  # or no message from anybody could be received any more
        gone = self._failed()
        if ROOT in gone or _COLLECTOR in gone:
            names = [name for rank, name in ((ROOT, "master"), (_COLLECTOR, "collector")) if rank in gone]
            raise RunFailed(f"the {' and the '.join(names)} died; {self._mend}")
        self._noticed |= bool(gone & set(self._world))

    def _failed(self) -> set[int]:
        """MPI ranks that have died."""
        group, everyone = self.comm.Get_failed(), self.comm.Get_group()
        return {int(rank) for rank in group.Translate_ranks(None, everyone)}

    def check(self) -> None:
        """PeerLostError: rank 0 has noticed a death, and everybody has to go to `next_attempt`."""
        if self._me == ROOT and self._noticed and not self._closing:
            raise PeerLostError("a slave has died")
        try:
            if self._me != ROOT and self.comm.Iprobe(source=ROOT, tag=_RECOVER):
                raise PeerLostError("a slave has died")
        except self.mpi.Exception as error:
            self._mind(error)
        try:
            if self.comm.Iprobe(source=self.any, tag=_END, status=self._order):
                data = np.empty(self._order.Get_count(self.mpi.BYTE), np.uint8)
                self.comm.Recv([data, self.mpi.BYTE], source=self._order.Get_source(), tag=_END)
                plain = json.loads(bytes(data))
                raise PeerFailedError(plain["text"], plain["exit_code"])
        except self.mpi.Exception as error:
            self._mind(error)
        if self.attempt:
            self._drop_stale()

    def end_all(self, text: str, exit_code: int) -> None:
        """Tell every rank that is left to end, and why; does not wait for any."""
        data = np.frombuffer(json.dumps({"text": text, "exit_code": exit_code}).encode(), np.uint8)
        gone = self._failed()
        for rank in self._world:
            if rank != self._me and rank not in gone:
                try:
                    self._stale.append((self.comm.Isend([data, self.mpi.BYTE], dest=rank, tag=_END), data))
                except self.mpi.Exception:
                    continue

    def _await_rescue(self) -> None:
        """What was being sent or received is lost; the next attempt is about to come, or it was nobody of this one."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.check()
            time.sleep(_PAUSE_S)
        raise RunFailed("a message failed, and no death was noticed within 30 s")

    def _drop_stale(self) -> None:
        """Receive what was sent in earlier attempts: its sender may still keep it."""
        status = self.mpi.Status()
        try:
            while self.comm.Iprobe(source=self.any, tag=self.mpi.ANY_TAG, status=status):
                if status.Get_tag() in (_RECOVER, _END) or status.Get_tag() >= self._tag(0):
                    return
                data = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
                self.comm.Recv([data, self.mpi.BYTE], source=status.Get_source(), tag=status.Get_tag())
        except self.mpi.Exception as error:
            self._mind(error)

    def next_attempt(self) -> None:
        """Everybody that is left has left the attempt before, and has a new rank. RunFailed when nobody can go on."""
        self._stale += self._outgoing
        self._outgoing = []
        if self._me == ROOT:
            self._lead()
        else:
            self._follow()
        self.rank, self.size = self._world.index(self._me), len(self._world)

    def _lead(self) -> None:
        while True:
            self._noticed = False
            gone = self._failed()
            self._world = [rank for rank in range(self.comm.size) if rank not in gone]
            if len(self._world) < 3:
                raise RunFailed(f"all slaves died; {self._mend}")
            self.attempt += 1
            message = np.frombuffer(json.dumps({"attempt": self.attempt, "ranks": self._world}).encode(), np.uint8)
            for rank in self._world[1:]:
                try:
                    self._stale.append((self.comm.Isend([message, self.mpi.BYTE], dest=rank, tag=_RECOVER), message))
                except self.mpi.Exception as error:
                    self._mind(error)
            waiting = set(self._world[1:])
            while waiting and not self._noticed:
                for rank in list(waiting):
                    if self._probe(self._world.index(rank), _READY):
                        self.receive()
                        waiting.remove(rank)
                self._drop_stale()
                time.sleep(_PAUSE_S)
            if not waiting:
                return

    def _follow(self) -> None:
        while True:
            self._take_orders()
            self._drop_stale()
            try:
                self._send(_NOTHING, ROOT, _READY)
                return
            except PeerLostError:
                continue  # somebody else has died meanwhile

    def _take_orders(self) -> None:
        """Wait for rank 0 to tell who is left; the newest message counts."""
        status = self.mpi.Status()
        told = False
        while True:
            try:
                if self.comm.Iprobe(source=ROOT, tag=_RECOVER, status=status):
                    data = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
                    self.comm.Recv([data, self.mpi.BYTE], source=ROOT, tag=_RECOVER)
                    plain = json.loads(bytes(data))
                    self.attempt, self._world, told = plain["attempt"], plain["ranks"], True
                elif told:
                    return
                else:
                    time.sleep(_PAUSE_S)
            except self.mpi.Exception as error:
                self._mind(error)

"""The channel that survives deaths, between real ranks: ranks that live and are excluded all the same; background threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from swjoin.cluster.messages import PartSaved
from swjoin.cluster.role import gateway_role
from swjoin.core.storage import Background
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.mpi.channel import PeerLostError
from swjoin.runtime.mpi.heartbeats import Heartbeats
from swjoin.runtime.mpi.rank import Rank
from swjoin.runtime.mpi.resilient_channel import ResilientChannel
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.ranks import run_mpirun

_RANKS, _STALE, _FRESH, _BIG = 5, 3, 4, 1 << 20
_EXCLUDED = 4
_WITHOUT_IT, _ALL_DONE = 30_999, 31_000  # tags of words to the excluded rank


class _Suspecting(Heartbeats):
    """Of a rank that hears everybody, and on rank 0 suspects the last one nevertheless."""

    def __init__(self, rank: int) -> None:
        self.suspects = {_EXCLUDED: "suspected"} if rank == 0 else {}
        self.ended: list[int] = []

    def check(self) -> str:
        return ""

    def described(self, rank: int, reason: str) -> str:
        return f"rank {rank}: {reason}"

    def kill(self, rank: int) -> None:
        self.ended.append(rank)

    def follow(self, attempt: int, world: object) -> None:
        self.suspects = {}

    def release(self) -> None:
        """Nothing to release."""


def _wait_for_attempt(channel: ResilientChannel) -> None:
    deadline = time.monotonic() + PROCESS_S
    try:
        while time.monotonic() < deadline:
            channel.check()
            time.sleep(0.001)
    except PeerLostError:
        channel.next_attempt()


def _wait_for_word(channel: ResilientChannel, tag: int) -> None:
    deadline = time.monotonic() + PROCESS_S
    while not channel.comm.Iprobe(source=0, tag=tag) and time.monotonic() < deadline:
        time.sleep(0.001)


def _tell_excluded(channel: ResilientChannel, tag: int) -> None:
    channel.comm.Isend([np.empty(0, np.uint8), channel.mpi.BYTE], dest=_EXCLUDED, tag=tag)


def _be_excluded(channel: ResilientChannel) -> None:
    """It does not take part any more, and behaves as if it did: it sends results, and once the others have begun without it
    (before that, it may order) an order to end."""
    for rank in range(4):
        channel.send_later(np.full(_BIG, 7, np.uint8), rank, _STALE)
    _wait_for_word(channel, _WITHOUT_IT)
    channel.end_all("stale", 1)
    _wait_for_word(channel, _ALL_DONE)
    os._exit(0)


def main() -> None:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    channel = ResilientChannel(MPI.COMM_WORLD, "mend")
    me = channel.rank
    if me == _EXCLUDED:
        _be_excluded(channel)
    heartbeats = channel.heartbeats = _Suspecting(me)
    _wait_for_attempt(channel)
    assert (channel.attempt, channel.rank, channel.size) == (1, me, 4)
    assert heartbeats.ended == ([_EXCLUDED] if me == 0 else [])
    channel.barrier()
    if me == 0:
        _tell_excluded(channel, _WITHOUT_IT)
    for _ in range(500):  # what the excluded rank has sent comes meanwhile
        channel.check()
        assert not channel.probe(channel.any, _STALE)
        time.sleep(0.002)
    for rank in range(4):
        channel.send_later(np.full(_BIG, me, np.uint8), rank, _FRESH)
    for rank in range(4):
        assert set(channel.wait(rank, _FRESH)) == {rank}
    channel.barrier()
    if me == 0:
        print("all went on", flush=True)
        _tell_excluded(channel, _ALL_DONE)
    time.sleep(0.5)
    os._exit(0)


@pytest.mark.mpi
def test_others_go_on_without_a_rank_that_lives() -> None:
    """Its messages, some of which are large, are dropped, and its order to end the run is ignored."""
    line = [*mpirun_options(find_mpirun(), _RANKS), "--with-ft", "ulfm", sys.executable, "-m", __name__]
    done: subprocess.CompletedProcess[str] = run_mpirun(line, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all went on"


if __name__ == "__main__":
    main()


def test_writers_of_before_a_death_are_heard_no_more() -> None:
    """A gateway's part of a checkpoint becomes durable while its rank begins anew: the master expects nothing of it."""
    rank, written = Rank(cast(Any, None), ["rank 0"]), threading.Event()
    part = PartSaved(5, "gateway 0", {})
    writer = Background("gateway 0", partial(rank.save, gateway_role(0)))
    writer.submit(lambda: part if written.wait(PROCESS_S) else None)
    rank.begin_attempt()
    written.set()
    writer.end()
    assert not rank.saved
    writer = Background("gateway 0", partial(rank.save, gateway_role(0)))
    writer.submit(lambda: part)
    writer.end()
    assert list(rank.saved) == [(gateway_role(0), part)]

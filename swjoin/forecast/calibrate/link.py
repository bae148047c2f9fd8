"""What two MPI ranks of this machine reach together: latency, bandwidth, what a look for messages costs, and how two busy ranks
share the machine.

What: the program of two ranks, `python -m swjoin.forecast.calibrate.link OUT.json [quick]`; figures in seconds and bytes/s.
Why: links and cores can only be measured between real processes.
Stays out: starting the ranks, and what one process can measure (`forecast.calibrate.roles`).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.monitor.process_memory import cpu_us

_SMALL_BYTES, _LARGE_BYTES = 1024, 4 << 20
_ROUNDS, _LARGE_ROUNDS = 2000, 60
_COLD_BYTES = 128 << 20  # messages come from and go to memory, not the cache
_FIRST_LOOKS = 15
_TURNS, _BESIDE_S = 11, 2.5
_QUICK_TURNS, _QUICK_BESIDE_S = 3, 0.6


def _ping_pong(comm: Any, byte: Any, nbytes: int, rounds: int) -> float:
    """Seconds of one way."""
    count = max(1, min(rounds, _COLD_BYTES // nbytes)) if nbytes >= _LARGE_BYTES else 1
    sent, got = ([np.ones(nbytes, np.uint8) for _ in range(count)] for _ in range(2))
    comm.Barrier()
    start = time.perf_counter()
    for i in range(rounds):
        out, into = [sent[i % count], byte], [got[i % count], byte]
        if comm.rank == 0:
            comm.Send(out, dest=1)
            comm.Recv(into, source=1)
        else:
            comm.Recv(into, source=0)
            comm.Send(out, dest=0)
    return (time.perf_counter() - start) / rounds / 2


def _wait(channel: Any, rank: int) -> None:
    """Wait without spinning."""
    while not channel.probe(rank, 77):
        channel.sleep()
    channel.receive()


def play(out: Path, quick: bool) -> None:
    """One of the two ranks."""
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    from swjoin.forecast.calibrate.roles import join_work, master_work
    from swjoin.runtime.mpi.channel import Channel

    comm = MPI.COMM_WORLD
    channel, note = Channel(comm), np.zeros(8, np.uint8)
    join, serve = join_work(), master_work()
    turns, beside_s = (_QUICK_TURNS, _QUICK_BESIDE_S) if quick else (_TURNS, _BESIDE_S)
    figures = {}
    for name, nbytes, rounds in (("small", _SMALL_BYTES, _ROUNDS), ("large", _LARGE_BYTES, _LARGE_ROUNDS)):
        _ping_pong(comm, MPI.BYTE, nbytes, 20)
        figures[f"{name}_s"] = min(_ping_pong(comm, MPI.BYTE, nbytes, rounds) for _ in range(3))
    if comm.rank == 0:
        figures["look_s"], figures["sleep_extra_s"] = _look(channel)
        join()
        alone = _quartile(join, turns)
        channel.send(note, 1, 77)
        beside_join = _quartile(join, turns)
        _wait(channel, 1)
        channel.send(note, 1, 77)
        beside_master = _quartile(join, turns)
        _wait(channel, 1)
        figures["shared"] = (alone / beside_join + alone / beside_master) / 2
        figures["bytes_per_s"] = _LARGE_BYTES / max(1e-9, figures["large_s"] - figures["small_s"])
        out.write_text(json.dumps(figures))
    else:
        for work in (join, serve):
            _wait(channel, 0)
            begun = time.perf_counter()
            while time.perf_counter() - begun < beside_s:
                work()
            channel.send(note, 0, 77)


def _look(channel: Any) -> tuple[float, float]:
    """CPU seconds of a look for messages, and what a sleep takes longer than asked for, once the intervals are the longest."""
    before, begun, looks = 0, time.perf_counter(), -_FIRST_LOOKS
    while time.perf_counter() - begun < 0.5:
        for tag in (78, 79, 80):
            channel.probe(1, tag)
        channel.sleep()
        looks += 1
        if looks == 0:
            before, begun = cpu_us(), time.perf_counter()
    look_s = (cpu_us() - before) / 1e6 / looks
    return look_s, max(0.0, (time.perf_counter() - begun) / looks - 1e-3 - look_s)


def _quartile(work: Any, turns: int) -> float:
    """Lower quartile of some turns: others may be using the machine."""
    return float(statistics.quantiles([work() for _ in range(turns)])[0])


if __name__ == "__main__":
    play(Path(sys.argv[1]), len(sys.argv) > 2)

"""Link calibration with two MPI ranks of this machine: latency, bandwidth, the cost of a poll, and the slowdown of two busy
ranks.

What: the program of two ranks, `python -m swjoin.forecast.calibrate.link OUT.json [quick]`; figures in seconds and bytes/s.
Why: links and cores can only be measured between real processes.
Stays out: starting the ranks, and costs that one process can measure (`forecast.calibrate.roles`).
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
_COLD_BYTES = 128 << 20  # buffers larger than the caches
_FIRST_POLLS = 15
_TURNS, _BESIDE_S = 11, 2.5
_QUICK_TURNS, _QUICK_BESIDE_S = 3, 0.6


def _ping_pong(comm: Any, byte: Any, nbytes: int, rounds: int) -> float:
    """One-way seconds of a message."""
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


def run(out: Path, quick: bool) -> None:
    """The program of one of the two ranks."""
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
        figures["look_s"], figures["sleep_extra_s"] = _poll_costs(channel)
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
            start = time.perf_counter()
            while time.perf_counter() - start < beside_s:
                work()
            channel.send(note, 0, 77)


def _poll_costs(channel: Any) -> tuple[float, float]:
    """CPU seconds of a poll, and the excess of a sleep over its length, at the longest poll interval."""
    before, start, polls = 0, time.perf_counter(), -_FIRST_POLLS
    while time.perf_counter() - start < 0.5:
        for tag in (78, 79, 80):
            channel.probe(1, tag)
        channel.sleep()
        polls += 1
        if polls == 0:
            before, start = cpu_us(), time.perf_counter()
    poll_s = (cpu_us() - before) / 1e6 / polls
    return poll_s, max(0.0, (time.perf_counter() - start) / polls - 1e-3 - poll_s)


def _quartile(work: Any, turns: int) -> float:
    """Lower quartile over some turns, as other processes may use the machine."""
    return float(statistics.quantiles([work() for _ in range(turns)])[0])


if __name__ == "__main__":
    run(Path(sys.argv[1]), len(sys.argv) > 2)

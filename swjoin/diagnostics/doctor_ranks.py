"""Measurements between ranks: hosts, clocks, links, a ring, a shared directory, a death.

What: the program of all ranks of `swjoin doctor`, `python -m swjoin.diagnostics.doctor_ranks [--dir D] [--die] [--limit S]`;
rank 0 prints the figures as one line of JSON. `examine` is the measurement within a rank that is already running.
Why: whether ranks reach each other, and how fast, shows only between real ranks on their real hosts.
Stays out: starting the ranks, and the checks of the figures (`diagnostics.doctor`).

Every rank has a time limit, at which it prints the step that it hangs in, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.platforms import core_count
from swjoin.runtime.preflight import launcher_index

if TYPE_CHECKING:
    from swjoin.runtime.mpi.channel import Channel

MARK = "swjoin-doctor: "  # before the line of JSON, and before the message of a hanging rank
STUCK = "stuck: "
_REPORT, _CLOCK, _PING, _TOKEN, _TURN = 1, 2, 3, 4, 5  # MPI tags
_CLOCK_ROUNDS, _PING_ROUNDS, _STREAM_ROUNDS = 100, 200, 8
_STREAM_BYTES = 4 << 20
_RING_BYTES = 1 << 20
_LINK_S = 1.0  # limit of each measurement of a slow link
_FILES_S = 10.0  # time for a file to appear on other hosts
_DEATH_S = 15.0


def clock_offset(samples: NDArray[np.int64]) -> tuple[float, float]:
    """Offset of another clock and its uncertainty, seconds, from the exchange with the shortest round trip (as NTP does).

    samples: (n, 3) int64, nanoseconds: our clock when asked, the other clock when answering, our clock when answered.
    """
    round_trips = samples[:, 2] - samples[:, 0]
    best = samples[int(np.argmin(round_trips))]
    return float(best[1] - (best[0] + best[2]) / 2) / 1e9, float(best[2] - best[0]) / 2e9


class _Watch:
    """Ends this process at the time limit, and prints its step."""

    def __init__(self, limit_s: float, rank: int) -> None:
        self.step = "start"
        self._rank = rank
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        where = f"rank {self._rank} on {platform.node()}"
        print(f"{MARK}{STUCK}{where} waited too long in the step: {self.step}", flush=True)
        os._exit(3)

    def done(self) -> None:
        self._timer.cancel()


def _gather(channel: Channel, value: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's value, on rank 0; an empty list on other ranks."""
    if channel.rank != 0:
        channel.send_json(value, 0, _REPORT)
        return []
    return [value, *(json.loads(bytes(channel.wait(rank, _REPORT))) for rank in range(1, channel.size))]


def _describe() -> dict[str, Any]:
    from swjoin.core.version import __version__
    from swjoin.runtime.launch import several_hosts

    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "host": platform.node(),
        "cores": core_count(),
        "python": platform.python_version(),
        "swjoin": __version__,
        "numpy": np.__version__,
        "shm_free_bytes": 0 if shm is None else shm.f_bavail * shm.f_frsize,
        "allocation": several_hosts(),
    }


@contextlib.contextmanager
def _in_turn(channel: Channel, rank: int) -> Iterator[None]:
    """Inside, only rank 0 and `rank` are busy; other ranks wait without spinning."""
    nothing = np.empty(0, np.uint8)
    if channel.rank == 0:
        channel.send(nothing, rank, _TURN)
    else:
        channel.wait(0, _TURN)
    yield


def _clock(channel: Channel, rank: int) -> tuple[float, float]:
    comm, byte = channel.comm, channel.mpi.BYTE
    note = np.zeros(1, np.int64)
    samples = np.zeros((_CLOCK_ROUNDS, 3), np.int64)
    for i in range(_CLOCK_ROUNDS):
        if channel.rank == 0:
            samples[i, 0] = time.time_ns()
            comm.Send([note, byte], dest=rank, tag=_CLOCK)
            comm.Recv([note, byte], source=rank, tag=_CLOCK)
            samples[i, 2], samples[i, 1] = time.time_ns(), note[0]
        else:
            comm.Recv([note, byte], source=0, tag=_CLOCK)
            note[0] = time.time_ns()
            comm.Send([note, byte], dest=0, tag=_CLOCK)
    return clock_offset(samples) if channel.rank == 0 else (0.0, 0.0)


def _ping_pong(channel: Channel, rank: int, nbytes: int, rounds: int) -> list[float]:
    """Seconds of one way, per round; rank 0 marks the last round."""
    comm, byte = channel.comm, channel.mpi.BYTE
    data = np.zeros(nbytes, np.uint8)
    one_way_s: list[float] = []
    start_s = time.perf_counter()
    while True:
        if channel.rank == 0:
            now = time.perf_counter()
            data[0] = len(one_way_s) + 1 >= rounds or now - start_s > _LINK_S  # the last round
            comm.Send([data, byte], dest=rank, tag=_PING)
            comm.Recv([data, byte], source=rank, tag=_PING)
            one_way_s.append((time.perf_counter() - now) / 2)
        else:
            comm.Recv([data, byte], source=0, tag=_PING)
            comm.Send([data, byte], dest=0, tag=_PING)
        if data[0]:
            return one_way_s


def _links(channel: Channel) -> list[dict[str, float]]:
    """Clock, latency and bandwidth between rank 0 and every other rank."""
    found = []
    others = range(1, channel.size) if channel.rank == 0 else [channel.rank]
    for rank in others:
        with _in_turn(channel, rank):
            offset, uncertainty = _clock(channel, rank)
            small = _ping_pong(channel, rank, 8, _PING_ROUNDS)
            large = _ping_pong(channel, rank, _STREAM_BYTES, _STREAM_ROUNDS)
            if channel.rank != 0:
                continue
            found.append(
                {
                    "rank": rank,
                    "offset_s": offset,
                    "uncertainty_s": uncertainty,
                    "latency_s": float(np.median(small)),
                    "bytes_per_s": _STREAM_BYTES / max(1e-9, float(np.median(large))),
                }
            )
    return found


def _payload(rank: int) -> NDArray[np.uint8]:
    return np.random.default_rng(rank).integers(0, 256, _RING_BYTES, np.uint8)


def _ring(channel: Channel) -> dict[str, Any]:
    """A token goes round, signed by every rank; then all ranks relay payloads at once until each has received all."""
    rank, size = channel.rank, channel.size
    left, right = (rank - 1) % size, (rank + 1) % size
    start_s = time.perf_counter()
    token: dict[str, Any] = {"signed": []}
    if rank == 0:
        channel.send_json({"signed": [0]}, right, _TOKEN)
    token = json.loads(bytes(channel.wait(left, _TOKEN)))
    if rank != 0:
        channel.send_json({"signed": [*token["signed"], rank]}, right, _TOKEN)
    token_s = time.perf_counter() - start_s
    wrong = []
    start_s = time.perf_counter()
    payload = _payload(rank)
    for step in range(1, size):
        request = channel.comm.Isend([payload, channel.mpi.BYTE], dest=right, tag=_TOKEN + step)
        got = channel.wait(left, _TOKEN + step)
        while not request.Test():
            channel.sleep()
        author = (rank - step) % size
        if len(got) != _RING_BYTES or not np.array_equal(got, _payload(author)):
            wrong.append(author)
        payload = got
    return {
        "rank": rank,
        "token": token["signed"],
        "token_s": token_s,
        "seconds": time.perf_counter() - start_s,
        "wrong": wrong,
    }


def _seen(path: Path, text: str) -> float | None:
    """Seconds until the file has the text; None at the time limit."""
    start_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes network file systems refresh
            if path.read_text() == text:
                return time.monotonic() - start_s
        if time.monotonic() - start_s > _FILES_S:
            return None
        time.sleep(0.01)


def _write(path: Path, text: str) -> str | None:
    try:
        with path.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{path.parent} on {platform.node()}: {error.strerror}"
    return None


def _shared(channel: Channel, directory: Path) -> dict[str, Any]:
    """Rank 0 writes a file that all ranks must see; then every rank writes one that rank 0 must see."""
    word = channel.broadcast(secrets.token_hex(16) if channel.rank == 0 else None, 0)
    own = directory / f".swjoin-doctor-{word}-{channel.rank}"
    problem = _write(own, word) if channel.rank == 0 else None
    channel.barrier()
    first = None if problem else _seen(directory / f".swjoin-doctor-{word}-0", word)
    if channel.rank != 0:
        problem = _write(own, word)
    channel.barrier()
    unseen = []
    if channel.rank == 0:
        unseen = [r for r in range(channel.size) if _seen(directory / f".swjoin-doctor-{word}-{r}", word) is None]
    channel.barrier()
    with contextlib.suppress(OSError):
        own.unlink()
    return {"rank": channel.rank, "host": platform.node(), "problem": problem, "seen_s": first, "unseen": unseen}


def _death(channel: Channel) -> dict[str, Any] | None:
    """The last rank kills itself; seconds until rank 0 notices. None: the library has no fault tolerance."""
    from swjoin.runtime.mpi.resilient_channel import library_survives

    comm, mpi = channel.comm, channel.mpi
    victim = channel.size - 1
    channel.barrier()
    if channel.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if not library_survives():
        return None
    start_s = time.monotonic()
    while time.monotonic() - start_s < _DEATH_S:
        try:
            comm.Iprobe(source=mpi.ANY_SOURCE, tag=_REPORT)
        except mpi.Exception:
            comm.Ack_failed(comm.size)
        if comm.Get_failed().size:
            return {"noticed_s": time.monotonic() - start_s}
        time.sleep(1e-3)
    return {"noticed_s": None}


def examine(directory: Path | None, limit_s: float, *, die: bool = False) -> dict[str, Any]:
    """Measure, called on all ranks; returns the figures of all on rank 0, and nothing on other ranks.

    limit_s: time limit, at which this process ends. die: try only the death of the last rank; MPI cannot be used afterwards.
    """
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    watch = _Watch(limit_s, launcher_index())
    watch.step = "MPI_Init"
    from mpi4py import MPI

    from swjoin.runtime.mpi.channel import Channel

    channel = Channel(MPI.COMM_WORLD)
    if die:
        watch.step = "a death"
        figures: dict[str, Any] = {"death": _death(channel)}
        watch.done()
        return figures
    watch.step = "reporting to rank 0"
    ranks = _gather(channel, _describe())
    figures = {"library": MPI.Get_library_version().split(",")[0].strip(), "size": channel.size, "ranks": ranks}
    watch.step = "clocks and ping-pong with rank 0"
    figures["links"] = _links(channel)
    watch.step = "ring"
    figures["ring"] = _gather(channel, _ring(channel))
    if directory is not None:
        watch.step = f"files in {directory}"
        figures["shared"] = _gather(channel, _shared(channel, directory))
    watch.step = "MPI_Barrier at the end"
    channel.barrier()
    watch.done()
    return figures if channel.rank == 0 else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--die", action="store_true")
    args = parser.parse_args()
    figures = examine(args.dir, args.limit, die=args.die)
    if figures and launcher_index() == 0:
        print(MARK + json.dumps(figures), flush=True)
    if args.die:
        sys.stdout.flush()
        os._exit(0)  # MPI_Finalize may wait for the dead rank


if __name__ == "__main__":
    main()

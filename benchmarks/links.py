"""The two links of the cluster on their own, between two real MPI ranks: master -> null slave, slave -> collector.

Why: the join can only be as fast as its master, and as its collector.
What is measured: `master`: the master's own code from rows in memory (intake, mini-buffers, partitioning into 60
partition-groups, packing) and the send to a rank that receives and asks for more. `parquet`: the same, reading the rows from
Parquet files. `results`: packing result chunks of 65,536 pairs (40 bytes each), sending, unpacking, counting and digesting
them. Every tuple and pair is counted at the far end. The command starts its two ranks
itself.

Usage: python -m benchmarks.links master|parquet|results [LEFT RIGHT] [--json FILE] [--repeat N] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import parse, run_mpirun

ROWS = 65_536
TUPLES = 12_000_000
PAIRS = 20_000_000
REPEATS = 5


def _channel() -> Any:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    from swjoin.monitor.process_settings import keep_freed_memory
    from swjoin.runtime.mpi.channel import Channel

    keep_freed_memory()
    return Channel(MPI.COMM_WORLD)


def _config(paths: list[str] | None) -> Any:
    from swjoin.config.loader import config_from_plain

    streams = {
        side: {"path": (paths or ["none", "none"])[i], "key": ["key"], "time": "ts", "time_unit": "us"}
        for i, side in enumerate(("left", "right"))
    }
    return config_from_plain(
        {
            **streams,
            "queries": [{"within": "10s"}],
            "pace": "asap",
            "cluster": {"distribution_epoch": 0},
            "sink": {"kind": "count"},
        }
    )


class _Memory:
    """Rows in memory, as a source yields them."""

    def __init__(self, seed: int, tuples: int) -> None:
        from swjoin.core.batch import SourceBatch

        random = np.random.default_rng(seed)
        ts = np.arange(tuples, dtype=np.int64) * 10
        key, ids = random.integers(0, 10**7, tuples), np.arange(tuples, dtype=np.uint64)
        cuts = range(0, tuples, ROWS)
        self._batches = [SourceBatch(key[a : a + ROWS], ts[a : a + ROWS], ids[a : a + ROWS]) for a in cuts]
        self._at = 0

    def read(self) -> Any:
        self._at += 1
        return self._batches[self._at - 1] if self._at <= len(self._batches) else None


def master(channel: Any, paths: list[str] | None, tuples: int) -> float:
    """Tuples per second through the gateway to a null slave."""
    from swjoin.cluster.gateway.gateway import Gateway
    from swjoin.cluster.master.master import Master
    from swjoin.cluster.messages import Report
    from swjoin.cluster.role import (
        GATEWAY,
        MASTER,
        BatchRead,
        Effect,
        Event,
        Read,
        Received,
        Role,
        RoleId,
        Send,
        SourceEnded,
        slave_role,
    )
    from swjoin.cluster.wire import FORMATS
    from swjoin.connectors.files.source import open_sources
    from swjoin.core.data_messages import Delivery
    from swjoin.runtime.host import settled

    config = _config(paths)
    delivered, reported = FORMATS[Delivery], FORMATS[Report]
    role = Gateway(config, 1, (None, None))
    roles: dict[RoleId, Role] = {MASTER: Master(config, 1), GATEWAY: role}

    def handle(event: Event) -> list[Effect]:
        return settled(roles, GATEWAY, role.handle(event, 0), 0)

    sources: Any = (
        open_sources(config.left, config.right, carry_payload=False)[:2]
        if paths
        else [_Memory(seed, tuples // 2) for seed in (1, 2)]
    )
    channel.comm.Barrier()
    start = time.perf_counter()
    commands = role.start()
    total = 0
    while commands or not role.finished:
        wanted = None
        for command in commands:
            match command:
                case Send(message=Delivery() as delivery):
                    total += len(delivery.left) + len(delivery.right)
                    channel.send(delivered.pack(delivery), 1, delivered.tag)
                case Read(stream):
                    wanted = stream
        commands = []
        if channel.probe(1, reported.tag):
            channel.receive()
            commands += handle(Received(slave_role(0), Report(0.0)))
        elif wanted is not None or role.reading.pending is not None:
            side = wanted if wanted is not None else role.reading.pending
            assert side is not None
            batch = sources[side].read()
            commands += handle(SourceEnded(side) if batch is None else BatchRead(side, batch))
        else:
            channel.sleep()
    channel.comm.Barrier()
    seconds = time.perf_counter() - start
    counted = np.zeros(1, np.int64)
    channel.comm.Recv(counted, source=1)
    read = sum(s.counts.tuples for s in role.streams)
    if not counted[0] == total == read:
        raise SystemExit(f"read {read} tuples, sent {total}, {counted[0]} arrived")
    return total / seconds


def null_slave(channel: Any) -> None:
    """Receive and report; like a slave, ask for the next delivery before unpacking this one."""
    from swjoin.cluster.messages import Report
    from swjoin.cluster.wire import FORMATS
    from swjoin.core.data_messages import Delivery

    delivered, reported = FORMATS[Delivery], FORMATS[Report]
    report = np.zeros(1).view(np.uint8)
    channel.comm.Barrier()
    channel.send(report, 0, reported.tag)
    total = np.zeros(1, np.int64)
    while True:
        delivery = delivered.unpack(channel.wait(0, delivered.tag))
        total += len(delivery.left) + len(delivery.right)
        if delivery.last:
            break
        channel.send(report, 0, reported.tag)
    channel.comm.Barrier()
    channel.comm.Send(total, dest=0)


def results(channel: Any, pairs_sent: int) -> float | None:
    """Pairs per second from a slave (rank 1) to the collector (rank 0)."""
    from swjoin.cluster.collector import Collector
    from swjoin.cluster.role import Received, slave_role
    from swjoin.cluster.wire import FORMATS
    from swjoin.core.batch import Pairs
    from swjoin.core.data_messages import GroupResults, ResultChunk
    from swjoin.core.hashing import digest_pairs
    from swjoin.core.ids import EpochIndex, QueryId, SlaveId
    from swjoin.core.metric_columns import COLUMNS
    from swjoin.state.delay_histogram import HISTOGRAM_SIZE

    form = FORMATS[ResultChunk]
    random = np.random.default_rng(3)
    times = [random.integers(0, 1 << 40, ROWS) for _ in range(3)]
    left_id, right_id = (random.integers(0, 1 << 40, ROWS).astype(np.uint64) for _ in range(2))
    chunks = max(1, pairs_sent // ROWS)
    one = np.uint64(digest_pairs(left_id, right_id))
    channel.comm.Barrier()
    start = time.perf_counter()
    if channel.rank == 1:
        for i in range(chunks):
            last = i == chunks - 1
            group = GroupResults(np.zeros(1, np.int64), np.array([ROWS]), np.array([one]))
            histogram = np.zeros(HISTOGRAM_SIZE, np.int64)
            histogram[0] = ROWS
            metrics = np.zeros(len(COLUMNS))
            pairs = Pairs(times[0], times[1], times[2], left_id, right_id)
            chunk = ResultChunk(QueryId(0), SlaveId(0), EpochIndex(i), True, last, pairs, group, metrics, histogram)
            channel.send(form.pack(chunk), 0, form.tag)
        channel.comm.Barrier()
        return None
    collector = Collector(1, materialised=True)
    while not collector.finished:
        collector.handle(Received(slave_role(0), form.unpack(channel.wait(1, form.tag))), 0)
    seconds = time.perf_counter() - start
    channel.comm.Barrier()
    if collector.tally.count != chunks * ROWS:
        raise SystemExit(f"{chunks * ROWS} pairs sent, {collector.tally.count} arrived")
    return collector.tally.count / seconds


def run_rank(what: str, paths: list[str] | None, out: Path, repeat: int, size: int) -> None:
    """One of the two ranks."""
    channel = _channel()
    figures = []
    for turn in range(repeat + 1):
        if what == "results":
            figure = results(channel, size)
        elif channel.rank == 0:
            figure = master(channel, paths, size)
        else:
            figure = None
            null_slave(channel)
        if turn:  # the first turn loads the kernels
            figures.append(figure)
    if channel.rank == 0:
        out.write_text(json.dumps(figures))


def start(what: str, paths: list[str], out: Path, repeat: int = REPEATS, *, tiny: bool = False) -> list[float]:
    """Start both ranks; returns the figures, in tuples or pairs per second."""
    from swjoin.runtime.launch import mpirun_options
    from swjoin.runtime.preflight import find_mpirun

    command = [*mpirun_options(find_mpirun(), 2), sys.executable, "-m", "benchmarks.links", what, *paths]
    command += ["--rank", "--json", str(out), "--repeat", str(repeat), *["--tiny"] * tiny]
    run_mpirun(command, timeout=600)
    figures: list[float] = json.loads(out.read_text())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["master", "parquet", "results"])
    parser.add_argument("paths", nargs="*", help="parquet: the two files, with columns ts and key")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=REPEATS)
    args = parse(parser, repeat=1)
    if args.rank:
        size = PAIRS if args.what == "results" else TUPLES
        run_rank(args.what, args.paths or None, args.json, args.repeat, size // 100 if args.tiny else size)
        return
    with tempfile.TemporaryDirectory(prefix="swjoin-links-") as folder:
        out = args.json or Path(folder) / "figures.json"
        figures = sorted(
            start(args.what, [str(Path(p).absolute()) for p in args.paths], out.absolute(), args.repeat, tiny=args.tiny)
        )
    unit = "pairs" if args.what == "results" else "tuples"
    middle = figures[len(figures) // 2]
    print(f"{args.what}: {middle / 1e6:.1f} M {unit}/s ({figures[0] / 1e6:.1f} to {figures[-1] / 1e6:.1f})")


if __name__ == "__main__":
    main()

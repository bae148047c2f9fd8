"""Plans of several stages: what a second join costs, what it costs to merge four senders instead of one, and what a star gains.

What: `row`: two joins in a row over one join, input tuples/s of one core: gateway and one instance of each stage in one
thread, count and digest. `senders`: one of four instances of the second stage, whose left port has one sender or four at
the same total rate, time per tuple. `star`: three streams with one key, each two rows of a match within W, as a multiway
join over two joins in a row, with 0.01 and with 2 partners a probe: input tuples/s of one core, peak bytes of windows. Turn by
turn; every answer is compared with one that sorting gives.
Why: the exchange between stages is new work for every tuple of an intermediate result; a multiway join has none.

`flink`: such a star in files, beside Flink's MultiJoin (`benchmarks.star_files`), in an environment of its own; only by name.

Usage: python -m benchmarks.stages [row] [senders] [star] [flink] [--repeat N] [--tiny]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import parse, star_files
from swjoin.cluster.exchange import EpochHeader, Outlet
from swjoin.cluster.gateway.feeds import Feeds
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import EpochPlan, EpochWanted, Granted
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
    WorkDue,
    slave_role,
)
from swjoin.cluster.slave.merger import Merger
from swjoin.cluster.slave.results import receipts
from swjoin.cluster.slave.slave import Slave
from swjoin.config.loader import config_from_plain
from swjoin.config.sections import QueryConfig
from swjoin.core.batch import LEFT, SourceBatch, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery, ResultChunk
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.join_semantics import mix64
from swjoin.plan.logical import Column, Filter, IntervalJoin, LogicalPlan, Node, Project, Result, Source
from swjoin.plan.multiway import with_multiway_joins
from swjoin.runtime.host import settled

PARTS = ("row", "senders", "star")
WINDOW_US, RATE, SECONDS = 10_000_000, 100_000, 30
DOMAIN = 2 * RATE * WINDOW_US // 1_000_000  # one partner each
ROWS, WIDTH = 65_536, 4
Rows = tuple[Any, Any, Any]  # keys, times, ids


def plan_of(joins: int) -> LogicalPlan:
    """One join, or two in a row, of streams with an integer key."""
    columns = (Column("k", "int64"), Column("ts", "timestamp[us]"))
    sources = [Source(name, columns, "ts") for name in "abc"[: joins + 1]]
    query = QueryConfig(-WINDOW_US, WINDOW_US)
    chain = [IntervalJoin("j", "a", "b", ("k",), ("k",), query), IntervalJoin("i", "j", "c", ("k",), ("k",), query)]
    return LogicalPlan((*sources, *chain[:joins], Result("out", chain[joins - 1].name)))


def star_plan(*, multiway: bool) -> LogicalPlan:
    """The star of three streams whose times differ by at most W, as one join or as two in a row."""
    columns = (Column("k", "int64"), Column("ts", "timestamp[us]"))
    query, us = QueryConfig(-WINDOW_US, WINDOW_US), f"INTERVAL '{WINDOW_US}' MICROSECOND"
    near = f'"right_ts" BETWEEN "b_ts" - {us} AND "b_ts" + {us}'
    named = Project("named", "j", (("k", '"k"'), ("ts", '"left_ts"'), ("b_ts", '"right_ts"')))
    nodes: tuple[Node, ...] = (
        *(Source(name, columns, "ts") for name in "abc"),
        IntervalJoin("j", "a", "b", ("k",), ("k",), query, "left"),
        named,
        IntervalJoin("i", "named", "c", ("k",), ("k",), query, "left"),
        Filter("near", "i", near),
        Result("out", "near"),
    )
    plan = LogicalPlan(nodes)
    return with_multiway_joins(plan) if multiway else plan


def stream(seed: int, rows: int, domain: int = DOMAIN) -> Rows:
    random = np.random.default_rng(seed)
    ts = np.sort(random.integers(0, rows * 1_000_000 // RATE, rows))
    return random.integers(0, domain, rows), ts, np.arange(rows, dtype=np.uint64)


def joined(left: Rows, right: Rows) -> Rows:
    """Keys, times and ids of the rows of a join, found by sorting."""
    from swjoin.core.hashing import pair_ids

    i, j = _pairs(left, right)
    return left[0][i], np.maximum(left[1][i], right[1][j]), pair_ids(left[2][i], right[2][j])


def of_star(a: Rows, b: Rows, c: Rows) -> tuple[int, int]:
    """Rows of `star_plan`, and the sum of their ids."""
    from swjoin.core.hashing import pair_ids

    i, j = _pairs(a, b)
    both = a[0][i], a[1][i], pair_ids(a[2][i], b[2][j])
    m, n = _pairs(both, c)
    near = np.abs(c[1][n] - b[1][j[m]]) <= WINDOW_US
    ids = pair_ids(both[2][m[near]], c[2][n[near]])
    return len(ids), int(np.add.reduce(ids, dtype=np.uint64))


def _pairs(left: Rows, right: Rows) -> tuple[Any, Any]:
    """Positions of the rows of a join within W."""
    span = 1 << 33
    order = np.argsort(right[0] * span + right[1], kind="stable")
    flat = (right[0] * span + right[1])[order]
    low = np.searchsorted(flat, left[0] * span + np.maximum(left[1] - WINDOW_US, 0), "left")
    high = np.searchsorted(flat, left[0] * span + left[1] + WINDOW_US, "right")
    count = high - low
    i = np.repeat(np.arange(len(left[0])), count)
    j = order[np.repeat(low - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(len(i))]
    return i, j


def answer(rows: Rows) -> tuple[int, int]:
    return len(rows[2]), int(np.add.reduce(rows[2], dtype=np.uint64))


class _Run:
    """All roles of a plan in one thread, with one instance of each stage; the master grants every epoch."""

    def __init__(self, plan: LogicalPlan, streams: list[Rows]) -> None:
        config = config_from_plain({"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": "count"}})
        self.instances = instances = Instances.of(plan, config, 1)
        read = [instances.columns.read[source.name] for source in instances.stages.sources]
        self._batches = [deque(_batches(rows, names)) for rows, names in zip(streams, read, strict=True)]
        self._gateway = Gateway(instances.config_of_gateway, instances.slave_count, (None, None), feeds=Feeds(instances))
        self._roles: dict[RoleId, Role] = {GATEWAY: self._gateway}
        self._roles |= {slave_role(s): Slave.of_plan(instances, SlaveId(s)) for s in range(instances.slave_count)}
        self.count = self.digest = 0

    @property
    def peak_window_bytes(self) -> int:
        """Of all stages, each at its own moment."""
        slaves = (role for role in self._roles.values() if isinstance(role, Slave))
        return sum(slave.join.window_memory().peak_bytes for slave in slaves)

    def run(self) -> float:
        """Seconds."""
        start = time.perf_counter()
        self._settle(GATEWAY, self._gateway.start())
        while not all(role.finished for role in self._roles.values()):
            for name, role in self._roles.items():
                if isinstance(role, Slave) and role.has_work:
                    self._settle(name, role.handle(WorkDue(), 0))
        return time.perf_counter() - start

    def _settle(self, sender: RoleId, effects: list[Effect]) -> None:
        """Perform effects, and what follows from them in other roles, until nothing does."""
        left = deque(settled(self._roles, sender, effects, 0))
        role = self._roles[sender]
        if isinstance(role, Slave):
            for receipt in receipts(role.results, left):
                left += settled(self._roles, sender, role.handle(receipt, 0), 0)
        while left:
            event = self._answer(left.popleft())
            if event is not None:
                left += settled(self._roles, GATEWAY, self._gateway.handle(event, 0), 0)

    def _answer(self, effect: Effect) -> Event | None:
        """What the master or a source tells the gateway; results are counted."""
        match effect:
            case Send(_, EpochWanted() as wanted):
                slaves = tuple(range(self.instances.slave_count))
                return Received(MASTER, EpochPlan(wanted.epoch, slaves, everything=wanted.everything, last=wanted.everything))
            case Send(_, ResultChunk(sent=sent)) if sent is not None:  # of rows that filters have left
                for _, count, digest in sent.tolist():
                    self.count, self.digest = self.count + count, (self.digest + digest) % 2**64
            case Send(_, ResultChunk(results=results)) if results is not None:
                self.count += int(results.counts.sum())
                self.digest = (self.digest + int(np.add.reduce(results.digests, dtype=np.uint64))) % 2**64
            case Read(stream):
                queue = self._batches[stream]
                return BatchRead(stream, queue.popleft()) if queue else SourceEnded(stream)
        return None


def _batches(rows: Rows, names: Sequence[str]) -> list[SourceBatch]:
    keys, ts, ids = rows
    whole = pa.record_batch({"k": pa.array(keys), "ts": pa.array(ts, pa.timestamp("us"))})
    columns = Columns(whole.select(list(names)))
    cuts = [(a, min(a + ROWS, len(keys))) for a in range(0, len(keys), ROWS)]
    nothing = np.zeros(ROWS, np.int64)
    return [SourceBatch(nothing[: b - a], ts[a:b], ids[a:b], None, None, None, columns.slice(a, b)) for a, b in cuts]


def _tuples(rows: Rows, start: int, stop: int) -> TupleBatch:
    keys, ts, ids = (column[start:stop] for column in rows)
    columns = Columns(pa.record_batch({"k": pa.array(keys)}))
    return TupleBatch(np.zeros(len(keys), np.int64), ts, ids, ts, None, columns)


class _Receiver:
    """Instance 0 of four of the second stage, with so many senders at its left port, and their deliveries, made before."""

    def __init__(self, senders: int, left: Rows, right: Rows, epochs: int) -> None:
        config = config_from_plain({"join": {"lower_us": 0, "upper_us": 0}, "sink": {"kind": "count"}})
        instances = Instances.of(plan_of(2), config, WIDTH)
        stages = instances.stages.stages
        edges = [edge for edge in instances.stages.edges if edge.receiver == stages[1]]
        (inner,), (outer,) = ([e for e in edges if (e.port == LEFT) is left_port] for left_port in (True, False))
        outlets = [(slave_role(s), inner, Outlet(instances, [inner], s)) for s in range(senders)]
        outlets += [(GATEWAY, outer, Outlet(instances, [outer], 0))]
        self.me = slave_role(instances.slaves_of(stages[1])[0])
        self._slave = Slave.of_plan(instances, SlaveId(instances.slaves_of(stages[1])[0]))
        stage = self._slave.stage
        assert stage is not None
        stage.merger = Merger("receiver", {(edge.id, sender): edge.port for sender, edge, _ in outlets})
        sent: list[Counter[RoleId]] = [Counter() for _ in outlets]
        self._parts: list[list[tuple[RoleId, Delivery]]] = []  # by epoch
        for epoch in range(epochs):
            last = epoch == epochs - 1
            ends = [END_OF_TIME_US if last else int(r[1][len(r[1]) * (epoch + 1) // epochs]) for r in (left, right)]
            header = EpochHeader(EpochIndex(epoch), instances.slave_count, last=last)
            found: list[list[tuple[RoleId, Delivery]]] = []
            for i, (sender, edge, outlet) in enumerate(outlets):
                rows, end, share, of = (left, ends[0], i, senders) if edge is inner else (right, ends[1], 0, 1)
                start, stop = (len(rows[0]) * (epoch + n) // epochs for n in (0, 1))
                length = stop - start
                outlet.add((edge.id,), _tuples(rows, start + length * share // of, start + length * (share + 1) // of), header)
                outlet.close(header, {edge.id: end})
                found.append([(sender, part) for part in _drained(outlet, self.me, sent[i])])
            self._parts.append(found[-1] + [part for parts in zip(*found[:-1], strict=False) for part in parts])
            rest = [part for parts in found[:-1] for part in parts[min(map(len, found[:-1])) :]]
            self._parts[-1] += rest
        owner = instances.group_maps[1].owner
        groups = ((mix64(left[0].astype(np.uint64)) >> np.uint64(32)) * np.uint64(len(owner))) >> np.uint64(32)
        mine = owner[groups.astype(np.int64)] == 0
        self.expected = len(joined((left[0][mine], left[1][mine], left[2][mine]), right)[0])
        self.tuples = sum(len(d.left) + len(d.right) for parts in self._parts for _, d in parts)

    def run(self) -> tuple[float, int]:
        """Nanoseconds per tuple, and rows."""
        slave, start = self._slave, time.perf_counter_ns()
        for parts in self._parts:
            for sender, part in parts:
                slave.handle(Received(sender, part), 0)
                while slave.has_work:
                    for receipt in receipts(slave.results, slave.handle(WorkDue(), 0)):
                        slave.handle(receipt, 0)
        took_ns = time.perf_counter_ns() - start
        if not slave.finished:
            raise SystemExit("the instance waits for a part")
        return took_ns / self.tuples, slave.produced


def _drained(outlet: Outlet, me: RoleId, total: Counter[RoleId]) -> list[Delivery]:
    """All parts for one receiver, whatever the credit. total: parts sent to each receiver before; grows."""
    found: list[Delivery] = []
    sent: Counter[RoleId] = Counter()
    while True:
        effects = outlet.serve()
        for effect in effects:
            assert isinstance(effect, Send)
            sent[effect.to] += 1
            if effect.to == me and isinstance(effect.message, Delivery):
                found.append(effect.message)
        if not effects:
            return found
        for role, count in sent.items():
            outlet.granted(role, Granted(1 << 40, total[role] + count))
        total += sent
        sent.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all), or flink")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="length of the streams")
    args = parse(parser, repeat=1, seconds=1)
    if unknown := set(args.parts) - {*PARTS, "flink"}:
        parser.error(f"unknown part {min(unknown)}; parts are {', '.join(PARTS)} and flink")
    if "flink" in args.parts:
        star_files.beside_flink(args.repeat, tiny=args.tiny)
    if args.parts == ["flink"]:
        return
    rows, parts = args.seconds * RATE, args.parts or PARTS
    streams = [stream(seed, rows) for seed in (1, 2, 3)]
    first = joined(streams[0], streams[1])
    window_s = WINDOW_US // 10**6
    print(f"three streams of {rows:,} tuples, {RATE:,}/s each, keys uniform in {DOMAIN:,}, W = {window_s} s; one core")
    if "row" in parts:
        _of_row(streams, first, args.repeat)
    if "senders" in parts:
        _of_senders(streams, first, args)
    if "star" in parts:
        for partners in (0.01, 2):
            _of_star(rows, partners, args.repeat)


def _of_row(streams: list[Rows], first: Rows, repeat: int) -> None:
    right = {1: answer(first), 2: answer(joined(first, streams[2]))}
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(repeat + 1):
        for joins, took in speeds.items():
            run = _Run(plan_of(joins), streams[: joins + 1])
            seconds = _checked(run, right[joins], f"{joins} joins")
            if turn:
                took.append((joins + 1) * len(streams[0][0]) / seconds)
    _table("joins in a row", "M input tuples/s", [(str(n), [v / 1e6 for v in took]) for n, took in speeds.items()])


def _checked(run: _Run, right: tuple[int, int], what: str) -> float:
    """Seconds of a run. SystemExit for another answer."""
    seconds = run.run()
    if (run.count, run.digest) != right:
        raise SystemExit(f"{what}: {run.count} rows, digest {run.digest:x}; expected {right}")
    return seconds


def _of_senders(streams: list[Rows], first: Rows, args: argparse.Namespace) -> None:
    order = np.argsort(first[1], kind="stable")
    left: Rows = (first[0][order], first[1][order], first[2][order])
    costs: dict[int, list[float]] = {1: [], 4: []}
    for turn in range(args.repeat + 1):
        for senders, took in costs.items():
            receiver = _Receiver(senders, left, streams[2], max(1, args.seconds))
            cost_ns, found = receiver.run()
            if found != receiver.expected:
                raise SystemExit(f"{senders} senders: {found} rows, expected {receiver.expected}")
            if turn:
                took.append(1e3 / cost_ns)
    _table("senders", "M tuples/s of the receiver", [(str(n), took) for n, took in costs.items()])


def _of_star(rows: int, partners: float, repeat: int) -> None:
    """partners: of a row in another stream's window, about."""
    domain = int(RATE * 2 * WINDOW_US / 10**6 / partners)
    streams = [stream(seed, rows, domain) for seed in (4, 5, 6)]
    right, speeds, peaks = of_star(*streams), dict[str, list[float]](), dict[str, int]()
    for turn in range(repeat + 1):
        for what, multiway in (("two joins in a row", False), ("multiway join", True)):
            run = _Run(star_plan(multiway=multiway), streams)
            seconds = _checked(run, right, what)
            peaks[what] = run.peak_window_bytes
            if turn:
                speeds.setdefault(what, []).append(3 * rows / seconds / 1e6)
    _table(f"star, {partners} partners", "M input tuples/s", list(speeds.items()))
    one, two = (peaks[what] / 2**20 for what in ("multiway join", "two joins in a row"))
    print(f"windows of the star, {partners} partners: {one:.1f} MiB, {one / two:.2f} of {two:.1f} MiB; {right[0]:,} rows")


def _table(what: str, unit: str, rows: list[tuple[str, list[float]]]) -> None:
    """Medians, and the ratio to the first row turn by turn."""
    print(f"| {what} | {unit} | over one | range |\n|---|---|---|---|")
    for name, values in rows:
        ratios = [value / one for value, one in zip(values, rows[0][1], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {statistics.median(values):.2f} | {ratio} |")


if __name__ == "__main__":
    main()

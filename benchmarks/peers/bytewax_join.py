"""How fast an interval join written on Bytewax joins two streams by key and time: symmetric, keyed, with expiry; a count.

Bytewax has no interval join of its own, so this is the one its user would write, in two shapes: `key`, a stateful operator
keyed by the join key, and `group`, keyed by one of a few groups of keys, which saves most of the cost of each key's state and
lets a call see many tuples at once. Both hold each side's live tuples, match an arriving tuple against the other side's in
both directions, and drop what is out of reach: on touch, and also for keys that never come again (`key`: a notification,
`group`: a queue in the order of time). The counts of pairs, not the pairs, flow to the sink, the cheapest honest output.
With two workers each is a process (threads would share one interpreter) and reads the half of the keys.
Out of scope: disorder (a key's tuples arrive in the order of ts), recovery, payloads; reading Parquet is not in the seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.peers import child, common

SHAPES = {"key": "operator state for each join key", "group": "operator state for each of {groups} groups of keys"}
BATCH = 10_000  # tuples the source hands over at once
IDLE = timedelta(seconds=5)  # of real time, after which a silent key's state is looked at

Item = tuple[int, int, int]  # side, ts, key


def items(args: argparse.Namespace, part: int, parts: int) -> list[tuple[str, Item]]:
    """Both sides merged by time with the routing key in front, as far as this part of the source reads them."""
    import numpy as np

    sides = common.read(args.left, args.right, args.max_event_s)
    ts, key = (np.concatenate([side[column] for side in sides]) for column in (0, 1))
    side = np.repeat([0, 1], [len(s[0]) for s in sides])
    route = key % args.groups if args.shape == "group" else key
    order = np.argsort(ts, kind="stable")
    order = order[route[order] % parts == part]
    rows = zip(side[order].tolist(), ts[order].tolist(), key[order].tolist(), strict=True)
    return list(zip(map(str, route[order].tolist()), rows, strict=True))


def drop(times: list[int], bound: int) -> None:
    """Drops the times before the bound from the front. Lists, as most keys hold a time or two, too few for a deque."""
    keep = 0
    while keep < len(times) and times[keep] < bound:
        keep += 1
    del times[:keep]


def match(lists: tuple[list[int], list[int]], side: int, ts: int, within: int) -> int:
    """Puts a tuple of one key in its side's state; the pairs that it makes with the other side."""
    lists[side].append(ts)
    other = lists[1 - side]
    if not other:
        return 0
    if other[0] < ts - within:
        drop(other, ts - within)
        if not other:
            return 0
    if other[-1] <= ts + within:
        return len(other)
    return sum(1 for t in other if t <= ts + within)  # the other side is ahead


def flow(args: argparse.Namespace, part: int, parts: int, found: dict[str, float]) -> Any:
    """The dataflow; the first hand-over's time and the number of pairs that reach this process go to `found`."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    within = args.within_us
    rows = items(args, part, parts)
    seen = [-(1 << 62)] * parts  # the largest ts that came here from each part of the source: parts may be far apart

    class Part(StatefulSourcePartition):
        at = 0

        def next_batch(self) -> Iterable[tuple[str, Item]]:
            found.setdefault("start", time.monotonic())
            if self.at >= len(rows):
                raise StopIteration
            batch = rows[self.at : self.at + BATCH]
            self.at += BATCH
            return batch

        def snapshot(self) -> int:
            return self.at

    class Input(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return [str(part)]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part()

    class KeyLogic(StatefulBatchLogic):
        def __init__(self) -> None:
            self.lists: tuple[list[int], list[int]] = ([], [])
            self.part = 0
            self.wake = datetime.now(UTC) + IDLE

        def on_batch(self, values: list[Item]) -> tuple[Iterable[int], bool]:
            count = 0
            lists = self.lists
            for side, ts, _ in values:
                count += match(lists, side, ts, within)
            self.part = values[0][2] % parts
            seen[self.part] = max(seen[self.part], ts)
            drop(lists[side], ts - within)
            return ((count,) if count else ()), False

        def notify_at(self) -> datetime:
            return self.wake

        def on_notify(self) -> tuple[Iterable[int], bool]:
            bound = seen[self.part] - within
            if all(not times or times[-1] < bound for times in self.lists):
                return (), True
            self.wake = datetime.now(UTC) + IDLE
            return (), False

        def snapshot(self) -> Any:
            return None  # no recovery

    class GroupLogic(StatefulBatchLogic):
        def __init__(self) -> None:
            self.lists: dict[int, tuple[list[int], list[int]]] = {}
            self.queue: deque[tuple[int, int]] = deque()  # (ts, key) of every tuple held, in the order of time

        def on_batch(self, values: list[Item]) -> tuple[Iterable[int], bool]:
            count = 0
            lists, queue = self.lists, self.queue
            for side, ts, key in values:
                both = lists.get(key)
                if both is None:
                    both = lists[key] = ([], [])
                count += match(both, side, ts, within)
                queue.append((ts, key))
            bound = ts - within
            while queue[0][0] < bound:
                _, key = queue.popleft()
                both = lists.get(key)
                if both is None:
                    continue
                for times in both:
                    drop(times, bound)
                if not both[0] and not both[1]:
                    del lists[key]
            return ((count,) if count else ()), False

        def snapshot(self) -> Any:
            return None  # no recovery

    class Output(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
            return Sum()

    class Sum(StatelessSinkPartition):
        def write_batch(self, items: list[tuple[str, int]]) -> None:
            found["count"] = found.get("count", 0) + sum(n for _, n in items)

    logic = KeyLogic if args.shape == "key" else GroupLogic
    graph = Dataflow("interval_join")
    stream = op.input("input", graph, Input())
    counts = op.stateful_batch("join", stream, lambda _: logic())
    op.output("output", counts, Output())
    return graph


def run(args: argparse.Namespace) -> None:
    """One worker: its dataflow from start to end."""
    from bytewax.run import cli_main

    part, addresses = args.child, args.addresses
    found: dict[str, float] = {}
    gc.disable()  # state without cycles, freed by reference counts
    graph = flow(args, part, max(len(addresses), 1), found)
    if len(addresses) > 1:
        cli_main(graph, process_id=part, addresses=addresses)
    else:
        cli_main(graph)
    print(json.dumps({"start": found["start"], "end": time.monotonic(), "count": int(found.get("count", 0))}))


def free_addresses(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def run_workers(args: argparse.Namespace) -> None:
    """The workers, in this process group, so that the limit of our parent ends them with us."""
    addresses = free_addresses(args.cluster) if args.cluster > 1 else []
    command = [sys.executable, "-m", "benchmarks.peers.bytewax_join", *sys.argv[1:], "--addresses", *addresses, "--child"]
    children = [subprocess.Popen([*command, str(part)], stdout=subprocess.PIPE, text=True) for part in range(args.cluster)]
    outs = [worker.communicate()[0] for worker in children]
    if any(worker.returncode for worker in children):
        raise SystemExit("a worker failed")
    found = [json.loads(out.splitlines()[-1]) for out in outs]
    seconds = max(f["end"] for f in found) - min(f["start"] for f in found)  # first hand-over of any to the end of the last
    print(json.dumps([seconds, sum(f["count"] for f in found)]))


def main() -> None:
    parser = common.arguments(__doc__)
    common.add_cut(parser)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="default: both")
    parser.add_argument("--groups", type=int, default=64, help="groups of keys of the shape `group`")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="worker processes, each number a variant")
    parser.add_argument("--shape", help=argparse.SUPPRESS)  # in the child, with the next three
    parser.add_argument("--cluster", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        run(args)
        return
    if args.cluster:
        run_workers(args)
        return
    from importlib.metadata import version

    left, right = common.read(args.left, args.right, args.max_event_s)
    tuples, right_count = len(left[0]) + len(right[0]), common.expected(left, right, args.within_us)
    del left, right
    extent = "whole input" if args.max_event_s is None else f"first {args.max_event_s:g} s of event time"
    for shape in args.shapes:
        for workers in args.workers:
            command = [sys.executable, "-m", "benchmarks.peers.bytewax_join", "--left", args.left, "--right", args.right]
            command += ["--within-us", str(args.within_us), "--shape", shape, "--groups", str(args.groups)]
            command += [] if args.max_event_s is None else ["--max-event-s", str(args.max_event_s)]
            command += ["--cluster", str(workers)]
            runs = [json.loads(child.run(command, args.timeout_s).splitlines()[-1]) for _ in range(args.repeat)]
            text = f"{workers} worker process(es), {SHAPES[shape].format(groups=args.groups)}, counts to the sink; {extent}; "
            text += "tuples in memory, no Parquet in the seconds"
            count = common.same([c for _, c in runs])
            common.report("Bytewax", version("bytewax"), text, count, [s for s, _ in runs], tuples, right_count)


if __name__ == "__main__":
    main()

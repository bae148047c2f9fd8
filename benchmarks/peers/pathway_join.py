"""How fast Pathway's interval_join joins two streams by key and time: static input, count of the pairs.

Pathway has this very join as an operator, so nothing is built by hand: the two tables, `interval_join` on equal keys within
-W and +W, a count. The input is static (all rows there from the start, in memory), its fastest way: no batches, no expiry.
The engine's threads are set by PATHWAY_THREADS; each number asked for is a variant. Each repeat is a process of its own.
Out of scope: reading Parquet and building the graph are not in the seconds; no payloads, no order of arrival.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time

from benchmarks.peers import child, common


def run(args: argparse.Namespace) -> None:
    import pandas as pd
    import pathway as pw

    sides = common.read(args.left, args.right, args.max_event_s)
    tables = [pw.debug.table_from_pandas(pd.DataFrame({"ts": ts, "key": key})) for ts, key in sides]
    left, right = tables
    near = pw.temporal.interval(-args.within_us, args.within_us)
    pairs = left.interval_join(right, left.ts, right.ts, near, left.key == right.key).select(key=pw.left.key)
    found: dict[str, int] = {}

    def keep(key: object, row: dict[str, int], time: int, is_addition: bool) -> None:
        if is_addition:
            found["count"] = row["count"]

    pw.io.subscribe(pairs.reduce(count=pw.reducers.count()), on_change=keep)
    start = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    seconds = time.perf_counter() - start
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most", file=sys.stderr)
    print(json.dumps({"count": found.get("count", 0), "seconds": seconds, "version": pw.__version__}))


def main() -> None:
    parser = common.arguments(__doc__)
    common.add_cut(parser)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of the engine, each a variant")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run(args)
        return
    left, right = common.read(args.left, args.right, args.max_event_s)
    tuples, right_count = len(left[0]) + len(right[0]), common.expected(left, right, args.within_us)
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers.pathway_join",
        "--left",
        args.left,
        "--right",
        args.right,
        "--within-us",
        str(args.within_us),
    ]
    command += ["--child", *([] if args.max_event_s is None else ["--max-event-s", str(args.max_event_s)])]
    extent = "whole input" if args.max_event_s is None else f"first {args.max_event_s:g} s of event time"
    for threads in args.threads:
        environment = {"PATHWAY_THREADS": str(threads), "PATHWAY_PROCESSES": "1"}
        runs = []
        for _ in range(args.repeat):
            out = child.run(command, args.timeout_s, {**os.environ, **environment})
            runs.append(json.loads(out.splitlines()[-1]))
        text = f"{threads} thread(s), interval_join on static tables in memory, count only; {extent}; no Parquet in the seconds"
        count = common.same([r["count"] for r in runs])
        common.report("Pathway", runs[0]["version"], text, count, [r["seconds"] for r in runs], tuples, right_count)


if __name__ == "__main__":
    main()

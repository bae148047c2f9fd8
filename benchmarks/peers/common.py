"""What the peer scripts share: their arguments, cutting the input to its first seconds, the right answer for a cut, the report.

Every script is called with --left, --right, --within-us and --repeat and prints one JSON line per variant as its last lines
on stdout; the rest goes to stderr. The systems live in environments of their own, so nothing here needs more than NumPy and
PyArrow, and those only where columns are read.
Out of scope: running the systems, medians, tables; the caller has the answer for the whole input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Columns = tuple["np.ndarray", "np.ndarray"]


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--left", required=True, help="Parquet file with columns ts (microseconds, ascending) and key")
    parser.add_argument("--right", required=True, help="the same for the other side")
    parser.add_argument("--within-us", type=int, required=True, help="largest distance in time of a pair, in microseconds")
    parser.add_argument("--repeat", type=int, default=3, help="measured runs of each variant")
    parser.add_argument("--timeout-s", type=float, default=600, help="time limit of one child process")
    return parser


def add_cut(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-event-s", type=float, help="use only the first so many seconds of event time of both sides")


def read(left: str, right: str, max_event_s: float | None = None) -> tuple[Columns, Columns]:
    """(ts, key) of both sides; with a cut, the rows less than so many seconds after the earlier of the two first rows."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(path, columns=["ts", "key"]) for path in (left, right)]
    first, second = [(t["ts"].to_numpy(), t["key"].to_numpy()) for t in tables]
    if max_event_s is None:
        return first, second
    end = min(int(ts[0]) for ts, _ in (first, second) if len(ts)) + round(max_event_s * 1e6)
    return cut(first, end), cut(second, end)


def cut(side: Columns, end: int) -> Columns:
    rows = side[0].searchsorted(end, "left")
    return side[0][:rows], side[1][:rows]


def expected(left: Columns, right: Columns, within_us: int) -> int:
    """The number of pairs, by looking up both ends of every left row's window in the right side sorted by key and time."""
    import numpy as np

    keys, codes = np.unique(np.concatenate([left[1], right[1]]), return_inverse=True)
    times = np.concatenate([left[0], right[0]])
    if not len(times):
        return 0
    start = times.min() - within_us
    span = times.max() + within_us - start + 1  # places of one key, then of the next: no window reaches into another key
    if int(span) * len(keys) >= 1 << 63:
        raise SystemExit("too long a stretch of time for so many keys")
    rows = len(left[0])
    place = np.sort(codes[rows:] * span + times[rows:] - start)
    middle = codes[:rows] * span + times[:rows] - start
    high = np.searchsorted(place, middle + within_us, "right")
    return int((high - np.searchsorted(place, middle - within_us, "left")).sum())


def report(
    system: str, version: str, configuration: str, count: int, seconds: list[float], tuples: int, right_count: int | None = None
) -> None:
    """The JSON line; SystemExit when the count is known to be wrong."""
    line = {
        "system": system,
        "version": version,
        "configuration": configuration,
        "count": count,
        "expected": right_count,
        "seconds": seconds,
        "tuples": tuples,
    }
    print(json.dumps(line), flush=True)
    if right_count is not None and count != right_count:
        print(f"{system}: {count} pairs, expected {right_count}", file=sys.stderr)
        raise SystemExit(1)


def answer_queries(
    system: str, configuration: str, queries: Collection[str], run: Callable[[str, list[Any] | None], tuple[float, int]]
) -> None:
    """Answers "CHECK query rows" and "TIME query" on stdin with "RUN seconds count ..." or "FAILED reason", as
    `benchmarks.peers.nexmark` wants it. run: from a query's name and a list for its rows, or None, to seconds and rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    print(f"READY\t{system}\t{configuration}", flush=True)
    for line in sys.stdin:
        word, text, *path = line.rstrip("\n").split("\t")
        query = Path(text).stem
        kept: list[Any] | None = [] if word == "CHECK" else None
        try:
            if query not in queries:
                raise ValueError("it has no counterpart here")
            seconds, count = run(query, kept)
            if kept:
                columns = [pa.array(column) for column in zip(*kept, strict=True)]
                pq.write_table(pa.Table.from_arrays(columns, [str(at) for at in range(len(columns))]), f"{path[0]}.0.parquet")
            print(f"RUN\t{seconds}\t{count}\t{'counted' if kept is None else 'wrote'}", flush=True)
        except Exception as error:  # whatever an engine says, the next query may run
            print(error, file=sys.stderr, flush=True)
            print(f"FAILED\t{' '.join(str(error).split())}", flush=True)


def same(counts: list[int]) -> int:
    """The one count of all runs."""
    if len(set(counts)) != 1:
        raise SystemExit(f"the runs differ: {counts}")
    return counts[0]

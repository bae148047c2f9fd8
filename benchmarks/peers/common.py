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
from typing import TYPE_CHECKING

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


def same(counts: list[int]) -> int:
    """The one count of all runs."""
    if len(set(counts)) != 1:
        raise SystemExit(f"the runs differ: {counts}")
    return counts[0]

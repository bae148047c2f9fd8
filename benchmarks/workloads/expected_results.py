"""Expected results of a run over generated streams: count and digest by DuckDB, in slices of time.

What: `expected(workload, seed, bounds)`; `digest_of_files`, count and digest of a folder of results.
Why: long runs have billions of tuples; their answer must come from another engine, within the memory of one machine.
Stays out: comparing (`tests.tools.soak.run`, `benchmarks/safety.py`), drawing rows (`connectors.generator.bmodel`).

A slice has the left tuples of an interval and all right tuples that they can match, so every pair is in exactly one slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import SLOT_US, slot_count, slot_tuples
from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest

SLICE_TUPLES = 6_000_000  # of the left stream
_ROWS = 1 << 20
_QUERY = "SELECT l.id, r.id FROM l JOIN r ON l.key = r.key WHERE r.ts - l.ts BETWEEN {} AND {}"


class _Stream:
    """One generated stream, read forwards. Rows are (ts, key, id)."""

    def __init__(self, workload: WorkloadConfig, seed: int, stream: int) -> None:
        self._workload, self._seed, self._stream = workload, seed, stream
        self._slot = 0
        self._rows = 0
        self._kept = np.empty((3, 0), np.int64)

    def between(self, start_us: int, end_us: int) -> I64:
        """Rows with start_us <= ts < end_us; earlier rows are dropped."""
        parts = [self._kept[:, np.searchsorted(self._kept[0], start_us) :]]
        while self._slot < slot_count(self._workload) and self._slot * SLOT_US < end_us:
            ts, key = slot_tuples(self._workload, self._seed, self._stream, self._slot)
            ids = np.arange(self._rows, self._rows + len(ts))
            self._slot, self._rows = self._slot + 1, self._rows + len(ts)
            parts.append(np.stack([ts, key, ids]))
        self._kept = np.concatenate(parts, axis=1)
        first, last = np.searchsorted(self._kept[0], [start_us, end_us])
        return self._kept[:, first:last]


def slices(workload: WorkloadConfig, seed: int, bounds: Bounds, tuples: int = SLICE_TUPLES) -> Iterator[tuple[I64, I64]]:
    """Left rows and the right rows that they may match, about `tuples` left ones at a time."""
    left, right = (_Stream(workload, seed, stream) for stream in (LEFT, RIGHT))
    slots = max(1, int(tuples / workload.rate_per_s * 1e6) // SLOT_US)
    for start in range(0, workload.duration_us, slots * SLOT_US):
        end = start + slots * SLOT_US
        yield left.between(start, end), right.between(start + bounds.lower_us, end + bounds.upper_us)


def expected(workload: WorkloadConfig, seed: int, bounds: Bounds, tuples: int = SLICE_TUPLES) -> tuple[int, str]:
    """Count and digest of all pairs. UserError without DuckDB."""
    import pyarrow as pa

    try:
        import duckdb
    except ModuleNotFoundError:
        raise UserError("duckdb is missing, which computes the answer; pip install duckdb") from None
    count = digest = 0
    with duckdb.connect() as connection:
        for left, right in slices(workload, seed, bounds, tuples):
            for name, rows in (("l", left), ("r", right)):
                connection.register(name, pa.table({"ts": rows[0], "key": rows[1], "id": rows[2]}))
            pairs_found: Any = connection.sql(_QUERY.format(bounds.lower_us, bounds.upper_us))
            for batch in pairs_found.to_arrow_reader(_ROWS):
                pairs = [batch.column(i).to_numpy().astype(np.uint64) for i in (0, 1)]
                count, digest = count + len(pairs[0]), digest + pair_digest(pairs[0], pairs[1])
    return count, format_digest(digest)


def digest_of_files(folder: Path) -> tuple[int, str]:
    """Count and digest of the pairs in DIR/results, a row group at a time."""
    import pyarrow.parquet as pq

    count = digest = 0
    for path in sorted(folder.glob("part-*")):
        with pq.ParquetFile(path) as file:
            names = [name for name in ("left_id", "right_id") if name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS, columns=names):
                ids = [column.fill_null(int(MISSING_ID)).to_numpy().astype(np.uint64) for column in batch.columns]
                left, right = ids if len(ids) == 2 else (ids[0], np.full(len(batch), MISSING_ID, np.uint64))
                count, digest = count + len(left), digest + pair_digest(left, right)
    return count, format_digest(digest)

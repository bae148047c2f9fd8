"""Generator source: the paper's streams, without files.

What: `GeneratorSource`: the same rows as `generate` writes for the same workload and seed, all or in splits.
Why: the paper generates its streams at the master (section VI-A); a sweep needs no disk.
Stays out: the random rows (`connectors.generator.bmodel`).
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import SLOT_US, last_time_us, payload_bytes, slot_counts, slot_keys, slot_times
from swjoin.connectors.source import BATCH_ROWS, SPLIT_ROWS
from swjoin.core.batch import I64, PayloadRows, RowLayout, SourceBatch
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.row_codec import StreamCodec
from swjoin.core.splits import Split, range_ends

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.core.key_encoder import Dictionary


def payload_schema(width: int) -> pa.Schema:
    """The payload column of generated streams."""
    import pyarrow as pa

    return pa.schema([("payload", pa.binary(width))])


class GeneratorSource:
    """One generated stream; columns key (int64), ts (int64 microseconds from 0), payload (fixed-size binary).

    Rows are ascending in time, so a split is some slots, or a range of rows of one. The times of the slot read last are kept: a
    later range of the slot needs them, too.
    """

    why_whole: str | None = None

    def __init__(self, workload: WorkloadConfig, seed: int, stream: int, *, carry_payload: bool) -> None:
        import pyarrow as pa

        from swjoin.core.row_codec import RowCodec

        rows = RowCodec(payload_schema(workload.payload_bytes)) if carry_payload else None
        columns = [("key", pa.int64(), "key"), ("ts", pa.int64(), "ts")]
        if rows is not None:
            columns += [("payload", pa.binary(workload.payload_bytes), "row")] if workload.payload_bytes else []
        self.codec = StreamCodec(tuple(columns) if rows is not None else (), ("key",), rows)
        self._workload, self._seed, self._stream = workload, seed, stream
        self._counts = slot_counts(workload, seed, stream)
        self._starts: list[int] = [0, *np.cumsum(self._counts).tolist()]  # by slot: position of its first row; and their number
        self.rows_total: int | None = self._starts[-1]
        self._rows, self._end = 0, self._starts[-1]  # rows that are read next
        self._times: tuple[int, I64, int] | None = None  # slot, its times, the state of its keys

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    def read(self) -> SourceBatch | None:
        times, keys, n = [], [], 0
        while self._rows + n < self._end and n < BATCH_ROWS:
            slot = self._slot_of(self._rows + n)
            ts, state = self._times_of(slot)
            first = self._rows + n - self._starts[slot]
            end = min(len(ts), self._end - self._starts[slot])
            times.append(ts[first:end])
            keys.append(slot_keys(self._workload, slot, state, first, end))
            n += end - first
        if n == 0:
            return None
        ids = np.arange(self._rows, self._rows + n, dtype=np.uint64)
        self._rows += n
        rows = None
        if self.codec.rows is not None:
            width = self._workload.payload_bytes
            fixed = np.zeros((n, self.codec.rows.layout.fixed_bytes), np.uint8)
            fixed[:, fixed.shape[1] - width :] = payload_bytes(ids, self._seed, self._stream, width)
            rows = PayloadRows(fixed)
        return SourceBatch(np.concatenate(keys), np.concatenate(times), ids, None, None, rows)

    def ready(self, patience_s: float) -> bool:
        return True

    def seek(self, row: int) -> None:
        slot = bisect.bisect_left(self._starts, row)
        if slot == len(self._starts) or self._starts[slot] != row:
            raise RunFailed(f"generator: row {row} is not the first of any slot; another workload was read before")
        self._rows, self._end = row, self._starts[-1]

    def _slot_of(self, row: int) -> int:
        return bisect.bisect_right(self._starts, row) - 1

    def _times_of(self, slot: int) -> tuple[I64, int]:
        if self._times is None or self._times[0] != slot:
            self._times = (slot, *slot_times(self._workload, self._seed, self._stream, slot))
        return self._times[1:]

    def splits(self, reach_us: int) -> list[Split]:
        """As of `SplitSource`: whole slots, as many as `SPLIT_ROWS` rows and the reach allow; with a shorter reach ranges
        of a slot."""
        most = max(1, reach_us // SLOT_US)
        found: list[Split] = []
        first, before_us = 0, BEGIN_OF_TIME_US
        while first < len(self._counts):
            end = first + 1
            while end < len(self._counts) and end - first < most and self._starts[end + 1] - self._starts[first] <= SPLIT_ROWS:
                end += 1
            row, rows = self._starts[first], self._starts[end] - self._starts[first]
            low_us, high_us = first * SLOT_US, min(end * SLOT_US, self._workload.duration_us) - 1
            start = 0
            for stop in range_ends(rows, high_us - low_us, reach_us):
                if start < stop:
                    found.append(Split(row + start, stop - start, low_us, high_us, before_us))
                    before_us = low_us
                start = stop
            first = end
        return found

    def open_split(self, split: Split, skip: int = 0) -> int:
        """As of `SplitSource`. RunFailed when there are fewer rows."""
        total = self._starts[-1]
        self._rows = split.row + skip
        self._end = total if split.rows < 0 else split.row + split.rows
        if not self._rows <= self._end <= total:
            raise RunFailed(f"generator: rows up to {self._end} are asked for, there are {total}; the workload is another one")
        return BEGIN_OF_TIME_US if self._rows == 0 else self._time_us(self._rows - 1)

    def _time_us(self, row: int) -> int:
        slot = self._slot_of(row)
        if row + 1 == self._starts[slot + 1] and not (self._times is not None and self._times[0] == slot):
            return last_time_us(self._workload, self._seed, self._stream, slot)  # without the order of all its times
        return int(self._times_of(slot)[0][row - self._starts[slot]])

    def origin_us(self) -> int | None:
        return self._time_us(0) if self._starts[-1] else None

    @property
    def dictionary(self) -> Dictionary | None:
        return None

    def locate(self, row_id: int) -> str:
        return f"generator, row {row_id}"

    def close(self) -> None:
        """Nothing is open."""

"""Sequence numbers for count windows (docs/semantics.md, "Count windows").

What: the two words after the payload of every tuple of a count window, and functions that write and read them.
Why: two numbers define a tuple's window: its sequence number in its stream (1, 2, ...), and the number of preceding tuples of
the other stream. They travel like payload, so buffers, messages, logs and moves of partition-groups need no change.
Stays out: assigning sequence numbers (`cluster.gateway.arrival_sequence`), matching by them (`state.join_kernel`).

Both words are int64. The first is the number of preceding tuples of the other stream. The second is the sequence number while
the tuple is in time order at the master; from its delivery on it is the time, and `ts` is the sequence number.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from swjoin.core.batch import I64, Pairs, PayloadRows, RowLayout, TupleBatch

STAMP_BYTES = 16
TIME_OFFSET = 8  # of a delivered tuple's time, relative to the end of the payload
Layouts = tuple[RowLayout | None, RowLayout | None]


def stamped_layout(layout: RowLayout | None) -> RowLayout:
    """Layout of payload rows with both words."""
    return RowLayout(STAMP_BYTES) if layout is None else RowLayout(layout.fixed_bytes + STAMP_BYTES, layout.has_var)


def wire_layouts(layouts: Layouts, *, count_windows: bool) -> Layouts:
    """Layouts of rows as they travel. counted: whether the join has count windows."""
    return (stamped_layout(layouts[0]), stamped_layout(layouts[1])) if count_windows else layouts


def _stamped(batch: TupleBatch, first: I64, second: I64, payload_bytes: int) -> PayloadRows:
    """Rows with both words after their first `payload_bytes` bytes."""
    fixed = np.empty((len(batch), payload_bytes + STAMP_BYTES), np.uint8)
    if batch.rows is not None:
        fixed[:, :payload_bytes] = batch.rows.fixed[:, :payload_bytes]
    words = np.empty((len(batch), 2), np.int64)
    words[:, 0], words[:, 1] = first, second
    fixed[:, payload_bytes:] = words.view(np.uint8)
    return PayloadRows(fixed) if batch.rows is None else PayloadRows(fixed, batch.rows.var_offsets, batch.rows.var)


def _words(rows: PayloadRows) -> I64:
    """int64 (n, 2)."""
    words: I64 = np.ascontiguousarray(rows.fixed[:, rows.fixed.shape[1] - STAMP_BYTES :]).view(np.int64)
    return words


def with_sequence(batch: TupleBatch, numbers: I64, preceding: I64) -> TupleBatch:
    """Tuples in time order with their sequence numbers. preceding: number of preceding tuples of the other stream."""
    payload_bytes = 0 if batch.rows is None else batch.rows.fixed.shape[1]
    return dataclasses.replace(batch, rows=_stamped(batch, preceding, numbers, payload_bytes))


def without_sequence(batch: TupleBatch) -> TupleBatch:
    """Tuples without a sequence number, which are never matched, in the layout of delivered tuples."""
    return with_sequence(batch, batch.ts, np.zeros(len(batch), np.int64))


def sequence_numbers_of(batch: TupleBatch) -> I64:
    """Sequence numbers of tuples in time order: int64 (n,)."""
    assert batch.rows is not None, "tuples without sequence numbers"
    return _words(batch.rows)[:, 1]


def sequence_as_time(batch: TupleBatch) -> TupleBatch:
    """The tuples for delivery: `ts` is the sequence number, the time follows the payload."""
    assert batch.rows is not None, "tuples without sequence numbers"
    words = _words(batch.rows)
    rows = _stamped(batch, words[:, 0], batch.ts, batch.rows.fixed.shape[1] - STAMP_BYTES)
    return dataclasses.replace(batch, ts=words[:, 1].copy(), rows=rows)


def preceding_counts(batch: TupleBatch) -> I64:
    """Numbers of preceding tuples of the other stream: int64 (n,)."""
    if batch.rows is None:
        return np.zeros(len(batch), np.int64)  # no tuples, or a kernel that is only loaded
    return _words(batch.rows)[:, 0].copy()


def with_times(pairs: Pairs) -> Pairs:
    """Pairs of delivered tuples with payload, with times instead of sequence numbers, and without the two words."""
    left, right = pairs.left_rows, pairs.right_rows
    return dataclasses.replace(
        pairs,
        left_ts=pairs.left_ts if left is None else _words(left)[:, 1].copy(),
        right_ts=pairs.right_ts if right is None else _words(right)[:, 1].copy(),
        left_rows=None if left is None else _payload_of(left),
        right_rows=None if right is None else _payload_of(right),
    )


def _payload_of(rows: PayloadRows) -> PayloadRows | None:
    """The user's columns; None when there are none."""
    payload_bytes = rows.fixed.shape[1] - STAMP_BYTES
    if payload_bytes == 0 and rows.var_offsets is None:
        return None
    return PayloadRows(np.ascontiguousarray(rows.fixed[:, :payload_bytes]), rows.var_offsets, rows.var)

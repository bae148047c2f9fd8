"""Messages as bytes: one header and contiguous columns, little-endian, without pickle.

What: `pack_...` and `unpack_...` of deliveries, results, chunks of partition-groups, reports and acknowledgements, over a small
frame format.
Why: a message is machine-independent, is sent with one buffer call, and is read as views without a copy. Sizes in headers are
checked before anything is believed.
Stays out: sending (`runtime.mpi`).

Frame: int64 header [magic, version, kind, integers, arrays, total bytes], the integers, one int64 quadruple per array
[dtype code, dimensions or -1 for an absent array, rows, columns], then each array's bytes, aligned to 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import U8, Pairs, PayloadRows, TupleBatch
from swjoin.deliveries import (
    Delivery,
    Directory,
    EpochIndex,
    GroupId,
    GroupLoads,
    GroupResults,
    MoveEnd,
    QueryId,
    ResultChunk,
    Route,
    SlaveId,
    StateChunk,
)
from swjoin.errors import RunFailed
from swjoin.messages import Report

MAGIC = 0x6E696F6A7773  # "swjoin"
VERSION = 2
DELIVERY, RESULTS, STATE, REPORT, MOVE_END, TUPLES = 1, 2, 3, 4, 5, 6
_HEADER = 6
_ALIGN = 64
_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype("<i8"), np.dtype("<u8"), np.dtype("<f8"), np.dtype("u1"))
_CODES = {d: i for i, d in enumerate(_DTYPES)}

Array = NDArray[Any]


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def pack(kind: int, integers: Sequence[int], arrays: Sequence[Array | None]) -> U8:
    """One contiguous uint8 buffer holding the integers and arrays (one- or two-dimensional, or None)."""
    head = np.zeros(_HEADER + len(integers) + 4 * len(arrays), "<i8")
    offset = _aligned(head.nbytes)
    places: list[tuple[int, Array]] = []
    for i, array in enumerate(arrays):
        at = _HEADER + len(integers) + 4 * i
        if array is None:
            head[at : at + 4] = (0, -1, 0, 0)
            continue
        head[at : at + 4] = (_CODES[array.dtype], array.ndim, array.shape[0], array.shape[1] if array.ndim == 2 else 1)
        places.append((offset, array))
        offset += _aligned(array.nbytes)
    head[:_HEADER] = (MAGIC, VERSION, kind, len(integers), len(arrays), offset)
    head[_HEADER : _HEADER + len(integers)] = integers
    buffer = np.empty(offset, np.uint8)
    buffer[: head.nbytes] = head.view(np.uint8)
    for start, array in places:
        if array.nbytes:
            buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return buffer


def unpack(buffer: U8, kind: int) -> tuple[list[int], list[Array | None]]:
    """The integers and arrays of a frame; arrays are views into `buffer`. RunFailed when the frame is not whole."""

    def refuse(what: str) -> RunFailed:
        return RunFailed(f"corrupt message of {buffer.nbytes} bytes: {what}")

    if buffer.nbytes < _HEADER * 8:
        raise refuse("shorter than its header")
    head = buffer[: _HEADER * 8].view("<i8").tolist()
    if head[0] != MAGIC or head[1] != VERSION or head[2] != kind:
        raise refuse(f"header {head[:3]} instead of {[MAGIC, VERSION, kind]}")
    integer_count, array_count = head[3], head[4]
    if not (0 <= integer_count <= 64 and 0 <= array_count <= 64) or head[5] != buffer.nbytes:
        raise refuse(f"header claims {integer_count} integers, {array_count} arrays, {head[5]} bytes")
    words = integer_count + 4 * array_count
    if (_HEADER + words) * 8 > buffer.nbytes:
        raise refuse("its tables run past the end")
    body = buffer[_HEADER * 8 : (_HEADER + words) * 8].view("<i8").tolist()
    offset = _aligned((_HEADER + words) * 8)
    arrays: list[Array | None] = []
    for i in range(array_count):
        code, dimensions, rows, columns = body[integer_count + 4 * i : integer_count + 4 * i + 4]
        if dimensions == -1:
            arrays.append(None)
            continue
        if not 0 <= code < len(_DTYPES) or dimensions not in (1, 2) or rows < 0 or columns < 0:
            raise refuse(f"array {i} has dtype code {code}, {dimensions} dimensions, shape ({rows}, {columns})")
        size = _DTYPES[code].itemsize * rows * columns
        if offset + size > buffer.nbytes:
            raise refuse(f"array {i} runs past the end")
        view = buffer[offset : offset + size].view(_DTYPES[code])
        arrays.append(view.reshape(rows, columns) if dimensions == 2 else view)
        offset += _aligned(size)
    return body[:integer_count], arrays


def _rows_out(rows: PayloadRows | None) -> list[Array | None]:
    return [None, None, None] if rows is None else [rows.fixed, rows.var_offsets, rows.var]


def _rows_in(arrays: Sequence[Any]) -> PayloadRows | None:
    fixed, offsets, var = arrays
    if fixed is None:
        return None
    if (offsets is None) != (var is None) or (
        offsets is not None and (len(offsets) != len(fixed) + 1 or offsets[-1] != len(var))
    ):
        raise RunFailed(f"corrupt message: payload of {len(fixed)} rows does not fit its offsets")
    return PayloadRows(fixed, offsets, var)


def _tuples_out(batch: TupleBatch) -> list[Array | None]:
    return [batch.key, batch.ts, batch.id, batch.arrival_us, *_rows_out(batch.rows)]


def _same_length(columns: Sequence[Any], count: int, what: str) -> None:
    if any(c is None or len(c) != count for c in columns):
        raise RunFailed(f"corrupt message: {what}: columns of unequal length")


def _tuples_in(arrays: Sequence[Any], count: int) -> TupleBatch:
    rows = _rows_in(arrays[4:7])
    _same_length([*arrays[:4], *([] if rows is None else [rows])], count, "tuples")
    return TupleBatch(arrays[0], arrays[1], arrays[2], arrays[3], rows)


def pack_delivery(d: Delivery) -> U8:
    integers = [d.query, d.slave, d.epoch, d.left_time_us, d.right_time_us, int(d.last), int(d.left_route), int(d.right_route)]
    integers += [d.served, int(d.rests), d.generation, int(d.checkpoint)]
    columns = [d.groups, d.left_counts, d.right_counts, *_tuples_out(d.left), *_tuples_out(d.right), d.moves_out, d.moves_in]
    return pack(DELIVERY, integers, columns)


def unpack_delivery(buffer: U8) -> Delivery:
    """RunFailed when the bytes are not a whole delivery."""
    i, a = unpack(buffer, DELIVERY)
    if len(i) != 12 or len(a) != 19 or a[0] is None or a[1] is None or a[2] is None or a[17] is None or a[18] is None:
        raise RunFailed("corrupt message: not a delivery")
    _same_length(a[1:3], len(a[0]), "partition-groups")
    if a[17].shape[1:] != (3,) or a[18].shape[1:] != (3,):
        raise RunFailed(f"corrupt message: moves of shape {a[17].shape} and {a[18].shape}")
    return Delivery(
        QueryId(i[0]),
        SlaveId(i[1]),
        EpochIndex(i[2]),
        i[3],
        i[4],
        a[0],
        a[1],
        a[2],
        _tuples_in(a[3:10], int(a[1].sum())),
        _tuples_in(a[10:17], int(a[2].sum())),
        bool(i[5]),
        Route(i[6]),
        Route(i[7]),
        i[8],
        a[17],
        a[18],
        bool(i[9]),
        i[10],
        bool(i[11]),
    )


def pack_state(c: StateChunk) -> U8:
    integers = [c.query, c.move, c.group, c.supplier, c.consumer, c.index, int(c.last), *c.times_us, c.stream, int(c.pending)]
    t, d = c.tuples, c.directory
    arrival = t.arrival_us if c.pending else None  # a window tuple's arrival means nothing any more
    directory: list[Array | None] = [None, None] if d is None else [d.patterns, d.depths]
    columns = [c.minis, c.counts, t.key, t.ts, t.id, arrival, *_rows_out(t.rows), *directory]
    return pack(STATE, [*integers, -1 if d is None else d.depth], columns)


def unpack_state(buffer: U8) -> StateChunk:
    """RunFailed when the bytes are not a whole chunk of a partition-group."""
    i, a = unpack(buffer, STATE)
    if len(i) != 12 or len(a) != 11 or any(x is None for x in a[:5]) or (i[11] >= 0) != (a[9] is not None):
        raise RunFailed("corrupt message: not a chunk of a partition-group")
    key, pending = a[2], bool(i[10])
    assert key is not None
    arrival = a[5] if pending else np.zeros(len(key), np.int64)
    tuples = _tuples_in([*a[2:5], arrival, *a[6:9]], len(key))
    _same_length([a[1]], len(a[0]), "mini-partition-groups")  # type: ignore[arg-type]
    directory = None
    if a[9] is not None:
        _same_length([a[10]], len(a[9]), "directory")
        directory = Directory(i[11], a[9], a[10])  # type: ignore[arg-type]
    return StateChunk(
        QueryId(i[0]),
        i[1],
        GroupId(i[2]),
        SlaveId(i[3]),
        SlaveId(i[4]),
        i[5],
        bool(i[6]),
        (i[7], i[8]),
        i[9],
        pending,
        a[0],  # type: ignore[arg-type]
        a[1],  # type: ignore[arg-type]
        tuples,
        directory,
    )


def pack_tuples(batch: TupleBatch) -> U8:
    return pack(TUPLES, [], _tuples_out(batch))


def unpack_tuples(buffer: U8) -> TupleBatch:
    """RunFailed when the bytes are not a whole batch of tuples."""
    i, a = unpack(buffer, TUPLES)
    if i or len(a) != 7 or a[0] is None:
        raise RunFailed("corrupt message: not a batch of tuples")
    return _tuples_in(a, len(a[0]))


def pack_report(report: Report) -> U8:
    loads = report.loads
    ratio = np.array([report.occupancy_ratio])
    if loads is None:
        return pack(REPORT, [-1], [ratio, None, None, None])
    return pack(REPORT, [loads.busy_us], [ratio, loads.groups, loads.cost_ns, loads.state_bytes])


def unpack_report(buffer: U8) -> Report:
    """RunFailed when the bytes are not a whole report."""
    i, a = unpack(buffer, REPORT)
    if len(i) != 1 or len(a) != 4 or a[0] is None:
        raise RunFailed("corrupt message: not a report")
    ratio = float(a[0][0])
    if a[1] is None:
        return Report(ratio)
    _same_length(a[2:4], len(a[1]), "partition-groups")
    return Report(ratio, GroupLoads(i[0], a[1], a[2], a[3]))  # type: ignore[arg-type]


def pack_move_end(end: MoveEnd) -> U8:
    integers = [end.move, end.group, end.slave, int(end.installed), end.tuples, end.state_bytes, end.begun_us, end.ended_us]
    return pack(MOVE_END, integers, [])


def unpack_move_end(buffer: U8) -> MoveEnd:
    """RunFailed when the bytes are not a whole acknowledgement."""
    i, _ = unpack(buffer, MOVE_END)
    if len(i) != 8:
        raise RunFailed("corrupt message: not an acknowledgement")
    return MoveEnd(i[0], GroupId(i[1]), SlaveId(i[2]), bool(i[3]), *i[4:8])


def pack_results(chunk: ResultChunk) -> U8:
    integers = [chunk.query, chunk.slave, chunk.epoch, int(chunk.final), int(chunk.last), chunk.served, int(chunk.history)]
    integers += [chunk.generation, int(chunk.checkpoint)]
    p, r = chunk.pairs, chunk.results
    pairs: list[Array | None] = [None] * 11
    if p is not None:
        pairs = [p.key, p.left_ts, p.right_ts, p.left_id, p.right_id, *_rows_out(p.left_rows), *_rows_out(p.right_rows)]
    results: list[Array | None] = [None] * 3 if r is None else [r.groups, r.counts, r.digests]
    return pack(RESULTS, integers, [*pairs, *results, chunk.metrics, chunk.delay_histogram])


def unpack_results(buffer: U8) -> ResultChunk:
    """RunFailed when the bytes are not a whole result chunk."""
    i, a = unpack(buffer, RESULTS)
    if len(i) != 9 or len(a) != 16:
        raise RunFailed("corrupt message: not a result chunk")
    pairs = None
    if a[0] is not None:
        left_rows, right_rows = _rows_in(a[5:8]), _rows_in(a[8:11])
        _same_length([*a[:5], *(r for r in (left_rows, right_rows) if r is not None)], len(a[0]), "pairs")
        pairs = Pairs(a[0], a[1], a[2], a[3], a[4], left_rows, right_rows)  # type: ignore[arg-type]
    results = None
    if a[11] is not None and a[12] is not None and a[13] is not None:
        results = GroupResults(a[11], a[12], a[13])
    labels = (QueryId(i[0]), SlaveId(i[1]), EpochIndex(i[2]), bool(i[3]), bool(i[4]))
    return ResultChunk(*labels, pairs, results, a[14], a[15], i[5], bool(i[6]), i[7], bool(i[8]))

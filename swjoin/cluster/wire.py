"""Messages as bytes: one header and contiguous columns, little-endian, without pickle.

What: `FORMATS`, from the type of a message to its tag, `pack_...` and `unpack_...`, over a small frame format.
Why: a message is machine-independent, is sent with one buffer call, and is read as views without a copy. Sizes, types and
all indexes that kernels use are checked first, because kernels check nothing.
Stays out: sending (`runtime.mpi.transport`).

Frame: int64 header [magic, version, kind, integers, arrays, total bytes, sending role, receiving role], the integers, one int64
quadruple per array [dtype code, dimensions or -1 for an absent array, rows, columns], then each array's bytes, aligned to 64.
Data are arrays; a control message is one array of JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.messages import (
    CheckpointDurable,
    EpochClosed,
    EpochDue,
    EpochPlan,
    EpochWanted,
    EventNoted,
    Granted,
    GroupMoved,
    LoadReport,
    MeasuringStarted,
    PartSaved,
    PrefillJoined,
    Report,
    SplitDealt,
    SplitWanted,
    StateRequest,
    StopReading,
)
from swjoin.cluster.role import RoleId
from swjoin.core.batch import BOTH, LEFT, RIGHT, U8, Pairs, PayloadRows, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import (
    TRAFFIC_COLUMNS,
    Delivery,
    Directory,
    GroupLoads,
    GroupResults,
    MoveEnd,
    ResultChunk,
    Route,
    StateChunk,
)
from swjoin.core.errors import RunFailed
from swjoin.core.ids import (
    EpochIndex,
    GroupId,
    QueryId,
    SlaveId,
)
from swjoin.core.path_patterns import Shape, first_mismatch, is_amount, is_count, is_number
from swjoin.state.extendible_hash import MAX_DEPTH

MAGIC = 0x6E696F6A7773  # "swjoin"
VERSION = 11
DELIVERY, RESULTS, STATE, LOADS, TUPLES = range(1, 6)
_CONTROL = 16  # the kinds from here on hold JSON
_HEADER = 8
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
    head[:_HEADER] = (MAGIC, VERSION, kind, len(integers), len(arrays), offset, 0, 0)
    head[_HEADER : _HEADER + len(integers)] = integers
    buffer = np.empty(offset, np.uint8)
    buffer[: head.nbytes] = head.view(np.uint8)
    buffer[head.nbytes : _aligned(head.nbytes)] = 0  # the same message is the same bytes, and no stale memory leaves
    for start, array in places:
        if array.nbytes:
            buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            buffer[start + array.nbytes : start + _aligned(array.nbytes)] = 0
    return buffer


def address(frame: U8, sender: RoleId, to: RoleId) -> None:
    """Write the roles between which a frame travels into its header."""
    frame[6 * 8 : 8 * 8].view("<i8")[:] = sender, to


def addresses(frame: U8) -> tuple[RoleId, RoleId]:
    """The sending and the receiving role of a frame that has been unpacked."""
    sender, to = frame[6 * 8 : 8 * 8].view("<i8").tolist()
    return RoleId(sender), RoleId(to)


# ---------------------------------------------------------------- the layout of each kind

_I, _U, _F, _B = range(4)  # codes of _DTYPES


@dataclass(frozen=True)
class _Column:
    """An array of a message: its dtype code, its dimensions, whether it may be absent."""

    name: str
    code: int
    dimensions: int = 1
    optional: bool = False


def _rows_of(stream: str) -> tuple[_Column, ...]:
    names = (("payload", _B, 2), ("offsets of tails", _I, 1), ("tails", _B, 1))
    return tuple(_Column(f"{stream}{name}", code, dimensions, True) for name, code, dimensions in names)


def _tuples_of(stream: str, *, arrivals: bool = True) -> tuple[_Column, ...]:
    arrival = _Column(f"{stream}arrivals", _I, 1, not arrivals)
    always = _Column(f"{stream}keys", _I), _Column(f"{stream}times", _I), _Column(f"{stream}ids", _U), arrival
    return *always, *_rows_of(stream), _Column(f"{stream}columns", _B, 1, True)


def _absent(columns: tuple[_Column, ...]) -> tuple[_Column, ...]:
    """The same columns, which may be absent."""
    return tuple(replace(column, optional=True) for column in columns)


def _optional(code: int, *names: str) -> tuple[_Column, ...]:
    return tuple(_Column(name, code, 1, True) for name in names)


_TUPLE_COLUMNS = 8  # of `_tuples_of`


@dataclass(frozen=True)
class _Layout:
    """The content of a kind of message. flags: indexes of integers that are 0 or 1."""

    kind: int
    name: str
    integers: int
    flags: tuple[int, ...]
    columns: tuple[_Column, ...]


_DELIVERY = _Layout(
    DELIVERY,
    "a delivery",
    15,
    (5, 9, 11, 14),
    (
        *(_Column("partition-groups", _I), _Column("left counts", _I), _Column("right counts", _I)),
        *(*_tuples_of("left "), *_tuples_of("right ")),
        *(_Column("moves out", _I, 2), _Column("moves in", _I, 2)),
        *(*_absent(_tuples_of("left null-key ")), *_absent(_tuples_of("right null-key "))),
    ),
)
_STATE = _Layout(
    STATE,
    "a chunk of a partition-group",
    12,
    (6, 9, 10),
    (
        *(_Column("mini-partition-groups", _I), _Column("counts", _I), *_tuples_of("", arrivals=False)),
        *(*_optional(_I, "directory patterns", "directory depths"), *_optional(_B, "flags")),
    ),
)
_RESULTS = _Layout(
    RESULTS,
    "a result chunk",
    11,
    (3, 4, 6, 8, 10),
    (
        *(*_optional(_I, "keys", "left times", "right times"), *_optional(_U, "left ids", "right ids")),
        *(*_rows_of("left "), *_rows_of("right "), *_optional(_I, "partition-groups", "counts"), *_optional(_U, "digests")),
        *(*_optional(_F, "metrics"), *_optional(_I, "delays"), _Column("edges", _I, 2, True), _Column("sent", _U, 2, True)),
        *(*_optional(_U, "row ids"), *_optional(_I, "row times"), *_optional(_B, "row columns"), *_optional(_I, "ranks")),
    ),
)
_TUPLES = _Layout(TUPLES, "a batch of tuples", 0, (), _tuples_of(""))
_LOADS = _Layout(
    LOADS,
    "a load report",
    1,
    (),
    (
        *(_Column("occupancy", _F), *_optional(_I, "partition-groups", "costs", "state bytes")),
        _Column("traffic", _I, 2, True),
    ),
)


class _Frame:
    """A decoded frame: `integers`, and `arrays` as views into the buffer. RunFailed when it contradicts `layout`."""

    def __init__(self, buffer: U8, layout: _Layout) -> None:
        self._nbytes = buffer.nbytes
        self._layout = layout
        if buffer.nbytes < _HEADER * 8:
            raise self.refuse("shorter than its header")
        head = buffer[: _HEADER * 8].view("<i8").tolist()
        if head[:3] != [MAGIC, VERSION, layout.kind]:
            raise self.refuse(f"header {head[:3]} instead of {[MAGIC, VERSION, layout.kind]}")
        counts = [layout.integers, len(layout.columns)]
        if head[3:5] != counts or head[5] != buffer.nbytes:
            raise self.refuse(f"header claims {head[3]} integers, {head[4]} arrays, {head[5]} bytes; it needs {counts}")
        words = layout.integers + 4 * len(layout.columns)
        if (_HEADER + words) * 8 > buffer.nbytes:
            raise self.refuse("its tables run past the end")
        body = buffer[_HEADER * 8 : (_HEADER + words) * 8].view("<i8").tolist()
        self.integers: list[int] = body[: layout.integers]
        if any(self.integers[i] not in (0, 1) for i in layout.flags):
            raise self.refuse(f"flags that are neither 0 nor 1 among {self.integers}")
        self.arrays: list[Any] = []
        offset = _aligned((_HEADER + words) * 8)
        for i, column in enumerate(layout.columns):
            view, offset = self._array(buffer, column, body[layout.integers + 4 * i :][:4], offset)
            self.arrays.append(view)
        if offset != buffer.nbytes:
            raise self.refuse(f"{buffer.nbytes - offset} bytes follow its last array")

    def refuse(self, what: str) -> RunFailed:
        return RunFailed(f"corrupt message of {self._nbytes} bytes, {self._layout.name}: {what}")

    def _array(self, buffer: U8, column: _Column, entry: list[int], offset: int) -> tuple[Array | None, int]:
        code, dimensions, rows, columns = entry
        if dimensions == -1 and column.optional and not (code or rows or columns):
            return None, offset
        most = self._nbytes  # rows of no bytes each are rows, too
        fits = 0 <= rows <= most and (0 <= columns <= most if dimensions == 2 else columns == 1)
        if (code, dimensions) != (column.code, column.dimensions) or not fits:
            raise self.refuse(f"{column.name}: dtype code {code}, {dimensions} dimensions, shape ({rows}, {columns})")
        size = _DTYPES[code].itemsize * rows * columns
        if offset + size > buffer.nbytes:
            raise self.refuse(f"{column.name}: {size} bytes from byte {offset} run past the end")
        view = buffer[offset : offset + size].view(_DTYPES[code])
        return (view.reshape(rows, columns) if dimensions == 2 else view), offset + _aligned(size)

    def same_length(self, first: int, *others: int) -> int:
        """Length of these columns; RunFailed if they differ, or only some are present."""
        wanted = None if self.arrays[first] is None else len(self.arrays[first])
        for i in others:
            found = None if self.arrays[i] is None else len(self.arrays[i])
            if found != wanted:
                names = [self._layout.columns[c].name for c in (first, i)]
                raise self.refuse(f"{names[0]} and {names[1]} are of unequal length: {wanted} and {found}")
        return wanted or 0

    def rows(self, first: int, count: int) -> PayloadRows | None:
        """Payload rows from columns first, first + 1, first + 2: of so many tuples, or none."""
        fixed, offsets, tails = self.arrays[first : first + 3]
        name = self._layout.columns[first].name
        if (offsets is None) != (tails is None) or (fixed is None and offsets is not None):
            raise self.refuse(f"{name}: offsets without tails, or tails without offsets")
        if fixed is None:
            return None
        if len(fixed) != count:
            raise self.refuse(f"{name}: {len(fixed)} rows for {count} tuples")
        if offsets is not None:
            whole = len(offsets) == count + 1 and offsets[0] == 0 and offsets[-1] == len(tails)
            if not whole or (offsets[1:] < offsets[:-1]).any():
                raise self.refuse(f"{name}: offsets of {count} rows do not fit {len(tails)} bytes of tails")
        return PayloadRows(fixed, offsets, tails)

    def tuples(self, first: int, arrivals: Array | None = None) -> TupleBatch:
        """A batch from its columns in the message. arrivals: instead of the fourth."""
        count = self.same_length(first, first + 1, first + 2, *([] if arrivals is not None else [first + 3]))
        key, ts, ids, arrival = self.arrays[first : first + 4]
        content = self.arrays[first + 7]
        columns = None if content is None else Columns.from_bytes(content)
        if columns is not None and len(columns) != count:
            raise self.refuse(f"{self._layout.columns[first + 7].name}: {len(columns)} rows for {count} tuples")
        return TupleBatch(key, ts, ids, arrival if arrivals is None else arrivals, self.rows(first + 4, count), columns)

    def tuples_if_any(self, first: int) -> TupleBatch:
        """A batch from its columns in the message, all of which may be absent: no tuples then."""
        if self.arrays[first] is not None:
            return self.tuples(first)
        if any(array is not None for array in self.arrays[first : first + _TUPLE_COLUMNS]):
            raise self.refuse(f"{self._layout.columns[first].name} are missing, others are not")
        return TupleBatch.empty()

    def ascending(self, column: int) -> None:
        """RunFailed unless the indexes of this column are ascending and not negative."""
        found = self.arrays[column]
        if len(found) and (found[0] < 0 or (found[1:] <= found[:-1]).any()):
            raise self.refuse(f"{self._layout.columns[column].name} are not ascending")

    def sums_up(self, column: int, total: int) -> None:
        """RunFailed unless the counts of this column add up to `total`."""
        counts = self.arrays[column]
        if counts.min(initial=0) < 0 or counts.max(initial=0) > total or int(counts.sum()) != total:
            raise self.refuse(f"{self._layout.columns[column].name} do not add up to {total} tuples")


def _rows_out(rows: PayloadRows | None) -> list[Array | None]:
    return [None, None, None] if rows is None else [rows.fixed, rows.var_offsets, rows.var]


def _tuples_out(batch: TupleBatch) -> list[Array | None]:
    columns = None if batch.columns is None else batch.columns.to_bytes()
    return [batch.key, batch.ts, batch.id, batch.arrival_us, *_rows_out(batch.rows), columns]


def pack_delivery(d: Delivery) -> U8:
    integers = [d.edge, d.slave, d.epoch, d.left_time_us, d.right_time_us, int(d.last), *map(int, d.routes)]
    integers += [d.served, int(d.inactive), d.generation, int(d.checkpoint), *d.needed_us, int(d.final)]
    columns = [d.groups, d.left_counts, d.right_counts, *_tuples_out(d.left), *_tuples_out(d.right), d.moves_out, d.moves_in]
    for batch in d.null_keys:
        columns += _tuples_out(batch) if len(batch) else [None] * _TUPLE_COLUMNS
    return pack(DELIVERY, integers, columns)


def unpack_delivery(buffer: U8) -> Delivery:
    """RunFailed when the bytes are not a whole delivery."""
    frame = _Frame(buffer, _DELIVERY)
    i, a = frame.integers, frame.arrays
    frame.same_length(0, 1, 2)
    frame.ascending(0)
    at = [3 + _TUPLE_COLUMNS * n for n in range(3)]  # left tuples, right tuples, moves
    left, right = frame.tuples(at[0]), frame.tuples(at[1])
    moves_out, moves_in = a[at[2] : at[2] + 2]
    frame.sums_up(1, len(left))
    frame.sums_up(2, len(right))
    if moves_out.shape[1] != 3 or moves_in.shape[1] != 3:
        raise frame.refuse(f"moves of shape {moves_out.shape} and {moves_in.shape}")
    if not (1 <= i[6] <= 3 and 1 <= i[7] <= 3):
        raise frame.refuse(f"routes {i[6:8]}")
    labels = (i[0], SlaveId(i[1]), EpochIndex(i[2]), i[3], i[4])
    null_keys = frame.tuples_if_any(at[2] + 2), frame.tuples_if_any(at[2] + 2 + _TUPLE_COLUMNS)
    routes = Route(i[6]), Route(i[7])
    last, inactive, checkpoint, final = (bool(i[n]) for n in (5, 9, 11, 14))
    head = Delivery(*labels, a[0], a[1], a[2], left, right, last, routes, i[8], moves_out, moves_in, inactive)
    return replace(head, generation=i[10], checkpoint=checkpoint, null_keys=null_keys, needed_us=(i[12], i[13]), final=final)


def pack_state(c: StateChunk) -> U8:
    integers = [c.query, c.move, c.group, c.supplier, c.consumer, c.index, int(c.last), *c.times_us, c.stream, int(c.pending)]
    t, d = c.tuples, c.directory
    arrival = t.arrival_us if c.pending else None  # the arrival of a window tuple is not needed
    directory: list[Array | None] = [None, None] if d is None else [d.patterns, d.depths]
    tuples = [t.key, t.ts, t.id, arrival, *_tuples_out(t)[4:]]
    columns = [c.minis, c.counts, *tuples, *directory, c.flags]
    return pack(STATE, [*integers, -1 if d is None else d.depth], columns)


def unpack_state(buffer: U8) -> StateChunk:
    """RunFailed when the bytes are not a whole chunk of a partition-group."""
    frame = _Frame(buffer, _STATE)
    i, a = frame.integers, frame.arrays
    pending = bool(i[10])
    if pending != (a[5] is not None):
        raise frame.refuse("arrivals of window tuples, or none of others")
    tuples = frame.tuples(2, None if pending else np.zeros(len(a[2]), np.int64))
    frame.same_length(0, 1)
    frame.ascending(0)
    frame.sums_up(1, 0 if pending else len(tuples))
    directory = None
    if frame.same_length(10, 11) or a[10] is not None:
        directory = Directory(i[11], a[10], a[11])
        _check_directory(frame, directory)
        if len(a[0]) and a[0][-1] >= len(a[10]):
            raise frame.refuse(f"mini-partition-group {a[0][-1]} of {len(a[10])}")
    elif i[11] != -1:
        raise frame.refuse(f"a directory of depth {i[11]} that is not there")
    flags = a[12]
    if flags is not None and (pending or len(flags) != len(tuples) or flags.max(initial=0) > 3):
        raise frame.refuse(
            f"{len(flags)} flags of {len(tuples)} tuples, or others than 0 to 3, or of tuples that are not joined"
        )
    labels = (QueryId(i[0]), i[1], GroupId(i[2]), SlaveId(i[3]), SlaveId(i[4]), i[5], bool(i[6]), (i[7], i[8]), i[9])
    return StateChunk(*labels, pending, a[0], a[1], tuples, directory, flags)


def _check_directory(frame: _Frame, directory: Directory) -> None:
    """Each of the 2^depth entries must belong to exactly one mini-partition-group; nothing is allocated by a depth alone."""
    depth, patterns, depths = directory.depth, directory.patterns, directory.depths
    if not 0 <= depth <= MAX_DEPTH or depths.min(initial=0) < 0 or depths.max(initial=0) > depth:
        raise frame.refuse(f"a directory of depth {depth}, at most {MAX_DEPTH}")
    owners = np.zeros(1 << depth, np.int64)
    if not ((patterns >= 0) & (patterns < np.left_shift(1, depths))).all():
        raise frame.refuse("a directory with a pattern that is longer than its depth")
    for pattern, local in zip(patterns.tolist(), depths.tolist(), strict=True):
        owners[pattern :: 1 << local] += 1
    if (owners != 1).any():
        raise frame.refuse("a directory with entries that belong to none or to several mini-partition-groups")


def pack_tuples(batch: TupleBatch) -> U8:
    return pack(TUPLES, [], _tuples_out(batch))


def unpack_tuples(buffer: U8) -> TupleBatch:
    """RunFailed when the bytes are not a whole batch of tuples."""
    return _Frame(buffer, _TUPLES).tuples(0)


def pack_loads(report: LoadReport) -> U8:
    loads = report.loads
    ratio = np.array([report.occupancy_ratio])
    if loads is None:
        return pack(LOADS, [-1], [ratio, None, None, None, None])
    return pack(LOADS, [loads.busy_us], [ratio, loads.groups, loads.cost_ns, loads.state_bytes, loads.sent])


def unpack_loads(buffer: U8) -> LoadReport:
    """RunFailed when the bytes are not a whole report."""
    frame = _Frame(buffer, _LOADS)
    (busy_us,), a = frame.integers, frame.arrays
    ratio = float(a[0][0]) if len(a[0]) == 1 else -1.0
    if not _is_ratio(ratio):
        raise frame.refuse(f"an occupancy of {ratio}")
    frame.same_length(1, 2, 3)
    if a[1] is None:
        if busy_us != -1:
            raise frame.refuse("work of no partition-groups")
        return LoadReport(ratio)
    frame.ascending(1)
    if a[4] is None:
        return LoadReport(ratio, GroupLoads(busy_us, a[1], a[2], a[3]))
    if a[4].shape[1] != len(TRAFFIC_COLUMNS) or (a[4] < (0, -1, 0, 0, 0)).any():
        raise frame.refuse("traffic between unknown partition-groups, or negative counts")
    return LoadReport(ratio, GroupLoads(busy_us, a[1], a[2], a[3], a[4]))


def pack_results(chunk: ResultChunk) -> U8:
    integers = [chunk.query, chunk.slave, chunk.epoch, int(chunk.final), int(chunk.last), chunk.served, int(chunk.prefill)]
    p, q = (None, chunk.pairs) if isinstance(chunk.pairs, ResultRows) else (chunk.pairs, None)
    r = chunk.results
    integers += [chunk.generation, int(chunk.checkpoint), BOTH if p is None else p.side, int(p is not None and p.null_keys)]
    pairs: list[Array | None] = [None] * 11
    if p is not None:
        pairs = [p.key, p.left_ts, p.right_ts, p.left_id, p.right_id, *_rows_out(p.left_rows), *_rows_out(p.right_rows)]
    results: list[Array | None] = [None] * 3 if r is None else [r.groups, r.counts, r.digests]
    rows: list[Array | None] = [None] * 4
    if q is not None:
        rows = [q.id, q.ts, None if q.columns is None else q.columns.to_bytes(), q.ranks]
    return pack(RESULTS, integers, [*pairs, *results, chunk.metrics, chunk.delay_histogram, chunk.edges, chunk.sent, *rows])


def unpack_results(buffer: U8) -> ResultChunk:
    """RunFailed when the bytes are not a whole result chunk."""
    frame = _Frame(buffer, _RESULTS)
    i, a = frame.integers, frame.arrays
    count = frame.same_length(0, 1, 2, 3, 4)
    left_rows, right_rows = frame.rows(5, count), frame.rows(8, count)
    if a[0] is None and (left_rows is not None or right_rows is not None):
        raise frame.refuse("payload of no pairs")
    side, null_keys = i[9], bool(i[10])
    rows_of_others = (side == RIGHT and left_rows is not None) or (side == LEFT and right_rows is not None)
    of_nothing = a[0] is None and side != BOTH
    if side not in (LEFT, RIGHT, BOTH) or rows_of_others or of_nothing or (side == BOTH and null_keys):
        raise frame.refuse(f"rows of side {side}: none, or with payload of others, or pairs without keys")
    pairs: Pairs | ResultRows | None = None
    if a[0] is not None:
        pairs = Pairs(a[0], a[1], a[2], a[3], a[4], left_rows, right_rows, side, null_keys)
    frame.same_length(18, 19)
    if a[18] is None and (a[20] is not None or a[21] is not None):
        raise frame.refuse("columns or ranks of no rows")
    if a[21] is not None and (len(a[21]) != len(a[18]) or a[21].min(initial=0) < 0):
        raise frame.refuse(f"{len(a[21])} ranks for {len(a[18])} rows, or negative ones")
    if a[18] is not None:
        columns = None if a[20] is None else Columns.from_bytes(a[20])
        if pairs is not None:
            raise frame.refuse("pairs, and rows that are none")
        if columns is not None and len(columns) != len(a[18]):
            raise frame.refuse(f"{len(columns)} rows of columns for {len(a[18])} rows")
        pairs = ResultRows(a[18], a[19], columns, a[21])
    frame.same_length(11, 12, 13)
    results = None if a[11] is None else GroupResults(a[11], a[12], a[13])
    if results is not None and (results.groups.min(initial=0) < 0 or results.counts.min(initial=0) < 0):
        raise frame.refuse("negative partition-groups or counts")
    if a[16] is not None and (a[16].shape[1] != 4 or a[16].min(initial=0) < 0):
        raise frame.refuse("edges without rows and bytes")
    if a[17] is not None and a[17].shape[1] != 3:
        raise frame.refuse("neither counts nor digests of what was sent")
    labels = (QueryId(i[0]), SlaveId(i[1]), EpochIndex(i[2]), bool(i[3]), bool(i[4]))
    return ResultChunk(*labels, pairs, results, a[14], a[15], i[5], bool(i[6]), i[7], bool(i[8]), a[16], a[17])


# ---------------------------------------------------------------- control messages


def _is_ratio(value: Any) -> bool:
    return is_amount(value) and value >= 0


_NUMBERS: Shape = [is_count]
_HOT_KEY: Shape = (is_count, is_number, is_count, _NUMBERS, is_number, is_number)
_UNIT_TABLE: Shape = (is_count, _NUMBERS, _NUMBERS)
_UNIT_LOAD: Shape = (is_count, is_count, is_number, [is_number])
_KEY_LOAD: Shape = (is_count, is_count, is_number, is_number, is_count, [(is_number, is_count)])
_SHAPES: dict[type, tuple[str, Shape]] = {  # what a message is called, and the shape of its fields
    Report: ("a report", (_is_ratio,)),
    MoveEnd: ("an acknowledgement", (is_number, is_number, is_number, bool, *[is_number] * 4)),
    StateRequest: ("a request for state", (is_number,)),
    MeasuringStarted: ("a start of measuring", (is_number,)),
    PartSaved: ("a part of a checkpoint", (is_number, str, dict)),
    CheckpointDurable: ("a durable checkpoint", (is_number, bool)),
    EpochWanted: ("a wish for an epoch", (is_number, bool, bool, _NUMBERS, _NUMBERS, [is_number], bool)),
    EpochPlan: (
        "a plan of an epoch",
        (
            *(is_number, _NUMBERS, _NUMBERS, bool, bool, is_count, bool, bool),
            *([(is_count,) * 4], [is_number], [[_HOT_KEY]], [[_UNIT_TABLE]]),
        ),
    ),
    EpochDue: ("a notice of an epoch", (is_number,)),
    EventNoted: ("an event", ((is_number, is_number, str, *[is_number] * 6, is_amount, str, is_number),)),
    SplitWanted: ("a wish for a split", (is_count, is_count, [is_number])),
    SplitDealt: ("a split", (is_count, [is_number], is_count, is_number, is_number, bool)),
    EpochClosed: ("the end of an epoch", (is_number, (is_number, is_number), [_KEY_LOAD], [_UNIT_LOAD])),
    GroupMoved: ("the end of a move", (is_count, is_count, is_count)),
    PrefillJoined: ("the end of the prefill", ()),
    StopReading: ("a request to stop", ()),
    Granted: ("credit", (is_number, is_count)),
}
_CONTROL_LAYOUTS = {
    kind: _Layout(_CONTROL + i, name, 0, (), (_Column("content", _B),)) for i, (kind, (name, _)) in enumerate(_SHAPES.items())
}


def _pack_control(message: Any) -> U8:
    content = json.dumps([getattr(message, field.name) for field in fields(message)]).encode()
    return pack(_CONTROL_LAYOUTS[type(message)].kind, [], [np.frombuffer(content, np.uint8)])


def _unpack_control(kind: type, buffer: U8) -> Any:
    """RunFailed when the bytes are not a whole message of this type."""
    frame = _Frame(buffer, _CONTROL_LAYOUTS[kind])
    data = bytes(frame.arrays[0])
    try:
        values = json.loads(data)
        whole = json.dumps(values).encode() == data
    except (ValueError, TypeError, RecursionError):
        whole = False
    if not whole or first_mismatch(_SHAPES[kind][1], values) is not None:
        raise frame.refuse("content of another shape")
    return kind(*(_as_tuple(value) for value in values))


def unpack_control(buffer: U8) -> Any:
    """A control message of any type. RunFailed when the bytes are none."""
    number = int(buffer[16:24].view("<i8")[0]) - _CONTROL if buffer.nbytes >= _HEADER * 8 else -1
    kinds = list(_SHAPES)
    return _unpack_control(kinds[number] if 0 <= number < len(kinds) else kinds[0], buffer)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------- the table of messages


@dataclass(frozen=True)
class Format:
    """How messages of one type travel. tag: between two ranks; messages with equal tags are received in the order in which they
    were sent. waits: the sender may wait until the receiver takes it: only from gateway to slave, as ranks that wait for each
    other would wait for ever."""

    tag: int
    pack: Callable[[Any], U8]
    unpack: Callable[[U8], Any]
    waits: bool = False


CONTROL_TAG = 6
FORMATS: dict[type, Format] = {
    Delivery: Format(2, pack_delivery, unpack_delivery, waits=True),
    ResultChunk: Format(3, pack_results, unpack_results),
    StateChunk: Format(4, pack_state, unpack_state),
    LoadReport: Format(5, pack_loads, unpack_loads),
    **{kind: Format(CONTROL_TAG, _pack_control, functools.partial(_unpack_control, kind)) for kind in _SHAPES},
}

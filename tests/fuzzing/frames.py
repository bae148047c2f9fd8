"""Target `wire`: frames between ranks, spoilt as bytes and as whole frames with a table or a value that is not so.

What: `WireTarget`; `read_frame` and `write_frame`, the frame format once more, written from its description.
Why: a decoder that believes a size reads beyond its buffer; one that takes a column for another kind hands nonsense to kernels,
which check nothing.
Stays out: what roles do with a message that is whole (the simulator).

A frame that is accepted must come back: packed again it holds the same integers and the same arrays. And what kernels rely on
must hold (`_check_...`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from swjoin.cluster import wire
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
from swjoin.core.batch import Pairs, PayloadRows, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import (
    Delivery,
    Directory,
    GroupLoads,
    GroupResults,
    MoveEnd,
    ResultChunk,
    Route,
    StateChunk,
)
from swjoin.core.errors import RunFailed, SwjoinError
from swjoin.core.ids import (
    EpochIndex,
    GroupId,
    QueryId,
    SlaveId,
)
from swjoin.core.metric_columns import COLUMNS
from swjoin.routing.biclique import UnitTable
from swjoin.routing.hot_keys import HotKey
from swjoin.state.delay_histogram import HISTOGRAM_SIZE
from tests.fuzzing.harness import Wrong, check_refusal
from tests.fuzzing.mutations import BOUNDARIES, pick_integer, spoil_bytes

_TYPES = ("<i8", "<u8", "<f8", "u1")
Arrays = list[np.ndarray[Any, Any] | None]

# ---------------------------------------------------------------- the format once more


def write_frame(kind: int, integers: list[int], arrays: Arrays) -> bytes:
    """A frame with right sizes, whatever its arrays are."""
    words, body = list(integers), b""
    start = -(-8 * (8 + len(integers) + 4 * len(arrays)) // 64) * 64
    for array in arrays:
        if array is None:
            words += [0, -1, 0, 0]
            continue
        code = _TYPES.index("u1" if array.dtype == np.uint8 else array.dtype.newbyteorder("<").str)
        words += [code, array.ndim, array.shape[0], array.shape[1] if array.ndim == 2 else 1]
        data = array.tobytes()
        body += data + bytes(-len(data) % 64)
    head = struct.pack("<8q", wire.MAGIC, wire.VERSION, kind, len(integers), len(arrays), start + len(body), 0, 0)
    table = struct.pack(f"<{len(words)}q", *words)
    return (head + table).ljust(start, b"\0") + body


def read_frame(data: bytes) -> tuple[int, list[int], Arrays]:
    """Kind, integers and arrays of a frame that has been accepted; struct.error or ValueError if it cannot be read."""
    _, _, kind, count, array_count, total = struct.unpack_from("<6q", data)
    words = struct.unpack_from(f"<{count + 4 * array_count}q", data, 64)
    if total != len(data):
        raise ValueError(f"the header says {total} bytes, there are {len(data)}")
    at = -(-8 * (8 + len(words)) // 64) * 64
    arrays: Arrays = []
    for i in range(array_count):
        code, dimensions, rows, columns = words[count + 4 * i : count + 4 * i + 4]
        if dimensions == -1:
            arrays.append(None)
            continue
        shape = (rows, columns) if dimensions == 2 else (rows,)
        array = np.frombuffer(data, _TYPES[code], int(np.prod(shape, dtype=object)), at).reshape(shape)
        arrays.append(array)
        at += -(-array.nbytes // 64) * 64
    return kind, list(words[:count]), arrays


# ---------------------------------------------------------------- seeds


def _tuples(n: int, fixed: int | None, *, tail: bool = False) -> TupleBatch:
    rows = None
    if fixed is not None:
        offsets = (np.arange(n + 1) * 3).astype(np.int64) if tail else None
        rows = PayloadRows(np.ones((n, fixed), np.uint8), offsets, np.arange(3 * n).astype(np.uint8) if tail else None)
    return TupleBatch(np.arange(n) - 5, np.arange(n) * 7, np.arange(n).astype(np.uint64), np.arange(n) + 1, rows)


def _delivery(counts: list[tuple[int, int, int]], fixed: int | None, *, tail: bool = False, moves: int = 0) -> Delivery:
    groups, left, right = (np.array([c[i] for c in counts], np.int64) for i in range(3))
    batches = (_tuples(int(left.sum()), fixed, tail=tail), _tuples(int(right.sum()), None if fixed is None else 2))
    orders = np.arange(3 * moves).reshape(moves, 3).astype(np.int64)
    labels = (QueryId(0), SlaveId(2), EpochIndex(5), -7, 1 << 62)
    return Delivery(
        *labels, groups, left, right, *batches, False, (Route.BOTH, Route.PROBE), 3, orders, orders[:0], False, 2, True
    )


def _part() -> Delivery:
    """Between stages: columns instead of payload rows, a part that is not final, rows with a null key."""
    columns = Columns(pa.record_batch({"k": pa.array(["a", None, "ccc"]), "v": pa.array([1, 2, None])}))
    rows, whole = replace(_tuples(3, None), columns=columns), _delivery([(2, 3, 0)], None)
    return replace(whole, edge=4, left=rows, null_keys=(rows, TupleBatch.empty()), final=False, checkpoint=False)


def _rows() -> ResultChunk:
    """Of a plan that ends with a filter or a projection."""
    rows = _part().left
    labels = (QueryId(0), SlaveId(1), EpochIndex(3), True, False)
    return ResultChunk(
        *labels, ResultRows(rows.id, rows.ts, rows.columns, np.array([0, 2, 1])), sent=np.array([[0, 3, 3]], np.uint64)
    )


def _results(n: int, *, final: bool) -> ResultChunk:
    ids = np.arange(n).astype(np.uint64)
    rows = _tuples(n, 5, tail=True).rows
    pairs = Pairs(np.arange(n), np.arange(n), np.arange(n), ids, ids, rows, None) if n else None
    labels = (QueryId(0), SlaveId(1), EpochIndex(3), final, False)
    if not final:
        return ResultChunk(*labels, pairs)
    results = GroupResults(np.array([1, 4]), np.array([4, 0]), np.array([2**64 - 1, 0], np.uint64))
    return ResultChunk(
        *labels,
        pairs,
        results,
        np.ones(len(COLUMNS)),
        np.zeros(HISTOGRAM_SIZE, np.int64),
        2,
        False,
        1,
        True,
        np.ones((2, 3), np.int64),
    )


def _state(index: int, *, pending: bool) -> StateChunk:
    directory = Directory(1, np.array([0, 1]), np.array([1, 1])) if index == 0 else None
    minis = np.empty(0, np.int64) if pending else np.array([0, 1])
    counts = np.empty(0, np.int64) if pending else np.array([2, 3])
    labels = (QueryId(0), 7, GroupId(3), SlaveId(0), SlaveId(1), index, index == 2, (5, 6), 1, pending)
    return StateChunk(*labels, minis, counts, _tuples(5, 4, tail=index > 0), directory)


CONTROL: tuple[Any, ...] = (
    Report(0.5),
    MoveEnd(3, GroupId(1), SlaveId(2), True, 10, 640, 5, 9),
    StateRequest(7),
    MeasuringStarted(5_000_000),
    PartSaved(2, "slave 1", {"joined": [3, 4], "segment": {"crc": 17}}),
    CheckpointDurable(4, True),
    EpochWanted(3, True, False, (0, 64), (128, 0)),
    EpochPlan(7, (0, 1, 2), (2,), True, False, 4, True, True, ((5, 9, 0, 1),)),
    EpochPlan(8, hot_keys=((HotKey(1, -5, 0, (3, 4), -9, 9),),)),
    EpochPlan(9, units=((UnitTable(1, (2, 0, 1), (1, 1, 1)),),)),
    EpochClosed(7, (-5, 5), ((1, 0, -3, 5, 100, ((-7, 60), (8, 9))),)),
    EpochClosed(8, (-5, 5), (), ((1, 0, -3, (5, -6)),)),
    EpochDue(7),
    EventNoted((1, 2, "idle", -1, -1, -1, 0, 0, 0, 0.5, "left (gateway 1)", -1)),
    SplitWanted(1, 3, (5, -6)),
    SplitDealt(1, (100, 50, -5, 5, 0), 7),
    GroupMoved(5, 4096, 17),
    PrefillJoined(),
    StopReading(),
    Granted(5, 17),
)


def seeds() -> list[tuple[str, bytes]]:
    """Frames of every kind, empty and filled, with the name of their kind."""
    loads = GroupLoads(55, np.array([0, 3]), np.array([10, 20]), np.array([640, 64]))
    sent = [
        replace(loads, sent=np.array(rows, np.int64).reshape(-1, 5)) for rows in ([], [[2, -1, 0, 3, 96], [2, 4, 1, 9, 288]])
    ]
    batches = [_tuples(0, None), _tuples(9, None), _tuples(4, 8), _tuples(6, 5, tail=True), _tuples(3, 0)]
    frames = [("delivery", wire.pack_delivery(d)) for d in (
        _delivery([], None), _delivery([(3, 4, 0), (9, 2, 3)], None), _part(),
        _delivery([(0, 2, 2), (1, 3, 1)], 6, tail=True, moves=2),
    )]  # fmt: skip
    frames += [
        ("results", wire.pack_results(r))
        for r in (_results(0, final=True), _results(4, final=False), _results(3, final=True), _rows())
    ]
    frames += [("state", wire.pack_state(_state(i, pending=p))) for i, p in ((0, False), (1, False), (2, True))]
    frames += [("loads", wire.pack_loads(r)) for r in (LoadReport(0.5), *(LoadReport(0.25, x) for x in (loads, *sent)))]
    frames += [("tuples", wire.pack_tuples(b)) for b in batches]
    frames += [(type(m).__name__, wire.FORMATS[type(m)].pack(m)) for m in CONTROL]
    return [(name, bytes(frame)) for name, frame in frames]


CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "delivery": (wire.unpack_delivery, wire.pack_delivery),
    "results": (wire.unpack_results, wire.pack_results),
    "state": (wire.unpack_state, wire.pack_state),
    "loads": (wire.unpack_loads, wire.pack_loads),
    "tuples": (wire.unpack_tuples, wire.pack_tuples),
    **{type(m).__name__: (wire.FORMATS[type(m)].unpack, wire.FORMATS[type(m)].pack) for m in CONTROL},
}

# ---------------------------------------------------------------- mutations


def _other_array(random: Random, array: np.ndarray[Any, Any] | None, arrays: Arrays) -> np.ndarray[Any, Any] | None:
    kind = random.randrange(9)
    if array is None or kind == 0:
        return random.choice([None, np.zeros(random.randrange(4), random.choice(_TYPES)), random.choice(arrays)])
    if kind == 1:
        return array[: random.randrange(len(array) + 1)]
    if kind == 2:
        return np.concatenate([array, array[:1]])
    if kind == 3:
        return array.astype(random.choice(_TYPES))
    if kind == 4:
        return array.reshape(-1, random.choice((1, 2, 3)) if array.size % 6 == 0 else 1)
    if kind == 5:
        return array.reshape(-1)
    new = array.copy()
    if new.size:
        at = random.randrange(new.size)
        flat = new.reshape(-1)
        if new.dtype == np.float64:
            flat[at] = random.choice((np.nan, np.inf, -1.0, 1e300))
        else:
            flat.view("i8" if new.itemsize == 8 else "i1")[at] = (
                pick_integer(random, int(flat[at]) % 2**62) if new.itemsize == 8 else 7
            )
        if kind == 6:
            new[:] = new[::-1].copy()
    return new


def spoil_frame(random: Random, data: bytes) -> bytes:
    """A frame with right sizes in which an integer or an array is another one."""
    kind, integers, arrays = read_frame(data)
    for _ in range(random.choice((1, 1, 2))):
        if integers and random.random() < 0.35:
            at = random.randrange(len(integers))
            integers[at] = pick_integer(random, integers[at])
        elif arrays and random.random() < 0.9:
            at = random.randrange(len(arrays))
            arrays[at] = _other_array(random, arrays[at], arrays)
        elif random.random() < 0.5:
            integers = integers[:-1] if random.random() < 0.5 else [*integers, 0]
        else:
            arrays = arrays[:-1] if random.random() < 0.5 else [*arrays, None]
    return write_frame(kind, integers, arrays)


def spoil_words(random: Random, data: bytes) -> bytes:
    """Words of the header or the table of arrays are other ones; the total is made right again, or not."""
    out = bytearray(data)
    words = 8 + (len(out) >= 64 and sum(struct.unpack_from("<2q", out, 24)[i] * (1, 4)[i] for i in (0, 1)))
    for _ in range(random.choice((1, 1, 2, 3))):
        at = 8 * random.randrange(3, words)
        (old,) = struct.unpack_from("<q", out, at)
        struct.pack_into("<q", out, at, pick_integer(random, old) if random.random() < 0.5 else random.choice(BOUNDARIES))
    if random.random() < 0.3:
        del out[random.randrange(64, len(out) + 1) :]
    if random.random() < 0.7:
        struct.pack_into("<q", out, 40, len(out))
    return bytes(out)


# ---------------------------------------------------------------- what must hold of a message that was accepted


def _check_rows(rows: PayloadRows | None, count: int, what: str) -> None:
    if rows is None:
        return
    ok = rows.fixed.ndim == 2 and rows.fixed.dtype == np.uint8 and len(rows.fixed) == count
    if rows.var_offsets is not None and ok:
        offsets, var = rows.var_offsets.tolist(), rows.var
        ok = var is not None and var.dtype == np.uint8 and len(offsets) == count + 1
        ok = ok and offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] == len(var)
    if not ok:
        raise Wrong(f"{what}: payload rows that do not fit were accepted")


def _check_batch(batch: TupleBatch, what: str) -> None:
    n = len(batch.key)
    for column, kind in ((batch.key, "<i8"), (batch.ts, "<i8"), (batch.id, "<u8"), (batch.arrival_us, "<i8")):
        if column.dtype != np.dtype(kind) or column.shape != (n,):
            raise Wrong(f"{what}: a column of type {column.dtype} and shape {column.shape} was accepted")
    _check_rows(batch.rows, n, what)


def _check_ascending(groups: np.ndarray[Any, Any], what: str, *, strictly: bool = True) -> None:
    plain = groups.tolist()
    if groups.dtype != np.int64 or any(g < 0 for g in plain) or (strictly and plain != sorted(set(plain))):
        raise Wrong(f"{what}: partition-groups {plain[:8]} were accepted")


def _check_counts(counts: np.ndarray[Any, Any], total: int, what: str) -> None:
    if counts.dtype != np.int64 or counts.ndim != 1 or min(counts.tolist(), default=0) < 0 or sum(counts.tolist()) != total:
        raise Wrong(f"{what}: counts {counts[:8].tolist()} of {total} tuples were accepted")


def check_message(message: Any) -> None:
    """Wrong unless kernels and roles may rely on what they do rely on."""
    if isinstance(message, TupleBatch):
        _check_batch(message, "tuples")
    if isinstance(message, Delivery):
        _check_batch(message.left, "left")
        _check_batch(message.right, "right")
        _check_ascending(message.groups, "delivery")
        for counts, batch in ((message.left_counts, message.left), (message.right_counts, message.right)):
            if counts.shape != message.groups.shape:
                raise Wrong("delivery: counts of another number of partition-groups were accepted")
            _check_counts(counts, len(batch), "delivery")
        for moves in (message.moves_out, message.moves_in):
            if moves.dtype != np.int64 or moves.ndim != 2 or moves.shape[1] != 3:
                raise Wrong(f"delivery: moves of shape {moves.shape} were accepted")
    if isinstance(message, StateChunk):
        _check_batch(message.tuples, "chunk")
        _check_ascending(message.minis, "chunk")
        _check_counts(message.counts, 0 if message.pending else len(message.tuples), "chunk")
        if message.stream not in (0, 1) or message.counts.shape != message.minis.shape:
            raise Wrong(f"chunk: stream {message.stream}, {message.counts.shape} counts of {message.minis.shape} were accepted")
        if message.directory is not None:
            _check_directory(message.directory)
    if isinstance(message, ResultChunk) and isinstance(message.pairs, ResultRows):
        r, nothing = message.pairs, np.zeros(len(message.pairs), np.int64)
        _check_batch(TupleBatch(nothing, r.ts, r.id, nothing), "rows")
        if r.columns is not None and len(r.columns) != len(r):
            raise Wrong(f"rows: columns of {len(r.columns)} rows for {len(r)} were accepted")
    if isinstance(message, ResultChunk) and isinstance(message.pairs, Pairs):
        p, n = message.pairs, len(message.pairs.key)
        _check_batch(TupleBatch(p.key, p.left_ts, p.left_id, p.right_ts, p.left_rows), "pairs")
        _check_batch(TupleBatch(p.key, p.left_ts, p.right_id, p.right_ts, p.right_rows), f"{n} pairs")
    if isinstance(message, ResultChunk) and message.results is not None:
        r = message.results
        _check_ascending(r.groups, "results", strictly=False)
        _check_counts(r.counts, sum(r.counts.tolist()), "results")
        if not (r.groups.shape == r.counts.shape == r.digests.shape) or r.digests.dtype != np.uint64:
            raise Wrong("results of partition-groups of unequal length were accepted")
    if isinstance(message, Report | LoadReport):
        if not message.occupancy_ratio >= 0:
            raise Wrong(f"report: an occupancy of {message.occupancy_ratio} was accepted")
        if isinstance(message, LoadReport) and message.loads is not None:
            _check_ascending(message.loads.groups, "report")
            sent = message.loads.sent
            if sent is not None and (sent.shape[1:] != (5,) or (sent < (0, -1, 0, 0, 0)).any()):
                raise Wrong(f"report: traffic of shape {sent.shape}, or negative, was accepted")


def _check_directory(directory: Directory) -> None:
    """Every entry of 2^depth belongs to exactly one mini-partition-group."""
    depth, patterns, depths = directory.depth, directory.patterns.tolist(), directory.depths.tolist()
    if not 0 <= depth <= 40 or len(patterns) != len(depths) or not all(0 <= d <= depth for d in depths):
        raise Wrong(f"chunk: a directory of depth {depth} with local depths {depths[:8]} was accepted")
    entries: set[int] = set()
    for pattern, local in zip(patterns, depths, strict=True):
        mine = set(range(pattern, 1 << depth, 1 << local))
        if not 0 <= pattern < 1 << local or entries & mine:
            raise Wrong(f"chunk: a directory with patterns {patterns[:8]} was accepted")
        entries |= mine
    if len(entries) != 1 << depth:
        raise Wrong(f"chunk: a directory with {len(entries)} of {1 << depth} entries was accepted")


def _same(a: Arrays, b: Arrays) -> bool:
    return len(a) == len(b) and all(
        (x is None and y is None)
        or (x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes())
        or (x is not None and y is not None and _same_columns(x, y))
        for x, y in zip(a, b, strict=True)
    )


def _same_columns(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether both hold the same columns, as Arrow has several bytes for one batch."""
    try:
        return bool(Columns.from_bytes(a).batch.equals(Columns.from_bytes(b).batch))
    except RunFailed:
        return False


class WireTarget:
    """Frames of every kind."""

    name = "wire"

    def prepare(self, folder: Path) -> None:
        self.seeds = seeds()

    def attempt(self, random: Random) -> str:
        name, data = random.choice(self.seeds)
        choice = random.randrange(3)
        if choice == 0:
            data = spoil_bytes(random, data, [d for _, d in self.seeds], hot=64 + 8 * 80)
        elif choice == 1:
            data = spoil_words(random, data)
        else:
            data = spoil_frame(random, data)
        if random.random() < 0.02:
            name = random.choice(list(CODECS))  # taken for something else
        return self.check(name, data, f"{name}, {('bytes', 'words', 'arrays')[choice]}")

    @staticmethod
    def check(name: str, data: bytes, what: str) -> str:
        """Decode as this kind; whatever is accepted must be what its bytes say."""
        unpack, pack = CODECS[name]
        buffer = np.frombuffer(data, np.uint8)
        try:
            message = unpack(buffer)
        except SwjoinError as error:
            check_refusal(error, "corrupt")
            return f"refused: {what}"
        check_message(message)
        before, after = read_frame(data), read_frame(bytes(pack(message)))
        if before[:2] != after[:2] or not _same(before[2], after[2]):
            raise Wrong(f"{name}: accepted, and packed again it is another message: {before[:2]} became {after[:2]}")
        return f"accepted: {what}"

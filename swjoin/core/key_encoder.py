"""Exact encoding of join columns as int64 keys.

What: `KeyEncoder`, shared by both sides: a single integer-like column is its own key; strings, binary and several columns get
dictionary codes.
Why: windows compare int64; equal codes mean equal keys, not only equal hashes.
Stays out: the treatment of null keys (`cluster.gateway.intake`).

Several columns become one byte string per row: eight bytes per integer, length and bytes per string. The dictionary compares
byte strings byte by byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import uint64

from swjoin.core.arrow_views import array_of, booleans_of, borrowed, decoded, integers_of
from swjoin.core.batch import I64, U8, U64, Bool, check_offsets
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items

if TYPE_CHECKING:
    import pyarrow as pa

INTEGER, BYTES = "integer", "bytes"
_FIRST_HASH, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_EIGHT_ZEROS = np.uint64(pow(int(_PRIME), 8, 1 << 64))  # what eight bytes of zero make of a hash


@kernel
def _hash_bytes(data: U8, start: int, stop: int) -> np.uint64:
    h = _FIRST_HASH
    for i in range(uint64(start), uint64(stop)):
        h = (h ^ uint64(data[i])) * _PRIME
    h ^= h >> np.uint64(32)
    return h  # type: ignore[no-any-return]


@kernel
def _hash_strings(data: U8, offsets: I64, out: I64) -> None:
    for i in range(offsets.shape[0] - 1):
        out[i] = np.int64(_hash_bytes(data, offsets[i], offsets[i + 1]))


@kernel
def _hash_integers(values: I64, out: U64) -> None:
    """Go on with the hashes of byte strings by eight bytes each."""
    for i in range(out.shape[0]):
        h, word = out[i], np.uint64(values[i])
        if word == np.uint64(0):
            h *= _EIGHT_ZEROS
        else:
            for _ in range(8):
                h = (h ^ (word & np.uint64(255))) * _PRIME
                word >>= np.uint64(8)
        out[i] = h


@kernel(inline="always")
def _word(data, at):  # type: ignore[no-untyped-def]
    """Eight bytes as uint64: one load, if `at` is one, too, so that it cannot be below zero."""
    word = np.uint64(0)
    for j in range(uint64(0), uint64(8)):
        word |= uint64(data[at + j]) << (uint64(8) * j)
    return word


@kernel
def _slot_hash(data: U8, start: int, stop: int) -> np.uint64:
    """A hash of a byte string for the table of a dictionary alone, eight bytes at a time."""
    at, end, step = uint64(start), uint64(stop), uint64(8)
    h = end - at
    while at + step <= end:
        h = (h ^ _word(data, at)) * GOLDEN
        h ^= h >> np.uint64(32)
        at += step
    while at < end:
        h = (h ^ uint64(data[at])) * _PRIME
        at += uint64(1)
    return mix64_scalar(h)  # type: ignore[no-any-return]


@kernel
def _same_bytes(one: U8, start: int, other: U8, begin: int, size: int) -> bool:
    at, to, end, step = uint64(start), uint64(begin), uint64(start + size), uint64(8)
    while at + step <= end:
        if _word(one, at) != _word(other, to):
            return False
        at += step
        to += step
    while at < end:
        if one[at] != other[to]:
            return False
        at += uint64(1)
        to += uint64(1)
    return True


@kernel
def _intern(
    data: U8, offsets: I64, valid: Bool, table: I64, arena: U8, arena_offsets: I64, counts: I64, first: int, codes: I64
) -> int:
    """Codes of rows first..; stops before a row that may not fit and returns its index, or the number of rows.

    counts[0] = codes given so far, counts[1] = arena bytes used. table: open addressing, code + 1, 0 for empty.
    """
    mask = np.uint64(table.shape[0] - 1)
    for i in range(first, offsets.shape[0] - 1):
        if valid.shape[0] > 0 and not valid[i]:
            codes[i] = 0
            continue
        start, stop = offsets[i], offsets[i + 1]
        size = stop - start
        if 2 * (counts[0] + 1) > table.shape[0] or counts[0] + 1 >= arena_offsets.shape[0] or counts[1] + size > arena.shape[0]:
            return i
        slot = _slot_hash(data, start, stop) & mask
        while True:
            code = table[slot] - 1
            if code < 0:
                code = counts[0]
                copy_items(arena, counts[1], data, start, size)
                counts[1] += size
                counts[0] += 1
                arena_offsets[counts[0]] = counts[1]
                table[slot] = code + 1
                break
            begin = arena_offsets[code]
            if arena_offsets[code + 1] - begin == size and _same_bytes(arena, begin, data, start, size):
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return int(offsets.shape[0] - 1)


@kernel
def _find(data: U8, offsets: I64, table: I64, arena: U8, arena_offsets: I64, out: I64) -> None:
    """Codes of the rows that have one; others keep their value."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(offsets.shape[0] - 1):
        start, size = offsets[i], offsets[i + 1] - offsets[i]
        slot = _slot_hash(data, start, start + size) & mask
        while table[slot] > 0:
            code = table[slot] - 1
            begin = arena_offsets[code]
            if arena_offsets[code + 1] - begin == size and _same_bytes(arena, begin, data, start, size):
                out[i] = code
                break
            slot = (slot + np.uint64(1)) & mask


@kernel
def _rehash(table: I64, arena: U8, arena_offsets: I64, count: int) -> None:
    mask = np.uint64(table.shape[0] - 1)
    for code in range(count):
        slot = _slot_hash(arena, arena_offsets[code], arena_offsets[code + 1]) & mask
        while table[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = code + 1


class Dictionary:
    """Byte strings -> codes 0, 1, 2, ... in order of first appearance. RunFailed above `limit_bytes`."""

    def __init__(self, limit_bytes: int = 4 << 30, kinds: Sequence[str] = (BYTES,)) -> None:
        """kinds: encodings of the key's columns."""
        self.limit_bytes = limit_bytes
        self.kinds = tuple(kinds)
        self._table = np.zeros(1 << 12, np.int64)
        self._arena = np.empty(1 << 16, np.uint8)
        self._offsets = np.zeros(1 << 11, np.int64)
        self._counts = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._counts[0])

    def encode(self, data: U8, offsets: I64, valid: Bool | None) -> I64:
        """Codes of n byte strings data[offsets[i] : offsets[i + 1]]; 0 for invalid rows."""
        check_offsets(offsets, len(data), "keys", UserError)
        n = len(offsets) - 1
        codes = np.empty(n, np.int64)
        mask = np.empty(0, np.bool_) if valid is None else valid
        at = 0
        while True:
            at = _intern(data, offsets, mask, self._table, self._arena, self._offsets, self._counts, at, codes)
            if at >= n:
                return codes
            self._grow(int(offsets[at + 1] - offsets[at]))

    def find(self, data: U8, offsets: I64, out: I64) -> None:
        """Put the codes of those byte strings that have one into `out`."""
        _find(data, offsets, self._table, self._arena, self._offsets, out)

    def entries(self, first: int) -> tuple[I64, U8]:
        """Lengths and bytes of the codes from `first` on; views that do not change."""
        offsets = self._offsets[first : len(self) + 1]
        return np.diff(offsets), self._arena[offsets[0] : offsets[-1]]

    def of_codes(self, codes: I64) -> Columns:
        """The byte strings of these codes, for `codes_of` of another dictionary."""
        import pyarrow as pa

        offsets = pa.py_buffer(self._offsets[: len(self) + 1].copy())
        values = pa.Array.from_buffers(pa.large_binary(), len(self), [None, offsets, pa.py_buffer(self._arena)])
        return Columns(pa.record_batch({"key": values.take(array_of(codes))}))

    def codes_of(self, columns: Columns | None) -> I64:
        """Codes of the byte strings of another dictionary. RunFailed when there are none."""
        import pyarrow as pa

        column = None if columns is None or columns.names != ["key"] else columns.column("key")
        if column is None or not pa.types.is_large_binary(column.type) or column.null_count:
            raise RunFailed("keys of moved tuples are missing")
        return self.encode(*_byte_strings(column), None)

    def text(self, code: int) -> str:
        """The key of a code as text; columns are separated by commas."""
        data = self._arena[self._offsets[code] : self._offsets[code + 1]].tobytes()
        if len(self.kinds) == 1:
            return data.decode(errors="replace")
        parts, at = [], 0
        for kind in self.kinds:
            number = int.from_bytes(data[at : at + 8], "little", signed=True)  # a value, or how many bytes follow
            at += 8
            if kind == BYTES:
                parts.append(data[at : at + number].decode(errors="replace"))
                at += number
            else:
                parts.append(str(number))
        return ", ".join(parts)

    def restore(self, lengths: I64, data: U8) -> None:
        """Restore the codes 0, 1, ... of an empty dictionary."""
        assert len(self) == 0, "a dictionary with codes cannot be restored"
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > len(data) or int(lengths.sum()) != len(data):
            raise RunFailed(f"corrupt checkpoint: {len(lengths)} keys do not fill {len(data)} bytes")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        codes = self.encode(data, offsets, None)
        if len(codes) and (int(codes[-1]) != len(codes) - 1 or len(self) != len(codes)):
            raise RunFailed("corrupt checkpoint: a key occurs in the dictionary twice")

    def _grow(self, wanted: int) -> None:
        if 2 * (len(self) + 1) > len(self._table) or len(self) + 1 >= len(self._offsets):
            self._offsets = np.concatenate([self._offsets, np.zeros(len(self._offsets), np.int64)])
            self._table = np.zeros(2 * len(self._table), np.int64)
            _rehash(self._table, self._arena, self._offsets, len(self))
        if int(self._counts[1]) + wanted > len(self._arena):
            self._arena = np.concatenate([self._arena, np.empty(max(len(self._arena), wanted), np.uint8)])
        size = self._table.nbytes + self._offsets.nbytes + self._arena.nbytes
        if size > self.limit_bytes:
            raise RunFailed(f"the dictionary of join keys holds {len(self)} distinct keys in {size} bytes, above its limit")


def _kind(column: str, kind: pa.DataType) -> str:
    """Encoding of a key column. UserError for types that cannot be keys."""
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return _kind(column, kind.value_type)
    if t.is_integer(kind) or t.is_boolean(kind) or (t.is_temporal(kind) and not t.is_interval(kind)):
        return INTEGER
    if (
        t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_binary(kind)
        or t.is_large_binary(kind)
        or t.is_fixed_size_binary(kind)
    ):
        return BYTES
    if t.is_string_view(kind) or t.is_binary_view(kind):
        return BYTES
    hint = "round it to an integer first" if t.is_floating(kind) or t.is_decimal(kind) else "use an integer or a string column"
    raise UserError(f"key column {column}: type {kind} cannot be a join key; {hint}")


def _family(kind: pa.DataType) -> str:
    """Family of a type; types of a family compare by their encoded values."""
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return _family(kind.value_type)
    if t.is_uint64(kind):
        return "uint64"
    if t.is_integer(kind):
        return "integer"
    if _kind("", kind) == BYTES:
        return "string" if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind) else "binary"
    if t.is_timestamp(kind):
        return f"timestamp[{kind.unit}]{'' if kind.tz is None else ' with time zone'}"
    return str(kind)


def _mixed(left: pa.DataType, right: pa.DataType) -> bool:
    """Unsigned integers of 64 bits against others, which have no common type of 64 bits; compared as text."""
    return {_family(left), _family(right)} == {"uint64", "integer"}


class KeyEncoder:
    """Encodes both sides' join columns so that codes are equal exactly when the keys are.

    `native`: the key is a single integer-like column and its own code.
    """

    def __init__(self, left: list[tuple[str, pa.DataType]], right: list[tuple[str, pa.DataType]]) -> None:
        if len(left) != len(right):
            raise UserError(
                f"join keys: {len(left)} columns on the left, {len(right)} on the right; name as many on both sides"
            )
        for (left_name, left_kind), (right_name, right_kind) in zip(left, right, strict=True):
            _kind(left_name, left_kind)
            _kind(right_name, right_kind)
            if _family(left_kind) != _family(right_kind) and not _mixed(left_kind, right_kind):
                raise UserError(
                    f"join keys: left {left_name} is {left_kind}, right {right_name} is {right_kind}; "
                    f"cast one side so that both agree"
                )
        self.types = ([kind for _, kind in left], [kind for _, kind in right])
        self._kinds = [
            BYTES if _mixed(kind, other) else _kind(name, kind) for (name, kind), (_, other) in zip(left, right, strict=True)
        ]
        self.native = self._kinds == [INTEGER]
        self.dictionary = Dictionary(kinds=self._kinds)
        self.shared = True  # by all rows of the run; otherwise keys travel as of `to_send`
        self.known: Dictionary | None = None  # codes from before keys travelled

    def encode(self, columns: list[pa.Array]) -> tuple[I64, Bool | None]:
        """int64 keys of n rows, and which are valid (None: all); a null in any column makes the key null."""
        columns, valid = _valid(columns)
        if self.native:
            return _integers(columns[0]), valid
        return self.dictionary.encode(*self._strings(columns), valid), valid

    def find(self, columns: list[pa.Array]) -> tuple[I64, Bool | None]:
        """As `encode`, but a key that has no code yet gets none, and -1 stands for it."""
        columns, valid = _valid(columns)
        if self.native:
            return _integers(columns[0]), valid
        data, offsets = self._strings(columns)
        check_offsets(offsets, len(data), "keys", UserError)
        out = np.full(len(offsets) - 1, -1, np.int64)
        self.dictionary.find(data, offsets, out)
        return out, valid

    def hashed(self, columns: list[pa.Array]) -> tuple[I64, Bool | None]:
        """As `encode`, but a key that is not its own code is a hash: equal for equal keys, and needs no dictionary. A known key
        keeps its code, by which it has been routed so far."""
        if self.native or self.known is not None or BYTES in self._kinds:
            return self.to_send(columns)[:2]
        columns, valid = _valid(columns)
        hashes = np.full(len(columns[0]), _FIRST_HASH)
        for column in columns:
            _hash_integers(_integers(column), hashes)
        return (hashes ^ (hashes >> np.uint64(32))).view(np.int64), valid

    def to_send(self, columns: list[pa.Array]) -> tuple[I64, Bool | None, Columns | None]:
        """As `hashed`, and the keys' byte strings, for `Dictionary.codes_of`; None for keys that are their own codes."""
        import pyarrow as pa

        columns, valid = _valid(columns)
        if self.native:
            return _integers(columns[0]), valid, None
        data, offsets = self._strings(columns)
        check_offsets(offsets, len(data), "keys", UserError)
        out = np.empty(len(offsets) - 1, np.int64)
        _hash_strings(data, offsets, out)
        if self.known is not None:
            self.known.find(data, offsets, out)
        buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
        keys = pa.Array.from_buffers(pa.large_binary(), len(out), buffers)
        return out, valid, Columns(pa.record_batch({"key": keys}))

    def _strings(self, columns: list[pa.Array]) -> tuple[U8, I64]:
        """One byte string per row, as bytes and offsets."""
        parts = [(_integers(c), None) if k == INTEGER else _byte_strings(c) for c, k in zip(columns, self._kinds, strict=True)]
        if len(parts) == 1 and parts[0][1] is not None:
            return parts[0][0].view(np.uint8), parts[0][1]
        if BYTES not in self._kinds:  # of one length
            words: I64 = np.stack([values for values, _ in parts], axis=1).astype("<i8", copy=False)
            return words.view(np.uint8).reshape(-1), np.arange(len(words) + 1) * (8 * len(parts))
        return _concatenate(parts)


def _valid(columns: list[pa.Array]) -> tuple[list[pa.Array], Bool | None]:
    """The columns without dictionaries and views, and which rows have a value in all of them (None: all rows)."""
    valid: Bool | None = None
    columns = [decoded(column) for column in columns]
    for column in columns:
        if column.null_count:
            here = booleans_of(column.is_valid())
            valid = here if valid is None else valid & here
    return columns, valid


def _integers(column: pa.Array) -> I64:
    """Values of a decoded integer-like column as int64; nulls become 0, uint64 keeps its bits."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if column.null_count:
        column = column.fill_null(0)
    values = integers_of(column)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def _byte_strings(column: pa.Array) -> tuple[U8, I64]:
    """Bytes and int64 offsets of a decoded string or binary column, or of integers as text."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        column = column.cast(pa.large_string())
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if _family(column.type) == "string":
        column = column.cast(pa.large_string())
    column = column.cast(pa.large_binary())
    n = len(column)
    if n == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = borrowed(column.buffers()[1], np.int64)[column.offset : column.offset + n + 1]
    data = column.buffers()[2]
    return (np.empty(0, np.uint8) if data is None else borrowed(data, np.uint8)), offsets


@kernel
def _put_integer(cursors: I64, values: I64, out: U8) -> None:
    for i in range(values.shape[0]):
        word, at = uint64(values[i]), uint64(cursors[i])
        for j in range(uint64(0), uint64(8)):
            out[at + j] = np.uint8((word >> (uint64(8) * j)) & uint64(255))
        cursors[i] += 8


@kernel
def _put_bytes(cursors: I64, data: U8, offsets: I64, out: U8) -> None:
    for i in range(offsets.shape[0] - 1):
        size = offsets[i + 1] - offsets[i]
        copy_items(out, cursors[i], data, offsets[i], size)
        cursors[i] += size


def _concatenate(parts: Sequence[tuple[I64 | U8, I64 | None]]) -> tuple[U8, I64]:
    """One byte string per row: 8 bytes per integer; length (8 bytes) and bytes per string. Different keys differ."""
    n = len(parts[0][0]) if parts[0][1] is None else len(parts[0][1]) - 1
    sizes = np.zeros(n, np.int64)
    for data, offsets in parts:
        if offsets is not None:
            check_offsets(offsets, data.nbytes, "keys", UserError)
        sizes += 8 if offsets is None else 8 + np.diff(offsets)
    bounds = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    out = np.empty(int(bounds[-1]), np.uint8)
    cursors = bounds[:-1].copy()
    for data, offsets in parts:
        if offsets is None:
            _put_integer(cursors, np.ascontiguousarray(data, np.int64), out)
        else:
            _put_integer(cursors, np.diff(offsets), out)
            _put_bytes(cursors, data.view(np.uint8), offsets, out)
    return out, bounds

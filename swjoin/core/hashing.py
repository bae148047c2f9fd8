"""Hashing of join keys and of result pairs, as kernels.

What: `hash_key` (one 64-bit mix per key), `group_of` (partition-group from the high 32 bits), `tag_of` (16 bits that a block
compares first; the directory uses the lowest 16, so the three are independent), `hash_cell` and `tag_in_cell` (the same for
keys of a band), `pair_hash`, `digest_pairs`, `digest_results` and `pair_ids` (docs/semantics.md, Row ids and the digest),
`hash_lines` (a number by id), `hash_words` (bytes of a file).
Why: routing, window state and the collector must agree on one hash.
Stays out: the readable definition of the digest (`core.join_semantics`), which tests compare with this one.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from swjoin.core.batch import I64, U64, Pairs, ResultRows
from swjoin.core.kernel_cache import kernel

_C1 = np.uint64(0xFF51AFD7ED558CCD)
_C2 = np.uint64(0xC4CEB9FE1A85EC53)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S33 = np.uint64(33)
_S32 = np.uint64(32)
_S16 = np.uint64(16)
_TAG_MASK = np.uint64(0xFFFF)


@kernel(inline="always")
def mix64_scalar(h):  # type: ignore[no-untyped-def]
    """The 64-bit finaliser of MurmurHash3 on one uint64."""
    h ^= h >> _S33
    h *= _C1
    h ^= h >> _S33
    h *= _C2
    h ^= h >> _S33
    return h


@kernel(inline="always")
def hash_key(key):  # type: ignore[no-untyped-def]
    """uint64 hash of an int64 key."""
    return mix64_scalar(uint64(key))


@kernel(inline="always")
def group_of(hashed, partition_count):  # type: ignore[no-untyped-def]
    """Partition-group of a hash: its high 32 bits scaled to 0..partition_count - 1."""
    return np.int64(((hashed >> _S32) * np.uint64(partition_count)) >> _S32)


@kernel(inline="always")
def tag_of(hashed):  # type: ignore[no-untyped-def]
    """uint16 tag of a hash: bits 16 to 31, independent of the partition-group (above) and of the directory slot (below)."""
    return np.uint16((hashed >> _S16) & _TAG_MASK)


@kernel(inline="always")
def hash_cell(key, cell_bits):  # type: ignore[no-untyped-def]
    """uint64 hash of an int64 key without its lowest bits: of its cell (`core.band_keys`), or with 0 bits of the key."""
    return mix64_scalar(uint64(key >> cell_bits))


@kernel(inline="always")
def tag_in_cell(key, hashed, cell_bits, unit_bits):  # type: ignore[no-untyped-def]
    """uint16 tag of a key: that of its cell's hash, and as many more as there are units before it in the cell."""
    within = (key & ((np.int64(1) << cell_bits) - 1)) >> unit_bits
    return np.uint16((np.int64(tag_of(hashed)) + within) & 0xFFFF)


@kernel(inline="always")
def left_term(left_id):  # type: ignore[no-untyped-def]
    """What the left id of pairs brings to their `pair_of_terms`, the same in all of them."""
    return left_id * GOLDEN


@kernel(inline="always")
def right_term(right_id):  # type: ignore[no-untyped-def]
    """What the right id brings."""
    return mix64_scalar(right_id * GOLDEN + GOLDEN)


@kernel(inline="always")
def pair_of_terms(one, other):  # type: ignore[no-untyped-def]
    """`pair_hash` of the ids with these terms, of either side first."""
    return mix64_scalar(one + other)


@kernel(inline="always")
def pair_hash(left_id, right_id):  # type: ignore[no-untyped-def]
    """Contribution of a pair of uint64 ids to a digest; a missing side is MISSING_ID. All kernels with digests call this."""
    return pair_of_terms(left_term(left_id), right_term(right_id))


@kernel
def _digest(left_id: U64, right_id: U64) -> np.uint64:
    total = np.uint64(0)
    for i in range(left_id.shape[0]):
        total += pair_hash(left_id[i], right_id[i])
    return total


def digest_pairs(left_id: U64, right_id: U64) -> int:
    """Sum of the pairs' digests mod 2^64; ids are uint64 (n,)."""
    return int(_digest(left_id, right_id))


def digest_results(rows: Pairs | ResultRows) -> int:
    """Sum of the rows' digests mod 2^64: of a pair that of its ids, of another row its id."""
    if isinstance(rows, ResultRows):
        return int(np.add.reduce(rows.id, dtype=np.uint64))
    return digest_pairs(rows.left_id, rows.right_id)


@kernel
def _pair_ids(left_id: U64, right_id: U64, out: U64) -> None:
    for i in range(out.shape[0]):
        out[i] = pair_hash(left_id[i], right_id[i])


def pair_ids(left_id: U64, right_id: U64) -> U64:
    """Ids of the rows of a join, uint64 (n,): the digest of each pair of ids."""
    out = np.empty(len(left_id), np.uint64)
    _pair_ids(left_id, right_id, out)
    return out


@kernel
def _hash_lines(ids: U64, count: int, out: I64) -> None:
    for i in range(out.shape[0]):
        out[i] = group_of(mix64_scalar(ids[i]), count)


def hash_lines(ids: U64, count: int) -> I64:
    """A number of 0 to count - 1 for each id, int64 (n,); ids: uint64 (n,)."""
    out = np.empty(len(ids), np.int64)
    _hash_lines(ids, count, out)
    return out


@kernel
def _hash_words(words: U64, start: np.uint64) -> np.uint64:
    a = b = c = d = start
    whole = words.shape[0] // 4 * 4
    for i in range(0, whole, 4):  # four at once: each waits for its multiplication
        a = (a ^ words[i]) * GOLDEN
        b = (b ^ words[i + 1]) * GOLDEN
        c = (c ^ words[i + 2]) * GOLDEN
        d = (d ^ words[i + 3]) * GOLDEN
        a ^= a >> _S32
        b ^= b >> _S32
        c ^= c >> _S32
        d ^= d >> _S32
    for i in range(whole, words.shape[0]):
        a = mix64_scalar(a ^ words[i])
    for lane in (b, c, d):
        a = mix64_scalar(a * GOLDEN + lane)
    return a


def hash_words(words: U64, start: int) -> int:
    """A 64-bit hash of uint64 words, beginning with that of the words before; it finds changes, and is no match for malice."""
    return int(_hash_words(words, np.uint64(start)))

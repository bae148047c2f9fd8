"""The arrays that the kernels work on, as named tuples: block pool, mini-partition-groups, directories, fresh tuples, output.

What: the shapes and dtypes of all window state of one slave, and how it is allocated and grown.
Why: numba kernels take plain arrays; naming them once keeps twenty arguments readable. The layout follows the cache: a block's
tags (16 hash bits a tuple) lie together, because they are all that most comparisons read; a tuple is one 32-byte record,
because a match reads all of it; a block's header and a mini-partition-group's counters take one cache line each.
Stays out: any algorithm.

Flat arrays of records: record i's field f is at [i * WIDTH + f]. Streams: 0 left, 1 right. Large arrays are reserved without
being touched, so resident memory follows use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import I64, U8, U64
from swjoin.core.record_layout import ROW
from swjoin.core.simd import LANES
from swjoin.expressions.column_vm import LANES as LANES_OF_RUNS
from swjoin.expressions.column_vm import Columns, new_columns

I32 = NDArray[np.int32]
Reaches = tuple[int, int, int, int]  # `core.join_semantics.Bounds.reaches`
U16 = NDArray[np.uint16]

# mode of a join: emit pairs, or left tuples at their first match; set match flags of left, right tuples
PAIRS, FIRST_MATCHES, MARK_LEFT, MARK_RIGHT = 1, 2, 4, 8
IDS_ALONE = 32  # write only ids of pairs
COUNT_WINDOWS = 16  # TS of a stored tuple is its sequence number, of a fresh one the other stream's tuples before it

# a block's header: the next newer block of the chain or -1, tuples in it, times of its oldest and newest tuple (out of order:
# times between which all of its tuples lie)
NEXT, FILL, FIRST_TS, LAST_TS = 0, 1, 2, 3
HEADER = 4

# a mini-partition-group's counters; add the stream
FIRST, HEAD, TUPLES, FRESH = 0, 2, 4, 6  # oldest block or -1, head block or -1, tuples stored, fresh tuples of this delivery
COUNTERS = 8

CELL_BITS, UNIT_BITS = 3, 4  # in Pool.shape

# control fields of Pool and Minis; the last one is Minis' alone, or Pool's alone
RECYCLED, NEVER_USED, IN_USE, DUE = 0, 1, 2, 3
BLOCK_LIMIT = 3

STAT_PAIRS, STAT_COMPARISONS, STAT_DELAY_SUM, STAT_DELAY_MAX, STAT_CANDIDATES = 0, 1, 2, 3, 4
STAT_SIZE = 5

MINI_BYTES = 8 * COUNTERS + 4 * 4 + 2 * 8  # of one mini-partition-group, in all arrays of Minis
SLOT_BYTES = 4  # of one directory entry
PREFETCH_MINIS = 16  # mini-partition-groups whose chains are prefetched together, so that their cache misses overlap
HITS = 1024
# control fields of Runs: fewest probes and opposite tuples for which they are considered, always for 0 and 0; then where a
# mini-partition-group's join stands: whether one is begun, tuples gathered, the block they are from next and its tuples taken,
# probes that the block's times reach, comparisons so far, whether a key stands for values beyond, the probe and its place; the
# least tag, how many low bits of a tag (from there on) a bucket has, and buckets
FEWEST_PROBES, FEWEST_TUPLES, ACTIVE, GATHERED, POSITION, TAKEN, FROM_PROBE, TO_PROBE, COMPARED, FAR, PROBE, AT = range(12)
BASE, SHIFT, BUCKETS = 12, 13, 14
RUN_BUCKETS = 2048  # of tags: as many as the tags of one cell, and few enough to be cleared for each run
RUN_TUPLES = 4096  # put in order at once: their columns stay in the second-level cache
CANDIDATES = 1024  # per kind; enough for many cache misses at once, few enough to stay in the second-level cache


class Pool(NamedTuple):
    """Blocks: block b holds the tuples b * block_tuples ... and their tags from b * tag_stride on.

    In order, the tuples of a mini-partition are in time order, within its blocks and from block to block.
    """

    rows: I64  # (blocks * block_tuples * ROW,)
    tags: U16  # (blocks * tag_stride,)
    header: I64  # (blocks * HEADER,)
    free: I32  # recycled blocks, a stack
    control: I64  # (4,) recycled count, never used from here on, in use, most that may be in use now
    shape: I64  # (5,) block_tuples, tag_stride (block_tuples rounded up to whole masks), whether tuples come in order, and the
    # bits of a cell and of a unit in it (`core.band_keys`), 0 for an equality


class Minis(NamedTuple):
    """Mini-partition-groups (buckets of the directories). group -1: unused slot."""

    counters: I64  # (minis * COUNTERS,)
    depth: I32  # local depth
    pattern: I64  # the low `depth` bits shared by its hashes
    group: I32
    guard: I64  # size at which splitting is tried again, after it could not help
    free: I32
    due: I32  # those that grew above 2 * theta since they were last tuned
    control: I64  # (4,) recycled count, never used from here on, in use, due


class Directories(NamedTuple):
    """One directory per partition-group, in one arena: slots[start[g] : start[g] + 2 ** depth[g]] are mini indexes.

    start -1: not here.
    """

    slots: I32
    start: I64  # (groups,)
    depth: I64  # (groups,) global depth
    control: I64  # (1,) used length of slots


class FreshTuples(NamedTuple):
    """Scratch for one partition-group's fresh tuples, sorted by mini-partition; the right stream's start at `base`."""

    rows: I64  # (2 * base * ROW,)
    tags: U16  # (2 * base + LANES,)
    arrival: I64  # (2 * base,)
    mini_of: I32  # (2 * base,)
    home: I64  # (2 * base,) index of its record in Pool.rows, once it is stored; -1 before
    touched: I32  # (minis,)
    begin: I64  # (2, minis + 1) first fresh tuple of each touched mini-partition
    base: I64  # (1,)
    sequence: I64  # (2 * base,) with count windows, its own sequence number
    arrivals: I64  # (2,) earliest and latest arrival of the partition-group's fresh tuples
    walk: I64  # (2 * PREFETCH_MINIS,) current block of each chain that is being prefetched
    low: U16  # (2 * base,) of a band, the first tag that a partner may have
    reach: U16  # (2 * base,) and how many more follow
    strips: I64  # (2, 2 * (base // LANES + 2)) least and greatest time of every LANES tuples of a mini-partition, in turn


class Band(NamedTuple):
    """The keys of a join by a band (`core.band_keys.BandKeys`). reach: tags that a span takes, less one."""

    span: int
    wide: int
    cell_bits: int
    reach: int
    exact: bool

    @classmethod
    def of(cls, keys: BandKeys) -> Band:
        return cls(keys.span, keys.wide, keys.cell_bits, (keys.span + 1 >> keys.unit_bits) + 1, keys.exact)


class Hits(NamedTuple):
    """Comparisons of a probe with a block in which some tags were equal, to be turned into candidates."""

    mask: U64  # (HITS,) the equal tags
    position: I64  # (HITS,) 4 * (index of the block's first tuple) + kind of candidate
    probe: I64  # (HITS,) index of the fresh tuple
    control: I64  # (2,) hits, of them turned into candidates


class Candidates(NamedTuple):
    """Pairs with equal tags, to be verified. Kinds: 0 fresh left x stored right, 1 fresh right x stored left, 2 both fresh."""

    probe: U64  # (3 * CANDIDATES,) index of the fresh tuple's record in FreshTuples.rows
    row: U64  # (3 * CANDIDATES,) index of the other record in Pool.rows, or for kind 2 in FreshTuples.rows
    right: NDArray[np.uint8]  # (3 * CANDIDATES,) 1 for a match
    ids: U64  # (2, CANDIDATES) of the matches among those that are verified: of the probes, of the other records
    found: I64  # (3,)
    done: I64  # (3,) of them verified
    mode: I64  # (1,) PAIRS, FIRST_MATCHES and the other mode bits


class Runs(NamedTuple):
    """Scratch for tuples of one stream that are put in the order of their tags (`state.partner_runs`)."""

    tag: U16  # (RUN_TUPLES,) in the order in which they came
    place: U64  # (RUN_TUPLES,) index of its record, in that order; what follows is in the order of buckets
    row: U64  # (RUN_TUPLES,) index of its record
    key: I64  # (RUN_TUPLES,)
    ts: I64  # (RUN_TUPLES,)
    term: U64  # (RUN_TUPLES,) its part of a pair's digest
    starts: I64  # (RUN_BUCKETS + 1,) the first one of each bucket
    next: I64  # (RUN_BUCKETS,)
    verdict: U8  # (LANES,) 1 for a match, of some tuples of a run
    columns: Columns  # what a residual predicate reads of the tuples
    control: I64  # (15,)


class Inputs(NamedTuple):
    """A delivery's columns, each a pair (left, right)."""

    key: tuple[I64, I64]
    ts: tuple[I64, I64]
    id: tuple[U64, U64]
    arrival: tuple[I64, I64]
    ref: tuple[int, int]  # payload reference of each stream's first tuple
    groups: I64
    offsets: tuple[I64, I64]  # (groups + 1,)
    store: tuple[bool, bool]
    probe: tuple[bool, bool]
    sequence: tuple[I64, I64]  # own sequence numbers with count windows, where ts is the other stream's; else empty


class Output(NamedTuple):
    """Result rows; capacity[0] = 0: rows are only counted and digested."""

    key: I64
    ts: I64  # (2, capacity)
    id: U64
    ref: I64
    used: I64  # (1,)
    capacity: I64  # (1,)


def _aligned(size: int, dtype: Any) -> Any:
    """An untouched array that begins at a cache line, so that no record straddles two."""
    item = np.dtype(dtype).itemsize
    space = np.empty(size + 64 // item, dtype)
    skip = (-space.ctypes.data % 64) // item
    return space[skip : skip + size]


def block_bytes(block_tuples: int) -> int:
    """Memory that one block takes: records, tags up to a whole mask, header, and its entry in the stack of recycled blocks."""
    stride = -(-block_tuples // LANES) * LANES
    return 8 * ROW * block_tuples + 2 * stride + 8 * HEADER + 4


def new_pool(block_count: int, block_tuples: int, *, in_order: bool = True, band: BandKeys | None = None) -> Pool:
    """A pool of at most `block_count` blocks; memory becomes resident as blocks are used. band: None for an equality."""
    bits = (0, 0) if band is None else (band.cell_bits, band.unit_bits)
    stride = -(-block_tuples // LANES) * LANES
    return Pool(
        _aligned(block_count * block_tuples * ROW, np.int64),
        _aligned(block_count * stride, np.uint16),
        _aligned(block_count * HEADER, np.int64),
        np.empty(block_count, np.int32),
        np.array([0, 0, 0, block_count], np.int64),
        np.array([block_tuples, stride, int(in_order), *bits], np.int64),
    )


def new_minis(capacity: int) -> Minis:
    counters = _aligned(capacity * COUNTERS, np.int64)
    counters[:] = 0
    return Minis(
        counters,
        np.zeros(capacity, np.int32),
        np.zeros(capacity, np.int64),
        np.full(capacity, -1, np.int32),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int32),
        np.zeros(capacity, np.int32),
        np.zeros(4, np.int64),
    )


def grown_minis(old: Minis, capacity: int) -> Minis:
    """The same mini-partition-groups in larger arrays."""
    new = new_minis(capacity)
    for name, before in old._asdict().items():
        getattr(new, name)[: len(before)] = before
    return new


def new_directories(groups: int, slots: int) -> Directories:
    return Directories(
        np.zeros(slots, np.int32), np.full(groups, -1, np.int64), np.zeros(groups, np.int64), np.zeros(1, np.int64)
    )


def new_fresh(tuples: int, minis: int) -> FreshTuples:
    """Room for `tuples` fresh tuples of each stream in `minis` mini-partition-groups."""
    return FreshTuples(
        _aligned(2 * tuples * ROW, np.int64),
        _aligned(2 * tuples + LANES, np.uint16),
        np.empty(2 * tuples, np.int64),
        np.empty(2 * tuples, np.int32),
        np.empty(2 * tuples, np.int64),
        np.empty(minis, np.int32),
        np.empty((2, minis + 1), np.int64),
        np.array([tuples], np.int64),
        np.empty(2 * tuples, np.int64),
        np.zeros(2, np.int64),
        np.zeros(2 * PREFETCH_MINIS, np.int64),
        np.empty(2 * tuples, np.uint16),
        np.empty(2 * tuples, np.uint16),
        np.empty((2, 2 * (tuples // LANES + 2)), np.int64),
    )


def new_candidates(mode: int = PAIRS) -> Candidates:
    return Candidates(
        np.empty(3 * CANDIDATES, np.uint64),
        np.empty(3 * CANDIDATES, np.uint64),
        np.empty(3 * CANDIDATES, np.uint8),
        np.empty((2, CANDIDATES), np.uint64),
        np.zeros(3, np.int64),
        np.zeros(3, np.int64),
        np.array([mode], np.int64),
    )


def new_hits() -> Hits:
    return Hits(np.empty(HITS, np.uint64), np.empty(HITS, np.int64), np.empty(HITS, np.int64), np.zeros(2, np.int64))


def new_runs(fewest_probes: int = 32, fewest_tuples: int = 64) -> Runs:
    """Below either number, looking whether runs pay would cost too much. 0 and 0: always by runs, for tests."""
    n = RUN_TUPLES
    return Runs(
        _aligned(n, np.uint16),
        _aligned(n, np.uint64),
        _aligned(n, np.uint64),
        _aligned(n, np.int64),
        _aligned(n, np.int64),
        _aligned(n, np.uint64),
        np.zeros(RUN_BUCKETS + 1, np.int64),
        np.zeros(RUN_BUCKETS, np.int64),
        np.zeros(LANES_OF_RUNS, np.uint8),
        new_columns(n),
        np.array([fewest_probes, fewest_tuples, *[0] * 13], np.int64),
    )


def new_output(capacity: int) -> Output:
    """Memory becomes resident as it is used."""
    return Output(
        np.empty(capacity, np.int64),
        np.empty((2, capacity), np.int64),
        np.empty((2, capacity), np.uint64),
        np.empty((2, capacity), np.int64),
        np.zeros(1, np.int64),
        np.array([capacity], np.int64),
    )

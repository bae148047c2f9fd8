"""The arrays that the kernels work on, as named tuples: block pool, mini-partition-groups, directories, fresh tuples, output.

What: the shapes and dtypes of all window state of one slave, and how it is allocated and grown.
Why: numba kernels take plain arrays; naming them once keeps twenty arguments readable.
Stays out: any algorithm.

Streams: a leading axis of 2 (left, right). Large arrays are reserved without being touched, so resident memory follows use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import I64, U64

I32 = NDArray[np.int32]

# control fields of Pool and Minis
RECYCLED, NEVER_USED, IN_USE = 0, 1, 2

STAT_PAIRS, STAT_COMPARISONS, STAT_DELAY_SUM, STAT_DELAY_MAX = 0, 1, 2, 3
STAT_SIZE = 4

TUPLE_BYTES = 32  # key, ts, id, payload reference


class Pool(NamedTuple):
    """Blocks: block b holds positions b * block_tuples[0] ... of the tuple columns, `fill[b]` of them used, in time order."""

    key: I64  # (blocks * block_tuples,)
    ts: I64
    id: U64
    ref: I64
    next: I32  # (blocks,) the next newer block of the chain, or -1
    fill: I32
    free: I32  # recycled blocks, a stack
    control: I64  # (3,) recycled count, never used from here on, in use
    block_tuples: I64  # (1,)


class Minis(NamedTuple):
    """Mini-partition-groups (buckets of the directories). group -1: unused slot."""

    first: I32  # (2, minis) oldest block, or -1
    head: I32  # (2, minis) head block, or -1
    tuples: I64  # (2, minis)
    depth: I32  # local depth
    pattern: I64  # the low `depth` bits shared by its hashes
    group: I32
    guard: I64  # size at which splitting is tried again, after it could not help
    free: I32
    control: I64  # (3,) recycled count, never used from here on, in use


class Directories(NamedTuple):
    """One directory per partition-group, in one arena: slots[start[g] : start[g] + 2 ** depth[g]] are mini indexes.

    start -1: not here.
    """

    slots: I32
    start: I64  # (groups,)
    depth: I64  # (groups,) global depth
    control: I64  # (1,) used length of slots


class FreshTuples(NamedTuple):
    """Scratch for one partition-group's fresh tuples, sorted by mini-partition."""

    key: I64  # (2, n)
    ts: I64
    id: U64
    arrival: I64
    ref: I64
    mini_of: I32  # (2, n)
    tuples: I64  # (2, minis) fresh per mini-partition, all zero between groups
    touched: I32  # (minis,)
    begin: I64  # (2, minis + 1)


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


class Output(NamedTuple):
    """Matches waiting to leave; capacity[0] = 0: only count and digest are wanted."""

    key: I64
    ts: I64  # (2, capacity)
    id: U64
    ref: I64
    used: I64  # (1,)
    capacity: I64  # (1,)


def new_pool(block_count: int, block_tuples: int) -> Pool:
    """A pool of at most `block_count` blocks; memory becomes resident as blocks are used."""
    n = block_count * block_tuples
    return Pool(
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.uint64),
        np.empty(n, np.int64),
        np.empty(block_count, np.int32),
        np.empty(block_count, np.int32),
        np.empty(block_count, np.int32),
        np.zeros(3, np.int64),
        np.array([block_tuples], np.int64),
    )


def new_minis(capacity: int) -> Minis:
    return Minis(
        np.full((2, capacity), -1, np.int32),
        np.full((2, capacity), -1, np.int32),
        np.zeros((2, capacity), np.int64),
        np.zeros(capacity, np.int32),
        np.zeros(capacity, np.int64),
        np.full(capacity, -1, np.int32),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int32),
        np.zeros(3, np.int64),
    )


def grown_minis(old: Minis, capacity: int) -> Minis:
    """The same mini-partition-groups in larger arrays."""
    new = new_minis(capacity)
    n = old.group.shape[0]
    for name in ("first", "head", "tuples"):
        getattr(new, name)[:, :n] = getattr(old, name)
    for name in ("depth", "pattern", "group", "guard", "free"):
        getattr(new, name)[:n] = getattr(old, name)
    new.control[:] = old.control
    return new


def new_directories(groups: int, slots: int) -> Directories:
    return Directories(
        np.zeros(slots, np.int32), np.full(groups, -1, np.int64), np.zeros(groups, np.int64), np.zeros(1, np.int64)
    )


def new_fresh(tuples: int, minis: int) -> FreshTuples:
    return FreshTuples(
        np.empty((2, tuples), np.int64),
        np.empty((2, tuples), np.int64),
        np.empty((2, tuples), np.uint64),
        np.empty((2, tuples), np.int64),
        np.empty((2, tuples), np.int64),
        np.empty((2, tuples), np.int32),
        np.zeros((2, minis), np.int64),
        np.empty(minis, np.int32),
        np.empty((2, minis + 1), np.int64),
    )


def new_output(capacity: int) -> Output:
    return Output(
        np.empty(capacity, np.int64),
        np.empty((2, capacity), np.int64),
        np.empty((2, capacity), np.uint64),
        np.empty((2, capacity), np.int64),
        np.zeros(1, np.int64),
        np.array([capacity], np.int64),
    )

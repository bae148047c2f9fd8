"""The window state of one slave: partition-groups with their blocks and directories.

What: `WindowState`, the owner of all arrays of one slave: it opens groups, tunes and expires them, and hides, drains, refills
and reveals those that move (`HiddenGroup`).
Why: kernels work on arrays; one object owns, grows and checks them.
Stays out: joining (`operators.window_join`), payload bytes (`state.payload_store`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import I64, U8, U64, check_indexes
from swjoin.core.data_messages import Directory
from swjoin.core.errors import MORE_SLAVES, WINDOW_MEMORY, RunFailed
from swjoin.core.ids import GroupId
from swjoin.core.record_layout import (
    ID,
    KEY,
    REF,
    ROW,
    TS,
)
from swjoin.state.arrays import (
    BLOCK_LIMIT,
    COUNTERS,
    DUE,
    FILL,
    FIRST,
    HEADER,
    IN_USE,
    MINI_BYTES,
    NEVER_USED,
    NEXT,
    RECYCLED,
    SLOT_BYTES,
    TUPLES,
    block_bytes,
    grown_minis,
    new_directories,
    new_minis,
    new_pool,
)
from swjoin.state.blocks import (
    FAULTS,
    NONE,
    append_runs,
    chain_fault,
    drain_runs,
    expire,
    free_blocks,
    live_tuples,
    tuples_by_group,
)
from swjoin.state.extendible_hash import NEED_MINIS, TUNED, compact, give_mini, live_slots, merge_small, split_due, take_mini

Columns = tuple[I64, I64, U64, I64]  # key, time, id, payload reference
HIDDEN = -2  # minis.group of partition-group g on its way: HIDDEN - g


@dataclass(frozen=True)
class HiddenGroup:
    """A partition-group that is being moved: in this slave's blocks, but in none of its directories.

    Joining, expiry and tuning skip it. minis: int64 (minis,), index of each mini-partition-group of the directory.
    """

    group: GroupId
    directory: Directory
    minis: I64


class WindowState:
    """All window state of one slave for one query. theta_tuples 0: no fine tuning. owner: name for error messages.

    in_order: each partition-group's tuples of a stream arrive in time order; otherwise in any order. band: of a join by a band.
    """

    def __init__(
        self,
        block_tuples: int,
        theta_tuples: int,
        window_bytes: int,
        owner: str = "slave",
        *,
        in_order: bool = True,
        band: BandKeys | None = None,
    ) -> None:
        self.in_order = in_order
        self.block_tuples = block_tuples
        self.theta_tuples = theta_tuples
        self.window_bytes = window_bytes
        self.owner = owner
        self.block_bytes = block_bytes(block_tuples)
        blocks = max(4, min(window_bytes // self.block_bytes, (1 << 31) - 1))
        try:
            self.pool = new_pool(blocks, block_tuples, in_order=in_order, band=band)
        except MemoryError:
            problem = f"{window_bytes} bytes of window state cannot be reserved"
            raise RunFailed(problem, subject=(WINDOW_MEMORY,), remedy="set it lower") from None
        self.minis = new_minis(256)
        self.directories = new_directories(64, 256)
        self.hidden: dict[GroupId, HiddenGroup] = {}

    # ------------------------------------------------------------ groups

    def is_open(self, group: int) -> bool:
        return group < len(self.directories.start) and self.directories.start[group] >= 0

    def open_groups(self, groups: I64) -> None:
        """Create those of these partition-groups that do not exist, empty."""
        if len(groups) == 0:
            return
        self._make_room(int(groups.max()))
        for group in groups[self.directories.start[groups] < 0].tolist():
            self._reserve_slots(1)
            self._reserve_mini()
            start = int(self.directories.control[0])
            self.directories.control[0] += 1
            self.directories.start[group] = start
            self.directories.depth[group] = 0
            self.directories.slots[start] = take_mini(self.minis, group, 0, 0)

    def _make_room(self, group: int) -> None:
        old = self.directories
        if group < len(old.start):
            return
        size = max(group + 1, 2 * len(old.start))
        start, depth = np.full(size, -1, np.int64), np.zeros(size, np.int64)
        start[: len(old.start)] = old.start
        depth[: len(old.start)] = old.depth
        self.directories = old._replace(start=start, depth=depth)

    def _reserve_slots(self, count: int) -> None:
        if self.directories.control[0] + count > len(self.directories.slots):
            self.directories = compact(self.directories, 2 * (live_slots(self.directories) + count) + 256)

    def _reserve_mini(self) -> None:
        control = self.minis.control
        if control[RECYCLED] == 0 and control[NEVER_USED] == len(self.minis.group):
            self.minis = grown_minis(self.minis, 2 * len(self.minis.group))

    def group_ids(self) -> list[GroupId]:
        return [GroupId(int(g)) for g in np.flatnonzero(self.directories.start >= 0)]

    # ------------------------------------------------------------ after a delivery

    def tune(self) -> None:
        """Split every mini-partition-group above its range; merging follows expiry."""
        if self.theta_tuples == 0 or self.minis.control[DUE] == 0:
            return
        while (status := split_due(self.pool, self.minis, self.directories, self.theta_tuples)) != TUNED:
            if status == NEED_MINIS:
                self.minis = grown_minis(self.minis, 2 * len(self.minis.group))
            else:
                deepest = int(self.directories.depth.max())
                self._reserve_slots(max(2 << deepest, len(self.directories.slots) - int(self.directories.control[0]) + 1))

    def expire(self, dead_below_left: int, dead_below_right: int) -> int:
        """Drop the blocks whose newest tuple is older. Returns tuples dropped.

        Visits every mini-partition-group: call it only when the limits have advanced by some part of a window.
        """
        return int(expire(self.pool, self.minis, dead_below_left, dead_below_right))

    def merge(self) -> None:
        """Merge small buddies. Call it seldom: one at the edge of its range would be split again and again."""
        if self.theta_tuples > 0:
            merge_small(self.pool, self.minis, self.directories, self.theta_tuples)

    # ------------------------------------------------------------ measures

    def tuples(self) -> tuple[int, int]:
        left, right = live_tuples(self.minis)
        return int(left), int(right)

    def tuples_by_group(self, partition_count: int) -> I64:
        """Window tuples of every partition-group, both streams: int64 (partition_count,)."""
        out = np.zeros(partition_count, np.int64)
        tuples_by_group(self.minis, out)
        return out

    @property
    def block_count(self) -> int:
        return int(self.pool.control[IN_USE])

    @property
    def mini_group_count(self) -> int:
        return int(self.minis.control[IN_USE])

    @property
    def peak_block_count(self) -> int:
        """Most blocks that were in use at once: recycled ones are taken first."""
        return int(self.pool.control[NEVER_USED])

    @property
    def directory_bytes(self) -> int:
        """Of mini-partition-groups and directory entries in use."""
        return self.mini_group_count * MINI_BYTES + live_slots(self.directories) * SLOT_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes in use: blocks as wholes, mini-partition-groups and directories."""
        return self.block_count * self.block_bytes + self.directory_bytes

    def limit_blocks(self, other_bytes: int) -> None:
        """Limit blocks to what directories and `other_bytes` leave."""
        room = (self.window_bytes - other_bytes - self.directory_bytes) // self.block_bytes
        self.pool.control[BLOCK_LIMIT] = max(0, min(room, len(self.pool.free)))

    def blocks_wanted(self, counts: I64) -> int:
        """Most blocks that runs of so many tuples take."""
        return int((counts // self.block_tuples + 2).sum())

    # ------------------------------------------------------------ state movement

    def minis_of(self, group: GroupId) -> I64:
        """Mini-partition-groups of a partition-group, by first directory entry."""
        start, depth = int(self.directories.start[group]), int(self.directories.depth[group])
        slots = self.directories.slots[start : start + (1 << depth)]
        _, first = np.unique(slots, return_index=True)
        return slots[np.sort(first)].astype(np.int64)

    def _chain(self, mini: int, stream: int) -> list[int]:
        """The blocks of a mini-partition, oldest first."""
        blocks = []
        block = int(self.minis.counters[mini * COUNTERS + FIRST + stream])
        while block != NONE:
            blocks.append(block)
            block = int(self.pool.header[block * HEADER + NEXT])
        return blocks

    def tuples_of(self, mini: int) -> tuple[int, int]:
        """Tuples of a mini-partition-group, left and right."""
        at = mini * COUNTERS + TUPLES
        return int(self.minis.counters[at]), int(self.minis.counters[at + 1])

    def positions(self, mini: int, stream: int) -> I64:
        """Pool positions of a mini-partition's tuples, in time order."""
        parts = [np.empty(0, np.int64)]
        for block in self._chain(mini, stream):
            start = block * self.block_tuples
            parts.append(np.arange(start, start + int(self.pool.header[block * HEADER + FILL]), dtype=np.int64))
        return np.concatenate(parts)

    def columns(self, positions: I64) -> Columns:
        """Key, time, id and payload reference of the tuples at these pool positions, copied."""
        records = self.pool.rows.reshape(-1, ROW)[positions]
        key, ts, ids, refs = (np.ascontiguousarray(records[:, f]) for f in (KEY, TS, ID, REF))
        return key, ts, ids.view(np.uint64), refs

    def hide_group(self, group: GroupId) -> HiddenGroup:
        """Take a partition-group out of the directories; its blocks stay until `drain` has emptied them."""
        minis = self.minis_of(group)
        patterns = self.minis.pattern[minis].astype(np.int64)
        depths = self.minis.depth[minis].astype(np.int64)
        hidden = HiddenGroup(group, Directory(int(self.directories.depth[group]), patterns, depths), minis)
        self.minis.group[minis] = HIDDEN - group
        self.directories.start[group] = -1
        self.directories.depth[group] = 0
        self.hidden[group] = hidden
        return hidden

    def drain(
        self, hidden: HiddenGroup, stream: int, cursor: I64, dead_below_us: int, most_tuples: int, *, settles: bool
    ) -> tuple[I64, Columns]:
        """Take at most `most_tuples` tuples of a stream, oldest first per mini-partition-group, and give their blocks back.

        Returns how many each mini-partition-group gave, int64 (minis,), and key, time, id, payload reference. cursor: int64
        (2,), zeros at first, updated; cursor[0] is len(minis) when the stream is empty. Tuples with times below
        `dead_below_us` are dropped; settles: only if they have matched or been emitted.
        """
        counts = np.zeros(len(hidden.minis), np.int64)
        n = most_tuples
        columns = (np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.int64))
        n = drain_runs(self.pool, self.minis, stream, hidden.minis, cursor, dead_below_us, settles, *columns, counts)
        key, ts, ids, refs = columns
        return counts, (key[:n], ts[:n], ids[:n], refs[:n])

    def forget_group(self, group: GroupId) -> None:
        """Free the mini-partition-groups of a drained partition-group."""
        for mini in self.hidden.pop(group).minis.tolist():
            give_mini(self.minis, mini)

    def expect_group(self, group: GroupId, directory: Directory) -> HiddenGroup:
        """Create an empty, hidden partition-group, to be filled by `append_runs`. RunFailed when it is here already."""
        if self.is_open(group) or group in self.hidden:
            raise RunFailed(f"partition-group {group} is here already; installing it would lose its windows")
        minis = []
        for depth, pattern in zip(directory.depths.tolist(), directory.patterns.tolist(), strict=True):
            self._reserve_mini()
            minis.append(take_mini(self.minis, HIDDEN - group, depth, pattern))
        self.hidden[group] = HiddenGroup(group, directory, np.array(minis, np.int64))
        return self.hidden[group]

    def append_runs(
        self,
        hidden: HiddenGroup,
        stream: int,
        which: I64,
        counts: I64,
        columns: tuple[I64, I64, U64],
        flags: U8 | None,
        first_ref: int,
    ) -> None:
        """Append runs of window tuples (key, time, id) to mini-partition-groups `which` (indexes into the directory's lists).

        RunFailed when the windows are full, or the runs do not fit the columns.
        """
        check_indexes(which, 0, len(hidden.minis), f"partition-group {hidden.group} arrives")
        tuples = len(columns[0])
        flagged = tuples if flags is None else len(flags)
        if len(which) != len(counts) or counts.min(initial=0) < 0 or int(counts.sum()) != tuples or flagged != tuples:
            raise RunFailed(
                f"internal error: partition-group {hidden.group} arrives: runs and marks do not fit {tuples} tuples"
            )
        if self.blocks_wanted(counts) > free_blocks(self.pool):
            raise self.no_room(hidden.group, len(columns[0]))
        marks = np.empty(0, np.uint8) if flags is None else flags
        append_runs(self.pool, self.minis, stream, hidden.minis[which], counts, *columns, marks, first_ref)

    def no_room(self, group: GroupId, tuples: int) -> RunFailed:
        return RunFailed(
            f"arriving partition-group {group} finds no room for {tuples} more tuples",
            subject=self.owner,
            remedy=(MORE_SLAVES, "raise ", WINDOW_MEMORY, f" ({self.window_bytes} bytes)"),
        )

    def reveal_group(self, group: GroupId) -> None:
        """Put a complete hidden partition-group into the directories, with the same splitting information."""
        hidden = self.hidden.pop(group)
        self._make_room(group)
        depth = hidden.directory.depth
        size = 1 << depth
        self._reserve_slots(size)
        start = int(self.directories.control[0])
        self.directories.control[0] += size
        self.directories.start[group] = start
        self.directories.depth[group] = depth
        self.minis.group[hidden.minis] = group
        columns = (hidden.minis.tolist(), hidden.directory.patterns.tolist(), hidden.directory.depths.tolist())
        for mini, pattern, local in zip(*columns, strict=True):
            self.directories.slots[start + pattern : start + size : 1 << local] = mini

    # ------------------------------------------------------------ invariants

    def validate(self) -> None:
        """Raise AssertionError, saying where, on any broken invariant of pool, directories or time order."""
        used = 0
        live = 0
        for group in self.group_ids():
            start, depth = int(self.directories.start[group]), int(self.directories.depth[group])
            slots = self.directories.slots[start : start + (1 << depth)]
            for mini in self.minis_of(group).tolist():
                live += 1
                where = f"partition-group {group}, mini {mini}"
                local, pattern = int(self.minis.depth[mini]), int(self.minis.pattern[mini])
                assert self.minis.group[mini] == group, f"{where}: belongs to {self.minis.group[mini]}"
                entries = np.flatnonzero(slots == mini)
                assert len(entries) == 1 << (depth - local), f"{where}: {len(entries)} entries at depths {local} of {depth}"
                assert (entries & ((1 << local) - 1) == pattern).all(), f"{where}: entries {entries} do not share {pattern:b}"
                for stream in (0, 1):
                    fault, blocks = chain_fault(self.pool, self.minis, mini, stream, self.in_order)
                    assert fault == 0, f"{where}: {FAULTS[fault]}"
                    used += blocks
        for group, hidden in self.hidden.items():
            live += len(hidden.minis)
            assert not self.is_open(group), f"partition-group {group}: hidden, and in the directories"
            for mini in hidden.minis.tolist():
                assert self.minis.group[mini] == HIDDEN - group, f"partition-group {group}, mini {mini}: is not hidden"
                used += sum(len(self._chain(mini, stream)) for stream in (0, 1))
        assert live == self.mini_group_count, f"{live} mini-partition-groups reachable, {self.mini_group_count} in use"
        assert used == self.block_count, f"{used} blocks reachable, {self.block_count} in use"
        control = self.pool.control
        assert control[RECYCLED] + used == control[NEVER_USED], "a block is neither free nor in use"
        assert self.minis.control[DUE] == 0 or self.theta_tuples > 0, "mini-partition-groups due without fine tuning"

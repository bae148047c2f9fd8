"""Births and deaths in the order of time, group by group, and what is alive in between, as kernels.

What: `Sweep`: the instants of groups, with counts, sums, and least values of the rows that are alive; `group_numbers`;
`first_of_values`, of equal values those whose births and deaths count.
Why: a row that dies is taken away again from counts and sums, which are exact (`state.exact_sums`); the least value is the
first one of a heap, from which dead ones are removed when they come first. So an instant costs its births and deaths, and the
rows of a group O(n log n), however many of them are alive.
Stays out: which rows are kept and what is final (`operators.live_groups`), values of columns (`core.life_columns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, Bool
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US
from swjoin.core.kernel_cache import kernel
from swjoin.state.exact_sums import Slots, add_values, clear_slots, new_slots, read_values

F64 = NDArray[np.float64]
CHANGES: Final = 0  # of `Span.mode`
BOUNDARIES: Final = 1
BIRTHS: Final = 2
_GROUP, _FREE = 0, 5  # of `_Now.cursor`: group, its next birth and death, rows alive, next boundary, free rows of sums, open
_INTEGERS, _DOUBLES = int(Accumulation.INTEGERS), int(Accumulation.DOUBLES)
_LEAST, _GREATEST = int(Accumulation.LEAST), int(Accumulation.GREATEST)
_NONE: Final = -1
_MOVES: Final = 16  # a row, of sorting by insertion


class Span(NamedTuple):
    """Which instants come out: those in [from_us, until_us) at which something happens, or multiples of every_us."""

    mode: int
    every_us: int
    from_us: int
    until_us: int


class LiveRows(NamedTuple):
    """n rows. group: their numbers, from 0 on. born, dead: microseconds, born < dead; LAST_TIME_US: never dies. int64 (n,)."""

    group: I64
    born: I64
    dead: I64


class Values(NamedTuple):
    """Of a call, of n rows: int64 (n,) words, as `core.life_columns.LifeColumns.words` has them. born, died: bool (n,), whose
    births and deaths count: those of rows with a value."""

    accumulation: int
    words: I64
    born: Bool
    died: Bool


class _Events(NamedTuple):
    """births, deaths: int64, positions of rows by group and time. first_birth, first_death: int64 (groups + 1,), where those of
    each group begin. born, dead: of the rows. starts, ends: int64 (groups,), between which boundaries come out."""

    births: I64
    deaths: I64
    first_birth: I64
    first_death: I64
    born: I64
    dead: I64
    starts: I64
    ends: I64


class _Calls(NamedTuple):
    """kind: int64 (calls,), accumulations. heap: int64 (calls,), the heap of each call, or -1. words: int64 (calls, n). gains,
    losses: bool (calls, n), whether a row's birth or death counts."""

    kind: I64
    heap: I64
    words: I64
    gains: Bool
    losses: Bool


class _Now(NamedTuple):
    """What is alive. cursor: int64 (7,). counts: int64 (calls,). low, high: uint64 and int64 (calls,), sums of integers.
    keys, deaths: int64 (heaps, most rows of a group), binary heaps by key. sizes: int64 (heaps,). slot: int64 (calls,), of
    sums. word: int64 (1,), value: float64 (1,): the same memory."""

    cursor: I64
    counts: I64
    low: NDArray[np.uint64]
    high: I64
    keys: I64
    deaths: I64
    sizes: I64
    slot: I64
    word: I64
    value: F64


class Totals(NamedTuple):
    """Of the rows of groups that are alive: alive, how many, int64 (groups,); by call counts and both words of sums of
    integers, int64 (calls, groups)."""

    alive: I64
    counts: I64
    low: I64
    high: I64


def no_totals(calls: int, groups: int) -> Totals:
    """Of groups in which nothing is alive."""
    return Totals(np.zeros(groups, np.int64), *np.zeros((3, calls, groups), np.int64))


class Instants(NamedTuple):
    """Groups at instants. group: numbers. instant: microseconds. int64 (n,). counts, low, high: int64 (calls, n), as
    `core.life_columns.LifeTotals` has them."""

    group: I64
    instant: I64
    counts: I64
    low: I64
    high: I64


# ---------------------------------------------------------------- groups


@kernel
def _number(codes: I64, nulls: Bool, marked: Bool, table: I64, out: I64) -> int:
    """Numbers for the groups of the marked rows, then of all rows; -1 where no row of the group is marked. table: int64, of -1,
    a power of two of entries: each the position of a row of another group."""
    mask, count = np.uint64(table.shape[0] - 1), 0
    for marking in (True, False):
        for i in range(codes.shape[0]):
            if marking and not marked[i]:
                continue
            at = mix64_scalar(np.uint64(codes[i]) * GOLDEN + np.uint64(nulls[i])) & mask
            while table[at] >= 0:
                row = table[at]
                if codes[row] == codes[i] and nulls[row] == nulls[i]:
                    break
                at = (at + np.uint64(1)) & mask
            if table[at] >= 0:
                out[i] = out[table[at]]
            elif marking:
                table[at], out[i] = i, count
                count += 1
            else:
                out[i] = -1
    return count


def group_numbers(codes: I64, nulls: Bool, marked: Bool) -> tuple[I64, int]:
    """A number, from 0 on, for each group that has a marked row, and how many there are. codes, nulls: of n rows. Returns int64
    (n,), -1 for rows of other groups."""
    size = 16
    while size < 2 * np.count_nonzero(marked):
        size *= 2
    out: I64 = np.empty(len(codes), np.int64)
    return out, _number(codes, nulls, marked, np.full(size, -1, np.int64), out)


@kernel
def _by_group(rows: I64, group: I64, at: I64, out: I64) -> None:
    """Positions group by group, within a group as they are. at: where each group begins."""
    for i in range(rows.shape[0]):
        g = group[rows[i]]
        out[at[g]] = rows[i]
        at[g] += 1


@kernel
def _sort_groups(times: I64, first: I64, most: int, out: I64) -> bool:
    """Sort the positions of each group by time. first: where each group begins. False if this needs more than so many moves."""
    moves = 0
    for g in range(first.shape[0] - 1):
        for i in range(first[g] + 1, first[g + 1]):
            row, at = out[i], i
            time = times[row]
            while at > first[g] and times[out[at - 1]] > time:
                out[at] = out[at - 1]
                at -= 1
            out[at] = row
            moves += i - at
            if moves > most:
                return False
    return True


def happening(times: I64, from_us: int, until_us: int = LAST_TIME_US) -> I64:
    """The positions of times from one on and before another one."""
    return np.flatnonzero((times >= from_us) & (times < until_us))


def _events_of(rows: I64, times: I64, group: I64, count: int) -> tuple[I64, I64]:
    """These positions by group and time, and where each group begins. times, group: of all rows."""
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(group[rows], minlength=count), out=first[1:])
    out = np.empty(len(rows), np.int64)
    _by_group(rows, group, first[:-1].copy(), out)
    if not _sort_groups(times, first, _MOVES * len(rows), out):  # rows of a group mostly come in order
        _by_group(rows[np.argsort(times[rows])], group, first[:-1].copy(), out)
    return out, first


@kernel
def rows_of_span(born: I64, dead: I64, from_us: int, until_us: int, out: I64) -> tuple[int, int, int]:
    """Fill out with the positions of rows that are born or die in a span; those at LAST_TIME_US never die. Returns how many
    there are, how many rows are dead before its end, and the next birth or death, END_OF_TIME_US if there is none."""
    count, gone, next_us, deaths_until = 0, 0, END_OF_TIME_US, min(until_us, LAST_TIME_US)
    for i in range(born.shape[0]):
        birth, death = born[i], dead[i]
        if (birth >= from_us and birth < until_us) or (death >= from_us and death < deaths_until):
            out[count] = i
            count += 1
        gone += death < until_us
        if birth >= until_us:
            next_us = min(next_us, birth)
        elif death >= until_us and death < LAST_TIME_US:
            next_us = min(next_us, death)
    return count, gone, next_us


@kernel
def _mark_firsts(order: I64, lives: LiveRows, words: I64, born: Bool, died: Bool) -> None:
    """order: positions by group, word and birth."""
    group, birth, death = lives.group, lives.born, lives.dead
    last = -1  # the row that dies last, of those of one value that are alive without a pause
    for i in range(order.shape[0]):
        row = order[i]
        if last >= 0 and group[row] == group[last] and words[row] == words[last] and birth[row] <= death[last]:
            if death[row] > death[last]:
                last = row
        else:
            if last >= 0:
                died[last] = True
            born[row] = True
            last = row
    if last >= 0:
        died[last] = True


def first_of_values(lives: LiveRows, words: I64, valid: Bool | None) -> tuple[Bool, Bool]:
    """Of rows with equal values in a group, whose lives meet or overlap, the one that is born first and the one that dies last:
    the value is alive between. bool (n,) each."""
    some = np.arange(len(words)) if valid is None else np.flatnonzero(valid)
    order = some[np.lexsort((lives.born[some], words[some], lives.group[some]))]
    born, died = np.zeros(len(words), np.bool_), np.zeros(len(words), np.bool_)
    _mark_firsts(order, lives, words, born, died)
    return born, died


# ---------------------------------------------------------------- heaps


@kernel
def _push(keys: I64, deaths: I64, sizes: I64, h: int, key: int, death: int) -> None:
    """Add a value to heap h. One that dies no later than a lesser or equal one is never the least."""
    at = sizes[h]
    if at > 0 and keys[h, 0] <= key and deaths[h, 0] >= death:
        return
    sizes[h] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if keys[h, above] <= key:
            break
        keys[h, at], deaths[h, at] = keys[h, above], deaths[h, above]
        at = above
    keys[h, at], deaths[h, at] = key, death


@kernel
def _remove_dead(keys: I64, deaths: I64, sizes: I64, h: int, now_us: int) -> None:
    """Remove from heap h what comes first and is dead."""
    size = sizes[h]
    while size > 0 and deaths[h, 0] <= now_us:
        size -= 1
        key, death = keys[h, size], deaths[h, size]
        at = 0
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and keys[h, below + 1] < keys[h, below]:
                below += 1
            if keys[h, below] >= key:
                break
            keys[h, at], deaths[h, at] = keys[h, below], deaths[h, below]
            at = below
        keys[h, at], deaths[h, at] = key, death
    sizes[h] = size


# ---------------------------------------------------------------- births, deaths, instants


@kernel
def _go_on(span: Span, events: _Events, calls: _Calls, sums: Slots, totals: Totals, now: _Now, out: Instants) -> int:
    """Fill `out` with the next instants. Returns how many there are: fewer than have room at the end only. totals: of groups
    before their events; afterwards those behind them."""
    births, deaths, first_birth, first_death, born, dead, starts, ends = events
    mode, every_us, from_us, until_us = span
    kind, heap, words, gains, losses = calls
    cursor, counts, low, high, keys, least_deaths, sizes, slot, word, value = now
    total_alive, total_counts, total_low, total_high = totals
    out_group, out_instant, out_counts, out_low, out_high = out
    call_count, room, n = kind.shape[0], out_group.shape[0], 0
    g, birth, death, alive, boundary, free, is_open = cursor
    while g < ends.shape[0]:
        if is_open == 0:
            is_open, birth, death, boundary = 1, first_birth[g], first_death[g], starts[g]
            alive = total_alive[g]
            for c in range(call_count):
                counts[c], low[c], high[c] = total_counts[c, g], np.uint64(total_low[c, g]), total_high[c, g]
        last_birth, last_death = first_birth[g + 1], first_death[g + 1]
        while True:
            at_us = until_us  # of the next birth or death
            if birth < last_birth:
                at_us = min(at_us, born[births[birth]])
            if death < last_death:
                at_us = min(at_us, dead[deaths[death]])
            shown_us = at_us
            if mode == BOUNDARIES and alive > 0 and boundary < min(at_us, ends[g]):
                shown_us = boundary
                boundary += every_us
                shows = True
            elif at_us >= until_us:
                break
            else:
                boundary = max(boundary, at_us)
                shows = mode != BOUNDARIES and at_us >= from_us
                was_empty = True
                for dies in (True, False):
                    while True:
                        if dies:
                            if death >= last_death or dead[deaths[death]] != at_us:
                                break
                            row = deaths[death]
                            death += 1
                            alive -= 1
                        else:
                            if birth >= last_birth or born[births[birth]] != at_us:
                                break
                            row = births[birth]
                            birth += 1
                            alive += 1
                        for c in range(call_count):
                            if not (losses[c, row] if dies else gains[c, row]):
                                continue
                            counts[c] += -1 if dies else 1
                            if kind[c] == _INTEGERS:
                                part, before = np.uint64(words[c, row]), low[c]
                                if dies:
                                    low[c] = before - part
                                    high[c] -= (words[c, row] >> 63) + np.int64(before < part)
                                else:
                                    low[c] = before + part
                                    high[c] += (words[c, row] >> 63) + np.int64(low[c] < before)
                            elif kind[c] == _DOUBLES:
                                word[0] = words[c, row]
                                _, free = add_values(sums, slot[c : c + 1], value, -1 if dies else 1, 0, free)
                            elif heap[c] >= 0 and not dies:
                                _push(keys, least_deaths, sizes, heap[c], words[c, row], dead[row])
                    if dies:
                        was_empty = alive == 0
                shows = shows and (mode == CHANGES or (was_empty and alive > 0))
            if not shows:
                continue
            out_group[n], out_instant[n] = g, shown_us
            for c in range(call_count):
                out_counts[c, n], out_low[c, n], out_high[c, n] = counts[c], np.int64(low[c]), high[c]
                if kind[c] == _DOUBLES:
                    read_values(sums, slot[c : c + 1], value)
                    out_low[c, n] = word[0]
                elif heap[c] >= 0:
                    _remove_dead(keys, least_deaths, sizes, heap[c], shown_us)
                    out_low[c, n] = keys[heap[c], 0] if sizes[heap[c]] else 0
            n += 1
            if n == room:
                cursor[:] = (g, birth, death, alive, boundary, free, is_open)
                return n
        free = clear_slots(sums, slot, free)
        total_alive[g] = alive
        for c in range(call_count):
            total_counts[c, g], total_low[c, g], total_high[c, g] = counts[c], np.int64(low[c]), high[c]
        sizes[:] = 0
        is_open = 0
        g += 1
    cursor[_GROUP] = g
    return n


class Sweep:
    """The instants of a span of n rows. values: of each call. ends: int64 (groups,), of boundaries: below which of each group
    come out; starts: and from which on. None: those of the span. totals: of groups at a time, which become those at the end of
    the span, and this time, from which on births and deaths count; calls are counts and sums of integers then. None: nothing is
    alive before the first birth."""

    def __init__(
        self,
        span: Span,
        lives: LiveRows,
        values: Sequence[Values],
        group_count: int,
        edges: tuple[I64, I64] | None = None,
        totals: tuple[Totals, int] | None = None,
    ) -> None:
        group, born, dead = lives
        self._totals, from_us = totals or (no_totals(len(values), group_count), BEGIN_OF_TIME_US)
        births, first_birth = _events_of(happening(born, from_us), born, group, group_count)
        deaths, first_death = _events_of(happening(dead, from_us), dead, group, group_count)
        whole = np.full(group_count, span.from_us), np.full(group_count, span.until_us)
        starts, ends = whole if edges is None else edges
        if span.mode == BOUNDARIES:
            starts = -(-starts // span.every_us) * span.every_us
        self._span = span
        self._events = _Events(births, deaths, first_birth, first_death, born, dead, starts, ends)
        count, rows = len(values), len(born)
        kinds = np.array([v.accumulation for v in values], np.int64)
        in_heap = (kinds == _LEAST) | (kinds == _GREATEST)
        words: I64 = np.empty((count, rows), np.int64)
        gains, losses = np.empty((count, rows), np.bool_), np.empty((count, rows), np.bool_)
        for c, value in enumerate(values):
            words[c], gains[c], losses[c] = value.words, value.born, value.died
        self._calls = _Calls(kinds, np.where(in_heap, np.cumsum(in_heap) - 1, _NONE), words, gains, losses)
        self._sums = new_slots(count)
        heaps = int(in_heap.sum()), int(np.diff(first_birth).max(initial=0))
        cursor: I64 = np.zeros(7, np.int64)
        cursor[_FREE] = count
        numbers, value_of = np.zeros((2, count), np.int64), np.zeros(1, np.float64)
        self._now = _Now(
            cursor,
            numbers[0],
            np.zeros(count, np.uint64),
            numbers[1],
            np.empty(heaps, np.int64),
            np.empty(heaps, np.int64),
            np.zeros(heaps[0], np.int64),
            np.arange(count),
            value_of.view(np.int64),
            value_of,
        )

    def instants(self, most: int) -> Iterator[Instants]:
        """All of them, in pieces of so many at most."""
        count, found = len(self._calls.kind), most
        while found == most:
            numbers = np.empty((3, count, most), np.int64)
            out = Instants(np.empty(most, np.int64), np.empty(most, np.int64), *numbers)
            found = _go_on(self._span, self._events, self._calls, self._sums, self._totals, self._now, out)
            if found:
                yield Instants(out.group[:found], out.instant[:found], *(part[:, :found] for part in out[2:]))

"""The operator of joins whose windows count rows: rows of several parts that are alive at once, in one order of all.

What: `CountedJoin`, an operator as `JoinOperator` describes it; `CountedParts`.
Why: a row leaves a window of n rows when the n-th row of its part after it has come, so rows are taken in one order, once the
watermark says that none comes before them; what is kept are the windows (specs/cqels.md, 1 and 3.2).
Stays out: columns of rows (`core.counted_columns`), which rows are joined (`plan.counted_joins`).

Rows with times before the last watermark are in the windows, later ones wait. Those that have become final are taken in pieces
about as large as the windows: each piece is looked at with what the windows have, so that work and memory are those of the
rows, and not of all that the windows have ever held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.counted_columns import CountedColumns
from swjoin.core.ids import END_OF_TIME_US
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.keyed_operator import Limits

_LEAST = 8_192  # rows of a piece
_MOST = 1 << 18  # rows of what is found at once
_NEVER = 1 << 62  # a place behind all rows


@dataclass(frozen=True)
class CountedParts:
    """columns: shared ones that the rows of each part have. streams, counts, widths: as of `plan.counted_joins.CountedJoin`."""

    columns: tuple[tuple[str, ...], ...]
    streams: tuple[int, ...]
    counts: tuple[int, ...]
    widths: tuple[int, ...]

    def order(self, first: int) -> list[int]:
        """The other parts: each that shares a column with those before it, where there is one."""
        found, known, waiting = list[int](), set(self.columns[first]), [i for i in range(len(self.columns)) if i != first]
        while waiting:
            part = next((i for i in waiting if known & set(self.columns[i])), waiting[0])
            waiting.remove(part)
            found.append(part)
            known |= set(self.columns[part])
        return found


class _Piece(NamedTuple):
    """Rows of the windows and those that are taken. rows: positions in the order of all, int64 (n,), ascending. first: place of
    the first row that is taken. parts, ts, until: by place; the place at which a row has left its window."""

    rows: I64
    first: int
    parts: I64
    ts: I64
    until: I64
    codes: Mapping[str, I64]


class _Found(NamedTuple):
    """Rows that agree, by part: places in a piece, int64 (m,). newest: the last one of each. until, end_us: the place from
    which on they are not all alive, and the last time at which they are."""

    places: dict[int, I64]
    newest: I64
    until: I64
    end_us: I64


class CountedJoin(RowsOperator):
    """name: owner, for messages."""

    what = "window"

    def __init__(self, parts: CountedParts, columns: CountedColumns, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._parts, self._columns = parts, columns
        self._widths = np.array(parts.widths, np.int64)
        self._streams = np.array(parts.streams, np.int64)
        self._orders = [parts.order(first) for first in range(len(parts.columns))]

    # ------------------------------------------------------------ rows that become final

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Results whose last row is before this time."""
        order = self._in_order(watermark_us)
        rows, groups = self._kept.rows, self._kept.groups
        fresh = int(np.searchsorted(rows.ts[order], self._final_us))
        if fresh < len(order):
            codes = {name: found[order] for name, found in self._columns.codes(rows).items()}
            parts = self._columns.parts_of(rows)[order]
            alive: I64 = np.arange(fresh)
            while fresh < len(order):
                stop = min(len(order), fresh + max(_LEAST, len(alive)))
                piece = self._piece(np.concatenate([alive, np.arange(fresh, stop)]), len(alive), parts, rows.ts[order], codes)
                for positions, newest in self._matches(piece):
                    found = self._columns.joined(rows, [order[piece.rows[at]] for at in positions], order[piece.rows[newest]])
                    yield found, groups[order[piece.rows[newest]]]
                alive = piece.rows[self._alive(piece.parts, piece.ts, int(piece.ts[-1]))]
                fresh = stop
        self._pass(watermark_us)

    def _in_order(self, watermark_us: int) -> I64:
        """Positions of the rows before this time, in the order of all: int64 (n,)."""
        if not len(self._kept):
            return np.empty(0, np.int64)
        rows = self._kept.rows
        final: I64 = np.flatnonzero(rows.ts < watermark_us)
        parts = self._columns.parts_of(rows)[final]
        return final[np.lexsort((parts, rows.id[final], self._streams[parts], rows.ts[final]))]

    def _piece(self, rows: I64, first: int, parts: I64, ts: I64, codes: Mapping[str, I64]) -> _Piece:
        mine = parts[rows]
        until = np.full(len(rows), _NEVER, np.int64)
        for part, count in enumerate(self._parts.counts):
            if count:
                at = np.flatnonzero(mine == part)
                until[at[:-count]] = at[count:]
        return _Piece(rows, first, mine, ts[rows], until, {name: found[rows] for name, found in codes.items()})

    def _alive(self, parts: I64, ts: I64, next_us: int) -> Bool:
        """Which rows, in the order of all, may join rows behind them, which have at least this time: bool (n,)."""
        alive: Bool = ts + np.minimum(self._widths[parts], END_OF_TIME_US - np.maximum(ts, 0)) >= next_us
        for part, count in enumerate(self._parts.counts):
            if count:
                at = np.flatnonzero(parts == part)
                alive[at] = False
                alive[at[-count:]] = True
        return alive

    # ------------------------------------------------------------ matches

    def _matches(self, piece: _Piece) -> Iterator[tuple[list[I64], I64]]:
        """Places of rows that join, by part, and of the last one of each. Of those that are taken, the one of the highest part
        finds the others: among the parts below it whatever the piece has, among those above it what the windows had."""
        taken = np.arange(len(piece.rows)) >= piece.first
        mine = [piece.parts == part for part in range(len(self._parts.columns))]
        for first, order in enumerate(self._orders):
            places = np.flatnonzero(mine[first] & taken)
            sides = [np.flatnonzero(mine[part] if part < first else mine[part] & ~taken) for part in order]
            if not len(places) or not all(map(len, sides)):
                continue
            found = _Found({first: places}, places, piece.until[places], self._ends(piece, places))
            for each in self._extended(piece, found, [*zip(order, sides, strict=True)]):
                yield [each.places[part] for part in range(len(self._parts.columns))], each.newest

    def _ends(self, piece: _Piece, places: I64) -> I64:
        """The last time at which rows are alive, in windows of a width."""
        parts, ts = piece.parts[places], piece.ts[places]
        counted = np.array(self._parts.counts)[parts] > 0
        ends: I64 = np.where(counted, END_OF_TIME_US, ts + np.minimum(self._widths[parts], END_OF_TIME_US - np.maximum(ts, 0)))
        return ends

    def _extended(self, piece: _Piece, found: _Found, rest: Sequence[tuple[int, I64]]) -> Iterator[_Found]:
        """With the rows of the other parts."""
        if not rest:
            yield found
            return
        (part, places), known = rest[0], {name: of for of in found.places for name in self._parts.columns[of]}
        shared = [name for name in self._parts.columns[part] if name in known]
        mine, theirs = (np.zeros(len(at), np.int64) for at in (found.newest, places))
        for name in shared[:2]:  # codes are below the number of rows
            size, codes = len(piece.rows) + 1, piece.codes[name]
            mine, theirs = mine * size + codes[found.places[known[name]]], theirs * size + codes[places]
        by = np.argsort(theirs, kind="stable")
        first, last = (np.searchsorted(theirs[by], mine, side) for side in ("left", "right"))
        until = np.cumsum(last - first)
        for start in range(0, int(until[-1]) if len(until) else 0, _MOST):
            out: I64 = np.arange(start, min(start + _MOST, int(until[-1])))
            at = np.searchsorted(until, out, "right")
            other = places[by[last[at] - (until[at] - out)]]
            newest = np.maximum(found.newest[at], other)
            left, end_us = (
                np.minimum(found.until[at], piece.until[other]),
                np.minimum(found.end_us[at], self._ends(piece, other)),
            )
            fits = (newest < left) & (piece.ts[newest] <= end_us)
            for name in shared:  # null agrees with nothing
                codes = piece.codes[name]
                fits &= (codes[other] >= 0) & (codes[found.places[known[name]][at]] == codes[other])
            if fits.any():
                made = {of: places_of[at[fits]] for of, places_of in found.places.items()} | {part: other[fits]}
                yield from self._extended(piece, _Found(made, newest[fits], left[fits], end_us[fits]), rest[1:])

    # ------------------------------------------------------------ what is kept

    def _pass(self, watermark_us: int) -> None:
        """Rows before this time are in the windows: those that have left them are needed no longer."""
        if watermark_us > self._final_us:
            order = self._in_order(watermark_us)
            if len(order):
                rows, groups = self._kept.rows, self._kept.groups
                alive = self._alive(self._columns.parts_of(rows)[order], rows.ts[order], watermark_us)
                if watermark_us == END_OF_TIME_US:
                    alive[:] = False
                if not alive.all():
                    waiting = np.flatnonzero(rows.ts >= watermark_us)
                    index = np.concatenate([order[alive], waiting])
                    self._kept = KeptRows()
                    self._kept.add(rows.take(index), groups[index])
            self._final_us = watermark_us

    def needed_us(self) -> int:
        """The time before which no row is needed, however long the run goes on."""
        return min(self._final_us, int(self._kept.rows.ts.min())) if len(self._kept) else self._final_us

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        order = self._in_order(self._final_us)
        rows: TupleBatch = self._kept.rows
        if len(order):
            alive = self._alive(self._columns.parts_of(rows)[order], rows.ts[order], self._final_us)
            assert alive.all(), f"{self._name}: rows that have left their windows"

"""The operator of groups of rows that are alive: what is computed of them, at births and deaths, or at multiples of a time.

What: `LiveGroups`, an operator as `JoinOperator` describes it; `Rule`, when rows come out.
Why: a row comes once, with its birth and its death; both are final when the watermark has passed them, so rows are kept until
they are dead, and no message tells of a death.
Stays out: births and deaths in order (`state.life_kernel`), columns of rows (`core.life_columns`).

A row that is kept has its birth as its time, and its death as its key. What comes out by a watermark is computed anew of the
rows that are kept, of groups alone in which something happens: it does not depend on what was computed before, so a
partition-group moves, and is restored, with its rows alone. At changes and births, counts and sums of integers go on from
those at the last watermark, which are computed of the rows that are kept after a move or a restore.

Where boundaries come out, and a row of a group never dies, those beyond the last birth or death of the group wait for the next
one; the row that died last is kept, as it says where they begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US, GroupId
from swjoin.core.life_columns import LifeCall, LifeColumns, LifeTotals
from swjoin.operators.join_operator import MoveId
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.keyed_operator import LeavingState, Limits
from swjoin.state.group_totals import GroupTotals
from swjoin.state.life_kernel import (
    BOUNDARIES,
    Instants,
    LiveRows,
    Span,
    Sweep,
    Values,
    first_of_values,
    group_numbers,
    happening,
    rows_of_span,
)

_CODE_BYTES = 9  # of a row's group
_PLAIN = (Accumulation.COUNT, Accumulation.INTEGERS)  # what is computed needs no values of rows that were born before


class Rule(NamedTuple):
    """mode: `state.life_kernel.CHANGES`, `BOUNDARIES` or `BIRTHS`. every_us: between boundaries. longest_us: no life is longer,
    from a row's own time on; 0: unknown."""

    mode: int
    every_us: int = 0
    longest_us: int = 0


class _Part(NamedTuple):
    """Rows, and for each its partition-group, and the code of its group, or null: int64, int64 and bool (n,)."""

    rows: TupleBatch
    groups: I64
    codes: I64
    nulls: Bool

    def take(self, index: I64) -> _Part:
        return _Part(self.rows.take(index), self.groups[index], self.codes[index], self.nulls[index])

    @staticmethod
    def concat(parts: Sequence[_Part]) -> _Part:
        if not parts:
            nothing = np.empty(0, np.int64)
            return _Part(TupleBatch.empty(), nothing, nothing, np.empty(0, np.bool_))
        if len(parts) == 1:
            return parts[0]
        rows, *others = zip(*parts, strict=True)
        groups, codes, nulls = map(np.concatenate, others)
        return _Part(TupleBatch.concat(rows), groups, codes, nulls)


class _Living(KeptRows):
    """Rows, and the groups in which they are, in parts: as they came, the larger ones first."""

    def __init__(self, columns: LifeColumns, keys: GroupKeys) -> None:
        super().__init__()
        self._columns, self._keys = columns, keys
        self.parts: list[_Part] = []

    @property
    def whole(self) -> _Part:
        self._merge(0)
        return self.parts[0] if self.parts else _Part.concat([])

    @property
    def rows(self) -> TupleBatch:
        return self.whole.rows

    @property
    def groups(self) -> I64:
        return self.whole.groups

    def add(self, rows: TupleBatch, groups: I64) -> None:
        if len(rows):
            self._add(_Part(rows, groups, *self._columns.encoded(self._keys, rows)))

    def keep(self, index: I64) -> None:
        """The rows at these positions alone."""
        self._replace([self.whole.take(index)])

    def go_on(self, from_us: int, until_us: int) -> tuple[_Part, int]:
        """The rows that are born or die from one time on and before another one, and when something happens next. What is dead
        by then goes from parts of which it is the greater part."""
        found, left, next_us, shrinks = [], [], END_OF_TIME_US, until_us == END_OF_TIME_US
        for part in self.parts:
            born, dead = part.rows.ts, part.rows.key
            index = np.empty(len(born), np.int64)
            count, gone, of_part_us = rows_of_span(born, dead, from_us, until_us, index)
            if count:
                found.append(part.take(index[:count].copy()))
            next_us = min(next_us, of_part_us)
            if until_us < END_OF_TIME_US:  # when nothing is needed any more, even if it never dies
                many = 2 * gone > len(born)
                left.append(part.take(np.flatnonzero(dead >= until_us)) if many else part)
                shrinks = shrinks or many
        if shrinks:
            self._replace(left)
        return _Part.concat(found), next_us

    def shed(self, watermark_us: int) -> None:
        """Without the rows that are dead before this time."""
        alive = self.whole.rows.key >= watermark_us
        if not alive.all():
            self.keep(np.flatnonzero(alive))

    def _add(self, part: _Part) -> None:
        self.parts.append(part)
        self._count += len(part.rows)
        self.nbytes += part.rows.nbytes + part.groups.nbytes + _CODE_BYTES * len(part.rows)
        first, size = len(self.parts) - 1, len(part.rows)
        while first and len(self.parts[first - 1].rows) < 2 * size:
            first -= 1
            size += len(self.parts[first].rows)
        self._merge(first)

    def _replace(self, parts: Sequence[_Part]) -> None:
        self.parts, self._count, self.nbytes = [], 0, 0
        for part in parts:
            if len(part.rows):
                self._add(part)

    def _merge(self, first: int) -> None:
        """Parts from this one on become one."""
        if len(self.parts) - first > 1:
            self.parts[first:] = [_Part.concat(self.parts[first:])]


class LiveGroups(RowsOperator):
    """keys: the encoder of this instance. name: owner, for messages."""

    what = "life"
    _kept: _Living

    def __init__(self, rule: Rule, columns: LifeColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._rule, self._columns = rule, columns
        self._kept = _Living(columns, keys)
        self._keys = keys
        plain = all(call.accumulation in _PLAIN and not call.distinct for call in columns.calls)
        self._goes_on = plain and rule.mode != BOUNDARIES  # from the totals at the last watermark
        self._totals: GroupTotals | None = None  # at the last watermark; None: unknown

    # ------------------------------------------------------------ rows that come

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        if len(rows):
            lives = self._columns.lives(rows)
            self._check_lives(rows, lives.ts, lives.key, where or "a restored row")
            alive = np.flatnonzero(lives.ts < lives.key)
            super()._accumulate(lives.take(alive), groups[alive], where)
            if not where:  # rows from before the last watermark
                self._totals = None

    def _check_lives(self, rows: TupleBatch, born: I64, dead: I64, where: str) -> None:
        """RunFailed for births and deaths that a row may not have."""
        names, longest_us, every_us = self._columns, self._rule.longest_us, self._rule.every_us
        lives = born < dead
        wrong = [
            (born < rows.ts, f"{names.born} is before the row's time"),
            (lives & (born > LAST_TIME_US), "beyond all times"),
        ]
        if longest_us:
            wrong.append((lives & (dead > rows.ts + longest_us), f"{names.dead} is more than {longest_us} us after its time"))
        if self._rule.mode == BOUNDARIES:
            apart = (born % every_us != 0) | ((dead % every_us != 0) & (dead < LAST_TIME_US))
            wrong.append((lives & apart, f"{names.born} or {names.dead} is no multiple of {every_us} us"))
        for found, problem in wrong:
            if found.any():
                at = int(np.flatnonzero(found)[0])
                life = f"a row of time {rows.ts[at]} us lives from {born[at]} us to {dead[at]} us"
                raise RunFailed(f"{self._name}, {where}: {names.name}: {life}: {problem}")

    # ------------------------------------------------------------ what is final

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of instants before this time."""
        if self._due(watermark_us) and self._goes_on:
            yield from self._rows_going_on(watermark_us)
        elif self._due(watermark_us):
            yield from self._rows_until(watermark_us)
            self._drop(watermark_us)
        self._final_us = max(self._final_us, watermark_us)

    def _pass(self, watermark_us: int) -> None:
        if self._due(watermark_us) and self._goes_on:
            _, self._least_us = self._kept.go_on(self._final_us, watermark_us)
            self._totals = None
        elif self._due(watermark_us):
            self._drop(watermark_us)
        self._final_us = max(self._final_us, watermark_us)

    def _due(self, watermark_us: int) -> bool:
        """Whether something comes out, or is needed no longer, by this time."""
        if not len(self._kept) or watermark_us <= self._final_us:
            return False
        if self._rule.mode == BOUNDARIES and _multiple(self._final_us, self._rule.every_us) < watermark_us:
            return True
        return self._least_us < watermark_us or watermark_us == END_OF_TIME_US

    def _rows_until(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Of instants from the last watermark on, of all rows of the groups in which something happens."""
        kept, rule = self._kept.whole, self._rule
        born, dead = kept.rows.ts, kept.rows.key
        touched = np.zeros(len(born), np.bool_)
        for times in (born, dead):
            touched[happening(times, self._final_us, watermark_us)] = True
        if rule.mode == BOUNDARIES:
            touched = (born < watermark_us) & (dead > self._final_us)
        numbers, count = group_numbers(kept.codes, kept.nulls, touched)
        if not count:
            return
        of = np.flatnonzero((numbers >= 0) & (born < watermark_us))
        some = kept.take(of)
        lives = LiveRows(numbers[of], born[of], dead[of])
        edges = None
        if rule.mode == BOUNDARIES:
            edges = _open_from(lives, count, self._final_us), _open_from(lives, count, watermark_us)
        span = Span(rule.mode, rule.every_us, self._final_us, watermark_us)
        sweep = Sweep(span, lives, self._values_of(some.rows, lives), count, edges)
        yield from self._swept(some, sweep, lives.group, count)

    def _rows_going_on(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Of instants from the last watermark on, of the rows that are born or die and the totals before."""
        known, from_us = self._known_totals(), self._final_us
        some, self._least_us = self._kept.go_on(from_us, watermark_us)
        self._final_us, self._totals = watermark_us, None  # until all pieces are out
        if len(some.rows):
            numbers, slots = known.numbered(some.codes, some.nulls)
            lives, totals = LiveRows(numbers, some.rows.ts, some.rows.key), known.take(slots)
            span = Span(self._rule.mode, 0, from_us, watermark_us)
            sweep = Sweep(span, lives, self._values_of(some.rows, lives), len(slots), None, (totals, from_us))
            yield from self._swept(some, sweep, numbers, len(slots))
            known.put(slots, totals)
        if watermark_us < END_OF_TIME_US:  # when rows that never die are not kept, either
            self._totals = known

    def _known_totals(self) -> GroupTotals:
        """Of the rows that are alive by the last watermark."""
        if self._totals is None:
            self._totals, kept = GroupTotals(len(self._columns.calls)), self._kept.whole
            some = kept.take(np.flatnonzero((kept.rows.ts < self._final_us) & (kept.rows.key >= self._final_us)))
            numbers, slots = self._totals.numbered(some.codes, some.nulls)
            lives, totals = LiveRows(numbers, some.rows.ts, some.rows.key), self._totals.take(slots)
            span = Span(self._rule.mode, 0, self._final_us, self._final_us)
            values = self._values_of(some.rows, lives)
            for _ in Sweep(span, lives, values, len(slots), None, (totals, BEGIN_OF_TIME_US)).instants(1):
                raise AssertionError("an instant that is out already")
            self._totals.put(slots, totals)
        return self._totals

    def _values_of(self, rows: TupleBatch, lives: LiveRows) -> list[Values]:
        """By call."""
        return [self._values(call, lives, rows) for call in self._columns.calls] if len(rows) else []

    def _swept(self, some: _Part, sweep: Sweep, numbers: I64, count: int) -> Iterator[tuple[ResultRows, I64]]:
        """The rows of instants, in pieces. numbers: of the groups of some rows, so many."""
        first = np.empty(count, np.int64)
        first[numbers] = np.arange(len(some.rows))  # any row of each group
        row_bytes = 16 + 8 * len(self._columns.calls) + some.rows.nbytes // max(1, len(some.rows))
        for piece in sweep.instants(max(1, self._limits.result_bytes // row_bytes)):
            at = first[piece.group]
            yield self._rows_of(piece, some.codes[at], some.nulls[at]), some.groups[at]

    def _values(self, call: LifeCall, lives: LiveRows, rows: TupleBatch) -> Values:
        words, valid = self._columns.words(call, rows)
        if call.distinct:
            return Values(call.accumulation, words, *first_of_values(lives, words, valid))
        known = np.ones(len(rows), np.bool_) if valid is None else valid
        return Values(call.accumulation, words, known, known)

    def _rows_of(self, found: Instants, codes: I64, nulls: Bool) -> ResultRows:
        totals = [LifeTotals(*parts) for parts in zip(found.counts, found.low, found.high, strict=True)]
        return self._columns.rows(self._keys, codes, nulls, found.instant, totals)

    # ------------------------------------------------------------ what is kept

    def _drop(self, watermark_us: int) -> None:
        """Keep only the rows that are needed after this time."""
        needed = self._needed(watermark_us)
        if not needed.all():
            self._kept.keep(np.flatnonzero(needed))
        rows = self._kept.rows
        self._least_us = int(self._next(rows.ts, rows.key, watermark_us).min(initial=END_OF_TIME_US))

    def _needed(self, watermark_us: int) -> Bool:
        """Which rows are needed after this time: bool (n,)."""
        born, dead = self._kept.rows.ts, self._kept.rows.key
        if watermark_us == END_OF_TIME_US:
            return np.zeros(len(born), np.bool_)
        needed: Bool = dead >= watermark_us
        for_ever = (dead >= LAST_TIME_US) & (born < watermark_us)
        if self._rule.mode == BOUNDARIES and for_ever.any() and not needed.all():
            numbers, count = group_numbers(self._kept.whole.codes, self._kept.whole.nulls, for_ever)
            of = np.flatnonzero(numbers >= 0)
            last_us = _last(LiveRows(numbers[of], born[of], dead[of]), count, watermark_us)
            last: I64 = np.full(count, -1, np.int64)
            shows = of[_latest(born[of], dead[of], watermark_us) == last_us[numbers[of]]]
            last[numbers[shows]] = shows  # one of these rows
            needed[last] = True
        return needed

    def _next(self, born: I64, dead: I64, from_us: int) -> I64:
        """The next birth or death of rows from this time on, int64 (n,)."""
        found: I64 = np.where(born >= from_us, born, np.where(dead >= from_us, dead, END_OF_TIME_US))
        return np.where(found >= LAST_TIME_US, END_OF_TIME_US, found)

    def _check_memory(self) -> None:
        if self._goes_on and self.window_bytes() > self._limits.window_bytes:
            self._totals = None
            self._kept.shed(self._final_us)
        super()._check_memory()

    def window_bytes(self) -> int:
        return self._kept.nbytes + (0 if self._totals is None else self._totals.nbytes)

    # ------------------------------------------------------------ moves

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its rows. Between two deliveries only."""
        self._totals = None
        if self._goes_on:
            self._kept.shed(self._final_us)
        return super().export_group(move_id, pending, chunk_bytes)

    def take_chunk(self, chunk: StateChunk) -> None:
        self._totals = None
        super().take_chunk(chunk)

    def group_ids(self) -> list[GroupId]:
        return [GroupId(group) for group in np.flatnonzero(self.tuples_by_group(0)).tolist()]

    def tuples_by_group(self, partition_count: int) -> I64:
        """Without rows that are dead and still kept."""
        counts = np.zeros(partition_count, np.int64)
        for part in self._kept.parts:
            groups = part.groups[part.rows.key >= self._final_us] if self._goes_on else part.groups
            found = np.bincount(groups, minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
        return counts

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant. Of a partition-group that arrives, not all rows may be here."""
        if len(self._kept):
            alive = [np.count_nonzero(part.rows.key >= self._final_us) for part in self._kept.parts]
            kept = self._kept.whole
            codes, nulls = self._columns.encoded(self._keys, kept.rows)
            assert ((codes == kept.codes) & (nulls == kept.nulls)).all(), f"{self._name}: rows in other groups"
            needed = 2 * sum(alive) >= len(kept.rows) if self._goes_on else self._needed(self._final_us).all()
            assert self.arriving or needed, f"{self._name}: rows that are needed no longer"
            least_us = int(self._next(kept.rows.ts, kept.rows.key, self._final_us).min())
            assert least_us >= self._least_us, f"{self._name}: something happens at {least_us} us, before {self._least_us} us"
        if self._totals is not None:
            known, self._totals = self._totals.by_group(), None
            assert known == self._known_totals().by_group(), f"{self._name}: totals that the rows do not have"


def _multiple(us: int, every_us: int) -> int:
    """The first multiple that is not before."""
    return -(-us // every_us) * every_us


def _latest(born: I64, dead: I64, before_us: int) -> I64:
    """The latest birth or death of rows before this time, int64 (n,); BEGIN_OF_TIME_US: none."""
    return np.where(dead < min(before_us, LAST_TIME_US), dead, np.where(born < before_us, born, BEGIN_OF_TIME_US))


def _open_from(lives: LiveRows, count: int, watermark_us: int) -> I64:
    """The boundaries of groups before this time, int64 (count,), are out by a watermark."""
    found: I64 = np.minimum(_last(lives, count, watermark_us), watermark_us - 1) + 1
    return found


def _last(lives: LiveRows, count: int, before_us: int) -> I64:
    """The last birth or death before this time of groups in which a row was born before it that never dies: int64 (count,);
    END_OF_TIME_US for other groups."""
    group, born, dead = lives
    last: I64 = np.full(count, BEGIN_OF_TIME_US, np.int64)
    np.maximum.at(last, group, _latest(born, dead, before_us))
    for_ever = np.zeros(count, np.bool_)
    for_ever[group[(dead >= LAST_TIME_US) & (born < before_us)]] = True
    return np.where(for_ever, last, END_OF_TIME_US)

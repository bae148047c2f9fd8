"""The operator of groups of rows that are alive: what is computed of them, at births and deaths, or at multiples of a time.

What: `LiveGroups`, an operator as `JoinOperator` describes it; `Rule`, when rows come out.
Why: a row comes once, with its birth and its death; both are final when the watermark has passed them, so rows are kept until
they are dead, and no message tells of a death.
Stays out: births and deaths in order (`state.life_kernel`), columns of rows (`core.life_columns`).

A row that is kept has its birth as its time, and its death as its key. What comes out by a watermark is computed anew of the
rows that are kept, of groups alone in which something happens: it does not depend on what was computed before, so a
partition-group moves, and is restored, with its rows alone.

Where boundaries come out, and a row of a group never dies, those beyond the last birth or death of the group wait for the next
one; the row that died last is kept, as it says where they begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US
from swjoin.core.life_columns import LifeCall, LifeColumns, LifeTotals
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.keyed_operator import Limits
from swjoin.state.life_kernel import BOUNDARIES, Instants, LiveRows, Span, Sweep, Values, first_of_values, group_numbers

_CODE_BYTES = 9  # of a row's group


class Rule(NamedTuple):
    """mode: `state.life_kernel.CHANGES`, `BOUNDARIES` or `BIRTHS`. every_us: between boundaries. longest_us: no life is longer,
    from a row's own time on; 0: unknown."""

    mode: int
    every_us: int = 0
    longest_us: int = 0


class _Living(KeptRows):
    """Rows, and the groups in which they are. codes: int64 (n,), nulls: bool (n,), of this instance."""

    def __init__(self, columns: LifeColumns, keys: GroupKeys) -> None:
        super().__init__()
        self._columns, self._keys = columns, keys
        self._codes: list[I64] = []
        self._nulls: list[Bool] = []

    @property
    def codes(self) -> I64:
        if len(self._codes) != 1:
            self._codes = [np.concatenate(self._codes or [np.empty(0, np.int64)])]
        return self._codes[0]

    @property
    def nulls(self) -> Bool:
        if len(self._nulls) != 1:
            self._nulls = [np.concatenate(self._nulls or [np.empty(0, np.bool_)])]
        return self._nulls[0]

    def add(self, rows: TupleBatch, groups: I64) -> None:
        self._add(rows, groups, *self._columns.encoded(self._keys, rows))

    def keep(self, index: I64) -> None:
        """The rows at these positions alone."""
        rows, groups, codes, nulls = self.rows, self.groups, self.codes, self.nulls
        self._rows, self._groups, self._codes, self._nulls, self._count, self.nbytes = [], [], [], [], 0, 0
        self._add(rows.take(index), groups[index], codes[index], nulls[index])

    def _add(self, rows: TupleBatch, groups: I64, codes: I64, nulls: Bool) -> None:
        if len(rows):
            super().add(rows, groups)
            self._codes.append(codes)
            self._nulls.append(nulls)
            self.nbytes += _CODE_BYTES * len(rows)


class LiveGroups(RowsOperator):
    """keys: the encoder of this instance. name: owner, for messages."""

    what = "life"
    _kept: _Living

    def __init__(self, rule: Rule, columns: LifeColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._rule, self._columns = rule, columns
        self._kept = _Living(columns, keys)
        self._keys = keys

    # ------------------------------------------------------------ rows that come

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        if len(rows):
            lives = self._columns.lives(rows)
            self._check_lives(rows, lives.ts, lives.key, where or "a restored row")
            alive = np.flatnonzero(lives.ts < lives.key)
            super()._accumulate(lives.take(alive), groups[alive], where)

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
        if self._due(watermark_us):
            yield from self._rows_until(watermark_us)
            self._drop(watermark_us)
        self._final_us = max(self._final_us, watermark_us)

    def _pass(self, watermark_us: int) -> None:
        if self._due(watermark_us):
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
        """Of instants from the last watermark on."""
        rows, rule = self._kept.rows, self._rule
        born, dead = rows.ts, rows.key
        touched = _happens(born, self._final_us, watermark_us) | _happens(dead, self._final_us, watermark_us)
        if rule.mode == BOUNDARIES:
            touched = (born < watermark_us) & (dead > self._final_us)
        numbers, count = group_numbers(self._kept.codes, self._kept.nulls, touched)
        if not count:
            return
        of = np.flatnonzero((numbers >= 0) & (born < watermark_us))
        some = rows.take(of)
        lives = LiveRows(numbers[of], born[of], dead[of])
        edges = None
        if rule.mode == BOUNDARIES:
            edges = _open_from(lives, count, self._final_us), _open_from(lives, count, watermark_us)
        values = [self._values(call, lives, some) for call in self._columns.calls]
        first = np.empty(count, np.int64)
        first[lives.group] = of  # any row of each group
        span = Span(rule.mode, rule.every_us, self._final_us, watermark_us)
        row_bytes = 16 + 8 * len(values) + some.nbytes // len(some)
        for piece in Sweep(span, lives, values, count, edges).instants(max(1, self._limits.result_bytes // row_bytes)):
            yield self._rows_of(piece, first)

    def _values(self, call: LifeCall, lives: LiveRows, rows: TupleBatch) -> Values:
        words, valid = self._columns.words(call, rows)
        if call.distinct:
            return Values(call.accumulation, words, *first_of_values(lives, words, valid))
        known = np.ones(len(rows), np.bool_) if valid is None else valid
        return Values(call.accumulation, words, known, known)

    def _rows_of(self, found: Instants, first: I64) -> tuple[ResultRows, I64]:
        """first: position of a row of each group."""
        at = first[found.group]
        totals = [LifeTotals(*parts) for parts in zip(found.counts, found.low, found.high, strict=True)]
        codes, nulls = self._kept.codes[at], self._kept.nulls[at]
        return self._columns.rows(self._keys, codes, nulls, found.instant, totals), self._kept.groups[at]

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
            numbers, count = group_numbers(self._kept.codes, self._kept.nulls, for_ever)
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

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant. Of a partition-group that arrives, not all rows may be here."""
        if len(self._kept):
            rows = self._kept.rows
            codes, nulls = self._columns.encoded(self._keys, rows)
            same = (codes == self._kept.codes) & (nulls == self._kept.nulls)
            assert same.all(), f"{self._name}: rows in other groups"
            assert self.arriving or self._needed(self._final_us).all(), f"{self._name}: rows that are needed no longer"
            least_us = int(self._next(rows.ts, rows.key, self._final_us).min())
            assert least_us >= self._least_us, f"{self._name}: something happens at {least_us} us, before {self._least_us} us"


def _multiple(us: int, every_us: int) -> int:
    """The first multiple that is not before."""
    return -(-us // every_us) * every_us


def _happens(times: I64, from_us: int, until_us: int) -> Bool:
    return (times >= from_us) & (times < until_us)


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

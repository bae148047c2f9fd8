"""Rows that consumers take as they are produced, each at its own pace, in bounded memory.

What: `ResultLog`: rows numbered by generation (how many checkpoints come before them) and position in it; `Reader`, a
consumer's place in it. `ConsumerOffset`, as much of it as a consumer has to remember to go on after any crash, its own or the
run's.
Why: a consumer must not lose a row nor take one twice, and a slow one must neither fill the memory nor stop the others for
long.
Stays out: Flight (`connectors.flight.server`), files (`connectors.files.sink`), where rows come from
(`connectors.flight.result_stream`).

Rows of a generation can be taken at once; when its checkpoint is complete they are final, and lie in files. A recovery makes
the rows of later generations void: they are produced again, in another order. Each such event begins an era, so that a
consumer that was away finds out. A place also carries the run's identity, for all runs count generations from 0.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import write_whole, writing

if TYPE_CHECKING:
    import pyarrow as pa

_WAKE_S = 0.25  # how soon a reader that waits sees that its consumer has gone
_GONE = "from: rows after this place are gone; take the results from now on"
_ANOTHER = "from: a place in another run's results"
_RUN = re.compile("[0-9a-f]{16}")
_FILE_ROWS = 16_384  # of a batch that is read from a file


@dataclass
class ConsumerOffset:
    """Where a consumer is. below: every row of generations before this one is taken. rows: of later ones, how many. era: of
    which these numbers are. run: identity of the run; empty before the first row of whichever run."""

    era: int = 0
    below: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    run: str = ""

    def to_plain(self) -> dict[str, Any]:
        rows = {str(g): n for g, n in self.rows.items()}
        return {"run": self.run, "era": self.era, "below": self.below, "rows": rows}

    @staticmethod
    def from_plain(plain: Any) -> ConsumerOffset:
        """UserError when it is none."""
        try:
            rows = {int(g): int(n) for g, n in plain["rows"].items()}
            place = ConsumerOffset(int(plain["era"]), int(plain["below"]), rows, str(plain.get("run", "")))
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            raise UserError("from: not a place; take one that came with a batch, 'start' or 'now'") from None
        if min([place.era, place.below, *rows, *rows.values()]) < 0:
            raise UserError("from: not a place; it holds negative numbers")
        return place

    @property
    def begun(self) -> bool:
        """Whether it is behind the start of a run."""
        return bool(self.era or self.below or self.rows)

    def take(self, generation: int, rows: int) -> None:
        self.rows[generation] = self.rows.get(generation, 0) + rows

    def complete(self, generation: int) -> None:
        self.below = max(self.below, generation + 1)
        self.rows = {g: n for g, n in self.rows.items() if g >= self.below}

    def void(self, generation: int, era: int) -> None:
        self.era = era
        self.rows = {g: n for g, n in self.rows.items() if g < generation}


@dataclass(frozen=True)
class Taken:
    """What a reader gets. batch: None with `complete` (every row of the generation has been taken, and is final) and with
    `void` (rows of this generation and later ones that have been taken before do not count)."""

    batch: pa.RecordBatch | None
    generation: int
    kind: str = "rows"


@dataclass(frozen=True)
class _Entry:
    batch: pa.RecordBatch
    generation: int
    first: int  # row of the generation


class ConsumerCutOffError(RunFailed):
    """A consumer was too slow for too long."""


class ResultLog:
    """limit_bytes: of rows in memory. patience_s: how long `write` waits for readers that hold up the oldest rows; then they
    are cut, or go on from files. in_files: final rows lie in Parquet files. lossy: `write` never waits, readers skip what is
    gone. eras: file that remembers them and the run's identity; None: there are no recoveries. fresh: the run begins; what the
    file says is of an earlier one."""

    def __init__(
        self,
        schema: pa.Schema,
        limit_bytes: int,
        patience_s: float,
        *,
        in_files: bool = False,
        lossy: bool = False,
        eras: Path | None = None,
        fresh: bool = False,
    ) -> None:
        self.schema = schema
        self.run = secrets.token_hex(8)  # identity; kept by a run that is resumed
        self.rows = 0  # written since the start
        self.cuts = 0  # readers that were cut
        self.published = 0  # generations before this one lie in files
        self.held_up_s = 0.0  # that `write` has waited for readers
        self._limit_bytes, self._patience_s, self._lossy = limit_bytes, patience_s, lossy
        self._eras_file = eras
        self._voids: list[int] = []  # by era: the generation from which it began anew
        self._entries: deque[_Entry] = deque()
        self._first = 0  # number of the oldest entry
        self._nbytes = 0
        self._totals: dict[int, int] = {}  # rows of generations that this process has seen
        self._files: dict[int, list[Path]] = {}
        self._in_files = in_files
        self._oldest: int | None = None  # generation that can be known without files; None: not even begun
        self._readers: set[Reader] = set()
        self._closed: BaseException | bool = False
        self._changed = threading.Condition()
        if eras is not None and not fresh and eras.exists():
            self._recall(eras)

    def _recall(self, eras: Path) -> None:
        """Of a run that is resumed: its identity (older versions wrote none) and its eras."""
        try:
            words = eras.read_text().split()
            if words and _RUN.fullmatch(words[0]):
                self.run = words.pop(0)
            self._voids = [int(word) for word in words]
        except (OSError, ValueError) as error:
            raise RunFailed(f"{eras}: corrupt, or cannot be read ({' '.join(str(error).split())})") from None

    # ------------------------------------------------------------ written

    def write(self, batch: pa.RecordBatch, generation: int = 0) -> None:
        """More rows of a generation. Waits for slow readers, at most for `patience_s`."""
        with self._changed:
            deadline = time.monotonic() + self._patience_s
            while self._entries and self._nbytes + batch.nbytes > self._limit_bytes:
                slow = [reader for reader in self._readers if reader.at <= self._first and reader.keeps_up]
                if slow and not self._lossy:
                    left_s = deadline - time.monotonic()
                    if left_s > 0:
                        before = time.monotonic()
                        self._changed.wait(min(left_s, _WAKE_S))
                        self.held_up_s += time.monotonic() - before
                        continue
                    self._give_up(slow)
                self._forget_oldest()
            first = self._totals.get(generation, 0)
            self._totals[generation] = first + batch.num_rows
            self._entries.append(_Entry(batch, generation, first))
            self._nbytes += batch.nbytes
            self.rows += batch.num_rows
            self._changed.notify_all()

    def _give_up(self, slow: list[Reader]) -> None:
        for reader in slow:
            reader.lagging = True
            if not self._in_files:
                reader.cut = True
                self._readers.discard(reader)
                self.cuts += 1

    def _forget_oldest(self) -> None:
        self._nbytes -= self._entries.popleft().batch.nbytes
        self._first += 1

    def publish(self, generation: int, files: Sequence[Path]) -> None:
        """The rows of this generation are final, and lie in these files, in the order in which they were written."""
        with self._changed:
            self._files[generation] = list(files)
            self.published = max(self.published, generation + 1)
            self._changed.notify_all()

    def restore(self, generation: int, files: dict[int, list[Path]]) -> None:
        """A start or a recovery: this generation is the next; earlier ones lie in files. A new era."""
        with self._changed:
            if self._oldest is None:
                self._oldest = generation
            self._files, self.published = dict(files), generation
            self._totals = {g: n for g, n in self._totals.items() if g < generation}
            self._drop_entries(generation)
            self._voids.append(generation)
            if self._eras_file is not None:
                with writing(self._eras_file):
                    self._eras_file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._eras_file, "".join(f"{line}\n" for line in (self.run, *self._voids)).encode())
            self._changed.notify_all()

    def _drop_entries(self, generation: int) -> None:
        """Rows from this generation on are void. Earlier ones are final: where no files hold them they have to stay."""
        kept = [] if self._in_files else [entry for entry in self._entries if entry.generation < generation]
        self._first += len(self._entries) - len(kept)
        self._entries = deque(kept)
        self._nbytes = sum(entry.batch.nbytes for entry in kept)
        for reader in self._readers:  # what it has taken of them its place knows
            reader.at = self._first

    def close(self, error: BaseException | None = None) -> None:
        """No more rows. Readers take what is left, or are told the error."""
        with self._changed:
            self._closed = error or True
            self._changed.notify_all()

    def drained(self, patience_s: float) -> bool:
        """After `close`: whether all readers have taken what is left, within so long."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while self._readers and time.monotonic() < deadline:
                self._changed.wait(min(_WAKE_S, max(0.0, deadline - time.monotonic())))
            return not self._readers

    # ------------------------------------------------------------ read

    @property
    def era(self) -> int:
        return len(self._voids)

    def open(self, place: ConsumerOffset | None, *, final: bool, given_up: Callable[[], bool] = lambda: False) -> Reader:
        """A reader from this place on, or from now on. final: rows are taken when they are final. UserError without files to
        take them from, or when rows of the place are gone."""
        if final and not self._in_files:
            raise UserError("final results come with checkpoints and files; this run has none of them: take them as they come")
        with self._changed:
            if place is None:
                later = {} if final else {g: n for g, n in self._totals.items() if g >= self.published}
                place = ConsumerOffset(self.era, self.published, later)
            elif self._unknown(place):
                raise UserError(_ANOTHER)
            elif not self._in_files and not self._lossy and place.below < (self._oldest or 0):
                raise UserError(_GONE)
            reader = Reader(self, place, final, given_up)
            reader.at = self._first
            self._readers.add(reader)
            return reader

    def _unknown(self, place: ConsumerOffset) -> bool:
        """No consumer of this log can have come so far. Places of earlier eras are judged by what became void since."""
        if place.begun and place.run != self.run:
            return True
        if place.era != self.era:
            return place.era > self.era
        known = self._voids[-1] if self._voids else 0  # from this generation on every row was written here
        ahead = any(n > self._totals.get(g, n if g < known else 0) for g, n in place.rows.items())
        return place.below > self.published or ahead

    @property
    def readers(self) -> int:
        return len(self._readers)

    def validate(self) -> None:
        with self._changed:
            assert self._nbytes == sum(e.batch.nbytes for e in self._entries), "row log: bytes do not add up"
            assert len(self._entries) <= 1 or self._nbytes <= self._limit_bytes, "row log: above its limit"


class Reader:
    """One consumer's way through a log. Iterating waits for rows; ends when the log is closed and all is taken.

    Raises ConsumerCutError, or what the log was closed with.
    """

    def __init__(self, log: ResultLog, place: ConsumerOffset, final: bool, given_up: Callable[[], bool]) -> None:
        self.place = ConsumerOffset(place.era, place.below, dict(place.rows), log.run)
        self.at = 0  # number of the next entry
        self.cut = False
        self.lagging = False  # has been given up by `write` for now
        self._final = final
        self.skipped = 0  # rows that a lossy log had forgotten
        self._log, self._given_up = log, given_up

    def __iter__(self) -> Iterator[Taken]:
        log = self._log
        try:
            while True:
                with log._changed:
                    if self._given_up():
                        return
                    if self.cut:
                        raise ConsumerCutOffError(
                            f"cut: results were not taken for {log._patience_s:g} s while {log._limit_bytes} bytes of them "
                            f"waited (serve.patience, serve.result_buffer)"
                        )
                    step = self._step()
                    if step is None:
                        if log._closed:
                            if isinstance(log._closed, BaseException):
                                raise log._closed
                            return
                        log._changed.wait(_WAKE_S)
                        continue
                if isinstance(step, Taken):
                    yield step
                else:
                    yield from self._whole_generation(step)
        finally:
            self.leave()

    @property
    def keeps_up(self) -> bool:
        """It takes rows from memory, and those that it has not taken have to stay there."""
        return not self._final and not self.lagging and (self.place.below >= self._log.published or not self._log._in_files)

    def leave(self) -> None:
        with self._log._changed:
            self._log._readers.discard(self)
            self._log._changed.notify_all()

    def _step(self) -> Taken | int | None:
        """The next thing to give, or a generation to take from files; None when there is nothing yet. Holds the lock."""
        log, place = self._log, self.place
        if place.era < log.era:
            void = min(log._voids[place.era :])
            taken = place.below > void or any(g >= void for g in place.rows)
            place.below = min(place.below, void)
            place.void(void, log.era)
            if taken:
                return Taken(None, void, "void")
        if place.below < log.published:
            if log._in_files:
                return place.below
            if place.rows.get(place.below, 0) >= log._totals.get(place.below, 0):
                generation = place.below
                place.complete(generation)
                return Taken(None, generation, "complete")
        while not self._final and self.at < log._first + len(log._entries):
            self.at = max(self.at, log._first)
            entry = log._entries[self.at - log._first]
            self.at += 1
            self.lagging = self.lagging and self.at < log._first + len(log._entries)  # until it has caught up
            log._changed.notify_all()
            batch = self._rest_of(entry)
            if batch is not None:
                return Taken(batch, entry.generation)
        if place.below < log.published:
            raise UserError(_GONE)
        return None

    def _rest_of(self, entry: _Entry) -> pa.RecordBatch | None:
        """What of an entry has not been taken; None also when rows before it are missing, which come from files then."""
        generation, have = entry.generation, self.place.rows.get(entry.generation, 0)
        if generation < self.place.below or entry.first + entry.batch.num_rows <= have:
            return None
        if entry.first > have:
            if self._log._in_files:
                return None
            if not self._log._lossy:
                raise UserError(_GONE)
            self.skipped += entry.first - have
            have = entry.first
        self.place.rows[generation] = entry.first + entry.batch.num_rows
        return entry.batch.slice(have - entry.first)

    def _whole_generation(self, generation: int) -> Iterator[Taken]:
        """What is left of a final generation, out of its files."""
        import pyarrow.parquet as pq

        skip = self.place.rows.get(generation, 0)
        if skip < self._log._totals.get(generation, skip + 1):
            for path in self._log._files.get(generation, ()):
                with pq.ParquetFile(path) as file:
                    if skip >= file.metadata.num_rows:
                        skip -= file.metadata.num_rows
                        continue
                    for batch in file.iter_batches(_FILE_ROWS):
                        rest = batch.slice(min(skip, batch.num_rows))
                        skip -= batch.num_rows - rest.num_rows
                        if rest.num_rows:
                            self.place.take(generation, rest.num_rows)
                            yield Taken(rest, generation)
            if skip:
                raise UserError(_ANOTHER)
        self.place.complete(generation)
        yield Taken(None, generation, "complete")

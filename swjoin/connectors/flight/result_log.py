"""Log of result rows: every consumer reads it at its own pace, in bounded memory.

What: `ResultLog`: rows numbered by generation (how many checkpoints precede them) and position in the generation; `Reader`, one
consumer's cursor; `ConsumerOffset`, the resume position of a consumer: it survives a crash of the consumer and of the run.
Why: a consumer must neither lose a row nor receive one twice, and a slow consumer must neither fill the memory nor block the
others for long.
Stays out: Flight (`connectors.flight.server`), files (`connectors.files.sink`), the source of the rows
(`connectors.flight.result_stream`).

Rows of a generation can be read at once; once the next checkpoint is complete they are final, and lie in files. A recovery
voids the rows of later generations: they are produced again, in another order. Each recovery starts a new era, so that a
consumer that was disconnected learns of it. An offset also names the run, because all runs count generations from 0.
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

from swjoin.core.errors import RunFailed, UserError, one_line
from swjoin.core.storage import write_whole, writing

if TYPE_CHECKING:
    import pyarrow as pa

_WAKE_S = 0.25  # poll interval of a waiting reader, which checks whether its consumer has disconnected
_GONE = "from: rows after this place are gone; take the results from now on"
_ANOTHER = "from: a place in another run's results"
_RUN = re.compile("[0-9a-f]{16}")
_FILE_ROWS = 16_384  # of a batch that is read from a file


@dataclass
class ConsumerOffset:
    """Resume position of a consumer. below: all rows of generations before this one have been read. rows: number of rows read
    of each later generation. era: the era of these numbers. run: id of the run; empty before the first row of any run."""

    era: int = 0
    below: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    run: str = ""

    def to_plain(self) -> dict[str, Any]:
        rows = {str(g): n for g, n in self.rows.items()}
        return {"run": self.run, "era": self.era, "below": self.below, "rows": rows}

    @staticmethod
    def from_plain(plain: Any) -> ConsumerOffset:
        """UserError for anything that is not an offset."""
        try:
            rows = {int(g): int(n) for g, n in plain["rows"].items()}
            offset = ConsumerOffset(int(plain["era"]), int(plain["below"]), rows, str(plain.get("run", "")))
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            raise UserError("from: not a place; take one that came with a batch, 'start' or 'now'") from None
        if min([offset.era, offset.below, *rows, *rows.values()]) < 0:
            raise UserError("from: not a place; it holds negative numbers")
        return offset

    @property
    def started(self) -> bool:
        """Whether a consumer has read anything of a run."""
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
    """One item of a reader. batch: None with `complete` (all rows of the generation have been read and are final) and with
    `void` (rows read of this and later generations are no longer valid)."""

    batch: pa.RecordBatch | None
    generation: int
    kind: str = "rows"


@dataclass(frozen=True)
class _Entry:
    batch: pa.RecordBatch
    generation: int
    first: int  # row of the generation


class _Eras:
    """Identity of a run and its recoveries. file: where both are stored; None: the run never recovers. fresh: a new run; the
    content of the file belongs to an earlier one."""

    def __init__(self, file: Path | None, *, fresh: bool) -> None:
        self.run = secrets.token_hex(8)  # a resumed run keeps it
        self._file = file
        self._voids: list[int] = []  # by era: its first generation
        if file is not None and not fresh and file.exists():
            self._load(file)

    def _load(self, file: Path) -> None:
        try:
            words = file.read_text().split()
            if words and _RUN.fullmatch(words[0]):  # earlier versions stored no identity
                self.run = words.pop(0)
            self._voids = [int(word) for word in words]
        except (OSError, ValueError) as error:
            raise RunFailed(f"{file}: corrupt, or cannot be read ({one_line(error)})") from None

    @property
    def era(self) -> int:
        return len(self._voids)

    @property
    def first_generation(self) -> int:
        """First generation of this era: this process wrote every row from it on."""
        return self._voids[-1] if self._voids else 0

    def start(self, generation: int) -> None:
        """A new era starts with this generation."""
        self._voids.append(generation)
        if self._file is not None:
            with writing(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, "".join(f"{line}\n" for line in (self.run, *self._voids)).encode())

    def void_since(self, era: int) -> int:
        """First generation that recoveries after this (earlier) era have voided."""
        return min(self._voids[era:])


class _Buffer:
    """The newest rows, in memory. first: number of the oldest entry. nbytes: sum over the entries."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.first = 0
        self.nbytes = 0
        self._entries: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def end(self) -> int:
        """Number of the entry that will be appended next."""
        return self.first + len(self._entries)

    def __getitem__(self, number: int) -> _Entry:
        return self._entries[number - self.first]

    def is_full(self, nbytes: int) -> bool:
        """Whether the oldest entry must go before so many bytes are appended."""
        return bool(self._entries) and self.nbytes + nbytes > self.limit_bytes

    def append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self.nbytes += entry.batch.nbytes

    def drop_oldest(self) -> None:
        self.nbytes -= self._entries.popleft().batch.nbytes
        self.first += 1

    def keep_before(self, generation: int) -> None:
        """Drop entries of this generation and later ones."""
        kept = [entry for entry in self._entries if entry.generation < generation]
        self.first += len(self._entries) - len(kept)
        self._entries = deque(kept)
        self.nbytes = sum(entry.batch.nbytes for entry in kept)

    def validate(self) -> None:
        assert self.nbytes == sum(e.batch.nbytes for e in self._entries), "result log: bytes do not add up"
        assert len(self._entries) <= 1 or self.nbytes <= self.limit_bytes, "result log: above its limit"


class _FinalGenerations:
    """Generations whose rows are final: all before `end`. files: by generation, as far as rows lie in files."""

    def __init__(self) -> None:
        self.end = 0
        self.files: dict[int, list[Path]] = {}

    def add(self, generation: int, files: Sequence[Path]) -> None:
        self.files[generation] = list(files)
        self.end = max(self.end, generation + 1)

    def restore(self, end: int, files: dict[int, list[Path]]) -> None:
        self.end, self.files = end, dict(files)


class ConsumerCutOffError(RunFailed):
    """A consumer was too slow for too long."""


class ResultLog:
    """limit_bytes: capacity of the memory buffer. patience_s: how long `write` waits for readers of the oldest rows; then they
    are cut off, or continue from files. in_files: final rows lie in Parquet files. lossy: `write` never waits, readers skip
    dropped rows. eras, fresh: see `_Eras`."""

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
        self.rows = 0  # written since the start
        self.cuts = 0  # readers that were cut off
        self.held_up_s = 0.0  # that `write` has waited for readers
        self._patience_s, self._lossy, self._in_files = patience_s, lossy, in_files
        self._eras = _Eras(eras, fresh=fresh)
        self._buffer = _Buffer(limit_bytes)
        self._totals: dict[int, int] = {}  # rows of generations that this process has written
        self._final = _FinalGenerations()
        self._oldest: int | None = None  # first generation of this process; None before `restore`
        self._readers: set[Reader] = set()
        self._closed: BaseException | bool = False
        self._changed = threading.Condition()

    # ------------------------------------------------------------ written

    def write(self, batch: pa.RecordBatch, generation: int = 0) -> None:
        """Append rows of a generation. Waits for slow readers, for `patience_s` at most."""
        with self._changed:
            deadline = time.monotonic() + self._patience_s
            while self._buffer.is_full(batch.nbytes):
                slow = [reader for reader in self._readers if reader.at <= self._buffer.first and reader.keeps_up]
                if slow and not self._lossy:
                    left_s = deadline - time.monotonic()
                    if left_s > 0:
                        before = time.monotonic()
                        self._changed.wait(min(left_s, _WAKE_S))
                        self.held_up_s += time.monotonic() - before
                        continue
                    self._give_up(slow)
                self._buffer.drop_oldest()
            first = self._totals.get(generation, 0)
            self._totals[generation] = first + batch.num_rows
            self._buffer.append(_Entry(batch, generation, first))
            self.rows += batch.num_rows
            self._changed.notify_all()

    def _give_up(self, slow: list[Reader]) -> None:
        for reader in slow:
            reader.lagging = True
            if not self._in_files:
                reader.cut = True
                self._readers.discard(reader)
                self.cuts += 1

    def publish(self, generation: int, files: Sequence[Path]) -> None:
        """The rows of this generation are final; these files hold them in the order of writing."""
        with self._changed:
            self._final.add(generation, files)
            self._changed.notify_all()

    def restore(self, generation: int, files: dict[int, list[Path]]) -> None:
        """A start or a recovery: this generation is the next; earlier ones lie in files. A new era starts."""
        with self._changed:
            if self._oldest is None:
                self._oldest = generation
            self._final.restore(generation, files)
            self._totals = {g: n for g, n in self._totals.items() if g < generation}
            # Rows of earlier generations are final; without files the buffer alone has them.
            self._buffer.keep_before(0 if self._in_files else generation)
            for reader in self._readers:  # their offsets skip rows that they have read
                reader.at = self._buffer.first
            self._eras.start(generation)
            self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """End of the rows. Readers receive the rest, or raise the error."""
        with self._changed:
            self._closed = error or True
            self._changed.notify_all()

    def drained(self, patience_s: float) -> bool:
        """After `close`: whether all readers have finished within this time."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while self._readers and time.monotonic() < deadline:
                self._changed.wait(min(_WAKE_S, max(0.0, deadline - time.monotonic())))
            return not self._readers

    # ------------------------------------------------------------ read

    @property
    def published(self) -> int:
        """Generations before this one are final."""
        return self._final.end

    @property
    def era(self) -> int:
        return self._eras.era

    @property
    def run(self) -> str:
        return self._eras.run

    def open(self, offset: ConsumerOffset | None, *, final: bool, given_up: Callable[[], bool] = lambda: False) -> Reader:
        """A reader from this offset on; None: from now on. final: final rows only. UserError for final rows without files, and
        for an offset whose next rows have been dropped."""
        if final and not self._in_files:
            raise UserError("final results come with checkpoints and files; this run has none of them: take them as they come")
        with self._changed:
            if offset is None:
                later = {} if final else {g: n for g, n in self._totals.items() if g >= self.published}
                offset = ConsumerOffset(self.era, self.published, later)
            elif self._unknown(offset):
                raise UserError(_ANOTHER)
            elif not self._in_files and not self._lossy and offset.below < (self._oldest or 0):
                raise UserError(_GONE)
            reader = Reader(self, offset, final, given_up)
            reader.at = self._buffer.first
            self._readers.add(reader)
            return reader

    def _unknown(self, offset: ConsumerOffset) -> bool:
        """Whether the offset is beyond this log. Offsets of earlier eras pass: the reader applies the voids since."""
        if offset.started and offset.run != self.run:
            return True
        if offset.era != self.era:
            return offset.era > self.era
        known = self._eras.first_generation
        ahead = any(n > self._totals.get(g, n if g < known else 0) for g, n in offset.rows.items())
        return offset.below > self.published or ahead

    @property
    def readers(self) -> int:
        return len(self._readers)

    def validate(self) -> None:
        with self._changed:
            self._buffer.validate()


class Reader:
    """Cursor of one consumer. Iterating waits for rows, and ends when the log is closed and all rows have been read.

    Raises ConsumerCutOffError, or the error that the log was closed with.
    """

    def __init__(self, log: ResultLog, offset: ConsumerOffset, final: bool, given_up: Callable[[], bool]) -> None:
        self.offset = ConsumerOffset(offset.era, offset.below, dict(offset.rows), log.run)
        self.at = 0  # number of the next entry
        self.cut = False
        self.lagging = False  # `write` does not wait for it at present
        self._final = final
        self.skipped = 0  # rows that a lossy log had dropped
        self._log, self._given_up = log, given_up

    def __iter__(self) -> Iterator[Taken]:
        try:
            while (step := self._next()) is not None:
                if isinstance(step, Taken):
                    yield step
                else:
                    yield from self._whole_generation(step)
        finally:
            self.leave()

    def _next(self) -> Taken | int | None:
        """The next item, or a generation to read from files. Waits; None at the end."""
        log = self._log
        with log._changed:
            while not self._given_up():
                if self.cut:
                    raise ConsumerCutOffError(
                        f"cut: results were not taken for {log._patience_s:g} s while {log._buffer.limit_bytes} bytes of them "
                        f"waited (serve.patience, serve.result_buffer)"
                    )
                step = self._step()
                if step is not None:
                    return step
                if isinstance(log._closed, BaseException):
                    raise log._closed
                if log._closed:
                    return None
                log._changed.wait(_WAKE_S)
        return None

    @property
    def keeps_up(self) -> bool:
        """Whether it reads from memory, so that the buffer must keep its next rows."""
        return not self._final and not self.lagging and (self.offset.below >= self._log.published or not self._log._in_files)

    def leave(self) -> None:
        with self._log._changed:
            self._log._readers.discard(self)
            self._log._changed.notify_all()

    def _step(self) -> Taken | int | None:
        """The next item, or a generation to read from files; None when nothing is ready. The caller holds the lock."""
        log, offset = self._log, self.offset
        if offset.era < log.era:
            void = log._eras.void_since(offset.era)
            taken = offset.below > void or any(g >= void for g in offset.rows)
            offset.below = min(offset.below, void)
            offset.void(void, log.era)
            if taken:
                return Taken(None, void, "void")
        if offset.below < log.published:
            if log._in_files:
                return offset.below
            if offset.rows.get(offset.below, 0) >= log._totals.get(offset.below, 0):
                generation = offset.below
                offset.complete(generation)
                return Taken(None, generation, "complete")
        buffer = log._buffer
        while not self._final and self.at < buffer.end:
            self.at = max(self.at, buffer.first)
            entry = buffer[self.at]
            self.at += 1
            self.lagging = self.lagging and self.at < buffer.end  # until it has caught up
            log._changed.notify_all()
            batch = self._rest_of(entry)
            if batch is not None:
                return Taken(batch, entry.generation)
        if offset.below < log.published:
            raise UserError(_GONE)
        return None

    def _rest_of(self, entry: _Entry) -> pa.RecordBatch | None:
        """Unread rows of an entry; None also when rows before it are missing, which then come from files."""
        generation, have = entry.generation, self.offset.rows.get(entry.generation, 0)
        if generation < self.offset.below or entry.first + entry.batch.num_rows <= have:
            return None
        if entry.first > have:
            if self._log._in_files:
                return None
            if not self._log._lossy:
                raise UserError(_GONE)
            self.skipped += entry.first - have
            have = entry.first
        self.offset.rows[generation] = entry.first + entry.batch.num_rows
        return entry.batch.slice(have - entry.first)

    def _whole_generation(self, generation: int) -> Iterator[Taken]:
        """Unread rows of a final generation, from its files."""
        import pyarrow.parquet as pq

        skip = self.offset.rows.get(generation, 0)
        if skip < self._log._totals.get(generation, skip + 1):
            for path in self._log._final.files.get(generation, ()):
                with pq.ParquetFile(path) as file:
                    if skip >= file.metadata.num_rows:
                        skip -= file.metadata.num_rows
                        continue
                    for batch in file.iter_batches(_FILE_ROWS):
                        rest = batch.slice(min(skip, batch.num_rows))
                        skip -= batch.num_rows - rest.num_rows
                        if rest.num_rows:
                            self.offset.take(generation, rest.num_rows)
                            yield Taken(rest, generation)
            if skip:
                raise UserError(_ANOTHER)
        self.offset.complete(generation)
        yield Taken(None, generation, "complete")

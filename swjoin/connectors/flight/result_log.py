"""Log of result rows: every consumer reads it at its own pace, in bounded memory.

What: `ResultLog`: rows numbered by generation (how many checkpoints precede them), sink, and position among the sink's rows of
the generation; `drain`; `Eras`, a run's recoveries; `SinkWriter`, one sink's side; `Reader`, one consumer's cursor;
`ConsumerOffset`, the resume position of a consumer: it survives a crash of the consumer and of the run.
Why: a consumer must neither lose a row nor receive one twice, and a slow consumer must neither fill the memory nor block the
others for long.
Stays out: Flight (`connectors.flight.server`), files (`connectors.files.sink`), the source of the rows
(`connectors.flight.result_stream`).

Rows of a generation can be read at once, those of all sinks as they come; once the next checkpoint is complete they are final,
and lie in files, those of one sink in the order in which they came. A recovery voids the rows of later generations: they are
produced again, in another order, perhaps by other sinks. Each recovery starts a new era, so that a consumer that was
disconnected learns of it. An offset also names the run, and the query of
several, because all count generations from 0.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import RunFailed, UserError, one_line
from swjoin.core.storage import write_whole, writing

if TYPE_CHECKING:
    import pyarrow as pa

_WAKE_S = 0.25  # poll interval of a waiting reader, which checks whether its consumer has disconnected
_GONE = "from: rows after this place are gone; take the results from now on"
_ANOTHER = "from: a place in the results of another run or query"
_RUN = re.compile("[0-9a-f]{16}")
_FILE_ROWS = 16_384  # of a batch that is read from a file
_CLOSING_S = 30.0  # how long the first sink waits for the others at the end
Part = tuple[int, int]  # generation, sink
_InFiles = tuple[int, dict[int, list[Path]]]  # a final generation, and its files by sink


@dataclass
class ConsumerOffset:
    """Resume position of a consumer. below: all rows of generations before this one have been read. rows: number of rows read
    of each later generation and sink. era: the era of these numbers. run: id of the run, or of a query in it; empty before
    the first row of any run."""

    era: int = 0
    below: int = 0
    rows: dict[Part, int] = field(default_factory=dict)
    run: str = ""

    def to_plain(self) -> dict[str, Any]:
        rows = {f"{g}.{sink}" if sink else str(g): n for (g, sink), n in self.rows.items()}
        return {"run": self.run, "era": self.era, "below": self.below, "rows": rows}

    @staticmethod
    def from_plain(plain: Any) -> ConsumerOffset:
        """UserError for anything that is not an offset."""
        try:
            rows = {_part(text): int(n) for text, n in plain["rows"].items()}
            offset = ConsumerOffset(int(plain["era"]), int(plain["below"]), rows, str(plain.get("run", "")))
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            raise UserError("from: not a place; take one that came with a batch, 'start' or 'now'") from None
        if min([offset.era, offset.below, *(number for part in rows for number in part), *rows.values()]) < 0:
            raise UserError("from: not a place; it holds negative numbers")
        return offset

    @property
    def started(self) -> bool:
        """Whether a consumer has read anything of a run."""
        return bool(self.era or self.below or self.rows)

    def take(self, part: Part, rows: int) -> None:
        self.rows[part] = self.rows.get(part, 0) + rows

    def complete(self, generation: int) -> None:
        self.below = max(self.below, generation + 1)
        self.rows = {part: n for part, n in self.rows.items() if part[0] >= self.below}

    def void(self, generation: int, era: int) -> None:
        self.era = era
        self.rows = {part: n for part, n in self.rows.items() if part[0] < generation}


def _part(text: str) -> Part:
    generation, _, sink = str(text).partition(".")
    return int(generation), int(sink or 0)


@dataclass(frozen=True)
class Taken:
    """One item of a reader. batch: None with `complete` (all rows of the generation have been read and are final) and with
    `void` (rows read of this and later generations are no longer valid)."""

    batch: pa.RecordBatch | None
    generation: int
    kind: str = "rows"
    sink: int = 0  # of the rows


@dataclass(frozen=True)
class _Entry:
    batch: pa.RecordBatch
    part: Part
    first: int  # row of the part


class Eras:
    """Identity of a run and its recoveries, for the logs of all of its queries. file: where both are stored; None: the run
    never recovers. fresh: a new run; the content of the file belongs to an earlier one."""

    def __init__(self, file: Path | None = None, *, fresh: bool = False) -> None:
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
    def count(self) -> int:
        return len(self._voids)

    def first_generation(self, era: int) -> int:
        """First generation of an era: one process wrote every row from it on."""
        return self._voids[era - 1] if era else 0

    def start(self, era: int, generation: int) -> None:
        """This era starts with this generation, for the first log that says so."""
        if era <= len(self._voids):
            assert self._voids[era - 1] == generation, "logs of one run at different generations"
            return
        self._voids.append(generation)
        if self._file is not None:
            with writing(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, "".join(f"{line}\n" for line in (self.run, *self._voids)).encode())

    def void_since(self, era: int, until: int) -> int:
        """First generation that recoveries after this (earlier) era have voided, up to another era."""
        return min(self._voids[era:until])


class _QueryEras:
    """Eras of a run as the log of one query has passed them; its identity among those of other runs and queries."""

    def __init__(self, eras: Eras, query: str) -> None:
        self._eras, self.era = eras, eras.count
        self.run = eras.run if not query else hashlib.blake2b(f"{eras.run} {query}".encode(), digest_size=8).hexdigest()

    @property
    def first_generation(self) -> int:
        """First generation of this era: this process wrote every row from it on."""
        return self._eras.first_generation(self.era)

    def start(self, generation: int) -> None:
        """A new era starts with this generation."""
        self.era += 1
        self._eras.start(self.era, generation)

    def void_since(self, era: int) -> int:
        """First generation that recoveries after this (earlier) era have voided."""
        return self._eras.void_since(era, self.era)


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
        kept = [entry for entry in self._entries if entry.part[0] < generation]
        self.first += len(self._entries) - len(kept)
        self._entries = deque(kept)
        self.nbytes = sum(entry.batch.nbytes for entry in kept)

    def validate(self) -> None:
        assert self.nbytes == sum(e.batch.nbytes for e in self._entries), "result log: bytes do not add up"
        assert len(self._entries) <= 1 or self.nbytes <= self.limit_bytes, "result log: above its limit"


class _Sinks:
    """What the sinks have said. Generations are final before `end`. attempt: restores of the first sink. files: by
    generation and sink, as far as rows lie in files. open: sinks whose rows have not ended."""

    def __init__(self, count: int) -> None:
        self.count, self.attempt = count, 0
        self._ends = dict.fromkeys(range(count), 0)
        self.files: dict[int, dict[int, list[Path]]] = {}
        self.open = set(range(count))

    @property
    def end(self) -> int:
        return min(self._ends.values())

    @property
    def known(self) -> bool:
        """Whether all sinks have said what is final, since a start or a recovery."""
        return len(self._ends) == self.count

    def add(self, part: Part, files: Sequence[Path]) -> None:
        generation, sink = part
        self.files.setdefault(generation, {})[sink] = list(files)
        self._ends[sink] = max(self._ends[sink], generation + 1)

    def restore(self, end: int, files: Mapping[Part, Sequence[Path]], sink: int) -> None:
        """The first sink is restored before the others."""
        if sink == 0:
            self.attempt += 1
            self._ends.clear()
            self.files.clear()
        self._ends[sink] = end
        for (generation, of_sink), paths in files.items():
            self.files.setdefault(generation, {})[of_sink] = list(paths)

    def of(self, generation: int) -> dict[int, list[Path]]:
        """Files of a generation, by sink."""
        return dict(self.files.get(generation, {}))


class ConsumerCutOffError(RunFailed):
    """A consumer was too slow for too long."""


class ResultLog:
    """limit_bytes: capacity of the memory buffer. patience_s: how long `write` waits for readers that take nothing; then they
    are cut off, or continue from files. in_files: final rows lie in Parquet files. lossy: `write` never waits, readers skip
    dropped rows. eras: of the run. sinks: how many write; each has a `SinkWriter`. query: whose rows these are, of several."""

    def __init__(
        self,
        schema: pa.Schema,
        limit_bytes: int,
        patience_s: float,
        *,
        in_files: bool = False,
        lossy: bool = False,
        eras: Eras | None = None,
        sinks: int = 1,
        query: str = "",
    ) -> None:
        self.schema = schema
        self.rows = 0  # written since the start
        self.cuts = 0  # readers that were cut off
        self.held_up_s = 0.0  # that `write` has waited for readers
        self._patience_s, self._lossy, self._in_files = patience_s, lossy, in_files
        self._eras = _QueryEras(Eras() if eras is None else eras, query)
        self._buffer = _Buffer(limit_bytes)
        self._totals: dict[Part, int] = {}  # rows of the parts that this log has taken
        self._sinks = _Sinks(sinks)
        self._oldest: int | None = None  # first generation of this process; None before `restore`
        self._readers: set[Reader] = set()
        self._closed: BaseException | bool = False
        self._changed = threading.Condition()

    # ------------------------------------------------------------ written

    def write(self, batch: pa.RecordBatch, generation: int = 0, sink: int = 0, attempt: int | None = None) -> None:
        """Append rows of a generation. Waits for readers, for `patience_s` at most while they take nothing. attempt: that the
        rows belong to; RunFailed for an earlier one."""
        part, oldest, deadline = (generation, sink), -1, 0.0
        with self._changed:
            while self._buffer.is_full(batch.nbytes):
                self._check(attempt)
                if self._buffer.first != oldest:  # readers go on, though another sink may have got the space
                    oldest, deadline = self._buffer.first, time.monotonic() + self._patience_s
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
            self._check(attempt)
            first = self._totals.get(part, 0)
            self._totals[part] = first + batch.num_rows
            self._buffer.append(_Entry(batch, part, first))
            self.rows += batch.num_rows
            self._changed.notify_all()

    def _check(self, attempt: int | None) -> None:
        if attempt is not None and attempt != self.attempt:
            raise RunFailed("results of an attempt that a recovery has ended")

    def _give_up(self, slow: list[Reader]) -> None:
        for reader in slow:
            reader.lagging = True
            if not self._in_files:
                reader.cut = True
                self._readers.discard(reader)
                self.cuts += 1

    def publish(self, generation: int, files: Sequence[Path], sink: int = 0, attempt: int | None = None) -> None:
        """The rows of this generation are final; these files hold those of the sink in the order of writing."""
        with self._changed:
            self._check(attempt)
            self._sinks.add((generation, sink), files)
            self._changed.notify_all()

    def restore(self, generation: int, files: Mapping[Part, Sequence[Path]]) -> None:
        """A start or a recovery: this generation is the next; earlier ones lie in files. A new era starts. Readers wait until
        the other sinks have joined."""
        with self._changed:
            if self._oldest is None:
                self._oldest = generation
            self._sinks.restore(generation, files, 0)
            # Files count: they hold more than this log where a sink could not reach it.
            self._totals = {} if self._in_files else {part: n for part, n in self._totals.items() if part[0] < generation}
            # Rows of earlier generations are final; without files the buffer alone has them.
            self._buffer.keep_before(0 if self._in_files else generation)
            for reader in self._readers:  # their offsets skip rows that they have read
                reader.at = self._buffer.first
            self._eras.start(generation)
            self._changed.notify_all()

    def join(self, sink: int, generation: int, files: Mapping[Part, Sequence[Path]], attempt: int) -> None:
        """After a restore another sink says which files it has, those that it has taken over included."""
        with self._changed:
            self._check(attempt)
            self._sinks.restore(generation, files, sink)
            self._changed.notify_all()

    def close(self, error: BaseException | None = None, sink: int = 0) -> None:
        """End of a sink's rows; with an error, of all. Readers receive the rest, or raise the first error."""
        with self._changed:
            self._sinks.open.discard(sink)
            if not isinstance(self._closed, BaseException) and (error is not None or not self._sinks.open):
                self._closed = error or True
            self._changed.notify_all()

    def drained(self, patience_s: float) -> bool:
        """`drain` this log alone."""
        return drain([self], patience_s)

    def _await_end(self, until_s: float) -> None:
        with self._changed:
            while not self._closed and 0 not in self._sinks.open and time.monotonic() < until_s:
                self._changed.wait(_WAKE_S)
            if not self._closed:
                self._closed = RunFailed(f"results of sink {min(self._sinks.open)} have not come to their end")

    def _await_readers(self, until_s: float) -> bool:
        with self._changed:
            while self._readers and time.monotonic() < until_s:
                self._changed.wait(min(_WAKE_S, max(0.0, until_s - time.monotonic())))
            return not self._readers

    def note_whole(self) -> None:
        """After a restore: these rows begin with this process, so it has all of them."""
        with self._changed:
            self._oldest = 0

    # ------------------------------------------------------------ read

    @property
    def published(self) -> int:
        """Generations before this one are final."""
        return self._sinks.end

    @property
    def sinks(self) -> int:
        """How many sinks write."""
        return self._sinks.count

    @property
    def attempt(self) -> int:
        """Number of the start, or of the recovery."""
        return self._sinks.attempt

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
            while not (self._sinks.known or self._closed or given_up()):
                self._changed.wait(_WAKE_S)
            if offset is None:
                later = {} if final else {part: n for part, n in self._totals.items() if part[0] >= self.published}
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
        ahead = any(n > self._totals.get(part, n if part[0] < known else 0) for part, n in offset.rows.items())
        return offset.below > self.published or ahead

    @property
    def readers(self) -> int:
        return len(self._readers)

    def validate(self) -> None:
        with self._changed:
            self._buffer.validate()


def drain(logs: Collection[ResultLog], patience_s: float) -> bool:
    """After `close`: whether all readers have finished within this time. Waits for the other sinks before."""
    until_s = time.monotonic() + _CLOSING_S
    for log in logs:
        log._await_end(until_s)
    until_s = time.monotonic() + patience_s
    return all([log._await_readers(until_s) for log in logs])


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
                    yield from self._whole_generation(*step)
        finally:
            self.leave()

    def _next(self) -> Taken | _InFiles | None:
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

    def _step(self) -> Taken | _InFiles | None:
        """The next item, or a generation to read from files; None when nothing is ready. The caller holds the lock."""
        log, offset = self._log, self.offset
        if offset.era < log.era:
            void = log._eras.void_since(offset.era)
            taken = offset.below > void or any(g >= void for g, _ in offset.rows)
            offset.below = min(offset.below, void)
            offset.void(void, log.era)
            if taken:
                return Taken(None, void, "void")
        if not log._sinks.known:
            return None
        if offset.below < log.published:
            generation = offset.below
            if log._in_files:
                return generation, log._sinks.of(generation)
            if all(
                offset.rows.get(part, 0) >= log._totals.get(part, 0) for part in ((generation, s) for s in range(log.sinks))
            ):
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
                return Taken(batch, entry.part[0], sink=entry.part[1])
        if offset.below < log.published:
            raise UserError(_GONE)
        return None

    def _rest_of(self, entry: _Entry) -> pa.RecordBatch | None:
        """Unread rows of an entry; None also when rows before it are missing, which then come from files."""
        part, have = entry.part, self.offset.rows.get(entry.part, 0)
        if part[0] < self.offset.below or entry.first + entry.batch.num_rows <= have:
            return None
        if entry.first > have:
            if self._log._in_files:
                return None
            if not self._log._lossy:
                raise UserError(_GONE)
            self.skipped += entry.first - have
            have = entry.first
        self.offset.rows[part] = entry.first + entry.batch.num_rows
        return entry.batch.slice(have - entry.first)

    def _whole_generation(self, generation: int, files: dict[int, list[Path]]) -> Iterator[Taken]:
        """Unread rows of a final generation, from its files, sink by sink."""
        for sink in sorted({*files, *(sink for g, sink in self.offset.rows if g == generation)}):
            for batch in self._rest_of_files((generation, sink), files.get(sink, ())):
                self.offset.take((generation, sink), batch.num_rows)
                yield Taken(batch, generation, sink=sink)
        self.offset.complete(generation)
        yield Taken(None, generation, "complete")

    def _rest_of_files(self, part: Part, files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        skip = self.offset.rows.get(part, 0)
        if skip >= self._log._totals.get(part, skip + 1):
            return
        for path in files:
            with pq.ParquetFile(path) as file:
                if skip >= file.metadata.num_rows:
                    skip -= file.metadata.num_rows
                    continue
                for batch in file.iter_batches(_FILE_ROWS):
                    rest = batch.slice(min(skip, batch.num_rows))
                    skip -= batch.num_rows - rest.num_rows
                    if rest.num_rows:
                        yield rest
        if skip:
            raise UserError(_ANOTHER)


class SinkWriter:
    """One sink's side of a log in the same process. attempt: of a sink elsewhere, that it belongs to."""

    def __init__(self, log: ResultLog, sink: int, attempt: int | None = None) -> None:
        self._log, self._sink = log, sink
        self._attempt = log.attempt if attempt is None else attempt

    def write(self, batch: pa.RecordBatch, generation: int) -> None:
        self._log.write(batch, generation, self._sink, self._attempt)

    def publish(self, generation: int, files: Sequence[Path]) -> None:
        self._log.publish(generation, files, self._sink, self._attempt)

    def restore(self, generation: int, files: Mapping[Part, Sequence[Path]]) -> None:
        if self._sink == 0:
            self._log.restore(generation, files)
            self._attempt = self._log.attempt
        else:
            self.join(generation, files, self._log.attempt)

    def join(self, generation: int, files: Mapping[Part, Sequence[Path]], attempt: int) -> None:
        self._log.join(self._sink, generation, files, attempt)
        self._attempt = attempt

    def flush(self) -> None:
        """Everything is in the log already."""

    def close(self, error: BaseException | None = None) -> None:
        self._log.close(error, self._sink)

"""Spool of a pushed stream that several gateways read.

What: `SharedSpool`, which every gateway of a stream writes to; `Kept`, what all of them have accepted.
Why: after a death, or with another number of gateways, a producer belongs to another gateway, which reads the producer's
accepted rows again, whoever has accepted them.
Stays out: the spool of a single gateway, and what both have in common (`connectors.flight.spool`); merging
(`connectors.producer_merge`).

A row has the number of `core.splits.row_ids`: its producer's split, and its position among the producer's rows. So it does not
matter in which file it is, and a row that is there twice counts once. A position of a gateway has for each of its producers
the rows emitted, their highest merge time, whether it has ended, and its split; pseudo-producers (`~...`) stand for rows of
producers without a name.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.flight.spool import RecordFiles, unpack_batch
from swjoin.connectors.producer_merge import LaneState, Piece
from swjoin.core.batch import I64
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.splits import MOST_SPLITS, row_ids, split_and_offset
from swjoin.core.storage import read_whole_records, write_whole, writing

if TYPE_CHECKING:
    import pyarrow as pa

BEFORE = "~merged", -1  # rows that a single gateway had accepted: pseudo-producer, and split


class Kept:
    """Producers of all gateways: from where their rows are read again, and what has been accepted.

    A producer that has sent no row is not kept, unless it has ended: when it leaves, another one may get its split.
    """

    def __init__(self) -> None:
        self.lanes: dict[str, LaneState] = {}  # from where
        self.ends: dict[str, tuple[int, bool]] = {}  # rows accepted, and whether the producer has ended
        self.finished: set[tuple[int, int]] = set()  # shares, whose part of the stream has ended
        self.emitted_us: dict[str, int] = {}
        self._taken = np.zeros(MOST_SPLITS + 1, np.int64)  # of every split, which begin with -1
        self._rows: list[tuple[I64, I64, pa.RecordBatch]] = []  # numbers, merge times, columns

    def begin(self, position: dict[str, Any]) -> None:
        """Take the position of a gateway in a checkpoint."""
        emitted_us = position["emitted_us"]
        for name, (taken, high_us, ended, split) in position["lanes"].items():
            if not taken:
                continue
            self._taken[split + 1], self.ends[name] = taken, (taken, ended)
            self.lanes[name] = LaneState(split, taken, max(high_us, emitted_us), ended=ended)
            self.emitted_us[name] = emitted_us
        self._follow(position)

    def _follow(self, position: dict[str, Any]) -> None:
        for name, (taken, high_us, ended, split) in position["lanes"].items():
            if not taken and not ended:
                continue
            before = self.ends.get(name, (0, False))
            lane = self.lanes[name] = self.lanes[name] if before[0] else LaneState(split)
            self.ends[name] = max(before, (taken, ended))
            lane.passed_us = max(lane.passed_us, high_us, position["emitted_us"])
        if position["finished"]:
            self.finished.add((position["share"][0], position["share"][1]))

    def add(self, batch: pa.RecordBatch, position: dict[str, Any], is_mine: Callable[[int], bool]) -> None:
        """Take a record of the spool, after all of the checkpoint. Of other producers than one's own no rows are kept."""
        self._follow(position)
        if not batch.num_rows:
            return
        numbers, times_us = (column.to_numpy() for column in batch.columns[-2:])
        splits, offsets = split_and_offset(numbers)
        mine = [split for split in np.unique(splits).tolist() if is_mine(split)]
        keep = np.isin(splits, mine) & (offsets >= self._taken[splits + 1])
        if keep.any():
            index = np.flatnonzero(keep)
            self._rows.append((numbers[index], times_us[index], _rows_of(batch, index)))

    def mine(self, is_mine: Callable[[int], bool], where: str) -> dict[str, LaneState]:
        """One's own producers, with their accepted rows. RunFailed when some are missing."""
        import pyarrow as pa

        found = {name: lane for name, lane in self.lanes.items() if is_mine(lane.split)}
        if self._rows:
            numbers, first = np.unique(np.concatenate([numbers for numbers, _, _ in self._rows]), return_index=True)
            times_us = np.concatenate([times_us for _, times_us, _ in self._rows])[first]
            rows = pa.concat_batches([batch for _, _, batch in self._rows]).take(pa.array(first))
            splits, offsets = split_and_offset(numbers)
            for name, lane in found.items():
                if not self.ends[name][0]:
                    continue
                low, high = np.searchsorted(splits, [lane.split, lane.split + 1]).tolist()
                if high > low:
                    highs_us = np.maximum(np.maximum.accumulate(times_us[low:high]), lane.high_us)
                    lane.pieces = [Piece(rows.slice(low, high - low), highs_us)]
                    if offsets[high - 1] - offsets[low] + 1 != high - low or offsets[low] != lane.taken:
                        raise RunFailed(
                            f"{where}: accepted rows from row {lane.taken} of a producer on are not where they were kept"
                        )
        for name, lane in found.items():
            accepted, lane.ended = self.ends[name]
            if lane.end != accepted:
                raise RunFailed(f"{where}: producer {name}: {accepted} rows were accepted, {lane.end} are there")
        return found

    def has_finished(self, gateway: int, gateways: int) -> bool:
        """Whether a gateway's part of the stream has ended, as it was or with other numbers of gateways."""
        counts = {n for _, n in self.finished}
        return (gateway, gateways) in self.finished or any(all((g, n) in self.finished for g in range(n)) for n in counts)


def _rows_of(batch: pa.RecordBatch, index: I64) -> pa.RecordBatch:
    """These rows, without numbers and merge times."""
    import pyarrow as pa

    return batch.select(list(range(batch.num_columns - 2))).take(pa.array(index))


class SharedSpool(RecordFiles):
    """Merged batches of one stream, with numbers and merge times of their rows, in files of about 32 MB of every gateway.

    A rank that was taken for dead may wake up and write to its file: a gateway has a file that names its writer, and a batch is
    accepted only if that is still so after it was written. What it writes to files that its successor has found is not read.
    Names of files contain their writer, because a number is used again when all files of before are deleted.
    """

    def __init__(self, folder: Path, name: str, gateway: int) -> None:
        super().__init__(folder, name)
        self._gateway = gateway
        self._last: dict[Path, dict[str, Any]] = {}  # last positions of files that are complete
        self._token = secrets.token_hex(8)

    def _files(self) -> list[tuple[int, int, Path]]:
        """Numbers, gateways and files of all gateways."""
        if not self._folder.is_dir():
            return []
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)-(\d+)-[0-9a-f]+\.spool")
        found = ((pattern.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(m[1]), int(m[2]), path) for m, path in found if m)

    def _files_of(self, gateway: int) -> list[Path]:
        return [path for _, of, path in self._files() if of == gateway]

    @property
    def exists(self) -> bool:
        """Whether any gateway has accepted something that is still needed."""
        return bool(self._files())

    def take_over(self) -> None:
        """From now on this process is the gateway: no other one accepts rows for it any more."""
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        before = self._owner_of(self._gateway)
        self._own({**before, "token": self._token, "writers": [*before["writers"], self._token]})
        found = {}  # lengths count once nobody else accepts rows
        for path in self._files_of(self._gateway):
            counted = _counted(path, before)
            found[path.name] = path.stat().st_size if counted is None else counted
        self._own({"token": self._token, "writers": [self._token], "bytes": found})

    def _own(self, owner: dict[str, Any]) -> None:
        write_whole(self._owner_file(self._gateway), json.dumps(owner).encode())

    def _owner_file(self, gateway: int) -> Path:
        return self._folder / f"{self._name}-{gateway:04d}.owner"

    def _owner_of(self, gateway: int) -> dict[str, Any]:
        """Who writes for a gateway: token. Lengths of files that others have written for it before: bytes. writers: tokens of
        those whose other files count as they are; files of a process that began them after it was replaced do not."""
        try:
            owner: dict[str, Any] = json.loads(self._owner_file(gateway).read_bytes())
        except (OSError, ValueError):
            return {"token": "", "writers": [_writer_of(path) for path in self._files_of(gateway)], "bytes": {}}
        return owner

    def append(self, batch: pa.RecordBatch, position: dict[str, Any]) -> None:
        """Append a batch and the position after it; both survive this process. RunFailed when another one has taken over."""
        if self._is_full:
            self._check_owner()
            number = 1 + max((number for number, _, _ in self._files()), default=0)
            self._begin(f"{self._name}-{number:06d}-{self._gateway:04d}-{self._token}.spool")
        self._last[self._write({"position": position}, batch)] = position
        self._check_owner()

    def _check_owner(self) -> None:
        token = self._owner_of(self._gateway)["token"]
        if not token:
            raise RunFailed(f"{self._owner_file(self._gateway)}: is missing; accepted rows may be lost with it")
        if token != self._token:
            raise RunFailed(f"{self._name}: another process is gateway {self._gateway} now")

    def records(self) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """What all gateways have accepted."""
        for _, gateway, path in self._files():
            for batch, position in self._records_of(gateway, path):
                self._last[path] = position
                yield batch, position

    def _records_of(self, gateway: int, path: Path) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        try:
            records = list(read_whole_records(path, _counted(path, self._owner_of(gateway))))
        except RunFailed:
            if path.exists():
                raise
            return  # another gateway has deleted it: a checkpoint has its rows
        for record in records:
            head, batch = unpack_batch(record, path)
            yield batch, head["position"]

    def forget(self, kept: Kept, is_mine: Callable[[int], bool]) -> None:
        """Delete files, of gateways that this one takes over, without anything that comes after a checkpoint."""
        for _, gateway, path in self._files():
            if not is_mine(gateway) or (self._file is not None and path == self._file.path):
                continue
            if path not in self._last:
                for _, position in self._records_of(gateway, path):
                    self._last[path] = position
            last = self._last.get(path)
            if last is None or _covers(kept, last):
                path.unlink(missing_ok=True)
                self._last.pop(path, None)

    def remove(self) -> None:
        """Delete all files, of all gateways."""
        self._remove([*(path for _, _, path in self._files()), *self._folder.glob(f"{self._name}-*.owner")])


def _writer_of(path: Path) -> str:
    return path.stem.rpartition("-")[2]


def _counted(path: Path, owner: dict[str, Any]) -> int | None:
    """Bytes of a file that count; None: all."""
    known: int | None = owner["bytes"].get(path.name, None if _writer_of(path) in owner["writers"] else 0)
    return known


def _covers(kept: Kept, position: dict[str, Any]) -> bool:
    """Whether a checkpoint has all that a gateway had accepted at this position."""
    lanes = position["lanes"].items()
    within = all((taken, ended) <= kept.ends.get(name, (0, False)) for name, (taken, _, ended, _) in lanes)
    return within and (not position["finished"] or tuple(position["share"]) in kept.finished)


def merged_before(
    replay: Iterable[tuple[int, pa.RecordBatch, dict[str, Any]]],
    high_us: int,
    times_of: Callable[[pa.RecordBatch], tuple[I64, Any]],
) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """Records of rows that a single gateway had accepted. replay: of its spool. high_us: their greatest merge time before. They
    are rows of a pseudo-producer, with their positions as numbers."""
    import pyarrow as pa

    for start, batch, _ in replay:
        times, valid = times_of(batch)
        times_us = np.maximum.accumulate(
            np.maximum(times if valid is None else np.where(valid, times, BEGIN_OF_TIME_US), high_us)
        )
        if batch.num_rows:
            high_us = int(times_us[-1])
        numbers = row_ids(BEFORE[1], start + np.arange(batch.num_rows), "rows of a single gateway")
        lanes = {BEFORE[0]: [start + batch.num_rows, high_us, True, BEFORE[1]]}
        rows = batch.append_column("row number", pa.array(numbers)).append_column("merge time", pa.array(times_us))
        yield rows, {"lanes": lanes, "emitted_us": BEGIN_OF_TIME_US, "finished": False}


def as_shared(position: dict[str, Any], at: dict[str, Any], row: int) -> list[dict[str, Any]]:
    """The position of a single gateway as positions of several. position: after all that it had accepted. at, row: its position
    in the checkpoint, and the rows read then."""
    named = {name: [*lane, split] for split, (name, lane) in enumerate(sorted(position["lanes"].items()))}
    merged = {BEFORE[0]: [row, at["emitted_us"], True, BEFORE[1]]}
    return [
        {**position, "lanes": named, "share": [0, 1]},
        {"lanes": merged, "emitted_us": at["emitted_us"], "finished": False, "share": [0, 1]},
    ]

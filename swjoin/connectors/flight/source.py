"""Flight source: a stream that producers push.

What: `FlightSource`.
Why: a producer may discard accepted rows: a recovery, or a resumed run, reads them from the spool. A producer must send rows
again that have not been accepted.
Stays out: the endpoint of producers (`connectors.flight.ingest`), merging (`connectors.producer_merge`), files of the spool
(`connectors.flight.spool`, `connectors.flight.shared_spool`).

Several gateways: producers have numbers, split numbers; gateway g of n has those that are g modulo n, and gives such numbers to
producers that connect to it. Row ids without an id column are those of `core.splits.row_ids`.

Accepted rows survive the death of all processes of the run. They are not synced to disk batch by batch, so a power failure can
lose the last ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.flight.shared_spool import BEFORE, Kept, SharedSpool, as_shared, merged_before
from swjoin.connectors.flight.spool import Spool
from swjoin.connectors.live_source import MergedSource
from swjoin.core.batch import I64
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.splits import MOST_SPLITS, split_and_offset

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import StreamConfig
    from swjoin.connectors.producer_merge import Merge
    from swjoin.connectors.row_encoder import StreamColumns
    from swjoin.core.key_encoder import KeyEncoder


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


@dataclass
class _Splits:
    """Producers of a stream as splits. folder: of the spool. share: the gateway, and how many read the stream. kept_rows:
    accepted rows of every split, which begin with -1. known: producers of all gateways, and their splits, when the run went on.
    """

    folder: Path | None
    share: tuple[int, int] = 0, 1
    spool: SharedSpool | None = None
    kept_rows: I64 = field(default_factory=lambda: np.zeros(MOST_SPLITS + 1, np.int64))
    known: dict[str, int] = field(default_factory=dict)
    connecting: threading.Lock = field(default_factory=threading.Lock)


class FlightSource(MergedSource):
    """keep: folder of the spool; None: the run makes no checkpoints and has no recovery."""

    def __init__(
        self,
        name: str,
        config: StreamConfig,
        schema: pa.Schema,
        view: StreamColumns,
        keys: KeyEncoder | None,
        merge: Merge,
        keep: Path | None,
    ) -> None:
        super().__init__(name, config, schema, view, keys, merge)
        self.accepted: dict[str, int] = {}  # rows by producer; replaced as a whole, so other threads can read it
        self._position: dict[str, Any] = {**merge.position(), "rows": 0}
        self._spool = None if keep is None else Spool(keep / "intake", name)
        self._started = False
        self._spooled = 0  # rows in the spool since the start of the stream
        self._replay: deque[tuple[int, pa.RecordBatch, dict[str, Any]]] = deque()  # spooled batches to read again
        self._next_position: dict[str, Any] = self._position
        self._ends_spooled = self.merge.ends()
        self._spooling = threading.Lock()  # locked while rows move from the merge to the disk
        self._over: bool | BaseException = False  # the spool is closed, or a write has failed, in whatever thread
        self.split_count = MOST_SPLITS if config.flight is None else config.flight.producers or MOST_SPLITS
        self._splits = _Splits(None if keep is None else keep / "intake")

    @property
    def ended(self) -> bool:
        return not self._replay and super().ended

    def next_batch(self) -> pa.RecordBatch | None:
        while self._replay:
            _, batch, self._next_position = self._replay.popleft()
            if batch.num_rows:
                return batch
        with self._spooling:
            if isinstance(self._over, BaseException):
                raise self._over
            batch = super().next_batch()
            position = self._store(batch)
        if batch is not None and position is not None:
            self._next_position = position
        return batch

    def _store(self, batch: pa.RecordBatch | None) -> dict[str, Any] | None:
        """Spool rows that have been taken, and ends of producers; returns the merge's position, or None without news."""
        ends = self.merge.ends(self._durable)
        if batch is None and ends == self._ends_spooled:
            return None
        position = self.merge.position()
        if self.shared:
            return self._store_shared(batch, position)
        if self._spool is not None:
            with self._writing():
                self._spool.append(self._spooled, _no_rows(self.schema) if batch is None else batch, position)
        self._ends_spooled = ends
        self._accept(position)
        self._spooled += 0 if batch is None else batch.num_rows
        return position

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Around a write to the spool: if it fails nothing is accepted any more, and the gateway ends the run of it."""
        over, self._over = self._over, True
        try:
            yield
        except BaseException as error:
            self._over = error
            raise
        self._over = over

    def settled(self, name: str) -> bool:
        """Whether all rows of a producer, and its end, survive this process. From any thread."""
        with self._spooling:
            kept = max(self.merge.taken(name), self._durable.get(name, 0))
            if self._over or kept < self.merge.received(name):
                return False
            self._store(None)
            return True

    def finish(self) -> None:
        """End the stream durably. From any thread."""
        self.merge.finish()
        with self._spooling:
            if not self._over:
                self._store(None)

    def _accept(self, position: dict[str, Any]) -> None:
        self.accepted = {name: rows for name, (rows, *_) in position["lanes"].items()}

    def read(self) -> Any:
        out = super().read()
        self._position = self._next_position if self.shared else {**self._next_position, "rows": self.rows}
        return out

    # ------------------------------------------------------------ with several gateways

    def first_position(self) -> dict[str, Any]:
        return {}

    def take_share(self, gateway: int, gateways: int, first: dict[str, Any]) -> None:
        if self.shared:
            assert self.share == (gateway, gateways), "another share than before"
            return
        self.shared = self.merge.shows_times = self.merge.numbers_rows = True
        self._splits.share = gateway, gateways
        if self._splits.folder is not None:
            self._splits.spool = SharedSpool(self._splits.folder, self.name, gateway)
        if self.split_count < MOST_SPLITS:
            self.merge.expect(self.slots_of(gateway))
        if not self.slots_of(gateway):
            self.merge.finish()  # no producer is read here
        self._position = self._next_position = self._with_share(self.merge.position())

    @property
    def share(self) -> tuple[int, int]:
        """This gateway, and how many read the stream."""
        return self._splits.share

    @property
    def known(self) -> dict[str, int]:
        """Producers of all gateways, and their splits, when the run went on."""
        return self._splits.known

    def is_mine(self, split: int) -> bool:
        """Whether this gateway reads a split."""
        gateway, gateways = self.share
        return split % gateways == gateway

    def slots_of(self, gateway: int) -> int:
        """Producers that a gateway can have."""
        return len(range(gateway, self.split_count, self.share[1])) if gateway < self.share[1] else 0

    def connect(self, name: str, *, anonymous: bool) -> int:
        """A producer connects to this gateway: as `Merge.open`. From any thread."""
        if not self.shared:
            return self.merge.open(name, anonymous=anonymous)
        with self._splits.connecting:
            if anonymous:
                if self.merge.anonymous[0] < 0:
                    self.merge.anonymous = self._free_split(), 0
                return self.merge.open(name, anonymous=True)
            split = self.merge.splits.get(name)
            return self.merge.open(name, split=self._free_split() if split is None else split)

    def _free_split(self) -> int:
        gateway, gateways = self.share
        used = {*self.merge.splits.values(), self.merge.anonymous[0]}
        for split in range(gateway, MOST_SPLITS, gateways):
            if split not in used:
                return split
        raise UserError("the stream has had as many producers as there are numbers for; go on under one of their names")

    def _with_share(self, position: dict[str, Any]) -> dict[str, Any]:
        """The position of this gateway, also of rows without a producer's name."""
        split, rows = self.merge.anonymous
        lanes = position["lanes"]
        if rows:
            lanes = {**lanes, f"~split {split}": [rows, position["emitted_us"], True, split]}
        return {**position, "lanes": lanes, "share": list(self.share)}

    def _store_shared(self, batch: pa.RecordBatch | None, position: dict[str, Any]) -> dict[str, Any]:
        """As `_store`; rows that are taken again are on disk."""
        rows = _no_rows(self.schema) if batch is None else batch
        if batch is not None:
            splits, offsets = split_and_offset(batch.column(batch.num_columns - 2).to_numpy())
            index = np.flatnonzero(offsets >= self._splits.kept_rows[splits + 1])
            rows = batch if len(index) == batch.num_rows else batch.take(index)
            np.maximum.at(self._splits.kept_rows, splits[index] + 1, offsets[index] + 1)
        kept = {name: int(self._splits.kept_rows[split + 1]) for name, split in self.merge.splits.items()}
        ends = self.merge.ends(kept)
        if self._splits.spool is not None and (rows.num_rows or ends != self._ends_spooled):
            with self._writing():
                self._splits.spool.append(rows, self._with_share(self.merge.position(kept)))
        self._ends_spooled, self.accepted = ends, kept
        return self._with_share(position)

    @property
    def _durable(self) -> dict[str, int]:
        """Accepted rows, which are taken again after a recovery if several gateways read the stream."""
        return self.accepted if self.shared else {}

    def taken_over(self, positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        kept = Kept()  # refuses what is no position
        for position in positions:
            for one in [position] if "share" in position else as_shared(position, position, position["rows"]):
                kept.begin(one)
        return {"gateways": list(positions)}

    def _resume_shared(self, positions: Sequence[dict[str, Any]], row: int) -> None:
        """Read the rows of this gateway's producers again, from the positions of all gateways on."""
        assert self._splits.spool is not None, "a run without checkpoints has no recovery"
        where, fresh, self._started = f"{self.name} stream", not self._started, True
        if fresh:
            self._splits.spool.take_over()
        kept = self._kept_at(positions)
        with self._splits.connecting, self._spooling:
            for batch, position in self._splits.spool.records():
                kept.add(batch, position, self.is_mine)
            lanes = kept.mine(self.is_mine, where)
            self._splits.known = {name: lane.split for name, lane in kept.lanes.items()}
            if self.merge.anonymous[1] or fresh:  # rows that such producers send from now on have another number
                self.merge.anonymous = -1, 0
            before = [kept.emitted_us[name] for name in lanes if name in kept.emitted_us]
            finished = kept.has_finished(*self.share) and all(lane.ended for lane in lanes.values())
            self.merge.rewind(lanes, min(before, default=BEGIN_OF_TIME_US), finished=finished)
            if self.merge.has_anonymous:
                self.merge.anonymous = self._free_split(), 0
            for lane in lanes.values():
                self._splits.kept_rows[lane.split + 1] = lane.end
            self.accepted = {name: lane.end for name, lane in lanes.items()}
            self._ends_spooled = self.merge.ends(self.accepted)
            self._next, self.rows = None, row
            self._position = self._next_position = self._with_share(self.merge.position())

    def _kept_at(self, positions: Sequence[dict[str, Any]]) -> Kept:
        """Of a checkpoint; with the rows that a single gateway had accepted, if the run began with one."""
        kept = Kept()
        merged: list[int] = [position["lanes"][BEFORE[0]][0] for position in positions if BEFORE[0] in position["lanes"]]
        alone = [position for position in positions if "share" not in position]
        if not positions:
            alone = [{"lanes": {}, "emitted_us": BEGIN_OF_TIME_US, "finished": False, "rows": 0}]
        replay: list[Any] = []
        high_us = BEGIN_OF_TIME_US
        if alone or merged:
            assert self._spool is not None, "a run without checkpoints has no recovery"
            replay = self._spool.from_row(alone[0]["rows"] if alone else merged[0], within=not alone)
        if alone and (positions or replay):
            positions = as_shared(replay[-1][2] if replay else alone[0], alone[0], alone[0]["rows"])
        for position in positions:
            kept.begin(position)
        if BEFORE[0] in kept.lanes:
            high_us = kept.lanes[BEFORE[0]].high_us
        for batch, position in merged_before(replay, high_us, self.times_of):
            kept.add(batch, position, self.is_mine)
        return kept

    def describe_row(self, row: int) -> str:
        split, offset = split_and_offset(row)
        if not self.shared or split < 0:
            return super().describe_row(row)
        names = {number: name for name, number in self.merge.splits.items()}
        return f"{self.where}, row {offset} (counting from 0) of producer {names.get(split, 'without a name')}"

    def forget_shared(self, positions: Sequence[dict[str, Any]]) -> None:
        if self._splits.spool is None or any("share" not in position for position in positions):
            return
        kept = Kept()
        for position in positions:
            kept.begin(position)
        with self._spooling:  # a file that is being opened is not to be deleted
            self._splits.spool.forget(kept, self.is_mine)
        if self._spool is not None and self.is_mine(BEFORE[1]) and BEFORE[0] in kept.ends:
            self._spool.forget(kept.ends[BEFORE[0]][0])

    # ------------------------------------------------------------ across a crash

    def position(self) -> dict[str, Any]:
        return self._position

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        if self.shared:
            self._resume_shared(position["gateways"], row)
            return
        assert self._spool is not None, "a run without checkpoints has no recovery"
        assert self._splits.folder is not None, "as for its spool"
        fresh, self._started = not self._started, True  # in a new process only the spool has the producers' positions
        if fresh and SharedSpool(self._splits.folder, self.name, 0).exists:
            raise UserError(
                f"{self._splits.folder}: several gateways have accepted rows that are in no checkpoint; "
                f"resume the run with two gateways or more"
            )
        replay = self._spool.from_row(row)
        if fresh:
            last = replay[-1][2] if replay else position
            self.merge.restore(last)
            self._ends_spooled = self.merge.ends()
            self._accept(last)
            self._spooled = row + sum(batch.num_rows for _, batch, _ in replay)
        elif row + sum(batch.num_rows for _, batch, _ in replay) != self._spooled:
            raise RunFailed(f"{self.name}: accepted rows from {row} on are not where they were kept")
        self._replay, self._next, self.rows, self._position = deque(replay), None, row, position

    def seek(self, row: int) -> None:
        if self.shared and self._splits.spool is not None:
            self._resume_shared([], 0)
            return
        if self._spool is None:
            assert not self._started, "a run without checkpoints has no recovery"
            self._started = True
            return
        self.resume_at(row, {"lanes": {}, "emitted_us": BEGIN_OF_TIME_US, "finished": False, "rows": 0})

    def forget(self, row: int) -> None:
        if self._spool is not None:
            self._spool.forget(row)

    def done(self) -> None:
        if self._splits.folder is not None:  # also what several gateways left, before a single one went on
            (self._splits.spool or SharedSpool(self._splits.folder, self.name, 0)).remove()
        if self._spool is not None:
            self._spool.remove()

    def close(self) -> None:
        super().close()
        with self._spooling:
            self._over = True
            for spool in (self._spool, self._splits.spool):
                if spool is not None:
                    spool.close()

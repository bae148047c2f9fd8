"""An instance of a plan's stage: what a slave has around its operator: merger, packing of rows, exchange with the next stages.

What: `StageInstance`: its `merger` takes parts; `take` the next delivery for the operator, `emit` its rows, `end` an epoch;
credit for the senders.
Why: a join takes packed rows and keys of 64 bits, whatever travels between stages.
Stays out: the join and its occupancy (`cluster.slave.slave`), merging (`cluster.slave.merger`), routing (`cluster.exchange`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from swjoin.cluster.edge_ledger import EdgeLedger, count
from swjoin.cluster.exchange import EPOCHS_AHEAD, PARTS_AHEAD, EpochHeader, Filters, Outlet, move_rows, rows_after
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import Granted
from swjoin.cluster.role import Effect, RoleId, Send, is_slave, slave_of
from swjoin.cluster.slave.merger import Merger, Piece
from swjoin.cluster.slave.text_keys import KeysInRows, TextKeys
from swjoin.cluster.slave.units import Units
from swjoin.cluster.traffic import Traffic
from swjoin.core.batch import BOTH, I64, LEFT, RIGHT, STREAM_NAMES, U64, Bool, Pairs, ResultRows, RowLayout, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.hashing import pair_ids
from swjoin.core.ids import QueryId, SlaveId
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.merged_deliveries import Grouped, merged, on_common_groups
from swjoin.core.query_sums import NamedQueries
from swjoin.core.row_digests import row_hashes
from swjoin.operators.join_step import AnyStep
from swjoin.plan.columns import StageColumns
from swjoin.plan.families import Family
from swjoin.plan.logical import Result, Within
from swjoin.plan.stages import Edge
from swjoin.plan.watermarks import needed_below, watermark_out

_GRANT_PARTS = PARTS_AHEAD // 4  # worked on since the last credit


class StageInstance:
    """One instance of one stage. outlet: its exchange with later stages. ended: the last epoch has been joined. join_cpu_us:
    CPU time of the join. peak_window_tuples: at the ends of epochs."""

    def __init__(self, instances: Instances, slave: SlaveId) -> None:
        self._slave, self._instances = slave, instances
        self.stage = instances.stage_of(slave)
        name = f"slave {slave} ({self.stage.name})"
        self.merger = Merger(name, instances.senders_to(self.stage), instances.first_epoch)
        self.outlet = Outlet(instances, instances.edges_from(self.stage), instances.index_of(slave))
        self.null_key_rows = [0, 0]  # that were taken
        self.ended = False
        self.join_cpu_us = self.peak_window_tuples = 0
        self.keys = self.columns.new_keys()
        self._units = Units.of(instances, self.stage, self.layouts)
        self._open: Piece | None = None  # is being joined
        self._consumed: Counter[RoleId] = Counter()  # parts worked on
        self._granted: Counter[RoleId] = Counter()  # of these, those of which the sender knows
        self._arrival_us = 0  # of the rows that come out now

    @property
    def columns(self) -> StageColumns:
        return self._instances.columns_of(self._slave)

    @property
    def node(self) -> int:
        """The number of its slave rank."""
        return self._instances.subclusters.places[self._slave]

    @property
    def text_keys(self) -> TextKeys:
        return (TextKeys if self.stage.joins else KeysInRows)(self.keys.dictionary)

    @property
    def layouts(self) -> tuple[RowLayout | None, RowLayout | None]:
        """Of the rows that the join stores."""
        return self.columns.codecs[LEFT].layout, self.columns.codecs[RIGHT].layout

    @property
    def ledger(self) -> EdgeLedger:
        return self.outlet.ledger

    @property
    def stores_left(self) -> Bool | None:
        """As of `Units`: which partition-groups store left tuples; None where all store both streams."""
        return self._units.stores_left

    @cached_property
    def results(self) -> list[tuple[QueryId, Edge]]:
        """The queries of which its rows are the result, and the edges to the sinks."""
        return self._instances.results_of(self.stage)

    @property
    def of_rows(self) -> bool:
        """Whether its rows go to the sinks, and are no pairs."""
        return bool(self.results) and self._instances.of_rows

    @property
    def is_last(self) -> bool:
        """Whether its rows are those of the run's only query, and go to the sinks alone."""
        return bool(self.results) and len(self._instances.result_edges) == 1

    @property
    def owned(self) -> Bool:
        """Which partition-groups this instance owns: bool (partition_count,)."""
        owner = self._instances.group_maps[self.stage.id].owner
        owned: Bool = owner == self._instances.index_of(self._slave)
        return owned

    @property
    def needed_us(self) -> tuple[int, int]:
        """Times below which no later checkpoint needs left and right tuples."""
        return needed_below(self.stage.node, self.merger.times_us)

    @property
    def ready(self) -> bool:
        """Whether the join can go on: what it brings forth has room."""
        return (len(self._units) > 0 or self.merger.ready) and not self.outlet.waits

    def take(self) -> Delivery:
        """What is ready, as the join takes it: both ports, packed rows, keys of 64 bits. Only if `ready`."""
        if not len(self._units):
            self._units.add(self._merged())
        found = self._units.take()
        tuples = found.left, found.right
        self._arrival_us = min((int(batch.arrival_us.min()) for batch in tuples if len(batch)), default=0)
        return found

    def _merged(self) -> Delivery:
        piece = self._open = self.merger.take()
        for sender, delivery in piece.came:  # counted as they are taken, so that a checkpoint has the counts of its cut
            count(self.ledger.received, delivery.edge, delivery.left, delivery.right, *delivery.null_keys)
            if is_slave(sender) and self._instances.subclusters.places[slave_of(sender)] != self.node:
                self.ledger.from_other_ranks[delivery.edge] += delivery.nbytes
            for port in (LEFT, RIGHT):
                self.null_key_rows[port] += len(delivery.null_keys[port])
        sides = [self._side(port, piece.parts[port]) for port in (LEFT, RIGHT)]
        groups, counts = on_common_groups(sides)
        tuples = sides[LEFT].tuples, sides[RIGHT].tuples
        _, of = piece.came[0]
        nulls = self._packed(LEFT, piece.null_keys[LEFT]), self._packed(RIGHT, piece.null_keys[RIGHT])
        mine = [[m for m in piece.moves if m[i] == self._slave] for i in (2, 3)]
        out, into = ([(number, group, pair[1 - i]) for number, group, *pair in moves] for i, moves in enumerate(mine))
        labels = (0, self._slave, of.epoch, *piece.times_us)
        return Delivery(
            *(*labels, groups, counts[LEFT], counts[RIGHT], *tuples, piece.final and piece.last),
            served=of.served,
            moves_out=move_rows(out),
            moves_in=move_rows(into),
            generation=of.generation,
            checkpoint=of.checkpoint,
            null_keys=nulls,
            final=piece.final,
        )

    def waiting_tuples(self, port: int) -> int:
        """Tuples that were taken from the merger and are not being joined."""
        return self._units.waiting_tuples(port)

    def packed(self, delivery: Delivery) -> Delivery:
        """A logged part, as the join restores it: rows with a null key have come out, and no window holds them, nor those that
        have only probed."""
        left, right = self._packed(LEFT, [delivery.left]), self._packed(RIGHT, [delivery.right])
        nothing = TupleBatch.empty()
        return self._units.stored(replace(delivery, left=left, right=right, null_keys=(nothing, nothing)))

    def _side(self, port: int, parts: Sequence[Grouped]) -> Grouped:
        if not parts:
            return replace(Grouped.empty(), tuples=TupleBatch.empty(self.layouts[port]))
        if self.stage.gathers:
            parts = sorted(parts, key=lambda part: int(part.groups[0]))  # each of one group: nothing is to be moved
        return merged(parts, self._packed(port, [part.tuples for part in parts]))

    def _packed(self, port: int, batches: Sequence[TupleBatch]) -> TupleBatch:
        """Tuples as they travel, as the join stores them. Rows with a null key have no key."""
        if not any(map(len, batches)):
            return TupleBatch.empty(self.layouts[port])
        batch, codec = TupleBatch.concat(batches), self.columns.codecs[port].rows
        if not self.stage.joins:
            return batch
        key = batch.key
        if batch.columns is not None and isinstance(self.keys, KeyEncoder) and not self.keys.native:
            key = self.keys.encode([batch.columns.column(name) for name in self.stage.keys[port]])[0]
        assert codec is None or batch.columns is not None, "tuples without the columns that windows store"
        rows = None if codec is None or batch.columns is None else codec.encode(batch.columns.batch)
        return TupleBatch(key, batch.ts, batch.id, batch.arrival_us, rows)

    def joined(self, *, ended: bool) -> list[Effect]:
        """The delivery taken last has been joined: its parts make room. ended: its epoch is complete."""
        assert self._open is not None, "nothing is being joined"
        if len(self._units):
            return []  # of the same piece
        self._consumed.update(sender for sender, _ in self._open.came)
        self._open = None
        effects: list[Effect] = []
        for sender in {sender for _, sender in self.merger.feeds}:
            consumed = self._consumed[sender]
            if ended or consumed - self._granted[sender] >= _GRANT_PARTS:
                self._granted[sender] = consumed
                effects.append(Send(sender, Granted(self.merger.epoch + EPOCHS_AHEAD - 1, consumed)))
        return effects

    # ------------------------------------------------------------ rows that come out

    def emit(self, step: AnyStep, delivery: Delivery) -> list[Effect]:
        """Send rows of the operator, made of this delivery, to the next stages."""
        assert step.pairs is not None, "a step without rows"
        rows = self._rows_of(step.pairs)
        if not self._shares_windows:
            rows = replace(
                rows,
                key=np.full(len(rows), -1, np.int64) if step.origins is None else step.origins.astype(np.int64, copy=False),
            )
        self.outlet.add_to_all(rows, _header(delivery))
        return self.outlet.serve()

    def rows_for_sinks(self, pairs: Pairs | ResultRows) -> list[tuple[QueryId, Pairs | ResultRows]]:
        """Rows of the operator as they go to the sinks, by query; those of a family at once, under the first one."""
        if not self._instances.of_rows:
            return [(query, pairs) for query, _ in self.results]
        columns, found, rows = self._instances.columns, list[tuple[QueryId, Pairs | ResultRows]](), self._rows_of(pairs)
        for query, edge in self._answers:
            if edge.id in self._families:
                found.append((query, self._rows_of_family(*self._families[edge.id], rows)))
            elif edge.id not in columns.travels:
                found.append((query, self._shown(edge, rows.id, rows.ts, rows.columns)))
        filters, queries = self._filters
        for number in queries:
            self.ledger.filtered[number] += len(pairs)
        for edges, ends, some, tested in filters.passed(rows):
            _, edge = queries[edges[0]]
            try:
                mine = self._after_steps(edge, some, 1 if tested else 0)
            except RunFailed:
                for number, begin, end in zip(edges, (0, *ends), ends, strict=False):  # by the query whose row fails
                    self._after_steps(queries[number][1], some.take(np.arange(begin, end)), 1 if tested else 0)
                raise
            shown = self._shown(edge, mine.id, mine.ts, mine.columns)
            for number, begin, end in zip(edges, (0, *ends), ends if tested else (len(mine),), strict=False):
                self.ledger.filtered[number] -= end - begin
                found.append((queries[number][0], shown if len(edges) == 1 else shown.slice(begin, end)))
        return found

    @cached_property
    def _filters(self) -> tuple[Filters, dict[int, tuple[QueryId, Edge]]]:
        """The results that have steps and are of no family, by edge."""
        columns, found = self._instances.columns, dict[int, tuple[QueryId, Edge]]()
        for query, edge in self._answers:
            if edge.id not in self._families and edge.id in columns.travels:
                found[edge.id] = query, edge
        steps = {number: columns.steps[edge.id] for number, (_, edge) in found.items()}
        shown = {edge.id: (edge.receiver, columns.travels[edge.id]) for _, edge in found.values()}
        kinds: dict[int, object] = {n: (isinstance(of, Result) and of.of_values, travels) for n, (of, travels) in shown.items()}
        return Filters(steps, kinds), found

    @cached_property
    def _answers(self) -> list[tuple[QueryId, Edge]]:
        """The results without those of a family but the first."""
        others = {edge.id for family, _ in self._families.values() for edge in family.edges[1:]}
        return [(query, edge) for query, edge in self.results if edge.id not in others]

    def _after_steps(self, edge: Edge, rows: TupleBatch, done: int = 0, named: Edge | None = None) -> TupleBatch:
        """The rows that the steps of an edge leave, with the columns that travel. done: steps that they have passed. named: in
        errors; None: the edge."""
        columns = self._instances.columns
        rows, shown = rows_after(rows, (named or edge).id, columns.steps[edge.id][done:]), columns.travels[edge.id]
        return replace(rows, columns=None if rows.columns is None or not shown else rows.columns.select(shown))

    @property
    def named_queries(self) -> NamedQueries:
        """Of the run."""
        return self._instances.named_queries

    @cached_property
    def _families(self) -> dict[int, tuple[Family, I64]]:
        """By the first edge of each, families; and how many rows there have been, and of these of each rank: int64 (1 + n,)."""
        mine = [family for family in self._instances.families if family.edges[0].sender == self.stage]
        return {family.edges[0].id: (family, np.zeros(1 + len(family), np.int64)) for family in mine}

    def _rows_of_family(self, family: Family, kept: I64, rows: TupleBatch) -> ResultRows:
        """The rows that are in any of its results; their keys are ranks."""
        edge = family.edges[0]
        mine = self._after_steps(edge, rows, named=family.edges[-1])  # the widest, which has each row that fails
        kept[0] += len(rows)
        kept[1:] += np.bincount(mine.key, minlength=len(family))
        return replace(self._shown(edge, mine.id, mine.ts, mine.columns), ranks=mine.key)

    def settle(self) -> None:
        """Complete the ledger: the rows of the queries of families are known by rank."""
        for family, kept in self._families.values():
            for edge, rows in zip(family.edges, np.cumsum(kept[1:]).tolist(), strict=True):
                self.ledger.filtered[edge.id] = int(kept[0]) - rows

    def _shown(self, edge: Edge, ids: U64, ts: I64, columns: Columns | None) -> ResultRows:
        """Rows of a result. Where their values are digested these have the place of ids."""
        assert isinstance(edge.receiver, Result), "rows of a result"
        if edge.receiver.of_values and columns is not None:
            ids = row_hashes(columns.batch)
        return ResultRows(ids, ts, columns if self._instances.config.sink.kind != "count" else None)

    @cached_property
    def _shares_windows(self) -> bool:
        """Whether some reader of a join has pairs of narrower windows alone, for which they need the difference of times."""
        edges = self._instances.stages.edges_from(self.stage)
        return any(isinstance(step, Within) for edge in edges for step in edge.steps[:1])

    def _rows_of(self, pairs: Pairs | ResultRows) -> TupleBatch:
        """Rows of the operator with times, ids and columns; of a join that shares windows keys are right time - left time."""
        arrival = np.full(len(pairs), self._arrival_us, np.int64)
        if isinstance(pairs, ResultRows):
            return TupleBatch(np.zeros(len(pairs), np.int64), pairs.ts, pairs.id, arrival, None, pairs.columns)
        key = pairs.right_ts - pairs.left_ts if self._shares_windows else np.zeros(len(pairs), np.int64)
        if pairs.side == BOTH:
            time_of = {"max": np.maximum, "min": np.minimum}.get(self.stage.join.output_time)
            ts = pairs.left_ts if time_of is None else time_of(pairs.left_ts, pairs.right_ts)
        else:
            ts = pairs.left_ts if pairs.side == LEFT else pairs.right_ts
        ids = pair_ids(pairs.left_id, pairs.right_id)
        return TupleBatch(key, ts, ids, arrival, None, self.columns.produced.of(pairs))

    def end(self, delivery: Delivery) -> list[Effect]:
        """The epoch that ends with this delivery has been joined: the final parts, with the watermark."""
        assert self._open is not None, "no epoch is being joined"
        watermark_us = watermark_out(self.stage.node, (delivery.left_time_us, delivery.right_time_us))
        self.ended = delivery.last
        header = replace(_header(delivery), moves=self._open.moves)
        self.outlet.close(header, dict.fromkeys(self.outlet.edges, watermark_us))
        return self.outlet.serve()

    def granted(self, receiver: RoleId, credit: Granted) -> list[Effect]:
        self.outlet.granted(receiver, credit)
        return self.outlet.serve()

    def summary(self) -> dict[str, Any]:
        """The stage's part of run.json."""
        self.settle()
        null_keys = dict(zip(STREAM_NAMES, self.null_key_rows, strict=True))
        work = {"join_cpu_us": self.join_cpu_us, "peak_window_tuples": self.peak_window_tuples}
        return {"stage": int(self.stage.id), "edges": self.ledger.to_plain(), "null_key": null_keys, **work}

    def plain_state(self, kept_since_us: int | None) -> dict[str, Any]:
        """The stage's part of a checkpoint, at the end of an epoch. kept_since_us: the time below which its operator needs no
        rows; None: the rule of watermarks says it."""
        needed_us = self.needed_us if kept_since_us is None else (kept_since_us, self.needed_us[RIGHT])
        return {**self.summary(), "needed_us": list(needed_us)}

    @property
    def traffic(self) -> Traffic:
        return self.outlet.traffic

    def validate(self) -> None:
        self.merger.validate()
        self.outlet.validate()


def _header(delivery: Delivery) -> EpochHeader:
    return EpochHeader(delivery.epoch, delivery.served, delivery.generation, delivery.checkpoint, delivery.last)

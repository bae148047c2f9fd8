"""The sender's side of an exchange: rows of a source or a stage become deliveries to the instances of the stages after it.

What: `rows_after` the steps of an edge; `KeyedEdge`, which gives rows its key and columns; `Outlet`, all edges of one sender:
parts of bounded size, a final part with the watermark, and the credit of each receiver.
Why: gateways and instances send alike, whatever the number of senders and receivers.
Stays out: what is sent (`cluster.gateway.feeds`, `cluster.slave.stage`), merging (`cluster.slave.merger`).

A delivery goes over every edge to every receiver in every distribution epoch, also when empty. A receiver grants epochs and
parts; a sender ends an epoch on all of its edges before it begins the next, so a plan with a diamond cannot block.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from swjoin.cluster.edge_ledger import EdgeLedger, count
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import Granted, KeyLoad, UnitLoad
from swjoin.cluster.role import Effect, RoleId, Send, slave_role
from swjoin.cluster.traffic import Traffic
from swjoin.core.arrow_views import booleans_of
from swjoin.core.batch import I64, LEFT, Bool, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.merged_deliveries import Grouped
from swjoin.plan.aggregates import PreAggregate
from swjoin.plan.columns import BoundStep
from swjoin.plan.logical import Within
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.stages import Edge, Stage
from swjoin.policy.skew import KeySample
from swjoin.routing.biclique import Biclique, UnitsInUse, UnitTable
from swjoin.routing.hash_partition import HashPartition
from swjoin.routing.hot_keys import HotKey, SpreadKeys
from swjoin.routing.named import Places

if TYPE_CHECKING:
    from swjoin.expressions.comparison_index import ComparisonIndex

PART_ROWS, PART_BYTES = 16_384, 4 << 20  # most of a part, about
_LEAST_RUN = 1_024  # rows of a part that any instance may take
PARTS_AHEAD = 8  # parts from one sender that a receiver has not worked on
_FEWEST_FILTERS = 8  # of edges of one sender, from which on they are searched together
_NOTHING = TupleBatch.empty()
EPOCHS_AHEAD = 2  # epochs that a sender may begin beyond the last one that its receiver has ended

PlacesInUse: TypeAlias = Places | UnitsInUse
Moved = tuple[int, int, int, int]  # move, partition-group, supplier, consumer


def move_rows(moves: Sequence[Sequence[int]]) -> I64:
    """(move, partition-group, slave) triples as in `Delivery.moves_out`."""
    return np.array(moves, np.int64).reshape(-1, 3)


def moves_of(delivery: Delivery) -> tuple[Moved, ...]:
    """The moves of all stages, of which the final part of a delivery between stages tells."""
    both = zip(delivery.moves_in.tolist(), delivery.moves_out.tolist(), strict=True)
    return tuple((number, group, supplier, consumer) for (number, group, supplier), (_, _, consumer) in both)


@dataclass(frozen=True)
class EpochHeader:
    """What the deliveries of an epoch have in common, see `core.data_messages.Delivery`. moves: of partition-groups of all
    stages: from the next epoch on all senders route them to their consumers."""

    epoch: EpochIndex
    served: int
    generation: int = 0
    checkpoint: bool = False
    last: bool = False
    moves: tuple[Moved, ...] = ()


def rows_after(rows: TupleBatch, edge: int, steps: Sequence[BoundStep]) -> TupleBatch:
    """The rows that pass the filters of an edge, with the columns of its projections and the ids of its unions."""
    for step in steps:
        try:
            rows = step(rows)
        except RunFailed as error:
            raise error.prefixed(f"edge {edge}") from None
    return rows


class Keyed(NamedTuple):
    """Rows as they travel, and apart from them those with a null key. groups: their partition-groups, int64 (n,); None: those
    of their keys. origins: partition-groups that they come from, int64 (n,); only of a stage's rows."""

    rows: TupleBatch
    null_keys: TupleBatch = _NOTHING
    groups: I64 | None = None
    origins: I64 | None = None


@dataclass(frozen=True)
class KeyedEdge:
    """An edge between a source or a stage and a stage. columns: that travel. steps: that rows pass before. keys: None where
    any instance may take a row. keeps_null_keys: rows with a null key, which match nothing, come out of the join; otherwise
    they are dropped here. router: keys of the stage that rows are routed by; None: by the receiver's. knows_origins: keys of
    the rows that the sender gives are the partition-groups that these come from. head: steps before these that other edges of
    the sender have, too: parts, each with its number."""

    edge: Edge
    columns: tuple[str, ...]
    steps: tuple[BoundStep, ...]
    keys: KeyEncoder | GroupKeys | None
    keeps_null_keys: bool
    router: KeyEncoder | GroupKeys | None = None
    knows_origins: bool = False
    head: tuple[tuple[int, tuple[BoundStep, ...]], ...] = ()

    @staticmethod
    def of(instances: Instances, edge: Edge) -> KeyedEdge:
        assert isinstance(edge.receiver, Stage), "results have no keys"
        columns, steps = instances.columns.travels[edge.id], instances.columns.steps[edge.id]
        head, known = list[tuple[int, tuple[BoundStep, ...]]](), _knows_origins(instances, edge)
        for number, length in instances.columns.heads.get(edge.id, ()):
            head.append((number, steps[:length]))
            steps = steps[length:]
        if edge.receiver.gathers:
            return KeyedEdge(edge, columns, steps, None, keeps_null_keys=False, knows_origins=known, head=tuple(head))
        keeps = edge.receiver.joins and edge.receiver.join.semantics.kind.unmatched[edge.port]
        of = instances.columns.stages
        router = None if edge.origin is None else of[edge.origin].new_keys()
        return KeyedEdge(edge, columns, steps, of[edge.receiver.id].new_keys(), keeps, router, known, tuple(head))

    @property
    def places(self) -> Places | None:
        """Those of its receiver, all of them in use; None where keys alone say where a row goes."""
        spread = self.edge.spread
        return None if spread is None else spread.places

    def keyed(self, rows: TupleBatch, places: PlacesInUse | None) -> Keyed:
        """rows: behind the head, with its columns. places: in use."""
        rows = rows_after(rows, self.edge.id, self.steps)
        origins = self._origins(rows)
        if self.keys is None:
            shown = rows.columns.select(self.columns) if self.columns and rows.columns is not None else None
            return Keyed(TupleBatch(rows.id.view(np.int64), rows.ts, rows.id, rows.arrival_us, None, shown), origins=origins)
        assert rows.columns is not None or not self.edge.key, f"edge {self.edge.id}: rows without columns, among them the key"
        columns = None if rows.columns is None or not self.columns else rows.columns.select(self.columns)
        if isinstance(self.keys, GroupKeys):
            key = self._routed(rows) if self.router is not None else self.keys.hashed(self._values(rows), len(rows))
            whole = TupleBatch(key, rows.ts, rows.id, rows.arrival_us, None, columns)
            missing = self._missing_keys(rows)
            return Keyed(whole, origins=origins) if missing is None else _apart(whole, ~missing, origins)
        key, valid = self.keys.hashed(self._values(rows))
        if self.router is not None and not self.keys.native:
            key = self._routed(rows)
        whole = TupleBatch(key, rows.ts, rows.id, rows.arrival_us, None, columns)
        if valid is None or bool(valid.all()):
            return self._spread(Keyed(whole, _NOTHING, None, origins), places)
        return self._spread(_apart(whole, valid, origins), places)

    def _missing_keys(self, rows: TupleBatch) -> Bool | None:
        """Of rows to a multiway join, which have a null in their key, bool (n,); None: none has."""
        assert isinstance(self.edge.receiver, Stage), "results have no keys"
        columns = self._values(rows) if isinstance(self.edge.receiver.node, MultiwayJoin) else []
        found = [booleans_of(column.is_null()) for column in columns if column.null_count]
        return np.logical_or.reduce(found) if found else None

    def _origins(self, rows: TupleBatch) -> I64 | None:
        """Of rows after the steps."""
        if not isinstance(self.edge.sender, Stage):
            return None
        return rows.key if self.knows_origins else np.full(len(rows), -1, np.int64)

    def _spread(self, keyed: Keyed, places: PlacesInUse | None) -> Keyed:
        """With the copies of rows that go to several places."""
        rows, null_keys, _, origins = keyed
        if places is None:
            return keyed
        assert isinstance(self.edge.receiver, Stage), "results have no places"
        hashes = (rows.key >> self.edge.receiver.cell_bits).view(np.uint64) if places.by_key else None
        positions, groups = places.copies(self.edge.port, rows.id, hashes)
        return Keyed(rows.take(positions), null_keys, groups, None if origins is None else origins[positions])

    def _values(self, rows: TupleBatch) -> list[Any]:
        """The columns of the receiver's key, Arrow arrays."""
        assert isinstance(self.edge.receiver, Stage), "results have no keys"
        return [] if rows.columns is None else [rows.columns.column(name) for name in self.edge.receiver.keys[self.edge.port]]

    def _routed(self, rows: TupleBatch) -> I64:
        """The edge's key as the stage hashes it whose rows are routed so. Rows with a null in it are at one place."""
        assert rows.columns is not None, f"edge {self.edge.id}: rows without columns, among them the key"
        given = [rows.columns.column(name) for name in self.edge.key]
        if isinstance(self.router, GroupKeys):
            return self.router.hashed(given, len(rows))
        assert self.router is not None, "rows are routed by their receiver's key"
        key, valid = self.router.hashed(given)
        return key if valid is None else np.where(valid, key, 0)


def _apart(rows: TupleBatch, valid: Bool, origins: I64 | None) -> Keyed:
    """Rows with keys, and those whose key is null."""
    good = np.flatnonzero(valid)
    origins = None if origins is None else origins[good]
    return Keyed(rows.take(good), rows.take(np.flatnonzero(~valid)), None, origins)


def _knows_origins(instances: Instances, edge: Edge) -> bool:
    """Not where a join shares its windows, and keys are differences of times, nor where rows of several origins become one
    before they are sent."""
    if not isinstance(edge.sender, Stage) or any(isinstance(step, PreAggregate) for step in edge.steps):
        return False
    return not any(isinstance(step, Within) for other in instances.stages.edges_from(edge.sender) for step in other.steps[:1])


class Passed(NamedTuple):
    """Rows for some edges, one edge's after the other's. ends: positions behind those of each. tested: whether they have passed
    the edges' first filters; only then there are several edges, which do the same to rows afterwards."""

    edges: tuple[int, ...]
    ends: tuple[int, ...]
    rows: TupleBatch
    tested: bool


class Filters:
    """Edges of one sender, of which many may begin with a filter."""

    def __init__(self, steps: Mapping[int, Sequence[BoundStep]], kinds: Mapping[int, object] = MappingProxyType({})) -> None:
        """steps: by edge. kinds: rows of edges of one kind that do the same behind their filters come together."""
        self._all = list(steps)
        self._index: ComparisonIndex | None = None
        self._alike: dict[int, int] = {}  # by edge, the first one of those that do the same
        if len(steps) < _FEWEST_FILTERS:
            return
        from swjoin.expressions.chain import Projection, Selection
        from swjoin.expressions.comparison_index import ComparisonIndex

        first = {edge: of[0].condition for edge, of in steps.items() if of and isinstance(of[0], Selection)}
        self._index = ComparisonIndex.of(first, _FEWEST_FILTERS)
        self._all = [edge for edge in steps if edge not in self._index.numbers]
        firsts: dict[object, int] = {}
        for edge in sorted(self._index.exact & kinds.keys()):
            after = steps[edge][1:]
            if all(isinstance(step, Projection) for step in after):  # a row stays a row
                done = tuple(step.columns for step in after if isinstance(step, Projection))
                self._alike[edge] = firsts.setdefault((kinds[edge], done), edge)

    def passed(self, rows: TupleBatch) -> Iterator[Passed]:
        """The edges whose first filters some of these rows may pass, with these rows."""
        yield from (Passed((edge,), (len(rows),), rows, tested=False) for edge in self._all)
        if self._index is None or not self._index.numbers:
            return
        assert rows.columns is not None, "filters read columns"
        waiting: dict[int, list[tuple[int, I64]]] = {}
        counts = Counter[int]()
        for edge, at in self._index.candidates(rows.columns.batch):
            if at is None:
                yield Passed((edge,), (len(rows),), rows, tested=False)
                continue
            if edge not in self._alike:
                yield Passed((edge,), (len(at),), rows.take(at), tested=False)
                continue
            group = self._alike[edge]
            waiting.setdefault(group, []).append((edge, at))
            counts[group] += len(at)
            if counts[group] >= PART_ROWS:
                yield _together(rows, waiting.pop(group))
                counts[group] = 0
        yield from (_together(rows, members) for members in waiting.values())


def _together(rows: TupleBatch, members: Sequence[tuple[int, I64]]) -> Passed:
    edges, at = zip(*members, strict=True)
    return Passed(edges, tuple(np.cumsum([len(of) for of in at]).tolist()), rows.take(np.concatenate(at)), tested=True)


@dataclass
class _Receiver:
    """Deliveries to one receiver, and its credit. until_epoch: the last epoch whose parts it takes."""

    role: RoleId
    until_epoch: int
    parts: deque[Delivery] = field(default_factory=deque)
    sent: int = 0
    consumed: int = 0

    @property
    def ready(self) -> bool:
        """Whether the next part may be sent."""
        return bool(self.parts) and self.parts[0].epoch <= self.until_epoch and self.sent - self.consumed < PARTS_AHEAD


def _most_of_part(rows: TupleBatch) -> int:
    return max(1, min(PART_ROWS, PART_BYTES * len(rows) // rows.nbytes))


@dataclass
class _Sending:
    """An edge of one sender: its rows that are in no part yet."""

    keyed: KeyedEdge
    receivers: list[SlaveId]
    router: HashPartition
    rows: list[TupleBatch] = field(default_factory=list)
    groups: list[I64] = field(default_factory=list)  # of these rows, if they are not those of their keys
    origins: list[I64] = field(default_factory=list)  # of these rows, if the sender has partition-groups
    row_count: int = 0
    null_keys: list[TupleBatch] = field(default_factory=list)
    dealt: int = 0  # parts of rows that any instance may take
    sample: KeySample | None = None  # where hot keys are spread
    newest_us: int = BEGIN_OF_TIME_US  # of the rows that were sampled
    watermark_us: int = BEGIN_OF_TIME_US
    hot_keys: SpreadKeys | None = None
    places: PlacesInUse | None = None  # of the receiver
    newest_by_unit_us: I64 | None = None  # in this epoch, int64 (units of the port,), where their number follows their load


def _spread_hot_keys(sending: _Sending, sample: KeySample, keyed: Keyed) -> Keyed:
    """The rows with their copies, and the partition-groups of these; None: those of their keys."""
    rows, origins = keyed.rows, keyed.origins
    sample.add(rows.key)
    sending.newest_us = max(sending.newest_us, int(rows.ts.max()))
    if sending.hot_keys is None:
        return keyed._replace(groups=None)
    positions, groups = sending.hot_keys.copies(rows, sending.router.groups_of(rows.key))
    if positions is not None:
        rows, origins = rows.take(positions), None if origins is None else origins[positions]
    return Keyed(rows, keyed.null_keys, groups, origins)


def _note_stored(sending: _Sending, rows: TupleBatch, groups: I64) -> None:
    """Rows at these units, of which each is stored at one of its own port's."""
    if sending.newest_by_unit_us is not None and isinstance(sending.places, UnitsInUse):
        units = sending.places.biclique.units_of(sending.keyed.edge.port)
        stored = np.flatnonzero((groups >= units.start) & (groups < units.stop))
        np.maximum.at(sending.newest_by_unit_us, groups[stored] - units.start, rows.ts[stored])


class _Way(NamedTuple):
    """What is done to the rows of edges with one head, as of `KeyedEdge`. first: one of these edges. filters: behind it."""

    first: int
    head: tuple[tuple[int, tuple[BoundStep, ...]], ...]
    filters: Filters


class Outlet:
    """All edges of one sender, in every epoch `add` for its rows, then `close`."""

    def __init__(self, instances: Instances, edges: Sequence[Edge], index: int) -> None:
        """index: of the sender among its like; it serves the receivers from the next index on, so that nobody is served first
        by all."""
        self.ledger = EdgeLedger()
        of_stage = any(isinstance(edge.sender, Stage) for edge in edges)
        self.traffic = Traffic(instances.config.cluster.partition_count, origins=of_stage)
        self._index = index
        self._sendings: dict[int, _Sending] = {}
        self._ways: dict[tuple[int, ...], list[_Way]] = {}  # by edges to which rows were added at once
        self._receivers: dict[RoleId, _Receiver] = {}
        skewed = {join.stage for join in instances.skewed_joins}
        scaled = {join.stage: join.units for join in instances.scaled_joins}
        for edge in edges:
            assert isinstance(edge.receiver, Stage)
            slaves = instances.slaves_of(edge.receiver)
            turn = (index + 1) % len(slaves)
            for slave in slaves[turn:] + slaves[:turn]:
                until = instances.first_epoch + EPOCHS_AHEAD - 1
                self._receivers.setdefault(slave_role(slave), _Receiver(slave_role(slave), until))
            group_map = instances.group_maps[edge.receiver.id]
            router = HashPartition(group_map, len(slaves), edge.receiver.cell_bits)
            sample = KeySample(len(slaves), edge.id) if edge.receiver.id in skewed else None
            keyed = KeyedEdge.of(instances, edge)
            sending = _Sending(keyed, slaves, router, dealt=index, sample=sample, places=keyed.places)
            if edge.receiver.id in scaled:
                count = len(scaled[edge.receiver.id].units_of(edge.port))
                sending.newest_by_unit_us = np.full(count, BEGIN_OF_TIME_US, np.int64)
            self._sendings[edge.id] = sending

    def add(self, edges: Sequence[int], rows: TupleBatch, header: EpochHeader) -> None:
        """Rows of the sender for these edges, of the epoch of `header`."""
        if not len(rows):
            return
        if tuple(edges) not in self._ways:
            self._ways[tuple(edges)] = self._ways_of(edges)
        for edge in edges:
            self.ledger.filtered[edge] += len(rows)
        done = dict[int, TupleBatch]()  # by part
        for way in self._ways[tuple(edges)]:
            given = rows
            for part, steps in way.head:
                if part not in done:
                    done[part] = rows_after(given, way.first, steps)
                given = done[part]
            for (edge,), _, some, _ in way.filters.passed(given):
                self.ledger.filtered[edge] -= len(some)
                if len(some):
                    self._add(edge, some, header)

    def _ways_of(self, edges: Sequence[int]) -> list[_Way]:
        alike: dict[tuple[int, ...], list[int]] = {}
        for edge in edges:
            alike.setdefault(tuple(part for part, _ in self._sendings[edge].keyed.head), []).append(edge)
        keyed = {edge: self._sendings[edge].keyed for edge in edges}
        return [_Way(of[0], keyed[of[0]].head, Filters({edge: keyed[edge].steps for edge in of})) for of in alike.values()]

    def _add(self, edge: int, rows: TupleBatch, header: EpochHeader) -> None:
        sending = self._sendings[edge]
        keyed = sending.keyed.keyed(rows, sending.places)
        if keyed.groups is not None and len(keyed.rows):
            _note_stored(sending, keyed.rows, keyed.groups)
        if sending.sample is not None and len(keyed.rows):
            keyed = _spread_hot_keys(sending, sending.sample, keyed)
        good, null_keys, groups, origins = keyed
        if len(null_keys) and sending.keyed.keeps_null_keys:
            sending.null_keys.append(null_keys)
        else:
            self.ledger.null_keys[edge] += len(null_keys)
        self.ledger.filtered[edge] += len(rows) - len(good) - len(null_keys)
        if len(good):
            sending.rows.append(good)
            sending.groups += [] if groups is None else [groups]
            sending.origins += [] if origins is None else [origins]
            sending.row_count += len(good)
        if sending.row_count >= PART_ROWS * len(sending.receivers):
            for slave, part in self._make_parts(sending, header).items():
                if len(part.tuples):
                    self._put(self._part(sending, slave, header, part))

    def add_to_all(self, rows: TupleBatch, header: EpochHeader) -> None:
        self.add(tuple(self._sendings), rows, header)

    def spread(self, hot_keys: Sequence[HotKey]) -> None:
        """Between two epochs: the keys whose rows are spread from now on."""
        for sending in self._sendings.values():
            edge = sending.keyed.edge
            assert isinstance(edge.receiver, Stage)
            assert not sending.rows, "rows of an epoch are in no part yet"
            mine = [hot for hot in hot_keys if hot.stage == edge.receiver.id]
            sending.hot_keys = SpreadKeys(mine, edge.port) if mine else None

    def use(self, tables: Sequence[UnitTable]) -> None:
        """Between two epochs: the units that are in use from now on."""
        by_stage = {table.stage: table for table in tables}
        for sending in self._sendings.values():
            edge = sending.keyed.edge
            assert isinstance(edge.receiver, Stage)
            assert not sending.rows, "rows of an epoch are in no part yet"
            table = by_stage.get(edge.receiver.id)
            if table is not None:
                assert isinstance(sending.keyed.places, Biclique), "units of a stage that has none"
                sending.places = UnitsInUse(sending.keyed.places, table.weights, table.probed)

    def unit_loads(self) -> tuple[UnitLoad, ...]:
        """As of `EpochClosed`."""
        loads: list[UnitLoad] = []
        for sending in self._sendings.values():
            edge = sending.keyed.edge
            if sending.newest_by_unit_us is not None and isinstance(edge.receiver, Stage):
                newest_us = tuple(sending.newest_by_unit_us.tolist())
                loads.append((edge.receiver.id, edge.port, sending.watermark_us, newest_us))
                sending.newest_by_unit_us[:] = BEGIN_OF_TIME_US
        return tuple(loads)

    def key_loads(self) -> tuple[KeyLoad, ...]:
        """As of `EpochClosed`."""
        loads: list[KeyLoad] = []
        for sending in self._sendings.values():
            edge = sending.keyed.edge
            if sending.sample is not None and isinstance(edge.receiver, Stage):
                times_us = sending.newest_us, sending.watermark_us
                loads.append((edge.receiver.id, edge.port, *times_us, *sending.sample.take()))
        return tuple(loads)

    def close(self, header: EpochHeader, watermarks_us: Mapping[int, int]) -> None:
        """End the epoch on all edges. watermarks_us: by edge; later rows have ts >= watermark."""
        for edge, sending in self._sendings.items():
            finals, sending.watermark_us = self._make_parts(sending, header), watermarks_us[edge]
            null_keys, sending.null_keys = sending.null_keys, []
            kept = TupleBatch.concat(null_keys) if null_keys else TupleBatch.empty()
            for index, slave in enumerate(sending.receivers):
                mine = kept if index == self._index % len(sending.receivers) else TupleBatch.empty()
                last = finals.get(slave, Grouped.empty())
                self._put(self._part(sending, slave, header, last, mine, watermarks_us[edge]))
            for _, group, _, consumer in (move for move in header.moves if move[3] in sending.receivers):
                moved = sending.router.map.moved(group, sending.receivers.index(SlaveId(consumer)))
                sending.router = HashPartition(moved, len(sending.receivers), sending.router.cell_bits)

    def _make_parts(self, sending: _Sending, header: EpochHeader) -> dict[SlaveId, Grouped]:
        """Route the rows at hand. Full parts are put in the queue; returns what is left for each receiver."""
        if not sending.rows:
            return {}
        if sending.keyed.keys is None:
            self._deal(sending, header)
            return {}
        rows = TupleBatch.concat(sending.rows)
        groups = np.concatenate(sending.groups) if sending.groups else None
        origins = np.concatenate(sending.origins) if sending.origins else None
        for emptied in (sending.rows, sending.groups, sending.origins):
            emptied.clear()
        sending.row_count = 0
        most = _most_of_part(rows)
        arranged, rest = sending.router.partition(rows, groups), {}
        edge, row_bytes, in_order = sending.keyed.edge.id, rows.nbytes / len(rows), sending.router.groups_in_order
        if origins is None:
            self.traffic.sorted_rows(edge, row_bytes, in_order, arranged.counts)
        else:
            self.traffic.rows_from(edge, row_bytes, origins, in_order, arranged.slot)
        for index, slave in enumerate(sending.receivers):
            span = sending.router.slots_of(index)
            used = span.start + np.flatnonzero(arranged.counts[span])
            tuples = arranged.batch.slice(int(arranged.starts[span.start]), int(arranged.starts[span.stop]))
            *full, end = Grouped(sending.router.groups_in_order[used], arranged.counts[used], tuples).cut(most)
            for part in full:
                self._put(self._part(sending, slave, header, part))
            rest[slave] = end
        return rest

    def _deal(self, sending: _Sending, header: EpochHeader) -> None:
        """Rows that any instance may take go as they lie, in runs: each is of the next partition-group."""
        owner, edge = sending.router.map.owner, sending.keyed.edge.id
        for i, rows in enumerate(sending.rows):
            share = -(-len(rows) // len(sending.receivers))
            run = min(_most_of_part(rows), max(share, _LEAST_RUN))
            for start in range(0, len(rows), run):
                group = sending.dealt % len(owner)
                sending.dealt += 1
                tuples = rows.slice(start, min(start + run, len(rows)))
                origins = sending.origins[i][start : start + run] if sending.origins else np.full(len(tuples), -1, np.int64)
                only = np.zeros(len(tuples), np.int64)
                self.traffic.rows_from(edge, tuples.nbytes / len(tuples), origins, np.array([group]), only)
                part = Grouped(np.array([group]), np.array([len(tuples)]), tuples)
                self._put(self._part(sending, sending.receivers[owner[group]], header, part))
        sending.rows.clear()
        sending.origins.clear()
        sending.row_count = 0

    def _part(
        self,
        sending: _Sending,
        slave: SlaveId,
        header: EpochHeader,
        part: Grouped,
        null_keys: TupleBatch | None = None,
        watermark_us: int | None = None,
    ) -> Delivery:
        """watermark_us: of the final part."""
        edge, final = sending.keyed.edge, watermark_us is not None
        nothing, none = TupleBatch.empty(), np.zeros(len(part.groups), np.int64)
        time_us = END_OF_TIME_US if watermark_us is None else watermark_us  # END_OF_TIME_US: says nothing
        kept = nothing if null_keys is None else null_keys
        counts: tuple[I64, I64] = (part.counts, none)
        tuples, times, nulls = (part.tuples, nothing), (time_us, END_OF_TIME_US), (kept, nothing)
        if edge.port != LEFT:
            counts, tuples, times, nulls = counts[::-1], tuples[::-1], times[::-1], nulls[::-1]
        moves = header.moves if final else ()
        return Delivery(
            *(edge.id, slave, header.epoch, *times, part.groups, *counts, *tuples, header.last and final),
            served=header.served,
            moves_out=move_rows([(number, group, consumer) for number, group, _, consumer in moves]),
            moves_in=move_rows([(number, group, supplier) for number, group, supplier, _ in moves]),
            generation=header.generation,
            checkpoint=header.checkpoint,
            null_keys=nulls,
            final=final,
        )

    def _put(self, delivery: Delivery) -> None:
        batches = delivery.left, delivery.right, *delivery.null_keys
        count(self.ledger.sent, delivery.edge, *batches)
        sent = self.traffic.to_slaves[delivery.edge, delivery.slave]
        sent[0] += sum(map(len, batches))
        sent[1] += delivery.nbytes
        self._receivers[slave_role(delivery.slave)].parts.append(delivery)

    # ------------------------------------------------------------ credit

    def granted(self, receiver: RoleId, credit: Granted) -> None:
        """A receiver has worked on so many parts, and takes epochs up to this one."""
        mine = self._receivers[receiver]
        assert mine.consumed <= credit.consumed <= mine.sent, f"{credit.consumed} parts worked on, {mine.sent} sent"
        mine.consumed, mine.until_epoch = credit.consumed, max(mine.until_epoch, credit.until_epoch)

    def serve(self) -> list[Effect]:
        """Send the parts for which there is credit."""
        effects: list[Effect] = []
        for receiver in self._receivers.values():
            while receiver.ready:
                receiver.sent += 1
                effects.append(Send(receiver.role, receiver.parts.popleft()))
        return effects

    @property
    def edges(self) -> list[int]:
        return list(self._sendings)

    @property
    def waits(self) -> bool:
        """Whether parts wait for credit."""
        return any(receiver.parts for receiver in self._receivers.values())

    @property
    def idle(self) -> bool:
        """Everything has been sent, and worked on by its receiver."""
        return not self.waits and all(r.sent == r.consumed for r in self._receivers.values())

    @property
    def until_epoch(self) -> int:
        """The last epoch that all receivers take."""
        return min((receiver.until_epoch for receiver in self._receivers.values()), default=1 << 62)

    def granted_epoch(self, edge: int) -> int:
        """The last epoch that all receivers of an edge take."""
        return min(self._receivers[slave_role(slave)].until_epoch for slave in self._sendings[edge].receivers)

    def count_waiting(self, rows: Counter[int]) -> None:
        """Add the rows of each edge that wait for credit."""
        for receiver in self._receivers.values():
            for part in receiver.parts:
                rows[part.edge] += len(part.left) + len(part.right) + sum(map(len, part.null_keys))

    def validate(self) -> None:
        for receiver in self._receivers.values():
            assert 0 <= receiver.sent - receiver.consumed <= PARTS_AHEAD, f"credit of role {receiver.role} out of bounds"
            epochs = [part.epoch for part in receiver.parts]
            assert epochs == sorted(epochs), f"parts to role {receiver.role} out of their order"

"""The columns of a plan's stages: which are read, travel on edges, are stored in windows and come out.

What: `columns_of(plan, stages, rows=...) -> PlanColumns`, with `StageColumns` per stage.
Why: a column travels, is computed and is stored only if a later stage or the result needs it, and all runtimes choose alike.
Stays out: moving columns (`cluster.exchange`), the columns of result files (`connectors.output_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.columns import Columns, type_named
from swjoin.core.counted_columns import CountedColumns
from swjoin.core.errors import UserError
from swjoin.core.group_keys import GroupKeys
from swjoin.core.kept_columns import RankColumns, RepeatedColumns, SessionColumns
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.life_columns import LifeColumns
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.core.pair_columns import PairColumn, PairColumns
from swjoin.core.row_codec import RowCodec, StreamCodec, returned, storage
from swjoin.expressions.compiler import compile_text, resolve
from swjoin.expressions.parser import columns_of as columns_read
from swjoin.expressions.parser import parse_where
from swjoin.expressions.vm import Program
from swjoin.plan.aggregates import Aggregate, PreAggregate, aggregate_columns_of
from swjoin.plan.bound import bound, columns_read_by
from swjoin.plan.counted_joins import CountedJoin, counted_columns_of
from swjoin.plan.families import Family, Ranking, families_of
from swjoin.plan.kept_rows import Keyed, kept_columns_of
from swjoin.plan.live_groups import LiveGroups, live_columns_of
from swjoin.plan.logical import (
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    Period,
    Project,
    Result,
    Schema,
    Source,
    Spread,
    UnionInput,
    Within,
    join_columns,
)
from swjoin.plan.lookups import Lookup, equality, lookup_reads
from swjoin.plan.map_batches import MapBatches, keeps_time
from swjoin.plan.multiway import MultiwayJoin, Part
from swjoin.plan.multiway_columns import multiway_columns_of
from swjoin.plan.stages import Edge, EdgeId, Stage, StagePlan, Step, ways_to

if TYPE_CHECKING:
    from swjoin.expressions.batch_map import BatchMap
    from swjoin.expressions.chain import Copying, Projection, Selection
    from swjoin.expressions.lookup import TableLookup
    from swjoin.state.pre_aggregation import PreAggregation

_Types = list[tuple[str, Any]]
_Keyed: TypeAlias = (
    AggregateColumns | RankColumns | SessionColumns | RepeatedColumns | LifeColumns | CountedColumns | MultiwayColumns
)
BoundStep: TypeAlias = Callable[[TupleBatch], TupleBatch]
StaticTables: TypeAlias = Callable[[str, tuple[str, ...]], tuple[Columns | None, int]]  # columns of a source; number of rows


@dataclass(frozen=True)
class StageColumns:
    """codecs: of both ports' stored rows. keys: types of both ports' key columns. produced: columns of the rows that come out
    of a join for the stages after it. A stage that is no join of two has none of them. keyed: of an aggregate, a node that
    keeps rows, or a multiway join."""

    stage: Stage
    codecs: tuple[StreamCodec, StreamCodec]
    keys: tuple[_Types, _Types]
    produced: PairColumns
    keyed: _Keyed | None = None

    def new_keys(self) -> KeyEncoder | GroupKeys:
        """An encoder of the stage's keys, or groups, with a dictionary of its own."""
        return KeyEncoder(*self.keys) if self.keyed is None else self.keyed.new_keys()

    def compiled_where(self) -> Program | None:
        """The residual predicate over stored rows. UserError when its types do not fit."""
        if not self.stage.joins:
            return None
        join = self.stage.join
        try:
            return compile_text(join.semantics.where, *self.codecs, count_windows=join.semantics.bounds.count_windows)
        except UserError as error:
            raise error.prefixed(join.name) from None


class Head(NamedTuple):
    """Steps that several edges of one sender have in common. number: of the part, in the plan. length: of its steps."""

    number: int
    length: int


@dataclass(frozen=True)
class PlanColumns:
    """read: columns of each source, static tables among them. travels: columns of each edge between a source or a stage and a
    stage, and of one to a result that has steps, or that has a name; of a family's of the first one only. steps: of each of
    these edges, what its sender does to the rows. stages: by id. families: of results. heads: of edges of one sender that begin
    with the same costly steps, how many these are, in parts that other edges have, too."""

    read: Mapping[str, tuple[str, ...]]
    travels: Mapping[EdgeId, tuple[str, ...]]
    steps: Mapping[EdgeId, tuple[BoundStep, ...]]
    stages: tuple[StageColumns, ...]
    families: tuple[Family, ...] = ()
    heads: Mapping[EdgeId, tuple[Head, ...]] = field(default_factory=dict)


def columns_of(plan: LogicalPlan, stages: StagePlan, *, rows: bool, tables: StaticTables | None = None) -> PlanColumns:
    """rows: whether results have columns, or are only counted; a digest of values needs them in any case. tables: read static
    tables, when a lookup needs them first. UserError for a column whose type cannot travel."""
    rows, named = rows or any(result.of_values for result in stages.results), stages.results[0].named
    needed = _needed(plan, rows=rows)
    travels: dict[EdgeId, tuple[str, ...]] = {}
    steps: dict[EdgeId, tuple[BoundStep, ...]] = {}
    sent: dict[str, set[str]] = {node.name: set() for node in plan.nodes}
    binder = _Binder(plan, sent, tables)
    heads = _Heads(binder, stages.edges)
    described = tuple(_stage_columns(binder, stage, needed) for stage in stages.stages)
    families = families_of(plan, stages)
    firsts = {edge.id: family.edges[0].id for family in families for edge in family.edges}
    steps_of = {family.edges[0].id: family.steps for family in families}
    for edge in stages.edges:
        if firsts.get(edge.id, edge.id) != edge.id:
            continue  # its rows are those of the family's first
        if isinstance(edge.receiver, Stage) and edge.receiver.gathers:
            node = edge.receiver.node
            assert not isinstance(node, MultiwayJoin), "a join gathers nothing"
            through = _through(plan, node, needed[node.name], rows=rows)
            if isinstance(node, Result):  # what is after it is its instances' work
                through = set()
                for last in stages.edges_from(edge.receiver):
                    assert isinstance(last.receiver, Result), "what gathers the rows of results has no other receivers"
                    through |= binder.steps(last.steps, set(plan.schema(last.receiver.input).types) if rows else set())[1]
            travels[edge.id] = tuple(name for name in edge.receiver.schemas[0].types if name in through)
        elif isinstance(edge.receiver, Stage) and isinstance(edge.receiver.node, Keyed):
            keyed = described[edge.receiver.id].keyed
            read = edge.receiver.node.reads(needed[edge.receiver.name])
            travels[edge.id] = tuple(n for n in edge.receiver.schemas[0].types if n in read)
            if isinstance(keyed, AggregateColumns) and keyed.pre_aggregated:
                travels[edge.id] = (*keyed.key, keyed.accumulators)
        elif isinstance(edge.receiver, Stage) and isinstance(edge.receiver.node, MultiwayJoin):
            part, columns_of_all = edge.steps[-1], described[edge.receiver.id].keyed
            assert isinstance(part, Part), "an input of a multiway join is one of its parts"
            assert isinstance(columns_of_all, MultiwayColumns), "a multiway join without its columns"
            key = edge.receiver.node.input_keys[part.number]
            before = heads.rest(edge, edge.steps[:-1], {*columns_of_all.reads(part.number), *key})
            travels[edge.id] = columns_of_all.travels
            steps[edge.id] = (*before, columns_of_all.part_columns(part.number, key))
            continue
        elif isinstance(edge.receiver, Stage):
            columns = described[edge.receiver.id]
            codec, key = columns.codecs[edge.port], () if columns.new_keys().native else edge.receiver.keys[edge.port]
            stored = {name for name, _, origin in codec.columns if origin == "row"}
            schema = edge.receiver.schemas[edge.port]
            travels[edge.id] = tuple(c.name for c in schema.columns if c.name in stored or c.name in key)
        elif named or edge.steps or edge.sender_is_keyed or (edge.receiver.of_values and not edge.sender_gathers):
            travels[edge.id] = tuple(plan.schema(edge.receiver.input).types) if rows else ()
        else:
            continue  # pairs of a join, or gathered rows
        keys = edge.receiver.keys[edge.port] if isinstance(edge.receiver, Stage) else ()
        passed = steps_of.get(edge.id, edge.steps)
        steps[edge.id] = heads.rest(edge, passed, {*travels[edge.id], *keys})
    first = heads.bound(steps)
    of_sources = {node.name: binder.read(node.name) for node in plan.nodes if isinstance(node, Source)}
    out = tuple(_with_produced(plan, columns, sent[columns.stage.name]) for columns in described)
    return PlanColumns(of_sources, travels, steps, out, families, first)


@dataclass(frozen=True)
class _Binder:
    """Binds the steps of a plan's edges. sent: columns that are needed of each source and stage. tables: as of `columns_of`."""

    plan: LogicalPlan
    sent: dict[str, set[str]]
    tables: StaticTables | None

    def steps(self, steps: Sequence[Step | Ranking], wanted: set[str]) -> tuple[tuple[BoundStep, ...], set[str]]:
        """Steps that compute these columns alone, and the columns that they need of the sender."""
        found: list[BoundStep] = []
        for step in reversed(steps):
            if isinstance(step, UnionInput | Within | Period | Ranking):
                found.append(step)
                wanted = wanted | set(step.columns) if isinstance(step, Ranking) else wanted
                continue
            if isinstance(step, PreAggregate):
                found.append(self._pre_aggregation(step.node))
                wanted = step.node.reads(set())
                continue
            assert not isinstance(step, Part), "a step that its receiver binds"
            columns = self.plan.schema(step.input).columns
            if isinstance(step, Filter):
                found.append(_selection(step, columns))
                wanted = wanted | set(columns_read_by(step.condition, columns, step.name))
            elif isinstance(step, Lookup):
                bound_step, wanted = self._lookup(step, wanted)
                found.append(bound_step)
            elif isinstance(step, Spread):
                continue  # the receiver's keys are known where rows are sent
            elif isinstance(step, Copies):
                found.append(_copying(step))
                wanted = wanted - {step.column} | {step.first, step.second}
            elif isinstance(step, MapBatches):
                found.append(batch_map_of(step, self.plan.schema(step.input), wanted))
                wanted = set(self.plan.schema(step.input).types)
            else:
                if wanted:
                    found.append(_projection(step, columns, self.plan.schema(step.name).types, wanted))
                wanted = _read_by(step, columns, wanted)
        return tuple(reversed(found)), wanted

    def _pre_aggregation(self, node: Aggregate) -> PreAggregation:
        from swjoin.state.pre_aggregation import PreAggregation

        types = self.plan.schema(node.input).types
        return PreAggregation(aggregate_columns_of(node, types, self.plan.schema(node.name).types), node.windows)

    def read(self, source: str) -> tuple[str, ...]:
        """The columns that are needed of a source, once all steps are bound."""
        return tuple(name for name in self.plan.schema(source).types if name in self.sent[source])

    def _lookup(self, node: Lookup, wanted: set[str]) -> tuple[TableLookup, set[str]]:
        from swjoin.expressions.lookup import TableLookup

        stream, table = (self.plan.schema(name).columns for name in node.inputs)
        read = lookup_reads(node, stream, table, wanted)
        ways = []
        for source, steps in ways_to(self.plan, node.table):
            done, needed = self.steps(steps, read[1])
            self.sent[source] |= needed
            ways.append((source, done))
        shown = tuple(n for n, _ in stream if n in wanted), tuple(n for n, _ in table if node.widens and n in wanted)
        both = [*stream, *table]
        keys = tuple(_key(bound(equality(*pair), both, node.name, storage)) for pair in node.keys)
        where = None if node.where is None else bound(node.where, both, node.name, storage)
        of_table = frozenset(name for name, _ in table)
        rows = TableRows(self.tables, tuple(ways), self.read)
        return TableLookup(node.name, node.how, keys, where, shown, of_table, rows), read[0]


@dataclass(eq=False)
class _Part:
    """Steps that several edges have in common, behind those of `before`. wanted: columns that they compute."""

    before: _Part | None
    steps: tuple[Step, ...]
    sender: str
    wanted: set[str] = field(default_factory=set)


class _Heads:
    """The first steps that edges of one sender to stages have in common, if functions of batches or lookups are among them,
    which are costly: they are done once, with the columns that any of these edges needs."""

    def __init__(self, binder: _Binder, edges: Sequence[Edge]) -> None:
        self._binder = binder
        self._parts: list[_Part] = []  # each behind the one before it
        self._of: dict[EdgeId, _Part] = {}
        for sender in dict.fromkeys(edge.sender.name for edge in edges):
            self._add([edge for edge in edges if edge.sender.name == sender and isinstance(edge.receiver, Stage)], 0, None)

    def _add(self, edges: Sequence[Edge], start: int, before: _Part | None) -> None:
        """The parts of edges that have all steps up to a place in common."""
        alike: dict[tuple[Step, ...], list[Edge]] = {}
        for edge in edges:
            costly = (i for i in range(start, len(edge.steps)) if isinstance(edge.steps[i], MapBatches | Lookup))
            if (first := next(costly, None)) is not None:
                alike.setdefault(edge.steps[start : first + 1], []).append(edge)
        for begin, members in alike.items():
            if len(members) > 1 and all(map(_is_shared, begin)):
                steps = tuple(takewhile(_is_shared, _common([member.steps[start:] for member in members])))
                part = _Part(before, steps, members[0].sender.name)
                self._parts.append(part)
                self._of |= {member.id: part for member in members}
                self._add(members, start + len(steps), part)

    def rest(self, edge: Edge, steps: Sequence[Step | Ranking], wanted: set[str]) -> tuple[BoundStep, ...]:
        """The steps of an edge behind those in common, bound. wanted: columns that they compute."""
        part = self._of.get(edge.id)
        found, needed = self._binder.steps(steps[sum(len(of.steps) for of in _chain(part)) :], wanted)
        self._needed(edge.sender.name, part, needed)
        return found

    def _needed(self, sender: str, part: _Part | None, columns: set[str]) -> None:
        if part is None:
            self._binder.sent[sender] |= columns
        else:
            part.wanted |= columns

    def bound(self, steps: dict[EdgeId, tuple[BoundStep, ...]]) -> dict[EdgeId, tuple[Head, ...]]:
        """Of each edge that has some, the steps in common. steps: those behind them, which they are put in front of."""
        found: dict[_Part, tuple[Head, tuple[BoundStep, ...]]] = {}
        for number, part in reversed(list(enumerate(self._parts))):
            bound_steps, needed = self._binder.steps(part.steps, part.wanted)
            found[part] = Head(number, len(bound_steps)), bound_steps
            self._needed(part.sender, part.before, needed)
        for edge, part in self._of.items():
            steps[edge] = (*(step for of in _chain(part) for step in found[of][1]), *steps[edge])
        return {edge: tuple(found[of][0] for of in _chain(part)) for edge, part in self._of.items()}


def _chain(part: _Part | None) -> tuple[_Part, ...]:
    """A part behind those before it."""
    return () if part is None else (*_chain(part.before), part)


def _common(several: Sequence[tuple[Step, ...]]) -> Iterator[Step]:
    for steps in zip(*several, strict=False):
        if len(set(steps)) > 1:
            return
        yield steps[0]


def _is_shared(step: Step) -> bool:
    return isinstance(step, Filter | Project | MapBatches | Lookup | Period)


@dataclass(frozen=True)
class TableRows:
    """The rows of a static table; ids of its sources' rows are their positions. tables: of the run. ways: the sources, with the
    steps to the lookup. read: the columns that are needed of a source, once all steps are bound."""

    tables: StaticTables | None
    ways: tuple[tuple[str, tuple[BoundStep, ...]], ...]
    read: Callable[[str], tuple[str, ...]]

    def __call__(self) -> TupleBatch:
        assert self.tables is not None, "a lookup without tables"
        parts = []
        for source, steps in self.ways:
            columns, count = self.tables(source, self.read(source))
            nothing = np.zeros(count, np.int64)
            rows = TupleBatch(nothing, nothing, np.arange(count, dtype=np.uint64), nothing, None, columns)
            for step in steps:
                rows = step(rows)
            parts.append(rows)
        return TupleBatch.concat(parts)


def _key(equal: Any) -> tuple[Any, Any]:
    """Both sides of an equality, brought to one type."""
    mine, theirs = equal.args
    return mine, theirs


def _selection(node: Filter, columns: Sequence[tuple[str, str]]) -> Selection:
    from swjoin.expressions.chain import Selection

    return Selection(node.name, bound(node.condition, columns, node.name, storage))


def _projection(node: Project, columns: Sequence[tuple[str, str]], types: Mapping[str, str], wanted: set[str]) -> Projection:
    from swjoin.expressions.chain import Projection

    computed = []
    for name, text in node.columns:
        if name in wanted:
            kind = storage(_types(types, (name,), node.name)[0][1])
            computed.append((name, bound(text, columns, f"{node.name}: column {name}", storage), kind))
    return Projection(node.name, tuple(computed))


def batch_map_of(node: MapBatches, schema: Schema, wanted: set[str]) -> BatchMap:
    from swjoin.expressions.batch_map import BatchMap

    read = tuple((name, _given(kind)) for name, kind in _types(schema.types, tuple(schema.types), node.name))
    columns = tuple(_types(dict(node.columns), tuple(name for name, _ in node.columns), node.name))
    time = schema.time if keeps_time(node, schema.columns, schema.time) else None
    shown = tuple(name for name, _ in node.columns if name in wanted)
    return BatchMap(node.name, node.function, read, columns, time, shown)


def _copying(node: Copies) -> Copying:
    from swjoin.expressions.chain import Copying

    return Copying(node.column, node.first, node.second, node.cell_bits)


def _given(kind: Any) -> Any:
    """The type in which functions get a column: its own, but of a dictionary that of its values."""
    return getattr(kind, "value_type", kind)


def _read_by(node: Project, columns: Sequence[tuple[str, str]], wanted: set[str]) -> set[str]:
    texts = [text for name, text in node.columns if name in wanted]
    return {read for text in texts for read in columns_read_by(text, columns, node.name)}


def _needed(plan: LogicalPlan, *, rows: bool) -> dict[str, set[str]]:
    """For every node, the columns of its rows that a later node needs."""
    needed: dict[str, set[str]] = {node.name: set() for node in plan.nodes}
    for node in reversed(plan.ordered):
        match node:
            case IntervalJoin():
                for side, names in enumerate(_of_sides(plan, node, needed[node.name])):
                    needed[node.inputs[side]] |= names | set(node.keys[side])
            case _ if isinstance(node, Keyed):
                needed[node.input] |= node.reads(needed[node.name])
            case Lookup():
                for name, names in zip(node.inputs, _lookup_reads(plan, node, needed[node.name]), strict=True):
                    needed[name] |= names
            case _:
                for name in node.inputs:
                    needed[name] |= _through(plan, node, needed[node.name], rows=rows)
    return needed


def _through(plan: LogicalPlan, node: Node, wanted: set[str], *, rows: bool) -> set[str]:
    """Columns that a node without state, or a result, reads of its inputs for these columns of its rows."""
    match node:
        case Result():
            return set(plan.schema(node.input).types) if rows else set()
        case Filter():
            return wanted | set(columns_read_by(node.condition, plan.schema(node.input).columns, node.name))
        case Project():
            return _read_by(node, plan.schema(node.input).columns, wanted)
        case Copies():
            return wanted - {node.column} | {node.first, node.second}
        case MapBatches():
            return set(plan.schema(node.input).types)
        case Lookup():
            return _lookup_reads(plan, node, wanted)[0]
        case _:
            return wanted


def _lookup_reads(plan: LogicalPlan, node: Lookup, wanted: set[str]) -> tuple[set[str], set[str]]:
    """Columns of the stream and of the table that a lookup reads."""
    stream, table = (plan.schema(name).columns for name in node.inputs)
    return lookup_reads(node, stream, table, wanted)


def _of_sides(plan: LogicalPlan, join: IntervalJoin, wanted: set[str]) -> tuple[set[str], set[str]]:
    """Columns of both inputs from which a join makes these columns of its rows, or that its predicate reads."""
    schemas = plan.schema(join.left), plan.schema(join.right)
    found: tuple[set[str], set[str]] = set(), set()
    for column in join_columns(join, *schemas):
        if column.name in wanted:
            found[column.side].add(column.origin)
            if column.side == LEFT and column.origin in join.left_key and join.semantics.kind.unmatched[RIGHT]:
                found[RIGHT].add(join.right_key[join.left_key.index(column.origin)])
    for side, name in _predicate_columns(plan, join):
        found[side].add(name)
    return found


def _predicate_columns(plan: LogicalPlan, join: IntervalJoin) -> list[tuple[int, str]]:
    """(side, name) of the columns that a join's predicate reads. UserError when one does not exist."""
    where = join.semantics.where
    if where is None:
        return []
    names = list(plan.schema(join.left).types), list(plan.schema(join.right).types)
    try:
        return [resolve(name, names, join.keys) for name in columns_read(parse_where(where))]
    except UserError as error:
        raise error.prefixed(join.name) from None


def _types(pairs: Mapping[str, str], names: tuple[str, ...] | set[str], stage: str) -> _Types:
    """Arrow types of these columns, in the order of `names`, or of the schema."""
    found = []
    for name in names if isinstance(names, tuple) else [n for n in pairs if n in names]:
        try:
            found.append((name, type_named(pairs[name])))
        except UserError as error:
            raise error.prefixed(f"{stage}: column {name}") from None
    return found


def _stage_columns(binder: _Binder, stage: Stage, needed: Mapping[str, set[str]]) -> StageColumns:
    plan = binder.plan
    if not stage.joins:
        nothing = StreamCodec((), (), None)
        node, types = stage.node, stage.schemas[0].types
        found: _Keyed | None = None
        if isinstance(node, Aggregate):
            found = aggregate_columns_of(node, types, stage.schema.types)
        elif isinstance(node, MultiwayJoin):
            found = multiway_columns_of(plan, node, needed[node.name], binder.steps)
        elif isinstance(node, LiveGroups):
            found = live_columns_of(node, types)
        elif isinstance(node, CountedJoin):
            found = counted_columns_of(node, types, needed[node.name])
        elif isinstance(node, Keyed):
            found = kept_columns_of(node, types, needed[node.name])
        return StageColumns(stage, (nothing, nothing), ([], []), PairColumns(nothing, nothing, ()), found)
    join = stage.join
    keys = tuple(_types(schema.types, key, join.name) for schema, key in zip(stage.schemas, join.keys, strict=True))
    native = KeyEncoder(keys[LEFT], keys[RIGHT]).native
    shown = _of_sides(plan, join, needed[join.name])
    read = _predicate_columns(plan, join)
    codecs = []
    for side, schema in enumerate(stage.schemas):
        columns = []
        for name, kind in _types(schema.types, shown[side], join.name):
            columns.append((name, returned(kind), "key" if native and name in join.keys[side] else "row"))
        stored = [(name, kind) for name, kind, origin in columns if origin == "row"]
        wanted = {c.origin for c in join_columns(join, *stage.schemas) if c.side == side and c.name in needed[join.name]}
        hidden = tuple(name for s, name in read if s == side and name not in wanted and name not in join.keys[side])
        codecs.append(StreamCodec(tuple(columns), join.keys[side], RowCodec.of(stored) if stored else None, hidden))
    pair = codecs[LEFT], codecs[RIGHT]
    return StageColumns(stage, pair, (keys[LEFT], keys[RIGHT]), PairColumns(*pair, ()))


def _with_produced(plan: LogicalPlan, columns: StageColumns, wanted: set[str]) -> StageColumns:
    """With the columns that the stages after it need of its rows, in the order of its schema."""
    if not columns.stage.joins:
        return columns
    origins = [{name: origin for name, _, origin in codec.columns} for codec in columns.codecs]
    out = []
    for name, type_name, side, origin in join_columns(columns.stage.join, *columns.stage.schemas):
        if name in wanted:
            kind = storage(_types({name: type_name}, (name,), columns.stage.join.name)[0][1])
            out.append(PairColumn(name, kind, side, origins[side][origin], origin))
    return StageColumns(columns.stage, columns.codecs, columns.keys, PairColumns(*columns.codecs, tuple(out)))

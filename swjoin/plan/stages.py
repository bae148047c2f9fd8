"""The stages of a plan, and the edges that join them.

What: `cut(plan, strategy) -> StagePlan`, `ways_to(plan, node)`, `allocate(work, instance_count)`; `describe_stage` and
`describe_edge`, a line of text each.
Why: a stage is what instances play: a join with a port per side, an aggregate, or, for a result that is not what one of them
brings forth, the gathering of its rows. Unions need none, they are several edges into one port; filters, projections,
functions of batches and lookups are done on the edges, by the sender, so no row travels that a filter drops. With the strategy
`operator` each of these is a stage that gathers rows, and does what it is for as their sender.
Stays out: which rank plays which instance, group maps, messages.

Edges and stages have ids from 0 on, in topological order: an edge's sender comes before its receiver.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NewType, TypeAlias

from swjoin.config.options import Strategy
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import Aggregate, PreAggregate, is_pre_aggregated
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import AlignedWindows, Keyed, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import (
    Column,
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
    Union,
    UnionInput,
    Within,
    join_columns,
    key_family,
)
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.multiway import MultiwayJoin, Part, check_nested, multiway_of
from swjoin.plan.watermarks import join_shifts
from swjoin.routing.named import Places

StageId = NewType("StageId", int)
EdgeId = NewType("EdgeId", int)
_FAMILIES = ("integer", "string")  # whose hashes are those of the values, at every kind of stage
Sender: TypeAlias = "Source | Stage"
Receiver: TypeAlias = "Stage | Result"
Step: TypeAlias = (
    UnionInput | Filter | Project | MapBatches | Lookup | Spread | Copies | Within | Period | PreAggregate | Part
)  # on the way of rows
_Port: TypeAlias = tuple[int, str, tuple[str, ...], tuple[Step, ...]]  # number, input, key, last steps on the way there
Stateless: TypeAlias = Filter | Project | MapBatches | Lookup | Spread | Copies | Within | Period | Union


@dataclass(frozen=True)
class Stage:
    """A join, joins that are one, an aggregate, a node that keeps rows, or what gathers rows: a result, or an operator without
    state, which is a step of the edges from here on. schemas: of the rows at its left and its right port; only a join of two
    has a right one, and of a multiway join it is the key. schema: of its node's rows."""

    id: StageId
    node: IntervalJoin | MultiwayJoin | Keyed | Stateless | Result
    schemas: tuple[Schema, Schema]
    schema: Schema

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def gathers(self) -> bool:
        return isinstance(self.node, Stateless | Result)

    @property
    def joins(self) -> bool:
        return isinstance(self.node, IntervalJoin)

    @property
    def join(self) -> IntervalJoin:
        """Of a stage that joins."""
        assert isinstance(self.node, IntervalJoin), f"stage {self.name} is no join"
        return self.node

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns by which rows find their instance, by port; none where any may take them."""
        return ((), ()) if isinstance(self.node, Stateless | Result) else self.node.keys

    @property
    def cell_bits(self) -> int:
        """Of the cells by which rows find their instance (`core.band_keys`); 0: by their keys."""
        band = self.node.band if isinstance(self.node, IntervalJoin) else None
        return 0 if band is None else band.cell_bits

    @property
    def description(self) -> str:
        if isinstance(self.node, IntervalJoin):
            return self.node.semantics.description
        if isinstance(self.node, Filter | Project):
            return "a filter" if isinstance(self.node, Filter) else "a projection"
        return "rows as they come" if isinstance(self.node, Union | Result) else self.node.description


@dataclass(frozen=True)
class Edge:
    """The way from a source's gateways or a stage to a port of a stage, or to the sinks of a result.

    port: LEFT or RIGHT of a stage; 0 for a result. key: columns whose hash finds the receiver; () where any may take a row:
    of a gathering stage, to which rows go in runs, or of a result; of an aggregate without groups all go to one instance.
    steps: what the sender does to the rows, in this order; the last one may be a `Spread`, by whose places, and not by the key,
    rows find the receiver, or a `PreAggregate`. origin: of rows that are routed as those of an earlier stage are:
    that stage, by whose hash the key, a part of the receiver's, is hashed.
    """

    id: EdgeId
    sender: Sender
    receiver: Receiver
    port: int
    key: tuple[str, ...]
    steps: tuple[Step, ...]
    origin: StageId | None = None

    @property
    def spread(self) -> Spread | None:
        return self.steps[-1] if self.steps and isinstance(self.steps[-1], Spread) else None

    @property
    def sender_gathers(self) -> bool:
        return isinstance(self.sender, Stage) and self.sender.gathers

    @property
    def sender_is_keyed(self) -> bool:
        """Whether its sender has groups by a key: an aggregate, what keeps rows, or a multiway join."""
        return isinstance(self.sender, Stage) and isinstance(self.sender.node, Keyed | MultiwayJoin)


@dataclass(frozen=True)
class StagePlan:
    """What runtimes run. sources, results: in the order of the plan's nodes; static tables are no sources of rows."""

    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]
    results: tuple[Result, ...]
    edges: tuple[Edge, ...]

    @property
    def subqueries(self) -> tuple[StageId, ...]:
        """By stage, the first one of those that partition alike."""
        origins = {edge.receiver.id: edge.origin for edge in self.edges if isinstance(edge.receiver, Stage)}
        return tuple(stage.id if (origin := origins[stage.id]) is None else origin for stage in self.stages)

    def edges_from(self, sender: Sender) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.sender == sender)

    def places_of(self, stage: Stage) -> Places | None:
        """To which rows come at a stage; None where they come by keys, or to any instance."""
        return next((edge.spread.places for edge in self.edges if edge.receiver == stage and edge.spread is not None), None)

    def compares_all(self, stage: Stage) -> bool:
        """Whether a join compares all rows of a place with each other, as it has no key."""
        return any(edge.spread is not None and not edge.spread.keyed for edge in self.edges if edge.receiver == stage)

    def edges_to(self, receiver: Receiver, port: int = 0) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.receiver == receiver and edge.port == port)


def cut(plan: LogicalPlan, strategy: Strategy = "query") -> StagePlan:
    """A stage for every join, aggregate and node that keeps rows, and for every result but the rows of one of them; an edge for
    every way from a source or a stage to a port of a stage, or to a result. strategy: with `operator`, a stage for every node
    between source and result; with the others the stages are the same, and with `subquery` edges between stages that partition
    alike need no exchange. UserError for joins that are marked to be one and cannot be."""
    check_nested(plan)
    kinds = IntervalJoin | Keyed | Stateless if strategy == "operator" else IntervalJoin | Keyed
    of_streams = _of_streams(plan)
    alone = [node for node in plan.ordered if not isinstance(node, Within | Period)]  # steps of what sends to them
    nodes = [node for node in alone if isinstance(node, kinds) and node.name in of_streams]
    rows_of = {} if strategy == "operator" else _multiway_joins(plan, nodes)  # by their last join
    nodes = [node for node in nodes if strategy == "operator" or not (isinstance(node, IntervalJoin) and node.nested)]
    senders: dict[str, Sender] = {node.name: node for node in plan.nodes if isinstance(node, Source)}
    receivers: list[tuple[Stage, tuple[_Port, ...]]] = []
    for i, node in enumerate(nodes):
        stateful = isinstance(node, IntervalJoin | Keyed)
        names = node.inputs if stateful else node.inputs[:1]
        ports = [*(plan.schema(name) for name in names), Schema((), None)]
        multiway = rows_of.get(node.name)
        if multiway is not None:
            ports = [_key_schema(plan, multiway), Schema((), None)]
        stage = Stage(StageId(i), multiway or node, (ports[0], ports[1]), plan.schema(node.name))
        senders[node.name] = stage
        receivers.append((stage, tuple(_ports(plan, multiway or node))))
    results = tuple(node for node in plan.nodes if isinstance(node, Result))
    gathering: dict[str, tuple[Stage, tuple[Step, ...]]] = {}
    for gathered, ways_on in _gathered(plan, results, senders).items():
        schema = plan.schema(gathered)
        stage = Stage(StageId(len(receivers)), next(iter(ways_on)), (schema, Schema((), None)), schema)
        gathering |= {result.name: (stage, steps) for result, steps in ways_on.items()}
        receivers.append((stage, ((0, gathered, (), ()),)))
    edges: list[Edge] = []
    for receiver, inputs in receivers:
        for port, name, key, last in inputs:
            for sender, steps in ways_to(plan, name, senders):
                edges.append(Edge(EdgeId(len(edges)), senders[sender], receiver, port, key, (*steps, *last)))
    for result in results:
        if result.name in gathering:
            stage, projections = gathering[result.name]
            edges.append(Edge(EdgeId(len(edges)), stage, result, 0, (), projections))
            continue
        ((sender, steps),) = ways_to(plan, result.input, senders)
        edges.append(Edge(EdgeId(len(edges)), senders[sender], result, 0, (), steps))
    streams = {edge.sender.name for edge in edges}
    sources = tuple(node for node in plan.nodes if isinstance(node, Source) and node.name in streams)
    found = StagePlan(sources, tuple(stage for stage, _ in receivers), results, tuple(edges))
    return _aligned(found) if strategy == "subquery" else found


def _multiway_joins(plan: LogicalPlan, nodes: Sequence[Node]) -> dict[str, MultiwayJoin]:
    tops = (node for node in nodes if isinstance(node, IntervalJoin) and not node.nested)
    return {node.name: found for node in tops if (found := multiway_of(plan, node)) is not None}


def _key_schema(plan: LogicalPlan, node: MultiwayJoin) -> Schema:
    """Of the key columns, as all inputs of a multiway join have them."""
    types = plan.schema(node.inputs[0]).types
    return Schema(tuple(Column(name, types[of]) for name, of in zip(node.key, node.input_keys[0], strict=True)), "ts")


def _gathered(
    plan: LogicalPlan, results: Sequence[Result], senders: Mapping[str, Sender]
) -> dict[str, dict[Result, tuple[Step, ...]]]:
    """The nodes whose rows are gathered, as no stage brings forth those of a result, and the results of each, with the steps on
    the way there, which are its instances' work. Of one result these are the projections and functions of batches at its end,
    as no row should travel that a filter drops; several that have a node in common gather its rows once."""
    by_base: dict[str, dict[Result, list[Node]]] = {}
    for result in results:
        ways = list(ways_to(plan, result.input, senders))
        if len(ways) == 1 and isinstance(senders[ways[0][0]], Stage):
            continue
        chain = [plan.node(result.input)]
        while isinstance(node := chain[-1], Filter | Project | MapBatches | Lookup | Period) and not _begins(node):
            chain.append(plan.node(node.input))
        by_base.setdefault(chain[-1].name, {})[result] = chain
    found: dict[str, dict[Result, tuple[Step, ...]]] = {}
    for chains in by_base.values():
        common = set.intersection(*({node.name for node in chain} for chain in chains.values()))
        for result, chain in chains.items():
            end = next(i for i, node in enumerate(chain) if node.name in common)
            if len(chains) == 1:
                rest = (i for i, n in enumerate(chain) if _begins(n) or not isinstance(n, Project | MapBatches | Period))
                end = next(rest)
            steps = tuple(node for node in reversed(chain[:end]) if isinstance(node, Step))
            found.setdefault(chain[end].name, {})[result] = steps
    return found


def _begins(node: Node) -> bool:
    """Whether rows of a query begin here: they are gathered apart, so that nothing changes in what is gathered already."""
    return isinstance(node, Period) and not node.ends


def _stream_inputs(node: Node) -> tuple[str, ...]:
    """The inputs of a node but static tables."""
    return (node.input,) if isinstance(node, Lookup) else node.inputs


def _of_streams(plan: LogicalPlan) -> set[str]:
    """The nodes on the ways of streams."""
    found = {node.name for node in plan.nodes if isinstance(node, Result)}
    for node in reversed(plan.ordered):
        if node.name in found:
            found |= set(_stream_inputs(node))
    return found


def _ports(plan: LogicalPlan, node: Node | MultiwayJoin) -> Iterator[_Port]:
    """What comes to the ports of a node's stage."""
    if isinstance(node, MultiwayJoin):
        for number, name in enumerate(node.inputs):
            yield 0, name, node.key, (Part(node, number),)
        return
    if isinstance(node, Aggregate) and is_pre_aggregated(node, plan.schema(node.input).types):
        yield 0, node.input, node.key, (PreAggregate(node),)
    elif isinstance(node, IntervalJoin | Keyed):
        for port, (name, key) in enumerate(zip(node.inputs, node.keys, strict=False)):
            yield port, name, key, ()
    else:
        for i, name in enumerate(_stream_inputs(node)):
            yield 0, name, (), (UnionInput(i, node.keeps_ids),) if isinstance(node, Union) else ()


def ways_to(
    plan: LogicalPlan, name: str, senders: Mapping[str, Sender] | None = None
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """The sources and stages, of `senders`, whose rows a node has, and the steps that they pass on the way. No senders: the
    sources and the nodes with state."""
    node = plan.node(name)
    if senders is not None and name in senders:
        yield name, (node,) if isinstance(node, Step) else ()
        return
    if not isinstance(node, Stateless):
        yield name, ()
        return
    for i, below in enumerate(_stream_inputs(node)):
        for sender, steps in ways_to(plan, below, senders):
            yield sender, (*steps, UnionInput(i, node.keeps_ids) if isinstance(node, Union) else node)


# ---------------------------------------------------------------- stages that partition alike


def _aligned(stages: StagePlan) -> StagePlan:
    """With `Edge.origin` and the key of the edges into stages that partition as one before them does.

    Two stages partition alike when the columns by which rows come to the first one, renamed through the projections between,
    are a non-empty subset of the second one's key: after a join on one column rows are grouped by that and another where they
    are, if they are routed by the first alone. Equal keys of the second have equal values there, so they still meet.
    """
    edges = list(stages.edges)
    for stage in stages.stages:
        mine = [edge for edge in edges if edge.receiver == stage]
        for edge in mine:
            alone = sum(other.port == edge.port for other in mine) == 1 and edge.spread is None
            routes = _routes(edge, edges) if alone and not stage.gathers else None
            if routes is not None:
                assert isinstance(edge.sender, Stage), "sources have no keys"
                first = next(other for other in edges if other.receiver == edge.sender)
                origin = edge.sender.id if first.origin is None else first.origin
                for other in mine:
                    edges[other.id] = replace(other, key=routes[other.port], origin=origin)
                break
    return replace(stages, edges=tuple(edges))


def _routes(edge: Edge, edges: Sequence[Edge]) -> tuple[tuple[str, ...], ...] | None:
    """By port of an edge's receiver, the columns that are those by which rows came to its sender; None if there are none."""
    sender, receiver = edge.sender, edge.receiver
    if not isinstance(sender, Stage) or not isinstance(receiver, Stage) or sender.gathers:
        return None
    way = next(other for other in edges if other.receiver == sender and other.port == LEFT)
    if way.spread is not None:
        return None
    came = way.key
    names = _after(edge.steps, _names_of(sender, came))
    keys = receiver.keys
    if not names or not set(names) <= set(keys[edge.port]):
        return None
    places = [keys[edge.port].index(name) for name in names]
    routes = tuple(tuple(key[i] for i in places) if key else () for key in keys)
    same = _families(sender.schemas[LEFT], came)
    alike = all(_families(schema, route) == same for schema, route in zip(receiver.schemas, routes, strict=True) if route)
    return routes if alike and all(family in _FAMILIES for family in same) else None


def _names_of(stage: Stage, columns: Sequence[str]) -> list[str]:
    """The names that columns of a stage's left port have in its rows; empty if one is not among them."""
    if not stage.joins:
        return list(columns) if set(columns) <= set(stage.schema.types) else []
    shown = {c.origin: c.name for c in join_columns(stage.join, *stage.schemas) if c.side == LEFT}
    return [shown[name] for name in columns] if set(columns) <= set(shown) else []


def _after(steps: Sequence[Step], names: list[str]) -> list[str]:
    """The names of columns behind the steps of an edge; empty if one is not passed on as it is."""
    for step in steps:
        if isinstance(step, UnionInput | MapBatches):  # a function may change any value
            return []
        if isinstance(step, Part):
            keys = dict(zip(step.node.input_keys[step.number], step.node.key, strict=True))
            names = [keys[name] for name in names] if set(names) <= set(keys) else []
        if isinstance(step, Project):
            renamed = {text.strip('"') if text.startswith('"') else text: name for name, text in reversed(step.columns)}
            names = [renamed[name] for name in names] if set(names) <= set(renamed) else []
    return names


def _families(schema: Schema, names: Sequence[str]) -> list[str]:
    """Of the types of columns; a type that cannot be a join's key has none."""
    found = []
    for name in names:
        try:
            found.append(key_family(name, schema.types[name]))
        except UserError:
            found.append("")
    return found


# ---------------------------------------------------------------- instances


def allocate(work: Mapping[StageId, float], instance_count: int) -> dict[StageId, int]:
    """Instances of each stage: one each, then one by one to the bottleneck, the stage with most work per instance.

    work: of each stage, in any one unit. UserError for fewer instances than stages, or for work that is no amount.
    """
    for stage, amount in work.items():
        if not (amount >= 0 and math.isfinite(amount)):
            raise UserError(f"work is {amount}", subject=f"stage {stage}", remedy="give a number of 0 or more")
    if instance_count < len(work):
        problem = f"{instance_count} instances for {len(work)} stages"
        raise UserError(problem, subject="plan", remedy="give every stage an instance")
    counts = dict.fromkeys(work, 1)
    heap = [(-amount, stage) for stage, amount in work.items()]
    heapq.heapify(heap)
    for _ in range(instance_count - len(work) if work else 0):
        stage = heap[0][1]
        counts[stage] += 1
        heapq.heapreplace(heap, (-work[stage] / counts[stage], stage))
    return counts


# ---------------------------------------------------------------- explanation


def describe_stage(stage: Stage) -> str:
    """Its join, keys, time of a row and watermark; its aggregate; or that it gathers rows."""
    if isinstance(stage.node, CountedJoin):
        return f"stage {stage.id} {stage.name}: {stage.description}; time of a row: the greatest; watermark: that of its input"
    if isinstance(stage.node, Keyed):
        if isinstance(stage.node, Sessions):
            window, rule = "session", "that of its input"
        else:
            window, rule = "window", "that of the first window which ends after its input's"
        time = {"last": "the last microsecond"}.get(stage.node.output_time, f"the {stage.node.output_time}")
        if isinstance(stage.node, TupleWindows):
            time, rule = "the last row", "that of its input"
        elif isinstance(stage.node, AlignedWindows):
            less = f" - {format_duration(stage.node.size_us)}" if stage.node.output_time == "start" else ""
            rule = f"that of its input{less}"
        elif isinstance(stage.node, Views):
            time, window, rule = "the time", "view", "none before the end of its input"
        elif isinstance(stage.node, LiveGroups):
            rule = "none before the end of its input" if stage.node.may_wait else "that of its input"
            return f"stage {stage.id} {stage.name}: {stage.description}; time of a row: the instant; watermark: {rule}"
        return f"stage {stage.id} {stage.name}: {stage.description}; time of a row: {time} of its {window}; watermark: {rule}"
    if stage.gathers:
        what = "rows as they come" if stage.description == "rows as they come" else f"{stage.description}, as the rows go on"
        return f"stage {stage.id} {stage.name}: {what}, at any instance; watermark: the least of its inputs"
    if isinstance(stage.node, MultiwayJoin):
        last = stage.node.joins[-1]
        times = f"time of a row: {_output_time(last)} of the last join; watermark: that of its joins in a row"
        return f"stage {stage.id} {stage.name}: {stage.description}; {times}"
    join = stage.join
    kind = "inner join, " if join.semantics.how == "inner" else ""
    sign = "=" if join.band is None else "near"
    keys = ", ".join(f"{left} {sign} {right}" for left, right in zip(*join.keys, strict=True))
    times = f"time of a row: {_output_time(join)}; watermark: {_watermark_rule(join)}"
    return f"stage {stage.id} {join.name}: {kind}{join.semantics.description}; keys {keys}; {times}"


def _output_time(join: IntervalJoin) -> str:
    alone = "its own"
    pair = {"max": "the greater of both", "min": "the lesser of both", "left": "the left one"}[join.output_time]
    kind = join.semantics.kind
    if not kind.pairs:
        return alone
    return f"{pair}; alone, {alone}" if any(kind.unmatched) else pair


def _watermark_rule(join: IntervalJoin) -> str:
    if join.semantics.bounds.count_windows or join.semantics.unbounded:
        return "none before the end of both inputs"
    terms = []
    for side, by_us in zip(STREAM_NAMES, join_shifts(join), strict=True):
        sign = "-" if by_us < 0 else "+"
        terms.append(side if by_us == 0 else f"{side} {sign} {format_duration(abs(by_us))}")
    return f"min({', '.join(terms)})"


def _described_step(step: Step) -> str:
    if isinstance(step, UnionInput):
        return f", union input {step.index}"
    if isinstance(step, Lookup | MapBatches | Spread | Copies | Within | Period | PreAggregate | Part):
        return f", {step.description}"
    return f", filter {step.condition}" if isinstance(step, Filter) else f", projection {step.name}"


def describe_edge(edge: Edge) -> str:
    """Its sender, the steps on the way, its receiver and the key that it is routed by."""
    sender = f"source {edge.sender.name}" if isinstance(edge.sender, Source) else f"stage {edge.sender.id}"
    way = "".join(map(_described_step, edge.steps))
    if isinstance(edge.receiver, Result):
        return f"edge {edge.id}: {sender}{way} -> result {edge.receiver.name}, any sink"
    if edge.receiver.gathers:
        return f"edge {edge.id}: {sender}{way} -> stage {edge.receiver.id}, in runs"
    how = f"hash of {', '.join(edge.key)}" if edge.key else "one instance"
    if edge.receiver.cell_bits:
        how = "hash of cells of values"
    if edge.spread is not None:
        how = f"by {'cell' if edge.spread.form == 'matrix' else 'unit'}, key {', '.join(edge.key)}"
    how += "" if edge.origin is None else f", as stage {edge.origin}"
    if not edge.receiver.joins:
        return f"edge {edge.id}: {sender}{way} -> stage {edge.receiver.id}, {how}"
    return f"edge {edge.id}: {sender}{way} -> stage {edge.receiver.id} {STREAM_NAMES[edge.port]}, {how}"

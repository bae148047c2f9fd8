"""The stages of a plan, and the edges that join them.

What: `cut(plan) -> StagePlan`, `allocate(work, instance_count)`; `describe_stage` and `describe_edge`, a line of text each.
Why: a stage is what instances play: a join with a port per side, an aggregate, or, for a result that is not what one of them
brings forth, the gathering of its rows. Unions need none, they are several edges into one port; filters and projections are
done on the edges, by the sender, so no row travels that a filter drops.
Stays out: which rank plays which instance, group maps, messages.

Edges and stages have ids from 0 on, in topological order: an edge's sender comes before its receiver.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NewType, TypeAlias

from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import Aggregate
from swjoin.plan.logical import Filter, IntervalJoin, LogicalPlan, Project, Result, Schema, Source, Union, UnionInput
from swjoin.plan.watermarks import join_shifts

StageId = NewType("StageId", int)
EdgeId = NewType("EdgeId", int)
Sender: TypeAlias = "Source | Stage"
Receiver: TypeAlias = "Stage | Result"
Step: TypeAlias = UnionInput | Filter | Project  # on the way of rows


@dataclass(frozen=True)
class Stage:
    """A join, an aggregate, or a result whose rows are gathered, and its ports. schemas: of the rows at its left and its right
    port; only a join has a right one. schema: of its rows."""

    id: StageId
    node: IntervalJoin | Aggregate | Result
    schemas: tuple[Schema, Schema]
    schema: Schema

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def gathers(self) -> bool:
        return isinstance(self.node, Result)

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
        return ((), ()) if isinstance(self.node, Result) else self.node.keys

    @property
    def description(self) -> str:
        if isinstance(self.node, IntervalJoin):
            return self.node.semantics.description
        return "rows as they come" if isinstance(self.node, Result) else self.node.description


@dataclass(frozen=True)
class Edge:
    """The way from a source's gateways or a stage to a port of a stage, or to the sinks of a result.

    port: LEFT or RIGHT of a stage; 0 for a result. key: columns whose hash finds the receiver; () where any may take a row:
    of a gathering stage, to which rows go in runs, or of a result; of an aggregate without groups all go to one instance.
    steps: what the sender does to the rows, in this order.
    """

    id: EdgeId
    sender: Sender
    receiver: Receiver
    port: int
    key: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def sender_gathers(self) -> bool:
        return isinstance(self.sender, Stage) and self.sender.gathers

    @property
    def sender_aggregates(self) -> bool:
        return isinstance(self.sender, Stage) and isinstance(self.sender.node, Aggregate)


@dataclass(frozen=True)
class StagePlan:
    """What runtimes run. sources, results: in the order of the plan's nodes."""

    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]
    results: tuple[Result, ...]
    edges: tuple[Edge, ...]

    def edges_from(self, sender: Sender) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.sender == sender)

    def edges_to(self, receiver: Receiver, port: int = 0) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.receiver == receiver and edge.port == port)


def cut(plan: LogicalPlan) -> StagePlan:
    """A stage for every join and aggregate, and for every result but the rows of one of them; an edge for every way from a
    source or a stage to a port of a stage, or to a result."""
    nodes = [node for node in plan.ordered if isinstance(node, IntervalJoin | Aggregate)]
    senders: dict[str, Sender] = {node.name: node for node in plan.nodes if isinstance(node, Source)}
    receivers: list[tuple[Stage, tuple[tuple[str, tuple[str, ...]], ...]]] = []
    for i, node in enumerate(nodes):
        ports = [*(plan.schema(name) for name in node.inputs), Schema((), None)]
        stage = Stage(StageId(i), node, (ports[0], ports[1]), plan.schema(node.name))
        senders[node.name] = stage
        receivers.append((stage, tuple(zip(node.inputs, node.keys, strict=False))))
    results = tuple(node for node in plan.nodes if isinstance(node, Result))
    gathering: dict[str, tuple[Stage, tuple[Project, ...]]] = {}
    for result in results:
        ways = list(_ways_to(plan, result.input))
        if len(ways) == 1 and isinstance(senders[ways[0][0]], Stage):
            continue
        gathered, projections = _before_projections(plan, result.input)
        schema = plan.schema(gathered)
        stage = Stage(StageId(len(receivers)), result, (schema, Schema((), None)), schema)
        gathering[result.name] = stage, projections
        receivers.append((stage, ((gathered, ()),)))
    edges: list[Edge] = []
    for receiver, inputs in receivers:
        for port, (name, key) in enumerate(inputs):
            for sender, steps in _ways_to(plan, name):
                edges.append(Edge(EdgeId(len(edges)), senders[sender], receiver, port, key, steps))
    for result in results:
        if result.name in gathering:
            stage, projections = gathering[result.name]
            edges.append(Edge(EdgeId(len(edges)), stage, result, 0, (), projections))
            continue
        ((sender, steps),) = _ways_to(plan, result.input)
        edges.append(Edge(EdgeId(len(edges)), senders[sender], result, 0, (), steps))
    sources = tuple(node for node in plan.nodes if isinstance(node, Source))
    return StagePlan(sources, tuple(stage for stage, _ in receivers), results, tuple(edges))


def _before_projections(plan: LogicalPlan, name: str) -> tuple[str, tuple[Project, ...]]:
    """The node whose rows are gathered for a result of these, and the projections after it: all instances share their work."""
    last: tuple[Project, ...] = ()
    while isinstance(node := plan.node(name), Project):
        name, last = node.input, (node, *last)
    return name, last


def _ways_to(plan: LogicalPlan, name: str) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """The sources, joins and aggregates whose rows a node has, and the steps that they pass on the way."""
    node = plan.node(name)
    if not isinstance(node, Union | Filter | Project):
        yield name, ()
        return
    for i, below in enumerate(node.inputs):
        for sender, steps in _ways_to(plan, below):
            yield sender, (*steps, UnionInput(i) if isinstance(node, Union) else node)


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
    if isinstance(stage.node, Aggregate):
        time = {"last": "the last microsecond"}.get(stage.node.output_time, f"the {stage.node.output_time}") + " of its window"
        rule = "that of the first window which ends after its input's"
        return f"stage {stage.id} {stage.name}: {stage.description}; time of a row: {time}; watermark: {rule}"
    if stage.gathers:
        return f"stage {stage.id} {stage.name}: {stage.description}, at any instance; watermark: the least of its inputs"
    join = stage.join
    kind = "inner join, " if join.semantics.how == "inner" else ""
    keys = ", ".join(f"{left} = {right}" for left, right in zip(*join.keys, strict=True))
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
    if join.semantics.bounds.count_windows:
        return "none before the end of both inputs"
    terms = []
    for side, by_us in zip(STREAM_NAMES, join_shifts(join), strict=True):
        sign = "-" if by_us < 0 else "+"
        terms.append(side if by_us == 0 else f"{side} {sign} {format_duration(abs(by_us))}")
    return f"min({', '.join(terms)})"


def _described_step(step: Step) -> str:
    if isinstance(step, UnionInput):
        return f", union input {step.index}"
    return f", filter {step.condition}" if isinstance(step, Filter) else f", projection {step.name}"


def describe_edge(edge: Edge) -> str:
    """Its sender, the steps on the way, its receiver and the key that it is routed by."""
    sender = f"source {edge.sender.name}" if isinstance(edge.sender, Source) else f"stage {edge.sender.id}"
    way = "".join(map(_described_step, edge.steps))
    if isinstance(edge.receiver, Result):
        return f"edge {edge.id}: {sender}{way} -> result {edge.receiver.name}, any sink"
    if edge.receiver.gathers:
        return f"edge {edge.id}: {sender}{way} -> stage {edge.receiver.id}, in runs"
    if not edge.receiver.joins:
        how = f"hash of {', '.join(edge.key)}" if edge.key else "one instance"
        return f"edge {edge.id}: {sender}{way} -> stage {edge.receiver.id}, {how}"
    port = f"stage {edge.receiver.id} {STREAM_NAMES[edge.port]}"
    return f"edge {edge.id}: {sender}{way} -> {port}, hash of {', '.join(edge.key)}"

"""What `explain` says of a plan of several stages: its diagram, stages, edges, and who plays what.

What: `plan_diagram`, and a function per section: `stages`, `edges`, `strategies`, `epochs`, `memory`, `roles`;
`further_roles`, `threads`; `Crossing`, what goes between ranks.
Why: a plan has any number of sources and stages, so its diagram is a line for every edge.
Stays out: sections that plans share with joins of two streams (`cli.explain`), the lines of stages and edges (`plan.stages`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from swjoin.cli.summary import size_text
from swjoin.cluster.exchange import EPOCHS_AHEAD, PART_BYTES, PART_ROWS, PARTS_AHEAD
from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import FIRST_SLAVE, RankMap
from swjoin.cluster.role import RoleId, gateway_role, sink_role
from swjoin.config.options import Strategy
from swjoin.config.run import RunConfig, SinkConfig
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.plan.logical import way_of
from swjoin.plan.multiway import Part
from swjoin.plan.stages import Edge, Stage, cut, describe_edge, describe_stage
from swjoin.plan.subclusters import Communication, Subclusters
from swjoin.runtime.traffic_report import earlier_owners, expected_crossing

_ROLES = 6  # further gateways and sinks whose ranks are listed
_SHOWN = 34  # characters of a path, and of the columns of an edge, in the diagram


def shortened(text: str) -> str:
    """The end of a text that is too long."""
    return text if len(text) <= _SHOWN else "..." + text[3 - _SHOWN :]


def _carried(instances: Instances, edge: Edge) -> list[tuple[str, str]]:
    """Names and types of the columns that travel on an edge, besides id, time and key."""
    if not isinstance(edge.receiver, Stage):
        return []
    last, keyed = edge.steps[-1] if edge.steps else None, instances.columns.stages[edge.receiver.id].keyed
    if isinstance(last, Part) and isinstance(keyed, MultiwayColumns):
        types = instances.logical.schema(last.node.inputs[last.number]).types
        return [*((name, types[name]) for name in keyed.parts[last.number].slots), ("input", "number")]
    types = edge.receiver.schemas[edge.port].types
    return [(name, types.get(name, "partial aggregates")) for name in instances.columns.travels.get(edge.id, ())]


def _sender(edge: Edge) -> str:
    return edge.sender.name


def _played(instances: Instances, stage: int, *, in_process: bool) -> str:
    """The ranks, or threads, that play a stage."""
    numbers = instances.subclusters.ranks[stage]
    first, last = (number + (0 if in_process else FIRST_SLAVE) for number in (numbers[0], numbers[-1]))
    what = "thread" if in_process else "rank"
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _where(instances: Instances, stage: int, *, in_process: bool) -> str:
    alone = in_process and not instances.subclusters.apart
    return "" if alone else f" on {_played(instances, stage, in_process=in_process)}"


@dataclass(frozen=True)
class Crossing:
    """shares: by edge between stages, of its bytes those between slave ranks. said: the same in sentences, with where it is
    from."""

    shares: Mapping[int, float] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @staticmethod
    def expected(instances: Instances) -> Crossing | None:
        """By `placement.statistics`, if there are any; edges between the same stages have the same share. UserError as a run
        with them."""
        earlier = instances.config.reorganization.placement.statistics
        if earlier is None or not earlier_owners(instances):
            return None
        found = expected_crossing(instances, earlier)
        said = [
            f"Stage {one} to stage {other}: {placed / total:.1%} of the bytes between ranks, by the traffic that {earlier} has "
            f"counted; {by_number / total:.1%} with partition-groups by number."
            for (one, other), (total, by_number, placed) in found.items()
            if total
        ]
        ends = {edge.id: (edge.sender.id, edge.receiver.id) for edge in _between_stages(instances)}
        totals = {edge: found[pair] for edge, pair in ends.items() if found.get(pair, (0,))[0]}
        return Crossing({edge: placed / total for edge, (total, _, placed) in totals.items()}, tuple(said))

    @staticmethod
    def measured(instances: Instances, path: Path) -> Crossing | None:
        """In an earlier run, if path is its directory or its run.json; without shares where it had other instances. UserError
        for a run.json that no run has written."""
        path = path / "run.json" if path.is_dir() else path
        if path.suffix != ".json":
            return None
        report = json.loads(path.read_text())
        try:
            slaves = [stage["slaves"] for stage in report.get("stages", ())]
            if slaves != [[int(slave) for slave in instances.slaves_of(stage)] for stage in instances.stages.stages]:
                counts = ", ".join(f"{len(mine)} of stage {stage}" for stage, mine in enumerate(slaves))
                return Crossing(said=(f"What went between ranks was measured with other instances than these: {counts}.",))
            return Crossing._of_edges(instances, report["edges"])
        except (KeyError, TypeError, AttributeError):
            raise UserError("its stages or edges are not as a run writes them", subject=str(path)) from None

    @staticmethod
    def _of_edges(instances: Instances, edges: Sequence[Mapping[str, Any]]) -> Crossing:
        """edges: of a run.json."""
        between, shares, said = {edge.id for edge in _between_stages(instances)}, dict[int, float](), []
        for edge in edges:
            ways = {way: sums["bytes"] for way, sums in edge.get("traffic", {}).items()}
            if edge["edge"] in between and (total := sum(ways.values())):
                hosts = ways["between_hosts"]
                shares[edge["edge"]] = share = (ways["in_host"] + hosts) / total
                of = f", {hosts / total:.1%} between hosts" if hosts else ""
                said.append(f"Edge {edge['edge']}: of {size_text(total)}, {share:.1%} went between ranks{of}.")
        return Crossing(shares, tuple(said))


def _between_stages(instances: Instances) -> list[Any]:
    return [edge for edge in instances.stages.edges if isinstance(edge.sender, Stage) and isinstance(edge.receiver, Stage)]


# ---------------------------------------------------------------- the diagram


def plan_diagram(
    instances: Instances, sources: Sequence[str], sink: str, *, in_process: bool, crossing: Crossing | None = None
) -> list[str]:
    """Sources and the gateway; then a line for every edge, those to one stage together. sources: a few words each."""
    gateways, sinks = instances.config.gateway_count, instances.config.sink_count
    gateway, collector = ("master and gateway", "collector") if in_process else ("0 master and gateway", "1 collector")
    gateway = gateway if gateways == 1 else f"{gateways} gateways"
    collector = collector if sinks == 1 else f"{sinks} sinks"
    wide, middle = max(map(len, sources)), (len(sources) - 1) // 2
    out = []
    for i, source in enumerate(sources):
        line = f"{source:<{wide}} {joints(i, len(sources), middle)[1]}"
        out.append(line + (f"▶ {gateway}" if i == middle else ""))
    shares = {} if crossing is None else crossing.shares
    rows = [(_ends(instances, edge, shares.get(edge.id)), edge) for edge in instances.stages.edges]
    widths = [max(len(ends[i]) for ends, _ in rows) for i in range(3)]
    for stage in (*instances.stages.stages, None):
        mine = [row for row in rows if row[1].receiver == stage or (stage is None and not isinstance(row[1].receiver, Stage))]
        middle = (len(mine) - 1) // 2
        out.append("")
        for i, ((number, sender, carried), edge) in enumerate(mine):
            line = f"{number:<{widths[0]}}  {sender:<{widths[1]}} ─ {carried:<{widths[2]}} ─▶ "
            if stage is None:
                line += f"{collector} ─▶ {sink}"
            else:
                line += f"{STREAM_NAMES[edge.port]:<5} {joints(i, len(mine), middle)[1]}"
                count = instances.subclusters.counts[stage.id]
                where = f"─ stage {stage.id}  {stage.name} x {count}{_where(instances, stage.id, in_process=in_process)}"
                line += where if i == middle else ""
            out.append(line)
    return out


def joints(row: int, rows: int, middle: int) -> tuple[str, str]:
    """Lines before and behind the box of this row, out of one and into one at the row `middle`."""
    if rows == 1:
        return "──", "──"
    first, last = row == 0, row == rows - 1
    if row == middle:
        return ("─┬" if first else "─┴" if last else "─┼"), ("─┬" if first else "─┴" if last else "─┼")
    return (" ┌" if first else " └" if last else " ├"), ("─┐" if first else "─┘" if last else "─┤")


def _ends(instances: Instances, edge: Edge, share: float | None) -> tuple[str, str, str]:
    """Number, sender, and what the edge is routed by and carries. share: of its bytes, those between ranks, if known."""
    stage = f"stage {edge.sender.id}" if isinstance(edge.sender, Stage) else "gateway"
    if not isinstance(edge.receiver, Stage):
        of = f" of {edge.receiver.name}" if instances.query_count else ""
        return f"edge {edge.id}", f"{stage}, {_sender(edge)}", f"results{of}"
    columns = ", ".join(name for name, _ in _carried(instances, edge)) or "no columns"
    columns = columns if len(columns) <= _SHOWN else f"{columns[: _SHOWN - 3]}..."
    how = "in runs" if edge.receiver.gathers else f"hash of {', '.join(edge.key)}" if edge.key else ""
    crosses = "" if share is None else f"; {share:.0%} between ranks"
    return f"edge {edge.id}", f"{stage}, {_sender(edge)}", (f"{how}: {columns}" if how else columns) + crosses


# ---------------------------------------------------------------- sections


def stages(instances: Instances) -> list[str]:
    return [f"{describe_stage(stage)}{_routing(instances, stage)}." for stage in instances.stages.stages]


def _routing(instances: Instances, stage: Stage) -> str:
    """How rows of a join find their partners, and why so."""
    if not stage.joins:
        return ""
    way, asked = way_of(instances.logical, stage.join), instances.config.cluster.routing
    why = {"hash": "its condition has an equality", "range": "its condition has a band"}.get(way, "it has no equality, no band")
    places = instances.stages.places_of(stage)
    shown = way if places is None else f"{places.count} {places.word}"
    if any(join.stage == stage.id and join.instances > 1 for join in instances.skewed_joins):
        shown = "hash, hot keys spread"
    return f"; routing: {shown}, as {why if asked == 'auto' else f'{asked} is asked for'}"


def edges(instances: Instances) -> list[str]:
    """A line each: way, key, union inputs, columns with types."""
    return [f"{describe_edge(edge)}; {_load(instances, edge)}." for edge in instances.stages.edges]


def _load(instances: Instances, edge: Edge) -> str:
    if not isinstance(edge.receiver, Stage):
        return "counts and digests only" if instances.config.sink.kind == "count" else "result rows"
    always = ["id", "time"]
    if not edge.receiver.gathers:
        native = instances.columns.stages[edge.receiver.id].new_keys().native
        always.append("key" if native else "hash of the key")
    return f"carries {', '.join([*always, *(f'{name} {kind}' for name, kind in _carried(instances, edge))])}"


def strategies(instances: Instances) -> list[str]:
    """What the run's strategy makes of its slave ranks; then a line for each strategy."""
    cluster, width, out = instances.config.cluster, instances.width, []
    for name in get_args(Strategy):
        stages = cut(instances.logical, name)
        of = Subclusters.of(stages, width, name, cluster.instances if name == cluster.strategy else ())
        costs = Communication.of(stages, of, instances.config.gateway_count, name)
        sizes = [len(ranks) for ranks in dict.fromkeys(of.ranks)]
        stages_text = "1 stage" if len(of.counts) == 1 else f"{len(of.counts)} stages"
        shared = " (fewer than stages)" if width < len({*stages.subqueries}) and name != "query" else ""
        clusters = f"on {sizes[0]}" if len(sizes) == 1 else f"in {len(sizes)} subclusters of {' + '.join(map(str, sizes))}"
        exchanges = "1 exchange" if costs.steps == 1 else f"{costs.steps} exchanges"
        reads = f"; {costs.of_inputs:,} more from the gateways" if costs.of_inputs else ""
        out.append(
            f"{'*' if name == cluster.strategy else ' '} {name}: {stages_text} {clusters} slaves{shared}; {exchanges} on the "
            f"longest way, {costs.channels:,} channels, {costs.most_out:,} out of a rank{reads}."
        )
    return [f"{cluster.strategy}, marked * (set cluster.strategy).", *out]


def epochs(length: str, gateways: int) -> list[str]:
    """length: of a distribution epoch, as the beginning of a sentence."""
    end = "the gateway ends" if gateways == 1 else "every gateway ends"
    return [
        f"{length} {end} a distribution epoch on all of its edges. Every sender sends each instance a final part with its "
        "watermark, also when it has no rows. An instance joins parts as they come, and ends the epoch when the final part of "
        "every sender has come."
    ]


def memory(instances: Instances) -> list[str]:
    cluster, module = instances.config.cluster, instances.config.module
    whose = "The gateway's mini-buffers" if instances.config.gateway_count == 1 else "The mini-buffers of each gateway"
    senders = max(len({role for _, role in instances.senders_to(stage)}) for stage in instances.stages.stages)
    return [
        f"Windows and payload of an instance: at most {size_text(module.window_bytes)}, or the run ends and says so. {whose}: "
        f"{size_text(cluster.mini_buffer_bytes)}.",
        f"Credit: an instance grants each of its senders ({senders} at most) {EPOCHS_AHEAD} epochs and {PARTS_AHEAD} parts, of "
        f"about {PART_ROWS:,} rows or {size_text(PART_BYTES)} at most; a sender without credit waits.",
        "State is given back when windows have passed.",
    ]


def further_roles(ranks: RankMap, sink: SinkConfig) -> list[str]:
    """Who plays the gateways and sinks but the first ones, which are those of ranks 0 and 1."""
    how = "; each sends its own to the topic" if sink.kafka is not None else ", a file or more each" if sink.in_files else ""

    def played(name: str, count: int, role: Callable[[int], RoleId]) -> str:
        players = [f"{name} {number} is on rank {ranks.rank_of(role(number))}" for number in range(1, min(count, _ROLES + 1))]
        return ", ".join(players) + ("" if count - 1 <= _ROLES else ", and so on")

    said = []
    if ranks.gateways > 1:
        text = f"{ranks.gateways} gateways read and route, each what it is dealt: gateway 0 is on rank 0"
        said.append(f"{text}, {played('gateway', ranks.gateways, gateway_role)}.")
    if ranks.sinks > 1:
        text = f"{ranks.sinks} sinks share the results{how}: sink 0 is the collector"
        said.append(f"{text}, {played('sink', ranks.sinks, sink_role)}.")
    return said


def threads(config: RunConfig, main: str) -> tuple[str, str]:
    """Of one process: who plays in its main thread, and in further threads but those of slaves. main: with one gateway."""
    gateways, sinks = config.gateway_count, config.sink_count
    last = "one for the collector" if sinks == 1 else f"one for each of {sinks} sinks"
    if gateways == 1:
        return main, last
    return "master and gateway 0", f"one for each further gateway ({gateways - 1}), {last}"


def roles(instances: Instances, ranks: RankMap | None) -> list[str]:
    width, apart = instances.width, instances.subclusters.apart
    each = [f"stage {i} on {_played(instances, i, in_process=ranks is None)}" for i in range(len(instances.stages.stages))]
    if ranks is None:
        count = "a thread" if width == 1 else f"{width} threads"
        main, others = threads(instances.config, "master and gateway")
        with_what = f"with instances: {', '.join(each)};" if apart else "with an instance of every stage,"
        return [f"One process: {main} in its main thread, {count} {with_what} {others}."]
    if apart:
        plays = f"Every rank plays the stages of its subcluster, {', '.join(each)}"
    elif width == 1:
        plays = "Rank 2 plays the instance of every stage"
    else:
        plays = f"Ranks 2 to {width + 1} play the instances: rank 2 + i instance i of every stage (slave {width} * stage + i)"
    return [
        "Rank 0 is the master (plans epochs, moves and checkpoints) and the gateway (reads, judges lateness, routes). Rank 1 "
        "is the collector: writes results and metrics.",
        f"{plays}: keeps windows, finds pairs, sends its rows to the next stages.",
        *further_roles(ranks, instances.config.sink),
    ]

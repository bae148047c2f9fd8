"""The command `explain`: what a configuration will do, or what an earlier run has done, in words and a diagram.

What: `setting_of(job, slaves)`; `explain(setting)` -> sections of sentences; `diagram(setting)`; `run_explain`.
Why: forty keys say what a run is; its author wants to read where tuples come from, where they go, and what happens when
something goes wrong.
Stays out: how much and how fast (`plan`), the parser (`cli.main`), what plans of several stages alone have
(`cli.explain_plan`), splits (`cli.gateways`). Reads schemas, no data.

A table of sections, each a function from what is known to sentences; a section without sentences is left out. A section or key
that is not in the tables here (a source or a service that came later) is shown as it is spelled.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swjoin.cli import explain_plan
from swjoin.cli.common_args import given_ranks, in_process_or_ranks, with_role_counts
from swjoin.cli.explain_plan import joints, shortened
from swjoin.cli.gateways import fitted
from swjoin.cli.summary import size_text
from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import RankMap
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.run import PlacementConfig, RunConfig, ScalingConfig, to_plain
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import SwjoinError
from swjoin.core.resources import find_resource
from swjoin.frontends.configured import job_of
from swjoin.plan.logical import Source as PlanSource

_WRAP = textwrap.TextWrapper(100, break_long_words=False, break_on_hyphens=False)
_LISTS = {"stages", "edges", "strategy", "traffic"}  # sections with a line for every sentence
_STREAM_KEYS = {"path", "generate", "key", "time", "time_unit", "id", "columns", "assume_timezone", "csv", "iri", "malformed"}
_LIVE = {
    "flight": "Arrow Flight: clients send record batches to {reader}",
    "kafka": "a Kafka topic, read by {reader}",
    "watch": "a directory that is watched: files that appear are read",
}
_SERVICES = {
    "serve": "results are also served while the run goes on",
    "observe": "the run can be observed while it goes on",
}
_KNOWN = {
    "queries", "left", "right", "inputs", "seed", "pace", "workload", "time", "cluster", "module", "reorganization", "nodes",
    "measure", "checkpoint", "on_overload", "sink",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """slaves: of a plan, instances per stage. ranks: None: threads of one process. columns: of the results; None: not known
    (why: `unknown`). plan: of several stages, with its inputs; None: the join of two streams. reading: how several gateways
    share the inputs, in sentences. crossing: what goes between ranks, if known."""

    config: RunConfig
    slaves: int
    ranks: RankMap | None
    columns: list[tuple[str, str]] | None = None
    unknown: str = ""
    plan: Instances | None = None
    inputs: tuple[StreamConfig, ...] = ()
    reading: tuple[str, ...] = ()
    crossing: explain_plan.Crossing | None = None

    @property
    def streams(self) -> dict[str, StreamConfig]:
        """The streams by name."""
        if self.plan is None:
            return {name: getattr(self.config, name) for name in STREAM_NAMES}
        streams = {source.name for source in self.plan.stages.sources}
        return {name: config for name, config in self._named_inputs if name in streams}

    @property
    def tables(self) -> dict[str, StreamConfig]:
        """Static tables by name."""
        streams = self.streams
        return {name: config for name, config in self._named_inputs if name not in streams}

    @property
    def _named_inputs(self) -> list[tuple[str, StreamConfig]]:
        nodes = [] if self.plan is None else [node for node in self.plan.logical.nodes if isinstance(node, PlanSource)]
        return [(node.name, config) for node, config in zip(nodes, self.inputs, strict=self.plan is not None)]

    @property
    def in_process(self) -> bool:
        return self.ranks is None

    @property
    def active(self) -> int:
        return min(self.slaves, self.config.reorganization.active_slaves or self.slaves)


def _span(us: float) -> str:
    """Microseconds in the unit in which they read best."""
    for unit, scale in (("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000)):
        if us and abs(us) >= scale and us % (scale / 10) == 0:
            return f"{us / scale:,g} {unit}"
    return f"{us:,g} us"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# ---------------------------------------------------------------- what comes in


def _live(stream: Any) -> list[tuple[str, Any]]:
    """Sources of a stream that are neither files nor the generator: (name, settings)."""
    return [
        (f.name, getattr(stream, f.name))
        for f in dataclasses.fields(stream)
        if f.name not in _STREAM_KEYS and getattr(stream, f.name) not in (None, (), "", False)
    ]


def _settings(value: Any) -> str:
    plain = to_plain(value)
    if isinstance(plain, dict):
        return ", ".join(f"{k} {v}" for k, v in plain.items() if v not in (None, "", []))
    return str(plain)


def _source(config: RunConfig, stream: StreamConfig) -> tuple[str, str]:
    """(a few words for the diagram, a sentence) about where a stream comes from."""
    workload = config.workload
    live = _live(stream)
    if live:
        kind, settings = live[0]
        reader = "the master" if config.gateway_count == 1 else "the gateways"
        return kind, f"{_LIVE.get(kind, f'source {kind}').format(reader=reader)} ({_settings(settings)})"
    if stream.path is not None:
        named = ", ".join(stream.paths)
        place = "a file" if len(stream.paths) == 1 and os.path.isfile(named) else "all their files, in path order"
        return named, f"{named}: {place} (Parquet, ORC, CSV, TSV, JSON lines, Arrow IPC or RDF)"
    schedule = "" if workload.schedule.kind == "constant" else f", {workload.schedule.kind} schedule"
    maker = "the master" if config.gateway_count == 1 else "the gateways"
    drift = f", other keys are hot every {_span(workload.drift_us)}" if workload.drift_us else ""
    if stream.generate == "calls":
        made = f"made by {maker}: {workload.rate_per_s:,.12g} calls/s for {_span(workload.duration_us)}{schedule}"
        return f"generator, {workload.rate_per_s:,.12g}/s", f"{made}, of {workload.domain:,} users; seed {config.seed}"
    return (
        f"generator, {workload.rate_per_s:,.12g}/s",
        f"made by {maker}: {workload.rate_per_s:,.12g} tuples/s for {_span(workload.duration_us)}{schedule}, keys of a "
        f"b-model (b = {workload.bias:g}) below {workload.domain:,}{drift}, {workload.payload_bytes} bytes of payload; "
        f"seed {config.seed}",
    )


def _inputs(s: Setting) -> list[str]:
    out: list[str] = []
    for name, stream in s.streams.items():
        source = _source(s.config, stream)[1]
        if s.plan is None and stream.path is None and not _live(stream):
            out = [f"Both streams are {source}."]
            break
        text = f"{name.capitalize() if s.plan is None else name}: {source}."
        if s.plan is not None or stream.path is not None or _live(stream):
            unit = f" ({stream.time_unit})" if stream.time_unit else ""
            unit += f" (local times of {stream.assume_timezone})" if stream.assume_timezone else ""
            shared = s.config.gateway_count > 1 and stream.live
            own = "row ids are split and offset" if shared else "row ids are positions"
            ids = f"row ids from column {stream.id}" if stream.id else own
            key = f"Key {', '.join(stream.key)}; time" if s.plan is None else "Time"
            text += f" {key} {stream.time}{unit}; {ids}."
            text += f" The RDF stream <{stream.iri}>." if stream.iri else ""
        out.append(text)
    for name, table in s.tables.items():
        what = f"The RDF graph <{table.iri}>, a" if table.iri else "A"
        out.append(f"{name}: {_source(s.config, table)[1]}. {what} static table: every process that needs it reads it whole.")
    out += s.reading
    if s.config.pace == "asap":
        out.append("Pace asap: streams are replayed as fast as the slaves join; the source waits for them.")
    else:
        out.append("Pace realtime: each tuple arrives when the wall clock says so, counted from the start of the run.")
    return out


def _query(s: Setting) -> list[str]:
    if s.plan is not None:
        return []
    query = s.config.query
    if query.last is not None:
        left, right = query.last
        rule = f"each left tuple meets the last {right:,} right ones before it, each right tuple the last {left:,} left ones"
    elif query.unbounded:
        rule = "equal keys, at any times; nothing expires"
    elif query.lower_us == -query.upper_us and not query.exclusive:
        rule = f"equal keys, and times at most {_span(query.upper_us)} apart"
    else:
        signs = tuple("<" if side in query.exclusive else "<=" for side in ("lower", "upper"))
        rule = f"equal keys, and {_span(query.lower_us)} {signs[0]} right time - left time {signs[1]} {_span(query.upper_us)}"
    kinds = {
        "inner": "Every pair that matches comes out exactly once",
        "left": "Every pair that matches comes out once, and every left tuple without a match, once its window has passed",
        "right": "Every pair that matches comes out once, and every right tuple without a match, once its window has passed",
        "full": "Every pair that matches comes out once, and every tuple without a match, once its window has passed",
        "semi": "Every left tuple that has a match comes out once, alone",
        "anti": "Every left tuple without a match comes out once, when its window has passed",
    }
    where = f" Besides, {query.where} must hold." if query.where else ""
    if query.as_of is not None:
        kinds = {
            "inner": "A left tuple comes out once, with its match, when nothing to come can be a better one",
            "left": "A left tuple comes out once, with its match or without one, when nothing to come can be a better one",
        }
        which = {
            "last": "the last of these at or before it (of equal times that with the highest id)",
            "first": "the first of these at or after it (of equal times that with the lowest id)",
            "nearest": "the nearest of these in time (of two, the earlier)",
        }
        where += f" A left tuple joins {which[query.match]}."
    return [f"A pair matches when: {rule}.{where}", f"{kinds[query.how]} ({query.how} join). Null keys match nothing."]


def _time(s: Setting) -> list[str]:
    time = s.config.time
    if time.model == "arrival":
        return ["A tuple's time is when the master reads it; nothing is ever late."]
    late = {
        "error": "one later than that ends the run with an error",
        "drop": "one later than that is dropped and counted",
        "side": "one later than that goes to late.parquet and is counted",
    }[time.late]
    bound = time.max_out_of_order_us
    order = f"it may lie {_span(bound)} behind the highest before" if bound else "tuples come in time order"
    if time.sort:
        late = late.replace("one later than that", "one without a time")
        return [f"A tuple's time is its time column; each input is sorted by it before the join; {late}."]
    out = [f"A tuple's time is its time column; {order}; {late}."]
    if time.idle_timeout_us:
        out.append(f"A stream that is silent for {_span(time.idle_timeout_us)} does not hold time back any more.")
    else:
        streams = "both streams" if s.plan is None else "all sources"
        out.append(f"Time goes on with {streams}: a stream that is silent, but has not ended, is waited for.")
    return out


def _routing(s: Setting) -> list[str]:
    cluster, groups = s.config.cluster, s.config.cluster.partition_count
    least, most = groups // s.active, -(-groups // s.active)  # dealt out in turn
    share = f"{least} to {most}" if least != most else f"{most}"
    stages = () if s.plan is None else s.plan.stages.stages
    where = "In each join" if all(stage.joins for stage in stages) else "In each stage with keys"
    start, one = ("The", "slave") if s.plan is None else (f"{where} the", "instance")
    if stages and all(stage.gathers for stage in stages):
        return ["Any instance may take a row: the hash of its id says which."]
    if s.plan is not None and s.plan.subclusters.apart:
        shares = ", ".join(f"{count} of stage {stage}" for stage, count in enumerate(s.plan.subclusters.counts))
        held = f"Of {_plural(groups, 'partition-group')}, the instances of a stage hold equal numbers: {shares}."
        return [f"{start} key's hash says which partition-group a tuple belongs to. {held}"]
    out = [
        f"{start} key's hash says which of {_plural(groups, 'partition-group')} a tuple belongs to; tuples of equal keys meet "
        f"at one {one}{', but for hot keys' if cluster.routing == 'skew' else ''}. "
        f"{_plural(s.active, one)} with {share} of them each"
        + (f"; {s.slaves - s.active} more stand by." if s.active < s.slaves else ".")
    ]
    if cluster.sub_group_count > 1:
        slot = _span(cluster.distribution_epoch_us / cluster.sub_group_count)
        out.append(f"Slaves form {cluster.sub_group_count} sub-groups, each served in a slot of its own, {slot} long.")
    module = s.config.module
    out.append(
        f"Within {'a slave' if s.plan is None else 'an instance'}, partition-groups above {size_text(2 * module.theta_bytes)} "
        "are split by more bits of the hash (fine tuning)."
        if module.theta_bytes
        else "Partition-groups are not fine-tuned: each tuple is compared with the whole opposite window of its group."
    )
    return out


def _epochs(s: Setting) -> list[str]:
    cluster = s.config.cluster
    if cluster.distribution_epoch_us:
        length = f"Every {_span(cluster.distribution_epoch_us)} of stream time"
    else:
        length = f"Every {cluster.epoch_tuples:,} tuples, or 1/16 to 1/8 of the windows if that is more,"
    if s.plan is not None:
        return explain_plan.epochs(length, s.config.gateway_count)
    mode = "receives while it joins" if cluster.communication == "overlapped" else "asks for more when it has joined all it has"
    sends = "the master sends" if s.config.gateway_count == 1 else "every gateway sends"
    out = [f"{length} {sends} each slave what has come for it (distribution epoch). A slave {mode}."]
    if s.config.pace == "realtime":
        half = _span(cluster.distribution_epoch_us / 2)
        out.append(f"So a pair waits half an epoch ({half}) in the mean before it can be found.")
    measure = s.config.measure
    if measure.prefill_us:
        out.append(
            f"The first {_span(measure.prefill_us)} of the streams fill the windows at full speed and are counted apart."
        )
    return out


def _stages(s: Setting) -> list[str]:
    return [] if s.plan is None else explain_plan.stages(s.plan)


def _edges(s: Setting) -> list[str]:
    return [] if s.plan is None else explain_plan.edges(s.plan)


def _strategy(s: Setting) -> list[str]:
    return [] if s.plan is None else explain_plan.strategies(s.plan)


def _memory(s: Setting) -> list[str]:
    if s.plan is not None:
        return explain_plan.memory(s.plan)
    cluster, module = s.config.cluster, s.config.module
    whose = "The master's mini-buffers" if s.config.gateway_count == 1 else "The mini-buffers of each gateway"
    return [
        f"Windows and payload of a slave: at most {size_text(module.window_bytes)}, or the run ends and says so. Its stream "
        f"buffer: {size_text(module.stream_buffer_bytes)}. {whose}: {size_text(cluster.mini_buffer_bytes)}.",
        "State is given back when windows have passed. swjoin plan foretells the bytes of each rank.",
    ]


def _ranks(s: Setting) -> list[str]:
    if s.plan is not None:
        return explain_plan.roles(s.plan, s.ranks)
    stages = [f"One stage, the join, with {_plural(s.slaves, 'instance')} (the slaves).",
              "Edges: gateway to join, left and right, by the key's hash; join to collector."]  # fmt: skip
    if s.ranks is None:
        main, others = explain_plan.threads(s.config, "the master")
        return [f"One process: {main} in its main thread, a thread for each slave ({s.slaves}), {others}.", *stages]
    last = s.slaves + 1
    names = "Rank 2 is the slave: keeps" if s.slaves == 1 else f"Ranks 2 to {last} are slaves 0 to {s.slaves - 1}: keep"
    out = [
        "Rank 0 is the master: reads, judges lateness, routes, decides moves, keeps the ledger. "
        "Rank 1 is the collector: merges and writes results and metrics.",
        f"{names} windows, find{'s' if s.slaves == 1 else ''} pairs.",
        *explain_plan.further_roles(s.ranks, s.config.sink),
        *stages,
    ]
    nodes = s.config.nodes
    if nodes.imitates:
        speeds = ", ".join(f"{nodes.speed_of(i, 0):g}" for i in range(min(s.slaves, 8)))
        out.append(
            f"Slower nodes are imitated: slaves run at {speeds}{', ...' if s.slaves > 8 else ''} of a core at the start."
        )
    for change in nodes.changes:
        out.append(f"From {_span(change.at_us)} on slave {change.slave} runs at {nodes.node_speed * change.speed:g} of a core.")
    return out


def _overload(s: Setting) -> list[str]:
    overload = s.config.on_overload
    if s.config.pace == "asap":
        return ["More than the slaves can join cannot come: the source is read as they allow."]
    return [
        {
            "block": "When the mini-buffers are full the source waits: nothing is lost, and the production delay grows.",
            "shed": f"When the mini-buffers are full tuples are dropped ({overload.victims}): counted, written to "
            f"late.parquet, {'and the recall is estimated' if s.plan is None else 'and the result is that of the others'}.",
            "spill": f"When the mini-buffers are full tuples go to disk, {size_text(overload.disk_bytes)} at most, and come "
            "back when their slave has room.",
        }[overload.policy]
    ]


def _crash(s: Setting) -> list[str]:
    checkpoint = s.config.checkpoint
    if not checkpoint.enabled:
        return ["No checkpoints: when a process dies the run ends, results so far stay *.incomplete, and it begins anew."]
    when = [f"every {_span(checkpoint.interval_us)}"] if checkpoint.interval_us else []
    when += [f"every {_plural(checkpoint.epochs, 'distribution epoch')}"] if checkpoint.epochs else []
    place = checkpoint.directory or "the run's directory"
    out = [f"Checkpoints {' or '.join(when)}, kept in {place}. Results up to each of them are final."]
    if not s.in_process and checkpoint.recover:
        out.append("When a rank but the master's dies, the others go back to the newest checkpoint and go on without it.")
    out.append("After the death of all, or a stop (SIGTERM, Ctrl-C), swjoin run --resume DIR goes on, on any number of ranks.")
    return out


def _adaptation(s: Setting) -> list[str]:
    settings = s.config.reorganization
    if settings.policy == "none":
        return [
            *_earlier(settings.placement),
            "Partition-groups stay where they start; the number of active slaves does not change.",
            *_scaling(settings.scaling),
        ]
    what = {
        "paper": f"a partition-group moves from each slave whose stream buffer is above {settings.supplier_threshold:g} full "
        f"to one below {settings.consumer_threshold:g}",
        "balanced": "as many partition-groups move as even out the measured work",
        "network": "those partition-groups move whose measured traffic between slave ranks is worth their state",
        "random": "partition-groups move at random, to test with",
    }[settings.policy]
    out = _earlier(settings.placement)
    out += [f"Every {_span(settings.epoch_us)} {what} (policy {settings.policy}). The join goes on meanwhile; no pair is lost."]
    if settings.declustering != "fixed":
        by = "the occupancy of their buffers" if settings.declustering == "adaptive" else "how busy they are"
        out.append(f"Slaves are activated and put to rest by {by}.")
    return out + _scaling(settings.scaling)


def _earlier(settings: PlacementConfig) -> list[str]:
    if settings.statistics is None:
        return []
    return [f"At the start partition-groups are placed by the traffic that {settings.statistics} has counted."]


def _scaling(settings: ScalingConfig) -> list[str]:
    if not settings.units:
        return []
    when = f"every {_span(settings.every_us)} of the streams' time" if settings.every_us else "in each distribution epoch"
    first = "1 unit of each subgroup stores" if settings.units == 1 else f"{settings.units} units of each subgroup store"
    return [
        f"At first {first} rows; more do when those are above {settings.high:g} of their memory, fewer below {settings.low:g}, "
        f"by {settings.confirmations} checks in a row, one {when}.",
        "Nothing is moved: units that store no more are probed until their rows have expired.",
    ]


def _sink(config: RunConfig) -> str:
    """Where results go."""
    sink = config.sink
    if sink.kafka is not None:
        return f"topic {shortened(sink.kafka.topic)}"
    return {"count": "count and digest", "flight": "consumers"}.get(sink.kind, f"results/*.{sink.kind}")


def _results(s: Setting) -> list[str]:
    sink, what = s.config.sink, "row" if s.plan is not None and s.plan.of_rows else "pair"
    if sink.kind == "count":
        kept = "; payload travels all the same." if sink.carry_payload else "."
        out = [f"{what.capitalize()}s are counted and digested, not kept{kept}"]
    else:
        shown = _sink(s.config)
        if sink.in_files:
            if s.plan is not None and s.plan.query_count:
                shown = shown.replace("results/", "results/QUERY/")
            out = [f"DIR/{shown}; names appear when the files are whole."]
        elif sink.kind == "kafka":
            out = [f"{shown}: a message for every row, or for many, with their position."]
        else:
            out = ["No files: consumers take the rows over Arrow Flight."]
        if s.columns is not None:
            out.append("Columns: " + ", ".join(f"{name} ({kind})" for name, kind in s.columns) + ".")
        else:
            out.append(f"Columns: the key, then all others of both sides; {s.unknown}.")
    out.append(
        f"Each {what} exactly once, whatever the ranks, epochs and moves; the ledger accounts for every tuple, and a run "
        "whose ledger does not balance fails."
    )
    return out


def _services(s: Setting) -> list[str]:
    """Sections that came later than this command."""
    out = []
    for field in dataclasses.fields(s.config):
        value = getattr(s.config, field.name)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if field.name in _KNOWN or value is None or value == default:
            continue
        what = _SERVICES.get(field.name, f"section {field.name}")
        out.append(f"{what.capitalize()} ({_settings(value)}).")
    if s.config.gateway_count > 1 and s.config.observe.hot_keys and s.config.observe.enabled:
        out.append("Hot keys are not sampled with several gateways.")
    return out


SECTIONS: tuple[tuple[str, Callable[[Setting], list[str]]], ...] = (
    ("what comes in", _inputs),
    ("what matches", _query),
    ("stages", _stages),
    ("edges", _edges),
    ("traffic", lambda s: [] if s.crossing is None else list(s.crossing.said)),
    ("strategy", _strategy),
    ("time", _time),
    ("where keys go", _routing),
    ("epochs", _epochs),
    ("memory", _memory),
    ("who does what", _ranks),
    ("too much", _overload),
    ("a crash", _crash),
    ("adaptation", _adaptation),
    ("results", _results),
    ("besides", _services),
)


def explain(setting: Setting) -> dict[str, list[str]]:
    """Sentences by section; empty sections are left out."""
    return {title: text for title, describe in SECTIONS if (text := describe(setting))}


# ---------------------------------------------------------------- the diagram


def diagram(s: Setting) -> list[str]:
    """Sources, master, slaves, collector, results, from left to right; of a plan, a line for every edge."""
    config = s.config
    sources = [f"{name}: {shortened(_source(config, stream)[0])}" for name, stream in s.streams.items()]
    sink = _sink(config)
    if s.plan is not None:
        return explain_plan.plan_diagram(s.plan, sources, sink, in_process=s.in_process, crossing=s.crossing)
    left, right = sources
    role = (lambda rank, name: name) if s.in_process else (lambda rank, name: f"{rank} {name}")
    shown = list(range(s.slaves)) if s.slaves <= 4 else [0, 1, -1, s.slaves - 1]
    boxes = ["..." if i < 0 else role(i + 2, f"slave {i}") + (" (stands by)" if i >= s.active else "") for i in shown]
    wide = max(map(len, boxes))
    source_width = max(len(left), len(right))
    middle = (len(boxes) - 1) // 2
    feeds = f"{left:<{source_width}} ─┬─", f"{right:<{source_width}} ─┘ "
    readers = role(0, "master") if config.gateway_count == 1 else f"{config.gateway_count} gateways"
    writers = role(1, "collector") if config.sink_count == 1 else f"{config.sink_count} sinks"
    master, collector = f"▶ {readers} ", f"▶ {writers} ─▶ {sink}"
    out = []
    for row, box in enumerate(boxes):
        if row == middle:
            head = f"{feeds[0]}{master}"
        elif row == middle + 1:
            head = feeds[1] + " " * len(master)
        else:
            head = " " * (len(feeds[0]) + len(master))
        before, behind = joints(row, len(boxes), middle)
        tail = collector if row == middle else ""
        out.append(f"{head}{before}▶ {box:<{wide}} {behind}{tail}".rstrip())
    if len(boxes) == 1:
        out.append(feeds[1])
    return out


# ---------------------------------------------------------------- the command


def result_columns(job: Job) -> tuple[list[tuple[str, str]] | None, str]:
    """(name, type) of the result's columns by the inputs' schemas; or None and why they are not known."""
    from swjoin.connectors.output_columns import OutputColumns
    from swjoin.runtime.open import open_job_sources

    config = job.config
    if any(_live(getattr(config, name)) for name in STREAM_NAMES):
        return None, "their names and types come with the live streams"
    try:
        sources = open_job_sources(job)
    except SwjoinError as error:
        return None, f"names and types are not known yet: {error}"
    try:
        schema = OutputColumns.build(*sources, config).schema
    finally:
        for source in sources:
            source.close()
    return [(field.name, str(field.type)) for field in schema], ""


def setting_of(job: Job, slaves: int, ranks: RankMap | None, reading: tuple[str, ...] = ()) -> Setting:
    """What there is to explain. reading: as of `Setting`. UserError when the configuration needs more slaves, and for a plan
    that cannot be run."""
    from swjoin.runtime.open import instances_of, open_plan_sources, sized

    config = job.config
    config.check_slaves(slaves)
    job = sized(job, slaves)
    plan = instances_of(job, slaves)
    if plan is None:
        columns, unknown = (None, "") if config.sink.kind == "count" else result_columns(job)
        return Setting(config, slaves, ranks, columns, unknown, reading=reading)
    for source in open_plan_sources(job, plan.logical, plan.columns.read):
        source.close()
    return setting_of_plan(job, plan, ranks, reading)


def setting_of_plan(job: Job, plan: Instances, ranks: RankMap | None, reading: tuple[str, ...] = ()) -> Setting:
    """What there is to explain of a job with this plan."""
    from swjoin.connectors.output_columns import QueryColumns
    from swjoin.runtime.open import plan_output

    columns: list[tuple[str, str]] | None = None
    if job.config.sink.kind != "count":
        found = plan_output(plan)
        by_query = found.queries if isinstance(found, QueryColumns) else (("", found),)
        columns = [(f"{name}.{c.name}" if name else c.name, str(c.type)) for name, of in by_query for c in of.schema]
    return Setting(job.config, plan.width, ranks, columns, "", plan, job.config.inputs, reading)


def _crossing(plan: Instances | None, args: argparse.Namespace) -> explain_plan.Crossing | None:
    """Of an earlier run what was measured, unless another placement is asked for; else what statistics let expect."""
    if plan is None:
        return None
    measured = None
    if not any("placement" in override.partition("=")[0] for override in args.overrides):
        measured = explain_plan.Crossing.measured(plan, find_resource(args.config))
    if measured is not None and measured.shares:
        return measured
    return explain_plan.Crossing.expected(plan) or measured


def run_explain(args: argparse.Namespace) -> int:
    given_ranks(args)  # wrong numbers are told first
    job = job_of(find_resource(args.config), args.overrides, "explain")
    given = with_role_counts(job.config, args)
    job, reading = fitted(dataclasses.replace(job, config=given))
    config = job.config
    ranks, slaves = in_process_or_ranks(args, config)
    if ranks is None and args.threads is None:
        named = [config.reorganization.active_slaves, config.cluster.sub_group_count, len(config.nodes.speed)]
        slaves = max(slaves, *named, *(c.slave + 1 for c in config.nodes.changes))
    setting = setting_of(job, slaves, ranks, reading)
    setting = dataclasses.replace(setting, crossing=_crossing(setting.plan, args))
    said = explain(setting)
    if args.json:
        columns = None if setting.columns is None else [{"name": n, "type": t} for n, t in setting.columns]
        size = None if ranks is None else ranks.size
        plain = {"slaves": slaves, "ranks": size, "sections": said, "columns": columns, "diagram": diagram(setting)}
        print(json.dumps(plain | {"config": to_plain(given), **job.plan_keys}, indent=2, ensure_ascii=False))
        return 0
    print("\n".join(diagram(setting)))
    for title, sentences in said.items():
        print()
        paragraphs = sentences if title in _LISTS else [" ".join(sentences)]
        lines = [line for text in paragraphs for line in _WRAP.wrap(text)]
        for i, line in enumerate(lines):
            print(f"{title if i == 0 else '':<16}{line}")
    return 0

"""Opens the inputs and outputs of a job: sources, sink, spill folder, watcher.

What: `open_job_sources`, `open_plan_sources`, `static_tables_of`, `input_splits`, `usable_gateways`, `instances_of`,
`plan_output`, `open_job_sink`, `open_spill`, `open_job_watcher`.
Why: all runtimes open them in the same way.
Stays out: the job itself (`config.job`).
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from swjoin.cluster.instances import Instances
from swjoin.cluster.master.split_dealer import span_us
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.run import SORT_NEEDS_FILES, RunConfig
from swjoin.config.sections import check
from swjoin.connectors.files.static_tables import StaticInput, StaticTables
from swjoin.connectors.source import is_split
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.columns import plain_type_named
from swjoin.core.errors import UserError
from swjoin.core.splits import WHOLE, Split
from swjoin.plan import logical
from swjoin.plan.changes import periods
from swjoin.plan.kept_rows import Keyed
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.stages import Stage, cut
from swjoin.plan.subclusters import Subclusters
from swjoin.routing.named import is_placed

if TYPE_CHECKING:
    from swjoin.connectors.output_columns import AnyColumns, RowColumns
    from swjoin.connectors.sink import Sink
    from swjoin.connectors.source import InputSource, Source
    from swjoin.expressions.vm import Program
    from swjoin.monitor.role_watchers import MasterWatcher
    from swjoin.runtime.spill import SpillFolder


def open_job_sources(job: Job, *, as_stored: bool = False) -> tuple[Source, Source]:
    """Both streams of a job: files, live streams, or the generator. UserError when one cannot be opened. as_stored: rows of
    files come in the order of the files, also where the job sorts them: for samples."""
    config = job.config
    carry = config.sink.kind != "count" or config.sink.carry_payload
    query = config.query
    if config.left.path is None and not config.live:
        from swjoin.connectors.generator.source import GeneratorSource

        check(not config.time.sort, SORT_NEEDS_FILES)
        wanted = carry and not query.kind.one_sided, query.where is not None
        return (
            GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry or wanted[1]),
            GeneratorSource(config.workload, config.seed, RIGHT, carry_payload=any(wanted)),
        )
    if config.live:
        from swjoin.connectors.open import open_live_sources

        return open_live_sources(config, job.checkpoints)
    from swjoin.connectors.files.source import open_sources

    time_is_ts = config.time.model == "event"
    left, right, _ = open_sources(
        config.left,
        config.right,
        carry_payload=carry,
        time_is_ts=time_is_ts,
        query=query,
        sort=config.time.sort and not as_stored,
    )
    return left, right


def open_plan_sources(job: Job, plan: logical.LogicalPlan, columns: Mapping[str, Sequence[str]]) -> tuple[InputSource, ...]:
    """The inputs of a plan, one for each of its sources, in the order of its nodes, but for static tables, which are read.
    columns: by name of a source, names of the columns that travel from it; sources that are not in it send none.

    UserError when an input cannot be opened, or has other columns or another time column than its source, when a
    source has no time column, and when the times of inputs that meet in a join or a union cannot be compared.
    """
    inputs = list(zip(_sources_of(job, plan), job.config.inputs, strict=True))
    streams = {source.name for source in cut(plan).sources}
    for node, config in inputs:
        _check_input(node, config, static=node.name not in streams)
    found = {
        node.name: _open_input(job, node, config, columns.get(node.name, ())) for node, config in inputs if node.name in streams
    }
    _check_plan_times(plan, found)
    for node, _ in inputs:
        if node.name not in streams:
            static_tables_of(job, plan)(node.name, tuple(columns.get(node.name, ())))
    return tuple(found.values())


def _open_input(job: Job, node: logical.Source, config: StreamConfig, columns: Sequence[str]) -> InputSource:
    """columns: names of those that travel."""
    if config.live:
        from swjoin.connectors.open import open_live_input

        kept = job.checkpoints
        return open_live_input(job.config, config, node.name, node.columns, columns, kept, whole=job.takes_changes)
    if config.generate is not None:
        from swjoin.connectors.generator.input import GeneratedInput

        return GeneratedInput(config, job.config.workload, job.config.seed, node.name, columns)
    from swjoin.connectors.files.source import open_columns_source

    return open_columns_source(config, columns, sort=job.config.time.sort, name=node.name, expected=node.columns)


_FEW = 3  # named queries, up to which all of them are described in one line
_TABLES: WeakValueDictionary[str, StaticTables] = WeakValueDictionary()  # by run, while something has them


def static_tables_of(job: Job, plan: logical.LogicalPlan) -> StaticTables:
    """The static tables of a job's plan, which this process reads once."""
    found = _TABLES.get(job.run_id)
    if found is None:
        inputs = zip(_sources_of(job, plan), job.config.inputs, strict=True)
        tables = {node.name: StaticInput(config, node.columns) for node, config in inputs if node.time is None}
        found = _TABLES[job.run_id] = StaticTables(tables, job.config.module.window_bytes)
    return found


def _sources_of(job: Job, plan: logical.LogicalPlan) -> list[logical.Source]:
    """The plan's sources. UserError unless the job has an input for each."""
    nodes = [node for node in plan.nodes if isinstance(node, logical.Source)]
    if len(job.config.inputs) != len(nodes):
        names = ", ".join(node.name for node in nodes)
        problem = f"{len(job.config.inputs)} inputs are given, the plan has {len(nodes)} sources ({names})"
        raise UserError(problem, subject="plan", remedy="give one input for each source")
    return nodes


def _check_functions(plan: logical.LogicalPlan) -> None:
    """UserError for a function of a plan that this process cannot call."""
    nodes = [node for node in plan.nodes if isinstance(node, MapBatches)]
    if nodes:
        from swjoin.expressions.batch_map import function_named

        for node in nodes:
            whole = getattr(function_named(node.function), "of_whole_table", False)
            if whole and plan.schema(node.input).time is not None:
                raise UserError(f"{node.description}: is for static tables, and gets the rows of a stream")


def _check_input(source: logical.Source, config: StreamConfig, *, static: bool) -> None:
    """UserError when a source of a plan cannot be read from this input. static: lookups alone read it."""
    if static and config.live:
        raise UserError("its input is live", subject=source.name, remedy="a table that no stream is made of has a path")
    if static and not config.time:
        return
    if source.time is None or source.time == logical.ARRIVAL_TIME:
        problem = "it has no time" if source.time is None else f"its time is {logical.ARRIVAL_TIME}"
        raise UserError(problem, subject=source.name, remedy="rows of files need a time column; name it")
    if config.time != source.time:
        problem = f"its time column is {source.time}, that of its input is {config.time}"
        raise UserError(problem, subject=source.name, remedy="name the same column in both")


def _check_plan_times(plan: logical.LogicalPlan, sources: Mapping[str, InputSource]) -> None:
    """UserError unless all sources that reach the same join or union, on whatever way, have comparable times."""
    from swjoin.connectors.times import check_times

    reaching: dict[str, tuple[str, ...]] = {}
    for node in plan.ordered:
        names = [name for below in node.inputs for name in reaching[below]] or [node.name]
        reaching[node.name] = tuple(name for name in dict.fromkeys(names) if name in sources)  # no static tables
        for left, right in combinations(reaching[node.name], 2):
            check_times(sources[left].time, sources[right].time)


def input_splits(config: RunConfig, sources: Sequence[Source]) -> list[list[Split]]:
    """The inputs in splits; one that a gateway has to read whole is one. config: of the gateways."""
    found = (source.splits(span_us(config)) if is_split(source) else None for source in sources)
    return [[WHOLE] if splits is None else splits for splits in found]


def usable_gateways(config: RunConfig, splits: Sequence[Sequence[Split]]) -> int:
    """How many gateways have something to read."""
    return max(1, min(config.gateway_count, max(map(len, splits))))


def compile_job_where(job: Job, sources: tuple[Source, Source]) -> Program | None:
    """The predicate of a job, over rows as these sources pack them; None where a file without rows leaves the types
    unknown, so that there are no pairs. UserError when its types do not fit."""
    from swjoin.expressions.compiler import compile_text

    if any(getattr(source, "untyped", False) for source in sources):
        return None
    query = job.config.query
    return compile_text(query.where, sources[LEFT].codec, sources[RIGHT].codec, count_windows=query.bounds.count_windows)


def plan_output(instances: Instances) -> AnyColumns:
    """The columns of a plan's result rows."""
    from swjoin.connectors.output_columns import OutputColumns, QueryColumns

    results = instances.stages.results
    if results[0].named:
        queries = tuple((result.name, _row_columns(instances, result)) for result in results)
        dropped = tuple(name for name, (_, until_us) in periods(instances.logical).items() if until_us is not None)
        return QueryColumns(queries, instances.families_of_queries, dropped)
    if instances.of_rows:
        return _row_columns(instances, results[0])
    stage = instances.result_edges[0].sender
    assert isinstance(stage, Stage), "pairs of no join"
    codecs = instances.columns.stages[stage.id].codecs
    return OutputColumns(codecs[LEFT], codecs[RIGHT], instances.config.sink.ids, stage.join.semantics.how)


def _row_columns(instances: Instances, result: logical.Result) -> RowColumns:
    from swjoin.connectors.output_columns import RowColumns

    ids, columns = instances.config.sink.ids, instances.logical.schema(result.input).columns
    taken = [name for name, _ in columns if ids and name in ("row_id", "row_ts")]
    if taken:
        problem = f"its column {taken[0]} has the name that rows' ids have in files"
        raise UserError(problem, subject=result.name, remedy="name it otherwise, or set sink.ids: false")
    types = tuple((name, plain_type_named(kind)) for name, kind in columns)
    return RowColumns(types, ids, result.order)


def open_job_sink(job: Job, plan: AnyColumns, number: int = 0) -> Sink:
    """The sink of this number of a job. UserError when the target cannot be written."""
    from swjoin.connectors.sink import open_sinks

    staged = job.checkpoints is not None
    sink, target = job.config.sink, job.target or Path()
    more: dict[str, Any] = {"staged": staged, "resumes": job.resumes, "kafka": sink.kafka, "run_id": job.run_id}
    return open_sinks(sink.kind, target, plan, share=(number, job.config.sink_count) if job.directory else None, **more)


def open_spill(job: Job) -> SpillFolder | None:
    """The folder to which the master spills tuples, or None. UserError when it cannot be written."""
    from swjoin.runtime.spill import SpillFolder

    overload = job.config.on_overload
    if overload.policy != "spill":
        return None
    folder = Path(overload.directory) if overload.directory else job.run_dir or Path(tempfile.gettempdir())
    return SpillFolder(folder, overload.disk_bytes)


def open_job_watcher(job: Job) -> MasterWatcher | None:
    """The watcher of a monitored run, or None; the dashboard's address is printed, and is in a file of the run until its end.

    UserError when the port is taken, or a library is missing.
    """
    from swjoin.core.version import __version__
    from swjoin.monitor.role_watchers import open_watcher
    from swjoin.runtime.preflight import launcher_size

    config = job.config
    if not config.observed:
        return None
    plan = None if job.plan is None else plan_from_plain(job.plan)
    return open_watcher(
        config,
        {
            "command": job.command,
            "version": __version__,
            "pace": config.pace,
            "runtime": "mpi" if launcher_size() > 1 else "in-process",
            "join": config.query.description if plan is None else _summary(plan),
            "host": platform.node(),
            "distribution_epoch_s": config.cluster.distribution_epoch_us / 1e6,
            "policy": config.reorganization.policy,
            "sink": config.sink.kind,
        },
        job.run_dir,
        STREAM_NAMES if plan is None else [source.name for source in cut(plan).sources],
        {} if plan is None else _descriptions(plan),
    )


def _summary(plan: logical.LogicalPlan) -> str:
    """The stages, lookups and functions of a plan in a line; without them its sources. Of many queries: how many."""
    named = sum(isinstance(node, logical.Result) and node.named for node in plan.nodes)
    if named > _FEW:
        return f"{named:,} queries of {', '.join(source.name for source in cut(plan).sources)}"
    said = []
    for node in plan.ordered:
        if isinstance(node, logical.IntervalJoin):
            said.append(f"{node.name}: {node.left} with {node.right}")
        elif isinstance(node, Keyed):
            said.append(f"{node.name}: {node.description}")
        elif isinstance(node, Lookup | MapBatches):
            said.append(node.description)
    if not said:
        return f"rows of {', '.join(node.name for node in plan.nodes if isinstance(node, logical.Source))}"
    return "; ".join(said)


def _descriptions(plan: logical.LogicalPlan) -> dict[str, str]:
    """What each query that has a name does."""
    order, nodes = {node.name: i for i, node in enumerate(plan.ordered)}, {node.name: node for node in plan.nodes}
    found = {}
    for result in plan.nodes:
        if isinstance(result, logical.Result) and result.named:
            names = sorted(logical.nodes_below(nodes, result.input), key=order.__getitem__)
            found[result.name] = _described([nodes[name] for name in names])
    return found


def _described(nodes: Sequence[logical.Node]) -> str:
    """What the nodes of a query do, each after its inputs."""
    said = [f"rows of {', '.join(node.name for node in nodes if isinstance(node, logical.Source))}"]
    for node in nodes:
        if isinstance(node, logical.Filter):
            said.append(f"where {node.condition}")
        elif isinstance(node, logical.IntervalJoin):
            said.append(f"{node.semantics.how} join, {node.semantics.description}")
        elif isinstance(node, Keyed | Lookup | MapBatches | logical.Within | logical.Period):
            said.append(node.description)
    return "; ".join(said)


def row_place(sources: Sequence[Source], stream: int, row_id: int, names: Sequence[str] = STREAM_NAMES) -> str:
    """File and row of a row id, for error lines. names: of the streams."""
    return f"{names[stream]}: {sources[stream].locate(row_id)}"


def refuse_without_plan(job: Job) -> None:
    """UserError for the join of two streams with a routing, or with a placement by traffic between stages."""
    given, reorganization = job.config.cluster.routing, job.config.reorganization
    if job.plan is not None:
        return
    if reorganization.policy == "network" or reorganization.placement.statistics is not None:
        asked = "placement: statistics" if reorganization.policy != "network" else "reorganization: policy network"
        problem = "places stages of a query by what they send each other, and the join of two streams is one stage"
        raise UserError(problem, subject=asked, remedy="leave it out, or take policy balanced")
    if is_placed(given):
        raise UserError(
            f"routing {given}: a configuration of two streams goes by hash", remedy="leave it out, or write a query"
        )


def sized(job: Job, slaves: int) -> Job:
    """The job with matrices of a size, for a run that starts with so many slave ranks; one that goes on has them already.
    UserError for a routing that its plan cannot have."""
    refuse_without_plan(job)
    if job.plan is None:
        return job
    plan, cluster = plan_from_plain(job.plan), job.config.cluster
    of_size = logical.spread_over(plan, slaves, cluster.partition_count, cluster.routing)
    return job if of_size is plan else replace(job, plan=plan_to_plain(of_size))


def places_of(job: Job, width: int) -> tuple[int, ...]:
    """As `RankMap` has them: of a job's slaves on so many ranks; none without a plan."""
    if job.plan is None:
        return ()
    cluster = job.config.cluster
    return Subclusters.of(cut(plan_from_plain(job.plan), cluster.strategy), width, cluster.strategy, cluster.instances).places


def instances_of(job: Job, width: int, first_epoch: int = 0, owners: Sequence[Sequence[int]] = ()) -> Instances | None:
    """The instances of a job's plan, so many per stage; None for the join of two streams. first_epoch, owners: after a restored
    checkpoint. UserError for a plan that cannot be run."""
    if job.plan is None:
        return None
    plan = plan_from_plain(job.plan)
    _sources_of(job, plan)
    _check_functions(plan)
    tables = static_tables_of(job, plan)
    return Instances.of(plan, job.config.fitted_to(width), width, first_epoch, owners, tables)

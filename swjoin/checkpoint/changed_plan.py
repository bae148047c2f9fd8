"""A checkpoint of a run whose plan has changed: queries were added or dropped.

What: `change_plan(manifest, before, after, plan)`, which writes the manifest anew; `check_change`; `time_of_change`, from
which on an added query has rows.
Why: with it, a run with other queries goes on as any run goes on from its checkpoint, on any runtime and number of ranks: roles
need not know that the plan was another. What stages have done, and the tuples that wait in gateways, are taken over; a new
stage has done nothing, and a new edge has left all rows out that its sender had sent.
Stays out: the plan itself (`plan.changes`), when it changes (`runtime.query_changes`), restoring roles
(`checkpoint.checkpointers`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.checkpoint.manifest import restoring
from swjoin.checkpoint.store import Manifest, checksum, read_gateway, read_manifest, write_gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.controller import Controller
from swjoin.core.batch import I64, TupleBatch, in_memory
from swjoin.core.columns import Columns, type_named
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.core.query_sums import QuerySums
from swjoin.core.row_codec import storage
from swjoin.core.storage import write_whole
from swjoin.plan.changes import latest_change_us
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.sharing import reading
from swjoin.plan.stages import Edge, Stage

FIRST_US = -(1 << 60)
_NOTHING_DONE = {
    "joined": [0, 0],
    "null_key": [0, 0],
    "produced": 0,
    "alive_us": [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US],
    "joined_until_us": [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US],
}


def time_of_change(manifest: Manifest, before: Instances, after: Instances) -> int:
    """The first time that is later than those of all rows and watermarks that gateways have delivered, and not before that of
    the last change. If more columns are read than before, also later than those of all rows that were read, as rows that wait
    have no values in these columns. after: with the change, at any time."""
    states = [gateway["state"] for gateway in manifest.gateways]
    times = [state["newest_us"] for state in states]
    if reads_more(before, after):
        streams = [stream for state in states for stream in state["streams"]]
        times += [stream[name] for stream in streams for name in ("high_us", "arrived_high_us")]
        times += [stream["counts"]["latest_us"] for stream in streams if stream["counts"]["latest_us"] is not None]
    first_us = 1 + max((time for time in times if time < END_OF_TIME_US), default=FIRST_US)
    return max(FIRST_US, first_us, latest_change_us(before.logical) or FIRST_US)


def ended_sources(manifest: Manifest, instances: Instances) -> set[str]:
    """Names of those that have been read to their end by all gateways."""
    streams = [gateway["state"]["streams"] for gateway in manifest.gateways]
    return {source.name for i, source in enumerate(instances.stages.sources) if all(of[i]["ended"] for of in streams)}


def reads_more(before: Instances, after: Instances) -> bool:
    """Whether more columns of some source are read."""
    return before.columns.read != after.columns.read


def check_change(before: Instances, after: Instances) -> None:
    """UserError unless all stages that there are have the same state after a change of the plan."""
    if before.skewed_joins or before.scaled_joins:
        kind = "hot keys" if before.skewed_joins else "units that are added"
        problem = f"a run with {kind} has the queries that it began with"
        raise UserError(problem, subject=f"routing {before.config.cluster.routing}", remedy="start it with another routing")
    stages: dict[str, Stage] = {stage.name: stage for stage in after.stages.stages}
    edges = {_place(edge, number): edge for edge, number in _numbered(after)}
    same = all(
        (now := stages.get(stage.name)) is not None
        and now.schemas == stage.schemas
        and (stage.gathers or _stored(after, now) == _stored(before, stage))
        for stage in before.stages.stages
    )
    for edge, number in _numbered(before):
        later = edges.get(_place(edge, number))
        keeps = isinstance(edge.receiver, Stage) and not edge.receiver.gathers
        travels = before.columns.travels.get(edge.id)
        same &= later is not None and (not keeps or (after.columns.travels.get(later.id) == travels and later.key == edge.key))
    if not same:
        problem = "with this change stages that are there would keep other columns"
        raise UserError(problem, subject="plan", remedy="start a run of the new queries")


def change_plan(
    manifest: Manifest, before: Instances, after: Instances, plan: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> Manifest:
    """Write the manifest anew, of a run with another plan; returns it. plan: as it is saved, of `after`. changes: what is made
    by it, kept until the next checkpoint. Until its new content is in its place in one step, the checkpoint is the old one."""
    folder, plain = manifest.path.parent, dict(manifest.plain)
    with restoring(manifest.path):
        assert manifest.plan is not None, "a checkpoint without a plan"
        stages = {stage.name: int(stage.id) for stage in before.stages.stages}
        numbers = {old: int(stage.id) for stage in after.stages.stages if (old := stages.get(stage.name)) is not None}
        done = manifest.plan.stages
        olds = [stages.get(stage.name) for stage in after.stages.stages]
        plain |= {"plan": plan, "changes": changes or {}}
        plain["stages"] = [_NOTHING_DONE if old is None else done[old] for old in olds]
        plain["segments"] = [{**segment, "stage": numbers[segment["stage"]]} for segment in plain["segments"]]
        edges = _edges(before, after)
        ledger = _renumbered(manifest.plan.edges, edges)
        ledger["filtered"] |= {str(new): [rows] for new, rows in _left_out(ledger, after, edges).items() if rows}
        plain["edges"] = ledger
        plain["master"] = {"state": _master_state(plain["master"]["state"], after, olds)}
        plain["sinks"] = [_sink(sink, before, after) for sink in plain["sinks"]]
        plain["gateways"] = [_gateway(folder, manifest, number, after, edges) for number in range(len(manifest.gateways))]
    plain["checksum"] = checksum(plain)
    write_whole(manifest.path, json.dumps(plain).encode())
    return read_manifest(manifest.path)


def _stored(instances: Instances, stage: Stage) -> object:
    """What a stage with the same state has in common: what it stores, or what it computes, but not the name of its input."""
    columns = instances.columns.stages[stage.id]
    if isinstance(stage.node, MultiwayJoin):
        assert isinstance(columns.keyed, MultiwayColumns), "a multiway join without its columns"
        bounds = [times.tolist() for times in stage.node.bounds]
        return columns.keyed.keys, columns.keyed.slots, columns.keyed.parts, bounds
    return [codec.columns for codec in columns.codecs] if stage.joins else reading(stage.node, defaultdict(str))


def _place(edge: Edge, number: int) -> tuple[str, str, int, int]:
    return edge.sender.name, edge.receiver.name, edge.port, number


def _numbered(instances: Instances) -> Iterator[tuple[Edge, int]]:
    """Edges, numbered among those between the same sender and port, as those of a union with itself."""
    seen: dict[tuple[str, str, int], int] = {}
    for edge in instances.stages.edges:
        way = edge.sender.name, edge.receiver.name, edge.port
        seen[way] = seen.get(way, -1) + 1
        yield edge, seen[way]


def _edges(before: Instances, after: Instances) -> dict[int, int]:
    """The numbers that edges have now."""
    now = {_place(edge, number): int(edge.id) for edge, number in _numbered(after)}
    return {int(edge.id): now[_place(edge, number)] for edge, number in _numbered(before)}


def _renumbered(ledger: Mapping[str, Mapping[str, Sequence[int]]], edges: Mapping[int, int]) -> dict[str, dict[str, list[int]]]:
    """As of `EdgeLedger.to_plain`."""
    return {what: {str(edges[int(edge)]): list(entry) for edge, entry in by.items()} for what, by in ledger.items()}


def _left_out(ledger: Mapping[str, Mapping[str, Sequence[int]]], after: Instances, edges: Mapping[int, int]) -> dict[int, int]:
    """By new edge, the rows that its sender had sent over others before."""
    known, found = set(edges.values()), {}
    for edge in after.stages.edges:
        if int(edge.id) in known or not isinstance(edge.receiver, Stage):
            continue
        earlier = (other for other in after.stages.edges if other.sender == edge.sender and int(other.id) in known)
        other = next((other for other in earlier if isinstance(other.receiver, Stage)), None)
        if other is not None:
            found[int(edge.id)] = sum(ledger[what].get(str(other.id), [0])[0] for what in ("sent", "null_keys", "filtered"))
    return found


def _master_state(state: Mapping[str, Any], after: Instances, olds: Sequence[int | None]) -> dict[str, Any]:
    """olds: by stage, its number before."""
    saved = [state["controller"], *state.get("more_stages", [])]
    controllers = []
    for stage, old in enumerate(olds):
        new = Controller(after.config, after.subclusters.counts[stage], stage, len(olds)).plain_state()
        if old is not None:
            finished = (saved[old]["next_number"] - old) // len(saved)  # the numbers of a stage's moves say how many there were
            new = {**saved[old], "next_number": stage + finished * len(olds)}
        controllers.append(new)
    first, *more = controllers
    kept = {key: value for key, value in state.items() if key not in ("more_stages", "traffic")}  # traffic is measured anew
    return {**kept, "controller": first, **({"more_stages": more} if more else {})}


def _sink(plain: Mapping[str, Any], before: Instances, after: Instances) -> dict[str, Any]:
    """A sink's part, with sums by query: new queries have the next numbers. Those of queries that share rows are of the rows
    that each is the first of its family to have, and families have changed."""
    state = plain["state"]
    table = np.array(state["tally"].get("queries", []), np.uint64).reshape(-1, 3)
    whole = QuerySums.of_table(table, after.query_count).of_families(_families(before))
    tally = {**state["tally"], "queries": whole.by_first(_families(after)).to_table().tolist()}
    return {**plain, "state": {**state, "tally": tally}}


def _families(instances: Instances) -> list[I64]:
    return [np.array(family, np.int64) for family in instances.families_of_queries]


def _gateway(folder: Path, manifest: Manifest, number: int, after: Instances, edges: Mapping[int, int]) -> dict[str, Any]:
    """A gateway's part, whose tuples have the columns that travel now."""
    part = manifest.gateways[number]
    snapshot = read_gateway(folder, part)
    sources = after.stages.sources

    def fitted(what: str, batch: TupleBatch) -> TupleBatch:
        source = sources[int(what.rpartition(" ")[0].removeprefix("source "))]
        return replace(batch, columns=_widened(batch.columns, after.columns.read[source.name], dict(source.columns)))

    tuples = {what: [fitted(what, in_memory(batch)) for batch in batches] for what, batches in snapshot.tuples.items()}
    state = {**snapshot.plain, "edges": _renumbered(snapshot.plain["edges"], edges)}
    incarnation = int(manifest.plain["incarnation"]) + 1
    path = folder / f"gateway-{incarnation:04d}-{number:04d}-{manifest.generation:06d}.frames"
    extra = {name: part[name] for name in ("late", "keys", "positions")}
    return write_gateway(path, replace(snapshot, plain=state, tuples=tuples), extra)


def _widened(columns: Columns | None, names: Sequence[str], types: Mapping[str, str]) -> Columns | None:
    """With nulls in columns that only new queries read, which leave these rows out."""
    import pyarrow as pa

    if columns is None or columns.names == list(names):
        return columns
    found = {name: columns.batch.column(name) for name in columns.names}
    made = [found.get(name, pa.nulls(len(columns), storage(type_named(types[name])))) for name in names]
    return Columns(pa.RecordBatch.from_arrays(made, names=list(names)))

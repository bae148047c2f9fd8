"""Stages, edges and sources of a plan in run.json, and their ledger.

What: `plan_counts(instances, gateways, slaves, collector) -> PlanCounts`.
Why: every row that a source gave is sent over each of its edges, every edge's rows arrive, every stage joins what arrived, and
the sink has what the last stage produced; one place finds what is missing.
Stays out: the other fields of run.json (`runtime.run_report`), counting (`cluster.edge_ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swjoin.checkpoint.store import PlanState
from swjoin.cluster.edge_ledger import summed
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import StreamCounts
from swjoin.plan.logical import Source
from swjoin.plan.stages import Edge, Stage
from swjoin.runtime.traffic_report import Places, edge_traffic

_Plain = dict[str, Any]


@dataclass(frozen=True)
class PlanCounts:
    """stages, edges, queries: as in run.json; queries only where they have names. sources: by name. produced: rows of the
    results. complaints: a line per imbalance."""

    stages: list[_Plain]
    edges: list[_Plain]
    sources: dict[str, StreamCounts]
    produced: int
    complaints: list[str]
    queries: list[_Plain]


def plan_counts(
    instances: Instances,
    gateways: Sequence[_Plain],
    slaves: Sequence[_Plain],
    collector: _Plain,
    before: PlanState | None = None,
    ranks: Sequence[_Plain] = (),
) -> PlanCounts:
    """gateways, slaves, collector: summaries of these roles. before: at the restored checkpoint. ranks: with their hosts."""
    complaints: list[str] = []
    inner = [edge for edge in instances.stages.edges if isinstance(edge.receiver, Stage)]
    ledger = summed([*(role["edges"] for role in [*gateways, *slaves]), *([] if before is None else [before.edges])])
    traffic = edge_traffic(Places.of(instances, ranks), gateways, slaves)
    edges = [{**_edge(edge, ledger), "traffic": traffic[edge.id]} for edge in inner]
    for edge in edges:
        if edge["sent"] != edge["received"]:
            complaints.append(f"edge {edge['edge']}: {edge['sent']} sent, {edge['received']} received")
        then = 0 if before is None else before.edges["sent"].get(str(edge["edge"]), [0])[0]
        ways = sum(way["rows"] for way in edge["traffic"].values())
        if ways != edge["sent"]["rows"] - then:
            complaints.append(f"edge {edge['edge']}: {edge['sent']['rows'] - then} rows sent, {ways} within and between ranks")
    stages = [_stage(instances, stage, edges, slaves, before) for stage in instances.stages.stages]
    for stage in stages:
        for name in STREAM_NAMES:
            came, joined, null_key = (stage[what][name] for what in ("received", "joined", "null_key"))
            if came != joined + null_key:
                complaints.append(f"stage {stage['stage']}: {came} {name} rows came, {joined} joined, {null_key} without a key")
    out = {instances.stages.stages[stage["stage"]].name: stage["produced"] for stage in stages}
    sources = {source.name: _source(source, gateways) for source in instances.stages.sources}
    for name, counts in sources.items():
        out[name] = counts.tuples - counts.late - counts.shed
        counts.joined = out[name]
    for edge in edges:
        sent = edge["sent"]["rows"] + edge["null_key"] + edge["filtered"]
        if sent != out[edge["from"]]:
            complaints.append(f"edge {edge['edge']}: {edge['from']} gave {out[edge['from']]} rows, {sent} were sent or dropped")
    dropped = [ledger["filtered"].get(str(edge.id), [0])[0] for edge in instances.result_edges]
    produced = [out[edge.sender.name] - rows for edge, rows in zip(instances.result_edges, dropped, strict=True)]
    if sum(produced) != collector["count"]:
        complaints.append(f"results: slaves produced {sum(produced)}, the collector collected {collector['count']}")
    if not instances.query_count:
        (sender,) = (stage for stage in stages if stage["join"] == instances.result_edges[0].sender.name)
        sender["filtered"] = dropped[0]
    queries = []
    for result, rows, filtered, sums in zip(instances.stages.results, produced, dropped, collector["queries"], strict=False):
        queries.append({"name": result.name, **sums, "produced": rows, "filtered": filtered})
        if rows != sums["count"]:
            complaints.append(f"query {result.name}: slaves produced {rows}, the collector collected {sums['count']}")
    return PlanCounts(stages, edges, sources, sum(produced), complaints, queries)


def _edge(edge: Edge, ledger: dict[str, dict[str, list[int]]]) -> _Plain:
    found = {side: by.get(str(edge.id), [0, 0, 0]) for side, by in ledger.items()}
    sides = {side: {"rows": found[side][0], "digest": format_digest(found[side][1])} for side in ("sent", "received")}
    assert isinstance(edge.receiver, Stage)
    return {
        "edge": int(edge.id),
        "from": edge.sender.name,
        "to": edge.receiver.name,
        "port": STREAM_NAMES[edge.port],
        "key": list(edge.key),
        **sides,
        "bytes": found["sent"][2],
        "null_key": found["null_keys"][0],  # left out by the sender, as they match nothing
        "filtered": found["filtered"][0],
    }


def _stage(
    instances: Instances, stage: Stage, edges: Sequence[_Plain], slaves: Sequence[_Plain], before: PlanState | None
) -> _Plain:
    mine = [slave for slave in slaves if slave["stage"] == stage.id]
    then: _Plain = {"joined": [0, 0], "null_key": [0, 0], "produced": 0} if before is None else before.stages[stage.id]
    received = dict.fromkeys(STREAM_NAMES, 0)
    for edge in edges:
        if edge["to"] == stage.name:
            received[edge["port"]] += edge["received"]["rows"]
    return {
        "stage": int(stage.id),
        "join": stage.name,
        "description": stage.description,
        "slaves": [int(slave) for slave in instances.slaves_of(stage)],
        "received": received,
        **{
            what: {name: then[what][i] + sum(slave[what][name] for slave in mine) for i, name in enumerate(STREAM_NAMES)}
            for what in ("joined", "null_key")
        },
        "filtered": 0,  # of the rows that it produced, those that filters at the end of the plan drop
        "produced": then["produced"] + sum(int(slave["produced"]) for slave in mine),
        "matches": sum(int(slave["matches"]) for slave in mine) if before is None else None,
        "peak_window_bytes": [int(slave["windows"]["peak_bytes"]) for slave in mine],
        "peak_window_tuples": [slave["peak_window_tuples"] for slave in mine],
        "work_s": [slave["join_cpu_us"] / 1e6 for slave in mine],
        "work_rows": [sum(slave["joined"].values()) + int(slave["produced"]) for slave in mine],
    }


def _source(source: Source, gateways: Sequence[_Plain]) -> StreamCounts:
    counts = Gateway.merged(gateways)["counts"]
    fields = ("tuples", "late", "shed", "earliest_us", "latest_us")
    tuples, late, shed, earliest_us, latest_us = (counts[field][source.name] for field in fields)
    return StreamCounts(tuples, 0, 0, late, shed, earliest_us, latest_us)

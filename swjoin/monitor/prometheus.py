"""A snapshot as Prometheus metrics.

What: `exposition(snapshot) -> (bytes, content type)`.
Why: sites that monitor with Prometheus can scrape a run; metric names carry their units, as is the custom there.
Stays out: serving (`monitor.web`), the content of a snapshot (`monitor.status_board`).

After a recovery counters return to their values at the checkpoint: a counter reset, which Prometheus' `rate` handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from swjoin.monitor.query_results import LISTED

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PHASES = ("starting", "history", "running", "recovering", "ended", "stopped", "failed")
_STREAM_COUNTERS = {
    "tuples": ("swjoin_tuples", "Tuples read."),
    "null_key": ("swjoin_null_key_tuples", "Tuples read that have a null key."),
    "late": ("swjoin_late_tuples", "Tuples read that were too late or have no time."),
    "shed": ("swjoin_shed_tuples", "Tuples dropped because the mini-buffers were full."),
}
_SLAVE_GAUGES = {
    "occupancy_ratio": ("swjoin_occupancy_ratio", "Stream buffer: buffered bytes by capacity, as last reported."),
    "busy_ratio": ("swjoin_slave_busy_ratio", "Share of the time inside the join module, over the last seconds."),
    "cpu_ratio": ("swjoin_slave_cpu_ratio", "CPU time by time, over the last seconds."),
    "window_bytes": ("swjoin_window_bytes", "Window state of both streams."),
    "window_tuples": ("swjoin_window_tuples", "Tuples in the windows of both streams."),
    "groups": ("swjoin_partition_groups", "Partition-groups that a slave owns."),
    "active": ("swjoin_slave_active", "1 for an active slave, 0 for an inactive one."),
}
_BUFFERS = {
    "waiting_bytes": ("swjoin_waiting_bytes", "Bytes that wait at all gateways."),
    "spilled_bytes": ("swjoin_spilled_bytes", "Bytes that gateways have spilled to disk."),
    "parked_bytes": ("swjoin_parked_bytes", "Bytes that wait at gateways for slaves whose stream buffer is full."),
}


def exposition(snapshot: dict[str, Any]) -> tuple[bytes, str]:
    """The text format and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class _Snapshot(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(snapshot)

    registry = CollectorRegistry()
    registry.register(_Snapshot())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _metrics(snapshot: dict[str, Any]) -> Iterator[Metric]:
    yield from _run(snapshot["run"])
    yield from _streams({name: stream for name, stream in snapshot["streams"].items() if stream is not None})
    if len(snapshot["gateways"]) > 1:
        yield from _gateways(snapshot["gateways"])
    for key, (name, text) in _BUFFERS.items():
        yield from _gauge(name, text, (snapshot["buffers"] or {}).get(key))
    yield from _results(snapshot["results"] or {})
    queries = snapshot["queries"]
    if queries["count"] <= LISTED:  # of more, it changes which are listed
        rows = [(of["name"], of["rows"]) for of in queries["listed"]]
        yield from _counters("swjoin_query_rows", "Rows of a query's result.", "query", rows)
    yield from _delays(snapshot["delay_s"] or {})
    of_plan = bool(snapshot["edges"])
    for key, (name, text) in _SLAVE_GAUGES.items():
        yield from _labelled(name, text, [(_labels_of(slave, of_plan=of_plan), slave[key]) for slave in snapshot["slaves"]])
    if of_plan:
        yield from _stages(snapshot["stages"])
        yield from _edges(snapshot["edges"])
    yield from _moves(snapshot["moves"] or {}, in_flight=len(snapshot["map"]["moving"]))
    yield from _checkpoints(snapshot["checkpoints"] or {})
    yield from _sources(snapshot["sources"])


# ---------------------------------------------------------------- one metric; values that are not known are left out


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    if value is not None:
        yield GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float | None) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    if value is not None:
        yield CounterMetricFamily(name, text, value=float(value))


def _labelled(
    name: str, text: str, values: Sequence[tuple[dict[str, str], float | None]], *, counter: bool = False
) -> Iterator[Metric]:
    """A value for each set of labels, which have the same names."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    known = [(labels, value) for labels, value in values if value is not None]
    if known:
        family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=list(known[0][0]))
        for labels, value in known:
            family.add_metric(list(labels.values()), float(value))
        yield family


def _gauges(name: str, text: str, label: str, values: Sequence[tuple[str, float | None]]) -> Iterator[Metric]:
    return _labelled(name, text, [({label: of}, value) for of, value in values])


def _counters(name: str, text: str, label: str, values: Sequence[tuple[str, float | None]]) -> Iterator[Metric]:
    return _labelled(name, text, [({label: of}, value) for of, value in values], counter=True)


# ---------------------------------------------------------------- the parts of a snapshot


def _run(run: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    yield InfoMetricFamily("swjoin_run", "What runs.", value={name: str(run[name]) for name in ("version", "pace", "runtime")})
    yield from _gauges("swjoin_phase", "1 for the phase of the run.", "phase", [(p, p == run["phase"]) for p in PHASES])
    yield from _gauge("swjoin_clock_seconds", "The run's clock.", run["clock_s"])
    yield from _gauge("swjoin_distribution_epoch", "Number of the current distribution epoch.", run["epoch"])
    yield from _gauge("swjoin_active_slaves", "Degree of declustering.", run["active_slaves"])
    yield from _counter("swjoin_recoveries", "Recoveries from the death of ranks.", run["recoveries"])


def _streams(streams: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    for key, (name, text) in _STREAM_COUNTERS.items():
        yield from _counters(name, text, "stream", [(n, s[key]) for n, s in streams.items()])
    gauges: dict[str, tuple[str, Callable[[dict[str, Any]], float | None]]] = {
        "swjoin_waiting_tuples": ("Tuples read and not delivered.", lambda s: s["waiting_tuples"]),
        "swjoin_stream_idle": ("1 for an idle stream.", lambda s: s["idle"]),
        "swjoin_stream_time_seconds": (
            "Highest time read, on the stream's time axis.",
            lambda s: None if s["time_us"] is None else s["time_us"] / 1e6,
        ),
        "swjoin_unaccounted_tuples": ("Tuples that the ledger misses; 0 in a right run.", lambda s: s["ledger"]["unaccounted"]),
    }
    for name, (text, value) in gauges.items():
        yield from _gauges(name, text, "stream", [(n, value(s)) for n, s in streams.items()])


def _gateways(gateways: list[dict[str, Any]]) -> Iterator[Metric]:
    """Of each of several gateways."""
    streams = [({"gateway": str(g["gateway"]), "stream": name}, of) for g in gateways for name, of in g["streams"].items()]
    text = "Tuples that a gateway has read."
    yield from _labelled("swjoin_gateway_tuples", text, [(labels, of["tuples"]) for labels, of in streams], counter=True)
    times = [(labels, None if of["watermark_us"] is None else of["watermark_us"] / 1e6) for labels, of in streams]
    yield from _labelled(
        "swjoin_gateway_watermark_seconds", "No later tuple that a gateway reads has a time below this.", times
    )
    text = "1 for a gateway that waits until it is dealt a split."
    waits = [(labels, of["waits_for_split"]) for labels, of in streams]
    yield from _labelled("swjoin_gateway_waits_for_split", text, waits)
    waiting = [(str(g["gateway"]), g["waiting_bytes"]) for g in gateways]
    yield from _gauges("swjoin_gateway_waiting_bytes", "Bytes that wait at a gateway.", "gateway", waiting)


def _labels_of(slave: dict[str, Any], *, of_plan: bool) -> dict[str, str]:
    return {"slave": str(slave["slave"])} | ({"stage": str(slave["stage"])} if of_plan else {})


def _stages(stages: list[dict[str, Any]]) -> Iterator[Metric]:
    labels = {stage["stage"]: {"stage": str(stage["stage"]), "join": stage["join"]} for stage in stages}
    ports = [({**labels[s["stage"]], "port": port}, rows) for s in stages for port, rows in s["joined"].items()]
    yield from _labelled("swjoin_stage_joined_rows", "Rows that a stage has joined.", ports, counter=True)
    counters = {
        "produced": ("swjoin_stage_produced_rows", "Rows that a stage has produced."),
        "moves": ("swjoin_stage_moves", "Moves of a stage's partition-groups that have ended."),
    }
    for key, (name, text) in counters.items():
        yield from _labelled(name, text, [(labels[s["stage"]], s[key]) for s in stages], counter=True)
    text = "Last distribution epoch that all active slaves of a stage have joined."
    yield from _labelled("swjoin_stage_epoch", text, [(labels[s["stage"]], s["epoch"]) for s in stages])


def _edges(edges: list[dict[str, Any]]) -> Iterator[Metric]:
    labels = {e["edge"]: {name: str(e[name]) for name in ("edge", "from", "to", "port")} for e in edges}
    counters = {
        "rows": ("swjoin_edge_rows", "Rows that an edge's receivers have taken."),
        "bytes": ("swjoin_edge_bytes", "Bytes of these rows."),
        "between_ranks_bytes": ("swjoin_edge_between_ranks_bytes", "Of these, the bytes between slave ranks."),
    }
    for key, (name, text) in counters.items():
        yield from _labelled(name, text, [(labels[e["edge"]], e[key]) for e in edges], counter=True)
    text = "Distribution epochs by which an edge's sender is ahead of its receivers."
    yield from _labelled("swjoin_edge_epochs_ahead", text, [(labels[e["edge"]], e["epochs_ahead"]) for e in edges])
    text = "Rows that wait at gateways for credit of an edge's receivers."
    yield from _labelled("swjoin_edge_waiting_rows", text, [(labels[e["edge"]], e["waiting_rows"]) for e in edges])


def _results(results: dict[str, Any]) -> Iterator[Metric]:
    yield from _counter("swjoin_results", "Pairs that the collector has received.", results.get("pairs"))
    text = "Last distribution epoch that all slaves have joined."
    yield from _gauge("swjoin_committed_epoch", text, results.get("committed_epoch"))


def _delays(delays: dict[str, Any]) -> Iterator[Metric]:
    """Quantiles of the production delay. Label `span`: the pairs they cover."""
    from prometheus_client.core import GaugeMetricFamily

    text = "Production delay; span `recent`: pairs since the last sample, `all`: of the whole run."
    family = GaugeMetricFamily("swjoin_production_delay_seconds", text, labels=["span", "quantile"])
    for span in ("recent", "all"):
        for name, quantile in (("p50", "0.5"), ("p99", "0.99")):
            value = (delays.get(span) or {}).get(name)
            if value is not None:
                family.add_metric([span, quantile], value)
    if family.samples:
        yield family


def _moves(moves: dict[str, Any], *, in_flight: int) -> Iterator[Metric]:
    yield from _counter("swjoin_moves", "Moves of partition-groups that have ended.", moves.get("finished"))
    yield from _counter("swjoin_moved_bytes", "Window state that moves have transferred.", moves.get("state_bytes"))
    yield from _gauge("swjoin_moves_in_flight", "Moves of partition-groups under way.", in_flight)


def _checkpoints(checkpoints: dict[str, Any]) -> Iterator[Metric]:
    yield from _counter("swjoin_checkpoints", "Checkpoints that are durable.", checkpoints.get("completed"))
    yield from _gauge("swjoin_checkpoint_age_seconds", "Time since the start of the last checkpoint.", checkpoints.get("age_s"))
    text = "Time from the last checkpoint's cut until it was durable."
    yield from _gauge("swjoin_checkpoint_duration_seconds", text, checkpoints.get("last_s"))
    yield from _gauge("swjoin_checkpoint_bytes", "Bytes of the last checkpoint.", checkpoints.get("bytes"))


def _sources(sources: dict[str, dict[str, float]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily("swjoin_source", "A live source's own figures.", labels=["stream", "name"])
    for stream, values in sources.items():
        for name, value in values.items():
            family.add_metric([stream, name], float(value))
    if family.samples:
        yield family

"""A snapshot as Prometheus metrics.

What: `exposition(snapshot) -> (bytes, content type)`.
Why: whoever watches many things with Prometheus wants this one there, too; names have their units, as is the custom there.
Stays out: serving (`monitor.web`), what a snapshot holds (`monitor.status_board`).

Counters go back after a recovery, to where the checkpoint was; for Prometheus that is a counter's reset, which `rate` knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
    "active": ("swjoin_slave_active", "1 for a slave that is active, 0 for one that rests."),
}
_BUFFERS = {
    "waiting_bytes": ("swjoin_waiting_bytes", "Bytes that wait at the master."),
    "spilled_bytes": ("swjoin_spilled_bytes", "Bytes that the master has spilled to disk."),
    "parked_bytes": ("swjoin_parked_bytes", "Bytes that wait at the master for slaves without room."),
}


def exposition(snapshot: dict[str, Any]) -> tuple[bytes, str]:
    """The text format and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class _Once(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(snapshot)

    registry = CollectorRegistry()
    registry.register(_Once())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _metrics(snapshot: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    def gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
        if value is not None:
            yield GaugeMetricFamily(name, text, value=float(value))

    def counter(name: str, text: str, value: float | None) -> Iterator[Metric]:
        if value is not None:
            yield CounterMetricFamily(name, text, value=float(value))

    def labelled(kind: Any, name: str, text: str, label: str, values: Sequence[tuple[str, float | None]]) -> Iterator[Metric]:
        family = kind(name, text, labels=[label])
        for of, value in values:
            if value is not None:
                family.add_metric([of], float(value))
        if family.samples:
            yield family

    run = snapshot["run"]
    yield InfoMetricFamily("swjoin_run", "What runs.", value={name: str(run[name]) for name in ("version", "pace", "runtime")})
    yield from labelled(
        GaugeMetricFamily, "swjoin_phase", "1 for the phase of the run.", "phase", [(p, p == run["phase"]) for p in PHASES]
    )
    yield from gauge("swjoin_clock_seconds", "The run's clock.", run["clock_s"])
    yield from gauge("swjoin_distribution_epoch", "Number of the current distribution epoch.", run["epoch"])
    yield from gauge("swjoin_active_slaves", "Degree of declustering.", run["active_slaves"])
    yield from counter("swjoin_recoveries", "Recoveries from the death of slaves.", run["recoveries"])

    streams = [(name, stream) for name, stream in snapshot["streams"].items() if stream is not None]
    for key, (name, text) in _STREAM_COUNTERS.items():
        yield from labelled(CounterMetricFamily, name, text, "stream", [(n, s[key]) for n, s in streams])
    waiting = [(n, s["waiting_tuples"]) for n, s in streams]
    yield from labelled(GaugeMetricFamily, "swjoin_waiting_tuples", "Tuples read and not delivered.", "stream", waiting)
    idle = [(n, float(s["idle"])) for n, s in streams]
    yield from labelled(GaugeMetricFamily, "swjoin_stream_idle", "1 for a stream that has fallen silent.", "stream", idle)
    times = [(n, None if s["time_us"] is None else s["time_us"] / 1e6) for n, s in streams]
    yield from labelled(
        GaugeMetricFamily, "swjoin_stream_time_seconds", "Highest time read, on the stream's time axis.", "stream", times
    )
    missing = [(n, s["ledger"]["unaccounted"]) for n, s in streams]
    yield from labelled(
        GaugeMetricFamily, "swjoin_unaccounted_tuples", "Tuples that the ledger misses; 0 in a right run.", "stream", missing
    )
    for key, (name, text) in _BUFFERS.items():
        yield from gauge(name, text, (snapshot["buffers"] or {}).get(key))

    results = snapshot["results"] or {}
    yield from counter("swjoin_results", "Pairs that the collector has received.", results.get("pairs"))
    yield from gauge(
        "swjoin_committed_epoch", "Last distribution epoch that all slaves have joined.", results.get("committed_epoch")
    )
    yield from _delays(snapshot["delay_s"] or {})
    for key, (name, text) in _SLAVE_GAUGES.items():
        rows = [(str(s["slave"]), s[key]) for s in snapshot["slaves"]]
        yield from labelled(GaugeMetricFamily, name, text, "slave", rows)

    moves = snapshot["moves"] or {}
    yield from counter("swjoin_moves", "Moves of partition-groups that have ended.", moves.get("finished"))
    yield from counter("swjoin_moved_bytes", "Window state that moves have carried.", moves.get("state_bytes"))
    yield from gauge("swjoin_moves_in_flight", "Partition-groups on their way.", len(snapshot["map"]["moving"]))
    checkpoints = snapshot["checkpoints"] or {}
    yield from counter("swjoin_checkpoints", "Checkpoints that are durable.", checkpoints.get("completed"))
    yield from gauge("swjoin_checkpoint_age_seconds", "Time since the last checkpoint began.", checkpoints.get("age_s"))
    yield from gauge(
        "swjoin_checkpoint_duration_seconds", "From its cut until the last one was durable.", checkpoints.get("last_s")
    )
    yield from gauge("swjoin_checkpoint_bytes", "Bytes of the last checkpoint.", checkpoints.get("bytes"))

    family = GaugeMetricFamily("swjoin_source", "What a source tells of itself.", labels=["stream", "name"])
    for stream, values in snapshot["sources"].items():
        for name, value in values.items():
            family.add_metric([stream, name], float(value))
    if family.samples:
        yield family


def _delays(delays: dict[str, Any]) -> Iterator[Metric]:
    """Quantiles of the production delay; `span` tells of which pairs."""
    from prometheus_client.core import GaugeMetricFamily

    text = "Production delay; span `recent`: of pairs since the last look, `all`: of the whole run."
    family = GaugeMetricFamily("swjoin_production_delay_seconds", text, labels=["span", "quantile"])
    for span in ("recent", "all"):
        for name, quantile in (("p50", "0.5"), ("p99", "0.99")):
            value = (delays.get(span) or {}).get(name)
            if value is not None:
                family.add_metric([span, quantile], value)
    if family.samples:
        yield family

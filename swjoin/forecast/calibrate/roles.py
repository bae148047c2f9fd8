"""Calibration of the cost model on this machine, with the real roles and kernels.

What: `calibrate(quick, tell) -> (CostModel, lines)`.
Why: a forecast is as accurate as its costs; measuring them takes a minute.
Stays out: using them (`forecast.model.run`), two processes at once (`forecast.calibrate.link`).

A slave joins workloads that differ in skew, theta, window and distribution epoch; its time per delivery is fitted by
deliveries, tuples, visits, comparisons and pairs: least squares of relative errors, with no cost below zero. The master's time
is fitted by tuples, bytes and messages. Other costs are timed one by one. Every figure is CPU work of one process with the data
in memory.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import EpochClosed, EpochWanted, Report
from swjoin.cluster.role import (
    GATEWAY,
    MASTER,
    BatchRead,
    Effect,
    Event,
    Finish,
    Log,
    Read,
    Received,
    Role,
    RoleId,
    Send,
    SourceEnded,
    UnknownEffectError,
    WorkDue,
    gateway_role,
    slave_role,
)
from swjoin.cluster.slave.results import receipts
from swjoin.cluster.slave.slave import Slave
from swjoin.cluster.wire import (
    FORMATS,
    pack_delivery,
    pack_results,
    pack_state,
    unpack_control,
    unpack_delivery,
    unpack_results,
    unpack_state,
)
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig, SinkConfig, WorkloadConfig
from swjoin.connectors.generator.source import GeneratorSource
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, Pairs, RowLayout, SourceBatch, TupleBatch
from swjoin.core.data_messages import Delivery, ResultChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.calibrate.realtime import realtime_costs
from swjoin.forecast.costs import PRESETS, CostModel
from swjoin.monitor.process_settings import keep_freed_memory
from swjoin.operators.join_operator import MoveId
from swjoin.runtime.host import Performers, nothing, perform, settled
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun

F64 = NDArray[np.float64]

# name, rate per stream, window s, seconds, bias, theta bytes, distribution epoch s
_WORKLOADS = (
    ("reference", 100_000, 5.0, 12.0, 0.7, 32 << 10, 0.5),
    ("uniform keys", 100_000, 5.0, 12.0, 0.5, 32 << 10, 0.5),
    ("skewed keys", 25_000, 5.0, 12.0, 0.8, 32 << 10, 0.5),
    ("large theta", 50_000, 5.0, 12.0, 0.7, 512 << 10, 0.5),
    ("no fine tuning", 20_000, 5.0, 15.0, 0.7, 0, 0.5),
    ("short epochs", 50_000, 10.0, 18.0, 0.7, 32 << 10, 0.05),
    ("small deliveries", 5_000, 20.0, 50.0, 0.7, 32 << 10, 0.1),
    ("empty deliveries", 500, 5.0, 40.0, 0.7, 32 << 10, 0.1),
)
_MANY_SLAVES = (64, 1024)


def least_squares(rows: F64, seconds: F64, names: tuple[str, ...]) -> dict[str, float]:
    """Costs per unit, none below zero, that explain `seconds` best by relative error. rows: float64 (samples, names)."""
    weight = 1 / seconds
    kept = list(range(len(names)))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, kept] * weight[:, None], seconds * weight, rcond=None)
        if (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    out = dict.fromkeys(names, 0.0)
    out.update({names[i]: float(v) for i, v in zip(kept, found, strict=True)})
    return out


def _config(rate: float, window_s: float, seconds: float, bias: float, theta: int, epoch_s: float, **sink: Any) -> RunConfig:
    payload_bytes = sink.pop("payload", 48)
    return config_from_plain(
        {
            "join": {"within": f"{int(window_s * 1e6)}us"},
            "workload": {"rate": rate, "duration_us": int(seconds * 1e6), "bias": bias, "payload_bytes": payload_bytes},
            "cluster": {"distribution_epoch_us": int(epoch_s * 1e6), "mini_buffer": "2GB"},
            "module": {"theta_bytes": theta, "window": "4GB", "stream_buffer": "1GB"},
            "sink": sink or {"kind": "count"},
        }
    )


def _batches(config: RunConfig) -> tuple[list[list[SourceBatch]], tuple[RowLayout | None, RowLayout | None]]:
    """All batches of both generators, and their layouts."""
    with_payload = config.sink.kind != "count" or config.sink.carry_payload
    sources = [GeneratorSource(config.workload, config.seed, s, carry_payload=with_payload) for s in (LEFT, RIGHT)]
    out: list[list[SourceBatch]] = []
    for source in sources:
        out.append([])
        while (batch := source.read()) is not None:
            out[-1].append(batch)
    return out, (sources[LEFT].layout, sources[RIGHT].layout)


def _run_master(config: RunConfig, slave_count: int) -> tuple[list[Any], float, tuple[int, int, int], Any]:
    """All frames of a run, the master's seconds, its (tuples, bytes, messages), and the layouts."""
    batches, layouts = _batches(config)
    queues = [iter(b) for b in batches]
    gateway = Gateway(config, slave_count, layouts)
    roles: dict[RoleId, Role] = {MASTER: Master(config, slave_count), GATEWAY: gateway}
    frames: list[Any] = []
    clock = time.thread_time
    counts = [0, 0, 0]
    wanted: list[Effect] = []

    def answer(event: Event) -> None:
        wanted.extend(settled(roles, GATEWAY, gateway.handle(event, 0), 0))

    def read(effect: Read) -> None:
        batch = next(queues[effect.stream], None)
        answer(SourceEnded(effect.stream) if batch is None else BatchRead(effect.stream, batch))

    def send(effect: Send) -> None:
        delivery = effect.message
        assert isinstance(delivery, Delivery)
        frames.append(pack_delivery(delivery))
        counts[0] += len(delivery.left) + len(delivery.right)
        counts[1] += delivery.nbytes
        counts[2] += 1
        answer(Received(effect.to, Report(0.0)))

    performers: Performers = {Read: read, Send: send, Log: nothing, Finish: nothing}
    start = clock()
    wanted.extend(settled(roles, GATEWAY, gateway.start(), 0))
    for slave in range(slave_count):
        answer(Received(slave_role(slave), Report(0.0)))
    while wanted:
        effects, wanted = wanted, []
        perform(effects, performers)
    return frames, clock() - start, (counts[0], counts[1], counts[2]), layouts


def _deliver(slave: Slave, frame: Any) -> list[ResultChunk]:
    """Let a slave join a delivery; returns its chunks for the collector."""
    chunks: list[ResultChunk] = []

    def send(effect: Send) -> None:
        if isinstance(effect.message, ResultChunk):
            chunks.append(effect.message)
            for receipt in receipts(slave.results, [effect]):
                perform(slave.handle(receipt, 0), performers)
        elif not isinstance(effect.message, Report):
            raise UnknownEffectError(effect.message)

    performers: Performers = {Send: send, Finish: nothing}
    perform(slave.handle(Received(GATEWAY, unpack_delivery(frame)), 0), performers)
    while slave.has_work:
        perform(slave.handle(WorkDue(), 0), performers)
    return chunks


def _run_slave(config: RunConfig, frames: list[Any], layouts: Any) -> tuple[F64, F64]:
    """Per delivery: (deliveries, tuples, visits, comparisons, pairs) and the slave's seconds."""
    slave = Slave(SlaveId(0), config, layouts)
    clock = time.thread_time
    rows, seconds = [], []
    at = [COLUMNS.index(n) for n in ("left_tuples", "right_tuples", "mini_group_count", "comparisons", "pairs")]
    for frame in frames:
        start = clock()
        final: ResultChunk | None = None
        for chunk in _deliver(slave, frame):
            pack_results(chunk)
            final = chunk if chunk.final else final
        seconds.append(clock() - start)
        assert final is not None
        assert final.metrics is not None
        left, right, minis, comparisons, pairs = (float(final.metrics[i]) for i in at)
        visits = minis * -np.expm1(-(left + right) / max(minis, 1.0))
        rows.append((1.0, left + right, visits, comparisons, pairs))
    return np.array(rows[1:-1]), np.array(seconds[1:-1])  # the last delivery empties the windows


def _bundles(rows: F64, seconds: F64, count: int) -> tuple[F64, F64]:
    """Sums of `count` deliveries at a time: single ones are noisy."""
    cuts = np.linspace(0, len(rows), min(count, len(rows)) + 1).astype(int)[:-1]
    return np.add.reduceat(rows, cuts, axis=0), np.add.reduceat(seconds, cuts)


def _slave_costs(scale: float, progress: Callable[[str], None]) -> tuple[dict[str, float], list[str]]:
    names = ("delivery", "tuple", "visit", "comparison", "pair")
    all_rows, all_seconds, whole = [], [], []
    growth_s = 0.0
    for name, rate, window_s, seconds_s, bias, theta, epoch_s in _WORKLOADS:
        progress(f"slave: {name}")
        config = _config(rate * scale, window_s, seconds_s, bias, theta, epoch_s)
        frames, _, _, layouts = _run_master(config, 1)
        turns = [_run_slave(config, frames, layouts) for _ in range(4)]
        rows, seconds = turns[0][0], np.median([t[1] for t in turns[1:]], axis=0)
        if name == "reference":  # the first turn includes the growth of the process's memory
            growth_s = max(0.0, float((turns[0][1] - seconds).sum()) / (2 * rate * scale * window_s))
        bundled = _bundles(rows, seconds, 6)
        all_rows.append(bundled[0])
        all_seconds.append(bundled[1])
        whole.append((name, rows.sum(0), float(seconds.sum())))
    costs = least_squares(np.concatenate(all_rows), np.concatenate(all_seconds), names)
    costs["growth"] = growth_s
    lines = []
    for name, row, measured in whole:
        fitted = sum(costs[n] * v for n, v in zip(names, row, strict=True))
        lines.append(
            f"slave, {name:<17} {1e9 * measured / row[1]:>8,.0f} ns/tuple, fitted {100 * (fitted / measured - 1):+.0f} %"
        )
    return costs, lines


def _master_costs(scale: float) -> tuple[dict[str, float], list[str]]:
    names = ("tuple", "byte", "message")
    whole = {"kind": "count", "carry_payload": True}
    cases: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
        ("large deliveries", 1, 0.5, {"kind": "count"}),
        ("48 B of payload", 1, 0.5, whole),
        ("8 B of payload", 1, 0.5, {**whole, "payload": 8}),
        ("small deliveries", 4, 0.01, {"kind": "count"}),
    )
    rows, seconds, lines = [], [], []
    for _, slaves, epoch_s, sink in cases:
        config = _config(100_000 * scale, 5.0, 6.0, 0.7, 32 << 10, epoch_s, **sink)
        master_s, counts = min((r[1], r[2]) for r in (_run_master(config, slaves) for _ in range(3)))
        rows.append((float(counts[0]), float(counts[1]), float(counts[2])))
        seconds.append(master_s)
    costs = least_squares(np.array(rows), np.array(seconds), names)
    for (name, *_), row, used in zip(cases, rows, seconds, strict=True):
        fitted = sum(costs[n] * v for n, v in zip(names, row, strict=True))
        lines.append(f"master, {name:<16} {1e9 * used / row[0]:>8,.0f} ns/tuple, fitted {100 * (fitted / used - 1):+.0f} %")
    return costs, lines


def _number_ns() -> float:
    """Nanoseconds per number in what several gateways tell the master about an epoch."""
    gateways, epochs, seconds = 8, 5, []
    for slaves in _MANY_SLAVES:
        config = _config(1_000, 1.0, 1.0, 0.5, 32 << 10, 0.5).with_gateways(gateways)
        master, spent = Master(config, slaves), []
        for epoch in range(epochs):
            frame = FORMATS[EpochWanted].pack(
                EpochWanted(epoch, False, False, (1 << 20,) * slaves, (0,) * slaves, (epoch, epoch))
            )
            start = time.thread_time()
            for gateway in range(gateways):
                master.handle(Received(gateway_role(gateway), unpack_control(frame)), 0)
            spent.append(time.thread_time() - start)
            for gateway in range(gateways):
                master.handle(Received(gateway_role(gateway), EpochClosed(epoch, (0, 0))), 0)
        seconds.append(min(spent))
    numbers = 2 * gateways * (_MANY_SLAVES[1] - _MANY_SLAVES[0])
    return max(0.0, (seconds[1] - seconds[0]) / numbers * 1e9)


def _best(measure: Callable[[], float], repeat: int = 3) -> float:
    return min(measure() for _ in range(repeat))


def _source_seconds(workload: WorkloadConfig, with_payload: bool) -> float:
    source = GeneratorSource(workload, 1, LEFT, carry_payload=with_payload)
    start = time.thread_time()
    while source.read() is not None:
        pass
    return time.thread_time() - start


def _source_costs(scale: float) -> tuple[float, float]:
    """Nanoseconds per generated tuple, and per byte of payload."""
    workload = WorkloadConfig(200_000 * scale, 2_000_000)
    tuples = workload.rate_per_s * 2
    bare, loaded = (_best(lambda payload=payload: _source_seconds(workload, payload)) for payload in (False, True))  # type: ignore[misc]
    return bare / tuples * 1e9, max(0.01, (loaded - bare) / tuples / workload.payload_bytes * 1e9)


def _movement_costs(scale: float) -> tuple[float, float]:
    """Nanoseconds per byte extracted and packed, unpacked and installed."""
    config = _config(100_000 * scale, 5.0, 5.0, 0.7, 32 << 10, 0.5)
    frames, _, _, layouts = _run_master(config, 1)
    slave = Slave(SlaveId(0), config, layouts)
    for frame in frames[:-1]:
        _deliver(slave, frame)
    join = slave.join
    target = Slave(SlaveId(1), config, layouts).join
    out = into = nbytes = 0.0
    clock = time.thread_time
    for group in range(12):
        move_id = MoveId(QueryId(0), group, GroupId(group), SlaveId(0), SlaveId(1))
        empty = (TupleBatch.empty(), TupleBatch.empty())
        start = clock()
        departure = join.export_group(move_id, empty, config.reorganization.chunk_bytes)
        packed = []
        while not departure.done:
            packed.append(pack_state(departure.next_chunk()))
        middle = clock()
        first = unpack_state(packed[0])
        arrival = target.import_group(first)
        for frame in packed:
            arrival.add(unpack_state(frame))
        arrival.settle(EpochIndex(0))
        end = clock()
        if group:
            out, into, nbytes = out + middle - start, into + end - middle, nbytes + arrival.nbytes
    return out / nbytes * 1e9, into / nbytes * 1e9


def _keeping_costs(scale: float) -> float:
    """Nanoseconds per byte of payload in a slave's windows: one workload of few pairs, with and without payload."""
    seconds = []
    for sink in ({"kind": "count"}, {"kind": "parquet", "payload": 200}):
        config = _config(50_000 * scale, 3.0, 9.0, 0.5, 32 << 10, 0.3, **sink)
        frames, _, _, layouts = _run_master(config, 1)
        seconds.append(min(float(_run_slave(config, frames, layouts)[1].sum()) for _ in range(4)))
    nbytes = 2 * config.workload.rate_per_s * (config.workload.duration_us / 1e6) * 200
    return max(0.0, (seconds[1] - seconds[0]) / nbytes * 1e9)


def _chunk_seconds(frames: list[Any]) -> float:
    collector = Collector(1, materialised=False)
    start = time.thread_time()
    for frame in frames:
        collector.handle(Received(slave_role(0), unpack_results(frame)), 0)
    return (time.thread_time() - start) / len(frames)


def _collector_costs(scale: float, kept_byte_ns: float) -> tuple[float, float, float]:
    """Nanoseconds per chunk, per byte of pairs collected and written, and per byte of pairs at the slave. kept_byte_ns: the
    slave's nanoseconds per byte of payload in its windows."""
    count_only = _config(50_000 * scale, 2.0, 6.0, 0.7, 32 << 10, 0.2)
    frames, _, _, layouts = _run_master(count_only, 1)
    chunks = _final_chunks(count_only, frames, layouts)
    chunk_ns = _best(lambda: _chunk_seconds(chunks)) * 1e9
    rows = _config(100_000 * scale, 5.0, 8.0, 0.72, 32 << 10, 0.5, kind="parquet")
    frames, _, _, layouts = _run_master(rows, 1)
    seconds: dict[str, float] = {}
    pairs: list[Pairs] = []
    for name, config in (("rows", rows), ("count", dataclasses.replace(rows, sink=SinkConfig("count", carry_payload=True)))):
        slave = Slave(SlaveId(0), config, layouts)
        start = time.perf_counter()
        for frame in frames:
            for chunk in _deliver(slave, frame):
                pack_results(chunk)
                if isinstance(chunk.pairs, Pairs):
                    pairs.append(chunk.pairs)
        seconds[name] = time.perf_counter() - start
    nbytes = sum(p.nbytes for p in pairs)
    kept = 2 * rows.workload.rate_per_s * (rows.workload.duration_us / 1e6) * rows.workload.payload_bytes
    slave_ns = max(0.01, ((seconds["rows"] - seconds["count"]) * 1e9 - kept_byte_ns * kept) / nbytes)
    return chunk_ns, _sink_seconds(rows, pairs) / nbytes * 1e9, slave_ns


def _final_chunks(config: RunConfig, frames: list[Any], layouts: Any) -> list[Any]:
    slave = Slave(SlaveId(0), config, layouts)
    out = []
    for frame in frames:
        out += [pack_results(chunk) for chunk in _deliver(slave, frame) if chunk.final]
    return out


def _sink_seconds(config: RunConfig, pairs: list[Pairs]) -> float:
    """Digest, decode and write pairs, as the collector does."""
    from swjoin.connectors.output_columns import OutputColumns
    from swjoin.connectors.sink import open_sink
    from swjoin.core.hashing import digest_pairs

    left, right = (GeneratorSource(config.workload, 1, s, carry_payload=True) for s in range(len(STREAM_NAMES)))
    plan = OutputColumns.build(left, right, config)
    with tempfile.TemporaryDirectory(prefix="swjoin-calibrate-") as folder:
        sink = open_sink("parquet", Path(folder) / "results", plan, share=(0, 1))
        start = time.perf_counter()
        for part in pairs:
            digest_pairs(part.left_id, part.right_id)
            sink.write(part)
        sink.close()
        return time.perf_counter() - start


def calibrate(quick: bool, progress: Callable[[str], None]) -> tuple[CostModel, list[str]]:
    """Measure all costs. quick: a tenth of the tuples. Returns them, and lines with the errors of the fits.

    RunFailed when two MPI ranks cannot be started.
    """
    keep_freed_memory()
    scale = 0.1 if quick else 1.0
    _slave_warm_up()
    slave, lines = _slave_costs(scale, progress)
    progress("master")
    master, master_lines = _master_costs(scale)
    source_tuple_ns, source_byte_ns = _source_costs(scale)
    progress("state movement, results")
    extract_ns, install_ns = _movement_costs(scale)
    kept_ns = _keeping_costs(scale)
    chunk_ns, byte_ns, result_ns = _collector_costs(scale, kept_ns)
    progress("two MPI ranks")
    links = measure_links(quick)
    default = PRESETS["modern"]
    costs = CostModel(
        name="measured",
        slave_delivery_ns=slave["delivery"] * 1e9,
        slave_tuple_ns=slave["tuple"] * 1e9,
        slave_visit_ns=slave["visit"] * 1e9,
        slave_comparison_ns=slave["comparison"] * 1e9,
        slave_pair_ns=slave["pair"] * 1e9,
        slave_byte_ns=kept_ns,
        slave_growth_ns=slave["growth"] * 1e9,
        slave_result_byte_ns=result_ns,
        extract_byte_ns=extract_ns,
        install_byte_ns=install_ns,
        source_tuple_ns=source_tuple_ns,
        source_byte_ns=source_byte_ns,
        master_tuple_ns=master["tuple"] * 1e9,
        master_byte_ns=master["byte"] * 1e9,
        message_ns=master["message"] * 1e9,
        number_ns=_number_ns(),
        link_latency_us=links["small_s"] * 1e6,
        link_bytes_per_s=links["bytes_per_s"],
        eager_bytes=default.eager_bytes,
        collector_chunk_ns=chunk_ns,
        collector_byte_ns=byte_ns,
        poll_longest_us=default.poll_longest_us,
        sleep_extra_us=links["sleep_extra_s"] * 1e6,
        look_ns=links["look_s"] * 1e9,
        shared_capacity=min(1.0, links["shared"]),
    )
    progress("realtime pace")
    awake, asleep = realtime_costs(costs, 1 if quick else 3)
    costs = dataclasses.replace(costs, slave_realtime_ratio=awake, slave_sleep_ratio=asleep)
    return costs, [*lines, *master_lines]


def measure_links(quick: bool) -> dict[str, float]:
    """Seconds of a small and of a large message one way (small_s, large_s), bandwidth (bytes_per_s), CPU seconds of a poll
    (look_s), the excess of a sleep over its length (sleep_extra_s), and a slave's speed beside another busy rank over its speed
    alone (shared). RunFailed when MPI fails."""
    with tempfile.TemporaryDirectory(prefix="swjoin-links-") as folder:
        out = Path(folder) / "links.json"
        command = [
            *mpirun_options(find_mpirun(), 2),
            sys.executable,
            "-m",
            "swjoin.forecast.calibrate.link",
            str(out),
            *(["quick"] if quick else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or not out.exists():
            raise RunFailed(f"calibrate: two MPI ranks could not be measured: {' '.join(done.stderr.split())[:300]}")
        figures: dict[str, float] = json.loads(out.read_text())
    return figures


def master_work() -> Callable[[], float]:
    """A master's work of some tens of milliseconds, with the generator's; each call returns its seconds."""
    config = _config(100_000, 5.0, 8.0, 0.7, 32 << 10, 0.5)

    def work() -> float:
        start = time.perf_counter()
        _run_master(config, 1)
        return time.perf_counter() - start

    return work


def join_work() -> Callable[[], float]:
    """A slave's work of some tens of milliseconds on full windows; each call returns its seconds."""
    config = _config(100_000, 5.0, 8.0, 0.7, 32 << 10, 0.5)
    frames, _, _, layouts = _run_master(config, 1)

    def work() -> float:
        return float(_run_slave(config, frames, layouts)[1][10:].sum())

    work()
    return work


def _slave_warm_up() -> None:
    """Load every kernel before anything is timed."""
    for sink in ({"kind": "count"}, {"kind": "parquet"}):
        config = _config(2_000, 1.0, 3.0, 0.7, 32 << 10, 0.2, **sink)
        frames, _, _, layouts = _run_master(config, 1)
        _run_slave(config, frames, layouts)

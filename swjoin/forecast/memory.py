"""Memory forecast: bytes per rank, from the input profile and the configuration. No clock, no I/O.

What: `plan_memory(config, slaves, profile) -> MemoryEstimate`.
Why: a job that asks a cluster for too little memory dies late; one that asks for too much waits. Rates, windows, widths and
skew determine the memory of the heaviest slave.
Stays out: the input (`forecast.input_profile`), sizes of chains and directories (`forecast.window_size`), the comparison with
a finished run (`forecast.memory_report`).

Windows are largest at the end of a distribution epoch, when its tuples have been stored and nothing has expired. Expiry waits
until the windows have advanced by 1/64: of a stream whose tuples stay for a span S, the windows have the last S + P, where P
is 1/64 of the longer span, rounded up to whole distribution epochs, at least one. Payload is freed by whole deliveries, and
lies in pages. For a run that ends before its windows are full, the estimate is that of its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swjoin.checkpoint.delivery_log import UNWRITTEN_LIMIT_BYTES
from swjoin.config.run import RunConfig
from swjoin.connectors.files.sink import GROUP_ROWS
from swjoin.connectors.files.time_order import RUN_BYTES
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import I64, LEFT, RIGHT
from swjoin.core.storage import WAITING_BYTES
from swjoin.forecast.input_profile import HashCells, InputProfile, carries_payload
from swjoin.forecast.model.batch import F64, TUPLE_BYTES
from swjoin.forecast.window_size import BLOCKS, DEPTH, MINIS, estimate_group
from swjoin.operators.join_step import PAIR_BYTES
from swjoin.operators.join_windows import EXPIRY_SHARE
from swjoin.policy.epochs import tuples_of_epoch
from swjoin.policy.placement import round_robin
from swjoin.state.arrays import MINI_BYTES, SLOT_BYTES, block_bytes
from swjoin.state.payload_store import PAGE_ROWS

_MOST_CELLS = 1 << 21
_MOMENTS = 2000  # points in time at which the windows are estimated
_READ_AHEAD = 3  # batches of a file that wait or are being decoded
_FRESH_BYTES = 46  # scratch of one fresh tuple, see `state.arrays.FreshTuples`


@dataclass(frozen=True)
class SlaveEstimate:
    """Bytes of one slave when its windows are largest; the peak of its buffers."""

    slave: int
    window_tuples: float
    block_bytes: float
    payload_bytes: float
    directory_bytes: float
    buffer_bytes: float
    other_bytes: float  # scratch, results being sent, deliveries in the log of checkpoints

    @property
    def window_bytes(self) -> float:
        return self.block_bytes + self.payload_bytes + self.directory_bytes

    @property
    def nbytes(self) -> float:
        return self.window_bytes + self.buffer_bytes + self.other_bytes


@dataclass(frozen=True)
class MasterEstimate:
    """Bytes of the master.

    buffer_bytes: waiting tuples, limited by `cluster.mini_buffer`.
    other_bytes: tuples being read ahead, partitioned and sent.
    """

    buffer_bytes: float
    other_bytes: float

    @property
    def nbytes(self) -> float:
        return self.buffer_bytes + self.other_bytes


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of all ranks.

    slaves: active ones. needed: the least number of slaves whose windows fit; None: no number does.
    at_s: time at which the heaviest slave's windows are largest, on the streams' time axis.
    origin: source of the figures.
    """

    limit_bytes: int
    slaves: tuple[SlaveEstimate, ...]
    master: MasterEstimate
    collector_bytes: float
    needed: int | None
    at_s: float
    origin: str
    notes: tuple[str, ...] = field(default=())

    @property
    def heaviest(self) -> SlaveEstimate:
        return max(self.slaves, key=lambda s: s.window_bytes)

    @property
    def fits(self) -> bool:
        return self.heaviest.window_bytes <= self.limit_bytes


# ---------------------------------------------------------------- time


@dataclass(frozen=True)
class _Spans:
    """Spans of time, microseconds.

    epoch_us: a distribution epoch. prefill_us: the longest one during prefill (`measure.prefill`); 0 without.
    stored_us: how long a tuple stays in its block, per stream; payload_us: how long its payload stays.
    """

    epoch_us: float
    prefill_us: float
    stored_us: tuple[float, float]
    payload_us: tuple[float, float]


def epoch_length_us(config: RunConfig, profile: InputProfile) -> float:
    """Length of a distribution epoch; of epochs by tuple count, as during prefill, at the highest rate."""
    cluster = config.cluster
    retention = max(1.0, float(config.query.bounds.retention_us))
    if cluster.distribution_epoch_us and config.measure.prefill_us <= retention:
        return float(cluster.distribution_epoch_us)
    most = _most_stored(profile, retention)
    batches = 1 if most / 2 >= BATCH_ROWS else 2  # streams are read in turn, a batch each, which may span more than the windows
    tuples = max(tuples_of_epoch(cluster.epoch_tuples, most), batches * BATCH_ROWS)
    return max(1.0, float(cluster.distribution_epoch_us), tuples * retention / max(most, 1.0))


def _most_stored(profile: InputProfile, retention_us: float) -> float:
    ends = _moments(profile, retention_us)
    return float(np.sum([profile.between(s, ends - retention_us, ends) for s in (LEFT, RIGHT)], axis=0).max(initial=1.0))


def _prefill_epoch_us(config: RunConfig, profile: InputProfile) -> float:
    """Length of a distribution epoch during prefill, which ends by tuple count."""
    if not config.measure.prefill_us:
        return 0.0
    retention = max(1.0, float(config.query.bounds.retention_us))
    most = _most_stored(profile, retention)
    tuples = max(tuples_of_epoch(config.cluster.epoch_tuples, most), 2 * BATCH_ROWS)
    return min(float(config.measure.prefill_us), tuples * retention / most)


def _moments(profile: InputProfile, step_us: float) -> F64:
    """Points in time at which windows may be largest."""
    first, last = float(profile.times_us[0]), float(profile.times_us[-1])
    count = int(min(_MOMENTS, max(2.0, 2 * (last - first) / max(step_us, 1.0))))
    edges = profile.times_us if len(profile.times_us) <= _MOMENTS else profile.times_us[:: len(profile.times_us) // _MOMENTS]
    return np.unique(np.concatenate([np.linspace(first, last, count), edges, [last]]))


def _spans(config: RunConfig, profile: InputProfile) -> _Spans:
    epoch_us = epoch_length_us(config, profile)
    bounds = config.query.bounds
    pause = max(1, math.ceil(bounds.retention_us / EXPIRY_SHARE / epoch_us - 1e-9)) * epoch_us
    stay = (float(max(bounds.upper_us, 0)), float(max(-bounds.lower_us, 0)))
    stored = (stay[LEFT] + pause, stay[RIGHT] + pause)
    payload = tuple(math.ceil(s / epoch_us - 1e-9) * epoch_us + pause for s in stay)
    return _Spans(epoch_us, _prefill_epoch_us(config, profile), stored, (payload[LEFT], payload[RIGHT]))


# ---------------------------------------------------------------- windows


@dataclass(frozen=True)
class _Windows:
    """Windows of every partition-group at one time: float64 (partition-groups,).

    expires: some tuples have expired before. rows: payload rows in the windows, per stream. arrived: rows so far, per stream.
    """

    at_us: float
    expires: bool
    tuples: F64
    blocks: F64
    directory_bytes: F64
    rows: tuple[F64, F64]
    arrived: tuple[F64, F64]

    def of_slaves(self, config: RunConfig, profile: InputProfile, count: int) -> tuple[F64, F64, F64, F64]:
        """Tuples, bytes of blocks, payload and directories of every slave: float64 (count,)."""
        owner: I64 = round_robin(len(self.tuples), count)
        parts = [self.tuples, self.blocks, self.directory_bytes]
        tuples, blocks, directory = (np.bincount(owner, x, count).astype(np.float64) for x in parts)
        payload = np.zeros(count)
        if config.sink.kind != "count":
            for stream in (LEFT, RIGHT):
                rows = np.bincount(owner, self.rows[stream], count)
                partial = 2.0 if self.expires else 1.0  # pages used in part: the newest, and the oldest
                pages = np.where(rows > 0.5, np.floor(np.maximum(rows / PAGE_ROWS - 0.05, 0)) + partial, 0)
                pages = np.minimum(pages, np.ceil(np.bincount(owner, self.arrived[stream], count) / PAGE_ROWS))
                payload += pages * PAGE_ROWS * profile.fixed_bytes[stream]
                payload += 2 * rows * profile.tail_bytes[stream]  # their buffers double
        return tuples, blocks * block_bytes(config.module.block_tuples), payload, directory


def _windows_at(config: RunConfig, profile: InputProfile, spans: _Spans, at_us: float) -> _Windows:
    module, groups = config.module, config.cluster.partition_count
    stored = [float(profile.between(s, at_us - spans.stored_us[s], at_us)) for s in (LEFT, RIGHT)]
    rows = [float(profile.between(s, at_us - spans.payload_us[s], at_us)) for s in (LEFT, RIGHT)]
    depth = _depth(sum(stored) / groups, module.theta_tuples, groups)
    cells: HashCells = profile.keys.cells(groups, depth, at_us - max(spans.stored_us), at_us)
    expires = at_us - float(profile.times_us[0]) > max(spans.stored_us)
    before = np.linspace(at_us - max(spans.stored_us), at_us, 64)
    tuning = [profile.between(s, before - spans.stored_us[s] + spans.epoch_us, before) for s in (LEFT, RIGHT)]
    tuned = float((tuning[LEFT] + tuning[RIGHT]).max()) / sum(stored) if expires and any(stored) else 1.0
    tuples, blocks, directory = np.empty(groups), np.empty(groups), np.empty(groups)
    out = np.zeros(3)
    for g in range(groups):
        left, right = cells.left[g] * stored[LEFT], cells.right[g] * stored[RIGHT]
        tuples[g] = left.sum() + right.sum()
        top = cells.top[g] * (stored[LEFT] + stored[RIGHT])
        estimate_group(left, right, top, depth, module.theta_tuples, tuned, module.block_tuples, expires, out)
        blocks[g] = out[BLOCKS]
        directory[g] = out[MINIS] * MINI_BYTES + 2.0 ** out[DEPTH] * SLOT_BYTES
    shares = (cells.left.sum(1), cells.right.sum(1))
    payload = (rows[LEFT] * shares[LEFT], rows[RIGHT] * shares[RIGHT])
    arrived = (profile.arrived[LEFT][-1] * shares[LEFT], profile.arrived[RIGHT][-1] * shares[RIGHT])
    return _Windows(at_us, expires, tuples, blocks, directory, payload, arrived)


def _depth(group_tuples: float, theta: int, groups: int) -> int:
    """Bits of the hash that index cells: as many as a partition-group of the mean size needs, and two more."""
    if theta == 0 or group_tuples <= theta:
        return 0
    wanted = math.ceil(math.log2(group_tuples / theta)) + 2
    return max(0, min(wanted, 16, int(math.log2(max(1, _MOST_CELLS // groups)))))


def _largest(config: RunConfig, profile: InputProfile, spans: _Spans) -> list[_Windows]:
    """The windows when they are largest; where hot keys change, also at times when another slave may be the heaviest."""
    ends = _moments(profile, spans.epoch_us)
    stored = sum(profile.between(s, ends - spans.stored_us[s], ends) for s in (LEFT, RIGHT))
    tuples = np.asarray(stored)
    best = float(ends[np.flatnonzero(tuples >= 0.999 * tuples.max())[-1]])  # the last one, when tuples expire
    times = [best]
    if profile.drifts:
        first = min(max(spans.stored_us), float(ends[-1]))
        times += [t for t in np.linspace(first, float(ends[-1]), 3).tolist() if t != best]
    return [_windows_at(config, profile, spans, t) for t in times]


def _needed(config: RunConfig, profile: InputProfile, windows: list[_Windows]) -> int | None:
    """The least number of slaves whose windows fit."""
    for count in _counts(config.cluster.partition_count).tolist():
        most = max(float(np.sum(w.of_slaves(config, profile, count)[1:], axis=0).max()) for w in windows)
        if most <= config.module.window_bytes:
            return int(count)
    return None


def _counts(partition_count: int) -> I64:
    """Numbers of slaves to try: all up to 256, then in steps of 1/16."""
    few = np.arange(1, min(partition_count, 256) + 1)
    more = 256 * (1 + 1 / 16) ** np.arange(1, 200)
    return np.unique(np.concatenate([few, more[more < partition_count].astype(np.int64), [partition_count]]))


# ---------------------------------------------------------------- buffers


def _tuple_bytes(profile: InputProfile) -> tuple[float, float]:
    """Bytes of a tuple of each stream in a delivery."""
    sizes = tuple(TUPLE_BYTES + f + t for f, t in zip(profile.fixed_bytes, profile.tail_bytes, strict=True))
    return sizes[LEFT], sizes[RIGHT]


def _epoch_bytes(profile: InputProfile, length_us: float) -> float:
    """Highest number of bytes that arrive within this time, of both streams."""
    ends = _moments(profile, length_us)
    sizes = _tuple_bytes(profile)
    arrived = [sizes[s] * profile.between(s, ends - length_us, ends) for s in (LEFT, RIGHT)]
    return float(np.sum(arrived, axis=0).max(initial=0.0))


def _master(config: RunConfig, profile: InputProfile, spans: _Spans, in_process: bool) -> MasterEstimate:
    """asap: the next epoch is read while one is served, and more by the batches that overlap its end, or whole batches where
    epochs end by tuple count. realtime: two epochs ahead. Epochs of prefill count where they are longer."""
    longest_us = max(spans.epoch_us, spans.prefill_us)
    sizes = _tuple_bytes(profile)
    totals = [float(profile.arrived[s][-1]) for s in (LEFT, RIGHT)]
    batches = sum(sizes[s] * min(BATCH_ROWS, totals[s]) for s in (LEFT, RIGHT))
    everything = sum(sizes[s] * totals[s] for s in (LEFT, RIGHT))
    epochs = 2 if config.pace == "realtime" else 1
    waits = _epoch_bytes(profile, max(epochs * spans.epoch_us, spans.prefill_us) + config.time.max_out_of_order_us)
    if config.cluster.distribution_epoch_us:
        waits += batches
    else:
        one = (sizes[LEFT] + sizes[RIGHT]) / 2 * BATCH_ROWS
        waits = math.ceil(waits / one - 0.01) * one
    buffer = min(waits, everything, config.cluster.mini_buffer_bytes + batches)
    served = min(_epoch_bytes(profile, longest_us), everything, config.cluster.mini_buffer_bytes + batches)
    ahead = 0.0 if config.left.path is None else _READ_AHEAD * batches
    if config.time.sort:  # one run of each input as it was read, once as one table, once in order
        ahead += sum(3 * min(RUN_BYTES, sizes[s] * totals[s]) for s in (LEFT, RIGHT))
    # Once as it is served, once as it is sorted, once as a message; within one process the slaves have the message.
    return MasterEstimate(buffer, ahead + batches + (2 if in_process else 3) * served)


def _slave_buffers(config: RunConfig, profile: InputProfile, spans: _Spans, share: float) -> float:
    """asap and prefill, overlapped: one delivery is joined and one waits; otherwise one. A slave that cannot keep up has more,
    up to its stream buffer and a delivery."""
    most = float(config.cluster.mini_buffer_bytes)
    delivery, of_prefill = (min(_epoch_bytes(profile, us), most) * share for us in (spans.epoch_us, spans.prefill_us))
    overlapped = 2 if config.cluster.communication == "overlapped" else 1
    return max(overlapped * of_prefill, delivery * (overlapped if config.pace == "asap" else 1))


def _log_bytes(config: RunConfig, profile: InputProfile, spans: _Spans, share: float) -> float:
    """Deliveries that the log of checkpoints has in memory: live ones; in realtime pace, those of one interval; and some that
    wait to be logged."""
    if not config.checkpoint.enabled:
        return 0.0
    length_us = max(spans.stored_us) + spans.epoch_us
    if config.pace == "realtime" and config.checkpoint.interval_us:
        length_us = min(length_us, float(config.checkpoint.interval_us))
    kept = _epoch_bytes(profile, length_us) * share
    return min(float(UNWRITTEN_LIMIT_BYTES), kept) + min(float(WAITING_BYTES), kept)


def _collector(config: RunConfig, profile: InputProfile) -> float:
    """A chunk of results as received, decoded and being written; and a row group of Parquet, twice while it is encoded."""
    if config.sink.kind == "count":
        return 0.0
    row = PAIR_BYTES + sum(profile.fixed_bytes) + sum(profile.tail_bytes)
    group = 2 * GROUP_ROWS * row if config.sink.kind == "parquet" else 0.0
    return 3 * _results(config, profile) + group


def _results(config: RunConfig, profile: InputProfile) -> float:
    """Bytes of one chunk."""
    if config.sink.kind == "count":
        return 0.0
    pair = PAIR_BYTES + sum(profile.fixed_bytes) + sum(profile.tail_bytes)
    return config.module.result_buffer_bytes * pair / (PAIR_BYTES + sum(profile.fixed_bytes))


# ---------------------------------------------------------------- all ranks


def plan_memory(config: RunConfig, slave_count: int, profile: InputProfile, *, in_process: bool = False) -> MemoryEstimate:
    """Estimate a run on `slave_count` slaves. in_process: slaves are threads, which get deliveries without a message.

    UserError when the configuration needs more slaves.
    """
    config.check_slaves(slave_count)
    active = config.reorganization.active_slaves or slave_count
    spans = _spans(config, profile)
    windows = _largest(config, profile, spans)
    results = _results(config, profile)
    slaves: list[SlaveEstimate] = []
    of_slaves = [w.of_slaves(config, profile, active) for w in windows]
    at_us = windows[0].at_us
    for i in range(active):
        tuples, blocks, payload, directory = max(
            (tuple(float(part[i]) for part in parts) for parts in of_slaves), key=lambda parts: sum(parts[1:])
        )
        share = tuples / max(1.0, float(windows[0].tuples.sum()))
        buffers = _slave_buffers(config, profile, spans, share)
        scratch = 2 * _FRESH_BYTES * buffers / TUPLE_BYTES / max(1, config.cluster.partition_count // active)
        other = scratch + 2 * results + _log_bytes(config, profile, spans, share)
        slaves.append(SlaveEstimate(i, tuples, blocks, payload, directory, buffers, other))
    return MemoryEstimate(
        config.module.window_bytes,
        tuple(slaves),
        _master(config, profile, spans, in_process),
        _collector(config, profile),
        _needed(config, profile, windows),
        at_us / 1e6,
        profile.origin,
        _notes(config, profile, slave_count),
    )


def _notes(config: RunConfig, profile: InputProfile, slave_count: int) -> tuple[str, ...]:
    notes = []
    if config.reorganization.policy != "none":
        notes.append("partition-groups move during the run; the plan is that of the initial placement")
    if config.cluster.partition_count < slave_count:
        notes.append(f"{config.cluster.partition_count} partition-groups keep as many slaves busy at most")
    if config.left.path is not None and carries_payload(config) and any(profile.tail_bytes):
        notes.append("columns of variable length count twice: their buffers double when they grow")
    if config.gateway_count > 1:
        notes.append(f"each of {config.gateway_count} gateways is estimated as if it read all tuples")
    if profile.coded:
        notes.append("the master's dictionary of keys is not included")
    return tuple(notes)


def to_plain(plan: MemoryEstimate) -> dict[str, Any]:
    """Ready for JSON: whole bytes."""

    def whole(value: float) -> int:
        return round(value)

    return {
        "limit_bytes": plan.limit_bytes,
        "fits": plan.fits,
        "slaves_needed": plan.needed,
        "at_s": plan.at_s,
        "told": plan.origin,
        "notes": list(plan.notes),
        "slaves": [
            {
                "slave": s.slave,
                "window_tuples": whole(s.window_tuples),
                "window_bytes": whole(s.window_bytes),
                "block_bytes": whole(s.block_bytes),
                "payload_bytes": whole(s.payload_bytes),
                "directory_bytes": whole(s.directory_bytes),
                "buffer_bytes": whole(s.buffer_bytes),
                "other_bytes": whole(s.other_bytes),
            }
            for s in plan.slaves
        ],
        "master": {"buffer_bytes": whole(plan.master.buffer_bytes), "other_bytes": whole(plan.master.other_bytes)},
        "collector": {"other_bytes": whole(plan.collector_bytes)},
    }

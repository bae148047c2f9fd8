"""Samples the roles of a run, from their own threads, once per interval.

What: `MasterWatcher` beside the I/O of master and first gateway, `GatewayWatcher` beside that of any other gateway,
`CollectorWatcher` beside a sink's; `open_watcher`.
Why: roles are pure, so their hosts report what passes (rows read, deliveries, slaves' reports, log events), one cheap call
each; everything else is read from the roles' own counters when a sample is due. Samples of all gateways together are the
streams, buffers and ledger of the run.
Stays out: what is made of the samples (`monitor.status_board`), how samples of other ranks travel (`runtime`), presentation,
and the roles' commands: a watcher knows none of them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.collector import Collector
from swjoin.cluster.exchange import EPOCHS_AHEAD
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.master import Master
from swjoin.config.run import RunConfig
from swjoin.connectors.source import is_live
from swjoin.core.batch import I64, STREAM_NAMES, SourceBatch
from swjoin.core.data_messages import Delivery, GroupLoads, ResultChunk, RunEvent
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import StreamCounts
from swjoin.core.metric_columns import COLUMNS
from swjoin.monitor.query_results import ResultWatcher
from swjoin.monitor.status_board import Board
from swjoin.plan.logical import Source as PlanSource
from swjoin.plan.stages import Stage
from swjoin.state.delay_histogram import histogram_quantile

if TYPE_CHECKING:
    from swjoin.connectors.output_columns import AnyColumns
    from swjoin.connectors.source import Source
    from swjoin.monitor.web import Server

_LOG = logging.getLogger(__name__)
ADDRESS_FILE = "dashboard.txt"  # in the run's directory, while it runs
HOT_KEYS_S = 1.0  # between two samples of the hot keys
_RECENT_MOVES = 1000  # moves that the median hold-back covers
_MOST_LOADS = 4096  # partition-groups up to which the map shows each one's load
_DECAY = 0.7  # share of a partition-group's load that a new report leaves
_ADDED = ("comparisons", "pairs", "process_us", "cpu_us", "left_tuples", "right_tuples")
_NEWEST = ("epoch", "occupancy_ratio", "window_tuples", "window_bytes", "mini_group_count")


def open_watcher(
    config: RunConfig,
    about: dict[str, Any],
    run_dir: Path | None = None,
    streams: Sequence[str] = STREAM_NAMES,
    queries: Mapping[str, str] | None = None,
) -> MasterWatcher:
    """A watcher; with a port also its dashboard, whose address is logged and written into the run's directory.

    about: constant facts of the run, ready for JSON. streams: names of the streams, or of the sources of a plan. queries:
    descriptions of those that have names. UserError when a port is taken, or a library is missing.
    """
    watcher = MasterWatcher(config, Board(about, streams=streams, queries=queries or {}))
    if config.observe.port is not None:
        watcher.dashboard = _Dashboard(watcher.board, config.observe.port, run_dir)
    return watcher


class _Dashboard:
    """The server of a run's page, and the file with its address."""

    def __init__(self, board: Board, port: int, run_dir: Path | None) -> None:
        from swjoin.monitor.web import Server

        self._server: Server = Server(board.snapshot, port)
        self._address_file = None if run_dir is None else run_dir / ADDRESS_FILE
        self.port = self._server.port
        _LOG.info("dashboard: %s  (in a terminal: swjoin top %d)", self._server.address, self._server.port)
        if self._address_file is not None:
            self._address_file.parent.mkdir(parents=True, exist_ok=True)
            self._address_file.write_text(self._server.address + "\n")

    def close(self) -> None:
        self._server.close()
        if self._address_file is not None:
            self._address_file.unlink(missing_ok=True)


class _HotKeySamples:
    """The sketches of both streams. UserError when the library for them is missing."""

    def __init__(self, k: int) -> None:
        from swjoin.monitor.hot_keys import HotKeys

        self._sketches = [HotKeys(k, seed=stream) for stream in range(len(STREAM_NAMES))]
        self._due_s = 0.0

    def read(self, stream: int, batch: SourceBatch) -> None:
        self._sketches[stream].read(batch.key, batch.key_valid, time.monotonic())

    def sample(self, sources: Sequence[Source], board: Board) -> None:
        """Put the most frequent keys on the board, when HOT_KEYS_S have passed."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + HOT_KEYS_S
        tops = {}
        for name, source, sketch in zip(STREAM_NAMES, sources, self._sketches, strict=True):
            dictionary = source.dictionary
            tops[name] = sketch.top(now_s, str if dictionary is None else dictionary.text)
        board.take_hot_keys(tops)


class _ReportedLoads:
    """What the slaves of a stage reported last: stream buffer occupancy, and the load of each partition-group, decayed per
    report. first: number of the stage's first slave."""

    def __init__(self, stage: int, controller: Controller, first: int) -> None:
        self._stage, self.controller, self.first = stage, controller, first
        self._occupancy_ratios: dict[int, float] = {}
        self._cost_ns = np.zeros(len(controller.map.owner))

    def occupied(self, slave: int, ratio: float) -> None:
        self._occupancy_ratios[slave] = ratio

    def add(self, loads: GroupLoads) -> None:
        decayed = self._cost_ns[loads.groups] * _DECAY
        self._cost_ns[loads.groups] = decayed + loads.cost_ns * (1 - _DECAY)

    def slaves(self) -> list[dict[str, Any]]:
        """One entry per slave."""
        controller = self.controller
        owner, count = controller.map.owner, controller.slave_count
        owned, cost = np.bincount(owner, minlength=count), np.bincount(owner, self._cost_ns, count)
        total = float(cost.sum())
        active = set(controller.active)
        return [
            {
                "slave": self.first + slave,
                "stage": self._stage,
                "active": slave in active,
                "emptying": slave in controller.emptying,
                "groups": int(owned[slave]),
                "load_ratio": float(cost[slave]) / total if total else None,
                "occupancy_ratio": self._occupancy_ratios.get(self.first + slave),
            }
            for slave in range(count)
        ]

    def moving(self) -> list[dict[str, Any]]:
        """One entry per move in flight."""
        return [
            {
                "number": move.number,
                "stage": self._stage,
                "group": int(move.group),
                "supplier": self.first + int(move.supplier),
                "consumer": self.first + int(move.consumer),
                "phase": str(move.state),
            }
            for move in self.controller.moves.values()
        ]

    def groups(self) -> list[float] | None:
        """Each partition-group's load over the highest; None when nothing was reported, or for too many groups."""
        if len(self._cost_ns) > _MOST_LOADS or not self._cost_ns.any():
            return None
        loads: list[float] = (self._cost_ns / self._cost_ns.max()).round(2).tolist()
        return loads

    def stage(self, gateway: Gateway) -> dict[str, Any]:
        """The stage itself; the join of two streams is the only one."""
        name, description = "join", gateway.config.query.description
        if gateway.feeds is not None:
            stage = gateway.feeds.instances.stages.stages[self._stage]
            name, description = stage.name, stage.description
        return {
            "stage": self._stage,
            "join": name,
            "description": description,
            "slaves": [self.first + i for i in range(self.controller.slave_count)],
            "active_slaves": len(self.controller.active),
            "moves": self.controller.movement.finished_count,
        }


class GatewayWatcher:
    """Samples of a gateway: plain values that travel as JSON.

    Its host calls `watch` with every new gateway, `read`, `reported` and `delivered` as these happen, `observe` in every round.
    send_view: takes the samples; set by the runtime. endpoint: of its producers, if it has one.
    """

    def __init__(self, config: RunConfig) -> None:
        self.endpoint: str | None = None
        self.send_view: Callable[[dict[str, Any]], None] = lambda view: None
        self._streams: tuple[str, ...] = ()
        self._interval_s = config.observe.interval_us / 1e6
        self._due_s = 0.0
        self._delivered = [0, 0]  # since `watch`, in a run without stages
        self._before: list[int] = []  # that; tuples of each stream
        self._complete = False  # the last sample was sent

    def watch(self, gateway: Gateway, streams: Sequence[str]) -> None:
        """A new gateway, perhaps restored from a checkpoint, before its first delivery. streams: their names, or those of the
        sources of a plan."""
        self._streams, self._delivered = tuple(streams), [0, 0]
        self._before = [s.counts.tuples - _refused(s.counts) - gateway.waiting_tuples(s.stream) for s in gateway.streams]
        self._due_s, self._complete = 0.0, False

    def read(self, stream: int, batch: SourceBatch) -> None:
        """A batch was read."""

    def reported(self, slave: int, occupancy_ratio: float) -> None:
        """A slave's report reached the gateway."""

    def delivered(self, delivery: Delivery) -> None:
        """The gateway sends a delivery."""
        self._delivered[0] += len(delivery.left)
        self._delivered[1] += len(delivery.right)

    def due(self) -> bool:
        return time.monotonic() >= self._due_s

    def observe(self, gateway: Gateway) -> None:
        """Send a sample when one is due, and a last one when the gateway has ended."""
        if not self._complete and (gateway.finished or self.due()):
            self._due_s, self._complete = time.monotonic() + self._interval_s, gateway.finished
            self.send_view(self.view_of(gateway))

    def view_of(self, gateway: Gateway) -> dict[str, Any]:
        """A sample."""
        return {
            "gateway": gateway.number,
            "endpoint": self.endpoint,
            "streams": {name: self._stream(gateway, i) for i, name in enumerate(self._streams)},
            "buffers": {
                "waiting_bytes": gateway.slots.waiting_bytes,
                "capacity_bytes": gateway.config.cluster.mini_buffer_bytes,
                "spilled_bytes": gateway.buffers.stored_bytes,
                "held_tuples": gateway.buffers.held_tuples,
            },
            "edges": _edges(gateway),
        }

    def _stream(self, gateway: Gateway, stream: int) -> dict[str, Any]:
        intake, counts = gateway.streams[stream], gateway.streams[stream].counts
        waiting, delivered = gateway.waiting_tuples(stream), self._before[stream] + self._delivered_now(gateway, stream)
        return {
            "time_us": None if intake.high_us == BEGIN_OF_TIME_US else int(intake.high_us),
            "watermark_us": _time_or_none(intake.watermark_us),
            "idle": intake.idle,
            "ended": intake.ended,
            "waits_for_split": gateway.splits is not None and gateway.splits.waits(stream),
            "ledger": {
                "tuples": counts.tuples,
                "null_key": counts.null_key,
                "late": counts.late,
                "shed": counts.shed,
                "waiting": waiting,
                "delivered": delivered,
                "unaccounted": counts.tuples - _refused(counts) - waiting - delivered,
            },
        }

    def _delivered_now(self, gateway: Gateway, stream: int) -> int:
        """Tuples of a stream that the gateway has delivered since `watch`; over that edge of a source with the fewest."""
        if gateway.feeds is None:
            return self._delivered[stream]
        ledger = gateway.feeds.outlet.ledger
        edges = gateway.feeds.edges[stream]
        dropped = ledger.null_keys, ledger.filtered
        return min(ledger.sent.get(edge, [0])[0] + sum(by.get(edge, 0) for by in dropped) for edge in edges)


class MasterWatcher(GatewayWatcher):
    """Fills a board from the thread of master and first gateway.

    Their hosts call `begin` with every new master, also after a recovery; `loaded`, `measuring_started` and `on_log_event` as
    these happen; `take_gateway` with samples of other gateways; `sample` when `due`; `end` after success, `close` always.
    """

    def __init__(self, config: RunConfig, board: Board) -> None:
        """UserError when hot keys are wanted and the library for them is missing."""
        super().__init__(config)
        self.board = board
        self.dashboard: _Dashboard | None = None
        self._checkpoints = config.checkpoint.enabled
        shown = config.observe.enabled and board.streams == STREAM_NAMES
        wanted = config.observe.hot_keys if shown and config.gateway_count == 1 else 0  # keys of several travel as hashes
        self._hot_keys = _HotKeySamples(wanted) if wanted else None
        self._roles: tuple[Master, Gateway] | None = None
        self._others: dict[int, dict[str, Any]] = {}  # the last sample of every other gateway
        self._loads: list[_ReportedLoads] = []  # by stage
        self._prefilling = config.measure.prefill_us > 0
        self._ended = False

    # ------------------------------------------------------------ what passes

    def begin(self, master: Master, gateway: Gateway) -> None:
        """A new master and gateway, perhaps restored from a checkpoint, before the first delivery."""
        self._roles = master, gateway
        self._others = {}
        self.watch(gateway, self.board.streams)
        firsts = enumerate(zip(master.controllers, master.subclusters.first, strict=False))
        self._loads = [_ReportedLoads(stage, controller, first) for stage, (controller, first) in firsts]
        self.board.begin(self._phase)

    def take_gateway(self, view: dict[str, Any]) -> None:
        """A sample of another gateway; may be called from any thread."""
        self._others[view["gateway"]] = view

    @property
    def _phase(self) -> str:
        return "history" if self._prefilling else "running"

    def read(self, stream: int, batch: SourceBatch) -> None:
        """A batch was read."""
        if self._hot_keys is not None:
            self._hot_keys.read(stream, batch)

    def reported(self, slave: int, occupancy_ratio: float) -> None:
        """A slave's report reached the gateway."""
        self._loads_of(slave).occupied(int(slave), occupancy_ratio)

    def loaded(self, slave: int, loads: GroupLoads | None) -> None:
        """A slave's load report reached the master."""
        if loads is not None:
            self._loads_of(slave).add(loads)

    def _loads_of(self, slave: int) -> _ReportedLoads:
        """Of the slave's stage."""
        return next(loads for loads in reversed(self._loads) if slave >= loads.first)

    def measuring_started(self) -> None:
        """Prefill is over."""
        self._prefilling = False

    def on_log_event(self, event: RunEvent) -> None:
        """The run's log gets an event, of the master or of its host."""
        self.board.take_event(event)

    # ------------------------------------------------------------ sampling

    @property
    def patience_s(self) -> float:
        """Longest wait of the master's loop before `due` must be asked again."""
        return self._interval_s

    def sample(self, clock_us: int, sources: Sequence[Source]) -> None:
        """Put a sample of master and sources on the board. clock_us: of the run."""
        if self._roles is None:
            return
        self._due_s = time.monotonic() + self._interval_s
        master, gateway = self._roles
        owner = np.concatenate([loads.controller.map.owner + loads.first for loads in self._loads])
        self.board.set_master(self._view(master, gateway, clock_us), owner)
        self.board.enter(self._phase)
        for name, source in zip(self.board.streams, sources, strict=True):
            if is_live(source):
                self.board.take_source(name, source.status())
        if self._hot_keys is not None:
            self._hot_keys.sample(sources, self.board)

    def _view(self, master: Master, gateway: Gateway, clock_us: int) -> dict[str, Any]:
        others = sorted(list(self._others.values()), key=lambda view: int(view["gateway"]))
        views = [self.view_of(gateway), *others]
        streams = {name: _sum_of([view["streams"][name] for view in views]) for name in self.board.streams}
        loads = [stage.groups() for stage in self._loads]
        ledgers = {name: stream["ledger"] for name, stream in streams.items()}
        total = sum(ledger["tuples"] for ledger in ledgers.values())
        return {
            "clock_s": clock_us / 1e6,
            "epoch": int(master.epoch),
            "active_slaves": sum(len(controller.active) for controller in master.controllers),
            "streams": streams,
            "gateways": [_gateway(view, total) for view in views],
            "stages": [loads.stage(gateway) for loads in self._loads],
            "edges": [_edge(edges) for edges in zip(*(view["edges"] for view in views), strict=True)],
            "slaves": [slave for loads in self._loads for slave in loads.slaves()],
            "buffers": {
                **{name: sum(view["buffers"][name] for view in views) for name in views[0]["buffers"]},
                "parked_bytes": sum(master.controller.loads.parked_bytes.values()),
            },
            "moving": [move for loads in self._loads for move in loads.moving()],
            "moves": _moves(gateway),
            "loads": None if None in loads else [load for of_stage in loads for load in of_stage or ()],
            "checkpoints": _checkpoints(master, clock_us) if self._checkpoints else None,
            "ledger": {
                "streams": ledgers,
                "balanced": all(ledger["unaccounted"] == 0 for ledger in ledgers.values()),
            },
        }

    def end(self, clock_us: int, sources: Sequence[Source]) -> None:
        """The run succeeded; the dashboard stays until `close`."""
        self.sample(clock_us, sources)
        self._ended = True
        stopped = self._roles is not None and self._roles[0].checkpoints.stopped
        self.board.enter("stopped" if stopped else "ended")

    def close(self) -> None:
        """Ends the dashboard, after `end` or a failure; clients that poll it get a moment to read the last snapshot."""
        if not self._ended:
            self.board.enter("failed")
        if self.dashboard is not None:
            self.dashboard.close()


def _refused(counts: StreamCounts) -> int:
    return int(counts.null_key + counts.late + counts.shed)


def _time_or_none(time_us: int) -> int | None:
    """None before the first row and after the last one."""
    return int(time_us) if BEGIN_OF_TIME_US < time_us < END_OF_TIME_US else None


def _sum_of(streams: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A stream, of the samples of all gateways."""
    ledger = {name: sum(stream["ledger"][name] for stream in streams) for name in streams[0]["ledger"]}
    ended = all(stream["ended"] for stream in streams)
    return {
        **{name: ledger[name] for name in ("tuples", "null_key", "late", "shed")},
        "waiting_tuples": ledger["waiting"],
        "time_us": max((stream["time_us"] for stream in streams if stream["time_us"] is not None), default=None),
        "idle": not ended and all(stream["idle"] or stream["ended"] for stream in streams),
        "ended": ended,
        "ledger": ledger,
    }


def _gateway(view: dict[str, Any], total: int) -> dict[str, Any]:
    """A gateway among all. total: tuples that all have read."""
    names = ("watermark_us", "idle", "ended", "waits_for_split")
    ledgers = {name: stream["ledger"] for name, stream in view["streams"].items()}
    return {
        "gateway": view["gateway"],
        "endpoint": view["endpoint"],
        "share_ratio": sum(ledger["tuples"] for ledger in ledgers.values()) / total if total else None,
        "delivered": sum(ledger["delivered"] for ledger in ledgers.values()),
        "waiting_bytes": view["buffers"]["waiting_bytes"],
        "streams": {
            stream: {"tuples": ledgers[stream]["tuples"], **{name: of[name] for name in names}}
            for stream, of in view["streams"].items()
        },
    }


def _edge(edges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An edge, of the samples of all gateways: rows that wait at any of them, epochs by which the farthest is ahead."""
    waiting = [edge["waiting_rows"] for edge in edges if edge["waiting_rows"] is not None]
    ahead = [edge["epochs_ahead"] for edge in edges if edge["epochs_ahead"] is not None]
    return {**edges[0], "waiting_rows": sum(waiting) if waiting else None, "epochs_ahead": max(ahead, default=None)}


def _edges(gateway: Gateway) -> list[dict[str, Any]]:
    """The edges between sources and stages of a plan. Of those from the gateway, rows that wait for credit, and how many epochs
    it is ahead of the receivers."""
    if gateway.feeds is None:
        return []
    outlet, found, rows = gateway.feeds.outlet, [], Counter[int]()
    outlet.count_waiting(rows)
    for edge in gateway.feeds.instances.stages.edges:
        if isinstance(edge.receiver, Stage):
            waiting = ahead = None
            if isinstance(edge.sender, PlanSource):
                waiting = rows[edge.id]
                ahead = int(gateway.epoch) - (outlet.granted_epoch(edge.id) - EPOCHS_AHEAD)
            names = {"from": edge.sender.name, "to": edge.receiver.name, "port": STREAM_NAMES[edge.port], "key": list(edge.key)}
            found.append({"edge": int(edge.id), **names, "waiting_rows": waiting, "epochs_ahead": ahead})
    return found


def _moves(gateway: Gateway) -> dict[str, Any]:
    """Finished moves; hold-back of the newest of them."""
    moves = gateway.state.moving.finished
    recent_us = [hold_back_us for hold_back_us, _ in moves[-_RECENT_MOVES:]]
    return {
        "finished": len(moves),
        "state_bytes": sum(state_bytes for _, state_bytes in moves),
        "hold_back_p50_s": float(np.median(recent_us)) / 1e6 if recent_us else None,
    }


def _checkpoints(master: Master, clock_us: int) -> dict[str, Any]:
    checkpoints = master.checkpoints
    return {
        "completed": checkpoints.completed,
        "under_way": checkpoints.under_way,
        "last_s": checkpoints.durations_us[-1] / 1e6 if checkpoints.durations_us else None,
        "age_s": max(0, clock_us - checkpoints.began_us) / 1e6 if checkpoints.completed else None,
        "bytes": checkpoints.nbytes,
    }


class CollectorWatcher:
    """Samples of the collector: plain values that travel as JSON."""

    def __init__(self, config: RunConfig, columns: AnyColumns) -> None:
        """columns: of the result rows."""
        self.results = ResultWatcher(columns)
        self._interval_s = config.observe.interval_us / 1e6
        self._due_s = 0.0
        self._changed = True
        self._slaves: dict[str, dict[str, float]] = {}
        self._edges: dict[int, I64] = {}  # of a plan: what each slave has taken
        self._histogram: I64 | None = None

    def begin(self) -> None:
        """A new collector, perhaps after a recovery."""
        self._slaves.clear()
        self._edges.clear()
        self.results.begin()
        self._histogram, self._changed, self._due_s = None, True, 0.0

    def on_results(self, rows: list[tuple[int, Any]], chunk: ResultChunk) -> None:
        """The collector received a chunk of results. rows: of metrics (`core.metric_columns`), each with its generation."""
        self._changed = True
        if chunk.edges is not None:
            self._edges[int(chunk.slave)] = chunk.edges
        for _, row in rows:
            values = dict(zip(COLUMNS, row.tolist(), strict=True))
            slave = self._slaves.setdefault(str(int(values["slave"])), dict.fromkeys((*_ADDED, *_NEWEST), 0.0))
            for name in _ADDED:
                slave[name] += values[name]
            for name in _NEWEST:
                slave[name] = values[name]

    def due(self) -> bool:
        """Whether results came since the last sample, and the interval has passed."""
        return self._changed and time.monotonic() >= self._due_s

    def view(self, collector: Collector) -> dict[str, Any]:
        """A sample."""
        now_s = time.monotonic()
        self._due_s, self._changed = now_s + self._interval_s, False
        tally = collector.tally
        before = np.zeros_like(tally.histogram) if self._histogram is None else self._histogram
        recent = np.maximum(tally.histogram - before, 0)
        self._histogram = tally.histogram
        timed = int(tally.histogram.sum())
        delays: dict[str, Any] = {
            "recent": _quantiles(recent, tally.delay_max_us),
            "all": _quantiles(tally.histogram, tally.delay_max_us),
        }
        if timed:
            delays["all"] |= {"mean": tally.delay_sum_us / timed / 1e6, "max": tally.delay_max_us / 1e6}
        return {
            "sink": collector.number,
            "at_s": now_s,
            "pairs": tally.count,
            "digest": format_digest(tally.digest),
            "history_pairs": tally.prefill_count,
            "committed_epoch": int(collector.committed),
            "delay_s": delays,
            "slaves": {
                slave: {
                    "busy_s": row["process_us"] / 1e6,
                    "cpu_s": row["cpu_us"] / 1e6,
                    "tuples": row["left_tuples"] + row["right_tuples"],
                    **{name: row[name] for name in ("left_tuples", "right_tuples", "comparisons", "pairs", *_NEWEST)},
                }
                for slave, row in self._slaves.items()
            },
            "edges": self._taken(),
            "queries": self.results.sample(collector.sums_of_queries, all_of_them=collector.finished or collector.stopped),
        }

    def _taken(self) -> dict[str, list[int]]:
        """Rows, bytes, and bytes from other ranks, by edge."""
        total: dict[str, list[int]] = {}
        for edges in self._edges.values():
            for edge, *counts in edges.tolist():
                before = total.get(str(edge), [0, 0, 0])
                total[str(edge)] = [one + other for one, other in zip(before, counts, strict=True)]
        return total


def _quantiles(histogram: I64, max_us: float) -> dict[str, float] | None:
    """p50 and p99 in seconds; None for an empty histogram."""
    if not histogram.any():
        return None
    return {name: histogram_quantile(histogram, q, max_us) / 1e6 for name, q in (("p50", 0.5), ("p99", 0.99))}

"""Looking at the roles while they run, from their own threads, at most every interval.

What: `MasterWatcher` beside the master's I/O and `CollectorWatcher` beside the collector's; `open_watcher`, `close`.
Why: roles are pure and shells perform; both tell a watcher what passes, which costs a call each, and look up the rest rarely.
Stays out: what is made of it (`monitor.status_board`), how the collector's view travels (`runtime`), showing.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.collector import Collector
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import Report
from swjoin.cluster.role import Effect, Event, Log, Received, RestartClock, Send, slave_of
from swjoin.config.run import RunConfig
from swjoin.connectors.source import is_live
from swjoin.core.batch import I64, STREAM_NAMES, SourceBatch
from swjoin.core.data_messages import Delivery, RunEvent
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.join_semantics import format_digest
from swjoin.core.metric_columns import COLUMNS
from swjoin.monitor.status_board import Board
from swjoin.state.delay_histogram import histogram_quantile

if TYPE_CHECKING:
    from swjoin.connectors.source import Source
    from swjoin.monitor.hot_keys import HotKeys
    from swjoin.monitor.web import Server

HOT_KEYS_S = 1.0  # how often they are looked up
_HELD = 1000  # moves whose hold-back counts
_MOST_LOADS = 4096  # partition-groups of which the map shows how busy they are
_FORGET = 0.7  # what is left of a partition-group's load after each of its reports
_ADDED = ("comparisons", "pairs", "process_us", "cpu_us", "left_tuples", "right_tuples")
_NEWEST = ("epoch", "occupancy_ratio", "window_tuples", "window_bytes", "mini_group_count")


ADDRESS_FILE = "dashboard.txt"  # in the run's directory, while it runs


def open_watcher(config: RunConfig, about: dict[str, Any], run_dir: Path | None = None) -> MasterWatcher:
    """A watcher, with its page if a port is given; then the address is printed and written into the run's directory.

    UserError when a port is taken, or a library is missing. about: what does not change of the run, ready for JSON.
    """
    watcher = MasterWatcher(config, Board(about))
    if config.observe.port is not None:
        from swjoin.monitor.web import Server

        watcher.server = Server(watcher.board.snapshot, config.observe.port)
        print(f"dashboard: {watcher.server.address}  (in a terminal: swjoin top {watcher.server.port})", flush=True)
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
            watcher.address_file = run_dir / ADDRESS_FILE
            watcher.address_file.write_text(watcher.server.address + "\n")
    return watcher


class MasterWatcher:
    """Fills a board from the master's own thread.

    begin: once the master is made, also after a recovery. Then it is told what passes: `read`, `took`, `performed`, `happened`;
    `look` is for every round of the master's loop; `end` and `close` when it is over.
    """

    def __init__(self, config: RunConfig, board: Board) -> None:
        """UserError when hot keys are wanted and the library for them is missing."""
        self.board = board
        self.server: Server | None = None
        self.address_file: Path | None = None
        self._interval_s = config.observe.interval_us / 1e6
        self._due_s = self._hot_due_s = 0.0
        self._capacity_bytes = config.cluster.mini_buffer_bytes
        self._checkpoints = config.checkpoint.enabled
        self._hot: list[HotKeys] = []
        if config.observe.hot_keys and config.observe.enabled:
            from swjoin.monitor.hot_keys import HotKeys

            self._hot = [HotKeys(config.observe.hot_keys, seed=stream) for stream in range(len(STREAM_NAMES))]
        self._master: Master | None = None
        self._delivered = [0, 0]
        self._reported: dict[int, float] = {}
        self._cost_ns = np.zeros(0)  # of a report, by partition-group
        self._in_history = config.measure.prefill_us > 0
        self._ended = False
        self._moved_bytes = 0
        self._held_us: deque[int] = deque(maxlen=_HELD)

    # ------------------------------------------------------------ what passes

    def begin(self, master: Master) -> None:
        """The master has been made, or made anew from a checkpoint, and has not delivered anything."""
        self._master = master
        self._delivered = [s.counts.tuples - _refused(s.counts) - master.waiting_tuples(s.stream) for s in master.streams]
        self._reported.clear()
        self._cost_ns = np.zeros(len(master.controller.map.owner))
        self._moved_bytes = sum(size for _, size in master.controller.movement.finished)
        self._held_us = deque((held for held, _ in master.controller.movement.finished), maxlen=_HELD)
        self._due_s = 0.0
        self.board.begin(self._phase)

    @property
    def _phase(self) -> str:
        return "history" if self._in_history else "running"

    def read(self, stream: int, batch: SourceBatch) -> None:
        """A batch was read."""
        if self._hot:
            self._hot[stream].read(batch.key, batch.key_valid, time.monotonic())

    def took(self, event: Event) -> None:
        """The master takes an event."""
        if isinstance(event, Received) and isinstance(event.message, Report):
            self._reported[slave_of(event.sender)] = event.message.occupancy_ratio
            loads = event.message.loads
            if loads is not None:
                kept = self._cost_ns[loads.groups] * _FORGET
                self._cost_ns[loads.groups] = kept + loads.cost_ns * (1 - _FORGET)

    def performed(self, effect: Effect) -> None:
        """The master wants something done."""
        match effect:
            case Send(message=Delivery() as delivery):
                self._delivered[0] += len(delivery.left)
                self._delivered[1] += len(delivery.right)
            case Log(event):
                self.board.take_event(event)
                if event.kind == "released":
                    self._moved_bytes += event.state_bytes
                    self._held_us.append(event.duration_us)
            case RestartClock():
                self._in_history = False
            case _:
                pass

    def happened(self, event: RunEvent) -> None:
        """Something that is no decision of the master's."""
        self.board.take_event(event)

    # ------------------------------------------------------------ looking

    @property
    def patience_s(self) -> float:
        """How long the master's loop may wait before it looks again."""
        return self._interval_s

    def due(self) -> bool:
        """Whether it is time to look."""
        return time.monotonic() >= self._due_s

    def look(self, clock_us: int, sources: tuple[Source, Source]) -> None:
        """Put on the board how things stand. clock_us: of the run."""
        if self._master is None:
            return
        now_s = time.monotonic()
        self._due_s = now_s + self._interval_s
        self.board.take_master(self._view(self._master, clock_us), self._master.controller.map.owner)
        self.board.enter(self._phase)
        for name, source in zip(STREAM_NAMES, sources, strict=True):
            if is_live(source):
                self.board.take_source(name, source.status())
        if self._hot and now_s >= self._hot_due_s:
            self._hot_due_s = now_s + HOT_KEYS_S
            tops = {}
            for name, source, hot in zip(STREAM_NAMES, sources, self._hot, strict=True):
                dictionary = source.dictionary
                tops[name] = hot.top(now_s, str if dictionary is None else dictionary.text)
            self.board.take_hot_keys(tops)

    def _view(self, master: Master, clock_us: int) -> dict[str, Any]:
        controller, checkpoints = master.controller, master.checkpoints
        streams = {name: self._stream(master, i) for i, name in enumerate(STREAM_NAMES)}
        owned = np.bincount(controller.map.owner, minlength=master.slave_count)
        cost = np.bincount(controller.map.owner, self._cost_ns, master.slave_count)
        whole = float(cost.sum())
        active = set(controller.active)
        slaves = [
            {
                "slave": slave,
                "active": slave in active,
                "emptying": slave in controller.emptying,
                "groups": int(owned[slave]),
                "load_ratio": float(cost[slave]) / whole if whole else None,
                "occupancy_ratio": self._reported.get(slave),
            }
            for slave in range(master.slave_count)
        ]
        loads = self._cost_ns / self._cost_ns.max() if len(self._cost_ns) <= _MOST_LOADS and whole else None
        return {
            "clock_s": clock_us / 1e6,
            "epoch": int(master.epoch),
            "active_slaves": len(active),
            "streams": streams,
            "slaves": slaves,
            "buffers": {
                "waiting_bytes": master.slots.waiting_bytes,
                "capacity_bytes": self._capacity_bytes,
                "spilled_bytes": master.buffers.stored_bytes,
                "parked_bytes": sum(controller.loads.parked_bytes.values()),
                "held_tuples": master.buffers.held_tuples,
            },
            "moving": [
                {
                    "number": move.number,
                    "group": int(move.group),
                    "supplier": int(move.supplier),
                    "consumer": int(move.consumer),
                    "phase": str(move.state),
                }
                for move in controller.moves.values()
            ],
            "moves": {
                "finished": len(controller.movement.finished),
                "state_bytes": self._moved_bytes,
                "hold_back_p50_s": float(np.median(self._held_us)) / 1e6 if self._held_us else None,
            },
            "loads": None if loads is None else loads.round(2).tolist(),
            "checkpoints": {
                "completed": checkpoints.completed,
                "under_way": checkpoints.under_way,
                "last_s": checkpoints.durations_us[-1] / 1e6 if checkpoints.durations_us else None,
                "age_s": max(0, clock_us - checkpoints.began_us) / 1e6 if checkpoints.completed else None,
                "bytes": checkpoints.nbytes,
            }
            if self._checkpoints
            else None,
            "ledger": {
                "streams": {name: streams[name]["ledger"] for name in STREAM_NAMES},
                "balanced": all(streams[name]["ledger"]["unaccounted"] == 0 for name in STREAM_NAMES),
            },
        }

    def _stream(self, master: Master, stream: int) -> dict[str, Any]:
        intake, counts = master.streams[stream], master.streams[stream].counts
        waiting = master.waiting_tuples(stream)
        delivered = self._delivered[stream]
        ledger = {
            "tuples": counts.tuples,
            "null_key": counts.null_key,
            "late": counts.late,
            "shed": counts.shed,
            "waiting": waiting,
            "delivered": delivered,
            "unaccounted": counts.tuples - _refused(counts) - waiting - delivered,
        }
        time_us = None if intake.high_us == BEGIN_OF_TIME_US else int(intake.high_us)
        fields = {name: ledger[name] for name in ("tuples", "null_key", "late", "shed")}
        told = {"waiting_tuples": waiting, "time_us": time_us, "idle": intake.idle, "ended": intake.ended, "ledger": ledger}
        return {**fields, **told}

    def end(self, clock_us: int, sources: tuple[Source, Source]) -> None:
        """The run is over, and went well. It can still be looked at."""
        self.look(clock_us, sources)
        self._ended = True
        stopped = self._master is not None and self._master.checkpoints.stopped
        self.board.enter("stopped" if stopped else "ended")

    def close(self) -> None:
        """The end of it, after `end` or a failure; who looks on gets a moment to see how it ended."""
        if not self._ended:
            self.board.enter("failed")
        if self.server is not None:
            self.server.close()
        if self.address_file is not None:
            self.address_file.unlink(missing_ok=True)


def _refused(counts: Any) -> int:
    return int(counts.null_key + counts.late + counts.shed)


class CollectorWatcher:
    """Makes views of the collector: plain values that travel as JSON."""

    def __init__(self, config: RunConfig) -> None:
        self._interval_s = config.observe.interval_us / 1e6
        self._due_s = 0.0
        self._changed = True
        self._slaves: dict[str, dict[str, float]] = {}
        self._histogram: I64 | None = None

    def begin(self) -> None:
        """The collector has been made, perhaps anew."""
        self._slaves.clear()
        self._histogram, self._changed, self._due_s = None, True, 0.0

    def took(self, rows: list[tuple[int, Any]]) -> None:
        """Something has come; rows of metrics with their generations (`core.metric_columns`)."""
        self._changed = True
        for _, row in rows:
            values = dict(zip(COLUMNS, row.tolist(), strict=True))
            slave = self._slaves.setdefault(str(int(values["slave"])), dict.fromkeys((*_ADDED, *_NEWEST), 0.0))
            for name in _ADDED:
                slave[name] += values[name]
            for name in _NEWEST:
                slave[name] = values[name]

    def due(self) -> bool:
        """Whether there is something new to tell, and the time has come."""
        return self._changed and time.monotonic() >= self._due_s

    def view(self, collector: Collector) -> dict[str, Any]:
        """What is known now."""
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
            "at_s": now_s,
            "pairs": tally.count,
            "digest": format_digest(tally.digest),
            "history_pairs": tally.history_count,
            "committed_epoch": int(collector.committed),
            "delay_s": delays,
            "slaves": {
                slave: {
                    "busy_s": row["process_us"] / 1e6,
                    "cpu_s": row["cpu_us"] / 1e6,
                    "tuples": row["left_tuples"] + row["right_tuples"],
                    "comparisons": row["comparisons"],
                    "pairs": row["pairs"],
                    **{name: row[name] for name in _NEWEST},
                }
                for slave, row in self._slaves.items()
            },
        }


def _quantiles(histogram: I64, max_us: float) -> dict[str, float] | None:
    """p50 and p99 in seconds; None when nothing was timed."""
    if not histogram.any():
        return None
    return {name: histogram_quantile(histogram, q, max_us) / 1e6 for name, q in (("p50", 0.5), ("p99", 0.99))}

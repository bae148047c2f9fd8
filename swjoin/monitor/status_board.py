"""The present status of a run, in one place.

What: `Board`: takes samples of the master and the collector, and gives a `snapshot`, ready for JSON: rates over the last
seconds, the map of partition-groups with moves under way, recent events, the ledger so far, and a bounded time series.
Why: the page, /metrics, `swjoin top` and Flight show the same numbers; writers and readers are different threads.
Stays out: sampling the roles (`monitor.role_watchers`), presentation (`monitor.web`, `cli.top`).

Counts are those of the roles: after a recovery they return to the checkpoint's, and rates start anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np

from swjoin.core.batch import I64, STREAM_NAMES
from swjoin.core.data_messages import RunEvent
from swjoin.core.join_semantics import format_digest
from swjoin.monitor.query_results import QueryBoard

EVENTS = 100  # that a snapshot has, the newest
HISTORY_STEP_S, HISTORY_STEPS = 0.5, 1200  # of the time series: ten minutes
RATE_SPAN_S = 2.0
_MOST_LINES = 16  # slaves up to which the time series has each one's occupancy
_SLAVE_RATES = {
    "busy_s": "busy_ratio",
    "cpu_s": "cpu_ratio",
    "comparisons": "comparisons_per_s",
    "pairs": "pairs_per_s",
    "tuples": "tuples_per_s",
    "left_tuples": "left_per_s",
    "right_tuples": "right_per_s",
}
_SLAVE_VALUES = ("window_tuples", "window_bytes", "mini_group_count", "epoch", "left_tuples", "right_tuples", "pairs")


class _Rates:
    """Growth per second of named counts over the last `span_s`."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._samples: deque[tuple[float, dict[str, float]]] = deque()

    def add(self, at_s: float, counts: dict[str, float]) -> None:
        last = self._samples[-1][1] if self._samples else counts
        if any(counts[name] < last.get(name, 0) for name in counts):
            self._samples.clear()  # a recovery: counts went back
        self._samples.append((at_s, counts))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - self._span_s:
            self._samples.popleft()

    def of(self, name: str) -> float:
        """0 before the second sample."""
        if len(self._samples) < 2:
            return 0.0
        (start_s, first), (end_s, last) = self._samples[0], self._samples[-1]
        return (last.get(name, 0) - first.get(name, 0)) / (end_s - start_s) if end_s > start_s else 0.0


class _EventLog:
    """The newest events of a run, numbered from 1, and how many recoveries there were."""

    def __init__(self) -> None:
        self.newest: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self.recoveries = 0
        self._count = 0

    def add(self, event: RunEvent) -> None:
        self._count += 1
        self.newest.append({"number": self._count, **asdict(event)})
        self.recoveries += event.kind == "recovered"


class _VersionedMap:
    """Owners of the partition-groups of all stages, with a version that grows whenever one of them changes."""

    def __init__(self) -> None:
        self.owner: I64 | None = None
        self.version = 0

    def take(self, owner: I64) -> None:
        if self.owner is None or not np.array_equal(owner, self.owner):
            self.owner = owner
            self.version += 1


def _gateway_name(view: dict[str, Any]) -> str:
    """Of a gateway's tuples among the counts whose rates are kept."""
    return f"of gateway {view['gateway']}"


class Board:
    """The status of one run. All methods may be called from any thread."""

    def __init__(
        self,
        about: dict[str, Any],
        wall_s: Callable[[], float] = time.monotonic,
        streams: Sequence[str] = STREAM_NAMES,
        queries: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """about: constant facts of the run, ready for JSON; rates cover two of its `distribution_epoch_s`, at least 2 s.
        wall_s: a monotonic clock. streams: names of the streams, or of the sources of a plan. queries: descriptions of those
        that have names."""
        self._lock = threading.Lock()
        self._wall_s = wall_s
        self._about = {**about, "id": f"{time.time():.6f}"}
        self._start_s = wall_s()
        self._phase = "starting"
        self._master: dict[str, Any] = {}  # the last sample, and when it came, `at_s`
        self._sinks: dict[int, dict[str, Any]] = {}
        self._queries = QueryBoard(queries)
        self._map = _VersionedMap()
        self._hot_keys: dict[str, Any] | None = None
        self._sources: dict[str, dict[str, float]] = {name: {} for name in streams}
        self._events = _EventLog()
        self._series: deque[dict[str, Any]] = deque(maxlen=HISTORY_STEPS)
        self._forget_rates()

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def _forget_rates(self) -> None:
        span_s = max(RATE_SPAN_S, 2 * float(self._about.get("distribution_epoch_s", 0)))
        self._master_rates, self._collector_rates = _Rates(span_s), _Rates(span_s)

    # ------------------------------------------------------------ writing

    def enter(self, phase: str) -> None:
        """starting, history, running, recovering, ended, stopped or failed."""
        with self._lock:
            self._phase = phase

    def begin(self, phase: str) -> None:
        """New roles, perhaps after a recovery: rates and the collector's sample of earlier ones are forgotten."""
        with self._lock:
            self._phase = phase
            self._forget_rates()
            self._sinks.clear()
            self._queries.clear()

    def set_master(self, view: dict[str, Any], owner: I64) -> None:
        """A sample of the master (`MasterWatcher.sample`). owner: of each partition-group, stage by stage; must not be changed
        afterwards."""
        now_s = self._wall_s()
        with self._lock:
            self._master = {**view, "at_s": now_s}
            self._map.take(owner)
            counts = {name: view["streams"][name]["ledger"]["delivered"] for name in self.streams}
            counts |= {_gateway_name(of): of["delivered"] for of in view["gateways"]}
            self._master_rates.add(now_s, counts)
            if not self._series or now_s - self._start_s - self._series[-1]["t_s"] >= HISTORY_STEP_S:
                self._series.append(self._point(now_s))

    def set_collector(self, view: dict[str, Any]) -> None:
        """A sample of a sink (`CollectorWatcher.view`); pairs and digests of several sinks are summed up."""
        with self._lock:
            self._sinks[view["sink"]] = view
            self._queries.take(view["sink"], view["queries"], self._wall_s())
            view = {**self._collector, "at_s": view["at_s"]}
            counts: dict[str, float] = {"pairs": view["pairs"], "history": view["history_pairs"]}
            for slave, row in view["slaves"].items():
                counts |= {f"{slave} {name}": row[name] for name in _SLAVE_RATES}
            counts |= {f"edge {edge}": rows for edge, (rows, *_) in view["edges"].items()}
            self._collector_rates.add(view["at_s"], counts)

    @property
    def _collector(self) -> dict[str, Any]:
        """Empty before the first sample."""
        if not self._sinks:
            return {}
        sinks = self._sinks.values()
        digest = format_digest(sum(int(sink["digest"], 16) for sink in sinks) % 2**64)
        sums = {name: sum(sink[name] for sink in sinks) for name in ("pairs", "history_pairs")}
        committed = min(sink["committed_epoch"] for sink in sinks)
        first = self._sinks.get(0) or next(iter(sinks))
        return {**first, **sums, "digest": digest, "committed_epoch": committed}

    def take_event(self, event: RunEvent) -> None:
        """An event of the run's log (`cluster.master.controller` has the kinds)."""
        with self._lock:
            self._events.add(event)

    def take_hot_keys(self, tops: dict[str, Any]) -> None:
        """Results of `HotKeys.top`, by stream."""
        with self._lock:
            self._hot_keys = tops

    def take_source(self, stream: str, values: dict[str, float]) -> None:
        """A live source's own figures: rows of lag, producers, ..."""
        with self._lock:
            self._sources[stream] = dict(values)

    # ------------------------------------------------------------ reading

    def snapshot(self, since_s: float = 0.0, map_version: int = -1, query: str | None = None) -> dict[str, Any]:
        """Everything, ready for JSON.

        since_s: the time series starts after this time.
        map_version: version of the map that the reader has; with the present one `map.owner` is null.
        query: the name of one whose newest rows are wanted.
        """
        with self._lock:
            now_s, master, collector = self._wall_s(), self._master, self._collector
            owner = None if map_version == self._map.version else self._map.owner
            slaves = self._slaves()
            stages = [self._stage(stage, slaves) for stage in master.get("stages", [])]
            return {
                "run": {
                    **self._about,
                    "phase": self._phase,
                    "wall_s": now_s - self._start_s,
                    "age_s": now_s - master["at_s"] if master else None,
                    **{name: master.get(name) for name in ("clock_s", "epoch", "active_slaves")},
                    "recoveries": self._events.recoveries,
                },
                "streams": {name: self._stream(name) for name in self.streams},
                "gateways": [
                    {**of, "tuples_per_s": self._master_rates.of(_gateway_name(of))} for of in master.get("gateways", [])
                ],
                "buffers": master.get("buffers"),
                "results": self._results(collector),
                "queries": self._queries.snapshot(query, now_s),
                "delay_s": collector.get("delay_s"),
                "stages": stages,
                "edges": [self._edge(edge, stages) for edge in master.get("edges", [])],
                "slaves": slaves,
                "map": {
                    "version": self._map.version,
                    "groups": 0 if self._map.owner is None else len(self._map.owner) // len(stages),
                    "owner": None if owner is None else owner.tolist(),
                    "moving": master.get("moving", []),
                    "loads": master.get("loads"),
                },
                "moves": master.get("moves"),
                "events": list(self._events.newest),
                "checkpoints": master.get("checkpoints"),
                "ledger": master.get("ledger"),
                "hot_keys": self._hot_keys,
                "sources": {name: dict(values) for name, values in self._sources.items()},
                "history": [point for point in self._series if point["t_s"] > since_s],
            }

    def _stream(self, name: str) -> dict[str, Any] | None:
        """tuples_per_s: delivered to the slaves; the master reads ahead in large batches."""
        stream = self._master.get("streams", {}).get(name)
        return None if stream is None else {**stream, "tuples_per_s": self._master_rates.of(name)}

    def _results(self, collector: dict[str, Any]) -> dict[str, Any] | None:
        if not collector:
            return None
        names = ("pairs", "digest", "history_pairs", "committed_epoch")
        rate = self._collector_rates.of("pairs") + self._collector_rates.of("history")
        return {**{name: collector[name] for name in names}, "pairs_per_s": rate}

    def _slaves(self) -> list[dict[str, Any]]:
        rows = []
        collected = self._collector.get("slaves", {})
        for entry in self._master.get("slaves", []):
            slave = str(entry["slave"])
            row = collected.get(slave, {})
            rates = {rate: self._collector_rates.of(f"{slave} {name}") for name, rate in _SLAVE_RATES.items()}
            reported = entry["occupancy_ratio"]  # to the gateway; instances of plans report with their results alone
            occupancy = row.get("occupancy_ratio") if reported is None else reported
            rows.append({**entry, "occupancy_ratio": occupancy, **{name: row.get(name) for name in _SLAVE_VALUES}, **rates})
        return rows

    @staticmethod
    def _stage(stage: dict[str, Any], slaves: list[dict[str, Any]]) -> dict[str, Any]:
        """A stage with the sums of its slaves. epoch: the last one that all active slaves have joined."""
        mine = [slave for slave in slaves if slave["stage"] == stage["stage"]]

        def total(name: str) -> float:
            return sum(slave[name] or 0 for slave in mine)

        epochs = [slave["epoch"] for slave in mine if slave["active"]]
        return {
            **stage,
            "joined": {name: int(total(f"{name}_tuples")) for name in STREAM_NAMES},
            "joined_per_s": {name: total(f"{name}_per_s") for name in STREAM_NAMES},
            "produced": int(total("pairs")),
            "produced_per_s": total("pairs_per_s"),
            "window_bytes": int(total("window_bytes")),
            "epoch": None if None in epochs else int(min(epochs)),
        }

    def _edge(self, edge: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
        """An edge with what its receivers have taken. Between stages, it is ahead by the epochs that both have joined."""
        rows, nbytes, crossed = self._collector.get("edges", {}).get(str(edge["edge"]), (None, None, None))
        ahead, joined = edge["epochs_ahead"], {stage["join"]: stage["epoch"] for stage in stages}
        sender, receiver = joined.get(edge["from"]), joined[edge["to"]]
        if ahead is None and sender is not None and receiver is not None:
            ahead = sender - receiver
        crossed = None if edge["from"] in self.streams else crossed
        rate = self._collector_rates.of(f"edge {edge['edge']}")
        return {
            **edge,
            "epochs_ahead": ahead,
            "rows": rows,
            "bytes": nbytes,
            "between_ranks_bytes": crossed,
            "rows_per_s": rate,
        }

    def _point(self, now_s: float) -> dict[str, Any]:
        """A point of the time series. t_s: since the board was made."""
        delay = self._collector.get("delay_s") or {}
        recent = delay.get("recent") or {}
        rates = {name: round(self._master_rates.of(name)) for name in self.streams}
        point: dict[str, Any] = {f"{name}_per_s": rate for name, rate in rates.items()}
        point["streams_per_s"] = rates
        point["pairs_per_s"] = round(self._collector_rates.of("pairs") + self._collector_rates.of("history"))
        slaves = self._slaves() if len(self._master["slaves"]) <= _MOST_LINES else []
        return {
            "t_s": round(now_s - self._start_s, 3),
            **point,
            "delay_p50_s": recent.get("p50"),
            "delay_p99_s": recent.get("p99"),
            "waiting_bytes": self._master["buffers"]["waiting_bytes"],
            "moves": self._master["moves"]["finished"],
            "occupancy_ratios": [None if s["occupancy_ratio"] is None else round(s["occupancy_ratio"], 4) for s in slaves],
        }

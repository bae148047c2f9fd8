"""What is known of a run at this moment, for whoever wants to look.

What: `Board`: takes views of the master and the collector as they come, and gives a `snapshot`, ready for JSON: rates over the
last seconds, the map of partition-groups with moves on their way, recent events, the ledger so far, and a bounded history.
Why: the page, /metrics, `swjoin top` and Flight show the same account; who writes it and who reads it are different threads.
Stays out: looking at the roles (`monitor.role_watchers`), showing (`monitor.web`, `cli.top`).

Counts are those of the roles: after a recovery they go back to the checkpoint, and rates begin anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from swjoin.core.batch import I64, STREAM_NAMES
from swjoin.core.data_messages import RunEvent

EVENTS = 100  # of the newest
HISTORY_STEP_S, HISTORY_STEPS = 0.5, 1200  # ten minutes
RATE_SPAN_S = 2.0
_MOST_LINES = 16  # slaves whose occupancy the history keeps


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
        """0 while nothing is known."""
        if len(self._samples) < 2:
            return 0.0
        (start_s, first), (end_s, last) = self._samples[0], self._samples[-1]
        return (last.get(name, 0) - first.get(name, 0)) / (end_s - start_s) if end_s > start_s else 0.0


class Board:
    """One run's. All methods may be called from any thread. wall_s: a clock that only goes forward."""

    def __init__(self, about: dict[str, Any], wall_s: Callable[[], float] = time.monotonic) -> None:
        """about: what does not change, ready for JSON; rates reach back two of its `distribution_epoch_s`, at least 2 s."""
        self._lock = threading.Lock()
        self._wall_s = wall_s
        self._about = {**about, "id": f"{time.time():.6f}"}
        self._began_s = wall_s()
        self._phase = "starting"
        self._master: dict[str, Any] = {}
        self._collector: dict[str, Any] = {}
        self._master_s: float | None = None  # when its view came
        self._owner: I64 | None = None
        self._map_version = 0
        self._hot_keys: dict[str, Any] | None = None
        self._sources: dict[str, dict[str, float]] = {name: {} for name in STREAM_NAMES}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._event_count = 0
        self._recoveries = 0
        self._rate_span_s = max(RATE_SPAN_S, 2 * float(about.get("distribution_epoch_s", 0)))
        self._master_rates, self._collector_rates = _Rates(self._rate_span_s), _Rates(self._rate_span_s)
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY_STEPS)

    # ------------------------------------------------------------ writing

    def enter(self, phase: str) -> None:
        """starting, history, running, recovering, ended, stopped or failed."""
        with self._lock:
            self._phase = phase

    def begin(self, phase: str) -> None:
        """The roles have been made, perhaps anew: what was known of others does not hold for these."""
        with self._lock:
            self._phase = phase
            self._master_rates, self._collector_rates = _Rates(self._rate_span_s), _Rates(self._rate_span_s)
            self._collector = {}

    def take_master(self, view: dict[str, Any], owner: I64) -> None:
        """A view of the master (`role_watchers.MasterWatcher`). owner: of each partition-group; not to be changed any more."""
        now_s = self._wall_s()
        with self._lock:
            self._master, self._master_s = view, now_s
            if owner is not self._owner:
                self._owner = owner
                self._map_version += 1
            self._master_rates.add(now_s, {name: view["streams"][name]["ledger"]["delivered"] for name in STREAM_NAMES})
            if not self._history or now_s - self._began_s - self._history[-1]["t_s"] >= HISTORY_STEP_S:
                self._history.append(self._moment(now_s))

    def take_collector(self, view: dict[str, Any]) -> None:
        """A view of the collector (`role_watchers.CollectorWatcher`)."""
        with self._lock:
            self._collector = view
            counts: dict[str, float] = {"pairs": view["pairs"], "history": view["history_pairs"]}
            for slave, row in view["slaves"].items():
                counts |= {f"{slave} {name}": row[name] for name in ("busy_s", "cpu_s", "comparisons", "pairs", "tuples")}
            self._collector_rates.add(view["at_s"], counts)

    def take_event(self, event: RunEvent) -> None:
        """Something was decided, or has happened (`cluster.master.controller` has the kinds)."""
        with self._lock:
            self._event_count += 1
            self._events.append({"number": self._event_count, **asdict(event)})
            self._recoveries += event.kind == "recovered"

    def take_hot_keys(self, tops: dict[str, Any]) -> None:
        """By stream, as `HotKeys.top`."""
        with self._lock:
            self._hot_keys = tops

    def take_source(self, stream: str, values: dict[str, float]) -> None:
        """What a source tells of itself, in its own words: `lag_messages`, `producers`, ..."""
        with self._lock:
            self._sources[stream] = dict(values)

    # ------------------------------------------------------------ reading

    def snapshot(self, since_s: float = 0.0, map_version: int = -1) -> dict[str, Any]:
        """Everything, ready for JSON. since_s: history up to here is known already; map_version: so is this map of
        partition-groups (`map.owner` is null then)."""
        with self._lock:
            now_s, master, collector = self._wall_s(), self._master, self._collector
            known = self._owner is None or map_version == self._map_version
            owner = None if known or self._owner is None else self._owner.tolist()
            history = [point for point in self._history if point["t_s"] > since_s]
            return {
                "run": {
                    **self._about,
                    "phase": self._phase,
                    "wall_s": now_s - self._began_s,
                    "age_s": None if self._master_s is None else now_s - self._master_s,
                    **{name: master.get(name) for name in ("clock_s", "epoch", "active_slaves")},
                    "recoveries": self._recoveries,
                },
                "streams": {name: self._stream(name) for name in STREAM_NAMES},
                "buffers": master.get("buffers"),
                "results": self._results(collector),
                "delay_s": collector.get("delay_s"),
                "slaves": self._slaves(),
                "map": {
                    "version": self._map_version,
                    "groups": 0 if self._owner is None else len(self._owner),
                    "owner": owner,
                    "moving": master.get("moving", []),
                    "loads": master.get("loads"),
                },
                "moves": master.get("moves"),
                "events": list(self._events),
                "checkpoints": master.get("checkpoints"),
                "ledger": master.get("ledger"),
                "hot_keys": self._hot_keys,
                "sources": {name: dict(values) for name, values in self._sources.items()},
                "history": history,
            }

    def _stream(self, name: str) -> dict[str, Any] | None:
        """tuples_per_s: delivered to the slaves; reading goes ahead in large pieces."""
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
        told = self._collector.get("slaves", {})
        for known in self._master.get("slaves", []):
            slave, row = str(known["slave"]), told.get(str(known["slave"]), {})
            rates = {
                new: self._collector_rates.of(f"{slave} {old}")
                for old, new in (
                    ("busy_s", "busy_ratio"),
                    ("cpu_s", "cpu_ratio"),
                    ("comparisons", "comparisons_per_s"),
                    ("pairs", "pairs_per_s"),
                    ("tuples", "tuples_per_s"),
                )
            }
            windows = {name: row.get(name) for name in ("window_tuples", "window_bytes", "mini_group_count", "epoch")}
            rows.append({**known, **windows, **rates})
        return rows

    def _moment(self, now_s: float) -> dict[str, Any]:
        """A point of the history. t_s: since the board was made."""
        delay = self._collector.get("delay_s") or {}
        recent = delay.get("recent") or {}
        point: dict[str, Any] = {f"{name}_per_s": round(self._master_rates.of(name)) for name in STREAM_NAMES}
        point["pairs_per_s"] = round(self._collector_rates.of("pairs") + self._collector_rates.of("history"))
        slaves = self._master["slaves"] if len(self._master["slaves"]) <= _MOST_LINES else []
        return {
            "t_s": round(now_s - self._began_s, 3),
            **point,
            "delay_p50_s": recent.get("p50"),
            "delay_p99_s": recent.get("p99"),
            "waiting_bytes": self._master["buffers"]["waiting_bytes"],
            "moves": self._master["moves"]["finished"],
            "occupancy_ratios": [None if s["occupancy_ratio"] is None else round(s["occupancy_ratio"], 4) for s in slaves],
        }

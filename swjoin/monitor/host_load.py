"""Whether the machine was overloaded while a run was measured.

What: `RankMeter` (times of a rank and its host since `start`), `Lateness`, `machine_report` (the verdict on a run).
Why: figures from an overloaded machine say nothing about the join, so such a run must be marked as overloaded.
Stays out: what becomes of such runs (`sweeps`), how busy the slaves are by design (`core.metric_columns`).

Sources: psutil (busy, idle, stolen time of all cores), the ranks' own CPU time, and /proc/pressure/cpu (time in which some
process waited for a core), which psutil does not have; on systems other than Linux that time is unknown.
"""

from __future__ import annotations

import os
import platform
import time
from array import array
from pathlib import Path
from typing import Any

from swjoin.core.platforms import kernel_id
from swjoin.monitor.process_memory import cpu_us

STEAL_RATIO = 0.02  # limit of the time that the hypervisor gave to other machines
FOREIGN_RATIO = 0.10  # limit of the time that processes outside the run used
BUSY_RATIO = 0.90  # limit of the cores' busy time when nodes are imitated: a node must get a core when its turn comes
WAITING_RATIO = 0.25  # limit of the time in which some process waited for a core, when nodes are imitated
LATE_SLOTS, LATE_US = 0.5, 2_000  # limit of the p99 of the master's lateness: the larger one, in slots and in microseconds
_LEAST_S = 0.5  # clock ticks of 10 ms are too coarse for less


class Lateness:
    """Samples of lateness, in microseconds."""

    def __init__(self) -> None:
        self._late_us = array("q")

    def add(self, late_us: int) -> None:
        self._late_us.append(max(0, late_us))

    def quantiles(self) -> dict[str, float] | None:
        """p50, p99 and max in seconds; None without samples."""
        if not self._late_us:
            return None
        ordered = sorted(self._late_us)
        return {name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e6 for name, q in _QUANTILES}


_QUANTILES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


def _host_times() -> tuple[float, float, float, float]:
    """Seconds since the host started: busy, idle and stolen, of all cores together; seconds in which some process waited, or -1
    if that is unknown."""
    import psutil

    times = psutil.cpu_times()._asdict()
    busy = sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc"))
    waiting = -1.0
    try:
        for word in Path("/proc/pressure/cpu").read_text().split("\n", 1)[0].split():
            if word.startswith("total="):
                waiting = int(word.removeprefix("total=")) / 1e6
    except OSError:
        pass
    return busy, times["idle"] + times.get("iowait", 0.0), times.get("steal", 0.0), waiting


class RankMeter:
    """Measures one rank and its host, from the last `start` to `summary`."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        self.start()

    def start(self) -> None:
        self.lateness = Lateness()
        self._at_s, self._cpu_us, self._host = time.monotonic(), cpu_us(), _host_times()

    def summary(self) -> dict[str, Any]:
        """The times, ready for JSON."""
        now = _host_times()
        host = [b - a for a, b in zip(self._host, now, strict=True)]
        if now[3] < 0:
            host[3] = -1.0
        return {
            "host": platform.node(),
            "cores_of": kernel_id() or platform.node(),
            "cores": os.cpu_count() or 1,
            "elapsed_s": time.monotonic() - self._at_s,
            "cpu_s": (cpu_us() - self._cpu_us) / 1e6,
            "times_s": host,
            "late_s": self.lateness.quantiles(),
        }


def _host_report(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Ratios of one host from its ranks' summaries (the longest one's times)."""
    longest = max(parts, key=lambda p: float(p["elapsed_s"]))
    if longest["elapsed_s"] < _LEAST_S:
        return None
    busy, idle, steal, waiting = longest["times_s"]
    total = max(1e-9, busy + idle + steal)
    ours = sum(float(p["cpu_s"]) for p in parts)
    return {
        "cores": longest["cores"],
        "busy_ratio": busy / total,
        "steal_ratio": steal / total,
        "foreign_ratio": max(0.0, busy - ours) / total,
        "waiting_ratio": None if waiting < 0 else waiting / longest["elapsed_s"],
    }


def machine_report(master: dict[str, Any], others: list[dict[str, Any]], *, slot_us: int, imitates: bool) -> dict[str, Any]:
    """`machine` of run.json; hosts that share cores are one, by the name of the first.

    slot_us: length of the master's slot; 0 in asap pace. imitates: slower nodes are imitated.
    """
    sharing: dict[str, list[dict[str, Any]]] = {}
    for part in (master, *others):
        sharing.setdefault(part["cores_of"], []).append(part)
    reports: dict[str, dict[str, Any] | None] = {}
    for parts in sharing.values():
        name, same = parts[0]["host"], sum(parts[0]["host"] == other[0]["host"] for other in sharing.values())
        reports[name if same == 1 else f"{name} ({len(reports) + 1})"] = _host_report(parts)
    reasons = []
    for host, report in reports.items():
        if report is None:
            continue
        limits = [("steal", STEAL_RATIO, "stolen by the hypervisor"), ("foreign", FOREIGN_RATIO, "used by other processes")]
        if imitates:
            limits.append(("busy", BUSY_RATIO, "busy, too much to imitate slower nodes"))
        if imitates and (report["waiting_ratio"] or 0) > WAITING_RATIO:
            reasons.append(
                f"{host}: processes waited for a core in {report['waiting_ratio']:.0%} of the time (limit {WAITING_RATIO:.0%})"
            )
        reasons += [
            f"{host}: {report[f'{name}_ratio']:.0%} of the cores {text} (limit {limit:.0%})"
            for name, limit, text in limits
            if report[f"{name}_ratio"] > limit
        ]
    late = master["late_s"]
    limit_us = max(LATE_US, LATE_SLOTS * slot_us)
    if slot_us and late is not None and late["p99"] * 1e6 > limit_us:
        reasons.append(f"the master was late for its slots: p99 {late['p99'] * 1e3:.1f} ms (limit {limit_us / 1e3:.1f} ms)")
    slaves = [p["late_s"] for p in others if p["late_s"] is not None]
    return {
        "overloaded": bool(reasons),
        "reasons": reasons,
        "hosts": reports,
        "late_s": {
            "master": late if slot_us else None,
            "slaves": {name: max(s[name] for s in slaves) for name, _ in _QUANTILES} if slaves and slot_us else None,
        },
    }

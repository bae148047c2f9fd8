"""Memory of a run's ranks over time, and whether it stays flat.

What: `Samples`, a table with a row per rank and second; `growth`, the least-squares slope of each role's resident memory;
`Growth.flat`, the verdict.
Why: a leak of one percent a minute is invisible in short tests, and ends a run of weeks.
Stays out: sampling (`tests.tools.soak.run`), reading memory (`tests.tools.processes`), drawing (`plots.soak`).

A process's memory has a level of its own: a slave's share of the windows is larger when fewer slaves are left, and a new
process starts with little. So the samples are cut into stretches with the same process and number of living slaves, and the
first seconds of each are left out. The rest gives two slopes:
- within: the median of the stretches' slopes. It shows a steady leak; a process whose peak rises once, and which keeps that
  memory, has one steep stretch only. A slave's windows are left out: they are in maps of their own, whose resident part changes
  with every move.
- over all: one slope through all stretches, each of them one point, with a level for each number of slaves, of all memory. It
  shows growth with the age of the run from one process to the next, and counts when it is more than chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_MINUTE_S = 60.0
ENOUGH_S = 180.0  # total length of stretches that a verdict needs
SHORTEST_S = 10.0  # shorter stretches have no slope
CHANCE = 2.0  # standard errors
_FREE = 3  # degrees of freedom that a standard error needs
ROLES = ("master", "collector", "slave")


@dataclass(frozen=True)
class Sample:
    """One rank at one time. part: of the run, from a start or a resumption to the next. slaves: living ones.

    proportional_bytes, reserved_bytes: see `Mapped` of `tests.tools.processes`; both are 0 where they were not measured.
    """

    time_s: float
    part: int
    rank: int
    role: str
    pid: int
    slaves: int
    resident_bytes: int
    anonymous_bytes: int
    proportional_bytes: int = 0
    reserved_bytes: int = 0


class Samples:
    """Rows in the order of time."""

    def __init__(self, rows: Iterable[Sample] = ()) -> None:
        self.rows = list(rows)

    def add(self, sample: Sample) -> None:
        self.rows.append(sample)

    def columns(self) -> dict[str, Any]:
        return {f.name: np.array([getattr(row, f.name) for row in self.rows]) for f in fields(Sample)}

    def save(self, path: Path) -> None:
        """Write as Parquet, or as CSV by the suffix."""
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet as pq

        table = pa.table({name: pa.array(column) for name, column in self.columns().items()})
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            pa.csv.write_csv(table, path)
        else:
            pq.write_table(table, path)


@dataclass(frozen=True)
class Growth:
    """Growth of the resident memory of a role's processes, bytes per minute.

    error_per_min: standard error of the slope over all. judged_s: total length of the stretches.
    """

    role: str
    mean_bytes: float
    within_per_min: float
    over_all_per_min: float
    error_per_min: float
    judged_s: float

    def flat(self, bound_per_min: float) -> bool | None:
        """Whether no slope is above this share of the mean; None when the stretches are too short for a verdict."""
        if self.judged_s < ENOUGH_S:
            return None
        bound = bound_per_min * self.mean_bytes
        return self.within_per_min <= bound and self.over_all_per_min <= max(bound, CHANCE * self.error_per_min)

    def line(self, bound_per_min: float) -> str:
        """The growth as a line of text."""
        verdict = {True: "flat", False: "GROWS", None: "too short to say"}[self.flat(bound_per_min)]
        slopes = (self.within_per_min, self.over_all_per_min, self.error_per_min)
        within, over_all, error = (f"{100 * value / self.mean_bytes:+.2f}" for value in slopes)
        spread = f" (standard error {error[1:]})" if np.isfinite(self.error_per_min) else ""
        return (
            f"{self.role}: {self.mean_bytes / 2**20:.0f} MiB, {within} % a minute within stretches, "
            f"{over_all} % over all{spread}, {self.judged_s:.0f} s of stretches: {verdict}"
        )


def growth(columns: Mapping[str, Any], warm_up_s: float) -> list[Growth]:
    """Growth of each role with samples. columns: of a table of samples. warm_up_s: left out at the start of every stretch."""
    time, resident, reserved = (
        np.asarray(columns[name], np.float64) for name in ("time_s", "resident_bytes", "reserved_bytes")
    )
    role, slaves = np.asarray(columns["role"]), np.asarray(columns["slaves"])
    stretch = _stretches(np.asarray(columns["part"]), np.asarray(columns["pid"]), slaves, time)
    mapped = np.asarray(columns["proportional_bytes"]) > 0
    count = int(stretch.max(initial=-1)) + 1
    start = np.full(count, np.inf)
    np.minimum.at(start, stretch, time)
    settled = time >= start[stretch] + warm_up_s if count else np.zeros(0, bool)
    found = []
    for name in ROLES:
        mine = settled & (role == name)
        rows = [np.flatnonzero(mine & (stretch == s)) for s in np.unique(stretch[mine])]
        rows = [r for r in rows if np.ptp(time[r]) >= SHORTEST_S]
        if not rows:
            continue
        slopes = []
        for r in rows:
            taken = r[mapped[r]]
            apart = resident[taken] - (reserved[taken] if name == "slave" else 0)
            slopes.append(slope(time[taken], apart, np.zeros(len(taken), np.int64))[0])
        middle, level = (np.array([column[r].mean() for r in rows]) for column in (time, resident))
        over_all, error = slope(middle, level, np.array([slaves[r[0]] for r in rows]))
        lasted = sum(float(np.ptp(time[r])) for r in rows) / max(1, _together(time[np.concatenate(rows)]))
        within, over_all, error = (_MINUTE_S * value for value in (float(np.median(slopes)), over_all, error))
        found.append(Growth(name, float(level.mean()), within, over_all, error, lasted))
    return found


def slope(time: F64, value: F64, groups: NDArray[np.int64]) -> tuple[float, float]:
    """Least-squares slope with a level for each group, and its standard error (infinite with too few points)."""
    _, index = np.unique(groups, return_inverse=True)
    counts = np.bincount(index)
    t, y = (column - (np.bincount(index, column) / counts)[index] for column in (time, value))
    spread = float((t * t).sum())
    if spread == 0:
        return 0.0, np.inf
    found = float((t * y).sum()) / spread
    free = len(t) - len(counts) - 1
    rest = float(((y - found * t) ** 2).sum())
    return found, np.sqrt(rest / free / spread) if free >= _FREE else np.inf


def _together(time: F64) -> float:
    """Mean number of simultaneous stretches; there are several slaves."""
    return len(time) / max(1, len(np.unique(time)))


def _stretches(part: Any, pid: Any, slaves: Any, time: F64) -> NDArray[np.int64]:
    """Number of the stretch that each row belongs to: a process, until the number of slaves changes."""
    out = np.zeros(len(time), np.int64)
    following = 0
    for key in np.unique(np.stack([part, pid], 1), axis=0) if len(time) else []:
        rows = np.flatnonzero((part == key[0]) & (pid == key[1]))
        rows = rows[np.argsort(time[rows], kind="stable")]
        changes = np.cumsum(np.concatenate([[0], np.diff(slaves[rows]) != 0]))
        out[rows] = following + changes
        following += int(changes[-1]) + 1
    return out

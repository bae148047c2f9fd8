"""Memory of a run's ranks over time, and whether it stays flat.

What: `Samples`, a row per rank and second, kept as a table; `growth`, the least-squares slope of each role's resident memory;
`Growth.flat`, the verdict.
Why: a leak of one percent a minute is seen in no short test, and it ends a run that is meant to go on for weeks.
Stays out: whose memory is read and when (`tests.tools.soak.run`), reading it (`tests.tools.processes`), drawing (`plots.soak`).

A process's memory has a level of its own: a slave's share of the windows is larger when fewer slaves are left, and a process
that was started anew begins with little. So the samples are cut into stretches, in which the process and the number of living
slaves stay as they are, and the first seconds of each are left out. Two slopes are taken of what is left:
- within: of each stretch, and of these the median. What a process loses all the time is seen here; a process that had to hold
  more than ever before, and keeps the room, makes one stretch steep and not all. Of a slave all counts but its windows, which
  lie in maps of their own: what stays resident of them changes with every move.
- over all: one slope through all stretches, each of them one point, with a level for each number of slaves, of everything.
  What grows from one process to the next with the age of the run is seen here. It counts when it is more than chance.
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
ENOUGH_S = 180.0  # of stretches, all together; with less nothing is said
SHORTEST_S = 10.0  # a stretch that is shorter has no slope
CHANCE = 2.0  # standard errors
_FREE = 3  # degrees of freedom, for a standard error
ROLES = ("master", "collector", "slave")


@dataclass(frozen=True)
class Sample:
    """One rank at one moment. part: of the run, from a start or a resumption to the next. slaves: that live.

    proportional_bytes, reserved_bytes: see `processes.Mapped`; the former is 0 where neither was taken.
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
        """As Parquet, or as CSV when the name says so."""
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
    """How the resident memory of a role's processes grew, in bytes per minute. error_per_min: standard error of the slope over
    all. judged_s: length of all stretches together.
    """

    role: str
    mean_bytes: float
    within_per_min: float
    over_all_per_min: float
    error_per_min: float
    judged_s: float

    def flat(self, bound_per_min: float) -> bool | None:
        """Whether no slope is above this share of the mean; None when the time was too short to say."""
        if self.judged_s < ENOUGH_S:
            return None
        bound = bound_per_min * self.mean_bytes
        return self.within_per_min <= bound and self.over_all_per_min <= max(bound, CHANCE * self.error_per_min)

    def line(self, bound_per_min: float) -> str:
        """What the soak prints."""
        verdict = {True: "flat", False: "GROWS", None: "too short to say"}[self.flat(bound_per_min)]
        slopes = (self.within_per_min, self.over_all_per_min, self.error_per_min)
        within, over_all, error = (f"{100 * value / self.mean_bytes:+.2f}" for value in slopes)
        spread = f" (standard error {error[1:]})" if np.isfinite(self.error_per_min) else ""
        return (
            f"{self.role}: {self.mean_bytes / 2**20:.0f} MiB, {within} % a minute within stretches, "
            f"{over_all} % over all{spread}, {self.judged_s:.0f} s of stretches: {verdict}"
        )


def growth(columns: Mapping[str, Any], warm_up_s: float) -> list[Growth]:
    """Of each role that has samples. columns: of a table of samples. warm_up_s: left out at the start of every stretch."""
    time, resident, reserved = (
        np.asarray(columns[name], np.float64) for name in ("time_s", "resident_bytes", "reserved_bytes")
    )
    role, slaves = np.asarray(columns["role"]), np.asarray(columns["slaves"])
    stretch = _stretches(np.asarray(columns["part"]), np.asarray(columns["pid"]), slaves, time)
    mapped = np.asarray(columns["proportional_bytes"]) > 0
    count = int(stretch.max(initial=-1)) + 1
    began = np.full(count, np.inf)
    np.minimum.at(began, stretch, time)
    settled = time >= began[stretch] + warm_up_s if count else np.zeros(0, bool)
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
    """Least squares with a level of its own for each group: value per time, and its standard error (infinite when there are
    too few points for one).
    """
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
    """How many stretches there are at a time, on average: slaves are several."""
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

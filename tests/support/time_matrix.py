"""Times in every form, and the right answers."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from tests.tools.oracle import brute_force

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")  # its clocks are turned forward on 29 March 2026, back on 25 October
DAY_US = 86_400_000_000
# Midnights, UTC, so that dates are among the forms; a mistake of an hour moves pairs over the bounds of one day.
DAYS = {
    "left": [(dt.date(2026, 3, 26) + dt.timedelta(days=d), key) for d in range(7) for key in (1, 2)],
    "right": [(dt.date(2026, 3, 25) + dt.timedelta(days=2 * d), key) for d in range(5) for key in (1, 1, 3, 2)],
}
SIDES = ("left", "right")


def instants(side: str) -> list[dt.datetime]:
    return [dt.datetime(d.year, d.month, d.day, tzinfo=dt.UTC) for d, _ in DAYS[side]]


def seconds(side: str) -> list[int]:
    return [int(at.timestamp()) for at in instants(side)]


def clock(side: str, zone: dt.tzinfo) -> list[dt.datetime]:
    """What a clock of that zone shows."""
    return [at.astimezone(zone).replace(tzinfo=None) for at in instants(side)]


FORMS: dict[str, Callable[[str], pa.Array]] = {
    "utc": lambda side: pa.array(instants(side), pa.timestamp("us", "UTC")),
    "berlin": lambda side: pa.array(instants(side), pa.timestamp("ms", "Europe/Berlin")),
    "naive": lambda side: pa.array(clock(side, dt.UTC), pa.timestamp("s")),
    "local": lambda side: pa.array(clock(side, BERLIN), pa.timestamp("ns")),
    "date": lambda side: pa.array([d for d, _ in DAYS[side]], pa.date32()),
    "s": lambda side: pa.array(seconds(side), pa.int64()),
    "ms": lambda side: pa.array([1000 * s for s in seconds(side)], pa.uint64()),
    "us": lambda side: pa.array([1_000_000 * s for s in seconds(side)], pa.int64()),
    "ns": lambda side: pa.array([1_000_000_000 * s for s in seconds(side)], pa.int64()),
    "bare": lambda side: pa.array(seconds(side), pa.int32()),
}
UNITS = ("s", "ms", "us", "ns")


def table(form: str, side: str) -> pa.Table:
    return pa.table({"key": pa.array([key for _, key in DAYS[side]], pa.int64()), "ts": FORMS[form](side)})


def expected(lower_us: int = -DAY_US, upper_us: int = DAY_US) -> tuple[int, str]:
    tuples = []
    for side in SIDES:
        ts = np.array([1_000_000 * s for s in seconds(side)], np.int64)
        tuples.append(TupleBatch(np.array([k for _, k in DAYS[side]], np.int64), ts, np.arange(len(ts), dtype=np.uint64), ts))
    i, j = brute_force(tuples[0], tuples[1], Bounds.of(lower_us, upper_us, ()))
    return len(i), format_digest(pair_digest(tuples[0].id[i], tuples[1].id[j]))


@dataclass(frozen=True)
class Times:
    """Forms of both sides' times, what is declared of them, and what is to be said; None: the pairs are to be found."""

    left: str
    right: str
    refusal: str | None = None
    zone: str | None = None
    unit: str | None = None

    @property
    def name(self) -> str:
        given = [f"in {self.zone}"] if self.zone else []
        return " ".join([self.left, self.right, *given, *([f"unit {self.unit}"] if self.unit else [])])

    @property
    def units(self) -> dict[str, str]:
        """The unit of each side that has one."""
        return {side: form for side, form in zip(SIDES, (self.left, self.right), strict=True) if form in UNITS}


NO_LEFT = "left.*time column ts has no time zone .*, right.*time column ts has one .*cannot be compared; give both a zone, or"
NO_RIGHT = "right.*time column ts has no time zone .*, left.*time column ts has one .*cannot be compared; give both a zone, or"
NO_USE = "left.*assume.timezone.* is for timestamps and dates without a zone: leave it out"
MATRIX = [
    *(Times(form, form) for form in FORMS if form not in ("bare", "local")),
    Times("utc", "berlin"), Times("berlin", "utc"), Times("naive", "date"), Times("date", "naive"), Times("s", "date"),
    *(Times("utc", unit) for unit in UNITS), *(Times(unit, "berlin") for unit in UNITS), *(Times("naive", u) for u in UNITS),
    Times("s", "ns"), Times("ms", "us"), Times("us", "s"), Times("ns", "ms"),
    Times("utc", "naive", NO_RIGHT), Times("naive", "utc", NO_LEFT), Times("berlin", "local", NO_RIGHT),
    Times("date", "berlin", NO_LEFT), Times("utc", "date", NO_RIGHT),
    Times("bare", "bare", "left.*holds integers; say which unit with (--)?time.unit"),
    Times("bare", "utc", "left.*holds integers; say which unit with (--)?(left.)?time.unit"),
    Times("s", "bare", "right.*holds integers; say which unit with (--)?right.time.unit"),
    Times("naive", "bare", "right.*holds integers; say which unit with (--)?right.time.unit"),
    Times("utc", "naive", "left.*time units are for integers", unit="s"),
    Times("utc", "local", zone="Europe/Berlin"), Times("local", "utc", zone="Europe/Berlin"),
    Times("local", "local", zone="Europe/Berlin"), Times("local", "ms", zone="Europe/Berlin"),
    Times("ns", "local", zone="Europe/Berlin"), Times("date", "utc", zone="UTC"), Times("berlin", "naive", zone="UTC"),
    Times("utc", "berlin", NO_USE, zone="Europe/Berlin"), Times("s", "utc", NO_USE, zone="UTC"),
    Times("local", "utc", "'Europe/Berln' is no time zone; did you mean Europe/Berlin", zone="Europe/Berln"),
]  # fmt: skip


def _write_csv(found: pa.Table, path: Path) -> None:
    """With an offset where there is a zone."""
    kind = found.schema.field("ts").type
    if pa.types.is_timestamp(kind):
        texts = [at.isoformat() for at in found.column("ts").cast(pa.timestamp("us", kind.tz)).to_pylist()]
        found = found.set_column(1, "ts", pa.array([t.replace("+00:00", "Z") for t in texts]))
    csv.write_csv(found, path)


def _write_ipc(found: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
        writer.write_table(found)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {"csv": _write_csv, "parquet": pq.write_table, "arrow": _write_ipc}


def local(*times: str) -> pa.Table:
    return pa.table(
        {"key": [1] * len(times), "ts": pa.array([dt.datetime.fromisoformat(t) for t in times], pa.timestamp("us"))}
    )

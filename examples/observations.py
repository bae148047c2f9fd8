"""Late departures from New York in 2013 in hours of strong wind, as a query over RDF streams of observations.

What: `python -m examples.observations DIR` writes departures and weather as SOSA observations (DIR/departures.parquet,
DIR/weather.parquet) and the airports' names (DIR/airports.nt), runs `observations.rq`, compares all rows with DuckDB's answer,
and prints how late departures were by airport.
Why: observations of sensors are what RDF streams are used for; a join of seven patterns, windows and groups on real data.
Stays out: the same data as tables (`examples.weather`).

An observation has three triples of one time: what it is about, which property, and the value. A departure without a delay was
cancelled, and is no observation; nor is an hour without wind speed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import swjoin
from examples import weather
from swjoin.core.errors import RunFailed, SwjoinError

QUERY = Path(__file__).with_name("observations.rq")
NEW_YORK = "http://example.org/newyork/"
NAMES = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
_SOSA = "http://www.w3.org/ns/sosa/"
_DOUBLE = "http://www.w3.org/2001/XMLSchema#double"


def _observations(table: Any, time: str, name: str, properties: Iterable[tuple[str, str]]) -> Any:
    """Triples of the rows, one observation for each property of (its name, its column) that a row has."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"ts": [], "s": [], "p": [], "o": []}
    micros = table[time].cast(pa.int64()).to_pylist()
    for prop, column in properties:
        values = table[column].to_pylist()
        for row, (ts, origin, value) in enumerate(zip(micros, table["origin"].to_pylist(), values, strict=True)):
            if value is None or value != value:
                continue
            columns["ts"] += [ts] * 3
            columns["s"] += [f"<{NEW_YORK}{name}/{prop}/{row}>"] * 3
            columns["p"] += [f"<{_SOSA}hasFeatureOfInterest>", f"<{_SOSA}observedProperty>", f"<{_SOSA}hasSimpleResult>"]
            columns["o"] += [f"<{NEW_YORK}{origin}>", f"<{NEW_YORK}{prop}>", f'"{value}"^^<{_DOUBLE}>']
    return pa.table(columns)


def prepare(folder: Path, months: int = 12) -> dict[str, Path]:
    """The files of the example, and the tables that they come from."""
    import pyarrow.parquet as pq

    tables = weather.prepare(folder / "tables", months)
    paths = {name: folder / f"{name}.parquet" for name in ("departures", "weather")}
    flights, hours = (pq.read_table(tables[name]) for name in ("flights", "weather"))
    pq.write_table(_observations(flights, "scheduled", "departure", [("delay", "dep_delay")]), paths["departures"])
    wind = [("wind", "wind_speed"), ("visibility", "visib")]
    pq.write_table(_observations(hours, "hour", "weather", wind), paths["weather"])
    paths["airports"] = folder / "airports.nt"
    label = "http://www.w3.org/2000/01/rdf-schema#label"
    paths["airports"].write_text("".join(f'<{NEW_YORK}{code}> <{label}> "{name}" .\n' for code, name in NAMES.items()))
    return {**paths, **{f"table of {name}": path for name, path in tables.items()}}


def in_duckdb(paths: dict[str, Path]) -> Any:
    """DuckDB's answer, from the tables: name, boundary (microseconds), late departures, their mean delay, strongest wind."""
    import duckdb

    names = ", ".join(f"('{code}', '{name}')" for code, name in NAMES.items())
    hour_us = 3_600_000_000
    boundary = f"(epoch_us({{}}) + {hour_us - 1}) // {hour_us} * {hour_us}"  # the first one that is not before
    text = f"""
        WITH f AS (SELECT *, {boundary.format("scheduled")} AS at FROM read_parquet('{paths["table of flights"]}')),
             w AS (SELECT *, {boundary.format("hour")} AS at FROM read_parquet('{paths["table of weather"]}'))
        SELECT names.name, f.at AS born, count(*) AS late, avg(dep_delay) AS mean_delay, max(wind_speed) AS strongest
        FROM f JOIN w ON f.origin = w.origin AND f.at = w.at JOIN (VALUES {names}) names(code, name) ON names.code = f.origin
        WHERE dep_delay > 15 AND wind_speed >= 25 AND NOT isnan(wind_speed) GROUP BY ALL"""
    with duckdb.connect() as db:
        return db.sql(text).to_arrow_table()


def value_of(term: str) -> Any:
    """The number or the text of a literal."""
    text, _, kind = term[1:].partition('"')
    return float(text) if kind else text


def check(paths: dict[str, Path]) -> Any:
    """The answer as a table. RunFailed unless DuckDB's is the same."""
    streams = {f"{NEW_YORK}{name}": paths[name] for name in ("departures", "weather")}
    found = swjoin.rdf(QUERY.read_text(), streams, static={f"{NEW_YORK}airports": paths["airports"]})
    ours = sorted(
        (value_of(row["name"]), row["born"], *(value_of(row[name]) for name in ("late", "mean_delay", "strongest")))
        for row in found.to_pylist()
    )
    theirs = sorted(
        (row["name"], row["born"], row["late"], row["mean_delay"], row["strongest"]) for row in in_duckdb(paths).to_pylist()
    )
    same = len(ours) == len(theirs) and all(
        a[:3] == b[:3] and a[4] == b[4] and abs(a[3] - b[3]) <= 1e-9 * abs(b[3]) for a, b in zip(ours, theirs, strict=True)
    )
    if not same:
        raise RunFailed(f"swjoin has {len(ours)} rows, DuckDB {len(theirs)}, or others")
    return found


def by_airport(answer: Any) -> list[tuple[str, int, float]]:
    """Airport, late departures in strong wind, and their mean delay in minutes."""
    found: dict[str, tuple[int, float]] = {}
    for row in answer.to_pylist():
        late = int(value_of(row["late"]))
        count, minutes = found.get(value_of(row["name"]), (0, 0.0))
        found[value_of(row["name"])] = count + late, minutes + late * value_of(row["mean_delay"])
    return [(name, count, minutes / count) for name, (count, minutes) in sorted(found.items())]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("swjoin: usage: python -m examples.observations DIR", file=sys.stderr)
        return 2
    try:
        answer = check(prepare(Path(arguments[0])))
    except SwjoinError as error:
        print(f"swjoin: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{answer.num_rows:,} hours of airports with strong wind and late departures; DuckDB agrees")
    for name, late, delay in by_airport(answer):
        print(f"{name:<16} {late:>6,} late departures, {delay:5.1f} min late on average")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Departures from New York in 2013 near each other in time and distance, by different carriers: who was later?

What: `python -m examples.nearby DIR` writes DIR/flights.parquet, runs `nearby.sql` by several routings, compares them with each
other and with DuckDB's answer, and prints which carriers were later than their neighbours.
Why: a join by a band: no equality says which flights are neighbours, a difference of distances within two bounds does.
Stays out: weather (`examples.weather`), times of arrival (`examples.flights`).

Neighbours leave at most ten minutes apart for places whose distances differ by at most 25 miles. Cancelled flights have no
delay, and no pair with them is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import swjoin
from examples import weather
from swjoin.core.errors import RunFailed, SwjoinError, UserError

SQL = Path(__file__).with_name("nearby.sql")
ROUTINGS = ("auto", "matrix:2,2", "random:2,2", "contrand:4,4,2,2")


def prepare(folder: Path, months: int = 12) -> Path:
    """The file of all flights of the first months."""
    return weather.prepare(folder, months)["flights"]


def in_duckdb(flights: Path) -> Any:
    """DuckDB's answer: the text with the week that `time_bucket` finds in the place of the window."""
    import duckdb

    text = SQL.read_text()
    windows = "TUMBLE((SELECT * FROM pairs), scheduled, INTERVAL '7' DAY)"
    if text.count(windows) != 1:
        raise UserError(f"{SQL.name}: the windows are not where they were")
    bucket = "time_bucket(INTERVAL '7' DAY, scheduled, TIMESTAMP '1970-01-01') AS window_start"
    text = text.replace(windows, f"(SELECT *, {bucket} FROM pairs)").replace(", window_end", "")
    with duckdb.connect() as db:
        db.execute(f"CREATE VIEW flights AS SELECT * FROM read_parquet('{flights}')")
        return db.sql(text).to_arrow_table()


def check(flights: Path, routings: Sequence[str] = ROUTINGS) -> Any:
    """The answer as a table. RunFailed unless all routings and DuckDB agree."""
    tables = {routing: swjoin.sql(SQL.read_text(), flights=flights, time="scheduled", routing=routing) for routing in routings}
    proofs = {(proof.count, proof.digest) for proof in map(swjoin.proof, tables.values())}
    if len(proofs) != 1:
        raise RunFailed(f"routings give {len(proofs)} answers: {proofs}")
    order = [(name, "ascending") for name in ("carrier", "other", "since")]
    ours, theirs = tables[routings[0]].sort_by(order), in_duckdb(flights).sort_by(order)
    if ours.to_pylist() != theirs.to_pylist():
        raise RunFailed(f"swjoin has {ours.num_rows} rows, DuckDB {theirs.num_rows}, or others")
    return ours


def by_carrier(answer: Any) -> list[tuple[str, int, float]]:
    """Carrier, pairs, and by how many minutes it was later on average: the last ones first."""
    found: dict[str, list[float]] = {}
    for row in answer.to_pylist():
        pairs, minutes = found.setdefault(row["carrier"], [0, 0.0])
        found[row["carrier"]] = [pairs + row["pairs"], minutes + row["pairs"] * (row["more"] or 0.0)]
    carriers = [(name, int(pairs), minutes / max(1, pairs)) for name, (pairs, minutes) in found.items()]
    return sorted(carriers, key=lambda carrier: -carrier[2])


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("swjoin: usage: python -m examples.nearby DIR", file=sys.stderr)
        return 2
    try:
        answer = check(prepare(Path(arguments[0])))
    except SwjoinError as error:
        print(f"swjoin: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{sum(answer['pairs'].to_pylist()):,} pairs of neighbours; {len(ROUTINGS)} routings and DuckDB agree")
    for name, pairs, minutes in by_carrier(answer):
        print(f"{name}: {pairs:>7,} pairs, {minutes:+5.1f} min beside its neighbour")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

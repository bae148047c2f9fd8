"""The two queries of KATTS (Fischer, Scharrenbach, Bernstein, SSWS 2013) on generated data of the same shape.

What: `python -m examples.katts DIR [--spark]` writes observations of weather stations as RDF triples, and share prices,
companies and government contracts as tables, in this process or by Spark; runs `hurricane.rq` and `contracts.sql`; compares
all rows with DuckDB's answers, and prints how many there are.
Why: an aggregate of a stream per sensor, and an aggregate, a filter and a join by another key, are what the paper places; its
own data (LinkedSensorData, US spending of 2001) is not to be had.
Stays out: placing their tasks (docs/placement.md), the task graphs of the paper's runs (tests/data/katts).

A station reports every 5 to 60 minutes; those near the track of a storm have its wind. Prices are daily random walks, of which
some double; contracts are won at random, more often by companies whose price doubles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import swjoin
from swjoin.core.errors import RunFailed, SwjoinError

if TYPE_CHECKING:
    import pyarrow as pa

HURRICANE, CONTRACTS = (Path(__file__).with_name(name) for name in ("hurricane.rq", "contracts.sql"))
WEATHER = "http://example.org/weather/"
_DOUBLE = "http://www.w3.org/2001/XMLSchema#double"
_HOUR_US, _DAY_US = 3_600_000_000, 86_400_000_000
_CHUNK = 500  # stations or symbols that are generated at once, with a seed of their own


class Size(NamedTuple):
    """days: of prices; of weather a tenth."""

    stations: int = 20_000
    symbols: int = 5_000
    days: int = 60


def observations(first: int, size: Size) -> dict[str, np.ndarray]:
    """Of the stations from this one on, a chunk: station, ts (us), speed (mph, a tenth)."""
    rng, stations = np.random.default_rng([first, 1]), np.arange(first, min(first + _CHUNK, size.stations))
    end_us = max(1, size.days // 10) * _DAY_US
    times, owners = [], []
    for number in stations.tolist():
        gaps = rng.integers(5 * 60, 60 * 60, 1 + end_us // (5 * 60 * 1_000_000)) * 1_000_000
        ts = np.cumsum(gaps)
        times.append(ts[ts < end_us])
        owners.append(np.full(len(times[-1]), number))
    ts, station = np.concatenate(times), np.concatenate(owners)
    place = station / size.stations  # the storm passes the stations one after the other
    near = np.exp(-(((ts / end_us - place) / 0.04) ** 2))
    speed = np.round(rng.gamma(4, 2.5, len(ts)) + 95 * near * (station % 7 == 0), 1)
    return {"station": station, "ts": ts, "speed": speed}


def prices(first: int, size: Size) -> dict[str, np.ndarray]:
    """Of the symbols from this one on, a chunk: symbol, ts (us), price."""
    rng, symbols = np.random.default_rng([first, 2]), np.arange(first, min(first + _CHUNK, size.symbols))
    steps = rng.normal(0, 0.02, (len(symbols), size.days))
    steps[symbols % 20 == 0, size.days // 3 : size.days // 3 + 12] += 0.07
    price = np.round(20 * np.exp(np.cumsum(steps, axis=1)), 2)
    ts = np.arange(size.days) * _DAY_US + 57_600_000_000  # at 16:00
    return {"symbol": np.repeat(symbols, size.days), "ts": np.tile(ts, len(symbols)), "price": price.reshape(-1)}


def contracts(first: int, size: Size) -> dict[str, np.ndarray]:
    """Of the companies from this one on, a chunk: company, ts (us), amount."""
    rng, companies = np.random.default_rng([first, 3]), np.arange(first, min(first + _CHUNK, size.symbols))
    won = np.repeat(companies, rng.poisson(np.where(companies % 40 == 0, 3, 0.5)))
    return {"company": won, "ts": rng.integers(0, size.days * _DAY_US, len(won)), "amount": rng.integers(1, 10_000, len(won))}


_TABLES = {"observations": observations, "prices": prices, "contracts": contracts}


def _chunks(name: str, size: Size) -> range:
    return range(0, size.stations if name == "observations" else size.symbols, _CHUNK)


def _generated(name: str, size: Size) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([pa.table(_TABLES[name](first, size)) for first in _chunks(name, size)])


def _by_spark(name: str, size: Size) -> pa.Table:
    """The same rows, each chunk by a task."""
    import pyarrow as pa

    from swjoin.spark.session import open_session

    starts = _chunks(name, size)
    sample = pa.table(_TABLES[name](0, size._replace(stations=1, symbols=1)))

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in batch.column("id").to_pylist():
                yield from pa.table(_TABLES[name](first, size)).to_batches()

    schema = ", ".join(f"{field.name} {'double' if pa.types.is_floating(field.type) else 'long'}" for field in sample.schema)
    with open_session(None, "katts") as spark:
        found = spark.range(0, starts.stop, _CHUNK, max(1, len(starts) // 4)).mapInArrow(rows, schema).toArrow()
    return found.cast(sample.schema)


def prepare(folder: Path, size: Size = Size(), *, spark: bool = False) -> dict[str, Path]:  # noqa: B008 - immutable
    """The files of the example: triples, and tables in order of time. A company has a symbol, and a name of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.parquet" for name in (*_TABLES, "companies", "triples")}
    made = {name: (_by_spark if spark else _generated)(name, size).sort_by("ts") for name in _TABLES}
    symbols = pa.array(range(size.symbols))
    made["companies"] = pa.table({"symbol": symbols, "company": pa.array(_company(np.arange(size.symbols)))})
    made["contracts"] = made["contracts"].set_column(0, "company", pa.array(_company(made["contracts"]["company"].to_numpy())))
    made["triples"] = _triples(made["observations"])
    for name, table in made.items():
        if "ts" in table.column_names and name != "triples":
            table = table.set_column(table.column_names.index("ts"), "ts", table["ts"].cast(pa.timestamp("us")))
        pq.write_table(table, paths[name])
    return paths


def _company(symbols: np.ndarray) -> list[str]:
    return [f"Company {(7919 * symbol + 13) % 1_000_003}" for symbol in symbols.tolist()]


def _triples(table: pa.Table) -> pa.Table:
    """Two for each observation, at its time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count, text = table.num_rows, pa.large_string()
    twice, turns = np.repeat(np.arange(count), 2), np.arange(2 * count) // 2 + np.arange(2 * count) % 2 * count

    def around(before: str, values: Any, after: str) -> pa.Array:
        return pc.binary_join_element_wise(
            pa.scalar(before, text), values.cast(text), pa.scalar(after, text), pa.scalar("", text)
        )

    subject = around(f"<{WEATHER}o", pa.array(np.arange(count)), ">")
    stations = around(f"<{WEATHER}s", table["station"].combine_chunks(), ">")
    speeds = around('"', table["speed"].combine_chunks(), f'"^^<{_DOUBLE}>')
    names = pa.array([f"<{WEATHER}station>", f"<{WEATHER}windSpeed>"])
    objects = pa.concat_arrays([stations, speeds])
    columns = [table["ts"].take(twice), subject.take(twice), names.take(np.arange(2 * count) % 2), objects.take(turns)]
    return pa.table(dict(zip(("ts", "s", "p", "o"), columns, strict=True)))


def hurricane(paths: dict[str, Path]) -> list[tuple[Any, ...]]:
    """Station, boundary (us) and least speed. RunFailed unless DuckDB has the same."""
    import duckdb

    found = swjoin.rdf(HURRICANE.read_text(), {f"{WEATHER}observations": paths["triples"]})
    ours = sorted(
        (int(row["station"][len(WEATHER) + 2 : -1]), row["born"], float(row["least"].split('"')[1]))
        for row in found.to_pylist()
    )
    with duckdb.connect() as db:
        theirs = db.sql(f"""
            WITH o AS (SELECT station, speed, epoch_us(ts) AS us FROM read_parquet('{paths["observations"]}')),
                 n AS (SELECT o.*, unnest(range(0, 3)) AS k FROM o),
                 w AS (SELECT station, speed, ((us + {_HOUR_US - 1}) // {_HOUR_US} + k) * {_HOUR_US} AS until FROM n)
            SELECT station, until, min(speed) FROM w GROUP BY ALL HAVING min(speed) >= 74""").fetchall()
    return _same("hurricane.rq", ours, sorted(theirs))


def won(paths: dict[str, Path]) -> list[tuple[Any, ...]]:
    """Company, end of the window in which its price doubled, ratio, time and amount of the contract. RunFailed unless DuckDB
    has the same."""
    import duckdb

    tables = {name: str(paths[name]) for name in ("prices", "companies", "contracts")}
    found = swjoin.sql(CONTRACTS.read_text(), **tables, time={"prices": "ts", "contracts": "ts"})
    with duckdb.connect() as db:
        theirs = db.sql(f"""
            WITH p AS (SELECT *, unnest(range(0, 20)) AS k FROM read_parquet('{tables["prices"]}')),
                 d AS (SELECT symbol, date_trunc('day', ts) + to_days(CAST(k + 1 AS INTEGER)) AS until,
                              max(price) / min(price) AS ratio FROM p GROUP BY ALL HAVING max(price) / min(price) > 2)
            SELECT n.company, d.until, d.ratio, c.ts, c.amount
            FROM d JOIN read_parquet('{tables["companies"]}') n USING (symbol)
            JOIN read_parquet('{tables["contracts"]}') c
              ON c.company = n.company AND c.ts BETWEEN d.until AND d.until + INTERVAL 20 DAY
        """).fetchall()
    return _same("contracts.sql", sorted(tuple(row.values()) for row in found.to_pylist()), sorted(theirs))


def _same(query: str, ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    if ours != theirs:
        raise RunFailed(f"{query}: swjoin has {len(ours)} rows, DuckDB {len(theirs)}, or others")
    return ours


def main(arguments: list[str]) -> int:
    if not arguments or arguments[1:] not in ([], ["--spark"]):
        print("swjoin: usage: python -m examples.katts DIR [--spark]", file=sys.stderr)
        return 2
    try:
        paths = prepare(Path(arguments[0]), spark=len(arguments) > 1)
        storms, deals = hurricane(paths), won(paths)
    except SwjoinError as error:
        print(f"swjoin: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{len(storms):,} hours of {len({row[0] for row in storms}):,} stations in a hurricane; DuckDB agrees")
    print(f"{len(deals):,} contracts of {len({row[0] for row in deals}):,} companies whose price had doubled; DuckDB agrees")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

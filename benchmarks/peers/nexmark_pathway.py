"""Pathway for the comparison of Nexmark's queries: a process that runs the queries that lines on stdin name.

What: reads the Parquet files of a folder into data frames, prints "READY version configuration", and then runs the function of
a query here for each line (`benchmarks.peers.common.answer_queries`). CHECK collects its rows, TIME writes them to Pathway's
null sink and counts them.
Why: Pathway's SQL has no windows; a query is the expression over tables that its user would write.
Stays out: which queries run, their texts in SQL, the comparison (`benchmarks.peers.nexmark`).

Tables are static, Pathway's fastest way: all rows are there from the start. Tumbling windows are groups by a time that is
rounded down, which costs less than `windowby`; sliding and session windows are `windowby`. Pathway's functions of texts are
Python's, called for each value, so where a query has several of them they are one function. A column `id` is called `number`,
since Pathway's rows have an `id` of their own.

    python -m benchmarks.peers.nexmark_pathway --folder FOLDER

Needs the packages of requirements-pathway.txt.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pathway as pw
import pyarrow.parquet as pq
from pathway.internals import api
from pathway.internals.datasource import PandasDataSource
from pathway.internals.parse_graph import G
from pathway.internals.schema import schema_from_pandas
from pathway.internals.table_io import table_from_datasource

from benchmarks.peers.common import answer_queries

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
Tables = dict[str, Any]
R = pw.reducers


# ---------------------------------------------------------------- queries without state


def q0(tables: Tables) -> Any:
    b = tables["bid"]
    return b.select(b.auction, b.bidder, b.price, b.date_time, b.extra)


def q1(tables: Tables) -> Any:
    b = tables["bid"]
    return b.select(b.auction, b.bidder, price=0.908 * b.price, date_time=b.date_time, extra=b.extra)


def q2(tables: Tables) -> Any:
    b = tables["bid"]
    return b.filter(b.auction % 123 == 0).select(pw.this.auction, pw.this.price)


def q10(tables: Tables) -> Any:
    b = tables["bid"]
    minute = b.date_time.dt.hour() * 60 + b.date_time.dt.minute()
    day = b.date_time.dt.floor(timedelta(days=1))
    return b.select(b.auction, b.bidder, b.price, b.date_time, b.extra, day=day, minute=minute)


def q13(tables: Tables) -> Any:
    b, s = tables["bid"], tables["side_input"]
    b = b.with_columns(side=b.auction % 10_000)
    return b.join(s, b.side == s.key).select(b.auction, b.bidder, b.price, b.date_time, s.value)


def q14(tables: Tables) -> Any:
    b = tables["bid"]
    b = b.with_columns(euros=0.908 * b.price)
    b = b.filter((b.euros > 1_000_000) & (b.euros < 50_000_000))
    hour = b.date_time.dt.hour()
    kind = pw.if_else((hour >= 8) & (hour <= 18), "dayTime", pw.if_else((hour <= 6) | (hour >= 20), "nightTime", "otherTime"))
    return b.select(
        b.auction, b.bidder, price=b.euros, kind=kind, date_time=b.date_time, extra=b.extra, counts=b.extra.str.count("c")
    )


NUMBERS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}


def number_of(channel: str, url: str) -> str:
    return NUMBERS.get(channel.lower()) or url.partition("channel_id=")[2]


def q21(tables: Tables) -> Any:
    b = tables["bid"]
    b = b.select(b.auction, b.bidder, b.price, b.channel, number=pw.apply_with_type(number_of, str, b.channel, b.url))
    return b.filter(b.number != "")


def folders(url: str) -> tuple[str, str, str]:
    parts = (url + "///").split("/")
    return parts[3], parts[4], parts[5]


def q22(tables: Tables) -> Any:
    b = tables["bid"]
    b = b.with_columns(parts=pw.apply_with_type(folders, tuple[str, str, str], b.url))
    parts = {f"dir{at + 1}": b.parts[at] for at in range(3)}
    return b.select(b.auction, b.bidder, b.price, b.channel, **parts)


# ---------------------------------------------------------------- windows


def q5(tables: Tables) -> Any:
    b = tables["bid"]
    windows = b.windowby(b.date_time, window=pw.temporal.sliding(2 * SECOND, 10 * SECOND), instance=b.auction)
    counts = windows.reduce(auction=pw.this._pw_instance, start=pw.this._pw_window_start, num=R.count())
    most = counts.groupby(counts.start).reduce(counts.start, num=R.max(counts.num))
    return counts.join(most, counts.start == most.start, counts.num == most.num).select(counts.auction, counts.num)


def q7(tables: Tables) -> Any:
    b = tables["bid"].with_columns(start=pw.this.date_time.dt.floor(10 * SECOND))
    most = b.groupby(b.start).reduce(b.start, price=R.max(b.price))
    return b.join(most, b.start == most.start, b.price == most.price).select(b.auction, b.price, b.bidder, b.date_time)


def q8(tables: Tables) -> Any:
    p = tables["person"].with_columns(start=pw.this.date_time.dt.floor(10 * SECOND))
    a = tables["auction"].with_columns(start=pw.this.date_time.dt.floor(10 * SECOND))
    p = p.groupby(p.number, p.name, p.start).reduce(p.number, p.name, p.start)
    a = a.groupby(a.seller, a.start).reduce(a.seller, a.start)
    return p.join(a, p.number == a.seller, p.start == a.start).select(p.number, p.name, p.start)


def q11(tables: Tables) -> Any:
    b, gap = tables["bid"], 10 * SECOND
    sessions = b.windowby(b.date_time, window=pw.temporal.session(max_gap=gap), instance=b.bidder)
    found = sessions.reduce(
        bidder=pw.this._pw_instance, count=R.count(), start=R.min(pw.this.date_time), last=R.max(pw.this.date_time)
    )
    return found.select(found.bidder, found.count, found.start, end=found.last + gap)


def ranks(b: Any) -> list[Any]:
    """Whether a bid is in each rank of prices."""
    return [b.price < 10_000, (b.price >= 10_000) & (b.price < 1_000_000), b.price >= 1_000_000]


def counts_of(b: Any) -> dict[str, Any]:
    """Bids, of all and of each rank."""
    return {"bids": R.count()} | {f"bids{at}": R.sum(pw.if_else(rank, 1, 0)) for at, rank in enumerate(ranks(b), 1)}


def distinct_of(b: Any, name: str) -> dict[str, Any]:
    """Different values, of all and of each rank: -1 is the value of a bid of other ranks."""
    out = {name: R.count_distinct(b[name])}
    for at, rank in enumerate(ranks(b), 1):
        others = R.max(pw.if_else(rank, 0, 1))
        out[f"{name}{at}"] = R.count_distinct(pw.if_else(rank, b[name], -1)) - others
    return out


def by_day(tables: Tables) -> Any:
    return tables["bid"].with_columns(day=pw.this.date_time.dt.floor(timedelta(days=1)))


def q15(tables: Tables) -> Any:
    b = by_day(tables)
    return b.groupby(b.day).reduce(b.day, **counts_of(b), **distinct_of(b, "bidder"), **distinct_of(b, "auction"))


def q16(tables: Tables) -> Any:
    b = by_day(tables).with_columns(minute=pw.this.date_time.dt.floor(MINUTE))
    cells = counts_of(b) | distinct_of(b, "bidder") | distinct_of(b, "auction")
    return b.groupby(b.channel, b.day).reduce(b.channel, b.day, minute=R.max(b.minute), **cells)


def q17(tables: Tables) -> Any:
    b = by_day(tables)
    price = {"min": R.min(b.price), "max": R.max(b.price), "avg": R.avg(b.price), "sum": R.sum(b.price)}
    return b.groupby(b.auction, b.day).reduce(b.auction, b.day, **counts_of(b), **price)


def q18(tables: Tables) -> Any:
    b = tables["bid"].with_columns(minute=pw.this.date_time.dt.floor(MINUTE))
    late = -b.date_time.dt.timestamp(unit="us")
    last = R.min(pw.make_tuple(late, -b.price, b.channel, b.url, b.date_time, b.extra))
    found = b.groupby(b.bidder, b.auction, b.minute).reduce(b.auction, b.bidder, last=last)
    row = found.last
    return found.select(found.auction, found.bidder, price=-row[1], channel=row[2], url=row[3], date_time=row[4], extra=row[5])


Ranked = tuple[int, pw.DateTimeNaive, int, str, str, str]


def first_ten(rows: tuple[Any, ...]) -> list[tuple[int, Any]]:
    return list(enumerate(rows[:10], 1))


def q19(tables: Tables) -> Any:
    b = tables["bid"].with_columns(minute=pw.this.date_time.dt.floor(MINUTE))
    rows = R.sorted_tuple(pw.make_tuple(-b.price, b.date_time, b.bidder, b.channel, b.url, b.extra))
    found = b.groupby(b.auction, b.minute).reduce(b.auction, b.minute, rows=rows)
    best = pw.apply_with_type(first_ten, list[tuple[int, Ranked]], found.rows)
    each = found.select(found.auction, found.minute, best=best).flatten(pw.this.best)
    number, row = each.best[0], each.best[1]
    times = {"date_time": row[1], "extra": row[5], "start": each.minute, "end": each.minute + MINUTE}
    return each.select(each.auction, bidder=row[2], price=-row[0], channel=row[3], url=row[4], **times, number=number)


# ---------------------------------------------------------------- joins within an interval


def q3(tables: Tables) -> Any:
    p, a = tables["person"], tables["auction"]
    p = p.filter((p.state == "OR") | (p.state == "ID") | (p.state == "CA"))
    a = a.filter(a.category == 10)
    within = pw.temporal.interval(0 * SECOND, 10 * MINUTE)
    pairs = p.interval_join(a, p.date_time, a.date_time, within, p.number == a.seller)
    return pairs.select(p.name, p.city, p.state, a.number)


def bids_of_auctions(tables: Tables, a: Any) -> tuple[Any, Any]:
    b = tables["bid"]
    within = pw.temporal.interval(0 * SECOND, 10 * SECOND)
    return b, a.interval_join(b, a.date_time, b.date_time, within, a.number == b.auction)


def q4(tables: Tables) -> Any:
    a = tables["auction"]
    b, pairs = bids_of_auctions(tables, a)
    rows = pairs.select(a.number, a.category, a.date_time, a.expires, b.price, bid_time=b.date_time)
    rows = rows.filter(rows.bid_time <= rows.expires)
    closed = rows.groupby(rows.number, rows.category, rows.date_time).reduce(
        rows.category, start=rows.date_time.dt.floor(MINUTE), final=R.max(rows.price)
    )
    return closed.groupby(closed.category, closed.start).reduce(closed.category, closed.start, final=R.avg(closed.final))


def q9(tables: Tables) -> Any:
    a = tables["auction"]
    b, pairs = bids_of_auctions(tables, a)
    names = ["number", "item_name", "seller", "category", "date_time", "expires"]
    rows = pairs.select(*(a[name] for name in names), b.price, b.bidder, bid_time=b.date_time)
    rows = rows.filter(rows.bid_time <= rows.expires)
    keys = [rows[name] for name in names]
    won = rows.groupby(*keys).reduce(*keys, best=R.min(pw.make_tuple(-rows.price, rows.bid_time, rows.bidder)))
    best = won.best
    return won.select(*(won[name] for name in names), auction=won.number, bidder=best[2], price=-best[0], bid_date_time=best[1])


def q20(tables: Tables) -> Any:
    a = tables["auction"]
    a = a.filter(a.category == 10)
    b, pairs = bids_of_auctions(tables, a)
    of_auction = [a.item_name, a.initial_bid, a.reserve]
    of_bid = [b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra]
    return pairs.select(*of_bid, *of_auction, a_date_time=a.date_time, expires=a.expires, seller=a.seller, category=a.category)


QUERIES: dict[str, Callable[[Tables], Any]] = {
    made.__name__: made
    for made in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q10, q11, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}


class Input(dict[str, Any]):
    """The tables, made when a query names them."""

    def __init__(self, frames: dict[str, tuple[pd.DataFrame, Any]]) -> None:
        self._frames = frames

    def __missing__(self, name: str) -> Any:
        frame, schema = self._frames[name]
        return self.setdefault(name, table_from_datasource(PandasDataSource(schema=schema, data=frame)))


class Rows:
    """Takes what Pathway would give its engine."""

    def static_table(self, *rows: Any) -> Any:
        return rows


def keep_rows() -> None:
    """From now on the rows of a data frame are made once: Pathway makes them in Python, at the start of every run."""
    made: dict[int, Any] = {}
    make = api.static_table_from_pandas

    def kept(scope: Any, df: pd.DataFrame, **options: Any) -> Any:
        if id(df) not in made:
            made[id(df)] = make(Rows(), df, **options)
        return scope.static_table(*made[id(df)])

    api.static_table_from_pandas = kept


def run(frames: dict[str, tuple[pd.DataFrame, Any]], query: str, kept: list[Any] | None) -> tuple[float, int]:
    """Seconds and rows."""
    G.clear()
    result = QUERIES[query](Input(frames))
    names, rows, counts = result.column_names(), Counter[Any](), [0]

    def collect(key: object, row: dict[str, Any], time: int, is_addition: bool) -> None:
        rows[tuple(row[name] for name in names)] += 1 if is_addition else -1

    def count(key: object, row: dict[str, int], time: int, is_addition: bool) -> None:
        if is_addition:
            counts[0] = row["count"]

    if kept is None:
        pw.io.null.write(result)
        pw.io.subscribe(result.reduce(count=R.count()), on_change=count)
    else:
        pw.io.subscribe(result, on_change=collect)
    start = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    seconds = time.perf_counter() - start
    if kept is not None:
        kept += rows.elements()
        counts[0] = len(kept)
    return seconds, counts[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="with a Parquet file for each table")
    parser.add_argument("--cores", type=int, help="has no effect: PATHWAY_THREADS, or one thread")
    parser.add_argument("--heap", help="has no effect")
    args = parser.parse_args()
    threads = os.environ.setdefault("PATHWAY_THREADS", "1")
    tables = {path.stem: pq.read_table(path) for path in sorted(args.folder.glob("*.parquet"))}
    data = {name: table.to_pandas().rename(columns={"id": "number"}) for name, table in tables.items()}
    frames = {name: (frame, schema_from_pandas(frame)) for name, frame in data.items()}
    keep_rows()
    configuration = (
        f"{threads} thread(s), static tables in memory, as rows that the engine takes, rows to the null sink, counted and not "
        "hashed"
    )
    answer_queries(f"Pathway {pw.__version__}", configuration, QUERIES, lambda query, kept: run(frames, query, kept))


if __name__ == "__main__":
    main()

"""Bytewax for the comparison of Nexmark's queries: a process that runs the queries that lines on stdin name.

What: reads the Parquet files of a folder into tuples, prints "READY version configuration", and then runs the function of a
query here for each line (`benchmarks.peers.common.answer_queries`). CHECK writes its rows, TIME counts them.
Why: Bytewax has no SQL; a query is the dataflow that its user would write, of Bytewax's own windows and joins.
Stays out: which queries run, their texts in SQL, the comparison (`benchmarks.peers.nexmark`).

Steps without state are list comprehensions over batches, which cost less than a call per row. Windows close as the time of
their key's rows advances, with nothing late: the input is in order. Where two tables meet, windows stay open until the end of
the input, since each table is read at its own pace; a join within an interval of time, which Bytewax does not have, is its join
of everything with the same key, filtered afterwards.

    python -m benchmarks.peers.nexmark_bytewax --folder FOLDER

Needs the packages of requirements-bytewax.txt.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import namedtuple
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from benchmarks.peers.common import answer_queries

BATCH = 10_000  # rows that a source hands over at once
ZERO = datetime(2015, 1, 1, tzinfo=UTC)  # a start of windows of every length
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
IN_ORDER, AT_THE_END = timedelta(0), timedelta(days=400)  # how far a clock stays behind
Row = Any  # a namedtuple of a table


class Part(StatefulSourcePartition):  # type: ignore[misc]
    def __init__(self, rows: list[Row]) -> None:
        self._rows, self._at = rows, 0

    def next_batch(self) -> Iterable[Row]:
        if self._at >= len(self._rows):
            raise StopIteration
        batch = self._rows[self._at : self._at + BATCH]
        self._at += BATCH
        return batch

    def snapshot(self) -> int:
        return self._at


class Table(FixedPartitionedSource):  # type: ignore[misc]
    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        return Part(self._rows)


class Rows(StatelessSinkPartition):  # type: ignore[misc]
    """Counts rows; keeps them as well, when `kept` is a list."""

    def __init__(self, kept: list[Any] | None) -> None:
        self.count, self.kept = 0, kept

    def write_batch(self, items: list[Any]) -> None:
        self.count += len(items)
        if self.kept is not None:
            self.kept += items


class Sink(DynamicSink):  # type: ignore[misc]
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Rows:
        return self._rows


class Input:
    """The tables as streams of a dataflow; names of steps."""

    def __init__(self, flow: Dataflow, tables: dict[str, list[Row]]) -> None:
        self._flow, self.tables, self._numbers = flow, tables, count()

    def name(self) -> str:
        return f"step-{next(self._numbers)}"

    def __getitem__(self, table: str) -> Any:
        return op.input(self.name(), self._flow, Table(self.tables[table]))

    def each(self, up: Any, batch: Callable[[list[Any]], Iterable[Any]]) -> Any:
        """A step without state."""
        return op.flat_map_batch(self.name(), up, batch)


def clock(behind: timedelta = IN_ORDER) -> win.EventClock:
    """The time of rows alone; the computer's clock moves nothing."""
    return win.EventClock(lambda row: row.date_time, behind, now_getter=lambda: ZERO, to_system_utc=lambda _: None)


def tumbling(length: timedelta) -> win.TumblingWindower:
    return win.TumblingWindower(length, ZERO)


def folded(streams: Input, up: Any, windower: win.Windower, new: Callable[[], Any], fold: Callable[[Any, Row], Any]) -> Any:
    """(key, (window, state)) of closed windows."""
    return win.fold_window(streams.name(), up, clock(), windower, new, fold, lambda a, b: a + b, ordered=False).down


# ---------------------------------------------------------------- queries without state


def q0(streams: Input) -> Any:
    return streams.each(streams["bid"], lambda bids: [(b.auction, b.bidder, b.price, b.date_time, b.extra) for b in bids])


def q1(streams: Input) -> Any:
    return streams.each(
        streams["bid"], lambda bids: [(b.auction, b.bidder, 0.908 * b.price, b.date_time, b.extra) for b in bids]
    )


def q2(streams: Input) -> Any:
    return streams.each(streams["bid"], lambda bids: [(b.auction, b.price) for b in bids if b.auction % 123 == 0])


def q10(streams: Input) -> Any:
    def divided(bids: list[Row]) -> list[Any]:
        return [
            (b.auction, b.bidder, b.price, t, b.extra, t.date(), t.hour * 60 + t.minute) for b in bids for t in (b.date_time,)
        ]

    return streams.each(streams["bid"], divided)


def q13(streams: Input) -> Any:
    values = {row.key: row.value for row in streams.tables["side_input"]}

    def enriched(bids: list[Row]) -> list[Any]:
        found = ((b, values.get(b.auction % 10_000)) for b in bids)
        return [(b.auction, b.bidder, b.price, b.date_time, value) for b, value in found if value is not None]

    return streams.each(streams["bid"], enriched)


def q14(streams: Input) -> Any:
    kinds = ["dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime" for hour in range(24)]

    def filtered(bids: list[Row]) -> list[Any]:
        return [
            (b.auction, b.bidder, price, kinds[b.date_time.hour], b.date_time, b.extra, b.extra.count("c"))
            for b in bids
            if 1_000_000 < (price := 0.908 * b.price) < 50_000_000
        ]

    return streams.each(streams["bid"], filtered)


def q21(streams: Input) -> Any:
    numbers = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}

    def named(bids: list[Row]) -> list[Any]:
        found = ((b, numbers.get(b.channel.lower()) or b.url.partition("channel_id=")[2]) for b in bids)
        return [(b.auction, b.bidder, b.price, b.channel, number) for b, number in found if number]

    return streams.each(streams["bid"], named)


def q22(streams: Input) -> Any:
    def split(bids: list[Row]) -> list[Any]:
        return [(b.auction, b.bidder, b.price, b.channel, *(b.url + "///").split("/")[3:6]) for b in bids]

    return streams.each(streams["bid"], split)


# ---------------------------------------------------------------- windows


def q5(streams: Input) -> Any:
    windower = win.SlidingWindower(10 * SECOND, 2 * SECOND, ZERO)
    counts = win.count_window(streams.name(), streams["bid"], clock(), windower, lambda b: str(b.auction)).down
    by_window = streams.each(counts, lambda rows: [(str(window), (num, auction)) for auction, (window, num) in rows])

    def most(best: list[Any], row: Any) -> list[Any]:
        if best and best[0][0] > row[0]:
            return best
        return [*best, row] if best and best[0][0] == row[0] else [row]

    all_most = op.fold_final(streams.name(), by_window, list, most)
    return streams.each(all_most, lambda rows: [(int(auction), num) for _, best in rows for num, auction in best])


def q7(streams: Input) -> Any:
    def highest(best: list[Row], bid: Row) -> list[Row]:
        if best and best[0].price > bid.price:
            return best
        return [*best, bid] if best and best[0].price == bid.price else [bid]

    keyed = streams.each(streams["bid"], lambda bids: [("", b) for b in bids])
    best = folded(streams, keyed, tumbling(10 * SECOND), list, highest)
    return streams.each(best, lambda rows: [(b.auction, b.price, b.bidder, b.date_time) for _, (_, bids) in rows for b in bids])


def q8(streams: Input) -> Any:
    persons = streams.each(streams["person"], lambda rows: [(str(p.id), p) for p in rows])
    auctions = streams.each(streams["auction"], lambda rows: [(str(a.seller), a) for a in rows])
    length = 10 * SECOND
    joined = win.join_window(
        streams.name(), clock(AT_THE_END), tumbling(length), persons, auctions, insert_mode="last", emit_mode="final"
    ).down

    def both(rows: list[Any]) -> list[Any]:
        return [(p.id, p.name, ZERO + window * length) for _, (window, (p, a)) in rows if p is not None and a is not None]

    return streams.each(joined, both)


def q11(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [(str(b.bidder), b) for b in bids])

    def extend(times: list[datetime], bid: Row) -> list[datetime]:
        times.append(bid.date_time)
        return times

    gap = 10 * SECOND
    sessions = folded(streams, keyed, win.SessionWindower(gap), list, extend)
    return streams.each(
        sessions, lambda rows: [(int(bidder), len(times), min(times), max(times) + gap) for bidder, (_, times) in rows]
    )


class Daily:
    """Counts of a day: bids, bidders and auctions, of all and of three ranks of prices."""

    def __init__(self) -> None:
        self.bids, self.last = [0] * 4, ZERO
        self.bidders: list[set[int]] = [set() for _ in range(4)]
        self.auctions: list[set[int]] = [set() for _ in range(4)]

    def add(self, bid: Row) -> Daily:
        rank = 1 if bid.price < 10_000 else 2 if bid.price < 1_000_000 else 3
        for at in (0, rank):
            self.bids[at] += 1
            self.bidders[at].add(bid.bidder)
            self.auctions[at].add(bid.auction)
        self.last = max(self.last, bid.date_time)
        return self

    def cells(self) -> tuple[int, ...]:
        return (*self.bids, *map(len, self.bidders), *map(len, self.auctions))


def q15(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [("", b) for b in bids])
    days = folded(streams, keyed, tumbling(DAY), Daily, Daily.add)
    return streams.each(days, lambda rows: [(ZERO + day * DAY, *daily.cells()) for _, (day, daily) in rows])


def q16(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [(b.channel, b) for b in bids])
    days = folded(streams, keyed, tumbling(DAY), Daily, Daily.add)

    def cells(rows: list[Any]) -> list[Any]:
        return [
            (channel, ZERO + day * DAY, daily.last.replace(second=0, microsecond=0), *daily.cells())
            for channel, (day, daily) in rows
        ]

    return streams.each(days, cells)


def q17(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [(str(b.auction), b) for b in bids])

    def add(state: list[int], bid: Row) -> list[int]:
        price = bid.price
        state[0] += 1
        state[1 if price < 10_000 else 2 if price < 1_000_000 else 3] += 1
        state[4], state[5] = min(state[4], price), max(state[5], price)
        state[6] += price
        return state

    days = folded(streams, keyed, tumbling(DAY), lambda: [0, 0, 0, 0, 1 << 62, 0, 0], add)

    def cells(rows: list[Any]) -> list[Any]:
        return [(int(key), ZERO + day * DAY, *s[:6], s[6] / s[0], s[6]) for key, (day, s) in rows]

    return streams.each(days, cells)


def q18(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [(f"{b.bidder} {b.auction}", b) for b in bids])

    def last(state: Row | None, bid: Row) -> Row:
        if state is None or (state.date_time, state.price) < (bid.date_time, bid.price):
            return bid
        if (state.date_time, state.price) == (bid.date_time, bid.price):
            return min(state, bid, key=lambda b: (b.channel, b.url))
        return state

    lasts = folded(streams, keyed, tumbling(MINUTE), lambda: None, last)
    return streams.each(lasts, lambda rows: [tuple(bid) for _, (_, bid) in rows])


def q19(streams: Input) -> Any:
    keyed = streams.each(streams["bid"], lambda bids: [(str(b.auction), b) for b in bids])
    lists = win.collect_window(streams.name(), keyed, clock(), tumbling(MINUTE), list, ordered=False).down

    def ranked(rows: list[Any]) -> list[Any]:
        out = []
        for _, (window, bids) in rows:
            bids.sort(key=lambda b: (-b.price, b.date_time, b.bidder, b.channel, b.url))
            start = ZERO + window * MINUTE
            out += [(*bid, start, start + MINUTE, number) for number, bid in enumerate(bids[:10], 1)]
        return out

    return streams.each(lists, ranked)


# ---------------------------------------------------------------- joins within an interval


def near(streams: Input, firsts: Any, seconds: Any, within: timedelta) -> Any:
    """Pairs with the same key, the second at most so long after the first."""
    joined = op.join(streams.name(), firsts, seconds, insert_mode="product", emit_mode="final")
    zero = timedelta(0)

    def filtered(rows: list[Any]) -> list[Any]:
        full = ((key, a, b) for key, (a, b) in rows if a is not None and b is not None)
        return [(key, (a, b)) for key, a, b in full if zero <= b.date_time - a.date_time <= within]

    return streams.each(joined, filtered)


def q3(streams: Input) -> Any:
    states = {"OR", "ID", "CA"}
    persons = streams.each(streams["person"], lambda rows: [(str(p.id), p) for p in rows if p.state in states])
    auctions = streams.each(streams["auction"], lambda rows: [(str(a.seller), a) for a in rows if a.category == 10])
    pairs = near(streams, persons, auctions, 10 * MINUTE)
    return streams.each(pairs, lambda rows: [(p.name, p.city, p.state, a.id) for _, (p, a) in rows])


def bids_of_auctions(streams: Input) -> Any:
    """Auctions with their bids until they expire."""
    auctions = streams.each(streams["auction"], lambda rows: [(str(a.id), a) for a in rows])
    bids = streams.each(streams["bid"], lambda rows: [(str(b.auction), b) for b in rows])
    pairs = near(streams, auctions, bids, 10 * SECOND)
    return streams.each(pairs, lambda rows: [(key, (a, b)) for key, (a, b) in rows if b.date_time <= a.expires])


def q4(streams: Input) -> Any:
    closed = op.max_final(streams.name(), bids_of_auctions(streams), lambda pair: pair[1].price)

    def by_category(rows: list[Any]) -> list[Any]:
        return [(f"{a.category} {(a.date_time - ZERO) // MINUTE}", b.price) for _, (a, b) in rows]

    lists = op.fold_final(streams.name(), streams.each(closed, by_category), list, lambda found, price: [*found, price])

    def averages(rows: list[Any]) -> list[Any]:
        keys = ((key.split(), found) for key, found in rows)
        return [(int(category), ZERO + int(minute) * MINUTE, sum(found) / len(found)) for (category, minute), found in keys]

    return streams.each(lists, averages)


def q9(streams: Input) -> Any:
    won = op.min_final(
        streams.name(), bids_of_auctions(streams), lambda pair: (-pair[1].price, pair[1].date_time, pair[1].bidder)
    )

    def cells(rows: list[Any]) -> list[Any]:
        return [
            (a.id, a.item_name, a.seller, a.category, a.date_time, a.expires, b.auction, b.bidder, b.price, b.date_time)
            for _, (a, b) in rows
        ]

    return streams.each(won, cells)


def q20(streams: Input) -> Any:
    auctions = streams.each(streams["auction"], lambda rows: [(str(a.id), a) for a in rows if a.category == 10])
    bids = streams.each(streams["bid"], lambda rows: [(str(b.auction), b) for b in rows])
    pairs = near(streams, auctions, bids, 10 * SECOND)

    def cells(rows: list[Any]) -> list[Any]:
        return [(*b, a.item_name, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category) for _, (a, b) in rows]

    return streams.each(pairs, cells)


QUERIES = {
    made.__name__: made
    for made in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q10, q11, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}


def read(path: Path) -> list[Row]:
    table = pq.read_table(path)
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(at, column.name, table[column.name].cast(pa.timestamp("us", "UTC")))
    make = namedtuple(path.stem, table.column_names)  # type: ignore[misc]
    return list(map(make, *(column.to_pylist() for column in table.columns)))


def run(tables: dict[str, list[Row]], query: str, kept: list[Any] | None) -> tuple[float, int]:
    """Seconds and rows."""
    flow, rows = Dataflow(query), Rows(kept)
    op.output("rows", QUERIES[query](Input(flow, tables)), Sink(rows))
    start = time.perf_counter()
    run_main(flow)
    return time.perf_counter() - start, rows.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="with a Parquet file for each table")
    parser.add_argument("--cores", type=int, help="has no effect: one worker")
    parser.add_argument("--heap", help="has no effect")
    args = parser.parse_args()
    tables = {path.stem: read(path) for path in sorted(args.folder.glob("*.parquet"))}
    gc.disable()  # rows and state have no cycles
    configuration = (
        f"one worker, tuples in memory, batches of {BATCH:,} rows, steps without state over whole batches, windows not "
        "ordered, no recovery, no garbage collector, rows counted and not hashed"
    )
    answer_queries(f"Bytewax {version('bytewax')}", configuration, QUERIES, lambda query, kept: run(tables, query, kept))


if __name__ == "__main__":
    main()

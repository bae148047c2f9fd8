"""Nexmark's auction: persons, auctions and bids, as a function of the number of an event; and the side input.

What: `table(name, first, count, seed)`, the rows of some events in one Arrow table; `tables`, those of all three; `side_input`;
`TIMES`, the tables with their time columns; `write_tables`, Parquet files made in this process.
Why: any part of the input can be made by itself, here or on another machine, and is the same; no state goes from one event to
the next.
Stays out: files made by Spark (`spark.generate`), queries (`benchmarks.nexmark`).

Of 50 events one is a person, three are auctions, 46 bids. The generator's choices are those of Nexmark's reference: hot
auctions and bidders, 99 of 100; hot sellers, 3 of 4; prices 10^(6 u) dollars, u uniform; half of the channels are four.
Random numbers are hashes of seed, event and purpose. Texts of fixed sets and lengths keep files small.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from swjoin.core.batch import I64, U64
from swjoin.core.join_semantics import mix64

OF = 50  # events of a round: 1 person, 3 auctions, 46 bids
PERSONS, AUCTIONS = 1, 3
BEGIN_US = 1_436_918_400_000_000  # 2015-07-15 00:00 UTC, as in the reference
GAP_US = 100  # between two events: 10,000 a second
FIRST_ID = 1_000
HOT_AUCTION, HOT_BIDDER, HOT_SELLER = 100, 100, 4
TIMES = {"person": "date_time", "auction": "date_time", "bid": "date_time", "side_input": ""}  # by table
EVENTS_AT_ONCE = 1 << 20
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_FAMILIES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def random_numbers(events: I64, seed: int, purpose: int, below: int) -> I64:
    """A number from 0 to below - 1 for every event."""
    with np.errstate(over="ignore"):
        mixed: U64 = mix64(events.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 1_000 + purpose))
        out: I64 = (mix64(mixed) % np.uint64(below)).astype(np.int64)
    return out


def _price(events: I64, seed: int, purpose: int) -> I64:
    """Cents, of 100 to 10^8."""
    return np.round(10.0 ** (random_numbers(events, seed, purpose, 1 << 40) / (1 << 40) * 6.0) * 100.0).astype(np.int64)


def _named(numbers: I64, names: tuple[str, ...]) -> pa.Array:
    return pa.array(names).take(pa.array(numbers % len(names)))


def _texts(prefix: str, numbers: I64, suffix: str = "") -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), suffix, "")


def _times(events: I64) -> pa.Array:
    return pa.array(BEGIN_US + events * GAP_US, pa.timestamp("us"))


def _persons(events: I64, seed: int) -> pa.Table:
    family = random_numbers(events, seed, 2, len(_FAMILIES))
    name = pc.binary_join_element_wise(
        _named(random_numbers(events, seed, 1, len(_NAMES)), _NAMES), _named(family, _FAMILIES), " "
    )
    city = random_numbers(events, seed, 3, len(_CITIES))
    return pa.table(
        {
            "id": FIRST_ID + events // OF * PERSONS,
            "name": name,
            "email_address": _texts("", random_numbers(events, seed, 4, 1 << 30), "@example.com"),
            "city": _named(city, _CITIES),
            "state": _named(random_numbers(events, seed, 5, len(_STATES)), _STATES),
            "date_time": _times(events),
        }
    )


def _auctions(events: I64, seed: int) -> pa.Table:
    last_person = events // OF * PERSONS  # counted from 0
    recent = last_person - random_numbers(events, seed, 11, 1_000)
    hot = random_numbers(events, seed, 12, HOT_SELLER) > 0
    initial = _price(events, seed, 13)
    times = BEGIN_US + events * GAP_US
    return pa.table(
        {
            "id": FIRST_ID + events // OF * AUCTIONS + events % OF - PERSONS,
            "item_name": _texts("item ", random_numbers(events, seed, 14, 1 << 20)),
            "initial_bid": initial,
            "reserve": initial + _price(events, seed, 15),
            "date_time": _times(events),
            "expires": pa.array(times + 1_000 * (1 + random_numbers(events, seed, 16, 10_000)), pa.timestamp("us")),
            "seller": FIRST_ID + np.maximum(0, np.where(hot, last_person // 100 * 100, recent)),
            "category": 10 + random_numbers(events, seed, 17, 5),
        }
    )


def _bids(events: I64, seed: int) -> pa.Table:
    last_auction, last_person = events // OF * AUCTIONS + AUCTIONS - 1, events // OF * PERSONS
    auction = np.where(
        random_numbers(events, seed, 21, HOT_AUCTION) > 0,
        last_auction // 100 * 100,
        last_auction - random_numbers(events, seed, 22, 100),
    )
    bidder = np.where(
        random_numbers(events, seed, 23, HOT_BIDDER) > 0,
        last_person // 100 * 100 + 1,
        last_person - random_numbers(events, seed, 24, 1_000),
    )
    channel = random_numbers(events, seed, 25, 10_000)
    hot = random_numbers(events, seed, 26, 2) == 0
    names = pc.if_else(pa.array(hot), _named(channel, _CHANNELS), _texts("channel-", channel))
    parts = [random_numbers(events, seed, 27 + i, 1_000) for i in range(3)]
    url = _texts("https://www.nexmark.com/", parts[0])
    for part in parts[1:]:
        url = pc.binary_join_element_wise(url, pa.array(part).cast(pa.string()), "/")
    url = pc.binary_join_element_wise(url, _texts("item.htm?query=1&channel_id=", channel), "/")
    return pa.table(
        {
            "auction": FIRST_ID + np.maximum(0, auction),
            "bidder": FIRST_ID + np.maximum(0, bidder),
            "price": _price(events, seed, 30),
            "channel": names,
            "url": url,
            "date_time": _times(events),
            "extra": _texts("c", random_numbers(events, seed, 31, 1 << 40)),
        }
    )


_MAKERS = {"person": (0, PERSONS, _persons), "auction": (PERSONS, AUCTIONS, _auctions), "bid": (PERSONS + AUCTIONS, OF, _bids)}


def table(name: str, first: int, count: int, seed: int = 1) -> pa.Table:
    """Rows that the events first .. first + count - 1 have in a table, in order of time."""
    begin, size, make = _MAKERS[name]
    events = np.arange(first, first + count, dtype=np.int64)
    number = events % OF
    return make(events[(number >= begin) & (number < begin + size)], seed)


def tables(first: int, count: int, seed: int = 1) -> dict[str, pa.Table]:
    """Rows of the events first .. first + count - 1: person, auction, bid."""
    return {name: table(name, first, count, seed) for name in _MAKERS}


def side_input() -> pa.Table:
    """The static table of q13, as in the reference: a text for each of 10,000 numbers."""
    keys = np.arange(10_000)
    return pa.table({"key": keys, "value": _texts("", keys)})


def write_tables(paths: Mapping[str, Path], events: int, seed: int = 1, part: int = EVENTS_AT_ONCE) -> None:
    """A Parquet file for each table of `TIMES`, made in parts."""
    for name, path in paths.items():
        if name not in _MAKERS:
            pq.write_table(side_input(), path)
            continue
        with pq.ParquetWriter(path, table(name, 0, 0, seed).schema) as writer:
            for first in range(0, events, part):
                writer.write_table(table(name, first, min(part, events - first), seed))

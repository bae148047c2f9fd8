"""LSBench-like streams: the same whatever parts they are made in, and what their numbers must be."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.connectors.generator import lsbench

EVENTS, USERS, SEED = 6_000, 300, 7
ENDS = {**dict.fromkeys(lsbench.STREAMS, EVENTS), lsbench.GRAPH: USERS}
WHOLE = {name: lsbench.made(name, 0, end, USERS, SEED) for name, end in ENDS.items()}


@pytest.mark.parametrize("name", WHOLE)
def test_parts_are_the_whole(name: str) -> None:
    end, found = ENDS[name], []
    places = [0, *sorted(np.random.default_rng(3).integers(0, end, 5).tolist()), end]
    for first, last in itertools.pairwise(places):
        found.append(lsbench.made(name, first, last - first, USERS, SEED))
    parts = pa.concat_tables(found)
    if name == lsbench.GRAPH:  # both directions of a part stand together
        order = [(column, "ascending") for column in "spo"]
        assert parts.sort_by(order) == WHOLE[name].sort_by(order)
    else:
        assert parts == WHOLE[name]


def pairs(name: str, predicate: str) -> list[tuple[str, str]]:
    table = WHOLE[name]
    rows = zip(*(table[column].to_pylist() for column in "spo"), strict=True)
    return [(s, o) for s, p, o in rows if p == f"<{predicate}>"]


def test_shares_and_times_of_events() -> None:
    posts = pairs("poststream", f"{lsbench.SIB}hashtag")
    comments = pairs("poststream", f"{lsbench.SIOC}reply_of")
    assert (len(posts), len(comments)) == (EVENTS // 5, EVENTS // 5)
    assert len(pairs("likedpoststream", f"{lsbench.SIB}like")) == EVENTS * 6 // 20
    assert len(pairs("likedphotostream", f"{lsbench.SIB}like")) == EVENTS * 3 // 20
    assert len(pairs("photostream", f"{lsbench.SIOC}creator_of")) == EVENTS // 20
    assert WHOLE["gpsstream"].num_rows == EVENTS // 10
    for name in lsbench.STREAMS:
        ts = WHOLE[name]["ts"].to_numpy()
        assert (np.diff(ts) >= 0).all()
        assert (ts >= 0).all()
        assert (ts < EVENTS * lsbench.GAP_US).all()


def test_friends_follow_the_power_law() -> None:
    friends = lsbench.friends_of(np.arange(100_000), SEED)
    assert (friends.min(), friends.max()) == (5, 50)
    for low, high in ((5, 10), (10, 20), (20, 40)):
        share = ((friends >= low) & (friends < high)).mean()
        assert share == pytest.approx((1 / low - 1 / high) / (1 / 5 - 1 / 51), abs=0.01)


def test_things_are_there_before_they_are_liked() -> None:
    made: dict[str, int] = {}
    for name in ("poststream", "photostream"):
        for ts, thing in zip(*(WHOLE[name][column].to_pylist() for column in ("ts", "o")), strict=True):
            made.setdefault(thing, ts)  # its author's triple comes first
    known = {pair for a, b in pairs(lsbench.GRAPH, f"{lsbench.FOAF}knows") for pair in ((a, b), (b, a))}
    assert not any(a == b for a, b in known)
    assert lsbench.made(lsbench.GRAPH, 0, 1, 1, SEED).num_rows == 0
    assert len(known) == len(set(pairs(lsbench.GRAPH, f"{lsbench.FOAF}knows"))), "each direction is there"
    for name, stream in (("likedpoststream", "poststream"), ("likedphotostream", "photostream")):
        likes = WHOLE[name]
        owner = {thing: user for user, thing in pairs(stream, f"{lsbench.SIOC}creator_of")}
        by_friends = 0
        for ts, who, thing in zip(*(likes[column].to_pylist() for column in ("ts", "s", "o")), strict=True):
            assert made[thing] <= ts
            by_friends += (who, owner[thing]) in known
        assert 0.65 < by_friends / likes.num_rows < 0.8


def test_a_query_over_files(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.parquet" for name in WHOLE}
    lsbench.write_streams(paths, EVENTS, USERS, SEED)
    assert {name: pq.read_table(path) for name, path in paths.items()} == WHOLE
    query = (
        f"{lsbench.PREFIXES}SELECT ?f ?photo {{ STREAM <http://lsbench.org/photostream> [NOW] {{ ?photo sib:usertag ?f }} }}"
    )
    found = swjoin.rdf(query, {"http://lsbench.org/photostream": paths["photostream"]})
    assert found.num_rows == len(pairs("photostream", f"{lsbench.SIB}usertag")) > 0

"""A social network as RDF streams, after LSBench: posts, photos, likes and places, as a function of the number of an event.

What: `made(name, first, count, users, seed)`, the triples of some events of a stream, or of some users of the graph, in one
Arrow table; `STREAMS`, `GRAPH`, the names; `write_streams`, Parquet files made in this process.
Why: as of Nexmark (`connectors.generator.nexmark`): any part can be made by itself, and is the same wherever it is made.
Stays out: files made by Spark (`spark.generate`), queries (`benchmarks.rdf`).

The constants are those of LSBench's generator as far as they are known: users have 5 to 50 friends, by a power law of exponent
2; up to 10 tags of users in a photo; who likes something is with 7 in 10 a friend of whom it is by, otherwise anybody. Of 20
events 4 are posts, 4 comments, 6 likes of posts, 1 a photo, 3 likes of photos, 2 places. Time goes on by 100 us from event to
event: 10,000 a second, and about 18,000 triples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from swjoin.connectors.generator.nexmark import random_numbers
from swjoin.core.batch import I64

OF, GAP_US = 20, 100
EVENTS_AT_ONCE = 1 << 19
STREAMS = ("poststream", "likedpoststream", "photostream", "likedphotostream", "gpsstream")
GRAPH = "knows"
_KINDS = {"poststream": range(8), "likedpoststream": range(8, 14), "photostream": (14,), "likedphotostream": range(15, 18)}
_KINDS["gpsstream"] = range(18, 20)
_POSTS, _RECENT, _TAGS, _PLACES = 4, 400, 2_000, 500
_MOST_FRIENDS, _LEAST_FRIENDS = 50, 5
SIB, SIOC, FOAF = "http://www.ins.cwi.nl/sib/vocabulary/", "http://rdfs.org/sioc/ns#", "http://xmlns.com/foaf/0.1/"
PREFIXES = f"PREFIX sib: <{SIB}>\nPREFIX sioc: <{SIOC}>\nPREFIX foaf: <{FOAF}>\nPREFIX user: <http://lsbench.org/user/>\n"
_SCHEMA = pa.schema([("ts", pa.int64()), *((name, pa.string()) for name in "spo")])


def friends_of(users: I64, seed: int) -> I64:
    """How many users somebody calls friends: P(n) as n^-2."""
    u = random_numbers(users, seed, 41, 1 << 40) / (1 << 40)
    low, high = 1 / _LEAST_FRIENDS, 1 / (_MOST_FRIENDS + 1)
    return np.floor(1 / (low - u * (low - high))).astype(np.int64)


def _friend(users: I64, numbers: I64, seed: int, count: int) -> I64:
    """The friend of each user that has this number: anybody else, where there is somebody else."""
    others = random_numbers(users * (_MOST_FRIENDS + 1) + numbers, seed, 42, max(1, count - 1))
    return np.where((others >= users) & (count > 1), others + 1, others)


def _user_of(things: I64, purpose: int, seed: int, users: int) -> I64:
    return random_numbers(things, seed, purpose, users)


def _liker(events: I64, owners: I64, seed: int, users: int) -> I64:
    """Who likes what this user has made."""
    number = random_numbers(events, seed, 43, 1 << 30) % friends_of(owners, seed)
    anybody = random_numbers(events, seed, 44, users)
    return np.where(random_numbers(events, seed, 45, 10) < 7, _friend(owners, number, seed, users), anybody)


def _iris(kind: str, numbers: I64) -> pa.Array:
    return pc.binary_join_element_wise(f"<http://lsbench.org/{kind}/", pa.array(numbers).cast(pa.string()), ">", "")


def _triples(events: I64, s: pa.Array, p: str, o: pa.Array) -> pa.Table:
    return pa.table(
        [pa.array(events * GAP_US), s, pa.array([f"<{p}>"]).take(pa.array(np.zeros(len(events), np.int64))), o], _SCHEMA
    )


def _posts(events: I64, seed: int, users: int) -> list[pa.Table]:
    """Posts have an author, a tag and a text; comments an author and the post that they reply to."""
    kinds = events % OF
    posts, comments = events[kinds < _POSTS], events[kinds >= _POSTS]
    numbers = posts // OF * _POSTS + posts % OF
    replied = np.maximum(0, comments // OF * _POSTS - random_numbers(comments, seed, 51, _RECENT))
    tag = (random_numbers(numbers, seed, 52, 1 << 30) / (1 << 30)) ** 2 * _TAGS
    text = pc.binary_join_element_wise('"About ', pa.array(numbers).cast(pa.string()), ', in a few words"', "")
    return [
        _triples(posts, _iris("user", _user_of(numbers, 50, seed, users)), f"{SIOC}creator_of", _iris("post", numbers)),
        _triples(posts, _iris("post", numbers), f"{SIB}hashtag", _iris("tag", tag.astype(np.int64))),
        _triples(posts, _iris("post", numbers), f"{SIOC}content", text),
        _triples(
            comments, _iris("user", random_numbers(comments, seed, 53, users)), f"{SIOC}creator_of", _iris("comment", comments)
        ),
        _triples(comments, _iris("comment", comments), f"{SIOC}reply_of", _iris("post", replied)),
    ]


def _post_likes(events: I64, seed: int, users: int) -> list[pa.Table]:
    post = np.maximum(0, events // OF * _POSTS - random_numbers(events, seed, 61, _RECENT))
    who = _liker(events, _user_of(post, 50, seed, users), seed, users)
    return [_triples(events, _iris("user", who), f"{SIB}like", _iris("post", post))]


def _photos(events: I64, seed: int, users: int) -> list[pa.Table]:
    """A photo has an owner and up to 10 of the owner's friends on it."""
    photo = events // OF
    owner = _user_of(photo, 70, seed, users)
    tags = np.minimum(random_numbers(photo, seed, 71, 11), friends_of(owner, seed))
    each = np.repeat(np.arange(len(photo)), tags)
    number = np.arange(len(each)) - np.repeat(np.cumsum(tags) - tags, tags)
    return [
        _triples(events, _iris("user", owner), f"{SIOC}creator_of", _iris("photo", photo)),
        _triples(
            events[each], _iris("photo", photo[each]), f"{SIB}usertag", _iris("user", _friend(owner[each], number, seed, users))
        ),
    ]


def _photo_likes(events: I64, seed: int, users: int) -> list[pa.Table]:
    photo = np.maximum(0, events // OF - random_numbers(events, seed, 81, _RECENT // 4))
    who = _liker(events, _user_of(photo, 70, seed, users), seed, users)
    return [_triples(events, _iris("user", who), f"{SIB}like", _iris("photo", photo))]


def _places(events: I64, seed: int, users: int) -> list[pa.Table]:
    where = _iris("place", random_numbers(events, seed, 91, _PLACES))
    return [_triples(events, _iris("user", random_numbers(events, seed, 92, users)), f"{SIB}trackedAt", where)]


_MADE = {
    "poststream": _posts,
    "likedpoststream": _post_likes,
    "photostream": _photos,
    "likedphotostream": _photo_likes,
    "gpsstream": _places,
}


def stream(name: str, first: int, count: int, users: int, seed: int = 1) -> pa.Table:
    """The triples of a stream among these events, in order of time: ts (int64, microseconds from 0), s, p, o (terms in
    N-Triples syntax)."""
    events = np.arange(first, first + count)
    events = events[np.isin(events % OF, list(_KINDS[name]))]
    return pa.concat_tables(_MADE[name](events, seed, users)).sort_by("ts")


def knows(first: int, count: int, users: int, seed: int = 1) -> pa.Table:
    """s, p, o: the friends of some users. Who is a friend calls the other one a friend, too; some are drawn twice, and a graph
    is a set."""
    numbers = np.arange(first, first + count)
    friends = friends_of(numbers, seed) * (users > 1)
    each = np.repeat(numbers, friends)
    number = np.arange(len(each)) - np.repeat(np.cumsum(friends) - friends, friends)
    others = _friend(each, number, seed, users)
    s, o = np.concatenate([each, others]), np.concatenate([others, each])
    return _triples(np.zeros(len(s), np.int64), _iris("user", s), f"{FOAF}knows", _iris("user", o)).drop_columns("ts")


def made(name: str, first: int, count: int, users: int, seed: int) -> pa.Table:
    """Of a stream the triples of some events; of the graph those of some users."""
    return knows(first, count, users, seed) if name == GRAPH else stream(name, first, count, users, seed)


def write_streams(paths: Mapping[str, Path], events: int, users: int, seed: int = 1) -> None:
    """Write Parquet files of these streams, by name, and of the graph."""
    for name, path in paths.items():
        with pq.ParquetWriter(path, _SCHEMA if name != GRAPH else _SCHEMA.remove(0), compression="lz4") as writer:
            end = users if name == GRAPH else events
            for first in range(0, end, EVENTS_AT_ONCE):
                writer.write_table(made(name, first, min(EVENTS_AT_ONCE, end - first), users, seed))

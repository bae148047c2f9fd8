"""Units that store one stream each: a row is stored once and probes all of the other stream, so every pair meets once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import LEFT, RIGHT
from swjoin.routing.biclique import Biclique, UnitsInUse
from swjoin.routing.matrix import MOST_LINES, Matrix
from swjoin.routing.named import is_routing, kind_of, named

LINES = st.integers(1, MOST_LINES)
IDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=30)
KEYS = st.lists(st.integers(0, 3), min_size=30, max_size=30)
EPOCHS = st.lists(st.integers(0, 3), min_size=30, max_size=30)


def _units_of(in_use: Biclique | UnitsInUse, port: int, ids: list[int], keys: list[int]) -> list[tuple[int, set[int]]]:
    """Of each row: the unit that stores it, and those that it probes. A row that is twice at a unit fails."""
    biclique = in_use if isinstance(in_use, Biclique) else in_use.biclique
    positions, units = in_use.copies(port, np.array(ids, np.uint64), np.array(keys, np.uint64))
    assert (np.diff(positions) >= 0).all()
    mine = range(biclique.left) if port == LEFT else range(biclique.left, biclique.count)
    found = []
    for row in range(len(ids)):
        here = units[positions == row].tolist()
        assert len(set(here)) == len(here)
        (store,) = [unit for unit in here if unit in mine]
        assert here[0] == store
        found.append((store, {unit for unit in here if unit not in mine}))
    return found


@st.composite
def bicliques(draw: st.DrawFn, lines: st.SearchStrategy[int] = LINES) -> Biclique:
    left, right = draw(lines), draw(lines)
    return Biclique(left, right, draw(st.integers(1, left)), draw(st.integers(1, right)))


@given(bicliques(), IDS, IDS, KEYS, KEYS, EPOCHS, EPOCHS)
def test_every_pair_meets_at_one_unit(
    biclique: Biclique, ids: list[int], others: list[int], keys: list[int], more: list[int], one: list[int], two: list[int]
) -> None:
    """In the order by epoch and side: at the left row's unit unless it comes later than the right row, else at that one's.
    Pairs of one key; of any keys without subgroups."""
    of_left = _units_of(biclique, LEFT, ids, keys[: len(ids)])
    of_right = _units_of(biclique, RIGHT, others, more[: len(others)])
    if not biclique.by_key:
        assert all(probed == set(range(biclique.left, biclique.count)) for _, probed in of_left)
        assert all(probed == set(range(biclique.left)) for _, probed in of_right)
    for (i, (mine, to_right)), (j, (theirs, to_left)) in itertools.product(enumerate(of_left), enumerate(of_right)):
        if keys[i] == more[j] or not biclique.by_key:
            at_left, at_right = one[i] <= two[j], two[j] < one[i]
            assert (at_left and mine in to_left) + (at_right and theirs in to_right) == 1


@st.composite
def tables(draw: st.DrawFn, biclique: Biclique, epochs: int) -> list[UnitsInUse]:
    """Of each epoch: any units store, one of each subgroup at least; those that have ever stored are probed, maybe others."""
    found, ever = [], [0] * biclique.count
    for _ in range(epochs):
        weights = draw(st.lists(st.integers(0, 3), min_size=biclique.count, max_size=biclique.count))
        for port in (LEFT, RIGHT):
            for units in biclique.subgroups_of(port):
                weights[units[0]] |= not any(weights[unit] for unit in units)
        ever = [int(before or weight > 0) for before, weight in zip(ever, weights, strict=True)]
        more = draw(st.lists(st.booleans(), min_size=biclique.count, max_size=biclique.count))
        found.append(UnitsInUse(biclique, weights, [int(a or b) for a, b in zip(ever, more, strict=True)]))
    return found


@given(st.data(), IDS, IDS, KEYS, KEYS, EPOCHS, EPOCHS)
def test_every_pair_meets_at_one_unit_while_others_come_into_use(
    data: st.DataObject, ids: list[int], others: list[int], keys: list[int], more: list[int], one: list[int], two: list[int]
) -> None:
    """Rows of an epoch follow its table."""
    biclique = data.draw(bicliques(st.integers(1, 5)))
    in_use = data.draw(tables(biclique, 4))
    of_left = [_units_of(in_use[one[i]], LEFT, [ids[i]], [keys[i]])[0] for i in range(len(ids))]
    of_right = [_units_of(in_use[two[j]], RIGHT, [others[j]], [more[j]])[0] for j in range(len(others))]
    for (i, (mine, to_right)), (j, (theirs, to_left)) in itertools.product(enumerate(of_left), enumerate(of_right)):
        if keys[i] == more[j] or not biclique.by_key:
            at_left, at_right = one[i] <= two[j], two[j] < one[i]
            assert (at_left and mine in to_left) + (at_right and theirs in to_right) == 1


def test_shares_follow_weights() -> None:
    """Rows are stored in proportion; a unit of no weight stores none."""
    of_left = _units_of(UnitsInUse(Biclique(4, 1), (3, 0, 1, 4, 1), (1,) * 5), LEFT, list(range(8_000)), [])
    counts = np.bincount([store for store, _ in of_left], minlength=4)
    assert counts[1] == 0
    assert np.abs(counts - np.array([3_000, 0, 1_000, 4_000])).max() < 200


@given(bicliques())
def test_subgroups_share_the_units(biclique: Biclique) -> None:
    """Each is as large as others, but for one unit; a row of any key is stored in its own, and probes one whole."""
    keys = list(range(400))
    sizes = [set(), set()]  # type: list[set[tuple[int, ...]]]
    for port in (LEFT, RIGHT):
        for _, probed in _units_of(biclique, port, keys, keys):
            sizes[1 - port].add(tuple(sorted(probed)))
    for seen, count, subgroups in zip(
        sizes, (biclique.left, biclique.right), (biclique.left_subgroups, biclique.right_subgroups), strict=True
    ):
        assert all(count // subgroups <= len(units) <= -(-count // subgroups) for units in seen)
        assert len({unit for units in seen for unit in units}) == sum(map(len, seen)), "no unit is in two"


@pytest.mark.parametrize("subgroups", [(1, 1), (2, 3), (4, 5)])
def test_a_key_chooses_its_subgroup(subgroups: tuple[int, int]) -> None:
    """Content-sensitive routing has a unit of each stream for a key."""
    biclique = Biclique(4, 5, *subgroups)
    of_left = _units_of(biclique, LEFT, list(range(300)), [7] * 300)
    assert len({store for store, _ in of_left}) == len(_units_of(biclique, RIGHT, [1], [7])[0][1]) == -(-4 // subgroups[0])


def test_units_have_partition_groups_of_their_own() -> None:
    assert Biclique(2, 3).stores_left(7).tolist() == [True] * 2 + [False] * 5


def test_stores_are_shared_evenly() -> None:
    for first, (port, count) in itertools.product((0, 1 << 40), ((LEFT, 4), (RIGHT, 5))):
        _, units = Biclique(4, 5).copies(port, np.arange(first, first + 100_000, dtype=np.uint64))
        stored = units.reshape(100_000, -1)[:, 0]
        counts = np.bincount(stored - stored.min(), minlength=count)
        assert counts.min() > 0.97 * counts.mean()


def test_names() -> None:
    assert named("random:2,3") == Biclique(2, 3)
    assert named("matrix:2,3") == Matrix(2, 3)
    assert named("contrand:4,6,2,3") == Biclique(4, 6, 2, 3)
    assert [kind_of(text) for text in ("auto", "hash", "matrix:1,2", "contrand:1,1,1,1")] == [
        "auto",
        "hash",
        "matrix",
        "contrand",
    ]
    assert all(map(is_routing, ("auto", "hash", "range", "broadcast", "matrix", "random", "matrix:1,64", "contrand:64,1,64,1")))
    assert Biclique.of_instances(3) == Biclique(3, 3)
    assert Biclique.of_instances(100) == Biclique(MOST_LINES, MOST_LINES)


NO_ROUTINGS = ["", "random:", "random:0,1", "random:1", "random:65,1", "random:1,2,3", "rando", 5, None]
NO_ROUTINGS += ["contrand", "contrand:2,2", "contrand:2,2,3,1", "contrand:2,2,1,3", "contrand:2,2,0,1", "matrix:2,2,1,1"]
NO_ROUTINGS += ["random:2,2,1,1", "broadcast:2", "hash:1,2", "range:1,1"]


@pytest.mark.parametrize("text", NO_ROUTINGS)
def test_what_is_no_routing(text: object) -> None:
    assert named(text) is None
    assert not is_routing(text)  # type: ignore[arg-type]

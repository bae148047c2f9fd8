"""Units that store one stream each: a row is stored once and probes all of the other stream, so every pair meets once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.routing.biclique import Biclique
from swjoin.routing.hash_partition import arrange
from swjoin.routing.matrix import MOST_LINES, Matrix, keys_of_places
from swjoin.routing.named import form_of, is_routing, named

LINES = st.integers(1, MOST_LINES)
IDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=30)
EPOCHS = st.lists(st.integers(0, 3), min_size=30, max_size=30)


def _units_of(biclique: Biclique, port: int, ids: list[int]) -> list[tuple[int, set[int]]]:
    """Of each row: the unit that stores it, and those that it probes. A row that is twice at a unit fails."""
    positions, units = biclique.copies(port, np.array(ids, np.uint64))
    assert (np.diff(positions) >= 0).all()
    mine = range(biclique.left) if port == LEFT else range(biclique.left, biclique.count)
    found = []
    for row in range(len(ids)):
        here = units[positions == row].tolist()
        assert len(set(here)) == len(here)
        (store,) = [unit for unit in here if unit in mine]
        found.append((store, {unit for unit in here if unit not in mine}))
    return found


@given(LINES, LINES, IDS, IDS, EPOCHS, EPOCHS)
def test_every_pair_meets_at_one_unit(
    left: int, right: int, ids: list[int], others: list[int], one: list[int], two: list[int]
) -> None:
    """In the order by epoch and side: at the left row's unit unless it comes later than the right row, else at that one's."""
    biclique = Biclique(left, right)
    of_left, of_right = _units_of(biclique, LEFT, ids), _units_of(biclique, RIGHT, others)
    assert all(probed == set(range(left, left + right)) for _, probed in of_left)
    assert all(probed == set(range(left)) for _, probed in of_right)
    for (i, (mine, to_right)), (j, (theirs, to_left)) in itertools.product(enumerate(of_left), enumerate(of_right)):
        at_left, at_right = one[i] <= two[j], two[j] < one[i]
        assert (at_left and mine in to_left) + (at_right and theirs in to_right) == 1


@given(LINES, LINES, st.integers(0, 100))
def test_units_have_partition_groups_of_their_own(left: int, right: int, more: int) -> None:
    groups = left + right + more
    keys, nothing = keys_of_places(left + right, groups), np.zeros(left + right, np.int64)
    batch = TupleBatch(keys, nothing, np.arange(len(keys), dtype=np.uint64), nothing)
    arranged = arrange(batch, np.arange(groups), groups)
    assert np.repeat(np.arange(groups), arranged.counts).tolist() == arranged.batch.id.tolist()
    assert Biclique(left, right).stores_left(groups).tolist() == [True] * left + [False] * (right + more)


def test_stores_are_shared_evenly() -> None:
    for first, (port, count) in itertools.product((0, 1 << 40), ((LEFT, 4), (RIGHT, 5))):
        _, units = Biclique(4, 5).copies(port, np.arange(first, first + 100_000, dtype=np.uint64))
        stored = units.reshape(100_000, -1)[:, 0]
        counts = np.bincount(stored - stored.min(), minlength=count)
        assert counts.min() > 0.97 * counts.mean()


def test_names() -> None:
    assert named("random:2,3") == Biclique(2, 3)
    assert named("matrix:2,3") == Matrix(2, 3)
    assert [form_of(text) for text in ("auto", "matrix", "random", "random:1,1")] == ["matrix"] * 2 + ["random"] * 2
    assert all(map(is_routing, ("auto", "matrix", "random", "matrix:1,64", "random:64,1")))
    assert Biclique.of_instances(3) == Biclique(3, 3)
    assert Biclique.of_instances(100) == Biclique(MOST_LINES, MOST_LINES)


@pytest.mark.parametrize(
    "text", ["", "random:", "random:0,1", "random:1", "random:65,1", "random:1,2,3", "rando", "hash", 5, None]
)
def test_what_is_no_routing(text: object) -> None:
    assert named(text) is None
    assert not is_routing(text)  # type: ignore[arg-type]

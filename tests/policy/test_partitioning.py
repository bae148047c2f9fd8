"""Partitioners: what METIS answers is checked, scaled counts keep their order, our own multilevel is no worse without it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import I64
from swjoin.policy import partitioning
from swjoin.policy.partitioning import Csr, Parts, attached, best_partition, least_full, metis, multilevel, scaled
from swjoin.policy.task_graph import F64


def grid(side: int, room: int, machine_count: int) -> Parts:
    """A grid of side x side vertices of work 1, edges of weight 1."""
    at = np.arange(side * side).reshape(side, side)
    source = np.concatenate((at[:, :-1].ravel(), at[:-1].ravel()))
    target = np.concatenate((at[:, 1:].ravel(), at[1:].ravel()))
    graph = Csr.build(side * side, source, target, np.ones(len(source), np.int64))
    ones, machines = np.ones(side * side, np.int64), np.zeros(machine_count, np.int64)
    return Parts(graph, ones, ones * 0, ones * -1, machines + room, machines, machines)


def test_a_graph_has_each_edge_at_both_ends_once() -> None:
    graph = Csr.build(4, np.array([0, 1, 0, 2, 3]), np.array([1, 0, 2, 2, 0]), np.array([5, 7, 1, 9, 0]))
    assert graph.starts.tolist() == [0, 2, 3, 4, 4]
    assert graph.neighbours.tolist() == [1, 2, 0, 0]
    assert graph.weights.tolist() == [12, 1, 12, 1]


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=50), st.sampled_from([1 << 29, 1 << 60]))
def test_scaled_counts_keep_their_order_and_never_become_zero(counts: list[int], most: int) -> None:
    found = scaled(np.array(counts, np.int64), most)
    assert ((found > 0) == (np.array(counts) > 0)).all()
    assert float(found.sum(dtype=np.float64)) <= most * 1.000001 + len(counts)
    order = np.argsort(counts, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    if sum(counts) <= most // 2:
        assert found.tolist() == counts


ANSWERS = {
    "everything in one part": lambda size, k: np.zeros(size, np.int64),
    "a part that there is not": lambda size, k: np.full(size, k, np.int64),
    "negative": lambda size, k: np.full(size, -1, np.int64),
    "too few": lambda size, k: np.zeros(size - 1, np.int64),
    "no answer": lambda size, k: None,
    "parts at random": lambda size, k: np.random.default_rng(1).integers(0, k, size),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers_of_metis_are_checked(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = grid(9, 28, 3)
    monkeypatch.setattr(partitioning, "_asked_metis", lambda graph, work, shares, seed: answer(graph.size, len(shares)))  # type: ignore[operator]
    found = best_partition(parts, 0)
    _, excess, cut, _ = parts.rank(found)
    assert excess == 0
    assert cut <= 20, "thirds of the grid cut 18"


@pytest.mark.parametrize("machine_count", [1, 3, 200])
@pytest.mark.parametrize("kind", ["no edges", "no work", "both"])
def test_metis_is_not_asked_what_it_cannot_answer(machine_count: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(graph: Csr, work: I64, shares: F64, seed: int) -> I64:
        raise AssertionError("asked")

    parts = grid(9, 81, machine_count)
    none = np.zeros(0, np.int64)
    empty = replace(parts, graph=Csr(np.zeros(82, np.int64), none, none))
    without = {"no edges": empty, "no work": replace(parts, work=parts.work * 0), "both": replace(empty, work=parts.work * 0)}
    monkeypatch.setattr(partitioning, "_asked_metis", ask)
    assert metis(without[kind], 0) is None


def test_fixed_vertices_stay_with_every_partitioner() -> None:
    parts = grid(8, 17, 4)
    fixed = parts.fixed.copy()
    fixed[[0, 63, 7, 56]] = [3, 3, 1, 0]
    parts = replace(parts, fixed=fixed, alike=np.arange(4))
    for found in (metis(parts, 0), multilevel(parts, 0), best_partition(parts, 0)):
        assert found is not None
        assert found[[0, 63, 7, 56]].tolist() == [3, 3, 1, 0]
        assert parts.rank(found)[0] == 0


def test_our_own_partitioner_is_as_good_as_metis(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = []
    grids = [grid(side, room, 4) for side, room in ((10, 25), (20, 100), (30, 231))]
    for there in (True, False):
        monkeypatch.setattr(partitioning, "has_metis", lambda there=there: there)
        ranks = [parts.rank(best_partition(parts, 0)) for parts in grids]
        assert [excess for _, excess, _, _ in ranks] == [0, 0, 0]
        cuts.append([cut for _, _, cut, _ in ranks])
    assert all(own <= 1.2 * other for other, own in zip(*cuts, strict=True))
    assert cuts[1] == pytest.approx([20, 40, 60], rel=0.1), "quarters of a grid"


@given(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(1, 4), st.randoms(use_true_random=False))
def test_few_vertices_are_packed_as_evenly_as_can_be(work: list[int], machine_count: int, random: object) -> None:
    none = np.zeros(0, np.int64)
    parts = Parts(
        Csr(np.zeros(len(work) + 1, np.int64), none, none),
        np.array(work, np.int64),
        np.zeros(len(work), np.int64),
        np.full(len(work), -1, np.int64),
        *3 * (np.zeros(machine_count, np.int64),),
    )
    found = least_full(parts, np.ones(machine_count))
    loads = {(0,) * machine_count}
    for amount in work:
        loads = {tuple(sorted((*load[:i], load[i] + amount, *load[i + 1 :]))) for load in loads for i in range(machine_count)}
    assert np.bincount(found, parts.work, machine_count).max() == min(max(load) for load in loads)


def test_what_has_no_work_is_merged_where_it_belongs() -> None:
    """2 - 0 - 1 with 0 bound to 1; a chain without work; vertices with work, or fixed, stay."""
    edges = [(0, 1, 5), (0, 2, 4), (3, 4, 9), (4, 5, 9), (5, 6, 9)]
    source, target, counts = np.array(edges).T.copy()
    graph = Csr.build(7, source, target, counts)
    work = np.array([0, 3, 3, 2, 0, 0, 0])
    assert attached(*graph, work, np.full(7, -1)).tolist() == [1, 1, 2, 3, 3, 3, 3]
    assert attached(*graph, work, np.array([2, -1, -1, -1, -1, -1, 1])).tolist() in (
        [0, 1, 2, 3, 3, 3, 6],
        [0, 1, 2, 3, 3, 6, 6],
    )


@pytest.mark.parametrize("rooms", [[9, 9, 9], [12, 5, 12], [2, 20, 7]])
def test_the_exact_search_finds_the_least_cut_by_itself(rooms: list[int]) -> None:
    """From a partition beyond the room; machines with the same room are alike."""
    rng, room = np.random.default_rng(rooms[0]), np.array(rooms, np.int64)
    alike = np.unique(room, return_inverse=True)[1].astype(np.int64)
    every = np.array(list(itertools.product(range(3), repeat=6)), np.int64)
    found_some = 0
    for _ in range(40):
        source, target = rng.integers(0, 6, (2, 12))
        counts, work = rng.integers(1, 9, 12), rng.integers(0, 8, 6)
        nothing = np.zeros(6, np.int64)
        parts = Parts(Csr.build(6, source, target, counts), work, nothing, np.full(6, -1), room, nothing[: len(room)], alike)
        loads = np.stack([((every == m) * work).sum(axis=1) for m in range(3)], axis=1)
        cuts = ((every[:, source] != every[:, target]) * counts).sum(axis=1)[(loads <= room).all(axis=1)]
        bad = np.full(6, int(np.argmin(room)), np.int64)
        _, excess, cut, _ = parts.rank(partitioning._exact(parts, bad))
        if len(cuts):
            found_some += 1
            assert (excess, cut) == (0, cuts.min())
        else:
            assert excess > 0
    assert found_some > 10

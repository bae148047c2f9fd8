"""Placements of task graphs: the least cut of all placements within the bound, closed forms, and graphs that break placers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.sections import PlacementConfig
from swjoin.core.batch import I64
from swjoin.policy import partitioning
from swjoin.policy.placement import IN_A_RUN, decisive, place, round_robin, suggest
from swjoin.policy.placement import _on_hosts as put_on_hosts
from swjoin.policy.task_graph import Cost, Machines, TaskGraph, cost
from tests.support.task_graphs import least_cut, task_graph

NETWORK, BY_ID = PlacementConfig(), PlacementConfig("round_robin")


def placed(graph: TaskGraph, machine_count: int, config: PlacementConfig = NETWORK, **options: Any) -> tuple[I64, Cost]:
    machines = Machines.alike(machine_count)
    machine_of = place(graph, machines, config, **options)
    assert machine_of.shape == (len(graph.tasks),)
    assert ((machine_of >= 0) & (machine_of < machine_count)).all()
    assert (machine_of[graph.pinned >= 0] == graph.pinned[graph.pinned >= 0]).all()
    return machine_of, cost(graph, machine_of, machines)


@st.composite
def graphs(draw: st.DrawFn, most: int, machine_count: int) -> TaskGraph:
    size = draw(st.integers(1, most))
    work = draw(st.lists(st.integers(0, 9) | st.just(0) | st.integers(0, 1000), min_size=size, max_size=size))
    task = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(task, task, st.integers(0, 20) | st.integers(0, 1 << 40)), max_size=3 * size))
    pinned = draw(st.dictionaries(task, st.integers(0, machine_count - 1), max_size=3))
    return task_graph(work, edges, pinned=pinned)


def replayed(graph: TaskGraph, machine_of: I64, width: int) -> tuple[int, int, int, list[int]]:
    """Every message on its own: network tuples, all tuples, network bytes, tuples that each machine receives."""
    network = total = nbytes = 0
    received = [0] * (int(machine_of.max()) + 1)
    for source, target, tuples in zip(graph.source, graph.target, graph.tuples, strict=True):
        for _ in range(tuples):
            total += 1
            received[machine_of[target]] += 1
            if machine_of[source] != machine_of[target]:
                network += 1
                nbytes += width
    return network, total, nbytes, received


# ---------------------------------------------------------------- what a placement costs


@given(st.data())
def test_the_cost_is_that_of_every_message_replayed(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    task = st.integers(0, size - 1)
    edges = data.draw(st.lists(st.tuples(task, task, st.integers(0, 30)), max_size=12))
    graph = task_graph([0] * size, edges)
    received = [sum(n for _, t, n in edges if t == i) for i in range(size)]
    graph = replace(graph, work_ns=np.array(received, np.int64))
    machine_of = np.array([*data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))], np.int64)
    found = cost(graph, machine_of, Machines.alike(4))
    network, total, nbytes, load = replayed(graph, machine_of, 10)
    assert (found.network_tuples, found.total_tuples, found.network_bytes, found.total_bytes) == (
        network,
        total,
        nbytes,
        10 * total,
    )
    assert found.load.tolist() == load + [0] * (4 - len(load))
    if total:
        assert found.fullest_ratio == pytest.approx(max(load) / (total / 4))
        assert found.rsd == pytest.approx(np.std(found.load) / (total / 4))
    else:
        assert (found.fullest_ratio, found.rsd) == (1.0, 0.0)


def test_sums_beyond_64_bits_are_exact() -> None:
    most = (1 << 63) - 1
    graph = task_graph([1, 1], [(0, 1, most), (1, 0, most), (0, 1, most), (0, 0, 5)])
    found = cost(graph, np.array([0, 1]), Machines.alike(2))
    assert (found.network_tuples, found.total_tuples) == (3 * most, 3 * most + 5)


def test_a_slow_machine_is_full_with_less() -> None:
    graph = task_graph([30, 10], [])
    assert cost(graph, np.array([0, 1]), Machines(np.array([3.0, 1.0]))).fullest_ratio == 1
    assert cost(graph, np.array([1, 0]), Machines(np.array([3.0, 1.0]))).fullest_ratio == 3


# ---------------------------------------------------------------- the least cut


@settings(max_examples=100)
@given(graphs(8, 3), st.sampled_from(["1", "1.03", "1.25", "2"]))
def test_small_graphs_have_the_least_cut_within_the_bound(graph: TaskGraph, imbalance: str) -> None:
    _, found = placed(graph, 3, PlacementConfig("network", "tuples", float(imbalance)))
    basis = decisive(graph)
    allowed, least = least_cut(basis, [1, 1, 1], Fraction(imbalance))
    load = cost(
        basis, place(graph, Machines.alike(3), PlacementConfig("network", "tuples", float(imbalance))), Machines.alike(3)
    ).load
    assert load.max() <= allowed
    assert found.network_tuples == least


@pytest.mark.parametrize("speeds", [[1, 1, 1], [1, 2, 1], [3, 1, 2]])
def test_tasks_without_work_and_machines_of_other_speeds(speeds: list[int]) -> None:
    """Dense graphs of which half the tasks have no work, some pinned."""
    rng, machines = np.random.default_rng(sum(speeds)), Machines(np.array(speeds, np.float64))
    for _ in range(60):
        edges = [(int(s), int(t), int(n)) for s, t, n in zip(*rng.integers(0, 7, (2, 12)), rng.integers(1, 6, 12), strict=True)]
        pinned = {int(task): int(rng.integers(0, 3)) for task in rng.integers(0, 7, rng.integers(0, 3))}
        graph = task_graph([int(w) for w in rng.choice([0, 0, 0, 2, 3, 5], 6)] + [4], edges, pinned=pinned)
        allowed, least = least_cut(graph, speeds, Fraction("1.25"))
        found = cost(graph, place(graph, machines, PlacementConfig("network", "tuples", 1.25)), machines)
        assert (found.load * (math.lcm(*speeds) / np.array(speeds))).max() <= allowed + 1e-9
        assert found.network_tuples == least


@settings(max_examples=80)
@given(st.data(), st.integers(0, 2))
def test_small_graphs_have_the_least_cut_within_the_memory(data: st.DataObject, seed: int) -> None:
    """Where no placement has enough, the one that is found is told by its ratio. Unequal machines, pinned tasks."""
    graph = data.draw(graphs(7, 3))
    states = st.lists(st.integers(0, 9), min_size=len(graph.tasks), max_size=len(graph.tasks))
    graph = replace(graph, state_bytes=np.array(data.draw(states), np.int64))
    speeds = data.draw(st.sampled_from([[1, 1, 1], [1, 2, 1], [3, 1, 2]]))
    memory = data.draw(st.lists(st.integers(1, 25), min_size=3, max_size=3))
    machines = Machines(np.array(speeds, np.float64), memory_bytes=np.array(memory, np.int64))
    found = cost(decisive(graph), place(graph, machines, PlacementConfig("network", "tuples", 1.25), seed), machines)
    allowed, least = least_cut(decisive(graph), speeds, Fraction("1.25"), memory)
    assert (found.memory_ratio > 1) == (least < 0)
    if least >= 0:
        assert (found.load * (math.lcm(*speeds) / np.array(speeds))).max() <= allowed + 1e-9
        assert found.network_tuples == least


@pytest.mark.parametrize("with_metis", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_memory_is_kept_where_work_and_state_are_elsewhere(
    seed: int, with_metis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 tasks in pairs that belong together, half of all with work and little state, half the other way round."""
    monkeypatch.setattr(partitioning, "metis", partitioning.metis if with_metis else lambda *_: None)
    rng = np.random.default_rng(seed)
    heavy = rng.permutation(60) < 30
    work, state = np.where(heavy, 100, 1), np.where(heavy, 1, 1_000)
    edges = [(i, (i + 30) % 60, 50) for i in range(30)] + [(i, (i + 7) % 60, 1) for i in range(60)]
    graph = task_graph(work.tolist(), edges, state=state.tolist())
    machines = Machines(np.ones(4), memory_bytes=np.array([8_500, 8_500, 8_500, 8_500]))
    found = cost(graph, place(graph, machines, PlacementConfig(imbalance=1.1)), machines)
    assert found.memory_ratio <= 1
    assert found.fullest_ratio <= 1.1
    free = cost(graph, place(graph, Machines.alike(4), PlacementConfig(imbalance=1.1)), machines)
    by_id = cost(graph, place(graph, machines, BY_ID), machines)
    assert free.network_tuples <= found.network_tuples <= by_id.network_tuples / 3


def test_no_machine_with_memory_is_overlooked() -> None:
    """One task with state, and the fastest machine has no room for it; the same with hosts."""
    speed, memory = np.array([3.0, 2.0, 1.0, 1.0]), np.array([10, 10, 1_000, 10])
    graph = task_graph([5], [], state=[700])
    assert place(graph, Machines(speed, memory_bytes=memory), NETWORK).tolist() == [2]
    host = np.array([0, 0, 1, 1])
    assert place(graph, Machines(speed, host, memory), NETWORK).tolist() == [2]


def test_hosts_whose_memory_is_in_small_parts() -> None:
    """What a host has in all suffices, but on no machine of it."""
    graph = task_graph([1], [], state=[10])
    machines = Machines(np.ones(3), np.array([1, 0, 0]), np.array([10, 6, 6]))
    assert place(graph, machines, NETWORK).tolist() == [0]


@pytest.mark.parametrize("seed", range(6))
def test_memory_is_kept_on_hosts(seed: int) -> None:
    """A tenth more than one placement needs, which is drawn first; no worse than that one."""
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(40, 90)), 6
    state, made = rng.integers(1, 1_000, size), rng.integers(0, count, size)
    edges = [
        (int(s), int(t), int(n))
        for s, t, n in zip(*rng.integers(0, size, (2, 3 * size)), rng.integers(1, 99, 3 * size), strict=True)
    ]
    graph = task_graph(rng.integers(1, 20, size).tolist(), edges, state=state.tolist())
    memory = (np.bincount(made, state, count) * 1.1).astype(np.int64) + 1
    machines = Machines(np.ones(count), np.arange(count) // 2, memory)
    found = place(graph, machines, PlacementConfig(imbalance=3.0))
    assert cost(graph, found, machines).memory_ratio <= 1


def test_staying_is_compared_as_it_is() -> None:
    """On the machine that a task is on, not on one like the best; and with all tasks where they are."""
    graph = task_graph([1], [], state=[10])
    machines = Machines(np.ones(3), memory_bytes=np.array([10, 5, 5]))
    assert place(graph, machines, NETWORK, now=np.array([2])).tolist() == [0]
    assert suggest(graph, machines, NETWORK, 0, np.array([2]), busy=True).tolist() == [0]
    assert place(task_graph([1], []), Machines(np.array([0.5, 2.0])), NETWORK, now=np.array([0])).tolist() == [1]
    edges = [(1, 2, 51), (0, 2, 18), (0, 1, 13), (1, 3, 52)]
    graph, machines = task_graph([1, 0, 0, 0], edges, pinned={3: 1}), Machines(np.array([2.0, 1.0]))
    found = place(graph, machines, PlacementConfig(objective="tuples"), now=np.array([0, 0, 0, 1]))
    assert cost(graph, found, machines).network_tuples == 31


def test_no_memory_holds_nothing() -> None:
    graph = task_graph([1], [], pinned={0: 0}, state=[1])
    machines = Machines(np.ones(2), memory_bytes=np.array([0, 9]))
    assert cost(graph, place(graph, machines, NETWORK), machines).memory_ratio > 1


def test_state_beyond_64_bits_is_scaled() -> None:
    exact = 3704023342828928275
    graph = task_graph([1], [], state=[exact])
    machines = Machines(np.ones(2), memory_bytes=np.array([exact - 10**18, exact]))
    assert place(graph, machines, NETWORK).tolist() == [1]
    huge = (1 << 63) - 1
    graph = task_graph([1] * 4, [(0, 1, 9), (2, 3, 9)], state=[huge, huge, huge, huge])
    machines = Machines(np.ones(3), memory_bytes=np.array([huge, huge, huge]))
    assert cost(graph, place(graph, machines, NETWORK), machines).memory_ratio == pytest.approx(2)


def test_a_machine_that_holds_too_much_is_relieved_though_no_bytes_are_saved() -> None:
    graph = task_graph([1] * 8, [(i, i + 1, 10) for i in range(7)], state=[100] * 8)
    now = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    settings_ = PlacementConfig(imbalance=2.0)
    assert (suggest(graph, Machines.alike(2), settings_, 0, now, busy=False) == now).all()
    machines = Machines(np.ones(2), memory_bytes=np.array([500, 500]))
    then = suggest(graph, machines, settings_, 0, now, busy=False)
    assert cost(graph, then, machines).memory_ratio <= 1


@settings(max_examples=60)
@given(graphs(40, 5), st.integers(2, 5))
def test_it_is_never_worse_than_round_robin_within_the_same_bound(graph: TaskGraph, machine_count: int) -> None:
    graph = replace(graph, pinned=np.where(graph.pinned < machine_count, graph.pinned, -1))
    machine_of, found = placed(graph, machine_count)
    _, other = placed(graph, machine_count, BY_ID)
    basis, machines = decisive(graph), Machines.alike(machine_count)
    reached = cost(basis, machine_of, machines).fullest_ratio
    if cost(basis, place(graph, machines, BY_ID), machines).fullest_ratio <= max(reached, 1.03):
        assert found.network_bytes <= other.network_bytes
    assert reached <= max(1.03, cost(basis, place(graph, machines, BY_ID), machines).fullest_ratio) + 1e-9


@settings(max_examples=30)
@given(graphs(30, 4), st.randoms(use_true_random=False))
def test_the_order_of_tasks_and_edges_does_not_matter(graph: TaskGraph, random: Any) -> None:
    tasks, edges = list(range(len(graph.tasks))), list(range(len(graph.source)))
    random.shuffle(tasks)
    random.shuffle(edges)
    at = np.empty(len(tasks), np.int64)
    at[tasks] = np.arange(len(tasks))
    columns = {name: getattr(graph, name)[edges] for name in ("tuples", "nbytes")}
    mixed = TaskGraph(
        tuple(graph.tasks[i] for i in tasks),
        graph.work_ns[tasks],
        graph.state_bytes[tasks],
        graph.pinned[tasks],
        at[graph.source[edges]] if edges else graph.source,
        at[graph.target[edges]] if edges else graph.target,
        deliveries=graph.deliveries,
        **columns,
    )
    here, there = placed(graph, 4)[1], placed(mixed, 4)[1]
    assert (here.network_bytes, here.fullest_ratio) == (there.network_bytes, there.fullest_ratio)


@pytest.mark.parametrize("with_metis", [True, False])
@pytest.mark.parametrize("machine_count", [2, 3, 7])
def test_disjoint_chains_send_nothing(machine_count: int, with_metis: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_metis:
        monkeypatch.setattr(partitioning, "has_metis", lambda: False)
    chains = 6 * machine_count
    edges = [(i * 4 + j, i * 4 + j + 1, 100) for i in range(chains) for j in range(3)]
    found = placed(task_graph([5] * (4 * chains), edges), machine_count)[1]
    assert (found.network_tuples, found.fullest_ratio) == (0, 1.0)


def test_all_to_all_loses_what_it_must() -> None:
    edges = [(i, 20 + j, 7) for i in range(20) for j in range(20)]
    found = placed(task_graph([3] * 40, edges), 4, PlacementConfig("network", "bytes", 1.0))[1]
    assert found.network_tuples == found.total_tuples * 3 // 4, "1 - 1/K of them, wherever the tasks are"


def test_a_star_through_a_hot_task_keeps_the_heaviest_rays() -> None:
    rays = [5, 50, 500, 1, 2, 3, 4, 600]
    graph = task_graph([8, *[1] * 8], [(0, 1 + i, n) for i, n in enumerate(rays)], pinned={0: 1})
    machine_of, found = placed(graph, 2, PlacementConfig("network", "tuples", 1.25))
    assert machine_of[[3, 8]].tolist() == [1, 1]
    assert found.network_tuples == sum(rays) - 600 - 500


# ---------------------------------------------------------------- graphs that break placers


def test_one_machine_has_everything() -> None:
    machine_of, found = placed(task_graph([1, 2, 3], [(0, 1, 5), (1, 2, 5)]), 1)
    assert (machine_of.tolist(), found.network_tuples, found.fullest_ratio) == ([0, 0, 0], 0, 1.0)


@pytest.mark.parametrize("machine_count", [4, 50, 65_536])
def test_more_machines_than_tasks(machine_count: int) -> None:
    graph = task_graph([5, 5, 5], [(0, 1, 9), (1, 2, 9)], pinned={2: machine_count - 1})
    machine_of, found = placed(graph, machine_count)
    assert len(set(machine_of.tolist())) == 3
    assert found.fullest_ratio == pytest.approx(machine_count / 3)


def test_no_tasks() -> None:
    assert placed(task_graph([], []), 3)[0].tolist() == []


def test_a_task_heavier_than_the_bound_stands_alone_where_the_rest_needs_the_room() -> None:
    graph = task_graph([100, 20, 20, 20, 20, 20, 20], [(0, i, 1000) for i in range(1, 7)])
    found = placed(graph, 2)[1]
    assert found.load.max() == 120, "100 + 20 against 100 is the most even that there is"
    assert found.network_tuples == 5000
    assert placed(graph, 2, PlacementConfig("network", "bytes", 1.3))[1].network_tuples == 4000


def test_without_statistics_the_tasks_are_spread() -> None:
    for graph in (task_graph([0] * 12, []), task_graph([0] * 12, [(i, (i + 1) % 12, 0) for i in range(12)])):
        machine_of, _ = placed(graph, 4)
        assert np.bincount(machine_of).tolist() == [3, 3, 3, 3]


def test_without_work_the_tuples_received_stand_for_it() -> None:
    graph = task_graph([0] * 8, [(i, i + 4, 10) for i in range(4)])
    machine_of, found = placed(graph, 2)
    assert found.network_tuples == 0
    assert np.bincount(machine_of[4:]).tolist() == [2, 2]


def test_without_bytes_the_tuples_decide() -> None:
    graph = task_graph([1] * 4, [(0, 1, 9), (2, 3, 9), (1, 2, 1)])
    graph = replace(graph, nbytes=np.zeros(3, np.int64))
    assert placed(graph, 2)[1].network_tuples == 1


@pytest.mark.parametrize("count", [1 << 40, 1 << 50, (1 << 63) - 1])
def test_large_counts_are_scaled_and_small_ones_beside_them_still_count(count: int) -> None:
    """30 pairs of tasks with much between them, in a ring with little; of 6 machines each is to have 5 neighbours."""
    ring = [(2 * i + 1, (2 * i + 2) % 60, 1) for i in range(30)]
    graph = task_graph([1] * 60, [*((2 * i, 2 * i + 1, count) for i in range(30)), *ring])
    found = placed(graph, 6, PlacementConfig("network", "tuples", 1.0))[1]
    assert (found.network_tuples, found.fullest_ratio) == (6, 1.0)


def test_gaps_in_ids_and_texts() -> None:
    graph = task_graph([1] * 4, [(0, 2, 5), (1, 3, 5)], ids=[7, 1 << 70, 100, 3])
    assert placed(graph, 2)[1].network_tuples == 0
    assert placed(graph, 2, BY_ID)[0].tolist() == [1, 0, 0, 1]
    texts = replace(graph, tasks=("b", "a", "d", "c"))
    assert placed(texts, 2)[1].network_tuples == 0
    assert placed(texts, 2, BY_ID)[0].tolist() == [0, 1, 0, 1]


def test_isolated_tasks_balance_the_work_of_the_others() -> None:
    graph = task_graph([6, 6, 6, 2, 2, 2, 2, 2, 2, 2, 2, 2], [(0, 1, 5), (1, 2, 5)])
    found = placed(graph, 2)[1]
    assert (found.network_tuples, found.fullest_ratio) == (0, 1.0)


def test_pinned_work_beyond_the_bound_is_not_moved() -> None:
    graph = task_graph([50, 50, 10, 10], [(0, 2, 9), (1, 3, 9)], pinned={0: 0, 1: 0})
    machine_of, found = placed(graph, 3)
    assert machine_of[:2].tolist() == [0, 0]
    assert found.load[0] == 100, "its consumers find no room there"


def test_loops_cost_nothing() -> None:
    graph = task_graph([5, 5], [(0, 0, 1000), (1, 1, 1000), (0, 1, 1)])
    found = placed(graph, 2)[1]
    assert (found.network_tuples, found.total_tuples) == (1, 2001)


def test_a_slow_machine_gets_less() -> None:
    graph = task_graph([1] * 40, [(i, (i + 1) % 40, 1) for i in range(40)])
    machines = Machines(np.array([1.0, 2.0, 1.0]))
    machine_of = place(graph, machines, NETWORK)
    assert np.bincount(machine_of).tolist() == [10, 20, 10]
    assert cost(graph, machine_of, machines).network_tuples == 3


def ring_of(groups: int) -> TaskGraph:
    rng = np.random.default_rng(5)
    edges = [(i, j, int(rng.integers(1, 40))) for i in range(groups) for j in ((i + 1) % groups, (i + 7) % groups)]
    return task_graph(rng.integers(5, 15, groups).tolist(), edges)


def test_a_placement_that_is_as_good_stays() -> None:
    """Two equal optima do not alternate, and what is near is named such that few tasks move."""
    graph, machines = ring_of(60), Machines.alike(4)
    now = place(graph, machines, NETWORK)
    assert (place(graph, machines, NETWORK, now=now) == now).all()
    mirrored = 3 - now
    assert (place(graph, machines, NETWORK, now=mirrored) == mirrored).all()
    worse = mirrored.copy()
    worse[:4] = (worse[:4] + 1) % 4
    near = place(graph, machines, NETWORK, seed=3, now=worse)
    assert (near == worse).mean() > 0.5
    assert cost(graph, near, machines).network_bytes <= cost(graph, now, machines).network_bytes


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_staying(seed: int) -> None:
    graph, machines = ring_of(90), Machines.alike(5)
    now = place(graph, machines, NETWORK, seed=seed)
    then = place(graph, machines, NETWORK, seed=seed + 1, now=now)
    assert cost(graph, then, machines).network_bytes <= cost(graph, now, machines).network_bytes
    assert cost(graph, then, machines).fullest_ratio <= 1.03


def test_the_policies() -> None:
    assert round_robin(7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    pinned = task_graph([1] * 5, [], pinned={0: 2})
    assert placed(pinned, 3, BY_ID)[0].tolist() == [2, 1, 2, 0, 1]


# ---------------------------------------------------------------- hosts


def _on_hosts(counts: Sequence[int], speeds: Sequence[float] = ()) -> Machines:
    """So many machines on each host."""
    host = np.repeat(np.arange(len(counts)), counts)
    return Machines(np.array(speeds or [1.0] * len(host)), host)


@pytest.mark.parametrize("counts", [(2, 2), (3, 1, 2), (4, 4)])
def test_hosts_come_before_machines(counts: tuple[int, ...]) -> None:
    """Chains of tasks stay on a host, and those that exchange most on a machine."""
    machines = _on_hosts(counts)
    size = 4 * len(machines.speed)
    edges = [(8 * i + j, 8 * i + (j + 1) % 8, 100 if j % 2 == 0 else 10) for i in range(size // 4 // 2) for j in range(8)]
    graph = task_graph([1] * size, edges)
    found = cost(graph, place(graph, machines, PlacementConfig(imbalance=1.05)), machines)
    if counts in ((2, 2), (4, 4)):
        assert (found.host_tuples, found.fullest_ratio) == (0, 1)
    flat = cost(graph, place(graph, Machines(machines.speed), PlacementConfig(imbalance=1.05)), machines)
    assert found.host_bytes <= flat.host_bytes
    assert found.host_bytes <= found.network_bytes


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_on_hosts_it_is_never_worse_than_staying(seed: int) -> None:
    """By what goes between hosts, or by how full the fullest machine is."""
    rng = np.random.default_rng(seed)
    machines, count = _on_hosts((2, 3)), int(rng.integers(1, 25))
    edges = [(*rng.integers(0, count, 2).tolist(), int(rng.integers(0, 50))) for _ in range(3 * count)]
    pinned = {int(task): int(rng.integers(0, 5)) for task in rng.integers(0, count, 2)}
    graph, now = task_graph(rng.integers(0, 9, count).tolist(), edges, pinned=pinned), rng.integers(0, 5, count)
    now = np.where(graph.pinned >= 0, graph.pinned, now)
    then = place(graph, machines, PlacementConfig(imbalance=1.2), now=now)
    before, after = (cost(decisive(graph), at, machines) for at in (now, then))
    assert (then[graph.pinned >= 0] == graph.pinned[graph.pinned >= 0]).all()
    assert (max(after.fullest_ratio, 1.2), after.host_bytes) <= (max(before.fullest_ratio, 1.2), before.host_bytes)


@settings(max_examples=200, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 1e-6, 1e6, 0.1]), min_size=2, max_size=4),
    work=st.lists(st.integers(0, 20), min_size=1, max_size=7),
)
def test_the_bound_is_found_for_any_speeds(speeds: list[float], work: list[int]) -> None:
    """The fullest machine of the most even placement, of all there are: shares are rarely binary fractions."""
    graph, machines = task_graph(work, []), Machines(np.array(speeds))
    every = np.array(list(itertools.product(range(len(speeds)), repeat=len(work))), np.int64)
    loads = np.stack([((every == m) * graph.work_ns).sum(axis=1) / machines.shares[m] for m in range(len(speeds))])
    least = loads.max(axis=0).min() * len(speeds) / max(1, sum(work))
    found = cost(graph, place(graph, machines, PlacementConfig(imbalance=1.0)), machines)
    assert not sum(work) or found.fullest_ratio <= max(1.0, least) * (1 + 1e-9)


@pytest.mark.parametrize("work", [[7, 7, 7, 7], [7, 1, 1]])
def test_few_tasks_on_hosts_of_unequal_size(work: list[int]) -> None:
    machines = Machines.alike(5, np.array([0, 0, 1, 1, 2]))
    found = place(task_graph(work, [(0, 1, 5), (1, 2, 3)]), machines, PlacementConfig())
    assert np.bincount(found, work, 5).max() == 7


def test_much_state_is_not_moved_where_the_bound_is_kept() -> None:
    """However busy the machines are, and however wide the bound."""
    graph = replace(task_graph([1] * 8, [(0, 1, 1), (2, 3, 1)]), state_bytes=np.full(8, 1 << 40))
    now = np.arange(8) % 2
    for imbalance in (1.03, 2.0):
        config = PlacementConfig(imbalance=imbalance)
        assert (suggest(graph, Machines.alike(2), config, 0, now, busy=True) == now).all()
    relieved = suggest(graph, Machines.alike(2), PlacementConfig(), 0, np.zeros(8, np.int64), busy=True)
    assert np.bincount(relieved).tolist() == [4, 4]


def test_machines_that_have_a_host_each_are_as_without_hosts() -> None:
    graph = ring_of(40)
    expected = place(graph, Machines.alike(4), NETWORK)
    for host in (np.arange(4), np.zeros(4, np.int64)):
        assert (place(graph, Machines(np.ones(4), host), NETWORK) == expected).all()


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_on_hosts_the_bound_is_kept_where_it_can_be(seed: int) -> None:
    """As without hosts; and within the same bound no more goes between hosts than by round robin."""
    rng = np.random.default_rng(seed)
    machines, count = _on_hosts((2, 2)), int(rng.integers(4, 14))
    edges = [(*rng.integers(0, count, 2).tolist(), int(rng.integers(1, 50))) for _ in range(2 * count)]
    pinned = {int(rng.integers(0, count)): int(rng.integers(0, 4))} if seed % 2 else {}
    graph = task_graph(rng.integers(1, 12, count).tolist(), edges, pinned=pinned)
    machine_of = place(graph, machines, NETWORK)
    assert (machine_of[graph.pinned >= 0] == graph.pinned[graph.pinned >= 0]).all()
    found, flat = cost(graph, machine_of, machines), cost(graph, place(graph, Machines.alike(4), NETWORK), machines)
    assert max(found.fullest_ratio, 1.03) <= max(flat.fullest_ratio, 1.03) + 1e-9
    by_id = cost(graph, place(graph, machines, BY_ID), machines)
    if by_id.fullest_ratio <= max(found.fullest_ratio, 1.03):
        assert (found.host_bytes, found.network_bytes) <= (by_id.host_bytes, by_id.network_bytes)


def test_even_parts_are_put_on_hosts_by_what_they_exchange() -> None:
    """Parts 0 and 2, and 1 and 3, exchange most; part 3 has a pinned task, so it stays where it is."""
    machines = _on_hosts((2, 2))
    graph = task_graph([5, 5, 5, 5], [(0, 2, 100), (1, 3, 100), (0, 1, 1), (2, 3, 1)], pinned={3: 3})
    flat = np.arange(4)
    found = put_on_hosts(decisive(graph), flat, machines, NETWORK, (0, IN_A_RUN))
    assert sorted(found.tolist()) == [0, 1, 2, 3]
    assert found[3] == 3
    assert cost(graph, flat, machines).host_tuples == 200
    assert cost(graph, found, machines).host_tuples == 2


@pytest.mark.parametrize(("speeds", "work", "imbalance"), [([2, 1], [9, 3], 1.5), ([1, 3, 5], [5, 5, 5], 1.8)])
def test_a_machine_that_is_exactly_at_the_bound(speeds: list[int], work: list[int], imbalance: float) -> None:
    """Shares such as 4/3 are no binary fractions."""
    graph = task_graph(work, [(i, i + 1, 19) for i in range(len(work) - 1)])
    machines = Machines(np.array(speeds, np.float64))
    found = cost(graph, place(graph, machines, PlacementConfig(imbalance=imbalance)), machines)
    assert (found.network_tuples, found.fullest_ratio) == (0, pytest.approx(imbalance))


def test_messages_decide_where_nothing_else_is_counted() -> None:
    graph = replace(task_graph([1, 1, 1, 1], [(0, 1, 0), (0, 2, 0), (2, 3, 0)]), deliveries=np.array([5, 1, 5]))
    assert placed(graph, 2)[1].network_deliveries == 1


def test_an_exact_search_over_many_machines_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the machines that it looks at; what it has then is no worse than what was known."""
    rng = np.random.default_rng(1)
    count, free = 60, 14
    edges = [(*rng.integers(0, count + free, 2).tolist(), int(rng.integers(1, 99))) for _ in range(300)]
    graph = task_graph([10] * (count + free), edges, pinned={i: i for i in range(count)})
    monkeypatch.setattr(partitioning, "_MOST_STEPS_EXACT", 1_000_000)
    machine_of, found = placed(graph, count)
    by_id = cost(graph, place(graph, Machines.alike(count), BY_ID), Machines.alike(count))
    assert found.fullest_ratio <= by_id.fullest_ratio
    assert len(set(machine_of[count:].tolist())) == free


# ---------------------------------------------------------------- moves


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), busy=st.booleans())
def test_suggestions_pay(seed: int, busy: bool) -> None:
    """They save more than they move, or relieve a machine that is overfull; pinned tasks stay; it comes to an end."""
    rng = np.random.default_rng(seed)
    count, machines = int(rng.integers(2, 30)), Machines.alike(3)
    edges = [(*rng.integers(0, count, 2).tolist(), int(rng.integers(0, 1 << 20))) for _ in range(2 * count)]
    graph = replace(
        task_graph(rng.integers(1, 9, count).tolist(), edges, pinned={0: 2}), state_bytes=rng.integers(0, 1 << 22, count)
    )
    now = np.concatenate([[2], rng.integers(0, 3, count - 1)])
    config = PlacementConfig(horizon=float(rng.choice([0.1, 1, 10])))
    then = suggest(graph, machines, config, 1, now, busy=busy)
    before, after = (cost(graph, at, machines) for at in (now, then))
    assert then[0] == 2
    if (then == now).all():
        return
    moved = int(graph.state_bytes[then != now].sum())
    pays = (before.network_bytes - after.network_bytes) * config.horizon > 1.2 * moved
    relieves = busy and before.fullest_ratio > 1.2 and after.fullest_ratio < before.fullest_ratio
    assert pays or relieves
    assert after.fullest_ratio <= max(config.imbalance, before.fullest_ratio)
    for _ in range(50):  # each lessens the traffic, so that placements cannot alternate
        after, then = cost(graph, then, machines), suggest(graph, machines, config, 1, now := then, busy=False)
        if (then == now).all():
            break
        assert cost(graph, then, machines).network_bytes < after.network_bytes
    else:
        pytest.fail("it never ends")

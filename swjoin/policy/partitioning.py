"""Partitions of a weighted graph: least cut among those whose parts fit their machines, in work and in state.

What: `Csr`, a symmetric graph; `Parts`, a problem; `Partitioner` and those there are, `metis` and `multilevel`;
`best_partition`, the best of all of them, exact for small graphs; `least_full`, how even the work can be; `attached`, merges at
no loss.
Why: METIS is quick and good, but leaves its bound where tasks are coarse, parts empty where there are few, and is not installed
everywhere; so its answers are checked, refined, and compared with those of a multilevel partitioner of our own.
Stays out: graphs of tasks and what they cost (`policy.task_graph`), pinned tasks, idle tasks, policies (`policy.placement`).

A partition is better when less state exceeds the machines' memory, then when less work exceeds their room, then by its cut,
then by how even it is. METIS knows work alone; state is mended afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.kernel_cache import kernel
from swjoin.policy.task_graph import F64

MOST_EXACT = 14  # vertices that are partitioned exactly
SEEDS = 8
_MOST_STEPS_EXACT = 4_000_000_000  # of an exact search, some seconds
_MOST_PACKED, _FEW_STEPS = 64, 100_000_000  # vertices and steps of a search for what may be there
_MOST_CELLS = 1 << 20  # vertices x machines of a search with tabus
_MOST_STEPS = 4_000  # of such a search
_SEEDED = 2_000  # vertices and ends of edges of a graph that all seeds are for; twice as many have a quarter of the seeds
_MOST_COMBINED = 100_000  # of the largest one whose partitions are combined
_MOST_WEIGHT = 1 << 60  # of all edges


class Csr(NamedTuple):
    """Every edge twice, once at each end. starts: int64 (n + 1,); neighbours, weights: int64 (2e,), weights positive."""

    starts: I64
    neighbours: I64
    weights: I64

    @property
    def size(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def build(cls, size: int, source: I64, target: I64, counts: I64) -> Csr:
        """Counts of both directions and of edges that are there twice are summed; loops and zeros are left out. Counts whose
        sum 2^60 is too small for are scaled, none of them to zero."""
        kept = (source != target) & (counts > 0)
        source, target, counts = source[kept], target[kept], scaled(counts[kept], _MOST_WEIGHT)
        keys = np.concatenate((source * size + target, target * size + source))
        order = np.argsort(keys, kind="stable")
        keys, weights = keys[order], np.concatenate((counts, counts))[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        weights = np.add.reduceat(weights, first) if len(first) else weights
        starts = np.searchsorted(keys[first], np.arange(size + 1) * size)
        return cls(starts, keys[first] % size, weights)


def scaled(counts: I64, most: int) -> I64:
    """The same proportions, in all at most about `most`; what is positive stays so."""
    total = float(counts.sum(dtype=np.float64))
    if total <= most:
        return counts
    return np.where(counts > 0, np.maximum(1, (counts * (most / total)).astype(np.int64)), 0)


@dataclass(frozen=True)
class Parts:
    """graph: of n vertices. work, state: int64 (n,), each in all below 2^61. fixed: int64 (n,), a vertex's machine, or -1.
    room, memory: int64 (m,), work and state that each machine may have. alike: int64 (m,), the same number for machines of
    the same speed and memory without fixed vertices."""

    graph: Csr
    work: I64
    state: I64
    fixed: I64
    room: I64
    memory: I64
    alike: I64

    @property
    def machine_count(self) -> int:
        return len(self.room)

    @property
    def size(self) -> int:
        """Vertices and ends of edges."""
        return self.graph.size + len(self.graph.weights)

    @cached_property
    def free(self) -> I64:
        return np.flatnonzero(self.fixed < 0)

    def held(self, machine_of: I64) -> I64:
        """State of each machine: int64 (m,)."""
        held = np.zeros(self.machine_count, np.int64)
        np.add.at(held, machine_of, self.state)
        return held

    def rank(self, machine_of: I64) -> tuple[int, int, int, float]:
        """Smaller is better: excess state, excess work, cut, sum of squared loads."""
        load = np.zeros(self.machine_count, np.int64)
        np.add.at(load, machine_of, self.work)
        over = int(np.maximum(self.held(machine_of) - self.memory, 0).sum())
        excess = int(np.maximum(load - self.room, 0).sum())
        starts, neighbours, weights = self.graph
        own = np.repeat(machine_of, np.diff(starts))
        cut = int(weights[own != machine_of[neighbours]].sum()) // 2
        return over, excess, cut, float((load.astype(np.float64) ** 2).sum())

    def contracted(self, cluster: I64, count: int) -> Parts:
        """The graph of clusters. cluster: int64 (n,), below count; vertices of a cluster are fixed alike."""
        work, state = np.zeros(count, np.int64), np.zeros(count, np.int64)
        np.add.at(work, cluster, self.work)
        np.add.at(state, cluster, self.state)
        fixed = np.full(count, -1, np.int64)
        np.maximum.at(fixed, cluster, self.fixed)
        graph = Csr(*_contract(*self.graph, cluster, count))
        return Parts(graph, work, state, fixed, self.room, self.memory, self.alike)


class Partitioner(Protocol):
    """int64 (n,), the machine of each vertex: those that are fixed at theirs, others anywhere. None: it has no answer.
    steps: of a search with tabus at most."""

    def __call__(self, parts: Parts, seed: int, steps: int) -> I64 | None: ...


class Effort(NamedTuple):
    """seeds: that are tried at most. with_metis: METIS may print remarks on standard output. steps: of each search with tabus
    at most."""

    seeds: int = SEEDS
    with_metis: bool = True
    steps: int = _MOST_STEPS


THOROUGH = Effort()


def best_partition(parts: Parts, seed: int, known: Iterable[I64] = (), effort: Effort = THOROUGH) -> I64:
    """The machine of each vertex, int64 (n,). known: partitions that it must not be worse than; of equals they come last."""
    partitioners: tuple[Partitioner, ...] = (metis, multilevel) if effort.with_metis else (multilevel,)
    small = len(parts.free) <= MOST_EXACT
    seeds = 1 if small else min(effort.seeds, max(1, SEEDS * _SEEDED**2 // parts.size**2))
    found = [a for i in range(seeds) for by in partitioners if (a := by(parts, seed * SEEDS + i, effort.steps)) is not None]
    found = sorted([*found, *known], key=parts.rank)
    if small:
        return _exact(parts, found[0])
    rng = np.random.default_rng([seed, 3])
    for i in range(2 * seeds if parts.size <= _MOST_COMBINED else 0):
        other = found[int(rng.integers(len(found)))]
        child = _levels(parts, seed * SEEDS + i, effort.steps, (found[0], other))
        rank = parts.rank(child)
        if rank < parts.rank(found[-1]) and all(rank != parts.rank(one) for one in found):
            found = sorted([*found[:-1], child], key=parts.rank)
    return found[0]


# ---------------------------------------------------------------- METIS


def metis(parts: Parts, seed: int, steps: int = _MOST_STEPS) -> I64 | None:
    """By METIS, minimising the cut; None where pymetis is missing, or where METIS has no answer."""
    count, graph = parts.machine_count, parts.graph
    if count < 2 or len(parts.free) <= 2 * count or not len(graph.weights) or not parts.work.any():
        return None  # METIS ends the process on graphs without weights, and leaves parts empty where there are few vertices
    if parts.work[parts.free].max() * count > parts.work.sum():
        return None  # it runs out of vertices, and prints that to standard output
    shares = parts.room / parts.room.sum()
    answer = _asked_metis(graph, parts.work, shares, seed)
    if answer is None or answer.shape != parts.work.shape or answer.min() < 0 or answer.max() >= count:
        return None
    machine_of = _named(parts, answer)
    _polish(parts, machine_of, seed, 0, steps, wide=False)
    return machine_of


def has_metis() -> bool:
    """Whether pymetis is installed."""
    try:
        import pymetis  # noqa: F401
    except ImportError:
        return False
    return True


def _asked_metis(graph: Csr, work: I64, shares: F64, seed: int) -> I64 | None:
    """The part of each vertex as METIS has it. shares: float64 (m,), of the work, in all 1."""
    if not has_metis():
        return None
    import pymetis

    kind = pymetis.zero_copy_dtype()
    most = 1 << (60 if kind.itemsize == 8 else 29)
    # seeds are those of C's srand, ufactor is in thousandths
    options = pymetis.Options(seed=seed % (1 << 31), ufactor=20)
    _, found = pymetis.part_graph(
        len(shares),
        pymetis.CSRAdjacency(graph.starts.astype(kind), graph.neighbours.astype(kind)),
        vweights=scaled(work, most).astype(kind),
        eweights=scaled(graph.weights, most).astype(kind),
        tpwgts=None if np.ptp(shares) == 0 else list(shares / shares.sum()),
        recursive=False,
        options=options,
    )
    return np.array(found, np.int64)


def _named(parts: Parts, answer: I64) -> I64:
    """Machines for the parts of a partitioner that knows no fixed vertices: those of most fixed work first."""
    fixed = np.flatnonzero(parts.fixed >= 0)
    name = np.full(parts.machine_count, -1, np.int64)
    taken = np.zeros(parts.machine_count, np.bool_)
    for vertex in fixed[np.argsort(-parts.work[fixed], kind="stable")]:
        part, machine = answer[vertex], parts.fixed[vertex]
        if name[part] < 0 and not taken[machine]:
            name[part], taken[machine] = machine, True
    name[name < 0] = np.flatnonzero(~taken)
    machine_of = name[answer]
    machine_of[fixed] = parts.fixed[fixed]
    return machine_of


# ---------------------------------------------------------------- multilevel


def multilevel(parts: Parts, seed: int, steps: int = _MOST_STEPS) -> I64:
    """Vertices of heavy edges are merged until few are left, those are distributed, and every level is refined."""
    return _levels(parts, seed, steps, None)


def _levels(parts: Parts, seed: int, steps: int, parents: tuple[I64, I64] | None) -> I64:
    """parents: partitions, of which the first is refined: only vertices that both have on one machine are merged, so what they
    agree on moves as a whole. With twice the same partition chains of heavy edges move together."""
    rng = np.random.default_rng([seed, 1])
    fewest, most = max(30, 2 * parts.machine_count), (int(parts.room.max()), int(parts.memory.max()))
    machine_of = None if parents is None else parents[0]
    side = parts.fixed if parents is None else parents[0] * parts.machine_count + parents[1]
    levels: list[tuple[Parts, I64]] = []
    while parts.graph.size > fewest:
        order = rng.permutation(parts.graph.size)
        cluster, count = _merge(*parts.graph, parts.work, parts.state, parts.fixed, side, *most, order)
        if count > 0.95 * parts.graph.size:
            break
        levels.append((parts, cluster))
        parts, member = parts.contracted(cluster, count), np.empty(count, np.int64)
        member[cluster] = np.arange(len(cluster))
        side, machine_of = side[member], None if machine_of is None else machine_of[member]
    if machine_of is None:
        order = np.argsort(-parts.work * rng.uniform(0.5, 1.0, parts.graph.size), kind="stable")
        machine_of = _grow(*parts.graph, parts.work, parts.state, parts.fixed, parts.room, parts.memory, order)
    machine_of = machine_of.copy()
    _polish(parts, machine_of, seed, 2, steps, wide=True, loose=bool(levels))
    for i, (parts, cluster) in reversed(list(enumerate(levels))):
        machine_of = machine_of[cluster]
        _polish(parts, machine_of, seed, 1, steps, wide=True, loose=i > 0)
    return machine_of


def _polish(parts: Parts, machine_of: I64, seed: int, doublings: int, steps: int, *, wide: bool, loose: bool = False) -> None:
    """Refine a partition in place. doublings: of a search's steps, which are fewer for large graphs; steps: of them at most.
    wide: with more room at first. loose: finer levels mend what exceeds the room."""
    size, count = parts.graph.size, parts.machine_count
    if count < 2 or not len(parts.free):
        return
    heaviest, most = int(parts.work[parts.free].max()), int(parts.room.max())
    order = np.random.default_rng([seed, 2]).permutation(parts.free)
    spare = (int(parts.room.sum()) - int(parts.work.sum())) // count
    work, state = (parts.work, parts.room), (parts.state, parts.memory)
    small = size * count <= _MOST_CELLS
    if small and (parts.held(machine_of) > parts.memory).any():
        _exchange(*parts.graph, *state, *work, parts.free, machine_of)
        _exchange(*parts.graph, *state, parts.work, np.full_like(parts.room, parts.work.sum()), parts.free, machine_of)
    if wide and heaviest > 4 * spare:
        wider = parts.room + parts.room // 32 + min(heaviest, most // 4)
        _refine(*parts.graph, parts.work, wider, *state, machine_of, order, 12)
    if not loose:
        _refine(*parts.graph, *work, *state, machine_of, order, 12)
    if small:
        steps = min(steps, (1_000_000 << doublings) // (size * count))
        _search_around(*parts.graph, *work, *state, parts.free, machine_of, steps, seed)
        if not loose and _exchange(*parts.graph, *work, *state, parts.free, machine_of):
            _search_around(*parts.graph, *work, *state, parts.free, machine_of, steps, seed)


# ---------------------------------------------------------------- evenness, exact search


def least_full(parts: Parts, shares: F64) -> I64:
    """A partition, int64 (n,), within `parts.room`, or, where there is none, one whose fullest machine has about the least work
    over its share; the least for up to `MOST_EXACT` vertices. Within `parts.memory`, if that can be. shares: float64 (m,),
    relative speeds."""
    size = parts.work / max(1, parts.work.sum()) + parts.state / max(1, parts.state.sum())
    order = parts.free[np.argsort(-size[parts.free], kind="stable")]
    machine_of: I64 = _pack(parts.work, parts.state, parts.fixed, shares, parts.memory, order)
    no_edges = Csr(np.zeros(parts.graph.size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    most = _MOST_STEPS_EXACT if len(order) <= MOST_EXACT else _FEW_STEPS
    sizes = parts.work, parts.state, parts.fixed
    if (parts.held(machine_of) > parts.memory).any() and len(order) <= _MOST_PACKED:
        all_work = np.full_like(parts.room, parts.work.sum())
        _search(*no_edges, *sizes, all_work, parts.memory, parts.alike, order, machine_of, 1, most)
    _even(*sizes, shares, parts.memory, machine_of)
    while len(order) <= _MOST_PACKED:
        load = np.bincount(machine_of, parts.work, len(shares)).astype(np.int64)
        if (load <= parts.room).all():
            break
        ratio = (load / shares).max()
        less = np.ceil(ratio * shares).astype(np.int64)
        while (full := less / shares >= ratio).any():  # strictly less full; products of shares that are no binary fractions are
            less[full] -= 1  # rounded either way
        less = np.maximum(less, parts.room)
        found = machine_of.copy()
        where = less, parts.memory, parts.alike
        if (less < 0).any() or not _search(*no_edges, *sizes, *where, order, found, 1, most):
            break
        machine_of = found
    return machine_of


def _exact(parts: Parts, known: I64) -> I64:
    """The least cut within room and memory, of few vertices; `known`, if none is better."""
    over, excess, cut, _ = parts.rank(known)
    degree = np.add.reduceat(np.append(parts.graph.weights, 0), parts.graph.starts[:-1]) * (np.diff(parts.graph.starts) > 0)
    order = parts.free[np.argsort(-degree[parts.free], kind="stable")]
    found = known.copy()
    best = cut if over == excess == 0 else np.iinfo(np.int64).max
    where = parts.room, parts.memory, parts.alike
    _search(*parts.graph, parts.work, parts.state, parts.fixed, *where, order, found, best, _MOST_STEPS_EXACT)
    return found


# ---------------------------------------------------------------- kernels


@kernel(allocates=True)
def attached(starts: I64, neighbours: I64, weights: I64, work: I64, fixed: I64) -> I64:
    """The vertex that each can be merged with at no loss, int64 (n,), itself if none: one without work or a fixed machine goes
    to a neighbour if that edge weighs as much as all others together."""
    root = np.arange(len(work))
    for v in range(len(work)):
        if work[v] or fixed[v] >= 0:
            continue
        heaviest, total, to = np.int64(0), np.int64(0), v
        for i in range(starts[v], starts[v + 1]):
            total += weights[i]
            if weights[i] > heaviest:
                heaviest, to = weights[i], neighbours[i]
        if heaviest < total - heaviest:
            continue
        while root[to] != to:
            to = root[to]
        root[v] = to  # v itself, where neighbours have gone to v
    for v in range(len(work)):
        while root[root[v]] != root[v]:
            root[v] = root[root[v]]
    return root


@kernel(allocates=True)
def _contract(starts: I64, neighbours: I64, weights: I64, cluster: I64, count: int) -> tuple[I64, I64, I64]:
    """The graph of clusters: edges between two of them are summed."""
    n = len(starts) - 1
    first = np.zeros(count + 1, np.int64)
    for v in range(n):
        first[cluster[v] + 1] += 1
    for c in range(count):
        first[c + 1] += first[c]
    members, at = np.empty(n, np.int64), first.copy()
    for v in range(n):
        members[at[cluster[v]]] = v
        at[cluster[v]] += 1
    new_starts = np.zeros(count + 1, np.int64)
    new_neighbours, new_weights = np.empty_like(neighbours), np.empty_like(weights)
    where, end = np.full(count, -1, np.int64), 0
    for c in range(count):
        begin = end
        for j in range(first[c], first[c + 1]):
            v = members[j]
            for i in range(starts[v], starts[v + 1]):
                other = cluster[neighbours[i]]
                if other == c:
                    continue
                if where[other] >= begin:
                    new_weights[where[other]] += weights[i]
                else:
                    where[other] = end
                    new_neighbours[end], new_weights[end] = other, weights[i]
                    end += 1
        new_starts[c + 1] = end
    return new_starts, new_neighbours[:end].copy(), new_weights[:end].copy()


@kernel(allocates=True)
def _merge(
    starts: I64,
    neighbours: I64,
    weights: I64,
    work: I64,
    state: I64,
    fixed: I64,
    side: I64,
    most_work: int,
    most_state: int,
    order: I64,
) -> tuple[I64, int]:
    """Clusters of vertices: each joins the heaviest neighbour's if that is on its side and has at most this much work and state
    then. Returns the cluster of each vertex, int64 (n,), and their number."""
    n = len(work)
    root, load, held = np.arange(n), work.copy(), state.copy()
    size, gain, touched = np.ones(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    for v in order:
        if root[v] != v or size[v] > 1 or fixed[v] >= 0:
            continue
        count = 0
        for i in range(starts[v], starts[v + 1]):
            r = root[neighbours[i]]
            if gain[r] == 0:
                touched[count] = r
                count += 1
            gain[r] += weights[i]
        best, best_gain = -1, np.int64(0)
        for j in range(count):
            r = touched[j]
            fits = side[r] == side[v] and load[r] + work[v] <= most_work and held[r] + state[v] <= most_state and size[r] < 4
            if fits and (gain[r] > best_gain or (gain[r] == best_gain and load[r] < load[best])):
                best, best_gain = r, gain[r]
            gain[r] = 0
        if best >= 0:
            root[v] = best
            load[best] += work[v]
            held[best] += state[v]
            size[best] += 1
    cluster, count = np.full(n, -1, np.int64), 0
    for v in range(n):
        if cluster[root[v]] < 0:
            cluster[root[v]] = count
            count += 1
        cluster[v] = cluster[root[v]]
    return cluster, count


@kernel(allocates=True)
def _grow(
    starts: I64, neighbours: I64, weights: I64, work: I64, state: I64, fixed: I64, room: I64, memory: I64, order: I64
) -> I64:
    """Each vertex in turn to the machine that it is bound to most, of those with room and memory; else to the least full."""
    machine_of = fixed.copy()
    count = len(room)
    load, held, bound = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for v in range(len(work)):
        if fixed[v] >= 0:
            load[fixed[v]] += work[v]
            held[fixed[v]] += state[v]
    for v in order:
        if fixed[v] >= 0:
            continue
        bound[:] = 0
        for i in range(starts[v], starts[v + 1]):
            m = machine_of[neighbours[i]]
            if m >= 0:
                bound[m] += weights[i]
        best, there = 0, np.int64(0)
        for m in range(count):
            here = room[m] - load[m] - work[v]
            if state[v] and held[m] + state[v] > memory[m]:
                here = min(here, 0) - (1 << 62)
            if m == 0:
                there = here
            elif (here >= 0) != (there >= 0):
                best = m if here >= 0 else best
            elif bound[m] != bound[best] and here >= 0:
                best = m if bound[m] > bound[best] else best
            elif here > there:
                best = m
            there = here if best == m else there
        machine_of[v] = best
        load[best] += work[v]
        held[best] += state[v]
    return machine_of


@kernel(allocates=True)
def _pack(work: I64, state: I64, fixed: I64, shares: F64, memory: I64, order: I64) -> I64:
    """Each vertex in turn to the machine that is least full with it, of those with memory, if there are any. int64 (n,)."""
    machine_of = fixed.copy()
    load, held = np.zeros(len(shares), np.int64), np.zeros(len(shares), np.int64)
    for v in range(len(work)):
        if fixed[v] >= 0:
            load[fixed[v]] += work[v]
            held[fixed[v]] += state[v]
    for v in order:
        best = 0
        for m in range(1, len(shares)):
            fits, best_fits = held[m] + state[v] <= memory[m], held[best] + state[v] <= memory[best]
            if fits != best_fits:
                best = m if fits else best
            elif (load[m] + work[v]) / shares[m] < (load[best] + work[v]) / shares[best]:
                best = m
        machine_of[v] = best
        load[best] += work[v]
        held[best] += state[v]
    return machine_of


@kernel(allocates=True)
def _even(work: I64, state: I64, fixed: I64, shares: F64, memory: I64, machine_of: I64) -> None:
    """Move a vertex from the fullest machine, or exchange it for another's, as long as that makes the fullest less full, and
    memory suffices."""
    n, count = len(work), len(shares)
    load, held = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for v in range(n):
        load[machine_of[v]] += work[v]
        held[machine_of[v]] += state[v]
    for _ in range(1000):
        top = 0
        for m in range(1, count):
            if load[m] / shares[m] > load[top] / shares[top]:
                top = m
        least, mine, other, to = load[top] / shares[top], -1, -1, -1
        for v in range(n):
            if machine_of[v] != top or fixed[v] >= 0 or work[v] == 0:
                continue
            for m in range(count):
                ratio = max((load[m] + work[v]) / shares[m], (load[top] - work[v]) / shares[top])
                if m != top and ratio < least and held[m] + state[v] <= memory[m]:
                    least, mine, other, to = ratio, v, -1, m
            if n > 5000:
                continue
            for u in range(n):
                m = machine_of[u]
                if m == top or fixed[u] >= 0 or work[u] >= work[v]:
                    continue
                moved = work[v] - work[u]
                ratio, of_state = max((load[m] + moved) / shares[m], (load[top] - moved) / shares[top]), state[v] - state[u]
                fits = held[m] + max(0, of_state) <= max(memory[m], held[m]) and held[top] - of_state <= max(
                    memory[top], held[top]
                )
                if ratio < least and fits:
                    least, mine, other, to = ratio, v, u, m
        if mine < 0:
            return
        moved = work[mine] - (work[other] if other >= 0 else 0)
        of_state = state[mine] - (state[other] if other >= 0 else 0)
        load[top] -= moved
        load[to] += moved
        held[top] -= of_state
        held[to] += of_state
        machine_of[mine] = to
        if other >= 0:
            machine_of[other] = top


@kernel(allocates=True)
def _refine(
    starts: I64,
    neighbours: I64,
    weights: I64,
    work: I64,
    room: I64,
    state: I64,
    memory: I64,
    machine_of: I64,
    order: I64,
    passes: int,
) -> None:
    """Passes over the free vertices, in place: each moves where it lessens the cut, or the fuller machine at no loss. Out of a
    machine without room or memory it moves at a loss, too, small ones first: from pass to pass more is allowed for a unit of
    work, or of state."""
    count = len(room)
    load, bound, touched = np.zeros(count, np.int64), np.zeros(count, np.int64), np.empty(count + 2, np.int64)
    held = np.zeros(count, np.int64)
    for v in range(len(work)):
        load[machine_of[v]] += work[v]
        held[machine_of[v]] += state[v]
    allowed = 0.25 * weights.sum() / max(1, work.sum())
    unit = work.sum() / max(1, state.sum())
    for turn in range(passes):
        moved, excess = 0, False
        emptiest = int(np.argmax(room - load))
        freest = int(np.argmax(memory - held))
        for v in order:
            own, found = machine_of[v], 0
            for i in range(starts[v], starts[v + 1]):
                m = machine_of[neighbours[i]]
                if bound[m] == 0:
                    touched[found] = m
                    found += 1
                bound[m] += weights[i]
            size = float(work[v]) if load[own] > room[own] else 0.0
            size = max(size, state[v] * unit) if held[own] > memory[own] else size
            excess |= load[own] > room[own] or held[own] > memory[own]
            touched[found], touched[found + 1] = emptiest, freest
            best, best_gain = -1, np.int64(0)
            for j in range(found + 2):
                m = touched[j]
                if m == own or load[m] + work[v] > room[m] or (state[v] and held[m] + state[v] > memory[m]):
                    continue
                gain = bound[m] - bound[own]
                if best < 0 or gain > best_gain or (gain == best_gain and load[m] < load[best]):
                    best, best_gain = m, gain
            for j in range(found):
                bound[touched[j]] = 0
            if best < 0:
                continue
            even = best_gain == 0 and load[best] + work[v] < load[own]
            if best_gain > 0 or even or (size > 0 and -best_gain <= allowed * size):
                machine_of[v] = best
                load[own] -= work[v]
                load[best] += work[v]
                held[own] -= state[v]
                held[best] += state[v]
                moved += 1
                emptiest = best if room[best] - load[best] > room[emptiest] - load[emptiest] else emptiest
                emptiest = own if room[own] - load[own] > room[emptiest] - load[emptiest] else emptiest
                freest = own if memory[own] - held[own] > memory[freest] - held[freest] else freest
        allowed *= 4.0
        if turn > 2 and not excess and moved * 200 < len(order):
            return
        if moved == 0 and not excess:
            return


@kernel(allocates=True)
def _search_around(
    starts: I64,
    neighbours: I64,
    weights: I64,
    work: I64,
    room: I64,
    state: I64,
    memory: I64,
    free: I64,
    machine_of: I64,
    steps: int,
    seed: int,
) -> None:
    """Search with tabus, in place: step by step the best move of one vertex, even if it is a loss; the vertex may not come back
    for some steps. Work beyond the room costs, more while there has been some, less while there has been none; to where there
    is no memory nothing moves. The best partition on the way stays."""
    n, count = len(work), len(room)
    bound, load, held = np.zeros((n, count), np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    cut = np.int64(0)
    for v in range(n):
        load[machine_of[v]] += work[v]
        held[machine_of[v]] += state[v]
        for i in range(starts[v], starts[v + 1]):
            bound[v, machine_of[neighbours[i]]] += weights[i]
            cut += weights[i] * (machine_of[neighbours[i]] != machine_of[v])
    cut //= 2
    excess = np.int64(0)
    for m in range(count):
        excess += max(load[m] - room[m], 0)
    price = 0.5 * weights.sum() / max(1, work.sum())
    least_price, most_price = price * 1e-3, price * 1e4
    tabu = np.zeros((n, count), np.int64)
    best, best_excess, best_cut = machine_of.copy(), excess, cut
    noise, still = np.uint64(seed * 2 + 1) * np.uint64(0x9E3779B97F4A7C15), 0
    for step in range(1, steps + 1):
        chosen, to, least = -1, -1, np.inf
        for v in free:
            own, w, of_state = machine_of[v], work[v], state[v]
            lighter = min(w, max(load[own] - room[own], 0))
            for m in range(count):
                if m == own or (of_state and held[m] + of_state > memory[m]):
                    continue
                heavier = max(load[m] + w - room[m], 0) - max(load[m] - room[m], 0)
                loss = bound[v, own] - bound[v, m]
                delta = loss + price * (heavier - lighter)
                if delta >= least:
                    continue
                after = excess + heavier - lighter
                if tabu[v, m] < step or after < best_excess or (after == best_excess and cut + loss < best_cut):
                    chosen, to, least = v, m, delta
        if chosen < 0:
            continue
        own, w = machine_of[chosen], work[chosen]
        cut += bound[chosen, own] - bound[chosen, to]
        excess += max(load[to] + w - room[to], 0) - max(load[to] - room[to], 0) - min(w, max(load[own] - room[own], 0))
        load[own] -= w
        load[to] += w
        held[own] -= state[chosen]
        held[to] += state[chosen]
        machine_of[chosen] = to
        for i in range(starts[chosen], starts[chosen + 1]):
            bound[neighbours[i], own] -= weights[i]
            bound[neighbours[i], to] += weights[i]
        noise ^= noise << np.uint64(13)
        noise ^= noise >> np.uint64(7)
        noise ^= noise << np.uint64(17)
        tabu[chosen, own] = step + 3 + np.int64(noise % np.uint64(len(free) // 8 + 4))
        price = min(price * 1.1, most_price) if excess else max(price / 1.1, least_price)
        if excess < best_excess or (excess == best_excess and cut < best_cut):
            best[:] = machine_of
            best_excess, best_cut, still = excess, cut, 0
        else:
            still += 1
    machine_of[:] = best


@kernel(allocates=True)
def _exchange(
    starts: I64, neighbours: I64, weights: I64, work: I64, room: I64, state: I64, memory: I64, free: I64, machine_of: I64
) -> int:
    """Mend what exceeds the room, in place, where no single move does: vertices of the fullest machine are moved, or
    exchanged for others, at the least loss for a unit of excess, and where memory suffices. Returns how many were. With work
    and state the other way round it mends what exceeds the memory."""
    n, count = len(work), len(room)
    bound, load, held = np.zeros((n, count), np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for v in range(n):
        load[machine_of[v]] += work[v]
        held[machine_of[v]] += state[v]
        for i in range(starts[v], starts[v + 1]):
            bound[v, machine_of[neighbours[i]]] += weights[i]
    between = np.zeros(n, np.int64)
    changed = 0
    while changed < n:
        top = np.argmax(load - room)
        over = load[top] - room[top]
        if over <= 0:
            return changed
        mine, other, to, least = -1, -1, -1, np.inf
        for v in free:
            if machine_of[v] != top or work[v] == 0:
                continue
            for i in range(starts[v], starts[v + 1]):
                between[neighbours[i]] = weights[i]
            for j in range(len(free) + count):
                u = free[j] if j < len(free) else -1  # none: a move
                m = machine_of[u] if u >= 0 else j - len(free)
                moved = work[v] - (work[u] if u >= 0 else 0)
                of_state = state[v] - (state[u] if u >= 0 else 0)
                if m == top or moved <= 0:
                    continue
                if (of_state > 0 and held[m] + of_state > memory[m]) or (of_state < 0 and held[top] - of_state > memory[top]):
                    continue
                less = min(moved, over) - max(load[m] + moved - room[m], 0) + max(load[m] - room[m], 0)
                if less <= 0:
                    continue
                loss = bound[v, top] - bound[v, m]
                if u >= 0:
                    loss += bound[u, m] - bound[u, top] + 2 * between[u]
                score = loss / less if loss > 0 else float(loss) * less
                if score < least:
                    mine, other, to, least = v, u, m, score
            for i in range(starts[v], starts[v + 1]):
                between[neighbours[i]] = 0
        if mine < 0:
            return changed
        for turn in range(2):
            v, old, new = (mine, top, to) if turn == 0 else (other, to, top)
            if v < 0:
                continue
            machine_of[v] = new
            load[old] -= work[v]
            load[new] += work[v]
            held[old] -= state[v]
            held[new] += state[v]
            for i in range(starts[v], starts[v + 1]):
                bound[neighbours[i], old] -= weights[i]
                bound[neighbours[i], new] += weights[i]
        changed += 1
    return changed


@kernel(allocates=True)
def _search(
    starts: I64,
    neighbours: I64,
    weights: I64,
    work: I64,
    state: I64,
    fixed: I64,
    room: I64,
    memory: I64,
    alike: I64,
    order: I64,
    found: I64,
    best: int,
    most_steps: int,
) -> bool:
    """Branch and bound: a partition within room and memory with a cut below `best`, the least, into `found`. Returns whether
    there is one. order: int64 (f,), the free vertices as they are tried. Machines that are alike and empty are tried once.
    Ends after so many steps, machines that are looked at, with the least until then."""
    n, count, depth_count = len(work), len(room), len(order)
    bound, total = np.zeros((n, count), np.int64), np.zeros(n, np.int64)
    load, held, members = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    machine_of, cut = np.full(n, -1, np.int64), np.int64(0)
    for v in range(n):
        m = fixed[v]
        if m < 0:
            continue
        cut += total[v] - bound[v, m]
        machine_of[v] = m
        load[m] += work[v]
        held[m] += state[v]
        members[m] += 1
        for i in range(starts[v], starts[v + 1]):
            bound[neighbours[i], m] += weights[i]
            total[neighbours[i]] += weights[i]
    spare = np.int64(0)
    for m in range(count):
        if load[m] > room[m] or held[m] > memory[m]:
            return False
        spare += room[m] - load[m]
    rest = np.int64(0)
    for v in order:
        rest += work[v]
    if rest > spare:
        return False
    improved, depth, steps = False, 0, 0
    tried = np.full(depth_count + 1, -1, np.int64)
    if depth_count == 0 and cut < best:
        found[:] = machine_of
        return True
    while depth >= 0 and steps < most_steps and depth < depth_count:
        v, m = order[depth], tried[depth]
        if m >= 0:  # undo
            machine_of[v] = -1
            load[m] -= work[v]
            held[m] -= state[v]
            members[m] -= 1
            for i in range(starts[v], starts[v + 1]):
                bound[neighbours[i], m] -= weights[i]
                total[neighbours[i]] -= weights[i]
            cut -= total[v] - bound[v, m]
        # what the others must lose whatever becomes of them
        lost = np.int64(0)
        for j in range(depth + 1, depth_count):
            u = order[j]
            lost += total[u] - bound[u].max()
        steps += (depth_count - depth) * count
        chosen = -1
        for to in range(m + 1, count):
            if load[to] + work[v] > room[to] or (state[v] and held[to] + state[v] > memory[to]):
                continue
            if cut + total[v] - bound[v, to] + lost >= best:
                continue
            repeated = False
            if members[to] == 0:
                steps += to
                for before in range(to):
                    repeated |= members[before] == 0 and alike[before] == alike[to]
            if not repeated:
                chosen = to
                break
        if chosen < 0:
            tried[depth] = -1
            depth -= 1
            continue
        cut += total[v] - bound[v, chosen]
        tried[depth] = chosen
        machine_of[v] = chosen
        load[chosen] += work[v]
        held[chosen] += state[v]
        members[chosen] += 1
        for i in range(starts[v], starts[v + 1]):
            bound[neighbours[i], chosen] += weights[i]
            total[neighbours[i]] += weights[i]
        if depth < depth_count - 1:
            depth += 1
        else:
            found[:] = machine_of
            best, improved = cut, True
    return improved

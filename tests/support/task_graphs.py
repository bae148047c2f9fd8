"""Small graphs of tasks, and the least cut that they have, by trying all placements; the published graphs of KATTS.

What: `task_graph`, `least_cut`; `read_katts`, a published graph, from the folder `KATTS`.
Why: a partitioner is compared with what cannot be wrong.
Stays out: placements (`swjoin.policy.placement`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from swjoin.core.batch import I64
from swjoin.policy.task_graph import TaskGraph, TaskId
from tests.conftest import ROOT

KATTS = ROOT / "tests" / "data" / "katts"


def task_graph(
    work: Sequence[int],
    edges: Sequence[tuple[int, int, int]],
    *,
    pinned: dict[int, int] | None = None,
    ids: Sequence[TaskId] | None = None,
    state: Sequence[int] | None = None,
) -> TaskGraph:
    """edges: (source, target, tuples), of 10 bytes a tuple. pinned: task -> machine. ids: by default 0, 1, 2, ... state: bytes
    of each, by default none."""
    columns = np.array([(s, t, n) for s, t, n in edges], np.int64).reshape(-1, 3).T.copy()
    none = np.zeros(len(work), np.int64)
    fixed = none - 1
    for task, machine in (pinned or {}).items():
        fixed[task] = machine
    nbytes = np.array([min(10 * n, (1 << 63) - 1) for _, _, n in edges], np.int64)
    names = tuple(range(len(work))) if ids is None else tuple(ids)
    source, target, tuples = columns
    held = none if state is None else np.array(state, np.int64)
    return TaskGraph(
        names, np.array(work, np.int64), held, fixed, source, target, tuples, nbytes, np.zeros(len(nbytes), np.int64)
    )


def least_cut(
    graph: TaskGraph, speeds: Sequence[int], imbalance: Fraction, memory: Sequence[int] | None = None
) -> tuple[int, int]:
    """(work of the fullest machine that is allowed, least tuples over the network), of all placements, or of those within the
    machines' memory; (-1, -1) where none is. Work of a machine counts times the least common multiple of the speeds, over its
    own."""
    size, machine_count, whole = len(graph.tasks), len(speeds), math.lcm(*speeds)
    every: I64 = np.array(list(itertools.product(range(machine_count), repeat=size)), np.int64).reshape(-1, size)
    every = every[((graph.pinned < 0) | (every == graph.pinned)).all(axis=1)]
    if memory is not None:
        held = np.stack([((every == m) * graph.state_bytes).sum(axis=1) for m in range(machine_count)], axis=1)
        every = every[(held <= np.array(memory)).all(axis=1)]
        if not len(every):
            return -1, -1
    loads = np.stack([((every == m) * graph.work_ns).sum(axis=1) * (whole // speeds[m]) for m in range(machine_count)])
    fullest = loads.max(axis=0)
    allowed = max(int(fullest.min()), int(imbalance * int(graph.work_ns.sum()) * whole / sum(speeds)))
    cuts = ((every[:, graph.source] != every[:, graph.target]) * graph.tuples).sum(axis=1)
    return allowed, int(cuts[fullest <= allowed].min())


def read_katts(name: str) -> TaskGraph:
    """Read apart from the command that is tested."""
    plain = json.loads((KATTS / f"{name}.json").read_text())
    at = {task["id"]: i for i, task in enumerate(plain["tasks"])}
    edges = [(at[source], at[target], tuples) for source, target, tuples, _ in plain["edges"]]
    return task_graph([task["work"] for task in plain["tasks"]], edges, ids=list(at))

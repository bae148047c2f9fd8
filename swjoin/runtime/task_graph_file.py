"""A graph of tasks in a file, GRAPH.json or GRAPH.json.gz: what runs write, and what `swjoin place` and later runs read.

What: `Counts`, a file's tasks and edges, checked; `machines_of`, its machines; `whole`, work as whole numbers.
Why: the counts of an earlier run say which tasks should share a machine; a damaged file gets one line.
Stays out: placements (`policy.placement`), what they cost (`policy.task_graph`).
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.errors import UserError, one_line
from swjoin.policy.task_graph import Machines, TaskGraph, TaskId

_MOST_COUNT = (1 << 63) - 1


@dataclass(frozen=True)
class Counts:
    """A file: its tasks in order, and its edges. ids: in the file's words. index: of each task, by its id as text. work,
    state_bytes, pinned: of each task. edges: indexes of source and target, tuples, bytes, deliveries."""

    ids: list[TaskId]
    index: dict[str, int]
    work: list[int | float]
    state_bytes: list[int]
    pinned: list[int]
    edges: list[tuple[int, int, int, int, int]]

    @classmethod
    def read(cls, path: Path, machine_count: int | None) -> Counts:
        """UserError for what cannot be read or is no graph. machine_count: pinned tasks are at one of so many; None: any."""
        return cls.parsed(path, json_of(path), machine_count)

    @classmethod
    def parsed(cls, path: Path, plain: Any, machine_count: int | None) -> Counts:
        """Of a file's content. UserError for what is no graph."""
        if not isinstance(plain, dict) or not isinstance(plain.get("tasks"), list):
            _refuse(path, "has no list of tasks", 'write {"tasks": [{"id": 1, "work": 10}, ...], "edges": [...]}')
        if not isinstance(plain.get("edges", []), list):
            _refuse(path, "its edges are no list", "write [[source, target, tuples, bytes], ...]")
        found = cls([], {}, [], [], [], [])
        for i, task in enumerate(plain["tasks"]):
            found._add_task(path, i, task, machine_count)
        for i, edge in enumerate(plain.get("edges", [])):
            found._add_edge(path, i, edge)
        return found

    def _add_task(self, path: Path, i: int, task: Any, machine_count: int | None) -> None:
        name = task.get("id") if isinstance(task, dict) else None
        if name is None or not _is_id(name):
            _refuse(path, f"tasks[{i}] has no id", "an id is a whole number or a text")
        where = f"task {shown(name)}"
        if str(name) in self.index:
            _refuse(path, f"{where} is listed twice", "give each task an id of its own")
        pinned = task.get("pinned")
        if pinned is not None and not (_is_whole(pinned) and pinned >= 0):
            _refuse(path, f"{where} is pinned to {shown(pinned)}", "write a machine from 0 on, or null")
        if pinned is not None and machine_count is not None and pinned >= machine_count:
            _refuse(
                path, f"{where} is pinned to machine {pinned}", f"with -k {machine_count} machines are 0 to {machine_count - 1}"
            )
        self.index[str(name)] = len(self.ids)
        self.ids.append(name)
        self.work.append(_amount(path, f"work of {where}", _given(task, "work")))
        self.state_bytes.append(_count(path, f"state_bytes of {where}", _given(task, "state_bytes")))
        self.pinned.append(-1 if pinned is None else int(pinned))

    def _add_edge(self, path: Path, i: int, edge: Any) -> None:
        if not isinstance(edge, list) or len(edge) not in (4, 5):
            _refuse(path, f"edges[{i}] is {shown(edge)}", "write [source, target, tuples, bytes]")
        ends = [self.index.get(str(end)) if _is_id(end) else None for end in edge[:2]]
        for end, at, way in zip(edge, ends, ("from", "to"), strict=False):
            if at is None:
                _refuse(path, f"edges[{i}] goes {way} task {shown(end)}, which is not listed", "list it under tasks")
        tuples, nbytes, deliveries = (
            value if type(value) is int and 0 <= value <= _MOST_COUNT else _count(path, f"{what} of edges[{i}]", value)
            for what, value in zip(("tuples", "bytes", "deliveries"), [*edge[2:], 0][:3], strict=True)
        )
        self.edges.append((ends[0] or 0, ends[1] or 0, tuples, nbytes, deliveries))

    def graph(self) -> TaskGraph:
        source, target, tuples, nbytes, deliveries = np.array(self.edges, np.int64).reshape(-1, 5).T.copy()
        return TaskGraph(
            tuple(self.ids),
            whole(self.work),
            np.array(self.state_bytes, np.int64),
            np.array(self.pinned, np.int64),
            source,
            target,
            tuples,
            nbytes,
            deliveries,
        )

    def with_history(self, history: list[Counts]) -> Counts:
        """The same tasks, with the work and the edges of other files, summed by id; tasks that this one lacks are left out."""
        work: list[list[int | float]] = [[] for _ in self.ids]
        edges = []
        for other in history:
            here = [self.index.get(str(name), -1) for name in other.ids]
            for at, amount in zip(here, other.work, strict=True):
                if at >= 0:
                    work[at].append(amount)
            for source, target, *counts in other.edges:
                if here[source] >= 0 and here[target] >= 0:
                    tuples, nbytes, deliveries = counts
                    edges.append((here[source], here[target], tuples, nbytes, deliveries))
        sums = [sum(parts) if all(isinstance(p, int) for p in parts) else math.fsum(parts) for parts in work]
        return Counts(self.ids, self.index, sums, self.state_bytes, self.pinned, edges)


def machines_of(path: Path, plain: Any, count: int) -> Machines:
    """The machines that a file's content lists, or so many alike. UserError for what are no machines, or another number."""
    given = plain.get("machines") if isinstance(plain, dict) else None
    if given is None:
        return Machines.alike(count)
    example = 'write [{"host": "a", "speed": 1}, ...]'
    if not isinstance(given, list) or not all(isinstance(machine, dict) for machine in given):
        _refuse(path, "its machines are no list of mappings", example)
    if len(given) != count:
        _refuse(path, f"lists {len(given)} machines", f"-k must be {len(given)}, not {count}")
    speeds, memory = [], []
    hosts = list[tuple[str, str]]()  # those without a name are different from all that have one
    for i, machine in enumerate(given):
        speed, host = machine.get("speed", 1), machine.get("host", "")
        if not isinstance(speed, int | float) or isinstance(speed, bool) or not 1e-6 <= speed <= 1e6:
            _refuse(path, f"speed of machines[{i}] is {shown(speed)}", "write a number from 0.000001 to 1,000,000")
        if not _is_id(host):
            _refuse(path, f"host of machines[{i}] is {shown(host)}", "write a name or a whole number")
        if (limit := machine.get("memory_bytes")) is not None:
            limit = _count(path, f"memory_bytes of machines[{i}]", limit)
        memory.append(_MOST_COUNT if limit is None else limit)
        speeds.append(float(speed))
        hosts.append(("host", str(host)) if "host" in machine else ("machine", str(i)))
    numbers = {host: number for number, host in enumerate(sorted(set(hosts)))}
    limits = np.array(memory, np.int64) if min(memory) < _MOST_COUNT else None
    return Machines(np.array(speeds), np.array([numbers[host] for host in hosts], np.int64), limits)


def whole(amounts: list[int | float]) -> I64:
    """Amounts in the same proportions as whole numbers whose sum is below 2^53; unchanged if they are such already. What is
    positive stays so."""
    most = max(amounts, default=0)
    if not all(amount == int(amount) for amount in amounts):
        digits = 53 - math.frexp(most)[1] - len(amounts).bit_length()
        return np.array([max(1, round(math.ldexp(a, digits))) if a else 0 for a in amounts], np.int64)
    exact = [int(amount) for amount in amounts]
    excess = max(0, sum(exact).bit_length() - 53)
    return np.array([max(1, a >> excess) if a else 0 for a in exact], np.int64)


# ---------------------------------------------------------------- what a file has


def json_of(path: Path) -> Any:
    """UserError for a file that cannot be read, or is no JSON."""
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.name.endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise UserError(f"cannot be read ({reason})", subject=str(path)) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"is no JSON ({one_line(error)})", subject=str(path)) from None


def _refuse(path: Path, problem: str, remedy: str) -> NoReturn:
    raise UserError(problem, subject=str(path), remedy=remedy)


def _given(task: dict[str, Any], key: str) -> Any:
    return 0 if task.get(key) is None else task[key]


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _is_whole(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (isinstance(value, int) or value.is_integer())


def shown(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), 80)


def _amount(path: Path, what: str, value: Any) -> int | float:
    """A number that is not negative and finite."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1e300:
        _refuse(path, f"{what} is {shown(value)}", "write a number from 0 to 1e300")
    return int(value) if _is_whole(value) else float(value)


def _count(path: Path, what: str, value: Any) -> int:
    """A whole number of 63 bits."""
    if not _is_whole(value) or not 0 <= value <= _MOST_COUNT:
        _refuse(path, f"{what} is {shown(value)}", "write a whole number from 0 to 2^63 - 1")
    return int(value)

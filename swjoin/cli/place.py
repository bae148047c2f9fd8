"""The command `place`: the machine of each task of a graph, by what the tasks really send.

What: `run_place`.
Why: the counts of an earlier run say which tasks should share a machine, before the next run starts.
Stays out: the file (`runtime.task_graph_file`), placements (`policy.placement`), what they cost (`policy.task_graph`), options
(`cli.main`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cli.summary import table_lines
from swjoin.config.sections import PlacementConfig
from swjoin.core.batch import I64
from swjoin.core.errors import UserError, how_to_install
from swjoin.policy.partitioning import has_metis
from swjoin.policy.placement import decisive, place
from swjoin.policy.task_graph import Cost, Machines, TaskGraph, cost
from swjoin.runtime.task_graph_file import Counts, json_of, machines_of, shown

_LOG = logging.getLogger(__name__)
MOST_MACHINES = 65_536
_MOST_LINES = 64  # machines that are shown


def run_place(args: argparse.Namespace) -> int:
    if not 1 <= args.machines <= MOST_MACHINES:
        raise UserError(f"-k {args.machines}: must be from 1 to {MOST_MACHINES:,}")
    if args.imbalance < 1:
        raise UserError(f"--imbalance {args.imbalance:g}: must be at least 1, the fullest machine's work over the mean")
    path = Path(args.graph)
    plain = json_of(path)
    counts, machines = Counts.parsed(path, plain, args.machines), machines_of(path, plain, args.machines)
    history = [Counts.read(Path(other), None) for other in args.history]
    graph = counts.graph()
    basis = decisive(counts.with_history(history).graph() if history else graph)
    if args.objective == "deliveries" and not basis.deliveries.any():
        raise UserError("--objective deliveries: no edge has any", remedy="write [source, target, tuples, bytes, deliveries]")
    if args.policy == "network" and not has_metis():
        _LOG.info("pymetis is missing, placed without METIS; %s", how_to_install("placement"))
    with _c_output_dropped():
        machine_of = place(basis, machines, PlacementConfig(args.policy, args.objective, args.imbalance))
    found, reached = cost(decisive(graph), machine_of, machines), cost(basis, machine_of, machines).fullest_ratio
    if reached > args.imbalance * (1 + 1e-12) and args.policy == "network":
        _LOG.warning("the bound %g cannot be kept, %.4g is reached: %s", args.imbalance, reached, _why(basis, machines, args))
    if found.memory_ratio > 1 and args.policy == "network":
        _LOG.warning("no placement within the memory was found: %s", _short_of_memory(graph, machine_of, machines))
    if args.json:
        plain = _plain(graph, machine_of, found, (args.imbalance, reached))
        if machines.several_hosts:
            plain |= {"host_tuples": found.host_tuples, "host_bytes": found.host_bytes}
        if found.total_deliveries:
            plain |= {"network_deliveries": found.network_deliveries, "total_deliveries": found.total_deliveries}
        if machines.memory_bytes is not None:
            plain["memory_ratio"] = found.memory_ratio
        print(json.dumps(plain, indent=2, allow_nan=False))
    else:
        print("\n".join(_lines(found, machine_of, args, (machines, reached))))
    return 0


@contextlib.contextmanager
def _c_output_dropped() -> Iterator[None]:
    """What a C library prints on standard output is lost: METIS has remarks on graphs of heavy vertices, amid our JSON."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _plain(graph: TaskGraph, machine_of: I64, found: Cost, bound: tuple[float, float]) -> dict[str, Any]:
    return {
        "assignment": {str(task): machine for task, machine in zip(graph.tasks, machine_of.tolist(), strict=True)},
        "network_tuples": found.network_tuples,
        "total_tuples": found.total_tuples,
        "network_bytes": found.network_bytes,
        "total_bytes": found.total_bytes,
        "fullest_ratio": found.fullest_ratio,
        "bound": {"asked": bound[0], "reached": bound[1]},
    }


def _lines(found: Cost, machine_of: I64, args: argparse.Namespace, on: tuple[Machines, float]) -> list[str]:
    """on: the machines, and how full the fullest one is."""
    machines, reached = on
    count, mean = args.machines, found.load.sum() / args.machines * machines.shares
    tasks, alike = np.bincount(machine_of, minlength=count), bool((machines.speed == machines.speed[0]).all())
    table = [["machine", "tasks", f"work / {'mean' if alike else 'share'}"]]
    table += [
        [str(m), f"{tasks[m]:,}", f"{found.load[m] / mean[m] if mean[m] else 1:.3f}"] for m in range(min(count, _MOST_LINES))
    ]
    more = [f"and {count - _MOST_LINES:,} more machines"] if count > _MOST_LINES else []
    rows = [
        ("network tuples", _share(found.network_tuples, found.total_tuples)),
        ("network bytes", _share(found.network_bytes, found.total_bytes)),
        *([("deliveries", _share(found.network_deliveries, found.total_deliveries))] if found.total_deliveries else []),
        *([("between hosts", _share(found.host_bytes, found.total_bytes))] if machines.several_hosts else []),
        ("fullest machine", f"{found.fullest_ratio:.3f} of {'the mean' if alike else 'its share'}"),
        *([("most state", f"{found.memory_ratio:.3f} of a machine's memory")] if machines.memory_bytes is not None else []),
        ("bound", f"{args.imbalance:g} asked, {reached:.3f} reached" + (" by the history" if args.history else "")),
        ("assignment", "--json has the machine of each task"),
    ]
    return [*table_lines(table), *more, *(f"{name:<17} {text}" for name, text in rows)]


def _share(part: int, of: int) -> str:
    return f"{part:,} of {of:,}" + (f" ({100 * part / of:.1f} %)" if of else "")


def _short_of_memory(graph: TaskGraph, machine_of: I64, machines: Machines) -> str:
    """How much a machine holds beyond its memory, and that or why nothing else was found."""
    assert machines.memory_bytes is not None, "memory is not limited"
    held, memory = [0] * len(machines.speed), machines.memory_bytes.tolist()  # sums beyond 64 bits
    for machine, state in zip(machine_of.tolist(), graph.state_bytes.tolist(), strict=True):
        held[machine] += state
    worst = max(range(len(held)), key=lambda machine: held[machine] - memory[machine])
    said = f"machine {worst} holds {held[worst]:,} of {memory[worst]:,} bytes"
    most = int(graph.state_bytes.max())
    if most > max(memory):
        return f"{said}; task {shown(graph.tasks[int(graph.state_bytes.argmax())])} alone has {most:,}"
    return f"{said}; all tasks have {sum(held):,}, all machines {sum(memory):,}" if sum(held) > sum(memory) else said


def _why(graph: TaskGraph, machines: Machines, args: argparse.Namespace) -> str:
    """The reason that no placement keeps the bound, if there is one that can be named."""
    mean = int(graph.work_ns.sum()) / args.machines
    of_machine = np.bincount(graph.pinned[graph.pinned >= 0], graph.work_ns[graph.pinned >= 0], args.machines)
    pinned = of_machine / machines.shares
    heaviest = int(np.argmax(graph.work_ns))
    most = int(graph.work_ns[heaviest])
    if most > args.imbalance * mean * machines.shares.max():
        return f"task {shown(graph.tasks[heaviest])} alone has {most / mean:.4g} times the mean work of a machine"
    if pinned.max() > args.imbalance * mean:
        return f"tasks pinned to machine {np.argmax(pinned)} have {pinned.max() / mean:.4g} times the mean work of a machine"
    return "the tasks are too coarse"

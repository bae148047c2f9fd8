"""The command `kernels`: where compiled kernels are kept, how large they are; compile all of them, delete them.

What: `run_kernels`. Compiling is done by tiny joins and queries through every kernel and type that real ones use, one of
generated streams whose partition-groups move, split and merge, and plans.
Why: a kernel is compiled at its first call; after `--compile` no run waits for the compiler.
Stays out: the cache (`core.kernel_cache`), loading it at the start of a run (`runtime.kernel_preload`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path

from swjoin.config.run import QueryConfig, RunConfig, WorkloadConfig
from swjoin.core.errors import RunFailed
from swjoin.core.kernel_cache import cache_folders, clear_kernels, host_levels, precompiled_folder, stored_kernels
from swjoin.core.platforms import core_count
from swjoin.forecast.costs import PRESETS
from swjoin.forecast.input_profile import workload_profile
from swjoin.forecast.memory import plan_memory
from swjoin.forecast.model.run import simulate

MOVING = {
    "join": {"within": "300ms"},
    "workload": {"rate": 3000, "duration": "3s", "bias": 0.7, "domain": 1000, "payload": "8B", "schedule": {"kind": "burst"}},
    "cluster": {"distribution_epoch": "100ms", "partition_count": 4},
    "module": {"theta": "4KB", "block": "1KB", "window": "64MB"},
    "reorganization": {"policy": "random", "epoch": "100ms", "random_moves": 2, "declustering": "adaptive"},
}
MANY_PARTNERS = {
    "join": {"within": "1s"},
    "workload": {"rate": 2000, "duration": "1s", "domain": 4, "payload": "8B", "schedule": {"kind": "burst"}},
    "cluster": {"distribution_epoch": "100ms", "partition_count": 4},
    "module": {"window": "64MB"},
}
_GROUPS = """SELECT number, window_end, count(*) AS n, sum(value) AS s, min(value) AS l, max(value) AS m, avg(value) AS a,
    count(DISTINCT name) AS d FROM TUMBLE(a, t, INTERVAL 1 MINUTE) GROUP BY number, window_end"""
_ROWS = """SELECT number, value * 0.62 AS m, upper(name) AS u, CASE WHEN value < 9 THEN 'few' ELSE 'many' END AS c FROM a
    WHERE value > 2 AND name LIKE 'n%' AND (number <> 3 OR value IS NOT NULL)"""
_NEAR = "SELECT a.name, b.value FROM a JOIN b ON a.number = b.number AND b.t BETWEEN a.t - INTERVAL {0} SECOND AND a.t"
_THIRD = " JOIN c ON c.name = a.name AND c.t BETWEEN a.t AND a.t + INTERVAL 5 SECOND"
_STAR = " JOIN c ON c.number = a.number AND c.t BETWEEN a.t AND a.t + INTERVAL 5 SECOND AND a.value < c.value"


def run_kernels(args: argparse.Namespace) -> int:
    """Exit code 0; of `--compile`, that of the command that failed."""
    if args.clear:
        print(f"deleted {clear_kernels() / 1e6:.1f} MB of compiled kernels")
    if args.compile:
        start = time.monotonic()
        compile_all()
        print(f"kernels ready ({time.monotonic() - start:.0f} s)")
    if not args.clear and not args.compile:
        print(kernels_text())
    return 0


def kernels_text() -> str:
    """A line for every folder with kernels."""
    lines = []
    for level in (level for level in host_levels() if (precompiled_folder() / level).is_dir()):
        lines.append(f"{precompiled_folder() / level}: came with swjoin, for processors of level {level}")
    stored = stored_kernels()
    for folder in cache_folders():
        sizes = [path.stat().st_size for path in stored if path.parent == folder]
        if sizes or folder == cache_folders()[0]:
            lines.append(f"{folder}: {len(sizes)} compiled on this machine, {sum(sizes) / 1e6:.1f} MB")
    return "\n".join(lines)


def _write(path: Path, rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "number", "name", "value"])
        for i in range(rows):
            writer.writerow([i, i % 7, f"n{i % 5}", i / 2])


def compile_all() -> None:
    """Joins with integer and string keys, with rows and with counts, with and without order, of all kinds, with many partners,
    by bands and by conditions alone, as-of joins; queries with groups, and several at once; state movements; RDF; placement.
    Some at a time: of processes that need the same kernel one compiles it."""
    with tempfile.TemporaryDirectory(prefix="swjoin-warmup-") as name:
        commands = _commands(Path(name))
        pool = ProcessPoolExecutor(min(4, core_count()), get_context("spawn"))
        try:
            plan, codes = pool.submit(_plan), [pool.submit(_run, words) for words in commands]
            plan.result()
            for code in as_completed(codes):
                if code.result():
                    raise SystemExit(code.result())
        except BaseException as error:
            for process in active_children():
                process.kill()
            if isinstance(error, BrokenProcessPool):
                raise RunFailed("a process that compiled kernels was killed, perhaps for lack of memory") from None
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _run(words: list[str]) -> int:
    """Exit code of a command."""
    from swjoin.cli.main import main  # which imports this module

    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        return main(words)


def _commands(folder: Path) -> list[list[str]]:
    """Their files are in this folder."""
    left, right = folder / "left.csv", folder / "right.csv"
    _write(left, 2000)
    _write(right, 1500)
    times = ["--left-time", "t", "--right-time", "t", "--time-unit", "s"]
    found = []
    for i, words in enumerate(_joins()):
        rows = [] if "-o" in words else ["-o", f"{folder}/{i}.parquet"]
        found.append(["join", str(left), str(right), *times, "--within", "10s", *words, *rows])
    for name, plain in (("moving", MOVING), ("many", MANY_PARTNERS)):
        config = folder / f"{name}.yaml"
        config.write_text(json.dumps(plain))  # JSON is YAML
        found.append(["run", str(config), "--threads", "2", "--out", f"{folder}/{name}"])
    tables = ["--table", f"a={left}:t:s", "--table", f"b={right}:t:s", "--table", f"c={left}:t:s"]
    found.append(["query", _GROUPS, *tables, "-o", f"{folder}/groups.parquet"])
    found.append(["query", _ROWS, *tables, "-o", f"{folder}/rows.parquet"])
    for i, seconds in enumerate((5, 9)):
        (folder / f"q{i}.sql").write_text(_NEAR.format(seconds))
    found.append(["query", f"{folder}/q0.sql", f"{folder}/q1.sql", *tables, "-o", f"{folder}/near.parquet"])
    found.append(["query", _NEAR.format(5) + _THIRD, *tables, "-o", f"{folder}/three.parquet"])
    found.append(["query", _NEAR.format(5) + _STAR, *tables, "-o", f"{folder}/star.parquet"])
    return [*found, *_rdf(folder), _place(folder)]


def _joins() -> Iterator[list[str]]:
    for key in (["number"], ["name"], ["number", "name"]):
        yield ["--on", *key, "--max-out-of-order", "2s", "-o", "count"]
        yield ["--on", *key, "--max-out-of-order", "2s"]
    yield ["--on", "number", "--how", "full", "-o", "count"]
    for order in ([], ["--max-out-of-order", "2s"]):
        yield ["--on", "number", "--how", "left", "--where", "left_value <= right_value", *order]
        yield ["--where", "abs(left_value - right_value) <= 1.5", *order]
    yield ["--where", "left_value < right_value"]
    yield ["--on", "number", "--match", "last", "--where", "left_value > right_value"]
    yield ["--on", "number", "--match", "nearest", "--how", "left"]


def _rdf(folder: Path) -> list[list[str]]:
    """Triples as lines and as columns, matched, joined, and grouped by what is alive; two queries that differ in a constant.
    Nothing without rdflib."""
    if find_spec("rdflib") is None:
        return []
    lines = "".join(f'{i} <x:s{i % 7}> <x:p> "{i}"^^<http://www.w3.org/2001/XMLSchema#integer> .\n' for i in range(100))
    (folder / "triples.txt").write_text(lines)
    (folder / "triples.csv").write_text("ts,s,p,o\n" + "".join(f"{i},<x:s{i % 7}>,<x:q>,<x:o{i}>\n" for i in range(100)))
    block = "STREAM <x:a> [RANGE 1s] { ?s <x:p> ?v } STREAM <x:b> [RANGE 1s] { ?s <x:q> ?o }"
    aggregates = "(COUNT(?o) AS ?n) (SUM(?v) AS ?t) (AVG(?v * 0.5) AS ?m) (MAX(?v) AS ?x)"
    streams = ["--stream", f"x:a={folder}/triples.txt", "--stream", f"x:b={folder}/triples.csv"]
    queries = [f"SELECT ?s ?v {{ {block} }}", f"SELECT DISTINCT ?s {{ {block} }}"]
    queries += [f"SELECT ?s {aggregates} {{ {block} }} GROUP BY ?s"]
    for i in range(2):
        (folder / f"rdf{i}.rq").write_text(f"SELECT ?v {{ STREAM <x:a> [RANGE 1s] {{ <x:s{i}> <x:p> ?v }} }}")
    many = ["rdf", *(f"{folder}/rdf{i}.rq" for i in range(2)), *streams[:2], "-o", "count"]
    return [many, *(["rdf", query, *streams, "-o", f"{folder}/rdf{i}.parquet"] for i, query in enumerate(queries))]


def _place(folder: Path) -> list[str]:
    """More tasks than are placed by trying all ways."""
    tasks = [{"id": i, "operator": "a", "work": 1 + i % 5, "state_bytes": 0, "pinned": None} for i in range(60)]
    edges = [[i, (7 * i + j) % 60, 1 + i * j, 64] for i in range(60) for j in range(3)]
    (folder / "graph.json").write_text(json.dumps({"tasks": tasks, "edges": edges}))
    return ["place", f"{folder}/graph.json", "-k", "4"]


def _plan() -> None:
    """Memory is planned after every run, by every key of a domain, or by the heaviest of a large one; delay when asked for."""
    for domain in (1000, 1 << 40):
        config = RunConfig((QueryConfig(-1_000_000, 1_000_000),), workload=WorkloadConfig(domain=domain))
        plan_memory(config, 1, workload_profile(config))
        simulate(config.fitted_to(1), 1, PRESETS["modern"], limit_us=1e6)

"""Claims of CQELS Cloud's evaluation: operators and queries over 1 to 4 real slaves, operators over 2 to 32 simulated ones.

Usage: python -m benchmarks.cqels [operators] [queries] [--repeat 3] [--tiny]
operators: matching by 10,000 and by 100,000 constants, a join of five streams with 0.01 partners a probe, COUNT by group while
mappings come and go, a join with 10 million static mappings; windows of 100,000 mappings. Real: ranks of MPI, of which slaves
have a share of a core, as fast as they can, input rows/s. Simulated: `swjoin simulate --saturate --balance`, costs from
two runs on one thread and of the model `modern-10g`, so gateways count as nodes.
queries: Q1 with 100 constants, Q4, Q5 and Q10 with 10, 10 and 1 windows, over LSBench-like streams, on real slaves alike.
Each answer is that on any number of slaves, and DuckDB's (`swjoin verify`).

Criteria, which were written before the first run. Linear: rates over nodes lie on a line with r^2 of 0.98 or more, and a node
of the most carries 0.8 or more of what one of the fewest does; in shape: every doubling of the nodes gives 1.3 times the rate
or more. Faster than 100,000 inputs/s: at 8 simulated nodes. Scales better: a node of the most carries a larger share. The
network does not matter: no node sends or receives more than 500 MB/s, by the bytes of rows between roles.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks import ROOT, parse_parts
from benchmarks.rdf import network, texts
from plots.claims import line

PARTS = ("operators", "queries")
REAL, SIMULATED = (1, 2, 4), (2, 4, 8, 16, 32)
_TINY = ((1, 2), (2, 8))
LINEAR_R2, LINEAR_SHARE, DOUBLING = 0.98, 0.8, 1.3
PASSED_PER_S, MOST_BYTES_PER_S = 100_000, 500e6
_E = "http://example.org/"
_US = 1_000_000
_EPOCHS = ("1s", "100ms")  # of the runs that tell costs
_LIMIT_S = 900


@dataclass(frozen=True)
class Operator:
    """title: as in figure 6a. query, streams, tables: of a configuration. speed: share of a core that a real slave has."""

    title: str
    query: Mapping[str, str]
    streams: Mapping[str, pa.Table]
    tables: Mapping[str, pa.Table]
    speed: float
    strategy: str = "subquery"


# ---------------------------------------------------------------- operators


def operators(*, tiny: bool) -> list[Operator]:
    rng, size = np.random.default_rng(7), 1 if not tiny else 100
    seconds, rows = 6 if not tiny else 1, 1_200_000 // size

    def stream(count: int, domain: int, **more: Any) -> pa.Table:
        ts = np.arange(count) * (seconds * _US // count)
        return pa.table({"ts": ts, "k": rng.integers(0, domain, count), "v": rng.integers(0, 1000, count), **more})

    found = []
    for constants in (10_000 // size, 100_000 // size):  # half of the rows have one
        asked = pa.table({"k": np.arange(constants), "query": np.arange(constants)})
        text = "SELECT q.query, s.v, s.ts FROM s JOIN q ON q.k = s.k"
        match = {"s": stream(rows, 2 * constants)}
        found.append(Operator(f"matching, {constants:,} patterns", {"sql": text}, match, {"q": asked}, 0.05, "operator"))
    window = 100_000 // size  # mappings
    each, names = rows // 5, "abcde"
    within = window * seconds * _US // each
    near = [f"JOIN {n} ON {n}.k = a.k AND {n}.ts BETWEEN a.ts - INTERVAL '{within}' MICROSECOND AND a.ts" for n in "bcde"]
    text = f"SELECT a.ts, a.k, a.v + b.v + c.v + d.v + e.v AS total FROM a {' '.join(near)}"
    star = {name: stream(each, 100 * window) for name in names}
    hits = rng.choice(each, each // 50, replace=False)  # so that there are some rows: these keys are in all streams
    keys = np.array(star["a"]["k"])
    star = {
        name: table.set_column(1, "k", pa.array(_with(np.array(table["k"]), hits, keys[hits]))) for name, table in star.items()
    }
    found.append(Operator("join of 5 streams, fan-out 0.01", {"sql": text}, star, {}, 0.05))
    fewer = rows // 2
    width = window * seconds * _US // fewer
    of = f"SELECT ?g (COUNT(?v) AS ?n) WHERE {{ STREAM <{_E}s> [RANGE {width}us] {{ ?v <{_E}p> ?g }} }} GROUP BY ?g"
    triples = stream(fewer, 1)
    terms = [pa.array([f"<{_E}v{i}>" for i in range(fewer)]), pa.array([f"<{_E}p>"] * fewer)]
    terms += [pa.array([f"<{_E}g{i}>" for i in rng.integers(0, window // 10, fewer)])]
    live = pa.table([triples["ts"], *terms], ["ts", "s", "p", "o"])
    found.append(Operator("COUNT by group, as mappings come and go", {"sparql": of}, {"s": live}, {}, 0.05))
    static = pa.table({"k": rng.permutation(10_000_000 // size), "w": np.arange(10_000_000 // size)})
    text = "SELECT t.w, s.v, s.ts FROM s JOIN t ON t.k = s.k"
    held = {"s": stream(rows, 20_000_000 // size)}
    found.append(Operator(f"join with {len(static):,} static mappings", {"sql": text}, held, {"t": static}, 0.05, "operator"))
    return found


def _with(values: np.ndarray, at: np.ndarray, others: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[at] = others
    return values


def written(operator: Operator, folder: Path) -> Path:
    """The configuration, beside its inputs."""
    inputs: dict[str, Any] = {}
    for name, table in (*operator.streams.items(), *operator.tables.items()):
        pq.write_table(table, folder / f"{name}.parquet")
        inputs[name] = {"path": str(folder / f"{name}.parquet")}
        inputs[name] |= {"time": "ts", "time_unit": "us"} if name in operator.streams else {}
        inputs[name] |= {"iri": f"{_E}{name}"} if "sparql" in operator.query else {}
    plain = {"queries": [dict(operator.query)], "inputs": inputs, "cluster": {"strategy": operator.strategy}}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(plain | {"sink": {"kind": "count"}}))
    return path


# ---------------------------------------------------------------- runs


def _swjoin(*words: object) -> None:
    command = [sys.executable, "-m", "swjoin", *map(str, words), "-q"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {done.returncode}: {done.stdout}{done.stderr}")


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    if not found["ledger"]["balanced"]:
        raise SystemExit(f"{folder}: the ledger does not balance")
    return found


def _answer(report: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    queries = report.get("queries") or [report["results"]]
    return tuple((query["count"], query["digest"]) for query in queries)


def real(config: Path, folder: Path, speed: float, counts: Sequence[int], repeat: int) -> dict[int, list[float]]:
    """Input rows/s by number of slaves, turn by turn. SystemExit when answers differ."""
    rates: dict[int, list[float]] = {slaves: [] for slaves in counts}
    answers, busy = set(), 0
    for turn in range(repeat):
        for slaves in counts:
            out = folder / f"real{slaves}-{turn}"
            _swjoin("run", config, "--out", out, "-n", slaves + 2, "--set", f"nodes.node_speed={speed}")
            report = _report(out)
            answers.add(_answer(report))
            busy += report["machine"]["overloaded"]
            rates[slaves].append(report["input_tuples_per_s"])
    _swjoin("verify", folder / f"real{counts[0]}-0")
    if len(answers) != 1 or not sum(count for count, _ in answers.pop()):
        raise SystemExit(f"{config}: the answer depends on the slaves, or is empty")
    if busy:
        print(f"  {busy} of {repeat * len(counts)} runs found the machine busy with other work", flush=True)
    return rates


def simulated(config: Path, folder: Path, counts: Sequence[int]) -> tuple[dict[int, float], float]:
    """Highest sustained rate by number of nodes; and the bytes/s of rows of a node of the most."""
    profiles = []
    for epoch in _EPOCHS:
        out = folder / f"costs{epoch}"
        _swjoin("run", config, "--out", out, "--set", "pace=realtime", "--set", f"cluster.distribution_epoch={epoch}")
        profiles.append(f"--profile={out}")
    rates = {}
    for nodes in counts:
        out = folder / f"simulated{nodes}"
        _swjoin(
            *("simulate", config, "--slaves", nodes, "--costs", "modern-10g", *profiles),
            *("--saturate", "--balance", "--set", "cluster.distribution_epoch=200ms", "--out", out),
        )
        rates[nodes] = float(json.loads((out / "simulation.json").read_text())["saturation_tuples_per_s"])
    report = _report(folder / f"costs{_EPOCHS[0]}")
    sent = sum(edge["bytes"] for edge in report["edges"]) / sum(of["tuples"] for of in report["input"].values())
    return rates, 2 * sent * rates[counts[-1]] / counts[-1]


# ---------------------------------------------------------------- verdicts


def linear(rates: Mapping[int, float]) -> tuple[str, float, float]:
    """Verdict, r^2 and what a node of the most carries of what one of the fewest does."""
    nodes = np.array(sorted(rates), float)
    values = np.array([rates[int(n)] for n in nodes])
    _, r2 = line(nodes, values)
    share = float(values[-1] / nodes[-1] / (values[0] / nodes[0]))
    if r2 >= LINEAR_R2 and share >= LINEAR_SHARE:
        return "holds", r2, share
    shaped = all(after >= DOUBLING * before for before, after in pairwise(values))
    return "in shape" if shaped else "does not hold", r2, share


def _shown(what: str, rates: Mapping[int, Sequence[float]]) -> float:
    """Prints a line; returns the share of `linear`."""
    middle = {nodes: statistics.median(of) for nodes, of in rates.items()}
    verdict, r2, share = linear(middle)
    listed = []
    for nodes, of in rates.items():
        spread = f" ({min(of):,.0f} to {max(of):,.0f})" if len(of) > 1 else ""
        listed.append(f"{nodes}: {middle[nodes]:,.0f}{spread}")
    print(f"{what}: linear {verdict}, r^2 {r2:.3f}, share {share:.2f}; inputs/s by nodes {', '.join(listed)}", flush=True)
    return share


def of_operators(repeat: int, *, tiny: bool) -> None:
    shares: list[float] = []
    of_real, of_simulated = _TINY if tiny else (REAL, SIMULATED)
    for operator in operators(tiny=tiny):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = written(operator, folder)
            _shown(f"{operator.title}, real", real(config, folder, operator.speed, of_real, repeat))
            rates, bytes_per_s = simulated(config, folder, of_simulated)
            shares.append(_shown(f"{operator.title}, simulated", {nodes: [rate] for nodes, rate in rates.items()}))
            passes = "holds" if rates[8] > PASSED_PER_S else "does not hold"
            quiet = "holds" if bytes_per_s < MOST_BYTES_PER_S else "does not hold"
            print(f"{operator.title}: more than 100,000 inputs/s at 8 nodes {passes}, {rates[8]:,.0f}", flush=True)
            print(
                f"{operator.title}: below 500 MB/s a node {quiet}, {bytes_per_s / 1e6:.1f} MB/s at {of_simulated[-1]}",
                flush=True,
            )
    few, many, _, groups, static = shares
    better = "holds" if min(many, static) > max(few, groups) else "does not hold"
    print(
        f"more patterns and static mappings scale better: {better}, {many:.2f} and {static:.2f} of {few:.2f} and {groups:.2f}"
    )


# ---------------------------------------------------------------- queries


def of_queries(repeat: int, *, tiny: bool) -> None:
    events, users = (4_000, 200) if tiny else (200_000, 10_000)
    with tempfile.TemporaryDirectory() as name:
        streams, graph = network(Path(name), events, users)
        for query, count in (("Q1", 100), ("Q4", 10), ("Q5", 10), ("Q10", 1)):
            asked = texts(query, count, users)
            one = next(iter(asked.values()))
            inputs: dict[str, Any] = {}
            for iri, path in streams.items():
                if f":{iri.rpartition('/')[2]} " in one:
                    inputs[iri.rpartition("/")[2]] = {"path": str(path), "iri": iri, "time": "ts", "time_unit": "us"}
            if "foaf:knows" in one:
                inputs |= {iri.rpartition("/")[2]: {"path": str(path), "iri": iri} for iri, path in graph.items()}
            queries = [{"name": number, "sparql": text} for number, text in asked.items()]
            folder = Path(name) / query
            folder.mkdir()
            config = folder / "run.yaml"
            config.write_text(yaml.safe_dump({"queries": queries, "inputs": inputs, "sink": {"kind": "count"}}))
            _shown(f"{query}, {count}, real", real(config, folder, 0.1, (_TINY[0] if tiny else REAL), repeat))


def main() -> None:
    args = parse_parts(__doc__, PARTS, repeat=1)
    for name, part in zip(PARTS, (of_operators, of_queries), strict=True):
        if name in args.parts:
            part(args.repeat, tiny=args.tiny)


if __name__ == "__main__":
    main()

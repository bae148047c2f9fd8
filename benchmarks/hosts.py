"""Figures 11 and 12 of the join cluster's paper on hosts that are apart: communication over the slaves, and over the rate.

Usage: python -m benchmarks.hosts [11] [12] [--mbit 1000] [--repeat 3] [--tiny]
Why: imitated nodes slow the core, so that a message's fixed cost hides what the link costs. Here each slave has a host of its
own, a network namespace (as root) whose link has a limit; master and collector share one more host, nodes have the full speed.
What is measured: the experiments of the figures by `swjoin sweep --hostfile` (preset quick, a tenth of the paper's time: 1000
Mbit/s stand for 100), windows of 60 s, and the verdict by the criteria of `plots.claims`. A run whose ledger does not balance
fails, and its point with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ROOT, parse
from plots.claims import assess
from plots.sweep_tables import RATE, Table, Where, load
from tests.support.namespaces import ADDRESS, Hosts, why_not

_FIGURES, _MOST_SLAVES, _LIMIT_S = (11, 12), 5, 6 * 3600.0
_COMMON = {"base": str(ROOT / "mpi_configs" / "paper.yaml"), "preset": "quick", "metrics": ["communication_s", "active_slaves"]}
_SET = {
    "join.within": "60s",
    "measure.prefill": "60s",
    "nodes": {"node_speed": 0.1, "link_bytes_per_s": 0},  # of the paper's time: a whole core in a tenth of it
}


def experiment(figure: int, *, tiny: bool) -> dict[str, Any]:
    """The file of one figure."""
    own: dict[str, Any] = {"slaves": 4, "measured": "60s", "axes": {RATE: [1500, 2500, 4000, 5000, 6000, 7000]}}
    more: dict[str, Any] = {"join.within": "10s", "measure.prefill": "10s"} if tiny else {}
    if figure == 11:  # to rest from 5 slaves to 1 takes about 130 s
        kinds = {kind: {"reorganization.declustering": kind} for kind in ("fixed", "adaptive")}
        own = {"measured": "200s", "axes": {"slaves": list(range(1, _MOST_SLAVES + 1)), "declustering": kinds}}
        more |= {"workload.rate": 1500, "measure.warm_up": "4s" if tiny else "140s"}
    if tiny:
        own |= {"measured": "10s"}
        own["axes"] |= {"slaves": [1, 2]} if figure == 11 else {RATE: [1500, 2500]}
    question = f"Figure {figure}, on hosts that are apart"
    return _COMMON | own | {"question": question, "figure": figure, "set": _SET | more}


def measured(hosts: Hosts, folder: Path, figure: int, repeat: int, *, tiny: bool) -> Table:
    """The table of a figure's sweep. SystemExit when a run has failed."""
    path, out = folder / f"hosts{figure}.yaml", folder / f"sweep{figure}"
    path.write_text(json.dumps(experiment(figure, tiny=tiny)))
    line = [sys.executable, "-m", "swjoin", "sweep", path, "--hostfile", hosts.hostfile, "--repeat", repeat, "--out", out, "-q"]
    code, said, err = hosts.run(line, ROOT, _LIMIT_S)
    if code != 0:
        raise SystemExit(f"figure {figure}: exit code {code}: {said}{err}")
    subprocess.run([sys.executable, "-m", "swjoin", "aggregate", out, "-q"], check=True, stdout=subprocess.DEVNULL)
    return load(out)


def shown(table: Table, figure: int) -> None:
    """A line for each point: the mean of the repeats, and their range."""
    x = "slaves" if figure == 11 else RATE
    for declustering in ("fixed", "adaptive") if figure == 11 else ("",):
        where: Where = {"declustering": declustering} if declustering else {}
        curves = {over: table.curve("communication_s", x, over, where) for over in ("min", "mean", "max", "sum")}
        for i, at in enumerate(curves["mean"].x.tolist()):
            parts = [f"{over} {c.mean[i]:.2f} ({c.low[i]:.2f} to {c.high[i]:.2f})" for over, c in curves.items()]
            print(f"figure {figure}: {x} {at:g} {declustering}: {', '.join(parts)} s per minute", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", type=int, metavar="FIGURE", help="11 or 12 (default: both)")
    parser.add_argument("--mbit", type=int, default=1000, help="what each host may send, in Mbit/s")
    parser.add_argument("--repeat", type=int, default=3)
    args = parse(parser, repeat=1)
    if unknown := set(args.figures) - set(_FIGURES):
        parser.error(f"figure {min(unknown)}: only 11 and 12 are measured on hosts")
    if reason := why_not():
        print(f"hosts: not measured, {reason}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = Hosts(folder, 1 + (2 if args.tiny and args.figures == [11] else _MOST_SLAVES))
        try:
            hosts.hostfile.write_text("".join(f"{ADDRESS}.{i + 1} slots={1 if i else 2}\n" for i in range(hosts.count)))
            for host in range(hosts.count):
                hosts.shape(host, "tbf", "rate", f"{args.mbit}mbit", "burst", "256kb", "latency", "200ms")
            for figure in args.figures or _FIGURES:
                table = measured(hosts, folder, figure, args.repeat, tiny=args.tiny)
                shown(table, figure)
                verdict = assess(figure, table)
                runs = "{} valid runs, {} on an overloaded machine, which are left out".format(*table.left_out())
                print(f"figure {figure}, hosts of {args.mbit} Mbit/s: {verdict.verdict}. {verdict.why} {runs}", flush=True)
        finally:
            hosts.close()


if __name__ == "__main__":
    main()

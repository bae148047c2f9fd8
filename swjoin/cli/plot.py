"""`swjoin plot`: figures of a run, or of an experiment.

What: `run_plot`.
Why: figures read what runs stored.
Stays out: drawing (`plots`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from swjoin.core.errors import UserError
from swjoin.core.resources import find_resource, load_figures


def run_plot(args: argparse.Namespace) -> int:
    run_overview, adaptation = load_figures("run_overview"), load_figures("adaptation")
    experiments, sweep_tables, sweep_figures = (load_figures(m) for m in ("experiments", "sweep_tables", "sweep_figures"))
    target = find_resource(args.target)
    if target.suffix in (".yaml", ".yml"):
        from swjoin.sweeps.store import sweep_directory

        experiment = experiments.read(target)
        sweep = Path(args.sweep) if args.sweep else sweep_directory(experiment)
        table = sweep_tables.load(sweep)
        if table.name != experiment.source.name:
            raise UserError(f"{sweep}: is a sweep of {table.name}, not of {experiment.source.name}")
        paths = sweep_figures.save(table, experiment, Path(args.out) if args.out else sweep / "plots")
    elif args.sweep or args.out:
        raise UserError(f"{target}: -o and --sweep are for the figure of an experiment (EXPERIMENT.yaml), not of a run")
    else:
        paths = [*run_overview.save(target), *adaptation.save(target)]
    for path in paths:
        print(path)
    return 0

"""`swjoin aggregate`: tables of runs and sweeps.

What: `run_aggregate`.
Why: plots and papers read tables.
Stays out: making them (`sweeps.aggregate`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from swjoin.cli.common_args import chosen_engine


def run_aggregate(args: argparse.Namespace) -> int:
    from swjoin.sweeps.aggregate import aggregate

    for path in aggregate([Path(d) for d in args.dirs], chosen_engine(args), args.spark_master):
        print(path)
    return 0

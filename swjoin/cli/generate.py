"""`swjoin generate`: two streams by Spark.

What: `run_generate`.
Why: workloads are made where they are joined.
Stays out: the generator (`spark.generate`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from swjoin.core.errors import UserError


def _schedule(text: str) -> dict[str, Any]:
    kind, *settings = text.split(",")
    out: dict[str, Any] = {"kind": kind}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--schedule {text}: write KIND,key=value,...")
        number = value.replace(".", "", 1).isdigit()
        out[name] = (float(value) if "." in value else int(value)) if number else value
    return out


def run_generate(args: argparse.Namespace) -> int:
    from swjoin.config.loader import workload_from_plain
    from swjoin.spark.generate import generate

    if not 0 <= args.seed < 1 << 63:
        raise UserError(f"--seed {args.seed}: must be an integer from 0 on, below 2^63")
    plain = {
        "rate_per_s": args.rate,
        "duration": args.duration,
        "bias": args.bias,
        "domain": args.domain,
        "payload": args.payload,
        "drift": args.drift,
        "schedule": _schedule(args.schedule),
    }
    workload = workload_from_plain(plain)
    counts = generate(workload, args.seed, Path(args.out), args.spark_master)
    print(f"{args.out}: {counts[0]:,} left and {counts[1]:,} right tuples")
    return 0

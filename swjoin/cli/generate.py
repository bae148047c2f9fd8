"""`swjoin generate`: two streams, Nexmark's tables, or LSBench's streams of triples, by Spark.

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
    if not 0 <= args.seed < 1 << 63:
        raise UserError(f"--seed {args.seed}: must be an integer from 0 on, below 2^63")
    if args.users is not None and args.workload != "lsbench":
        raise UserError("--users: is for --workload lsbench")
    return _streams(args) if args.workload == "bmodel" else _events(args)


_MOST_USERS = 1 << 40
_OF_STREAMS = ("rate", "duration", "bias", "domain", "payload", "drift", "schedule")


def _events(args: argparse.Namespace) -> int:
    """Workloads that are functions of the number of an event."""
    from swjoin.spark.generate import generate_lsbench, generate_nexmark

    for name in _OF_STREAMS:
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: is for --workload bmodel")
    if args.events is None or args.events < 1:
        raise UserError(f"--events N: --workload {args.workload} needs a number of events from 1 on")
    if args.seed >= 1 << 53:
        raise UserError(f"--seed {args.seed}: --workload {args.workload} takes one below 2^53")
    out, spark = Path(args.out), args.engine == "spark"
    if args.workload == "nexmark":
        counts = generate_nexmark(args.events, args.seed, out, args.spark_master, spark=spark)
    else:
        users = 10_000 if args.users is None else args.users
        if not 1 <= users <= _MOST_USERS:
            raise UserError(f"--users {users}: must be from 1 to {_MOST_USERS:,}")
        counts = generate_lsbench((args.events, users), args.seed, out, args.spark_master, spark=spark)
    print(f"{args.out}: " + ", ".join(f"{count:,} rows of {name}" for name, count in counts.items()))
    return 0


def _streams(args: argparse.Namespace) -> int:
    from swjoin.config.loader import workload_from_plain
    from swjoin.spark.generate import generate

    if args.events is not None:
        raise UserError("--events: is for --workload nexmark or lsbench")
    if args.engine != "spark":
        raise UserError(f"--engine {args.engine}: is for --workload nexmark or lsbench; streams are made by Spark")
    missing = [f"--{name}" for name in ("rate", "duration") if getattr(args, name) is None]
    if missing:
        raise UserError(f"{' and '.join(missing)}: missing; --workload bmodel needs both")
    plain = {
        "rate_per_s": args.rate,
        "duration": args.duration,
        "bias": 0.7 if args.bias is None else args.bias,
        "domain": 10_000_000 if args.domain is None else args.domain,
        "payload": "48B" if args.payload is None else args.payload,
        "drift": "0s" if args.drift is None else args.drift,
        "schedule": _schedule("constant" if args.schedule is None else args.schedule),
    }
    workload = workload_from_plain(plain)
    counts = generate(workload, args.seed, Path(args.out), args.spark_master)
    print(f"{args.out}: {counts[0]:,} left and {counts[1]:,} right tuples")
    return 0

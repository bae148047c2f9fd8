"""`python -m tests.fuzzing [N] [--target NAME] [--seed S]`: N mutated inputs per target; exit code 0 if all went as they must.

What: the command behind `./run.sh fuzz`, and the worker that it starts.
Why: an input that goes wrong prints its seed; the same target, with N = 1 and that seed, repeats it.
Stays out: everything about inputs (the targets), processes (`harness`).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from pathlib import Path

from swjoin.cli.parser import Parser
from tests.fuzzing.harness import Target, fuzz, work

TARGETS = {
    "wire": "frames:WireTarget",
    "checkpoint": "folders:CheckpointTarget",
    "yaml": "settings:YamlTarget",
    "parquet": "tables:ParquetTarget",
    "csv": "tables:CsvTarget",
    "ipc": "tables:IpcTarget",
}
_SHOWN = 20


def make(name: str) -> Target:
    """A target by name; what it needs is imported here."""
    module, _, kind = TARGETS[name].partition(":")
    target: Target = getattr(importlib.import_module(f"tests.fuzzing.{module}"), kind)()
    return target


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 only if every input was dealt with as it must be."""
    parser = Parser(prog="run.sh fuzz", description="Mutated inputs; a failing one prints its seed.")
    parser.add_argument("count", metavar="N", type=int, nargs="?", default=1000, help="inputs per target (default 1000)")
    parser.add_argument("--target", choices=list(TARGETS), help="only this one")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--limit", type=float, default=20, metavar="S", help="seconds an input may take (default 20)")
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB", help="address space for one input (0: no limit)")
    parser.add_argument("--verbose", action="store_true", help="what became of every kind of mutation")
    parser.add_argument("--slot", type=Path, help=argparse.SUPPRESS)  # this is a worker
    args = parser.parse_args(argv)
    if args.count < 1 or args.seed < 0 or args.workers < 1:
        parser.error("N and --workers must be at least 1, --seed 0")
    if not 0 < args.limit < math.inf or args.memory < 0:
        parser.error("--limit must be a time above 0, --memory at least 0")
    if args.slot is not None:
        work(make(args.target), args.seed, args.count, args.memory << 20, args.slot)
        return 0
    failed = 0
    for name in [args.target] if args.target else list(TARGETS):
        tally = fuzz(name, args.seed, args.count, workers=args.workers, limit_s=args.limit, memory_bytes=args.memory << 20)
        print(tally.line, flush=True)
        if args.verbose:
            for outcome, number in sorted(tally.outcomes.items()):
                print(f"  {number:7} {outcome}")
        for seed, what, count in tally.kinds()[:_SHOWN]:
            what = what.encode("ascii", "backslashreplace").decode()
            print(f"  {count} x seed {seed}: {what}\n    again: ./run.sh fuzz 1 --target {name} --seed {seed}", flush=True)
        failed += len(tally.findings)
    print(f"{failed} inputs went wrong" if failed else "every input was dealt with as it must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

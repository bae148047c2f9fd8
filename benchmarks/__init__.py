"""Benchmarks, each a module: `python -m benchmarks.NAME` in the root of the checkout, or `./run.sh bench`.

Every answer is checked in the run that is timed. Modules in `peers` run in environments of their own, without swjoin, so this
file imports nothing beyond the standard library.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def parse(parser: argparse.ArgumentParser, **tiny: Any) -> argparse.Namespace:
    """The arguments of a benchmark; with --tiny, `tiny` has the defaults."""
    parser.allow_abbrev = False
    parser.add_argument("--tiny", action="store_true", help="small inputs: answers are checked, figures mean nothing")
    if "--tiny" in sys.argv[1:]:
        parser.set_defaults(**tiny)
    return parser.parse_args()


def parse_parts(
    description: str | None, parts: Collection[str], *, by_name: Collection[str] = (), **tiny: Any
) -> argparse.Namespace:
    """The arguments of a benchmark of several parts: `parts` that are wanted, all if none is named, and `repeat`. by_name: more
    of them, which run only when they are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(parts)} (default: all){''.join(f', or {name}' for name in by_name)}",
    )
    parser.add_argument("--repeat", type=int, default=3)
    args = parse(parser, **tiny)
    if unknown := set(args.parts) - {*parts, *by_name}:
        parser.error(f"unknown part {min(unknown)}; parts are {', '.join((*parts, *by_name))}")
    args.parts = args.parts or list(parts)
    return args


def run_mpirun(command: list[str], **options: Any) -> None:
    """Run mpirun; once more when its own server failed to start, as `swjoin run` does. options: of `subprocess.run`."""
    from swjoin.runtime.launch import FAILED_TO_START

    for again in (True, False):
        done = subprocess.run(command, check=False, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)
        if not (again and FAILED_TO_START in done.stderr):
            break
    sys.stderr.write(done.stderr)
    done.check_returncode()

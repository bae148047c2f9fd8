"""The command `doctor`: a line per check, OK, WARN or FAIL, and how to mend it.

What: `run_doctor`, by itself or as one of the ranks of a launcher (`mpirun -n 4 python -m swjoin doctor`).
Why: what is wrong with a cluster should be known before a job waits in its queue.
Stays out: the checks (`diagnostics.doctor`), what ranks measure (`diagnostics.doctor_ranks`).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from swjoin.core.errors import UserError
from swjoin.diagnostics.doctor import Check, check_ranks, launched_checks, machine_checks
from swjoin.runtime.preflight import has_mpi4py, launcher_size


def _print(checks: Iterable[Check], as_json: bool) -> int:
    done = []
    for check in checks:
        done.append(check)
        if not as_json:
            mend = f"; mend: {check.mend}" if check.mend else ""
            print(f"{check.verdict:<5} {check.name:<17} {check.found}{mend}", flush=True)
    failed = any(check.verdict == "FAIL" for check in done)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in done]}, indent=2))
    return 1 if failed else 0


def run_doctor(args: argparse.Namespace) -> int:
    """Exit code 0 when nothing fails, 1 otherwise."""
    directory = None if args.dir is None else Path(args.dir).absolute()
    launched = launcher_size()
    if launched > 1:
        return _as_a_rank(args, launched, directory)
    from swjoin.cli.common_args import hostfile

    hosts = hostfile(args)
    ranks = 3 if args.ranks is None else args.ranks
    if ranks < 2:
        raise UserError(f"-n {ranks}: links need at least two ranks")
    on_ranks = args.ranks is not None or has_mpi4py()  # otherwise the first checks say that there are none
    checks = itertools.chain(machine_checks(ranks), launched_checks(ranks, hosts, directory, args.limit) if on_ranks else ())
    return _print(checks, args.json)


def _as_a_rank(args: argparse.Namespace, launched: int, directory: Path | None) -> int:
    """Only rank 0 prints. What starts ranks of its own (fault tolerance) is left out."""
    if args.ranks is not None or args.hostfile is not None:
        raise UserError("-n and --hostfile: these ranks have been started already; leave them out")
    from swjoin.diagnostics.doctor_ranks import examine
    from swjoin.runtime.preflight import launcher_index

    figures = examine(directory, args.limit)
    if not figures or launcher_index() > 0:
        return 0
    return _print(itertools.chain(machine_checks(launched), check_ranks(figures, launched, directory)), args.json)

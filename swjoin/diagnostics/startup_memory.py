"""Memory of a started process, before its first tuple.

What: `measure(role)`, resident bytes of a fresh process with the modules and kernels of a role, and `python -m
swjoin.diagnostics.startup_memory ROLE`, which is that process.
Why: with small windows, Python, its libraries and compiled kernels are most of a rank's memory. It depends on the machine, and
is measured there.
Stays out: memory that grows with the run (`forecast.memory`).
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import numpy as np

from swjoin.monitor.process_memory import rss_bytes
from swjoin.monitor.process_settings import keep_freed_memory

ROLES = ("in-process", "master", "collector", "slave")
_TIMEOUT_S = 240  # kernels may have to be compiled first


def measure(role: str) -> int | None:
    """Resident bytes of a fresh process in this role; None when it cannot be measured."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "swjoin.diagnostics.startup_memory", role]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, cwd=root)
        return int(done.stdout.split()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def load(role: str) -> None:
    """Import the modules and load the kernels of a role."""
    from swjoin.config.run import QueryConfig, RunConfig
    from swjoin.core.batch import RowLayout
    from swjoin.runtime.kernel_preload import load_gateway_kernels, load_slave_kernels

    config, layouts = RunConfig((QueryConfig(-1, 1),)), (RowLayout(8), RowLayout(8))
    keep_freed_memory()
    if role != "in-process":
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI as _  # noqa: F401
    if role in ("in-process", "master", "collector"):
        import pyarrow.parquet  # noqa: F401

        import swjoin.runtime.hosts  # noqa: F401
        from swjoin.config.job import Job
        from swjoin.connectors.files import sink  # noqa: F401
        from swjoin.connectors.output_columns import OutputColumns
        from swjoin.core.batch import empty_pairs
        from swjoin.core.hashing import digest_pairs
        from swjoin.runtime.open import open_job_sources

        digest_pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))
        plan = OutputColumns.build(*open_job_sources(Job(config, None, False, None, None, "")), config)
        if role != "master":
            plan.decode(empty_pairs(plan.left.layout, plan.right.layout))
    if role in ("in-process", "master"):
        load_gateway_kernels(config, layouts)
    if role in ("in-process", "slave"):
        load_slave_kernels(config, layouts)


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()):
        load(sys.argv[1])
    print(rss_bytes())

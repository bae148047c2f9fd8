"""Many jobs on the same MPI ranks, one after the other: to start the ranks takes longer than a small job.

What: `run_jobs(ranks, jobs, folder)`, and `mpirun -n RANKS python -m tests.support.ranks FILE...`, which plays the jobs of
these files; `run_mpirun(line)` for tests that start mpirun themselves.
Why: every case of SPEC section 7 runs on a real cluster, and the suite is run often. Now and then mpirun's own server fails to
start before any rank does, which is no finding about swjoin: `runtime.launch` starts mpirun once more, and so do these tests.
Ranks that hang show where: what their stacks were is the message of the test that waited for them.
Stays out: jobs whose ranks die or fail; these need an mpirun of their own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from swjoin.config.job import Job
from swjoin.runtime.launch import FAILED_TO_START, mpirun_options
from swjoin.runtime.mpi.main import run_rank
from swjoin.runtime.preflight import find_mpirun
from tests.support.limits import PROCESS_S


def run_mpirun(line: Sequence[str | Path], timeout_s: float = PROCESS_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this mpirun to its end, capturing its output. options: of `subprocess.run`."""
    options = {"cwd": Path(__file__).parents[2]} | options
    for _ in range(2):
        done = _ended(line, timeout_s, options)
        if FAILED_TO_START not in done.stderr:
            break
    return done


def _ended(line: Sequence[str | Path], timeout_s: float, options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as mpirun:
        try:
            out, err = mpirun.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            ranks = _of_python(mpirun.pid)
            for rank in ranks:
                with contextlib.suppress(psutil.Error):
                    rank.send_signal(signal.SIGUSR2)  # prints its stack: of `main` below, and of ranks with --debug
            psutil.wait_procs(ranks, timeout=5)
            for rank in ranks:
                with contextlib.suppress(psutil.Error):
                    rank.kill()
            mpirun.kill()
            out, err = mpirun.communicate(timeout=timeout_s)
            raise AssertionError(f"{len(ranks)} ranks still ran after {timeout_s:g} s\n{out}\n{err}") from None
        except BaseException:
            mpirun.kill()
            raise
    return subprocess.CompletedProcess(line, mpirun.returncode, out, err)


def _of_python(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [process] if "python" in process.name() else []
    return found


def run_jobs(ranks: int, jobs: list[Job], folder: Path, timeout_s: float = 2 * PROCESS_S) -> None:
    """Play them all; AssertionError with what was printed when one fails."""
    files = []
    for i, job in enumerate(jobs):
        files.append(folder / f"job-{ranks}-{i}.json")
        files[-1].write_text(job.to_json())
    line = [*mpirun_options(find_mpirun(), ranks), sys.executable, "-m", "tests.support.ranks", *map(str, files)]
    done = run_mpirun(line, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr


def main(files: list[str]) -> None:
    faulthandler.register(signal.SIGUSR2)
    comm = None
    for file in files:
        run_rank(Job.from_json(Path(file).read_text()), False, comm=comm)
        from mpi4py import MPI

        met = MPI.COMM_WORLD.Ibarrier()
        while not met.Test():
            time.sleep(0.002)
        comm = MPI.COMM_WORLD.Dup()  # the last credit of a job may arrive after its gateway has ended


if __name__ == "__main__":
    main(sys.argv[1:])

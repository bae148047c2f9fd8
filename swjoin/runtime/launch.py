"""Starting MPI ranks from one command: `-n RANKS`.

What: `launch(job, ranks)`, `launch_told` (for Python, which wants to be told), `mpirun_command`.
Why: nobody should need to know the launcher's flags to use four ranks; its noise must not bury our one line.
Stays out: what a rank does (`runtime.mpi`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TextIO

from swjoin.runtime.job import Job
from swjoin.runtime.preflight import find_mpirun
from swjoin.runtime.report import partial_report, write_json
from swjoin.runtime.stopping import STOP_SIGNALS

_GRACE_S = 10.0
_FAILED_TO_START = "listener thread failed to start"  # of mpirun's own server, before any rank: once in thousands of starts
_AGAIN = -1
_TERMINATED = "stopped by SIGTERM\n"  # a rank that the launcher stopped because another one died


def mpirun_options(mpirun: Path, ranks: int) -> list[str]:
    """mpirun and its options, for `ranks` ranks on this machine (loopback and shared memory only)."""
    command = [str(mpirun), "-n", str(ranks)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > (os.cpu_count() or 1):
        command.append("--oversubscribe")
    return [*command, "--bind-to", "none", "--mca", "btl", "self,sm", "--mca", "pml", "ob1"]


def mpirun_command(mpirun: Path, ranks: int, job_file: Path, debug: bool, *, survives: bool = False) -> list[str]:
    """The command line that starts `ranks` ranks of a job on this machine.

    survives: a rank that dies does not end the others (User Level Failure Mitigation, which Open MPI 5 has).
    """
    options = mpirun_options(mpirun, ranks)
    if survives:
        options += ["--with-ft", "ulfm"]
    command = [*options, sys.executable, "-m", "swjoin", "_rank", str(job_file)]
    return [*command, "--debug"] if debug else command


def launch(job: Job, ranks: int, debug: bool) -> int:
    """Start the ranks, pass their output on, return their exit code. SIGINT, SIGTERM and SIGUSR1 end them all."""
    return launch_told(job, ranks, debug)[0]


def launch_told(job: Job, ranks: int, debug: bool = False, *, quiet: bool = False) -> tuple[int, str]:
    """The same; returns the exit code, and what went wrong. quiet: nothing is printed."""
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="swjoin-") as folder:
        job_file = Path(folder) / "job.json"
        job_file.write_text(job.to_json())
        checkpointed = job.checkpoints is not None
        survives = checkpointed and job.config.checkpoint.recover
        command = mpirun_command(find_mpirun(), ranks, job_file, debug, survives=survives)
        environment = dict(os.environ)
        if not sys.stdout.isatty():  # mpirun gives rank 0 a pseudo-terminal all the same
            environment["SWJOIN_PLAIN"] = "1"
        with open(os.devnull, "w") if quiet else contextlib.nullcontext(sys.stderr) as told:
            for again in (True, False):
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL if quiet else None,
                    stderr=None if debug else subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                code, failure = _watch(process, signal.SIGUSR1 if checkpointed else signal.SIGTERM, told, again=again)
                if code != _AGAIN:
                    break
    if code and job.run_dir is not None and not _finished_since(job.run_dir / "run.json", started):
        write_json(job.run_dir / "run.json", partial_report(job, {"count": None, "digest": None}, failure))
    return code, failure


def _finished_since(report: Path, started: float) -> bool:
    """Whether a rank has written this run's report."""
    return report.exists() and report.stat().st_mtime >= started


def _watch(process: subprocess.Popen[str], first_signal: signal.Signals, told: TextIO, *, again: bool) -> tuple[int, str]:
    """Pass the ranks' lines on to `told` until the launcher ends; its exit code as ours, and what went wrong.

    again: _AGAIN, and nothing is told, if mpirun itself has failed to start, of a cause that passes.

    first_signal: what to send when we are to stop; SIGUSR1 is passed on to ranks, which with checkpoints end by themselves. The
    second time it is SIGTERM.
    """
    stopping: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)
        process.send_signal(first_signal if len(stopping) == 1 else signal.SIGTERM)

    here = threading.current_thread() is threading.main_thread()  # elsewhere signals do what they always do
    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS if here}
    said = ""
    unsaid: list[str] = []
    try:
        if process.stderr is not None:
            for line in process.stderr:
                if line.startswith("swjoin: ") and not line.endswith(_TERMINATED):
                    if not said:  # ranks that fail of the same cause, or because another failed, need not all say so
                        said = line.removeprefix("swjoin: ").strip()
                        told.write(line)
                        told.flush()
                else:
                    unsaid.append(line)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end(process)
    if stopping and code == 0 and first_signal == signal.SIGUSR1:
        return 0, ""  # stopped with a checkpoint, or had come to its end
    if stopping:
        said = f"stopped by {signal.Signals(stopping[0]).name}"
        print(f"swjoin: {said}", file=told)
        return 128 + stopping[0], said
    if code and not said:
        text = " ".join(" ".join(unsaid).split())
        if again and _FAILED_TO_START in text:
            return _AGAIN, ""
        killed = re.search(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)", text)
        if killed is not None:
            said = f"rank {killed[1]} on {killed[2]} was killed by signal {killed[3]}"
        else:
            said = f"mpirun ended with code {code}: {text[:400].strip(' -') or 'it said nothing'} (--debug shows all)"
        print(f"swjoin: {said}", file=told)
    return (code if code in (0, 2) else 1), said


def _end(process: subprocess.Popen[str]) -> None:
    """Make sure that the launcher is gone, by pid."""
    if process.poll() is None:
        process.terminate()
        deadline = time.monotonic() + _GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
    if process.stderr is not None:
        process.stderr.close()

"""Runs a command as a process group that ends with the sweep.

What: `run_to_end(command, errors, limit_s) -> error or None`.
Why: a run is a tree of processes (launcher, mpirun, ranks); an interrupted sweep must leave none of them behind.
Stays out: which commands, how often (`sweeps.runner`, `sweeps.node_speed`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from swjoin.core.platforms import end_group, signals_named

_GRACE_S = 20.0  # `swjoin run -n` itself gives mpirun 10 s


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a run, which ends its ranks; after the grace period kill its process group."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        end_group(process, *signals_named("SIGKILL"))
        process.wait()


def run_to_end(command: list[str], errors: Path, limit_s: float) -> str | None:
    """Run a command; returns None, or the last line of its standard error if it failed. errors: file of standard error,
    removed when empty."""
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {limit_s:.0f} s and was stopped"
        finally:
            _end(process)
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    if code == 0:
        if not lines:
            errors.unlink()
        return None
    return lines[-1].removeprefix("swjoin: ") if lines else f"ended with code {code} and said nothing"

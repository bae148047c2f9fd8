"""What commands may write: not over an input, by whatever name, and not over a finished run.

What: `check_outputs(job)`, called by every runtime before anything is opened for writing; `refuse_inputs`, `refuse_run` for
commands without a job.
Why: nothing that a user made is destroyed by a mistake in a command line.
Stays out: writing. Files of results get their names when they are whole (`connectors.files.sink`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from swjoin.config.job import Job, late_target
from swjoin.connectors.files.formats import file_format
from swjoin.connectors.files.sink import refuse_results
from swjoin.core.errors import UserError


def _number(path: Path) -> tuple[int, int] | None:
    """What is the same of all names of a file; None when there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def refuse_inputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[Path]) -> None:
    """UserError when an output is an input or a file of an input directory, by another name of it as well, or would become one.

    outputs: with the words that a user gave them by.
    """
    files: dict[tuple[int, int], Path] = {}
    folders: dict[tuple[int, int], Path] = {}
    for path in inputs:
        number = _number(path)
        if number is not None and path.is_dir():
            folders[number] = path
            with contextlib.suppress(OSError):  # told when the input is opened
                files |= {n: file for file in path.iterdir() if file.is_file() and (n := _number(file)) is not None}
        elif number is not None:
            files[number] = path
    for words, path in outputs:
        number, above = _number(path), _number(path.parent)
        if number in files:
            raise UserError(f"{words} {path}: is an input ({files[number]}), which would be overwritten; give another name")
        if number in folders:
            raise UserError(f"{words} {path}: is an input directory; give another one")
        if above in folders and file_format(path) is not None:
            within = folders[above]
            raise UserError(
                f"{words} {path}: lies in the input directory {within} and would be read as input; put it elsewhere"
            )


def refuse_run(run_dir: Path, words: str, *, simulated: bool = False) -> None:
    """UserError when this directory holds a finished run, or one that can be resumed. simulated: a simulation may be there."""
    if os.path.exists(run_dir) and not os.path.isdir(run_dir):
        raise UserError(f"{words} {run_dir}: is a file; name a directory")
    try:
        found = json.loads((run_dir / "run.json").read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (found.get("complete") is not False and not (simulated and found.get("simulated"))):
        raise UserError(f"{words} {run_dir}: holds a finished run; choose another directory or remove it")
    if found.get("resumable"):
        raise UserError(
            f"{words} {run_dir}: holds a run that did not end; resume it with swjoin run --resume {run_dir}, choose another "
            "directory or remove it"
        )


def check_outputs(job: Job) -> None:
    """UserError, before anything is opened for writing, when the job would write over an input, a finished run or results."""
    words = "-o" if job.run_dir is None else "--out"
    outputs = [] if job.target is None else [(words, job.target)]
    if job.run_dir is not None:
        names = ("run.json", "metrics/slaves.parquet", "metrics/events.parquet")
        outputs += [(words, job.run_dir / name) for name in names]
        if not job.resumes:
            refuse_run(job.run_dir, words)
    if job.report is not None:
        outputs.append(("--report", job.report))
        if job.target is not None and job.report.resolve() == job.target.resolve():
            raise UserError(f"--report {job.report}: is the file of the results (-o); give another name")
    late = late_target(job)
    if late is not None:
        outputs.append(("late rows", late))
    streams = (job.config.left, job.config.right)
    refuse_inputs(outputs, [Path(p) for s in streams if (p := s.path or s.watch) is not None])
    if job.target is not None and job.directory and job.config.sink.in_files:
        refuse_results(job.target, staged=job.checkpoints is not None, resumes=job.resumes)

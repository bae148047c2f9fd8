"""Checks of output paths: no command overwrites an input or a finished run.

What: `check_outputs(job)`, called by every runtime before a file is opened for writing; `refuse_inputs`, `refuse_run`,
`refuse_files`, `refuse_foreign` for commands without a job.
Why: a mistake in a command line must not destroy a user's files.
Stays out: writing. Result files get their names when they are complete (`connectors.files.sink`); what a rename may replace
(`core.storage`).

A join that completes replaces OUT, the late rows and the report of an earlier join. In the directory of a run only files of an
unfinished run are replaced and, by `simulate`, those of a simulation.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from swjoin.config.connectors import QUERY_IN_TOPIC
from swjoin.config.job import Job, late_target
from swjoin.connectors.files.inputs import file_format, local_paths
from swjoin.connectors.files.late_rows import refuse_other_file
from swjoin.connectors.files.run_files import RUN_FILES, events_lines
from swjoin.connectors.files.sink import refuse_results
from swjoin.core.errors import UserError
from swjoin.core.storage import is_stream, refuse_special, resolved


def _number(path: Path) -> tuple[int, int] | None:
    """Identity of a file under all its names; None when there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _there(path: Path) -> Path:
    """The nearest folder above that exists; the path itself when a name on the way is not read (`_` or `.` in front)."""
    found = next((folder for folder in (path, *path.parents) if os.path.exists(folder)), path)
    return path if any(part[0] in "._" for part in path.parts[len(found.parts) :]) else found


def refuse_inputs(outputs: Iterable[tuple[str, Path]], inputs: Iterable[Path], *, nested: bool = False) -> None:
    """UserError when an output is an input or a file of an input directory, under any name, or would become one.

    outputs: (option as the user wrote it, path). nested: folders within the inputs are read, too, those of `local_paths`.
    """
    files: dict[tuple[int, int], Path] = {}
    folders: dict[tuple[int, int], Path] = {}
    for path in inputs:
        number = _number(path)
        if number is not None and path.is_dir():
            folders[number] = path
            with contextlib.suppress(OSError):  # opening the input will raise it
                files |= {n: file for file in path.iterdir() if file.is_file() and (n := _number(file)) is not None}
        elif number is not None:
            files[number] = path
    for words, path in outputs:
        number, above = _number(path), _number(_there(path.parent) if nested else path.parent)
        if number in files:
            raise UserError(f"{words} {path}: is an input ({files[number]}), which would be overwritten; give another name")
        if number in folders:
            raise UserError(f"{words} {path}: is an input directory; give another one")
        kind = file_format(path)
        if above in folders and kind is not None and (kind != "RDF lines" or any(folders[above].glob("*.txt*"))):
            within = folders[above]
            raise UserError(
                f"{words} {path}: lies in the input directory {within} and would be read as input; put it elsewhere"
            )


def refuse_run(run_dir: Path, words: str, *, simulated: bool = False) -> bool:
    """UserError when this directory holds a finished run, or one that can be resumed. simulated: a simulation is replaceable.

    Returns whether an earlier run has left files that the next one may replace.
    """
    if os.path.exists(run_dir) and not os.path.isdir(run_dir):
        raise UserError(f"{words} {run_dir}: is a file; name a directory")
    path = run_dir / "run.json"
    if path.exists():
        refuse_special(path, words)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return events_lines(run_dir).exists()  # the run was killed
    except NotADirectoryError:
        raise UserError(f"{words} {run_dir}: lies in a file; name a directory") from None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (found.get("complete") is not False and not (simulated and found.get("simulated"))):
        raise UserError(f"{words} {run_dir}: holds a finished run; choose another directory or remove it")
    if found.get("resumable"):
        raise UserError(
            f"{words} {run_dir}: holds a run that did not end; resume it with swjoin run --resume {run_dir}, choose another "
            "directory or remove it"
        )
    return True


def refuse_files(run_dir: Path, names: Iterable[str]) -> None:
    """UserError when one of these files exists in a directory without a run."""
    for name in names:
        path = run_dir / name
        if os.path.lexists(path) or (os.path.lexists(path.parent) and not path.parent.is_dir()):
            raise UserError(
                f"{path if os.path.lexists(path) else path.parent}: is there already; choose another --out or remove it"
            )


def refuse_foreign(path: Path, words: str, what: str, ours: Callable[[Path], bool]) -> None:
    """UserError when the path cannot be written, or holds a file of another kind.

    what: the kind of file, in words. ours: whether a file is of that kind. Empty files, and devices that `write_out` supports,
    are replaceable.
    """
    refuse_special(path, words, streams=True)
    if is_stream(path) or not path.exists() or path.stat().st_size == 0:
        return
    try:
        replaceable = ours(path)
    except (OSError, UserError):
        replaceable = False
    if not replaceable:
        raise UserError(f"{words} {path}: is there already, and is no {what}; give another name")


def _refuse_same(outputs: list[tuple[str, Path, str]]) -> None:
    """UserError when two outputs are one file. outputs: (option as the user wrote it, path, description)."""
    kept: dict[tuple[int, int] | str, str] = {}
    for words, path, what in outputs:
        number = _number(path)
        names: list[tuple[int, int] | str] = [os.path.realpath(path), *([] if number is None else [number])]
        for name in names:
            if name in kept:
                raise UserError(f"{words} {path}: is {kept[name]}; give another name")
        kept |= dict.fromkeys(names, what)


def _beside(path: Path) -> Path:
    """Where the output goes when the run fails."""
    path = resolved(path)
    return path.with_name(f"{path.name}.incomplete")


def _refuse_others(job: Job, words: str) -> None:
    """UserError when the folder of several queries' folders is a file, or holds anything else."""
    target = job.target
    if target is None or not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UserError(f"{words} {target}: is a file; several queries write into a folder, give another name")
    if any(path.name not in job.queries for path in target.iterdir()):
        raise UserError(f"{words} {target}: holds something else; choose another folder or empty it")


def check_outputs(job: Job) -> None:
    """UserError when the job would overwrite an input, a finished run, another of its outputs or a user's files, or cannot
    write one of them. Called before a file is opened for writing."""
    words = "out" if job.spelling == "arguments" else "-o" if job.run_dir is None else "--out"
    started = job.resumes
    if job.run_dir is not None and not job.resumes:
        started = refuse_run(job.run_dir, words)
    if (kafka := job.config.sink.kafka) is not None and QUERY_IN_TOPIC in kafka.topic and not job.queries:
        raise UserError(
            f"{QUERY_IN_TOPIC} stands for the name of a query, and this run has none with a name", subject="sink.kafka.topic"
        )
    outputs: list[tuple[str, Path, str]] = []
    if job.target is not None:
        outputs.append((words, job.target, "the file of the results (-o)"))
        if job.directory and job.target.name.lower().endswith(".csv.gz"):
            raise UserError(f"{words} {job.target}: files in a folder are not packed; end it in .parquet or .csv")
        if not job.directory:
            refuse_special(job.target, words)
            outputs.append((words, _beside(job.target), "where results go that are not whole"))
    run_files = [] if job.run_dir is None else list(RUN_FILES)
    late = late_target(job)
    if late is not None and job.run_dir is not None:
        run_files.append(late.name)
    elif late is not None:
        refuse_special(late, "late rows")
        outputs += [("late rows", late, "the file of the late rows"), ("late rows", _beside(late), "where late rows go")]
    if job.run_dir is not None:
        outputs += [(words, job.run_dir / name, "a file of the run") for name in run_files]
    if job.report is not None:
        refuse_special(job.report, "--report", streams=True)
        outputs.append(("--report", job.report, "the report"))
    _refuse_same(outputs)
    streams = job.config.streams
    refuse_inputs([output[:2] for output in outputs], [Path(s.watch) for s in streams if s.watch is not None])
    read = [path for s in streams for path in local_paths(s.paths)]
    refuse_inputs([output[:2] for output in outputs], read, nested=True)
    if late is not None and job.run_dir is None:
        refuse_other_file(late)
    if job.run_dir is not None and not started:
        refuse_files(job.run_dir, run_files)
    if job.queries and job.config.sink.in_files and not job.resumes:  # later its own folders are all that it writes into
        _refuse_others(job, words)
    for folder in job.result_folders if job.config.sink.in_files else ():
        refuse_results(folder, staged=job.checkpoints is not None, resumes=job.resumes)

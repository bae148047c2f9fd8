"""Starting MPI ranks from one command: `-n RANKS`.

What: `launch(job, ranks)`, `launch_with_reason` (which returns the error, for the Python API), `mpirun_command`.
Why: users need not know the launcher's flags, and its output must not bury the run's one-line error.
Stays out: the work of a rank (`runtime.mpi.main`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.connectors.output_paths import check_outputs
from swjoin.core.errors import NotWritten, UserError
from swjoin.core.log_lines import record_of
from swjoin.core.storage import write_json
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.plain import plan_from_plain
from swjoin.runtime.mpi.heartbeats import WATCH, MasterWatch
from swjoin.runtime.preflight import find_mpirun
from swjoin.runtime.progress import Progress, Wanted, can_be_drawn
from swjoin.runtime.run_report import partial_report, rank_roles
from swjoin.runtime.signals import handling

_LOG = logging.getLogger(__name__)
_GRACE_S = 10.0
_LEFT_BEHIND_S = 15.0  # for mpirun to end after the run, or after its master
_POLL_S = 0.2
_LAST_WORDS_S = 2.0
_SUMMARY = "swjoin.cli.summary"  # the logger of the warnings in a report
FAILED_TO_START = "listener thread failed to start"  # in mpirun's own server, before any rank; once in thousands of starts
_AGAIN = -1
_TERMINATED = "stopped by SIGTERM"  # ends the error of a rank; mpirun stops all ranks with it when one has died


def several_hosts(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether mpirun uses several hosts by default: it runs inside an allocation of several."""
    return environment.get("SLURM_JOB_NUM_NODES", "1") != "1"


def mpirun_options(mpirun: Path, ranks: int, hostfile: Path | None = None) -> list[str]:
    """mpirun and its options, for `ranks` ranks: on this machine, over loopback and shared memory only, or on several hosts.

    hostfile: names of hosts and their slots; MPI then chooses the transports, and its own settings (OMPI_MCA_...) steer it.
    """
    command = [str(mpirun), "-n", str(ranks)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if hostfile is not None or several_hosts():
        if hostfile is not None:
            command += ["--hostfile", str(hostfile)]
        if "SWJOIN_PLAIN" in os.environ:
            command += ["-x", "SWJOIN_PLAIN"]
        return [*command, "--bind-to", "none"]
    if ranks > (os.cpu_count() or 1):
        command.append("--oversubscribe")
    return [*command, "--bind-to", "none", "--mca", "btl", "self,sm", "--mca", "pml", "ob1"]


def mpirun_command(
    mpirun: Path,
    ranks: int,
    job_file: Path,
    debug: bool,
    *,
    survives: bool = False,
    hostfile: Path | None = None,
    log_json: bool = True,
    progress: bool = False,
) -> list[str]:
    """The command line that starts `ranks` ranks of a job, which log at the level of this process.

    progress: rank 0 prints its own, for `Progress.take`.
    survives: the others survive the death of a rank (User Level Failure Mitigation of Open MPI 5).
    """
    options = mpirun_options(mpirun, ranks, hostfile)
    if survives:
        options += ["--with-ft", "ulfm"]
    level = logging.getLogger("swjoin").getEffectiveLevel()
    flags = {"--log-json": log_json, "-v": level <= logging.DEBUG, "-q": level >= logging.ERROR, "--progress": progress}
    given = [name for name, wanted in flags.items() if wanted]
    command = [*options, sys.executable, "-m", "swjoin", "_rank", *given, str(job_file)]
    return [*command, "--debug"] if debug else command


@contextlib.contextmanager
def _job_file(job: Job, hostfile: Path | None) -> Iterator[Path]:
    """The job's file: in a temporary folder, or, when other hosts must read it, in the run's own directory."""
    if job.run_dir is None or not (hostfile is not None or several_hosts()):
        with tempfile.TemporaryDirectory(prefix="swjoin-") as folder:
            path = Path(folder) / "job.json"
            path.write_text(job.to_json())
            yield path
        return
    path = job.run_dir.absolute() / f".job-{os.getpid()}.json"
    made = [above for above in path.parents if not above.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.to_json())
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error.strerror}); all hosts must share it") from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            for above in made:
                above.rmdir()


def launch(
    job: Job, ranks: int, debug: bool, hostfile: Path | None = None, *, log_json: bool = False, progress: Wanted = False
) -> int:
    """Start the ranks, log their messages, return their exit code. SIGINT, SIGTERM, SIGHUP and SIGUSR1 end them all.

    log_json: of ranks that print their messages themselves, as they do with `debug`.
    """
    return launch_with_reason(job, ranks, debug, hostfile=hostfile, log_json=log_json, progress=progress)[0]


def _environment(job: Job) -> dict[str, str]:
    """What ranks find in their environment besides this process's own."""
    found = {} if sys.stdout.isatty() else {"SWJOIN_PLAIN": "1"}  # mpirun gives rank 0 a pseudo-terminal in any case
    if folders := _function_folders(job):
        found["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    return found


def _function_folders(job: Job) -> list[str]:
    """Folders from which this process has imported functions of the job's plan, but those of installed packages: ranks import
    the functions from there, too."""
    nodes = () if job.plan is None else plan_from_plain(job.plan).nodes
    found: dict[str, None] = {}
    for node in nodes:
        module = sys.modules.get(node.function.partition(":")[0].partition(".")[0]) if isinstance(node, MapBatches) else None
        places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
        if places[0] is not None:
            found[str(Path(places[0]).resolve().parent)] = None
    installed = {str(Path(path).resolve()) for path in sysconfig.get_paths().values()}
    return [folder for folder in found if folder not in installed]


def launch_with_reason(
    job: Job,
    ranks: int,
    debug: bool = False,
    *,
    quiet: bool = False,
    hostfile: Path | None = None,
    log_json: bool = False,
    progress: Wanted = False,
) -> tuple[int, str]:
    """As `launch`; returns the exit code and the error, empty without one. quiet: neither print the summary, nor log its
    warnings and the error."""
    check_outputs(job)
    report = None if job.run_dir is None else job.run_dir / "run.json"
    before = None if report is None else _stamp(report)
    drawn = not debug and can_be_drawn(progress)
    spread = hostfile is not None or several_hosts()
    watched = MasterWatch.of(job.config.cluster.failure_timeout_us / 1e6, loopback=not spread)
    with _job_file(job, hostfile) as job_file, Progress(progress) as shown, watched as watch:
        checkpointed = job.checkpoints is not None
        survives = checkpointed and job.config.checkpoint.recover
        command = mpirun_command(
            find_mpirun(),
            ranks,
            job_file,
            debug,
            survives=survives,
            hostfile=hostfile,
            log_json=log_json or not debug,
            progress=drawn,
        )
        whole = None if report is None else functools.partial(_ended_well, report, before)
        finished = whole if spread else None
        added = _environment(job) | ({} if watch is None else {WATCH: watch.setting})
        environment = os.environ | added
        command[1:1] = [word for name in ("PYTHONPATH", WATCH) if name in added for word in ("-x", name)] if spread else []
        _LOG.debug("%s", shlex.join(command))
        for again in (True, False):
            start = functools.partial(
                subprocess.Popen,
                command,
                env=environment,
                stdout=subprocess.DEVNULL if quiet else None,
                stderr=None if debug else subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            first_signal = signal.SIGUSR1 if checkpointed else signal.SIGTERM
            end = _End(finished, watch, functools.partial(job.next_step, ranks))
            code, failure = _watch(start, first_signal, quiet=quiet, again=again, end=end, shown=shown)
            if code != _AGAIN:
                break
        if code == 0 and whole is not None and not whole():  # as if all processes of a host die, or the master after the others
            lost = "a host was lost" if spread else "the master died"
            code, failure = 1, f"mpirun ended before the run did: {lost}; {job.next_step(ranks)}"
            _complain(failure, quiet=quiet)
    # A refused run (code 2) leaves the report unchanged; so does a resumed run that could not start, and one that was stopped
    # before it started.
    replaceable = (None,) if job.resumes else (None, before)
    started = code < 128 or (job.run_dir is not None and (job.run_dir / "metrics").exists())
    if started and code not in (0, 2) and report is not None and _stamp(report) in replaceable:
        ranks_known = rank_roles(RankMap.of(job.config, ranks), "" if spread else platform.node())
        with contextlib.suppress(NotWritten):  # the full disk has been reported
            write_json(report, partial_report(job, {"count": None, "digest": None}, failure, ranks_known))
    return code, failure


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is rewritten; None without the file. Independent of a file server's clock."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _ended_well(report: Path, before: tuple[int, int, int] | None) -> bool:
    """Whether this run is complete or was stopped with a checkpoint. before: the report's stamp when the run started."""
    if _stamp(report) in (None, before):
        return False
    try:
        plain = json.loads(report.read_text())
    except (OSError, ValueError):  # the file is being written
        return False
    return bool(plain.get("complete") or plain.get("resumable"))


@dataclass(frozen=True)
class _End:
    """How the end of a run is noticed where mpirun does not end. finished: whether the run is over, as a launcher that has lost
    a host may never end; None: it cannot be told. master: of the run, if it is watched. next_step: what a user does then."""

    finished: Callable[[], bool] | None
    master: MasterWatch | None
    next_step: Callable[[], str]

    def wait(self, process: subprocess.Popen[str], said: _Said, quiet: bool) -> int:
        """The launcher's exit code."""
        since: float | None = None
        while True:
            try:
                return process.wait(None if self.finished is None and self.master is None else _POLL_S)
            except subprocess.TimeoutExpired:
                frozen = "" if self.master is None else self.master.look()
                if frozen:
                    said.fail(f"{frozen}; {self.next_step()}", quiet)
                if since is None and self._over():
                    since = time.monotonic()
                if since is not None and time.monotonic() - since > _LEFT_BEHIND_S:
                    _end(process)
                    return self._code(said)

    def _over(self) -> bool:
        return (self.master is not None and self.master.left) or (self.finished is not None and self.finished())

    def _code(self, said: _Said) -> int:
        """Of a run whose mpirun had to be ended: that of the master, where it has told."""
        code = None if self.master is None else self.master.code
        if code is None:
            return 0 if self.finished is not None and self.finished() and not said.error else 1
        return code


def _watch(
    start: Callable[[], subprocess.Popen[str]],
    first_signal: signal.Signals,
    *,
    quiet: bool,
    again: bool,
    shown: Progress,
    end: _End,
) -> tuple[int, str]:
    """Start the launcher, log the ranks' messages until it ends; returns the exit code and the error.

    shown: takes the progress of rank 0. again: return _AGAIN, and log nothing, when mpirun itself failed to start of a
    transient cause. first_signal: sent to the launcher on the first stop signal; mpirun relays SIGUSR1 to the ranks, which then
    stop with a checkpoint. A second stop signal other than SIGUSR1 sends SIGTERM.
    """
    started: list[subprocess.Popen[str]] = []
    stopping: list[int] = []

    def stop(number: int) -> None:
        stopping.append(number)
        terminate = len(stopping) > 1 and number != signal.SIGUSR1  # batch systems may send it twice
        if started:
            started[0].send_signal(signal.SIGTERM if terminate else first_signal)

    said = _Said()
    with handling(stop):
        if stopping:  # before anything was started
            return _stopped(stopping[0], quiet)
        process = start()
        started.append(process)
        reader = None
        if process.stderr is not None:
            reader = threading.Thread(target=said.read, args=(process.stderr, shown, quiet), daemon=True)
            reader.start()
        if stopping:  # while it was being started
            process.send_signal(signal.SIGTERM)
        try:
            code = end.wait(process, said, quiet)
            code = 1 if said.failed else code
        finally:
            _end(process)
            if reader is not None and process.stderr is not None:
                reader.join(_LAST_WORDS_S)  # processes left on other hosts may keep the pipe open
                if not reader.is_alive():
                    process.stderr.close()
    if stopping and code == 0 and first_signal == signal.SIGUSR1:
        return 0, ""  # stopped with a checkpoint, or complete
    if stopping:
        return _stopped(stopping[0], quiet)
    error = said.error
    if code and not error:
        if again and said.failed_to_start:
            return _AGAIN, ""
        error = said.cause(code)
        _complain(error, quiet=quiet)
    return (code if code in (0, 2) else 1), error


def _stopped(number: int, quiet: bool) -> tuple[int, str]:
    error = f"stopped by {signal.Signals(number).name}"
    _complain(error, quiet=quiet)
    return 128 + number, error


class _Said:
    """What the ranks and mpirun say; the ranks' messages are logged as they come."""

    def __init__(self) -> None:
        self.error = ""  # the first of a rank
        self.failed = False
        self._terminated = ""
        self._other_lines: list[str] = []

    def read(self, lines: TextIO, shown: Progress, quiet: bool) -> None:
        for line in lines:
            record = None if shown.take(line) else _record_of(line)
            if record is None:
                self._other_lines.append(line)
            elif record.levelno < logging.ERROR:
                if not (quiet and record.name == _SUMMARY):
                    _relay(record)
            elif record.getMessage().endswith(_TERMINATED):
                self._terminated = record.getMessage()
            elif not self.error:  # further ranks fail of the same cause, or of this failure
                self.error = record.getMessage()
                if not quiet:
                    _relay(record)

    def fail(self, error: str, quiet: bool) -> None:
        """The run fails of this, as the launcher has found out before any rank."""
        self.failed = True
        if not self.error:
            self.error = error
            _complain(error, quiet=quiet)

    def cause(self, code: int) -> str:
        """Why the launcher ended with `code`, where no rank gave an error."""
        text = " ".join(" ".join(self._other_lines).split())
        killed = re.search(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)", text)
        if killed is not None:
            return f"rank {killed[1]} on {killed[2]} was killed by signal {killed[3]}"
        if self._terminated:
            return self._terminated
        return f"mpirun ended with code {code}: {text[:400].strip(' -') or 'it said nothing'} (--debug shows all)"

    @property
    def failed_to_start(self) -> bool:
        """Of mpirun's transient failure, before any rank was started."""
        return FAILED_TO_START in " ".join(" ".join(self._other_lines).split())


def _complain(error: str, *, quiet: bool) -> None:
    if not quiet:
        _LOG.error("%s", error)


def _record_of(line: str) -> logging.LogRecord | None:
    """The message of a rank, or None. Errors before a rank has read its command line are text."""
    if line.startswith("swjoin: "):
        return _LOG.makeRecord(_LOG.name, logging.ERROR, "", 0, line.removeprefix("swjoin: ").strip(), (), None)
    return record_of(line)


def _relay(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _end(process: subprocess.Popen[str]) -> None:
    """End the launcher and what it has started, by pid, if it is still running."""
    if process.poll() is None:
        ranks = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        deadline = time.monotonic() + _GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):  # it knows a later process of the same number
                rank.kill()

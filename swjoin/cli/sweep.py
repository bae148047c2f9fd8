"""The command that runs experiments: `sweep`.

What: `run_sweep`: a list of points (`--dry-run`), or the sweep with its progress and where to look next.
Why: a sweep takes an hour; its progress shows what is running, what it found, and when it ends.
Stays out: parsing (`cli.main`), running and storing (`sweeps`).
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.cli.common_args import hostfile
from swjoin.cli.summary import on_terminal
from swjoin.core.errors import UserError
from swjoin.core.resources import find_resource

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from swjoin.sweeps.points import Experiment, Point

_LOG = logging.getLogger(__name__)


def time_text(seconds: float) -> str:
    """For people: 40 s, 12 min, 1 h 5 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Lines:
    """One line per run."""

    def begin(self, total: int, ended: int, estimate_s: float) -> None:
        there = f", {ended} are there already" if ended else ""
        print(f"{total} to run{there}; about {time_text(estimate_s)}", flush=True)

    def started(self, text: str) -> None:
        pass

    def line(self, text: str) -> None:
        print(text, flush=True)

    def ended(self, text: str, remaining_s: float) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass


class Bar(Lines):
    """A progress bar below the lines: how many have ended, what is running, about how long it will take."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, total: int, ended: int, estimate_s: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().begin(total, ended, estimate_s)
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=total, completed=ended, left=f"{time_text(estimate_s)} left")

    def started(self, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)

    def line(self, text: str) -> None:
        if self._progress is None:
            print(text, flush=True)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def ended(self, text: str, remaining_s: float) -> None:
        self.line(text)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, left=f"{time_text(remaining_s)} left")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _plan_lines(experiment: Experiment, planned: list[Point], repeats: int) -> list[str]:
    """What would be run."""
    from swjoin.sweeps.runner import plan_s

    source, lines = experiment.source, [point.text() for point in planned]
    search = source.search
    seconds = plan_s(source, planned)
    what = f"{len(planned)} point" + ("s" if len(planned) != 1 else "")
    if search is not None:
        what += f", each a search for {search.axis} in {search.low:g} to {search.high:g} of up to {search.most_probes} runs"
    times = f", {repeats} repeats {time_text(repeats * seconds)}" if repeats != 1 else ""
    scale = f", times / {source.time_scale}, rates * {source.time_scale}" if source.time_scale != 1 else ""
    return [*lines, f"{what}; preset {source.preset}{scale}; one repeat takes about {time_text(seconds)}{times}"]


def run_sweep(args: argparse.Namespace) -> int:
    from swjoin.sweeps.points import load_experiment, points
    from swjoin.sweeps.runner import check_hosts, sweep
    from swjoin.sweeps.store import sweep_directory

    for name in ("repeat", "only"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1 is needed")
    experiment = load_experiment(find_resource(args.experiment), args.preset, args.overrides)
    source = experiment.source
    if source.path != experiment.path:
        print(f"{experiment.path.name} draws from the runs of {source.path.name}")
    repeats, hosts = args.repeat or source.repeat, hostfile(args)
    check_hosts(experiment, hosts)
    if args.dry_run:
        for line in _plan_lines(experiment, points(experiment)[: args.only], repeats):
            print(line)
        return 0
    directory = Path(args.out) if args.out is not None else sweep_directory(experiment)
    reporter: Any = Bar() if on_terminal() and not (args.quiet or args.log_json) else Lines()
    try:
        summary = sweep(experiment, directory, reporter, repeat=repeats, only=args.only, fresh=args.fresh, hostfile=hosts)
    finally:
        reporter.close()
    counts = [f"{summary.done} done"]
    for count, word in ((summary.already, "were there"), (summary.invalid, "invalid"), (len(summary.failures), "failed")):
        counts += [f"{count} {word}"] if count else []
    print(f"{'sweep':<17} {', '.join(counts)}, {time_text(summary.wall_s)}")
    print(f"{'runs':<17} {directory}")
    print(f"{'next':<17} swjoin aggregate {directory}")
    print(f"{'':<17} swjoin plot {args.experiment}" + (f" --sweep {directory}" if args.out is not None or args.preset else ""))
    for label, why in summary.failures:
        _LOG.error("%s: %s", label, why)
    return 1 if summary.failures else 0

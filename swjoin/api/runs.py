"""Runs of a whole cluster from Python: `swjoin.run` and `swjoin.Run`.

What: `run(config)` starts what `swjoin run` starts; `Run` reads the directory of any run.
Why: results, metrics and events as Arrow tables, without knowing which file holds what.
Stays out: what a run does (`runtime`), figures (`plots`), the page in a notebook (`api.html_repr`).
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import RunConfig
from swjoin.core.errors import RunFailed, SwjoinError, UserError, spelled
from swjoin.core.ledger import Ledger
from swjoin.core.resources import find_resource
from swjoin.core.units import named_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from matplotlib.figure import Figure

Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | RunConfig


def run(
    config: Config,
    *,
    ranks: int | None = None,
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a cluster as configured, to its end: a YAML file, a mapping with the same keys, or a `swjoin.config.run.RunConfig`.

    ranks: on so many MPI ranks of this machine, at least 3; without, in this process, with `threads` slaves (default: one per
    core but one, at most four; for a count two on two cores). out: the run's directory, which must not hold results yet;
    without, a temporary one that lasts as long as the Run. progress: True: shown at once; False: not; None: a bar after a
    second, on a terminal or in a notebook.

    Raises UserError for a configuration or input that is wrong, RunFailed when the run fails or its ledger does not balance.
    """
    from swjoin.api.mpi_join import launch_quietly
    from swjoin.config.arguments import check_workers
    from swjoin.config.job import Job
    from swjoin.forecast.memory_report import add_plan
    from swjoin.runtime.in_process import run_local
    from swjoin.runtime.plausibility import warn
    from swjoin.runtime.progress import check_progress

    check_workers(threads, ranks)
    check_progress(progress)
    with spelled("keys"):
        settings = _config(config)
        kept = None
        if out is None:
            kept = tempfile.TemporaryDirectory(prefix="swjoin-run-", ignore_cleanup_errors=True)
            out = kept.name
        folder = named_path(out, "out")
        target = None if settings.sink.kind == "count" else folder / "results"
        job = Job(settings, target, True, folder, None, "swjoin.run")
        if ranks is not None:
            launch_quietly(job, ranks, progress)
        else:
            run_local(job, progress, slave_count=threads, complete_report=add_plan)
        found = Run(folder, _kept=kept)
    warn(found.report["warnings"], 2)
    return found


def _config(config: object) -> RunConfig:
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return config_from_plain(dict(config))
    if isinstance(config, (str, os.PathLike)):
        return load_config(find_resource(named_path(config, "config")))
    raise UserError(f"config: {config!r:.60} is no configuration; give a YAML file, a mapping or a RunConfig")


class Run:
    """What a run has left in its directory; read when it is asked for."""

    def __init__(self, path: str | os.PathLike[str], *, _kept: object = None) -> None:
        self.path = named_path(path, "path")
        self._kept = _kept  # a temporary directory, gone with the Run

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Run:
        """The run in this directory. UserError when it holds no run.json."""
        found = Run(path)
        _ = found.report
        return found

    @cached_property
    def report(self) -> dict[str, Any]:
        """run.json: what was run, ledger, count, digest, throughput, production delay, memory (docs/runs.md)."""
        from swjoin.connectors.files.run_folder import read_report

        return read_report(self.path)

    @property
    def complete(self) -> bool:
        """False for a run that failed, or was stopped with a checkpoint."""
        return bool(self.report.get("complete"))

    @property
    def count(self) -> int:
        """Pairs."""
        return int(self.report["results"].get("count") or 0)

    @property
    def digest(self) -> str:
        """Of the pairs: 16 hex digits."""
        return str(self.report["results"].get("digest"))

    @property
    def ledger(self) -> Ledger:
        """The account of all rows and pairs. RunFailed, saying why, for a run that failed."""
        from swjoin.runtime.run_report import ledger_of

        if self.report.get("input") is None:
            raise RunFailed(f"{self.path}: {self.report.get('failure') or 'the run has not been completed'}")
        try:
            return ledger_of(self.report)
        except (KeyError, TypeError):
            raise UserError(f"{self.path / 'run.json'}: does not hold the whole ledger; the file is damaged") from None

    @property
    def queries(self) -> dict[str, tuple[int | None, int | None]]:
        """By name of a query, the times from which on and before which it has rows, in microseconds; None: from the run's
        beginning, to its end. Also while the run goes on."""
        from swjoin.runtime.query_requests import queries_of

        return {name: (begin, end) for name, begin, end in queries_of(self.path)}

    def query(self, text: str, name: str | None = None, *, timeout: float | None = 60.0) -> int:
        """Add a query to the run, which goes on in another process with queries that have names and with checkpoints. Returns
        the time, in microseconds, from which on it has rows: those of a run of its own over the rows with such times.

        name: of its results; None: query and a number. timeout: seconds. UserError for a query that cannot be added, and when
        no run takes it in time (docs/many-queries.md)."""
        from swjoin.runtime.query_requests import request_change

        known = self.queries
        free = (f"query{number}" for number in itertools.count(1) if f"query{number}" not in known)
        return request_change(self.path, {next(free) if name is None else name: text}, (), timeout)

    def drop(self, *names: str, timeout: float | None = 60.0) -> int:
        """Drop queries from the run; returns the time, in microseconds, before which they have rows. As `query`."""
        from swjoin.runtime.query_requests import request_change

        return request_change(self.path, {}, names, timeout)

    def results(self) -> ds.Dataset:
        """The pairs, as an Arrow dataset over the result files: `.to_table()` reads them all. UserError when none were kept."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        folder = self.path / "results"
        sink = self.report["config"].get("sink")
        kind = str(sink.get("kind", "parquet")) if isinstance(sink, dict) else "parquet"
        files = sorted(str(f) for f in folder.glob(f"part-*.{kind}"))
        if not files:
            why = "the run kept count and digest only (sink.kind: count)" if kind == "count" else "there are no whole files"
            raise UserError(f"{folder}: holds no pairs: {why}")
        try:
            return ds.dataset(files, format=kind)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{folder}: cannot be read ({' '.join(str(error).split())[:300]})") from None

    def metrics(self) -> pa.Table:
        """One row per slave and distribution epoch (DIR/metrics/slaves.parquet)."""
        return self._table("slaves.parquet")

    def events(self) -> pa.Table:
        """What was decided, and what became of it (DIR/metrics/events.parquet)."""
        return self._table("events.parquet")

    def _table(self, name: str) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.path / "metrics" / name
        try:
            return pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            text = " ".join(str(error).split())[:300]
            raise UserError(f"{file}: cannot be read ({text}); was the run completed?") from None

    def plot(self) -> Figure:
        """Throughput, production delay and occupancy over time. UserError without a checkout and matplotlib."""
        from swjoin.core.resources import load_figures

        figure: Figure = load_figures("run_overview").plot(self.path)
        return figure

    def __repr__(self) -> str:
        try:
            lines = len(self.report.get("warnings", ()))
            warned = f", {lines} warning{'s' if lines > 1 else ''}" if lines else ""
            return f"<swjoin.Run {self.path}: {self.count:,} pairs, digest {self.digest}{warned}>"
        except UserError:
            return f"<swjoin.Run {self.path}: no report>"

    def _repr_html_(self) -> str:
        from swjoin.api.html_repr import failure_as_html, run_as_html

        try:
            return run_as_html(self.path, self.report)
        except SwjoinError as error:
            return failure_as_html(self.path, str(error))

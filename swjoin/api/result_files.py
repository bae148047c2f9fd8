"""Results of `swjoin.join` in a file: the argument `out`.

What: `result_file`, a path of results; `ResultFile`, which receives the output rows of a join in memory; `join_files`, two
paths joined into a file in bounded memory.
Why: a result may be larger than the memory. Both write the file of `swjoin join -o`, with its proof, under the same protection
of existing files.
Stays out: writing (`connectors.files.sink`), joining (`api.tables`, `runtime.in_process`).
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from swjoin.cluster.gateway.intake import LateRowError
from swjoin.config.arguments import Request
from swjoin.config.job import Job
from swjoin.config.run import RunConfig, SinkConfig
from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_paths import check_outputs, refuse_inputs
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError, one_line
from swjoin.core.ledger import Proof
from swjoin.core.storage import resolved
from swjoin.core.units import named_path
from swjoin.runtime.in_process import run_local
from swjoin.runtime.run_report import ledger_of

if TYPE_CHECKING:
    from swjoin.api.materialize import OutputGatherer
    from swjoin.connectors.output_columns import OutputColumns


def result_file(out: object) -> tuple[Path, Literal["parquet", "csv"]]:
    """A file of results, and its kind. UserError for a path that is none."""
    if not isinstance(out, (str, os.PathLike)):
        raise UserError(f"out: {type(out).__name__} is no path; name a file that ends in .parquet, .csv or .csv.gz")
    target = named_path(out, "out")
    name = target.name.lower()
    if not name.endswith((".parquet", ".csv", ".csv.gz")):
        raise UserError(f"out: {str(target)[:300]}: end it in .parquet, .csv or .csv.gz")
    return target, "parquet" if name.endswith(".parquet") else "csv"


def result_job(request: Request, out: object, left: object, right: object) -> Job:
    """The job of `swjoin join -o`. UserError for a path that is no file of results."""
    target, kind = result_file(out)
    streams = list(request.streams)
    if len(paths := _paths(left, right)) == 2:
        streams = [dataclasses.replace(stream, path=str(path)) for stream, path in zip(streams, paths, strict=True)]
    refuse_inputs([("out", target)], paths)
    sink = SinkConfig(kind, ids=request.ids)
    config = dataclasses.replace(request.config(), left=streams[LEFT], right=streams[RIGHT], sink=sink)
    return Job(config, target, False, None, None, "swjoin.join", spelling="arguments")


def _paths(*inputs: object) -> list[Path]:
    return [named_path(value, "input") for value in inputs if isinstance(value, (str, os.PathLike))]


def join_files(job: Job, request: Request, threads: int | None, progress: bool | None) -> Proof | None:
    """Two paths joined while they are read; None: the inputs are no paths. Unless a bound says which rows are late, rows out of
    order are sorted: inputs in order, which most are, need not be."""
    config: RunConfig = job.config
    if config.left.path is None or config.right.path is None:
        return None
    if request.max_out_of_order_us is not None:
        return _joined(job, threads, progress, advises=True)
    if request.late == "error":
        assert job.target is not None
        target = resolved(job.target)
        beside = target.with_name(f"{target.name}.incomplete")
        earlier = _identity(beside)
        try:
            return _joined(job, threads, progress)
        except LateRowError as error:
            if error.no_time:
                raise
        if _identity(beside) != earlier:
            beside.unlink()
    in_order = dataclasses.replace(config, time=dataclasses.replace(config.time, sort=True))
    return _joined(dataclasses.replace(job, config=in_order), threads, progress)


def _joined(job: Job, threads: int | None, progress: bool | None, *, advises: bool = False) -> Proof:
    report = run_local(job, progress, threads, advises=advises)
    results = report["results"]
    return Proof(results["count"], results["digest"], ledger_of(report), tuple(report["warnings"]))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class ResultFile:
    """A context that writes blocks of output rows from several threads. The file gets its name when `close` has been called;
    after an exception its rows are in NAME.incomplete. digest: of the ids of the rows that have been written."""

    def __init__(self, job: Job, plan: OutputColumns) -> None:
        check_outputs(job)
        assert job.target is not None
        if job.config.sink.kind == "csv":
            plan.check_text()
        with _storable():
            self._sink = FileSink(job.config.sink.kind, job.target, plan, run_id=job.run_id)
        self._lock = threading.Lock()
        self._closed = self._started = False
        self.digest = 0

    def write(self, gathered: OutputGatherer, *, last: bool = False) -> None:
        """Write what has been gathered; last: also what does not fill a block."""
        blocks = gathered.finish() if last else gathered.take()
        for block, digest in blocks:
            with self._lock, _storable():
                self._started = True
                self.digest += digest
                for batch in block.to_batches():
                    self._sink.write_rows(batch, 0, digest)
                    digest = 0

    def close(self, proof: Proof) -> None:
        """Complete the file."""
        with _storable():
            self._sink.close({**dataclasses.asdict(proof), "warnings": list(proof.warnings)})
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._closed:
            self._sink.abort(started=self._started)


@contextmanager
def _storable() -> Iterator[None]:
    """UserError for columns that the format of the file cannot hold."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UserError(f"out: {one_line(error)}; leave the column out with columns") from None

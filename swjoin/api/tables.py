"""Joins of whole tables: `swjoin.join`, `swjoin.count`.

What: two inputs in, an Arrow table of pairs, a reader, a file, or their number and digest out; in this process, or on MPI
ranks of this machine.
Why: the common case takes one call. In this process the calling thread reads and partitions one distribution epoch while the
join modules, a thread each, join the one before.
Stays out: what the arguments mean (`config.arguments`), tuples and output columns (`api.table_input`), streams
(`api.streaming`), proofs (`api.proofs`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from swjoin.api.embedded_join import Engine, Joiner
from swjoin.api.inputs import Input
from swjoin.api.materialize import OutputGatherer
from swjoin.api.proofs import remember
from swjoin.api.result_files import result_file
from swjoin.api.result_frames import converter
from swjoin.api.table_input import ReopenedInputs, open_sides
from swjoin.config.arguments import (
    CLUSTER_PARTITIONS,
    JOIN_PARTITIONS,
    Request,
    check_workers,
    key_columns,
    names_no_keys,
    runs_as_plan,
)
from swjoin.config.options import CountOptions, JoinOptions, complete, takes_options
from swjoin.config.run import SinkConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import UserError, spelled
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import Proof
from swjoin.expressions.compiler import compile_text
from swjoin.monitor.process_settings import join_settings
from swjoin.policy.epochs import EpochSize
from swjoin.runtime.in_process import default_slave_count
from swjoin.runtime.kernel_preload import report_compilations
from swjoin.runtime.plausibility import Answer, warn, warnings_of
from swjoin.runtime.progress import Progress, check_progress

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.api.planned_runs import Written

Write: TypeAlias = Callable[[OutputGatherer], None]
_LOG = logging.getLogger(__name__)
_AHEAD = 2  # distribution epochs that are prepared before the one that is joined is done
_FEW_ROWS = 1 << 15  # so many are joined sooner than threads are started and partition-groups opened
_RESULT_BYTES = 5 << 20


@takes_options(JoinOptions)
def join(left: Input, right: Input, **options: Unpack[JoinOptions]) -> pa.Table:
    """All pairs of rows with equal keys and lower <= right time - left time <= upper, each exactly once, as an Arrow table.

    last: count windows instead: every row meets the last so many rows of the other side before it, in the order of time (equal
    times: left first, then the order of rows); last=(100, 50): the last 100 left rows, the last 50 right rows.
    how: "inner"; "left", "right", "full": also the rows of that side, or of both, that match nothing; "semi", "anti": the left
    rows that match something, that match nothing. where: what else must hold of a pair, such as "left_price < right_price".
    Without on it alone decides, such as "abs(left_v - right_v) <= 5" (docs/semantics.md). routing: how rows find partners, such
    as "range" or "matrix:2,3" (docs/queries.md#routings); the rows are the same. units: with routing "random" or "contrand",
    how many units of each subgroup store at first; others do when memory needs them (default: all, always).

    left, right: Arrow tables, record batches or readers, pandas, polars, anything with `__arrow_c_stream__`, or paths of files
    or directories (Parquet, ORC, CSV, TSV, JSON lines, Arrow IPC). They are held in memory; in any row order. on: the join
    columns of both sides, or left_on and right_on. within="6h" means lower="-6h", upper="6h"; exclusive: bounds that do not
    count themselves. time_unit: of integer time columns (s, ms, us, ns); left_time_unit, right_time_unit: of one side's.
    assume_timezone: the zone in which times without a zone are local times, such as "Europe/Berlin". csv, left_csv, right_csv:
    how files of text are read (docs/sources.md), such as {"delimiter": ";", "types": "user: string"}. columns: other columns to
    keep (default: all). ids: also left_id, right_id, left_ts, right_ts (microseconds); ids are positions unless left_id,
    right_id name columns. max_out_of_order: rows that lie further behind an earlier one are late (default: no row is, whatever
    the order); late: "error" or "drop", also for rows without a time. memory: limit of the window state of a thread or rank,
    such as "4GB". threads: join modules in this process (default: one per core but one, at most four; two on two cores, unless
    rows go to files, also to temporary ones). ranks: start so many MPI ranks on this machine instead, at least 3. progress:
    True: shown at once; False: not; None: a bar after a second, on a terminal or in a notebook. returns: "arrow"; "pandas" or
    "polars", a data frame; "same", what the left input is: a data frame or LazyFrame of these, else an Arrow table; "reader": a
    record-batch reader that joins while it is read. out: a file for the rows, .parquet, .csv or .csv.gz; returns its `Proof`.
    Two paths are joined in bounded memory then.

    Output columns: the key once, named as on the left, then every other column of both sides, prefixed left_ or right_ where
    names clash. The order of the rows is not specified. `swjoin.proof(table)` has count, digest and ledger of an Arrow table;
    data frames, which can be changed, have no proof.

    Raises UserError for input or arguments that are wrong, RunFailed when the join fails.
    """
    given = complete(join, options)
    with spelled("arguments"):
        returns, out = given.pop("returns"), given.pop("out")
        if out is not None and returns != "arrow":
            raise UserError(f"returns: {returns!r} and out are given; the rows go into the file")
        convert = converter(returns, left)
        if runs_as_plan(given):
            rows, found = _join_as_plan(given, left, right, None if out is None else result_file(out))
            warn(found.warnings, 2)
            if rows is None:
                return found
            result = rows.to_reader() if returns == "reader" else rows
            remember(result, found)
            return convert(result)
        if out is not None:
            return _join_into_file(given, left, right, out)
        if returns == "reader":
            return _reader(given, left, right)
    return convert(_join_into_table(given, left, right))


@takes_options(CountOptions)
def count(left: Input, right: Input, **options: Unpack[CountOptions]) -> Proof:
    """Number and digest of the pairs that `join` would return for these arguments, without making them; and the ledger.

    Only keys, times and ids are read. Raises UserError for input or arguments that are wrong, RunFailed when it fails.
    """
    given = complete(count, options)
    with spelled("arguments"):
        if runs_as_plan(given):
            _, found = _join_as_plan(given, left, right, None, counted=True)
        else:
            with Progress(given["progress"]) as progress:
                found = _Tables(given, left, right, progress, materialise=False).run(None, None)
    warn(found.warnings, 2)
    return found


def _join_as_plan(
    options: dict[str, Any], left: object, right: object, written: Written | None, *, counted: bool = False
) -> tuple[pa.Table | None, Proof]:
    """The rows of a join that is run as a plan, unless they are written or counted only, and their proof."""
    from swjoin.api.planned_runs import Planned, answered, settings_of, stored
    from swjoin.frontends.planned_joins import planned

    request = _request_of(options)
    with tempfile.TemporaryDirectory(prefix="swjoin-join-", ignore_cleanup_errors=True) as name:
        sides = tuple(
            dataclasses.replace(stream, key=(), path=stored(value, side, stream.time, Path(name) / f"{side}.arrow"))
            for stream, side, value in zip(request.streams, STREAM_NAMES, (left, right), strict=True)
        )
        sink = SinkConfig("count", ids=request.ids)
        config = dataclasses.replace(settings_of(options), queries=(request.query,), inputs=sides, sink=sink)
        key = ((), ()) if names_no_keys(options) else (key_columns(options, LEFT), key_columns(options, RIGHT))
        made = Planned(*planned(config, key), "swjoin.count" if counted else "swjoin.join")
        return answered(made, options, written, Path(name), counted=counted)


def _join_into_table(options: dict[str, Any], left: object, right: object) -> pa.Table:
    import pyarrow as pa

    with spelled("arguments"), Progress(options["progress"]) as progress:
        tables = _Tables(options, left, right, progress)
        gathered = tables.gatherers()
        found = tables.run(gathered, None)
        blocks = [block for part in gathered for block in part.finish()]
        found = tables.with_ids(found, sum(digest for _, digest in blocks))
    table = pa.concat_tables([block for block, _ in blocks]) if blocks else tables.plan.schema.empty_table()
    remember(table, found)
    warn(found.warnings, 3)
    return table


def _join_into_file(options: dict[str, Any], left: object, right: object, out: object) -> Proof:
    """The proof of the file."""
    from swjoin.api.result_files import ResultFile, join_files, result_job

    request = _request_of(options)
    job = result_job(request, out, left, right)
    found = join_files(job, request, options["threads"], options["progress"]) if options["ranks"] is None else None
    if found is None:
        with Progress(options["progress"]) as progress:
            tables = _Tables(options, left, right, progress, writes=True)
            gathered = tables.gatherers(digests=True)
            with ResultFile(job, tables.plan) as file:
                found = tables.run(gathered, file.write)
                for part in gathered:
                    file.write(part, last=True)
                found = tables.with_ids(found, file.digest)
                file.close(found)
    warn(found.warnings, 3)
    return found


def _reader(options: dict[str, Any], left: object, right: object) -> pa.RecordBatchReader:
    """The pairs as they are asked for, by one join module; the reader has its proof at its end."""
    import pyarrow as pa

    for name in ("threads", "ranks"):
        if options[name] is not None:
            raise UserError(f"{name}: a reader joins in the thread that reads it; leave {name} out")
    if options["progress"]:
        raise UserError("progress: a reader joins while it is read, at the pace of who reads it; leave progress out")
    tables = _Tables(options, left, right, Progress(False))
    known: list[weakref.ref[pa.RecordBatchReader]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        with spelled("arguments"):
            digest = 0
            (gathered,) = tables.gatherers(1)
            engine = tables.engine(1)
            for (delivery,) in tables.epochs(engine):
                for pairs in engine.joiners[0].pairs_of(delivery):
                    gathered.add(pairs)
                    for block, part in gathered.take():
                        digest += part
                        yield from block.to_batches()
            for block, part in gathered.finish():
                digest += part
                yield from block.to_batches()
            found = Proof(engine.count, engine.digest, engine.check_ledger())
            found = tables.with_ids(tables.with_warnings(found, engine.matches), digest)
        reader = known[0]()
        if reader is not None:
            remember(reader, found)
        warn(found.warnings, 2)

    reader = pa.RecordBatchReader.from_batches(tables.plan.schema, batches())
    known.append(weakref.ref(reader))
    return reader


def _request_of(options: dict[str, Any]) -> Request:
    """UserError for what is no join of tables."""
    request = Request.from_options(options, keyed=not names_no_keys(options))
    if request.late == "side":
        raise UserError("late: 'side' needs a place for late rows, which a table does not have; use swjoin.WindowJoin")
    check_workers(options["threads"], options["ranks"])
    check_progress(options["progress"])
    return request


class _Tables:
    """A join of two inputs that are in memory. plan: columns of its result. writes: whether rows go to a file. UserError when
    it cannot be."""

    def __init__(
        self,
        options: dict[str, Any],
        left: object,
        right: object,
        progress: Progress,
        *,
        materialise: bool = True,
        writes: bool = False,
    ) -> None:
        request, started = _request_of(options), time.monotonic()
        self._ranks: int | None = options["ranks"]
        self._progress = progress
        self._sort = request.max_out_of_order_us is None  # with a declared bound rows are read in their own order
        one, two, self.plan = open_sides(request, left, right, materialise=materialise, on_rows=progress.reading)
        self._sides = one, two
        partitions = JOIN_PARTITIONS if self._ranks is None else CLUSTER_PARTITIONS
        self._threads: int = options["threads"] or default_slave_count(writes=writes)
        if options["threads"] is None and self._ranks is None and sum(side.table.num_rows for side in self._sides) <= _FEW_ROWS:
            self._threads = partitions = 1
        config = request.config(materialise=materialise, partitions=partitions)
        if any(side.untyped for side in self._sides):  # no pairs, and no types for a predicate
            config = dataclasses.replace(config, queries=(dataclasses.replace(config.query, where=None),))
        self._config = config
        _LOG.debug(
            "%d left and %d right rows, opened in %.3f s; %s, %d partition-groups",
            *(side.table.num_rows for side in self._sides),
            time.monotonic() - started,
            f"{self._threads} thread(s)" if self._ranks is None else f"{self._ranks} ranks",
            partitions,
        )

    def gatherers(self, count: int | None = None, *, digests: bool = False) -> list[OutputGatherer]:
        """One per join module, for `run`."""
        return [OutputGatherer(self.plan, self._sides, digests=digests) for _ in range(count or self._threads)]

    def run(self, gathered: list[OutputGatherer] | None, write: Write | None) -> Proof:
        """Join. gathered: receive the pairs; None: they are counted. write: called, in several threads, with one of these when
        it has received pairs."""
        if self._ranks is not None:
            from swjoin.api.mpi_join import join_on_ranks

            self._progress.close()  # the ranks have their own
            first = gathered[0] if gathered else None
            found, matches = join_on_ranks(
                self._config, self._sides, self._ranks, first, sort=self._sort, progress=self._progress.wanted
            )
        else:
            found, matches = self._run_here(gathered, write)
        return self.with_warnings(found, matches)

    def with_warnings(self, found: Proof, matches: int | None) -> Proof:
        left, right = self._sides
        answer = Answer(
            self._config.query,
            self._config.time,
            (found.ledger.left, found.ledger.right),
            (left.codec.time_unit, right.codec.time_unit),
            (left.time, right.time),
            matches,
            (left.unread, right.unread),
        )
        return dataclasses.replace(found, warnings=tuple(warnings_of(answer, ReopenedInputs(self._sides, sort=self._sort))))

    def with_ids(self, found: Proof, digest: int) -> Proof:
        """digest: of the pairs' own ids, where the user named id columns."""
        named = any(side.ids is not None for side in self._sides)
        return dataclasses.replace(found, digest=format_digest(digest)) if named else found

    # ------------------------------------------------------------ in this process

    def engine(self, slaves: int) -> Engine:
        left, right = self._sides
        codecs, config = (left.codec, right.codec), self._config
        where = compile_text(config.query.where, *codecs, count_windows=config.query.bounds.count_windows)
        layouts = codecs[LEFT].layout, codecs[RIGHT].layout
        return Engine(config, layouts, slaves=slaves, result_bytes=_RESULT_BYTES, where=where, ids_alone=not config.sink.ids)

    def epochs(self, engine: Engine) -> Iterator[list[Delivery]]:
        """Read the stream that is behind; a distribution epoch ends when enough tuples wait, at the time that both have
        reached."""
        sources = [iter(side.rows(sort=self._sort)) for side in self._sides]
        ended = [False, False]
        bounds = self._config.query.bounds
        size = EpochSize(self._config.cluster.epoch_tuples, 0 if bounds.count_windows else bounds.retention_us)
        while not all(ended):
            times = engine.times_us
            stream = LEFT if not ended[LEFT] and (ended[RIGHT] or times[LEFT] <= times[RIGHT]) else RIGHT
            batch = next(sources[stream], None)
            if batch is None:
                ended[stream] = True
                engine.end(stream)
            else:
                engine.read(stream, batch)
                self._progress.advance(len(batch))
            if (waiting := engine.waiting_tuples) >= size.tuples:
                until_us = min(engine.times_us)
                deliveries = engine.deliver(until_us)
                size.closed(until_us, waiting - engine.waiting_tuples)
                yield deliveries
        yield engine.deliver()

    def _run_here(self, gathered: list[OutputGatherer] | None, write: Write | None) -> tuple[Proof, int]:
        """Also how many matches there are."""
        engine, started = self.engine(self._threads), time.monotonic()

        def work(slave: int) -> Callable[[Delivery], None]:
            joiner = engine.joiners[slave]
            if gathered is None:
                return joiner.count
            return lambda delivery: _collect(joiner, delivery, gathered[slave], write)

        works = [work(s) for s in range(self._threads)]
        self._progress.begin(sum(side.table.num_rows for side in self._sides))
        epochs = self.epochs(engine)
        with report_compilations(self._progress.compiling):
            first = next(epochs)
            if first[0].last and self._threads == 1:
                works[0](first[0])
            else:
                _join_in_threads(works, itertools.chain([first], epochs))
        if gathered is None:
            for joiner in engine.joiners:
                joiner.collected = joiner.produced
        _LOG.debug("%d pairs, joined in %.3f s", engine.count, time.monotonic() - started)
        return Proof(engine.count, engine.digest, engine.check_ledger()), engine.matches


def _join_in_threads(works: list[Callable[[Delivery], None]], epochs: Iterable[list[Delivery]]) -> None:
    """Each join module in a thread of its own, while the calling thread prepares the next epochs."""
    waiting: deque[list[Future[None]]] = deque()
    with join_settings(), ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1, f"swjoin-{s}")) for s in range(len(works))]
        try:
            for deliveries in epochs:
                waiting.append([p.submit(w, d) for p, w, d in zip(pools, works, deliveries, strict=True)])
                if len(waiting) > _AHEAD:
                    _wait(waiting.popleft())
            while waiting:
                _wait(waiting.popleft())
        finally:
            for pool in pools:  # here, too: an interrupt inside the stack's own exit would leave a thread waiting
                pool.shutdown(wait=False, cancel_futures=True)


def _wait(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()


def _collect(joiner: Joiner, delivery: Delivery, gathered: OutputGatherer, write: Write | None) -> None:
    for pairs in joiner.pairs_of(delivery):
        gathered.add(pairs)
        if write is not None:
            write(gathered)

"""Joins of whole tables: `swjoin.join`, `swjoin.count`.

What: two inputs in, an Arrow table of pairs or their number and digest out; in this process, or on MPI ranks of this machine.
Why: the common case takes one call. In this process the calling thread reads and partitions one distribution epoch while the
join modules, a thread each, join the one before.
Stays out: what the arguments mean (`config.arguments`), tuples and output columns (`api.table_input`), streams
(`api.streaming`), proofs (`api.proofs`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Unpack

from swjoin.api.embedded_join import Engine, Joiner
from swjoin.api.inputs import Input
from swjoin.api.materialize import OutputGatherer
from swjoin.api.proofs import remember
from swjoin.api.result_frames import converter
from swjoin.api.table_input import JoinInput, ReopenedInputs, open_sides
from swjoin.config.arguments import CLUSTER_PARTITIONS, JOIN_PARTITIONS, Request, check_workers
from swjoin.config.options import CountOptions, JoinOptions, complete, takes_options
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, SourceBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import UserError, spelled
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import Proof
from swjoin.expressions.compiler import compile_text
from swjoin.monitor.process_settings import join_settings
from swjoin.runtime.in_process import default_slave_count
from swjoin.runtime.kernel_preload import report_compilations
from swjoin.runtime.plausibility import Answer, warn, warnings_of

if TYPE_CHECKING:
    import pyarrow as pa

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

    left, right: Arrow tables, record batches or readers, pandas, polars, anything with `__arrow_c_stream__`, or paths of files
    or directories (Parquet, CSV, Arrow IPC). They are held in memory; in any row order. on: the join columns of both sides, or
    left_on and right_on. within="6h" means lower="-6h", upper="6h"; exclusive: bounds that do not count themselves. time_unit:
    of integer time columns (s, ms, us, ns); left_time_unit, right_time_unit: of one side's. assume_timezone: the zone in which
    times without a zone are local times, such as "Europe/Berlin". columns: other columns to keep (default: all). ids: also
    left_id, right_id, left_ts, right_ts (microseconds); ids are positions unless left_id, right_id name columns.
    max_out_of_order: rows that lie further behind an earlier one are late (default: no row is, whatever the order); late:
    "error" or "drop", also for rows without a time. memory: limit of the window state of a thread or rank, such as "4GB".
    threads: join modules in this process (default: one per core but one, at most four). ranks: start so many MPI ranks on this
    machine instead, at least 3. returns: "arrow"; "pandas" or "polars", a data frame; "same", what the left input is: a data
    frame or LazyFrame of these, else an Arrow table.

    Output columns: the key once, named as on the left, then every other column of both sides, prefixed left_ or right_ where
    names clash. The order of the rows is not specified. `swjoin.proof(table)` has count, digest and ledger of an Arrow table;
    data frames, which can be changed, have no proof.

    Raises UserError for input or arguments that are wrong, RunFailed when the join fails.
    """
    given = complete(join, options)
    with spelled("arguments"):
        convert = converter(given.pop("returns"), left)
    return convert(_join(given, left, right, materialise=True))


@takes_options(CountOptions)
def count(left: Input, right: Input, **options: Unpack[CountOptions]) -> Proof:
    """Number and digest of the pairs that `join` would return for these arguments, without making them; and the ledger.

    Only keys, times and ids are read. Raises UserError for input or arguments that are wrong, RunFailed when it fails.
    """
    found: Proof = _join(complete(count, options), left, right, materialise=False)
    return found


def _join(options: dict[str, Any], left: object, right: object, *, materialise: bool) -> Any:
    """A table, or a Proof without one."""
    threads, ranks = options["threads"], options["ranks"]
    with spelled("arguments"):
        request = Request.from_options(options)
        if request.late == "side":
            raise UserError("late: 'side' needs a place for late rows, which a table does not have; use swjoin.WindowJoin")
        check_workers(threads, ranks)
        *sides, plan = open_sides(request, left, right, materialise=materialise)
        both = (sides[LEFT], sides[RIGHT])
        partitions = JOIN_PARTITIONS if ranks is None else CLUSTER_PARTITIONS
        if threads is None and ranks is None:
            few = sum(side.table.num_rows for side in both) <= _FEW_ROWS
            threads, partitions = (1, 1) if few else (default_slave_count(), partitions)
        config = request.config(materialise=materialise, partitions=partitions)
        if any(side.untyped for side in both):  # no pairs, and no types for a predicate
            config = dataclasses.replace(config, queries=(dataclasses.replace(config.query, where=None),))
        gathered = [OutputGatherer(plan, both) for _ in range(threads or 1)] if materialise else None
        if ranks is not None:
            from swjoin.api.mpi_join import join_on_ranks

            found, matches = join_on_ranks(config, both, ranks, gathered[0] if gathered else None, sort=_sorts(request))
        else:
            found, matches = _join_here(config, both, threads or 1, gathered, sort=_sorts(request))
        found = dataclasses.replace(found, warnings=tuple(_warnings(config, found, both, matches, sort=_sorts(request))))
    warn(found.warnings, 3)
    if gathered is None:
        return found
    return _as_table(plan.schema, gathered, found, both)


def _warnings(
    config: RunConfig, found: Proof, sides: tuple[JoinInput, JoinInput], matches: int | None, *, sort: bool
) -> list[str]:
    left, right = sides
    answer = Answer(
        config.query,
        config.time,
        (found.ledger.left, found.ledger.right),
        (left.codec.time_unit, right.codec.time_unit),
        (left.time, right.time),
        matches,
        (left.unread, right.unread),
    )
    return warnings_of(answer, ReopenedInputs(sides, sort=sort))


def _sorts(request: Request) -> bool:
    """Whether rows are sorted by time; with a declared bound they are read in their own order."""
    return request.max_out_of_order_us is None


def _as_table(schema: pa.Schema, gathered: list[OutputGatherer], found: Proof, sides: tuple[JoinInput, JoinInput]) -> pa.Table:
    import pyarrow as pa

    blocks = [block for part in gathered for block in part.finish()]
    if any(side.ids is not None for side in sides):
        found = dataclasses.replace(found, digest=format_digest(sum(part.digest for part in gathered)))
    table = pa.concat_tables(blocks) if blocks else schema.empty_table()
    remember(table, found)
    return table


# ---------------------------------------------------------------- in this process


def _join_here(
    config: RunConfig, sides: tuple[JoinInput, JoinInput], threads: int, gathered: list[OutputGatherer] | None, *, sort: bool
) -> tuple[Proof, int]:
    """Also how many matches there are."""
    codecs = sides[LEFT].codec, sides[RIGHT].codec
    where = compile_text(config.query.where, *codecs, count_windows=config.query.bounds.count_windows)
    layouts = codecs[LEFT].layout, codecs[RIGHT].layout
    engine = Engine(config, layouts, slaves=threads, result_bytes=_RESULT_BYTES, where=where, ids_alone=not config.sink.ids)

    def work(slave: int) -> Callable[[Delivery], None]:
        joiner = engine.joiners[slave]
        if gathered is None:
            return joiner.count
        return lambda delivery: _collect(joiner, delivery, gathered[slave])

    works = [work(s) for s in range(threads)]
    epochs = _epochs(engine, config, [iter(side.rows(sort=sort)) for side in sides])
    with report_compilations():
        first = next(epochs)
        if first[0].last and threads == 1:
            works[0](first[0])
        else:
            _join_in_threads(works, itertools.chain([first], epochs))
    if gathered is None:
        for joiner in engine.joiners:
            joiner.collected = joiner.produced
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


def _collect(joiner: Joiner, delivery: Delivery, gathered: OutputGatherer) -> None:
    for pairs in joiner.pairs_of(delivery):
        gathered.add(pairs)


def _epochs(engine: Engine, config: RunConfig, sources: list[Iterator[SourceBatch]]) -> Iterator[list[Delivery]]:
    """Read the stream that is behind; a distribution epoch ends when enough tuples wait, at the time that both have reached."""
    ended = [False, False]
    enough = config.cluster.epoch_tuples
    while not all(ended):
        times = engine.times_us
        stream = LEFT if not ended[LEFT] and (ended[RIGHT] or times[LEFT] <= times[RIGHT]) else RIGHT
        batch = next(sources[stream], None)
        if batch is None:
            ended[stream] = True
            engine.end(stream)
        else:
            engine.read(stream, batch)
        if engine.waiting_tuples >= enough:
            yield engine.deliver(min(engine.times_us))
    yield engine.deliver()

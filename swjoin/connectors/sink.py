"""Protocol of sinks: Parquet or CSV files, a Kafka topic, or count and digest only.

What: `Sink`, `CountSink`, `QuerySinks`, `open_sink`, `open_sinks`.
Why: the collector writes pairs and commits generations; the sink decides the format, and that incomplete output never looks
complete.
Stays out: count and digest themselves (`cluster.collector`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from swjoin.core.arrow_views import array_of
from swjoin.core.batch import I64, Pairs, ResultRows
from swjoin.core.errors import RunFailed, UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.kafka.sink import KafkaTopic
    from swjoin.connectors.output_columns import AnyColumns, QueryColumns, ResultColumns

_OTHER_FILES: Final = 256  # inputs, logs, sockets


class Sink(Protocol):
    """Writes pairs. Files get their names at `close`, or end in `.incomplete` after `abort`.

    In a run with checkpoints files get their names with each checkpoint, and `abort` leaves these. generation: number of
    checkpoints before the pairs; two generations may be open at once.
    """

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None: ...

    def seal(self, generation: int) -> list[Path]:
        """All pairs of this generation have been written. Returns its files: closed, not yet durable, under temporary names."""
        ...

    def sync(self, files: Sequence[Path]) -> None:
        """Make sealed files durable. Callable from another thread."""
        ...

    def name_of(self, file: Path) -> str:
        """The final name of a sealed file."""
        ...

    def publish(self, names: Sequence[str], generation: int) -> None:
        """Give sealed files of this generation their final names."""
        ...

    def restore(self, names: Sequence[str], generation: int) -> None:
        """At the start, and after a crash: exactly these files are the results before this generation."""
        ...

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        """Complete all files, without giving them their names: those of no sink appear before those of all are whole."""
        ...

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """whole: count, digest and ledger of the result, for the proofs in files."""
        ...

    def abort(self, *, started: bool = True) -> None:
        """begun: whether the run had started; if not, nothing is left behind."""
        ...


class CountSink:
    """Receives no pairs: the report has count and digest, or consumers read the rows (`connectors.flight.result_stream`)."""

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None:
        assert isinstance(pairs, ResultRows), "a count sink was sent pairs"  # rows are counted where they arrive

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None:
        """Nothing to write."""

    def seal(self, generation: int) -> list[Path]:
        return []

    def sync(self, files: Sequence[Path]) -> None:
        """Nothing to sync."""

    def name_of(self, file: Path) -> str:
        return file.name

    def publish(self, names: Sequence[str], generation: int) -> None:
        """Nothing to publish."""

    def restore(self, names: Sequence[str], generation: int) -> None:
        """Nothing to restore."""

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing to complete."""

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing to close."""

    def abort(self, *, started: bool = True) -> None:
        """Nothing to remove."""


class RowSink(Sink, Protocol):
    """A sink that can be given decoded rows."""

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None: ...


class QuerySinks:
    """A sink of each of several queries, as one. Files are known by the name of their query, which is that of their folder, and
    their own."""

    def __init__(self, sinks: Mapping[str, RowSink], plan: QueryColumns) -> None:
        """sinks: by the names of their queries."""
        self._sinks, self._plan = dict(sinks), plan
        self._ordered = list(self._sinks.values())
        self._families = {family[0]: family for family in plan.families}

    def wrapped(self, wrap: Callable[[str, RowSink], RowSink]) -> QuerySinks:
        """With each sink in another one. wrap: takes the query's name."""
        return QuerySinks({name: wrap(name, sink) for name, sink in self._sinks.items()}, self._plan)

    def write_to(self, query: int, rows: Pairs | ResultRows, generation: int) -> None:
        """Rows of a query, or of a family. query: its number, or that of its first one."""
        if not isinstance(rows, ResultRows) or rows.ranks is None:
            self._ordered[query].write(rows, generation)
        elif rows.columns is not None:
            self._write_to_family(query, rows, rows.ranks, generation)

    def _write_to_family(self, query: int, rows: ResultRows, ranks: I64, generation: int) -> None:
        """Sorted by rank, the rows of every query are the first ones, up to some row: they are decoded once."""

        family, order = self._families[query], np.argsort(ranks, kind="stable")
        decoded = self._plan.queries[query][1].decode(rows).take(array_of(order))
        digests = np.concatenate([np.zeros(1, np.uint64), np.cumsum(rows.id[order], dtype=np.uint64)])
        ends = np.searchsorted(ranks[order], np.arange(len(family)), side="right").tolist()
        for member, end in zip(family, ends, strict=True):
            if end:
                self._ordered[member].write_rows(decoded.slice(0, end), generation, int(digests[end]))

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None:
        raise AssertionError("rows of no query")

    def seal(self, generation: int) -> list[Path]:
        return [path for sink in self._ordered for path in sink.seal(generation)]

    def sync(self, files: Sequence[Path]) -> None:
        for name, sink in self._sinks.items():
            sink.sync([file for file in files if file.parent.name == name])

    def name_of(self, file: Path) -> str:
        return f"{file.parent.name}/{self._sinks[file.parent.name].name_of(file)}"

    def publish(self, names: Sequence[str], generation: int) -> None:
        for sink, mine in self._each(names):
            sink.publish(mine, generation)

    def restore(self, names: Sequence[str], generation: int) -> None:
        for sink, mine in self._each(names):
            sink.restore(mine, generation)

    def _each(self, names: Sequence[str]) -> Iterator[tuple[Sink, list[str]]]:
        by_query: dict[str, list[str]] = {query: [] for query in self._sinks}
        for name in names:
            query, _, file = name.partition("/")
            if query not in by_query:
                raise RunFailed(f"results {name}: of no query of this run")
            by_query[query].append(file)
        for query, sink in self._sinks.items():
            yield sink, by_query[query]

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        for sink, mine in self._of_each(whole):
            sink.finish(mine)

    def close(self, whole: dict[str, Any] | None = None) -> None:
        self.finish(whole)
        for sink, mine in self._of_each(whole):
            sink.close(mine)

    def _of_each(self, whole: dict[str, Any] | None) -> Iterator[tuple[Sink, dict[str, Any] | None]]:
        """The proof of a query's rows has its own count and digest."""
        for query, sink in self._sinks.items():
            yield sink, None if whole is None else {**whole, **whole["queries"][query], "queries": None}

    def abort(self, *, started: bool = True) -> None:
        for sink in reversed(self._ordered):  # the first one has made the folder of all
            sink.abort(started=started)


def open_sinks(kind: str, target: Path, plan: AnyColumns, **more: Any) -> Sink:
    """The sink of a run, which for several queries is one for each, in a folder of its own. UserError and the rest as
    `open_sink`."""
    from swjoin.connectors.output_columns import QueryColumns

    if (kafka := more.pop("kafka", None)) is not None:
        from swjoin.connectors.kafka.sink import KafkaBroker, KafkaTopic

        topic = more["topic"] = KafkaTopic(KafkaBroker(kafka))
    if not isinstance(plan, QueryColumns):
        return open_sink(kind, target, plan, **more)
    opened: dict[str, RowSink] = {}
    topics = {} if kafka is None else {name: topic._replace(query=name) for name, _ in plan.queries}
    for each in topics.values():  # before a sink makes its folder
        topic.broker.partitions_of(each.name)
    try:
        if kind != "count":
            _allow_files(plan.going_on)
        for name, columns in plan.queries:
            opened[name] = cast("RowSink", open_sink(kind, target / name, columns, **more | {"topic": topics.get(name)}))
    except BaseException:
        for sink in reversed(opened.values()):
            sink.abort(started=False)
        raise
    return QuerySinks(opened, plan)


def _allow_files(count: int) -> None:
    """Let this process have so many more files open. UserError when the system does not."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < needed:
        raise UserError(
            f"{count} queries have as many files open, and the system allows {hard}",
            remedy="raise the limit (ulimit -n), count the rows, or run fewer queries at once",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def open_sink(
    kind: str,
    target: Path,
    plan: ResultColumns,
    *,
    staged: bool = False,
    resumes: bool = False,
    topic: KafkaTopic | None = None,
    run_id: str | None = None,
    share: tuple[int, int] | None = None,
) -> Sink:
    """The sink of a run. UserError when `target` cannot be written.

    staged: files get their names with checkpoints. resumes: `target` has results from before a crash; `restore` follows.
    run_id: id of the run, for the proofs in files. share: number of this sink, and how many write to the directory `target` or
    to the topic; None: `target` is a file.
    """
    if kind in ("count", "flight"):
        return CountSink()
    if topic is not None:
        from swjoin.connectors.kafka.sink import KafkaSink

        return KafkaSink(topic, plan, target, staged=staged, resumes=resumes, share=share)
    from swjoin.connectors.files.sink import FileSink

    if kind == "csv":
        plan.check_text()
    return FileSink(kind, target, plan, staged=staged, resumes=resumes, run_id=run_id, share=share)

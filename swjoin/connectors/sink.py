"""Where results go: Parquet or CSV files, a Kafka topic, or nowhere but into count and digest.

What: the `Sink` protocol and `open_sink`.
Why: the collector hands over pairs and commits; what a file looks like, and that it never looks whole before it is, is decided
here.
Stays out: count and digest themselves (`cluster.collector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swjoin.core.batch import Pairs

if TYPE_CHECKING:
    from swjoin.config.run import KafkaSinkConfig
    from swjoin.connectors.output_columns import OutputColumns


class Sink(Protocol):
    """Takes pairs; files appear under their names at `close`, or end in `.incomplete` after `abort`.

    Of a run with checkpoints they appear with each checkpoint, and `abort` leaves those that have. generation: how many
    checkpoints come before the pairs; two may be open at once.
    """

    def write(self, pairs: Pairs, generation: int = 0) -> None: ...

    def seal(self, generation: int) -> list[Path]:
        """Every pair of this generation has been written; its files, closed, neither durable nor under their names yet."""
        ...

    def sync(self, files: Sequence[Path]) -> None:
        """Make sealed files durable. May be called in another thread."""
        ...

    def name_of(self, file: Path) -> str:
        """The name that a sealed file will get."""
        ...

    def publish(self, names: Sequence[str], generation: int) -> None:
        """Sealed files of this generation get these, their names."""
        ...

    def restore(self, names: Sequence[str], generation: int) -> None:
        """At the start, and after a crash: these files, and no others, are the results before this generation."""
        ...

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """whole: count, digest and ledger of the result, for files that carry their proof."""
        ...

    def abort(self, *, begun: bool = True) -> None:
        """begun: the run had begun; otherwise nothing is left behind."""
        ...


class CountSink:
    """Wants no pairs: count and digest are in the report, or consumers take the rows (`connectors.flight.result_stream`)."""

    def write(self, pairs: Pairs, generation: int = 0) -> None:
        raise AssertionError("a count sink was sent pairs")

    def seal(self, generation: int) -> list[Path]:
        return []

    def sync(self, files: Sequence[Path]) -> None:
        """Nothing to sync."""

    def name_of(self, file: Path) -> str:
        return file.name

    def publish(self, names: Sequence[str], generation: int) -> None:
        """Nothing to show."""

    def restore(self, names: Sequence[str], generation: int) -> None:
        """Nothing to restore."""

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing to close."""

    def abort(self, *, begun: bool = True) -> None:
        """Nothing to mark."""


def open_sink(
    kind: str,
    target: Path,
    plan: OutputColumns,
    *,
    directory: bool,
    staged: bool = False,
    resumes: bool = False,
    kafka: KafkaSinkConfig | None = None,
    run_id: str | None = None,
) -> Sink:
    """The sink of a run, checked before any work: UserError when `target` cannot be written.

    staged: files appear with checkpoints. resumes: `target` holds what came before a crash; `restore` follows.
    run_id: of the run, for files that carry their proof.
    """
    if kind in ("count", "flight"):
        return CountSink()
    if kafka is not None:
        from swjoin.connectors.kafka.sink import KafkaSink

        return KafkaSink(kafka, plan, target, staged=staged, resumes=resumes)
    from swjoin.connectors.files.sink import FileSink

    if kind == "csv":
        plan.check_text()
    return FileSink(kind, target, plan, directory=directory, staged=staged, resumes=resumes, run_id=run_id)

"""Protocol of sinks: Parquet or CSV files, a Kafka topic, or count and digest only.

What: `Sink`, `CountSink`, `open_sink`.
Why: the collector writes pairs and commits generations; the sink decides the format, and that incomplete output never looks
complete.
Stays out: count and digest themselves (`cluster.collector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from swjoin.core.batch import Pairs, ResultRows

if TYPE_CHECKING:
    from swjoin.config.run import KafkaSinkConfig
    from swjoin.connectors.output_columns import ResultColumns


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


def open_sink(
    kind: str,
    target: Path,
    plan: ResultColumns,
    *,
    staged: bool = False,
    resumes: bool = False,
    kafka: KafkaSinkConfig | None = None,
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
    if kafka is not None:
        from swjoin.connectors.kafka.sink import KafkaSink

        return KafkaSink(kafka, plan, target, staged=staged, resumes=resumes, share=share)
    from swjoin.connectors.files.sink import FileSink

    if kind == "csv":
        plan.check_text()
    return FileSink(kind, target, plan, staged=staged, resumes=resumes, run_id=run_id, share=share)

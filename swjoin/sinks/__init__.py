"""Where results go: Parquet or CSV files, or nowhere but into count and digest.

What: the `Sink` protocol and `open_sink`.
Why: the collector hands over pairs and commits; what a file looks like, and that it never looks whole before it is, is decided
here.
Stays out: count and digest themselves (`cluster.collector`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swjoin.batch import Pairs

if TYPE_CHECKING:
    from swjoin.sinks.plan import OutputPlan


class Sink(Protocol):
    """Takes pairs; files appear under their names at `close`, or end in `.incomplete` after `abort`."""

    def write(self, pairs: Pairs) -> None: ...

    def commit(self, epoch: int) -> None:
        """Every pair of this distribution epoch and before has been written."""
        ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class CountSink:
    """Wants no pairs: count and digest are in the report."""

    def write(self, pairs: Pairs) -> None:
        raise AssertionError("a count sink was sent pairs")

    def commit(self, epoch: int) -> None:
        """Nothing to keep."""

    def close(self) -> None:
        """Nothing to close."""

    def abort(self) -> None:
        """Nothing to mark."""


def open_sink(kind: str, target: Path, plan: OutputPlan, *, directory: bool) -> Sink:
    """The sink of a run, checked before any work: UserError when `target` cannot be written."""
    if kind == "count":
        return CountSink()
    from swjoin.sinks.files import FileSink

    return FileSink(kind, target, plan, directory=directory)

"""Where streams come from: files, the generator, and live streams, all behind the `Source` protocol.

What: `Source`, what the master reads; `LiveSource`, one whose rows come when they come.
Why: the master asks for batches and does not care where they come from.
Stays out: judging rows (`cluster.master.intake`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from swjoin.core.batch import RowLayout, SourceBatch

if TYPE_CHECKING:
    from swjoin.core.key_encoder import Dictionary
    from swjoin.core.row_codec import StreamCodec


class Source(Protocol):
    """One stream, read batch by batch in bounded memory."""

    codec: StreamCodec
    rows_total: int | None  # for progress bars, when the format knows it

    @property
    def layout(self) -> RowLayout | None:
        """Layout of the payload rows, or None when no payload is carried."""
        ...

    def read(self) -> SourceBatch | None:
        """The next rows, or None at the end. UserError for bad input."""
        ...

    def ready(self, patience_s: float) -> bool:
        """Whether `read` would not have to wait; finds out within so many seconds."""
        ...

    def seek(self, row: int) -> None:
        """The next row to be read is the one at this position: as many rows, and no fewer, lie before it."""
        ...

    @property
    def dictionary(self) -> Dictionary | None:
        """Codes of the keys, shared by both streams, or None when keys are their own codes."""
        ...

    def locate(self, row_id: int) -> str:
        """File and row of a row id, for error lines."""
        ...

    def close(self) -> None:
        """Let go of files and threads."""
        ...


class LiveSource(Source, Protocol):
    """A stream from outside. `ready` tells whether `read` has something; without it `read` may wait for ever.

    What has been read has to be found again after a recovery: `position` says where the source is after the last batch read,
    `go_on` brings it back there, and `forget` tells what will not be asked for again. `seek(0)`, without a position, is the
    beginning.
    """

    def position(self) -> dict[str, Any]:
        """Where it is, ready for JSON; kept in checkpoints."""
        ...

    def go_on(self, row: int, position: dict[str, Any]) -> None:
        """The next row to be read is the one after this position, at which so many rows had been read. RunFailed if it cannot
        be had any more."""
        ...

    def forget(self, row: int) -> None:
        """A checkpoint is durable: no row before this one will be read again."""
        ...

    def done(self) -> None:
        """The run is complete: nothing of it will be read again."""
        ...

    def status(self) -> dict[str, float]:
        """Figures of its own for whoever watches the run, such as a consumer's lag: name with its unit -> value."""
        ...


def is_live(source: Source) -> TypeGuard[LiveSource]:
    return hasattr(source, "go_on")

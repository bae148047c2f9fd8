"""Where streams come from: files and the generator, all behind the `Source` protocol.

What: `Source`, what the master reads.
Why: the master asks for batches and does not care where they come from.
Stays out: judging rows (`cluster.intake`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from swjoin.batch import RowLayout, SourceBatch

if TYPE_CHECKING:
    from swjoin.sources.codec import StreamCodec
    from swjoin.sources.keys import Dictionary


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

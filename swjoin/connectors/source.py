"""Protocols of sources.

What: `Source`, which a gateway reads; `InputSource`, of a plan; `SplitSource`, which several gateways read; `LiveSource`, a
stream without a known end; `SharedSource`, such a stream in splits that several gateways read; `BATCH_ROWS`.
Why: gateways read batches and do not depend on their technology.
Stays out: null keys and late rows (`cluster.gateway.intake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from swjoin.core.batch import RowLayout, SourceBatch

if TYPE_CHECKING:
    from swjoin.connectors.times import TimeColumn
    from swjoin.core.key_encoder import Dictionary
    from swjoin.core.row_codec import StreamCodec
    from swjoin.core.splits import Split


BATCH_ROWS = 65_536  # of one `read`, about
SPLIT_ROWS = 2 * BATCH_ROWS  # of a split that is made up, about, as of usual row groups: each costs two messages and a wait


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
        """Whether `read` would return at once; waits up to this long for it."""
        ...

    def seek(self, row: int) -> None:
        """Continue at the row at this position, counted from 0. RunFailed when there are fewer rows."""
        ...

    @property
    def dictionary(self) -> Dictionary | None:
        """Codes of the keys, shared by both streams, or None when keys are their own codes."""
        ...

    def locate(self, row_id: int) -> str:
        """File and row of a row id, for error messages."""
        ...

    def close(self) -> None:
        """Close files and end threads."""
        ...


class SplitSource(Source, Protocol):
    """A bounded stream that several processes may read, each some of its splits.

    A source is read by `open_split` or from its start (`Source.seek`); each continues where it is asked to, whatever was read
    before. Ids, times and `locate` are the same both ways.
    """

    @property
    def why_whole(self) -> str | None:
        """Why one gateway has to read the whole input; None: it has splits. Reads no rows."""
        ...

    def splits(self, reach_us: int) -> list[Split] | None:
        """All rows in splits, in the order of the input; none without rows. None: rows or times are unknown without reading
        (`why_whole`).

        reach_us: time that a split should not exceed. One that does is cut into ranges as of `range_ends`.
        """
        ...

    def open_split(self, split: Split, skip: int = 0) -> int:
        """Continue with the rows of this split, from its row number `skip` on; after them `read` returns None.

        Returns the greatest time of all rows of the input before the next one, BEGIN_OF_TIME_US if none has a time. split: of
        `splits`, also those of another source of the same input, or one with rows = -1.
        """
        ...

    def origin_us(self) -> int | None:
        """Time of the first row that has one; None if none has. Reads only the start of the input, unless rows are sorted."""
        ...


class LiveSource(Source, Protocol):
    """A stream of rows that arrive during the run. `read` may wait for ever unless `ready` has returned True.

    A recovery reads rows again: `position` is the source's position of the last batch, `resume_at` goes back to
    it, and `forget` releases rows that no recovery needs. `seek(0)` returns to the start.
    """

    def position(self) -> dict[str, Any]:
        """The position after the last batch read, as JSON values; stored in checkpoints."""
        ...

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        """Continue after this position, up to which `row` rows had been read. RunFailed when the rows after it are gone."""
        ...

    def forget(self, row: int) -> None:
        """A checkpoint is durable: rows before this one will not be read again."""
        ...

    def done(self) -> None:
        """The run is complete: no row will be read again."""
        ...

    def status(self) -> dict[str, float]:
        """Metrics of the source, such as consumer lag: name with unit -> value."""
        ...


class InputSource(Source, Protocol):
    """An input of a plan: rows with columns, without keys and payload. time: its time column."""

    time: TimeColumn


class SharedSource(LiveSource, Protocol):
    """A live stream in splits with fixed numbers, which several gateways read: gateway g of n has the splits g, g + n, ...

    There is no order of all rows: unless they have an id column, ids are those of `core.splits.row_ids`.
    """

    shared: bool  # since `take_share`
    split_count: int  # when it was opened

    def first_position(self) -> dict[str, Any]:
        """Where all splits begin, as JSON values: the same for all gateways."""
        ...

    def take_share(self, gateway: int, gateways: int, first: dict[str, Any]) -> None:
        """Before anything is read: read the splits of this gateway alone. gateways: that read the stream; one above them has
        none, and its stream has ended. first: as of `first_position`, perhaps in another process."""
        ...

    def taken_over(self, positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The position of this share. positions: of all gateways of a checkpoint, perhaps with other shares."""
        ...

    def forget_shared(self, positions: Sequence[dict[str, Any]]) -> None:
        """As `forget`. positions: of all gateways of that checkpoint."""
        ...


def is_live(source: Source) -> TypeGuard[LiveSource]:
    return hasattr(source, "resume_at")


def is_shared(source: Source) -> TypeGuard[SharedSource]:
    return hasattr(source, "take_share")


def is_split(source: Source) -> TypeGuard[SplitSource]:
    return hasattr(source, "open_split")

"""The memory of one join's windows: blocks, directories and payload of both streams, within one limit.

What: `WindowStore`: whether something fits, appending payload, releasing reserves, sizes and peaks; `WindowSizes`.
Why: blocks and payload share `module.window`; every byte of one is missing for the other.
Stays out: what may be dropped (`operators.join_windows`), blocks and pages themselves (`state`).
"""

from __future__ import annotations

from dataclasses import dataclass

from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import RowLayout, TupleBatch
from swjoin.core.errors import MORE_SLAVES, WINDOW_MEMORY, RunFailed
from swjoin.operators.join_step import WindowMemory
from swjoin.state.payload_store import PayloadStore
from swjoin.state.window_state import WindowState


@dataclass(frozen=True)
class WindowSizes:
    """Sizes of one slave's windows. theta_tuples: fine tuning parameter in tuples of both streams; 0: no fine tuning.

    window_bytes: limit of blocks, payload and directories together. in_order: each partition-group's tuples of a stream come in
    time order; otherwise in any order.
    """

    block_tuples: int
    theta_tuples: int
    window_bytes: int
    in_order: bool = True


class WindowStore:
    """Stored tuples of both streams with their payload. layouts: stored payload, or None. owner: name for error messages. band:
    None for an equality."""

    def __init__(
        self, sizes: WindowSizes, layouts: tuple[RowLayout | None, RowLayout | None], owner: str, band: BandKeys | None = None
    ) -> None:
        self.limit_bytes = sizes.window_bytes
        self.state = WindowState(
            sizes.block_tuples, sizes.theta_tuples, sizes.window_bytes, owner, in_order=sizes.in_order, band=band
        )
        self.payload = tuple(None if layout is None else PayloadStore(layout, sizes.window_bytes) for layout in layouts)
        self._peak_bytes = 0
        self.limit_blocks()

    @property
    def payload_bytes(self) -> int:
        return sum(store.nbytes for store in self.payload if store is not None)

    @property
    def nbytes(self) -> int:
        """Bytes in use: blocks, pages of payload, mini-partition-groups, directories."""
        return self.state.nbytes + self.payload_bytes

    # ------------------------------------------------------------ admission

    def fits(self, batches: tuple[TupleBatch, ...], first_stream: int, blocks: int) -> bool:
        """Whether payload of these batches, one per stream from `first_stream` on, and so many blocks fit."""
        rows = [(self.payload[stream], batch.rows) for stream, batch in enumerate(batches, first_stream)]
        payload = sum(store.more_for(r) for store, r in rows if store is not None and r is not None)
        return self.nbytes + blocks * self.state.block_bytes + payload <= self.limit_bytes

    def trim(self) -> None:
        """Release the reserves of payload, for blocks or other payload."""
        for store in self.payload:
            if store is not None:
                store.trim()
        self.limit_blocks()

    def append_without_reserve(self) -> None:
        """Make the next append of payload grow its buffers by no more than it needs."""
        for store in self.payload:
            if store is not None:
                store.tight = True

    def append_payload(self, stream: int, batch: TupleBatch) -> int:
        """Store a batch's payload, which must fit; returns the reference of its first row. `limit_blocks` must follow."""
        store = self.payload[stream]
        if store is None or batch.rows is None or len(batch) == 0:
            return 0
        return store.append(batch.rows, int(batch.ts.max()))

    def limit_blocks(self) -> None:
        """Limit blocks to what payload leaves."""
        self.state.limit_blocks(self.payload_bytes)

    def full(self) -> RunFailed:
        held = f"{sum(self.state.tuples())} tuples, {self.nbytes} bytes, of these {self.payload_bytes} payload"
        return RunFailed(
            (f"its windows ({held}) would exceed ", WINDOW_MEMORY, f" ({self.limit_bytes} bytes) by what has come"),
            subject=self.state.owner,
            remedy=(MORE_SLAVES, "raise ", WINDOW_MEMORY, ", or use a shorter window"),
        )

    # ------------------------------------------------------------ measures and invariants

    def record_peak(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self.nbytes)

    def memory(self) -> WindowMemory:
        return WindowMemory(
            max(self._peak_bytes, self.nbytes),
            self.state.peak_block_count * self.state.block_bytes,
            sum(store.peak_bytes for store in self.payload if store is not None),
            self.nbytes,
            sum(self.state.tuples()),
        )

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant of blocks, directories, payload or the limit."""
        self.state.validate()
        for store in self.payload:
            if store is not None:
                store.validate()
        stored = self.nbytes - self.state.directory_bytes  # tuning may add directories at the limit
        assert stored <= self.limit_bytes, f"windows of {stored} bytes, the limit is {self.limit_bytes}"

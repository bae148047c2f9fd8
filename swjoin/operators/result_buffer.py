"""The result buffer of one join: rows that kernels write, taken in pieces of bounded size.

What: `ResultBuffer`: `take` copies rows out, with their payload.
Why: the number of rows is bounded by the buffer, but tails of payload have any length; a piece must fit into a message.
Stays out: which rows match (`state.join_kernel`, `state.unmatched_kernel`).
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import BOTH, I64, LEFT, RIGHT, Pairs, PayloadRows
from swjoin.core.sequence_numbers import with_times
from swjoin.state.arrays import new_output
from swjoin.state.payload_store import PayloadStore

TAIL_BYTES = 64 << 20  # of payload of variable length in one piece, unless a single row has more


class ResultBuffer:
    """Rows of a step that have not been taken. capacity: most rows; 0: rows are counted and not written.

    payload: where rows of either stream lie, or None. ids_alone: only ids are written. count_windows: times in `output` are
    sequence numbers.
    """

    def __init__(
        self, capacity: int, payload: tuple[PayloadStore | None, ...], *, ids_alone: bool, count_windows: bool
    ) -> None:
        self.capacity = capacity
        self.tail_bytes = TAIL_BYTES
        self.output = new_output(capacity)
        self._payload = payload
        self._ids_alone = ids_alone
        self._count_windows = count_windows
        self._taken = 0
        self._side = BOTH
        self.knows_origins = False  # whether partition-groups of rows are asked for
        self._origins: I64 | None = None  # of the rows in `output`
        self._piece = slice(0, 0)  # taken last

    @property
    def origins(self) -> I64 | None:
        """Partition-groups of the rows that were taken last, if they were told."""
        return None if self._origins is None else self._origins[self._piece]

    def came_from(self, origins: I64) -> None:
        """Partition-groups of all rows in the buffer, int64 (rows,)."""
        assert len(origins) == int(self.output.used[0]), f"{len(origins)} origins of {int(self.output.used[0])} rows"
        self._origins = origins

    @property
    def has_rows(self) -> bool:
        """Rows have not been taken yet."""
        return self._taken < int(self.output.used[0])

    def clear(self) -> None:
        self.output.used[0] = self._taken = 0
        self._origins = None

    def take(self, side: int) -> Pairs | None:
        """The next piece, or None. side: BOTH; or LEFT or RIGHT for rows of that stream alone."""
        start, self._side = self._taken, side
        if not self.has_rows:
            return None
        self._taken = stop = self._end_of_piece(start, side)
        self._piece = slice(start, stop)
        out = self.output
        ids = out.id[LEFT, start:stop].copy(), out.id[RIGHT, start:stop].copy()
        if self._ids_alone:
            return Pairs(out.key[:0], out.key[:0], out.key[:0], *ids, side=side)
        rows: list[PayloadRows | None] = [
            None if store is None or side == 1 - stream else store.gather(out.ref[stream, start:stop])
            for stream, store in enumerate(self._payload)
        ]
        pairs = Pairs(
            out.key[start:stop].copy(),
            out.ts[LEFT, start:stop].copy(),
            out.ts[RIGHT, start:stop].copy(),
            *ids,
            rows[LEFT],
            rows[RIGHT],
            side,
        )
        return with_times(pairs) if self._count_windows else pairs

    def take_rest(self) -> Pairs | None:
        """The next piece of the rows that `take` left."""
        return self.take(self._side)

    def _end_of_piece(self, start: int, side: int) -> int:
        """End of the rows whose tails are at most `tail_bytes` together; one row at least."""
        end = int(self.output.used[0])
        stores = [(stream, s) for stream, s in enumerate(self._payload) if s is not None and side != 1 - stream]
        if self._ids_alone or sum(s.longest_tail for _, s in stores) * (end - start) <= self.tail_bytes:
            return end
        sizes = sum((s.tail_sizes(self.output.ref[stream, start:end]) for stream, s in stores), np.int64(0))
        return min(end, start + max(1, int(np.searchsorted(np.cumsum(sizes), self.tail_bytes, side="right"))))

    def validate(self) -> None:
        used = int(self.output.used[0])
        assert 0 <= self._taken <= used <= self.capacity, f"{self._taken} rows taken of {used}, the buffer has {self.capacity}"

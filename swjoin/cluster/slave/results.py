"""What an instance sends to the sinks: result chunks, each to the sink with the fewest to take; the end of an epoch to all.

What: `ResultOutlet`: the choice of a sink, counts and digests by sink, and credit.
Why: with several sinks none is behind while another one has nothing to do, however few instances there are; and ranks that play
an instance and a sink must not wait for each other inside sends.
Stays out: making chunks (`cluster.slave.slave`), what sinks do with them (`cluster.collector`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from swjoin.cluster.messages import Granted
from swjoin.cluster.role import Effect, Received, RoleId, Send, sink_of, sink_role
from swjoin.core.data_messages import ResultChunk
from swjoin.core.query_sums import NamedQueries, QuerySums

BUFFERS_AHEAD = 4  # full result buffers that a sink has not taken
_CHUNK_BYTES = 1 << 14  # what a chunk without pairs counts for


def receipts(outlet: ResultOutlet, effects: Iterable[Effect]) -> list[Received]:
    """What the sinks answer to these effects when they take every chunk at once: for slaves that are run without sinks."""
    chunks = (e for e in effects if isinstance(e, Send) and isinstance(e.message, ResultChunk))
    return [Received(chunk.to, Granted(-1, outlet.sent(chunk.to))) for chunk in chunks]


class ResultOutlet:
    """The edge from one instance to all sinks. buffer_bytes: of a full chunk (`module.result_buffer`). of_rows: the
    result has rows that are no pairs. Final chunks then say what was sent, as they do for each of several sinks. queries: of
    which this instance brings forth the result; a step of its work may send a chunk for each."""

    def __init__(
        self,
        sink_count: int,
        buffer_bytes: int,
        *,
        of_rows: bool = False,
        queries: int = 1,
        named: NamedQueries | None = None,
    ) -> None:
        """named: queries of the run; None: none of them has a name."""
        self._queries, self._named = max(1, queries), named or NamedQueries(0)
        self._sums = of_rows or sink_count > 1
        self._most_bytes = BUFFERS_AHEAD * (_CHUNK_BYTES + buffer_bytes)
        self._ahead: list[deque[int]] = [deque() for _ in range(sink_count)]  # bytes of chunks that a sink has not taken
        self._ahead_bytes = [0] * sink_count
        self._taken = [0] * sink_count  # chunks
        self._pairs = [0] * sink_count  # since the start
        self._of_epoch = [QuerySums(self._named.count) for _ in range(sink_count)]  # with `sums`, see `ResultChunk.sent`

    def send(self, chunk: ResultChunk) -> list[Effect]:
        """A chunk with pairs of the open epoch."""
        sink = self._emptiest()
        self._count(sink, chunk)
        return [self._send(sink, chunk)]

    def end(self, chunk: ResultChunk) -> list[Effect]:
        """The final chunk of an epoch: its pairs to one sink, its sums to the first one, its end to all."""
        if not self._sums:
            return [self._send(0, chunk)]
        chosen = self._emptiest()
        self._count(chosen, chunk)
        effects: list[Effect] = []
        for sink, sums in enumerate(self._of_epoch):
            pairs = chunk.pairs if sink == chosen else None
            part = replace(chunk, pairs=pairs, sent=sums.to_table())
            if sink:
                part = replace(part, results=None, metrics=None, delay_histogram=None, edges=None)
            effects.append(self._send(sink, part))
        self._of_epoch = [QuerySums(self._named.count) for _ in self._of_epoch]
        return effects

    def _emptiest(self) -> int:
        return min(range(len(self._ahead)), key=lambda sink: (self._ahead_bytes[sink], self._pairs[sink]))

    def _count(self, sink: int, chunk: ResultChunk) -> None:
        if not self._sums or chunk.pairs is None:
            return
        self._named.add(self._of_epoch[sink], chunk.pairs, chunk.query)
        self._pairs[sink] += len(chunk.pairs)

    def _send(self, sink: int, chunk: ResultChunk) -> Send:
        nbytes = _CHUNK_BYTES + (0 if chunk.pairs is None else chunk.pairs.nbytes)
        self._ahead[sink].append(nbytes)
        self._ahead_bytes[sink] += nbytes
        return Send(sink_role(sink), chunk)

    def granted(self, sender: RoleId, credit: Granted) -> None:
        """A sink has taken so many chunks."""
        sink = sink_of(sender)
        taken, ahead = credit.consumed - self._taken[sink], self._ahead[sink]
        assert 0 <= taken <= len(ahead), f"sink {sink}: {credit.consumed} chunks taken, {self.sent(sender)} sent"
        for _ in range(taken):
            self._ahead_bytes[sink] -= ahead.popleft()
        self._taken[sink] = credit.consumed

    def sent(self, to: RoleId) -> int:
        """Chunks sent to this sink since the start."""
        return self._taken[sink_of(to)] + len(self._ahead[sink_of(to)])

    @property
    def waits(self) -> bool:
        """Whether some sink has so much to take that nothing may be joined."""
        return max(self._ahead_bytes) >= self._most_bytes

    @property
    def idle(self) -> bool:
        """The sinks have taken everything."""
        return not any(self._ahead)

    def validate(self) -> None:
        for sink, ahead in enumerate(self._ahead):
            assert self._ahead_bytes[sink] == sum(ahead), f"sink {sink}: wrong count of bytes ahead"
            before = sum(list(ahead)[: -self._queries])
            assert before < self._most_bytes, f"sink {sink}: a chunk was sent with {before} bytes ahead"

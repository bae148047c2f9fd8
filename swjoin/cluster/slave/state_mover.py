"""A slave's side of state movements: export and import of partition-groups (paper section IV-C, "state-mover").

What: `StateMover` executes the master's orders in bounded pieces, one chunk at a time, between pieces of join work.
Why: a chunk is sent only when its consumer has asked for it, so memory is bounded on both sides, and two slaves never block in
sends to each other.
Stays out: content of a chunk (`operators.state_movement`), choice of moves (`policy`, the master).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from swjoin.cluster.messages import StateRequest
from swjoin.cluster.role import MASTER, Effect, Send, slave_role
from swjoin.cluster.slave.text_keys import TextKeys
from swjoin.core.batch import RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery, MoveEnd, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId, QueryId, SlaveId
from swjoin.operators.join_operator import IncomingGroup, JoinOperator, MoveId, OutgoingGroup
from swjoin.operators.join_step import Work
from swjoin.operators.state_movement import take_group

_CREDITS = 2  # chunks in flight or waiting at the consumer: one is installed while the next one travels


@dataclass
class _Leaving:
    move_id: MoveId
    started_us: int
    departure: OutgoingGroup | None = None  # None: waits for the end of the current delivery


@dataclass
class _Coming:
    group: GroupId
    supplier: SlaveId
    started_us: int
    arrival: IncomingGroup | None = None  # None: before the first chunk
    chunks: deque[StateChunk] = field(default_factory=deque)


class StateMover:
    """All state movements of one slave. chunk_bytes: approximate limit of a chunk's size."""

    def __init__(
        self,
        slave: SlaveId,
        query: QueryId,
        join: JoinOperator,
        layouts: tuple[RowLayout | None, RowLayout | None],
        chunk_bytes: int,
        keys: TextKeys,
    ) -> None:
        self.keys = keys
        self._slave, self._query, self._join = slave, query, join
        self._layouts, self._chunk_bytes = layouts, chunk_bytes
        self._leaving: dict[int, _Leaving] = {}  # by move
        self._coming: dict[int, _Coming] = {}
        self._credits: dict[int, int] = {}  # by move
        self._newest_move = -1  # of the exports, whose orders arrive by number

    # ------------------------------------------------------------ orders and messages

    def order(self, delivery: Delivery, now_us: int) -> list[Effect]:
        """Take the orders of a delivery."""
        effects: list[Effect] = []
        for move, group, consumer in delivery.moves_out.tolist():
            move_id = MoveId(self._query, move, GroupId(group), self._slave, SlaveId(consumer))
            self._leaving[move] = _Leaving(move_id, now_us)
            self._newest_move = move
        for move, group, supplier in delivery.moves_in.tolist():
            self._coming[move] = _Coming(GroupId(group), SlaveId(supplier), now_us)
            effects += [Send(slave_role(supplier), StateRequest(move))] * _CREDITS
        return effects

    def wanted(self, move: int) -> None:
        """Add a consumer's credit for one chunk. It may arrive before the order, or after the last chunk."""
        if move in self._leaving or move > self._newest_move:
            self._credits[move] = self._credits.get(move, 0) + 1

    def received(self, chunk: StateChunk) -> None:
        coming = self._coming.get(chunk.move)
        if coming is None or (coming.supplier, coming.group) != (chunk.supplier, chunk.group):
            raise RunFailed(f"slave {self._slave}: partition-group {chunk.group} came from slave {chunk.supplier} unasked")
        coming.chunks.append(self.keys.received_state(chunk))

    # ------------------------------------------------------------ between two deliveries

    def settle(self, epoch: EpochIndex) -> Work | None:
        """Settle complete imports; returns the first pending tuples among them, which are joined next."""
        for move, coming in list(self._coming.items()):
            if coming.arrival is not None and coming.arrival.complete:
                del self._coming[move]
                work = coming.arrival.settle(epoch)
                if work is not None:
                    return work
        return None

    def begin(self, stream_buffer: deque[Delivery]) -> None:
        """Start the ordered exports: their delivered, unjoined tuples leave the stream buffer."""
        for leaving in self._leaving.values():
            if leaving.departure is not None:
                continue
            parts: tuple[list[TupleBatch], list[TupleBatch]] = ([], [])
            for i in range(len(stream_buffer)):
                stream_buffer[i], *taken = take_group(stream_buffer[i], leaving.move_id.group)
                for stream, batch in enumerate(taken):
                    if batch is not None and len(batch):
                        parts[stream].append(batch)
            left, right = (
                TupleBatch.concat(p) if p else TupleBatch.empty(layout) for p, layout in zip(parts, self._layouts, strict=True)
            )
            leaving.departure = self._join.export_group(leaving.move_id, (left, right), self._chunk_bytes)

    @property
    def wants_to_begin(self) -> bool:
        return any(leaving.departure is None for leaving in self._leaving.values())

    @property
    def wants_to_settle(self) -> bool:
        return any(c.arrival is not None and c.arrival.complete for c in self._coming.values())

    # ------------------------------------------------------------ pieces of work

    @property
    def ready(self) -> bool:
        """Whether `step` has a chunk to send or to install."""
        return self._next_leaving() is not None or self._next_coming() is not None

    def _next_leaving(self) -> _Leaving | None:
        for move, leaving in self._leaving.items():
            if leaving.departure is not None and self._credits.get(move, 0) > 0:
                return leaving
        return None

    def _next_coming(self) -> _Coming | None:
        if not self._join.may_append:
            return None
        return next((c for c in self._coming.values() if c.chunks), None)

    def step(self, now_us: int) -> list[Effect]:
        """Send one chunk, or install one. RunFailed when it does not fit into the windows."""
        leaving = self._next_leaving()
        if leaving is not None and leaving.departure is not None:
            return self._send(leaving, leaving.departure, now_us)
        coming = self._next_coming()
        return [] if coming is None else self._install(coming, now_us)

    def _send(self, leaving: _Leaving, departure: OutgoingGroup, now_us: int) -> list[Effect]:
        move, group = leaving.move_id.move, leaving.move_id.group
        self._credits[move] -= 1
        chunk = self.keys.sent_state(departure.next_chunk())
        effects: list[Effect] = [Send(slave_role(leaving.move_id.consumer), chunk)]
        if departure.done:
            del self._leaving[move], self._credits[move]
            end = MoveEnd(move, group, self._slave, False, departure.tuples, departure.nbytes, leaving.started_us, now_us)
            effects.append(Send(MASTER, end))
        return effects

    def _install(self, coming: _Coming, now_us: int) -> list[Effect]:
        chunk = coming.chunks.popleft()
        if coming.arrival is None:
            coming.arrival = self._join.import_group(chunk)
        arrival = coming.arrival
        arrival.add(chunk)
        if not arrival.complete:
            return [Send(slave_role(coming.supplier), StateRequest(chunk.move))]
        end = MoveEnd(chunk.move, chunk.group, self._slave, True, arrival.tuples, arrival.nbytes, coming.started_us, now_us)
        return [Send(MASTER, end)]

    # ------------------------------------------------------------ measures and invariants

    @property
    def imports(self) -> bool:
        """Whether a partition-group is on its way to this slave."""
        return bool(self._coming)

    @property
    def idle(self) -> bool:
        return not self._leaving and not self._coming

    def waiting_tuples(self, stream: int) -> int:
        """Unjoined tuples of a stream in exports and imports."""
        leaving = sum(x.departure.waiting_tuples(stream) for x in self._leaving.values() if x.departure is not None)
        coming = sum(c.arrival.waiting_tuples(stream) for c in self._coming.values() if c.arrival is not None)
        chunks = sum(len(k.tuples) for c in self._coming.values() for k in c.chunks if k.pending and k.stream == stream)
        return leaving + coming + chunks

    def validate(self) -> None:
        for move, coming in self._coming.items():
            assert len(coming.chunks) <= _CREDITS, f"move {move}: {len(coming.chunks)} chunks wait, {_CREDITS} were asked for"
        assert not set(self._leaving) & set(self._coming), "a slave is supplier and consumer of one move"
        assert all(n >= 0 for n in self._credits.values()), "a chunk was sent without a request"

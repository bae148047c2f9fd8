"""The merger of an instance: the deliveries of all its senders as one delivery after the other.

What: `Merger`: `add` a part, `take` what is ready; the watermarks of both ports.
Why: merging, alignment and heartbeat are one rule: epoch e ends when the final part of e has come from every sender on every
port, and only that moves watermarks. Parts of the open epoch are worked on as they come, in any order.
Stays out: packing and joining (`cluster.slave.stage`, `operators`), credit that is sent (`cluster.slave.stage`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from swjoin.cluster.exchange import EPOCHS_AHEAD, PART_BYTES, PART_ROWS, PARTS_AHEAD, Moved, moves_of
from swjoin.cluster.role import RoleId
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.merged_deliveries import Grouped

READY_ROWS, MERGED_ROWS = PART_ROWS, 131_072  # least (unless the epoch is complete) and most of one `take`, about
_READY_PARTS = PARTS_AHEAD // 2  # of one sender; fewer than it may send without credit, or nobody would go on


@dataclass
class _Feed:
    """One sender on one edge. epoch: of its next part."""

    port: int
    epoch: int
    watermark_us: int = BEGIN_OF_TIME_US
    next_watermark_us: int = BEGIN_OF_TIME_US  # once the open epoch has ended


@dataclass
class Piece:
    """What is ready of an epoch. parts: by port. came: deliveries and their senders, as they came. final: the epoch ends
    with it, and the watermarks of both ports, times_us, hold after it. last: no epoch follows. moves: of
    partition-groups, that start when the epoch has ended."""

    came: list[tuple[RoleId, Delivery]] = field(default_factory=list)
    parts: tuple[list[Grouped], list[Grouped]] = field(default_factory=lambda: ([], []))
    null_keys: tuple[list[TupleBatch], list[TupleBatch]] = field(default_factory=lambda: ([], []))
    final: bool = False
    last: bool = False
    times_us: tuple[int, int] = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
    row_count: int = 0
    moves: tuple[Moved, ...] = ()


class Merger:
    """name: of the instance, for error messages. feeds: port of every (edge, sender). first_epoch: after a crash not 0."""

    def __init__(self, name: str, feeds: Mapping[tuple[int, RoleId], int], first_epoch: int = 0) -> None:
        self._name = name
        self.feeds = {feed: _Feed(port, first_epoch) for feed, port in feeds.items()}
        self.epoch = first_epoch  # the open one
        self._parts: deque[tuple[RoleId, Delivery]] = deque()  # of the open epoch
        self._later: dict[int, list[tuple[RoleId, Delivery]]] = {}
        self._missing = set(self.feeds)  # final parts of the open epoch that have not been taken
        self._waiting: Counter[RoleId] = Counter()  # parts in `_parts`, by sender
        self._finals = 0  # that wait in `_parts`
        self._rows = self._bytes = 0  # that wait in `_parts`
        self._later_bytes = 0  # of all in `_later`: a sum for every part that comes is dear where edges are many
        self.times_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)

    def add(self, sender: RoleId, delivery: Delivery) -> None:
        """Take a part. RunFailed when it is of an unknown sender, of a wrong epoch, or below the sender's watermark."""
        where = f"{self._name}, edge {delivery.edge}, epoch {delivery.epoch}"
        feed = self.feeds.get((delivery.edge, sender))
        if feed is None:
            raise RunFailed(f"{where}: a delivery of role {sender}, which does not send here")
        if delivery.epoch != feed.epoch or delivery.epoch >= self.epoch + EPOCHS_AHEAD:
            raise RunFailed(f"{where}: a delivery while epoch {self.epoch} is open, and epoch {feed.epoch} of role {sender}")
        self._check(delivery, feed, where)
        if delivery.final:
            feed.epoch += 1
        if delivery.epoch == self.epoch:
            self._enter(sender, delivery)
        else:
            self._later.setdefault(delivery.epoch, []).append((sender, delivery))
            self._later_bytes += delivery.nbytes

    def _check(self, delivery: Delivery, feed: _Feed, where: str) -> None:
        """Windows have expired by the watermark, so an older tuple would lose pairs."""
        sides = (delivery.left, delivery.right)
        if len(sides[1 - feed.port]) or len(delivery.null_keys[1 - feed.port]):
            raise RunFailed(f"{where}: tuples for the {STREAM_NAMES[1 - feed.port]} port")
        for batch in (sides[feed.port], delivery.null_keys[feed.port]):
            oldest_us = int(batch.ts.min()) if len(batch) else END_OF_TIME_US
            if oldest_us < feed.watermark_us:
                raise RunFailed(f"{where}: a tuple of time {oldest_us} us is below the watermark of {feed.watermark_us} us")
        if delivery.final:
            time_us = (delivery.left_time_us, delivery.right_time_us)[feed.port]
            if time_us < feed.watermark_us:
                raise RunFailed(f"{where}: the watermark falls from {feed.watermark_us} us to {time_us} us")
            feed.watermark_us = time_us

    def _enter(self, sender: RoleId, delivery: Delivery) -> None:
        self._parts.append((sender, delivery))
        self._waiting[sender] += 1
        self._finals += delivery.final
        self._rows += len(delivery.left) + len(delivery.right)
        self._bytes += delivery.nbytes
        if delivery.final:
            feed = self.feeds[delivery.edge, sender]
            feed.next_watermark_us = (delivery.left_time_us, delivery.right_time_us)[feed.port]

    @property
    def ready(self) -> bool:
        """Whether enough of the open epoch is here: all of it, a part of full size, or several of one sender, which may wait
        for credit."""
        complete = self._finals == len(self._missing) > 0
        several = max(self._waiting.values(), default=0) >= _READY_PARTS
        full = self._rows >= READY_ROWS or self._bytes >= PART_BYTES or several
        return complete or (bool(self._parts) and full)

    def take(self) -> Piece:
        """Up to about `MERGED_ROWS` rows of the open epoch; only if `ready`."""
        piece = Piece()
        while self._parts and piece.row_count < MERGED_ROWS:
            sender, delivery = self._parts.popleft()
            self._waiting[sender] -= 1
            feed = self.feeds[delivery.edge, sender]
            part = Grouped.of(delivery, feed.port)
            self._rows -= len(part.tuples)
            self._bytes -= delivery.nbytes
            piece.came.append((sender, delivery))
            piece.row_count += len(part.tuples)
            if len(part.tuples):
                piece.parts[feed.port].append(part)
            if len(delivery.null_keys[feed.port]):
                piece.null_keys[feed.port].append(delivery.null_keys[feed.port])
            if delivery.final:
                self._finals -= 1
                self._missing.remove((delivery.edge, sender))
                piece.last, piece.moves = delivery.last, moves_of(delivery)
        piece.final = not self._missing
        if piece.final:
            self._next_epoch()
        piece.times_us = self.times_us
        return piece

    def _next_epoch(self) -> None:
        self.times_us = self._least(LEFT), self._least(RIGHT)
        self.epoch += 1
        self._missing = set(self.feeds)
        assert not self._parts, "parts of an epoch that has ended"
        for sender, delivery in self._later.pop(self.epoch, []):
            self._later_bytes -= delivery.nbytes
            self._enter(sender, delivery)

    def _least(self, port: int) -> int:
        return min((feed.next_watermark_us for feed in self.feeds.values() if feed.port == port), default=END_OF_TIME_US)

    def count_waiting(self, rows: Counter[int]) -> None:
        """Add the rows of each edge that have come and are not taken."""
        for parts in (self._parts, *self._later.values()):
            for _, part in parts:
                rows[part.edge] += len(part.left) + len(part.right) + sum(map(len, part.null_keys))

    @property
    def waiting_bytes(self) -> int:
        return self._bytes + self._later_bytes

    def validate(self) -> None:
        assert self._rows == sum(len(d.left) + len(d.right) for _, d in self._parts), f"{self._name}: rows of the merger"
        assert all(epoch > self.epoch for epoch in self._later), f"{self._name}: parts of epochs that have ended"
        later_bytes = sum(part.nbytes for later in self._later.values() for _, part in later)
        assert self._later_bytes == later_bytes, f"{self._name}: bytes of later epochs"

"""Consumer thread of a Kafka topic: every partition fills its lane of a `Merge`.

What: `PartitionReader`; `Share`, the partitions of one gateway of several; `OffsetTracker`, which maps the rows of a lane to
their messages.
Why: consuming and decoding overlap with the master's work.
Stays out: positions in checkpoints (`connectors.kafka.source`), the content of messages (`connectors.kafka.decoder`).

One thread fills all lanes, so it must not wait for a full one: the merge may need rows of another. The client pauses such a
partition instead. A partition with more messages is not idle, however slowly they arrive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.kafka.client import KafkaConnectionError, client_library, marks_of
from swjoin.connectors.kafka.decoder import MessageDecoder
from swjoin.connectors.producer_merge import Merge, MergeClosedError
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import RunFailed, SwjoinError, one_line
from swjoin.core.ids import BEGIN_OF_TIME_US

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

_LOG = logging.getLogger(__name__)
_MESSAGES = 5000  # taken from the client at once, at most
_POLL_S, _FULL_POLL_S = 0.1, 0.01
_AWAY_S = 60.0  # without any broker, after which a run fails
_PROBE_S = 2.0  # between probes for a broker
_NEW_PARTITIONS_S = 30.0  # between checks for new partitions
_LAG_S = 1.0


def lane_of(partition: int) -> str:
    """Name of a partition's lane; names have the order of the numbers."""
    return f"{partition:05d}"


@dataclass(frozen=True)
class Piece:
    """Rows of one partition, whole messages, not yet in the lane.

    offsets, within: (n,) message of each row, and the row's number in the message. unusable: (n,) see `Decoded`.
    """

    batch: pa.RecordBatch
    times: I64
    valid: Bool | None
    offsets: I64
    within: I64
    unusable: Bool


@dataclass(frozen=True)
class Share:
    """What one gateway of several reads. is_mine: whether a partition belongs to it. row_numbers: of rows, given their
    partition, messages and rows in these; the last column of the rows in the merge."""

    is_mine: Callable[[int], bool]
    row_numbers: Callable[[int, I64, I64], I64]


class OffsetTracker:
    """Messages of the rows that wait in a lane. The consumer thread adds rows, the master's thread follows the merge."""

    def __init__(self, following: tuple[int, int], followed: int) -> None:
        self.following = following  # message of the next row that the merge emits, and the row's number in the message
        self.followed = followed  # rows emitted
        self._pieces: deque[Piece] = deque()
        self._first_emitted = 0  # emitted rows of the first piece

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def follow(self, rows: int) -> int:
        """The merge has emitted `rows` rows in total. Returns how many of the rows since the last call represent an unusable
        message."""
        unusable, missing = 0, rows - self.followed
        self.followed = rows
        while missing:
            piece = self._pieces[0]
            stop = min(len(piece.offsets), self._first_emitted + missing)
            unusable += int(np.count_nonzero(piece.unusable[self._first_emitted : stop]))
            missing -= stop - self._first_emitted
            if stop < len(piece.offsets):
                self._first_emitted, self.following = stop, (int(piece.offsets[stop]), int(piece.within[stop]))
            else:
                self._pieces.popleft()
                self._first_emitted, self.following = 0, (int(piece.offsets[-1]) + 1, 0)
        return unusable


class _Partition:
    """State of one partition. next: next message to consume. within: rows of that message which an earlier process has emitted.
    stop: first message that is not consumed; None: no end. end: the topic's end, as far as known."""

    def __init__(self, offset: int, within: int, emitted: int, stop: int | None) -> None:
        self.tracker = OffsetTracker((offset, within), emitted)
        self.next, self.within, self.stop, self.end = offset, within, stop, offset
        self.waiting: deque[Piece] = deque()  # for room in the lane
        self.paused = False
        self.exhausted = False  # no message for now
        self.done = False  # no message ever

    @property
    def complete(self) -> bool:
        """Whether all rows up to the stop are in the lane."""
        return self.stop is not None and self.next >= self.stop and not self.waiting

    @property
    def active(self) -> bool:
        return not (self.exhausted or self.done)

    def reach_end(self, offset: int) -> None:
        """The client has reached the end of the partition. Offsets before it may have no messages."""
        if offset >= self.next:
            self.exhausted = True
            if self.stop is not None and offset >= self.stop:
                self.next = offset

    def skip_past_stop(self, offsets: I64) -> None:
        """Messages with these offsets have been received; those from the stop on are ignored."""
        if self.stop is not None and (offsets >= self.stop).any():
            self.next = max(self.next, self.stop)

    def unread(self, offsets: I64, within: I64) -> Bool:
        """(n,) which rows of these messages an earlier process has not emitted."""
        done, self.within = self.within, 0
        fresh: Bool = (offsets != self.next) | (within >= done)
        return fresh


class PartitionReader:
    """Consumes from a position (see `KafkaSource.position`) to its stops, or without end.

    client: makes a consumer. times_of: times of a batch. failure: the error that has ended the thread.
    """

    def __init__(
        self,
        client: Callable[[KafkaConnectionError], Consumer],
        topic: str,
        where: str,
        decoder: MessageDecoder,
        times_of: Callable[[pa.RecordBatch], tuple[I64, Bool | None]],
        merge: Merge,
        position: dict[str, Any],
        share: Share | None = None,
    ) -> None:
        """share: None: all partitions are read."""
        self._share = share
        self._make_client, self._topic, self._where = client, topic, f"{where}: topic {topic}"
        self._decoder, self._times_of, self._merge = decoder, times_of, merge
        self._complained = False
        self.failure: SwjoinError | None = None
        self.messages = self.bytes = 0
        self._partitions: dict[int, _Partition] = {}
        self._bounded = position["ends"] is not None
        for lane, (offset, within) in position["offsets"].items():
            stop = position["ends"][lane] if self._bounded else None
            self._add(int(lane), _Partition(offset, within, position["lanes"][lane][0], stop))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"kafka-{topic}")
        self._thread.start()

    def _add(self, number: int, partition: _Partition) -> None:
        self._partitions[number] = partition
        self._merge.open(lane_of(number))

    def tracker(self, lane: str) -> OffsetTracker:
        return self._partitions[int(lane)].tracker

    def end(self, lane: str) -> int:
        """The end of a partition, as far as known."""
        return self._partitions[int(lane)].end

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        kafka = client_library()
        trouble = KafkaConnectionError()
        try:
            client = self._make_client(trouble)
            try:
                client.assign(
                    [kafka.TopicPartition(self._topic, n, partition.next) for n, partition in self._partitions.items()]
                )
                self._consume(client, trouble)
            finally:
                client.close()
        except MergeClosedError:
            pass
        except SwjoinError as error:
            self.failure = error
        except kafka.KafkaException as error:
            self.failure = RunFailed(f"{self._where}: {one_line(error.args[0].str())}")
        except Exception as error:  # which a thread would lose
            self.failure = RunFailed(f"{self._where}: {type(error).__name__}: {one_line(error)}")

    def _consume(self, client: Consumer, trouble: KafkaConnectionError) -> None:
        probed_s = checked_s = time.monotonic()
        measured_s = probed_s - _LAG_S
        while not self._stop.is_set():
            self._end_lanes(client)
            if all(partition.done for partition in self._partitions.values()):
                self._merge.finish()
                return
            self._keep_lanes_active()
            full = any(partition.waiting for partition in self._partitions.values())
            first = client.poll(_FULL_POLL_S if full else _POLL_S)
            if first is not None and self._receive([first, *client.consume(_MESSAGES - 1, 0)]):
                trouble.away_since_s = None
            self._offer(client)
            now_s = time.monotonic()
            if trouble.away_since_s is not None and now_s - probed_s >= min(_PROBE_S, _AWAY_S):
                self._probe(client, trouble, now_s - trouble.away_since_s)
                probed_s = now_s
            if now_s - measured_s >= _LAG_S:
                self._measure(client)
                measured_s = now_s
            if not self._bounded and now_s - checked_s >= _NEW_PARTITIONS_S:
                self._add_new_partitions(client)
                checked_s = now_s

    def _keep_lanes_active(self) -> None:
        for number, partition in self._partitions.items():
            if partition.active:
                self._merge.advance(lane_of(number), BEGIN_OF_TIME_US)

    def _end_lanes(self, client: Consumer) -> None:
        """End the lanes of partitions that have been read up to their stops."""
        for number, partition in self._partitions.items():
            if partition.complete and not partition.done:
                partition.done = True
                client.pause([client_library().TopicPartition(self._topic, number)])
                self._merge.end(lane_of(number))

    def _receive(self, messages: list[Message]) -> bool:
        """Process messages and events of the client. Returns whether a broker has answered."""
        codes = client_library().KafkaError
        found: list[Message] = []
        ends: list[tuple[int, int]] = []
        for message in messages:
            error, number, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is None:
                if offset >= self._partitions[number].next:
                    found.append(message)
            elif error.code() == codes._PARTITION_EOF:
                ends.append((number, offset))
            else:
                self._raise_if_lasting(error, number)
        if found:
            self._decode(found)
        for number, offset in ends:
            self._partitions[number].reach_end(offset)
        return bool(found or ends)

    def _raise_if_lasting(self, error: Any, number: int | None) -> None:
        """RunFailed for errors that retrying does not mend."""
        codes = client_library().KafkaError
        if error.code() == codes._AUTO_OFFSET_RESET:
            raise RunFailed(f"{self._where}, partition {number}: messages are gone before they were read (retention)")
        lasting = (
            codes.UNKNOWN_TOPIC_OR_PART,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
        )
        if error.fatal() or error.code() in lasting:
            raise RunFailed(f"{self._where}: {one_line(error.str())}")

    def _decode(self, messages: list[Message]) -> None:
        numbers = np.array([message.partition() for message in messages], np.int64)
        offsets = np.array([message.offset() for message in messages], np.int64)
        if self._bounded:
            stops = np.array([self._partitions[n].stop for n in numbers.tolist()], np.int64)
            for number in np.unique(numbers).tolist():
                self._partitions[number].skip_past_stop(offsets[numbers == number])
            keep = np.flatnonzero(offsets < stops)
            messages, numbers, offsets = [messages[i] for i in keep.tolist()], numbers[keep], offsets[keep]
            if not messages:
                return
        contents = [message.value() for message in messages]
        stamps = [message.timestamp() for message in messages]
        stamps_ms = np.array([stamp if kind else -1 for kind, stamp in stamps], np.int64)
        self.messages += len(messages)
        self.bytes += sum(len(content) for content in contents if content is not None)
        rows = self._decoder.decode(contents, stamps_ms)
        self._warn_once()
        row_numbers, row_offsets = numbers[rows.message], offsets[rows.message]
        within = np.arange(len(rows.message)) - np.searchsorted(rows.message, rows.message)
        for number in np.unique(numbers).tolist():
            partition = self._partitions[number]
            index = np.flatnonzero(row_numbers == number)
            index = index[partition.unread(row_offsets[index], within[index])]
            partition.next = int(offsets[numbers == number][-1]) + 1
            partition.exhausted = False
            if len(index):
                batch = _rows_of(rows.batch, index)
                times, valid = self._times_of(batch)
                if self._share is not None:
                    batch = _with_numbers(batch, self._share.row_numbers(number, row_offsets[index], within[index]))
                partition.waiting.append(Piece(batch, times, valid, row_offsets[index], within[index], rows.unusable[index]))

    def _warn_once(self) -> None:
        """Report the first unusable message."""
        if self._decoder.complaint is not None and not self._complained:
            self._complained = True
            text = f"{self._where}: a message cannot be used ({self._decoder.complaint}); see unusable_messages for how many"
            _LOG.warning("%s", text)

    def _offer(self, client: Consumer) -> None:
        """Move rows to the lanes, as far as they have room, and pause the partitions of full lanes."""
        here = client_library().TopicPartition
        for number, partition in self._partitions.items():
            lane, pieces = lane_of(number), partition.waiting
            while pieces and self._merge.has_room(lane, pieces[0].batch.nbytes):
                piece = pieces.popleft()
                partition.tracker.add(piece)  # before the merge can emit it
                self._merge.push(lane, piece.batch, piece.times, piece.valid)
            if pieces and not partition.paused:
                client.pause([here(self._topic, number)])
            elif not pieces and partition.paused:
                client.resume([here(self._topic, number)])
            partition.paused = bool(pieces)

    # ------------------------------------------------------------ periodic work

    def _probe(self, client: Consumer, trouble: KafkaConnectionError, away_s: float) -> None:
        try:
            client.list_topics(self._topic, timeout=1)
            trouble.away_since_s = None
        except client_library().KafkaException:
            if away_s >= _AWAY_S:
                raise RunFailed(f"{self._where}: no broker has answered for {away_s:.0f} s{trouble.suffix}") from None

    def _measure(self, client: Consumer) -> None:
        """Update the ends of the partitions; the client has them cached for partitions that it fetches."""
        kafka = client_library()
        for number, partition in self._partitions.items():
            try:
                if partition.end == 0 or partition.paused:
                    high = marks_of(client, self._topic, number, 1.0)[1]
                else:
                    marks = client.get_watermark_offsets(kafka.TopicPartition(self._topic, number), cached=True)
                    high = -1 if marks is None else int(marks[1])
            except kafka.KafkaException:
                continue
            partition.end = max(partition.end, high)

    def _add_new_partitions(self, client: Consumer) -> None:
        """Partitions that the topic has gained are read from their start."""
        kafka = client_library()
        try:
            for number in sorted(client.list_topics(self._topic, timeout=5).topics[self._topic].partitions):
                if number not in self._partitions and (self._share is None or self._share.is_mine(number)):
                    low, _ = marks_of(client, self._topic, number)
                    self._add(number, _Partition(low, 0, 0, None))
                    client.incremental_assign([kafka.TopicPartition(self._topic, number, low)])
        except kafka.KafkaException:
            return  # retried at the next check


def _with_numbers(batch: pa.RecordBatch, numbers: I64) -> pa.RecordBatch:
    import pyarrow as pa

    return batch.append_column("row number", pa.array(numbers))


def _rows_of(batch: pa.RecordBatch, index: I64) -> pa.RecordBatch:
    """These rows, ascending."""
    import pyarrow as pa

    if index[-1] - index[0] + 1 == len(index):
        return batch.slice(int(index[0]), len(index))
    return batch.take(pa.array(index))

"""The thread that consumes a topic: all partitions, each into its lane of a `Merge`.

What: `PartitionReader`; `OffsetTracker`, which knows the message that every row in a lane comes from.
Why: consuming and decoding go on while the master does something else.
Stays out: positions in checkpoints (`connectors.kafka.source`), what a message means (`connectors.kafka.decoder`).

One thread fills all lanes, so it must not wait for one that is full: the merge may be waiting for another. Such a partition is
paused at the client instead. A partition that has messages to come is not silent, however slowly they come.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.kafka.client import KafkaConnectionError, client_library, marks_of, one_line
from swjoin.connectors.kafka.decoder import MessageDecoder
from swjoin.connectors.producer_merge import Merge, MergeClosedError
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import RunFailed, SwjoinError
from swjoin.core.ids import BEGIN_OF_TIME_US

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

_MESSAGES = 5000  # that are taken from the client at once, at most
_POLL_S, _FULL_POLL_S = 0.1, 0.01
_AWAY_S = 60.0  # without any broker, after which a run fails
_PROBE_S = 2.0  # how often it is looked whether one is back
_NEW_PARTITIONS_S = 30.0  # how often it is looked whether the topic has got more
_LAG_S = 1.0


def lane_of(partition: int) -> str:
    """Name of a partition's lane; names are ordered as numbers are."""
    return f"{partition:05d}"


@dataclass(frozen=True)
class Piece:
    """Rows of one partition, whole messages, on their way to the lane.

    offsets, within: (n,) the message of each row, and its number in it. unusable: (n,) see `Decoded`.
    """

    batch: pa.RecordBatch
    times: I64
    valid: Bool | None
    offsets: I64
    within: I64
    unusable: Bool


class OffsetTracker:
    """Where the rows of a lane that have not been handed over come from. One thread adds, another one follows."""

    def __init__(self, following: tuple[int, int], followed: int) -> None:
        self.following = following  # message and row in it of the next row that will be handed over
        self.followed = followed  # rows handed over
        self._pieces: deque[Piece] = deque()
        self._begun = 0  # rows of the first piece that have been handed over

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def follow(self, rows: int) -> int:
        """So many rows have been handed over in all; returns how many of those since the last call stand for a message that
        cannot be used."""
        unusable, missing = 0, rows - self.followed
        self.followed = rows
        while missing:
            piece = self._pieces[0]
            stop = min(len(piece.offsets), self._begun + missing)
            unusable += int(np.count_nonzero(piece.unusable[self._begun : stop]))
            missing -= stop - self._begun
            if stop < len(piece.offsets):
                self._begun, self.following = stop, (int(piece.offsets[stop]), int(piece.within[stop]))
            else:
                self._pieces.popleft()
                self._begun, self.following = 0, (int(piece.offsets[-1]) + 1, 0)
        return unusable


class PartitionReader:
    """Consumes from a position on (see `KafkaSource.position`) until the stops that it names, or for good.

    client: makes a consumer. times_of: of a batch. failure: what went wrong, once the thread has ended because of it.
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
    ) -> None:
        self._make_client, self._topic, self._where = client, topic, f"{where}: topic {topic}"
        self._decoder, self._times_of, self._merge = decoder, times_of, merge
        self._complained = False
        self.failure: SwjoinError | None = None
        self.messages = self.bytes = 0
        self.trails: dict[str, OffsetTracker] = {}
        self.ends: dict[str, int] = {}  # as far as the topic goes
        self._wanted: dict[int, int] = {}  # the next message of each partition
        self._within: dict[int, int] = {}  # rows of that one which have been handed over
        stops: dict[str, int] | None = position["ends"]
        self._stops = None if stops is None else {int(lane): stop for lane, stop in stops.items()}
        self._waiting: dict[int, deque[Piece]] = {}  # for room in their lanes
        self._paused: set[int] = set()
        self._exhausted: set[int] = set()  # partitions that have no message for now
        self._done: set[int] = set()  # and those that will have none
        for lane, (offset, within) in position["offsets"].items():
            self._add(int(lane), offset, within, position["lanes"][lane][0])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"kafka-{topic}")
        self._thread.start()

    def _add(self, partition: int, offset: int, within: int, followed: int) -> None:
        lane = lane_of(partition)
        self.trails[lane] = OffsetTracker((offset, within), followed)
        self.ends[lane] = offset
        self._wanted[partition], self._within[partition] = offset, within
        self._merge.open(lane)

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
                client.assign([kafka.TopicPartition(self._topic, p, offset) for p, offset in self._wanted.items()])
                self._consume(client, trouble)
            finally:
                client.close()
        except MergeClosedError:
            pass
        except SwjoinError as error:
            self.failure = error
        except kafka.KafkaException as error:
            self.failure = RunFailed(f"{self._where}: {one_line(error.args[0].str())}")
        except Exception as error:  # which nobody else would see
            self.failure = RunFailed(f"{self._where}: {type(error).__name__}: {one_line(error)}")

    def _consume(self, client: Consumer, trouble: KafkaConnectionError) -> None:
        probed_s = looked_s = time.monotonic()
        measured_s = probed_s - _LAG_S
        while not self._stop.is_set():
            self._end_lanes(client)
            if len(self._done) == len(self._wanted):
                self._merge.finish()
                return
            self._speak()
            first = client.poll(_FULL_POLL_S if self._waiting else _POLL_S)
            if first is not None and self._take([first, *client.consume(_MESSAGES - 1, 0)]):
                trouble.away_since_s = None
            self._offer(client)
            now_s = time.monotonic()
            if trouble.away_since_s is not None and now_s - probed_s >= min(_PROBE_S, _AWAY_S):
                self._probe(client, trouble, now_s - trouble.away_since_s)
                probed_s = now_s
            if now_s - measured_s >= _LAG_S:
                self._measure(client)
                measured_s = now_s
            if self._stops is None and now_s - looked_s >= _NEW_PARTITIONS_S:
                self._look_for_partitions(client)
                looked_s = now_s

    def _speak(self) -> None:
        for partition in self._wanted:
            if partition not in self._exhausted and partition not in self._done:
                self._merge.carry(lane_of(partition), BEGIN_OF_TIME_US)

    def _end_lanes(self, client: Consumer) -> None:
        """Of partitions that have been read as far as they are to be."""
        for partition, stop in (self._stops or {}).items():
            if partition not in self._done and self._wanted[partition] >= stop and partition not in self._waiting:
                self._done.add(partition)
                client.pause([client_library().TopicPartition(self._topic, partition)])
                self._merge.end(lane_of(partition))

    def _take(self, messages: list[Message]) -> bool:
        """Messages, and what else the client has to say. Returns whether a broker has answered."""
        codes = client_library().KafkaError
        found: list[Message] = []
        ends: list[tuple[int, int]] = []
        for message in messages:
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is None:
                if offset >= self._wanted[partition]:
                    found.append(message)
            elif error.code() == codes._PARTITION_EOF:
                ends.append((partition, offset))
            else:
                self._judge(error, partition)
        if found:
            self._decode(found)
        for partition, offset in ends:
            if offset >= self._wanted[partition]:
                self._exhausted.add(partition)
                if self._stops is not None and offset >= self._stops[partition]:  # what is between are no messages
                    self._wanted[partition] = offset
        return bool(found or ends)

    def _judge(self, error: Any, partition: int | None) -> None:
        """RunFailed for what does not pass."""
        codes = client_library().KafkaError
        if error.code() == codes._AUTO_OFFSET_RESET:
            raise RunFailed(f"{self._where}, partition {partition}: messages are gone before they were read (retention)")
        lasting = (
            codes.UNKNOWN_TOPIC_OR_PART,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
        )
        if error.fatal() or error.code() in lasting:
            raise RunFailed(f"{self._where}: {one_line(error.str())}")

    def _decode(self, messages: list[Message]) -> None:
        partitions = np.array([message.partition() for message in messages], np.int64)
        offsets = np.array([message.offset() for message in messages], np.int64)
        if self._stops is not None:
            stops = np.array([self._stops[p] for p in partitions.tolist()], np.int64)
            for partition in np.unique(partitions[offsets >= stops]).tolist():
                self._wanted[partition] = max(self._wanted[partition], self._stops[partition])
            keep = np.flatnonzero(offsets < stops)
            messages, partitions, offsets = [messages[i] for i in keep.tolist()], partitions[keep], offsets[keep]
            if not messages:
                return
        contents = [message.value() for message in messages]
        stamps = [message.timestamp() for message in messages]
        stamps_ms = np.array([stamp if kind else -1 for kind, stamp in stamps], np.int64)
        self.messages += len(messages)
        self.bytes += sum(len(content) for content in contents if content is not None)
        rows = self._decoder.decode(contents, stamps_ms)
        if self._decoder.complaint is not None and not self._complained:
            self._complained = True
            told = f"{self._where}: a message cannot be used ({self._decoder.complaint}); see unusable_messages for how many"
            print(f"swjoin: {told}", file=sys.stderr, flush=True)
        of_partition, of_offset = partitions[rows.message], offsets[rows.message]
        within = np.arange(len(rows.message)) - np.searchsorted(rows.message, rows.message)
        for partition in np.unique(partitions).tolist():
            mine = of_partition == partition
            if self._within[partition]:
                mine &= (of_offset != self._wanted[partition]) | (within >= self._within[partition])
                self._within[partition] = 0
            self._wanted[partition] = int(offsets[partitions == partition][-1]) + 1
            self._exhausted.discard(partition)
            index = np.flatnonzero(mine)
            if len(index):
                batch = _rows_of(rows.batch, index)
                times, valid = self._times_of(batch)
                piece = Piece(batch, times, valid, of_offset[index], within[index], rows.unusable[index])
                self._waiting.setdefault(partition, deque()).append(piece)

    def _offer(self, client: Consumer) -> None:
        """To the lanes, as far as they have room; partitions of those that have none are paused."""
        here = client_library().TopicPartition
        for partition, pieces in list(self._waiting.items()):
            lane = lane_of(partition)
            while pieces and self._merge.has_room(lane, pieces[0].batch.nbytes):
                piece = pieces.popleft()
                self.trails[lane].add(piece)  # before anybody can take it
                self._merge.push(lane, piece.batch, piece.times, piece.valid)
            if pieces and partition not in self._paused:
                self._paused.add(partition)
                client.pause([here(self._topic, partition)])
            elif not pieces:
                del self._waiting[partition]
                if partition in self._paused:
                    self._paused.discard(partition)
                    client.resume([here(self._topic, partition)])

    # ------------------------------------------------------------ now and then

    def _probe(self, client: Consumer, trouble: KafkaConnectionError, away_s: float) -> None:
        try:
            client.list_topics(self._topic, timeout=1)
            trouble.away_since_s = None
        except client_library().KafkaException:
            if away_s >= _AWAY_S:
                raise RunFailed(f"{self._where}: no broker has answered for {away_s:.0f} s{trouble.told}") from None

    def _measure(self, client: Consumer) -> None:
        """How far the topic goes; for a partition that is being read the client knows it without asking."""
        kafka = client_library()
        for partition in self._wanted:
            lane = lane_of(partition)
            try:
                if self.ends[lane] == 0 or partition in self._paused:
                    high = marks_of(client, self._topic, partition, 1.0)[1]
                else:
                    marks = client.get_watermark_offsets(kafka.TopicPartition(self._topic, partition), cached=True)
                    high = -1 if marks is None else int(marks[1])
            except kafka.KafkaException:
                continue
            self.ends[lane] = max(self.ends[lane], high)

    def _look_for_partitions(self, client: Consumer) -> None:
        """Those that the topic has got since are read from their beginnings."""
        kafka = client_library()
        try:
            for partition in sorted(client.list_topics(self._topic, timeout=5).topics[self._topic].partitions):
                if partition not in self._wanted:
                    low, _ = marks_of(client, self._topic, partition)
                    self._add(partition, low, 0, 0)
                    client.incremental_assign([kafka.TopicPartition(self._topic, partition, low)])
        except kafka.KafkaException:
            return  # another time


def _rows_of(batch: pa.RecordBatch, index: I64) -> pa.RecordBatch:
    """These rows, ascending."""
    import pyarrow as pa

    if index[-1] - index[0] + 1 == len(index):
        return batch.slice(int(index[0]), len(index))
    return batch.take(pa.array(index))

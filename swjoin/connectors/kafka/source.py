"""Kafka source: the partitions of a topic, merged by time.

What: `KafkaSource`.
Row ids without an id column: positions in the merged stream; with several gateways `core.splits.row_ids` of the partition and
the message's offset, for messages of format arrow offset * 2^16 + row in the message.
Why: a checkpoint stores for every partition the next message after the rows that have been read, so that a recovery reads
exactly the remaining rows. The broker stores no offsets for swjoin.
Stays out: the consumer thread (`connectors.kafka.reader`), the content of messages (`connectors.kafka.decoder`), settings of
the client (`connectors.kafka.client`), results (`connectors.kafka.sink`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.run import StreamConfig
from swjoin.connectors.kafka.client import KafkaConnectionError, client_library, client_settings, find_topic, marks_of
from swjoin.connectors.kafka.decoder import MessageDecoder
from swjoin.connectors.kafka.reader import PartitionReader, Share, lane_of
from swjoin.connectors.live_source import MergedSource
from swjoin.connectors.producer_merge import MOST_LANES, Merge
from swjoin.connectors.row_encoder import StreamColumns
from swjoin.core.batch import I64, SourceBatch
from swjoin.core.errors import RunFailed, UserError, one_line
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.splits import row_ids, split_and_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer

_MOST_ROWS = 1 << 16  # of a message of format arrow, in row ids


class KafkaSource(MergedSource):
    """make_merge: makes an empty merge for any number of lanes. UserError without a broker, the topic or the library."""

    def __init__(
        self,
        name: str,
        config: StreamConfig,
        schema: pa.Schema,
        view: StreamColumns,
        keys: KeyEncoder | None,
        make_merge: Callable[[], Merge],
    ) -> None:
        super().__init__(name, config, schema, view, keys, make_merge())
        assert config.kafka is not None, "not a Kafka stream"
        self._make_merge, self.kafka = make_merge, config.kafka
        self.where = f"{name} kafka"
        try:
            self.decoder = MessageDecoder(self.kafka.format, self.schema, self.times_of, config.id)
        except UserError as error:
            raise UserError(f"{self.where}: {error}") from None
        first, last = self._topic_offsets()
        self.split_count = len(first)
        offsets = first if self.kafka.start == "earliest" else last
        self._first: dict[str, Any] = {
            "oldest": {lane_of(p): offset for p, offset in first.items()},
            "lanes": {lane_of(p): [0, BEGIN_OF_TIME_US, False] for p in offsets},
            "emitted_us": BEGIN_OF_TIME_US,
            "finished": False,
            "offsets": {lane_of(p): [offset, 0] for p, offset in offsets.items()},
            "ends": {lane_of(p): end for p, end in last.items()} if self.kafka.until_end else None,
            "unusable": 0,
        }
        self._share = 0, 1  # this gateway, and how many read the topic
        self._position = self._after = self._start
        self._unusable = 0
        self._reader: PartitionReader | None = None

    @property
    def _start(self) -> dict[str, Any]:
        """Its position at the start of the run."""
        plain = {name: value for name, value in self._first.items() if name != "oldest"}
        return self.taken_over([plain]) if self.shared else plain

    # ------------------------------------------------------------ the topic

    def client(self, trouble: KafkaConnectionError) -> Consumer:
        """A consumer without assigned partitions."""
        kafka = client_library()
        settings = client_settings(
            self.where,
            self.kafka.servers,
            self.kafka.properties,
            {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error", "error_cb": trouble},
            {"group.id": "swjoin", "queued.max.messages.kbytes": 16384, "fetch.wait.max.ms": 100},
        )
        try:
            made: Consumer = kafka.Consumer(settings)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise UserError(f"{self.where}: {one_line(error)}") from None
        return made

    def _topic_offsets(self) -> tuple[dict[int, int], dict[int, int]]:
        """Offsets of the first stored messages of all partitions, and their present ends."""
        kafka, trouble = client_library(), KafkaConnectionError()
        client = self.client(trouble)
        try:
            first, last = {}, {}
            partitions = find_topic(client, self.kafka.topic, self.where, self.kafka.servers, trouble)
            if len(partitions) > MOST_LANES:
                raise UserError(
                    f"{self.where}: topic {self.kafka.topic} has {len(partitions)} partitions, more than {MOST_LANES}"
                )
            for partition in partitions:
                try:
                    low, high = marks_of(client, self.kafka.topic, partition)
                except kafka.KafkaException as error:
                    text = one_line(error.args[0].str())
                    raise UserError(f"{self.where}: topic {self.kafka.topic}, partition {partition}: {text}") from None
                first[partition], last[partition] = low, high
            return first, last
        finally:
            client.close()

    # ------------------------------------------------------------ read, by the master

    def next_batch(self) -> pa.RecordBatch | None:
        if self._reader is None:
            self._reader = PartitionReader(
                self.client,
                self.kafka.topic,
                self.where,
                self.decoder,
                self.times_of,
                self.merge,
                self._position,
                Share(self.is_mine, self.row_numbers) if self.shared else None,
            )
            self._unusable = self._position["unusable"]
        if self._reader.failure is not None:
            raise self._reader.failure
        batch = super().next_batch()
        if batch is not None:
            merged = self.merge.position()
            for lane, (rows, *_) in merged["lanes"].items():
                self._unusable += self._reader.tracker(lane).follow(rows)
            self._after = {
                **merged,
                "offsets": {lane: list(self._reader.tracker(lane).following) for lane in merged["lanes"]},
                "ends": self._position["ends"],
                "unusable": self._unusable,
            }
        return batch

    def read(self) -> SourceBatch | None:
        batch = super().read()
        if batch is not None:
            self._position = self._after
        return batch

    def describe_row(self, row: int) -> str:
        topic, (partition, offset) = f"{self.where}, topic {self.kafka.topic}", split_and_offset(row)
        if partition < 0:
            return f"{topic}, row {row} (counting from 0)"
        within = "" if self.kafka.format == "json" else f", row {offset % _MOST_ROWS} of it (counting from 0)"
        return f"{topic}, partition {partition}, message {offset if not within else offset // _MOST_ROWS}{within}"

    # ------------------------------------------------------------ with several gateways

    def first_position(self) -> dict[str, Any]:
        return self._first

    def take_share(self, gateway: int, gateways: int, first: dict[str, Any]) -> None:
        self.shared = self.merge.shows_times = True
        self._share, self._first = (gateway, gateways), first
        self._position = self._after = self._start

    def is_mine(self, partition: int) -> bool:
        """Whether this gateway reads a partition."""
        gateway, gateways = self._share
        return partition % gateways == gateway

    def taken_over(self, positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        lanes, offsets, emitted_us = {}, {}, []
        for position in positions:
            for lane, (taken, high_us, ended) in position["lanes"].items():
                if self.is_mine(int(lane)):  # what its merge had emitted is late in this one, too
                    lanes[lane] = [taken, max(high_us, position["emitted_us"]), ended]
                    offsets[lane] = position["offsets"][lane]
                    emitted_us.append(position["emitted_us"])
        ends = {lane: end for position in positions for lane, end in (position["ends"] or {}).items() if lane in lanes}
        known = {lane for position in positions for lane in position["lanes"]}
        for lane, offset in self._first["oldest"].items():
            if self.is_mine(int(lane)) and lane not in known and not self.kafka.until_end:  # the topic has gained it
                lanes[lane], offsets[lane] = [0, BEGIN_OF_TIME_US, False], [offset, 0]
        return {
            "lanes": lanes,
            "emitted_us": min(emitted_us, default=BEGIN_OF_TIME_US),
            "finished": False,
            "offsets": offsets,
            "ends": ends if self.kafka.until_end else None,
            "unusable": sum(position["unusable"] for position in positions) if self._share[0] == 0 else 0,
        }

    def forget_shared(self, positions: Sequence[dict[str, Any]]) -> None:
        """Nothing is stored."""

    def row_numbers(self, partition: int, offsets: I64, within: I64) -> I64:
        """Of rows of one partition: message, and row in it. RunFailed when one does not fit into a row id."""
        where = f"{self.where}, topic {self.kafka.topic}, partition {partition}"
        if self.config.id is not None:
            return offsets
        if self.kafka.format == "arrow":
            if (within >= _MOST_ROWS).any():
                message = int(offsets[np.argmax(within)])
                raise RunFailed(f"{where}, message {message}: row ids have room for 65,536 rows; name an id column")
            offsets = offsets * _MOST_ROWS + within
        return row_ids(partition, offsets, where)

    # ------------------------------------------------------------ across a crash

    def position(self) -> dict[str, Any]:
        """Position of the merge; next message of each partition, and row in it; ends; number of unusable messages."""
        return self._position

    def seek(self, row: int) -> None:
        """Row 0: the offsets at the start of the run."""
        assert row == 0, "a topic has no row numbers"
        self._restart(0, self._start)

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        self._check_there(position)
        self._restart(row, position)

    def _check_there(self, position: dict[str, Any]) -> None:
        """RunFailed when the topic has lost messages after a position."""
        kafka, trouble = client_library(), KafkaConnectionError()
        topic = self.kafka.topic
        client = self.client(trouble)
        try:
            there = {lane_of(p): p for p in find_topic(client, topic, self.where, self.kafka.servers, trouble)}
            for lane, (offset, _) in position["offsets"].items():
                if lane not in there:
                    raise RunFailed(f"{self.where}: topic {topic} has no partition {int(lane)} any more; run anew")
                low, high = marks_of(client, topic, there[lane])
                if not low <= offset <= high:
                    gone = f"it begins at {low} now" if offset < low else f"it ends at {high} now; is it another topic?"
                    here = f"{self.where}: topic {topic}, partition {int(lane)}"
                    raise RunFailed(f"{here}: message {offset}, which comes next, is gone: {gone}")
        except kafka.KafkaException as error:
            raise RunFailed(f"{self.where}: topic {topic}: {one_line(error.args[0].str())}") from None
        except UserError as error:
            raise RunFailed(str(error)) from None
        finally:
            client.close()

    def _restart(self, row: int, position: dict[str, Any]) -> None:
        self._stop()
        self.merge = self._make_merge()
        self.merge.shows_times = self.shared
        # Not finished: rows that waited in the lanes are consumed again, up to the partitions' stops.
        self.merge.restore({**position, "finished": False})
        self.rows, self._next = row, None
        self._position = self._after = position

    # ------------------------------------------------------------ monitoring

    def status(self) -> dict[str, float]:
        reader, position = self._reader, self._position
        found = {**super().status(), "unusable_messages": float(position["unusable"])}
        if reader is None:
            return found
        found |= {"received_messages": float(reader.messages), "received_bytes": float(reader.bytes)}
        lags = {lane: max(0, reader.end(lane) - offset) for lane, (offset, _) in position["offsets"].items()}
        found["lag_messages"] = float(sum(lags.values()))
        return found | {f"lag_messages_{int(lane)}": float(lag) for lane, lag in lags.items()}

    def _stop(self) -> None:
        self.merge.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def close(self) -> None:
        self._stop()

"""A Kafka cluster without a broker: the client library's own mock, for tests.

What: `MockCluster`: brokers on the loopback, topics of four partitions that come into being when something is sent to them.
Why: sources and sinks are tested through the protocol, over real sockets.
Stays out: what the mock has not: retention, compaction, authentication, rebalances, disks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.limits import PROCESS_S

PARTITIONS = 4
Sent = tuple[int, bytes | None]  # partition, message


class MockCluster:
    """Lives as long as the client that it is a part of."""

    def __init__(self, brokers: int = 2) -> None:
        self._producer: Producer | None = Producer(
            {"test.mock.num.brokers": brokers, "bootstrap.servers": "mock", "log_level": 0, "linger.ms": 0}
        )
        found = self._producer.list_topics(timeout=PROCESS_S).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in found)

    def send(self, topic: str, messages: Iterable[Sent], timestamp_ms: int = 0) -> None:
        assert self._producer is not None
        for partition, message in messages:
            self._producer.produce(topic, message, partition=partition, timestamp=timestamp_ms)
            self._producer.poll(0)
        assert self._producer.flush(20) == 0

    def make(self, topic: str) -> None:
        """A topic without messages."""
        assert self._producer is not None
        self._producer.list_topics(topic, timeout=PROCESS_S)
        self._producer.list_topics(topic, timeout=PROCESS_S)

    def messages(self, topic: str) -> list[Message]:
        """All of a topic, partition by partition."""
        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "group.id": "reader", "enable.partition.eof": True}
        consumer = Consumer({**settings, "log_level": 0, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found, ended = [], 0
        while ended < PARTITIONS:
            message = consumer.poll(10)
            assert message is not None, "the mock does not answer"
            if message.error() is None:
                found.append(message)
            else:
                ended += 1
        consumer.close()
        return sorted(found, key=lambda m: (m.partition() or 0, m.offset() or 0))

    def close(self) -> None:
        self._producer = None

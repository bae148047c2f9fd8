"""Kafka client of source and sink: the library, its settings, its errors in one line.

What: `client_library`, `client_settings`, `find_topic`, `marks_of`; `KafkaConnectionError`, the client's last error.
Why: source and sink report an unreachable broker, a missing topic or a wrong setting in the same words.
Stays out: reading (`connectors.kafka.source`), writing (`connectors.kafka.sink`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import UserError, how_to_install, one_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

SETUP_S = 10.0  # for a broker to answer at the start of a run
_PAUSE_S = 0.2


def client_library() -> Any:
    """The module confluent_kafka. UserError when it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise UserError(f"Kafka needs confluent-kafka, which is missing; {how_to_install('kafka')}") from None
    return confluent_kafka


def client_settings(
    where: str, servers: str, properties: Sequence[str], ours: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a client. properties: the user's `name=value`; @FILE as a value is the content of that file.

    ours: settings that a user cannot change. defaults: settings that a user can change. UserError for a property in `ours`.
    """
    settings: dict[str, Any] = {"log_level": 0, **defaults}
    for item in properties:
        name, _, value = item.partition("=")
        name = name.strip()
        if name in ours or name == "bootstrap.servers":
            raise UserError(f"{where}: property {name} is set by swjoin; leave it out")
        settings[name] = _content_of(where, Path(value[1:])) if value.startswith("@") else value
    return {**settings, **ours, "bootstrap.servers": servers}


def _content_of(where: str, path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {path}: cannot be read ({getattr(error, 'strerror', None) or 'is no text'})") from None


class KafkaConnectionError:
    """The client's last error; serves as its `error_cb`."""

    def __init__(self) -> None:
        self.last = ""
        self.away_since_s: float | None = None  # since when no broker can be reached

    def __call__(self, error: KafkaError) -> None:
        self.last = one_line(error.str())
        if error.code() == client_library().KafkaError._ALL_BROKERS_DOWN and self.away_since_s is None:
            self.away_since_s = time.monotonic()

    @property
    def suffix(self) -> str:
        """For the end of an error message."""
        return f" ({self.last})" if self.last else ""


def find_topic(client: Consumer | Producer, topic: str, where: str, servers: str, trouble: KafkaConnectionError) -> list[int]:
    """Partitions of a topic. UserError when the topic does not exist, or no broker answers in time."""
    kafka = client_library()
    until_s = time.monotonic() + SETUP_S
    while True:
        try:
            found = client.list_topics(topic, timeout=max(0.1, until_s - time.monotonic())).topics[topic]
        except kafka.KafkaException as error:
            client.poll(0)  # calls `error_cb`
            reason = trouble.suffix or f" ({one_line(error.args[0].str())})"
            raise UserError(f"{where}: no broker answers at {servers} within {SETUP_S:g} s{reason}") from None
        if found.error is None and found.partitions:
            return sorted(found.partitions)
        if found.error is not None and not found.error.retriable():
            raise UserError(f"{where}: topic {topic}: {one_line(found.error.str())}")
        if time.monotonic() >= until_s:  # a topic that is being created has no leader yet
            raise UserError(f"{where}: topic {topic} has no partition that can be used after {SETUP_S:g} s")
        time.sleep(_PAUSE_S)


def marks_of(client: Consumer, topic: str, partition: int, timeout_s: float = 5.0) -> tuple[int, int]:
    """Offsets of the first stored message and of the next message to be written. KafkaException."""
    marks = client.get_watermark_offsets(client_library().TopicPartition(topic, partition), timeout=timeout_s)
    if marks is None:
        raise client_library().KafkaException(client_library().KafkaError(-185))  # timed out
    return int(marks[0]), int(marks[1])

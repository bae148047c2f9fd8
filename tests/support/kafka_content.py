"""What a topic holds."""

from __future__ import annotations

from confluent_kafka import Message


def _position(message: Message) -> list[int]:
    position = dict(message.headers() or [])["position"]
    assert isinstance(position, bytes)
    return [int(number) for number in position.decode().split(".")]


def position_of(message: Message) -> tuple[int, int]:
    """Generation and row."""
    position = _position(message)
    return position[0], position[-1]


def writer_of(message: Message) -> int:
    """The sink whose rows are counted by the position."""
    position = _position(message)
    return position[1] if len(position) == 3 else 0


def content_of(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def without_repeats(messages: list[Message]) -> list[Message]:
    """What the documents tell a consumer to do."""
    highest: dict[tuple[int | None, int], tuple[int, int]] = {}
    kept = []
    for message in messages:
        where = message.partition(), writer_of(message)
        if position_of(message) > highest.get(where, (-1, -1)):
            highest[where] = position_of(message)
            kept.append(message)
    return kept

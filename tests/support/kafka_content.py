"""What a topic holds."""

from __future__ import annotations

from confluent_kafka import Message


def position_of(message: Message) -> tuple[int, int]:
    headers = dict(message.headers() or [])
    position = headers["position"]
    assert isinstance(position, bytes)
    generation, row = position.decode().split(".")
    return int(generation), int(row)


def content_of(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def without_repeats(messages: list[Message]) -> list[Message]:
    """What the documents tell a consumer to do."""
    highest: dict[int | None, tuple[int, int]] = {}
    kept = []
    for message in messages:
        if position_of(message) > highest.get(message.partition(), (-1, -1)):
            highest[message.partition()] = position_of(message)
            kept.append(message)
    return kept

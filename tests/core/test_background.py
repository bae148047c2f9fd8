"""`core.storage.Background`: order, failures, and the memory of what waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from swjoin.core.storage import WAITING_BYTES, Background
from tests.support.limits import PROCESS_S


def test_operations_are_performed_in_order_and_none_after_a_failure() -> None:
    done: list[Any] = []
    writer = Background("writer", done.append)
    for i in range(100):
        writer.submit(lambda i=i: i, nbytes=WAITING_BYTES // 50)  # type: ignore[misc]
    writer.submit(lambda: None)
    writer.submit(lambda: 1 // 0)
    for _ in range(3):
        writer.submit(lambda: pytest.fail("after a failure"), nbytes=2 * WAITING_BYTES)
    writer.end()
    assert done[:-1] == list(range(100))
    assert isinstance(done[-1], ZeroDivisionError)
    assert writer.failure is done[-1]


def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    writer = Background("writer", lambda _: None)
    writer.end()
    for _ in range(3):
        writer.submit(lambda: None, nbytes=WAITING_BYTES)


def test_who_submits_waits_while_too_much_is_kept() -> None:
    """One operation is always taken, however large; what has been performed keeps nothing."""
    go_on, submitted = threading.Semaphore(0), threading.Semaphore(0)
    writer = Background("writer", lambda _: None)

    def submit() -> None:
        for _ in range(3):
            writer.submit(go_on.acquire, nbytes=WAITING_BYTES)
            submitted.release()

    thread = threading.Thread(target=submit)
    thread.start()
    for _ in range(3):
        assert submitted.acquire(timeout=PROCESS_S)
        assert not submitted.acquire(timeout=0.05)
        go_on.release()
    thread.join(PROCESS_S)
    writer.end()
    assert not thread.is_alive()
    assert writer._waiting_bytes == 0

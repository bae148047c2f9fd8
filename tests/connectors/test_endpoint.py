"""An endpoint ends while a client keeps a call open: another one listens on its port, and the process knows of the client."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swjoin.config.run import ServeConfig
from swjoin.connectors.flight.server import Endpoint, any_stuck
from tests.support.limits import PROCESS_S

SCHEMA = pa.schema([("row", pa.int64())])
SERVE = ServeConfig(listen="127.0.0.1:0", patience_us=60_000_000)


def _until(what: Any) -> None:
    end_s = time.monotonic() + PROCESS_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_a_call_that_does_not_end(patience_s: float) -> None:
    begun, ended = threading.Event(), threading.Event()

    def put(request: Any, context: Any, reader: Any, writer: Any) -> None:
        begun.set()
        for _ in reader:
            pass
        ended.set()

    first = Endpoint(SERVE)
    first.puts["a"] = put
    first.open()
    client = flight.connect(first.location)
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("a"), SCHEMA)
    _until(begun.is_set)
    assert not first.close(patience_s)
    assert any_stuck()
    second = Endpoint(replace(SERVE, listen=f"127.0.0.1:{first.port}"))
    second.acts["known"] = lambda request: {"to": "second"}
    second.open()
    with flight.connect(second.location) as other:
        assert [bytes(found.body) for found in other.do_action(flight.Action("known", b""))] == [b'{"to": "second"}']
    assert second.close()
    assert any_stuck()  # by the first one
    writer.close()
    client.close()
    _until(ended.is_set)
    _until(lambda: not any_stuck())

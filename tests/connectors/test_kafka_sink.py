"""Results as messages of a topic: each row with its position, from which a consumer knows what it has had already."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from swjoin.config.run import KafkaSinkConfig
from swjoin.connectors.kafka import client
from swjoin.connectors.kafka import sink as sink_module
from swjoin.connectors.kafka.decoder import MessageDecoder
from swjoin.connectors.kafka.sink import KafkaBroker, KafkaSink, KafkaTopic, arrow_messages, json_messages
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.sink import open_sinks
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.row_codec import StreamCodec
from tests.support.kafka_cluster import MockCluster
from tests.support.kafka_content import content_of, position_of, without_repeats, writer_of

NUMBERS = itertools.count()
PLAN = OutputColumns(
    StreamCodec((("user", pa.int64(), "key"), ("at", pa.timestamp("us"), "ts")), ("user",), None),
    StreamCodec((("user", pa.int64(), "key"), ("seen", pa.timestamp("us"), "ts")), ("user",), None),
    ids=True,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


@pytest.fixture
def topic(cluster: MockCluster) -> str:
    name = f"results-{next(NUMBERS)}"
    cluster.make(name)
    return name


def rows_of(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    values = {"user": numbers % 5, "at": numbers, "seen": numbers + 1}
    columns = [pa.array(values.get(field.name, numbers)).cast(field.type) for field in PLAN.schema]
    return pa.record_batch(columns, schema=PLAN.schema)


def sink_of(
    cluster: MockCluster,
    topic: str,
    folder: Path,
    *,
    form: Any = "json",
    staged: bool = False,
    resumes: bool = False,
    share: tuple[int, int] | None = None,
) -> KafkaSink:
    config = KafkaSinkConfig(cluster.servers, topic, form)
    sink = open_sinks("kafka", folder, PLAN, staged=staged, resumes=resumes, kafka=config, share=share)
    assert isinstance(sink, KafkaSink)
    return sink


def ids_of(messages: list[Message]) -> list[int]:
    return sorted(json.loads(content_of(m))["left_id"] for m in messages)


# ---------------------------------------------------------------- rows as messages


def test_json_of_every_type() -> None:
    import datetime

    columns = {
        "k": pa.array([1, None]),
        "f": pa.array([math.nan, 1.5]),
        "g": pa.array([math.inf, 0.1], pa.float32()),
        "b": pa.array([True, None]),
        "s": pa.array(['say "hi"\n', "ä"]).dictionary_encode(),
        "t": pa.array([0, 1], pa.timestamp("us")),
        "z": pa.array([0, None], pa.timestamp("ms", "UTC")),
        "d": pa.array([datetime.date(2020, 1, 2), None]),
        "n": pa.array([Decimal("1.50"), None]),
        "x": pa.array([b"\x00\xff", None]),
        "u": pa.array([2**64 - 1, 0], pa.uint64()),
        "w": pa.array([5, None], pa.duration("us")),
    }
    rows = pa.record_batch(list(columns.values()), list(columns))
    (key, first, _), (no_key, second, number) = json_messages(rows, ["k"])
    assert (key, no_key, number) == ("1", None, 1)
    assert json.loads(first) == {
        "k": 1,
        "f": None,
        "g": None,
        "b": True,
        "s": 'say "hi"\n',
        "t": "1970-01-01 00:00:00.000000",
        "z": "1970-01-01 00:00:00.000Z",
        "d": "2020-01-02",
        "n": "1.50",
        "x": "AP8=",
        "u": 2**64 - 1,
        "w": 5,
    }
    assert json.loads(second)["b"] is None
    assert [key for key, _, _ in json_messages(rows, ["k", "u"])] == ["[1, 18446744073709551615]", "[null, 0]"]


def test_what_is_written_can_be_read_as_a_stream() -> None:
    rows = rows_of(0, 100)
    for form, messages in (("json", json_messages(rows, ["user"])), ("arrow", arrow_messages(rows))):
        decoder = MessageDecoder(form, PLAN.schema, lambda batch: None, None)  # type: ignore[arg-type]
        values = [value for _, value, _ in messages]
        decoded = decoder.decode(values, np.full(len(values), -1))
        assert not decoded.unusable.any()
        assert decoded.batch.equals(rows)


def test_arrow_messages_are_small_enough() -> None:
    """Also where a few rows are much longer than the others."""
    notes = ["x" * (40_000 if n < 20 else 10) for n in range(50_000)]
    rows = pa.record_batch([pa.array(range(50_000)), pa.array(notes)], ["n", "note"])
    messages = list(arrow_messages(rows))
    assert max(len(value) for _, value, _ in messages) < 900_000
    parts = [pa.ipc.open_stream(value).read_all() for _, value, _ in messages]
    assert [part.column("n")[0].as_py() for part in parts] == [number for _, _, number in messages]
    assert pa.concat_tables(parts).combine_chunks().equals(pa.Table.from_batches([rows]).combine_chunks())


# ---------------------------------------------------------------- to a topic


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_without_checkpoints_rows_are_sent_as_they_come(cluster: MockCluster, topic: str, tmp_path: Path, form: str) -> None:
    sink = sink_of(cluster, topic, tmp_path / "results", form=form)
    sink.write_rows(rows_of(0, 30), 0)
    sink.write_rows(rows_of(30, 0), 0)
    sink.write_rows(rows_of(30, 20), 0)
    sink.close()
    messages = cluster.messages(topic)
    assert not (tmp_path / "results").exists()
    if form == "arrow":
        assert sorted(position_of(m) for m in messages) == [(0, 0), (0, 30)]
        return
    assert ids_of(messages) == list(range(50))
    for message in messages:
        plain = json.loads(content_of(message))
        assert message.key() == str(plain["user"]).encode()
        assert position_of(message) == (0, plain["left_id"])
    assert without_repeats(messages) == messages, "positions ascend in a partition"
    for user in range(5):
        assert len({m.partition() for m in messages if m.key() == str(user).encode()}) == 1


def test_with_checkpoints_rows_appear_when_they_are_final(cluster: MockCluster, topic: str, tmp_path: Path) -> None:
    sink = sink_of(cluster, topic, tmp_path, staged=True)
    sink.restore([], 0)
    sink.write_rows(rows_of(0, 10), 0)
    sink.write_rows(rows_of(10, 5), 1)
    sink.write_rows(rows_of(15, 5), 1)
    names = [sink.name_of(path) for path in sink.seal(0)]
    sink.sync(sorted(tmp_path.glob(".part-000000*")))
    assert names == ["part-000000.arrow"]
    assert cluster.messages(topic) == []
    sink.publish(names, 0)
    assert ids_of(cluster.messages(topic)) == list(range(10))
    names += [sink.name_of(path) for path in sink.seal(1)]
    sink.publish(names[1:], 1)
    assert sink.seal(2) == []
    sink.publish([], 2)
    sink.close()
    messages = cluster.messages(topic)
    assert ids_of(messages) == list(range(20))
    assert sorted(position_of(m) for m in messages) == [(0, n) for n in range(10)] + [(1, n) for n in range(10)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sent.json"]


def test_a_crash_while_results_are_sent_sends_them_again_with_the_same_positions(
    cluster: MockCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sink_of(cluster, topic, tmp_path, staged=True)
    first.restore([], 0)
    first.write_rows(rows_of(0, 40), 0)
    names = [first.name_of(path) for path in first.seal(0)]
    first.write_rows(rows_of(40, 9), 1)  # of a generation that no checkpoint ends

    def crash(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "write_whole", crash)
        with pytest.raises(KeyboardInterrupt):
            first.publish(names, 0)
    second = sink_of(cluster, topic, tmp_path, staged=True, resumes=True)
    second.restore(names, 1)
    second.write_rows(rows_of(40, 10), 1)
    names += [second.name_of(path) for path in second.seal(1)]
    second.publish(names[1:], 1)
    second.restore(names, 2)  # a recovery, and what has been sent is not sent again
    second.close()
    messages = cluster.messages(topic)
    assert len(messages) == 90
    assert ids_of(without_repeats(messages)) == list(range(50))
    positions = [(0, n) for n in range(40)] + [(1, n) for n in range(10)]
    assert sorted(position_of(m) for m in without_repeats(messages)) == positions


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_messages_without_keys_are_sent_again_to_the_same_partition(
    form: str, cluster: MockCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow messages, and rows whose keys are null on both sides. A consumer that keeps a position of each partition drops
    the repeats, and has all of them."""

    def unkeyed(first: int) -> pa.RecordBatch:
        rows = rows_of(first, 1)
        columns = [pa.nulls(1, f.type) if f.name == "user" else rows.column(f.name) for f in rows.schema]
        return pa.record_batch(columns, schema=rows.schema)

    sink = sink_of(cluster, topic, tmp_path, form=form, staged=True)
    sink.restore([], 0)
    for row in range(60):
        sink.write_rows(unkeyed(row), 0)
    names = [sink.name_of(path) for path in sink.seal(0)]
    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "write_whole", lambda path, data: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sink.publish(names, 0)
    sink_of(cluster, topic, tmp_path, form=form, staged=True, resumes=True).restore(names, 1)
    messages = cluster.messages(topic)
    assert len(messages) == 120
    assert len({message.partition() for message in messages}) > 1
    assert sorted(position_of(message) for message in without_repeats(messages)) == [(0, row) for row in range(60)]


def test_several_sinks_count_their_rows_apart(cluster: MockCluster, topic: str, tmp_path: Path) -> None:
    sinks = [sink_of(cluster, topic, tmp_path, share=(number, 2)) for number in range(2)]
    for number, sink in enumerate(sinks):
        sink.write_rows(rows_of(20 * number, 20), 0)
        sink.close()
    messages = cluster.messages(topic)
    assert ids_of(without_repeats(messages)) == list(range(40))
    assert {(writer_of(m), position_of(m)) for m in messages} == {(n, (0, row)) for n in range(2) for row in range(20)}


def test_other_numbers_of_sinks_send_what_a_crash_left_with_the_same_positions(
    cluster: MockCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three sinks one has sent its rows, one has sent them and not noted it, and one has sent none. Two go on, then one."""
    sinks = [sink_of(cluster, topic, tmp_path, staged=True, share=(number, 3)) for number in range(3)]
    names = []
    for number, sink in enumerate(sinks):
        sink.restore([], 0)
        sink.write_rows(rows_of(10 * number, 10), 0)
        names += [sink.name_of(path) for path in sink.seal(0)]
        sink.write_rows(rows_of(90, 5), 1)  # of a generation that no checkpoint ends
    assert names == [f"part-s{number}-000000.arrow" for number in range(3)]
    sinks[1].publish(names[1:2], 0)
    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "write_whole", lambda path, data: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sinks[2].publish(names[2:], 0)
    sinks = [sink_of(cluster, topic, tmp_path, staged=True, resumes=True, share=(number, 2)) for number in range(2)]
    sinks[0].restore([names[0], names[2]], 1)
    sinks[1].restore(names[1:2], 1)
    for number, sink in enumerate(sinks):
        sink.write_rows(rows_of(30 + 10 * number, 10), 1)
        names += [sink.name_of(path) for path in sink.seal(1)]
    sinks[0].publish(names[3:4], 1)
    last = sink_of(cluster, topic, tmp_path, staged=True, resumes=True)
    last.restore(names, 2)
    last.write_rows(rows_of(50, 10), 2)
    last.close()
    messages = cluster.messages(topic)
    assert len(messages) == 70, "the rows of one sink were sent twice"
    assert ids_of(without_repeats(messages)) == list(range(60))
    wanted = {(n, (0, row)) for n in range(3) for row in range(10)} | {(n, (1, row)) for n in range(2) for row in range(10)}
    assert {(writer_of(m), position_of(m)) for m in messages} == wanted | {(0, (2, row)) for row in range(10)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sent-s1.json", ".sent-s2.json", ".sent.json"]
    with pytest.raises(UserError, match="holds what another run has sent"):
        sink_of(cluster, topic, tmp_path, staged=True, share=(1, 2))


def test_what_no_checkpoint_holds_is_dropped(cluster: MockCluster, topic: str, tmp_path: Path) -> None:
    sink = sink_of(cluster, topic, tmp_path, staged=True)
    sink.restore([], 0)
    sink.write_rows(rows_of(0, 10), 0)
    sink.restore([], 0)  # a recovery before the first checkpoint
    sink.write_rows(rows_of(0, 10), 0)
    sink.abort()
    assert cluster.messages(topic) == []
    assert list(tmp_path.iterdir()) == []
    again = sink_of(cluster, topic, tmp_path, staged=True)
    again.write_rows(rows_of(0, 3), 0)
    again.close()
    assert ids_of(cluster.messages(topic)) == [0, 1, 2]
    with pytest.raises(UserError, match="holds what another run has sent"):
        sink_of(cluster, topic, tmp_path, staged=True)


def test_results_that_a_checkpoint_holds_must_be_there(cluster: MockCluster, topic: str, tmp_path: Path) -> None:
    sink = sink_of(cluster, topic, tmp_path, staged=True, resumes=True)
    with pytest.raises(RunFailed, match=r"part-000000\.arrow: results that a checkpoint holds are gone"):
        sink.restore(["part-000000.arrow"], 1)
    with pytest.raises(RunFailed, match="which is no file of this sink"):
        sink.restore(["part-000000-00000.parquet"], 1)
    (tmp_path / ".sent.json").write_text("{")
    with pytest.raises(RunFailed, match="cannot be read; it said what has been sent"):
        sink.restore([], 1)
    sink.abort()


# ---------------------------------------------------------------- what goes wrong


def test_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SETUP_S", 0.5)
    with pytest.raises(UserError, match=r"sink kafka: no broker answers at 127\.0\.0\.1:1 within 0\.5 s"):
        KafkaSink(KafkaTopic(KafkaBroker(KafkaSinkConfig("127.0.0.1:1", "t"))), PLAN, tmp_path)


def test_a_broker_that_goes_away_ends_the_run(tmp_path: Path) -> None:
    mine = MockCluster(1)
    mine.make("t")
    settings = ("message.timeout.ms=300", "queue.buffering.max.messages=20", "enable.idempotence=false")
    sink = KafkaSink(KafkaTopic(KafkaBroker(KafkaSinkConfig(mine.servers, "t", properties=settings))), PLAN, tmp_path)
    sink.write_rows(rows_of(0, 10), 0)
    sink._broker.flush()
    mine.close()
    with pytest.raises(RunFailed, match="sink kafka: topic t: results cannot be delivered"):
        sink.write_rows(rows_of(10, 100), 0)  # more than the client's queue takes
    with pytest.raises(RunFailed, match="results cannot be delivered"):
        sink.close()
    sink.abort()


def test_a_row_that_is_too_large(cluster: MockCluster, topic: str, tmp_path: Path) -> None:
    settings = ("message.max.bytes=1000",)
    sink = KafkaSink(KafkaTopic(KafkaBroker(KafkaSinkConfig(cluster.servers, topic, "arrow", settings))), PLAN, tmp_path)
    with pytest.raises(RunFailed, match=r"a message of \d+ bytes cannot be sent: .*[Mm]essage size too large"):
        sink.write_rows(rows_of(0, 500), 0)
    sink.abort()

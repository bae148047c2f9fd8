"""Kafka topics as streams, against the client library's mock cluster; rows as messages; messages as rows."""

from __future__ import annotations

import builtins
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.loader import config_from_plain
from swjoin.config.run import KafkaConfig, KafkaSinkConfig, RunConfig, StreamConfig
from swjoin.connectors.kafka import client
from swjoin.connectors.kafka import reader as kafka_reader
from swjoin.connectors.kafka.decoder import Decoded, MessageDecoder
from swjoin.connectors.kafka.source import KafkaSource
from swjoin.connectors.open import open_live_sources
from swjoin.connectors.row_encoder import TupleEncoder, describe_streams
from swjoin.connectors.schema import parse_schema
from swjoin.connectors.source import is_live
from swjoin.core.batch import LEFT
from swjoin.core.errors import RunFailed, SwjoinError, UserError
from tests.support.kafka_cluster import PARTITIONS, MockCluster, Sent
from tests.support.limits import PROCESS_S
from tests.support.merged_rows import late_rows, merged_order

COLUMNS = "key: int64, ts: timestamp[us], note: string"
SCHEMA = parse_schema(COLUMNS, "test")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def opened() -> Iterator[list[KafkaSource]]:
    sources: list[KafkaSource] = []
    yield sources
    for source in sources:
        source.close()


def config_of(servers: str, topic: str, time_section: dict[str, Any] | None = None, **kafka: Any) -> RunConfig:
    schema = kafka.pop("schema", COLUMNS)
    side = {"kafka": {"servers": servers, "topic": topic, **kafka}, "schema": schema, "key": "key", "time": "ts"}
    if "id" in schema:
        side["id"] = "id"
    return config_from_plain(
        {
            "left": side,
            "right": side,
            "join": {"within": "1s"},
            "time": {"late": "side", **(time_section or {})},
            "serve": {"producer_buffer": "64KB"},
            "cluster": {"distribution_epoch": "16ms"},  # rows do not linger
        }
    )


@pytest.fixture
def source_of(cluster: MockCluster, opened: list[KafkaSource]) -> Callable[..., KafkaSource]:
    def make(topic: str, servers: str = "", **kafka: Any) -> KafkaSource:
        left, right = open_live_sources(config_of(servers or cluster.servers, topic, **kafka), None)
        assert isinstance(left, KafkaSource)
        assert isinstance(right, KafkaSource)
        assert is_live(left)
        opened.extend([left, right])
        return left

    return make


def json_of(key: int | None, ts: int | None, note: str = "") -> bytes:
    stamp = None if ts is None else str(np.datetime64(ts, "us"))
    return json.dumps({"key": key, "ts": stamp, "note": note}).encode()


def arrow_of(rows: list[tuple[int, int]], schema: pa.Schema = SCHEMA) -> bytes:
    columns = {"key": [k for k, _ in rows], "ts": [t for _, t in rows], "note": [str(k) for k, _ in rows]}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def read_all(source: KafkaSource, rows: int | None = None) -> list[tuple[int, int]]:
    """(key, time) of so many rows, or of all until the end. Nulls are -1."""
    found: list[tuple[int, int]] = []
    until_s = time.monotonic() + PROCESS_S
    while rows is None or len(found) < rows:
        assert time.monotonic() < until_s, f"{len(found)} rows have come"
        if not source.ready(0.1):
            continue
        batch = source.read()
        if batch is None:
            assert rows is None
            break
        valid = np.ones(len(batch), np.bool_) if batch.key_valid is None else batch.key_valid
        timed = np.ones(len(batch), np.bool_) if batch.ts_valid is None else batch.ts_valid
        found += zip(np.where(valid, batch.key, -1).tolist(), np.where(timed, batch.ts, -1).tolist(), strict=True)
    return found


# ---------------------------------------------------------------- messages as rows

GOOD = [b'{"key":1,"ts":"2020-01-01T00:00:00.5","more":{"x":[1]}}', b"{}", b'{\n"key":\n2}', b' {"note":"\\u00e4"} ']
BAD: list[bytes | None] = [
    None,
    b"",
    b"null",
    b"5",
    b"[1]",
    b'{"key":1',
    b'{"key":1}{"key":2}',
    b'{"key":1}}{"m":{"key":2}',
    b'{"key":1.5}',
    b'{"key":"1"}',
    b'{"key":9223372036854775808}',
    b'{"ts":12}',
    b'{"ts":"yesterday"}',
    b'{"note":"\xff"}',
    b'{"note":"\xed\xa0\x80"}',
    b"\x00\x01\x02",
    b'{"key":1,"key":2}',
    b'{"a":' + b"[" * 3000,
]


def decoder_of(form: Any = "json", columns: str = COLUMNS, id: str | None = None) -> MessageDecoder:
    def check(batch: pa.RecordBatch) -> None:
        if id is not None and batch.column(id).null_count:
            raise UserError("no id")
        if "ts" in batch.schema.names and batch.num_rows and "forbidden" in batch.column("note").to_pylist():
            raise UserError("a time that cannot be used")

    return MessageDecoder(form, parse_schema(columns, "test"), check, id)


NO_STAMP = -1


def decode(decoder: MessageDecoder, messages: list[bytes | None]) -> Decoded:
    decoded = decoder.decode(messages, np.full(len(messages), NO_STAMP))
    decoded.batch.validate(full=True)
    assert len(decoded.message) == len(decoded.unusable) == decoded.batch.num_rows
    return decoded


def test_json_objects_are_rows() -> None:
    decoded = decode(decoder_of(), list(GOOD))
    assert not decoded.unusable.any()
    assert decoded.batch.column("key").to_pylist() == [1, None, 2, None]
    assert decoded.batch.column("note").to_pylist() == [None, None, None, "ä"]
    assert decoded.batch.column("ts").cast(pa.int64()).to_pylist() == [1577836800500000, None, None, None]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:30])
def test_what_is_no_object_of_this_schema_is_a_row_of_nulls(bad: bytes | None) -> None:
    decoded = decode(decoder_of(), [GOOD[0], bad, GOOD[2]])
    assert decoded.message.tolist() == [0, 1, 2]
    assert decoded.unusable.tolist() == [False, True, False]
    assert decoded.batch.slice(1, 1).to_pylist() == [{"key": None, "ts": None, "note": None}]
    assert decoded.batch.column("key").to_pylist() == [1, None, 2]


MESSAGES = st.one_of(
    st.none(),
    st.sampled_from([*GOOD, *BAD]),
    st.binary(max_size=12),
    st.text('{}[]",:m1 \n', max_size=12).map(str.encode),
    st.dictionaries(st.sampled_from(["key", "note", "x"]), st.one_of(st.none(), st.integers(), st.text(max_size=3))).map(
        lambda value: json.dumps(value).encode()
    ),
)


def by_hand(message: bytes | None) -> int | None:
    """The key of a message, and None for one that cannot be used or has none; by another parser."""
    try:
        plain = json.loads((message or b"").decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return plain.get("key") if isinstance(plain, dict) and type(plain.get("key")) is int else None


@pytest.mark.drawn
@settings(max_examples=200, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=8))
def test_each_message_is_one_row_whoever_its_neighbours_are(messages: list[bytes | None]) -> None:
    decoder = decoder_of()
    together = decode(decoder, messages)
    assert together.message.tolist() == list(range(len(messages)))
    for index, message in enumerate(messages):
        alone = decode(decoder, [message])
        assert alone.batch.to_pylist() == together.batch.slice(index, 1).to_pylist()
        assert bool(alone.unusable[0]) == bool(together.unusable[index])
        if not alone.unusable[0] and b'"key"' in (message or b"") and message not in BAD:
            expected = by_hand(message)
            assert expected is None or alone.batch.column("key")[0].as_py() == expected


def test_rows_that_stand_for_messages_have_an_id() -> None:
    decoder = decoder_of(columns=COLUMNS + ", id: uint64", id="id")
    decoded = decode(decoder, [b'{"key":1,"id":7}', b'{"key":1}', b"null", b'{"key":2,"id":8,"note":"forbidden"}'])
    assert decoded.batch.column("id").to_pylist() == [7, 2**64 - 1, 2**64 - 1, 2**64 - 1]
    assert decoded.unusable.tolist() == [False, True, True, True]
    assert decode(decoder_of(columns="key: int64, id: int16", id="id"), [b"5"]).batch.column("id").to_pylist() == [-1]


@pytest.mark.parametrize(("kind", "wrong"), [("int64", -1), ("int64", -2), ("uint64", 2**64 - 1)])
def test_a_message_with_an_id_that_cannot_be_is_unusable(kind: str, wrong: int) -> None:
    columns = f"key: int64, ts: int64, id: {kind}"
    stream = StreamConfig(kafka=KafkaConfig("localhost", "t"), schema=columns, key=("key",), time_unit="us", id="id")
    schema = parse_schema(columns, "test")
    views, keys = describe_streams((stream, schema), (stream, schema), carry=False, packed=True)
    tuples = TupleEncoder(stream, views[LEFT], keys, lambda row: f"row {row}")
    decoder = MessageDecoder("json", schema, lambda batch: tuples.ids(batch, np.arange(batch.num_rows)), "id")
    decoded = decode(decoder, [b'{"key":1,"ts":1,"id":7}', b'{"key":1,"ts":2,"id":%d}' % wrong])
    assert decoded.unusable.tolist() == [False, True]
    assert decoder.complaint == f"row 0: id column id is {wrong}; ids are 0 to 2^64 - 2"
    assert tuples.of(decoded.batch, 0).id.tolist() == [7, 2**64 - 1]


def test_arrow_streams_are_rows() -> None:
    other = pa.schema([("key", pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, other) as writer:
        writer.write_batch(pa.record_batch([pa.array([1])], schema=other))
    several = arrow_of([(1, 10), (2, 20)])
    torn = bytearray(arrow_of([(9, 9)] * 50))
    torn[len(torn) // 2 :] = b"\xff" * (len(torn) - len(torn) // 2)
    more = pa.schema([("extra", pa.int8()), *SCHEMA])
    wide = pa.BufferOutputStream()
    with pa.ipc.new_stream(wide, more) as writer:
        columns = [pa.array([0], pa.int8()), pa.array([3]), pa.array([30], pa.timestamp("us")), pa.array(["x"])]
        writer.write_batch(pa.record_batch(columns, schema=more))
    messages = [several, None, b"", bytes(sink.getvalue()), arrow_of([]), bytes(torn), several[:-200], bytes(wide.getvalue())]
    decoded = decode(decoder_of("arrow"), messages)
    assert decoded.message.tolist() == [0, 0, 1, 2, 3, 5, 6, 7]
    assert decoded.unusable.tolist() == [False, False, True, True, True, True, True, False]
    assert decoded.batch.column("key").to_pylist() == [1, 2, None, None, None, None, None, 3]


def test_messages_have_times_of_their_own() -> None:
    decoder = decoder_of(columns="key: int64, _timestamp: timestamp[us, UTC]")
    decoded = decoder.decode([b'{"key":1}', b'{"key":2}', b"bad"], np.array([1500, -1, 3]))
    assert decoded.batch.column("_timestamp").cast(pa.int64()).to_pylist() == [1_500_000, None, None]
    with pytest.raises(UserError, match="_timestamp is the messages' own time; declare it as a timestamp"):
        decoder_of(columns="key: int64, _timestamp: int64")


def test_what_json_cannot_hold_is_told_before_the_run() -> None:
    with pytest.raises(UserError, match=r"column wait: JSON cannot be read as duration\[us\]"):
        decoder_of(columns=COLUMNS + ", wait: duration[us]")


# ---------------------------------------------------------------- a topic as a stream


def lanes_of(rng: random.Random, rows: int, disorder: int) -> list[list[tuple[int, int]]]:
    """(key, time) per partition; keys are all different; times up to so much out of order."""
    keys = itertools.count()
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    for lane in lanes:
        now = rng.randint(0, 50)
        for _ in range(rng.randint(0, rows)):
            now += rng.randint(0, 9)
            lane.append((next(keys), max(0, now - rng.randint(0, disorder))))
    return lanes


def merged(lanes: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """By the definition of the merge."""
    order = merged_order({f"{p:05d}": [t for _, t in lane] for p, lane in enumerate(lanes)})
    return [lanes[int(lane)][row] for lane, row in order]


def messages_of(lanes: list[list[tuple[int, int]]], form: str, rng: random.Random) -> list[Sent]:
    out: list[Sent] = []
    for partition, lane in enumerate(lanes):
        at = 0
        while at < len(lane):
            rows = 1 if form == "json" else rng.randint(0, 5)
            part = lane[at : at + rows]
            out.append((partition, json_of(*part[0], note="x" * 20) if form == "json" else arrow_of(part)))
            at += rows
    return out


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_partitions_are_merged_by_time(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource], form: str
) -> None:
    rng = random.Random(1)
    lanes = lanes_of(rng, 400, 30)
    cluster.send(topic, messages_of(lanes, form, rng))
    source = source_of(topic, format=form, until_end=True)
    cluster.send(topic, [(0, json_of(-5, 1))])  # after the run has begun
    found = read_all(source)
    assert found == merged(lanes)
    late = late_rows([t for _, t in found], 10)
    assert {found[i] for i in late} == {lane[i] for lane in lanes for i in late_rows([t for _, t in lane], 10)}
    status = source.status()
    assert status["producers"] == PARTITIONS
    assert status["waiting_rows"] == 0
    assert status["received_messages"] == len(messages_of(lanes, form, random.Random(1))) or form == "arrow"


def through_json(position: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(position))
    return plain


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_it_goes_on_from_any_position(
    cluster: MockCluster,
    topic: str,
    source_of: Callable[..., KafkaSource],
    form: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In another process, in the same one, and from the beginning; in batches of any size."""
    rng = random.Random(seed)
    monkeypatch.setattr("swjoin.connectors.live_source.BATCH_ROWS", rng.choice([3, 17, 100]))
    monkeypatch.setattr(kafka_reader, "_MESSAGES", rng.choice([2, 50]))
    lanes = lanes_of(rng, 60, 20)
    expected = merged(lanes)
    cluster.send(topic, messages_of(lanes, form, rng))
    source = source_of(topic, format=form, until_end=True)
    positions: list[tuple[int, dict[str, Any]]] = [(0, through_json(source.position()))]
    found: list[tuple[int, int]] = []
    until_s = time.monotonic() + PROCESS_S
    while time.monotonic() < until_s:
        if source.ready(0.1):
            batch = source.read()
            if batch is None:
                break
            assert int(batch.id[0]) == len(found)
            found += zip(batch.key.tolist(), batch.ts.tolist(), strict=True)
            if rng.random() < 0.5:
                source.ready(0.0)  # the next batch has left the merge, and is not part of the position
            positions.append((len(found), through_json(source.position())))
    assert found == expected
    for rows, position in rng.sample(positions, min(3, len(positions))):
        other = source_of(topic, format=form, until_end=True)
        other.resume_at(rows, position)
        assert read_all(other) == expected[rows:]
        source.resume_at(rows, position)
        assert read_all(source) == expected[rows:]
    source.seek(0)
    assert read_all(source) == expected


def test_messages_that_cannot_be_used_do_not_end_the_run(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]
) -> None:
    cluster.send(topic, [(0, json_of(1, 10)), (0, b"nonsense"), (0, json_of(2, 20)), (0, None), (0, json_of(3, 30))])
    source = source_of(topic, until_end=True)
    assert read_all(source) == [(1, 10), (-1, -1), (2, 20), (-1, -1), (3, 30)]
    assert source.status()["unusable_messages"] == 2
    position = through_json(source.position())
    assert position["unusable"] == 2
    other = source_of(topic, until_end=True)
    other.resume_at(5, position)
    assert read_all(other) == []
    assert other.status()["unusable_messages"] == 2


def test_a_full_lane_does_not_stop_the_others(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 holds much more than its lane has room for, and all of it waits for the others' rows."""
    monkeypatch.setattr(kafka_reader, "_MESSAGES", 100)
    many = [(n, 1_000_000 + n) for n in range(3000)]
    lanes = [many, [(5000, 1)], [(5001, 2)], [(5002, 3), (5003, 2_000_000)]]
    big = "x" * 100
    cluster.send(topic, [(p, json_of(k, t, big)) for p, lane in enumerate(lanes) for k, t in lane])
    source = source_of(topic, until_end=True)
    assert source.ready(0) in (True, False)  # the thread has begun
    time.sleep(1.5)
    reader = source._reader
    assert reader is not None
    assert reader.failure is None
    assert reader.messages < 3000, "it reads no more than there is room for"
    assert read_all(source) == merged(lanes)
    assert source.status()["lag_messages"] == 0


def test_latest_reads_what_comes_and_lag_is_told(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]
) -> None:
    cluster.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic, start="latest")
    assert not source.ready(0.3)
    assert not source.ended
    cluster.send(topic, [(p, json_of(10 + p, 5)) for p in range(PARTITIONS)])
    cluster.send(topic, [(p, json_of(20 + p, 9)) for p in range(PARTITIONS)])
    # those of time 9 wait, but for the first partition's, for what others may bring before
    assert read_all(source, 5) == [(10, 5), (11, 5), (12, 5), (13, 5), (20, 9)]
    until_s = time.monotonic() + PROCESS_S
    while (status := source.status())["lag_messages"] != 3:
        assert time.monotonic() < until_s, status
        source.ready(0.1)
    assert [status[f"lag_messages_{p}"] for p in range(PARTITIONS)] == [0, 1, 1, 1]
    source.seek(0)  # before the first checkpoint: the offsets at which the run began, not the latest now
    assert read_all(source, 5) == [(10, 5), (11, 5), (12, 5), (13, 5), (20, 9)]


def test_partitions_that_are_read_to_their_end_can_be_idle(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]
) -> None:
    cluster.send(topic, [(1, json_of(n, n)) for n in range(10)])
    source = source_of(topic, time_section={"idle_timeout": "300ms"})
    assert read_all(source, 10) == [(n, n) for n in range(10)]


def test_partitions_that_the_topic_gets_later(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_NEW_PARTITIONS_S", 0.2)
    cluster.send(topic, [(p, json_of(p, 10)) for p in range(PARTITIONS)])
    found = client.find_topic
    with monkeypatch.context() as patch:
        patch.setattr("swjoin.connectors.kafka.source.find_topic", lambda *args: found(*args)[:3])
        source = source_of(topic)
    rows = read_all(source, 1)
    assert source.merge.lanes == 3
    while source.merge.lanes == 3:
        source.ready(0.1)
    cluster.send(topic, [(p, json_of(10 + p, 20)) for p in range(PARTITIONS)])
    rows += read_all(source, 4)
    assert set(rows) == {(0, 10), (1, 10), (2, 10), (3, 10), (10, 20)}
    assert set(source.position()["offsets"]) == {f"{p:05d}" for p in range(PARTITIONS)}


# ---------------------------------------------------------------- what goes wrong


def test_no_broker(topic: str, source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SETUP_S", 0.5)
    with pytest.raises(UserError, match=r"left kafka: no broker answers at 127\.0\.0\.1:1 within 0\.5 s"):
        source_of(topic, "127.0.0.1:1")


def test_no_topic(source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SETUP_S", 1.0)
    with pytest.raises(UserError, match=r"left kafka: topic nowhere: .*[Uu]nknown topic"):
        source_of("nowhere")


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        (["enable.auto.commit=true"], "left kafka: property enable.auto.commit is set by swjoin; leave it out"),
        (["bootstrap.servers=x"], "property bootstrap.servers is set by swjoin"),
        (["no.such.property=1"], "no.such.property"),
        (["session.timeout.ms=many"], "session.timeout.ms"),
        (["sasl.password=@/nowhere/secret"], "left kafka: /nowhere/secret: cannot be read"),
    ],
)
def test_wrong_properties(source_of: Callable[..., KafkaSource], properties: list[str], line: str) -> None:
    with pytest.raises(UserError) as raised:
        source_of("any", properties=properties)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_secrets_lie_in_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    found = client.client_settings("here", "a:1", [f"sasl.password=@{tmp_path / 'secret'}", "a=b=c"], {"x": 1}, {"a": 0})
    assert found == {"log_level": 0, "sasl.password": "hush", "a": "b=c", "x": 1, "bootstrap.servers": "a:1"}


def test_without_the_library(source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "confluent_kafka":
            raise ImportError
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"confluent-kafka, which is missing; .*pip install '\.\[kafka\]' in a checkout$"):
        source_of("any")


def test_brokers_that_go_away_for_good_end_the_run(
    topic: str, source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_AWAY_S", 1.0)
    mine = MockCluster(1)
    mine.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic, mine.servers)
    assert read_all(source, 1) == [(0, 1)]
    mine.close()
    with pytest.raises(RunFailed, match=f"left kafka: topic {topic}: no broker has answered for"):
        read_all(source, 99)
    source.close()


@pytest.mark.parametrize(("shift", "line"), [(5, "it ends at 1 now; is it another topic"), (-1, "it begins at 0 now")])
def test_messages_that_are_gone(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource], shift: int, line: str
) -> None:
    cluster.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic)
    position = through_json(source.position())
    position["offsets"]["00002"][0] += shift
    with pytest.raises(RunFailed, match=f"partition 2: message {shift}, which comes next, is gone: {line}"):
        source.resume_at(0, position)


def test_a_partition_that_is_gone(cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]) -> None:
    cluster.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic)
    position = through_json(source.position())
    position["offsets"]["00009"] = [0, 0]
    with pytest.raises(RunFailed, match="has no partition 9 any more"):
        source.resume_at(0, position)


def test_too_many_partitions(
    cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swjoin.connectors.kafka.source.MOST_LANES", 3)
    cluster.send(topic, [(0, json_of(1, 1))])
    with pytest.raises(UserError, match=f"topic {topic} has 4 partitions, more than 3"):
        source_of(topic)


def test_offsets_out_of_range_while_it_runs(cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]) -> None:
    """As when retention is faster than the run: the next message is not there, and no other one is taken for it."""
    cluster.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic)
    position = through_json(source.position())
    position["offsets"]["00002"][0] = 7
    source._restart(0, position)
    with pytest.raises(RunFailed, match="partition 2: messages are gone before they were read"):
        read_all(source, 9)


def test_it_closes_at_once(cluster: MockCluster, topic: str, source_of: Callable[..., KafkaSource]) -> None:
    cluster.send(topic, [(p, json_of(p, 1)) for p in range(PARTITIONS)])
    source = source_of(topic)
    read_all(source, 1)
    reader = source._reader
    assert reader is not None
    source.close()
    assert not reader._thread.is_alive()


def test_configurations_are_checked() -> None:
    with pytest.raises(UserError, match="servers is empty"):
        KafkaConfig(" ", "t")
    with pytest.raises(UserError, match="write name=value"):
        KafkaSinkConfig("a:1", "t", properties=("x",))
    assert isinstance(UserError("x"), SwjoinError)

"""Kafka sink: results as messages of a topic.

What: `KafkaSink`; `KafkaBroker`, the client that the sinks of several queries share; `json_messages` and `arrow_messages`,
which encode rows.
Why: consumers of the topic must be able to process each row exactly once, although broker retries and recoveries send messages
twice: every message has its position in a header, and a repeated message has the same position.
Stays out: columns of a row (`connectors.output_columns`), the client's settings (`connectors.kafka.client`).

Without checkpoints rows are sent at once. With checkpoints the rows of a generation wait in hidden Arrow files until the next
checkpoint is complete; then they are sent, and a small file records it once the broker has them all. A crash between the two
sends the generation again. Rows of one sink in one partition have ascending positions, so a consumer drops rows that are not
above the highest position of that sink that it has read there. Whoever sends a file, its rows have the number of the sink that
wrote it: a run may go on with another number of sinks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import secrets
from binascii import crc32
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swjoin.config.run import KafkaSinkConfig
from swjoin.connectors.files.sink import only_hidden, sink_of_file
from swjoin.connectors.kafka.client import KafkaConnectionError, client_library, client_settings, find_topic
from swjoin.connectors.output_columns import ResultColumns
from swjoin.core.batch import Pairs, ResultRows
from swjoin.core.errors import RunFailed, UserError, one_line
from swjoin.core.storage import sync_file, sync_folder, write_whole, writing

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

_POLL_S = 0.1
_BY_KEY = -1  # librdkafka's RD_KAFKA_PARTITION_UA
_JSON_ROWS = 8192  # encoded at a time
_ARROW_ROWS, _ARROW_BYTES = 16_384, 512 << 10  # of one message; the default limit of a broker is 1 MB
_FILE = re.compile(r"part-(?:s(?P<sink>\d+)-)?(?P<generation>\d{6})\.arrow")
Message = tuple[str | None, bytes, int]  # key, value, number of its first row


def json_messages(rows: pa.RecordBatch, keys: Sequence[str]) -> Iterator[Message]:
    """A message per row: an object with a field per column. Times are text, bytes are base64, NaN and infinity are null. keys:
    columns of messages' keys, if they have any."""
    for start in range(0, rows.num_rows, _JSON_ROWS):
        part = rows.slice(start, _JSON_ROWS)
        columns = {name: _plain(column).to_pylist() for name, column in zip(part.schema.names, part.columns, strict=True)}
        texts = (json.dumps(dict(zip(columns, row, strict=True)), default=str) for row in zip(*columns.values(), strict=True))
        marks = zip(*(columns[name] for name in keys), strict=True) if keys else itertools.repeat((), part.num_rows)
        for number, (text, mark) in enumerate(zip(texts, marks, strict=True), start):
            yield _key_text(mark), text.encode(), number


def _key_text(values: tuple[Any, ...]) -> str | None:
    if all(value is None for value in values):
        return None
    return str(values[0]) if len(values) == 1 else json.dumps(values, default=str)


def _plain(column: pa.Array) -> pa.Array:
    """The column with a type that JSON has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
    if pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    binary = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view
    if any(of_kind(kind) for of_kind in binary):
        import base64

        return pa.array([None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()], pa.string())
    return column


def arrow_messages(rows: pa.RecordBatch) -> Iterator[Message]:
    """Arrow IPC streams of about half a megabyte at most, without keys."""
    import pyarrow as pa

    per_row = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(_ARROW_ROWS, _ARROW_BYTES // per_row))
    left = [(start, min(step, rows.num_rows - start)) for start in range(0, rows.num_rows, step)][::-1]
    while left:
        start, count = left.pop()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows.slice(start, count))
        if sink.tell() > _ARROW_BYTES * 3 // 2 and count > 1:  # these rows are longer than the average
            left += [(start + count // 2, count - count // 2), (start, count // 2)]
        else:
            yield None, sink.getvalue().to_pybytes(), start


class _GenerationFile:
    """Rows of one generation in a hidden file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.path = path
        with writing(path):
            self._writer: Any = pa.ipc.new_stream(str(path), schema)

    def write(self, rows: pa.RecordBatch) -> None:
        with writing(self.path):
            self._writer.write_batch(rows)

    def close(self) -> None:
        with writing(self.path):
            self._writer.close()

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
        self.path.unlink(missing_ok=True)


class KafkaBroker:
    """The client of one sink, or of those of several queries, each of which has a topic. UserError without a broker or the
    library."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        self.config = config
        self._trouble = KafkaConnectionError()
        self._failure: str | None = None  # of a message that could not be delivered
        self._closed = False
        self._partitions: dict[str, list[int]] = {}
        kafka = client_library()
        ours = {"delivery.report.only.error": True, "on_delivery": self._delivered, "error_cb": self._trouble}
        defaults: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000}
        defaults |= {"queue.buffering.max.kbytes": 32_768, "compression.type": "lz4"}
        settings = client_settings("sink kafka", config.servers, config.properties, ours, defaults)
        try:
            self._producer: Producer = kafka.Producer(settings)
        except (kafka.KafkaException, ValueError, TypeError) as error:
            raise UserError(f"sink kafka: {one_line(error)}") from None

    def partitions_of(self, topic: str) -> list[int]:
        """UserError without the topic."""
        if topic not in self._partitions:
            self._partitions[topic] = find_topic(self._producer, topic, "sink kafka", self.config.servers, self._trouble)
        return self._partitions[topic]

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = f"sink kafka: topic {message.topic()}: results cannot be delivered: {one_line(error.str())}"

    def check(self) -> None:
        """RunFailed when a message could not be delivered."""
        if self._failure is not None:
            raise RunFailed(self._failure)

    def send(self, topic: str, message: Message, partition: int, position: bytes) -> None:
        """Waits while the client's queue is full."""
        key, value, _ = message
        headers: list[tuple[str, str | bytes | None]] = [("position", position)]
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(_POLL_S)
                self.check()
            except client_library().KafkaException as error:
                text = one_line(error.args[0].str())
                raise RunFailed(f"sink kafka: topic {topic}: a message of {len(value)} bytes cannot be sent: {text}") from None

    def poll(self) -> None:
        self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Wait until the broker has all messages; each message has its time limit."""
        while self._producer.flush(_POLL_S):
            self.check()
        self.check()

    def abort(self) -> None:
        """Messages that were not sent are dropped."""
        if not self._closed:
            self._closed = True
            try:
                with contextlib.suppress(Exception):
                    self._producer.flush(1.0)
            finally:
                self._producer.purge()


class KafkaTopic(NamedTuple):
    """What a sink sends to: the topic of a query, by its name."""

    broker: KafkaBroker
    query: str = ""

    @property
    def name(self) -> str:
        return self.broker.config.topic_of(self.query)


class KafkaSink:
    """Rows as messages of a topic. folder: of rows that wait for a checkpoint. UserError without the topic.

    staged, resumes: see `open_sink`. share: number of this sink, and how many write to the topic.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        plan: ResultColumns,
        folder: Path,
        *,
        staged: bool = False,
        resumes: bool = False,
        share: tuple[int, int] | None = None,
    ) -> None:
        self._broker, self._topic, self._plan, self._folder = topic.broker, topic.name, plan, folder
        self._share = share or (0, 1)
        self._staged = staged
        self._keys = [name for name in plan.schema.names if name in plan.key_names]
        self._writer = secrets.token_hex(4)
        self._rows_sent = 0  # by a run without checkpoints
        self._kept: dict[int, _GenerationFile] = {}
        self._partitions = self._broker.partitions_of(self._topic)
        if staged:
            self._prepare(resumes)

    def _prepare(self, resumes: bool) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self._folder}: cannot be made ({error.strerror})") from None
        if not resumes:
            if any(self._folder.glob(".sent*.json")):
                raise UserError(f"{self._folder}: holds what another run has sent; choose another --out or remove it")
            self._remove_hidden()  # of a run that ended before its first checkpoint

    def _remove_hidden(self) -> None:
        """Remove the hidden files of this sink, and of those that it stands for where a run goes on with fewer sinks."""
        mine, sinks = self._share
        for path in self._folder.glob(".part-*.arrow*"):
            if sink_of_file(path.name) % sinks == mine:
                path.unlink()

    # ------------------------------------------------------------ to the broker

    def _send(self, rows: pa.RecordBatch, start: str, first: int) -> None:
        """Send rows. start: of their positions. first: number of the first row."""
        messages = json_messages(rows, self._keys) if self._broker.config.format == "json" else arrow_messages(rows)
        for message in messages:
            key, _, number = message
            position = f"{start}.{first + number}".encode()
            partition = _BY_KEY
            if key is None:  # the client would choose any partition, and another one when the message is sent again
                partition = self._partitions[crc32(position) % len(self._partitions)]
            self._broker.send(self._topic, message, partition, position)
        self._broker.poll()

    # ------------------------------------------------------------ rows

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None:
        self.write_rows(self._plan.decode(pairs), generation)

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None:
        """Rows of pairs that have been decoded."""
        if not rows.num_rows:
            return
        if not self._staged:
            first, self._rows_sent = self._rows_sent, self._rows_sent + rows.num_rows
            self._send(rows, "0" if self._share[1] == 1 else f"0.{self._share[0]}", first)
            return
        if generation not in self._kept:
            path = self._folder / f".{self._name(generation)}.{self._writer}"
            self._kept[generation] = _GenerationFile(path, rows.schema)
        self._kept[generation].write(rows)

    # ------------------------------------------------------------ with checkpoints

    def _name(self, generation: int) -> str:
        mine, sinks = self._share
        return f"part-{f's{mine}-' if sinks > 1 else ''}{generation:06d}.arrow"

    def _sent_file(self, sink: int) -> Path:
        return self._folder / (f".sent-s{sink}.json" if sink else ".sent.json")

    def _sent_generations(self, sink: int) -> int:
        """Number of generations, from 0 on, of which all rows that this sink wrote have been sent."""
        path = self._sent_file(sink)
        try:
            return int(json.loads(path.read_text())["generations"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError):
            raise RunFailed(f"{path}: cannot be read; it said what has been sent") from None

    def seal(self, generation: int) -> list[Path]:
        kept = self._kept.pop(generation, None)
        if kept is None:
            return []
        kept.close()
        return [kept.path]

    def sync(self, files: Sequence[Path]) -> None:
        for path in files:
            sync_file(path)
        if files:
            sync_folder(self._folder)

    def name_of(self, file: Path) -> str:
        return file.name.removeprefix(".").removesuffix(f".{self._writer}")

    def publish(self, names: Sequence[str], generation: int) -> None:
        import pyarrow as pa

        if not names and self._sent_generations(self._share[0]):
            return
        done = {self._share[0]: self._sent_generations(self._share[0])}
        for name in names:
            found = _FILE.fullmatch(name)
            if found is None:
                raise RunFailed(f"{self._folder}: a checkpoint names {name[:100]}, which is no file of this sink")
            sink, number, first = found["sink"], int(found["generation"]), 0
            writer = int(sink or 0)
            if writer not in done:
                done[writer] = self._sent_generations(writer)
            if number < done[writer]:
                continue
            path, start = only_hidden(self._folder, f".{name}", "*", self._writer), str(number)
            try:
                with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                    for rows in reader:
                        self._send(rows, start if sink is None else f"{start}.{sink}", first)
                        first += rows.num_rows
            except (OSError, pa.ArrowException) as error:
                raise RunFailed(f"{path}: results that a checkpoint holds cannot be read: {one_line(error)}") from None
        self._broker.flush()
        for writer, generations in done.items():
            write_whole(self._sent_file(writer), json.dumps({"generations": max(generations, generation + 1)}).encode())
        for name in names:
            for path in self._folder.glob(f".{name}*"):
                path.unlink()

    def restore(self, names: Sequence[str], generation: int) -> None:
        for kept in self._kept.values():
            kept.drop()
        self._kept.clear()
        if generation:
            self.publish(names, generation - 1)
        self._remove_hidden()

    # ------------------------------------------------------------ the end

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing to complete."""

    def close(self, whole: dict[str, Any] | None = None) -> None:
        for generation in sorted(self._kept):
            names = [self.name_of(path) for path in self.seal(generation)]
            self.publish(names, generation)
        self._broker.flush()

    def abort(self, *, started: bool = True) -> None:
        """Rows that have been sent stay; with checkpoints a resumed run produces the others again."""
        for kept in self._kept.values():
            kept.drop()
        self._kept.clear()
        self._broker.abort()

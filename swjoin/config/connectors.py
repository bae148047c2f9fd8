"""Both ends of a run as sections of a configuration: where streams come from, where results go, who may reach it meanwhile.

What: `StreamConfig` with `FlightConfig` and `KafkaConfig`; `SinkConfig` with `KafkaSinkConfig`; `ServeConfig`.
Why: a section is checked where it is described.
Stays out: the other sections (`config.sections`), what must hold between sections (`config.run`).
"""

from __future__ import annotations

import codecs
import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from swjoin.config.sections import check, check_key
from swjoin.core.units import check_time_zone

QUERY_IN_TOPIC = "{query}"
LIVE_SOURCES = ("flight", "kafka", "watch")
_IRI = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*:[^<>"{}|^\x60\\\x00-\x20]*""")


@dataclass(frozen=True)
class FlightConfig:
    """Producers push the stream over Arrow Flight (`swjoin serve`).

    producers: how many, by name: rows wait until so many have come, and the stream ends when they all have; 0: any number, and
    a client has to end the stream.
    """

    producers: int = 0

    def __post_init__(self) -> None:
        check(0 <= self.producers <= 1024, "flight: producers must be 0 (any number) to 1024")


@dataclass(frozen=True)
class KafkaConfig:
    """A Kafka topic. servers: bootstrap servers, host:port,... topic: its name. format: `json`, an object per message with a
    field per column;
    `arrow`, an Arrow IPC stream per message. start: where a stream begins without a checkpoint. until_end: it ends at the
    offsets that were the topic's last when the run began. properties: of librdkafka, name=value; a value @FILE stands for the
    content of that file.
    """

    servers: str
    topic: str
    format: Literal["json", "arrow"] = "json"
    start: Literal["earliest", "latest"] = "earliest"
    until_end: bool = False
    properties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(bool(self.servers.strip()), "kafka: servers is empty; name bootstrap servers, host:port,...")
        check(bool(self.topic.strip()), "kafka: topic is empty")
        for item in self.properties:
            name, separator, _ = item.partition("=")
            check(bool(name and separator), f"kafka: property {item!r}: write name=value")


@dataclass(frozen=True)
class TextConfig:
    """How files of text are read: CSV and TSV; of JSON lines types and schema alone.

    delimiter: what separates fields, a character; left out, by the extension. nulls: spellings of a missing value. encoding:
    by its name. times: formats of times as strptime has them, tried before ISO 8601. types: columns with their Arrow types,
    `user: string, price: double`; those of other columns are found in the first rows. schema: a file that has such types: YAML
    or JSON, or a Parquet or Arrow file.
    """

    delimiter: str | None = None
    nulls: tuple[str, ...] = ("",)
    encoding: str = "utf-8"
    times: tuple[str, ...] = ()
    types: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        one = self.delimiter is None or len(self.delimiter) == 1
        fits = one and self.delimiter not in ("\n", "\r", '"')
        check(fits, f"csv: delimiter {self.delimiter!r} is not one character that may separate fields")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            check(False, f"csv: encoding {self.encoding!r} is not known; utf-8, latin-1, cp1252 and utf-16 are")
        check(all("%" in form for form in self.times), "csv: times: a format has fields such as %d.%m.%Y %H:%M:%S")


@dataclass(frozen=True)
class StreamConfig:
    """Where one stream comes from: a file, a directory, a live source, or a generator.

    path: a file, a directory, a glob, or a list of these: Parquet, ORC, CSV, TSV, JSON lines, Arrow IPC. generate: of a query,
    rows of the section `workload`: `left` or `right`, its streams, or `calls`, records of phone calls. flight: live,
    producers push it. kafka: live, a topic. watch: live, a directory in which Parquet files appear.
    key: the join columns; none where the stream is an input of a plan, whose joins name theirs. time: the time column.
    time_unit: unit of an integer time column (s, ms, us, ns). assume_timezone: the zone in which times without a zone are local
    times.
    id: column of row ids; None: the 0-based position. columns: which other columns to carry; None: all.
    csv: how files of text are read. schema: a live stream's columns and their Arrow types, `user: int64, ts: timestamp[us],
    note: string`. iri: of an RDF stream, or without a time a static graph, as queries name it; s, p and o are its terms.
    malformed: of its triples that are none: they are in no answer; are rows of a query of their own; or the run ends.
    """

    path: str | tuple[str, ...] | None = None
    key: tuple[str, ...] = ("key",)
    time: str = "ts"
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    id: str | None = None
    columns: tuple[str, ...] | None = None
    flight: FlightConfig | None = None
    kafka: KafkaConfig | None = None
    watch: str | None = None
    schema: str | None = None
    assume_timezone: str | None = None
    csv: TextConfig | None = None
    generate: Literal["left", "right", "calls"] | None = None
    iri: str | None = None
    malformed: Literal["drop", "side", "error"] = "drop"

    def __post_init__(self) -> None:
        check(self.csv is None or not self.live, "stream: csv is for files")
        if self.assume_timezone is not None:
            check_time_zone(self.assume_timezone)
        if self.key:
            check_key(self.key)
        given = [name for name in ("path", "generate", *LIVE_SOURCES) if getattr(self, name) is not None]
        check(len(given) <= 1, f"stream: {' and '.join(given)} given; a stream comes from one place")
        needs = self.flight is not None or self.kafka is not None
        check(not needs or self.schema is not None, "stream: give its schema, such as 'user: int64, ts: timestamp[us]'")
        plain = (self.csv, self.time_unit, self.assume_timezone) == (None, None, None) and self.time in ("", "ts")
        check(self.generate is None or plain, "stream: generated rows have the time ts; leave how times and text are read out")
        check(self.iri is None or not self.key, "stream: iri is for inputs of queries, which have no key")
        check(self.iri is None or _IRI.fullmatch(self.iri) is not None, f"stream: iri {self.iri} is no absolute IRI")
        check(self.iri is None or self.assume_timezone is None, "stream: times of RDF streams have a zone, or are UTC")
        check(self.malformed == "drop" or self.iri is not None, "stream: malformed is for RDF streams; write their iri")
        check(self.schema is None or self.live, "stream: schema is for live streams; files say theirs themselves")

    @property
    def paths(self) -> tuple[str, ...]:
        """All of `path`."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()

    @property
    def live(self) -> bool:
        """Its rows arrive while the run goes on."""
        return any(getattr(self, name) is not None for name in LIVE_SOURCES)


@dataclass(frozen=True)
class KafkaSinkConfig:
    """A topic that results go to. servers, topic, format, properties: as of a stream (`KafkaConfig`). Several queries have a
    topic each, in whose name `{query}` stands for that of the query."""

    servers: str
    topic: str
    format: Literal["json", "arrow"] = "json"
    properties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        KafkaConfig(self.servers, self.topic, self.format, properties=self.properties)

    def topic_of(self, query: str) -> str:
        """That of a query, by its name."""
        return self.topic.replace(QUERY_IN_TOPIC, query)


@dataclass(frozen=True)
class SinkConfig:
    """What becomes of the results.

    kind: `parquet` or `csv` files; `count`, count and digest only; `kafka`, a topic; `flight`, nothing but what consumers take
    over Arrow Flight (`ServeConfig`). kafka: the topic.
    ids: files also hold left_id, right_id, left_ts, right_ts. carry_payload: a count sink wants no payload, so it is not even
    read; true ships it all the same (to measure communication with whole tuples).
    """

    kind: Literal["parquet", "csv", "count", "kafka", "flight"] = "parquet"
    ids: bool = True
    carry_payload: bool = False
    kafka: KafkaSinkConfig | None = None

    def __post_init__(self) -> None:
        check((self.kind == "kafka") == (self.kafka is not None), "sink: kind kafka and a section kafka go together")

    @property
    def in_files(self) -> bool:
        return self.kind in ("parquet", "csv")


@dataclass(frozen=True)
class ServeConfig:
    """The Arrow Flight endpoint of a run (docs/live.md). Off unless `listen` is given.

    listen: HOST:PORT, or a PORT of the loopback; port 0: a free one, as further gateways take on their hosts. Elsewhere than on
    the loopback it needs a certificate with its private key and a token_file. certificate, private_key: PEM files. token_file:
    clients must present what is in it.
    root_certificate: what signed the certificate, unless the system trusts it. result_buffer_bytes: results kept in memory for
    consumers. patience_us: how long a slow consumer may hold up the join before it is cut. producer_buffer_bytes: what one
    producer may have waiting. message_bytes: the largest batch that is taken. clients: calls that push or take at a time.
    """

    listen: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    root_certificate: str | None = None
    token_file: str | None = None
    result_buffer_bytes: int = 64 << 20
    patience_us: int = 5_000_000
    producer_buffer_bytes: int = 8 << 20
    message_bytes: int = 16 << 20
    clients: int = 64

    def __post_init__(self) -> None:
        check(self.result_buffer_bytes >= 1 << 16, "serve: result_buffer must be at least 64KB")
        check(self.patience_us >= 0, "serve: patience must not be negative")
        check(self.producer_buffer_bytes >= 1 << 16, "serve: producer_buffer must be at least 64KB")
        check(1 << 10 <= self.message_bytes <= 1 << 30, "serve: message must be 1KB to 1GB")
        check(self.clients >= 1, "serve: clients must be at least 1")
        check((self.certificate is None) == (self.private_key is None), "serve: give certificate and private_key, or neither")
        if self.listen is not None and not self.loopback:
            safe = self.certificate is not None and self.token_file is not None
            check(
                safe,
                f"serve: {self.address[0]} is not the loopback: give certificate, private_key and token_file, or listen there",
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. UserError when `listen` says none."""
        host, separator, port = (self.listen or "").rpartition(":")
        host = host.strip("[]") if separator else "127.0.0.1"
        check(port.isdigit() and int(port) < 1 << 16 and bool(host), f"serve: listen {self.listen!r}: write HOST:PORT")
        return host, int(port)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the endpoint."""
        host = self.address[0]
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

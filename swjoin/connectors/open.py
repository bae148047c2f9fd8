"""Opens the live streams of a configuration.

What: `open_live_sources`, of a join; `open_live_input`, `live_columns`, of a plan; `merge_of`.
Why: only the factory of the sources depends on all technologies; they do not depend on each other.
Stays out: reading (`connectors.live_source`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.config.run import RunConfig, StreamConfig
from swjoin.connectors.producer_merge import Merge
from swjoin.connectors.row_encoder import StreamColumns, describe_input, describe_streams, settle_input
from swjoin.connectors.schema import parse_schema
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.key_encoder import KeyEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.directory.source import WatchSource
    from swjoin.connectors.flight.source import FlightSource
    from swjoin.connectors.kafka.source import KafkaSource
    from swjoin.connectors.source import LiveSource

_LINGERS = 16  # batches that a merge emits in a distribution epoch
_LONGEST_LINGER_S, _SHORTEST_LINGER_S = 0.02, 0.001


def merge_of(config: RunConfig, *, expected: int = 0) -> Merge:
    """The merge of one stream. With arrival times no row is late, so lanes do not wait for each other."""
    linger_s = min(_LONGEST_LINGER_S, max(_SHORTEST_LINGER_S, config.cluster.distribution_epoch_us / 1e6 / _LINGERS))
    return Merge(
        expected=expected,
        lane_bytes=config.serve.producer_buffer_bytes,
        idle_timeout_us=1 if config.time.model == "arrival" else config.time.idle_timeout_us,
        linger_s=linger_s,
    )


def open_live_sources(config: RunConfig, keep: Path | None) -> tuple[LiveSource, LiveSource]:
    """Both live streams of a configuration, checked by their schemas. UserError names the stream.

    keep: folder for rows that a recovery cannot read from their origin again; None: the run makes no checkpoints.
    """
    sides = (config.left, config.right)
    schemas = [_schema_of(side, name) for side, name in zip(sides, STREAM_NAMES, strict=True)]
    carry = config.sink.kind != "count" or config.sink.carry_payload
    views, keys = describe_streams(
        (config.left, schemas[0]),
        (config.right, schemas[1]),
        carry=carry,
        time_is_ts=config.time.model == "event",
        packed=True,
        query=config.query,
    )
    given = zip(STREAM_NAMES, sides, schemas, views, strict=True)
    left, right = (_open(name, config, side, schema, view, keys, keep) for name, side, schema, view in given)
    return left, right


def open_live_input(
    config: RunConfig,
    stream: StreamConfig,
    name: str,
    expected: Sequence[tuple[str, str]],
    columns: Sequence[str],
    keep: Path | None,
    *,
    whole: bool = False,
) -> FlightSource | KafkaSource | WatchSource:
    """A live input of a plan. expected: names and types, as text, of its columns. columns: names of those that travel. keep: as
    of `open_live_sources`. whole: rows come, and are kept, with all columns that are declared, as other queries may read
    them. UserError names the input."""
    schema = settle_input(stream, _schema_of(stream, name), False, name, expected)
    view = describe_input(stream, schema, name, columns)
    if whole and stream.flight is not None:
        view = replace(view, columns=schema.names)
    return _open(name, config, stream, schema, view, None, keep)


def live_columns(stream: StreamConfig, name: str) -> tuple[tuple[str, str], ...]:
    """Names and types, as Arrow writes them, of the columns of a live stream. UserError when they are not known."""
    return tuple((field.name, str(field.type)) for field in _schema_of(stream, name))


def _schema_of(side: StreamConfig, name: str) -> pa.Schema:
    if side.schema is not None:
        return parse_schema(side.schema, name)
    from swjoin.connectors.directory.source import first_schema

    assert side.watch is not None, "a live stream without a schema is a directory"
    return first_schema(Path(side.watch), name)


def _open(
    name: str,
    config: RunConfig,
    side: StreamConfig,
    schema: pa.Schema,
    view: StreamColumns,
    keys: KeyEncoder | None,
    keep: Path | None,
) -> FlightSource | KafkaSource | WatchSource:
    if side.flight is not None:
        from swjoin.connectors.flight.source import FlightSource

        return FlightSource(name, side, schema, view, keys, merge_of(config, expected=side.flight.producers), keep)
    if side.kafka is not None:
        from swjoin.connectors.kafka.source import KafkaSource

        return KafkaSource(name, side, schema, view, keys, lambda: merge_of(config))
    from swjoin.connectors.directory.source import WatchSource

    return WatchSource(name, side, schema, view, keys)

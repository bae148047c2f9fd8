"""Generated inputs of queries.

What: `GeneratedInput`, rows of `StreamConfig.generate` with columns; `GENERATED`, the kinds with their columns; `whole_table`.
`left` and `right` are the streams of the first paper, `calls` call description records as in StreamCloud's evaluation (section
4): who calls whom, from when, how long, and where.
Why: experiments with queries need streams of any rate and length, without files.
Stays out: times and keys (`connectors.generator.source`), files of them (`spark.generate`).

Calls are one stream of `WorkloadConfig`: its keys are the calling users. Everything else of a row is a function of its id and
of the seed, so that gateways may read any split of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.run import StreamConfig, WorkloadConfig
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.generator.source import GeneratorSource
from swjoin.connectors.row_encoder import describe_input
from swjoin.core.batch import I64, U64, SourceBatch
from swjoin.core.columns import Columns, type_named
from swjoin.core.join_semantics import mix64
from swjoin.core.splits import Split

if TYPE_CHECKING:
    import pyarrow as pa

_STREAM = (("key", "int64"), ("ts", "timestamp[us]"))
_CALLS = (
    ("calling", "int64"),
    ("called", "int64"),
    ("started", "timestamp[us]"),
    ("duration", "int64"),  # seconds
    ("district", "int64"),
    ("x", "double"),
    ("y", "double"),
    ("ts", "timestamp[us]"),  # of the record, at the end of the call
)
GENERATED: dict[str, tuple[tuple[str, str], ...]] = {"left": _STREAM, "right": _STREAM, "calls": _CALLS}
_NUMBERS = {"left": 0, "right": 1, "calls": 2}  # of the streams that are drawn
_DISTRICTS, _MEAN_DURATION_S = 100, 120.0


class GeneratedInput(EncodedSource):
    """Rows of one kind. columns: names of those that travel."""

    why_whole: str | None = None

    def __init__(self, config: StreamConfig, workload: WorkloadConfig, seed: int, name: str, columns: Sequence[str]) -> None:
        assert config.generate is not None, "no generated input"
        view = describe_input(config, schema_of(config.generate), name, columns)
        super().__init__(f"{name} generator", config, view, None)
        self._drawn = GeneratorSource(workload, seed, _NUMBERS[config.generate], carry_payload=False)
        self._columns, self._types = tuple(columns), dict(GENERATED[config.generate])
        self._domain, self._seed = workload.domain, seed
        self.rows_total: int | None = self._drawn.rows_total

    def ready(self, patience_s: float) -> bool:
        return True

    def read(self) -> SourceBatch | None:
        drawn = self._drawn.read()
        if drawn is None:
            return None
        columns = Columns(_batch(drawn, self._columns, self._types, self._domain, self._seed)) if self._columns else None
        return SourceBatch(np.zeros(len(drawn), np.int64), drawn.ts, drawn.id, columns=columns)

    def seek(self, row: int) -> None:
        self._drawn.seek(row)

    def splits(self, reach_us: int) -> list[Split] | None:
        return self._drawn.splits(reach_us)

    def open_split(self, split: Split, skip: int = 0) -> int:
        return self._drawn.open_split(split, skip)

    def origin_us(self) -> int | None:
        return self._drawn.origin_us()

    def close(self) -> None:
        """Nothing is open."""


def schema_of(kind: str) -> pa.Schema:
    """The columns of a kind."""
    import pyarrow as pa

    return pa.schema([(name, type_named(text)) for name, text in GENERATED[kind]])


def whole_table(config: StreamConfig, workload: WorkloadConfig, seed: int) -> pa.Table:
    """All rows of a generated input, with all columns, in the order of their ids."""
    import pyarrow as pa

    assert config.generate is not None, "no generated input"
    names = [name for name, _ in GENERATED[config.generate]]
    source = GeneratedInput(config, workload, seed, config.generate, names)
    batches = []
    while (batch := source.read()) is not None:
        assert batch.columns is not None, "columns were asked for"
        batches.append(batch.columns.batch)
    return pa.Table.from_batches(batches, schema_of(config.generate))


def _batch(drawn: SourceBatch, names: Sequence[str], types: dict[str, str], domain: int, seed: int) -> pa.RecordBatch:
    import pyarrow as pa

    def drawn_of(salt: int) -> U64:
        return mix64(drawn.id * np.uint64(16) + np.uint64(salt) + mix64(np.array([seed], np.uint64)))

    def between_0_and_1(salt: int) -> Any:
        return ((drawn_of(salt) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53

    def durations() -> I64:
        seconds: I64 = 1 + np.floor(-np.log(between_0_and_1(1)) * _MEAN_DURATION_S).astype(np.int64)
        return seconds

    made: dict[str, Any] = {
        "key": lambda: drawn.key,
        "ts": lambda: drawn.ts,
        "calling": lambda: drawn.key,
        "called": lambda: (drawn_of(0) % np.uint64(domain)).astype(np.int64),
        "duration": durations,
        "started": lambda: drawn.ts - durations() * 1_000_000,
        "district": lambda: (drawn_of(2) % np.uint64(_DISTRICTS)).astype(np.int64),
        "x": lambda: between_0_and_1(3),
        "y": lambda: between_0_and_1(4),
    }
    return pa.record_batch({name: pa.array(made[name]()).cast(type_named(types[name])) for name in names})

"""Results of each query while the run goes on: how many rows, and the newest of them as text.

What: `ResultWatcher`, beside a sink: samples of the queries whose results have grown; `QueryBoard`: of the samples of all
sinks, the queries with the most rows, and one of them with its newest rows.
Why: whoever adds a query to a stream looks at its first rows. A sample has some queries in turn, so that thousands of them cost
no more than a few.
Stays out: the counts themselves (`cluster.collector`), files and their columns (`connectors`), presentation (`monitor.web`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.arrow_views import array_of, decoded
from swjoin.core.batch import Pairs, ResultRows
from swjoin.core.join_semantics import format_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.output_columns import AnyColumns, ResultColumns

NEWEST = 10  # rows of a query
LISTED = 100  # queries of a snapshot
IN_A_SAMPLE = 24  # queries
_AT_THE_END = 400  # of the last sample, those whose rows are in it
_SHARED = 256  # newest rows that are kept of queries that share rows, among which are those of each
_CHARACTERS = 120  # of a value
_COLUMNS = 24
_NOTHING = (0, 0)
_WHOLE = ("side", "null_keys")  # of pairs, not one for each


def _tail(rows: Pairs | ResultRows, count: int) -> Pairs | ResultRows:
    """The last rows, copied: they may be a part of many, whose memory they would keep."""
    start = max(0, len(rows) - count)
    index = np.arange(start, len(rows))

    def part(of: Any) -> Any:
        if of is None:
            return None
        return of[start:].copy() if isinstance(of, np.ndarray) else of.take(index)

    return type(rows)(
        **{of.name: getattr(rows, of.name) if of.name in _WHOLE else part(getattr(rows, of.name)) for of in fields(rows)}
    )


def _texts(column: pa.Array) -> list[str | None]:
    import pyarrow as pa

    plain = decoded(column)
    try:
        found = plain.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError):  # bytes that are no text, lists
        found = [_text(value) for value in plain]
    return [text if text is None or len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…" for text in found]


def _text(value: pa.Scalar[Any]) -> str | None:
    try:
        return str(value.as_py()) if value.is_valid else None
    except (ValueError, LookupError, OverflowError):  # a time zone that this machine does not know, a year beyond 9999
        return "?"


class ResultWatcher:
    """Samples of a sink's results: plain values that travel as JSON."""

    def __init__(self, columns: AnyColumns) -> None:
        """columns: of the result rows, which a sink that counts has none of."""
        from swjoin.connectors.output_columns import QueryColumns

        self._columns: list[tuple[str, ResultColumns]] = []
        self._families: dict[int, tuple[int, ...]] = {}  # by the first query
        if isinstance(columns, QueryColumns):
            self._columns = list(columns.queries)
            self._families = {family[0]: family for family in columns.families}
        else:
            self._columns = [("", columns)]
        self._shares = {query: (first, rank) for first, of in self._families.items() for rank, query in enumerate(of)}
        self._newest: dict[int, _Newest] = {}  # by query, or by a family's first one
        self._shown: dict[int, tuple[int, int]] = {}  # by query: its rows in the last sample of it; those written by then
        self._next = 0  # query at which the next sample begins

    def begin(self) -> None:
        """A new collector, perhaps after a recovery."""
        self._newest.clear()
        self._shown.clear()

    def on_write(self, query: int, rows: Pairs | ResultRows) -> None:
        """The sink writes rows of a query, or of a family. query: its number, or that of its first one."""
        if len(rows) and (isinstance(rows, Pairs) or rows.columns is not None):
            self._newest.setdefault(query, _Newest(_SHARED if query in self._families else NEWEST)).add(rows)

    def sample(self, counts: Sequence[tuple[int, int]], *, all_of_them: bool = False) -> list[dict[str, Any]]:
        """Some of the queries whose results have grown since they were last in a sample. counts: rows and digest of each query
        by number. all_of_them: counts of all that have grown."""
        grown = [query for query, (rows, _) in enumerate(counts) if rows != self._shown.get(query, _NOTHING)[0]]
        grown = [query for query in grown if query >= self._next] + [query for query in grown if query < self._next]
        taken, most = (grown, _AT_THE_END) if all_of_them else (grown[:IN_A_SAMPLE], IN_A_SAMPLE)
        if taken:
            self._next = taken[-1] + 1
        found: list[dict[str, Any]] = []
        decoded_parts: dict[int, pa.RecordBatch] = {}
        for number, query in enumerate(taken):
            rows, digest = counts[query]
            newest, written = self._rows_of(query, decoded_parts) if number < most else ({}, 0)
            self._shown[query] = rows, written
            found.append({"name": self._columns[query][0], "rows": rows, "digest": format_digest(digest), **newest})
        return found

    def _rows_of(self, query: int, decoded_parts: dict[int, pa.RecordBatch]) -> tuple[dict[str, Any], int]:
        """The newest rows of a query since the last sample of it, as text, and how many were written by now. decoded_parts: of
        this sample, by identity, as queries that share rows have the same."""
        first, rank = self._shares.get(query, (query, 0))
        _, before = self._shown.get(query, _NOTHING)
        if first not in self._newest:
            return {}, before
        names: list[str] = []
        found: list[list[str | None]] = []
        for rows in reversed(self._newest[first].since(before)):
            ranks = rows.ranks if isinstance(rows, ResultRows) else None
            index = np.arange(len(rows)) if ranks is None else np.flatnonzero(ranks <= rank)
            index = index[max(0, len(index) - NEWEST + len(found)) :]
            if len(index):
                batch = decoded_parts.get(id(rows))
                if batch is None:
                    batch = decoded_parts[id(rows)] = self._columns[query][1].decode(rows)
                names = batch.schema.names[:_COLUMNS]
                columns = [_texts(column.take(array_of(index))) for column in batch.columns[:_COLUMNS]]
                found = [list(row) for row in zip(*columns, strict=True)] + found
            if len(found) == NEWEST:
                break
        return {"columns": names, "newest": found} if found else {}, self._newest[first].written


class _Newest:
    """The newest rows that were written, in the parts in which they came. count: how many are kept at least."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.written = 0
        self._parts: deque[tuple[int, Pairs | ResultRows]] = deque()  # each with what was written after it

    def add(self, rows: Pairs | ResultRows) -> None:
        self.written += len(rows)
        self._parts.append((self.written, _tail(rows, self._count)))
        while self.written - self._parts[0][0] >= self._count:
            self._parts.popleft()

    def since(self, written: int) -> list[Pairs | ResultRows]:
        """Parts that came after so many had been written."""
        return [rows for end, rows in self._parts if end > written]


@dataclass
class _OfSink:
    """The last sample of a query from one sink. rate: rows per second between the last two. span_s: from one to the other."""

    rows: int
    digest: int
    at_s: float
    rate: float = 0.0
    span_s: float = 0.0

    def rate_at(self, now_s: float) -> float:
        """Nothing when no sample has come for long: the query's rows no longer grow."""
        return self.rate if now_s - self.at_s < 3 * self.span_s + 2 else 0.0


@dataclass
class _Result:
    """Of one query. by_sink: the last sample of each."""

    name: str
    by_sink: dict[int, _OfSink] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    newest: deque[list[str | None]] = field(default_factory=lambda: deque(maxlen=NEWEST))

    @property
    def rows(self) -> int:
        return sum(of.rows for of in self.by_sink.values())

    @property
    def digest(self) -> str:
        return format_digest(sum(of.digest for of in self.by_sink.values()) % 2**64)

    def take(self, sink: int, sample: dict[str, Any], at_s: float) -> None:
        found, before = _OfSink(sample["rows"], int(sample["digest"], 16), at_s), self.by_sink.get(sink)
        if before is not None and at_s > before.at_s:
            found.span_s = at_s - before.at_s
            found.rate = max(0, found.rows - before.rows) / found.span_s
        self.by_sink[sink] = found
        self.columns = sample.get("columns", self.columns)
        self.newest.extend(sample.get("newest", []))

    def rate_at(self, now_s: float) -> float:
        return sum(of.rate_at(now_s) for of in self.by_sink.values())


class QueryBoard:
    """What the samples of all sinks say of each query."""

    def __init__(self, descriptions: Mapping[str, str]) -> None:
        """descriptions: of the queries that have names."""
        self._descriptions = dict(descriptions)
        self._results: dict[str, _Result] = {}

    def clear(self) -> None:
        self._results.clear()

    def take(self, sink: int, samples: Sequence[dict[str, Any]], at_s: float) -> None:
        """Of `ResultWatcher.sample`."""
        for sample in samples:
            self._results.setdefault(sample["name"], _Result(sample["name"])).take(sink, sample, at_s)

    def snapshot(self, name: str | None, now_s: float) -> dict[str, Any]:
        """Those with the most rows, and one of them with its newest rows, the newest last; ready for JSON. name: of the one; a
        query that has no name is shown without one."""
        names = self._descriptions
        named = [result for key, result in self._results.items() if key in names]
        most = sorted(named, key=lambda result: (-result.rows, result.name))[:LISTED]
        one = self._results.get("" if name is None else name)
        return {
            "count": len(names),
            "listed": [self._counts(result, now_s) for result in most],
            "shown": None if one is None and name not in names else self._shown(name or "", one, now_s),
        }

    @staticmethod
    def _counts(result: _Result, now_s: float) -> dict[str, Any]:
        return {"name": result.name, "rows": result.rows, "rows_per_s": result.rate_at(now_s)}

    def _shown(self, name: str, result: _Result | None, now_s: float) -> dict[str, Any]:
        """A query that has no rows yet, too."""
        result = result or _Result(name)
        about = {"description": self._descriptions.get(name, ""), "digest": result.digest}
        return {
            **self._counts(result, now_s),
            **about,
            "columns": result.columns,
            "newest": [list(row) for row in result.newest],
        }

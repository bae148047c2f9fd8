"""Answers of queries over RDF streams: codes and typed values become terms in N-Triples syntax.

What: `Answer`: batches of a plan's rows to rows of terms; `write_answer`, a file of them, with count and digest.
Why: rows travel as integers, and become text once, at the sink. The digest is of terms, so that neither codes nor the plan show
in it.
Stays out: plans (`frontends.rdf.planner`), running them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.arrow_views import booleans_of
from swjoin.core.batch import I64
from swjoin.core.join_semantics import format_digest
from swjoin.core.row_digests import row_hashes
from swjoin.frontends.rdf.dictionary import boolean_texts, number_texts, string_texts
from swjoin.frontends.rdf.inputs import Graphs
from swjoin.frontends.rdf.planner import Planned, Shown

if TYPE_CHECKING:
    import pyarrow as pa

_BORN = "born"


def _number_terms(numbers: pa.Array, ranks: pa.Array) -> pa.LargeStringArray:
    """Each different number is written once. Null where number or rank is."""
    import pyarrow as pa

    known = booleans_of(numbers.is_valid()) & booleans_of(ranks.is_valid())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    found = values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64)
    kinds = ranks.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int8)
    by = np.lexsort((found, kinds))
    new = np.ones(len(by), np.bool_)
    new[1:] = (found[by[1:]] != found[by[:-1]]) | (kinds[by[1:]] != kinds[by[:-1]])
    first, place = by[new], np.empty(len(by), np.int64)
    place[by] = np.cumsum(new) - 1
    exact = None if values.dtype == np.float64 else found[first]
    texts = number_texts(values[first].astype(np.float64), kinds[first], exact)
    return texts.take(pa.array(place, mask=~known))


class Total(NamedTuple):
    """Rows of an answer, and the sum of their hashes mod 2^64."""

    rows: int
    digest: int


@dataclass
class Answer:
    """planned: what the rows are. graphs: their terms."""

    planned: Planned
    graphs: Graphs
    _solutions: int = 0

    @property
    def names(self) -> list[str]:
        """Columns of the answer."""
        if self.planned.template is not None:
            return ["s", "p", "o", _BORN]
        return [*(shown.name for shown in self.planned.shown), _BORN]

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(name, pa.int64() if name == _BORN else pa.string()) for name in self.names])

    def decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The answer's rows of a batch of the plan's."""
        import pyarrow as pa

        born = rows.column(_BORN)
        columns = [self._terms(shown, rows).cast(pa.string()) for shown in self.planned.shown]
        if self.planned.template is not None:
            return self._constructed(columns, born)
        return pa.RecordBatch.from_arrays([*columns, born], schema=self.schema)

    def _terms(self, shown: Shown, rows: pa.RecordBatch) -> pa.LargeStringArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [rows.column(name) for name in shown.columns]
        if shown.form in ("term", "ordered"):
            codes: I64 = columns[0].fill_null(-1).to_numpy(zero_copy_only=False)
            if shown.form == "ordered":
                codes = np.where(codes < 0, -1, self.graphs.values.of_order[codes])
            return self.graphs.dictionary.decode(codes)
        if shown.form == "number":
            return _number_terms(columns[0], columns[1])
        if shown.form == "text":
            return string_texts(columns[0], columns[1] if len(columns) > 1 else None)
        if shown.form == "truth":
            texts = boolean_texts(booleans_of(columns[0].fill_null(False)))
            return pc.if_else(columns[0].is_valid(), texts, pa.scalar(None, pa.large_string()))
        return pc.binary_join_element_wise("<", columns[0].cast(pa.string()), ">", "")

    def _constructed(self, columns: list[pa.Array], born: pa.Array) -> pa.RecordBatch:
        """A row per solution and triple of the template; what is no triple, as its subject is a literal, is left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count, parts = len(born), []
        for triple in self.planned.template or ():
            made = []
            for part in triple:
                if isinstance(part, int):
                    made.append(columns[part])
                elif part.startswith("_:"):
                    labels = [f"_:c{part[2:]}x{number}" for number in range(self._solutions, self._solutions + count)]
                    made.append(pa.array(labels, pa.string()))
                else:
                    made.append(pa.array([part] * count, pa.string()))
            s, p, o = made
            fits = pc.and_(pc.and_(pc.invert(pc.starts_with(s, '"')), pc.starts_with(p, "<")), o.is_valid()).fill_null(False)
            parts.append(pa.RecordBatch.from_arrays([s, p, o, born], schema=self.schema).filter(fits))
        self._solutions += count
        whole = pa.Table.from_batches(parts, self.schema).combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=self.schema)

    def batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """The answer's rows of a Parquet file of the plan's."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield self.decoded(batch)


def write_answer(
    answer: Answer, rows: Path, output: tuple[Path | None, Literal["parquet", "csv"]], whole: dict[str, Any]
) -> Total:
    """Write the answer's rows of a file of the plan's; `Total` of them. output: the file, complete or absent, and its kind;
    None: they are counted only. whole: what a proof has beside count and digest."""
    target, kind = output
    sink = None
    if target is not None:
        sink = FileSink(kind, target, RowColumns(tuple((f.name, f.type) for f in answer.schema), ids=False))
    count, digest = 0, 0
    try:
        for batch in answer.batches(rows):
            count += batch.num_rows
            of_batch = int(row_hashes(batch).sum(dtype=np.uint64))
            digest = (digest + of_batch) & (1 << 64) - 1
            if sink is not None and batch.num_rows:
                sink.write_rows(batch, 0, of_batch)
        if sink is not None:
            sink.close({**whole, "count": count, "digest": format_digest(digest)})
            sink = None
    finally:
        if sink is not None:
            sink.abort(started=count > 0)
    return Total(count, digest)

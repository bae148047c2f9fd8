"""Answers of queries over RDF streams: codes and typed values become terms in N-Triples syntax.

What: `Answer`: batches of a plan's rows to rows of terms, of one query or of a family of them; `write_answers`, `tables_of`,
files and tables of them, with count and digest of each query.
Why: rows travel as integers, and become text once, at the sink. The digest is of terms, so that neither codes nor the plan show
in it.
Stays out: plans (`frontends.rdf.planner`), running them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.arrow_views import booleans_of, decoded
from swjoin.core.batch import I64, U64
from swjoin.core.join_semantics import format_digest
from swjoin.core.row_digests import row_hashes
from swjoin.frontends.rdf.families import Family
from swjoin.frontends.rdf.inputs import Graphs
from swjoin.frontends.rdf.planner import Planned, Shown, age_column
from swjoin.frontends.rdf.written_terms import written_terms

if TYPE_CHECKING:
    import pyarrow as pa

_BORN, _MEMBER = "born", "member"
_OPEN_FILES = 200


class Total(NamedTuple):
    """Rows of an answer, and the sum of their hashes mod 2^64."""

    rows: int
    digest: int


class Decoded(NamedTuple):
    """Rows of the answer, the member of the family that each is of, int64 (n,), and their hashes, uint64 (n,)."""

    rows: pa.RecordBatch
    members: I64
    hashes: U64


class Answer:
    """planned: what the rows are. graphs: their terms. family: of queries, or of one. Where its members differ in windows, a
    row is of the narrowest one that holds it, and so of all wider ones (CQELS Cloud, the router of the shared join)."""

    def __init__(self, planned: Planned, graphs: Graphs, family: Family) -> None:
        self.planned, self.graphs, self.family = planned, graphs, family
        self.count, self.nested = family.count, bool(family.widths)
        self._solutions = np.zeros(self.count, np.int64)  # so far, of each member

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

    def decoded(self, rows: pa.RecordBatch) -> Decoded:
        """The answer's rows of a batch of the plan's, in the order of members."""
        import pyarrow as pa

        members = self.members_of(rows)
        if self.count > 1:
            by = np.argsort(members, kind="stable")
            rows, members = rows.take(pa.array(by)), members[by]
        born = rows.column(_BORN)
        terms = [self._terms(shown, rows) for shown in self.planned.shown]
        columns = [decoded(column).cast(pa.string()) for column in terms]
        if self.planned.template is not None:
            return self._constructed(columns, born, members)
        # Of computed numbers, which are dictionaries, each value is hashed once.
        hashes = row_hashes(pa.RecordBatch.from_arrays([*terms, born], self.names))
        return Decoded(pa.RecordBatch.from_arrays([*columns, born], schema=self.schema), members, hashes)

    def members_of(self, rows: pa.RecordBatch) -> I64:
        """The member that each row of the plan's is of."""
        if self.count == 1:
            return np.zeros(rows.num_rows, np.int64)
        if not self.nested:
            found: I64 = rows.column(_MEMBER).to_numpy(zero_copy_only=False)
            return found
        widths = np.array(self.family.widths)
        ages = (rows.column(age_column(block)).to_numpy(zero_copy_only=False) for block in range(widths.shape[1]))
        ranks = (np.searchsorted(widths[:, block], age) for block, age in enumerate(ages))
        narrowest: I64 = np.maximum.reduce(list(ranks))
        return narrowest

    def place_of(self, members: I64, member: int) -> tuple[int, int]:
        """Where the rows of a member are. members: of rows, ascending."""
        begin, end = np.searchsorted(members, [member, member + 1])
        return (0 if self.nested else int(begin)), int(end)

    def totals(self, counts: I64, digests: U64) -> list[Total]:
        """Of members. counts, digests: of the rows that each alone is of."""
        if self.nested:
            counts, digests = np.cumsum(counts), np.cumsum(digests, dtype=np.uint64)
        return [Total(int(count), int(digest)) for count, digest in zip(counts, digests, strict=True)]

    def _terms(self, shown: Shown, rows: pa.RecordBatch) -> pa.Array[Any]:
        columns = [rows.column(name) for name in shown.columns]
        if shown.form in ("term", "ordered"):
            codes: I64 = columns[0].fill_null(-1).to_numpy(zero_copy_only=False)
            if shown.form == "ordered":
                codes = np.where(codes < 0, -1, self.graphs.values.of_order[codes])
            return self.graphs.dictionary.decode(codes)
        return written_terms(shown.form, columns)

    def _constructed(self, columns: list[pa.Array], born: pa.Array, members: I64) -> Decoded:
        """A row per solution and triple of the template; what is no triple, as its subject is a literal, is left out. members:
        of the solutions, ascending."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count, parts, kept = len(born), [pa.RecordBatch.from_pylist([], schema=self.schema)], [np.empty(0, np.int64)]
        counts = np.bincount(members, minlength=self.count)
        numbers = np.arange(count) - (np.cumsum(counts) - counts)[members] + self._solutions[members]
        self._solutions += counts
        for triple in self.planned.template or ():
            made = []
            for part in triple:
                if isinstance(part, int):
                    made.append(columns[part])
                elif part.startswith("_:"):
                    made.append(pa.array([f"_:c{part[2:]}x{number}" for number in numbers], pa.string()))
                else:
                    made.append(pa.array([part] * count, pa.string()))
            s, p, o = made
            fits = pc.and_(pc.and_(pc.invert(pc.starts_with(s, '"')), pc.starts_with(p, "<")), o.is_valid()).fill_null(False)
            parts.append(pa.RecordBatch.from_arrays([s, p, o, born], schema=self.schema).filter(fits))
            kept.append(members[booleans_of(fits)])
        rows, members = pa.concat_batches(parts), np.concatenate(kept)
        if self.count > 1:
            by = np.argsort(members, kind="stable")
            rows, members = rows.take(pa.array(by)), members[by]
        return Decoded(rows, members, row_hashes(rows))


class _Writer:
    """The file of a query's answer, complete or absent."""

    def __init__(self, answer: Answer, kind: str, target: Path, *, folder: bool) -> None:
        columns = RowColumns(tuple((f.name, f.type) for f in answer.schema), ids=False)
        self._sink: FileSink | None = FileSink(kind, target, columns, share=(0, 1) if folder else None)
        self._started = False

    def write(self, rows: pa.RecordBatch, digest: int) -> None:
        assert self._sink is not None, "a file that is closed"
        if rows.num_rows:
            self._started = True
            self._sink.write_rows(rows, 0, digest)

    def close(self, whole: dict[str, Any]) -> None:
        assert self._sink is not None, "a file that is closed"
        sink, self._sink = self._sink, None
        sink.close(whole)

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort(started=self._started)


class Files(NamedTuple):
    """Where answers go. targets: a path for each, and the number of its member; folder: the paths are folders of result files,
    not files. kind: of the files. whole: what their proofs have beside count and digest."""

    targets: Sequence[tuple[Path, int]]
    folder: bool
    kind: Literal["parquet", "csv"]
    whole: dict[str, Any]


def counted(answer: Answer, rows: Sequence[Path], kept: list[Decoded] | None = None) -> list[Total]:
    """`Total` of each member, of files of the plan's rows. kept: gets the answer's rows."""
    counts, digests = np.zeros(answer.count, np.int64), np.zeros(answer.count, np.uint64)
    for found in _decoded(answer, rows, None):
        _add(found, counts, digests)
        if kept is not None:
            kept.append(found)
    return answer.totals(counts, digests)


def tables_of(answer: Answer, found: Sequence[Decoded]) -> list[pa.Table]:
    """The rows of each member, as a table."""
    import pyarrow as pa

    table = pa.Table.from_batches([rows for rows, *_ in found], answer.schema)
    members = np.concatenate([np.empty(0, np.int64), *(batch.members for batch in found)])
    if answer.count > 1:
        by = np.argsort(members, kind="stable")
        table, members = table.take(pa.array(by)), members[by]
    ends = np.searchsorted(members, np.arange(answer.count + 1)).tolist()
    begins = [0] * answer.count if answer.nested else ends
    return [table.slice(begin, end - begin) for begin, end in zip(begins, ends[1:], strict=False)]


def write_answers(answer: Answer, rows: Sequence[Path], files: Files) -> list[Total]:
    """Write the answer's rows of files of the plan's; `Total` of each member."""
    totals = [Total(0, 0)] * answer.count
    for begin in range(0, len(files.targets), _OPEN_FILES):
        _write_some(answer, rows, files._replace(targets=files.targets[begin : begin + _OPEN_FILES]), totals)
    return totals


def _write_some(answer: Answer, rows: Sequence[Path], files: Files, totals: list[Total]) -> None:
    """As `write_answers`, for as many files as can be open."""
    counts, digests = np.zeros(answer.count, np.int64), np.zeros(answer.count, np.uint64)
    answer = Answer(answer.planned, answer.graphs, answer.family)
    writers: list[tuple[_Writer, int]] = []
    try:
        for target, member in files.targets:
            writers.append((_Writer(answer, files.kind, target, folder=files.folder), member))
        members = np.unique([member for _, member in files.targets])
        for found in _decoded(answer, rows, members):
            _add(found, counts, digests)
            for writer, member in writers:
                begin, end = answer.place_of(found.members, member)
                writer.write(found.rows.slice(begin, end - begin), int(found.hashes[begin:end].sum(dtype=np.uint64)))
        of_members = answer.totals(counts, digests)
        for writer, member in writers:
            totals[member] = of_members[member]
            writer.close({**files.whole, "count": totals[member].rows, "digest": format_digest(totals[member].digest)})
    finally:
        for writer, _ in writers:
            writer.abort()


def _add(found: Decoded, counts: I64, digests: U64) -> None:
    """Rows and hashes to those of the members."""
    counts += np.bincount(found.members, minlength=len(counts))
    np.add.at(digests, found.members, found.hashes)


def _decoded(answer: Answer, paths: Sequence[Path], members: I64 | None) -> Iterator[Decoded]:
    """The answer's rows of Parquet files of the plan's, each batch in the order of members. members: whose rows; None: all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                if members is not None and not answer.nested:
                    batch = batch.filter(pa.array(np.isin(answer.members_of(batch), members)))
                yield answer.decoded(batch)

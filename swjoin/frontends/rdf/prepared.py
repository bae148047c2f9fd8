"""A query over RDF streams, ready to run, and what becomes of its rows.

What: `prepared`, the inputs and the plan of a query, written to a folder; `Prepared.finish`, the file of the answer and the
report, once the plan's rows are there; `write_malformed`, the lines that were no triples.
Why: the command and the Python API run it by their own means, and have the rest in common.
Stays out: running (`runtime`), options (`cli`, `api`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swjoin.config.connectors import StreamConfig
from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.errors import UserError, setting
from swjoin.core.join_semantics import format_digest
from swjoin.frontends.rdf.algebra import RdfQuery, parse_query
from swjoin.frontends.rdf.answers import Answer, Total, write_answer
from swjoin.frontends.rdf.inputs import Graphs, Paths, read_graphs
from swjoin.frontends.rdf.planner import Planned, plan_rdf
from swjoin.frontends.rdf.triples import MalformedPolicy
from swjoin.plan.logical import Source
from swjoin.plan.plain import plan_to_plain

_LOG = logging.getLogger(__name__)
_SHOWN = 3  # malformed lines that are told
_MALFORMED = ("iri", "file", "place", "reason", "text")


class Given(NamedTuple):
    """streams, static: paths by IRI. malformed: policy for lines that are no triples. bounded: whether a limit of memory is
    given, which windows of ALL need."""

    streams: Mapping[str, Paths]
    static: Mapping[str, Paths]
    malformed: MalformedPolicy = "drop"
    bounded: bool = False


@dataclass(frozen=True)
class Prepared:
    """inputs: of the plan, in the order of its sources. plan: as `plan_to_plain` writes it."""

    query: RdfQuery
    graphs: Graphs
    planned: Planned
    inputs: tuple[StreamConfig, ...]
    plan: dict[str, Any]

    def finish(
        self, rows: Path, output: tuple[Path | None, Literal["parquet", "csv"]], report: dict[str, Any], proof: dict[str, Any]
    ) -> Total:
        """Write the answer of the plan's rows; the report of the run becomes that of the answer. output: the file, None: none
        is written; its kind. proof: of the run, as files of results have it."""
        answer = Answer(self.planned, self.graphs)
        ledger = {**proof["ledger"], "collected": proof["count"]}
        total = write_answer(answer, rows, output, {"ledger": ledger, "warnings": proof["warnings"]})
        shown = {"count": total.rows, "digest": format_digest(total.digest), "columns": answer.names}
        report["results"] = {**report["results"], **shown}
        report["rdf"] = {
            "terms": len(self.graphs.dictionary),
            "streams": {iri: self._of_stream(iri) for iri in self.graphs.streams},
            "static": {iri: self._of_stream(iri) for iri in self.graphs.static},
            "inputs": {
                found.name: {"pattern": found.pattern.description, "mappings": found.count} for found in self.planned.inputs
            },
        }
        return total

    def _of_stream(self, iri: str) -> dict[str, int]:
        """Triples read, lines that were none."""
        return {"triples": self.graphs.counts[iri], "malformed": self.graphs.malformed[iri].count}


def write_malformed(graphs: Graphs, target: Path) -> None:
    """The side output of the policy `side`: a Parquet file of the lines that are no triples. NotWritten when it cannot be."""
    import pyarrow as pa

    rows = [(iri, m.file, m.place, m.reason, m.text) for iri, found in graphs.malformed.items() for m in found.take_side()]
    columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)] or [pa.array([], pa.string())] * 5
    sink = FileSink("parquet", target, RowColumns(tuple((name, pa.string()) for name in _MALFORMED), ids=False))
    sink.write_rows(pa.RecordBatch.from_arrays(columns, list(_MALFORMED)), 0)
    sink.close()


def refuse_other_file(target: Path) -> None:
    """UserError when a file is there that is no side output of an earlier run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not target.exists():
        return
    try:
        ours = tuple(pq.read_schema(target).names) == _MALFORMED
    except (OSError, pa.ArrowException):
        ours = False
    if not ours:
        raise UserError(f"malformed lines {target}: is there already, and holds none; move it, or give another name")


def prepared(text: str, given: Given, folder: Path) -> Prepared:
    """Read what a query reads, and plan it; tables of mappings are written to the folder. UserError, one line, for what the
    query cannot mean, for what is not supported, and for files that cannot be read."""
    query = parse_query(text)
    endless = next((p.block for p in query.patterns if p.block is not None and p.block.window.kind == "all"), None)
    if endless is not None and not given.bounded:
        problem = f"STREAM <{endless.iri}> [ALL] keeps all mappings, without a limit of memory"
        raise UserError(problem, remedy=("give ", setting("memory")))
    graphs = read_graphs(query, given.streams, given.static, given.malformed)
    _tell(graphs)
    planned = plan_rdf(query, graphs)
    sources = [node for node in planned.plan.nodes if isinstance(node, Source)]
    inputs = tuple(_written(source, planned, folder) for source in sources)
    return Prepared(query, graphs, planned, inputs, plan_to_plain(planned.plan))


def _written(source: Source, planned: Planned, folder: Path) -> StreamConfig:
    import pyarrow as pa

    path = folder / f"{source.name}.arrow"
    table = planned.tables[source.name]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 16)
    return StreamConfig(str(path), (), source.time or "")


def _tell(graphs: Graphs) -> None:
    """Lines that are no triples, in the log."""
    for iri, found in graphs.malformed.items():
        for line in found.first[:_SHOWN]:
            _LOG.warning("%s", line)
        if found.count:
            more = f", {_SHOWN} of them above" if found.count > _SHOWN else ""
            _LOG.warning("<%s>: %d malformed line%s left out%s", iri, found.count, "s" if found.count > 1 else "", more)

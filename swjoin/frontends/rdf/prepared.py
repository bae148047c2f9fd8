"""Queries over RDF streams, ready to run, and what becomes of their rows.

What: `prepared`, the inputs and the plan of queries, written to a folder; `Prepared.finish`, the files of the answers and the
report, once the plan's rows are there; `write_malformed`, the lines that were no triples.
Why: the command and the Python API run it by their own means, and have the rest in common.
Stays out: running (`runtime`), options (`cli`, `api`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from swjoin.config.connectors import StreamConfig
from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.batch import I64
from swjoin.core.errors import UserError, setting
from swjoin.core.join_semantics import format_digest
from swjoin.frontends.rdf.algebra import RdfQuery
from swjoin.frontends.rdf.answers import Answer, Decoded, Files, Total, counted, tables_of, write_answers
from swjoin.frontends.rdf.families import Family, Parameters, parse_queries, widths_of
from swjoin.frontends.rdf.inputs import Graphs, Paths, check_inputs, read_graphs
from swjoin.frontends.rdf.planner import Planned, add_constants, is_one_plan, narrowed, plan_rdf
from swjoin.frontends.rdf.triples import MalformedPolicy
from swjoin.plan.logical import LogicalPlan, Node, Source
from swjoin.plan.multiway import with_multiway_joins
from swjoin.plan.plain import plan_to_plain
from swjoin.plan.sharing import reading, shared

if TYPE_CHECKING:
    import pyarrow as pa

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


class _Asked(NamedTuple):
    """A family of queries, and the plan of it. result: its name in the plan of all."""

    family: Family
    planned: Planned
    result: str


@dataclass(frozen=True)
class Prepared:
    """inputs: of the plan, in the order of its sources. plan: as `plan_to_plain` writes it."""

    graphs: Graphs
    asked: tuple[_Asked, ...]
    inputs: tuple[StreamConfig, ...]
    plan: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Of the queries; a single one may have none."""
        return [name for asked in self.asked for name in asked.family.members if name]

    def finish(
        self,
        rows: Path,
        output: tuple[Path, Literal["parquet", "csv"]] | None,
        report: dict[str, Any],
        proof: dict[str, Any],
        tables: dict[str, pa.Table] | None = None,
    ) -> dict[str, Total]:
        """Write the answers of the plan's rows; the report of the run becomes that of the answers. rows: the plan's file, or
        the folder of its results. output: the file, or the folder for a folder of each query, and the kind of the files; None:
        nothing is written, and tables get the answers, by query. proof: of the run, as files of results have it."""
        whole = {"ledger": {**proof["ledger"], "collected": proof["count"]}, "warnings": proof["warnings"]}
        found: dict[str, Total] = {}
        columns: list[list[str]] = []
        for asked in self.asked:
            answer = Answer(asked.planned, self.graphs, asked.family)
            paths = sorted((rows / asked.result).glob("*.parquet")) if self.names else [rows]
            members = asked.family.members
            if output is not None:
                targets = [(output[0] / name, member) for name, member in members.items()]
                totals = write_answers(answer, paths, Files(targets, bool(self.names), output[1], whole))
            else:
                kept: list[Decoded] | None = None if tables is None else []
                totals = counted(answer, paths, kept)
                if tables is not None:
                    of_member = tables_of(answer, kept or [])
                    tables |= {name: of_member[member] for name, member in members.items()}
            found |= {name: totals[member] for name, member in members.items()}
            columns += [answer.names]
        report["results"] = {**report["results"], **_shown(found.values())}
        if self.names:
            report["queries"] = [{"name": name, **_shown([total])} for name, total in found.items()]
        if columns.count(columns[0]) == len(columns):
            report["results"]["columns"] = columns[0]
        report["rdf"] = {
            "terms": len(self.graphs.dictionary),
            "streams": {iri: self._of_stream(iri) for iri in self.graphs.streams},
            "static": {iri: self._of_stream(iri) for iri in self.graphs.static},
            **({"families": [_described(one) for one in self.asked]} if self.names else _described(self.asked[0])),
        }
        return found

    def _of_stream(self, iri: str) -> dict[str, int]:
        """Triples read, lines that were none."""
        return {"triples": self.graphs.counts[iri], "malformed": self.graphs.malformed[iri].count}


def _shown(totals: Iterable[Total]) -> dict[str, Any]:
    each = list(totals)
    return {"count": sum(t.rows for t in each), "digest": format_digest(sum(t.digest for t in each) & (1 << 64) - 1)}


def _described(asked: _Asked) -> dict[str, Any]:
    """The inputs; of several queries also how many they are."""
    inputs = {found.name: {"pattern": found.description, "mappings": found.count} for found in asked.planned.inputs}
    return {**({"queries": len(asked.family.members)} if asked.result else {}), "inputs": inputs}


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


def results_named(names: Sequence[str]) -> dict[str, Any] | None:
    """Of a plan, what outputs depend on: the results of several queries."""
    return {"nodes": [{"name": name, "named": True} for name in names]} if names else None


def prepared(texts: Mapping[str, str], given: Given, folder: Path, subjects: Mapping[str, str] | None = None) -> Prepared:
    """Read what queries read, and plan them; tables of mappings are written to the folder. texts: by name, "" for a single
    query without one. subjects: with which errors of a query begin, by name; of a single one all errors do. UserError, one
    line, for what a query cannot mean, for what is not supported, and for files that cannot be read."""
    subjects = subjects or {}
    if "" not in subjects:
        return _prepared(texts, given, folder, subjects)
    try:
        return _prepared(texts, given, folder, {})
    except UserError as error:
        raise error.prefixed(subjects[""]) from None


def _prepared(texts: Mapping[str, str], given: Given, folder: Path, subjects: Mapping[str, str]) -> Prepared:
    families = parse_queries(texts, subjects)
    for family in families:
        with _named(family, subjects):
            _check_bounded(family.query, given)
            check_inputs(family.query, given.streams, given.static)
    graphs = read_graphs([family.query for family in families], given.streams, given.static, given.malformed)
    _tell(graphs)
    codes = []
    for family in families:  # all terms have codes before the first query is planned
        add_constants(family.query, graphs)
        codes.append(family.codes(graphs.dictionary))
    alone, asked = "" in texts, list[_Asked]()
    tables: dict[str, pa.Table] = {}
    plan_of = _Plans(graphs, subjects)
    for family, planned in chain.from_iterable(starmap(plan_of, zip(families, codes, strict=True))):
        name = "" if alone else f"family{len(asked)}"
        asked.append(_Asked(family, planned if alone else _with_common_tables(planned, tables), name))
    plan = asked[0].planned.plan if alone else shared({one.result: one.planned.plan for one in asked})
    plan = with_multiway_joins(plan)
    tables |= asked[0].planned.tables if alone else {}
    sources = [node for node in plan.nodes if isinstance(node, Source)]
    inputs = tuple(_written(source, tables[source.name], folder) for source in sources)
    return Prepared(graphs, tuple(asked), inputs, plan_to_plain(plan))


class _Plans:
    """Plans of families; those that have the joins of another one are not planned by themselves."""

    def __init__(self, graphs: Graphs, subjects: Mapping[str, str]) -> None:
        self._graphs, self._subjects = graphs, subjects
        self._known: dict[int, tuple[RdfQuery, Planned]] = {}  # by the identity of the query with the widest windows

    def __call__(self, family: Family, codes: dict[str, I64]) -> list[tuple[Family, Planned]]:
        """The family, or its members if they do not have one plan, with plans. codes: of its constants."""
        parameters = Parameters(codes) if codes else None
        if not is_one_plan(family.query, self._graphs, parameters):
            return [found for member in family.apart() for found in self(member, {})]
        with _named(family, self._subjects):
            return [(family, self._planned(family, parameters))]

    def _planned(self, family: Family, parameters: Parameters | None) -> Planned:
        widest = family.widest
        if widest is None:
            return plan_rdf(family.query, self._graphs, parameters, routed=bool(family.widths))
        if id(widest) not in self._known:
            self._known[id(widest)] = widest, plan_rdf(widest, self._graphs, routed=True)
        _, planned = self._known[id(widest)]
        return replace(planned, plan=narrowed(planned.plan.nodes, dict(enumerate(widths_of(family)))))


@contextmanager
def _named(family: Family, subjects: Mapping[str, str]) -> Iterator[None]:
    """Errors begin with the first query of the family."""
    try:
        yield
    except UserError as error:
        subject = subjects.get(next(iter(family.members)))
        raise (error if subject is None else error.prefixed(subject)) from None


def _check_bounded(query: RdfQuery, given: Given) -> None:
    endless = next((p.block for p in query.patterns if p.block is not None and p.block.window.kind == "all"), None)
    if endless is not None and not given.bounded:
        problem = f"STREAM <{endless.iri}> [ALL] keeps all mappings, without a limit of memory"
        raise UserError(problem, remedy=("give ", setting("memory")))


def _with_common_tables(planned: Planned, tables: dict[str, pa.Table]) -> Planned:
    """With the names of equal tables of other families, so that sources are shared. tables: by name, which grows."""
    names = {node.name: node.name for node in planned.plan.nodes}
    for name, table in planned.tables.items():
        same = (other for other, known in tables.items() if known is table)
        names[name] = next(same, f"mappings{len(tables)}")
        tables.setdefault(names[name], table)
    nodes: dict[str, Node] = {}  # a pattern that the query has twice is one source
    for node in planned.plan.nodes:
        nodes[names[node.name]] = replace(node if isinstance(node, Source) else reading(node, names), name=names[node.name])
    inputs = tuple(replace(found, name=names[found.name]) for found in planned.inputs)
    return replace(planned, plan=LogicalPlan(tuple(nodes.values())), inputs=inputs, tables={})


def _written(source: Source, table: pa.Table, folder: Path) -> StreamConfig:
    import pyarrow as pa

    path = folder / f"{source.name}.arrow"
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

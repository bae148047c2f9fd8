"""Queries over RDF streams from Python: `swjoin.rdf`.

What: a query and streams in, an Arrow table, a data frame or a file out.
Why: the same plans and runtimes as `swjoin rdf`; tables in memory are written to a temporary folder, as other queries' are.
Stays out: the language and its plans (`frontends.rdf`), runs (`runtime`).
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from swjoin.api.inputs import are_paths, to_table
from swjoin.api.planned_runs import Planned, Written, report_of, settings_of
from swjoin.api.queries import given_back, texts_of
from swjoin.api.result_files import result_file
from swjoin.api.result_frames import converter
from swjoin.config.arguments import check_workers, one_of
from swjoin.config.job import Job
from swjoin.config.options import RdfOptions, complete, takes_options
from swjoin.config.run import QueryConfig, RunConfig
from swjoin.connectors.output_paths import check_outputs, refuse_inputs
from swjoin.core.errors import UserError, spelled
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import Proof
from swjoin.frontends.rdf.inputs import Paths
from swjoin.frontends.rdf.prepared import Given, prepared, results_named
from swjoin.frontends.rdf.triples import MalformedPolicy
from swjoin.runtime.progress import check_progress
from swjoin.runtime.run_report import ledger_of, proof_of

if TYPE_CHECKING:
    import pyarrow as pa


@takes_options(RdfOptions)
def rdf(query: str | Mapping[str, str], /, streams: Mapping[str, Any], **given: Unpack[RdfOptions]) -> Any:
    """The rows of a query over RDF streams (docs/rdf.md) as an Arrow table, in no order: a column per variable, terms in
    N-Triples syntax, null where it is unbound, and `born`, int64 microseconds. Of several queries in one run, which are given
    by their names, a dictionary of tables by these names.

    query: SPARQL with `STREAM <iri> [window] {...}`. streams: by IRI, Arrow tables, pandas, polars or anything with
    `__arrow_c_stream__`, with columns ts (int64, microseconds), s, p, o (terms in N-Triples syntax), or paths. static: graphs
    by IRI, likewise without ts. malformed: rows that are no triples are left out and counted ("drop") or end the run ("error").
    memory: limit of the window state of a thread or rank, such as "4GB"; windows of ALL need one. threads, ranks, progress,
    returns, out: as of `swjoin.sql`.

    Raises UserError for a query, input or arguments that are wrong, RunFailed when the run fails.
    """
    options = complete(rdf, given)
    with spelled("arguments"), tempfile.TemporaryDirectory(prefix="swjoin-rdf-", ignore_cleanup_errors=True) as name:
        check_workers(options["threads"], options["ranks"])
        check_progress(options["progress"])
        folder = Path(name)
        texts = texts_of(query)
        malformed: MalformedPolicy = options["malformed"]
        one_of(malformed, ("error", "drop"), "malformed")
        sources = _paths(streams, "streams", folder), _paths(options["static"] or {}, "static", folder)
        convert = converter(options["returns"], next(iter(streams.values()), None))
        written = None if options["out"] is None else result_file(options["out"])
        if written is not None:
            read = [path for each in sources for paths in each.values() for path in _each(paths)]
            refuse_inputs([("out", written[0])], map(Path, read), nested=True)
            if "" not in texts:
                config = RunConfig(queries=(QueryConfig(0, 0),))
                check_outputs(
                    Job(config, written[0], True, None, None, "swjoin.rdf", spelling="arguments", plan=results_named([*texts]))
                )
        answers = _answers(
            texts, Given(*sources, malformed=malformed, bounded=options["memory"] is not None), options, written, folder
        )
    return given_back(answers, convert)


def _answers(
    texts: Mapping[str, str],
    given: Given,
    options: Mapping[str, Any],
    written: Written | None,
    folder: Path,
) -> dict[str, tuple[pa.Table | None, Proof]]:
    """The rows of each query, unless they are written, and their proof."""
    found = prepared(texts, given, folder, {name: f"query {name}" for name in texts if name})
    settings = settings_of({**options, "late": "error", "max_out_of_order": "0us", "routing": None, "units": None})
    planned = Planned(dataclasses.replace(settings, inputs=found.inputs), found.plan, "swjoin.rdf")
    report = report_of(planned, {**options, "max_out_of_order": "0us"}, (folder / "codes.parquet", "parquet"), folder)
    ledger = ledger_of(report)  # of solutions, before CONSTRUCT makes triples of them
    tables: dict[str, pa.Table] = {}
    totals = found.finish(folder / "codes.parquet", written, report, proof_of(report), tables)
    warnings, answers = tuple(report["warnings"]), dict[str, tuple["pa.Table | None", Proof]]()
    for name in texts:
        total = totals[name]
        answers[name] = tables.get(name), Proof(total.rows, format_digest(total.digest), ledger, warnings)
    return answers


def _each(paths: Paths) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


def _paths(given: Mapping[str, Any], argument: str, folder: Path) -> dict[str, Paths]:
    """Paths by IRI; tables in memory are written to the folder."""
    import pyarrow.parquet as pq

    if not isinstance(given, Mapping):
        raise UserError(f"{argument}: {type(given).__name__} is no mapping of IRIs to triples")
    if not given and argument == "streams":
        raise UserError("streams: none is given", remedy="give each that the query names: streams={'http://...': table}")
    found: dict[str, Paths] = {}
    for number, (iri, value) in enumerate(given.items()):
        if are_paths(value):
            texts = tuple(os.fspath(path) for path in ([value] if isinstance(value, str | os.PathLike) else value))
            if not texts:
                raise UserError(f"{argument}: {iri} has no file")
            found[str(iri)] = texts[0] if len(texts) == 1 else texts
        else:
            path = folder / f"{argument}{number}.parquet"
            pq.write_table(to_table(value, f"{argument} {iri}", "ts" if argument == "streams" else ""), path)
            found[str(iri)] = str(path)
    return found

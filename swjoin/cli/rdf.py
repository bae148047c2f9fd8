"""`swjoin rdf`: a query over RDF streams in files, or several in one run.

What: `run_rdf`.
Why: the plan runs as any query's does; its rows of codes become terms afterwards, here.
Stays out: the language and its plans (`frontends.rdf`), starting jobs (`runtime`).
"""

from __future__ import annotations

import argparse
import glob
import json
import logging
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

from swjoin.cli.common_args import given_ranks, with_role_counts
from swjoin.cli.join import copied, shared_settings, sink_kind
from swjoin.cli.query import content_of
from swjoin.cli.run import shown_progress, typed_command
from swjoin.cli.summary import print_summary
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.run import QueryConfig, RunConfig, SinkConfig
from swjoin.connectors.files.inputs import split_paths
from swjoin.connectors.output_paths import check_outputs
from swjoin.core.errors import UserError, one_line
from swjoin.core.storage import resolved, writing
from swjoin.frontends.rdf.inputs import Paths
from swjoin.frontends.rdf.prepared import Given, Prepared, prepared, refuse_other_file, results_named, write_malformed
from swjoin.plan.sharing import check_query_names
from swjoin.runtime.preflight import launcher_size
from swjoin.runtime.run_report import proof_of

_LOG = logging.getLogger(__name__)


def run_rdf(args: argparse.Namespace) -> int:
    ranks = given_ranks(args)
    if launcher_size() > 1:
        raise UserError("swjoin rdf starts its own ranks: leave the launcher out, and give -n RANKS")
    given = Given(
        _sources(args.streams, "--stream"), _sources(args.static, "--static"), args.malformed, args.memory is not None
    )
    if not given.streams:
        raise UserError("no streams: give --stream IRI=PATH for each that the query names")
    texts, subjects = _queries(args.queries)
    kind, several = sink_kind(args.out, args.format), "" not in texts
    target = None if args.out in ("count", "-") else Path(args.out)
    cluster = {} if args.strategy is None else {"strategy": args.strategy}
    config = with_role_counts(RunConfig(queries=(QueryConfig(0, 0),), **shared_settings(args, cluster, {})), args)
    if config.sink_count > 1:
        raise UserError(f"--sinks {config.sink_count}: the answer is one file; leave it out")
    if several and args.out == "-":
        raise UserError(f"-o -: {len(texts)} queries have as many results, standard output is one; name a folder with -o")
    report = None if args.report is None else Path(args.report)
    _check(target, report, given, (list(texts) if several else [], list(subjects.values())))
    side = _side(target, report) if args.malformed == "side" else None
    with TemporaryDirectory(prefix="swjoin-rdf-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        found = prepared(texts, given, folder, subjects)
        if side is not None:
            write_malformed(found.graphs, side)
        config = replace(config, inputs=found.inputs, sink=SinkConfig("parquet", ids=False))
        job = Job(
            config,
            folder / "rows.parquet",
            several,
            None,
            folder / "report.json",
            typed_command(),
            spelling="options",
            plan=found.plan,
        )
        result = _run(args, job, ranks)
        if isinstance(result, int):
            return result
        return _finish(args, found, job, result, (folder, target, cast("Any", kind), report))


def _queries(given: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by the names of their files, and these; a single query has no name, and may be text."""
    if len(given) == 1 and "{" in given[0]:
        return {"": given[0]}, {}
    paths: list[str] = []
    for path in given:
        if "{" in path:
            shown = one_line(path, 60)
            raise UserError(f"{shown}: one of {len(given)} queries; write each into a file, whose name is the query's")
        paths += _named(path, path)
    if len(paths) == 1:
        return {"": content_of(paths[0])}, {"": paths[0]}
    check_query_names((Path(path).stem, path) for path in paths)
    subjects = {Path(path).stem: path for path in paths}
    return {name: content_of(path) for name, path in subjects.items()}, subjects


def _finish(
    args: argparse.Namespace,
    query: Prepared,
    job: Job,
    found: dict[str, Any],
    outputs: tuple[Path, Path | None, Literal["parquet", "csv", "count"], Path | None],
) -> int:
    """outputs: folder of the plan's rows, file of the answer, or folder of several, its kind, report."""
    folder, target, kind, report = outputs
    piped = args.out == "-"
    written = folder / f"answer.{kind}" if piped else target
    assert job.target is not None
    query.finish(job.target, None if written is None or kind == "count" else (written, kind), found, proof_of(found))
    if report is not None:
        with writing(report):
            report.write_text(json.dumps(found, indent=1) + "\n")
    shown = replace(job, target=target, report=report, config=replace(job.config, sink=SinkConfig(kind, ids=False)))
    if piped:
        with redirect_stdout(sys.stderr):
            print_summary(found, shown, args)
        copied(cast("Path", written), sys.stdout.buffer)
    else:
        print_summary(found, shown, args)
    return 0


def _run(args: argparse.Namespace, job: Job, ranks: int | None) -> dict[str, Any] | int:
    """The report, or the exit code of a run that failed."""
    if ranks is None:
        from swjoin.forecast.memory_report import add_plan
        from swjoin.runtime.in_process import run_local

        return run_local(job, shown_progress(args), slave_count=args.threads, complete_report=add_plan)
    from swjoin.runtime.launch import launch_with_reason

    code, failure = launch_with_reason(
        job, ranks, args.debug, quiet=True, log_json=args.log_json, progress=shown_progress(args)
    )
    if code:
        if failure:
            _LOG.error("%s", failure)
        return code
    assert job.report is not None
    found: dict[str, Any] = json.loads(job.report.read_text())
    return found


def _side(target: Path | None, report: Path | None) -> Path:
    """Where malformed lines go: beside the answer, or the report. UserError for a run that has neither."""
    beside = target or report
    if beside is None:
        raise UserError("--malformed side needs a place: name a file with -o, or give --report")
    side = beside.with_name(f"{beside.name}.malformed.parquet")
    if report is not None and resolved(report) == resolved(side):
        raise UserError(f"--report {report}: is where malformed lines go; give another name")
    refuse_other_file(side)
    return side


def _check(target: Path | None, report: Path | None, given: Given, queries: tuple[list[str], list[str]]) -> None:
    """UserError for outputs that cannot be written, or would overwrite an input. queries: names of several, and files."""
    names, files = queries
    paths: list[Paths] = [*given.streams.values(), *given.static.values(), *files]
    inputs = tuple(StreamConfig(path, (), "ts") for path in paths)
    config = RunConfig(queries=(QueryConfig(0, 0),), inputs=inputs)
    job = Job(config, target, bool(names), None, report, typed_command(), spelling="options", plan=results_named(names))
    check_outputs(job)


def _sources(given: list[str] | None, option: str) -> dict[str, Paths]:
    """Paths by IRI of IRI=PATH."""
    found: dict[str, Paths] = {}
    for text in given or []:
        iri, path = _split(text, option)
        if iri in found:
            raise UserError(f"{option} {text}: <{iri}> is given twice")
        found[iri] = _files(split_paths(path), f"{option} {text}")
    return found


def _files(paths: Paths, where: str) -> Paths:
    """With the files of patterns in their place. UserError for a folder, and for a pattern without a file."""
    found: list[str] = []
    for path in (paths,) if isinstance(paths, str) else paths:
        if os.path.isdir(path):
            raise UserError(f"{where}: a folder; name its files, such as '{path.rstrip('/')}/*.parquet'")
        found += _named(path, where)
    return found[0] if len(found) == 1 else tuple(found)


def _named(path: str, where: str) -> list[str]:
    """The files of a pattern; a path that is none is one. UserError for a pattern without a file."""
    matched = sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.exists(path) else [path]
    if not matched:
        raise UserError(f"{where}: no file is named so")
    return matched


def _split(text: str, option: str) -> tuple[str, str]:
    """At the first equals sign behind which a file is, as IRIs may have some."""
    places = [i for i, char in enumerate(text) if char == "=" and 0 < i < len(text) - 1]
    if not places:
        raise UserError(f"{option} {text}: write IRI=PATH, such as http://example.org/posts=posts.parquet")
    at = next((i for i in places if os.path.exists(text[i + 1 :]) or glob.glob(text[i + 1 :])), places[0])
    iri = text[:at].strip()
    return (iri[1:-1] if iri[:1] == "<" and iri[-1:] == ">" else iri), text[at + 1 :]

"""`swjoin rdf`: a query over RDF streams in files.

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
from swjoin.core.errors import UserError
from swjoin.core.storage import writing
from swjoin.frontends.rdf.inputs import Paths
from swjoin.frontends.rdf.prepared import Given, Prepared, prepared, refuse_other_file, write_malformed
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
    is_file, kind = "{" not in args.query, sink_kind(args.out, args.format)
    text = content_of(args.query) if is_file else args.query
    target = None if args.out in ("count", "-") else Path(args.out)
    cluster = {} if args.strategy is None else {"strategy": args.strategy}
    config = with_role_counts(RunConfig(queries=(QueryConfig(0, 0),), **shared_settings(args, cluster, {})), args)
    if config.sink_count > 1:
        raise UserError(f"--sinks {config.sink_count}: the answer is one file; leave it out")
    report = None if args.report is None else Path(args.report)
    _check(target, report, given)
    side = _side(target, report) if args.malformed == "side" else None
    with TemporaryDirectory(prefix="swjoin-rdf-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            query = prepared(text, given, folder)
        except UserError as error:
            raise (error.prefixed(args.query) if is_file else error) from None
        if side is not None:
            write_malformed(query.graphs, side)
        config = replace(config, inputs=query.inputs, sink=SinkConfig("parquet", ids=False))
        job = Job(
            config,
            folder / "rows.parquet",
            False,
            None,
            folder / "report.json",
            typed_command(),
            spelling="options",
            plan=query.plan,
        )
        found = _run(args, job, ranks)
        if isinstance(found, int):
            return found
        return _finish(args, query, job, found, (folder, target, cast("Any", kind), report))


def _finish(
    args: argparse.Namespace,
    query: Prepared,
    job: Job,
    found: dict[str, Any],
    outputs: tuple[Path, Path | None, Literal["parquet", "csv", "count"], Path | None],
) -> int:
    """outputs: folder of the plan's rows, file of the answer, its kind, report."""
    folder, target, kind, report = outputs
    piped = args.out == "-"
    written = folder / f"answer.{kind}" if piped else target
    assert job.target is not None
    query.finish(job.target, (written, "parquet" if kind == "count" else kind), found, proof_of(found))
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
    refuse_other_file(side)
    return side


def _check(target: Path | None, report: Path | None, given: Given) -> None:
    """UserError for outputs that cannot be written, or would overwrite an input."""
    inputs = tuple(StreamConfig(paths, (), "ts") for paths in (*given.streams.values(), *given.static.values()))
    config = RunConfig(queries=(QueryConfig(0, 0),), inputs=inputs)
    check_outputs(Job(config, target, False, None, report, typed_command(), spelling="options"))


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
        matched = sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.exists(path) else [path]
        if not matched:
            raise UserError(f"{where}: no file is named so")
        found += matched
    return found[0] if len(found) == 1 else tuple(found)


def _split(text: str, option: str) -> tuple[str, str]:
    """At the first equals sign behind which a file is, as IRIs may have some."""
    places = [i for i, char in enumerate(text) if char == "=" and 0 < i < len(text) - 1]
    if not places:
        raise UserError(f"{option} {text}: write IRI=PATH, such as http://example.org/posts=posts.parquet")
    at = next((i for i in places if os.path.exists(text[i + 1 :]) or glob.glob(text[i + 1 :])), places[0])
    iri = text[:at].strip()
    return (iri[1:-1] if iri[:1] == "<" and iri[-1:] == ">" else iri), text[at + 1 :]

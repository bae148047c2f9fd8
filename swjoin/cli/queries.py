"""`swjoin queries`: the queries of a run, and more or fewer of them while it goes on.

What: `run_queries`.
Why: who asks a stream a further question should not have to start a run of their own, nor stop the one that goes on.
Stays out: how a run takes a change (`runtime.query_changes`), texts of queries (`frontends.sql`), options (`cli.main`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

from swjoin.checkpoint.changed_plan import FIRST_US
from swjoin.cli.query import content_of
from swjoin.cli.summary import table_lines
from swjoin.core.errors import UserError
from swjoin.core.units import named_path
from swjoin.plan.changes import AFTER_ALL_US
from swjoin.plan.sharing import check_query_name
from swjoin.runtime.query_requests import queries_of, request_change


def run_queries(args: argparse.Namespace) -> int:
    run_dir = named_path(args.dir, "DIR")
    if args.action == "list":
        if args.queries:
            raise UserError(f"queries {args.dir} list {args.queries[0]}: lists all queries; leave the rest out")
        _list(run_dir, as_json=args.json)
        return 0
    if not args.queries:
        what = "files NAME.sql, or NAME.rq, with the queries" if args.action == "add" else "the names of the queries"
        raise UserError(f"queries {args.dir} {args.action}: no query; give {what}")
    if args.action == "drop":
        time_us = request_change(run_dir, {}, args.queries, args.timeout)
        ends: dict[str, int | None] = {}
        with contextlib.suppress(UserError):  # the run has ended since, and has written nothing yet
            ends = {name: end for name, _, end in queries_of(run_dir)}
        whole = [name for name in args.queries if ends.get(name) == AFTER_ALL_US]
        if cut := [name for name in args.queries if name not in whole]:
            print(f"{', '.join(cut)}: rows with times before {_time(time_us)}")
        if whole:
            print(f"{', '.join(whole)}: all rows; windows over an input that has ended are out already")
        return 0
    texts, sparql = dict[str, str](), set[str]()
    for path in args.queries:
        if not path.lower().endswith((".sql", ".rq")):
            problem = (
                f"{path[:60]}: write the query into a file NAME.sql, or NAME.rq over RDF streams, whose name is the query's"
            )
            raise UserError(problem)
        check_query_name(Path(path).stem, path, texts)
        texts[Path(path).stem] = content_of(path)
        if path.lower().endswith(".rq"):
            sparql.add(Path(path).stem)
    time_us = request_change(run_dir, texts, (), args.timeout, sparql)
    print(f"{', '.join(texts)}: rows with times from {_time(time_us)} on")
    return 0


def _list(run_dir: Path, *, as_json: bool) -> None:
    found = queries_of(run_dir)
    if as_json:
        print(json.dumps([{"name": name, "from_us": begin, "until_us": end} for name, begin, end in found], indent=2))
        return
    rows = [[name, "" if begin is None else _time(begin), "" if end is None else _time(end)] for name, begin, end in found]
    print("\n".join(table_lines([["query", "from", "before"], *rows])))


def _time(time_us: int) -> str:
    """As a time of day where it can be one."""
    if time_us in (FIRST_US, AFTER_ALL_US):
        return "the first row" if time_us == FIRST_US else "the end"
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_us} us"

"""Requests to a run that goes on: more queries, or fewer.

What: `request_change(run_dir, added, dropped)`; `queries_of(run_dir)`.
Why: a request is a file in the run's folder, so whoever may write there can ask from any process, on any host that shares it,
and a run needs no endpoint.
Stays out: the run's side (`runtime.query_changes`), the command (`cli.queries`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from swjoin.config.job import load_job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.errors import UserError, one_line
from swjoin.core.storage import write_whole
from swjoin.frontends.rdf.live_planner import LivePlans, is_sparql, streams_of
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.frontends.sql.tables import with_time
from swjoin.plan.changes import periods, with_queries, without_queries
from swjoin.plan.logical import LogicalPlan, Source
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.runtime.query_changes import ANSWER, OPEN, REQUEST


def _shown(run_dir: Path) -> tuple[LogicalPlan, RunConfig] | None:
    """The plan and the configuration of a run that takes changes."""
    path = run_dir / "queries" / OPEN
    try:
        plain = json.loads(path.read_bytes())
        return plan_from_plain(plain["plan"]), config_from_plain(plain["config"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None


def _open_run(run_dir: Path) -> tuple[LogicalPlan, RunConfig]:
    found = _shown(run_dir)
    if found is None:
        if not os.path.isdir(run_dir):
            raise UserError(f"{run_dir}: is no directory of a run")
        problem = f"{run_dir}: no run goes on there that takes queries"
        raise UserError(problem, remedy="it needs queries: with names, and checkpoints")
    return found


def _tables(plan: LogicalPlan, config: RunConfig) -> dict[str, Table]:
    sources = [node for node in plan.nodes if isinstance(node, Source)]
    return {
        source.name: with_time(tuple(tuple(c) for c in source.columns), source.time or "", stream.time_unit, "")  # type: ignore[misc]
        for source, stream in zip(sources, config.inputs, strict=True)
    }


def request_change(
    run_dir: Path,
    added: Mapping[str, str],
    dropped: Sequence[str] = (),
    timeout_s: float | None = None,
    sparql: Collection[str] = (),
) -> int:
    """Ask a run for more queries, and for some no longer, at once; returns the time from which on, or before which, they have
    rows, in microseconds. added: texts by name. sparql: names of those over RDF streams; of others, `is_sparql` says.
    UserError when the run refuses it, or none goes on there, or does not answer in time."""
    plan, config = _open_run(run_dir)
    tables, plans = _tables(plan, config), dict[str, LogicalPlan]()
    streams = streams_of(dict(zip(tables, config.inputs, strict=True)), tables)
    rdf = {name: text for name, text in added.items() if name in sparql or (streams and is_sparql(text))}
    for name, text in added.items():
        try:
            plans |= {} if name in rdf else {name: plan_query(text, tables, {}, config.cluster.routing).plan}
        except UserError as error:
            raise error.prefixed(name) from None
    plans |= LivePlans(streams, goes_on=True).plans(rdf)
    plans = {name: plans[name] for name in added}
    with_queries(without_queries(plan, dropped, 0), plans, 0)  # what is wrong with it is known at once
    plain = {"add": {name: plan_to_plain(query) for name, query in plans.items()}, "drop": list(dropped)}
    folder, base = run_dir / "queries", f"{time.time_ns()}-{os.getpid()}"
    answer = folder / f"{base}{ANSWER}"
    write_whole(folder / f"{base}{REQUEST}", json.dumps(plain).encode())
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not answer.exists():
        if until_s is not None and time.monotonic() > until_s:
            raise UserError(f"{run_dir}: no answer in {timeout_s:g} s; does the run still go on? The request waits there")
        if not (folder / OPEN).exists() and not answer.exists():
            raise UserError(f"{run_dir}: the run has ended before it took the request")
        time.sleep(0.05)
    found = json.loads(answer.read_bytes())
    answer.unlink()
    if "error" in found:
        raise UserError(str(found["error"]))
    return int(found["time_us"])


def queries_of(run_dir: Path) -> list[tuple[str, int | None, int | None]]:
    """Of a run that goes on or has ended: its queries, and the times, in microseconds, from which on and before which each has
    rows; None: from its beginning, to its end. UserError when there is none."""
    found = _shown(run_dir)
    if found is None:
        job = load_job(run_dir, [], "")
        plan = plan_from_plain(job.plan) if job.queries and job.plan is not None else None
        if plan is None:
            raise UserError(f"{run_dir}: its run has no queries with names")
    else:
        plan = found[0]
    return [(name, *period) for name, period in periods(plan).items()]

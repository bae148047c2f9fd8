"""The table at the end of a run.

What: `print_summary(report, job)`; `table_lines`, `size_text`, `duration_text`, `on_terminal` for other commands.
Why: count, digest, ledger, speed and delay at a glance, and where everything is.
Stays out: the report's content (`runtime.run_report`).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from swjoin.config.job import Job
from swjoin.runtime.plausibility import report_ranges
from swjoin.runtime.run_report import input_names, speed_means_something

_LOG = logging.getLogger(__name__)


def on_terminal() -> bool:
    """Whether to print in colours: to a terminal, and not through mpirun (`runtime.launch`)."""
    return sys.stdout.isatty() and "SWJOIN_PLAIN" not in os.environ


def size_text(nbytes: float) -> str:
    """Bytes as KiB, MiB or GiB."""
    if nbytes >= 10 << 30:
        return f"{nbytes / 2**30:,.1f} GiB"
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.{0 if nbytes >= 10 << 10 else 1}f} KiB"


def duration_text(us: float) -> str:
    """Microseconds as ms, with a decimal below 10."""
    return f"{us / 1e3:,.{0 if us >= 9950 else 1}f} ms"


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join([f"{r[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(r[1:], widths[1:], strict=True))]) for r in rows]


def _adaptation_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """How the run adapted; empty for one that did not."""
    rows = []
    if report["moves"]:
        movement = report["movement"]
        delays = ", ".join(f"{duration_text(movement['hold_back_s'][q] * 1e6)} ({q})" for q in ("p50", "p99"))
        rows.append(("moves", f"{report['moves']:,}, {size_text(movement['state_bytes'])}, held back {delays}"))
    for stage in report.get("stages") or [report]:
        active = [entry["active_slaves"] for entry in stage["declustering"]]
        if len(active) > 1:
            of = f", {stage['join']}" if "join" in stage else ""
            changes = f"{len(active) - 1:,} change{'s' if len(active) > 2 else ''}, lowest {min(active)}, highest {max(active)}"
            rows.append((f"active slaves{of}", f"{active[0]} to {active[-1]} ({changes})"))
    return rows


def _checkpoint_rows(report: dict[str, Any], job: Job) -> list[tuple[str, str]]:
    """What befell the run, and how to go on."""
    found = report["checkpoints"]
    if found is None:
        return []
    rows = []
    for recovery in found["recoveries"]:
        duration = duration_text(recovery["s"] * 1e6)
        rows.append(("recovered", f"in {duration}, {recovery['slaves']} slaves left, {recovery['tuples']:,} tuples replayed"))
    if report["resumable"]:
        ranks = f" -n {len(report['ranks'])}" if len(report["ranks"]) > 1 else ""
        rows.append(("stopped", f"before the end; go on with: {job.resume_command}{ranks}"))
    return rows


def _overload_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What full mini-buffers led to."""
    found = report["overload"]
    rows = []
    if found["shed_by_group"] is not None:
        groups = sum(any(counts) for counts in zip(*found["shed_by_group"].values(), strict=True))
        shed = sum(report["shed"].values())
        estimate = f"about {found['lost_pairs_estimate']:,.0f} pairs lost, recall {found['recall_estimate']:.1%}"
        dropped = f"{shed:,} tuples of {groups:,} partition-groups shed ({found['victims']}); {estimate}"
        rows.append(("overload", dropped if shed else "nothing was shed"))
    elif found["victims"] is not None:
        shed = sum(report["shed"].values())
        dropped = f"{shed:,} tuples shed ({found['victims']}); the result is that of the others"
        rows.append(("overload", dropped if shed else "nothing was shed"))
    if found["spilled_tuples"]:
        peak = size_text(found["peak_spilled_bytes"])
        rows.append(("overload", f"{found['spilled_tuples']:,} tuples went to disk, at most {peak} at once"))
    return rows


def _memory_text(memory: dict[str, Any]) -> str:
    """The largest rank, and the slave with the largest windows, beside the forecast of each."""

    def forecast(what: dict[str, Any]) -> str:
        return "" if what["predicted"] is None else f", {size_text(what['predicted'])} predicted"

    rank = max(memory["ranks"].values(), key=lambda r: int(r["peak"]))
    slave = max(memory["slaves"], key=lambda s: int(s["window"]["peak"]))
    window, left = slave["window"], sum(s["left"]["window_tuples"] for s in memory["slaves"])
    return (
        f"{size_text(rank['peak'])} (largest rank{forecast(rank)}); windows {size_text(window['peak'])} (slave {slave['slave']}"
        f"{forecast(window)}), {left:,} tuples left in them"
    )


_MOST_QUERIES = 20  # that the summary names


def summary_rows(report: dict[str, Any], job: Job) -> list[tuple[str, str]]:
    """(name, value) lines of the summary."""
    names = input_names(report)
    sides = [(name, report["input"][name]["tuples"]) for name in names]
    left_out = [
        f"{report[kind][name]:,} {label} {name}"
        for kind, label in (("null_key", "null keys"), ("late", "late"), ("shed", "shed"))
        for name in names
        if report[kind][name]
    ]
    rows = [("input", ", ".join(f"{count:,} {name}" for name, count in sides) + " tuples")]
    rows += [(f"{name} times", text) for name, text in report_ranges(report)]
    prefill = report["prefill"]
    if prefill is not None:
        rows.append(("history", f"{prefill['pairs']:,} pairs, counted apart, in {prefill['s'] or 0:.2f} s"))
    if left_out:
        rows.append(("left out", ", ".join(left_out)))
    rows += [
        ("pairs" if job.plan is None else "rows", f"{report['results']['count']:,}"),
        *[(f"  {q['name']}", f"{q['count']:,}, digest {q['digest']}") for q in report.get("queries", [])[:_MOST_QUERIES]],
        *([("  others", f"{more:,} queries")] if (more := len(report.get("queries", [])) - _MOST_QUERIES) > 0 else []),
        ("digest", report["results"]["digest"]),
        *([("columns", ", ".join(columns))] if (columns := report["results"]["columns"]) else []),
        ("ledger", "balanced" if report["ledger"]["balanced"] else "; ".join(report["ledger"]["complaints"])),
        *_overload_rows(report),
        *_checkpoint_rows(report, job),
        ("ranks", ", ".join(f"{rank} {r['role']}" for rank, r in report["ranks"].items())),
        ("time", f"{report['join_s']:.2f} s joining, {report['wall_s']:.2f} s in all"),
    ]
    if speed_means_something(report):
        rows.append(("throughput", f"{report['input_tuples_per_s']:,.0f} input tuples/s"))
        delay = report["delay_s"]
        if delay["mean"] is not None:
            said = ", ".join(f"{name} {delay[name] * 1e3:,.1f} ms" for name in ("mean", "p50", "p99", "max"))
            rows.append(("production delay", said))
    if report["warnings"]:
        rows.append(("warnings", f"{len(report['warnings'])}, on standard error and in the report"))
    rows += _adaptation_rows(report)
    machine = report["machine"]
    if machine is not None and machine["overloaded"]:
        rows.append(("machine", "overloaded: " + "; ".join(machine["reasons"])))
    rows.append(("peak memory", _memory_text(report["memory"])))
    topic = job.config.sink.kafka
    results = job.target if topic is None else f"topic {topic.topic} at {topic.servers}"
    if _rows_on_standard_output():
        results = "standard output"
    for label, path in (("results", results), ("run", job.run_dir), ("report", job.report)):
        if path is not None:
            rows.append((label, str(path)))
    return rows


def _rows_on_standard_output() -> bool:
    """`-o -`: what is printed goes to standard error (`cli.join`)."""
    return sys.stdout is sys.stderr


def print_summary(report: dict[str, Any], job: Job, args: argparse.Namespace) -> None:
    """A table on a terminal, aligned plain lines elsewhere; warnings are logged.

    args: of the command. -q: no more than the result of a join that only counts; --log-json where standard output is a
    result: the summary is logged.
    """
    for line in report["warnings"]:
        _LOG.warning("%s", line)
    rows = summary_rows(report, job)
    if args.quiet:
        if job.target is None and job.run_dir is None:
            print(report["results"]["count"])
        return
    if args.log_json and _rows_on_standard_output():
        _LOG.info("%s", "; ".join(f"{name}: {value}" for name, value in rows))
        return
    if not on_terminal():
        for name, value in rows:
            print(f"{name:<17} {value}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    Console().print(table)

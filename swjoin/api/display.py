"""A run as a notebook shows it.

What: `run_as_html`: count, digest, ledger, speed and production delay in one small table.
Why: whether a run can be trusted should be seen without asking.
Stays out: the report's content (`runtime.report`), the terminal (`cli.summary`).
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from swjoin.batch import STREAM_NAMES
from swjoin.errors import SwjoinError
from swjoin.runtime.plausibility import report_ranges
from swjoin.runtime.report import speed_means_something

if TYPE_CHECKING:
    from swjoin.api.runs import Run


def run_as_html(run: Run) -> str:
    """An HTML table; of a run that failed, or of a directory without one, the reason."""
    try:
        rows = _rows(run.report)
    except SwjoinError as error:
        rows = [("failed", str(error))]
    cells = "".join(f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    return f"<table><caption>swjoin run {escape(str(run.path))}</caption>{cells}</table>"


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    results = report["results"]
    rows = [("pairs", "unknown" if results["count"] is None else f"{results['count']:,}"), ("digest", str(results["digest"]))]
    if "input" not in report:
        return [*rows, ("failed", str(report.get("failure", "not complete")))]
    for side in STREAM_NAMES:
        parts = ", ".join(f"{report[n][side]:,} {n.replace('_', ' ')}" for n in ("joined", "null_key", "late", "shed"))
        rows.append((side, f"{report['input'][side]['tuples']:,} rows = {parts}"))
    rows += [(f"{name} times", text) for name, text in report_ranges(report)]
    ledger = report["ledger"]
    rows.append(("ledger", "balanced" if ledger["balanced"] else "; ".join(ledger["complaints"])))
    rows += [("warning", line) for line in report.get("warnings", ())]
    if report["results"].get("columns"):
        rows.append(("columns", ", ".join(report["results"]["columns"])))
    if speed_means_something(report):
        rows.append(("speed", f"{report['input_tuples_per_s']:,.0f} tuples/s, {report['join_s']:.2f} s"))
        delay = report["delay_s"]
        if delay["mean"] is not None:
            rows.append(("delay", ", ".join(f"{delay[q] * 1e3:,.1f} ms ({q})" for q in ("mean", "p50", "p99", "max"))))
    if report["moves"]:
        rows.append(("moves", f"{report['moves']:,}"))
    rows.append(("ranks", f"{len(report['ranks'])}"))
    return rows

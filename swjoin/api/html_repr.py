"""A run as a notebook shows it.

What: `run_as_html`: count, digest, ledger, speed and production delay in one small table.
Why: whether a run can be trusted should be seen without asking.
Stays out: the report's content (`runtime.run_report`), the terminal (`cli.summary`).
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from swjoin.runtime.plausibility import report_ranges
from swjoin.runtime.run_report import input_names, speed_means_something


def run_as_html(path: Path, report: dict[str, Any]) -> str:
    """The HTML table of a run. report: the content of run.json."""
    return _table(path, _rows(report))


def failure_as_html(path: Path, reason: str) -> str:
    """The same of a directory without a report."""
    return _table(path, [("failed", reason)])


def _table(path: Path, rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    return f"<table><caption>swjoin run {escape(str(path))}</caption>{cells}</table>"


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    results, ledger = report["results"], report["ledger"]
    count = results.get("count")
    rows = [("pairs", "unknown" if count is None else f"{count:,}"), ("digest", str(results.get("digest")))]
    if report.get("input") is None:
        return [*rows, ("failed", str(report.get("failure") or "not complete"))]
    for side in input_names(report):
        known = ((n, report.get(n)) for n in ("joined", "null_key", "late", "shed"))
        parts = ", ".join(f"{counts[side]:,} {n.replace('_', ' ')}" for n, counts in known if counts is not None)
        rows.append((side, f"{report['input'][side]['tuples']:,} rows = {parts}"))
    rows += [(f"{name} times", text) for name, text in report_ranges(report)]
    rows.append(("ledger", "balanced" if ledger.get("balanced") else "; ".join(ledger.get("complaints") or [])))
    rows += [("warning", line) for line in report.get("warnings", ())]
    if results.get("columns"):
        rows.append(("columns", ", ".join(results["columns"])))
    if speed_means_something(report):
        if report.get("join_s") is not None:
            rows.append(("speed", f"{report.get('input_tuples_per_s') or 0:,.0f} tuples/s, {report['join_s']:.2f} s"))
        delay = {name: value for name, value in (report.get("delay_s") or {}).items() if value is not None}
        if delay:
            rows.append(
                ("delay", ", ".join(f"{delay[q] * 1e3:,.1f} ms ({q})" for q in ("mean", "p50", "p99", "max") if q in delay))
            )
    if report.get("moves"):
        rows.append(("moves", f"{report['moves']:,}"))
    rows.append(("ranks", f"{len(report.get('ranks') or {})}"))
    return rows

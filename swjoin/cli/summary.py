"""The table at the end of a run.

What: `print_summary(report, job)`.
Why: count, digest, ledger, speed and delay at a glance, and where everything is.
Stays out: the report's content (`runtime.report`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from swjoin.runtime.job import Job


def summary_rows(report: dict[str, Any], job: Job) -> list[tuple[str, str]]:
    """(name, value) lines of the summary."""
    sides = [(name, report["input"][name]["tuples"]) for name in ("left", "right")]
    left_out = [
        f"{report[kind][name]:,} {label} {name}"
        for kind, label in (("null_key", "null keys"), ("late", "late"), ("shed", "shed"))
        for name in ("left", "right")
        if report[kind][name]
    ]
    rows = [("input", ", ".join(f"{count:,} {name}" for name, count in sides) + " tuples")]
    if left_out:
        rows.append(("left out", ", ".join(left_out)))
    rows += [
        ("pairs", f"{report['results']['count']:,}"),
        ("digest", report["results"]["digest"]),
        ("ledger", "balanced" if report["ledger"]["balanced"] else "; ".join(report["ledger"]["complaints"])),
        ("ranks", ", ".join(f"{rank} {r['role']}" for rank, r in report["ranks"].items())),
        ("time", f"{report['join_s']:.2f} s joining, {report['wall_s']:.2f} s in all"),
        ("throughput", f"{report['input_tuples_per_s']:,.0f} input tuples/s"),
    ]
    delay = report["delay_s"]
    if delay["mean"] is not None:
        rows.append(
            ("production delay", ", ".join(f"{name} {delay[name] * 1e3:,.1f} ms" for name in ("mean", "p50", "p99", "max")))
        )
    rows.append(("peak memory", f"{max(report['peak_rss_bytes'].values()) / 2**20:,.0f} MiB (largest rank)"))
    for label, path in (("results", job.target), ("run", job.run_dir), ("report", job.report)):
        if path is not None:
            rows.append((label, str(path)))
    return rows


def print_summary(report: dict[str, Any], job: Job) -> None:
    """A table on a terminal, aligned plain lines elsewhere."""
    rows = summary_rows(report, job)
    if not sys.stdout.isatty() or "SWJOIN_PLAIN" in os.environ:
        for name, value in rows:
            print(f"{name:<17} {value}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    Console().print(table)

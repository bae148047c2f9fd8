"""The command `report`: one HTML file about a run, for who was not there.

What: `run_report`, `build(run_dir) -> Page`.
Why: the verdict first (did the ledger balance, which answer, was it verified), then everything that explains it, in one file
that can be kept and sent.
Stays out: how a page looks (`cli.report_html`), figures (`plots`), the timeline's words (`cli.events`).

A run may be complete, stopped, failed or simulated; of one that failed run.json has less, and the page says what is missing.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
from pathlib import Path
from typing import Any

from swjoin.cli.events import closing, read_events, timeline
from swjoin.cli.explain import Setting, diagram, explain, setting_of_plan
from swjoin.cli.report_html import BEGINNING, Html, Page, bar, escape, folded, listing, paragraph, picture, pre, table, tiles
from swjoin.cli.summary import duration_text, size_text
from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.connectors.files.inputs import local_paths
from swjoin.connectors.files.run_folder import not_verifiable, read_metrics, read_report, read_verified
from swjoin.connectors.output_paths import refuse_foreign, refuse_inputs
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.path_patterns import is_amount
from swjoin.core.resources import load_figures
from swjoin.core.storage import is_standard_output, write_out
from swjoin.runtime.open import instances_of
from swjoin.runtime.plausibility import report_ranges
from swjoin.runtime.run_report import input_names, speed_means_something

_LOG = logging.getLogger(__name__)
_MOST_EVENTS = 300  # lines of the timeline
_MOST_SVG_BYTES = 1_500_000  # beyond, a figure becomes PNG


# ---------------------------------------------------------------- the verdict


def verified(run_dir: Path, report: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether `swjoin verify` found this very answer right; None: it has not been asked."""
    try:
        found = read_verified(run_dir)
        why = not_verifiable(report, config_from_plain(report["config"])) if found is None else None
    except UserError as error:
        return None, f"Not verified: {error}."
    if found is None:
        return None, f"Not verified: {why or f'swjoin verify {run_dir} recomputes the result'}."
    results = report["results"]
    if (found["claimed_count"], found["claimed_digest"]) != (results.get("count"), results.get("digest")):
        return None, "Not verified: DIR/verified.json is of another run in this directory."
    engine = str(found.get("engine", "Spark"))
    if not found["equal"]:
        return False, f"Verification failed: {engine} finds {found['count']:,} pairs, digest {found['digest']}."
    return True, f"Verified: {engine} finds the same {found['count']:,} pairs, digest {found['digest']}."


_MOST_QUERIES = 200  # that the page names


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _verdict(page: Page, report: dict[str, Any], run_dir: Path) -> None:
    results, ledger = report["results"], report["ledger"]
    known = results.get("count") is not None
    answer = f"{results['count']:,} pairs, digest {results.get('digest')}" if known else "how many pairs is not known"
    good, checked = verified(run_dir, report)
    complaints = "; ".join(ledger.get("complaints") or [])
    machine = report.get("machine") or {}
    doubts = [f"The machine was overloaded: {'; '.join(machine.get('reasons') or [])}."] if machine.get("overloaded") else []
    go_on = f"It can be resumed: swjoin run --resume {run_dir}." if report.get("resumable") else ""
    if report.get("simulated"):
        page.verdict("warn", "Simulated, not run", f"Expected: {_count(results.get('count'))} pairs. No tuple has been joined.")
    elif report.get("failure"):
        page.verdict("bad", "The run failed", report["failure"], f"Collected until then: {answer}.", go_on or "Not resumable.")
    elif not report.get("complete", True):
        page.verdict("warn", "Stopped before its end", f"Until then: {answer}.", go_on, *doubts)
    elif not ledger.get("balanced"):
        page.verdict("bad", "The ledger does not balance", complaints, answer)
    elif good is False:
        page.verdict("bad", "The answer is wrong", checked, f"The run claims {answer}.")
    elif report.get("warnings"):
        page.verdict("warn", "Complete and balanced, but implausible", f"{answer}.", *report["warnings"], checked, *doubts)
    else:
        page.verdict("good", "Complete, and the ledger balances", f"{answer}.", checked, *doubts)


def _tiles(report: dict[str, Any]) -> Html:
    results, delay, memory = report["results"], report.get("delay_s") or {}, report.get("memory") or {}
    values: list[tuple[str, object]] = [("pairs", _count(results.get("count")))]
    if report.get("input") is not None:
        values.append(("input tuples", f"{sum(report['input'][n]['tuples'] for n in input_names(report)):,}"))
    speed = speed_means_something(report)
    if report.get("input_tuples_per_s") and speed:
        values.append(("input tuples per second", f"{report['input_tuples_per_s']:,.0f}"))
    if report.get("join_s") is not None:
        values.append(("joining", f"{report['join_s']:,.2f} s"))
    if speed:
        quantiles = [(q, delay[q]) for q in ("p50", "p99") if delay.get(q) is not None]
        values += [(f"production delay, {q}", duration_text(value * 1e6)) for q, value in quantiles]
    if memory.get("ranks"):
        values.append(("largest rank", size_text(max(r["peak"] for r in memory["ranks"].values()))))
    if report.get("moves"):
        values.append(("moves", f"{report['moves']:,}"))
    return tiles(values)


def _ledger(report: dict[str, Any]) -> list[Html]:
    complaints = "; ".join(report["ledger"].get("complaints") or [])
    if report.get("input") is None:
        return [paragraph("No account was made: the run ended before." if report.get("failure") else complaints or "Unknown.")]
    parts = ("joined", "null_key", "late", "shed")
    rows = []
    for name in input_names(report):
        counts = [(report.get(part) or {}).get(name, 0) for part in parts]
        read_in = report["input"][name]["tuples"]
        missing = read_in - sum(counts)
        rows.append([name, f"{read_in:,}", *(f"{c:,}" for c in counts), f"{missing:,}"])
    results = report["results"]
    produced, prefill = results.get("produced"), report.get("prefill")
    shown = [table(["stream", "read", "joined", "null key", "late", "shed", "unaccounted"], rows)]
    shown.append(table(["stream", "times"], report_ranges(report), text=True))
    shown += _shares(report)
    if queries := report.get("queries"):
        rows = [[q["name"], f"{q['count']:,}", q["digest"]] for q in queries[:_MOST_QUERIES]]
        shown.append(table([f"{len(queries):,} queries", "rows", "digest"], rows))
    if results.get("columns"):
        shown.append(paragraph(f"Columns: {', '.join(results['columns'])}."))
    if "stages" in report:
        shown += _stages(report)
    if produced is not None:
        shown.append(paragraph(f"Pairs produced by slaves: {produced:,}; collected: {_count(results.get('count'))}."))
    if prefill:
        shown.append(paragraph(f"History, counted apart: {prefill['pairs']:,} pairs, digest {prefill['digest']}."))
    if complaints:
        shown.append(paragraph(complaints))
    return shown


def _shares(report: dict[str, Any]) -> list[Html]:
    """What each of several gateways has read, and each of several sinks has taken."""
    shown, names = [], input_names(report)
    gateways, sinks = report.get("gateways") or [], report.get("sinks") or []
    if len(gateways) > 1:
        total = max(1, sum(report["input"][name]["tuples"] for name in names))
        counts = {part["gateway"]: [part["tuples"][name] for name in names] for part in gateways}
        rows = [[f"gateway {g}", *(f"{c:,}" for c in read), f"{sum(read) / total:.1%}"] for g, read in counts.items()]
        shown.append(table(["read by", *names, "share"], rows))
    if len(sinks) > 1:
        rows = [[f"sink {sink['sink']}", f"{sink['count']:,}", sink["digest"]] for sink in sinks]
        shown.append(table(["taken by", "pairs", "digest"], rows))
    return shown


def _stages(report: dict[str, Any]) -> list[Html]:
    """The joins of a plan, and the edges between them."""
    heads = ["join", "condition", "left rows", "right rows", "null key", "produced", "windows, at most", "moves"]
    stages = [
        [
            stage["join"],
            stage["description"],
            *(f"{stage['received'][side]:,}" for side in STREAM_NAMES),
            f"{sum(stage['null_key'].values()):,}",
            f"{stage['produced']:,}",
            size_text(sum(stage.get("peak_window_bytes") or [])),
            f"{stage.get('moves', 0):,}",
        ]
        for stage in report["stages"]
    ]
    edges = [
        [
            *(f"{e['from']} to {e['to']}, {e['port']}", f"{e['sent']['rows']:,}", size_text(e["bytes"])),
            *(_between_ranks(e), f"{e['null_key']:,}"),
        ]
        for e in report["edges"]
    ]
    return [table(heads, stages, text=True), table(["edge", "rows", "bytes", "between ranks", "null key, not sent"], edges)]


def _between_ranks(edge: dict[str, Any]) -> str:
    """The share of an edge's bytes that leave their rank."""
    ways = {way: sums["bytes"] for way, sums in edge.get("traffic", {}).items()}
    total = sum(ways.values())
    return f"{100 * (total - ways['local']) / total:.1f} %" if total else ""


# ---------------------------------------------------------------- figures and timeline


def _figure(module: str, run_dir: Path, alt: str) -> Html | None:
    """A figure of `plots/`; a sentence where it cannot be drawn; None where there is nothing to be seen."""
    try:
        figures, stored = load_figures(module), load_figures("stored")
        if module == "adaptation" and not figures.has_adapted(run_dir):
            return None
        figure = figures.plot(run_dir)
        out, kind = io.BytesIO(), "svg+xml"
        with stored.drawing(run_dir):
            figure.savefig(out, format="svg", metadata={"Date": None})
            if out.tell() > _MOST_SVG_BYTES:
                out, kind = io.BytesIO(), "png"
                figure.savefig(out, format="png", dpi=110)
    except UserError as error:
        return paragraph(f"No figure: {error}", soft=True)
    return picture(out.getvalue(), kind, alt)


def _timeline(page: Page, run_dir: Path) -> None:
    try:
        events = read_events(run_dir)
    except UserError:
        return
    lines = [line for line in timeline(events) if line.kind != "occupancy"]
    rows = [[f"{line.time_us / 1e6:,.3f} s", line.epoch, line.text.strip()] for line in lines[:_MOST_EVENTS]]
    parts = [listing(closing(events))]
    if rows:
        cut = f", the first {_MOST_EVENTS} of {len(lines):,}" if len(lines) > _MOST_EVENTS else ""
        parts.append(folded(f"what was decided and what became of it{cut}", table(["time", "epoch", "event"], rows, text=True)))
    page.section("Timeline", *parts)


# ---------------------------------------------------------------- what happened


def _amount(name: str, value: Any) -> str:
    """A number of run.json with its unit."""
    if not is_amount(value):
        return str(value)
    if name.endswith("_s"):
        return f"{value:,.3g} s"
    return size_text(value) if name.endswith("bytes") else f"{value:,}"


def _safety(page: Page, report: dict[str, Any]) -> None:
    found = report.get("checkpoints")
    if not found:
        return
    rows: list[tuple[str, object]] = [
        (name.removesuffix("_s").replace("_", " "), _amount(name, value))
        for name, value in found.items()
        if not isinstance(value, (list, dict)) and value is not None
    ]
    parts = [listing(rows)]
    if found.get("recoveries"):
        heads = sorted({key for recovery in found["recoveries"] for key in recovery})
        parts.append(table(heads, [[recovery.get(h, "") for h in heads] for recovery in found["recoveries"]]))
    else:
        parts.append(paragraph("No recoveries: no rank died.", soft=True))
    page.section("Checkpoints and recoveries", *parts)


def _overload(page: Page, report: dict[str, Any]) -> None:
    found = report.get("overload") or {}
    if found.get("victims") is None and not found.get("spilled_tuples"):
        return
    rows: list[tuple[str, object]] = [("policy", found.get("policy", ""))]
    if found.get("victims") is not None:
        rows.append(("shed", f"{sum((report.get('shed') or {}).values()):,} tuples ({found.get('victims')})"))
    if found.get("shed_by_group") is not None:
        rows += [
            ("lost pairs, estimated", f"{found.get('lost_pairs_estimate') or 0:,.0f}"),
            ("recall, estimated", f"{found.get('recall_estimate') or 0:.1%}"),
        ]
    if found.get("spilled_tuples"):
        rows.append(
            (
                "spilled",
                f"{found['spilled_tuples']:,} tuples, at most {size_text(found.get('peak_spilled_bytes') or 0)} at once",
            )
        )
    page.section("Overload", listing(rows))


def _memory(page: Page, report: dict[str, Any]) -> None:
    memory = report.get("memory")
    if not memory:
        return

    def size(value: Any) -> str:
        return "-" if value is None else size_text(value)

    ranks, roles = memory["ranks"], report.get("ranks") or {}
    most = max((max(r["peak"], r.get("predicted") or 0) for r in ranks.values()), default=1)
    rows = [
        [
            f"{rank} {roles.get(rank, {}).get('role', '')}",
            size(r.get("start")),
            size(r.get("predicted")),
            size(r["peak"]),
            bar(r["peak"], r.get("predicted"), most),
        ]
        for rank, r in ranks.items()
    ]
    parts = [table(["rank", "at start", "estimated", "used", "used, and a mark at the estimate"], rows)]
    windows = [
        [
            f"slave {s['slave']}",
            *(size(s["window"].get(k)) for k in ("predicted", "peak", "limit")),
            *(size(s["buffer"].get(k)) for k in ("predicted", "peak")),
            f"{s['left']['window_tuples']:,}",
        ]
        for s in memory["slaves"]
    ]
    heads = ["windows", "estimated", "used", "limit", "stream buffer, estimated", "used", "tuples left at the end"]
    parts.append(table(heads, windows))
    if memory.get("unforeseen"):
        parts.append(paragraph(f"No estimate: {memory['unforeseen']}", soft=True))
    page.section("Memory, estimated and used", *parts)


def _slaves(run_dir: Path) -> dict[str, list[str]]:
    """Of each slave: tuples, pairs, share of the time in the join module, mean delay, highest occupancy; by role."""
    import numpy as np

    try:
        rows = read_metrics(run_dir)
    except UserError:
        return {}
    out = {}
    for slave in np.unique(rows["slave"]):
        mine = rows["slave"] == slave
        pairs = float(rows["pairs"][mine].sum())
        span_us = max(1.0, float(rows["epoch_end_us"].max()))
        delay = float((rows["pairs"] * rows["delay_mean_us"])[mine].sum()) / pairs if pairs else None
        out[f"slave {int(slave)}"] = [
            f"{int((rows['left_tuples'] + rows['right_tuples'])[mine].sum()):,}",
            f"{int(pairs):,}",
            f"{100 * float(rows['process_us'][mine].sum()) / span_us:.1f} %",
            "-" if delay is None else duration_text(delay),
            f"{float(rows['occupancy_ratio'][mine].max()):.2f}",
        ]
    return out


def _ranks(page: Page, report: dict[str, Any], run_dir: Path) -> None:
    slaves = _slaves(run_dir)
    heads = ["rank", "host", "tuples joined", "pairs", "time in the join", "mean delay", "highest occupancy"]
    roles = []
    for rank, r in (report.get("ranks") or {}).items():  # a slave's rank may play gateways and sinks, too
        roles.append((f"{rank} {r['role']}", next((part for part in r["role"].split(", ") if part in slaves), ""), r["host"]))
    if "stages" in report:  # a rank plays an instance of every stage, each of which is a slave
        roles = [(label, "", host) for label, _, host in roles]
        roles += [(f"slave {s}, {e['join']}", f"slave {s}", "") for e in report["stages"] for s in e.get("slaves", [])]
    named = {role for _, role, _ in roles}
    roles += [(f"thread of {role}", role, "") for role in slaves if role not in named]
    if roles:
        page.section("Ranks", table(heads, [[label, host, *slaves.get(role, ["-"] * 5)] for label, role, host in roles]))


def _instances(job: Job, report: dict[str, Any], count: int) -> Instances | None:
    """The instances of a run, so many together; how many ranks played them follows from those of each stage."""
    counts = tuple(len(stage["slaves"]) for stage in report.get("stages") or [])
    widths = range(max(counts, default=0), sum(counts))
    found = next((of for width in widths if (of := instances_of(job, width)) and of.subclusters.counts == counts), None)
    return found or instances_of(job, count)


def _configuration(page: Page, report: dict[str, Any]) -> None:
    parts = []
    ranks = report.get("ranks") or {}
    count = max(1, sum("slave" in r["role"] for r in ranks.values()))
    if report.get("memory"):
        count = max(1, len(report["memory"]["slaves"]))
    try:
        config = config_from_plain(report["config"])
        job = Job(config, None, False, None, None, "report").with_plan_of(report)
        plan = _instances(job, report, count)
        if ranks:
            played = None if len(ranks) == 1 else RankMap.of(config, len(ranks))
            setting = Setting(config, count, played, None, "see the files' schemas")
            if plan is not None:
                setting = setting_of_plan(job, plan, played)
            parts.append(pre("\n".join(diagram(setting))))
            parts.append(listing((title, " ".join(said)) for title, said in explain(setting).items()))
        else:
            parts.append(paragraph("On how many ranks it ran is not known.", soft=True))
    except UserError as error:  # of a version that knew other keys
        parts.append(paragraph(f"This version cannot explain the configuration: {error}", soft=True))
    parts.append(folded("all keys", pre(json.dumps(report["config"], indent=2, ensure_ascii=False))))
    page.section("What was run", *parts)


def build(run_dir: Path) -> Page:
    """The page about a run. UserError when the directory holds none."""
    report = read_report(run_dir)
    page = Page(f"swjoin: {run_dir.name}")
    page.add(
        Html(f"<h1>{escape(run_dir.name)}</h1>"),
        paragraph(Html(f"<code>{escape(report.get('command') or '')}</code>"), soft=True),
    )
    _verdict(page, report, run_dir)
    page.add(_tiles(report))
    page.section("Ledger", *_ledger(report))
    overview = _figure("run_overview", run_dir, "throughput, production delay and occupancy over time")
    adapted = (
        _figure("adaptation", run_dir, "occupancy, active slaves, moves and delay over time") if report.get("moves") else None
    )
    page.section("Over time", *(f for f in (overview, adapted) if f is not None))
    _timeline(page, run_dir)
    _safety(page, report)
    _overload(page, report)
    _memory(page, report)
    _ranks(page, report, run_dir)
    _configuration(page, report)
    versions = listing((report.get("versions") or {}).items())
    page.section(
        "Versions", versions, paragraph(f"configuration {report.get('config_digest', '-')}, seed {report.get('seed', '-')}")
    )
    return page


def _inputs(report: dict[str, Any]) -> list[Path]:
    """Files and directories of this machine that the run has read."""
    sides = [report["config"].get(name) for name in STREAM_NAMES]
    named = [side.get(key) or () for side in sides if isinstance(side, dict) for key in ("path", "watch")]
    return [path for name in named if isinstance(name, (str, list)) for path in local_paths(name)]


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING.encode()


def run_report(args: argparse.Namespace) -> int:
    run_dir = Path(args.dir)
    target = run_dir / "report.html" if args.out is None else Path(args.out)
    names = ("run.json", "verified.json", "simulation.json", "traffic.json.gz", "late.parquet", "metrics", "results")
    refuse_inputs([("-o", target)], [*(run_dir / name for name in names), *_inputs(read_report(run_dir))])
    refuse_foreign(target, "-o", "page of swjoin report", _is_page)
    text = build(run_dir).text()
    try:
        write_out(target, text.encode())
    except RunFailed as error:
        raise UserError(f"-o {error}") from None
    (_LOG.info if is_standard_output(target) else print)(f"{target} ({size_text(len(text.encode()))})")
    return 0

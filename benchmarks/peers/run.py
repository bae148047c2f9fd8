"""swjoin and all peers on the same Parquet files, one after the other: `./run.sh bench peers`.

What: makes an environment for each system (runs/peers/, once), writes the reference workload, runs swjoin and every peer in
turn, compares each count with the right one, prints a table and keeps it in runs/bench/peers.md.
Why: only figures of the same data on the same cores within one hour can be compared.
Stays out: how each system is used; that is in its own script, with its configuration. Queries (`benchmarks.peers.nexmark`).

A peer that cannot be installed or fails is shown as failed, one that answers wrongly as wrong. Bytewax and Pathway get the
first seconds of event time only (with the right count for those), because the whole would take minutes.

Usage: python -m benchmarks.peers.run [--only flink spark ...] [--repeat N] [--event-s S] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import ROOT, parse, whole
from benchmarks.workloads import write_streams

HERE = ROOT / "benchmarks" / "peers"

WITHIN_US = 10_000_000
TIMEOUT_S = 1500
# name: (module, its arguments, with --tiny these as well, whether it gets the first seconds only)
PEERS: dict[str, tuple[str, list[str], list[str], bool]] = {
    "cpp": ("cpp_join", [], [], False),
    "duckdb": ("batch_joins", ["--variants", "duckdb-key", "duckdb-slot"], [], False),
    "polars": ("batch_joins", ["--variants", "polars-stream", "polars-memory"], [], False),
    "flink": ("flink_join", [], ["--heap", "1g", "--young", "400m"], False),
    "spark": ("spark_join", [], ["--heap", "1g"], False),
    "pathway": ("pathway_join", [], [], True),
    "bytewax": ("bytewax_join", [], [], True),
}


def installed_here(wanted: str) -> bool:
    """Whether this environment has the very versions that a peer's requirements name."""
    try:
        return all(version(name) == pinned for name, pinned in (line.split("==") for line in wanted.split()))
    except PackageNotFoundError:
        return False


def environment(name: str, folder: Path) -> Path:
    """The python of a peer's environment: this one if it has all that is required, or one of its own, made when it is missing
    or its requirements have changed."""
    requirements = HERE / f"requirements-{name}.txt"
    wanted = requirements.read_text() if requirements.exists() else ""
    if installed_here(wanted):
        return Path(sys.executable)
    venv = folder / name
    stamp = venv / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {name}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(requirements)], check=True)
        stamp.write_text(wanted)
    return venv / "bin" / "python"


def run_peer(name: str, paths: list[Path], repeat: int, event_s: float, folder: Path, *, tiny: bool) -> list[dict[str, Any]]:
    """The reports of a peer's variants."""
    module, more, small, cut = PEERS[name]
    command = [str(environment(name, folder)), "-m", f"benchmarks.peers.{module}", *more, *(small if tiny else [])]
    command += ["--left", str(paths[0]), "--right", str(paths[1]), "--within-us", str(WITHIN_US), "--repeat", str(repeat)]
    if cut and event_s > 0:
        command += ["--max-event-s", str(event_s)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, cwd=ROOT).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def ours(paths: list[Path], answer: tuple[int, str], repeat: int, folder: Path) -> list[dict[str, Any]]:
    """swjoin in one process and on MPI; `join_s` of run.json, the first run not counted."""
    import pyarrow.parquet as pq

    import swjoin

    tuples = sum(pq.read_metadata(p).num_rows for p in paths)
    out = []
    for what, more in (("in-process, threads", []), ("MPI, 2 slaves (4 ranks)", ["-n", "4"])):
        seconds = [tuples / whole.join(paths, answer, folder, "count", more) for _ in range(repeat + 1)][1:]
        report = {
            "system": "swjoin",
            "version": swjoin.__version__,
            "configuration": f"{what}; Parquet in, count and digest out",
        }
        out.append({**report, "count": answer[0], "expected": answer[0], "seconds": seconds, "tuples": tuples})
    return out


def table(reports: list[dict[str, Any]], answer: int) -> list[str]:
    """Markdown rows, in the order of the reports."""
    lines = ["| system | configuration | k tuples/s | lowest to highest | answer | swjoin is |", "|---|---|---|---|---|---|"]
    best = max(statistics.median(r["tuples"] / s for s in r["seconds"]) for r in reports if r["system"] == "swjoin")
    for report in reports:
        name = f"{report['system']} {report['version']}"
        if "failed" in report:
            lines.append(f"| {name} | | failed: {report['failed']} | | | |")
            continue
        rates = [report["tuples"] / s for s in report["seconds"]]
        right = report["count"] == (report.get("expected") or answer)
        verdict = "right" if right else f"**wrong**: {report['count']:,} pairs"
        middle = statistics.median(rates)
        times = "" if report["system"] == "swjoin" else f"{best / middle:.1f} x"
        spread = f"{min(rates) / 1e3:,.0f} to {max(rates) / 1e3:,.0f}"
        lines.append(f"| {name} | {report['configuration']} | {middle / 1e3:,.0f} | {spread} | {verdict} | {times} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--event-s", type=float, default=6.0, help="event time given to Bytewax and Pathway; 0: all")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench")
    args = parse(parser, repeat=1)
    args.out.mkdir(parents=True, exist_ok=True)
    environments = ROOT / "runs" / "peers"
    environments.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swjoin-peers-") as name:
        folder = Path(name)
        paths, answer, tuples = write_streams(folder, tiny=args.tiny)
        reports = ours(paths, answer, args.repeat, folder)
        for peer in args.only:
            print(f"{peer}:", file=sys.stderr, flush=True)
            try:
                reports += run_peer(peer, paths, args.repeat, args.event_s, environments, tiny=args.tiny)
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                reports.append({"system": peer, "version": "", "failed": " ".join(str(error).split())[:200]})
            (args.out / "peers.json").write_text(json.dumps(reports, indent=1))
    title = f"{tuples:,} tuples of 64 bytes, b = 0.7, W = 10 s, {answer[0]:,} pairs; without start-up, medians of {args.repeat}"
    lines = [title, "", *table(reports, answer[0])]
    (args.out / "peers.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    wrong = [r["system"] for r in reports if "failed" in r or r["count"] != (r.get("expected") or answer[0])]
    if wrong:
        raise SystemExit(f"failed or wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

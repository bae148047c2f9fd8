"""Live sessions measured: with deaths, at rising rates, at short distribution epochs.

What: `session`, a minute in real time with a producer, a consumer and a slave killed; `sweep`, the highest rate that the run
keeps up with; `delay`, production delay over the distribution epoch at a low rate, with a figure. Every answer is compared with
DuckDB's: in the run's report, at a consumer of final rows, and at one of rows that are not final yet.
Why: the guarantees of a live run are those that its clients see.
Stays out: running a session (`benchmarks.workloads.live_session`).

Producers, the run and consumers share the machine; a tuple has 72 bytes on the wire (key, time, id, 40 to 48 bytes of payload).

Usage: python -m benchmarks.live [session|sweep|delay] [--rate 100000] [--seconds 60] [--ranks 5] [--epoch 200] [--repeats 1]
    [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import parse
from benchmarks.run import environment, say
from benchmarks.workloads.live_session import Session, SessionResult, run_session

KILLS = (("right", 0.25), ("consumer", 0.45), ("slave", 0.65))
RATES = (25_000, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000)
EPOCHS_MS = (10, 20, 50, 100, 200, 500)
LOW_RATE = 2_000
CHECKPOINT_US = 5_000_000
_LAG_S = 2.0  # a run that ends later than this after its streams were due has not kept up


def _checked_session(session: Session, folder: Path) -> SessionResult:
    """Run a session; SystemExit when an answer is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    result = run_session(session, folder)
    complaints = result.complaints()
    if complaints:
        raise SystemExit(f"wrong: {'; '.join(complaints)}; everything is in {folder}")
    return result


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}"


def bench_session(base: Session, repeats: int, folder: Path) -> None:
    what = f"{2 * base.rate_per_s:,.0f} tuples/s, {base.duration_us // 1_000_000} s, {base.ranks} ranks"
    say(f"\n## A live session: {what}, t_d = {base.epoch_us // 1000} ms\n")
    say(
        "| pairs | digest | recoveries seen by a consumer | p99 production delay outside recovery (ms) | largest | two epochs |"
    )
    say("|---|---|---|---|---|---|")
    for _ in range(repeats):
        result = _checked_session(replace(base, kills=KILLS), folder / "session")
        found = result.delay_s
        say(
            f"| {result.answer[0]:,} | {result.answer[1]} | {result.voids} | {_ms(found['p99'])} "
            f"({found['share']:.0%} of the pairs) | {_ms(found['max'])} | {_ms(2 * base.epoch_us / 1e6)} |"
        )


def bench_sweep(base: Session, rates: list[int], folder: Path) -> None:
    """Raise the rate until the run falls behind."""
    say(f"\n## Live rates: {base.duration_us // 1_000_000} s each, {base.ranks} ranks, t_d = {base.epoch_us // 1000} ms\n")
    say("| tuples/s, both streams | the run ended after the streams were due (s) | p50, p99 production delay (ms) | keeps up |")
    say("|---|---|---|---|")
    for rate in rates:
        result = _checked_session(replace(base, rate_per_s=rate, domain=10 * rate), folder / "sweep")
        lag_s = result.sent_s["run"] - base.duration_us / 1e6
        delay = result.report["delay_s"]
        keeps = lag_s < _LAG_S
        say(f"| {2 * rate:,} | {lag_s:.1f} | {_ms(delay['p50'])}, {_ms(delay['p99'])} | {'yes' if keeps else 'no'} |")
        if not keeps:
            return


def bench_delay(base: Session, epochs_ms: list[int], repeats: int, folder: Path) -> None:
    """Production delay over t_d, in one process, and the delay at the live consumer."""
    say(f"\n## Delay at a low rate: {2 * LOW_RATE:,} tuples/s, one process, medians of {repeats} runs\n")
    say("| t_d (ms) | production delay p50, p99 (ms) | from push to consumer p50, p99 (ms) |")
    say("|---|---|---|")
    table = []
    for epoch_ms in epochs_ms:
        found = []
        for _ in range(repeats):
            session = replace(base, rate_per_s=LOW_RATE, domain=2_000, epoch_us=epoch_ms * 1000, ranks=0)
            result = _checked_session(session, folder / "delay")
            delay, seen = result.report["delay_s"], result.seen_s
            found.append([delay["p50"], delay["p99"], seen["p50"], seen["p99"]])
        middle = [statistics.median(values) for values in zip(*found, strict=True)]
        table.append({"epoch_ms": epoch_ms, "all": found})
        say(f"| {epoch_ms} | {_ms(middle[0])}, {_ms(middle[1])} | {_ms(middle[2])}, {_ms(middle[3])} |")
    (folder / "delay.json").write_text(json.dumps(table))
    from plots import live_delay

    for path in live_delay.save(folder):
        say(f"\n{path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["session", "sweep", "delay"], nargs="?")
    parser.add_argument("--rate", type=float, default=100_000, help="tuples per second of each stream (session)")
    parser.add_argument("--seconds", type=int, help="of a session (default: 60; sweep and delay: 15)")
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--epoch", type=int, default=200, help="distribution epoch in ms (session, sweep)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="of the sweep")
    parser.add_argument("--epochs", type=int, nargs="+", default=list(EPOCHS_MS), help="distribution epochs in ms (delay)")
    args = parse(parser, rate=2_000, seconds=6, ranks=4, rates=[2_000], epochs=[100])
    folder = args.out or Path(tempfile.mkdtemp(prefix="swjoin-live-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(environment())
    if args.part in (None, "session"):
        whole = Session(
            args.rate,
            (args.seconds or 60) * 1_000_000,
            args.epoch * 1000,
            ranks=args.ranks,
            checkpoint_us=CHECKPOINT_US // (5 if args.tiny else 1),
        )
        bench_session(whole, args.repeats, folder)
    short = Session(args.rate, (args.seconds or 15) * 1_000_000, args.epoch * 1000, ranks=args.ranks)
    if args.part in (None, "sweep"):
        bench_sweep(short, args.rates, folder)
    if args.part in (None, "delay"):
        bench_delay(short, args.epochs, args.repeats, folder)
    if args.out is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

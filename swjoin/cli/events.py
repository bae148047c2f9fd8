"""`swjoin events`: what a run decided and what became of it, as lines to be read from top to bottom.

What: `read_events(run_dir)`, `timeline(events)` (one `Line` per event), `closing(events)` (moves, hold-back, active slaves),
and `print_timeline(run_dir, ...)`.
Why: which slave gave what to whom, when and why, should not need a notebook.
Stays out: what the kinds of events mean (`cluster.master.controller`), tables of moves (`sweeps.run_tables`), pictures
(`plots`).
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swjoin.cli.common_args import separate
from swjoin.cli.summary import duration_text, on_terminal, size_text
from swjoin.connectors.files import run_folder
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError

MOVES = ("decided", "held", "left", "installed", "released")
ACTIVITY = ("activated", "emptying", "kept", "rested")
_HOT_KEYS = {
    "key_copied": "is hot, rows of one side are copied to all instances",
    "key_dealt": "is hot, rows of the other side are dealt to all instances",
    "key_gathered": "has cooled down, its rows are dealt no longer",
}
_UNITS = {
    "unit_opened": "stores rows from now on",
    "unit_closing": "stores no more rows, and is probed until its own have expired",
    "unit_closed": "is empty, and probed no longer",
}
_PLACEMENT = ("placed", "regret")
_QUERIES = ("query_added", "query_dropped")
_OF_RUN = ("shed", "spilled", "idle", "speaks", "checkpoint", "recovered")
KINDS = ("occupancy", *MOVES, *ACTIVITY, *_OF_RUN, *_HOT_KEYS, *_UNITS, *_PLACEMENT, *_QUERIES)
_COLOURS = {"decided": "bold cyan", "released": "green", "occupancy": "dim", **dict.fromkeys(ACTIVITY, "bold magenta")}


@dataclass(frozen=True)
class Line:
    """One line of the timeline. kind: of its event or, for occupancy, events."""

    time_us: int
    epoch: int
    kind: str
    text: str


def read_events(run_dir: Path) -> list[RunEvent]:
    """The events of a run, in their order. UserError when it has none."""
    if not os.path.isfile(run_dir / "metrics" / "events.parquet"):  # unlike Path.is_file, for names that are too long as well
        raise UserError(f"{run_dir}: holds no metrics/events.parquet; is it the directory of a run, and has the run ended?")
    events = run_folder.read_events(run_dir)
    if not events:
        raise UserError(
            f"{run_dir}: this run has no events; only runs with a reorganization.policy, scaling, checkpoints or hot keys have"
        )
    return events


def select(
    events: Iterable[RunEvent], kinds: Sequence[str] = (), slave: int | None = None, group: int | None = None
) -> list[RunEvent]:
    """The events of these kinds (none: all) that concern this slave, as either side of a move, and this partition-group."""
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, 1)
            raise UserError(f"--kind {kind}: {f'did you mean {near[0]}?' if near else 'one of ' + ', '.join(KINDS)}")
    return [
        e
        for e in events
        if (not kinds or e.kind in kinds)
        and (slave is None or slave in (e.slave, e.peer))
        and (group is None or group == e.group)
    ]


# ---------------------------------------------------------------- one line per event


def timeline(events: Sequence[RunEvent]) -> list[Line]:
    """A line for each event; the occupancies that one reorganization epoch reports of a stage share one."""
    # Steps of moves stand further to the right than decisions; with padded numbers their verbs stand below each other.
    digits = max([len(str(e.group)) for e in events if e.kind in MOVES], default=1)
    lines = []
    for key, together in itertools.groupby(events, key=lambda e: (e.kind == "occupancy", e.time_us, e.epoch, e.stage)):
        members = list(together)
        if key[0]:
            of = "" if key[3] < 0 else f"stage {key[3]}: "
            text = f"{of}occupancy: " + ", ".join(_occupancy(e) for e in members)
            lines.append(Line(key[1], key[2], "occupancy", text))
        else:
            lines += [Line(e.time_us, e.epoch, e.kind, words(e, digits)) for e in members]
    return lines


def _occupancy(event: RunEvent) -> str:
    joining = f" ({duration_text(event.duration_us)} joining)" if event.duration_us else ""
    return f"slave {event.slave} {event.amount:.2f} {event.text}{joining}"


def words(event: RunEvent, digits: int = 0) -> str:
    """An event in plain words, with its stage in a plan."""
    text = _words(event, digits)
    plain = text.lstrip()
    return text if event.stage < 0 else f"{text.removesuffix(plain)}stage {event.stage}: {plain}"


def _words(event: RunEvent, digits: int) -> str:
    e, number = event, int(event.amount)
    active = f"{number} active slave{'' if number == 1 else 's'}"
    step = f"    group {e.group:<{digits}}  move {number}: "
    carried = f"{e.tuples:,} tuples, {size_text(e.state_bytes)}, {duration_text(e.duration_us)}"
    match e.kind:
        case "decided":
            why = f": {e.text}" if e.text else ""
            return f"slave {e.slave} yields partition-group {e.group} to slave {e.peer} (move {number}){why}"
        case "held":
            return f"{step}held"
        case "left":
            return f"{step}left slave {e.slave}: {carried}"
        case "installed":
            return f"{step}installed at slave {e.slave}: {carried}"
        case "released":
            waiting = f"; {e.tuples:,} tuples had been held back" if e.tuples else "; no tuples had been held back"
            return f"{step}released after {duration_text(e.duration_us)}{'' if e.stage >= 0 else waiting}"
        case "activated":
            return f"slave {e.slave} is activated; {active} from now on"
        case "emptying":
            return f"slave {e.slave} is to rest and yields all its partition-groups; {active} until then"
        case "kept":
            return f"slave {e.slave} is not to rest after all; {active}"
        case "rested":
            return f"slave {e.slave} rests; {active} from now on"
        case "shed":
            return f"full mini-buffers: {e.tuples:,} tuples are shed, {size_text(e.state_bytes)}"
        case "spilled" if e.text:
            return f"the disk takes no more spilled tuples, the source waits: {e.text}"
        case "spilled":
            there = size_text(int(e.amount))
            return f"full mini-buffers: {e.tuples:,} tuples go to disk, {size_text(e.state_bytes)}; {there} lie there now"
        case "idle":
            return f"{e.text} has been silent for the idle timeout; time goes on without it"
        case "speaks":
            return f"{e.text} speaks again"
        case kind if kind in _HOT_KEYS:
            return f"{e.text} of partition-group {e.group} {_HOT_KEYS[kind]}"
        case kind if kind in _UNITS:
            return f"unit {e.group} ({e.text}) {_UNITS[kind]}"
        case "checkpoint":
            return f"checkpoint {number} is durable, {duration_text(e.duration_us)} after its cut"
        case "placed":
            return f"placement: {e.text}"
        case "regret":
            return f"regret: {e.amount:.1f} {e.text}"
        case "query_added" | "query_dropped":
            rows = f"times {'from' if e.kind == 'query_added' else 'before'} {e.amount:.6f} s"
            return f"{e.kind.replace('_', ' ')}: {e.text}, rows with {rows}, after a pause of {duration_text(e.duration_us)}"
        case "recovered":
            return f"recovered in {duration_text(e.duration_us)}: {e.text}, {e.tuples:,} tuples are joined once more"
    return " ".join(x for x in (e.kind, f"slave {e.slave}" if e.slave >= 0 else "", e.text) if x)


# ---------------------------------------------------------------- at the end


def closing(events: Sequence[RunEvent]) -> list[tuple[str, str]]:
    """(name, value) lines about the whole run: moves, bytes moved, hold-back, range of active slaves."""
    released = [e for e in events if e.kind == "released"]
    decided = sum(e.kind == "decided" for e in events)
    moved = f"{len(released):,}"
    if released:
        moved += f", {size_text(sum(e.state_bytes for e in released))}"
    if decided > len(released):
        moved += f"; {decided - len(released):,} more did not come to an end"
    rows = [("moves", moved)]
    if released:
        held = np.quantile([e.duration_us for e in released], (0.5, 0.99, 1.0))  # as in run.json
        values = zip(("p50", "p99", "max"), held, strict=True)
        rows.append(("hold-back", ", ".join(f"{name} {duration_text(us)}" for name, us in values)))
    active = _active(events)
    if active:
        low, high = min(active), max(active)
        rows.append(("active slaves", f"{low} throughout" if low == high else f"{low} to {high}"))
    return rows


def _active(events: Iterable[RunEvent]) -> list[int]:
    """Every number of active slaves (of a plan: of a stage) in the events: a reorganization epoch reports each one once."""
    counts = []
    for occupancy, together in itertools.groupby(events, key=lambda e: (e.kind == "occupancy", e.epoch, e.stage)):
        members = list(together)
        counts += [len(members)] if occupancy[0] else [int(e.amount) for e in members if e.kind in ACTIVITY]
    return counts


# ---------------------------------------------------------------- printing


def print_timeline(run_dir: Path, kinds: Sequence[str] = (), slave: int | None = None, group: int | None = None) -> None:
    """The chosen events and, whatever was chosen, the closing lines of the whole run; in colours on a terminal."""
    events = read_events(run_dir)
    chosen = select(events, kinds, slave, group)
    lines = timeline(chosen)
    seconds = len(f"{events[-1].time_us / 1e6:.3f}")
    epochs = len(str(events[-1].epoch))
    rows = [(f"{x.time_us / 1e6:{seconds}.3f} s  epoch {x.epoch:<{epochs}}  ", x) for x in lines]
    end = [(f"{name:<15}", value) for name, value in closing(events)]
    between = "" if len(chosen) == len(events) else "\nwhole run:"
    if not on_terminal():
        for head, line in rows:
            print(f"{head}{line.text}")
        print(between if rows else f"no such events{between}", *(f"{name}{value}" for name, value in end), sep="\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for head, line in rows:
        console.print(Text.assemble((head, "dim"), (line.text, _COLOURS.get(line.kind, ""))))
    console.print(between if rows else f"no such events{between}")
    for name, value in end:
        console.print(Text.assemble((name, "bold"), value))


def run_events(args: argparse.Namespace) -> int:
    print_timeline(Path(args.dir), separate(args.kinds), args.slave, args.group)
    return 0

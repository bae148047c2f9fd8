"""`swjoin top`: a running join in the terminal.

What: `run_top`, and `show` over anything that fetches a snapshot (`monitor.status_board`).
Why: on a cluster's node there is a terminal before there is a browser. Its data are those of the dashboard.
Stays out: what a snapshot holds (`monitor.status_board`), the page (`monitor.web`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.cli.events import words
from swjoin.cli.summary import duration_text, size_text
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import RunFailed, UserError
from swjoin.monitor.role_watchers import ADDRESS_FILE

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Fetch = Callable[[], dict[str, Any]]
_PERIOD_S = 0.5
_PATIENCE_S = 5.0
_EVENTS, _KEYS, _GATEWAYS, _SLAVES, _QUERIES = 10, 8, 16, 32, 16  # at most so many lines
_BAR = 14  # characters
_COLOURS = ("blue", "dark_orange", "green", "magenta", "purple", "red", "cyan", "yellow")
_PHASES = {"running": "green", "failed": "red"}


def run_top(args: argparse.Namespace) -> int:
    """Exit code 0; UserError when the run does not answer at first, RunFailed when it stops answering."""
    fetch = over_flight(args) if args.address.startswith("grpc") else over_http(address_of(args.address))
    if args.once:
        from rich.console import Console

        wide = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
        wide.print(frame(fetch()))
        return 0
    return show(fetch)


def address_of(text: str) -> str:
    """The page's address, from an address, a port, or the directory of a run that has one. UserError when there is none."""
    if text.isdigit():
        return f"http://127.0.0.1:{text}"
    if text.startswith(("http://", "https://")):
        return text.rstrip("/")
    try:
        return (Path(text) / ADDRESS_FILE).read_text().strip().rstrip("/")
    except (OSError, ValueError):
        raise UserError(
            f"{text}: no run with a dashboard is going on there; start one with swjoin run ... --dashboard, or give its address"
        ) from None


def over_flight(args: argparse.Namespace) -> Fetch:
    """Fetches from a live run's endpoint (`swjoin serve`). Raises UserError when there is no answer."""
    from swjoin.connectors.flight.client import connect

    client = connect(args.address, token_file=args.token_file, root_certificate=args.root_certificate)

    def fetch() -> dict[str, Any]:
        try:
            return client.status()
        except RunFailed as error:
            raise UserError(f"{args.address}: {error}") from None

    return fetch


def over_http(address: str) -> Fetch:
    """Fetches from the page's address. Raises UserError when there is no answer."""
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))  # loopback, whatever the environment says of proxies

    def fetch() -> dict[str, Any]:
        try:
            with opener.open(f"{address}/status.json?since=1e18&map=0", timeout=_PATIENCE_S) as answer:
                snapshot: dict[str, Any] = json.load(answer)
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(f"{address}: nobody answers ({reason}); is a run with --dashboard going on there?") from None
        if not isinstance(snapshot, dict) or "run" not in snapshot:
            raise UserError(f"{address}: answers, but not as a swjoin dashboard does")
        return snapshot

    return fetch


def show(fetch: Fetch, console: Console | None = None) -> int:
    """Show snapshots until q, Ctrl-C, or the end of the run. fetch: raises UserError without an answer."""
    from rich.live import Live

    snapshot = fetch()
    with _keys() as pressed, Live(frame(snapshot), console=console, screen=True, auto_refresh=False) as live:
        try:
            while not pressed(_PERIOD_S):
                try:
                    snapshot = fetch()
                except UserError:
                    break
                live.update(frame(snapshot), refresh=True)
                if snapshot["run"]["phase"] in ("ended", "stopped", "failed"):
                    break
            else:
                return 0
        except KeyboardInterrupt:
            return 0
    print_last(snapshot, console)
    return 0


def print_last(snapshot: dict[str, Any], console: Console | None) -> None:
    """What the terminal keeps of a run that has ended."""
    from rich.console import Console

    (console or Console(highlight=False)).print(frame(snapshot))
    if snapshot["run"]["phase"] not in ("ended", "stopped"):
        raise RunFailed("the run does not answer any more; this is how it stood")


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Within: a function that waits so many seconds, and says whether q was pressed meanwhile."""
    if not sys.stdin.isatty() or importlib.util.find_spec("termios") is None:

        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)

        def pressed(seconds: float) -> bool:
            ready, _, _ = select.select([sys.stdin], [], [], seconds)
            return bool(ready) and sys.stdin.read(1) in ("q", "Q")

        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# ---------------------------------------------------------------- one frame


def frame(s: dict[str, Any]) -> RenderableType:
    """A snapshot as something that rich prints."""
    from rich.console import Group

    parts: list[RenderableType] = [_head(s), "", _streams(s), ""]
    if len(s["gateways"]) > 1:
        parts += [_gateways(s["gateways"]), ""]
    if s["edges"]:
        for stage in s["stages"]:
            parts += [_stage(stage), _slaves([row for row in s["slaves"] if row["stage"] == stage["stage"]]), ""]
        parts.append(_edges(s["edges"]))
    else:
        parts.append(_slaves(s["slaves"]))
    if s["queries"]["listed"]:
        parts += ["", _queries(s["queries"])]
    if s["hot_keys"]:
        parts += ["", _hot_keys(s)]
    events = [e for e in s["events"] if e["kind"] != "occupancy"][-_EVENTS:]
    if events:
        parts += ["", *[_event(e) for e in reversed(events)]]
    return Group(*parts)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds * 1e6)


def _head(s: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    run = s["run"]
    phase = run["phase"]
    line = Text.assemble(("swjoin ", "bold"), (phase, f"bold {_PHASES.get(phase, 'yellow')}"), f"  {run['join']}")
    if run["clock_s"] is not None:
        line.append(f"  clock {run['clock_s']:,.1f} s  epoch {run['epoch']:,}  {run['active_slaves']} slaves active", "dim")
    return line


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _streams(s: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    table = _table("stream", "tuples/s", "read", "delivered", "waiting", "null key", "late", "shed", "")
    for name, stream in s["streams"].items():
        if stream is not None:
            ledger = stream["ledger"]
            names = ("tuples", "delivered", "waiting", "null_key", "late", "shed")
            state = "ended" if stream["ended"] else "idle" if stream["idle"] else ""
            table.add_row(name, _count(stream["tuples_per_s"]), *(_count(ledger[n]) for n in names), state)
    parts: list[RenderableType] = [table]
    results, delays = s["results"], s["delay_s"] or {}
    if results is not None:
        recent, whole = delays.get("recent") or {}, delays.get("all") or {}
        line = Text.assemble(
            ("pairs ", "bold"),
            f"{_count(results['pairs_per_s'])} per s, {_count(results['pairs'])} in all   ",
            ("delay ", "bold"),
            f"p50 {_time(recent.get('p50'))}, p99 {_time(recent.get('p99'))}; whole run p50 {_time(whole.get('p50'))}, "
            f"p99 {_time(whole.get('p99'))}",
        )
        parts.append(line)
    parts.append(_totals(s))
    return Group(*parts)


def _gateways(gateways: list[dict[str, Any]]) -> RenderableType:
    """Several gateways: what each reads, and how far it is in every stream."""
    streams = list(gateways[0]["streams"])
    endpoints = ["endpoint"] if any(row.get("endpoint") for row in gateways) else []
    table = _table("gateway", "share", "tuples/s", "waiting", *(f"{name} watermark" for name in streams), *endpoints)
    for row in gateways[:_GATEWAYS]:
        share = "-" if row["share_ratio"] is None else f"{row['share_ratio']:.0%}"
        counts = share, _count(row["tuples_per_s"]), size_text(row["waiting_bytes"])
        marks = [_watermark(row["streams"][name]) for name in streams]
        table.add_row(str(row["gateway"]), *counts, *marks, *(row.get("endpoint") or "" for _ in endpoints))
    if len(gateways) > _GATEWAYS:
        table.add_row(f"and {len(gateways) - _GATEWAYS} more")
    return table


def _watermark(stream: dict[str, Any]) -> str:
    if stream["ended"]:
        return "ended"
    text = "-" if stream["watermark_us"] is None else f"{stream['watermark_us'] / 1e6:,.2f} s"
    return text + (", waits for a split" if stream["waits_for_split"] else ", idle" if stream["idle"] else "")


def _totals(s: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    line = Text()
    if s["buffers"] is not None:
        line.append("waiting ", "bold").append(
            f"{size_text(s['buffers']['waiting_bytes'])} of {size_text(s['buffers']['capacity_bytes'])}   "
        )
    if s["moves"] is not None:
        line.append("moves ", "bold").append(f"{_count(s['moves']['finished'])}, {len(s['map']['moving'])} on their way   ")
    if s["checkpoints"] is not None:
        age = s["checkpoints"]["age_s"]
        text = "" if age is None else f", the last {age:,.0f} s ago"
        line.append("checkpoints ", "bold").append(f"{_count(s['checkpoints']['completed'])}{text}   ")
    if s["ledger"] is not None:
        balanced = s["ledger"]["balanced"]
        line.append("ledger ", "bold").append("balanced" if balanced else "not balanced", "green" if balanced else "bold red")
    return line


def _bar(ratio: float | None, colour: str) -> RenderableType:
    from rich.text import Text

    full = 0 if ratio is None else min(_BAR, round(ratio * _BAR))
    text = "    -" if ratio is None else f"{ratio:5.0%}"
    return Text.assemble(("█" * full, colour), ("░" * (_BAR - full), "dim"), f" {text}")


def _stage(stage: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    rates = ", ".join(f"{name} {_count(rate)}" for name, rate in stage["joined_per_s"].items())
    moves = f", {stage['moves']:,} moves" if stage["moves"] else ""
    return Text.assemble(
        (f"stage {stage['stage']} {stage['join']}", "bold"),
        f"  {stage['description']}  rows in per s: {rates}; out: {_count(stage['produced_per_s'])}",
        (f"  windows {size_text(stage['window_bytes'])}{moves}", "dim"),
    )


def _edges(edges: list[dict[str, Any]]) -> RenderableType:
    table = _table("edge", "rows/s", "rows", "bytes", "between ranks", "epochs ahead", "wait for credit")
    for edge in edges:
        size = "-" if edge["bytes"] is None else size_text(edge["bytes"])
        counts = (_count(edge[name]) for name in ("rows_per_s", "rows"))
        waits = (_count(edge[name]) for name in ("epochs_ahead", "waiting_rows"))
        name = f"{edge['from']} to {edge['to']}, {edge['port']}, by {', '.join(edge['key'])}"
        crossed = edge["between_ranks_bytes"]
        share = "-" if crossed is None or not edge["bytes"] else f"{crossed / edge['bytes']:.0%}"
        table.add_row(_plain(name), *counts, size, share, *waits)
    return table


def _slaves(slaves: list[dict[str, Any]]) -> RenderableType:
    table = _table("slave", "occupancy", "joining", "CPU", "tuples/s", "windows", "groups", "")
    for row in slaves[:_SLAVES]:
        colour = _COLOURS[row["slave"] % len(_COLOURS)]
        windows = "-" if row["window_bytes"] is None else size_text(row["window_bytes"])
        table.add_row(
            str(row["slave"]),
            _bar(row["occupancy_ratio"], colour),
            _bar(row["busy_ratio"], colour),
            f"{row['cpu_ratio']:.0%}",
            _count(row["tuples_per_s"]),
            windows,
            str(row["groups"]),
            "is to rest" if row["emptying"] else "" if row["active"] else "rests",
        )
    if len(slaves) > _SLAVES:
        table.add_row(f"and {len(slaves) - _SLAVES} more")
    return table


def _queries(queries: dict[str, Any]) -> RenderableType:
    """Those with the most rows."""
    table = _table("query", "rows/s", "rows")
    listed = queries["listed"][:_QUERIES]
    for row in listed:
        table.add_row(_plain(row["name"]), _count(row["rows_per_s"]), _count(row["rows"]))
    if queries["count"] > len(listed):
        table.add_row(f"and {queries['count'] - len(listed):,} more")
    return table


def _hot_keys(s: dict[str, Any]) -> RenderableType:
    table = _table("hot keys", "left", "", "right")
    table.columns[2].justify = "left"
    sides = [(s["hot_keys"].get(name) or {"keys": []})["keys"][:_KEYS] for name in ("left", "right")]
    for i in range(max(map(len, sides))):
        cells: list[RenderableType] = []
        for side in sides:
            key = side[i] if i < len(side) else None
            cells += ["", ""] if key is None else [_plain(key["key"]), f"{key['share_ratio']:.2%}"]
        table.add_row(*cells)
    return table if any(sides) else "hot keys: none stands out"


def _plain(text: str) -> RenderableType:
    """A key comes from the data: no markup, no control characters, not too long."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "·" for c in text[:40]))


def _event(event: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    known = RunEvent(**{name: value for name, value in event.items() if name != "number"})
    return Text.assemble((f"{known.time_us / 1e6:10.2f} s  ", "dim"), (f"{known.kind:<10} ", "bold"), words(known).strip())

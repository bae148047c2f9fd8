"""Progress of a long call: a bar on a terminal or in a notebook, lines elsewhere.

What: `Progress`, which a call advances; `check_progress`, of an argument; `erase_bars`, before text on standard error.
Why: a call of minutes shows that it works and how long it will take; one of milliseconds shows nothing and starts no thread.
Stays out: what is counted (`runtime.hosts`, `api.tables`), messages (`logging`).

A bar is drawn by the thread that advances it, at most ten times a second. MPI rank 0 prints its progress as lines of JSON; the
process that has started the ranks draws them (`runtime.launch`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from swjoin.core.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Wanted: TypeAlias = bool | Literal["relay"] | None  # relay: lines of JSON, of a rank
PATIENCE_S = 1.0  # calls that end sooner show nothing, unless progress is True
_REDRAW_S = 0.1
_LINE_S = 5.0  # between lines where a bar cannot be drawn
_RELAYED = '{"progress": '


def check_progress(value: object) -> None:
    """UserError unless it is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise UserError(f"progress: {value!r:.60}: write True, False, or None for a bar on terminals and in notebooks")


class _Display(Protocol):
    every_s: float

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


class Progress:
    """wanted: None: a bar on a terminal or in a notebook, after a second; True: at once, elsewhere lines; False: nothing.

    total: in units, or None if unknown. unit: `tuples`, or `s` of a stream in realtime pace. Several threads may advance it.
    """

    def __init__(self, wanted: Wanted, total: float | None = None, unit: str = "tuples") -> None:
        self.total, self.unit, self.done, self.text = total, unit, 0.0, "joining"
        self.started_s = time.monotonic()
        self.wanted = wanted
        self._due_s = float("inf") if wanted is False else self.started_s + (PATIENCE_S if wanted is None else 0.0)
        self._display: _Display | None = None
        self._lock, self._counting = threading.Lock(), threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def reading(self, tuples: int) -> None:
        """tuples: of files, read into memory since the last call, before the join of all of them."""
        self.done, self.text = self.done + tuples, "reading"
        self._redraw()

    def begin(self, total: float) -> None:
        """The join begins. total: of tuples."""
        self.total, self.done, self.text = total, 0.0, "joining"

    def advance(self, tuples: float) -> None:
        """tuples: read since the last call; ignored by progress over time."""
        if self.unit == "tuples":
            with self._counting:
                self.done += tuples
            self._show_joining()

    def reach(self, now_us: int) -> None:
        """now_us: on the run's clock; ignored by progress over tuples."""
        if self.unit == "s":
            self.done = now_us / 1e6
            self._show_joining()

    def _show_joining(self) -> None:
        self.text = "joining"
        self._redraw()

    def compiling(self, kernels: int) -> None:
        """kernels: how many have been compiled."""
        self.text = f"compiling kernel {kernels}"
        self._redraw()

    def take(self, line: str) -> bool:
        """Whether this is a line in which a rank tells its progress; then it is that of this process."""
        if not line.startswith(_RELAYED):
            return False
        with contextlib.suppress(ValueError, TypeError):
            self.done, self.total, self.unit, self.text = json.loads(line)["progress"]
            self._redraw()
        return True

    @property
    def amount(self) -> str:
        """What has been done, as text."""
        total = "" if self.total is None else f" of {self.total:,.0f}"
        return f"{self.done:,.0f}{total} {self.unit}"

    def _redraw(self) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s or not self._lock.acquire(blocking=False):
            return
        try:
            if self._display is None:
                self._display = _display(self.wanted)
            if self._display is not None:
                self._display.show(self)
            self._due_s = float("inf") if self._display is None else now_s + self._display.every_s
        except (OSError, ValueError):  # the terminal is gone, which is no error of the call
            self._due_s = float("inf")
        finally:
            self._lock.release()

    def close(self) -> None:
        """Remove the bar."""
        with self._lock:
            self._due_s = float("inf")
            display, self._display = self._display, None
        if display is not None:
            with contextlib.suppress(OSError, ValueError):
                display.close()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def can_be_drawn(wanted: Wanted) -> bool:
    """Whether there is a place for the progress of a call."""
    return _display(wanted) is not None


def _display(wanted: Wanted) -> _Display | None:
    if wanted is False:
        return None
    if wanted == "relay":
        return _Relay()
    if _in_notebook():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty() and "SWJOIN_PLAIN" not in os.environ:
        return _Terminal()
    return _Lines() if wanted else None


_bars: set[_Terminal] = set()


def erase_bars() -> None:
    """Clear the line of a bar on standard error, for text to be printed there; the bar is drawn again below."""
    if _bars:
        sys.stderr.write("\r\x1b[2K")


class _Terminal:
    """A bar of rich, without its threads and without its replacement of standard streams."""

    every_s = _REDRAW_S

    def __init__(self) -> None:
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None

    def _start(self, progress: Progress) -> tuple[RichProgress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_jupyter=False),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._rich.add_task(progress.text, total=progress.total, amount=progress.amount)
        self._rich.tasks[0].start_time = self._rich.get_time() - (time.monotonic() - progress.started_s)
        self._rich.start()
        _bars.add(self)
        return self._rich, self._task

    def show(self, progress: Progress) -> None:
        rich, task = (self._rich, self._task) if self._rich is not None and self._task is not None else self._start(progress)
        amount = progress.amount
        rich.update(task, description=progress.text, completed=progress.done, total=progress.total, amount=amount, refresh=True)

    def close(self) -> None:
        _bars.discard(self)
        if self._rich is not None:
            self._rich.stop()


class _Notebook:
    """HTML below the cell, by IPython alone; rich would need ipywidgets."""

    every_s = 2 * _REDRAW_S

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        seconds = time.monotonic() - progress.started_s
        text = f"{progress.text}: {progress.amount}, {seconds:.0f} s"
        value = "" if progress.total is None else f' value="{progress.done:.0f}" max="{progress.total:.0f}"'
        self._put(text, f"<progress{value}></progress> {escape(text)}")

    def _put(self, text: str, html: str) -> None:
        content = {"text/plain": text, "text/html": html}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        if self._handle is not None:
            self._put("", "")


class _Lines:
    every_s = _LINE_S

    def show(self, progress: Progress) -> None:
        print(f"swjoin: {progress.text}: {progress.amount}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Relay:
    every_s = 2 * _REDRAW_S

    def show(self, progress: Progress) -> None:
        said = [progress.done, progress.total, progress.unit, progress.text]
        print(json.dumps({"progress": said}), file=sys.stderr, flush=True)

    def close(self) -> None:
        pass

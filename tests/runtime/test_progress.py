"""Progress of long calls: on a terminal, in a notebook, of ranks; none where it is not wanted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.runtime import progress
from swjoin.runtime.progress import Progress, can_be_drawn
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

ROWS = 300_000
TABLE = pa.table({"k": [i % 9999 for i in range(ROWS)], "t": list(range(ROWS))})
OPTIONS: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "ms", "within": "9s"}
PROGRAM = f"""
import pyarrow as pa, swjoin, sys, threading, time
from swjoin.runtime import progress
table = pa.table({{"k": [i % 9999 for i in range({ROWS})], "t": list(range({ROWS}))}})
options = {OPTIONS!r}
"""
AT_ONCE = "import sys; from swjoin.runtime import progress; progress.PATIENCE_S = 0; from swjoin.cli.main import main; "
SHOWN = re.compile(r"joining\S* .*?([\d,]+) of 600,000 tuples")


def on_terminal(*argv: object, **environment: str) -> tuple[int, str]:
    """Exit code and what a terminal shows: of the program's standard error; standard output goes nowhere."""
    ours, theirs = pty.openpty()
    plain = {"TERM": "xterm", "COLUMNS": "120", "LINES": "24", **environment}
    with subprocess.Popen(
        [sys.executable, *map(str, argv)],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if k != "SWJOIN_PLAIN"}, **plain},
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the program has ended
                break
            if not part:
                break
            text += part
        os.close(ours)
        code = process.wait(PROCESS_S)
    return code, re.sub(r"\x1b\[[0-9;?]*m", "", text.decode())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)


# ---------------------------------------------------------------- Python


@pytest.mark.drawn
@pytest.mark.parametrize("call", ["count(table, table", "join(table, table", "join(table, table, out=sys.argv[1]"])
def test_a_terminal_shows_a_bar_and_then_nothing(call: str, tmp_path: Path) -> None:
    program = f"{PROGRAM}swjoin.{call}, **options, progress=True)\nassert threading.active_count() == 1"
    code, text = on_terminal("-c", program, tmp_path / "pairs.parquet")
    assert code == 0, text
    counts = [int(found.replace(",", "")) for found in SHOWN.findall(text)]
    assert counts
    assert counts == sorted(counts)
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the cursor is shown, the line is empty"


@pytest.mark.quiet  # on a loaded machine a call takes more than a second, and shows its progress
def test_calls_of_less_than_a_second_show_nothing_and_import_nothing() -> None:
    program = f"{PROGRAM}swjoin.join(table[:900], table[:900], **options)\nassert 'rich' not in sys.modules"
    assert on_terminal("-c", program) == (0, "")


def test_calls_that_last_show_a_bar_by_themselves() -> None:
    program = f"{PROGRAM}progress.PATIENCE_S = 0\nswjoin.count(table, table, **options, progress="
    code, text = on_terminal("-c", f"{program}None)")
    assert code == 0
    assert SHOWN.search(text)
    assert on_terminal("-c", f"{program}False)") == (0, "")
    assert on_terminal("-c", f"{program}None)", SWJOIN_PLAIN="1") == (0, "")


def test_a_file_gets_lines_if_they_are_asked_for(at_once: None, capfd: pytest.CaptureFixture[str]) -> None:
    swjoin.count(TABLE, TABLE, **OPTIONS)
    assert capfd.readouterr() == ("", "")
    found = swjoin.count(TABLE, TABLE, **OPTIONS, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.match(r"swjoin: joining: [\d,]+ of 600,000 tuples\n", err)
    assert found.count == ROWS


@pytest.mark.parametrize(
    "call",
    [
        lambda value: swjoin.join(TABLE, TABLE, **OPTIONS, progress=value),
        lambda value: swjoin.count(TABLE, TABLE, **OPTIONS, progress=value),
        lambda value: swjoin.run({"within": "1s"}, progress=value),
    ],
)
def test_what_is_no_choice_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(swjoin.UserError, match="progress: 'yes': write True, False, or None for a bar"):
        call("yes")
    with pytest.raises(swjoin.UserError, match="progress: a reader joins while it is read"):
        swjoin.join(TABLE, TABLE, **OPTIONS, progress=True, returns="reader")


def test_a_terminal_that_is_closed_ends_no_join(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        assert can_be_drawn(None)
        os.close(ours)
        assert swjoin.count(TABLE, TABLE, **OPTIONS).count == ROWS


def test_time_of_streams_in_realtime_pace(at_once: None, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress._Lines, "every_s", 0.2)
    swjoin.run({"within": "1s", "pace": "realtime", "workload": {"rate": 100, "duration": "2s"}}, threads=1, progress=True)
    shown = re.findall(r"swjoin: joining: (\d) of 2 s\n", capfd.readouterr().err)
    assert shown == sorted(shown)
    assert {"0", "1", "2"} == set(shown)


def test_files_are_read_first(
    at_once: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress._Lines, "every_s", 0.0)
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    swjoin.count(tmp_path / "rows.parquet", TABLE, **OPTIONS, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "reading" in line][-1] == "swjoin: reading: 300,000 tuples"
    assert lines[-1] == "swjoin: joining: 600,000 of 600,000 tuples"
    assert sorted(lines, key=lambda line: "joining" in line) == lines


def test_compilations_are_shown(at_once: None, capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(True, 10) as shown:
        shown.compiling(3)
    assert capfd.readouterr().err == "swjoin: compiling kernel 3: 0 of 10 tuples\n"


def test_without_a_bar_a_step_costs_nothing() -> None:
    shown = Progress(None, 10**9)
    began = time.perf_counter()
    for _ in range(10_000):
        shown.advance(1)
    assert time.perf_counter() - began < 0.5
    assert shown.done == 10_000


# ---------------------------------------------------------------- notebooks


class Handle:
    def __init__(self, cell: list[dict[str, str]]) -> None:
        self.cell = cell

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.cell[:] = [content]


def test_a_notebook_shows_html_in_one_place(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook in which IPython, and no ipywidgets, is installed."""
    cells: list[list[dict[str, str]]] = []
    shown: list[str] = []

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        cells.append([content])
        shown.append(content["text/html"])
        return Handle(cells[-1])

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    swjoin.count(TABLE, TABLE, **OPTIONS)
    assert cells == [[{"text/plain": "", "text/html": ""}]]
    assert re.fullmatch(r'<progress value="\d+" max="600000"></progress> joining: [\d,]+ of 600,000 tuples, \d s', shown[0])
    swjoin.count(TABLE, TABLE, **OPTIONS, progress=False)
    assert len(cells) == 1


def test_a_real_notebook() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    updates: list[str] = []
    source = f"{PROGRAM}progress.PATIENCE_S = 0\nprint(swjoin.count(table, table, **options).count > 0, 'rich' in sys.modules)"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        def process_message(self, message: dict[str, Any], *rest: Any) -> Any:
            if "display_data" in message["msg_type"]:
                updates.append(message["content"]["data"]["text/html"])
            return super().process_message(message, *rest)

    Client(book, timeout=PROCESS_S, resources={"metadata": {"path": str(ROOT)}}, kernel_name="python3").execute()
    outputs = book.cells[0].outputs
    assert [output.get("text") for output in outputs if output.output_type == "stream"] == ["True False\n"]
    assert updates[0].startswith("<progress value=")
    assert updates[-1] == ""


# ---------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    for name in ("left", "right"):
        pq.write_table(TABLE, tmp_path / f"{name}.parquet")
    options = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "ms", "--within", "9s"]
    return ["join", tmp_path / "left.parquet", tmp_path / "right.parquet", *options, "-o", "count"]


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.long])])
def test_the_command_shows_a_bar_on_terminals(ranks: int | None, files: list[object]) -> None:
    program = f"{AT_ONCE}raise SystemExit(main(sys.argv[1:]))"
    more = [] if ranks is None else ["-n", ranks]
    code, text = on_terminal("-c", program, *files, *more)
    assert code == 0, text
    assert SHOWN.search(text)
    assert on_terminal("-c", program, *files, *more, "-q") == (0, "")
    assert on_terminal("-c", program, *files, *more, "--log-json") == (0, "")
    assert on_terminal("-c", program, *files, *more, SWJOIN_PLAIN="1") == (0, "")


def test_messages_stand_above_the_bar() -> None:
    program = (
        "import logging\nfrom swjoin.cli.messages import messages\nfrom swjoin.runtime.progress import Progress\n"
        "with messages(verbose=False, quiet=False, log_json=False), Progress(True, 9) as shown:\n"
        "    shown.advance(4)\n    logging.getLogger('swjoin.test').info('a notice')\nprint()\n"
    )
    code, text = on_terminal("-c", program)
    assert code == 0
    assert re.search(r"joining \S+ 4 of 9 tuples [^\n]*\r\x1b\[2Kswjoin: a notice\r\n", text), text


def test_several_threads_advance_one_bar() -> None:
    """Gateways of one process share it."""
    interval_s = sys.getswitchinterval()
    shared = Progress(False, 80_000)

    def read() -> None:
        for _ in range(20_000):
            shared.advance(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROCESS_S)
    finally:
        sys.setswitchinterval(interval_s)
    assert shared.done == 80_000

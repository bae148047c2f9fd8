"""Standard streams that are closed or full, a terminal that is closed, and signals at awkward moments."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swjoin.core.stdio import wait_until_read
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

COMMAND = f"{sys.executable} -m swjoin"
JOIN = "join a.csv b.csv --on k --left-time t --right-time t --time-unit s --within 5s -o out.csv"
FULL = "swjoin: standard output: cannot be written (No space left on device)"
SLOW = """
join: {within: 100ms}
pace: realtime
workload: {rate: 200, duration: 300s, domain: 50, payload: 0}
sink: {kind: count}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("k,t\n1,1\n2,2\n")
    (tmp_path / "slow.yaml").write_text(SLOW)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **more}


def shell(folder: Path, line: str, **more: str) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
        cwd=folder,
        env=environment(folder, **more),
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


# ---------------------------------------------------------------- closed and full


@pytest.mark.drawn
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_streams_are_dev_null(closed: str, folder: Path) -> None:
    code, out, err = shell(folder, f"{COMMAND} {JOIN} {closed}")
    assert (code, err) == (0, [])
    assert (folder / "out.csv").read_text().count("\n") == 3
    assert (">&-" in closed.replace("2>&-", "")) == (out == "")


@pytest.mark.mpi
def test_ranks_start_without_a_standard_output(folder: Path) -> None:
    find_mpirun()
    code, _, err = shell(folder, f"{COMMAND} {JOIN} -n 3 >&-")
    assert (code, err) == (0, [])
    assert (folder / "out.csv").read_text().count("\n") == 3


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["--help", "--version", "plan --help", "explain slow.yaml", JOIN])
def test_a_full_standard_output_is_one_line(words: str, buffered: str, folder: Path) -> None:
    assert shell(folder, f"{COMMAND} {words} >/dev/full", PYTHONUNBUFFERED=buffered) == (1, "", [FULL])
    assert (folder / "out.csv").exists() == (words == JOIN)


def test_errors_keep_their_code_without_a_place_to_say_so(folder: Path) -> None:
    for place in ("2>&-", "2>/dev/full"):
        assert shell(folder, f"{COMMAND} {JOIN.replace('a.csv', 'none.csv')} {place}") == (2, "", [])
        assert shell(folder, f"{COMMAND} joint {place}") == (2, "", [])
    assert shell(folder, f"{COMMAND} {JOIN.replace('a.csv', 'none.csv')} >/dev/full")[0] == 2


# ---------------------------------------------------------------- a terminal is closed


class _Running:
    def __init__(self, folder: Path, *words: str, prefix: str = "", **options: Any) -> None:
        line = f"{prefix}exec {COMMAND} run slow.yaml --out run {' '.join(words)}"
        self.process = subprocess.Popen(["bash", "-c", line], cwd=folder, env=environment(folder), text=True, **options)
        until = time.monotonic() + PROCESS_S
        while not (folder / "run" / "metrics").exists():
            assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.5)  # the folder is made shortly before the run counts as started, of which run.json is the report

    def ends(self) -> int:
        return self.process.wait(PROCESS_S)


@pytest.fixture
def running(folder: Path) -> Iterator[Any]:
    started: list[_Running] = []

    def start(*words: str, **options: Any) -> _Running:
        started.append(_Running(folder, *words, **options))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


@pytest.mark.parametrize("words", [("--threads", "1"), pytest.param(("-n", "3"), marks=[pytest.mark.mpi, pytest.mark.drawn])])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_sighup_stops_a_run(words: tuple[str, ...], checkpoints: bool, running: Any, folder: Path) -> None:
    settings = ("--set", "checkpoint.interval=200ms") if checkpoints else ()
    run = running(*words, *settings, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    run.process.send_signal(signal.SIGHUP)
    assert run.ends() == (0 if checkpoints else 129)
    said = run.process.stderr.read()
    # behind our line a library may complain of what the interpreter takes apart when it ends
    assert said == "" if checkpoints else said.startswith("swjoin: stopped by SIGHUP\n") and said.count("swjoin:") == 1
    assert (folder / "run" / "run.json").exists()
    assert [p.name for p in (folder / "tmp").iterdir() if p.name.startswith("swjoin-")] == []


def test_nohup_is_heeded(running: Any) -> None:
    run = running("--threads", "1", prefix="trap '' HUP; ", stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    run.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 143
    assert run.process.stderr.read() == "swjoin: stopped by SIGTERM\n"


@pytest.mark.parametrize("words", [("--threads", "1"), pytest.param(("-n", "3"), marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_closed_terminal_ends_its_run_in_order(words: tuple[str, ...], running: Any, folder: Path) -> None:
    """The last words cannot be written; what is left is the same."""
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    run = running(*words, start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)), **streams)
    os.close(slave)
    os.close(master)
    assert run.ends() == 129
    assert (folder / "run" / "run.json").exists()
    assert [p.name for p in (folder / "tmp").iterdir() if p.name.startswith("swjoin-")] == []


# ---------------------------------------------------------------- Ctrl-C at once


def test_ctrl_c_while_modules_are_imported_is_one_line(folder: Path) -> None:
    """Every line of `swjoin.__main__.run` and of what it imports first; what Python does before is its own."""
    code = (
        "import signal, sys\n"
        "module = sys.argv.pop()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what starts the tests may ignore it
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == module: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from swjoin.__main__ import run\n"
        "run()\n"
    )
    for module in ("swjoin.cli", "swjoin.core.stdio", "argparse", "numpy", "swjoin.cli.explain"):
        done = subprocess.run(
            [sys.executable, "-c", code, "explain", "slow.yaml", "--set", "seed=1", module],
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
            cwd=folder,
            env=environment(folder),
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "swjoin: interrupted\n"), module


# ---------------------------------------------------------------- last words


def test_waits_until_a_pipe_was_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"last words")
    started = time.monotonic()
    wait_until_read(writing, 0.1)
    assert time.monotonic() - started >= 0.1, "nobody reads"
    seen: list[bytes] = []
    reader = threading.Timer(0.1, lambda: seen.append(os.read(reading, 100)))
    reader.start()
    wait_until_read(writing, PROCESS_S)
    reader.join()
    assert seen == [b"last words"]
    wait_until_read(writing, PROCESS_S)  # nothing to wait for
    for number in (reading, writing):
        os.close(number)
    with open(os.devnull, "w") as file:
        wait_until_read(file.fileno(), PROCESS_S)

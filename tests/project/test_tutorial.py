"""The tutorials are true: their files are written, their commands run in order, and print what the page shows.

docs/tutorial.md needs neither Java nor MPI, docs/tutorial-cluster.md both. The installation is test_newcomer's. A line `...` in
an output stands for any lines.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.limits import LONG_S, PROCESS_S

FIRST = (ROOT / "docs" / "tutorial.md").read_text()
CLUSTER = (ROOT / "docs" / "tutorial-cluster.md").read_text()
FILES = {"python", "yaml", "csv"}


def blocks_of(text: str) -> list[tuple[str, str, str]]:
    """(kind, title, content) of every block."""
    return re.findall(r'(?ms)^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', text)


def fits(said: str, found: str) -> bool:
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in said.splitlines())
    return re.fullmatch(pattern, found) is not None


def test_what_outputs_must_fit() -> None:
    assert fits("a\n...\nd\n", "a\nb\nc\nd\n")
    assert fits("a\n...\nd\n", "a\nd\n")
    assert not fits("a\n...\nd\n", "a\nb\n")
    assert not fits("a\n", "a\nb\n")


@pytest.mark.parametrize("text", [FIRST, CLUSTER], ids=["first", "cluster"])
def test_every_block_is_of_a_known_kind(text: str) -> None:
    blocks = blocks_of(text)
    assert {kind for kind, _, _ in blocks} <= {"bash", "console", *FILES}
    assert all(bool(title) == (kind in FILES) for kind, title, _ in blocks), "files, and nothing else, have names"
    assert text.count("```") == 2 * len(blocks)


def run_all(text: str, swjoin: Any, folder: Path) -> int:
    """Write the files of a tutorial into `folder`, run its commands there; how many there were."""
    commands = 0
    for kind, title, content in blocks_of(text):
        if title:
            (folder / title).write_text(content)
        if kind != "console":
            continue
        command, said = content.split("\n", 1)
        program, *argv = shlex.split(command.removeprefix("$ "))
        if program == "swjoin":
            done = swjoin(*argv)
            out = re.sub(r"\x1b\[\d*m", "", done.out)  # mpirun sets colours back at its end
            code, err = done.code, "\n".join(done.err)
        elif program == "cat":
            code, out, err = 0, "".join((folder / name).read_text() for name in argv), ""
        else:
            assert program == "python"
            ran = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, timeout=PROCESS_S)
            code, out, err = ran.returncode, ran.stdout, ran.stderr
        assert code == 0, f"{command}\n{err}"
        assert fits(said, out), f"{command}\n{out}"
        commands += 1
    assert commands == len(re.findall(r"(?m)^\$ ", text))
    return commands


def test_the_first_tutorial(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_all(FIRST, swjoin, tmp_path) >= 5
    assert not (tmp_path / "runs").exists()


@pytest.mark.spark
@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_the_tutorial_of_a_cluster(spark: Any, swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_all(CLUSTER, swjoin, tmp_path) >= 7
    assert (tmp_path / "runs" / "tour" / "plots" / "overview.png").is_file()

"""docs/tutorial.md is true: its files are written, its commands run in order, and what they print is what it says.

The installation is test_newcomer's. A line `...` in an output stands for any lines.
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

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r'(?ms)^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', TUTORIAL)


def fits(said: str, found: str) -> bool:
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in said.splitlines())
    return re.fullmatch(pattern, found) is not None


def test_what_outputs_must_fit() -> None:
    assert fits("a\n...\nd\n", "a\nb\nc\nd\n")
    assert fits("a\n...\nd\n", "a\nd\n")
    assert not fits("a\n...\nd\n", "a\nb\n")
    assert not fits("a\n", "a\nb\n")


def test_every_block_is_of_a_known_kind() -> None:
    assert {kind for kind, _, _ in BLOCKS} == {"bash", "console", "python", "yaml"}
    assert all(title for kind, title, _ in BLOCKS if kind in ("python", "yaml")), "files have names"
    assert TUTORIAL.count("```") == 2 * len(BLOCKS)


@pytest.mark.spark
@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
def test_every_command_prints_what_the_tutorial_says(
    spark: Any, swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    for kind, title, text in BLOCKS:
        if title:
            (tmp_path / title).write_text(text)
        if kind != "console":
            continue
        command, said = text.split("\n", 1)
        program, *argv = shlex.split(command.removeprefix("$ "))
        if program == "swjoin":
            done = swjoin(*argv)
            out = re.sub(r"\x1b\[\d*m", "", done.out)  # mpirun sets colours back at its end
            code, err = done.code, "\n".join(done.err)
        else:
            assert program == "python"
            ran = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, timeout=PROCESS_S)
            code, out, err = ran.returncode, ran.stdout, ran.stderr
        assert code == 0, f"{command}\n{err}"
        assert fits(said, out), f"{command}\n{out}"
        commands += 1
    assert commands == text_commands()
    assert (tmp_path / "runs" / "tour" / "plots" / "overview.png").is_file()


def text_commands() -> int:
    return len(re.findall(r"(?m)^\$ ", TUTORIAL))

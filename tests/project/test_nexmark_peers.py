"""Nexmark beside other engines: which queries are counted, by a peer that is made up; two queries of each real one."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.duckdb_text import in_duckdb
from benchmarks.nexmark import duckdb_answer
from benchmarks.peers import nexmark as peers
from benchmarks.peers.common import answer_queries
from benchmarks.peers.run import HERE, installed_here
from benchmarks.workloads import nexmark
from tests.conftest import ROOT
from tests.support.limits import LONG_S

Answer = tuple[float, int, str]


class MadeUp:
    """A session with prepared answers; an answer that is a text is a refusal. With rows, CHECK writes them."""

    def __init__(self, answers: list[Answer | str], rows: pa.Table | None = None) -> None:
        self.system, self.configuration, self._answers, self._rows = "Made up 1", "none", answers, rows

    def ask(self, *words: str) -> Answer:
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            raise peers.RefusedError(answer)
        if words[0] == "CHECK" and self._rows is not None:
            pq.write_table(self._rows, f"{words[2]}.0.parquet")
        return answer


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> peers.Inputs:
    return peers.inputs_of(tmp_path_factory.mktemp("nexmark"), 3_000, 2)


def compared(
    inputs: peers.Inputs, folder: Path, answers: list[Answer | str], rows: pa.Table | None = None
) -> tuple[peers.Peer, str]:
    peer = peers.Peer("spark", MadeUp(answers, rows))  # type: ignore[arg-type]
    return peer, peers.compare_query([peer], "q2", Path(tempfile.mkdtemp(dir=folder)), 1, inputs)


def test_a_query_counts_where_the_rows_are_the_same(inputs: peers.Inputs, tmp_path: Path) -> None:
    (count, digest), _ = duckdb_answer(inputs.db, nexmark.QUERIES["q2"].read_text())
    same, other = (1e9, count, digest), (1e9, count, "0" * 16)
    peer, cells = compared(inputs, tmp_path, [same, same, same])
    assert list(peer.ratios) == ["q2"]
    assert peer.ratios["q2"][0] > 1e6
    assert cells.startswith(f"2,760 | {count} | ")
    assert "times faster, geometric mean of 1 queries" in peers.summary(peer)[0]
    left_out: list[tuple[list[Answer | str], str]] = [
        ([other], "other rows"),
        ([same, same, other], "in a later run"),
        (["no such function"], "no such function"),
        ([same, same, "not finished"], "not finished"),
    ]
    for answers, reason in left_out:
        peer, cells = compared(inputs, tmp_path, answers)
        assert not peer.ratios
        assert "not counted" in cells
        assert re.search(rf"spark, q2 is not counted: .*{reason}", peers.summary(peer)[0])


def test_rows_that_a_peer_wrote_are_compared(inputs: peers.Inputs, tmp_path: Path) -> None:
    table = inputs.db.sql(in_duckdb(nexmark.QUERIES["q2"].read_text())).to_arrow_table()
    count = len(table)
    answers: list[Answer | str] = [(1.0, count, word) for word in (peers.WROTE, *peers.NO_DIGEST)]
    written = table.rename_columns(["0", "1"])
    assert compared(inputs, tmp_path, list(answers), written)[0].ratios
    changed = written.set_column(1, "1", pa.array([0] * count))
    assert "other rows" in compared(inputs, tmp_path, list(answers), changed)[0].left_out["q2"]
    assert (
        "other columns" in compared(inputs, tmp_path, list(answers), written.append_column("2", changed["1"]))[0].left_out["q2"]
    )


def test_the_mean_is_of_counted_queries() -> None:
    peer = peers.Peer("flink", MadeUp([]), {"q0": [2.0, 1.0, 4.0], "q1": [8.0]}, {"q6": "why"})  # type: ignore[arg-type]
    lines = peers.summary(peer)
    assert f"{math.sqrt(16):.1f} times faster, geometric mean of 2 queries" in lines[0]
    assert lines[0].endswith("worst: 2.0 (q0)")
    assert lines[1:] == ["- flink, q6 is not counted: why"]


def test_a_peer_in_python_answers_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(query: str, kept: list[Any] | None) -> tuple[float, int]:
        if query == "q1":
            raise ValueError("no such\noperator")
        if kept is not None:
            kept += [(1, "a"), (2, "b")]
        return 0.5, 2

    rows = tmp_path / "rows"
    lines = [f"CHECK\tx/q0.sql\t{rows}", "TIME\tx/q0.sql", "TIME\tx/q1.sql", "TIME\tx/q6.sql"]
    monkeypatch.setattr("sys.stdin", lines)
    answer_queries("Made up 1", "none", ("q0", "q1"), run)
    assert capsys.readouterr().out.splitlines() == [
        "READY\tMade up 1\tnone",
        "RUN\t0.5\t2\twrote",
        "RUN\t0.5\t2\tcounted",
        "FAILED\tno such operator",
        "FAILED\tit has no counterpart here",
    ]
    assert pq.read_table(f"{rows}.0.parquet").to_pydict() == {"0": [1, 2], "1": ["a", "b"]}


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("name", ["flink", "spark", "bytewax", "pathway"])
def test_two_queries_have_the_same_rows(name: str) -> None:
    made = (ROOT / "runs" / "peers" / name / ".installed").exists()
    if not made and not installed_here((HERE / f"requirements-{name}.txt").read_text()):
        pytest.skip(f"`./run.sh bench peers --only {name}` makes an environment for it")
    if name in ("flink", "spark") and shutil.which("javac") is None:
        pytest.skip("no JDK")
    command = [sys.executable, "-m", "benchmarks.nexmark", "--peers", name, "--tiny", "--only", "q5", "q13"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True, cwd=ROOT)
    assert "geometric mean of 2 queries" in done.stdout, done.stdout

"""Nothing that a user made is destroyed: finished runs, inputs, earlier results, by commands that fail or are refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as sj
from swjoin.config.loader import config_from_plain
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.ranks import run_mpirun
from tests.support.small_files import PLAIN, TIMES, config, rows, state


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run for each kind of sink."""
    folder = tmp_path_factory.mktemp("finished")
    for kind in ("parquet", "count"):
        sj.run(PLAIN | {"sink": {"kind": kind}}, out=folder / kind)
    return {kind: folder / kind for kind in ("parquet", "count")}


# ---------------------------------------------------------------- finished runs


@pytest.mark.parametrize("kind", ["parquet", "count"])
@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_finished_run_is_left_as_it_is(
    kind: str, ranks: int | None, finished: dict[str, Path], swjoin: Any, tmp_path: Path
) -> None:
    run = shutil.copytree(finished[kind], tmp_path / "run")
    before = state(run)
    argv = [] if ranks is None else ["-n", ranks]
    for command in ("run", "serve"):
        live = {"left": {"flight": {}, "schema": "key: int64, ts: int64", "time_unit": "us"}} if command == "serve" else {}
        sections = {"sink": {"kind": kind}, **live, **({"right": live["left"]} if live else {})}
        done = swjoin(command, config(tmp_path, **sections), *argv, "--out", run)
        assert done.code == 2
        assert len(done.err) == 1
        assert "holds a finished run" in done.err[0]
        assert state(run) == before
    with pytest.raises(sj.UserError, match="holds a finished run"):
        sj.run(PLAIN | {"sink": {"kind": kind}}, out=run, ranks=ranks)
    assert state(run) == before
    done = swjoin("run", "--resume", run, *argv)
    assert done.code == 2
    assert "holds no checkpoints" in done.err[0]
    assert state(run) == before


def test_a_folder_within_a_file_is_no_finished_run(swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = swjoin("run", config(tmp_path), "--out", tmp_path / "file" / "run")
    assert (done.code, done.err) == (2, [f"swjoin: --out {tmp_path}/file/run: lies in a file; name a directory"])


@pytest.mark.mpi
def test_ranks_that_a_user_launched_refuse_a_finished_run(finished: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(finished["count"], tmp_path / "run")
    before = state(run)
    line = [*mpirun_options(find_mpirun(), 3), sys.executable, "-m", "swjoin", "run", config(tmp_path), "--out", run]
    done = run_mpirun(line)
    assert done.returncode == 2
    assert "holds a finished run" in done.stderr
    assert state(run) == before


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_wrong_configuration_writes_nothing(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1], "ts": [1]}), tmp_path / "in.parquet")
    side = {"path": str(tmp_path / "in.parquet"), "key": "key", "time": "ts", "time_unit": "us"}
    wrong = {
        "a column": {"left": side | {"key": "nobody"}, "right": side},
        "a file": {"left": side | {"path": str(tmp_path / "none.parquet")}, "right": side},
        "a predicate": {"left": side, "right": side, "join": {"within": "1s", "where": "left_key < 'text'"}},
        "a port": {
            "left": side,
            "right": side,
            "observe": {"port": 0},
            "sink": {"kind": "csv"},
            "on_overload": {"policy": "spill"},
        },
    }
    pq.write_table(pa.table({"key": [1], "ts": [1], "b": [b"x"]}), tmp_path / "binary.parquet")
    wrong["a port"]["left"] = side | {"path": str(tmp_path / "binary.parquet")}  # CSV holds no binary columns
    for name, sections in wrong.items():
        path = config(tmp_path, **sections)
        before = state(tmp_path)
        done = swjoin("run", path, "--out", tmp_path / "new" / "run", *([] if ranks is None else ["-n", ranks]))
        assert (done.code, len(done.err)) == (2, 1), (name, done.err)
        assert state(tmp_path) == before, name


@pytest.mark.mpi
def test_a_run_whose_ranks_died_says_what_it_was(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank could write the report; the launcher does, and knows the ranks."""
    from swjoin.runtime import launch

    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/bash\nexit 137\n")
    fake.chmod(0o755)
    monkeypatch.setattr(launch, "find_mpirun", lambda: fake)
    assert swjoin("run", config(tmp_path), "-n", 4, "--out", tmp_path / "run").code == 1
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [r["role"] for r in report["ranks"].values()] == ["master", "collector", "slave 0", "slave 1"]


def test_simulate_does_not_replace_a_run(finished: dict[str, Path], swjoin: Any, tmp_path: Path) -> None:
    run = shutil.copytree(finished["count"], tmp_path / "run")
    before = state(run)
    argv = [config(tmp_path, sink={"kind": "count"}), "--slaves", 2, "--out"]
    done = swjoin("simulate", *argv, run)
    assert done.code == 2
    assert "holds a finished run" in done.err[0]
    assert state(run) == before
    for _ in range(2):
        assert swjoin("simulate", *argv, tmp_path / "simulated").code == 0


def test_sweep_and_report_leave_what_is_not_theirs(finished: dict[str, Path], swjoin: Any, tmp_path: Path) -> None:
    run = shutil.copytree(finished["parquet"], tmp_path / "run")
    before = state(run)
    for more in ([], ["--fresh"]):
        assert swjoin("sweep", ROOT / "experiments" / "fig07.yaml", "--preset", "quick", "--out", run, *more).code == 2
        assert state(run) == before
    pytest.importorskip("matplotlib")
    for name in ("run.json", "metrics/slaves.parquet", "results/part-00000.parquet"):
        done = swjoin("report", run, "-o", run / name)
        assert done.code == 2
        assert "is an input" in done.err[0]
        assert state(run) == before


# ---------------------------------------------------------------- inputs


def _symlink(path: Path, folder: Path) -> Path:
    (folder / "other.csv").symlink_to(path)
    return folder / "other.csv"


def _hard_link(path: Path, folder: Path) -> Path:
    (folder / "other.csv").hardlink_to(path)
    return folder / "other.csv"


def _linked_folder(path: Path, folder: Path) -> Path:
    (folder / "elsewhere").symlink_to(path.parent)
    return folder / "elsewhere" / path.name


NAMES: dict[str, Callable[[Path, Path], Path]] = {
    "the same": lambda path, folder: path,
    "relative": lambda path, folder: Path(os.path.relpath(path)),
    "dots": lambda path, folder: path.parent / "." / ".." / path.parent.name / path.name,
    "symlink": _symlink,
    "hard link": _hard_link,
    "by a linked folder": _linked_folder,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_join_writes_over_no_input(name: str, ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    left, right = rows(tmp_path / "a.csv"), rows(tmp_path / "b.csv")
    out = NAMES[name](right, tmp_path)
    before = state(tmp_path)
    argv = [*TIMES, "--within", "1s", *([] if ranks is None else ["-n", ranks])]
    for more in (["-o", out], ["-o", "count", "--report", out]):
        done = swjoin("join", left, right, *argv, *more)
        assert done.code == 2
        assert len(done.err) == 1
        assert "is an input" in done.err[0]
        assert state(tmp_path) == before


def test_nor_what_lies_in_an_input_directory(swjoin: Any, tmp_path: Path) -> None:
    left, right = rows(tmp_path / "a", folder=True), rows(tmp_path / "b.parquet")
    (tmp_path / "linked.parquet").symlink_to(left / "part.parquet")
    before = state(tmp_path)
    for out, text in (
        (left / "part.parquet", "is an input"),
        (tmp_path / "linked.parquet", "is an input"),
        (left / "new.parquet", "lies in the input directory"),
        (left / ".." / "a" / "new.csv", "lies in the input directory"),
    ):
        done = swjoin("join", left, right, *TIMES, "--within", "1s", "-o", out)
        assert done.code == 2
        assert text in done.err[0]
        assert state(tmp_path) == before


def test_side_files_count_too(swjoin: Any, tmp_path: Path) -> None:
    left, right = rows(tmp_path / "o.csv.late.parquet"), rows(tmp_path / "b.csv")
    before = state(tmp_path)
    argv = ["join", left, right, *TIMES, "--within", "1s", "--late", "side"]
    for more, text in (
        (["-o", tmp_path / "o.csv"], "late rows"),
        (["-o", tmp_path / "p.csv", "--report", tmp_path / "." / "p.csv"], "is the file of the results"),
    ):
        done = swjoin(*argv, *more)
        assert done.code == 2
        assert text in done.err[0]
        assert state(tmp_path) == before


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_run_writes_over_no_input(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    """The metrics of one run are joined by another that would put its own there."""
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    side = {"path": str(rows(tmp_path / "run" / "metrics" / "slaves.parquet")), "time_unit": "us"}
    sections = {"left": side, "right": side, "sink": {"kind": "count"}}
    before = state(tmp_path / "run")
    done = swjoin("run", config(tmp_path, **sections), "--out", tmp_path / "run", *([] if ranks is None else ["-n", ranks]))
    assert done.code == 2
    assert "is an input" in done.err[0]
    with pytest.raises(sj.UserError, match="is an input"):
        sj.run(config_from_plain(PLAIN | sections), out=tmp_path / "run", ranks=ranks)
    assert state(tmp_path / "run") == before


def test_results_are_not_written_into_a_watched_directory(swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "run" / "results").mkdir(parents=True)
    side = {"watch": str(tmp_path / "run" / "results"), "time_unit": "us", "schema": "key: int64, ts: int64"}
    done = swjoin("run", config(tmp_path, left=side, right=side), "--out", tmp_path / "run")
    assert done.code == 2
    assert "is an input directory" in done.err[0]
    assert not (tmp_path / "run" / "run.json").exists()


# ---------------------------------------------------------------- earlier results


@pytest.mark.drawn
@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_failing_join_leaves_earlier_results(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    good, out, report = rows(tmp_path / "good.csv"), tmp_path / "o.parquet", tmp_path / "r.json"
    argv = [
        *TIMES,
        "--within",
        "1s",
        "-o",
        out,
        "--report",
        report,
        "--late",
        "error",
        *([] if ranks is None else ["-n", ranks]),
    ]
    assert swjoin("join", good, good, *argv).code == 0
    csv.write_csv(pa.table({"key": [1, 1], "ts": [20, 10]}), tmp_path / "late.csv")
    before = state(tmp_path)
    done = swjoin("join", good, tmp_path / "late.csv", *argv)
    assert done.code in (1, 2)
    after = state(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {"o.parquet.incomplete", "r.json.incomplete"}
    assert json.loads((tmp_path / "r.json.incomplete").read_text())["failure"]
    assert swjoin("join", good, good, *argv).code == 0, "a join that completes replaces them"
    assert pq.read_metadata(out).num_rows == 2

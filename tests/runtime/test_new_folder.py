"""Where a run goes that names no folder: a new one each time, and `runs/latest` leads to the newest."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import swjoin as package
from swjoin.core.errors import UserError
from swjoin.runtime import new_folder
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.ranks import run_mpirun

SMALL = {
    "join": {"within": "100ms"},
    "workload": {"rate": 1000, "duration": "1s", "domain": 50, "payload": 0},
    "sink": {"kind": "parquet"},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SMALL))
    return path


def runs() -> list[str]:
    return sorted(p.name for p in Path("runs").iterdir() if p.name != "latest")


def digest(folder: str) -> str:
    found: str = json.loads((Path("runs") / folder / "run.json").read_text())["results"]["digest"]
    return found


def test_every_run_has_a_folder_of_its_own(config: Path, swjoin: Any) -> None:
    first = swjoin("run", config, "--threads", 1)
    assert first.code == 0, first.err
    (name,) = runs()
    assert os.readlink("runs/latest") == name
    assert f"runs/{name}" in first.out
    before = (Path("runs/latest") / "run.json").read_bytes()
    second = swjoin("run", config, "--threads", 1, "--set", "seed=2")
    assert second.code == 0, second.err
    (other,) = set(runs()) - {name}
    assert os.readlink("runs/latest") == other
    assert (Path("runs") / name / "run.json").read_bytes() == before
    assert digest(other) == digest("latest") != digest(name)
    assert package.Run.open("runs/latest").digest == digest(other)


def test_a_refused_run_leaves_nothing(config: Path, swjoin: Any) -> None:
    wrong = ["--set", "left.path=none.csv", "--set", "right.path=none.csv"]
    done = swjoin("run", config, *wrong)
    assert (done.code, os.listdir("runs")) == (2, [])
    assert "no such file or directory (relative to the working directory, " in done.err[0]
    assert swjoin("run", config, "--threads", 1).code == 0
    before = runs()
    assert swjoin("run", config, *wrong).code == 2
    assert (runs(), os.readlink("runs/latest")) == (before, before[0])


def test_a_run_that_is_stopped_before_it_begins_leaves_nothing(
    config: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swjoin("run", config, "--threads", 1).code == 0
    before = runs()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("swjoin.runtime.in_process.load_slave_kernels", interrupted)
    assert swjoin("run", config, "--threads", 1).code == 130
    assert (runs(), os.readlink("runs/latest")) == (before, before[0])
    assert swjoin("run", config, "--threads", 1, "--out", "a/b").code == 130
    assert not Path("a").exists()
    Path("mine/sub").mkdir(parents=True)
    Path("mine/empty").touch()
    assert swjoin("run", config, "--threads", 1, "--out", "mine").code == 130
    assert sorted(p.name for p in Path("mine").iterdir()) == ["empty", "sub"]


def test_a_disk_that_is_full_at_the_start_leaves_nothing(config: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pa, "output_stream", full)
    done = swjoin("run", config, "--threads", 1, "--out", "there")
    assert (done.code, len(done.err)) == (2, 1)
    assert "No space left on device" in done.err[0]
    assert not Path("there").exists()
    assert swjoin("run", config, "--threads", 1).code == 2
    assert os.listdir("runs") == []


def test_what_a_stopped_run_has_written_stays(config: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("swjoin.runtime.in_process.check_ledger", interrupted)
    assert swjoin("run", config, "--threads", 1).code == 130
    (name,) = runs()
    assert os.readlink("runs/latest") == name
    assert json.loads(Path("runs/latest/run.json").read_text())["failure"] == "interrupted"


def test_what_a_user_made_stays(config: Path, swjoin: Any) -> None:
    """Of an older version, or by --out runs/latest."""
    Path("runs/latest").mkdir(parents=True)
    Path("runs/latest/run.json").write_text("mine")
    done = swjoin("run", config, "--threads", 1)
    (name,) = runs()
    assert done.code == 0
    assert f"swjoin: runs/latest is no link and stays as it is; this run is in runs/{name}" in done.err
    assert Path("runs/latest/run.json").read_text() == "mine"
    assert digest(name)


def test_folders_of_one_second(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_folder.time, "strftime", lambda _: "now")
    found = []
    for _ in range(3):
        assert new_folder.in_new_folder(lambda folder: found.append(folder) or 0, as_ranks=False) == 0
    assert found == [Path("runs/now"), Path("runs/now-2"), Path("runs/now-3")]
    assert os.readlink("runs/latest") == "now-3"
    assert new_folder.named(Path("runs/latest")) == found[-1]  # what a resumed run keeps to
    assert new_folder.named(found[0]) == found[0]


def test_where_no_folder_can_be_made(config: Path) -> None:
    Path("runs").write_text("a file")
    with pytest.raises(UserError, match="runs: is no directory; give --out DIR"):
        new_folder.in_new_folder(lambda _: 0, as_ranks=False)


def test_a_run_is_resumed_where_it_was(config: Path, swjoin: Any) -> None:
    """Also when `runs/latest` leads elsewhere meanwhile."""
    assert swjoin("run", config, "--threads", 1, "--set", "checkpoint.epochs=1").code == 0
    (name,) = runs()
    done = swjoin("run", "--resume", "runs/latest", "--threads", 1)
    assert f"runs/{name}" in " ".join([done.out, *done.err])


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(120)
@pytest.mark.parametrize("own", [False, True], ids=["-n", "own mpirun"])
def test_ranks_agree_on_the_folder(own: bool, config: Path) -> None:
    start = [*mpirun_options(find_mpirun(), 3), sys.executable] if own else [sys.executable]
    line = [*start, "-m", "swjoin", "run", str(config), *([] if own else ["-n", "3"])]
    for count in (1, 2):
        done = run_mpirun(line, cwd=None, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        assert len(runs()) == count
        assert os.readlink("runs/latest") in runs()
        assert len(package.Run.open("runs/latest").report["ranks"]) == 3
        assert package.Run.open("runs/latest").results().count_rows() == package.Run.open("runs/latest").count


@pytest.mark.mpi
@pytest.mark.timeout(120)
@pytest.mark.parametrize("more", [(), ("--set", "checkpoint.interval=1s")], ids=["", "checkpoints"])
def test_refused_ranks_leave_nothing(more: tuple[str, ...], config: Path) -> None:
    wrong = ["--set", "left.path=none.csv", "--set", "right.path=none.csv", *more]
    for ulfm in ([], ["--with-ft", "ulfm"]) if more else ([],):
        line = [*mpirun_options(find_mpirun(), 3), *ulfm, sys.executable, "-m", "swjoin", "run", str(config), *wrong]
        done = run_mpirun(line, cwd=None, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 2, done.stderr
        assert os.listdir("runs") == []

"""Full disks and names that are not UTF-8: one line that names the file and how to mend it, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.checkpoint.store import CheckpointStore
from swjoin.core.errors import NotWritten
from swjoin.core.storage import replacing, write_whole
from tests.conftest import ROOT
from tests.support.commands import command

OPTIONS = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "us", "--within", "5ms"]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 3 MB."""
    path = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Their pairs take more than 3 MB."""
    folder = tmp_path_factory.mktemp("inputs")
    random = np.random.default_rng(1)
    n = 60_000
    for name in ("left", "right"):
        text = [f"pay-{x}" for x in random.integers(1 << 60, size=n)]
        rows = {"k": random.integers(0, 500, n), "t": np.sort(random.integers(0, 10**6, n)), "x": text}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet")
    return folder / "left.parquet", folder / "right.parquet"


def configured(inputs: tuple[Path, Path], sink: str) -> dict[str, Any]:
    side = {"key": "k", "time": "t", "time_unit": "us"}
    return {
        "join": {"within": "5ms"},
        "left": {"path": str(inputs[0]), **side},
        "right": {"path": str(inputs[1]), **side},
        "sink": {"kind": sink},
    }


@contextlib.contextmanager
def filled(disk: Path, free_kb: int) -> Iterator[None]:
    """All but so many kilobytes are taken; then everything goes."""
    (disk / "filler").write_bytes(bytes((3072 - 4 - free_kb) << 10))
    try:
        yield
    finally:
        gc.collect()  # files of a run that failed in this process
        subprocess.run(["find", disk, "-mindepth", "1", "-delete"], check=True)


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith(".tmp"))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("free_kb", [0, 600, 1500])
def test_a_join_on_a_full_disk(disk: Path, inputs: tuple[Path, Path], kind: str, free_kb: int, swjoin: Any) -> None:
    with filled(disk, free_kb):
        out = disk / f"out.{kind}"
        done = swjoin("join", *inputs, *OPTIONS, "-o", out)
        mend = r"" if done.code == 2 else "; make room, then start it again"
        assert done.err[-1] == f"swjoin: {out}: cannot be written (No space left on device){mend}"
        assert done.code in (1, 2)
        assert not out.exists()
        assert left_behind(disk) == []


@pytest.mark.parametrize("sink", ["parquet", "count"])
@pytest.mark.parametrize("free_kb", [0, 64])
def test_a_run_on_a_full_disk(disk: Path, inputs: tuple[Path, Path], sink: str, free_kb: int) -> None:
    config = configured(inputs, sink)
    with filled(disk, free_kb):
        try:
            api.run(config, out=disk / "run", threads=1)
        except api.RunFailed as failure:
            said = str(failure)
        else:
            said = "nothing"
            assert (sink, free_kb) == ("count", 64)  # whose files are as small
        if said != "nothing":
            assert said.startswith(f"{disk}/run/")
            assert said.endswith(": cannot be written (No space left on device); make room, then start it again")
        assert left_behind(disk) == []


def test_a_run_on_a_full_disk_goes_on_from_its_checkpoint(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills while the run makes checkpoints; with room again, it goes on, and the answer is that of a whole run."""
    rows = pa.table({"k": np.arange(4000) % 50, "t": np.arange(4000) * 100})
    pq.write_table(rows, tmp_path / "rows.parquet")
    inputs = tmp_path / "rows.parquet", tmp_path / "rows.parquet"
    cluster = {"cluster": {"distribution_epoch": "5ms", "epoch_tuples": 200}}
    config = configured(inputs, "count") | {"checkpoint": {"epochs": 1}} | cluster
    out = disk / "run"
    complete = CheckpointStore.complete
    with filled(disk, 2900):

        def filling(folder: CheckpointStore, checkpoint: Any) -> None:
            complete(folder, checkpoint)
            if not any((out / "checkpoints").glob("checkpoint-*.json")):
                return  # another thread writes it
            with contextlib.suppress(OSError), (disk / "more").open("wb", 0) as file:
                while True:
                    file.write(bytes(4096))

        monkeypatch.setattr(CheckpointStore, "complete", filling)
        with pytest.raises(api.RunFailed) as failure:
            api.run(config, out=out, threads=1)
        monkeypatch.undo()
        said = str(failure.value)
        assert said.startswith(f"{out}/")
        assert said.endswith(
            f": cannot be written (No space left on device); make room, then go on with: swjoin run --resume {out}"
        )
        assert [name for name in left_behind(disk) if "run.json" in name] == []
        (disk / "more").unlink()
        (disk / "filler").unlink()
        done = command("run", "--resume", out)
        assert done.returncode == 0, done.stderr
        found = api.Run.open(out)
        arguments: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "us", "within": "5ms"}
        assert (found.count, found.digest) == (api.count(*inputs, **arguments).count, api.count(*inputs, **arguments).digest)


@pytest.mark.mpi
def test_ranks_on_a_full_disk(disk: Path, inputs: tuple[Path, Path]) -> None:
    with filled(disk, 600):
        out = disk / "out.parquet"
        done = command("join", *inputs, *OPTIONS, "-o", out, "-n", "3")
        assert done.returncode == 1
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("swjoin:")]
        assert said.startswith("swjoin: rank 1 (collector) on ")
        assert said.endswith(f"{out}: cannot be written (No space left on device); make room, then start it again")
        assert left_behind(disk) == []


def test_files_that_cannot_be_replaced_leave_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("before")
    full = OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    def fail(error: BaseException) -> None:
        with replacing(target) as file:
            file.write_text("half")
            raise error

    with pytest.raises(NotWritten, match=r"run.json: cannot be written \(No space left on device\)"):
        fail(full)
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert (target.read_text(), sorted(tmp_path.iterdir())) == ("before", [target])
    write_whole(target, b"after")
    assert (target.read_text(), sorted(tmp_path.iterdir())) == ("after", [target])


# ---------------------------------------------------------------- names that are not UTF-8


def test_names_that_are_not_utf8_are_one_line(tmp_path: Path, inputs: tuple[Path, Path], swjoin: Any) -> None:
    odd = os.fsdecode(b"odd\xff")
    left, right = inputs
    (tmp_path / f"{odd}.parquet").write_bytes(left.read_bytes())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"{odd}.parquet").write_bytes(left.read_bytes())
    (tmp_path / "column.csv").write_bytes(b"k\xff,t\n1,2\n")
    config = ["mpi_configs/local.yaml", "--set", "workload.duration=1s"]
    cases: list[tuple[list[Any], str]] = [
        (["join", left, right, *OPTIONS, "-o", tmp_path / f"{odd}.csv"], r"odd\udcff.csv: the name is not UTF-8; rename it"),
        (["join", tmp_path / f"{odd}.parquet", right, *OPTIONS, "-o", "count"], r"odd\udcff.parquet: the name is not UTF-8"),
        (["join", tmp_path / "folder", right, *OPTIONS, "-o", "count"], r"folder/odd\udcff.parquet: the name is not UTF-8"),
        (["join", tmp_path / "column.csv", right, *OPTIONS, "-o", "count"], "column.csv: cannot be read as CSV"),
        (["join", left, right, *OPTIONS, "--where", f"left_x = '{odd}'", "-o", "count"], "is not UTF-8"),
        (["join", left, right, *OPTIONS[2:], "--on", odd, "-o", "count"], "is missing"),
        (["run", *config, "--out", tmp_path / odd], r"odd\udcff/results: the name is not UTF-8"),
        (["run", ROOT / f"{odd}.yaml", "--out", tmp_path / "run"], "odd"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for argv, text in cases:
        done = swjoin(*argv)
        assert done.code == 2, argv
        (said,) = done.err
        assert text in said.encode(errors="backslashreplace").decode()
        assert "internal error" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_names_that_are_not_utf8_in_python(tmp_path: Path) -> None:
    plain = pa.table({"k": [1], "t": [1], "x": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    data = sink.getvalue().to_pybytes().replace(b"\x01\x00\x00\x00x\x00", b"\x01\x00\x00\x00\xff\x00")
    bad = pa.ipc.open_stream(data).read_all()
    arguments: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "us", "within": "5us"}
    join = api.WindowJoin(**arguments)
    topic = {"kind": "kafka", "kafka": {"servers": "127.0.0.1:1", "topic": "t\udcff"}}
    for call in (
        lambda: api.join(bad, plain, **arguments),
        lambda: api.count(plain, bad, **arguments),
        lambda: join.push(left=bad),
        lambda: join.push(left=bad.to_batches()[0]),
        lambda: api.WindowJoin(**arguments, left_schema=bad.schema),
        lambda: api.join("\udcff.parquet", plain, **arguments),
        lambda: api.run({"workload": {"rate": 10}, "join": {"within": "1ms"}}, out=tmp_path / "\udcff"),
        lambda: api.run({"workload": {"rate": 10}, "join": {"within": "1ms"}, "sink": topic}, out=tmp_path / "run"),
    ):
        with pytest.raises(api.UserError, match="is not UTF-8"):
            call()

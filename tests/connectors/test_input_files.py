"""Inputs as people name them: globs, lists, nested and hive folders, `~` and `file://`, in one order; errors are one line."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.connectors.files.inputs import find_files, split_paths
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from tests.conftest import ROOT
from tests.support.in_process import run

TIMES: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "40us"}
CLI = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "--within", "40us"]


def table(start: int, rows: int = 50) -> pa.Table:
    ts = np.arange(start, start + rows)
    return pa.table({"key": ts * 7 % 5, "ts": ts, "name": [f"r{t}" for t in ts]})


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """150 rows in three files of hive folders, in nested folders, and in one file."""
    for number, folder in enumerate(("day=2026-01-01/h=0", "day=2026-01-01/h=1", "day=2026-01-02/h=0")):
        for root in ("hive", "nested"):
            path = tmp_path / root / (folder if root == "hive" else folder.replace("=", "-"))
            path.mkdir(parents=True)
            pq.write_table(table(50 * number), path / f"x-{number}.parquet")
    pq.write_table(table(0, 150), tmp_path / "all.parquet")
    (tmp_path / "nested" / "_SUCCESS").touch()
    (tmp_path / "nested" / "_staging").mkdir()
    pq.write_table(table(0), tmp_path / "nested" / "_staging" / "z.parquet")
    return tmp_path


def spellings(folder: Path) -> dict[str, Any]:
    files = [
        folder / "nested" / f"day-2026-01-0{d}" / f"h-{h}" / f"x-{n}.parquet"
        for n, (d, h) in enumerate(((1, 0), (1, 1), (2, 0)))
    ]
    return {
        "nested folders": folder / "nested",
        "hive folders": folder / "hive",
        "a glob of files": f"{folder}/nested/*/*/x-*.parquet",
        "a glob of folders": f"{folder}/nested/day-*",
        "any depth": f"{folder}/**/x-[0-9].parquet".replace("**", "nested/**"),
        "a list": files,
        "a list of strings and globs": [str(files[0]), str(files[1]), f"{folder}/nested/day-2026-01-02/**"],
        "a URI": f"file://{folder}/nested",
        "a folder in a folder": f"{folder}/nested/../nested/",
    }


@pytest.mark.parametrize("name", spellings(Path()))
def test_every_spelling_reads_the_same_rows(name: str, inputs: Path, swjoin: Callable[..., Any]) -> None:
    import swjoin as package

    value = spellings(inputs)[name]
    whole = package.join(inputs / "all.parquet", inputs / "all.parquet", **TIMES)
    found = package.join(value, inputs / "all.parquet", **TIMES)
    shared = whole.schema.names
    assert whole.num_rows > 150
    assert found.select(shared).equals(whole)
    argument = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    reports = []
    for left in (argument, inputs / "all.parquet"):
        done = swjoin("join", left, inputs / "all.parquet", *CLI, "-o", "count", "--report", inputs / "report.json")
        assert (done.code, done.err) == (0, [])
        reports.append(json.loads((inputs / "report.json").read_text())["results"])
    assert [reports[0][k] for k in ("count", "digest")] == [reports[1][k] for k in ("count", "digest")]


def test_home(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(inputs))
    assert [str(f) for f in find_files("~/nested/*/h-1").files] == [f"{inputs}/nested/day-2026-01-01/h-1/x-1.parquet"]


def test_a_name_may_hold_what_means_something_elsewhere(tmp_path: Path) -> None:
    for name in ("a,b.parquet", "x[1].parquet", "what?.parquet"):
        pq.write_table(table(0), tmp_path / name)
        text = str(tmp_path / name)
        assert split_paths(text) == text
        assert find_files(text).files == [Path(text)]
    assert split_paths("a.csv,b.csv") == ("a.csv", "b.csv")


def test_partition_columns(inputs: Path, swjoin: Callable[..., Any]) -> None:
    import swjoin as package

    found = package.join(inputs / "hive", inputs / "all.parquet", **TIMES)
    assert (found.schema.field("day").type, found.schema.field("h").type) == (pa.string(), pa.int32())
    day = np.where(np.asarray(found["left_ts"].cast(pa.int64())) < 100, "2026-01-01", "2026-01-02")
    assert found["day"].to_pylist() == day.tolist()
    filtered = package.join(inputs / "hive", inputs / "all.parquet", where="h = 1", **TIMES)
    assert filtered.num_rows == pc.sum(pc.equal(found["h"], 1)).as_py()
    by_day = {**TIMES, "on": "day"}
    both = package.count(inputs / "hive", f"{inputs}/hive/day=*", **by_day)
    assert both.count == sum(
        min(b, hi - 1) - max(a, lo) + 1
        for lo, hi in ((0, 100), (100, 150))
        for ts in range(lo, hi)
        for a, b in [(ts - 40, ts + 40)]
    )
    done = swjoin("join", inputs / "hive", inputs / "hive", *CLI, "--columns", "day", "-o", inputs / "out.parquet")
    assert (done.code, done.err) == (0, [])
    assert sorted(set(pq.read_table(inputs / "out.parquet")["left_day"].to_pylist())) == ["2026-01-01", "2026-01-02"]


def test_folders_of_the_null_partition(tmp_path: Path) -> None:
    for name in ("k=1", "k=__HIVE_DEFAULT_PARTITION__", "k=3"):
        (tmp_path / name).mkdir()
        csv.write_csv(pa.table({"ts": [1, 2]}), tmp_path / name / "a.csv")
    found = swjoin.count(tmp_path, tmp_path, on="k", left_time="ts", right_time="ts", time_unit="us", within="9us")
    assert found.count == 8  # null keys have no pairs


def test_runs_of_hive_folders_and_lists_are_verified(inputs: Path) -> None:
    right = spellings(inputs)["a list of strings and globs"]
    for path in (inputs / "nested").glob("day*/*/*.parquet"):
        read = pq.read_table(path)
        pq.write_table(read.append_column("other", pc.multiply(0, read["ts"])), path)
    config = {
        "join": {"within": "40us", "where": "day < '2026-01-02' or left_ts >= right_ts"},
        "left": {"path": f"{inputs}/hive", "key": ["key", "h"], "time": "ts", "time_unit": "us"},
        "right": {"path": right, "key": ["key", "other"], "time": "ts", "time_unit": "us"},
        "sink": {"kind": "parquet", "ids": True},
    }
    (inputs / "c.yaml").write_text(json.dumps(config))
    run(inputs / "c.yaml", inputs)
    result = verify(inputs / "run")
    assert result.equal, result.lines()
    assert result.count > 100
    kept = pa.concat_tables(pq.read_table(path) for path in sorted((inputs / "run" / "results").iterdir()))
    assert set(kept["day"].to_pylist()) == {"2026-01-01", "2026-01-02"}


def test_the_examples_of_the_documents(tmp_path: Path, swjoin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    at = pa.array([0, 1_000_000], pa.timestamp("us"))
    for name in ("events/day-1/trips-1", "events/day-2/trips-1", "payments/p", "trips-1", "trips-2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"user": [1, 2], "at": at}), tmp_path / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "sources.md").read_text().split("### Options of text files")[0]
    examples = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("    swjoin")]
    assert len(examples) == 2
    for example in examples:
        done = swjoin(*example, "--max-out-of-order", "1s")
        assert (done.code, done.err) == (0, [])
        assert re.search(r"pairs +4\b", done.out)


def test_errors(inputs: Path, tmp_path: Path) -> None:
    def refused(value: Any) -> str:
        with pytest.raises(UserError) as caught:
            swjoin.count(value, inputs / "all.parquet", **TIMES)
        assert "\n" not in str(caught.value)
        return str(caught.value).replace(f"{tmp_path}/", "")

    assert refused(f"{tmp_path}/none*/x").startswith("none*/x: matches no data files (.parquet, ")
    assert refused([inputs / "all.parquet", f"{tmp_path}/all.*"]) == (
        "all.parquet: is named twice, and its rows would be joined twice; name it once"
    )
    assert refused([inputs / "hive", inputs / "all.parquet"]) == (
        "all.parquet: its folders give columns none, those of hive/day=2026-01-01/h=0/x-0.parquet day, h; "
        "read folders of one kind"
    )
    assert (
        refused("http://x/y.parquet")
        == "http://x/y.parquet: no files are read from http://; known are file, s3, gs, abfs and hdfs"
    )
    assert refused("file://host/y.parquet") == "file://host/y.parquet: names the host host; write file:///PATH"
    assert refused(["a.csv", ""]) == "left: the path is empty; write . for the working directory"
    assert refused("s3://me:secret@bucket/x") == "s3://...: the path holds a password; give credentials in the environment"
    (tmp_path / "clash" / "key=3").mkdir(parents=True)
    pq.write_table(table(0), tmp_path / "clash" / "key=3" / "a.parquet")
    assert refused(tmp_path / "clash") == (
        "clash/key=3/a.parquet: has a column key, and its folder key=... gives another; rename one of them"
    )
    (tmp_path / "loop").mkdir()
    pq.write_table(table(0), tmp_path / "loop" / "a.parquet")
    os.symlink(tmp_path / "loop", tmp_path / "loop" / "again")
    assert (
        refused(tmp_path / "loop") == "loop/again: is a link to a folder that is read already; its rows would be joined twice"
    )
    csv.write_csv(table(0), tmp_path / "nested" / "a.csv")
    assert refused(tmp_path / "nested") == "nested: mixes CSV and Parquet; keep one format per directory"


def test_outputs_do_not_replace_files_of_a_glob(inputs: Path, swjoin: Callable[..., Any]) -> None:
    target = inputs / "nested" / "day-2026-01-01" / "h-0" / "x-0.parquet"
    before = target.read_bytes()
    for left in (f"{inputs}/nested/*/*/x-*", f"file://{inputs}/nested", f"{inputs}/all.parquet,{target}"):
        done = swjoin("join", left, inputs / "all.parquet", *CLI, "-o", target)
        assert done.code == 2, left
        assert "overwritten" in done.err[0]
        assert target.read_bytes() == before
    done = swjoin("join", inputs / "nested", inputs / "all.parquet", *CLI, "-o", target.parent / "new.parquet")
    assert done.code == 2
    assert "would be read as input" in done.err[0]
    done = swjoin("join", inputs / "nested", inputs / "all.parquet", *CLI, "-o", "s3://bucket/x.parquet")
    assert (done.code, len(done.err)) == (2, 1)
    assert "s3://bucket/x.parquet: results are written to this machine's disks only" in done.err[0]

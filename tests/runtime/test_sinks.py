"""Several sinks: each result is in one file of one sink, whatever the ranks, and a stop or a death takes none away.

Known cases with several sinks on ranks are in `runtime.test_mpi`, stops and resumptions with other numbers of sinks in
`checkpoint.test_checkpoints`, random ones in `tests.tools`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import swjoin as api
from swjoin.core.errors import UserError
from tests.support.commands import command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """Two files, and the rows that a join with one sink writes."""
    folder = tmp_path_factory.mktemp("inputs")
    random = np.random.default_rng(5)
    for name in ("left", "right"):
        ts = np.sort(random.integers(0, 2_000_000, 20_000))
        table = pa.table({"key": random.integers(0, 500, 20_000), "ts": ts, name: random.random(20_000)})
        pq.write_table(table, folder / f"{name}.parquet")
    done = _join(folder, folder / "one.parquet", "--threads", 1)
    assert done.returncode == 0, done.stderr
    return folder, _in_order(pq.read_table(folder / "one.parquet"))


def _join(folder: Path, out: Path | str, *more: object) -> Any:
    sides = folder / "left.parquet", folder / "right.parquet"
    columns = ["--on", "key", "--within", "20ms", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us"]
    return command("join", *sides, *columns, "-o", out, *more)


def _in_order(table: pa.Table) -> pa.Table:
    return table.combine_chunks().sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


@pytest.mark.parametrize(
    ("sinks", "kind", "where"),
    [
        (3, "parquet", ("--threads", 2)),
        (2, "csv", ("--threads", 1)),
        pytest.param(3, "parquet", ("-n", 3), marks=pytest.mark.mpi),
        pytest.param(4, "csv", ("-n", 5), marks=[pytest.mark.mpi, pytest.mark.long]),
        pytest.param(3, "parquet", ("-n", 7), marks=[pytest.mark.mpi, pytest.mark.long]),
    ],
)
def test_a_join_with_several_sinks(
    sinks: int, kind: str, where: tuple[object, ...], inputs: tuple[Path, pa.Table], tmp_path: Path
) -> None:
    """The file that is named becomes a directory with a file of every sink."""
    folder, expected = inputs
    out, report = tmp_path / f"out.{kind}", tmp_path / "report.json"
    done = _join(folder, out, "--sinks", sinks, "--epoch", "20ms", "--report", report, *where)
    assert done.returncode == 0, done.stderr
    files = sorted(out.iterdir())
    assert [file.name.split("-")[1] for file in files] == [f"s{sink}" for sink in range(sinks)]
    tables = [pq.read_table(file) if kind == "parquet" else csv.read_csv(file) for file in files]
    assert _in_order(pa.concat_tables(tables)).equals(expected)
    told = json.loads(report.read_text())
    assert told["results"]["count"] == expected.num_rows
    assert [sink["count"] for sink in told["sinks"]] == [table.num_rows for table in tables]
    assert min(table.num_rows for table in tables) > expected.num_rows // (2 * sinks), "the sinks share alike"
    if kind == "parquet":
        found = api.proof(out)
        assert (found.count, found.digest) == (told["results"]["count"], told["results"]["digest"])
        assert found.ledger.balanced
        with pytest.raises(UserError, match="rows of a larger result, unchanged; ask for the proof of the directory"):
            api.proof(files[0])
        files[-1].unlink()
        with pytest.raises(UserError, match="they are not all of its files any more"):
            api.proof(out)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--sinks", 0), "--sinks must be 1 to 1024"),
        (("--sinks", 1025), "--sinks must be 1 to 1024"),
    ],
)
def test_numbers_of_sinks_that_no_run_can_have(more: tuple[object, ...], text: str, inputs: Any, tmp_path: Path) -> None:
    _refused(_join(inputs[0], tmp_path / "out.parquet", *more), text)


def test_sinks_without_files_are_refused(inputs: tuple[Path, pa.Table], tmp_path: Path) -> None:
    _refused(_join(inputs[0], "count", "--sinks", 2), "--sinks 2: the results of this run are only counted; leave it out")
    _refused(_join(inputs[0], "-", "--sinks", 2), "--sinks 2 with -o -: standard output is one")


def test_nothing_is_overwritten_by_a_directory_of_results(inputs: tuple[Path, pa.Table], tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("mine")
    _refused(_join(inputs[0], tmp_path / "out.parquet", "--sinks", 2), "out.parquet: cannot be made (File exists)")
    assert (tmp_path / "out.parquet").read_text() == "mine"
    (tmp_path / "full.parquet").mkdir()
    (tmp_path / "full.parquet" / "part-s0-00000.parquet").write_text("mine")
    _refused(_join(inputs[0], tmp_path / "full.parquet", "--sinks", 2), "full.parquet: is not empty")
    assert (tmp_path / "full.parquet" / "part-s0-00000.parquet").read_text() == "mine"


def _refused(done: Any, text: str) -> None:
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert text in line


def test_explain_tells_what_sinks_do_with_a_topic(tmp_path: Path) -> None:
    sink = {"kind": "kafka", "kafka": {"servers": "127.0.0.1:1", "topic": "sales"}}
    config = {"join": {"within": "1s"}, "cluster": {"sinks": 2}, "workload": {"rate": 100, "duration": "5s"}, "sink": sink}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = command("explain", tmp_path / "config.yaml", "-n", 4)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "2 sinks share the results; each sends its own to the topic: sink 0 is the collector" in said
    assert "topic sales: a message for every row" in said
    assert "2 sinks ─▶ topic sales" in said


@pytest.mark.parametrize(
    ("ranks", "slaves", "places"),
    [(5, 2, (4, 2)), *(pytest.param(*more, marks=pytest.mark.drawn) for more in ((3, 1, (2, 2)), (7, 3, (5, 6))))],
)
def test_explain_and_plan_tell_who_plays_the_sinks(
    ranks: int, slaves: int, places: tuple[int, int], swjoin: Any, tmp_path: Path
) -> None:
    config = {"join": {"within": "1s"}, "cluster": {"sinks": 3}, "workload": {"rate": 100, "duration": "5s"}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    done = swjoin("explain", tmp_path / "config.yaml", "-n", ranks, "--json")
    told = " ".join(json.loads(done.out)["sections"]["who does what"])
    assert f"sink 1 is on rank {places[0]}, sink 2 is on rank {places[1]}" in told
    assert json.loads(done.out)["slaves"] == slaves
    done = swjoin("plan", tmp_path / "config.yaml", "-n", ranks, "--json")
    assert done.code == 0, done.err
    roles = {rank: found["role"] for rank, found in json.loads(done.out)["ranks"].items()}
    assert len(roles) == ranks
    assert all(f"sink {sink}" in roles[str(rank)] for sink, rank in zip((1, 2), places, strict=True))

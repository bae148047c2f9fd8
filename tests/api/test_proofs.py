"""Proofs: of the very table that was returned, of files and of runs; whatever was made from them has none."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import shutil
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
from swjoin.api import proofs
from swjoin.cli.main import main
from swjoin.connectors.files import sink as file_sink

ON: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "300us"}
WORDS = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "--within", "300us"]


def side(seed: int, rows: int = 500) -> pa.Table:
    random = np.random.default_rng(seed)
    columns = {"key": random.integers(0, 20, rows), "ts": random.integers(0, 9000, rows), "value": random.random(rows)}
    return pa.table(columns).sort_by("ts")


LEFT, RIGHT = side(1), side(2)


# ---------------------------------------------------------------- tables

DERIVED: dict[str, Callable[[pa.Table], Any]] = {
    "all rows filtered": lambda t: t.filter(pa.array([True] * len(t))),
    "no rows": lambda t: t.filter(pa.array([False] * len(t))),
    "slice": lambda t: t.slice(0),
    "select": lambda t: t.select(t.column_names),
    "sort": lambda t: t.sort_by("left_ts"),
    "take": lambda t: t.take(pa.array(range(len(t)))),
    "combine_chunks": lambda t: t.combine_chunks(),
    "concat_tables": lambda t: pa.concat_tables([t]),
    "join": lambda t: t.join(t.select(["key"]).group_by("key").aggregate([]), "key"),
    "cast": lambda t: t.cast(t.schema),
    "metadata": lambda t: t.replace_schema_metadata(t.schema.metadata),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "batches": lambda t: pa.Table.from_batches(t.to_batches()),
    "pandas": lambda t: pa.Table.from_pandas(t.to_pandas()),
    "a data frame": lambda t: t.to_pandas(),
    "nothing": lambda t: None,
}


@pytest.fixture(scope="module")
def joined() -> pa.Table:
    return swjoin.join(LEFT, RIGHT, **ON)


@pytest.mark.parametrize("how", DERIVED)
def test_a_table_made_from_a_result_has_no_proof(how: str, joined: pa.Table) -> None:
    derived = DERIVED[how](joined)
    with pytest.raises(swjoin.UserError, match=r"not a table that swjoin\.join returned .* the proof of the very table"):
        swjoin.proof(derived)
    assert swjoin.proof(joined).count == len(joined) > 100
    assert swjoin.proof(joined) == swjoin.count(LEFT, RIGHT, **ON)


def test_nothing_of_a_proof_is_in_the_table_or_in_files_made_from_it(joined: pa.Table, tmp_path: Path) -> None:
    assert joined.schema.metadata is None
    pq.write_table(joined, tmp_path / "t.parquet")
    with pytest.raises(swjoin.UserError, match=r"t\.parquet: carries no proof"):
        swjoin.proof(tmp_path / "t.parquet")


def test_proofs_go_with_their_tables() -> None:
    before = len(proofs._OF_TABLES)
    tables = [swjoin.join(LEFT, RIGHT, **ON), swjoin.join(LEFT.slice(0, 0), RIGHT, **ON)]
    assert [swjoin.proof(t).count for t in tables] == [len(tables[0]), 0]
    assert len(proofs._OF_TABLES) == before + 2
    del tables
    gc.collect()
    assert len(proofs._OF_TABLES) == before


# ---------------------------------------------------------------- files


def join_to(target: Path, *more: str) -> None:
    for name, table in (("left", LEFT), ("right", RIGHT)):
        if not (target.parent / f"{name}.parquet").exists():
            pq.write_table(table, target.parent / f"{name}.parquet")
    paths = [str(target.parent / f"{name}.parquet") for name in ("left", "right")]
    assert main(["join", *paths, *WORDS, "-o", str(target), *more]) == 0


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_a_file_carries_its_proof(how: Any, tmp_path: Path) -> None:
    join_to(tmp_path / "pairs.parquet", "--how", how)
    expected = swjoin.count(LEFT, RIGHT, how=how, **ON)
    assert swjoin.proof(tmp_path / "pairs.parquet") == expected
    assert swjoin.proof(str(tmp_path / "pairs.parquet")).ledger.left.tuples == 500
    shutil.copy(tmp_path / "pairs.parquet", tmp_path / "elsewhere")
    assert swjoin.proof(tmp_path / "elsewhere") == expected
    with pytest.raises(swjoin.UserError, match="not a table"):
        swjoin.proof(pq.read_table(tmp_path / "pairs.parquet"))


def test_a_file_without_rows_carries_its_proof(tmp_path: Path) -> None:
    join_to(tmp_path / "pairs.parquet", "--where", "left_value > right_value + 9")
    found = swjoin.proof(tmp_path / "pairs.parquet")
    assert (found.count, found.digest, found.ledger.balanced) == (0, "0" * 16, True)


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **settings: Any) -> None:
    """With the metadata that the file had: some readers hand them on with the schema, and some writers write that."""
    claim = pq.read_metadata(path).metadata[b"swjoin"]
    pq.write_table(change(pq.read_table(path)).replace_schema_metadata({b"swjoin": claim}), path, **settings)


REWRITTEN: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "filtered": (lambda t: t.filter(pc.less(t["left_ts"], 4000)), "rows, and there were"),
    "emptied": (lambda t: t.slice(0, 0), "0 rows, and there were"),
    "other values": (lambda t: t.set_column(2, t.column_names[2], pc.add(t[2], 1)), "other bytes"),
    "other rows": (lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]), "other bytes"),
    "a column fewer": (lambda t: t.drop_columns(t.column_names[-1:]), "other bytes"),
}


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("how", REWRITTEN)
def test_a_file_that_was_rewritten_is_refused(how: str, alike: bool, tmp_path: Path) -> None:
    """alike: with the settings with which swjoin writes."""
    path = tmp_path / "pairs.parquet"
    join_to(path)
    change, complaint = REWRITTEN[how]
    rewrite(path, change, **({"compression": "lz4", "use_dictionary": False} if alike else {}))
    with pytest.raises(swjoin.UserError, match=rf"pairs\.parquet: holds .*{complaint}.* changed since swjoin wrote it"):
        swjoin.proof(path)
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    with pytest.raises(swjoin.UserError, match=r"pairs\.parquet: carries no proof"):
        swjoin.proof(path)


def test_a_changed_byte_and_a_cut_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    join_to(path)
    data = path.read_bytes()
    for at in range(4, len(data) // 2, 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(swjoin.UserError, match="other bytes"):
            swjoin.proof(path)
    path.write_bytes(data[:-9])
    with pytest.raises(swjoin.UserError, match=r"pairs\.parquet: is no whole Parquet file"):
        swjoin.proof(path)


def test_sampled_hashes_see_rows_that_moved(tmp_path: Path) -> None:
    from swjoin.connectors.files.proofs import _BLOCK, _WHOLE, sampled_hash

    data = np.random.default_rng(1).bytes(_WHOLE + 3 * _BLOCK + 13)
    path, found = tmp_path / "f", {}
    for size in (0, 5, 64, _BLOCK + 1, _WHOLE, _WHOLE + 1, len(data)):
        path.write_bytes(data[:size] + b"a footer")
        found[size] = sampled_hash(path, size)
    assert len(set(found.values())) == len(found)
    for at in (0, 1, _BLOCK, 2 * _BLOCK + 7, len(data) - 1):  # without one byte, and another at the end
        path.write_bytes(data[:at] + data[at + 1 :] + b"xa footer")
        assert sampled_hash(path, len(data)) != found[len(data)]
    with pytest.raises(ValueError, match=r"length|size"):
        sampled_hash(path, 2 * _WHOLE)


def test_what_carries_no_proof_is_refused_in_one_line(tmp_path: Path) -> None:
    join_to(tmp_path / "pairs.csv")
    for name, complaint in (
        ("pairs.csv", "CSV files carry no proof; write Parquet"),
        ("left.parquet", "carries no proof; name a Parquet file of results"),
        ("gone.parquet", "no such file"),
        (".", "holds no run.json"),
    ):
        with pytest.raises(swjoin.UserError, match=complaint) as error:
            swjoin.proof(tmp_path / name)
        assert "\n" not in str(error.value)
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(swjoin.UserError, match="is no whole Parquet file"):
        swjoin.proof(tmp_path / "text.parquet")


@pytest.mark.mpi
@pytest.mark.drawn
def test_ranks_write_the_proof_too(tmp_path: Path) -> None:
    join_to(tmp_path / "pairs.parquet", "-n", "3")
    assert swjoin.proof(tmp_path / "pairs.parquet") == swjoin.count(LEFT, RIGHT, **ON)


@pytest.mark.parametrize(
    "ranks",
    [pytest.param((), id="local"), pytest.param(("-n", "3"), id="mpi", marks=[pytest.mark.mpi, pytest.mark.drawn])],
)
def test_a_file_carries_its_warnings(ranks: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pq.write_table(LEFT.set_column(0, "key", pc.add(LEFT["key"], 1000)), tmp_path / "left.parquet")
    join_to(tmp_path / "pairs.parquet", "--report", str(tmp_path / "report.json"), *ranks)
    found = swjoin.proof(tmp_path / "pairs.parquet")
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("nothing matched: no key of the left side is on the right side")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["warnings"] == list(found.warnings)
    assert found.warnings[0] in capfd.readouterr().err


# ---------------------------------------------------------------- runs

RUN: dict[str, Any] = {
    "join": {"within": "200ms"},
    "workload": {"rate": 2000, "duration": "2s", "bias": 0.7, "domain": 1000, "payload": 0},
    "cluster": {"distribution_epoch": "200ms"},
}


def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch | None = None, **sections: Any) -> swjoin.Run:
    """monkeypatch: its results in several files."""
    if monkeypatch is not None:
        monkeypatch.setattr(file_sink, "GROUP_ROWS", 200)
        monkeypatch.setattr(file_sink, "FILE_BYTES", 1)
    return swjoin.run({**RUN, **sections}, out=tmp_path / "run", threads=2)


@pytest.mark.parametrize("sink", ["parquet", "csv", "count"])
@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_a_run_has_a_proof(how: str, sink: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, join={"within": "200ms", "how": how}, sink={"kind": sink})
    found = swjoin.proof(run.path)
    assert (found.count, found.digest, found.ledger) == (run.count, run.digest, run.ledger)
    assert found.count > 0
    if sink == "count":
        return
    assert swjoin.proof(run.path / "results") == found
    (path,) = (run.path / "results").iterdir()
    if sink == "parquet":
        assert swjoin.proof(path) == found
        rewrite(path, lambda t: t.slice(1))
    else:
        csv.write_csv(csv.read_csv(path).slice(1), path)
    with pytest.raises(swjoin.UserError, match=r"holds \d+ rows, and there were|its files hold \d+ rows"):
        swjoin.proof(run.path)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_run_of_several_files(checkpoints: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"checkpoint": {"interval": "1us"}} if checkpoints else {}
    run = a_run(tmp_path, monkeypatch, **more)
    paths = sorted((run.path / "results").iterdir())
    assert len(paths) > 2
    whole = swjoin.proof(run.path)
    assert (whole.count, whole.digest) == (run.count, run.digest)
    parts = [swjoin.proof(path) for path in paths]
    assert sum(part.count for part in parts) == whole.count
    assert sum(int(part.digest, 16) for part in parts) % 2**64 == int(whole.digest, 16)
    assert all(part.ledger == whole.ledger for part in parts)
    shutil.copy(paths[1], tmp_path / "alone.parquet")
    with pytest.raises(swjoin.UserError, match=r"alone\.parquet: holds \d+ rows of a larger result, unchanged"):
        swjoin.proof(tmp_path / "alone.parquet")
    rewrite(paths[0], lambda t: t)  # the same pairs, written anew
    assert swjoin.proof(run.path) == whole
    rewrite(paths[0], lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]))
    for of in (paths[0], run.path):
        with pytest.raises(swjoin.UserError, match="holds the ids of other pairs"):
            swjoin.proof(of)
    rewrite(paths[0], lambda t: t.drop_columns(["left_id"]))
    with pytest.raises(swjoin.UserError, match="holds no column left_id"):
        swjoin.proof(run.path)
    paths[0].unlink()
    with pytest.raises(swjoin.UserError, match="they are not the run's any more"):
        swjoin.proof(run.path)


def test_a_run_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, monkeypatch, sink={"kind": "parquet", "ids": False})
    whole = swjoin.proof(run.path)
    assert (whole.count, whole.digest) == (run.count, run.digest)
    path = sorted((run.path / "results").iterdir())[1]
    rewrite(path, lambda t: t)
    with pytest.raises(swjoin.UserError, match="holds other bytes"):
        swjoin.proof(run.path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"complete": False}, "did not come to its end, so there is no proof"),
        ({"format": 1}, "format 1, whose digest is computed in another way"),
        ({"simulated": True}, "is a simulation"),
    ],
)
def test_a_run_that_proves_nothing(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    report = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**report, **change}))
    with pytest.raises(swjoin.UserError, match=complaint):
        swjoin.proof(run.path)


# ---------------------------------------------------------------- files and the runs that they are of


def of_files(folder: Path, how: str = "inner", *, shift: int = 0, **sections: Any) -> swjoin.Run:
    """A run of both tables; the left keys moved by `shift`."""
    folder.mkdir()
    pq.write_table(LEFT.set_column(0, "key", pc.add(LEFT["key"], shift)), folder / "left.parquet")
    pq.write_table(RIGHT, folder / "right.parquet")
    sides = {name: {"path": str(folder / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")}
    return swjoin.run({"join": {"within": "300us", "how": how}, **sides, **sections}, out=folder / "run", threads=1)


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_the_file_of_a_run_carries_its_warnings(checkpoints: bool, tmp_path: Path) -> None:
    more = {"checkpoint": {"epochs": 1}, "cluster": {"distribution_epoch": "1ms"}} if checkpoints else {}
    run = of_files(tmp_path / "a", "left", shift=1000, **more)
    whole = swjoin.proof(run.path)
    assert whole.warnings == tuple(run.report["warnings"])
    assert len(whole.warnings) == 1
    assert whole.count == 500
    for path in (run.path / "results").iterdir():
        assert swjoin.proof(path).warnings == whole.warnings


def test_a_part_of_another_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    one = a_run(tmp_path, monkeypatch)
    other = a_run(tmp_path / "b", monkeypatch)  # of the same configuration, with the same results
    assert one.digest == other.digest
    assert one.report["run_id"] != other.report["run_id"]
    part = sorted((one.path / "results").iterdir())[0]
    foreign = other.path / "results" / "part-00099.parquet"
    shutil.copy(part, foreign)
    for of in (foreign, other.path, other.path / "results"):
        with pytest.raises(swjoin.UserError, match=r"part-00099\.parquet: was written by another run than the one in .*b/run;"):
            swjoin.proof(of)
    foreign.unlink()
    shutil.copy(part, other.path / "results" / part.name)  # in the place of the run's own, with the same rows
    with pytest.raises(swjoin.UserError, match=rf"{part.name}: was written by another run than"):
        swjoin.proof(other.path)


def test_files_of_versions_without_ids_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, monkeypatch)
    whole = swjoin.proof(run.path)
    for path in (run.path / "results").iterdir():
        claim = json.loads(pq.read_metadata(path).metadata[b"swjoin"])
        assert claim.pop("run") == run.report["run_id"]
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({b"swjoin": json.dumps(claim).encode()}), path)
    assert swjoin.proof(run.path) == whole
    with pytest.raises(swjoin.UserError, match=r"part-00000\.parquet: does not say which run wrote it, .* the proof of .*run$"):
        swjoin.proof(run.path / "results" / "part-00000.parquet")
    report = json.loads((run.path / "run.json").read_text())
    del report["run_id"]
    (run.path / "run.json").write_text(json.dumps(report))
    assert swjoin.proof(run.path) == whole


@pytest.mark.parametrize("sink", ["parquet", "csv"])
@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_a_run_without_results_has_a_file(sink: str, tmp_path: Path) -> None:
    run = of_files(tmp_path / "a", shift=1000, sink={"kind": sink})
    assert swjoin.proof(run.path).count == 0
    (path,) = (run.path / "results").iterdir()
    path.unlink()
    for of in (run.path, run.path / "results"):
        with pytest.raises(swjoin.UserError, match=r"results: holds no result files; the run wrote at least one"):
            swjoin.proof(of)
    (run.path / "results").rmdir()
    with pytest.raises(swjoin.UserError, match=r"results: holds no result files"):
        swjoin.proof(run.path)

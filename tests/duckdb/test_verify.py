"""`swjoin verify` by DuckDB: right answers for every kind of run, wrong results found, memory bounded, no files left."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from swjoin.config.loader import load_config
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.duckdb.session import open_database
from swjoin.duckdb.verify import verify
from tests.support.cases import CASES, Case, by_name
from tests.support.drawn import mostly_drawn
from tests.support.in_process import run
from tests.support.limits import PROCESS_S
from tests.support.overloaded import config as overloaded
from tests.support.time_matrix import WRITERS, expected
from tests.support.time_matrix import table as times_table

HOWS: list[How] = list(JOIN_KINDS)
COUNT_WINDOWS = {"lower_us": 0, "upper_us": 0, "exclusive": []}


def right(folder: Path) -> int:
    """The count of a run that is verified."""
    result = verify(folder / "run")
    assert result.equal, result.lines()
    return result.count


# ---------------------------------------------------------------- right answers


@pytest.mark.parametrize("case", mostly_drawn(CASES, every=5), ids=by_name)
def test_every_case(case: Case, tmp_path: Path) -> None:
    """Each with another kind of join; the answer is also that of brute force."""
    how = HOWS[CASES.index(case) % len(HOWS)]
    run(case.write(tmp_path, join={"how": how}), tmp_path)
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert (result.count, result.digest) == case.answer(how)
    assert result.file_count == result.count


@pytest.mark.parametrize("window", [{}, {**COUNT_WINDOWS, "last": [20, 6]}], ids=["time", "last"])
@pytest.mark.parametrize("where", [None, "abs(left.ts - right.ts) > 20", "left_ts * 3 < right_ts * 4 and left.key <> 3"])
@pytest.mark.parametrize("how", mostly_drawn(HOWS))
def test_kinds_windows_and_conditions(how: How, where: str | None, window: dict[str, Any], tmp_path: Path) -> None:
    """With null keys, null times and late rows."""
    (case,) = (c for c in CASES if c.name == "null keys and null times")
    run(case.write(tmp_path, join={"how": how, "where": where, **window}), tmp_path)
    assert right(tmp_path) > 10


def test_generated_streams_prefill_and_count_sink(tmp_path: Path) -> None:
    plain = {
        "join": {"within": "100ms"},
        "workload": {"rate": 3000, "duration": "2s", "domain": 1000, "drift": "300ms"},
        "cluster": {"distribution_epoch": "100ms"},
        "pace": "realtime",
        "measure": {"prefill": "500ms", "rush": True},
        "sink": {"kind": "count"},
        "seed": 9,
    }
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    report = run(tmp_path / "config.yaml", tmp_path)
    assert right(tmp_path) == report["results"]["count"] > 500
    assert report["prefill"]["pairs"] > 100
    assert verify(tmp_path / "run").lines()[-1] == "equal (count and digest; the run kept no pairs)"


def test_results_without_ids_are_counted(tmp_path: Path) -> None:
    run(CASES[0].write(tmp_path, sink={"ids": False}), tmp_path)
    right(tmp_path)
    assert verify(tmp_path / "run").lines()[-1] == "equal (count and digest; the run kept no ids of pairs)"
    rewrite(tmp_path / "run", lambda table: table.slice(1))
    assert not verify(tmp_path / "run").equal


@pytest.mark.parametrize("last", [None, [5000, 700]])
def test_shed_tuples_are_left_out(last: list[int] | None, swjoin: Any, tmp_path: Path) -> None:
    path = overloaded(tmp_path, policy="shed")
    if last is not None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "join": {"last": last}}))
    out = tmp_path / "run"
    assert swjoin("run", path, "--threads", 1, "--set", "workload.duration=1s", "--out", out).code == 0
    assert json.loads((out / "run.json").read_text())["shed"]["left"] > 0
    assert right(tmp_path) > 100
    (out / "late.parquet").unlink()
    with pytest.raises(UserError, match="lists the tuples that the run has left out"):
        verify(out)


def write_sides(
    folder: Path, tables: list[pa.Table], suffix: str, write: Callable[[pa.Table, Path], None], **more: Any
) -> Path:
    """Files and a configuration; more: of both streams."""
    plain: dict[str, Any] = {"join": {"within": "20ms"}}
    for side, table in zip(("left", "right"), tables, strict=True):
        write(table, folder / f"{side}{suffix}")
        plain[side] = {"path": str(folder / f"{side}{suffix}"), "key": "k", "time": "t", **more}
    (folder / "config.yaml").write_text(json.dumps(plain))
    return folder / "config.yaml"


def _packed(opened: Callable[[Path, str], Any]) -> Callable[[pa.Table, Path], None]:
    def write(table: pa.Table, path: Path) -> None:
        with opened(path, "wb") as file:
            csv.write_csv(table, file)

    return write


def _write_csv(table: pa.Table, path: Path) -> None:
    csv.write_csv(table, path)


WRITTEN: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": pq.write_table,
    ".csv": _write_csv,
    ".csv.gz": _packed(gzip.open),
    ".csv.bz2": _packed(bz2.open),
    ".arrow": WRITERS["arrow"],
}
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "text": (pa.string(), lambda i: f'0{i % 5}, "é"\n' if i % 3 else ""),
    "integers": (pa.int32(), lambda i: i % 5),
    "unsigned": (pa.uint64(), lambda i: 2**64 - 1 - i % 5),
    "bytes": (pa.binary(), lambda i: bytes([255, i % 5])),
    "categories": (pa.dictionary(pa.int8(), pa.string()), lambda i: f"k{i % 5}"),
    "booleans": (pa.bool_(), lambda i: i % 2 == 0),
}


@pytest.mark.parametrize("suffix", WRITTEN)
@pytest.mark.parametrize("kind", mostly_drawn(KEYS, every=2))
def test_keys_and_formats(kind: str, suffix: str, tmp_path: Path) -> None:
    if "csv" in suffix and kind in ("bytes", "categories", "unsigned"):
        suffix = suffix.replace(".csv", ".parquet") if suffix == ".csv" else ".arrow"
    type_, key = KEYS[kind]
    tables = [
        pa.table({"x": ["x"] * 200, "k": pa.array([key(i) for i in range(200)], type_), "t": list(range(shift, 200 + shift))})
        for shift in (0, 1)
    ]
    report = run(write_sides(tmp_path, tables, suffix, WRITTEN[suffix], time_unit="ms"), tmp_path)
    assert right(tmp_path) == report["results"]["count"] > 100


def test_csv_files_of_other_programs(tmp_path: Path) -> None:
    """A byte order mark, line ends of DOS, a blank line, quotes around all fields, no line end after the last row."""
    rows = "\r\n".join(f'"{i}","a{i % 3}","one\r\ntwo, three"' for i in range(100))
    texts = f'\ufeff"t","k","x"\r\n{rows}\r\n\r\n"100","a1",""', "x,t,k\n" + "\n".join(f",{i} ,a{i % 3}" for i in range(100))
    plain: dict[str, Any] = {"join": {"within": "3s", "where": "left.x is null or right.x is null"}}
    for side, text in zip(("left", "right"), texts, strict=True):
        (tmp_path / f"{side}.csv").write_bytes(text.encode())
        plain[side] = {"path": str(tmp_path / f"{side}.csv"), "key": "k", "time": "t", "time_unit": "s"}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    report = run(tmp_path / "config.yaml", tmp_path)
    assert report["input"]["left"]["tuples"] == 101
    assert right(tmp_path) > 100


def test_rows_that_were_late_after_an_idle_timeout(tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c.name == "out of order past the bound")
    for name, join in (("time", {}), ("last", {**COUNT_WINDOWS, "last": [20, 6]})):
        (tmp_path / name).mkdir()
        path = case.write(tmp_path / name, time={"late": "side", "idle_timeout_us": 5_000_000}, join={"how": "full", **join})
        assert run(path, tmp_path / name)["late"]["left"] > 0
        assert right(tmp_path / name) > 10


def test_ids_of_a_column_and_folders_of_files(tmp_path: Path) -> None:
    """Columns of the files in another order, names that are patterns, an empty file, ids up to the largest."""
    for side in ("left", "right"):
        (tmp_path / f"{side}[1]*").mkdir()
        for part in range(3):
            at = np.arange(part * 50, part * 50 + (0 if part == 1 else 50))
            ids = np.uint64(2**64 - 2) - at.astype(np.uint64)
            columns = {"n": ids, "rid": at % 3, "ts": at, "Other Name": at}
            table = pa.table(columns).select(list(columns)[:: 1 - 2 * (part % 2)])
            pq.write_table(table, tmp_path / f"{side}[1]*" / f"date=2024-01-01 {part}?.parquet")
    plain: dict[str, Any] = {"join": {"within": "20us", "how": "full", "where": 'left."Other Name" <> right."Other Name"'}}
    for side in ("left", "right"):
        plain[side] = {"path": str(tmp_path / f"{side}[1]*"), "key": "rid", "time": "ts", "time_unit": "us", "id": "n"}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    run(tmp_path / "config.yaml", tmp_path)
    assert right(tmp_path) > 100


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("form", "zone"), [("utc", None), ("local", "Europe/Berlin"), ("date", "UTC"), ("ns", None), ("ms", None)]
)
def test_times(form: str, zone: str | None, suffix: str, tmp_path: Path) -> None:
    """Over a change of the clocks; the left side's are local times."""
    plain: dict[str, Any] = {"join": {"within": "1d"}, "sink": {"kind": "count"}}
    for side, kind, own in (("left", "local", "Europe/Berlin"), ("right", form, zone)):
        path = tmp_path / f"{side}.{suffix}"
        WRITERS[suffix](times_table(kind, side), path)
        unit = {"time_unit": kind} if kind in ("ns", "ms") else {}
        plain[side] = {"path": str(path), "time": "ts", **({} if own is None else {"assume_timezone": own}), **unit}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    run(tmp_path / "config.yaml", tmp_path)
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert (result.count, result.digest) == expected()


# ---------------------------------------------------------------- wrong results


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the only result file."""
    (file,) = (folder / "results").glob("*.*")
    if file.suffix == ".parquet":
        pq.write_table(change(pq.read_table(file)), file)
    else:
        csv.write_csv(change(csv.read_csv(file)), file)


def _changed(table: pa.Table) -> pa.Table:
    """The left ids of two rows are swapped."""
    ids = table["left_id"].to_pylist()
    other = next(i for i, found in enumerate(ids) if found != ids[0])
    ids[0], ids[other] = ids[other], ids[0]
    return table.set_column(
        table.schema.get_field_index("left_id"), "left_id", pa.array(ids, table.schema.field("left_id").type)
    )


DAMAGE: dict[str, tuple[Callable[[pa.Table], pa.Table], int, int]] = {  # missing, surplus rows
    "missing": (lambda table: table.slice(2), 2, 0),
    "doubled": (lambda table: pa.concat_tables([table, table.slice(0, 1)]), 0, 1),
    "changed": (_changed, 2, 2),
    "one for another": (lambda table: pa.concat_tables([table.slice(1), table.slice(1, 1)]), 1, 1),
    "empty": (lambda table: table.slice(0, 0), 20, 0),
}


@pytest.fixture(scope="module", params=["parquet", "csv"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    run(CASES[0].write(folder, sink={"kind": request.param}), folder)
    return folder


@pytest.fixture
def a_run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_results_are_found(damage: str, a_run: Path) -> None:
    assert verify(a_run).equal
    change, missing, surplus = DAMAGE[damage]
    rewrite(a_run, change)
    result = verify(a_run)
    assert not result.equal
    assert result.lines()[-1] == "DIFFERENT"
    assert (len(result.missing), len(result.surplus)) == (missing, surplus)


@pytest.mark.parametrize("how", ["full", "semi", "anti", "left", "right"])
def test_a_missing_row_of_every_kind_is_named(how: How, tmp_path: Path) -> None:
    (case,) = (c for c in CASES if c.name == "out of order past the bound")
    run(case.write(tmp_path, join={"how": how}), tmp_path)
    side = "left_id" if how == "right" else "right_id"
    lost = []

    def lose(table: pa.Table) -> pa.Table:
        alone = pc.is_null(table[side]) if side in table.column_names else pa.array([True] * len(table))
        at = pc.indices_nonzero(alone)[0].as_py()
        row = table.slice(at, 1).to_pylist()[0]
        lost.append(tuple(-1 if row.get(name) is None else row[name] for name in ("left_id", "right_id")))
        return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])

    rewrite(tmp_path / "run", lose)
    result = verify(tmp_path / "run")
    assert (result.missing, result.surplus) == (lost, [])
    assert any("none" in line for line in result.lines())


@pytest.mark.parametrize(("name", "value"), [("digest", "0" * 16), ("count", 3)])
def test_a_false_claim_is_found(name: str, value: Any, a_run: Path, swjoin: Any) -> None:
    report = json.loads((a_run / "run.json").read_text())
    report["results"][name] = value
    (a_run / "run.json").write_text(json.dumps(report))
    done = swjoin("verify", a_run)
    assert done.code == 1
    assert done.out.splitlines()[-1] == "DIFFERENT"
    assert json.loads((a_run / "verified.json").read_text())["equal"] is False


# ---------------------------------------------------------------- the command, memory, refusals


def test_the_command_needs_no_spark(a_run: Path) -> None:
    code = (
        "import sys\nfrom swjoin.cli.main import main\ncode = main(['verify', sys.argv[1]])\n"
        "assert not [name for name in sys.modules if 'spark' in name], 'Spark was imported'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, a_run], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    said = json.loads((a_run / "run.json").read_text())["results"]
    told = f"{said['count']:,} pairs, digest {said['digest']}"
    assert done.stdout.splitlines() == [f"DuckDB: {told}", f"run:    {told}", f"files:  {said['count']:,} pairs", "equal"]
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((a_run / "verified.json").read_text())["engine"] == "DuckDB"


def test_engines_are_chosen(a_run: Path, swjoin: Any) -> None:
    done = swjoin("verify", a_run, "--engine", "duckdb", "--spark-master", "local")
    assert (done.code, done.err[-1]) == (2, "swjoin: --spark-master is for --engine spark; leave one of them out")
    with mock.patch.dict(sys.modules, {"duckdb": None}):
        done = swjoin("verify", a_run, "--engine", "duckdb")
    assert done.code == 2
    assert done.err[-1].startswith("swjoin: duckdb is missing; install swjoin with its verify extra")


def test_what_duckdb_would_read_in_another_way_is_refused(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"k": [1], "t": [1], "T": [2]}
    run(write_sides(tmp_path, [pa.table(rows)] * 2, ".parquet", pq.write_table, time_unit="s"), tmp_path)
    with pytest.raises(UserError, match="DuckDB takes columns t and T for one; rename one of them"):
        verify(tmp_path / "run")
    (tmp_path / "fine").mkdir()
    rows = {"k": pa.array([1], pa.timestamp("ns", "UTC")), "t": [1]}
    run(write_sides(tmp_path / "fine", [pa.table(rows)] * 2, ".arrow", WRITERS["arrow"], time_unit="s"), tmp_path / "fine")
    with pytest.raises(UserError, match=r"column k is timestamp\[ns, tz=UTC\], of which DuckDB keeps microseconds only"):
        verify(tmp_path / "fine" / "run")


def test_damaged_input_is_one_line(tmp_path: Path) -> None:
    run(CASES[0].write(tmp_path), tmp_path)
    whole = (tmp_path / "left.parquet").read_bytes()
    (tmp_path / "left.parquet").write_bytes(whole[:4] + b"\xff" * 600 + whole[604:])
    with pytest.raises(RunFailed, match="DuckDB: ") as found:
        verify(tmp_path / "run")
    assert "\n" not in str(found.value)


def test_memory_is_bounded_and_nothing_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2 million tuples and their buckets do not fit into the limit."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spill"))
    (tmp_path / "spill").mkdir()
    workload = {"rate": 60_000, "duration": "10s", "domain": 1_000_000, "bias": 0.6}
    plain = {"join": {"within": "1s", "how": "full"}, "workload": workload, "sink": {"kind": "count"}}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    run(tmp_path / "config.yaml", tmp_path)
    result = verify(tmp_path / "run", memory_bytes=64 << 20)
    assert result.equal, result.lines()
    assert list((tmp_path / "spill").iterdir()) == []
    with pytest.raises(RunFailed, match=r"DuckDB: .*; make room in .*, or set TMPDIR"):
        verify(tmp_path / "run", memory_bytes=1 << 20)
    assert list((tmp_path / "spill").iterdir()) == []
    with open_database(64 << 20) as (db, folder):
        limit, spilled = db.execute("SELECT current_setting('memory_limit'), current_setting('temp_directory')").fetchone()
    assert (limit, Path(spilled).parent) == ("64.0 MiB", folder)
    assert not folder.exists()


def test_a_run_of_arrival_times(tmp_path: Path) -> None:
    """Arrival times of files are not kept: a run is verified by its own rule."""
    case = dataclasses.replace(CASES[0], settings={"time": {"model": "arrival"}, "pace": "realtime", "measure": {"rush": True}})
    path = case.write(tmp_path, cluster={"distribution_epoch_us": 100_000})
    assert load_config(path).time.model == "arrival"
    run(path, tmp_path)
    assert right(tmp_path) >= 0

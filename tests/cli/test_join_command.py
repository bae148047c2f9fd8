"""`swjoin join` on files of every format, and what a user can get wrong: one line, exit code 2, nothing that looks whole."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from swjoin.cli.join import join_config
from swjoin.cli.main import build_parser
from swjoin.config.run import RunConfig
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

LEFT = pa.table(
    {
        "name": ["a", "b", None, "a", ""],
        "at": pa.array([1_000_000, 2_000_000, 3_000_000, 9_000_000, 9_500_000], pa.timestamp("us", "UTC")),
        "price": [1.5, None, 3.0, 4.0, 5.0],
        "note": ["x", "yy", None, "", "z"],
    }
)
RIGHT = pa.table(
    {
        "name": ["a", "b", "b", "", "a"],
        "at": pa.array([500_000, 2_500_000, 8_000_000, 9_500_000, 10_000_000], pa.timestamp("us", "UTC")),
        "price": pa.array([7, 8, 9, 10, 11], pa.int32()),
        "flag": [True, False, None, True, True],
    }
)
JOIN = ["--on", "name", "--left-time", "at", "--right-time", "at"]


def write(table: pa.Table, path: Path) -> Path:
    if path.name.endswith(".parquet"):
        pq.write_table(table, path)
    elif path.name.endswith(".csv"):
        pacsv.write_csv(table, path)
    elif path.name.endswith(".csv.gz"):
        with gzip.open(path, "wb") as file:
            pacsv.write_csv(table, file)
    elif path.name.endswith(".arrow"):
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write(LEFT, tmp_path / "left.parquet"), write(RIGHT, tmp_path / "right.parquet")


def test_output_columns_and_rows(files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    done = swjoin("join", *files, *JOIN, "--within", "1s", "-o", out, "--report", tmp_path / "r.json")
    assert (done.code, done.err) == (0, [])
    table = pq.read_table(out)
    assert table.schema.names == ["name", "left_at", "left_price", "note", "right_at", "right_price", "flag"]
    assert table.schema.field("right_price").type == pa.int32()
    rows = sorted(
        (r["name"], r["left_price"], r["right_price"], r["note"], r["flag"]) for r in table.to_pylist() if r["left_price"]
    )
    assert rows == [("", 5.0, 10, "z", True), ("a", 1.5, 7, "x", True), ("a", 4.0, 11, "", True)]
    assert next(r for r in table.to_pylist() if r["name"] == "b")["note"] == "yy"
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["results"]["count"] == 4
    assert report["null_key"] == {"left": 1, "right": 0}


@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz", "arrow", "arrows"])
def test_every_format_gives_the_same_pairs(suffix: str, swjoin: Any, tmp_path: Path) -> None:
    """CSV has no way to tell an empty string from a null: rows with the empty name are left out for this comparison."""
    left, right = LEFT.slice(0, 4), RIGHT.filter(pa.compute.not_equal(RIGHT["name"], ""))
    one, two = write(left, tmp_path / f"left.{suffix}"), write(right, tmp_path / f"right.{suffix}")
    done = swjoin("join", one, two, *JOIN, "--within", "1s", "-o", "count", "--report", tmp_path / "r.json")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "r.json").read_text())["results"]["count"] == 3


def test_a_directory_is_read_in_name_order(swjoin: Any, tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    write(LEFT.slice(3), folder / "b.parquet")
    write(LEFT.slice(0, 3), folder / "a.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.parquet").write_text("no parquet")
    right = write(RIGHT, tmp_path / "right.parquet")
    one = swjoin("join", folder, right, *JOIN, "--within", "1s", "-o", "count", "--report", tmp_path / "1.json")
    two = swjoin(
        "join",
        write(LEFT, tmp_path / "whole.parquet"),
        right,
        *JOIN,
        "--within",
        "1s",
        "-o",
        "count",
        "--report",
        tmp_path / "2.json",
    )
    assert (one.code, two.code) == (0, 0), one.err + two.err
    results = [json.loads((tmp_path / f"{i}.json").read_text())["results"] for i in (1, 2)]
    assert results[0] == results[1]


@pytest.mark.parametrize("out", ["o.csv", "o.csv.gz"])
def test_csv_output(out: str, files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    assert swjoin("join", *files, *JOIN, "--within", "1s", "-o", tmp_path / out).code == 0
    opener = gzip.open if out.endswith("gz") else open
    with opener(tmp_path / out, "rt") as file:
        lines = file.read().splitlines()
    assert lines[0].replace('"', "") == "name,left_at,left_price,note,right_at,right_price,flag"
    assert len(lines) == 5


def test_several_key_columns_and_different_names(swjoin: Any, tmp_path: Path) -> None:
    left = pa.table({"a": ["x", "x", "xy"], "n": [1, 2, 1], "t": [0, 0, 0]})
    right = pa.table({"b": ["x", "xy", "x"], "m": pa.array([1, 1, 3], pa.int16()), "t": [1, 1, 1]})
    one, two = write(left, tmp_path / "l.parquet"), write(right, tmp_path / "r.parquet")
    times = ["--left-time", "t", "--right-time", "t", "--time-unit", "ms"]
    done = swjoin(
        "join", one, two, "--left-on", "a", "n", "--right-on", "b", "m", *times, "--within", "1ms", "-o", tmp_path / "o.parquet"
    )
    assert done.code == 0, done.err
    table = pq.read_table(tmp_path / "o.parquet")
    assert table.schema.names == ["a", "n", "left_t", "right_t"]
    assert sorted((r["a"], r["n"]) for r in table.to_pylist()) == [("x", 1), ("xy", 1)]


def test_empty_result_is_a_valid_file(files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("join", *files, *JOIN, "--lower", "1d", "--upper", "2d", "-o", tmp_path / "o.parquet")
    assert done.code == 0
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0


def test_late_rows_to_the_side(swjoin: Any, tmp_path: Path) -> None:
    left = pa.table({"k": [1, 1, 1], "t": [10, 5, None]})
    right = pa.table({"k": [1], "t": [10]})
    one, two = write(left, tmp_path / "l.parquet"), write(right, tmp_path / "r.parquet")
    out = tmp_path / "o.parquet"
    times = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "s"]
    done = swjoin("join", one, two, *times, "--within", "100s", "--late", "side", "-o", out)
    assert done.code == 0, done.err
    late = pq.read_table(tmp_path / "o.parquet.late.parquet").to_pylist()
    assert [(r["row_id"], r["ts"], r["reason"]) for r in late] == [(2, None, "null time"), (1, 5_000_000, "late")]
    assert pq.read_table(out).num_rows == 1


# ---------------------------------------------------------------- bad input


def _bad(files: tuple[Path, Path], tmp: Path) -> dict[str, tuple[list[object], str]]:
    left, right = files
    base: list[object] = ["--within", "1s", "-o", tmp / "out.parquet"]
    truncated, empty, garbage = tmp / "cut.parquet", tmp / "empty.csv", tmp / "garbage.parquet"
    truncated.write_bytes(left.read_bytes()[:-30])
    empty.write_bytes(b"")
    garbage.write_text("not parquet at all")
    ragged, cut_gz = tmp / "ragged.csv", tmp / "cut.csv.gz"
    ragged.write_text("name,at,price\na,2024-01-01 00:00:00,1\nb,2024-01-01 00:00:01\n")
    cut_gz.write_bytes(gzip.compress(b"name,at\n" + b"a,2024-01-01 00:00:00\n" * 5000)[:-40])
    unsorted = write(LEFT.take([1, 0, 3]), tmp / "unsorted.parquet")
    numbers = write(pa.table({"name": [1], "at": LEFT["at"].slice(0, 1)}), tmp / "numbers.parquet")
    floats = write(pa.table({"name": [1.0], "at": LEFT["at"].slice(0, 1)}), tmp / "floats.parquet")
    nested = write(pa.table({"name": ["a"], "at": LEFT["at"].slice(0, 1), "list": [[1]]}), tmp / "nested.parquet")
    integers = write(pa.table({"name": ["a"], "at": [1]}), tmp / "integers.parquet")
    fine = write(pa.table({"name": ["a"], "at": pa.array([1], pa.timestamp("ns", "UTC"))}), tmp / "fine.parquet")
    negative = write(pa.table({"name": ["a"] * 3, "at": LEFT["at"].slice(0, 3), "row": [0, 1, -1]}), tmp / "negative.parquet")
    void = tmp / "void"
    void.mkdir()
    mixed = tmp / "mixed"
    mixed.mkdir()
    write(LEFT, mixed / "a.parquet")
    write(LEFT, mixed / "b.csv")
    differ = tmp / "differ"
    differ.mkdir()
    write(LEFT, differ / "a.parquet")
    write(LEFT.drop_columns(["price"]), differ / "b.parquet")
    return {
        "missing file": ([tmp / "none.parquet", right, *JOIN, *base], "no such file"),
        "unknown extension": ([__file__, right, *JOIN, *base], "unknown extension"),
        "missing column": ([left, right, "--on", "nmae", *JOIN[2:], *base], "did you mean name"),
        "missing time": (
            [left, right, "--on", "name", "--left-time", "when", "--right-time", "at", *base],
            "time column when is missing",
        ),
        "truncated Parquet": ([truncated, right, *JOIN, *base], "cannot be read as Parquet"),
        "not Parquet": ([garbage, right, *JOIN, *base], "cannot be read as Parquet"),
        "empty file": ([empty, right, *JOIN, *base], "cannot be read as CSV"),
        "ragged CSV": ([ragged, right, *JOIN, *base], "cannot be read as CSV"),
        "truncated gz": ([cut_gz, right, *JOIN, *base], "cannot be read as CSV"),
        "directory without data": ([void, right, *JOIN, *base], "holds no data files"),
        "mixed formats": ([mixed, right, *JOIN, *base], "keep one format per directory"),
        "columns differ between files": ([differ, right, *JOIN, *base], "column price is missing"),
        "key types differ": ([numbers, right, *JOIN, *base], "cast one side"),
        "float key": ([floats, floats, *JOIN, *base], "cannot be a join key"),
        "nested column": ([nested, right, *JOIN, *base], "--columns"),
        "integers without a unit": ([integers, right, *JOIN, *base], "--left-time-unit s"),
        "finer than microseconds": ([fine, right, *JOIN, *base], "finer than one microsecond"),
        "string as time": (
            [left, right, "--on", "name", "--left-time", "note", "--right-time", "at", *base],
            "must be a timestamp",
        ),
        "unsorted": ([unsorted, right, *JOIN, *base], "row 1 .* --max-out-of-order 1s"),
        "negative window": ([left, right, *JOIN, "--within", "-1s", "-o", "count"], "cannot be negative"),
        "lower above upper": ([left, right, *JOIN, "--lower", "1s", "--upper", "-1s", "-o", "count"], "is above upper"),
        "no window": ([left, right, *JOIN, "-o", "count"], "the window is missing"),
        "both windows": ([left, right, *JOIN, "--lower", "1s", *base], "not both"),
        "no key": ([left, right, *JOIN[2:], *base], "--on KEY"),
        "a key column twice": (
            [left, right, "--left-on", "name,name", "--right-on", "name,note", *JOIN[2:], *base],
            "join columns: name is named twice on one side",
        ),
        "an id that means a missing side": (
            [negative, right, *JOIN, *base, "--left-id", "row"],
            r"negative.parquet, row 2 .*: id column row is -1; ids are 0 to 2\^64 - 2",
        ),
        "bad duration": ([left, right, *JOIN, "--within", "5 parsecs", "-o", "count"], "write a number and a unit"),
        "bad exclusive": ([left, right, *JOIN, *base, "--exclusive", "middle"], "lower,upper"),
        "too few ranks": ([left, right, *JOIN, *base, "-n", "2"], "at least 3 ranks"),
        "no slave": ([left, right, *JOIN, *base, "--threads", "0"], "at least one slave"),
        "threads on MPI": ([left, right, *JOIN, *base, "--threads", "2", "-n", "3"], "--threads: on MPI"),
        "no partition-groups": ([left, right, *JOIN, *base, "--partitions", "0"], "--partitions must be 1 to"),
        "realtime without an epoch": ([left, right, *JOIN, *base, "--pace", "realtime", "--epoch", "0"], "--epoch: realtime"),
        "negative epoch": ([left, right, *JOIN, *base, "--epoch", "-1s"], "--epoch must not be negative"),
        "a name that is too long": ([left, right, *JOIN, *base[:-1], tmp / f"{'x' * 300}.csv"], "File name too long"),
        "a number of many digits": ([left, right, *JOIN, *base, "--where", f"0 < {'1' * 5000}"], "1 is beyond 64 bits"),
        "unknown output": ([left, right, *JOIN, "--within", "1s", "-o", "out.xlsx"], "end it in .parquet"),
        "output folder missing": ([left, right, *JOIN, "--within", "1s", "-o", tmp / "no" / "o.parquet"], "does not exist"),
        "output is a folder": ([left, right, *JOIN, "--within", "1s", "-o", void / "x.parquet"], ""),
        "report folder missing": ([left, right, *JOIN, *base, "--report", tmp / "no" / "r.json"], "does not exist"),
        "unknown option": ([left, right, *JOIN, *base, "--frobnicate"], "unknown option --frobnicate"),
        "side without a place": ([left, right, *JOIN, "--within", "1s", "--late", "side", "-o", "count"], "give --report"),
    }


def test_bad_input_is_one_line_and_exit_code_2(files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    import re

    cases = _bad(files, tmp_path)
    (tmp_path / "void" / "x.parquet").mkdir()
    cases["output is a folder"] = (cases["output is a folder"][0], "is a directory")
    cases["directory without data"][0][0] = tmp_path / "void" / "x.parquet"
    for name, (argv, message) in cases.items():
        done = swjoin("join", *argv)
        assert done.code == 2, f"{name}: exit code {done.code}, {done.err}"
        assert len(done.err) == 1, f"{name}: {done.err}"
        assert done.err[0].startswith("swjoin: "), name
        assert re.search(message, done.err[0]), f"{name}: {done.err[0]}"
        assert not (tmp_path / "out.parquet").exists(), f"{name}: a result that looks whole"
    assert len(cases) >= 30


def test_a_failing_join_leaves_only_what_says_incomplete(swjoin: Any, tmp_path: Path) -> None:
    n = 200_000
    rows = pa.table({"k": [i % 50 for i in range(n)] + [1], "t": [*range(n), 5]})
    one = write(rows, tmp_path / "l.parquet")
    out = tmp_path / "o.parquet"
    argv = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "us", "--within", "20us", "-o", out]
    done = swjoin("join", one, one, *argv)
    assert done.code == 2
    assert "row 200000" in done.err[0]
    assert not out.exists()
    assert (tmp_path / "o.parquet.incomplete").exists()
    assert not list(tmp_path.glob(".*tmp"))


def test_internal_errors_are_one_line_too(files: tuple[Path, Path], swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("swjoin.runtime.in_process.run_local", broken)
    done = swjoin("join", *files, *JOIN, "--within", "1s", "-o", "count")
    assert done.code == 1
    assert done.err == ["swjoin: internal error: ZeroDivisionError: planted (--debug shows where)"]


def test_the_command_knows_all_kinds_of_joins() -> None:
    from swjoin.cli.main import HOWS
    from swjoin.core.join_semantics import JOIN_KINDS

    assert list(JOIN_KINDS) == HOWS


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from swjoin.cli.main import main\ntry: main(['join', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'matplotlib', 'mpi4py'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_run_sh_refuses_unknown_words() -> None:
    done = subprocess.run([ROOT / "run.sh", "frobnicate"], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "run.sh: unknown word frobnicate; ./run.sh help lists them"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_join_takes_a_pace_and_more_partition_groups_on_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_", "MPI_")):
            monkeypatch.delenv(name)

    def config(*more: str) -> RunConfig:
        return join_config(build_parser().parse_args(["join", "l.csv", "r.csv", *JOIN, "--within", "1s", "-o", "count", *more]))

    assert [config(*m).cluster.partition_count for m in ((), ("-n", "5"), ("-n", "5", "--partitions", "7"))] == [16, 60, 7]
    assert [config(*m).cluster.communication for m in ((), ("--communication", "synchronous"))] == ["overlapped", "synchronous"]
    assert (config().pace, config("--pace", "realtime", "--epoch", "250ms").pace) == ("asap", "realtime")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    assert config().cluster.partition_count == 60


def test_realtime_pace_gives_the_same_pairs_at_the_rows_times(files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    results = []
    for i, more in enumerate(([], ["--pace", "realtime", "--epoch", "100ms"])):
        left, right = (write(table.slice(0, 2), tmp_path / f"{name}.parquet") for name, table in (("l", LEFT), ("r", RIGHT)))
        report = tmp_path / f"{i}.json"
        done = swjoin("join", left, right, *JOIN, "--within", "1s", "-o", "count", "--report", report, *more)
        assert done.code == 0, done.err
        results.append(json.loads(report.read_text()))
    assert results[0]["results"] == results[1]["results"]
    assert results[0]["results"]["count"] == 2
    assert results[1]["wall_s"] > 1.5  # the rows span 2 s


def _run_sh_in(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (checkout / "run.sh").write_text((ROOT / "run.sh").read_text())
    (checkout / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    binaries = checkout / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (checkout / "swjoin").mkdir()
    (checkout / "swjoin" / "kernels.py").write_text("@kernel\n")
    (checkout / ".venv" / ".installed").write_text((ROOT / "requirements.lock").read_text())
    for name in ("ruff", "mypy", "python"):
        (binaries / name).write_text(f'#!/bin/sh\necho "{name} $*"\ncase "{name} $*" in $FAIL) exit 1;; esac\n')
        (binaries / name).chmod(0o755)
    command = ["bash", str(checkout / "run.sh"), *words]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False, env=env)


@pytest.mark.parametrize("step", ["ruff check*", "ruff format*", "mypy *", "python -m pytest*"])
def test_run_sh_test_fails_when_any_step_fails(step: str, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    assert _run_sh_in(tmp_path / "good", "test", FAIL="none").returncode == 0
    done = _run_sh_in(tmp_path / "bad", "test", FAIL=step)
    assert done.returncode == 1
    assert "python -m swjoin kernels --compile" in done.stdout, "kernels that have changed are compiled anew"
    assert done.stdout.splitlines()[-1].startswith(step.rstrip("* ")), "it went on after the failure"

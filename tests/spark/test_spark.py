"""Spark: the same rows whatever the number of partitions, verify that notices, tables that add up."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.config.run import WorkloadConfig
from swjoin.connectors.files.run_files import EventsFile
from swjoin.connectors.files.verification import VerifyResult
from swjoin.connectors.generator import lsbench, nexmark
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import How
from swjoin.duckdb.verify import verify as verify_by_duckdb
from swjoin.expressions.parser import Kind, parse_where, to_sql
from swjoin.runtime.in_process import run_local
from swjoin.spark.generate import generate, generate_lsbench, generate_nexmark
from swjoin.spark.session import open_session
from swjoin.spark.verify import verify as verify_by_spark
from swjoin.sweeps.aggregate import aggregate
from tests.conftest import SharedSpark
from tests.support.cases import CASES, Case, by_name
from tests.support.float_predicates import IEEE, answers, float_predicates, ieee_tables, sql_name
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.time_matrix import WRITERS, expected
from tests.support.time_matrix import table as times_table
from tests.sweeps.test_sweep_tables import check, synthetic_sweep

pytestmark = [pytest.mark.spark, pytest.mark.timeout(LONG_S)]
WORKLOAD = WorkloadConfig(3_000, 2_000_000, 0.7, 5_000, 12)


def rows(folder: Path) -> list[pa.Table]:
    return [pq.read_table(sorted((folder / side).glob("*.parquet"))) for side in ("left", "right")]


def run(config: Path, folder: Path, slaves: int = 2) -> dict[str, Any]:
    return run_local(Job(load_config(config), folder / "results", True, folder, None, "test"), False, slaves)


def verify(folder: Path) -> VerifyResult:
    """Spark's answer, which is DuckDB's."""
    result, other = verify_by_spark(folder, None), verify_by_duckdb(folder)
    assert dataclasses.replace(other, engine=result.engine) == result
    return result


@pytest.mark.parametrize(
    ("partitions", "drift_us"), [(3, 300_000), *(pytest.param(n, 0, marks=pytest.mark.long) for n in (1, 3, 8))]
)
def test_generate_writes_the_same_rows(partitions: int, drift_us: int, spark: Any, tmp_path: Path) -> None:
    workload = dataclasses.replace(WORKLOAD, drift_us=drift_us)
    counts = generate(workload, 4, tmp_path / "out", None, partitions)
    tables = rows(tmp_path / "out")
    from swjoin.connectors.generator.bmodel import payload_bytes, slot_count, slot_tuples

    for side, table in enumerate(tables):
        drawn = [slot_tuples(workload, 4, side, s) for s in range(slot_count(workload))]
        assert np.array_equal(table["ts"].to_numpy(), np.concatenate([d[0] for d in drawn]))
        assert np.array_equal(table["key"].to_numpy(), np.concatenate([d[1] for d in drawn]))
        payload = payload_bytes(np.arange(counts[side], dtype=np.uint64), 4, side, 12)
        assert b"".join(table["payload"].to_pylist()) == payload.tobytes()
        assert len(list((tmp_path / "out" / ("left", "right")[side]).glob("*.parquet"))) == partitions
    assert json.loads((tmp_path / "out" / "workload.json").read_text())["tuples"] == {"left": counts[0], "right": counts[1]}
    with pytest.raises(UserError, match="is not empty"):
        generate(workload, 4, tmp_path / "out", None)


@pytest.mark.drawn
@pytest.mark.parametrize("partitions", [1, 3])
def test_generate_nexmark_writes_the_rows_of_this_process(partitions: int, spark: Any, tmp_path: Path) -> None:
    counts = generate_nexmark(7_000, 4, tmp_path / "out", None, partitions)
    assert counts == {"person": 140, "auction": 420, "bid": 6_440, "side_input": 10_000}
    for name, table in (nexmark.tables(0, 7_000, 4) | {"side_input": nexmark.side_input()}).items():
        files = sorted((tmp_path / "out" / name).glob("*.parquet"))
        assert len(files) == (1 if name == "side_input" else partitions)
        written = pa.concat_tables(map(pq.read_table, files)).combine_chunks()
        assert written.schema == table.schema
        assert written == table.combine_chunks()
    assert json.loads((tmp_path / "out" / "workload.json").read_text())["tuples"] == counts
    with pytest.raises(UserError, match="is not empty"):
        generate_nexmark(7_000, 4, tmp_path / "out", None)


def test_generate_lsbench_writes_the_rows_of_this_process(spark: Any, tmp_path: Path) -> None:
    counts = generate_lsbench((4_000, 100), 4, tmp_path / "out", None, 3)
    for name in (*lsbench.STREAMS, lsbench.GRAPH):
        table = lsbench.made(name, 0, 100 if name == lsbench.GRAPH else 4_000, 100, 4)
        files = sorted((tmp_path / "out" / name).glob("*.parquet"))
        assert len(files) == 3
        written = pa.concat_tables(map(pq.read_table, files))
        assert (counts[name], written.schema) == (table.num_rows, table.schema)
        order = [(column, "ascending") for column in table.column_names]
        assert written.sort_by(order) == table.sort_by(order)


@pytest.fixture(scope="module")
def finished(shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.yaml, its generated files, and the run of it."""
    shared_spark.session()
    folder = tmp_path_factory.mktemp("finished")
    generate(WORKLOAD, 1, folder / "streams", None, 2)
    config = {
        "join": {"lower": "-200ms", "upper": "300ms"},
        "left": {"path": str(folder / "streams" / "left"), "time_unit": "us"},
        "right": {"path": str(folder / "streams" / "right"), "time_unit": "us"},
        "cluster": {"distribution_epoch": "100ms"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    report = run(folder / "config.yaml", folder / "run")
    assert report["results"]["count"] > 2000
    return folder


@pytest.fixture
def a_run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(finished / "run", tmp_path / "run"))


def test_verify_agrees_and_notices_every_kind_of_damage(a_run: Path, swjoin: Any) -> None:
    claimed = json.loads((a_run / "run.json").read_text())["results"]
    done = swjoin("verify", a_run, "--engine", "spark")
    assert done.code == 0
    told = f"{claimed['count']:,} pairs, digest {claimed['digest']}"
    assert done.out.splitlines()[-4:] == [f"Spark: {told}", f"run:   {told}", f"files: {claimed['count']:,} pairs", "equal"]
    (file,) = (a_run / "results").glob("*.parquet")
    table = pq.read_table(file)
    lost = (table["left_id"][3].as_py(), table["right_id"][3].as_py())
    damaged = pa.concat_tables([table.slice(0, 3), table.slice(4), table.slice(0, 1)])
    pq.write_table(damaged, file)
    twice = (table["left_id"][0].as_py(), table["right_id"][0].as_py())
    done = swjoin("verify", a_run, "--engine", "spark")
    assert done.code == 1
    shown = [line for line in done.out.splitlines() if line.startswith(("missing", "surplus"))]
    assert shown == [f"{what}: left {left}, right {right}" for what, (left, right) in (("missing", lost), ("surplus", twice))]


@pytest.mark.long
def test_verify_agrees_with_a_run_that_moved_on_real_ranks(finished: Path, tmp_path: Path) -> None:
    """Forced moves in every reorganization epoch on 6 MPI ranks, digest equal to Spark's."""
    config = json.loads((finished / "config.yaml").read_text())
    config["reorganization"] = {"policy": "random", "epoch": "100ms", "random_moves": 5, "declustering": "adaptive"}
    (tmp_path / "moving.yaml").write_text(json.dumps(config))
    line = [sys.executable, "-m", "swjoin", "run", str(tmp_path / "moving.yaml"), "-n", "6", "--out", str(tmp_path / "moved")]
    subprocess.run(line, check=True, capture_output=True, timeout=PROCESS_S)
    assert json.loads((tmp_path / "moved" / "run.json").read_text())["moves"] > 10
    assert verify(tmp_path / "moved").equal


@pytest.mark.drawn
def test_verify_leaves_out_what_was_shed(swjoin: Any, tmp_path: Path) -> None:
    from tests.support.overloaded import config

    out = tmp_path / "shed"
    assert (
        swjoin("run", config(tmp_path, policy="shed"), "--threads", 1, "--set", "workload.duration=1s", "--out", out).code == 0
    )
    assert json.loads((out / "run.json").read_text())["shed"]["left"] > 0
    assert verify(out).equal
    (out / "late.parquet").unlink()
    done = swjoin("verify", out, "--engine", "spark")
    assert done.code == 2
    assert "lists the tuples that the run has left out" in done.err[-1]


@pytest.mark.drawn
def test_verify_notices_a_false_claim(a_run: Path) -> None:
    report = json.loads((a_run / "run.json").read_text())
    report["results"]["digest"] = "0" * 16
    (a_run / "run.json").write_text(json.dumps(report))
    assert not verify(a_run).equal


def test_verify_refuses_the_digest_of_an_older_version(a_run: Path) -> None:
    report = json.loads((a_run / "run.json").read_text())
    del report["format"]
    (a_run / "run.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match=r"run\.json: format 1, whose digest is computed in another way .* format 2"):
        verify(a_run)


_NAMES = (
    *("null keys and null times", "out of order past the bound", "negative keys and times", "exclusive"),
    "in no order, with null keys and null times",
)
CHOSEN = [case for case in CASES if case.name in _NAMES]


@pytest.mark.parametrize("case", [CHOSEN[0], *(pytest.param(case, marks=pytest.mark.long) for case in CHOSEN[1:])], ids=by_name)
def test_verify_reads_the_input_its_own_way(case: Case, spark: Any, tmp_path: Path) -> None:
    run(case.write(tmp_path), tmp_path / "run")
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert (result.count, result.digest) == case.answer()


@pytest.mark.drawn
@pytest.mark.parametrize(
    "how", ["full", *(pytest.param(how, marks=pytest.mark.long) for how in ("semi", "left", "right", "anti"))]
)
def test_verify_knows_all_kinds(how: How, spark: Any, tmp_path: Path) -> None:
    """With null keys and late rows: those leave out what matches nothing only if it is late and has a key."""
    case = CHOSEN[["full", "semi", "anti", "left", "right"].index(how) % len(CHOSEN)]
    run(case.write(tmp_path, join={"how": how}), tmp_path / "run")
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert (result.count, result.digest) == case.answer(how)
    (file,) = (tmp_path / "run" / "results").glob("*.parquet")
    table = pq.read_table(file)
    alone = pc.is_null(table["right_id"]) if "right_id" in table.column_names else pa.array([True] * len(table))
    at = pc.indices_nonzero(alone if how != "right" else pc.is_null(table["left_id"]))[0].as_py()
    pq.write_table(pa.concat_tables([table.slice(0, at), table.slice(at + 1)]), file)
    result = verify(tmp_path / "run")
    assert not result.equal
    assert "none" in "\n".join(result.lines())
    assert (len(result.missing), len(result.surplus)) == (1, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("full", [20, 6]),
        ("inner", [1, 1]),
        ("semi", [300, 2]),
    ],
)
def test_verify_knows_count_windows(how: How, last: list[int], spark: Any, tmp_path: Path) -> None:
    """With null keys, late rows and equal times, which take no place or are in an order of their own."""
    case = CHOSEN[last[1] % 2]
    run(case.write(tmp_path, join={"how": how, "last": last, "lower_us": 0, "upper_us": 0, "exclusive": []}), tmp_path / "run")
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert result.count > 10


@pytest.mark.long
def test_verify_of_count_windows_leaves_places_to_what_was_shed(swjoin: Any, tmp_path: Path) -> None:
    from tests.support.overloaded import config

    path = config(tmp_path, policy="shed")
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "join": {"last": [5000, 700]}}))
    assert swjoin("run", path, "--threads", 1, "--out", tmp_path / "run").code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["shed"]["left"] > 100
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert result.count > 100


@pytest.mark.parametrize("drift", [pytest.param("0s", marks=pytest.mark.long), "300ms"])
def test_verify_of_generator_runs_and_count_sinks(drift: str, spark: Any, tmp_path: Path) -> None:
    config = {
        "join": {"within": "100ms"},
        "workload": {"rate": 3000, "duration": "2s", "domain": 1000, "drift": drift},
        "sink": {"kind": "count"},
        "seed": 9,
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    report = run(tmp_path / "config.yaml", tmp_path / "run")
    result = verify(tmp_path / "run")
    assert result.equal
    assert result.count == report["results"]["count"] > 500
    assert "the run kept no pairs" in result.lines()[-1]


@pytest.mark.drawn
def test_verify_of_strings_in_csv(spark: Any, tmp_path: Path) -> None:
    for name, shift in (("left", 0), ("right", 1)):
        lines = [f"k{i % 5},{'z' if i % 3 else ''},{i + shift}" for i in range(200)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,t", *lines]) + "\n")
    side = {"key": ["a", "b"], "time": "t", "time_unit": "ms"}
    config = {
        "join": {"within": "20ms"},
        "left": {"path": str(tmp_path / "left.csv"), **side},
        "right": {"path": str(tmp_path / "right.csv"), **side},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    report = run(tmp_path / "config.yaml", tmp_path / "run")
    assert report["null_key"]["left"] == 67
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert result.count > 100


@pytest.mark.drawn
def test_verify_of_line_breaks_and_quotes_in_csv(spark: Any, tmp_path: Path) -> None:
    """Of inputs and results; files that the join does not read are not read."""
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "b.csv.xz").write_text("not read")
    for name in ("left/a", "right"):
        lines = [f'{i},{i % 5},"a ""quoted"" word\n{i},7,second, line"' for i in range(200)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t,k,comment", *lines]) + "\n")
    side = {"key": "k", "time": "t", "time_unit": "ms"}
    config = {
        "join": {"within": "20ms"},
        "left": {"path": str(tmp_path / "left"), **side},
        "right": {"path": str(tmp_path / "right.csv"), **side},
        "sink": {"kind": "csv"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert run(tmp_path / "config.yaml", tmp_path / "run")["input"]["left"]["tuples"] == 200
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()
    assert result.count > 100


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        (pa.float64(), "csv"),
        *(pytest.param(*odd, marks=pytest.mark.long) for odd in ((pa.float64(), "parquet"), (pa.float32(), "arrow"))),
    ],
)
def test_verify_of_conditions_over_nan(kind: pa.DataType, suffix: str, spark: Any, tmp_path: Path) -> None:
    """Spark takes NaN for equal to itself and for the greatest number, and a CSV column with `nan` for text."""
    plain: dict[str, Any] = {"join": {"within": "1us"}, "sink": {"kind": "count"}}
    for side, table in zip(("left", "right"), ieee_tables(kind), strict=True):
        (csv.write_csv if suffix == "csv" else WRITERS[suffix])(table, tmp_path / f"{side}.{suffix}")
        plain[side] = {"path": str(tmp_path / f"{side}.{suffix}"), "key": "k", "time": "t", "time_unit": "us"}
    for number, where in enumerate(["left_x >= right_y", "left_x <> right_y"]):
        plain["join"]["where"] = where
        (tmp_path / "config.yaml").write_text(json.dumps(plain))
        report = run(tmp_path / "config.yaml", tmp_path / str(number))
        result = verify(tmp_path / str(number))
        assert result.equal, (where, result.lines())
        assert report["results"]["count"] == IEEE[where]


@pytest.mark.drawn
@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_conditions_in_sparks_sql_mean_what_they_mean_here(spark: Any) -> None:
    """Random conditions over floats, all in one Spark job; and literals and integers that Spark reads otherwise."""
    from pyspark.sql import functions as f

    left, right, texts = float_predicates(3, 60)
    most = 2**63 - 1
    texts += [
        "left_word = 'z''z'",
        "left_word != 'z\\n'",
        "left_tiny * 100 > 200",  # beyond 8 bits
        "left_tiny + 2147483647 > 2147483647",
        f"left_tiny + {most} is null",
        f"-{most} - left_tiny is null",
        f"left_tiny * {most // 2} is null",  # a product from 9.2e18 on is null, whether it is below 2^63 or not
        f"left_tiny * {most // 3} is null",
        f"left_tiny * {most // 3} * right_tiny is null",
        f"abs(left_tiny - {most}) is null",
        "left_half = 0.25",
        "left_half * 1e300 > 0",
    ]
    frames = []
    for side, table in (("l", left), ("r", right)):
        small = table.schema.get_field_index("small")  # uint16, which Spark has not
        frame = spark.createDataFrame(table.set_column(small, "small", table["small"].cast(pa.int32())))
        frames.append(frame.select(*(f.col(name).alias(f"{side}_{name}") for name in frame.columns)))
    pairs = frames[0].join(frames[1], f.col("l_key") == f.col("r_key"))

    def column(name: str) -> tuple[str, Kind]:
        expression, kind = sql_name(name)
        return expression.replace(".", "_").replace("VARCHAR", "STRING"), kind

    counts = [f.count_if(f.expr(to_sql(parse_where(text), column, "spark"))).alias(f"n{i}") for i, text in enumerate(texts)]
    (row,) = pairs.agg(*counts).collect()
    for text, got, wanted in zip(texts, row, answers(left, right, texts), strict=True):
        assert got == wanted, text


@pytest.mark.drawn
@pytest.mark.parametrize("suffix", ["csv", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("parquet", "arrow"))])
def test_verify_of_local_times(suffix: str, spark: Any, tmp_path: Path) -> None:
    """Over a change of the clocks; the right side's are instants, local times, or dates."""
    for form, zone in (("utc", None), ("local", "Europe/Berlin"), ("date", "UTC")):
        plain: dict[str, Any] = {"join": {"within": "1d"}, "sink": {"kind": "count"}}
        for side, kind, own in (("left", "local", "Europe/Berlin"), ("right", form, zone)):
            path = tmp_path / f"{form}-{side}.{suffix}"
            whole = times_table(kind, side)
            if kind == "local":  # Spark has no nanoseconds
                whole = whole.set_column(1, "ts", whole.column("ts").cast(pa.timestamp("us")))
            WRITERS[suffix](whole, path)
            plain[side] = {"path": str(path), "time": "ts", **({} if own is None else {"assume_timezone": own})}
        (tmp_path / "config.yaml").write_text(json.dumps(plain))
        run(tmp_path / "config.yaml", tmp_path / form)
        result = verify(tmp_path / form)
        assert result.equal, result.lines()
        assert (result.count, result.digest) == expected()


def aggregated(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables of a run or a sweep, by name: those of Spark, which are DuckDB's but for the last digits of floats."""
    found: list[dict[str, pa.Table]] = []
    for engine in ("duckdb", "spark"):
        paths = [path for path in aggregate([folder], engine) if path.suffix == ".parquet"]
        found.append({path.stem: pq.read_table(path) for path in paths})
        assert all(
            path.with_suffix(".csv").read_text().startswith(",".join(found[-1][path.stem].column_names)) for path in paths
        )
    assert found[0].keys() == found[1].keys()
    for mine, theirs in zip(found[0].values(), found[1].values(), strict=True):
        assert mine.schema.equals(theirs.schema)
        for one, two in zip(mine.to_pylist(), theirs.to_pylist(), strict=True):
            assert one == {name: pytest.approx(v, 1e-9, 1e-9) if isinstance(v, float) else v for name, v in two.items()}
    return {name: table.to_pylist() for name, table in found[1].items()}


@pytest.mark.drawn
def test_the_tables_of_a_sweep_are_those_of_duckdb(spark: Any, tmp_path: Path) -> None:
    made = synthetic_sweep(tmp_path)
    tables = aggregated(made.directory)
    check(made)
    assert set(tables) == {"table", "runs"}
    assert len(tables["runs"]) == 12


def test_aggregate_adds_up(a_run: Path, swjoin: Any) -> None:
    aggregated(a_run)
    done = swjoin("aggregate", a_run, "--engine", "spark")
    assert done.code == 0, done.err
    report = json.loads((a_run / "run.json").read_text())
    epochs = pq.read_table(a_run / "tables" / "epochs.parquet")
    slaves = pq.read_table(a_run / "tables" / "slaves.parquet")
    assert epochs.num_rows == report["epochs"]
    assert slaves.num_rows == 2
    for table in (epochs, slaves):
        assert table["pairs"].to_numpy().sum() == report["results"]["count"]
        assert table["left_tuples"].to_numpy().sum() == report["joined"]["left"]
    spread = [epochs[f"window_tuples_{s}"].to_numpy() for s in ("min", "mean", "max")]
    assert (spread[0] <= spread[1]).all()
    assert (spread[1] <= spread[2]).all()
    assert (a_run / "tables" / "epochs.csv").read_text().startswith("epoch,")
    assert not (a_run / "tables" / "moves.csv").exists()


def test_aggregate_has_a_row_per_move(a_run: Path) -> None:
    """One move from beginning to end, and one that the run's failure interrupted; without moves there is no table."""
    events = EventsFile(a_run)
    for number, group in ((0, 5), (1, 2)):
        events.add(RunEvent(1_000_000, 4, "decided", 0, 1, group, state_bytes=7, amount=number, text="why"))
        events.add(RunEvent(1_250_000, 5, "held", 0, 1, group, amount=number))
    events.add(RunEvent(1_300_000, 5, "installed", 1, 0, 5, 3000, 90_000, 40_000, 0.0))
    events.add(RunEvent(1_310_000, 5, "left", 0, 1, 5, 3000, 90_000, 30_000, 0.0))
    events.add(RunEvent(1_500_000, 6, "released", 0, 1, 5, 67, 90_000, 250_000, 0.0))
    events.add(RunEvent(1_500_000, 6, "occupancy", 0, amount=1.0, text="neutral"))
    events.close()
    rows = aggregated(a_run)["moves"]
    whole = {"number": 0, "group": 5, "supplier": 0, "consumer": 1, "decided_s": 1.0, "held_s": 1.25, "released_s": 1.5}
    assert rows[0] == {**whole, "tuples": 3000, "state_bytes": 90_000, "MB_per_s": 3.0, "hold_back_s": 0.25}
    began = {"number": 1, "group": 2, "supplier": 0, "consumer": 1, "decided_s": 1.0, "held_s": 1.25}
    assert rows[1] == {**dict.fromkeys(rows[0]), **began}
    assert (a_run / "tables" / "moves.csv").read_text().startswith(",".join(rows[0]))
    assert len(rows) == 2


def test_directories_that_are_no_runs(swjoin: Any, tmp_path: Path) -> None:
    for word in ("verify", "aggregate", "plot", "events"):
        done = swjoin(word, tmp_path)
        assert done.code == 2, word
        assert len([line for line in done.err if line.startswith("swjoin: ")]) == 1


@pytest.mark.drawn
def test_damaged_results_and_metrics_are_one_line(a_run: Path, swjoin: Any) -> None:
    """What the checks before Spark cannot see, and what they can."""
    (file,) = (a_run / "results").glob("*.parquet")
    whole = file.read_bytes()
    metrics = (a_run / "metrics" / "slaves.parquet").read_bytes()
    for data, code in (
        (b"\xff".join([whole[:2000], whole[4000:]]), 1),
        (whole[:4] + b"\xff" * 3000 + whole[3004:], 1),
        (b"", 2),
    ):
        file.write_bytes(data)
        done = swjoin("verify", a_run, "--engine", "spark")
        assert done.code == code, done.err
        (line,) = [line for line in done.err if line.startswith("swjoin: ")]
        assert "internal error" not in line
    for data in (metrics[:-100], b"", b"PAR1"):
        (a_run / "metrics" / "slaves.parquet").write_bytes(data)
        done = swjoin("aggregate", a_run, "--engine", "spark")
        assert done.code == 2
        assert "slaves.parquet: cannot be read" in done.err[-1]
    assert not (a_run / "tables").exists()
    file.unlink()
    done = swjoin("verify", a_run, "--engine", "spark")
    assert done.code == 1
    assert "holds no result files" in done.err[-1]


@pytest.mark.drawn
def test_verify_reads_hours_without_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "hours").mkdir()
    header = "user,at\n"
    (tmp_path / "hours" / "a.csv").write_text(header)
    (tmp_path / "hours" / "b.csv").write_text(f"{header}x,1\ny,2\n")
    (tmp_path / "hours" / "c.csv").write_text(header)
    (tmp_path / "none.csv").write_text(header)
    for name, other in (("some", "hours"), ("none", "none.csv")):
        sides = [{"path": str(tmp_path / p), "key": "user", "time": "at", "time_unit": "s"} for p in ("hours", other)]
        plain = {"join": {"within": "10s", "how": "left"}, "left": sides[0], "right": sides[1]}
        (tmp_path / "config.yaml").write_text(json.dumps(plain))
        report = run(tmp_path / "config.yaml", tmp_path / name)
        assert report["results"]["count"] == 2
        assert verify(tmp_path / name).equal


# ---------------------------------------------------------------- interruptions


class SweepInterruptedError(BaseException):
    """As pytest's own when a test takes too long."""


def interrupted(session: Any) -> SweepInterruptedError:
    """A call that takes 3 s is interrupted after half a second; the exception holds what was at work, as a report does."""

    def interrupt(*_: Any) -> None:
        raise SweepInterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with open_session("local[2]", "tests"):
            timer.start()
            session._jvm.java.lang.Thread.sleep(3000)
    except SweepInterruptedError as stop:
        return stop
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError("it was not interrupted")


def test_a_session_can_be_used_after_an_interruption(spark: Any) -> None:
    """Without a new connection each call would be given the answer of the one before."""
    held = interrupted(spark)
    assert [spark.range(n).count() for n in (3, 5, 7)] == [3, 5, 7]
    del held


@pytest.mark.drawn
def test_a_session_that_no_longer_answers_is_replaced(shared_spark: SharedSpark) -> None:
    old = shared_spark.session()
    old.sparkContext._gateway.proc.kill()
    shared_spark.in_doubt = True
    new = shared_spark.session()
    assert new is not old
    assert new.range(4).count() == 4
    shared_spark.in_doubt = True
    assert shared_spark.session() is new

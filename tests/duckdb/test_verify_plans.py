"""`swjoin verify` of runs of plans: right answers for all shapes and kinds of joins, wrong results found, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from swjoin.config.connectors import StreamConfig
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.time_windows import TimeWindows
from swjoin.duckdb.verify import verify
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.logical import IntervalJoin, Node, OutputTime, Result, Union
from swjoin.plan.map_batches import MapBatches
from swjoin.runtime.in_process import run_local
from tests.runtime.test_plans_on_files import CASES
from tests.support.plan_runs import plan_job, write_streams

K = ("k",)
Inputs = dict[str, StreamConfig]
WITH_IDS = {"sink": {"kind": "parquet"}}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Inputs]:
    """With string keys, and with integers."""
    folders = {text: tmp_path_factory.mktemp("streams") for text in (True, False)}
    return {text: write_streams(path, "abc", 400, 1, keys=6, text=text, null_share=0.05) for text, path in folders.items()}


def run(nodes: tuple[Node, ...], inputs: Inputs, folder: Path, sink: str = "parquet", /, **sections: Any) -> dict[str, Any]:
    """Run a plan on two threads."""
    read = {name: config for name, config in inputs.items() if any(name in node.inputs for node in nodes)}
    small = {"cluster": {"epoch_tuples": 300, "partition_count": 7}}
    return run_local(plan_job(nodes, read, folder, sink, **(small | sections)), False, 2)


def right(folder: Path, last_line: str = "equal") -> int:
    """The count of a run that is verified."""
    result = verify(folder)
    assert result.equal, result.lines()
    assert result.lines()[-1] == last_line
    return result.count


# ---------------------------------------------------------------- right answers


@pytest.mark.parametrize("name", CASES)
def test_every_shape(name: str, streams: dict[bool, Inputs], tmp_path: Path) -> None:
    report = run(CASES[name].nodes, streams[CASES[name].text], tmp_path)
    assert right(tmp_path, "equal (count and digest; the run kept no ids of pairs)") == report["results"]["count"] > 100


def chain(how: How, time: OutputTime, last: How) -> tuple[Node, ...]:
    """A join of this kind and time, a union of its rows with themselves, another join."""
    query = QueryConfig(
        -9_000, 12_000, exclusive=("lower", "upper"), how=how, where="left_v + 400 < right_v or left_x < right_x"
    )
    return (
        IntervalJoin("j", "a", "b", K, K, query, time),
        Union("u", ("j", "j")),
        IntervalJoin("i", "c", "u", K, K, QueryConfig(-5_000, 5_000, exclusive=("upper",), how=last)),
        Result("out", "i"),
    )


@pytest.mark.parametrize("how", JOIN_KINDS)
def test_every_kind_and_time(how: How, streams: dict[bool, Inputs], tmp_path: Path) -> None:
    """Of the inner join and of the last one, with null keys."""
    number = list(JOIN_KINDS).index(how)
    time: OutputTime = ("max", "min", "left")[number % 3]
    run(chain(how, time, list(JOIN_KINDS)[-1 - number]), streams[bool(number % 2)], tmp_path, **WITH_IDS)
    assert right(tmp_path) > 100


@pytest.mark.long
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("last", JOIN_KINDS)
@pytest.mark.parametrize("time", ["max", "min", "left"])
@pytest.mark.parametrize("how", JOIN_KINDS)
def test_all_kinds_and_times(
    how: How, time: OutputTime, last: How, text: bool, streams: dict[bool, Inputs], tmp_path: Path
) -> None:
    run(chain(how, time, last), streams[text], tmp_path, **WITH_IDS)
    right(tmp_path)


def test_a_digest_without_rows_and_counts_alone(streams: dict[bool, Inputs], tmp_path: Path) -> None:
    nothing = IntervalJoin("j", "a", "b", K, K, QueryConfig(9_000_000_000, 9_000_000_000)), Result("out", "j")
    run(nothing, streams[False], tmp_path / "none", "count")
    assert right(tmp_path / "none", "equal (count and digest; the run kept no pairs)") == 0


def _disordered(folder: Path, inputs: Inputs) -> Inputs:
    """As CSV files with an id column; rows of `c` without a time, and late by a little and by much."""
    found = {}
    for name, config in inputs.items():
        table = pq.read_table(str(config.path))
        table = table.append_column("n", pa.array([7_000_000 - i for i in range(len(table))]))
        if name == "c":
            times = table["ts"].cast(pa.int64()).to_pylist()
            times[200] -= 2_000
            times[300] = 0
            times[350] = None
            table = table.set_column(3, "ts", pa.array(times, pa.timestamp("us")))
        csv.write_csv(table, folder / f"{name}.csv")
        found[name] = StreamConfig(path=str(folder / f"{name}.csv"), time="ts", key=(), id="n")
    return found


@pytest.mark.parametrize("time", [{"late": "drop"}, {"late": "side", "idle_timeout": "5s"}], ids=str)
def test_late_rows_disorder_and_ids_of_a_column(time: dict[str, Any], streams: dict[bool, Inputs], tmp_path: Path) -> None:
    inputs = _disordered(tmp_path, streams[True])
    report = run(CASES["two joins"].nodes, inputs, tmp_path / "run", time=time | {"max_out_of_order": "3ms"}, **WITH_IDS)
    assert report["late"] == {"a": 0, "b": 0, "c": 2}
    assert right(tmp_path / "run") > 100


# ---------------------------------------------------------------- wrong results


@pytest.fixture(scope="module")
def finished(streams: dict[bool, Inputs], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(CASES["two joins"].nodes, streams[True], folder, **WITH_IDS)
    return folder


@pytest.fixture
def a_run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def change_report(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    report = json.loads((folder / "run.json").read_text())
    change(report)
    (folder / "run.json").write_text(json.dumps(report))


def _node(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node for node in report["plan"]["nodes"] if node["name"] == name)
    return found


TAMPERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "digest": lambda report: report["results"].update(digest="0" * 16),
    "count": lambda report: report["results"].update(count=report["results"]["count"] + 1),
    "bound": lambda report: _node(report, "j")["query"].update(upper_us=39_000),
    "time": lambda report: _node(report, "j").update(output_time="min"),
    "kind": lambda report: _node(report, "i")["query"].update(how="semi"),
    "predicate": lambda report: _node(report, "j")["query"].update(where="left_x < right_x"),
    "input": lambda report: report["config"]["inputs"].reverse(),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_false_claim_is_found(what: str, a_run: Path, swjoin: Any) -> None:
    change_report(a_run, TAMPERED[what])
    done = swjoin("verify", a_run)
    assert (done.code, done.out.splitlines()[-1]) == (1, "DIFFERENT")
    assert json.loads((a_run / "verified.json").read_text())["equal"] is False


def test_damaged_rows_are_found(a_run: Path, swjoin: Any) -> None:
    assert swjoin("verify", a_run).out.splitlines()[-1] == "equal"
    (file,) = (a_run / "results").glob("*.parquet")
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(2), table.slice(5, 1)]), file)
    result = verify(a_run)
    assert (len(result.missing), len(result.surplus)) == (2, 1)


# ---------------------------------------------------------------- refusals


def test_spark_names_the_other_engine(a_run: Path, swjoin: Any) -> None:
    done = swjoin("verify", a_run, "--engine", "spark")
    line = f"swjoin: {a_run}: Spark does not recompute plans with several joins; use --engine duckdb"
    assert (done.code, done.err) == (2, [line])


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no plan": (lambda report: report.pop("plan"), "its run.json has no plan"),
    "a plan of nothing": (lambda report: report.update(plan={}), r"run\.json: plan: expected a mapping with a list of nodes"),
    "no node": (lambda report: report["plan"]["nodes"].pop(0), r"run\.json: j: its left input a is not in the plan"),
    "too few inputs": (lambda report: report["config"]["inputs"].pop(), r"run\.json: plan: is not what it must be"),
    "no input": (
        lambda report: report["config"]["inputs"][0].update(path="gone.csv"),
        "gone.csv: no such file.*reads the run's input",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_report_is_one_line(what: str, a_run: Path) -> None:
    change, line = DAMAGED[what]
    change_report(a_run, change)
    with pytest.raises(UserError, match=line) as found:
        verify(a_run)
    assert "\n" not in str(found.value)


def test_an_input_that_has_changed_is_one_line(streams: dict[bool, Inputs], tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    shutil.copy(str(streams[True]["c"].path), path)
    inputs = streams[True] | {"c": replace(streams[True]["c"], path=str(path))}
    run(CASES["two joins"].nodes, inputs, tmp_path / "run", "count")
    whole = pq.read_table(path)
    pq.write_table(whole.drop_columns(["x"]), path)
    with pytest.raises(UserError, match=r"^c: .*: column x is missing; the input has changed since the run$"):
        verify(tmp_path / "run")
    texts = pa.array(["none"] * len(whole))
    pq.write_table(whole.set_column(3, "ts", texts), path)
    with pytest.raises((RunFailed, UserError)) as found:
        verify(tmp_path / "run")
    assert "\n" not in str(found.value)


def test_functions_in_python_are_called(streams: dict[bool, Inputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]"))
    function = "tests.tools.plan_expressions:merged_values"
    run((MapBatches("m", "a", function, columns), Result("out", "m", True)), streams[False], tmp_path)
    assert verify(tmp_path).equal
    monkeypatch.setattr("tests.tools.plan_expressions.merged_values", lambda batch: batch)
    assert not verify(tmp_path).equal
    monkeypatch.delattr("tests.tools.plan_expressions.merged_values")
    with pytest.raises(UserError, match=f"map_batches {function} is not here: map_batches: {function} cannot be imported"):
        verify(tmp_path)


def test_places_are_recomputed(streams: dict[bool, Inputs], tmp_path: Path) -> None:
    drawn = ("max", "v", None), ("min", "x", None), ("arg_max", "x", "v"), ("arg_min", "v", "x")
    calls = tuple(AggregateCall(f"c{i}", *call, place=2 + i % 2) for i, call in enumerate(drawn))
    node = Aggregate("g", "a", ("k",), TimeWindows(40_000, 20_000), calls)
    run((node, Result("out", "g", True)), streams[False], tmp_path, "parquet", sink={"kind": "parquet", "ids": False})
    assert right(tmp_path) > 50

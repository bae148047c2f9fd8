"""`--gateways`: what the commands say of several gateways, and that a run may have or resume with any number.

Known cases with several gateways are in `runtime`, the status board in `monitor.test_monitoring_of_gateways`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.sections import QueryConfig
from swjoin.connectors.generator.source import GeneratorSource
from swjoin.plan.logical import IntervalJoin, Result
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import plan_job, write_streams
from tests.support.stopped_runs import _run, _stopping

WORKLOAD = {"rate": 2000, "duration": "4s", "domain": 500, "payload": "8B"}  # four splits each
PLAIN: dict[str, Any] = {"join": {"within": "200ms"}, "workload": WORKLOAD, "sink": {"kind": "count"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(json.dumps(PLAIN))
    return tmp_path / "c.yaml"


def _told(swjoin: Any, *words: object) -> dict[str, Any]:
    done = swjoin("explain", *words, "--json")
    assert (done.code, done.err) == (0, [])
    found: dict[str, Any] = json.loads(done.out)
    return {**found, **{title: " ".join(said) for title, said in found["sections"].items()}}


@pytest.mark.drawn
@pytest.mark.parametrize(("ranks", "slaves", "places"), [(3, 1, (2, 2)), (5, 2, (4, 3)), (7, 3, (5, 6))])
def test_explain_and_plan_say_who_plays_the_gateways(
    ranks: int, slaves: int, places: tuple[int, int], path: Path, swjoin: Any
) -> None:
    found = _told(swjoin, path, "-n", ranks, "--gateways", 3)
    assert found["slaves"] == slaves
    assert (
        f"gateway 0 is on rank 0, gateway 1 is on rank {places[0]}, gateway 2 is on rank {places[1]}." in found["who does what"]
    )
    assert "every gateway sends each slave" in found["epochs"]
    assert "3 gateways" in "".join(found["diagram"])
    done = swjoin("plan", path, "-n", ranks, "--gateways", 3, "--json")
    assert (done.code, done.err) == (0, [])
    plan = json.loads(done.out)
    for gateway, rank in zip((1, 2), places, strict=True):
        assert f"gateway {gateway}" in plan["ranks"][str(rank)]["role"]
    assert plan["saturation"]["rate_per_s"] > 0


@pytest.mark.drawn
def test_plan_counts_the_memory_of_gateways(path: Path, swjoin: Any) -> None:
    plan = json.loads(swjoin("plan", path, "-n", 5, "--gateways", 3, "--json").out)
    alone = json.loads(swjoin("plan", path, "-n", 3, "--json").out)["ranks"]["0"]["grows_by_bytes"]
    grown = [found["grows_by_bytes"] for found in plan["ranks"].values()]
    windows = sum(slave["window_bytes"] + slave["buffer_bytes"] + slave["other_bytes"] for slave in plan["slaves"])
    assert sum(grown) == pytest.approx(3 * alone + windows, abs=5)
    assert {f"{rank} {found['role']}" for rank, found in plan["ranks"].items()} <= _labels(swjoin, path, 5)


def _labels(swjoin: Any, path: Path, ranks: int) -> set[str]:
    """The ranks in the table of `plan`."""
    lines = swjoin("plan", path, "-n", ranks, "--gateways", 3).out.splitlines()
    return {line.split("  ")[0] for line in lines if line[:1].isdigit()}


def test_explain_says_how_inputs_are_read(path: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = _told(swjoin, path, "--threads", 1, "--gateways", 2)["what comes in"]
    assert "in their order, as gateways ask: left has 4 splits; right has 4 splits." in said
    assert "made by the gateways" in said
    assert "split" not in _told(swjoin, path, "--threads", 1)["what comes in"]

    whole = property(lambda source: "rows are sorted by time" if source._stream == 0 else None)
    splits = GeneratorSource.splits
    monkeypatch.setattr(GeneratorSource, "why_whole", whole)
    monkeypatch.setattr(GeneratorSource, "splits", lambda source, us: None if source.why_whole else splits(source, us))
    found = _told(swjoin, path, "--threads", 2, "--gateways", 2)
    assert "left is read by one gateway (rows are sorted by time); right has 4 splits." in found["what comes in"]
    assert found["who does what"].startswith(
        "One process: master and gateway 0 in its main thread, a thread for each slave (2), one for each further gateway (1), "
    )


def test_explain_says_why_a_file_is_read_whole(tmp_path: Path, swjoin: Any) -> None:
    table = pa.table({"k": list(range(1000)), "t": list(range(1000))})
    pq.write_table(table, tmp_path / "left.parquet", row_group_size=250)
    csv.write_csv(table, tmp_path / "right.csv")
    sides = {side: {"path": str(tmp_path / name)} for side, name in (("left", "left.parquet"), ("right", "right.csv"))}
    options = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "s", "within": "1s"}
    (tmp_path / "c.yaml").write_text(json.dumps({**sides, **options, "sink": {"kind": "count"}}))
    said = _told(swjoin, tmp_path / "c.yaml", "--threads", 1, "--gateways", 2)["what comes in"]
    assert "left has 4 splits; right is read by one gateway (" in said
    assert "CSV" in said.split("right is read by one gateway (")[1].split(")")[0]
    (tmp_path / "left.parquet").unlink()
    said = _told(swjoin, tmp_path / "c.yaml", "--threads", 1, "--gateways", 2)["what comes in"]
    assert "How 2 gateways share the inputs is not known yet: " in said


def test_more_gateways_than_splits(path: Path, swjoin: Any) -> None:
    """As many as there are splits are used, and every command says so."""
    found = _told(swjoin, path, "-n", 9, "--gateways", 6)
    assert "6 gateways are configured: as no input has more splits, 4 will read." in found["what comes in"]
    assert found["config"]["cluster"]["gateways"] == 6
    assert found["who does what"].count("gateway 3 is on rank") == 1
    assert "gateway 4" not in found["who does what"]
    plan = json.loads(swjoin("plan", path, "-n", 9, "--gateways", 6, "--json").out)
    assert sum("gateway" in rank["role"] for rank in plan["ranks"].values()) == 3
    done = swjoin("run", path, "--threads", 1, "--gateways", 6, "--out", path.parent / "run")
    assert done.code == 0
    assert any("6 gateways: the inputs have 4 splits at most, so as many are used" in line for line in done.err)
    assert len(json.loads((path.parent / "run" / "run.json").read_text())["gateways"]) == 4


def test_numbers_of_gateways_that_no_run_can_have(path: Path, swjoin: Any) -> None:
    for words, text in (
        (("run", path, "--gateways", 0), "cluster: gateways must be 1 to 1024"),
        (("explain", path, "--gateways", 2, "--set", "join={last: 5}"), "cluster: gateways must be 1 for count windows"),
    ):
        done = swjoin(*words)
        assert done.code == 2
        assert text in done.err[-1]
    sides = ("--on", "k", "--left-time", "t", "--right-time", "t", "-o", "count")
    done = swjoin("join", "l.csv", "r.csv", *sides, "--last", 5, "--gateways", 2)
    assert "--gateways must be 1 for count windows: one gateway gives tuples their places" in done.err[-1]


def test_a_run_may_be_resumed_with_any_number(path: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {**WORKLOAD, "duration": "40s"}  # of which rows are left at the second stop, however late it comes
    plain = {**PLAIN, "workload": workload, "checkpoint": {"epochs": 2}, "cluster": {"epoch_tuples": 1000}}
    config, out = config_from_plain(plain), path.parent / "run"
    whole = run_local(Job(config, None, True, path.parent / "whole", None, "test"), False, 1)
    for number, gateways in enumerate((2, 3)):
        _stopping(monkeypatch, 5)
        report = _run(config.with_gateways(gateways), out, 2, resumes=number > 0)
        assert report["resumable"]
        assert len(report["gateways"]) == gateways
    _stopping(monkeypatch, 10**9)
    done = swjoin("run", "--resume", out, "--threads", 2, "--gateways", 1)
    assert done.code == 0, done.err
    report = json.loads((out / "run.json").read_text())
    assert report["results"] == whole["results"]
    assert [part["gateway"] for part in report["gateways"]] == [0]
    assert report["gateways"][0]["tuples"] == {name: stream["tuples"] for name, stream in report["input"].items()}


def test_explain_of_a_plan(tmp_path: Path, swjoin: Any) -> None:
    inputs = write_streams(tmp_path, "ab", 200, 1, keys=5)
    nodes = (IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(-20_000, 30_000)), Result("out", "j"))
    job = plan_job(nodes, inputs, tmp_path, "count")
    (tmp_path / "run.json").write_text(json.dumps({"config": json.loads(job.to_json())["config"], **job.plan_keys}))
    found = _told(swjoin, tmp_path, "-n", 5, "--gateways", 2)
    assert "The master deals out the splits of each input in their order, as gateways ask: a " in found["what comes in"]
    assert _told(swjoin, tmp_path, "-n", 5)["epochs"].count("the gateway ends") == 1

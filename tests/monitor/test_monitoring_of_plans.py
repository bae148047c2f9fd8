"""Monitoring of runs of plans: stages and edges on the board, in /metrics and in `swjoin top`; and that it changes nothing."""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from swjoin.cli.top import frame
from swjoin.cluster.exchange import EPOCHS_AHEAD
from swjoin.config.job import Job
from swjoin.config.sections import QueryConfig
from swjoin.connectors.files.run_folder import read_events
from swjoin.connectors.flight.client import connect
from swjoin.monitor.prometheus import exposition
from swjoin.monitor.role_watchers import ADDRESS_FILE
from swjoin.plan.logical import IntervalJoin, Result, Union
from swjoin.runtime.in_process import run_local
from tests.monitor.test_monitoring import metrics_of
from tests.support.boards import a_plan_board, boards_of_runs, get
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import plan_job, report_of, write_streams
from tests.tools.processes import LaunchedRun

K = ("k",)
NODES = (
    Union("u", ("a", "b")),
    IntervalJoin("first", "u", "c", K, K, QueryConfig(-15_000, 20_000), "min"),
    IntervalJoin("last", "first", "a", K, K, QueryConfig(-10_000, 30_000, how="left"), "max"),
    Result("out", "last"),
)
MOVES = {
    "reorganization": {"policy": "random", "epoch": "200ms", "random_moves": 2, "declustering": "adaptive"},
    "cluster": {"distribution_epoch": "50ms", "partition_count": 8},
}
EDGES = [
    ("a", "first", "left"),
    ("b", "first", "left"),
    ("c", "first", "right"),
    ("first", "last", "left"),
    ("a", "last", "right"),
]


def _job(folder: Path, rows: int, name: str, **sections: Any) -> Job:
    streams = folder / "streams"
    streams.mkdir(exist_ok=True)
    inputs = write_streams(streams, "abc", rows, 5, keys=20, null_share=0.05)
    return plan_job(NODES, inputs, folder / name, "count", **sections)


def _answer(report: dict[str, Any]) -> tuple[int, str]:
    assert report["ledger"] == {"balanced": True, "complaints": []}
    return report["results"]["count"], report["results"]["digest"]


def _text(snapshot: dict[str, Any]) -> str:
    with Path("/dev/null").open("w") as nowhere:
        console = Console(width=150, record=True, file=nowhere)
        console.print(frame(snapshot))
    return console.export_text()


# ---------------------------------------------------------------- the board


def test_stages_sum_up_their_slaves_and_edges_have_rates() -> None:
    found = a_plan_board().snapshot()
    first, last = found["stages"]
    assert (first["joined"], first["produced"]) == ({"left": 900, "right": 600}, 300)
    assert first["joined_per_s"] == {"left": pytest.approx(300), "right": pytest.approx(200)}
    assert (last["produced_per_s"], last["window_bytes"]) == (pytest.approx(100), 1280)
    assert (first["epoch"], last["epoch"]) == (5, 4)
    assert [edge["epochs_ahead"] for edge in found["edges"]] == [None, None, 1, None]
    assert [(e["rows"], e["bytes"], e["rows_per_s"]) for e in found["edges"]] == [(200, 640, pytest.approx(100))] * 4
    assert [edge["between_ranks_bytes"] for edge in found["edges"]] == [None, None, 160, None]
    assert (found["map"]["groups"], found["map"]["owner"]) == (4, [0, 0, 1, 1, 2, 2, 3, 3])
    assert {slave["occupancy_ratio"] for slave in found["slaves"]} == {0.5}, "of the results, as nothing else was reported"
    assert set(found["streams"]) == set(found["sources"]) == {"pairs", "b", "c"}
    json.dumps(found)


def test_metrics_and_lines_of_stages() -> None:
    snapshot = a_plan_board().snapshot()
    found = metrics_of(exposition(snapshot)[0].decode())
    wanted = {
        ("swjoin_tuples_total", "stream=pairs"): 500,
        ("swjoin_slave_active", "slave=3,stage=1"): 1,
        ("swjoin_stage_joined_rows_total", "join=first,port=left,stage=0"): 900,
        ("swjoin_stage_produced_rows_total", "join=last,stage=1"): 300,
        ("swjoin_stage_epoch", "join=last,stage=1"): 4,
        ("swjoin_edge_rows_total", "edge=2,from=first,port=left,to=last"): 200,
        ("swjoin_edge_between_ranks_bytes_total", "edge=2,from=first,port=left,to=last"): 160,
        ("swjoin_edge_epochs_ahead", "edge=2,from=first,port=left,to=last"): 1,
    }
    assert {name: found[name] for name in wanted} == wanted
    text = _text(snapshot)
    assert re.search(r"stage 0 first .* rows in per s: left 300, right 200; out: 100 ", text)
    assert re.search(r"first to last, left, by k +100 +200 +0\.6 KiB +25% +1 +-", text)
    assert "stage 1: slave 2 yields partition-group 1 to slave 3" in text


# ---------------------------------------------------------------- runs


def test_whoever_looks_at_a_plan_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(view: dict[str, Any]) -> None:
        assert view["ledger"]["balanced"], view["ledger"]
        ahead = [edge["epochs_ahead"] for edge in view["edges"] if edge["from"] in "abc"]
        assert all(0 <= epochs <= EPOCHS_AHEAD + 1 for epochs in ahead), "two with credit, and one that waits for it"

    plain = run_local(_job(tmp_path, 3000, "plain", **MOVES), False, 1)
    boards = boards_of_runs(monkeypatch, checked)
    job = _job(tmp_path, 3000, "seen", observe={"board": True, "interval": "10ms"}, **MOVES)
    report = run_local(job, False, 3)
    assert _answer(report) == _answer(plain)
    last = boards[0].snapshot()
    assert (last["run"]["phase"], last["run"]["join"]) == ("ended", "first: u with c; last: first with a")
    assert (last["results"]["pairs"], last["results"]["digest"]) == _answer(report)
    assert [(e["from"], e["to"], e["port"]) for e in last["edges"]] == EDGES
    for edge, counted in zip(last["edges"], report["edges"], strict=True):
        assert (edge["rows"], edge["bytes"]) == (counted["received"]["rows"], counted["bytes"])
        assert edge["epochs_ahead"] == 0
        ways = counted["traffic"]
        crossed = ways["in_host"]["bytes"] + ways["between_hosts"]["bytes"]
        assert edge["between_ranks_bytes"] == (None if edge["from"] in "abc" else crossed)
    for stage, counted in zip(last["stages"], report["stages"], strict=True):
        for name in ("stage", "join", "description", "slaves", "joined", "produced", "moves"):
            assert stage[name] == counted[name], name
        assert stage["active_slaves"] == counted["declustering"][-1]["active_slaves"]
    assert sum(stage["moves"] for stage in report["stages"]) == report["moves"] == last["moves"]["finished"] > 0
    assert report["declustering"] == report["stages"][0]["declustering"]
    assert Counter(slave["stage"] for slave in last["slaves"] for _ in range(slave["groups"])) == {0: 8, 1: 8}
    assert job.run_dir is not None
    events = read_events(job.run_dir)
    released = Counter(event.stage for event in events if event.kind == "released")
    assert dict(released) == {stage["stage"]: stage["moves"] for stage in report["stages"]}
    assert len({event.amount for event in events if event.kind == "released"}) == report["moves"], "numbers of moves are unique"


@pytest.mark.mpi
@pytest.mark.drawn
def test_a_plan_on_ranks_is_seen_while_it_runs(tmp_path: Path, swjoin: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    shown = {"observe": {"port": 0, "interval": "50ms"}, "serve": {"listen": listen}}
    rows = 15_000  # 15 s, for who looks on may be slow
    job = _job(tmp_path, rows, "run", pace="realtime", **shown, **MOVES)
    (tmp_path / "job.json").write_text(job.to_json())
    run = LaunchedRun([str(tmp_path / "job.json"), "4"], tmp_path / "log", module=("tests.support.plan_runs",))
    assert job.run_dir is not None
    place, deadline, seen = job.run_dir / ADDRESS_FILE, time.monotonic() + PROCESS_S, {}
    while not (seen and seen["results"] and all(stage["produced"] and stage["moves"] for stage in seen["stages"])):
        assert run.process.poll() is None, run.said()
        assert time.monotonic() < deadline, seen
        if place.exists() and (address := place.read_text()).endswith("\n"):
            seen = json.loads(get(address.strip(), "status.json"))
            assert seen["ledger"] is None or seen["ledger"]["balanced"]
        time.sleep(0.05)
    over_flight = connect(f"grpc://{listen}").status()
    metrics = metrics_of(get(address.strip(), "metrics").decode())
    top = swjoin("top", job.run_dir, "--once")
    assert run.end(PROCESS_S) == 0, run.said()
    assert (seen["run"]["phase"], seen["run"]["runtime"]) == ("running", "mpi")
    assert [stage["slaves"] for stage in seen["stages"]] == [[0, 1], [2, 3]]
    assert all(edge["rows"] > 0 and 0 <= edge["epochs_ahead"] <= EPOCHS_AHEAD for edge in seen["edges"])
    assert {event["stage"] for event in seen["events"] if event["kind"] == "released"} == {0, 1}
    assert metrics["swjoin_stage_moves_total", "join=last,stage=1"] > 0
    assert [stage["join"] for stage in over_flight["stages"]] == ["first", "last"]
    assert (top.code, top.err) == (0, [])
    assert "stage 1 last" in top.out
    assert "first to last, left, by k" in top.out
    assert _answer(report_of(job)) == _answer(run_local(_job(tmp_path, rows, "plain"), False, 1))

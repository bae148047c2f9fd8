"""Monitoring of runs with several gateways: sums over all of them, and each; in one process and on real ranks."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from swjoin.cli.top import frame
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.sections import QueryConfig
from swjoin.connectors.flight.client import connect
from swjoin.monitor.prometheus import exposition
from swjoin.plan.logical import IntervalJoin, Result
from swjoin.runtime.clock import RunClock
from swjoin.runtime.hosts import MasterHost
from swjoin.runtime.in_process import run_local
from tests.monitor.test_monitoring import OWNER, metrics_of
from tests.support.boards import Clock, Run, a_board, boards_of_runs, gateways_view, get, plain
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import plan_job, write_streams
from tests.support.stopped_runs import _run, _stopping

WORKLOAD = {"rate": 3000, "duration": "6s", "domain": 900, "payload": "8B"}
BOARD = {"observe": {"board": True, "interval": "10ms"}}


def _sums_up(view: dict[str, Any], count: int) -> None:
    """The streams of a view are the sums of its gateways."""
    assert view["ledger"]["balanced"], view["ledger"]
    assert [gateway["gateway"] for gateway in view["gateways"]] == list(range(count))
    shares = [gateway["share_ratio"] for gateway in view["gateways"]]
    assert None in shares or sum(shares) == pytest.approx(1)
    for name, stream in view["streams"].items():
        assert stream["tuples"] == sum(gateway["streams"][name]["tuples"] for gateway in view["gateways"])
        assert stream["ended"] == all(gateway["streams"][name]["ended"] for gateway in view["gateways"])
    assert sum(gateway["waiting_bytes"] for gateway in view["gateways"]) == view["buffers"]["waiting_bytes"]
    assert view["buffers"]["capacity_bytes"] == count * (64 << 20)


def _is_that_of_the_end(board: Any, report: dict[str, Any]) -> None:
    last = board.snapshot()
    assert (last["run"]["phase"], last["hot_keys"]) == ("ended", None)
    for name, ledger in last["ledger"]["streams"].items():
        assert (ledger["tuples"], ledger["waiting"]) == (report["input"][name]["tuples"], 0)
        assert (ledger["delivered"], ledger["late"]) == (report["joined"][name], report["late"][name])
    for gateway, counted in zip(last["gateways"], report["gateways"], strict=True):
        assert {name: of["tuples"] for name, of in gateway["streams"].items()} == counted["tuples"]
        assert all(of["ended"] and not of["waits_for_split"] for of in gateway["streams"].values())


# ---------------------------------------------------------------- runs in this process


@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_streams_are_the_sums_of_all_gateways(pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[bool]] = []
    counts = [3]

    def check(view: dict[str, Any]) -> None:
        _sums_up(view, counts[0])
        seen.append([of["waits_for_split"] for gateway in view["gateways"] for of in gateway["streams"].values()])

    boards = boards_of_runs(monkeypatch, check)
    workload = {**WORKLOAD, "duration": "6s" if pace == "asap" else "1500ms"}
    cluster = {"gateways": 3, "epoch_tuples": 1000, "partition_count": 24, "distribution_epoch": "50ms"}
    moves = {"policy": "random", "epoch": "100ms", "random_moves": 2}
    config = config_from_plain(plain(pace=pace, workload=workload, cluster=cluster, reorganization=moves, **BOARD))
    report = run_local(Job(config, None, True, None, None, "test"), False, 2)
    counts[0] = 1
    alone = run_local(Job(config.with_gateways(1), None, True, None, None, "test"), False, 2)
    assert report["results"] == alone["results"]
    _is_that_of_the_end(boards[0], report)
    assert boards[1].snapshot()["hot_keys"] is not None, "with one gateway keys are sampled"
    if pace == "asap":
        assert any(map(any, seen)), "a gateway that has read its split waits for the next one"


def test_the_ledger_balances_after_a_resumption_with_another_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gateways had read and not delivered is taken over by others."""
    cluster = {"epoch_tuples": 1000, "partition_count": 24}
    parts = {"workload": WORKLOAD, "cluster": cluster, "reorganization": {}, "checkpoint": {"epochs": 2}}
    config = config_from_plain(plain(pace="asap", **parts, **BOARD))
    whole = run_local(Job(config, None, True, tmp_path / "whole", None, "test"), False, 1)
    counts = iter((2, 4, 3))
    count = next(counts)
    boards = boards_of_runs(monkeypatch, lambda view: _sums_up(view, count))
    report: dict[str, Any] = {}
    for number, after in enumerate((6, 4, 10**9)):
        _stopping(monkeypatch, after)
        report = _run(config.with_gateways(count), tmp_path / "run", 2, resumes=number > 0)
        if report["complete"]:
            break
        count = next(counts)
    assert count == 3
    assert report["results"] == whole["results"]
    last = boards[-1].snapshot()["ledger"]["streams"]
    assert {name: ledger["delivered"] for name, ledger in last.items()} == whole["joined"]


def test_a_plan_with_several_gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(-15_000, 20_000)), Result("out", "j"))

    def run(gateways: int) -> dict[str, Any]:
        inputs = write_streams(tmp_path, "ab", 3000, 5, keys=20, null_share=0.05)
        cluster = {"gateways": gateways, "partition_count": 8, "epoch_tuples": 500}
        return run_local(plan_job(nodes, inputs, tmp_path / str(gateways), "count", cluster=cluster, **BOARD), False, 2)

    alone = run(1)
    boards = boards_of_runs(monkeypatch, lambda view: _sums_up(view, len(view["gateways"])))
    report = run(2)
    assert report["results"] == alone["results"]
    last = boards[0].snapshot()
    assert {name: of["tuples"] for name, of in last["streams"].items()} == {"a": 3000, "b": 3000}
    assert len(last["gateways"]) == len(report["gateways"])
    assert [edge["waiting_rows"] for edge in last["edges"]] == [0, 0]


# ---------------------------------------------------------------- samples of other ranks


def _view(tuples: int, waiting: int) -> dict[str, Any]:
    return {"gateway": 1, "streams": {"left": {"ledger": {"tuples": tuples, "waiting": waiting}}}}


def test_progress_and_replayed_tuples_count_gateways_on_other_ranks(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"workload": WORKLOAD, "cluster": {"gateways": 3}, "checkpoint": {"epochs": 2}}
    config = config_from_plain(plain(pace="asap", reorganization={}, **parts))
    with MasterHost(Job(config, None, True, tmp_path, None, "test"), False) as host:
        host.make(RunClock(), 1, lambda role, item: None)
        for tuples, waiting in ((100, 40), (250, 30)):
            host.take_view(_view(tuples, waiting))
            assert (host.tuples_read, host.tuples_delivered) == (tuples, tuples - waiting)
            assert host.gateway.progress.done == tuples
        host.make(RunClock(), 1, lambda role, item: None)  # after a death
        assert (host.tuples_read, host.gateway.progress.done) == (0, 0)
        host.take_view(_view(120, 20))
        assert (host.tuples_delivered, host.gateway.progress.done) == (100, 120)
        assert (host.delivered_again(250), host.delivered_again(90)) == (150, 0)


# ---------------------------------------------------------------- presentation


def test_metrics_and_lines_of_gateways() -> None:
    clock = Clock()
    board = a_board(clock)
    for seconds in (0, 1):
        clock.now += seconds
        board.set_master(gateways_view(1000 + 500 * seconds), OWNER)
    snapshot = board.snapshot()
    assert [gateway["tuples_per_s"] for gateway in snapshot["gateways"]] == [pytest.approx(500)] * 2
    found = metrics_of(exposition(snapshot)[0].decode())
    wanted = {
        ("swjoin_gateway_tuples_total", "gateway=1,stream=left"): 1500,
        ("swjoin_gateway_watermark_seconds", "gateway=0,stream=left"): 1.5,
        ("swjoin_gateway_waits_for_split", "gateway=0,stream=right"): 1,
        ("swjoin_gateway_waits_for_split", "gateway=1,stream=right"): 0,
        ("swjoin_gateway_waiting_bytes", "gateway=1"): 2048,
        ("swjoin_tuples_total", "stream=left"): 3000,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert ("swjoin_gateway_watermark_seconds", "gateway=1,stream=left") not in found, "it has ended"
    with Path("/dev/null").open("w") as nowhere:
        console = Console(width=150, record=True, file=nowhere)
        console.print(frame(snapshot))
    text = console.export_text()
    assert re.search(r"gateway +share +tuples/s +waiting +left watermark +right watermark", text)
    assert re.search(r"0 +50% +500 +2\.0 KiB +1\.50 s +1\.50 s, waits for a split", text)
    assert re.search(r"1 +50% +500 +2\.0 KiB +ended +-", text)


# ---------------------------------------------------------------- a run on ranks


def _takes_part(gateway: dict[str, Any]) -> bool:
    """It has a share of the input, and of each stream a row has arrived, or all have."""
    arrived = (of["ended"] or of["watermark_us"] is not None for of in gateway["streams"].values())
    return (gateway["share_ratio"] or 0) > 0.1 and all(arrived)


@pytest.mark.drawn
@pytest.mark.mpi
def test_gateways_on_ranks_are_seen_while_they_run(tmp_path: Path, swjoin: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    workload = {**WORKLOAD, "duration": "8s"}  # for who looks on may be slow
    config = plain(workload=workload, serve={"listen": listen})
    with Run(tmp_path, config, "-n", 5, "--gateways", 3) as run:
        address, deadline, seen = run.address, time.monotonic() + PROCESS_S, {}
        while not (seen and seen["results"] and all(map(_takes_part, seen["gateways"]))):
            assert time.monotonic() < deadline, seen
            seen = json.loads(get(address, "status.json"))
            if seen["ledger"] is not None:
                assert seen["ledger"]["balanced"]
                _sums_up(seen, 3)
            time.sleep(0.05)
        over_flight = connect(f"grpc://{listen}").status()
        found = metrics_of(get(address, "metrics").decode())
        top = swjoin("top", run.out, "--once")
        report = run.report()
    assert seen["run"]["phase"] == "running"
    assert seen["hot_keys"] is None
    for of in (of for gateway in seen["gateways"] for of in gateway["streams"].values()):
        assert of["ended"] or of["watermark_us"] > 0
    assert [gateway["gateway"] for gateway in over_flight["gateways"]] == [0, 1, 2]
    assert found["swjoin_gateway_tuples_total", "gateway=2,stream=left"] > 0
    assert top.code == 0, top.err
    assert re.search(r"gateway +share +tuples/s +waiting +left watermark", top.out)
    assert "ledger balanced" in top.out
    assert report["ledger"]["balanced"]
    for name, stream in report["input"].items():
        assert sum(part["tuples"][name] for part in report["gateways"]) == stream["tuples"]
    still = config_from_plain({**config, "reorganization": {}, "pace": "asap", "serve": {}})
    whole = run_local(Job(still, None, True, None, None, "test"), False, 1)
    assert report["results"] == whole["results"]

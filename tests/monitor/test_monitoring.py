"""Monitoring: the board, hot keys, /status.json, /metrics and `swjoin top`, in-process and on real ranks; and that monitoring
changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import RunConfig, WorkloadConfig, digest
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.batch import LEFT
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from swjoin.core.key_encoder import KeyEncoder
from swjoin.monitor import role_watchers, web
from swjoin.monitor.hot_keys import ROWS_PER_S, HotKeys
from swjoin.monitor.prometheus import exposition
from swjoin.monitor.status_board import EVENTS, HISTORY_STEPS
from swjoin.runtime.in_process import run_local
from tests.conftest import ROOT
from tests.support.boards import Clock, Run, a_board, boards_of_runs, collector_view, get, key, master_view, plain
from tests.support.cases import CASES
from tests.support.limits import PROCESS_S
from tests.tools.processes import kill, ranks_of

# ---------------------------------------------------------------- hot keys


def bmodel_keys(rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    workload = WorkloadConfig(rate_per_s=100_000, duration_us=rows * 10, bias=0.8, domain=1 << 16)
    keys = [slot_tuples(workload, 5, LEFT, slot)[1] for slot in range(slot_count(workload))]
    return np.concatenate(keys)


def exact(keys: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, float]:
    values, counts = np.unique(keys, return_counts=True)
    return {str(v): c / len(keys) for v, c in zip(values.tolist(), counts.tolist(), strict=True)}


def fill(hot: HotKeys, keys: np.ndarray[Any, np.dtype[np.int64]], rate: float, batch: int = 5000) -> float:
    for at in range(0, len(keys), batch):
        hot.read(keys[at : at + batch], None, at / rate)
    return len(keys) / rate


def test_hot_keys_of_a_slow_stream_are_exact() -> None:
    keys = bmodel_keys(20_000)
    hot = HotKeys(5)
    top = hot.top(fill(hot, keys, 10_000))
    shares = exact(keys)
    assert top["rows"] == len(keys)
    assert top["one_in"] == 1
    assert [k["key"] for k in top["keys"]] == sorted(shares, key=lambda k: -shares[k])[:5]
    for found in top["keys"]:
        assert found["low_ratio"] <= shares[found["key"]] <= found["high_ratio"] < found["low_ratio"] + 0.01


def test_hot_keys_of_a_fast_stream_are_within_their_bounds() -> None:
    keys = bmodel_keys(1_500_000)
    hot = HotKeys(8)
    top = hot.top(fill(hot, keys, 500_000))
    shares = exact(keys)
    assert top["one_in"] > 20
    assert abs(top["rows"] / len(keys) - 1) < 0.02
    assert top["keys"][0]["key"] == max(shares, key=lambda k: shares[k])
    held = [k["low_ratio"] <= shares[k["key"]] <= k["high_ratio"] for k in top["keys"]]
    assert sum(held) >= 7, "bounds of two standard deviations"
    assert all(k["high_ratio"] - k["low_ratio"] < 0.02 for k in top["keys"])


@pytest.mark.parametrize("batch", [1, 7, 1000, 65_536])
def test_keys_with_a_period_cannot_hide(batch: int) -> None:
    keys = np.tile(np.arange(10, dtype=np.int64), 40_000)[: 400_000 if batch > 7 else 30_000]
    hot = HotKeys(10, rows_per_s=2000)
    top = hot.top(fill(hot, keys, 100_000, batch))
    assert top["one_in"] > 1
    assert top["one_in"] % 10 == 0 or batch != 1000, "a multiple of the period"
    assert len(top["keys"]) == 10
    assert abs(top["rows"] / len(keys) - 1) < 0.1
    assert all(abs(k["share_ratio"] - 0.1) < 0.05 for k in top["keys"])


@pytest.mark.parametrize("rate", [20_000, 1_000_000, 20_000_000])
def test_few_rows_are_looked_at(rate: int) -> None:
    hot, keys, sampled = HotKeys(3), np.zeros(65_536, np.int64), 0
    for at in range(0, 4 * rate, len(keys)):
        hot.read(keys, None, at / rate)
        sampled += sum(len(chosen) for chosen, _ in hot._waiting)
        hot._waiting.clear()
    assert 0 < sampled < 4 * 5 * ROWS_PER_S
    later = 0
    for at in range(4 * rate, 8 * rate, len(keys)):
        hot.read(keys, None, at / rate)
        later += sum(len(chosen) for chosen, _ in hot._waiting)
        hot._waiting.clear()
    assert later < 4 * 1.6 * ROWS_PER_S, "once the rate is known"


def test_null_keys_are_none_and_old_keys_are_forgotten() -> None:
    hot = HotKeys(3, span_s=10)
    hot.read(np.array([0, 7, 7, 0]), np.array([False, True, True, False]), 0.0)
    assert [k["key"] for k in hot.top(0.1)["keys"]] == ["7"]
    for second in range(1, 25):
        hot.read(np.full(100, 9), None, float(second))
        top = hot.top(float(second))
    assert [k["key"] for k in top["keys"]] == ["9"]
    assert top["rows"] <= 2000


def test_keys_are_shown_as_they_were() -> None:
    names = KeyEncoder([("name", pa.string())], [("name", pa.string())])
    codes, _ = names.encode([pa.array(["Ünal", "b", ""])])
    assert [names.dictionary.text(int(c)) for c in codes] == ["Ünal", "b", ""]
    both = [("city", pa.string()), ("id", pa.int64()), ("street", pa.large_string())]
    pairs = KeyEncoder(both, both)
    codes, _ = pairs.encode([pa.array(["Rome", "Oslo"]), pa.array([-3, 1 << 40]), pa.array(["x, y", "z"])])
    assert [pairs.dictionary.text(int(c)) for c in codes] == ["Rome, -3, x, y", f"Oslo, {1 << 40}, z"]


# ---------------------------------------------------------------- the board


OWNER = np.array([0, 0, 1, 1])


def test_rates_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    board = a_board(clock)
    for step in range(21):  # 5 s at 1,000 per s, then 5 s at 200 per s
        tuples = 1 + (1000 * step if step <= 10 else 10_000 + 200 * (step - 10)) // 2
        board.set_master(master_view(tuples), OWNER)
        board.set_collector(collector_view(clock.now, tuples * 3))
        clock.now += 0.5
        if step == 10:
            fast = board.snapshot()
    slow = board.snapshot()
    assert fast["streams"]["left"]["tuples_per_s"] == pytest.approx(1000)
    assert slow["streams"]["left"]["tuples_per_s"] == pytest.approx(200)
    assert slow["results"]["pairs_per_s"] == pytest.approx(600)
    busy = {s["slave"]: (s["busy_ratio"], s["cpu_ratio"], s["window_bytes"]) for s in slow["slaves"]}
    assert busy == {0: (0.0, 0.0, None), 1: (pytest.approx(0.5), pytest.approx(0.25), 640.0)}
    json.dumps(slow)


def test_a_recovery_goes_back_without_a_negative_rate() -> None:
    clock = Clock()
    board = a_board(clock)
    for tuples in (1000, 2000, 3000):
        board.set_master(master_view(tuples), OWNER)
        board.set_collector(collector_view(clock.now, tuples))
        clock.now += 1
    board.enter("recovering")
    assert board.snapshot()["run"]["phase"] == "recovering"
    board.begin("running")
    board.take_event(RunEvent(1, 1, "recovered", tuples=900))
    board.set_master(master_view(1500), OWNER)
    board.set_collector(collector_view(clock.now, 1500))
    now = board.snapshot()
    assert now["streams"]["left"]["tuples_per_s"] == now["results"]["pairs_per_s"] == 0
    assert now["run"]["recoveries"] == 1
    clock.now += 1
    board.set_master(master_view(1600), OWNER)
    assert board.snapshot()["streams"]["left"]["tuples_per_s"] == pytest.approx(100)


def test_what_is_known_is_not_told_again_and_nothing_grows() -> None:
    clock = Clock()
    board = a_board(clock)
    for step in range(HISTORY_STEPS + 50):
        board.set_master(master_view(step + 1), OWNER)
        board.take_event(RunEvent(step, 0, "idle", text="left"))
        clock.now += 0.5
    whole = board.snapshot()
    assert len(whole["history"]) == HISTORY_STEPS
    assert [e["number"] for e in whole["events"]] == list(range(HISTORY_STEPS - 49, HISTORY_STEPS + 51))[-EVENTS:]
    assert whole["map"] == {
        "version": 1,
        "groups": 4,
        "owner": [0, 0, 1, 1],
        "moving": [{"number": 4, "stage": 0, "group": 1, "supplier": 0, "consumer": 1, "phase": "held"}],
        "loads": [0.5, 1.0, 0.0, 0.2],
    }
    known = board.snapshot(whole["history"][-3]["t_s"], whole["map"]["version"])
    assert len(known["history"]) == 2
    assert known["map"]["owner"] is None
    board.set_master(master_view(9999), np.array([0, 1, 1, 1]))
    moved = board.snapshot(1e9, known["map"]["version"])
    assert (moved["map"]["version"], moved["map"]["owner"], moved["history"]) == (2, [0, 1, 1, 1], [])


def metrics_of(text: str) -> dict[tuple[str, str], float]:
    """Value by name and labels; every family has a help text and a type."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge"), family.name
        for sample in family.samples:
            found[sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))] = sample.value
    return found


def test_metrics() -> None:
    clock = Clock()
    board = a_board(clock)
    empty = metrics_of(exposition(board.snapshot())[0].decode())
    assert empty["swjoin_phase", "phase=running"] == 1
    board.set_master(master_view(500), OWNER)
    board.set_collector(collector_view(100.0, 123))
    board.take_source("left", {"lag_rows": 17, "producers": 2})
    content, kind = exposition(board.snapshot())
    found = metrics_of(content.decode())
    assert kind.startswith("text/plain")
    wanted = {
        ("swjoin_tuples_total", "stream=left"): 500,
        ("swjoin_late_tuples_total", "stream=right"): 1,
        ("swjoin_unaccounted_tuples", "stream=left"): 0,
        ("swjoin_results_total", ""): 123,
        ("swjoin_occupancy_ratio", "slave=1"): 0.25,
        ("swjoin_window_bytes", "slave=1"): 640,
        ("swjoin_production_delay_seconds", "quantile=0.99,span=all"): 0.4,
        ("swjoin_moves_total", ""): 4,
        ("swjoin_moves_in_flight", ""): 1,
        ("swjoin_checkpoints_total", ""): 2,
        ("swjoin_checkpoint_age_seconds", ""): 3,
        ("swjoin_source", "name=lag_rows,stream=left"): 17,
        ("swjoin_source", "name=producers,stream=left"): 2,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert ("swjoin_window_bytes", "slave=0") not in found, "nothing is known of it yet"


# ---------------------------------------------------------------- runs, looked at from inside


def test_who_looks_on_does_not_change_what_a_run_is() -> None:
    config = config_from_plain(plain())
    looked_at = dataclasses.replace(config, observe=dataclasses.replace(config.observe, port=0))
    assert digest(looked_at) == digest(config)
    assert not config.observe.enabled
    assert looked_at.observe.enabled


@pytest.mark.parametrize(
    ("setting", "complaint"), [("port=70000", "0 to 65535"), ("interval=1ms", "at least 10ms"), ("hot_keys=-1", "hot_keys")]
)
def test_bad_settings_are_one_line(setting: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(plain()))
    with pytest.raises(UserError, match=complaint):
        load_config(tmp_path / "c.yaml", [f"observe.{setting}"])


LEDGERS = ["asymmetric", "null keys and null times", "out of order up to the bound", "out of order past the bound"]


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("name", LEDGERS)
def test_the_ledger_balances_whenever_one_looks(name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in CASES if c.name == name)
    moves = {"reorganization": {"policy": "random", "epoch_us": 100, "random_moves": 2}}
    out_of_order = case.settings.get("time", {})
    path = case.write(tmp_path, observe={"board": True, "interval_us": 10_000}, **moves, time={**out_of_order, "late": "drop"})
    bounds = {"lower_us": case.bounds[0], "upper_us": case.bounds[1], "how": how}
    path.write_text(json.dumps({**json.loads(path.read_text()), "join": bounds}))

    def balanced(view: dict[str, Any]) -> None:
        assert view["ledger"]["balanced"], view["ledger"]

    boards = boards_of_runs(monkeypatch, balanced)
    report = run_local(Job(load_config(path), tmp_path / "out", True, tmp_path / "run", None, "test"), False, 3)
    (board,) = boards
    last = board.snapshot()
    assert (report["results"]["count"], report["results"]["digest"]) == case.answer(how)  # type: ignore[arg-type]
    assert last["run"]["phase"] == "ended"
    assert (last["results"]["pairs"], last["results"]["digest"]) == (report["results"]["count"], report["results"]["digest"])
    for side in ("left", "right"):
        ledger = last["ledger"]["streams"][side]
        assert (ledger["tuples"], ledger["waiting"], ledger["unaccounted"]) == (report["input"][side]["tuples"], 0, 0)
        assert ledger["delivered"] == report["joined"][side]
        assert (ledger["late"], ledger["null_key"]) == (report["late"][side], report["null_key"][side])
    assert last["moves"]["finished"] == report["moves"]
    assert sum(s["groups"] for s in last["slaves"]) == 7


# ---------------------------------------------------------------- runs, looked at from outside


def unobserved(folder: Path, config: dict[str, Any]) -> tuple[int, str]:
    folder.mkdir()
    report = run_local(Job(config_from_plain(config), None, True, folder, None, "test"), False, 1)
    return report["results"]["count"], report["results"]["digest"]


@pytest.mark.mpi
@pytest.mark.parametrize("more", [("--threads", 3), ("-n", 5)], ids=["in-process", "mpi"])
def test_a_run_is_seen_while_it_runs(more: tuple[object, ...], tmp_path: Path, swjoin: Any) -> None:
    workload = {"rate": 4000, "duration": "16s", "bias": 0.7, "domain": 20_000, "payload": "16B"}  # who looks may be slow
    config = plain(workload=workload)
    with Run(tmp_path, config, *more) as run:
        address, deadline = run.address, time.monotonic() + PROCESS_S
        seen: dict[str, Any] = {}
        owners, counts = set(), []
        while not (
            len(owners) > 3
            and seen["results"]
            and seen["hot_keys"]
            and seen["hot_keys"]["left"]["keys"]
            and seen["moves"]["finished"] > 5
        ):
            assert time.monotonic() < deadline, seen
            seen = json.loads(get(address, "status.json"))
            assert seen["ledger"] is None or seen["ledger"]["balanced"]
            owners.add(str(seen["map"]["owner"]))
            counts.append(seen["results"]["pairs"] if seen["results"] else 0)
            time.sleep(0.05)
        found = metrics_of(get(address, "metrics").decode())
        top = swjoin("top", run.out, "--once")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(address, "status.json", Host="elsewhere.example")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            get(address, "status.json?since=soon")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(address, data=b"x", method="POST"), timeout=PROCESS_S)
        report = run.report()
    assert seen["run"]["phase"] == "running"
    assert seen["run"]["runtime"] == ("mpi" if more[0] == "-n" else "in-process")
    assert counts == sorted(counts)
    assert {e["kind"] for e in seen["events"]} >= {"decided", "held", "left", "installed", "released"}
    assert sum(s["groups"] for s in seen["slaves"]) == 24
    assert any(s["tuples_per_s"] > 0 for s in seen["slaves"])
    assert seen["hot_keys"]["left"]["keys"][0]["key"] == "0"
    assert found["swjoin_moves_total", ""] >= 6
    assert found["swjoin_results_total", ""] >= counts[-1] > 0
    assert top.code == 0, top.err
    assert "swjoin running  -0.5 s <= right - left <= 0.5 s" in top.out
    assert "ledger balanced" in top.out
    assert re.search(r"\d s +(held|left|installed|released) +group \d+ +move \d+: ", top.out)
    assert not (run.out / role_watchers.ADDRESS_FILE).exists()
    assert report["ledger"]["balanced"]
    still = {**config, "reorganization": {}, "pace": "asap"}
    assert (report["results"]["count"], report["results"]["digest"]) == unobserved(tmp_path / "still", still)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("gateways", [1, 3])
def test_a_recovery_is_seen(gateways: int, tmp_path: Path) -> None:
    """With three gateways, the rank that dies plays one of them, too."""
    workload = {"rate": 6000, "duration": "14s", "bias": 0.7, "domain": 20_000, "payload": "16B"}
    config = plain(checkpoint={"interval": "1s"}, workload=workload)
    with Run(tmp_path, config, "-n", 5, "--gateways", gateways) as run:
        address, deadline, killed = run.address, time.monotonic() + PROCESS_S, False
        phases, seen = set(), {"run": {"recoveries": 0}}
        while not seen["run"]["recoveries"] or seen["run"]["phase"] != "running" or not seen["results"]:
            assert time.monotonic() < deadline, seen
            seen = json.loads(get(address, "status.json"))
            phases.add(seen["run"]["phase"])
            assert seen["ledger"] is None or seen["ledger"]["balanced"]
            if not killed and (seen["checkpoints"] or {}).get("completed", 0) >= 2:
                kill(ranks_of(run.process.pid)[3], signal.SIGKILL)
                killed = True
            time.sleep(0.02)
        report = run.report()
    assert len(seen["slaves"]) == 2
    (recovery,) = report["checkpoints"]["recoveries"]
    assert 0 <= recovery["tuples"] <= sum(stream["tuples"] for stream in report["input"].values())
    assert len(report["gateways"]) == len(seen["gateways"]) == gateways
    still = {**config, "reorganization": {}, "pace": "asap", "checkpoint": {}}
    assert (report["results"]["count"], report["results"]["digest"]) == unobserved(tmp_path / "still", still)


def test_everybody_may_ask_at_once() -> None:
    clock = Clock()
    board = a_board(clock)
    board.set_master(master_view(5), OWNER)
    server = web.Server(board.snapshot, 0)
    answers: list[Any] = []

    def ask() -> None:
        answers.extend(json.loads(get(server.address, "status.json")) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROCESS_S)
    finally:
        server.close()
    assert len(answers) == 80
    with pytest.raises(urllib.error.URLError):
        get(server.address)


# ---------------------------------------------------------------- what can go wrong


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, swjoin: Any) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(plain()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = swjoin("run", tmp_path / "c.yaml", "--dashboard", port, "--out", tmp_path / "run")
    assert done.code == 2
    assert done.err == [
        f"swjoin: --dashboard {port}: 127.0.0.1:{port} cannot be used (Address already in use); choose another port, or 0"
    ]


@pytest.mark.parametrize(
    ("library", "complaint"),
    [
        ("uvicorn", "the dashboard needs uvicorn, which is missing; "),
        ("prometheus_client", "the dashboard needs prometheus_client, which is missing; "),
        ("datasketches", "hot keys need datasketches, which is missing; set observe.hot_keys to 0, or "),
    ],
)
def test_a_missing_library_is_one_line(
    library: str, complaint: str, tmp_path: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "c.yaml").write_text(json.dumps(plain()))
    done = swjoin("run", tmp_path / "c.yaml", "--dashboard", "--out", tmp_path / "run")
    remedy = "install swjoin with its dashboard extra: pip install '.[dashboard]' in a checkout"
    assert (done.code, done.err) == (2, [f"swjoin: {complaint}{remedy}"])


def test_top_says_when_nobody_answers(tmp_path: Path, swjoin: Any) -> None:
    done = swjoin("top", tmp_path)
    assert (done.code, len(done.err)) == (2, 1)
    assert "no run with a dashboard is going on there" in done.err[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = swjoin("top", port, "--once")
    assert (done.code, len(done.err)) == (2, 1)
    assert f"http://127.0.0.1:{port}: nobody answers" in done.err[0]


def test_top_shows_a_run_to_its_end() -> None:
    from rich.console import Console

    from swjoin.cli.top import frame, show

    clock = Clock()
    board = a_board(clock)
    board.take_hot_keys({"left": {"rows": 9, "one_in": 1, "keys": [key("[red]\x1b[2Jbad")]}, "right": {"keys": []}})
    fetched: list[str] = []

    def fetch() -> dict[str, Any]:
        if len(fetched) == 2:
            board.enter("ended")
        board.set_master(master_view(5 + len(fetched)), OWNER)
        board.set_collector(collector_view(clock.now, 7))
        snapshot = board.snapshot()
        fetched.append(snapshot["run"]["phase"])
        return snapshot

    with Path("/dev/null").open("w") as nowhere:
        assert show(fetch, Console(file=nowhere, force_terminal=True, width=100, record=True)) == 0
    assert fetched == ["running", "running", "ended"]
    console = Console(width=120, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(frame(board.snapshot()))
    text = console.export_text()
    assert "swjoin ended" in text
    assert "[red]·[2Jbad" in text, "a key from the data is shown as it is, without markup and control characters"


def test_q_leaves_top() -> None:
    clock = Clock()
    board = a_board(clock)
    board.set_master(master_view(5), OWNER)
    server = web.Server(board.snapshot, 0)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "swjoin", "top", str(server.port)], stdin=theirs, stdout=theirs, cwd=ROOT)
    try:
        shown, deadline = b"", time.monotonic() + PROCESS_S
        while b"running" not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65_536)
        os.write(ours, b"q")
        reader = threading.Thread(target=lambda: list(iter(lambda: os.read(ours, 65_536), b"")), daemon=True)
        reader.start()  # what it still writes must not stop it
        assert process.wait(PROCESS_S) == 0
    finally:
        process.kill()
        server.close()


def test_nothing_is_made_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that nobody looks at has no watcher, and does not even import what one would need."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a watcher was made")

    monkeypatch.setattr(role_watchers.MasterWatcher, "__init__", refuse)
    monkeypatch.setattr(role_watchers.CollectorWatcher, "__init__", refuse)
    config: RunConfig = config_from_plain(plain(pace="asap"))
    assert run_local(Job(config, None, True, tmp_path, None, "test"), False, 2)["ledger"]["balanced"]

"""Status boards and the runs that fill them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swjoin.config.job import Job
from swjoin.core.data_messages import RunEvent
from swjoin.monitor import role_watchers
from swjoin.monitor.status_board import Board
from swjoin.runtime.open import open_job_watcher
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def master_view(tuples: int, **more: Any) -> dict[str, Any]:
    ledger = {"tuples": tuples, "null_key": 0, "late": 1, "shed": 0, "waiting": 0, "delivered": tuples - 1, "unaccounted": 0}
    stream: dict[str, Any] = {
        **{n: ledger[n] for n in ("tuples", "null_key", "late", "shed")},
        "waiting_tuples": 0,
        "time_us": 5_000_000,
    }
    stream |= {"idle": False, "ended": False, "ledger": ledger}
    gateway = {"gateway": 0, "share_ratio": 1.0, "delivered": 2 * (tuples - 1), "waiting_bytes": 10, "streams": {}}
    slave = {"stage": 0, "active": True, "emptying": False, "groups": 2, "load_ratio": 0.5, "occupancy_ratio": 0.25}
    view = {
        "clock_s": 1.0,
        "epoch": 3,
        "active_slaves": 2,
        "streams": {"left": stream, "right": stream},
        "gateways": [gateway],
        "stages": [{"stage": 0, "join": "join", "description": "", "slaves": [0, 1], "active_slaves": 2, "moves": 4}],
        "edges": [],
        "slaves": [{"slave": 0, **slave}, {"slave": 1, **slave}],
        "buffers": {"waiting_bytes": 10, "capacity_bytes": 100, "spilled_bytes": 0, "parked_bytes": 0, "held_tuples": 0},
        "moving": [{"number": 4, "stage": 0, "group": 1, "supplier": 0, "consumer": 1, "phase": "held"}],
        "moves": {"finished": 4, "state_bytes": 1000, "hold_back_p50_s": 0.1},
        "loads": [0.5, 1.0, 0.0, 0.2],
        "checkpoints": {"completed": 2, "under_way": False, "last_s": 0.2, "age_s": 3.0, "bytes": 77},
        "ledger": {"streams": {"left": ledger, "right": ledger}, "balanced": True},
    }
    return {**view, **more}


def gateways_view(tuples: int) -> dict[str, Any]:
    """Of two gateways: one waits for a split of the right stream, the other one has read all of the left stream."""
    stream = {"tuples": tuples, "watermark_us": 1_500_000, "idle": False, "ended": False, "waits_for_split": False}
    left = {**stream, "watermark_us": None, "ended": True}
    names = {"share_ratio": 0.5, "delivered": tuples, "waiting_bytes": 2048}
    return master_view(
        2 * tuples,
        gateways=[
            {"gateway": 0, **names, "streams": {"left": stream, "right": {**stream, "waits_for_split": True}}},
            {"gateway": 1, **names, "streams": {"left": left, "right": {**stream, "watermark_us": None}}},
        ],
    )


def collector_view(at_s: float, pairs: int) -> dict[str, Any]:
    row = {"busy_s": at_s / 2, "cpu_s": at_s / 4, "tuples": 5.0 * pairs, "comparisons": 9.0 * pairs, "pairs": float(pairs)}
    row |= {"left_tuples": 3.0 * pairs, "right_tuples": 2.0 * pairs}
    row |= {"epoch": 3.0, "occupancy_ratio": 0.5, "window_tuples": 10.0, "window_bytes": 640.0, "mini_group_count": 2.0}
    delays = {"recent": {"p50": 0.1, "p99": 0.2}, "all": {"p50": 0.3, "p99": 0.4, "mean": 0.3, "max": 1.0}}
    counts = {"pairs": pairs, "digest": "0" * 16, "history_pairs": 0, "committed_epoch": 2}
    return {"sink": 0, "at_s": at_s, **counts, "delay_s": delays, "slaves": {"1": row}, "edges": {}, "queries": []}


def a_board(clock: Clock) -> Board:
    about = {
        "version": "0",
        "pace": "asap",
        "runtime": "mpi",
        "join": "",
        "distribution_epoch_s": 0.0,
        "command": "",
        "host": "",
    }
    board = Board({**about, "policy": "none"}, clock)
    board.begin("running")
    return board


def a_plan_board() -> Board:
    """Of a run of a plan: sources pairs and b are joined, and the rows with those of c; each stage has two slaves."""
    view, clock = master_view(500), Clock()
    names = ("pairs", "b", "c")
    stream, slave, ledger = view["streams"]["left"], view["slaves"][0], view["ledger"]["streams"]["left"]
    edges = [("pairs", "first", "left"), ("b", "first", "right"), ("first", "last", "left"), ("c", "last", "right")]
    view |= {
        "active_slaves": 4,
        "streams": dict.fromkeys(names, stream),
        "stages": [
            {**view["stages"][0], "stage": s, "join": n, "slaves": [2 * s, 2 * s + 1]} for s, n in enumerate(("first", "last"))
        ],
        "edges": [
            {"edge": i, "from": of, "to": to, "port": port, "key": ["k"], "waiting_rows": None, "epochs_ahead": None}
            for i, (of, to, port) in enumerate(edges)
        ],
        "slaves": [{**slave, "slave": s, "stage": s // 2, "occupancy_ratio": None} for s in range(4)],
        "moving": [{"number": 4, "stage": 1, "group": 1, "supplier": 2, "consumer": 3, "phase": "decided"}],
        "loads": None,
        "ledger": {"streams": dict.fromkeys(names, ledger), "balanced": True},
    }
    board = Board(a_board(clock).snapshot()["run"], clock, names)
    board.begin("running")
    board.take_event(RunEvent(1, 1, "decided", 2, 3, 1, stage=1))
    for seconds in (0, 1):
        results = collector_view(clock.now + seconds, 100 + 50 * seconds)
        row = results["slaves"]["1"]
        results["slaves"] = {str(s): {**row, "epoch": 5.0 - s // 2} for s in range(4)}
        results["edges"] = {str(e): [100 * (1 + seconds), 640, 160] for e in range(len(edges))}
        board.set_master(view, np.array([0, 0, 1, 1, 2, 2, 3, 3]))
        board.set_collector(results)
    return board


def boards_of_runs(monkeypatch: pytest.MonkeyPatch, check: Callable[[dict[str, Any]], None]) -> list[Board]:
    """The boards of runs in this process from now on. check: takes what the master shows, in every round."""
    boards: list[Board] = []

    def kept(job: Job) -> role_watchers.MasterWatcher:
        watcher = open_job_watcher(job)
        assert watcher is not None
        watcher._interval_s = 0.0  # in every round
        boards.append(watcher.board)
        take = watcher.board.set_master

        def checked(view: dict[str, Any], owner: Any) -> None:
            check(view)
            take(view, owner)

        monkeypatch.setattr(watcher.board, "set_master", checked)
        return watcher

    monkeypatch.setattr("swjoin.runtime.hosts.open_job_watcher", kept)
    return boards


def plain(**sections: Any) -> dict[str, Any]:
    return {
        "join": {"within": "500ms"},
        "workload": {"rate": 6000, "duration": "4s", "bias": 0.7, "domain": 20_000, "payload": "16B"},
        "pace": "realtime",
        "cluster": {"partition_count": 24, "distribution_epoch": "100ms"},
        "module": {"theta": "8KB", "window": "64MB"},
        "reorganization": {"policy": "random", "epoch": "200ms", "random_moves": 3},
        "sink": {"kind": "count"},
        **sections,
    }


class Run:
    """`swjoin run ... --dashboard` as a process. Use as a context manager: it is killed on the way out."""

    def __init__(self, folder: Path, config: dict[str, Any], *more: object) -> None:
        (folder / "config.yaml").write_text(json.dumps(config))
        self.out = folder / "run"
        line = [sys.executable, "-m", "swjoin", "run", str(folder / "config.yaml"), "--dashboard", "--out", str(self.out)]
        self.process = subprocess.Popen(
            [*line, *map(str, more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()

    @property
    def address(self) -> str:
        place, deadline = self.out / role_watchers.ADDRESS_FILE, time.monotonic() + PROCESS_S
        while not (place.exists() and place.read_text().endswith("\n")):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "no address"
            time.sleep(0.02)
        return place.read_text().strip()

    def report(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=PROCESS_S)
        assert self.process.returncode == 0, err
        assert re.search(r"dashboard: http://127\.0\.0\.1:\d+/  \(in a terminal: swjoin top \d+\)", out)
        report: dict[str, Any] = json.loads((self.out / "run.json").read_text())
        return report


def get(address: str, path: str = "", **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=PROCESS_S) as answer:
        content: bytes = answer.read()
        return content


def key(text: str) -> dict[str, Any]:
    return {"key": text, "share_ratio": 0.5, "low_ratio": 0.4, "high_ratio": 0.6}

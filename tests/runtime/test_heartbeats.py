"""Heartbeats: who counts as dead, and how signs of life travel; without ranks.

What: the detector with times that tests invent; the thread and the launcher's watch over real sockets of this machine.
Why: a detector that is wrong kills good runs, or lets them wait for ever.
Stays out: real ranks that are stopped (`test_frozen_ranks`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.runtime.mpi import heartbeats
from swjoin.runtime.mpi.heartbeats import (
    CUT_OFF,
    SILENT,
    STUCK,
    WATCH,
    FailureDetector,
    Heartbeats,
    MasterWatch,
    Process,
    Rules,
    _Progress,
)
from tests.conftest import ROOT as REPOSITORY
from tests.support.limits import PROCESS_S

# ---------------------------------------------------------------- the detector


class _Ranks:
    """Ranks that give signs every second to a detector with a timeout of 10 s, on an invented clock.

    stopped: give none. hanging: make no progress. cut: pairs that do not hear each other, and since when.
    """

    def __init__(self, count: int) -> None:
        self.peers = list(range(1, count + 1))
        self.detector = FailureDetector(10.0)
        self.now_s = 0.0
        self.stopped: set[int] = set()
        self.hanging: set[int] = set()
        self.cut: dict[tuple[int, int], float] = {}

    def pass_time(self, seconds: int) -> dict[int, str]:
        """Suspects after so many seconds, or as soon as there are any."""
        for _ in range(seconds):
            self.now_s += 1
            self.detector.observe(self.now_s)
            for peer in set(self.peers) - self.stopped:
                silent = {
                    b if a == peer else a: self.now_s - since_s
                    for (a, b), since_s in self.cut.items()
                    if peer in (a, b) and self.now_s - since_s >= 5
                }
                self.detector.heard(peer, self.now_s, 0 if peer in self.hanging else int(self.now_s), silent)
            if found := self.detector.suspects(self.peers, self.now_s):
                return found
        return {}


def test_who_gives_no_signs_is_suspect_and_nobody_else() -> None:
    ranks = _Ranks(3)
    assert ranks.pass_time(100) == {}
    ranks.stopped = {2}
    assert ranks.pass_time(10) == {}
    assert ranks.pass_time(1) == {2: SILENT}
    ranks.stopped = set()
    assert ranks.pass_time(100) == {}, "it is heard again"


def test_who_makes_no_progress_is_suspect() -> None:
    ranks = _Ranks(3)
    ranks.pass_time(5)
    ranks.hanging = {1}
    ranks.pass_time(1)
    assert ranks.pass_time(10) == {}
    assert ranks.pass_time(1) == {1: STUCK}


def test_a_stop_that_is_shorter_than_the_timeout_changes_nothing() -> None:
    """Nor does the first sign after it, whose progress may be that of the last one before."""
    ranks = _Ranks(2)
    ranks.pass_time(5)
    ranks.stopped, ranks.hanging = {1}, {1}
    assert ranks.pass_time(9) == {}
    ranks.stopped = set()
    assert ranks.pass_time(8) == {}
    ranks.hanging = set()
    assert ranks.pass_time(50) == {}


def test_a_pause_of_the_observer_gives_everybody_a_fresh_timeout() -> None:
    """Everything was stopped for an hour: nobody has given signs, and nobody is to blame."""
    ranks = _Ranks(3)
    ranks.pass_time(20)
    ranks.now_s += 3600
    ranks.stopped = {3}
    assert ranks.pass_time(10) == {}
    assert ranks.pass_time(2) == {3: SILENT}


def test_who_was_never_heard_is_not_watched() -> None:
    ranks = _Ranks(3)
    ranks.stopped = {3}
    assert ranks.pass_time(100) == {}
    assert ranks.detector.unknown(ranks.peers) == [3]


def test_of_two_that_do_not_hear_each_other_one_is_suspect() -> None:
    ranks = _Ranks(4)
    ranks.pass_time(20)
    ranks.cut = {(2, 3): ranks.now_s}
    assert ranks.pass_time(10) == {}
    assert ranks.pass_time(1) == {3: CUT_OFF}


def test_as_few_as_possible_are_cut_off() -> None:
    ranks = _Ranks(4)
    ranks.pass_time(20)
    ranks.cut = {(1, 2): ranks.now_s, (1, 3): ranks.now_s, (1, 4): ranks.now_s}
    assert ranks.pass_time(11) == {1: CUT_OFF}


def test_who_is_stopped_does_not_make_others_suspect_that_miss_it() -> None:
    """They report it before the detector itself has missed it for long enough."""
    ranks = _Ranks(4)
    ranks.pass_time(20)
    ranks.stopped = {2}
    ranks.cut = {(2, other): ranks.now_s - 3 for other in (1, 3, 4)}
    assert ranks.pass_time(20) == {2: SILENT}


def test_a_rank_knows_whether_it_is_cut_off_or_the_master_is_frozen() -> None:
    detector = FailureDetector(10.0)
    for now_s in range(12):
        detector.observe(now_s)
        if now_s < 1:
            detector.heard(0, now_s, now_s)
        detector.heard(2, now_s, now_s, master_s=1.0)
    assert detector.suspects([0], 11) == {0: SILENT}
    assert detector.age_s(0, 11) == 11
    assert detector.master_is_heard(11), "by rank 2"
    detector.heard(2, 11, 11, master_s=9.0)
    assert not detector.master_is_heard(11)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whoever_gives_signs_is_never_suspect_and_whoever_does_not_is(data: st.DataObject) -> None:
    """Random gaps between signs and between rounds: a peer with gaps below the timeout is never suspect; one that has ended is,
    once the observer has watched for a timeout without a pause."""
    timeout_s = data.draw(st.integers(5, 100), label="timeout")
    detector, now_s = FailureDetector(timeout_s), 0
    signs = {1: 0, 2: 0}
    last = data.draw(st.integers(0, 5 * timeout_s), label="last sign of peer 2")
    watched_s = 0  # without a pause since the last sign of peer 2
    short, long = st.integers(1, timeout_s // 2), st.integers(timeout_s // 2 + 1, 50 * timeout_s)
    for round_number in range(data.draw(st.integers(1, 60), label="rounds")):
        step_s = data.draw(short | long, label="step")
        now_s += step_s
        detector.observe(now_s)
        for peer in signs:
            if peer == 1 or now_s <= last or round_number == 0:
                detector.heard(peer, now_s, round_number)
                signs[peer] = now_s
        watched_s = 0 if now_s == signs[2] or step_s > timeout_s / 2 else watched_s + step_s
        found = detector.suspects([1, 2], now_s)
        assert 1 not in found
        assert (2 in found) == (watched_s > timeout_s)


# ---------------------------------------------------------------- progress and processes


def _while_main(does: Callable[[threading.Event], None]) -> Iterator[bool]:
    """Whether the main thread makes progress in each of some times of half a second, while it does this."""
    progress, over, found = _Progress(), threading.Event(), list[bool]()

    def watch() -> None:
        for _ in range(6):
            before = progress.count()
            time.sleep(0.5)
            found.append(progress.count() > before)
        over.set()
        os.write(write_end, b"x")

    read_end, write_end = os.pipe()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        _waiting_at.append(read_end)
        does(over)
    finally:
        _waiting_at.pop()
        thread.join()
        os.close(read_end)
        os.close(write_end)
    yield from found


_waiting_at: list[int] = []  # a pipe from which the main thread may read in vain until it is over


def _spin(over: threading.Event) -> None:
    while not over.is_set():
        pass


def _poll(over: threading.Event) -> None:
    while not over.wait(0.01):
        pass


def _hang(_over: threading.Event) -> None:
    os.read(_waiting_at[-1], 1)


def test_progress_is_work_and_polling_but_not_a_system_call_that_hangs() -> None:
    assert all(_while_main(_spin))
    assert all(_while_main(_poll))
    assert not all(_while_main(_hang))


def test_progress_is_also_what_another_thread_reads_and_writes(tmp_path: Path) -> None:
    """The main thread waits for it, as at the end of a checkpoint."""
    over = threading.Event()

    def write() -> None:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            while not over.is_set():
                file.write(bytes(10_000))
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(_while_main(_hang))
    finally:
        over.set()
        writer.join()


def test_a_stopped_process_is_killed_and_a_later_one_of_its_number_is_not() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        status = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        this = Process.this()
        another = Process(this.machine, this.host, child.pid, int(status[19]) - 1)
        elsewhere = Process("another machine", this.host, child.pid, int(status[19]))
        for process, ended in ((another, True), (elsewhere, False)):
            process.kill()
            assert process.ended == ended
            assert child.poll() is None
        os.kill(child.pid, signal.SIGSTOP)
        process = Process(this.machine, this.host, child.pid, int(status[19]))
        assert not process.ended
        process.kill()
        assert process.ended
        assert child.wait(PROCESS_S) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


# ---------------------------------------------------------------- over sockets

TIMEOUT_S = 2.0


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PROCESS_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _rest(seconds: float) -> None:
    """Sleep, and make progress."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(0.05)


def _rules(*, survives: bool) -> Rules:
    return Rules(TIMEOUT_S, survives, lambda: "start it again", lambda _size, rank: f"role {rank}")


@pytest.fixture
def start() -> Iterator[Callable[..., list[Heartbeats]]]:
    """Ranks in threads of this process."""
    started: list[Heartbeats] = []

    def begin(count: int, *, survives: bool = True, key: bytes = b"key") -> list[Heartbeats]:
        ranks = [Heartbeats(rank, _rules(survives=survives), loopback=True) for rank in range(count)]
        for rank in ranks:
            rank.start(key, [json.loads(json.dumps(r.endpoint)) for r in ranks])
        started.extend(ranks)
        return ranks

    yield begin
    for rank in started:
        rank.leave(0)


def test_the_master_names_the_rank_that_falls_silent(start: Callable[..., list[Heartbeats]]) -> None:
    master, *_, last = start(4)
    _rest(TIMEOUT_S)
    assert master.suspects == {}
    last.leave(0)
    _until(lambda: master.suspects)
    assert master.suspects == {3: SILENT}
    assert master.check() == ""
    host = Process.this().host
    assert master.described(3, SILENT) == f"rank 3 (role 3) on {host}: no sign of life for 2 s (cluster.failure_timeout)"
    master.follow(1, [0, 1, 2])
    _rest(2 * TIMEOUT_S)
    assert master.suspects == {}


def test_without_fault_tolerance_a_silent_rank_fails_the_run(
    start: Callable[..., list[Heartbeats]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "_NOTICED_S", PROCESS_S)  # this process would end
    monkeypatch.setattr(heartbeats, "_UNWIND_S", PROCESS_S)
    master, *_, last = start(3, survives=False)
    _until(lambda: not master._detector.unknown([1, 2]))
    last.leave(0)
    _until(master.check)
    assert master.check().endswith(": no sign of life for 2 s (cluster.failure_timeout); start it again")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [master.check()]


def test_ranks_that_the_master_leaves_alone_end_the_run(
    start: Callable[..., list[Heartbeats]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They agree that it is the master, not they, whom nobody hears."""
    killed: list[int] = []
    monkeypatch.setattr(heartbeats.os, "kill", lambda _pid, number: killed.append(number))
    master, *others = start(3)
    _until(lambda: not any(other._detector.unknown([0]) for other in others))
    master._left = True  # it stops without a word
    _until(lambda: all(other.check() for other in others))
    assert all("rank 0 (role 0)" in other.check() for other in others)
    assert killed == []
    for other in others:
        other.leave(1)
    assert signal.SIGKILL in killed, "without a launcher they end the master"


def test_a_released_rank_declares_nobody_dead(start: Callable[..., list[Heartbeats]]) -> None:
    master, other = start(2, survives=False)
    _until(lambda: not master._detector.unknown([1]))
    master.release()
    other.leave(0)
    _rest(2 * TIMEOUT_S)
    assert master.check() == ""


def test_heartbeats_of_others_and_old_ones_are_dropped(start: Callable[..., list[Heartbeats]]) -> None:
    """Those of another run, forged ones, and those that were there before: a dead rank would seem to live."""
    master, other = start(2)
    _until(lambda: not master._detector.unknown([1]))
    peers = other._peers
    beat = {"from": 1, "to": 0, "number": 10**9, "progress": 1, "silent": [], "master_s": None}
    forged = heartbeats._packed(b"another key", beat)
    old = heartbeats._packed(b"key", {**beat, "number": 0})
    for data in (b"", b"x" * 100, forged, old, heartbeats._packed(b"key", {**beat, "to": 7})):
        assert master._peers.accepted(data, ("127.0.0.1", 1)) is None
    assert master._peers.accepted(heartbeats._packed(b"key", beat), ("127.0.0.1", 1)) is not None
    _until(lambda: peers.known[0].heard_at is not None)


_EXCLUDED = """
import sys, json, time
from swjoin.runtime.mpi.heartbeats import Heartbeats, Rules
mine = Heartbeats(1, Rules(2.0, True, str, lambda size, rank: "role"), loopback=True)
print(json.dumps(mine.endpoint), flush=True)
mine.start(b"key", [json.loads(sys.stdin.readline()), mine.endpoint])
while True:
    mine.check()
    open(sys.argv[1], "a").write("x")
    time.sleep(0.001)
"""


def test_a_rank_that_wakes_up_excluded_ends_itself(tmp_path: Path) -> None:
    """It was stopped for longer than the timeout. It does nothing between the first check of its main thread and its end."""
    child = subprocess.Popen(
        [sys.executable, "-c", _EXCLUDED, str(tmp_path / "done")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    master = Heartbeats(0, _rules(survives=True), loopback=True)
    try:
        endpoint = json.loads(child.stdout.readline())
        child.stdin.write(json.dumps(master.endpoint) + "\n")
        child.stdin.flush()
        master.start(b"key", [master.endpoint, endpoint])
        _until(lambda: (tmp_path / "done").exists() and not master._detector.unknown([1]))
        os.kill(child.pid, signal.SIGSTOP)
        _until(lambda: master.suspects)
        master.follow(1, [0])
        time.sleep(TIMEOUT_S)
        before = (tmp_path / "done").stat().st_size
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait(PROCESS_S) == -signal.SIGKILL
        assert (tmp_path / "done").stat().st_size <= before + 1, "the round in which it was stopped"
    finally:
        master.leave(0)
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


# ---------------------------------------------------------------- the launcher


@pytest.fixture
def watched(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., list[Heartbeats]]
) -> Iterator[tuple[MasterWatch, Heartbeats]]:
    """A launcher's watch, and a master in this process, which is not to be killed."""
    monkeypatch.setattr(Process, "kill", lambda self: None)
    with MasterWatch.of(TIMEOUT_S, loopback=True) as watch:
        assert watch is not None
        monkeypatch.setenv(WATCH, watch.setting)
        master, _ = start(2)
        yield watch, master


def test_the_launcher_notices_a_master_that_is_frozen(watched: tuple[MasterWatch, Heartbeats]) -> None:
    watch, master = watched
    for _ in range(40):
        assert watch.look() == ""
        _rest(2 * TIMEOUT_S / 40)
    assert not watch.left
    master._left = True  # stopped, without a word
    said: list[str] = []
    _until(lambda: said.append(watch.look()) or said[-1])
    assert said[-1] == f"rank 0 (master) on {Process.this().host}: no sign of life for 2 s (cluster.failure_timeout)"
    assert watch.left
    assert watch.look() == "", "it says so once"


def test_the_launcher_hears_that_the_master_has_ended(watched: tuple[MasterWatch, Heartbeats]) -> None:
    watch, master = watched
    master.leave(3)
    _until(lambda: watch.look() == "" and watch.left)
    assert watch.code == 3


def test_a_master_that_nobody_has_heard_is_not_watched() -> None:
    with MasterWatch.of(1.0, loopback=True) as watch:
        assert watch is not None
        plain = json.loads(watch.setting)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"garbage" * 10, tuple(plain["addresses"][0]))
        for _ in range(20):
            assert watch.look() == ""
            time.sleep(0.1)
    with MasterWatch.of(0.0, loopback=True) as watch:
        assert watch is None

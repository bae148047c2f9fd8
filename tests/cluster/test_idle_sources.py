"""Streams that say nothing: time goes on without them after the idle timeout, and what they bring too late is late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from swjoin.checkpoint.manifest import check_gateway_state, check_master_state
from swjoin.cluster.gateway.gateway import Gateway, Share
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.master.master import Master, idle_times_us
from swjoin.cluster.messages import EpochWanted
from swjoin.cluster.role import (
    MASTER,
    BatchRead,
    Received,
    RoleId,
    SavePart,
    Send,
    Snapshot,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    StopRequested,
    gateway_role,
)
from swjoin.config.loader import config_from_plain
from swjoin.config.run import TimeConfig
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.generator.source import GeneratorSource
from swjoin.core.batch import RIGHT, SourceBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import UserError
from swjoin.core.ids import END_OF_TIME_US
from swjoin.runtime.idle_sources import IdleDetector
from tests.conftest import ROOT
from tests.support.effects import reported
from tests.support.limits import PROCESS_S
from tests.support.overloaded import answer_without
from tests.support.planted import complaints
from tests.support.roles import FirstRank
from tests.tools import random_runs


def rows(times: list[int]) -> SourceBatch:
    ts = np.array(times, np.int64)
    return SourceBatch(np.zeros(len(ts), np.int64), ts, np.arange(len(ts), dtype=np.uint64))


def test_what_is_older_than_a_promise_is_late() -> None:
    intake = StreamIntake(0, TimeConfig(max_out_of_order_us=2, late="side"))
    intake.read(rows([10]), 0)
    intake.arrive_all()
    intake.become_idle()
    intake.carry(50)  # the other stream has come that far
    assert intake.watermark_us == 48
    intake.become_active()
    aside = intake.read(rows([20, 47, 48, 60]), 0)
    assert [batch.ts.tolist() for batch, _ in aside] == [[20, 47]]
    assert intake.counts.late == 2
    intake.arrive_all()
    assert intake.watermark_us == 58


def test_a_stream_restored_while_idle_keeps_its_promise() -> None:
    intake = StreamIntake(0, TimeConfig(late="drop"))
    intake.read(rows([10]), 0)
    intake.arrive_all()
    intake.become_idle()
    intake.carry(50)
    plain = json.loads(json.dumps(intake.plain_state()))
    other = StreamIntake(0, TimeConfig(late="drop"))
    other.restore(plain, {"arriving": [], "held": [], "released": []})
    other.read(rows([49, 50]), 0)
    assert other.counts.late == 1


def test_read_ahead_says_whether_it_has_something() -> None:
    def items() -> Any:
        yield 1
        time.sleep(0.3)
        yield 2

    ahead = ReadAhead(items)
    assert ahead.ready(1.0)
    assert ahead.ready(0.0)  # asking takes nothing away
    assert ahead.next() == 1
    assert not ahead.ready(0.01)
    assert not ahead.ready(0.0)
    assert ahead.ready(5.0)
    assert [ahead.next(), ahead.next()] == [2, None]
    assert ahead.ready(0.0)  # its end
    ahead.close()


def test_silence_is_timed() -> None:
    class Source:
        stream_resumed = False

        def ready(self, patience_s: float) -> bool:
            time.sleep(patience_s)
            return self.stream_resumed

    source: Any = Source()
    silence = IdleDetector(30_000)
    begin = time.monotonic()
    while silence.of(1, source) is False:
        pass
    assert time.monotonic() - begin >= 0.03
    assert silence.any_idle
    assert silence.ended([source, source]) == []
    source.stream_resumed = True
    assert silence.ended([source, source]) == [1]
    assert not silence.any_idle
    assert IdleDetector(0).of(0, source) is None


def config_file(folder: Path, pace: str, late: str, idle: str, duration: str) -> Path:
    """Two streams of which the right one will be silent for a while, and partition-groups that move meanwhile."""
    plain = {
        "join": {"within": "100ms"},
        "pace": pace,
        "time": {"idle_timeout": idle, "late": late},
        "workload": {"rate": 150_000, "duration": duration, "bias": 0.6, "domain": 1_000_000, "payload": 0},
        "cluster": {"distribution_epoch": "50ms"},
        "module": {"theta": "32KB", "stream_buffer": "8MB"},
        "reorganization": {"policy": "random", "epoch": "100ms"},
        "sink": {"kind": "count"},
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("pace", ["asap", "realtime"])
@pytest.mark.parametrize("late", ["side", "drop"])
def test_a_source_that_is_silent_for_a_while(
    pace: str, late: str, monkeypatch: pytest.MonkeyPatch, swjoin: Any, tmp_path: Path
) -> None:
    """The right source has nothing to read for a second after its second batch: left tuples are joined all the same."""
    silent_until: list[float] = []
    ready, read = GeneratorSource.ready, GeneratorSource.read
    batches = [0]

    def read_counted(self: GeneratorSource) -> SourceBatch | None:
        batches[0] += self._stream == RIGHT
        return read(self)

    def ready_later(self: GeneratorSource, patience_s: float) -> bool:
        if self._stream == RIGHT and batches[0] == 2:
            silent_until[:] = silent_until or [time.monotonic() + 1.0]
            if silent_until[0]:  # asked once more when it is over, so that its length is seen by a master that had to wait
                silent_until[0] *= time.monotonic() < silent_until[0]
                time.sleep(patience_s)
                return False
        return ready(self, patience_s)

    monkeypatch.setattr(GeneratorSource, "read", read_counted)
    monkeypatch.setattr(GeneratorSource, "ready", ready_later)
    path = config_file(tmp_path, pace, late, "100ms", "2s")
    out = tmp_path / "run"
    done = swjoin("run", path, "--threads", 2, "--out", out)
    assert done.code == 0, done.err
    report = json.loads((out / "run.json").read_text())
    assert report["ledger"]["balanced"]
    events = pq.read_table(out / "metrics" / "events.parquet").to_pylist()
    told = [(e["kind"], e["text"]) for e in events if e["kind"] in ("idle", "speaks")]
    assert told[:2] == [("idle", "right"), ("speaks", "right")]
    assert report["late"]["left"] == 0
    assert report["late"]["right"] > 1000
    assert "right has been silent" in swjoin("events", out, "--kind", "idle").out
    if late == "side":
        assert (report["results"]["count"], report["results"]["digest"]) == answer_without(report, out / "late.parquet", "late")


PATCH = """
import sys, time
if "-m" in sys.orig_argv or any("swjoin" in word for word in sys.orig_argv):
    from swjoin.connectors.generator.source import GeneratorSource
    ready, silent = GeneratorSource.ready, []
    def ready_later(self, patience_s):
        if self._stream == 1 and self._rows:
            silent[:] = silent or [time.monotonic() + 0.6]
            if silent[0]:  # as above
                silent[0] *= time.monotonic() < silent[0]
                time.sleep(patience_s)
                return False
        return ready(self, patience_s)
    GeneratorSource.ready = ready_later
"""


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize("pace", [pytest.param("asap", marks=pytest.mark.long), "realtime"])
def test_a_silent_source_on_real_ranks(pace: str, tmp_path: Path) -> None:
    """The master's rank goes on, too: its right source is made silent for a while after its first batch."""
    (tmp_path / "sitecustomize.py").write_text(PATCH)
    path = config_file(tmp_path, pace, "side", "50ms", "1500ms")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "swjoin", "run", str(path), "-n", "4", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "run.json").read_text())
    assert report["ledger"]["balanced"]
    kinds = [e["kind"] for e in pq.read_table(out / "metrics" / "events.parquet").to_pylist()]
    assert kinds.count("idle") == kinds.count("speaks") == 1
    some = pace == "asap"  # by the clock none may be late: a loaded machine may begin after the silence
    expected = answer_without(report, out / "late.parquet", "late", some=some)
    assert (report["results"]["count"], report["results"]["digest"]) == expected


def test_a_stop_is_heard_when_nobody_has_ever_spoken() -> None:
    config = config_from_plain(
        {
            "join": {"within": "1s"},
            "pace": "realtime",
            "time": {"idle_timeout": "1s", "late": "drop"},
            "checkpoint": {"interval": "1h"},
            "cluster": {"distribution_epoch_us": 100, "partition_count": 4},
        }
    )
    rank = FirstRank(config, 1)
    rank.start()
    for stream in (0, 1):
        rank.handle(SourceIdle(stream), 0)
    rank.handle(StopRequested(), 50)
    commands = rank.handle(reported(0, 0.0), 250)
    master, gateway = sorted((c.snapshot for c in commands if isinstance(c, SavePart)), key=lambda part: len(part.tuples))
    plain = [json.loads(json.dumps(part.plain)) for part in (master, gateway)]
    check_master_state(Path("x"), plain[0], 0, 0, 4)
    check_gateway_state(Path("x"), 0, plain[1], 0, 4, 2)
    other = FirstRank(config, 1)
    other.master.restore(plain[0], 0)
    other.gateway.restore([plain[1]], [Snapshot(plain[1], gateway.tuples)])
    other.start()
    other.handle(BatchRead(0, rows([-5, 3])), 300)
    assert other.gateway.streams[0].counts.late == 0  # nothing had been promised


def test_without_a_timeout_the_join_waits() -> None:
    """The default: nothing is late because a source was slow."""
    assert config_from_plain({"join": {"within": "1s"}}).time.idle_timeout_us == 0


def test_late_rows_have_to_be_allowed() -> None:
    with pytest.raises(UserError, match="choose late: drop or side"):
        config_from_plain({"join": {"within": "1s"}, "time": {"idle_timeout": "1s"}})


@pytest.mark.drawn
def test_a_promise_that_forgets_the_silence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamIntake, "become_active", lambda self: setattr(self, "idle", False))
    silent = [seed for seed in range(400) if random_runs.Scenario.draw(seed).config.time.idle_timeout_us]
    assert len(silent) > 30
    assert complaints(silent, 3) == 3


def test_an_idle_gateway_delivers_what_the_time_of_others_releases() -> None:
    """A run in which such rows once came after the watermark that had passed them."""
    random_runs.run_simulated(100_380)


# ---------------------------------------------------------------- with several gateways


class _Gateways:
    """Two gateways of a run in asap pace, their master, and one slave that is always ready."""

    def __init__(self) -> None:
        cluster = {"distribution_epoch": "0us", "epoch_tuples": 100, "partition_count": 4}
        time = {"idle_timeout": "1s", "late": "drop"}
        plain = {"join": {"within": "1s"}, "time": time, "cluster": cluster}
        config = config_from_plain(plain).with_gateways(2)
        self.roles: list[Any] = [Gateway(config, 1, (None, None), share=Share(number, fixed=True)) for number in (0, 1)]
        self.names = [gateway_role(number) for number in (0, 1)]
        self.master = Master(config, 1)
        self.epochs = 0
        self.announced_us: list[tuple[int, int]] = [(0, 0), (0, 0)]  # the last watermarks of every gateway
        for number in (0, 1):
            self._perform(self.names[number], self.roles[number].start())
            self.handle(number, reported(0, 0.0))

    def handle(self, number: int, *events: Any) -> None:
        for event in events:
            self._perform(self.names[number], self.roles[number].handle(event, 0))

    def _perform(self, sender: RoleId, effects: list[Any]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            if effect.to == MASTER:
                self._perform(MASTER, self.master.handle(Received(sender, effect.message), 0))
                self.epochs = self.master.epoch + 1
                assert self.epochs < 50, "epochs without end"
            elif effect.to in self.names:
                self.handle(self.names.index(effect.to), Received(sender, effect.message))
            elif isinstance(effect.message, Delivery):
                number = self.names.index(sender)
                self.announced_us[number] = effect.message.left_time_us, effect.message.right_time_us
                self.handle(number, reported(0, 0.0))


def test_the_last_rows_before_a_silence_are_not_kept_for_the_next_ones() -> None:
    """The slave hears of the time of all gateways, also if it is the other one that brought rows."""
    gateways = _Gateways()
    gateways.handle(1, SourceIdle(0), SourceIdle(1))
    gateways.handle(0, BatchRead(0, rows([10])), BatchRead(1, rows([20])), SourceIdle(0), SourceIdle(1))
    assert gateways.announced_us == [(20, 20), (20, 20)]
    before = gateways.epochs
    gateways.handle(1, SourceResumed(0), BatchRead(0, rows([30])), SourceIdle(0))
    assert gateways.announced_us == [(30, 30), (30, 30)]
    assert gateways.epochs <= before + 3


def test_a_stream_that_is_idle_where_it_is_open_follows_the_other_one() -> None:
    """The right stream has one partition, which the first gateway reads."""
    gateways = _Gateways()
    gateways.handle(1, SourceEnded(1))
    gateways.handle(0, BatchRead(0, rows([10])), BatchRead(1, rows([10])), SourceIdle(0), SourceIdle(1))
    gateways.handle(1, BatchRead(0, rows([40] * 60)))
    assert gateways.announced_us[0] == (40, 40)
    assert gateways.announced_us[1] == (40, END_OF_TIME_US)


def test_an_idle_gateway_does_not_go_beyond_the_slowest() -> None:
    config = [(0, (10, 30), False), (1, (50, 20), False), (2, (5, 5), True), (3, (END_OF_TIME_US,) * 2, False)]
    wanted = [EpochWanted(0, times_us[0] == END_OF_TIME_US, False, (), (), times_us, idle) for _, times_us, idle in config]
    assert idle_times_us(wanted) == (10, 20)
    assert idle_times_us(wanted[2:]) == (5, 5)
    assert idle_times_us(wanted[3:]) == ()


def test_a_gateway_that_has_read_everything_asks_for_no_epoch_while_others_read() -> None:
    gateways = _Gateways()
    gateways.handle(1, SourceEnded(0), SourceEnded(1))
    gateways.handle(0, BatchRead(0, rows([10] * 60)), BatchRead(1, rows([10] * 60)))
    assert gateways.epochs <= 3
    gateways.handle(0, SourceEnded(0), SourceEnded(1))
    assert gateways.master.finished


@pytest.mark.parametrize("seed", [181, 426])
def test_what_ends_while_an_epoch_is_planned_is_told_in_the_next_one(seed: int) -> None:
    """A stream ends between the request for an epoch and its plan: the gateway is the last one that reads."""
    random_runs.run_simulated(seed)


def test_a_checkpoint_between_sub_groups_needs_no_further_split() -> None:
    """One gateway goes on for several: no split is dealt until the distribution epoch of a checkpoint is closed."""
    random_runs.run_simulated(31_588)

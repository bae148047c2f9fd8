"""Checkpoints: crashes in the simulator, stops and resumptions in one process, deaths of real ranks, corrupt files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.checkpoint import delivery_log
from swjoin.checkpoint.checkpointers import GatewayCheckpointer
from swjoin.checkpoint.delivery_log import Segment, SegmentLog, replay, replay_epochs
from swjoin.checkpoint.store import CheckpointStore, read_gateway, read_manifest, write_gateway
from swjoin.cluster.collector import Collector, Tally
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.checkpoint_coordinator import Checkpoints
from swjoin.cluster.messages import CheckpointDurable, PartSaved
from swjoin.cluster.role import COLLECTOR, GATEWAY, CheckpointCompleted, CompleteCheckpoint, Send, sink_role
from swjoin.cluster.slave.slave import Slave
from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import CheckpointConfig, QueryConfig
from swjoin.core.batch import PayloadRows, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import EpochIndex, QueryId, SlaveId
from swjoin.core.join_semantics import Bounds
from swjoin.core.key_encoder import Dictionary
from swjoin.core.storage import AppendedFile, read_records, write_records
from swjoin.runtime.simulator.result import SimulationError
from swjoin.runtime.simulator.storage import MemorySink
from tests.conftest import ROOT
from tests.support.cases import CASES, by_name, moving
from tests.support.limits import PROCESS_S
from tests.support.planted import complaints
from tests.support.stopped_runs import _in_pieces, _run, _stopping
from tests.tools.processes import LaunchedRun
from tests.tools.random_kills import FaultScenario, run_with_faults
from tests.tools.random_runs import Scenario, run_scenario

# ---------------------------------------------------------------- the simulator: crashes at any step


def _crashing() -> Iterator[int]:
    """Scenarios with checkpoints, crashes and many tuples."""
    for seed in itertools.count():
        scenario = Scenario.draw(seed)
        if scenario.config.checkpoint.enabled and scenario.crashes and sum(map(len, scenario.rows)) > 100:
            yield seed


def _caught(enough: int, count: int = 120) -> int:
    return complaints(itertools.islice(_crashing(), count), enough)


def test_runs_with_crashes_are_right() -> None:
    assert _caught(1, 5) == 0  # hundreds more in test_simulator.py


@pytest.mark.drawn
def test_a_delivery_missing_in_the_log_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = SegmentLog.append
    monkeypatch.setattr(SegmentLog, "append", lambda self, d, frame=None: None if d.epoch % 2 else append(self, d, frame))
    assert _caught(1) == 1


@pytest.mark.drawn
def test_windows_that_are_not_restored_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slave, "restore", lambda self, delivery: None)
    assert _caught(1) == 1


@pytest.mark.drawn
def test_segments_dropped_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "alive", lambda self, alive_us: False)
    assert _caught(1) == 1


@pytest.mark.drawn
@pytest.mark.parametrize("held_bytes", [300, *(pytest.param(n, marks=pytest.mark.long) for n in (0, 3_000))])
def test_crashes_with_a_log_that_holds_back_less(held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulator everything fits; here deliveries are written before a checkpoint asks for them."""
    monkeypatch.setattr(delivery_log, "UNWRITTEN_LIMIT_BYTES", held_bytes)
    assert _caught(1, 12) == 0


@pytest.mark.drawn
def test_deliveries_forgotten_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what has been promised, instead of by what is needed then."""
    monkeypatch.setattr(
        Gateway, "_needed_us", property(lambda self: self.outbox.least_promised() if self.outbox.promised else (0, 0))
    )
    assert _caught(1) == 1


def test_only_what_is_alive_is_written(tmp_path: Path) -> None:
    """With windows that are short beside the interval, a segment holds its newest deliveries; what others promised stays."""

    def delivery(epoch: int) -> Delivery:
        ts = np.arange(10 * epoch, 10 * epoch + 10)
        batch = TupleBatch(ts, ts, ts.astype(np.uint64), ts)
        group, counts, none = np.zeros(1, np.int64), np.full(1, 10, np.int64), TupleBatch.empty()
        times = 10 * epoch + 10, 10 * epoch + 10
        needed = 10 * epoch - 25, 10 * epoch - 25
        left = Delivery(QueryId(0), SlaveId(0), EpochIndex(epoch), *times, group, counts, 0 * counts, batch, none)
        return dataclasses.replace(left, needed_us=needed)

    for promises in (False, True):
        done: list[PartSaved] = []
        folder = tmp_path / str(promises)
        folder.mkdir()
        log = SegmentLog(folder, 0, 0, 1, done.append, promises=promises)
        for epoch in range(20):
            log.append(delivery(epoch))
        log.seal(0, {})
        log.close()
        segment = Segment.from_plain(done[0].content["segment"])
        assert (segment.tuples, segment.newest_us[0]) == (40, 199)
        assert segment.count == (20 if promises else 4)
        found = list(replay_epochs(folder, [segment], np.ones(1, bool), (165, 165)))
        assert [times for times, _ in found] == [(10 * e + 10, 10 * e + 10) for e in (range(20) if promises else range(16, 20))]
        assert [d.left.ts.tolist() for _, deliveries in found for d in deliveries] == [
            [t for t in range(10 * e, 10 * e + 10) if t >= 165] for e in range(16, 20)
        ]


def test_what_comes_before_the_segment_is_sealed_does_not_tell_what_it_needs(tmp_path: Path) -> None:
    """A slave that lags has deliveries of the next generation before it has joined the last one before the cut."""

    def delivery(epoch: int, generation: int, needed: int) -> Delivery:
        ts = np.arange(10 * epoch, 10 * epoch + 10)
        batch, none, group = TupleBatch(ts, ts, ts.astype(np.uint64), ts), TupleBatch.empty(), np.zeros(1, np.int64)
        times, counts = (10 * epoch + 10, 10 * epoch + 10), np.full(1, 10, np.int64)
        left = Delivery(QueryId(0), SlaveId(0), EpochIndex(epoch), *times, group, counts, 0 * counts, batch, none)
        return dataclasses.replace(left, generation=generation, needed_us=(needed, needed))

    done: list[PartSaved] = []
    log = SegmentLog(tmp_path, 0, 0, 1, done.append)
    for part in ((0, 0, -30), (1, 0, -20), (2, 1, 15), (3, 1, 30)):
        log.append(delivery(*part))
    log.seal(0, {})
    log.seal(1, {})
    log.close()
    assert [p.content["segment"]["tuples"] for p in done] == [20, 10]


def test_what_is_held_back_is_limited_over_all_generations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ts = np.arange(1000)
    batch, counts = TupleBatch(ts, ts, ts.astype(np.uint64), ts), np.full(1, 1000, np.int64)
    one = Delivery(QueryId(0), SlaveId(0), EpochIndex(0), 0, 0, np.zeros(1, np.int64), counts, 0 * counts, batch, batch)
    one = dataclasses.replace(one, right=TupleBatch.empty())
    monkeypatch.setattr(delivery_log, "UNWRITTEN_LIMIT_BYTES", 5 * one.nbytes)
    log = SegmentLog(tmp_path, 0, 0, 1, lambda part: None)
    for generation in (0, 0, 0, 0, 1, 1, 1):
        log.append(dataclasses.replace(one, generation=generation))
    log.close()
    assert sum(s.unwritten_bytes for s in log._open.values()) <= 5 * one.nbytes
    assert [s.tuples for s in log._open.values()] == [3000, 0]  # of each a little more than its tuples is held


def test_results_after_the_checkpoint_that_stay_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(self: MemorySink, names: list[str], generation: int) -> None:
        self.publish([*names, *self._sealed], generation)

    monkeypatch.setattr(MemorySink, "restore", restore)
    assert _caught(1) == 1


def test_a_collector_that_forgets_what_it_had_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(self: Collector, epoch: int, states: Sequence[dict[str, Any]]) -> None:
        self.committed = EpochIndex(epoch)
        for sender in self._senders:
            sender.completed = epoch

    monkeypatch.setattr(Collector, "restore", restore)
    assert _caught(1) == 1


def test_sources_that_go_on_reading_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from swjoin.runtime.simulator.storage import BatchSource

    monkeypatch.setattr(BatchSource, "seek", lambda self, row: None)
    assert _caught(1) == 1


def test_a_cut_through_moves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves go on being decided while slaves may not have joined what was delivered before the cut: few runs see it."""
    drawn = Scenario.draw(2918)
    query = QueryConfig(-5_000, 15_000, ("lower", "upper"))
    config = dataclasses.replace(drawn.config, queries=(query,)).with_gateways(1)
    scenarios = [
        dataclasses.replace(drawn, seed=seed, config=config, crashes=((first, 3), (second, 2)))
        for seed, first, second in ((453789, 487, 746), (528589, 466, 682), (310716, 441, 557), (161333, 300, 380))
    ]

    def run_all() -> None:
        for scenario in scenarios:
            run_scenario(scenario)

    run_all()
    monkeypatch.setattr(Checkpoints, "being_joined", property(lambda self: False))
    with pytest.raises(SimulationError, match="are somewhere"):
        run_all()


# ---------------------------------------------------------------- when a checkpoint is due


def test_a_checkpoint_is_completed_with_its_last_part() -> None:
    checkpoints = Checkpoints(CheckpointConfig(epochs=3), 2, 2)
    assert [checkpoints.due(epoch, 0) for epoch in range(4)] == [False, False, True, True]
    checkpoints.begin(EpochIndex(2), 100)
    assert not checkpoints.due(9, 0), "one is under way"
    assert checkpoints.cut((5, 7)) == 0
    assert checkpoints.saved(PartSaved(0, "slave 1", {"s": 1})) == []
    assert checkpoints.being_joined
    assert checkpoints.saved(PartSaved(0, "slave 0", {"s": 0})) == []
    assert not checkpoints.being_joined
    assert checkpoints.saved(PartSaved(0, "master", {})) == []
    assert checkpoints.saved(PartSaved(0, "gateway 0", {})) == []
    with pytest.raises(AssertionError, match="saved its part of generation 1, which is not expected"):
        checkpoints.saved(PartSaved(1, "sink 0", {}))
    assert checkpoints.saved(PartSaved(0, "sink 1", {})) == []
    (command,) = checkpoints.saved(PartSaved(0, "sink 0", {}))
    assert isinstance(command, CompleteCheckpoint)
    assert (command.generation, command.epoch, command.clock_us, command.alive_us) == (0, 2, 100, (5, 7))
    assert checkpoints.complete(CheckpointCompleted(0, 42), 350) == [
        Send(to, CheckpointDurable(0, False)) for to in (GATEWAY, COLLECTOR, sink_role(1))
    ]
    assert checkpoints.summary() == {"completed": 1, "last_s": 250e-6, "longest_s": 250e-6, "bytes": 42}
    assert [checkpoints.due(epoch, 0) for epoch in (4, 5)] == [False, True]


def test_an_interval_counts_from_the_beginning_of_the_last_one() -> None:
    checkpoints = Checkpoints(CheckpointConfig(interval_us=1000), 1)
    assert not checkpoints.due(5, 999)
    assert checkpoints.due(5, 1000)
    checkpoints.restore(7, 30, 5000, 7)
    assert not checkpoints.due(31, 5999)
    assert checkpoints.due(31, 6000)


@pytest.mark.parametrize("bounds", [(-10, 10), (5, 20), (-20, -5), (0, 0)])
def test_what_is_dead_matches_nothing_to_come(bounds: tuple[int, int]) -> None:
    """Every tuple below the limits fails the bounds against everything from the punctuations on; the next one may not."""
    limits = Bounds(*bounds).dead_below((100, 200))
    lower, upper = bounds
    left_dead, right_dead = limits[0] - 1, limits[1] - 1
    assert not lower <= 200 - left_dead <= upper
    assert 200 - left_dead > upper
    assert right_dead - 100 < lower
    assert 200 - limits[0] == upper
    assert limits[1] - 100 == lower


# ---------------------------------------------------------------- in one process: stop and go on


@pytest.mark.parametrize("index", range(len(CASES)), ids=[by_name(c) for c in CASES])
def test_known_cases_in_pieces(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case stopped twice, with moves, on 3, 1 and 4 slaves, checkpoints in every distribution epoch."""
    case = CASES[index]
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 40)
    config = load_config(case.write(tmp_path, **moving(case), checkpoint={"epochs": 1}))
    config = config.fitted_to(1)
    sinks = [1 + index % 3, 1 + index % 2, 1 + index % 4]
    report = _in_pieces(config, tmp_path / "run", monkeypatch, [3, 1, 4], [3 + index % 5, 4], sinks)
    assert report["complete"]
    assert (report["results"]["count"], report["results"]["digest"]) == case.answer()
    assert report["ledger"]["balanced"]
    files = list((tmp_path / "run" / "results").iterdir())
    assert sum(pq.read_metadata(f).num_rows for f in files) == report["results"]["count"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def _strings(folder: Path, kind: str, n: int = 4000) -> dict[str, Any]:
    """Two streams with string keys, disorder past the bound and null times, in several files each."""
    plain: dict[str, Any] = {}
    for seed, name in enumerate(("left", "right")):
        random = np.random.default_rng(seed)
        ts = np.sort(random.integers(0, 100_000, n)) - random.integers(0, 300, n)
        table = pa.table(
            {
                "key": pa.array([f"k{k}" for k in random.integers(0, 300, n)]),
                "ts": pa.array(ts, mask=random.random(n) < 0.01),
                "note": pa.array([f"{name} {i}" for i in range(n)]),
            }
        )
        (folder / name).mkdir()
        for part in range(3):
            piece = table.slice(part * n // 3, (part + 1) * n // 3 - part * n // 3)
            if kind == "parquet":
                pq.write_table(piece, folder / name / f"{part}.parquet", row_group_size=500)
            else:
                csv.write_csv(piece, folder / name / f"{part}.csv")
        plain[name] = {"path": str(folder / name), "time_unit": "us"}
    return {
        **plain,
        "join": {"within": "2ms"},
        "time": {"max_out_of_order": "200us", "late": "side"},
        "cluster": {"distribution_epoch": "5ms", "partition_count": 7},
        "module": {"window": "64MB"},
        "checkpoint": {"epochs": 2},
    }


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_strings_late_rows_and_files_in_pieces(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary of keys, the rows set aside and the place in the files survive, each time in new objects."""
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 300)
    config = config_from_plain(_strings(tmp_path, kind))
    _stopping(monkeypatch, 10**9)
    whole = _run(config, tmp_path / "whole", 2)
    report = _in_pieces(config, tmp_path / "run", monkeypatch, [2, 1, 3, 2], [30, 25, 25], [1, 3, 2, 4])
    assert report["checkpoints"]["resumed_from"] is not None
    for name in ("results", "late", "input", "joined"):
        assert report[name] == whole[name], name
    assert report["late"]["left"] > 0
    late = [pq.read_table(tmp_path / run / "late.parquet").sort_by("row_id") for run in ("whole", "run")]
    assert (
        late[0]
        .sort_by([("stream", "ascending"), ("row_id", "ascending")])
        .equals(late[1].sort_by([("stream", "ascending"), ("row_id", "ascending")]))
    )
    notes = [
        pq.read_table(tmp_path / run / "results", columns=["left_note", "right_note"]).sort_by(
            [("left_note", "ascending"), ("right_note", "ascending")]
        )
        for run in ("whole", "run")
    ]
    assert notes[0].equals(notes[1])
    metrics = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet")
    assert sum(metrics["pairs"].to_pylist()) == report["results"]["count"]


# ---------------------------------------------------------------- what is refused


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path]:
    """A run that was stopped after some checkpoints."""
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 300)
    config = config_from_plain(_strings(tmp_path, "parquet"))
    _stopping(monkeypatch, 30)
    assert _run(config, tmp_path / "run", 2)["resumable"]
    _stopping(monkeypatch, 10**9)
    return config, tmp_path / "run"


def test_the_last_two_checkpoints_are_kept_and_nothing_else(stopped: tuple[Any, Path]) -> None:
    folder = stopped[1] / "checkpoints"
    manifests = CheckpointStore(folder, {}).manifests()
    assert 1 <= len(manifests) <= 2
    needed = {name for path in manifests for name in read_manifest(path).files}
    appended = {"metrics.rows", "keys.bytes", "keys.lengths"}
    assert not (folder / ".lock").exists()
    assert {p.name for p in folder.iterdir()} == needed | appended


def test_a_run_that_is_resumed_is_the_same_run(stopped: tuple[Any, Path], swjoin: Any) -> None:
    """Result files from before and after the stop have their proof from one run.json."""
    results = stopped[1] / "results"
    before = {path.name for path in results.iterdir()}
    first = json.loads((stopped[1] / "run.json").read_text())["run_id"]
    assert swjoin("run", "--resume", stopped[1]).code == 0
    assert json.loads((stopped[1] / "run.json").read_text())["run_id"] == first
    files = sorted(results.iterdir())
    assert before < {path.name for path in files}
    found = [api.proof(path) for path in files]
    assert sum(part.count for part in found) == api.proof(stopped[1]).count


def test_another_run_does_not_take_the_place_of_one_that_can_be_resumed(stopped: tuple[Any, Path]) -> None:
    shutil.rmtree(stopped[1] / "results")
    with pytest.raises(UserError, match="did not end; resume it"):
        _run(stopped[0], stopped[1], 2)


def test_nothing_to_resume_from(tmp_path: Path, swjoin: Any) -> None:
    outcome = swjoin("run", "--resume", tmp_path)
    assert (outcome.code, len(outcome.err)) == (2, 1)
    assert "holds no checkpoints to resume from" in outcome.err[0]
    assert "leave everything else out" in swjoin("run", "x.yaml", "--resume", tmp_path).err[0]
    assert "configuration is missing" in swjoin("run").err[0]


def test_inputs_that_have_changed_are_refused(stopped: tuple[Any, Path], swjoin: Any) -> None:
    path = Path(stopped[0].left.path) / "1.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    outcome = swjoin("run", "--resume", stopped[1])
    assert (outcome.code, len(outcome.err)) == (2, 1)
    assert "1.parquet: has changed since the checkpoint" in outcome.err[0]


def test_an_input_of_the_same_size_with_other_rows_is_refused(stopped: tuple[Any, Path], swjoin: Any) -> None:
    path = Path(stopped[0].left.path) / "1.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    outcome = swjoin("run", "--resume", stopped[1])
    assert (outcome.code, len(outcome.err)) == (2, 1)
    assert "as many bytes, but other ones" in outcome.err[0]


@pytest.mark.parametrize("what", ["checkpoint-", "gateway-", "segment-", "keys.bytes", "keys.lengths", "late-"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone", "empty"])
def test_a_corrupt_checkpoint_is_refused_with_its_place(what: str, how: str, stopped: tuple[Any, Path], swjoin: Any) -> None:
    folder = stopped[1] / "checkpoints"
    newest = CheckpointStore(folder, {}).manifests()[-1]
    names = read_manifest(newest).files | {"keys.bytes", "keys.lengths"}
    path = folder / sorted(n for n in names if n.startswith(what))[-1]
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 4
    if how == "gone":
        path.unlink()
        if what == "checkpoint-":
            return  # then the one before is the newest
    else:
        path.write_bytes(data if how == "flip" else data[: len(data) // 2] if how == "cut" else b"")
    outcome = swjoin("run", "--resume", stopped[1])
    assert outcome.code in (1, 2)
    assert len(outcome.err) == 1, outcome.err
    assert path.name in outcome.err[0]


def test_a_checkpoint_of_an_older_format_is_refused(stopped: tuple[Any, Path], swjoin: Any) -> None:
    newest = CheckpointStore(stopped[1] / "checkpoints", {}).manifests()[-1]
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "format": 9}))
    outcome = swjoin("run", "--resume", stopped[1])
    assert (outcome.code, len(outcome.err)) == (2, 1)
    assert f"{newest.name}: a checkpoint of format 9; this version reads format 13: resume with the version" in outcome.err[0]


def test_records_come_back_or_are_refused(tmp_path: Path) -> None:
    records = [np.arange(n, dtype=np.uint8) for n in (0, 1, 63, 64, 200)]
    path = tmp_path / "records"
    nbytes = write_records(path, records)
    assert [r.tolist() for r in read_records(path, nbytes, 5)] == [r.tolist() for r in records]
    assert all(r.flags.writeable for r in read_records(path, nbytes, 5))  # or kernels are compiled anew in a recovery
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(RunFailed, match="bytes follow its last record"):
        list(read_records(path, nbytes, 4))
    with pytest.raises(RunFailed, match="no record 5 begins there"):
        list(read_records(path, nbytes, 6))
    with pytest.raises(RunFailed, match=f"the checkpoint says {nbytes + 1}"):
        list(read_records(path, nbytes + 1, 5))
    data = path.read_bytes()
    refused: list[str] = []
    for place in range(0, nbytes, 37):  # wherever a bit is flipped, it is refused, or lies in the padding
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            found = [r.tolist() for r in read_records(path, nbytes, 5)]
        except RunFailed as error:
            refused.append(str(error))
        else:
            assert found == [r.tolist() for r in records]
    assert len(refused) > 10
    assert all("corrupt at byte" in text for text in refused)


def test_an_appended_file_counts_up_to_its_length(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "rows")
    file.append(b"abc")
    mark = file.flush()
    assert mark[0] == 3
    file.append(b"defg")
    file.sync()
    file.close()
    again = AppendedFile(tmp_path / "rows", mark)
    assert again.read() == b"abc"
    again.append(b"x")
    assert again.read() == b"abcx"
    again.close()
    with pytest.raises(RunFailed, match="has 4 bytes, the checkpoint says 5"):
        AppendedFile(tmp_path / "rows", (5, 0))
    (tmp_path / "rows").write_bytes(b"abd")
    with pytest.raises(RunFailed, match="its first 3 bytes have another checksum"):
        AppendedFile(tmp_path / "rows", mark)


def test_a_dictionary_comes_back_with_the_same_codes() -> None:
    def encode(dictionary: Dictionary, words: list[bytes]) -> list[int]:
        offsets = np.cumsum([0, *(len(w) for w in words)]).astype(np.int64)
        return dictionary.encode(np.frombuffer(b"".join(words), np.uint8), offsets, None).tolist()

    first = Dictionary()
    words = [f"word {i * i % 977}".encode() for i in range(5000)]
    codes = encode(first, words)
    again = Dictionary()
    again.restore(*first.entries(0))
    assert encode(again, [b"new", *words]) == [len(first), *codes]


def test_the_gateways_part_comes_back(tmp_path: Path) -> None:
    from swjoin.cluster.role import Snapshot

    done: list[Any] = []
    identity: dict[str, Any] = {"config": {}, "config_digest": "x", "inputs": [], "command": "", "run_dir": ""}
    folder = CheckpointStore(tmp_path / "c", identity)
    assert folder.begin(None, done.append) == 1
    rows = PayloadRows(np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 1, 4]), np.arange(4, dtype=np.uint8))
    batch = TupleBatch(np.arange(3), np.arange(3) * 2, np.arange(3, dtype=np.uint64), np.zeros(3, np.int64), rows)
    extra = {"late": None, "keys": [0, [0, 0], [0, 0]], "positions": [{}, {}]}
    path = tmp_path / "c" / "gateway-0001-0000-000000.frames"
    part = write_gateway(path, Snapshot({"epoch": 4}, {"left held": [batch, batch], "right held": []}), extra)
    slave = {"joined": [3, 4], "produced": 5, "times_us": [6, 7], "segment": None}
    collected = {"results": [], "metrics": [0, 0], "state": {"epoch": 4, "tally": Tally().to_plain()}}
    parts: dict[str, Any] = {"master": {"state": {"controller": {"owner": [0, 1]}}}, "gateway 0": part}
    parts |= {"sink 0": collected, "slave 0": slave, "slave 1": slave}
    folder.complete(CompleteCheckpoint(0, EpochIndex(4), 77, (1, 2), parts))
    folder.end()
    assert not [event for event in done if isinstance(event, BaseException)]
    manifest = CheckpointStore(tmp_path / "c", {}).newest()
    assert manifest is not None
    assert (manifest.generation, manifest.alive_us, manifest.joined, manifest.produced) == (0, (1, 2), [6, 8], 10)
    found = read_gateway(tmp_path / "c", manifest.gateways[0])
    assert found.plain == {"epoch": 4}
    assert [len(b) for b in found.tuples["left held"]] == [3, 3]
    back = found.tuples["left held"][1]
    assert back.rows is not None
    assert back.rows.var is not None
    assert (back.ts.tolist(), back.rows.fixed.tolist(), back.rows.var.tolist()) == (
        [0, 2, 4],
        rows.fixed.tolist(),
        [0, 1, 2, 3],
    )
    assert found.tuples["right held"] == []
    assert folder.begin(manifest, done.append) == 2, "every start and every recovery has a number of its own"
    folder.end()


def test_what_a_partition_group_has_been_joined_up_to_never_falls(tmp_path: Path) -> None:
    """After a resumption on other slaves the full ones begin with lower watermarks; a row that had come out without a match
    came out once more after the next resumption."""
    identity: dict[str, Any] = {"config": {}, "config_digest": "x", "inputs": [], "command": "", "run_dir": ""}
    collected = {"results": [], "metrics": [0, 0]}

    def checkpoint(generation: int, owner: list[int], times_us: list[list[int]]) -> list[list[int]]:
        """By a process of its own, which goes on from the newest checkpoint; what the next one reads."""
        folder = CheckpointStore(tmp_path / "c", identity)
        failed: list[Any] = []
        folder.begin(folder.newest(), failed.append)
        state = {"epoch": generation, "tally": Tally().to_plain()}
        frames = {"name": "gateway-0001-0000-000000.frames", "nbytes": 0, "count": 0}
        extra = {"late": None, "keys": [0, [0, 0], [0, 0]], "positions": [{}, {}], "tuples": [], "frames": frames}
        parts: dict[str, Any] = {
            "master": {"state": {"controller": {"owner": owner}}},
            "gateway 0": {"state": {}, **extra},
            "sink 0": {**collected, "state": state},
        }
        for slave, until_us in enumerate(times_us):
            parts[f"slave {slave}"] = {"joined": [0, 0], "produced": 0, "times_us": until_us, "segment": None}
        folder.complete(CompleteCheckpoint(generation, EpochIndex(generation), 0, (0, 0), parts))
        folder.end()
        folder.unlock()
        assert not [event for event in failed if isinstance(event, BaseException)]
        manifest = CheckpointStore(tmp_path / "c", {}).newest()
        assert manifest is not None
        found: list[list[int]] = manifest.joined_until_us(len(owner)).tolist()
        return found

    assert checkpoint(0, [0, 1, 1], [[100, 110], [500, 510]]) == [[100, 110], [500, 510], [500, 510]]
    assert checkpoint(1, [0, 0, 1], [[150, 600], [120, 110]]) == [[150, 600], [500, 600], [500, 510]]
    assert checkpoint(2, [0, 0, 0], [[550, 400]]) == [[550, 600], [550, 600], [550, 510]]


def test_only_what_is_alive_and_mine_is_replayed(tmp_path: Path) -> None:
    """Each tuple by itself: of a window on one side only, an epoch is alive long after it is dead on the other side."""
    done: list[Any] = []
    log = SegmentLog(tmp_path, 1, 0, 1, done.append)
    for epoch in range(6):
        left = _tuples([1, 2, 3, 4], [10 * epoch + i for i in range(4)])
        right = _tuples([5, 6], [10 * epoch + 7, 10 * epoch + 8])
        groups, left_counts, right_counts = np.array([0, 3]), np.array([1, 3]), np.array([2, 0])
        log.append(_delivery(epoch, groups, left_counts, right_counts, left, right))
    log.seal(0, {"joined": [24, 12], "produced": 0})
    log.close()
    segment = Segment.from_plain(done[0].content["segment"])
    assert (segment.tuples, segment.newest_us) == (36, (53, 58))
    mine = np.array([True, False, False, False])
    found = list(replay(tmp_path, [segment], mine, (30, 57)))
    assert [d.epoch for d in found] == [3, 4, 5]
    assert [d.left.ts.tolist() for d in found] == [[30], [40], [50]]
    assert [d.right.ts.tolist() for d in found] == [[], [], [57, 58]]
    assert [(d.groups.tolist(), d.left_counts.tolist(), d.right_counts.tolist()) for d in found] == [
        ([0], [1], [0]),
        ([0], [1], [0]),
        ([0], [1], [2]),
    ]
    everything = list(replay(tmp_path, [segment], np.ones(4, bool), (0, 0)))
    assert sum(len(d.left) + len(d.right) for d in everything) == 36
    assert not list(replay(tmp_path, [segment], np.ones(4, bool), (54, 59)))


def _tuples(keys: list[int], times: list[int]) -> TupleBatch:
    n = len(keys)
    return TupleBatch(np.array(keys), np.array(times), np.arange(n, dtype=np.uint64), np.zeros(n, np.int64))


def _delivery(epoch: int, groups: Any, left_counts: Any, right_counts: Any, left: TupleBatch, right: TupleBatch) -> Delivery:
    labels = (QueryId(0), SlaveId(0), EpochIndex(epoch), 0, 0)
    return Delivery(*labels, groups, left_counts, right_counts, left, right)


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path / "c", {}) for _ in range(2))
    first.begin(None, print)
    with pytest.raises(UserError, match="another process writes checkpoints there"):
        second.begin(None, print)
    first.end()
    first.unlock()
    second.begin(None, print)
    second.end()
    second.unlock()


def test_a_run_that_dies_while_it_clears_up_cannot_be_resumed_into_ruin(
    stopped: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests go first: whatever is left then is nothing to go on from, and the results stay."""
    folder = CheckpointStore(stopped[1] / "checkpoints", {})
    unlink, calls = Path.unlink, [len(folder.manifests()) + 1]

    def dying(self: Path, missing_ok: bool = False) -> None:
        calls[0] -= 1
        if calls[0] < 0:
            raise KeyboardInterrupt
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        folder.remove()
    assert folder.newest() is None


@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_a_stop_before_the_first_row(pace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {
        "join": {"within": "500ms"},
        "pace": pace,
        "workload": {"rate_per_s": 2000.0, "duration": "1s", "domain": 1000},
        "cluster": {"distribution_epoch": "50ms", "partition_count": 8},
        "module": {"window": "64MB"},
        "checkpoint": {"interval": "1h"},
    }
    report = _in_pieces(config_from_plain(plain), tmp_path / "run", monkeypatch, [2, 2], [0])
    assert report["complete"]
    assert (report["results"]["count"], report["results"]["digest"]) == FaultScenario(1, "stop", plain, 0, 0, 0, 0).expected()
    assert report["checkpoints"]["resumed_from"] == 0


def test_checkpoints_and_history_exclude_each_other() -> None:
    plain = {"join": {"within": "1s"}, "pace": "realtime", "measure": {"prefill": "10s"}, "checkpoint": {"epochs": 1}}
    with pytest.raises(UserError, match="cannot be checkpointed"):
        config_from_plain(plain)


def test_a_configuration_is_fitted_to_fewer_slaves() -> None:
    plain = {
        "join": {"within": "1s"},
        "cluster": {"sub_group_count": 3},
        "reorganization": {"policy": "paper", "active_slaves": 4},
        "nodes": {"speed": [0.5, 1.0, 1.0, 0.25], "changes": [{"slave": 3, "at": "1s", "speed": 1.0}]},
    }
    fitted = config_from_plain(plain).fitted_to(2)
    fitted.check_slaves(2)
    assert (fitted.cluster.sub_group_count, fitted.reorganization.active_slaves, fitted.nodes.speed) == (2, 2, (0.5, 1.0))


def test_a_source_that_ends_too_early_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run would balance: what was never read is in no ledger."""
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 300)
    config = config_from_plain(_strings(tmp_path, "parquet"))
    restore = GatewayCheckpointer.restore

    def lose(self: GatewayCheckpointer, *args: Any) -> None:
        restore(self, *args)
        self._sources[0].seek(3000)

    monkeypatch.setattr(GatewayCheckpointer, "restore", lose)
    with pytest.raises(RunFailed, match="rows were read of 4000"):
        _run(config, tmp_path / "run", 1)


# ---------------------------------------------------------------- real processes


def test_sigterm_stops_a_process_which_another_resumes(tmp_path: Path) -> None:
    plain = {
        "join": {"within": "500ms"},
        "pace": "realtime",
        "workload": {"rate_per_s": 2000.0, "duration": "4s", "domain": 1000},
        "cluster": {"distribution_epoch": "50ms", "partition_count": 8},
        "module": {"window": "64MB"},
        "checkpoint": {"epochs": 4},
    }
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(plain))
    command = [sys.executable, "-m", "swjoin", "run"]
    process = subprocess.Popen(
        [*command, str(config), "--out", str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        deadline = time.monotonic() + PROCESS_S
        while not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PROCESS_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "--resume" in said
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (report["complete"], report["resumable"]) == (False, True)
    done = subprocess.run(
        [*command, "--resume", str(tmp_path / "run")], capture_output=True, text=True, timeout=PROCESS_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    ordeal = FaultScenario(1, "stop", plain, 0, 0, 0, 0)
    assert (report["results"]["count"], report["results"]["digest"]) == ordeal.expected()
    assert report["checkpoints"]["resumed_from"] is not None


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("recovering", 1),
        ("master", 1),
        ("collector", 2),  # Parquet files of three sinks
        ("both", 5),
        *(pytest.param(*odd, marks=pytest.mark.long) for odd in (("everybody", 4), ("stop", 3), ("collector", 3))),
    ],
)
def test_ranks_that_die(kind: str, seed: int, tmp_path: Path) -> None:
    report = run_with_faults(seed, tmp_path, (kind,))
    assert report["faults"]["resumed"] == (kind in ("everybody", "stop", "master"))


@pytest.mark.drawn
@pytest.mark.mpi
def test_a_slave_that_stands_by_takes_the_place_of_one_that_dies(tmp_path: Path) -> None:
    """In a full join, so that who has matched must be found again."""
    plain = {
        "join": {"within": "500ms", "how": "full"},
        "pace": "realtime",
        "workload": {"rate_per_s": 1000.0, "duration": "8s", "domain": 2000, "payload": "8B"},
        "cluster": {"distribution_epoch": "100ms", "partition_count": 8},
        "module": {"window": "64MB"},
        "reorganization": {"active_slaves": 2},
        "checkpoint": {"epochs": 5},
    }
    config, out = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(json.dumps(plain))
    cluster = LaunchedRun([str(config), "-n", "5", "--out", str(out)], tmp_path / "log")
    cluster.wait_for_start(out, 5, PROCESS_S)
    deadline = time.monotonic() + PROCESS_S
    while len(list((out / "checkpoints").glob("checkpoint-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    cluster.kill([3])  # slave 1, active; slave 2 stands by
    assert cluster.end(PROCESS_S) == 0, cluster.said()
    report = json.loads((out / "run.json").read_text())
    assert (report["results"]["count"], report["results"]["digest"]) == FaultScenario(1, "slave", plain, 0, 0, 0, 0).expected()
    assert [r["slaves"] for r in report["checkpoints"]["recoveries"]] == [2]
    metrics = pq.read_table(out / "metrics" / "slaves.parquet").to_pandas()
    late = metrics[metrics["epoch"] > metrics["epoch"].max() - 10]
    assert (late.groupby("slave")["left_tuples"].sum() > 0).all()
    assert set(late["slave"]) == {0, 1}


@pytest.mark.mpi
def test_a_case_with_checkpoints_on_ranks(tmp_path: Path) -> None:
    case = CASES[0]
    config = case.write(tmp_path, checkpoint={"epochs": 1})
    command = [sys.executable, "-m", "swjoin", "run", str(config), "-n", "5", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (report["results"]["count"], report["results"]["digest"]) == case.answer()

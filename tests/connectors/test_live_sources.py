"""Whole runs over Kafka topics and watched directories: the answer is right, whoever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from tests.conftest import ROOT
from tests.support.kafka_cluster import PARTITIONS, MockCluster, Sent
from tests.support.kafka_content import content_of, without_repeats, writer_of
from tests.support.limits import PROCESS_S
from tests.tools.oracle import brute_force
from tests.tools.processes import ranks_of

WITHIN_US, DISORDER_US = 2_000, 500
SCHEMA = "key: int64, ts: int64, id: int64, note: string"


@dataclass
class Streams:
    """Rows of two streams: key, time, id."""

    sides: tuple[TupleBatch, TupleBatch]

    @staticmethod
    def of(seed: int, rows: int) -> Streams:
        rng = np.random.default_rng(seed)

        def side() -> TupleBatch:
            ts = np.arange(rows) * 50 + rng.integers(0, DISORDER_US, rows)
            return TupleBatch(rng.integers(0, 40, rows), ts, np.arange(rows, dtype=np.uint64), ts)

        return Streams((side(), side()))

    def answer(self) -> tuple[int, str]:
        i, j = brute_force(*self.sides, Bounds.of(-WITHIN_US, WITHIN_US))
        left, right = (side.id[index] for side, index in zip(self.sides, (i, j), strict=True))
        return len(i), format_digest(pair_digest(left, right))

    def messages(self, side: int, seed: int) -> list[Sent]:
        """Divided among the partitions, each in the stream's order; some cannot be used."""
        rng, batch = random.Random(seed), self.sides[side]
        out: list[Sent] = []
        for key, ts, row in zip(batch.key.tolist(), batch.ts.tolist(), batch.id.tolist(), strict=True):
            plain = {"key": key, "ts": ts, "id": row, "note": f"n{row}"}
            out.append((rng.randrange(PARTITIONS), json.dumps(plain).encode()))
            if row % 1000 == 7:
                out.append((rng.randrange(PARTITIONS), b"nonsense"))
        return out


def config_of(sides: list[dict[str, Any]], sink: dict[str, Any], **sections: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "join": {"within": f"{WITHIN_US}us"},
        "pace": "asap",
        "time": {"late": "side", "max_out_of_order": f"{DISORDER_US}us"},
        "cluster": {"distribution_epoch": "0us", "epoch_tuples": 200, "partition_count": 8},
        "module": {"window": "64MB"},
        "sink": sink,
    }
    for name, side in zip(("left", "right"), sides, strict=True):
        plain[name] = {"schema": SCHEMA, "key": "key", "time": "ts", "time_unit": "us", "id": "id", **side}
    return {**plain, **sections}


def report_of(folder: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return plain


def ids_digest(left: Any, right: Any) -> tuple[int, str]:
    return len(left), format_digest(pair_digest(np.array(left, np.uint64), np.array(right, np.uint64)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`swjoin run ...` in a process of its own, which does not survive the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "swjoin", "run", *(str(word) for word in words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def whole(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, said


def wait_for_checkpoint(process: subprocess.Popen[str], folder: Path) -> None:
    """Or for the end of the process."""
    until_s = time.monotonic() + PROCESS_S
    while process.poll() is None and not list((folder / "checkpoints").glob("checkpoint-*")):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def topics_of(cluster: MockCluster, name: str, streams: Streams) -> list[dict[str, Any]]:
    sides = []
    for side in (0, 1):
        cluster.send(f"{name}-{side}", streams.messages(side, side))
        sides.append({"kafka": {"servers": cluster.servers, "topic": f"{name}-{side}", "until_end": True}})
    cluster.make(f"{name}-out")
    return sides


def sink_of(cluster: MockCluster, name: str) -> dict[str, Any]:
    return {"kind": "kafka", "kafka": {"servers": cluster.servers, "topic": f"{name}-out"}}


def sent(cluster: MockCluster, name: str) -> tuple[tuple[int, str], int]:
    """Count and digest of what a consumer has of the topic that follows the documents, and how many repeats it dropped."""
    messages = cluster.messages(f"{name}-out")
    kept = without_repeats(messages)
    plain = [json.loads(content_of(message)) for message in kept]
    for row in plain[:50]:
        assert row["left_note"] == f"n{row['left_id']}"
        assert row["right_note"] == f"n{row['right_id']}"
    found = ids_digest([row["left_id"] for row in plain], [row["right_id"] for row in plain])
    return found, len(messages) - len(kept)


@pytest.mark.parametrize("sinks", [1, 3])
def test_from_topics_to_a_topic(cluster: MockCluster, tmp_path: Path, swjoin: Any, sinks: int) -> None:
    streams, name = Streams.of(1, 1500), f"plain-{sinks}"
    config = config_of(topics_of(cluster, name, streams), sink_of(cluster, name))
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    outcome = swjoin(
        "run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--sinks", sinks, "--set", "module.result_buffer=8KB"
    )
    assert outcome.code == 0, outcome.err
    assert f"topic {name}-out at {cluster.servers}" in outcome.out
    report = report_of(tmp_path / "run")
    assert min(sink["count"] for sink in report["sinks"]) > streams.answer()[0] // (4 * sinks)
    assert {writer_of(message) for message in cluster.messages(f"{name}-out")} == set(range(sinks))
    assert (report["results"]["count"], report["results"]["digest"]) == streams.answer()
    assert report["ledger"]["balanced"]
    unusable = sum(content == b"nonsense" for side in (0, 1) for _, content in streams.messages(side, side))
    assert sum(report["null_key"].values()) == unusable == 4
    assert sent(cluster, name) == (streams.answer(), 0)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("how", "sinks"),
    [
        ("killed", (1, 1)),
        ("killed", (3, 2)),
        pytest.param("killed", (2, 3), marks=pytest.mark.long),
        pytest.param("stopped", (1, 1), marks=pytest.mark.long),
        pytest.param("stopped", (2, 1), marks=pytest.mark.long),
    ],
)
def test_offsets_come_from_the_checkpoint(
    cluster: MockCluster, tmp_path: Path, start: Start, how: str, sinks: tuple[int, int]
) -> None:
    """A run dies, or is stopped, at any moment; another process goes on, and the topic of results has every row."""
    for rows in (8_000, 32_000, 128_000):  # on a busy machine a short run has ended before the signal comes
        streams, name, run = Streams.of(2, rows), f"{how}-{sinks[0]}-{sinks[1]}-{rows}", tmp_path / f"run-{rows}"
        config = config_of(topics_of(cluster, name, streams), sink_of(cluster, name), checkpoint={"epochs": 1})
        (tmp_path / "c.yaml").write_text(json.dumps(config))
        process = start(tmp_path / "c.yaml", "--out", run, "--sinks", sinks[0])
        wait_for_checkpoint(process, run)
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
        process.communicate(timeout=PROCESS_S)
        if (run / "checkpoints").exists():
            break
    cluster.send(f"{name}-0", [(0, b'{"key":1,"ts":1,"id":99999}')])  # after the end
    whole(start("--resume", run, "--sinks", sinks[1]))
    report = report_of(run)
    assert len(report["sinks"]) == sinks[1]
    assert report["checkpoints"]["resumed_from"] is not None
    assert (report["results"]["count"], report["results"]["digest"]) == streams.answer()
    assert report["ledger"]["balanced"]
    found, _ = sent(cluster, name)
    assert found == streams.answer()


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize(
    ("victim", "sinks"),
    [pytest.param("slave", 1, marks=pytest.mark.long), pytest.param("collector", 1, marks=pytest.mark.long), ("sink 1", 2)],
)
def test_a_rank_dies_and_the_topics_are_read_again(
    victim: str, sinks: int, cluster: MockCluster, tmp_path: Path, start: Start
) -> None:
    """A sink dies, and another rank goes on sending its results: each is there once."""
    streams, name = Streams.of(3, 6000), victim.replace(" ", "-")
    config = config_of(topics_of(cluster, name, streams), sink_of(cluster, name), checkpoint={"epochs": 2})
    config["module"]["result_buffer"] = "8KB"  # chunks enough for each sink, whichever of them was lost
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    process = start(tmp_path / "c.yaml", "--out", tmp_path / "run", "-n", "5", "--sinks", sinks)
    wait_for_checkpoint(process, tmp_path / "run")
    ranks = ranks_of(process.pid)  # the last one plays sink 1, or a slave
    os.kill(ranks[1 if victim == "collector" else max(ranks)], signal.SIGKILL)
    whole(process)
    report = report_of(tmp_path / "run")
    assert (report["results"]["count"], report["results"]["digest"]) == streams.answer()
    assert sent(cluster, name)[0] == streams.answer()
    assert {writer_of(message) for message in cluster.messages(f"{name}-out")} == set(range(sinks))
    assert len(report["checkpoints"]["recoveries"]) == 1


# ---------------------------------------------------------------- directories


def put(folder: Path, name: str, batch: TupleBatch, first: int, stop: int) -> None:
    notes = [f"n{row}" for row in batch.id[first:stop].tolist()]
    table = pa.table(
        {"key": batch.key[first:stop], "ts": batch.ts[first:stop], "id": batch.id[first:stop].astype(np.int64), "note": notes}
    )
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def test_directories_while_files_appear(tmp_path: Path, start: Start) -> None:
    """Half of the files are there; the run is killed; the others appear, and another process goes on."""
    streams = Streams.of(4, 4000)
    sides = []
    for side, name in enumerate(("left", "right")):
        (tmp_path / name).mkdir()
        sides.append({"watch": str(tmp_path / name)})
        for first in range(0, 2000, 250):
            put(tmp_path / name, f"{first:05d}.parquet", streams.sides[side], first, first + 250)
    config = config_of(sides, {"kind": "parquet"}, checkpoint={"epochs": 2})
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    process = start(tmp_path / "c.yaml", "--out", tmp_path / "run")
    wait_for_checkpoint(process, tmp_path / "run")
    process.kill()
    process.communicate(timeout=PROCESS_S)
    process = start("--resume", tmp_path / "run")
    for side, name in enumerate(("left", "right")):
        for first in range(2000, 4000, 250):
            put(tmp_path / name, f"{first:05d}.parquet", streams.sides[side], first, first + 250)
        (tmp_path / name / "_END").touch()
    whole(process)
    report = report_of(tmp_path / "run")
    assert (report["results"]["count"], report["results"]["digest"]) == streams.answer()
    table = pq.read_table(tmp_path / "run" / "results")
    assert ids_digest(table["left_id"].to_numpy(), table["right_id"].to_numpy()) == streams.answer()


def test_a_wrong_file_ends_the_run_with_one_line_and_it_goes_on_without_it(tmp_path: Path, start: Start) -> None:
    streams = Streams.of(5, 1000)
    sides = []
    for side, name in enumerate(("left", "right")):
        (tmp_path / name).mkdir()
        sides.append({"watch": str(tmp_path / name)})
        put(tmp_path / name, "1.parquet", streams.sides[side], 0, 1000)
    config = config_of(sides, {"kind": "count"}, checkpoint={"epochs": 1})
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    process = start(tmp_path / "c.yaml", "--out", tmp_path / "run")
    wait_for_checkpoint(process, tmp_path / "run")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "left" / "2.parquet")
    said, _ = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 2
    assert "2.parquet: wrong schema: column key is missing" in said
    (tmp_path / "left" / "2.parquet").unlink()
    for name in ("left", "right"):
        (tmp_path / name / "_SUCCESS").touch()
    whole(start("--resume", tmp_path / "run"))
    report = report_of(tmp_path / "run")
    assert (report["results"]["count"], report["results"]["digest"]) == streams.answer()

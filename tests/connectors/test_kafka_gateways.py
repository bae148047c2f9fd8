"""Several gateways read the partitions of Kafka topics: the answer of brute force, whoever reads which of them, across stops
and deaths; ids and late rows of every partition by itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from swjoin.config.loader import config_from_plain
from swjoin.connectors import live_source, producer_merge
from swjoin.connectors.kafka import client
from swjoin.connectors.kafka import reader as kafka_reader
from swjoin.connectors.kafka.source import KafkaSource
from swjoin.core.batch import SourceBatch, TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.runtime import in_process
from tests.support.commands import command
from tests.support.kafka_cluster import PARTITIONS, MockCluster, Sent
from tests.support.limits import PROCESS_S
from tests.support.stopped_runs import _run
from tests.tools.oracle import brute_force

WITHIN_US, DISORDER_US = 2_000, 500
_END_US = 10**12
_PER_SIDE = ("left", "right")


@dataclass
class Topic:
    """One stream: rows of every partition in the order of its messages, late ones included. id: (partition + 1) * 2^52 +
    offset, as documented. late: which rows are more than the bound behind an earlier one of their partition."""

    rows: TupleBatch
    late: np.ndarray[Any, Any]

    @staticmethod
    def of(seed: int, count: int, begins_us: int = 0) -> Topic:
        """begins_us: of the last partition, later than the others."""
        rng = np.random.default_rng(seed)
        parts, late = [], []
        for partition in range(PARTITIONS):
            ts = np.arange(count) * 150 + partition * 37 + rng.integers(0, DISORDER_US, count)
            ts -= (rng.random(count) < 0.05) * rng.integers(0, 40_000, count)
            ts += begins_us if partition == PARTITIONS - 1 else 0
            ids = (np.arange(count) + ((partition + 1) << 52)).astype(np.uint64)
            parts.append(TupleBatch(rng.integers(0, 40, count), ts, ids, ts))
            late.append(ts < np.maximum.accumulate(ts) - DISORDER_US)
        return Topic(TupleBatch.concat(parts), np.concatenate(late))

    @property
    def good(self) -> TupleBatch:
        return self.rows.take(np.flatnonzero(~self.late))

    def messages(self) -> list[Sent]:
        """Turn by turn, so that no partition is far ahead in the log; every other one is a key of text."""
        rows = self.rows
        columns = (rows.id.astype(np.int64), rows.key, rows.ts)
        order = np.lexsort((rows.id, rows.ts))
        order = order[np.argsort(rows.id[order] & np.uint64((1 << 52) - 1), kind="stable")]
        out: list[Sent] = []
        for row, key, ts in zip(*(column[order].tolist() for column in columns), strict=True):
            plain = {"key": key, "name": f"user {key}", "ts": ts, "note": f"n{row}"}
            out.append(((row >> 52) - 1, json.dumps(plain).encode()))
        return out


@dataclass
class Topics:
    """Both streams, sent. plain: their sections of a configuration."""

    sides: tuple[Topic, Topic]
    plain: dict[str, Any]

    def config(self, key: str = "key", **sections: Any) -> dict[str, Any]:
        sides = {name: {**side, "key": key} for name, side in self.plain.items()}
        return {
            "join": {"within": f"{WITHIN_US}us"},
            "pace": "asap",
            "time": {"late": "side", "max_out_of_order": f"{DISORDER_US}us"},
            "cluster": {"distribution_epoch": "0us", "epoch_tuples": 200, "partition_count": 8},
            "sink": {"kind": "parquet"},
            **sides,
            **sections,
        }

    def check(self, out: Path, report: dict[str, Any] | None = None, *, stopped: bool = False) -> dict[str, Any]:
        """The report of a run, whose pairs, ledger and late rows are as expected. stopped: it could go on."""
        report = report or json.loads((out / "run.json").read_text())
        left, right = (side.good for side in self.sides)
        i, j = brute_force(left, right, Bounds.of(-WITHIN_US, WITHIN_US))
        expected = len(i), format_digest(pair_digest(left.id[i], right.id[j]))
        assert report["complete"] != stopped
        assert report["ledger"]["balanced"] != stopped
        assert report["late"] == {name: int(side.late.sum()) for name, side in zip(_PER_SIDE, self.sides, strict=True)}
        assert (report["results"]["count"], report["results"]["digest"]) == expected
        if stopped:
            return report  # its files have no names yet
        late = pq.read_table(out / "late.parquet")
        set_aside = sorted(zip(late["stream"].to_pylist(), late["row_id"].to_pylist(), strict=True))
        wanted = [(n, row) for n, side in zip(_PER_SIDE, self.sides, strict=True) for row in side.rows.id[side.late].tolist()]
        assert set_aside == sorted(wanted)
        table = pq.read_table(out / "results")
        for row in table.slice(0, 50).to_pylist():
            assert row["left_note"] == f"n{row['left_id']}"
            assert row["right_note"] == f"n{row['right_id']}"
        assert table.num_rows == len(i)
        return report


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def _sent(cluster: MockCluster, name: str, rows: int, **kafka: Any) -> Topics:
    sides = Topic.of(1, rows), Topic.of(2, rows)
    plain = {}
    for side, topic in zip(_PER_SIDE, sides, strict=True):
        cluster.send(f"{name}-{side}", topic.messages())
        where = {"servers": cluster.servers, "topic": f"{name}-{side}", "until_end": True, **kafka}
        schema = "key: int64, name: string, ts: int64, note: string"
        plain[side] = {"kafka": where, "schema": schema, "time": "ts", "time_unit": "us"}
    return Topics(sides, plain)


@pytest.fixture(scope="module")
def topics(cluster: MockCluster) -> Topics:
    made = _sent(cluster, "shared", 2_000)
    assert min(side.late.sum() for side in made.sides) > 300
    return made


@pytest.fixture(scope="module")
def many(cluster: MockCluster) -> Topics:
    return _sent(cluster, "many", 6_000)


@pytest.mark.parametrize(("gateways", "key"), [(2, "key"), (3, "name"), (4, "key")])
@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_partitions_are_shared_in_one_process(gateways: int, key: str, pace: str, topics: Topics, tmp_path: Path) -> None:
    plain = topics.config(key, pace=pace)
    if pace == "realtime":
        plain["cluster"] = {"distribution_epoch": "20ms"}
    report = _run(config_from_plain(plain).with_gateways(gateways), tmp_path / "run", 2)
    topics.check(tmp_path / "run", report)
    read = [gateway["tuples"] for gateway in report["gateways"]]
    share = [len(range(number, PARTITIONS, gateways)) * 2_000 for number in range(gateways)]
    assert [list(of.values()) for of in read] == [[rows, rows] for rows in share]


class _AfterCheckpoints(threading.Event):
    """A request to stop once so many checkpoints were made since."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__()
        self._folder, self._count = folder, count
        self._before = self._newest

    @property
    def _newest(self) -> int:
        return max((int(path.stem.split("-")[1]) for path in self._folder.glob("checkpoint-*.json")), default=-1)

    def is_set(self) -> bool:
        return self._newest >= self._before + self._count


def _pieces(plain: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch, gateways: list[int]) -> dict[str, Any]:
    """A run that is stopped again and again, and goes on with other numbers of gateways and slaves, at last to its end."""
    monkeypatch.setattr(live_source, "BATCH_ROWS", 50)  # so that it has not read everything before it is stopped
    monkeypatch.setattr(producer_merge, "_LEAST_ROWS", 1 << 20)
    for number, count in enumerate(gateways):
        pieces = 10**9 if number == len(gateways) - 1 else 1 if number else 5  # of the first one some rows match
        after = _AfterCheckpoints(out / "checkpoints", pieces)
        monkeypatch.setattr(in_process, "stop_signals", lambda job, after=after: nullcontext(after))
        report = _run(config_from_plain(plain).with_gateways(count), out, 1 + number % 3, resumes=number > 0)
        assert report["complete"] == (number == len(gateways) - 1)
    return report


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("gateways", "key"),
    [([1, 2, 4, 1], "key"), ([1, 2, 4, 1], "name"), ([3, 1, 2, 2], "name"), ([2, 2, 2, 2], "name")],
)
def test_resumptions_take_any_numbers_of_gateways(
    gateways: list[int], key: str, many: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions change their gateway while one is ahead of the other. What is late does not depend on it. Rows that one
    gateway has read have positions as ids."""
    plain = many.config(key, checkpoint={"epochs": 2})
    report = _pieces(plain, tmp_path / "run", monkeypatch, gateways)
    if gateways[0] > 1:
        many.check(tmp_path / "run", report)
        return
    left, right = (side.good for side in many.sides)
    assert report["results"]["count"] == len(brute_force(left, right, Bounds.of(-WITHIN_US, WITHIN_US))[0])
    assert report["late"] == {name: int(side.late.sum()) for name, side in zip(_PER_SIDE, many.sides, strict=True)}
    assert report["ledger"]["balanced"]
    table = pq.read_table(tmp_path / "run" / "results", columns=["left_id", "left_note"])
    notes = dict(zip(table["left_id"].to_pylist(), table["left_note"].to_pylist(), strict=True))
    assert len(notes) == len(set(notes.values())), "two rows have one id"
    assert min(notes) < 1 << 52 < max(notes)


def test_columns_may_have_any_names(cluster: MockCluster, tmp_path: Path) -> None:
    """Also those of the columns that the merge adds."""
    names = "row number", "merge time"
    plain: dict[str, Any] = {"join": {"within": "1s"}, "time": {"late": "drop"}, "sink": {"kind": "parquet"}}
    for side in _PER_SIDE:
        cluster.send(f"names-{side}", [(p, json.dumps({"key": 1, "ts": p, names[0]: 7, names[1]: p}).encode()) for p in (0, 1)])
        where = {"servers": cluster.servers, "topic": f"names-{side}", "until_end": True}
        schema = "key: int64, ts: int64, row number: int64, merge time: int64"
        plain[side] = {"kafka": where, "schema": schema, "key": "key", "time": "ts", "time_unit": "us"}
    _run(config_from_plain(plain).with_gateways(2), tmp_path / "run", 1)
    table = pq.read_table(tmp_path / "run" / "results")
    assert sorted(zip(*(table[f"left_{name}"].to_pylist() for name in names), strict=True)) == [(7, 0), (7, 0), (7, 1), (7, 1)]


@pytest.mark.drawn
@pytest.mark.mpi
def test_partitions_are_shared_by_ranks(topics: Topics, tmp_path: Path) -> None:
    plain = topics.config("name", cluster={"gateways": 2, "sinks": 2, "distribution_epoch": "20ms"})
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    done = command("run", tmp_path / "config.yaml", "-n", 4, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(topics.check(tmp_path / "run")["gateways"]) == 2


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize("dies", ["gateway", pytest.param("slave", marks=pytest.mark.long)])
def test_a_rank_dies_and_its_partitions_are_read_by_another(dies: str, many: Topics, tmp_path: Path) -> None:
    """Another one reads its partitions from the checkpoint."""
    cluster_section = {"gateways": 2, "distribution_epoch": "0us", "epoch_tuples": 200, "partition_count": 8}
    plain = many.config("name", cluster=cluster_section, checkpoint={"epochs": 2})
    config, out = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(json.dumps(plain))
    arguments = [executable, "-m", "swjoin", "run", str(config), "-n", "6", "--out", str(out), "-v"]
    with Popen(arguments, stderr=PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            pid = next(int(line.split("process ")[1]) for line in run.stderr if f", {dies} 1" in line or f"({dies} 1" in line)
            until_s = time.monotonic() + PROCESS_S
            while not list((out / "checkpoints").glob("checkpoint-*.json")):
                assert run.poll() is None, run.stderr.read()
                assert time.monotonic() < until_s
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            text = run.stderr.read()
            assert run.wait(PROCESS_S) == 0, text
        finally:
            run.kill()
    assert len(many.check(out)["checkpoints"]["recoveries"]) == 1


def test_more_gateways_than_partitions_are_told(topics: Topics, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(topics.config(cluster={"gateways": 9, "distribution_epoch": "20ms"})))
    done = command("run", tmp_path / "config.yaml", "--threads", 1, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "9 gateways: the inputs have 4 partitions at most, so as many are used" in done.stderr
    assert len(topics.check(tmp_path / "run")["gateways"]) == 4


def test_watched_directories_have_one_gateway(topics: Topics, tmp_path: Path) -> None:
    plain = topics.config(cluster={"gateways": 2})
    plain["left"] = {"schema": plain["left"]["schema"], "key": "key", "time": "ts", "time_unit": "us", "watch": "."}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    done = command("explain", tmp_path / "config.yaml")
    assert done.returncode == 2
    assert "cluster: gateways must be 1 for watched directories" in done.stderr


class _AfterRows(threading.Event):
    """A request to stop once so many rows before `_END_US` were read of both topics."""

    def __init__(self, patch: pytest.MonkeyPatch, rows: int) -> None:
        super().__init__()
        self._left, read, counting = rows, KafkaSource.read, threading.Lock()

        def counted(source: KafkaSource) -> SourceBatch | None:
            batch = read(source)
            rows = 0 if batch is None else int(np.count_nonzero(batch.ts < _END_US))
            with counting:  # gateways read in threads of their own
                self._left -= rows
            return batch

        patch.setattr(KafkaSource, "read", counted)

    def is_set(self) -> bool:
        return self._left == 0


def test_topics_get_another_partition(cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is found while the others' first halves are read; what follows is sent then."""
    rows, last = 1_000, PARTITIONS - 1
    sides = Topic.of(5, rows, begins_us=rows * 150), Topic.of(6, rows, begins_us=rows * 150)
    found, added = client.find_topic, threading.Semaphore(0)
    monkeypatch.setattr("swjoin.connectors.kafka.source.find_topic", lambda *args: found(*args)[:last])
    monkeypatch.setattr(kafka_reader, "_NEW_PARTITIONS_S", 0.2)
    add = kafka_reader.PartitionReader._add

    def noted(reader: kafka_reader.PartitionReader, number: int, partition: Any) -> None:
        add(reader, number, partition)
        if number == last:
            added.release()

    monkeypatch.setattr(kafka_reader.PartitionReader, "_add", noted)
    plain, later = {}, {}
    for side, topic in zip(_PER_SIDE, sides, strict=True):
        messages = topic.messages()
        first = [m for partition in range(last) for m in [m for m in messages if m[0] == partition][: rows // 2]]
        sent = set(first)
        cluster.send(f"grows-{side}", first)
        later[f"grows-{side}"] = [m for m in messages if m not in sent]
        where = {"servers": cluster.servers, "topic": f"grows-{side}"}
        plain[side] = {"kafka": where, "schema": "key: int64, name: string, ts: int64, note: string", "time": "ts"}
        plain[side]["time_unit"] = "us"

    def send_rest() -> None:
        for _ in sides:
            assert added.acquire(timeout=PROCESS_S)
        for number, (topic, messages) in enumerate(later.items()):
            ends = [{"key": 1_000 + number, "name": "", "ts": _END_US, "note": ""}] * PARTITIONS  # no row waits for others
            cluster.send(topic, [*messages, *((p, json.dumps(end).encode()) for p, end in enumerate(ends))])

    stop = _AfterRows(monkeypatch, 2 * PARTITIONS * rows)
    monkeypatch.setattr(in_process, "stop_signals", lambda job: nullcontext(stop))
    sends = threading.Thread(target=send_rest, daemon=True)
    sends.start()
    topics = Topics(sides, plain)
    report = _run(config_from_plain(topics.config(checkpoint={"epochs": 10})).with_gateways(2), tmp_path / "run", 2)
    sends.join(PROCESS_S)
    topics.check(tmp_path / "run", report, stopped=True)
    assert all(read >= 2 * rows for gateway in report["gateways"] for read in gateway["tuples"].values())

"""Several queries of one run, whose rows go to topics of their own: what is in a topic is what is in a query's files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from swjoin.connectors.kafka.sink import json_messages
from tests.support.kafka_cluster import MockCluster
from tests.support.kafka_content import content_of, position_of, without_repeats

pytest.importorskip("confluent_kafka")
_JOIN = (
    "SELECT a.k, a.v + b.v AS s FROM a JOIN b ON a.k = b.k "
    "AND b.ts BETWEEN a.ts - INTERVAL '{0}' SECOND AND a.ts + INTERVAL '{0}' SECOND"
)
QUERIES = {
    **{f"near.{width}": _JOIN.format(width) for width in (1, 2, 5)},  # one family
    "few": "SELECT k, v, ts FROM a WHERE v < 10",
    "counts": "SELECT k, window_end, count(*) AS n FROM TUMBLE(a, ts, INTERVAL '10' SECOND) GROUP BY k, window_end",
    "none": "SELECT k FROM b WHERE v > 1000",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    for prefix in ("plain", "ranks"):
        for name in QUERIES:
            made.make(f"{prefix}-{name}-rows")
    yield made
    made.close()


@pytest.fixture
def configured(cluster: MockCluster, tmp_path: Path) -> Path:
    random = np.random.default_rng(4)
    for name in "ab":
        times = pa.array(np.sort(random.integers(0, 60_000_000, 1_000)), pa.timestamp("us"))
        table = {"k": random.integers(0, 20, 1_000), "v": random.integers(0, 100, 1_000), "ts": times}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet", row_group_size=100)
    plain = {
        "queries": [{"name": name, "sql": sql} for name, sql in QUERIES.items()],
        "inputs": {name: {"path": str(tmp_path / f"{name}.parquet"), "time": "ts"} for name in "ab"},
        "cluster": {"epoch_tuples": 100},
        "sink": {"ids": False},
    }
    (tmp_path / "files.yaml").write_text(yaml.safe_dump(plain))
    kafka = {"servers": cluster.servers, "topic": "plain-{query}-rows"}
    (tmp_path / "kafka.yaml").write_text(yaml.safe_dump(plain | {"sink": {"kind": "kafka", "ids": False, "kafka": kafka}}))
    return tmp_path


def in_files(folder: Path, name: str) -> Counter[bytes]:
    rows = pq.read_table(folder / "results" / name, partitioning=None).combine_chunks()
    return Counter(text for batch in rows.to_batches() for _, text, _ in json_messages(batch, ()))


def check_topics(prefix: str, cluster: MockCluster, files: Path) -> None:
    for name in QUERIES:
        messages = without_repeats(cluster.messages(f"{prefix}-{name}-rows"))
        assert Counter(map(content_of, messages)) == in_files(files, name), name
        assert len({position_of(message) for message in messages}) == len(messages)
    assert sum(in_files(files, "near.5").values()) > sum(in_files(files, "near.1").values()) > 0
    assert not in_files(files, "none")


def test_every_query_has_a_topic(configured: Path, cluster: MockCluster, swjoin: Any) -> None:
    for kind in ("files", "kafka"):
        done = swjoin("run", configured / f"{kind}.yaml", "--out", configured / kind)
        assert done.code == 0, done.err
    answers = [json.loads((configured / kind / "run.json").read_text())["queries"] for kind in ("files", "kafka")]
    assert answers[0] == answers[1]
    check_topics("plain", cluster, configured / "files")


@pytest.mark.mpi
@pytest.mark.drawn
def test_on_ranks_with_checkpoints(configured: Path, cluster: MockCluster, swjoin: Any) -> None:
    assert swjoin("run", configured / "files.yaml", "--out", configured / "files").code == 0
    settings = ("--set", "checkpoint.epochs=3", "--set", "sink.kafka.topic=ranks-{query}-rows")
    done = swjoin("run", configured / "kafka.yaml", "--out", configured / "ranks", "-n", 4, *settings)
    assert done.code == 0, done.err
    check_topics("ranks", cluster, configured / "files")
    assert not list((configured / "ranks" / "results").rglob("*.arrow*")), "rows that were not sent"


def test_topics_that_are_refused(configured: Path, swjoin: Any) -> None:
    done = swjoin("run", configured / "kafka.yaml", "--out", configured / "out", "--set", "sink.kafka.topic=rows")
    line = "sink.kafka.topic: 6 queries have a topic each; write {query} where a query's name belongs"
    assert (done.code, len(done.err)) == (2, 1)
    assert line in done.err[0]
    plain = yaml.safe_load((configured / "kafka.yaml").read_text())
    plain["queries"] = [{"sql": QUERIES["few"]}]
    del plain["inputs"]["b"]
    (configured / "one.yaml").write_text(yaml.safe_dump(plain))
    done = swjoin("run", configured / "one.yaml", "--out", configured / "out")
    assert (done.code, len(done.err)) == (2, 1)
    assert "sink.kafka.topic: {query} stands for the name of a query, and this run has none with a name" in done.err[0]
    assert not (configured / "out").exists()

"""Queries over live streams: topics, directories, producers; DuckDB's rows, whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from benchmarks.duckdb_text import in_duckdb
from swjoin.connectors.flight.client import connect
from tests.conftest import ROOT
from tests.connectors.test_live_sources import report_of, wait_for_checkpoint
from tests.support.kafka_cluster import PARTITIONS, MockCluster
from tests.support.kafka_content import content_of, without_repeats
from tests.support.limits import PROCESS_S
from tests.support.live_runs import in_thread
from tests.tools.processes import ranks_of

DISORDER_US = 500
QUERY = """
SELECT kind, window_start, count(*) AS pays, sum(amount) AS paid
FROM TUMBLE((
  SELECT k.kind, p.amount, o.ts
  FROM orders o JOIN pays p ON o.id = p.id AND p.ts BETWEEN o.ts - INTERVAL '1' MILLISECOND AND o.ts + INTERVAL '3' MILLISECONDS
  JOIN kinds k ON o.kind = k.number
  WHERE p.amount > 3
), ts, INTERVAL '10' MILLISECONDS)
GROUP BY kind, window_start"""
SCHEMAS = {"orders": "id: int64, kind: int64, ts: timestamp[us]", "pays": "id: int64, amount: int64, ts: timestamp[us]"}
KINDS = pa.table({"number": pa.array(range(5), pa.int64()), "kind": [f"kind {n}" for n in range(5)]})
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


def tables(seed: int, rows: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)

    def stream(value: str, most: int) -> pa.Table:
        ts = pa.array(np.arange(rows) * 50 + rng.integers(0, DISORDER_US, rows), pa.timestamp("us"))
        return pa.table({"id": rng.integers(0, 40, rows), value: rng.integers(0, most, rows), "ts": ts})

    return {"orders": stream("kind", 5), "pays": stream("amount", 20)}


def answer(streams: dict[str, pa.Table]) -> Rows:
    with duckdb.connect() as db:
        for name, table in {**streams, "kinds": KINDS}.items():
            db.register(name, table)
        return Counter(db.execute(in_duckdb(QUERY)).fetchall())


def config_of(folder: Path, inputs: dict[str, Any], sink: dict[str, Any], **sections: Any) -> Path:
    pq.write_table(KINDS, folder / "kinds.parquet")
    plain: dict[str, Any] = {
        "queries": [{"sql": QUERY}],
        "inputs": {
            **{name: {"schema": SCHEMAS[name], "time": "ts", **given} for name, given in inputs.items()},
            "kinds": {"path": str(folder / "kinds.parquet")},
        },
        "pace": "asap",
        "time": {"max_out_of_order": f"{DISORDER_US}us"},
        "cluster": {"distribution_epoch": "0us", "epoch_tuples": 200, "partition_count": 8},
        "module": {"window": "64MB"},
        "sink": {"ids": False, **sink},
        **sections,
    }
    (folder / "query.yaml").write_text(json.dumps(plain))
    return folder / "query.yaml"


def address_of(run: Any) -> str:
    run.said("listening")
    found: str = run.log.read_text().split("listening at ")[1].split()[0]
    return found


def written(run: Path) -> Rows:
    return rows_of(pq.read_table(run / "results"))


def rows_of(table: pa.Table) -> Rows:
    return Counter(zip(*(table[name].to_pylist() for name in ("kind", "window_start", "pays", "paid")), strict=True))


def topics_of(cluster: MockCluster, name: str, streams: dict[str, pa.Table]) -> dict[str, Any]:
    for stream, table in streams.items():
        rng = np.random.default_rng(len(stream))
        plain = table.set_column(2, "ts", table["ts"].cast(pa.string())).to_pylist()
        cluster.send(f"{name}-{stream}", [(int(rng.integers(PARTITIONS)), json.dumps(row).encode()) for row in plain])
    cluster.make(f"{name}-out")
    return {
        stream: {"kafka": {"servers": cluster.servers, "topic": f"{name}-{stream}", "until_end": True}} for stream in streams
    }


def sent(cluster: MockCluster, name: str) -> Rows:
    """What a consumer has of the topic that follows the documents."""
    rows = [json.loads(content_of(message)) for message in without_repeats(cluster.messages(f"{name}-out"))]
    found = pa.Table.from_pylist(rows)
    return rows_of(found.set_column(1, "window_start", found["window_start"].cast(pa.timestamp("us"))))


@pytest.mark.parametrize(("gateways", "sinks"), [(1, 1), (2, 3)])
def test_from_topics_to_a_topic(cluster: MockCluster, tmp_path: Path, swjoin: Any, gateways: int, sinks: int) -> None:
    streams, name = tables(1, 1500), f"query-{gateways}"
    sink = {"kind": "kafka", "kafka": {"servers": cluster.servers, "topic": f"{name}-out"}}
    config = config_of(tmp_path, topics_of(cluster, name, streams), sink)
    done = swjoin("--debug", "run", config, "--out", tmp_path / "run", "--gateways", gateways, "--sinks", sinks)
    assert done.code == 0, done.err
    report = report_of(tmp_path / "run")
    assert report["ledger"]["balanced"]
    assert [len(report["sinks"]), report["results"]["count"]] == [sinks, answer(streams).total()]
    assert sent(cluster, name) == answer(streams)


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("victim", "gateways"), [(4, 2), pytest.param(1, 1, marks=pytest.mark.long), pytest.param(3, 1, marks=pytest.mark.long)]
)
def test_a_rank_dies_and_the_topics_are_read_again(
    cluster: MockCluster,
    tmp_path: Path,
    start: Any,
    victim: int,
    gateways: int,
) -> None:
    streams, name = tables(2, 60_000), f"killed-{victim}"  # more than a loaded machine reads before the kill
    config = config_of(tmp_path, topics_of(cluster, name, streams), {"kind": "parquet"}, checkpoint={"epochs": 2})
    run = start("run", "run", config, "--out", tmp_path / "run", "-n", 6, "--gateways", gateways)
    wait_for_checkpoint(run.process, tmp_path / "run")
    os.kill(ranks_of(run.process.pid)[victim], signal.SIGKILL)
    run.ended()
    report = report_of(tmp_path / "run")
    assert len(report["checkpoints"]["recoveries"]) == 1
    assert report["ledger"]["balanced"]
    assert written(tmp_path / "run") == answer(streams)


def test_directories_while_files_appear(tmp_path: Path, start: Any) -> None:
    """Half of the files are there; the run is killed; the others appear, and another process goes on."""
    streams = tables(3, 4000)
    inputs = {name: {"watch": str(tmp_path / name)} for name in streams}

    def put(first: int, stop: int) -> None:
        for name, table in streams.items():
            for at in range(first, stop, 250):
                pq.write_table(table.slice(at, 250), tmp_path / name / f".{at:05d}")
                (tmp_path / name / f".{at:05d}").rename(tmp_path / name / f"{at:05d}.parquet")

    for name in streams:
        (tmp_path / name).mkdir()
    put(0, 2000)
    config = config_of(tmp_path, inputs, {"kind": "parquet"}, checkpoint={"epochs": 2})
    run = start("run", "run", config, "--out", tmp_path / "run")
    wait_for_checkpoint(run.process, tmp_path / "run")
    run.signal(signal.SIGKILL)
    run = start("resumed", "run", "--resume", tmp_path / "run")
    put(2000, 4000)
    for name in streams:
        (tmp_path / name / "_END").touch()
    run.ended()
    assert report_of(tmp_path / "run")["checkpoints"]["resumed_from"] is not None
    assert written(tmp_path / "run") == answer(streams)


@pytest.mark.mpi
@pytest.mark.parametrize("gateways", [pytest.param(1, marks=pytest.mark.long), 2])
def test_producers_and_a_consumer(tmp_path: Path, start: Any, gateways: int) -> None:
    """Real time, on ranks; every process of the run is killed, and another run goes on."""
    streams = {name: table.sort_by("ts") for name, table in tables(4, 3000).items()}
    inputs: dict[str, Any] = {name: {"flight": {"producers": gateways}} for name in streams}
    sections = {"cluster": {"distribution_epoch": "40ms", "partition_count": 8}, "checkpoint": {"interval": "200ms"}}
    sections["serve"] = {"listen": "127.0.0.1:0"}
    config = config_of(tmp_path, inputs, {"kind": "parquet"}, pace="realtime", **sections)
    run = start("run", "serve", config, "--out", tmp_path / "run", "-n", 5, "--gateways", gateways)
    push(address_of(run), streams, 0, 750, gateways)
    wait_for_checkpoint(run.process, tmp_path / "run")
    run.signal(signal.SIGKILL)
    run = start("resumed", "serve", "--resume", tmp_path / "run", "-n", 4, "--gateways", 2)
    address, final = address_of(run), list[pa.RecordBatch]()
    with connect(address) as client:
        taker = in_thread(lambda: final.extend(client.results("start", final=True)))
        push(address, streams, 750, 3000 // gateways, gateways, end=True)
        taker.join(PROCESS_S)
    run.ended()
    assert report_of(tmp_path / "run")["ledger"]["balanced"]
    assert written(tmp_path / "run") == rows_of(pa.Table.from_batches(final)) == answer(streams)


def test_the_live_configuration_of_the_document(tmp_path: Path, start: Any, swjoin: Any) -> None:
    (block,) = re.findall(r"(?s)```yaml\n(inputs:.*?)```", (ROOT / "docs" / "queries.md").read_text())
    plain = yaml.safe_load(block)
    plain["inputs"]["cities"]["path"] = str(tmp_path / "cities.csv")
    (tmp_path / "cities.csv").write_text("name,country\nUlm,DE\nWien,AT\n")
    (tmp_path / "live.yaml").write_text(yaml.safe_dump(plain))
    hours = [pa.scalar(3_600_000_000 * hour // 4, pa.timestamp("us")) for hour in range(40)]
    trips = pa.table({"started": hours, "km": [1.5] * 40, "city": ["Ulm", "Wien", "Wien", "Oslo"] * 10})
    pq.write_table(trips, tmp_path / "trips.parquet")
    run = start("run", "serve", tmp_path / "live.yaml", "--listen", "127.0.0.1:0", "--out", tmp_path / "run")
    address = address_of(run)
    assert swjoin("push", address, "trips", tmp_path / "trips.parquet", "--keep-open").code == 0
    told = swjoin("tail", address, "--from", "start", "--count", 18)  # of windows that have ended
    assert swjoin("push", address, "trips", tmp_path / "trips.parquet").code == 0
    run.ended()
    found = Counter((row["country"], row["window_end"][11:13], row["trips"]) for row in map(json.loads, told.out.splitlines()))
    assert found == Counter((country, f"{end:02}", n) for country, n in (("DE", 1), ("AT", 2)) for end in range(1, 10))
    assert report_of(tmp_path / "run")["results"]["count"] == 20


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "files beside them": (
        {"pays": {"path": "p.parquet", "time": "ts"}},
        "inputs: all with a time are live (flight, kafka, watch), or none of them is",
    ),
    "no time": (
        {"orders": {"watch": ".", "time": ""}},
        "inputs.orders: a live stream needs its time column; write time: COLUMN",
    ),
    "nowhere": ({"orders": {"time": "ts"}}, "inputs.orders: give a path, a live stream (flight, kafka or watch), or generate"),
    "no such column": (
        {"orders": {"flight": {}, "schema": "id: int64", "time": "ts"}},
        "inputs.orders: no column ts; columns are id",
    ),
    "a run's name": (
        {"late": {"flight": {}, "schema": "id: int64", "time": "ts"}},
        "inputs.late: clients know a run's late by this name",
    ),
    "late rows": (
        {"time": {"late": "error"}},
        "time: with live streams a late row must not end the run; choose late: drop or side",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_refused(what: str, tmp_path: Path, swjoin: Any) -> None:
    changes, words = WRONG[what]
    config = config_of(tmp_path, {name: {"flight": {}} for name in SCHEMAS}, {"kind": "parquet"})
    plain = json.loads(config.read_text())
    if "time" in changes:
        plain["time"] |= changes["time"]
    else:
        plain["inputs"] |= changes
    if what == "files beside them":
        pq.write_table(tables(1, 10)["pays"], tmp_path / "p.parquet")
        plain["inputs"]["pays"]["path"] = str(tmp_path / "p.parquet")
    config.write_text(json.dumps(plain))
    done = swjoin("run", config, "--out", tmp_path / "run")
    assert done.code == 2
    assert len(done.err) == 1
    assert words in done.err[0]
    assert not (tmp_path / "run").exists()


def push(address: str, streams: dict[str, pa.Table], after: int, stop: int, producers: int, *, end: bool = False) -> None:
    """Rows of every stream by so many producers in turn; accepted rows are not pushed again. after: how many are."""
    with connect(address) as client:
        for name, table in streams.items():
            for number in range(producers):
                mine = table.take(np.arange(number, len(table), producers))
                with client.producer(name, f"p{number}") as producer:
                    assert producer.row == after
                    for batch in mine.slice(after, stop - after).to_batches(100):
                        producer.push(batch)
                    if end:
                        producer.end()
                assert producer.accepted == stop

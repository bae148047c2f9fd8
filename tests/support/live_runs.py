"""What tests of live runs share: configurations, rows, a run in a thread, and the right answer by brute force."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.connectors.flight.client import Client, connect
from swjoin.connectors.flight.ingest import FlightIngest
from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, How, format_digest, pair_digest
from swjoin.runtime.in_process import run_local
from tests.support.limits import PROCESS_S
from tests.tools.oracle import answer

SCHEMA = "key: int64, ts: int64, id: int64"
WIDTH_US = 20_000


def config(**sections: Any) -> dict[str, Any]:
    """A live run with checkpoints and Parquet files; sections override it, key by key."""
    stream = {"flight": {}, "schema": SCHEMA, "key": ["key"], "time": "ts", "time_unit": "us", "id": "id"}
    plain: dict[str, Any] = {
        "pace": "realtime",
        "join": {"within": f"{WIDTH_US}us"},
        "left": stream,
        "right": dict(stream),
        "time": {"late": "side"},
        "cluster": {"partition_count": 7, "distribution_epoch": "40ms"},
        "module": {"window": "256MB", "stream_buffer": "4MB"},
        "checkpoint": {"interval": "200ms"},
        "sink": {"kind": "parquet"},
        "serve": {"listen": "127.0.0.1:0", "patience": "3s"},
    }
    for name, value in sections.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return plain


def rows(seed: int, n: int, *, first_id: int = 0, keys: int = 40, span_us: int = 900_000, begin_us: int = 0) -> pa.Table:
    """In time order. key, ts, id."""
    random = np.random.default_rng(seed)
    ts = np.sort(random.integers(begin_us, begin_us + span_us, n))
    return pa.table({"key": random.integers(0, keys, n), "ts": ts, "id": np.arange(first_id, first_id + n)})


def tuples(*tables: pa.Table) -> TupleBatch:
    """In time order, ids as they are."""
    table = pa.concat_tables(tables).sort_by([("ts", "ascending"), ("id", "ascending")])
    key, ts, ids = (table[name].to_numpy() for name in ("key", "ts", "id"))
    return TupleBatch(key, ts, ids.astype(np.uint64), ts)


def expected(left: TupleBatch, right: TupleBatch, width_us: int = WIDTH_US, how: How = "inner") -> tuple[int, str]:
    none = np.empty(0, np.uint64)
    ids = answer(left, right, Bounds.of(-width_us, width_us, ()), how, (none, none))
    return len(ids[0]), format_digest(pair_digest(*ids))


def digest_of(table: pa.Table) -> tuple[int, str]:
    ids = [table[name].to_numpy().astype(np.uint64) for name in ("left_id", "right_id")]
    return table.num_rows, format_digest(pair_digest(ids[0], ids[1]))


def digest_of_folder(folder: Path) -> tuple[int, str]:
    return digest_of(pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]))


class Live(threading.Thread):
    """A run in a thread of this process. address: once it listens."""

    def __init__(self, plain: dict[str, Any], out: Path, slaves: int, resumes: bool) -> None:
        super().__init__(daemon=True)
        run = config_from_plain(plain)
        target = None if run.sink.kind == "count" else out / "results"
        self._job = Job(run, target, True, out, None, "test", resumes)
        self._slaves = slaves
        self._told: queue.Queue[str | BaseException] = queue.Queue()
        self.report: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.start()
        told = self._told.get(timeout=PROCESS_S)
        if isinstance(told, BaseException):
            raise told
        self.address = told

    def run(self) -> None:
        opened = FlightIngest.open

        def open_and_report(ingress: FlightIngest) -> None:
            opened(ingress)
            self._told.put(ingress.location)

        FlightIngest.open = open_and_report  # type: ignore[method-assign, assignment]
        try:
            self.report = run_local(self._job, False, self._slaves)
        except BaseException as error:
            self.error = error
            self._told.put(error)
        finally:
            FlightIngest.open = opened  # type: ignore[method-assign]

    def end(self) -> dict[str, Any]:
        """run.json, when it has ended."""
        self.join(PROCESS_S)
        assert not self.is_alive(), "the run does not end"
        if self.error is not None:
            raise self.error
        return self.report

    def result(self) -> tuple[int, str]:
        report = self.end()
        assert report["ledger"]["balanced"], report["ledger"]
        return report["results"]["count"], report["results"]["digest"]


@contextmanager
def live(plain: dict[str, Any], out: Path, slaves: int = 2, *, resumes: bool = False) -> Iterator[tuple[Live, Client]]:
    run = Live(plain, out, slaves, resumes)
    try:
        with connect(run.address) as client:
            yield run, client
    finally:
        if run.is_alive():
            for stream in ("left", "right"):
                with connect(run.address) as client:
                    client.end(stream)
            run.join(PROCESS_S)


def in_thread(action: Any, *args: Any, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=action, args=args, kwargs=options, daemon=True)
    thread.start()
    return thread

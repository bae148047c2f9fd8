"""Queries that are added to a run and dropped from it while it goes on: what each then answers, and what a run refuses."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.checkpoint import changed_plan
from swjoin.checkpoint.store import CheckpointStore, checksum
from swjoin.cli import queries
from swjoin.cli.events import read_events, timeline
from swjoin.cli.run import resumed_job
from swjoin.config.connectors import KafkaSinkConfig
from swjoin.connectors import sink as sinks
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import RunFailed, SwjoinError, UserError
from swjoin.core.storage import write_whole
from swjoin.frontends.configured import job_to_run
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.monitor.role_watchers import ADDRESS_FILE
from swjoin.plan import changes
from swjoin.plan.logical import LogicalPlan, Period, Result, Spread
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.sharing import shared
from swjoin.plan.stages import Stage, cut
from swjoin.runtime import query_changes
from swjoin.runtime.in_process import run_local
from swjoin.runtime.query_changes import QueryChanges, _check_topics, _Request
from swjoin.runtime.query_requests import queries_of, request_change
from swjoin.runtime.simulator.result import SimulationError
from tests.support.commands import command
from tests.support.limits import PROCESS_S
from tests.tools.changing_queries import run_changes
from tests.tools.processes import LaunchedRun

ROWS = 400  # of a file, over a second
NEAR = "SELECT a.k, a.v, b.v AS bv FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '100' MILLISECOND"
BIG = "SELECT k, v FROM a WHERE v > 90"
WIDE = NEAR.replace("a.v", "a.x").replace("BETWEEN a.ts", "BETWEEN a.ts - INTERVAL '200' MILLISECOND")
SUMS = "SELECT window_end, count(*) AS n, sum(v) AS s FROM TUMBLE(b, ts, INTERVAL '50' MILLISECOND) GROUP BY window_end"
ALSO_BIG = "SELECT ts, k FROM a WHERE v > 80"
CONFIG = """
queries:
  - {{name: near, sql: "{near}"}}
  - {{name: big, sql: "{big}"}}
inputs:
  a: {{watch: '{folder}/a', time: ts, schema: 'ts: timestamp[us], k: int64, v: int64, x: string'}}
  b: {{watch: '{folder}/b', time: ts, schema: 'ts: timestamp[us], k: int64, v: int64, x: string'}}
time: {{max_out_of_order: 5ms, late: drop}}
cluster: {{distribution_epoch: 20ms, partition_count: 7{cluster}}}
checkpoint: {{epochs: 2}}
"""


class Inputs(Protocol):
    """Inputs that are written while a run goes on. config: the file of the run's configuration, `cluster` with more."""

    folder: Path

    def config(self, cluster: str = "") -> Path: ...


class Streams:
    """Two watched directories, which get a file each for every second of stream time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, 0
        self._random = np.random.default_rng(7)
        for name in "ab":
            (folder / name).mkdir(parents=True)

    def write(self) -> None:
        for name in "ab":
            random = self._random
            ts = np.sort(random.integers(0, 1_000_000, ROWS)) + self.seconds * 1_000_000
            ts -= random.integers(0, 4_000, ROWS)
            numbers = random.integers(0, 30, ROWS), random.integers(0, 100, ROWS)
            table = {
                "ts": pa.array(ts, pa.timestamp("us")),
                "k": numbers[0],
                "v": numbers[1],
                "x": [f"x{i}" for i in range(ROWS)],
            }
            path = self.folder / name / f"{self.seconds:03d}.parquet"
            pq.write_table(pa.table(table), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
        self.seconds += 1

    def end(self) -> None:
        for name in "ab":
            (self.folder / name / "_END").touch()

    def tables(self, from_us: int | None = None) -> dict[str, pa.Table]:
        """All rows; those with times from a time on."""
        found = {
            name: pa.concat_tables(pq.read_table(p) for p in sorted((self.folder / name).glob("*.parquet"))) for name in "ab"
        }
        if from_us is None:
            return found
        at = pa.scalar(datetime(1970, 1, 1) + timedelta(microseconds=from_us), pa.timestamp("us"))
        return {name: table.filter(pc.greater_equal(table["ts"], at)) for name, table in found.items()}

    def config(self, cluster: str = "") -> Path:
        path = self.folder / "run.yaml"
        path.write_text(CONFIG.format(near=NEAR, big=BIG, cluster=cluster, folder=self.folder))
        return path


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.chdir(tmp_path)
    return Streams(tmp_path)


class Running:
    """A run in a thread of this process, in the folder `run`. settings: more of its configuration, as of `--set`."""

    def __init__(self, streams: Inputs, settings: Sequence[str] = (), **cluster: Any) -> None:
        more = "".join(f", {name}: {value}" for name, value in cluster.items())
        self.dir = streams.folder / "run"
        path = streams.config(more)
        if cluster:
            path.write_text(path.read_text().replace(f'  - {{name: big, sql: "{BIG}"}}\n', ""))
        job = job_to_run(path, list(settings), "test")
        self._job = replace(job, target=self.dir / "results", directory=True, run_dir=self.dir)
        self.dir.mkdir()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_local(self._job, False, 2)
        except BaseException as error:
            self.failure = error

    def reached(self, time_us: int) -> None:
        wait_until(self.dir, time_us, lambda: self.failure)

    def dir_when_open(self) -> Path:
        while not (self.dir / "queries" / "open.json").exists():
            assert self.failure is None
            time.sleep(0.02)
        return self.dir

    def end(self) -> dict[str, Any]:
        self._thread.join(PROCESS_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure
        report: dict[str, Any] = json.loads((self.dir / "run.json").read_text())
        return report


def wait_until(run_dir: Path, time_us: int, failure: Callable[[], object] = lambda: None) -> None:
    """Until a checkpoint has rows up to a time of the streams."""
    deadline = time.monotonic() + PROCESS_S
    while time.monotonic() < deadline:
        assert failure() is None
        try:
            manifest = CheckpointStore(run_dir / "checkpoints", {}).newest()
        except SwjoinError:
            manifest = None  # it was replaced meanwhile
        if manifest is not None and all(gateway["state"]["newest_us"] >= time_us for gateway in manifest.gateways):
            return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint up to {time_us} us")


def rows_of(run_dir: Path, query: str) -> Counter[tuple[Any, ...]]:
    table = pa.concat_tables(pq.read_table(path) for path in sorted((run_dir / "results" / query).glob("*.parquet")))
    table = table.drop_columns([name for name in ("left_id", "right_id", "row_id", "row_ts") if name in table.column_names])
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def lone(streams: Streams, text: str, from_us: int | None = None) -> Counter[tuple[Any, ...]]:
    """The rows of a run of its own over the rows from a time on."""
    tables = streams.tables(from_us)
    table = swjoin.sql(text, **tables, time={"a": "ts", "b": "ts"}, max_out_of_order="5ms", late="drop")
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


# ---------------------------------------------------------------- answers


def test_queries_that_are_added_have_the_rows_of_lone_runs_from_then_on(streams: Streams) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    handle = swjoin.Run(run.dir)
    assert list(handle.queries) == ["near", "big"]
    from_us = handle.query(ALSO_BIG, "also")
    streams.write()
    run.reached(1_500_000)
    more_us = request_change(run.dir, {"wide": WIDE, "sums": SUMS}, (), PROCESS_S)
    streams.write()
    assert 500_000 < from_us < 1_500_000 < more_us < 3_000_000
    assert handle.queries == {
        "near": (None, None), "big": (None, None), "also": (from_us, None), "wide": (more_us, None), "sums": (more_us, None)
    }  # fmt: skip
    streams.end()
    report = run.end()
    for name, text, since_us in (
        ("near", NEAR, None),
        ("big", BIG, None),
        ("also", ALSO_BIG, from_us),
        ("wide", WIDE, more_us),
        ("sums", SUMS, more_us),
    ):
        expected = lone(streams, text, since_us)
        assert rows_of(run.dir, name) == expected
        assert expected
        assert {q["name"]: q["count"] for q in report["queries"]}[name] == expected.total()
    assert not (run.dir / "queries").exists()
    assert queries_of(run.dir)[2] == ("also", from_us, None)
    events = [line for line in timeline(read_events(run.dir)) if line.kind.startswith("query_")]
    assert [event.text.partition(", ")[0] for event in events] == [f"query added: {name}" for name in ("also", "wide", "sums")]
    assert f"rows with times from {from_us / 1e6:.6f} s, after a pause of " in events[0].text


def test_a_query_that_is_dropped_has_the_rows_until_then(streams: Streams) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    from_us = request_change(run.dir, {"sums": SUMS, "also": ALSO_BIG}, ["near"], PROCESS_S)
    streams.write()
    run.reached(1_500_000)
    until_us = swjoin.Run(run.dir).drop("sums", "big")
    with pytest.raises(UserError, match=r"query near was dropped before; leave it out"):
        request_change(run.dir, {}, ["near"])
    streams.write()
    streams.end()
    report = run.end()
    assert rows_of(run.dir, "also") == lone(streams, ALSO_BIG, from_us)
    at = lambda time_us: datetime(1970, 1, 1) + timedelta(microseconds=time_us)  # noqa: E731
    sums = lone(streams, SUMS, from_us)
    assert rows_of(run.dir, "sums") == Counter({row: n for row, n in sums.items() if row[0] <= at(until_us)})
    timed = lone(streams, BIG.replace("SELECT k", "SELECT ts, k"))
    assert rows_of(run.dir, "big") == Counter((k, v) for ts, k, v in timed.elements() if ts < at(until_us))
    timed = lone(streams, NEAR.replace("SELECT a.k", "SELECT a.ts, a.k"))
    assert rows_of(run.dir, "near") == Counter(row[1:] for row in timed.elements() if row[0] < at(from_us))
    assert report["complete"]
    dropped = [event.text for event in read_events(run.dir) if event.kind == "query_dropped"]
    assert dropped == ["near", "sums", "big"]
    last = {(edge["from"], edge["to"]) for edge in report["edges"] if edge["filtered"] >= ROWS}
    late = {("a", "join 1"), ("b", "join 1"), ("b", "aggregate 1")}
    assert late <= last, "later rows do not come to stages that dropped queries alone need"


def test_queries_that_share_rows_are_dropped_one_by_one(streams: Streams) -> None:
    """Counts and digests of those that share rows are kept by who is the first to have them, which a drop changes."""
    texts = {f"q{ms}": NEAR.replace("'100'", f"'{ms}'").replace("SELECT a.k", "SELECT a.ts, a.k") for ms in (20, 40, 60, 80)}
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    from_us = request_change(run.dir, texts, ["near", "big"], PROCESS_S)
    streams.write()
    run.reached(1_500_000)
    middle_us = request_change(run.dir, {}, ["q40"], PROCESS_S)
    streams.write()
    run.reached(2_500_000)
    last_us = request_change(run.dir, {}, ["q20", "q80"], PROCESS_S)
    streams.write()
    streams.end()
    report = run.end()
    counts = {query["name"]: query["count"] for query in report["queries"]}
    for name, until_us in {"q20": last_us, "q40": middle_us, "q60": 1 << 60, "q80": last_us}.items():
        rows = lone(streams, texts[name], from_us)
        expected = Counter(
            {
                row: n
                for row, n in rows.items()
                if row[0] < datetime(1970, 1, 1) + timedelta(microseconds=min(until_us, 1 << 50))
            }
        )
        assert rows_of(run.dir, name) == expected
        assert counts[name] == expected.total() > 0


def _over_files(streams: Streams) -> Path:
    """The configuration over the files that there are, whose times pass as fast as the clock."""
    text = streams.config().read_text()
    for name in "ab":
        schema = "schema: 'ts: timestamp[us], k: int64, v: int64, x: string'"
        text = text.replace(
            f"watch: '{streams.folder}/{name}', time: ts, {schema}", f"path: '{streams.folder}/{name}/*.parquet', time: ts"
        )
    path = streams.folder / "files.yaml"
    path.write_text(text + "pace: realtime\n")
    return path


@contextlib.contextmanager
def started(streams: Inputs, *argv: str) -> Iterator[LaunchedRun]:
    """A run of processes of its own, which takes requests."""
    run = LaunchedRun(argv, streams.folder / "log")
    try:
        while not (streams.folder / "run" / "queries" / "open.json").exists():
            assert run.process.poll() is None, (streams.folder / "log").read_text()
            time.sleep(0.02)
        yield run
    finally:
        run.kill_all()


def test_verify_recomputes_what_came_and_went(streams: Streams, swjoin: Any) -> None:
    for _ in range(4):
        streams.write()
    with started(streams, str(_over_files(streams)), "--out", "run") as run:
        with contextlib.suppress(UserError):  # a machine that is so slow ends the run first
            request_change(Path("run"), {"also": ALSO_BIG, "sums": SUMS}, ["big"], PROCESS_S)
        assert run.end(PROCESS_S) == 0, (streams.folder / "log").read_text()
    done = swjoin("verify", streams.folder / "run")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "equal"


def test_a_killed_run_goes_on_with_the_queries_that_it_had(streams: Streams) -> None:
    streams.write()
    with started(streams, str(streams.config()), "--out", "run") as run:
        wait_until(Path("run"), 500_000)
        from_us = request_change(Path("run"), {"wide": WIDE}, ["big"], PROCESS_S)
        streams.write()
        wait_until(Path("run"), 1_500_000)
        run.kill_all()
    streams.write()
    streams.end()
    again = LaunchedRun(["--resume", "run"], streams.folder / "log")
    assert again.end(PROCESS_S) == 0, (streams.folder / "log").read_text()
    assert rows_of(Path("run"), "wide") == lone(streams, WIDE, from_us)
    assert rows_of(Path("run"), "near") == lone(streams, NEAR)


def test_a_request_that_was_taken_is_answered_by_the_resumed_run(streams: Streams) -> None:
    """The process ends between the change of the checkpoint and the answer."""
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    name = run.dir / "queries" / "1.request.json"
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    plain = {"add": {"also": plan_to_plain(plan_query(ALSO_BIG, tables).plan)}, "drop": ["near"]}
    with patch.object(QueryChanges, "_show", side_effect=OSError("gone")):
        write_whole(name, json.dumps(plain).encode())
        with pytest.raises(OSError, match="gone"):
            run.end()
    answered = json.loads(name.with_name("1.answer.json").read_bytes())
    name.with_name("1.answer.json").unlink()  # as if the process had been killed before
    write_whole(name, json.dumps(plain).encode())
    streams.write()
    streams.end()
    run_local(resumed_job(run.dir), False, 3)
    from_us = json.loads(name.with_name("1.answer.json").read_bytes())["time_us"]
    assert answered == {"time_us": from_us}
    assert rows_of(run.dir, "also") == lone(streams, ALSO_BIG, from_us)
    assert [event.text for event in read_events(run.dir) if event.kind.startswith("query_")] == ["also", "near"]


def test_a_second_start_leaves_the_requests_of_a_run_alone(streams: Streams) -> None:
    """It is refused before it answers one, or says that the run takes none."""
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    shown = run.dir / "queries" / "open.json"
    before = shown.read_bytes()
    for job in (resumed_job(run.dir), run._job):
        with pytest.raises(UserError, match="queries: another process takes requests there; is the run still going on"):
            run_local(job, False, 3)
        assert shown.read_bytes() == before
    request_change(run.dir, {"also": ALSO_BIG}, (), PROCESS_S)
    streams.end()
    assert run.end()["complete"]
    assert not shown.parent.exists()


def test_a_topic_that_is_missing_refuses_the_query(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the run that would go on with it."""

    class Broker:
        def __init__(self, config: KafkaSinkConfig) -> None:
            assert config.servers == "here:9092"

        def partitions_of(self, topic: str) -> list[int]:
            if topic != "rows.near":
                raise UserError(f"sink kafka: there is no topic {topic}")
            return [0]

    sink = types.ModuleType("sink")
    sink.KafkaBroker = Broker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "swjoin.connectors.kafka.sink", sink)
    kafka = KafkaSinkConfig("here:9092", "rows.{query}")
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    plan = plan_query(ALSO_BIG, tables).plan
    for added in ({}, {"near": plan}):
        _check_topics(kafka, _Request(Path("1"), added, ("big",)))
    with pytest.raises(UserError, match=r"there is no topic rows\.also"):
        _check_topics(kafka, _Request(Path("1"), {"near": plan, "also": plan}, ()))


def test_a_request_that_is_refused_leaves_nothing_in_the_trial(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that was refused for its topic cannot be dropped by the next request of the same poll."""

    def refuse(kafka: object, request: _Request) -> None:
        if request.added:
            raise UserError("there is no topic")

    monkeypatch.setattr(query_changes, "_check_topics", refuse)
    job = replace(job_to_run(streams.config(), [], "test"), target=Path("run/results"), directory=True, run_dir=Path("run"))
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    requests = {"add": {"also": plan_to_plain(plan_query(ALSO_BIG, tables).plan)}, "drop": []}, {"add": {}, "drop": ["also"]}
    paths = [Path(f"{number}.request.json") for number in range(2)]
    for path, plain in zip(paths, requests, strict=True):
        path.write_text(json.dumps(plain))
    accepted, (trial, _) = QueryChanges(job, 2)._planned_on_trial(paths, job, 2)
    assert (accepted, trial) == ([], job)
    assert [json.loads(Path(f"{number}.answer.json").read_text()).popitem()[0] for number in range(2)] == ["error"] * 2


def test_other_files_beside_results_end_no_run_that_changes(streams: Streams) -> None:
    """What a file manager leaves in the folder of queries' folders is found at the start of a run alone."""
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    (run.dir / "results" / ".DS_Store").write_text("mine")
    request_change(run.dir, {"also": ALSO_BIG}, (), PROCESS_S)
    streams.end()
    assert run.end()["complete"]
    assert (run.dir / "results" / ".DS_Store").read_text() == "mine"


def test_dropped_queries_take_no_share_of_files_and_of_memory_for_results(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there were, those that go on have what a run with them alone has."""
    wanted: list[int] = []
    monkeypatch.setattr(sinks, "_allow_files", wanted.append)
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    request_change(run.dir, {"also": ALSO_BIG}, ("near",), PROCESS_S)
    request_change(run.dir, {"more": ALSO_BIG}, ("also",), PROCESS_S)
    streams.end()
    assert run.end()["complete"]
    assert wanted == [2, 2, 2]
    assert queries_of(run.dir)[0][1:] != (None, None)


def test_the_run_goes_on_while_a_change_is_planned(streams: Streams) -> None:
    """For which thousands of queries take seconds."""
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    changed = QueryChanges._changed

    def slow(changes: QueryChanges, *args: Any) -> Any:
        if args[3:] == ():  # on trial
            streams.write()
            run.reached(1_500_000)
        return changed(changes, *args)

    with patch.object(QueryChanges, "_changed", slow):
        from_us = request_change(run.dir, {"also": ALSO_BIG}, (), PROCESS_S)
    assert from_us > 1_500_000
    streams.write()
    streams.end()
    run.end()
    assert rows_of(run.dir, "also") == lone(streams, ALSO_BIG, from_us)


def test_the_dashboard_keeps_its_address(streams: Streams) -> None:
    streams.write()
    run = Running(streams, ["observe.port=0"])
    run.reached(500_000)
    path = run.dir / ADDRESS_FILE
    address = path.read_text()
    request_change(run.dir, {"also": ALSO_BIG}, (), PROCESS_S)
    deadline = time.monotonic() + PROCESS_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.read_text() == address
    streams.end()
    run.end()


def test_times_of_changes_never_fall(streams: Streams) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    wide_us = request_change(run.dir, {"wide": WIDE}, (), PROCESS_S)  # reads a column more: after all rows that were read
    assert wide_us > 990_000
    assert request_change(run.dir, {"also": ALSO_BIG}, ["wide"], PROCESS_S) == wide_us
    streams.write()
    streams.end()
    run.end()
    assert rows_of(run.dir, "also") == lone(streams, ALSO_BIG, wide_us)


def test_a_folder_of_requests_that_is_gone_ends_no_run(streams: Streams) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    (run.dir / "queries" / "a.request.json").mkdir()
    (run.dir / "queries").rename(run.dir / "gone")  # at once, as the run may be writing an answer
    streams.end()
    assert run.end()["complete"]


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.long)])
def test_on_ranks(streams: Streams, kills: bool) -> None:
    streams.write()
    with started(streams, str(streams.config()), "--out", "run", "-n", "5") as run:
        wait_until(Path("run"), 500_000)
        from_us = request_change(Path("run"), {"wide": WIDE, "sums": SUMS}, (), PROCESS_S)
        streams.write()
        wait_until(Path("run"), 1_500_000)
        if kills:
            run.kill([3])
            streams.write()
            wait_until(Path("run"), 2_500_000)
        until_us = request_change(Path("run"), {"also": ALSO_BIG}, ["sums"], PROCESS_S)
        streams.write()
        streams.end()
        assert run.end(PROCESS_S) == 0, (streams.folder / "log").read_text()
    assert from_us < until_us
    assert rows_of(Path("run"), "wide") == lone(streams, WIDE, from_us)
    assert rows_of(Path("run"), "also") == lone(streams, ALSO_BIG, until_us)
    assert rows_of(Path("run"), "near") == lone(streams, NEAR)
    report = json.loads(Path("run/run.json").read_text())
    assert len(report["checkpoints"]["recoveries"]) == kills
    assert json.loads(command("queries", streams.folder / "run", "list", "--json").stdout)[-1]["from_us"] == until_us


# ---------------------------------------------------------------- the command, and what is refused


def test_the_command_adds_drops_and_lists(streams: Streams, swjoin: Any) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    sql = streams.folder / "late.queries.sql"
    sql.write_text(ALSO_BIG)
    added = command("queries", run.dir, "add", sql)  # as another process asks
    assert added.stdout.startswith("late.queries: rows with times from 1970-01-01 00:00:00."), added.stderr
    dropped = swjoin("queries", run.dir, "drop", "near", "late.queries")
    assert dropped.out.startswith("near, late.queries: rows with times before 1970-01-01 00:00:00."), dropped.err
    lines = swjoin("queries", run.dir).out.splitlines()
    assert [line.split()[0] for line in lines] == ["query", "near", "big", "late.queries"]
    assert len(lines[3].split()) == 5
    streams.end()
    run.end()
    assert swjoin("queries", run.dir).out.splitlines() == lines


def test_a_dropped_query_that_keeps_all_its_rows_is_named(swjoin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its windows over an input that has ended have come out."""
    found = [("near", None, changes.AFTER_ALL_US), ("big", changed_plan.FIRST_US, 5), ("also", None, None)]
    monkeypatch.setattr(queries, "request_change", lambda *_: 5)
    monkeypatch.setattr(queries, "queries_of", lambda _: found)
    lines = swjoin("queries", tmp_path, "drop", "near", "big").out.splitlines()
    assert lines == [
        "big: rows with times before 1970-01-01 00:00:00.000005",
        "near: all rows; windows over an input that has ended are out already",
    ]
    shown = [line.split(maxsplit=1) for line in swjoin("queries", tmp_path).out.splitlines()]
    assert shown[1:3] == [["near", "the end"], ["big", "the first row  1970-01-01 00:00:00.000005"]]


REFUSED: dict[str, tuple[dict[str, str], list[str], str]] = {
    "a name that is taken": ({"big": BIG}, [], r"queries: big is the name of another query; .*"),
    "a name of an input": ({"a": BIG}, [], r"query a: an input has this name, too; name the query otherwise"),
    "no name": ({".": BIG}, [], r"queries: '\.' is no name of a query; .*"),
    "no such table": ({"q": "SELECT k FROM c"}, [], r"q: .*c.*"),
    "no such column": ({"q": "SELECT y FROM a"}, [], r"q: .*y.*"),
    "a syntax error": ({"q": "SELECT k FROM"}, [], r"q: .*line 1.*"),
    "no such query": ({}, ["small"], r"no query is named 'small'; queries are near, big"),
    "one that is given twice": ({}, ["big", "big"], r"query big is given twice; name each once"),
    "one that is good beside": ({"q": BIG}, ["small"], r"no query is named 'small'; .*"),
}


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on."""
    folder = tmp_path_factory.mktemp("open")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        streams = Streams(folder)
        streams.write()
        run = Running(streams)
        run.reached(500_000)
        yield run.dir
        streams.end()
        assert run.end()["complete"]
        assert queries_of(run.dir) == [("near", None, None), ("big", None, None)]


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_run_refuses(case: str, open_run: Path) -> None:
    added, dropped, line = REFUSED[case]
    with pytest.raises(UserError) as refused:
        request_change(open_run, added, dropped, PROCESS_S)
    assert re.fullmatch(line, str(refused.value)), refused.value


def test_a_request_that_is_none_is_refused_and_the_run_goes_on(open_run: Path) -> None:
    for number, text in enumerate(
        ("", "{}", "[]", '{"add": {"q": {"nodes": 1}}, "drop": []}', '{"add": {}, "drop": ["small"]}')
    ):
        (open_run / "queries" / f"{number}.request.json").write_text(text)
        answer = open_run / "queries" / f"{number}.answer.json"
        deadline = time.monotonic() + PROCESS_S
        while not answer.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "error" in json.loads(answer.read_bytes())
        answer.unlink()


def test_runs_that_take_no_changes(streams: Streams, swjoin: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: is no directory of a run"):
        request_change(tmp_path / "nowhere", {"q": BIG})
    with pytest.raises(UserError, match=r"no run goes on there that takes queries; it needs queries: with names, and checkp"):
        request_change(tmp_path, {"q": BIG})
    streams.write()
    streams.end()
    text = streams.config().read_text().replace("checkpoint: {epochs: 2}", "")
    (tmp_path / "run.yaml").write_text(text)
    done = swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert not (tmp_path / "run" / "queries").exists()
    for argv, line in (
        (["add"], r"swjoin: queries .*: no query; give files NAME\.sql, or NAME\.rq, with the queries"),
        (["drop"], r"swjoin: queries .*: no query; give the names of the queries"),
        (["add", BIG], r"swjoin: SELECT .*: write the query into a file NAME\.sql, or NAME\.rq .*, whose name is the query's"),
        (["add", "none.sql"], r"swjoin: none\.sql: cannot be read .*"),
        (["list", "near"], r"swjoin: queries .* list near: lists all queries; leave the rest out"),
        (["drop", "near"], r"swjoin: .*run: no run goes on there that takes queries; .*"),
    ):
        done = swjoin("queries", tmp_path / "run", *argv)
        assert (done.code, len(done.err)) == (2, 1)
        assert re.fullmatch(line, done.err[0]), done.err


def test_routing_that_keeps_a_table_of_its_own_takes_no_changes(streams: Streams) -> None:
    streams.write()
    run = Running(streams, routing="skew")
    with pytest.raises(UserError, match=r"routing skew: a run with hot keys has the queries that it began with; start it with"):
        request_change(run.dir_when_open(), {"q": NEAR}, (), PROCESS_S)
    streams.end()
    run.end()


# ---------------------------------------------------------------- in the simulator


@pytest.mark.parametrize("first", [20_000, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(21_000, 21_080, 8))])
def test_random_queries_that_come_and_go(first: int) -> None:
    assert sum(map(run_changes, range(first, first + 8))) > 0


@contextlib.contextmanager
def _from_too_early() -> Iterator[None]:
    real = changed_plan.time_of_change
    with patch("tests.tools.changing_queries.time_of_change", lambda *of: real(*of) - 200):
        yield


@contextlib.contextmanager
def _ended_windows_are_cut() -> Iterator[None]:
    with patch.object(changes, "_has_ended_windows", lambda *_: False):
        yield


@contextlib.contextmanager
def _stages_keep_their_numbers() -> Iterator[None]:
    real = changed_plan.change_plan

    def wrong(manifest: Any, before: Any, after: Any, plan: Mapping[str, Any]) -> Any:
        segments = [dict(segment) for segment in manifest.plain["segments"]]
        with patch.object(changed_plan, "write_whole", partial(_with, segments=segments)):
            return real(manifest, before, after, plan)

    with patch("tests.tools.changing_queries.change_plan", wrong):
        yield


def _with(path: Path, data: bytes, segments: list[dict[str, Any]]) -> None:
    plain = {**json.loads(data), "segments": segments}
    plain["checksum"] = checksum(plain)
    write_whole(path, json.dumps(plain).encode())


BUGS = {
    "an added query begins too early": _from_too_early,
    "windows that have come out are cut": _ended_windows_are_cut,
    "logs of other stages": _stages_keep_their_numbers,
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises((SimulationError, SwjoinError, AssertionError, KeyError)):
        sum(map(run_changes, range(20_000, 20_200)))


def test_rows_before_that_are_missing_in_the_ledger_are_found(streams: Streams) -> None:
    streams.write()
    run = Running(streams)
    run.reached(500_000)
    with patch.object(changed_plan, "_left_out", lambda *_: {}):
        request_change(run.dir, {"also": ALSO_BIG}, (), PROCESS_S)
    streams.end()
    with pytest.raises(RunFailed, match=r"a gave 400 rows, .* were sent or dropped"):
        run.end()


def test_a_period_has_its_first_time_and_ends_before_its_last() -> None:
    times = np.array([3, 4, 5, 6], np.int64)
    rows = TupleBatch(times, times, times.view(np.uint64), times)
    assert Period("p", "a", 5, ends=False)(rows).ts.tolist() == [5, 6]
    assert Period("p", "a", 5, ends=True)(rows).ts.tolist() == [3, 4]


# ---------------------------------------------------------------- plans


def test_stages_that_are_there_stay(streams: Streams) -> None:
    streams.write()
    job = job_to_run(streams.config(), [], "test")
    plan = plan_from_plain(job.plan or {})
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    other = {"wide": plan_query(WIDE, tables).plan, "far": plan_query(WIDE.replace("a.x", "a.v"), tables).plan}
    more = changes.with_queries(plan, other, 5)
    assert changes.periods(more) == {"near": (None, None), "big": (None, None), "wide": (5, None), "far": (5, None)}
    names = {stage.name: stage.node for stage in cut(more).stages}
    assert {name: names.get(name) for stage in cut(plan).stages for name in [stage.name]} == {
        stage.name: stage.node for stage in cut(plan).stages
    }
    assert len(names) == len(cut(plan).stages) + 1  # what is added at once shares its join
    fewer = changes.without_queries(more, ["near", "wide"], 9)
    assert changes.periods(fewer)["wide"] == (5, 9)
    assert [stage.name for stage in cut(fewer).stages] == [stage.name for stage in cut(more).stages]
    assert LogicalPlan(fewer.nodes) == fewer


def _limits(plan: LogicalPlan) -> dict[str, int]:
    """By name of an edge's receiver and sender, the time from which on the edge has no rows."""
    found = {}
    for edge in cut(plan).edges:
        limits = [step.at_us for step in edge.steps if isinstance(step, Period) and step.ends]
        if limits and isinstance(edge.receiver, Stage):
            found[f"{edge.receiver.name} from {edge.sender.name}"] = min(limits)
    return found


def test_stages_of_dropped_queries_take_no_late_rows() -> None:
    """Each takes what the last one of its queries needs; a stage that a query needs which goes on takes all rows."""
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    texts = {"near": NEAR, "sums": SUMS, "big": BIG}
    texts["unmatched"] = NEAR.replace("JOIN", "LEFT JOIN").replace("'100' MILLISECOND", "'7' SECOND")
    texts["counts"] = SUMS.replace("sum(v) AS s", "min(v) AS m")  # another aggregate of the same windows
    plan = shared({name: plan_query(text, tables).plan for name, text in texts.items()})
    names = {"near": "join 1", "unmatched": "join 2", "sums": "aggregate 1", "counts": "aggregate 2", "big": "big"}
    assert {name: _sender(plan, name) for name in texts} == names
    at = 1_234_567
    fewer = changes.without_queries(plan, ["near", "big"], at)
    near = {f"join 1 from {source}": at + 100_000 for source in "ab"}  # a row's time is that of a, b's may be greater
    assert _limits(fewer) == near
    fewer = changes.without_queries(fewer, ["unmatched"], 2 * at)
    unmatched = {f"join 2 from {source}": 2 * at + 7_000_000 for source in "ab"}  # without a match after the last partner
    assert _limits(fewer) == near | unmatched
    fewer = changes.without_queries(fewer, ["sums"], 3 * at)
    sums = {"aggregate 1 from b": 3 * at}
    assert _limits(fewer) == near | unmatched | sums
    fewer = changes.without_queries(fewer, ["counts"], 4 * at)
    assert changes.latest_change_us(fewer) == 4 * at, "limits are no changes"
    assert changes.periods(fewer)["unmatched"] == (None, 2 * at)
    assert plan_from_plain(plan_to_plain(fewer)) == fewer


def test_a_join_that_shares_how_its_rows_are_spread_can_be_dropped() -> None:
    tables = {name: Table((("ts", "timestamp[us]"), ("k", "int64"), ("v", "int64"), ("x", "string")), "ts") for name in "ab"}
    near = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '100' MILLISECOND"
    texts = {name: f"SELECT a.k FROM a JOIN b ON a.v {of} b.v AND {near}" for name, of in {"one": "<", "other": ">"}.items()}
    plan = shared({name: plan_query(text, tables).plan for name, text in texts.items()})
    spread = [node for node in plan.nodes if isinstance(node, Spread)]
    assert any(len(plan.readers[node.name]) == 2 for node in spread), "a plan that shares none"
    fewer = changes.without_queries(plan, ["one"], 5_000)
    assert changes.periods(fewer)["one"] == (None, 5_000)
    none = changes.without_queries(fewer, ["other"], 9_000)
    assert set(_limits(none).values()) == {109_000}


def _sender(plan: LogicalPlan, result: str) -> str:
    """Name of the stage that sends the rows of a result."""
    (edge,) = (edge for edge in cut(plan).edges if isinstance(edge.receiver, Result) and edge.receiver.name == result)
    return edge.sender.name

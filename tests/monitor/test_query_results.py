"""What comes out of each query, on the board: the newest rows as text, of every query in turn, and of those that share rows."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from swjoin.cli.main import main
from swjoin.cli.top import frame
from swjoin.connectors.output_columns import QueryColumns, RowColumns
from swjoin.connectors.sink import RowSink, open_sink
from swjoin.core.batch import ResultRows
from swjoin.core.columns import Columns
from swjoin.monitor.prometheus import exposition
from swjoin.monitor.query_results import IN_A_SAMPLE, LISTED, NEWEST, QueryBoard, ResultWatcher
from swjoin.monitor.status_board import Board
from tests.support.boards import Clock, a_board, boards_of_runs, collector_view

COLUMNS = RowColumns((("n", pa.int64()),), ids=False)


def _rows(values: list[int], ranks: list[int] | None = None) -> ResultRows:
    ids = np.array(values, np.uint64)
    columns = Columns(pa.record_batch({"n": pa.array(values, pa.int64())}))
    return ResultRows(ids, ids.astype(np.int64), columns, None if ranks is None else np.array(ranks, np.int64))


def _newest(board: QueryBoard, name: str) -> list[int]:
    return [int(row[0]) for row in board.snapshot(name, 0.0)["shown"]["newest"]]


writes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3 * NEWEST), st.booleans()), max_size=25)


@given(writes, st.randoms())
@settings(max_examples=60, deadline=None)
def test_newest_rows_are_those_that_were_written_last(done: list[tuple[int, int, bool]], random: Any) -> None:
    """Queries 0 to 2 share rows, query 3 and 4 have their own; a sample is taken after some writes."""
    names = ["narrow", "middle", "wide", "own", "none"]
    watcher = ResultWatcher(QueryColumns(tuple((name, COLUMNS) for name in names), ((0, 1, 2),)))
    board, written = QueryBoard(dict.fromkeys(names, "about it")), {name: list[int]() for name in names}
    number = 0

    def sample() -> None:
        counts = [(len(rows), sum(rows)) for rows in written.values()]
        board.take(0, json.loads(json.dumps(watcher.sample(counts))), 1.0)

    for query, count, sampled in done:
        values = list(range(number, number + count))
        number += count
        if query == 3:
            watcher.on_write(3, _rows(values))
            written["own"] += values
        else:
            ranks = [random.randrange(3) for _ in values]
            watcher.on_write(0, _rows(values, ranks))
            for member, name in enumerate(names[:3]):
                written[name] += [value for value, rank in zip(values, ranks, strict=True) if rank <= member]
        if sampled:
            sample()
    sample()
    for name, rows in written.items():
        assert _newest(board, name) == rows[-NEWEST:], name
        shown = board.snapshot(name, 0.0)["shown"]
        assert (shown["rows"], int(shown["digest"], 16)) == (len(rows), sum(rows))
        assert shown["description"] == "about it"
        assert shown["columns"] == (["n"] if rows else [])
    listed = [(of["name"], of["rows"]) for of in board.snapshot(None, 0.0)["listed"]]
    assert listed == sorted(((name, len(rows)) for name, rows in written.items() if rows), key=lambda of: (-of[1], of[0]))


def test_many_queries_come_in_turn() -> None:
    """No sample is large, all queries are in one before one is again, and the last sample has the counts of all."""
    count = 4 * IN_A_SAMPLE + 3
    names = [f"q{number}" for number in range(count)]
    watcher, board = ResultWatcher(QueryColumns(tuple((name, COLUMNS) for name in names))), QueryBoard(dict.fromkeys(names, ""))
    for turn in range(1, 6):
        for query in range(count):
            watcher.on_write(query, _rows([1000 * turn + query]))
        found = watcher.sample([(turn, 0)] * count)
        assert len(found) == IN_A_SAMPLE
        board.take(0, found, float(turn))
    assert all(_newest(board, name) for name in names), "a query that was in no sample"
    last = watcher.sample([(7, 0)] * count, all_of_them=True)
    assert len(last) == count
    board.take(0, last, 9.0)
    assert len(board.snapshot(None, 9.0)["listed"]) == min(count, LISTED)
    assert board.snapshot("q0", 9.0)["shown"]["rows"] == 7
    assert watcher.sample([(7, 0)] * count) == [], "nothing has grown"


def test_rates_are_of_what_grows() -> None:
    board = QueryBoard({"a": ""})

    def grown(rows: int, at_s: float, sink: int = 0) -> None:
        board.take(sink, [{"name": "a", "rows": rows, "digest": "f" * 16}], at_s)

    def rate(at_s: float) -> float:
        found: float = board.snapshot("a", at_s)["shown"]["rows_per_s"]
        return found

    grown(100, 10.0)
    assert rate(10.0) == 0
    grown(300, 12.0)
    assert rate(12.5) == 100
    assert rate(40.0) == 0, "nothing has come for long"
    grown(50, 13.0, sink=1)
    shown = board.snapshot("a", 13.0)["shown"]
    assert (shown["rows"], shown["digest"], shown["rows_per_s"]) == (350, "f" * 15 + "e", 100), "of both sinks"
    grown(1300, 14.0)
    grown(1050, 14.01, sink=1)
    assert 1450 < rate(14.01) < 1500
    board.clear()
    assert board.snapshot("a", 13.0)["shown"]["rows"] == 0
    assert board.snapshot("b", 13.0)["shown"] is None, "no such query"


def test_values_are_short_text() -> None:
    kinds: list[tuple[str, pa.DataType, Any, str | None]] = [
        ("text", pa.string(), "x" * 500, "x" * 119 + "…"),
        ("code", pa.dictionary(pa.int32(), pa.string()), "Kyiv", "Kyiv"),
        ("nothing", pa.int64(), None, None),
        ("bytes", pa.binary(), b"\xff", "b'\\xff'"),
        ("list", pa.list_(pa.int64()), [1, 2], "[1, 2]"),
        ("nowhere", pa.timestamp("us", "Nowhere/Bad"), 7, "?"),
        ("time", pa.timestamp("ns", "UTC"), 1_600_000_000_123_456_789, "2020-09-13 12:26:40.123456789Z"),
    ]
    columns = RowColumns(tuple((name, kind) for name, kind, _, _ in kinds), ids=True)
    batch = pa.record_batch({name: pa.array([value], kind) for name, kind, value, _ in kinds})
    watcher = ResultWatcher(columns)
    watcher.on_write(0, ResultRows(np.array([7], np.uint64), np.array([-5]), Columns(batch)))
    (found,) = watcher.sample([(1, 0)])
    assert found["columns"] == ["row_id", "row_ts", *(name for name, *_ in kinds)]
    assert found["newest"] == [["7", "-5", *(text for *_, text in kinds)]]


def test_few_rows_of_many_keep_no_memory() -> None:
    rows = _rows(list(range(1_000_000)))
    assert rows.columns is not None
    watcher, before = ResultWatcher(COLUMNS), pa.total_allocated_bytes()
    watcher.on_write(0, rows)
    del rows
    assert pa.total_allocated_bytes() <= before - 8_000_000 + 10_000
    (found,) = watcher.sample([(1_000_000, 0)])
    assert found["newest"][-1] == ["999999"]


def test_a_row_of_a_batch_of_many_queries_keeps_no_memory(tmp_path: Path) -> None:
    """In the watcher, and in a sink of files that waits for more."""
    many, before = _rows(list(range(100_000))), pa.total_allocated_bytes()
    watcher = ResultWatcher(COLUMNS)
    watcher.on_write(0, many.slice(7, 8))
    assert many.columns is not None
    sink = cast("RowSink", open_sink("parquet", tmp_path / "rows.parquet", COLUMNS))
    sink.write_rows(many.columns.batch.slice(7, 1), 0, 7)
    del many
    assert pa.total_allocated_bytes() <= before - 700_000
    sink.abort()
    assert watcher.sample([(1, 0)])[0]["newest"] == [["7"]]


def test_rows_that_are_only_counted() -> None:
    watcher = ResultWatcher(COLUMNS)
    one = np.array([1], np.uint64)
    watcher.on_write(0, ResultRows(one, one.astype(np.int64), None))
    assert watcher.sample([(1, 5)]) == [{"name": "", "rows": 1, "digest": f"{5:016x}"}]


YAML = """
inputs:
  a: {path: a.csv, time: ts, time_unit: s}
  b: {path: b.csv, time: ts, time_unit: s}
queries:
  - name: near
    sql: SELECT a.k, a.ts, a.v + b.v AS s FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '2' SECOND AND a.ts
  - name: far
    sql: SELECT a.k, a.ts, a.v + b.v AS s FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '9' SECOND AND a.ts
  - name: large
    sql: SELECT k, v FROM a WHERE v > 20
observe: {port: 0, interval: 10ms}
"""


@pytest.mark.parametrize("sinks", [1, 2])
@pytest.mark.parametrize("kind", ["parquet", "count"])
def test_the_board_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sinks: int) -> None:
    """Counts and digests are those of run.json; the newest rows are rows of the result."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    for name in "ab":
        table = pa.table({"k": rng.integers(0, 5, 300), "ts": np.arange(300) // 4, "v": rng.integers(0, 30, 300)})
        pa_csv.write_csv(table, f"{name}.csv")
    (tmp_path / "q.yaml").write_text(f"{YAML}sink: {{kind: {kind}}}\ncluster: {{sinks: {sinks}}}\n")
    views: list[dict[str, Any]] = []
    boards = boards_of_runs(monkeypatch, views.append)
    assert main(["run", "q.yaml", "--out", "out"]) == 0
    (board,) = boards
    report = {of["name"]: of for of in json.loads(Path("out/run.json").read_text())["queries"]}
    listed = {of["name"]: of["rows"] for of in board.snapshot()["queries"]["listed"]}
    assert board.snapshot()["queries"]["count"] == 3
    assert listed == {name: of["count"] for name, of in report.items()}
    for name, of in report.items():
        shown = board.snapshot(query=name)["queries"]["shown"]
        assert (shown["rows"], shown["digest"]) == (of["count"], of["digest"])
        assert shown["description"]
        if kind == "count":
            assert shown["newest"] == []
            continue
        table = pq.ParquetDataset(f"out/results/{name}").read()
        rows = [
            [str(value) for value in row] for row in zip(*(c.cast(pa.string()).to_pylist() for c in table.columns), strict=True)
        ]
        assert shown["columns"] == table.schema.names
        assert len(shown["newest"]) == min(NEWEST, len(rows))
        assert all(row in rows for row in shown["newest"])
        if sinks == 1 and name == "large":  # rows of the others are sorted by the query that is the first to have them
            assert shown["newest"] == rows[-NEWEST:]
    assert board.snapshot(query="other")["queries"]["shown"] is None
    assert all(view["ledger"]["balanced"] for view in views), "rows that a query's filter drops are accounted for"
    assert (
        b'swjoin_query_rows_total{query="large"} ' + str(report["large"]["count"]).encode() in exposition(board.snapshot())[0]
    )
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(frame(board.snapshot()))
    assert re.search(rf"\nlarge +0 +{report['large']['count']} *\n", screen.export_text())


def test_metrics_are_of_all_queries_or_of_none() -> None:
    names = [f"q{number}" for number in range(LISTED + 1)]
    board = Board(a_board(Clock()).snapshot()["run"], queries=dict.fromkeys(names, ""))
    samples = [{"name": name, "rows": 3, "digest": "0" * 16} for name in names]
    board.set_collector(collector_view(1.0, 3) | {"queries": samples})
    assert b"swjoin_query_rows" not in exposition(board.snapshot())[0]
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(frame(board.snapshot()))
    assert "\nand 85 more" in screen.export_text()


def test_a_board_forgets_after_a_recovery() -> None:
    clock = Clock()
    board = a_board(clock)
    board.set_collector(collector_view(clock.now, 3) | {"queries": [{"name": "", "rows": 3, "digest": "0" * 16}]})
    assert board.snapshot()["queries"]["shown"]["rows"] == 3
    board.begin("running")
    assert board.snapshot()["queries"]["shown"] is None


def test_pairs_have_the_columns_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join of two streams, which has no name."""
    monkeypatch.chdir(tmp_path)
    for name in ("left", "right"):
        pa_csv.write_csv(pa.table({"k": [1, 2, 1, 3] * 20, "ts": range(80), name: ["é", "b", None, "d"] * 20}), f"{name}.csv")
    config = {
        "left": {"path": "left.csv", "time_unit": "s"},
        "right": {"path": "right.csv", "time_unit": "s"},
        "join": {"within": "3s", "how": "full"},
        "observe": {"port": 0},
    }
    for side in ("left", "right"):
        config[side] |= {"key": "k", "time": "ts"}
    Path("j.yaml").write_text(json.dumps(config))
    boards = boards_of_runs(monkeypatch, lambda view: None)
    assert main(["run", "j.yaml", "--out", "out"]) == 0
    shown = boards[0].snapshot()["queries"]["shown"]
    table = pq.ParquetDataset("out/results").read()
    rows = [list(row) for row in zip(*(column.cast(pa.string()).to_pylist() for column in table.columns), strict=True)]
    assert shown["columns"] == table.schema.names
    assert shown["newest"] == rows[-NEWEST:]
    assert boards[0].snapshot()["queries"]["count"] == 0

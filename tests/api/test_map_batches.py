"""`map_batches`: answers against the same query in SQL, whatever runs it, and one line for what a function must not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import swjoin
from swjoin import col, row_count, stream, tumble
from swjoin.api.fluent import Stream

ROWS = 400
_random = np.random.default_rng(7)
A = pa.table(
    {
        "k": pa.array([None if k == 9 else int(k) for k in _random.integers(0, 10, ROWS)]),
        "v": _random.integers(-50, 50, ROWS),
        "x": pa.array([f"x{i % 5}" for i in range(ROWS)]).dictionary_encode(),
        "ts": pa.array(np.sort(_random.integers(0, 300_000_000, ROWS)), pa.timestamp("us")),
    }
)
SCHEMA = "k: int64, w: int64, x: string, ts: timestamp[us]"


def scored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `SELECT k % 3 AS k, v * 2 AS w, upper(x) AS x, ts`."""
    assert [str(field.type) for field in batch.schema] == ["int64", "int64", "string", "timestamp[us]"]
    k, v, x, ts = batch.columns
    third = pc.subtract(k, pc.multiply(pc.divide(k, 3), 3))
    return pa.RecordBatch.from_arrays([third, pc.multiply(v, 2), pc.utf8_upper(x), ts], ["k", "w", "x", "ts"])


@pytest.fixture
def a() -> Stream:
    return stream(A, time="ts")


def _same(query: Stream) -> Stream:
    """The columns of `scored`, by expressions."""
    return query.select(k=col("k") % 3, w=col("v") * 2, x=swjoin.expr("upper(x)"), ts=col("ts"))


def _digest(query: Stream, **options: Any) -> str:
    return swjoin.proof(query.collect(**options)).digest


QUERIES: dict[str, Callable[[Stream, Stream], Stream]] = {
    "alone": lambda mapped, a: mapped,
    "filtered": lambda mapped, a: mapped.filter((col("w") > -20) & (col("k") == 1)),
    "grouped": lambda mapped, a: mapped.group_by("k").window(tumble("1min")).agg(n=row_count(), w=col("w").sum()),
    "joined": lambda mapped, a: mapped.join(a, on="k", within="2s"),
    "joined on the right": lambda mapped, a: a.join(mapped, on="k", lower="0s", upper="3s", how="left"),
    "united": lambda mapped, a: mapped.union(a.select("k", "x", "ts", w=col("v"))),
    "first rows": lambda mapped, a: mapped.group_by("x").window(tumble("1min")).head(2, "w", "ts", descending=True),
}


@pytest.mark.parametrize("strategy", ["query", "subquery", "operator"])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_expressions(name: str, strategy: Any, a: Stream) -> None:
    made = QUERIES[name](a.map_batches(scored, SCHEMA), a)
    assert made.time == QUERIES[name](_same(a), a).time
    assert _digest(made, strategy=strategy, threads=3) == _digest(QUERIES[name](_same(a), a))


def test_functions_after_joins_and_groups(a: Stream) -> None:
    """Rows that stages send have other batches in every run; equal keys after a function meet, whatever they were before."""
    joined = a.join(a.select("k", "ts", u=col("v")), on="k", within="1s")
    halves = joined.map_batches(
        lambda b: {"k": pc.divide(b["k"], 2), "u": b["u"], "ts": b["ts"]}, "k: int64, u: int64, ts: timestamp[us]"
    )
    same = joined.select(k=col("k") // 2, u=col("u"), ts=col("ts"))
    for strategy in ("query", "subquery", "operator"):
        made, wanted = (q.group_by("k").window(tumble("1min")).agg(n=row_count(), u=col("u").max()) for q in (halves, same))
        assert _digest(made, strategy=strategy, threads=4) == _digest(wanted)
    twice = made.map_batches(
        lambda b: {"m": pc.add(b["n"], 1), "window_end": b["window_end"]}, "m: int64, window_end: timestamp[us]"
    )
    assert twice.time == "window_end"
    assert _digest(twice.group_by("window_end").agg(m=col("m").sum())) == _digest(
        wanted.group_by("window_end").agg(m=(col("n") + 1).sum())
    )


@pytest.mark.parametrize(
    "give",
    [
        pa.schema([("k", pa.int64()), ("w", pa.int64()), ("x", pa.string()), ("ts", pa.timestamp("us"))]),
        {"k": "int64", "w": pa.int64(), "x": "large_string", "ts": "timestamp[us]"},
    ],
)
def test_schemas(give: Any, a: Stream) -> None:
    assert _digest(a.map_batches(scored, give)) == _digest(_same(a))


def test_what_functions_may_give(a: Stream) -> None:
    wanted = _digest(_same(a))
    for of in (
        lambda b: pa.Table.from_batches([scored(b)]).select(["ts", "x", "k", "w"]),
        lambda b: dict(zip(("k", "w", "x", "ts"), scored(b).columns, strict=True)),
        lambda b: scored(b).set_column(2, "x", scored(b)["x"].dictionary_encode()),
    ):
        assert _digest(a.map_batches(of, SCHEMA)) == wanted
    frame = a.filter(col("k") >= 0).map_batches(lambda b: scored(b).to_pandas().reset_index(drop=True), SCHEMA)
    assert _digest(frame) == _digest(_same(a.filter(col("k") >= 0)))
    nothing = a.map_batches(lambda b: {"n": pa.nulls(len(b)), "ts": b["ts"]}, "n: double, ts: timestamp[us]").collect()
    assert nothing["n"].null_count == ROWS
    assert str(nothing["n"].type) == "double"


def test_rows_keep_the_time_that_a_function_leaves_out(a: Stream) -> None:
    bare = a.map_batches(lambda b: b.select(["k", "v"]), "k: int64, v: int64")
    assert bare.time is None
    assert _digest(bare) == _digest(a.select("k", "v"))
    later = a.map_batches(
        lambda b: {"v": b["v"], "ts2": pc.add(b["ts"], pa.scalar(5, pa.duration("us")))}, "v: int64, ts2: timestamp[us]"
    )
    assert _digest(later) == _digest(a.select(v=col("v"), ts2=swjoin.expr("ts + INTERVAL 5 MICROSECOND")))


def test_no_row_is_there_but_those_of_the_run(a: Stream) -> None:
    seen: set[int] = set()

    def noting(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.update(batch["u"].to_pylist())
        return batch

    only = a.select("k", "ts", u=col("v") + 1_000).map_batches(noting, "k: int64, ts: timestamp[us], u: int64")
    only.group_by("k").window(tumble("1min")).agg(n=row_count()).collect()
    assert seen == {v + 1_000 for v in A["v"].to_pylist()}
    assert a.filter(col("v") > 1_000).map_batches(lambda b: 1 / 0, SCHEMA).collect().schema.names == ["k", "w", "x", "ts"]


def test_the_explanation_names_the_function(a: Stream) -> None:
    assert "map_batches tests.api.test_map_batches:scored" in a.map_batches(scored, SCHEMA).explain()
    assert ", map_batches <lambda> (map" in a.map_batches(lambda b: b, SCHEMA).explain()


@pytest.mark.drawn
@pytest.mark.mpi
def test_on_ranks(a: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks import the function from where this process has it."""
    (tmp_path / "my_scores.py").write_text("def same(batch):\n    return batch\n\ndef fails(batch):\n    return 1 // 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    plain = a.select("k", "v", "ts")
    query = plain.map_batches("my_scores:same", "k: int64, v: int64, ts: timestamp[us]")
    query = query.group_by("k").window(tumble("1min")).agg(n=row_count(), v=col("v").sum())
    assert swjoin.proof(query.run(ranks=4)).digest == _digest(
        plain.group_by("k").window(tumble("1min")).agg(n=row_count(), v=col("v").sum())
    )
    with pytest.raises(swjoin.RunFailed, match=r"map_batches my_scores:fails, .* rows, .*: ZeroDivisionError: ") as caught:
        plain.map_batches("my_scores:fails", "k: int64").run(ranks=3)
    assert "\n" not in str(caught.value)


def _late(batch: pa.RecordBatch) -> Any:
    return {"k": batch["k"], "ts": pc.add(batch["ts"], pa.scalar(1, pa.duration("us")))}


def _fails(batch: pa.RecordBatch) -> Any:
    raise ValueError("of two\nlines")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_fails, "ValueError: of two lines"),
        (lambda b: None, "it gives no table; return a record batch"),
        (lambda b: b.select(["k", "ts"]).slice(1), f"it gives {ROWS - 1} rows for {ROWS}; give each row one"),
        (lambda b: b.select(["k"]), "it gives columns k, its schema has k, ts; declare in schema"),
        (lambda b: b.select(["k", "ts", "v"]), "it gives columns k, ts, v, its schema has k, ts;"),
        (lambda b: {"k": b["k"].cast("double"), "ts": b["ts"]}, "column k is double, in its schema int64; declare it so"),
        (_late, "it gives ts 1970-"),
        (
            lambda b: {"k": pa.array(range(len(b))), "ts": b["ts"]},
            f"it gives k {ROWS // 2} in one batch, 0 in another; compute each",
        ),
    ],
)
def test_one_line_for_what_a_function_must_not_do(function: Any, problem: str, a: Stream) -> None:
    query = a.map_batches(function, "k: int64, ts: timestamp[us]")
    with pytest.raises(swjoin.RunFailed) as caught:
        query.collect(threads=1)
    text = str(caught.value)
    assert f", {ROWS} rows, 0 to {ROWS - 1}: {problem}" in text, text
    assert "\n" not in text
    if function is _fails:
        assert "map_batches tests.api.test_map_batches:_fails" in text


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda a: a.map_batches(5, "k: int64"), "map_batches: 5 is no function"),
        (lambda a: a.map_batches("scored", "k: int64"), "map_batches: 'scored' names no function; write 'package.module"),
        (
            lambda a: a.map_batches("no_module:f", "k: int64"),
            "map_batches: no_module:f cannot be imported, ModuleNotFoundError",
        ),
        (lambda a: a.map_batches("os:nothing", "k: int64"), "map_batches: os:nothing cannot be imported, AttributeError"),
        (lambda a: a.map_batches("os:sep", "k: int64"), "map_batches: os:sep is no function"),
        (lambda a: a.map_batches(scored, "k"), "map_batches: schema: 'k': write NAME: TYPE"),
        (lambda a: a.map_batches(scored, {"k": "number"}), "map_batches: schema: column k: 'number' is no Arrow type"),
        (lambda a: a.map_batches(scored, 5), "map_batches: schema=5 declares no columns"),
        (lambda a: a.map_batches(scored, {}).collect(), "map_batches: schema={} declares no columns"),
        (
            lambda a: a.map_batches(scored, {"k": pa.list_(pa.int64())}),
            "map_batches: schema: type list<item: int64> cannot travel",
        ),
        (
            lambda a: a.map_batches(scored, "k: int64, ts: int64").collect(),
            "map_batches: ts, a time of its rows, is timestamp[us], in its schema int64; declare it as timestamp[us]",
        ),
        (
            lambda a: a.map_batches(lambda b: b, SCHEMA).run(ranks=3),
            "map_batches: ranks cannot call <lambda> (map",
        ),
        (
            lambda a: a.map_batches(scored, "k: int64").group_by("k").window(tumble("1s")).agg(n=row_count()),
            "window: the stream has no time; keep its time column",
        ),
        (
            lambda a: swjoin.sql("SELECT * FROM MAP_BATCHES((SELECT * FROM a), 'os:system')", a=A, time="ts"),
            "MAP_BATCHES: no function os:system was given; write",
        ),
        (
            lambda a: swjoin.sql("SELECT * FROM MAP_BATCHES(a, 'f')", a=A, time="ts"),
            "MAP_BATCHES(a, 'f') is no call of a function; write",
        ),
    ],
)
def test_one_line_for_what_cannot_be(make: Any, problem: str, a: Stream) -> None:
    with pytest.raises(swjoin.UserError) as caught:
        make(a)
    assert str(caught.value).startswith(problem), str(caught.value)
    assert "\n" not in str(caught.value)


def test_pandas_gives_other_types_for_nulls(a: Stream) -> None:
    """The check says so, instead of rounding integers."""
    with pytest.raises(swjoin.RunFailed, match="column k is double, in its schema int64"):
        a.map_batches(lambda b: pd.DataFrame({"k": b["k"].to_pandas()}), "k: int64").collect()

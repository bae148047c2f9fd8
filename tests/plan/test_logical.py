"""Logical plans: schemas, ids, the oracle against that of single joins, and one clear line for plans that cannot be run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.sections import QueryConfig
from swjoin.connectors.output_columns import OutputColumns
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import UserError
from swjoin.core.hashing import digest_pairs
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import StreamCodec
from swjoin.plan.logical import (
    ARRIVAL_TIME,
    Column,
    IntervalJoin,
    LogicalPlan,
    Node,
    Result,
    Schema,
    Source,
    Union,
    join_columns,
    key_family,
    union_row_ids,
)
from tests.conftest import ROOT
from tests.plan.plans import COLUMNS, PLANS, join, plan, random_rows, source
from tests.support.limits import PROCESS_S
from tests.tools.oracle import answer
from tests.tools.plan_oracle import Answer, Row, evaluate, mix64, union_rows

A, B, C = (source(name) for name in "abc")
J = join("j", "a", "b")
OUT = Result("out", "j")
QUERY = QueryConfig(-2, 2)


def changed(**fields: Any) -> IntervalJoin:
    return dataclasses.replace(J, **fields)


def typed(name: str, type_name: str) -> Source:
    return Source(name, (Column("k", type_name), *COLUMNS[1:]), "ts")


REFUSED: dict[str, tuple[tuple[Node, ...], str]] = {
    "cycle": (
        (A, join("i", "a", "j"), join("j", "a", "i"), OUT),
        "plan: a cycle: i -> j -> i; let no node read its own output",
    ),
    "self-loop": ((A, join("j", "a", "j"), OUT), "plan: a cycle: j -> j; let no node read its own output"),
    "unknown input": ((A, J, OUT), "j: its right input b is not in the plan; nodes are a, j"),
    "unknown node": ((A, B, J, Result("out", "k")), "out: its input k is not in the plan; nodes are a, b, j"),
    "missing port": ((A, B, changed(right=""), OUT), "j: its right input is missing; name a source or another node"),
    "reads a result": ((A, B, J, OUT, Result("o", "out")), "o: its input out is a result; read what the result reads"),
    "union of one": ((A, Union("u", ("a",)), Result("out", "u")), "u: a union needs two inputs or more; name its inputs"),
    "key counts": (
        (A, B, changed(left_key=("k", "v")), OUT),
        "j: 2 key columns on the left, 1 on the right; name as many on both sides",
    ),
    "no key": ((A, B, changed(left_key=(), right_key=()), OUT), "j: left input a: stream: key names no column"),
    "key twice": (
        (A, B, changed(left_key=("k", "k"), right_key=("k", "v")), OUT),
        "j: left input a: join columns: k is named twice on one side; name each column once",
    ),
    "unknown key": (
        (A, B, changed(right_key=("x",)), OUT),
        "j: right input b has no column x; columns are k, v, ts",
    ),
    "key types": (
        (A, typed("b", "string"), J, OUT),
        "j: left key k is int64, right key k is string; cast one side so that both agree",
    ),
    "float key": (
        (typed("a", "double"), typed("b", "double"), J, OUT),
        "j: key column k: type double cannot be a join key; round it to an integer first",
    ),
    "no time": (
        (A, Source("b", COLUMNS, None), J, OUT),
        "j: right input b has no time; name the time column of its sources",
    ),
    "unknown time column": ((A, Source("b", COLUMNS, "t"), J, OUT), "b: no time column t; columns are k, v, ts"),
    "text as time": (
        (Source("a", (Column("t", "string"),), "t"), Result("out", "a")),
        "a: time column t is string; use a timestamp or an integer column",
    ),
    "column twice": (
        (Source("a", (COLUMNS[0], COLUMNS[0]), None), Result("out", "a")),
        "a: two columns are named k; name each column once",
    ),
    "union types": (
        (A, typed("b", "int32"), Union("u", ("a", "b")), Result("out", "u")),
        "u: input b has k int32 where a has k int64; give all inputs the same columns in the same order",
    ),
    "union counts": (
        (A, Source("b", (*COLUMNS, Column("w", "int8")), "ts"), Union("u", ("a", "b")), Result("out", "u")),
        "u: input b has 4 columns, a has 3; give all inputs the same columns in the same order",
    ),
    "union times": (
        (A, Source("b", COLUMNS, None), Union("u", ("a", "b")), Result("out", "u")),
        "u: a has a time, b has none; give all one",
    ),
    "no bound": (
        (A, B, changed(query=None), OUT),
        "j: no time bound; give lower and upper bounds of right time - left time",
    ),
    "output time": ((A, B, changed(output_time="last"), OUT), "j: output time last; use max, min or left"),
    "count windows in a row": (
        (A, B, C, changed(query=QueryConfig(0, 0, last=(2, 2))), join("i", "j", "c"), Result("out", "i")),
        "j: count windows need the order of sources, and give no time bound; "
        "join within bounds of time, or read two sources and feed results alone",
    ),
    "unread source": ((A, B, C, J, OUT), "c: no node reads its rows; add a result that reads it, or leave it out"),
    "unread join": ((A, B, J, Result("out", "a")), "j: no node reads its rows; add a result that reads it, or leave it out"),
    "no result": ((A, B, J), "plan: it has no result; add a result that reads a node"),
    "empty": ((), "plan: it has no result; add a result that reads a node"),
    "results of one name": ((A, B, J, OUT, OUT), "out: 2 results have this name; name each node once"),
    "nodes of one name": ((A, A, join("j", "a", "a"), OUT), "a: 2 nodes have this name; name each node once"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    nodes, line = REFUSED[case]
    with pytest.raises(UserError) as error:
        LogicalPlan(nodes)
    assert str(error.value) == line


def test_accepted() -> None:
    for nodes in PLANS.values():
        ordered = [node.name for node in LogicalPlan(tuple(reversed(nodes))).ordered]
        assert sorted(ordered) == sorted(node.name for node in nodes)
        assert all(ordered.index(name) < ordered.index(node.name) for node in nodes for name in node.inputs)
    LogicalPlan((A, B, changed(query=QueryConfig(0, 0, last=(2, 2))), OUT))
    LogicalPlan((Source("a", COLUMNS, ARRIVAL_TIME), B, J, OUT))
    LogicalPlan((Source("a", COLUMNS, None), Result("out", "a")))


# ---------------------------------------------------------------- columns, as the sink has them

TYPES = ("int64", "int32", "uint64", "string", "large_string", "binary", "dictionary<values=string, indices=int32, ordered=0>")
ARROW = dict(zip(TYPES, [pa.int64(), pa.int32(), pa.uint64(), pa.string(), pa.large_string(), pa.binary()], strict=False))
ARROW[TYPES[-1]] = pa.dictionary(pa.int32(), pa.string())


def codec(columns: tuple[Column, ...], key: tuple[str, ...]) -> StreamCodec:
    return StreamCodec(tuple((c.name, ARROW[c.type], "row") for c in columns), key, None)


@given(st.data())
def test_columns_of_joins_are_those_of_the_sink(data: st.DataObject) -> None:
    names = st.lists(st.sampled_from(["k", "v", "left_v", "right_v", "right_v_", "w"]), unique=True, min_size=1)
    sides = [tuple(Column(n, data.draw(st.sampled_from(TYPES))) for n in data.draw(names)) for _ in range(2)]
    size = data.draw(st.integers(1, min(map(len, sides))))
    keys = [tuple(data.draw(st.permutations([c.name for c in side]))[:size]) for side in sides]
    how: How = data.draw(st.sampled_from(sorted(JOIN_KINDS)))
    families = [[key_family(n, dict(side)[n]) for n in key] for side, key in zip(sides, keys, strict=True)]
    node = IntervalJoin("j", "a", "b", keys[0], keys[1], QueryConfig(0, 1, how=how))
    lists = [[(n, ARROW[dict(side)[n]]) for n in key] for side, key in zip(sides, keys, strict=True)]
    if families[0] != families[1]:
        with pytest.raises(UserError, match="cast one side"):
            KeyEncoder(*lists)
        return
    KeyEncoder(*lists)
    expected = OutputColumns(codec(sides[0], keys[0]), codec(sides[1], keys[1]), False, how)
    found = join_columns(node, Schema(sides[0], "k"), Schema(sides[1], "k"))
    assert [(c.name, c.type) for c in found] == [(field.name, str(field.type)) for field in expected.schema]
    assert [(c.side, c.origin) for c in found] == expected.inputs


def test_time_of_a_join() -> None:
    names = {}
    for how in JOIN_KINDS:
        for time in ("max", "left"):
            logical = LogicalPlan((A, B, join("j", "a", "b", how=how, time=time), OUT))  # type: ignore[arg-type]
            names[how, time] = logical.schema("out").time
    assert names["inner", "left"] == names["left", "left"] == "left_ts"
    assert names["semi", "max"] == names["anti", "left"] == "ts"  # of the left columns
    assert names["inner", "max"] == names["full", "left"] == "ts"  # no column has it
    assert plan("one join").schema("j").columns == (
        Column("k", "int64"),
        Column("left_v", "int64"),
        Column("left_ts", "timestamp[us]"),
        Column("right_v", "int64"),
        Column("right_ts", "timestamp[us]"),
    )


# ---------------------------------------------------------------- ids, and the oracle


def test_ids_of_a_union() -> None:
    ids = np.array([0, 1, 7, 2**64 - 1], np.uint64)
    for index in (0, 1, 2, 5):
        found = union_row_ids(index, ids)
        assert found.tolist() == [mix64(index * 0x9E3779B97F4A7C15 + int(i)) for i in ids]
        assert found.tolist() == [row.id for row in union_rows(index, [Row(int(i), 0, ()) for i in ids])]


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(JOIN_KINDS)))
def test_the_oracle_agrees_with_that_of_single_joins(data: st.DataObject, how: How) -> None:
    logical = LogicalPlan((A, B, join("j", "a", "b", (-1, 2), how), OUT))
    rows = data.draw(random_rows(logical))

    def batch(side: list[Row], null: bool) -> TupleBatch:
        chosen = [row for row in side if (row.values[0] is None) == null]
        key = np.array([row.values[0] or 0 for row in chosen], np.int64)
        ts = np.array([row.ts for row in chosen], np.int64)
        return TupleBatch(key, ts, np.array([row.id for row in chosen], np.uint64), ts)

    nulls = batch(rows["a"], True).id, batch(rows["b"], True).id
    left, right = answer(batch(rows["a"], False), batch(rows["b"], False), Bounds(-1, 2), how, nulls)
    assert Answer.of(evaluate(logical, rows)["out"]) == (len(left), digest_pairs(left, right))


def test_the_oracle_on_two_joins_by_hand() -> None:
    """a joins b within 0..2, then c within 0..1 of the later of both."""
    nodes = (A, B, C, join("j", "a", "b", (0, 2)), join("i", "j", "c", (0, 1), "left"), Result("out", "i"))
    rows = {
        "a": [Row(1, 0, (7, 10, 0)), Row(2, 5, (8, 11, 5))],
        "b": [Row(3, 2, (7, 12, 2)), Row(4, 8, (8, 13, 8)), Row(5, 5, (8, 14, 5))],
        "c": [Row(6, 3, (7, 15, 3)), Row(7, 4, (7, 16, 4))],
    }
    found = evaluate(LogicalPlan(nodes), rows)["out"]
    assert [(row.ts, row.values) for row in found] == [
        (3, (7, 10, 0, 12, 2, 15, 3)),
        (5, (8, 11, 5, 14, 5, None, None)),
    ]


def test_import_is_light() -> None:
    code = (
        "import sys, swjoin.plan.stages\nheavy = {'pyarrow', 'pyspark', 'mpi4py', 'sqlglot'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr

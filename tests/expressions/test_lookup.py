"""Lookups in a table: random keys of every type, against every pair compared by the expressions' own `=`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from swjoin.core.batch import MISSING_ID, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.hashing import pair_ids
from swjoin.core.row_codec import storage
from swjoin.expressions import lookup as module
from swjoin.expressions.binder import Scope, bind, parse_expression
from swjoin.expressions.evaluator import EvaluationFailed, satisfied
from swjoin.expressions.lookup import TableLookup
from swjoin.expressions.tree import Column
from swjoin.expressions.types import read_as

KINDS: dict[str, list[Any]] = {
    "int64": [-(1 << 63), -1, 0, 1, 2, 3, (1 << 63) - 1, None],
    "int8": [-1, 0, 5, None],
    "uint64": [0, 1, 2, 1 << 63, (1 << 64) - 1, None],
    "double": [0.0, -0.0, float("nan"), 1.0, 2.0, float("inf"), 1e300, None],
    "float": [0.0, -0.0, float("nan"), 2.0, None],
    "string": ["", "a", "b", "ä", "a\0", None],
    "decimal": [0, 1, 2, 7, None],
    "bool": [True, False, None],
    "timestamp": [0, 1_000_000, -1_000_000, None],
    "date": [0, 1, -400, None],
}
TYPES: dict[str, Any] = {
    "decimal": pa.decimal128(9, 2),
    "double": pa.float64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "date": pa.date32(),
}
ALIKE = [("int64", "int8", "uint64", "double", "float", "decimal"), ("string",), ("bool",), ("timestamp", "date")]


def _column(random: np.random.Generator, kind: str, count: int) -> pa.Array:
    values = [KINDS[kind][i] for i in random.integers(0, len(KINDS[kind]), count)]
    if kind == "decimal":
        return pa.array(values, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    of = TYPES.get(kind) or getattr(pa, kind)()
    whole = pa.array(values, of)
    return whole if storage(whole.type) == whole.type else whole.cast(storage(whole.type))


def _rows(columns: dict[str, pa.Array], first_id: int) -> TupleBatch:
    count = len(next(iter(columns.values())))
    ids, nothing = np.arange(first_id, first_id + count, dtype=np.uint64), np.zeros(count, np.int64)
    return TupleBatch(nothing, np.arange(count), ids, nothing, None, Columns(pa.record_batch(columns)))


def _scope(*batches: TupleBatch) -> Scope:
    found = {}
    for batch in batches:
        assert batch.columns is not None
        for field in batch.columns.batch.schema:
            found["", field.name] = Column(field.name, read_as(field.type))
    return Scope(found)


def _bound(text: str, *batches: TupleBatch) -> Any:
    return bind(parse_expression(text), _scope(*batches))


def _lookup(how: Any, rows: TupleBatch, table: TupleBatch, keys: list[tuple[str, str]], where: str | None) -> TableLookup:
    assert rows.columns is not None
    assert table.columns is not None
    shown = tuple(rows.columns.names), tuple(table.columns.names) if how in ("inner", "left") else ()
    pairs = tuple(tuple(_bound(f"{mine} = {theirs}", rows, table).args) for mine, theirs in keys)
    condition = None if where is None else _bound(where, rows, table)
    return TableLookup("l", how, pairs, condition, shown, frozenset(table.columns.names), lambda: table)  # type: ignore[arg-type]


def _expected(how: str, rows: TupleBatch, table: TupleBatch, tests: list[str]) -> list[tuple[int, int]]:
    """Ids of every row that comes out and of its match."""
    n, m = len(rows), len(table)
    assert rows.columns is not None
    assert table.columns is not None
    mine, theirs = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    both = {name: rows.columns.column(name).take(pa.array(mine)) for name in rows.columns.names}
    both |= {name: table.columns.column(name).take(pa.array(theirs)) for name in table.columns.names}
    batch, holds = pa.record_batch(both), np.ones(n * m, np.bool_)
    for test in tests:
        holds &= satisfied(_bound(test, rows, table), batch)
    pairs = holds.reshape(n, m)
    missing, out = int(MISSING_ID), []
    for i, matches in enumerate(pairs):
        found = [(int(rows.id[i]), int(table.id[j])) for j in np.flatnonzero(matches)]
        alone = [(int(rows.id[i]), missing)]
        out += {
            "inner": found,
            "left": found or alone,
            "semi": alone if found else [],
            "anti": [] if found else alone,
        }[how]
    return out


@pytest.mark.parametrize("seed", range(150))
def test_rows_that_match_are_those_of_every_pair(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(module, "_CANDIDATES", int(random.choice([1, 7, 1 << 17])))
    monkeypatch.setattr(module, "_SPARSE", int(random.choice([0, 4])))
    n, m = (int(v) for v in random.integers(0, 30, 2))
    keys, mine, theirs = [], {"v": pa.array(random.integers(0, 9, n))}, {"w": pa.array(random.integers(0, 9, m))}
    for i in range(int(random.choice([0, 1, 1, 2, 3]))):
        family = ALIKE[int(random.integers(len(ALIKE)))]
        one, two = (str(kind) for kind in random.choice(family, 2))
        mine[f"a{i}"], theirs[f"b{i}"] = _column(random, one, n), _column(random, two, m)
        keys.append((f"a{i}", f"b{i}"))
    where = str(random.choice(["", "v < w", "v + w > 5 or w is null", "w <> 3"])) or None
    rows, table = _rows(mine, 100), _rows(theirs, 0)
    tests = [f"{one} = {two}" for one, two in keys] + ([] if where is None else [where])
    for how in ("inner", "left", "semi", "anti"):
        step = _lookup(how, rows, table, keys, where)
        found, wanted = step(rows), _expected(how, rows, table, tests)
        pairs = np.array(wanted, np.uint64).reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        assert sorted(found.id.tolist()) == sorted(pair_ids(pairs[:, 0].copy(), pairs[:, 1].copy()).tolist())
        assert found.ts.tolist() == (pairs[order, 0].astype(np.int64) - 100).tolist()  # in the order of the stream
        assert found.columns is not None
        assert found.columns.names == [*mine, *(theirs if how in ("inner", "left") else ())]
        assert found.columns.column("v").to_pylist() == [mine["v"][i].as_py() for i in found.ts.tolist()]


def test_overflow_is_null_and_other_errors_name_the_row() -> None:
    most = (1 << 63) - 1
    rows = _rows({"a": pa.array([1, most, 3, most, None])}, 50)
    table = _rows({"b": pa.array([2, 4, 0])}, 0)
    assert _lookup("semi", rows, table, [("a + 1", "b")], None)(rows).ts.tolist() == [0, 2]
    assert _lookup("anti", rows, table, [], "a + b > 3")(rows).ts.tolist() == [4]  # with 0 there is no overflow
    assert _lookup("semi", rows, table, [], "a + b > 5")(rows).ts.tolist() == [1, 2, 3]
    with pytest.raises(EvaluationFailed, match=r"^l, row 50: .*division by zero"):
        _lookup("semi", rows, table, [], "a // b > 5")(rows)
    with pytest.raises(EvaluationFailed, match=r"^l, the table's row 2: .*division by zero"):
        _lookup("semi", rows, table, [("a", "4 // b")], None)(rows)


def test_a_table_is_made_once_and_only_if_rows_come() -> None:
    made = []
    rows, table = _rows({"a": pa.array([1, 2])}, 0), _rows({"b": pa.array([2])}, 0)
    step = _lookup("inner", rows, table, [("a", "b")], None)
    step = TableLookup(step.name, step.how, step.keys, None, ((), ()), step.of_table, lambda: made.append(1) or table)  # type: ignore[func-returns-value]
    assert [len(step(rows)) for _ in range(3)] == [1, 1, 1]
    assert made == [1]
    assert step(rows).columns is None

"""Predicates: what they mean is DuckDB's opinion, for random expressions over columns of all types, with nulls, in every kind
of join; what is wrong is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.config.loader import config_from_plain
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.expressions.compiler import compile_where, resolve
from swjoin.expressions.parser import COMPARISONS, columns_of, parse_where, to_sql
from swjoin.expressions.vm import program_in, program_out
from tests.support.float_predicates import (
    BOOLS,
    IEEE,
    KINDS,
    TEXTS,
    TIMES,
    _column,
    _number,
    _table,
    answers,
    float_predicates,
    ieee_tables,
    sql_name,
)
from tests.support.in_process import run


def _condition(random: np.random.Generator, depth: int) -> str:
    pick = random.integers(9 if depth else 6)
    sign = str(random.choice([*COMPARISONS, "==", "<>"]))
    if pick == 0:
        return f"{_number(random, depth)} {sign} {_number(random, depth)}"
    if pick == 1:
        literal = str(random.choice(["''", "'a'", "'z''z'", "'ä'", "null"]))
        return f"{_column(random, TEXTS)} {sign} {literal if random.random() < 0.5 else _column(random, TEXTS)}"
    if pick == 2:
        return f"{_column(random, TIMES)} {sign} {_column(random, TIMES)}"
    if pick == 3:
        return str(random.choice([_column(random, BOOLS), "true", "false", "null"], p=[0.7, 0.1, 0.1, 0.1]))
    if pick == 4:
        return f"{_column(random, tuple(KINDS))} is {random.choice(['', 'not '])}null"
    if pick == 5:
        return f"{_column(random, ('ts', 'key'))} {sign} {_number(random, 0)}"
    if pick == 6:
        return f"not ({_condition(random, depth - 1)})"
    return f"({_condition(random, depth - 1)}) {random.choice(['and', 'or'])} ({_condition(random, depth - 1)})"


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in (1, 2, 3))])
def test_random_predicates_mean_what_they_do_in_sql(block: int, tmp_path: Path) -> None:
    """Conditions of any depth; pairs, or who has none, by count or as rows, on one slave or on three that move."""
    kept = 0
    for seed in range(30 * block, 30 * block + 30):
        random = np.random.default_rng([seed, 5])
        how = str(random.choice(list(JOIN_KINDS)))
        tables = _table(random, 70), _table(random, 80)
        text = _condition(random, int(random.integers(0, 4)))
        folder = tmp_path / str(seed)
        folder.mkdir()
        for name, table in zip(("left", "right"), tables, strict=True):
            pq.write_table(table, folder / f"{name}.parquet")
        count_only = bool(random.random() < 0.3)
        plain: dict[str, Any] = {
            "join": {"within": "60us", "how": how, "where": text},
            "cluster": {"partition_count": 5, "distribution_epoch_us": 20},
            "reorganization": {"policy": "random", "random_moves": 2, "epoch_us": 20},
            "module": {"block_bytes": 256, "theta_bytes": 512, "window": "16MB"},
            "sink": {"kind": "count" if count_only else "parquet"},
            **{name: {"path": str(folder / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")},
        }
        if random.random() < 0.3:
            plain["left"]["columns"] = ["big"]  # the predicate may want others, which do not come out
        (folder / "config.yaml").write_text(json.dumps(plain))
        report = run(folder / "config.yaml", folder, int(random.choice([1, 3])))
        connection = duckdb.connect()
        connection.register("lefts", tables[0])
        connection.register("rights", tables[1])
        word = {"full": "FULL JOIN", "semi": "SEMI JOIN", "anti": "ANTI JOIN", "inner": "JOIN"}.get(how, f"{how} JOIN")
        columns = "l.ts, l.key, l.big" if how in ("semi", "anti") else "l.ts, r.ts, coalesce(l.key, r.key), l.big, r.big"
        condition = to_sql(parse_where(text), sql_name, "duckdb")
        sql = f"SELECT {columns} FROM lefts l {word} rights r ON l.key = r.key AND abs(r.ts - l.ts) <= 60 AND {condition}"
        expected = sorted(map(str, connection.execute(sql).fetchall()))
        assert report["results"]["count"] == len(expected), (seed, how, text)
        kept += len(expected)
        if not count_only:
            names = ["ts", "key", "big"] if how in ("semi", "anti") else ["left_ts", "right_ts", "key", "left_big", "right_big"]
            table = pq.read_table(folder / "run" / "results")
            rows = table.select(names).to_pylist()
            assert sorted(str(tuple(row.values())) for row in rows) == expected, (seed, how, text)
            hidden = {"left_tiny", "tiny"} if how in ("semi", "anti") else {"left_tiny"}  # what only the predicate wants
            assert bool(hidden & set(table.column_names)) == ("columns" not in plain["left"]), table.column_names
    assert kept > 1000


BASICS: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "us", "within": "1us"}


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_is_not_equal_to_anything_and_has_no_order(kind: pa.DataType) -> None:
    left, right = ieee_tables(kind)
    x, y = (np.array(side[name].to_pylist()) for side, name in ((left, "x"), (right, "y")))
    assert IEEE["left_x >= right_y"] == int((x[:, None] >= y[None, :]).sum())
    assert IEEE["left_x <> right_y"] == int((x[:, None] != y[None, :]).sum())
    connection = duckdb.connect()
    connection.register("lefts", left)
    connection.register("rights", right)
    for where, count in IEEE.items():
        assert swjoin.count(left, right, **BASICS, where=where).count == count, where
        condition = to_sql(
            parse_where(where), lambda name: (name.replace("_", "s."), "int" if name[-1] == "n" else "float"), "duckdb"
        )
        found = connection.execute(f"SELECT count(*) FROM lefts, rights WHERE {condition}").fetchone()
        assert found == (count,), condition


def test_half_floats_are_refused() -> None:
    left, right = ieee_tables(pa.float16())
    with pytest.raises(UserError, match="left_x is halffloat, which cannot be used there"):
        swjoin.count(left, right, **BASICS, where="left_x = right_y")


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
@pytest.mark.parametrize("seed", [0, 1])
def test_random_float_predicates_mean_what_their_translation_does(seed: int) -> None:
    left, right, texts = float_predicates(seed, 60)
    most = 2**63 - 1
    texts += [f"left_tiny + {most} is null", f"abs(left_tiny - {most}) is null", f"left_tiny * {most // 2} is null"]
    texts += [f"left_tiny * {most // 3} * right_tiny is null", "left_tiny + 2147483647 > 2147483647"]
    connection = duckdb.connect()
    connection.register("lefts", left)
    connection.register("rights", right)
    expected = []
    for text in texts:
        condition = to_sql(parse_where(text), sql_name, "duckdb")
        found = connection.execute(f"SELECT count(*) FROM lefts l JOIN rights r ON l.key = r.key WHERE {condition}").fetchone()
        assert found is not None
        expected.append(found[0])
    for text, got, wanted in zip(texts, answers(left, right, texts), expected, strict=True):
        assert got == wanted, text
    assert len(set(expected)) > 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("left_price <", "it ends too early, at character 13"),
        ("left_price < ; 3", "'; 3' is not understood, at character 13"),
        ("(left_price < 3", "a closing parenthesis is missing"),
        ("left_price < 3)", "')' is unexpected, at character 15"),
        ("x is 3", "'is' needs [not] null after it"),
        ("", "it ends too early"),
        ("__import__('os').system('true')", "is not understood, at character 17"),
        ("(" * 60 + "1" + ")" * 60 + " = 1", "too deeply nested"),
        ("a" * 10_001, "10001 characters are too many"),
    ],
)
def test_what_cannot_be_parsed_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_where(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_refuses_what_is_no_predicate() -> None:
    with pytest.raises(UserError, match="where: it ends too early"):
        config_from_plain({"join": {"within": "1s", "where": "a <"}})


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("left_prize < 3", "where: column left_prize is missing; did you mean left_price?"),
        ("price < 3", "where: both sides have a column price; write left_price or right_price"),
        ("left_price < 'a'", "where: a number and text cannot be compared with <"),
        ("left_price", "where: it must be a condition, but it is a number"),
        ("left_price and true", "where: and is between conditions, not a number"),
        ("left_word + 1 = 2", "where: + is of numbers, not of text"),
        ("left_list = 1", "where: column left_list is list<element: int64>, which cannot be used there"),
        ("left_price < 99999999999999999999", "is beyond 64 bits"),
    ],
)
def test_names_and_types_are_checked_before_any_row_is_read(where: str, said: str, swjoin: Any, tmp_path: Path) -> None:
    lists = pa.array([[1]], pa.list_(pa.field("element", pa.int64())))
    for side in ("l", "r"):
        columns = {"k": [1], "t": [1], "price": [2], "word": ["a"], **({"list": lists} if "list" in where else {})}
        pq.write_table(pa.table(columns), tmp_path / f"{side}.parquet")
    argv = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "us", "--within", "1s", "--columns", "price"]
    done = swjoin("join", tmp_path / "l.parquet", tmp_path / "r.parquet", *argv, "--where", where, "-o", "count")
    assert done.code == 2
    assert len(done.err) == 1
    assert said in done.err[0] or "list" in where


def test_names(tmp_path: Path) -> None:
    columns = ["k", "price", "left_x"], ["k", "qty", "x", "price"]
    keys = ("k",), ("k",)
    for name, meaning in {
        "left_price": (0, "price"),
        "right.price": (1, "price"),
        "qty": (1, "qty"),
        "k": (0, "k"),
        "right_k": (1, "k"),
        "right_x": (1, "x"),
    }.items():
        assert resolve(name, columns, keys) == meaning
    assert list(columns_of(parse_where("a < b and not (left.a is null)"))) == ["a", "b", "left.a"]
    assert list(columns_of(parse_where('"odd name" = left."a.b"'))) == ["odd name", "left.a.b"]


def test_a_program_travels_as_plain_values() -> None:
    from swjoin.core.row_codec import RowCodec, StreamCodec

    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    codec = StreamCodec((("a", pa.int32(), "row"), ("b", pa.string(), "row")), ("k",), RowCodec(schema))
    program = compile_where(parse_where("left_a < 1.5 or right_b = 'x'"), codec, codec)
    again = program_in(json.loads(json.dumps(program_out(program))))
    assert all(np.array_equal(one, two) for one, two in zip(program, again, strict=True))


def test_overflow_is_null_and_not_a_wrong_number(tmp_path: Path) -> None:
    most = 2**63 - 1
    left = pa.table({"k": [1] * 4, "t": [0] * 4, "v": pa.array([most, -most - 1, 3, most // 4])})
    right = pa.table({"k": [1], "t": [0], "w": pa.array([2])})
    for name, table in (("left", left), ("right", right)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for where, ids in {
        "v + w > 0 or v + w <= 0": [2, 3],  # -most - 1 + 2 is fine, too
        "v - w > 0 or v - w <= 0": [0, 2, 3],
        "v * w is null": [0, 1],
        "abs(v) is null": [1],
        "-v is null": [1],
        "v / 0 is null": [0, 1, 2, 3],
    }.items():
        plain: dict[str, Any] = {"join": {"within": "1us", "where": where}}
        for name in ("left", "right"):
            plain[name] = {"path": str(tmp_path / f"{name}.parquet"), "key": "k", "time": "t", "time_unit": "us"}
        folder = tmp_path / str(abs(hash(where)))
        folder.mkdir()
        (folder / "c.yaml").write_text(json.dumps(plain))
        run(folder / "c.yaml", folder)
        found = sorted(pq.read_table(folder / "run" / "results")["left_id"].to_pylist())
        expected = sorted({*ids, 1}) if where.startswith("v + w") else ids
        assert found == expected, where


def test_long_conditions_take_no_longer_and_no_deeper() -> None:
    from swjoin.core.row_codec import RowCodec, StreamCodec

    codec = StreamCodec((("a", pa.int32(), "row"),), ("k",), RowCodec(pa.schema([("a", pa.int32())])))
    many = " or ".join(f"left_a = {i}" for i in range(400))
    assert len(compile_where(parse_where(many), codec, codec).code) > 400
    compile_where(parse_where("+".join(["left_a"] * 50) + " > 0"), codec, codec)
    with pytest.raises(UserError, match="more than 50 of"):
        parse_where("+".join(["left_a"] * 60) + " > 0")


def test_categories_without_a_sign_have_none(tmp_path: Path) -> None:
    for name in ("left", "right"):
        values = pa.array([200, 100], pa.uint8()).dictionary_encode()
        pq.write_table(pa.table({"key": [1, 1], "ts": [0, 0], "v": values}), tmp_path / f"{name}.parquet")
    plain: dict[str, Any] = {"join": {"within": "1us", "where": "left_v > right_v"}}
    plain |= {name: {"path": str(tmp_path / f"{name}.parquet"), "time_unit": "us"} for name in ("left", "right")}
    (tmp_path / "c.yaml").write_text(json.dumps(plain))
    run(tmp_path / "c.yaml", tmp_path)
    rows = pq.read_table(tmp_path / "run" / "results").to_pylist()
    assert [(row["left_v"], row["right_v"]) for row in rows] == [(200, 100)]

"""Predicates over floats, and their meaning by DuckDB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import swjoin
from swjoin.expressions.parser import COMPARISONS, Kind

INTS, FLOATS, TEXTS, BOOLS, TIMES = ("tiny", "small", "big"), ("real", "half"), ("word", "name"), ("flag",), ("at",)
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0)
KINDS = {
    "tiny": pa.int8(),
    "small": pa.uint16(),
    "big": pa.int64(),
    "real": pa.float64(),
    "half": pa.float32(),
    "word": pa.string(),
    "name": pa.dictionary(pa.int32(), pa.string()),
    "flag": pa.bool_(),
    "at": pa.timestamp("us"),
}


def _value(random: np.random.Generator, name: str) -> Any:
    if random.random() < 0.15:
        return None
    if name in INTS:
        return int(random.integers(0 if name == "small" else -9, 10))
    if name in FLOATS:
        return float(random.choice(SPECIAL)) if random.random() < 0.3 else float(random.integers(-8, 9)) / 4
    if name in TEXTS:
        return str(random.choice(["", "a", "ab", "b", "z'z", "ä", "abc" * 5]))
    return bool(random.random() < 0.5) if name in BOOLS else int(random.integers(0, 20))


def _table(random: np.random.Generator, n: int) -> pa.Table:
    columns = {"key": pa.array(random.integers(0, 4, n)), "ts": pa.array(np.sort(random.integers(0, 400, n)))}
    for name, kind in KINDS.items():
        values = [_value(random, name) for _ in range(n)]
        columns[name] = pa.array(values, pa.string()).cast(kind) if name == "name" else pa.array(values, kind)
    return pa.table(columns)


def _column(random: np.random.Generator, names: tuple[str, ...]) -> str:
    return str(random.choice(["left", "right"])) + str(random.choice(["_", "."])) + str(random.choice(names))


def _number(random: np.random.Generator, depth: int) -> str:
    pick = random.integers(8 if depth else 3)
    if pick == 0:
        return str(random.choice(["0", "3", "-2", "1.5", "2e0", ".25", "null", "1e999"]))
    if pick < 3:
        return _column(random, INTS if pick == 1 else FLOATS)
    if pick == 3:
        return f"-({_number(random, depth - 1)})"
    if pick == 4:
        return f"abs({_number(random, depth - 1)})"
    sign = str(random.choice(["+", "-", "*", "/"]))
    return f"({_number(random, depth - 1)} {sign} {_number(random, depth - 1)})"


def sql_name(name: str) -> tuple[str, Kind]:
    side, _, column = name.replace("_", ".", 1).partition(".")
    if column in INTS or column in ("ts", "key"):
        return f"{side[0]}.{column}", "int"
    if column in FLOATS:
        return f"{side[0]}.{column}", "float"
    return (f"CAST({side[0]}.{column} AS VARCHAR)", "text") if column in TEXTS else (f"{side[0]}.{column}", "other")


NAN, INFINITY = float("nan"), float("inf")
# of the left values x and the right values y below: pairs for which the condition holds
IEEE = {
    "left_x >= right_y": 5,
    "not (left_x >= right_y)": 11,
    "left_x < right_y": 4,
    "left_x = right_y": 2,
    "left_x <> right_y": 14,
    "left_x = left_x": 12,
    "left_x != left_x": 4,
    "not (left_x < 0) and not (left_x >= 0)": 4,
    "not (right_y <= 5)": 8,
    "right_n < left_x": 4,
    "right_n != left_x": 10,
    "left_x - left_x = 0": 8,  # infinity - infinity is NaN
    "left_x * 0 = 0": 8,
    "left_x / 0 is null": 16,
    "(left_x + right_y) / (left_x + right_y) > 0": 4,
    "1e999 - 1e999 != 1e999": 16,
    "left_x <= 1e999": 12,
    "left_x = null or left_x != null": 0,
}


def ieee_tables(kind: pa.DataType) -> tuple[pa.Table, pa.Table]:
    """Four rows a side, of one key at one time: x; y and the integer n."""
    common = {"k": [1] * 4, "t": [0] * 4}
    left = pa.table({**common, "x": pa.array([NAN, 1.0, 5.0, INFINITY], kind)})
    return left, pa.table({**common, "y": pa.array([NAN, 2.0, 5.0, INFINITY], kind), "n": [1, 5, 9, None]})


def float_predicates(seed: int, count: int) -> tuple[pa.Table, pa.Table, list[str]]:
    """Random tables with many NaN, infinities and nulls, and random conditions over them."""
    random = np.random.default_rng([seed, 17])
    left, right = (_table(random, n) for n in (40, 50))
    texts = []
    for _ in range(count):
        parts = [_number(random, 2) for _ in range(4)]
        signs = [str(random.choice([*COMPARISONS, "==", "<>"])) for _ in range(2)]
        text = f"{parts[0]} {signs[0]} {parts[1]} {random.choice(['and', 'or'])} {parts[2]} {signs[1]} {parts[3]}"
        texts.append(f"not ({text})" if random.random() < 0.4 else text)
    return left, right, texts


def answers(left: pa.Table, right: pa.Table, texts: list[str]) -> list[int]:
    basics: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "400us"}
    return [swjoin.count(left, right, **basics, where=text).count for text in texts]

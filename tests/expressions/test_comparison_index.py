"""Many conditions at once: for each, the index leaves out no row that satisfies it, and searches those that it can."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.expressions.comparison_index import ComparisonIndex
from swjoin.expressions.evaluator import satisfied
from swjoin.plan.bound import bound

COLUMNS = (
    ("k", "int64"),
    ("i", "int16"),
    ("u", "uint64"),
    ("s", "string"),
    ("d", "double"),
    ("b", "bool"),
    ("ts", "timestamp[us]"),
)
VALUES: dict[str, list[Any]] = {
    "k": [-(2**63), -3, 0, 1, 2, 3, 2**63 - 1, None],
    "i": [-3, 0, 1, 2, 3, None],
    "u": [0, 1, 2, 2**64 - 1, None],
    "s": ["", "a", "b", "é", None],
    "d": [0.0, -0.0, float("nan"), 1.0, 2.5, None],
    "b": [True, False, None],
    "ts": [datetime(2024, 1, 1), datetime(2024, 1, 2), None],
}
CONSTANTS = {
    "k": ["-3", "0", "1", "2", "9", "9223372036854775807", "2.5"],
    "i": ["-3", "0", "2", "70000"],
    "u": ["0", "2", "9223372036854775807"],
    "s": ["''", "'a'", "'é'", "'z'"],
    "d": ["0", "0.0", "2.5"],
    "b": ["TRUE", "FALSE"],
    "ts": ["TIMESTAMP '2024-01-01 00:00:00'", "TIMESTAMP '2024-01-01 12:00:00'"],
}
ORDERED = ["k", "i", "u", "d", "ts"]


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(CONSTANTS)))
    operator = draw(st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="] if name in ORDERED else ["=", "<>"]))
    sides = [f'"{name}"', draw(st.sampled_from(CONSTANTS[name]))]
    return f" {operator} ".join(sides if draw(st.booleans()) else sides[::-1])


conditions = st.one_of(
    comparisons(),
    st.lists(comparisons(), min_size=2, max_size=3).map(" AND ".join),
    st.lists(comparisons(), min_size=2, max_size=2).map(" OR ".join),
    comparisons().map(lambda text: f"NOT ({text})"),
)
rows = st.integers(0, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {name: st.lists(st.sampled_from(of), min_size=n, max_size=n) for name, of in VALUES.items()}
    )
)


def _batch(values: dict[str, list[Any]]) -> pa.RecordBatch:
    types = {"i": pa.int16(), "u": pa.uint64(), "ts": pa.timestamp("us"), "b": pa.bool_(), "d": pa.float64(), "k": pa.int64()}
    return pa.record_batch({name: pa.array(of, types.get(name, pa.string())) for name, of in values.items()})


@given(st.lists(conditions, max_size=12), rows)
@settings(max_examples=300, deadline=None)
def test_no_row_that_satisfies_a_condition_is_left_out(texts: list[str], values: dict[str, list[Any]]) -> None:
    batch = _batch(values)
    exprs = {number: bound(text, COLUMNS, "a condition") for number, text in enumerate(texts)}
    index = ComparisonIndex.of(exprs)
    found = list(index.candidates(batch))
    assert len({number for number, _ in found}) == len(found), "a condition that comes twice"
    assert {number for number, _ in found} <= index.numbers
    at = {number: np.arange(batch.num_rows) if some is None else some for number, some in found}
    for number, at_number in at.items():
        assert len(at_number), f"no rows of {texts[number]}"
        assert (np.diff(at_number) > 0).all()
    for number, some in found:
        if number in index.exact and some is not None:
            assert satisfied(exprs[number], batch)[some].all(), texts[number]
    for number in index.numbers:
        mask = np.zeros(batch.num_rows, np.bool_)
        mask[at.get(number, np.zeros(0, np.int64))] = True
        good = satisfied(exprs[number], batch) if batch.num_rows else mask
        assert not (good & ~mask).any(), texts[number]


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ('"k" = 3', True),
        ('3 = "k"', True),
        ('"k" > 3 AND "s" <> \'a\'', True),
        ('"s" = \'a\' AND "d" > 2.5', True),
        ('"k" BETWEEN 1 AND 3', True),
        ("\"ts\" >= TIMESTAMP '2024-01-01 00:00:00'", True),
        ('"k" <> 3', False),
        ('"k" = 3 OR "k" = 4', False),
        ('"d" = 2.5', False),  # -0.0 and NaN have rules of their own
        ('"k" = NULL', False),
        ('"k" = "u"', False),
        ('"k" = 3 AND 1 % "k" = 0', False),  # a row may fail, whichever condition is tested first
    ],
)
def test_which_conditions_are_searched(text: str, searched: bool) -> None:
    assert (0 in ComparisonIndex.of({0: bound(text, COLUMNS, "a condition")}).numbers) == searched


def _found(texts: list[str], batch: pa.RecordBatch) -> dict[int, list[int] | None]:
    index = ComparisonIndex.of({number: bound(text, COLUMNS, "") for number, text in enumerate(texts)})
    assert index.numbers == set(range(len(texts)))
    return {number: None if at is None else at.tolist() for number, at in index.candidates(batch)}


def test_candidates_of_comparisons() -> None:
    """Rows that may be many are not told apart: each is tested, without a copy."""
    equal = ['"k" = 2', '"k" = 7', '"k" = 77']
    limits = ['"k" < 2', '"k" <= 2', '"k" > 6', '"k" >= 6', '6 < "k"', '"k" BETWEEN 2 AND 3', '"k" > 3 AND "k" < 2', '"k" > 2']
    batch = pa.record_batch({"k": pa.array([7, 2, None, 1, 6, 3, 4, 4, 4, 4, 4, 4], pa.int64())})
    expected: dict[int, list[int] | None] = {0: [1], 1: [0], 3: [3], 4: [1, 3], 5: [0], 6: [0, 4], 7: [0], 8: [1, 5], 10: None}
    assert _found([*equal, *limits], batch) == expected
    assert _found(['"k" = 4'], batch) == {0: None}


def test_the_ends_of_64_bits() -> None:
    least, most = -(2**63), 2**63 - 1
    batch = pa.record_batch({"k": pa.array([least, most, *range(10)], pa.int64())})
    texts = [
        f'"k" > {most}',
        f'"k" >= {most}',
        f'"k" < {least + 1}',
        f'"k" > {most} AND "k" < {least + 1}',
        f'"k" <= {least + 1}',
    ]
    assert _found(texts, batch) == {1: [1], 2: [0], 4: [0]}


def test_few_conditions_are_not_searched() -> None:
    exprs = {number: bound(f'"k" = {number}', COLUMNS, "") for number in range(7)}
    exprs |= {number: bound(f'"i" = {number}', COLUMNS, "") for number in range(10, 18)}
    assert ComparisonIndex.of(exprs, 8).numbers == frozenset(range(10, 18))


def test_dictionaries_and_other_widths() -> None:
    text = pa.array(["a", "b", None, "b", *"cdefgh"]).dictionary_encode()
    batch = pa.record_batch({"s": text, "i": pa.array([1, 2, 3, None, *[0] * 6], pa.int16())})
    assert _found(["\"s\" = 'b'", '"i" > 1'], batch) == {0: [1, 3], 1: [1, 2]}

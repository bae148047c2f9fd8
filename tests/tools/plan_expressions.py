"""Conditions and computed columns of random plans: each as SQL text and as a function in Python.

What: `draw_condition`, `draw_value`, `band_key`, `born_at`, `dead_at`, `function_of`; `merged_values`, a function of a batch,
and `merged`, the same of a value.
Why: the oracle of plans has its own meaning of every expression that a random plan has.
Stays out: what SQL functions mean in general (`tests.expressions.test_expressions`, against DuckDB).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.ids import LAST_TIME_US
from swjoin.plan.logical import Schema

_Function = Callable[[Any], Any]


def _known(function: _Function) -> _Function:
    """Null for null."""
    return lambda value: None if value is None else function(value)


# text with a column in double quotes -> (type of the column, function of its value)
_CONDITIONS: dict[str, tuple[str, _Function]] = {
    '"{}" % 3 <> 1': ("int64", _known(lambda v: v % 3 != 1 if v >= 0 else True)),
    '"{}" is not null': ("", lambda v: v is not None),
    '"{}" between 2 and 60 or "{}" is null': ("int64", lambda v: v is None or 2 <= v <= 60),
    "\"{}\" in ('s0', 'key 1', null)": ("string", lambda v: True if v in ("s0", "key 1") else None),
    "not \"{}\" like '%2'": ("string", _known(lambda v: not v.endswith("2"))),
    'case when "{}" <> 0 then 12 // "{}" > -1 end': ("int64", lambda v: None if not v else int(12 / v) > -1),
    '"{}" is null and 1 = 2': ("", lambda v: False),
    'case when "{}" % 2 = 0 then "{}" < 60 end': ("int64", lambda v: v < 60 if v is not None and v % 2 == 0 else None),
    "nullif(\"{}\", 's0') <> 's7'": ("string", lambda v: None if v in (None, "s0") else v != "s7"),
}
_VALUES: dict[str, tuple[str, str, _Function]] = {  # and the type of the value
    '"{}" + 1': ("int64", "int64", _known(lambda v: v + 1)),
    'coalesce("{}", 0) // 2': ("int64", "int64", lambda v: int((v or 0) / 2)),
    "\"{}\" || 'x'": ("string", "string", _known(lambda v: v + "x")),
    "case when \"{}\" like 's%' then 's1' else \"{}\" end": ("string", "string", lambda v: "s1" if v and v[0] == "s" else v),
}


def _column(random: np.random.Generator, schema: Schema, kind: str) -> str | None:
    fitting = [name for name, type_name in schema.columns if kind in ("", type_name)]
    return str(random.choice(fitting)) if fitting else None


def draw_condition(random: np.random.Generator, schema: Schema) -> str:
    """A condition over a column of this schema."""
    while True:
        form = list(_CONDITIONS)[int(random.integers(len(_CONDITIONS)))]
        column = _column(random, schema, _CONDITIONS[form][0])
        if column is not None:
            return form.replace("{}", column)


def draw_value(random: np.random.Generator, column: tuple[str, str]) -> str:
    """An expression of the column's type over the column, often the column itself."""
    name, kind = column
    forms = [form for form, (of, to, _) in _VALUES.items() if of == to == kind]
    if not forms or random.random() < 0.6:
        return f'"{name}"'
    return str(random.choice(forms)).replace("{}", name)


def band_key(column: str, more: int, copy: int) -> str:
    """A key of a band (`swjoin.core.band_keys`): of one of few values, and so many more."""
    return f'2 * ("{column}" % 100 + {more}) + {copy}'


def one_key(column: str, value: int = 0) -> str:
    """The same for all rows."""
    return f'CAST(CASE WHEN "{column}" IS NULL THEN {value} ELSE {value} END AS BIGINT)'


def born_at(column: str, after_us: int, unit_us: int) -> str:
    """A birth, a multiple of a time: from a row's time on, a timestamp, so much later."""
    return f'((epoch_us("{column}") + {after_us + unit_us - 1}) // {unit_us}) * {unit_us}'


def dead_at(column: str, after_us: int, unit_us: int) -> str:
    """A death likewise; rows of some times never die."""
    return f'CASE WHEN epoch_us("{column}") % 5 = 2 THEN {LAST_TIME_US} ELSE {born_at(column, after_us, unit_us)} END'


def function_of(text: str) -> tuple[str, _Function]:
    """The column that an expression drawn here reads, and its value as a function of the column's."""
    found = re.search('"([^"]*)"', text)
    assert found is not None, f"{text!r} reads no column"
    form = text.replace(found[0], '"{}"')
    if of_band := re.fullmatch(r'2 \* \("{}" % 100 \+ (\d+)\) \+ (\d)', form):
        more, copy = map(int, of_band.groups())
        return found[1], _known(lambda v: 2 * (int(math.fmod(v, 100)) + more) + copy)
    if of_life := re.search(r'epoch_us\("{}"\) \+ (-?\d+)\) // (\d+)', form):
        more, unit = map(int, of_life.groups())
        for_ever = form.startswith("CASE")
        return found[1], lambda v: LAST_TIME_US if for_ever and math.fmod(v, 5) == 2 else int((v + more) / unit) * unit
    if (constant := re.search(r"ELSE (\d+) END AS BIGINT", form)) and text == one_key(found[1], int(constant[1])):
        return found[1], lambda value: int(constant[1])
    if form == '"{}"':
        return found[1], lambda value: value
    return found[1], _CONDITIONS[form][1] if form in _CONDITIONS else _VALUES[form][2]


def merged(value: Any) -> Any:
    """A value to which several others are brought: half of an integer, a text whose 1 is a 0."""
    if isinstance(value, str):
        return value.replace("1", "0")
    return value >> 1 if isinstance(value, int) else value


def merged_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every integer and text `merged`; keys, too, so that rows which had others meet. Times have a type of their own."""

    def of(column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type):
            return pc.replace_substring(column, "1", "0")
        return pc.shift_right(column, pa.scalar(1, column.type)) if pa.types.is_integer(column.type) else column

    return pa.RecordBatch.from_arrays([of(column) for column in batch.columns], names=batch.schema.names)


def counted_nulls(batch: pa.RecordBatch) -> pa.Table:
    """The columns but the times, and a new one, `nulls`: how many values of a row are null."""
    nulls = np.sum([column.is_null().to_numpy(zero_copy_only=False) for column in batch.columns], axis=0, dtype=np.int64)
    kept = [
        name for name, column in zip(batch.schema.names, batch.columns, strict=True) if not pa.types.is_timestamp(column.type)
    ]
    return pa.Table.from_batches([batch.select(kept)]).append_column("nulls", pa.array(nulls))

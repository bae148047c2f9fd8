"""Arrow arrays from NumPy values as pyarrow makes them, without pandas."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.arrow_views import array_of, scalar_of, texts_of
from tests.support.limits import PROCESS_S


@given(st.data())
def test_numpy_values_as_arrow(data: st.DataObject) -> None:
    """As pyarrow makes them."""
    dtype = np.dtype(data.draw(st.sampled_from(["i1", "i4", "i8", "u2", "u8", "f4", "f8", "?"])))
    n, step = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 3))
    random = np.random.default_rng(n)
    values = random.integers(0, 2 if dtype == "?" else 100, n * step).astype(dtype)[::step]
    missing = data.draw(st.sampled_from([None, np.zeros(n, np.bool_), random.random(n) < 0.5]))
    found = array_of(values, missing)
    found.validate(full=True)
    assert found.equals(pa.array(values, mask=missing))
    assert found.null_count == (0 if missing is None else missing.sum())
    texts = data.draw(st.lists(st.none() | st.text(max_size=4)))
    texts_of(texts).validate(full=True)
    assert texts_of(texts).equals(pa.array(texts, pa.string()))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((None, kind) for kind in (pa.int64(), pa.string(), pa.bool_(), pa.duration("us"), pa.decimal128(5, 2))),
        *(
            (7, kind)
            for kind in (pa.int8(), pa.uint16(), pa.int64(), pa.float64(), pa.duration("us"), pa.timestamp("us", "UTC"))
        ),
        *((2**64 - 1, pa.uint64()), (-(2**63), pa.int64()), (1.5, pa.float64()), (1.5, pa.float32()), (True, pa.bool_())),
        *(("", pa.string()), ("aéß", pa.large_string()), (b"x", pa.binary()), (timedelta(microseconds=-3), pa.duration("us"))),
        *((timedelta(days=1), pa.duration("s")), (Decimal("1.25"), pa.decimal128(5, 2)), (date(2026, 1, 2), pa.date32())),
    ],
)
def test_a_value_as_arrow(value: Any, kind: pa.DataType) -> None:
    found, expected = scalar_of(value, kind), pa.scalar(value, kind)
    assert (found.type, found.is_valid, found) == (expected.type, expected.is_valid, expected)


@pytest.mark.parametrize("value", [300, -129, 2**64])
def test_a_value_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        scalar_of(value, pa.int8())


PROGRAM = """
import sys

class Noted:
    names = []
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            import traceback
            Noted.names.append("".join(traceback.format_stack()))

sys.meta_path.insert(0, Noted())
import numpy as np, pyarrow.parquet as pq, pyarrow as pa
from swjoin.cli.main import main
from swjoin.core.arrow_views import array_of
n = 300
for name in "ab":
    t = array_of(np.arange(n) * 10**6).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"t": t, "k": array_of(np.arange(n) % 7), "v": array_of(np.arange(n) / 2)}), f"{name}.parquet")
assert not Noted.names
join = "join a.parquet b.parquet --on k --left-time t --right-time t --within 5s -o".split()
tables = "--table a=a.parquet:t --table b=b.parquet:t -o".split()
near = "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k AND b.t BETWEEN a.t AND a.t + INTERVAL 5 SECOND WHERE a.v > 3"
sums = "SELECT k, count(*) AS n, sum(v) AS s, window_end FROM TUMBLE(a, t, INTERVAL 1 MINUTE) GROUP BY k, window_end"
for words in ([*join, "count"], [*join, "x.parquet"], [*join, "y.csv", "--how", "left"]):
    assert main(words) == 0
for name, text in (("near", near), ("sums", sums)):
    assert main(["query", text, *tables, f"{name}.parquet"]) == 0
assert not Noted.names, Noted.names[0]
"""


def test_commands_do_not_import_pandas(tmp_path: Path) -> None:
    """Which would take a good part of their start."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=PROCESS_S)
    assert done.returncode == 0, done.stderr

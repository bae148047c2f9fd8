"""Parts of texts are those of Python's `str.split`, in every layout of an array."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.expressions.text_parts import part_of

_TEXTS = st.lists(st.one_of(st.none(), st.text("ab,é", max_size=12), st.text(max_size=5)), max_size=12)


@given(
    _TEXTS, st.one_of(st.text("ab,é", min_size=1, max_size=3), st.text(min_size=1, max_size=3)), st.integers(1, 6), st.data()
)
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parts(kind: pa.DataType, texts: list[str | None], separator: str, part: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(texts)))
    array = pa.array(texts, kind).slice(begin, data.draw(st.integers(0, len(texts) - begin)))
    found = part_of(array, separator, part)
    found.validate(full=True)
    assert found.type == kind
    parts = [None if text is None else text.split(separator) for text in array.to_pylist()]
    assert found.to_pylist() == [None if of is None else of[part - 1] if part <= len(of) else "" for of in parts]

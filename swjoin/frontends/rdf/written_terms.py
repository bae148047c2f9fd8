"""Computed values as terms.

What: `written_terms(form, columns)`.
Why: an answer is of terms, whether its file is written at the end or its rows come while a run goes on.
Stays out: terms that have codes (`frontends.rdf.dictionary`), what is computed (`frontends.rdf.expressions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.arrow_views import booleans_of
from swjoin.core.batch import I64
from swjoin.frontends.rdf.dictionary import I8, boolean_texts, number_texts, string_texts
from swjoin.frontends.rdf.expressions import Form

if TYPE_CHECKING:
    import pyarrow as pa

_SPAN = 4  # of integers over their count, up to which a table of all between them finds those that differ


def written_terms(form: Form, columns: Sequence[pa.Array]) -> pa.Array[Any]:
    """Values as terms in N-Triples syntax, as texts or a dictionary of them; null where there is none. form: `number`, whose
    columns are numbers and ranks; `text`, texts and perhaps languages; `truth`; `iri`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if form == "number":
        return _number_terms(columns[0], columns[1])
    if form == "text":
        return string_texts(columns[0], columns[1] if len(columns) > 1 else None)
    if form == "truth":
        texts = boolean_texts(booleans_of(columns[0].fill_null(False)))
        return pc.if_else(columns[0].is_valid(), texts, pa.scalar(None, pa.large_string()))
    return pc.binary_join_element_wise("<", columns[0].cast(pa.string()), ">", "")


def _number_terms(numbers: pa.Array, ranks: pa.Array) -> pa.DictionaryArray:
    """Each different number is written once. Null where number or rank is."""
    import pyarrow as pa

    known = booleans_of(numbers.is_valid()) & booleans_of(ranks.is_valid())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    found = values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64)
    kinds = ranks.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int8)
    first, place = _different(found, kinds)
    exact = None if values.dtype == np.float64 else found[first]
    texts = number_texts(values[first].astype(np.float64), kinds[first], exact)
    return pa.DictionaryArray.from_arrays(pa.array(place, mask=~known), texts)


def _different(words: I64, kinds: I8) -> tuple[I64, I64]:
    """The position of a row of each different pair, and for each row the place of its pair among these."""
    count = len(words)
    if count and (kinds == kinds[0]).all() and (span := int(words.max()) - int(words.min())) < _SPAN * count:
        offsets = words - words.min()
        row_of = np.full(span + 1, -1, np.int64)
        row_of[offsets] = np.arange(count)
        there = row_of >= 0
        return row_of[there], (np.cumsum(there) - 1)[offsets]
    by = np.lexsort((words, kinds))
    new = np.ones(count, np.bool_)
    new[1:] = (words[by[1:]] != words[by[:-1]]) | (kinds[by[1:]] != kinds[by[:-1]])
    place = np.empty(count, np.int64)
    place[by] = np.cumsum(new) - 1
    return by[new], place

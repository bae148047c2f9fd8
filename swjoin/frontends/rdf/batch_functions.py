"""RDF terms in the batches of a run: functions that a plan names (`plan.map_batches`).

What: `triples`, `graph`, rows of a stream or a static graph as terms in one spelling; `mappings`, mappings with their lives and
with what expressions read of terms; `written`, rows of an answer as terms.
Why: while a run goes on, terms are text, so that any process joins, checkpoints and shows them, and no dictionary has to be the
same in all of them. What of a term is no text is computed where it is read, once for each term of a batch.
Stays out: which functions a query needs (`frontends.rdf.live_planner`), codes of files (`frontends.rdf.inputs`).

A function sees columns alone, so their names say what is to be done, in parts with colons between them.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.connectors.files.rdf_format import TERMS
from swjoin.core.arrow_views import decoded
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError
from swjoin.core.lives import Window
from swjoin.frontends.rdf.dictionary import INTEGER, TermDictionary
from swjoin.frontends.rdf.inputs import EXACT, MOST_US, coarse, facet_of
from swjoin.frontends.rdf.ntriples import REASONS, TermReader
from swjoin.frontends.rdf.term_values import NUMERIC, TermValues
from swjoin.frontends.rdf.written_terms import written_terms

_LOG = logging.getLogger(__name__)
_SHOWN = 3  # malformed triples that a process logs
_malformed: dict[str, None] = {}


def triples(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of the columns "s:7:drop", "p" and "o" become "s", "p" and "o" in the spelling of `TermReader`, all null where one is no
    term; blank nodes are those of scope 7. With "s:7:side" there are "triple" and "reason", too: what is no triple as it came,
    and why it is none. "us:1000", the time in units of so many microseconds, becomes "born", in microseconds. Other columns are
    as they are."""
    return _in_one_spelling(batch, is_set=False)


def graph(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `triples`, of all rows of a static graph, which is a set: copies of a triple are null."""
    return _in_one_spelling(batch, is_set=True)


graph.of_whole_table = True  # type: ignore[attr-defined]


def _in_one_spelling(batch: pa.RecordBatch, *, is_set: bool) -> pa.RecordBatch:
    subject = next(name for name in batch.schema.names if name.startswith("s:"))
    _, scope, policy = subject.split(":")
    dictionary = TermDictionary()
    reader = TermReader(dictionary, scope=int(scope))
    terms = [batch.column(subject), batch.column("p"), batch.column("o")]
    codes = np.stack([reader.read(column, role) for role, column in enumerate(terms)])
    left_out: Bool = codes.min(axis=0) < 0
    if left_out.any():
        _log_malformed(terms, codes, int(np.argmax(left_out)), policy)
    if is_set:
        _, first = np.unique(codes, axis=1, return_index=True)
        copies = np.ones(len(left_out), np.bool_)
        copies[first] = False
        left_out |= copies
    made: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        head, _, number = name.partition(":")
        if head in TERMS:
            made[head] = dictionary.decode(np.where(left_out, -1, codes[TERMS.index(head)])).cast(pa.string())
            if head == "o" and policy == "side":
                made["triple"], made["reason"] = _described(terms, codes)
        elif number:
            made["born"] = _microseconds(column, int(number))
        else:
            made[name] = column
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _described(terms: list[Any], codes: I64) -> tuple[pa.Array, pa.Array]:
    """Of what is no triple: its columns as they came, and why it is none; null for triples."""
    lowest = codes.min(axis=0)
    texts, reasons = [None] * len(lowest), [None] * len(lowest)
    for row in np.flatnonzero(lowest < 0).tolist():
        texts[row], reasons[row] = _text_of(terms, row), REASONS[-int(lowest[row])]  # type: ignore[call-overload]
    return pa.array(texts, pa.string()), pa.array(reasons, pa.string())


def _text_of(terms: list[Any], row: int) -> str:
    """The columns of a row, with spaces between them, and nothing where one is null."""
    return " ".join(str(column[row].as_py() or "") for column in terms)


def _log_malformed(terms: list[Any], codes: I64, row: int, policy: str) -> None:
    """The first malformed triples of a process, in the log. UserError by the policy "error"."""
    reason = REASONS[-int(codes[:, row].min())]
    text = _text_of(terms, row)[:200]
    if policy == "error":
        raise UserError(f"{text}: {reason}", remedy="mend it, or leave such triples out by malformed: drop, or side")
    if len(_malformed) < _SHOWN and text not in _malformed:
        _malformed[text] = None
        _LOG.warning("%s: %s; such triples are in no answer", text, reason)


def _microseconds(column: pa.Array, unit_us: int) -> pa.Array:
    """UserError for a time beyond those for which windows are computed."""
    if pa.types.is_integer(column.type):
        found, most = column.cast(pa.int64()), MOST_US // unit_us
    else:
        found, most = column.cast(pa.timestamp("us", getattr(column.type, "tz", None))).cast(pa.int64()), MOST_US
    beyond = pc.or_(pc.less(found, -most), pc.greater(found, most)).fill_null(False)
    if pc.any(beyond).as_py():
        problem = f"a triple of time {pc.filter(column, beyond)[0]}; times of RDF streams are from -2^58 to 2^58 us"
        raise UserError(problem, remedy="leave it out, or give the unit of times by time_unit")
    return pc.multiply(found, unit_us) if pa.types.is_integer(column.type) else found


def mappings(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of the columns "born:5000000:10000000", times, become births and deaths in a window that slides by the first for the
    second number of microseconds, "born" and "dead"; of "v0:num:kind", terms, those terms "v0" and their facets "v0_num" and
    "v0_kind". Other columns are as they are."""
    made: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        head, *parts = name.split(":")
        if head == "born" and parts:
            window = Window("slide", slide_us=int(parts[0]), width_us=int(parts[1]))
            lives = window.lives(column.to_numpy(zero_copy_only=False))
            made["born"], made["dead"] = pa.array(lives.born), pa.array(lives.dead)
            continue
        made[head] = column
        if parts:
            dictionary = TermDictionary()
            codes, values = dictionary.encode(column), TermValues(dictionary)
            for facet in parts:
                made[f"{head}_{facet}"] = _numbers(codes, values) if facet == "num" else facet_of(facet, codes, values, head)
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _numbers(codes: I64, values: TermValues) -> pa.Array:
    """Numbers of terms as doubles. UserError for one that has more digits."""
    numeric = values.kind[codes] == NUMERIC
    beyond = codes[numeric & (coarse(codes, values) | (np.abs(values.number[codes]) > EXACT) & values.is_integer[codes])]
    if len(beyond):
        _refuse_digits(values.dictionary.text_of(int(beyond[0])))
    return pa.array(np.where(numeric, values.number[codes], 0.0), mask=~numeric)


def _refuse_digits(what: str) -> None:
    problem = f"{what[:80]}: a number beyond 2^53, up to which integers are exact in expressions of a run"
    raise UserError(problem, remedy="leave such values out of what expressions read, or use `swjoin rdf` over files")


def written(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of the columns "avg:number:num" and "avg:number:rank", in this order, become the terms "avg" (`written_terms`). Other
    columns are as they are."""
    made: dict[str, Any] = {}
    columns = zip(batch.schema.names, batch.columns, strict=True)
    for head, found in groupby(columns, lambda named: named[0].partition(":")[0]):
        names, arrays = zip(*found, strict=True)
        form = names[0].split(":")[1:2]
        if form == ["number"]:
            _check_integers(*arrays)
        made[head] = decoded(written_terms(form[0], arrays)).cast(pa.string()) if form else arrays[0]
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _check_integers(numbers: pa.Array, ranks: pa.Array) -> None:
    """UserError for a computed integer that may be another than it should."""
    whole = pc.equal(ranks.cast(pa.int64()), INTEGER)
    beyond = pc.and_(whole, pc.greater_equal(pc.abs(numbers.cast(pa.float64())), float(EXACT))).fill_null(False)
    if pc.any(beyond).as_py():
        _refuse_digits(f"{pc.filter(numbers, beyond)[0].as_py():.0f}, computed")

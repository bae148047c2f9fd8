"""Random queries over random triples: whole bags of rows against the brute force of `tests.tools.rdf_oracle`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

import swjoin
from tests.support.limits import LONG_S
from tests.tools.random_rdf import Case, Knobs, random_case
from tests.tools.rdf_oracle import expected, same_rows

_REFUSED = (
    "is bound nowhere",  # in SPARQL it is legal, and can only be a mistake
    "are not supported; give values alike",
    "is not supported",
    "are not supported",
    "different terms of one value",
    "of values that are not all numbers of one type",
)


def table_of(rows: Sequence[Sequence[object]], *, times: bool) -> pa.Table:
    names = [*(["ts"] if times else []), "s", "p", "o"]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    types = [pa.int64() if name == "ts" else pa.string() for name in names]
    return pa.table([pa.array(list(c), kind) for c, kind in zip(columns, types, strict=True)], names=names)


def answer(case: Case, **options: int) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swjoin.ImplausibleWarning)  # joins without a pair
        return swjoin.rdf(
            case.query,
            {iri: table_of(rows, times=True) for iri, rows in case.streams.items()},
            static={iri: table_of(rows, times=False) for iri, rows in case.static.items()},
            memory="1GB",
            **options,
        )


def check(seeds: range, knobs: Knobs) -> None:
    answered = rows = 0
    for seed in seeds:
        case = random_case(np.random.default_rng(seed), knobs)
        try:
            found = answer(case, threads=1 + seed % 3)
        except swjoin.UserError as error:
            if not any(text in str(error) for text in _REFUSED):
                raise AssertionError(f"seed {seed}: {error}\n{case.query}") from error
            continue
        wanted = expected(case.query, case.streams, case.static)
        difference = same_rows(found.to_pylist(), wanted)
        assert difference is None, f"seed {seed}: {difference}\n{case.query}"
        proof = swjoin.proof(found)
        assert (proof.count, proof.ledger.balanced) == (len(wanted), True)
        answered, rows = answered + 1, rows + len(wanted)
    assert answered >= len(seeds) // 2, "most cases are refused"
    assert rows >= len(seeds), "answers are nearly all empty"


PLAIN = Knobs(filters=0.2, binds=0.1, distinct=0, groups=0, construct=0)
KINDS: Mapping[str, Knobs] = {
    "any": Knobs(),
    "windows": PLAIN,
    "ranges": Knobs(windows=("range",), shapes=("star", "chain"), filters=1, binds=0, distinct=0, groups=0, construct=0),
    "counted": Knobs(windows=("triples", "range", "slide"), groups=0.2, construct=0),
    "aligned": Knobs(windows=("slide", "tumbling"), aligned=1, groups=0.7, filters=0.2, construct=0),
    "changes": Knobs(windows=("range", "now"), groups=0.9, filters=0.2, construct=0),
    "distinct": Knobs(windows=("range", "slide", "tumbling", "now"), distinct=1, groups=0, construct=0),
    "expressions": Knobs(filters=1, binds=1, max_patterns=2, groups=0.2, construct=0),
}


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 30), marks=pytest.mark.drawn)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_brute_force(kind: str, seeds: range) -> None:
    check(seeds, KINDS[kind])


@pytest.mark.long
@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("start", range(1_000, 1_400, 400))
@pytest.mark.parametrize("kind", KINDS)
def test_more_rows_are_those_of_brute_force(kind: str, start: int) -> None:
    check(range(start, start + 200), KINDS[kind])


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("kind", KINDS)
def test_on_ranks_the_digest_is_the_same(kind: str) -> None:
    for seed in range(1_000):
        case = random_case(np.random.default_rng(seed), KINDS[kind])
        try:
            alone = answer(case)
        except swjoin.UserError:
            continue
        if alone.num_rows > 20:
            break
    proof, on_ranks = swjoin.proof(alone), swjoin.proof(answer(case, ranks=4))
    assert (on_ranks.count, on_ranks.digest) == (proof.count, proof.digest)

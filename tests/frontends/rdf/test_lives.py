"""Lives of joins of several patterns: short windows, times that lie close, filters and static triples between the joins,
against the brute force of `tests.tools.rdf_oracle`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import swjoin
from tests.frontends.rdf.test_random_queries import answer
from tests.support.limits import LONG_S
from tests.tools.random_rdf import Case
from tests.tools.rdf_oracle import expected, same_rows

PLAIN = ("RANGE {a}us", "NOW")
SLIDING = ("RANGE {a}us SLIDE {b}us", "RANGE {a}us TUMBLING")
COUNTED = ("TRIPLES {b}",)


def case_of(rng: np.random.Generator, windows: tuple[str, ...]) -> Case:
    """Three or four patterns, a filter of two of their variables, and a static one that sits on one of them."""
    count, chain = int(rng.integers(3, 5)), bool(rng.integers(2))
    blocks, conditions = [], []
    for i in range(count):
        window = str(rng.choice(windows)).format(a=int(rng.integers(1, 7)), b=int(rng.integers(1, 4)))
        subject, value = (f"?n{i}", f"?n{i + 1}") if chain else ("?n0", f"?o{i}")
        blocks.append(f"STREAM e:s{int(rng.integers(2))} [{window}] {{ {subject} e:p{int(rng.integers(2))} {value} }}")
        conditions.append(value)
    one, two = rng.choice(len(conditions), 2, replace=False)
    filters = [f"FILTER({conditions[one]} != {conditions[two]} || {conditions[one]} = {conditions[two]})"]
    statics = [f"{conditions[int(rng.integers(count))]} e:k ?z ."] if rng.integers(2) else []
    parts = [*blocks, *filters, *statics]
    body = " ".join(parts[i] for i in rng.permutation(len(parts)))
    nodes = [f"<http://e/{name}>" for name in "abc"]

    def rows(n: int) -> list[tuple[int, str, str, str]]:
        found = []
        for ts in rng.integers(-4, 14, n).tolist():
            s, o = rng.choice(nodes, 2)
            found.append((ts, str(s), f"<http://e/p{int(rng.integers(2))}>", str(o)))
        return found

    streams = {f"http://e/s{i}": rows(24) for i in range(2)}
    static = {"http://e/g": [(nodes[i], "<http://e/k>", nodes[j]) for i, j in rng.integers(0, 3, (3, 2)).tolist()]}
    return Case(f"PREFIX e: <http://e/> SELECT * {{ {body} }}", streams, static)


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 30), marks=pytest.mark.drawn)], ids=str)
@pytest.mark.parametrize("windows", [PLAIN, PLAIN + SLIDING, PLAIN + SLIDING + COUNTED])
def test_joins_of_short_lives(windows: tuple[str, ...], seeds: range) -> None:
    check(seeds, windows)


@pytest.mark.long
@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("windows", [PLAIN, PLAIN + SLIDING, PLAIN + SLIDING + COUNTED])
def test_more_joins_of_short_lives(windows: tuple[str, ...]) -> None:
    check(range(1_000, 1_300), windows)


def check(seeds: range, windows: tuple[str, ...]) -> None:
    rows = 0
    for seed in seeds:
        case = case_of(np.random.default_rng(seed), windows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
            found = answer(case, threads=1 + seed % 2).to_pylist()
        wanted = expected(case.query, case.streams, case.static)
        difference = same_rows(found, wanted)
        assert difference is None, f"seed {seed}: {difference}\n{case.query}"
        rows += len(wanted)
    assert rows > len(seeds)

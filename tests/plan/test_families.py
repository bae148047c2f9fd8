"""Families of results: each rank is that of the narrowest windows that a pair is in; a result is in one family at most."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.query_sums import NamedQueries, QuerySums
from swjoin.core.row_codec import storage
from swjoin.expressions.evaluator import satisfied
from swjoin.plan.bound import bound
from swjoin.plan.families import Ranking, _chains, _is_within, _Member, families_of
from swjoin.plan.logical import Column, Filter, LogicalPlan, Node, Project, Result
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.sharing import shared
from swjoin.plan.stages import cut
from tests.plan.plans import join, source

_BOUNDS = st.tuples(st.integers(-6, 6), st.integers(-6, 6)).map(lambda b: (min(b), max(b)))


def _plan(bounds: tuple[int, int], *steps: Node) -> LogicalPlan:
    nodes: list[Node] = [source("a"), source("b"), join("j", "a", "b", bounds), *steps]
    return LogicalPlan((*nodes, Result("r", nodes[-1].name, of_values=True)))


@given(st.lists(_BOUNDS, min_size=2, max_size=8), st.lists(st.integers(-8, 8), max_size=20))
def test_ranks(windows: list[tuple[int, int]], differences: list[int]) -> None:
    """Against every window tested by itself."""
    plan = shared({f"q{i}": _plan(bounds) for i, bounds in enumerate(windows)})
    given_bounds, seen = {f"q{i}": bounds for i, bounds in enumerate(windows)}, set()
    for family in families_of(plan, cut(plan)):
        names = [edge.receiver.name for edge in family.edges]
        assert not seen & set(names)
        seen |= set(names)
        of = [given_bounds[name] for name in names]
        assert all(wide[0] <= narrow[0] and narrow[1] <= wide[1] for narrow, wide in itertools.pairwise(of))
        within = [d for d in differences if of[-1][0] <= d <= of[-1][1]]  # the join has no others
        ranks = family.ranking.ranks(np.array(within, np.int64)[:, None]).tolist()
        assert ranks == [next(i for i, (low, high) in enumerate(of) if low <= d <= high) for d in within]
    alone = [i for i, a in enumerate(windows) if not any(_nest(a, b) for j, b in enumerate(windows) if i != j)]
    assert seen.isdisjoint(f"q{i}" for i in alone)


def _nest(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return (a[0] <= b[0] and b[1] <= a[1]) or (b[0] <= a[0] and a[1] <= b[1])


def _members(*plans: LogicalPlan) -> list[list[str]]:
    plan = shared({f"q{i}": plan for i, plan in enumerate(plans)})
    families = families_of(plan, cut(plan))
    return [[edge.receiver.name for edge in family.edges] for family in families]


def test_what_is_done_to_the_rows_must_be_the_same() -> None:
    few, fewer = Filter("f", "j", "k > 0"), Filter("f", "j", "k > 1")
    shown, shown_alone = Project("p", "f", (("k", "k"),)), Project("p", "j", (("k", "k"),))
    assert _members(_plan((-9, 9)), _plan((-1, 1)), _plan((-5, 5))) == [["q1", "q2", "q0"]]
    assert _members(_plan((-9, 9), few), _plan((-1, 1), fewer)) == []
    assert _members(_plan((-9, 9)), _plan((-9, 9)), _plan((-9, 9), shown_alone)) == [["q1", "q0"]]
    assert _members(_plan((-9, 9), few, shown), _plan((-1, 1), few, shown), _plan((-2, 1))) == [["q1", "q0"]]
    called = MapBatches("m", "j", "tests.tools.plan_expressions:merged_values", (("k", "int64"),))
    assert _members(_plan((-9, 9), called), _plan((-1, 1), called)) == [], "a function may look at all rows of a batch"


_LIMITS = (
    '"v" <= 3',
    '"v" < 3',
    '5 >= "v"',
    '"v" BETWEEN -1 AND 2',
    '"v" > 0 AND "v" <= 2',
    '"v" = 1',
    '"v" < -9223372036854775808',
    '"v" > 9223372036854775806',
    '"i" <= 2',
    '"i" <= 1 AND "v" <= 5',
    '"i" <= 2 AND "v" <= 9',
    '"i" < 3 AND 0 <= "i" AND "v" < 2',
    "\"at\" <= TIMESTAMP '1970-01-01 00:00:00.000003'",
    "\"at\" <= TIMESTAMP '1970-01-01 00:00:00.000001'",
)
_OTHERS = ('"v" <= 3 OR "v" = 5', '"v" + 1 <= 3', '"d" <= 3', '"v" % "i" <= 2', '"v" <= 2.5', '"v" <> 3', "\"s\" <= 'b'")
_VALUES = {
    "v": ([-(2**63), -1, 0, 1, 2, 3, 5, 9, 2**63 - 1, None], pa.int64()),
    "i": ([-1, 0, 1, 2, 3, None], pa.int16()),
    "at": ([0, 1, 2, 3, 4, None], pa.timestamp("us")),
    "d": ([0.5, 3.0, None], pa.float64()),
    "s": (["a", "b", None], pa.string()),
}


def _limited(condition: str, name: str) -> LogicalPlan:
    of_key = Column("k", "int64"), Column("ts", "int64")
    columns = tuple(Column(name, str(kind)) for name, (_, kind) in _VALUES.items())
    shown = tuple((name, f'"{name}"') for name in _VALUES)
    return LogicalPlan(
        (
            source("a", of_key),
            source("b", (*of_key, *columns)),
            join("j", "a", "b", (-9, 9)),
            Project("p", "j", shown),
            Filter("f", "p", condition),
            Project("q", "f", (("v", '"v"'),)),
            Result(name, "q", of_values=True),
        )
    )


@given(st.lists(st.sampled_from([*_LIMITS, *_OTHERS]), min_size=2, max_size=9), st.data())
def test_limits_that_nest_are_ranks(conditions: list[str], data: st.DataObject) -> None:
    """A row is in the results from its rank on, which are those whose conditions it satisfies."""
    plan = shared({f"q{i}": _limited(condition, f"q{i}") for i, condition in enumerate(conditions)})
    drawn = st.fixed_dictionaries({name: st.sampled_from(values) for name, (values, _) in _VALUES.items()})
    rows = pa.Table.from_pylist(
        data.draw(st.lists(drawn, min_size=1, max_size=20)), pa.schema([(name, kind) for name, (_, kind) in _VALUES.items()])
    ).combine_chunks()
    batch = rows.to_batches()[0]
    seen = set[str]()
    for family in families_of(plan, cut(plan)):
        ranking, names = family.ranking, {edge.receiver.name for edge in family.edges}
        if ranking.limits is None:  # what is equal is one family, too
            assert len({conditions[int(name[1:])] for name in names}) == 1
            seen |= names
            continue
        assert [isinstance(step, Ranking) for step in family.steps] == [False, True, False]
        kept = ranking(_rows(batch))
        for rank, edge in enumerate(family.edges):
            name = edge.receiver.name
            assert name not in seen
            seen.add(name)
            condition = conditions[int(name[1:])]
            assert condition not in _OTHERS
            wanted = satisfied(bound(condition, _schema(batch), "", storage), batch)
            assert sorted(kept.id[kept.key <= rank].tolist()) == np.flatnonzero(wanted).tolist(), condition
    nest = {
        f"q{i}" for i, text in enumerate(conditions) if conditions.count(text) > 1 and text in _LIMITS and text != '"v" = 1'
    }
    assert nest <= seen, "equal conditions are a family"


def _schema(batch: pa.RecordBatch) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in batch.schema)


def _rows(batch: pa.RecordBatch) -> TupleBatch:
    n = batch.num_rows
    nothing = np.zeros(n, np.int64)
    return TupleBatch(nothing, nothing, np.arange(n, dtype=np.uint64), nothing, None, Columns(batch))


@given(st.data())
def test_sums(data: st.DataObject) -> None:
    """Of three queries of a family and one beside it, against one row at a time; the table is what it was made of."""
    *family, other = data.draw(st.permutations(range(4)))
    expected, sums = [[0, 0] for _ in range(4)], QuerySums(4)
    for _ in range(data.draw(st.integers(0, 4))):
        ids = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=6))
        ranks = data.draw(st.none() | st.lists(st.integers(0, 2), min_size=len(ids), max_size=len(ids)))
        columns = np.array(ids, np.uint64), np.zeros(len(ids), np.int64), None
        rows = ResultRows(*columns, None if ranks is None else np.array(ranks, np.int64))
        query = other if ranks is None else family[0]
        results = NamedQueries(4, [family]).add(sums, rows, query)
        assert results == (len(ids) if ranks is None else sum(3 - rank for rank in ranks))
        for i, number in enumerate(ids):
            for of in [other] if ranks is None else family[ranks[i] :]:
                expected[of] = [expected[of][0] + 1, (expected[of][1] + number) % 2**64]
    assert QuerySums.of_table(sums.to_table(), 4).differing(sums) is None
    whole = sums.of_families([np.array(family)])
    assert whole.by_first([np.array(family)]).differing(sums) is None
    assert [list(of) for of in zip(whole.counts.tolist(), whole.digests.tolist(), strict=True)] == expected


def test_a_table_of_a_query_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="query 4 of 4"):
        QuerySums.of_table(np.array([[4, 1, 1]], np.uint64), 4)


@pytest.mark.parametrize("count", [3, 4_000])
def test_chains_of_one_value(count: int) -> None:
    """Windows of rows that cross make no chain; those inside of others are in as few chains as can be, in little time."""
    made = [_Member(None, None, ((i, i + 1),), (), ()) for i in range(count)]  # type: ignore[arg-type]
    assert [len(chain) for chain in _chains(made)] == [1] * count
    made += [_Member(None, None, ((-i - 1, 2 * count + i),), (), ()) for i in range(count)]  # type: ignore[arg-type]
    chains = _chains(list(reversed(made)))
    assert (len(chains), max(map(len, chains))) == (count, count + 1)
    for chain in chains:
        assert all(_is_within(inner, outer) for outer, inner in itertools.pairwise(chain))

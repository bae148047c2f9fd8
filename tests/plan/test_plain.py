"""Plans as plain values: exact round trips through JSON, and one line that names node and key for values of the wrong shape."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.plan.logical import ARRIVAL_TIME, Column, IntervalJoin, LogicalPlan, Result, Source
from swjoin.plan.plain import _LAST, plan_from_plain, plan_to_plain
from tests.plan.plans import COLUMNS, PLANS, plan, random_plans, source


def again(found: LogicalPlan) -> LogicalPlan:
    """Made anew, though plans are known that were made or shown last."""
    plain = json.loads(json.dumps(plan_to_plain(found)))
    _LAST.clear()
    return plan_from_plain(plain)


@pytest.mark.parametrize("name", PLANS)
def test_round_trip(name: str) -> None:
    assert again(plan(name)) == plan(name)


@given(random_plans())
def test_round_trip_of_random_plans(found: LogicalPlan) -> None:
    assert again(found) == found


def test_plans_that_were_known_and_have_changed() -> None:
    """What is kept of earlier plans is never taken for another's."""
    plain = plan_to_plain(first := plan("one join"))
    assert plan_from_plain(plain) is first
    assert plan_from_plain(copy.deepcopy(plain)) is first
    (node,) = [node for node in plain["nodes"] if node["kind"] == "interval_join"]
    node["query"]["upper_us"] += 1
    changed = plan_from_plain(plain)
    same = [one is other for one, other in zip(first.nodes, changed.nodes, strict=True)]
    assert same.count(False) == 1
    joins = [one for one in (*first.nodes, *changed.nodes) if isinstance(one, IntervalJoin)]
    assert joins[1].query.upper_us == joins[0].query.upper_us + 1
    node["query"]["upper_us"] = "a"
    with pytest.raises(UserError, match="upper"):
        plan_from_plain(plain)


QUERIES = st.builds(
    QueryConfig,
    st.integers(-(10**15), 0),
    st.integers(1, 10**15),
    exclusive=st.sampled_from([(), ("lower",), ("upper",), ("lower", "upper")]),
    name=st.text(st.characters(codec="utf-8"), max_size=5),
    how=st.sampled_from(["inner", "left", "full"]),
    where=st.sampled_from([None, "left.v < right.v"]),
)
COUNTS = st.builds(QueryConfig, st.just(0), st.just(0), last=st.tuples(st.integers(1, 99), st.integers(1, 99)))


@given(QUERIES | COUNTS, st.sampled_from(["ts", ARRIVAL_TIME]), st.sampled_from(["timestamp[ns, tz=UTC]", "int64"]))
def test_round_trip_of_every_field(query: QueryConfig, time: str, type_name: str) -> None:
    columns = (
        Column("k", "dictionary<values=string, indices=int32, ordered=0>"),
        Column("v", "int64"),
        Column("ts", type_name),
    )
    join = IntervalJoin("j", "a", "b", ("k", "v"), ("k", "v"), query, "left")
    found = LogicalPlan((Source("a", columns, time), Source("b", columns, "ts"), join, Result("out", "j")))
    assert again(found) == found


def test_a_source_without_time() -> None:
    found = LogicalPlan((Source("a", COLUMNS, None), Result("out", "a")))
    assert again(found) == found


def spoiled(at: int, key: str, value: Any) -> dict[str, Any]:
    """The plan `one join` (nodes a, b, j, out) with one value changed, or removed if it is `...`. key: with dots."""
    plain = copy.deepcopy(plan_to_plain(plan("one join")))
    node = plain["nodes"][at]
    *parents, leaf = key.split(".")
    for parent in parents:
        node = node[parent]
    if value is ...:
        del node[leaf]
    else:
        node[leaf] = value
    return plain


_KINDS = (
    "source, filter, project, map_batches, interval_join, aggregate, ranked, sessions, tuple_windows, aligned_windows, "
    "views, live_groups, counted_join, lookup, spread, copies, within, period, union, result"
)
SPOILED: dict[str, tuple[int, str, Any, str]] = {
    "no kind": (
        0,
        "kind",
        ...,
        "plan: a.kind: None is no kind of node; one of: " + _KINDS,
    ),
    "other kind": (
        2,
        "kind",
        "interval_joins",
        "plan: j.kind: 'interval_joins' is no kind of node; did you mean interval_join?",
    ),
    "kind is a list": (
        0,
        "kind",
        [],
        "plan: a.kind: [] is no kind of node; one of: " + _KINDS,
    ),
    "no name": (1, "name", ..., "plan: node 1 (counting from 0): name is missing"),
    "name": (1, "name", 5, "plan: node 1 (counting from 0).name: expected str, got 5"),
    "no columns": (0, "columns", ..., "plan: a: columns is missing"),
    "columns": (0, "columns", 7, "plan: a.columns: expected a list, got 7"),
    "column": (0, "columns", [["k"]], "plan: a.columns: expected a list of name and type, got ['k']"),
    "column is text": (0, "columns", ["k "], "plan: a.columns: expected a list of name and type, got 'k '"),
    "type": (0, "columns", [["k", None]], "plan: a.columns: expected str, got None"),
    "time": (0, "time", 3, "plan: a.time: expected str, got 3"),
    "unknown key": (0, "tine", "ts", "plan: a.tine: unknown configuration key; did you mean time?"),
    "key": (2, "left_key", [1], "plan: j.left_key: expected str, got 1"),
    "output time": (2, "output_time", "mx", "plan: j.output_time: 'mx' is not known; did you mean max?"),
    "query": (2, "query", [], "plan: j.query: expected a mapping, got []"),
    "no query": (2, "query", None, "j: no time bound; give lower and upper bounds of right time - left time"),
    "bound": (
        2,
        "query.lower_us",
        "soon",
        "plan: j.query.lower_us: duration 'soon': write a number and a unit (us, ms, s, min, h, d, w), such as 250ms, 1h30min "
        "or -10us",
    ),
    "how": (2, "query.how", "lft", "plan: j.query.how: 'lft' is not known; did you mean left?"),
    "input": (3, "input", ["j"], "plan: out.input: expected str, got ['j']"),
    "no such input": (3, "input", "i", "out: its input i is not in the plan; nodes are a, b, j"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_wrong_values_are_refused(case: str) -> None:
    at, key, value, text = SPOILED[case]
    with pytest.raises(UserError) as error:
        plan_from_plain(spoiled(at, key, value))
    assert error.value.text("keys") == text


@pytest.mark.parametrize("plain", [None, [], {}, {"nodes": 1}, {"nodes": [], "more": 1}])
def test_what_is_no_plan(plain: Any) -> None:
    with pytest.raises(UserError, match=r"^plan: expected a mapping with a list of nodes, got "):
        plan_from_plain(plain)


@pytest.mark.parametrize("node", [None, 1, "a", ["source", "a"]])
def test_what_is_no_node(node: Any) -> None:
    with pytest.raises(UserError, match=r"^plan: node 1 \(counting from 0\): expected a mapping, got "):
        plan_from_plain({"nodes": [plan_to_plain(LogicalPlan((source("a"), Result("out", "a"))))["nodes"][0], node]})

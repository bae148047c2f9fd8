"""Queries as one plan: equal nodes are there once, and every query has the plan that it has alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swjoin.config.sections import UNBOUNDED_US, QueryConfig
from swjoin.core.errors import UserError
from swjoin.plan.logical import Filter, IntervalJoin, LogicalPlan, Node, Project, Result, Source, Within
from swjoin.plan.sharing import alone, check_query_name, shared
from swjoin.plan.stages import Stage, cut
from tests.plan.plans import join, random_plans, source


def _of_one(plan: LogicalPlan, result: str) -> LogicalPlan:
    """The plan of one of several results."""
    return alone(LogicalPlan(plan.nodes), result)


def _shape(plan: LogicalPlan, name: str) -> tuple[object, ...]:
    """A node and all below it, without their names; a part of a wider join is the join that it stands for."""
    node = plan.node(name)
    if isinstance(node, Within):
        wider = plan.node(node.input)
        assert isinstance(wider, IntervalJoin)
        node = replace(wider, query=replace(wider.query, lower_us=node.lower_us, upper_us=node.upper_us))
    fields = {
        key: value for key, value in vars(node).items() if key not in ("name", "input", "left", "right", "inputs", "table")
    }
    named = {} if isinstance(node, Result) else fields
    kept = node.name if isinstance(node, Source) else None
    return type(node), kept, str(named), tuple(_shape(plan, below) for below in node.inputs)


_ALIKE = [LogicalPlan((source("s0"), source("s1"), join("n", "s0", "s1", (0, most)), Result("r", "n"))) for most in (0, 1)]


@example(_ALIKE)
@given(st.lists(random_plans(), min_size=1, max_size=4))
def test_every_query_has_its_own_plan(plans: list[LogicalPlan]) -> None:
    given_plans = {}
    for plan in plans:
        for result in (node for node in plan.nodes if isinstance(node, Result)):
            given_plans[f"q{len(given_plans)}"] = _of_one(plan, result.name), result
    found = shared({name: plan for name, (plan, _) in given_plans.items()})
    for name, (plan, result) in given_plans.items():
        assert _shape(found, name) == _shape(plan, result.name)
        assert _shape(alone(found, name), name) == _shape(plan, result.name)
    shapes = [_shape(found, node.name) for node in found.nodes if not isinstance(node, Result)]
    assert len(set(shapes)) == len(shapes), "two equal nodes"
    assert [node.name for node in found.nodes if isinstance(node, Result) and node.named] == list(given_plans)


def _filtered(condition: str) -> LogicalPlan:
    return LogicalPlan((source("a"), source("b"), join("j", "a", "b"), Filter("f", "j", condition), Result("r", "f")))


def test_queries_over_one_join() -> None:
    found = cut(shared({"all": _filtered("k > 0"), "some": _filtered("k > 5"), "again": _filtered("k > 0")}))
    assert [stage.name for stage in found.stages] == ["j"]
    assert [edge.receiver.name for edge in found.edges if isinstance(edge.receiver, Result)] == ["all", "some", "again"]
    filters = [[step.name for step in edge.steps] for edge in found.edges[2:]]
    assert filters == [["f"], ["f 1"], ["f"]]


def test_rows_of_one_source_are_gathered_once() -> None:
    """From the last node that all have in common."""

    def of(*conditions: str) -> LogicalPlan:
        nodes: list[Node] = [source("a")]
        for i, condition in enumerate(conditions):
            nodes.append(Filter(f"f{i}", nodes[-1].name, condition))
        return LogicalPlan((*nodes, Result("r", nodes[-1].name)))

    found = cut(shared({"x": of("k > 0", "v > 1"), "y": of("k > 0", "v > 2"), "z": of("k > 0")}))
    assert len(found.stages) == 1
    into, *out = found.edges
    assert [len(into.steps), *(len(edge.steps) for edge in out)] == [1, 1, 1, 0]
    apart = cut(shared({"x": of("k > 0"), "y": of("k > 1")}))
    assert [len(edge.steps) for edge in apart.edges] == [0, 1, 1]
    single = cut(of("k > 0", "v > 1"))
    assert [len(edge.steps) for edge in single.edges] == [2, 0], "no row should travel that a filter drops"
    two = cut(shared({"x": of("k > 0"), "y": LogicalPlan((source("b"), Filter("f", "b", "k > 0"), Result("r", "f")))}))
    assert [isinstance(edge.receiver, Stage) and len(edge.steps) for edge in two.edges] == [1, 1, False, False]


def test_names() -> None:
    plan = LogicalPlan((source("a"), source("b"), join("j", "a", "b"), Result("r", "j")))
    other = LogicalPlan((source("a"), source("b"), join("j", "a", "b", (0, 1)), Result("r", "j")))
    found = shared({"j": plan, "x": other, "y": plan})
    assert sorted(node.name for node in found.nodes) == ["a", "b", "j", "j 1", "j 2", "x", "y"]
    with pytest.raises(UserError, match=r"^query a: an input has this name, too; name the query otherwise$"):
        shared({"a": plan})


@pytest.mark.parametrize("name", ["a", "A1", "_x", "1", "a.b", "a-b", "x" * 100])
def test_good_names(name: str) -> None:
    check_query_name(name, "here", ["other"])


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "a/b", "a b", "é", "x" * 101, "a\n", None, 5])
def test_bad_names(name: object) -> None:
    with pytest.raises(UserError, match=r"(?s)^here: .* is no name of a query; write letters") as caught:
        check_query_name(name, "here", [])
    assert "\n" not in str(caught.value)


def test_two_names_that_are_one_folder() -> None:
    with pytest.raises(UserError, match=r"^here: A is the name of another query; name each once"):
        check_query_name("A", "here", ["a"])


# ---------------------------------------------------------------- windows


def _joined(bounds: tuple[int, int], **more: Any) -> LogicalPlan:
    joined = join("j", "a", "b", bounds, **more)
    return LogicalPlan((source("a"), source("b"), joined, Project("p", "j", (("v", '"left_v"'),)), Result("r", "p")))


def test_windows_that_nest_share_the_widest() -> None:
    plans = {
        "wide": _joined((-9, 9)),
        "far": _joined((20, 30)),
        "narrow": _joined((-1, 1)),
        "crossing": _joined((-3, 12)),
        "half": _joined((0, 9)),
        "left": _joined((-9, 9), how="left"),
        "inside": _joined((0, 5)),
    }
    found = shared(plans)
    joins = {node.name: node.semantics.bounds for node in found.nodes if isinstance(node, IntervalJoin)}
    assert sorted((b.lower_us, b.upper_us) for b in joins.values()) == [(-9, 9), (-9, 9), (-3, 12), (20, 30)]
    of = {node.name: node for node in found.nodes if isinstance(node, Within)}
    by_query = {}
    for name in plans:
        (way,) = {edge for edge in cut(found).edges if edge.receiver.name == name}
        by_query[name] = [(step.lower_us, step.upper_us) for step in way.steps if isinstance(step, Within)]
    assert by_query == {
        "wide": [],
        "far": [],
        "narrow": [(-1, 1)],
        "crossing": [],
        "half": [(0, 9)],
        "left": [],
        "inside": [(0, 5)],
    }
    assert {name: joins[node.input].lower_us for name, node in of.items()} == {"j 4": -9, "j 2": -3, "j 6": -9}
    for name, plan in plans.items():
        assert _shape(alone(found, name), name) == _shape(plan, "r")


def test_windows_that_are_not_shared() -> None:
    for query in (
        QueryConfig(-5, 5, how="semi"),
        QueryConfig(-5, 5, match="nearest"),
        QueryConfig(0, 0, last=(3, 3)),
        QueryConfig(-UNBOUNDED_US, UNBOUNDED_US),
    ):
        other = QueryConfig(0, 0, last=(2, 2)) if query.last is not None else replace(query, lower_us=-1, upper_us=1)
        plans = {}
        for name, of in (("x", query), ("y", other)):
            joined = replace(join("j", "a", "b"), query=of)
            plans[name] = LogicalPlan((source("a"), source("b"), joined, Result("r", "j")))
        assert not any(isinstance(node, Within) for node in shared(plans).nodes)


def test_a_plan_that_cannot_be() -> None:
    nodes = (source("a"), source("b"), join("j", "a", "b", how="left"), Within("w", "j", 0, 1), Result("r", "w"))
    with pytest.raises(UserError, match=r"^w: its input j is no inner join within bounds of time"):
        LogicalPlan(nodes)

"""Joins in a row that are one stage: which are, what bounds and watermarks they have, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.plan.logical import Column, Filter, IntervalJoin, LogicalPlan, Node, OutputTime, Project, Result, Source
from swjoin.plan.multiway import MultiwayJoin, with_multiway_joins
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.stages import cut, describe_stage
from swjoin.plan.watermarks import needed_below, watermark_out

COLUMNS = (Column("k", "int64"), Column("s", "string"), Column("v", "int64"), Column("ts", "timestamp[us]"))
SOURCES = tuple(Source(name, COLUMNS, "ts") for name in "abcd")


def _join(name: str, left: str, right: str, within: tuple[int, int] = (-5, 10), time: OutputTime = "left") -> IntervalJoin:
    return IntervalJoin(name, left, right, ("k",), ("k",), QueryConfig(*within), time)


def _plan(*nodes: Node, last: str = "j") -> LogicalPlan:
    read = {name for node in nodes for name in node.inputs}
    sources = (source for source in SOURCES if source.name in read)
    return with_multiway_joins(LogicalPlan((*sources, *nodes, Result("out", last))))


def _multiway(plan: LogicalPlan) -> MultiwayJoin:
    (stage,) = cut(plan).stages
    assert isinstance(stage.node, MultiwayJoin)
    return stage.node


def test_joins_in_a_row_by_one_key_are_one_stage_of_any_shape() -> None:
    row = _plan(_join("i", "a", "b"), _join("h", "i", "c"), _join("j", "h", "d"))
    assert _multiway(row).inputs == ("a", "b", "c", "d")
    tree = _plan(_join("i", "a", "b"), _join("h", "c", "d"), _join("j", "i", "h"))
    assert _multiway(tree).inputs == ("a", "b", "c", "d")
    assert [len(cut(plan, "operator").stages) for plan in (row, tree)] == [3, 3]
    assert plan_from_plain(plan_to_plain(tree)) == tree
    assert "multiway join of 4 inputs" in describe_stage(cut(tree).stages[0])


def test_filters_and_projections_stand_between_the_joins() -> None:
    rename = Project("p", "i", (("kk", '"k"'), ("twice", '"left_v" * 2'), ("ts", '"left_ts"')))
    last = IntervalJoin("j", "p", "c", ("kk",), ("k",), QueryConfig(0, 9), "left")
    node = _multiway(_plan(_join("i", "a", "b"), rename, last))
    assert [step.name for step in node.sides[1][0].steps] == ["p"]
    computed = replace(rename, columns=(("kk", '"k" + 1'), ("twice", '"left_v"'), ("ts", '"left_ts"')))
    assert len(cut(_plan(_join("i", "a", "b"), computed, last)).stages) == 2  # another key


@pytest.mark.parametrize(
    "first",
    [
        replace(_join("i", "a", "b"), query=QueryConfig(-5, 10, how="left")),
        replace(_join("i", "a", "b"), query=QueryConfig(-5, 10, match="first")),
        replace(_join("i", "a", "b"), left_key=("v",), right_key=("v",)),
        replace(_join("i", "a", "b"), left_key=("k", "v"), right_key=("k", "v")),
    ],
)
def test_other_joins_stay_apart(first: IntervalJoin) -> None:
    of_first = "left_k" if first.left_key == ("v",) else "k"
    assert len(cut(_plan(first, replace(_join("j", "i", "c"), left_key=(of_first,)))).stages) == 2


def test_a_join_that_others_read_too_stays_apart() -> None:
    plan = _plan(_join("i", "a", "b"), _join("h", "i", "c"), _join("j", "h", "i"))
    assert [stage.name for stage in cut(plan).stages] == ["i", "j"]


def test_keys_of_other_types_stay_apart() -> None:
    other = Source("b", (Column("k", "int32"), *COLUMNS[1:]), "ts")
    nodes = SOURCES[0], other, SOURCES[2], _join("i", "a", "b"), _join("j", "i", "c"), Result("out", "j")
    assert len(cut(with_multiway_joins(LogicalPlan(nodes))).stages) == 2


def test_keys_whose_types_are_exchanged_stay_apart() -> None:
    """One column of 32 bits with one of 64, and the other way round."""
    keys = (Column("k", "int32"), Column("v", "int64")), (Column("k", "int64"), Column("v", "int32"))
    sources = (Source(name, (*keys[name == "b"], Column("ts", "timestamp[us]")), "ts") for name in "abc")
    both = {"left_key": ("k", "v"), "right_key": ("k", "v")}
    joins = (replace(_join("i", "a", "b"), **both), replace(_join("j", "i", "c"), **both))  # type: ignore[arg-type]
    assert len(cut(with_multiway_joins(LogicalPlan((*sources, *joins, Result("out", "j"))))).stages) == 2


def test_bounds_whose_sums_are_beyond_all_times_stay_apart() -> None:
    far = 1 << 57
    assert len(cut(_plan(_join("i", "a", "b", (-far, far)), _join("j", "i", "c"))).stages) == 2


def test_no_more_than_eight_inputs_are_one() -> None:
    nodes: list[Node] = [_join("j0", "a", "b")]
    nodes += [_join(f"j{i}", f"j{i - 1}", "abcd"[i % 4]) for i in range(1, 10)]
    stages = cut(_plan(*nodes, last="j9")).stages
    assert [len(stage.node.inputs) if isinstance(stage.node, MultiwayJoin) else 2 for stage in stages] == [8, 4]


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [("left", -5 - 10, 10 + 5), ("max", -5 - 0, 10 + 10), ("min", -5 - 5, 10 + 0)],
)
def test_bounds_follow_from_those_of_the_joins(time: OutputTime, lower: int, upper: int) -> None:
    """b - a in [-5, 10], c - T in [-5, 10], where T is the time of the row of a and b."""
    bounds = _multiway(_plan(_join("i", "a", "b", time=time), _join("j", "i", "c"))).bounds
    assert (bounds.lower[0, 1], bounds.upper[0, 1]) == (-5, 10)
    of_a = {"left": (-5, 10), "max": (-5, 20), "min": (-10, 10)}[time]
    assert (bounds.lower[0, 2], bounds.upper[0, 2]) == of_a
    of_b = {"left": (-15, 15), "max": (-5, 15), "min": (-15, 10)}[time]
    assert (bounds.lower[1, 2], bounds.upper[1, 2]) == of_b
    assert (bounds.lower == -bounds.upper.T).all()


def test_filters_on_times_narrow_the_bounds() -> None:
    named = Project("p", "i", (("k", '"k"'), ("a_ts", '"left_ts"'), ("b_ts", '"right_ts"')))
    text = """"ts" >= "b_ts" - INTERVAL '3' MICROSECOND AND "ts" < "b_ts" + INTERVAL '4' MICROSECOND OR "a_ts" IS NULL"""
    nodes = _join("i", "a", "b"), named, _join("j", "p", "c", (-100, 100))
    wide = _multiway(_plan(*nodes, Filter("f", "j", text), last="f")).bounds
    assert wide.upper[1, 2] == 105
    bounds = _multiway(_plan(*nodes, Filter("f", "j", text.partition(" OR ")[0]), last="f")).bounds
    assert (bounds.lower[1, 2], bounds.upper[1, 2]) == (-3 - 4, 4 + 4)  # and what rounding may add
    assert (bounds.lower[0, 2], bounds.upper[0, 2]) == (-5 - 7, 10 + 8)


def test_watermarks_are_those_of_the_joins_in_a_row() -> None:
    node = _multiway(_plan(_join("i", "a", "b", (-5, 10)), _join("j", "i", "c", (0, 30), "max")))
    assert watermark_out(node, (1_000, END_OF_TIME_US)) == 1_000 - 10
    for edge in (BEGIN_OF_TIME_US, END_OF_TIME_US):
        assert watermark_out(node, (edge, END_OF_TIME_US)) == edge
    assert needed_below(node, (1_000, 0))[0] == 1_000 - 35


def test_a_join_cannot_be_nested_where_nothing_takes_it_in() -> None:
    nested = replace(_join("i", "a", "b"), nested=True)
    for nodes, last in (
        ((nested,), "i"),
        ((nested, replace(_join("j", "i", "c"), left_key=("left_v",), right_key=("v",))), "j"),
    ):
        sources = SOURCES[:2] if last == "i" else SOURCES[:3]
        plan = LogicalPlan((*sources, *nodes, Result("out", last)))
        with pytest.raises(UserError, match="i: it is nested, and what reads it cannot take it in"):
            cut(plan)

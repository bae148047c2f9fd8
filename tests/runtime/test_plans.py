"""Runs of plans with several stages: their rows are those of the oracle, in any shape and on any number of instances."""

from __future__ import annotations

from typing import Any

import pytest

from swjoin.cluster.instances import Instances
from swjoin.config.run import RunConfig
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Node, Result, Union
from tests.support.plan_shapes import SHAPES, join, shape_config, source
from tests.tools.random_plans import main, run_plan, simulate

# ---------------------------------------------------------------- the simulator


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_plans_are_right(first: int) -> None:
    for seed in range(first, first + 15):
        run_plan(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(60, 1060, 250))
def test_more_random_plans_are_right(first: int) -> None:
    assert main(["250", "--seed", str(first)]) == 0


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_right_at_every_width(name: str) -> None:
    shape = SHAPES[name]
    for width in (1, 2, 3, 4):
        scenario = shape.scenario(width)
        simulate(scenario, shape.expected(scenario))


def test_shapes_have_rows() -> None:
    """An empty answer compares nothing."""
    empty = [name for name, shape in SHAPES.items() if not shape.expected(shape.scenario(1))]
    assert empty == ["empty sources"]


# ---------------------------------------------------------------- refusals

_TWO = (source("a"), source("b"))


def _refused(nodes: tuple[Node, ...], config: RunConfig, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Instances.of(LogicalPlan(nodes), config, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((*_TWO, join("j", "a", "b"), Result("out", "j"), Result("more", "j")), "plan: 2 results"),
        ((*_TWO, Union("u", ("a", "b")), Result("out", "u")), "out: it reads no join"),
        ((source("a"), Result("out", "a")), "out: it reads no join"),
        (
            (*_TWO, join("i", "a", "b"), join("j", "b", "a"), Union("u", ("i", "j")), Result("out", "u")),
            "out: it reads no join",
        ),
        (
            (*_TWO, IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(0, 0, last=(3, 3))), Result("out", "j")),
            "j: count windows",
        ),
    ],
)
def test_plans_that_cannot_run_yet_are_refused(nodes: tuple[Node, ...], words: str) -> None:
    _refused(nodes, shape_config(), words)


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"reorganization": {"policy": "balanced", "epoch_us": 80}}, "reorganization.policy: balanced"),
        ({"cluster": {"distribution_epoch_us": 40, "sub_group_count": 2}}, "cluster.sub_group_count"),
        ({"cluster": {"communication": "synchronous"}}, "cluster.communication: synchronous"),
        ({"pace": "realtime", "measure": {"prefill_us": 1000}}, "measure.prefill"),
        ({"pace": "realtime", "on_overload": {"policy": "shed"}}, "on_overload: shed"),
        ({"pace": "realtime", "time": {"model": "arrival"}}, "time.model: arrival"),
        ({"nodes": {"speed": [0.5, 1.0]}}, "nodes"),
        (
            {"left": {"watch": "l", "key": ["k"]}, "right": {"watch": "r", "key": ["k"]}, "time": {"late": "drop"}},
            "live streams",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_plans_do_not_have_yet_are_refused(sections: dict[str, Any], name: str) -> None:
    nodes = (*_TWO, join("j", "a", "b"), Result("out", "j"))
    _refused(nodes, shape_config(**sections), f"^{name}: runs of plans do not have this yet; leave it out")

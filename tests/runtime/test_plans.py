"""Runs of plans with several stages: their rows are those of the oracle, in any shape and on any number of instances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.instances import Instances
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.core.hashing import group_of, hash_key
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Node, Result
from swjoin.plan.stages import Stage, cut
from swjoin.runtime.simulator.plan_simulation import PlanSimulation
from tests.support.plan_shapes import SHAPES, join, shape_config, source
from tests.tools.plan_oracle import Row
from tests.tools.random_plans import PlanScenario, check_answer, main, run_plan, simulate

# ---------------------------------------------------------------- the simulator


@pytest.mark.parametrize(
    "seeds",
    [
        *(range(7), range(1_100, 1_105), range(70_000, 70_006)),
        *(
            pytest.param(seeds, marks=pytest.mark.drawn)
            for seeds in (range(7, 25), range(25, 45), range(1_105, 1_115), range(70_006, 70_040))
        ),
    ],
    ids=str,
)
def test_random_plans_are_right(seeds: range) -> None:
    for seed in seeds:
        run_plan(seed)


def test_stages_are_placed_by_traffic_when_other_stages_share_their_ranks() -> None:
    run_plan(198)


@pytest.mark.long
@pytest.mark.parametrize("first", [*range(45, 345, 100), 1_200])
def test_more_random_plans_are_right(first: int) -> None:
    assert main(["100", "--seed", str(first)]) == 0


@pytest.mark.parametrize(
    "seeds",
    [
        range(7),
        range(60_000, 60_004),
        *(pytest.param(s, marks=pytest.mark.drawn) for s in (range(7, 10), range(60_004, 60_010))),
    ],
    ids=str,
)
def test_random_queries_of_one_run_are_right(seeds: range) -> None:
    """Several results of a random plan: each has the oracle's rows, whatever moves, crashes or is shared."""
    for seed in seeds:
        run_plan(seed, queries=True)


@pytest.mark.long
@pytest.mark.parametrize("first", [*range(100, 160, 20), *range(60_100, 60_160, 20)])
def test_more_random_queries_of_one_run_are_right(first: int) -> None:
    for seed in range(first, first + 20):
        run_plan(seed, queries=True)


@pytest.mark.parametrize("widths", [(1, 3), pytest.param((2, 4), marks=pytest.mark.drawn)], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_right_at_every_width(name: str, widths: tuple[int, ...]) -> None:
    shape = SHAPES[name]
    for width in widths:
        scenario = shape.scenario(width)
        simulate(scenario, shape.expected(scenario))


def test_full_buffers_end_epochs_before_their_time() -> None:
    """Then sources that are ahead have sent watermarks beyond the ends of later epochs."""
    shape = SHAPES["two in a row"]
    scenario = shape.scenario(2)
    cluster = replace(scenario.config.cluster, mini_buffer_bytes=1 << 10)
    simulate(replace(scenario, config=replace(scenario.config, cluster=cluster), batch_rows=20), shape.expected(scenario))


def test_shapes_have_rows() -> None:
    """An empty answer compares nothing."""
    empty = [name for name, shape in SHAPES.items() if not shape.expected(shape.scenario(1))]
    assert empty == ["empty sources"]


# ---------------------------------------------------------------- reorganization


class _ByRows(PlanSimulation):
    """A piece of work takes as long as it has rows."""

    def _work_us(self, slave: Slave) -> int:
        work = slave._work
        return 1 + (0 if work is None else 100 * (len(work.delivery.left) + len(work.delivery.right)))


@pytest.mark.parametrize(("policy", "most"), [("balanced", 1.5), ("paper", 2.9)])
def test_policies_even_out_every_stage(policy: str, most: float) -> None:
    """At the start one of three instances of each stage owns all keys. The paper's policy moves a partition-group per epoch."""
    plan, counts = LogicalPlan(SHAPES["two in a row"].nodes), {"partition_count": 60, "distribution_epoch_us": 100}
    config = shape_config(
        reorganization={"policy": policy, "epoch_us": 200}, cluster=counts, module={"stream_buffer_bytes": 256}
    )
    groups = {key: group_of(np.uint64(hash_key(key)), 60) for key in range(300)}
    keys = [key for key, group in groups.items() if group % 3 == 0]
    random, rows = np.random.default_rng(1), {}
    for name in "abc":
        times, chosen = np.sort(random.integers(0, 3_000, 300)).tolist(), random.choice(keys, 300).tolist()
        rows[name] = [Row(i, t, (k, "s", i, t)) for i, (t, k) in enumerate(zip(times, chosen, strict=True))]
    scenario = PlanScenario(1, plan, config, rows, {name: [True] * 300 for name in rows}, 3, 10)
    simulation = _ByRows(plan, config, scenario.sources(), 3, 1)
    simulation._delays._channel[:] = simulation._delays._actor[:] = 1.0
    result = simulation.run()
    check_answer(scenario, simulation.instances, result, scenario.evaluated()["out"])
    assert simulation.gateway.summary()["moves"] == sum(event.kind == "decided" for event in result.events)
    owned = [np.bincount(c.map.owner[[groups[key] for key in keys]], minlength=3) for c in simulation.master.controllers]
    assert max(float(count.max() / count.mean()) for count in owned) < most


# ---------------------------------------------------------------- refusals

_TWO = (source("a"), source("b"))


def _refused(nodes: tuple[Node, ...], config: RunConfig, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Instances.of(LogicalPlan(nodes), config, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((*_TWO, join("j", "a", "b"), Result("out", "j"), Result("more", "j")), "plan: 2 results without names"),
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
        ({"cluster": {"distribution_epoch_us": 40, "sub_group_count": 2}}, "cluster.sub_group_count"),
        ({"cluster": {"communication": "synchronous"}}, "cluster.communication: synchronous"),
        ({"pace": "realtime", "measure": {"prefill_us": 1000}}, "measure.prefill"),
        ({"pace": "realtime", "on_overload": {"victims": "least_matching"}}, "on_overload.victims: least_matching"),
        ({"pace": "realtime", "time": {"model": "arrival"}}, "time.model: arrival"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_plans_do_not_have_yet_are_refused(sections: dict[str, Any], name: str) -> None:
    nodes = (*_TWO, join("j", "a", "b"), Result("out", "j"))
    _refused(nodes, shape_config(**sections), f"^{name}: runs of plans do not have this yet; leave it out")


def _rows_stay(scenario: PlanScenario) -> int:
    """Rows that went from a stage to one that partitions alike, all of them to the instance on their rank."""
    simulation = PlanSimulation(scenario.plan, scenario.config, scenario.sources(), scenario.width, scenario.seed)
    check_answer(scenario, simulation.instances, simulation.run(), scenario.evaluated()["out"])
    instances, found = simulation.instances, 0
    for edge in instances.stages.edges:
        if edge.origin is None or not isinstance(edge.sender, Stage) or not isinstance(edge.receiver, Stage):
            continue
        pairs = zip(instances.slaves_of(edge.sender), instances.slaves_of(edge.receiver), strict=True)
        if instances.stages.subqueries[edge.sender.id] == edge.origin and edge.port == 0:
            for sender, receiver in pairs:
                sent, received = (simulation.slaves[slave].stage for slave in (sender, receiver))
                assert sent is not None
                assert received is not None
                assert sent.ledger.sent[edge.id][:2] == received.ledger.received[edge.id][:2]  # rows, digest
                found += sent.ledger.sent[edge.id][0]
    return found


def test_rows_between_stages_that_partition_alike_stay_on_their_rank() -> None:
    runs = rows = 0
    for seed in range(60):
        scenario = PlanScenario.draw(seed, calm=True)
        stages = cut(scenario.plan, "subquery")
        if any(first != stage for stage, first in enumerate(stages.subqueries)) and runs < 8:
            cluster = replace(scenario.config.cluster, strategy="subquery", partition_count=7)
            scenario = replace(scenario, config=replace(scenario.config, cluster=cluster), width=3)
            runs, rows = runs + 1, rows + _rows_stay(scenario)
    assert runs == 8
    assert rows > 50

"""Random runs of queries that come and go, in the simulator, against the oracle.

What: `ChangingSimulation`, a run of a plan that has other queries after each crash; `run_changes(seed)`, a whole scenario.
Why: the checkpoint of a run whose plan has changed is made from one of another plan, at any moment and with any state.
Stays out: random plans (`tests.tools.random_plans`), requests to a real run (`tests/runtime/test_query_changes.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from swjoin.checkpoint.changed_plan import change_plan, check_change, ended_sources, reads_more, time_of_change
from swjoin.cluster.instances import Instances
from swjoin.config.run import RunConfig
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import SwjoinError, UserError
from swjoin.plan.changes import AFTER_ALL_US, periods, with_queries, without_queries
from swjoin.plan.columns import StaticTables
from swjoin.plan.logical import LogicalPlan, Node, Period, Result, nodes_below, spread_over
from swjoin.plan.sharing import alone
from swjoin.plan.stages import cut
from swjoin.runtime.simulator.plan_simulation import PlanSimulation
from swjoin.runtime.simulator.result import SimulationError, SimulationResult
from tests.tools.plan_oracle import evaluate
from tests.tools.random_plans import PlanScenario, check_queries, parts_of


@dataclass(frozen=True)
class Change:
    """added: plans of queries, each alone. dropped: names."""

    added: Mapping[str, LogicalPlan] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def made(self, plan: LogicalPlan, time_us: int = 0, ended: Collection[str] = ()) -> LogicalPlan:
        return with_queries(without_queries(plan, self.dropped, time_us, ended), self.added, time_us)


class ChangingSimulation(PlanSimulation):
    """As `PlanSimulation`; a crash, if there is a checkpoint, is followed by the next change. made: how many there were."""

    def __init__(
        self,
        plan: LogicalPlan,
        config: RunConfig,
        batches: Callable[[LogicalPlan], Sequence[Sequence[SourceBatch]]],
        run: tuple[int, int],
        folder: Path,
        crashes: Sequence[tuple[int, int]],
        changes: Sequence[Change],
        tables: StaticTables,
    ) -> None:
        """batches: of the sources, with the columns that a plan reads. run: slave ranks and seed."""
        self._changes, self._batches, self.made = deque(changes), batches, 0
        self._most_stages = len(cut(_all_made(plan, changes), config.cluster.strategy).stages)
        super().__init__(plan, config, batches(plan), *run, folder, crashes, tables)

    @property
    def plan(self) -> LogicalPlan:
        """As it is now."""
        return self._plan

    def _actor_count(self, slave_count: int) -> int:
        return super()._actor_count(slave_count) + slave_count * self._most_stages

    def _crash(self, slave_count: int) -> None:
        if self._newest is not None and self._changes:
            change = self._changes.popleft()
            try:
                self._change(change)
                self.made += 1
            except UserError as error:  # a change that a run refuses
                with patch("swjoin.plan.changes._with_late_rows_left_out", lambda plan: plan):
                    self._check_refused(change, error)
        super()._crash(slave_count)

    def _check_refused(self, change: Change, error: UserError) -> None:
        """SimulationError if the change is refused for what keeps late rows from dropped queries."""
        try:
            check_change(self._instances_of(self._plan), self._instances_of(change.made(self._plan)))
        except UserError:
            return
        raise SimulationError(f"a change is refused that could be made: {error}")

    def _change(self, change: Change) -> None:
        manifest, before = self._newest, self._instances_of(self._plan)
        assert manifest is not None
        check_change(before, trial := self._instances_of(change.made(self._plan)))
        time_us = time_of_change(manifest, before, trial)
        plan = change.made(self._plan, time_us, ended_sources(manifest, before))
        change_plan(manifest, before, self._instances_of(plan), {})
        self._plan = plan
        if reads_more(before, trial):
            self._sources_of = [self._open_sources(self._batches(plan)) for _ in self._sources_of]

    def _instances_of(self, plan: LogicalPlan) -> Instances:
        return Instances.of(plan, self.config.fitted_to(self._width), self._width, 0, (), self._tables)


def _all_made(plan: LogicalPlan, changes: Sequence[Change]) -> LogicalPlan:
    for change in changes:
        plan = change.made(plan)
    return plan


def drawn_changes(random: np.random.Generator, plan: LogicalPlan, number: int) -> tuple[LogicalPlan, list[Change]]:
    """A part of the plan's queries, with which a run begins, and so many changes, of which each adds some of all of them once
    more, and drops some."""
    names = [node.name for node in plan.nodes if isinstance(node, Result)]
    first = sorted(random.choice(names, int(random.integers(1, len(names) + 1)), replace=False).tolist())
    by_name = {node.name: node for node in plan.nodes}
    needed = set[str]().union(*(nodes_below(by_name, name) for name in first))
    begun = LogicalPlan(tuple(node for node in plan.nodes if node.name in needed))
    sources = {node for node in begun.nodes if not node.inputs}
    able = [name for name in names if {node for node in alone(plan, name).nodes if not node.inputs} <= sources]
    alive, changes = list(first), []
    for turn in range(number):
        dropped = [name for name in alive if random.random() < 0.3]
        added = {f"{name}_{turn}": _named(alone(plan, name), f"{name}_{turn}") for name in able if random.random() < 0.4}
        alive = [name for name in [*alive, *added] if name not in dropped]
        changes.append(Change(added, tuple(dropped)))
    return begun, changes


def _named(plan: LogicalPlan, name: str) -> LogicalPlan:
    return LogicalPlan(tuple(replace(node, name=name) if isinstance(node, Result) else node for node in plan.nodes))


def run_changes(seed: int, kind: type[ChangingSimulation] = ChangingSimulation, *, multiway: bool = False) -> int:
    """Simulate one scenario; returns the changes that were made. multiway: as of `PlanScenario.draw`. SimulationError,
    SwjoinError or AssertionError when the run or an answer is wrong."""
    scenario = PlanScenario.draw(seed, queries=True, multiway=multiway)
    random = np.random.default_rng([seed, 40])
    plan, changes = drawn_changes(random, scenario.plan, int(random.integers(1, 4)))
    checkpoint = replace(scenario.config.checkpoint, epochs=scenario.config.checkpoint.epochs or int(random.choice([1, 2, 5])))
    config = replace(scenario.config, checkpoint=checkpoint)
    crashes = [*scenario.crashes, *((int(random.geometric(1 / random.choice([100, 300, 1000]))), 0) for _ in changes)]
    crashes = [(step, left or scenario.width) for step, left in crashes]  # a request to stop is not followed by a crash
    plan = spread_over(plan, scenario.width, config.cluster.partition_count, config.cluster.routing)
    begun = replace(scenario, plan=plan, config=config)
    try:
        _all_made(plan, changes)
        Instances.of(plan, config.fitted_to(scenario.width), scenario.width, 0, (), begun.tables)
    except UserError:
        return 0  # of a query that cannot be added, or of settings for other stages
    with parts_of(scenario.part_rows), tempfile.TemporaryDirectory() as folder:
        run = scenario.width, seed
        simulation = kind(
            plan, config, lambda now: replace(begun, plan=now).sources(), run, Path(folder), crashes, changes, begun.tables
        )
        result = simulation.run()
    check_changed(replace(begun, plan=simulation.plan), simulation, result)
    return simulation.made


def check_changed(scenario: PlanScenario, simulation: ChangingSimulation, result: SimulationResult) -> None:
    """SimulationError unless every query has the rows of a run of its own. scenario: with the plan at the end."""
    shed = scenario.config.on_overload.policy == "shed"
    expected = scenario.without_shed(result) if shed else evaluate(unlimited(scenario.plan), scenario.good_rows())
    check_queries(simulation.instances, result, expected)
    assert [name for name in periods(scenario.plan)] == [node.name for node in simulation.instances.stages.results]


def unlimited(plan: LogicalPlan) -> LogicalPlan:
    """The plan in which dropped queries' stages take all rows, as those of others do."""
    last = {node.input for node in plan.nodes if isinstance(node, Result)}

    def free(node: Node) -> Node:
        if not isinstance(node, Period) or not node.ends or node.name in last:
            return node
        return replace(node, at_us=AFTER_ALL_US)

    return LogicalPlan(tuple(map(free, plan.nodes)))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 only if every run was right."""
    parser = argparse.ArgumentParser(description="random queries that come and go, in the simulator, against the oracle")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    args = parser.parse_args(argv)
    failures = made = 0
    for seed in range(args.seed, args.seed + args.count):
        try:
            made += run_changes(seed)
        except (SimulationError, SwjoinError, AssertionError) as error:
            failures += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{args.count} runs, {made} changes, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())

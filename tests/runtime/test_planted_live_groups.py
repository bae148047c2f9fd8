"""Bugs planted into groups of rows that are alive must be caught by random plans in the simulator; runs over files with several
slaves, against DuckDB."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.instances import Instances
from swjoin.cluster.slave import stage
from swjoin.core.batch import I64
from swjoin.core.ids import END_OF_TIME_US
from swjoin.duckdb.verify import verify
from swjoin.operators import live_groups as operator
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.live_groups import LiveGroups
from swjoin.plan import live_groups as plan
from swjoin.plan.aggregates import AggregateCall
from swjoin.plan.logical import Project, Result
from swjoin.plan.watermarks import needed_below
from swjoin.runtime.in_process import run_local
from swjoin.state import life_kernel
from tests.support.plan_runs import plan_job, rows_of, write_streams
from tests.support.planted import caught, in_motion, may_move, restored
from tests.tools.random_plans import SEEDS_OF_LIVES, PlanScenario

PLANS, MOST_SLAVES = 10, 40
Monkey = pytest.MonkeyPatch
WANTED: dict[str, Callable[[plan.LiveGroups], bool]] = {
    "lives": lambda node: node.mode == "changes" and bool(node.key),
    "sums": lambda node: any(call.function == "sum" and not call.distinct for call in node.calls),
    "least": lambda node: any(call.function in ("min", "max") for call in node.calls),
    "births": lambda node: node.mode == "births",
    "boundaries": lambda node: node.mode == "boundaries",
    "endless": lambda node: node.mode == "boundaries" and not node.longest_us,
}


def _node(scenario: PlanScenario) -> plan.LiveGroups | None:
    return next((node for node in scenario.plan.nodes if isinstance(node, plan.LiveGroups)), None)


@cache
def _plans(kind: str) -> tuple[PlanScenario, ...]:
    """Plans with such a node, which has rows, and whose sink has their values: ids are those of groups and instants alone."""
    of, _, moving = kind.partition(" that ")
    found = []
    for seed in itertools.count(SEEDS_OF_LIVES):
        if np.random.default_rng([seed, 37]).random() >= 0.15:
            continue  # without one
        scenario = PlanScenario.draw(seed)
        node = _node(scenario)
        if node is None or not WANTED[of](node) or (moving and not may_move(scenario)) or scenario.config.sink.kind == "count":
            continue
        if Instances.of(scenario.plan, scenario.config, scenario.width).width > MOST_SLAVES:
            continue  # the checkers visit all of them after every step
        scenario = in_motion(scenario) if moving else scenario
        if len(scenario.evaluated()[node.name]) >= (5 if of in ("births", "endless") else 20):
            found.append(scenario)
        if len(found) == PLANS // (2 if moving else 1):
            return tuple(found)
    raise AssertionError("no plans")


def _death_forgotten(monkeypatch: Monkey) -> None:
    events = life_kernel._events_of

    def forgetful(rows: I64, times: I64, group: I64, count: int) -> tuple[I64, I64]:
        return events(rows[:-1] if len(rows) > 1 else rows, times, group, count)

    monkeypatch.setattr(life_kernel, "_events_of", forgetful)


def _out_at_the_watermark(monkeypatch: Monkey) -> None:
    """<= for <: what happens at the watermark comes out, while a row that is born then can still come."""
    closed = LiveGroups._closed
    monkeypatch.setattr(LiveGroups, "_closed", lambda self, us: closed(self, min(us + 1, END_OF_TIME_US)))


def _front_drops_an_equal_value(monkeypatch: Monkey) -> None:
    """A value that is as little as the least one, and lives longer, is not kept."""
    instants = life_kernel.Sweep.instants

    def shorter(self: life_kernel.Sweep, most: int) -> Any:
        calls, events = self._calls, self._events
        for c in np.flatnonzero(calls.heap >= 0).tolist():
            seen: set[tuple[int, int]] = set()
            for g in range(len(events.ends)):
                for row in events.births[events.first_birth[g] : events.first_birth[g + 1]].tolist():
                    pair = g, int(calls.words[c, row])
                    calls.gains[c, row] &= pair not in seen
                    calls.losses[c, row] &= pair not in seen
                    seen.add(pair)
        return instants(self, most)

    monkeypatch.setattr(life_kernel.Sweep, "instants", shorter)


def _forgotten_while_alive(monkeypatch: Monkey) -> None:
    """A row is dropped when its birth is out, so its group never dies."""
    go_on = operator._Living.go_on

    def hasty(self: operator._Living, from_us: int, until_us: int) -> Any:
        found = go_on(self, from_us, until_us)
        self.keep(np.flatnonzero(self.rows.ts >= until_us))
        return found

    monkeypatch.setattr(operator._Living, "go_on", hasty)


def _left_behind(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(KeptRows, "take_out", lambda self, group: self.rows.take(np.flatnonzero(self.groups == group)))


def _lost_by_a_move(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(RowsOperator, "take_chunk", lambda self, chunk: None)


def _out_again(monkeypatch: Monkey) -> None:
    for name in ("restored", "restored_until"):
        monkeypatch.setattr(RowsOperator, name, lambda self, times_us: None)


def _nothing_needed(monkeypatch: Monkey) -> None:
    """A checkpoint forgets rows that are alive."""

    def forgetful(node: object, inputs: object) -> tuple[int, int]:
        return (inputs[0], END_OF_TIME_US) if isinstance(node, plan.LiveGroups) else needed_below(node, inputs)  # type: ignore

    monkeypatch.setattr(stage, "needed_below", forgetful)


def _one_boundary_less(monkeypatch: Monkey) -> None:
    sweep = operator.Sweep

    def shorter(span: life_kernel.Span, *more: Any) -> life_kernel.Sweep:
        return sweep(span._replace(from_us=span.from_us + 1), *more[:3], (more[3][0] + 1, more[3][1]))

    monkeypatch.setattr(operator, "Sweep", shorter)


BUGS: dict[str, tuple[str, Callable[[Monkey], None]]] = {
    "a death that is forgotten": ("lives", _death_forgotten),
    "instants that come out at the watermark": ("lives", _out_at_the_watermark),
    "a front that drops an equal value": ("least", _front_drops_an_equal_value),
    "rows that are forgotten while they are alive": ("births", _forgotten_while_alive),
    "a boundary less": ("boundaries", _one_boundary_less),
    "rows left behind by a move": ("lives that move", _left_behind),
    "rows lost by a move": ("lives that move", _lost_by_a_move),
    "boundaries lost by a move": ("boundaries that move", _lost_by_a_move),
    "instants that come out again after a restore": ("lives", _out_again),
    "living rows that a checkpoint forgets": ("sums", _nothing_needed),
}
AFTER_A_CRASH = ("after a restore", "a checkpoint forgets")


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    kind, plant = BUGS[name]
    plans = restored(_plans(kind)) if name.endswith(AFTER_A_CRASH) else _plans(kind)
    plant(monkeypatch)
    assert caught(plans)


@pytest.mark.drawn
@pytest.mark.parametrize("kind", WANTED)
def test_without_a_bug_the_plans_are_right(kind: str) -> None:
    assert caught([*_plans(kind), *restored(_plans(kind))]) == []


# ---------------------------------------------------------------- runs over files

CALLS = (
    AggregateCall("n", "count"),
    AggregateCall("s", "sum", "v"),
    AggregateCall("f", "sum", "y"),
    AggregateCall("u", "count", "x", distinct=True),
    AggregateCall("w", "sum", "y", distinct=True),
    AggregateCall("lo", "min", "v"),
    AggregateCall("hi", "max", "y"),
)
LIVES: dict[str, tuple[int, str, str]] = {  # unit, and births and deaths by the time `us`
    "changes": (1, "us + v % 3 * 500", "us + 20000 + v % 7 * 1000"),
    "boundaries": (10_000, "(us + 9999) // 10000 * 10000", "(us + 9999) // 10000 * 10000 + v % 5 * 10000"),
    "births": (1, "us", "us + 3000"),
    "for ever": (
        10_000,
        "(us + 9999) // 10000 * 10000",
        "case when v % 97 = 3 then 1 << 60 else (us + 39999) // 10000 * 10000 end",
    ),
}


@pytest.mark.parametrize("name", LIVES)
def test_runs_over_files(name: str, tmp_path: Path) -> None:
    """On two threads, with several slaves and moves: rows are those that DuckDB computes from the plan."""
    inputs = write_streams(tmp_path, "a", 1_500, 5, keys=12, null_share=0.05)
    unit, born, dead = LIVES[name]
    mode: plan.LifeMode = "boundaries" if name == "for ever" else name  # type: ignore[assignment]
    born, dead = (text.replace("us", 'epoch_us("ts")').replace("v %", '"v" %') for text in (born, dead))
    dead = dead.replace("1 << 60", str(1 << 60))
    value = 'case when "v" % 50 = 9 then \'NaN\'::double when "v" % 11 = 2 then null else "v" * 0.1::double end'
    columns = (*((n, f'"{n}"') for n in "kvx"), ("y", value), ("born", born), ("dead", dead))
    nodes = (
        Project("p", "a", columns),
        plan.LiveGroups("g", "p", ("k",), "born", "dead", () if mode == "births" else CALLS, "at", unit, mode),
        Result("out", "g", of_values=True),
    )
    cluster = {"distribution_epoch": "20ms", "partition_count": 7}
    moving = {"policy": "random", "epoch": "40ms", "random_moves": 3}
    job = plan_job(nodes, inputs, tmp_path / "run", cluster=cluster, reorganization=moving)
    report = run_local(job, False, 3)
    assert report["results"]["count"] == sum(rows_of(job).values()) > 100
    assert report["moves"] > 0
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()

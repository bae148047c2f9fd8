"""Planted bugs in joins whose windows count rows, in simulated runs of random plans; runs over files, against DuckDB."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swjoin.core.batch import I64
from swjoin.core.ids import END_OF_TIME_US
from swjoin.duckdb.verify import verify
from swjoin.operators.counted_join import CountedJoin
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.plan import counted_joins as plan
from swjoin.plan.logical import Filter, Project, Result, Union
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import plan_job, rows_of, write_streams
from tests.support.planted import caught, in_motion, may_move, restored
from tests.tools.random_plans import SEEDS_OF_COUNTED, PlanScenario

PLANS = 8
Monkey = pytest.MonkeyPatch


@cache
def _plans(*, moving: bool = False) -> tuple[PlanScenario, ...]:
    """Plans with such a node, which has rows, and a window that counts."""
    found = []
    for seed in itertools.count(SEEDS_OF_COUNTED):
        if np.random.default_rng([seed, 40]).random() >= 0.4:
            continue  # without one
        scenario = PlanScenario.draw(seed)
        node = next(node for node in scenario.plan.nodes if isinstance(node, plan.CountedJoin))
        if not any(node.counts) or (moving and not may_move(scenario)):
            continue
        scenario = in_motion(scenario) if moving else scenario
        if len(scenario.evaluated()[node.name]) >= 20:
            found.append(scenario)
        if len(found) == PLANS:
            return tuple(found)
    raise AssertionError("no plans")


def _order_of_arrival(monkeypatch: Monkey) -> None:
    """What has equal times is in the order of ids alone."""
    in_order = CountedJoin._in_order

    def by_ids(self: CountedJoin, watermark_us: int) -> I64:
        found = in_order(self, watermark_us)
        rows = self._kept.rows
        return found[np.lexsort((rows.id[found], rows.ts[found]))] if len(found) else found

    monkeypatch.setattr(CountedJoin, "_in_order", by_ids)


def _out_at_the_watermark(monkeypatch: Monkey) -> None:
    """<= for <: rows at the watermark are taken, while one that is before them in the order can still come."""
    closed = CountedJoin._closed
    monkeypatch.setattr(CountedJoin, "_closed", lambda self, us: closed(self, min(us + 1, END_OF_TIME_US)))


def _one_row_less(monkeypatch: Monkey) -> None:
    alive = CountedJoin._alive

    def hasty(self: CountedJoin, parts: I64, *more: Any) -> Any:
        found = alive(self, parts, *more)
        if len(found):
            found[np.argmax(found)] = False
        return found

    monkeypatch.setattr(CountedJoin, "_alive", hasty)
    monkeypatch.setattr(CountedJoin, "validate", lambda self: None)


def _lost_by_a_move(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(RowsOperator, "take_chunk", lambda self, chunk: None)


def _left_behind(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(KeptRows, "take_out", lambda self, group: self.rows.take(np.flatnonzero(self.groups == group)))


def _nothing_needed(monkeypatch: Monkey) -> None:
    """A checkpoint forgets rows that are in windows."""
    monkeypatch.setattr(CountedJoin, "needed_us", lambda self: self._final_us)


def _out_again(monkeypatch: Monkey) -> None:
    for name in ("restored", "restored_until"):
        monkeypatch.setattr(RowsOperator, name, lambda self, times_us: None)


BUGS: dict[str, tuple[str, Callable[[Monkey], None]]] = {
    "an order by ids alone": ("", _order_of_arrival),
    "rows that are taken at the watermark": ("", _out_at_the_watermark),
    "a window with a row less": ("", _one_row_less),
    "rows lost by a move": ("moves", _lost_by_a_move),
    "rows left behind by a move": ("moves", _left_behind),
    "rows that a checkpoint forgets": ("restored", _nothing_needed),
    "rows that come out again": ("restored", _out_again),
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    kind, plant = BUGS[name]
    plans = restored(_plans()) if kind == "restored" else _plans(moving=kind == "moves")
    plant(monkeypatch)
    assert caught(plans)


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["", "moves", "restored"])
def test_without_a_bug_the_plans_are_right(kind: str) -> None:
    assert caught(restored(_plans()) if kind == "restored" else _plans(moving=kind == "moves")) == []


# ---------------------------------------------------------------- runs over files

SHAPES = {
    "star": ((("k", "v"), ("k",), ("k", "x")), (40, 3, 0)),
    "path": ((("k",), ("k", "x"), ("x", "v")), (2, 60, 2)),
    "two columns": ((("k", "x"), ("k", "x", "v")), (0, 200)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_runs_over_files(name: str, tmp_path: Path) -> None:
    """With several slaves and moves: rows are those that DuckDB computes from the plan."""
    inputs = write_streams(tmp_path, "ab", 1_500, 5, keys=12, null_share=0.05)
    columns, counts = SHAPES[name]
    nodes: list[Any] = []
    for number in range(len(columns)):
        source = "ab"[number % 2]
        nodes.append(Filter(f"some {number}", source, f'"v" % {number + 3} < 2'))
        shown = (("part", f"cast({number} as bigint)"), *((name, f'"{name}"') for name in "kvx"))
        nodes.append(Project(f"part {number}", f"some {number}", shown))
    streams, widths = tuple(number % 2 for number in range(len(columns))), tuple(0 if count else 2_000 for count in counts)
    nodes += [
        Union("parts", tuple(f"part {number}" for number in range(len(columns))), keeps_ids=True),
        plan.CountedJoin("j", "parts", "part", columns, streams, counts, widths),
        Result("out", "j", of_values=True),
    ]
    cluster = {"distribution_epoch": "20ms", "partition_count": 7}
    moving = {"policy": "random", "epoch": "40ms", "random_moves": 3}
    job = plan_job(tuple(nodes), inputs, tmp_path / "run", cluster=cluster, reorganization=moving)
    report = run_local(job, False, 3)
    assert report["results"]["count"] == sum(rows_of(job).values()) > 100
    result = verify(tmp_path / "run")
    assert result.equal, result.lines()

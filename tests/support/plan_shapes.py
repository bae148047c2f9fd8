"""Plans of every shape, written by hand, with rows and the expected answer.

What: `SHAPES`, `Shape.scenario(width)`, `Shape.expected(scenario)`.
Why: every runtime runs the same shapes, and a failure names the shape.
Stays out: running (`tests.tools.random_plans`), shapes at random (`PlanScenario.draw`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.config.sections import QueryConfig
from swjoin.core.join_semantics import How
from swjoin.plan.logical import Column, IntervalJoin, LogicalPlan, Node, OutputTime, Result, Source, Union
from tests.tools.plan_oracle import Row, evaluate, join_rows
from tests.tools.random_plans import PlanScenario

SPAN_US, ROW_COUNT = 400, 40  # of a source
Holds = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class Shape:
    """A plan and its rows. counts: of rows of sources, where not `ROW_COUNT`. end_us: of the times of sources, where not
    SPAN_US. wheres: of inner joins with a residual predicate, whether it holds of a row, by column."""

    nodes: tuple[Node, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    end_us: Mapping[str, int] = field(default_factory=dict)
    wheres: Mapping[str, Holds] = field(default_factory=dict)
    null_ratio: float = 0.1

    def scenario(self, width: int, seed: int = 1) -> PlanScenario:
        plan, random = LogicalPlan(self.nodes), np.random.default_rng([seed, 30])
        sources = [node for node in self.nodes if isinstance(node, Source)]
        rows = {s.name: self._rows(random, s, self.counts.get(s.name, ROW_COUNT)) for s in sources}
        valid = {name: [True] * len(found) for name, found in rows.items()}
        return PlanScenario(seed, plan, shape_config(), rows, valid, width, 7)

    def _rows(self, random: np.random.Generator, source: Source, count: int) -> list[Row]:
        times = np.sort(random.integers(0, self.end_us.get(source.name, SPAN_US), count)).tolist()
        keys = random.integers(0, 5, (count, 2)).tolist()
        nulls = (random.random((count, 2)) < self.null_ratio).tolist()
        rows = []
        for i, (ts, key, null) in enumerate(zip(times, keys, nulls, strict=True)):
            k: Any = f"key {key[0]}" if dict(source.columns)["k"] == "string" else key[0]
            rows.append(Row(i, ts, (None if null[0] else k, None if null[1] else f"s{key[1] % 2}", i, ts)))
        return rows

    def expected(self, scenario: PlanScenario) -> list[Row]:
        """Rows of the result, by the oracle. Predicates filter here, which is right for inner joins."""
        plan, found = scenario.plan, scenario.good_rows()
        if not self.wheres:
            return evaluate(plan, found)["out"]
        for node in plan.ordered:
            if isinstance(node, IntervalJoin):
                schemas = [plan.schema(name) for name in node.inputs]
                without = replace(node, query=replace(node.semantics, where=None))
                assert node.semantics.how == "inner"
                rows = join_rows(without, schemas, found[node.left], found[node.right])
                names, holds = list(plan.schema(node.name).types), self.wheres.get(node.name)
                named = [(row, dict(zip(names, row.values, strict=True))) for row in rows]
                found[node.name] = [row for row, values in named if holds is None or holds(values)]
        return found["j"]


def shape_config(**sections: Any) -> RunConfig:
    """Short epochs, small blocks, materialised results."""
    plain = {
        "join": {"lower_us": 0, "upper_us": 0},
        "cluster": {"partition_count": 7, "distribution_epoch_us": 40},
        "module": {"block_bytes": 128, "theta_bytes": 512, "window_bytes": 8 << 20, "stream_buffer_bytes": 1 << 20},
        "sink": {"kind": "parquet"},
    }
    return config_from_plain(plain | sections)


COLUMNS = (Column("k", "int64"), Column("s", "string"), Column("v", "int64"), Column("ts", "timestamp[us]"))
TEXT = (Column("k", "string"), *COLUMNS[1:])


def source(name: str, columns: Sequence[Column] = COLUMNS) -> Source:
    return Source(name, tuple(columns), "ts")


def join(
    name: str,
    left: str,
    right: str,
    how: How = "inner",
    *,
    within: tuple[int, int] = (-20, 30),
    key: tuple[str, ...] = ("k",),
    time: OutputTime = "max",
    where: str | None = None,
) -> IntervalJoin:
    return IntervalJoin(name, left, right, key, key, QueryConfig(*within, how=how, where=where), time)


def _row(first: IntervalJoin, *rest: Node, columns: Sequence[Column] = COLUMNS) -> tuple[Node, ...]:
    return (*(source(name, columns) for name in "abc"), first, *rest, Result("out", "j"))


_IN_A_ROW = _row(join("i", "a", "b"), join("j", "i", "c", within=(-10, 40)))
SHAPES = {
    "one join": Shape((source("a"), source("b"), join("j", "a", "b", "full"), Result("out", "j"))),
    "two in a row": Shape(_IN_A_ROW),
    "two in a row, the second from the right": Shape(_row(join("i", "a", "b", time="min"), join("j", "c", "i", "left"))),
    "three in a row": Shape(
        _row(
            *(join("i", "a", "b"), join("h", "i", "c", "left", within=(-5, 15), time="left")),
            *(source("d"), join("j", "h", "d", "right", within=(0, 12))),
        )
    ),
    "union into a join": Shape(
        (*(source(name) for name in "abc"), Union("u", ("a", "b", "a")), join("j", "u", "c", "left"), Result("out", "j"))
    ),
    "more edges between two roles than parts without credit": Shape(
        (source("a"), Union("u", ("a",) * 6), join("j", "u", "u", within=(0, 2)), Result("out", "j"))
    ),
    "union of stages": Shape(_row(join("i", "a", "b"), join("h", "b", "a"), Union("u", ("i", "h")), join("j", "u", "c"))),
    "diamond": Shape(_row(join("i", "a", "b"), join("h", "a", "c", "left"), join("j", "i", "h", within=(-9, 9)))),
    "self-join": Shape((source("a"), join("j", "a", "a"), Result("out", "j"))),
    "self-join of a stage": Shape(
        (source("a"), source("b"), join("i", "a", "b", "semi"), join("j", "i", "i", "full"), Result("out", "j"))
    ),
    "a stage that feeds the next one and the last": Shape(
        _row(join("i", "a", "b"), join("h", "i", "c", "semi"), join("j", "i", "h", "anti", within=(0, 5)))
    ),
    **{
        f"{how} join first": Shape(_row(join("i", "a", "b", how, within=(-3, 4)), join("j", "i", "c", how)))
        for how in ("left", "right", "full", "semi", "anti")
    },
    "string keys": Shape(_row(join("i", "a", "b", "full"), join("j", "i", "c", "left"), columns=TEXT)),
    "keys of two columns": Shape(
        _row(join("i", "a", "b", "left", key=("k", "s"), within=(-60, 60)), join("j", "i", "c", "full", key=("k", "s")))
    ),
    "another key in every stage": Shape(
        _row(join("i", "a", "b", within=(-5, 5)), IntervalJoin("j", "i", "c", ("left_s",), ("s",), QueryConfig(0, 9)))
    ),
    "null keys at every port": Shape(
        _row(join("i", "a", "b", "full", within=(-60, 60)), join("j", "i", "c", "full")), null_ratio=0.6
    ),
    "only null keys": Shape(_row(join("i", "a", "b", "full"), join("j", "i", "c", "full")), null_ratio=1.0),
    "an empty source": Shape(_row(join("i", "a", "b", "left"), join("j", "i", "c", "full")), {"b": 0}),
    "an empty first stage": Shape(_row(join("i", "a", "b"), join("j", "i", "c", "full")), {"a": 0}),
    "empty sources": Shape(_IN_A_ROW, dict.fromkeys("abc", 0)),
    "a source that ends early": Shape(_row(join("i", "a", "b", "full"), join("j", "i", "c", "full")), end_us={"b": 50}),
    "a predicate in the first stage": Shape(
        _row(join("i", "a", "b", within=(-50, 50), where="left.v < right.v"), join("j", "i", "c", within=(-60, 60))),
        wheres={"i": lambda row: row["left_v"] < row["right_v"]},
    ),
    "a predicate in the second stage": Shape(
        _row(join("i", "a", "b", within=(-50, 50)), join("j", "i", "c", where="left_left_v + v > 40 and s is not null")),
        wheres={"j": lambda row: row["left_v"] + row["v"] > 40 and row["s"] is not None},
    ),
}

"""Random plans of several stages in the simulator, against the oracle of plans.

What: `PlanScenario.draw(seed)`, `run_plan(seed)`, and `python -m tests.tools.random_plans N [--seed S]`.
Why: joins in a row, unions, diamonds and self-joins meet random epochs, widths, delays, null keys and late rows; a failing run
prints its seed.
Stays out: the oracle (`tests.tools.plan_oracle`), the simulator (`runtime.simulator`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from swjoin.cluster import exchange
from swjoin.cluster.instances import Instances
from swjoin.cluster.slave import merger
from swjoin.config.loader import config_from_plain
from swjoin.config.options import Strategy
from swjoin.config.run import RunConfig, to_plain
from swjoin.config.sections import QueryConfig
from swjoin.connectors.output_columns import QueryColumns, ResultColumns
from swjoin.core.aggregate_functions import PLACED
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import LEFT, Pairs, ResultRows, SourceBatch
from swjoin.core.columns import Columns, type_named
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.join_semantics import JOIN_KINDS, format_digest
from swjoin.core.kept_columns import OrderKey
from swjoin.core.row_codec import storage
from swjoin.core.time_windows import TimeWindows
from swjoin.plan.aggregates import Aggregate, AggregateCall
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import WHOLE, AlignedWindows, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import (
    Column,
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    Project,
    Result,
    Schema,
    Source,
    Spread,
    Union,
    can_share_windows,
)
from swjoin.plan.lookups import Lookup
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.multiway import with_multiway_joins
from swjoin.plan.sharing import shared
from swjoin.plan.stages import cut
from swjoin.runtime.open import plan_output
from swjoin.runtime.simulator.attempts import NO_FREEZES, Freezes
from swjoin.runtime.simulator.plan_simulation import PlanSimulation
from swjoin.runtime.simulator.result import SimulationError, SimulationResult
from tests.tools.plan_expressions import band_key, born_at, dead_at, draw_condition, draw_value, one_key
from tests.tools.plan_oracle import Answer, Row, TooManyRowsError, evaluate, row_hash, words_of
from tests.tools.random_freezes import draw_freezes

_OUTPUT_TIMES = ("max", "min", "left")
MOST_RANKS = 8  # with instances
SEEDS_OF_BUGS = 1_000  # plans below have no windows of groups: tests of planted bugs count on what they have
SEEDS_WITHOUT_FUNCTIONS = range(20_000, 40_000)  # and no places; likewise, tests of aggregates and of rows that are kept
SEEDS_OF_VIEWS = 50_000  # plans below have no views, and no units that store one stream each
SEEDS_OF_LIVES = 60_000  # plans below have no rows that live
SEEDS_OF_COUNTED = 70_000  # plans below have no joins whose windows count rows
_FUNCTIONS = "tests.tools.plan_expressions"
MOST_ROWS = 3_000  # of a node; larger ones are drawn again with fewer rows, as the oracle compares every pair

LEAST_EPOCH_US = 40  # in realtime pace: shorter ones are beside messages' delays mostly empty


@dataclass(frozen=True)
class PlanScenario:
    """rows: of each source, as they are read. valid: of each source, which rows have a time. part_rows: most of a part between
    stages; None: as in production, where the epochs of a random plan have one part each. crashes, freezes: as
    `PlanSimulation` takes them."""

    seed: int
    plan: LogicalPlan
    config: RunConfig
    rows: dict[str, list[Row]]
    valid: dict[str, list[bool]]
    width: int
    batch_rows: int
    part_rows: int | None = None
    crashes: tuple[tuple[int, int], ...] = ()
    freezes: Freezes = NO_FREEZES

    @staticmethod
    def draw(seed: int, *, calm: bool = False, queries: bool = False, multiway: bool = False) -> PlanScenario:
        """A scenario from a seed. calm: without moves, checkpoints, crashes and freezes; otherwise the same. queries: several,
        over nodes of the plan. multiway: joins in a row by one key, which are one stage."""
        random = np.random.default_rng([seed, 20])
        span = int(random.choice([20, 200, 5_000]))
        plan = _draw_joins_in_a_row(random, span) if multiway else _draw_plan(random, span)
        gathers = np.random.default_rng([seed, 26])
        if gathers.random() < 0.2:
            plan = _draw_gathering(gathers, plan)
        aggregates = np.random.default_rng([seed, 27])
        if aggregates.random() < 0.3:
            plan = _draw_aggregate(aggregates, plan, span)
        kept = np.random.default_rng([seed, 28])
        if kept.random() < 0.25:
            plan = _draw_kept(kept, plan, span)
        group_windows = np.random.default_rng([seed, 30])
        if seed >= SEEDS_OF_BUGS and group_windows.random() < 0.25:
            plan = _draw_group_windows(group_windows, plan, span)
        views = np.random.default_rng([seed, 34])
        if seed >= SEEDS_OF_VIEWS and views.random() < 0.15:
            plan = _draw_views(views, plan, span)
        joins_alone = multiway and seed % 2 == 1  # nothing that keeps joins apart
        lookups = np.random.default_rng([seed, 29])
        if not joins_alone and lookups.random() < 0.25:
            plan = _draw_lookups(lookups, plan)
        functions = np.random.default_rng([seed, 31])
        if not joins_alone and seed >= SEEDS_OF_BUGS and seed not in SEEDS_WITHOUT_FUNCTIONS and functions.random() < 0.3:
            plan = _draw_functions(functions, plan)
        places = np.random.default_rng([seed, 32])
        if not joins_alone and seed >= SEEDS_OF_BUGS and seed not in SEEDS_WITHOUT_FUNCTIONS and places.random() < 0.5:
            plan = _draw_places(places, plan)
        spread = np.random.default_rng([seed, 33])
        if not joins_alone and seed >= SEEDS_OF_BUGS and seed not in SEEDS_WITHOUT_FUNCTIONS and spread.random() < 0.15:
            plan = _draw_spread(spread, plan, span)
        units = np.random.default_rng([seed, 35])
        if (
            not joins_alone
            and seed >= SEEDS_OF_VIEWS
            and units.random() < 0.15
            and all(node.name != "meeting" for node in plan.nodes)
        ):
            plan = _draw_spread(units, plan, span, of_units=True)
        lives = np.random.default_rng([seed, 37])
        if seed >= SEEDS_OF_LIVES and lives.random() < 0.15:
            plan = _draw_lives(lives, plan, span)
        counted = np.random.default_rng([seed, 40])
        if seed >= SEEDS_OF_COUNTED and counted.random() < 0.4:
            plan = _draw_counted(counted, plan, span)
        bound = int(random.choice([0, 0, span // 10, span // 3]))
        config = _draw_config(random, span, bound, plan)
        plan = _fitted(plan, config.cluster.partition_count)
        if queries:
            plan = _draw_queries(np.random.default_rng([seed, 38]), plan)
        plan = with_multiway_joins(plan) if multiway else plan
        most, domain = int(random.choice([5, 30, 120])), int(random.choice([1, 4, 20]))
        width, batch_rows = int(random.integers(1, 4)), int(random.choice([1, 7, 1000]))
        part_rows = (None, 1, 2, 10)[seed % 4] if config.pace == "asap" else None  # slots end while small parts wait
        while True:
            rows, valid = _draw_rows(random, plan, span, bound, most, domain)
            scenario = PlanScenario(seed, plan, config, rows, valid, width, batch_rows, part_rows)
            if most <= 5 or scenario._answer is not None:
                return scenario if calm else scenario.with_events()
            most, domain = most // 2, domain * 4

    def with_events(self) -> PlanScenario:
        """The same, in many cases with moves and resizes, with checkpoints, crashes and roles that freeze, and with several
        gateways and sinks."""
        random = np.random.default_rng([self.seed, 21])
        plain: dict[str, Any] = to_plain(self.config)
        epoch_us, batch_rows, width = self.config.cluster.distribution_epoch_us, self.batch_rows, self.width
        moving = random.random() < 0.6
        if moving and self.config.pace == "realtime":  # messages take up to 0.1 s: many epochs meanwhile, not many thousands
            epoch_us = max(epoch_us, int(random.choice([300, 3_000, 30_000])))
        elif moving:  # nothing moves once all rows are read, so they are read over many epochs
            times = [row.ts for rows in self.rows.values() for row in rows] or [0]
            epoch_us = max(1, (max(times) - min(times)) // int(random.choice([6, 12, 24])))
            batch_rows = min(batch_rows, 1 + sum(map(len, self.rows.values())) // 20)
        if moving:
            width = int(random.choice([2, 3])) if random.random() < 0.9 else width
            groups = max(self.config.cluster.partition_count, int(random.choice([1, 2, 7])))
            plain["cluster"] |= {"distribution_epoch_us": epoch_us, "partition_count": groups}
            declustering = str(random.choice(["fixed", "adaptive"]))
            plain["reorganization"] |= {
                "policy": "random",
                "epoch_us": epoch_us * int(random.choice([1, 1, 2, 5])),
                "declustering": declustering,
                "active_slaves": int(random.choice([0, 2] if declustering == "fixed" else [0, 1, 2])),
                "random_moves": int(random.choice([1, 3, 10])),
                "chunk_bytes": 1 << 10,
            }
        crashes: list[tuple[int, int]] = []
        if random.random() < 0.5:
            plain["checkpoint"]["epochs"] = int(random.choice([5, 10] if moving else [1, 2, 5]))  # nothing moves meanwhile
            for _ in range(int(random.integers(0, 4))):
                crashes.append((int(random.geometric(1 / random.choice([50, 300, 1000]))), int(random.integers(0, 4))))
        if crashes and random.random() < 0.5:  # a second one while the roles recover from the first
            crashes.append((min(crashes)[0] + int(random.integers(1, 20)), int(random.integers(1, 4))))
        if plain["reorganization"]["policy"] == "random" and random.random() < 0.15:
            plain["reorganization"]["policy"] = "balanced"
        overload = np.random.default_rng([self.seed, 30])
        if self.config.pace == "realtime" and not self.config.time.max_out_of_order_us and overload.random() < 0.6:
            plain["cluster"]["mini_buffer_bytes"] = 1 << 10
            policy, victims = (
                overload.choice(["block", "shed", "spill"], p=[0.1, 0.5, 0.4]),
                overload.choice(["oldest", "random"]),
            )
            as_of = any(isinstance(node, IntervalJoin) and node.semantics.as_of is not None for node in self.plan.nodes)
            policy = "spill" if as_of and policy == "shed" else policy
            plain["on_overload"] |= {"policy": str(policy), "victims": str(victims)}
        sinks = int(np.random.default_rng([self.seed, 22]).choice([1, 1, 2, 3]))
        gateways = int(np.random.default_rng([self.seed, 23]).choice([1, 1, 2, 3, 4]))
        strategies = np.random.default_rng([self.seed, 28])
        strategy: Strategy = ("query", "subquery", "operator")[int(strategies.integers(0, 3))]
        plain["cluster"]["strategy"] = strategy
        if strategy != "query" and strategies.random() < 0.8:  # mostly enough ranks for stages apart
            stages = len(cut(self.plan, strategy).stages)
            width = max(1, min(MOST_RANKS, stages + int(strategies.integers(-1, 4))))
            crashes = [(step, min(width - 1, left + stages - 1) if left else 0) for step, left in crashes]
            if strategies.random() < 0.3:
                plain["cluster"]["instances"] = strategies.integers(1, 4, stages).tolist()
        placing = np.random.default_rng([self.seed, 31])
        if moving and placing.random() < 0.3:
            plain = self._placed_by_traffic(plain, width, placing)
        config = config_from_plain(plain).with_sinks(sinks).with_gateways(gateways)
        freezes = draw_freezes(np.random.default_rng([self.seed, 24]), config, (50, 300, 1000))
        return replace(self, config=config, crashes=tuple(crashes), freezes=freezes, width=width, batch_rows=batch_rows)

    def _placed_by_traffic(self, plain: dict[str, Any], width: int, random: np.random.Generator) -> dict[str, Any]:
        """With policy `network`, under which all moves pay, if some stages can share ranks."""
        reorganization = {**plain["reorganization"], "policy": "network", "declustering": "fixed", "active_slaves": 0}
        reorganization["placement"] = {
            "horizon": 1e9,
            "slices": int(random.choice([1, 3])),
            "imbalance": float(random.choice([1.03, 2.0, 100.0])),
            "objective": str(random.choice(["bytes", "tuples"])),
        }
        placed = {**plain, "reorganization": reorganization}
        try:
            Instances.of(self.plan, config_from_plain(placed), width)
        except UserError:
            return plain
        return placed

    def good_rows(self) -> dict[str, list[Row]]:
        """The rows of every source that take part: with a time, and not late."""
        good: dict[str, list[Row]] = {}
        streams = {source.name for source in cut(self.plan).sources}
        for name, rows in self.rows.items():
            if name not in streams:  # a static table is whole
                good[name] = list(rows)
                continue
            high, kept = -(1 << 62), []
            for row, valid in zip(rows, self.valid[name], strict=True):
                if valid and row.ts >= high - self.config.time.max_out_of_order_us:
                    kept.append(row)
                high = max(high, row.ts) if valid else high
            good[name] = kept
        return good

    def evaluated(self) -> dict[str, list[Row]]:
        """The rows of every node."""
        return self._answer or evaluate(self.plan, self.good_rows())

    def without_shed(self, result: SimulationResult) -> dict[str, list[Row]]:
        """The rows of every node without the tuples that the run has shed. SimulationError when it counts others."""
        good = self.good_rows()
        for stream, source in enumerate(cut(self.plan).sources):
            ids = [int(i) for of, rows, reason in result.set_aside if of == stream and reason == "shed" for i in rows.id]
            counted = result.counts["shed"][source.name]
            if len(set(ids)) != len(ids) or counted != len(ids):
                raise SimulationError(f"{source.name}: {counted} tuples counted as shed, {len(ids)} set aside")
            good[source.name] = [row for row in good[source.name] if row.id not in set(ids)]
        return evaluate(self.plan, good)

    @cached_property
    def _answer(self) -> dict[str, list[Row]] | None:
        """The rows of every node; None if a node has more than MOST_ROWS."""
        try:
            return evaluate(self.plan, self.good_rows(), MOST_ROWS)
        except TooManyRowsError:
            return None

    def tables(self, name: str, columns: tuple[str, ...]) -> tuple[Columns | None, int]:
        """Columns of a static table, and the number of its rows."""
        node = self.plan.node(name)
        assert isinstance(node, Source)
        return source_batch(node, self.rows[name], [True] * len(self.rows[name]), columns).columns, len(self.rows[name])

    def sources(self) -> list[list[SourceBatch]]:
        """Batches of every source, as a file would give them."""
        instances = Instances.of(self.plan, self.config, self.width)
        out = []
        for node in instances.stages.sources:
            whole = source_batch(node, self.rows[node.name], self.valid[node.name], instances.columns.read[node.name])
            out.append([_sliced(whole, at, at + self.batch_rows) for at in range(0, len(whole), self.batch_rows)])
        return out


def _draw_plan(random: np.random.Generator, span: int) -> LogicalPlan:
    """1 to 3 joins over 1 to 4 sources, some unions, filters and projections; the last join, or what a projection or a filter
    makes of its rows, is the result, and everything leads to it."""
    key_type = str(random.choice(["int64", "string", "int64", "uint32"]))
    columns = (Column("k", key_type), Column("s", "string"), Column("v", "int64"), Column("ts", "timestamp[us]"))
    nodes: list[Node] = [Source(f"s{i}", columns, "ts") for i in range(int(random.integers(1, 5)))]
    schemas: dict[str, Schema] = {node.name: Schema(columns, "ts") for node in nodes}
    joins = int(random.integers(1, 4))
    while joins:
        name, names = f"n{len(nodes)}", list(schemas)
        recent = names[-3:]
        left = str(random.choice(recent if random.random() < 0.7 else names))
        choice = random.random()
        if choice < 0.15:
            node: Node = Filter(name, left, draw_condition(random, schemas[left]))
        elif choice < 0.3:
            node = _draw_projection(random, name, left, schemas[left])
        elif choice < 0.5:
            alike = [other for other in names if schemas[other] == schemas[left]]
            node = Union(name, (left, str(random.choice(alike))))
        else:
            joins -= 1
            node = _draw_join(random, name, left, str(random.choice(names)), span, schemas)
        nodes.append(node)
        schemas[name] = _schema_with(nodes, name)
    if random.random() < 0.3:
        last = nodes[-1].name
        nodes.append(_draw_projection(random, f"n{len(nodes)}", last, schemas[last]))
        schemas[nodes[-1].name] = _schema_with(nodes, nodes[-1].name)
    if random.random() < 0.3:
        last = nodes[-1].name
        nodes.append(Filter(f"n{len(nodes)}", last, draw_condition(random, schemas[last])))
    return _reaching(nodes, nodes[-1].name)


def _draw_joins_in_a_row(random: np.random.Generator, span: int) -> LogicalPlan:
    """2 to 4 inner joins by one key over 1 to 4 sources, unions of these among them; filters and projections between them."""
    key_type = str(random.choice(["int64", "string", "uint32"]))
    columns = (Column("k", key_type), Column("s", "string"), Column("v", "int64"), Column("ts", "timestamp[us]"))
    nodes: list[Node] = [Source(f"s{i}", columns, "ts") for i in range(int(random.integers(1, 5)))]
    inputs = [node.name for node in nodes]
    if random.random() < 0.3:
        nodes.append(Union("u", (inputs[0], str(random.choice(inputs)))))
        inputs.append("u")
    letters = [["k"], ["s"], ["k", "s"]][int(random.choice(3, p=[0.6, 0.2, 0.2]))]
    waiting, key_of = random.choice(inputs, int(random.integers(3, 6))).tolist(), dict.fromkeys(inputs, tuple(letters))
    while len(waiting) > 1:  # two neighbours become one: trees of any shape
        at = int(random.integers(0, len(waiting) - 1)) if random.random() < 0.5 else 0
        of = [key_of[name] for name in waiting[at : at + 2]]
        pair = [_passed_on(random, nodes, name) for name in waiting[at : at + 2]]
        keys = of if random.random() < 0.9 else [key[::-1] if len(key) > 1 else key for key in of]
        low, high = sorted(random.integers(-span // 3, span // 3 + 1, 2).tolist())
        time = str(random.choice(_OUTPUT_TIMES))
        name = f"n{len(nodes)}"
        nodes.append(IntervalJoin(name, *pair, *keys, QueryConfig(low, high), time))  # type: ignore[arg-type, call-arg]
        waiting[at : at + 2] = [name]
        key_of[name] = of[0]
    return _reaching(nodes, _passed_on(random, nodes, waiting[0]))


def _passed_on(random: np.random.Generator, nodes: list[Node], name: str) -> str:
    """A node, or what filters and projections that are added make of its rows."""
    while random.random() < 0.4:
        schema, after = _schema_with(nodes, name), f"n{len(nodes)}"
        if random.random() < 0.3:
            nodes.append(Filter(after, name, draw_condition(random, schema)))
        else:  # keys stay as they are
            columns = [
                (c.name, draw_value(random, c)) if c.name.endswith("v") else (c.name, f'"{c.name}"') for c in schema.columns
            ]
            nodes.append(Project(after, name, tuple(columns)))
        name = after
    return name


def _reaching(nodes: Sequence[Node], last: str) -> LogicalPlan:
    """The plan whose result is this node, of those that it needs."""
    reached = {last}
    for node in reversed(nodes):
        if node.name in reached:
            reached |= set(node.inputs)
    return LogicalPlan((*(node for node in nodes if node.name in reached), Result("out", last)))


def _begun(random: np.random.Generator, plan: LogicalPlan, alone: float) -> tuple[list[Node], str]:
    """Nodes to go on from, and the last of them: those of the plan, or with this chance a source alone."""
    (result,) = (node for node in plan.nodes if isinstance(node, Result))
    if random.random() < alone:
        source = next(node for node in plan.nodes if isinstance(node, Source))
        return [source], source.name
    return [node for node in plan.nodes if node != result], result.input


def _draw_gathering(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """A plan whose result is not what one join brings forth: rows of sources alone, or a union of the plan's result with others
    of its rows."""
    (result,) = (node for node in plan.nodes if isinstance(node, Result))
    nodes = [node for node in plan.nodes if node != result]
    last = result.input
    if random.random() < 0.5:
        nodes = [node for node in nodes if isinstance(node, Source)]
        last = nodes[0].name
        nodes = nodes[: int(random.integers(1, len(nodes) + 1))]
    schemas = {node.name: _schema_with(nodes, node.name) for node in nodes}
    for index in range(int(random.integers(0, 4)) + (not isinstance(plan.node(last), Source))):
        name, choice = f"g{index}", random.random()
        node: Node = Filter(name, last, draw_condition(random, schemas[last]))
        if choice < 0.3:
            node = _draw_projection(random, name, last, schemas[last])
        elif choice < 0.8 or not index:
            alike = [other for other in schemas if schemas[other] == schemas[last]]
            node = Union(name, (last, str(random.choice(alike))))
        nodes.append(node)
        schemas[name], last = _schema_with(nodes, name), name
    return _reaching(nodes, last)


def _draw_aggregate(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """With an aggregate over the rows of the result, or of a source alone; now and then filtered, aggregated again, or joined
    with a source."""
    nodes, last = _begun(random, plan, 0.7)
    schemas = {node.name: _schema_with(nodes, node.name) for node in nodes}
    for index in range(int(random.choice([1, 1, 2]))):
        name, schema = f"a{index}", schemas[last]
        size, slide = (int(v) for v in random.integers(1, max(2, span // 2), 2))
        slide = (size, slide, -(-size // int(random.integers(2, 7))))[int(random.integers(0, 3))]
        slide = max(slide, size // 20)  # not more windows than tests have time for
        key = [n for n in schema.types if n.strip("_").split("_")[-1] in ("k", "s") and random.random() < 0.6]
        numbers = [n for n, kind in schema.columns if kind in ("int64", "double")]
        calls = [AggregateCall("n", "count")]
        for i in range(int(random.integers(0, 4)) if numbers else 0):
            function = str(random.choice(["count", "sum", "avg", "min", "max"]))
            calls.append(AggregateCall(f"f{i}", function, str(random.choice(numbers))))
        if random.random() < 0.4:
            for i in range(int(random.integers(1, 4))):
                calls.append(_draw_rows_call(random, f"r{i}", schema))
        windows = TimeWindows(size, slide, int(random.choice([0, 3])))
        names = f"start{index}", f"end{index}"
        time = str(random.choice(["last", "start", "end"]))
        node: Node = Aggregate(name, last, tuple(key), windows, tuple(calls), *names, time)  # type: ignore[arg-type]
        nodes.append(node)
        schemas[name], last = _schema_with(nodes, name), name
        if random.random() < 0.3:
            nodes.append(Filter(f"h{index}", last, '"n" between 2 and 60 or "n" is null'))
            schemas[f"h{index}"], last = _schema_with(nodes, f"h{index}"), f"h{index}"
    sources = [node for node in nodes if isinstance(node, Source)]
    keys = [n for n in schemas[last].types if n.strip("_").split("_")[-1] == "k"]
    if keys and random.random() < 0.3:
        query = QueryConfig(-span // 4, span // 4, how=str(random.choice(list(JOIN_KINDS))))  # type: ignore[arg-type]
        time = str(random.choice(_OUTPUT_TIMES))
        nodes.append(IntervalJoin("j", last, sources[0].name, (keys[0],), ("k",), query, time))  # type: ignore[arg-type]
        last = "j"
    return _reaching(nodes, last)


def _draw_rows_call(random: np.random.Generator, name: str, schema: Schema) -> AggregateCall:
    """A call that rows decide."""
    columns = [n for n, kind in schema.columns if kind in ("int64", "double", "string")]
    numbers = [n for n, kind in schema.columns if kind in ("int64", "double")]
    column, by = str(random.choice(columns)), str(random.choice(columns))
    choice = random.random()
    if choice < 0.4 and numbers:
        function = str(random.choice(["count", "sum", "avg"]))
        return AggregateCall(name, function, column if function == "count" else str(random.choice(numbers)), distinct=True)
    if choice < 0.6:
        return AggregateCall(name, str(random.choice(["arg_min", "arg_max"])), column, by)
    return AggregateCall(name, str(random.choice(["first", "last", "min", "max"])), column)


def _draw_views(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """With a running aggregate over the result, or a source alone, and mostly its views; now and then filtered."""
    endless = any(isinstance(node, TupleWindows) and node.partial for node in plan.nodes)  # rows without a time
    nodes, last = _begun(random, plan, 1 if endless else 0.75)
    schema = _schema_with(nodes, last)
    key = tuple(n for n in schema.types if n.strip("_").split("_")[-1] in ("k", "s") and random.random() < 0.6)
    numbers = [n for n, kind in schema.columns if kind in ("int64", "double")]
    calls = [AggregateCall("n", "count")]
    for i in range(int(random.integers(0, 4)) if numbers else 0):
        function = str(random.choice(["count", "sum", "avg", "min", "max"]))
        calls.append(AggregateCall(f"f{i}", function, str(random.choice(numbers))))
    every = max(1, int(span // random.choice([2, 5, 15])))
    windows, names = TimeWindows(every, every, 1), ("vstart", "vend")
    nodes.append(Aggregate("v", last, key, windows, tuple(calls), *names, running=True))
    if random.random() < 0.8:
        nodes.append(Views("views", "v", key, every, "as_of"))
    last = nodes[-1].name
    if random.random() < 0.3:
        nodes.append(Filter("hv", last, '"n" between 2 and 60 or "n" is null'))
        last = "hv"
    return _reaching(nodes, last)


def _draw_lives(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """With groups of rows that are alive, of the rows of the result if a column has their time, or of a source alone; now and
    then filtered, or counted by windows of time."""
    endless = any(isinstance(node, TupleWindows) and node.partial for node in plan.nodes)  # rows without a time
    endless = endless or any(isinstance(node, Ranked) and node.windows == WHOLE for node in plan.nodes)
    schema = plan.schema(_last(plan.nodes))
    joins = [plan.schema(node.left) for node in plan.nodes if isinstance(node, IntervalJoin)]
    hidden = any(left.time not in left.types for left in joins)  # then a right column may have its name
    timed = schema.types.get(str(schema.time)) == "timestamp[us]" and not hidden
    nodes, last = [node for node in plan.ordered if not isinstance(node, Result)], _last(plan.nodes)
    if not timed or endless or random.random() < 0.4:
        last = next(node.name for node in nodes if isinstance(node, Source) and node.time is not None)
    schema = plan.schema(last)
    mode = str(random.choice(["changes", "changes", "boundaries", "births"]))
    unit = max(1, int(span // random.choice([5, 20]))) if mode == "boundaries" else 1
    later, life = int(random.choice([0, 0, span // 10])), int(random.choice([0, 1, span // 20, span // 3, 2 * span]))
    dies = bool(random.random() < 0.7)
    time = str(schema.time)
    born, dead = born_at(time, later, unit), (born_at if dies else dead_at)(time, later + life, unit)
    shown = tuple((name, f'"{name}"') for name in schema.types)
    nodes.append(Project("lives", last, (*shown, ("born", born), ("dead", dead))))
    key = tuple(n for n in schema.types if n.strip("_").split("_")[-1] in ("k", "s") and random.random() < 0.5)
    numbers = [n for n, kind in schema.columns if kind in ("int64", "double")]
    calls = [AggregateCall("n", "count")]
    for i in range(int(random.integers(0, 4)) if numbers else 0):
        function = str(random.choice(["count", "sum", "min", "max"]))
        distinct = function in ("count", "sum") and bool(random.random() < 0.4)
        calls.append(AggregateCall(f"f{i}", function, str(random.choice(numbers)), distinct=distinct))
    longest = later + life + 3 * unit if dies and random.random() < 0.7 else 0
    drawn = tuple(calls) if mode != "births" else ()
    nodes.append(LiveGroups("alive", "lives", key, "born", "dead", drawn, "as_of", unit, mode, longest))  # type: ignore[arg-type]
    last = "alive"
    if mode != "births" and random.random() < 0.3:
        nodes.append(Filter("ha", last, '"n" between 2 and 60 or "n" is null'))
        last = "ha"
    if random.random() < 0.3:
        size = max(1, span // 3)
        windows, calls = TimeWindows(size, size), [AggregateCall("m", "count")]
        nodes.append(Aggregate("counted", last, key, windows, tuple(calls), "cstart", "cend"))
        last = "counted"
    return _reaching(nodes, last)


def _draw_counted(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """A join of rows of the sources, of which some may be filtered, whose windows count rows; now and then filtered, or counted
    by windows of time."""
    sources = [node for node in plan.nodes if isinstance(node, Source) and node.time is not None]
    nodes: list[Node] = list(sources)
    names = [c.name for c in sources[0].columns if c.type in ("int64", "string")]
    columns, windows, parts = [], [], list[str]()
    for number in range(int(random.choice([2, 2, 3, 4]))):
        name = below = str(random.choice([source.name for source in sources]))
        if random.random() < 0.3:
            name = f"some {number}"
            nodes.append(Filter(name, below, draw_condition(random, plan.schema(below))))
        shown = [(column, f'"{column}"') for column in names]
        nodes.append(Project(f"part {number}", name, (("part", one_key("s", number)), *shown)))
        parts.append(f"part {number}")
        some = [column for column in names if random.random() < 0.6]
        columns.append(tuple(some or names[:1]))
        count = int(random.choice([0, 1, 2, 3, 5]))
        windows.append((count, 0 if count else int(random.choice([0, 1, span // 20]))))
    columns[0] = tuple(column for column in names if column in columns[0] or not any(column in of for of in columns[1:]))
    nodes.append(Union("parts", tuple(parts), keeps_ids=True))
    streams = tuple(int(stream) for stream in random.integers(0, 3, len(parts)))
    counts, widths = (tuple(window[i] for window in windows) for i in (0, 1))
    nodes.append(CountedJoin("alike", "parts", "part", tuple(columns), streams, counts, widths))
    last = "alike"
    if random.random() < 0.3:
        nodes.append(Filter("ha", last, draw_condition(random, _schema_with(nodes, last))))
        last = "ha"
    if random.random() < 0.3:
        size = max(1, span // 3)
        nodes.append(Aggregate("counted", last, (), TimeWindows(size, size), (AggregateCall("m", "count"),), "cstart", "cend"))
        last = "counted"
    return _reaching(nodes, last)


def _draw_kept(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """With one or two top-n or sessions over the rows of the result, or of a source alone; now and then filtered."""
    nodes, last = _begun(random, plan, 0.6)
    schemas = {node.name: _schema_with(nodes, node.name) for node in nodes}
    for index in range(int(random.choice([1, 1, 2]))):
        name, schema = f"w{index}", schemas[last]
        key = tuple(n for n in schema.types if n.strip("_").split("_")[-1] in ("k", "s") and random.random() < 0.6)
        names = f"wstart{index}", f"wend{index}"
        if random.random() < 0.5:
            gap = max(1, int(span // random.choice([2, 20, 200])))
            end = "end" if random.random() < 0.5 else "last"
            node: Node = Sessions(name, last, key, gap, *names, end)  # type: ignore[arg-type]
        else:
            size, slide = (int(v) for v in random.integers(1, max(2, span // 2), 2))
            slide = (size, slide, -(-size // int(random.integers(2, 5))))[int(random.integers(0, 3))]
            slide = max(slide, size // 5)
            windows = WHOLE if random.random() < 0.1 else TimeWindows(size, slide, int(random.choice([0, 3])))
            columns = [n for n, kind in schema.columns if kind in ("int64", "string", "double")]
            drawn = [str(column) for column in random.permutation(columns)[:2]]
            by = tuple(OrderKey(column, *(bool(random.random() < 0.5) for _ in range(2))) for column in drawn)
            most, time = int(random.choice([1, 2, 5, 1000])), str(random.choice(["last", "start", "end"]))
            edges = names if random.random() < 0.7 or time != "last" else ("", "")
            node = Ranked(name, last, key, by, most, windows, f"rank{index}", *edges, time)  # type: ignore[arg-type]
        nodes.append(node)
        schemas[name], last = _schema_with(nodes, name), name
    if random.random() < 0.3:
        nodes.append(Filter("hw", last, draw_condition(random, schemas[last])))
        last = "hw"
    return _reaching(nodes, last)


def _draw_group_windows(random: np.random.Generator, plan: LogicalPlan, span: int) -> LogicalPlan:
    """With windows of tuples or aligned to data over the rows of the result, or of a source alone; mostly with an aggregate of
    each, now and then with one by windows of time."""
    nodes, last = _begun(random, plan, 0.6)
    schema = _schema_with(nodes, last)
    key = tuple(n for n in schema.types if n.strip("_").split("_")[-1] in ("k", "s") and random.random() < 0.6)
    if random.random() < 0.6:
        size, slide = int(random.choice([1, 2, 3, 7])), int(random.choice([1, 2, 3, 5]))
        node: Node = TupleWindows("r", last, key, size, slide, bool(random.random() < 0.4), "rstart", "rend", "window", "row")
        window, order = ("rend", "window"), "row"
    else:
        size = max(1, int(span // random.choice([2, 5, 20])))
        slide = max(1, size // 4, int(size * random.choice([0.3, 1, 1.5])))
        end = "end" if random.random() < 0.5 else "start"
        node = AlignedWindows("r", last, key, size, slide, "rstart", "rend", end)  # type: ignore[arg-type]
        window, order = ("rstart", "rend"), next((n for n in schema.types if n.strip("_").split("_")[-1] == "v"), "")
    nodes.append(node)
    last = "r"
    if random.random() < 0.6:
        drawn = [_draw_rows_call(random, f"c{i}", schema) for i in range(2)]
        calls = (AggregateCall("n", "count"), *drawn)
        windows, names = TimeWindows(1, 1), ("astart", "aend")
        nodes.append(Aggregate("a", last, (*key, *window), windows, calls, *names, order=order))
        last = "a"
    if random.random() < 0.2:
        size = max(1, span // 3)
        nodes.append(Aggregate("b", last, (), TimeWindows(size, size), (AggregateCall("m", "count"),), "bstart", "bend"))
        last = "b"
    return _reaching(nodes, last)


def _draw_lookups(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """With one or two lookups in static tables: of the rows of the result, or of those of a node on the way to it."""
    nodes = list(plan.nodes)
    for index in range(int(random.choice([1, 1, 2]))):
        name, table = f"l{index}", f"t{index}"
        here = [node for node in nodes if isinstance(node, Source | Filter | IntervalJoin | Aggregate) and node.name[0] != "t"]
        below = here[int(random.integers(len(here)))].name if random.random() < 0.5 else _last(nodes)
        types = LogicalPlan(tuple(nodes)).schema(below).types
        keys = [n for n, kind in types.items() if kind in ("int64", "string", "uint32")]
        keys = [n for n in keys if n.strip("_").split("_")[-1] == "k"] or keys
        if not keys:
            continue
        mine = str(random.choice(keys))
        columns = Column(f"k{index}x", types[mine]), Column(f"v{index}x", "int64")
        # the nodes above have columns of their own, which stay as they are
        how = str(random.choice(["inner", "left", "semi", "anti"] if below == _last(nodes) else ["semi", "anti"]))
        numbers = [n for n, kind in types.items() if kind == "int64"]
        where = f'"{random.choice(numbers)}" < "v{index}x"' if numbers and random.random() < 0.4 else None
        lookup = Lookup(name, below, table, ((f'"{mine}"', f'"k{index}x"'),), how, where)  # type: ignore[arg-type]
        nodes = [Source(table, columns, None), *(_reading(node, below, name) for node in nodes), lookup]
    return LogicalPlan(tuple(nodes))


def _draw_places(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """With some of the least and greatest values replaced by the second or third ones."""
    nodes: list[Node] = []
    for node in plan.nodes:
        if isinstance(node, Aggregate) and not node.running:
            drawn = [int(place) for place in random.integers(1, 4, len(node.calls))]
            placed = [call.function in PLACED and not call.distinct for call in node.calls]
            calls = (replace(c, place=p) if ok else c for c, p, ok in zip(node.calls, drawn, placed, strict=True))
            node = replace(node, calls=tuple(calls))
        nodes.append(node)
    return LogicalPlan(tuple(nodes))


def _draw_functions(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """With one or two functions of batches: of the rows of a node on the way, whose columns stay, or at the end."""
    nodes = list(plan.nodes)
    for index in range(int(random.choice([1, 1, 2]))):
        name = f"m{index}"
        schemas = LogicalPlan(tuple(nodes)).schema
        here = [node.name for node in nodes if not isinstance(node, Result) and schemas(node.name).time is not None]
        below = here[int(random.integers(len(here)))] if random.random() < 0.7 else _last(nodes)
        columns, function = tuple((c.name, c.type) for c in schemas(below).columns), "merged_values"
        if below == _last(nodes) and random.random() < 0.5 and "nulls" not in dict(columns):
            function = "counted_nulls"
            columns = (*((n, kind) for n, kind in columns if not kind.startswith("timestamp")), ("nulls", "int64"))
        node = MapBatches(name, below, f"{_FUNCTIONS}:{function}", columns)
        nodes = [*(_reading(node, below, name) for node in nodes), node]
    return LogicalPlan(tuple(nodes))


def _draw_spread(random: np.random.Generator, plan: LogicalPlan, span: int, *, of_units: bool = False) -> LogicalPlan:
    """With a join of its rows, or of a source's, and of a source's rows, by a band, or where one of the first ones' columns is
    one of two of the others, or with places: on the cells of a matrix, or at units that store one stream each, of_units; there
    with or without an equality."""
    nodes: list[Node] = [node for node in plan.ordered if not isinstance(node, Result)]
    source = next(node for node in nodes if isinstance(node, Source) and node.time is not None)
    other, last = source.name, source.name if random.random() < 0.5 else _last(plan.nodes)
    how = "inner" if of_units else str(random.choice(["inner", "inner", "left", "semi", "anti"]))
    one_place, lines = how != "inner", (int(random.integers(1, 5)), int(random.integers(1, 5)))
    lines = (lines[0], 1) if one_place else lines
    low, high = sorted(random.integers(-span // 20, span // 20 + 1, 2).tolist())
    random.choice([1, 3, 60])  # as seeds have always drawn
    numbers = [name for name, kind in plan.schema(last).columns if kind == "int64"]
    band = None
    if numbers and source.columns[0].type == "int64" and not of_units and random.random() < 0.6:
        left, key = last, str(random.choice(numbers))
        if random.random() < 0.5:
            nodes.append(Copies("at right", other, "cell", "v", "k"))
        else:
            band = _draw_band(random)
            nodes = _banded(nodes, (last, key), other, band)
            left, key = "at left", "place"
    else:
        left, key = "left rows", "place"
        for name, below, column in (("left rows", last, "place"), ("at right", other, "cell")):
            names = [c.name for c in _schema_with(nodes, below).columns]
            shown = tuple((name, f'"{name}"') for name in names)
            nodes.append(Project(name, below, (*shown, (column, one_key(names[0])))))
    query = QueryConfig(low, high, how=how)  # type: ignore[arg-type]
    time = str(random.choice(_OUTPUT_TIMES))
    sides = (left, (key,)), ("at right", ("cell",))
    if band is not None and band.wide == LEFT:
        sides, query = (sides[1], sides[0]), replace(query, how="inner")
    if left == "left rows" or random.random() < 0.4:
        if left == "left rows" and numbers and source.columns[0].type == "int64" and random.random() < 0.5:
            sides = (left, (str(random.choice(numbers)),)), ("at right", ("v",))
        form: Literal["matrix", "random"] = "random" if of_units or (how == "inner" and random.random() < 0.5) else "matrix"
        subgroups = tuple(int(random.integers(1, n + 1)) if form == "random" else 1 for n in lines)
        for port, ((name, _), to) in enumerate(zip(sides, ("placed left", "placed right"), strict=True)):
            nodes.append(Spread(to, name, port, one_place, lines, form, subgroups))  # type: ignore[arg-type]
        sides = ("placed left", sides[0][1]), ("placed right", sides[1][1])
    (one, of_one), (two, of_two) = sides
    nodes.append(IntervalJoin("meeting", one, two, of_one, of_two, query, time, band))  # type: ignore[arg-type]
    schema = _schema_with(nodes, "meeting")
    hidden = ("cell", "place")
    nodes.append(Project("met", "meeting", tuple((c.name, f'"{c.name}"') for c in schema.columns if c.name not in hidden)))
    return _reaching(nodes, "met")


def _fitted(plan: LogicalPlan, groups: int) -> LogicalPlan:
    """With units and cells in partition-groups of their own, of those of the run; with one cell if there are too few."""

    def fits(node: Node) -> Node:
        if not isinstance(node, Spread):
            return node
        if node.form == "matrix" or groups == 1:
            rows = min(node.lines[0], groups)
            return replace(node, form="matrix", lines=(rows, min(node.lines[1], groups // rows)), subgroups=(1, 1))
        left = min(node.lines[0], groups - 1)
        lines = left, min(node.lines[1], groups - left)
        subgroups = min(node.subgroups[0], lines[0]), min(node.subgroups[1], lines[1])
        return replace(node, lines=lines, subgroups=subgroups)

    return LogicalPlan(tuple(map(fits, plan.nodes)))


def _draw_windows(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """With one to five further queries of the plan, with other windows in one of its joins; some share the widest."""
    joins = [node for node in plan.nodes if isinstance(node, IntervalJoin) and can_share_windows(node)]
    if not joins:
        return plan
    join, plans = joins[int(random.integers(len(joins)))], {"out": plan}
    low, high = join.semantics.bounds.lower_us, join.semantics.bounds.upper_us
    for number in range(int(random.integers(1, 6))):
        bounds = sorted(random.integers(low - (high - low) // 3, high + (high - low) // 3 + 1, 2).tolist())
        if random.random() < 0.5:
            middle = int(random.integers(low, high + 1))
            bounds = [int(random.integers(low, middle + 1)), int(random.integers(middle, high + 1))]
        other = replace(join, query=replace(join.semantics, lower_us=bounds[0], upper_us=bounds[1], exclusive=()))
        plans[f"w{number}"] = LogicalPlan(tuple(other if node == join else node for node in plan.nodes))
    return shared(plans)


def _draw_queries(random: np.random.Generator, plan: LogicalPlan) -> LogicalPlan:
    """With one to four more queries, each of a node on the way, and of some of its rows and columns; often with some that
    differ in the windows of a join."""
    if random.random() < 0.6:
        plan = _draw_windows(random, plan)
    nodes = [node for node in plan.nodes if not isinstance(node, Result)]
    results = [replace(node, named=True) for node in plan.nodes if isinstance(node, Result)]
    streams = [node for node in plan.nodes if not isinstance(node, Result | Spread) and plan.schema(node.name).time is not None]
    of_stages = {stage.node for stage in cut(plan, "operator").stages} | set(cut(plan).sources)
    streams = [node for node in streams if node in of_stages]
    for number in range(int(random.integers(1, 5))):
        below = streams[int(random.integers(len(streams)))].name
        if random.random() < 0.5:
            nodes.append(Filter(f"of {number}", below, draw_condition(random, plan.schema(below))))
            below = f"of {number}"
        if random.random() < 0.5:
            nodes.append(_draw_projection(random, f"shown {number}", below, _schema_with(nodes, below)))
            below = f"shown {number}"
        results.append(Result(f"q{number}", below, bool(random.random() < 0.5), named=True))
    return LogicalPlan((*nodes, *results))


def _draw_band(random: np.random.Generator) -> BandKeys:
    """Of few values, in cells that are not much wider."""
    width = int(random.integers(0, 6))
    bits = (2 * width + 1).bit_length() + int(random.integers(0, 3))
    return BandKeys(width, bits, int(random.integers(0, 2)), exact=True)


def _banded(nodes: Sequence[Node], of_values: tuple[str, str], other: str, band: BandKeys) -> list[Node]:
    """With nodes that make the keys of a band: of a node's column, and of the column v of another node, with copies."""
    made: list[Node] = []
    last, column = of_values
    ends = ("first", band_key("v", 0, 0)), ("second", band_key("v", band.width, 1))
    for below, name, more in ((last, "at left", (("place", band_key(column, 0, 0)),)), (other, "ends", ends)):
        shown = tuple((c.name, f'"{c.name}"') for c in _schema_with(nodes, below).columns)
        made.append(Project(name, below, (*shown, *more)))
    return [*nodes, *made, Copies("at right", "ends", "cell", "first", "second", band.cell_bits)]


def _last(nodes: Sequence[Node]) -> str:
    return next(node.input for node in nodes if isinstance(node, Result))


def _reading(node: Node, old: str, new: str) -> Node:
    """The node, which reads another one instead."""
    if isinstance(node, Union):
        return replace(node, inputs=tuple(new if name == old else name for name in node.inputs))
    fields = [field for field in ("input", "left", "right", "table") if getattr(node, field, None) == old]
    return replace(node, **dict.fromkeys(fields, new))  # type: ignore[arg-type]


def _draw_projection(random: np.random.Generator, name: str, left: str, schema: Schema) -> Project:
    """The columns of a node in some order, some of them computed; now and then one is left out that joins do not need."""
    order = random.permutation(len(schema.columns)).tolist()
    columns = [schema.columns[i] for i in order]
    kept = [c for c in columns if c.name.strip("_").split("_")[-1] != "v" or random.random() < 0.7]
    return Project(name, left, tuple((column.name, draw_value(random, column)) for column in kept))


def _schema_with(nodes: Sequence[Node], name: str) -> Schema:
    read = {input_name for node in nodes for input_name in node.inputs}
    results = [Result(f"r_{node.name}", node.name) for node in nodes if node.name not in read]
    return LogicalPlan((*nodes, *results)).schema(name)


def _draw_join(
    random: np.random.Generator, name: str, left: str, right: str, span: int, schemas: dict[str, Schema]
) -> IntervalJoin:
    wanted = ["k"] if random.random() < 0.7 else [["s"], ["k", "s"]][int(random.integers(0, 2))]
    keys = [tuple(_named(random, schemas[side], letter) for letter in wanted) for side in (left, right)]
    low, high = sorted(random.integers(-span // 4, span // 4 + 1, 2).tolist())
    if random.random() < 0.3:
        low = high = 0
    how = str(random.choice(list(JOIN_KINDS) if random.random() < 0.6 else ["inner"]))
    time = str(random.choice(_OUTPUT_TIMES))
    query = QueryConfig(low, high, how=how, match=_match_of(low, high, how))  # type: ignore[arg-type]
    return IntervalJoin(name, left, right, *keys, query, time)  # type: ignore[arg-type, call-arg]


def _match_of(low: int, high: int, how: str) -> str:
    """Some joins are as-of joins. Drawn from their bounds, so that seeds go on drawing what they have always drawn."""
    match = ("last", "first", "nearest")[(low + high) % 3]
    fits = match == "nearest" or (low <= 0 if match == "last" else high >= 0)
    return match if how in ("inner", "left") and (high - low) % 4 == 1 and fits else "all"


def _named(random: np.random.Generator, schema: Schema, letter: str) -> str:
    """A column of this name, which joins may have prefixed."""
    return str(random.choice([name for name in schema.types if name.strip("_").split("_")[-1] == letter]))


def _draw_config(random: np.random.Generator, span: int, bound: int, plan: LogicalPlan) -> RunConfig:
    realtime = random.random() < 0.3
    epoch = int(random.choice([max(1, span // 50), span // 5, 3 * span]))
    by_count = not realtime and random.random() < 0.5
    block_tuples = int(random.choice([1, 2, 8, 64]))
    plain: dict[str, Any] = {
        "join": {"lower_us": 0, "upper_us": 0},
        "pace": "realtime" if realtime else "asap",
        "time": {"max_out_of_order_us": bound, "late": "drop"},
        "cluster": {
            "partition_count": int(random.choice([1, 2, 7, 60])),
            "distribution_epoch_us": 0 if by_count else max(LEAST_EPOCH_US if realtime else 1, epoch),
            "epoch_tuples": int(random.choice([1, 20, 100, 10_000])),
        },
        "module": {
            "block_bytes": 64 * block_tuples,
            "theta_bytes": 64 * block_tuples * int(random.choice([0, 1, 5, 1000])),
            "result_buffer_bytes": int(random.choice([4096, 1 << 16])),
            "stream_buffer_bytes": 1 << 20,
            "window_bytes": 8 << 20,
        },
        "sink": {"kind": str(random.choice(["parquet", "count"]))},
    }
    return config_from_plain(plain)


def _draw_rows(
    random: np.random.Generator, plan: LogicalPlan, span: int, bound: int, most: int, domain: int
) -> tuple[dict[str, list[Row]], dict[str, list[bool]]]:
    rows: dict[str, list[Row]] = {}
    valid: dict[str, list[bool]] = {}
    for node in plan.nodes:
        if not isinstance(node, Source):
            continue
        n = int(random.integers(0, most + 1)) if random.random() < 0.9 else 0
        base = np.sort(random.integers(0, span, n))
        if random.random() < 0.3:  # the stream ends early, or starts late
            base = base // 2 + int(random.choice([0, span // 2]))
        ts = base - (random.integers(0, bound + 1, n) if bound else 0)
        late = random.random(n) < random.choice([0, 0.05])
        ts = np.where(late, ts - span // 3, ts)
        valid[node.name] = (random.random(n) >= random.choice([0, 0, 0.05])).tolist()
        null_key = random.random(n) < random.choice([0, 0.1])
        keys = random.integers(0, domain, n)
        text = node.columns[0].type == "string"
        found = []
        for i in range(n):
            key: Any = None if null_key[i] else f"key {keys[i]}" if text else int(keys[i])
            if node.time is None:
                found.append(Row(i, 0, (key, int(ts[i]))))
                continue
            found.append(Row(i, int(ts[i]), (key, f"s{int(keys[i]) % 3}", i, int(ts[i]))))
        rows[node.name] = found
    return rows, valid


def source_batch(node: Source, rows: Sequence[Row], valid: Sequence[bool], names: Sequence[str]) -> SourceBatch:
    """Rows of a source, with the columns of these names."""
    n, ts = len(rows), np.array([row.ts for row in rows], np.int64)
    at = {column.name: i for i, column in enumerate(node.columns)}
    types = dict(node.columns)
    arrays = {name: pa.array([row.values[at[name]] for row in rows], storage(type_named(types[name]))) for name in names}
    columns = Columns(pa.record_batch(arrays)) if names else None
    ids = np.array([row.id for row in rows], np.uint64)
    mask = None if all(valid) else np.array(valid, np.bool_)
    return SourceBatch(np.zeros(n, np.int64), ts, ids, None, mask, None, columns)


def _sliced(batch: SourceBatch, start: int, stop: int) -> SourceBatch:
    columns = None if batch.columns is None else batch.columns.slice(start, min(stop, len(batch)))
    valid = None if batch.ts_valid is None else batch.ts_valid[start:stop]
    return SourceBatch(batch.key[start:stop], batch.ts[start:stop], batch.id[start:stop], None, valid, None, columns)


def decoded(columns: ResultColumns, batches: Sequence[Pairs | ResultRows]) -> Counter[tuple[Any, ...]]:
    """The rows of a result, times as microseconds."""
    output = replace(columns, ids=False)
    found: Counter[tuple[Any, ...]] = Counter()
    for pairs in batches:
        arrays = [a.cast(pa.int64()) if pa.types.is_timestamp(a.type) else a for a in output.decode(pairs).columns]
        found.update(zip(*(array.to_pylist() for array in arrays), strict=True))
    return found


def run_plan(seed: int, *, calm: bool = False, queries: bool = False, multiway: bool = False) -> PlanScenario:
    """Simulate one scenario. SimulationError, SwjoinError or AssertionError when the run or its answer is wrong."""
    scenario = PlanScenario.draw(seed, calm=calm, queries=queries, multiway=multiway)
    simulate(scenario, scenario.evaluated()["out"])
    return scenario


def simulate(scenario: PlanScenario, expected: Sequence[Row], kind: type[PlanSimulation] = PlanSimulation) -> None:
    """Run a scenario in the simulator, whose rows must be the expected ones."""
    with parts_of(scenario.part_rows), tempfile.TemporaryDirectory() as folder:
        where = Path(folder) if scenario.config.checkpoint.enabled else None
        run = scenario.plan, scenario.config, scenario.sources(), scenario.width, scenario.seed
        simulation = kind(*run, where, scenario.crashes, scenario.tables)
        simulation.freeze(scenario.freezes)
        if scenario.seed // 4 % 4 == 3:  # whatever part_rows is
            simulation.block_sends()
        result = simulation.run()
    shed = scenario.config.on_overload.policy == "shed"
    if simulation.instances.query_count:
        check_queries(simulation.instances, result, scenario.without_shed(result) if shed else scenario.evaluated())
        return
    if shed:
        expected = scenario.without_shed(result)["out"]
    check_answer(scenario, simulation.instances, result, expected)


@contextmanager
def parts_of(rows: int | None) -> Iterator[None]:
    """Parts between stages have about so many rows at most, and several of them are joined at once; filters are searched
    together, however few they are."""
    if rows is None:
        yield
        return
    with (
        patch.object(exchange, "PART_ROWS", rows),
        patch.object(exchange, "_FEWEST_FILTERS", 1),
        patch.object(merger, "READY_ROWS", rows),
        patch.object(merger, "MERGED_ROWS", 3 * rows),
    ):
        yield


def check_answer(scenario: PlanScenario, instances: Instances, result: SimulationResult, expected: Sequence[Row]) -> None:
    """SimulationError unless count, digest and rows are the expected ones."""
    answer = Answer.of(expected)
    if (result.count, result.digest) != (answer.row_count, format_digest(answer.digest)):
        raise SimulationError(f"{result.count} rows, digest {result.digest}; the oracle has {answer.row_count}")
    if scenario.config.sink.kind != "count":
        columns = plan_output(instances)
        assert not isinstance(columns, QueryColumns)
        assert replace(columns, ids=False).schema.names == list(instances.logical.schema("out").types)
        rows = decoded(columns, result.pairs)
        if rows != Counter(row.values for row in expected):
            raise SimulationError(f"count and digest are right, rows are not: {(rows - Counter(r.values for r in expected))}")


def check_queries(instances: Instances, result: SimulationResult, expected: Mapping[str, Sequence[Row]]) -> None:
    """SimulationError unless count, digest and rows of every query are the expected ones, those of its result."""
    columns = plan_output(instances)
    assert isinstance(columns, QueryColumns)
    for number, (node, (name, of)) in enumerate(zip(instances.stages.results, columns.queries, strict=True)):
        rows = expected[name]
        digest = sum(row_hash(list(map(words_of, row.values))) if node.of_values else row.id for row in rows) % 2**64
        found = result.queries.sums[number]
        if (found["count"], found["digest"]) != (len(rows), format_digest(digest)):
            raise SimulationError(f"query {name}: {found}; the oracle has {len(rows)} rows, digest {format_digest(digest)}")
        if instances.config.sink.kind != "count":
            mine = [batch for batch, query in zip(result.pairs, result.queries.batches, strict=True) if query == number]
            if decoded(of, mine) != Counter(row.values for row in rows):
                raise SimulationError(f"query {name}: count and digest are right, rows are not")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 only if every run was right."""
    parser = argparse.ArgumentParser(description="random plans in the simulator, against the oracle")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--multiway", action="store_true", help="joins in a row that are one stage")
    args = parser.parse_args(argv)
    failures = 0
    for seed in range(args.seed, args.seed + args.count):
        try:
            run_plan(seed, multiway=args.multiway)
        except (SimulationError, SwjoinError, AssertionError) as error:
            failures += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{args.count} plans, {failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())

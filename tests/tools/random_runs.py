"""Random runs against the oracle: in the simulator by the thousand, on real MPI ranks by the dozen.

What: `Scenario.draw(seed)`, `run_simulated(seed)`, `run_real(seed)`, and `python -m tests.tools.random_runs [--simulated] N
[--seed S]`.
Why: the cases known to break such engines (SPEC section 7) meet random epochs, block sizes, slaves and delays; a failing run
prints its seed and `--seed` replays it.
Stays out: the simulator's mechanics (`runtime.simulator.simulator`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cli.parser import Parser
from swjoin.config.loader import config_from_plain
from swjoin.config.run import MeasureConfig, RunConfig, to_plain
from swjoin.connectors.generator.bmodel import payload_bytes
from swjoin.core.batch import STREAM_NAMES, U64, Pairs, PayloadRows, RowLayout, SourceBatch, TupleBatch
from swjoin.core.errors import SwjoinError
from swjoin.core.join_semantics import JOIN_KINDS, format_digest, pair_digest
from swjoin.runtime.simulator.attempts import NO_FREEZES, Freezes
from swjoin.runtime.simulator.result import SimulationError, SimulationResult
from swjoin.runtime.simulator.simulator import Simulation
from tests.tools.oracle import answer, brute_force
from tests.tools.random_freezes import draw_freezes
from tests.tools.random_kills import KINDS, run_with_faults

# payload of a stream: fixed bytes alone, tails of variable length beside them, or tails alone
_LAYOUTS = [RowLayout(8), RowLayout(8, True), RowLayout(0, True)]
_LONGEST_TAIL = 300


@dataclass(frozen=True)
class Scenario:
    """Two streams as rows (key, ts, null masks) and how they are joined. crashes, freezes: as
    `simulator.Simulation` takes them."""

    seed: int
    config: RunConfig
    slave_count: int
    rows: tuple[SourceBatch, SourceBatch]
    crashes: tuple[tuple[int, int], ...] = ()
    freezes: Freezes = NO_FREEZES

    @staticmethod
    def draw(seed: int) -> Scenario:
        """A scenario from a seed."""
        scenario = Scenario._draw_calm(seed)
        freezes = draw_freezes(np.random.default_rng([seed, 12]), scenario.config, (20, 100, 400))
        return replace(scenario, freezes=freezes)

    @staticmethod
    def draw_as_of(seed: int) -> Scenario:
        """Of an as-of join. What else is drawn is as in `draw`, but for what as-of joins cannot have."""
        scenario = Scenario.draw(seed)
        random, config = np.random.default_rng([seed, 13]), scenario.config
        lower, upper = config.query.lower_us, config.query.upper_us
        if config.query.last is not None:
            lower, upper = -int(random.choice([5, 1000])), int(random.choice([5, 1000]))
        match, how = str(random.choice(["last", "first", "nearest"])), str(random.choice(["inner", "left"]))
        if (match == "last" and lower >= 0) or (match == "first" and upper <= 0):
            lower, upper = -upper - 1, -lower + 1
        query = replace(config.query, lower_us=lower, upper_us=upper, exclusive=(), last=None, how=how, match=match)  # type: ignore[arg-type]
        overload = config.on_overload
        overload = replace(overload, policy="block") if overload.policy == "shed" else overload
        config = replace(config, queries=(query,), on_overload=overload, measure=MeasureConfig())
        return replace(scenario, config=config)

    @staticmethod
    def _draw_calm(seed: int) -> Scenario:
        """Without roles that freeze."""
        random = np.random.default_rng(seed)
        span = int(random.choice([50, 1_000, 100_000]))
        bound = int(random.choice([0, 0, span // 20, span // 3]))
        late = str(random.choice(["drop", "side"]))
        base = int(random.choice([0, -span // 2, 10**15, -(10**12)]))
        scale = int(random.choice([1, 1 << 40]))  # both streams' keys are multiples of it
        rows = tuple(_draw_stream(random, span, base, bound, scale) for _ in range(2))
        lower, upper = _draw_bounds(random, span)
        exclusive = [name for name in ("lower", "upper") if random.random() < 0.15]
        realtime = random.random() < 0.3
        block_tuples = int(random.choice([1, 2, 3, 8, 64]))
        theta_blocks = int(random.choice([0, 1, 2, 5, 1000]))
        epoch = (
            int(random.choice([max(1, span // 50), span // 5, 3 * span]))
            if realtime
            else int(random.choice([0, 1 + span // 100, span // 7, 10 * span]))
        )
        plain: dict[str, Any] = {
            "join": {"lower_us": lower, "upper_us": upper, "exclusive": exclusive},
            "seed": seed,
            "pace": "realtime" if realtime else "asap",
            "time": {"model": "event", "max_out_of_order_us": bound, "late": late},
            "cluster": {
                "partition_count": int(random.choice([1, 2, 7, 60])),
                "distribution_epoch_us": max(1, epoch) if realtime else epoch,
                "epoch_tuples": int(random.choice([1, 20, 100, 10_000])),
                "communication": str(random.choice(["overlapped", "synchronous"])),
            },
            "module": {
                "block_bytes": 64 * block_tuples,
                "theta_bytes": 64 * block_tuples * theta_blocks,
                "result_buffer_bytes": 4096,
                "stream_buffer_bytes": int(random.choice([1 << 10, 1 << 20])),
                "window_bytes": 1 << 20,
            },
            "sink": {"kind": str(random.choice(["parquet", "count"]))},
        }
        slave_count = int(random.integers(1, 7))
        random_history = np.random.default_rng([seed, 2])  # of its own: what is drawn below stays as it was
        if plain["cluster"]["distribution_epoch_us"] > 0:
            _draw_adaptation(random, plain, slave_count, span)
        if realtime and not bound and random_history.random() < 0.5:
            epoch = plain["cluster"]["distribution_epoch_us"]
            plain["measure"] = {"prefill_us": epoch * int(np.ceil(span * random_history.choice([0.1, 0.5, 0.5, 2.0]) / epoch))}
        if realtime and not bound:
            _draw_overload(np.random.default_rng([seed, 4]), plain)
        random_silence = np.random.default_rng([seed, 5])
        if late == "side" and random_silence.random() < 0.4:
            plain["time"]["idle_timeout_us"] = int(random_silence.choice([500, 20_000]))
        random_crashes = np.random.default_rng([seed, 3])
        crashes: list[tuple[int, int]] = []
        if "measure" not in plain and random_crashes.random() < 0.5:
            plain["checkpoint"] = {"epochs": int(random_crashes.choice([1, 2, 5]))}
            for _ in range(int(random_crashes.integers(0, 4))):
                step = int(random_crashes.geometric(1 / random_crashes.choice([20, 100, 400])))
                crashes.append((step, int(random_crashes.integers(0, 7))))
        sinks = int(np.random.default_rng([seed, 10]).choice([1, 1, 2, 3]))
        gateways = int(np.random.default_rng([seed, 11]).choice([1, 1, 2, 3, 4]))
        random_moving = np.random.default_rng([seed, 9])
        if random_moving.random() < 0.15:
            return _draw_moving(random_moving, seed, tuple(crashes), (gateways, sinks))
        random_kind = np.random.default_rng([seed, 6])
        if "measure" not in plain and random_kind.random() < 0.5:
            plain["join"]["how"] = str(random_kind.choice(list(JOIN_KINDS)))
        random_last = np.random.default_rng([seed, 7])
        if "measure" not in plain and random_last.random() < 0.25:
            last = random_last.choice([1, 2, 5, 20, 100, 1000], 2).tolist()
            plain["join"] = {"last": last, "how": plain["join"].get("how", "inner")}
        config = _with_roles(config_from_plain(plain), (gateways, sinks))
        return Scenario(seed, config, slave_count, (rows[0], rows[1]), tuple(crashes))

    def good_tuples(self, side: int, aside: Collection[int] = ()) -> TupleBatch:
        """Rows that take part, by the definition of late rows, row after row. aside: ids of those that the run left out."""
        rows, bound = self.rows[side], self.config.time.max_out_of_order_us
        keep = []
        high: int | None = None
        for i in range(len(rows)):
            has_key = rows.key_valid is None or bool(rows.key_valid[i])
            has_ts = rows.ts_valid is None or bool(rows.ts_valid[i])
            ts = int(rows.ts[i])
            if has_ts and has_key and (high is None or ts >= high - bound) and int(rows.id[i]) not in aside:
                keep.append(i)
            if has_ts:
                high = ts if high is None else max(high, ts)
        index = np.array(keep, np.int64)
        return TupleBatch(rows.key[index], rows.ts[index], rows.id[index], rows.ts[index])

    def history_end_us(self) -> int:
        """Time before which pairs of two tuples belong to prefill."""
        times = [rows.ts if rows.ts_valid is None else rows.ts[rows.ts_valid] for rows in self.rows]
        return min((int(t.min()) for t in times if len(t)), default=0) + self.config.measure.prefill_us

    def expected(
        self,
        aside: tuple[Collection[int], Collection[int]] = ((), ()),
        shed: tuple[Collection[int], Collection[int]] = ((), ()),
        *,
        history: bool = False,
    ) -> tuple[Counter[tuple[int, int]], str]:
        """The oracle's measured pairs (left id, right id), or those of prefill, and their digest. shed: the shed of `aside`."""
        left, right = self.good_tuples(0, aside[0]), self.good_tuples(1, aside[1])
        query = self.config.query
        if query.how != "inner" or query.last is not None or query.match != "all":  # never with history
            nobody = np.empty(0, np.uint64)
            ids = nobody, nobody
            if not history:
                left, right = (self.good_tuples(side, set(aside[side]) - set(shed[side])) for side in range(2))
                gone = tuple(np.array(sorted(ids), np.uint64) for ids in shed)
                ids = answer(left, right, query.bounds, query.how, self.null_keys, (gone[0], gone[1]), query.match)
            return Counter(zip(ids[0].tolist(), ids[1].tolist(), strict=True)), format_digest(pair_digest(*ids))
        i, j = brute_force(left, right, self.config.query.bounds)
        wanted = (np.maximum(left.ts[i], right.ts[j]) < self.history_end_us()) == history
        i, j = i[wanted], j[wanted]
        pairs = Counter(zip(left.id[i].tolist(), right.id[j].tolist(), strict=True))
        return pairs, format_digest(pair_digest(left.id[i], right.id[j]))

    @property
    def null_keys(self) -> tuple[U64, U64]:
        """Ids of the left and right rows with a null key that have a time."""
        left, right = (
            rows.id[
                (np.zeros(len(rows), bool) if rows.key_valid is None else ~rows.key_valid)
                & (np.ones(len(rows), bool) if rows.ts_valid is None or self.config.time.model == "arrival" else rows.ts_valid)
            ]
            for rows in self.rows
        )
        return left, right


def _draw_adaptation(random: np.random.Generator, plain: dict[str, Any], slave_count: int, span: int) -> None:
    """Sub-groups, and reorganization by any policy, with any thresholds; mostly many moves at random, at every moment."""
    cluster = plain["cluster"]
    if plain["pace"] == "realtime":  # messages take up to 0.1 s: many epochs meanwhile, but not many thousands
        cluster["distribution_epoch_us"] = max(cluster["distribution_epoch_us"], int(random.choice([300, 3_000, 30_000])))
    elif random.random() < 0.7:
        cluster["distribution_epoch_us"] = max(1, span // 40)
    cluster["sub_group_count"] = min(int(random.integers(1, slave_count + 1)), cluster["distribution_epoch_us"])
    if random.random() < 0.5:  # few partition-groups with many mini-partition-groups each
        cluster["partition_count"] = int(random.choice([2, 5, 15]))
        plain["module"]["theta_bytes"] = plain["module"]["block_bytes"] = 64 * int(random.choice([1, 2]))
    plain["module"]["stream_buffer_bytes"] = int(random.choice([64, 256, 1 << 10, 1 << 20]))  # full most of the time, or never
    low, high = np.sort(random.random(2))
    plain["reorganization"] = {
        "policy": str(random.choice(["none", "paper", "balanced", "random"], p=[0.15, 0.15, 0.1, 0.6])),
        "epoch_us": cluster["distribution_epoch_us"] * int(random.choice([1, 1, 2, 5])),
        "supplier_threshold": float(high + 1e-9) * 0.5,
        "consumer_threshold": float(low) * 0.5,
        "active_slaves": int(random.integers(0, slave_count + 1)),
        "confirmations": int(random.integers(1, 3)),
        "random_moves": int(random.choice([1, 3, 20])),
        "emptied_groups": int(random.choice([1, 5, 100])),
        "chunk_bytes": 1 << 10,
    }
    if plain["reorganization"]["policy"] != "none" and random.random() < 0.5:
        plain["reorganization"]["declustering"] = "adaptive"


def _with_roles(config: RunConfig, roles: tuple[int, int]) -> RunConfig:
    """The run with so many gateways and sinks; count windows have one gateway."""
    gateways, sinks = roles
    return config.with_sinks(sinks).with_gateways(1 if config.query.last is not None else gateways)


def _draw_moving(
    random: np.random.Generator, seed: int, crashes: tuple[tuple[int, int], ...], roles: tuple[int, int]
) -> Scenario:
    """Windows much shorter than the streams, and moves in every reorganization epoch: partition-groups leave with payload
    freed in the middle of blocks, or right after they arrived."""
    span, n = 100_000, 200
    rows = []
    for _ in range(2):
        ts, key = np.sort(random.integers(0, span, n)), random.integers(0, int(random.choice([20, 1000])), n)
        rows.append(SourceBatch(key, ts, np.arange(n, dtype=np.uint64)))
    epoch_us = int(random.choice([1000, 2500, 5000]))
    w = int(random.choice([200, 1000, 5000]))
    slave_count = int(random.integers(2, 5))
    block_bytes = 64 * int(random.choice([2, 8, 64]))
    window: dict[str, Any] = {"lower_us": -w, "upper_us": w} if random.random() < 0.8 else {"last": [5, 20]}
    plain: dict[str, Any] = {
        "join": {**window, "how": str(random.choice(list(JOIN_KINDS)))},
        "seed": seed,
        "cluster": {
            "partition_count": int(random.choice([3, 7, 20])),
            "distribution_epoch_us": epoch_us,
            "sub_group_count": int(random.choice([1, 1, 2])),
            "communication": str(random.choice(["overlapped", "synchronous"])),
        },
        "module": {
            "block_bytes": block_bytes,
            "theta_bytes": block_bytes * int(random.choice([0, 0, 2])),
            "result_buffer_bytes": 4096,
            "stream_buffer_bytes": 1 << 20,
            "window_bytes": 1 << 20,
        },
        "reorganization": {
            "policy": "random",
            "epoch_us": epoch_us * int(random.choice([1, 1, 2])),
            "random_moves": int(random.choice([1, 3])),
            "chunk_bytes": int(random.choice([1 << 10, 1 << 16])),
        },
        "sink": {"kind": "parquet"},
    }
    if crashes:
        plain["checkpoint"] = {"epochs": int(random.choice([1, 5]))}
    return Scenario(seed, _with_roles(config_from_plain(plain), roles), slave_count, (rows[0], rows[1]), crashes)


def _draw_overload(random: np.random.Generator, plain: dict[str, Any]) -> None:
    """Small mini-buffers, and a policy for overload."""
    if random.random() < 0.7:
        plain["cluster"]["mini_buffer_bytes"] = 1 << 10
        plain["module"]["stream_buffer_bytes"] = 64
        plain["on_overload"] = {
            "policy": str(random.choice(["block", "shed", "spill"], p=[0.2, 0.4, 0.4])),
            "victims": str(random.choice(["oldest", "random", "least_matching"])),
        }


def _draw_bounds(random: np.random.Generator, span: int) -> tuple[int, int]:
    """Symmetric, asymmetric, both positive, both negative, a single point, wider than the stream."""
    w = max(1, int(span * random.choice([0.0, 0.05, 0.3, 3.0], p=[0.1, 0.3, 0.4, 0.2])))
    lower, upper = [(-w, w), (-w, 3 * w), (0, w), (w // 2, 2 * w), (-2 * w, -w // 2), (0, 0), (w, w)][
        random.choice(7, p=[0.3, 0.2, 0.15, 0.15, 0.1, 0.05, 0.05])
    ]
    return int(lower), int(upper)


def _draw_stream(random: np.random.Generator, span: int, base: int, bound: int, scale: int) -> SourceBatch:
    """Empty, silent, late or bursty streams; skewed, single or negative keys; nulls; disorder past the bound."""
    n = int(random.choice([0, 1, 40, 120, 200], p=[0.04, 0.06, 0.3, 0.3, 0.3]))
    shapes = [(0, span), (0, span // 10 + 1), (9 * span // 10, span), (span // 2, span // 2 + 1)]
    low, high = shapes[random.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
    ts = np.sort(random.integers(low, max(low + 1, high), n))
    if random.random() < 0.2:
        ts = ts // max(1, span // 5) * max(1, span // 5)  # many equal timestamps
    disorder = int(random.choice([0, bound, 3 * bound]))
    if disorder:
        ts = ts[np.argsort(ts + random.integers(0, disorder + 1, n), kind="stable")]
    keys = int(random.choice([1, 3, 20, 1000], p=[0.2, 0.3, 0.4, 0.1]))
    key = random.integers(-keys // 2, keys // 2 + 1, n) * scale
    if random.random() < 0.3:
        key[random.random(n) < 0.7] = 0  # a hot key
    key_valid = random.random(n) > 0.1 if random.random() < 0.4 else None
    ts_valid = random.random(n) > 0.1 if random.random() < 0.3 else None
    return SourceBatch(key.astype(np.int64), (ts + base).astype(np.int64), np.arange(n, dtype=np.uint64), key_valid, ts_valid)


def _draw_layouts(scenario: Scenario) -> tuple[RowLayout, RowLayout]:
    """Of both streams. A slave whose stream buffer is full with less than a tuple gets one at a time, after many empty
    deliveries in realtime pace: such runs have no tails, or they would take millions of steps."""
    config = scenario.config
    if config.pace == "realtime" and config.module.stream_buffer_bytes < 1 << 10:
        return _LAYOUTS[0], _LAYOUTS[0]
    left, right = np.random.default_rng([scenario.seed, 8]).choice(len(_LAYOUTS), 2, p=[0.3, 0.5, 0.2])
    return _LAYOUTS[left], _LAYOUTS[right]


def payload_of(ids: U64, stream: int, layout: RowLayout) -> PayloadRows:
    """Payload that is a function of stream and id; other tuples' payloads differ in bytes and length."""
    fixed = payload_bytes(ids, 1, stream, layout.fixed_bytes)
    if not layout.has_var:
        return PayloadRows(fixed)
    tails = payload_bytes(ids, 2, stream, _LONGEST_TAIL + 1)
    sizes = tails[:, 0].astype(np.int64) % 24
    sizes[sizes == 23] = _LONGEST_TAIL  # most are short, some empty, few long
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return PayloadRows(fixed, offsets, tails[:, 1:][np.arange(_LONGEST_TAIL) < sizes[:, None]])


def _same_rows(one: PayloadRows, two: PayloadRows) -> bool:
    if one.layout != two.layout or not np.array_equal(one.fixed, two.fixed):
        return False
    if one.var is None or two.var is None or one.var_offsets is None or two.var_offsets is None:
        return True
    return np.array_equal(one.var_offsets, two.var_offsets) and np.array_equal(one.var, two.var)


def _pieces(random: np.random.Generator, rows: SourceBatch, stream: int, layout: RowLayout | None) -> list[SourceBatch]:
    """The rows cut into batches of random sizes, with payload of this layout."""
    cuts = np.sort(random.integers(0, len(rows) + 1, int(random.integers(0, 6)))).tolist()
    out = []
    for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        packed = None if layout is None else payload_of(rows.id[a:b], stream, layout)
        masks = [None if m is None else m[a:b] for m in (rows.key_valid, rows.ts_valid)]
        out.append(SourceBatch(rows.key[a:b], rows.ts[a:b], rows.id[a:b], masks[0], masks[1], packed))
    return out


def ids_shed(result: SimulationResult) -> tuple[set[int], set[int]]:
    """Ids of the left and right tuples that a run has shed."""
    left, right = (
        {int(i) for side, rows, reason in result.set_aside if side == stream and reason == "shed" for i in rows.id}
        for stream in range(2)
    )
    return left, right


def ids_aside(result: SimulationResult) -> tuple[set[int], set[int]]:
    """Ids of the left and right rows that a run has set aside. SimulationError when its counts differ."""
    found: list[set[int]] = []
    for stream, name in enumerate(STREAM_NAMES):
        mine = [(int(i), reason == "shed") for side, rows, reason in result.set_aside if side == stream for i in rows.id]
        found.append({i for i, _ in mine})
        shed = sum(was_shed for _, was_shed in mine)
        if shed != result.counts["shed"][name]:
            raise SimulationError(f"{name}: {result.counts['shed'][name]} tuples counted as shed, {shed} set aside")
        if len(mine) != len(found[-1]):
            raise SimulationError(f"{name}: {len(mine)} rows set aside, {len(found[-1])} different ones")
    return found[0], found[1]


def run_simulated(seed: int) -> None:
    """Check one random simulated run. SimulationError when something is wrong."""
    run_scenario(Scenario.draw(seed))


def run_scenario(scenario: Scenario, kind: type[Simulation] = Simulation) -> SimulationResult:
    """Check every pair, payload and count of one simulated run. SimulationError when something is wrong."""
    seed = scenario.seed
    random = np.random.default_rng([seed, 1])
    payload = scenario.config.sink.kind != "count"
    layouts = _draw_layouts(scenario) if payload else (None, None)
    sources = (_pieces(random, scenario.rows[0], 0, layouts[0]), _pieces(random, scenario.rows[1], 1, layouts[1]))
    memory = Path("/dev/shm")  # syncing to a disk takes longer than all the rest
    with tempfile.TemporaryDirectory(prefix="swjoin-chaos-", dir=memory if memory.is_dir() else None) as folder:
        checkpoints = Path(folder) if scenario.config.checkpoint.enabled else None
        simulation = kind(scenario.config, sources, scenario.slave_count, seed, layouts, checkpoints, scenario.crashes)
        simulation.freeze(scenario.freezes)
        if seed % 4 == 3:
            simulation.block_sends()
        result = simulation.run()
    aside = ids_aside(result)
    expected, digest = scenario.expected(aside, ids_shed(result))
    if (result.count, result.digest) != (expected.total(), digest):
        raise SimulationError(
            f"{result.count} pairs with digest {result.digest}, the oracle has {expected.total()} with {digest}"
        )
    before, before_digest = scenario.expected(aside, history=True)
    if scenario.config.measure.prefill_us == 0:
        before, before_digest = Counter(), format_digest(0)
    if (result.prefill["count"], result.prefill["digest"]) != (before.total(), before_digest):
        raise SimulationError(f"history: {result.prefill}, the oracle has {before.total()} pairs with {before_digest}")
    if payload:
        found: Counter[tuple[int, int]] = Counter()
        for pairs in result.pairs:
            assert isinstance(pairs, Pairs), "a join of two streams has pairs"
            found.update(zip(pairs.left_id.tolist(), pairs.right_id.tolist(), strict=True))
            sides = ((pairs.left_id, pairs.left_rows), (pairs.right_id, pairs.right_rows))
            for stream, ((ids, rows), layout) in enumerate(zip(sides, layouts, strict=True)):
                if pairs.side == 1 - stream or layout is None:
                    continue  # the side that is missing
                if rows is None or not _same_rows(rows, payload_of(ids, stream, layout)):
                    raise SimulationError(f"{STREAM_NAMES[stream]}: a pair carries another tuple's payload")
        if found != expected:
            raise SimulationError(f"missing {list(expected - found)[:5]}, surplus {list(found - expected)[:5]}")
    late = 0
    for side, name in enumerate(STREAM_NAMES):
        good = len(scenario.good_tuples(side, aside[side]))
        if result.joined[name] != good:
            raise SimulationError(f"{name}: {result.joined[name]} tuples joined, {good} are good")
        late += result.counts["late"][name]
    late_aside = sum(len(rows) for _, rows, reason in result.set_aside if reason != "shed")
    if scenario.config.time.late == "side" and late_aside != late:
        raise SimulationError(f"{late} late rows counted, {late_aside} set aside")
    return result


def run_real(seed: int) -> None:
    """Check digest and ledger of one run on MPI ranks, from Parquet files. SimulationError when something is wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    scenario = Scenario.draw(seed)
    with tempfile.TemporaryDirectory(prefix="swjoin-chaos-") as folder:
        plain = to_plain(scenario.config)
        for side, name in enumerate(STREAM_NAMES):
            rows = scenario.rows[side]
            columns = [
                pa.array(values, mask=None if valid is None else ~valid)
                for values, valid in ((rows.key, rows.key_valid), (rows.ts, rows.ts_valid))
            ]
            pq.write_table(pa.table(columns, ["key", "ts"]), f"{folder}/{name}.parquet", row_group_size=50)
            plain[name] = {"path": f"{folder}/{name}.parquet", "time_unit": "us"}
        slave_count = min(5, scenario.slave_count)
        cluster, reorganization = plain["cluster"], plain["reorganization"]
        if plain["pace"] == "realtime" and cluster["distribution_epoch_us"] < 5_000:
            epochs = max(1, reorganization["epoch_us"] // cluster["distribution_epoch_us"])
            cluster["distribution_epoch_us"], reorganization["epoch_us"] = 5_000, 5_000 * epochs
        cluster["sub_group_count"] = min(cluster["sub_group_count"], slave_count)
        reorganization["active_slaves"] = min(reorganization["active_slaves"], slave_count)
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps(plain))  # JSON is YAML
        command = [sys.executable, "-m", "swjoin", "run", str(config), "-n", str(2 + slave_count), "--out", f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise SimulationError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        report = json.loads(Path(f"{folder}/run/run.json").read_text())
    expected, digest = scenario.expected()
    if (report["results"]["count"], report["results"]["digest"]) != (expected.total(), digest):
        raise SimulationError(f"{report['results']}, the oracle has {expected.total()} pairs with digest {digest}")
    if not report["ledger"]["balanced"]:
        raise SimulationError(f"ledger: {report['ledger']['complaints']}")


def run_killed(seed: int, kinds: tuple[str, ...], table: Path | None, rows: list[dict[str, Any]]) -> None:
    """Check one run on MPI ranks with a fault (`tests.tools.random_kills`). Observations are added to rows, and to the file
    `table` as a JSON line.
    """
    with tempfile.TemporaryDirectory(prefix="swjoin-chaos-") as folder:
        report = run_with_faults(seed, Path(folder), kinds)
    row = {"seed": seed, **report["faults"], "checkpoints": report.get("checkpoints")}
    rows.append(row)
    if table is not None:
        with table.open("a") as file:
            file.write(json.dumps(row) + "\n")


def recovery_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Durations of recoveries and their replayed tuples; durations until all ranks of a failed run had ended."""
    recoveries = [r for row in rows if row["checkpoints"] for r in row["checkpoints"]["recoveries"]]
    ended = [row["ended_s"] for row in rows if row["kind"].split(",")[0] == "master"]
    lines = []
    if recoveries:
        duration_s, tuples = ([r[name] for r in recoveries] for name in ("s", "tuples"))
        seconds = f"median {np.median(duration_s) * 1e3:.0f} ms, longest {max(duration_s) * 1e3:.0f} ms"
        lines.append(
            f"{len(duration_s)} recoveries: {seconds}; tuples replayed: median {np.median(tuples):.0f}, most {max(tuples)}"
        )
    if ended:
        lines.append(f"{len(ended)} deaths of the master: all ended within {min(ended):.2f} to {max(ended):.2f} s")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 only if every run was right."""
    parser = Parser(prog="run.sh chaos", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("count", metavar="N", type=int, help="number of runs")
    parser.add_argument("--simulated", action="store_true", help="in the simulator, in virtual time")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--kind", choices=KINDS, help="only such failures (real MPI ranks)")
    parser.add_argument("--calm", action="store_true", help="real MPI ranks, random workloads, no failures")
    parser.add_argument("--table", metavar="FILE", type=Path, help="write a row per run there (JSON lines)")
    args = parser.parse_args(argv)
    if args.count < 1 or args.seed < 0:
        parser.error("N must be at least 1, and --seed at least 0")
    rows: list[dict[str, Any]] = []
    kinds = (args.kind,) if args.kind else KINDS
    run = (
        run_simulated
        if args.simulated
        else run_real
        if args.calm
        else partial(run_killed, kinds=kinds, table=args.table, rows=rows)
    )
    how = "--simulated " if args.simulated else "--calm " if args.calm else f"--kind {args.kind} " if args.kind else ""
    start = time.monotonic()
    failed = []
    for seed in range(args.seed, args.seed + args.count):
        try:
            run(seed)
        except (SimulationError, SwjoinError, subprocess.TimeoutExpired) as error:
            failed.append(seed)
            print(f"seed {seed}: {error}\n  replay: chaos {how}1 --seed {seed}", flush=True)
    print("\n".join(recovery_lines(rows)), end="\n" if rows else "")
    kind = "simulated" if args.simulated else "real MPI"
    print(f"{args.count - len(failed)} of {args.count} {kind} runs right ({time.monotonic() - start:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

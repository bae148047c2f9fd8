"""Joins whose hot keys are spread: random ones in the simulator, with restarts, moves and planted bugs; and on files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cluster.instances import Instances
from swjoin.cluster.master import key_spreading
from swjoin.cluster.master.key_spreading import KeySpreading, SkewedJoin
from swjoin.cluster.master.master import Master
from swjoin.core.batch import I64, LEFT, TupleBatch
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import How
from swjoin.plan.logical import LogicalPlan, Node, Result
from swjoin.policy import skew
from swjoin.routing.hot_keys import HotKey, SpreadKeys
from tests.support.plan_shapes import join, shape_config, source
from tests.support.planted import texts
from tests.tools.plan_oracle import Row
from tests.tools.random_plans import PlanScenario, simulate

Monkey = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: Monkey) -> None:
    """Keys of few rows are hot, and soon cold again."""
    monkeypatch.setattr(skew, "LEAST_ROWS", 1)
    monkeypatch.setattr(skew, "_SPAN", 16)


def _rows(random: np.random.Generator, count: int, disorder_us: int) -> list[Row]:
    """One of three keys after the other has a third of the rows, and the others have some all the time."""
    ts = np.sort(random.integers(0, 20 * count, count)) - random.integers(0, disorder_us + 1, count)
    hot = np.array([3, 5, 7])[np.arange(count) // 50 % 3]
    share = random.random(count)
    keys = np.where(share < 0.35, hot, np.where(share < 0.5, random.choice([3, 5, 7], count), random.integers(0, 40, count)))
    return [Row(i, int(ts[i]), (int(keys[i]), "", i, int(ts[i]))) for i in range(count)]


def _draw(seed: int, *, calm: bool) -> PlanScenario:
    """A join of two sources, of any kind but full, alone or below another one, read by one to three gateways. calm: without
    moves, checkpoints and crashes."""
    random = np.random.default_rng([seed, 40])
    how: How = ("inner", "inner", "left", "right", "semi", "anti")[int(random.integers(0, 6))]
    low, high = sorted(int(bound) for bound in random.integers(-600, 600, 2))
    nodes: list[Node] = [source("a"), source("b"), join("j", "a", "b", how, within=(low, high))]
    if random.random() < 0.3:
        nodes[2:] = [source("c"), join("i", "a", "b", how, within=(low, high)), join("j", "i", "c", within=(-30, 10))]
    plan = LogicalPlan((*nodes, Result("out", "j")))
    disorder_us, width = int(random.choice([0, 30])), int(random.integers(2, 5))
    cluster: dict[str, Any] = {"partition_count": 11, "distribution_epoch_us": 0, "epoch_tuples": 20, "routing": "skew"}
    sections: dict[str, Any] = {"time": {"max_out_of_order_us": disorder_us, "late": "drop"}}
    crashes: tuple[tuple[int, int], ...] = ()
    if not calm and random.random() < 0.6:
        cluster["distribution_epoch_us"] = 400
        sections["reorganization"] = {"policy": "random", "epoch_us": 800, "random_moves": 2, "chunk_bytes": 1 << 10}
    if not calm and random.random() < 0.6:
        sections["checkpoint"] = {"epochs": int(random.choice([1, 5]))}
        crashes = tuple((int(random.geometric(1 / 400)), int(random.integers(0, width))) for _ in range(3))
    config = shape_config(cluster=cluster, **sections).with_gateways(int(random.integers(1, 4)))
    rows = {
        name: _rows(random, int(random.integers(200, 500)), disorder_us) for name in "abc" if any(n.name == name for n in nodes)
    }
    valid = {name: [True] * len(of) for name, of in rows.items()}
    return PlanScenario(seed, plan, config, rows, valid, width, int(random.choice([7, 50])), None, crashes)


@cache
def _scenarios(first: int, count: int, *, calm: bool = True) -> tuple[PlanScenario, ...]:
    return tuple(_draw(seed, calm=calm) for seed in range(first, first + count))


def _run(scenario: PlanScenario) -> None:
    simulate(scenario, scenario.evaluated()["out"])


@contextmanager
def _counting(monkeypatch: Monkey) -> Iterator[Counter[str]]:
    """What happens to rows of hot keys."""
    seen: Counter[str] = Counter()
    copies = SpreadKeys.copies

    def counted(self: SpreadKeys, rows: TupleBatch, groups: I64) -> tuple[I64 | None, I64]:
        before = groups.copy()
        positions, found = copies(self, rows, groups)
        seen["copied"] += 0 if positions is None else len(positions) - len(rows)
        seen["dealt"] += int((groups != before).sum())
        return positions, found

    with monkeypatch.context() as patched:
        patched.setattr(SpreadKeys, "copies", counted)
        yield seen


@pytest.mark.parametrize(("first", "count"), [(3, 5), pytest.param(0, 3, marks=pytest.mark.drawn)])
@pytest.mark.parametrize("calm", [True, False])
def test_random_joins(calm: bool, first: int, count: int, monkeypatch: Monkey) -> None:
    """With moves, and restarts from checkpoints with fewer slaves, if not calm."""
    with _counting(monkeypatch) as seen:
        for scenario in _scenarios(first, count, calm=calm):
            _run(scenario)
    assert seen["copied"] > 300
    assert seen["dealt"] > (100 if calm else 20)


@pytest.mark.parametrize(
    ("first", "count"),
    [
        *(pytest.param(first, 5, marks=pytest.mark.drawn) for first in range(1_000, 2_000, 100)),
        *(pytest.param(first, 15, marks=pytest.mark.long) for first in range(1_005, 1_500, 100)),
    ],
)
def test_more_random_joins(first: int, count: int) -> None:
    for scenario in _scenarios(first, count, calm=first % 200 < 100):
        _run(scenario)


# ---------------------------------------------------------------- planted bugs


def _dealt_at_once(monkeypatch: Monkey) -> None:
    """Rows are dealt whose partners have no copies."""
    monkeypatch.setattr(SkewedJoin, "deal_from_us", lambda self, dealt, sent_us: -(1 << 60))


def _other_bound(monkeypatch: Monkey) -> None:
    """The bounds of the other side."""
    deal_from_us = SkewedJoin.deal_from_us
    monkeypatch.setattr(SkewedJoin, "deal_from_us", lambda self, dealt, sent_us: deal_from_us(self, 1 - dealt, sent_us))


def _copies_end_at_once(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(SkewedJoin, "copy_until_us", lambda self, dealt, sent_us: -(1 << 60))


def _newest_of_one_gateway(monkeypatch: Monkey) -> None:
    """The last gateway's newest time, not that of all."""
    closed = KeySpreading.closed

    def last(self: KeySpreading, loads: Any) -> None:
        loads = list(loads)
        closed(self, loads)
        self._newest_us |= {(stage, port): newest_us for stage, port, newest_us, *_ in loads}

    monkeypatch.setattr(KeySpreading, "closed", last)


def _own_group_last(monkeypatch: Monkey) -> None:
    """Copies miss the key's own partition-group."""
    groups_of_keys = key_spreading.groups_of_keys
    monkeypatch.setattr(key_spreading, "groups_of_keys", lambda keys, count: (groups_of_keys(keys, count) + 1) % count)


def _preserved_rows_copied(monkeypatch: Monkey) -> None:
    """The side whose rows must be in one place is copied."""
    begin = KeySpreading._begin

    def wrong(self: KeySpreading, join: SkewedJoin, *rest: Any) -> None:
        begin(self, join if join.dealt is None else replace(join, dealt=1 - join.dealt), *rest)

    monkeypatch.setattr(KeySpreading, "_begin", wrong)


def _forgotten(monkeypatch: Monkey) -> None:
    """A run that is restored begins without the table, so rows that were dealt before it meet no copies."""
    monkeypatch.setattr(KeySpreading, "restore", lambda self, plain: None)


def _forgotten_at_once(monkeypatch: Monkey) -> None:
    """A key may begin again, with its other side copied, while rows that were copied before are in the windows."""
    monkeypatch.setattr(KeySpreading, "_is_over", lambda self, join, hot: True)


BUGS: dict[str, Callable[[Monkey], None]] = {
    "rows that are dealt at once": _dealt_at_once,
    "rows that are dealt by the other side's bounds": _other_bound,
    "copies that end at once": _copies_end_at_once,
    "the newest time of one gateway": _newest_of_one_gateway,
    "copies without the key's own partition-group": _own_group_last,
    "copies of preserved rows": _preserved_rows_copied,
    "a table that a restart forgets": _forgotten,
    "a key that is forgotten at once": _forgotten_at_once,
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    scenarios = _scenarios(0, 40, calm=BUGS[name] is not _forgotten)
    BUGS[name](monkeypatch)
    assert any(texts(scenarios, _run))


# ---------------------------------------------------------------- on files


def _files(folder: Path, rows: int) -> tuple[Path, Path]:
    """A third of the rows have one key in the first half, another one in the second."""
    paths = folder / "left.parquet", folder / "right.parquet"
    for seed, path in enumerate(paths):
        random = np.random.default_rng(seed)
        hot = np.where(np.arange(rows) < rows // 2, 7, 8)
        key = np.where(random.random(rows) < 0.3, hot, random.integers(0, 10_000, rows))
        table = {"k": key, "ts": pa.array(np.sort(random.integers(0, 20 * rows, rows)), pa.timestamp("us"))}
        pq.write_table(pa.table(table), path)
    return paths


ARGUMENTS = ("--on", "k", "--left-time", "ts", "--right-time", "ts", "--within", "1ms", "--epoch", "200ms", "-o", "count")


@pytest.mark.parametrize(
    "how", ["inner", "left", *(pytest.param(how, marks=pytest.mark.drawn) for how in ("right", "semi", "anti"))]
)
def test_the_command(how: str, swjoin: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    files = _files(tmp_path, 150_000)
    monkeypatch.undo()
    answers, reports = set(), []
    for words in (("matrix:4,1",), ("skew",), ("skew", "--gateways", "2")):
        report = tmp_path / "report.json"
        done = swjoin("join", *files, *ARGUMENTS, "--how", how, "--threads", 3, "--report", report, "--routing", *words)
        assert done.code == 0, done.err
        reports.append(json.loads(report.read_text()))
        answers.add((reports[-1]["results"]["count"], reports[-1]["results"]["digest"]))
        assert reports[-1]["ledger"]["balanced"]
        report.unlink()
    assert len(answers) == 1
    assert all(report["stages"][0]["hot_keys"]["spread"] >= 2 for report in reports[1:])


@pytest.mark.mpi
@pytest.mark.drawn
def test_on_ranks(swjoin: Any, tmp_path: Path) -> None:
    files, answers = _files(tmp_path, 200_000), set()
    for words in (("matrix",), ("skew",), ("skew", "--gateways", "2")):
        report = tmp_path / "report.json"
        done = swjoin("join", *files, *ARGUMENTS, "-n", 4, "--report", report, "--routing", *words)
        assert done.code == 0, done.err
        found = json.loads(report.read_text())
        answers.add((found["results"]["count"], found["results"]["digest"]))
        report.unlink()
    assert found["stages"][0]["hot_keys"]["spread"] >= 2
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--how", "full"), "routing skew: a full join needs all partners of a row at one place; leave it out"),
        (("--within", "unbounded"), "routing skew: hot keys are spread within bounds of time"),
    ],
)
def test_joins_that_cannot_be(words: tuple[str, ...], problem: str, swjoin: Any, tmp_path: Path) -> None:
    files = _files(tmp_path, 10)
    arguments = [word for word in ARGUMENTS if word not in ("--within", "1ms") or "--within" not in words]
    done = swjoin("join", *files, *arguments, *words, "--routing", "skew")
    assert done.code == 2
    assert problem in done.err[0]


def test_a_run_keeps_its_routing() -> None:
    """Rows that were dealt meet no copies by hash alone; what was sent by hash is unknown to a new table."""
    scenario = _draw(0, calm=True)
    instances = Instances.of(scenario.plan, scenario.config, 3)
    arguments = instances.config_of_gateway, instances.slave_count, instances.subclusters, None
    spread, alone = Master(*arguments, instances.skewed_joins), Master(*arguments)
    with pytest.raises(UserError, match="routing skew: the run has no hot keys, which it keeps; leave it out"):
        spread.restore(alone.snapshot().plain, 0)
    with pytest.raises(UserError, match="the run has skew, which it keeps; leave it out"):
        alone.restore(spread.snapshot().plain, 0)


def test_copies_by_hand() -> None:
    """A key's rows of one side are copied up to a time, those of the other side dealt from one on."""
    hot = [HotKey(0, 5, LEFT, (2, 4, 6), 100, 200), HotKey(0, 9, 1 - LEFT, (1, 3), 100, 200)]
    key, ts = np.array([5, 1, 9, 5, 9]), np.array([50, 50, 150, 250, 250])
    rows = TupleBatch(key, ts, np.arange(5).astype(np.uint64), ts, None, None)
    own = np.array([2, 0, 1, 2, 1])
    positions, groups = SpreadKeys(hot, LEFT).copies(rows, own.copy())
    assert positions is not None
    assert positions.tolist() == [0, 1, 2, 2, 3, 4]  # the key 9 is copied at 150, not at 250
    assert groups[[0, 1, 2, 3, 5]].tolist() == [2, 0, 1, 3, 1]
    assert groups[4] in (2, 4, 6)  # dealt
    positions, groups = SpreadKeys(hot, 1 - LEFT).copies(rows, own.copy())
    assert positions is not None
    assert positions.tolist() == [0, 0, 0, 1, 2, 3, 4]
    assert groups[:3].tolist() == [2, 4, 6]
    assert groups[5] == 2
    assert set(groups[[4, 6]].tolist()) <= {1, 3}

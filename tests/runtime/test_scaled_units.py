"""Joins whose number of units follows their load: random ones in the simulator, with restarts, moves and planted bugs; and on
files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.cluster.exchange import Outlet
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.unit_scaling import ScaledJoin, UnitScaling, _Join
from swjoin.cluster.messages import UnitLoad
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.plan.logical import LogicalPlan, Node, Result, Spread, Union
from swjoin.policy.scaling import SubgroupScaling
from swjoin.routing.biclique import UnitTable
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.plan_shapes import join, shape_config, source
from tests.support.planted import texts
from tests.tools.plan_oracle import Row
from tests.tools.processes import ranks_of
from tests.tools.random_plans import PlanScenario, simulate

Monkey = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def any_number(monkeypatch: Monkey) -> None:
    """Every check wants any number of units, whatever they hold, also while some drain."""

    def wanted(self: SubgroupScaling, stored_bytes: int, units: int, **_: bool) -> int:
        drawn: np.random.Generator = self.__dict__.setdefault("random", np.random.default_rng(self._most))
        return int(drawn.integers(1, self._most + 1))

    monkeypatch.setattr(SubgroupScaling, "wanted_units", wanted)


def _rows(random: np.random.Generator, count: int, disorder_us: int) -> list[Row]:
    ts = np.sort(random.integers(0, 20 * count, count)) - random.integers(0, disorder_us + 1, count)
    keys = random.integers(0, 12, count)
    return [Row(i, int(ts[i]), (int(keys[i]), "", i, int(ts[i]))) for i in range(count)]


def _draw(seed: int, *, calm: bool) -> PlanScenario:
    """A join of two sources, one of them a union at times, alone or below another join, read by one to three gateways. calm:
    without moves, checkpoints and crashes."""
    random = np.random.default_rng([seed, 41])
    low, high = sorted(int(bound) for bound in random.integers(-600, 600, 2))
    lines = int(random.integers(2, 6)), int(random.integers(2, 6))
    subgroups = tuple(int(random.integers(1, n + 1)) for n in lines)
    nodes: list[Node] = [source("a"), source("b")]
    of_left = "a"
    if random.random() < 0.2:
        nodes, of_left = [*nodes, source("d"), Union("u", ("a", "d"))], "u"
    form = {"form": "random", "lines": lines, "subgroups": subgroups, "keyed": True}
    nodes += [Spread("l", of_left, LEFT, **form), Spread("r", "b", RIGHT, **form)]  # type: ignore[arg-type]
    below = random.random() < 0.3
    nodes.append(join("i" if below else "j", "l", "r", within=(low, high)))
    if below:
        nodes += [source("c"), Spread("m", "i", LEFT, **form), Spread("s", "c", RIGHT, **form)]  # type: ignore[arg-type]
        nodes.append(join("j", "m", "s", within=(-30, 10)))
    plan = LogicalPlan((*nodes, Result("out", "j")))
    disorder_us, width = int(random.choice([0, 30])), int(random.integers(2, 5))
    word = f"contrand:{lines[0]},{lines[1]},{subgroups[0]},{subgroups[1]}"
    cluster: dict[str, Any] = {"partition_count": 11, "distribution_epoch_us": 0, "epoch_tuples": 20, "routing": word}
    most = max(-(-n // of) for n, of in zip(lines, subgroups, strict=True))
    scaling = {"units": min(most, int(random.integers(1, 3))), "every_us": int(random.choice([20, 100, 400]))}
    sections: dict[str, Any] = {"time": {"max_out_of_order_us": disorder_us, "late": "drop"}}
    sections["reorganization"] = {"scaling": scaling}
    crashes: tuple[tuple[int, int], ...] = ()
    if not calm and random.random() < 0.6:
        cluster["distribution_epoch_us"] = 400
        sections["reorganization"] |= {"policy": "random", "epoch_us": 800, "random_moves": 2, "chunk_bytes": 1 << 10}
    if not calm and random.random() < 0.6:
        sections["checkpoint"] = {"epochs": int(random.choice([1, 5]))}
        crashes = tuple((int(random.geometric(1 / 400)), int(random.integers(0, width))) for _ in range(3))
    config = shape_config(cluster=cluster, **sections).with_gateways(int(random.integers(1, 4)))
    names = [name for name in "abcd" if any(node.name == name for node in nodes)]
    rows = {name: _rows(random, int(random.integers(200, 400)), disorder_us) for name in names}
    valid = {name: [True] * len(of) for name, of in rows.items()}
    return PlanScenario(seed, plan, config, rows, valid, width, int(random.choice([7, 50])), None, crashes)


@cache
def _scenarios(first: int, count: int, *, calm: bool = True) -> tuple[PlanScenario, ...]:
    return tuple(_draw(seed, calm=calm) for seed in range(first, first + count))


def _run(scenario: PlanScenario) -> None:
    simulate(scenario, scenario.evaluated()["out"])


@contextmanager
def _counting(monkeypatch: Monkey) -> Iterator[Counter[str]]:
    """What happens to units."""
    seen: Counter[str] = Counter()
    take_notes = UnitScaling.take_notes

    def counted(self: UnitScaling) -> list[tuple[str, int, int, str]]:
        notes = take_notes(self)
        seen.update(kind for kind, *_ in notes)
        return notes

    with monkeypatch.context() as patched:
        patched.setattr(UnitScaling, "take_notes", counted)
        yield seen


@pytest.mark.parametrize(("first", "count"), [(2, 4), pytest.param(6, 4, marks=pytest.mark.drawn)])
@pytest.mark.parametrize("calm", [True, False])
def test_random_joins(calm: bool, first: int, count: int, monkeypatch: Monkey) -> None:
    """With moves, and restarts from checkpoints with fewer slaves, if not calm."""
    with _counting(monkeypatch) as seen:
        for scenario in _scenarios(first, count, calm=calm):
            _run(scenario)
    assert min(seen["unit_opened"], seen["unit_closing"]) > 12
    assert seen["unit_closed"] > 3


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


def _new_units_only(monkeypatch: Monkey) -> None:
    """Units that store no more are not probed."""
    monkeypatch.setattr(_Join, "probed", lambda self, unit: self.stores[unit])


def _greatest_watermark(monkeypatch: Monkey) -> None:
    """A unit is closed by the watermark of the gateway that is ahead."""
    closed = UnitScaling.closed

    def ahead(self: UnitScaling, loads: Iterable[UnitLoad]) -> None:
        loads = list(loads)
        closed(self, loads)
        for stage, port, watermark_us, _ in loads:
            self._joins[stage].passed_us[port] = watermark_us

    monkeypatch.setattr(UnitScaling, "closed", ahead)


def _other_bound(monkeypatch: Monkey) -> None:
    last_partner_us = ScaledJoin.last_partner_us
    monkeypatch.setattr(ScaledJoin, "last_partner_us", lambda self, port, time_us: last_partner_us(self, 1 - port, time_us))


def _own_watermark(monkeypatch: Monkey) -> None:
    """A unit is closed by the watermark of the rows that it stores, not of those that probe it."""
    drain = UnitScaling._drain

    def wrong(self: UnitScaling, of: _Join) -> None:
        of.passed_us = {1 - port: time_us for port, time_us in of.passed_us.items()}
        drain(self, of)

    monkeypatch.setattr(UnitScaling, "_drain", wrong)


def _newest_of_the_last_epoch(monkeypatch: Monkey) -> None:
    """A unit's newest time is that of its last rows, which may be older than others."""
    closed = UnitScaling.closed

    def last(self: UnitScaling, loads: Iterable[UnitLoad]) -> None:
        loads = list(loads)
        closed(self, loads)
        for stage, port, _, newest_us in loads:
            of = self._joins[stage]
            for unit, time_us in zip(of.join.units.units_of(port), newest_us, strict=True):
                of.newest_us[unit] = time_us if time_us > BEGIN_OF_TIME_US else of.newest_us[unit]

    monkeypatch.setattr(UnitScaling, "closed", last)


def _late_gateway(monkeypatch: Monkey) -> None:
    """The second gateway follows a table from the next one on."""
    use = Outlet.use

    def late(self: Outlet, tables: list[UnitTable]) -> None:
        before = self.__dict__.get("late")
        self.__dict__["late"] = tables
        use(self, tables if self._index != 1 or before is None else before)

    monkeypatch.setattr(Outlet, "use", late)


def _forgotten(monkeypatch: Monkey) -> None:
    """A run that is restored begins with its first units, and does not probe those that hold rows."""
    monkeypatch.setattr(UnitScaling, "restore", lambda self, plain: None)


BUGS: dict[str, Callable[[Monkey], None]] = {
    "probes to units that store alone": _new_units_only,
    "a unit closed by the greatest watermark": _greatest_watermark,
    "a unit closed by the other side's bound": _other_bound,
    "a unit closed by its own stream's watermark": _own_watermark,
    "the newest time of the last epoch": _newest_of_the_last_epoch,
    "a table that one gateway follows late": _late_gateway,
    "a table that a restart forgets": _forgotten,
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    scenarios = _scenarios(0, 60, calm=BUGS[name] is not _forgotten)
    BUGS[name](monkeypatch)
    assert any(texts(scenarios, _run))


# ---------------------------------------------------------------- on files


def _files(folder: Path, rows: int, tail: int = 0) -> tuple[Path, Path]:
    """The rate of rows rises, and falls again. tail: rows that follow at a low rate, so that units can become empty however
    late they are closed."""
    paths = folder / "left.parquet", folder / "right.parquet"
    for seed, path in enumerate(paths):
        random = np.random.default_rng(seed)
        times = np.sort(random.integers(0, 200 * rows, rows) + random.integers(0, 200 * rows, rows))
        times = np.concatenate([times, np.sort(random.integers(400 * rows, 900 * rows, tail))])
        table = {"v": random.integers(0, 1_000_000, rows + tail), "ts": pa.array(times, pa.timestamp("us"))}
        pq.write_table(pa.table(table), path, row_group_size=5_000)
    return paths


TIMES = ("--left-time", "ts", "--right-time", "ts", "-o", "count", "--epoch", "200ms")
ARGUMENTS = (*TIMES, "--where", "abs(left.v - right.v) <= 50", "--routing")


def _report(swjoin: Any, path: Path, *words: object) -> dict[str, Any]:
    done = swjoin(*words, "--report", path)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["ledger"]["balanced"]
    path.unlink()
    return report


def _changes(report: dict[str, Any]) -> list[int]:
    return [change["to"] - change["from"] for change in report["stages"][0]["units"]["changes"]]


@pytest.mark.parametrize(
    ("within", "memory", "routing"),
    [
        ("2500ms", "1MB", "random:4,4"),
        pytest.param("unbounded", "4.5MB", "random:4,4", marks=pytest.mark.drawn),
        pytest.param("2500ms", "1MB", "contrand:6,4,2,1", marks=pytest.mark.drawn),
    ],
)
def test_the_command(within: str, memory: str, routing: str, swjoin: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    """Units are used as memory needs them, and given back where rows expire; the answer is that of all units."""
    monkeypatch.undo()
    files, out = _files(tmp_path, 75_000), tmp_path / "report.json"
    words = ("join", *files, "--within", within, *ARGUMENTS, routing, "--threads", 4)
    every, few = _report(swjoin, out, *words), _report(swjoin, out, *words, "--units", 1, "--memory", memory)
    assert few["results"] == every["results"]
    assert few["results"]["count"] > 1_000
    assert sum(change > 0 for change in _changes(few)) >= 2
    assert (min(_changes(few)) < 0) == (within == "2500ms")
    peaks = few["stages"][0]["peak_window_bytes"]
    assert max(peaks) <= few["config"]["module"]["window_bytes"] < sum(peaks), "more than one slave was needed"
    assert "units" not in every["stages"][0]


def test_a_side_of_few_wide_rows_gets_its_units(swjoin: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    """The bytes of a slave are those of its left and of its right unit, whatever the number of rows of either."""
    monkeypatch.undo()
    random, files = np.random.default_rng(3), []
    for name, rows, size in (("narrow", 60_000, 0), ("wide", 1_200, 20_000)):
        times = np.sort(random.integers(0, 30_000_000, rows))
        table = {"k": random.integers(0, 60_000, rows), "ts": pa.array(times, pa.timestamp("us"))}
        text = {"text": [random.bytes(size // 2).hex() for _ in range(rows)]} if size else {}
        files.append(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table(table | text), files[-1])
    words = ("join", *files, "--left-time", "ts", "--right-time", "ts", "--within", "10s", "--on", "k", "-o", "count")
    words = (*words, "--epoch", "200ms", "--threads", 4, "--routing", "random:4,4")
    out = tmp_path / "report.json"
    every, few = (_report(swjoin, out, *words, "--memory", "10MB", *more) for more in ((), ("--units", 1)))
    assert few["results"] == every["results"]
    changes = few["stages"][0]["units"]["changes"]
    assert {change["side"] for change in changes if change["to"] > change["from"]} == {"right"}


def _configured(folder: Path, rows: int, tail: int = 0, **more: Any) -> dict[str, Any]:
    left, right = _files(folder, rows, tail)
    sql = """SELECT l.v FROM l JOIN r ON abs(l.v - r.v) <= 50
        AND r.ts BETWEEN l.ts - INTERVAL '10' SECOND AND l.ts + INTERVAL '10' SECOND"""
    plain: dict[str, Any] = {
        "queries": [{"sql": sql}],
        "inputs": {name: {"path": str(path), "time": "ts"} for name, path in (("l", left), ("r", right))},
        "cluster": {"routing": "random:4,4", "distribution_epoch": "200ms"},
        "sink": {"kind": "count"},
    }
    (folder / "all.yaml").write_text(json.dumps(plain))
    plain["module"] = {"window": "8MB"}
    plain["reorganization"] = {"scaling": {"units": 1, "confirmations": 1, "low": 0.12, "target": 0.2, "high": 0.25}}
    return plain | more


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize("gateways", [1, 2])
def test_a_configuration_on_ranks(gateways: int, swjoin: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    """Read by one gateway or two. Events tell of the units."""
    monkeypatch.undo()
    plain = _configured(tmp_path, 150_000, 20_000)
    plain["cluster"]["gateways"] = gateways
    (tmp_path / "few.yaml").write_text(json.dumps(plain))
    runs = {name: tmp_path / f"run-{name}" for name in ("few", "all")}
    for name, run in runs.items():
        done = swjoin("run", tmp_path / f"{name}.yaml", "--out", run, "-n", 5 + gateways)
        assert done.code == 0, done.err
    reports = {name: json.loads((run / "run.json").read_text()) for name, run in runs.items()}
    assert reports["few"]["results"] == reports["all"]["results"]
    assert max(_changes(reports["few"])) > 0 > min(_changes(reports["few"]))
    done = swjoin("events", runs["few"], "--kind", "unit_opened", "unit_closing", "unit_closed")
    assert done.code == 0
    assert all(any(word in line for line in done.out.splitlines()) for word in ("stores rows from now on", "is empty"))


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize("whole", [False, True])
def test_killed_ranks(whole: bool, swjoin: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    """One of them, and the others go on; or all, and the run is resumed on fewer. Units have come into use by then."""
    monkeypatch.undo()
    plain = _configured(tmp_path, 300_000, checkpoint={"epochs": 10})
    plain["module"] = {"window": "32MB"}  # fewer slaves have to do
    plain["reorganization"]["scaling"] |= {"low": 0.02, "target": 0.05, "high": 0.08}
    (tmp_path / "few.yaml").write_text(json.dumps(plain))
    wanted, run = _report_of(swjoin, tmp_path / "all.yaml", tmp_path / "all"), tmp_path / "run"
    command = [sys.executable, "-m", "swjoin", "run", tmp_path / "few.yaml", "--out", run, "-n", "6"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    until_s = time.monotonic() + PROCESS_S
    while process.poll() is None and max(_checkpoints(run), default=0) < 12:
        assert time.monotonic() < until_s
        time.sleep(0.005)
    ranks = ranks_of(process.pid)
    assert ranks, "the run has ended by then"
    for rank in ranks.values() if whole else [ranks[max(ranks)]]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    said, _ = process.communicate(timeout=PROCESS_S)
    if whole:
        outcome = swjoin("run", "--resume", run, "-n", "4")
        assert outcome.code == 0, f"{said}{outcome.err}"
    report = json.loads((run / "run.json").read_text())
    assert report["complete"], said
    assert report["results"] | {"matches": None} == wanted["results"] | {"matches": None}
    assert report["ledger"]["balanced"]
    assert max(_changes(report)) > 0 > min(_changes(report))


def _checkpoints(run: Path) -> list[int]:
    return [int(path.stem.rpartition("-")[2]) for path in (run / "checkpoints").glob("checkpoint-*.json")]


def _report_of(swjoin: Any, config: Path, out: Path) -> dict[str, Any]:
    done = swjoin("run", config, "--out", out, "--threads", 3)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("random:3,3", "--units", 4), "--units 4: no subgroup has more than 3 units; write fewer"),
        (("matrix", "--units", 1), "--units needs --routing random or contrand"),
        (("random:3,3", "--units", -1), "--units must not be negative (0: all, always)"),
    ],
)
def test_numbers_that_cannot_be(words: tuple[object, ...], problem: str, swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("join", *_files(tmp_path, 10), "--within", "1s", *ARGUMENTS, *words)
    assert done.code == 2
    assert problem in done.err[0]


def test_a_run_keeps_what_it_has() -> None:
    """Units that a table does not know would not be probed."""
    scenario = _draw(0, calm=True)
    instances = Instances.of(scenario.plan, scenario.config, 3)
    arguments = instances.config_of_gateway, instances.slave_count, instances.subclusters
    scaled, every = Master(*arguments, scaled=instances.scaled_joins), Master(*arguments)
    with pytest.raises(UserError, match=r"scaling.units \d: the run has all its units in use; leave it as it was"):
        scaled.restore(every.snapshot().plain, 0)
    with pytest.raises(UserError, match="the run has a number of units that follows their load; leave it as it was"):
        every.restore(scaled.snapshot().plain, 0)


def test_from_python(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.undo()
    files = _files(tmp_path, 150_000)
    options: dict[str, Any] = {"left_time": "ts", "right_time": "ts", "within": "5s", "threads": 4, "memory": "12MB"}
    options |= {"where": "abs(left_v - right_v) <= 50", "routing": "random:4,4"}
    few = api.count(*files, **options, units=1)
    assert (few.count, few.digest) == ((every := api.count(*files, **options)).count, every.digest)
    with pytest.raises(UserError, match="units 5: no subgroup has more than 4 units; write fewer"):
        api.count(*files, **options, units=5)
    with pytest.raises(UserError, match="units needs routing random or contrand"):
        api.count(*files, **{**options, "routing": None, "where": None, "on": "v"}, units=1)
    with pytest.raises(UserError, match="units: 'two' is no number of units"):
        api.count(*files, **options, units="two")  # type: ignore[arg-type]
    pairs = "SELECT l.v, l.ts FROM l JOIN r ON abs(l.v - r.v) <= 50 AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '1' SECOND"
    sql = f"SELECT count(*) AS n, window_end FROM TUMBLE(({pairs}), ts, INTERVAL '1' HOUR) GROUP BY window_end"
    tables = {"tables": dict(zip("lr", files, strict=True)), "time": "ts", "threads": 2, "routing": "random:2,2"}
    counted = {api.sql(sql, **tables, units=units)["n"][0].as_py() for units in (None, 1)}
    assert len(counted) == 1
    assert counted.pop() > 1_000


def test_it_is_explained(swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        json.dumps(
            {
                "queries": [
                    {"sql": "SELECT l.v FROM l JOIN r ON l.v < r.v AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '1' SECOND"}
                ],
                "inputs": {
                    name: {"path": str(path), "time": "ts"} for name, path in zip("lr", _files(tmp_path, 10), strict=True)
                },
                "cluster": {"routing": "random:2,2"},
                "reorganization": {"scaling": {"units": 1, "every": "1min"}},
                "sink": {"kind": "count"},
            }
        )
    )
    done = swjoin("explain", tmp_path / "c.yaml")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "At first 1 unit of each subgroup stores rows; more do when those are above 0.8 of their memory" in said
    assert "by 3 checks in a row, one every 1 min of the streams' time" in said

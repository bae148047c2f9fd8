"""What `swjoin plan` estimates besides memory: it follows the model, finds what brute force finds, says what it ignores."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cli.plan_forecast import ForecastOptions
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.calibrate import realtime
from swjoin.forecast.capacity import (
    PRECISION,
    Model,
    NotModelledError,
    equal_keys,
    least_slaves,
    pairs_per_s,
    rates_of,
    sustainable_rate,
)
from swjoin.forecast.costs import PRESETS, CostModel, with_changes
from swjoin.forecast.input_profile import file_profile, workload_profile
from swjoin.forecast.model.run import simulate
from swjoin.forecast.network import plan_network
from swjoin.forecast.summary import forecast
from swjoin.runtime.in_process import run_local
from swjoin.runtime.open import open_job_sources

SLOW = with_changes(PRESETS["modern"], ["slave_tuple_ns=40000"])  # a slave joins 25,000 tuples/s at most


def config(**sections: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "join": {"within": "1s"},
        "workload": {"rate": 5_000, "duration": "6s", "domain": 100_000, "bias": 0.6},
        "cluster": {"partition_count": 48, "distribution_epoch": "100ms"},
        "module": {"theta": "32KB", "window": "1GB", "stream_buffer": "4MB"},
        "sink": {"kind": "count"},
    }
    for name, value in sections.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return config_from_plain(plain)


def model(costs: CostModel = SLOW, **sections: Any) -> Model:
    wanted = config(**sections)
    return Model.of(wanted, costs, 0, workload_profile(wanted))


# ---------------------------------------------------------------- history in virtual time


def test_history_gives_the_same_steady_state_as_waiting_for_it() -> None:
    """Windows filled beforehand, at full speed, or by the clock: what slaves do afterwards is the same."""
    found = []
    for prefill in ("0s", "1s"):
        wanted = config(pace="realtime", workload={"duration": "4s"}, measure={"prefill": prefill})
        told = simulate(wanted, 2, SLOW)
        report = forecast(told, "")
        rows = dict(zip(COLUMNS, np.stack(told.metrics).T, strict=True))
        late = (rows["epoch_end_us"] > 2e6) & (rows["epoch_end_us"] < 3.9e6)
        pairs = rows["pairs"][late].sum()
        found.append([pairs, (rows["pairs"] * rows["delay_mean_us"])[late].sum() / pairs, rows["process_us"][late].sum()])
        assert report["ledger"]["balanced"]
    assert found[1] == pytest.approx(found[0], rel=0.06)


def test_history_of_a_forecast_is_that_of_a_run(tmp_path: Path) -> None:
    wanted = config(pace="realtime", workload={"rate": 20_000, "duration": "3s"}, measure={"prefill": "2s"})
    real = run_local(Job(wanted, None, False, tmp_path, None, ""), progress=False, slave_count=2)
    told = forecast(simulate(wanted, 2, PRESETS["modern"]), "")
    assert told["prefill"]["pairs"] == pytest.approx(real["prefill"]["pairs"], rel=0.05)
    assert told["results"]["count"] == pytest.approx(real["results"]["count"], rel=0.05)


# ---------------------------------------------------------------- saturation


def test_saturation_grows_with_slaves_until_the_master_is_the_limit() -> None:
    asked = model(with_changes(SLOW, ["master_byte_ns=300"]))
    rates = []
    for slaves in (1, 2, 6):
        found = sustainable_rate(asked, slaves, asked.run_at(slaves, 5_000))
        rates.append(found.rate_per_s)
    assert all(b > a / PRECISION for a, b in itertools.pairwise(rates))
    assert rates[1] > 1.7 * rates[0]
    assert rates[0] == pytest.approx(25_000 / 2, rel=0.15), "a slave takes 40 us for a tuple of either stream"
    assert rates[-1] < 1e9 / (300 * 32) / 2 < 6 * rates[0]
    assert found.resource == "master CPU"


def test_what_saturates_is_just_above_what_is_sustained() -> None:
    asked = model()
    found = sustainable_rate(asked, 2, asked.run_at(2, 5_000))
    assert found.above_per_s is not None
    assert found.above_per_s <= PRECISION * found.rate_per_s
    assert asked.run_at(2, found.rate_per_s).sustained
    assert not asked.run_at(2, found.above_per_s).sustained
    from_above = sustainable_rate(asked, 2, asked.run_at(2, 100_000))
    assert from_above.rate_per_s == pytest.approx(found.rate_per_s, rel=2 * (PRECISION - 1))


def test_windows_that_do_not_fit_are_a_limit_as_well() -> None:
    found = sustainable_rate(asked := model(PRESETS["modern"], module={"window": "4MB"}), 1, asked.run_at(1, 5_000))
    assert found.resource == "module.window"
    assert 5_000 < found.rate_per_s < 100_000


# ---------------------------------------------------------------- slaves for a target


@pytest.mark.drawn
@pytest.mark.parametrize("rate", [8_000, 40_000, 100_000])
def test_the_target_search_finds_what_brute_force_finds(rate: int) -> None:
    asked = model()
    found = least_slaves(asked, rate, None, 5)
    by_force = next((n for n in range(1, 6) if asked.run_at(n, rate).sustained), None)
    assert found.slaves == by_force
    assert (by_force is None) == (rate == 100_000)


def test_a_target_of_delay_is_met_or_the_epoch_is_blamed() -> None:
    asked = model()
    met = least_slaves(asked, 20_000, 0.3, 16)
    assert met.slaves is not None
    assert met.outcome is not None
    assert met.outcome.delay_s is not None
    assert met.outcome.delay_s["p99"] <= 0.3
    fewer = [asked.run_at(n, 20_000) for n in range(1, met.slaves)]
    assert not any(o.sustained and o.delay_s and o.delay_s["p99"] <= 0.3 for o in fewer)
    never = least_slaves(asked, 2_000, 0.02, 16)
    assert never.slaves is None
    assert "distribution epochs of 100 ms" in never.why
    assert never.tried < 16, "more slaves do not shorten an epoch"


def test_a_master_that_cannot_feed_is_named() -> None:
    found = least_slaves(model(with_changes(SLOW, ["source_tuple_ns=50000"])), 50_000, None, 64)
    assert found.slaves is None
    assert found.why == "the master CPU is the limit, which more slaves do not relieve"
    assert found.tried < 64


@pytest.mark.parametrize("changes", [[], ["source_tuple_ns=50000"], ["link_bytes_per_s=1000000"]])
@pytest.mark.parametrize("sections", [{}, {"sink": {"kind": "parquet"}}, {"module": {"window": "1MB"}}])
def test_a_rate_beyond_all_reach_is_not_played(changes: list[str], sections: dict[str, Any]) -> None:
    asked = model(with_changes(SLOW, changes), **sections)
    reachable, resource = asked.reachable_per_s(2)
    assert not asked.run_at(2, 10 * reachable).sustained
    for rate in (11 * reachable, 1e9, 1e18, 1e300):
        found = least_slaves(asked, rate, None, 2)
        assert (found.slaves, found.tried, found.outcome) == (None, 2, None)
        assert found.why.startswith(f"the {resource} alone allows about ")


# ---------------------------------------------------------------- network and pairs


@pytest.mark.parametrize("sections", [{}, {"join": {"lower": "-100ms", "upper": "900ms"}}, {"join": {"last": 5000}}])
def test_network_and_pairs_are_those_of_a_run(sections: dict[str, Any], tmp_path: Path) -> None:
    plain = {
        "pace": "realtime",
        "workload": {"rate": 20_000, "duration": "4s", "domain": 20_000},
        "sink": {"carry_payload": True},
    }
    wanted = config(**plain)
    if sections:
        wanted = dataclasses.replace(wanted, queries=config_from_plain({**sections, "sink": {"kind": "count"}}).queries)
    profile = workload_profile(wanted)
    rates = rates_of(wanted, profile)
    expected = pairs_per_s(wanted, rates, equal_keys(wanted, profile))
    told = plan_network(wanted, 3, profile, rates, expected)
    run_local(Job(wanted, None, False, tmp_path, None, ""), progress=False, slave_count=3)
    table = pq.read_table(tmp_path / "metrics" / "slaves.parquet")
    rows = {name: table[name].to_numpy() for name in table.column_names}
    last = min(37, int(rows["epoch"].max()) - 2)  # a busy machine skips some of the 40 epochs of 0.1 s
    steady = (rows["epoch"] > 14) & (rows["epoch"] <= last)
    seconds = rows["left_tuples"][steady].sum() / 20_000  # of the stream; on a busy machine epochs end late
    assert rows["pairs"][steady].sum() / seconds == pytest.approx(expected, rel=0.05)
    for slave in range(3):
        found = rows["delivered_bytes"][steady & (rows["slave"] == slave)].sum() / seconds
        assert told.to_slaves[slave] == pytest.approx(found, rel=0.12)
    assert told.to_collector == pytest.approx(3 * 9_000 * 10 + 24 * 48 * 10)


# ---------------------------------------------------------------- files, and what is not known


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Two Parquet files of 10 s: 5,000 left and 1,000 right rows per second."""
    random = np.random.default_rng(5)
    for name, rate in (("left", 5_000), ("right", 1_000)):
        count = 10 * rate
        columns = {"key": random.integers(0, 500, count), "ts": np.linspace(0, 10_000_000, count).astype(np.int64)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    stream = {"key": ["key"], "time": "ts", "time_unit": "us"}
    return {
        "join": {"within": "500ms"},
        "left": {"path": str(tmp_path / "left.parquet"), **stream},
        "right": {"path": str(tmp_path / "right.parquet"), **stream},
        "cluster": {"partition_count": 24, "distribution_epoch": "100ms"},
        "sink": {"kind": "count"},
    }


def test_files_are_planned_by_their_first_rows(files: dict[str, Any], tmp_path: Path) -> None:
    wanted = config_from_plain(files)
    profile = file_profile(
        wanted, with_rates=True, open_sources=lambda: open_job_sources(Job(wanted, None, False, None, None, ""))
    )
    assert rates_of(wanted, profile) == pytest.approx((5_000, 1_000), rel=0.01)
    expected = pairs_per_s(wanted, rates_of(wanted, profile), equal_keys(wanted, profile))
    report = run_local(Job(wanted, None, False, tmp_path / "run", None, ""), progress=False, slave_count=1)
    assert report["results"]["count"] / 10 == pytest.approx(expected, rel=0.1)
    asked = Model.of(wanted, SLOW, 0, profile)
    assert any("mean rate" in note for note in asked.notes)
    outcome = asked.run_at(1, 3_000)
    assert outcome.sustained
    assert outcome.pairs_per_s == pytest.approx(expected, rel=0.1)
    assert sustainable_rate(asked, 1, outcome).rate_per_s == pytest.approx(25_000 / 2, rel=0.2)


def test_epochs_by_count_are_forecast_as_short_ones() -> None:
    wanted = config(cluster={"distribution_epoch": 0})
    profile = workload_profile(wanted)
    asked = Model.of(wanted, SLOW, 0, profile)
    same = Model.of(config(cluster={"distribution_epoch": "200ms"}), SLOW, 0, profile)
    assert asked.run_at(1, 3_000) == same.run_at(1, 3_000)
    assert any("distribution epochs of 200ms" in note for note in asked.notes)


def test_what_the_model_does_not_cover() -> None:
    text = "count windows"
    wanted = dataclasses.replace(config(), queries=config_from_plain({"join": {"last": 10}, "sink": {"kind": "count"}}).queries)
    with pytest.raises(NotModelledError, match=text):
        Model.of(wanted, SLOW, 0, workload_profile(wanted))
    told = ForecastOptions(SLOW, 0, None, None, 4)(wanted, 2, workload_profile(wanted), None)
    assert told.plain["saturation"] is None
    assert told.plain["network"]["pairs_per_s"] > 0
    assert any(text in note for note in told.notes)


def test_conditions_kinds_and_checkpoints_are_noted() -> None:
    wanted = config(join={"how": "left", "where": "left_ts < right_ts"}, checkpoint={"interval": "1s"})
    told = ForecastOptions(SLOW, 0, None, None, 4)(wanted, 2, workload_profile(wanted), None)
    assert told.plain["saturation"]["rate_per_s"] > 0
    notes = " ".join(told.notes)
    for text in (
        "join.how and join.where",
        "checkpoints are not in",
        "leaves out is not known",
        "left rows that match nothing",
    ):
        assert text in notes


# ---------------------------------------------------------------- the command


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    plain = {
        "join": {"within": "1s"},
        "pace": "realtime",
        "workload": {"rate": 5_000, "duration": "6s"},
        "cluster": {"distribution_epoch": "100ms"},
        "sink": {"kind": "count"},
    }
    path.write_text(json.dumps(plain))
    return path


@pytest.fixture
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swjoin.diagnostics.startup_memory.measure", lambda role: 100 << 20)


@pytest.mark.usefixtures("known_start")
def test_plan_says_all_of_it(config_file: Path, swjoin: Any) -> None:
    words = ("plan", config_file, "-n", 4, "--target-rate", 10_000, "--target-delay", "1s")
    done = swjoin(*words)
    assert (done.code, done.err) == (0, [])
    names = [line[:17].strip() for line in done.out.splitlines()]
    for name in (
        "windows",
        "input",
        "master to slaves",
        "to the collector",
        "production delay",
        "saturation",
        "target",
        "assumed",
    ):
        assert name in names
    told = json.loads(swjoin(*words, "--json").out)
    assert told["fits"] is True
    assert told["keeps_up"] is True
    assert 0.04 < told["delay_s"]["p50"] < told["delay_s"]["p99"] < 0.3
    assert told["saturation"]["rate_per_s"] > 20_000
    assert told["target"]["slaves"] == 1
    assert told["target"]["ranks"] == 3
    assert told["network"]["master_to_slaves_bytes_per_s"] > 5_000 * 2 * 32


@pytest.mark.drawn
@pytest.mark.usefixtures("known_start")
def test_costs_and_cores_change_what_is_foretold(config_file: Path, swjoin: Any) -> None:
    def rate(*words: object) -> float:
        return float(json.loads(swjoin("plan", config_file, "-n", 4, "--json", *words).out)["saturation"]["rate_per_s"])

    assert rate("--costs", "paper", "--host-cores", 0) < rate("--host-cores", 0) / 10
    assert rate("--host-cores", 1) < rate("--host-cores", 0)


@pytest.mark.usefixtures("known_start")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--target-delay", "1s"], "give --target-rate"),
        *((["--target-rate", rate], "must be positive and finite") for rate in ("0", "-1", "nan", "inf")),
        *((["--rate", rate], "positive and finite") for rate in ("nan", "1,nan", "inf", "0,1", "1,-1")),
        (["-n", "99999999"], "-n 99999999: at most 65,536 slaves"),
        (["--host-cores", "-1"], "must not be negative"),
        (["--most-slaves", "0"], "--most-slaves 0"),
        (["--costs", "nothing"], "neither a preset"),
    ],
)
def test_what_is_refused(words: list[str], text: str, config_file: Path, swjoin: Any) -> None:
    done = swjoin("plan", config_file, *words)
    assert done.code == 2
    assert len(done.err) == 1
    assert text in done.err[0]


# ---------------------------------------------------------------- work in realtime pace


@pytest.mark.drawn
def test_work_in_realtime_pace_costs_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratios are what real runs take over what is foretold; they slow real time down, and nothing else."""
    foretold: list[float] = []
    take = realtime._work_us

    def noted(rows: dict[str, Any]) -> float:
        foretold.append(take(rows))
        return foretold[-1]

    def measured(config: RunConfig) -> float:
        """Half as long again for every ten times that it sleeps as long as it works, and 2.5 times as long in any case."""
        return 2.5 * (1 + 0.05 * (1 / config.nodes.node_speed - 1)) * foretold[-1]

    monkeypatch.setattr(realtime, "_work_us", noted)
    monkeypatch.setattr(realtime, "_measured", measured)
    assert realtime.realtime_costs(with_changes(PRESETS["modern"], ["slave_realtime_ratio=4"]), 1) == pytest.approx((2.5, 0.05))
    monkeypatch.setattr(realtime, "_measured", lambda config: 1e9)
    assert realtime.realtime_costs(PRESETS["modern"], 1) == (realtime.MOST, 0)
    assert realtime.realtime_costs(SLOW, 1) == (1, 0)
    slower = with_changes(SLOW, ["slave_realtime_ratio=2"])
    rates = [sustainable_rate(asked := model(costs), 1, asked.run_at(1, 5_000)).rate_per_s for costs in (SLOW, slower)]
    assert rates[0] == pytest.approx(2 * rates[1], rel=0.1)
    sleepy = with_changes(SLOW, ["slave_sleep_ratio=0.1"])
    busy = [model(costs, nodes={"node_speed": 0.1}).run_at(1, 500).slaves_busy for costs in (SLOW, sleepy)]
    assert busy[1] == pytest.approx(1.9 * busy[0], rel=0.1)
    ends = [simulate(config(), 2, costs).end_us for costs in (SLOW, slower)]
    assert ends[0] == ends[1], "asap pace is not concerned"

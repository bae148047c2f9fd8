"""The planner: masses are the generator's, counts are those of real runs, and the bottleneck is where the costs put it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig, WorkloadConfig
from swjoin.connectors.generator.bmodel import drift_offset, slot_tuples
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.calibrate.roles import calibrate, least_squares
from swjoin.forecast.costs import PRESETS, CostModel, costs_from_plain, load_costs, with_changes
from swjoin.forecast.key_distribution import draw, key_distribution, shares
from swjoin.forecast.model.batch import ModelBatch, overlap
from swjoin.forecast.model.discrete_event import Cores, Timeline
from swjoin.forecast.model.master_input import ModelBuffers
from swjoin.forecast.model.run import SimulatedRun, simulate
from swjoin.forecast.model.windows import mini_shares
from swjoin.forecast.summary import fed, feed, forecast
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.runtime.in_process import run_local

MODERN = PRESETS["modern"]


def config(**sections: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "join": {"within": "2s"},
        "workload": {"rate": 20_000, "duration": "10s", "domain": 100_000, "bias": 0.6},
        "cluster": {"partition_count": 12, "distribution_epoch": "250ms"},
        "module": {"theta": "32KB", "window": "1GB"},
        "sink": {"kind": "count"},
    }
    for name, value in sections.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return config_from_plain(plain)


def column(rows: list[Any], name: str) -> Any:
    return np.stack(rows)[:, COLUMNS.index(name)]


# ---------------------------------------------------------------- masses


@pytest.mark.parametrize("domain", [100_000, 1 << 16])
def test_masses_are_those_of_sampled_keys(domain: int) -> None:
    workload = WorkloadConfig(rate_per_s=2_000_000, duration_us=1_000_000, bias=0.7, domain=domain, drift_us=400_000)
    router = HashPartition(GroupMap(np.zeros(40, np.int64)), 1)
    for slot, offset_slot in ((0, 0), (5, 5)):
        _, key = slot_tuples(workload, 1, LEFT, slot)
        ids = np.arange(len(key), dtype=np.uint64)
        found = router.partition(TupleBatch(key, key, ids, key)).counts / len(key)
        share, equal = shares(domain, 0.7, drift_offset(workload, offset_slot), 40)
        assert share.sum() == pytest.approx(1)
        assert np.abs(found - share).max() < 5 * np.sqrt(share.max() / len(key))
        counts = np.bincount(key)
        pairs = (counts * (counts - 1.0)).sum() / len(key) / (len(key) - 1)
        assert (equal * share**2).sum() == pytest.approx(pairs, rel=0.05)


def test_masses_of_a_power_of_two_have_the_bmodels_chance_of_equal_keys() -> None:
    for bits in (16, 40):  # enumerated, and by its heaviest keys
        share, equal = shares(1 << bits, 0.7, 0, 64)
        assert share.sum() == pytest.approx(1)
        assert (equal * share**2).sum() == pytest.approx(0.58**bits, rel=1e-6)


def test_the_census_follows_the_schedule_and_draws_its_rate() -> None:
    wanted = config(workload={"schedule": {"kind": "step", "factor": 3.0, "at": "4s"}, "drift": "2s"})
    distribution = key_distribution(wanted)
    assert distribution.mean.sum() == pytest.approx(20_000 * (4 + 3 * 6))
    assert len(set(distribution.rotation.tolist())) == 5
    drawn = sum(int(draw(distribution, 1, RIGHT, i).sum()) for i in range(distribution.stretch_count))
    assert drawn == pytest.approx(distribution.mean.sum(), rel=0.01)
    assert draw(distribution, 1, LEFT, 3).tolist() == draw(distribution, 1, LEFT, 3).tolist()


def test_overlap_is_the_chance_that_two_times_satisfy_the_bounds() -> None:
    random = np.random.default_rng(1)
    for lower, upper in ((-10.0, 10.0), (3.0, 25.0), (-40.0, -15.0), (0.0, 1.0)):
        left, right = random.uniform(5, 25, 200_000), random.uniform(20, 30, 200_000)
        found = ((right - left >= lower) & (right - left <= upper)).mean()
        told = overlap(*(np.array([x]) for x in (5.0, 20.0, 20.0, 10.0)), lower, upper)[0, 0]
        assert told == pytest.approx(found, abs=0.005)


def test_batches_of_runs_slice_and_join_as_tuples_do() -> None:
    one = np.arange(3)
    batch = ModelBatch.of(one, one * 10, one, one, one, np.array([5, 0, 7]), 32)
    assert (len(batch), batch.nbytes) == (12, 384)
    parts = [batch.slice(0, 4), batch.slice(4, 6), batch.slice(6, 12)]
    assert [p.count.tolist() for p in parts] == [[4], [1, 1], [6]]
    whole = ModelBatch.concat(parts)
    assert len(whole) == 12
    assert isinstance(whole, ModelBatch)
    assert whole.stretch.tolist() == [0, 0, 2, 2]


def test_counted_buffers_have_the_whole_interface_of_mini_buffers() -> None:
    public = {n for n in vars(MiniBuffers) if not n.startswith("_")}
    others = {
        "pending",
        "put_back",
        "take_below",
        "take_parts_below",
    }  # for checkpoints and plans, where nothing is only counted
    assert public - others <= set(vars(ModelBuffers))


@pytest.mark.parametrize("theta", [0, 256, 1024])
def test_mini_partition_groups_stay_within_theta(theta: int) -> None:
    tuples, share, minis = np.array([100.0, 3000.0, 1e6]), np.empty(3), np.empty(3)
    mini_shares(tuples, np.full(3, 1e-9), theta, 0, share, minis)
    if theta == 0:
        assert share.tolist() == [1, 1, 1]
    else:
        assert (share * tuples <= 2.2 * theta).all()
        assert (share[1:] * tuples[1:] >= 0.8 * theta).all() or theta > 1500
        assert minis == pytest.approx(1 / share, rel=0.5)
    mini_shares(tuples, np.full(3, 0.5), theta, 0, share, minis)
    assert (share >= 0.5).all(), "equal keys were separated"


# ---------------------------------------------------------------- the same as real runs


@pytest.mark.parametrize(
    "sections", [{}, {"workload": {"drift": "3s"}}, {"join": {"lower": "-1s", "upper": "3s"}}, {"module": {"theta": 0}}]
)
def test_counts_are_those_of_a_real_run(sections: dict[str, Any], tmp_path: Path) -> None:
    wanted = config(**{"join": {"within": "2s"}, **sections}) if "join" not in sections else _asymmetric()
    real = run_local(Job(wanted, None, False, tmp_path, None, ""), progress=False, slave_count=2)
    told = simulate(wanted, 2, MODERN)
    report = forecast(told, "")
    assert report["ledger"]["balanced"]
    assert abs(report["epochs"] - real["epochs"]) <= 1
    for name in ("left", "right"):
        assert report["input"][name]["tuples"] == pytest.approx(real["input"][name]["tuples"], rel=0.01)
    assert report["results"]["count"] == pytest.approx(real["results"]["count"], rel=0.03)
    table = pq.read_table(tmp_path / "metrics" / "slaves.parquet")
    for name, within in (("comparisons", 0.2), ("window_tuples", 0.1), ("window_bytes", 0.15), ("left_tuples", 0.02)):
        found = float(np.sum(table[name].to_numpy()))
        assert column(told.metrics, name).sum() == pytest.approx(found, rel=within), name
    by_slave = [np.sum(table["left_tuples"].to_numpy()[table["slave"].to_numpy() == s]) for s in (0, 1)]
    assert [s.joined[LEFT] for s in told.slaves] == pytest.approx(by_slave, rel=0.03)


def _asymmetric() -> RunConfig:
    plain = {"queries": [{"lower": "-1s", "upper": "3s"}]}
    base = config()
    return dataclasses.replace(base, queries=config_from_plain({**plain, "sink": {"kind": "count"}}).queries)


def _check(told: SimulatedRun) -> None:
    """After every step: every tuple read is in exactly one place, as far as roles know it; all roles are in order."""
    told.master.validate()
    for role in (*told.gateways, *told.sinks, *told.slaves):
        role.validate()


@pytest.mark.parametrize("sub_groups", [1, 2])
@pytest.mark.parametrize("pace", ["asap", pytest.param("realtime", marks=pytest.mark.drawn)])
def test_partition_groups_move_and_nothing_is_lost(pace: str, sub_groups: int) -> None:
    wanted = config(
        pace=pace,
        workload={"rate": 3000, "duration": "8s"},
        cluster={"sub_group_count": sub_groups},
        reorganization={
            "policy": "random",
            "epoch": "250ms",
            "random_moves": 5,
            "declustering": "adaptive",
            "chunk": "2KB",
            "active_slaves": 3,
        },
    )
    told = simulate(wanted, 5, MODERN, check=_check)
    report = forecast(told, "")
    assert report["ledger"]["balanced"]
    assert report["moves"] > (8 if pace == "asap" else 40)
    assert len(report["declustering"]) > 1
    still = forecast(simulate(dataclasses.replace(wanted, reorganization=config().reorganization), 5, MODERN), "")
    assert report["results"]["count"] == pytest.approx(still["results"]["count"], abs=60)  # whole pairs, carried along
    controller = told.master.controller
    assert not controller.moves
    assert len(controller.map.owner) == 12
    released = sum(e.kind == "released" for e in told.events)
    assert released == report["moves"]


def test_moves_are_those_of_a_real_run(tmp_path: Path) -> None:
    wanted = config(
        pace="realtime",
        workload={"rate": 3000, "duration": "3s"},
        reorganization={"policy": "random", "epoch": "500ms", "random_moves": 3},
    )
    real = run_local(Job(wanted, None, False, tmp_path, None, ""), progress=False, slave_count=3)
    assert abs(forecast(simulate(wanted, 3, MODERN), "")["moves"] - real["moves"]) <= 3  # the last one may come too late


def test_real_time_delay_is_waiting_for_the_slot_and_work() -> None:
    delay = forecast(simulate(config(pace="realtime", workload={"rate": 2000}), 3, MODERN), "")["delay_s"]
    assert 0.12 < delay["mean"] < 0.135  # 125 ms for a tuple, less for the later one of two of the same slot
    assert delay["p99"] < 0.28


def test_a_slow_node_takes_longer_and_the_balanced_policy_relieves_it() -> None:
    sections: dict[str, Any] = {
        "pace": "realtime",
        "workload": {"rate": 30_000, "duration": "20s"},
        "nodes": {"speed": [1, 1, 0.2]},
        "module": {"stream_buffer": "64KB", "theta": 0},
    }
    costs = with_changes(MODERN, ["slave_tuple_ns=20000"])
    delays_s = []
    for seed in (1, 2):  # which groups move is a matter of chance, and with some seeds too little
        left_alone = simulate(config(**sections, seed=seed), 3, costs)
        relieved = simulate(config(**sections, seed=seed, reorganization={"policy": "balanced", "epoch": "1s"}), 3, costs)
        assert relieved.gateways[0].summary()["moves"] > 0
        delays_s.append([plan_delay(p) for p in (left_alone, relieved)])
    assert np.mean([relieved for _, relieved in delays_s]) < 0.8 * np.mean([alone for alone, _ in delays_s])


def plan_delay(told: SimulatedRun) -> float:
    """Mean delay of the second half of the epochs, seconds."""
    epoch, pairs = column(told.metrics, "epoch"), column(told.metrics, "pairs")
    late = epoch > epoch.max() / 2
    return float((pairs * column(told.metrics, "delay_mean_us"))[late].sum() / pairs[late].sum() / 1e6)


# ---------------------------------------------------------------- what saturates


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ("slave_tuple_ns=*1000", "slaves"),
        ("master_byte_ns=*1000", "master CPU"),
        ("source_tuple_ns=*1000", "master CPU"),
        ("link_bytes_per_s=*0.001", "master link"),
        ("collector_chunk_ns=*10000", "collector"),
    ],
)
def test_the_bottleneck_follows_the_costs(change: str, first: str) -> None:
    report = forecast(simulate(config(), 4, with_changes(MODERN, [change])), "")
    assert report["saturates_first"]["resource"] == first
    assert report["saturates_first"]["utilisation"] > 0.7


@pytest.mark.drawn
def test_slaves_limit_first_and_then_the_master() -> None:
    costs = with_changes(MODERN, ["slave_tuple_ns=400", "source_tuple_ns=50"])
    reports = [r for _, r in feed(config(workload={"rate": 50_000}, cluster={"partition_count": 240}), 32, costs, 0)]
    assert all(isinstance(r, dict) for r in reports)
    assert [r["slaves"] for r in reports] == [1, 2, 4, 8, 16, 32]
    rates = [r["input_tuples_per_s"] for r in reports]
    assert rates[1] > 1.5 * rates[0]
    assert rates[-1] < 1.3 * rates[-2]
    assert reports[0]["saturates_first"]["resource"] == "slaves"
    assert "master CPU saturates first" in fed(reports)


def test_few_slaves_may_have_too_little_memory() -> None:
    wanted = config(workload={"rate": 50_000}, cluster={"partition_count": 240}, module={"window": "4MB"})
    told = [r for _, r in feed(wanted, 8, MODERN, 0)]
    assert isinstance(told[0], RunFailed)
    assert isinstance(told[-1], dict)
    assert "saturate" in fed([r for r in told if isinstance(r, dict)])


@pytest.mark.long
@pytest.mark.parametrize(("theta", "below", "above"), [(0, 3500, 4500), ("1.5MB", 5000, 6500)])
def test_the_papers_nodes_saturate_where_the_paper_says(theta: Any, below: int, above: int) -> None:
    """4 slaves: near 4,000 tuples/s and stream without fine tuning, near 6,000 with it (SPEC section 5)."""
    delay_s = []
    for rate in (below, above):
        wanted = config(
            pace="realtime",
            join={"within": "10min"},
            workload={"rate": rate, "duration": "20min", "domain": 10_000_000, "bias": 0.7},
            cluster={"partition_count": 60, "distribution_epoch": "2s"},
            module={"theta": theta, "stream_buffer": "1MB", "window": "4GB"},
            sink={"carry_payload": True},
        )
        delay_s.append(plan_delay(simulate(wanted, 4, PRESETS["paper"])))
    assert delay_s[0] < 2.5
    assert delay_s[1] > 20


def test_64_slaves_take_seconds_and_10_to_the_8_tuples() -> None:
    wanted = config(
        workload={"rate": 5_000_000, "domain": 10**12},
        cluster={"partition_count": 960, "distribution_epoch": "1s", "mini_buffer": "4GB"},
    )
    report = forecast(simulate(wanted, 64, MODERN), "")
    assert sum(report["joined"].values()) == pytest.approx(1e8, rel=0.01)


def test_ranks_on_one_host_share_its_cores() -> None:
    time = Timeline()
    cores = Cores(time, 2, 0.75)
    ends: list[float] = []
    for work in (100.0, 100.0, 100.0):
        cores.run(work, lambda: ends.append(time.now_us))
    while time.step():
        pass
    assert ends == pytest.approx([200.0] * 3)  # 1.5 cores' worth for 300 us of work
    alone = simulate(config(), 4, MODERN)
    shared = simulate(config(), 4, MODERN, host_cores=1)
    assert shared.end_us > 1.3 * alone.end_us
    assert "host" in forecast(shared, "")["utilisation"]


# ---------------------------------------------------------------- costs and commands


def test_least_squares_finds_costs_and_none_below_zero() -> None:
    random = np.random.default_rng(1)
    rows = random.uniform(1, 100, (40, 3))
    found = least_squares(rows, rows @ np.array([2.0, 0.0, 5.0]), ("a", "b", "c"))
    assert found == pytest.approx({"a": 2, "b": 0, "c": 5}, abs=1e-6)
    assert min(least_squares(rows, rows @ np.array([9.0, -1.0, 5.0]), ("a", "b", "c")).values()) >= 0


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.quiet  # noise can make more costs zero
def test_calibration_measures_every_cost() -> None:
    costs, lines = calibrate(True, lambda line: None)
    values = dataclasses.asdict(costs)
    may_be_zero = {"name", "slave_tuple_ns", "slave_visit_ns", "slave_growth_ns", "master_tuple_ns", "slave_pair_ns"}
    may_be_zero |= {"slave_comparison_ns", "slave_delivery_ns", "master_byte_ns", "message_ns"}  # each of a fit
    may_be_zero.add("slave_sleep_ratio")  # a ratio of two noisy ratios
    assert all(value > 0 for name, value in values.items() if name not in may_be_zero), values
    assert costs.slave_delivery_ns + costs.slave_tuple_ns > 0
    assert any(line.startswith("slave, reference") for line in lines)


def test_costs_files_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    path.write_text(yaml.safe_dump(dataclasses.asdict(MODERN)))
    assert load_costs(str(path)) == MODERN
    assert costs_from_plain({"slave_tuple_ns": 3}, "mine").slave_tuple_ns == 3
    assert with_changes(MODERN, ["message_ns=*2"]).message_ns == 2 * MODERN.message_ns
    for data, what in (({"slave_tuple": 1}, "did you mean slave_tuple_ns"), ({"message_ns": "x"}, "expected a number")):
        with pytest.raises(UserError, match=what):
            costs_from_plain(data, "costs.yaml")
    with pytest.raises(UserError, match="must not be negative"):
        costs_from_plain({"message_ns": -1}, "costs.yaml")
    assert isinstance(PRESETS["paper"], CostModel)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        "join: {within: 1s}\nworkload: {rate: 2000, duration: 4s}\ncluster: {distribution_epoch: 500ms}\nsink: {kind: count}\n"
        "pace: realtime\nreorganization: {policy: random, epoch: 500ms}\n"
    )
    return path


def test_simulate_writes_what_runs_write(config_file: Path, tmp_path: Path, swjoin: Any) -> None:
    out = tmp_path / "told"
    done = swjoin("simulate", config_file, "--slaves", 3, "--out", out)
    assert done.code == 0, done.err
    assert "saturates first" in done.out
    report = json.loads((out / "simulation.json").read_text())
    assert report["simulated"]
    assert report["ledger"]["balanced"]
    assert pq.read_table(out / "metrics" / "slaves.parquet").column_names == list(COLUMNS)
    assert swjoin("plot", out).code == 0
    assert swjoin("events", out).code == 0
    searched = swjoin("simulate", config_file, "--slaves", 4, "--search")
    assert searched.code == 0, searched.err
    assert len(searched.out.splitlines()) == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--slaves", "0"], "--slaves 0"),
        (["--slaves", "2", "--costs", "modem"], "neither a preset"),
        (["--slaves", "2", "--cost", "slave_tuple=3"], "did you mean slave_tuple_ns"),
        (["--slaves", "2", "--cost", "slave_tuple_ns=fast"], "is no number"),
        (["--slaves", "2", "--set", "left.path=a", "--set", "right.path=b"], "leave out left.path"),
        (["--slaves", "2", "--set", "cluster.sub_group_count=3"], "sub_group_count is 3"),
        (["--slaves", "2", "--host-cores", "-1"], "--host-cores -1"),
        (["--slaves", "2", "--limit", "soon"], "duration 'soon'"),
    ],
)
def test_wrong_input_gets_one_line(argv: list[str], said: str, config_file: Path, swjoin: Any) -> None:
    done = swjoin("simulate", config_file, *argv)
    assert done.code == 2
    assert len(done.err) == 1
    assert said in done.err[0]


def test_unreadable_costs_get_one_line(config_file: Path, tmp_path: Path, swjoin: Any) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("slave_tuple_ns: [")
    for path in (broken, tmp_path):
        done = swjoin("simulate", config_file, "--slaves", 2, "--costs", path)
        assert done.code == 2, path
        assert len(done.err) == 1
    done = swjoin("calibrate", "-o", tmp_path / "no" / "costs.yaml")
    assert (done.code, len(done.err)) == (2, 1)
    assert os.path.basename(tmp_path / "no") in done.err[0]

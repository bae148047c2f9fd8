"""Several gateways and sinks in the model and in estimates: the same counts; more capacity where they are the bottleneck."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from swjoin.cluster.master.split_dealer import span_us
from swjoin.cluster.ranks import RankMap
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.join_semantics import Bounds
from swjoin.forecast.capacity import Model, sustainable_rate
from swjoin.forecast.costs import PRESETS, CostModel, with_changes
from swjoin.forecast.input_profile import workload_profile
from swjoin.forecast.key_distribution import key_distribution
from swjoin.forecast.model.batch import Overlaps, overlap
from swjoin.forecast.model.discrete_event import Actor, Message, Usage, World
from swjoin.forecast.model.master_input import splits_of
from swjoin.forecast.model.run import SimulatedRun, ranks_of, simulate
from swjoin.forecast.network import plan_network
from swjoin.forecast.summary import forecast

MODERN = PRESETS["modern"]


def config(gateways: int = 1, sinks: int = 1, **sections: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "join": {"within": "1s"},
        "workload": {"rate": 20_000, "duration": "4s", "domain": 100_000, "bias": 0.6},
        "cluster": {"partition_count": 12, "distribution_epoch": "200ms", "gateways": gateways, "sinks": sinks},
        "module": {"theta": "32KB", "window": "1GB"},
        "sink": {"kind": "count"},
    }
    for name, value in sections.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return config_from_plain(plain)


def in_order(told: SimulatedRun) -> None:
    """After every step: every role is in order."""
    told.master.validate()
    for role in (*told.gateways, *told.sinks, *told.slaves):
        role.validate()


def counts(report: dict[str, Any]) -> tuple[int, int, int]:
    return report["input"]["left"]["tuples"], report["input"]["right"]["tuples"], report["results"]["count"]


# ---------------------------------------------------------------- the same counts


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["count", "parquet"])
@pytest.mark.parametrize(("gateways", "sinks", "ranks"), [(2, 1, 5), (4, 3, 3), (4, 3, 6), (4, 3, 10)])
def test_several_roles_take_the_tuples_and_pairs_of_one(kind: str, gateways: int, sinks: int, ranks: int) -> None:
    """Also where gateways and sinks share ranks with slaves."""
    alone = forecast(simulate(config(sink={"kind": kind}), 3, MODERN), "")
    wanted = config(gateways, sinks, sink={"kind": kind})
    roles = RankMap.of(wanted, ranks)
    told = simulate(wanted, roles.slave_ranks, MODERN, check=in_order, ranks=roles)
    report = forecast(told, "")
    assert told.complete
    assert counts(report) == pytest.approx(counts(alone), abs=12)  # a partition-group rounds its pairs down
    assert counts(report)[:2] == counts(alone)[:2]
    assert len(report["ranks"]) == ranks
    assert all(part["tuples"]["left"] > 0 for part in report["gateways"])
    assert len(report["sinks"]) == wanted.sink_count
    assert sum(part["count"] for part in report["sinks"]) == report["results"]["count"]
    assert min(part["count"] for part in report["sinks"]) > 0


@pytest.mark.drawn
@pytest.mark.parametrize("prefill", ["0s", "1s"])
def test_gateways_in_real_time_keep_up_and_share_the_input(prefill: str) -> None:
    sections: dict[str, Any] = {"pace": "realtime", "measure": {"prefill": prefill}}
    alone, report = (forecast(simulate(config(n, **sections), 3, MODERN, check=in_order), "") for n in (1, 4))
    assert report["keeps_up"] or prefill != "0s"
    assert counts(report) == pytest.approx(counts(alone), rel=0.02)  # other intervals of time are drawn
    assert report["delay_s"]["mean"] == pytest.approx(alone["delay_s"]["mean"], rel=0.1)
    tuples = [part["tuples"]["left"] for part in report["gateways"]]
    assert min(tuples) > 0.8 * max(tuples)


@pytest.mark.drawn
@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_partition_groups_move_between_deliveries_of_several_gateways(pace: str) -> None:
    moving = {"policy": "random", "epoch": "200ms", "random_moves": 4, "chunk": "2KB"}
    wanted = config(3, pace=pace, workload={"rate": 3000}, reorganization=moving)
    report = forecast(simulate(wanted, 4, MODERN, check=in_order), "")
    still = forecast(simulate(config(3, pace=pace, workload={"rate": 3000}), 4, MODERN), "")
    assert report["moves"] > 3
    assert counts(report)[:2] == counts(still)[:2]
    assert report["results"]["count"] == pytest.approx(still["results"]["count"], abs=60)


@pytest.mark.parametrize(("gateways", "pace"), [(2, "asap"), (3, "realtime")])
def test_splits_are_whole_and_within_reach(gateways: int, pace: str) -> None:
    wanted = config(gateways, pace=pace)
    distribution, reach_us = key_distribution(wanted), span_us(wanted)
    splits = splits_of(distribution, reach_us)
    assert [split.row for split in splits] == [0, *(split.end for split in splits[:-1])]
    assert splits[-1].end == distribution.stretch_count
    assert all(split.high_us - split.low_us < reach_us for split in splits)
    assert [split.before_us for split in splits] == [BEGIN_OF_TIME_US, *(split.low_us for split in splits[1:])]
    if pace == "realtime":
        assert len(splits) >= gateways * 20  # a share of every distribution epoch for each


# ---------------------------------------------------------------- capacity

DEAR_READING = with_changes(MODERN, ["source_tuple_ns=200"])
DEAR_JOINING = with_changes(MODERN, ["slave_tuple_ns=4000"])
DEAR_WRITING = with_changes(MODERN, ["collector_byte_ns=400"])
FEW_PAIRS: dict[str, Any] = {"workload": {"domain": 10**9, "bias": 0.5}}
ROWS: dict[str, Any] = {"sink": {"kind": "parquet"}, "workload": {"domain": 20_000, "bias": 0.5}}


def model(costs: CostModel, gateways: int, sinks: int = 1, **sections: Any) -> Model:
    """A batch of rows takes a small part of a distribution epoch: the master answers no gateway while its rank reads one."""
    cluster = {"distribution_epoch": "500ms", "mini_buffer": "4GB"}
    wanted = config(gateways, sinks, pace="realtime", cluster=cluster, **sections)
    return Model.of(wanted, costs, 0, workload_profile(wanted))


def capacity(found: Model, known_per_s: float = 20_000.0) -> tuple[float, str]:
    sustained = sustainable_rate(found, 4, found.run_at(4, known_per_s), 1.04)
    return sustained.rate_per_s, sustained.resource


@pytest.mark.drawn
def test_capacity_grows_with_gateways_where_they_are_the_bottleneck() -> None:
    (one, first), (four, then) = (capacity(model(DEAR_READING, gateways, **FEW_PAIRS), 2e6) for gateways in (1, 4))
    assert (first, then) == ("master CPU", "gateway CPU")
    assert 3.2 * one < four < 4.1 * one


@pytest.mark.drawn
def test_capacity_does_not_grow_with_gateways_where_slaves_are_the_bottleneck() -> None:
    (one, first), (four, then) = (capacity(model(DEAR_JOINING, gateways)) for gateways in (1, 4))
    assert (first, then) == ("slaves", "slaves")
    assert four == pytest.approx(one, rel=0.15)


@pytest.mark.drawn
def test_capacity_grows_with_sinks_where_they_are_the_bottleneck() -> None:
    (one, first), (four, then) = (capacity(model(DEAR_WRITING, 1, sinks, **ROWS)) for sinks in (1, 4))
    assert (first, then) == ("collector", "sinks")
    assert 1.8 * one < four < 2.2 * one  # pairs grow with the square of the rate


@pytest.mark.parametrize(
    ("costs", "gateways", "sinks", "factor", "resource"),
    [
        (DEAR_READING, 3, 1, 3.0, "gateway CPU"),
        (DEAR_JOINING, 3, 1, 1.0, "slaves"),
        (DEAR_WRITING, 1, 4, 2.0, "sinks"),
    ],
)
def test_the_bound_of_the_rate_counts_every_gateway_and_sink(
    costs: CostModel, gateways: int, sinks: int, factor: float, resource: str
) -> None:
    sections = ROWS if sinks > 1 else FEW_PAIRS
    one, _ = model(costs, 1, **sections).reachable_per_s(4)
    several, limit = model(costs, gateways, sinks, **sections).reachable_per_s(4)
    assert several == pytest.approx(factor * one)
    assert limit == resource


def test_many_gateways_saturate_the_master() -> None:
    """Every message of a gateway costs the master time, and more with more slaves."""
    costs = with_changes(MODERN, ["message_ns=3e6", "source_tuple_ns=0"])
    told = forecast(simulate(config(8, pace="realtime"), 2, costs), "")
    assert told["utilisation"]["master"] > 0.7
    assert told["saturates_first"]["resource"] == "master CPU"
    numbers = with_changes(MODERN, ["number_ns=1e6"])
    few, many = (forecast(simulate(config(8, pace="realtime"), n, numbers), "")["utilisation"]["master"] for n in (2, 6))
    assert many > 2 * few


def test_roles_that_share_a_rank_share_its_time() -> None:
    costs = with_changes(MODERN, ["source_tuple_ns=2000", "slave_tuple_ns=2000"])
    wanted = config(3, cluster={"distribution_epoch": "100ms"}, workload={"duration": "10s"})
    assert ranks_of(wanted, 2).size == 6
    assert ranks_of(wanted, 2).slave_ranks == 2
    shared, apart = (simulate(wanted, 2, costs, ranks=RankMap.of(wanted, size)) for size in (4, 6))
    assert shared.end_us > 1.1 * apart.end_us
    used = [sum(role.busy_us for role in roles) for roles in shared.usage.by_rank()]
    assert max(used) <= 1.001 * (shared.end_us - shared.begin_us)


@pytest.mark.drawn
def test_a_plan_on_few_ranks_sustains_less(tmp_path: Path, swjoin: Any) -> None:
    """With 4 ranks, four of five gateways share ranks with slaves."""
    plain = {
        "join": {"within": "200ms"},
        "workload": {"rate": 20_000, "duration": "4s", "domain": 100_000},
        "cluster": {"distribution_epoch": "100ms", "gateways": 5, "partition_count": 12},
        "pace": "realtime",
        "sink": {"kind": "count"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(plain))
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump({"name": "dear", "source_tuple_ns": 4000, "slave_tuple_ns": 1000}))
    found = []
    for ranks in (4, 8):
        done = swjoin("plan", tmp_path / "c.yaml", "-n", ranks, "--costs", tmp_path / "costs.yaml", "--host-cores", 0, "--json")
        assert done.code == 0, done.err
        found.append(json.loads(done.out)["saturation"]["rate_per_s"])
    assert found[0] < 0.8 * found[1]


def test_epochs_may_be_shorter_than_the_shortest_split() -> None:
    wanted = config(2, pace="realtime", workload={"duration": "20ms"}, cluster={"distribution_epoch": "500us"})
    assert key_distribution(wanted).stretch_count >= 40


# ---------------------------------------------------------------- links


class Listener(Actor):
    def loop(self) -> None:
        self.rest()


def test_a_link_takes_one_large_message_in_each_direction_at_a_time() -> None:
    costs = with_changes(MODERN, ["link_bytes_per_s=1e6", "link_latency_us=0", "poll_longest_us=0"])
    world = World(config(), costs, 0)
    senders, receivers = [Listener(world) for _ in range(3)], [Listener(world) for _ in range(2)]
    ends: dict[str, float] = {}

    def send(name: str, sender: int, receiver: int, then: Callable[[], None] | None = None) -> Usage:
        used = Usage()
        arrive = partial(lambda key: ends.__setitem__(key, world.time.now_us), name)
        senders[sender].send(receivers[receiver], Message(1e5, arrive, used, Usage(), then))
        return used

    first, behind = (send(name, sender, 0, lambda: None) for sender, name in enumerate(("a", "b")))
    send("c", 2, 1)
    send("d", 2, 1)
    while world.time.step():
        pass
    assert ends == pytest.approx({"a": 1e5, "b": 2e5, "c": 1e5, "d": 2e5})
    assert (first.link_us, behind.link_us) == pytest.approx((1e5, 2e5))  # with the time that the receiver's link was taken


@pytest.mark.parametrize("bounds", [Bounds(-300, 300), Bounds(50, 400), Bounds(-500, -20), Bounds(0, 0)])
def test_overlaps_are_those_of_all_stretches(bounds: Bounds) -> None:
    edges = np.array([0, 100, 130, 300, 301, 700, 1000, 1800], np.int64)
    begins, widths = edges[:-1].astype(np.float64), np.diff(edges).astype(np.float64)
    whole = overlap(begins, widths, begins, widths, float(bounds.lower_us), float(bounds.upper_us + 1))
    every = np.arange(len(begins))
    overlaps = Overlaps(edges, bounds)
    for _ in range(2):
        assert overlaps.of(LEFT, every, every) == pytest.approx(whole, abs=1e-9)
        assert overlaps.of(RIGHT, every[2:4], every) == pytest.approx(whole.T[2:4], abs=1e-9)


# ---------------------------------------------------------------- commands


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    plain = {
        "join": {"within": "500ms"},
        "workload": {"rate": 2000, "duration": "2s", "domain": 1000},
        "cluster": {"distribution_epoch": "200ms", "gateways": 2, "sinks": 2},
        "pace": "realtime",
        "sink": {"kind": "parquet"},
    }
    path.write_text(yaml.safe_dump(plain))
    return path


def test_simulate_takes_ranks_or_slaves(path: Path, tmp_path: Path, swjoin: Any) -> None:
    done = swjoin("simulate", path, "-n", 6, "--out", tmp_path / "told")
    assert done.code == 0, done.err
    for text in ("2 slaves, 2 gateways, 2 sinks", "busiest gateway   busy", "busiest sink      busy"):
        assert text in done.out
    roles = [rank["role"] for rank in json.loads((tmp_path / "told" / "run.json").read_text())["ranks"].values()]
    assert roles == ["master", "collector", "slave 0", "slave 1", "gateway 1", "sink 1"]
    searched = swjoin("simulate", path, "-n", 8, "--search")
    assert searched.code == 0, searched.err
    assert "gateway CPU" in searched.out
    assert "2 gateways feed" in searched.out
    for words in (("-n", 2), (), ("-n", 4, "--slaves", 2)):
        assert swjoin("simulate", path, *words).code == 2


@pytest.mark.drawn
def test_plan_has_the_ranks_of_a_target(path: Path, swjoin: Any) -> None:
    done = swjoin("plan", path, "-n", 6, "--target-rate", 3000, "--most-slaves", 3, "--json")
    assert done.code == 0, done.err
    target = json.loads(done.out)["target"]
    assert (target["slaves"], target["ranks"]) == (1, 3)
    lines = swjoin("plan", path, "-n", 6).out
    assert "2 gateways" in lines
    assert "to 2 sinks" in lines


def test_every_gateway_sends_a_delivery_to_every_slave() -> None:
    one, four = (config(n, workload={"rate": 0.001}) for n in (1, 4))
    networks = [plan_network(c, 3, workload_profile(config()), (0.0, 0.0), 0.0) for c in (one, four)]
    assert sum(networks[1].to_slaves) == pytest.approx(4 * sum(networks[0].to_slaves))
    assert networks[1].to_master == pytest.approx(4 * networks[0].to_master)
    assert dataclasses.replace(networks[1], to_slaves=(), to_master=0.0) == dataclasses.replace(
        networks[0], to_slaves=(), to_master=0.0
    )

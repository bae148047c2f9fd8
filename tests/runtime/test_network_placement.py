"""Placement by measured traffic: what a run counts, moves while it goes on, and the start by the counts of an earlier run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.checkpoint import checkpointers
from swjoin.cluster.instances import Instances
from swjoin.cluster.master import network_placement
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.network_placement import NetworkPlacement, Teams, placed_again
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import gateway_role, slave_role
from swjoin.cluster.slave.stage import StageInstance
from swjoin.cluster.traffic import Traffic
from swjoin.config.sections import PlacementConfig
from swjoin.core.data_messages import GroupLoads
from swjoin.core.errors import UserError
from swjoin.operators.join_step import AnyStep
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Node, Result
from swjoin.policy.epochs import traffic_is_due
from swjoin.routing.hash_partition import groups_of_keys
from swjoin.runtime.simulator.plan_simulation import PlanSimulation
from swjoin.runtime.task_graph_file import Counts
from swjoin.runtime.traffic_report import Places, _placed, edge_traffic, traffic_graph
from tests.support.plan_shapes import join, shape_config, source
from tests.support.planted import texts
from tests.tools.plan_oracle import Row
from tests.tools.random_plans import PlanScenario, simulate

Monkey = pytest.MonkeyPatch
GROUPS = 11
SQL = (
    "SELECT a.k AS k, c.v AS v FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '1' "
    "SECOND JOIN c ON a.v = c.v AND c.ts BETWEEN a.ts - INTERVAL '0.2' SECOND AND a.ts + INTERVAL '0.2' SECOND"
)


def _rows(random: np.random.Generator, count: int, keys: int) -> list[Row]:
    """`v` follows from `k`, so partition-groups of a join by k send to few of one by v."""
    ts, k = np.sort(random.integers(0, 12 * count, count)).tolist(), random.integers(0, keys, count).tolist()
    return [Row(i, ts[i], (k[i], "", (37 * k[i] + 11) % 101, ts[i])) for i in range(count)]


def _draw(seed: int, *, calm: bool = True) -> PlanScenario:
    """Two joins by different keys, with an aggregate after them or none, one to three gateways, in the simulator. calm: without
    checkpoints and crashes."""
    random = np.random.default_rng([seed, 50])
    how = ("inner", "inner", "left", "right")[int(random.integers(0, 4))]
    second = IntervalJoin("j", "i", "c", ("left_v",), ("v",), join("x", "a", "b", within=(-30, 30)).query, "max")
    nodes: list[Node] = [source(name) for name in "abc"]
    nodes += [join("i", "a", "b", how, within=(-200, 200)), second, Result("out", "j")]
    width = int(random.integers(2, 5))
    sections: dict[str, Any] = {
        "cluster": {"partition_count": GROUPS, "distribution_epoch_us": 300, "strategy": "query"},
        "reorganization": {"policy": "network", "epoch_us": 300 * (2, 4, 9, 2)[seed % 4], "chunk_bytes": 1 << 10},
        "placement": {"horizon": 1e9, "slices": int(random.choice([1, 3])), "imbalance": float(random.choice([1.03, 1.5]))},
    }
    crashes: tuple[tuple[int, int], ...] = ()
    if not calm:
        sections["checkpoint"] = {"epochs": int(random.choice([3, 7]))}
        crashes = tuple((int(random.geometric(1 / 400)), int(random.integers(0, width))) for _ in range(3))
    config = shape_config(**sections).with_gateways(int(random.integers(1, 4))).with_sinks(int(random.integers(1, 3)))
    rows = {name: _rows(random, int(random.integers(200, 400)), int(random.choice([8, 30]))) for name in "abc"}
    valid = {name: [True] * len(of) for name, of in rows.items()}
    return PlanScenario(seed, LogicalPlan(tuple(nodes)), config, rows, valid, width, int(random.choice([7, 50])), None, crashes)


def _run(scenario: PlanScenario, kind: type[PlanSimulation] = PlanSimulation) -> None:
    simulate(scenario, scenario.evaluated()["out"], kind)


@contextmanager
def _moves(monkeypatch: Monkey) -> Iterator[Counter[str]]:
    seen: Counter[str] = Counter()
    suggested = NetworkPlacement.suggested

    def counted(self: NetworkPlacement, controllers: Any) -> Any:
        found = suggested(self, controllers)
        seen["moves"] += len(found)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(NetworkPlacement, "suggested", counted)
        yield seen


@pytest.mark.drawn
@pytest.mark.parametrize("calm", [True, False])
def test_random_runs_with_moves_by_traffic(calm: bool, monkeypatch: Monkey) -> None:
    """Their rows are the oracle's, also through crashes if not calm."""
    with _moves(monkeypatch) as seen:
        for seed in range(2):
            _run(_draw(seed, calm=calm))
    assert seen["moves"] > 10


def test_no_plan_waits_for_the_search(monkeypatch: Monkey) -> None:
    """Moves are sought when slaves have reported what they sent, and go with the next plan."""
    planning, found, ordered = [False], 0, 0
    plan, search, enact = Master._plan_epoch, network_placement.suggest, Controller.enact

    def planned(self: Master, now_us: int, **of: bool) -> Any:
        planning[0] = True
        epoch_plan = plan(self, now_us, **of)
        planning[0] = False
        return epoch_plan

    def outside(graph: Any, machines: Any, settings: Any, seed: Any, now: Any, **of: Any) -> Any:
        nonlocal found
        assert not planning[0]
        then = search(graph, machines, settings, seed, now, **of)
        found += int((then != now).sum())
        return then

    def inside(self: Controller, suggestions: Any, now_us: int) -> None:
        nonlocal ordered
        given = list(suggestions)
        ordered += len(given)
        assert planning[0] or not given
        enact(self, given, now_us)

    monkeypatch.setattr(Master, "_plan_epoch", planned)
    monkeypatch.setattr(network_placement, "suggest", outside)
    monkeypatch.setattr(Controller, "enact", inside)
    _run(_draw(0))
    assert found >= ordered > 10


def test_the_first_report_of_traffic_is_early() -> None:
    assert [epochs for epochs in range(1, 20) if traffic_is_due(epochs, 8)] == [2, 8, 16]
    assert [epochs for epochs in range(1, 7) if traffic_is_due(epochs, 3)] == [3, 6]


@pytest.mark.parametrize(
    ("first", "count"),
    [
        *(pytest.param(first, 5, marks=pytest.mark.drawn) for first in range(1_000, 2_000, 100)),
        *(pytest.param(first, 15, marks=pytest.mark.long) for first in range(1_005, 1_500, 100)),
    ],
)
def test_more_random_runs(first: int, count: int) -> None:
    for seed in range(first, first + count):
        _run(_draw(seed, calm=first % 200 < 100))


# ---------------------------------------------------------------- what is counted


class _Counted(PlanSimulation):
    """Compares what all senders have counted with the rows that have left them."""

    def _result(self, steps: int) -> Any:
        gateways = [gateway.summary() for gateway in self.gateways]
        slaves = [slave.summary() for slave in self.slaves]
        places = Places(RankMap(9, 2, 3, self.instances.subclusters.places))
        found = edge_traffic(places, gateways, slaves)
        graph = traffic_graph(self.instances, gateways, slaves)
        for edge, ways in found.items():
            sent = [role["edges"]["sent"].get(str(edge), [0, 0, 0]) for role in (*gateways, *slaves)]
            assert sum(way["rows"] for way in ways.values()) == sum(entry[0] for entry in sent)
            assert sum(way["bytes"] for way in ways.values()) == sum(entry[2] for entry in sent)
        assert sum(tuples for _, _, tuples, _ in graph["edges"]) == sum(
            entry[0] for role in (*gateways, *slaves) for entry in role["edges"]["sent"].values()
        )
        self.PAIRS[self.instances.width] = Counter({(a, b): n for a, b, n, _ in graph["edges"] if not a.startswith("g")})
        return super()._result(steps)

    PAIRS: ClassVar[dict[int, Counter[tuple[str, str]]]] = {}  # by slave ranks


def _first_join(scenario: PlanScenario) -> IntervalJoin:
    node = scenario.plan.node("i")
    assert isinstance(node, IntervalJoin)
    return node


def test_rows_between_partition_groups_are_those_of_the_oracle(monkeypatch: Monkey) -> None:
    """Whatever moves: row by row, by the keys of both joins; and the same for another number of slaves."""
    drawn = (replace(_draw(seed), config=_draw(seed).config.with_sinks(1)) for seed in range(40))
    scenario = next(s for s in drawn if s.config.gateway_count > 1 and _first_join(s).semantics.how == "inner")
    answer = scenario.evaluated()["i"]
    keys = np.array([(row.values[0], row.values[2]) for row in answer], np.int64)
    groups = [groups_of_keys(keys[:, column], GROUPS) for column in (0, 1)]
    expected = Counter((f"0.{a}", f"1.{b}") for a, b in zip(*(g.tolist() for g in groups), strict=True))
    with _moves(monkeypatch) as seen:
        for width in (2, 4):
            _run(replace(scenario, width=width), _Counted)
            assert _Counted.PAIRS[width] == expected
    assert seen["moves"] > 0


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_rows_without_a_match_have_an_origin(how: Any) -> None:
    """By the key that they have; null keys have none."""
    random = np.random.default_rng(3)
    node = IntervalJoin("j", "i", "c", ("left_v",), ("v",), join("x", "a", "b", within=(-30, 30)).query, "max")
    nodes = (*(source(name) for name in "abc"), join("i", "a", "b", how, within=(-9, 9)), node, Result("out", "j"))
    rows = {name: _rows(random, 150, 30) for name in "abc"}
    config = shape_config(cluster={"partition_count": GROUPS, "distribution_epoch_us": 300, "strategy": "query"})
    scenario = PlanScenario(1, LogicalPlan(nodes), config, rows, {n: [True] * len(of) for n, of in rows.items()}, 2, 20)
    _run(scenario, _Counted)
    expected: Counter[tuple[str, str]] = Counter()
    for row in scenario.evaluated()["i"]:
        if row.values[2] is not None:
            ends = groups_of_keys([row.values[0]], GROUPS)[0], groups_of_keys([row.values[2]], GROUPS)[0]
            expected[f"0.{ends[0]}", f"1.{ends[1]}"] += 1
    assert _Counted.PAIRS[2] == expected


def test_what_is_new_in_the_counts() -> None:
    traffic, rng = Traffic(4, origins=True), np.random.default_rng(1)
    for _ in range(20):
        before, edge = traffic.table(), int(rng.integers(0, 3))
        origins, slot = rng.integers(-1, 4, 50), rng.integers(0, 4, 50)
        traffic.rows_from(edge, 8.0, origins, np.array([2, 0, 3, 1]), slot)
        found = traffic.fresh()
        assert found[:, 3].sum() == 50
        assert (found[:, 4] == 8 * found[:, 3]).all()
        assert traffic.table()[:, 3].sum() == before[:, 3].sum() + 50
    assert len(traffic.fresh()) == 0


def test_ways_between_roles() -> None:
    places = Places(RankMap(5, 1, 1, (0, 1, 2, 0, 1, 2)), ("a", "a", "a", "b", "b"))
    assert places.way(slave_role(0), slave_role(3)) == "local"
    assert places.way(slave_role(1), slave_role(2)) == "in_host"
    assert places.way(slave_role(0), slave_role(1)) == "between_hosts"
    assert places.way(gateway_role(0), slave_role(0)) == "in_host"


def test_the_most_state_of_partition_groups_is_kept() -> None:
    """It is looked at when clearly more is kept than ever before."""
    traffic = Traffic(3, origins=True)
    assert not traffic.wants_state(0)
    traffic.held(100, np.array([5, 0, 70]))
    assert [traffic.wants_state(kept) for kept in (50, 110, 111)] == [False, False, True]
    traffic.held(120, np.array([9, 3, 60]))
    assert traffic.to_plain()["state_bytes"] == [9, 3, 70]


def test_a_start_by_statistics_keeps_to_the_memory() -> None:
    """The two partition-groups that exchange most would fill one instance of each stage beyond half of its limit."""
    scenario = _draw(0)
    instances = Instances.of(scenario.plan, scenario.config, 2)
    names = [f"{stage.id}.{group}" for stage in instances.stages.stages for group in range(GROUPS)]
    heavy = {"0.0": 40, "0.1": 40, "1.0": 40, "1.1": 40}
    tasks = [{"id": name, "work": 1, "state_bytes": heavy.get(name, 0) << 20} for name in names]
    edges = [[one, other, 1_000, 1_000] for one in ("0.0", "0.1") for other in ("1.0", "1.1")]
    counts = Counts.parsed(Path("made"), {"tasks": tasks, "edges": edges}, None)
    at = np.arange(len(names))
    for mib, apart in ((64, True), (400, False)):
        module = replace(instances.config.module, window_bytes=mib << 20)
        owners = _placed(replace(instances, config=replace(instances.config, module=module)), counts.graph(), at)
        assert (len({owners[0][0], owners[0][1], owners[1][0], owners[1][1]}) > 1) == apart


@pytest.mark.parametrize(
    ("count", "ways"), [(1, ["in_host"] * 3), (4, ["between_hosts", "between_hosts", "local"]), (6, ["between_hosts"] * 3)]
)
def test_gateways_have_ranks_of_their_own_where_there_are_enough(count: int, ways: list[str], tmp_path: Path) -> None:
    """Three gateways: in threads, two of them on the ranks of two instances, each on a rank of its own."""
    scenario = _draw(0)
    instances = Instances.of(scenario.plan, scenario.config.with_gateways(3).with_sinks(1), 2)
    places = Places.of(instances, [{"rank": i, "host": f"h{i}"} for i in range(count)])
    assert [places.way(gateway_role(g), slave_role(0)) for g in range(3)] == ways
    assert places.way(slave_role(0), slave_role(2)) == "local"


# ---------------------------------------------------------------- planted bugs


def _keyed_by_slave(monkeypatch: Monkey) -> None:
    """The suggestion names where a partition-group is, not where it should go."""
    suggested = NetworkPlacement.suggested

    def wrong(self: NetworkPlacement, controllers: Any) -> Any:
        return [(stage, replace(s, supplier=s.consumer, consumer=s.supplier)) for stage, s in suggested(self, controllers)]

    monkeypatch.setattr(NetworkPlacement, "suggested", wrong)


def _of_another_stage(monkeypatch: Monkey) -> None:
    suggested = NetworkPlacement.suggested

    def wrong(self: NetworkPlacement, controllers: Any) -> Any:
        return [(1 - stage, suggestion) for stage, suggestion in suggested(self, controllers)]

    monkeypatch.setattr(NetworkPlacement, "suggested", wrong)


@pytest.mark.parametrize("plant", [_keyed_by_slave, _of_another_stage])
def test_planted_bugs_are_caught(plant: Callable[[Monkey], None], monkeypatch: Monkey) -> None:
    plant(monkeypatch)
    assert next(texts([_draw(seed) for seed in range(6)], _run), "")


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda step: replace(step, origins=step.origins[::-1].copy()), "another order"),
        (lambda step: replace(step, origins=np.zeros_like(step.origins)), "one origin"),
    ],
)
def test_origins_of_other_rows_are_noticed(plant: Any, found: str, monkeypatch: Monkey) -> None:
    emit = StageInstance.emit

    def wrong(self: StageInstance, step: AnyStep, delivery: Any) -> Any:
        return emit(self, plant(step), delivery)

    monkeypatch.setattr(StageInstance, "emit", wrong)
    with pytest.raises(AssertionError):
        test_rows_between_partition_groups_are_those_of_the_oracle(monkeypatch)


# ---------------------------------------------------------------- the master's part


def _placement(window_bytes: int = 1 << 30, interval: int = 1) -> tuple[NetworkPlacement, list[Controller]]:
    """Two stages of six partition-groups on two slaves, of which group g of the first one sends to g + 1 of the second."""
    config = shape_config(cluster={"partition_count": 6, "distribution_epoch_us": 300})
    controllers = [Controller(config, 2, stage, 2) for stage in range(2)]
    teams = Teams.of({4: (0, 1)}, [range(2), range(2)], 6)
    return NetworkPlacement(teams, PlacementConfig(slices=1), 1, window_bytes, interval), controllers


def _suggested(placement: NetworkPlacement, controllers: list[Controller]) -> list[Any]:
    return placement.suggested(controllers) if placement.close_slices([c.slave_count for c in controllers], 100) else []


def _report(
    placement: NetworkPlacement,
    nbytes: int,
    *,
    first: int = 0,
    slaves: int = 2,
    state: int = 0,
    busy_us: tuple[int, int] = (0, 0),
    of_traffic: bool = True,
) -> None:
    """Of the slaves from `first` on, at the end of a distribution epoch. busy_us: of each slave, in both stages."""
    groups = np.arange(6)
    sent = np.stack([np.full(6, 4), groups, (groups + 1) % 6, np.full(6, 10), np.full(6, nbytes)], axis=1)
    for stage in range(2):
        for slave in range(first, slaves):
            mine = groups % 2 == slave
            mine_sent = (sent[mine] if stage == 0 else sent[:0]) if of_traffic else None
            loads = GroupLoads(busy_us[slave], groups[mine], np.full(3, 100), np.full(3, state), mine_sent)
            placement.reported(stage, slave, loads)


def test_chains_come_together() -> None:
    placement, controllers = _placement()
    _report(placement, 1 << 20)
    moves = _suggested(placement, controllers)
    assert 0 < len(moves) <= 6
    owners = [controller.map.owner.copy() for controller in controllers]
    for stage, s in moves:
        assert owners[stage][s.group] == s.supplier
        owners[stage][s.group] = s.consumer
    assert owners[0].tolist() == np.roll(owners[1], -1).tolist()
    assert [np.bincount(owner).tolist() for owner in owners] == [[3, 3]] * 2
    kinds = [(note.kind, round(note.amount)) for note in placement.take_notes()]
    assert kinds == [("placed", 0), ("regret", 100)]


def test_what_was_measured_is_in_checkpoints() -> None:
    """Another placement goes on with it; with three slaves chains are together and all slaves have as much."""
    placement, controllers = _placement()
    assert placement.plain_state() == {}
    _report(placement, 1 << 20, state=40)
    _suggested(placement, controllers)
    plain = json.loads(json.dumps(placement.plain_state()))
    other, _ = _placement()
    other.restore(plain)
    assert other.plain_state() == plain
    reorganization = {"policy": "network", "epoch_us": 600}
    config = shape_config(cluster={"partition_count": 6, "distribution_epoch_us": 300}, reorganization=reorganization)
    teams = Teams.of({4: (0, 1)}, [range(3), range(3)], 6)
    owners = placed_again(plain, teams, config, (3, 3))
    assert owners[0].tolist() == np.roll(owners[1], -1).tolist()
    assert [np.bincount(owner).tolist() for owner in owners.values()] == [[2, 2, 2]] * 2
    assert placed_again({}, teams, config, (3, 3)) == {}


def test_other_teams_go_on_with_what_was_measured() -> None:
    """A stage that had a rank of its own shares the others': it is placed by its work, they by their traffic, too."""
    cluster, reorganization = {"partition_count": 6, "distribution_epoch_us": 300}, {"policy": "network", "epoch_us": 600}
    placement = NetworkPlacement(Teams.of({4: (0, 1)}, [range(2), range(2), range(2, 3)], 6), PlacementConfig(), 1, 1 << 30, 1)
    _report(placement, 1 << 20)
    groups = np.arange(6)
    placement.reported(2, 0, GroupLoads(0, groups, np.full(6, 100), np.full(6, 5), np.zeros((0, 5), np.int64)))
    controllers = [Controller(shape_config(cluster=cluster), count, stage, 3) for stage, count in enumerate((2, 2, 1))]
    _suggested(placement, controllers)
    config = shape_config(cluster=cluster, reorganization=reorganization)
    teams = Teams.of({4: (0, 1), 5: (1, 2)}, [range(2)] * 3, 6)
    owners = placed_again(json.loads(json.dumps(placement.plain_state())), teams, config, (2, 2, 2))
    assert owners[0].tolist() == np.roll(owners[1], -1).tolist()
    assert np.bincount(np.concatenate(list(owners.values()))).tolist() == [9, 9]


def test_with_fewer_slaves_partition_groups_are_placed_by_what_was_measured(monkeypatch: Monkey) -> None:
    """In the simulator: fewer bytes between ranks than by number, and the rows are the oracle's."""
    shares: list[tuple[int, int]] = []

    def placed(plain: Any, teams: Teams, config: Any, counts: Any) -> Any:
        found = placed_again(plain, teams, config, counts)
        if found and plain["sent"]:
            sent, owner = np.array(plain["sent"]), np.stack([found[stage] for stage in sorted(found)])
            sender, receiver = np.array([teams.ends[edge] for edge in sent[:, 0].tolist()]).T
            one, other = owner[sender, sent[:, 1]], owner[receiver, sent[:, 2]]
            by_number = (sent[:, 1] - sent[:, 2]) % counts[0] != 0
            shares.append((int(sent[one != other, 4].sum()), int(sent[by_number, 4].sum())))
        return found

    monkeypatch.setattr(checkpointers, "placed_again", placed)
    for seed in range(3):
        _run(replace(_draw(seed, calm=False), width=4, crashes=((2_500, 2), (4_000, 3))))
    assert len(shares) >= 3
    assert all(ours <= by_number for ours, by_number in shares)
    assert sum(ours for ours, _ in shares) < 0.9 * sum(by_number for _, by_number in shares)


@pytest.mark.parametrize(("nbytes", "state"), [(100, 0), (1 << 20, 1 << 30)])
def test_moves_that_do_not_pay_are_not_made(nbytes: int, state: int) -> None:
    """Little traffic, or much state."""
    placement, controllers = _placement()
    _report(placement, nbytes, state=state)
    assert _suggested(placement, controllers) == []
    assert _suggested(placement, controllers) == []  # nothing was reported


@pytest.mark.parametrize(("window_bytes", "most"), [(8_000, 4), (100, 3)])
def test_no_instance_is_filled_beyond_half_of_its_limit(window_bytes: int, most: int) -> None:
    """Or beyond what it holds: partition-groups have 1,000 bytes each, and three are at every slave at first."""
    placement, controllers = _placement(window_bytes)
    for _ in range(3):
        _report(placement, 1 << 20, state=1_000)
        for stage, s in _suggested(placement, controllers):
            controllers[stage].map = controllers[stage].map.moved(s.group, s.consumer)
        assert max(np.bincount(controller.map.owner).max() for controller in controllers) <= most


def test_moves_into_full_instances_are_left_out(monkeypatch: Monkey) -> None:
    """Those with most state first."""
    placement, controllers = _placement(window_bytes=10_000)
    _report(placement, 1 << 20)
    placement._open[0].state_bytes[:] = [[3_000, 0, 2_000, 0, 1_000, 0]] * 2
    to_one = np.ones(12, np.int64)
    monkeypatch.setattr(network_placement, "suggest", lambda *_, **__: to_one)
    monkeypatch.setattr(network_placement, "is_worth", lambda *_, **__: True)
    moves = _suggested(placement, controllers)
    assert [(stage, int(s.group)) for stage, s in moves] == [(0, 2), (0, 4), (1, 2), (1, 4)]


def test_an_exchange_of_which_one_half_is_left_out_fills_nothing() -> None:
    """The other half is left out, too: what does not go stays where it is. Rows of 1, 2 and 3 stages."""
    mega = 1 << 20
    for first, second in ((550, 500), (560, 460), (540, 480)):
        state = np.array([first, second, 120, 570, 530, 0, 0, 0, 0]) * mega
        now, then = np.array([[0, 1, 1, 1, 0, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 1, 0, 0]])
        placement = NetworkPlacement(Teams.of({0: (0, 1), 1: (1, 2)}, [range(2)] * 3, 3), PlacementConfig(), 0, 1_000 * mega, 1)
        kept = placement._within_memory(state, now, then, 2)
        for stage in (slice(0, 3), slice(3, 6), slice(6, 9)):
            held, before = (np.bincount(of[stage], state[stage], 2) for of in (kept, now))
            assert (held <= np.maximum(500 * mega, before)).all()
        assert kept[8] == 0, "a move without state fills nothing"


def test_what_is_left_of_moves_is_made_if_it_pays(monkeypatch: Monkey) -> None:
    """One of the moves alone would leave a rank with more than the bound."""
    placement, controllers = _placement()
    _report(placement, 1 << 20)
    kept, first = NetworkPlacement._within_memory, np.arange(12) == 1

    def of_one_move(self: NetworkPlacement, state: Any, now: Any, then: Any, count: int) -> Any:
        return np.where(first, kept(self, state, now, then, count), now)

    monkeypatch.setattr(NetworkPlacement, "_within_memory", of_one_move)
    assert _suggested(placement, controllers) == []
    monkeypatch.undo()
    _report(placement, 1 << 20)
    assert _suggested(placement, controllers) != []


def test_a_run_that_goes_on_with_other_ranks_knows_their_hosts() -> None:
    """Partition-groups that exchange most are on one host, two ranks each, and not only on ranks."""
    groups, config = 8, shape_config(cluster={"partition_count": 8}, reorganization={"policy": "network"})
    ends = {4: (0, 1)}
    before = NetworkPlacement(Teams.of(ends, [range(2)] * 2, groups), PlacementConfig(), 1, 1 << 30, 1)
    of = np.arange(groups)
    other = (of + 4) % groups  # a pair of chains, which are too heavy for one rank
    heavy = np.stack([np.full(groups, 4), of, of, np.full(groups, 50), np.full(groups, 1 << 20)], axis=1)
    light = np.stack([np.full(groups, 4), of, other, np.full(groups, 20), np.full(groups, 1 << 18)], axis=1)
    sent = np.concatenate([heavy, light])
    for slave in range(2):
        mine = of[of % 2 == slave]
        loads = GroupLoads(0, mine, np.full(len(mine), 100), np.full(len(mine), 5), sent[sent[:, 1] % 2 == slave])
        before.reported(0, slave, loads)
        before.reported(1, slave, replace(loads, sent=np.zeros((0, 5), np.int64)))
    assert before.close_slices([2, 2], 1)
    plain = json.loads(json.dumps(before.plain_state()))
    hosts = np.array([0, 0, 1, 1])
    owners = placed_again(plain, Teams.of(ends, [range(4)] * 2, groups, hosts.tolist()), config, (4, 4))
    at = [hosts[owners[stage]] for stage in (0, 1)]
    assert (at[0][sent[:, 1]] == at[1][sent[:, 2]]).all()


def test_a_slice_is_complete_when_all_slaves_have_reported_it() -> None:
    """A slave that is ahead counts once in a slice; slices that are complete together are both taken."""
    placement, controllers = _placement()
    for _ in range(3):
        _report(placement, 1 << 20, slaves=1)
        assert not placement.close_slices([2, 2], 100)
    _report(placement, 1 << 20, first=1)
    assert len(_suggested(placement, controllers)) > 0
    for _ in range(2):
        _report(placement, 1 << 20, first=1)
    assert placement.close_slices([2, 2], 100)
    assert np.array(placement.plain_state()["sent"])[:, 3].tolist() == [10] * 6
    assert not placement.close_slices([2, 2], 100)


def test_a_stage_of_no_team_may_report_later_or_earlier() -> None:
    placement = NetworkPlacement(Teams.of({4: (0, 1)}, [range(2), range(2), range(2, 3)], 6), PlacementConfig(), 1, 1 << 30, 1)
    own = GroupLoads(0, np.arange(6), np.full(6, 100), np.full(6, 5), np.zeros((0, 5), np.int64))
    _report(placement, 1 << 20)
    assert not placement.close_slices([2, 2, 1], 100)
    for _ in range(2):
        placement.reported(2, 0, own)
    assert placement.close_slices([2, 2, 1], 100)
    _report(placement, 1 << 20)
    assert placement.close_slices([2, 2, 1], 200)
    assert placement.plain_state()["work_ns"][2] == [100] * 6


def test_slices_count_by_their_lengths() -> None:
    """Of reorganization epochs of four distribution epochs: what was sent in the first, and in the three after it."""
    placement, controllers = _placement(interval=4)
    _report(placement, 1 << 20)
    assert len(_suggested(placement, controllers)) > 0
    assert np.array(placement.plain_state()["sent"])[:, 3].tolist() == [40] * 6
    for _ in range(2):
        _report(placement, 1 << 20, of_traffic=False)
    _report(placement, 1 << 20)
    assert placement.close_slices([2, 2], 200)
    assert np.array(placement.plain_state()["sent"])[:, 3].tolist() == [14] * 6  # ten in three quarters, rounded up


def test_only_moves_that_are_ordered_are_logged() -> None:
    """A later search takes the place of an earlier one; what was seen stays in the log."""
    placement, controllers = _placement()
    for _ in range(2):
        _report(placement, 1 << 20)
        placement.seek(controllers, 100)
    assert sorted(note.kind for note in placement.take_notes()) == ["placed", "regret", "regret"]
    assert len(placement.take_moves()) > 0
    _report(placement, 1 << 20)
    placement.seek(controllers, 200)
    placement.drop_moves()
    assert [note.kind for note in placement.take_notes()] == ["regret"]
    assert placement.take_moves() == []


def test_a_slow_rank_gets_less() -> None:
    """One that takes twice as long for its work, as is seen at the first report."""
    placement, controllers = _placement()
    _report(placement, 1 << 20, busy_us=(100, 200))
    for stage, s in _suggested(placement, controllers):
        controllers[stage].map = controllers[stage].map.moved(s.group, s.consumer)
    assert np.bincount(np.concatenate([c.map.owner for c in controllers])).tolist() == [8, 4]


def test_equal_epochs_make_no_move() -> None:
    placement, controllers = _placement()
    for epoch in range(4):
        _report(placement, 1 << 20)
        moves = _suggested(placement, controllers)
        assert bool(moves) == (epoch == 0)
        for stage, s in moves:
            controllers[stage].map = controllers[stage].map.moved(s.group, s.consumer)


def test_teams() -> None:
    ranks = [range(2), range(2), range(2, 4), range(2, 4), range(4, 5)]
    assert Teams.of({0: (0, 1), 1: (1, 2), 2: (2, 4)}, ranks, 7).teams == ((0, 1),)
    assert Teams.of({0: (0, 2), 1: (2, 3)}, ranks, 7).teams == ((2, 3),)
    assert Teams.of({0: (0, 2)}, ranks, 7).teams == ()


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("inputs"), np.random.default_rng(5)
    for name in "abc":
        k, ts = rng.integers(0, 80, 4_000), np.sort(rng.integers(0, 20_000_000, 4_000))
        pq.write_table(pa.table({"ts": ts, "k": k, "v": (37 * k + 11) % 101}), folder / f"{name}.parquet")
    plain = {
        "inputs": {name: {"path": str(folder / f"{name}.parquet"), "time": "ts", "time_unit": "us"} for name in "abc"},
        "queries": [{"name": "q", "sql": SQL}],
        "cluster": {"strategy": "query", "distribution_epoch": "500ms"},
        "sink": {"kind": "count"},
    }
    (folder / "run.yaml").write_text(json.dumps(plain))
    return folder


def _report_of(swjoin: Any, inputs: Path, out: Path, *more: str) -> tuple[dict[str, Any], float]:
    done = swjoin("run", inputs / "run.yaml", "--out", out, *more)
    assert done.code == 0, done.err
    report = json.loads((out / "run.json").read_text())
    (between,) = (edge for edge in report["edges"] if edge["from"] == "join 1")
    ways = between["traffic"]
    assert sum(way["rows"] for way in ways.values()) == between["sent"]["rows"]
    assert sum(way["bytes"] for way in ways.values()) == between["bytes"]
    return report, ways["local"]["bytes"] / between["bytes"]


@pytest.mark.parametrize("more", [("--threads", "3"), pytest.param(("-n", "5"), marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_a_run_starts_where_an_earlier_ones_traffic_wants_it(
    more: tuple[str, ...], swjoin: Any, inputs: Path, tmp_path: Path
) -> None:
    """The same rows, most of them within their rank; on ranks as in one process."""
    first, local = _report_of(swjoin, inputs, tmp_path / "first", "--threads", "3")
    assert local < 0.6
    again = f"placement.statistics={tmp_path / 'first'}"
    report, local = _report_of(swjoin, inputs, tmp_path / "again", *more, "--set", again)
    assert report["results"]["digest"] == first["results"]["digest"]
    assert local > 0.85
    placed = swjoin("place", tmp_path / "first" / "traffic.json.gz", "-k", "3", "--json")
    assert json.loads(placed.out)["total_tuples"] == sum(edge["sent"]["rows"] for edge in first["edges"])


@pytest.mark.drawn
@pytest.mark.mpi
def test_a_run_moves_by_its_own_traffic(swjoin: Any, inputs: Path, tmp_path: Path) -> None:
    network = ("reorganization.policy=network", "reorganization.epoch=1s", "placement.horizon=1000")
    settings = [word for text in network for word in ("--set", text)]
    first, _ = _report_of(swjoin, inputs, tmp_path / "first", "--threads", "3")
    report, local = _report_of(swjoin, inputs, tmp_path / "network", "-n", "5", *settings)
    assert report["results"]["digest"] == first["results"]["digest"]
    assert report["moves"] > 10
    assert local > 0.6
    shown = swjoin("events", tmp_path / "network", "--kind", "placed", "regret")
    assert "placement: " in shown.out
    assert "points above the best placement" in shown.out


def test_what_is_refused(swjoin: Any, inputs: Path, tmp_path: Path) -> None:
    """In one line, and nothing is left."""
    earlier = tmp_path / "earlier"
    _report_of(swjoin, inputs, earlier, "--threads", "2")
    given = f"placement.statistics={earlier}"
    wrong = {
        "no two stages share slave ranks": [given, "cluster.strategy=subquery"],
        "other partition-groups than the 30": [given, "cluster.partition_count=30"],
        "does not exist": ["placement.statistics=nowhere"],
        "leave out declustering and active_slaves": [given, "reorganization.active_slaves=1"],
        "slices must be 1 to 1000": ["placement.slices=0"],
        "objective deliveries is for swjoin place": ["placement.objective=deliveries"],
        "set cluster.strategy: query": [
            "reorganization.policy=network",
            "reorganization.epoch=1s",
            "cluster.strategy=subquery",
        ],
    }
    for text, settings in wrong.items():
        sets = [word for setting in settings for word in ("--set", setting)]
        done = swjoin("run", inputs / "run.yaml", "--threads", "4", "--out", tmp_path / "no", *sets)
        assert done.code == 2
        assert len(done.err) == 1
        assert text in done.err[0]
        assert not (tmp_path / "no").exists()
    graph = json.loads(gzip.decompress((earlier / "traffic.json.gz").read_bytes()))
    pinned = {**graph, "tasks": [{**task, "pinned": 99} for task in graph["tasks"]]}  # of another placement
    (earlier / "traffic.json.gz").write_bytes(gzip.compress(json.dumps(pinned).encode()))
    _report_of(swjoin, inputs, tmp_path / "pinned", "--threads", "3", "--set", given)
    for broken in ({**graph, "edges": []}, {**graph, "stages": []}, {**graph, "tasks": graph["tasks"][:-1], "edges": []}, []):
        (earlier / "traffic.json.gz").write_bytes(gzip.compress(json.dumps(broken).encode()))
        done = swjoin("run", inputs / "run.yaml", "--threads", "4", "--out", tmp_path / "no", "--set", given)
        assert (done.code, len(done.err)) == (2, 1)
        assert "statistics" in done.err[0] or "traffic.json.gz" in done.err[0]


def test_the_join_of_two_streams_is_one_stage(swjoin: Any, inputs: Path, tmp_path: Path) -> None:
    plain = {
        "join": {"within": "1s"},
        **{
            side: {"path": str(inputs / "a.parquet"), "key": "k", "time": "ts", "time_unit": "us"} for side in ("left", "right")
        },
    }
    config = tmp_path / "two.yaml"
    config.write_text(json.dumps(plain))
    for setting in ("reorganization.policy=network", f"placement.statistics={inputs}"):
        done = swjoin("run", config, "--threads", "2", "--out", tmp_path / "no", "--set", setting)
        assert (done.code, len(done.err)) == (2, 1)
        assert "the join of two streams is one stage" in done.err[0]


def test_a_plan_of_one_stage_has_nothing_to_place() -> None:
    plan = LogicalPlan((source("a"), source("b"), join("j", "a", "b"), Result("out", "j")))
    config = shape_config(reorganization={"policy": "network", "epoch_us": 80})
    with pytest.raises(UserError, match="take policy balanced"):
        Instances.of(plan, config, 2)

"""Forecasts of plans of several stages: arithmetic, from run.json of a measured run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from swjoin.cli.main import main
from swjoin.cli.plan_stages import capacity_of
from swjoin.cluster.exchange import EPOCHS_AHEAD
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import load_job
from swjoin.config.sections import QueryConfig
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import How
from swjoin.forecast.costs import PRESETS, with_changes
from swjoin.forecast.model.stages import PlanSimulation
from swjoin.forecast.stages import Capacity, PlanProfile, StageProfile, _fit
from swjoin.forecast.summary import forecast_plan, saturated
from swjoin.frontends.configured import job_of
from swjoin.plan.logical import Column, IntervalJoin, LogicalPlan, Result, Source
from swjoin.plan.multiway import with_multiway_joins
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.stages import cut
from swjoin.runtime.in_process import run_local
from tests.support.plan_runs import plan_job, report_of, write_streams

FREE = with_changes(PRESETS["modern"], ["message_ns=0"])  # of which a wider stage needs more
K = ("k",)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A run of two joins in a row, of three streams of 1,000 rows/s, and its report."""

    path: Path
    report: dict[str, Any]

    def capacity(
        self, width: int = 1, costs: Any = FREE, host_cores: int = 0, gateways: int = 1, strategy: str = "query"
    ) -> Capacity:
        job = load_job(self.path, [f"cluster.gateways={gateways}", f"cluster.strategy={strategy}"], "plan")
        assert job.plan is not None
        profile = PlanProfile.of(self.report, cut(plan_from_plain(job.plan)))
        return Capacity(profile, job.config, width, costs, host_cores)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("measured")
    inputs = write_streams(folder, "abc", 3000, 1, null_share=0.05)
    nodes = (
        IntervalJoin("j", "a", "b", K, K, QueryConfig(-30_000, 40_000)),
        IntervalJoin("i", "j", "c", K, K, QueryConfig(-20_000, 25_000, how="left"), "left"),
        Result("out", "i"),
    )
    job = plan_job(nodes, inputs, folder / "run", "count", cluster={"epoch_tuples": 700, "partition_count": 7})
    run_local(job, False, 2)
    return Measured(folder / "run", report_of(job))


def test_a_report_tells_work_and_windows_of_every_instance(measured: Measured) -> None:
    for stage in measured.report["stages"]:
        assert all(seconds > 0 for seconds in stage["work_s"])
        assert sum(stage["work_rows"]) == sum(stage["joined"].values()) + stage["produced"]
        assert len(stage["peak_window_tuples"]) == len(stage["peak_window_bytes"]) == 2
        assert 0 < sum(stage["peak_window_tuples"]) < sum(stage["joined"].values())


def test_the_flow_at_the_measured_rates_is_the_measured_one(measured: Measured) -> None:
    profile = measured.capacity().profile
    flow = profile.flow(profile.rates)
    for plain, came, out in zip(measured.report["stages"], flow.came, flow.out, strict=True):
        assert np.array(came) * profile.span_s == pytest.approx(list(plain["received"].values()))
        assert out * profile.span_s == pytest.approx(plain["produced"])
    for edge in measured.report["edges"]:
        assert flow.edge_rows[edge["edge"]] * profile.span_s == pytest.approx(edge["sent"]["rows"])
        assert flow.edge_bytes[edge["edge"]] * profile.span_s == pytest.approx(edge["bytes"])
    windows = [stage.kept(factors) for stage, factors in zip(profile.stages, flow.factors, strict=True)]
    assert windows == pytest.approx([sum(stage["peak_window_bytes"]) for stage in measured.report["stages"]])


def _stage(how: How, produced: float, matches: float) -> StageProfile:
    columns = (Column("k", "int64"), Column("ts", "timestamp[us]"))
    join = IntervalJoin("j", "a", "b", K, K, QueryConfig(-1000, 0, how=how))
    plan = LogicalPlan((Source("a", columns, "ts"), Source("b", columns, "ts"), join, Result("out", "j")))
    return StageProfile(cut(plan).stages[0], (1000.0, 500.0), produced, matches, 4000.0, 100.0, 1.0, 2000.0)


def test_pairs_grow_with_the_product_of_both_rates() -> None:
    inner = _stage("inner", 800, 800)
    assert inner.rows_out((3, 1)) == inner.rows_out((1, 3)) == 2400
    assert inner.rows_out((3, 5)) == 15 * 800
    assert _stage("left", 800 + 250, 800).rows_out((2, 2)) == 4 * 800 + 2 * 1000 * 0.25**2
    assert _stage("semi", 750, 750).rows_out((2, 2)) == pytest.approx(2 * 1000 * (1 - 0.25**2))
    assert _stage("anti", 250, 750).rows_out((2, 2)) == pytest.approx(2 * 1000 * 0.25**2)
    assert _stage("left", 1000, 800).rows_out((1, 0)) == 1000, "no row of the right matches"


def test_matches_of_a_star_grow_with_the_rates_of_all_inputs() -> None:
    columns, query = (Column("k", "int64"), Column("ts", "timestamp[us]")), QueryConfig(-1000, 0)
    sources = tuple(Source(name, columns, "ts") for name in "abc")
    joins = IntervalJoin("i", "a", "b", K, K, query), IntervalJoin("j", "i", "c", K, K, query)
    plan = with_multiway_joins(LogicalPlan((*sources, *joins, Result("out", "j"))))
    star = StageProfile(cut(plan).stages[0], (3000.0, 0.0), 50, 50, 4000.0, 100.0, 1.0, 3000.0)
    assert star.rows_out((2, 1)) == 8 * 50
    assert star.kept((2, 1)) == 8000


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_rows_out_at_the_measured_rate_are_the_measured_rows(how: How) -> None:
    assert _stage(how, 420, 300).rows_out((1, 1)) == pytest.approx(300 if how == "inner" else 420)


def test_windows_follow_the_port_whose_rows_are_kept() -> None:
    stage = _stage("inner", 1, 1)  # right - left is in [-1 ms, 0]: right rows wait for left rows
    assert stage.kept((1, 2)) == pytest.approx(8000, rel=0.01)
    assert stage.kept((2, 1)) == pytest.approx(4000, rel=0.01)


def test_more_slaves_have_less_each_and_sustain_more(measured: Measured) -> None:
    by_width = [measured.capacity(width) for width in range(1, 9)]
    rates = by_width[0].profile.rates
    flow = by_width[0].profile.flow(rates)
    for narrow, wide in itertools.pairwise(by_width):
        assert all(b <= a for a, b in zip(narrow.window_bytes(flow), wide.window_bytes(flow), strict=True))
        assert wide.loads(rates)["slaves"] <= narrow.loads(rates)["slaves"]
        assert wide.saturation(rates)[0] >= narrow.saturation(rates)[0] * (1 - 1e-5)
    assert by_width[6].window_bytes(flow) == by_width[7].window_bytes(flow), "there are seven partition-groups"


def test_stages_apart_share_the_work(measured: Measured) -> None:
    """Ranks are whole, so stages apart sustain at most what the same ranks do together; the simulation has the same time."""
    together, apart = measured.capacity(5), measured.capacity(5, strategy="subquery")
    rates = together.profile.rates
    assert sum(apart.subclusters.counts) == 5
    work = apart.work(rates)
    sides = [max(stage.shares) * stage.rows_s for stage in work.stages]
    assert max(work.slave_s(rank) for rank in range(5)) == pytest.approx(max(s.busiest_s for s in work.stages))
    assert apart.saturation(rates)[0] <= together.saturation(rates)[0] * (1 + 1e-6)
    counts = apart.allocation(rates)
    assert sum(counts) == 5
    measured_counts = dataclasses.replace(apart.config.cluster, instances=tuple(counts))
    allocated = dataclasses.replace(apart, config=dataclasses.replace(apart.config, cluster=measured_counts))
    assert allocated.subclusters.counts == tuple(counts)
    assert max(max(s.shares) * s.rows_s for s in allocated.work(rates).stages) <= max(sides) * (1 + 1e-6)
    for capacity in (together, apart, allocated):
        simulation = PlanSimulation(capacity, 20)
        simulation.run(simulation.validate)
        busy_us = sum(rank.busy_us for rank in simulation.ranks[2:])
        assert busy_us == pytest.approx(20e6 * sum(capacity.work(rates).slave_s(rank) for rank in range(5)))


@pytest.mark.parametrize(
    ("change", "resource"),
    [
        ("source_tuple_ns=1e6", "master CPU"),
        ("link_bytes_per_s=1e4", "master link"),
        ("collector_chunk_ns=1e10", "collector"),
    ],
)
def test_the_dearest_resource_saturates_first(change: str, resource: str, measured: Measured) -> None:
    rates = measured.capacity().profile.rates
    assert measured.capacity().saturation(rates)[1] == "slaves"
    capacity = measured.capacity(costs=with_changes(FREE, [change]))
    factor, first = capacity.saturation(rates)
    assert first == resource
    loads = capacity.loads({name: rate * factor for name, rate in rates.items()})
    assert max(loads.values()) == loads[resource] == pytest.approx(1.0, rel=1e-4)


def test_the_least_width_is_the_first_that_sustains_the_rate(measured: Measured) -> None:
    rates = measured.capacity().profile.rates
    factor, _ = measured.capacity(3).saturation(rates)
    wanted = {name: rate * factor * 0.999 for name, rate in rates.items()}
    assert measured.capacity().least_width(wanted, 64) == 3
    assert measured.capacity().least_width(wanted, 2) is None


def test_plan_prints_stages_and_edges_of_a_run(measured: Measured, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(measured.path), "-n", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [stage["join"] for stage in told["stages"]] == ["j", "i"]
    assert {stage["instances"] for stage in told["stages"]} == {2}
    assert [(edge["from"], edge["to"], edge["port"]) for edge in told["edges"]] == [
        (edge["from"], edge["to"], edge["port"]) for edge in measured.report["edges"]
    ]
    assert (
        main(["plan", str(measured.path / "run.json"), "--threads", "2", "--rate", "1000,2000,500", "--target-rate", "9"]) == 0
    )
    text = capsys.readouterr().out
    assert "2,000 b" in text
    assert "9 tuples/s of each source: 1 slaves" in text


@pytest.mark.parametrize(
    ("more", "code", "line"),
    [
        (["--set", "module.window=1MB", "--rate", "1e6"], 1, "module.window allows 1.0 MiB; shorten the windows"),
        (["--rate", "1,2"], 2, "of all sources, or of each: a,b,c"),
        (["--row", "8B"], 2, "--row: not of a run of a plan"),
        (["--target-rate", "1", "--target-delay", "1s"], 2, "--target-delay: not of a run of a plan"),
    ],
)
def test_plan_refuses_what_it_cannot_do_with_a_run(
    more: list[str], code: int, line: str, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(measured.path), *more]) == code
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1


def test_a_run_that_tells_too_little_is_refused_with_one_line(
    measured: Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for change in ({"complete": False}, {"stages": [{**s, "work_s": None} for s in measured.report["stages"]]}):
        (tmp_path / "run.json").write_text(json.dumps(measured.report | change))
        assert main(["plan", str(tmp_path)]) == 2
        assert "the run tells no rows and times" in capsys.readouterr().err


# ---------------------------------------------------------------- in virtual time


def _slowed(capacity: Capacity, *ns_per_row: float) -> Capacity:
    """The same with other costs of the stages' rows; those of the gateway are the cost model's."""
    profile = capacity.profile
    stages = tuple(
        dataclasses.replace(stage, work_s=ns * stage.work_rows / 1e9)
        for stage, ns in zip(profile.stages, ns_per_row, strict=True)
    )
    return dataclasses.replace(capacity, profile=dataclasses.replace(profile, stages=stages, gateway_row_s=None))


@pytest.mark.parametrize("slowest", [(5000.0, 1.0), (1.0, 5000.0), (500.0, 500.0)])
@pytest.mark.parametrize("host_cores", [0, 2])
def test_credit_is_never_exceeded_and_the_slowest_works_all_the_time(
    slowest: tuple[float, float], host_cores: int, measured: Measured
) -> None:
    run = PlanSimulation(_slowed(measured.capacity(3, host_cores=host_cores), *slowest), 40)
    ahead = 0

    def check() -> None:
        nonlocal ahead
        run.validate()
        ahead = max(ahead, run.gateway.complete - min(team.ended for team in run.stages))

    run.run(check)
    assert ahead == EPOCHS_AHEAD
    assert [team.complete for team in run.teams] == [40] * len(run.teams)
    assert run.time.now_us >= max(rank.busy_us for rank in run.ranks)
    busiest = max(rank.busy_us for rank in run.ranks[2:])
    assert host_cores or busiest > 0.9 * run.time.now_us


def test_a_slow_stage_holds_the_gateway_back(measured: Measured) -> None:
    """With two epochs of credit, the gateway ends epochs at the pace of the slowest stage."""
    run = PlanSimulation(_slowed(measured.capacity(), 1.0, 50_000.0), 40)
    run.run()
    gaps = np.diff(run.ended_us[5:])
    (stage,) = run.stages[1].roles
    assert gaps == pytest.approx(np.full(len(gaps), stage.work_us), rel=0.1)
    assert max(run.delays_us) < 6 * stage.work_us, "at most two epochs wait in each exchange"


def _in_epochs_of(capacity: Capacity, seconds: float) -> Capacity:
    cluster = dataclasses.replace(capacity.config.cluster, distribution_epoch_us=int(1e6 * seconds))
    return dataclasses.replace(capacity, config=dataclasses.replace(capacity.config, cluster=cluster))


@pytest.mark.parametrize("cost", ["message_ns=1e6", "source_tuple_ns=500"])
def test_a_gateway_of_four_has_a_quarter_of_the_work(cost: str, measured: Measured) -> None:
    """Also of the messages, where many rows make many parts."""
    costs = with_changes(FREE, [cost])
    one, four = (_in_epochs_of(measured.capacity(costs=costs, gateways=n), 10.0) for n in (1, 4))
    many = dict.fromkeys(one.profile.rates, 1e8)
    assert 4 * four.work(many).gateway_s == pytest.approx(one.work(many).gateway_s)


def test_roles_that_share_a_rank_share_its_time(measured: Measured) -> None:
    costs = with_changes(FREE, ["source_tuple_ns=3000"])
    apart = _slowed(measured.capacity(2, costs, gateways=4), 1000.0, 1000.0)
    shared = dataclasses.replace(apart, ranks=RankMap(4, 1, 4))
    assert (apart.rank_map.size, apart.rank_map.slave_ranks) == (7, 2)
    loads = [capacity.loads(apart.profile.rates) for capacity in (apart, shared)]
    reports = [forecast_plan(capacity, "") for capacity in (apart, shared)]
    assert max(loads[1].values()) > 1.5 * max(loads[0].values())
    assert reports[1]["join_s"] > 1.3 * reports[0]["join_s"]
    assert len(reports[1]["gateways"]) == 4
    assert reports[1]["saturates_first"]["resource"] == max(loads[1], key=lambda name: loads[1][name])
    assert reports[1]["utilisation"]["gateways"]["max"] < reports[1]["saturates_first"]["utilisation"]


def test_a_simulation_is_as_fast_as_its_busiest_resource_allows(measured: Measured) -> None:
    """Throughput in asap pace is that of the loads, less the first and the last epochs."""
    for width in (1, 2, 3):
        capacity = _slowed(measured.capacity(width), 3000.0, 2000.0)
        report = forecast_plan(capacity, "")
        whole = capacity.profile.flow(capacity.profile.rates).total
        bound = whole / capacity.loads(capacity.profile.rates)["slaves"]
        assert 0.6 * bound < report["input_tuples_per_s"] <= bound * (1 + 1e-9)
        assert report["saturates_first"]["resource"] == "slaves"
        delay = report["delay_s"]
        assert 0 < delay["p50"] <= delay["p99"] <= delay["max"]
        assert report["results"]["count"] == measured.report["results"]["count"]
        assert [stage["produced"] for stage in report["stages"]] == [s["produced"] for s in measured.report["stages"]]


def test_simulate_prints_stages_and_edges_of_a_run(
    measured: Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(measured.path), "--slaves", "2", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in ("stage j", "stage i", "edge 2            j to i, left", "saturates first", "production delay"):
        assert name in text
    assert json.loads((tmp_path / "simulation.json").read_text())["simulated"]
    paced = ["--set", "pace=realtime", "--set", "cluster.distribution_epoch=100ms"]
    assert main(["simulate", str(measured.path), "--slaves", "1", *paced]) == 0
    assert "keeps up" in capsys.readouterr().out
    assert main(["simulate", str(measured.path), "--slaves", "1", "--search"]) == 2
    assert "--search: not of a run of a plan; leave it out" in capsys.readouterr().err


# ---------------------------------------------------------------- a query from short runs of it, at the highest rate

_TUMBLE = "TUMBLE(cdr, ts, INTERVAL '1' SECOND)"
QUERY: dict[str, Any] = {
    "queries": [{"sql": f"SELECT calling, count(*) AS n FROM {_TUMBLE} WHERE x < 0.5 GROUP BY calling, window_end"}],
    "inputs": {"cdr": {"generate": "calls"}},
    "workload": {"domain": 300, "duration": "4s", "rate": 3000},
    "cluster": {"distribution_epoch": "200ms"},
    "pace": "asap",
    "sink": {"kind": "count"},
}


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with query.yaml and two runs of it, `low` and `high`, the latter with four times the rate."""
    folder = tmp_path_factory.mktemp("query")
    (folder / "query.yaml").write_text(yaml.safe_dump(QUERY))
    for name, rate in (("low", 3000), ("high", 12_000)):
        config = ["--set", f"workload.rate={rate}", "--out", str(folder / name)]
        assert main(["run", str(folder / "query.yaml"), "--threads", "1", *config]) == 0
    return folder


def _of_query(folder: Path, width: int, *settings: str, costs: Any = FREE) -> Capacity:
    job = job_of(folder / "query.yaml", list(settings), "simulate")
    return capacity_of(job, folder / "query.yaml", width, costs, profiles=[folder / "low", folder / "high"])


@pytest.mark.parametrize("strategy", ["subquery", "operator"])
def test_copies_are_those_of_the_matrix_of_a_width(strategy: str, tmp_path: Path) -> None:
    """Forecast from a run of another width, and counted by one of this width."""
    near = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '20' MILLISECOND AND a.x < b.x"
    plain = QUERY | {"queries": [{"sql": f"SELECT a.ts FROM cdr a JOIN cdr b ON {near}"}]}
    plain |= {"cluster": {"distribution_epoch": "200ms", "strategy": strategy}}
    (tmp_path / "query.yaml").write_text(yaml.safe_dump(plain))
    for threads in (1, 12):
        words = ["--threads", str(threads), "--out", str(tmp_path / str(threads))]
        assert main(["run", str(tmp_path / "query.yaml"), *words]) == 0
    job = job_of(tmp_path / "query.yaml", [], "simulate")
    capacity = capacity_of(job, tmp_path / "query.yaml", 12, FREE, profiles=[tmp_path / "1"])
    counted = json.loads((tmp_path / "12" / "run.json").read_text())
    flow = capacity.flow(capacity.profile.rates)
    rows = [flow.edge_rows[edge["edge"]] * capacity.profile.span_s for edge in counted["edges"]]
    assert rows == pytest.approx([edge["sent"]["rows"] for edge in counted["edges"]])
    assert flow.out[-1] * capacity.profile.span_s == pytest.approx(counted["stages"][-1]["produced"])
    assert max(stage["joined"]["right"] for stage in counted["stages"]) == 3 * counted["input"]["cdr"]["tuples"]


def test_two_runs_tell_apart_what_an_epoch_and_what_a_row_costs() -> None:
    assert _fit((10, 100, 10 * 3 + 100 * 2), (10, 1000, 10 * 3 + 1000 * 2)) == pytest.approx((3, 2))
    assert _fit((10, 100, 5.0), (10, 1000, 50.0)) == pytest.approx((0, 0.05)), "no cost of an epoch"
    assert _fit((10, 100, 9.0), (10, 1000, 6.0)) == pytest.approx((0.75, 0)), "the slower one has fewer rows: noise"
    assert _fit((10, 100, 1.0), (10, 1000, 100.0)) == pytest.approx((0, 101 / 1100)), "an epoch never costs less than nothing"


def test_costs_of_two_runs_explain_both(query: Path) -> None:
    reports = [json.loads((query / name / "run.json").read_text()) for name in ("low", "high")]
    profile = _of_query(query, 1).profile
    assert profile.gateway_row_s is not None
    (stage,) = profile.stages
    assert stage.epoch_s > 0 or stage.ns_per_row > 0
    if stage.epoch_s > 0 and stage.ns_per_row > 0:
        for report in reports:
            (plain,) = report["stages"]
            told = report["epochs"] * stage.epoch_s + 1e-9 * stage.ns_per_row * plain["work_rows"][0]
            assert told == pytest.approx(plain["work_s"][0])
    with pytest.raises(UserError, match="both runs have as many rows in an epoch"):
        PlanProfile.of(reports[0], profile.plan, reports[0])


def test_more_input_of_the_same_kind_has_the_same_selectivities(query: Path) -> None:
    capacity = dataclasses.replace(_of_query(query, 2), keys_grow=True)
    rates = capacity.profile.rates
    once, thrice = capacity.flow(rates), capacity.flow({name: 3 * rate for name, rate in rates.items()})
    assert thrice.out == pytest.approx([3 * rows for rows in once.out])
    assert capacity.window_bytes(thrice) == pytest.approx([3 * nbytes for nbytes in capacity.window_bytes(once)])


@pytest.mark.parametrize("width", [4, 24])
def test_the_highest_rate_is_sustained_and_little_more_is_not(query: Path, width: int) -> None:
    capacity = _of_query(query, width, "cluster.partition_count=240", costs=with_changes(FREE, ["message_ns=20000"]))
    report, run = saturated(capacity, "", balance=True)
    assert report["keeps_up"]
    assert run.roles.slave_ranks + run.roles.gateways == width, "gateways take the place of slaves"
    assert sum(report["causes"].values()) == pytest.approx(1)
    assert min(report["causes"].values()) > 0
    alone, _ = saturated(capacity, "")
    # Of four, gateways may take two places; the search goes down in steps of 1 %, here perhaps more of them than there.
    assert report["saturation_tuples_per_s"] >= alone["saturation_tuples_per_s"] * (0.97 if width > 4 else 0.48)
    paced = dataclasses.replace(capacity.config, pace="realtime")
    more = {"cdr": 1.2 * alone["saturation_tuples_per_s"]}
    assert not forecast_plan(dataclasses.replace(capacity, config=paced, keys_grow=True), "", more)["keeps_up"]


def test_nothing_is_sustained_where_messages_take_all_of_the_time(query: Path) -> None:
    report, _ = saturated(_of_query(query, 4, costs=with_changes(FREE, ["message_ns=1e9"])), "")
    assert report["saturation_tuples_per_s"] == 0


def test_costs_of_a_slower_node(query: Path) -> None:
    fast, slow, imitated = (
        _of_query(query, 2, *settings, costs=with_changes(FREE, changes))
        for settings, changes in (((), []), ((), ["row_ratio=10", "epoch_ratio=10"]), (("nodes.node_speed=0.1",), []))
    )
    rates = fast.profile.rates
    works = [capacity.work(rates).stages[0] for capacity in (fast, slow, imitated)]
    assert works[1].operator_s(0) == pytest.approx(10 * works[0].operator_s(0))
    assert works[2].operator_s(0) == pytest.approx(10 * works[0].operator_s(0))
    assert works[0].communication_s(0) == works[1].communication_s(0) == works[2].communication_s(0)


def test_simulate_takes_a_query_with_runs_of_it(query: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(query / "query.yaml"), "--slaves", "3"]
    assert main(command) == 2
    assert "simulate also takes it as --profile" in capsys.readouterr().err
    profiles = ["--profile", str(query / "low"), "--profile", str(query / "high")]
    assert main([*command, *profiles, "--set", "workload.rate=6000", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["input"]["cdr"]["tuples"] == pytest.approx(6000 * 0.2 * report["epochs"], rel=1e-3)
    rows = pq.read_table(tmp_path / "metrics" / "slaves.parquet").to_pylist()
    assert len(rows) == 3 * report["epochs"]
    assert sum(row["left_tuples"] for row in rows) == pytest.approx(report["stages"][0]["received"]["left"], rel=0.01)
    assert main([*command, *profiles, "--balance"]) == 2
    assert "give --saturate too" in capsys.readouterr().err
    other = yaml.safe_load((query / "query.yaml").read_text())
    other["queries"][0]["sql"] = other["queries"][0]["sql"].replace("0.5", "0.6")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    assert main(["simulate", str(tmp_path / "other.yaml"), "--slaves", "3", *profiles]) == 2
    assert "is a run of another query than that of" in capsys.readouterr().err

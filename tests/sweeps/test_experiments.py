"""Every experiment in experiments/, run at tiny scale: two points swept, all aggregated, each plotted; calibration.

What rots first in a repository like this one is its harness, so the suite runs all of it.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from swjoin.cli.main import main
from swjoin.core.errors import RunFailed
from swjoin.sweeps import node_speed
from swjoin.sweeps.node_speed import calibrated_speed, calibration_config
from swjoin.sweeps.points import load_experiment
from tests.conftest import ROOT
from tests.support.limits import LONG_S

pytestmark = pytest.mark.quiet

EXPERIMENTS = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.yaml"))}
OWNERS = {name: path for name, path in EXPERIMENTS.items() if load_experiment(path).source.name == name}
_TINY = ["measured=4s", "measure.warm_up=1s", "nodes.node_speed=0.05"]  # preset quick: 0.4 s
_SHORT_RUNS = "profile=[{workload.rate: 20000, workload.duration: 2s, cluster.gateways: 1}]"
SMALLER: dict[str, list[str]] = {
    "communication": [
        "measured=400ms",
        "measure.warm_up=100ms",
        "cluster.distribution_epoch=40ms",
        "join.within=200ms",
        "workload.domain=1000",
    ],
    "main": ["workload.duration=1s", "workload.rate=2000"],
    "thousand": ["workload.duration=4s", "workload.rate=100000", "join.within=1s"],
    "full_speed": ["measured=600ms", "measure.warm_up=250ms", "join.within=250ms", "search.high=200000"],
    "streamcloud_aggregate": ["measured=2s", "search.high=20000"],
    "streamcloud_comparisons": ["measured=2s"],
    "streamcloud_join": ["measured=2s", "search.high=2000"],
    "streamcloud_product": ["profile=[{workload.rate: 300, workload.duration: 8s, cluster.gateways: 1}]"],
    "streamcloud_product_delay": ["profile=[{workload.rate: 300, workload.duration: 8s, cluster.gateways: 1}]"],
    "streamcloud_strategies": ["measured=3s", "search.high=2000"],
    **{
        f"streamcloud_{name}": [_SHORT_RUNS]
        for name in ("causes", "efficiency", "join_delay", "map", "map_delay", "sixty", "today")
    },
    "full_speed_settings": ["measured=600ms", "measure.warm_up=250ms", "search.high=100000"],
}
WINDOWS = {
    "communication",
    *(name for name in SMALLER if name.startswith("streamcloud_")),
    "sustainable_window",
    "sustainable_skew",
    "full_speed",
    "full_speed_settings",
    "main",
    "thousand",
}  # own ones


# Starting ranks takes as long as all the rest: enough that some do.
REAL = {name for name, path in OWNERS.items() if load_experiment(path).source.runner != "simulate"}
LOCAL = {name for name in REAL if name.startswith(("sustainable", "full", "streamcloud"))} | {
    "adaptive",
    "policies",
    "fig06",
    "fig11",
    "main",
}


# Of each kind one in every run of the suite: a sweep over rates on ranks, in one process, a search, one of a query, one of the
# simulator, of a join and of a query.
OFTEN = {"adaptive", "fig11", "fig14", "main", "streamcloud_aggregate", "streamcloud_map", "sustainable_theta", "thousand"}


def settings(name: str) -> list[str]:
    """What makes an experiment tiny; its axes stay as they are."""
    own = [*SMALLER.get(name, _TINY), *([] if name in WINDOWS else ["join.within=2s", "workload.domain=1000"])]
    if load_experiment(EXPERIMENTS[name]).source.search is not None:
        own.append("search.precision=1000")  # only its ends
    if name in LOCAL:
        own.append("runner=local")
    if name not in (*SMALLER, "fig13", "sustainable_epoch"):
        own.append("cluster.distribution_epoch=500ms")  # enough of them for a delay to grow over
    return [word for setting in own for word in ("--set", setting)]


@pytest.fixture(scope="module")
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sweep of two points for every experiment asked for that has runs of its own, all aggregated in one call."""
    folder = tmp_path_factory.mktemp("sweeps")
    asked = {item.callspec.params["name"] for item in request.session.items if "swept" in getattr(item, "fixturenames", ())}
    sources = {load_experiment(EXPERIMENTS[name]).source.name for name in asked}
    found = {name: folder / name for name in OWNERS if name in sources}

    def sweep(name: str) -> int:
        points = "1" if load_experiment(OWNERS[name]).source.search is not None else "2"  # of a search each has up to two runs
        arguments = ["sweep", str(OWNERS[name]), "--only", points, "--repeat", "1", "--out", str(found[name])]
        return main([*arguments, *settings(name)])

    with ThreadPoolExecutor(2) as pool:  # mostly they start: what they measure here does not matter
        codes = dict(zip(found, pool.map(sweep, found), strict=True))
    assert codes == dict.fromkeys(found, 0)
    assert main(["aggregate", *map(str, found.values())]) == 0
    return found


@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in EXPERIMENTS]
)
def test_an_experiment_is_swept_aggregated_and_plotted(
    name: str, swept: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = load_experiment(EXPERIMENTS[name])
    directory = swept[experiment.source.name]
    runs = pq.read_table(directory / "runs.parquet").to_pylist()
    assert 1 <= len(runs) <= 2
    assert len(runs) == 2 or experiment.source.search is not None  # whose upper end was sustained
    assert all(run["status"] == "done" for run in runs)
    table = pq.read_table(directory / "table.parquet").to_pylist()
    wanted = set(experiment.metrics)
    assert wanted <= {row["metric"] for row in table}
    assert {row["runs"] + row["invalid"] + row["failed"] for row in table} <= {0, 1}  # 0: this run has no such metric
    capsys.readouterr()
    code = main(["plot", str(EXPERIMENTS[name]), "--sweep", str(directory), "-o", str(tmp_path)])
    said = capsys.readouterr().err
    if code and "nothing to draw" in said and not all(run["valid"] for run in runs):
        pytest.skip("the machine was too busy for what is drawn: nothing to draw")
    assert code == 0, said
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg"}
    assert all(path.stat().st_size > 5_000 for path in tmp_path.iterdir())


def test_every_experiment_names_a_question_and_what_is_expected() -> None:
    import yaml

    for name, path in EXPERIMENTS.items():
        plain = yaml.safe_load(path.read_text())
        assert plain["question"].rstrip().endswith("?"), name
        assert plain.get("claim") or plain.get("expected"), name


# ---------------------------------------------------------------- calibration


class Machine:
    """Stands in for runs: busy in proportion to the rate and against the speed; keeps up below a saturating rate."""

    def __init__(self, speed_at_6000: float) -> None:
        self.speed_at_6000 = speed_at_6000
        self.runs: list[tuple[float, float]] = []

    def run(self, _out: Path, speed: float, rate_per_s: float, _time_scale: int) -> dict[str, Any]:
        self.runs.append((speed, rate_per_s))
        load = rate_per_s / 6000 * self.speed_at_6000 / speed
        return {"node_speed": speed, "rate_per_s": rate_per_s, "busy_ratio": min(1.0, load), "sustained": load < 1, "why": ""}


@pytest.mark.parametrize(("time_scale", "truth"), [(10, 0.032), (10, 0.008), (1, 0.0045), (10, 0.09), (10, 0.4)])
def test_calibration_finds_the_speed_at_which_four_slaves_saturate(
    time_scale: int, truth: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(truth)
    monkeypatch.setattr(node_speed, "_run", machine.run)
    said: list[str] = []
    speed = calibrated_speed(tmp_path / "fig05", time_scale, said.append)
    assert 0.9 * truth < speed < 1.1 * truth
    assert len(said) == len(machine.runs)
    found = json.loads((tmp_path / "fig05" / "calibration.json").read_text())
    assert found["confirmed"]
    assert found["node_speed"] == speed
    assert calibrated_speed(tmp_path / "fig05", time_scale, said.append) == speed  # not measured twice
    assert calibrated_speed(tmp_path / "fig06", time_scale, said.append) == speed  # nor for another sweep beside it
    assert len(said) == len(machine.runs)


def test_a_calibration_of_another_commit_or_pace_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(0.03)
    monkeypatch.setattr(node_speed, "_run", machine.run)
    calibrated_speed(tmp_path / "a", 10, lambda _: None)
    before = len(machine.runs)
    calibrated_speed(tmp_path / "b", 1, lambda _: None)
    assert len(machine.runs) > before
    before = len(machine.runs)
    monkeypatch.setattr(node_speed, "commit", lambda: "another")
    calibrated_speed(tmp_path / "c", 10, lambda _: None)
    assert len(machine.runs) > before


def test_calibration_runs_are_the_papers_defaults_at_another_pace() -> None:
    slow, quick = calibration_config(0.004, 6000.0, 1), calibration_config(0.04, 6000.0, 10)
    assert (slow.nodes.node_speed, quick.nodes.node_speed) == (0.004, 0.04)
    assert (slow.workload.rate_per_s, quick.workload.rate_per_s) == (6000.0, 60_000.0)
    assert (slow.measure.prefill_us, slow.workload.duration_us) == (600_000_000, 660_000_000)
    assert quick.workload.duration_us * 10 == slow.workload.duration_us
    assert slow.module == quick.module
    assert slow.module.theta_bytes == 3 << 19


def test_a_busy_machine_is_not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs say so themselves; after three of them it is given up."""
    starts: list[list[str]] = []

    def start(command: list[str], _errors: Path, _limit_s: float) -> None:
        starts.append(command)
        out = Path(command[-1])
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.json").write_text(json.dumps({"machine": {"overloaded": True, "reasons": ["9% stolen"]}}))

    monkeypatch.setattr(node_speed, "run_to_end", start)
    with pytest.raises(RunFailed, match=r"too busy to be measured \(9% stolen\)"):
        calibrated_speed(tmp_path / "a", 10, lambda _: None)
    assert len(starts) == 3
    assert not (tmp_path / "a" / "calibration.json").exists()

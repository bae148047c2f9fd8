"""Sweeps: what an experiment's file may say, presets, directories that go on and never mix, runs that fail, searches."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import digest, to_plain
from swjoin.core.errors import RunFailed, UserError
from swjoin.monitor.sustainability import growth, sustained
from swjoin.sweeps import runner, store
from swjoin.sweeps.experiment import KEYS, Search
from swjoin.sweeps.points import Point, design_digest, load_experiment, needs_calibration, points, probe_at, profile_points
from swjoin.sweeps.presets import scaled
from swjoin.sweeps.search import bisect
from swjoin.sweeps.store import SweepStore, sweep_directory
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
BASE: dict[str, Any] = {
    "pace": "realtime",
    "join": {"within": "10s"},
    "cluster": {"distribution_epoch": "400ms"},
    "workload": {"rate": 100, "duration": "5s"},
    "sink": {"kind": "count"},
}


QUERY: dict[str, Any] = {
    "queries": [{"sql": "SELECT calling, ts FROM cdr WHERE x < 0.5"}],
    "inputs": {"cdr": {"generate": "calls"}},
    "workload": {"rate": 100, "duration": "5s"},
    "sink": {"kind": "count"},
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write an experiment (and its base); returns its path."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def to_file(name: str = "one", **keys: Any) -> Path:
        plain = {"question": "why?", "base": "base.yaml", **keys}
        plain = {key: value for key, value in plain.items() if value is not None}
        path = tmp_path / "experiments" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(plain, sort_keys=False))
        return path

    return to_file


def texts(path: Path) -> list[str]:
    return [point.text() for point in points(load_experiment(path))]


# ---------------------------------------------------------------- design


def test_axes_are_multiplied_in_order(write: Any) -> None:
    path = write(axes={"slaves": [1, 2], "workload.rate": [10, 20.5]})
    assert texts(path) == [
        "slaves=1 workload.rate=10",
        "slaves=1 workload.rate=20.5",
        "slaves=2 workload.rate=10",
        "slaves=2 workload.rate=20.5",
    ]
    assert [p.config.workload.rate_per_s for p in points(load_experiment(path))] == [10, 20.5, 10, 20.5]


def test_a_list_of_axes_is_a_union_without_doubles(write: Any) -> None:
    path = write(axes=[{"slaves": [1], "workload.rate": [10, 20]}, {"workload.rate": [20, 30], "slaves": [1, 2]}])
    found = texts(path)
    assert found[:3] == ["slaves=1 workload.rate=10", "slaves=1 workload.rate=20", "slaves=1 workload.rate=30"]
    assert len(found) == 5


def test_labels_set_several_keys_at_once(write: Any) -> None:
    labels = {"on": {"module": {"theta": "1MB", "block": "8KB"}, "slaves": 3}, "off": {"module.theta": 0}}
    found = points(load_experiment(write(slaves=2, axes={"tuning": labels})))
    assert [(p.axes, p.slaves) for p in found] == [({"tuning": "on"}, 3), ({"tuning": "off"}, 2)]
    assert [(p.config.module.theta_bytes, p.config.module.block_bytes) for p in found] == [(1 << 20, 8192), (0, 4096)]


def test_values_are_shown_as_numbers(write: Any) -> None:
    axes = {
        "cluster.distribution_epoch": ["250ms", "1s"],
        "module.theta": ["32KB"],
        "nodes.speed": [[1.0, 0.5]],
        "join.within": ["1min"],
        "reorganization.policy": ["none"],
    }
    experiment = load_experiment(write(slaves=2, axes=axes))
    assert points(experiment)[0].axes == {
        "cluster.distribution_epoch": 0.25,
        "module.theta": 32768,
        "nodes.speed": "[1.0, 0.5]",
        "join.within": 60.0,
        "reorganization.policy": "none",
    }
    assert list(experiment.source.axis_units.values()) == ["s", "bytes", "", "s", ""]


def test_tiny_numbers_survive(write: Any) -> None:
    assert points(load_experiment(write(axes={"nodes.node_speed": [0.00001]})))[0].config.nodes.node_speed == 0.00001


def test_measured_fills_the_windows_first(write: Any) -> None:
    found = points(
        load_experiment(
            write(measured="6s", axes={"cluster.distribution_epoch": ["400ms", "3s"]}, set={"measure.warm_up": "1s"})
        )
    )
    assert [p.config.measure.prefill_us for p in found] == [10_000_000, 12_000_000]  # whole distribution epochs
    assert [p.config.workload.duration_us for p in found] == [16_000_000, 18_000_000]
    assert {p.config.measure.warm_up_us for p in found} == {1_000_000}
    config = points(load_experiment(write(measured="6s")))[0].config
    assert config.measure.warm_up_us == 2 * 400_000
    config = points(load_experiment(write(measured="6s", prefill=False)))[0].config
    assert (config.measure.prefill_us, config.workload.duration_us) == (0, 6_000_000)


def test_runs_of_another_experiment(write: Any) -> None:
    write("owner", axes={"workload.rate": [1, 2]}, preset="paper", set={"nodes.node_speed": 0.1})
    path = write("reader", base=None, runs="owner.yaml", metrics=["delay_mean_s"], plot={"x": "workload.rate"})
    experiment = load_experiment(path)
    assert (experiment.name, experiment.source.name) == ("reader", "owner")
    assert sweep_directory(experiment) == Path("runs/sweeps/owner-paper")
    assert len(points(experiment)) == 2
    assert sweep_directory(load_experiment(path, "none")) == Path("runs/sweeps/owner")
    write("third", base=None, runs="reader.yaml")
    with pytest.raises(UserError, match=r"third.yaml: runs: reader.yaml draws from another experiment itself"):
        load_experiment(path.with_name("third.yaml"))
    write("mixed", base=None, runs="owner.yaml", axes={})
    with pytest.raises(UserError, match=r"mixed.yaml: axes: cannot stand beside runs"):
        load_experiment(path.with_name("mixed.yaml"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"axis": {}}, r"one.yaml: axis: unknown key; did you mean axes\?"),
        ({"question": None}, r"one.yaml: question is missing"),
        ({"base": None}, r"one.yaml: base is missing"),
        ({"base": "nowhere.yaml"}, r"nowhere.yaml: cannot be read"),
        ({"axes": {"workload.rat": [1]}}, r"axis workload.rat: no such configuration key; did you mean workload.rate\?"),
        ({"axes": {"workload.rate": 5}}, r"one.yaml: axis workload.rate: expected a list of values"),
        ({"axes": {"workload.rate": []}}, r"one.yaml: axis workload.rate: has no values"),
        ({"axes": {"slaves": [0]}}, r"one.yaml: axis slaves: expected a whole number of at least 1, got 0"),
        ({"axes": {"workload.rate": {"a": {}}}}, r"axis workload.rate: labels cannot have the name of a configuration key"),
        ({"axes": {"tuning": {"a": {"module.thet": 1}}}}, r"axis tuning: a: module.thet: no such .* mean module.theta\?"),
        ({"axes": {"tuning": {"on": [1]}}}, r"axis tuning: on: expected a mapping with names"),
        ({"axes": {"mean": {"a": {}}}}, r"axis mean: a table has a column of that name"),
        ({"axes": [{"slaves": [1]}, {"workload.rate": [1]}]}, r"axes: every mapping in the list must have the same axes"),
        ({"axes": {"cluster.distribution_epoch": ["1 parsec"]}}, r"axis cluster.distribution_epoch: duration '1 parsec'"),
        ({"axes": {"workload.rate": [5, -5]}}, r"one.yaml: workload.rate=-5: workload: rate must be positive"),
        ({"axes": {"kind": {"a": {}, "b": {}}}}, r"one.yaml: kind=b and kind=a are the same run"),
        ({"set": {"reorganization.active_slaves": 3}, "slaves": 2}, r"one.yaml: reorganization: active_slaves is 3"),
        ({"set": {"workload.burst": 3}}, r"one.yaml: set: workload.burst: no such configuration key"),
        ({"preset": "fast"}, r"one.yaml: preset: 'fast' is not known"),
        ({"runner": "mpl"}, r"one.yaml: runner: 'mpl' is not known; did you mean mpi\?"),
        ({"repeat": 0}, r"one.yaml: repeat: expected a whole number"),
        ({"measured": "soon"}, r"one.yaml: measured: duration 'soon'"),
        ({"measured": "500ms"}, r"one.yaml: measured: 500000 us is not longer than the warm-up"),
        ({"measured": "5s", "set": {"workload.duration": "9s"}}, r"measured and workload.duration: give one"),
        ({"measured": "5s", "runner": "simulate"}, r"runner simulate: a simulated run has no prefill; write prefill: false"),
        ({"preset": "quick", "runner": "simulate"}, r"runner simulate: virtual time needs no faster preset"),
        ({"preset": "quick", "set": {"join.within": "15us"}}, r"queries.lower_us: -15 us cannot be divided by 10"),
        ({"preset": "quick", "set": {"nodes.node_speed": 0.2}}, r"nodes.node_speed: 0.2 times 10 is faster than a core"),
        ({"base": QUERY, "runner": "simulate"}, r"runner simulate: a query needs profile: the settings of one or two"),
        ({"runner": "simulate", "profile": [{"seed": 1}]}, r"runner simulate: profile: is for queries"),
        ({"base": QUERY, "saturate": True}, r"saturate: is for simulated queries; real runs search: for the highest rate"),
        ({"saturate": "full"}, r"one.yaml: saturate: 'full' is not known"),
        ({"profile": {"seed": 1}}, r"one.yaml: profile: expected the settings of one or two runs as a list"),
        ({"profile": [{"sed": 1}]}, r"one.yaml: profile 0: sed: no such configuration key; did you mean seed\?"),
        ({"metrics": ["delay_mean"]}, r"metrics: 'delay_mean' is no metric; did you mean delay_mean_s\?"),
        ({"plot": {"panels": ["delay_mean_s:sum"]}}, r"plot.panels: delay_mean_s:sum: slaves become one number by run"),
        ({"axes": {"workload.rate": [1]}, "plot": {"x": "rate"}}, r"plot.x: 'rate' is no axis of one.yaml"),
        ({"search": {"axis": "workload.rate", "low": 5}}, r"one.yaml: search: high is missing"),
        ({"search": {"axis": "workload.rate", "low": 5, "high": 5}}, r"search: low \(5\) must be below high"),
        ({"search": {"axis": "workload.rate", "low": 5, "hig": 5}}, r"search.hig: unknown key; did you mean high\?"),
        ({"search": {"axis": "workload.rate", "low": "1", "high": 5}}, r"search: low must be a number above 0"),
        ({"search": {"axis": "workload.rate", "low": 1, "high": 5}, "set": {"pace": "asap"}}, r"search: asks for a delay"),
        (
            {"axes": {"workload.rate": [1]}, "search": {"axis": "workload.rate", "low": 1, "high": 5}},
            r"search: axis workload.rate cannot be searched, it is given by axes",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_anything_runs(write: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        points(load_experiment(write(**keys)))
    assert "\n" not in str(caught.value)


def test_settings_from_the_command_line(write: Any) -> None:
    path = write(set={"module.theta": "1MB"}, slaves=2, axes={"workload.rate": [1, 2]})
    experiment = load_experiment(path, None, ["module.theta_bytes=4096", "slaves=3", "measured=4s", "axes={seed: [7]}"])
    (point,) = points(experiment)
    assert (point.slaves, point.config.seed, point.config.module.theta_bytes) == (3, 7, 4096)
    assert point.config.measure.prefill_us == 10_000_000
    with pytest.raises(UserError, match=r"--set workload.rate_per_s=9: .* is an axis of .*one.yaml"):
        load_experiment(path, None, ["workload.rate_per_s=9"])
    with pytest.raises(UserError, match=r"set: module.thet: no such configuration key"):
        load_experiment(path, None, ["module.thet=9"])


def test_who_needs_a_calibration(write: Any) -> None:
    assert not needs_calibration(load_experiment(write()))
    assert needs_calibration(load_experiment(write(preset="quick")))
    assert not needs_calibration(load_experiment(write(preset="paper", runner="simulate")))
    assert not needs_calibration(load_experiment(write(preset="paper", set={"nodes.node_speed": 0.1})))
    assert not needs_calibration(load_experiment(write(preset="paper", axes={"nodes.node_speed": [0.1, 0.2]})))
    labels = {"slow": {"nodes.node_speed": 0.1}, "other": {}}
    assert needs_calibration(load_experiment(write(preset="paper", axes={"node": labels})))
    speeds = [p.config.nodes.node_speed for p in points(load_experiment(write(preset="quick", axes={"node": labels})), 0.3)]
    assert speeds == [1.0, 0.3]


def test_designs_differ_by_all_but_values(write: Any) -> None:
    def design(**keys: Any) -> str:
        return design_digest(load_experiment(write(**keys)))

    axes = {"workload.rate": [1, 2]}
    assert design(axes=axes) == design(axes={"workload.rate": [1, 2, 3]}, repeat=5, question="how?")
    others = [
        design(axes=axes),
        design(axes=axes, set={"seed": 2}),
        design(axes=axes, measured="5s"),
        design(axes={"seed": [1]}),
    ]
    labels = [design(axes={"x": {"a": {"seed": 1}}}), design(axes={"x": {"a": {"seed": 2}}})]
    assert len({*others, *labels}) == 6


def test_repeats_have_seeds_of_their_own(write: Any) -> None:
    (point,) = points(load_experiment(write(set={"seed": 5})))
    assert [point.repeated(k).seed for k in (1, 2, 3)] == [5, 6, 7]
    assert point.name(2) == f"{digest(point.repeated(2))}-s1-r2"


# ---------------------------------------------------------------- presets


def _leaves(plain: Any, path: str = "") -> dict[str, Any]:
    if isinstance(plain, dict):
        return {k: v for name, part in plain.items() for k, v in _leaves(part, f"{path}.{name}").items()}
    if isinstance(plain, list):
        return {k: v for i, part in enumerate(plain) for k, v in _leaves(part, f"{path}.{i}").items()}
    return {path: plain}


def test_a_faster_preset_changes_times_and_rates_alone() -> None:
    nodes = {"node_speed": 0.05, "link_bytes": 1e6, "changes": [{"slave": 0, "at": "10s", "speed": 0.5}]}
    config = dataclasses.replace(
        load_config(ROOT / "mpi_configs" / "paper.yaml"),
        nodes=config_from_plain({"join": {"within": "1s"}, "nodes": nodes}).nodes,
    )
    fast = scaled(config, 10)
    old, new = _leaves(to_plain(config)), _leaves(to_plain(fast))
    assert set(old) == set(new)
    for name, value in old.items():
        if name.endswith("_us"):
            assert new[name] * 10 == value, name
            assert isinstance(new[name], int)
        elif name.endswith(("_per_s", ".node_speed")):
            assert new[name] == value * 10, name
        else:
            assert new[name] == value, name
    assert fast.measure.prefill_us == 60_000_000
    assert (fast.nodes.node_speed, fast.nodes.changes[0].at_us, fast.module.theta_bytes) == (0.5, 1_000_000, 3 << 19)
    assert scaled(config, 10, 0.7).nodes.node_speed == 0.7
    assert scaled(config, 1) == config


def test_every_configuration_key_is_known_with_its_unit() -> None:
    assert KEYS["workload.rate"] == KEYS["workload.rate_per_s"] == "1/s"
    assert KEYS["cluster.distribution_epoch"] == KEYS["join.within"] == KEYS["workload.schedule.period"] == "s"
    assert KEYS["module.theta"] == "bytes"
    assert KEYS["seed"] == ""


# ---------------------------------------------------------------- store


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that does not depend on the working tree."""
    monkeypatch.setattr(store, "commit", lambda: "c0ffee")
    monkeypatch.setattr(runner, "commit", lambda: "c0ffee")


def _describe(path: Path, **changes: Any) -> dict[str, Any]:
    experiment = load_experiment(path)
    return {**store.describe(experiment, design_digest(experiment), None), **changes}


@pytest.mark.usefixtures("clean")
def test_results_are_never_mixed(write: Any, tmp_path: Path) -> None:
    sweep = SweepStore(tmp_path / "sweep")
    mine = _describe(write())
    sweep.begin(mine)
    sweep.begin({**mine, "commit": "0ther"})  # nothing has ended yet, so nothing can be mixed
    sweep.begin(mine)
    sweep.renew("a-s1-r1")
    assert sweep.done("a-s1-r1") is None
    sweep.finish("a-s1-r1", {"status": "done", "valid": True, "commit": "c0ffee"})
    assert sweep.ended() == [("a-s1-r1", {"status": "done", "valid": True, "commit": "c0ffee"})]
    sweep.begin(mine)
    for change, message in [
        ({"commit": "0ther"}, "holds results of commit c0ffee, this is 0ther; give --fresh .* or another --out"),
        ({"experiment": "two"}, "holds results of the experiment one, not of two"),
        ({"preset": "quick"}, "holds results with preset none, not quick"),
        ({"design_digest": "0"}, "holds results of another design of one: its file or its base has changed"),
        ({"node_speed": 0.5}, "holds results with node_speed None, the calibration says 0.5"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            sweep.check({**mine, **change})
        assert "\n" not in str(caught.value)
    sweep.finish("b-s1-r1", {"status": "done", "valid": True, "commit": "0ther"})
    with pytest.raises(UserError, match="holds results of commit 0ther, this is c0ffee"):
        sweep.check(mine)
    (sweep.directory / "calibration.json").write_text("{}")
    sweep.forget()
    sweep.check({**mine, "commit": "0ther"})
    assert sorted(p.name for p in sweep.directory.iterdir()) == ["calibration.json", "experiment.json"]


def test_a_directory_of_something_else_is_left_alone(write: Any, tmp_path: Path) -> None:
    (tmp_path / "run" / "points").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    sweep = SweepStore(tmp_path / "run")
    sweep.forget()
    with pytest.raises(UserError, match="run: holds points, but no sweep"):
        sweep.check(_describe(write()))
    assert (tmp_path / "run" / "points").is_dir()


@pytest.mark.parametrize("described", ["{}", "not JSON", '{"format": 7}', '{"format": 1, "experiment": "one"}'])
@pytest.mark.usefixtures("clean")
def test_fresh_forgets_sweeps_alone(described: str, write: Any, tmp_path: Path) -> None:
    """A file called experiment.json does not make a sweep."""
    folder = tmp_path / "work"
    (folder / "points" / "a-s1-r1").mkdir(parents=True)
    (folder / "points" / "a-s1-r1" / "mine").touch()
    (folder / "table.csv").touch()
    (folder / "experiment.json").write_text(described)
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=r"holds experiment\.json, but no sweep"):
        runner.sweep(load_experiment(write()), folder, None, fresh=True)  # type: ignore[arg-type]
    SweepStore(folder).forget()
    assert sorted(folder.rglob("*")) == before


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with SweepStore(tmp_path / "s").locked(), pytest.raises(UserError, match="another sweep is running there"):
        SweepStore(tmp_path / "s").locked().__enter__()


def test_the_commit_is_told() -> None:
    assert store.commit() == "unknown" or len(store.commit().removesuffix("-dirty")) == 12


# ---------------------------------------------------------------- runner, with a stand-in for runs

FAKE = """
import json, pathlib, sys, time, yaml
folder = pathlib.Path(sys.argv[2])
config = yaml.safe_load(open(sys.argv[1]))
rate, log = int(config["workload"]["rate_per_s"]), pathlib.Path(sys.argv[3])
with log.open("a") as file:
    file.write(f"{rate}-{config['seed']}\\n")
if rate == 13:
    print("noise", file=sys.stderr); print("swjoin: slave 1 ran out of luck", file=sys.stderr); sys.exit(1)
if rate == 99:
    time.sleep(60)
reasons = ["somebody else was here"] if rate == 14 else []
if rate == 15 and log.read_text().count("15-") == 1:
    reasons = ["only the first time"]
report = {"complete": rate != 16, "config": config, "delay_s": {"mean": 0.5}}
report["machine"] = {"overloaded": bool(reasons), "reasons": reasons}
if rate == 16:
    report["failure"] = "it stopped"
(folder / "run.json").write_text(json.dumps(report))
"""


class Fake:
    """Sweeps whose runs are a few lines of Python."""

    def __init__(self, folder: Path) -> None:
        self.script, self.log, self.out = folder / "fake.py", folder / "log.txt", folder / "sweep"
        self.script.write_text(FAKE)
        self.lines: list[str] = []

    def command(self, _design: Any, config: Path, _slaves: int, out: Path, _profiles: Any = ()) -> list[str]:
        return [sys.executable, str(self.script), str(config), str(out), str(self.log)]

    def begin(self, total: int, ended: int, estimate_s: float) -> None:
        self.lines = [f"{total} {ended}"]

    def started(self, text: str) -> None:
        pass

    def line(self, text: str) -> None:
        self.lines.append(text)

    def ended(self, text: str, remaining_s: float) -> None:
        assert remaining_s >= 0
        self.lines.append(text)

    def sweep(self, path: Path, **options: Any) -> runner.Summary:
        return runner.sweep(load_experiment(path), self.out, self, **options)

    def ran(self) -> list[str]:
        found = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    def done(self) -> list[dict[str, Any]]:
        return [done for _, done in SweepStore(self.out).ended()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> Fake:
    out = Fake(tmp_path)
    monkeypatch.setattr(runner, "point_command", out.command)
    return out


def test_a_sweep_goes_through_all_points_by_repeats(write: Any, fake: Fake) -> None:
    path = write(repeat=2, axes={"workload.rate": [10, 20]})
    summary = fake.sweep(path)
    assert (summary.done, summary.already, summary.failures) == (4, 0, [])
    assert fake.ran() == ["10-1", "20-1", "10-2", "20-2"]
    assert fake.lines[0] == "4 0"
    assert fake.lines[1].startswith("[1/4] workload.rate=10 slaves=1 r1: delay 0.5 s, ")
    info = json.loads((fake.out / "experiment.json").read_text())
    assert info["format"] == 1
    assert (info["experiment"], info["axes"], info["time_scale"], info["commit"]) == ("one", ["workload.rate"], 1, "c0ffee")
    done = next(d for d in fake.done() if d["axes"] == {"workload.rate": 20} and d["repeat"] == 2)
    assert {"config_digest", "slaves", "commit", "wall_s"} <= set(done)
    assert (done["status"], done["failure"], done["valid"], done["reasons"], done["searched"]) == ("done", None, True, [], None)
    again = fake.sweep(path)
    assert (again.done, again.already, fake.ran()) == (0, 4, [])
    more = fake.sweep(write(axes={"workload.rate": [10, 20, 30]}), only=3, repeat=1)  # values may be added
    assert (more.done, more.already, fake.ran()) == (1, 2, ["30-1"])
    assert fake.sweep(path, fresh=True, only=1, repeat=1).done == 1
    assert len(fake.done()) == 1


def test_fresh_leaves_what_no_sweep_has_written(write: Any, fake: Fake) -> None:
    """The figure lies in `plots` by default; notes of a user may lie anywhere."""
    path = write(axes={"workload.rate": [10, 20]})
    fake.sweep(path)
    kept = [fake.out / name for name in ("plots/one.png", "notes.txt", "table.txt", "points/notes.txt", "searches/mine.json")]
    for file in (*kept, fake.out / "table.csv", fake.out / "runs.parquet"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("kept")
    fake.ran()
    assert fake.sweep(path, fresh=True).done == 2
    assert fake.ran() == ["10-1", "20-1"]
    assert all(file.read_text() == "kept" for file in kept)
    assert not any((fake.out / name).exists() for name in ("table.csv", "runs.parquet"))


def test_fresh_keeps_a_sweep_that_cannot_be_run_anew(write: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(axes={"workload.rate": [10, 20]})
    fake.sweep(path)
    before = fake.done()

    def busy(*_: Any) -> float:
        raise RunFailed("calibration: the machine is too busy to be measured")

    monkeypatch.setattr(runner, "needs_calibration", lambda source: True)
    monkeypatch.setattr(runner, "calibrated_speed", busy)
    with pytest.raises(RunFailed, match="too busy"):
        fake.sweep(path, fresh=True)
    assert fake.done() == before


def test_failures_are_recorded_and_tried_again(write: Any, fake: Fake) -> None:
    path = write(axes={"workload.rate": [13, 16, 20]})
    summary = fake.sweep(path)
    assert summary.failures == [
        ("workload.rate=13 slaves=1 r1", "slave 1 ran out of luck"),
        ("workload.rate=16 slaves=1 r1", "it stopped"),
    ]
    assert summary.done == 1
    assert fake.ran() == ["13-1", "16-1", "20-1"]
    done = {d["axes"]["workload.rate"]: d for d in fake.done()}
    assert (done[13]["status"], done[13]["failure"], done[13]["valid"]) == ("failed", "slave 1 ran out of luck", False)
    fake.sweep(path)
    assert fake.ran() == ["13-1", "16-1"]


def test_invalid_points_are_tried_once_more(write: Any, fake: Fake) -> None:
    path = write(axes={"workload.rate": [14, 15]})
    summary = fake.sweep(path)
    assert (summary.done, summary.invalid, summary.failures) == (2, 1, [])
    assert fake.ran() == ["14-1", "14-1", "15-1", "15-1"]
    done = {d["axes"]["workload.rate"]: d for d in fake.done()}
    assert (done[14]["status"], done[14]["valid"], done[14]["reasons"]) == ("done", False, ["somebody else was here"])
    assert done[15]["valid"]
    assert "INVALID (somebody else was here)" in fake.lines[1]
    fake.sweep(path)
    assert fake.ran() == ["14-1"]


def test_runs_that_take_too_long_are_stopped(write: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "limit_s", lambda *_: 1.0)
    ((_, why),) = fake.sweep(write(axes={"workload.rate": [99]})).failures
    assert why == "took longer than 1 s and was stopped"


def _until_run(fake: Fake, name: str) -> None:
    deadline = time.monotonic() + PROCESS_S
    while not (fake.log.exists() and name in fake.log.read_text()):
        assert time.monotonic() < deadline, "it never started"
        time.sleep(0.05)


SWEEP = """
import sys, pathlib
from swjoin.sweeps import runner, store
from swjoin.sweeps.points import load_experiment
from tests.sweeps.test_sweeps import Fake
store.commit = runner.commit = lambda: "c0ffee"
fake = Fake(pathlib.Path(sys.argv[2]))
runner.point_command = fake.command
try:
    fake.sweep(load_experiment(pathlib.Path(sys.argv[1])).path)
except runner.SweepInterruptedError as stop:
    print(stop, flush=True)
    sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_goes_on(write: Any, fake: Fake, tmp_path: Path, number: signal.Signals) -> None:
    path = write(axes={"workload.rate": [10, 99, 20]})
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(path), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    _until_run(fake, "99-1")
    children = psutil.Process(process.pid).children()
    process.send_signal(number)
    said = process.communicate(timeout=PROCESS_S)[0]
    if number == signal.SIGKILL:
        for child in children:  # nobody else can end them then
            child.kill()
    else:
        assert process.returncode == 128 + number
        assert said.strip() == f"stopped by {number.name}; the same command goes on from here"
        assert not any(child.is_running() for child in children)
    assert [d["axes"]["workload.rate"] for d in fake.done()] == [10]
    fake.ran()
    fake.script.write_text(FAKE.replace("time.sleep(60)", "pass"))
    summary = fake.sweep(path)
    assert (summary.already, summary.done) == (1, 2)
    assert fake.ran() == ["99-1", "20-1"]


def test_estimates_and_limits() -> None:
    (point,) = points(load_experiment(ROOT / "experiments" / "fig05.yaml"))[:1]
    assert 10 < runner.estimate_s(point.config, "mpi") < 20
    assert runner.limit_s(point.config, "mpi") > 120 + 6 * 6
    total = 0.0
    for number in range(5, 15):
        experiment = load_experiment(ROOT / "experiments" / f"fig{number:02}.yaml", "quick")
        if experiment.source.path == experiment.path:
            total += runner.plan_s(experiment.source, points(experiment))
    assert total < 30 * 60  # all figures, once


# ---------------------------------------------------------------- search


def _rows(slaves: int = 2, growing: float = 0.0, last_s: float = 15.9, stuck: int | None = None) -> dict[str, list[float]]:
    """An epoch every 0.2 s from 0 to last_s; the delay grows by so much; one slave stops after 12 s."""
    rows: dict[str, list[float]] = {"slave": [], "epoch_end_us": [], "pairs": [], "delay_mean_us": [], "epoch": []}
    rng = np.random.default_rng(1)
    for slave in range(slaves):
        for end_s in np.arange(0.1 + 0.01 * slave, last_s, 0.2):
            if slave == stuck and end_s > 12:
                continue
            delay_us = 1e6 * (0.15 + growing * end_s) * rng.uniform(0.95, 1.05)
            values = [slave, end_s * 1e6, rng.integers(1, 100), delay_us, int(end_s / 0.2)]
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
    return rows


def _report(**changes: Any) -> dict[str, Any]:
    report = {
        "complete": True,
        "measured": {"from_s": 10.0, "to_s": 16.0},
        "machine": {"overloaded": False, "reasons": []},
        "declustering": [{"epoch": 0, "time_s": 0.0, "active_slaves": 2}],
        "config": {"cluster": {"distribution_epoch_us": 200_000}},
    }
    return {**report, **changes}


def test_a_flat_delay_is_sustained() -> None:
    kept_up, why = sustained(_rows(), _report())
    assert kept_up, why
    assert sustained(_rows(growing=0.01), _report())[0]
    early = _rows(growing=0.0)
    early["delay_mean_us"] = [
        1e9 if end < 10e6 else d for end, d in zip(early["epoch_end_us"], early["delay_mean_us"], strict=True)
    ]
    assert sustained(early, _report())[0]  # before the measured phase
    assert sustained(_rows(1), _report(declustering=[{"active_slaves": 2}, {"active_slaves": 1}]))[0]
    assert sustained(_rows(), {k: v for k, v in _report().items() if k not in ("measured", "machine")})[0]  # simulated


@pytest.mark.parametrize(
    ("rows", "report", "why"),
    [
        (_rows(growing=0.05), _report(), "the delay grows by 0.0"),
        (_rows(stuck=1), _report(), "a slave is 4.09 s behind at the end, 0.48 s is the limit"),
        (_rows(last_s=15.0), _report(), "a slave is 1.1 s behind"),
        (_rows(1), _report(), "1 of 2 active slaves completed no distribution epoch"),
        (_rows(last_s=10.2), _report(), "fewer than 3 distribution epochs"),
        (_rows(last_s=0.0), _report(), "fewer than 3 distribution epochs"),
        (_rows(), _report(complete=False, failure="rank 3 died"), "the run did not end: rank 3 died"),
        (_rows(), _report(machine={"overloaded": True, "reasons": ["stolen"]}), "the machine was overloaded: stolen"),
    ],
)
def test_what_is_not_sustained(rows: dict[str, list[float]], report: dict[str, Any], why: str) -> None:
    kept_up, said = sustained(rows, report)
    assert not kept_up
    assert why in said


def test_one_slave_of_four_that_falls_behind_is_seen_although_it_ends_epochs_all_the_time() -> None:
    rows = _rows(4)
    slow = [i for i, slave in enumerate(rows["slave"]) if slave == 3]
    for i in slow:  # a tenth too slow from 10 s on: it says so by the epochs it ends, and by its delay
        rows["epoch"][i] = int(min(rows["epoch_end_us"][i], 10e6 + 0.8 * (rows["epoch_end_us"][i] - 10e6)) / 2e5)
    report = _report(declustering=[{"active_slaves": 4}])
    assert "a slave is 1.2 s behind" in sustained(rows, report)[1]
    rows = _rows(4)
    for i in slow:
        rows["delay_mean_us"][i] += 0.06 * max(0.0, rows["epoch_end_us"][i] - 10e6)
        rows["pairs"][i] = 10
    kept_up, said = sustained(rows, report)
    assert (kept_up, "the delay of slave 3 grows by 0.06" in said) == (False, True), said


def test_growth_weighs_pairs() -> None:
    end, delay = np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 2, 100])
    assert growth(end, delay, np.array([1.0, 1, 1, 0])) == pytest.approx(1.0)
    assert growth(end, delay, np.zeros(4)) == 0.0
    assert growth(np.ones(4), delay, np.ones(4)) == 0.0


@pytest.mark.parametrize("limit", [100, 101, 777, 1500, 5000, 9999])
def test_bisection_finds_the_limit(limit: int) -> None:
    search, tried = Search("workload.rate", 100, 10_000, 0.05), []

    def probe(value: float) -> bool:
        tried.append(value)
        return value <= limit

    found = bisect(search, probe)
    assert found.value is not None
    assert found.value <= limit <= found.value * 1.05 + 1
    assert len(tried) <= search.most_probes
    assert len(set(tried)) == len(tried)
    assert all(isinstance(value, int) for value in tried)


def test_the_ends_of_a_search() -> None:
    search = Search("workload.rate", 1.0, 100.0, 0.1)
    high, low = bisect(search, lambda _: True), bisect(search, lambda _: False)
    assert (high.value, high.note) == (100.0, "at least 100: the upper end of the search is sustained")
    assert (low.value, low.between) == (None, (None, 1.0))
    assert bisect(Search("cluster.partition_count", 3, 4, 0.01), lambda v: v <= 3).value == 3


def test_searches_are_kept_and_go_on(write: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "read_rows", lambda _: {})
    monkeypatch.setattr(runner, "sustained", lambda _, report: (report["config"]["workload"]["rate_per_s"] <= 40, "because"))
    search = {"axis": "workload.rate", "low": 20, "high": 80, "precision": 0.2}
    path = write(axes={"slaves": [1, 2]}, search=search)
    assert fake.sweep(path, only=1).done == 1
    (key,) = [p.name for p in (fake.out / "searches").iterdir()]
    found = json.loads((fake.out / "searches" / key).read_text())
    assert (found["axes"], found["repeat"], found["found"], found["status"]) == ({"slaves": 1}, 1, 40, "done")
    assert [(p["value"], p["sustained"]) for p in found["probes"]] == [(40, True), (57, False), (48, False), (44, False)][
        : len(found["probes"])
    ]
    assert all((fake.out / "points" / p["point"] / "done.json").exists() for p in found["probes"])
    assert {d["searched"] for d in fake.done()} == {p["value"] for p in found["probes"]}
    assert "workload.rate 40 sustained" in fake.lines[-1]
    fake.ran()
    assert (fake.sweep(path).already, len(fake.ran())) == (1, len(found["probes"]))
    again = fake.sweep(path)
    assert (again.already, again.done) == (2, 0)
    (fake.out / "searches" / key).unlink()  # interrupted after its probes: they need not run again
    assert (fake.sweep(path).done, fake.ran()) == (1, [])


def test_a_search_that_the_machine_disturbed_is_invalid(write: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "read_rows", lambda _: {})
    monkeypatch.setattr(runner, "sustained", lambda _, report: (not report["machine"]["overloaded"], "because"))
    path = write(search={"axis": "workload.rate", "low": 7, "high": 28, "precision": 0.3}, set={"seed": 1})
    summary = fake.sweep(path)  # 14 is always disturbed
    assert (summary.done, summary.invalid) == (0, 1)
    (found,) = [json.loads(p.read_text()) for p in (fake.out / "searches").iterdir()]
    assert (found["status"], found["between"][1]) == ("invalid", 14)


# ---------------------------------------------------------------- experiments of the repository


@pytest.mark.drawn
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_loads_and_its_points_build(path: Path) -> None:
    own = load_experiment(path)
    for preset in ("paper", "quick") if own.source.preset != "none" else ("none",):
        experiment = load_experiment(path, preset)
        found = points(experiment, 0.01)
        assert found
        assert len({point.name(1) for point in found}) == len(found)
        for point in found:
            assert config_from_plain(to_plain(point.config)) == point.config
            if point.config.measure.prefill_us:
                assert point.config.measure.prefill_us >= point.config.query.bounds.retention_us
        if experiment.source.search is not None:
            probe = probe_at(experiment.source, found[0], experiment.source.search.high, 0.01)
            assert probe.searched == experiment.source.search.high
    if own.figure is not None:
        assert own.claim
        assert own.source.repeat >= 3
    else:
        assert own.expected


def test_the_figures_of_the_paper_are_all_there() -> None:
    figures = [load_experiment(path).figure for path in EXPERIMENTS]
    assert sorted(f for f in figures if isinstance(f, int)) == list(range(5, 15))


def test_the_command(swjoin: Any, write: Any, tmp_path: Path) -> None:
    tiny = {"workload.duration": "1s", "workload.domain": 10}
    path = write(runner="local", preset="none", axes={"workload.rate": [50, 100]}, set=tiny)
    out = swjoin("sweep", path, "--dry-run", "--repeat", 2)
    assert out.code == 0
    assert out.out.splitlines()[0] == "workload.rate=50 slaves=1"
    assert "2 points; preset none; one repeat takes about 10 s, 2 repeats" in out.out
    out = swjoin("sweep", path, "--only", 1, "--out", tmp_path / "out")
    assert out.code == 0, out.err
    assert "[1/1] workload.rate=50 slaves=1 r1: delay " in out.out
    assert f"swjoin aggregate {tmp_path / 'out'}" in out.out
    (run,) = (tmp_path / "out" / "points").iterdir()
    assert {"run.json", "done.json", "config.yaml", "metrics"} <= {p.name for p in run.iterdir()}
    out = swjoin("sweep", path, "--only", 0)
    assert (out.code, out.err) == (2, ["swjoin: --only 0: at least 1 is needed"])
    out = swjoin("sweep", tmp_path / "none.yaml")
    assert (out.code, len(out.err)) == (2, 1)
    out = swjoin("sweep", write("other"), "--out", tmp_path / "out")
    assert (out.code, len(out.err)) == (2, 1)
    assert "holds results of the experiment one, not of other" in out.err[0]


def test_hosts_of_a_sweep(write: Any, fake: Fake, swjoin: Any, tmp_path: Path) -> None:
    """They are in every command and in the description; runs on other hosts are not the same, and some runs have none."""
    hosts, path = tmp_path / "hosts", write(axes={"workload.rate": [10]})
    hosts.write_text("127.0.0.1 slots=3\n")
    assert fake.sweep(path, hostfile=hosts).done == 1
    assert json.loads((fake.out / "experiment.json").read_text())["hosts"] == ["127.0.0.1 slots=3"]
    assert (fake.out / ".hosts").read_text() == "127.0.0.1 slots=3\n"
    assert fake.sweep(path, hostfile=hosts).already == 1
    with pytest.raises(UserError, match="results of other hosts"):
        fake.sweep(path)
    for settings, words in (
        ({"runner": "local"}, "have no MPI ranks (runner: local)"),
        ({"base": {k: v for k, v in BASE.items() if k != "nodes"}, "preset": "quick"}, "set nodes.node_speed"),
    ):
        out = swjoin("sweep", write(**settings), "--hostfile", hosts, "--dry-run")
        assert (out.code, len(out.err)) == (2, 1)
        assert words in out.err[0]
    out = swjoin("sweep", path, "--hostfile", tmp_path / "none", "--dry-run")
    assert (out.code, out.err) == (2, [f"swjoin: --hostfile {tmp_path / 'none'}: cannot be read (No such file or directory)"])


def test_point_commands(write: Any) -> None:
    def typed(runner_name: str) -> list[str]:
        experiment = load_experiment(write(runner=runner_name, costs="paper"))
        return runner.point_command(experiment.source, Path("c.yaml"), 3, Path("out"))[3:]

    assert typed("mpi") == ["run", "c.yaml", "-n", "5", "--out", "out"]
    on_hosts = dataclasses.replace(load_experiment(write()).source, hostfile=Path("/hosts"))
    found = runner.point_command(on_hosts, Path("c.yaml"), 3, Path("out"))[3:]
    assert found == ["run", "c.yaml", "-n", "5", "--hostfile", "/hosts", "--out", "out"]
    assert typed("local") == ["run", "c.yaml", "--threads", "3", "--out", "out"]
    assert typed("simulate") == ["simulate", "c.yaml", "--slaves", "3", "--costs", "paper", "--out", "out"]
    assert isinstance(points(load_experiment(write()))[0], Point)
    for saturate, words in ((False, []), (True, ["--saturate"]), ("balanced", ["--saturate", "--balance"])):
        query = load_experiment(write(runner="simulate", base=QUERY, profile=[{"seed": 1}], saturate=saturate)).source
        found = runner.point_command(query, Path("c.yaml"), 3, Path("out"), [Path("p"), Path("q")])[3:]
        assert found[6:] == ["--profile=p", "--profile=q", *words, "--out", "out"]


def test_a_simulated_query_has_short_runs_that_tell_its_costs(write: Any) -> None:
    """The runs have the settings of all points, their own, and a strategy with the stages of the point's."""
    profile = [{"workload.rate": 50}, {"workload.rate": 500, "slaves": 2}]
    strategies = {"cluster.strategy": ["query", "subquery", "operator"]}
    keys = {"base": QUERY, "slaves": 60, "set": {"nodes.node_speed": 0.1}, "axes": strategies | {"cluster.gateways": [1, 8]}}
    design = load_experiment(write(runner="simulate", profile=profile, **keys)).source
    found = {point.text(): profile_points(design, point) for point in points(load_experiment(design.path))}
    assert len(found) == 6
    for name, (low, high) in found.items():
        assert (low.slaves, low.config.workload.rate_per_s, high.slaves, high.config.workload.rate_per_s) == (1, 50, 2, 500)
        assert low.config.nodes.node_speed == 1, "as fast as they can"
        assert (low.config.pace, low.config.cluster.gateways) == ("asap", 1)
        assert low.config.cluster.strategy == ("operator" if "operator" in name else "query")
    assert len({point.name(1) for runs in found.values() for point in runs}) == 4

"""An effect that nobody knows is an error in every runtime: in one process, under MPI, in the simulator, in the forecast."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.master import Master
from swjoin.cluster.role import UnknownEffectError
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.forecast.calibrate.roles import _run_master
from swjoin.forecast.costs import PRESETS
from swjoin.forecast.model.run import simulate
from swjoin.runtime.in_process import run_local
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun
from swjoin.runtime.simulator.simulator import Simulation
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.tools.random_runs import Scenario

CONFIG = config_from_plain(
    {
        "join": {"within": "100ms"},
        "workload": {"rate": 1000, "duration": "1s", "domain": 1000},
        "cluster": {"partition_count": 4},
        "sink": {"kind": "count"},
    }
)
ROLES: dict[str, tuple[type, str]] = {
    "master": (Master, "handle"),
    "gateway": (Gateway, "start"),
    "slave": (Slave, "start"),
    "collector": (Collector, "handle"),
}


@dataclass(frozen=True)
class Whistle:
    """An effect of some other role."""


def in_process() -> None:
    run_local(Job(CONFIG, None, True, None, None, "test"), False, 2)


def simulator() -> None:
    scenario = Scenario.draw(11)
    Simulation(scenario.config, ([scenario.rows[0]], [scenario.rows[1]]), 3, 11).run()


def forecast() -> None:
    simulate(CONFIG, 2, PRESETS["modern"])


def whistle(*_args: Any) -> list[Whistle]:
    return [Whistle()]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("runtime", [in_process, simulator, forecast])
def test_an_unknown_effect_is_an_error(runtime: Callable[[], None], role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method = ROLES[role]
    monkeypatch.setattr(owner, method, whistle)
    with pytest.raises(UnknownEffectError, match="Whistle"):
        runtime()


def test_calibration_drops_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway, "start", whistle)
    with pytest.raises(UnknownEffectError, match="Whistle"):
        _run_master(CONFIG, 1)


@pytest.mark.mpi
@pytest.mark.parametrize("role", ["slave", *(pytest.param(role, marks=pytest.mark.drawn) for role in ("master", "gateway"))])
def test_an_unknown_effect_ends_an_mpi_job(role: str, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(Job(CONFIG, None, True, tmp_path / "run", None, "test").to_json())
    line = [*mpirun_options(find_mpirun(), 3), sys.executable, "-m", "tests.runtime.test_effects", role, str(job)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode != 0
    assert "UnknownEffectError: no performer for the effect Whistle" in done.stderr


def main(role: str, job: str) -> None:
    from swjoin.runtime.mpi.main import run_rank

    owner, method = ROLES[role]
    setattr(owner, method, whistle)
    run_rank(Job.from_json(Path(job).read_text()), False)


if __name__ == "__main__":
    main(*sys.argv[1:])

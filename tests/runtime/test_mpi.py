"""Real MPI ranks: every case of SPEC section 7, 3 to 7 ranks, failures that end the job in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.runtime import launch
from swjoin.runtime.in_process import run_local
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.cases import CASES, Case, by_name, moving
from tests.support.commands import command
from tests.support.limits import PROCESS_S
from tests.support.ranks import run_jobs, run_mpirun

pytestmark = [pytest.mark.mpi]
RANKS = [3, 4, 5, 7]


def run(config: Path, out: Path, ranks: int, *more: str) -> dict[str, Any]:
    done = command("run", config, "-n", ranks, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report


def _ranks_for(index: int) -> int:
    return RANKS[index % len(RANKS)]


def _sinks_for(case: Case, gateways: int) -> int:
    """Of cases that write results, two of three have several sinks, and all with several gateways; of 7 ranks some have a rank
    of their own."""
    if case.settings.get("sink", {}).get("kind") == "count":
        return 1
    return 1 + CASES.index(case) // len(RANKS) % 3 if gateways == 1 else 2


# Seven ranks that poll on two busy cores take minutes, and with other work beside them more than a test may.
_MOST = pytest.mark.long
_INDICES = [pytest.param(i, marks=_MOST) if _ranks_for(i) == max(RANKS) else i for i in range(len(CASES))]
Played = Callable[[int, str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Played:
    """run.json of a case, or of the first one in realtime pace, on so many ranks and with so many gateways; one mpirun plays
    all of them, those with several gateways as far as this session wants them."""
    reports: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    found = [item for item in request.session.items if isinstance(item, pytest.Function)]
    several = test_known_cases_with_two_gateways_and_sinks.__name__
    wanted = {item.callspec.params["index"] for item in found if item.originalname == several}

    def play(ranks: int, gateways: int) -> dict[str, dict[str, Any]]:
        """With 4 ranks and more, partition-groups move and slaves come and go at random in every distribution epoch."""
        folder = tmp_path_factory.mktemp(f"ranks{ranks}gateways{gateways}")
        configs = {}
        for case in (CASES[i] for i in range(len(CASES)) if _ranks_for(i) == ranks and (gateways == 1 or i in wanted)):
            (folder / case.name).mkdir()
            sections = moving(case) if ranks > 3 else {}
            roles = {"sinks": _sinks_for(case, gateways), "gateways": gateways}
            sections["cluster"] = {**sections.get("cluster", {}), **roles}
            configs[case.name] = case.write(folder / case.name, row_groups=4 * gateways, **sections)
        if gateways == 1:
            (folder / "realtime").mkdir()
            configs["realtime"] = CASES[0].write(
                folder / "realtime", pace="realtime", cluster={"distribution_epoch_us": 20_000}, sink={"kind": "count"}
            )
        outs = {name: folder / name / "run" for name in configs}
        jobs = [Job(load_config(configs[n]), outs[n] / "results", True, outs[n], None, "test") for n in configs]
        run_jobs(ranks, jobs, folder)
        return {name: json.loads((out / "run.json").read_text()) for name, out in outs.items()}

    def of(ranks: int, name: str, gateways: int) -> dict[str, Any]:
        if (ranks, gateways) not in reports:
            reports[ranks, gateways] = play(ranks, gateways)
        return reports[ranks, gateways][name]

    return of


@pytest.mark.parametrize("index", _INDICES, ids=map(by_name, CASES))
def test_known_cases(index: int, played: Played) -> None:
    _check(index, played, 1)


@pytest.mark.drawn
@pytest.mark.parametrize("index", range(len(CASES)), ids=map(by_name, CASES))
def test_known_cases_with_two_gateways_and_sinks(index: int, played: Played) -> None:
    _check(index, played, 2)


def _check(index: int, played: Played, gateways: int) -> None:
    case = CASES[index]
    report = played(_ranks_for(index), case.name, gateways)
    assert (report["results"]["count"], report["results"]["digest"]) == case.answer()
    assert report["ledger"]["balanced"]
    assert len(report["ranks"]) == _ranks_for(index)
    assert len(report["sinks"]) == _sinks_for(case, gateways)
    assert sum(sink["count"] for sink in report["sinks"]) == report["results"]["count"]


@pytest.mark.parametrize("ranks", [*RANKS[:-1], pytest.param(RANKS[-1], marks=_MOST)])
def test_any_number_of_slaves_and_realtime(ranks: int, played: Played) -> None:
    report = played(ranks, "realtime", 1)
    assert (report["results"]["count"], report["results"]["digest"]) == CASES[0].answer()
    roles = [r["role"] for r in report["ranks"].values()]
    assert roles == ["master", "collector", *(f"slave {i}" for i in range(ranks - 2))]
    assert set(report["peak_rss_bytes"]) == {str(r) for r in range(ranks)}


@pytest.mark.drawn
@pytest.mark.parametrize("ranks", [4, pytest.param(5, marks=pytest.mark.long), pytest.param(7, marks=pytest.mark.long)])
def test_forced_moves_for_a_whole_run(ranks: int, tmp_path: Path) -> None:
    """Moves and resizes in every reorganization epoch; the answer is that of one slave that nothing ever leaves."""
    plain: dict[str, Any] = {
        "join": {"lower": "-2s", "upper": "1s"},
        "workload": {"rate": 10_000, "duration": "8s", "bias": 0.7, "domain": 100_000, "payload": "16B"},
        "cluster": {"partition_count": 30, "distribution_epoch": "100ms", "sub_group_count": 2},
        "module": {"theta": "8KB", "window": "256MB"},
        "reorganization": {"policy": "random", "epoch": "100ms", "random_moves": 4, "declustering": "adaptive"},
    }
    (tmp_path / "moving.yaml").write_text(json.dumps(plain))
    report = run(tmp_path / "moving.yaml", tmp_path / "run", ranks)
    still = {**plain, "cluster": {**plain["cluster"], "sub_group_count": 1}, "reorganization": {}}
    (tmp_path / "still.yaml").write_text(json.dumps(still))
    job = Job(load_config(tmp_path / "still.yaml"), tmp_path / "still" / "results", True, tmp_path / "still", None, "test")
    expected = run_local(job, False, 1)
    assert report["results"]["count"] == expected["results"]["count"] > 10_000
    assert report["results"]["digest"] == expected["results"]["digest"]
    assert report["moves"] > 20
    assert report["movement"]["state_bytes"] > 10**5
    kinds = Counter(pq.read_table(tmp_path / "run" / "metrics" / "events.parquet")["kind"].to_pylist())
    assert kinds["emptying"] > 0
    assert kinds["decided"] == kinds["held"] == kinds["left"] == kinds["installed"] == kinds["released"] == report["moves"]


@pytest.mark.drawn
def test_too_few_slaves_for_the_configuration_is_one_line(tmp_path: Path) -> None:
    config = CASES[0].write(tmp_path, cluster={"sub_group_count": 3})
    done = command("run", config, "-n", 4, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "sub_group_count is 3, but the run has 2 slaves" in _complaint(done)


def test_started_by_mpirun_directly(tmp_path: Path) -> None:
    line = [str(find_mpirun()), "--oversubscribe", "-n", "4", sys.executable, "-m", "swjoin", "run"]
    if os.geteuid() == 0:
        line.insert(1, "--allow-run-as-root")
    config = CASES[1].write(tmp_path)
    line += [str(config), "--out", str(tmp_path / "run")]
    done = run_mpirun(line)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (report["results"]["count"], report["results"]["digest"]) == CASES[1].answer()


def test_an_mpirun_that_fails_to_start_is_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own server's thread sometimes does not come up; a second failure is told, and so is any other one at once."""
    fake, real = tmp_path / "mpirun", find_mpirun()
    few = f"[ $(ls {tmp_path}/failed-* 2>/dev/null | wc -l) -lt $FAILURES ]"
    fail = f'touch {tmp_path}/failed-$$; echo "$SAYS" >&2; exit 213'
    started = f'{real} "$@" 2>{tmp_path}/said; code=$?'  # which may itself fail in this way on a loaded machine
    again = f'for i in 1 2 3; do {started}; grep -q "listener thread" {tmp_path}/said || break; done'
    fake.write_text(f"#!/bin/sh\nif {few}; then {fail}; fi\n{again}\ncat {tmp_path}/said >&2\nexit $code\n")
    fake.chmod(0o755)
    monkeypatch.setattr(launch, "find_mpirun", lambda: fake)
    config = CASES[1].write(tmp_path)
    listener = "The PMIx server's listener thread failed to start. We cannot continue."
    for failures, says, code in (("1", listener, 0), ("2", listener, 1), ("1", "something else", 1)):
        for file in tmp_path.glob("failed-*"):
            file.unlink()
        monkeypatch.setenv("FAILURES", failures)
        monkeypatch.setenv("SAYS", says)
        out = tmp_path / f"{failures}{code}"
        job = Job(load_config(config), out / "results", True, out, None, "test")
        ended, failure = launch.launch_with_reason(job, 4, quiet=True)
        assert ended == code
        assert says in failure if code else failure == ""
    assert json.loads((tmp_path / "10" / "run.json").read_text())["results"]["digest"] == CASES[1].answer()[1]


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_failing_slave_ends_the_job_with_rank_host_and_epoch(tmp_path: Path) -> None:
    """The windows of 3,000 tuples with wide bounds do not fit into 1 MB of blocks of 4,096 tuples: a real failure mid-run."""
    case = Case("wide", ([i % 97 for i in range(3000)], list(range(3000))), ([], []), (-(10**6), 10**6))
    module = {"block_bytes": 64 * 4096, "theta_bytes": 0, "window": "1MB"}
    config = case.write(tmp_path, module=module, cluster={"partition_count": 60})
    done = command("run", config, "-n", 4, "--out", tmp_path / "run")
    assert done.returncode == 1
    line = _complaint(done)
    assert line.startswith("swjoin: rank ")
    assert "(slave " in line
    assert "epoch " in line
    assert "module.window" in line
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["complete"] is False
    assert "module.window" in report["failure"]
    names = [p.name for p in (tmp_path / "run" / "results").iterdir()]
    assert names
    assert all(name.endswith(".incomplete") for name in names)


def test_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    case = Case("slow", ([1, 1], [0, 3_600_000_000]), ([1], [0]), (-10, 10))
    config = case.write(tmp_path, pace="realtime", cluster={"distribution_epoch_us": 50_000})
    command_line = [sys.executable, "-m", "swjoin", "run", str(config), "-n", "4", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        deadline = time.monotonic() + PROCESS_S
        while time.monotonic() < deadline and not (tmp_path / "run" / "metrics").exists():
            time.sleep(0.1)  # until the collector has opened its files: every rank is up
        time.sleep(1)
        victim = max(_ranks_of(process.pid))
        os.kill(victim, 9)
        code = process.wait(timeout=PROCESS_S)  # its streams last for an hour
    finally:
        process.kill()
    assert code == 1
    assert process.stderr is not None
    line = process.stderr.read().strip()
    assert re.fullmatch(r"swjoin: rank \d on \S+ was killed by signal 9", line), line
    assert not list((tmp_path / "run" / "results").glob("*.parquet"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is False


def _ranks_of(pid: int) -> list[int]:
    """Pids of the rank processes below a pid."""
    below = psutil.Process(pid).children(recursive=True)
    return [process.pid for process in below if "_rank" in process.cmdline() and not process.children()]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"left": {"path": "/nonexistent.parquet", "time_unit": "us"}}, 2, "no such file"),
        pytest.param({"time": {"late": "error"}}, 2, "no time", marks=pytest.mark.drawn),
        ({"sink": {"kind": "parquett"}}, 2, "did you mean parquet"),
    ],
)
def test_bad_input_is_one_line_from_the_cluster_too(change: dict[str, Any], code: int, text: str, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "null keys and null times")
    config = case.write(tmp_path)
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = command("run", config, "-n", 4, "--out", tmp_path / "run")
    assert done.returncode == code
    assert text in _complaint(done)
    assert not list((tmp_path / "run").glob("results/*.parquet"))


def test_output_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    config = CASES[0].write(tmp_path)
    (tmp_path / "run" / "results").mkdir(parents=True)
    (tmp_path / "run" / "results" / "old").write_text("")
    done = command("run", config, "-n", 3, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "is not empty" in _complaint(done)


def test_singletons_and_too_few_ranks(tmp_path: Path) -> None:
    config = CASES[0].write(tmp_path)
    line = [sys.executable, "-m", "swjoin", "run", str(config)]
    environment = {**os.environ, "PMI_SIZE": "4", "PMI_RANK": "0"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "separate processes" in _complaint(done)
    done = command("run", config, "-n", 2)
    assert done.returncode == 2
    assert "at least 3 ranks" in _complaint(done)

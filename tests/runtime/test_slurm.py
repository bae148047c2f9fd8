"""mpi_configs/slurm.sh on a real Slurm: one node, whose daemons these tests start, with all their files in a temporary folder.

Why: only Slurm itself knows when it signals whom, and what becomes of a job that asks to be queued again.
Needs slurmctld, slurmd and munged (Debian: slurm-wlm, munge, libpmix-dev) and root; skipped, with the reason, without them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.runtime.in_process import run_local
from tests.conftest import ROOT

pytestmark = [pytest.mark.long, pytest.mark.mpi, pytest.mark.timeout(900)]

SCRIPT = ROOT / "mpi_configs" / "slurm.sh"
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
DAEMONS = ("munged", "slurmctld", "slurmd")
MISSING = [name for name in DAEMONS if shutil.which(name, path=SBIN) is None]
# Root, because slurmd starts tasks as other users. A requeued job waits until its credential has expired: 5 s here, not 120.
CONFIGURATION = """
ClusterName=swjointest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=20
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
PLAIN: dict[str, Any] = {
    "seed": 3,
    "pace": "realtime",
    "join": {"within": "500ms"},
    "workload": {"rate": 4000, "duration": "75s", "bias": 0.7, "domain": 50_000, "payload": "8B"},
    "cluster": {"partition_count": 12, "distribution_epoch": "100ms"},
    "module": {"theta": "8KB", "window": "64MB"},
    "checkpoint": {"interval": "2s"},
    "sink": {"kind": "count"},
}


def _port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _wait(what: str, holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


@dataclass
class Slurm:
    folder: Path
    environment: dict[str, str]

    def command(self, *argv: object, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        line = [str(a) for a in argv]
        return subprocess.run(
            line, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT
        )

    def submit(self, config: Path, out: Path, launcher: str, *, minutes: int = 10) -> str:
        """Its number. The end is announced a minute ahead; Slurm may be up to another minute early, but is not."""
        done = self.command(
            *(
                "sbatch",
                "--parsable",
                f"--time={minutes}",
                "--signal=B:USR1@60",
                "--ntasks=4",
                "--output",
                self.folder / "job-%j.log",
            ),
            *("--export", f"ALL,SWJOIN_LAUNCHER={launcher}", SCRIPT, config, out),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        said = self.command("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def end(self, number: str, seconds: float) -> dict[str, str]:
        """The job when it has come to its end for good."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        _wait(f"job {number}", lambda: self.job(number)["JobState"] in over, seconds)
        return self.job(number)

    def log(self, number: str) -> str:
        return (self.folder / f"job-{number}.log").read_text()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if MISSING:
        pytest.skip(f"{', '.join(MISSING)} not installed (Debian: slurm-wlm munge libpmix-dev)")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().split(".")[0]
    settings = folder / "slurm.conf"
    settings.write_text(CONFIGURATION.format(folder=folder, host=host, ports=(_port(), _port())))
    environment = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(settings), "SWJOIN_PYTHON": sys.executable}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    munged = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge]
    lines = [munged, ["slurmctld", "-D", "-f", str(settings)], ["slurmd", "-D", "-f", str(settings), "-N", host]]
    processes: list[subprocess.Popen[bytes]] = []
    found = Slurm(folder, environment)
    try:
        for line in lines:
            with (folder / f"{line[0]}.out").open("wb") as said:
                processes.append(subprocess.Popen(line, env=environment, stdout=said, stderr=subprocess.STDOUT))
            time.sleep(0.5)
        try:
            _wait("slurmd", lambda: "idle" in found.command("sinfo", "--noheader", "--format=%T").stdout, 20)
        except AssertionError:
            said = " | ".join((folder / f"{name}.out").read_text()[-300:] for name in DAEMONS)
            pytest.skip(f"Slurm does not run here: {said}")
        yield found
        found.command("scancel", "--user=root")
        _wait("all jobs", lambda: found.command("squeue", "--noheader").stdout == "", 60)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(json.dumps(PLAIN))
    return path


@pytest.fixture(scope="module")
def expected(config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The undisturbed run's results, in this process and without a clock."""
    out = tmp_path_factory.mktemp("expected")
    job = Job(load_config(config, ["pace=asap"]), None, True, out, None, "test")
    report: dict[str, Any] = run_local(job, False, 2)
    return report


def _same(out: Path, expected: dict[str, Any]) -> None:
    report = json.loads((out / "run.json").read_text())
    assert report["complete"]
    assert report["ledger"] == expected["ledger"]
    assert (report["results"]["count"], report["results"]["digest"]) == (
        expected["results"]["count"],
        expected["results"]["digest"],
    )


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_job_goes_on_in_its_next_allocation(
    launcher: str, slurm: Slurm, config: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    """The end is announced, the run makes a checkpoint, the job is queued again and resumes, to the right answer.

    Announced by Slurm itself because of the limit, and by an operator who wants the place.
    """
    by_limit = launcher == "srun"
    number = slurm.submit(config, tmp_path / "run", launcher, minutes=2 if by_limit else 10)
    if not by_limit:
        _wait("a checkpoint", lambda: any(tmp_path.glob("run/checkpoints/checkpoint-*.json")), 60)
        assert slurm.command("scancel", "--batch", "--signal=USR1", number).returncode == 0
    ended = slurm.end(number, 700)  # on a busy machine most of an allocation goes into starting
    log = slurm.log(number)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert int(ended["Restarts"]) == log.count("slurm.sh: stopped with a checkpoint; queued again") >= 1, log
    assert log.count("digest ") == int(ended["Restarts"]) + 1
    _same(tmp_path / "run", expected)


def test_a_cancelled_job_is_not_queued_again_and_can_be_resumed(
    slurm: Slurm, config: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    number = slurm.submit(config, out, "srun")
    _wait("a checkpoint", lambda: any(out.glob("checkpoints/checkpoint-*.json")), 60)
    assert slurm.command("scancel", number).returncode == 0
    ended = slurm.end(number, 60)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0"), slurm.log(number)
    _wait("the last checkpoint's report", lambda: (out / "run.json").exists(), 30)
    assert json.loads((out / "run.json").read_text())["resumable"]
    _wait("the ranks' end", lambda: "COMPLETING" not in slurm.command("squeue", "--noheader", "--format=%T").stdout, 60)
    done = slurm.command(sys.executable, "-m", "swjoin", "run", "--resume", out, "--threads", 2, seconds=120)
    assert done.returncode == 0, done.stderr
    _same(out, expected)


@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_a_plug_in_that_does_not_fit_is_one_line(plugin: str, slurm: Slurm, config: Path, tmp_path: Path) -> None:
    """Every process would be alone; only the first says so."""
    line = ["srun", f"--mpi={plugin}", "--ntasks=3", sys.executable, "-m", "swjoin", "run", config, "--out", tmp_path / "run"]
    done = slurm.command(*line)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("swjoin: started as 3 separate processes, not as 3 MPI ranks") == 1, done.stderr


def test_a_launcher_that_nobody_knows_is_refused(slurm: Slurm, config: Path, tmp_path: Path) -> None:
    number = slurm.submit(config, tmp_path / "run", "prun")
    ended = slurm.end(number, 60)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "2:0")
    assert slurm.log(number) == "slurm.sh: SWJOIN_LAUNCHER is srun or mpirun, not prun\n"


@pytest.mark.parametrize(("plugin", "code"), [("pmix", 0), ("none", 1)])
def test_doctor_as_tasks_of_srun(plugin: str, code: int, slurm: Slurm) -> None:
    done = slurm.command("srun", f"--mpi={plugin}", "--ntasks=3", sys.executable, "-m", "swjoin", "doctor", seconds=120)
    ranks = [line for line in done.stdout.splitlines() if line.split()[1] == "ranks"]
    assert (len(ranks), done.returncode) == (1, code), done.stdout + done.stderr
    assert ranks[0].startswith("FAIL" if code else "OK")
    assert code == 0 or "srun --mpi=pmix" in ranks[0]

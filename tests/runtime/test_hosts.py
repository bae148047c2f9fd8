"""Ranks of one mpirun on several hosts: network namespaces, TCP between them, slow, lossy and cut links, hosts that die.

Why: with shared memory alone nothing of a network is tried. What namespaces do not have: other kernels, other clocks.
Needs root; skipped, with the reason, where there are no network namespaces.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.workloads.expected_results import digest_of_files
from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.runtime.in_process import run_local
from tests.conftest import ROOT
from tests.support.limits import LONG_S, PROCESS_S
from tests.support.namespaces import ADDRESS, Hosts, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.long,
    pytest.mark.mpi,
    pytest.mark.timeout(LONG_S),
    pytest.mark.skipif(bool(REASON), reason=REASON or "never"),
]
PLAIN: dict[str, Any] = {
    "seed": 3,
    "join": {"within": "500ms"},
    "workload": {"rate": 20_000, "duration": "3s", "bias": 0.7, "domain": 100_000, "payload": "32B"},
    "cluster": {"partition_count": 12, "distribution_epoch": "100ms"},
    "module": {"theta": "8KB", "window": "64MB"},
    "sink": {"kind": "count"},
}
SAFE = {**PLAIN, "pace": "realtime", "checkpoint": {"interval": "1s"}}
SAFE["workload"] = {**PLAIN["workload"], "rate": 3000, "duration": "15s"}
WATCHED = {**SAFE, "cluster": {**PLAIN["cluster"], "failure_timeout": "4s"}}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    made: list[Hosts] = []

    def make(**options: Any) -> Hosts:
        made.append(Hosts(tmp_path, 3, **options))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


def _config(folder: Path, plain: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps(plain))
    return path


def _line(config: Path, hosts: Hosts, ranks: int, out: Path) -> list[object]:
    return [sys.executable, "-m", "swjoin", "run", config, "-n", ranks, "--hostfile", hosts.hostfile, "--out", out]


def _same(config: Path, report: dict[str, Any], folder: Path) -> None:
    """Count, digest and ledger of one process without a clock."""
    job = Job(load_config(config, ["pace=asap", "sink.kind=count"]), None, True, folder / "expected", None, "test")
    expected = run_local(job, False, 2)
    assert report["complete"]
    assert report["ledger"] == expected["ledger"]
    assert (report["results"]["count"], report["results"]["digest"]) == (
        expected["results"]["count"],
        expected["results"]["digest"],
    )


def _report(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report


def _wait(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


def test_ranks_on_three_hosts(make: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, PLAIN)
    code, said, err = hosts.run(_line(config, hosts, 6, out), ROOT, 100)
    assert code == 0, said + err
    report = _report(out)
    assert [rank["host"] for rank in report["ranks"].values()] == ["host0", "host0", "host1", "host1", "host2", "host2"]
    _same(config, report, tmp_path)
    assert not list(out.glob(".job-*")), "what told the ranks their job is gone"


def test_delay_and_loss(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """5 ms one way and one frame in a hundred lost, by the wire of tests/support/namespaces.py, which needs no netem."""
    hosts, out = make(delay_s=0.005, loss=0.01), tmp_path / "run"
    config = _config(tmp_path, PLAIN)
    code, said, err = hosts.run(_line(config, hosts, 5, out), ROOT, 150)
    assert code == 0, said + err
    _same(config, _report(out), tmp_path)
    assert hosts.wire is not None
    assert hosts.wire.lost > 0
    assert hosts.wire.carried > 1000


def test_netem_where_the_kernel_has_it(make: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts, out = make(), tmp_path / "run"
    try:
        for host in range(3):
            hosts.shape(host, "netem", "delay", "5ms", "loss", "1%")
    except OSError as error:
        pytest.skip(f"this kernel has no netem: {error}")
    config = _config(tmp_path, PLAIN)
    code, said, err = hosts.run(_line(config, hosts, 5, out), ROOT, 150)
    assert code == 0, said + err
    _same(config, _report(out), tmp_path)


def test_a_slow_network(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """Every host sends at most 20 Mbit/s: what the master sends takes as long as that."""
    hosts, out = make(), tmp_path / "run"
    try:
        for host in range(3):
            hosts.shape(host, "tbf", "rate", "20mbit", "burst", "64kb", "latency", "200ms")
    except OSError as error:
        pytest.skip(f"this kernel has no token bucket filter: {error}")
    config = _config(tmp_path, PLAIN)
    code, said, err = hosts.run(_line(config, hosts, 5, out), ROOT, 150)
    assert code == 0, said + err
    report = _report(out)
    _same(config, report, tmp_path)
    tuples = 2 * 20_000 * 3
    assert report["wall_s"] > 0.8 * tuples * 32 * 8 / 20e6, "payloads alone, to slaves on other hosts"


def test_stages_are_placed_by_hosts(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """By an earlier run's traffic: what still goes between ranks mostly stays on their host."""
    rng = np.random.default_rng(5)
    for name in "abc":
        k, ts = rng.integers(0, 80, 4_000), np.sort(rng.integers(0, 20_000_000, 4_000))
        pq.write_table(pa.table({"ts": ts, "k": k, "v": (37 * k + 11) % 101}), tmp_path / f"{name}.parquet")
    inputs = {name: {"path": str(tmp_path / f"{name}.parquet"), "time": "ts", "time_unit": "us"} for name in "abc"}
    sql = (
        "SELECT a.k AS k, c.v AS v FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL "
        "'1' SECOND JOIN c ON a.v = c.v AND c.ts BETWEEN a.ts - INTERVAL '0.2' SECOND AND a.ts + INTERVAL '0.2' SECOND"
    )
    cluster = {"strategy": "query", "distribution_epoch": "500ms"}
    plain = {"inputs": inputs, "queries": [{"name": "q", "sql": sql}], "cluster": cluster, "sink": {"kind": "count"}}
    hosts, answers, between = make(), set(), []
    for number, more in enumerate(({}, {"placement": {"statistics": str(tmp_path / "0")}})):
        config = _config(tmp_path, plain | more)
        code, said, err = hosts.run(_line(config, hosts, 6, tmp_path / str(number)), ROOT, 150)
        assert code == 0, said + err
        report = _report(tmp_path / str(number))
        answers.add((report["results"]["count"], report["results"]["digest"]))
        (edge,) = (edge for edge in report["edges"] if edge["from"] == "join 1")
        between.append({way: sums["bytes"] / edge["bytes"] for way, sums in edge["traffic"].items()})
    assert len(answers) == 1
    assert between[0]["between_hosts"] > 0.3
    assert between[1]["between_hosts"] < 0.05
    assert between[1]["local"] > 0.8


def test_doctor_sees_hosts_and_their_network(make: Callable[..., Hosts], tmp_path: Path) -> None:
    hosts = make(delay_s=0.005)
    line: list[object] = [sys.executable, "-m", "swjoin", "doctor", "-n", 6, "--hostfile", hosts.hostfile, "--dir", tmp_path]
    code, said, err = hosts.run([*line, "--json"], ROOT, 150)
    assert code == 0, said + err
    found = {check["name"]: check for check in json.loads(said)["checks"]}
    assert "6 started on 3 host(s)" in found["ranks"]["found"]
    latencies = {link["rank"]: link["latency_s"] for link in found["ping-pong"]["figures"]["links"]}
    assert found["ping-pong"]["verdict"] == "WARN"
    assert min(latencies[rank] for rank in (2, 3, 4, 5)) > 0.005 > latencies[1], "rank 1 is on the host of rank 0"
    assert all(abs(link["offset_s"]) <= link["uncertainty_s"] + 1e-3 for link in found["clock offsets"]["figures"]["links"])
    assert (found["ring"]["verdict"], found["shared directory"]["verdict"]) == ("OK", "OK")


def test_a_directory_that_is_not_shared(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """Every host has a file system of its own at that place: doctor says so, and a run does in one line."""
    hosts, own = make(), tmp_path / "own"
    own.mkdir()
    hosts.enter(hosts.agent, 'host=$((${1##*.} - 1)); shift; set -- sh -c "$*"', f"mount -t tmpfs none {own}")
    line: list[object] = [sys.executable, "-m", "swjoin", "doctor", "-n", 3, "--hostfile", hosts.hostfile]
    code, said, err = hosts.run([*line, "--dir", own], ROOT, 150)
    assert code == 1, said + err
    assert f"FAIL  shared directory  {own} is another one on host1; mend: use a file system that all hosts share" in said
    code, said, err = hosts.run(_line(_config(tmp_path, PLAIN), hosts, 5, own / "run"), ROOT, 100)
    assert code == 2, said + err
    assert "no job to read (No such file or directory); all hosts must share --out" in err
    assert len(err.splitlines()) == 1


def _after_a_checkpoint(hosts: Hosts, out: Path, trouble: Callable[[], None], seconds: float, **environment: str) -> int | None:
    """Start a run, wait for its second checkpoint, make trouble; its exit code, None when it had to be killed."""
    process = hosts.start(_line(out.parent / "config.yaml", hosts, 6, out), ROOT, **environment)
    assert _wait(lambda: (out / "checkpoints" / "checkpoint-000002.json").exists(), 60), (out.parent / "err").read_text()
    trouble()
    code = process.wait(seconds) if _wait(lambda: process.poll() is not None, seconds) else None
    hosts.kill_all()
    process.wait(PROCESS_S)
    return code


def test_all_processes_of_a_host_die(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """mpirun loses its daemon there, and ends all: the fault tolerance of ranks is not that of hosts. The run is resumed."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, SAFE)
    code = _after_a_checkpoint(hosts, out, lambda: hosts.kill(2), 60)
    told = (tmp_path / "err").read_text()
    assert code == 1, told
    assert told == f"swjoin: mpirun ended before the run did: a host was lost; go on with: swjoin run --resume {out} -n 6\n"
    assert not _report(out)["complete"]
    resumed: list[object] = [sys.executable, "-m", "swjoin", "run", "--resume", out, "-n", 4, "--hostfile", hosts.hostfile]
    hosts.hostfile.write_text("".join(f"{ADDRESS}.{i + 1} slots=2\n" for i in range(2)))
    code, said, err = hosts.run(resumed, ROOT, 100)
    assert code == 0, said + err
    _same(config, _report(out), tmp_path)


def test_a_host_is_cut_off_and_the_detector_is_on(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """Open MPI's own failure detector, which is off by default, finds the silence; the others go on without that host."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, SAFE)
    detector = {
        "OMPI_MCA_mpi_ft_detector": "1",
        "OMPI_MCA_mpi_ft_detector_period": "1",
        "OMPI_MCA_mpi_ft_detector_timeout": "5",
    }
    code = _after_a_checkpoint(hosts, out, lambda: hosts.cut(2), 90, **detector)
    assert code == 0, (tmp_path / "err").read_text()
    report = _report(out)
    assert len(report["checkpoints"]["recoveries"]) == 1
    _same(config, report, tmp_path)


def test_a_host_is_cut_off(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """Its ranks give no sign of life: the others name them and go on. mpirun, which waits for it, is ended after the run."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, WATCHED)
    code = _after_a_checkpoint(hosts, out, lambda: hosts.cut(2), 200)
    told = (tmp_path / "err").read_text()
    assert code == 0, told
    assert [rank for rank in range(6) if f"rank {rank} (slave {rank - 2}) on host2: no sign of life for 4 s" in told] == [4, 5]
    assert len(_report(out)["checkpoints"]["recoveries"]) == 1
    _same(config, _report(out), tmp_path)


def test_the_connection_of_two_hosts_is_cut(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """The master still hears both: it goes on without one of them, whose ranks end themselves."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, WATCHED)
    code = _after_a_checkpoint(hosts, out, lambda: hosts.hide(2, before=1), 200)
    told = (tmp_path / "err").read_text()
    assert code == 0, told
    assert "rank 5 (slave 3) on host2: cut off from other ranks for 4 s" in told
    assert "on host1" not in told
    assert len(_report(out)["checkpoints"]["recoveries"]) == 1
    _same(config, _report(out), tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "count"])
def test_a_rank_on_another_host_wakes_up_after_the_others_have_gone_on(
    kind: str, make: Callable[..., Hosts], tmp_path: Path
) -> None:
    """No rank can kill it: it finds out that it was excluded, and ends itself without writing anything."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, {**WATCHED, "sink": {"kind": kind}})
    hosts.hostfile.write_text(f"{ADDRESS}.1 slots=1\n{ADDRESS}.2 slots=3\n{ADDRESS}.3 slots=2\n")
    ended: list[bool] = []

    def stop_the_collector() -> None:
        ranks = {rank: pid for pid in hosts.processes(1) if (rank := _rank_of(pid)) is not None}
        os.kill(ranks[1], signal.SIGSTOP)
        assert _wait(lambda: "on host1: no sign of life" in (tmp_path / "err").read_text(), 60)
        os.kill(ranks[1], signal.SIGCONT)
        ended.append(_wait(lambda: _rank_of(ranks[1]) is None, 60))

    code = _after_a_checkpoint(hosts, out, stop_the_collector, 200)
    assert code == 0, (tmp_path / "err").read_text()
    assert ended == [True]
    report = _report(out)
    assert len(report["checkpoints"]["recoveries"]) == 1
    _same(config, report, tmp_path)
    if kind == "parquet":
        assert digest_of_files(out / "results") == (report["results"]["count"], report["results"]["digest"])
        assert [path.name for path in (out / "results").iterdir() if not path.name.startswith("part-")] == []


def _rank_of(pid: int) -> int | None:
    """The MPI rank of a process that runs; None for another one."""
    try:
        rank = psutil.Process(pid).environ().get("OMPI_COMM_WORLD_RANK")
    except psutil.Error:
        return None
    return None if rank is None else int(rank)


def test_a_host_is_cut_off_and_nobody_detects_it(make: Callable[..., Hosts], tmp_path: Path) -> None:
    """Without a timeout nothing tells a silent host from a slow one: the run waits, and is resumed after it was killed."""
    hosts, out = make(), tmp_path / "run"
    config = _config(tmp_path, {**SAFE, "cluster": {**PLAIN["cluster"], "failure_timeout": 0}})
    code = _after_a_checkpoint(hosts, out, lambda: hosts.cut(2), 40)
    assert code is None, "it waits longer than its 15 s and the detector's time together"
    assert not (out / "run.json").exists()
    hosts.hostfile.write_text("".join(f"{ADDRESS}.{i + 1} slots=2\n" for i in range(2)))
    resumed: list[object] = [sys.executable, "-m", "swjoin", "run", "--resume", out, "-n", 4, "--hostfile", hosts.hostfile]
    code, said, err = hosts.run(resumed, ROOT, 100)
    assert code == 0, said + err
    _same(config, _report(out), tmp_path)

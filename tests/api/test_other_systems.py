"""Joins in one process without what Linux alone has: what macOS and Windows lack is hidden, as neither can be tried here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import PROCESS_S

# Modules, and attributes of modules, that a system lacks; /proc and /sys are missing on both.
LACKS = {
    "darwin": (
        ["spwd"],
        ["os.sched_getaffinity", "os.sched_setaffinity", "os.preadv", "os.pwritev", "os.posix_fadvise", "os.posix_fallocate"],
    ),
    "win32": (
        ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"],
        [
            *("os.sched_getaffinity", "os.sched_setaffinity", "os.preadv", "os.pwritev", "os.pread", "os.pwrite", "os.fork"),
            *("os.getuid", "os.geteuid", "os.getgid", "os.sysconf", "os.statvfs", "os.mkfifo", "os.killpg", "os.setsid"),
            *("os.getpgid", "os.fchmod", "os.posix_fallocate", "os.posix_fadvise", "os.getloadavg", "os.uname"),
            *("signal.SIGHUP", "signal.SIGUSR1", "signal.SIGUSR2", "signal.SIGKILL", "signal.pthread_sigmask", "select.poll"),
        ],
    ),
}
# The libraries are imported first: only swjoin's own code meets the other system.
PRELUDE = """
import builtins, ctypes, enum, io, json, os, select, shutil, signal, subprocess, sys, tempfile, types
import multiprocessing, duckdb, llvmlite, numba, numpy as np, pandas, platformdirs, psutil, pyarrow as pa, rich.progress, yaml
import pyarrow.compute, pyarrow.csv, pyarrow.dataset, pyarrow.fs, pyarrow.json, pyarrow.orc, pyarrow.parquet as pq
import concurrent.futures.process, logging, numba.core.caching, numba.np.ufunc, uuid, zoneinfo
psutil.Process().memory_info(), psutil.cpu_times(), psutil.virtual_memory()
modules, names = json.loads(sys.argv[1])
for name in modules:
    sys.modules[name] = None
lacking = {name.partition(".")[2] for name in names if name.startswith("signal.")}
members = {n: s.value for n, s in signal.Signals.__members__.items() if n not in lacking}
signal.Signals = enum.IntEnum("Signals", members)
for name in names:
    module, _, attribute = name.partition(".")
    if hasattr(sys.modules[module], attribute):
        delattr(sys.modules[module], attribute)
sys.platform = sys.argv[2]
if sys.platform == "win32":
    def locking(handle, mode, count):
        assert (mode, count) == (2, 1)
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    shutil._use_fd_functions = False
    original_open = os.open
    def refusing_open(path, *rest, **more):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return original_open(path, *rest, **more)
    os.open = refusing_open
real_cdll = ctypes.CDLL
def cdll(name, *rest, **more):
    if name is None:
        if sys.platform == "win32":
            raise TypeError("argument of type 'NoneType' is not iterable")
        return types.SimpleNamespace()
    return real_cdll(name, *rest, **more)
ctypes.CDLL = cdll
real_open = io.open
def no_proc(file, *rest, **more):
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if str(file).startswith(("/proc/", "/sys/")) and (caller.startswith("swjoin") or caller == "pathlib"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *rest, **more)
builtins.open = io.open = no_proc
"""
USE = """
import swjoin
from swjoin.cli.main import main

n = 2000
times = pa.array(np.arange(n) * 1000, pa.timestamp("us"))
tables = [pa.table({"k": np.arange(n) * 7 % 13, "t": times, "v": [f"{side}{i}" for i in range(n)]}) for side in "ab"]
options = {"on": "k", "left_time": "t", "right_time": "t", "within": "5ms"}
proof = swjoin.count(*tables, **options)
assert proof.count > 0
assert swjoin.proof(swjoin.join(*tables, **options)).digest == proof.digest
assert len(swjoin.join(*[t.to_pandas() for t in tables], **options)) == proof.count
with swjoin.WindowJoin(left_schema=tables[0].schema, right_schema=tables[1].schema, **options) as join:
    got = sum(b.num_rows for b in join.push(left=tables[0], right=tables[1])) + sum(b.num_rows for b in join.close())
assert (got, join.digest) == (proof.count, proof.digest)
pq.write_table(tables[0].take(list(range(n))[::-1]), "a.parquet")
pq.write_table(tables[1], "b.parquet")
command = ["join", "a.parquet", "b.parquet", "--on", "k", "--left-time", "t", "--right-time", "t", "--within", "5ms", "--sort"]
assert main([*command, "-o", "out.parquet"]) == 0
assert main([*command, "-o", "out.csv", "--how", "left", "--report", "report.json"]) == 0
assert main(["join", "missing.parquet", *command[2:], "-o", "count"]) == 2
assert pq.read_table("out.parquet").num_rows == proof.count
swjoin.run(
    {
        "within": "5ms",
        "workload": {"duration": "1s", "rate": 200, "domain": 50},
        "cluster": {"distribution_epoch": "100ms"},
        "checkpoint": {"epochs": 2},
        "sink": {"kind": "parquet"},
        "pace": "realtime",
        "on_overload": {"policy": "spill", "directory": "spilled"},
    },
    out="run",
)
for words in ("verify run", "report run", "events run", "init made.yaml", "explain made.yaml", "plan made.yaml", "kernels"):
    assert main(words.split()) == 0, words
"""


@pytest.mark.parametrize("system", [pytest.param("darwin", marks=pytest.mark.drawn), "win32"])
def test_joins_need_nothing_that_linux_alone_has(system: str, tmp_path: Path) -> None:
    line = [sys.executable, "-c", PRELUDE + USE, json.dumps(LACKS[system]), system]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr

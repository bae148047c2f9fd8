"""A process that uses swjoin as a library is, afterwards, as it was before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import platformdirs
import pytest

from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

PROGRAM = """
    import gc, locale, logging, os, signal, sys, threading, time, warnings
    import matplotlib
    import pyarrow as pa

    matplotlib.use("svg")
    logging.getLogger().setLevel(logging.ERROR)


    def state():
        return {
            "signals": {n: signal.getsignal(n) for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)},
            "switch interval": sys.getswitchinterval(),
            "backend": matplotlib.get_backend(),
            "warnings": list(warnings.filters),
            "logging": [(n.level, list(n.handlers)) for n in map(logging.getLogger, ("", "swjoin", "py.warnings"))],
            "environment": dict(os.environ),
            "directory": os.getcwd(),
            "umask": os.umask(os.umask(0o022)),
            "locale": locale.setlocale(locale.LC_ALL),
            "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.stdout, sys.stderr, sys.gettrace()),
            "threads": sorted(t.name for t in threading.enumerate()),
            "arrow": (pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name),
            "recursion": sys.getrecursionlimit(),
            "import path": list(sys.path),
        }


    def files():
        paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return {os.readlink(path) for path in paths if os.path.exists(path)}


    before, opened = state(), files()
    import swjoin

    table = pa.table({"k": [i % 9 for i in range(200_000)], "t": list(range(200_000))})
    options = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "ms", "within": "20ms"}
    rows = swjoin.count(table, table, **options, progress=True).count
    assert swjoin.join(table, table, **options, threads=2).num_rows == rows
    with swjoin.WindowJoin(**options) as join:
        rows = sum(batch.num_rows for batch in join.push(left=table, right=table)) + sum(b.num_rows for b in join.close())
    assert rows
    run = swjoin.run({"within": "1s", "workload": {"rate": 2000, "duration": "2s"}}, threads=2)
    run.plot()
    run.results().count_rows()
    try:
        swjoin.join(table, table, **{**options, "on": "none"})
    except swjoin.UserError:
        pass
    del run, join
    gc.collect()
    until = time.monotonic() + 60
    while state()["threads"] != before["threads"] and time.monotonic() < until:
        time.sleep(0.05)
    after = state()
    for name, value in before.items():
        assert after[name] == value, (name, value, after[name])
    left = {path for path in files() - opened if not path.startswith(("/dev", "pipe:", "anon_inode:", "socket:"))}
    assert not left, left
"""


def test_nothing_of_the_process_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=tmp_path,
        env={
            **{"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),  # kernels that are compiled
        },
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == ""

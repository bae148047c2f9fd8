"""A join changes settings of the process while it runs, and leaves them as it found them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import swjoin
from swjoin.monitor import process_settings
from tests.support.limits import PROCESS_S

TABLE = pa.table({"k": [1, 2], "t": pa.array([1, 2], pa.timestamp("us"))})
JOIN = {"on": "k", "left_time": "t", "right_time": "t", "within": "1s"}


def test_joins_in_several_threads_leave_the_switch_interval() -> None:
    before = sys.getswitchinterval()
    threads = [threading.Thread(target=lambda: [swjoin.count(TABLE, TABLE, **JOIN) for _ in range(5)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROCESS_S)
    assert sys.getswitchinterval() == before


def test_overlapping_joins_undo_after_the_last() -> None:
    before = sys.getswitchinterval()
    first, second = process_settings.join_settings(), process_settings.join_settings()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() < before
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_an_interval_that_the_program_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    try:
        with process_settings.join_settings():
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
        sys.setswitchinterval(0.0001)
        shorter = sys.getswitchinterval()
        with process_settings.join_settings():
            assert sys.getswitchinterval() == shorter
        assert sys.getswitchinterval() == shorter
    finally:
        sys.setswitchinterval(before)


def test_a_join_that_fails_leaves_the_settings() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(swjoin.UserError):
        swjoin.count(TABLE, TABLE, **{**JOIN, "within": "-1s"})
    with pytest.raises(ZeroDivisionError), process_settings.join_settings():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == before


_PROGRAM = """
import sys
from swjoin.monitor.process_settings import keep_freed_memory
print(keep_freed_memory())
"""


@pytest.mark.skipif(not process_settings.keep_freed_memory(), reason="the C library has no mallopt")
def test_settings_of_the_c_library_that_the_user_made_stay() -> None:
    environment = {"MALLOC_TRIM_THRESHOLD_": "131072", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=PROCESS_S, check=True
    )
    assert done.stdout == "False\n"


_NOTEBOOK = """
import matplotlib
matplotlib.use("svg")
from matplotlib import pyplot as plt
mine = plt.figure()
settings = dict(matplotlib.rcParams)
import swjoin
run = swjoin.run({config!r}, out={out!r})
figure = run.plot()
assert figure._repr_png_().startswith(b"\\x89PNG")
assert matplotlib.get_backend().lower() == "svg", matplotlib.get_backend()
assert plt.get_fignums() == [mine.number], plt.get_fignums()
assert dict(matplotlib.rcParams) == settings
"""


def test_a_plot_leaves_the_programs_figures_and_backend(tmp_path: Path) -> None:
    config = {"join": {"within": "1s"}, "workload": {"rate": 1000, "duration": "2s"}}
    program = _NOTEBOOK.format(config=config, out=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PROCESS_S)
    assert done.returncode == 0, done.stderr

"""When Python looks for garbage: seldom until roles begin, in processes of the command alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.limits import PROCESS_S

PROGRAM = """
import gc, sys, weakref
if sys.argv[1] == "command":
    from swjoin.core.collecting import relax
    relax()
import swjoin
import swjoin.runtime.in_process
if sys.argv[1] == "frozen":
    gc.freeze()

class Node:
    pass

from swjoin.runtime.hosts import CollectorHost, MasterHost
from swjoin.runtime.slave_host import SlaveHost

frozen, observe = [], MasterHost.observe
def noted(host):
    frozen.append(gc.get_freeze_count() > 10_000)
    observe(host)
MasterHost.observe = noted
for _ in range(2):
    frozen.clear()
    swjoin.run({"within": "1s", "workload": {"duration": "1s", "rate": 100}, "sink": {"kind": "count"}})
    gc.collect()
    left = [found for found in gc.get_objects() if isinstance(found, (CollectorHost, MasterHost, SlaveHost))]
    print(gc.get_threshold() == (700, 10, 10), any(frozen), gc.get_freeze_count() > 10_000, left)
    node, freed = Node(), []
    node.itself = node
    weakref.finalize(node, freed.append, 1)
    del node
    gc.collect()
    print(freed)
"""


@pytest.mark.parametrize("process", ["command", "other", "frozen"])
def test_settings_of_processes(process: str) -> None:
    line = [sys.executable, "-c", PROGRAM, process]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr
    theirs = process == "frozen"  # what others have frozen stays so
    lines = [f"True {frozen} {theirs} []" for frozen in (process != "other", theirs)]
    assert done.stdout.splitlines() == [lines[0], "[1]", lines[1], "[1]"]

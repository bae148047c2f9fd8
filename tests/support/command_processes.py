"""Commands of swjoin in processes of their own, which tests kill.

What: `Command`, which the fixture `start` starts.
Why: live runs are started, killed and resumed as users do it.
Stays out: what they do (tests/runtime/test_live.py, tests/connectors/test_live_queries.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.tools.processes import parent_of, ranks_of


class Command:
    """A swjoin command; what it says goes to a file. Killed at the end, if it is still there."""

    def __init__(self, log: Path, *words: object) -> None:
        self.log = log
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "swjoin", *map(str, words)], stdout=file, stderr=file, cwd=ROOT, start_new_session=True
            )

    def said(self, text: str, times: int = 1) -> None:
        """Wait until it has."""
        deadline = time.monotonic() + PROCESS_S
        while self.log.read_text().count(text) < times:
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """To it and all that it has started."""
        ranks = ranks_of(self.process.pid).values()  # in process groups of their own, as their launcher is
        others = {*ranks, *(parent_of(pid) for pid in ranks)} - {0, 1, os.getpid()}
        os.killpg(self.process.pid, number)
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        self.process.wait(PROCESS_S)

    def ended(self) -> None:
        assert self.process.wait(PROCESS_S) == 0, self.log.read_text()[-2000:]

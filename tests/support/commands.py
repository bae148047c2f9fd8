"""Commands run as processes of their own."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT
from tests.support.limits import PROCESS_S


def command(*argv: object, timeout: float = PROCESS_S) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "swjoin", *map(str, argv)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)

"""Cases of SPEC section 7 run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.runtime.in_process import run_local


def run(config: Path, folder: Path, slaves: int = 1) -> dict[str, Any]:
    job = Job(load_config(config), folder / "run" / "results", True, folder / "run", None, "test")
    return run_local(job, False, slaves)


def answer(report: dict[str, Any]) -> tuple[int, str]:
    return report["results"]["count"], report["results"]["digest"]

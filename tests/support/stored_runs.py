"""Folders of runs as a run leaves them, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.connectors.files.run_files import EventsFile
from swjoin.core.data_messages import RunEvent
from swjoin.runtime.in_process import run_local


def write_events(run_dir: Path, events: list[RunEvent]) -> None:
    file = EventsFile(run_dir)
    for event in events:
        file.add(event)
    file.close()


def a_run(folder: Path, slaves: int = 3, **reorganization: Any) -> dict[str, Any]:
    """A short run with many moves in FOLDER; returns its report."""
    plain = {
        "join": {"within": "100ms"},
        "workload": {"rate": 3000, "duration": "2s", "domain": 1000},
        "cluster": {"distribution_epoch": "50ms", "partition_count": 12},
        "reorganization": {"policy": "random", "epoch": "100ms", "random_moves": 2, **reorganization},
        "sink": {"kind": "count"},
        "seed": 3,
    }
    return run_local(Job(config_from_plain(plain), None, True, folder, None, "test"), False, slaves)

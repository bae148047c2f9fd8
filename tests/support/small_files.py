"""Small inputs, and the state of a folder before and after a command."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

PLAIN: dict[str, Any] = {
    "workload": {"rate_per_s": 2000, "duration": "1s", "domain": 100},
    "join": {"within": "100ms"},
    "sink": {"kind": "parquet"},
}
TIMES = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us"]


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Every name under a folder, with what it holds; of a link, where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, hashlib.sha256(content).hexdigest())
    return found


def config(folder: Path, **sections: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps(PLAIN | sections))
    return path


def rows(path: Path, folder: bool = False) -> Path:
    table = pa.table({"key": [1, 2], "ts": [10, 20]})
    target = path
    if folder:
        path.mkdir()
        target = path / "part.parquet"
    if target.suffix == ".csv":
        csv.write_csv(table, target)
    else:
        pq.write_table(table, target)
    return path

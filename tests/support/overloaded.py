"""Runs that get more tuples than their slaves can join, and their right answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from swjoin.config.loader import config_from_plain
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.join_semantics import format_digest, pair_digest
from swjoin.runtime.simulator.result import SimulationResult


def shed(result: SimulationResult) -> int:
    return sum(result.counts["shed"].values())


def config(tmp_path: Path, speed: float = 0.01, **overload: Any) -> Path:
    plain = {
        "join": {"within": "500ms"},
        "pace": "realtime",
        "workload": {"rate": 20_000, "duration": "2s", "bias": 0.7, "domain": 20_000, "payload": "16B"},
        "cluster": {"partition_count": 12, "distribution_epoch": "50ms", "mini_buffer": "512KB"},
        "module": {"theta": "32KB", "stream_buffer": "32KB"},
        "nodes": {"node_speed": speed},
        "measure": {"rush": True},
        "on_overload": overload,
        "sink": {"kind": "parquet"},
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(plain))
    return path


def answer_without(report: dict[str, Any], aside: Path | None, reason: str = "shed", *, some: bool = True) -> tuple[int, str]:
    """DuckDB's answer for the same streams, without the rows that were written down. some: there must be such rows."""
    from swjoin.connectors.generator.source import GeneratorSource

    run = config_from_plain(report["config"])
    sides = []
    for stream in (LEFT, RIGHT):
        source = GeneratorSource(run.workload, run.seed, stream, carry_payload=False)
        parts = []
        while (batch := source.read()) is not None:
            parts.append((batch.key, batch.ts, batch.id.astype(np.int64)))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        if aside is not None:
            rows = pq.read_table(aside)
            mine = np.array(rows["stream"].to_pylist()) == ("left", "right")[stream]
            assert set(rows["reason"].to_pylist()) == ({reason} if some or rows.num_rows else set())
            keep = ~np.isin(columns[2], rows["row_id"].to_numpy().astype(np.int64)[mine])
            assert (~keep).sum() == mine.sum() == report[reason][("left", "right")[stream]]
            columns = [column[keep] for column in columns]
        sides.append(columns)
    import pandas as pd

    database = duckdb.connect()
    for name, side in zip(("l", "r"), sides, strict=True):
        database.register(name, pd.DataFrame(dict(zip(("k", "ts", "id"), side, strict=True))))
    bounds = run.query.bounds
    query = "select l.id, r.id from l join r on l.k = r.k and r.ts - l.ts between ? and ?"
    found = database.execute(query, [bounds.lower_us, bounds.upper_us]).fetchnumpy()
    ids = [np.asarray(column, np.uint64) for column in found.values()]
    return len(ids[0]), format_digest(pair_digest(ids[0], ids[1]))

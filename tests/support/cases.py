"""The cases of SPEC section 7 as data: two streams, bounds, options; and their right answer by brute force or by formula.

Used by the in-process and by the MPI tests, so that every case runs in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, How, format_digest, pair_digest
from tests.tools.oracle import answer

Rows = tuple[list[int | None], list[int | None]]  # keys, times


@dataclass
class Case:
    name: str
    left: Rows
    right: Rows
    bounds: tuple[int, int]
    exclusive: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def good(self, rows: Rows, out_of_order: int) -> TupleBatch:
        high: int | None = None
        keep = []
        for i, (key, ts) in enumerate(zip(*rows, strict=True)):
            if key is not None and ts is not None and (high is None or ts >= high - out_of_order):
                keep.append(i)
            if ts is not None:
                high = ts if high is None else max(high, ts)
        keys = np.array([rows[0][i] for i in keep], np.int64)
        times = np.array([rows[1][i] for i in keep], np.int64)
        return TupleBatch(keys, times, np.array(keep, np.uint64), times)

    def answer(self, how: How = "inner") -> tuple[int, str]:
        time = self.settings.get("time", {})
        bound = 10**18 if time.get("sort") else time.get("max_out_of_order_us", 0)
        left, right = self.good(self.left, bound), self.good(self.right, bound)
        if len(left) * len(right) > 10**7:
            raise ValueError(f"{self.name}: too large for brute force")
        nulls = tuple(
            np.array([i for i, (key, ts) in enumerate(zip(*rows, strict=True)) if key is None and ts is not None], np.uint64)
            for rows in (self.left, self.right)
        )
        ids = answer(left, right, Bounds.of(*self.bounds, self.exclusive), how, (nulls[0], nulls[1]))
        return len(ids[0]), format_digest(pair_digest(*ids))

    def write(self, folder: Path, *, row_groups: int = 1, **sections: Any) -> Path:
        """Parquet files of about so many row groups and a configuration; sections override the case's settings."""
        plain: dict[str, Any] = {
            "join": {"lower_us": self.bounds[0], "upper_us": self.bounds[1], "exclusive": list(self.exclusive)},
            "cluster": {"distribution_epoch_us": 100, "partition_count": 7},
            "module": {"block_bytes": 256, "theta_bytes": 1024, "window": "256MB"},
        }
        for section in (self.settings, sections):
            for name, value in section.items():
                plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
        for name, rows in (("left", self.left), ("right", self.right)):
            table = pa.table({"key": pa.array(rows[0], pa.int64()), "ts": pa.array(rows[1], pa.int64())})
            group_rows = max(1, -(-len(table) // row_groups))
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=group_rows)
            plain[name] = {"path": str(folder / f"{name}.parquet"), "time_unit": "us"}
        path = folder / "config.yaml"
        path.write_text(json.dumps(plain))
        return path


def _random(seed: int, n: int, keys: int, span: int, key_shift: int = 0, base: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return (random.integers(0, keys, n) + key_shift).tolist(), (np.sort(random.integers(0, span, n)) + base).tolist()


def _plain(name: str, bounds: tuple[int, int], **more: Any) -> Case:
    return Case(name, _random(1, 300, 20, 3000), _random(2, 250, 20, 3000), bounds, **more)


def _disorder(rows: Rows, by: int, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    order = np.argsort(np.array(rows[1]) + random.integers(0, by + 1, len(rows[1])), kind="stable")
    return [rows[0][i] for i in order], [rows[1][i] for i in order]


def _nulls(rows: Rows, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    keys = [None if random.random() < 0.1 else k for k in rows[0]]
    return keys, [None if random.random() < 0.1 else t for t in rows[1]]


_BASE = _random(3, 200, 10, 2000), _random(4, 200, 10, 2000)
_EMPTY: Rows = ([], [])

CASES = [
    _plain("asymmetric", (-50, 400)),
    _plain("both positive", (100, 300)),
    _plain("both negative", (-300, -100)),
    _plain("exclusive", (-200, 200), exclusive=("lower", "upper")),
    _plain("empty after exclusion", (7, 7), exclusive=("lower",)),
    Case("a timestamp exactly on a bound", ([1, 1], [100, 1000]), ([1, 1, 1, 1], [90, 110, 989, 1011]), (-10, 10)),
    Case("equal timestamps everywhere", ([1, 2] * 40, [500] * 80), ([2, 3] * 30, [500] * 60), (0, 0)),
    Case("one stream silent", ([1] * 50, list(range(0, 5000, 100))), ([1, 1], [0, 4900]), (-150, 150)),
    Case("one stream late", _BASE[0], (_BASE[1][0], [t + 1900 for t in _BASE[1][1] if t is not None]), (-500, 500)),
    Case("one stream empty", _BASE[0], _EMPTY, (-500, 500)),
    Case("both streams empty", _EMPTY, _EMPTY, (-500, 500)),
    Case("one stream ends early", _BASE[0], (_BASE[1][0][:20], _BASE[1][1][:20]), (-500, 500)),
    Case(
        "inserted and expired in the same epoch",
        _BASE[0],
        _BASE[1],
        (1, 3),
        settings={"cluster": {"distribution_epoch_us": 1000}},
    ),
    Case("one key is all tuples", ([5] * 400, list(range(400))), ([5] * 300, list(range(0, 600, 2))), (-30, 30)),
    Case(
        "null keys and null times", _nulls(_BASE[0], 1), _nulls(_BASE[1], 2), (-100, 100), settings={"time": {"late": "drop"}}
    ),
    Case("negative keys and times", _random(5, 200, 10, 2000, -5, -1000), _random(6, 200, 10, 2000, -5, -1000), (-100, 100)),
    Case(
        "equal times across an epoch boundary",
        ([1, 2, 1, 2, 1], [99, 100, 100, 100, 101]),
        ([1, 2, 1, 1], [99, 100, 100, 100]),
        (0, 1),
        settings={"cluster": {"distribution_epoch_us": 0, "epoch_tuples": 2}},
    ),
    Case(
        "out of order up to the bound",
        _disorder(_BASE[0], 150, 1),
        _disorder(_BASE[1], 150, 2),
        (-100, 100),
        settings={"time": {"max_out_of_order_us": 150}},
    ),
    Case(
        "out of order past the bound",
        _disorder(_BASE[0], 400, 1),
        _disorder(_BASE[1], 400, 2),
        (-100, 100),
        settings={"time": {"max_out_of_order_us": 150, "late": "drop"}},
    ),
    Case(
        "in no order",
        _disorder(_BASE[0], 10**6, 3),
        _disorder(_BASE[1], 10**6, 4),
        (-100, 100),
        settings={"time": {"sort": True}},
    ),
    Case(
        "in no order, with null keys and null times",
        _nulls(_disorder(_BASE[0], 10**6, 5), 6),
        _nulls(_disorder(_BASE[1], 10**6, 7), 8),
        (-100, 100),
        settings={"time": {"sort": True, "late": "drop"}},
    ),
]

by_name: Callable[[Case], str] = lambda case: case.name  # noqa: E731 - pytest ids

MOVING = {"reorganization": {"policy": "random", "random_moves": 3, "declustering": "adaptive", "chunk_bytes": 1024}}


def moving(case: Case) -> dict[str, Any]:
    """Sections that make a case adapt at random in every distribution epoch; none where epochs have no length."""
    t_d = case.settings.get("cluster", {}).get("distribution_epoch_us", 100)
    return {"reorganization": {**MOVING["reorganization"], "epoch_us": t_d}} if t_d else {}

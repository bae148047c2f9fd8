"""The cost model of forecasts: nanoseconds and bytes that turn counts into time.

What: `CostModel`, the table `PRESETS`, and reading and writing a cost model as YAML.
Why: a forecast is only as right as these numbers; each is measured (`forecast.calibrate.roles`) or derived.
Stays out: measuring, and what is charged when (`forecast.model.run`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swjoin.config.loader import load_plain, shown, word
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import write_out


@dataclass(frozen=True, kw_only=True)
class SlaveCosts:
    """CPU time of a slave.

    slave_delivery_ns: per delivery: opening, closing, and its final chunk.
    slave_tuple_ns: per tuple joined.
    slave_visit_ns: per touched mini-partition-group and delivery.
    slave_comparison_ns, slave_pair_ns: per comparison, per pair.
    slave_byte_ns: per byte of payload stored with the windows.
    slave_growth_ns: per window tuple that takes memory which was never used before.
    slave_result_byte_ns: per byte of materialised pairs.
    extract_byte_ns, install_byte_ns: state movement, per byte at the supplier and at the consumer.
    slave_realtime_ratio: time of a slave's work in realtime pace (in pieces, caches cold) / its time in one go.
    slave_sleep_ratio: extra time of that work per time slept between the pieces, which an imitated slower node does.
    """

    slave_delivery_ns: float
    slave_tuple_ns: float
    slave_visit_ns: float
    slave_comparison_ns: float
    slave_pair_ns: float
    slave_byte_ns: float
    slave_growth_ns: float
    slave_result_byte_ns: float
    extract_byte_ns: float
    install_byte_ns: float
    slave_realtime_ratio: float = 1.0
    slave_sleep_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MasterCosts:
    """CPU time of the master.

    source_tuple_ns, source_byte_ns: per tuple read from a source, per byte of its payload.
    master_tuple_ns: per tuple admitted, buffered and partitioned.
    master_byte_ns: per byte of a delivery packed.
    """

    source_tuple_ns: float
    source_byte_ns: float
    master_tuple_ns: float
    master_byte_ns: float


@dataclass(frozen=True, kw_only=True)
class CollectorCosts:
    """CPU time of the collector: per chunk of results, per byte of materialised pairs."""

    collector_chunk_ns: float
    collector_byte_ns: float


@dataclass(frozen=True, kw_only=True)
class NetworkCosts:
    """Messages between ranks.

    message_ns: CPU time of a rank per message that it sends or handles.
    number_ns: CPU time of a rank per number in a message about an epoch that it takes; it has one or two for every slave.
    link_latency_us, link_bytes_per_s: latency and bandwidth of one node's link.
    eager_bytes: size above which a message waits for its receiver.
    """

    message_ns: float
    number_ns: float
    link_latency_us: float
    link_bytes_per_s: float
    eager_bytes: float


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Ranks that wait for messages or share the cores of a host.

    poll_longest_us: longest interval between two polls for messages; 0: a waiting rank is woken by a message.
    sleep_extra_us: by how much a sleep between two polls exceeds its length.
    look_ns: CPU time of one poll.
    shared_capacity: work of all cores of a host when all are busy / their number; below 1 with hyperthreads.
    row_ratio, epoch_ratio: time of a row, and of an epoch without rows, of a plan on such a node / on the machine of the run
    that has measured them.
    """

    poll_longest_us: float
    sleep_extra_us: float
    look_ns: float
    shared_capacity: float
    row_ratio: float = 1.0
    epoch_ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CostModel(HostCosts, NetworkCosts, CollectorCosts, MasterCosts, SlaveCosts):
    """Costs of one kind of node and network; docs/simulation.md says how each is measured."""

    name: str

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not 0 <= value < math.inf:
                raise UserError(f"costs: {field.name} is {value:g}; it must not be negative, infinite or NaN")
        if 0 in (self.link_bytes_per_s, self.shared_capacity, self.slave_realtime_ratio, self.row_ratio):
            raise UserError("costs: link_bytes_per_s, shared_capacity, slave_realtime_ratio and row_ratio must be positive")


_MODERN = CostModel(
    name="modern",
    slave_delivery_ns=175_000,
    slave_tuple_ns=19.5,
    slave_visit_ns=285,
    slave_comparison_ns=0.015,
    slave_pair_ns=6,
    slave_byte_ns=0.1,
    slave_growth_ns=50,
    slave_result_byte_ns=0.7,
    extract_byte_ns=0.7,
    install_byte_ns=0.7,
    source_tuple_ns=26,
    source_byte_ns=0.5,
    master_tuple_ns=0,
    master_byte_ns=0.36,
    message_ns=52_000,
    number_ns=1_000,
    link_latency_us=0.6,
    link_bytes_per_s=10e9,
    eager_bytes=4096,
    collector_chunk_ns=12_000,
    collector_byte_ns=1.8,
    poll_longest_us=1000,
    sleep_extra_us=66,
    look_ns=25_000,
    shared_capacity=0.95,
)

_PAPER = CostModel(
    name="paper",
    slave_delivery_ns=5_000_000,
    slave_tuple_ns=219_000,
    slave_visit_ns=0,
    slave_comparison_ns=6.8,
    slave_pair_ns=1_000,
    slave_byte_ns=0,
    slave_growth_ns=0,
    slave_result_byte_ns=20,
    extract_byte_ns=50,
    install_byte_ns=100,
    source_tuple_ns=0,
    source_byte_ns=0,
    master_tuple_ns=5_000,
    master_byte_ns=20,
    message_ns=500_000,
    number_ns=0,
    link_latency_us=100,
    link_bytes_per_s=80e6,
    eager_bytes=65_536,
    collector_chunk_ns=500_000,
    collector_byte_ns=20,
    poll_longest_us=0,
    sleep_extra_us=0,
    look_ns=0,
    shared_capacity=1,
)

PRESETS = {
    "modern": _MODERN,
    "modern-10g": dataclasses.replace(
        _MODERN, name="modern-10g", link_latency_us=30, link_bytes_per_s=1.1e9, eager_bytes=65_536
    ),
    "paper": _PAPER,
    "streamcloud": dataclasses.replace(_PAPER, name="streamcloud", row_ratio=5_000, epoch_ratio=3),
}


def costs_from_plain(data: dict[str, Any], where: str) -> CostModel:
    """A cost model from parsed YAML; missing costs are those of `modern`. UserError names the offending key."""
    names = {f.name for f in dataclasses.fields(CostModel)}
    values = dataclasses.asdict(PRESETS["modern"]) | {"name": where}
    for key, value in data.items():
        if key not in names:
            near = difflib.get_close_matches(str(key), sorted(names), 1, 0.5)
            raise UserError(f"{where}: {word(key)}: unknown cost{f'; did you mean {near[0]}?' if near else ''}")
        if key != "name" and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise UserError(f"{where}: {key}: expected a number, got {shown(value)}")
        values[key] = str(value) if key == "name" else float(value)
    return CostModel(**values)


def load_costs(text: str) -> CostModel:
    """A preset by name, or a YAML file as `swjoin calibrate` writes it. UserError when it is neither."""
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if not os.path.exists(path):
        raise UserError(
            f"--costs {text}: neither a preset ({', '.join(PRESETS)}) nor a file; swjoin calibrate -o FILE makes one"
        )
    return costs_from_plain(load_plain(path), text)


def with_changes(costs: CostModel, changes: list[str]) -> CostModel:
    """A cost model with changes, each `name=value` or `name=*factor`. UserError for anything else."""
    values: dict[str, Any] = {}
    for item in changes:
        key, separator, text = item.partition("=")
        known = [f.name for f in dataclasses.fields(CostModel) if f.name != "name"]
        if not separator or key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.4)
            raise UserError(f"--cost {item}: write NAME=VALUE or NAME=*FACTOR{f'; did you mean {near[0]}?' if near else ''}")
        try:
            number = float(text.removeprefix("*"))
        except ValueError:
            raise UserError(f"--cost {item}: {text!r} is no number") from None
        values[key] = number * getattr(costs, key) if text.startswith("*") else number
    return dataclasses.replace(costs, **values)


def is_costs(path: Path) -> bool:
    """Whether a file was written by `save_costs`. UserError for a file of something else."""
    data = load_plain(path)
    return "name" in data and bool(costs_from_plain(data, str(path)))


def save_costs(costs: CostModel, path: Path) -> None:
    """Write a cost model as YAML. UserError when the file cannot be written."""
    import yaml

    try:
        plain = {"name": costs.name, **dataclasses.asdict(costs)}
        write_out(path, yaml.safe_dump(plain, sort_keys=False).encode())
    except RunFailed as error:
        raise UserError(f"-o {error}") from None

"""What a run is: frozen dataclasses with units in the names, loaded from YAML; an unknown key is an error.

What: `RunConfig` and its sections, `load_config`, `apply_overrides` (--set), `parse_duration_us`, `parse_size_bytes`, `digest`.
Why: one validated value describes a run completely; equal configurations have equal digests.
Stays out: reading data, deciding anything at run time. Imports nothing of the package but errors and the oracle's `Bounds`.

In YAML a key with a unit (`distribution_epoch_us`, `theta_bytes`) may also be written without it and with the unit in the
value: `distribution_epoch: 2s`, `theta: 1.5MB`.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swjoin.errors import UserError
from swjoin.oracle import Bounds

_DURATION_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
MAX_SPAN_US = 1 << 61  # times and bounds stay below this in magnitude, so that sums of two never overflow int64


def parse_duration_us(text: str | int) -> int:
    """A number and a unit (`250ms`, `6h`, `-10us`, `1.5s`) as whole microseconds; an int is microseconds already."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise UserError(f"duration {text!r}: write a number and a unit, such as 250ms, 6h or -10us")
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([+-]?)(\d+)(?:\.(\d+))?\s*(us|ms|s|min|m|h|d)\s*", text)
    if match is None:
        raise UserError(f"duration {text!r}: write a number and a unit (us, ms, s, min, h, d), such as 250ms, 6h or -10us")
    sign, whole, fraction, unit = match.groups()
    scale = _DURATION_US[unit]
    digits = fraction or ""
    scaled, rest = divmod(int(whole + digits) * scale, int(10 ** len(digits)))
    if rest:
        raise UserError(f"duration {text!r}: finer than one microsecond")
    if scaled >= MAX_SPAN_US:
        raise UserError(f"duration {text!r}: longer than {MAX_SPAN_US} us")
    return -scaled if sign == "-" else scaled


def parse_size_bytes(text: str | int) -> int:
    """A size such as `4KB`, `1.5MB` (powers of 1024) as bytes; an int is bytes already."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB)\s*", str(text), re.IGNORECASE)
    if match is None:
        raise UserError(f"size {text!r}: write a number and a unit (B, KB, MB, GB), such as 4KB or 1.5MB")
    return int(float(match[1]) * _SIZE_BYTES[match[2].upper()])


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise UserError(message)


@dataclass(frozen=True)
class QueryConfig:
    """One join: equal keys and lower_us <= right.ts - left.ts <= upper_us (SPEC section 1). `within: W` sets both."""

    lower_us: int
    upper_us: int
    exclusive: tuple[Literal["lower", "upper"], ...] = ()
    name: str = "join"

    def __post_init__(self) -> None:
        _check(
            self.lower_us <= self.upper_us,
            f"join: lower ({self.lower_us} us) is above upper ({self.upper_us} us); swap them",
        )
        _check(max(abs(self.lower_us), abs(self.upper_us)) < MAX_SPAN_US, "join: a bound is too large")

    @property
    def bounds(self) -> Bounds:
        return Bounds.of(self.lower_us, self.upper_us, self.exclusive)


@dataclass(frozen=True)
class ScheduleConfig:
    """How the rate changes over time: rate(t) = rate * factor(t), t from the start of the stream.

    step: factor `factor` from `at_us` on. sine: 1 + amplitude * sin(2 pi t / period_us). burst: `factor` during the first
    `length_us` of every `period_us`. constant: 1.
    """

    kind: Literal["constant", "step", "sine", "burst"] = "constant"
    factor: float = 2.0
    at_us: int = 0
    amplitude: float = 0.5
    period_us: int = 60_000_000
    length_us: int = 1_000_000

    def __post_init__(self) -> None:
        _check(self.factor >= 0, "schedule: factor must not be negative")
        _check(0 <= self.amplitude <= 1, "schedule: amplitude must lie in 0..1")
        _check(self.period_us > 0, "schedule: period must be positive")
        _check(0 <= self.length_us <= self.period_us, "schedule: length must lie within the period")


@dataclass(frozen=True)
class WorkloadConfig:
    """The paper's synthetic streams (SPEC section 5): Poisson arrivals, b-model keys in [0, domain), a fixed payload."""

    rate_per_s: float = 1500.0
    duration_us: int = 60_000_000
    bias: float = 0.7
    domain: int = 10_000_000
    payload_bytes: int = 48
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        _check(self.rate_per_s > 0, "workload: rate must be positive")
        _check(self.duration_us > 0, "workload: duration must be positive")
        _check(0.5 <= self.bias < 1, "workload: bias must lie in [0.5, 1)")
        _check(1 <= self.domain < 1 << 62, "workload: domain must be at least 1")
        _check(0 <= self.payload_bytes <= 65536, "workload: payload must be 0 to 65536 bytes")


@dataclass(frozen=True)
class StreamConfig:
    """Where one stream comes from: `path` (a file or a directory: Parquet, CSV, Arrow IPC), or the in-master generator.

    key: the join columns. time: the time column. time_unit: unit of an integer time column (s, ms, us, ns).
    id: column of row ids; None: the 0-based position. columns: which other columns to carry; None: all.
    """

    path: str | None = None
    key: tuple[str, ...] = ("key",)
    time: str = "ts"
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    id: str | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check(len(self.key) > 0, "stream: key names no column")


@dataclass(frozen=True)
class TimeConfig:
    """event: the time column; arrival: the master stamps tuples as it reads them (realtime pace only).

    A tuple is late when its time is below the highest time seen before it in its stream minus max_out_of_order_us.
    """

    model: Literal["event", "arrival"] = "event"
    max_out_of_order_us: int = 0
    late: Literal["error", "drop", "side"] = "error"

    def __post_init__(self) -> None:
        _check(0 <= self.max_out_of_order_us < MAX_SPAN_US, "time: max_out_of_order must not be negative")


@dataclass(frozen=True)
class ClusterConfig:
    """The master's side: partition-groups, distribution epochs, buffers.

    distribution_epoch_us: t_d; 0 lets the master close an epoch at `epoch_tuples` buffered tuples, or 1/16 of the
    tuples in the windows if that is more (asap pace only).
    mini_buffer_bytes: what the master may buffer; a full master closes the epoch early (asap) or makes the source wait.
    communication: `overlapped`, a slave receives a delivery while it joins the one before; `synchronous`, it asks for the next
    when it has joined all it has (the paper's mode). Realtime pace exchanges in its slots either way.
    """

    partition_count: int = 60
    distribution_epoch_us: int = 2_000_000
    epoch_tuples: int = 131_072
    mini_buffer_bytes: int = 64 << 20
    communication: str = "overlapped"

    def __post_init__(self) -> None:
        _check(1 <= self.partition_count <= 65536, "cluster: partition_count must be 1 to 65536")
        _check(self.distribution_epoch_us >= 0, "cluster: distribution_epoch must not be negative")
        _check(self.epoch_tuples >= 1, "cluster: epoch_tuples must be at least 1")
        _check(self.communication in ("overlapped", "synchronous"), "cluster: communication must be overlapped or synchronous")
        _check(self.mini_buffer_bytes >= 1 << 16, "cluster: mini_buffer must be at least 64KB")


@dataclass(frozen=True)
class ModuleConfig:
    """The join module of a slave (SPEC section 4).

    theta_bytes: a partition-group above 2 * theta is fine-tuned; 0 turns fine tuning off. block_bytes: one block.
    tuple_bytes: what one tuple counts for in both. stream_buffer_bytes: capacity of the stream buffer (occupancy 1.0).
    window_bytes: limit of the window state of one slave; the run fails with one line when it is reached.
    result_buffer_bytes: results leave a slave in chunks of at most this size.
    """

    theta_bytes: int = 3 << 19
    block_bytes: int = 4096
    tuple_bytes: int = 64
    stream_buffer_bytes: int = 1 << 20
    window_bytes: int = 8 << 30
    result_buffer_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        _check(self.tuple_bytes >= 16, "module: tuple_bytes must be at least 16 (time and key)")
        _check(self.block_bytes >= self.tuple_bytes, "module: a block must hold at least one tuple")
        _check(
            self.theta_bytes == 0 or self.theta_bytes >= self.block_bytes,
            "module: theta must be at least one block (or 0: off)",
        )
        _check(self.stream_buffer_bytes >= 1 << 10, "module: stream_buffer must be at least 1KB")
        _check(self.result_buffer_bytes >= 1 << 12, "module: result_buffer must be at least 4KB")
        _check(self.window_bytes >= 1 << 20, "module: window must be at least 1MB")

    @property
    def block_tuples(self) -> int:
        return self.block_bytes // self.tuple_bytes

    @property
    def theta_tuples(self) -> int:
        """theta in tuples of both streams; 0 when fine tuning is off."""
        return self.theta_bytes // self.tuple_bytes


@dataclass(frozen=True)
class SinkConfig:
    """What becomes of the results: `parquet` or `csv` files, or `count`: count and digest only.

    ids: files also hold left_id, right_id, left_ts, right_ts. carry_payload: a count sink wants no payload, so it is not even
    read; true ships it all the same (to measure communication with whole tuples).
    """

    kind: Literal["parquet", "csv", "count"] = "parquet"
    ids: bool = True
    carry_payload: bool = False


@dataclass(frozen=True)
class RunConfig:
    """A complete run. `queries` has length one for now; results, state and ledger are keyed by its name."""

    queries: tuple[QueryConfig, ...]
    left: StreamConfig = field(default_factory=StreamConfig)
    right: StreamConfig = field(default_factory=StreamConfig)
    seed: int = 1
    pace: Literal["asap", "realtime"] = "asap"
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    time: TimeConfig = field(default_factory=TimeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    sink: SinkConfig = field(default_factory=SinkConfig)

    def __post_init__(self) -> None:
        _check(len(self.queries) == 1, f"join: {len(self.queries)} queries given; one query per run for now")
        _check((self.left.path is None) == (self.right.path is None), "left and right: give both paths, or neither (generator)")
        if self.pace == "realtime":
            _check(self.cluster.distribution_epoch_us > 0, "cluster: realtime pace needs a distribution_epoch above 0")
        else:
            _check(self.time.model == "event", "time: model arrival needs pace realtime")

    @property
    def query(self) -> QueryConfig:
        return self.queries[0]


def to_plain(value: Any) -> Any:
    """A configuration as dicts, lists and scalars, ready for JSON and YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return value


def digest(config: RunConfig) -> str:
    """Identity of a configuration: 16 hex digits of SHA-256 over its canonical JSON."""
    text = json.dumps(to_plain(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if origin is Literal:
        options = typing.get_args(kind)
        if value not in options:
            near = difflib.get_close_matches(str(value), [str(o) for o in options], 1)
            hint = f"; did you mean {near[0]}?" if near else f"; one of: {', '.join(map(str, options))}"
            raise UserError(f"{where}: {value!r} is not known{hint}")
        return value
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise UserError(f"{where}: expected a list, got {value!r}")
        return tuple(_convert(typing.get_args(kind)[0], v, where) for v in items)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in typing.get_args(kind) if a is not type(None)), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _build(kind: type, data: Any, where: str) -> Any:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UserError(f"{where or 'configuration'}: expected a mapping, got {data!r}")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    aliases: dict[str, str] = {}
    for name in names:
        for suffix in ("_us", "_bytes", "_per_s"):
            if name.endswith(suffix):
                aliases[name.removesuffix(suffix)] = name
    values: dict[str, Any] = {}
    if kind is QueryConfig and "within" in data:
        data = dict(data)
        if "lower" in data or "upper" in data or "lower_us" in data or "upper_us" in data:
            raise UserError(f"{where}: give within, or lower and upper, not both")
        window_us = parse_duration_us(data.pop("within"))
        if window_us < 0:
            raise UserError(f"{where}.within: a window cannot be negative")
        values["lower_us"], values["upper_us"] = -window_us, window_us
    if kind is RunConfig and "join" in data:
        data = dict(data)
        data["queries"] = [data.pop("join")]
    for key, value in data.items():
        here = f"{where}.{key}" if where else str(key)
        known = key if key in names else aliases.get(key)
        if known is None:
            near = difflib.get_close_matches(str(key), sorted(names | set(aliases)), 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"
            raise UserError(f"{here}: unknown configuration key{hint}")
        name = str(known)
        if name in values:
            raise UserError(f"{here}: given twice")
        try:
            if name.endswith("_us"):
                values[name] = parse_duration_us(value)
            elif name.endswith("_bytes"):
                values[name] = parse_size_bytes(value)
            else:
                values[name] = _convert(hints[name], value, here)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(here) else f"{here}: {text}") from None
    required = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in values:
            raise UserError(f"{where or 'configuration'}: {name.removesuffix('_us')} is missing")
    return kind(**values)


def config_from_plain(data: Any) -> RunConfig:
    """Build a RunConfig from parsed YAML or JSON. UserError names the offending key."""
    config = _build(RunConfig, data, "")
    assert isinstance(config, RunConfig)
    return config


def apply_overrides(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`path.to.key=value` settings (values are YAML) laid over a parsed configuration; returns a new mapping."""
    import yaml

    merged: dict[str, Any] = json.loads(json.dumps(data))
    for item in overrides:
        path, separator, text = item.partition("=")
        if not separator or not path:
            raise UserError(f"--set {item!r}: write path.to.key=value")
        node = merged
        *parents, leaf = path.split(".")
        for parent in parents:
            child = node.get(parent)
            if child is None:
                child = node[parent] = {}
            if not isinstance(child, dict):
                raise UserError(f"--set {item!r}: {parent} is not a section")
            node = child
        for twin in (leaf.rsplit("_", 1)[0], f"{leaf}_us", f"{leaf}_bytes", f"{leaf}_per_s"):
            if (
                twin != leaf
                and twin in node
                and ((leaf.startswith(twin) and leaf[len(twin) :] in ("_us", "_bytes", "_per_s")) or twin.startswith(leaf))
            ):
                del node[twin]
        try:
            node[leaf] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"--set {item!r}: the value is not valid YAML") from None
    return merged


def load_plain(path: Path) -> dict[str, Any]:
    """Parse a YAML file into a mapping. UserError when it cannot be read or is no mapping."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of configuration keys")
    return data


def load_config(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """The configuration in a YAML file with --set overrides applied. UserError names file and key."""
    data = apply_overrides(load_plain(path), overrides or [])
    try:
        return config_from_plain(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def workload_from_plain(data: Any) -> WorkloadConfig:
    """Build a WorkloadConfig alone (for `generate`). UserError names the offending key."""
    workload = _build(WorkloadConfig, data, "workload")
    assert isinstance(workload, WorkloadConfig)
    return workload

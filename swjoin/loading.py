"""Configurations from YAML files and `--set`: an unknown key is an error, with the nearest known one.

What: `load_config`, `config_from_plain`, `apply_overrides` (--set), `workload_from_plain`.
Why: dataclasses say what a run is; how a file spells it, and every complaint about the spelling, is here.
Stays out: what the values mean and which are allowed (`config`).

In YAML a key with a unit (`distribution_epoch_us`, `theta_bytes`) may also be written without it and with the unit in the
value: `distribution_epoch: 2s`, `theta: 1.5MB`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from pathlib import Path
from typing import Any, Literal

from swjoin.config import QueryConfig, RunConfig, WorkloadConfig
from swjoin.errors import UserError
from swjoin.units import parse_duration_us, parse_size_bytes


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
    if kind is RunConfig and isinstance(data.get("on_overload"), str):
        data = {**data, "on_overload": {"policy": data["on_overload"]}}
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

"""Configurations from YAML files and `--set`: an unknown key is an error, with the nearest known one.

What: `load_config`, `config_from_plain`, `apply_overrides` (--set), `workload_from_plain`.
Why: dataclasses say what a run is; how a file spells it, and every complaint about the spelling, is here. A file from anywhere
is plain values of bounded size or is refused: no objects, no aliases that unfold without end, no numbers beyond 64 bits.
Stays out: what the values mean and which are allowed (`config`).

In YAML a key with a unit (`distribution_epoch_us`, `theta_bytes`) may also be written without it and with the unit in the
value: `distribution_epoch: 2s`, `theta: 1.5MB`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import reprlib
import types
import typing
from pathlib import Path
from typing import Any, Literal

from swjoin.config import QueryConfig, RunConfig, WorkloadConfig
from swjoin.ends import LIVE_SOURCES
from swjoin.errors import UserError
from swjoin.units import is_utf8, parse_duration_us, parse_size_bytes

LISTEN = "127.0.0.1:8815"
_MOST_BYTES = 1 << 18  # of a file; reading more would take PyYAML seconds
_MOST_VALUES = 20_000  # once all aliases are unfolded
_DEEPEST = 20
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """A value in a complaint: never longer than a person wants to read."""
    return _SHORT.repr(value)


def word(key: Any) -> str:
    """A key in a complaint."""
    return key if isinstance(key, str) and len(key) < 60 else shown(key)


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if origin is Literal:
        options = typing.get_args(kind)
        if value not in options:
            near = difflib.get_close_matches(str(value), [str(o) for o in options], 1)
            hint = f"; did you mean {near[0]}?" if near else f"; one of: {', '.join(map(str, options))}"
            raise UserError(f"{where}: {shown(value)} is not known{hint}")
        return value
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise UserError(f"{where}: expected a list, got {shown(value)}")
        return tuple(_convert(typing.get_args(kind)[0], v, where) for v in items)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in typing.get_args(kind) if a is not type(None)), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where}: expected {kind.__name__}, got {shown(value)}")
    if isinstance(value, str) and not is_utf8(value):
        raise UserError(f"{where}: {value!a} is not UTF-8")
    if (isinstance(value, float) and not math.isfinite(value)) or (kind is int and not -(1 << 63) <= value < 1 << 63):
        raise UserError(f"{where}: {shown(value)} is out of range")
    return value


def _build(kind: type, data: Any, where: str) -> Any:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UserError(f"{where or 'configuration'}: expected a mapping, got {shown(data)}")
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
    if kind is QueryConfig and data.get("last") is not None:
        data = {"lower_us": 0, "upper_us": 0, **data}
        if values or "lower" in data or "upper" in data:
            raise UserError(f"{where}: give last, or bounds of time, not both")
        if isinstance(data["last"], int) and not isinstance(data["last"], bool):
            data["last"] = [data["last"], data["last"]]
    if kind is RunConfig and isinstance(data.get("on_overload"), str):
        data = {**data, "on_overload": {"policy": data["on_overload"]}}
    if kind is RunConfig and "join" in data:
        data = dict(data)
        data["queries"] = [data.pop("join")]
    for key, value in data.items():
        name = word(key)
        here = f"{where}.{name}" if where else name
        known = name if name in names else aliases.get(name)
        if known is None:
            near = difflib.get_close_matches(name, sorted(names | set(aliases)), 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"
            raise UserError(f"{here}: unknown configuration key{hint}")
        name = known
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
        node[leaf] = _parse(text, f"--set {shown(item)}: the value is")
    return merged


def _parse(text: str, where: str) -> Any:
    """Plain values from YAML. UserError, which begins with `where`, for anything else.

    PyYAML's constructors of dates, huge integers and explicit tags raise whatever comes up in them, not YAMLError.
    """
    import yaml

    try:
        data = yaml.safe_load(text)
    except RecursionError:
        raise UserError(f"{where} nested too deeply") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{where} not valid YAML ({' '.join(str(error).split())[:300]})") from None
    values = 0

    def check(value: Any, path: str, depth: int) -> str | None:
        """What is wrong with a value, if anything is."""
        nonlocal values
        values += 1
        if depth > _DEEPEST or values > _MOST_VALUES:
            return "nested too deeply" if depth > _DEEPEST else f"too large: more than {_MOST_VALUES} values"
        if isinstance(value, (dict, list)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                name = f"{path}{word(key)}"
                wrong = check(None if isinstance(key, (dict, list)) else key, name, depth) or check(item, f"{name}.", depth + 1)
                if wrong:
                    return wrong
            return None
        wrong = _not_plain(value)
        return f"not what can be used here: {path.rstrip('.')}: {wrong}" if wrong else None

    wrong = check(data, "", 0)
    if wrong:
        raise UserError(f"{where} {wrong}")
    return data


def _not_plain(value: Any) -> str | None:
    """Why a single value cannot stand in a configuration."""
    if isinstance(value, str):
        text = not ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value))
        return None if text else f"{shown(value)} is no text"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is no finite number"
    if isinstance(value, int):
        return None if -(1 << 63) <= value < 1 << 63 else "a number beyond 64 bits"
    return None if value is None else f"a {type(value).__name__}; put it in quotes"


def load_plain(path: Path) -> dict[str, Any]:
    """Parse a YAML file into a mapping. UserError when it cannot be read or is no mapping of plain values."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UserError(f"{str(path)[:1000]}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8; a NUL in the path
        raise UserError(f"{path}: not valid YAML ({error})") from None
    if len(data) > _MOST_BYTES:
        raise UserError(f"{path}: too large for a configuration, more than {_MOST_BYTES} bytes")
    plain = _parse(text, f"{path}:")
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping of configuration keys")
    return plain


def _with_live_defaults(data: dict[str, Any], served: bool) -> dict[str, Any]:
    """What live streams have, unless the file says otherwise: an endpoint on the loopback where producers push (or `served`);
    real time; and late rows set aside instead of ending the run."""
    sides = [side for side in (data.get("left"), data.get("right")) if isinstance(side, dict)]
    live = any(side.get(source) is not None for side in sides for source in LIVE_SOURCES)
    pushed = any(side.get("flight") is not None for side in sides)
    wanted = [("serve", "listen", LISTEN)] if served or pushed else []
    if live:
        data = {"pace": "realtime", **data}
        wanted.append(("time", "late", "side"))
    for section, key, value in wanted:
        given = {} if data.get(section) is None else data[section]
        if isinstance(given, dict) and not (section == "time" and given.get("model") == "arrival"):
            data = {**data, section: {key: value, **given}}
    return data


def load_config(path: Path, overrides: list[str] | None = None, *, served: bool = False) -> RunConfig:
    """The configuration in a YAML file with --set overrides applied. UserError names file and key. served: with an endpoint."""
    data = _with_live_defaults(apply_overrides(load_plain(path), overrides or []), served)
    try:
        return config_from_plain(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def workload_from_plain(data: Any) -> WorkloadConfig:
    """Build a WorkloadConfig alone (for `generate`). UserError names the offending key."""
    workload = _build(WorkloadConfig, data, "workload")
    assert isinstance(workload, WorkloadConfig)
    return workload

"""Configurations from YAML files and `--set`: an unknown key is an error, with the nearest known one.

What: `load_config`, `config_from_plain`, `apply_overrides` (--set); `value_from_plain`, any other dataclass from plain values.
Why: dataclasses define a run; how a file spells it, and every error about the spelling, is here. Files are untrusted: anything
but plain values of bounded size is refused (objects, aliases that unfold without end, numbers beyond 64 bits).
Stays out: what values mean and which are allowed (`config.run`, `config.sections`), names of options (`config.option_keys`).

In YAML a key with a unit (`distribution_epoch_us`, `theta_bytes`) may also be written without it and with the unit in the
value: `distribution_epoch: 2s`, `theta: 1.5MB`. Whole numbers stand for microseconds and bytes only where the key says so, as
in what `to_plain` writes. Words are words: only `true` and `false` are no text, and keys are as they were typed.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import logging
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from swjoin.config.connectors import LIVE_SOURCES, TextConfig
from swjoin.config.option_keys import JOIN_KEYS, OPTION_KEYS, bare, in_sections, targets
from swjoin.config.run import QueryConfig, RunConfig, StreamConfig, WorkloadConfig
from swjoin.config.window_bounds import Bound, parse_window
from swjoin.core.errors import UserError, spelled
from swjoin.core.resources import relative_to
from swjoin.core.units import is_utf8, named_path, parse_duration_us, parse_size_bytes

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
LISTEN = "127.0.0.1:8815"
_MOST_BYTES = 1 << 18  # of a file; reading more would take PyYAML seconds
_MOST_VALUES = 20_000  # once all aliases are unfolded
_DEEPEST = 20
_WORDS = {"yes": True, "on": True, "no": False, "off": False}
_ALIASES: dict[type, dict[str, str]] = {RunConfig: {"join": "queries"}, StreamConfig: {"on": "key"}}
_PATHS = {
    "path",
    "watch",
    "directory",
    "certificate",
    "private_key",
    "root_certificate",
    "token_file",
    "statistics",
}  # keys of any section
_MEANT: dict[type, dict[str, str]] = {  # what people write first, and nothing like the key
    StreamConfig: {**dict.fromkeys(("file", "files", "folder", "directory"), "path"), "by": "key", "timestamp": "time"},
    QueryConfig: {"window": "within", "type": "how", "by": "on"},
    RunConfig: {"window": "within", "by": "on", **dict.fromkeys(("out", "output"), "sink"), "query": "join"},
}
_WINDOW_KEYS = {"lower_us": "lower", "upper_us": "upper"} | {name: name for name in ("within", "lower", "upper", "last")}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """A value in an error message, shortened."""
    return " ".join(_SHORT.repr(value).split())


def word(key: Any) -> str:
    """A key in an error message."""
    return key if isinstance(key, str) and len(key) < 60 else shown(key)


def as_bool(value: Any) -> Any:
    """True and False for yes, no, on and off; anything else as it is."""
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


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
        named = typing.get_origin(typing.get_args(kind)[0]) is Literal  # no such name has a comma
        items = re.split(r"\s*,\s*" if named else r"$^", value) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise UserError(f"{where}: expected a list, got {shown(value)}")
        kind, *_ = typing.get_args(kind)
        numbered = dataclasses.is_dataclass(kind)
        return tuple(_convert(kind, v, f"{where}.{i}" if numbered else where) for i, v in enumerate(items))
    if origin in (typing.Union, types.UnionType):
        kinds = [a for a in typing.get_args(kind) if a is not type(None)]
        listed = next((a for a in kinds if typing.get_origin(a) is tuple), kinds[0])
        return None if value is None else _convert(listed if isinstance(value, (list, tuple)) else kinds[0], value, where)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return float(value)
    if kind is bool:
        value = as_bool(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where}: expected {kind.__name__}, got {shown(value)}")
    if isinstance(value, str) and not is_utf8(value):
        raise UserError(f"{where}: {value!a} is not UTF-8")
    if (isinstance(value, float) and not math.isfinite(value)) or (kind is int and not -(1 << 63) <= value < 1 << 63):
        raise UserError(f"{where}: {shown(value)} is out of range")
    return value


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    """Types of its fields; plans have many nodes of one kind."""
    return typing.get_type_hints(kind)


def _named_tuple(kind: type, value: Any, where: str) -> Any:
    """A NamedTuple, which `to_plain` writes as a list."""
    kinds = _hints_of(kind)
    if not isinstance(value, (list, tuple)) or len(value) != len(kinds):
        raise UserError(f"{where}: expected a list of {' and '.join(kinds)}, got {shown(value)}")
    return kind(*(_convert(kinds[name], item, where) for name, item in zip(kinds, value, strict=True)))


def _build(kind: type, data: Any, where: str) -> Any:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UserError(f"{where or 'configuration'}: expected a mapping, got {shown(data)}")
    hints = _hints_of(kind)
    aliases = aliases_of(kind)
    values: dict[str, Any] = {}
    window = {key: value for key, value in data.items() if kind is QueryConfig and key in _WINDOW_KEYS and value is not None}
    if kind is RunConfig and isinstance(data.get("on_overload"), str):
        data = {**data, "on_overload": {"policy": data["on_overload"]}}
    for key, value in data.items():
        if kind is QueryConfig and key in _WINDOW_KEYS:
            continue
        here = f"{where}.{word(key)}" if where else word(key)
        name = aliases.get(key) if isinstance(key, str) else None
        if name is None:
            raise UserError(f"{here}: unknown configuration key{_meant(kind, word(key), aliases)}")
        if name in values:
            other = next((k for k in data if k != key and aliases.get(k) == name), name)
            raise UserError(f"{here}: given twice, also as {other}")
        if name in _PATHS:
            for path in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(path, str):
                    named_path(path, here)
        if name == "queries" and key == "join":
            values[name] = (_build(QueryConfig, value, here),)
        elif name.endswith(("_us", "_bytes")):
            values[name] = _quantity(name, key, value, here)
        else:
            try:
                values[name] = _convert(hints[name], value, here)
            except UserError as error:
                raise (error if error.text("keys").startswith(here) else error.prefixed(here)) from None
    if kind is QueryConfig:
        values |= _window(window, values.get("exclusive", ()), where)
    required = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in values:
            missing = "join" if name == "queries" else name
            raise UserError(f"{where or 'configuration'}: {missing} is missing")
    return kind(**values)


def _window(data: dict[str, Any], exclusive: tuple[Bound, ...], where: str) -> dict[str, Any]:
    """The window of a join as fields of a `QueryConfig`. data: by keys of `_WINDOW_KEYS`."""
    keys: dict[str, str] = {}
    for key, value in data.items():
        bare_key = _WINDOW_KEYS[key]
        written_out = data.get("last") is not None and key in ("lower_us", "upper_us") and value == 0  # by `to_plain`
        if written_out or (key == "last" and value is None):
            continue
        if bare_key in keys:
            raise UserError(f"{where}.{key}: given twice, also as {keys[bare_key]}")
        keys[bare_key] = key

    def duration_us(value: Any, name: str) -> int:
        return _quantity(f"{name}_us", keys[name], value, f"{where}.{keys[name]}")

    def counts(value: Any) -> tuple[int, int]:
        both = [value, value] if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(value, str) and re.fullmatch(r"\d+\s*,\s*\d+", value, re.ASCII):  # as on the command line
            both = [int(size) for size in value.split(",")]
        found: tuple[int, int] = _convert(tuple[int, int], both, f"{where}.last")
        return found

    with spelled("keys"):
        return parse_window({name: data[key] for name, key in keys.items()}, exclusive, duration_us, counts, where)._asdict()


def aliases_of(kind: type) -> dict[str, str]:
    """Every way to write a key, and the field that it is."""
    names = [f.name for f in dataclasses.fields(kind)]
    aliases = {name.removesuffix(suffix): name for name in names for suffix in ("_us", "_bytes", "_per_s")}
    return aliases | {name: name for name in names} | _ALIASES.get(kind, {})


def _meant(kind: type, key: str, aliases: dict[str, str]) -> str:
    """The hint of an error: the nearest key, or all keys."""
    options = {QueryConfig: {"within", *OPTION_KEYS}, RunConfig: {*JOIN_KEYS, *OPTION_KEYS}}
    known = sorted(set(aliases) | options.get(kind, set()))
    near = [_MEANT[kind][key]] if key in _MEANT.get(kind, {}) else difflib.get_close_matches(key, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _quantity(name: str, key: str, value: Any, here: str) -> int:
    """A duration in microseconds or a size in bytes, of the field `name` written as `key`."""
    try:
        if name.endswith("_us"):
            return parse_duration_us(value, in_us=key == name)
        return parse_size_bytes(value, in_bytes=key == name)
    except UserError as error:
        raise UserError(f"{here}: {error}") from None


def config_from_plain(data: Any) -> RunConfig:
    """Build a RunConfig from parsed YAML or JSON. UserError names the offending key."""
    data, moved = in_sections(data) if isinstance(data, dict) else (data, {})
    try:
        config = _build(RunConfig, data, "")
    except UserError as error:
        key = str(error).partition(":")[0]
        raise UserError(f"{moved[key]}{str(error)[len(key) :]}") if key in moved else error from None
    assert isinstance(config, RunConfig)
    return config


def apply_overrides(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`path.to.key=value` settings (values are YAML) laid over a parsed configuration; returns a new mapping."""
    merged: dict[str, Any] = json.loads(json.dumps(in_sections(data)[0] if overrides else data))
    for item in overrides:
        path, separator, text = item.partition("=")
        if not separator or not all(path.split(".")):
            raise UserError(f"--set {item!r}: write path.to.key=value")
        if not text.strip():
            raise UserError(f"--set {item!r}: the value is missing; write {path}=null for what is so without a setting")
        value = _parse(text, f"--set {shown(item)}: the value is")
        for target in targets(path):
            node = merged
            *parents, leaf = target.split(".")
            for parent in parents:
                child = node.get(parent)
                if child is None:
                    child = node[parent] = {}
                if not isinstance(child, dict):
                    raise UserError(f"--set {item!r}: {parent} is not a section")
                node = child
            for twin in set(node) - {leaf}:
                if bare(twin) == bare(leaf):
                    del node[twin]
            node[leaf] = value
    return merged


@functools.cache
def _reader() -> Any:
    """PyYAML's safe loader, but as in YAML 1.2 `on`, `off`, `yes`, `no` and `1:30` are text; all keys are text, as typed; and a
    mapping that has a key twice is refused."""
    import yaml

    class Reader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call, unused-ignore]
            sexagesimal = tag in (f"{tags}int", f"{tags}float") and ":" in value
            return f"{tags}str" if sexagesimal else tag

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            lines: dict[str, int] = {}
            for i, (key, value) in enumerate(node.value):
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.YAMLError(f"line {line}: a key must be a word")
                if key.tag == f"{tags}merge":
                    continue
                if key.tag in texts:
                    node.value[i] = (yaml.ScalarNode(f"{tags}str", key.value, key.start_mark, key.end_mark), value)
                if key.value in lines:
                    raise yaml.YAMLError(f"line {line}: {word(key.value)} is given twice, first in line {lines[key.value]}")
                lines[key.value] = line
            return node

    tags = "tag:yaml.org,2002:"
    texts = {f"{tags}{kind}" for kind in ("bool", "int", "float", "null", "timestamp", "value")}
    Reader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{tags}bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Reader.add_implicit_resolver(f"{tags}bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    return Reader


def _parse(text: str, where: str) -> Any:
    """Plain values from YAML. UserError, which begins with `where`, for anything else.

    PyYAML's constructors of dates, huge integers and explicit tags raise exceptions of other types than YAMLError.
    """
    import yaml

    try:
        data = _reader()(text).get_single_data()
    except RecursionError:
        raise UserError(f"{where} nested too deeply") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split()).replace('in "<unicode string>", line', "in line")
        raise UserError(f"{where} not valid YAML ({reason[:300]})") from None
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
        at = f"{path.rstrip('.')}: " if path else ""  # none for a value alone
        return f"not what can be used here: {at}{wrong}" if wrong else None

    wrong = check(data, "", 0)
    if wrong:
        raise UserError(f"{where} {wrong}")
    return data


def _not_plain(value: Any) -> str | None:
    """Why a single value is refused; None: it is not."""
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
    """Defaults of live streams: an endpoint on the loopback where producers push (or `served`);
    real time; and late rows set aside instead of ending the run."""
    sections, _ = in_sections(data)
    inputs = data.get("inputs") or ()
    sides = [side for side in (data.get("left"), data.get("right"), *inputs) if isinstance(side, dict)]
    live = any(side.get(source) is not None for side in sides for source in LIVE_SOURCES)
    pushed = any(side.get("flight") is not None for side in sides)
    wanted = [("serve", "listen", LISTEN)] if served or pushed else []
    if live:
        data = {"pace": "realtime", **data}
        wanted.append(("time", "late", "side"))
    for section, key, value in wanted:
        given = {} if sections.get(section) is None else sections[section]
        if isinstance(given, dict) and key not in given and not (section == "time" and given.get("model") == "arrival"):
            data = {**data, section: {key: value, **(data.get(section) or {})}}
    return data


def load_config(path: Path, overrides: list[str] | None = None, *, served: bool = False) -> RunConfig:
    """The configuration in a YAML file with --set overrides applied. UserError names file and key. served: with an endpoint."""
    plain = load_plain(path)
    if "question" in plain and not {"join", "queries"} & plain.keys():
        raise UserError(f"{path}: is an experiment, not the configuration of a run; run it with: swjoin sweep {path}")
    config = read_config(plain, overrides or [], str(path), served=served)
    try:
        _check_beside(config, path.parent)
    except UserError as error:
        raise error.prefixed(str(path)) from None
    _LOG.debug("%s: read, with %d --set; %s, %s pace", path, len(overrides or []), config.query.description, config.pace)
    return config


def read_config(plain: dict[str, Any], overrides: Sequence[str], where: str, *, served: bool = False) -> RunConfig:
    """The configuration in a mapping with --set overrides applied. UserError names `where` and the key."""
    data = apply_overrides(plain, list(overrides))
    try:
        return config_from_plain(_with_live_defaults(data, served))
    except UserError as error:
        raise error.prefixed(where) from None


def _check_beside(config: RunConfig, folder: Path) -> None:
    """UserError for an input path that exists only relative to the configuration's folder."""
    for side, stream in (("left", config.left), ("right", config.right)):
        for name, given in (*(("path", path) for path in stream.paths), ("watch", stream.watch)):
            if given is not None and not os.path.exists(given) and os.path.exists(folder / given):
                raise UserError(
                    f"{side}.{name}: {given}: no such file or directory{relative_to(given)}; "
                    f"it lies beside the configuration: write {folder / given}, or start swjoin in {folder}"
                )


def value_from_plain(kind: type[T], plain: object, where: str) -> T:
    """A dataclass from what `to_plain` makes of it, or from parsed YAML. UserError names `where` and the key."""
    found = _build(kind, dict(plain) if isinstance(plain, Mapping) else plain, where)
    assert isinstance(found, kind)
    return found


def stream_from_plain(data: object, where: str) -> StreamConfig:
    """A stream alone (of a plan's inputs). UserError names the offending key."""
    return value_from_plain(StreamConfig, data, where)


def text_from_plain(data: object, where: str) -> TextConfig:
    """How text is read, from an option's mapping. UserError names the offending key."""
    return value_from_plain(TextConfig, data, where)


def workload_from_plain(data: object) -> WorkloadConfig:
    """Build a WorkloadConfig alone (for `generate`). UserError names the offending key."""
    return value_from_plain(WorkloadConfig, data, "workload")

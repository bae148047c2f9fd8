"""The JSON Schema of a configuration, for editors and other programs: `swjoin schema` prints it.

What: `json_schema()`, made of the dataclasses of a run, of their docstrings and of the spellings that the loader accepts.
Why: an editor completes keys, shows what they mean and marks mistakes before anything runs.
Stays out: reading files (`config.loader`), ranges and what must hold between keys, which only the dataclasses check.

Draft 7, which most editors read. Everything that the loader accepts is valid. What is not valid is refused by the loader, too.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from typing import Any, Literal

from swjoin.config.loader import aliases_of
from swjoin.config.option_keys import JOIN_KEYS, OPTION_KEYS
from swjoin.config.run import OverloadConfig, QueryConfig, RunConfig, to_plain
from swjoin.config.sections import EPOCH_LEFT_OUT
from swjoin.config.window_bounds import UNBOUNDED
from swjoin.core.units import duration_pattern, format_duration, format_size, size_pattern

Schema = dict[str, Any]
_WITHIN = "the window on both sides: lower = -within, upper = +within; unbounded: all of both streams"
_LAST = "count windows: the last N tuples of the other stream, or [of the left, of the right]"
_WORDS = "^([yY][eE][sS]|[nN][oO]|[oO][nN]|[oO][fF][fF])$"


def json_schema() -> Schema:
    """The schema of a whole configuration, as plain values."""
    schema = _section(RunConfig)
    join = schema["properties"]["join"]
    by_path = {f"{name}.{key}": _keys_of(part)[key] for name, part in schema["properties"].items() for key in _keys_of(part)}
    options = {name: by_path[paths[0]] for name, paths in OPTION_KEYS.items()}
    schema["properties"] |= options | {name: _keys_of(join)[name] for name in JOIN_KEYS}
    schema["properties"]["placement"] = _keys_of(schema["properties"]["reorganization"])["placement"]
    _keys_of(join).update(options)
    schema["anyOf"] = [{"required": [name]} for name in ("join", "queries", "within", "lower", "last")]
    _add_sql(schema["properties"])
    duration = {"type": "string", "pattern": duration_pattern(), "patternErrorMessage": "write 250ms, 1h30m or PT5M"}
    size = {"type": "string", "pattern": size_pattern(), "patternErrorMessage": "write 64B, 32KB or 4GB"}
    zero = {"type": "number", "enum": [0]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "swjoin configuration",
        **schema,
        "definitions": {
            "duration": {"anyOf": [duration, zero]},
            "duration_us": {"anyOf": [duration, {"type": "integer"}]},
            "size": {"anyOf": [size, zero]},
            "size_bytes": {"anyOf": [size, {"type": "integer", "minimum": 0}]},
        },
    }


def _add_sql(properties: Schema) -> None:
    """A query in SQL in the place of the join, over inputs in the place of both streams (`frontends.configured`)."""
    text = {"type": "string", "description": "A query in SQL: docs/queries.md"}
    said = "Functions of MAP_BATCHES by name: package.module:function, and the columns that it gives"
    parts = {"call": {"type": "string"}, "schema": {"type": "string"}}
    function = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    functions = {"type": "object", "additionalProperties": function, "description": said}
    query = {
        "type": "object",
        "properties": {"sql": text, "functions": functions},
        "required": ["sql"],
        "additionalProperties": False,
    }
    properties["queries"] |= {"items": {"anyOf": [properties["queries"]["items"], query]}}
    stream = properties["left"]
    keys = {name: key for name, key in stream["properties"].items() if name not in ("key", "on")}
    said = "Of a query in SQL: its tables by name, each with the keys of a stream but key"
    named = {"type": "object", "additionalProperties": stream | {"properties": keys}}
    properties["inputs"] = {"anyOf": [named, properties["inputs"]], "description": said}  # a list in run.json


def _keys_of(schema: Schema) -> Schema:
    """Properties of a section, which may be one of several forms."""
    forms = [schema, *schema.get("anyOf", ())]
    return next((form["properties"] for form in forms if "properties" in form), {})


def _section(kind: type) -> Schema:
    """A mapping with the keys of a dataclass under every name that the loader accepts."""
    hints, said = typing.get_type_hints(kind), _descriptions(kind)
    names: dict[str, list[str]] = {}
    for alias, name in aliases_of(kind).items():
        names.setdefault(name, []).append(alias)
    properties: Schema = {}
    required = []
    for field in dataclasses.fields(kind):
        for alias in names[field.name]:
            properties[alias] = _key(field, alias, hints[field.name]) | said.get(field.name, {})
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append({"anyOf": [{"required": [alias]} for alias in names[field.name]]})
    if kind is QueryConfig:
        sizes = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
        counts = [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9]+\s*,\s*[0-9]+$"}, sizes, {"type": "null"}]
        anything = {"type": "string", "enum": [UNBOUNDED]}
        properties["within"] = {"anyOf": [{"$ref": "#/definitions/duration"}, anything], "description": _WITHIN}
        properties["last"] = {"anyOf": counts, "description": _LAST}
        required = []  # bounds may stand at the top level
    text = " ".join(re.sub(r"\s*\(SPEC section [\w.]+\)", "", inspect.getdoc(kind) or "").split())
    schema = {"type": ["object", "null"], "description": text, "properties": properties, "additionalProperties": False}
    return schema | ({"type": "object", "allOf": required} if required and kind is not RunConfig else {})


def _key(field: dataclasses.Field[Any], alias: str, hint: Any) -> Schema:
    """The values of one key, and its default. alias: the name under which it is written."""
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    suffix, name = next((s for s in (("_us", "duration"), ("_bytes", "size")) if field.name.endswith(s[0])), ("", ""))
    if name:
        schema: Schema = {"allOf": [{"$ref": f"#/definitions/{name}{suffix if alias.endswith(suffix) else ''}"}]}
        if value not in (dataclasses.MISSING, EPOCH_LEFT_OUT):
            schema["default"] = format_duration(value) if name == "duration" else format_size(value)
        return schema
    if alias == "join":
        return _section(QueryConfig)
    schema = _values(hint)
    if value is not dataclasses.MISSING and not dataclasses.is_dataclass(value):
        schema["default"] = to_plain(value)
    return schema


def _values(kind: Any) -> Schema:
    """The values of a type, as the loader converts them."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is OverloadConfig:
        section = _section(kind)
        return {"anyOf": [section, _values(typing.get_type_hints(kind)["policy"])], "description": section["description"]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _section(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is tuple:
        item = _values(parts[0])
        words = "|".join(item.get("enum", ()))
        listed = {"type": "string", "pattern": rf"^({words})(\s*,\s*({words}))*$"}
        names = [listed] if words else [item] if parts[0] is str else []
        several = {"type": "array", "items": item}
        return {"anyOf": [several, *names]} if names else several
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [*(_values(part) for part in parts if part is not type(None)), {"type": "null"}]}
    if kind is bool:
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _WORDS}]}
    return {"type": {int: "integer", float: "number", str: "string"}[kind]}


def _descriptions(kind: type) -> dict[str, Schema]:
    """What a docstring says of its keys: `name: text` or `name, name: text`, up to the next such name."""
    text = " ".join(re.sub(r"\s*\(SPEC section [\w.]+\)", "", inspect.getdoc(kind) or "").split())
    names = "|".join(field.name for field in dataclasses.fields(kind))
    heads = list(re.finditer(rf"(?:(?<=[.;:] )|^)((?:{names})(?:, (?:{names}))*): ", text))
    said: dict[str, Schema] = {}
    for head, following in zip(heads, [*heads, None][1:], strict=True):
        body = text[head.end() : following.start() if following else len(text)].strip(" .;")
        said |= {name: {"description": body} for name in head[1].split(", ")}
    return said

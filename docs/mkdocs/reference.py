"""Pages of the site that are written from the code: the commands' own help, the sections of a configuration, the Python names.

What: `commands()`, `configuration()`, `python_names()`: Markdown; the last for mkdocstrings, which takes signatures and
docstrings from the sources.
Why: help, dataclasses and docstrings are kept anyway, and are right; a copy by hand would not be.
Stays out: links (`outside`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, Literal

import swjoin
from swjoin.cli.help_pages import HelpFormatter
from swjoin.cli.main import build_parser
from swjoin.config.run import RunConfig
from swjoin.config.sections import EPOCH_LEFT_OUT
from swjoin.core.units import format_duration, format_size


def commands() -> str:
    """A section per command, as `swjoin COMMAND --help` prints it."""
    found = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = ["# Commands", "What `swjoin COMMAND --help` prints. `python -m swjoin` is the same as `swjoin`."]
    text.append("Exit code 0: done and balanced; 1: the run failed; 2: the input was wrong.")
    for name, parser in found.choices.items():
        if not name.startswith("_"):
            parser.formatter_class = functools.partial(HelpFormatter, width=110)
            text += [f"## swjoin {name}", "```text\n" + parser.format_help().strip() + "\n```"]
    return "\n\n".join(text) + "\n"


def spelled(name: str) -> str:
    for suffix in ("_us", "_bytes", "_per_s"):
        name = name.removesuffix(suffix)
    return name


def shown(name: str, value: Any) -> str:
    """A default as a file would spell it."""
    for suffix, text in (("_us", format_duration), ("_bytes", format_size)):
        if name.endswith(suffix) and isinstance(value, int):
            return text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def kinds(kind: Any) -> str:
    """The values that a key takes."""
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{option}`" for option in typing.get_args(kind))
    parts = [part for part in typing.get_args(kind) if part not in (type(None), ...)]
    if typing.get_origin(kind) is tuple:
        return f"list of {kinds(parts[0])}"
    if parts:
        return kinds(parts[0])
    if dataclasses.is_dataclass(kind):
        return "`{" + ", ".join(spelled(f.name) for f in dataclasses.fields(kind)) + "}`"
    return {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}[kind]


def default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def said_of(kind: type) -> str:
    """A section's docstring, without where the specification has it."""
    return re.sub(r"\s*\(SPEC section [\w.]+\)", "", inspect.getdoc(kind) or "")


def table(kind: type, keys: list[Any]) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    yield "| key | default | values |\n|---|---|---|"
    for field in keys:
        unit = next((u for s, u in (("_us", "duration"), ("_bytes", "size")) if field.name.endswith(s)), None)
        value = default(field)
        said = "required" if value is dataclasses.MISSING else f"`{shown(field.name, value)}`"
        if dataclasses.is_dataclass(value):
            said = "see below"
        elif value == EPOCH_LEFT_OUT:
            said = "by the pace"
        yield f"| `{spelled(field.name)}` | {said} | {unit or kinds(hints[field.name])} |"


def configuration() -> str:
    """A section per section, with its docstring and its keys."""
    hints = typing.get_type_hints(RunConfig)
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    sections = {name: hints[name] for name in fields if dataclasses.is_dataclass(hints[name])}
    plain = [field for name, field in fields.items() if name not in sections and name != "queries"]
    text = ["# Configuration"]
    text.append(
        "The keys of the YAML file of `swjoin run`, `plan` and `simulate`, from the code that checks them. Durations and sizes "
        "are a number and a unit: `250ms`, `6h`, `1.5MB`. Texts below name keys with their unit (`epoch_us`); they may be "
        "spelled so, too. `--set section.key=value` overrides one."
    )
    text += ["## Top level", "\n".join(table(RunConfig, plain))]
    join = typing.get_args(hints["queries"])[0]
    sections = {"join": join, "left and right": sections.pop("left"), **sections}
    for name, kind in sections.items():
        if name == "right":
            continue
        text += [f"## {name}", said_of(kind), "\n".join(table(kind, list(dataclasses.fields(kind))))]
        for field in dataclasses.fields(kind):
            inner = typing.get_type_hints(kind)[field.name]
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                text += [f"### {name}.{field.name}", said_of(inner)]
                text.append("\n".join(table(inner, list(dataclasses.fields(inner)))))
    return "\n\n".join(text) + "\n"


def python_names() -> str:
    """A section per public name: signature, types, docstring; of classes also their public methods."""
    names = {name: f"{getattr(swjoin, name).__module__}.{name}" for name in swjoin.__all__ if name != "__version__"}
    methods = {
        "Client": "swjoin.connectors.flight.client.Client",
        "spark.window_join": "swjoin.spark.dataframe_join.window_join",
    }
    text = ["# Python reference", "Every public name, from the code. The [Python API](api.md) is the guide with examples."]
    for name, path in {**names, **methods}.items():
        text.append(f"::: {path}\n    options:\n      heading: swjoin.{name}\n      toc_label: {name}")
    return "\n\n".join(text) + "\n"


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {"commands.md": commands(), "configuration.md": configuration(), "python.md": python_names()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files

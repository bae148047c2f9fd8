"""The command `init`: a first configuration with comments, of generated streams or of two given inputs.

What: `run_init`, `first_configuration`.
Why: a file that runs is changed more easily than an empty one is filled.
Stays out: all keys (`swjoin schema`, `config.sections`); rows: only schemas of inputs are read.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from swjoin.cli.common_args import duration_of, separate
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.storage import check_name, writing

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD = """\
# What it will do:   swjoin explain {file}
# Run it:            swjoin run {file}     (on MPI ranks: -n 4; one key otherwise: --set join.within=1h)
# For an editor that completes and checks this file: `swjoin schema > swjoin.schema.json`, and this line as the first:
# yaml-language-server: $schema=swjoin.schema.json

join:
  within: {within:<10}  # |right time - left time| is at most this; instead: lower and upper, such as -10min and 1h30m
  how: inner          # left, right, full: also rows without a match; semi, anti: left rows alone
  # where: {where}  # what else must hold of a pair

"""
_GENERATED = """\
# Streams that swjoin generates, to try it. For files or directories (Parquet, CSV, Arrow IPC) give both sides instead:
# left: {path: trips.csv, on: user, time: started}
# right: {path: payments.csv, on: user, time: paid}
workload:
  rate: 10000        # tuples per second of each stream
  duration: 10s
  bias: 0.7          # skew of the keys, 0.5 (none) up to 1
  domain: 100000     # how many different keys

"""
_TAIL = """\
# time: {max_out_of_order: 10s, late: drop}  # rows may lie so far behind earlier ones; later rows are dropped and counted
# cluster: {distribution_epoch: 50ms}  # in realtime pace a pair waits half of it in the mean; 200ms by default
module:
  window: 2GB        # limit of the windows of one slave; a run that needs more ends with an error
# checkpoint: {interval: 30s}  # the run survives the death of any process
sink:
  kind: parquet      # csv; count: only count and digest
"""


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _time_column(schema: pa.Schema, path: str, side: str) -> str:
    """The first column of timestamps or dates."""
    import pyarrow.types as t

    for field in schema:
        if t.is_timestamp(field.type) or t.is_date(field.type):
            return str(field.name)
    raise UserError(
        f"{side} {path}: no column holds timestamps; there are {_names(schema)}",
        remedy=f"name the column with --{side}-time, and the unit of integers with --time-unit",
    )


def _key(schemas: list[pa.Schema], times: list[str]) -> tuple[str, ...]:
    """The first column that is on both sides with the same type, and can be a key."""
    import pyarrow.types as t

    left, right = schemas
    for field in left:
        able = t.is_integer(field.type) or t.is_string(field.type) or t.is_large_string(field.type)
        at = right.get_field_index(field.name)
        if able and field.name not in times and at >= 0 and right.field(at).type == field.type:
            return (field.name,)
    raise UserError(
        f"no column of the same name and type, integer or text, is on both sides: left {_names(left)}; right {_names(right)}",
        remedy="name the join columns with --on",
    )


def _side(
    side: str, path: str | tuple[str, ...], key: tuple[str, ...], time: str, schema: pa.Schema, args: argparse.Namespace
) -> str:
    """The section of one input."""
    rows = [("path", path), ("on", list(key)), ("time", time)]
    rows += [(name, getattr(args, name)) for name in ("time_unit", "assume_timezone") if getattr(args, name) is not None]
    text = "".join(f"  {name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in rows)
    others = [field.name for field in schema if field.name not in (*key, time)]
    more = f"  # columns: {json.dumps(others, ensure_ascii=False)}  # which others to keep; without this key all\n"
    return f"{side}:\n{text}{more if others else ''}"


def first_configuration(args: argparse.Namespace) -> str:
    """The text of the file. UserError for inputs whose columns do not say how to join them."""
    from swjoin.connectors.files.formats import common_schema
    from swjoin.connectors.files.inputs import list_files, split_paths
    from swjoin.runtime.open import open_job_sources

    within = "5s" if args.within is None else args.within
    if duration_of(within, "--within") < 0:
        raise UserError(f"--within {within}: a window cannot be negative")
    head = _HEAD.format(file=args.file, within=within, where="left_price < right_price")
    if args.left is None and args.right is None:
        return f"{head}{_GENERATED}{_TAIL}"
    if args.left is None or args.right is None:
        raise UserError("give both inputs, LEFT and RIGHT, or neither")
    paths = [split_paths(args.left), split_paths(args.right)]
    schemas = [common_schema(list_files(path)).schema for path in paths]
    given = [args.left_time, args.right_time]
    times = [given[i] or _time_column(schemas[i], (args.left, args.right)[i], side) for i, side in enumerate(STREAM_NAMES)]
    key = separate(args.on) or _key(schemas, times)
    sides = [_side(side, paths[i], key, times[i], schemas[i], args) for i, side in enumerate(STREAM_NAMES)]
    text = f"{head}{''.join(sides)}\n{_TAIL}"
    config = config_from_plain(yaml.safe_load(text.replace("\n  on:", "\n  key:")))
    for source in open_job_sources(Job(config, None, False, None, None, "init")):
        source.close()
    return text


def run_init(args: argparse.Namespace) -> int:
    path = Path(args.file)
    check_name(path)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"{path}: name a YAML file, such as {path.with_suffix('.yaml')}; inputs follow it: FILE LEFT RIGHT")
    exists = UserError(f"{path}: exists already and is not overwritten", remedy="name another file")
    if path.exists() or path.is_symlink():
        raise exists
    text = first_configuration(args)
    try:
        with writing(path), path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise exists from None
    print(f"{path}: written; swjoin explain {path} says what it does, swjoin run {path} runs it")
    return 0

"""Names of command-line options as keys of a configuration: `join: {on: user, within: 1h}`, or `on` and `within` alone.

What: `in_sections`, `targets`, `OPTION_KEYS`, `JOIN_KEYS`; `bare`, which compares the spellings of a key.
Why: whoever knows the options of `swjoin join` writes them into a file under the same names.
Stays out: what a section may hold, errors about values (`config.loader`).
"""

from __future__ import annotations

import re
from typing import Any

from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError

_OF_BOTH = {"on": "key", "time_unit": "time_unit", "assume_timezone": "assume_timezone", "columns": "columns", "csv": "csv"}
_OF_ONE = {"on": "key", "time": "time", "time_unit": "time_unit", "id": "id", "csv": "csv"}
OPTION_KEYS: dict[str, tuple[str, ...]] = {
    **{name: tuple(f"{side}.{key}" for side in STREAM_NAMES) for name, key in _OF_BOTH.items()},
    **{f"{side}_{name}": (f"{side}.{key}",) for side in STREAM_NAMES for name, key in _OF_ONE.items()},
    "max_out_of_order": ("time.max_out_of_order",),
    "sort": ("time.sort",),
    "late": ("time.late",),
    "epoch": ("cluster.distribution_epoch",),
    "partitions": ("cluster.partition_count",),
    "communication": ("cluster.communication",),
    "gateways": ("cluster.gateways",),
    "sinks": ("cluster.sinks",),
    "strategy": ("cluster.strategy",),
    "routing": ("cluster.routing",),
    "theta": ("module.theta",),
    "memory": ("module.window",),
}
JOIN_KEYS = ("within", "lower", "upper", "exclusive", "last", "how", "match", "where")  # of section join, and at the top level


def bare(key: str) -> str:
    """A key, or a dotted path to one, without its unit and as one of its spellings, to compare two."""
    path, dot, leaf = re.sub("(_us|_bytes|_per_s)+$", "", key).rpartition(".")
    return f"{path}{dot}{'key' if leaf == 'on' else leaf}"


def targets(path: str) -> tuple[str, ...]:
    """The dotted keys that a dotted key stands for; itself unless it is an option's name, or of section placement."""
    if path.partition(".")[0] == "placement":
        return (f"reorganization.{path}",)
    section, _, name = path.rpartition(".")
    if section in ("", "join") and name in OPTION_KEYS:
        return OPTION_KEYS[name]
    return (f"join.{name}",) if section == "" and name in JOIN_KEYS else (path,)


def in_sections(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The same configuration with options in the sections that they belong to, and where each such key was: {`left.key`: `on`}.

    UserError for a key that is given twice."""
    out: dict[str, Any] = {name: dict(part) if isinstance(part, dict) else part for name, part in data.items()}
    moved: dict[str, str] = {}
    join = data.get("join")
    for section, node in (("", data), ("join.", join if isinstance(join, dict) else {})):
        for name, value in node.items():
            path = f"{section}{name}" if isinstance(name, str) else ""
            if targets(path) == (path,):
                continue
            del (out["join"] if section else out)[name]
            for target in targets(path):
                parent, _, leaf = target.partition(".")
                into = out[parent] = {} if out.get(parent) is None else out[parent]
                if not isinstance(into, dict):
                    continue  # an error, which the loader reports
                twin = next((key for key in into if isinstance(key, str) and bare(key) == bare(leaf)), None)
                if twin is not None:
                    raise UserError(f"{path}: given twice, also as {moved.get(target, f'{parent}.{twin}')}")
                into[leaf] = value
                moved[target] = path
    return out, moved

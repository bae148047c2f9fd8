"""Presets: the paper's parameters in the paper's time, or in a tenth of it.

What: `PRESETS` (name -> time scale: how many times faster than the paper), `scaled(config, factor)`.
Why: 20 minutes a point is too long. With all times divided and all rates multiplied by the same factor, the windows and the
distribution epochs have as many tuples as before; only the fixed costs of a message do not shrink.
Stays out: the points of a sweep (`sweeps.points`), the speed of imitated nodes (`sweeps.node_speed`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from swjoin.config.run import RunConfig
from swjoin.core.errors import UserError

PRESETS = {"paper": 1, "quick": 10, "none": 1}


def scaled(config: RunConfig, factor: int, node_speed: float | None = None) -> RunConfig:
    """`factor` times faster: every `*_us` divided by it, every `*_per_s` and nodes.node_speed multiplied. Sizes stay.

    node_speed: replaces the scaled one. UserError when a time cannot be divided exactly, or a node would be faster than a core.
    """
    faster = _scale(config, factor, "", node_speed)
    assert isinstance(faster, RunConfig)
    return faster


def _scale(value: Any, factor: int, where: str, node_speed: float | None) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for part in dataclasses.fields(value):
            here = f"{where}.{part.name}" if where else part.name
            changed[part.name] = _scale_part(part.name, getattr(value, part.name), factor, here, node_speed)
        return dataclasses.replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(_scale(item, factor, where, node_speed) for item in value)
    return value


def _scale_part(name: str, value: Any, factor: int, where: str, node_speed: float | None) -> Any:
    if name.endswith("_us"):
        if value % factor:
            raise UserError(f"{where}: {value} us cannot be divided by {factor} without a rest; take another time or preset")
        return value // factor
    if name.endswith("_per_s"):
        return value * factor
    if name == "node_speed":
        if node_speed is not None:
            return node_speed
        if value * factor > 1:
            raise UserError(f"{where}: {value:g} times {factor} is faster than a core; take a slower node or another preset")
        return value * factor
    return _scale(value, factor, where, node_speed)

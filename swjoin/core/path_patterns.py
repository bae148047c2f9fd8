"""Shapes of JSON files, checked before their values are used.

What: `first_mismatch(shape, value)`; checks of single values: `is_number`, `is_count`, `is_amount`.
Why: files are truncated, edited and written by other versions; their readers stay simple when types are checked first.
Stays out: the files (`checkpoint.manifest`, `connectors.files.run_folder`).

A shape is a type, a check of a value, a list with the shape of all its items, a tuple with the shapes of each, or a mapping.
Keys that a mapping does not name may hold anything; a key that ends in `?` may be missing or null; `*` applies to all keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

Shape: TypeAlias = "type | Callable[[Any], bool] | list[Any] | tuple[Any, ...] | dict[str, Any]"


def is_number(value: Any) -> bool:
    """An integer of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def is_count(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_amount(value: Any) -> bool:
    """An integer of 64 bits, or a finite float."""
    return is_number(value) or (isinstance(value, float) and math.isfinite(value))


def first_mismatch(shape: Shape, value: Any, path: str = "") -> str | None:
    """Path (`.key[index]`) of the first value that does not fit the shape; None when all fit. path: of `value`."""
    if isinstance(shape, type):
        return None if isinstance(value, shape) else path
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return path
        for key, part in shape.items():
            name = key.removesuffix("?")
            if key == "*":
                wrong = next((w for n, v in value.items() if (w := first_mismatch(part, v, f"{path}.{n}"))), None)
            elif name != key and value.get(name) is None:
                continue
            else:
                wrong = first_mismatch(part, value[name], f"{path}.{name}") if name in value else f"{path}.{name}"
            if wrong:
                return wrong
        return None
    if isinstance(shape, (list, tuple)):
        if not isinstance(value, list) or (isinstance(shape, tuple) and len(value) != len(shape)):
            return path
        parts = shape if isinstance(shape, tuple) else [shape[0]] * len(value)
        return next(
            (w for i, (p, v) in enumerate(zip(parts, value, strict=True)) if (w := first_mismatch(p, v, f"{path}[{i}]"))), None
        )
    return None if shape(value) else path

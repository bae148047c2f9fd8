"""How inputs are spoilt: bytes, integers at their limits, values of other kinds.

What: `spoil_bytes`, `BOUNDARIES`, `pick_integer`, `spoil_plain` (a value somewhere in nested lists and mappings).
Why: every target draws from the same box, so that a trick that found something once is tried everywhere.
Stays out: what a format's own checksums need afterwards (the targets).
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

BOUNDARIES = (
    *(0, 1, 2, -1, -2, 63, 64, 65, 127, 128, 255, 256, 4096, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, -(2**63), -(2**62), -(2**61)),
)


def pick_integer(random: Random, old: int) -> int:
    """Another int64."""
    choice = random.randrange(4)
    if choice == 0:
        return random.choice(BOUNDARIES)
    if choice == 1:
        new = old + random.choice((-1, 1, -8, 8, 64, -64))
    elif choice == 2:
        new = old ^ (1 << random.randrange(64))
    else:
        new = random.randrange(-300, 300)
    return (new + 2**63) % 2**64 - 2**63


def spoil_bytes(random: Random, data: bytes, others: list[bytes], hot: int = 0) -> bytes:
    """One to four changes. others: seeds to splice with. hot: the first so many bytes are changed more often."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        span = len(out) if not hot or random.random() < 0.5 else min(hot, len(out))
        at = random.randrange(span) if span else 0
        size = min(random.choice((1, 1, 2, 4, 8, 16, 64, 300)), max(0, len(out) - at))
        kind = random.randrange(10)
        if kind == 0 and out:
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1 and out:
            out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x2C, random.randrange(256)))
        elif kind == 2:
            del out[random.randrange(len(out) + 1) :]
        elif kind == 3:
            del out[at : at + size]
        elif kind == 4:
            out[at:at] = random.randbytes(random.choice((1, 2, 4, 8, 64)))
        elif kind == 5:
            out[at:at] = out[at : at + size] * random.choice((1, 1, 2, 50))
        elif kind == 6:
            other = random.choice(others)
            cut = random.randrange(len(other) + 1)
            out[at:] = other[cut:]
        elif kind == 7 and len(out) >= 8:
            at = at // 8 * 8
            width = random.choice((1, 2, 4, 8))
            value = random.choice(BOUNDARIES) & ((1 << 8 * width) - 1)
            out[at : at + width] = value.to_bytes(width, "little")
        elif kind == 8:
            out[at : at + size] = random.choice((b"\0", b"\xff")) * size
        elif out:
            to = random.randrange(len(out))
            out[to : to + size] = out[at : at + size]
    return bytes(out)


_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.0, -0.0, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *("", " ", "0", "-1", "nan", "null", "\0", "\n", "ü", "\ud800", "../../etc/passwd", "/", "a" * 5000, "1" * 5000 + "s"),
    *([], {}, [[]], [None], {"a": 1}, [1, 2, 3], [[1, 2], [3]], {"": {"": []}}),
)


def paths_of(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values within nested lists and mappings."""
    out = [path] if path else []
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in items:
        out += paths_of(value, (*path, key))
    return out


def odd_value(random: Random, old: Any) -> Any:
    """Another value: one like it, or anything."""
    if isinstance(old, bool):
        return random.choice((not old, *_ODD))
    if isinstance(old, int) and random.random() < 0.6:
        return pick_integer(random, max(-(2**63), min(old, 2**63 - 1)))
    if isinstance(old, float) and random.random() < 0.5:
        return old * random.choice((-1, 0, 1e-9, 1e9, 0.5, 2))
    if isinstance(old, str) and random.random() < 0.6:
        at = random.randrange(len(old) + 1)
        return old[:at] + random.choice(("", "x", "0", "9" * 30, ".", "-", "/", "\n", " ", "%", "é", "us")) + old[at + 1 :]
    if isinstance(old, list) and random.random() < 0.6:
        new = copy.deepcopy(old)
        if new and random.random() < 0.5:
            del new[random.randrange(len(new))]
        else:
            new.append(
                copy.deepcopy(random.choice(new)) if new and random.random() < 0.7 else copy.deepcopy(random.choice(_ODD))
            )
        return new
    return copy.deepcopy(random.choice(_ODD))


def spoil_plain(random: Random, plain: Any, *, keep: tuple[str, ...] = ()) -> Any:
    """A copy with one or two values changed, a key taken away, renamed or added, or values exchanged.

    keep: keys at the top that stay as they are.
    """
    out = copy.deepcopy(plain)
    for _ in range(random.choice((1, 1, 2))):
        places = [p for p in paths_of(out) if p[0] not in keep]
        if not places:
            return out
        path = random.choice(places)
        holder = out
        for key in path[:-1]:
            holder = holder[key]
        key, kind = path[-1], random.randrange(12)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(key) + random.choice(("x", "_us", "_bytes", "", "s"))] = holder.pop(key)
        elif kind == 2 and isinstance(holder, dict):
            holder[random.choice(("x", "", "a" * 3000, "join", "within", "\n"))] = copy.deepcopy(random.choice(_ODD))
        elif kind == 3:
            other = random.choice(places)
            value: Any = out
            for step in other:
                value = value[step]
            holder[key] = copy.deepcopy(value)
        else:
            holder[key] = odd_value(random, holder[key])
    return out

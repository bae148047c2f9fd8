"""Parsing of durations, sizes, time zones and paths.

What: `parse_duration_us`, `parse_size_bytes`, `check_time_zone`, the range of times; `is_utf8`, `named_path`.
Why: `250ms`, `6h` or `1.5MB` mean the same in a file, on a command line and in a call; a number without a unit is refused.
Stays out: limits of single options (`config`).
"""

from __future__ import annotations

import difflib
import os
import re
from fractions import Fraction
from pathlib import Path

from swjoin.core.errors import UserError, setting

_DURATION_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SIZE_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
MAX_SPAN_US = 1 << 61  # times and bounds stay below this in magnitude, so that sums of two never overflow int64
MAX_SIZE_BYTES = 1 << 62
_LONGEST = 60  # characters of a duration or a size
_UNITLESS = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_ZERO = re.compile(r"[+-]?0+(?:\.0+)?", re.ASCII)


def named_path(value: str | os.PathLike[str], words: str) -> Path:
    """The path. UserError when it is empty, which would mean the working directory. words: the option in messages."""
    if not os.fspath(value):
        raise UserError(f"{words}: the path is empty; write . for the working directory")
    return Path(value)


def _is_zero(kind: str, value: object, units: tuple[str, ...]) -> bool:
    """Whether the value is `0`, which needs no unit. UserError, with the possible units, for other numbers without one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UserError(f"{kind}: a number beyond 64 bits")  # Python may refuse to print it
    text = str(value).strip()
    if len(text) > _LONGEST or not _UNITLESS.fullmatch(text) or (kind == "size" and text[0] == "-"):
        return False
    if _ZERO.fullmatch(text):
        return True
    *most, last = (f"{text}{unit}" for unit in units[1 if "." in text else 0 :])
    raise UserError(f"{kind} {text} has no unit; write {', '.join(most)} or {last}")


def parse_duration_us(text: str | int, *, in_us: bool = False) -> int:
    """A number and a unit (`250ms`, `6h`, `-10us`, `1.5s`) as whole microseconds. UserError for numbers without a unit, except
    0.

    in_us: a whole number is microseconds, because its key says so (`epoch_us`)."""
    if in_us and isinstance(text, int) and not isinstance(text, bool):
        if abs(text) >= MAX_SPAN_US:
            raise UserError(f"duration: longer than {MAX_SPAN_US} us")
        return text
    if _is_zero("duration", text, ("us", "ms", "s", "min", "h")):
        return 0
    match = re.fullmatch(r"\s*([+-]?)(\d+)(?:\.(\d+))?\s*(us|ms|s|min|m|h|d)\s*", str(text), re.ASCII)
    if match is None or not isinstance(text, str) or len(text) > _LONGEST:
        shown = str(text)[:_LONGEST]
        raise UserError(f"duration {shown!r}: write a number and a unit (us, ms, s, min, h, d), such as 250ms, 6h or -10us")
    sign, whole, fraction, unit = match.groups()
    scale = _DURATION_US[unit]
    digits = fraction or ""
    scaled, rest = divmod(int(whole + digits) * scale, int(10 ** len(digits)))
    if rest:
        raise UserError(f"duration {text!r}: finer than one microsecond")
    if scaled >= MAX_SPAN_US:
        raise UserError(f"duration {text!r}: longer than {MAX_SPAN_US} us")
    return -scaled if sign == "-" else scaled


def parse_size_bytes(text: str | int, *, in_bytes: bool = False) -> int:
    """A size such as `4KB`, `4KiB` (the same), `1.5MB` as bytes. UserError for numbers without a unit, except 0.

    in_bytes: a whole number is bytes, because its key says so (`block_bytes`)."""
    if in_bytes and isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text < MAX_SIZE_BYTES:
            raise UserError(f"size: must lie in 0 up to {MAX_SIZE_BYTES} bytes")
        return text
    if _is_zero("size", text, ("B", "KB", "MB", "GB")):
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|[KMG]i?B)\s*", str(text), re.IGNORECASE | re.ASCII)
    if match is None or len(str(text)) > _LONGEST:
        raise UserError(f"size {str(text)[:_LONGEST]!r}: write a number and a unit (B, KB, MB, GB; powers of 1024), as in 4KB")
    size = int(Fraction(match[1]) * _SIZE_BYTES[match[2].upper().replace("I", "")])
    if size >= MAX_SIZE_BYTES:
        raise UserError(f"size {text!r}: more than {MAX_SIZE_BYTES} bytes")
    return size


def check_time_zone(name: object) -> None:
    """UserError, with the nearest name, unless this is a time zone of the IANA database, such as Europe/Berlin."""
    import zoneinfo

    text = str(name)[:_LONGEST]
    try:
        if isinstance(name, str):
            zoneinfo.ZoneInfo(name)
            return
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = {zone.casefold(): zone for zone in zoneinfo.available_timezones()}
    near = difflib.get_close_matches(text.casefold(), [*known, *(zone.rpartition("/")[2] for zone in known)], 1)
    full = [zone for folded, zone in known.items() if near and folded.rpartition("/")[2] == near[0]]
    hint = f"did you mean {known.get(near[0]) or full[0]}?" if near else "write one such as Europe/Berlin or UTC"
    error = UserError(f"{text!r} is no time zone", subject=(setting("assume_timezone"),), remedy=hint)
    error.spelling = "keys"
    raise error


def is_utf8(text: str) -> bool:
    """Whether a text from the command line or a file system was valid UTF-8."""
    return not re.search("[\ud800-\udfff]", text)

"""Durations and sizes as people write them.

What: `parse_duration_us`, `parse_size_bytes`, how far times may reach; `is_utf8`.
Why: `250ms`, `6h` or `1.5MB` mean the same in a file, on a command line and in a call.
Stays out: which values are allowed (`config`).
"""

from __future__ import annotations

import re
from fractions import Fraction

from swjoin.errors import UserError

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


def parse_duration_us(text: str | int) -> int:
    """A number and a unit (`250ms`, `6h`, `-10us`, `1.5s`) as whole microseconds; an int is microseconds already."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise UserError(f"duration {str(text)[:_LONGEST]!r}: write a number and a unit, such as 250ms, 6h or -10us")
    if isinstance(text, int):
        if abs(text) >= MAX_SPAN_US:
            raise UserError(f"duration: longer than {MAX_SPAN_US} us")
        return text
    match = re.fullmatch(r"\s*([+-]?)(\d+)(?:\.(\d+))?\s*(us|ms|s|min|m|h|d)\s*", text, re.ASCII)
    if match is None or len(text) > _LONGEST:
        text = text[:_LONGEST]
        raise UserError(f"duration {text!r}: write a number and a unit (us, ms, s, min, h, d), such as 250ms, 6h or -10us")
    sign, whole, fraction, unit = match.groups()
    scale = _DURATION_US[unit]
    digits = fraction or ""
    scaled, rest = divmod(int(whole + digits) * scale, int(10 ** len(digits)))
    if rest:
        raise UserError(f"duration {text!r}: finer than one microsecond")
    if scaled >= MAX_SPAN_US:
        raise UserError(f"duration {text!r}: longer than {MAX_SPAN_US} us")
    return -scaled if sign == "-" else scaled


def parse_size_bytes(text: str | int) -> int:
    """A size such as `4KB`, `1.5MB` (powers of 1024) as bytes; an int is bytes already."""
    if isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text < MAX_SIZE_BYTES:
            raise UserError(f"size: must lie in 0 up to {MAX_SIZE_BYTES} bytes")
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|KB|MB|GB)\s*", str(text), re.IGNORECASE | re.ASCII)
    if match is None or len(str(text)) > _LONGEST:
        raise UserError(f"size {str(text)[:_LONGEST]!r}: write a number and a unit (B, KB, MB, GB), such as 4KB or 1.5MB")
    size = int(Fraction(match[1]) * _SIZE_BYTES[match[2].upper()])
    if size >= MAX_SIZE_BYTES:
        raise UserError(f"size {text!r}: more than {MAX_SIZE_BYTES} bytes")
    return size


def is_utf8(text: str) -> bool:
    """Whether a text from the command line or a file system can be written as UTF-8; its bytes may have been others."""
    return not re.search("[\ud800-\udfff]", text)

"""Parsing of durations, sizes, time zones and paths.

What: `parse_duration_us`, `parse_size_bytes`, the way back (`format_duration`, `format_size`), patterns of both for other
programs; `check_time_zone`, `is_utf8`, `named_path`.
Why: `250ms`, `1h30m` or `1.5MB` mean the same in a file, on a command line and in a call. What is ambiguous or can only
be a mistake (`5`, `5M`, `1m30`) is refused, with the spelling to use.
Stays out: limits of single options (`config`).
"""

from __future__ import annotations

import datetime
import difflib
import functools
import itertools
import os
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from swjoin.core.errors import UserError, setting

_UNIT_NS = {  # the longest first, as the parts of a duration are written
    "w": 604_800_000_000_000,
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "min": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_UNITS = list(_UNIT_NS)
_SPELLINGS = {
    spelling: unit
    for unit, spellings in {
        "w": "w wk wks week weeks",
        "d": "d day days",
        "h": "h hr hrs hour hours",
        "min": "m min mins minute minutes",
        "s": "s sec secs second seconds",
        "ms": "ms msec msecs millisecond milliseconds",
        "us": "us \u00b5s \u03bcs usec usecs microsecond microseconds",
        "ns": "ns nsec nsecs nanosecond nanoseconds",
    }.items()
    for spelling in spellings.split()
}
_CALENDAR_DAYS = {"mo": 30, "month": 30, "y": 365, "yr": 365, "year": 365}  # units without a fixed length, and about how long
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_PART = re.compile(rf"{_NUMBER}\s*([a-zA-Z\u00b5\u03bc]*)")
_PARTS = re.compile(r"(?>[0-9]++(?:\.[0-9]++)?\s*+[a-zA-Z\u00b5\u03bc]*+\s*+)++")  # possessive, or time would be exponential
_ISO = re.compile(rf"P(?=.)(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?")
_HOW_TO_WRITE = "write a number and a unit (us, ms, s, min, h, d, w), such as 250ms, 1h30min or -10us"
_SIZE = re.compile(rf"{_NUMBER}\s*(([KMGT])i?B?|B|bytes?)", re.IGNORECASE | re.ASCII)
_SIZE_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_SPAN_US = 1 << 61  # times and bounds stay below this in magnitude, so that sums of two never overflow int64
UNBOUNDED_US = 1 << 60  # the bound of a window without one: no times of the calendar are further apart
MAX_SIZE_BYTES = 1 << 62
_LONGEST = 60  # characters of a duration or a size
_UNITLESS = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_ZERO = re.compile(r"[+-]?0+(?:\.0+)?", re.ASCII)


def named_path(value: str | os.PathLike[str], words: str) -> Path:
    """The path. UserError when it is none or empty, which would mean the working directory. words: the option in messages."""
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"{words}: {value!r} is no path")
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


def parse_duration_us(value: object, *, in_us: bool = False) -> int:
    """A duration as whole microseconds. UserError for what is ambiguous, and for numbers without a unit, except 0.

    value: numbers and units, the longest unit first (`250ms`, `1h30m`, `5 seconds`, `-10us`); an ISO 8601 duration (PT5M,
    P1DT2H); a `datetime.timedelta`, which includes pandas' kind; a `numpy.timedelta64`. A sign at the front holds for all
    parts; only the last part may have a fraction. in_us: a whole number is microseconds, as its key says (`epoch_us`)."""
    if in_us and isinstance(value, int) and not isinstance(value, bool):
        microseconds = value
    elif isinstance(value, datetime.timedelta):
        if getattr(value, "nanoseconds", 0):  # of pandas' kind, which the fields of a timedelta leave out
            raise UserError(f"{value!r} is finer than one microsecond; round it")
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.timedelta64):
        microseconds = _numpy_us(value)
    elif _is_zero("duration", value, ("us", "ms", "s", "min", "h")):
        return 0
    else:
        microseconds = _text_us(value) if isinstance(value, str) else _text_us.__wrapped__(value)
    if abs(microseconds) >= MAX_SPAN_US:
        raise UserError(f"duration{f' {value!r}' if isinstance(value, str) else ''}: longer than {MAX_SPAN_US} us")
    return microseconds


def _numpy_us(value: Any) -> int:
    """Microseconds of a `numpy.timedelta64`."""
    import numpy as np

    unit, count = np.datetime_data(value.dtype)
    if unit not in ("W", "D", "h", "m", "s", "ms", "us", "ns") or np.isnat(value):
        raise UserError(f"duration {value!r}: write one of a fixed length, such as numpy.timedelta64(5, 's')")
    microseconds, rest = divmod(int(value.astype(np.int64)) * count * _UNIT_NS[_SPELLINGS[unit.lower()]], 1_000)
    if rest:
        raise UserError(f"{value!r} is finer than one microsecond; round it")
    return microseconds


@functools.lru_cache(256)
def _text_us(value: object) -> int:
    """Microseconds of a duration that was written as text."""
    if not isinstance(value, str):
        raise UserError(f"duration: a {type(value).__name__} is none; write text such as 250ms or 1h30min, or give a timedelta")
    shown = value[:_LONGEST]
    text = value.strip() if len(value) <= _LONGEST else ""
    sign, body = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if iso := _ISO.fullmatch(body.upper()):
        parts = [(number, unit) for number, unit in zip(iso.groups(), _UNITS, strict=False) if number is not None]
    elif _PARTS.fullmatch(body):
        parts = _named_parts(_PART.findall(body), f"duration {shown!r}", sign)
    else:
        raise UserError(f"duration {shown!r}: {_how_to_write(body)}")
    for (number, unit), (_, after) in itertools.pairwise(parts):
        if _UNITS.index(unit) >= _UNITS.index(after):
            raise UserError(f"duration {shown!r}: write each unit once, the longest first, such as 1h30min")
        if "." in number:
            raise UserError(f"duration {shown!r}: only the last number may have a fraction; write 1.5h or 1h30min")
    nanoseconds = sum(Fraction(number) * _UNIT_NS[unit] for number, unit in parts)
    if nanoseconds % 1_000:
        raise UserError(f"duration {shown!r}: finer than one microsecond")
    return int(nanoseconds) // (-1_000 if sign == "-" else 1_000)


def _named_parts(parts: list[tuple[str, str]], subject: str, sign: str) -> list[tuple[str, str]]:
    """Numbers with their units by the names of `_UNIT_NS`. UserError for a unit that is missing, unknown or of no fixed
    length. subject: of the error. sign: before the first number."""
    found: list[tuple[str, str]] = []
    for number, word in parts:
        short = len(word) <= 2 and word not in ("D", "H", "S", "W")  # M is no minute, and no MS a millisecond
        unit = _SPELLINGS.get(word if short else word.lower())
        if unit is None and not word and found and found[-1][1] != "ns":
            after = _UNITS[_UNITS.index(found[-1][1]) + 1]
            whole = sign + "".join(f"{n}{'m' if u == 'min' else u}" for n, u in found)
            raise UserError(f"{subject}: write {whole}{number}{after}; the last number has no unit")
        if word == "M":
            raise UserError(f"{subject}: M may be minutes or months; write {sign}{number}min, or months as days")
        days = _CALENDAR_DAYS.get(word.lower().removesuffix("s"))
        if unit is None and days is not None:
            text = f"{Fraction(number) * days}" if "." not in number else f"{float(number) * days:g}"
            raise UserError(f"{subject}: {word} has no fixed length; write days, such as {sign}{text}d")
        if unit is None:
            raise UserError(f"{subject}: {_HOW_TO_WRITE}")
        found.append((number, unit))
    return found


def _how_to_write(body: str) -> str:
    """The end of an error about a text that is no duration. body: the text without its sign."""
    if clock := re.fullmatch(r"([0-9]+):([0-9]+)(?::([0-9.]+))?", body):
        first, second, third = clock.groups()
        return f"write {first}h{second}min" + (f" or {first}min{second}s" if third is None else f"{third}s")
    if re.fullmatch(r"P[0-9]+[YM].*", body.upper()):
        return "years and months have no fixed length; write days (P30D), or minutes as PT5M"
    if re.search(r"\w\s*[+-]\s*[0-9]", body):
        return "a sign stands at the front alone and holds for all parts, as in -1h30min"
    if re.fullmatch(r"[^,]*[0-9],[0-9][^,]*", body):
        return f"write {body.replace(',', '.')}"
    return _HOW_TO_WRITE


def format_duration(us: int) -> str:
    """Whole microseconds as `parse_duration_us` reads them, without loss: `1h30min`, `-250ms`, `0s`."""
    left_ns, text = abs(us) * 1_000, "-" if us < 0 else ""
    for unit in _UNITS[1:-1]:  # no weeks
        count, left_ns = divmod(left_ns, _UNIT_NS[unit])
        text += f"{count}{unit}" if count else ""
    return text if us else "0s"


def format_size(nbytes: int) -> str:
    """Whole bytes as `parse_size_bytes` reads them, without loss: `32KB`, `1536KB`, `100B`."""
    prefix = next((p for p in "TGMK" if nbytes and nbytes % _SIZE_BYTES[p] == 0), "")
    return f"{nbytes // _SIZE_BYTES[prefix]}{prefix}B"


def duration_pattern() -> str:
    """A regular expression, in ECMAScript's syntax, for the texts that `parse_duration_us` may accept."""
    number = r"[0-9]+(\.[0-9]+)?"
    spelled: dict[str, list[str]] = {unit: [] for unit in _UNITS}
    for word, unit in _SPELLINGS.items():
        either = len(word) > 2 or word in ("d", "h", "s", "w")
        spelled[unit].append("".join(f"[{c}{c.upper()}]" for c in word) if either else word)
    parts = "".join(rf"({number}\s*({'|'.join(words)})\s*)?" for words in spelled.values())
    date, time = ("".join(f"({number}[{c}{c.lower()}])?" for c in letters) for letters in ("WD", "HMS"))
    iso = rf"[pP](?=.){date}([tT](?=.){time})?"
    return rf"^\s*([+-]?(?=[0-9]){parts}|[+-]?{iso}|[+-]?0+(\.0+)?)\s*$"


def size_pattern() -> str:
    """A regular expression, in ECMAScript's syntax, for the texts that `parse_size_bytes` may accept."""
    return r"^\s*([0-9]+(\.[0-9]+)?\s*([KMGTkmgt][iI]?[bB]?|[bB]([yY][tT][eE][sS]?)?)|[+]?0+(\.0+)?)\s*$"


def parse_size_bytes(text: object, *, in_bytes: bool = False) -> int:
    """A size as bytes, rounded down: `4KB`, `4KiB`, `4K` (powers of 1024, all the same), `1.5MB`, `64B`. UserError for numbers
    without a unit, except 0, and for `4Gb`, which would be bits.

    in_bytes: a whole number is bytes, because its key says so (`block_bytes`)."""
    if in_bytes and isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text < MAX_SIZE_BYTES:
            raise UserError(f"size: must lie in 0 up to {MAX_SIZE_BYTES} bytes")
        return text
    if _is_zero("size", text, ("B", "KB", "MB", "GB")):
        return 0
    shown = str(text)[:_LONGEST]
    match = _SIZE.fullmatch(shown.strip()) if len(str(text)) <= _LONGEST else None
    if match is None:
        least = "; not negative" if shown.strip()[:1] == "-" else ""
        raise UserError(f"size {shown!r}: write a number and a unit (B, KB, MB, GB, TB; powers of 1024), as in 4KB{least}")
    number, unit, prefix = match.groups(default="")
    if prefix.isupper() and unit.endswith("b"):
        raise UserError(f"size {shown!r}: {unit} may be bits; write {number}{unit[:-1]}B for bytes")
    if not prefix and "." in number:
        raise UserError(f"size {shown!r}: finer than one byte")
    size = int(Fraction(number) * _SIZE_BYTES[prefix.upper()])
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

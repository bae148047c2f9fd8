"""Windows as lives: from when and until when a mapping of a window is there (CQELS Cloud; every kind of window is a rule for
both).

What: `Window`; `window_named`, of the text that queries have for it; `Lives`, of the mappings of one input.
Why: mappings of several inputs join while all of them are alive, whatever the kinds of their windows, so one comparison serves
all: the latest birth is before the earliest death.
Stays out: what lives (`frontends.rdf`), joining (`operators`).

A mapping is alive in [born, dead), microseconds: with RANGE from its time until the width has passed (both bounds inclusive);
with SLIDE from the first boundary, a multiple of the slide, at or after its time, until the first one a width later, so that at
a boundary tau the window holds (tau - width, tau]. Deaths of windows of TRIPLES follow from what comes later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.errors import UserError
from swjoin.core.ids import LAST_TIME_US
from swjoin.core.units import format_duration, parse_duration_us

_SPELLINGS = "write RANGE 10s, RANGE 10s SLIDE 5s, RANGE 60s TUMBLING, NOW, TRIPLES 40 or ALL"
_MOST_US = 1 << 58
_MINUTES = re.compile(r"(\d)m(?![a-z])", re.IGNORECASE)


class Lives(NamedTuple):
    """Births and deaths of an input's mappings, microseconds: int64 (n,). LAST_TIME_US: never dies."""

    born: I64
    dead: I64


@dataclass(frozen=True)
class Window:
    """kind: `range`, of a width from each time on; `slide`, of a width at multiples of the slide; `triples`, of so many of the
    latest mappings; `all`. Times in microseconds."""

    kind: Literal["range", "slide", "triples", "all"]
    width_us: int = 0
    slide_us: int = 0
    count: int = 0

    def lives(self, ts: I64) -> Lives:
        """Of mappings of these times, int64 (n,). Of a window of TRIPLES each lives for ever: see `frontends.rdf.inputs`.
        With a slide above the width some have no life: born = dead."""
        if self.kind == "range":
            return Lives(ts, ts + self.width_us + 1)
        if self.kind == "slide":
            born = -(-ts // self.slide_us) * self.slide_us
            return Lives(born, -(-(ts + self.width_us) // self.slide_us) * self.slide_us)
        return Lives(ts, np.full(len(ts), LAST_TIME_US, np.int64))

    @property
    def description(self) -> str:
        if self.kind == "range":
            return f"RANGE {format_duration(self.width_us)}" if self.width_us else "NOW"
        if self.kind == "slide":
            return f"RANGE {format_duration(self.width_us)} SLIDE {format_duration(self.slide_us)}"
        return f"TRIPLES {self.count}" if self.kind == "triples" else "ALL"


def window_named(text: str) -> Window:
    """The window of the text between brackets. UserError for what is none."""
    words = text.split()
    head, rest = words[0].upper() if words else "", words[1:]
    if head in ("NOW", "ALL") and not rest:
        return Window("range") if head == "NOW" else Window("all")
    if head in ("TRIPLES", "ROWS") and len(rest) == 1 and rest[0].isascii() and rest[0].isdigit() and int(rest[0]):
        if int(rest[0]) > np.iinfo(np.int32).max:
            raise UserError(f"window [{text}]: too many {head.lower()}", remedy="give fewer")
        return Window("triples", count=int(rest[0]))
    if head == "RANGE":
        at = next((i for i, word in enumerate(rest) if word.upper() in ("SLIDE", "TUMBLING")), len(rest))
        width, how, slide = rest[:at], rest[at : at + 1], rest[at + 1 :]
        tumbling = [word.upper() for word in how] == ["TUMBLING"]
        if width and bool(slide) == (bool(how) and not tumbling):
            if not how:
                return Window("range", _duration(width, text, least=0))
            width_us = _duration(width, text, least=1)
            return Window("slide", width_us, width_us if tumbling else _duration(slide, text, least=1))
    raise UserError(f"window [{text}]: is none", remedy=_SPELLINGS)


def _duration(words: list[str], window: str, *, least: int) -> int:
    """Microseconds; `1m` is a minute, as in CQELS' queries."""
    try:
        found = parse_duration_us(_MINUTES.sub(r"\1min", "".join(words)))
    except UserError as error:
        raise error.prefixed(f"window [{window}]") from None
    if found > _MOST_US:
        raise UserError(f"window [{window}]: longer than 2^58 us", remedy="write ALL, or give a shorter time")
    if found < least:
        raise UserError(f"window [{window}]: a time of {format_duration(found)}", remedy="give one above zero")
    return found

"""The window of a join as a user gives it: `within`, or `lower` and `upper`, or `last`.

What: `WindowBounds`, `parse_window`.
Why: the command line, the Python API, Spark and configuration files refuse the same mistakes in the same words.
Stays out: how a front end writes durations and numbers (it brings parsers), which values a query may have (`config.sections`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from swjoin.core.errors import Spelled, UserError, setting
from swjoin.core.units import UNBOUNDED_US

Bound: TypeAlias = Literal["lower", "upper"]
UNBOUNDED = "unbounded"  # a window over the full history
_WITHIN, _LOWER, _UPPER, _LAST = (setting(name) for name in ("within", "lower", "upper", "last"))


def is_unbounded(within: object) -> bool:
    """Whether a window is one over the full history. within: of any type."""
    return isinstance(within, str) and within == UNBOUNDED


class WindowBounds(NamedTuple):
    """The window as fields of a `QueryConfig`."""

    lower_us: int
    upper_us: int
    exclusive: tuple[Bound, ...] = ()
    last: tuple[int, int] | None = None


def parse_window(
    given: Mapping[str, Any],
    exclusive: tuple[Bound, ...],
    duration_us: Callable[[Any, str], int],
    counts: Callable[[Any], tuple[int, int]] | None,
    section: str = "",
) -> WindowBounds:
    """The bounds that `given` means: of within, lower, upper and last those that the user gave.

    duration_us: parser of a duration with its name. counts: parser of `last`; None: there are no count windows. section: of the
    configuration, for errors.
    """
    if "last" in given and counts is not None:
        if exclusive or len(given) > 1:
            raise UserError(("give ", _LAST, ", or bounds of time, not both"), subject=section)
        return WindowBounds(0, 0, last=counts(given["last"]))
    if "within" in given:
        if len(given) > 1:
            raise UserError(("give ", _WITHIN, ", or ", _LOWER, " and ", _UPPER, ", not both"), subject=section)
        if is_unbounded(given["within"]):
            if exclusive:
                raise UserError((_WITHIN, f": {UNBOUNDED} has no bounds that could be exclusive"), subject=section)
            return WindowBounds(-UNBOUNDED_US, UNBOUNDED_US)
        window_us, value = duration_us(given["within"], "within"), given["within"]
        if window_us < 0:
            named = Spelled(f"--within {value}", f"within: {value!r}", f"{section}.within")
            raise UserError("a window cannot be negative", subject=(named,))
        return WindowBounds(-window_us, window_us, exclusive)
    if "lower" not in given or "upper" not in given:
        last = () if counts is None else (", or ", _LAST)
        missing = ("the window is missing: give ", _WITHIN, ", or ", _LOWER, " and ", _UPPER, *last)
        raise UserError(missing, subject=section)
    return WindowBounds(duration_us(given["lower"], "lower"), duration_us(given["upper"], "upper"), exclusive)

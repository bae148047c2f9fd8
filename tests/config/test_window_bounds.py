"""One mistake in a window, as each front end words it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import swjoin
from swjoin.cli.join import join_config
from swjoin.cli.main import build_parser
from swjoin.config.loader import config_from_plain
from swjoin.config.window_bounds import WindowBounds, parse_window
from swjoin.core.errors import UserError

NEEDED = ["join", "a.csv", "b.csv", "--on", "k", "--left-time", "t", "--right-time", "t", "-o", "count"]
MISTAKES: dict[str, tuple[str, tuple[str, str, str]]] = {
    "last and within": (
        "{last: 3, within: 1s}",
        (
            "give --last, or bounds of time, not both",
            "give last, or bounds of time, not both",
            "join: give last, or bounds of ",
        ),
    ),
    "within and lower": (
        "{within: 1s, lower: 0s}",
        (
            "give --within, or --lower and --upper, not both",
            "give within, or lower and upper, not both",
            "join: give within, or ",
        ),
    ),
    "negative": (
        "{within: -1s}",
        ("--within -1s: a window cannot", "within: '-1s': a window cannot", "join.within: a window cannot be negative"),
    ),
    "half": (
        "{lower: 1s}",
        (
            "the window is missing: give --within, or --lower and --upper, or --last",
            "the window is missing: give within, or lower and upper, or last",
            "join: the window is missing: give within, or lower and upper, or last",
        ),
    ),
    "no unit": (
        "{within: 1m5}",
        ("duration '1m5': write", "within: duration '1m5': write", "join.within: duration '1m5'"),
    ),
    "swapped": ("{lower: 2s, upper: 1s}", ("is above upper", "is above upper", "is above upper")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_alike(name: str) -> None:
    text, lines = MISTAKES[name]
    window: dict[str, Any] = yaml.safe_load(text)
    words = [f"--{key}={value}" for key, value in window.items()]
    calls = [
        lambda: join_config(build_parser().parse_args([*NEEDED, *words])),
        lambda: swjoin.WindowJoin(on="k", left_time="t", right_time="t", **window),
        lambda: config_from_plain({"join": window}),
    ]
    for call, line in zip(calls, lines, strict=True):
        with pytest.raises(UserError) as caught:
            call()
        assert line in str(caught.value)


def test_bounds() -> None:
    def us(value: Any, name: str) -> int:
        return int(value)

    assert parse_window({"within": 5}, ("upper",), us, None) == WindowBounds(-5, 5, ("upper",))
    assert parse_window({"lower": -1, "upper": 5}, (), us, None) == WindowBounds(-1, 5)
    assert parse_window({"last": 3}, (), us, lambda n: (n, n)) == WindowBounds(0, 0, (), (3, 3))
    with pytest.raises(UserError) as caught:
        parse_window({}, (), us, None)
    assert str(caught.value) == "the window is missing: give --within, or --lower and --upper"


def test_a_file_gives_no_bound_twice() -> None:
    with pytest.raises(UserError, match=r"join\.lower_us: given twice, also as lower"):
        config_from_plain({"join": {"lower": "1s", "lower_us": 5, "upper": "2s"}})

"""Durations and sizes as people write them; what is ambiguous is refused with the spelling to use."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import swjoin
from swjoin.cli.join import join_config
from swjoin.cli.main import build_parser
from swjoin.config.loader import config_from_plain, load_config
from swjoin.core.errors import UserError
from swjoin.core.units import MAX_SPAN_US, format_duration, parse_duration_us, parse_size_bytes
from tests.conftest import ROOT

US = {"w": 604_800 * 10**6, "d": 86_400 * 10**6, "h": 3_600 * 10**6, "min": 60 * 10**6, "s": 10**6, "ms": 1_000, "us": 1}
NAMES = {
    "w": ["w", "week", "Weeks", "W"],
    "d": ["d", "day", "days", "D"],
    "h": ["h", "hr", "hours", "H"],
    "min": ["m", "min", "Minutes", "mins"],
    "s": ["s", "sec", "SECONDS", "S"],
    "ms": ["ms", "msec", "milliseconds"],
    "us": ["us", "µs", "μs", "microseconds"],
}
COUNTS = {"d": 10_000, "h": 24, "min": 60, "s": 60, "ms": 1_000, "us": 1_000}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1h30m", "1h30min"),
        ("1h 30m", "1h30min"),
        ("1 hour 30 minutes", "1h30min"),
        ("-1h30m", "-1h30min"),
        ("90min", "1h30min"),
        ("1.5h", "1h30min"),
        ("1h0.5m", "1h30s"),
        ("5 seconds", "5s"),
        ("5sec", "5s"),
        ("1w", "7d"),
        ("1w2d", "9d"),
        ("1min", "1min"),
        ("1000ns", "1us"),
        ("PT5M", "5min"),
        ("P1DT2H", "1d2h"),
        ("P1W", "7d"),
        ("-PT1.5S", "-1s500ms"),
        ("pt36h", "1d12h"),
        (dt.timedelta(days=-1, hours=23), "-1h"),
        (pd.Timedelta("1h30min"), "1h30min"),
        (np.timedelta64(90, "m"), "1h30min"),
        (np.timedelta64(2, "W"), "14d"),
        (np.timedelta64(-1500, "us"), "-1ms500us"),
        (np.timedelta64(3, "25s"), "1min15s"),
        (np.timedelta64(3000, "ns"), "3us"),
    ],
)
def test_a_duration_means_the_same_however_it_is_written(value: Any, text: str) -> None:
    assert format_duration(parse_duration_us(value)) == text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("1m30", "duration '1m30': write 1m30s; the last number has no unit"),
        ("-1h30", "duration '-1h30': write -1h30min; the last number has no unit"),
        ("5M", "duration '5M': M may be minutes or months; write 5min, or months as days"),
        ("2 months", "duration '2 months': months has no fixed length; write days, such as 60d"),
        ("1.5y", "duration '1.5y': y has no fixed length; write days, such as 547.5d"),
        ("P1M", "duration 'P1M': years and months have no fixed length; write days (P30D), or minutes as PT5M"),
        ("30m1h", "duration '30m1h': write each unit once, the longest first, such as 1h30min"),
        ("1h1h", "duration '1h1h': write each unit once, the longest first, such as 1h30min"),
        ("1.5h30m", "duration '1.5h30m': only the last number may have a fraction; write 1.5h or 1h30min"),
        ("1h-30m", "duration '1h-30m': a sign stands at the front alone and holds for all parts, as in -1h30min"),
        ("PT-5M", "duration 'PT-5M': a sign stands at the front alone and holds for all parts, as in -1h30min"),
        ("1:30", "duration '1:30': write 1h30min or 1min30s"),
        ("1:30:15", "duration '1:30:15': write 1h30min15s"),
        ("1,5s", "duration '1,5s': write 1.5s"),
        ("100ns", "duration '100ns': finer than one microsecond"),
        (np.timedelta64(1, "ns"), "np.timedelta64(1,'ns') is finer than one microsecond; round it"),
        (pd.Timedelta("1ns"), "Timedelta('0 days 00:00:00.000000001') is finer than one microsecond; round it"),
        (dt.timedelta.max, f"duration: longer than {MAX_SPAN_US} us"),
        *(
            (text, f"duration {text!r}: write a number and a unit (us, ms, s, min, h, d, w), such as 250ms, 1h30min or -10us")
            for text in ("5MS", "5 US", "P", "PT", "P1DT", "1 30m", "h", "٣s", "1" * 59 + "!")
        ),
    ],
)
def test_what_may_mean_two_things_is_refused(value: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_duration_us(value)
    assert str(caught.value) == line
    for better in re.findall(r"write (-?[0-9][\w.]*)", line):
        parse_duration_us(better)  # what the line says to write is accepted


@given(st.integers(-MAX_SPAN_US + 1, MAX_SPAN_US - 1))
@example(0)
def test_a_duration_comes_back_from_its_text(us: int) -> None:
    assert parse_duration_us(format_duration(us)) == us
    assert parse_duration_us(dt.timedelta(microseconds=us // 1000)) == us // 1000
    assert parse_duration_us(np.timedelta64(us, "us")) == us


PART = st.tuples(st.sampled_from(sorted(US)), st.integers(0, 3), st.integers(0, 10**6))
PARTS = st.lists(PART, unique_by=lambda part: part[0], max_size=3)


@given(PARTS.filter(bool), st.sampled_from(["", " "]), st.sampled_from(["", " "]), st.sampled_from(["", "-", "+"]))
def test_a_duration_is_the_sum_of_its_parts(parts: list[Any], gap: str, between: str, sign: str) -> None:
    ordered = sorted(parts, key=lambda part: -US[part[0]])
    words = [f"{count}{gap}{NAMES[unit][name % len(NAMES[unit])]}" for unit, name, count in ordered]
    total = sum(parse_duration_us(word) for word in words)
    assert total == sum(US[unit] * count for unit, _, count in parts)
    assert parse_duration_us(sign + between.join(words)) == (-total if sign == "-" else total)
    if len(words) > 1:
        with pytest.raises(UserError, match="longest first"):
            parse_duration_us(between.join(reversed(words)))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(["d", "h", "min", "s", "ms"]))
def test_fractions_are_exact_or_refused(first: int, whole: int, thousandths: int, unit: str) -> None:
    exact = first * US["w"] + Fraction(whole * 1000 + thousandths, 1000) * US[unit]
    text = f"{first}w{whole}.{thousandths:03}{unit}"
    assert parse_duration_us(text) == exact  # thousandths of a millisecond are microseconds
    if thousandths % 10:
        with pytest.raises(UserError, match="finer than one microsecond"):
            parse_duration_us(f"{whole}.{thousandths:03}{thousandths % 10}ms")


@given(*(st.none() | st.integers(0, 99) for _ in range(5)))
def test_iso_durations_are_what_their_letters_say(w: Any, d: Any, h: Any, m: Any, s: Any) -> None:
    date = "".join(f"{n}{letter}" for n, letter in ((w, "W"), (d, "D")) if n is not None)
    time = "".join(f"{n}{letter}" for n, letter in ((h, "H"), (m, "M"), (s, "S")) if n is not None)
    text = f"P{date}{'T' if time else ''}{time}"
    total = sum((n or 0) * US[unit] for n, unit in zip((w, d, h, m, s), ("w", "d", "h", "min", "s"), strict=True))
    if text == "P":
        with pytest.raises(UserError):
            parse_duration_us(text)
    else:
        assert parse_duration_us(text) == total


def test_every_short_text_is_read_as_by_hand_or_refused() -> None:
    """Brute force over an alphabet: a reader that looks at one character after the other says what is accepted."""
    units = list(US)

    def by_hand(text: str) -> int | None:
        total, at, last = 0, 0, -1
        while at < len(text):
            digits = len(text[at:]) - len(text[at:].lstrip("0123456789"))
            letters = len(text[at + digits :]) - len(text[at + digits :].lstrip("mshd"))
            word = text[at + digits : at + digits + letters]
            unit = {"m": "min"}.get(word, word)
            if not digits or unit not in units or units.index(unit) <= last:
                return None
            last = units.index(unit)
            total += int(text[at : at + digits]) * US[unit]
            at += digits + letters
        return total

    accepted = 0
    for length in range(1, 7):
        for letters in itertools.product("27mshd", repeat=length):
            text = "".join(letters)
            try:
                found = parse_duration_us(text)
            except UserError:
                assert by_hand(text) is None, text
            else:
                assert found == by_hand(text), text
                accepted += 1
    assert accepted > 500


# ---------------------------------------------------------------- sizes


def test_sizes_are_powers_of_1024() -> None:
    for power, letter in enumerate("KMGT", 1):
        for text in (f"4{letter}", f"4{letter}B", f"4{letter}iB", f"4 {letter.lower()}ib", f"4{letter.lower()}"):
            assert parse_size_bytes(text) == 4 << 10 * power, text
    assert [parse_size_bytes(text) for text in ("64 bytes", "1byte", "0.1KB")] == [64, 1, 102]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("4Gb", "size '4Gb': Gb may be bits; write 4GB for bytes"),
        ("1.5Mib", "size '1.5Mib': Mib may be bits; write 1.5MiB for bytes"),
        ("1.5B", "size '1.5B': finer than one byte"),
        ("4i", "size '4i': write a number and a unit (B, KB, MB, GB, TB; powers of 1024), as in 4KB"),
        (
            "-4GB",
            "size '-4GB': write a number and a unit (B, KB, MB, GB, TB; powers of 1024), as in 4KB; not negative",
        ),
    ],
)
def test_bad_sizes(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_size_bytes(text)
    assert str(caught.value) == line


# ---------------------------------------------------------------- front ends

NEEDED = ["join", "l.csv", "r.csv", "--on", "k", "--left-time", "t", "--right-time", "t", "-o", "count"]


def test_every_front_end_reads_the_same_durations(tmp_path: Any) -> None:
    path = tmp_path / "c.yaml"
    for text, us in (("1h30m", 5_400_000_000), ("5 seconds", 5_000_000), ("PT5M", 300_000_000), ("1w", US["w"])):
        path.write_text(f"join: {{lower: -{text}, upper: {text}}}\nmodule: {{window: 4G}}\n")
        configs = [load_config(path), join_config(build_parser().parse_args([*NEEDED, "--lower", f"-{text}", "--upper", text]))]
        configs.append(config_from_plain({"join": {"lower": f"-{text}", "upper": dt.timedelta(microseconds=us)}}))
        assert [(c.query.lower_us, c.query.upper_us) for c in configs] == [(-us, us)] * 3
        assert configs[0].module.window_bytes == 4 << 30
    path.write_text("join: {within: 1:30}\n")  # a number in YAML 1.1
    with pytest.raises(UserError, match=r"join.within: duration '1:30': write 1h30min or 1min30s"):
        load_config(path)


@pytest.mark.parametrize("within", [np.timedelta64(10, "s"), dt.timedelta(seconds=10), pd.Timedelta("10s"), "PT10S", "0m10s"])
def test_python_takes_durations_of_its_libraries(within: Any) -> None:
    left, right = pd.DataFrame({"k": [1, 1], "t": [0, 50]}), pd.DataFrame({"k": [1, 1], "t": [10, 61]})
    counted = swjoin.count(left, right, on="k", left_time="t", right_time="t", time_unit="s", within=within)
    assert counted.count == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--within", "5"], "--within: duration 5 has no unit; write 5us, 5ms, 5s, 5min or 5h"),
        (["--within", "1h", "--epoch", "1m30"], "--epoch: duration '1m30': write 1m30s"),
        (["--within", "1h", "--max-out-of-order", "5M"], "--max-out-of-order: duration '5M': M may be minutes or months"),
        (["--within", "1h", "--memory", "4Gb"], "--memory: size '4Gb': Gb may be bits; write 4GB"),
        (["--within", "1h", "--epoch", "-1s"], "cluster: distribution_epoch must not be negative"),
        (["--within", "1h", "--max-out-of-order", "-PT5M"], "time: max_out_of_order must not be negative"),
    ],
)
def test_the_command_line_names_the_option(words: list[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        join_config(build_parser().parse_args([*NEEDED, *words]))
    assert str(caught.value).startswith(line)


def test_the_tables_of_the_documents_are_right() -> None:
    section = (ROOT / "docs" / "semantics.md").read_text().split("## Durations and sizes")[1].split("\n## ")[0]
    accepted, refused = (re.findall(r"(?m)^\| (`.*)$", part) for part in section.split("can only be a mistake"))
    assert len(accepted) >= 5
    assert len(refused) >= 8

    def read(text: str) -> int:
        return parse_size_bytes(text) if re.search(r"[KMGT]?(B|b|bytes)$|^4K", text) else parse_duration_us(text)

    for row in accepted:
        for text in re.findall(r"`([^`]+)`", row.split("|")[0]):
            assert ("." in text and "(" not in text and text[0].isalpha()) or read(text), text
    for row in refused:
        wrong, _, write = row.rstrip(" |").split("|")
        assert all(read(text) for text in re.findall(r"`([^`]+)`", write))
        for text in re.findall(r"`([^`]+)`", wrong):
            with pytest.raises(UserError):
                read(text)

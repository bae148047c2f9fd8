"""One mistake, in the words of the front end that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

import swjoin
from swjoin.cli.main import main
from swjoin.config.loader import config_from_plain
from swjoin.config.run import ModuleConfig


def test_settings_are_spelled_as_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("k,t\n1,5\n")
    config = tmp_path / "run.yaml"
    side = f"{{path: {csv}, on: k, time: t}}"
    config.write_text(f"join: {{within: 1s}}\nleft: {side}\nright: {side}\n")
    line = f"left {csv}: time column t holds integers; say which unit with"
    times = ["--on", "k", "--left-time", "t", "--right-time", "t"]
    assert main(["join", str(csv), str(csv), *times, "--within", "1s", "-o", "count"]) == 2
    assert capsys.readouterr().err == f"swjoin: {line} --time-unit s|ms|us|ns\n"
    assert main(["run", str(config), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"swjoin: {line} left.time_unit: s|ms|us|ns\n"
    with pytest.raises(swjoin.UserError) as caught:
        swjoin.run(config, out=tmp_path / "second")
    assert str(caught.value) == f"{line} left.time_unit: s|ms|us|ns"
    with pytest.raises(swjoin.UserError, match=r"with time_unit='s' or 'ms' or 'us' or 'ns'$"):
        swjoin.join(csv, csv, on="k", left_time="t", right_time="t", within="1s")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--within", "5"], "--within: duration 5 has no unit; write 5us, 5ms, 5s, 5min or 5h"),
        (["--within", "1s", "--epoch", "5"], "--epoch: duration 5 has no unit; write 5us, 5ms, 5s, 5min or 5h"),
        (["--within", "1s", "--memory", "1KB"], "--memory must be at least 1MB"),
        (["--within", "1s", "--theta", "5"], "--theta: size 5 has no unit; write 5B, 5KB, 5MB or 5GB"),
        (["--within", "1s", "--max-out-of-order", "-1s"], "--max-out-of-order must not be negative"),
        (["--within", "1s", "--assume-timezone", "utc"], "--assume-timezone: 'utc' is no time zone; did you mean UTC?"),
        (["--within", "1s", "--pace", "realtime", "--epoch", "0"], "--epoch: realtime pace needs one above 0"),
        (["--within", "1s", "--left-on", "a", "--right-on", "b"], "give --on, or --left-on and --right-on: not all three"),
        (["--within", "1s", "--exclusive", ","], "--exclusive ,: write lower, upper, or lower,upper"),
    ],
)
def test_the_command_names_options(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--on", "k", "--left-time", "t", "--right-time", "t"]
    assert main(["join", "a.csv", "b.csv", *times, *words, "-o", "count"]) == 2
    assert capsys.readouterr().err == f"swjoin: {line}\n"


def test_sections_that_are_made_by_hand_name_keys() -> None:
    for made in (
        lambda: ModuleConfig(window_bytes=1),
        lambda: config_from_plain({"join": {"within": "1s"}, "module": {"window": "1KB"}}),
    ):
        with pytest.raises(swjoin.UserError, match=r"^module: window must be at least 1MB$"):
            made()
    side = {"assume_timezone": "utc"}
    with pytest.raises(swjoin.UserError, match=r"^left: assume_timezone: 'utc' is no time zone; did you mean UTC\?$"):
        config_from_plain({"join": {"within": "1s"}, "left": side})
    with pytest.raises(swjoin.UserError, match=r"^memory must be at least 1MB$"):
        swjoin.WindowJoin(on="k", left_time="t", right_time="t", within="1s", memory="1KB")

"""One mistake, in the words of the front end that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

import swjoin
from swjoin.cli.main import main


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

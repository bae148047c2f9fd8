"""`swjoin init` and `swjoin completion`: a first configuration that runs, and a shell that completes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cli.completion import completion_script
from swjoin.config.loader import config_from_plain, load_config, load_plain
from tests.config.test_json_schema import structure
from tests.support.limits import PROCESS_S

TRIPS = "user,started,km\n1,2026-01-01 00:00:00,3.5\n2,2026-01-01 00:20:00,8\n"
PAYMENTS = "user,paid,eur\n1,2026-01-01 00:30:00,7.25\n2,2026-01-01 03:10:00,15\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trips.csv").write_text(TRIPS)
    (tmp_path / "payments.csv").write_text(PAYMENTS)
    return tmp_path


def test_a_first_configuration_is_explained_and_runs(swjoin: Any, folder: Path) -> None:
    assert swjoin("init").code == 0
    assert swjoin("explain", "swjoin.yaml").code == 0
    done = swjoin("run", "swjoin.yaml", "--set", "workload.duration=1s", "--out", "run")
    assert done.code == 0, done.err
    assert "ledger            balanced" in done.out


def test_inputs_are_joined_by_the_columns_that_they_have(swjoin: Any, folder: Path) -> None:
    assert swjoin("init", "rides.yaml", "trips.csv", "payments.csv", "--within", "1h30m").code == 0
    config = load_config(folder / "rides.yaml")
    assert (config.left.key, config.left.time, config.right.time) == (("user",), "started", "paid")
    assert config.query.upper_us == 5_400_000_000
    assert swjoin("explain", "rides.yaml").code == 0
    assert swjoin("run", "rides.yaml", "--out", "run").code == 0
    rows = [row for path in (folder / "run" / "results").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert [row["user"] for row in rows] == [1]


@pytest.mark.parametrize("words", [[], ["trips.csv", "payments.csv"]])
def test_what_stands_in_comments_works_too(swjoin: Any, folder: Path, words: list[str]) -> None:
    assert swjoin("init", "c.yaml", *words).code == 0
    text = (folder / "c.yaml").read_text()
    assert structure(load_plain(folder / "c.yaml")) == []
    comments = re.findall(r"(?m)^ *# ((?!yaml-language)[a-z]+: [\[{\w].*)$", text)
    assert len(comments) >= 4
    for comment in comments:
        (folder / "c.yaml").write_text(re.sub(rf"(?m)^( *)# {re.escape(comment)}$", rf"\1{comment}", text))
        plain = load_plain(folder / "c.yaml")
        assert structure(plain) == []
        if ("left" not in comment and "right" not in comment) or words or "where" in comment:
            config_from_plain(plain)


def test_nothing_is_overwritten(swjoin: Any, folder: Path) -> None:
    (folder / "swjoin.yaml").write_text("mine")
    (folder / "link.yaml").symlink_to("nowhere")
    for name in ("swjoin.yaml", "link.yaml"):
        done = swjoin("init", name)
        assert (done.code, done.err) == (2, [f"swjoin: {name}: exists already and is not overwritten; name another file"])
    assert (folder / "swjoin.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trips.csv", "payments.csv"], "trips.csv: name a YAML file, such as trips.yaml; inputs follow it: FILE LEFT RIGHT"),
        (["a.yaml", "trips.csv"], "give both inputs, LEFT and RIGHT, or neither"),
        (["a.yaml", "trips.csv", "none.csv"], "none.csv: no such file or directory"),
        (["a.yaml", "trips.csv", "payments.csv", "--on", "usr"], "key column usr is missing; did you mean user?"),
        (
            ["a.yaml", "numbers.parquet", "payments.csv"],
            "no column holds timestamps; there are user (int64)",
        ),
        (["a.yaml", "numbers.parquet", "payments.csv", "--left-time", "ts"], "say which unit with --left-time-unit s|ms|us|ns"),
        (["a.yaml", "words.parquet", "payments.csv"], "is on both sides: left user (string), started"),
        (["a.yaml", "--within", "5"], "--within: duration 5 has no unit"),
        (["nowhere/a.yaml"], "nowhere/a.yaml: cannot be written"),
    ],
)
def test_one_line_says_what_is_missing(words: list[str], line: str, swjoin: Any, folder: Path) -> None:
    pq.write_table(pa.table({"user": [1], "ts": [5]}), folder / "numbers.parquet")
    times = pa.array([0], pa.timestamp("us"))
    pq.write_table(pa.table({"user": ["a"], "started": times}), folder / "words.parquet")
    done = swjoin("init", *words)
    assert done.code in (1, 2)
    assert len(done.err) == 1
    assert line in done.err[0]
    assert not (folder / "a.yaml").exists()


# ---------------------------------------------------------------- completion


def completed(words: str, folder: Path) -> set[str]:
    """What bash offers for the last of these words."""
    script = folder / "swjoin.bash"
    if not script.exists():
        script.write_text(completion_script("bash"))
    typed = words.split(" ")
    code = (
        f"source {script}; COMP_WORDS=({' '.join(repr(w) for w in typed)}); COMP_CWORD={len(typed) - 1}; "
        "name=$(complete -p swjoin | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        f"$name swjoin {typed[-1]!r} {typed[-2]!r} 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=folder)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_values(folder: Path) -> None:
    assert {"join", "run", "init", "schema"} <= completed("swjoin ", folder)
    assert completed("swjoin ver", folder) == {"verify"}
    assert completed("swjoin join --with", folder) == {"--within"}
    assert {"--left-on", "--left-time"} <= completed("swjoin join --left-", folder)
    assert completed("swjoin join --how s", folder) == {"semi"}
    assert "_rank" not in completed("swjoin ", folder)
    assert "trips.csv" in completed("swjoin join tri", folder)


def test_scripts_of_other_shells(swjoin: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "#compdef swjoin" in swjoin("completion", "zsh").out
    assert swjoin("completion", "fish").code == 2
    if shutil.which("zsh"):
        (folder / "_swjoin").write_text(completion_script("zsh"))
        subprocess.run(["zsh", "-n", folder / "_swjoin"], check=True, timeout=PROCESS_S)
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = swjoin("completion", "bash")
    assert done.code == 2
    remedy = "install swjoin with its completion extra: pip install '.[completion]' in a checkout"
    assert done.err == [f"swjoin: completion: shtab is missing; {remedy}"]

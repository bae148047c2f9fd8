"""A configuration says what the command line says: options of `swjoin join` under their own names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from swjoin.cli.join import join_config
from swjoin.cli.main import build_parser
from swjoin.config.loader import apply_overrides, config_from_plain, load_config
from swjoin.config.option_keys import JOIN_KEYS, OPTION_KEYS
from swjoin.core.errors import UserError
from tests.conftest import ROOT

# Options in several combinations, each as on the command line; their values are YAML, too.
COMMANDS = [
    "--on user --left-time a --right-time b --within 1h30m",
    "--on user day --left-time a --right-time b --lower -1h --upper 2h --exclusive upper --how left",
    "--left-on x --right-on y --left-time a --right-time b --last 100,50 --where left_v<right_v",
    "--on k --left-time a --right-time b --within 1s --time-unit ms --left-id i --right-id j --columns v w",
    "--on k --left-time a --right-time b --within 1s --left-time-unit s --right-time-unit us --assume-timezone Europe/Berlin",
    "--on k --left-time a --right-time b --within 1s --max-out-of-order 10s --late drop --epoch 250ms --theta 64KB --memory 4G",
    "--on k --left-time a --right-time b --lower -1s --upper 1s --exclusive lower,upper",
    "--on k --left-time a --right-time b --within 1s --partitions 30 --communication synchronous",
    "--on k --left-time a --right-time b --within 1s --sinks 3 --gateways 2 --routing hash",
    "--on k --left-time a --right-time b --within 1s --sort",
    "--on k --left-time a --right-time b --within 1s --match last --how left",
    "--on k --left-time a --right-time b --within 1s --csv delimiter=;",
    "--on k --left-time a --right-time b --within 1s --left-csv delimiter=| --right-csv encoding=latin-1",
]
SAME = ("queries", "left", "right", "time")


def given(command: str) -> dict[str, Any]:
    """The options as a mapping: `--left-time a` is `left_time: a`."""
    found = {}
    for name, values in re.findall(r"--([a-z-]+)((?: (?!--)\S+)*)", command):
        words = values.split() or ["true"]
        value = dict([words[0].split("=")]) if name.endswith("csv") else yaml.safe_load(words[0])
        found[name.replace("-", "_")] = words if len(words) > 1 else value
    return found


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("where", ["join", "top", "set"])
def test_options_mean_in_a_file_what_they_mean_to_the_command(command: str, where: str, tmp_path: Path) -> None:
    expected = join_config(build_parser().parse_args(["join", "l.csv", "r.csv", "-o", "o.csv", *command.split()]))
    options, paths = given(command), {"left": {"path": "l.csv"}, "right": {"path": "r.csv"}}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**paths, "join": options} if where == "join" else {**paths, **options}))
    overrides = []
    if where == "set":
        path.write_text(yaml.safe_dump(paths))
        overrides = [f"{name}={yaml.safe_dump(value, default_flow_style=True)}" for name, value in options.items()]
    found = load_config(path, overrides)
    assert [getattr(found, name) for name in SAME] == [getattr(expected, name) for name in SAME]
    for name, section, field in (
        ("epoch", "cluster", "distribution_epoch_us"),
        ("partitions", "cluster", "partition_count"),
        ("communication", "cluster", "communication"),
        ("routing", "cluster", "routing"),
        ("gateways", "cluster", "gateways"),
        ("sinks", "cluster", "sinks"),
        ("theta", "module", "theta_bytes"),
        ("memory", "module", "window_bytes"),
    ):
        if name in options:
            assert getattr(getattr(found, section), field) == getattr(getattr(expected, section), field)


def test_every_option_about_the_join_is_a_key() -> None:
    command = next(a.choices["join"] for a in build_parser()._actions if isinstance(a.choices, dict))
    options = {a.dest for a in command._actions if a.option_strings}
    others = {"help", "ranks", "threads", "out", "format", "report", "pace"}  # of the command; pace is a key as it is
    others |= {"agg", "group_by", "every", "units"}  # of plans, which a query of a configuration is
    others |= {"verbose", "quiet", "log_json", "debug"}
    assert {*JOIN_KEYS, *OPTION_KEYS} == (options - others) | {"strategy"}  # of queries
    assert {name for command in COMMANDS for name in given(command)} == options - others
    text = (ROOT / "mpi_configs" / "README.md").read_text()
    assert all(f"`{name}`" in text for name in OPTION_KEYS if name not in ("strategy", "routing"))
    example = config_from_plain(yaml.safe_load(re.findall(r"`(join: \{on: [^`]+)`", text)[0].replace("on:", "'on':")))
    assert (example.left.key, example.left.time, example.right.time) == (("user",), "started", "paid")
    assert example.time.late == "drop"


@pytest.mark.parametrize(
    ("plain", "line"),
    [
        ({"join": {"on": "a", "within": "1s"}, "on": "b"}, "join.on: given twice, also as on"),
        ({"join": {"on": "a", "within": "1s"}, "left": {"key": "b"}}, "join.on: given twice, also as left.key"),
        ({"join": {"within": "1s"}, "left": {"on": "b"}, "left_on": "b"}, "left_on: given twice, also as left.on"),
        ({"join": {"within": "1s", "late": "drop"}, "time": {"late": "side"}}, "join.late: given twice, also as time.late"),
        ({"within": "1s", "join": {"within": "2s"}}, "within: given twice, also as join.within"),
        ({"within": 5}, "within: duration 5 has no unit; write 5us, 5ms, 5s, 5min or 5h"),
        ({"within": "1s", "epoch": "5M"}, "epoch: duration '5M': M may be minutes or months"),
        ({"join": {"within": "1s", "memory": "4Gb"}}, "join.memory: size '4Gb': Gb may be bits; write 4GB"),
        ({"join": {"within": "1s", "late": "dorp"}}, "join.late: 'dorp' is not known; did you mean drop?"),
        ({"withn": "1s"}, "withn: unknown configuration key; did you mean within?"),
        ({"join": {"within": "1s", "left-time": "a"}}, "join.left-time: unknown configuration key; did you mean left_time?"),
        ({"join": {"within": "1s", "onn": "a"}}, "join.onn: unknown configuration key; did you mean on?"),
        ({"join": {"within": "1s"}, "out": "x.csv"}, "out: unknown configuration key; did you mean sink?"),
        ({"join": {"within": "1s"}, "left": 5, "on": "k"}, "left: expected a mapping, got 5"),
        ({"join": 5, "within": "1s"}, "join: expected a mapping, got 5"),
    ],
)
def test_mistakes_are_named_as_they_were_typed(plain: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_plain(plain)
    assert str(caught.value).startswith(line)


def test_settings_replace_keys_of_other_spellings(tmp_path: Path) -> None:
    base = {"join": {"on": "a", "within": "1s", "late": "drop"}, "max_out_of_order": "1s"}
    left = config_from_plain(apply_overrides(base, ["left.key=b", "time.late=side", "max_out_of_order=2s"]))
    assert (left.left.key, left.right.key, left.time.late, left.time.max_out_of_order_us) == (("b",), ("a",), "side", 2_000_000)
    both = config_from_plain(apply_overrides({"within": "1s", "left": {"on": "x"}, "right": {"key": "y"}}, ["on=[a, b]"]))
    assert both.left.key == both.right.key == ("a", "b")
    assert config_from_plain(apply_overrides(base, [])) == config_from_plain(base)
    known = r"known: .*\bjoin\b.*\bleft_time\b.*\bon\b.*\bwithin\b"
    with pytest.raises(UserError, match=known):
        config_from_plain({"xyzzy": 1, "within": "1s"})


def test_options_beside_the_defaults_of_live_streams(tmp_path: Path) -> None:
    path = tmp_path / "live.yaml"
    side = "{flight: {}, schema: 'user: int64, ts: timestamp[us]'}"
    path.write_text(f"on: user\nwithin: 1s\nlate: drop\nleft: {side}\nright: {side}\n")
    config = load_config(path)
    assert (config.time.late, config.left.key, config.pace) == ("drop", ("user",), "realtime")

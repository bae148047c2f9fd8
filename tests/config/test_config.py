"""Configurations: units, unknown keys with the nearest suggestion, overrides, digest."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swjoin.config.job import Job
from swjoin.config.loader import apply_overrides, config_from_plain, load_config, stream_from_plain
from swjoin.config.run import RunConfig, StreamConfig, digest, to_plain
from swjoin.connectors.files.inputs import list_files
from swjoin.core.errors import UserError
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.runtime.open import open_job_sources
from swjoin.sweeps.experiment import KEYS, load_experiment
from tests.conftest import ROOT

MINIMAL = {"join": {"within": "5s"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250_000),
        ("6h", 21_600_000_000),
        ("-10us", -10),
        ("1.5s", 1_500_000),
        ("2min", 120_000_000),
        ("1d", 86_400_000_000),
        (0, 0),
        ("0", 0),
        (0.0, 0),
    ],
)
def test_durations(text: str | int, expected: int) -> None:
    assert parse_duration_us(text) == expected


@pytest.mark.parametrize("text", ["5", "5 parsecs", "s", "0.0000001s", "", "1e3s", True, None, "999999999999d"])
def test_bad_durations(text: object) -> None:
    with pytest.raises(UserError, match="duration"):
        parse_duration_us(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (1, "duration 1 has no unit; write 1us, 1ms, 1s, 1min or 1h"),
        (" -30 ", "duration -30 has no unit; write -30us, -30ms, -30s, -30min or -30h"),
        (1.5, "duration 1.5 has no unit; write 1.5ms, 1.5s, 1.5min or 1.5h"),
        (1 << 70, "duration: a number beyond 64 bits"),
    ],
)
def test_durations_without_a_unit_are_refused(value: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_duration_us(value)
    assert str(caught.value) == line


@given(st.integers(-(10**12), 10**12))
def test_durations_round_trip(value: int) -> None:
    assert parse_duration_us(f"{value}us") == value


def test_sizes() -> None:
    assert [parse_size_bytes(t) for t in ("64B", "4KB", "1.5MB", "2GB", 0, "0")] == [64, 4096, 1572864, 2 << 30, 0, 0]
    with pytest.raises(UserError, match="size '4 PB'"):
        parse_size_bytes("4 PB")
    for value in (4096, "4096"):
        with pytest.raises(UserError, match="size 4096 has no unit; write 4096B, 4096KB, 4096MB or 4096GB"):
            parse_size_bytes(value)
    assert [parse_size_bytes(t) for t in ("4KiB", "4kib", "1.5MiB", "2 GiB")] == [4096, 4096, 1572864, 2 << 30]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({**MINIMAL, "clster": {}}, "clster: unknown configuration key; did you mean cluster"),
        ({**MINIMAL, "cluster": {"partition_cuont": 4}}, "cluster.partition_cuont: .* did you mean partition_count"),
        ({**MINIMAL, "pace": "realtme"}, "pace: 'realtme' is not known; did you mean realtime"),
        ({"join": {"lower": "5s", "upper": "1s"}}, "lower .* is above upper"),
        ({"join": {"within": "-5s"}}, "a window cannot be negative"),
        ({"join": {"within": "5s", "upper": "1s"}}, "not both"),
        ({"join": {"within": 1}}, r"^join\.within: duration 1 has no unit; write 1us, 1ms"),
        ({"join": {"within": "1"}}, r"^join\.within: duration 1 has no unit"),
        ({"join": {"lower": -5, "upper": "1s"}}, r"^join\.lower: duration -5 has no unit; write -5us"),
        ({"join": {"lower_us": "5", "upper": "1s"}}, r"^join\.lower_us: duration 5 has no unit"),
        ({**MINIMAL, "module": {"theta": 32768}}, r"^module\.theta: size 32768 has no unit; write 32768B"),
        (
            {**MINIMAL, "nodes": {"changes": [{"slave": 0, "at": 5, "speed": 0.5}]}},
            r"nodes\.changes\.0\.at: duration 5 has no unit",
        ),
        ({"join": {"withn": "5s"}}, r"^join\.withn: unknown configuration key; did you mean within\?"),
        ({"join": {"qqq": 1}}, r"^join\.qqq: .* known: .*lower, lower_us, .*, within$"),
        ({**MINIMAL, "left": {"onn": "a"}}, r"^left\.onn: unknown configuration key; did you mean on\?"),
        ({**MINIMAL, "left": {"file": "a"}}, r"^left\.file: unknown configuration key; did you mean path\?"),
        ({**MINIMAL, "left": {"on": "a", "key": "b"}}, r"^left\.key: given twice, also as on"),
        ({**MINIMAL, "queries": [{"within": "1s"}]}, r"^queries: given twice, also as join"),
        ({**MINIMAL, "left": {"key": ["a", "b", "a"]}}, "join columns: a is named twice on one side; name each column once"),
        ({**MINIMAL, "sink": {"ids": "maybe"}}, r"^sink\.ids: expected bool, got 'maybe'"),
        ({"join": {"lower": "5s"}}, "^join: the window is missing: give within, or lower and upper, or last$"),
        ({}, "join is missing"),
        ({**MINIMAL, "seed": "one"}, "seed: expected int, got 'one'"),
        ({**MINIMAL, "cluster": {"distribution_epoch": "2s", "distribution_epoch_us": 1}}, "given twice"),
        ({**MINIMAL, "cluster": 5}, "cluster: expected a mapping"),
        ({**MINIMAL, "cluster": {"failure_timeout": "500ms"}}, "failure_timeout must be 0 \\(off\\), or 1s or more"),
        ({**MINIMAL, "time": {"model": "arrival"}}, "arrival needs pace realtime"),
        ({**MINIMAL, "pace": "realtime", "cluster": {"distribution_epoch": 0}}, "needs a distribution_epoch"),
        ({**MINIMAL, "left": {"path": "x.parquet"}}, "give both paths, or neither"),
        ({**MINIMAL, "module": {"theta": "1KB"}}, "theta must be at least one block"),
        ({**MINIMAL, "workload": {"bias": 1.5}}, "bias must lie in"),
        ({"queries": [{"within": "1s"}, {"within": "2s"}]}, "2 queries given"),
    ],
)
def test_bad_configurations(plain: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config_from_plain(plain)
    assert "\n" not in str(caught.value)


def test_units_may_stand_in_the_value_or_in_the_key() -> None:
    one = config_from_plain({**MINIMAL, "cluster": {"distribution_epoch": "2s"}, "module": {"theta": "1.5MB"}})
    two = config_from_plain({**MINIMAL, "cluster": {"distribution_epoch_us": 2_000_000}, "module": {"theta_bytes": 1572864}})
    assert one == two
    assert digest(one) == digest(two)
    assert digest(one) != digest(config_from_plain({**MINIMAL, "seed": 2}))


SPANS = st.sampled_from(sorted(key for key, unit in KEYS.items() if unit == "s" and key.endswith("_us") and "join" not in key))


@given(SPANS, st.integers(1, 10**12))
def test_numbers_need_a_unit_in_the_key_or_in_the_value(key: str, value: int) -> None:
    """Whatever is accepted means what it says, and comes back from its plain form."""
    short = key.removesuffix("_us")
    with pytest.raises(UserError, match=f"{short.replace('.', '[.]')}: duration {value} has no unit"):
        config_from_plain(apply_overrides(MINIMAL, [f"{short}={value}"]))
    found = []
    for setting in (f"{key}={value}", f"{short}={value}us", f'{short}=" {value} us"'):
        with contextlib.suppress(UserError):  # of a value that this key cannot have
            found.append(config_from_plain(apply_overrides(MINIMAL, [setting])))
    assert len(found) in (0, 3)
    for config in found:
        assert config == found[0]
        assert config_from_plain(json.loads(json.dumps(to_plain(config)))) == config
        assert load_text(yaml.safe_dump(to_plain(config))) == config


def load_text(text: str) -> RunConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(text)
        return load_config(path)


def test_words_are_words_and_switches_are_switches() -> None:
    """YAML 1.1 makes truth values of on, off, yes and no."""
    config = load_text("join: {within: 1s, name: on}\nleft: {on: no, time: yes}\nright: {key: [off, 1]}".replace("1]", "'1']"))
    assert (config.query.name, config.left.key, config.left.time, config.right.key) == ("on", ("no",), "yes", ("off", "1"))
    for word, truth in {"yes": True, "On": True, "true": True, "no": False, "OFF": False, "False": False}.items():
        assert load_text(f"join: {{within: 1s}}\nsink: {{ids: {word}}}").sink.ids is truth
    assert config_from_plain({**MINIMAL, "left": {"on": ["a", "b"]}}).left.key == ("a", "b")
    merged = apply_overrides({"left": {"key": "a"}}, ["left.on=b"])
    assert merged == {"left": {"on": "b"}}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("join: {within: 1s}\nseed: 1\njoin: {within: 2s}", "line 3: join is given twice, first in line 1"),
        ("join: {within: 1s, within: 2s}", "line 1: within is given twice"),
        ("join: {within: 1s}\nleft: {no: 1}", "left.no: unknown configuration key"),
        ("join: {within: 1s}\nleft: {true: 1}", "left.true: unknown configuration key"),
        ("join: {within: 1s}\n1: 2", ": 1: unknown configuration key"),
        ("question: why?\naxes: {slaves: [1]}", "is an experiment, not the configuration of a run; run it with: swjoin sweep"),
    ],
)
def test_keys_are_quoted_as_they_were_typed(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        load_text(text)
    assert line in str(caught.value)


def test_merge_keys_may_be_overridden() -> None:
    """`<<` is no key, and what it brings is no second one."""
    text = "join: {within: 1s}\nleft: {kafka: &k {<<: &d {servers: 'a:1', topic: t}, topic: u}, schema: 'ts: int64'}\n"
    text += "right: {kafka: {<<: *k, topic: v}, schema: 'ts: int64'}\nserve: {listen: null}\n"
    config = load_text(text)
    assert config.left.kafka is not None
    assert config.right.kafka is not None
    assert (config.left.kafka.topic, config.right.kafka.topic, config.right.kafka.servers) == ("u", "v", "a:1")


def test_an_experiment_and_a_configuration_are_told_apart() -> None:
    with pytest.raises(UserError, match=r"fig07.yaml: is an experiment, .* swjoin sweep .*fig07.yaml"):
        load_config(ROOT / "experiments" / "fig07.yaml")
    with pytest.raises(UserError, match=r"local.yaml: is the configuration of a run, .* swjoin run .*local.yaml"):
        load_experiment(ROOT / "mpi_configs" / "local.yaml")


def test_a_path_says_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    path = Path("conf/c.yaml")
    path.write_text("join: {within: 1s}\nleft: {path: l.csv}\nright: {path: r.csv}")
    config = load_config(path)  # whether the files are there is seen when they are opened
    (tmp_path / "conf" / "l.csv").write_text("key,ts\n")
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"conf/c.yaml: left.path: l.csv: no such file or directory (relative to the working directory, {tmp_path}); "
        "it lies beside the configuration: write conf/l.csv, or start swjoin in conf"
    )
    with pytest.raises(UserError, match=rf"l.csv: no such file or directory \(relative to the working directory, {tmp_path}\)"):
        open_job_sources(Job(config, None, True, None, None, "test"))
    with pytest.raises(UserError, match=r"/none.csv: no such file or directory$"):
        list_files(Path("/none.csv"))


def test_defaults_are_fast_and_the_papers_configuration_is_the_papers() -> None:
    config = config_from_plain(MINIMAL)
    assert (config.cluster.partition_count, config.module.theta_bytes, config.module.block_tuples) == (60, 32_768, 64)
    for name in ("paper", "paper_scaled"):
        paper = load_config(ROOT / "mpi_configs" / f"{name}.yaml")
        assert (paper.module.theta_bytes, paper.module.block_tuples) == (1_572_864, 64)
        assert paper.module.stream_buffer_bytes == 1 << 20
        assert paper.cluster.distribution_epoch_us == {"paper": 2_000_000, "paper_scaled": 200_000}[name]


@pytest.mark.parametrize(
    ("sections", "epoch_us"),
    [
        ({}, 0),
        ({"pace": "realtime"}, 200_000),
        ({"reorganization": {"policy": "balanced"}}, 200_000),
        ({"cluster": {"sub_group_count": 2}}, 200_000),
        (
            {
                **{
                    side: {"flight": {}, "schema": "k: int64, t: timestamp[us]", "key": "k", "time": "t"}
                    for side in ("left", "right")
                },
                "serve": {"listen": "127.0.0.1:0"},
                "time": {"late": "drop"},
            },
            200_000,
        ),
        ({"pace": "realtime", "cluster": {"distribution_epoch": "3s"}}, 3_000_000),
    ],
)
def test_an_epoch_that_is_left_out_is_short_or_by_the_number_of_tuples(sections: dict[str, Any], epoch_us: int) -> None:
    config = config_from_plain({**MINIMAL, **sections})
    assert config.cluster.distribution_epoch_us == epoch_us
    assert config_from_plain(to_plain(config)) == config


def test_overrides() -> None:
    data = {"join": {"within": "5s"}, "cluster": {"distribution_epoch": "2s"}}
    merged = apply_overrides(data, ["cluster.distribution_epoch=10ms", "left.key=[a, b]", "seed=7"])
    config = config_from_plain(merged)
    assert (config.cluster.distribution_epoch_us, config.left.key, config.seed) == (10_000, ("a", "b"), 7)
    assert data["cluster"] == {"distribution_epoch": "2s"}
    assert config_from_plain(apply_overrides(data, ["cluster.distribution_epoch_us=5"])).cluster.distribution_epoch_us == 5
    for bad in ("seed", "=3", ".=5", "seed.=5", "seed.x=1", "seed=["):
        with pytest.raises(UserError, match="--set"):
            apply_overrides({"seed": 1}, [bad])


def test_plain_round_trip() -> None:
    config = config_from_plain({**MINIMAL, "left": {"key": ["a", "b"]}, "workload": {"schedule": {"kind": "sine"}}})
    assert config_from_plain(to_plain(config)) == config
    assert isinstance(config, RunConfig)


@pytest.mark.parametrize("path", sorted((ROOT / "mpi_configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_configuration_in_the_repository_loads(path: Path) -> None:
    assert load_config(path).query.bounds.upper_us > 0


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(UserError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "evil.yaml").write_text("!!python/object/apply:os.system [true]")
    with pytest.raises(UserError, match="not valid YAML"):
        load_config(tmp_path / "evil.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="expected a mapping"):
        load_config(tmp_path / "list.yaml")


def test_a_job_travels_as_text() -> None:
    config = config_from_plain({"join": {"within": "5s"}})
    job = Job(config, Path("out"), True, Path("run"), None, "test", resumes=True, spelling="options")
    assert Job.from_json(job.to_json()) == job
    assert (job.plan, job.config.inputs) == (None, ())


def test_a_job_of_a_plan_travels_as_text() -> None:
    text = {"types": "k: string"}
    inputs = (
        StreamConfig("a.parquet", (), "at", "ms", "id"),
        StreamConfig(("b.csv", "c.csv"), (), "ts", assume_timezone="Europe/Berlin"),
        stream_from_plain({"path": "d.csv", "on": [], "csv": text}, "d"),
    )
    plan = {"nodes": [{"kind": "source", "name": "a", "columns": [["at", "int64"]], "time": "at"}]}
    config = dataclasses.replace(config_from_plain({"join": {"within": "5s"}}), inputs=inputs)
    job = Job(config, None, True, None, None, "test", plan=plan)
    assert Job.from_json(job.to_json()) == job


def test_a_wrong_input_of_a_job_is_named() -> None:
    config = dataclasses.replace(config_from_plain({"join": {"within": "5s"}}), inputs=(StreamConfig("a", ()),))
    plain = json.loads(Job(config, None, True, None, None, "test").to_json())
    plain["config"]["inputs"][0]["tine"] = "ts"
    with pytest.raises(UserError, match=r"^inputs\.0\.tine: unknown configuration key; did you mean time\?$"):
        Job.from_json(json.dumps(plain))


@pytest.mark.parametrize("side", ["left", "right"])
def test_only_inputs_of_plans_have_no_key(side: str) -> None:
    assert stream_from_plain({"key": []}, side).key == ()
    with pytest.raises(UserError, match=f"^{side}: stream: key names no column$"):
        config_from_plain({"join": {"within": "5s"}, side: {"key": []}})

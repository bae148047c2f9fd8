"""Configurations: units, unknown keys with the nearest suggestion, overrides, digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.config import RunConfig, digest, to_plain
from swjoin.errors import UserError
from swjoin.loading import apply_overrides, config_from_plain, load_config
from swjoin.units import parse_duration_us, parse_size_bytes
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
        (7, 7),
    ],
)
def test_durations(text: str | int, expected: int) -> None:
    assert parse_duration_us(text) == expected


@pytest.mark.parametrize("text", ["5", "5 parsecs", "s", "0.0000001s", "", "1e3s", True, None, "999999999999d"])
def test_bad_durations(text: object) -> None:
    with pytest.raises(UserError, match="duration"):
        parse_duration_us(text)  # type: ignore[arg-type]


@given(st.integers(-(10**12), 10**12))
def test_durations_round_trip(value: int) -> None:
    assert parse_duration_us(f"{value}us") == value


def test_sizes() -> None:
    assert [parse_size_bytes(t) for t in ("64B", "4KB", "1.5MB", "2GB", 100)] == [64, 4096, 1572864, 2 << 30, 100]
    with pytest.raises(UserError, match="size '4 PB'"):
        parse_size_bytes("4 PB")


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({**MINIMAL, "clster": {}}, "clster: unknown configuration key; did you mean cluster"),
        ({**MINIMAL, "cluster": {"partition_cuont": 4}}, "cluster.partition_cuont: .* did you mean partition_count"),
        ({**MINIMAL, "pace": "realtme"}, "pace: 'realtme' is not known; did you mean realtime"),
        ({"join": {"lower": "5s", "upper": "1s"}}, "lower .* is above upper"),
        ({"join": {"within": "-5s"}}, "a window cannot be negative"),
        ({"join": {"within": "5s", "upper": "1s"}}, "not both"),
        ({"join": {"lower": "5s"}}, "upper is missing"),
        ({}, "queries is missing"),
        ({**MINIMAL, "seed": "one"}, "seed: expected int, got 'one'"),
        ({**MINIMAL, "cluster": {"distribution_epoch": "2s", "distribution_epoch_us": 1}}, "given twice"),
        ({**MINIMAL, "cluster": 5}, "cluster: expected a mapping"),
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


def test_defaults_are_the_papers() -> None:
    config = config_from_plain(MINIMAL)
    assert (config.cluster.partition_count, config.cluster.distribution_epoch_us) == (60, 2_000_000)
    assert (config.module.theta_bytes, config.module.block_tuples) == (1_572_864, 64)
    assert config.module.stream_buffer_bytes == 1 << 20


def test_overrides() -> None:
    data = {"join": {"within": "5s"}, "cluster": {"distribution_epoch": "2s"}}
    merged = apply_overrides(data, ["cluster.distribution_epoch=10ms", "left.key=[a, b]", "seed=7"])
    config = config_from_plain(merged)
    assert (config.cluster.distribution_epoch_us, config.left.key, config.seed) == (10_000, ("a", "b"), 7)
    assert data["cluster"] == {"distribution_epoch": "2s"}
    assert config_from_plain(apply_overrides(data, ["cluster.distribution_epoch_us=5"])).cluster.distribution_epoch_us == 5
    for bad in ("seed", "=3", "seed.x=1", "seed=["):
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

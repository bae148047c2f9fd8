"""The JSON Schema: what the loader accepts is valid, and what it refuses for its structure is not."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swjoin.cli.main import main
from swjoin.config.json_schema import json_schema
from swjoin.config.loader import apply_overrides, config_from_plain, load_plain
from swjoin.config.run import to_plain
from swjoin.core.errors import UserError
from swjoin.core.units import duration_pattern, parse_duration_us, parse_size_bytes, size_pattern
from swjoin.sweeps.experiment import load_experiment
from tests.conftest import ROOT
from tests.core.test_units import NAMES

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
CONFIGS = sorted((ROOT / "mpi_configs").glob("*.yaml"))
LIVE = {
    "join": {"on": "user", "within": "1h30m", "last": None, "how": "left", "exclusive": "upper"},
    "left": {"kafka": {"servers": "a:1", "topic": "t", "properties": ["x=y"]}, "schema": "user: int64, ts: int64"},
    "right": {"flight": {"producers": 1}, "schema": "user: int64, ts: int64", "time_unit": "us", "columns": ["v"]},
    "late": "drop",
    "pace": "realtime",
    "on_overload": "shed",
    "nodes": {"speed": [1, 0.5], "changes": [{"slave": 0, "at": "5s", "speed": 0.5}]},
    "sink": {"kind": "kafka", "kafka": {"servers": "a:1", "topic": "t"}, "ids": "no"},
    "serve": {"listen": "127.0.0.1:0", "message": "16MiB", "patience_us": 5},
    "checkpoint": None,
}


def structure(plain: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(plain)]


def test_the_schema_is_one_and_every_key_is_described() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)

    def undescribed(path: str, node: dict[str, Any]) -> Iterator[str]:
        for key, value in node.get("properties", {}).items():
            if not value.get("description"):
                yield path + key
            for form in (value, *value.get("anyOf", ())):
                yield from undescribed(f"{path}{key}.", form)

    assert list(undescribed("", SCHEMA)) == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_configurations_are_valid_and_so_is_their_plain_form(path: Path) -> None:
    plain = load_plain(path)
    assert structure(plain) == []
    assert structure(to_plain(config_from_plain(plain))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.name)
def test_bases_of_experiments_are_valid_with_their_settings(path: Path) -> None:
    design = load_experiment(path).source
    settings = [f"{key}={json.dumps(value)}" for key, value in design.settings if key != "slaves"]
    assert structure(apply_overrides(design.base_plain, settings)) == []


def test_a_live_configuration_with_names_of_options() -> None:
    assert structure(LIVE) == []
    config_from_plain(LIVE)


def test_a_query_over_inputs() -> None:
    """Of the document on queries, which a test runs."""
    blocks = re.findall(r"(?s)```yaml\n(queries:.*?)```", (ROOT / "docs" / "queries.md").read_text())
    plain, with_function = map(yaml.safe_load, blocks)
    assert structure(plain) == structure(with_function) == []
    functions = with_function["queries"][0]["functions"]
    assert structure({"queries": [{"sql": "SELECT", "functions": functions | {"other": {"call": "module:function"}}}]}) != []
    assert structure(plain | {"inputs": {"trips": {"path": "x", "key": "k"}}}) != []
    assert structure(plain | {"queries": [{"sqll": "SELECT"}]}) != []


def test_the_example_of_the_documents_is_valid() -> None:
    text = (ROOT / "mpi_configs" / "README.md").read_text()
    block = re.findall(r"(?s)```yaml\n(# yaml-language-server: \$schema=swjoin.schema.json\n.*?)```", text)[0]
    plain = yaml.load(block, yaml.BaseLoader)  # all text, as `on` is in YAML 1.2
    assert structure(plain) == []
    assert config_from_plain(plain).left.key == ("user",)


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a mapping or a value lies."""
    yield path
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def mutations(plain: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key misspelled, every value of another kind, every unknown word, every number without its unit."""
    for path in places(plain):
        if not path:
            continue
        for wrong in ("key", {"a": 1}, [[1]], "no such word", 5, 1.5, True, None):
            other = copy.deepcopy(plain)
            node = other
            for part in path[:-1]:
                node = node[part]
            if wrong == "key" and isinstance(node, dict):
                node[f"{path[-1]}x"] = node.pop(path[-1])
            else:
                node[path[-1]] = wrong
            yield f"{path} {wrong!r}", other


STRUCTURAL = (
    r"unknown configuration key|is not known|expected a |expected (int|float|str|bool)|has no unit|write a number and a unit"
    r"|(servers|topic|slave|speed|at_us|join) is missing"
)


@pytest.mark.parametrize("plain", [*map(load_plain, CONFIGS), LIVE], ids=[*(p.name for p in CONFIGS), "live"])
def test_what_the_loader_refuses_for_its_structure_is_invalid(plain: dict[str, Any]) -> None:
    refused = 0
    for what, mutated in mutations(plain):
        line = ""
        try:
            config_from_plain(mutated)
        except UserError as error:
            line = str(error)
        if not line or re.search(STRUCTURAL, line):
            refused += bool(line)
            assert (structure(mutated) == []) == (not line), f"{what}: {line}"
    assert refused > 10


WORDS = [name for names in NAMES.values() for name in names]
OTHERS = ["1", "30", "1.5", " ", "-", "+", "P", "T", "M", "H", "D", "B", "K", "Gi", "b"]
TEXTS = st.lists(st.sampled_from([*WORDS, *OTHERS]), max_size=6)


@given(TEXTS.map("".join))
def test_patterns_let_everything_pass_that_is_read(text: str) -> None:
    for parse, pattern in ((parse_duration_us, duration_pattern()), (parse_size_bytes, size_pattern())):
        try:
            parse(text)
        except UserError:
            continue
        assert re.search(pattern, text), text


@pytest.mark.parametrize("text", ["5", "1m30", "5M", "30m1h", "1:30", "P1M", "P", "1 month", "5 parsecs", "1,5s", ""])
def test_patterns_mark_durations_that_are_refused(text: str) -> None:
    assert not re.search(duration_pattern(), text)
    assert structure({"join": {"within": text}}) != []


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA

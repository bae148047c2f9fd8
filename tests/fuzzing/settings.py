"""Target `yaml`: configurations, experiments and costs, spoilt as text, token by token, and value by value.

What: `YamlTarget`.
Why: a configuration decides for hours of many machines; it is understood or refused, and never run as anything else.
Stays out: whether a configuration is sensible (`swjoin.config.run`).

A configuration that is accepted must be what the file says: values that stand there as they are used are compared with another
reading of the file, and its plain form must give the same configuration again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import yaml

from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import RunConfig, digest, to_plain
from swjoin.core.errors import SwjoinError
from swjoin.forecast.costs import PRESETS as COSTS
from swjoin.forecast.costs import CostModel, load_costs, save_costs
from swjoin.sweeps.experiment import Experiment, load_experiment
from tests.fuzzing.harness import ROOT, Wrong, check_refusal
from tests.fuzzing.mutations import spoil_bytes, spoil_plain

_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_TOKENS = (
    *(
        "&a ",
        "*a",
        "<<: *a\n",
        "!!python/object/apply:os.system [date] ",
        "!!python/name:os.system ",
        "!!binary x",
        "!!set {a}",
    ),
    *("!!timestamp x", "!!int x", "!!int ''", "!!float x", "!!bool x", "!!null x", "!!omap [a: 1]", "!!pairs [a: 1]", "!!str "),
    *(
        "!x ",
        "!!merge ",
        "{",
        "[",
        "}",
        "]",
        "- ",
        "? ",
        ": ",
        "|\n",
        ">\n",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "\t",
        "#",
        "'",
        '"',
    ),
    *("1e999", ".nan", ".inf", "-.inf", "2024-01-01", "2024-02-31", "2024-01-01T99:00:00Z", "12:30:45", "0x" + "f" * 6000),
    *("9" * 30, "9" * 5000, "0b11", "0o17", "1_000", "on", "~", "\ufeff", "\x00", "\x85", "\u2028", '"\\ud800"', '"\\0"', "é"),
    *("no", "5"),
    *("[" * 600, "- " * 600, "{a: " * 400, "a" * 3000, "[&b [*b]]", "{1: 2, true: 3, ~: 4}", "{[1]: 2}", "{2024-01-01: 1}"),
)
_FULL = {
    "join": {"lower": "-5s", "upper": "10s", "exclusive": ["upper"]},
    "left": {"path": "l.parquet", "key": ["a", "b"], "time": "t", "time_unit": "ms", "id": "i", "columns": ["c"]},
    "right": {"path": "r.parquet", "key": "a", "time_unit": "us"},
    "seed": 7,
    "pace": "realtime",
    "time": {"model": "event", "max_out_of_order": "1s", "late": "side"},
    "cluster": {"partition_count": 30, "distribution_epoch": "2s", "sub_group_count": 2, "mini_buffer": "1.5MB"},
    "module": {"theta": "1.5MB", "block_bytes": 4096, "window": "1GB"},
    "reorganization": {"policy": "balanced", "epoch": "20s", "declustering": "measured", "beta": 0.25, "active_slaves": 2},
    "nodes": {"speed": [0.5, 1.0], "changes": [{"slave": 1, "at": "5s", "speed": 0.25}], "link_bytes_per_s": 1e9},
    "checkpoint": {"interval": "10s", "epochs": 5, "directory": "c", "recover": False},
    "sink": {"kind": "csv", "ids": False},
}


_OF_ANOTHER_FILE = (": cannot be read (", ": expected a mapping of", ": not valid YAML")  # the base that an experiment names


class YamlTarget:
    """Files of three kinds: a configuration most of the time."""

    name = "yaml"

    def prepare(self, folder: Path) -> None:
        for name in ("mpi_configs", "experiments"):
            shutil.copytree(ROOT / name, folder / name)
        save_costs(COSTS["modern"], folder / "costs.yaml")
        self.folder = folder
        configs = [_FULL, *(yaml.safe_load(p.read_text()) for p in sorted((ROOT / "mpi_configs").glob("*.yaml")))]
        experiments = [yaml.safe_load(p.read_text()) for p in sorted((ROOT / "experiments").glob("*.yaml"))]
        costs = [yaml.safe_load((folder / "costs.yaml").read_text())]
        self.plains = {"config": configs, "experiment": experiments, "costs": costs}
        self.texts = {kind: [yaml.safe_dump(p, sort_keys=False) for p in plains] for kind, plains in self.plains.items()}
        self.every = [text.encode() for texts in self.texts.values() for text in texts]

    def attempt(self, random: Random) -> str:
        kind = random.choice(("config", "config", "config", "experiment", "costs"))
        how = random.choice(("bytes", "tokens", "values", "values"))
        index = random.randrange(len(self.plains[kind]))
        if how == "values":
            plain = spoil_plain(random, self.plains[kind][index])
            data = _dumped(random, plain)
        elif how == "tokens":
            text = self.texts[kind][index]
            for _ in range(random.choice((1, 1, 2, 3))):
                text = _with_token(random, text)
            data = text.encode("utf-8", "surrogatepass")
        else:
            data = spoil_bytes(random, self.texts[kind][index].encode(), self.every)
        if random.random() < 0.003:
            data = random.choice(
                (data + _LAUGHS.encode(), data * 2000, b"# " + bytes(300_000), data.decode("latin1").encode("utf-16"))
            )
        return self.check(kind, data, f"{kind}, {how}")

    def check(self, kind: str, data: bytes, what: str) -> str:
        """Load a file of this kind; whatever is accepted must be what it says."""
        path = self.folder / ("experiments/x.yaml" if kind == "experiment" else "x.yaml")
        path.write_bytes(data)
        try:
            if kind == "config":
                check_config(load_config(path), data)
            elif kind == "experiment":
                _check_experiment(load_experiment(path))
            else:
                _check_costs(load_costs(str(path)), self.folder)
        except SwjoinError as error:
            check_refusal(error, path.name, "costs", *_OF_ANOTHER_FILE)
            return f"refused: {what}"
        return f"accepted: {what}"


def _dumped(random: Random, plain: Any) -> bytes:
    """As block style, flow style or JSON, which is YAML, too."""
    style = random.randrange(3)
    if style == 2:
        return json.dumps(plain).encode("utf-8", "surrogatepass")
    try:
        text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=bool(style), allow_unicode=True)
        return text.encode("utf-8", "surrogatepass")
    except ValueError:  # of a number with too many digits
        return json.dumps(str(plain.keys())).encode()


def _with_token(random: Random, text: str) -> str:
    token = random.choice(_TOKENS)
    lines = text.split("\n")
    at = random.randrange(len(lines))
    choice = random.randrange(4)
    key, colon, value = lines[at].partition(": ")
    if choice == 0 and colon:
        lines[at] = f"{key}: {token}"  # instead of a value
    elif choice == 1 and colon:
        lines[at] = f"{key}: {token}{value}"
    elif choice == 2:
        lines.insert(at, token)
    else:
        place = random.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:place] + token + lines[at][place:]
    return "\n".join(lines)


def check_config(config: RunConfig, data: bytes) -> None:
    """Its plain form gives it again, and holds what another reading of the file does."""
    plain = to_plain(config)
    text = json.dumps(plain, allow_nan=False)
    again = config_from_plain(json.loads(text))
    if again != config or digest(again) != digest(config):
        raise Wrong("a configuration does not come back from its plain form")
    read = yaml.safe_load(data)
    for section, values in read.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            known = plain[section].get(key) if isinstance(plain.get(section), dict) else None
            spans = {f"{key}_us", f"{key}_bytes"} & set(plain.get(section) or ())
            if spans and isinstance(value, (int, float)) and value:
                raise Wrong(f"{section}.{key} is {value!r}, a number without a unit, and was accepted")
            if isinstance(value, bool) and str(known).lower() in ("on", "off", "yes", "no"):
                continue  # a word, which PyYAML's own loader takes for a truth value
            if key in plain.get(section, {}) and isinstance(value, (int, float, str)) and isinstance(known, (int, float, str)):
                unit = key.endswith(("_us", "_bytes")) and isinstance(value, str)
                read_as = float(value) if isinstance(known, float) else value
                if not unit and known != read_as:
                    raise Wrong(f"{section}.{key} is {value!r} in the file and {known!r} in the configuration")
        if section in ("seed", "pace") and plain[section] != values:
            raise Wrong(f"{section} is {values!r} in the file and {plain[section]!r} in the configuration")


def _check_experiment(experiment: Experiment) -> None:
    source = experiment.source
    if source.search is not None and not 0 < source.search.most_probes < 10_000:
        raise Wrong(f"a search of {source.search.most_probes} probes was accepted")
    if not experiment.question or any(not axis.choices for product in source.products for axis in product):
        raise Wrong("an experiment without a question, or with an axis without values, was accepted")


def _check_costs(costs: CostModel, folder: Path) -> None:
    save_costs(costs, folder / "again.yaml")
    if load_costs(str(folder / "again.yaml")) != costs:
        raise Wrong("costs do not come back from their file")

"""What `explain` says: every shipped configuration, what it must not forget, and sections that came later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.cli.explain import SECTIONS, Setting, diagram, explain
from swjoin.cli.explain import setting_of as setting_of_job
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain, load_config
from swjoin.config.run import FlightConfig, QueryConfig, RunConfig, ServeConfig, StreamConfig, TimeConfig
from tests.conftest import ROOT

SHIPPED = sorted((ROOT / "mpi_configs").glob("*.yaml"))


def setting_of(config: RunConfig, slaves: int, *, in_process: bool) -> Setting:
    ranks = None if in_process else RankMap.of_width(slaves, config.sink_count, config.gateway_count)
    return setting_of_job(Job(config, None, False, None, None, "explain"), slaves, ranks)


def said(slaves: int = 3, *, in_process: bool = False, **sections: Any) -> dict[str, str]:
    plain = {"join": {"within": "1s"}, "sink": {"kind": "count"}, **sections}
    setting = setting_of(config_from_plain(plain), slaves, in_process=in_process)
    return {title: " ".join(sentences) for title, sentences in explain(setting).items()}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
@pytest.mark.parametrize("in_process", [False, True])
def test_every_shipped_configuration_is_explained(path: Path, in_process: bool) -> None:
    config = load_config(path, [])
    setting = setting_of(config, 6, in_process=in_process)
    told = explain(setting)
    assert set(told) == {title for title, _ in SECTIONS} - {
        "stages",
        "edges",
        "traffic",
        "strategy",
        "besides",
    }  # of plans, of later versions
    text = " ".join(" ".join(sentences) for sentences in told.values())
    assert "None" not in text
    assert "Config(" not in text
    assert f"{config.cluster.partition_count:,} partition-groups" in text
    assert "One stage, the join, with 6 instances (the slaves). Edges: gateway to join, left and right, " in text
    picture = "\n".join(diagram(setting))
    assert picture.count("slave") == 3
    assert ("0 master" in picture) != in_process
    assert max(map(len, picture.splitlines())) < 140


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_command_on_every_shipped_configuration(path: Path, swjoin: Any) -> None:
    done = swjoin("explain", path)
    assert (done.code, done.err) == (0, [])
    assert "what comes in" in done.out
    assert max(map(len, done.out.splitlines())) < 140
    told = json.loads(swjoin("explain", path, "-n", 8, "--json").out)
    assert told["slaves"] == 6
    assert told["sections"]["who does what"][1].startswith("Ranks 2 to 7 are slaves 0 to 5")


@pytest.mark.parametrize(
    ("sections", "section", "words"),
    [
        (
            {"join": {"lower": "-1h", "upper": "2h", "exclusive": ["upper"]}},
            "what matches",
            "right time - left time < 2 h",
        ),
        ({"join": {"last": [7, 9]}}, "what matches", "each left tuple meets the last 9 right ones"),
        (
            {"join": {"within": "1s", "how": "anti", "where": "left_ts < right_ts"}},
            "what matches",
            "right_ts must hold",
        ),
        ({"time": {"max_out_of_order": "10s", "late": "side"}}, "time", "late.parquet"),
        ({"time": {"late": "drop", "idle_timeout": "5s"}}, "time", "silent for 5 s"),
        ({"cluster": {"sub_group_count": 2}}, "where keys go", "2 sub-groups, each served in a slot of its own, 100 ms long"),
        ({"reorganization": {"active_slaves": 2}}, "where keys go", "1 more stand by"),
        ({"module": {"theta": 0}}, "where keys go", "not fine-tuned"),
        ({"cluster": {"distribution_epoch": 0}}, "epochs", "Every 131,072 tuples"),
        ({"pace": "realtime", "cluster": {"distribution_epoch": "300ms"}}, "epochs", "half an epoch (150 ms)"),
        ({"pace": "realtime", "on_overload": "spill"}, "too much", "tuples go to disk"),
        ({"checkpoint": {"interval": "10s"}}, "a crash", "Checkpoints every 10 s"),
        ({"nodes": {"speed": [1, 0.5]}}, "who does what", "slaves run at 1, 0.5, 1 of a core"),
        (
            {"reorganization": {"policy": "balanced", "declustering": "measured"}},
            "adaptation",
            "by how busy they are",
        ),
    ],
)
def test_what_is_configured_is_said(sections: dict[str, Any], section: str, words: str) -> None:
    assert words in said(**sections)[section]


def test_any_number_of_slaves_costs_no_memory() -> None:
    """As in the report of a run that something has spoilt."""
    assert "slaves with 0 to 1 of them each" in said(1 << 40, reorganization={"active_slaves": 1 << 40})["where keys go"]


def test_columns_come_from_the_schemas_and_no_row_is_read(tmp_path: Path) -> None:
    for side, extra in (("left", "price"), ("right", "amount")):
        table = pa.table({"id": [1], "at": pa.array([5], pa.int64()), extra: [2.5]})
        pq.write_table(table, tmp_path / f"{side}.parquet")
    plain: dict[str, Any] = {
        side: {"path": str(tmp_path / f"{side}.parquet"), "key": ["id"], "time": "at", "time_unit": "s"}
        for side in ("left", "right")
    }
    told = said(**plain, sink={"kind": "parquet", "ids": False})
    for words in ("id (int64)", "price (double)", "amount (double)", "left_at (int64)"):
        assert words in told["results"]
    assert "Key id; time at (s)" in told["what comes in"]
    plain["right"]["path"] = str(tmp_path / "nowhere.parquet")
    assert "nowhere.parquet: no such file" in said(**plain, sink={"kind": "parquet"})["results"]


@dataclass(frozen=True)
class LaterStream(StreamConfig):
    """Of a version to come."""

    telegraph: str | None = None

    @property
    def live(self) -> bool:
        return True


def test_sources_and_sections_that_came_later_are_told_as_they_are_spelled() -> None:
    schema = "key: int64, ts: int64"
    left = StreamConfig(flight=FlightConfig(producers=2), schema=schema, time_unit="us")
    config = RunConfig(
        (QueryConfig(-1_000_000, 1_000_000),),
        left,
        LaterStream(telegraph="morse"),
        time=TimeConfig(late="side"),
        serve=ServeConfig(listen="127.0.0.1:8080"),
    )
    setting = setting_of(config, 2, in_process=False)
    told = {title: " ".join(sentences) for title, sentences in explain(setting).items()}
    assert "Arrow Flight" in told["what comes in"]
    assert "producers 2" in told["what comes in"]
    assert "source telegraph (morse)" in told["what comes in"]
    assert "listen 127.0.0.1:8080" in told["besides"]
    assert "left: flight" in "\n".join(diagram(setting))
    assert "come with the live streams" in told["results"]


def test_diagrams_of_one_two_and_many_slaves() -> None:
    config = config_from_plain({"join": {"within": "1s"}})
    for slaves, lines in ((1, 2), (2, 2), (3, 3), (4, 4), (40, 4)):
        drawn = diagram(Setting(config, slaves, RankMap(slaves + 2)))
        assert len(drawn) == lines
        assert "master" in "".join(drawn)
        assert f"{slaves + 1} slave {slaves - 1}" in "".join(drawn)
        assert all(line.startswith(("left", "right", " ")) for line in drawn)

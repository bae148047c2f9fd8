"""Figures are drawn from what a run stored, and the flights example is right from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plots import run_overview, turnaround
from swjoin.examples import flights
from tests.test_local import CASES, run


def test_overview_of_a_run(tmp_path: Path) -> None:
    run(CASES[0].write(tmp_path), tmp_path, 3)
    fig = run_overview.plot(tmp_path / "run")
    assert [axis.get_ylabel().split("\n")[0] for axis in fig.axes] == ["per second", "mean production", "stream buffer"]
    assert len(fig.axes[2].lines) == 3
    png, svg = run_overview.save(tmp_path / "run")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()[:1000]


@pytest.mark.timeout(180)
def test_flights_in_process_and_duckdb_agree(swjoin: Any, tmp_path: Path) -> None:
    flights.prepare(tmp_path)
    streams = [tmp_path / "arrivals.parquet", tmp_path / "departures.parquet"]
    window = ["--lower", "0h", "--upper", "12h", "--late", "drop"]
    bound = (tmp_path / "max_out_of_order").read_text()
    argv = [
        *streams,
        "--on",
        "tailnum",
        "--left-time",
        "arrived",
        "--right-time",
        "departed",
        *window,
        "--max-out-of-order",
        bound,
    ]
    done = swjoin("join", *argv, "-o", tmp_path / "pairs.parquet", "--report", tmp_path / "in_process.json")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "in_process.json").read_text())
    assert report["input"]["left"]["tuples"] == 336_776
    assert report["null_key"] == {"left": 2512, "right": 2512}
    (tmp_path / "mpi.json").write_text(json.dumps(report))
    flights.check(tmp_path)
    tampered = json.loads(json.dumps(report))
    tampered["results"]["count"] += 1
    (tmp_path / "mpi.json").write_text(json.dumps(tampered))
    assert flights.main(["check", str(tmp_path)]) == 1
    assert all(path.exists() for path in turnaround.save(tmp_path / "pairs.parquet", tmp_path))


def test_flight_times_are_plausible() -> None:
    """Known flights: UA 1545 left Newark at 5:17 EST and reached Houston at 8:30 CST on January 1st."""
    rows = flights.load()
    first = rows[(rows["flight"] == 1545) & (rows["month"] == 1) & (rows["day"] == 1)].iloc[0]
    assert str(first["departed"]) == "2013-01-01 10:17:00+00:00"
    assert str(first["arrived"]) == "2013-01-01 14:30:00+00:00"
    lasted = (rows["arrived"] - rows["departed"]).dropna() / np.timedelta64(1, "h")
    assert lasted.min() > 0
    assert lasted.quantile(0.999) < 14
    air = rows["air_time"].loc[lasted.index] / 60
    assert (lasted - air).quantile(0.99) < 2

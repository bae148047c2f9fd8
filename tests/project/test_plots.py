"""Figures are drawn from what a run stored, and the flights example is right from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import flights
from plots import adaptation, comparison, run_overview, stored, turnaround
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from tests.support.cases import CASES
from tests.support.in_process import run
from tests.support.stored_runs import a_run, write_events


def test_overview_of_a_run(tmp_path: Path) -> None:
    run(CASES[0].write(tmp_path), tmp_path, 3)
    fig = run_overview.plot(tmp_path / "run")
    assert [axis.get_ylabel().split("\n")[0] for axis in fig.axes] == ["per second", "mean production", "stream buffer"]
    assert len(fig.axes[2].lines) == 3
    png, svg = run_overview.save(tmp_path / "run")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()[:1000]


# ---------------------------------------------------------------- adapting


def labels(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_legend().get_texts()]


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A run whose events are replaced by ones with known numbers: two reorganization epochs, three moves."""
    a_run(tmp_path / "run", declustering="adaptive")
    events = [
        RunEvent(time, 1, "occupancy", slave=slave, amount=amount)
        for time, slave, amount in ((500_000, 0, 0.7), (500_000, 1, 0.0), (1_500_000, 0, 0.4))
    ]
    for number, (slave, peer) in enumerate([(0, 1), (0, 1), (1, 0)]):
        at = 500_000 * (number + 1)
        events.append(RunEvent(at, 1, "held", slave, peer, number, amount=number))
        events.append(RunEvent(at, 1, "left", slave, peer, number, 5, (number + 1) << 20, 1000, amount=number))
        events.append(RunEvent(at + 250_000, 2, "released", slave, peer, number, 5, 9, 250_000, amount=number))
    write_events(tmp_path / "run", events)
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    report["declustering"] = [{"epoch": e, "time_s": t, "active_slaves": n} for e, t, n in ((0, 0.0, 3), (8, 0.4, 2))]
    (tmp_path / "run" / "run.json").write_text(json.dumps(report))
    return tmp_path / "run"


def test_adaptation_shows_what_happened(adapted: Path) -> None:
    occupancy, active, moves, delay = adaptation.plot(adapted).axes
    zero, one = (line.get_ydata() for line in occupancy.lines[:2])
    assert np.array_equal(zero, [0.7, 0.4])
    assert np.array_equal(one, [0.0, np.nan], equal_nan=True)
    assert labels(occupancy) == ["slave 0", "slave 1", "slave 2", "Th_sup = 0.5", "Th_con = 0.01"]
    assert list(active.lines[0].get_ydata()) == [3, 2, 2]
    bars = sorted((bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in moves.patches)
    assert np.allclose(bars, [(0.5, 0.25, 0), (1.0, 0.25, 1), (1.5, 0.25, 2)])
    colours = [bar.get_facecolor() for bar in sorted(moves.patches, key=lambda bar: bar.get_x())]
    assert colours[0] == colours[1] != colours[2]
    assert labels(moves) == ["from slave 0", "from slave 1"]
    assert len(delay.lines) == 4
    assert all(axis.get_ylabel() for axis in (occupancy, active, moves, delay))


def test_many_moves_become_bytes_per_second(adapted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "MOST_BARS", 2)
    moves = adaptation.plot(adapted).axes[2]
    # 1 MiB left slave 0 in the first second, 2 MiB in the next, and 3 MiB slave 1, on top of that
    heights = {(round(bar.get_x()), round(bar.get_y(), 6)): bar.get_height() for bar in moves.patches if bar.get_height()}
    assert heights == {(0, 0.0): 1.0, (1, 0.0): 2.0, (1, 2.0): 3.0}
    assert "MiB/s" in moves.get_ylabel()


def test_plot_draws_adaptation_only_where_there_is_some(adapted: Path, swjoin: Any) -> None:
    done = swjoin("plot", adapted)
    assert (done.code, done.err) == (0, [])
    assert [Path(line).name for line in done.out.split()] == [
        "overview.png",
        "overview.svg",
        "adaptation.png",
        "adaptation.svg",
    ]
    write_events(adapted, [RunEvent(1, 0, "occupancy", slave=0, amount=0.1)])
    assert [text.get_text() for text in adaptation.plot(adapted).axes[2].texts] == ["no moves"]
    for remove in (False, True):
        write_events(adapted, [])
        if remove:
            (adapted / "metrics" / "events.parquet").unlink()
        assert adaptation.save(adapted) == []
        with pytest.raises(UserError, match="nothing to show"):
            adaptation.plot(adapted)


def test_more_slaves_than_colours(tmp_path: Path) -> None:
    a_run(tmp_path, slaves=11)
    fig = adaptation.plot(tmp_path)
    looks = {(line.get_color(), line.get_linestyle()) for line in fig.axes[0].lines[:11]}
    assert len(looks) == 11


def test_mean_delay_is_weighted_by_pairs() -> None:
    rows = {
        "epoch": np.array([0, 0, 1, 2, 2]),
        "pairs": np.array([1, 3, 0, 2, 0]),
        "delay_mean_us": np.array([1000.0, 2000.0, 0.0, 500.0, 0.0]),
        "epoch_end_us": np.array([1_000_000, 2_000_000, 3_000_000, 1_500_000, 9_000_000]),
    }
    time, delay = stored.mean_delay(rows)
    assert np.allclose(delay, [1.75, 0.5])
    assert np.allclose(time, [1.75, 1.75])


def test_comparison_of_runs(adapted: Path, tmp_path: Path) -> None:
    a_run(tmp_path / "still", policy="none")
    runs = {"with moves": adapted, "without moves": tmp_path / "still"}
    fig = comparison.plot(runs)
    assert labels(fig.axes[0]) == list(runs)
    assert [len(axis.lines) for axis in fig.axes] == [2, 2, 2, 2]
    active, communication = fig.axes[2], fig.axes[3]
    assert [list(line.get_ydata()) for line in active.lines] == [[3, 2, 2], [3, 3]]
    for line, run_dir in zip(communication.lines, runs.values(), strict=True):
        assert np.isclose(line.get_ydata()[-1], stored.metrics(run_dir)["communication_us"].sum() / 1e6)
        assert (np.diff(line.get_ydata()) >= 0).all()
    assert [path.name for path in comparison.save(runs, tmp_path, "both")] == ["both.png", "both.svg"]
    with pytest.raises(UserError, match=r"holds no run\.json"):
        comparison.plot({"nothing": tmp_path})


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

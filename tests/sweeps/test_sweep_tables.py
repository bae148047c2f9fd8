"""Tables of sweeps: every number against plain Python over the same files, what is left out, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.core.errors import UserError
from swjoin.core.metric_columns import COLUMNS, INTEGER_COLUMNS
from swjoin.sweeps.aggregate import aggregate
from swjoin.sweeps.metrics import METRICS, is_metric, t_quantile
from swjoin.sweeps.results import read_sweep

COMMIT = "0123456789ab"
FROM_S, TO_S = 10.0, 34.0
EPOCHS = 20  # of 2 s: some before the measured interval, one that ends with it, some after

Rows = dict[str, np.ndarray]


def draw(seed: int, slaves: int) -> Rows:
    """Rows of a run: one per slave and distribution epoch."""
    rng = np.random.default_rng(seed)
    n = slaves * EPOCHS
    rows: Rows = {name: rng.integers(1, 1_000_000, n) for name in INTEGER_COLUMNS}
    rows |= {name: rng.random(n) * 3e6 for name in ("delay_mean_us", "delay_p99_us", "delay_max_us")}
    rows["occupancy_ratio"] = rng.random(n)
    rows["slave"] = np.tile(np.arange(slaves), EPOCHS)
    rows["epoch"] = np.repeat(np.arange(EPOCHS), slaves)
    end_us = (rows["epoch"] + 1) * 2_000_000 + rng.integers(0, 900_000, n)
    rows["epoch_end_us"] = np.where(
        rows["epoch"] == 16, int(TO_S * 1e6), np.where(rows["epoch"] == 4, int(FROM_S * 1e6), end_us)
    )
    rows["pairs"] = np.where(rng.random(n) < 0.15, 0, rows["pairs"])
    rows["delay_mean_us"][rows["pairs"] == 0] = 0.0
    rows["delay_mean_us"][3 * slaves : 9 * slaves] = 1e6  # ties
    if slaves > 2:  # a slave that rests in the whole measured phase is in no minimum
        keep = (rows["slave"] != slaves - 1) | (rows["epoch"] < 4)
        rows = {name: values[keep] for name, values in rows.items()}
    return rows


def write_run(folder: Path, rows: Rows, report: dict[str, Any], leave_out: tuple[str, ...] = ()) -> None:
    (folder / "metrics").mkdir(parents=True)
    columns = [c for c in COLUMNS if c not in leave_out]
    kinds = {c: pa.int64() if c in INTEGER_COLUMNS else pa.float64() for c in columns}
    pq.write_table(pa.table({c: pa.array(rows[c], kinds[c]) for c in columns}), folder / "metrics" / "slaves.parquet")
    (folder / "run.json").write_text(json.dumps(report))


def report_of(seed: int, **more: Any) -> dict[str, Any]:
    changes = [(0.0, 4), (9.0, 3), (18.0, 2), (40.0, 1)]
    return {
        "complete": True,
        "measured": {"from_s": FROM_S, "to_s": TO_S},
        "declustering": [{"epoch": 0, "time_s": time_s, "active_slaves": count} for time_s, count in changes],
        "moves": seed,
        "input_tuples_per_s": 1000.5 + seed,
        "join_s": 41.0 + seed / 8,
        "peak_rss_bytes": {"0": 5 + seed, "1": 90 + seed, "2": 7},
        "results": {"count": 17 * seed},
        "machine": {"late_s": {"master": {"p50": 0.1, "p99": 0.2 + seed, "max": 9.0}, "slaves": None}},
        **more,
    }


def done_of(axes: dict[str, Any], repeat: int, **more: Any) -> dict[str, Any]:
    about = {"config_digest": "d", "slaves": axes.get("slaves", 4), "repeat": repeat, "axes": axes, "commit": COMMIT}
    state = {"status": "done", "failure": None, "valid": True, "reasons": [], "wall_s": 1.5, "searched": None}
    return {**about, **state, **more}


class SyntheticSweep:
    """Writes points, and remembers the rows and reports that count, by axes."""

    def __init__(self, directory: Path, axes: list[str], **more: Any) -> None:
        self.directory, self.axes = directory, axes
        self.counted: dict[tuple[Any, ...], list[tuple[Rows, dict[str, Any]]]] = {}
        directory.mkdir(parents=True)
        info = {"format": 1, "experiment": "synthetic", "axes": axes, "time_scale": 1, "search": None, "commit": COMMIT, **more}
        (directory / "experiment.json").write_text(json.dumps(info))

    def add(self, axes: dict[str, Any], repeat: int, seed: int, report: dict[str, Any] | None = None, **done: Any) -> Path:
        state = done_of(axes, repeat, **done)
        folder = self.directory / "points" / f"{seed:016x}-s{state['slaves']}-r{repeat}"
        rows, report = draw(seed, state["slaves"]), report or report_of(seed)
        if state["status"] == "done":
            write_run(folder, rows, report)
        else:
            folder.mkdir(parents=True)
        (folder / "done.json").write_text(json.dumps(state))
        if state["status"] == "done" and state["valid"]:
            self.counted.setdefault(tuple(axes.get(a) for a in self.axes), []).append((rows, report))
        return folder

    def table(self) -> list[dict[str, Any]]:
        return pq.read_table(self.directory / "table.parquet").to_pylist()

    def runs(self) -> list[dict[str, Any]]:
        return pq.read_table(self.directory / "runs.parquet").to_pylist()


# ---------------------------------------------------------------- the same, written down once more


def weighted_percentile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = 0
    for i in order:
        reached += int(weights[i])
        if weights[i] and reached >= q * weights.sum():
            return float(values[i])
    raise AssertionError


def expected(rows: Rows, report: dict[str, Any]) -> dict[tuple[str, str], float]:
    """All metrics of one run by (metric, over)."""
    phase = report.get("measured") or {"from_s": 0.0, "to_s": None}
    to_us = rows["epoch_end_us"].max() if phase["to_s"] is None else phase["to_s"] * 1e6
    from_us = phase["from_s"] * 1e6
    keep = (rows["epoch_end_us"] > from_us) & (rows["epoch_end_us"] <= to_us)
    r = {name: values[keep].astype(float) for name, values in rows.items()}
    measured_s = (to_us - from_us) / 1e6
    w, y, x = r["pairs"], r["delay_mean_us"] / 1e6, r["epoch_end_us"] / 1e6
    last = x > (from_us + (to_us - from_us) * 2 / 3) / 1e6
    some = w > 0
    out = {
        ("delay_mean_s", "run"): np.average(y, weights=w),
        ("delay_p50_s", "run"): weighted_percentile(y, w, 0.50),
        ("delay_p95_s", "run"): weighted_percentile(y, w, 0.95),
        ("delay_p99_s", "run"): weighted_percentile(r["delay_p99_us"] / 1e6, w, 0.99),
        ("delay_max_s", "run"): r["delay_max_us"][some].max() / 1e6,
        ("delay_growth", "run"): np.polyfit(x - x.mean(), y, 1, w=np.sqrt(w))[0],
        ("delay_last_third_s", "run"): np.average(y[last], weights=w[last]),
        ("pairs_per_s", "run"): w.sum() / measured_s,
        ("joined_tuples_per_s", "run"): (r["left_tuples"].sum() + r["right_tuples"].sum()) / measured_s,
        ("mini_group_count", "sum"): r["mini_group_count"].sum() / len(set(r["epoch"])),
        ("block_count", "sum"): r["block_count"].sum() / len(set(r["epoch"])),
        ("moves", "run"): report["moves"],
        ("input_tuples_per_s", "run"): report["input_tuples_per_s"],
        ("join_s", "run"): report["join_s"],
        ("peak_rss_bytes", "max"): max(report["peak_rss_bytes"].values()),
        ("results_count", "run"): report["results"]["count"],
    }
    if phase["to_s"] is not None:  # of report_of: 3 slaves from 10 to 18 s, 2 to 34 s
        out["active_slaves", "run"] = (8 * 3 + 16 * 2) / 24
    if report.get("machine"):
        out["late_s_master_p99", "run"] = report["machine"]["late_s"]["master"]["p99"]
    if "utilisation" in report:
        for over, value in report["utilisation"]["slaves"].items():
            out["utilisation_slaves", over] = value
        out["utilisation_master", "run"] = report["utilisation"]["master"]
        out["utilisation_collector", "run"] = report["utilisation"]["collector"]
    per_slave: dict[str, list[float]] = {}
    for slave in sorted(set(r["slave"])):
        own = {name: values[r["slave"] == slave] for name, values in r.items()}
        for name, value in {
            "busy_ratio": own["process_us"].sum() / 1e6 / measured_s,
            "cpu_s": own["process_us"].sum() / 1e6 / (measured_s / 60),
            "work_s": own["cpu_us"].sum() / 1e6 / (measured_s / 60),
            "idle_ratio": own["idle_us"].sum() / 1e6 / measured_s,
            "communication_s": own["exchange_us"].sum() / 1e6 / (measured_s / 60),
            "transfer_s": own["communication_us"].sum() / 1e6 / (measured_s / 60),
            "occupancy_mean": own["occupancy_ratio"].mean(),
            "occupancy_max": own["occupancy_ratio"].max(),
            "window_bytes": own["window_bytes"].max(),
            "window_tuples": own["window_tuples"].max(),
            "delivered_bytes_per_s": own["delivered_bytes"].sum() / measured_s,
            "comparisons_per_s": own["comparisons"].sum() / measured_s,
        }.items():
            per_slave.setdefault(name, []).append(float(value))
    how = {"min": np.min, "mean": np.mean, "max": np.max, "sum": np.sum}
    for name, values in per_slave.items():
        for over in METRICS[name].over:
            out[name, over] = how[over](values)
    return {key: float(value) for key, value in out.items()}


T95 = {2: 12.7062, 3: 4.30265}  # by runs


def close(found: float | None, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-9)


def check(sweep: SyntheticSweep, absent: tuple[str, ...] = ()) -> None:
    """Every row of the table is what plain Python says, and none is missing."""
    table = {(*(row[a] for a in sweep.axes), row["metric"], row["over"]): row for row in sweep.table()}
    assert len(table) == len(sweep.table())
    for axes, runs in sweep.counted.items():
        numbers = [expected(*run) for run in runs]
        kinds = {key for one in numbers for key in one if key[0] not in absent}
        assert {key[len(axes) :] for key in table if key[: len(axes)] == axes} == kinds
        for kind in kinds:
            row, values = table[(*axes, *kind)], [one[kind] for one in numbers]
            mean, n = float(np.mean(values)), len(values)
            sd = float(np.std(values, ddof=1)) if n > 1 else None
            half = None if sd is None else T95[n] * sd / math.sqrt(n)
            wanted = {"mean": mean, "sd": sd, "min": min(values), "max": max(values)}
            wanted |= {"ci_low": None if half is None else mean - half, "ci_high": None if half is None else mean + half}
            assert row["runs"] == n
            assert row["unit"] == METRICS[kind[0]].unit
            for name, value in wanted.items():
                tolerance = abs(half or 0) * 1e-5 if name.startswith("ci_") else 0.0
                assert close(row[name], value) or abs(row[name] - value) <= tolerance, (axes, kind, name, row[name], value)


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return synthetic_sweep(tmp_path)


def synthetic_sweep(tmp_path: Path) -> SyntheticSweep:
    """3 repeats of two points, one repeat of a third, nothing but failures at a fourth."""
    made = SyntheticSweep(tmp_path / "some [odd] {name}", ["workload.rate", "slaves", "tuning"])
    for i, (slaves, label) in enumerate(((2, "on"), (3, "off"))):
        axes = {"workload.rate": 1000.0, "slaves": slaves, "tuning": label}
        for repeat in (1, 2, 3):
            made.add(axes, repeat, 10 * i + repeat)
        made.add(axes, 4, 40 + i, valid=False, reasons=["the machine was overloaded", "twice"])
    one = {"workload.rate": 500.5, "slaves": 2, "tuning": "on"}
    made.add(one, 1, 60)
    made.add(one, 2, 61, status="failed", failure="a rank died", valid=False)
    none = {"workload.rate": 2000, "slaves": 2, "tuning": "on"}
    for repeat in (1, 2):
        made.add(none, repeat, 70 + repeat, status="failed", failure="a rank died", valid=False)
    (made.directory / "points" / "unfinished-s2-r1").mkdir()
    return made


def test_every_number_of_a_sweep(sweep: SyntheticSweep, swjoin: Any, tmp_path: Path) -> None:
    """A sweep and a run that knows neither its measured phase nor exchanges, by one command."""
    write_run(tmp_path / "run", draw(5, 2), {"complete": True}, ("exchange_us",))
    done = swjoin("aggregate", tmp_path / "run", sweep.directory)
    assert done.code == 0, done.err
    names = [f"tables/{name}.{suffix}" for name in ("epochs", "slaves") for suffix in ("parquet", "csv")]
    written = [tmp_path / "run" / name for name in names]
    written += [sweep.directory / f"{name}.{suffix}" for name in ("table", "runs") for suffix in ("parquet", "csv")]
    assert done.out.split("\n")[:-1] == [str(path) for path in written]
    assert not list(sweep.directory.glob(".*"))
    check(sweep)
    rows = sweep.table()
    assert list(rows[0])[:3] == sweep.axes
    assert [row["workload.rate"] for row in rows] == sorted(row["workload.rate"] for row in rows)
    left_out = {(row["workload.rate"], row["slaves"]): (row["runs"], row["invalid"], row["failed"]) for row in rows}
    assert left_out == {(500.5, 2): (1, 0, 1), (1000.0, 2): (3, 1, 0), (1000.0, 3): (3, 1, 0), (2000.0, 2): (0, 0, 2)}
    of_none = [row for row in rows if row["workload.rate"] == 2000]
    assert len(of_none) == len([row for row in rows if row["workload.rate"] == 500.5])
    assert {row["mean"] for row in of_none} == {None}
    assert {row["censored"] for row in rows} == {""}
    lines = list(csv.DictReader((sweep.directory / "table.csv").open(newline="")))
    assert list(lines[0]) == list(rows[0])
    for line, row in zip(lines, rows, strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}
    check_runs(sweep.runs())


def check_runs(runs: list[dict[str, Any]]) -> None:
    """Every run of the fixture `sweep` has a row, failed ones without numbers."""
    assert len(runs) == 12
    assert len({row["point"] for row in runs}) == 12
    assert sum(row["status"] == "failed" for row in runs) == 3
    for row in runs:
        assert (row["delay_mean_s"] is None) == (row["status"] == "failed")
    good = next(row for row in runs if row["point"] == f"{11:016x}-s3-r1")
    for (metric, over), value in expected(draw(11, 3), report_of(11)).items():
        assert close(good[metric if over == "run" else f"{metric}_{over}"], value), metric
    bad = next(row for row in runs if not row["valid"] and row["status"] == "done")
    assert bad["reasons"] == "the machine was overloaded; twice"
    assert bad["cpu_s_sum"] > 0


def test_runs_of_before_and_simulated_ones(tmp_path: Path) -> None:
    """No `measured`, or one without an end; no exchange_us; utilisation."""
    plain = SyntheticSweep(tmp_path / "plain", ["kind"])
    utilisation = {"slaves": {"min": 0.1, "mean": 0.2, "max": 0.4}, "master": 0.5, "collector": 0.3}
    for i, measured in enumerate((None, {"from_s": 6.5, "to_s": None})):
        alone = {"measured": measured, "utilisation": utilisation, "simulated": True, "machine": None, "declustering": []}
        for repeat in (1, 2):
            seed = 10 * i + repeat
            folder = plain.add({"kind": f"k{i}"}, repeat, seed, report_of(seed, **alone), slaves=2)
            shutil.rmtree(folder)
            write_run(folder, draw(seed, 2), report_of(seed, **alone), ("exchange_us",))
            (folder / "done.json").write_text(json.dumps(done_of({"kind": f"k{i}"}, repeat)))
    aggregate([plain.directory])
    check(plain, absent=("communication_s",))


def test_a_run_without_pairs_or_without_rows(tmp_path: Path) -> None:
    """Delays are null, the rest is there; a measured phase in which nothing was completed leaves all of it null."""
    still = SyntheticSweep(tmp_path / "still", ["x"])
    folder = still.add({"x": 1}, 1, 1, slaves=2)
    shutil.rmtree(folder / "metrics")
    rows = draw(1, 2)
    rows["pairs"] = np.zeros_like(rows["pairs"])
    (folder / "run.json").unlink()
    (folder / "done.json").unlink()
    write_run(folder, rows, report_of(1))
    (folder / "done.json").write_text(json.dumps(done_of({"x": 1}, 1)))
    still.add({"x": True}, 1, 2, report_of(2, measured={"from_s": 90.0, "to_s": 99.0}), slaves=2)
    aggregate([still.directory])
    table = {(row["x"], row["metric"], row["over"]): row for row in still.table()}
    assert {key[0] for key in table} == {"1", "true"}  # one of them is a label, so both are text
    assert ("1", "delay_mean_s", "run") not in table
    assert table["1", "pairs_per_s", "run"]["mean"] == 0
    assert table["true", "pairs_per_s", "run"]["runs"] == 0
    assert table["true", "moves", "run"]["mean"] == 2


def test_searches(tmp_path: Path) -> None:
    """One number per search; its probes are runs, but no rows of the table."""
    axis = "workload.rate"
    made = SyntheticSweep(tmp_path / "search", ["slaves"], search={"axis": axis, "low": 10, "high": 99, "precision": 0.05})
    with pytest.raises(UserError, match="no run of this sweep has ended"):
        read_sweep(made.directory)
    for i, searched in enumerate((20.0, 40.0)):
        made.add({"slaves": 2}, 1, i, searched=searched)
    with pytest.raises(UserError, match="no search of this sweep has ended"):
        read_sweep(made.directory)
    (made.directory / "searches").mkdir()
    for i, (slaves, found, status) in enumerate(
        [
            (4, 50.0, "done"),
            (4, 54.0, "done"),
            (5, 99, "done"),
            (5, 95, "done"),
            (6, 99.0, "done"),
            (6, None, "done"),
            (1, None, "done"),
            (2, 30, "done"),
            (2, None, "failed"),
            (2, 9, "running"),
            (2, None, "invalid"),
            (3, 44.0, "invalid"),
        ]
    ):
        search = {
            "axes": {"slaves": slaves},
            "repeat": i,
            "found": found,
            "low": 10,
            "high": 99,
            "probes": [],
            "status": status,
        }
        (made.directory / "searches" / f"k{i}.json").write_text(json.dumps(search))
    aggregate([made.directory])
    rows = made.table()
    assert {(row["metric"], row["unit"], row["over"]) for row in rows} == {(f"sustainable_{axis}", "1/s", "run")}
    assert is_metric(rows[0]["metric"])
    counts = [(row["slaves"], row["runs"], row["mean"], row["invalid"], row["failed"], row["censored"]) for row in rows]
    assert counts == [
        (1, 1, 10.0, 0, 0, "below"),
        (2, 1, 30.0, 1, 1, ""),
        (3, 1, 44.0, 0, 0, "at least"),
        (4, 2, 52.0, 0, 0, ""),
        (5, 2, 97.0, 0, 0, "at least"),
        (6, 2, 54.5, 0, 0, "below"),
    ]
    assert rows[1]["ci_low"] is None
    assert [(row["sd"], row["ci_low"], row["ci_high"]) for row in rows if row["censored"]] == [(None, None, None)] * 4
    assert (rows[4]["min"], rows[4]["max"]) == (95, 99)
    assert [line["censored"] for line in csv.DictReader((made.directory / "table.csv").open(newline=""))] == [
        row["censored"] for row in rows
    ]
    assert close(rows[3]["ci_high"], 52.0 + t_quantile(1) * math.sqrt(8) / math.sqrt(2))
    assert [row["searched"] for row in made.runs()] == [20.0, 40.0]


def test_what_is_refused(swjoin: Any, tmp_path: Path) -> None:
    """One line, exit code 2, and nothing written, not even of the directories that are fine."""
    write_run(tmp_path / "run", draw(5, 2), {"complete": True})
    mixed = SyntheticSweep(tmp_path / "mixed", ["x"])
    mixed.add({"x": 1}, 1, 1, slaves=2)
    mixed.add({"x": 1}, 2, 2, slaves=2, commit="ba9876543210")
    damaged = SyntheticSweep(tmp_path / "damaged", ["x"])
    (damaged.add({"x": 1}, 1, 1, slaves=2) / "metrics" / "slaves.parquet").unlink()
    short = SyntheticSweep(tmp_path / "short", ["x"])
    (short.add({"x": 1}, 1, 1, slaves=2) / "done.json").write_text('{"axes": {"x": 1}}')
    empty = SyntheticSweep(tmp_path / "empty", ["x"])
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "experiment.json").write_text("[]")
    for directory, text in (
        (mixed.directory, f"different commits ({COMMIT}, ba9876543210)"),
        (damaged.directory, "slaves.parquet: is missing or damaged"),
        (short.directory, "slaves is missing"),
        (empty.directory, "no run of this sweep has ended"),
        (odd, "does not describe a sweep"),
        (tmp_path, "is the directory of a run or of a sweep?"),
    ):
        done = swjoin("aggregate", tmp_path / "run", directory)
        assert done.code == 2, directory
        said = [line for line in done.err if line.startswith("swjoin: ")]
        assert len(said) == 1, done.err
        assert text.split("?")[0].removeprefix("is ") in said[0]
    assert not (tmp_path / "run" / "tables").exists()
    assert swjoin("aggregate").code == 2


def test_all_runs_invalid_still_say_so(tmp_path: Path) -> None:
    made = SyntheticSweep(tmp_path / "invalid", ["x"])
    made.add({"x": 1}, 1, 1, slaves=2, valid=False, reasons=["the machine was overloaded"])
    aggregate([made.directory, made.directory])
    rows = made.table()
    assert {(row["runs"], row["invalid"], row["failed"], row["mean"]) for row in rows} == {(0, 1, 0, None)}
    assert "delay_mean_s" in {row["metric"] for row in rows}


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (31, 1.960)])
def test_quantiles_of_students_t(freedom: int, known: float) -> None:
    assert t_quantile(freedom) == pytest.approx(known, abs=5e-4)


def test_quantiles_are_those_of_the_distribution() -> None:
    """The integral of its density between -t and t is 95 %."""
    for freedom in range(1, 31):
        scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
        x = np.linspace(0.0, t_quantile(freedom), 20_001)
        inside = 2 * np.trapezoid(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2), x)
        assert inside == pytest.approx(0.95, abs=1e-6), freedom

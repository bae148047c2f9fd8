"""Implausible answers (docs/semantics.md): what is reported, where, once; and what is not, because it may well be meant."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.cli.report import build
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.config.loader import config_from_plain
from swjoin.config.run import TimeConfig
from swjoin.connectors.files.inputs import find_files
from swjoin.core.batch import SourceBatch
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How
from swjoin.runtime import plausibility
from swjoin.runtime.plausibility import _nearest, _Sample, span_text
from tests.conftest import ROOT
from tests.support.cases import Case
from tests.support.live_runs import config as live_config
from tests.support.live_runs import live
from tests.support.stopped_runs import _in_pieces

YEAR_2026_S = 1_767_225_600
BASICS: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts"}


def table(times: list[Any], keys: list[Any] | None = None, kind: pa.DataType | None = None, **columns: Any) -> pa.Table:
    """Keys 0, 1, ... unless they are given."""
    return pa.table({"key": list(range(len(times))) if keys is None else keys, "ts": pa.array(times, kind), **columns})


def found(left: pa.Table, right: pa.Table, **options: Any) -> list[str]:
    """Warnings of a count, from Python's own warnings, which are those of the proof."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proof = swjoin.count(left, right, **{**BASICS, **options})
    assert all(issubclass(w.category, swjoin.ImplausibleWarning) for w in caught)
    assert all(w.filename == __file__ for w in caught), "it names the caller's line"
    assert tuple(str(w.message) for w in caught) == proof.warnings
    return list(proof.warnings)


# ---------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("raw", "declared", "meant"),
    [
        (YEAR_2026_S * 1_000, "s", "ms"),
        (YEAR_2026_S * 10**6, "ms", "us"),
        (YEAR_2026_S * 10**9, "us", "ns"),
        (YEAR_2026_S, "ms", "s"),
        (YEAR_2026_S, "us", "s"),
        (YEAR_2026_S * 1_000, "us", "ms"),
        (YEAR_2026_S * 10**6, "ns", "us"),
    ],
)
def test_a_wrong_unit_is_named_with_the_one_that_would_do(raw: int, declared: str, meant: str) -> None:
    side = table([raw, raw + 1_000_000])
    lines = found(side, side, within="1s", time_unit=declared)
    assert len(lines) == 2
    for name, line in zip(("left", "right"), lines, strict=True):
        assert line.startswith(f"{name}: time column ts, declared in {declared}, holds times from ")
        assert f"; in {meant} they would be from 2026-01-01T00:00:00 to 2026-01-" in line
        assert line.endswith(": check the time unit")
        coarser = ["s", "ms", "us", "ns"].index(meant) < ["s", "ms", "us", "ns"].index(declared)
        assert ("from 1970-01-" in line) == coarser


def test_times_of_another_age_without_a_likely_unit() -> None:
    side = table([0, 400_000_000_000])  # the year 14,645
    assert found(side, side, within="1s", time_unit="s") == [
        f"{name}: time column ts, declared in s, holds times from 1970-01-01T00:00:00 to 14645-06-30T15:06:40; "
        "check the column and its unit"
        for name in ("left", "right")
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_numbers_that_begin_near_zero_are_legitimate(unit: str) -> None:
    side = table([0, 1_000, 5 * 10**8, 2 * 10**9])
    assert found(side, side, within="1s", time_unit=unit) == []
    assert found(table([0, 1000, 10**6]), table([1000, 2000]), within="100d", time_unit=unit, on="key") == []


def test_times_since_boot_look_like_dates_in_a_coarser_unit() -> None:
    """The integers are those of a wrong unit, which finds pairs as well; docs/semantics.md says what to do."""
    boot_ns = 20 * 86_400 * 10**9
    times = [boot_ns + 10**9 * i for i in range(13)]
    lines = found(table(times), table(times), within="1ms", time_unit="ns")
    assert [line.split("; ")[1].split(" to ")[0] for line in lines] == ["in us they would be from 2024-10-04T00:00:00"] * 2
    from_first = table([t - boot_ns for t in times])
    assert found(from_first, from_first, within="1ms", time_unit="ns") == []
    for seconds, warned in (
        (10 * 86_400, 0),
        (11 * 86_400, 2),
        (47 * 86_400, 2),
        (48 * 86_400, 0),
        (15 * 60, 0),
        (16 * 60, 2),
        (68 * 60, 2),
        (69 * 60, 0),
    ):
        for unit, ratio in (("us", 10**6), ("ns", 10**9)):
            side = table([seconds * ratio])
            assert len(found(side, side, within="1ms", time_unit=unit)) == warned, (seconds, unit)


def test_types_that_have_a_unit_are_believed() -> None:
    for kind, value in ((pa.timestamp("s"), YEAR_2026_S * 1_000), (pa.timestamp("ns"), YEAR_2026_S), (pa.date32(), 9_999_999)):
        side = table([value - value % 1_000, value - value % 1_000 + 1_000], kind=kind)
        assert found(side, side, within="1s") == []


# ---------------------------------------------------------------- ranges


def test_ranges_that_cannot_meet() -> None:
    day = 86_400
    left, right = table([YEAR_2026_S, YEAR_2026_S + day]), table([0, 7_200])
    line = (
        "the times of both sides cannot meet within the bounds: left 2026-01-01T00:00:00 to 2026-01-02T00:00:00, "
        "right 1970-01-01T00:00:00 to 1970-01-01T02:00:00; right is 20,453 d 21 h 59 min too early"
    )
    assert found(left, right, within="1min", time_unit="s") == [line]
    assert found(left, right, within="1min", time_unit="s", how="full") == [line]
    assert found(left, right, within="21000d", time_unit="s") == []
    assert "right is 20,453 d 21 h 59 min too late" in found(right, left, within="1min", time_unit="s")[0]
    assert (
        "right is 1 us too late"
        in found(table([10]), table([20]), lower="0s", upper="10us", exclusive="upper", time_unit="us")[0]
    )
    assert found(table([10]), table([20]), lower="0s", upper="10us", time_unit="us") == []
    assert found(left, right, last=5, time_unit="s") == [], "count windows compare no times"


def test_bounds_that_allow_nothing() -> None:
    side = table([1, 2])
    (line,) = found(side, side, lower="1s", upper="1s", exclusive="lower", time_unit="s")
    assert line == "the bounds allow no difference of times (lower 1000001 us, upper 1000000 us)"


def test_spans() -> None:
    hour = 3_600_000_000
    spans = [span_text(us) for us in (1, 1_500, hour, hour - 9_000_000, 25 * hour + 1, 999 * 24 * hour)]
    assert spans == ["1 us", "1 ms 500 us", "1 h", "59 min 51 s", "1 d 1 h 1 us", "999 d"]


# ---------------------------------------------------------------- nothing matched


def zoned(hours: int) -> tuple[pa.Table, pa.Table]:
    """A day of rows every ten minutes; on the right the same rows, as a clock so many hours ahead shows them."""
    times = [YEAR_2026_S + 600 * i for i in range(144)]
    keys = [f"user {i}" for i in range(144)]
    return table(times, keys), table([t + 3600 * hours for t in times], keys)


def test_an_error_of_an_hour_shows_in_the_nearest_miss() -> None:
    assert found(*zoned(1), within="10s", time_unit="s") == [
        "nothing matched, though 144 keys are on both sides: the nearest pair with equal keys is 59 min 50 s outside the "
        "bounds (right 1 h after left): left row 0, counting from 0, right row 0, counting from 0"
    ]
    assert "(right 2 h before left)" in found(*zoned(-2), within="10s", time_unit="s")[0]
    assert found(*zoned(0), within="10s", time_unit="s") == []


def test_where_a_row_is_by_the_users_own_ids() -> None:
    left, right = (side.append_column("id", pa.array(range(700, 844))) for side in zoned(1))
    (line,) = found(left, right, within="10s", time_unit="s", left_id="id")
    assert line.endswith("left row with id 700, right row 0, counting from 0")
    with pytest.warns(swjoin.ImplausibleWarning, match=r"left row 0, counting from 0, right row 0, counting from 0$"):
        swjoin.join(left, right, **BASICS, within="10s", time_unit="s", left_id="id")


def test_no_equal_keys_at_all() -> None:
    where = "at row 0, counting from 0"
    for left, right, texts in (
        (["ann", "bob"], ["Ann", "Bob"], ("'ann'", "'Ann'")),
        ([1, 2], [101, 102], ("1", "101")),
        (np.array([1, 2], "M8[D]"), np.array([3, 4], "M8[D]"), ("1970-01-02", "1970-01-04")),
    ):
        sides = [table([1, 2], pa.array(keys)) for keys in (left, right)]
        assert found(*sides, within="1h", time_unit="s") == [
            f"nothing matched: no key of the left side is on the right side; left has {texts[0]} {where}, "
            f"right has {texts[1]} {where}"
        ]
    sides = [table([1], ["ann"], city=[city]) for city in ("Aachen", "Bonn")]
    assert "left has 'ann, Aachen' at" in found(*sides, on=["key", "city"], within="1h", time_unit="s")[0]


def test_a_condition_that_never_holds() -> None:
    sides = [table([1, 2, 3], price=prices) for prices in ([1, 2, 3], [0, 0, 0])]
    assert found(*sides, within="1h", time_unit="s", where="left_price < right_price") == [
        "nothing matched, though 3 keys are on both sides: pairs with equal keys lie within the bounds, but for none of them "
        "this holds: left_price < right_price"
    ]
    assert found(*sides, within="1h", time_unit="s", where="left_price > right_price") == []


def test_count_windows_in_which_nothing_matched() -> None:
    left, right = table([1, 2, 3], [5, 6, 7]), table([10, 11, 12, 13], [8, 8, 8, 5])
    (line,) = found(left, right, last=1, time_unit="s")
    assert line.startswith(
        "nothing matched, though 1 key is on both sides: rows with equal keys are never within the last rows"
    )
    assert found(left, right, last=3, time_unit="s") == []


@pytest.mark.parametrize("how", JOIN_KINDS)
@pytest.mark.parametrize("where", [None, "left.ts >= 0"])
def test_what_has_no_match_is_known_of_every_kind_of_join(how: How, where: str | None) -> None:
    """Also where as many rows come out as if nothing had matched: every left row with exactly one partner."""
    keys = [*(f"user {i}" for i in range(144)), None]
    left, right = (table([*side["ts"].to_pylist(), YEAR_2026_S + 90_000], keys) for side in zoned(0))
    options = {"within": "10s", "time_unit": "s", "how": how, "where": where}
    assert found(left, right, **options) == []
    shifted = table([t + 3600 for t in right["ts"].to_pylist()], keys)
    (line,) = found(left, shifted, **options)
    assert "59 min 50 s outside the bounds" in line


def test_the_nearest_miss_is_the_nearest() -> None:
    random = np.random.default_rng(5)
    for _ in range(300):
        sizes = random.integers(1, 12, 2)
        keys = [random.integers(0, 3, n) for n in sizes]
        common = np.intersect1d(*keys)
        if not len(common):
            continue
        lower, upper = np.sort(random.integers(-6, 7, 2)).tolist()
        sides = []
        for key in keys:
            ts = random.integers(-20, 20, len(key))
            sides.append(_Sample(key, ts, np.arange(len(key), dtype=np.uint64)).chosen(np.isin(key, common)))
        left, right = sides
        apart = right.ts[None, :] - left.ts[:, None]
        missed = np.where(left.key[:, None] == right.key[None, :], np.maximum(apart - upper, lower - apart), 99)
        got, difference, i, j = _nearest(left, right, Bounds(lower, upper))
        at = np.flatnonzero(left.id == i)[0], np.flatnonzero(right.id == j)[0]
        assert apart[at] == difference
        if missed.min() > 0:
            assert got == missed[at] == missed.min()
        else:  # any pair within the bounds will do
            assert max(got, missed[at]) <= 0


def test_of_large_inputs_a_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausibility, "KEPT_ROWS", 50)
    (line,) = found(*zoned(1), within="10s", time_unit="s")
    assert " keys are on both sides (in a sample: one key in 4): the nearest pair with equal keys is 59 min 50 s" in line
    one_key = [table(list(range(base, base + 200)), ["k"] * 200) for base in (0, 1000)]
    one_key[0] = pa.concat_tables([one_key[0], table([3000], ["last"])])
    (line,) = found(*one_key, within="10s", time_unit="s")
    assert "1 key is on both sides (in a sample: one key in " in line
    assert " of the first rows): the nearest pair with equal keys is 13 min 11 s outside the bounds" in line


# ---------------------------------------------------------------- all rows left out


def test_all_rows_of_a_stream_left_out() -> None:
    good = table([1, 2, 3])
    nulls = table([1, 2], pa.array([None, None], pa.int64()))
    assert found(nulls, good, within="1h", time_unit="s") == ["left: no row was joined, of 2 read: 2 with a null key"]
    timeless = table([None, None], kind=pa.int64())
    (line,) = found(good, timeless, within="1h", time_unit="s", late="drop")
    assert line == "right: no row was joined, of 2 read: 2 late or without a time"
    assert found(good, good.slice(0, 0), within="1h", time_unit="s") == [], "an empty stream is no mistake"


# ---------------------------------------------------------------- streams


def test_a_join_of_streams_warns_once_at_its_end() -> None:
    left, right = zoned(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with swjoin.WindowJoin(**BASICS, within="10s", time_unit="ms") as join:
            list(join.push(left=left, right=right.slice(100)))
            assert not caught
            list(join.close())
    assert [w.filename for w in caught] == [__file__] * 2
    assert [str(w.message).split(":")[0] for w in caught] == ["left", "right"]
    ledger = join.ledger
    assert (ledger.left.earliest_us, ledger.left.latest_us) == (YEAR_2026_S * 1000, (YEAR_2026_S + 85_800) * 1000)
    with swjoin.WindowJoin(**BASICS, within="10s", time_unit="s", late="drop", max_out_of_order="0s") as join:
        list(join.push(left=left, right=left.slice(0, 1)))
        list(join.advance(to=YEAR_2026_S + 10**6))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(join.push(right=left.slice(1)))
            list(join.close())
    assert not caught, "it has pairs, and rows that are late, but not all of them"
    assert join.ledger.right.late == 143
    assert join.ledger.right.latest_us == (YEAR_2026_S + 85_800) * 10**6, "late rows belong to the time range"


# ---------------------------------------------------------------- commands and runs


def written(folder: Path, kind: str = "parquet", hours: int = 1) -> list[str]:
    paths = []
    for name, side in zip(("left", "right"), zoned(hours), strict=True):
        paths.append(str(folder / f"{name}.{kind}"))
        (pq.write_table if kind == "parquet" else csv.write_csv)(side, paths[-1])
    return paths


def nearest_in(folder: Path, kind: str = "parquet") -> str:
    row = "line 2" if kind == "csv" else "row 0 (counting from 0)"
    places = [f"{side} {folder}/{side}.{kind}, {row}" for side in ("left", "right")]
    return (
        "nothing matched, though 144 keys are on both sides: the nearest pair with equal keys is 59 min 50 s outside the "
        f"bounds (right 1 h after left): {', '.join(places)}"
    )


JOIN = ("--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "s", "--within", "10s")
RANGES = ["2026-01-01T00:00:00 to 2026-01-01T23:50:00", "2026-01-01T01:00:00 to 2026-01-02T00:50:00"]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_the_command_prints_each_warning_once(kind: str, swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("join", *written(tmp_path, kind), *JOIN, "-o", tmp_path / "out.csv", "--report", tmp_path / "r.json")
    assert (done.code, done.err) == (0, [f"swjoin: warning: {nearest_in(tmp_path, kind)}"])
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines() if " times" not in line)
    assert lines["warnings"] == "1, on standard error and in the report"
    assert lines["columns"] == "key, left_ts, right_ts"
    assert not {"throughput", "production"} & set(lines), "three rows have no throughput"
    for side, text in zip(("left", "right"), RANGES, strict=True):
        assert f"{side} times".ljust(18) + text in done.out.splitlines()
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["warnings"] == [nearest_in(tmp_path, kind)]
    assert report["results"]["columns"] == ["key", "left_ts", "right_ts"]
    assert report["input"]["left"] == {
        "tuples": 144,
        "earliest_us": YEAR_2026_S * 10**6,
        "latest_us": (YEAR_2026_S + 85_800) * 10**6,
        "earliest": "2026-01-01T00:00:00",
        "latest": "2026-01-01T23:50:00",
    }


def test_a_plausible_answer_has_none(swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("join", *written(tmp_path, hours=0), *JOIN, "-o", "count", "--report", tmp_path / "r.json")
    assert (done.code, done.err) == (0, [])
    assert "warnings" not in done.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["warnings"], report["results"]["matches"], report["results"]["columns"]) == ([], 144, None)


def test_paced_runs_show_delay_and_throughput(swjoin: Any, tmp_path: Path) -> None:
    case = Case("near zero", ([1, 2], [10, 40_000]), ([1, 2], [20, 60_000]), (-100, 30_000))
    config = case.write(tmp_path, pace="realtime", cluster={"distribution_epoch_us": 20_000})
    done = swjoin("run", config, "--out", tmp_path / "run")
    assert (done.code, done.err) == (0, [])
    assert "throughput" in done.out
    assert "production delay" in done.out
    assert "left times        10 us to 40 ms" in done.out


def plain(folder: Path, **sections: Any) -> dict[str, Any]:
    left, right = written(folder)
    streams = {n: {"path": p, "key": ["key"], "time": "ts", "time_unit": "s"} for n, p in (("left", left), ("right", right))}
    return {**streams, "join": {"within": "10s"}, **sections}


def test_a_run_from_python_shows_them_everywhere(tmp_path: Path) -> None:
    with pytest.warns(swjoin.ImplausibleWarning) as caught:
        run = swjoin.run(plain(tmp_path), out=tmp_path / "run")
    assert [(str(w.message), w.filename) for w in caught] == [(nearest_in(tmp_path), __file__)]
    assert repr(run).endswith(", digest 0000000000000000, 1 warning>")
    shown = run._repr_html_()
    page = build(tmp_path / "run").text()
    for html in (shown, page):
        assert "59 min 50 s outside the bounds" in html
        assert all(text in html for text in RANGES)
    assert "implausible" in page
    assert "input tuples per second" not in page
    assert "<th style='text-align:left'>speed" not in shown


def test_they_survive_stops_and_resumptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 20)
    cluster = {"distribution_epoch": "1h", "partition_count": 7}
    config = config_from_plain(plain(tmp_path, cluster=cluster, checkpoint={"epochs": 1}))
    report = _in_pieces(config, tmp_path / "run", monkeypatch, [2, 1, 2], [6, 6])
    assert report["checkpoints"]["resumed_from"] is not None
    assert report["warnings"] == [nearest_in(tmp_path)]
    assert [f"{report['input'][s]['earliest']} to {report['input'][s]['latest']}" for s in ("left", "right")] == RANGES
    stopped = config_from_plain(plain(tmp_path, cluster=cluster, checkpoint={"epochs": 1}))
    report = _in_pieces(stopped, tmp_path / "other", monkeypatch, [2], [])
    assert report["warnings"] == [nearest_in(tmp_path)]


@pytest.mark.timeout(120)
def test_live_streams_have_ranges_and_what_follows_from_them(tmp_path: Path) -> None:
    """Pushed rows cannot be read again, so nothing is said of a nearest miss."""
    for base, count in ((YEAR_2026_S * 10**6, 1), (0, 0)):
        settings = live_config(sink={"kind": "count"}, checkpoint={"interval": "0s"})
        with live(settings, tmp_path / str(base), 1) as (run, client):
            for side, first in (("left", 0), ("right", base + 100_000)):
                rows = {"key": [1, 1], "ts": [first, first + 200_000], "id": [0, 1]}
                client.push(side, pa.table(rows), producer="a", end=True)
                client.end(side)
            report = run.end()
        assert report["results"]["count"] == 0
        apart = "cannot meet within the bounds: left 1970-01-01T00:00:00 to 1970-01-01T00:00:00.2, right 2026-"
        assert [apart in line for line in report["warnings"]] == [True] * count
        assert report["input"]["right"]["latest_us"] == base + 300_000


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_on_ranks(tmp_path: Path) -> None:
    """The launcher passes warnings on though nothing has failed; the API says the same there as in this process."""
    line = [sys.executable, "-m", "swjoin", "join", *written(tmp_path), *JOIN, "--how", "anti", "-n", "3"]
    line += ["-o", str(tmp_path / "out.parquet"), "--report", str(tmp_path / "r.json")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"swjoin: warning: {nearest_in(tmp_path)}"]
    assert "left times        2026-01-01T00:00:00 to 2026-01-01T23:50:00" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["warnings"], report["results"]["count"], report["results"]["matches"]) == ([nearest_in(tmp_path)], 144, 0)
    options = {"within": "10s", "time_unit": "s", "how": "left"}
    assert found(*zoned(1), **options, ranks=3) == found(*zoned(1), **options)


def test_the_time_range_is_that_of_all_rows_however_they_come() -> None:
    """The intake looks at the times themselves only where it has to."""
    random = np.random.default_rng(6)
    for _ in range(200):
        bound = int(random.choice([0, 3, 50]))
        intake = StreamIntake(0, TimeConfig("event", bound, "drop"), live=bool(random.integers(2)))
        seen: list[int] = []
        for _ in range(6):
            n = int(random.integers(0, 8))
            ts = np.sort(random.integers(0, 200, n)) if random.integers(2) else random.integers(0, 200, n)
            if random.random() < 0.2 and seen:
                intake.carry(max(seen) + 100)
                intake.become_active()  # the highest time is no row's then
            masks = [None if random.integers(2) else random.random(n) < 0.7 for _ in range(2)]
            intake.read(SourceBatch(ts, ts, ts.astype(np.uint64), *masks), 0)
            seen += ts.tolist() if masks[1] is None else ts[masks[1]].tolist()
            counts = intake.counts
            assert (counts.earliest_us, counts.latest_us) == ((min(seen), max(seen)) if seen else (None, None))


# ---------------------------------------------------------------- what lies beside the files of an input


def folder_with_others(path: Path) -> Path:
    """A data file, what Spark leaves beside it, and what is not read."""
    path.mkdir()
    pq.write_table(table([1, 2]), path / "a.parquet")
    for name in ("_SUCCESS", ".a.parquet.crc", "c.xml", "d.txt"):
        (path / name).write_text("t,k\n")
    (path / "more").mkdir()
    (path / "_delta_log").mkdir()
    pq.write_table(table([3]), path / "more" / "a.parquet")
    return path


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
def test_entries_of_a_directory_that_are_not_read(ranks: int | None, tmp_path: Path) -> None:
    left = folder_with_others(tmp_path / "left")
    pq.write_table(table([1, 2]), tmp_path / "right.parquet")
    line = f"left: {left}: 2 files are not read: c.xml, d.txt; name files of one format, or give their folder"
    argv = [str(left), str(tmp_path / "right.parquet"), "--on", "key", "--left-time", "ts", "--right-time", "ts"]
    argv += ["--time-unit", "s", "--within", "0s", "-o", "count", "--report", str(tmp_path / "report.json")]
    argv += [] if ranks is None else ["-n", str(ranks)]
    argv = [sys.executable, "-m", "swjoin", "join", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"swjoin: warning: {line}"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["warnings"] == [line]
    assert report["results"]["count"] == 2
    if ranks is None:
        assert found(left, tmp_path / "right.parquet", within="0s", time_unit="s") == [line]  # type: ignore[arg-type]


def test_many_entries_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,ts\n")
    assert find_files(tmp_path).unread is None
    (tmp_path / "bad\nname.txt").write_text("")
    assert find_files(tmp_path).unread == (
        f"{tmp_path}: 1 file is not read: 'bad\\nname.txt'; name files of one format, or give their folder"
    )
    for number in range(9):
        (tmp_path / f"{number}.xml").write_text("")
    text = find_files(tmp_path).unread
    assert text is not None
    assert "10 files are not read: 0.xml, 1.xml, 2.xml, 3.xml, 4.xml and 5 more; " in text
    assert find_files(tmp_path / "a.csv").unread is None


@pytest.mark.parametrize(("within", "rows", "is_told"), [("1h", 1_500, True), ("1ms", 1_500, False), ("1h", 500, False)])
def test_a_window_that_is_longer_than_the_data(within: str, rows: int, is_told: bool) -> None:
    table = pa.table({"k": np.arange(rows), "t": np.arange(rows) * 10})
    for match in ("all", "last", "nearest"):
        options: dict[str, Any] = {"left_time": "t", "right_time": "t", "time_unit": "us", "match": match}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            swjoin.count(table, table, on="k", within=within, **options)
        assert ["is longer than the data" in str(w.message) for w in caught] == [True] * is_told

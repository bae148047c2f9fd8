"""Times in every form on every front end: the same pairs as by brute force, or exactly one line that refuses them."""

from __future__ import annotations

import datetime as dt
import json
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.cli.main import main
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.connectors.directory import source as watch_module
from swjoin.connectors.flight.client import connect
from swjoin.connectors.kafka.decoder import MessageDecoder
from swjoin.connectors.open import open_live_sources
from swjoin.connectors.schema import parse_schema
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.units import check_time_zone
from swjoin.runtime.in_process import run_local
from tests.support.live_runs import config as live_config
from tests.support.live_runs import in_thread, live
from tests.support.time_matrix import BERLIN, DAYS, MATRIX, NO_RIGHT, SIDES, WRITERS, Times, _write_csv, expected, local, table

pytestmark = pytest.mark.timeout(200)


# ---------------------------------------------------------------- front ends


def _options(times: Times) -> dict[str, Any]:
    """As arguments of the Python API; a unit of both sides is said once."""
    found: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "within": "1d"}
    if times.unit is not None:
        found["time_unit"] = times.unit
    elif len(times.units) == 2 and len(set(times.units.values())) == 1:
        found["time_unit"] = times.units["left"]
    else:
        found |= {f"{side}_time_unit": unit for side, unit in times.units.items()}
    return found if times.zone is None else {**found, "assume_timezone": times.zone}


def _sides(times: Times, places: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Both sides of a configuration."""
    plain: dict[str, Any] = {}
    for side, form in zip(SIDES, (times.left, times.right), strict=True):
        plain[side] = {**places[side], "key": "key", "time": "ts"}
        unit = times.unit or times.units.get(side)
        if unit is not None:
            plain[side]["time_unit"] = unit
        if times.zone is not None and (form in ("naive", "local", "date") or times.refusal):
            plain[side]["assume_timezone"] = times.zone
    return plain


def _files(times: Times, folder: Path, suffix: str) -> list[Path]:
    paths = []
    for side, form in zip(SIDES, (times.left, times.right), strict=True):
        paths.append(folder / f"{side}.{suffix}")
        WRITERS[suffix](table(form, side), paths[-1])
    return paths


def _command(times: Times, folder: Path, suffix: str, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    given = [f"--{name.replace('_', '-')}={value}" for name, value in _options(times).items()]
    report = folder / "report.json"
    capfd.readouterr()
    code = main(["join", *map(str, _files(times, folder, suffix)), *given, "-o", "count", "--report", str(report), *more])
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("swjoin: ")]
    if code:
        assert code == 2, said
        raise UserError(*said)
    found = json.loads(report.read_text())["results"]
    return found["count"], found["digest"]


def _proof_of(found: Any) -> tuple[int, str]:
    return found.count, found.digest


def _tables(times: Times) -> list[pa.Table]:
    return [table(form, side) for form, side in zip((times.left, times.right), SIDES, strict=True)]


def _windowed(times: Times) -> tuple[int, str]:
    with swjoin.WindowJoin(**_options(times)) as join:
        for side, whole in zip(SIDES, _tables(times), strict=True):
            for at in range(0, len(whole), 5):
                list(join.push(**{side: whole.slice(at, 5)}))
        list(join.close())
    return join.count, join.digest


def _run(plain: dict[str, Any], folder: Path) -> tuple[int, str]:
    whole = {"join": {"within": "1d"}, "sink": {"kind": "count"}, "cluster": {"partition_count": 4}, **plain}
    report = run_local(Job(config_from_plain(whole), None, True, folder / "run", None, "test"), False, 2)
    return report["results"]["count"], report["results"]["digest"]


def _watched(times: Times, folder: Path) -> tuple[int, str]:
    places = {}
    for side, whole in zip(SIDES, _tables(times), strict=True):
        (folder / side).mkdir()
        half = len(whole) // 2
        pq.write_table(whole.slice(0, half), folder / side / "a.parquet")
        pq.write_table(whole.slice(half), folder / side / "b.parquet")
        (folder / side / "_END").touch()
        places[side] = {"watch": str(folder / side)}
    return _run(
        {**_sides(times, places), "pace": "realtime", "time": {"late": "side"}, "cluster": {"distribution_epoch": "50ms"}},
        folder,
    )


@pytest.fixture
def answer(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Times], Any]:
    monkeypatch.setattr(watch_module, "_POLL_S", 0.02)

    def of(front: str, times: Times) -> tuple[int, str]:
        match front:
            case "join CSV" | "join Parquet" | "join IPC":
                return _command(times, tmp_path, {"CSV": "csv", "Parquet": "parquet", "IPC": "arrow"}[front[5:]], capfd)
            case "swjoin.join":
                return _proof_of(swjoin.proof(swjoin.join(*_tables(times), **_options(times))))
            case "swjoin.join of pandas":
                return _proof_of(swjoin.proof(swjoin.join(*(t.to_pandas() for t in _tables(times)), **_options(times))))
            case "swjoin.count of CSV":
                return _proof_of(swjoin.count(*_files(times, tmp_path, "csv"), **_options(times)))
            case "WindowJoin":
                return _windowed(times)
            case "run":
                paths = _files(times, tmp_path, "parquet")
                return _run(_sides(times, {s: {"path": str(p)} for s, p in zip(SIDES, paths, strict=True)}), tmp_path)
            case _:
                return _watched(times, tmp_path)

    return of


FRONTS = [
    "join CSV",
    "join Parquet",
    "join IPC",
    "swjoin.join",
    "swjoin.join of pandas",
    "swjoin.count of CSV",
    "WindowJoin",
    "run",
    "watch",
]


@pytest.mark.drawn
@pytest.mark.parametrize("times", MATRIX, ids=lambda t: t.name)
@pytest.mark.parametrize("front", FRONTS)
def test_every_front_end(front: str, times: Times, answer: Callable[[str, Times], Any]) -> None:
    if times.refusal is None:
        assert answer(front, times) == expected()
        return
    with pytest.raises(UserError, match=times.refusal) as caught:
        answer(front, times)
    assert "\n" not in str(caught.value)
    if front.startswith(("swjoin.", "Window")):
        assert "--" not in str(caught.value)


# ---------------------------------------------------------------- live streams

LIVE = [
    t
    for t in MATRIX
    if t.refusal or t.name in ("utc berlin", "utc local in Europe/Berlin", "ns local in Europe/Berlin", "s ns")
]


def _live(times: Times, source: dict[str, Any]) -> dict[str, Any]:
    places = {}
    for side, form in zip(SIDES, (times.left, times.right), strict=True):
        places[side] = {**source, "schema": f"key: int64, ts: {table(form, side).schema.field('ts').type}"}
    plain = live_config(join={"within": "1d"}, sink={"kind": "count"})
    return {**plain, **_sides(times, places)}


@pytest.mark.parametrize("times", LIVE, ids=lambda t: t.name)
def test_streams_that_producers_push(times: Times, tmp_path: Path) -> None:
    plain = _live(times, {"flight": {}})
    if times.refusal is not None:
        with pytest.raises(UserError, match=times.refusal):
            open_live_sources(config_from_plain(plain), None)
        return
    with live(plain, tmp_path) as (run, _):
        pushes = [in_thread(_push, run.address, side, whole) for side, whole in zip(SIDES, _tables(times), strict=True)]
        for push in pushes:
            push.join(60)
        assert run.result() == expected()


def _push(address: str, side: str, whole: pa.Table) -> None:
    with connect(address) as client:
        with client.producer(side, "a") as producer:
            for at in range(0, len(whole), 5):
                producer.push(whole.slice(at, 5))
            producer.end()
        client.end(side)


@pytest.mark.parametrize("times", [t for t in LIVE if t.refusal], ids=lambda t: t.name)
def test_streams_of_messages(times: Times) -> None:
    """Refused before any broker is asked."""
    with pytest.raises(UserError, match=times.refusal):
        open_live_sources(config_from_plain(_live(times, {"kafka": {"servers": "127.0.0.1:1", "topic": "t"}})), None)


def test_producers_of_one_stream_push_times_of_its_kind(tmp_path: Path) -> None:
    plain = _live(Times("naive", "local", zone="Europe/Berlin"), {"flight": {}})
    with live(plain, tmp_path) as (_, client):
        with pytest.raises(
            UserError, match=r"push: column ts is .*UTC\], the stream wants timestamp\[s\]: one has a time zone"
        ):
            client.push("left", table("utc", "left"), producer="two")
        with pytest.raises(UserError, match=r"push: column ts is int64, .*: a number has no unit; cast it first"):
            client.push("left", table("s", "left"), producer="two")
        own = table("utc", "left").to_batches()[0]
        with (
            pytest.raises(SwjoinError, match=r"ts is .*UTC\], expected timestamp\[s\]; give all of its times a zone, or none"),
            client.producer("left", "three", own.schema) as producer,
        ):
            producer.push(own)
        twice = pa.table({"key": [1, 1], "ts": pa.array([dt.datetime(2026, 4, 1), dt.datetime(2026, 10, 25, 2, 30)])})
        with pytest.raises(
            SwjoinError, match=r"row 1 of the batch .*: time column ts is 2026-10-25 02:30:00, which exists twice"
        ):
            client.push("left", twice, producer="four")


def test_rows_that_the_command_pushes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Local times of a CSV file go into a stream with a zone once their zone is named."""
    for side in SIDES:
        _write_csv(table("local", side), tmp_path / f"{side}.csv")
    (tmp_path / "gap.csv").write_text("key,ts\n1,2026-04-03 10:00\n1,2027-03-28 02:30\n")
    _write_csv(table("s", "left"), tmp_path / "numbers.csv")

    def push(address: str, side: str, name: str, *options: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(["push", address, side, str(tmp_path / name), *options])
        return code, capfd.readouterr().err.strip()

    with live(_live(Times("utc", "berlin"), {"flight": {}}), tmp_path / "run") as (run, client):
        for options, name, text in (
            (
                [],
                "left.csv",
                "left.csv: column ts is timestamp[ns], the stream wants timestamp[us, tz=UTC]: one has a time zone",
            ),
            ([], "numbers.csv", "a number has no unit; cast it first"),
            (["--assume-timezone", "Mars"], "left.csv", "swjoin: --assume-timezone: 'Mars' is no time zone"),
            (["--assume-timezone", "UTC"], "numbers.csv", "numbers.csv: --assume-timezone has no effect"),
            (
                ["--assume-timezone", "Europe/Berlin"],
                "gap.csv",
                "gap.csv, line 3: column ts is 2027-03-28 02:30:00",
            ),
        ):
            code, said = push(run.address, "left", name, *options)
            assert code == 2
            assert text.replace("timestamp[ns]", "timestamp[s]") in said
        words = [[run.address, side, str(tmp_path / f"{side}.csv"), "--assume-timezone", "Europe/Berlin"] for side in SIDES]
        pushes = [in_thread(main, ["push", *each]) for each in words]
        for side, thread in zip(SIDES, pushes, strict=True):
            thread.join(60)
            client.end(side)
        assert run.result() == expected()


@pytest.mark.parametrize(
    ("kind", "text", "usable"),
    [
        ("timestamp[us]", "2026-03-29T01:30:00", True),
        ("timestamp[us]", "2026-03-29", True),
        ("timestamp[us]", "2026-03-29T01:30:00Z", False),
        ("timestamp[us]", "2026-03-29T01:30:00+02:00", False),
        ("timestamp[us, tz=UTC]", "2026-03-29T01:30:00Z", True),
        ("timestamp[us, tz=UTC]", "2026-03-29T01:30:00+02:00", True),
        ("timestamp[us, tz=UTC]", "2026-03-29T01:30:00", False),
        ("timestamp[us, tz=UTC]", "2026-03-29", False),
    ],
)
def test_json_messages(kind: str, text: str, usable: bool) -> None:
    """One of another kind does not spoil its neighbours, and says what is wrong with it."""
    schema = parse_schema(f"key: int64, ts: {kind}", "test")
    decoder = MessageDecoder("json", schema, lambda _: None, None)
    good = "2026-01-01T00:00:00" + ("" if kind == "timestamp[us]" else "Z")
    messages = [json.dumps({"key": i, "ts": t}).encode() for i, t in enumerate((good, text, good))]
    decoded = decoder.decode(messages, np.full(3, -1))
    assert decoded.unusable.tolist() == [False, not usable, False]
    assert decoded.batch.column("key").to_pylist() == [0, 1 if usable else None, 2]
    if usable:
        assert decoder.complaint is None
        assert decoded.batch.column("ts")[1].as_py() == dt.datetime.fromisoformat(text).replace(tzinfo=None) or "T" in text
    else:
        assert decoder.complaint is not None
        assert "column ts, declared as timestamp[us" in decoder.complaint
        assert "zone offset" in decoder.complaint


@pytest.mark.parametrize("declared", ["utc", "naive"])
def test_arrow_messages(declared: str) -> None:
    other = "naive" if declared == "utc" else "utc"
    decoder = MessageDecoder("arrow", table(declared, "left").schema, lambda _: None, None)
    messages = []
    for form in (declared, other):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table(form, "left").schema) as writer:
            writer.write_table(table(form, "left"))
        messages.append(sink.getvalue().to_pybytes())
    decoded = decoder.decode(messages, np.full(2, -1))
    assert decoded.unusable.tolist() == [False] * len(DAYS["left"]) + [True]
    assert "give all of its times a zone, or none" in str(decoder.complaint)


def test_the_broker_s_time_has_a_zone() -> None:
    with pytest.raises(UserError, match="declare it as a timestamp with a zone"):
        MessageDecoder("json", parse_schema("key: int64, _timestamp: timestamp[ms]", "test"), lambda _: None, None)


def test_a_file_of_another_kind_in_a_watched_folder(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    pq.write_table(table("utc", "left"), folder / "a.parquet")
    pq.write_table(table("utc", "left").cast(table("naive", "left").schema), folder / "b.parquet")
    (folder / "_END").touch()
    plain = {
        "join": {"within": "1d"},
        "left": {"watch": str(folder), "time": "ts"},
        "right": {"watch": str(folder), "time": "ts"},
    }
    with pytest.raises(UserError, match=r"b.parquet: wrong schema: column ts is .*; give all of its times a zone, or none"):
        _run({**plain, "pace": "realtime", "time": {"late": "side"}, "cluster": {"distribution_epoch": "50ms"}}, tmp_path)


# ---------------------------------------------------------------- within one side


def mixed(folder: Path, *texts: str) -> str:
    """A folder of CSV files; a text is the times of one of them."""
    folder.mkdir()
    for i, text in enumerate(texts):
        rows = "".join(f"1,{time}\n" for time in text.split())
        (folder / f"{i}.csv").write_text(f"key,ts\n{rows}")
    return str(folder)


MIXED = {
    "rows": (
        ["2026-01-01T10:00 2026-01-01T11:00 2026-01-01T12:00Z"],
        r"0\.csv, line 4: column ts: '2026-01-01T12:00Z' has a time",
    ),
    "rows with offsets": (
        ["2026-01-01T10:00+01:00 2026-01-01T11:00"],
        r"0\.csv, line 3: .*'2026-01-01T11:00' has no time zone",
    ),
    "files": (["2026-01-01T10:00", "2026-01-01T11:00-0500 2026-01-01T12:00Z"], r"1\.csv, line 2: .*'.*-0500' has a time zone"),
    "a later block": (["2026-01-01T10:00Z " * 300_000 + "2026-01-02T12:00:07"], r"0\.csv, line 300002: .*has no time zone"),
}


def _join_of(front: str, left: str, right: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = {"on": "key", "left_time": "ts", "right_time": "ts", "within": "1s"}
    match front:
        case "join":
            words = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
            assert main(["join", left, right, *words, "-o", "count"]) == 2
            raise UserError(capfd.readouterr().err.strip())
        case "swjoin.count":
            swjoin.count(left, right, **arguments)  # type: ignore[arg-type]
        case _:
            _run({side: {"path": path, "time": "ts"} for side, path in zip(SIDES, (left, right), strict=True)}, folder)


@pytest.mark.drawn
@pytest.mark.parametrize("front", ["join", "swjoin.count", "run"])
@pytest.mark.parametrize("case", MIXED)
def test_one_side_that_mixes(case: str, front: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts, message = MIXED[case]
    path, good = mixed(tmp_path / "mixed", *texts), mixed(tmp_path / "good", texts[0].split()[0])
    for both in ((path, good), (good, path)):
        with pytest.raises(UserError, match=message + ".*; give all of them a zone, or none"):
            _join_of(front, *both, tmp_path, capfd)


def test_parquet_files_that_mix(tmp_path: Path) -> None:
    pq.write_table(table("naive", "left"), tmp_path / "a.parquet")
    pq.write_table(table("utc", "left"), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b.parquet: column ts is timestamp\[us, tz=UTC\], before it was timestamp"):
        swjoin.count(tmp_path, tmp_path, on="key", left_time="ts", right_time="ts", within="1s")


def test_objects_of_pandas_that_mix() -> None:
    import pandas as pd

    at = dt.datetime(2026, 1, 1, 10)
    for first, second in ((at, at.replace(tzinfo=dt.UTC)), (at.replace(tzinfo=BERLIN), at)):
        frame = pd.DataFrame({"key": [1, 1, 1], "ts": pd.Series([first, None, second], dtype=object)})
        good = pa.table({"key": [1], "ts": pa.array([first])})
        arguments: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "within": "1s"}
        with pytest.raises(UserError, match=r"right, row 2 \(counting from 0\): column ts: .* in row 0 is .* a zone, or none"):
            swjoin.join(good, frame, **arguments, late="drop")
        with swjoin.WindowJoin(**arguments, late="drop") as join:
            with pytest.raises(UserError, match="left, row 2"):
                join.push(left=frame)
            join.cancel()
            list(join.close()) if not join.closed else None
    several = pd.DataFrame(
        {"key": [1, 1], "ts": pd.Series([at.replace(tzinfo=BERLIN), at.replace(tzinfo=dt.UTC)], dtype=object)}
    )
    assert swjoin.count(several, several, **arguments).count == 2


def test_a_later_batch_of_another_kind() -> None:
    with swjoin.WindowJoin(on="key", left_time="ts", right_time="ts", within="1d") as join:
        list(join.push(left=table("utc", "left"), right=table("berlin", "right")))
        with pytest.raises(UserError, match=r"left: column ts is timestamp\[s\], the stream wants .*: one has"):
            join.push(left=table("naive", "left"))
        list(join.close())
        assert (join.count, join.digest) == expected()
    schemas = {"left_schema": table("utc", "left").schema, "right_schema": table("naive", "right").schema}
    with pytest.raises(UserError, match=NO_RIGHT):
        swjoin.WindowJoin(on="key", left_time="ts", right_time="ts", within="1d", **schemas)


# ---------------------------------------------------------------- local times


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("2026-10-25T02:30:00", "is 2026-10-25 02:30:00, which exists twice in Europe/Berlin: its clocks are turned back"),
        ("2026-03-29T02:30:00", "is 2026-03-29 02:30:00, which does not exist in Europe/Berlin: its clocks are turned forward"),
    ],
)
def test_local_times_that_exist_twice_or_never(time: str, message: str, tmp_path: Path) -> None:
    whole = pa.concat_tables([local("2026-03-01", "2026-03-02"), local(time)])
    arguments: dict[str, Any] = {
        "left_time": "ts",
        "right_time": "ts",
        "on": "key",
        "within": "1s",
        "assume_timezone": "Europe/Berlin",
    }
    with pytest.raises(UserError, match=r"left, row 2 \(counting from 0\): time column ts " + message):
        swjoin.count(whole, whole, **arguments)
    (tmp_path / "in").mkdir()
    pq.write_table(whole.slice(0, 1), tmp_path / "in" / "a.parquet")
    pq.write_table(whole.slice(1), tmp_path / "in" / "b.parquet")
    side = {"path": str(tmp_path / "in"), "time": "ts", "assume_timezone": "Europe/Berlin"}
    with pytest.raises(UserError, match=r"b.parquet, row 1 \(counting from 0\): time column ts " + message):
        _run({"left": side, "right": side}, tmp_path)
    day = pa.table({"key": [1], "ts": pa.array([dt.date(2026, 9, 6)])})  # midnight is when Chile's clocks are turned forward
    with pytest.raises(UserError, match="is 2026-09-06 00:00:00, which does not exist in America/Santiago"):
        swjoin.count(day, day, **{**arguments, "assume_timezone": "America/Santiago"})


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])
def test_local_times_are_python_s(zone: str) -> None:
    """Against zoneinfo, over changes of the clocks, before 1970 and with nulls."""
    random = np.random.default_rng(7)
    utc = [dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=int(m)) for m in random.integers(0, 50_000_000, 3000)]
    there = zoneinfo.ZoneInfo(zone)
    once = [at for at in utc if _is_once(at.astimezone(there))]
    assert len(once) > 2900
    shown = pa.table({"ts": pa.array([at.astimezone(there).replace(tzinfo=None) for at in once], pa.timestamp("s"))})
    meant = pa.table({"ts": pa.array(once, pa.timestamp("us", "UTC"))})
    shown, meant = (t.append_column("key", pa.array(range(len(once)), pa.int64())) for t in (shown, meant))
    arguments: dict[str, Any] = {"left_time": "ts", "right_time": "ts", "on": "key", "within": "0s"}
    found = swjoin.join(shown, meant, **arguments, assume_timezone=zone, ids=True).sort_by("left_id")
    assert found.column("left_ts").to_pylist() == meant.column("ts").cast(pa.int64()).to_pylist()
    assert found.column("right_ts").equals(found.column("left_ts"))
    assert found.select(["left_ts"]).num_rows == len(once)


def _is_once(at: dt.datetime) -> bool:
    return at.replace(fold=0).utcoffset() == at.replace(fold=1).utcoffset()


@pytest.mark.parametrize("front", ["join", "WindowJoin", "command"])
def test_columns_come_out_as_they_went_in(front: str, tmp_path: Path) -> None:
    """With a zone assumed, too, and in a unit that is not carried besides."""
    left, right = local("2026-07-01T12:00:00", "2026-07-01T12:00:05"), local("2026-07-01T10:00:03")
    right = right.set_column(1, "ts", right.column("ts").cast(pa.timestamp("us", "UTC")))
    arguments: dict[str, Any] = {
        "left_time": "ts",
        "right_time": "ts",
        "on": "key",
        "within": "4s",
        "assume_timezone": "Europe/Berlin",
    }
    if front == "join":
        found = swjoin.join(left, right, **arguments)
    elif front == "WindowJoin":
        with swjoin.WindowJoin(**arguments) as join:
            found = pa.Table.from_batches([*join.push(left=left, right=right), *join.close()])
    else:
        for name, rows in (("left", left), ("right", right)):
            pq.write_table(rows, tmp_path / f"{name}.parquet")
        words = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
        files = [str(tmp_path / f"{name}.parquet") for name in SIDES]
        assert main(["join", *files, *words, "-o", str(tmp_path / "out.parquet")]) == 0
        found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.field("left_ts").type == pa.timestamp("us")
    assert found.schema.field("right_ts").type == pa.timestamp("us", "UTC")
    assert sorted(found.column("left_ts").to_pylist()) == left.column("ts").to_pylist()


def test_promises_have_zones_too() -> None:
    at = dt.datetime(2026, 7, 1, 12)
    arguments: dict[str, Any] = {"left_time": "ts", "right_time": "ts", "on": "key", "within": "1s"}
    naive = local("2026-07-01T12:00:00").schema
    with swjoin.WindowJoin(**arguments, left_schema=naive, right_schema=naive) as join:
        with pytest.raises(
            UserError, match=r"advance: 2026-07-01 12:00:00\+00:00 and .* one has a time zone, the other has none"
        ):
            join.advance(at.replace(tzinfo=dt.UTC))
        join.cancel()
    utc = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    for promise in (at, at.replace(tzinfo=BERLIN), dt.datetime(2026, 7, 1, 10, tzinfo=dt.UTC)):
        both = {"left_schema": naive, "right_schema": utc}
        join = swjoin.WindowJoin(**arguments, **both, assume_timezone="Europe/Berlin")
        list(join.advance(promise))
        for side, early in (("left", local("2026-07-01T11:59:59")), ("right", local("2026-07-01T09:59:59").cast(utc))):
            with pytest.raises(UserError, match="its time is 1s behind"):
                join.push(**{side: early})
        with pytest.raises(UserError, match=r"advance: .*2026, 10, 25, 2, 30.* which exists twice in Europe/Berlin"):
            join.advance(dt.datetime(2026, 10, 25, 2, 30))
        join.cancel()


def test_names_of_zones() -> None:
    for good in ("UTC", "Europe/Berlin", "Etc/GMT-2", "CET"):
        check_time_zone(good)
    for wrong, near in (
        ("berlin", "Europe/Berlin"),
        ("utc", "UTC"),
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
    ):
        with pytest.raises(UserError, match=f"assume_timezone: '{wrong}' is no time zone; did you mean {near}"):
            check_time_zone(wrong)
    for wrong in ("", "../x", "/etc/passwd", "+02:00", "\0", "x" * 5000, "Europe", 7):
        with pytest.raises(UserError, match="is no time zone; ") as caught:
            check_time_zone(wrong)
        assert len(str(caught.value)) < 200


def test_a_unit_per_side_and_one_for_both() -> None:
    arguments: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "within": "1d"}
    found = swjoin.count(table("s", "left"), table("ms", "right"), **arguments, time_unit="s", right_time_unit="ms")
    assert (found.count, found.digest) == expected()
    with pytest.raises(UserError, match="give time_unit, or left_time_unit, right_time_unit: not all three"):
        swjoin.count(LEFT_S, LEFT_S, **arguments, time_unit="s", left_time_unit="s", right_time_unit="s")
    with pytest.raises(UserError, match="right_time_unit: 'sec' is not one of"):
        swjoin.count(LEFT_S, LEFT_S, **arguments, time_unit="s", right_time_unit="sec")  # type: ignore[arg-type]


LEFT_S = table("s", "left")


def test_clocks_are_compared_as_they_showed() -> None:
    """Without a zone an hour is missing in the night when clocks are turned forward."""
    arguments: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "lower": "1d", "upper": "1d"}
    left, right = local("2026-03-28T12:00:00"), local("2026-03-29T12:00:00")
    assert swjoin.count(left, right, **arguments).count == 1
    assert swjoin.count(left, right, **arguments, assume_timezone="Europe/Berlin").count == 0
    assert (
        swjoin.count(left, right, **{**arguments, "lower": "23h", "upper": "23h"}, assume_timezone="Europe/Berlin").count == 1
    )


# ---------------------------------------------------------------- ranks and Spark


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize(
    "times", [t for t in MATRIX if t.zone or t.left == "utc" or t.left != t.right][::3], ids=lambda t: t.name
)
def test_ranks(times: Times) -> None:
    if times.refusal is not None:
        with pytest.raises(UserError, match=times.refusal):
            swjoin.count(*_tables(times), **_options(times), ranks=3)
        return
    assert _proof_of(swjoin.count(*_tables(times), **_options(times), ranks=3)) == expected()


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("times", [t for t in MATRIX if t.zone], ids=lambda t: t.name)
def test_the_command_on_ranks(times: Times, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if times.refusal is not None:
        with pytest.raises(UserError, match=times.refusal):
            _command(times, tmp_path, "csv", capfd, "-n", "3")
        return
    assert _command(times, tmp_path, "csv", capfd, "-n", "3") == expected()


# ---------------------------------------------------------------- integers of every width


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("seconds_since", [0, 2_305_843_009, 2_400_000_000, 9_000_000_000, 18_000_000_000])
@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_unsigned_times_are_those_of_signed_ones(unit: Any, per_s: int, seconds_since: int) -> None:
    """Nanoseconds beyond 2262 need the 64th bit."""
    values = [seconds_since * per_s, (seconds_since + 1) * per_s]
    tables = [pa.table({"key": [1, 1], "ts": pa.array(values, pa.uint64())})]
    tables += [pa.table({"key": [1, 1], "ts": pa.array(values, pa.int64())})] if values[1] < 2**63 else []
    for right in tables:
        joined = swjoin.join(tables[0], right, on="key", left_time="ts", right_time="ts", within="0s", time_unit=unit, ids=True)
        assert sorted(joined.column("left_ts").to_pylist()) == [v * 10**6 // per_s for v in values]
        assert joined.column("right_ts") == joined.column("left_ts")


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("value", [2**61, 2**63, 2**64 - 1])
def test_unsigned_times_out_of_range_are_refused(unit: Any, value: int) -> None:
    table = pa.table({"key": [1], "ts": pa.array([value], pa.uint64())})
    with pytest.raises(UserError, match="out of range"):
        swjoin.count(table, table, on="key", left_time="ts", right_time="ts", within="0s", time_unit=unit)


def test_unsigned_nanoseconds_finer_than_microseconds_are_refused() -> None:
    table = pa.table({"key": [1], "ts": pa.array([2**64 - 1], pa.uint64())})
    with pytest.raises(UserError, match="finer than one microsecond"):
        swjoin.count(table, table, on="key", left_time="ts", right_time="ts", within="0s", time_unit="ns")

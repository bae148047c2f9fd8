"""Every state of a run's folder: commands and `swjoin.Run` give what they can, or one line; never an internal error.

A finished run, in process and on ranks, is made once and then spoilt at random: files and folders deleted, cut off,
overwritten or exchanged, values of run.json and verified.json removed, nulled or of another type, columns of tables changed. A
seed repeats a state; `python -m tests.runtime.test_run_folders FIRST COUNT` tries more of them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin as sj
from swjoin.cli.main import main
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.core.errors import RunFailed, SwjoinError
from swjoin.runtime.in_process import run_local
from swjoin.runtime.run_report import partial_report, rank_roles
from tests.fuzzing.mutations import paths_of, spoil_bytes, spoil_plain
from tests.support.checked_html import Checked

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.timeout(600)  # figures take long on a busy machine
PLAIN: dict[str, Any] = {
    "join": {"within": "100ms"},
    "workload": {"rate": 3000, "duration": "1s", "domain": 1000},
    "cluster": {"distribution_epoch": "50ms", "partition_count": 12},
    "reorganization": {"policy": "random", "epoch": "100ms", "random_moves": 2},
    "seed": 3,
}


def make(folder: Path, slaves: int = 3, **sections: Any) -> Path:
    run_local(Job(config_from_plain(PLAIN | sections), folder / "results", True, folder, None, "test"), False, slaves)
    results = json.loads((folder / "run.json").read_text())["results"]
    claimed = {"claimed_count": results["count"], "claimed_digest": results["digest"]}
    verified = {"equal": True, "count": results["count"], "digest": results["digest"], **claimed}
    (folder / "verified.json").write_text(json.dumps(verified))
    (folder / "late.parquet").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("folders") / "run")


# ---------------------------------------------------------------- what is asked of a folder


def asked(folder: Path, out: Path) -> list[list[str]]:
    """Command lines about a run."""
    return [
        ["report", str(folder), "-o", str(out / "page.html")],
        ["plot", str(folder)],
        ["events", str(folder)],
        ["events", str(folder), "--kind", "decided", "--slave", "1"],
        ["verify", str(folder), "--engine", "spark"],
        ["aggregate", str(folder), "--engine", "spark"],
        ["top", str(folder), "--once"],
        ["explain", str(folder)],
        ["run", "--resume", str(folder), "--threads", "1"],
    ]


def _no_spark(*_: object) -> Any:
    raise RunFailed("Spark would start now")


def perform(argv: list[str]) -> tuple[int, list[str]]:
    """Exit code and lines on standard error; Spark is not started."""
    out, err = StringIO(), StringIO()
    homes = ("swjoin.spark.verify", "swjoin.spark.tables")
    modules = [mock.patch(f"{home}.open_session", _no_spark) for home in homes]
    with redirect_stdout(out), redirect_stderr(err), modules[0], modules[1]:
        try:
            code = main(argv)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, err.getvalue().splitlines()


def check(folder: Path, out: Path) -> dict[str, int]:
    """Ask everything; returns the exit codes."""
    codes = {}
    for argv in asked(folder, out):
        code, lines = perform(argv)
        assert code in (0, 1, 2), (argv, code, lines)
        assert len(lines) <= 1, (argv, lines)
        assert (code == 0) == (not lines), (argv, code, lines)
        assert "internal error" not in "".join(lines), (argv, lines)
        codes[argv[0]] = code
        if argv[0] == "report" and code == 0:
            Checked((out / "page.html").read_text(encoding="utf-8"))
    run = sj.Run(folder)
    uses: list[Callable[[], object]] = [
        lambda: sj.Run.open(folder),
        lambda: (run.count, run.digest, run.complete),
        lambda: run.ledger,
        lambda: run.results(),
        lambda: run.metrics(),
        lambda: run.events(),
    ]
    for use in uses:
        with contextlib.suppress(SwjoinError):
            use()
    repr(run)
    Checked(run._repr_html_())
    return codes


# ---------------------------------------------------------------- how it is spoilt


def _values(random: Random, path: Path) -> None:
    """A JSON file with a value removed, nulled or of another type, one to three times."""
    plain = json.loads(path.read_text())
    for _ in range(random.choice((1, 1, 2, 3))):
        kind = random.randrange(3)
        if kind == 0:
            plain = spoil_plain(random, plain)
            continue
        spots = [p for p in paths_of(plain) if p]
        if not spots:
            break
        *above, last = random.choice(spots)
        parent = plain
        for key in above:
            parent = parent[key]
        if kind == 1:
            del parent[last]
        else:
            parent[last] = None
    path.write_text(json.dumps(plain))


def _columns(random: Random, path: Path) -> None:
    """A table with a column removed, renamed, doubled, of nulls, of another type, of odd values; or without rows."""
    table = pq.read_table(path)
    name = random.choice(table.column_names)
    at, n = table.column_names.index(name), len(table)
    odd: list[Any] = [None, "text", -1, 2**62, float("nan"), float("inf"), 1e300, b"\xff", True, [1], {"a": 1}]
    kind = random.randrange(6)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.rename_columns([f"{c}_" if c == name else c for c in table.column_names])
    elif kind == 2:
        table = table.append_column(name, table.column(name))
    elif kind == 3:
        table = table.slice(0, random.choice((0, 1, n)))
    elif kind == 4:
        table = table.set_column(at, name, pa.array([random.choice(odd)] * n))
    else:
        values = table.column(name).to_pylist()
        if values:
            values[random.randrange(n)] = {
                int: random.choice([-1, 2**62, None]),
                float: random.choice([-1.0, 1e300, None]),
            }.get(type(values[0]), "odd \u202e\n")
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


def _replaced(random: Random, path: Path) -> None:
    """Something else of this name."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    kind = random.randrange(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path.parent / "nowhere")
    else:
        path.write_bytes(random.choice((b"", b"{}", b"[]", b"null", b"\0" * 100, b"PAR1PAR1", b'{"config": {}, "ledger": {}}')))


def spoil(random: Random, folder: Path) -> str:
    """One change somewhere in the folder; says what was done."""
    paths = sorted(p for p in folder.rglob("*") if not p.is_symlink())
    if not paths:
        return "nothing left"
    path = random.choice([*paths, *(p for p in paths if p.name == "run.json")])
    kind = random.randrange(6)
    what = f"{path.relative_to(folder)}: "
    if kind == 0:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return what + "deleted"
    if kind == 1 or path.is_dir():
        _replaced(random, path)
        return what + "replaced"
    if kind in (2, 3):
        try:
            if path.suffix == ".json":
                _values(random, path)
                return what + "other values"
            if path.suffix == ".parquet":
                _columns(random, path)
                return what + "other columns"
        except (ValueError, pa.ArrowException, TypeError, KeyError, IndexError, OSError):
            pass  # spoilt before
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data) + 1)] if kind == 4 else spoil_bytes(random, data, [data]))
    return what + "other bytes"


def try_seed(seed: int, template: Path, out: Path) -> None:
    random = Random(seed)
    folder = out / "a run"
    shutil.copytree(template, folder)
    done = [spoil(random, folder) for _ in range(random.choice((1, 1, 2, 3)))]
    try:
        check(folder, out)
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(done)}")
        raise


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(8))
def test_spoilt_folders(seed: int, finished: Path, tmp_path: Path) -> None:
    try_seed(seed, finished, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_spoilt_folders(finished: Path, tmp_path: Path) -> None:
    for seed in range(1000, 1150):
        try_seed(seed, finished, tmp_path)
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


@pytest.mark.drawn
@pytest.mark.parametrize("key", ["results", "ledger", "input", "memory", "ranks", "config", "delay_s", "complete", "versions"])
def test_every_part_of_the_report_may_be_missing_or_null(key: str, finished: Path, tmp_path: Path) -> None:
    report = json.loads((finished / "run.json").read_text())
    for path in [*[p for p in paths_of(report[key]) if len(p) <= 2][:32:8], ()]:
        for removed in (True, False):
            plain = copy.deepcopy(report)
            *above, last = (key, *path)
            parent = plain
            for part in above:
                parent = parent[part]
            if removed:
                del parent[last]
            else:
                parent[last] = None
            folder = tmp_path / "run"
            folder.mkdir()
            (folder / "run.json").write_text(json.dumps(plain))
            try:
                check(folder, tmp_path)
            except BaseException as error:
                error.add_note(f"{key}{path}: {'removed' if removed else 'null'}")
                raise
            shutil.rmtree(folder)


@pytest.mark.parametrize("spoil_at", [("command",), ("results", "digest"), ("config", "seed"), ("anything",)])
def test_half_a_surrogate_pair_in_the_report(spoil_at: tuple[str, ...], finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    report = json.loads((finished / "run.json").read_text())
    *above, last = spoil_at
    parent = report
    for key in above:
        parent = parent[key]
    parent[last] = "a\ud800b"
    (folder / "run.json").write_text(json.dumps(report))
    check(folder, tmp_path)
    code, lines = perform(["report", str(folder), "-o", str(tmp_path / "page.html")])
    assert (code, len(lines)) == (2, 1)
    assert "run.json: holds text that is not Unicode" in lines[0]


def test_half_a_surrogate_pair_in_the_verification(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    found = json.loads((folder / "verified.json").read_text())
    (folder / "verified.json").write_text(json.dumps(found | {"digest": "\udfff", "equal": False}))
    assert check(folder, tmp_path)["report"] == 0
    assert "verified.json: is damaged; run swjoin verify again" in (tmp_path / "page.html").read_text()


# ---------------------------------------------------------------- states by name


def failed(folder: Path, count: int | None, ranks: int | None) -> None:
    folder.mkdir()
    job = Job(config_from_plain(PLAIN), folder / "results", True, folder, None, "swjoin run c.yaml")
    known = rank_roles(RankMap(ranks)) if ranks else {"0": {"host": "here", "role": "in-process"}}
    digest = None if count is None else "0" * 16
    report = partial_report(job, {"count": count, "digest": digest}, "stopped by SIGTERM", known)
    (folder / "run.json").write_text(json.dumps(report))


def test_a_run_that_failed_on_ranks(tmp_path: Path) -> None:
    failed(tmp_path / "run", None, 5)
    codes = check(tmp_path / "run", tmp_path)
    assert codes == {"report": 0, "plot": 2, "events": 2, "verify": 1, "aggregate": 2, "top": 2, "explain": 0, "run": 2}
    page = (tmp_path / "page.html").read_text()
    assert "The run failed" in page
    assert "how many pairs is not known" in page
    assert "One process" not in page
    for role in ("0 master", "1 collector", "2 slave 0", "4 slave 2"):
        assert role in page
    assert page.count("stopped by SIGTERM") == 1


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("empty", "file", "link", "none", "file/below", "x" * 300, "a\nb"):
        assert set(check(tmp_path / name, tmp_path).values()) == {2}, name


def test_a_run_that_is_live_or_was_killed(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("run.json", "verified.json", "metrics/slaves.parquet", "metrics/events.parquet"):
        (folder / name).unlink()
    (folder / "metrics" / ".slaves.rows").write_bytes(b"half a row")
    (folder / "metrics" / ".events.jsonl").write_text('{"time_us": 1')
    for address in ("http://127.0.0.1:1", "no address", "http://127.0.0.1:1/a b\n", "", "\0", "file:///etc/hostname"):
        (folder / ".dashboard").write_text(address)
        assert set(check(folder, tmp_path).values()) == {2}


def test_the_report_of_a_live_run_does_not_advise_verify(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "verified.json").unlink()
    report = json.loads((folder / "run.json").read_text())
    side = {"flight": {"producers": 1}, "schema": "key: int64, ts: int64", "time_unit": "us"}
    report["config"]["left"] |= side
    report["config"]["right"] |= side
    report["config"]["serve"]["listen"] = "127.0.0.1:0"
    report["config"]["time"]["late"] = "drop"
    (folder / "run.json").write_text(json.dumps(report))
    assert check(folder, tmp_path)["verify"] == 2
    page = (tmp_path / "page.html").read_text()
    assert "Not verified: its streams arrived live" in page
    assert "recomputes the result" not in page


def test_an_old_report(tmp_path: Path) -> None:
    """Of a version that knew little."""
    folder = tmp_path / "run"
    folder.mkdir()
    old = {
        "config": to_plain(config_from_plain(PLAIN)),
        "ledger": {"balanced": True},
        "results": {"count": 3, "digest": "0" * 16},
    }
    (folder / "run.json").write_text(json.dumps(old))
    codes = check(folder, tmp_path)
    assert codes["report"] == 0
    page = (tmp_path / "page.html").read_text()
    assert "3 pairs" in page
    assert "On how many ranks it ran is not known" in page


def test_a_run_of_one_epoch_is_seen(tmp_path: Path) -> None:
    """One point is a marker, and matplotlib has nothing to say."""
    from plots.run_overview import plot

    quick = {"workload": {"rate": 3000, "duration": "100ms", "domain": 10}, "reorganization": {"policy": "none"}}
    folder = make(tmp_path / "run", 1, cluster={"distribution_epoch": "10s"}, **quick)
    assert check(folder, tmp_path)["plot"] == 0
    _, delay, occupancy = plot(folder).axes
    for axis in (delay, occupancy):
        (line,) = axis.lines
        assert len(line.get_xdata()) == 1
        assert line.get_marker() == "o"


def test_no_pairs_at_all(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", 2, workload={"rate": 20, "duration": "1s", "domain": 1 << 40})
    codes = check(folder, tmp_path)
    assert codes["plot"] == codes["report"] == 0


@pytest.mark.drawn
@pytest.mark.mpi
def test_a_folder_of_ranks(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(PLAIN))
    assert perform(["run", str(config), "-n", "4", "--out", str(tmp_path / "run")])[0] == 0
    for seed in range(100, 104):
        out = tmp_path / str(seed)
        out.mkdir()
        try_seed(seed, tmp_path / "run", out)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made = make(Path(name) / "run")
        wrong = 0
        for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
            place = Path(name) / str(number)
            place.mkdir()
            try:
                try_seed(number, made, place)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                wrong += 1
                print(f"{type(error).__name__}: {str(error)[:400]}; {error.__notes__[-1]}", flush=True)
            shutil.rmtree(place)
        print(f"{wrong} wrong")
        os._exit(wrong > 0)

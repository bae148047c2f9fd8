"""Where results and reports may be written: apart from each other, over no file of a user; links and devices stay.

The devices and FIFOs are made by the tests: a mistake in the code would replace those of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as sj
from swjoin.connectors.files.run_files import RUN_FILES
from swjoin.core.errors import NotWritten
from swjoin.core.storage import not_written, replacing, write_out, write_whole
from swjoin.forecast.costs import PRESETS
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.small_files import PLAIN, TIMES, config, rows, state

UNWRITABLE = ["folder", "n" * 254, "no/r.json", "a.csv/r.json", ""]
IN_PROCESS_AND_ON_RANKS = pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.drawn])])
COUNT = {"sink": {"kind": "count"}}


def on(ranks: int | None) -> list[object]:
    return [] if ranks is None else ["-n", ranks]


def joining(folder: Path, ranks: int | None = None) -> list[object]:
    """A join of two files in this folder, all but its outputs."""
    for name in ("a.csv", "b.csv"):
        if not (folder / name).exists():
            rows(folder / name)
    return ["join", folder / "a.csv", folder / "b.csv", *TIMES, "--within", "1s", *on(ranks)]


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
    except PermissionError:
        pytest.skip("only root makes devices")


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def a_link_to_a_device(path: Path) -> None:
    a_device(path.with_name("device"))
    path.symlink_to("device")


SPECIAL = {"a FIFO": a_fifo, "a device": a_device, "a socket": a_socket, "a device, by a link": a_link_to_a_device}

# ---------------------------------------------------------------- devices, FIFOs, links


@pytest.mark.parametrize("kind", SPECIAL)
@IN_PROCESS_AND_ON_RANKS
def test_results_replace_no_special_file(kind: str, ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    argv = joining(tmp_path, ranks)
    SPECIAL[kind](tmp_path / "o.csv")
    shutil.copytree(tmp_path, tmp_path / "late", symlinks=True, ignore=lambda _f, names: [n for n in names if n[0] != "a"])
    SPECIAL[kind](tmp_path / "late" / "o.csv.late.parquet")
    before = state(tmp_path)
    for more, words in (
        (["-o", tmp_path / "o.csv"], f"-o {tmp_path}/o.csv: is {kind.split(',')[0]}"),
        (["-o", tmp_path / "late" / "o.csv", "--late", "side"], f"late rows {tmp_path}/late/o.csv.late.parquet: is a"),
    ):
        done = swjoin(*argv, *more)
        assert (done.code, len(done.err)) == (2, 1), done.err
        assert words in done.err[0]
        assert state(tmp_path) == before


@IN_PROCESS_AND_ON_RANKS
def test_a_report_goes_into_a_device_or_a_fifo(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    argv = [*joining(tmp_path, ranks), "-o", "count", "--report"]
    a_fifo(tmp_path / "fifo")
    a_device(tmp_path / "device")
    (tmp_path / "link.json").symlink_to("device")
    before = state(tmp_path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_text()), daemon=True)
    reader.start()
    for name in ("device", "link.json", "fifo"):
        assert swjoin(*argv, tmp_path / name).code == 0, name
        assert state(tmp_path) == before
    reader.join(PROCESS_S)
    assert json.loads(read[0])["complete"]


@pytest.mark.parametrize("redirected", [False, True])
def test_a_report_on_standard_output(redirected: bool, tmp_path: Path) -> None:
    """As `--report /dev/stdout`: what stands there before stays, the link too."""
    argv = [*map(str, joining(tmp_path)), "-o", "count", "--report", str(tmp_path / "out.json")]
    (tmp_path / "out.json").symlink_to("/proc/self/fd/1")
    line = [sys.executable, "-m", "swjoin", *argv]
    with (tmp_path / "log").open("w+") as log:
        log.write("before\n")
        log.flush()
        done = subprocess.run(
            line, stdout=log if redirected else subprocess.PIPE, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
        )
        log.seek(0)
        said = log.read() if redirected else done.stdout
    assert done.returncode == 0
    assert (tmp_path / "out.json").is_symlink()
    found, end = json.JSONDecoder().raw_decode(said, said.index("{"))
    assert found["complete"]
    assert "pairs" in said[end:]
    if redirected:
        assert said.startswith("before\n")


@IN_PROCESS_AND_ON_RANKS
def test_links_stay_and_what_they_lead_to_is_replaced(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    argv = joining(tmp_path, ranks)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.csv").write_text("old")
    links = {"o.csv": "there/old.csv", "r.json": "there/new.json"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    done = swjoin(*argv, "-o", tmp_path / "o.csv", "--report", tmp_path / "r.json")
    assert done.code == 0, done.err
    assert {name: os.readlink(tmp_path / name) for name in links} == links
    assert len(csv.read_csv(tmp_path / "there" / "old.csv")) == 2
    assert json.loads((tmp_path / "there" / "new.json").read_text())["complete"]
    (tmp_path / "nowhere.csv").symlink_to(tmp_path / "missing" / "o.csv")
    done = swjoin(*argv, "-o", tmp_path / "nowhere.csv")
    assert done.code == 2
    assert done.err[0].endswith(f"directory {tmp_path}/missing does not exist")
    (tmp_path / "round.csv").symlink_to("round.csv")
    done = swjoin(*argv, "-o", tmp_path / "round.csv")
    assert done.code == 2
    assert "Too many levels of symbolic links" in done.err[0]


def test_a_failing_join_keeps_its_link(swjoin: Any, tmp_path: Path) -> None:
    argv = joining(tmp_path)
    csv.write_csv(pa.table({"key": [1, 1], "ts": [20, 10]}), tmp_path / "b.csv")
    (tmp_path / "there").mkdir()
    for name in ("o.csv", "r.json"):
        (tmp_path / "there" / name).write_text("old")
        (tmp_path / name).symlink_to(tmp_path / "there" / name)
    before = state(tmp_path)
    assert swjoin(*argv, "-o", tmp_path / "o.csv", "--report", tmp_path / "r.json").code == 2
    after = state(tmp_path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {"there/o.csv.incomplete", "there/r.json.incomplete"}


def test_files_are_replaced_by_one_rule(tmp_path: Path) -> None:
    for number, (words, make) in enumerate(SPECIAL.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "file")
        before = state(folder)
        with pytest.raises(NotWritten, match=f"cannot be replaced: is {words.split(',')[0]}"):
            write_whole(folder / "file", b"new")
        if "socket" in words:
            with pytest.raises(NotWritten, match="is a socket"):
                write_out(folder / "file", b"new")
        assert state(folder) == before
    with pytest.raises(NotWritten, match="is a directory"), replacing(tmp_path):
        raise AssertionError("nothing is written")


# ---------------------------------------------------------------- outputs apart from each other


@IN_PROCESS_AND_ON_RANKS
def test_outputs_are_apart(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    argv = [*joining(tmp_path, ranks), "--late", "side", "-o", tmp_path / "o.parquet"]
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "link.json").symlink_to("o.parquet.late.parquet")
    before = state(tmp_path)
    for report, text in (
        (tmp_path / "o.parquet.late.parquet", "is the file of the late rows"),
        (tmp_path / "again" / "o.parquet.late.parquet", "is the file of the late rows"),
        (tmp_path / "link.json", "is the file of the late rows"),
        (tmp_path / "again" / "o.parquet", "is the file of the results"),
        (tmp_path / "o.parquet.incomplete", "is where results go that are not whole"),
    ):
        done = swjoin(*argv, "--report", report)
        assert (done.code, len(done.err)) == (2, 1), done.err
        assert f"--report {report}: {text}" in done.err[0]
        assert state(tmp_path) == before


def test_late_rows_replace_late_rows_alone(swjoin: Any, tmp_path: Path) -> None:
    argv = [*joining(tmp_path), "--late", "side", "-o", tmp_path / "o.csv"]
    late = tmp_path / "o.csv.late.parquet"
    for write in (lambda: rows(late), lambda: late.write_text("a user's")):
        write()
        before = state(tmp_path)
        done = swjoin(*argv)
        assert (done.code, len(done.err)) == (2, 1), done.err
        assert f"late rows {late}: is there already, and holds no late rows" in done.err[0]
        assert state(tmp_path) == before
        late.unlink()
    for _ in range(2):
        assert swjoin(*argv).code == 0, "late rows of an earlier join are replaced, as its results are"
    assert pq.read_metadata(late).num_rows == 0


@pytest.mark.parametrize(
    ("report", "ranks"),
    [
        *((report, None) for report in UNWRITABLE),
        pytest.param(UNWRITABLE[0], 3, marks=[pytest.mark.mpi, pytest.mark.drawn]),
        *(pytest.param(report, 3, marks=[pytest.mark.mpi, pytest.mark.long]) for report in UNWRITABLE[1:]),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_first(report: str, ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    argv = [*joining(tmp_path, ranks), "-o", tmp_path / "o.csv"]
    assert swjoin(*argv[:-2], "-o", tmp_path / "o.csv").code == 0
    before = state(tmp_path)
    done = swjoin(*argv, "--report", tmp_path / report if report else "")
    assert (done.code, len(done.err)) == (2, 1), done.err
    assert "--report" in done.err[0]
    assert state(tmp_path) == before


def test_make_room_is_said_of_a_full_disk(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [*joining(tmp_path), "-o", tmp_path / "o.csv"]
    for number, words in ((28, "make room"), (122, "make room"), (13, "mend that"), (5, "mend that")):

        def failing(self: Any, number: int = number) -> None:
            raise not_written(self.target, OSError(number, "-"))

        monkeypatch.setattr("swjoin.connectors.files.sink._OpenFile.publish", failing)
        done = swjoin(*argv)
        assert done.code == 1
        assert done.err[-1].endswith(f"({os.strerror(number)}); {words}, then start it again")


# ---------------------------------------------------------------- the directory of a run


@pytest.mark.parametrize("name", ["metrics/slaves.parquet", "metrics/events.parquet", "late.parquet", "metrics", "run.json"])
@IN_PROCESS_AND_ON_RANKS
def test_a_run_replaces_no_file_of_a_user(name: str, ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("a user's")
    sections = {**COUNT, "time": {"late": "side"}}
    path = config(tmp_path, **sections)
    before = state(out)
    done = swjoin("run", path, "--out", out, *on(ranks))
    assert (done.code, len(done.err)) == (2, 1), done.err
    assert ("is there already; choose another --out or remove it" in done.err[0]) == (name != "run.json")
    assert state(out) == before
    with pytest.raises(sj.UserError):
        sj.run(PLAIN | sections, out=out, ranks=ranks)
    assert state(out) == before


@pytest.mark.parametrize("name", ["simulation.json", *RUN_FILES])
def test_nor_does_a_simulation(name: str, swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("a user's")
    before = state(out)
    done = swjoin("simulate", config(tmp_path, **COUNT), "--slaves", 2, "--out", out)
    assert (done.code, len(done.err)) == (2, 1), done.err
    assert state(out) == before


@pytest.mark.drawn
@IN_PROCESS_AND_ON_RANKS
def test_a_run_that_was_killed_is_run_again_in_its_directory(ranks: int | None, swjoin: Any, tmp_path: Path) -> None:
    """At any moment: before its report, after it, and while the metrics got their names."""
    path, out = config(tmp_path, **COUNT, seed=1), tmp_path / "run"
    (out / "metrics").mkdir(parents=True)
    (out / "metrics" / ".events.jsonl").write_text("{}\n")
    (out / "metrics" / ".slaves.rows").touch()
    (out / "metrics" / "slaves.parquet").touch()
    assert swjoin("run", path, "--out", out, *on(ranks)).code == 0
    report = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(report | {"complete": False, "failure": "killed"}))
    done = swjoin("run", path, "--out", out, *on(ranks))
    assert done.code == 0, done.err
    assert json.loads((out / "run.json").read_text())["results"] == report["results"]


# ---------------------------------------------------------------- pages and costs


@pytest.fixture
def reported(swjoin: Any, tmp_path: Path) -> Path:
    """A run over two files, and its page."""
    side = {"time_unit": "us"}
    sections = {
        "left": {"path": str(rows(tmp_path / "a.parquet")), **side},
        "right": {"path": str(rows(tmp_path / "b.parquet")), **side},
    }
    run = tmp_path / "run"
    assert swjoin("run", config(tmp_path, **sections, **COUNT), "--out", run).code == 0
    pytest.importorskip("matplotlib")
    assert swjoin("report", run, "-o", tmp_path / "page.html").code == 0
    return run


def test_a_page_replaces_pages_alone(reported: Path, swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.html").write_text("<!DOCTYPE html><p>a user's")
    (tmp_path / "link.html").symlink_to("page.html")
    a_socket(tmp_path / "socket")
    for out, text in (
        ("a.parquet", "is an input"),
        ("run/metrics/slaves.parquet", "is an input"),
        ("config.yaml", "is there already, and is no page"),
        ("notes.html", "is there already, and is no page"),
        ("run", "is a directory"),
        ("socket", "is a socket"),
    ):
        before = state(tmp_path)
        done = swjoin("report", reported, "-o", tmp_path / out)
        assert (done.code, len(done.err)) == (2, 1), done.err
        assert text in done.err[0]
        assert state(tmp_path) == before
    page = (tmp_path / "page.html").read_text()
    (tmp_path / "page.html").write_text(page[:500])
    assert swjoin("report", reported, "-o", tmp_path / "link.html").code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text() == page
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
    before = state(tmp_path)
    done = swjoin("report", reported, "-o", tmp_path / "page.html")
    assert done.code == 2
    assert "No space left on device" in done.err[0]
    assert state(tmp_path) == before, "the earlier page is whole"


def test_a_page_on_standard_output(reported: Path, swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "out.html").symlink_to("/proc/self/fd/1")
    done = swjoin("report", reported, "-o", tmp_path / "out.html")
    assert done.code == 0
    assert done.out.startswith("<!DOCTYPE html>")
    assert done.out.endswith("</html>\n")
    assert [line.split(" (")[0] for line in done.err] == [f"swjoin: {tmp_path}/out.html"]
    assert (tmp_path / "out.html").is_symlink()


def test_costs_replace_costs_alone(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(
        "swjoin.forecast.calibrate.roles.calibrate", lambda **_: (measured.append("once"), (PRESETS["modern"], []))[1]
    )
    config(tmp_path)
    (tmp_path / "costs").mkdir()
    a_fifo(tmp_path / "costs" / "fifo")
    (tmp_path / "costs" / "list.yaml").write_text("[1, 2]")
    (tmp_path / "costs" / "none.yaml").write_text("collector_byte_ns: text\n")
    a_socket(tmp_path / "costs" / "socket")
    before = state(tmp_path)
    for out in ("config.yaml", "costs", "costs/list.yaml", "costs/none.yaml", "costs/socket", "no/costs.yaml"):
        done = swjoin("calibrate", "-o", tmp_path / out)
        assert (done.code, len(done.err)) == (2, 1), done.err
        assert state(tmp_path) == before
    assert measured == [], "refused before anything is measured"
    for _ in range(2):
        assert swjoin("calibrate", "-o", tmp_path / "mine.yaml").code == 0

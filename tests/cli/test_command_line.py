"""The command line as people type it: the order of words, lists of names, near names, signals, lines of CSV files."""

from __future__ import annotations

import gzip
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.cli import serve
from swjoin.cli.main import build_parser
from swjoin.connectors.files.formats import describe_row
from swjoin.core.errors import UserError
from tests.conftest import ROOT

NEEDED = ["--left-time", "t", "--right-time", "t", "--within", "1s", "-o", "count"]


def parsed(*words: str) -> Any:
    return build_parser().parse_args(list(words))


@pytest.mark.parametrize(
    "words",
    [
        ["a.csv", "b.csv", "--on", "user", "--columns", "km", "eur"],
        ["--on", "user", "a.csv", "b.csv", "--columns", "km", "--columns", "eur"],
        ["a.csv", "--on", "user", "b.csv", "--columns=km", "--columns", "eur"],
        ["--columns", "km", "eur", "a.csv", "b.csv", "--on", "user"],
        ["--columns=km", "--columns", "eur", "a.csv", "b.csv", "--on=user"],
        ["--on", "user", "--columns", "km", "eur", "--", "a.csv", "b.csv"],
    ],
)
def test_left_and_right_are_found_wherever_they_stand(words: list[str]) -> None:
    for rest in ([*NEEDED, *words], [*words, *NEEDED] if "--" not in words else [*NEEDED, *words]):
        args = parsed("join", *rest)
        assert (args.left, args.right, args.on, args.columns) == ("a.csv", "b.csv", ["user"], ["km", "eur"])


def test_words_that_are_files_are_left_and_right(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for name in (a, b):
        Path(name).touch()
    args = parsed("join", "--on", "user", "id", a, b, *NEEDED, "--columns", "km", "eur", "usd")
    assert (args.left, args.right, args.on, args.columns) == (a, b, ["user", "id"], ["km", "eur", "usd"])


def test_an_optional_value_does_not_take_the_configuration() -> None:
    for words, port in ((["--dashboard", "c.yaml"], 0), (["--dashboard", "8080", "c.yaml"], 8080), (["c.yaml"], None)):
        args = parsed("run", *words)
        assert (args.config, args.dashboard) == ("c.yaml", port)
    args = parsed("run", "c.yaml", "--dashboard")
    assert (args.config, args.dashboard) == ("c.yaml", 0)


def test_negative_values_and_conditions_are_values() -> None:
    args = parsed(
        "join", "a", "b", "--on", "k", "--lower", "-1h", "--upper", "-.5s", "--where", "-left_v < 3", *NEEDED[:4], "-ocount"
    )
    assert (args.lower, args.upper, args.where, args.out) == ("-1h", "-.5s", "-left_v < 3", "count")
    assert parsed("push", "grpc://h:1", "left", "-").file == "-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jion", "a", "b"], "unknown command jion; did you mean join? (see swjoin --help)"),
        (["join", "a", "b", "--window", "6h"], "unknown option --window; did you mean --within? (see swjoin join --help)"),
        (["join", "a", "b", "--low=1h"], "unknown option --low; did you mean --lower? (see swjoin join --help)"),
        (["--versio"], "unknown option --versio; did you mean --version? (see swjoin --help)"),
        (["run", "a.yaml", "b.yaml"], "unexpected word b.yaml (see swjoin run --help)"),
        (["run", "c.yaml", "--dashboard", "x"], "argument --dashboard: invalid int value: 'x' (see swjoin run --help)"),
        (
            ["join", "--on", "user", "a.csv", *NEEDED],
            "the following arguments are required: LEFT, RIGHT (see swjoin join --help)",
        ),
        (["join", "a", "b", "--on", *NEEDED], "argument --on: expected at least one argument (see swjoin join --help)"),
    ],
)
def test_what_is_mistyped_is_told_with_the_nearest(words: list[str], said: str, swjoin: Any) -> None:
    done = swjoin(*words)
    assert (done.code, done.err) == (2, [f"swjoin: {said}"])


def test_a_command_that_is_near_nothing_lists_those_for_users(swjoin: Any) -> None:
    done = swjoin("xyzzy")
    assert done.code == 2
    assert "join, run, query, rdf, serve" in done.err[0]
    assert "_rank" not in done.err[0]


def test_help_is_a_command_too(swjoin: Any) -> None:
    assert swjoin("help").out == swjoin("--help").out
    assert swjoin("help", "join").out == swjoin("join", "--help").out


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    times = pa.array([1, 2], pa.timestamp("s"))
    one, two = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"user": [1, 2], "t": times, "km": [5, 6], "x": [0, 0]}), one)
    pq.write_table(pa.table({"user": [1, 2], "t": times, "eur": [7, 8], "y": [0, 0]}), two)
    return one, two


@pytest.mark.parametrize("chosen", [["km", "eur"], ["km,eur"], ["km,", "eur"]])
def test_columns_are_chosen_of_either_side(chosen: list[str], sides: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    words = ["--on", "user", "--left-time", "t", "--right-time", "t", "--within", "0s"]
    done = swjoin("join", *sides, *words, "--columns", *chosen, "-o", tmp_path / "o.parquet")
    assert done.code == 0, done.err
    assert pq.read_table(tmp_path / "o.parquet").schema.names == ["user", "left_t", "km", "right_t", "eur"]
    python = api.join(*sides, on="user", left_time="t", right_time="t", within="0s", columns=["km", "eur"])
    assert python.schema.names == ["user", "left_t", "km", "right_t", "eur"]


def test_a_column_on_neither_side_is_refused(sides: tuple[Path, Path], swjoin: Any) -> None:
    done = swjoin("join", *sides, "--on", "user", *NEEDED, "--columns", "eurr")
    assert (done.code, done.err) == (2, ["swjoin: columns: eurr is on neither side; did you mean eur?"])


def test_kinds_of_events_are_separated_by_commas_too(swjoin: Any, tmp_path: Path) -> None:
    assert parsed("events", "--kind", "left", "held,decided", str(tmp_path)).kinds == ["left", "held,decided"]
    done = swjoin("events", "--kind", "left", "helt", tmp_path)
    assert done.code == 2
    assert "holds no metrics/events.parquet" in done.err[0]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_errors_name_the_line_that_an_editor_shows(suffix: str, swjoin: Any, tmp_path: Path) -> None:
    text = 'user,t,note\n1,2026-01-01 00:00:00,"two\nlines"\n\n1,2026-01-01 00:00:05,b\n1,2026-01-01 00:00:01,c\n'
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    done = swjoin("join", path, path, "--on", "user", *NEEDED)
    assert done.code == 2
    assert f"{path}, line 6" in done.err[0], done.err
    assert describe_row(path, 0) == f"{path}, line 2"
    assert describe_row(tmp_path / "x.parquet", 3) == f"{tmp_path / 'x.parquet'}, row 3 (counting from 0)"


def _catches_sigterm(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_sigterm_ends_a_join_as_ctrl_c_does(tmp_path: Path) -> None:
    times = pa.array(np.arange(10_000) * 1_000_000, pa.timestamp("us"))
    pq.write_table(pa.table({"user": np.zeros(10_000, np.int64), "t": times}), tmp_path / "a.parquet")
    line = ["join", "a.parquet", "a.parquet", "--on", "user", "--left-time", "t", "--right-time", "t", "--within", "0s"]
    pace = ["--pace", "realtime", "--epoch", "100ms", "-o", "o.csv"]
    process = subprocess.Popen(
        [sys.executable, "-m", "swjoin", *line, *pace],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not _catches_sigterm(process.pid) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert said.splitlines()[-1] == "swjoin: stopped by SIGTERM"
    assert process.returncode == 143
    assert not (tmp_path / "o.csv").exists()


def test_sigterm_that_a_library_turns_into_its_own_error(swjoin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As numpy does with whatever interrupts its import."""

    def importing(args: object) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("importing the C-extensions failed") from None
        return 0

    monkeypatch.setattr("swjoin.cli.events.run_events", importing)
    done = swjoin("events", tmp_path)
    assert (done.code, done.err) == (143, ["swjoin: stopped by SIGTERM"])
    monkeypatch.undo()
    assert swjoin("events", tmp_path).code == 2  # the next command has nothing to do with it


def test_without_a_server_clients_say_what_is_missing(swjoin: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = f"nothing listens at 127.0.0.1:{port}; is swjoin serve running?"
    pacsv.write_csv(pa.table({"user": [1]}), tmp_path / "a.csv")
    address = f"grpc://127.0.0.1:{port}"
    for words in (["push", address, "left", tmp_path / "a.csv"], ["tail", address], ["top", address, "--once"]):
        done = swjoin(*words)
        assert done.code in (1, 2)
        assert done.err == [f"swjoin: {f'{address}: ' if words[0] == 'top' else ''}{said}"]
    with pytest.raises(api.RunFailed, match=r"is swjoin serve running\?"), api.connect(address) as run:
        run.status()


def test_empty_frames_are_empty_streams() -> None:
    """Columns without rows have the type that the library gave them for want of values."""
    empty = pa.table({"u": pa.array([], pa.float64()), "t": pa.array([], pa.float64())})
    other = pa.table({"u": [1], "t": pa.array([1], pa.timestamp("us"))})
    where = {"on": "u", "left_time": "t", "right_time": "t", "within": "1s", "how": "full"}
    for left, right, rows in ((empty, other, 1), (other, empty, 1), (empty, empty, 0)):
        joined = api.join(left, right, **where)
        assert (joined.num_rows, joined.schema.field("left_t").type) == (rows, pa.timestamp("us"))
        assert api.count(left, right, **where).count == rows


# ---------------------------------------------------------------- what cannot be read, and numbers that are none


def test_pipes_and_devices_are_no_inputs(sides: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", Path("/dev/null")):
        done = swjoin("join", path, sides[1], "--on", "user", *NEEDED)
        assert (done.code, done.err) == (
            2,
            [f"swjoin: {path}: is neither a file nor a directory; pipes and devices cannot be read twice: save it as a file"],
        )


@pytest.mark.parametrize("data", [b"", b"garbage, garbage", b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(40)])
def test_what_is_no_stream_on_standard_input_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(UserError, match=r"^standard input: cannot be read as an Arrow IPC stream"):
        list(serve._read("-", pa.schema([("k", pa.int64())]), None))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0", "-1", "1e999", "x"])
@pytest.mark.parametrize(
    "words",
    [
        ["push", "grpc://127.0.0.1:1", "left", "a.csv", "--rate"],
        ["generate", "-o", "out", "--duration", "1s", "--rate"],
        ["plan", "local.yaml", "--target-rate"],
        ["doctor", "--limit"],
        ["place", "graph.json", "-k", "2", "--imbalance"],
        ["queries", "run", "--timeout"],
    ],
)
def test_amounts_are_positive_and_finite(words: list[str], number: str, swjoin: Any) -> None:
    done = swjoin(*words[:-1], f"{words[-1]}={number}")
    assert (done.code, len(done.err)) == (2, 1)
    assert f"argument {words[-1]}: " in done.err[0]
    assert ("is no number" if number == "x" else "must be positive and finite") in done.err[0]


@pytest.mark.parametrize("words", [["explain", "local.yaml", "-n"], ["simulate", "local.yaml", "--slaves"]])
def test_more_slaves_than_there_can_be_are_refused(words: list[str], swjoin: Any) -> None:
    done = swjoin(*words, "99999999")
    assert (done.code, len(done.err)) == (2, 1)
    assert done.err[0].startswith(f"swjoin: {words[-1]} 99999999: at most 65,536 slaves, ")


@pytest.mark.parametrize("change", ["master_tuple_ns=nan", "master_tuple_ns=inf", "message_ns=*nan", "message_ns=*-1"])
def test_costs_are_finite(change: str, swjoin: Any) -> None:
    done = swjoin("simulate", "local.yaml", "--slaves", 2, "--cost", change)
    assert (done.code, len(done.err)) == (2, 1)
    assert "must not be negative, infinite or NaN" in done.err[0]

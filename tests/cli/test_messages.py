"""Messages: log records of the library; -v, -q and --log-json of every command, on ranks too."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import swjoin as api
from swjoin.cli.main import main
from swjoin.cli.messages import messages
from swjoin.core.log_lines import json_line, record_of
from tests.support.commands import command
from tests.support.limits import PROCESS_S

JOIN = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "s"]
TABLE = pa.table({"k": [1, 2, 1], "t": [1, 2, 3]})
OPTIONS: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "time_unit": "s"}


@pytest.fixture
def sides(tmp_path: Path) -> list[object]:
    for name, rows in (("left", "1,10\n2,20\n"), ("right", "1,11\n2,50\n")):
        (tmp_path / f"{name}.csv").write_text(f"k,t\n{rows}")
    return ["join", tmp_path / "left.csv", tmp_path / "right.csv", *JOIN]


def records(lines: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for record in found:
        assert list(record)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["time"])
        assert abs(datetime.fromisoformat(record["time"]) - datetime.now(UTC)) < timedelta(minutes=10)
        assert record["logger"].startswith("swjoin") or record["logger"] == "py.warnings"
    return found


# ---------------------------------------------------------------- the library


def test_details_go_to_loggers_of_their_packages(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.DEBUG, "swjoin"):
        api.join(TABLE, TABLE, **OPTIONS, within="1s")
    said = {record.name: record.getMessage() for record in caplog.records}
    assert re.fullmatch(r"3 pairs, joined in \d+\.\d{3} s", said["swjoin.api.tables"])
    assert capfd.readouterr() == ("", "")


def test_a_program_that_has_configured_nothing_reads_warnings_alone(tmp_path: Path) -> None:
    """Python's own rule: without a handler, warnings and errors go to standard error, and nothing else."""
    program = (
        "import logging, swjoin, pyarrow as pa\n"
        "table = pa.table({'k': [1, 2, 1], 't': [1, 2, 3]})\n"
        f"options = {OPTIONS!r}\n"
        "assert swjoin.join(table, table, **options, within='1s').num_rows == 3\n"
        "from swjoin.connectors.kafka import reader\n"
        "reader._LOG.info('a notice')\n"
        "reader._LOG.warning('a message cannot be used')\n"
        "assert not logging.getLogger('swjoin').handlers and not logging.root.handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PROCESS_S, check=True)
    assert (done.stdout, done.stderr) == ("", "a message cannot be used\n")


def test_importing_swjoin_imports_no_logging() -> None:
    program = "import sys, swjoin; assert 'logging' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], timeout=PROCESS_S, check=True)


def test_a_dashboard_of_a_library_prints_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    plain = {"within": "1s", "workload": {"rate": 500, "duration": "1s"}, "observe": {"port": 0}, "pace": "asap"}
    with caplog.at_level(logging.INFO, "swjoin"):
        api.run(plain, threads=1)
    assert any(record.getMessage().startswith("dashboard: http://127.0.0.1:") for record in caplog.records)
    assert capfd.readouterr().out == ""


# ---------------------------------------------------------------- the command


def test_the_handler_leaves_logging_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("swjoin.test")
    before = [(n.level, list(n.handlers)) for n in map(logging.getLogger, ("", "swjoin", "py.warnings"))]
    shown, catch = warnings.showwarning, {"verbose": False, "quiet": False}
    with messages(log_json=True, **catch):
        logger.debug("a detail")
        logger.warning("100 % of\nit")
        warnings.warn("of Python", stacklevel=1)
    assert [(n.level, list(n.handlers)) for n in map(logging.getLogger, ("", "swjoin", "py.warnings"))] == before
    assert warnings.showwarning is shown
    first, second = records(capfd.readouterr().err.splitlines())
    assert (first["logger"], first["level"], first["message"]) == ("swjoin.test", "WARNING", "100 % of\nit")
    assert (second["logger"], "of Python" in second["message"]) == ("py.warnings", True)


def test_lines_become_records_again() -> None:
    try:
        raise ValueError("planted")
    except ValueError as error:
        record = logging.makeLogRecord(
            {"name": "swjoin.x", "levelno": 40, "levelname": "ERROR", "msg": "%d of\n'ü'", "args": (3,)}
        )
        record.exc_info = (type(error), error, error.__traceback__)
    record.rank = 2
    line = json_line(record)
    again = record_of(line + "\n")
    assert again is not None
    assert json_line(again) == line
    assert (again.name, again.levelno, again.getMessage(), again.rank) == ("swjoin.x", 40, "3 of\n'ü'", 2)  # type: ignore[attr-defined]
    assert json.loads(line)["exception"].endswith("ValueError: planted")
    for other in ("swjoin: warning: x\n", '{"time": "x"}', '{"time": "', '{"time": 5, "level": "LOUD"}', "", "[]"):
        assert record_of(other) is None


@pytest.mark.parametrize("before", [True, False])
def test_verbose_prints_files_sizes_and_phases(before: bool, sides: list[object], swjoin: Any) -> None:
    words = [*sides, "--within", "5s", "-o", "count"]
    done = swjoin("-v", *words) if before else swjoin(*words, "--verbose")
    assert done.code == 0
    said = "\n".join(done.err)
    assert re.search(r"(?m)^swjoin: \S+/left\.csv: 1 CSV file\(s\), in this order: \S+/left\.csv$", said)
    assert re.search(
        r"(?m)^swjoin: in one process: \d slave\(s\), \d+ partition-groups, distribution epoch 131072 tuples$", said
    )
    assert re.search(r"(?m)^swjoin: sources opened in \d+\.\d{3} s, kernels loaded in \d+\.\d{3} s$", said)
    assert re.search(r"(?m)^swjoin: joined in \d+\.\d{3} s, \d+\.\d{3} s in all: 1 pairs$", said)
    assert "pairs             1" in done.out.splitlines()


@pytest.mark.parametrize("ranks", [None, pytest.param(3, marks=[pytest.mark.mpi, pytest.mark.long])])
def test_quiet_prints_results_and_errors(ranks: int | None, sides: list[object], swjoin: Any, tmp_path: Path) -> None:
    """-o count: the result is a number. Here nothing matches, of which the summary and a warning would tell."""
    more = [] if ranks is None else ["-n", ranks]
    for words in (["-q", *sides], [*sides, "--quiet"]):
        done = swjoin(*words, "--within", "1us", "-o", "count", *more, "--report", tmp_path / "report.json")
        assert (done.code, re.sub(r"\x1b\[0m", "", done.out), done.err) == (0, "0\n", [])
        assert len(json.loads((tmp_path / "report.json").read_text())["warnings"]) == 1
    done = swjoin(*sides, "-q", "--within", "5s", "-o", tmp_path / "pairs.csv", *more)
    assert (done.code, re.sub(r"\x1b\[0m", "", done.out), done.err) == (0, "", [])
    assert (tmp_path / "pairs.csv").read_text().count("\n") == 2
    done = swjoin(*sides, "-q", "--within", "5s", "-o", "count", "--where", "left_t < nothing", *more)
    assert (done.code, len(done.err), done.err[0][:34]) == (2, 1, "swjoin: where: column nothing is m")


def test_quiet_and_verbose_exclude_each_other(sides: list[object], swjoin: Any) -> None:
    for words in (["-q", *sides, "-v"], ["-qv", *sides], [*sides, "-v", "-q"]):
        done = swjoin(*words, "--within", "1s", "-o", "count")
        assert (done.code, done.err) == (2, ["swjoin: -v and -q: give one of them (see swjoin --help)"])


def test_json_says_what_text_says(sides: list[object], swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*sides, "--within", "1us", "-o", "count"]
    plain, done = swjoin(*words), swjoin(*words, "--log-json")
    (warning,) = records(done.err)
    assert plain.err == [f"swjoin: warning: {warning['message']}"]
    assert (warning["level"], warning["logger"]) == ("WARNING", "swjoin.cli.summary")
    assert done.out.splitlines()[3] == plain.out.splitlines()[3] == "pairs             0"
    for wrong in (
        ["--nope"],
        ["--within", "1s", "-o", "pairs.txt"],
        ["--within", "1s", "-o", "count", "--on", "x"],
        ["-v", "-q"],
    ):
        plain, done = swjoin(*sides, *wrong), swjoin("--log-json", *sides, *wrong)
        (error,) = records(done.err)
        assert (done.code, plain.code, plain.err) == (2, 2, [f"swjoin: {error['message']}"])
        assert error["level"] == "ERROR"
        assert "exception" not in error
    monkeypatch.setattr("swjoin.cli.join.join_config", lambda args: 1 // 0)
    (error,) = records(swjoin("--log-json", *words).err)
    assert error["message"].startswith("internal error: ZeroDivisionError: ")
    assert error["exception"].startswith("Traceback (most recent call last):\n")
    (error,) = records(swjoin("--log-json", "--debug", *words).err)
    assert "exception" in error


def test_json_where_standard_output_is_the_result(sides: list[object], swjoin: Any) -> None:
    done = swjoin(*sides, "--within", "5s", "-o", "-", "--log-json")
    (summary,) = records(done.err)
    assert (summary["level"], "pairs: 1; " in summary["message"]) == ("INFO", True)
    assert done.out.splitlines()[1:] == ["1,10,11"]


@pytest.mark.mpi
@pytest.mark.drawn
def test_messages_of_ranks(sides: list[object], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The ranks' messages are those of the command that has started them; in Python they go to its loggers."""
    words = [str(word) for word in sides]
    done = command(*words, "--within", "1us", "-o", "count", "-n", 3, "-v", "--log-json")
    assert done.returncode == 0, done.stderr
    found = records(done.stderr.splitlines())
    assert {record.get("rank") for record in found} == {None, 0, 1, 2}
    assert [r["rank"] for r in found if r["level"] == "WARNING"] == [0]
    assert {r["rank"] for r in found if r["logger"] == "swjoin.runtime.mpi.main"} == {0, 1, 2}
    done = command(*words, "--within", "5s", "-o", "count", "-n", 3, "-v")
    assert {line[:15] for line in done.stderr.splitlines() if "of 3, process" in line} == {
        f"swjoin: rank {rank}:" for rank in range(3)
    }
    done = command("--log-json", *words, "--within", "5s", "-o", "count", "-n", 3, "--where", "left_t < nothing")
    (error,) = records(done.stderr.splitlines())
    assert (done.returncode, error["level"], error["rank"]) == (2, "ERROR", 0)
    assert error["message"].startswith("where: column nothing is missing")
    with caplog.at_level(logging.DEBUG, "swjoin"):
        api.count(TABLE, TABLE, **OPTIONS, within="1s", ranks=3)
    assert {getattr(record, "rank", None) for record in caplog.records} == {None, 0, 1, 2}


def test_a_command_within_a_command_says_things_once(swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`swjoin kernels --compile` runs joins."""
    within: list[int] = []

    def run(_: object) -> int:
        logging.getLogger("swjoin.cli").warning("outside")
        if not within:
            within.append(1)
            assert main(["kernels"]) == 0
        return 0

    monkeypatch.setattr("swjoin.cli.kernels.run_kernels", run)
    assert swjoin("kernels").err == ["swjoin: warning: outside"] * 2
    assert not logging.getLogger("swjoin").handlers

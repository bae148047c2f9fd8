"""What tests share: running commands in this process, writing streams, one Spark session."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from swjoin.cli.main import main
from tests.support.drawn import is_drawn
from tests.support.limits import PROCESS_S

ROOT = Path(__file__).resolve().parents[1]
os.environ.pop("SWJOIN_PLAIN", None)
os.environ.setdefault("SWJOIN_DRAW", str(secrets.randbelow(1 << 31)))  # the workers of a session draw the same
hypothesis.settings.register_profile("shared machine", deadline=None)  # a first example loads kernels, beside other tests
hypothesis.settings.load_profile("shared machine")


class Outcome:
    """Exit code, standard output, and the lines on standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, [line for line in err.splitlines() if line]


FREE = (  # their tests share nothing
    *("test_join_kinds.py", "test_simulator.py", "test_planted_bugs.py"),
    *("test_plans.py", "test_planted_plan_bugs.py", "test_planted_plan_moves.py", "test_planted_gateways.py"),
    *("test_planted_sinks.py", "test_planted_kept_rows.py", "test_planted_aggregates.py", "test_frozen_roles.py"),
    *("test_simulated_live.py", "test_interrupted.py", "test_configured.py", "test_plans_on_files.py"),
    "test_random_queries.py",
)


def pytest_report_header() -> str:
    return f"drawn cases: SWJOIN_DRAW={os.environ['SWJOIN_DRAW']} draws these again"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, so that they share its fixtures, and files with Spark share its session; those of
    long files that have none may be divided. Of the tests marked `drawn`, those not drawn are long."""
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    for item in items:
        if item.get_closest_marker("drawn") and not is_drawn(item.nodeid):
            item.add_marker(pytest.mark.long)
        if item.path.name not in FREE:
            item.add_marker(pytest.mark.xdist_group("spark" if item.path in with_spark else item.path.name))


@pytest.fixture
def swjoin(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a swjoin command in this process."""

    def run(*argv: object) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(a) for a in argv])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


class SharedSpark:
    """One session that all Spark tests share; commands find it running and leave it running.

    in_doubt: a test has failed since it was last seen to work, perhaps in the middle of a call.
    """

    def __init__(self) -> None:
        self.in_doubt = False
        self._opened: Any = None
        self._session: Any = None

    def session(self) -> Any:
        """A session that works: after a failure the old one with a new connection, or, if that does not answer, a new one."""
        if self._session is not None and self.in_doubt and not self._answers():
            self._kill()
        self.in_doubt = False
        if self._session is None:
            from swjoin.spark.session import open_session

            self._opened = open_session("local[2]", "swjoin tests")
            self._session = self._opened.__enter__()
        return self._session

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def _answers(self) -> bool:
        """Asked in a thread of its own, which has a connection of its own, because a JVM that hangs says nothing."""
        from swjoin.spark.session import drop_connection

        found: list[int] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                self._session.sparkContext.cancelAllJobs()
                found.append(self._session.range(3).count())

        with contextlib.suppress(Exception):
            drop_connection(self._session)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(PROCESS_S)
        return found == [3]

    def _kill(self) -> None:
        """End the JVM, which need not take part, and make pyspark forget it."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway: Any = SparkContext._gateway
        if getattr(gateway, "proc", None) is not None:
            gateway.proc.kill()
            gateway.proc.wait()
        with contextlib.suppress(Exception):
            self._opened.__exit__(None, None, None)
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # type: ignore[attr-defined]
        self._opened = self._session = None

    def close(self) -> None:
        if self.is_open and self.in_doubt and not self._answers():
            self._kill()
        if self.is_open:
            self._opened.__exit__(None, None, None)


_shared_spark = SharedSpark()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    _shared_spark.in_doubt |= call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
    report = yield
    # a worker sends what was logged as UTF-8, and file names need not be text
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _shared_spark.in_doubt and _shared_spark.is_open and item.get_closest_marker("spark"):
        _shared_spark.session()


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    """For fixtures of a module; tests ask for `spark`."""
    yield _shared_spark
    _shared_spark.close()


@pytest.fixture
def spark(shared_spark: SharedSpark) -> Any:
    """The session that all Spark tests share."""
    return shared_spark.session()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """`start(name, *words)`: a command of swjoin in a process of its own, which does not survive the test."""
    from tests.support.command_processes import Command

    started: list[Command] = []

    def begin(name: str, *words: object) -> Command:
        started.append(Command(tmp_path / f"{name}.log", *words))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.signal(signal.SIGKILL)

"""What tests share: running commands in this process, writing streams, one Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from swjoin.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
os.environ.pop("SWJOIN_PLAIN", None)
hypothesis.settings.register_profile("shared machine", deadline=None)  # a first example loads kernels, beside other tests
hypothesis.settings.load_profile("shared machine")


class Outcome:
    """Exit code, standard output, and the lines on standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, [line for line in err.splitlines() if line]


FREE = ("test_mpi.py", "test_join_kinds.py", "test_simulator.py", "test_planted_bugs.py")  # their tests share nothing


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, so that they share its fixtures, and files with Spark share its session; those of
    long files that have none may be divided."""
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    for item in items:
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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session that all Spark tests share; commands find it running and leave it running."""
    from swjoin.spark.session import open_session

    with open_session("local[2]", "swjoin tests") as session:
        yield session

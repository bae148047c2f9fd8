"""Runs that are stopped and resumed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swjoin.config.job import Job
from swjoin.runtime import in_process


class _After(threading.Event):
    """A request to stop that comes after it has been asked for so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def is_set(self) -> bool:
        self._times -= 1
        return self._times < 0


def _stopping(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    @contextmanager
    def signals(job: Job) -> Iterator[threading.Event]:
        yield _After(times)

    monkeypatch.setattr(in_process, "stop_signals", signals)


def _run(config: Any, out: Path, slaves: int, *, resumes: bool = False) -> dict[str, Any]:
    target = None if config.sink.kind == "count" else out / "results"
    return in_process.run_local(Job(config, target, True, out, None, "test", resumes), False, slaves)


def _in_pieces(
    config: Any,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    slaves: list[int],
    times: list[int],
    sinks: Sequence[int] | None = None,
    gateways: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Stop again and again, each time going on with other numbers of slaves, sinks and gateways; the last time to the end."""
    report: dict[str, Any] = {"complete": False}
    for i, (count, after) in enumerate(zip(slaves, [*times, 10**9], strict=True)):
        _stopping(monkeypatch, after)
        mine = config if sinks is None else config.with_sinks(sinks[i])
        mine = mine if gateways is None else mine.with_gateways(gateways[i])
        report = _run(mine, out, count, resumes=i > 0)
        if report["complete"]:
            break
        assert report["resumable"]
    return report

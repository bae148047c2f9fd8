"""Joins in an event loop: the answer, back-pressure, cancellation and errors, after which nothing runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.connectors.flight.client import connect
from tests.api.test_frames import (
    EXPECTED,
    KINDS,
    LEFT,
    LONG,
    OPTIONS,
    RIGHT,
    VALUES,
    Row,
    long_stream,
    oracle,
    plain,
    values_of,
)
from tests.support.live_runs import config as live_config
from tests.support.live_runs import expected, live, rows, tuples

TIMEOUT_S = 60


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In a new loop; afterwards no task and no thread of a join is there."""

    async def whole() -> None:
        await asyncio.wait_for(main(), TIMEOUT_S)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(whole(), debug=True)
    deadline = time.monotonic() + TIMEOUT_S
    while any(t.name.startswith(("swjoin-stream", "swjoin-reader", "swjoin-results")) for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Source:
    """An asynchronous iterator of pieces of rows. taken: so many pieces. closed: its generator has ended. endless: silence
    follows the pieces."""

    def __init__(
        self, pieces: list[Any], pause_s: float = 0.0, error: Exception | None = None, *, endless: bool = False
    ) -> None:
        self.taken, self.closed = 0, False
        self._pieces, self._pause_s, self._error, self._endless = pieces, pause_s, error, endless

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            for piece in self._pieces:
                await asyncio.sleep(self._pause_s)
                self.taken += 1
                yield piece
            if self._error is not None:
                raise self._error
            if self._endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def pieces(rows: list[Row], size: int) -> list[pa.Table]:
    return [plain(rows[at : at + size]) for at in range(0, len(rows), size)]


def endless(pieces: list[Any]) -> Source:
    return Source(pieces, endless=True)


@pytest.mark.parametrize("kind", ["asynchronous", "table", "reader", "polars, lazy", "mixed"])
@pytest.mark.parametrize("declared", [True, False])
def test_streams_of_an_event_loop(kind: str, declared: bool) -> None:
    schemas = {"left_schema": plain([]), "right_schema": plain([])} if declared else {}

    async def main() -> None:
        join = swjoin.WindowJoin(**OPTIONS, **schemas)
        left: Any = Source(pieces(LEFT, 4))
        right: Any = Source(pieces(RIGHT, 7))
        if kind != "asynchronous":
            right = KINDS["Arrow table" if kind in ("table", "mixed") else kind](plain(RIGHT))
        if kind not in ("asynchronous", "mixed"):
            left = KINDS["Arrow table" if kind == "table" else kind](plain(LEFT))
        found = [batch async for batch in join.stream(left, right)]
        assert values_of(found) == VALUES
        assert (join.count, join.digest, join.closed, join.ledger.balanced) == (*EXPECTED, True, True)
        assert all(batch.schema == join.schema for batch in found)

    run(main)


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    pauses=st.tuples(*2 * [st.sampled_from([0.0, 0.0005])]),
    counts=st.tuples(st.integers(0, 30), st.integers(0, 40)),
    options=st.sampled_from(
        [
            {"how": "full"},
            {"max_out_of_order": "2s"},
            {"within": None, "lower": "1s", "upper": "3s"},
            {"within": None, "lower": "-9s", "upper": "-2s"},
            {"within": None, "last": 3},
        ]
    ),
)
@settings(max_examples=40, deadline=None)
def test_any_pieces_and_pauses(
    sizes: tuple[int, int], pauses: tuple[float, float], counts: tuple[int, int], options: dict[str, Any]
) -> None:
    """As `swjoin.count` of the whole; without rows of a side, too."""
    left, right = LEFT[: counts[0]], RIGHT[: counts[1]]
    both = {**OPTIONS, **options}

    async def main() -> None:
        join = swjoin.WindowJoin(**both)
        sides = [Source(pieces(r, n), p) for r, n, p in zip((left, right), sizes, pauses, strict=True)]
        found = [batch async for batch in join.stream(*sides)]
        whole = swjoin.count(plain(left), plain(right), **both)
        assert (join.count, join.digest) == (whole.count, whole.digest)
        assert sum(batch.num_rows for batch in found) == whole.count
        assert all(side.closed for side in sides)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
        run(main)


def test_pairs_come_while_the_other_stream_is_idle() -> None:
    async def main() -> None:
        join = swjoin.WindowJoin(**OPTIONS)
        left, right = endless(pieces(LEFT[:20], 20)), endless(pieces(RIGHT[:20], 1))
        count = oracle(LEFT[:20], RIGHT[:20])[0][0]
        async with contextlib.aclosing(join.stream(left, right)) as found:
            async for batch in found:
                count -= batch.num_rows
                if not count:
                    break
        assert join.closed
        assert left.closed
        assert right.closed
        with pytest.raises(swjoin.UserError, match="the join is closed"):
            join.push(left=plain(LEFT))

    run(main)


def test_a_stream_that_is_ahead_is_not_read() -> None:
    """Five seconds is the window: what is further ahead of an idle stream waits with its producer."""
    fast = Source(pieces([("a", second, "x", 1) for second in range(1000)], 1))

    async def main() -> None:
        join = swjoin.WindowJoin(**OPTIONS)
        slow = endless([plain([("a", 10, "y", 1)])])
        task = asyncio.create_task(_drain(join.stream(fast, slow)))
        taken = -1
        while taken != fast.taken or taken < 15:
            taken = fast.taken
            await asyncio.sleep(0.2)
        assert 15 <= fast.taken <= 18
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fast.closed
        assert slow.closed

    run(main)


async def _drain(found: AsyncIterator[pa.RecordBatch]) -> int:
    return sum([batch.num_rows async for batch in found])


async def _of(reader: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    for batch in reader:
        yield batch


def test_two_joins_at_once_and_a_loop_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run while rows are joined; both joins are right."""
    while_joining = 0

    async def ticks() -> None:
        nonlocal while_joining
        while True:
            await asyncio.sleep(0)
            while_joining += joining.is_set()

    whole = swjoin.count(long_stream(1, 60, []).read_all(), long_stream(2, 60, []).read_all(), **LONG)

    async def main() -> None:
        joins = [swjoin.WindowJoin(**LONG) for _ in range(2)]
        ticking = asyncio.create_task(ticks())
        streams = [join.stream(_of(long_stream(1, 60, [])), _of(long_stream(2, 60, []))) for join in joins]
        assert await asyncio.gather(*map(_drain, streams)) == [whole.count, whole.count]
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
        assert [(join.count, join.digest) for join in joins] == [(whole.count, whole.digest)] * 2

    def slow(self: swjoin.WindowJoin, **sides: Any) -> Any:
        joining.set()
        time.sleep(0.001)  # the interpreter is free, as it is in a kernel
        found = original(self, **sides)
        joining.clear()
        return found

    joining, original = threading.Event(), swjoin.WindowJoin.push
    monkeypatch.setattr(swjoin.WindowJoin, "push", slow)
    run(main)
    assert while_joining > 100


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancellation(after: int) -> None:
    async def main() -> None:
        join = swjoin.WindowJoin(**OPTIONS)
        left, right = endless(pieces(LEFT, 1)), endless(pieces(RIGHT, 1))
        seen = 0

        async def consume() -> None:
            nonlocal seen
            async for _ in join.stream(left, right):
                seen += 1

        task = asyncio.create_task(consume())
        while seen < after:
            await asyncio.sleep(0)
        while not left.taken:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (join.closed, left.closed, right.closed) == (True, True, True)
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.05):
                await _drain(swjoin.WindowJoin(**OPTIONS).stream(endless([]), endless(pieces(RIGHT, 1))))

    run(main)


def test_errors_of_a_source_and_of_its_rows() -> None:
    async def main() -> None:
        wrong = [plain(LEFT[:3]), plain([("a", -100, "x", 1)])]
        cases: list[tuple[Any, type[Exception], str]] = [
            (Source(pieces(LEFT, 3), error=ConnectionResetError("gone")), ConnectionResetError, "gone"),
            (Source(wrong), swjoin.UserError, r"left, row id 3: its time is \w+ behind .*max_out_of_order="),
            (Source([{"user": ["a"]}]), swjoin.UserError, "left: a dict is no table"),
            (5, swjoin.UserError, "left: a int is no table"),
            ("left.parquet", swjoin.UserError, "left: 'left.parquet' is a path; a stream takes batches"),
        ]
        for left, kind, text in cases:
            join = swjoin.WindowJoin(**OPTIONS)
            right = Source(pieces(RIGHT, 3))
            with pytest.raises(kind, match=text):
                await _drain(join.stream(left, right))
            if isinstance(left, Source):
                assert left.closed
                with pytest.raises(swjoin.RunFailed, match="the join has failed before"):
                    join.close()

    run(main)


# ---------------------------------------------------------------- results of a live run


def test_results_of_a_live_run_in_an_event_loop(tmp_path: Path) -> None:
    left, right = rows(1, 300), rows(2, 300)
    answer = expected(tuples(left), tuples(right))

    with live(live_config(), tmp_path) as (live_run, client):

        async def main() -> None:
            idle = client.results("now")
            waiting = asyncio.create_task(_drain(aiter(idle)))
            await asyncio.sleep(0.1)
            waiting.cancel()  # while no row comes
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with connect(live_run.address) as other:
                everything = asyncio.create_task(_drain(aiter(other.results("start"))))
                for side, table in (("left", left), ("right", right)):
                    await asyncio.to_thread(client.push, side, table, end=True)  # type: ignore[arg-type]
                    await asyncio.to_thread(client.end, side)  # type: ignore[arg-type]
                assert await everything == answer[0]

        run(main)
        assert live_run.result() == answer


def test_polars_reads_the_results_of_a_live_run(tmp_path: Path) -> None:
    left, right = rows(3, 300), rows(4, 300)
    answer = expected(tuples(left), tuples(right))
    with live(live_config(), tmp_path) as (live_run, client):
        results = client.results("start")
        for side, table in (("left", left), ("right", right)):
            client.push(side, table, end=True)
            client.end(side)
        assert len(pl.DataFrame(results)) == answer[0]
        assert live_run.result() == answer

"""What is left of a join after an exception: exactly what was there before, or nothing that could be taken for an answer."""

from __future__ import annotations

import contextlib
import itertools
import opcode
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import swjoin
from swjoin.connectors.output_columns import OutputColumns
from swjoin.monitor.process_settings import join_settings

PACKAGE = str(Path(swjoin.__file__).parent)
BASICS: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "30us"}
Rows = list[tuple[int, int]]


def rows(seed: int, count: int, keys: int = 4) -> pa.Table:
    random = np.random.default_rng(seed)
    key = pa.array([f"k{k}" for k in random.integers(0, keys, count)], mask=random.random(count) < 0.1)
    return pa.table({"key": key, "ts": np.sort(random.integers(0, 400, count)), "text": [f"t{i}" for i in range(count)]})


LEFT, RIGHT = rows(1, 120), rows(2, 100)
LATE = pa.table({"key": ["k1"], "ts": [0], "text": ["late"]})
GOOD = pa.table({"key": ["k1"], "ts": [1000], "text": ["good"]})


def ids(batches: list[pa.RecordBatch]) -> Rows:
    """Ids of both sides, sorted."""
    found = ((b.column("left_id").to_pylist(), b.column("right_id").to_pylist()) for b in batches)
    return sorted(pair for left, right in found for pair in zip(left, right, strict=True))


def expected(left: pa.Table, right: pa.Table) -> Rows:
    return ids(swjoin.join(left, right, **BASICS, ids=True).to_batches())


def opened(**more: Any) -> swjoin.WindowJoin:
    return swjoin.WindowJoin(**BASICS, ids=True, **more)


# ---------------------------------------------------------------- a push is taken whole or not at all


def reader(*tables: pa.Table, error: BaseException | None = None) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            yield from table.to_batches()
        if error is not None:
            raise error

    return pa.RecordBatchReader.from_batches(tables[0].schema, batches())


@pytest.mark.parametrize("known", [True, False], ids=["schemas known", "schemas unknown"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: {"left": GOOD, "right": LATE},
        lambda: {"left": LATE, "right": GOOD},
        lambda: {"left": reader(GOOD, LATE), "right": GOOD},
        lambda: {"left": GOOD, "right": reader(GOOD, GOOD, error=OSError("gone"))},
        lambda: {"left": GOOD, "right": reader(GOOD, error=ZeroDivisionError("gone"))},
        lambda: {"left": GOOD, "right": GOOD.drop_columns(["ts"])},
        lambda: {"left": GOOD, "right": GOOD.set_column(1, "ts", pa.array([2**62]))},
        lambda: {"left": GOOD, "right": [1]},
    ],
    ids=["right late", "left late", "second batch late", "reader fails", "reader raises", "no time", "time", "no table"],
)
def test_a_push_that_is_refused_takes_nothing_of_either_side(wrong: Callable[[], Any], known: bool) -> None:
    schemas = {"left_schema": LEFT.schema, "right_schema": RIGHT.schema} if known else {}
    with opened(**schemas) as join:
        found = list(join.push(left=LEFT.slice(0, 60), right=RIGHT.slice(0, 50)))
        found += list(join.advance(to=100))
        before = str(join.ledger), join.count, join.digest
        for _ in range(2):
            with pytest.raises((swjoin.UserError, ZeroDivisionError)):
                join.push(**wrong())
            assert (str(join.ledger), join.count, join.digest) == before
        found += list(join.push(left=LEFT.slice(60), right=RIGHT.slice(50)))
        found += list(join.close())
    assert ids(found) == expected(LEFT, RIGHT)
    assert join.ledger.left.tuples == 120


def test_a_refused_first_push_leaves_no_schema_behind() -> None:
    other = pa.table({"key": pa.array([7]), "ts": pa.array([None], pa.int64())})
    join = opened()
    with pytest.raises(swjoin.UserError, match="left, row id 0: no time"):
        join.push(left=other)
    with pytest.raises(swjoin.UserError, match="right: a list is no table"):
        join.push(left=other, right=[])
    with pytest.raises(swjoin.UserError, match="join keys: left key is int64, right key is string"):
        join.push(left=other.slice(0, 0), right=RIGHT)
    list(join.push(left=LEFT))  # of another type
    with pytest.raises(swjoin.UserError, match="behind an earlier row"):
        join.push(left=LATE)  # before anything is known of the right side
    with pytest.raises(swjoin.UserError, match="join keys: left key is string, right key is int64"):
        join.push(right=other.slice(0, 0))
    found = list(join.push(right=RIGHT)) + list(join.close())
    assert ids(found) == expected(LEFT, RIGHT)
    with pytest.raises(swjoin.UserError, match="left table: time column ts is missing"):
        opened().push(left=LEFT.drop_columns(["ts"]))
    with pytest.raises(swjoin.UserError, match="right table: key column key is missing"):
        opened().push(right=RIGHT.drop_columns(["key"]))


def test_a_promise_that_is_none_is_told_when_the_side_is_known_and_forgotten() -> None:
    join = opened()
    list(join.advance("tomorrow", side="left"))
    list(join.advance(5))
    with pytest.raises(swjoin.UserError, match="advance: 'tomorrow' is no value of the left side's time column ts"):
        join.push(left=LEFT)
    with pytest.raises(swjoin.UserError, match="behind an earlier row"):
        join.push(left=LATE)  # the other promise stands
    found = list(join.push(left=LEFT.filter(pa.compute.field("ts") >= 5))) + list(join.push(right=RIGHT.slice(0, 0)))
    assert found + list(join.close()) == []


# ---------------------------------------------------------------- failed, and says so


def test_after_an_exception_every_call_says_that_the_join_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(plan: OutputColumns, pairs: Any) -> Any:
        raise pa.ArrowInvalid("no\nroom")

    def use() -> None:
        with opened(left_schema=LEFT.schema, right_schema=RIGHT.schema) as join:
            first = join.push(left=LEFT)
            monkeypatch.setattr(OutputColumns, "decode", fails)
            with pytest.raises(pa.ArrowInvalid):
                list(join.push(right=RIGHT))
            monkeypatch.undo()
            calls: list[Callable[[], Any]] = [
                lambda: next(first),
                lambda: join.push(left=GOOD),
                lambda: join.advance(to=5),
                join.late_rows,
                join.close,
                lambda: join.count,
                lambda: join.digest,
                lambda: join.ledger,
            ]
            for call in calls:
                with pytest.raises(
                    swjoin.RunFailed, match=r"has failed before \(ArrowInvalid: no room\); make a new WindowJoin"
                ):
                    call()
            assert "failed" in repr(join)

    with pytest.raises(swjoin.RunFailed, match=r"has failed before \(ArrowInvalid: no room\)"):
        use()  # the block ends without an exception of its own, and says so, too
    join = opened(left_schema=LEFT.schema, right_schema=RIGHT.schema)
    monkeypatch.setattr(OutputColumns, "decode", fails)
    with pytest.raises(ZeroDivisionError), join:
        list(itertools.chain(*[join.push(left=LEFT)], [1 / 0]))  # the block's own exception stands
    monkeypatch.undo()
    with opened() as join:
        join.cancel()
    with pytest.raises(swjoin.UserError, match="closed"):
        join.push(left=LEFT)


def test_who_abandons_an_iterator_gets_the_rest_with_the_next_call() -> None:
    many = pa.table({"key": ["a"] * 400, "ts": [1] * 400, "text": ["x"] * 400})
    with opened(left_schema=many.schema, right_schema=many.schema, memory="100MB") as join:
        found = [next(join.push(left=many, right=many))]
        assert 0 < found[0].num_rows < 160_000
        for batch in join.advance(to=1):
            found.append(batch)
            break
        kept = join.push(right=many.slice(0, 1))
        found.append(next(kept))
        found += list(join.close())
        assert list(kept) == []
    assert ids(found) == sorted(itertools.product(range(400), range(401)))
    assert join.count == 400 * 401
    assert join.ledger.balanced


# ---------------------------------------------------------------- interrupted anywhere


class Interrupter:
    """Raises KeyboardInterrupt at the n-th step (line or instruction) inside the package while `call` runs."""

    def __init__(self, at: int, *, opcodes: bool) -> None:
        self.at, self.opcodes, self.steps = at, opcodes, 0

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        sys.settrace(self._trace)
        try:
            return function(*arguments, **named)
        finally:
            sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not (name.startswith(PACKAGE) or name.endswith("contextlib.py")):
            return None
        frame.f_trace_opcodes = self.opcodes
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] == opcode.opmap["RETURN_VALUE"]:
            return self._trace  # the interpreter does not look for signals there, and no function could undo its work
        if event == ("opcode" if self.opcodes else "line"):
            self.steps += 1
            if self.steps == self.at:
                raise KeyboardInterrupt
        return self._trace


PUSHES: list[dict[str, Any]] = [
    {"left": LEFT.slice(0, 40)},
    {"right": RIGHT.slice(0, 50)},
    {"left": LEFT.slice(40, 40), "right": RIGHT.slice(50, 20)},
    {"left": LEFT.slice(80), "right": RIGHT.slice(70)},
]


def play(interrupter: Interrupter, *, known: bool) -> str:
    """Rows are pushed, pairs are taken; whatever is interrupted is tried once more. Returns "failed" or "whole"."""
    schemas = {"left_schema": LEFT.schema, "right_schema": RIGHT.schema} if known else {}
    join = opened(**schemas)
    found: list[pa.RecordBatch] = []

    def again(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return interrupter.call(function, *arguments, **named)
        except KeyboardInterrupt:
            return function(*arguments, **named)

    def drain(results: Iterator[pa.RecordBatch]) -> None:
        while True:
            try:
                batch = interrupter.call(next, results, None)
            except KeyboardInterrupt:
                return  # the rest comes later
            if batch is None:
                return
            found.append(batch)

    try:
        with join:
            for step, push in enumerate(PUSHES):
                results = again(join.push, **push)
                if step % 2:
                    drain(results)
            drain(again(join.advance, to=300))
            drain(again(join.close))
            with contextlib.suppress(swjoin.UserError):  # closed, where all has been taken
                found += list(join.close())
    except swjoin.RunFailed as failure:
        said = str(failure)
    else:
        said = ""
    if said:
        assert "has failed before (" in said
        return "failed"
    assert ids(found) == expected(LEFT, RIGHT)
    assert join.count == len(ids(found))
    assert join.ledger.balanced
    return "whole"


@pytest.mark.parametrize("known", [True, False], ids=["schemas known", "schemas unknown"])
@pytest.mark.parametrize("opcodes", [False, True], ids=["lines", "instructions"])
@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.long)])
def test_an_interrupt_anywhere_loses_nothing_silently(known: bool, opcodes: bool, count: int) -> None:
    calm = Interrupter(0, opcodes=opcodes)
    assert play(calm, known=known) == "whole"
    assert calm.steps > 500
    draw = random.Random(1)
    points = draw.sample(range(1, calm.steps + 1), min(count, calm.steps - 1))
    outcomes = [play(Interrupter(at, opcodes=opcodes), known=known) for at in points]
    assert set(outcomes) == {"failed", "whole"}


def test_real_signals_lose_nothing_silently() -> None:
    """As Ctrl-C does it: wherever the interpreter looks for signals."""
    started = time.perf_counter()
    play(Interrupter(0, opcodes=False), known=True)
    whole_s = time.perf_counter() - started
    draw = random.Random(2)
    before = signal.signal(signal.SIGALRM, Timed.interrupt)
    try:
        for _ in range(60):
            fired = Timed(draw.random() * whole_s)
            play(fired, known=draw.random() < 0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Timed(Interrupter):
    """Interrupts once, so many seconds spent inside calls; never between them, where nobody could tell what was handed over."""

    def __init__(self, after_s: float) -> None:
        super().__init__(0, opcodes=False)
        self._left_s = after_s

    @staticmethod
    def interrupt(_number: int, frame: FrameType | None) -> None:
        """Not in `call` itself: the function has returned there, and its result would be lost outside the package."""
        if frame is None or frame.f_code is not Timed.call.__code__:
            raise KeyboardInterrupt

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._left_s <= 0:
            return function(*arguments, **named)
        signal.setitimer(signal.ITIMER_REAL, self._left_s)
        try:
            out = function(*arguments, **named)
            self._left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self._left_s = 0
            raise
        return out


# ---------------------------------------------------------------- joins of whole tables


def _settings_twice() -> None:
    with join_settings(), join_settings():
        pass


@pytest.mark.parametrize("opcodes", [False, True])
def test_an_interrupt_anywhere_in_the_settings_leaves_none_of_them(opcodes: bool) -> None:
    before = sys.getswitchinterval()
    calm = Interrupter(0, opcodes=opcodes)
    calm.call(_settings_twice)
    for at in range(1, calm.steps + 1):
        with contextlib.suppress(KeyboardInterrupt):  # the second call of undo may be the one that is interrupted
            Interrupter(at, opcodes=opcodes).call(_settings_twice)
        _settings_twice()  # does not wait
        assert sys.getswitchinterval() == before


@pytest.mark.parametrize("threads", [None, 2], ids=["in the caller's thread", "in threads"])
@pytest.mark.parametrize("function", [swjoin.join, swjoin.count])
def test_an_interrupted_join_of_tables_leaves_nothing_behind(function: Callable[..., Any], threads: int | None) -> None:
    arguments: dict[str, Any] = {**BASICS, "threads": threads}
    function(LEFT, RIGHT, **arguments)  # imports modules; later calls have fewer steps
    calm = Interrupter(0, opcodes=False)
    want = calm.call(function, LEFT, RIGHT, **arguments)
    switching, count = sys.getswitchinterval(), len(expected(LEFT, RIGHT))
    draw = random.Random(3)
    for at in draw.sample(range(1, calm.steps + 1), 80):
        with pytest.raises(KeyboardInterrupt):
            Interrupter(at, opcodes=False).call(function, LEFT, RIGHT, **arguments)
        assert sys.getswitchinterval() == switching
        deadline = time.monotonic() + 60
        while [t for t in threading.enumerate() if t.name.startswith("swjoin")]:
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.001)
    assert swjoin.count(LEFT, RIGHT, **arguments).count == count
    assert function(LEFT, RIGHT, **arguments) == want

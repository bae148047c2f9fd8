"""Many producers, one stream: the merged order is a function of what the lanes hold, and makes nobody's rows late."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.connectors import producer_merge as merge_module
from swjoin.connectors.producer_merge import Merge, MergeClosedError
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US
from tests.support.limits import PROCESS_S
from tests.support.merged_rows import Row, late_rows, merged_order, places_of

PLENTY = 1 << 30


def batch_of(lane: str, first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([lane] * rows, pa.string()), pa.array(range(first, first + rows), pa.int64())], ["lane", "row"]
    )


def rows_of(batch: pa.RecordBatch | None) -> list[Row]:
    return [] if batch is None else list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def push(merge: Merge, lane: str, times: list[int | None], first: int) -> None:
    """Rows of a lane, the first of which has this number."""
    values = np.array([0 if t is None else t for t in times], np.int64)
    valid = np.array([t is not None for t in times], np.bool_)
    merge.push(lane, batch_of(lane, first, len(times)), values, None if valid.all() else valid)


def certain(lanes: dict[str, list[int | None]], received: dict[str, int], ended: set[str]) -> list[Row]:
    """By definition: rows received that nothing to come of another lane can come before, in the merged order."""
    places = {lane: places_of(times) for lane, times in lanes.items()}
    high = {lane: places[lane][n - 1] if n else BEGIN_OF_TIME_US for lane, n in received.items()}

    def sure(lane: str, row: int) -> bool:
        place = places[lane][row]
        others = [other for other in lanes if other != lane and other not in ended]
        return row < received[lane] and all((place, lane) < (high[other], other) for other in others)

    return [row for row in merged_order(lanes) if sure(*row)]


LANES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=12), min_size=1
)


@dataclass
class Drive:
    """Pushes and takes as a schedule says, from these lanes."""

    lanes: dict[str, list[int | None]]
    merge: Merge
    sent: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    out: list[Row] = field(default_factory=list)

    def send(self, lane: str, rows: int) -> None:
        first = self.sent[lane]
        times = self.lanes[lane][first : first + rows]
        if times:
            push(self.merge, lane, times, first)
            self.sent[lane] += len(times)
        elif lane not in self.ended:
            self.ended.add(lane)
            self.merge.end(lane)

    def take(self, most: int) -> int:
        rows = rows_of(self.merge.take(most))
        assert len(rows) <= most
        self.out += rows
        self.merge.validate()
        return len(rows)

    def take_all(self, most: int = 5) -> None:
        while self.take(most):
            pass


def driven(lanes: dict[str, list[int | None]]) -> Drive:
    drive = Drive(lanes, Merge(expected=len(lanes), lane_bytes=PLENTY, linger_s=0))
    for lane in lanes:
        assert drive.merge.open(lane) == 0
        drive.sent[lane] = 0
    return drive


@settings(max_examples=300, deadline=None)
@given(LANES, st.data())
def test_the_order_is_a_function_of_the_lanes(lanes: dict[str, list[int | None]], data: st.DataObject) -> None:
    """However rows are pushed and taken; what can be handed over is, and nothing else."""
    expected = merged_order(lanes)
    drive = driven(lanes)
    steps = st.one_of(
        st.tuples(st.sampled_from(sorted(lanes)), st.integers(1, 5)), st.tuples(st.just("take"), st.integers(1, 5))
    )
    for what, rows in data.draw(st.lists(steps, max_size=40)):
        if what != "take":
            drive.send(what, rows)
        else:
            drive.take(rows)
        assert drive.out == expected[: len(drive.out)]
        assert set(drive.out) <= set(certain(lanes, drive.sent, drive.ended))
    drive.take_all()
    assert drive.out == certain(lanes, drive.sent, drive.ended)
    assert not drive.merge.ended or len(drive.ended) == len(lanes)
    for lane, times in lanes.items():
        drive.send(lane, len(times) + 1)
        drive.send(lane, 1)
    drive.take_all()
    assert drive.out == expected
    assert drive.merge.ended
    assert drive.merge.waiting_rows == 0


@settings(max_examples=200, deadline=None)
@given(LANES, st.integers(0, 6))
def test_nobody_makes_another_ones_rows_late(lanes: dict[str, list[int | None]], bound: int) -> None:
    drive = driven(lanes)
    for lane, times in lanes.items():
        drive.send(lane, len(times) + 1)
        drive.send(lane, 1)
    drive.take_all(3)
    late = late_rows([lanes[lane][row] for lane, row in drive.out], bound)
    assert sorted(drive.out[i] for i in late) == sorted((lane, row) for lane in lanes for row in late_rows(lanes[lane], bound))


@settings(max_examples=150, deadline=None)
@given(LANES, st.data())
def test_another_merge_goes_on_where_one_was(lanes: dict[str, list[int | None]], data: st.DataObject) -> None:
    """What waited is pushed again, and comes in the order it would have come in."""
    first = driven(lanes)
    for lane in data.draw(st.lists(st.sampled_from(sorted(lanes)), max_size=20)):
        first.send(lane, data.draw(st.integers(1, 4)))
        if data.draw(st.booleans()):
            first.take(data.draw(st.integers(1, 4)))
    position = first.merge.position()
    second = Drive(lanes, Merge(expected=len(lanes), lane_bytes=PLENTY, linger_s=0), out=list(first.out))
    second.merge.restore(position)
    for lane, times in lanes.items():
        second.sent[lane] = second.merge.open(lane)
        assert second.sent[lane] == second.merge.taken(lane) == sum(name == lane for name, _ in first.out)
        second.send(lane, len(times) + 1)
        second.send(lane, 1)
    second.take_all()
    assert second.out == merged_order(lanes)
    assert second.merge.ended


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(merge_module, "time", clock)
    return clock


def test_silent_lanes_are_waited_for_no_longer(clock: Clock) -> None:
    merge = Merge(expected=2, lane_bytes=PLENTY, idle_timeout_us=1_000_000, linger_s=0)
    merge.open("a")
    merge.open("b")
    push(merge, "a", [10, 20], 0)
    push(merge, "b", [5, 12], 0)
    assert rows_of(merge.take(9)) == [("b", 0), ("a", 0), ("b", 1)]
    clock.now_s += 0.9
    push(merge, "a", [30], 2)
    assert merge.take(9) is None, "rows 1 and 2 of a wait for what b may bring"
    clock.now_s += 0.2
    assert rows_of(merge.take(9)) == [("a", 1), ("a", 2)]
    assert not merge.ended
    push(merge, "b", [13, 31], 2)  # comes late, and is not lost
    assert merge.take(9) is None, "they wait for a, which has spoken"
    push(merge, "a", [31], 3)
    assert rows_of(merge.take(9)) == [("b", 2), ("a", 3)]
    clock.now_s += 1.1
    assert rows_of(merge.take(9)) == [("b", 3)]


def test_a_silent_lane_with_rows_that_wait_holds_back_until_they_are_taken(clock: Clock) -> None:
    merge = Merge(lane_bytes=PLENTY, idle_timeout_us=1_000_000, linger_s=0)
    for lane in "ab":
        merge.open(lane)
    push(merge, "a", [1, 2, 3], 0)
    clock.now_s += 2
    push(merge, "b", [2, 9], 0)
    assert rows_of(merge.take(2)) == [("a", 0), ("a", 1)]
    assert rows_of(merge.take(9)) == [("b", 0), ("a", 2)]
    assert rows_of(merge.take(9)) == [("b", 1)]


@settings(max_examples=150, deadline=None)
@given(LANES, st.data())
def test_silence_loses_no_row(lanes: dict[str, list[int | None]], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(merge_module, "time", clock)
        merge = Merge(expected=len(lanes), lane_bytes=PLENTY, idle_timeout_us=1_000_000, linger_s=0)
        drive = Drive(lanes, merge)
        for lane in lanes:
            merge.open(lane)
            drive.sent[lane] = 0
        for lane in data.draw(st.lists(st.sampled_from(sorted(lanes)), max_size=30)):
            clock.now_s += data.draw(st.sampled_from([0, 0.4, 1.5]))
            drive.send(lane, data.draw(st.integers(1, 4)))
            drive.take(data.draw(st.integers(1, 6)))
        for lane, times in lanes.items():
            drive.send(lane, len(times) + 1)
            drive.send(lane, 1)
        drive.take_all()
        assert merge.ended
    for lane, times in lanes.items():
        assert [row for name, row in drive.out if name == lane] == list(range(len(times)))


def test_rows_wait_until_all_producers_have_come_but_not_for_ever(clock: Clock) -> None:
    merge = Merge(expected=2, lane_bytes=PLENTY, idle_timeout_us=5_000_000, linger_s=0)
    merge.open("a")
    push(merge, "a", [1], 0)
    merge.end("a")
    assert merge.take(9) is None
    assert not merge.ended
    clock.now_s += 6
    assert rows_of(merge.take(9)) == [("a", 0)]
    merge.open("b")
    merge.end("b")
    assert merge.ended
    with pytest.raises(UserError, match="has its 2 producers already"):
        merge.open("c")


def test_the_end() -> None:
    merge = Merge(lane_bytes=PLENTY, linger_s=0)
    assert not merge.ended, "any number of producers may still come"
    merge.open("a")
    push(merge, "a", [3, 4], 0)
    merge.end("a")
    assert not merge.ended
    merge.open("p", anonymous=True)
    push(merge, "p", [1], 0)
    assert rows_of(merge.take(9)) == [("p", 0)]
    merge.leave("p")
    assert merge.lanes == 1, "an anonymous producer that has gone is forgotten"
    merge.finish()
    assert not merge.ended, "rows wait"
    assert rows_of(merge.take(1)) == [("a", 0)]
    assert rows_of(merge.take(1)) == [("a", 1)]
    assert merge.ended
    with pytest.raises(UserError, match="the stream has ended"):
        merge.open("late")


def test_a_promise_lets_others_go_on() -> None:
    merge = Merge(expected=2, lane_bytes=PLENTY, linger_s=0)
    merge.open("a")
    merge.open("b")
    push(merge, "a", [5, 9], 0)
    assert merge.take(9) is None
    merge.advance("b", 9)
    assert rows_of(merge.take(9)) == [("a", 0), ("a", 1)]
    merge.advance("b", 2)
    push(merge, "b", [4], 0)
    push(merge, "a", [10], 2)
    assert rows_of(merge.take(9)) == [("b", 0)], "its place is what it had promised"


def test_few_rows_linger(clock: Clock) -> None:
    merge = Merge(lane_bytes=PLENTY, linger_s=0.5)
    merge.open("a")
    push(merge, "a", [1], 0)
    assert rows_of(merge.take(9)) == [("a", 0)]
    push(merge, "a", [2], 1)
    assert merge.take(9) is None
    assert merge.linger_s == pytest.approx(0.5)
    clock.now_s += 0.6
    assert rows_of(merge.take(9)) == [("a", 1)]
    push(merge, "a", list(range(3, 5000)), 2)
    assert len(rows_of(merge.take(9999))) == 4997, "many need not"


def test_a_full_lane_holds_its_producer_and_nobody_else() -> None:
    one = batch_of("a", 0, 8)
    merge = Merge(expected=2, lane_bytes=2 * one.nbytes, linger_s=0)
    merge.open("a")
    merge.open("b")
    push(merge, "a", list(range(8)), 0)
    assert merge.has_room("a", one.nbytes)
    push(merge, "a", list(range(8, 16)), 8)
    assert not merge.has_room("a", one.nbytes)
    assert merge.has_room("b", 9 * one.nbytes), "a batch that is larger than the lane may come when it is empty"
    with pytest.raises(MergeClosedError):
        merge.push("a", one, np.arange(16, 24), None, given_up=lambda: True)
    many = Merge(lane_bytes=PLENTY, linger_s=0)
    many.open("a")
    for row in range(merge_module._MOST_PIECES):
        assert many.has_room("a", 1)
        push(many, "a", [row], row)
    assert not many.has_room("a", 1), "batches of a row each: it is their number that counts"
    done = threading.Event()

    def third() -> None:
        push(merge, "a", list(range(16, 24)), 16)
        done.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not done.wait(0.3)
    push(merge, "b", [99], 0)
    assert len(rows_of(merge.take(8))) == 8
    assert done.wait(PROCESS_S)
    thread.join()
    assert [row for _, row in rows_of(merge.take(99))] == list(range(8, 24))


def test_closing_lets_everybody_go() -> None:
    merge = Merge(lane_bytes=1, linger_s=0)
    merge.open("a")
    push(merge, "a", [1], 0)
    raised: list[BaseException] = []

    def more() -> None:
        try:
            push(merge, "a", [2], 1)
        except MergeClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=more)
    thread.start()
    time.sleep(0.05)
    merge.close()
    thread.join(PROCESS_S)
    assert not thread.is_alive()
    assert len(raised) == 1
    with pytest.raises(MergeClosedError):
        push(merge, "a", [3], 1)

"""Units that store one stream each: whatever the order in which the parts of an epoch come, tuples are joined in one order; and
a restore keeps what windows have held."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.tuple_queue import TupleQueue
from swjoin.cluster.slave.units import Units
from swjoin.core.batch import I64, LEFT, RIGHT, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.ids import BEGIN_OF_TIME_US, EpochIndex, SlaveId

GROUPS = 5
STORES_LEFT = np.arange(GROUPS) < 2
ROWS = st.lists(st.integers(0, GROUPS - 1), max_size=4).map(sorted)  # their partition-groups
PARTS = st.lists(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4), min_size=1, max_size=3)  # of each epoch


def _rows(groups: list[int], first: int) -> tuple[I64, TupleBatch]:
    """Counts of all groups, and tuples with ids from `first` on."""
    ids, nothing = np.arange(first, first + len(groups), dtype=np.uint64), np.zeros(len(groups), np.int64)
    return np.bincount(groups, minlength=GROUPS).astype(np.int64), TupleBatch(nothing, nothing, ids, nothing)


def _deliveries(parts: list[list[tuple[list[int], list[int]]]]) -> list[Delivery]:
    found, first = [], 0
    for epoch, of_epoch in enumerate(parts):
        for i, sides in enumerate(of_epoch):
            counts, batches = [], []
            for groups in sides:
                count, batch = _rows(groups, first)
                counts.append(count)
                batches.append(batch)
                first += len(groups)
            final, labels = i == len(of_epoch) - 1, (0, SlaveId(0), EpochIndex(epoch), 10 * epoch, 10 * epoch)
            found.append(Delivery(*labels, np.arange(GROUPS), *counts, *batches, final=final))
    return found


def _held(delivery: Delivery, side: int) -> list[tuple[int, int]]:
    """(partition-group, id) of the tuples of a side."""
    counts, batch = (delivery.left_counts, delivery.left) if side == LEFT else (delivery.right_counts, delivery.right)
    return list(zip(np.repeat(delivery.groups, counts).tolist(), batch.id.tolist(), strict=True))


@given(PARTS)
def test_left_tuples_of_an_epoch_come_first_and_nothing_is_lost(parts: list[list[tuple[list[int], list[int]]]]) -> None:
    units, came = Units(STORES_LEFT, (None, None)), _deliveries(parts)
    found = []
    for delivery in came:
        units.add(delivery)
        while len(units):
            found.append(units.take())
    assert [units.waiting_tuples(side) for side in (LEFT, RIGHT)] == [0, 0]
    order = [(part.epoch, RIGHT if len(part.right) else LEFT) for part in found]
    assert order == sorted(order)
    assert [part.epoch for part in found if part.final] == list(range(len(parts)))
    for part in found:
        assert not (len(part.left) and len(part.right))
        for side in (LEFT, RIGHT):
            stores = {bool(STORES_LEFT[group]) == (side == LEFT) for group, _ in _held(part, side)}
            assert stores <= {part.routes[side] == Route.STORE}
        before_us = BEGIN_OF_TIME_US if part.epoch == 0 else 10 * (part.epoch - 1)
        assert part.left_time_us == (10 * part.epoch if part.final else before_us)
    for side in (LEFT, RIGHT):
        assert sorted(row for part in found for row in _held(part, side)) == sorted(
            row for part in came for row in _held(part, side)
        )


@given(PARTS)
def test_a_restore_keeps_stored_tuples_alone(parts: list[list[tuple[list[int], list[int]]]]) -> None:
    for delivery in _deliveries(parts):
        kept = Units(STORES_LEFT, (None, None)).stored(delivery)
        assert _held(kept, LEFT) == [row for row in _held(delivery, LEFT) if STORES_LEFT[row[0]]]
        assert _held(kept, RIGHT) == [row for row in _held(delivery, RIGHT) if not STORES_LEFT[row[0]]]
        assert Units(None, (None, None)).stored(delivery) is delivery


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=4), st.data())
def test_a_queue_of_tuples_takes_all_in_one_order(steps: list[list[int]], data: st.DataObject) -> None:
    """The baseline of the benchmark: whatever comes first, tuples are taken by stamp and router, none twice."""
    stamps = [np.cumsum(np.array(of, np.int64) + 1) for of in steps]
    firsts = np.cumsum([0, *map(len, stamps)])
    queue, at, found = TupleQueue(len(stamps), int(firsts[-1]) + 1), [0] * len(stamps), []
    while any(at[i] < len(of) for i, of in enumerate(stamps)):
        i = data.draw(st.sampled_from([i for i, of in enumerate(stamps) if at[i] < len(of)]))
        n = data.draw(st.integers(1, len(stamps[i]) - at[i]))
        queue.add(i, stamps[i][at[i] : at[i] + n], int(firsts[i]) + at[i])
        at[i] += n
        queue.signal(i, int(stamps[i][at[i] - 1]))
        found += queue.take().tolist()
    for i in range(len(stamps)):
        queue.signal(i, 1 << 62)
    found += queue.take().tolist()
    whole = [(int(stamp), i, int(firsts[i]) + j) for i, of in enumerate(stamps) for j, stamp in enumerate(of)]
    assert found == [row for *_, row in sorted(whole)]
    assert len(queue) == 0

"""Where chance rarely leads: tags that collide, buffers that fill, pages that are used again, instructions alone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from swjoin.core.batch import PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Route
from swjoin.core.errors import RunFailed
from swjoin.core.hashing import hash_key, tag_of
from swjoin.core.ids import END_OF_TIME_US, GroupId
from swjoin.core.join_semantics import Bounds, pair_digest
from swjoin.core.record_layout import KEY, ROW, TS
from swjoin.core.simd import LANES, count_ones, leading_zeros, match_mask, trailing_zeros
from swjoin.policy.epochs import EpochSize, tuples_of_epoch
from swjoin.state.arrays import COUNTERS, FILL, FIRST_TS, HEAD, HEADER, LAST_TS, NEXT, TUPLES
from swjoin.state.blocks import FAULTS
from swjoin.state.payload_store import PAGE_ROWS, PayloadStore
from tests.support.join_module import delivery, drive, make, stream
from tests.tools.oracle import brute_force


def colliding_keys(count: int) -> np.ndarray:
    """Different keys with the same tag and the same low hash bits: only comparing the keys tells them apart."""
    keys = np.arange(4_000_000, dtype=np.int64)
    h = keys.astype(np.uint64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, None)):
        h ^= h >> np.uint64(shift)
        if factor is not None:
            h *= np.uint64(factor)
    same = keys[(h & np.uint64(0xFFFF0003)) == (h[1] & np.uint64(0xFFFF0003))]
    assert len(same) >= count
    assert {int(tag_of(np.uint64(hash_key(int(k))))) for k in same[:count]} == {int(tag_of(np.uint64(hash_key(int(same[0])))))}
    return same[:count]


@pytest.mark.parametrize("materialise", [True, False])
@pytest.mark.parametrize("block_tuples", [3, 64, 100])
def test_equal_tags_of_different_keys_are_no_pairs(materialise: bool, block_tuples: int) -> None:
    random = np.random.default_rng(5)
    keys = colliding_keys(8)
    left, right = (stream(random.choice(keys, 900).tolist(), random.integers(0, 4000, 900).tolist(), None) for _ in range(2))
    bounds = Bounds(-300, 200)
    join = make(bounds, block_tuples=block_tuples, theta_tuples=50, materialise=materialise, result_tuples=37)
    count = digest = at_left = at_right = 0
    for epoch, until in enumerate([500, 1000, 2500, END_OF_TIME_US]):
        to_left, to_right = (int(np.searchsorted(b.ts, until)) for b in (left, right))
        parts = left.slice(at_left, to_left), right.slice(at_right, to_right)
        at_left, at_right = to_left, to_right
        times = (until, until)
        _, n, d = drive(join, delivery(epoch, *parts, times, 2, (Route.BOTH, Route.BOTH)), limit=37 if materialise else None)
        count, digest = count + n, digest + d
    i, j = brute_force(left, right, bounds)
    assert count == len(i) > 1000
    assert digest % 2**64 == pair_digest(left.id[i], right.id[j])


@pytest.mark.parametrize(
    ("fault", "field", "wrong"),
    [
        (1, "fill", 0),
        (1, "fill", 5),
        (2, "time", -9),
        (3, "key", None),
        (4, "tag", None),
        (5, "first", -9),
        (5, "last", 99),
        (6, "next", None),
        (7, "tuples", 1),
        (8, "head", None),
        (9, "next", 10**6),
        (9, "next", -7),
    ],
)
def test_a_broken_chain_is_noticed(fault: int, field: str, wrong: int | None) -> None:
    """wrong None: what is right elsewhere, as the key and the tag of another, or an earlier block."""
    join = make(Bounds(-100, 100), block_tuples=4, theta_tuples=6, materialise=False)
    batch = stream(np.repeat(np.arange(8), 5).tolist(), [5] * 40, None)
    drive(join, delivery(0, batch, batch, (5, 5), 1, (Route.BOTH, Route.BOTH)))
    join.validate()
    state = join.state
    mini = next(m for m in state.minis_of(GroupId(0)).tolist() if len(state._chain(m, 0)) > 1)
    first, last = (state._chain(mini, 0)[i] for i in (0, -1))
    counter, row, stride = mini * COUNTERS, (first * 4 + 1) * ROW, int(state.pool.shape[1])
    other = next(k for k in range(8) if hash_key(k) % 2 != hash_key(int(state.pool.rows[row + KEY])) % 2)
    array, at, there = {
        "fill": (state.pool.header, first * HEADER + FILL, 0),
        "time": (state.pool.rows, row + TS, 0),
        "key": (state.pool.rows, row + KEY, other),
        "tag": (state.pool.tags, first * stride + 1, int(state.pool.tags[first * stride + 1]) ^ 1),
        "first": (state.pool.header, first * HEADER + FIRST_TS, 0),
        "last": (state.pool.header, first * HEADER + LAST_TS, 0),
        "next": (state.pool.header, last * HEADER + NEXT, first),
        "tuples": (state.minis.counters, counter + TUPLES, 0),
        "head": (state.minis.counters, counter + HEAD, first),
    }[field]
    array[at] = there if wrong is None else wrong
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        join.validate()


def test_arrivals_of_candidates_give_the_delays() -> None:
    """Every pair's delay counts from the later arrival, whether arrivals are all alike or all different."""
    n = 500
    random = np.random.default_rng(6)
    ts = np.sort(random.integers(0, 1000, n))
    batches = [
        TupleBatch(random.integers(0, 20, n), ts, np.arange(n, dtype=np.uint64), random.integers(0, 10**5, n)) for _ in range(2)
    ]
    join = make(Bounds(-100, 100), materialise=False)
    work = join.open(delivery(0, *batches, (END_OF_TIME_US,) * 2, 3, (Route.BOTH, Route.BOTH)))
    while not join.step(work, 10**6, 10**9).done:
        pass
    i, j = brute_force(batches[0], batches[1], Bounds(-100, 100))
    delays = 10**6 - np.maximum(batches[0].arrival_us[i], batches[1].arrival_us[j])
    assert (work.pair_count, work.delay_sum_us, work.delay_max_us) == (len(i), int(delays.sum()), int(delays.max()))


def test_masks_and_bits() -> None:
    random = np.random.default_rng(7)
    tags = random.integers(0, 4, 3 * LANES).astype(np.uint16)
    for start in (0, 1, 63, 2 * LANES):
        for tag in range(5):
            mask = int(match_mask_at(tags, start, tag))
            assert mask == sum(1 << i for i in range(LANES) if tags[start + i] == tag)
    assert bits(1 << 40) == (40, 23, 1)
    assert bits(0b1011 << 7) == (7, 53, 3)


def match_mask_at(tags: np.ndarray, start: int, tag: int) -> int:
    from numba import njit

    @njit
    def call(tags, start, tag):  # type: ignore[no-untyped-def]
        return match_mask(tags, start, np.uint16(tag))

    return int(call(tags, start, tag))


def bits(value: int) -> tuple[int, int, int]:
    from numba import njit

    @njit
    def call(value):  # type: ignore[no-untyped-def]
        return trailing_zeros(np.uint64(value)), leading_zeros(np.int64(value)), count_ones(np.uint64(value))

    trailing, leading, ones = call(value)
    return int(trailing), int(leading), int(ones)


@pytest.mark.parametrize("layout", [RowLayout(5), RowLayout(3, True), RowLayout(0, True)])
def test_payload_pages_are_used_again(layout: RowLayout) -> None:
    """A window of rows slides over many pages; what is gathered is what was stored, and resident pages stay few. Some rows are
    taken back before others come, and some after, when it is too late."""
    store = PayloadStore(layout, 64 * PAGE_ROWS * max(1, layout.fixed_bytes))
    random = np.random.default_rng(8)
    kept: list[tuple[int, np.ndarray, list[bytes]]] = []
    for step in range(60):
        n = int(random.integers(1, PAGE_ROWS))
        fixed = random.integers(0, 256, (n, layout.fixed_bytes)).astype(np.uint8)
        tails = [bytes([step % 256]) * int(k) for k in random.integers(0, 4, n)]
        offsets = np.concatenate(([0], np.cumsum([len(t) for t in tails]))).astype(np.int64)
        var = np.frombuffer(b"".join(tails), np.uint8)
        rows = PayloadRows(fixed, offsets, var) if layout.has_var else PayloadRows(fixed)
        first = store.append(rows, step)
        if step % 3 == 1:  # of the rows that only probe
            pages = store.page_count
            store.take_back(first, n)
            assert store.page_count <= pages
            store.validate()
            first = store.append(rows, step)
        if step % 7 == 5:
            store.take_back(kept[-1][0], len(kept[-1][1]))
        kept.append((first, fixed, tails))
        kept = kept[-5:]
        store.expire(step - 4)
        store.validate()
        for first, wanted, wanted_tails in kept:
            pick = random.integers(0, len(wanted), 40)
            got = store.gather(pick + first)
            assert np.array_equal(got.fixed, wanted[pick])
            if got.var is not None and got.var_offsets is not None:
                parts = [bytes(got.var[a:b]) for a, b in zip(got.var_offsets[:-1], got.var_offsets[1:], strict=True)]
                assert parts == [wanted_tails[k] for k in pick]
    assert store._pages._never_used <= 8


def test_bytes_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a slave, also above 2^32; payload is that of the unit's own stream."""
    join = make(Bounds(-10_000, 10_000), materialise=False)
    keys = list(range(600))
    left, right = stream(keys, keys, None), stream(keys[:200], keys[:200], None)
    drive(join, delivery(0, left, right, (0, 0), 2, (Route.STORE, Route.STORE)))
    tuples, stores_left = join.tuples_by_group(2), np.array([True, False])
    assert tuples.all()
    for nbytes in (join.window_bytes(), 40_000_000_000):
        monkeypatch.setattr(type(join), "window_bytes", lambda self, nbytes=nbytes: nbytes)
        found = join.bytes_by_unit(stores_left)
        assert np.abs(found - nbytes * tuples / tuples.sum()).max() <= 1

    class Payload:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

    monkeypatch.setattr(type(join), "payload", (Payload(1_000_000), Payload(30_000_000_000)))
    found = join.bytes_by_unit(stores_left)
    rest = 40_000_000_000 - 30_001_000_000
    assert np.abs(found - rest * tuples / tuples.sum() - np.array([1_000_000, 30_000_000_000])).max() <= 1


def test_full_payload_is_one_line() -> None:
    store = PayloadStore(RowLayout(8), 1)
    with pytest.raises(RunFailed, match=r"raise --memory"):
        store.append(PayloadRows(np.zeros((4 * PAGE_ROWS, 8), np.uint8)), 0)


def test_epochs_grow_with_the_windows() -> None:
    size = EpochSize(100, 1000)
    assert size.tuples == 100
    for newest in range(0, 2000, 10):
        size.closed(newest, 320)
    assert size.tuples == 320 * 101 // 16  # the epochs whose newest tuple is at most 1000 old
    size.closed(10_000, 1)
    assert size.tuples == 100
    assert [tuples_of_epoch(100, held) for held in (0, 800, 1_200, 1_600, 3_200, 4_800)] == [100, 100, 150, 200, 200, 300]


def test_no_thread_outlives_a_failed_run(tmp_path: Path) -> None:
    """A slave that fails ends the run with its line; collector and other slaves end too."""
    from swjoin.config.job import Job
    from swjoin.config.loader import config_from_plain
    from swjoin.runtime.in_process import run_local

    plain = {
        "workload": {"rate_per_s": 20000, "duration_us": 10_000_000, "bias": 0.7, "domain": 1000},
        "join": {"within": "10s"},
        "cluster": {"distribution_epoch_us": 0, "epoch_tuples": 5000},
        "module": {"window_bytes": 1 << 20, "theta_bytes": 32768},
        "sink": {"kind": "parquet"},
    }
    job = Job(config_from_plain(plain), tmp_path / "results", True, tmp_path, None, "")
    with pytest.raises(RunFailed, match=r"exceed --memory"):
        run_local(job, False, 3)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("slave", "collector"))]
    assert list((tmp_path / "results").glob("*.incomplete"))

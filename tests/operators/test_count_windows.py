"""Count windows: the definition by hand and by a program of its own, random workloads row by row, crashes, the API, ranks."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.cluster.gateway.arrival_sequence import ArrivalSequence
from swjoin.config.loader import config_from_plain
from swjoin.config.run import QueryConfig
from swjoin.core.batch import PayloadRows, RowLayout, TupleBatch
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How, format_digest, pair_digest
from swjoin.core.sequence_numbers import preceding_counts, sequence_as_time, sequence_numbers_of, stamped_layout, with_sequence
from tests.support.in_process import answer as found
from tests.support.in_process import run
from tests.support.planted import complaints
from tests.tools.oracle import brute_force
from tests.tools.random_runs import Scenario, run_scenario

Rows = list[tuple[int | None, int]]  # key, time


def one_by_one(left: Rows, right: Rows, last: tuple[int, int]) -> list[tuple[int, int]]:
    """Both streams merged, one tuple after the other, over two queues of fixed length: what a count window means."""
    merged = sorted(
        [(ts, 0, i, key) for i, (key, ts) in enumerate(left)] + [(ts, 1, i, key) for i, (key, ts) in enumerate(right)]
    )
    windows: tuple[deque[tuple[int, int]], deque[tuple[int, int]]] = (deque(maxlen=last[0]), deque(maxlen=last[1]))
    pairs = []
    for _, side, i, key in merged:
        if key is None:
            continue
        for other, j in windows[1 - side]:
            if other == key:
                pairs.append((i, j) if side == 0 else (j, i))
        windows[side].append((key, i))
    return sorted(pairs)


def rows_of(left: Rows, right: Rows, last: tuple[int, int], how: How) -> list[tuple[int | None, int | None]]:
    """Rows (left index, right index) of any kind of join."""
    pairs, kind = one_by_one(left, right, last), JOIN_KINDS[how]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    out: list[tuple[int | None, int | None]] = list(pairs) if kind.pairs else []
    out += [(i, None) for i in lefts] if kind.first else []
    out += [(i, None) for i in range(len(left)) if i not in lefts] if kind.unmatched[0] else []
    out += [(None, j) for j in range(len(right)) if j not in rights] if kind.unmatched[1] else []
    return out


def _batch(rows: Rows) -> TupleBatch:
    key, ts = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    return TupleBatch(key, ts, np.arange(len(rows), dtype=np.uint64), ts)


def test_the_definition_by_hand() -> None:
    """Equal times: left comes first. Of the last two right tuples only, whatever their keys."""
    left, right = [(1, 10), (1, 30), (2, 30)], [(1, 5), (2, 10), (1, 20), (1, 30)]
    assert one_by_one(left, right, (1, 2)) == [(0, 0), (0, 2), (1, 2), (2, 1)]
    assert one_by_one(left, right, (3, 1)) == [(0, 0), (0, 2), (0, 3), (1, 2), (1, 3)]


_STREAM = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=14)


@settings(max_examples=120, deadline=None)
@given(_STREAM, _STREAM, st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_the_oracle_agrees(left: Rows, right: Rows, last: tuple[int, int]) -> None:
    i, j = brute_force(_batch(left), _batch(right), Bounds.last(*last))
    assert sorted(zip(i.tolist(), j.tolist(), strict=True)) == one_by_one(left, right, last)


# ---------------------------------------------------------------- runs


def _stream(random: np.random.Generator, n: int, span: int, keys: int, disorder: int, nulls: float) -> Rows:
    ts = np.sort(random.integers(0, span, n))
    ts = ts[np.argsort(ts + random.integers(0, disorder + 1, n), kind="stable")]
    gone = random.random(n) < nulls
    return [(None if g else int(k), int(t)) for g, k, t in zip(gone, random.integers(0, keys, n), ts, strict=True)]


def _write(rows: Rows, path: Path, side: int) -> None:
    key, ts = (pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1))
    text = pa.array([None if i % 7 == 0 else f"{side}:{i}" * (i % 3) for i in range(len(rows))], pa.string())
    pq.write_table(pa.table({"key": key, "t": ts, "row": pa.array(range(len(rows)), pa.int64()), "text": text}), path)


def _blocks(count: int, often: int) -> list[Any]:
    return [pytest.param(block, marks=() if block < often else (pytest.mark.long,)) for block in range(count)]


@pytest.mark.parametrize("block", _blocks(8, 2))
def test_random_workloads_row_by_row(block: int, tmp_path: Path) -> None:
    """25 workloads each: any kind, counts, skew, disorder, nulls; one slave or three, moves on or off, epochs by time or count.

    Times, texts and keys of every row are compared, too: the places travel where payload does.
    """
    for seed in range(25 * block, 25 * block + 25):
        random = np.random.default_rng([seed, 79])
        how: How = list(JOIN_KINDS)[seed % 6]
        span, bound = int(random.choice([40, 5_000])), int(random.choice([0, 0, 30]))
        keys, nulls = int(random.choice([1, 5, 40])), float(random.choice([0, 0.1]))
        left, right = (_stream(random, int(random.choice([0, 1, 60, 300])), span, keys, bound, nulls) for _ in (0, 1))
        last = tuple(int(n) for n in random.choice([1, 2, 7, 50, 1000], 2))
        folder = tmp_path / str(seed)
        folder.mkdir()
        for side, (name, rows) in enumerate((("left", left), ("right", right))):
            _write(rows, folder / f"{name}.parquet", side)
        t_d = int(random.choice([0, span // 30 + 1, span]))
        plain: dict[str, Any] = {
            "join": {"last": list(last), "how": how},
            "time": {"max_out_of_order_us": bound},
            "cluster": {"partition_count": 7, "distribution_epoch_us": t_d, "epoch_tuples": int(random.choice([1, 30, 1000]))},
            "module": {"block_bytes": 256, "theta_bytes": int(random.choice([0, 1024])), "window": "16MB"},
            **{n: {"path": str(folder / f"{n}.parquet"), "time": "t", "time_unit": "us"} for n in ("left", "right")},
        }
        if t_d and random.random() < 0.6:
            plain["reorganization"] = {"policy": "random", "random_moves": 3, "epoch_us": t_d, "declustering": "adaptive"}
        config = folder / "config.yaml"
        config.write_text(json.dumps(plain))
        report = run(config, folder, int(random.choice([1, 3])))
        wanted = rows_of(left, right, (last[0], last[1]), how)
        assert report["results"]["count"] == len(wanted), f"seed {seed}, {how}, {last}"
        assert report["ledger"]["balanced"]
        table = pq.read_table(folder / "run" / "results")
        texts = [pq.read_table(folder / f"{name}.parquet")["text"].to_pylist() for name in ("left", "right")]
        sides = list(zip((left, right), texts, strict=True))
        expected = [_row(pair, sides) for pair in wanted]
        assert sorted(map(repr, map(_told, table.to_pylist()))) == sorted(map(repr, expected)), f"seed {seed}, {how}, {last}"


def _row(pair: tuple[int | None, int | None], sides: list[tuple[Rows, list[str | None]]]) -> dict[str, Any]:
    """A row of the result as it must be."""
    out: dict[str, Any] = {}
    for (rows, texts), i, name in zip(sides, pair, ("left", "right"), strict=True):
        out |= dict.fromkeys((f"{name}_ts", f"{name}_t"), None if i is None else rows[i][1]) | {f"{name}_id": i}
        out |= {f"{name}_row": i, f"{name}_text": None if i is None else texts[i]}
        if i is not None:
            out["key"] = rows[i][0]
    return dict(sorted(out.items(), key=lambda item: item[0]))


def _told(row: dict[str, Any]) -> dict[str, Any]:
    row = {("left_" + name if name in ("t", "row", "text") else name): value for name, value in row.items()}
    for name in ("right_id", "right_ts", "right_t", "right_row", "right_text"):
        row.setdefault(name, None)
    return dict(sorted(row.items(), key=lambda item: item[0]))


# ---------------------------------------------------------------- one order, given once


@settings(max_examples=150, deadline=None)
@given(_STREAM, _STREAM, st.integers(0, 2**32))
def test_places_do_not_depend_on_how_the_streams_come(left: Rows, right: Rows, seed: int) -> None:
    """Batches of any sizes, one stream ahead of the other or behind: places, and what is promised, are those of the whole."""
    from swjoin.cluster.gateway.intake import StreamIntake
    from swjoin.config.run import TimeConfig
    from swjoin.core.batch import SourceBatch

    random = Random(seed)
    both = [sorted(rows, key=lambda row: row[1]) for rows in (left, right)]
    merged = sorted((ts, side, i) for side in (0, 1) for i, (_, ts) in enumerate(both[side]))
    expected = {}
    seen = [0, 0]
    for _, side, i in merged:
        seen[side] += 1
        expected[side, i] = seen[side], seen[1 - side]
    order = ArrivalSequence.of(QueryConfig(0, 0, last=(3, 3)))
    assert order is not None
    streams = StreamIntake(0, TimeConfig()), StreamIntake(1, TimeConfig())
    at, given_out = [0, 0], {}
    while not all(s.ended for s in streams):
        side = random.choice([s.stream for s in streams if not s.ended])
        n = random.randint(0, 3)
        part = both[side][at[side] : at[side] + n]
        key, ts = (np.array([row[k] for row in part], np.int64) for k in (0, 1))
        ids = np.arange(at[side], at[side] + len(part), dtype=np.uint64)
        if n and not part:
            streams[side].end()
        else:
            streams[side].read(SourceBatch(key, ts, ids), 0)
            at[side] += len(part)
        streams[side].arrive_all()
        for stream, batch in order.place(streams):
            for i, place, passed in zip(
                batch.id.tolist(), sequence_numbers_of(batch).tolist(), preceding_counts(batch).tolist(), strict=True
            ):
                given_out[stream, i] = place, passed
        boundary = min(min(s.watermark_us for s in streams), 100)
        left_passed, right_passed = order.passed(boundary)
        later = [key for key in expected if both[key[0]][key[1]][1] >= boundary]
        assert all(expected[key][1] >= (left_passed, right_passed)[key[0]] for key in later)
        assert all(key in given_out for key in expected if key not in later)
    assert given_out == expected


def test_what_is_needed_after_a_crash_includes_the_partners_of_all_that_is_alive() -> None:
    """A left tuple that is alive may have matched right tuples from long ago, when its own stream has been silent since."""
    inner, full = (ArrivalSequence(QueryConfig(0, 0, last=(2, 3), how=how)) for how in ("inner", "full"))
    for order in (inner, full):
        order.placed = [0, 0]
    for lefts, rights, below in ((4, 10, 100), (4, 50, 200), (5, 90, 300)):
        for order in (inner, full):
            order._passed = [lefts, rights]
            order._note_end(below)
    promised = (90, 5)
    assert inner.needed_below(promised) == (4, 88)  # of left tuples 4, 5 are alive; of right ones 88, 89, 90
    # Left tuple 4 is older than the first end noted, so anything of the right stream may be its partner. Right tuple 88 comes
    # after 4 left tuples.
    left, right = full.needed_below(promised)
    assert left == 3
    assert right < 0
    order = ArrivalSequence(QueryConfig(0, 0, last=(1, 3), how="full"))
    for lefts, rights, below in ((4, 10, 100), (4, 50, 200), (5, 90, 300)):
        order._passed = [lefts, rights]
        order._note_end(below)
    assert order.needed_below((90, 5)) == (4, 48)  # left tuple 5 comes after 50 right tuples


def test_words_behind_the_payload_stay_with_their_tuples() -> None:
    rows = PayloadRows(np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 1, 4]), np.array([9, 8, 7, 6], np.uint8))
    ts = np.array([100, 200, 300])
    batch = TupleBatch(ts, ts, ts.astype(np.uint64), ts, rows)
    at_master = with_sequence(batch, np.array([5, 6, 7]), np.array([1, 1, 2]))
    assert at_master.rows is not None
    assert at_master.rows.layout == stamped_layout(rows.layout) == RowLayout(18, True)
    sent = sequence_as_time(at_master.take(np.array([2, 0])))
    assert sent.ts.tolist() == [7, 5]
    assert preceding_counts(sent).tolist() == [2, 1]
    assert sent.rows is not None
    assert sent.rows.fixed[:, :2].tolist() == [[4, 5], [0, 1]]
    assert sent.rows.var is not None
    assert sent.rows.var.tolist() == [8, 7, 6, 9]


def test_tuples_of_one_time_keep_their_order_across_a_crash() -> None:
    """What waits is put back part by part; a later part must not come before an earlier one of the same time."""
    from swjoin.cluster.gateway.mini_buffers import MiniBuffers
    from swjoin.policy.placement import round_robin
    from swjoin.routing.hash_partition import GroupMap, HashPartition

    def part(first: int, times: list[int]) -> TupleBatch:
        ts, places = np.array(times), np.arange(first, first + len(times))
        batch = TupleBatch(np.zeros(len(times), np.int64), ts, places.astype(np.uint64), ts)
        return with_sequence(batch, places, np.zeros(len(times), np.int64))

    buffers = MiniBuffers((None, None), HashPartition(GroupMap(round_robin(4, 2)), 2), count_windows=True)
    buffers.put_back(0, [part(1, [5, 7, 7]), part(4, [7, 7, 7]), part(7, [7, 8])])
    (drained,) = [d for d in buffers.drain((100, 100), 0, range(2)) if len(d.left)]
    assert drained.left.ts.tolist() == list(range(1, 9))


def test_the_order_goes_on_where_it_was() -> None:
    """What has been promised, and what is needed, of slots before a crash; not all of them are remembered."""
    order = ArrivalSequence(QueryConfig(0, 0, last=(5, 5), how="full"))
    for end in range(1, 3000):
        order.placed = order._passed = [2 * end, end]
        order._last_us = 10 * end - 1
        order._note_end(10 * end)
    again = ArrivalSequence(QueryConfig(0, 0, last=(5, 5), how="full"))
    plain = json.loads(json.dumps(order.plain_state()))
    assert len(plain["ends"][0]) < 1100
    again.restore(plain, None)  # type: ignore[arg-type]
    assert again.promised_below(29_990) == order.promised_below(29_990) == (2999, 5998)
    for time_us in (5, 300, 15_000, 25_001):
        early, exact = again.promised_below(time_us), order.promised_below(time_us)
        assert exact[0] - 10 <= early[0] <= exact[0]
    assert again.needed_below((2000, 4000))[0] > 3900


# ---------------------------------------------------------------- through crashes, moves, overload, in virtual time


@pytest.mark.drawn
@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.long)])
def test_simulated_runs_with_crashes(count: int) -> None:
    """The suite's seeds draw count windows, too; here are those that crash while something joins, of any kind."""
    seen, seed = 0, 0
    while seen < count:
        scenario = Scenario.draw(seed)
        seed += 1
        if scenario.config.query.last is not None and scenario.crashes:
            run_scenario(scenario)
            seen += 1


def test_simulated_runs_that_shed_keep_the_places_of_what_is_gone() -> None:
    shed = seed = 0
    while shed < 3:
        scenario = Scenario.draw(seed)
        seed += 1
        if scenario.config.query.last is not None and scenario.config.on_overload.policy == "shed":
            shed += any(run_scenario(scenario).counts["shed"].values())


@pytest.mark.drawn
def test_places_given_per_slave_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a join does that counts on each slave what has come there."""
    from swjoin.operators import window_join

    wrong = lambda batch: np.arange(len(batch), dtype=np.int64)  # noqa: E731
    monkeypatch.setattr(window_join, "preceding_counts", wrong)
    seeds = [s for s in range(200) if Scenario.draw(s).config.query.last is not None]
    assert complaints(seeds, 6) == 6


# ---------------------------------------------------------------- from Python and from the command line


def _table(rows: Rows) -> pa.Table:
    key, ts = (pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1))
    return pa.table({"key": key, "t": ts, "row": pa.array(range(len(rows)), pa.int64())})


COMMON: dict[str, Any] = {"on": "key", "left_time": "t", "right_time": "t", "time_unit": "us"}


@pytest.mark.parametrize("how", list(JOIN_KINDS))
def test_tables(how: How) -> None:
    """In any row order: places are those of time."""
    random = np.random.default_rng(5)
    left, right = (_stream(random, 400, 900, 7, 50, 0.05) for _ in (0, 1))
    wanted = rows_of(left, right, (30, 9), how)
    for threads in (1, 3):
        table = swjoin.join(_table(left), _table(right), last=(30, 9), how=how, threads=threads, **COMMON)
        names = ("row",) if how in ("semi", "anti") else ("left_row", "right_row")
        rows = zip(*(table[name].to_pylist() for name in names), strict=True)
        assert sorted(map(repr, rows)) == sorted(repr(pair[: len(names)]) for pair in wanted)
        if how not in ("semi", "anti"):
            times = zip(table["left_row"].to_pylist(), table["left_t"].to_pylist(), strict=True)
            assert all(t == (None if i is None else left[i][1]) for i, t in times)
        proof = swjoin.count(_table(left), _table(right), last=(30, 9), how=how, threads=threads, **COMMON)
        assert proof == swjoin.proof(table)
        assert proof.ledger.balanced


def test_with_a_condition_and_a_payload_of_texts() -> None:
    left, right = (_stream(np.random.default_rng(seed), 300, 900, 5, 0, 0) for seed in (1, 2))
    texts = [pa.array([f"{i % 13:02d}" * (1 + i % 3) for i in range(300)]) for _ in (0, 1)]
    tables = [_table(rows).append_column("text", column) for rows, column in zip((left, right), texts, strict=True)]
    found = swjoin.join(*tables, last=40, where="left_text < right_text and left_t < right_t", **COMMON)
    pairs = one_by_one(left, right, (40, 40))
    expected = [(i, j) for i, j in pairs if texts[0][i].as_py() < texts[1][j].as_py() and left[i][1] < right[j][1]]
    assert sorted(zip(found["left_row"].to_pylist(), found["right_row"].to_pylist(), strict=True)) == expected
    assert found["left_text"].to_pylist() == [texts[0][i].as_py() for i in found["left_row"].to_pylist()]


@settings(max_examples=40, deadline=None)
@given(_STREAM, _STREAM, st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 2**32))
def test_streams_in_any_pieces(left: Rows, right: Rows, sizes: list[int], seed: int) -> None:
    rows = [sorted(side, key=lambda row: row[1]) for side in (left, right)]
    tables = [_table(side) for side in rows]
    random = np.random.default_rng(seed)
    join = swjoin.WindowJoin(last=3, left_schema=tables[0].schema, right_schema=tables[1].schema, **COMMON)
    at, out = [0, 0], []
    while any(at[s] < len(rows[s]) for s in (0, 1)):
        side = int(random.choice([s for s in (0, 1) if at[s] < len(rows[s])]))
        size = sizes[sum(at) % len(sizes)]
        out += list(join.push(**{("left", "right")[side]: tables[side].slice(at[side], size)}))
        at[side] += size
    out += list(join.close())
    table = pa.Table.from_batches(out, join.schema)
    pairs = sorted(zip(table["left_row"].to_pylist(), table["right_row"].to_pylist(), strict=True))
    assert pairs == one_by_one(rows[0], rows[1], (3, 3))
    assert join.ledger.balanced


def test_pairs_come_as_soon_as_they_are_certain_and_windows_stay_as_long_as_they_are() -> None:
    """A right tuple's place is certain when no left tuple up to its time can come."""
    schema = _table([]).schema
    join = swjoin.WindowJoin(last=2, left_schema=schema, right_schema=schema, how="left", **COMMON)

    def rows(out: Any) -> list[tuple[Any, Any]]:
        return [pair for b in out for pair in zip(b["left_row"].to_pylist(), b["right_row"].to_pylist(), strict=True)]

    assert rows(join.push(left=_table([(1, 10), (2, 20)]))) == []
    assert rows(join.push(right=_table([(1, 15)]))) == [(0, 0)]
    assert rows(join.push(right=_table([(2, 25)]))) == []
    assert rows(join.advance(to=26, side="left")) == [(1, 0)]
    assert rows(join.push(left=_table([(3, 30), (3, 31)]), right=_table([(9, 32), (9, 33)]))) == []
    assert rows(join.advance(to=10**5)) == []  # no time passes that matters: windows end when tuples come
    assert rows(join.push(left=_table([(3, 10**6)]), right=_table([(9, 10**6 + 1)]))) == [(0, None)]  # pushed out by two others
    assert rows(join.close()) == [(1, None), (0, None)]


def _push_thousands(join: swjoin.WindowJoin) -> None:
    for i in range(100):
        list(join.push(left=_table([(k, 1000 * i + k) for k in range(1000)])))


def test_a_side_that_never_speaks_is_told_before_memory_is_full() -> None:
    schema = _table([]).schema
    join = swjoin.WindowJoin(last=2, left_schema=schema, right_schema=schema, memory="1MB", **COMMON)
    with pytest.raises(swjoin.RunFailed, match=r"wait at one side for the other.*promise with advance\(\)"):
        _push_thousands(join)
    assert repr(join).startswith("<swjoin.WindowJoin last 2, 2,")
    other = swjoin.WindowJoin(last=2, left_schema=schema, right_schema=schema, memory="1MB", **COMMON)
    for i in range(100):
        list(other.push(left=_table([(k, 1000 * i + k) for k in range(1000)])))
        list(other.advance(to=1000 * i + 1000, side="right"))
    assert list(other.close()) == []
    assert other.ledger.balanced


BAD = {
    "0": (lambda: swjoin.join(_table([]), _table([]), last=0, **COMMON), "must be 1 or more"),
    "text": (lambda: swjoin.join(_table([]), _table([]), last="5", **COMMON), "neither a number of tuples nor two"),
    "three": (lambda: swjoin.join(_table([]), _table([]), last=(1, 2, 3), **COMMON), "neither a number of tuples nor two"),
    "truth": (lambda: swjoin.join(_table([]), _table([]), last=True, **COMMON), "neither a number of tuples nor two"),
    "and within": (lambda: swjoin.join(_table([]), _table([]), last=5, within="1s", **COMMON), "give last, or bounds of time"),
    "in a file": (lambda: config_from_plain({"join": {"last": [1, 2, 3]}}), "one number, or two"),
    "in a file, and within": (lambda: config_from_plain({"join": {"last": 3, "within": "1s"}}), "not both"),
    "in a file, and lower": (lambda: config_from_plain({"join": {"last": 3, "lower": "1s"}}), "not both"),
    "in a file, and exclusive": (lambda: config_from_plain({"join": {"last": 3, "exclusive": ["lower"]}}), "not both"),
    "in a file, 0": (lambda: config_from_plain({"join": {"last": 0}}), "1 or more"),
    "with a prefill": (
        lambda: config_from_plain({"join": {"last": 3}, "pace": "realtime", "measure": {"prefill": "2s"}}),
        "count windows cannot be measured",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name: str) -> None:
    call, text = BAD[name]
    with pytest.raises(UserError, match=text) as error:
        call()
    assert "\n" not in str(error.value)


def test_the_command(tmp_path: Path, swjoin: Any) -> None:
    left, right = (_stream(np.random.default_rng(seed), 200, 900, 5, 0, 0) for seed in (3, 4))
    _write(left, tmp_path / "l.parquet", 0)
    _write(right, tmp_path / "r.parquet", 1)
    common = ["--on", "key", "--left-time", "t", "--right-time", "t", "--time-unit", "us"]
    files = tmp_path / "l.parquet", tmp_path / "r.parquet"
    done = swjoin("join", *files, *common, "--last", "20,5", "-o", tmp_path / "out.parquet")
    assert done.code == 0, done.err
    table = pq.read_table(tmp_path / "out.parquet")
    pairs = sorted(zip(table["left_row"].to_pylist(), table["right_row"].to_pylist(), strict=True))
    assert pairs == one_by_one(left, right, (20, 5))
    refused = [(["--last", "x"], "write a number"), (["--last", "5", "--within", "1s"], "not both"), ([], "or --last")]
    for wrong, text in refused:
        done = swjoin("join", *files, *common, *wrong, "-o", "count")
        assert done.code == 2
        assert text in done.err[-1]
        assert len(done.err) == 1


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "how"), [(4, "inner"), (5, "full")])
def test_on_real_ranks(ranks: int, how: How, tmp_path: Path, swjoin: Any) -> None:
    """Partition-groups move in every reorganization epoch; checkpoints are made; the answer is that of two queues."""
    left, right = (_stream(np.random.default_rng(seed), 20_000, 2_000_000, 300, 2_000, 0.01) for seed in (8, 9))
    _write(left, tmp_path / "left.parquet", 0)
    _write(right, tmp_path / "right.parquet", 1)
    plain: dict[str, Any] = {
        "join": {"last": [1000, 400], "how": how},
        "time": {"max_out_of_order": "2ms"},
        "cluster": {"partition_count": 12, "distribution_epoch": "20ms"},
        "module": {"block_bytes": 1024, "theta": "8KB", "window": "64MB"},
        "reorganization": {"policy": "random", "epoch": "20ms", "random_moves": 3, "declustering": "adaptive"},
        "checkpoint": {"epochs": 10},
        **{n: {"path": str(tmp_path / f"{n}.parquet"), "time": "t", "time_unit": "us"} for n in ("left", "right")},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    done = swjoin("run", tmp_path / "config.yaml", "-n", ranks, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    wanted = rows_of(left, right, (1000, 400), how)
    missing = 2**64 - 1
    ids = (np.array([missing if pair[s] is None else pair[s] for pair in wanted], np.uint64) for s in (0, 1))
    assert found(report) == (len(wanted), format_digest(pair_digest(*ids)))
    assert report["moves"] > 5
    assert report["ledger"]["balanced"]
    assert report["memory"]["unforeseen"].startswith("plan: count windows")

"""The table of hot keys against a model of senders: whatever is hot or cold, and whenever, partners meet once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.master.key_spreading import KeySpreading, SkewedJoin
from swjoin.cluster.messages import EpochClosed, EpochPlan
from swjoin.cluster.wire import FORMATS
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, SlaveId
from swjoin.policy.skew import KeyShares
from swjoin.routing.hash_partition import GroupMap, groups_of_keys
from swjoin.routing.hot_keys import HotKey, SpreadKeys

KEYS = np.array([-(1 << 63), (1 << 63) - 1, 0, -1, 7, 1 << 62, -(1 << 62) + 3], np.int64)
Sent = tuple[int, int, frozenset[int]]  # key, time, partition-groups


class _Shares(KeyShares):
    """Any keys are hot, and others warm, until they are drawn again."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__(1)
        self._random = random
        self.draw()

    def draw(self) -> None:
        self._hot = [int(key) for key in KEYS if self._random.random() < 0.4]
        self._warm = {*self._hot, *(int(key) for key in KEYS if self._random.random() < 0.3)}

    def hot(self, ports: Iterable[int]) -> list[int]:
        return self._hot

    def warm(self, ports: Iterable[int]) -> set[int]:
        return self._warm

    def rows_of(self, key: int) -> tuple[int, int]:
        left, right = self._random.integers(0, 5, 2).tolist()
        return left, right


class _Gateway:
    """Sends rows of any keys, not below its watermarks."""

    def __init__(self, random: np.random.Generator, watermarks_us: list[int]) -> None:
        self._random, self.watermarks_us = random, watermarks_us
        self._newest_us = [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US]
        self.table: list[HotKey] = []

    def send(self, port: int, partition_count: int, scale: int) -> list[Sent]:
        count = int(self._random.integers(0, 6))
        if not count:
            return []
        keys, ts = self._random.choice(KEYS, count), self.watermarks_us[port] + self._random.integers(0, 2 * scale + 1, count)
        self._newest_us[port] = max(self._newest_us[port], int(ts.max()))
        rows = TupleBatch(keys, ts, self._random.integers(0, 1 << 62, count).astype(np.uint64), ts, None, None)
        positions, groups = None, groups_of_keys(keys, partition_count)
        if self.table:
            positions, groups = SpreadKeys(self.table, port).copies(rows, groups)
        positions = np.arange(count) if positions is None else positions
        return [(int(keys[i]), int(ts[i]), _once(groups[positions == i].tolist())) for i in range(count)]

    def closed(self, epoch: int, scale: int) -> EpochClosed:
        for port in (LEFT, RIGHT):
            if self._random.random() < 0.8:
                self.watermarks_us[port] += int(self._random.integers(0, 1 + scale // int(self._random.integers(1, 6))))
        times = zip(self._newest_us, self.watermarks_us, strict=True)
        return _sent(EpochClosed(epoch, (0, 0), tuple((0, port, *both, 0, ()) for port, both in enumerate(times))))


def _once(groups: list[int]) -> frozenset[int]:
    assert len(set(groups)) == len(groups), "a row is twice in one partition-group"
    return frozenset(groups)


def _sent(message: Any) -> Any:
    """As it arrives."""
    form = FORMATS[type(message)]
    return form.unpack(form.pack(message))


def _run(seed: int) -> tuple[int, int]:
    """Pairs, and those of which a row was copied. Rows of a side whose rows must be in one place are."""
    random = np.random.default_rng(seed)
    scale, partition_count = int(random.choice([10, 1_000, 1 << 55])), int(random.choice([1, 2, 3, 7, 30]))
    low, high = sorted(int(bound) for bound in random.integers(-scale, scale, 2))
    dealt, shares = (None, LEFT, RIGHT)[int(random.integers(0, 3))], _Shares(random)
    sent: tuple[list[Sent], list[Sent]] = ([], [])
    slaves, spreading, gateways = 0, KeySpreading([]), [_Gateway(random, [0, 0])]
    for epoch in range(int(random.integers(3, 40))):
        if not epoch or random.random() < 0.15:  # a restart
            saved = json.loads(json.dumps(spreading.plain_state()))
            slaves = int(random.integers(1, 5))
            lowest = [min(gateway.watermarks_us[port] for gateway in gateways) for port in (LEFT, RIGHT)]
            gateways = [_Gateway(random, list(lowest)) for _ in range(int(random.integers(1, 4)))]
            spreading = KeySpreading([SkewedJoin(0, low, high, dealt, slaves)])
            spreading._shares = {0: shares}
            spreading.restore(saved)
        if random.random() < 0.5:
            shares.draw()
        active = [SlaveId(s) for s in range(slaves) if random.random() < 0.9] or [SlaveId(0)]
        plan = _sent(
            EpochPlan(epoch, hot_keys=spreading.planned([active], [GroupMap(random.integers(0, slaves, partition_count))]))
        )
        for gateway in gateways:
            for table in plan.hot_keys:
                gateway.table = [HotKey(*hot) for hot in table]
            for port in (LEFT, RIGHT):
                sent[port].extend(gateway.send(port, partition_count, scale))
        for i in random.permutation(len(gateways)):
            spreading.closed(gateways[i].closed(epoch, scale).key_loads)
    assert dealt is None or all(len(groups) == 1 for _, _, groups in sent[dealt])
    pairs = [(a, b) for a in sent[LEFT] for b in sent[RIGHT] if a[0] == b[0] and low <= b[1] - a[1] <= high]
    assert all(len(a[2] & b[2]) == 1 for a, b in pairs), f"seed {seed}: partners that do not meet once"
    return len(pairs), sum(len(a[2]) + len(b[2]) > 2 for a, b in pairs)


def test_partners_meet_once(monkeypatch: pytest.MonkeyPatch) -> None:
    over, forgotten = KeySpreading._is_over, []

    def counted(self: KeySpreading, join: SkewedJoin, hot: HotKey) -> bool:
        forgotten.append(over(self, join, hot))
        return bool(forgotten[-1])

    monkeypatch.setattr(KeySpreading, "_is_over", counted)
    found = [_run(seed) for seed in range(100)]
    assert sum(spread for _, spread in found) > 2_500
    assert sum(forgotten) > 1


def test_a_key_that_is_forgotten_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeySpreading, "_is_over", lambda self, join, hot: True)
    with pytest.raises(AssertionError, match="partners that do not meet once"):
        any(_run(seed) is None for seed in range(400))

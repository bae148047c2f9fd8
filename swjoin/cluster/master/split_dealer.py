"""The split dealer: which gateway reads which split of the inputs.

What: `SplitDealer`: takes wishes, deals out the splits of every stream one by one, in their order; `span_us`.
Why: contiguous shares would make all gateways wait for the first one, as inputs in time order start late. A gateway that is
far ahead of the others waits: what it read would fill the windows.
Stays out: splits themselves (`core.splits`), reading (`cluster.gateway.open_splits`).

The frontier is the least time of any row that is not read: of a split that is being read the greater one of its least time and
its gateway's watermark; of a stream with splits to deal, the least time of its next one. A split is dealt while its least time
is at most `reach_us` above the frontier, or fewer splits after the oldest one that is being read were dealt than there are
gateways. So the split at the frontier can always be dealt, or is being read.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from swjoin.cluster.messages import SplitDealt, SplitWanted
from swjoin.cluster.role import Effect, RoleId, Send
from swjoin.config.run import RunConfig
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.splits import ALL_ROWS, Split, remaining

_LEAST_SPAN_US, _LEAST_LEAD_US = 1_000, 1_000_000


@dataclass
class _Stream:
    """left: splits to deal, with rows to skip. partial: those before them, read in part before a crash. dealt: count of
    splits, and of those of each gateway. open: of the split that each gateway reads, how many were dealt before it, and its
    least time. waiting: gateways that have asked, in their order, and what each was told last."""

    left: deque[tuple[Split, int]]
    partial: deque[tuple[Split, int]] = field(default_factory=deque)
    dealt: int = 0
    dealt_to: Counter[RoleId] = field(default_factory=Counter)
    open: dict[RoleId, tuple[int, int]] = field(default_factory=dict)
    waiting: dict[RoleId, SplitDealt | None] = field(default_factory=dict)

    @property
    def to_deal(self) -> deque[tuple[Split, int]]:
        return self.partial or self.left

    @property
    def next_low_us(self) -> int:
        return self.to_deal[0][0].low_us if self.to_deal else END_OF_TIME_US

    @property
    def ahead(self) -> int:
        """Splits that were dealt since the oldest one that is being read."""
        return self.dealt - min((number for number, _ in self.open.values()), default=self.dealt)


def span_us(config: RunConfig) -> int:
    """Time that a split may span. In realtime pace every gateway shall have a share of each distribution epoch, if that has the
    rows (`core.splits.LEAST_ROWS`)."""
    if config.pace == "realtime":
        return max(_LEAST_SPAN_US, config.cluster.distribution_epoch_us // config.gateway_count)
    return max(_LEAST_LEAD_US, config.lead_us)


class SplitDealer:
    """splits: of every stream. reach_us: lead over the frontier in which any split may be dealt."""

    def __init__(self, splits: Sequence[Sequence[Split]], reach_us: int, gateway_count: int) -> None:
        self._splits, self._reach_us, self._gateway_count = splits, reach_us, gateway_count
        self._streams = [_Stream(deque(remaining(of, 0))) for of in splits]
        self._times_us: dict[RoleId, tuple[int, ...]] = {}  # watermarks of gateways
        self.held = False  # nothing is dealt: the cut of a checkpoint is being made

    def wanted(self, gateway: RoleId, wish: SplitWanted) -> list[Effect]:
        """A gateway asks for a split, or again with its watermarks of now."""
        self._times_us[gateway] = wish.times_us
        stream = self._streams[wish.stream]
        if wish.finished == stream.dealt_to[gateway]:  # otherwise a split is on its way
            stream.open.pop(gateway, None)
            stream.waiting.setdefault(gateway, None)
        return self.deal()

    def reached(self, gateway: RoleId, times_us: tuple[int, ...]) -> list[Effect]:
        """A gateway's watermarks, at the end of an epoch."""
        self._times_us[gateway] = times_us
        return self.deal()

    def deal(self) -> list[Effect]:
        """Deal out what may be dealt; tell those who wait where the others have got to."""
        effects: list[Effect] = []
        while not self.held:
            dealt = [effect for number in range(len(self._streams)) for effect in self._deal_one(number)]
            effects += dealt
            if not dealt:
                break
        return effects

    def _deal_one(self, number: int) -> list[Effect]:
        stream = self._streams[number]
        if not stream.waiting:
            return []
        if not stream.to_deal:
            gone, stream.waiting = stream.waiting, {}
            return [Send(gateway, SplitDealt(number, ended=True)) for gateway in gone]
        split, skip = stream.to_deal[0]
        if stream.ahead < self._gateway_count or split.low_us <= self._frontier_us + self._reach_us:
            stream.to_deal.popleft()
            gateway = next(iter(stream.waiting))
            del stream.waiting[gateway]
            stream.open[gateway] = stream.dealt, split.low_us
            stream.dealt += 1
            stream.dealt_to[gateway] += 1
            return [Send(gateway, SplitDealt(number, astuple(split), skip))]
        notice = SplitDealt(number, before_us=split.before_us, low_us=split.low_us)
        untold = [gateway for gateway, last in stream.waiting.items() if last != notice]
        stream.waiting |= dict.fromkeys(untold, notice)
        return [Send(gateway, notice) for gateway in untold]

    @property
    def _frontier_us(self) -> int:
        frontier_us = min(stream.next_low_us for stream in self._streams)
        for number, stream in enumerate(self._streams):
            for gateway, (_, low_us) in stream.open.items():
                times_us = self._times_us.get(gateway)
                mark_us = BEGIN_OF_TIME_US if times_us is None else times_us[number]
                frontier_us = min(frontier_us, max(low_us, mark_us))
        return frontier_us

    # ------------------------------------------------------------ across a crash

    @staticmethod
    def of(config: RunConfig, splits: Sequence[Sequence[Split]]) -> SplitDealer:
        """For a run in real time."""
        return SplitDealer(splits, max(_LEAST_LEAD_US, config.lead_us), config.gateway_count)

    def plain_state(self) -> list[dict[str, Any]]:
        """What is left to deal of every stream, ready for JSON: partial splits, and the first row after all that were dealt."""
        return [
            {
                "partial": [[*astuple(split), skip] for split, skip in stream.partial],
                "next_row": stream.left[0][0].row + stream.left[0][1] if stream.left else ALL_ROWS,
            }
            for stream in self._streams
        ]

    def restore(self, states: Sequence[dict[str, Any]], open_splits: Sequence[Sequence[Sequence[int]]]) -> None:
        """Before anything is dealt. open_splits: by stream, those that gateways were reading: [fields of `Split`, rows
        read]."""
        for stream, state, opened, splits in zip(self._streams, states, open_splits, self._splits, strict=True):
            partial = [(Split(*fields), skip) for *fields, skip in [*state["partial"], *opened]]
            stream.partial = deque(sorted(partial, key=lambda part: part[0].row))
            stream.left = deque(remaining(splits, state["next_row"]))

    def validate(self) -> None:
        for stream in self._streams:
            rows = [split.row + skip for split, skip in [*stream.partial, *itertools.islice(stream.left, 1)]]
            assert rows == sorted(rows), "splits out of their order"
            assert not stream.open.keys() & stream.waiting.keys(), "a gateway waits for a split while it reads one"

"""The master's table of hot keys: when their rows begin to be copied and dealt, and when that ends.

What: `SkewedJoin`, a join whose hot keys are spread; `KeySpreading`: it hears what gateways have sent in an epoch, and says
what holds from the next one on.
Why: a decision of one role, which all gateways follow from the same distribution epoch on (`EpochPlan.hot_keys`).
Stays out: where a row goes (`routing.hot_keys`), which keys are hot (`policy.skew`), rows.

A key's life: copied (from epoch e on all gateways copy the rows of one side); dealt (in the plan of e + 1, when the newest time
that was sent in epoch e and before is known: partners of later rows have copies); no longer dealt, when it is cold; and in the
epoch after that, when the newest row that may have been dealt is known, copied up to a time. If the key gets hot again, it goes
round again, with the same sides; once no later row can meet one that was copied, it is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from swjoin.cluster.messages import KeyLoad
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, SlaveId
from swjoin.policy.skew import KeyShares
from swjoin.routing.hash_partition import GroupMap, groups_of_keys
from swjoin.routing.hot_keys import HotKey

MOST_KEYS = 256  # in the table of a join at once


@dataclass(frozen=True)
class SkewedJoin:
    """stage: its number. lower_us, upper_us: bounds of right time - left time. dealt: the port whose rows may be dealt; None:
    either. instances: slaves that share it, at most."""

    stage: int
    lower_us: int
    upper_us: int
    dealt: int | None
    instances: int

    def deal_from_us(self, dealt: int, sent_us: int) -> int:
        """Time from which on rows of the dealt port have no partner of this time or before it."""
        return sent_us + 1 + (-self.lower_us if dealt == LEFT else self.upper_us)

    def copy_until_us(self, dealt: int, sent_us: int) -> int:
        """Time of the last partner that dealt rows of this time, or before it, may have."""
        return sent_us + (self.upper_us if dealt == LEFT else -self.lower_us)


class KeySpreading:
    """joins: those of a plan whose hot keys are spread."""

    def __init__(self, joins: Sequence[SkewedJoin]) -> None:
        self._joins = {join.stage: join for join in joins}
        self._shares = {stage: KeyShares(join.instances) for stage, join in self._joins.items()}
        self._table: dict[tuple[int, int], HotKey] = {}  # by stage and key
        self._spread: Counter[int] = Counter()  # keys that were spread since the last start, by stage
        self._leaving: set[tuple[int, int]] = set()  # not dealt any more, but copied until it is known how long
        self._copied_us: dict[tuple[int, int], int] = {}  # no row above has copies; of keys that are copied up to a time
        self._newest_us: dict[tuple[int, int], int] = {}  # sent so far, by stage and port
        self._passed_us: dict[tuple[int, int], int] = {}  # later rows of all gateways are not below; likewise
        self._changed = False
        self._notes: list[tuple[str, int, HotKey]] = []  # what happened, to which partition-group's key

    def closed(self, loads: Iterable[KeyLoad]) -> None:
        """A gateway has sent its share of an epoch."""
        for stage, port, newest_us, watermark_us, rows, counts in loads:
            self._passed_us[stage, port] = min(self._passed_us.get((stage, port), END_OF_TIME_US), watermark_us)
            before_us = self._newest_us.get((stage, port), BEGIN_OF_TIME_US)
            self._newest_us[stage, port] = max(before_us, newest_us)
            if rows:
                self._shares[stage].add(port, rows, counts)

    def planned(self, active: Sequence[Sequence[SlaveId]], maps: Sequence[GroupMap]) -> tuple[tuple[HotKey, ...], ...]:
        """The table for the next epoch, once all gateways have closed the one before; nothing if it is as it was. active, maps:
        by stage, instances that have partition-groups, and which."""
        for stage, join in self._joins.items():
            ports = (LEFT, RIGHT) if join.dealt is None else (join.dealt,)
            hot, warm = self._shares[stage].hot(ports), self._shares[stage].warm(ports)
            for key in [key for of, key in self._table if of == stage]:
                self._advance(join, self._table[stage, key], is_hot=key in hot, is_warm=key in warm)
            known = {key for of, key in self._table if of == stage}
            for key in [key for key in hot if key not in known][: MOST_KEYS - len(known)]:
                if len(active[stage]) > 1:
                    self._begin(join, key, active[stage], maps[stage])
        self._passed_us.clear()
        changed, self._changed = self._changed, False
        return (tuple(self._table.values()),) if changed else ()

    def _advance(self, join: SkewedJoin, hot: HotKey, *, is_hot: bool, is_warm: bool) -> None:
        at, stage = (hot.stage, hot.key), hot.stage
        copied, dealing = hot.copy_until_us == END_OF_TIME_US, hot.deal_from_us < END_OF_TIME_US
        if at in self._leaving:
            self._leaving.discard(at)
            dealt_us, copied_us = (self._newest_us.get((stage, p), BEGIN_OF_TIME_US) for p in (hot.dealt, 1 - hot.dealt))
            until_us = join.copy_until_us(hot.dealt, dealt_us)
            self._copied_us[at] = max(until_us, copied_us)
            self._put(hot._replace(copy_until_us=until_us))
        elif copied and not dealing:
            newest_us = self._newest_us.get((stage, 1 - hot.dealt), BEGIN_OF_TIME_US)
            self._put(hot._replace(deal_from_us=join.deal_from_us(hot.dealt, newest_us)), "key_dealt")
        elif dealing and not is_warm:
            self._leaving.add(at)
            self._put(hot._replace(deal_from_us=END_OF_TIME_US), "key_gathered")
        elif not copied and is_hot:
            del self._copied_us[at]
            self._put(hot._replace(copy_until_us=END_OF_TIME_US), "key_copied")
        elif not copied and self._is_over(join, hot):
            del self._table[at], self._copied_us[at]
            self._changed = True

    def _is_over(self, join: SkewedJoin, hot: HotKey) -> bool:
        """Whether no later row is copied, or meets one that was. Otherwise the other side might be copied, too."""
        dealt_us, copied_us = (self._passed_us.get((hot.stage, port), BEGIN_OF_TIME_US) for port in (hot.dealt, 1 - hot.dealt))
        no_partner_us = join.deal_from_us(hot.dealt, self._copied_us[hot.stage, hot.key])
        return copied_us > hot.copy_until_us and dealt_us >= no_partner_us

    def _begin(self, join: SkewedJoin, key: int, active: Sequence[SlaveId], group_map: GroupMap) -> None:
        left, right = self._shares[join.stage].rows_of(key)
        dealt = join.dealt if join.dealt is not None else LEFT if left >= right else RIGHT
        own = int(groups_of_keys([key], group_map.partition_count)[0])
        groups = [own]
        for slave in active:
            mine = group_map.groups_of(slave).tolist()
            if mine and own not in mine:
                groups.append(mine[key % len(mine)])
        if len(groups) > 1:
            self._spread[join.stage] += 1
            self._put(HotKey(join.stage, key, dealt, tuple(groups)), "key_copied")

    def _put(self, hot: HotKey, kind: str = "") -> None:
        self._table[hot.stage, hot.key] = hot
        self._changed = True
        if kind:
            self._notes.append((kind, hot.groups[0], hot))

    def take_notes(self) -> list[tuple[str, int, HotKey]]:
        """For the log: what has happened since the last call, the key and its own partition-group."""
        notes, self._notes = self._notes, []
        return notes

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "table": [list(hot) for hot in self._table.values()],
            "leaving": sorted(map(list, self._leaving)),
            "copied_us": [[*at, time_us] for at, time_us in self._copied_us.items()],
            "shares": [[stage, shares.plain_state()] for stage, shares in self._shares.items()],
            "newest_us": [[*port, time_us] for port, time_us in self._newest_us.items()],
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """The table goes with the first plan."""
        keys = [HotKey(stage, key, dealt, tuple(groups), *times) for stage, key, dealt, groups, *times in plain["table"]]
        self._table = {(hot.stage, hot.key): hot for hot in keys}
        self._leaving = {(stage, key) for stage, key in plain["leaving"]}
        self._newest_us = {(stage, port): time_us for stage, port, time_us in plain["newest_us"]}
        self._copied_us = {(stage, key): time_us for stage, key, time_us in plain["copied_us"]}
        for stage, shares in plain["shares"]:
            self._shares[stage].restore(shares)
        self._changed = bool(keys)

    def summary(self, stage: int) -> dict[str, Any]:
        """For run.json: keys of a stage that were spread since the last start, and of how many rows are dealt at the end."""
        dealt = sum(hot.stage == stage and hot.deal_from_us < END_OF_TIME_US for hot in self._table.values())
        return {"hot_keys": {"spread": self._spread[stage], "dealt": dealt}} if stage in self._joins else {}

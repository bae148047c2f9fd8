"""Units that store one stream each: in which order an instance joins the deliveries of an epoch.

What: `Units`: `add` a delivery, `take` the next of those in whose place it is joined; `stored`, what windows hold of a logged
one.
Why: a row is stored at one unit and probes all of the other stream; of two partners exactly one must find the other. All units
see all tuples in one order, by epoch and side: left tuples of an epoch come first, wherever they are, so at a left unit stores
come before probes, and at a right unit probes before stores. The later partner in this order finds the earlier one stored
(BiStream's order-consistent protocol, section 3.2, with the distribution epoch for its clock).
Stays out: which units there are (`routing.biclique`), joining (`operators.window_join`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from swjoin.cluster.instances import Instances
from swjoin.core.batch import LEFT, RIGHT, Bool, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery, Route, no_moves
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.merged_deliveries import Grouped, merged, on_common_groups
from swjoin.plan.stages import Stage
from swjoin.routing.biclique import Biclique

Layouts: TypeAlias = tuple[RowLayout | None, RowLayout | None]
_AT_END = ("left_time_us", "right_time_us", "last", "moves_out", "moves_in", "checkpoint", "null_keys", "final")


class Units:
    """stores_left: of left units, bool by partition-group; None where all places store both streams, and deliveries are joined
    as they come. layouts: of the rows that the join stores."""

    def __init__(self, stores_left: Bool | None, layouts: Layouts) -> None:
        self.stores_left, self._layouts = stores_left, layouts
        self._next: deque[Delivery] = deque()
        self._right: list[Grouped] = []  # of the open epoch
        self._times_us = BEGIN_OF_TIME_US, BEGIN_OF_TIME_US

    @classmethod
    def of(cls, instances: Instances, stage: Stage, layouts: Layouts) -> Units:
        places = instances.stages.places_of(stage)
        groups = instances.config.cluster.partition_count
        return cls(places.stores_left(groups) if isinstance(places, Biclique) else None, layouts)

    def __len__(self) -> int:
        """Deliveries to be taken."""
        return len(self._next)

    def add(self, delivery: Delivery) -> None:
        self._next.extend(self.parts(delivery))

    def take(self) -> Delivery:
        return self._next.popleft()

    def parts(self, delivery: Delivery) -> list[Delivery]:
        """The deliveries in whose place this one is joined, one or more. Right tuples wait for the end of their epoch, which
        the last one ends."""
        if self.stores_left is None:
            return [delivery]
        self._right.append(Grouped.of(delivery, RIGHT))
        found = self._of_side(delivery, LEFT, Grouped.of(delivery, LEFT))
        if delivery.final:
            found += self._of_side(delivery, RIGHT, merged(self._right, TupleBatch.concat([p.tuples for p in self._right])))
            self._right = []
        found = found or [self._part(delivery, LEFT, replace(Grouped.empty(), tuples=TupleBatch.empty(self._layouts[LEFT])), 0)]
        if delivery.final:
            self._times_us = delivery.left_time_us, delivery.right_time_us
            found[-1] = replace(found[-1], **{name: getattr(delivery, name) for name in _AT_END})
        return found

    def _of_side(self, delivery: Delivery, side: int, rows: Grouped) -> list[Delivery]:
        assert self.stores_left is not None, "places that store both streams"
        of_left = self.stores_left[rows.groups]
        parts = [(_where(rows, of_left), LEFT), (_where(rows, ~of_left), RIGHT)]
        return [self._part(delivery, side, part, stores) for part, stores in parts if len(part.tuples)]

    def _part(self, delivery: Delivery, side: int, rows: Grouped, stores: int) -> Delivery:
        """Tuples of one side for units that store the same or the other side."""
        counts, tuples = [np.zeros(len(rows.groups), np.int64)] * 2, [TupleBatch.empty(layout) for layout in self._layouts]
        counts[side], tuples[side] = rows.counts, rows.tuples
        routes = (Route.STORE, Route.PROBE) if stores == LEFT else (Route.PROBE, Route.STORE)
        nothing = TupleBatch.empty()
        plain: dict[str, Any] = {"groups": rows.groups, "routes": routes, "null_keys": (nothing, nothing)}
        for name, values in (("counts", counts), ("time_us", self._times_us)):
            plain |= {f"left_{name}": values[LEFT], f"right_{name}": values[RIGHT]}
        plain |= {"left": tuples[LEFT], "right": tuples[RIGHT], "moves_out": no_moves(), "moves_in": no_moves()}
        return replace(delivery, last=False, checkpoint=False, final=False, **plain)

    def waiting_tuples(self, side: int) -> int:
        """That have been added and not taken."""
        held = sum(len(part.tuples) for part in self._right) if side == RIGHT else 0
        return held + sum(len((delivery.left, delivery.right)[side]) for delivery in self._next)

    def stored(self, delivery: Delivery) -> Delivery:
        """Without the tuples that only probe."""
        if self.stores_left is None:
            return delivery
        of_left = self.stores_left[delivery.groups]
        left, right = _where(Grouped.of(delivery, LEFT), of_left), _where(Grouped.of(delivery, RIGHT), ~of_left)
        groups, counts = on_common_groups([left, right])
        of_sides = replace(delivery, groups=groups, left_counts=counts[LEFT], right_counts=counts[RIGHT])
        return replace(of_sides, left=left.tuples, right=right.tuples)


def _where(rows: Grouped, which: Bool) -> Grouped:
    """The tuples of some groups."""
    used = which & (rows.counts > 0)
    return Grouped(rows.groups[used], rows.counts[used], rows.tuples.take(np.flatnonzero(np.repeat(used, rows.counts))))

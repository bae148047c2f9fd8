"""Watermark rules: what a node may promise about its later rows, given the watermarks of its inputs.

What: `watermark_out(node, inputs)`, `join_shifts`, `needed_below(node, inputs)`.
Why: rows between stages are in no order of time, so a join must know the least time that can still come; every runtime and
the explanation of a plan use one rule.
Stays out: merging the watermarks of a port's senders (the least), which is the receiver's.

A watermark W says that every later row has ts >= W. END_OF_TIME_US: no row comes any more; BEGIN_OF_TIME_US: nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US
from swjoin.plan.aggregates import Aggregate
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.kept_rows import AlignedWindows, Ranked, Repeated, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import IntervalJoin, Node, Source
from swjoin.plan.lookups import Lookup
from swjoin.plan.multiway import MultiwayJoin


def join_shifts(join: IntervalJoin) -> tuple[int, int]:
    """Least time of a row that comes out, less that of the left row, of the right row, with which it comes out (microseconds).

    A row comes out when a left or a right row comes that completes a pair, or when the other side's watermark has passed the
    last partner that a row without a match could have had.
    """
    if (as_of := join.semantics.as_of) is not None:
        found = as_of.candidates
        least = min(0, found.lower_us) if join.output_time == "min" else 0
        return least + as_of.due_us - found.upper_us, least - found.upper_us
    bounds, kind = join.semantics.bounds, join.semantics.kind
    first, last = bounds.lower_us, bounds.upper_us  # right time - left time
    of_left, of_right = [], []
    if kind.pairs and join.output_time == "max":
        of_left, of_right = [max(0, first)], [max(0, -last)]
    elif kind.pairs and join.output_time == "min":
        of_left, of_right = [min(0, first)], [min(0, -last)]
    elif kind.pairs:
        of_left, of_right = [0], [-last]
    if kind.first or kind.unmatched[LEFT]:
        of_left, of_right = [*of_left, 0], [*of_right, -last]
    if kind.unmatched[RIGHT]:
        of_left, of_right = [*of_left, first], [*of_right, 0]
    return min(of_left), min(of_right)


def _shifted(watermark_us: int, by_us: int) -> int:
    if watermark_us in (BEGIN_OF_TIME_US, END_OF_TIME_US):  # nothing is known, or nothing comes
        return watermark_us
    return max(watermark_us + by_us, BEGIN_OF_TIME_US)


def watermark_out(node: Node | MultiwayJoin, inputs: Sequence[int]) -> int:
    """The watermark of a node's rows, in microseconds: the greatest that holds whatever its inputs have brought and will bring.

    inputs: those of its inputs, in the order of its ports; of a source, the one that its gateway gives.
    """
    if isinstance(node, Source | Lookup):  # a table has no watermark
        return inputs[0]
    if isinstance(node, MultiwayJoin):  # one watermark, of all inputs
        made: list[int] = []
        for join, sides in zip(node.joins, node.sides, strict=True):
            made.append(watermark_out(join, [inputs[0] if side.part is not None else made[side.join] for side in sides]))
        return made[-1]
    if isinstance(node, Aggregate | Ranked):
        if inputs[0] in (BEGIN_OF_TIME_US, END_OF_TIME_US):
            return inputs[0]
        return max(node.windows.first_after(inputs[0]) + node.ts_after_us, BEGIN_OF_TIME_US)
    waits = isinstance(node, LiveGroups) and node.may_wait
    if isinstance(node, Views) or waits:  # one that has nothing new comes out with the next that has
        return inputs[0] if inputs[0] == END_OF_TIME_US else BEGIN_OF_TIME_US
    if isinstance(node, Sessions):  # those that are open end later
        return _shifted(inputs[0], 1 + node.ts_after_us)
    if isinstance(node, AlignedWindows) and node.output_time == "start":  # an open window ends at the watermark, or later
        return _shifted(inputs[0], -node.size_us)
    if isinstance(node, TupleWindows) and node.partial:  # a window that is not full comes out at the end, with this time
        return inputs[0] if inputs[0] == END_OF_TIME_US else min(inputs[0], LAST_TIME_US)
    if not isinstance(node, IntervalJoin):  # the last row of a window of tuples that is full is yet to come
        return min(inputs)
    of_any_age = node.semantics.unbounded and node.semantics.as_of is None
    if node.semantics.bounds.count_windows or of_any_age:  # a partner may be
        return END_OF_TIME_US if min(inputs) == END_OF_TIME_US else BEGIN_OF_TIME_US
    return min(_shifted(watermark_us, by_us) for watermark_us, by_us in zip(inputs, join_shifts(node), strict=True))


def needed_below(node: Node | MultiwayJoin, inputs: Sequence[int]) -> tuple[int, int]:
    """Times below which a stage needs no left and right rows after a crash, given the watermarks of its ports.

    BEGIN_OF_TIME_US for count windows, whose rule is the gateway's or the operator's, for sessions and lives, which may be of
    any length, for windows that begin with a group's first row, and for what has results of all rows; END_OF_TIME_US for a
    stage without state.
    """
    if isinstance(node, MultiwayJoin):
        return _shifted(inputs[0], -node.reach_us), END_OF_TIME_US
    if isinstance(node, LiveGroups) and node.longest_us:
        return _shifted(inputs[0], -node.longest_us), END_OF_TIME_US
    if isinstance(node, Sessions | Repeated | LiveGroups | CountedJoin) or (isinstance(node, Aggregate) and node.running):
        return inputs[0] if inputs[0] == END_OF_TIME_US else BEGIN_OF_TIME_US, END_OF_TIME_US
    if isinstance(node, Aggregate | Ranked) and BEGIN_OF_TIME_US < inputs[0] < END_OF_TIME_US:
        return max(node.windows.first_after(inputs[0]), BEGIN_OF_TIME_US), END_OF_TIME_US
    if isinstance(node, Aggregate | Ranked):
        return inputs[0], END_OF_TIME_US
    if not isinstance(node, IntervalJoin):
        return END_OF_TIME_US, END_OF_TIME_US
    if node.semantics.bounds.count_windows:
        return BEGIN_OF_TIME_US, BEGIN_OF_TIME_US
    left_us, right_us = node.semantics.needed_below((inputs[LEFT], inputs[RIGHT]))
    return max(left_us, BEGIN_OF_TIME_US), max(right_us, BEGIN_OF_TIME_US)

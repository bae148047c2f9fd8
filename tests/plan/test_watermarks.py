"""Watermark rules: sound for random plans and inputs, and as great as the inputs allow, by enumeration of all small cases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from swjoin.config.sections import QueryConfig
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.time_windows import TimeWindows
from swjoin.plan.aggregates import Aggregate, WindowTime
from swjoin.plan.kept_rows import WHOLE, AlignedWindows, Ranked, Sessions, TupleWindows, Views
from swjoin.plan.live_groups import LiveGroups
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Node, OutputTime, Project, Result, Union
from swjoin.plan.watermarks import join_shifts, needed_below, watermark_out
from tests.plan.plans import OUTPUT_TIMES, join, plan, random_plans, random_rows, source, watermark_after
from tests.tools.plan_expressions import born_at, dead_at
from tests.tools.plan_oracle import Row, Rule, emitted, evaluate

SMALL = range(-4, 5)


def check_soundness(logical: LogicalPlan, data: st.DataObject, rule: Rule) -> None:
    """No row of any node that comes out after a cut of the input has a time below the node's watermark at the cut, and
    watermarks never fall. A row without a match is out as soon as a watermark of the rule excludes partners."""
    sources = data.draw(random_rows(logical))
    rows = evaluate(logical, sources)
    counts = dict.fromkeys(sources, 0)
    before: dict[str, int] = dict.fromkeys(rows, BEGIN_OF_TIME_US)
    for _ in range(3):
        counts = {name: data.draw(st.integers(counts[name], len(sources[name]))) for name in sources}
        arrived = {name: {row.id for row in sources[name][: counts[name]]} for name in sources}
        at_sources = {name: watermark_after(sources[name], counts[name]) for name in sources}
        out, promised = emitted(logical, rows, arrived, at_sources, rule)
        for name, watermark_us in promised.items():
            assert watermark_us >= before[name], f"the watermark of {name} has fallen"
            for row in rows[name]:
                assert row.id in out[name] or row.ts >= watermark_us, f"{name}: {row} comes out below {watermark_us}"
        before = promised


def sound(rule: Rule, examples: int, *, find: bool = False) -> None:
    """Check the rule on random plans. find: the rule is wrong; do not shrink what is found."""

    @settings(
        max_examples=examples,
        derandomize=find,
        database=None,
        phases=[Phase.generate] if find else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_plans(), st.data())
    def property_holds(logical: LogicalPlan, data: st.DataObject) -> None:
        check_soundness(logical, data, rule)

    property_holds()


def test_watermarks_are_sound() -> None:
    sound(watermark_out, 300)


def least_inputs(node: Node, inputs: Sequence[int]) -> int:
    return min(inputs)


def union_by_maximum(node: Node, inputs: Sequence[int]) -> int:
    return max(inputs) if isinstance(node, Union) else watermark_out(node, inputs)


def one_later(node: Node, inputs: Sequence[int]) -> int:
    """Off by one: `<` in place of `<=` at a bound."""
    found = watermark_out(node, inputs)
    return found + 1 if isinstance(node, IntervalJoin) and abs(found) < END_OF_TIME_US else found


def pairs_alone(node: Node, inputs: Sequence[int]) -> int:
    """Forgets the rows without a match."""
    if not isinstance(node, IntervalJoin) or not any(node.semantics.kind.unmatched) or not node.semantics.kind.pairs:
        return watermark_out(node, inputs)
    query = QueryConfig(node.semantics.lower_us, node.semantics.upper_us)
    inner = IntervalJoin(node.name, node.left, node.right, node.left_key, node.right_key, query, node.output_time)
    return watermark_out(inner, inputs)


def windows_that_have_ended(node: Node, inputs: Sequence[int]) -> int:
    found = watermark_out(node, inputs)
    return found + 1 if isinstance(node, Aggregate) and abs(found) < END_OF_TIME_US else found


def windows_that_begin(node: Node, inputs: Sequence[int]) -> int:
    """Forgets that rows have the time at which their windows began."""
    return inputs[0] if isinstance(node, AlignedWindows) else watermark_out(node, inputs)


def views_that_have_passed(node: Node, inputs: Sequence[int]) -> int:
    """Forgets that a view without anything new waits for the next one."""
    return inputs[0] if isinstance(node, Views) else watermark_out(node, inputs)


def instants_that_have_passed(node: Node, inputs: Sequence[int]) -> int:
    found = watermark_out(node, inputs)
    return found + 1 if isinstance(node, LiveGroups) and abs(found) < END_OF_TIME_US else found


def rows_that_have_passed(node: Node, inputs: Sequence[int]) -> int:
    found = watermark_out(node, inputs)
    return found + 1 if isinstance(node, TupleWindows) and abs(found) < END_OF_TIME_US else found


WRONG_RULES = [
    *(least_inputs, union_by_maximum, one_later, pairs_alone, windows_that_have_ended),
    *(windows_that_begin, rows_that_have_passed, views_that_have_passed),
    instants_that_have_passed,
]


@pytest.mark.drawn
@pytest.mark.parametrize("bug", WRONG_RULES, ids=lambda rule: rule.__name__)
def test_wrong_rules_are_found(bug: Rule) -> None:
    """`least_inputs` is the rule of a join with the lesser time that forgets its bounds."""
    with pytest.raises(AssertionError, match="comes out below"):
        sound(bug, 1000, find=True)


# ---------------------------------------------------------------- the greatest watermark, by enumeration


def least_possible(node: IntervalJoin, left_us: int, right_us: int) -> int:
    """Least time of a row that can come out after the watermarks, over all small left and right rows, earlier and later ones.

    A later row's time is not below its watermark. An earlier one's may be any; without a match it is still inside if a later
    partner is possible.
    """
    query, found = node.semantics, []
    kind, low, high = query.kind, query.lower_us, query.upper_us
    span = range(-20, 30)
    for left, right in itertools.product(span, span):
        later = left >= left_us or right >= right_us
        if low <= right - left <= high and later:
            pair = {"max": max(left, right), "min": min(left, right), "left": left}[node.output_time]
            found += [pair] if kind.pairs else []
            found += [left] if kind.first else []
    for ts in span:
        if kind.unmatched[0] and (ts >= left_us or any(low <= right - ts <= high for right in range(right_us, 40))):
            found.append(ts)
        if kind.unmatched[1] and (ts >= right_us or any(low <= ts - left <= high for left in range(left_us, 40))):
            found.append(ts)
    return min(found)


@pytest.mark.parametrize("how", sorted(JOIN_KINDS))
@pytest.mark.parametrize("time", OUTPUT_TIMES)
def test_joins_promise_all_that_holds(how: How, time: OutputTime) -> None:
    for low, high in [(-2, 3), (0, 0), (0, 4), (-4, 0), (1, 3), (-3, -1), (2, 2)]:
        node = join("j", "a", "b", (low, high), how, time)
        for left_us, right_us in itertools.product((0, 1, 3, 6), (0, 2, 6)):
            assert watermark_out(node, (left_us, right_us)) == least_possible(node, left_us, right_us), (low, high)


@pytest.mark.parametrize("time", ["last", "start", "end"])
def test_aggregates_promise_all_that_holds(time: WindowTime) -> None:
    """The least time of a window that has not ended, for all small windows: at least what the specification's table says."""
    for size, slide, origin in itertools.product((1, 2, 5), (1, 2, 3, 7), (0, 2)):
        node = Aggregate("g", "a", ("k",), TimeWindows(size, slide, origin), (), output_time=time)
        for watermark_us in range(-9, 12):
            starts = [origin + slide * k for k in range(-40, 40)]
            times = {"last": size - 1, "start": 0, "end": size}
            least = min(start + times[time] for start in starts if start + size > watermark_us)
            assert watermark_out(node, [watermark_us]) == least
            assert least >= watermark_us + times[time] - size + 1
            assert needed_below(node, [watermark_us])[0] == min(s for s in starts if s + size > watermark_us)
            top = Ranked("t", "a", ("k",), (), 1, TimeWindows(size, slide, origin), output_time=time)
            assert watermark_out(top, [watermark_us]) == least
            assert needed_below(top, [watermark_us]) == needed_below(node, [watermark_us])
        for end in (BEGIN_OF_TIME_US, END_OF_TIME_US):
            assert watermark_out(node, [end]) == end
            assert needed_below(node, [end]) == (end, END_OF_TIME_US)


@pytest.mark.parametrize("time", ["last", "end"])
def test_sessions_promise_all_that_holds(time: Literal["last", "end"]) -> None:
    """A session that is open ends after the watermark; one of them may end a microsecond after it."""
    node = Sessions("s", "a", ("k",), 3, output_time=time)
    for watermark_us in range(-4, 5):
        ends = [ts + 3 for ts in range(-9, 9) if ts + 3 > watermark_us]
        assert watermark_out(node, [watermark_us]) == min(ends) - (time == "last")
        assert needed_below(node, [watermark_us]) == (BEGIN_OF_TIME_US, END_OF_TIME_US)
    for end in (BEGIN_OF_TIME_US, END_OF_TIME_US):
        assert watermark_out(node, [end]) == end


@pytest.mark.parametrize("time", ["end", "start"])
def test_windows_from_the_first_row_promise_all_that_holds(time: Literal["end", "start"]) -> None:
    """The specification's P - s where a row has its window's start; the end of a window that is open is P at least. Any time
    may be that of a group's first row."""
    node = AlignedWindows("w", "a", ("k",), 3, 2, output_time=time)
    for watermark_us in range(-4, 5):
        starts = [first + 2 * k for first in range(-20, 9) for k in range(9)]
        least = min(start for start in starts if start + 3 >= watermark_us)
        assert watermark_out(node, [watermark_us]) == least + 3 * (time == "end")
        assert needed_below(node, [watermark_us]) == (BEGIN_OF_TIME_US, END_OF_TIME_US)
    for end in (BEGIN_OF_TIME_US, END_OF_TIME_US):
        assert watermark_out(node, [end]) == end


@pytest.mark.parametrize("partial", [False, True])
def test_windows_of_tuples_promise_what_their_input_does(partial: bool) -> None:
    """A window is full with a later row; one that is not comes out behind all watermarks."""
    node = TupleWindows("w", "a", ("k",), 3, 2, partial)
    for watermark_us in (BEGIN_OF_TIME_US, -4, 0, 5, END_OF_TIME_US):
        assert watermark_out(node, [watermark_us]) == watermark_us
        assert needed_below(node, [watermark_us])[0] in (BEGIN_OF_TIME_US, watermark_us)
    assert needed_below(node, [5]) == (BEGIN_OF_TIME_US, END_OF_TIME_US)
    whole_us = WHOLE.origin_us + WHOLE.size_us  # as rows of the window of all times may have it
    assert watermark_out(node, [whole_us]) == (LAST_TIME_US if partial else whole_us)
    assert WHOLE.origin_us <= LAST_TIME_US < WHOLE.origin_us + WHOLE.size_us


@pytest.mark.parametrize("mode", ["changes", "boundaries", "births"])
def test_groups_that_live_promise_what_their_input_does(mode: Literal["changes", "boundaries", "births"]) -> None:
    """A row to come is born at the watermark or later; of a life of 7 us a row of 3 us is needed until 10 us have passed."""
    bounded = LiveGroups("g", "a", ("k",), "born", "dead", (), "as_of", 2, mode, 7)
    endless = LiveGroups("g", "a", ("k",), "born", "dead", (), "as_of", 2, mode)
    for watermark_us in range(-4, 5):
        assert watermark_out(bounded, [watermark_us]) == watermark_us
        assert needed_below(bounded, [watermark_us]) == (watermark_us - 7, END_OF_TIME_US)
        assert watermark_out(endless, [watermark_us]) == (BEGIN_OF_TIME_US if mode == "boundaries" else watermark_us)
        assert needed_below(endless, [watermark_us]) == (BEGIN_OF_TIME_US, END_OF_TIME_US)
    for end in (BEGIN_OF_TIME_US, END_OF_TIME_US):
        for node in (bounded, endless):
            assert (watermark_out(node, [end]), needed_below(node, [end])) == (end, (end, END_OF_TIME_US))


def test_boundaries_of_a_row_that_never_dies_wait_for_the_next_birth_or_death() -> None:
    lives = Project("l", "a", (("k", '"k"'), ("born", born_at("ts", 0, 1)), ("dead", dead_at("ts", 2, 1))))
    node = LiveGroups("g", "l", ("k",), "born", "dead", (), "as_of", 1, "boundaries")
    logical = LogicalPlan((source("a"), lives, node, Result("out", "g")))
    sources = {"a": [Row(i, ts, (0, i, ts)) for i, ts in enumerate((2, 6))]}  # the first one never dies
    rows = evaluate(logical, sources)
    out, promised = emitted(logical, rows, {"a": {0}}, {"a": 6}, watermark_out)
    assert [row.ts for row in rows["g"]] == [2, 3, 4, 5, 6, 7, 8]
    assert [row.ts for row in rows["g"] if row.id in out["g"]] == [2]
    assert (promised["l"], promised["g"]) == (6, BEGIN_OF_TIME_US)
    bounded = LogicalPlan((source("a"), lives, replace(node, longest_us=9), Result("out", "g")))
    assert emitted(bounded, rows, {"a": {0}}, {"a": 6}, watermark_out)[1]["g"] == 6


@pytest.mark.parametrize(("low", "high"), [(-2, 3), (0, 0), (0, 4), (-4, 0)])
def test_table_of_the_specification(low: int, high: int) -> None:
    for left, right in itertools.product(SMALL, SMALL):
        inner = {time: watermark_out(join("j", "a", "b", (low, high), "inner", time), (left, right)) for time in OUTPUT_TIMES}
        assert inner["max"] == min(left, right)
        assert inner["min"] == min(left + min(0, low), right - max(0, high))
        assert inner["left"] == min(left, right - high)
        for how in ("left", "semi", "anti"):
            assert watermark_out(join("j", "a", "b", (low, high), how, "left"), (left, right)) == min(left, right - high)
        assert watermark_out(join("j", "a", "b", (low, high), "right"), (left, right)) == min(left, right, left + low)
        full = watermark_out(join("j", "a", "b", (low, high), "full"), (left, right))
        assert full == min(left, right, right - high, left + low)
        assert watermark_out(Union("u", ("a", "b", "c")), (left, right, 3)) == min(left, right, 3)


def test_ends_of_time() -> None:
    end, begin = END_OF_TIME_US, BEGIN_OF_TIME_US
    for how in JOIN_KINDS:
        node = join("j", "a", "b", (-5, 7), how, "min")
        assert watermark_out(node, (end, end)) == end
        assert watermark_out(node, (begin, end)) == begin
        assert watermark_out(node, (end, begin)) == begin
    assert watermark_out(join("j", "a", "b", (-5, 7)), (end, 100)) == 100
    assert watermark_out(join("j", "a", "b", (-5, 7), "left"), (end, 100)) == 93
    assert watermark_out(join("j", "a", "b", (-5, 7), "full"), (100, end)) == 95
    assert watermark_out(join("j", "a", "b", (-5, 7), "inner", "min"), (begin + 3, end)) == begin
    assert watermark_out(plan("one join").node("a"), [17]) == 17


def test_count_windows_promise_nothing_until_the_end() -> None:
    node = IntervalJoin("j", "a", "b", ("k",), ("k",), QueryConfig(0, 0, last=(3, 4)))
    assert watermark_out(node, (5, 7)) == watermark_out(node, (END_OF_TIME_US, 7)) == BEGIN_OF_TIME_US
    assert watermark_out(node, (END_OF_TIME_US, END_OF_TIME_US)) == END_OF_TIME_US
    assert needed_below(node, (5, 7)) == (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


def test_needed_below() -> None:
    """A left row at ts meets later right rows up to ts + upper; match flags also need the partners of rows that are alive."""
    assert needed_below(join("j", "a", "b", (-5, 7)), (100, 200)) == (193, 95)
    assert needed_below(join("j", "a", "b", (-5, 7), "left"), (100, 200)) == (88, 95)
    low = needed_below(join("j", "a", "b", (-5, 7)), (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US))
    assert low == (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
    assert join_shifts(join("j", "a", "b", (-5, 7), "full", "min")) == (-5, -7)

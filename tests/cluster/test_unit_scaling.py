"""How many units store, by their load: the rule (2PS), and the table that the master makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.cluster.master.unit_scaling import ScaledJoin, UnitScaling
from swjoin.config.sections import ScalingConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.data_messages import GroupLoads
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.policy.scaling import Limits, SubgroupScaling
from swjoin.routing.biclique import Biclique, UnitTable

LIMITS = Limits(0.3, 0.6, 0.8, 1_000)


@pytest.mark.parametrize(
    ("load", "units", "most", "wanted"),
    [
        (0.80, 4, 20, 4),  # at the threshold, not above it
        (0.81, 4, 20, 6),  # 3.24 / 0.6 = 5.4, rounded up
        (1.20, 4, 20, 8),
        (1.20, 4, 5, 5),
        (1.20, 5, 5, 5),
        (0.30, 10, 20, 10),
        (0.29, 10, 20, 5),  # 2.9 / 0.6 = 4.8, towards the larger number
        (0.01, 10, 20, 1),
        (0.00, 10, 20, 1),
        (0.00, 1, 20, 1),
    ],
)
def test_the_rule(load: float, units: int, most: int, wanted: int) -> None:
    rule = SubgroupScaling(LIMITS, most, 1)
    assert rule.wanted_units(round(load * units * 1_000), units) == wanted


def test_a_change_is_wanted_several_times_in_a_row() -> None:
    rule = SubgroupScaling(LIMITS, 20, 3)
    loads = [900, 900, 500, 900, 900, 100, 900, 900, 950]
    found = [rule.wanted_units(load, 1) for load in loads]
    assert found == [1, 1, 1, 1, 1, 1, 1, 1, 2]
    saved = SubgroupScaling(LIMITS, 20, 3)
    assert [rule.wanted_units(load, 1) for load in (900, 900)] == [1, 1]
    saved.restore(rule.plain_state())
    assert saved.wanted_units(900, 1) == 2


def test_nothing_changes_while_units_drain() -> None:
    rule = SubgroupScaling(LIMITS, 20, 2)
    assert [rule.wanted_units(900, 1, draining=draining) for draining in (False, True, False, False)] == [1, 1, 1, 2]


def test_units_are_kept_while_windows_fill_and_where_rows_are_kept_for_good() -> None:
    rule = SubgroupScaling(LIMITS, 20, 1)
    assert rule.wanted_units(10, 5, filling=True) == 5, "there will be more"
    assert rule.wanted_units(4_900, 5, filling=True) == 9
    rule = SubgroupScaling(LIMITS, 20, 1, shrinks=False)
    assert rule.wanted_units(10, 5) == 5
    assert rule.wanted_units(4_900, 5) == 9


@given(st.integers(0, 100_000), st.integers(1, 64), st.integers(1, 64))
def test_the_load_is_between_the_thresholds_afterwards(stored: int, units: int, most: int) -> None:
    units = min(units, most)
    wanted = SubgroupScaling(LIMITS, most, 1).wanted_units(stored, units)
    assert 1 <= wanted <= most
    if wanted != units:
        assert LIMITS.load(stored, wanted) <= LIMITS.high or wanted == most
        assert (wanted > units) == (LIMITS.load(stored, units) > LIMITS.high)


# ---------------------------------------------------------------- the table

UNITS = Biclique(3, 2)


def _scaling(*, unbounded: bool = False) -> UnitScaling:
    """lower -10, upper 20; checked in each epoch."""
    return UnitScaling([ScaledJoin(0, -10, 20, unbounded, UNITS, 1_000)], ScalingConfig(units=1, confirmations=1))


def _epoch(
    scaling: UnitScaling, epoch: int, stored: list[int], left: tuple[int, ...], watermarks: tuple[int, int]
) -> UnitTable | None:
    """One gateway has sent left rows of these newest times by unit, and a right one of time 5 to its first unit."""
    loads = GroupLoads(0, np.arange(5), np.zeros(5, np.int64), np.array(stored))
    scaling.reported(0, range(7), loads)
    scaling.closed([(0, LEFT, watermarks[LEFT], left), (0, RIGHT, watermarks[RIGHT], (5, BEGIN_OF_TIME_US))])
    found = scaling.planned(epoch)
    return found[0][0] if found else None


def test_a_unit_is_probed_until_the_last_partner_of_its_rows_has_passed() -> None:
    nothing = BEGIN_OF_TIME_US
    scaling = _scaling()
    assert scaling.planned(0)[0][0] == UnitTable(0, (1, 0, 0, 1, 0), (1, 0, 0, 1, 0))
    assert scaling.planned(1) == (), "as it was"
    opened = _epoch(scaling, 2, [1_300, 0, 0, 500, 0], (7, nothing, nothing), (0, 0))
    assert opened == UnitTable(0, (1, 1, 1, 1, 0), (1, 1, 1, 1, 0))
    closing = _epoch(scaling, 3, [100, 100, 100, 500, 0], (8, 9, 30), (9, 9))
    assert closing == UnitTable(0, (1, 0, 0, 1, 0), (1, 1, 1, 1, 0))
    assert _epoch(scaling, 4, [600, 100, 100, 500, 0], (8, nothing, nothing), (99, 29)) is None, "29 is a partner of 9"
    assert _epoch(scaling, 5, [600, 0, 100, 500, 0], (8, nothing, nothing), (99, 30)) == UnitTable(
        0, (1, 0, 0, 1, 0), (1, 0, 1, 1, 0)
    )
    woken = _epoch(scaling, 6, [2_000, 0, 0, 500, 0], (8, nothing, nothing), (99, 50))
    assert woken is None, "unit 2 drains, so nothing changes: 30 + 20 has not passed"
    assert _epoch(scaling, 7, [2_000, 0, 0, 500, 0], (8, nothing, nothing), (99, 51)) == UnitTable(
        0, (1, 1, 1, 1, 0), (1, 1, 1, 1, 0)
    )
    kinds = [(kind, unit) for kind, _, unit, _ in scaling.take_notes()]
    opened_then = [("unit_opened", 1), ("unit_opened", 2)]
    assert kinds == [
        *opened_then,
        ("unit_closing", 1),
        ("unit_closing", 2),
        ("unit_closed", 1),
        ("unit_closed", 2),
        *opened_then,
    ]
    assert [(change["from"], change["to"]) for change in scaling.summary(0)["units"]["changes"]] == [(1, 3), (3, 1), (1, 3)]


def test_without_bounds_rows_go_where_there_is_room() -> None:
    nothing = BEGIN_OF_TIME_US
    scaling = _scaling(unbounded=True)
    scaling.planned(0)
    assert _epoch(scaling, 1, [900, 0, 0, 0, 0], (7, nothing, nothing), (9, 9)) == UnitTable(
        0, (0, 16, 0, 16, 0), (1, 1, 0, 1, 0)
    )
    assert _epoch(scaling, 2, [790, 400, 0, 0, 0], (7, 8, nothing), (9, 9)) == UnitTable(0, (0, 8, 0, 16, 0), (1, 1, 0, 1, 0))
    full = _epoch(scaling, 3, [2_000, 2_000, 2_000, 0, 0], (7, 8, nothing), (9, 9))
    assert full == UnitTable(0, (1, 1, 1, 16, 0), (1, 1, 1, 1, 0)), "none has room"


def test_a_restored_table_goes_on() -> None:
    nothing = BEGIN_OF_TIME_US
    scaling, again = _scaling(), _scaling()
    scaling.planned(0)
    _epoch(scaling, 1, [1_300, 0, 0, 500, 0], (7, nothing, nothing), (0, 0))
    again.restore(scaling.plain_state())
    assert again.planned(2)[0][0] == UnitTable(0, (1, 1, 1, 1, 0), (1, 1, 1, 1, 0))
    saved, before = again.plain_state()[0], scaling.plain_state()[0]
    assert {**saved, "checked": 1, "rules": before["rules"]} == before


def test_what_is_not_reported_is_empty() -> None:
    """Of units that are at the slave; what another one has, or what moves, stays as it was told."""
    nothing = BEGIN_OF_TIME_US
    scaling = _scaling()
    scaling.planned(0)
    _epoch(scaling, 1, [700, 300, 200, 500, 0], (7, nothing, nothing), (0, 0))
    scaling.reported(0, [1, 3, 9], GroupLoads(0, np.array([3]), np.zeros(1, np.int64), np.array([400])))
    assert scaling.plain_state()[0]["stored_bytes"] == [700, 0, 200, 400, 0]

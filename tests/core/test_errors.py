"""Errors of subject, problem and remedy, spelled for each front end."""

from __future__ import annotations

import copy
import pickle

import pytest

from swjoin.core.errors import RunFailed, Spelling, UserError, setting, spelled

LATE = setting("late", "time.late", "drop")
UNITS = setting("left_time_unit", "left.time_unit", "s", "ms")


@pytest.mark.parametrize(
    ("spelling", "line"),
    [
        ("options", "left: no time; choose --late drop, or --left-time-unit s|ms with --memory"),
        ("arguments", "left: no time; choose late='drop', or left_time_unit='s' or 'ms' with memory"),
        ("keys", "left: no time; choose time.late: drop, or left.time_unit: s|ms with module.window"),
    ],
)
def test_each_front_end_spells_settings(spelling: Spelling, line: str) -> None:
    remedy = ("choose ", LATE, ", or ", UNITS, " with ", setting("memory", "module.window"))
    with pytest.raises(UserError) as caught, spelled(spelling):
        raise UserError("no time", subject="left", remedy=remedy)
    assert str(caught.value) == line
    for again in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert str(again) == line
        assert (again.subject, again.problem, again.remedy) == ("left", "no time", remedy)


def test_an_error_without_structure_is_its_text() -> None:
    assert str(RunFailed("it broke")) == "it broke"
    assert str(RunFailed()) == ""
    assert str(UserError("is missing").prefixed("b").prefixed("a")) == "a: b: is missing"
    assert str(UserError("is missing", subject=(setting("late"),)).prefixed("a.yaml")) == "a.yaml: --late: is missing"

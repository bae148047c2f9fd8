"""Phases of the master and states of a move: only the steps of their tables, and all of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.cluster.master import moves, phases
from swjoin.cluster.master.moves import Move, MoveState
from swjoin.cluster.master.phases import Phase, Phases
from swjoin.core.errors import RunFailed
from swjoin.core.ids import GroupId, SlaveId
from tests.tools.random_runs import run_simulated


@given(st.booleans(), st.lists(st.sampled_from(Phase)))
def test_an_illegal_phase_raises_and_changes_nothing(prefill: bool, wanted: list[Phase]) -> None:
    life = Phases(prefill=prefill)
    for phase in wanted:
        before, past = life.phase, list(life.past)
        if (before, phase) in phases.TRANSITIONS:
            life.enter(phase)
            assert (life.phase, life.past) == (phase, [*past, before])
        else:
            with pytest.raises(RunFailed, match=f"phase {phase} cannot follow {before}"):
                life.enter(phase)
            assert (life.phase, life.past) == (before, past)


@given(st.lists(st.sampled_from(MoveState)))
def test_an_illegal_state_of_a_move_raises_and_changes_nothing(wanted: list[MoveState]) -> None:
    move = Move(3, GroupId(5), SlaveId(0), SlaveId(1))
    for state in wanted:
        before = move.state
        if (before, state) in moves.TRANSITIONS:
            move.enter(state)
            assert move.state == state
        else:
            with pytest.raises(RunFailed, match=f"move 3 of partition-group 5: {state} after {before}"):
                move.enter(state)
            assert move.state == before


@pytest.mark.parametrize("table", [phases.TRANSITIONS, moves.TRANSITIONS])
def test_every_state_is_reached_and_left(table: dict[Any, str]) -> None:
    states = {state for pair in table for state in pair}
    assert states == set(type(next(iter(states))))
    first = {Phase.PREFILL, MoveState.DECIDED}
    assert {after for _, after in table} == states - first
    assert states - {before for before, _ in table} <= {Phase.FINISHED, Phase.STOPPED, MoveState.DONE}


def test_random_runs_take_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill apart, which tests/cluster/test_measuring.py has: simulated runs with crashes, requests to stop and moves."""
    taken: set[tuple[Any, Any]] = set()

    def watched(kind: Any, field: str) -> None:
        enter = kind.enter

        def record(self: Any, state: Any) -> None:
            before = getattr(self, field)
            enter(self, state)
            taken.add((before, state))

        monkeypatch.setattr(kind, "enter", record)

    watched(Phases, "phase")
    watched(Move, "state")
    wanted = {*phases.TRANSITIONS, *moves.TRANSITIONS} - {(Phase.PREFILL, Phase.RUNNING)}
    for seed in itertools.chain((1, 11, 14), range(400)):  # these do; when what is drawn has changed, others
        run_simulated(seed)
        if taken >= wanted:
            break
    assert taken >= wanted, wanted - taken

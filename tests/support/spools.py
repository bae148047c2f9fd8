"""State machines of Flight sources: spools with small files, and long runs.

What: `SmallFiles`, mixed into a machine; `run_long`.
Why: the machines of one gateway and of several are examined in the same ways.
Stays out: the machines (`tests.connectors.test_flight_source`, `test_flight_shares`).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from swjoin.connectors.flight import spool


class SmallFiles(RuleBasedStateMachine):
    """A file for every few records, so that some can be forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.before = spool._FILE_BYTES
        spool._FILE_BYTES = 1000

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            spool._FILE_BYTES = self.before


def run_long(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))

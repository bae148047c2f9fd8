"""What runtimes and roles agree upon.

What: `UnknownEffectError`.
Why: an effect that a runtime does not know is an error in every runtime: a dropped effect is a wrong answer.
Stays out: the effects themselves (`cluster.messages`), performing them (`runtime`).
"""

from __future__ import annotations


class UnknownEffectError(TypeError):
    """A role wants something done that its runtime cannot do."""

    def __init__(self, effect: object) -> None:
        super().__init__(f"no performer for the effect {type(effect).__name__}")

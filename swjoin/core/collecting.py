"""When Python looks for garbage in a process of the command.

What: `relax`, at the start of the process; `settle`, once the roles of a run begin, and `release`, when they end.
Why: what a process imports and plans stays to its end, but Python looks through all of it again and again for cycles of
garbage: a fifth of the time until a run begins, and 0.2 s in which no role goes on, each time that a run of a thousand queries
is changed.
Stays out: processes of others, which `import swjoin`: their settings are theirs.
"""

from __future__ import annotations

import gc

_OBJECTS = 100_000  # more than an import of everything makes
_before: list[tuple[int, int, int]] = []
_frozen: list[bool] = []


def relax() -> None:
    """Look for garbage seldom until `settle`."""
    _before.append(gc.get_threshold())
    gc.set_threshold(_OBJECTS, 10, 10)


def settle() -> None:
    """Look for garbage among what is made from now on, as often as before `relax`; nothing in a process that did not relax, or
    has settled."""
    if _before:
        gc.set_threshold(*_before.pop())
        gc.freeze()
        _frozen.append(True)


def release() -> None:
    """Look for garbage everywhere again, after `settle`: the roles are some, if the run goes on with others."""
    if _frozen:
        _frozen.clear()
        gc.unfreeze()

"""The `swjoin` command, and `python -m swjoin`.

`run` catches Ctrl-C while modules are still being imported. What comes earlier, Python's own start, tells it in Python's way.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """The command as a process."""
    try:
        from swjoin.core.collecting import relax

        relax()
        from swjoin.cli.main import entry

        entry()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("swjoin: interrupted", file=sys.stderr, flush=True)
        os._exit(130)


if __name__ == "__main__":
    run()

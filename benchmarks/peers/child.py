"""Run one child process to its end, within a time limit, and leave nothing of it behind.

The peer scripts start Java, which starts threads and processes of its own. The child gets its own process group, and
the group is killed when the child ends, when the limit passes, or when this process is told to stop.
Out of scope: restarting, and anything about what the child measures.
"""

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType


def stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> str:
    """The child's stdout; its stderr goes to ours. SystemExit when it fails or does not end within the limit."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    env = None if environment is None else {**os.environ, **environment}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{command[0]}: not finished after {seconds:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode:
        print(out, file=sys.stderr)
        raise SystemExit(f"{command[0]}: exit status {child.returncode}")
    return out

"""The messages of a command on standard error: of which level, and as text or as JSON.

What: `messages(verbose, quiet, log_json)`, a context with a handler of the logger `swjoin`.
Why: the library logs; only the command decides what a terminal shows. Addresses at which a run can be reached are output of the
command, so that they go to standard output.
Stays out: lines of JSON themselves (`core.log_lines`), the summary of a run (`cli.summary`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from swjoin.core.log_lines import json_line, traceback_of
from swjoin.runtime.preflight import launcher_index, launcher_size
from swjoin.runtime.progress import erase_bars

_ADDRESSES = ("swjoin.connectors.flight.ingest", "swjoin.monitor.role_watchers")


class _Handler(logging.Handler):
    """Prints records. Unlike handlers of `logging`, it lets the error of a write through, as `print` does."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._rank = launcher_index() if launcher_size() > 1 else None

    def emit(self, record: logging.LogRecord) -> None:
        erase_bars()
        if self._rank is not None:
            record.rank = self._rank
        if self._as_json:
            print(json_line(record), file=sys.stderr, flush=True)
            return
        text = " ".join(record.getMessage().split())
        if record.levelno == logging.INFO and record.name in _ADDRESSES:
            print(record.getMessage(), flush=True)
            return
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        rank = getattr(record, "rank", None)
        if record.levelno < logging.INFO and rank is not None:
            text = f"rank {rank}: {text}"
        lines = [traceback_of(record), f"swjoin: {text}" if text else ""]
        print("\n".join(filter(None, lines)), file=sys.stderr, flush=True)


@contextmanager
def messages(*, verbose: bool, quiet: bool, log_json: bool) -> Iterator[None]:
    """Print log records of swjoin: errors, warnings and notices; verbose: also details; quiet: errors alone.

    log_json: as lines of JSON, Python's warnings (`warnings.warn`) among them. Afterwards `logging` is as it was.
    """
    logger, warned = logging.getLogger("swjoin"), logging.getLogger("py.warnings")
    if any(isinstance(handler, _Handler) for handler in logger.handlers):  # a command within a command, such as `kernels`
        yield
        return
    handler = _Handler(as_json=log_json)
    before = logger.level
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    logger.addHandler(handler)
    if log_json:
        logging.captureWarnings(True)
        warned.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        if log_json:
            logging.captureWarnings(False)
            warned.removeHandler(handler)

"""Log records as lines of JSON, and lines of JSON as log records.

What: `json_line(record)`, `record_of(line)`, `complaint_line(text)`.
Why: `--log-json` prints them for programs; MPI ranks hand theirs to the process that has started them, which logs them as its
own.
Stays out: handlers and levels (`cli.messages`, and applications that use swjoin as a library), starting ranks
(`runtime.launch`).
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_START = '{"time": "'
_PLAIN = logging.Formatter()


def json_line(record: logging.LogRecord) -> str:
    """One JSON object: time (ISO 8601, UTC, microseconds), level, logger, message; rank, of MPI; exception: its traceback."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    found = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
    rank = getattr(record, "rank", None)
    if rank is not None:
        found["rank"] = rank
    exception = traceback_of(record)
    if exception:
        found["exception"] = exception
    return json.dumps(found, ensure_ascii=False)


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback of a record's exception; empty without one."""
    if record.exc_info and not record.exc_text:
        record.exc_text = _PLAIN.formatException(record.exc_info)
    return record.exc_text or ""


def record_of(line: str) -> logging.LogRecord | None:
    """The record of a line that `json_line` has made; None for any other line."""
    if not line.startswith(_START):
        return None
    try:
        found = json.loads(line)
        return logging.makeLogRecord(
            {
                "created": datetime.fromisoformat(found["time"]).timestamp(),
                "levelname": found["level"],
                "levelno": logging.getLevelNamesMapping()[found["level"]],
                "name": found["logger"],
                "msg": found["message"],
                "exc_text": found.get("exception"),
                "rank": found.get("rank"),
            }
        )
    except (ValueError, KeyError, TypeError):
        return None


def complaint_line(text: str, *, as_json: bool, program: str = "swjoin") -> str:
    """The line of an error that is found before the command line, and with it the level of messages, is known."""
    if not as_json:
        return f"{program}: {text}"
    return json_line(logging.makeLogRecord({"name": "swjoin.cli", "levelname": "ERROR", "levelno": logging.ERROR, "msg": text}))

"""Files that a run appends to: metrics and events.

What: `MetricsFile`, `EventsFile`.
Why: their rows survive a recovery exactly once: rows after a checkpoint are truncated.
Stays out: reading them (`connectors.files.run_folder`), tables made of them (`sweeps.run_tables`).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.arrow_views import array_of, texts_of
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import RunFailed
from swjoin.core.metric_columns import COLUMNS, INTEGER_COLUMNS, metrics_batch, metrics_schema
from swjoin.core.storage import AppendedFile, replacing, writing

METRICS_ROW_BYTES = 8 * len(COLUMNS)


class MetricsFile:
    """DIR/metrics/slaves.parquet: one row per slave and distribution epoch, written at the end.

    rows: file for the rows until then; None: a temporary file. Rows of a generation are stored by `cut`.
    """

    ROWS = 4096

    def __init__(self, run_dir: Path, rows: AppendedFile | None = None) -> None:
        """RunFailed when stored rows hold values that a table cannot."""
        if rows is not None:
            there = np.frombuffer(rows.read(), np.float64).reshape(-1, len(COLUMNS))
            integers = there[:, [name in INTEGER_COLUMNS for name in COLUMNS]]
            if not (np.abs(integers) < 2.0**63).all():
                raise RunFailed(f"{rows.path}: corrupt: a metric that must be an integer is not finite, or too large")
        self.path = run_dir / "metrics" / "slaves.parquet"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._kept = rows is not None
        self.rows = AppendedFile(self.path.with_name(".slaves.rows")) if rows is None else rows
        self._waiting: list[tuple[int, NDArray[np.float64]]] = []

    def add(self, rows: list[tuple[int, NDArray[np.float64]]]) -> None:
        """Rows with their generations."""
        self._waiting += rows
        if not self._kept:
            self.cut(self._waiting[-1][0] if self._waiting else 0)

    def cut(self, generation: int) -> None:
        """Store the rows up to this generation."""
        self.rows.append(b"".join(row.tobytes() for g, row in self._waiting if g <= generation))
        self._waiting = [(g, row) for g, row in self._waiting if g > generation]

    def close(self) -> None:
        import pyarrow.parquet as pq

        self.rows.append(b"".join(row.tobytes() for _, row in self._waiting))
        everything = np.frombuffer(self.rows.read(), np.float64).reshape(-1, len(COLUMNS))
        with replacing(self.path) as temporary, pq.ParquetWriter(temporary, metrics_schema()) as writer:
            for at in range(0, len(everything), self.ROWS):
                writer.write_batch(metrics_batch(everything[at : at + self.ROWS]))
        self.rows.close()
        if not self._kept:
            self.rows.path.unlink()

    def abort(self) -> None:
        """The rows of a resumable run stay in their file."""
        if self._kept:
            self.rows.close()
        else:
            self.close()


RUN_FILES = ("run.json", "metrics/slaves.parquet", "metrics/events.parquet")  # of every finished run


def events_lines(run_dir: Path) -> Path:
    """The hidden file of a run's events. It exists from the start of a run to its end, and after a kill."""
    return run_dir / "metrics" / ".events.jsonl"


class EventsFile:
    """DIR/metrics/events.parquet: one row per `RunEvent`, in the order of the events.

    Until the end the events are lines of JSON in a hidden file beside it: memory does not grow, and a resumed run has the
    events of a killed process.
    """

    def __init__(self, run_dir: Path, *, resumes: bool = False) -> None:
        """resumes: keep the stored events."""
        self.path = run_dir / "metrics" / "events.parquet"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = events_lines(run_dir)
        self._file = self._lines.open("a" if resumes else "w")
        if resumes:
            self._file.write("\n")  # the last line may be incomplete

    def add(self, event: RunEvent) -> None:
        with writing(self.path):
            self._file.write(json.dumps(dataclasses.asdict(event)) + "\n")
            self._file.flush()

    def close(self, *, resumable: bool = False) -> None:
        """Write the table. resumable: more events may follow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with writing(self.path):
            self._file.close()
        rows = [row for line in self._lines.read_text().splitlines() if (row := _whole_event(line)) is not None]
        kinds = {"int": np.int64, "float": np.float64}
        columns = {}
        for field in dataclasses.fields(RunEvent):
            values = [row.get(field.name) for row in rows]
            if str(field.type) == "str":
                columns[field.name] = texts_of(values)
            else:
                missing = np.array([value is None for value in values], np.bool_)
                columns[field.name] = array_of(np.array([value or 0 for value in values], kinds[str(field.type)]), missing)
        with replacing(self.path) as temporary:
            pq.write_table(pa.table(columns), temporary)
        if not resumable:
            self._lines.unlink()


def _whole_event(line: str) -> dict[str, Any] | None:
    """The event of a line; None for an incomplete line of a killed process."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return {"stage": -1, **row} if isinstance(row, dict) else None  # earlier versions wrote no stage

"""Files of a table: Parquet and CSV.

What: `write_table`.
Why: programs read Parquet, people read CSV; neither is ever half written.
Stays out: computing tables (`sweeps.aggregate`, `sweeps.run_tables`).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(path: Path, columns: dict[str, list[Any]], kinds: pa.Schema) -> list[Path]:
    """Write PATH.parquet and PATH.csv, each under a temporary name first; returns their paths. kinds: types of columns; others
    have the type of their values."""
    given = {field.name: field.type for field in kinds}
    arrays = {name: pa.array(values, given.get(name)) for name, values in columns.items()}

    def write_csv(to: Path) -> None:
        with to.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    written = []
    for suffix, write in (("parquet", lambda to: pq.write_table(pa.table(arrays), to)), ("csv", write_csv)):
        final = path.with_name(f"{path.name}.{suffix}")
        temporary = final.with_name(f".{final.name}.tmp")
        write(temporary)
        temporary.replace(final)
        written.append(final)
    return written

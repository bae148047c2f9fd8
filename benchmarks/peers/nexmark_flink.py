"""Flink SQL for the comparison of Nexmark's queries: a process that runs the queries which lines on stdin name.

What: turns the Parquet files of a folder into columns of raw bytes, compiles FlinkNexmark.java against the jars of the package
apache-flink-libraries, prints "READY version configuration", and becomes that program, whose lines are told there.
Why: the package has no format for Parquet; columns in memory cost Flink less than any format would.
Stays out: which queries run, their texts, the comparison (`benchmarks.peers.nexmark`).

Flink's configuration: streaming mode, one JVM with a pre-touched heap and the parallel collector, heap state backend, object
reuse, no checkpoints, two-phase aggregates as the planner has them; source rows of the internal form with projection pushed
down, a watermark every 100 ms of event time from each of as many source tasks as cores. Mini-batches have nothing to do: no
query has an aggregate or a join without a window or a bound of time.

    python -m benchmarks.peers.nexmark_flink --folder FOLDER --cores 2

Needs the packages of requirements-flink.txt and a JDK (java and javac, 17 or later) on the PATH.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers import child
from benchmarks.peers.flink_join import OPEN, jars

SOURCE = Path(__file__).with_name("FlinkNexmark.java")
FACTORY = "META-INF/services/org.apache.flink.table.factories.Factory"
TIME = "date_time"


def write_column(column: pa.ChunkedArray, path: Path) -> str:
    """The file of a column, for texts a second one of their bytes; its type in Flink SQL."""
    if pa.types.is_string(column.type):
        array = pa.chunked_array([column.combine_chunks()]).cast(pa.large_string()).combine_chunks()
        _, ends, texts = array.buffers()
        offsets = np.frombuffer(ends, "<i8")[array.offset : array.offset + len(array) + 1]
        (offsets - offsets[0]).tofile(path)
        np.frombuffer(texts, np.uint8)[offsets[0] : offsets[-1]].tofile(path.with_name(path.name + ".texts"))
        return "STRING"
    time = pa.types.is_timestamp(column.type)
    (column.cast(pa.int64()) if time else column).to_numpy().astype("<i8").tofile(path)
    return "TIMESTAMP(3)" if time else "BIGINT"


def write_table(parquet: Path, folder: Path) -> str:
    """The columns of a Parquet file; the statement that makes the table."""
    folder.mkdir(parents=True)
    table = pq.read_table(parquet)
    columns = [f"`{name}` {write_column(table[name], folder / name)}" for name in table.column_names]
    if TIME in table.column_names:
        columns.append(f"WATERMARK FOR {TIME} AS SOURCE_WATERMARK()")
    options = f"'connector' = 'columns', 'path' = '{folder}'"
    return f"CREATE TEMPORARY TABLE {parquet.stem} ({', '.join(columns)}) WITH ({options});\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="with a Parquet file for each table; columns go there, too")
    parser.add_argument("--cores", type=int, default=2, help="parallelism")
    parser.add_argument("--heap", default="6g", help="size of the Java heap, half of it for the young generation")
    args = parser.parse_args()
    folder = args.folder / "flink"
    (folder / FACTORY).parent.mkdir(parents=True)
    (folder / FACTORY).write_text(f"{SOURCE.stem}$Connector\n")
    statements = folder / "tables.sql"
    statements.write_text("".join(write_table(path, folder / path.stem) for path in sorted(args.folder.glob("*.parquet"))))
    child.run(["javac", "-nowarn", "-cp", jars(), "-d", str(folder), str(SOURCE)], 120)
    java = ["java", f"-Xms{args.heap}", f"-Xmx{args.heap}", "-XX:NewRatio=1", "-XX:+UseParallelGC", "-XX:+AlwaysPreTouch"]
    java += [f"-Djava.io.tmpdir={folder}", *OPEN, "-cp", f"{jars()}:{folder}", SOURCE.stem, str(statements), str(args.cores)]
    configuration = (
        f"streaming mode, one JVM (heap {args.heap}, parallel collector), parallelism {args.cores}, heap state backend, "
        "object reuse, no checkpoints, columns in memory, watermark every 100 ms of event time, rows counted and digested, "
        "without planning"
    )
    print(f"READY\tFlink SQL {version('apache-flink-libraries')}\t{configuration}", flush=True)
    os.execvp(java[0], java)


if __name__ == "__main__":
    main()

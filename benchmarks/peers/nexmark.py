"""Nexmark's queries in other engines of streams, beside ours on the same input: `./run.sh bench nexmark --peers flink ...`.

What: a line per query: rows in and out, million events/s of swjoin and of every peer (median, range, turn by turn), and how
many times faster swjoin is; then each peer's geometric mean and its worst query. A peer's text is that of `examples/nexmark`,
or where its dialect differs the one in the folder of the peer's name there; Bytewax and Pathway have functions in Python.
Why: a peer's figure counts only where its rows are the same. Before a query is timed, a peer writes its rows, whose count and
digest are compared with ours, which are compared with DuckDB's. A query that a peer cannot run, that takes too long, or whose
rows differ is named with the reason and left out of the mean.
Stays out: how a peer is set up (`nexmark_flink`, `nexmark_spark`, `nexmark_bytewax`, `nexmark_pathway`), the texts, joins
alone (`benchmarks.peers.run`).

All have the same input, with times in whole milliseconds: Flink has no finer ones as event time. swjoin runs in one process
with as many slaves as cores, and reads what the peer reads: Parquet beside Spark, Arrow IPC beside the others, which have their
rows in memory. All count their rows; swjoin, Flink and Spark hash them as well. Planning and start-up are in nobody's seconds,
and a peer has run the query twice before it is timed.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shutil
import signal
import statistics
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import ROOT
from benchmarks.nexmark import answer_of, connected, duckdb_answer, input_rows, ranged, swjoin_run
from benchmarks.peers.run import environment
from benchmarks.workloads import nexmark

FORMATS = {
    "flink": "Arrow IPC",
    "spark": "Parquet",
    "bytewax": "Arrow IPC",
    "pathway": "Arrow IPC",
}  # what swjoin reads beside a peer
BATCH_ROWS = 1 << 16  # of an Arrow IPC file
SETUP_S = 240  # until a peer is ready
QUERY_S = 120  # for one run
WROTE = "wrote"  # instead of a digest: the rows are in files
NO_DIGEST = ("hashed", "counted")  # rows were hashed in another way, or only counted
# Queries that no input of whole milliseconds has one answer for.
UNDETERMINED = {"q6": "auctions of one millisecond have no order, and the last 10 of a seller depend on it"}


class RefusedError(Exception):
    """A peer did not run a query; says why."""


class Session:
    """A peer's process, which runs the queries that it is told.

    Attributes:
        system: name and version.
        configuration: as the peer describes it.
    """

    def __init__(self, name: str, folder: Path, cores: int, heap: str) -> None:
        self._name, self._folder, self._cores, self._heap = name, folder, cores, heap
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._python = environment(name, ROOT / "runs" / "peers")
        self._child: subprocess.Popen[str] | None = None
        self.system, self.configuration = name, ""

    def _start(self) -> subprocess.Popen[str]:
        shutil.rmtree(self._folder / self._name, ignore_errors=True)
        command = [str(self._python), "-m", f"benchmarks.peers.nexmark_{self._name}", "--folder", str(self._folder)]
        command += ["--cores", str(self._cores), "--heap", self._heap]
        with (self._folder / f"{self._name}.log").open("a") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(child, self._lines), daemon=True).start()
        self._child = child
        self.system, self.configuration = self._answer("READY", SETUP_S)
        return child

    @staticmethod
    def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line.rstrip("\n"))
        lines.put("FAILED\tits process has ended")

    def _answer(self, word: str, seconds: float) -> list[str]:
        """What stands after the word in the next line that has an answer; a process that is late is ended."""
        while True:
            try:
                said, *values = self._lines.get(timeout=seconds).split("\t")
            except queue.Empty:
                self.close()
                raise RefusedError(f"not finished after {seconds:.0f} s") from None
            if said == "FAILED":
                raise RefusedError(values[0][:300])
            if said == word:
                return values

    def ask(self, *words: str) -> tuple[float, int, str]:
        """Seconds, rows and digest of a run, or what a peer has instead of one. RefusedError."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("\t".join(words) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise RefusedError("its process has ended") from None
        seconds, count, digest = self._answer("RUN", QUERY_S)
        return float(seconds), int(count), digest

    def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None


@dataclass
class Peer:
    """A peer's figures.

    Attributes:
        ratios: by query, how many times faster swjoin is, for every turn.
        left_out: by query, why it is not counted.
    """

    name: str
    session: Session
    ratios: dict[str, list[float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class Inputs:
    """The tables.

    Attributes:
        files: by format, the file of every table.
        slaves: of swjoin.
        db: DuckDB with the tables.
    """

    files: dict[str, dict[str, Path]]
    slaves: int
    db: Any


def inputs_of(folder: Path, events: int, slaves: int) -> Inputs:
    paths = nexmark.write(folder, events)
    whole_milliseconds(paths)
    db = connected(paths)
    db.execute(f"SET threads = {slaves}")
    return Inputs({"Parquet": paths, "Arrow IPC": as_ipc(paths)}, slaves, db)


def whole_milliseconds(paths: dict[str, Path]) -> None:
    """Cuts the times of all tables to milliseconds; columns stay microseconds."""
    for path in paths.values():
        table = pq.read_table(path)
        for at, column in enumerate(table.schema):
            if pa.types.is_timestamp(column.type):
                times = pc.floor_temporal(table[column.name], unit="millisecond").cast(column.type)
                table = table.set_column(at, column.name, times)
        pq.write_table(table, path)


def as_ipc(paths: dict[str, Path]) -> dict[str, Path]:
    """The same tables in Arrow IPC files, uncompressed."""
    files = {name: path.with_suffix(".arrow") for name, path in paths.items()}
    for name, path in paths.items():
        table = pq.read_table(path)
        with pa.OSFile(str(files[name]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, BATCH_ROWS)
    return files


def text_of(peer: str, name: str) -> Path:
    """The file of a query's text for a peer."""
    own = nexmark.FOLDER / peer / f"{name}.sql"
    return own if own.exists() else nexmark.QUERIES[name]


def rows_of(files: list[Path], schema: pa.Schema) -> pa.Table:
    """Rows that a peer wrote, with our types."""
    if not files:
        return schema.empty_table()
    table = pa.concat_tables(map(pq.read_table, files))
    columns = [table.column(str(at)).cast(column.type) for at, column in enumerate(schema)]
    if len(columns) != table.num_columns:
        raise ValueError(f"{table.num_columns} columns for {len(columns)}")
    return pa.Table.from_arrays(columns, schema=schema)


def check(peer: Peer, name: str, folder: Path, wanted: tuple[int, str], schema: pa.Schema) -> None:
    """A run of which all rows are compared. RefusedError when there are none, or others."""
    text = str(text_of(peer.name, name))
    _, *found = peer.session.ask("CHECK", text, str(folder / f"{peer.name}-{name}"))
    if found[1] == WROTE:
        files = sorted(folder.glob(f"{peer.name}-{name}.*.parquet"))
        try:
            found = list(answer_of(rows_of(files, schema).to_batches()))
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise RefusedError(f"its rows have other columns: {error}"[:300]) from None
        finally:
            for path in files:
                path.unlink()
    if tuple(found) != wanted:
        raise RefusedError(f"other rows: {found[0]:,} of digest {found[1]}, ours are {wanted[0]:,} of digest {wanted[1]}")
    peer.session.ask("TIME", text)  # one more run that warms up


def checked(peers: list[Peer], name: str, folder: Path, wanted: tuple[int, str], schema: pa.Schema) -> list[Peer]:
    """The peers that have the same rows."""
    out = []
    for peer in peers:
        try:
            check(peer, name, folder, wanted, schema)
            out.append(peer)
        except RefusedError as error:
            peer.left_out[name] = str(error)
    return out


def timed(peer: Peer, name: str, wanted: tuple[int, str]) -> float | None:
    """Seconds of a peer's run; None, and left out from now on, when there is none or its rows are others."""
    try:
        seconds, count, digest = peer.session.ask("TIME", str(text_of(peer.name, name)))
        if count != wanted[0] or digest not in (wanted[1], *NO_DIGEST):
            raise RefusedError(f"other rows in a later run: {count:,} of digest {digest}")
    except RefusedError as error:
        peer.left_out[name] = str(error)
        peer.ratios.pop(name, None)
        return None
    return seconds


def compare_query(peers: list[Peer], name: str, folder: Path, repeats: int, inputs: Inputs) -> str:
    """The cells of a query's row: its input, its answer, rates, ratios."""
    text = nexmark.QUERIES[name].read_text()
    wanted, schema = duckdb_answer(inputs.db, text)
    came = input_rows(text, {table: pq.read_metadata(path).num_rows for table, path in inputs.files["Parquet"].items()})
    running = checked(peers, name, folder, wanted, schema)
    mine: dict[str, list[float]] = {peer.name: [] for peer in peers}
    theirs: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(repeats + 1):
        for peer in peers:
            paths = inputs.files[FORMATS[peer.name]]
            seconds, found = swjoin_run(text, paths, folder / f"{name} {peer.name} {turn}", inputs.slaves)
            if found != wanted:
                raise SystemExit(f"{name}: wrong answer: {found}, DuckDB has {wanted}")
            if not turn:  # our warm-up
                continue
            mine[peer.name].append(came / seconds / 1e6)
            other = timed(peer, name, wanted) if peer in running else None
            if other is not None:
                theirs[peer.name].append(came / other / 1e6)
                peer.ratios.setdefault(name, []).append(other / seconds)
            elif peer in running:
                running.remove(peer)
    cells = [f"{came:,}", f"{wanted[0]:,}"]
    for peer in peers:
        cells.append(ranged(mine[peer.name]))
        counted = name in peer.ratios
        cells += [ranged(theirs[peer.name], 3), f"{ranged(peer.ratios[name], 1)} x"] if counted else ["not counted", ""]
    return " | ".join(cells)


def summary(peer: Peer) -> list[str]:
    """The mean over counted queries, and those that are not counted."""
    lines = []
    if peer.ratios:
        medians = {name: statistics.median(ratios) for name, ratios in peer.ratios.items()}
        worst = min(medians, key=lambda name: medians[name])
        mean = math.exp(statistics.fmean(map(math.log, medians.values())))
        lines.append(
            f"{peer.session.system}: swjoin is {mean:.1f} times faster, geometric mean of {len(medians)} queries with the same"
            f" rows; worst: {medians[worst]:.1f} ({worst})"
        )
    lines += [f"- {peer.name}, {name} is not counted: {reason}" for name, reason in peer.left_out.items()]
    return lines


def compare(folder: Path, events: int, repeats: int, only: list[str], slaves: int, names: list[str], heap: str) -> None:
    inputs = inputs_of(folder, events, slaves)
    peers = [Peer(name, Session(name, folder, slaves, heap)) for name in names]
    print(f"\n## Nexmark, {events:,} events, {repeats} turns, swjoin: {slaves} slaves in one process\n")
    columns = "".join(f" swjoin, {FORMATS[name]}, million rows/s | {name} | over {name} |" for name in names)
    print(f"| query | rows in | rows out |{columns}")
    print("|---" * (3 + 3 * len(names)) + "|", flush=True)
    try:
        for name in only or list(nexmark.QUERIES):
            if name in UNDETERMINED:
                for peer in peers:
                    peer.left_out[name] = UNDETERMINED[name]
                continue
            print(f"| {name} | {compare_query(peers, name, folder, repeats, inputs)} |", flush=True)
    finally:
        for peer in peers:
            peer.session.close()
    for peer in peers:
        print(f"\n{peer.session.system}: {peer.session.configuration}\n")
        print("\n".join(summary(peer)))

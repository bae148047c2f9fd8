"""A live session: producers that push in real time, consumers of results, and kills of clients and of a slave.

What: `Session`, its settings; `run_session`, which runs it on real ranks and returns a `SessionResult`; a producer and a
consumer as processes of their own (`python -m benchmarks.workloads.live_session produce|consume ...`).
Why: checks the guarantees of a live run (every row once, whichever process dies; delays below two distribution epochs) in a
real session, against the answer of another engine.
Stays out: faults inside the run (`tests.tools.random_runs`), long runs (`tests.tools.soak.run`), figures and sweeps
(`benchmarks/live.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.workloads.expected_results import digest_of_files, expected
from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import SLOT_US, payload_bytes, slot_count, slot_tuples
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import RunFailed
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from tests.tools.processes import ranks_of

if TYPE_CHECKING:
    from swjoin.connectors.flight.client import Client, Event, Start

PIECE_US = 10_000  # of stream time in a message
SCHEMA = "key: int64, ts: int64, id: int64, payload: binary, sent_us: int64"
_SETTLING_EPOCHS, _SILENT_EPOCHS = 10, 3
_WARM_UP_S = 2.0
_AWAY_S = 1.0  # time until a killed client is restarted
_PATIENCE_S = 120.0  # limit from the end of the streams to that of the session


@dataclass(frozen=True)
class Session:
    """Settings of a session.

    rate_per_s: of each stream. window_us: W. ranks: MPI ranks; 0: one process.
    kills: (`left`, `right` (producers), `consumer`, `slave`, `sink` (the last of several) or `collector`; the share of the
    session before it).
    settings: of the run, as of `--set`.
    """

    rate_per_s: float
    duration_us: int
    epoch_us: int = 100_000
    window_us: int = 1_000_000
    domain: int = 1_000_000
    bias: float = 0.6
    payload_bytes: int = 48
    ranks: int = 5
    seed: int = 1
    checkpoint_us: int = 5_000_000
    kills: tuple[tuple[str, float], ...] = ()
    sink: str = "parquet"
    settings: tuple[str, ...] = field(default=())

    @property
    def workload(self) -> WorkloadConfig:
        return WorkloadConfig(self.rate_per_s, self.duration_us, self.bias, self.domain, self.payload_bytes)

    def config(self) -> dict[str, Any]:
        """As YAML has it."""
        stream = {"flight": {"producers": 1}, "schema": SCHEMA, "key": ["key"], "time": "ts", "time_unit": "us", "id": "id"}
        return {
            "pace": "realtime",
            "seed": self.seed,
            "join": {"within": f"{self.window_us}us"},
            "left": stream,
            "right": stream,
            "cluster": {"partition_count": 24, "distribution_epoch": f"{self.epoch_us}us"},
            "module": {"theta": "32KB", "stream_buffer": "16MB", "window": "2GB"},
            "checkpoint": {"interval": f"{self.checkpoint_us}us"} if self.checkpoint_us else {},
            "sink": {"kind": self.sink},
            "serve": {"listen": "127.0.0.1:0"},
        }


@dataclass
class SessionResult:
    """Results of a session.

    report: run.json. answer: expected count and digest. final, live: those of the two consumers.
    delay_s: production delay outside recoveries. seen_s: from the push of a pair's later tuple to the live consumer.
    """

    report: dict[str, Any]
    answer: tuple[int, str]
    final: tuple[int, str]
    live: tuple[int, str]
    voids: int
    delay_s: dict[str, float]
    seen_s: dict[str, float]
    recoveries: int
    sent_s: dict[str, float]

    def complaints(self) -> list[str]:
        """Errors of the session."""
        found = {
            "the run": (self.report["results"]["count"], self.report["results"]["digest"]),
            "the consumer of final rows": self.final,
            "the live consumer": self.live,
        }
        out = [
            f"{name}: {count} pairs, digest {digest}, expected {self.answer}"
            for name, (count, digest) in found.items()
            if (count, digest) != self.answer
        ]
        return out if self.report["ledger"]["balanced"] else [*out, "the ledger does not balance"]


# ---------------------------------------------------------------- clients


def produce(address: str, stream: int, session: Session, start_s: float) -> None:
    """Push one stream, every piece when it is due; a restarted producer continues."""
    from swjoin.connectors.flight.client import connect

    name = STREAM_NAMES[stream]
    with connect(address) as client, client.producer(name, "p") as producer:
        row, start = 0, producer.row
        for slot in range(slot_count(session.workload)):
            ts, keys = slot_tuples(session.workload, session.seed, stream, slot)
            if row + len(ts) > start:
                for first, stop in _pieces(ts, slot):
                    if row + stop > start:
                        _push(producer, session, stream, start_s, ts, keys, row, max(first, start - row), stop)
            row += len(ts)
        producer.end()


def _pieces(ts: Any, slot: int) -> list[tuple[int, int]]:
    bounds = np.searchsorted(ts, np.arange(slot * SLOT_US, (slot + 1) * SLOT_US + 1, PIECE_US)).tolist()
    bounds[-1] = len(ts)
    return [(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _push(
    producer: Any, session: Session, stream: int, start_s: float, ts: Any, keys: Any, row: int, first: int, stop: int
) -> None:
    import pyarrow as pa

    due_s = start_s + int(ts[stop - 1]) / 1e6
    time.sleep(max(0.0, due_s - time.time()))
    ids = np.arange(row + first, row + stop, dtype=np.int64)
    payload = payload_bytes(ids.astype(np.uint64), session.seed, stream, session.payload_bytes)
    columns = {
        "key": keys[first:stop],
        "ts": ts[first:stop],
        "id": ids,
        "payload": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(session.payload_bytes), len(ids), [None, pa.py_buffer(np.ascontiguousarray(payload))]
        ).cast(pa.binary()),
        "sent_us": np.full(len(ids), int(time.time() * 1e6)),
    }
    producer.push(pa.record_batch(columns))


def consume(address: str, out: Path, start_s: float) -> None:
    """Consume results as they come, without those declared void; write their count, digest and delays. Rows pushed in the first
    two seconds, when everything is loaded for the first time, have no delays."""
    from swjoin.connectors.flight.client import connect

    found: dict[int, list[tuple[int, int]]] = {}
    late: dict[int, list[Any]] = {}
    voids = 0
    with connect(address) as client:
        for event in _all_events(client):
            if event.kind == "void":
                voids += 1
                found = {g: value for g, value in found.items() if g < event.generation}
                late = {g: value for g, value in late.items() if g < event.generation}
            elif event.kind == "rows":
                ids = [event.batch.column(name).to_numpy().astype(np.uint64) for name in ("left_id", "right_id")]
                found.setdefault(event.generation, []).append((len(ids[0]), pair_digest(ids[0], ids[1])))
                sent = np.maximum(*(event.batch.column(f"{side}_sent_us").to_numpy() for side in STREAM_NAMES))
                warm = sent[sent > (start_s + _WARM_UP_S) * 1e6]
                late.setdefault(event.generation, []).append((time.time() * 1e6 - warm).astype(np.int32))
    everything = [item for items in found.values() for item in items]
    delays = [item for items in late.values() for item in items]
    seen = np.concatenate([np.zeros(0, np.int32), *delays])
    seen = seen if len(seen) else np.zeros(1, np.int32)
    quantiles = {name: float(np.quantile(seen, q)) / 1e6 for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    plain = {
        "count": sum(n for n, _ in everything),
        "digest": format_digest(sum(d for _, d in everything) % 2**64),
        "voids": voids,
        "seen_s": quantiles,
    }
    out.write_text(json.dumps(plain))


def _all_events(client: Client) -> Iterator[Event]:
    """The events of a run's results. When the collector has died, they go on at the next one from the last place."""
    from swjoin.connectors.flight.client import ServerGoneError

    place: Start = "start"
    while True:
        try:
            with client.results(place) as results:
                for event in results.events():
                    place = event.place
                    yield event
            return
        except ServerGoneError:
            time.sleep(0.1)


# ---------------------------------------------------------------- the session


class _Processes:
    """The processes of a session, which `end` ends by their pids."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        config = folder / "live.yaml"
        config.write_text(json.dumps(session.config()))
        settings = [word for item in session.settings for word in ("--set", item)]
        ranks = ["-n", str(session.ranks)] if session.ranks else []
        self.run = self._start(
            "run", ["serve", str(config), "--out", str(folder / "run"), *settings, *ranks], stdout=subprocess.PIPE
        )
        assert self.run.stdout is not None
        line = self.run.stdout.readline()
        if not line.startswith("listening"):
            raise RunFailed(f"the run did not start: {line}")
        self.address = line.split()[-1]
        self.start_s = time.time() + 1.0
        (folder / "session.json").write_text(json.dumps(_plain(session)))

    def _start(self, name: str, words: list[str], module: str = "swjoin", **options: Any) -> subprocess.Popen[str]:
        log = (self.folder / f"{name}.log").open("a")
        process = subprocess.Popen([sys.executable, "-m", module, *words], text=True, stderr=log, **options)
        self.processes[name] = process
        return process

    def start(self, name: str) -> None:
        """A client: left, right, consumer (of final rows, into a folder), live."""
        if name == "consumer":
            self._start(name, ["tail", self.address, "-o", str(self.folder / "taken"), "--retry", "10s"])
            return
        words = ["produce", self.address, name] if name in STREAM_NAMES else ["consume", self.address, name]
        self._start(name, [*words, str(self.folder), repr(self.start_s)], "benchmarks.workloads.live_session")

    def kill(self, name: str) -> None:
        if name in ("slave", "sink", "collector"):
            ranks = ranks_of(self.run.pid)
            victim = ranks[sorted(ranks)[1 if name == "collector" else -1]]  # the collector is the first that is left
            subprocess.run(["kill", "-9", str(victim)], check=True)
            return
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(_AWAY_S)
        self.start(name)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def run_session(session: Session, folder: Path) -> SessionResult:
    """Run a session in an empty folder. RunFailed when a process fails that was not killed."""
    folder.mkdir(parents=True, exist_ok=True)
    running = _Processes(session, folder)
    try:
        for name in ("consumer", "live", *STREAM_NAMES):
            running.start(name)
        for name, part in sorted(session.kills, key=lambda kill: kill[1]):
            time.sleep(max(0.0, running.start_s + part * session.duration_us / 1e6 - time.time()))
            running.kill(name)
        sent_s: dict[str, float] = {}
        deadline = running.start_s + session.duration_us / 1e6 + _PATIENCE_S
        for name in (*STREAM_NAMES, "run", "live", "consumer"):
            code = running.processes[name].wait(max(1.0, deadline - time.time()))
            sent_s[name] = time.time() - running.start_s
            if code:
                raise RunFailed(f"{name} ended with {code}: {(folder / f'{name}.log').read_text().strip()[-2000:]}")
    finally:
        running.end()
    return _found(session, folder, sent_s)


def _found(session: Session, folder: Path, sent_s: dict[str, float]) -> SessionResult:
    report = json.loads((folder / "run" / "run.json").read_text())
    live = json.loads((folder / "live.json").read_text())
    width = Bounds.of(-session.window_us, session.window_us, ())
    return SessionResult(
        report,
        expected(session.workload, session.seed, width),
        digest_of_files(folder / "taken"),
        (live["count"], live["digest"]),
        live["voids"],
        undisturbed_delay_s(folder / "run", session),
        live["seen_s"],
        len((report["checkpoints"] or {}).get("recoveries", [])),
        sent_s,
    )


def undisturbed_delay_s(run_dir: Path, session: Session) -> dict[str, float]:
    """Production delay outside recoveries: the 99th percentile, over pairs, of their epochs' own p99, and the largest; seconds.

    A recovery lasts from the notice of a death until ten epochs after the run has resumed. A producer's lasts from the start of
    its stream's silence until as long after its end, ten epochs at least, because the rows due meanwhile come at once.
    """
    import pyarrow.parquet as pq

    rows = pq.read_table(run_dir / "metrics" / "slaves.parquet")
    names = ("epoch_end_us", "pairs", "delay_p99_us", "delay_max_us")
    ends, pairs, p99, most = (rows[name].to_numpy() for name in names)
    calm = pairs > 0
    settling_us = _SETTLING_EPOCHS * session.epoch_us
    for event in pq.read_table(run_dir / "metrics" / "events.parquet").to_pylist():
        if event["kind"] == "recovered":
            start_us = event["time_us"] - event["duration_us"] - 2 * session.epoch_us
            calm &= (ends < start_us) | (ends > event["time_us"] + settling_us)
    for start_us, end_us in _silences(rows):
        calm &= (ends < start_us) | (ends > end_us + max(settling_us, end_us - start_us))
    if not calm.any():
        return {"p99": float("nan"), "max": float("nan"), "share": 0.0}
    order = np.argsort(p99[calm])
    share = np.cumsum(pairs[calm][order]) / pairs[calm].sum()
    at = int(np.searchsorted(share, 0.99))
    found = {"p99": float(p99[calm][order][at]) / 1e6, "max": float(most[calm].max()) / 1e6}
    return {**found, "share": float(pairs[calm].sum() / pairs.sum())}


def _silences(rows: Any) -> list[tuple[int, int]]:
    """Intervals of three epochs or more without tuples of a stream, before its end."""
    ends, epochs = rows["epoch_end_us"].to_numpy(), rows["epoch"].to_numpy()
    found = []
    for name in STREAM_NAMES:
        tuples = rows[f"{name}_tuples"].to_numpy()
        busy = np.unique(epochs[tuples > 0])
        for before, after in itertools.pairwise(busy.tolist()):
            if after - before > _SILENT_EPOCHS:
                found.append((int(ends[epochs == before].min()), int(ends[epochs == after].max())))
    return found


def _plain(session: Session) -> dict[str, Any]:
    return {**session.__dict__, "kills": [list(kill) for kill in session.kills], "settings": list(session.settings)}


def _session(folder: Path) -> Session:
    plain = json.loads((folder / "session.json").read_text())
    plain |= {"kills": tuple((n, p) for n, p in plain["kills"]), "settings": tuple(plain["settings"])}
    return Session(**plain)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("address")
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("start", type=float)
    args = parser.parse_args(argv)
    if args.role == "produce":
        produce(args.address, STREAM_NAMES.index(args.name), _session(args.folder), args.start)
    else:
        consume(args.address, args.folder / "live.json", args.start)
    return 0


if __name__ == "__main__":
    sys.exit(main())

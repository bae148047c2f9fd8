"""A live run with a pair of well-behaved producers and a consumer, for tests that disturb it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from swjoin.connectors.flight.client import Client, connect
from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from tests.tools.oracle import brute_force

LEFT = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("a", pa.float64()), ("name", pa.string()), ("lid", pa.int64())])
RIGHT = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("b", pa.float64()), ("rid", pa.int64())])
ROWS = 20  # of a step, in each stream
STEP_US, STEP_S = 10_000, 0.02
WINDOW_US = 1_000_000
NEAR = (WINDOW_US // STEP_US + 1) * ROWS
KEYS = 1000
PATIENCE_S = 120.0


def spelled(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def tuples(stream: int, rows: int) -> TupleBatch:
    """The first rows that a good producer pushes."""
    keys = np.random.default_rng(stream).integers(0, KEYS, rows)
    ts = np.arange(rows) // ROWS * STEP_US
    return TupleBatch(keys, ts, np.arange(rows, dtype=np.uint64), np.zeros(rows, np.int64))


def part(rows: TupleBatch, first: int, stop: int) -> TupleBatch:
    return TupleBatch(*(column[first:stop] for column in (rows.key, rows.ts, rows.id, rows.arrival_us)))  # type: ignore[arg-type]


def batch(stream: int, first: int, rows: TupleBatch) -> pa.RecordBatch:
    some = part(rows, first, first + ROWS)
    ids = some.id.astype(np.int64)
    values = {"key": some.key, "ts": some.ts, "a": ids * 0.5, "b": ids * 0.5, "lid": ids, "rid": ids}
    schema = (LEFT, RIGHT)[stream]
    return pa.record_batch(
        [pa.array(values[f.name] if f.name != "name" else ["x"] * len(ids), f.type) for f in schema], schema=schema
    )


class Stage:
    """Started at once; `finish` ends the streams. serve, more: of the configuration. words: of the command."""

    def __init__(
        self, folder: Path, serve: dict[str, Any], words: list[str], checkpoint: dict[str, Any], **secrets: Any
    ) -> None:
        self.folder, self.secrets = folder, secrets
        stream = {"flight": {}, "time_unit": "us", "key": ["key"], "time": "ts"}
        config = {
            "join": {"within": "1s"},
            "left": {**stream, "schema": spelled(LEFT), "id": "lid"},
            "right": {**stream, "schema": spelled(RIGHT), "id": "rid"},
            "cluster": {"distribution_epoch": "100ms"},
            "time": {"idle_timeout": "20s"},
            "serve": {"listen": "127.0.0.1:0", **serve},
            **checkpoint,
        }
        folder.mkdir()
        (folder / "live.yaml").write_text(json.dumps(config))
        command = [sys.executable, "-m", "swjoin", "serve", str(folder / "live.yaml"), "--out", str(folder / "run"), *words]
        self._log = (folder / "log").open("w")
        self.process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=self._log)
        self._clients: list[Client] = []
        self._threads: list[threading.Thread] = []
        self._taken: list[tuple[np.ndarray, np.ndarray]] = []
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._checked = self.pushed = 0
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line.startswith("listening at "), (line, self.log)
            self.address = line.split()[-1]
            self._tuples = [tuples(s, 200_000) for s in (0, 1)]
            for work in (self._produce, self._consume):
                thread = threading.Thread(target=self._watched, args=(work, self.connect()), daemon=True)
                thread.start()
                self._threads.append(thread)
            self.check()
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def now_us(self) -> int:
        """Time of the rows that are pushed now."""
        return self.pushed // ROWS * STEP_US

    def connect(self) -> Client:
        client = connect(self.address, **self.secrets)
        self._clients.append(client)
        return client

    def _watched(self, work: Any, client: Client) -> None:
        try:
            work(client)
        except BaseException as error:
            self._errors.append(error)

    def _produce(self, client: Client) -> None:
        with client.producer("left", "good") as left, client.producer("right", "good") as right:
            began_s = time.monotonic()
            while not self._stop.is_set():
                left.push(batch(0, self.pushed, self._tuples[0]))
                right.push(batch(1, self.pushed, self._tuples[1]))
                self.pushed += ROWS
                time.sleep(max(0.0, began_s + self.pushed / ROWS * STEP_S - time.monotonic()))
            left.end()
            right.end()

    def _consume(self, client: Client) -> None:
        for rows in client.results("start"):
            self._taken.append(tuple(rows.column(n).to_numpy().astype(np.uint64) for n in ("left_id", "right_id")))

    def _found(self, first: int, stop: int) -> tuple[int, str]:
        """Count and digest of the pairs taken whose rows are good ones of these numbers."""
        taken = list(self._taken)
        left, right = (np.concatenate([np.empty(0, np.uint64), *(pair[s] for pair in taken)]) for s in (0, 1))
        inside = (left >= first) & (left < stop) & (right >= first) & (right < stop)
        return int(inside.sum()), format_digest(pair_digest(left[inside], right[inside]))

    def _expected(self, first: int, stop: int) -> tuple[int, str]:
        count = digest = 0
        for at in range(first, stop, NEAR):  # rows further apart in number are further apart in time than the window
            a = part(self._tuples[0], at, min(at + NEAR, stop))
            b = part(self._tuples[1], max(first, at - NEAR), min(at + 2 * NEAR, stop))
            i, j = brute_force(a, b, Bounds.of(-WINDOW_US, WINDOW_US, ()))
            count, digest = count + len(i), digest + pair_digest(a.id[i], b.id[j])
        return count, format_digest(digest)

    def check(self, patience_s: float = PATIENCE_S) -> None:
        """The good clients go on: what they push from now on is joined and taken, and all since the last check was right."""
        deadline = time.monotonic() + patience_s
        first, stop = self._checked, self.pushed + 10 * ROWS
        while self.pushed < stop:
            self._alive(deadline, f"{self.pushed} rows are pushed")
        expected = self._expected(first, stop)
        assert expected[0] > 0
        while (found := self._found(first, stop)) != expected:
            self._alive(deadline, f"{found}, expected {expected}")
        self._checked = stop

    def _alive(self, deadline: float, what: str) -> None:
        assert not self._errors, self._errors
        assert self.process.poll() is None, self.log
        assert time.monotonic() < deadline, f"the good clients hang: {what}"
        time.sleep(0.02)

    def finish(self, within_s: float) -> None:
        """End the streams and wait for the run. Its answer and the consumer's are right then."""
        self._stop.set()
        with self.connect() as client:
            self._threads[0].join(PATIENCE_S)
            for name in ("left", "right"):
                client.end(name)  # other producers have come and gone
        code = self.process.wait(within_s)
        self._threads[1].join(PATIENCE_S)
        assert not self._errors, self._errors
        assert code == 0, self.log
        expected = self._expected(0, self.pushed)
        assert self._found(0, self.pushed) == expected
        results = json.loads((self.folder / "run" / "run.json").read_text())["results"]
        assert (results["count"], results["digest"]) == expected

    def kill(self) -> None:
        self._stop.set()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()

"""Target `checkpoint`: folders of stopped runs, spoilt as bytes, or written anew with right checksums over wrong content.

What: `CheckpointTarget`.
Why: what a crash, a disk or a copy has done to a checkpoint must be told before the run goes on; going on from something else
than what was written would be a wrong answer that balances.
Stays out: crashes while a checkpoint is written (`tests.tools.random_runs`).

How far a run had come when it was stopped differs a little between processes; a seed repeats what is spoilt, and where.

Without right checksums: the resumed run gives the undisturbed run's count and digest, or is refused. With them somebody has
forged the checkpoint, and what it says counts; but still there is an answer or a refusal, no crash and no hang.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from swjoin.checkpoint.delivery_log import replay
from swjoin.checkpoint.store import CheckpointStore, read_gateway
from swjoin.cli.run import resumed_job
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.core.errors import SwjoinError
from swjoin.core.storage import AppendedFile
from swjoin.runtime import in_process
from tests.fuzzing.frames import spoil_frame, spoil_words
from tests.fuzzing.harness import Wrong, check_refusal
from tests.fuzzing.mutations import pick_integer, spoil_bytes, spoil_plain

_MOST_THREADS = 60
_ROWS = 90
_BATCH_ROWS = 16
_READ_ALONE = 0.8  # of the inputs are read before a run is made of them


class _After(threading.Event):
    """A request to stop that comes after it has been asked for so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def is_set(self) -> bool:
        self._times -= 1
        return self._times < 0


@contextmanager
def _stopping(times: int) -> Iterator[None]:
    @contextmanager
    def signals(job: Job) -> Iterator[threading.Event]:
        yield _After(times)

    with (
        mock.patch.object(in_process, "stop_signals", signals),
        mock.patch("swjoin.connectors.files.source.BATCH_ROWS", _BATCH_ROWS),
        mock.patch("swjoin.runtime.run_report.versions", return_value={}),  # it looks through all that is installed
    ):
        yield


def _read_alone(folder: Path) -> None:
    """What keepers read of a checkpoint, without a run around it. Raises what they do."""
    job = resumed_job(folder)
    checkpoints = CheckpointStore(folder / "checkpoints", {})
    manifest = checkpoints.newest()
    assert manifest is not None, "resumed_job has found one"
    gateway, owned = manifest.gateways[0], np.ones(job.config.cluster.partition_count, np.bool_)
    read_gateway(checkpoints.path, gateway)
    marks = {"keys.lengths": gateway["keys"][1], "keys.bytes": gateway["keys"][2]} if gateway["keys"][0] else {}
    marks |= {gateway["late"]["name"]: gateway["late"]["mark"]} if job.config.time.late == "side" else {}
    for name, mark in {**marks, "metrics.rows": manifest.plain["sinks"][0]["metrics"]}.items():
        AppendedFile(checkpoints.path / name, mark).close()
    for _ in replay(checkpoints.path, manifest.segments, owned, manifest.alive_us):
        pass


def _late_rows(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of late rows of a checkpoint."""
    return [gateway["late"] for gateway in manifest["gateways"] if gateway["late"] is not None]


def _streams(folder: Path, n: int, *, strings: bool) -> dict[str, Any]:
    """Input files, and where they are."""
    plain: dict[str, Any] = {}
    folder.mkdir()
    for seed, name in enumerate(("left", "right")):
        random = np.random.default_rng(seed)
        ts = np.sort(random.integers(0, 10_000, n)) - random.integers(0, 30, n)
        keys = random.integers(0, 5, n)
        key = pa.array([f"k{k}" for k in keys]) if strings else pa.array(keys)
        table = pa.table({"key": key, "ts": ts, "note": pa.array([f"{name} {i}" for i in range(n)]), "x": pa.array(keys * 1.5)})
        path = folder / f"{name}.{'csv' if strings else 'parquet'}"
        if strings:
            arrow_csv.write_csv(table, path)
        else:
            pq.write_table(table, path, row_group_size=25)
        plain[name] = {"path": str(path), "time_unit": "us"}
    return plain


def _is_in_the_middle(plain: dict[str, Any]) -> bool:
    """Windows that matter: there is much to come that tuples of the log match."""
    return bool(plain["segments"]) and 0.25 * 2 * _ROWS < sum(plain["joined"]) < 0.8 * 2 * _ROWS


@dataclasses.dataclass(frozen=True)
class _Stopped:
    """A run that was stopped: its folder, how many slaves it had, and what it gives in the end."""

    folder: Path
    slaves: int
    answer: tuple[int, str]
    newest: Path


class CheckpointTarget:
    """Runs of three kinds."""

    name = "checkpoint"

    def prepare(self, folder: Path) -> None:
        self.case = folder / "case"
        self.stopped: list[_Stopped] = []
        for number, (strings, sink, moving) in enumerate(
            ((False, "parquet", True), (True, "parquet", False), (False, "count", False))
        ):
            plain = {
                **_streams(folder / f"inputs{number}", _ROWS, strings=strings),
                "join": {"within": "2ms"},
                "time": {"max_out_of_order": "20us", "late": "side" if strings else "drop"},
                "cluster": {"distribution_epoch": "500us", "partition_count": 5},
                "module": {"window": "1MB", "block_bytes": 256, "theta_bytes": 512},
                "sink": {"kind": sink},
                "checkpoint": {"epochs": 2},
            }
            if moving:
                plain["reorganization"] = {"policy": "random", "epoch": "500us"}
            self._stop_one(folder, number, plain)
        self.every = [p.read_bytes() for s in self.stopped for p in sorted((s.folder / "checkpoints").iterdir())]

    def _stop_one(self, folder: Path, number: int, plain: dict[str, Any]) -> None:
        config, slaves = config_from_plain(plain), 1 + number % 2
        target = None if config.sink.kind == "count" else folder / f"whole{number}" / "results"
        with _stopping(10**9):
            report = in_process.run_local(Job(config, target, True, folder / f"whole{number}", None, "fuzz"), False, slaves)
        answer = report["results"]["count"], report["results"]["digest"]
        for times in [*range(12, 60, 2)] * 5:  # when it stops depends on threads, too
            run = folder / f"run{number}"
            shutil.rmtree(run, ignore_errors=True)
            target = None if config.sink.kind == "count" else run / "results"
            with _stopping(times):
                report = in_process.run_local(Job(config, target, True, run, None, "fuzz"), False, slaves)
            manifests = sorted((run / "checkpoints").glob("checkpoint-*.json")) if (run / "checkpoints").exists() else []
            if manifests and _is_in_the_middle(json.loads(manifests[-1].read_text())):
                self.stopped.append(_Stopped(run, slaves, answer, manifests[-1]))
                return
        raise RuntimeError("no run could be stopped in the middle")

    # ------------------------------------------------------------ one input

    def attempt(self, random: Random) -> str:
        stopped = random.choice(self.stopped)
        self.lay_out(stopped)
        choice = random.randrange(7)
        if choice <= 2:
            how, signed = self._spoil_file(random, stopped), False
        elif choice <= 4:
            how, signed = self._spoil_manifest(random, stopped), True
        elif choice == 5:
            how, signed = self._spoil_record(random, stopped), True
        else:
            how, signed = self._spoil_appended(random, stopped), True
        slaves = random.choice((stopped.slaves, stopped.slaves, 1, 3))
        return self.check(stopped, how, signed=signed, slaves=slaves, read_alone=random.random() < _READ_ALONE)

    def lay_out(self, stopped: _Stopped) -> None:
        """The run's folder, to be spoilt."""
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(stopped.folder, self.case)

    def check(self, stopped: _Stopped, how: str, *, signed: bool, slaves: int, read_alone: bool = False) -> str:
        """Go on from what lies in the folder; the answer must be the undisturbed run's, unless it is signed.

        read_alone: first only read it, which takes a tenth of the time and refuses most.
        """
        try:
            if read_alone:
                _read_alone(self.case)
            with _stopping(10**9):
                report = in_process.run_local(resumed_job(self.case), False, slaves)
        except SwjoinError as error:
            check_refusal(
                error,
                str(self.case),
                "inputs",
                "slave",
                "collector",
                "sink",
                "master",
                "gateway",
                "ledger",
                "window",
                ": holds no",
                ": no such file",
                *_FIELDS,
            )
            self._check_threads()
            return f"refused: {how}"
        self._check_threads()
        if not report["complete"]:
            raise Wrong("the resumed run is not complete")
        found = report["results"]["count"], report["results"]["digest"]
        if not signed and found != stopped.answer:
            raise Wrong(f"{how}: {found} instead of {stopped.answer}")
        return f"accepted: {how}"

    @staticmethod
    def _check_threads() -> None:
        if threading.active_count() > _MOST_THREADS:
            raise Wrong(f"{threading.active_count()} threads are left behind")

    # ------------------------------------------------------------ mutations

    def _files(self, stopped: _Stopped) -> list[Path]:
        """Of the newest checkpoint, the manifest first."""
        plain = json.loads(stopped.newest.read_text())
        names = [stopped.newest.name, plain["gateways"][0]["frames"]["name"], *(s["name"] for s in plain["segments"])]
        names += ["keys.lengths", "keys.bytes", "metrics.rows", *(late["name"] for late in _late_rows(plain))]
        return [p for name in names if (p := self.case / "checkpoints" / name).exists()]

    def _spoil_file(self, random: Random, stopped: _Stopped) -> str:
        path = random.choice(self._files(stopped))
        data = path.read_bytes()
        kind = path.name.partition("-")[0] if "-" in path.name else path.name
        if random.random() < 0.05:
            path.unlink()
            return f"{kind}, gone" if path.suffix != ".json" else "manifest before it"
        if random.random() < 0.4 and data:
            spoilt = bytearray(data)
            spoilt[random.randrange(len(data))] ^= 1 << random.randrange(8)
            path.write_bytes(spoilt)
            return f"{kind}, one bit"
        path.write_bytes(spoil_bytes(random, data, self.every, hot=64))
        return f"{kind}, bytes"

    def _sign(self, stopped: _Stopped, plain: dict[str, Any]) -> None:
        """As `checkpoint_folder` does, written once more."""
        plain = {k: v for k, v in plain.items() if k != "checksum"}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        plain["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        (self.case / "checkpoints" / stopped.newest.name).write_text(json.dumps(plain))

    def _spoil_manifest(self, random: Random, stopped: _Stopped) -> str:
        plain = json.loads(stopped.newest.read_text())
        section = random.choice(("", "master", "gateways", "sinks", "segments", "config", ""))
        if section and plain[section]:
            plain[section] = spoil_plain(random, plain[section])
        else:
            plain = spoil_plain(random, plain, keep=("format", "config"))
        self._sign(stopped, plain)
        return f"manifest {section or 'as a whole'}, signed"

    def _spoil_record(self, random: Random, stopped: _Stopped) -> str:
        """A record that is another one, or whose header is, with the right checksum and size."""
        plain = json.loads(stopped.newest.read_text())
        entry = random.choice([plain["gateways"][0]["frames"], *plain["segments"]])
        path = self.case / "checkpoints" / entry["name"]
        data, records, at = path.read_bytes(), [], 0
        while at < len(data):
            length = int.from_bytes(data[at + 8 : at + 16], "little")
            records.append(data[at + 64 : at + 64 + length])
            at += 64 + -(-length // 64) * 64
        if records:
            place, choice = random.randrange(len(records)), random.randrange(6)
            if choice == 0:
                del records[place]
            elif choice == 1:
                records.insert(place, random.choice(records))
            elif choice == 2:
                records[place] = spoil_words(random, records[place])
            else:
                records[place] = spoil_frame(random, records[place])
        out = b""
        for number, record in enumerate(records):
            head = [0x6B63656863, len(record), zlib.crc32(record), number]
            if random.random() < 0.05:
                at = random.randrange(4)
                head[at] = pick_integer(random, head[at])
            out += np.array(head, "<i8").tobytes().ljust(64, b"\0") + record + bytes(-len(record) % 64)
        path.write_bytes(out)
        entry["nbytes"] = len(out)
        entry["count"] = len(records) if random.random() < 0.9 else pick_integer(random, len(records))
        self._sign(stopped, plain)
        return f"{'gateway' if path.suffix == '.frames' else 'segment'}, signed"

    def _spoil_appended(self, random: Random, stopped: _Stopped) -> str:
        """A file that grows, with the right length and checksum in the manifest."""
        plain = json.loads(stopped.newest.read_text())
        marks = {"metrics.rows": plain["sinks"][0]["metrics"], **{late["name"]: late["mark"] for late in _late_rows(plain)}}
        marks |= {"keys.lengths": plain["gateways"][0]["keys"][1], "keys.bytes": plain["gateways"][0]["keys"][2]}
        name = random.choice([n for n in marks if (self.case / "checkpoints" / n).exists()])
        path = self.case / "checkpoints" / name
        data = spoil_bytes(random, path.read_bytes()[: marks[name][0]], self.every)
        path.write_bytes(data)
        marks[name][:] = [len(data), zlib.crc32(data)]
        self._sign(stopped, plain)
        return f"{name}, signed"


_FIELDS = ("config", "cluster", "module", "join", "left", "right", "time", "workload", "reorganization", "nodes", "sink")

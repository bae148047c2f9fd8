"""The checkpoint store: the folder of a run's checkpoints.

What: `CheckpointStore` writes the manifests, finds the newest one, and removes old files; `Manifest`, one checkpoint as read
back; `write_gateway`, `read_gateway`, a gateway's part.
Why: a checkpoint exists exactly when its manifest does, which appears under its name in one step: the newest manifest is a
consistent cut at any time.
Stays out: slaves' logs (`checkpoint.delivery_log`), result files (`connectors`), restoring roles (`checkpoint.checkpointers`).

The last two checkpoints are kept, with the files that either needs. All other files of earlier incarnations (an incarnation is
the time from a start or a recovery to the next) are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from swjoin.checkpoint.delivery_log import Segment, living
from swjoin.checkpoint.manifest import check_manifest
from swjoin.cluster.edge_ledger import summed
from swjoin.cluster.role import CheckpointCompleted, CompleteCheckpoint, Snapshot
from swjoin.cluster.wire import pack_tuples, unpack_tuples
from swjoin.core.batch import I64, TupleBatch, in_memory
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import Background, Executor, Executors, locked, read_records, sync_folder, write_records, write_whole

_LOG = logging.getLogger(__name__)
# 7: without stages; 8: with one collector in place of sinks; 9: with one gateway; 10: without times passed; 11: or delivered
FORMAT = 13
_CHECKED = deque[bytes](maxlen=4)  # digests of the last manifests that were right: all roles of a process read them
_LOCK = ".lock"
_STARTED = "started.json"
APPENDED = ("metrics.rows", "keys.bytes", "keys.lengths")  # append-only; a manifest has their lengths
_KEPT = 2
_MANIFEST = re.compile(r"\.?checkpoint-(\d{6,})\.json(?:\.tmp)?")
# incarnation and generation
_NUMBERED = re.compile(r"\.?(?:gateway|segment)-(\d{4})-\d{4}-(\d{6,})\.(?:frames|log)(?:\.tmp)?")
_LATE = re.compile(r"late-(\d{4})-\d{4}\.rows")  # incarnation; append-only


@dataclass(frozen=True)
class PlanState:
    """What a plan had done up to a checkpoint. stages: by number, {joined, null_key: [left, right], produced, alive_us,
    joined_until_us: watermarks of its ports}. edges: as `EdgeLedger.to_plain`, sums over all roles."""

    stages: list[dict[str, Any]]
    edges: dict[str, dict[str, list[int]]]

    @property
    def alive(self) -> dict[int, tuple[int, int]]:
        """By stage: left and right tuples below these times match nothing to come."""
        return {number: (stage["alive_us"][0], stage["alive_us"][1]) for number, stage in enumerate(self.stages)}

    @staticmethod
    def of(slaves: list[dict[str, Any]], gateways: list[dict[str, Any]], before: PlanState | None) -> PlanState:
        """slaves, gateways: parts of a checkpoint. before: at the restored one."""
        stages: list[dict[str, Any]] = []
        for number in range(1 + max(slave["stage"] for slave in slaves)):
            mine = [slave for slave in slaves if slave["stage"] == number]
            null_keys = [list(slave["null_key"].values()) for slave in mine]
            stage = {
                "joined": [sum(slave["joined"][i] for slave in mine) for i in (0, 1)],
                "null_key": [sum(rows[i] for rows in null_keys) for i in (0, 1)],
                "produced": sum(slave["produced"] for slave in mine),
                "alive_us": [min(slave["needed_us"][i] for slave in mine) for i in (0, 1)],
                "joined_until_us": [min(slave["times_us"][i] for slave in mine) for i in (0, 1)],
            }
            if before is not None:
                then = before.stages[number]
                stage["joined"] = [a + b for a, b in zip(stage["joined"], then["joined"], strict=True)]
                stage["null_key"] = [a + b for a, b in zip(stage["null_key"], then["null_key"], strict=True)]
                stage["produced"] += then["produced"]
            stages.append(stage)
        ledgers = [*(g["state"]["edges"] for g in gateways), *(slave["edges"] for slave in slaves)]
        return PlanState(stages, summed([*ledgers, *([] if before is None else [before.edges])]))


@dataclass(frozen=True)
class Manifest:
    """One checkpoint. generation: the one that ends with it. plain: content of the file."""

    path: Path
    generation: int
    plain: dict[str, Any]

    @property
    def segments(self) -> list[Segment]:
        return [Segment.from_plain(s) for s in self.plain["segments"]]

    @property
    def alive_us(self) -> tuple[int, int]:
        left, right = self.plain["alive_us"]
        return left, right

    @property
    def alive(self) -> dict[int, tuple[int, int]]:
        """`alive_us` of every stage of a plan; of the join of two streams as stage 0."""
        return {0: self.alive_us} if self.plan is None else self.plan.alive

    @property
    def plan(self) -> PlanState | None:
        """The counts of a plan's stages and edges; None for the join of two streams."""
        stages = self.plain.get("stages")
        return None if stages is None else PlanState(stages, self.plain["edges"])

    def joined_until_us(self, group_count: int | None = None) -> I64:
        """Watermarks up to which each partition-group had been joined: int64 (groups, 2).

        At least those of the checkpoint before: after a resumption a slave's watermarks may begin below the ones that its
        partition-groups had at their earlier slaves, and their unmatched rows must not be emitted once more.
        """
        owner = np.array(self.plain["master"]["state"]["controller"]["owner"], np.int64)
        times = np.array(self.plain["joined_until_us"], np.int64).reshape(-1, 2)[owner]
        earlier = np.array(self.plain.get("joined_before_us", times), np.int64).reshape(-1, 2)
        if not len(times) == len(earlier) == (group_count or len(times)):
            raise RunFailed(f"{self.path}: corrupt checkpoint ({len(times)} partition-groups of {group_count})")
        joined: I64 = np.maximum(times, earlier)
        return joined

    @property
    def gateways(self) -> list[dict[str, Any]]:
        """The parts of all gateways, by number."""
        return list(self.plain["gateways"])

    @property
    def joined(self) -> list[int]:
        """Left and right tuples that slaves had joined."""
        return list(self.plain["joined"])

    @property
    def produced(self) -> int:
        """Pairs that slaves had produced."""
        return int(self.plain["produced"])

    @property
    def files(self) -> set[str]:
        """Names of all files of this checkpoint in the folder, its own included."""
        frames = (gateway["frames"]["name"] for gateway in self.gateways)
        late = (gateway["late"]["name"] for gateway in self.gateways if gateway["late"] is not None)
        return {self.path.name, *frames, *late, *(s.name for s in self.segments)}


def _parts(command: CompleteCheckpoint, kind: str) -> list[dict[str, Any]]:
    """The parts of all roles of a kind, by number."""
    count = sum(part.startswith(f"{kind} ") for part in command.parts)
    return [command.parts[f"{kind} {number}"] for number in range(count)]


def first_epoch_of(manifest: Manifest | None) -> int:
    """The distribution epoch with which a run goes on from this checkpoint; 0 without one."""
    return 0 if manifest is None else int(manifest.plain["epoch"]) + 1


def checksum(plain: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in plain.items() if k != "checksum"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest. RunFailed, with the file, when it is corrupt; UserError when another version wrote it."""
    try:
        data = path.read_bytes()
        plain = json.loads(data)
    except OSError as error:
        raise RunFailed(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{path}: corrupt checkpoint ({error})") from None
    digest = hashlib.sha256(data).digest()
    if digest not in _CHECKED:
        _check(path, plain)
        _CHECKED.append(digest)
    return Manifest(path, plain["generation"], plain)


def _check(path: Path, plain: Any) -> None:
    if not isinstance(plain, dict) or "format" not in plain or "checksum" not in plain:
        raise RunFailed(f"{path}: corrupt checkpoint (no format or no checksum)")
    if plain["format"] != FORMAT:
        old = str(plain["format"])[:50]
        raise UserError(
            f"{path}: a checkpoint of format {old}; this version reads format {FORMAT}: resume with the version of swjoin that "
            f"wrote it, or remove the checkpoints and run from the start"
        )
    if plain["checksum"] != checksum(plain):
        raise RunFailed(f"{path}: corrupt checkpoint (its checksum is another one); remove it to resume from the one before")
    check_manifest(path, plain)


def read_gateway(folder: Path, part: dict[str, Any]) -> Snapshot:
    """A gateway's part. RunFailed, with file and record, when it is corrupt."""
    path = folder / part["frames"]["name"]
    records = read_records(path, part["frames"]["nbytes"], part["frames"]["count"])
    tuples: dict[str, list[TupleBatch]] = {}
    for name, count in part["tuples"]:
        tuples[name] = []
        for _ in range(count):  # there cannot be more than there are records
            try:
                tuples[name].append(unpack_tuples(next(records)))
            except (StopIteration, RunFailed) as error:
                raise RunFailed(f"{path}: {name}: {str(error) or 'a record is missing'}") from None
    for _ in records:
        raise RunFailed(f"{path}: more records than the checkpoint says")
    return Snapshot(part["state"], tuples)


def write_gateway(path: Path, snapshot: Snapshot, extra: dict[str, Any]) -> dict[str, Any]:
    """Make a gateway's part durable; returns its content. extra: further content."""
    counts = [[name, len(batches)] for name, batches in snapshot.tuples.items()]
    records = (pack_tuples(in_memory(batch)) for batches in snapshot.tuples.values() for batch in batches)
    nbytes = write_records(path, records)
    frames = {"name": path.name, "nbytes": nbytes, "count": sum(len(b) for b in snapshot.tuples.values())}
    return {"state": snapshot.plain, "frames": frames, "tuples": counts, **extra}


def manifests_in(folder: Path) -> list[Path]:
    """Paths of all manifests, the newest last."""
    if not folder.is_dir():
        return []
    found = [(m, p) for p in folder.iterdir() if (m := _MANIFEST.fullmatch(p.name)) and p.suffix == ".json"]
    return [p for m, p in sorted(found, key=lambda item: int(item[0][1])) if not p.name.startswith(".")]


def kept_manifests(folder: Path) -> list[Manifest]:
    """The checkpoints that are kept, the newest last."""
    return [read_manifest(path) for path in manifests_in(folder)[-_KEPT:]]


class CheckpointStore:
    """The checkpoints of one run. identity: the part of every manifest that describes the run (configuration, command)."""

    def __init__(self, path: Path, identity: dict[str, Any], executors: Executors = Background) -> None:
        self.path = path
        self._executors = executors
        self._identity = identity
        self._restored: Manifest | None = None  # the checkpoint that this incarnation started from
        self._kept: list[Manifest] = []  # the newest last
        self.incarnation = 0
        self._background: Executor | None = None
        self._locked: TextIO | None = None

    # ------------------------------------------------------------ reading

    def manifests(self) -> list[Path]:
        """Paths of all manifests, the newest last."""
        return manifests_in(self.path)

    def newest(self) -> Manifest | None:
        """The checkpoint to resume from. RunFailed when it is corrupt: choosing an older one is the user's decision."""
        paths = self.manifests()
        return read_manifest(paths[-1]) if paths else None

    # ------------------------------------------------------------ before the first checkpoint

    def note_start(self) -> None:
        """Note that the run can be resumed without a checkpoint: from rows that a live run has accepted."""
        write_whole(self.path / _STARTED, json.dumps(self._identity).encode())

    def started(self) -> dict[str, Any] | None:
        """Identity of a run that accepted rows and made no checkpoint; None: there is none."""
        path = self.path / _STARTED
        if not path.exists() or not self.accepted_rows:
            return None
        try:
            plain: dict[str, Any] = json.loads(path.read_bytes())
            names = ("config", "config_digest", "inputs", "command", "run_dir")
            return {**{name: plain[name] for name in names}, "run_id": plain.get("run_id")}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise RunFailed(f"{path}: corrupt, or cannot be read ({error})") from None

    @property
    def accepted_rows(self) -> list[Path]:
        """Files of accepted rows (`connectors.flight.source`)."""
        return list((self.path / "intake").glob("*.spool"))

    # ------------------------------------------------------------ writing

    def begin(self, base: Manifest | None, done: Callable[[Any], None]) -> int:
        """Start or recover, from `base` if given; returns the number of this incarnation.

        done: takes events of durable parts, or an exception; called in a thread.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be made for checkpoints ({error.strerror})") from None
        self.end()
        self._lock()
        self._restored = base
        self._kept = [] if base is None else kept_manifests(self.path)
        found = [_NUMBERED.fullmatch(p.name) or _LATE.fullmatch(p.name) for p in self.path.iterdir()]
        self.incarnation = 1 + max([self.incarnation, *(int(m[1]) for m in found if m is not None)])
        self._background = self._executors("checkpoints", done)
        return self.incarnation

    def _lock(self) -> None:
        """Exclude other writers: ranks of a run whose launcher was killed may still be alive."""
        if self._locked is not None:
            return
        refusal = f"{self.path}: another process writes checkpoints there; is the run still going on?"
        self._locked = locked(self.path / _LOCK, refusal)

    def unlock(self) -> None:
        """Let other processes write."""
        if self._locked is not None:
            self._locked.close()
            self._locked = None
            (self.path / _LOCK).unlink(missing_ok=True)

    @property
    def kept(self) -> list[Manifest]:
        """The stored checkpoints, the newest last."""
        return self._kept

    def end(self) -> None:
        """Finish pending writes."""
        if self._background is not None:
            self._background.end()
            self._background = None

    def submit(self, operation: Callable[[], Any]) -> None:
        """Run an operation in the background, after all submitted before."""
        assert self._background is not None, "submit before begin"
        self._background.submit(operation)

    def complete(self, command: CompleteCheckpoint) -> None:
        """Write the manifest in the background; `done` gets CheckpointCompleted."""
        self.submit(lambda: self._complete(command))

    def _complete(self, command: CompleteCheckpoint) -> CheckpointCompleted:
        slaves, gateways = _parts(command, "slave"), _parts(command, "gateway")
        restored, last = self._restored, self._kept[-1] if self._kept else None
        joined = [sum(s["joined"][i] for s in slaves) + (0 if restored is None else restored.joined[i]) for i in (0, 1)]
        produced = sum(s["produced"] for s in slaves) + (0 if restored is None else restored.produced)
        before = None if restored is None else restored.plan
        plan = PlanState.of(slaves, gateways, before) if "stage" in slaves[0] else None
        more = {} if plan is None else {"stages": plan.stages, "edges": plan.edges}
        kept = [] if last is None else living(last.segments, {0: command.alive_us} if plan is None else plan.alive)
        older = [segment.to_plain() for segment in kept]
        plain: dict[str, Any] = {
            "format": FORMAT,
            **self._identity,
            "generation": command.generation,
            "incarnation": self.incarnation,
            "epoch": int(command.epoch),
            "clock_us": command.clock_us,
            "alive_us": list(command.alive_us),
            "joined": joined,
            "produced": produced,
            "joined_until_us": [slave["times_us"] for slave in slaves],
            "segments": [*older, *(s["segment"] for s in slaves if s["segment"] is not None)],
            "master": command.parts["master"],
            "gateways": gateways,
            "sinks": _parts(command, "sink"),
            **more,
        }
        if last is not None and plan is None:
            plain["joined_before_us"] = last.joined_until_us().tolist()
        plain["checksum"] = checksum(plain)
        path = self.path / f"checkpoint-{command.generation:06d}.json"
        write_whole(path, json.dumps(plain).encode())
        self._kept = [*self._kept, Manifest(path, command.generation, plain)][-_KEPT:]
        stored_bytes = self._clear_up(command.generation)
        _LOG.debug("%s: complete, of epoch %d; %d bytes in all", path, command.epoch, stored_bytes)
        return CheckpointCompleted(command.generation, stored_bytes)

    def _clear_up(self, generation: int) -> int:
        """Remove files that no stored checkpoint needs; returns the bytes of the remaining ones."""
        needed = {name for manifest in self._kept for name in manifest.files}
        total = 0
        for path in list(self.path.iterdir()):
            numbers, late = _NUMBERED.fullmatch(path.name), _LATE.fullmatch(path.name)
            growing = numbers is not None and int(numbers[1]) == self.incarnation and int(numbers[2]) > generation
            growing |= late is not None and int(late[1]) == self.incarnation
            ours = numbers is not None or late is not None or _MANIFEST.fullmatch(path.name) is not None
            if ours and path.name not in needed and not growing:
                path.unlink(missing_ok=True)
            elif path.name in needed or not ours:
                total += path.stat().st_size
        return total

    def remove(self) -> None:
        """Remove all checkpoints: the run is complete."""
        self.end()
        for path in self.manifests():  # first, the newest last: without manifests there is no checkpoint
            path.unlink()
        sync_folder(self.path)
        for path in self.path.iterdir():
            if any(named.fullmatch(path.name) for named in (_NUMBERED, _LATE, _MANIFEST)) or path.name in (*APPENDED, _STARTED):
                path.unlink(missing_ok=True)
        self.unlock()
        if not any(self.path.iterdir()):
            self.path.rmdir()

"""Checkpointers: write each role's part of a checkpoint to the store, and restore a role from it.

What: `MasterCheckpointer`: the store, and the master's own state. `GatewayCheckpointer`: source positions, dictionary of keys,
late rows, and the gateway's own state. `CollectorCheckpointer`: result files, rows of metrics, and the collector's state.
`SlaveCheckpointer`: the log of deliveries, and the windows rebuilt from it.
Why: the roles decide what is saved and when; files, threads and positions are handled here, for all runtimes alike.
Stays out: when a checkpoint is made (`cluster.master.checkpoint_coordinator`), formats (`checkpoint.store`,
`checkpoint.delivery_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.checkpoint.delivery_log import SegmentLog, replay, replay_epochs
from swjoin.checkpoint.manifest import check_gateway_state, check_master_state, restoring
from swjoin.checkpoint.store import CheckpointStore, Manifest, read_gateway, read_manifest, write_gateway
from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import teams_of
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.network_placement import placed_again
from swjoin.cluster.messages import PartSaved
from swjoin.cluster.role import MASTER, RoleId, SavePart, Snapshot
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job, leaves_rows_out
from swjoin.config.run import RunConfig, digest, to_plain
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.files.late_rows import LATE_ROW_BYTES
from swjoin.connectors.files.run_files import METRICS_ROW_BYTES, MetricsFile
from swjoin.connectors.files.sink import sink_of_file
from swjoin.connectors.sink import Sink
from swjoin.connectors.source import Source, is_live, is_shared
from swjoin.core.batch import I64, LEFT, STREAM_NAMES, TupleBatch, check_layout, in_memory
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import Dictionary
from swjoin.core.sequence_numbers import stamped_layout
from swjoin.core.storage import AppendedFile, Background, Executor, Executors
from swjoin.core.version import __version__
from swjoin.operators.as_of_join import AsOfJoin
from swjoin.operators.kept_rows import RowsOperator
from swjoin.plan.logical import LogicalPlan
from swjoin.plan.stages import cut
from swjoin.plan.subclusters import Subclusters


def checkpoint_folder(job: Job, executors: Executors = Background) -> CheckpointStore:
    """The checkpoint store of a job. UserError when the folder has checkpoints of another run, or of one to be resumed."""
    path = job.checkpoints
    assert path is not None, "the job makes no checkpoints"
    identity = {
        "config": to_plain(job.config),
        "config_digest": digest(job.config.with_gateways(1).with_sinks(1)),  # a resumption may change their numbers
        "inputs": input_files(job),
        **job.plan_keys,
        "command": job.command,
        "run_dir": str(job.run_dir),
        "run_id": job.run_id,
        "swjoin": __version__,
    }
    folder = CheckpointStore(path, identity, executors)
    manifest = folder.newest()
    if manifest is None:
        if job.resumes and folder.started() is None:
            raise UserError(f"{path}: holds no checkpoint to resume from; run it from the start")
        if not job.resumes and folder.accepted_rows:
            raise UserError(
                f"{path}: holds rows that a run has accepted and not joined; resume it with --resume, or remove them"
            )
        return folder
    if not job.resumes:
        raise UserError(f"{path}: holds checkpoints of a run that did not end; resume it with --resume, or remove them")
    if manifest.plain.get("plan") != identity.get("plan"):
        raise UserError(f"{manifest.path}: is a checkpoint of another plan")
    if manifest.plain["config_digest"] != identity["config_digest"]:
        raise UserError(f"{manifest.path}: is a checkpoint of another configuration")
    for old, new in zip(manifest.plain["inputs"], identity["inputs"], strict=False):
        if old != new:
            sizes = f"{old[1]} bytes then, {new[1]} now" if old[1] != new[1] else "as many bytes, but other ones"
            raise UserError(f"{new[0]}: has changed since the checkpoint ({sizes}); run anew")
    if len(manifest.plain["inputs"]) != len(identity["inputs"]):
        raise UserError(f"{manifest.path}: had {len(manifest.plain['inputs'])} input files, now there are others; run anew")
    return folder


def input_files(job: Job) -> list[list[Any]]:
    """Path, size and a checksum of every input file, by which a resumed run detects changed input."""
    from swjoin.connectors.files.formats import edges_checksum
    from swjoin.connectors.files.inputs import file_size, list_files

    paths = [p for stream in job.config.streams if stream.path is not None for p in list_files(stream.path)]
    return [[str(path), file_size(path), edges_checksum(path)] for path in paths]


def owners_of(
    manifest: Manifest | None, config: RunConfig, plan: LogicalPlan, width: int, hosts: Sequence[int] = ()
) -> list[list[int]]:
    """Owners of the partition-groups of every stage of a plan when a run goes on with so many slave ranks; none without a
    checkpoint. hosts: numbers of these ranks' hosts, if they are known. RunFailed when it is corrupt."""
    if manifest is None:
        return []
    strategy = config.cluster.strategy
    stages = cut(plan, strategy)
    of = Subclusters.of(stages, width, strategy, config.cluster.instances)
    state = manifest.plain["master"]["state"]
    check_master_state(manifest.path, state, manifest.generation, manifest.plain["epoch"], config.cluster.partition_count)
    owners, others = [], False
    with restoring(manifest.path):
        for stage, plain in enumerate([state["controller"], *state.get("more_stages", [])]):
            controller = Controller(config, of.counts[stage], stage)
            controller.restore(plain, 0)
            owners.append(controller.map.owner.tolist())
            others |= plain["slaves"] != of.counts[stage]
        if others:
            teams = teams_of(stages, of, config.cluster.partition_count, hosts)
            for stage, placed in placed_again(state.get("traffic", {}), teams, config, of.counts).items():
                owners[stage] = placed.tolist()
    return owners


class MasterCheckpointer:
    """Saves and restores the master; opens the store. UserError as `checkpoint_folder`."""

    def __init__(self, job: Job, executors: Executors = Background) -> None:
        self.folder = checkpoint_folder(job, executors)
        self._job = job
        self.manifest: Manifest | None = None  # the checkpoint that the roles were restored from

    def begin(self, done: Callable[[RoleId, Any], None]) -> Manifest | None:
        """Start or recover; returns the checkpoint to resume from. done: called with what has become durable, and the role that
        it is for."""
        self.folder.end()
        manifest = self.manifest = self.folder.newest()

        self.folder.begin(manifest, partial(done, MASTER))
        if manifest is None and self._job.config.pushed:
            self.folder.note_start()
        return manifest

    @property
    def manifest_name(self) -> str | None:
        """Name of the checkpoint that all roles resume from."""
        return None if self.manifest is None else self.manifest.path.name

    def restore(self, master: Master, manifest: Manifest | None, now_us: int) -> None:
        """Restore a new master."""
        if manifest is None:
            return
        state, groups = manifest.plain["master"]["state"], master.config.cluster.partition_count
        check_master_state(manifest.path, state, manifest.generation, manifest.plain["epoch"], groups)
        with restoring(manifest.path):
            if manifest.plan is None:
                manifest.joined_until_us(groups)  # the next checkpoint takes it over
            master.restore(state, now_us, *_splits_of(manifest))

    def save(self, generation: int, snapshot: Snapshot) -> None:
        """The master's part of a checkpoint; `done` gets PartSaved."""
        self.folder.submit(lambda: PartSaved(generation, "master", {"state": snapshot.plain}))

    def close(self) -> None:
        self.folder.end()
        self.folder.unlock()


def dealt_before(manifest: Manifest | None) -> bool:
    """Whether gateways read splits that the master dealt out when this checkpoint was made."""
    return manifest is not None and "splits" in manifest.plain["master"]["state"]


def shared_before(manifest: Manifest | None) -> bool:
    """Whether the inputs were read in splits, also those of live streams, when this checkpoint was made."""
    return manifest is not None and "splits" in manifest.gateways[0]["state"]


def shares(config: RunConfig, manifest: Manifest | None) -> bool:
    """Whether gateways read splits. manifest: of the checkpoint that is to be restored."""
    return config.gateway_count > 1 or shared_before(manifest)


def known_keys(manifest: Manifest | None) -> Dictionary | None:
    """The codes of keys that are no integers from the time when the run had one gateway; None without any. RunFailed when their
    files are corrupt."""
    if manifest is None or not manifest.gateways[0]["keys"][0]:
        return None
    dictionary, files = Dictionary(), _open_keys(manifest.path.parent, manifest.gateways[0]["keys"])
    _fill(dictionary, files)
    for file in files:
        file.close()
    return dictionary


def _open_keys(folder: Path, saved: Sequence[Any]) -> tuple[AppendedFile, AppendedFile]:
    """The files of keys. saved: of a checkpoint, the number of keys and both marks."""
    count, lengths, data = saved
    if lengths[0] != 8 * count:
        raise RunFailed(f"{folder / 'keys.lengths'}: holds {lengths[0]} bytes for {count} keys")
    return AppendedFile(folder / "keys.lengths", lengths), AppendedFile(folder / "keys.bytes", data)


def _fill(dictionary: Dictionary, files: tuple[AppendedFile, AppendedFile]) -> None:
    with restoring(files[0].path):
        lengths, data = (np.frombuffer(file.read(), kind) for file, kind in zip(files, ("<i8", "u1"), strict=True))
        dictionary.restore(lengths.astype(np.int64), data.astype(np.uint8))


def deals(config: RunConfig, manifest: Manifest | None) -> bool:
    """Whether gateways read splits that the master deals out. manifest: as of `shares`."""
    return shares(config, manifest) and not config.live


def _splits_of(manifest: Manifest) -> tuple[list[dict[str, Any]], list[list[list[int]]]]:
    """What was left to deal of every stream, and the splits that gateways were reading, as `SplitDealer.restore` takes both."""
    states = [gateway["state"] for gateway in manifest.gateways]
    streams = range(len(states[0]["streams"]))
    if not dealt_before(manifest):
        rows = [state["counts"]["tuples"] for state in states[0]["streams"]]
        return [{"partial": [], "next_row": row} for row in rows], [[] for _ in streams]
    splits: list[dict[str, Any]] = manifest.plain["master"]["state"]["splits"]
    return splits, [[state["splits"][stream] for state in states if state["splits"][stream]] for stream in streams]


class GatewayCheckpointer:
    """Saves and restores a gateway and its sources. folder: of the run's checkpoints. number: of the gateway."""

    def __init__(
        self, job: Job, sources: Sequence[Source], folder: Path, number: int = 0, executors: Executors = Background
    ) -> None:
        self._folder, self._number, self._executors = folder, number, executors
        self.late_rows: AppendedFile | None = None
        self._keys: tuple[AppendedFile, AppendedFile] | None = None
        self._saved_keys: list[Any] = [0, [0, 0], [0, 0]]  # of the checkpoint
        self._job, self._sources = job, sources
        self._keys_saved = self._incarnation = 0
        self._background: Executor | None = None

    def begin(self, manifest: Manifest | None, incarnation: int, done: Callable[[Any], None]) -> None:
        """Start or recover, from this checkpoint if one is given: files that grow are cut to its lengths. done: takes
        PartSaved, or an exception, in a thread."""
        self.end()
        self._background, self._incarnation = self._executors(f"gateway {self._number}", done), incarnation
        if leaves_rows_out(self._job.config):
            self._close(self.late_rows)
            self.late_rows = AppendedFile(self._folder / f"late-{incarnation:04d}-{self._number:04d}.rows")
            for share in self._shares(manifest):
                if share["late"] is not None:
                    rows = AppendedFile(self._folder / share["late"]["name"], share["late"]["mark"], LATE_ROW_BYTES)
                    self.late_rows.append(rows.read())
                    rows.close()
        self._saved_keys = [0, [0, 0], [0, 0]] if manifest is None else manifest.gateways[0]["keys"]
        if self._dictionary is not None:
            for file in self._keys or ():
                self._close(file)
            self._keys_saved, self._keys = self._saved_keys[0], _open_keys(self._folder, self._saved_keys)

    def _shares(self, manifest: Manifest | None) -> list[dict[str, Any]]:
        """The parts that this gateway takes over: of n gateways, gateway i has those of i, i + n, ... of the checkpoint."""
        return [] if manifest is None else manifest.gateways[self._number :: self._job.config.gateway_count]

    @property
    def _dictionary(self) -> Any:
        return self._sources[LEFT].dictionary

    @staticmethod
    def _close(file: AppendedFile | None) -> None:
        if file is not None:
            file.close()

    def restore(self, gateway: Gateway, manifest: Manifest | None, owner: I64, active: Sequence[int]) -> None:
        """Restore a new gateway and its sources; without a checkpoint the sources are at the start. owner, active: the
        placement that the restored master has."""
        if manifest is None:
            for source in self._sources:
                source.seek(0)
            return
        groups = gateway.config.cluster.partition_count
        for number, part in enumerate(manifest.gateways):
            check_gateway_state(manifest.path, number, part["state"], manifest.plain["epoch"], groups, len(self._sources))
        snapshots = [self._with_keys(read_gateway(self._folder, part)) for part in self._shares(manifest)]
        with restoring(manifest.path):
            for snapshot in snapshots:
                for what, batches in snapshot.tuples.items():
                    self._check_tuples(gateway, what, [in_memory(batch) for batch in batches])
            gateway.place(owner, active)
            gateway.restore([part["state"] for part in manifest.gateways], snapshots)
        self._restore_keys()
        for stream, source in enumerate(self._sources):
            rows = gateway.streams[stream].counts.tuples
            if is_live(source):
                positions = [part["positions"][stream] for part in manifest.gateways]
                with restoring(manifest.path):
                    position = source.taken_over(positions) if is_shared(source) and source.shared else positions[0]
                source.resume_at(rows, position)
            elif gateway.splits is None:
                source.seek(rows)

    def _with_keys(self, snapshot: Snapshot) -> Snapshot:
        """The tuples of a gateway that gave keys codes, with their keys as they travel now."""
        source = self._sources[LEFT]
        known = source.known_keys if isinstance(source, EncodedSource) else None
        if known is None:
            return snapshot

        def sent(batch: TupleBatch) -> TupleBatch:
            return batch if batch.columns is not None else replace(batch, columns=known.of_codes(batch.key))

        return replace(snapshot, tuples={what: [sent(in_memory(b)) for b in found] for what, found in snapshot.tuples.items()})

    def _restore_keys(self) -> None:
        """Fill an empty dictionary; otherwise it is this process' own, which has more keys."""
        dictionary = self._dictionary
        if dictionary is None or self._keys is None or len(dictionary):
            return
        _fill(dictionary, self._keys)

    def _check_tuples(self, gateway: Gateway, what: str, batches: list[TupleBatch]) -> None:
        """RunFailed unless saved tuples have the payload, or the columns, of their stream. what: its name, and a queue's."""
        name, _, queue = what.rpartition(" ")
        if gateway.feeds is None:
            layout = self._sources[STREAM_NAMES.index(name)].layout
            if queue == "buffered" and gateway.order is not None:
                layout = stamped_layout(layout)
            check_layout(batches, layout, what)
            return
        names = gateway.feeds.columns_of(int(name.removeprefix("source ")))
        for batch in batches:
            if ([] if batch.columns is None else batch.columns.names) != list(names):
                raise RunFailed(f"{what}: tuples with other columns than {', '.join(names)}")

    def forget(self, kept: Sequence[Manifest]) -> None:
        """After a completed checkpoint: release rows of live sources before the oldest one that is kept."""
        for stream, source in enumerate(self._sources):
            if not kept or not is_live(source):
                continue
            if is_shared(source) and source.shared:
                source.forget_shared([part["positions"][stream] for part in kept[0].gateways])
            else:
                source.forget(kept[0].gateways[self._number]["state"]["streams"][stream]["counts"]["tuples"])

    def save(self, generation: int, snapshot: Snapshot) -> None:
        """The gateway's part of a checkpoint; `done` gets PartSaved."""
        extra: dict[str, Any] = {"late": None, "keys": self._saved_keys}
        extra["positions"] = [source.position() if is_live(source) else {} for source in self._sources]
        files: list[AppendedFile] = []
        if self.late_rows is not None:
            extra["late"] = {"name": self.late_rows.path.name, "mark": self.late_rows.flush()}
            files.append(self.late_rows)
        if self._keys is not None:
            lengths, data = self._dictionary.entries(self._keys_saved)
            self._keys_saved += len(lengths)
            self._keys[0].append(lengths.astype("<i8").tobytes())
            self._keys[1].append(data.tobytes())
            extra["keys"] = [self._keys_saved, self._keys[0].flush(), self._keys[1].flush()]
            files += self._keys
        path = self._folder / f"gateway-{self._incarnation:04d}-{self._number:04d}-{generation:06d}.frames"

        def write() -> PartSaved:
            for file in files:
                file.sync()
            return PartSaved(generation, f"gateway {self._number}", write_gateway(path, snapshot, extra))

        assert self._background is not None, "save before begin"
        self._background.submit(write)

    def end(self) -> None:
        """Finish pending writes."""
        if self._background is not None:
            self._background.end()
            self._background = None

    def close(self) -> None:
        self.end()
        for file in self._keys or ():
            file.close()


class CollectorCheckpointer:
    """Saves and restores a sink."""

    def __init__(self, job: Job, sink: Sink, executors: Executors = Background) -> None:
        assert job.checkpoints is not None, "the job makes no checkpoints"
        self._path, self._job, self._sink, self._executors = job.checkpoints, job, sink, executors
        self._part = ""
        self._names: list[str] = []  # of all result files up to the last checkpoint started
        self._sealed: dict[int, list[str]] = {}
        self._background: Executor | None = None
        self._metrics: MetricsFile | None = None
        self.added: list[str] = []  # queries that this checkpoint is the first to have

    def begin(self, collector: Collector, manifest_name: str | None, done: Callable[[Any], None]) -> MetricsFile | None:
        """Start or recover: restore the sink, its results and its metrics to this checkpoint. With other numbers of sinks than
        then, sink i of n takes over the tallies of the sinks i, i + n, ... of the checkpoint, and the files that bear their
        numbers."""
        self.end()
        self._background = self._executors("results", done)
        number, sinks, generation = collector.number, self._job.config.sink_count, 0
        contents: list[dict[str, Any]] = []
        names: list[str] = []
        self._part = f"sink {number}"
        if manifest_name is not None:
            manifest = read_manifest(self._path / manifest_name)
            contents, generation = manifest.plain["sinks"][number::sinks], manifest.generation + 1
            names = [name for sink in manifest.plain["sinks"] for name in sink["results"]]
        self._names, self._sealed = [name for name in names if sink_of_file(Path(name).name) % sinks == number], {}
        self._sink.restore(self._names, generation)
        if manifest_name is not None:
            with restoring(self._path / manifest_name):
                changes = manifest.plain.get("changes", {}).values()
                self.added = [name for change in changes for kind, name in change["events"] if kind == "query_added"]
                collector.restore(manifest.plain["epoch"], [content["state"] for content in contents])
        if self._job.run_dir is not None and number == 0:  # the first sink has the metrics
            content = contents[0] if contents else {"metrics": [0, 0]}
            self._path.mkdir(parents=True, exist_ok=True)
            taken_over = self._metrics is None  # perhaps from a rank that is stopped, and was excluded from the run
            if self._metrics is not None:
                self._metrics.abort()
            rows = AppendedFile(self._path / "metrics.rows", content["metrics"], METRICS_ROW_BYTES, apart=taken_over)
            self._metrics = MetricsFile(self._job.run_dir, rows)
        return self._metrics

    def save(self, generation: int, snapshot: Snapshot) -> None:
        """The collector's part of a checkpoint; `done` gets PartSaved once results and metrics are durable."""
        hidden = self._sink.seal(generation)
        names = self._sealed[generation] = [self._sink.name_of(path) for path in hidden]
        self._names += names
        content: dict[str, Any] = {"state": snapshot.plain, "results": list(self._names), "metrics": [0, 0]}
        metrics = self._metrics
        if metrics is not None:
            metrics.cut(generation)
            content["metrics"] = metrics.rows.flush()

        def sync() -> PartSaved:
            self._sink.sync(hidden)
            if metrics is not None:
                metrics.rows.sync()
            return PartSaved(generation, self._part, content)

        assert self._background is not None, "save before begin"
        self._background.submit(sync)

    def publish(self, generation: int) -> None:
        """Make results up to the end of this generation visible."""
        self._sink.publish(self._sealed.pop(generation, []), generation)

    def publish_all(self) -> None:
        """Make all results visible: the run is complete."""
        for generation in sorted(self._sealed):
            self.publish(generation)

    def end(self) -> BaseException | None:
        """Finish pending writes; returns their error, if any."""
        background, self._background = self._background, None
        if background is None:
            return None
        background.end()
        return background.failure


def _until(manifest: Manifest, stage: int, groups: int) -> I64:
    """Watermarks up to which a stage had worked: int64 (groups, 2), the same for all."""
    assert manifest.plan is not None, "a stage without a plan"
    return np.array([manifest.plan.stages[stage]["joined_until_us"]] * groups, np.int64)


class SlaveCheckpointer:
    """Logs a slave's deliveries, and restores its windows from the newest checkpoint."""

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        slave: Slave,
        config: RunConfig,
        done: Callable[[Any], None],
        executors: Executors = Background,
    ) -> None:
        self._folder, self._config = folder, config
        self._slave = slave
        self._early: list[tuple[Delivery, Any]] = []  # of several senders, of epochs that are not open yet
        self._marks = any(slave.kind.marks) or isinstance(slave.join, RowsOperator | AsOfJoin)
        sub_groups = config.cluster.sub_group_count
        stage = 0 if slave.stage is None else int(slave.stage.stage.id)
        self._log = SegmentLog(folder, incarnation, slave.id, sub_groups, done, executors, promises=self._marks, stage=stage)

    def restore(self, manifest_name: str | None, owner: list[int], active: list[int]) -> None:
        """Rebuild the windows of the partition-groups that this slave owns. RunFailed names the corrupt file and record."""
        self._slave.set_active(active)
        if manifest_name is None:
            return
        manifest, stage = read_manifest(self._folder / manifest_name), self._slave.stage
        if stage is None and shares(self._config, manifest):
            self._slave.mover.keys.know(known_keys(manifest))
        mine = np.array(owner, np.int64) == self._slave.id
        number = 0 if stage is None else int(stage.stage.id)
        if stage is not None:
            mine = stage.owned
        segments = [segment for segment in manifest.segments if segment.stage == number]
        with restoring(manifest.path):
            alive_us = manifest.alive[number]
        if not self._marks:
            for delivery in replay(self._folder, segments, mine, alive_us):
                self._slave.restore(delivery)
            if stage is None or stage.stage.joins:
                return
            with restoring(manifest.path):
                self._slave.restored(_until(manifest, number, len(mine)))
            return
        for times_us, deliveries in replay_epochs(self._folder, segments, mine, alive_us):
            for delivery in deliveries:
                self._slave.restore(delivery)
            self._slave.restored_until(times_us)
        with restoring(manifest.path):
            if manifest.plan is None:
                self._slave.restored(manifest.joined_until_us(len(owner)))
            else:
                self._slave.restored(_until(manifest, number, len(mine)))

    def received(self, delivery: Delivery, frame: Any = None) -> None:
        """Log a delivery. Those of several senders are logged in the order of epochs: what comes earlier waits."""
        if self._slave.stage is None and self._slave.inbox is None:
            self._log.append(delivery, frame)
        else:
            self._early.append((delivery, frame))
            self._append_until()

    def _append_until(self) -> None:
        """Append the parts up to the open epoch."""
        stage, inbox = self._slave.stage, self._slave.inbox
        if stage is not None:
            epoch, needed_us = stage.merger.epoch, stage.needed_us
        elif inbox is not None:
            epoch, needed_us = inbox.open_epoch, inbox.needed_us
        waiting, self._early = sorted(self._early, key=lambda part: part[0].epoch), []
        for delivery, frame in waiting:
            if delivery.epoch <= epoch:
                self._log.append(replace(delivery, needed_us=needed_us), frame)
            else:
                self._early.append((delivery, frame))

    def save(self, command: SavePart) -> None:
        """The slave's part of a checkpoint; `done` gets PartSaved."""
        self._append_until()
        self._log.seal(command.generation, command.snapshot.plain)

    def close(self) -> None:
        self._log.close()

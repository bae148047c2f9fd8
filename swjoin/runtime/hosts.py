"""The hosts of the master, the gateway and the collector, in every runtime in real time.

What: `GatewayHost` owns the sources and the side file of late rows, `MasterHost` the run's log and its checkpoints,
`CollectorHost` the sink and the metrics file.
Why: the in-process and the MPI runtime differ only in the transport of messages.
Stays out: transports, processes, the slave (`runtime.slave_host`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from swjoin.checkpoint.checkpointers import (
    CollectorCheckpointer,
    GatewayCheckpointer,
    MasterCheckpointer,
    deals,
    known_keys,
    owners_of,
    shares,
)
from swjoin.checkpoint.store import Manifest, first_epoch_of, kept_manifests
from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.feeds import Feeds
from swjoin.cluster.gateway.gateway import Gateway, Share
from swjoin.cluster.gateway.intake import LateRowError
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.split_dealer import SplitDealer
from swjoin.cluster.messages import LoadReport, Report
from swjoin.cluster.role import (
    MASTER,
    BatchRead,
    CommitEpoch,
    CompleteCheckpoint,
    Event,
    Log,
    OpenSplit,
    Publish,
    Read,
    Received,
    ReleaseInput,
    RestartClock,
    RoleId,
    SavePart,
    Send,
    SetAside,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    SplitOpened,
    StopRequested,
    Write,
    gateway_of,
    gateway_role,
    sink_role,
    slave_of,
)
from swjoin.config.job import (
    Job,
    late_target,
)
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.files.run_files import (
    EventsFile,
    MetricsFile,
)
from swjoin.connectors.output_paths import check_outputs
from swjoin.connectors.sink import QuerySinks
from swjoin.connectors.source import Source, is_live, is_shared, is_split
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, RowLayout
from swjoin.core.data_messages import Delivery, ResultChunk, RunEvent
from swjoin.core.errors import RunFailed, Spelling, SwjoinError
from swjoin.core.hashing import digest_pairs
from swjoin.core.query_sums import NamedQueries
from swjoin.core.splits import Split
from swjoin.core.storage import Background, Executors
from swjoin.monitor.role_watchers import CollectorWatcher, GatewayWatcher, MasterWatcher
from swjoin.runtime.clock import RunClock
from swjoin.runtime.flight_serving import Ports, ServedResults, open_flight
from swjoin.runtime.host import LONGEST_WAIT_US, Host, nothing
from swjoin.runtime.idle_sources import PATIENCE_S, IdleDetector
from swjoin.runtime.open import (
    compile_job_where,
    input_splits,
    instances_of,
    open_job_sink,
    open_job_sources,
    open_job_watcher,
    open_plan_sources,
    open_spill,
    plan_output,
    row_place,
    usable_gateways,
)
from swjoin.runtime.progress import Progress, Wanted
from swjoin.runtime.run_report import partial_report, publish
from swjoin.runtime.traffic_report import earlier_owners

if TYPE_CHECKING:
    from swjoin.connectors.files.late_rows import LateSink
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.output_columns import AnyColumns
    from swjoin.expressions.vm import Program


_LOG = logging.getLogger(__name__)
_LONGEST_SLOT_WAIT_US = 20_000  # while a timer runs


def _progress_of(job: Job, sources: tuple[Source, ...], wanted: Wanted) -> Progress:
    """Progress over the rows that are read, or over the time of generated streams in realtime pace."""
    if job.config.pace == "realtime" and job.config.left.path is None and not job.config.live and job.plan is None:
        return Progress(wanted, job.config.workload.duration_us / 1e6, "s")
    totals = [source.rows_total for source in sources]
    return Progress(wanted, None if None in totals else sum(filter(None, totals)))


@dataclass
class _Reads:
    """What a gateway's host is to read. wanted: a stream, and those that may be read instead. to_open: splits. missing_rows: of
    the open split of each stream, where their number is known. handled_ns: CPU time of its events, of what was read above
    all; neither reading ahead nor the transport are in it."""

    idle_detector: IdleDetector
    wanted: tuple[int, tuple[int, ...]] | None = None
    to_open: deque[OpenSplit] = field(default_factory=deque)
    missing_rows: dict[int, int] = field(default_factory=dict)
    handled_ns: int = 0


class GatewayHost(Host):
    """The gateway with its sources. Use as a context manager: sources are closed on the way out.

    log: takes events for the run's log. first_read_s: when the first batch was read, on the monotonic clock.
    """

    role: Gateway

    def __init__(
        self,
        job: Job,
        progress: Wanted | Progress,
        watcher: GatewayWatcher | None,
        log: Callable[[RunEvent], None] | None,
        number: int = 0,
        first: dict[str, Any] | None = None,
    ) -> None:
        """number: of the gateway. progress: that of the first one in the same process. log: of the first one alone; others tell
        the master. first: `known` of the first one."""
        super().__init__(gateway_role(number))
        self.job = job
        self.instances = instances_of(job, 1)  # until `make`
        self.sources: tuple[Source, ...]
        self.where: Program | None = None
        if self.instances is None:
            self.sources = left, right = open_job_sources(job)
            self.where = compile_job_where(job, (left, right)) if number == 0 else None
        else:
            self.sources = open_plan_sources(job, self.instances.logical, self.instances.columns.read)
        self.live_shares: Sequence[dict[str, Any]] = self._live_shares() if first is None else first["live_shares"]
        self.ingest = open_flight(job, self.sources, self.names, number, "" if first is None else first["endpoint"])
        self.checkpointer: GatewayCheckpointer | None = None
        self.first_read_s: float | None = None
        self._reads = _Reads(IdleDetector(job.config.time.idle_timeout_us))
        self._late: LateSink | None = None
        self._spill = open_spill(job)
        for name, source in zip(self.names, self.sources, strict=True):
            rows = "unknown" if source.rows_total is None else f"{source.rows_total:,}"
            _LOG.debug("%s: %s, rows: %s", name, type(source).__name__, rows)
        self.progress = progress if isinstance(progress, Progress) else _progress_of(job, self.sources, progress)
        self._watcher = watcher
        if watcher is not None:
            watcher.endpoint = self.location or None
        if self.ingest is not None and isinstance(watcher, MasterWatcher):
            self.ingest.status = partial(watcher.board.snapshot, math.inf)
        self.performers |= {
            Read: self._want,
            OpenSplit: self._want_split,
            SetAside: self._set_aside,
        }
        if log is not None:
            self.performers[Log] = lambda effect: log(effect.event)

    @property
    def number(self) -> int:
        return gateway_of(self.name)

    def take_machines(self, names: Sequence[str]) -> None:
        """Before `make`: the machines of the slave ranks."""
        known = sorted(set(names))
        if self.instances is not None:
            hosts = tuple(known.index(name) for name in names) if len(known) > 1 else ()
            self.instances = replace(self.instances, hosts=hosts)

    def _live_shares(self) -> list[dict[str, Any]]:
        """Of live streams that gateways share, how many can read each one, and where it begins, ready for JSON."""
        shared = [source for source in self.sources if is_shared(source)]
        return [{"splits": source.split_count, "first": source.first_position()} for source in shared]

    @property
    def known(self) -> dict[str, Any]:
        """What further gateways have to know of the first one, ready for JSON."""
        return {"live_shares": self.live_shares, "endpoint": self.location}

    @property
    def location(self) -> str:
        """Of its endpoint, if it has one."""
        return "" if self.ingest is None else self.ingest.location

    @property
    def names(self) -> Sequence[str]:
        """Of the streams, or of the sources of a plan."""
        return STREAM_NAMES if self.instances is None else [source.name for source in self.instances.stages.sources]

    @property
    def layouts(self) -> tuple[RowLayout | None, RowLayout | None]:
        """Of the payload rows of both streams; None without payload, and with a plan."""
        return (None, None) if self.instances is not None else (self.sources[LEFT].layout, self.sources[RIGHT].layout)

    def keep_checkpoints(self, folder: Path, executors: Executors = Background) -> None:
        """folder: of the run's checkpoints."""
        checkpointer = self.checkpointer = GatewayCheckpointer(self.job, self.sources, folder, self.number, executors)
        live = any(map(is_live, self.sources))
        self.performers |= {
            SavePart: lambda effect: checkpointer.save(effect.generation, effect.snapshot),
            ReleaseInput: lambda _: checkpointer.forget(kept_manifests(folder)) if live else None,
        }

    def splits(self) -> list[list[Split]]:
        """The inputs in splits."""
        config = self.job.config if self.instances is None else self.instances.config_of_gateway
        return input_splits(config, self.sources)

    def summary(self) -> dict[str, Any]:
        return {**self.role.summary(), "endpoint": self.location or None, "cpu_s": self._reads.handled_ns / 1e9}

    def close(self, error: BaseException | None, *, complete: bool, changes: bool = False) -> None:
        """complete: the run has ended, and is not to be resumed. changes: it goes on with other queries."""
        self.progress.close()
        if self.ingest is not None:
            self.ingest.close(changes=changes)
        for source in self.sources:
            source.close()
        if self.checkpointer is not None:
            self.checkpointer.close()
        with contextlib.suppress(*() if error is None else (SwjoinError,)):  # a full disk has been reported already
            if self._late is not None:
                if complete:
                    self._late.close()
                else:
                    self._late.abort()

    def make(
        self,
        clock: RunClock,
        slave_count: int,
        manifest: Manifest | None = None,
        start: Start | None = None,
        owners: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make the gateway, at the start of its input. slave_count: of a plan, instances per stage. manifest: of the checkpoint
        that is to be restored. start: of a run with checkpoints. owners: of a plan's partition-groups, by stage, if the master
        has told them."""
        self.clock = clock
        self._reads = _Reads(IdleDetector(self.job.config.time.idle_timeout_us))
        shared, dealt = shares(self.job.config, manifest), deals(self.job.config, manifest)
        if shared:
            self._let_keys_travel(manifest)
        if self.checkpointer is not None and start is not None:  # saves codes of keys, if there are any
            self.checkpointer.begin(manifest, start.incarnation, partial(start.on_saved, self.name))
        target = late_target(self.job)
        if target is not None and (self._late is None or self.checkpointer is not None):
            from swjoin.connectors.files.late_rows import LateSink

            number = None if self.job.config.gateway_count == 1 else self.number
            rows = None if self.checkpointer is None else self.checkpointer.late_rows
            self._late = LateSink(target, rows, self.names, number)
        self.instances = instances_from(self.instances, self.job, slave_count, manifest, owners)
        share = Share(self.number, dealt, shared and not dealt)
        if share.fixed:
            for source, of in zip(self.sources, self.live_shares, strict=True):
                assert is_shared(source), "a live stream that one gateway reads"
                source.take_share(self.number, min(self.job.config.gateway_count, of["splits"]), of["first"])
        if dealt:
            firsts_us = [first_us for source in self.sources if (first_us := _origin_of(source)) is not None]
            share = replace(share, origin_us=min(firsts_us, default=0))
        if self.instances is None:
            config = self.job.config.fitted_to(slave_count)
            self.role = Gateway(config, slave_count, self.layouts, store=self._spill, share=share)
        else:
            instances = self.instances
            feeds = Feeds(instances, self.number)
            config, count = instances.config_of_gateway, instances.slave_count
            self.role = Gateway(config, count, self.layouts, store=self._spill, feeds=feeds, share=share)

    def _let_keys_travel(self, manifest: Manifest | None) -> None:
        """Keys that had codes when the run had one gateway keep them."""
        known = known_keys(manifest)
        for source in self.sources:
            if isinstance(source, EncodedSource):
                source.let_keys_travel(known)

    def restore(self, manifest: Manifest | None, owner: I64, active: Sequence[int]) -> None:
        """After `make`: restore gateway and sources. owner, active: the master's placement."""
        if self.checkpointer is not None:
            self.checkpointer.restore(self.role, manifest, owner, active)

    def show(self, send_view: Callable[[dict[str, Any]], None]) -> None:
        """After `make` and `restore`, unless this is the first gateway: samples go to `send_view`, the first one now."""
        if self._watcher is not None:
            self._watcher.send_view = send_view
            self._watcher.watch(self.role, self.names)
            self._watcher.observe(self.role)

    def deliver(self, event: Event) -> None:
        if self._watcher is not None and isinstance(event, Received) and isinstance(event.message, Report):
            self._watcher.reported(slave_of(event.sender), event.message.occupancy_ratio)
        before_ns = time.thread_time_ns()
        try:
            effects = self.role.handle(event, self.clock.now_us())
        except LateRowError as error:
            raise error.at(row_place(self.sources, error.stream, error.row_id, self.names)) from None
        self._reads.handled_ns += time.thread_time_ns() - before_ns
        self.perform(effects)

    def work(self) -> bool:
        """Open a split, or read, if the gateway wants a batch."""
        if self._reads.to_open:
            self._open_split(self._reads.to_open.popleft())
            return True
        if self._reads.wanted is None:
            return False
        self._read()
        return True

    def _open_split(self, effect: OpenSplit) -> None:
        source = self.sources[effect.stream]
        assert is_split(source), "a source without splits was dealt one"
        self._reads.missing_rows[effect.stream] = -1 if effect.split.rows < 0 else effect.split.rows - effect.skip
        self.deliver(SplitOpened(effect.stream, source.open_split(effect.split, effect.skip)))

    def patience_us(self) -> int:
        """How long the rank may wait: to the next timer or poll of idle sources. It resumes streams."""
        if self._resume_sources():
            return int(PATIENCE_S * 1e6)
        if self._reads.wanted is not None:  # a stream that has resumed is to be read now
            return 0
        until_us = self.until_timer_us()
        return LONGEST_WAIT_US if until_us is None else min(until_us, _LONGEST_SLOT_WAIT_US)

    def _read(self) -> None:
        """Read the batch that the gateway wants; a source without rows for the idle timeout is idle instead."""
        if self._reads.idle_detector.any_idle:
            self._resume_sources()
        if self.first_read_s is None:
            self.first_read_s = time.monotonic()
        assert self._reads.wanted is not None
        stream, instead = self._reads.wanted
        silent = self._reads.idle_detector.of(stream, self.sources[stream])
        if silent is not None and not silent:
            ready = next((other for other in instead if self.sources[other].ready(0.0)), None)
            if ready is None:
                return
            stream, silent = ready, None
        self._reads.wanted = None
        if silent:
            self.deliver(SourceIdle(stream))
            return
        batch = self.sources[stream].read()
        if batch is None:
            self._check_all_read(stream)
            self.deliver(SourceEnded(stream))
        else:
            self.progress.advance(len(batch))
            if self._reads.missing_rows.get(stream, -1) >= 0:
                self._reads.missing_rows[stream] -= len(batch)
            if self._watcher is not None:
                self._watcher.read(stream, batch)
            self.deliver(BatchRead(stream, batch))

    def observe(self) -> None:
        self.progress.reach(self.clock.now_us())
        if self._watcher is not None and self.number > 0:
            self._watcher.observe(self.role)

    def _resume_sources(self) -> bool:
        """Deliver `SourceResumed` for idle streams that have rows again. False when no stream is idle."""
        for stream in self._reads.idle_detector.ended(self.sources):
            self.deliver(SourceResumed(stream))
        return self._reads.idle_detector.any_idle

    def _check_all_read(self, stream: int) -> None:
        """RunFailed when a source ended early or late: the ledger would balance over a wrong answer."""
        if self.role.splits is not None:
            missing = self._reads.missing_rows.pop(stream, -1)
            if missing > 0:
                raise RunFailed(
                    f"{self.names[stream]}: {missing} rows of a split are gone; the input changed while it was read"
                )
            return
        rows, expected = self.role.streams[stream].counts.tuples, self.sources[stream].rows_total
        if expected is not None and rows != expected:
            raise RunFailed(f"{self.names[stream]}: {rows} rows were read of {expected}; the input changed while it was read")

    # ------------------------------------------------------------ performers

    def _want_split(self, effect: OpenSplit) -> None:
        self._reads.to_open.append(effect)

    def _want(self, effect: Read) -> None:
        self._reads.wanted = effect.stream, effect.instead

    def _set_aside(self, effect: SetAside) -> None:
        if self._late is not None:
            self._late.write(effect.stream, effect.batch, effect.reason)
        if self.ingest is not None and self.number == 0:
            self.ingest.set_aside(effect.stream, effect.batch, effect.reason)

    def _send(self, effect: Send) -> None:
        super()._send(effect)
        if self._watcher is not None and isinstance(effect.message, Delivery):
            self._watcher.delivered(effect.message)


@dataclass(frozen=True)
class Start:
    """A start, or a recovery, of a run with checkpoints. incarnation: its number. on_saved: takes the events of background
    threads, and the role that they are for."""

    incarnation: int
    on_saved: Callable[[RoleId, Any], None]


def _origin_of(source: Source) -> int | None:
    return source.origin_us() if is_split(source) else None


class MasterHost(Host):
    """The master with the run's log, its checkpoints and its status board, and the gateways of the same process, the first of
    which is `gateway`. Use as a context manager: they are closed on the way out.

    stop_wanted: whether the run is to stop with a checkpoint. take_views: called before each update of the status board, with
    samples of other ranks to take (`take_view`). measured_s: when the prefill had been joined, on the monotonic clock.
    """

    role: Master

    def __init__(self, job: Job, progress: Wanted) -> None:
        super().__init__(MASTER)
        check_outputs(job)
        self.job = job
        self.measured_s: float | None = None
        self.changed = False  # the run goes on with other queries, and another host
        self.stop_wanted: Callable[[], bool] = lambda: False
        self.take_views: Callable[[], None] = lambda: None
        self._views: dict[int, dict[str, Any]] = {}  # the last sample of each gateway on another rank
        self._events: EventsFile | None = None
        self.watcher = open_job_watcher(job)
        with contextlib.ExitStack() as opened:  # a job that is refused leaves no dashboard behind
            if self.watcher is not None:
                opened.callback(self.watcher.close)
            self.gateway = GatewayHost(job, progress, self.watcher, self.log)
            self.gateways = [self.gateway]
            self._fit_gateways()
            self.checkpointer = None if job.checkpoints is None else MasterCheckpointer(self.job)
            opened.pop_all()
        self.performers[Log] = lambda effect: self.log(effect.event)
        checkpointer = self.checkpointer
        if checkpointer is not None:
            self.gateway.keep_checkpoints(checkpointer.folder.path)
            self.performers |= {
                SavePart: lambda effect: checkpointer.save(effect.generation, effect.snapshot),
                CompleteCheckpoint: checkpointer.folder.complete,
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.watcher is not None:
            if kind is None and not self.changed:
                self.watcher.end(self.clock.now_us(), self.gateway.sources)
            else:
                self.watcher.close()
        complete = kind is None and not self.role.checkpoints.stopped
        for host in self.gateways:
            host.close(error, complete=complete, changes=self.changed)
        if self.checkpointer is not None:
            self.checkpointer.close()
        with contextlib.suppress(*() if kind is None else (SwjoinError,)):  # a full disk has been reported already
            if self._events is not None:
                self._events.close(resumable=self.checkpointer is not None and not complete)

    def _fit_gateways(self) -> None:
        """Use fewer gateways where there are fewer splits."""
        config = self.job.config
        if config.gateway_count == 1:
            return
        if config.live:
            used = min(config.gateway_count, max(share["splits"] for share in self.gateway.live_shares))
            pieces = "partitions" if any(stream.kafka for stream in config.streams) else "producers"
        else:
            used, pieces = usable_gateways(config, self.gateway.splits()), "splits"
        if used < config.gateway_count:
            has = f"{used} {pieces}" if used > 1 else f"1 {pieces.removesuffix('s')}"
            _LOG.warning("%d gateways: the inputs have %s at most, so as many are used", config.gateway_count, has)
            self.gateway.job = self.job = replace(self.job, config=config.with_gateways(used))

    def make_gateways(self) -> None:
        """Make all further gateways, in the same process."""
        for number in range(1, self.job.config.gateway_count):
            first, watcher = self.gateway, None if self.watcher is None else GatewayWatcher(self.job.config)
            self.gateways.append(GatewayHost(self.job, first.progress, watcher, None, number, first.known))
            self.take_endpoint(number, self.gateways[-1].location)
            if self.checkpointer is not None:
                self.gateways[-1].keep_checkpoints(self.checkpointer.folder.path)

    @property
    def ports(self) -> Ports:
        dashboard = None if self.watcher is None else self.watcher.dashboard
        ingest = self.gateway.ingest
        return Ports(None if dashboard is None else dashboard.port, None if ingest is None else int(ingest.endpoint.port))

    @property
    def first_read_s(self) -> float | None:
        """When the first batch was read, on the monotonic clock."""
        return min((host.first_read_s for host in self.gateways if host.first_read_s is not None), default=None)

    def take_view(self, view: dict[str, Any]) -> None:
        """A sample of a sink or a gateway on another rank."""
        if "gateway" in view:
            self._views[view["gateway"]] = view
            self.gateway.progress.advance(self.tuples_read - self.gateway.progress.done)
        if self.watcher is not None:
            (self.watcher.take_gateway if "gateway" in view else self.watcher.board.set_collector)(view)

    @property
    def tuples_read(self) -> int:
        """By all gateways, as far as their samples say."""
        return sum(stream.counts.tuples for host in self.gateways for stream in host.role.streams) + self._in_views("tuples")

    @property
    def tuples_delivered(self) -> int:
        """Tuples that have left the gateways, as far as their samples say."""
        waiting = sum(host.role.waiting_tuples(stream.stream) for host in self.gateways for stream in host.role.streams)
        return self.tuples_read - waiting - self._in_views("waiting")

    def delivered_again(self, before: int) -> int:
        """Tuples that the newest checkpoint leaves to deliver of those delivered before a death, as far as samples told: they
        may be older than the checkpoint."""
        return max(0, before - self.tuples_delivered)

    def _in_views(self, name: str) -> int:
        return sum(stream["ledger"][name] for view in self._views.values() for stream in view["streams"].values())

    def make_sinks(self, clock: RunClock, opened: contextlib.ExitStack) -> list[CollectorHost]:
        """All sinks in the same process, entered into `opened`."""
        ingest, found = self.gateway.ingest, list[CollectorHost]()
        for number in range(self.job.config.sink_count):
            endpoint = None if ingest is None else ingest.endpoint
            first = found[0].offered if found else None
            role_host = CollectorHost(self.job, self.output_plan(), clock, endpoint, number, first)
            if self.watcher is not None:
                role_host.send_view = self.watcher.board.set_collector
            found.append(opened.enter_context(role_host))
        return found

    def open_flight(self) -> None:
        """Let producers and consumers connect; called when sources and results are ready."""
        for host in self.gateways:
            if host.ingest is not None:
                host.ingest.open()

    def take_endpoint(self, gateway: int, location: str) -> None:
        """A gateway has an endpoint, unless its location is empty."""
        if self.gateway.ingest is not None and location:
            self.gateway.ingest.places.locations[gateway] = location

    def output_plan(self) -> AnyColumns:
        """The columns of result rows, from the schemas of both sources."""
        from swjoin.connectors.output_columns import OutputColumns

        instances = self.gateway.instances
        if instances is None:
            return OutputColumns.build(self.gateway.sources[LEFT], self.gateway.sources[RIGHT], self.job.config)
        return plan_output(instances)

    @property
    def output_columns(self) -> list[str] | None:
        """Names of the columns of result rows; None when results are only counted, or are of several queries."""
        from swjoin.connectors.output_columns import QueryColumns

        plan = None if self.job.config.sink.kind == "count" else self.output_plan()
        return None if plan is None or isinstance(plan, QueryColumns) else list(plan.schema.names)

    def make(self, clock: RunClock, slave_count: int, on_saved: Callable[[RoleId, Any], None] | None = None) -> None:
        """Make master and gateway, from the newest checkpoint if there is one; the rank's loop starts them.

        on_saved: receives the events of background threads, and the role that they are for.
        """
        self.clock = clock
        self._views.clear()
        checkpointer, gateway, manifest, start = self.checkpointer, self.gateway, None, None
        if checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            manifest = checkpointer.begin(on_saved)
            start = Start(checkpointer.folder.incarnation, on_saved)
        if self.job.run_dir is not None and self._events is None:
            self._events = EventsFile(self.job.run_dir, resumes=self.job.resumes)
        for host in self.gateways:
            host.make(clock, slave_count, manifest, start)
        instances, dealer = gateway.instances, None
        if deals(self.job.config, manifest):
            dealer = SplitDealer.of(gateway.role.config, gateway.splits())
        if instances is None:
            self.role = Master(self.job.config.fitted_to(slave_count), slave_count, dealer=dealer)
        else:
            self.role = Master.of_plan(instances, dealer)
        if checkpointer is not None:
            checkpointer.restore(self.role, manifest, clock.now_us())
            for host in self.gateways:
                host.restore(manifest, self.role.controller.map.owner, self.role.controller.active)
            gateway.progress.advance(self.tuples_read - gateway.progress.done)
        if self.watcher is not None:
            self.watcher.begin(self.role, gateway.role)
            for host in self.gateways[1:]:
                host.show(self.watcher.take_gateway)

    def deliver(self, event: Event) -> None:
        if self.watcher is not None and isinstance(event, Received) and isinstance(event.message, LoadReport):
            self.watcher.loaded(slave_of(event.sender), event.message.loads)
        super().deliver(event)

    def work(self) -> bool:
        """Stop the run with a checkpoint, if that is wanted."""
        if self.checkpointer is None or self.role.checkpoints.stopping or not self.stop_wanted():
            return False
        self.deliver(StopRequested())
        return True

    def patience_us(self) -> int:
        """How long the rank may wait: to the next update of the status board."""
        return LONGEST_WAIT_US if self.watcher is None else int(self.watcher.patience_s * 1e6)

    def observe(self) -> None:
        """Update the status board when that is due. Called in every round of the rank's loop."""
        if self.watcher is not None and not self.watcher.due():
            return
        self.take_views()
        if self.watcher is not None:
            self.watcher.sample(self.clock.now_us(), self.gateway.sources)

    def remove_checkpoints(self) -> None:
        """End monitoring and remove the checkpoints; called when the run is complete and its report is written."""
        if self.watcher is not None:
            self.watcher.close()
        if self.checkpointer is not None and not self.role.checkpoints.stopped:
            for source in self.gateway.sources:
                if is_live(source):
                    source.done()
            self.checkpointer.folder.remove()

    def log_recovery(self, text: str, tuples: int, duration_us: int) -> None:
        """Log a complete recovery. duration_us: since the death was detected."""
        now_us = self.clock.now_us()
        event = RunEvent(
            now_us,
            int(self.role.epoch),
            "recovered",
            tuples=tuples,
            duration_us=duration_us,
            amount=float(self.role.slave_count),
            text=text,
        )
        self.log(event)

    def log(self, event: RunEvent) -> None:
        if event.kind != "occupancy":  # one per slave and reorganization epoch
            _LOG.debug("%s", event)
        if self._events is not None:
            self._events.add(event)
        if self.watcher is not None:
            self.watcher.on_log_event(event)

    def _restart_clock(self, effect: RestartClock) -> None:
        super()._restart_clock(effect)
        if self.meter is not None:
            self.meter.start()
        self.measured_s = time.monotonic()
        if self.watcher is not None:
            self.watcher.measuring_started()


class CollectorHost(Host):
    """A sink with its files; the first one, the collector, also has the metrics.

    Use as a context manager: after an error the result files are `.incomplete`; with checkpoints, the files of complete
    checkpoints remain.
    """

    role: Collector

    def __init__(
        self,
        job: Job,
        plan: AnyColumns,
        clock: RunClock,
        endpoint: Endpoint | None = None,
        number: int = 0,
        first: ServedResults | None = None,
    ) -> None:
        """endpoint: of the master, in one process; without it the collector opens its own if the run serves results. number: of
        the sink. first: what the first sink serves, in one process."""
        from swjoin.connectors.output_columns import QueryColumns

        super().__init__(sink_role(number))
        self.number = number
        self.clock = clock
        self.job = job
        self._started = False
        self.ranks: dict[str, dict[str, str]] = {"0": {"host": platform.node(), "role": "in-process"}}
        self.proof: dict[str, Any] | None = None  # of the whole result, once the ledger balances
        self.role = Collector(0, materialised=False)  # until `make`
        self._of_rows = not plan.of_pairs
        self._named = NamedQueries(len(plan.queries), plan.families) if isinstance(plan, QueryColumns) else None
        self._sink = open_job_sink(job, plan, number)
        self.offered: ServedResults | None = None
        if job.config.serve.listen is not None:
            self.offered = ServedResults(job, plan, self._sink, number, endpoint, first)
        if self.offered is not None and self.offered.sink is not None:
            self._sink = self.offered.sink
        if job.config.sink.kind != "count":  # load what the first results need before the run's clock starts
            plan.nothing()
            digest_pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))
        self.checkpointer = None if job.checkpoints is None else CollectorCheckpointer(job, self._sink)
        self._watcher = CollectorWatcher(job.config, plan) if job.config.observed else None
        self.send_view: Callable[[dict[str, Any]], None] = lambda view: None  # set by the runtime
        self._metrics: MetricsFile | None = None
        checkpointer = self.checkpointer
        self.performers |= {Write: self._write, CommitEpoch: nothing}
        if checkpointer is not None:
            self.performers |= {
                SavePart: lambda effect: checkpointer.save(effect.generation, effect.snapshot),
                Publish: lambda effect: checkpointer.publish(effect.generation),
            }

    def _write(self, effect: Write) -> None:
        if self._watcher is not None:
            self._watcher.results.on_write(effect.query, effect.pairs)
        if isinstance(self._sink, QuerySinks):
            self._sink.write_to(effect.query, effect.pairs, effect.generation)
        else:
            self._sink.write(effect.pairs, effect.generation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failure = None if self.checkpointer is None else self.checkpointer.end()
        if kind is None and failure is not None:
            self._leave(failure)
            raise failure
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        try:
            self._close(error)
        finally:
            if self.offered is not None:
                self.offered.close()

    def pause(self) -> None:
        """The run goes on with other queries, and other hosts."""
        if self.offered is not None:
            self.offered.pause()

    def finish(self) -> None:
        """Complete all files, before any sink gives its own their names, and pass all rows on, before the first sink ends."""
        if self.offered is not None:
            self.offered.flush()
        if self.job.config.sink_count > 1 and not self.role.stopped:
            self._sink.finish(self.proof)

    def _close(self, error: BaseException | None) -> None:
        if error is not None or self.role.stopped:
            self._give_up(error)
            return
        try:
            if self.checkpointer is not None:
                self.checkpointer.publish_all()
            self._sink.close(self.proof)
            if self._metrics is not None:
                self._metrics.close()
        except SwjoinError as failure:
            self._give_up(failure)
            raise

    def _give_up(self, error: BaseException | None) -> None:
        """Abort the outputs and write a partial report. Further errors, such as a full disk, do not replace `error`."""
        self._sink.abort(started=self._started)
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if error is not None and self._started and self.number == 0:
                publish(self.job, partial_report(self.job, self.summary(), _reason(error, self.job.spelling), self.ranks))
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if self._metrics is not None:
                self._metrics.abort()

    def make(
        self, slave_count: int, manifest_name: str | None = None, on_saved: Callable[[RoleId, Any], None] | None = None
    ) -> None:
        """Make the collector, from this checkpoint if one is given; the rank's loop starts it. on_saved: receives `PartSaved`,
        which the rank's own thread delivers."""
        config = self.job.config
        self.role = Collector(
            slave_count,
            materialised=self._of_rows or config.sink.kind != "count",
            number=self.number,
            sink_count=config.sink_count,
            of_rows=self._of_rows,
            named=self._named,
        )
        if self._watcher is not None:
            self._watcher.begin()
        if self.checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            self._metrics = self.checkpointer.begin(self.role, manifest_name, partial(on_saved, self.name))
            if self.offered is not None:
                self.offered.note_added(self.checkpointer.added)
        elif self.job.run_dir is not None and self._metrics is None and self.number == 0:
            self._metrics = MetricsFile(self.job.run_dir)
        self._started = True

    @property
    def ended(self) -> bool:
        return self.role.finished or self.role.stopped

    def deliver(self, event: Event) -> None:
        effects = self.role.handle(event, self.clock.now_us())
        if isinstance(event, Received) and isinstance(event.message, ResultChunk):
            rows = self.role.take_metrics()  # before effects: a part of a checkpoint contains them
            if self._watcher is not None:
                self._watcher.on_results(rows, event.message)
            if self._metrics is not None:
                self._metrics.add(rows)
            if self.offered is not None:
                self.offered.metrics.add(rows)
        self.perform(effects)

    def observe(self) -> None:
        """Send a view to the status board when that is due, and when the role has ended."""
        if self._watcher is not None and (self.ended or self._watcher.due()):
            self.send_view(self._watcher.view(self.role))

    def summary(self) -> dict[str, Any]:
        return self.role.summary()


def instances_from(
    instances: Instances | None,
    job: Job,
    width: int,
    manifest: Manifest | None,
    agreed: Sequence[Sequence[int]] = (),
) -> Instances | None:
    """The instances of a job's plan as they go on from this checkpoint; None for the join of two streams. agreed: owners that
    the master has told; none: they are found here."""
    if instances is None:
        return None
    config = job.config.fitted_to(width)
    owners = [list(mine) for mine in agreed]
    if not owners and manifest is None:
        owners = earlier_owners(instances.at(config, width))
    elif not owners:
        owners = owners_of(manifest, config, instances.logical, width, instances.hosts)
    return instances.at(config, width, first_epoch_of(manifest), owners)


def _reason(error: BaseException, spelling: Spelling) -> str:
    """Why a run failed, for its report."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return error.text(spelling) if isinstance(error, SwjoinError) else f"internal error: {type(error).__name__}: {error}"

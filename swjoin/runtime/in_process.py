"""The in-process runtime: master, gateway, slaves and collector in one Python process, the embedded default.

What: `run_local(job, progress) -> report`.
Why: a join of two files needs no cluster; the same roles run here, and a message is an object in a queue. Master and first
gateway run in the main thread, every further gateway, every slave and every sink in a thread of its own: kernels, decoding and
writing release the GIL, so the gateway reads and partitions an epoch while the slaves join the one before.
Stays out: decisions of the roles; MPI.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from swjoin.checkpoint.checkpointers import SlaveCheckpointer, shares
from swjoin.checkpoint.store import Manifest
from swjoin.cluster.gateway.intake import LateRowError
from swjoin.cluster.messages import Message
from swjoin.cluster.role import MASTER, Received, RoleId
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.core.errors import NotWritten
from swjoin.core.ids import SlaveId
from swjoin.core.platforms import core_count
from swjoin.monitor.host_load import RankMeter, machine_report
from swjoin.monitor.process_memory import FreedMemory, peak_rss_bytes, rss_bytes
from swjoin.monitor.process_settings import join_settings
from swjoin.runtime.clock import RunClock
from swjoin.runtime.disorder import advised
from swjoin.runtime.flight_serving import Ports
from swjoin.runtime.host import Addressed, Host, HostedRoles, WorkMeter
from swjoin.runtime.hosts import CollectorHost, GatewayHost, MasterHost, instances_from
from swjoin.runtime.kernel_preload import load_gateway_kernels, load_plan_kernels, load_slave_kernels
from swjoin.runtime.open import sized
from swjoin.runtime.plausibility import add_warnings
from swjoin.runtime.progress import Wanted
from swjoin.runtime.query_changes import QueryChanges
from swjoin.runtime.run_report import CompleteReport, RunOutcome, build_report, check_ledger, proof_of, publish
from swjoin.runtime.signals import stop_signals
from swjoin.runtime.slave_host import SlaveHost
from swjoin.runtime.traffic_report import write_traffic

_LOG = logging.getLogger(__name__)
_MOST_SLAVES = 4
_WAKE_S = 0.1  # interval at which a waiting thread checks whether the run has failed


def default_slave_count(*, writes: bool) -> int:
    """A slave for every core but the master's, at least one and at most four. Of two cores the master leaves most of its own:
    two slaves, unless rows are written to files, which takes the rest. writes: whether they are."""
    cores = core_count()
    return max(1, min(cores if cores == 2 and not writes else cores - 1, _MOST_SLAVES))


def run_local(
    job: Job,
    progress: Wanted,
    slave_count: int | None = None,
    complete_report: CompleteReport | None = None,
    *,
    advises: bool = True,
) -> dict[str, Any]:
    """Run a job in this process and return the content of run.json (also written to the files that the job names).

    advises: about a late row, read the inputs to their end for the bound that they need.
    Raises UserError for bad input, RunFailed when the run or its ledger fails; results then stay marked incomplete.
    """
    slave_count = default_slave_count(writes=job.config.sink.kind != "count") if slave_count is None else slave_count
    try:
        with join_settings():
            return _run_local(sized(job, slave_count), progress, slave_count, complete_report)
    except NotWritten as error:
        raise error.mended_by(job.next_step()) from None
    except LateRowError as error:
        raise (advised(error, job.config) if advises else error) from None


def _run_local(job: Job, progress: Wanted, slave_count: int, complete_report: CompleteReport | None) -> dict[str, Any]:
    """Run a job, in as many rounds as its queries change, and once more."""
    started = time.monotonic()
    with contextlib.ExitStack() as opened, stop_signals(job) as stop_wanted:
        changes = opened.enter_context(QueryChanges(job, slave_count)) if job.takes_changes else None
        while True:
            report, ports = _run_round(job, progress, slave_count, complete_report, (stop_wanted.is_set, changes), started)
            if report is not None:
                return report
            assert changes is not None
            job = changes.apply(ports)


def _run_round(
    job: Job,
    progress: Wanted,
    slave_count: int,
    complete_report: CompleteReport | None,
    stops: tuple[Callable[[], bool], QueryChanges | None],
    started: float,
) -> tuple[dict[str, Any] | None, Ports]:
    """Run a job to its end, or to a change of its queries; then there is no report. Returns also the ports of its servers.
    stops: whether it is to stop, and changes, if it takes any. started: on the monotonic clock."""
    stop_wanted, changes = stops
    opening_s = time.monotonic()
    if not job.resumes:
        job.config.check_slaves(slave_count)
    cluster = job.config.cluster
    _LOG.debug(
        "in one process: %d slave(s), %d partition-groups, distribution epoch %s",
        slave_count,
        cluster.partition_count,
        f"{cluster.distribution_epoch_us} us" if cluster.distribution_epoch_us else f"{cluster.epoch_tuples} tuples",
    )
    with MasterHost(job, progress) as role_host:
        opened_s = time.monotonic()
        gateway = role_host.gateway
        _load_kernels(job, gateway)
        _LOG.debug("sources opened in %.3f s, kernels loaded in %.3f s", opened_s - opening_s, time.monotonic() - opened_s)
        clock = RunClock()
        with contextlib.ExitStack() as opened:
            job = role_host.job
            sinks = role_host.make_sinks(clock, opened)
            role_host.make_gateways()
            role_host.stop_wanted = stop_wanted if changes is None else lambda: stop_wanted() or changes.wanted()
            loop = _LocalLoop(job, role_host, sinks, clock, slave_count)
            role_host.open_flight()
            start_rss_bytes = rss_bytes()
            if changes is not None:
                changes.log(role_host.log, clock.now_us(), int(role_host.role.epoch))
            loop.run()
            if sinks[0].role.stopped and changes is not None and not stop_wanted() and changes.wanted():
                role_host.changed = True
                for sink in sinks:
                    sink.pause()
                return None, role_host.ports
            outcome = loop.outcome(opening_s, start_rss_bytes)
            report = build_report(job, outcome)
            write_traffic(job.run_dir, outcome.plan, outcome.gateways, outcome.slaves)
            if not sinks[0].role.stopped:
                check_ledger(report)
                # before the result files are closed, which contain them
                add_warnings(report, job, gateway.sources, gateway.instances)
                for sink in sinks:
                    sink.proof = proof_of(report)
                    sink.finish()
    report["wall_s"] = time.monotonic() - started
    if report["join_s"] > 0:
        tuples = sum(stream["tuples"] for stream in report["input"].values())
        report["input_tuples_per_s"] = (tuples - loop.resumed_tuples) / report["join_s"]
    _LOG.debug("joined in %.3f s, %.3f s in all: %s pairs", report["join_s"], report["wall_s"], report["results"]["count"])
    if complete_report is not None:
        complete_report(report, job)
    publish(job, report)
    role_host.remove_checkpoints()
    return report, Ports()


def _load_kernels(job: Job, gateway: GatewayHost) -> None:
    if gateway.instances is None:
        load_gateway_kernels(job.config, gateway.layouts, gateway.progress.compiling)
        load_slave_kernels(job.config, gateway.layouts, gateway.progress.compiling)
    else:
        load_plan_kernels(gateway.instances, gateway.progress.compiling)


class _StoppedError(Exception):
    """Another thread has failed; this one ends."""


class _Inbox(queue.SimpleQueue[Any]):
    """Events for the roles of one thread. None: another thread has ended; an exception: it has failed."""


class LocalTransport:
    """Messages between the threads of one process: objects in queues. running: for the main thread, other threads that run."""

    eager_us: int | None = None

    def __init__(
        self, inboxes: Mapping[RoleId, _Inbox], role: RoleId, clock: RunClock, stop: threading.Event, *, main: bool = False
    ) -> None:
        """inboxes: of the threads of all roles. role: one of this thread. main: this is the main thread."""
        self.meter = WorkMeter(lambda: time.thread_time_ns() // 1000)
        self.running = 0
        self._inboxes, self._inbox, self._main = inboxes, inboxes[role], main
        self._clock, self._stop = clock, stop
        self._freed = FreedMemory()

    @property
    def closed(self) -> bool:
        return not self.running

    def send(self, sender: RoleId, to: RoleId, message: Message) -> None:
        self._inboxes[to].put((to, Received(sender, message)))

    def poll(self) -> Addressed | None:
        try:
            return self._take(self._inbox.get_nowait())
        except queue.Empty:
            return None

    def wait(self, at_most_us: int) -> Addressed | None:
        longest_s = at_most_us / 1e6 if self._main else min(at_most_us / 1e6, _WAKE_S)
        before_ns = time.monotonic_ns()
        try:
            item = self._inbox.get(timeout=max(0.0, longest_s))
        except queue.Empty:
            if self._main:
                self._freed.trim_if_due()
            return None
        finally:
            self.meter.idle_us += (time.monotonic_ns() - before_ns) // 1000
        return self._take(item)

    def _take(self, item: Any) -> Addressed | None:
        if item is None:
            self.running -= 1
            return None
        if isinstance(item, BaseException):
            raise item
        to, event = item
        if isinstance(event, BaseException):
            raise event
        return to, event

    def check(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def restart_clock(self, clock_us: int) -> None:
        """Restart the one clock of all roles, before the message of the restart is sent."""
        if self._main:
            self._clock.restart(clock_us)


class _RoleThread(threading.Thread):
    """A role in a thread of its own. Its exception, or its end (None), is put into the main thread's queue."""

    def __init__(self, name: str, run_role: Callable[[], None], to_main: _Inbox) -> None:
        super().__init__(name=name, daemon=True)
        self._run_role, self._to_main = run_role, to_main

    def run(self) -> None:
        try:
            self._run_role()
            self._to_main.put(None)
        except _StoppedError:
            pass
        except BaseException as error:
            self._to_main.put(error)


class _LocalLoop:
    """All roles of one run, master and gateway in the calling thread."""

    def __init__(
        self, job: Job, role_host: MasterHost, sinks: Sequence[CollectorHost], clock: RunClock, slave_count: int
    ) -> None:
        self.role_host, self.sinks = role_host, sinks
        self.meter = RankMeter()
        self._stop = threading.Event()
        config = job.config.fitted_to(slave_count)
        gateway = role_host.gateway
        self._width = slave_count
        self._slave_hosts = self._make_slaves(config, clock)  # by thread
        self.slaves = sorted((host for hosts in self._slave_hosts for host in hosts), key=lambda host: host.role.id)
        further = role_host.gateways[1:]
        self._inboxes = {role: _Inbox() for role in (MASTER, *(host.name for host in [*sinks, *further]))}
        self._inboxes[gateway.name] = self._inboxes[MASTER]
        for hosts in self._slave_hosts:
            self._inboxes |= dict.fromkeys((host.name for host in hosts), _Inbox())
        self._transport = LocalTransport(self._inboxes, MASTER, clock, self._stop, main=True)
        self._main = HostedRoles([role_host, gateway], self._transport)
        role_host.meter = gateway.meter = self.meter
        threads = [*(list[Host]([host]) for host in [*sinks, *further]), *(list[Host](hosts) for hosts in self._slave_hosts)]
        self._others = [
            HostedRoles(hosts, LocalTransport(self._inboxes, hosts[0].name, clock, self._stop)) for hosts in threads
        ]
        self.resumed_tuples = 0  # read before this process
        self.restored = self._restore(clock)

    def _make_slaves(self, config: RunConfig, clock: RunClock) -> list[list[SlaveHost]]:
        """The slaves of each thread: one, or an instance of every stage of a plan."""
        gateway, count = self.role_host.gateway, self._width
        checkpointer = self.role_host.checkpointer
        manifest = None if checkpointer is None else checkpointer.folder.newest()
        instances = instances_from(gateway.instances, self.role_host.job, count, manifest)
        if instances is None:
            in_order = not shares(self.role_host.job.config, manifest)
            slaves = [
                [Slave(SlaveId(s), config, gateway.layouts, where=gateway.where, in_order=in_order)] for s in range(count)
            ]
        else:
            numbers = map(instances.subclusters.slaves_on, range(count))
            slaves = [[Slave.of_plan(instances, SlaveId(s)) for s in mine] for mine in numbers]
        return [[SlaveHost(slave, config, clock) for slave in mine] for mine in slaves]

    def _saved(self, role: RoleId, item: Any) -> None:
        """Take an event of a background thread, or its exception, for this role."""
        self._inboxes[role].put((role, item))

    def _restore(self, clock: RunClock) -> Manifest | None:
        """Make the roles, from the newest checkpoint if there is one; returns its manifest."""
        role_host, count = self.role_host, self._width
        if role_host.checkpointer is None:
            role_host.make(clock, count)
            for sink in self.sinks:
                sink.make(len(self.slaves))
            return None
        folder = role_host.checkpointer.folder
        manifest = folder.newest()
        if manifest is not None:
            clock.restart(manifest.plain["clock_us"])
        role_host.make(clock, count, self._saved)
        master = role_host.role
        self.resumed_tuples = role_host.tuples_read
        name, owner = role_host.checkpointer.manifest_name, master.controller.map.owner.tolist()
        for sink in self.sinks:
            sink.make(len(self.slaves), name, self._saved)
        try:
            for host in self.slaves:
                saved = partial(self._saved, host.name)
                host.checkpointer = SlaveCheckpointer(folder.path, folder.incarnation, host.role, master.config, saved)
                host.checkpointer.restore(name, owner, list(master.controller.active))
        except BaseException:
            self._close_logs()
            raise
        if manifest is not None:
            clock.restart(manifest.plain["clock_us"])  # it has stood until here, as on ranks
        return manifest

    def outcome(self, opening_s: float, start_rss_bytes: int) -> RunOutcome:
        """After `run`. opening_s: when this round began, on the monotonic clock. start_rss_bytes: before the first tuple."""
        host, ended_s = self.role_host, time.monotonic()
        first_s, measured_s, config = host.first_read_s, host.measured_s, host.job.config
        memory = {"start_rss_bytes": start_rss_bytes, "peak_rss_bytes": peak_rss_bytes()}
        return RunOutcome(
            master=host.role.summary(),
            gateways=[gateway.summary() for gateway in host.gateways],
            slaves=[slave.role.summary() for slave in self.slaves],
            sinks=[sink.summary() for sink in self.sinks],
            ranks=[{"rank": 0, "host": platform.node(), "role": "in-process", **memory}],
            join_s=ended_s - (opening_s if first_s is None else first_s),
            restored=self.restored,
            stopped=self.sinks[0].role.stopped,
            prefill_s=None if measured_s is None else measured_s - (first_s or measured_s),
            machine=machine_report(self.meter.summary(), [], slot_us=host.gateway.role.slot_us, imitates=config.nodes.imitates),
            columns=host.output_columns,
            plan=host.gateway.instances,
        )

    def _close_logs(self) -> None:
        for host in self.slaves:
            if host.checkpointer is not None:
                host.checkpointer.close()

    def run(self) -> None:
        """Run the master until every role has ended. Raises the exception of any role."""
        to_main = self._inboxes[MASTER]
        alone = len(self.sinks) + len(self.role_host.gateways) - 1  # sinks and gateways with threads of their own
        threads = [_RoleThread(f"role {i}", roles.run, to_main) for i, roles in enumerate(self._others[:alone])]
        for i, (hosts, roles) in enumerate(zip(self._slave_hosts, self._others[alone:], strict=True)):
            threads.append(_RoleThread(f"slave {i}", partial(_run_slaves, hosts, roles), to_main))
        self._transport.running = len(threads)
        try:
            for thread in threads:
                thread.start()
            self._main.run()
        finally:
            self._stop.set()
            for inbox in self._inboxes.values():
                if inbox is not to_main:
                    inbox.put(None)  # who waits for a message wakes up
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


def _run_slaves(hosts: Sequence[SlaveHost], roles: HostedRoles) -> None:
    try:
        roles.run()
    finally:
        for host in hosts:
            if host.checkpointer is not None:
                host.checkpointer.close()

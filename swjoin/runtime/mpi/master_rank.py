"""Master and first gateway as an MPI rank.

What: `MasterRank`, with `set_up`, `run`, which may be called again after a death, `finish` and `close`.
Why: the master's set-up under MPI, the start of a run and of its recoveries, and its report.
Stays out: decisions of the master (`cluster.master.master`), its loop, sources and files (`runtime.hosts`).
"""

from __future__ import annotations

import base64
import platform
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from swjoin.checkpoint.store import first_epoch_of
from swjoin.cluster.messages import LoadReport, Message
from swjoin.cluster.ranks import COLLECTOR_RANK, ROOT
from swjoin.cluster.role import gateway_role, sink_role
from swjoin.cluster.wire import CONTROL_TAG, FORMATS
from swjoin.config.job import Job
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import spelled
from swjoin.monitor.host_load import machine_report
from swjoin.runtime.clock import RunClock
from swjoin.runtime.flight_serving import Ports
from swjoin.runtime.host import Addressed, HostedRoles
from swjoin.runtime.kernel_preload import load_gateway_kernels, load_plan_kernels
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import BYE, STATUS, SUMMARY, VERDICT, Rank, agree, identity, parse
from swjoin.runtime.mpi.transport import MpiTransport
from swjoin.runtime.plausibility import add_warnings
from swjoin.runtime.progress import Wanted
from swjoin.runtime.run_report import CompleteReport, RunOutcome, build_report, check_ledger, proof_of, publish
from swjoin.runtime.traffic_report import write_traffic

if TYPE_CHECKING:
    from swjoin.checkpoint.store import Manifest
    from swjoin.runtime.hosts import MasterHost
    from swjoin.runtime.query_changes import QueryChanges


class _Transport(MpiTransport):
    """Emulates slow links while the run is measured, and keeps the epoch in the label of the rank."""

    def __init__(self, rank: MasterRank, channel: Channel, host: MasterHost) -> None:
        config = rank.job.config
        super().__init__(channel, (LoadReport,), rank.saved, rank.roles, partial(rank.start_measuring, channel))
        self._receives.reverse()  # loads are few, and would be old after control messages, of which some always wait
        self._rank, self._host, self._nodes, self._rush = rank, host, config.nodes, config.measure.rush
        self._clock_us: int | None = None  # at which all clocks restart, once the messages that announce it have left
        if not config.measure.prefill_us:
            self.link_bytes_per_s = config.nodes.link_bytes_per_s

    def check(self) -> None:
        self._rank.place[0] = f"{self._rank.where}, epoch {self._host.role.epoch}"
        super().check()

    def poll(self) -> Addressed | None:
        if self._clock_us is not None:
            super().restart_clock(self._clock_us)
            self._clock_us, self.link_bytes_per_s = None, self._nodes.link_bytes_per_s
        return super().poll()

    def restart_clock(self, clock_us: int) -> None:
        self._clock_us = clock_us

    def _passed(self, message: Message) -> None:
        if not (isinstance(message, Delivery) and message.last and self._rush):
            super()._passed(message)


class MasterRank(Rank):
    """The master. Its `run` returns the content of run.json."""

    def __init__(
        self,
        job: Job,
        place: list[str],
        progress: Wanted,
        complete_report: CompleteReport | None,
        changes: QueryChanges | None,
        started_s: float,
    ) -> None:
        """changes: of the run's queries, if it takes any. started_s: the run, on the monotonic clock."""
        super().__init__(job, place)
        self._complete_report, self._changes = complete_report, changes
        self.started_s = started_s
        self.recoveries: list[dict[str, Any]] = []
        self._progress = progress
        self._role_host: MasterHost | None = None
        self._failed_s: float | None = None  # time of the detection of a death, until the run continues
        self._warnings_s = 0.0  # time spent on warnings
        self._resumed_tuples = 0  # read before this process
        self._delivered_then = 0  # tuples delivered at the detection of a death

    def set_up(self, channel: Channel) -> None:
        from swjoin.expressions.vm import program_out
        from swjoin.runtime.hosts import MasterHost

        roles = self.take_roles(channel)

        @spelled(self.job.spelling)
        def open_role_host() -> dict[str, Any]:
            if not self.job.resumes:
                self.job.config.check_slaves(roles.slave_ranks)
            role_host = self._role_host = MasterHost(self.job, self._progress)
            plan = base64.b64encode(role_host.output_plan().to_bytes()).decode()
            layouts = [None if layout is None else [layout.fixed_bytes, layout.has_var] for layout in role_host.gateway.layouts]
            where = None if role_host.gateway.where is None else program_out(role_host.gateway.where)
            named = {"host": platform.node(), "run_id": self.job.run_id, "gateways": role_host.job.config.gateway_count}
            if self._changes is not None:
                named["job"] = self.job.to_json()
            return {"plan": plan, "layouts": layouts, "where": where, "first_gateway": role_host.gateway.known, **named}

        setup = agree(channel, ROOT, open_role_host)
        roles = self.take_gateways(channel, setup["gateways"])
        for gateway in range(1, roles.gateways):
            agree(channel, roles.rank_of(gateway_role(gateway)), None)
        for sink in range(roles.sinks):
            agree(channel, roles.rank_of(sink_role(sink)), None)
        assert self._role_host is not None
        first = self._role_host.gateway
        if first.instances is None:
            load_gateway_kernels(self.job.config, first.layouts, first.progress.compiling)
        else:
            load_plan_kernels(first.instances, first.progress.compiling)

    @property
    def ports(self) -> Ports:
        return Ports() if self._role_host is None else self._role_host.ports

    def lost(self, text: str) -> None:
        """A rank has died; `run` follows, on a new channel."""
        if self._failed_s is None:
            self._failed_s = time.monotonic()
            if self._role_host is not None and self._role_host.watcher is not None:
                self._role_host.watcher.board.enter("recovering")
            self._delivered_then = 0 if self._role_host is None else self._role_host.tuples_delivered

    def run(self, channel: Channel) -> dict[str, Any]:
        role_host = self._role_host
        assert role_host is not None
        manifest = self._start(channel, role_host)
        role_host.open_flight()  # not earlier: producers receive the restored positions
        gateway = role_host.gateway
        roles = HostedRoles([role_host, gateway], _Transport(self, channel, role_host))
        role_host.meter = gateway.meter = self.meter
        changes, stop_wanted = self._changes, self.stop_wanted
        role_host.stop_wanted = stop_wanted
        if changes is not None:
            changes.width = self.roles.slave_ranks
            role_host.stop_wanted = lambda: stop_wanted() or changes.wanted()
            changes.log(role_host.log, role_host.clock.now_us(), int(role_host.role.epoch))
        if role_host.watcher is not None or self.roles.gateways > 1:
            role_host.take_views = partial(self._take_status, channel, role_host)
        roles.run()
        me = identity(ROOT, "master", self.meter, self.start_rss_bytes)
        parts = self._gather(channel, role_host)
        writers = self.roles.writers
        if changes is None:
            channel.need_only(writers)
        slaves, sinks, gateways = (
            [summary for part in parts.values() for summary in part[kind]] for kind in ("slaves", "sinks", "gateways")
        )
        stopped = role_host.role.checkpoints.stopped
        first_s, measured_s = gateway.first_read_s, role_host.measured_s
        outcome = RunOutcome(
            master=role_host.role.summary(),
            gateways=sorted([gateway.summary(), *gateways], key=lambda summary: int(summary["gateway"])),
            slaves=sorted(slaves, key=lambda summary: int(summary["slave"])),
            sinks=sorted(sinks, key=lambda summary: int(summary["sink"])),
            ranks=[me, *(p["rank"] for p in parts.values())],
            prefill_s=None if measured_s is None or first_s is None else measured_s - first_s,
            machine=machine_report(
                me["machine"],
                [p["rank"]["machine"] for p in parts.values()],
                slot_us=gateway.role.slot_us,
                imitates=self.job.config.nodes.imitates,
            ),
            restored=manifest,
            recoveries=self.recoveries,
            stopped=stopped,
            columns=role_host.output_columns,
            plan=gateway.instances,
        )
        report = build_report(self.job, outcome)
        write_traffic(self.job.run_dir, outcome.plan, outcome.gateways, outcome.slaves)
        if not stopped:
            check_ledger(report)
            added_s = time.monotonic()
            # before the collector closes the result files with them
            add_warnings(report, self.job, gateway.sources, gateway.instances)
            self._warnings_s = time.monotonic() - added_s
        if changes is not None:
            self.changed = role_host.changed = stopped and not stop_wanted() and changes.wanted()
        proof = None if stopped else proof_of(report)
        for verdict in ({"proof": proof}, {"changed": self.changed}):  # of all files, then their names
            for rank in writers:
                channel.send_json(verdict, rank, VERDICT)
            for rank in writers:
                channel.wait(rank, VERDICT)
        if changes is not None:
            agree(channel, ROOT, lambda: {"changed": self.changed})
        if not self.changed:
            channel.farewell(BYE)
        return report

    @staticmethod
    def _gather(channel: Channel, role_host: MasterHost) -> dict[int, dict[str, Any]]:
        """The summaries of all other ranks. Late messages, such as `PartSaved`, are received and dropped, so that their senders
        can end."""
        parts: dict[int, dict[str, Any]] = {}
        while len(parts) < channel.size - 1:
            channel.check()
            role_host.observe()
            if channel.probe(channel.any, SUMMARY):
                rank = channel.source
                parts[rank] = parse(channel.receive())
            elif not MasterRank._drop(channel):
                channel.sleep()
        while MasterRank._drop(channel):
            pass
        MasterRank._take_status(channel, role_host)
        return dict(sorted(parts.items()))

    @staticmethod
    def _drop(channel: Channel) -> bool:
        """Receive and drop one late message. False when there is none."""
        for tag in (CONTROL_TAG, FORMATS[LoadReport].tag):
            if channel.probe(channel.any, tag):
                channel.receive()
                return True
        return False

    @staticmethod
    def _take_status(channel: Channel, role_host: MasterHost) -> None:
        while channel.probe(channel.any, STATUS):
            role_host.take_view(parse(channel.receive()))

    def finish(self, report: dict[str, Any]) -> None:
        """Complete and publish the report; called when all outputs are written and closed."""
        now = time.monotonic()
        report["wall_s"] = now - self.started_s
        first_s = None if self._role_host is None else self._role_host.gateway.first_read_s
        report["join_s"] = 0.0 if first_s is None else now - first_s - self._warnings_s
        tuples = sum(stream["tuples"] for stream in report["input"].values()) - self._resumed_tuples
        report["input_tuples_per_s"] = tuples / report["join_s"] if report["join_s"] > 0 else 0.0
        if self._complete_report is not None:
            self._complete_report(report, self.job)
        assert self._role_host is not None
        publish(self.job, report)
        self._role_host.remove_checkpoints()

    def close(self, error: BaseException | None) -> None:
        if self._role_host is not None:
            self._role_host.__exit__(None if error is None else type(error), error, None)

    # ------------------------------------------------------------ starting

    def _start(self, channel: Channel, role_host: MasterHost) -> Manifest | None:
        """Start together with all other ranks, from the newest checkpoint if there is one; returns its manifest."""
        from swjoin.checkpoint.checkpointers import shares

        slave_count = self.take_roles(channel).slave_ranks
        role_host.gateway.take_machines(self.slave_machines(channel))
        self.begin_attempt()

        def start() -> dict[str, Any]:
            checkpointer, clock = role_host.checkpointer, self.clock or RunClock()
            newest = None if checkpointer is None else checkpointer.folder.newest()
            if self.clock is None and newest is not None:
                clock.restart(newest.plain["clock_us"])
            role_host.make(clock, slave_count, self.save)
            owners = [controller.map.owner.tolist() for controller in role_host.role.controllers]
            if checkpointer is None:
                return {"manifest": None, "first_epoch": 0, "owners": owners, "shares": shares(role_host.job.config, None)}
            manifest = checkpointer.manifest
            return {
                "manifest": checkpointer.manifest_name,
                "first_epoch": first_epoch_of(manifest),
                "owners": owners,
                "folder": str(checkpointer.folder.path),
                "incarnation": checkpointer.folder.incarnation,
                "owner": role_host.role.controller.map.owner.tolist(),
                "active": [int(slave) for slave in role_host.role.controller.active],
                "shares": shares(role_host.job.config, manifest),
                "clock_us": None if manifest is None else manifest.plain["clock_us"],
            }

        setup = agree(channel, ROOT, start)
        if role_host.gateway.ingest is not None:
            role_host.gateway.ingest.relay_from(agree(channel, COLLECTOR_RANK, None)["results"])
            for number in range(1, self.roles.gateways):
                location = agree(channel, self.roles.rank_of(gateway_role(number)), None)["endpoint"]
                role_host.take_endpoint(number, location)
        for _ in range(1, self.roles.gateways):
            role_host.take_view(parse(channel.wait(channel.any, STATUS)))
        if self.clock is None:
            self._resumed_tuples = role_host.tuples_read
        role_host.clock = role_host.gateway.clock = self.start_clock(channel, setup.get("clock_us"))
        if self._failed_s is not None:
            replayed = role_host.delivered_again(self._delivered_then)
            took_s = time.monotonic() - self._failed_s
            self._failed_s = None
            self.recoveries.append({"slaves": slave_count, "s": took_s, "tuples": replayed, "from": setup["manifest"]})
            role_host.log_recovery(f"{slave_count} slaves are left", replayed, int(took_s * 1e6))
        return None if role_host.checkpointer is None else role_host.checkpointer.manifest

"""The master as an MPI rank.

What: `MasterRank`, with `set_up`, `play`, which may be tried again after a death, `finish` and `close`.
Why: the loop around the master: what came from other ranks, from the clock, from the disk, and from the sources, in this order.
Stays out: what the master decides (`cluster.master.master`), its sources and files (`runtime.hosts`).
"""

from __future__ import annotations

import base64
import platform
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from swjoin.cluster.messages import (
    ClockAdvanced,
    MoveEnded,
    PartSaved,
    SlaveReported,
    StopRequested,
)
from swjoin.cluster.wire import (
    pack_delivery,
    unpack_move_end,
    unpack_report,
)
from swjoin.config.job import Job
from swjoin.core.errors import spelled
from swjoin.core.ids import SlaveId
from swjoin.monitor.host_load import machine_report
from swjoin.policy.epochs import next_exchange_us
from swjoin.runtime.clock import RunClock
from swjoin.runtime.idle_sources import PATIENCE_S
from swjoin.runtime.kernel_preload import load_master_kernels
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import (
    BEGIN,
    BYE,
    COLLECTOR,
    DELIVERY,
    FIRST_SLAVE,
    MASTER,
    MOVE_END,
    NOTHING,
    PUBLISH,
    REPORT,
    SAVED,
    STATUS,
    SUMMARY,
    VERDICT,
    Rank,
    agree,
    identity,
    parse,
)
from swjoin.runtime.plausibility import add_warnings
from swjoin.runtime.run_report import CompleteReport, build_report, check_ledger, proof_of, publish

if TYPE_CHECKING:
    from swjoin.checkpoint.store import Manifest
    from swjoin.cluster.master.master import Master
    from swjoin.runtime.hosts import MasterHost


def _delivered(master: Master) -> int:
    """Tuples of both streams that have left the master."""
    return sum(s.counts.tuples - master.waiting_tuples(s.stream) for s in master.streams)


class MasterRank(Rank):
    """The master. Its `play` returns the content of run.json."""

    def __init__(self, job: Job, place: list[str], progress: bool, complete_report: CompleteReport | None = None) -> None:
        super().__init__(job, place)
        self._complete_report = complete_report
        self.started_s = time.monotonic()
        self.recoveries: list[dict[str, Any]] = []
        self._progress = progress
        self._role_host: MasterHost | None = None
        self._first_read_s: float | None = None
        self._began_s: float | None = None
        self._failed_s: float | None = None  # when a death was noticed, until the run goes on
        self._warnings_s = 0.0  # that looking for warnings took
        self._resumed_tuples = 0  # read before this process
        self._delivered_then = 0  # tuples, when it was

    def set_up(self, channel: Channel) -> None:
        from swjoin.expressions.vm import program_out
        from swjoin.runtime.hosts import MasterHost

        @spelled(self.job.spelling)
        def open_role_host() -> dict[str, Any]:
            slave_count = channel.size - FIRST_SLAVE
            if not self.job.resumes:
                self.job.config.check_slaves(slave_count)
            role_host = self._role_host = MasterHost(self.job, self._progress)
            plan = base64.b64encode(role_host.output_plan().to_bytes()).decode()
            layouts = [None if layout is None else [layout.fixed_bytes, layout.has_var] for layout in role_host.layouts]
            where = None if role_host.where is None else program_out(role_host.where)
            named = {"host": platform.node(), "run_id": self.job.run_id}
            return {"plan": plan, "layouts": layouts, "where": where, **named}

        agree(channel, MASTER, open_role_host)
        results = agree(channel, COLLECTOR, None)["results"]
        assert self._role_host is not None
        if self._role_host.ingest is not None:
            self._role_host.ingest.pass_on(results)
        load_master_kernels(self.job.config, self._role_host.layouts)

    def lost(self, text: str) -> None:
        """A rank has died; `play` follows, on a new channel."""
        if self._failed_s is None:
            self._failed_s = time.monotonic()
            if self._role_host is not None and self._role_host.watcher is not None:
                self._role_host.watcher.board.enter("recovering")
            self._delivered_then = 0 if self._role_host is None else _delivered(self._role_host.master)

    def play(self, channel: Channel) -> dict[str, Any]:
        role_host = self._role_host
        assert role_host is not None
        manifest = self._start(channel, role_host)
        role_host.open_flight()  # not before: what producers are told to go on with has been restored by now
        self._serve(channel, role_host)
        me = identity(MASTER, "master", self.meter, self.start_rss_bytes)
        parts = self._gather(channel, role_host)
        channel.slaves_are_done()
        stopped = role_host.master.checkpoints.stopped
        report = build_report(
            self.job,
            master=role_host.master.summary(),
            slaves=[parts[r]["summary"] for r in range(FIRST_SLAVE, channel.size)],
            collector=parts[COLLECTOR]["summary"],
            ranks=[me, *(p["rank"] for p in parts.values())],
            wall_s=0.0,
            join_s=0.0,
            prefill_s=None if self._began_s is None or self._first_read_s is None else self._began_s - self._first_read_s,
            machine=machine_report(
                me["machine"],
                [p["rank"]["machine"] for p in parts.values()],
                slot_us=self._slot_us if self.job.config.pace == "realtime" else 0,
                imitates=self.job.config.nodes.imitates,
            ),
            restored=manifest,
            recoveries=self.recoveries,
            stopped=stopped,
            columns=role_host.output_columns,
        )
        if not stopped:
            check_ledger(report)
            began_s = time.monotonic()
            add_warnings(report, self.job, role_host.sources)  # before the collector closes the result files, which carry them
            self._warnings_s = time.monotonic() - began_s
        channel.send_json({"proof": None if stopped else proof_of(report)}, COLLECTOR, VERDICT)
        channel.wait(COLLECTOR, VERDICT)
        channel.farewell(BYE)
        return report

    @staticmethod
    def _gather(channel: Channel, role_host: MasterHost) -> dict[int, dict[str, Any]]:
        """Every other rank's summary. What of a checkpoint becomes durable now matters no more, but its sender must get rid of
        it."""
        parts: dict[int, dict[str, Any]] = {}
        while len(parts) < channel.size - 1:
            channel.check()
            MasterRank._observe(channel, role_host)
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
        """Receive one message that came too late to matter. False when there is none."""
        for tag in (SAVED, REPORT, MOVE_END):
            if channel.probe(channel.any, tag):
                channel.receive()
                return True
        return False

    @staticmethod
    def _observe(channel: Channel, role_host: MasterHost) -> None:
        """Now and then: who looks on sees how things stand here and at the collector."""
        if role_host.observe():
            MasterRank._take_status(channel, role_host)

    @staticmethod
    def _take_status(channel: Channel, role_host: MasterHost) -> None:
        while role_host.watcher is not None and channel.probe(COLLECTOR, STATUS):
            role_host.watcher.board.take_collector(parse(channel.receive()))

    def finish(self, report: dict[str, Any]) -> None:
        """Everything is written and closed."""
        now = time.monotonic()
        report["wall_s"] = now - self.started_s
        report["join_s"] = 0.0 if self._first_read_s is None else now - self._first_read_s - self._warnings_s
        tuples = sum(report["input"][name]["tuples"] for name in ("left", "right")) - self._resumed_tuples
        report["input_tuples_per_s"] = tuples / report["join_s"] if report["join_s"] > 0 else 0.0
        if self._complete_report is not None:
            self._complete_report(report, self.job)
        assert self._role_host is not None
        publish(self.job, report)
        self._role_host.forget_checkpoints()

    def close(self, error: BaseException | None) -> None:
        if self._role_host is not None:
            self._role_host.__exit__(None if error is None else type(error), error, None)

    # ------------------------------------------------------------ starting

    @property
    def _slot_us(self) -> int:
        cluster = self.job.config.cluster
        return max(1, cluster.distribution_epoch_us // cluster.sub_group_count)

    def _start(self, channel: Channel, role_host: MasterHost) -> Manifest | None:
        """Begin, or go on from the newest checkpoint, together with all others; returns that checkpoint."""
        slave_count = channel.size - FIRST_SLAVE
        self.saved = deque()

        def start() -> dict[str, Any]:
            checkpointer, clock = role_host.checkpointer, self.clock or RunClock()
            newest = None if checkpointer is None else checkpointer.folder.newest()
            if self.clock is None and newest is not None:
                clock.restart(newest.plain["clock_us"])
            role_host.start(clock, slave_count, self.saved.append)
            if checkpointer is None:
                return {"manifest": None}
            manifest = checkpointer.manifest
            return {
                "manifest": checkpointer.manifest_name,
                "folder": str(checkpointer.folder.path),
                "incarnation": checkpointer.folder.incarnation,
                "owner": role_host.master.controller.map.owner.tolist(),
                "active": [int(slave) for slave in role_host.master.controller.active],
                "clock_us": None if manifest is None else manifest.plain["clock_us"],
            }

        setup = agree(channel, MASTER, start)
        if self.clock is None:
            self._resumed_tuples = sum(s.counts.tuples for s in role_host.master.streams)
        role_host.clock = self.start_clock(channel, setup.get("clock_us"))
        if self._failed_s is not None:
            replayed = self._delivered_then - _delivered(role_host.master)
            took_s = time.monotonic() - self._failed_s
            self._failed_s = None
            self.recoveries.append({"slaves": slave_count, "s": took_s, "tuples": replayed, "from": setup["manifest"]})
            role_host.note_recovery(f"{slave_count} slaves are left", replayed, int(took_s * 1e6))
        return None if role_host.checkpointer is None else role_host.checkpointer.manifest

    # ------------------------------------------------------------ running

    def _serve(self, channel: Channel, role_host: MasterHost) -> None:
        """The master's loop."""
        clock = self.clock
        assert clock is not None
        realtime, slot_us = self.job.config.pace == "realtime", self._slot_us
        boundary_us = next_exchange_us(clock.now_us(), slot_us)
        in_history = self.job.config.measure.prefill_us > 0
        link, rush = self.job.config.nodes.link_bytes_per_s, self.job.config.measure.rush
        while role_host.outbox or not role_host.master.finished:
            self.place[0] = f"{self.where}, epoch {role_host.master.epoch}"
            channel.check()
            self._observe(channel, role_host)
            if role_host.outbox:
                delivery = role_host.outbox.popleft()
                channel.send(pack_delivery(delivery), FIRST_SLAVE + delivery.slave, DELIVERY)
                if not in_history and not (delivery.last and rush):
                    channel.imitate_transfer(delivery.nbytes, link)
            elif role_host.clock_starts_us is not None:
                for rank in range(1, channel.size):
                    channel.send(NOTHING, rank, BEGIN)
                self.begin_measuring(channel, role_host.clock_starts_us)
                role_host.clock_starts_us, in_history, self._began_s = None, False, time.monotonic()
                boundary_us = next_exchange_us(clock.now_us(), slot_us)
            elif channel.probe(channel.any, REPORT):
                slave = channel.source - FIRST_SLAVE
                report = unpack_report(channel.receive())
                role_host.handle(SlaveReported(SlaveId(slave), report.occupancy_ratio, report.loads))
            elif channel.probe(channel.any, MOVE_END):
                role_host.handle(MoveEnded(unpack_move_end(channel.receive())))
            elif role_host.checkpointer is not None and self._mind_checkpoints(channel, role_host):
                continue
            elif realtime and clock.now_us() >= boundary_us:
                self.meter.lateness.add(clock.now_us() - boundary_us)
                boundary_us = next_exchange_us(clock.now_us(), slot_us)
                role_host.handle(ClockAdvanced())
            elif role_host.wanted is not None:
                if self._first_read_s is None:
                    self._first_read_s = time.monotonic()
                role_host.read()
            elif role_host.listen():
                channel.sleep(int(PATIENCE_S * 1e6))
            else:
                channel.sleep(boundary_us - clock.now_us() if realtime else 1_000_000)
        self._publish(channel, role_host)

    def _mind_checkpoints(self, channel: Channel, role_host: MasterHost) -> bool:
        """What has become durable, here or elsewhere, and whether the run is to stop. False when nothing was to be done."""
        if self.saved:
            event = self.saved.popleft()
            if isinstance(event, BaseException):
                raise event
            role_host.handle(event)
        elif channel.probe(channel.any, SAVED):
            plain = parse(channel.receive())
            role_host.handle(PartSaved(plain["generation"], plain["part"], plain["content"]))
        elif role_host.publish:
            self._publish(channel, role_host)
        elif self.stop_wanted() and not role_host.master.checkpoints.stopping:
            role_host.handle(StopRequested())
        else:
            return False
        return True

    @staticmethod
    def _publish(channel: Channel, role_host: MasterHost) -> None:
        while role_host.publish:
            command = role_host.publish.popleft()
            message = {"generation": command.generation, "stop": command.stop}
            for rank in range(1, channel.size) if command.stop else [COLLECTOR]:
                channel.send_json(message, rank, PUBLISH)

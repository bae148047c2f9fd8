"""Further gateways, sinks and slaves as an MPI rank, one of them or several.

What: `WorkerRank`, with `set_up`, `run`, which may be called again after a death, and `close`.
Why: every rank but the first plays the roles that `cluster.ranks` gives it, after a death perhaps others; failing ranks send
sinks their reason, so that results are marked incomplete.
Stays out: decisions of the roles (`cluster`), files (`runtime.hosts`), the slave's loop (`runtime.slave_host`), its log
(`checkpoint.checkpointers`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import platform
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.messages import Message
from swjoin.cluster.ranks import COLLECTOR_RANK, ROOT
from swjoin.cluster.role import gateway_role, sink_role, slave_role
from swjoin.config.job import Job
from swjoin.core.batch import RowLayout
from swjoin.core.data_messages import Delivery, ResultChunk, StateChunk
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import SlaveId
from swjoin.runtime.clock import RunClock
from swjoin.runtime.host import Addressed, HostedRoles
from swjoin.runtime.kernel_preload import load_gateway_kernels, load_plan_kernels, load_slave_kernels
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import BYE, STATUS, SUMMARY, VERDICT, Rank, agree, check_peers, identity, parse
from swjoin.runtime.mpi.transport import MpiTransport
from swjoin.runtime.open import instances_of
from swjoin.runtime.run_report import rank_roles
from swjoin.runtime.slave_host import SlaveHost

if TYPE_CHECKING:
    from swjoin.checkpoint.checkpointers import SlaveCheckpointer
    from swjoin.expressions.vm import Program
    from swjoin.runtime.hosts import CollectorHost, GatewayHost


class _Transport(MpiTransport):
    """Emulates a slow link while the run is measured, and keeps the epoch in the label of the rank."""

    def __init__(self, rank: WorkerRank, channel: Channel, *, slaves: bool, sinks: bool) -> None:
        config = rank.job.config
        receives: list[type] = [*((Delivery, StateChunk) if slaves else ()), *((ResultChunk,) if sinks else ())]
        super().__init__(channel, receives, rank.saved, rank.roles, partial(rank.start_measuring, channel))
        self._rank, self._nodes, self._rush, self._sinks = rank, config.nodes, config.measure.rush, sinks
        self._restarted = False
        if (slaves or rank.roles.gateways_of(channel.rank)) and not config.measure.prefill_us:
            self.link_bytes_per_s = config.nodes.link_bytes_per_s

    def restart_clock(self, clock_us: int) -> None:
        if self._restarted:
            return  # for another role of this rank
        self._restarted = True
        super().restart_clock(clock_us)
        self.link_bytes_per_s = self._nodes.link_bytes_per_s

    def wait(self, at_most_us: int) -> Addressed | None:
        if self._sinks:
            check_peers(self.channel)
        return super().wait(at_most_us)

    def _passed(self, message: Message) -> None:
        if isinstance(message, Delivery):
            self._rank.place[0] = f"{self._rank.where}, epoch {message.epoch}"
            if message.last and self._rush:
                self.link_bytes_per_s = 0.0
        super()._passed(message)


def _endpoint(host: GatewayHost) -> dict[str, Any]:
    return {"endpoint": host.location}


class WorkerRank(Rank):
    def __init__(self, job: Job, place: list[str], *, takes_changes: bool) -> None:
        """takes_changes: the run's queries may change; then the master knows the job."""
        super().__init__(job, place)
        self._takes_changes = takes_changes
        self._layouts: tuple[RowLayout | None, RowLayout | None] = (None, None)
        self._where: Program | None = None
        self._setup: dict[str, Any] = {}
        self._sinks: dict[int, CollectorHost] = {}
        self._gateways: dict[int, GatewayHost] = {}
        self._checkpointers: list[SlaveCheckpointer] = []

    @property
    def writes(self) -> bool:
        """Whether this rank has results that are to be marked when the run fails."""
        return bool(self._sinks)

    def set_up(self, channel: Channel) -> None:
        from swjoin.expressions.vm import program_in

        def stop(number: int, _frame: object) -> None:
            raise RunFailed(f"stopped by {signal.Signals(number).name}")

        roles = self.take_roles(channel)
        mine = roles.sinks_of(channel.rank)
        if mine and self.job.checkpoints is None:
            signal.signal(signal.SIGTERM, stop)
        setup = self._setup = agree(channel, ROOT, None)
        left, right = (None if item is None else RowLayout(*item) for item in setup["layouts"])
        self._layouts = left, right
        if setup["where"] is not None:
            self._where = program_in(setup["where"])
        if self._takes_changes:
            self.job = Job.from_json(setup["job"])
        self.job = dataclasses.replace(self.job, run_id=setup["run_id"])  # under other launchers each rank has its own
        roles = self.take_gateways(channel, setup["gateways"])
        mine = roles.sinks_of(channel.rank)
        for gateway in range(1, roles.gateways):
            reads = partial(self._open_gateway, gateway) if gateway in roles.gateways_of(channel.rank) else None
            agree(channel, roles.rank_of(gateway_role(gateway)), reads)
        for sink in range(roles.sinks):
            opens = partial(self._open_sink, sink) if sink in mine else None
            agree(channel, roles.rank_of(sink_role(sink)), opens)
        self._load_kernels(reads=bool(self._gateways), joins=roles.slave_of(channel.rank) is not None)

    def _load_kernels(self, *, reads: bool, joins: bool) -> None:
        instances = instances_of(self.job, 1)
        if instances is not None and (reads or joins):
            load_plan_kernels(instances)
            return
        if joins:
            load_slave_kernels(self.job.config, self._layouts)
        if reads:
            load_gateway_kernels(self.job.config, self._layouts)

    def _open_gateway(self, number: int) -> dict[str, Any]:
        from swjoin.monitor.role_watchers import GatewayWatcher
        from swjoin.runtime.hosts import GatewayHost

        if self.job.config.pushed:
            self._check_reached(f"gateway {number}")
        watcher, first = GatewayWatcher(self.job.config), self._setup["first_gateway"]
        self._gateways[number] = GatewayHost(self.job, False, watcher, None, number, first)
        return {}

    def _check_reached(self, role: str) -> None:
        """UserError when this rank's endpoint would be on another host than the master's, on the loopback."""
        serve, host = self.job.config.serve, platform.node()
        if serve.listen is not None and serve.loopback and host != self._setup["host"]:
            raise UserError(
                f"serve.listen {serve.listen}: {role} is on {host}, the master on {self._setup['host']}; listen where "
                f"they reach each other, with certificate, private_key and token_file, or give both the same host"
            )

    def _open_sink(self, number: int, *, again: bool = False) -> dict[str, Any]:
        """Open a sink. again: another rank had it, which has died; its outputs exist."""
        from swjoin.connectors.output_columns import columns_from_bytes
        from swjoin.runtime.hosts import CollectorHost

        self._check_reached(f"sink {number}" if number else "the collector")
        plan = columns_from_bytes(base64.b64decode(self._setup["plan"]))
        job = dataclasses.replace(self.job, resumes=self.job.resumes or again)
        self._sinks[number] = CollectorHost(job, plan, RunClock(), number=number)
        return {}

    def lost(self, text: str) -> None:
        """After a death of another rank; `run` follows, on a new channel."""
        self._close_logs()

    def run(self, channel: Channel) -> None:
        self.take_roles(channel)
        machine_names = self.slave_machines(channel)
        setup = agree(channel, ROOT, None)
        self.begin_attempt()
        sinks = self._sinks_of(channel)
        gateways = self._gateways_of(channel, {**setup, "machine_names": machine_names})
        slaves = self._slaves(channel, setup)
        instances = instances_of(self.job, self.roles.slave_ranks)
        count = self.roles.slave_ranks if instances is None else instances.slave_count

        def send_view(view: dict[str, Any]) -> None:
            channel.send_later(np.frombuffer(json.dumps(view).encode(), np.uint8), ROOT, STATUS)

        for gateway in gateways:
            gateway.show(send_view)
        for sink in sinks:
            sink.make(count, setup["manifest"], self.save)
            sink.send_view = send_view
            sink.ranks = rank_roles(self.roles, platform.node() if platform.node() == self._setup["host"] else "")
        if self.job.config.serve.listen is not None:  # once they are restored
            offer = agree(channel, COLLECTOR_RANK, self._offer if channel.rank == COLLECTOR_RANK else None)
            for sink in sinks:
                if sink.offered is not None:
                    sink.offered.connect(offer)
            for number in range(1, self.roles.gateways):
                own = self._gateways.get(number)
                agree(channel, self.roles.rank_of(gateway_role(number)), None if own is None else partial(_endpoint, own))
        clock = self.start_clock(channel, setup.get("clock_us"))
        hosts = [SlaveHost(slave, self.job.config.fitted_to(self.roles.slave_ranks), clock) for slave in slaves]
        for host, checkpointer in zip(hosts, self._checkpointers, strict=False):
            host.checkpointer = checkpointer
        for host in hosts:
            host.meter = self.meter
        for other in (*sinks, *gateways):
            other.clock = clock
        for gateway in gateways:
            if gateway.ingest is not None:
                gateway.ingest.open()
        transport = _Transport(self, channel, slaves=bool(slaves), sinks=bool(sinks))
        HostedRoles([*sinks, *gateways, *hosts], transport).run()
        me = identity(channel.rank, self.roles.name_of(channel.rank), self.meter, self.start_rss_bytes)
        summaries = {"sinks": [sink.summary() for sink in sinks], "slaves": [slave.summary() for slave in slaves]}
        summaries["gateways"] = [gateway.summary() for gateway in gateways]
        channel.send_json({**summaries, "rank": me}, ROOT, SUMMARY)
        if sinks or gateways:
            self._end_files(channel)
        self._close_logs()
        self.changed = self._takes_changes and agree(channel, ROOT, None)["changed"]
        if not self.changed:
            channel.farewell(BYE)

    def _sinks_of(self, channel: Channel) -> list[CollectorHost]:
        """The hosts of this rank's sinks; of those that another rank plays now, after a death, the files are closed."""
        mine = self.roles.sinks_of(channel.rank)
        for number in [number for number in self._sinks if number not in mine]:
            error = RunFailed(f"sink {number} is on another rank now")
            self._sinks.pop(number).__exit__(RunFailed, error, None)
        for number in mine:
            if number not in self._sinks:
                try:
                    self._open_sink(number, again=True)
                except UserError as error:
                    raise RunFailed(f"sink {number} cannot go on: {error}; {self.job.next_step(channel.size)}") from None
        return [self._sinks[number] for number in mine]

    def _gateways_of(self, channel: Channel, setup: dict[str, Any]) -> list[GatewayHost]:
        """The hosts of this rank's gateways, restored; those of gateways that another rank plays now are closed."""
        from swjoin.checkpoint.store import read_manifest
        from swjoin.runtime.hosts import Start

        mine = self.roles.gateways_of(channel.rank)
        for number in [number for number in self._gateways if number not in mine]:
            self._gateways.pop(number).close(RunFailed(f"gateway {number} is on another rank now"), complete=False)
        start = manifest = None
        if self.job.checkpoints is not None:
            folder, start = Path(setup["folder"]), Start(setup["incarnation"], self.save)
            manifest = None if setup["manifest"] is None else read_manifest(folder / setup["manifest"])
        for number in mine:
            if number not in self._gateways:
                self._open_gateway(number)
            host = self._gateways[number]
            if start is not None and host.checkpointer is None:
                host.keep_checkpoints(folder)
            host.take_machines(setup["machine_names"])
            host.make(RunClock(), self.roles.slave_ranks, manifest, start, setup["owners"])
            if start is not None:
                host.restore(manifest, np.array(setup["owner"], np.int64), setup["active"])
        return [self._gateways[number] for number in mine]

    def _offer(self) -> dict[str, Any]:
        """Where consumers and other sinks find the log of results now: at the first sink."""
        offered = self._sinks[0].offered
        return {"results": None} if offered is None else offered.offer()

    def _slaves(self, channel: Channel, setup: dict[str, Any]) -> list[Any]:
        """This rank's slave, or its instance of every stage of a plan, restored."""
        from swjoin.cluster.slave.slave import Slave

        number, count = self.roles.slave_of(channel.rank), self.roles.slave_ranks
        if number is None:
            return []
        config = self.job.config.fitted_to(count)
        instances = instances_of(self.job, count, setup["first_epoch"], setup["owners"])
        if instances is None:
            in_order = not setup["shares"]
            slaves = [Slave(SlaveId(number), config, self._layouts, where=self._where, in_order=in_order)]
        else:
            slaves = [Slave.of_plan(instances, SlaveId(s)) for s in instances.subclusters.slaves_on(number)]
        if self.job.checkpoints is not None:
            from swjoin.checkpoint.checkpointers import SlaveCheckpointer

            for slave in slaves:
                saved = partial(self.save, slave_role(slave.id))
                checkpointer = SlaveCheckpointer(Path(setup["folder"]), setup["incarnation"], slave, config, saved)
                self._checkpointers.append(checkpointer)
                checkpointer.restore(setup["manifest"], setup["owner"], setup["active"])
        return slaves

    def _end_files(self, channel: Channel) -> None:
        """Complete the files when the ledger balances, and name them when those of all ranks are complete."""

        def verdict() -> dict[str, Any]:
            while not channel.probe(ROOT, VERDICT):
                channel.check()
                check_peers(channel)
                channel.sleep()
            return parse(channel.receive())

        proof = verdict()["proof"]
        for sink in self._sinks.values():
            sink.proof = proof
            sink.finish()
        channel.send_json({"finished": True}, ROOT, VERDICT)
        changed = bool(verdict()["changed"])
        for sink in self._sinks.values() if changed else ():
            sink.pause()
        self._close_sinks(None)
        self._close_gateways(None, complete=proof is not None, changes=changed)
        channel.send_json({"closed": True}, ROOT, VERDICT)

    def close(self, error: BaseException | None) -> None:
        self._close_logs()
        self._close_sinks(error)
        self._close_gateways(error, complete=False)

    def _close_gateways(self, error: BaseException | None, *, complete: bool, changes: bool = False) -> None:
        gateways, self._gateways = self._gateways, {}
        for gateway in gateways.values():
            gateway.close(error, complete=complete, changes=changes)

    def _close_logs(self) -> None:
        checkpointers, self._checkpointers = self._checkpointers, []
        for checkpointer in checkpointers:
            checkpointer.close()

    def _close_sinks(self, error: BaseException | None) -> None:
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.__exit__(None if error is None else type(error), error, None)

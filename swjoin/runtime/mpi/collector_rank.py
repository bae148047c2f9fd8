"""The collector as an MPI rank.

What: `CollectorRank`, with `set_up`, `run`, which may be called again after a death, and `close`.
Why: the collector's set-up under MPI; failing ranks send it their reason, so that results are marked incomplete.
Stays out: decisions of the collector (`cluster.collector`), its files (`runtime.hosts`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import platform
import signal
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.messages import CheckpointDurable, MeasuringStarted
from swjoin.config.job import Job
from swjoin.core.data_messages import ResultChunk
from swjoin.core.errors import RunFailed, UserError
from swjoin.runtime.clock import RunClock
from swjoin.runtime.host import Addressed, HostedRoles
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import BYE, STATUS, SUMMARY, VERDICT, Rank, agree, check_peers, identity, parse
from swjoin.runtime.mpi.transport import COLLECTOR_RANK, FIRST_SLAVE, ROOT, MpiTransport
from swjoin.runtime.open import instances_of
from swjoin.runtime.run_report import rank_roles

if TYPE_CHECKING:
    from swjoin.runtime.hosts import CollectorHost


class _Transport(MpiTransport):
    def wait(self, at_most_us: int) -> Addressed | None:
        check_peers(self.channel)
        return super().wait(at_most_us)


class CollectorRank(Rank):
    def __init__(self, job: Job, place: list[str]) -> None:
        super().__init__(job, place)
        self._role_host: CollectorHost | None = None

    def set_up(self, channel: Channel) -> None:
        from swjoin.connectors.output_columns import OutputColumns
        from swjoin.runtime.hosts import CollectorHost

        def stop(number: int, _frame: object) -> None:
            raise RunFailed(f"stopped by {signal.Signals(number).name}")

        if self.job.checkpoints is None:
            signal.signal(signal.SIGTERM, stop)
        setup = agree(channel, ROOT, None)

        def open_sink() -> dict[str, Any]:
            plan = OutputColumns.from_bytes(base64.b64decode(setup["plan"]))
            serve, host = self.job.config.serve, platform.node()
            if serve.listen is not None and serve.loopback and host != setup["host"]:
                raise UserError(
                    f"serve.listen {serve.listen}: the collector is on {host}, the master on {setup['host']}; listen where "
                    f"they reach each other, with certificate, private_key and token_file, or give both the same host"
                )
            self.job = dataclasses.replace(self.job, run_id=setup["run_id"])  # under other launchers each rank has its own
            role_host = self._role_host = CollectorHost(self.job, plan, RunClock())
            role_host.ranks = rank_roles(channel.size, host if host == setup["host"] else "")
            return {"results": None if role_host.offered is None else role_host.offered.location}

        agree(channel, COLLECTOR_RANK, open_sink)

    def lost(self, text: str) -> None:
        """No action after a death of another rank; `run` follows, on a new channel."""

    def run(self, channel: Channel) -> None:
        role_host = self._role_host
        assert role_host is not None
        setup = agree(channel, ROOT, None)
        self.saved = deque()
        ranks = channel.size - FIRST_SLAVE
        instances = instances_of(self.job, ranks)
        role_host.make(ranks if instances is None else instances.slave_count, setup["manifest"], self.save)
        role_host.clock = self.start_clock(channel, setup.get("clock_us"))
        role_host.send_view = lambda view: channel.send_later(np.frombuffer(json.dumps(view).encode(), np.uint8), ROOT, STATUS)
        receives: list[tuple[int, type]] = [(channel.any, ResultChunk)]
        receives += [(ROOT, CheckpointDurable)] if role_host.checkpointer is not None else []
        receives += [(ROOT, MeasuringStarted)] if self.job.config.measure.prefill_us else []
        transport = _Transport(channel, receives, self.saved, partial(self.start_measuring, channel))
        HostedRoles([role_host], transport).run()
        me = identity(COLLECTOR_RANK, "collector", self.meter, self.start_rss_bytes)
        channel.send_json({"summaries": [role_host.summary()], "rank": me}, ROOT, SUMMARY)
        while not channel.probe(ROOT, VERDICT):
            channel.check()
            check_peers(channel)
            channel.sleep()
        role_host.proof = parse(channel.receive())["proof"]
        self.close(None)
        channel.send_json({"closed": True}, ROOT, VERDICT)
        channel.farewell(BYE)

    def close(self, error: BaseException | None) -> None:
        role_host, self._role_host = self._role_host, None
        if role_host is not None:
            role_host.__exit__(None if error is None else type(error), error, None)

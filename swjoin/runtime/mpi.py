"""The MPI runtime: rank 0 master, rank 1 collector, ranks 2.. slaves.

What: `run_rank(job, progress)`, called on every rank of an mpirun.
Why: a real cluster. The master serves the slaves in a fixed order, each after it has reported, so that both sides of every
large message are present when it is sent (paper section IV: no any-time, any-to-any messages). Data travels as frames
(`runtime.wire`) in upper-case buffer calls; set-up and summaries are JSON bytes. Nothing is unpickled.
Stays out: what the roles decide. Only this module knows ranks.

A waiting rank sleeps between probes instead of spinning in MPI, so that more ranks than cores do not starve each other, and so
that a signal or another rank's failure is seen within milliseconds.
"""

from __future__ import annotations

import base64
import json
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import RowLayout
from swjoin.errors import RunFailed, SwjoinError, UserError
from swjoin.messages import (
    AcknowledgeMove,
    ClockAdvanced,
    Delivered,
    ExchangeDue,
    MoveEnded,
    Report,
    SendResults,
    SendState,
    SlaveCommand,
    SlaveId,
    SlaveReported,
    StateReceived,
    StateWanted,
    WantState,
    WorkDue,
)
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.channel import Channel
from swjoin.runtime.clock import RunClock
from swjoin.runtime.job import Job
from swjoin.runtime.memory import keep_freed_memory
from swjoin.runtime.preload import load_master_kernels, load_slave_kernels
from swjoin.runtime.report import build_report, check_ledger, peak_rss_bytes, publish
from swjoin.runtime.throttle import Throttle
from swjoin.runtime.wire import (
    pack_delivery,
    pack_move_end,
    pack_report,
    pack_results,
    pack_state,
    unpack_delivery,
    unpack_move_end,
    unpack_report,
    unpack_results,
    unpack_state,
)

if TYPE_CHECKING:
    pass

MASTER, COLLECTOR, FIRST_SLAVE = 0, 1, 2
REPORT, DELIVERY, RESULTS, SUMMARY, VERDICT, FAILURE, WANT, STATE, MOVE_END = 1, 2, 3, 4, 5, 6, 7, 8, 9
_FLUSH_S = 3.0  # how long a failing rank leaves the collector to mark its results incomplete
_ROLES = ("master", "collector")


class _PeerFailed(RunFailed):
    """Another rank failed and has told the collector why."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _parse(data: NDArray[np.uint8]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(bytes(data))
    return value


def _identity(rank: int, role: str) -> dict[str, Any]:
    return {"rank": rank, "host": platform.node(), "role": role, "peak_rss_bytes": peak_rss_bytes()}


def run_rank(job: Job, progress: bool, debug: bool = False) -> dict[str, Any] | None:
    """Play this rank's role to the end. Rank 0 returns the content of run.json, the others None.

    Bad input found before the run starts raises UserError on rank 0 and ends the other ranks quietly with the same exit code.
    A failure during the run prints one line with rank, role, host and epoch, and ends the whole job.
    """
    import mpi4py

    keep_freed_memory()
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank = comm.rank
    if comm.size < 3:
        raise UserError(f"{comm.size} MPI ranks given; a cluster needs at least 3: master, collector and one slave (-n 3)")
    channel = Channel(comm)
    role = _ROLES[rank] if rank < FIRST_SLAVE else f"slave {rank - FIRST_SLAVE}"
    place = [f"rank {rank} ({role}) on {platform.node()}"]
    try:
        if rank == MASTER:
            return _run_master(job, channel, progress, place)
        if rank == COLLECTOR:
            _run_collector(job, channel)
        else:
            _run_slave(job, channel, place)
        return None
    except _EndedEarlyError:
        raise
    except BaseException as error:
        _end_job(channel, error, ", ".join(place), debug)
        raise


class _EndedEarlyError(SwjoinError):
    """Set-up failed on some rank; every rank leaves with its exit code, one of them says why."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _end_job(channel: Channel, error: BaseException, place: str, debug: bool) -> None:
    """Say why, let the collector mark its results incomplete, and end every rank. Does not return."""
    code = error.exit_code if isinstance(error, SwjoinError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    if debug:
        traceback.print_exc()
    text = str(error) if isinstance(error, UserError | _PeerFailed) else f"{place}: {str(error) or type(error).__name__}"
    if not isinstance(error, SwjoinError):
        text = f"{place}: {type(error).__name__}: {error}"
    if not isinstance(error, _PeerFailed):
        print(f"swjoin: {' '.join(text.split())}", file=sys.stderr, flush=True)
    if channel.comm.rank != COLLECTOR:
        data = np.frombuffer(json.dumps({"text": text, "exit_code": code}).encode(), np.uint8)
        channel.comm.Isend([data, channel.mpi.BYTE], dest=COLLECTOR, tag=FAILURE)
        deadline = time.monotonic() + _FLUSH_S
        while time.monotonic() < deadline:  # probing makes the message move; the collector's Abort ends this loop
            channel.comm.Iprobe(source=COLLECTOR, tag=FAILURE)
            time.sleep(0.01)
    channel.comm.Abort(code)


# ---------------------------------------------------------------- set-up


def _agree(channel: Channel, root: int, attempt: Callable[[], dict[str, Any]] | None) -> dict[str, Any]:
    """`root` tries something the user may have got wrong; every rank learns the outcome and goes on, or leaves, together."""
    answer: dict[str, Any] | None = None
    if attempt is not None:
        try:
            answer = attempt()
        except SwjoinError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
    outcome: dict[str, Any] = json.loads(channel.broadcast(None if answer is None else json.dumps(answer), root))
    if "error" in outcome:
        raise _EndedEarlyError(outcome["error"] if channel.comm.rank == MASTER else "", outcome["exit_code"])
    return outcome


def _layouts(setup: dict[str, Any]) -> tuple[RowLayout | None, RowLayout | None]:
    left, right = (None if item is None else RowLayout(*item) for item in setup["layouts"])
    return left, right


def _start_clock(channel: Channel) -> RunClock:
    channel.comm.Barrier()
    return RunClock()


# ---------------------------------------------------------------- master


def _run_master(job: Job, channel: Channel, progress: bool, place: list[str]) -> dict[str, Any]:
    from swjoin.runtime.shells import MasterShell

    started = time.monotonic()
    opened: list[MasterShell] = []

    def open_shell() -> dict[str, Any]:
        job.config.check_slaves(channel.comm.size - FIRST_SLAVE)
        shell = MasterShell(job, progress)
        opened.append(shell)
        plan = base64.b64encode(shell.output_plan().to_bytes()).decode()
        layouts = [None if layout is None else [layout.fixed_bytes, layout.has_var] for layout in shell.layouts]
        return {"plan": plan, "layouts": layouts}

    _agree(channel, MASTER, open_shell)
    _agree(channel, COLLECTOR, None)
    slave_count = channel.comm.size - FIRST_SLAVE
    with opened[0] as shell:
        load_master_kernels(job.config, shell.layouts)
        clock = _start_clock(channel)
        first_read_s = _serve_streams(job, channel, shell, clock, slave_count, place)
        parts = {r: _parse(channel.wait(r, SUMMARY)) for r in range(1, channel.comm.size)}
        slaves = [parts[r]["summary"] for r in range(FIRST_SLAVE, channel.comm.size)]
        report = build_report(
            job,
            master=shell.master.summary(),
            slaves=slaves,
            collector=parts[COLLECTOR]["summary"],
            ranks=[_identity(MASTER, "master"), *(p["rank"] for p in parts.values())],
            wall_s=0.0,
            join_s=0.0,
        )
        check_ledger(report)
        channel.send_json({"balanced": True}, COLLECTOR, VERDICT)
        channel.wait(COLLECTOR, VERDICT)
    now = time.monotonic()
    report["wall_s"] = now - started
    report["join_s"] = now - (first_read_s or now)
    tuples = sum(report["input"][name]["tuples"] for name in ("left", "right"))
    report["input_tuples_per_s"] = tuples / report["join_s"] if report["join_s"] > 0 else 0.0
    publish(job, report)
    return report


def _serve_streams(job: Job, channel: Channel, shell: Any, clock: RunClock, slave_count: int, place: list[str]) -> float | None:
    """The master's loop; returns the moment of the first read (time.monotonic)."""
    realtime = job.config.pace == "realtime"
    slot_us = max(1, job.config.cluster.distribution_epoch_us // job.config.cluster.sub_group_count)
    boundary_us = slot_us
    first_read_s: float | None = None
    where = place[0]
    shell.start(clock, slave_count)
    while shell.outbox or not shell.master.finished:
        place[0] = f"{where}, epoch {shell.master.epoch}"
        if shell.outbox:
            delivery = shell.outbox.popleft()
            channel.send(pack_delivery(delivery), FIRST_SLAVE + delivery.slave, DELIVERY)
        elif channel.probe(channel.mpi.ANY_SOURCE, REPORT):
            slave = channel.status.Get_source() - FIRST_SLAVE
            report = unpack_report(channel.receive())
            shell.handle(SlaveReported(SlaveId(slave), report.occupancy_ratio, report.loads))
        elif channel.probe(channel.mpi.ANY_SOURCE, MOVE_END):
            shell.handle(MoveEnded(unpack_move_end(channel.receive())))
        elif realtime and clock.now_us() >= boundary_us:
            boundary_us = next_exchange_us(clock.now_us(), slot_us)
            shell.handle(ClockAdvanced())
        elif shell.wanted is not None:
            if first_read_s is None:
                first_read_s = time.monotonic()
            shell.read()
        else:
            channel.sleep(boundary_us - clock.now_us() if realtime else 1_000_000)
    return first_read_s


# ---------------------------------------------------------------- collector


def _run_collector(job: Job, channel: Channel) -> None:
    from swjoin.runtime.shells import CollectorShell
    from swjoin.sinks.plan import OutputPlan

    def stop(number: int, _frame: object) -> None:
        raise RunFailed(f"stopped by {signal.Signals(number).name}")

    signal.signal(signal.SIGTERM, stop)
    setup = _agree(channel, MASTER, None)
    opened: list[CollectorShell] = []
    clock = RunClock()

    def open_sink() -> dict[str, Any]:
        plan = OutputPlan.from_bytes(base64.b64decode(setup["plan"]))
        opened.append(CollectorShell(job, plan, channel.comm.size - FIRST_SLAVE, clock))
        return {}

    _agree(channel, COLLECTOR, open_sink)
    with opened[0] as shell:
        shell.clock = _start_clock(channel)
        while not shell.collector.finished:
            _collect_one(channel, shell)
        channel.send_json({"summary": shell.summary(), "rank": _identity(COLLECTOR, "collector")}, MASTER, SUMMARY)
        while not channel.probe(MASTER, VERDICT):
            _check_peers(channel)
            channel.sleep()
        channel.receive()
    channel.send_json({"closed": True}, MASTER, VERDICT)


def _collect_one(channel: Channel, shell: Any) -> None:
    if channel.probe(channel.mpi.ANY_SOURCE, RESULTS):
        shell.receive(unpack_results(channel.receive()))
        return
    _check_peers(channel)
    channel.sleep()


def _check_peers(channel: Channel) -> None:
    if channel.probe(channel.mpi.ANY_SOURCE, FAILURE):
        failure = _parse(channel.receive())
        raise _PeerFailed(failure["text"], failure["exit_code"])


# ---------------------------------------------------------------- slave


def _run_slave(job: Job, channel: Channel, place: list[str]) -> None:
    from swjoin.cluster.slave import Slave

    setup = _agree(channel, MASTER, None)
    slave = Slave(SlaveId(channel.comm.rank - FIRST_SLAVE), job.config, _layouts(setup))
    _agree(channel, COLLECTOR, None)
    load_slave_kernels(job.config, _layouts(setup))
    throttle = Throttle(job.config.nodes, slave.id)
    clock = _start_clock(channel)
    realtime = job.config.pace == "realtime"
    epoch_us = job.config.cluster.distribution_epoch_us
    offset_us = slot_offset_us(slave.id, job.config.cluster.sub_group_count, epoch_us) if realtime else 0
    exchange_at_us = next_exchange_us(0, epoch_us, offset_us) if realtime else 0
    where = place[0]

    _perform(channel, slave.start())
    while not slave.finished:
        if realtime and clock.now_us() >= exchange_at_us:
            exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us)
            _perform(channel, slave.handle(ExchangeDue(), clock.now_us()))
        if channel.probe(MASTER, DELIVERY):
            delivery = unpack_delivery(channel.receive())
            place[0] = f"{where}, epoch {delivery.epoch}"
            _perform(channel, slave.handle(Delivered(delivery), clock.now_us()))
        elif channel.probe(channel.mpi.ANY_SOURCE, WANT):
            move = int(channel.receive().view(np.int64)[0])
            _perform(channel, slave.handle(StateWanted(move), clock.now_us()))
        elif channel.probe(channel.mpi.ANY_SOURCE, STATE):
            chunk = unpack_state(channel.receive())
            _perform(channel, slave.handle(StateReceived(chunk), clock.now_us()))
        elif throttle.debt_us > 0:
            now = clock.now_us()
            throttle.after(0, now)
            channel.meter.process_us += clock.now_us() - now
        elif slave.has_work:
            now, worked_ns = clock.now_us(), time.thread_time_ns()
            slave.handle(channel.meter.take(), now)
            commands = slave.handle(WorkDue(), now)
            throttle.after((time.thread_time_ns() - worked_ns) // 1000, now)
            channel.meter.process_us += clock.now_us() - now
            _perform(channel, commands)
        else:
            channel.sleep(exchange_at_us - clock.now_us() if realtime else 1_000_000)
    role = f"slave {slave.id}"
    channel.send_json({"summary": slave.summary(), "rank": _identity(channel.comm.rank, role)}, MASTER, SUMMARY)


def _perform(channel: Channel, commands: list[SlaveCommand]) -> None:
    """Carry a slave's messages away. What goes to other slaves never waits for them."""
    for command in commands:
        match command:
            case Report():
                channel.send(pack_report(command), MASTER, REPORT)
            case SendResults(chunk):
                channel.send(pack_results(chunk), COLLECTOR, RESULTS)
            case WantState(supplier, move):
                channel.send_later(np.array([move]).view(np.uint8), FIRST_SLAVE + supplier, WANT)
            case SendState(chunk):
                channel.send_later(pack_state(chunk), FIRST_SLAVE + chunk.consumer, STATE)
            case AcknowledgeMove(end):
                channel.send(pack_move_end(end), MASTER, MOVE_END)
            case _:
                pass

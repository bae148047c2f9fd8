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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import RowLayout
from swjoin.errors import RunFailed, SwjoinError, UserError
from swjoin.messages import (
    AcknowledgeMove,
    ClockAdvanced,
    Delivered,
    ExchangeDue,
    MeasuringBegan,
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
from swjoin.runtime.machine import RankMeter, machine_report
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

MASTER, COLLECTOR, FIRST_SLAVE = 0, 1, 2
REPORT, DELIVERY, RESULTS, SUMMARY, VERDICT, FAILURE, WANT, STATE, MOVE_END, BEGIN = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
_NOTHING = np.empty(0, np.uint8)
_EAGER_WAIT_US = 100  # a slave that has reported in its slot looks for its delivery so often
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


def _identity(rank: int, role: str, meter: RankMeter) -> dict[str, Any]:
    machine = meter.summary()
    return {"rank": rank, "host": platform.node(), "role": role, "peak_rss_bytes": peak_rss_bytes(), "machine": machine}


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
        meter = RankMeter()
        first_read_s, began_s = _serve_streams(job, channel, shell, clock, slave_count, place, meter)
        me = _identity(MASTER, "master", meter)
        parts = {r: _parse(channel.wait(r, SUMMARY)) for r in range(1, channel.comm.size)}
        slaves = [parts[r]["summary"] for r in range(FIRST_SLAVE, channel.comm.size)]
        report = build_report(
            job,
            master=shell.master.summary(),
            slaves=slaves,
            collector=parts[COLLECTOR]["summary"],
            ranks=[me, *(p["rank"] for p in parts.values())],
            wall_s=0.0,
            join_s=0.0,
            prefill_s=None if began_s is None or first_read_s is None else began_s - first_read_s,
            machine=machine_report(
                me["machine"],
                [p["rank"]["machine"] for p in parts.values()],
                slot_us=_slot_us(job) if job.config.pace == "realtime" else 0,
                imitates=job.config.nodes.imitates,
            ),
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


def _slot_us(job: Job) -> int:
    return max(1, job.config.cluster.distribution_epoch_us // job.config.cluster.sub_group_count)


def _serve_streams(
    job: Job, channel: Channel, shell: Any, clock: RunClock, slave_count: int, place: list[str], meter: RankMeter
) -> tuple[float | None, float | None]:
    """The master's loop; returns the moments of the first read and of the end of history (time.monotonic)."""
    realtime, slot_us = job.config.pace == "realtime", _slot_us(job)
    boundary_us = slot_us
    first_read_s: float | None = None
    began_s: float | None = None
    in_history = job.config.measure.prefill_us > 0
    link, rush = job.config.nodes.link_bytes_per_s, job.config.measure.rush
    where = place[0]
    shell.start(clock, slave_count)
    while shell.outbox or not shell.master.finished:
        place[0] = f"{where}, epoch {shell.master.epoch}"
        if shell.outbox:
            delivery = shell.outbox.popleft()
            channel.send(pack_delivery(delivery), FIRST_SLAVE + delivery.slave, DELIVERY)
            if not in_history and not (delivery.last and rush):
                channel.imitate_transfer(delivery.nbytes, link)
        elif shell.clock_starts_us is not None:
            for rank in range(1, channel.comm.size):
                channel.send(_NOTHING, rank, BEGIN)
            _begin(channel, clock, shell.clock_starts_us, meter)
            shell.clock_starts_us, in_history, began_s = None, False, time.monotonic()
            boundary_us = next_exchange_us(clock.now_us(), slot_us)
        elif channel.probe(channel.mpi.ANY_SOURCE, REPORT):
            slave = channel.status.Get_source() - FIRST_SLAVE
            report = unpack_report(channel.receive())
            shell.handle(SlaveReported(SlaveId(slave), report.occupancy_ratio, report.loads))
        elif channel.probe(channel.mpi.ANY_SOURCE, MOVE_END):
            shell.handle(MoveEnded(unpack_move_end(channel.receive())))
        elif realtime and clock.now_us() >= boundary_us:
            meter.lateness.add(clock.now_us() - boundary_us)
            boundary_us = next_exchange_us(clock.now_us(), slot_us)
            shell.handle(ClockAdvanced())
        elif shell.wanted is not None:
            if first_read_s is None:
                first_read_s = time.monotonic()
            shell.read()
        else:
            channel.sleep(boundary_us - clock.now_us() if realtime else 1_000_000)
    return first_read_s, began_s


def _begin(channel: Channel, clock: RunClock, clock_us: int, meter: RankMeter) -> None:
    """The measured phase begins, on all ranks at once."""
    channel.comm.Barrier()
    clock.restart(clock_us)
    channel.meter.take()
    meter.start()


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
        meter = RankMeter()
        while not shell.collector.finished:
            _collect_one(channel, shell, job.config.measure.prefill_us, meter)
        channel.send_json({"summary": shell.summary(), "rank": _identity(COLLECTOR, "collector", meter)}, MASTER, SUMMARY)
        while not channel.probe(MASTER, VERDICT):
            _check_peers(channel)
            channel.sleep()
        channel.receive()
    channel.send_json({"closed": True}, MASTER, VERDICT)


def _collect_one(channel: Channel, shell: Any, prefill_us: int, meter: RankMeter) -> None:
    if channel.probe(channel.mpi.ANY_SOURCE, RESULTS):
        shell.receive(unpack_results(channel.receive()))
        return
    if channel.probe(MASTER, BEGIN):
        channel.receive()
        _begin(channel, shell.clock, prefill_us, meter)
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
    throttle.paused = in_history = job.config.measure.prefill_us > 0
    link, rush = job.config.nodes.link_bytes_per_s, job.config.measure.rush
    clock = _start_clock(channel)
    meter = RankMeter()
    realtime = job.config.pace == "realtime"
    epoch_us = job.config.cluster.distribution_epoch_us
    offset_us = slot_offset_us(slave.id, job.config.cluster.sub_group_count, epoch_us) if realtime else 0
    exchange_at_us = next_exchange_us(0, epoch_us, offset_us) if realtime else 0
    where = place[0]

    _perform(channel, slave.start())
    while not slave.finished:
        if realtime and not in_history and clock.now_us() >= exchange_at_us:
            meter.lateness.add(clock.now_us() - exchange_at_us)
            exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us)
            _perform(channel, slave.handle(ExchangeDue(), clock.now_us()))
        if channel.probe(MASTER, DELIVERY):
            delivery = unpack_delivery(channel.receive())
            place[0] = f"{where}, epoch {delivery.epoch}"
            if delivery.last and rush:
                throttle.pause()
                link = 0.0
            elif not in_history:
                channel.imitate_transfer(delivery.nbytes, link)
            _perform(channel, slave.handle(Delivered(delivery), clock.now_us()))
        elif channel.probe(channel.mpi.ANY_SOURCE, WANT):
            move = int(channel.receive().view(np.int64)[0])
            _perform(channel, slave.handle(StateWanted(move), clock.now_us()))
        elif channel.probe(channel.mpi.ANY_SOURCE, STATE):
            chunk = unpack_state(channel.receive())
            channel.imitate_transfer(chunk.nbytes, link)
            _perform(channel, slave.handle(StateReceived(chunk), clock.now_us()))
        elif in_history and channel.probe(MASTER, BEGIN):
            channel.receive()
            _begin(channel, clock, job.config.measure.prefill_us, meter)
            throttle.paused = in_history = False
            exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us)
            _perform(channel, slave.handle(MeasuringBegan(), clock.now_us()))
        elif throttle.debt_us > 0:
            now = clock.now_us()
            if realtime:
                throttle.after(0, now, _EAGER_WAIT_US if slave.expects_delivery else exchange_at_us - now)
            else:
                throttle.after(0, now)
            channel.meter.process_us += clock.now_us() - now
        elif slave.has_work:
            now, worked_ns = clock.now_us(), time.thread_time_ns()
            slave.handle(channel.meter.take(), now)
            commands = slave.handle(WorkDue(), now)
            throttle.after((time.thread_time_ns() - worked_ns) // 1000, now, 0)
            channel.meter.process_us += clock.now_us() - now
            _perform(channel, commands)
        else:
            if not realtime or in_history:
                channel.sleep()
            else:
                channel.sleep(_EAGER_WAIT_US if slave.expects_delivery else exchange_at_us - clock.now_us())
    role = f"slave {slave.id}"
    channel.send_json({"summary": slave.summary(), "rank": _identity(channel.comm.rank, role, meter)}, MASTER, SUMMARY)


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

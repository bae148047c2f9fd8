"""Heartbeats: ranks that are stopped, hang, or are cut off are noticed and named.

What: `FailureDetector` decides from signs of life and their times who counts as dead; `Heartbeats`, a thread of every rank,
exchanges them over UDP; `MasterWatch` is the launcher's end of the master's.
Why: MPI reports that a process has died, not that it is stopped, hangs in a system call, or is behind a cut network; the others
would wait for ever (docs/decisions/027-failure-detection.md).
Stays out: what the other ranks do then (`runtime.mpi.channel`, `resilient_channel`, `runtime.launch`), the exchange of
addresses (`runtime.mpi.rank`).
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import logging
import math
import os
import platform
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from swjoin.cluster.ranks import ROOT
from swjoin.core.platforms import kernel_id

_LOG = logging.getLogger(__name__)
LAUNCHER = -1  # in place of a rank
WATCH = "SWJOIN_WATCH"  # environment: where the launcher expects the master's heartbeats
SILENT, STUCK, CUT_OFF = "no sign of life", "hangs, no progress", "cut off from other ranks"
_PARTS = 10  # heartbeats in a timeout
_PAUSE_PARTS = 2  # a pause of an observer is longer than this part of the timeout
_RANK_SLACK, _LAUNCHER_SLACK = 1.2, 1.5  # in watching the master: ranks end by themselves before the launcher ends them
_NOTICED_S, _UNWIND_S = 8.0, 60.0  # for the main thread to notice that the run has failed; to end it
_KILLED_S = 2.0
_DIGEST_BYTES = 16
_MOST_BYTES = 65_536
_BUSY_RATIO, _READ_BYTES = 0.005, 4096  # of other threads between two heartbeats: less is not progress of the main thread


@dataclass
class _Signs:
    """Of one peer. heard_s: time of the last one. sign_s: that, or the end of the observer's last pause. progress: its counter,
    which changed at changed_s. silent, master_s: see `heard`."""

    sign_s: float
    heard_s: float
    progress: int
    changed_s: float
    silent: Mapping[int, float]
    master_s: float


class FailureDetector:
    """Decides which peers count as dead. It has no clock and no thread.

    A peer is watched from its first sign on, so that nobody is declared dead where a network lets no heartbeat through.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._signs: dict[int, _Signs] = {}
        self._observed_s: float | None = None

    def observe(self, now_s: float) -> None:
        """Begin a round. After a pause of the observer itself, which saw no signs meanwhile, everybody gets a fresh timeout."""
        if self._observed_s is not None and now_s - self._observed_s > self.timeout_s / _PAUSE_PARTS:
            for signs in self._signs.values():
                signs.sign_s = signs.changed_s = now_s
                signs.silent = {}
        self._observed_s = now_s

    def heard(
        self, peer: int, now_s: float, progress: int, silent: Mapping[int, float] | None = None, master_s: float = math.inf
    ) -> None:
        """A sign of life. progress: changes when the peer's main thread does anything. silent: as the peer's `silences`.
        master_s: since when the peer has not heard the master, seconds."""
        signs = self._signs.get(peer)
        if signs is None:
            self._signs[peer] = _Signs(now_s, now_s, progress, now_s, silent or {}, master_s)
            return
        if progress != signs.progress or now_s - signs.sign_s > self.timeout_s / _PAUSE_PARTS:  # unknown while it was silent
            signs.changed_s = now_s
        signs.sign_s = signs.heard_s = now_s
        signs.progress, signs.silent, signs.master_s = progress, silent or {}, master_s

    def unknown(self, peers: Iterable[int]) -> list[int]:
        """Peers without any sign so far."""
        return [peer for peer in peers if peer not in self._signs]

    def silences(self, peers: Iterable[int], now_s: float) -> dict[int, float]:
        """Peers without a sign for half the timeout or longer, and for how many seconds."""
        ages = {peer: now_s - self._signs[peer].sign_s for peer in peers if peer in self._signs}
        return {peer: age_s for peer, age_s in ages.items() if age_s >= self.timeout_s / 2}

    def suspects(self, peers: Collection[int], now_s: float) -> dict[int, str]:
        """Peers that count as dead, and why. Of two that do not hear each other it is one, as few as possible in all."""
        found = {}
        for peer in peers:
            signs = self._signs.get(peer)
            if signs is not None and now_s - signs.sign_s > self.timeout_s:
                found[peer] = SILENT
            elif signs is not None and now_s - signs.changed_s > self.timeout_s:
                found[peer] = STUCK
        edges = self._cut_edges(set(peers) - set(found), now_s)
        while edges:
            ends = [peer for edge in edges for peer in edge]
            worst = max(ends, key=lambda peer: (ends.count(peer), peer))
            found[worst] = CUT_OFF
            edges = {edge for edge in edges if worst not in edge}
        return found

    def _cut_edges(self, peers: Collection[int], now_s: float) -> set[tuple[int, int]]:
        """Pairs of peers of which one does not hear the other, both alive: what is stopped is not cut off."""
        silent = self.silences(peers, now_s)
        near = {peer for peer in peers if peer in self._signs and peer not in silent}
        return {
            (min(peer, other), max(peer, other))
            for peer in near
            for other, age_s in self._signs[peer].silent.items()
            if other in near and other != peer and age_s > self.timeout_s
        }

    def age_s(self, peer: int, now_s: float) -> float:
        """Seconds since the last sign of a peer."""
        return now_s - self._signs[peer].heard_s if peer in self._signs else math.inf

    def master_is_heard(self, now_s: float) -> bool:
        """Whether another peer has heard the master recently."""
        return any(
            now_s - signs.heard_s + signs.master_s < self.timeout_s / 2 for peer, signs in self._signs.items() if peer != ROOT
        )


# ---------------------------------------------------------------- processes


def machine() -> str:
    """The same text for two processes exactly when one may kill the other by its number."""
    parts = [platform.node(), kernel_id()]
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _status(pid: int) -> tuple[str, int]:
    """State and start time of a process. OSError without it."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return words[0], int(words[19])


@dataclass(frozen=True)
class Process:
    """A process, also on another machine. started: tells it from a later one with the same number."""

    machine: str
    host: str
    pid: int
    started: int

    @staticmethod
    def this() -> Process:
        return Process(machine(), platform.node(), os.getpid(), _status(os.getpid())[1])

    @property
    def here(self) -> bool:
        return self.machine == machine()

    @property
    def ended(self) -> bool:
        """Whether it has ended, as far as this machine knows."""
        try:
            return self.here and (_status(self.pid)[1] != self.started or _status(self.pid)[0] in "ZX")
        except OSError:
            return True

    def kill(self) -> None:
        """SIGKILL it if it is on this machine, and wait until it has ended, so that it can do nothing any more."""
        if not self.here or self.ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILLED_S  # a hanging system call may outlive it
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.001)


class _Progress:
    """A counter that changes whenever the main thread gets the processor, or something works or reads or writes for it: other
    threads, by more than idle servers do."""

    def __init__(self) -> None:
        ident = threading.main_thread().ident
        assert ident is not None, "the main thread runs"
        self._clock = time.pthread_getcpuclockid(ident)
        self._count = 0
        self._last = self._read()

    def _read(self) -> tuple[int, int, int, int]:
        """CPU time of the main thread; of all others but this one, bytes read and written by the process; time."""
        main_ns = time.clock_gettime_ns(self._clock)
        others_ns = time.process_time_ns() - main_ns - time.thread_time_ns()
        try:
            with open("/proc/self/io", "rb") as file:
                done = sum(int(line.split()[1]) for line in file.read().splitlines()[:2])
        except OSError:  # not every system has it
            done = 0
        return main_ns, others_ns, done, time.monotonic_ns()

    def count(self) -> int:
        """To be called by the thread of heartbeats alone."""
        before, self._last = self._last, self._read()
        main_ns, others_ns, done, passed_ns = (now - then for now, then in zip(self._last, before, strict=True))
        self._count += main_ns > 0 or others_ns > _BUSY_RATIO * passed_ns or done > _READ_BYTES
        return self._count


# ---------------------------------------------------------------- messages

Address = tuple[str, int]


def _socket(*, loopback: bool) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("127.0.0.1" if loopback else "", 0))
    found.setblocking(False)
    return found


def _addresses(found: socket.socket, *, loopback: bool) -> list[Address]:
    """Under which others may reach this socket: every address of this host, as the one that they share is not known."""
    port: int = found.getsockname()[1]
    if loopback:
        return [("127.0.0.1", port)]
    known = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
    ours = [address.address for address in known if address.family == socket.AF_INET]
    return [(address, port) for address in ours if not address.startswith("127.")]


def _packed(key: bytes, beat: dict[str, Any]) -> bytes:
    body = json.dumps(beat).encode()
    return hmac.digest(key, body, "sha256")[:_DIGEST_BYTES] + body


def _unpacked(key: bytes, data: bytes) -> dict[str, Any] | None:
    """A heartbeat; None unless it was made with this key."""
    body = data[_DIGEST_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, body, "sha256")[:_DIGEST_BYTES], data[:_DIGEST_BYTES]):
        return None
    beat: dict[str, Any] = json.loads(body)
    return beat


@dataclass(frozen=True)
class Rules:
    """What is done about a rank that counts as dead. survives: the others go on without it, where that is possible; otherwise
    the run ends. mend: the remedy then. name_of: number of ranks, a rank -> its roles."""

    timeout_s: float
    survives: bool
    mend: Callable[[], str]
    name_of: Callable[[int, int], str]


@dataclass
class _Failure:
    """Why the run ends, and since when. noticed: by the main thread."""

    text: str
    since_s: float
    noticed: bool = False


class Heartbeats:
    """The heartbeats of one rank: a thread sends and takes them while the main thread works.

    Ranks are those of MPI here, whatever their numbers in an attempt. attempt, world: the current one, and who takes part.
    suspects: on the master, the ranks that count as dead, and why.
    """

    def __init__(self, rank: int, rules: Rules, *, loopback: bool) -> None:
        self.attempt, self.world = 0, [rank]
        self.suspects: dict[int, str] = {}
        self._me, self._rules = rank, rules
        self._peers = _Peers(_socket(loopback=loopback), rank)
        self._detector = FailureDetector(rules.timeout_s * (1.0 if rank == ROOT else _RANK_SLACK))
        self._observed_s = time.monotonic()
        self._suspected_s = math.inf  # since when some rank is suspect
        self._failure: _Failure | None = None
        self._released = self._left = False
        self._thread = threading.Thread(target=self._run, name="swjoin-heartbeats", daemon=True)
        self.endpoint = {**vars(Process.this()), "addresses": _addresses(self._peers.socket, loopback=loopback)}

    def start(self, key: bytes, endpoints: list[dict[str, Any]]) -> None:
        """key: shared by all ranks of the run. endpoints: of all ranks."""
        self._peers.key = key
        self._peers.known = {rank: _Peer.of(endpoint) for rank, endpoint in enumerate(endpoints)}
        self.world = list(range(len(endpoints)))
        self._thread.start()

    # ------------------------------------------------------------ the main thread

    def check(self) -> str:
        """Called in every round of the main thread: the failure that ends the run, if any. After a pause of the process it
        waits until the thread knows whether the others go on without this rank."""
        while time.monotonic() - self._observed_s > self._rules.timeout_s / _PAUSE_PARTS and self._thread.is_alive():
            time.sleep(0.001)
        if self._failure is None:
            return ""
        self._failure.noticed = True
        return self._failure.text

    def follow(self, attempt: int, world: Collection[int]) -> None:
        """An attempt begins. Others than these ranks are excluded from it: they end themselves when they learn of it."""
        self.attempt, self.world = attempt, list(world)
        self.suspects = {}
        self._exclude_others()

    def label(self, rank: int) -> str:
        """Number in this attempt, roles and host of a rank."""
        world = self.world
        index = world.index(rank)
        return f"rank {index} ({self._rules.name_of(len(world), index)}) on {self._peers.known[rank].process.host}"

    def described(self, rank: int, reason: str) -> str:
        return f"{self.label(rank)}: {reason} for {self._rules.timeout_s:g} s (cluster.failure_timeout)"

    def kill(self, rank: int) -> None:
        """End the process of a rank that counts as dead, if it is on this machine."""
        self._peers.known[rank].process.kill()

    def release(self) -> None:
        """The run has ended for this rank: it declares nobody dead any more, and only shows that it lives."""
        self._released = True

    def leave(self, code: int) -> None:
        """This process ends with this exit code."""
        if self._left:
            return
        self._released = True
        if self._me == ROOT:
            self._peers.tell_launcher({"left": code})
        elif self._failure is not None and not self._peers.launched:
            self.kill(ROOT)  # a launcher does it when all have noticed
        self._left = True  # the thread ends

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        progress, start_s, due_s, period_s = _Progress(), time.monotonic(), 0.0, self._rules.timeout_s / _PARTS
        while not self._left:
            now_s = time.monotonic()
            self._detector.observe(now_s)
            while self._receive(now_s):
                pass
            self._observed_s = now_s
            if now_s >= due_s:
                due_s = now_s + period_s
                self._send_all(now_s, progress.count())
                if self._rules.timeout_s < now_s - start_s <= self._rules.timeout_s + period_s:
                    self._warn_of_unknown()
            self._decide(now_s)
            select.select([self._peers.socket], [], [], max(0.0, due_s - time.monotonic()))
        self._peers.socket.close()

    def _send_all(self, now_s: float, progress: int) -> None:
        others = [rank for rank in self.world if rank != self._me]
        silent = self._detector.silences(others, now_s)
        age_s = self._detector.age_s(ROOT, now_s)
        beat = {"progress": progress, "silent": list(silent.items()), "master_s": age_s if age_s < math.inf else None}
        for rank in others:
            self._peers.send(rank, beat, doubtful=rank in silent)
        self._exclude_others()
        if self._me == ROOT:
            self._peers.tell_launcher({"progress": now_s if self._released else progress})

    def _exclude_others(self) -> None:
        if self._me == ROOT:
            for rank in set(self._peers.known) - set(self.world):
                self._peers.send(rank, {"excluded_from": self.attempt}, doubtful=True)

    def _receive(self, now_s: float) -> bool:
        """Take one heartbeat. False when there is none."""
        try:
            data, address = self._peers.socket.recvfrom(_MOST_BYTES)
        except OSError:
            return False
        beat = self._peers.accepted(data, address)
        if beat is None:
            return True
        if "excluded_from" in beat:
            os.kill(os.getpid(), signal.SIGKILL)  # at once: the others go on without this rank
        if beat["from"] in self.world:
            master_s = math.inf if beat["master_s"] is None else beat["master_s"]
            self._detector.heard(beat["from"], now_s, beat["progress"], dict(beat["silent"]), master_s)
        else:
            self._exclude_others()
        return True

    def _decide(self, now_s: float) -> None:
        failure = self._failure
        if failure is not None and now_s - failure.since_s > (_UNWIND_S if failure.noticed else _NOTICED_S):
            os._exit(1)  # the main thread waits inside MPI
        if self._released or failure is not None:
            return
        if self._me == ROOT:
            found = self._detector.suspects([rank for rank in self.world if rank != ROOT], now_s)
            self._suspected_s = min(self._suspected_s, now_s) if found else math.inf
            if now_s - self._suspected_s < self._rules.timeout_s / _PARTS:
                return  # ranks of a host that is lost fall silent one after another: one recovery is enough
            if self._rules.survives:
                self.suspects = found
            elif found:
                self._fail(now_s, *min(found.items()))
            return
        found = self._detector.suspects([ROOT], now_s)
        if ROOT in found and found[ROOT] == SILENT and self._detector.master_is_heard(now_s):
            _LOG.warning("%s: cut off from the master, which others hear; it ends itself", self.label(self._me))
            os.kill(os.getpid(), signal.SIGKILL)
        if ROOT in found:
            self._fail(now_s, ROOT, found[ROOT])

    def _fail(self, now_s: float, rank: int, reason: str) -> None:
        """End the run because of this rank."""
        text = f"{self.described(rank, reason)}; {self._rules.mend()}"
        _LOG.error("%s", text)
        self._failure = _Failure(text, now_s)

    def _warn_of_unknown(self) -> None:
        """Called once, when heartbeats could have arrived."""
        unknown = self._detector.unknown(rank for rank in list(self.world) if rank != ROOT)
        if unknown and self._me == ROOT and not self._released:
            hosts = ", ".join(sorted({self._peers.known[rank].process.host for rank in unknown}))
            _LOG.warning("no heartbeat comes from %s: ranks that hang there are not noticed; let UDP pass", hosts)


@dataclass
class _Peer:
    """addresses: that it may have. heard_at: from which it was heard. last: number of its newest heartbeat."""

    process: Process
    addresses: list[Address]
    heard_at: Address | None = None
    last: int = -1

    @staticmethod
    def of(endpoint: dict[str, Any]) -> _Peer:
        plain = {**endpoint}
        return _Peer(addresses=[(host, port) for host, port in plain.pop("addresses")], process=Process(**plain))


class _Peers:
    """All ranks and the launcher, as heartbeats reach them. key: shared by all ranks; it proves that a heartbeat is theirs."""

    def __init__(self, over: socket.socket, me: int) -> None:
        self.socket, self.key = over, b""
        self.known: dict[int, _Peer] = {}
        self._me = me
        self._numbers = itertools.count()
        self._launcher: dict[str, Any] | None = json.loads(os.environ.get(WATCH, "null"))

    @property
    def launched(self) -> bool:
        return self._launcher is not None

    def send(self, rank: int, beat: dict[str, Any], *, doubtful: bool) -> None:
        """doubtful: to all its addresses, as it may be heard at another one than before."""
        peer = self.known[rank]
        addresses = peer.addresses if doubtful or peer.heard_at is None else [peer.heard_at]
        self._send(addresses, self.key, {"from": self._me, "to": rank, "number": next(self._numbers), **beat})

    def tell_launcher(self, beat: dict[str, Any]) -> None:
        if self._launcher is not None and self.known:
            plain = {"from": ROOT, "to": LAUNCHER, "process": vars(self.known[ROOT].process), **beat}
            addresses = [(host, port) for host, port in self._launcher["addresses"]]
            self._send(addresses, bytes.fromhex(self._launcher["key"]), plain)

    def _send(self, addresses: list[Address], key: bytes, beat: dict[str, Any]) -> None:
        data = _packed(key, beat)
        for address in addresses:
            with contextlib.suppress(OSError):  # not reachable, or no room: the next one will be
                self.socket.sendto(data, address)

    def accepted(self, data: bytes, address: Address) -> dict[str, Any] | None:
        """A heartbeat of this run to this rank that has not been there before; otherwise None."""
        beat = _unpacked(self.key, data)
        if beat is None or beat["to"] != self._me or beat["from"] not in self.known:
            return None
        peer = self.known[beat["from"]]
        if beat["number"] <= peer.last:
            return None
        peer.last, peer.heard_at = beat["number"], address
        return beat


# ---------------------------------------------------------------- the launcher


class MasterWatch:
    """Whether the master lives, as the launcher sees it: from the first heartbeat on. left: the master's process has ended, or
    counts as dead. code: its exit code, if it told."""

    def __init__(self, timeout_s: float, *, loopback: bool) -> None:
        self.left = False
        self.code: int | None = None
        self._socket = _socket(loopback=loopback)
        self._key = os.urandom(_DIGEST_BYTES)
        self._timeout_s = timeout_s
        self._detector = FailureDetector(timeout_s * _LAUNCHER_SLACK)
        self._master: Process | None = None
        self.setting = json.dumps({"addresses": _addresses(self._socket, loopback=loopback), "key": self._key.hex()})

    @staticmethod
    @contextlib.contextmanager
    def of(timeout_s: float, *, loopback: bool) -> Iterator[MasterWatch | None]:
        """None without a timeout. Afterwards the master has ended: an mpirun that fails may leave behind what was stopped."""
        watch = MasterWatch(timeout_s, loopback=loopback) if timeout_s else None
        try:
            yield watch
        finally:
            if watch is not None:
                watch._socket.close()
                if watch._master is not None:
                    watch._master.kill()

    def look(self) -> str:
        """Take what has come; returns what is wrong with the master, once, and ends its process where that is possible."""
        now_s = time.monotonic()
        self._detector.observe(now_s)
        with contextlib.suppress(BlockingIOError):
            while not self.left:
                self._take(_unpacked(self._key, self._socket.recv(_MOST_BYTES)), now_s)
        found = self._detector.suspects([ROOT], now_s)
        if self.left or self._master is None or not found:
            return ""
        self.left = True
        if self._master.ended:
            return ""  # mpirun tells how
        self._master.kill()
        reason, timeout_s = found[ROOT], self._timeout_s
        return f"rank 0 (master) on {self._master.host}: {reason} for {timeout_s:g} s (cluster.failure_timeout)"

    def _take(self, beat: dict[str, Any] | None, now_s: float) -> None:
        if beat is None:
            return
        self._master = Process(**beat["process"])
        if "left" in beat:
            self.left, self.code = True, beat["left"]
        else:
            self._detector.heard(ROOT, now_s, beat["progress"])

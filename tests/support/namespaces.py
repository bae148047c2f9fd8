"""Network namespaces as hosts: each with its own address and name, joined by a bridge or by a wire that delays and loses.

`Hosts` makes them and, whatever happens, removes them with all processes inside. Needs root. Its addresses exist only inside.
Where the kernel has no netem, `Wire` does the same in this process: it carries Ethernet frames between TAP devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path

from tests.support.limits import PROCESS_S

MTU = 9000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_NEWNET = 0x40000000
ADDRESS = "10.213.7"


def why_not() -> str:
    """Why there can be no namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if any(shutil.which(tool) is None for tool in ("ip", "unshare")):
        return "ip (iproute2) or unshare (util-linux) is missing"
    name = f"swj{os.getpid()}try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=PROCESS_S, check=False)
    return ""


def _ip(*argv: object) -> None:
    done = subprocess.run(["ip", *map(str, argv)], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(map(str, argv))}: {done.stderr.strip()}")


def _tap(namespace: str, device: str) -> int:
    """A TAP device inside a namespace; its frames are read from and written to this file descriptor."""
    found: list[int] = []

    def enter() -> None:  # only this thread goes there, and it ends
        with open(f"/run/netns/{namespace}", "rb") as there:
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _NEWNET):
                return
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
        found.append(descriptor)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if not found:
        raise OSError(f"no TAP device in namespace {namespace}")
    return found[0]


class Wire:
    """A switch of some ports: every frame arrives delay_s later, or, with probability `loss`, never."""

    def __init__(self, ports: list[int], delay_s: float, loss: float) -> None:
        self.carried = self.lost = 0
        self._ports, self._delay_s, self._loss = ports, delay_s, loss
        self._random = random.Random(1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        known: dict[bytes, int] = {}
        under_way: list[tuple[float, int, int, bytes]] = []
        with selectors.DefaultSelector() as selector:
            for port in self._ports:
                selector.register(port, selectors.EVENT_READ)
            while not self._ended.is_set():
                now = time.monotonic()
                while under_way and under_way[0][0] <= now:
                    _, _, port, frame = heapq.heappop(under_way)
                    with contextlib.suppress(OSError):  # the device is down, or full
                        os.write(port, frame)
                pause = min(0.1, under_way[0][0] - now) if under_way else 0.1
                for key, _ in selector.select(max(0.0, pause)):
                    with contextlib.suppress(BlockingIOError, OSError):
                        for _ in range(64):
                            frame = os.read(key.fd, MTU + 64)
                            known[frame[6:12]] = key.fd
                            self.carried += 1
                            if self._random.random() < self._loss:
                                self.lost += 1
                                continue
                            target = known.get(frame[:6])
                            for port in self._ports if target is None else [target]:
                                if port != key.fd:
                                    due = time.monotonic() + self._delay_s
                                    heapq.heappush(under_way, (due, self.carried, port, frame))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for port in self._ports:
            os.close(port)


class Hosts:
    """`count` namespaces named after `folder`'s process; host i has the address 10.213.7.(i + 1) and the name host<i>."""

    def __init__(self, folder: Path, count: int, *, delay_s: float | None = None, loss: float = 0.0) -> None:
        """delay_s: a wire with this delay one way, and loss; None: a bridge of the kernel."""
        self.count, self._folder = count, folder
        self._prefix = f"swj{os.getpid()}"
        self.names = [f"{self._prefix}h{i}" for i in range(count)]
        self.wire: Wire | None = None
        self.agent, self.hostfile = folder / "agent.sh", folder / "hosts"
        try:
            self._make(delay_s, loss)
        except BaseException:
            self.close()
            raise

    def _make(self, delay_s: float | None, loss: float) -> None:
        switch = f"{self._prefix}net"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        ports = []
        for i, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            if delay_s is None:
                _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", switch)
                _ip("-n", switch, "link", "set", f"port{i}", "master", "br0", "up")
            else:
                ports.append(_tap(name, "eth0"))
            _ip("-n", name, "link", "set", "eth0", "mtu", MTU if delay_s is not None else 1500)
            _ip("-n", name, "address", "add", f"{ADDRESS}.{i + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        if delay_s is not None:
            self.wire = Wire(ports, delay_s, loss)
        self.hostfile.write_text("".join(f"{ADDRESS}.{i + 1} slots=2\n" for i in range(self.count)))
        self.enter(self.agent, 'host=$((${1##*.} - 1)); shift; set -- sh -c "$*"')

    def enter(self, script: Path, which: str, inside: str = ":") -> None:
        """A script that runs its arguments on host number $host, which `which` sets. inside: what to do there before."""
        script.write_text(
            f"#!/bin/sh\n{which}\nexport host\n"
            f"exec ip netns exec {self._prefix}h$host unshare --uts --mount --propagation private "
            f'sh -c \'hostname host$host; {inside}; exec "$@"\' sh "$@"\n'
        )
        script.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """What makes mpirun start its daemons in the namespaces, where others have ssh."""
        return {**os.environ, "PRTE_MCA_plm_ssh_agent": str(self.agent), "OMPI_MCA_btl_tcp_if_include": "eth0"}

    def start(self, argv: list[object], cwd: Path, **environment: str) -> subprocess.Popen[str]:
        """A program on host 0; its output goes to files `out` and `err`: what it leaves behind would hold pipes open."""
        first = self._folder / "first.sh"
        self.enter(first, "host=0")
        with (self._folder / "out").open("w") as out, (self._folder / "err").open("w") as err:
            return subprocess.Popen(
                [str(first), *map(str, argv)],
                stdout=out,
                stderr=err,
                text=True,
                cwd=cwd,
                env={**self.environment(), **environment},
            )

    def run(self, argv: list[object], cwd: Path, seconds: float, **environment: str) -> tuple[int | None, str, str]:
        """Exit code (None: it did not end in time, and was killed), standard output and error."""
        process = self.start(argv, cwd, **environment)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.kill_all()
        process.wait(PROCESS_S)
        return code, (self._folder / "out").read_text(), (self._folder / "err").read_text()

    def processes(self, host: int) -> list[int]:
        done = subprocess.run(
            ["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, timeout=PROCESS_S, check=False
        )
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, host: int) -> None:
        """Every process of a host."""
        for pid in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for host in range(self.count):
            self.kill(host)

    def cut(self, host: int) -> None:
        """Take its network away; nobody is told."""
        _ip("-n", self.names[host], "link", "set", "eth0", "down")

    def hide(self, host: int, *, before: int) -> None:
        """Take the way from one host to another away; all others are left."""
        _ip("-n", self.names[before], "route", "add", "blackhole", f"{ADDRESS}.{host + 1}/32")

    def shape(self, host: int, *rule: str) -> None:
        """A queueing discipline for what the host sends."""
        line = ["tc", "-n", self.names[host], "qdisc", "replace", "dev", "eth0", "root", *rule]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PROCESS_S, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip())

    def close(self) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.kill_all()
        if self.wire is not None:
            self.wire.close()
        for name in (*self.names, f"{self._prefix}net"):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=PROCESS_S, check=False)

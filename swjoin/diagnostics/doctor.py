"""The checks of `swjoin doctor`: can this machine, or these hosts, run swjoin?

What: `machine_checks` of one process, `launched_checks` that start ranks, `check_ranks` of the ranks' measurements.
Why: most first runs on a cluster fail for one of a dozen reasons; each has a check that names the remedy.
Stays out: the ranks' measurements (`diagnostics.doctor_ranks`), printing (`cli.doctor`).

Every started process has a time limit, and is ended by its id.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swjoin.core.errors import SwjoinError, UserError, how_to_install
from swjoin.core.kernel_cache import cache_folders, host_levels, precompiled_folder, stored_kernels
from swjoin.core.platforms import end_group, file_limits, signals_named
from swjoin.diagnostics.doctor_ranks import MARK, STUCK
from swjoin.runtime.launch import mpirun_options
from swjoin.runtime.preflight import find_mpirun, has_mpi4py
from swjoin.spark.java import find_java

Verdict = Literal["OK", "WARN", "FAIL"]
_PROBE_S = 30.0  # limit of one program
_DEATH_S = 40.0
_FILES_FEW, _FILES_ENOUGH = 256, 1024
_SEGMENT_BYTES = 16 << 20  # of shared memory, per rank (docs/reliability.md)
_MEMORY_PER_RANK_BYTES = 512 << 20  # of a started process with small windows
_OFFSET_S = 0.05
_LATENCY_S = 1e-3
_LINK_BYTES_PER_S = 100e6
_NEEDED, _EXTRA = re.compile(r"^([A-Za-z0-9_.-]+)([^;]*)(;.*)?$"), re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Check:
    """One check. found: the finding. mend: the remedy; empty when there is none to give. figures: for --json."""

    name: str
    verdict: Verdict
    found: str
    mend: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """A finished process. code: None when it was ended at its time limit."""

    code: int | None
    out: str
    err: str


def run_limited(line: list[str], limit_s: float) -> Ended:
    """Run a program; end it, with all processes that it started, at the time limit."""
    try:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        return Ended(127, "", f"{line[0]}: {error.strerror}")
    try:
        out, err = process.communicate(timeout=limit_s)
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        out = err = ""
        for number in signals_named("SIGTERM", "SIGKILL"):  # mpirun ends its ranks at SIGTERM
            end_group(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=5)
        return Ended(None, out, err)


def _one_line(text: str, most: int = 200) -> str:
    return " ".join(re.sub(r"-{5,}", " ", text).split())[:most].strip()


# ---------------------------------------------------------------- this machine


def _fits(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as `<2.5,>=2.4`."""

    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text))

    compare = {"<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "<=": lambda a, b: a <= b}
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        match = re.match(r"(<=|>=|==|<)\s*([\d.]+)$", bound)
        if match is None:
            return True
        mine, theirs = number(version), number(match[2])
        width = max(len(mine), len(theirs))
        if not compare[match[1]](mine + (0,) * (width - len(mine)), theirs + (0,) * (width - len(theirs))):
            return False
    return True


def check_packages(requirements: list[str], version_of: Callable[[str], str | None]) -> Check:
    """Packages against their requirements; those of extras may be missing. version_of: None for a package not installed."""
    missing, wrong, installed = [], [], []
    for requirement in requirements:
        match = _NEEDED.match(requirement.strip())
        if match is None:
            continue
        name, bounds, marker = match[1], match[2].strip("() "), match[3] or ""
        version, extra = version_of(name), _EXTRA.search(marker)
        if version is None:
            missing += [] if extra else [name]
        elif not _fits(version, bounds):
            wrong.append(f"{name} {version} (wanted {bounds})")
        elif not extra:
            installed.append(f"{name} {version}")
    if missing:
        return Check("packages", "FAIL", f"missing: {', '.join(missing)}", "run pip install . or ./run.sh test in a checkout")
    if wrong:
        return Check("packages", "WARN", f"too old, or not tried: {', '.join(wrong)}", "pip install --upgrade . in a checkout")
    return Check("packages", "OK", ", ".join(installed))


def _packages() -> Check:
    def version_of(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    try:
        requirements = importlib.metadata.requires("swjoin") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("packages", "WARN", "swjoin is not installed, only its sources are here", "pip install .")
    return check_packages(requirements, version_of)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - the sources may be started with an older one
        return Check("python", "FAIL", version, "install Python 3.11 or newer")
    return Check("python", "OK", f"{version} ({sys.executable})")


def _library() -> Check:
    if not has_mpi4py():
        return Check("MPI library", "WARN", "mpi4py is not installed: joins run in one process", how_to_install("mpi"))
    code = "import mpi4py; mpi4py.rc.initialize = False\nfrom mpi4py import MPI; print(MPI.Get_library_version().split(',')[0])"
    done = run_limited([sys.executable, "-c", code], _PROBE_S)
    if done.code != 0:
        said = _one_line(done.err[-300:]) or "no answer"
        return Check(
            "MPI library", "FAIL", f"mpi4py cannot load it: {said}", f"load your site's MPI module, or {how_to_install('mpi')}"
        )
    return Check("MPI library", "OK", _one_line(done.out))


def _launcher() -> Check:
    try:
        mpirun = find_mpirun()
    except UserError as error:
        return Check("MPI launcher", "FAIL", str(error).split(";")[0], str(error).split(";")[-1].strip())
    done = run_limited([str(mpirun), "--version"], _PROBE_S)
    first = (done.out.splitlines() or [""])[0]
    if done.code != 0:
        return Check(
            "MPI launcher",
            "FAIL",
            f"{mpirun} does not run: {_one_line(done.err)}",
            "reinstall it, or put another first in PATH",
        )
    return Check("MPI launcher", "OK", f"{_one_line(first)} ({mpirun})")


def _java() -> Check:
    try:
        return Check("Java", "OK", str(find_java()))
    except UserError as error:
        said = str(error)
        return Check("Java", "WARN", said.split(";")[0], f"only for Spark: {said.split(';')[-1].strip()}")


def _spark() -> Check:
    done = run_limited([sys.executable, "-c", "import pyspark; print(pyspark.__version__)"], _PROBE_S)
    if done.code != 0:
        mend = f"only for generate, --engine spark and swjoin.spark; {how_to_install('spark')}"
        return Check("Spark", "WARN", "pyspark cannot be imported", mend)
    return Check("Spark", "OK", f"pyspark {done.out.strip()}")


def check_kernels() -> Check:
    """Compiled kernels: where they are, how large, and whether more can be kept there."""
    folders, stored = cache_folders(), stored_kernels()
    size = sum(path.stat().st_size for path in stored)
    levels = [level for level in host_levels() if (precompiled_folder() / level).is_dir()]
    writable = [folder for folder in folders if _can_hold(folder)]
    figures = {"folder": str(folders[0]), "kernels": len(stored), "bytes": size, "precompiled": levels}
    found = f"{len(stored)} compiled, {size / 1e6:.1f} MB, in {folders[0]}"
    if levels:
        found = f"came with swjoin for {levels[0]}; {found}"
    if not writable:
        mend = "set NUMBA_CACHE_DIR to a folder that can be written"
        verdict: Verdict = "OK" if levels else "WARN"
        return Check("kernels", verdict, f"cannot be kept: {folders[0]} cannot be written; {found}", mend, figures)
    if writable[0] != folders[0]:
        mend = "set NUMBA_CACHE_DIR to a folder that lasts, or make the first writable"
        return Check("kernels", "WARN", f"kept in {writable[0]}, because {folders[0]} cannot be written", mend, figures)
    if not stored and not levels:
        return Check("kernels", "WARN", "not compiled yet; the first run takes longer", "swjoin kernels --compile", figures)
    return Check("kernels", "OK", found, "", figures)


def _can_hold(folder: Path) -> bool:
    """Whether files can be written to the folder, or it can be created."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _memory(ranks: int) -> Check:
    import psutil

    free = psutil.virtual_memory().available
    need = ranks * _MEMORY_PER_RANK_BYTES
    found = f"{free / 2**30:.1f} GiB free"
    if free < need:
        mend = f"{ranks} ranks want {need / 2**30:.1f} GiB with small windows; see: swjoin plan CONFIG.yaml -n {ranks}"
        return Check("memory", "WARN", found, mend, {"free_bytes": free})
    return Check("memory", "OK", found, "", {"free_bytes": free})


def check_files(soft: int, hard: int) -> Check:
    """Limits of open files."""
    found, figures = f"{soft} at once (at most {hard})", {"soft": soft, "hard": hard}
    if soft < _FILES_ENOUGH:
        verdict: Verdict = "FAIL" if soft < _FILES_FEW else "WARN"
        return Check("open files", verdict, found, f"ulimit -n {min(max(hard, _FILES_ENOUGH), 4096)}", figures)
    return Check("open files", "OK", found, "", figures)


def machine_checks(ranks: int) -> Iterator[Check]:
    """Checks that need no other rank."""
    yield _python()
    yield _packages()
    yield _library()
    if has_mpi4py():
        yield _launcher()
    yield _java()
    yield _spark()
    yield check_kernels()
    yield _memory(ranks)
    if (limits := file_limits()) is not None:
        yield check_files(*limits)


# ---------------------------------------------------------------- ranks


def _plain_time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"


def _check_cores(ranks: list[dict[str, Any]]) -> Check:
    ranks_of, cores = Counter(r["host"] for r in ranks), {r["host"]: r["cores"] for r in ranks}
    found = ", ".join(f"{host}: {n} ranks, {cores[host]} cores" for host, n in ranks_of.items())
    over = [host for host, n in ranks_of.items() if n > cores[host]]
    figures = {host: {"ranks": n, "cores": cores[host]} for host, n in ranks_of.items()}
    if over:
        mend = f"ranks share cores on {', '.join(over)}: fewer ranks, or more hosts; right but slower"
        return Check("cores", "WARN", found, mend, figures)
    return Check("cores", "OK", found, "", figures)


def _check_shm(ranks: list[dict[str, Any]]) -> Check:
    ranks_of, free = Counter(r["host"] for r in ranks), {r["host"]: r["shm_free_bytes"] for r in ranks}
    short = [host for host, n in ranks_of.items() if free[host] < n * _SEGMENT_BYTES]
    found = ", ".join(f"{host}: {free[host] / 2**20:,.0f} MiB free" for host in ranks_of)
    if short:
        need = max(ranks_of.values()) * _SEGMENT_BYTES >> 20
        mend = f"ranks of one host want {need} MiB there; mount -o remount,size=1G /dev/shm (in containers: --shm-size=1g)"
        return Check("/dev/shm", "FAIL", found, mend, free)
    return Check("/dev/shm", "OK", found, "", free)


def _check_software(ranks: list[dict[str, Any]]) -> Check:
    names = ("python", "swjoin", "numpy")
    kinds: dict[tuple[str, ...], set[str]] = {}
    for rank in ranks:
        kinds.setdefault(tuple(rank[name] for name in names), set()).add(rank["host"])
    texts = [" ".join(f"{n} {v}" for n, v in zip(names, kind, strict=True)) for kind in kinds]
    if len(kinds) > 1:
        found = "; ".join(f"{', '.join(sorted(hosts))}: {text}" for hosts, text in zip(kinds.values(), texts, strict=True))
        return Check("same software", "FAIL", found, "install the same environment on every host, or share one")
    return Check("same software", "OK", f"{texts[0]} on {len({r['host'] for r in ranks})} host(s)")


def _check_links(links: list[dict[str, float]], ranks: list[dict[str, Any]]) -> Iterator[Check]:
    host = [rank["host"] for rank in ranks]

    def of(link: dict[str, float]) -> str:
        return f"rank {int(link['rank'])} on {host[int(link['rank'])]}"

    worst = max(links, key=lambda link: abs(link["offset_s"]))
    found = f"at most {_plain_time(abs(worst['offset_s']))} +- {_plain_time(worst['uncertainty_s'])} ({of(worst)} and rank 0)"
    figures = {"links": links}
    if abs(worst["offset_s"]) - worst["uncertainty_s"] > _OFFSET_S:
        mend = "start chronyd or ntpd on all hosts; results are right, but times of logs and files differ by host"
        yield Check("clock offsets", "WARN", found, mend, figures)
    else:
        yield Check("clock offsets", "OK", found, "", figures)
    slow, thin = max(links, key=lambda link: link["latency_s"]), min(links, key=lambda link: link["bytes_per_s"])
    speeds = f"{_plain_time(slow['latency_s'])} ({of(slow)}), {thin['bytes_per_s'] / 1e6:,.0f} MB/s ({of(thin)})"
    found = f"one way {speeds}, the worst of {len(links)}"
    if slow["latency_s"] > _LATENCY_S or thin["bytes_per_s"] < _LINK_BYTES_PER_S:
        mend = "other transports may be there (ompi_info), or the wrong network is used: OMPI_MCA_btl_tcp_if_include=IFACE"
        yield Check("ping-pong", "WARN", found, mend, figures)
    else:
        yield Check("ping-pong", "OK", found, "", figures)


def _check_ring(ring: list[dict[str, Any]]) -> Check:
    size = len(ring)
    token = next(r for r in ring if r["rank"] == 0)["token"]
    wrong = [f"rank {r['rank']} got what rank {author} sent wrongly" for r in ring for author in r["wrong"]]
    seconds = max(r["seconds"] for r in ring)
    if token != list(range(size)):
        wrong.append(f"the token was signed by {token}")
    if wrong:
        return Check(
            "ring",
            "FAIL",
            "; ".join(wrong[:3]),
            "the network or the MPI transport corrupts messages; try another",
            {"ring": ring},
        )
    found = f"a token signed by {size} ranks; {size * (size - 1)} MiB relayed and verified in {_plain_time(seconds)}"
    return Check("ring", "OK", found, "", {"ring": ring})


def _check_shared(shared: list[dict[str, Any]], directory: Path) -> Check:
    problems = [r["problem"] for r in shared if r["problem"]]
    mend = "use a file system that all hosts share, for --out and checkpoint.directory"
    if problems:
        return Check("shared directory", "FAIL", f"cannot be written: {problems[0]}", mend, {"shared": shared})
    blind = sorted({r["host"] for r in shared if r["seen_s"] is None} | {shared[rank]["host"] for rank in shared[0]["unseen"]})
    if blind:
        return Check("shared directory", "FAIL", f"{directory} is another one on {', '.join(blind)}", mend, {"shared": shared})
    longest = max(r["seen_s"] for r in shared)
    return Check(
        "shared directory",
        "OK",
        f"{directory}: all ranks see a file of one rank within {_plain_time(longest)}",
        "",
        {"shared": shared},
    )


def check_ranks(figures: dict[str, Any], expected: int, directory: Path | None) -> Iterator[Check]:
    """Checks of the ranks' measurements (`doctor_ranks.examine`). expected: number of started ranks."""
    size, ranks = figures["size"], figures["ranks"]
    if size != expected:
        mend = "launcher and mpi4py's MPI library do not know each other: use that library's own mpirun, or srun --mpi=pmix"
        yield Check("ranks", "FAIL", f"{expected} processes were started, MPI sees {size} rank(s)", mend)
        return
    yield Check("ranks", "OK", f"{size} started on {len({r['host'] for r in ranks})} host(s), {figures['library']}")
    yield _check_software(ranks)
    yield _check_cores(ranks)
    yield _check_shm(ranks)
    if size > 1:
        yield from _check_links(figures["links"], ranks)
        yield _check_ring(figures["ring"])
    if directory is not None:
        yield _check_shared(figures["shared"], directory)


def _rank_line(ranks: int, hostfile: Path | None, *options: str) -> list[str]:
    return [*mpirun_options(find_mpirun(), ranks, hostfile), *options, sys.executable, "-m", "swjoin.diagnostics.doctor_ranks"]


def _messages(ended: Ended) -> list[str]:
    """Marked lines of the ranks' output; mpirun may join several on one line."""
    return [part.strip() for line in ended.out.splitlines() for part in line.split(MARK)[1:]]


def launched_checks(ranks: int, hostfile: Path | None, directory: Path | None, limit_s: float) -> Iterator[Check]:
    """Start ranks, and check their measurements."""
    try:
        line = _rank_line(ranks, hostfile)
    except SwjoinError as error:
        yield Check("ranks", "FAIL", str(error).split(";")[0], str(error).split(";")[-1].strip())
        return
    line += ["--limit", str(limit_s)]
    line += [] if directory is None else ["--dir", str(directory.absolute())]
    done = run_limited(line, limit_s + 15)
    messages = _messages(done)
    stuck = [text.removeprefix(STUCK) for text in messages if text.startswith(STUCK)]
    figures = [json.loads(text) for text in messages if text.startswith("{")]
    if stuck or not figures:
        found = "; ".join(stuck[:3]) or (
            f"not up within {limit_s + 15:.0f} s" if done.code is None else _one_line(done.err) or "mpirun printed nothing"
        )
        mend = "try one host, then two; check firewalls and host names, and set OMPI_MCA_btl_tcp_if_include=IFACE"
        yield Check("ranks", "FAIL", found, mend, {"code": done.code})
        return
    if len(figures) > 1:  # every process is rank 0 of an MPI world of its own
        figures[0]["size"] = 1
    yield from check_ranks(figures[0], ranks, directory)
    yield check_death(run_limited([*_rank_line(max(3, ranks), hostfile, "--with-ft", "ulfm"), "--die"], _DEATH_S))


def check_death(done: Ended) -> Check:
    """Whether ranks noticed the death of one of them."""
    reports = [json.loads(text) for text in _messages(done) if text.startswith("{")]
    mend = "runs with checkpoints end when a rank dies, and can be resumed; with Open MPI 5 and fault tolerance they continue"
    if not reports and done.code != 0:  # a library without it refuses the option, or ends all ranks when one dies
        text = "it took too long" if done.code is None else _one_line(done.err, 120) or f"mpirun ended with {done.code}"
        return Check("fault tolerance", "WARN", f"no rank reported the death of another: {text}", mend)
    death = reports[0]["death"] if reports else None
    if death is None:
        return Check("fault tolerance", "WARN", "the MPI library does not survive a rank's death", mend)
    if death["noticed_s"] is None:
        return Check("fault tolerance", "WARN", "a rank died, and no other noticed", mend)
    return Check(
        "fault tolerance", "OK", f"a rank killed itself, the others noticed after {_plain_time(death['noticed_s'])}", "", death
    )

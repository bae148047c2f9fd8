"""Kernels: functions that numba compiles at their first call, and the cache of compiled kernels.

What: `kernel`, the decorator of every kernel; `cache_folders()`, `stored_kernels()`, `clear_kernels()`; `CPU_LEVELS`, the
processors for which a wheel may bring compiled kernels (`precompiled_folder`).
Why: numba's own cache lies beside the sources: `pip uninstall` leaves it there, other users cannot write it, an edit of a
function that a kernel of another file calls is not noticed, and processes that compile at once can exchange their entries. Here
a file holds one compiled kernel, is named by everything that the machine code depends on, and appears as a whole; of processes
that need it at once one compiles it.
Stays out: functions of other packages, whose cache stays numba's; compiling in advance (`cli.kernels`).

Folders, the first that can be written: NUMBA_CACHE_DIR, if the user has set it, else the user's cache folder
(`platformdirs`), else one of this user alone below the temporary folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import llvmlite
import llvmlite.binding
import numba
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler import CompileResult
from numba.core.event import Event, Listener, register
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from swjoin.core.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".kernel"
CPU_LEVELS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl avx2 bmi bmi2 f16c fma lzcnt movbe popcnt xsave",
    "x86-64-v3": "avx2 bmi bmi2 f16c fma lzcnt movbe popcnt xsave",
}
_KEPT_S = 30 * 86400.0  # a kernel that no process has loaded for so long is deleted
_DAY_S = 86400.0
_COMPILED_S = 120.0  # the largest kernels take half a minute on a busy machine
_PATIENCE_S = 2.0
_COMPILING: dict[str, tuple[int, Path]] = {}  # kernels that this process compiles; descriptors and paths of lock files
_LOG = logging.getLogger(__name__)
_PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r"^from (swjoin[\w.]*) import (\(?[\w, ]*)", re.MULTILINE)


def kernel(function: Any = None, *, inline: Literal["never", "always"] = "never", allocates: bool = False) -> Any:
    """Compile the function for the types of each call, without the GIL; keep the machine code in the cache of kernels.

    allocates: whether it makes arrays, or is given one by a kernel that it calls. Only then are references counted in it: other
    arrays belong to its caller, and each count is an atomic write. Without counts such an array is freed too early or never.
    """
    if function is None:
        return functools.partial(kernel, inline=inline, allocates=allocates)
    compiled = njit(nogil=True, inline=inline, no_cfunc_wrapper=True, _nrt=allocates)(function)  # `_nrt`: a private option
    if compiled is not function:  # NUMBA_DISABLE_JIT=1
        compiled._cache = _KernelCache(function)
    return compiled


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__.removeprefix('swjoin.')}.{function.__qualname__}"


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """The compiled versions of one kernel, in place of numba's index of a source file."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name, self._py_func = repr(function), function
        self.enable()

    @property
    def cache_path(self) -> str:
        return str(cache_folders()[0])

    def flush(self) -> None:
        """Versions of other sources have other names; nothing is stale."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's, which first imports and registers all that it can compile, 0.4 s that machine code does not need.
        Where no version is stored the compiler does so itself."""
        rtsys.initialize(target_context)  # symbols of the memory that kernels allocate
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        if not self._enabled:
            return None
        key = self._index_key(sig, target_context.codegen())
        found = _read(cache_folders(), self._file(key), key)
        for level in () if found is not None else _own_levels():
            of_level = (key[0], (key[1][0], level, ""), key[2])  # what numba writes under NUMBA_CPU_NAME=level
            found = found or _read([precompiled_folder() / level], self._file(of_level), of_level)
        if found is None and _compiled_meanwhile(self._file(key)):
            found = _read(cache_folders(), self._file(key), key)
        return None if found is None else CompileResult._rebuild(target_context, *found)

    def _save_overload(self, sig: Any, data: Any) -> None:
        impl: Any = CompileResultCacheImpl
        if not self._enabled:
            return
        key = self._index_key(sig, data.codegen)
        try:
            if impl.check_cachable(self, data):
                _write(self._file(key), dumps((key, impl.reduce(self, data))))
        finally:
            _unlock(self._file(key))

    def _file(self, key: tuple[Any, ...]) -> str:
        code = hashlib.blake2b(f"{_source_digest(self._py_func.__module__)} {key}".encode(), digest_size=12).hexdigest()
        return f"{_name_of(self._py_func)}-{code}{SUFFIX}"


# ---------------------------------------------------------------- folders


def cache_folders() -> list[Path]:
    """Where kernels are looked for and written, the first that can be written. They need not exist."""
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if chosen:
        return [Path(chosen) / "swjoin"]
    return list(_own_folders())


@functools.cache
def _own_folders() -> tuple[Path, ...]:
    import platformdirs

    return platformdirs.user_cache_path("swjoin", appauthor=False) / "kernels", _temporary_folder()


def _temporary_folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"swjoin-kernels-{user}"


def _trusted(folder: Path) -> bool:
    """Whether nobody else can have put files there, which are run: everyone may create the folder in the temporary folder."""
    if folder != _temporary_folder():
        return True
    state = folder.lstat()
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and state.st_mode & 0o170077 == 0o040000)


def precompiled_folder() -> Path:
    """Kernels that came with the package, a folder per level of processor; it need not exist."""
    return _PACKAGE / "precompiled"


@functools.cache
def _own_levels() -> tuple[str, ...]:
    """Levels of processor that came with the package and that this one has, best first. None if the user chose a processor."""
    if numba.config.CPU_NAME or not precompiled_folder().is_dir():  # type: ignore[attr-defined]
        return ()
    return tuple(level for level in host_levels() if (precompiled_folder() / level).is_dir())


def host_levels() -> list[str]:
    """The levels of processor that this machine has, best first."""
    if platform.machine() != "x86_64":
        return []
    features = llvmlite.binding.get_host_cpu_features()
    return [level for level, wanted in CPU_LEVELS.items() if all(features.get(name) for name in wanted.split())]


def stored_kernels() -> list[Path]:
    """Files of compiled kernels in the cache."""
    return [path for folder in cache_folders() for path in sorted(folder.glob(f"*{SUFFIX}"))]


def clear_kernels() -> int:
    """Delete the cache. Returns how many bytes it had."""
    freed = 0
    for folder in cache_folders():
        freed += _delete(folder.glob(f"*{SUFFIX}*"))
        with contextlib.suppress(OSError):
            folder.rmdir()
    return freed


def _delete(files: Iterable[Path]) -> int:
    freed = 0
    for path in files:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            freed += size
    return freed


# ---------------------------------------------------------------- files


def _read(folders: list[Path], name: str, key: Any) -> Any:
    """A compiled kernel as numba takes it back, or None. A damaged file is none."""
    for folder in folders:
        path = folder / name
        try:
            data = path.read_bytes() if _trusted(folder) else b""
        except OSError:
            continue
        if len(data) < 16 or _checksum(data[16:]) != data[:16]:
            continue
        of, kernel_code = pickle.loads(data[16:])
        if of != key:
            continue
        with contextlib.suppress(OSError):
            if folder.parent != precompiled_folder() and path.stat().st_mtime < time.time() - _DAY_S:
                os.utime(path)
        return kernel_code
    return None


def _write(name: str, data: bytes) -> None:
    """Into the first folder that can be written; into none, and every process compiles for itself."""
    for folder in cache_folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _trusted(folder):
                continue
            _prune(folder)
            own = folder / f"{name}.{uuid.uuid4().hex[:12]}"
            try:
                own.write_bytes(_checksum(data) + data)
                own.replace(folder / name)  # whole or not at all: ranks compile at once
            finally:
                own.unlink(missing_ok=True)
            return
        except OSError:
            continue


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


@functools.cache
def _prune(folder: Path) -> None:
    """Once per process: delete kernels that are out of use, of old versions and sources, and the files of killed writers."""
    old = time.time() - _KEPT_S
    _delete([path for path in folder.glob(f"*{SUFFIX}*") if path.stat().st_mtime < old])


# ---------------------------------------------------------------- who compiles


def _compiled_meanwhile(name: str) -> bool:
    """Whether another process has stored a kernel since. All ranks of a run come to their first kernels at once: one of them
    locks a kernel's name and compiles it, the others wait for it. Without a folder that can be locked each compiles it."""
    for folder in () if fcntl is None or name in _COMPILING else cache_folders():
        path = folder / f"{name}.lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _trusted(folder):
                continue
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        mine = False
        try:
            mine = _locked(lock, folder / name)
        finally:
            if mine:
                _COMPILING[name] = lock, path
            else:
                os.close(lock)
        return not mine and (folder / name).exists()
    return False


def _locked(lock: int, stored: Path) -> bool:
    """Lock the name of a kernel, waiting for another process that has. False: it has stored the kernel; or it could not, or
    takes longer than a kernel does and may have been stopped, so that each compiles it."""
    start_s, logged = time.monotonic(), False
    while not stored.exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock).st_nlink > 0 and not stored.exists()
        except BlockingIOError:
            pass
        except OSError:
            return False
        waited_s = time.monotonic() - start_s
        if waited_s > _COMPILED_S:
            return False
        if waited_s > _PATIENCE_S and not logged:
            logged = True
            _LOG.info("another process compiles kernels for this machine; waiting for it")
        time.sleep(0.02)
    return False


def _unlock(name: str) -> None:
    """Let others go on that wait for a kernel."""
    if name in _COMPILING:
        lock, path = _COMPILING.pop(name)
        _delete([path])
        fcntl.flock(lock, fcntl.LOCK_UN)  # also where a child process has the descriptor
        os.close(lock)


class _Failures(Listener):  # type: ignore[misc]
    """A compilation that fails, or is interrupted, stores nothing."""

    def on_start(self, event: Event) -> None:
        """Nothing to do."""

    def on_end(self, event: Event) -> None:
        if event._exc_details is not None:  # `is_failed` says the opposite (numba 0.68)
            start = f"{_name_of(event.data['dispatcher'].py_func)}-"
            for name in [name for name in _COMPILING if name.startswith(start)]:
                _unlock(name)


register("numba:compile", _Failures())


# ---------------------------------------------------------------- sources


@functools.cache
def _source_digest(module: str) -> str:
    """Of the sources from which a module's kernels are compiled: its own, and of every module that it imports, theirs too; of
    swjoin, numba, LLVM and Python the versions."""
    digest = hashlib.blake2b(digest_size=16)
    version = __version__, numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, platform.machine()
    digest.update(repr(version).encode())
    found, wanted = {module}, [module]
    while wanted:
        imported = _source(wanted.pop())[1]
        wanted += imported - found
        found |= imported
    for name in sorted(found):
        digest.update(hashlib.blake2b(_source(name)[0]).digest())
    return digest.hexdigest()


@functools.cache
def _source(module: str) -> tuple[bytes, frozenset[str]]:
    """A module's source, and the modules of the package that its top level imports; nothing where there is no source."""
    path = _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    try:
        text = path.read_bytes()
    except OSError:
        return b"", frozenset()
    imported = set()
    for origin, names in _IMPORT.findall(text.decode()):
        imported |= {origin, *(f"{origin}.{name}" for name in re.findall(r"\w+", names))}
    return text, frozenset(imported)

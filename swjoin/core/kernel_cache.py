"""Invalidation of the kernel cache.

What: `forget_stale_kernels(package)`: after an installation over an older version, deletes the kernels that one has compiled.
Why: numba stores compiled kernels beside their sources, keyed by the kernel's own file. A kernel whose file is equal in both
versions would call the older version's functions of other files; pip does not delete compiled kernels.
Stays out: a checkout, where `run.sh` does the same (docs/architecture.md, Adding a kernel).
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

_MARK = "kernels.installation"  # in __pycache__, beside the compiled kernels


def forget_stale_kernels(package: Path) -> None:
    """Does nothing in a checkout, or without permission to write."""
    if not (package / "plots").is_dir():
        return
    installation = _installation(package)
    mark = package / "__pycache__" / _MARK
    with contextlib.suppress(OSError):
        if mark.is_file() and mark.read_text() == installation:
            return
        for index in package.rglob("__pycache__/*.nbi"):
            index.unlink(missing_ok=True)  # a kernel without its index is not loaded
        mark.parent.mkdir(exist_ok=True)
        own = mark.with_suffix(f".{os.getpid()}")
        own.write_text(installation)
        own.replace(mark)  # atomic: ranks start at the same time


def _installation(package: Path) -> str:
    """Checksum of the installer's record of our sources or, without a record, of their modification times."""
    records = sorted(package.parent.glob("swjoin-*.dist-info/RECORD"))
    if records:
        lines = [line for line in records[-1].read_text().splitlines() if line.startswith("swjoin/") and ".py," in line]
    else:
        lines = [f"{path.stat().st_mtime_ns}" for path in sorted(package.rglob("*.py"))]
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"

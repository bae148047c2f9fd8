"""Kernels that another version compiled are forgotten.

What: `forget_stale_kernels(package)`: after an installation over an older one, removes what that one has compiled.
Why: numba keeps compiled kernels beside their sources and knows each by its own file alone. A kernel whose file is the same
in both versions would go on calling the older version's functions of other files; pip leaves these files where they are.
Stays out: a checkout, where `run.sh` does the same (docs/architecture.md, Adding a kernel).
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

_MARK = "kernels.installation"  # in __pycache__, beside the compiled kernels


def forget_stale_kernels(package: Path) -> None:
    """Nothing happens in a checkout, or where the package may only be read."""
    if not (package / "plots").is_dir():
        return
    installation = _installation(package)
    mark = package / "__pycache__" / _MARK
    with contextlib.suppress(OSError):
        if mark.is_file() and mark.read_text() == installation:
            return
        for index in package.rglob("__pycache__/*.nbi"):
            index.unlink(missing_ok=True)  # without its index nobody reads the kernel itself
        mark.parent.mkdir(exist_ok=True)
        own = mark.with_suffix(f".{os.getpid()}")
        own.write_text(installation)
        own.replace(mark)  # ranks start at the same moment


def _installation(package: Path) -> str:
    """A checksum of what the installer recorded of our sources; without a record, of when they were written."""
    records = sorted(package.parent.glob("swjoin-*.dist-info/RECORD"))
    if records:
        lines = [line for line in records[-1].read_text().splitlines() if line.startswith("swjoin/") and ".py," in line]
    else:
        lines = [f"{path.stat().st_mtime_ns}" for path in sorted(package.rglob("*.py"))]
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"

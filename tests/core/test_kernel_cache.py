"""The cache of compiled kernels: per user, never stale, never half written, and nobody else's business."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

from swjoin.core import kernel_cache
from swjoin.core.kernel_cache import cache_folders, clear_kernels, host_levels, stored_kernels
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

DIGEST = """
import numpy as np
from swjoin.core import hashing, kernel_cache
from pathlib import Path
import sys
if len(sys.argv) > 1:
    kernel_cache.precompiled_folder = lambda: Path(sys.argv[1])
digest = hashing.digest_pairs(np.arange(9, dtype=np.uint64), np.arange(9, dtype=np.uint64))
print(digest, sum(hashing._digest.stats.cache_hits.values()), sum(hashing._digest.stats.cache_misses.values()))
"""


ALL = """
import importlib, pickle, pkgutil, sys
import swjoin
from numba.core.imputils import builtin_registry
from swjoin.core.kernel_cache import _KernelCache, _name_of, stored_kernels

kernels = {}
for module in {name for _, name, _ in pkgutil.walk_packages(swjoin.__path__, "swjoin.")} - {"swjoin.__main__"}:
    try:
        found = vars(importlib.import_module(module)).values()
    except ImportError:
        continue
    kernels |= {_name_of(k.py_func): k for k in found if isinstance(getattr(k, "_cache", None), _KernelCache)}
loaded = 0
for path in stored_kernels():
    kernel = kernels.get(path.name.rpartition("-")[0])
    try:
        key = pickle.loads(path.read_bytes()[16:])[0]
    except (ImportError, AttributeError):  # of another version of numba
        continue
    if kernel is not None and kernel._cache._file(key) == path.name:
        loaded += kernel._cache.load_overload(key[0], kernel.targetctx) is not None
        assert builtin_registry not in kernel.targetctx._registries, path
print(len(kernels), loaded)
"""


def started(home: Path, program: str = DIGEST, *arguments: object, **more: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "TMPDIR": str(home / "tmp"), **more}
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> list[int]:
    """Digest, kernels loaded, kernels compiled."""
    out, err = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, err
    return [int(word) for word in out.split()]


def kernels_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel*"))


def test_a_kernel_is_compiled_once_per_user(tmp_path: Path) -> None:
    at_once = [ended(process) for process in [started(tmp_path) for _ in range(3)]]
    digests = {digest for digest, _, _ in at_once}
    assert len(digests) == 1
    assert sum(compiled for _, _, compiled in at_once) == 1, "the others wait for it"
    (file,) = kernels_below(tmp_path)
    assert file.parent == tmp_path / ".cache" / "swjoin" / "kernels"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert ended(started(tmp_path)) == [*digests, 1, 0]
    file.write_bytes(file.read_bytes()[:-1])
    assert ended(started(tmp_path)) == [*digests, 0, 1], "damaged"
    assert ended(started(tmp_path)) == [*digests, 1, 0]


def test_stored_kernels_need_no_compiler() -> None:
    """Their machine code finds every symbol that it names, though nothing is registered that numba could compile."""
    command = [sys.executable, "-c", ALL]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S)
    assert process.returncode == 0, process.stderr
    kernels, loaded = map(int, process.stdout.split())
    assert kernels > 100
    assert loaded > 100, "run.sh has compiled them"


def test_nobody_waits_for_ever_for_another_to_compile(tmp_path: Path) -> None:
    digest = ended(started(tmp_path))[0]
    (file,) = kernels_below(tmp_path)
    file.unlink()
    impatient = DIGEST.replace("import sys", "import sys; kernel_cache._COMPILED_S = 0.2")
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ended(started(tmp_path, impatient)) == [digest, 0, 1]
        assert file.exists()


def test_a_kernel_that_cannot_be_compiled_is_let_go(tmp_path: Path) -> None:
    """Others would wait for it."""
    program = """
from swjoin.core import kernel_cache
@kernel_cache.kernel
def wrong(x):
    return x.nothing
taken = []
locked = kernel_cache._locked
kernel_cache._locked = lambda lock, stored: taken.append(stored) or locked(lock, stored)
try:
    wrong(1)
except Exception:
    print(len(taken), len(kernel_cache._COMPILING))
"""
    assert ended(started(tmp_path, program)) == [1, 0]
    assert not kernels_below(tmp_path)


def test_the_users_own_cache_folder_wins(tmp_path: Path) -> None:
    ended(started(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "own")))
    (file,) = kernels_below(tmp_path)
    assert file.parent == tmp_path / "own" / "swjoin"
    assert ended(started(tmp_path / "other", XDG_CACHE_HOME=str(tmp_path / "xdg")))[1:] == [0, 1]
    assert len(kernels_below(tmp_path / "xdg" / "swjoin" / "kernels")) == 1


def test_a_home_that_cannot_be_written_leaves_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("a file")
    assert ended(started(tmp_path))[1:] == [0, 1]
    (file,) = kernels_below(tmp_path)
    assert file.parent == tmp_path / "tmp" / f"swjoin-kernels-{os.getuid()}"
    assert ended(started(tmp_path))[1:] == [1, 0]
    file.parent.chmod(0o777)
    assert ended(started(tmp_path))[1:] == [0, 1], "others could have put it there"
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("a file")
    assert ended(started(tmp_path))[1:] == [0, 1], "nowhere"
    assert not kernels_below(tmp_path)


@pytest.mark.skipif(not host_levels(), reason="no level of processor for which kernels are shipped")
def test_kernels_that_came_with_the_package_are_loaded(tmp_path: Path) -> None:
    level = host_levels()[-1]
    elsewhere = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path / "built")}
    digest = ended(started(tmp_path, **elsewhere))[0]
    (tmp_path / "shipped").mkdir()
    (tmp_path / "built" / "swjoin").rename(tmp_path / "shipped" / level)
    assert ended(started(tmp_path, DIGEST, tmp_path / "shipped")) == [digest, 1, 0]
    assert len(kernels_below(tmp_path)) == 1, "nothing was compiled"
    assert ended(started(tmp_path, DIGEST, tmp_path / "shipped", NUMBA_CPU_NAME="generic"))[1:] == [0, 1]


def test_kernels_of_a_guest_stay_where_numba_puts_them(tmp_path: Path) -> None:
    (tmp_path / "guest.py").write_text("import numba\n@numba.njit(cache=True)\ndef twice(x):\n    return 2 * x\n")
    program = """
import os
before = dict(os.environ)
import swjoin.api.tables, guest
print(guest.twice(4), int(os.environ == before))
"""
    assert ended(started(tmp_path, program, PYTHONPATH=f"{ROOT}:{tmp_path}")) == [8, 1]
    assert [path.suffix for path in sorted((tmp_path / "__pycache__").glob("guest.twice*"))] == [".nbc", ".nbi"]


def test_an_edit_of_anything_that_a_kernel_is_compiled_from_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        kernel_cache._source.cache_clear()
        return kernel_cache._source_digest.__wrapped__("swjoin.state.join")

    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path)
    sources = {
        "state/join.py": "from swjoin.state import blocks\nfrom swjoin.core.hashing import (\n    mix,\n)\n",
        "state/blocks.py": "SIZE = 3\n",
        "core/hashing.py": "from swjoin.core.constants import C\n",
        "core/constants.py": "C = 5\n",
        "cli/main.py": "pass\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = [digest()]
    assert digest() == seen[0]
    for name in list(sources)[:-1]:
        (tmp_path / name).write_text(sources[name] + "# edited\n")
        seen.append(digest())
    assert len(set(seen)) == 5
    (tmp_path / "cli" / "main.py").write_text("other\n")
    assert digest() == seen[-1]
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert digest() != seen[-1]


def test_no_kernel_has_a_cache_of_numbas_own() -> None:
    for path in (ROOT / "swjoin").rglob("*.py"):
        assert "njit" not in path.read_text() or path.name == "kernel_cache.py", path


def test_what_is_out_of_use_is_pruned_and_the_rest_can_be_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path), raising=False)
    kernel_cache._prune.cache_clear()
    folder = cache_folders()[0]
    assert folder == tmp_path / "swjoin"
    folder.mkdir()
    ages = {"old.f-1.kernel": 40, "killed.f-2.kernel.3f": 40, "used.f-3.kernel": 20, "notes.txt": 40}
    for name, days in ages.items():
        (folder / name).write_bytes(b"12345")
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    kernel_cache._write("new.f-4.kernel", b"code")
    assert sorted(path.name for path in folder.iterdir()) == ["new.f-4.kernel", "notes.txt", "used.f-3.kernel"]
    assert [path.name for path in stored_kernels()] == ["new.f-4.kernel", "used.f-3.kernel"]
    assert clear_kernels() == 5 + 16 + 4
    assert [path.name for path in folder.iterdir()] == ["notes.txt"], "it is not ours"
    (folder / "notes.txt").unlink()
    assert clear_kernels() == 0
    assert not folder.exists()


def test_a_kernel_that_is_used_is_kept(tmp_path: Path) -> None:
    digest = ended(started(tmp_path))[0]
    (file,) = kernels_below(tmp_path)
    os.utime(file, (time.time() - 20 * 86400,) * 2)
    assert ended(started(tmp_path)) == [digest, 1, 0]
    assert file.stat().st_mtime > time.time() - 86400


def _kernels() -> dict[str, tuple[ast.FunctionDef, dict[str, str]]]:
    """All kernels of the package by module and name, and what the names in their module are: `module.name`."""
    found = {}
    for path in sorted((ROOT / "swjoin").rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        tree = ast.parse(path.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        names = {node.name: f"{module}.{node.name}" for node in functions}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in functions:
            if any(ast.unparse(mark).startswith("kernel") for mark in node.decorator_list):
                found[f"{module}.{node.name}"] = node, names
    return found


def test_references_are_counted_where_kernels_own_arrays() -> None:
    """Without counts an array that a called kernel has made is never freed, and one that a kernel returns is freed too early;
    numba itself refuses only to make one. Kernels whose
    result has no annotation are not seen."""
    kernels = _kernels()
    assert len(kernels) > 200
    counting = {name for name, (node, _) in kernels.items() if "allocates=True" in ast.unparse(node.decorator_list[0])}
    arrays = re.compile(r"\b(I64|U64|U8|I32|U16|F64|F32|Bool|NDArray)\b")
    owning = {name for name, (node, _) in kernels.items() if node.returns and arrays.search(ast.unparse(node.returns))}
    assert owning > {"swjoin.state.arrangement._buckets_of", "swjoin.policy.partitioning._contract"}
    assert owning <= counting
    for name, (node, names) in kernels.items():
        called = {names.get(c.func.id) for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
        assert name in counting or not called & owning, name

"""The house: imports go one way, roles stay pure, modules say what they are, nothing foreign is committed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swjoin.errors import UserError
from swjoin.runtime.launch import mpirun_command
from swjoin.runtime.preflight import find_java, java_major, launcher_size, world_complaint
from tests.conftest import ROOT
from tests.limits import PROCESS_S

PACKAGE = ROOT / "swjoin"
FILES = sorted(PACKAGE.rglob("*.py"))
# Ground floor first; a room imports only from rooms before it. Rooms in one tuple share a floor.
FLOORS: list[tuple[str, ...]] = [
    ("errors", "stale_kernels", "shapes"),
    ("batch", "units", "where", "shipped", "stdio"),
    ("oracle", "storage", "deliveries", "places"),
    ("sections", "hashing"),
    ("ends",),
    ("config",),
    ("loading",),
    ("messages",),
    ("state",),
    ("operators",),
    ("routing", "policy"),
    ("cluster",),
    ("sources",),
    ("sinks",),
    ("live",),
    ("observe",),
    ("runtime",),
    ("api",),
    ("sweeps",),
    ("spark",),
    ("examples",),
    ("cli",),
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}


def imports(path: Path, *, top_only: bool) -> set[str]:
    """Modules that a file imports; with top_only, not those inside functions or for type checking."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def room(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts in (("__init__",), ("__main__",)):
        return
    mine = FLOOR[parts[0]]
    for module in imports(path, top_only=False):
        if module.startswith("swjoin."):
            assert FLOOR[room(module)] <= mine, f"{parts} imports {module}, which is upstairs"


@pytest.mark.parametrize("name", ["policy", "cluster", "routing", "operators", "state"])
def test_roles_and_policies_are_pure(name: str) -> None:
    """No MPI, no Spark, no clock, no files, no randomness of their own (law 2)."""
    forbidden = {"mpi4py", "pyspark", "pyarrow", "time", "random", "datetime", "os", "pathlib", "threading", "socket", "pickle"}
    for path in (PACKAGE / name).glob("*.py"):
        used = {module.split(".")[0] for module in imports(path, top_only=False)}
        assert not used & forbidden, f"{path.name} imports {used & forbidden}"


def test_a_slave_imports_little() -> None:
    code = (
        "import sys, swjoin.cluster.slave, swjoin.runtime.mpi, swjoin.runtime.wire\n"
        "heavy = {'pyarrow', 'pyspark', 'matplotlib', 'pandas', 'rich'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_unpickled_or_evaluated() -> None:
    words = ["import pickle", r"(?<![\w.])(eval|exec)\(", r"yaml\.load\(", r"comm\.(bcast|send|recv|gather|scatter)\("]
    for path in FILES:
        for word in words:
            assert not re.search(word, path.read_text()), f"{path.name}: {word}"


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "plots").glob("*.py"))], ids=lambda p: p.name)
def test_modules_say_what_they_are(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if path.name not in ("__init__.py", "__main__.py"):
        assert docstring, path
        assert "Why:" in docstring
        assert "Stays out:" in docstring


def test_the_working_tree_names_no_machine() -> None:
    done = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT)
    for name in done.stdout.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".sh", ".yaml", ".cfg", ".toml", ".lock", ""):
            assert not re.search(r"(^|[^A-Za-z.])/(work|root|home)/", path.read_text()), name


# ---------------------------------------------------------------- preflight and launch


def test_files_are_groups(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2, pytest-xdist 3.8 forgets groups without a word: fixtures are made in every process (its issue 1386)."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests are not divided by groups")
    assert request.node.nodeid.endswith("@test_layout.py")


def test_launcher_size_by_environment() -> None:
    assert launcher_size({}) == 1
    assert launcher_size({"OMPI_COMM_WORLD_SIZE": "5", "OMPI_COMM_WORLD_RANK": "2"}) == 5
    assert launcher_size({"PMI_SIZE": "3"}) == 3
    assert launcher_size({"SLURM_PROCID": "3"}) == 4
    assert launcher_size({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) == 1


def test_worlds() -> None:
    assert world_complaint(5, 5) is None
    assert "separate processes" in str(world_complaint(4, 1))
    assert "at least 3" in str(world_complaint(2, 2))


def test_java_versions(tmp_path: Path) -> None:
    assert java_major('openjdk version "17.0.15" 2025-04-15') == 17
    assert java_major('java version "1.8.0_292"') == 8
    assert java_major("command not found") is None
    with pytest.raises(UserError, match="Spark needs Java 17 or newer; install"):
        find_java({"PATH": str(tmp_path)})
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(UserError, match=r"java is version 11\); install openjdk-17"):
        find_java({"PATH": str(tmp_path)})


def test_mpirun_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    command = mpirun_command(Path("mpirun"), 5, Path("job.json"), False)
    assert command[:3] == ["mpirun", "-n", "5"]
    assert {"--allow-run-as-root", "--oversubscribe"} <= set(command)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    command = mpirun_command(Path("mpirun"), 5, Path("job.json"), True)
    assert not {"--allow-run-as-root", "--oversubscribe"} & set(command)
    assert command[-1] == "--debug"

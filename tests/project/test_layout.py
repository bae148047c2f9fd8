"""The house: imports go one way, roles stay pure, modules say what they are, nothing foreign is committed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swjoin.core.errors import UserError
from swjoin.runtime.launch import mpirun_command
from swjoin.runtime.preflight import launcher_size, world_complaint
from swjoin.spark.java import find_java, java_major
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

PACKAGE = ROOT / "swjoin"
FILES = sorted(PACKAGE.rglob("*.py"))
# Ground floor first; a room imports from rooms of lower floors, and from itself while no circle arises.
FLOORS: list[tuple[str, ...]] = [
    ("core",),
    ("expressions", "routing"),
    ("config", "state"),
    ("connectors", "operators", "plan", "policy"),
    ("cluster", "duckdb", "frontends", "spark"),
    ("checkpoint", "monitor"),
    ("runtime",),
    ("diagnostics", "forecast", "sweeps"),
    ("api", "cli"),
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


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    """Our own modules that a file imports, type checking and functions included."""
    modules = {module_of(p) for p in FILES}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return {module for module in found if module.split(".")[0] == "swjoin"}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next and the last the first; [] if there are none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        stack = [(start, iter(sorted(graph[start])))] if start not in done else []
        path += [start] if stack else []
        while stack:
            module, others = stack[-1]
            for other in others:
                if other in path:
                    return path[path.index(other) :]
                if other not in done and other in graph:
                    stack.append((other, iter(sorted(graph[other]))))
                    path.append(other)
                    break
            else:
                done.add(module)
                stack.pop()
                path.pop()
    return []


def test_rooms_stand_on_their_floors() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms == set(FLOOR)
    assert {p.name for p in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) == 1:
        return
    for module in imported_modules(path):
        room = [*module.split("."), ""][1]
        assert room == parts[0] or FLOOR.get(room, len(FLOORS)) < FLOOR[parts[0]], (
            f"{parts} imports {module}, which is upstairs"
        )


def test_no_circle_of_imports() -> None:
    graph = {module_of(path): imported_modules(path) - {module_of(path)} for path in FILES}
    assert circle_in(graph) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("name", ["policy", "plan", "cluster", "routing", "operators", "state"])
def test_roles_and_policies_are_pure(name: str) -> None:
    """No MPI, no Spark, no clock, no files, no randomness of their own (law 2)."""
    forbidden = {"mpi4py", "pyspark", "pyarrow", "time", "random", "datetime", "os", "pathlib", "threading", "socket", "pickle"}
    for path in (PACKAGE / name).rglob("*.py"):
        used = {module.split(".")[0] for module in imports(path, top_only=False)}
        assert not used & forbidden, f"{path.name} imports {used & forbidden}"


def test_a_slave_imports_little() -> None:
    code = (
        "import sys, swjoin.cluster.slave.slave, swjoin.runtime.mpi.main, swjoin.cluster.wire\n"
        "heavy = {'pyarrow', 'pyspark', 'matplotlib', 'pandas', 'rich'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


# Words of a private dialect that the code once had, with the field's terms for them in docs/decisions/019.
BANNED = {
    "befall",
    "befalls",
    "begun",
    "census",
    "door",
    "doors",
    "foretell",
    "foretelling",
    "foretold",
    "happened",
    "hear",
    "inflow",
    "inflows",
    "journey",
    "journeys",
    "judge",
    "judged",
    "keeper",
    "keepers",
    "lend",
    "lent",
    "mind",
    "nobody",
    "ordeal",
    "ordeals",
    "parking",
    "performed",
    "shell",
    "somebody",
    "speak",
    "speaks",
    "strike",
    "strikes",
    "tells",
    "told",
    "trail",
    "trails",
    "travelling",
    "unforeseen",
    "whoever",
    "yielding",
    "yields",
}


def test_identifiers_use_the_fields_words() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, field, None) for field in ("name", "id", "arg", "attr")}
            words = {w.lower() for name in names if isinstance(name, str) for w in re.findall(r"[A-Z]?[a-z]+", name)}
            assert not words & BANNED, f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


def test_nothing_is_unpickled_or_evaluated() -> None:
    words = ["import pickle", r"(?<![\w.])(eval|exec)\(", r"yaml\.load\(", r"comm\.(bcast|send|recv|gather|scatter)\("]
    for path in FILES:
        if path.name == "kernel_cache.py":  # numba's compiled kernels are pickles, in files that the user alone can write
            continue
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

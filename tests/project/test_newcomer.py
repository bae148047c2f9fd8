"""A newcomer's first minutes: the wheel is built, installed in a fresh environment, and used outside the checkout.

Needs a package index (whatever pip is configured for); without one all of it is skipped, and says why.
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from tests.conftest import ROOT
from tests.support.limits import LONG_S
from tests.support.packaging import lines

pytestmark = [pytest.mark.newcomer, pytest.mark.timeout(LONG_S)]
HAS_API = hasattr(swjoin, "join")
FOREIGN = ("tests/", "benchmarks/", "docs/", "__pycache__", ".nbi", ".nbc", ".pyc", ".venv", "runs/")


def clean_environment() -> dict[str, str]:
    """Ours, without what could lead to the checkout or to this environment."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NUMBA_", "VIRTUAL_ENV", "PYTEST"))}


def perform(command: list[object], cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [str(part) for part in command]
    return subprocess.run(argv, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False, timeout=500)


def succeed(command: list[object], cwd: Path) -> str:
    done = perform(command, cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Built:
    from_tree: Path
    from_sdist: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist of a copy of the working tree, and the wheel that comes out of the sdist."""
    folder = tmp_path_factory.mktemp("built")
    probe = perform(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder / "probe", "setuptools>=77.0.3"], folder
    )
    if probe.returncode != 0:
        pytest.skip(f"no package index can be reached: {probe.stderr.strip().splitlines()[-1:]}")
    listed = succeed(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            target = folder / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    for litter in ("swjoin/state/__pycache__/kernels.cpython-311.pyc", "swjoin/state/kernels.nbi", "plots/style.nbc"):
        (folder / "tree" / litter).parent.mkdir(exist_ok=True)
        (folder / "tree" / litter).write_bytes(b"litter")
    # the sdist first: building a wheel leaves swjoin.egg-info, and a list of files in it, behind
    succeed([sys.executable, "-m", "build", "--outdir", folder / "dist", folder / "tree"], folder)
    succeed([sys.executable, "-m", "build", "--wheel", "--outdir", folder / "direct", folder / "tree"], folder)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return Built(folder / "direct" / wheel.name, wheel, sdist)


def lowest() -> list[str]:
    """The lowest version of every requirement, exactly; of pandas the oldest of the second line that has wheels for numpy 2."""
    return [text.replace(">=", "==") for text in lines("options", "install_requires")] + ["pandas==2.2.*", "polars", "duckdb"]


# What is installed beside the wheel, and the wheel's extra
BESIDE: dict[str, tuple[str, list[str]]] = {
    "newest": ("", ["pandas>=3", "polars", "duckdb"]),
    "lowest": ("", lowest()),
    "ranks": ("[mpi]", []),
}


@contextmanager
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory, beside: str) -> Iterator[Path]:
    """A fresh environment's folder of programs; the wheel is installed with its dependencies."""
    folder = tmp_path_factory.mktemp("fresh")
    succeed([sys.executable, "-m", "venv", folder / "env"], folder)
    extra, more = BESIDE[beside]
    pip = [folder / "env" / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    succeed([*pip, f"{built.from_sdist}{extra}", *more], folder)
    yield folder / "env" / "bin"
    shutil.rmtree(folder, ignore_errors=True)  # hundreds of MB, which pytest would keep


@pytest.fixture(scope="module", params=["newest", "lowest"])
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    with installed(built, tmp_path_factory, request.param) as programs:
        yield programs


@pytest.fixture(scope="module")
def with_mpi(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(built, tmp_path_factory, "ranks") as programs:
        yield programs


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_what_it_must_and_nothing_else(built: Built) -> None:
    names = {name for name in contents(built.from_tree) if ".dist-info/" not in name}
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "swjoin").rglob("*.py")}
    expected |= {f"swjoin/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "plots").glob("*.py")}
    expected |= {f"swjoin/experiments/{p.name}" for p in (ROOT / "experiments").glob("*.yaml")}
    expected |= {f"swjoin/mpi_configs/{p.name}" for p in (ROOT / "mpi_configs").iterdir() if p.is_file()}
    assert names == expected | {"swjoin/py.typed", "swjoin/monitor/page.html"}
    assert not [name for name in names for part in FOREIGN if part in name]


def test_the_wheel_carries_the_license(built: Built) -> None:
    files = contents(built.from_sdist)
    (folder,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    metadata = email.message_from_bytes(files[f"{folder}/METADATA"])
    assert metadata.get_all("License-Expression") == ["Apache-2.0"]
    assert metadata.get_all("License") is None, "the field that License-Expression replaces"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata.get_all("Author") == ["The swjoin authors"]
    for name in ("LICENSE", "NOTICE"):
        assert files[f"{folder}/licenses/{name}"] == (ROOT / name).read_bytes()


def test_the_sdist_builds_the_same_wheel(built: Built) -> None:
    assert contents(built.from_sdist) == contents(built.from_tree)


def test_the_sdist_holds_what_it_must_and_nothing_else(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
    assert {"LICENSE", "NOTICE", "CITATION.cff", "swjoin/py.typed", "plots/style.py"} <= names
    assert not [name for name in names for part in FOREIGN if part in name]
    top = {name.split("/")[0] for name in names}
    metadata = {"PKG-INFO", "MANIFEST.in", "setup.cfg", "pyproject.toml", "swjoin.egg-info"}
    documents = {"README.md", "DESCRIPTION.md", "CHANGELOG.md", "LICENSE", "NOTICE", "CITATION.cff"}
    assert top == metadata | documents | {"swjoin", "plots", "mpi_configs", "experiments"}


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """A folder with two tiny Parquet files; four pairs lie within one second of each other."""
    left = pa.table({"at": pa.array([0, 1, 2, 3], pa.timestamp("s")), "user": [7, 8, 7, 9], "page": ["a", "b", "c", "d"]})
    right = pa.table({"at": pa.array([0, 1, 2, 9], pa.timestamp("s")), "user": [7, 7, 8, 9], "paid": [1.5, 2.5, 3.5, 4.5]})
    pq.write_table(left, tmp_path / "left.parquet")
    pq.write_table(right, tmp_path / "right.parquet")
    return tmp_path


PAIRS = [(7, "a", 1.5), (7, "a", 2.5), (7, "c", 2.5), (8, "b", 3.5)]
JOIN = ["join", "left.parquet", "right.parquet", "--on", "user", "--left-time", "at", "--right-time", "at", "--within", "1s"]


def pairs(table: pa.Table) -> list[tuple[int, str, float]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in ("user", "page", "paid")), strict=True))


def test_the_metadata_are_fit_for_an_index(built: Built, tmp_path: Path) -> None:
    succeed([sys.executable, "-m", "venv", tmp_path / "env"], tmp_path)
    succeed([tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "-q", "twine"], tmp_path)
    said = succeed(
        [tmp_path / "env" / "bin" / "python", "-m", "twine", "check", "--strict", built.from_sdist, built.sdist], tmp_path
    )
    assert said.count("PASSED") == 2


def test_help_and_version(environment: Path, tmp_path: Path) -> None:
    assert "join two files" in succeed([environment / "swjoin", "--help"], tmp_path)
    assert succeed([environment / "swjoin", "--version"], tmp_path) == f"swjoin {swjoin.__version__}\n"


def test_two_parquet_files_are_joined(environment: Path, streams: Path) -> None:
    said = succeed([environment / "swjoin", *JOIN, "-o", "pairs.parquet"], streams)
    assert "balanced" in said
    assert pairs(pq.read_table(streams / "pairs.parquet")) == PAIRS


def test_ranks_need_an_extra(environment: Path, streams: Path) -> None:
    done = perform([environment / "swjoin", *JOIN, "-n", 3, "-o", "pairs.parquet"], streams)
    assert done.returncode == 2
    assert done.stderr.startswith("swjoin: MPI ranks need mpi4py, which is missing; install swjoin with its mpi extra")
    assert "mpi4py is not installed: joins run in one process" in succeed([environment / "swjoin", "doctor"], streams)


@pytest.mark.mpi
def test_the_same_on_ranks(with_mpi: Path, streams: Path) -> None:
    succeed([with_mpi / "swjoin", *JOIN, "-n", 3, "-o", "pairs.parquet"], streams)
    assert pairs(pq.read_table(streams / "pairs.parquet")) == PAIRS


def test_what_comes_with_swjoin_is_found_and_what_is_missing_is_named(environment: Path, tmp_path: Path) -> None:
    assert "preset quick" in succeed([environment / "swjoin", "sweep", "experiments/fig07.yaml", "--dry-run"], tmp_path)
    for argv, said in (
        (
            ["run", "mpi_configs/local.yaml", "--set", "module.x=1"],
            "/swjoin/mpi_configs/local.yaml: module.x: unknown configuration key",
        ),
        (["plot", "runs/none"], "swjoin: figures need matplotlib, which is missing; install swjoin with its plots extra"),
        (
            ["generate", "--rate", 10, "--duration", "1s", "-o", "s"],
            "swjoin: pyspark is missing; install swjoin with its spark extra",
        ),
    ):
        done = perform([environment / "swjoin", *argv], tmp_path)
        assert done.returncode == 2
        assert said in done.stderr


def test_an_uninstallation_leaves_nothing(built: Built, streams: Path, tmp_path: Path) -> None:
    """Kernels are compiled by the join, into the user's cache folder, which `swjoin kernels` names."""
    succeed([sys.executable, "-m", "venv", tmp_path / "env"], tmp_path)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    before = sorted(packages.rglob("*"))
    python = tmp_path / "env" / "bin" / "python"
    succeed([python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", built.from_sdist], tmp_path)
    succeed([tmp_path / "env" / "bin" / "swjoin", *JOIN, "-o", "pairs.parquet"], streams)
    assert pairs(pq.read_table(streams / "pairs.parquet")) == PAIRS
    assert "compiled on this machine" in succeed([tmp_path / "env" / "bin" / "swjoin", "kernels"], tmp_path)
    succeed([python, "-m", "pip", "uninstall", "-q", "-y", "swjoin"], tmp_path)
    assert sorted(packages.rglob("*")) == before


API: dict[str, Callable[[str], str]] = {
    "arrow": lambda name: f'pq.read_table("{name}.parquet")',
    "pandas": lambda name: f'pq.read_table("{name}.parquet").to_pandas()',
    "polars": lambda name: f'__import__("polars").read_parquet("{name}.parquet")',
    "duckdb": lambda name: f'__import__("duckdb").read_parquet("{name}.parquet")',
}


@pytest.mark.skipif(not HAS_API, reason="swjoin.join is not here yet")
@pytest.mark.parametrize("kind", API)
def test_five_lines_of_python(kind: str, environment: Path, streams: Path) -> None:
    program = f"""
        import pyarrow.parquet as pq
        import swjoin
        left, right = {API[kind]("left")}, {API[kind]("right")}
        pairs = swjoin.join(left, right, on="user", left_time="at", right_time="at", within="1s")
        pq.write_table(pairs, "pairs.parquet")
    """
    succeed([environment / "python", "-c", textwrap.dedent(program)], streams)
    assert pairs(pq.read_table(streams / "pairs.parquet")) == PAIRS

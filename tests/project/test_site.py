"""The site of the documents: its navigation is whole, links lead somewhere, and pages written from the code say all of it.

`./run.sh docs` builds it; MkDocs is no part of the environment that tests run in, so that is tested only where it has been.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import swjoin
from swjoin.cli.main import build_parser
from swjoin.config.loader import config_from_plain
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

FOLDER = ROOT / "docs" / "mkdocs"
CONFIG = yaml.safe_load((FOLDER / "mkdocs.yml").read_text())
GENERATED = {"commands.md", "configuration.md", "python.md"}


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outside, reference = hook("outside"), hook("reference")


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(item)


def test_links_lead_to_files_of_the_site() -> None:
    """Also those to directories, without which `--strict` ends the build; where MkDocs is not installed, too."""
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT).as_posix()
        lost = [link for link in outside.LINK.findall(page.read_text()) if outside.target_of(link, name) is None]
        assert lost == [], name


def test_the_navigation_has_every_page_once() -> None:
    listed = list(pages(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    kept_out = CONFIG["exclude_docs"].split()
    found = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    found = {name for name in found if not any(name.startswith(start) for start in kept_out)}
    beyond = {name for name in listed if name.startswith(outside.PREFIX)}
    assert set(listed) == found | beyond | GENERATED
    linked = {outside.in_site(path) for path in outside.outside([f"docs/{name}" for name in found])}
    assert beyond == {name for name in linked if name.endswith(".md")} - {"repository/README.md"}


def test_the_four_kinds() -> None:
    assert [next(iter(item)) for item in CONFIG["nav"]][1:] == ["Tutorial", "How-to", "Reference", "Explanation"]


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("performance.md", "../benchmarks/RESULTS.md", "repository/benchmarks/RESULTS.md"),
        ("reliability.md", "../mpi_configs/slurm.sh", "repository/mpi_configs/slurm.sh"),
        ("decisions/014-single-wheel.md", "../../setup.cfg", "../repository/setup.cfg"),
        ("repository/benchmarks/RESULTS.md", "../docs/performance.md#x", "../../performance.md#x"),
        ("repository/benchmarks/RESULTS.md", "throughput.png", "throughput.png"),
        ("memory.md", "overload.md", "overload.md"),
        ("memory.md", "../docs/decisions/", "decisions/001-partition-at-drain-time.md"),
        ("memory.md", "../mpi_configs/", "repository/mpi_configs/README.md"),
        ("memory.md", "../nothing.md", "../nothing.md"),
        ("memory.md", "../../elsewhere.md", "../../elsewhere.md"),
        ("memory.md", "https://example.org/../x.md", "https://example.org/../x.md"),
        ("memory.md", "#here", "#here"),
    ],
)
def test_links_that_leave_the_folder(page: str, link: str, expected: str) -> None:
    assert outside.rewritten(f"a [b]({link}) c", page) == f"a [b]({expected}) c"


def test_every_command_and_every_key_is_on_a_page() -> None:
    text = reference.commands()
    known = next(a for a in build_parser()._actions if a.dest == "command").choices
    assert all(f"## swjoin {name}\n" in text for name in known or {} if not name.startswith("_"))
    text = reference.configuration()
    config = config_from_plain({"join": {"within": "1s"}})
    sections = {name for name in vars(config) if hasattr(getattr(config, name), "__dataclass_fields__")}
    for heading in (sections - {"left", "right"}) | {"join", "left and right"}:
        assert f"## {heading}\n" in text
    for row in (
        "| `seed` | `1` | whole number |",
        "| `distribution_epoch` | by the pace | duration |",
        "| `theta` | `32KB` | size |",
        "| `lower` | required | duration |",
        "| `recover` | `true` | `true`, `false` |",
        "| `changes` | `[]` | list of `{slave, at, speed}` |",
    ):
        assert row in text


def test_every_public_name_is_in_the_reference() -> None:
    """mkdocstrings takes signature and docstring from the sources that are named here."""
    sources = re.findall(r"(?m)^::: ([\w.]+)\n    options:\n      heading: swjoin\.([\w.]+)$", reference.python_names())
    assert {name for _, name in sources} == {*swjoin.__all__, "Client", "spark.window_join"} - {"__version__"}
    for path, _ in sources:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="MkDocs is not installed; ./run.sh docs installs it")
def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    """On a copy of the documents, as they are and with one link to nothing."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(tmp_path / "docs" / "mkdocs" / "mkdocs.yml")]

    def build() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=PROCESS_S
        )

    done = build()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "repository" / "mpi_configs" / "slurm.sh").is_file()
    page = html.unescape(re.sub(r"<[^>]+>", "", (tmp_path / "site" / "python.html").read_text()))
    assert {f"swjoin.{name}" for name in swjoin.__all__} - set(re.findall(r"swjoin\.\w+", page)) == {"swjoin.__version__"}
    assert page.count("within: Duration | None") >= 3, "of join, count and WindowJoin"
    with (tmp_path / "docs" / "memory.md").open("a") as file:
        file.write("\n[dead](../benchmarks/NOTHING.md)\n")
    done = build()
    assert done.returncode != 0
    assert "NOTHING.md" in done.stderr

